# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Recordings held against what was really done: the lab's own module allocates known numbers, some of
which reserve pageblocks, some fail, and some must not be taken for either. And recordings that are
killed, after which no probe and no perf is left.

The kernel `owner` has no BTF: its probe takes the argument by its number.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profiled import recordings
from shared_guest import InGuest

from mmscope.reports.bundle.bundle import Bundle

pytestmark = pytest.mark.owner_kernel

# Below the low watermark and above the min one each allocation takes the slow path.
LOAD = """
import os, re
def put(path, value):
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, str(value).encode())
    os.close(descriptor)
def lab(*commands):
    for command in commands:
        put("/sys/kernel/debug/mmscope_lab", command)
ordinary = open("/proc/sys/vm/min_free_kbytes").read().strip()
total = int(re.search(r"MemTotal: *([0-9]+)", open("/proc/meminfo").read())[1])
lab("atomic 3")
put("/proc/sys/vm/watermark_scale_factor", 3000)
put("/proc/sys/vm/min_free_kbytes", total * 70 // 100)
lab("atomic 20", "nomemalloc 60", "high 60", "noio 40", "atomic2 100")
put("/proc/sys/vm/min_free_kbytes", ordinary)
put("/proc/sys/vm/watermark_scale_factor", 10)
lab("fail_atomic 7")
"""

KILLS = """
import json, shutil, signal, time
Path("/out/recordings/pagetypeinfo").write_text(Path("/proc/pagetypeinfo").read_text())
shutil.copy("/sys/kernel/debug/mmscope_lab", "/out/recordings/lab.txt")
events = Path("/sys/kernel/tracing/kprobe_events")

def perfs():
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            said = path.read_text()
        except OSError:
            continue
        if "(perf)" in said and ") Z " not in said:
            found.append(path.parent.name)
    return found

def killed(number):
    child = os.fork()
    if child == 0:
        sys.argv = ["mmscope", "record", "rmap", "-a", "-o", "/out/recordings/none"]
        try:
            main()
        finally:
            os._exit(0)
    while not (perfs() and events.read_text()):
        time.sleep(0.1)
    time.sleep(1)
    during = events.read_text()
    os.kill(child, number)
    os.waitpid(child, 0)
    begin = time.monotonic()
    while (perfs() or events.read_text()) and time.monotonic() - begin < 60:
        time.sleep(0.1)
    return {"during": during, "after": events.read_text(), "perfs": perfs()}

seen = killed(signal.SIGKILL)
# What a recording leaves whose guard is killed with it, and one of a release before.
def probe(line):
    descriptor = os.open(events, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, (line + "\\n").encode())
    os.close(descriptor)
probe("p:mmscope/rmap_walk_999999 rmap_walk")
probe("p:mmscope/rmap_walk rmap_walk")
probe("p:somebody/rmap_walk_1 rmap_walk")
run("next", "record", "-o", "/out/recordings/case", "rmap", "--", "/bin/faults", "dense", "100")
seen["next"] = events.read_text()
Path("/out/recordings/told.json").write_text(json.dumps(seen))
"""
RUNS = (("atomic", "case", ("atomic-alloc", "--", "/python", "-c", LOAD)),)
WALKS = ("rmap_walk_anon", "rmap_walk_file", "rmap_walk_ksm")
PROBES = {f"{name}{end}" for name in (*WALKS, "read_wait") for end in ("", "_return")}


IN_GUEST = recordings("recordings", "owner", 2, RUNS, after=KILLS)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


@pytest.fixture(scope="module")
def bundle(out: Path) -> Bundle:
    return Bundle(out / "case")


@pytest.fixture(scope="module")
def told(out: Path) -> dict[str, Any]:
    return json.loads((out / "told.json").read_text())


def held(out: Path) -> dict[str, int]:
    """What the module says: allocations by function."""
    text = (out / "lab.txt").read_text()
    return {m[1]: int(m[2]) for m in re.finditer(r"^(\w+) allocations (\d+) ", text, re.MULTILINE)}


