# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope watch`` on a running stock kernel, inside the guest, while a workload takes page tables,
drops caches, runs the guest out of memory and is killed for it.

The guest reads the same files itself: before the watch and after it, and again within it, between
two samples. What the watch says lies between the two, for every counter.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIVES_ON
from shared_guest import PROCESSES, SAMPLES, InGuest

from mmscope.drgn.text.proc_text import parse_pagetypeinfo, parse_vmstat
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.watch.samples import parse_meminfo, parse_pressure

PROGRAM = (
    PROCESSES
    + SAMPLES
    + """
import json, signal, sys
from mmscope.reports.commands.command import main

SAMPLES = "/out/watch/watch.samples"
FILES = ("vmstat", "pressure/memory", "meminfo", "pagetypeinfo")
said = {}

def look(moment):
    said[moment] = {name: Path("/proc", name).read_text() for name in FILES}

def holds_page_tables():
    kept = memory(1 << 30, mmap.MADV_NOHUGEPAGE)
    for at in range(0, 1 << 30, 2 << 20):
        kept[at]
    time.sleep(1000)

def runs_out_of_memory():
    # MADV_POPULATE_WRITE: by the kernel alone. A loop of its own would be read from the disk again
    # and again, as the page cache goes first. At the end no sample may be taken for seconds.
    most = memory(800 << 20, mmap.MADV_HUGEPAGE)
    most.madvise(23)
    wait_for_samples(SAMPLES, 2)
    memory(8 << 30, mmap.MADV_HUGEPAGE).madvise(23)

look("before")
watch = os.fork()
if not watch:
    log = os.open("/out/watch/watch.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["mmscope", "watch", "--interval", "0.5", "-o", "/out/watch/watch",
                "--openmetrics", "/out/watch/watch.prom"]
    os._exit(main())
wait_for_samples(SAMPLES, 4)
told("watch: begun")
look("first")
wait_for_samples(SAMPLES, 2)
pid = child(holds_page_tables)
wait_for_samples(SAMPLES, 4)
look("held")
wait_for_samples(SAMPLES, 2)
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
for _ in range(3):
    Path("/proc/sys/vm/drop_caches").write_text("1")
pid = child(runs_out_of_memory)
said["killed"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
told("watch: killed")
look("last")
said["prom"] = Path("/out/watch/watch.prom").read_text()
wait_for_samples(SAMPLES, 4)
os.kill(watch, signal.SIGINT)
said["code"] = os.waitstatus_to_exitcode(os.waitpid(watch, 0)[1])
look("after")
Path("/out/watch/said.json").write_text(json.dumps(said))
"""
)


IN_GUEST = InGuest("watch", LIVES_ON, 1, PROGRAM)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


@pytest.fixture(scope="module")
def said(out: Path) -> Any:
    """What the guest read itself, by moment and file."""
    found = json.loads((out / "said.json").read_text())
    assert found["code"] == 0, (out / "watch.log").read_text()
    assert found["killed"] == -9
    return found


@pytest.fixture(scope="module")
def bundle(out: Path, said: Any) -> Bundle:
    return Bundle(out / "watch")


def vmstat(said: Any, moment: str) -> dict[str, int]:
    return {name: value for name, _, value in parse_vmstat(said[moment]["vmstat"])}


def test_every_counter_moved_by_what_the_guest_saw(bundle: Bundle, said: Any) -> None:
    moved: dict[str, int] = {}
    for row in bundle.rows("counter_rates"):
        if row["source"] == "vmstat":
            moved[row["name"]] = moved.get(row["name"], 0) + row["delta"]
        assert row["per_second"] == pytest.approx(row["delta"] / row["period_seconds"], rel=1e-5)
    before, first, last, after = (vmstat(said, m) for m in ("before", "first", "last", "after"))
    counters = {name for name, kind, _ in parse_vmstat(said["first"]["vmstat"]) if kind == "event"}
    assert {"pgfault", "oom_kill", "drop_pagecache"} <= moved.keys() & counters
    for name in moved.keys() | counters:
        within, around = last[name] - first[name], after[name] - before[name]
        assert within <= moved.get(name, 0) <= around, name
    assert (moved["oom_kill"], moved["drop_pagecache"]) == (1, 3)


