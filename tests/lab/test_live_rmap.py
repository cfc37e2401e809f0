# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps and page tables of a kernel that does not stand still: inside the guest, other
processes split and merge VMAs, fork and exit without pause, while anon_vmas are read again and
again; then one makes thousands of page tables and takes them away, beside one that stands still.

What moves may be counted wrong by what moved, and is said to have moved; it must not end in a
traceback, nor take for ever.

At last a machine like that of the series which brought page offsets to KSM: 22,169 VMAs on one
anon_vma, and KSM pages of one, three and 256 mappings (``programs/faults.c``). It is read, and then
walks of these pages are recorded.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIVES_ON
from profiled import binaries
from shared_guest import InGuest

from mmscope.drgn.rmap.reverse_maps import LIVE_ATTEMPTS
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import open_database
from mmscope.reports.findings.findings import evaluate

# A minute, for whoever has one to spare: MMSCOPE_LAB_MOVING_SECONDS=60.
SECONDS = int(os.environ.get("MMSCOPE_LAB_MOVING_SECONDS", "10"))
PROGRAM = """
import ctypes, json, mmap, os, signal, time

PAGES = 1000
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def memory():
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc.mmap(None, PAGES * 4096, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    ctypes.memset(address, 1, PAGES * 4096)
    return address

def protect(address, protection, step):
    for page in range(1, PAGES, step):
        libc.mprotect(address + page * 4096, 4096, protection)

def split_and_merge():
    address = memory()
    while True:
        protect(address, mmap.PROT_READ, 2)
        protect(address, mmap.PROT_READ | mmap.PROT_WRITE, 2)

def fork_and_exit():
    address = memory()
    protect(address, mmap.PROT_READ, 20)
    while True:
        child = os.fork()
        if child == 0:
            grandchild = os.fork()
            ctypes.memset(address, 2, 4096)
            if grandchild:
                os.waitpid(grandchild, 0)
            os._exit(0)
        os.waitpid(child, 0)

# Whoever has lost his parent is this program's.
libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER

def start(work, nice=0):
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.nice(nice)
        os.kill(os.getpid(), signal.SIGSTOP)
        work()
    return child

def end(pid):
    # With all that it forked: until the last one is gone, nothing stands still.
    os.killpg(pid, signal.SIGKILL)
    try:
        while True:
            os.waitpid(-pid, 0)
    except ChildProcessError:
        pass

# Both CPUs are one thread of the emulator's: what another one does takes as long from the reader.
os.sched_setaffinity(0, {0})

# Before drgn's threads are there, which do not survive a fork; they begin when it is ready. They
# come in between every few milliseconds, and leave most of the time to the reader.
restless = [start(split_and_merge, 10), start(fork_and_exit, 10)]
ending, staying = start(signal.pause), start(signal.pause)

def touch(tables):
    # More than the guest has, but not to be used: MAP_NORESERVE.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    memory = mmap.mmap(-1, tables << 21, flags=flags)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, tables << 21, 2 << 20):
        memory[at]
    return memory

def keep_page_tables():
    kept = touch(200)
    os.kill(os.getpid(), signal.SIGSTOP)

def churn():
    while True:
        touch(3000).close()

still, churning = start(keep_page_tables), start(churn)

from dataclasses import asdict
from pathlib import Path
from mmscope.reports.collect.run_section import run_section
from mmscope.drgn.rmap.reverse_maps import reverse_maps
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.opening.target import open_target

prog = open_target(None, [])

def reading():
    memory, found, sections = Memory(prog), {}, []
    for name in ("anon_vmas", "ksm", "rmap_cost", "file_maps"):
        section, tables = run_section(SECTIONS[name], memory, verbose=True)
        sections.append(asdict(section))
        found |= {name: [asdict(row) for row in rows] for name, rows in tables.by_name.items()}
    maps = reverse_maps(memory)
    return found | {"sections": sections, "attempts": maps.attempts, "orphans": maps.orphans}

told("rmap: opened")
for pid in restless:
    os.kill(pid, signal.SIGCONT)
time.sleep(1)
begin, readings = time.monotonic(), []
while time.monotonic() - begin < SECONDS:
    readings.append(reading())
    told("rmap: read")
for pid in restless:
    end(pid)
readings.append(reading())

# Two that cannot be read when it is their turn: one because it ends just then.
from drgn import FaultError
from drgn.helpers.linux.pid import find_task

def without(pid, meanwhile):
    mm = find_task(prog, pid).mm
    calls = []
    def read(address, count, offset, physical):
        if not calls:
            meanwhile(pid)
        calls.append(address)
        raise FaultError("gone", address)
    prog.add_memory_segment(mm.value_(), mm.type_.type.size, read, False)
    found = reading()
    assert calls
    return found

ended, unreadable = without(ending, end), without(staying, lambda pid: None)
end(staying)
told("rmap: two were unreadable")

def vm_pte():
    lines = Path(f"/proc/{still}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if "VmPTE" in line)

def page_tables():
    section, found = run_section(SECTIONS["page_tables"], Memory(prog))
    rows = {row.pid: asdict(row) for row in found.tables[0].rows} if found.tables else {}
    said = {"status": section.status, "message": section.message, "printed": vm_pte()}
    return said | {"still": rows.get(still), "churning": rows.get(churning)}

os.kill(still, signal.SIGCONT)
os.waitpid(still, os.WUNTRACED)
os.kill(churning, signal.SIGCONT)
tables = [page_tables() for _ in range(3)]
end(churning)
end(still)

# The recipe's probes, and perf, need it.
libc.mount(b"tracefs", b"/sys/kernel/tracing", b"tracefs", 0, None)
import subprocess, sys
from mmscope.drgn.opening.target import describe
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.commands.command import main

def recorded(*words):
    child = os.fork()
    if child == 0:
        sys.argv = ["mmscope", "record", *words]
        code = 99
        try:
            code = main()
        except SystemExit as error:
            code = error.code
        finally:
            os._exit(code if isinstance(code, int) else 98)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

made = subprocess.run(["/bin/faults", "ksm", str(VMAS)], check=True, capture_output=True, text=True)
told("rmap: many VMAs")
wide = Path("/out/rmap/wide")
# Opened again: an mm_struct may lie where one could not be read.
prog = open_target(None, [])
with Writer(wide) as writer:
    collect(Memory(prog), describe(prog, "live"), writer, ["anon_vmas", "ksm", "rmap_cost"])
told("rmap: many VMAs read")
code = recorded("rmap", "-o", str(wide), "--", "/bin/faults", "move", made.stdout.strip(), "1")
told("rmap: walks recorded")
os.kill(int(made.stdout), signal.SIGKILL)
libc.umount2(b"/sys/kernel/tracing", 2)  # MNT_DETACH

said = {"code": code, "reader": os.getpid(), "readings": readings, "ended": ended, "unreadable": unreadable, "page_tables": tables}
Path("/out/rmap/readings.json").write_text(json.dumps(said))
"""  # noqa: E501

