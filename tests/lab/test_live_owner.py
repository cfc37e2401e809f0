# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner on a running kernel, inside the guest: from memory without any text, and ``mmscope
watch`` while the test module leaks.
"""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run
from shared_guest import SAMPLES, InGuest

from mmscope.reports.bundle.bundle import Bundle

pytestmark = pytest.mark.owner_kernel

HELD = 700
LEAKED = 300  # pages a step
STEPS = 5

PROGRAM = (
    SAMPLES
    + f"""
import csv
import os
import signal
import sys
import time
from pathlib import Path
from mmscope.reports.commands.command import main

def module(text):
    with open("/sys/kernel/debug/mmscope_lab", "w") as file:
        file.write(text)

def run(name, *arguments, meanwhile=lambda child: None):
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        log = os.open(f"/out/owner/{{name}}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["mmscope", *arguments]
        os._exit(main())
    meanwhile(child)
    status = os.waitpid(child, 0)[1]
    with open("/out/owner/runs.csv", "a") as file:
        seconds = time.monotonic() - begin
        file.write(f"{{name}},{{os.waitstatus_to_exitcode(status)}},{{seconds:.3f}}\\n")
    told(f"owner: {{name}}")

def leak(watch):
    wait_for_samples("/out/owner/watch.samples", 2)
    for _ in range({STEPS}):
        module("leak {LEAKED}")
        wait_for_samples("/out/owner/watch.samples", 2)
    os.kill(watch, signal.SIGINT)

module("order0 {HELD}")
module("order3 8")
begin = time.monotonic()
size = 0
with open("/sys/kernel/debug/page_owner", "rb", buffering=0) as file:
    while data := file.read(1 << 20):
        size += len(data)
with open("/out/owner/runs.csv", "a") as file:
    file.write(f"cat,0,{{time.monotonic() - begin:.3f}}\\n")
run("memory", "collect", "--symbols", "/vmlinux", "-o", "/out/owner/memory")
fallback = "zones,free_lists,alloc_tags"
run("fallback", "collect", "--only", fallback, "-o", "/out/owner/fallback")
words = ("--all", "--interval", "0.5", "-o", "/out/owner/watch")
run("watch", "watch", *words, meanwhile=leak)
# Last, since drgn reads debug info with OpenMP, which a forked child cannot use again.
# In one process, as an interactive session would: debug info loaded, then pages by stack, which is
# what show_handles prints, and then the names of all stacks.
from pathlib import Path
import numpy as np
from mmscope.drgn.owners.page_owner import listed_handles
from mmscope.drgn.reading.stack_depot import folded_stacks, stack_depot
from mmscope.drgn.opening.target import open_target

def timed(name, work):
    begin = time.monotonic()
    result = work()
    with open("/out/owner/runs.csv", "a") as file:
        file.write(f"{{name}},0,{{time.monotonic() - begin:.3f}}\\n")
    told(f"owner: {{name}}")
    return result

def pages_by_handle():
    depot = stack_depot(prog)
    listed = listed_handles(prog, depot)
    pairs = zip(depot.handles.tolist(), depot.counts.tolist())
    return depot, {{handle: count - 1 for handle, count in pairs if handle in listed}}

prog = timed("debug info", lambda: open_target(None, [Path("/vmlinux")]))
depot, pages = timed("pages by handle", pages_by_handle)
handles = np.array(sorted(pages), np.uint32)
stacks = timed("names", lambda: folded_stacks(prog, depot, handles))
with open("/out/owner/by_handle.csv", "w", newline="") as file:
    csv.writer(file).writerows(
        (handle, pages[handle], stack) for handle, stack in zip(handles.tolist(), stacks)
    )
printed = Path("/sys/kernel/debug/page_owner_stacks/show_handles")
with open("/out/owner/show_handles", "w") as file:
    file.write(printed.read_text())
"""
)


IN_GUEST = InGuest("owner", "owner", 1, PROGRAM)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


@pytest.fixture(scope="module")
def runs(out: Path) -> dict[str, tuple[int, float]]:
    """Exit code and seconds of each run; ``cat`` is reading page_owner to its end."""
    with (out / "runs.csv").open() as file:
        return {name: (int(code), float(seconds)) for name, code, seconds in csv.reader(file)}


def handles_of(bundle: Bundle, function: str) -> dict[int, int]:
    """Handle to pages of the stacks that a function of the module allocated by."""
    return {
        row["handle"]: row["pages"]
        for row in bundle.rows("page_owner_stacks")
        if row["stack"] and f"{function} [mmscope_lab]" in row["stack"].split(";")
    }


def test_every_section_is_read_from_the_running_kernel(
    out: Path, runs: dict[str, tuple[int, float]]
) -> None:
    said = (out / "memory.log").read_text()
    missing = [line for line in said.splitlines() if re.search(": (partial|failed): ", line)]
    # Processes come and go while it is read.
    assert all(re.search("partial: .* process(es)? could not be read", line) for line in missing)
    assert runs["memory"][0] == (1 if missing else 0), said


def test_pages_by_stack_come_from_memory_alone(
    out: Path, runs: dict[str, tuple[int, float]]
) -> None:
    bundle = Bundle(out / "memory")
    (section,) = (s for s in bundle.sections if s.section == "page_owner")
    assert section.status == "ok", section.message
    assert sum(handles_of(bundle, "mmscope_lab_hold_order0").values()) == HELD
    assert sum(handles_of(bundle, "mmscope_lab_hold_order3").values()) == 8 << 3
    print(", ".join(f"{name} {seconds:.3f} s" for name, (_, seconds) in runs.items()))


def test_a_kernel_without_btf_is_read_by_text_and_says_what_to_install(
    out: Path, runs: dict[str, tuple[int, float]]
) -> None:
    assert runs["fallback"][0] == 1
    log = (out / "fallback.log").read_text()
    assert "give --symbols VMLINUX" in log and "CONFIG_DEBUG_INFO_BTF" in log
    assert "reading /proc and /sys instead" in log
    bundle = Bundle(out / "fallback")
    assert bundle.target["kind"] == "files"
    assert list(bundle.rows("free_blocks"))


def test_lines_of_source_are_the_same_from_memory_and_from_text(
    out: Path, runs: dict[str, tuple[int, float]]
) -> None:
    tables = {}
    for name in ("memory", "fallback"):
        bundle = Bundle(out / name)
        (section,) = (s for s in bundle.sections if s.section == "alloc_tags")
        assert section.status == "ok", section.message
        rows = list(bundle.rows("alloc_tags"))
        tables[name] = {
            (row["module"], row["file"], row["line"], row["function"]): row for row in rows
        }
    assert tables["memory"].keys() == tables["fallback"].keys()
    ours = {key[3]: row for key, row in tables["memory"].items() if key[0] == "mmscope_lab"}
    assert all(tables["fallback"][key] == row for key, row in tables["memory"].items() if key[0])
    held = ours["mmscope_lab_hold_order0"]
    assert (held["calls"], held["bytes"]) == (HELD, HELD * 4096)
    assert ours["mmscope_lab_hold_order3"]["bytes"] == 8 * 8 * 4096
    pages = {
        row["function"]: row["pages"]
        for row in Bundle(out / "memory").rows("ledger_tags")
        if row["module"] == "mmscope_lab" and row["owner"] == "unexplained"
    }
    assert pages["mmscope_lab_hold_order0"] == HELD
    assert pages["mmscope_lab_hold_order3"] == 8 * 8


def test_pages_by_handle_need_no_more_than_the_stack_depot(out: Path) -> None:
    bundle = Bundle(out / "memory")
    module = handles_of(bundle, "mmscope_lab_hold_order0") | handles_of(
        bundle, "mmscope_lab_hold_order3"
    )
    printed = {
        int(handle): int(pages)
        for handle, pages in re.findall(
            r"^handle: (\d+)\nnr_base_pages: (\d+)$", (out / "show_handles").read_text(), re.M
        )
    }
    with (out / "by_handle.csv").open(newline="") as file:
        ours = {int(handle): (int(pages), stack) for handle, pages, stack in csv.reader(file)}
    listed = {handle: pages for handle, pages in module.items() if handle in printed}
    assert listed, (module, printed)
    assert {handle: ours.get(handle, (None, ""))[0] for handle in listed} == listed
    for handle in listed:
        assert "[mmscope_lab]" in ours[handle][1], ours[handle]
    frame = "mmscope_lab_hold_order0 [mmscope_lab]"
    assert sum(pages for pages, stack in ours.values() if frame in stack.split(";")) == HELD


def test_watch_names_the_leak_and_how_much_it_took(
    out: Path, runs: dict[str, tuple[int, float]]
) -> None:
    assert runs["watch"][0] == 0, (out / "watch.log").read_text()
    bundle = Bundle(out / "watch")
    handles = handles_of(bundle, "mmscope_lab_leak")
    leaks = [row for row in bundle.rows("page_owner_growth") if row["handle"] in handles]
    assert sum(row["pages_last"] for row in leaks) == STEPS * LEAKED
    assert {row["steadiness"] for row in leaks} == {1}


def test_the_matrix_of_the_watch_has_each_step_of_the_leak(
    out: Path, runs: dict[str, tuple[int, float]]
) -> None:
    result = run("show", "page_owner_matrix", out / "watch", "--format", "json")
    assert result.returncode == 0, result.stderr
    rows = [row for row in json.loads(result.stdout) if "mmscope_lab_leak" in (row["stack"] or "")]
    readings = [row["at"] for row in Bundle(out / "watch").rows("page_owner_snapshots")]
    assert rows and all([*row][-len(readings) :] == readings for row in rows)
    # The watch takes two samples after each step.
    leaked = [sum(row[at] or 0 for row in rows) for at in readings]
    assert leaked == sorted(leaked)
    assert {step * LEAKED for step in range(STEPS + 1)} <= {*leaked}