def test_the_oom_kill_is_an_event(bundle: Bundle) -> None:
    (kill,) = (row for row in bundle.rows("watch_events") if row["name"] == "oom_kill")
    assert kill["count"] == 1


def test_page_tables_are_as_the_guest_saw_them(bundle: Bundle, said: Any) -> None:
    held, first = (parse_meminfo(said[m]["meminfo"])["PageTables"] for m in ("held", "first"))
    levels = [row["value"] for row in bundle.rows("gauge_series") if row["name"] == "PageTables"]
    assert held - first >= 512 << 12  # a table for each 2 MiB that was touched
    # The guest's own reading is between two samples; what both see may differ by a process' few.
    assert any(abs(level - held) <= 64 << 10 for level in levels), (held, levels)
    assert any(abs(level - first) <= 64 << 10 for level in levels), (first, levels)


def test_free_blocks_of_thp_size_are_as_the_guest_saw_them(bundle: Bundle, said: Any) -> None:
    info = parse_pagetypeinfo(said["first"]["pagetypeinfo"])
    printed = {
        key: sum((blocks or 0) << order - 9 for order, blocks in enumerate(counts) if order >= 9)
        for key, counts in info.free.items()
    }
    assert sum(printed.values()) > 100
    by_time: dict[float, dict[tuple[int, str, str], int]] = {}
    for row in bundle.rows("thp_free_blocks_series"):
        assert not row["capped"]
        place = row["node"], row["zone"], row["migratetype"]
        by_time.setdefault(row["time"], {})[place] = row["blocks"]
    # The guest reads between two samples, and the kernel may split a block or put one together
    # before either: of over a hundred the nearest sample has all but a few in their place.
    nearest = min(
        sum(abs(found.get(place, 0) - printed.get(place, 0)) for place in found.keys() | printed)
        for found in by_time.values()
    )
    assert nearest <= 4, (printed, by_time)


def test_free_memory_falls_and_comes_back(bundle: Bundle) -> None:
    free = [row["value"] for row in bundle.rows("gauge_series") if row["name"] == "MemFree"]
    assert min(free) < max(free) / 2 < free[-1]


def test_pressure_is_what_the_guest_saw(bundle: Bundle, said: Any) -> None:
    moments = [parse_pressure(said[m]["pressure/memory"]) for m in
               ("before", "first", "last", "after")]  # fmt: skip
    for kind in ("some", "full"):
        before, first, last, after = (moment[kind][3] / 1e6 for moment in moments)
        stalled = sum(row["stall_seconds"] or 0 for row in bundle.rows("psi_series")
                      if row["kind"] == kind)  # fmt: skip
        assert last - first - 1e-5 <= stalled <= after - before + 1e-5


def test_what_it_cost_is_said(bundle: Bundle, out: Path) -> None:
    (cost,) = bundle.rows("watch_overhead")
    assert cost["cpu_share"] > 0 and cost["samples_kept"] == cost["samples_taken"]
    log = (out / "watch.log").read_text()
    print(log)
    assert re.search(r"sampling took [\d.]+ ms of CPU a sample, [\d.e-]+ % of one CPU", log)


def test_openmetrics_had_the_counters(said: Any) -> None:
    first, last = vmstat(said, "first"), vmstat(said, "last")
    match = re.search(r'(?m)^mmscope_vm_events_total{name="pgfault"} (\d+)$', said["prom"])
    assert match is not None and first["pgfault"] <= int(match.group(1)) <= last["pgfault"]


def test_every_section_is_there(bundle: Bundle) -> None:
    statuses = {section.section: section.status for section in bundle.sections}
    assert statuses == {"watch": "ok", "page_owner": "absent"}, list(bundle.sections)
    assert bundle.target["release"].startswith(f"{LIVES_ON.removeprefix('arm64-')}.")


def test_the_kill_is_found(bundle: Bundle) -> None:
    assert "watch-oom-kill" in {finding.id for finding in evaluate(bundle).found}