Reading = dict[str, Any]
Readings = list[Reading]

VMAS = 22_169
IN_GUEST = InGuest(
    "rmap", LIVES_ON, 2, f"SECONDS, VMAS = {SECONDS}, {VMAS}\n{PROGRAM}", binaries(LIVES_ON)
)


@pytest.fixture(scope="module")
def guest(in_guest: Callable[[InGuest], Path]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((in_guest(IN_GUEST) / "readings.json").read_text())
    return found


@pytest.fixture(scope="module")
def readings(guest: dict[str, Any]) -> Readings:
    """What the guest has read while it moved, and once more when it had come to rest."""
    found: Readings = guest["readings"]
    return found


def test_no_section_fails(readings: Readings) -> None:
    """How long one takes has a bound of its own, its deadline, and is the machine's."""
    assert len(readings) > 1
    for reading in readings:
        for section in reading["sections"]:
            print(section)
            assert section["status"] == "ok"
        assert 1 <= reading["attempts"] <= LIVE_ATTEMPTS


def test_what_moved_is_said(readings: Readings) -> None:
    moved = [reading for reading in readings[:-1] if reading["anon_vma_checks"]]
    print(f"{len(moved)} of {len(readings) - 1} moved: {[r['orphans'] for r in moved]} orphans")
    assert moved, "nothing moved while processes split and forked"
    for reading in moved:
        message = reading["sections"][0]["message"]
        assert "the kernel was running while it was read" in message


def test_the_restless_processes_are_seen(readings: Readings) -> None:
    # 1,000 pages, every second of which is read-only for a while; how many were split just then,
    # and stayed so until they were read, is chance.
    most = [max(row["vmas"] for row in reading["anon_vmas"]) for reading in readings]
    print(most)
    assert min(most[:-1]) > 100 > most[-1]


def test_what_stands_still_fits_together(guest: dict[str, Any], readings: Readings) -> None:
    still = readings[-1]
    assert still["orphans"] == 0 and still["attempts"] == 1
    # Who reads maps memory, and gives it back, meanwhile.
    own = {row["anon_vma"] for row in still["anon_vmas"] if row["pid"] == guest["reader"]}
    differ = [row for row in still["anon_vma_checks"] if "descended" in row["problem"]]
    assert [row for row in differ if row["anon_vma"] not in own] == []
    assert {row["comm"] for row in still["process_vmas"]} >= {"init"}
    assert sum(row["vmas"] for row in still["anon_vma_fanout"]) > 20


def test_files_that_restless_processes_map_are_seen(readings: Readings) -> None:
    """Their program and its libraries, of which each fork makes VMAs and each exit takes them."""
    for reading in readings:
        (library,) = (row for row in reading["file_mappings"] if "/libc.so" in (row["file"] or ""))
        assert library["processes"] >= 1 and library["vmas"] >= 4
    still = readings[-1]
    print(still["file_mapping_checks"])
    assert [row for row in still["file_mapping_checks"] if row["address_space"]] == []


def test_a_process_that_ends_while_it_is_read_is_gone_and_not_unreadable(
    guest: dict[str, Any],
) -> None:
    for section in guest["ended"]["sections"]:
        print(section)
        assert section["status"] == "ok"
        assert "1 process ended while being read" in section["message"]


def test_a_process_that_is_still_there_is_unreadable(guest: dict[str, Any]) -> None:
    for section in guest["unreadable"]["sections"]:
        print(section)
        assert section["status"] == "partial"
        assert "1 process could not be read" in section["message"]
        assert "ended" not in section["message"]


def test_page_tables_that_stand_still_are_exact(guest: dict[str, Any]) -> None:
    for reading in guest["page_tables"]:
        row = reading["still"]
        assert row["pgtables_bytes"] == reading["printed"] << 10
        assert row["unaccounted_tables"] == 0
        assert row["pte_tables"] >= 200 and row["zero_ptes"] >= 200


def test_page_tables_that_change_are_read_to_an_end(guest: dict[str, Any]) -> None:
    readings = guest["page_tables"]
    moved = [r for r in readings if r["churning"]["unaccounted_tables"]]
    print([(r["churning"]["unaccounted_tables"], r["message"]) for r in readings])
    assert len(readings) == 3
    assert {r["status"] for r in readings} <= {"ok", "partial"}
    # Some are made and some are gone while they are counted: never more than there can be.
    assert all(0 <= r["churning"]["pte_tables"] < 8000 for r in readings)
    assert moved, "nothing moved: nothing was tested"
    assert all("unaccounted): the kernel was running" in r["message"] for r in moved)


@pytest.fixture(scope="module")
def wide(in_guest: Callable[[InGuest], Path], guest: dict[str, Any]) -> Bundle:
    """The machine of many VMAs, and walks that were recorded there."""
    assert guest["code"] in (0, 1)  # 1: samples were lost
    return Bundle(in_guest(IN_GUEST) / "wide")


def test_ksm_pages_on_many_vmas_are_read_live(wide: Bundle) -> None:
    (whole,) = {row["used_here"] == "whole range" for row in wide.rows("rmap_costs")
                if row["what"] == "KSM pages"}  # fmt: skip
    pages = {row["mappings"]: row for row in wide.rows("ksm_pages")}
    assert sorted(pages) == [1, 3, 256]
    for mappings, row in pages.items():
        assert row["visits_per_pass"] == mappings * VMAS and row["visits_indexed"] == mappings
    (split,) = (row for row in wide.rows("vma_splits") if row["comm"] == "split")
    assert (split["vmas"], split["made_by"]) == (VMAS, "mprotect")
    found = [finding for finding in evaluate(wide).found if finding.id == "rmap-walk-stalls"]
    assert len(found) == whole


def test_recorded_walks_of_ksm_pages_are_those_of_the_pages_that_were_read(wide: Bundle) -> None:
    nodes = {row["stable_node"]: row["mappings"] for row in wide.rows("ksm_pages")}
    walks = {nodes[row["stable_node"]]: row for row in wide.rows("profile_ksm_walks")}
    # Each was moved once: a walk that maps it again, beside the one that ends when it is unmapped.
    assert {mappings: row["walks"] for mappings, row in walks.items()} == {1: 1, 3: 1, 256: 1}
    took = {row["name"]: row for row in wide.rows("profile_durations")}
    assert took["rmap_walk_ksm"]["count"] == 6
    assert sum(row["total_ns"] for row in walks.values()) <= took["rmap_walk_ksm"]["total_ns"]


def test_recorded_walks_say_what_a_visit_takes(wide: Bundle) -> None:
    visits = 2 * VMAS * (1 + 3 + 256)
    total = sum(row["total_ns"] for row in wide.rows("profile_ksm_walks"))
    by_view = open_database(wide).rows("select * from ksm_visit_ns")
    if any(row["used_here"] == "page offset" for row in wide.rows("rmap_costs")
           if row["what"] == "KSM pages"):  # fmt: skip
        assert by_view == []
        return
    (row,) = by_view
    assert (row["walks"], row["pages"]) == (3, 3)
    assert row["ns"] == pytest.approx(total / visits)
    (finding,) = (found for found in evaluate(wide).found if found.id == "rmap-walk-stalls")
    assert "3 walks of 3 KSM pages" in finding.saw and "Assumes" not in finding.saw