def allocations(bundle: Bundle) -> dict[int, dict[str, Any]]:
    return {row["order"]: row for row in bundle.rows("profile_allocations")}


def test_attempts_and_failures_are_those_that_were_made(out: Path, bundle: Bundle) -> None:
    assert (out / "atomic.code").read_text() == "0", (out / "atomic.log").read_text()
    counted, module = allocations(bundle), held(out)
    assert counted[4]["attempts"] == module["mmscope_lab_hold_atomic"] == 23
    assert counted[2]["attempts"] == module["mmscope_lab_hold_atomic2"] == 100
    assert counted[8]["failures"] == 7
    assert counted[4]["failures"] == counted[2]["failures"] == 0


def test_what_may_not_use_the_reserve_is_neither_counted_nor_blamed(
    out: Path, bundle: Bundle
) -> None:
    module = held(out)
    for name, times in (("nomemalloc", 60), ("high", 60), ("noio", 40)):
        assert module[f"mmscope_lab_hold_{name}"] == times
    # Nothing else asks for these orders: page_frag_cache's 3, and 1 of those who may wait.
    assert not {1, 3} & {*allocations(bundle)}
    for name in bundle.folded:
        for stack, _ in bundle.stacks(name):
            assert not re.search(r"hold_(nomemalloc|high|noio)_", stack), stack


def test_every_reserved_pageblock_has_its_caller(out: Path, bundle: Bundle) -> None:
    counted = allocations(bundle)
    assert None not in counted
    reserved = sum(row["reservations"] for row in counted.values())
    stacks = dict(bundle.stacks("atomic_alloc_mmscope_reserve"))
    assert sum(stacks.values()) == reserved > 0
    by_order = {4: 0, 2: 0, 8: 0}
    functions = {"hold_atomic": 4, "hold_atomic2": 2, "fail_atomic": 8}
    for stack, times in stacks.items():
        (name,) = re.findall(r"mmscope_lab_(\w+?)_\[k\]", stack)
        by_order[functions[name]] += times
    assert by_order == {order: counted[order]["reservations"] for order in by_order}
    # Order 4 comes from the buddy lists, where the slow path reserves.
    assert counted[4]["reservations"] > 0 and counted[4]["from_reserve"] > 0
    given_back = sum(
        row["samples"]
        for row in bundle.rows("profiles")
        if row["event"] == "mmscope:unreserve_return"
    )
    # With page_owner each node has its own list, and one of mixed blocks behind it.
    nodes = (out / "pagetypeinfo").read_text().split("Number of blocks type")[1:]
    zones = [
        zone
        for node in nodes
        for zone in re.findall(r"^Node.*zone +\S+ +(.*)$", node.partition("mixed")[0], re.MULTILINE)
    ]
    assert reserved - given_back == sum(int(zone.split()[3]) for zone in zones)


def test_the_fast_path_reserves_nothing(bundle: Bundle) -> None:
    fast = [s for s, _ in bundle.stacks("atomic_alloc_mmscope_reserve") if "slowpath" not in s]
    assert fast == []


def test_probes_that_ran_every_time_missed_nothing(bundle: Bundle) -> None:
    probed = [r for r in bundle.rows("profiles") if r["event"].startswith("mmscope:reserve")]
    assert probed and all(row["missed"] == 0 for row in probed)


def test_a_recording_that_is_killed_leaves_no_probe_and_no_perf(told: dict[str, Any]) -> None:
    assert set(re.findall(r"mmscope/(\w+?)_\d+ ", told["during"])) == PROBES
    assert told["after"] == "" and told["perfs"] == []


def test_what_was_left_before_is_removed_and_what_is_others_stays(
    out: Path, told: dict[str, Any]
) -> None:
    assert (out / "next.code").read_text() in ("0", "1"), (out / "next.log").read_text()
    assert told["next"].split() == ["p:somebody/rmap_walk_1", "rmap_walk"]
