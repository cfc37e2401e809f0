# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The command on a running kernel, inside the guest, as root, with what a box would have.

The kernel works while it is read, not least for the command itself, so counts may differ by what
moved; what does not move must be equal.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_guest import InGuest

from mmscope.reports.bundle.bundle import Bundle

PROGRAM = """
import os
from mmscope.reports.commands.command import main

def run(name, *arguments):
    child = os.fork()
    if child == 0:
        log = os.open(f"/out/live/{name}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os._exit(main(arguments))
    status = os.waitpid(child, 0)[1]
    with open(f"/out/live/{name}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(status)))

run("doctor", "doctor")
run("memory", "collect", "--symbols", "/vmlinux", "-o", "/out/live/memory")
run("text", "collect", "--proc-root", "/", "-o", "/out/live/text")
run("own", "collect", "-o", "/out/live/own")
"""
# Then page tables, of a process that stands still and of one that makes thousands and takes them
# away; the processes are there before drgn starts its threads. In a process of its own: whoever
# has those threads cannot fork any more.
PROGRAM += """
import json, mmap, time
from pathlib import Path

def touch(tables):
    # More than the guest has, but not to be used: MAP_NORESERVE.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    memory = mmap.mmap(-1, tables << 21, flags=flags)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, tables << 21, 2 << 20):
        memory[at]
    return memory

still = os.fork()
if not still:
    kept = touch(200)
    while True:
        time.sleep(1000)
churning = os.fork()
if not churning:
    while True:
        touch(3000).close()

def read_page_tables():
    from mmscope.drgn.sections.memory import Memory
    from mmscope.drgn.sections.registry import SECTIONS
    from mmscope.reports.collect.collect import run_section
    from mmscope.drgn.opening.target import open_target

    prog = open_target()
    readings = []
    for _ in range(3):
        section, found = run_section(SECTIONS["page_tables"], Memory(prog))
        rows = {row.pid: vars(row) for row in found.tables[0].rows} if found.tables else {}
        lines = Path(f"/proc/{still}/status").read_text().splitlines()
        readings.append({
            "status": section.status,
            "message": section.message,
            "printed": next(int(line.split()[1]) for line in lines if "VmPTE" in line),
            "still": rows.get(still),
            "churning": rows.get(churning),
        })
    Path("/out/live/page_tables.json").write_text(json.dumps(readings))

reader = os.fork()
if not reader:
    try:
        read_page_tables()
    finally:
        os._exit(0)
os.waitpid(reader, 0)
for child in (still, churning):
    os.kill(child, 9)
    os.waitpid(child, 0)
"""
# At last it is locked down. Not at boot: the lab's init needs a port.
PROGRAM += """
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"securityfs", b"/sys/kernel/security", b"securityfs", 0, None):
    raise OSError(ctypes.get_errno(), "securityfs")
Path("/sys/kernel/security/lockdown").write_text("confidentiality")
run("locked_doctor", "doctor")
run("locked_collect", "collect", "-o", "/out/live/locked")
run("locked_show", "show", "zones")
"""


# Behind all others: it is the last one that a locked down kernel lets do anything.
IN_GUEST = InGuest("live", "7.2", 9, PROGRAM)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


def test_every_section_is_read_from_the_running_kernel(out: Path) -> None:
    assert (out / "memory.code").read_text() == "0", (out / "memory.log").read_text()
    bundle = Bundle(out / "memory")
    assert bundle.target["kind"] == "live"
    # A stock kernel has no PAGE_OWNER, and was not booted with slab_debug=U.
    absent = {"page_owner", "slab_owner"}
    for section in bundle.sections:
        assert section.status == ("absent" if section.section in absent else "ok"), section


def test_what_does_not_move_is_what_proc_says(out: Path) -> None:
    memory, text = Bundle(out / "memory"), Bundle(out / "text")
    still = ("node", "zone", "present_pages", "managed_pages", "spanned_pages", "wmark_low")
    for table, columns in (
        ("zones", still),
        ("settings", ("name", "value")),
    ):
        ours = {tuple(row[column] for column in columns) for row in memory.rows(table)}
        assert ours == {tuple(row[column] for column in columns) for row in text.rows(table)}
    names = [row["name"] for row in memory.rows("vm_counters")]
    assert names == [row["name"] for row in text.rows("vm_counters")]


def test_what_moves_is_near_what_proc_says(out: Path) -> None:
    free = {
        name: sum(row["pages"] for row in Bundle(out / name).rows("free_blocks"))
        for name in ("memory", "text")
    }
    # The next command has come up in between, and the last one has gone: some ten MiB.
    assert abs(free["memory"] - free["text"]) < 20_000, free
    assert free["memory"] > 100_000


def test_the_log_is_that_of_dev_kmsg(out: Path) -> None:
    """Which escapes what is not printable, and has no caller without CONFIG_PRINTK_CALLER."""
    logs = []
    for name in ("memory", "text"):
        rows = Bundle(out / name).rows("kernel_log")
        logs.append({row["number"]: row | {"caller": None} for row in rows})
    both = logs[0].keys() & logs[1].keys()
    assert len(both) > 200
    assert [logs[0][number] for number in both] == [logs[1][number] for number in both]


def test_page_tables_that_stand_still_are_exact(out: Path) -> None:
    for reading in json.loads((out / "page_tables.json").read_text()):
        row = reading["still"]
        assert row["pgtables_bytes"] == reading["printed"] << 10
        assert row["unaccounted_tables"] == 0
        assert row["pte_tables"] >= 200 and row["zero_ptes"] >= 200


def test_page_tables_that_change_are_read_to_an_end(out: Path) -> None:
    readings = json.loads((out / "page_tables.json").read_text())
    moved = [r for r in readings if r["churning"]["unaccounted_tables"]]
    print([(r["churning"]["unaccounted_tables"], r["message"]) for r in readings])
    assert len(readings) == 3
    assert {r["status"] for r in readings} <= {"ok", "partial"}
    # Some are made and some are gone while they are counted: never more than there can be.
    assert all(0 <= r["churning"]["pte_tables"] < 8000 for r in readings)
    assert moved, "nothing moved: nothing was tested"
    assert all("unaccounted): the kernel was running" in r["message"] for r in moved)


def test_without_any_debug_info_every_section_is_read_all_the_same(out: Path) -> None:
    assert (out / "own.code").read_text() == "0", (out / "own.log").read_text()
    own, memory = Bundle(out / "own"), Bundle(out / "memory")
    assert own.target["types"] == "BTF and kallsyms"
    assert memory.target["types"] == "debug info"
    statuses = [(section.section, section.status) for section in own.sections]
    assert statuses == [(section.section, section.status) for section in memory.sections]
    for table, columns in (
        ("zones", ("node", "zone", "present_pages", "managed_pages", "highatomic_cap_pages")),
        ("settings", ("name", "value")),
        ("hugetlb_sizes", ("page_bytes", "pages")),
        ("vm_counters", ("name", "kind")),
    ):
        rows = [tuple(row[column] for column in columns) for row in own.rows(table)]
        assert rows == [tuple(row[column] for column in columns) for row in memory.rows(table)]
        assert rows


def test_without_duckdb_the_bundle_is_whole_and_the_findings_are_put_off(out: Path) -> None:
    assert "findings need duckdb" in (out / "memory.log").read_text()


def test_doctor_knows_that_nothing_is_missing(out: Path) -> None:
    assert (out / "doctor.code").read_text() == "0"
    log = (out / "doctor.log").read_text()
    for source in ("/proc/kcore", "BTF and kallsyms"):
        assert re.search(rf"(?m)^{source} +yes ", log)
    assert "debug symbols" not in log


# A kernel that is locked down lets nobody read its memory: one line says so, and text is read.


def test_collect_says_that_it_is_locked_down_and_reads_text(out: Path) -> None:
    said = (out / "locked_collect.log").read_text().splitlines()
    (line,) = (line for line in said if "/proc/kcore: " in line)
    assert "/proc/kcore: this kernel is locked down (lockdown=confidentiality)" in line
    assert line.endswith("; reading /proc and /sys instead")
    assert (out / "locked_collect.code").read_text() in ("0", "1")
    bundle = Bundle(out / "locked")
    status = {section.section: section.status for section in bundle.sections}
    assert {status[name] for name in ("zones", "vm_counters", "free_lists")} == {"ok"}
    target = json.loads((out / "locked" / "datapackage.json").read_text())
    assert "locked down" in json.dumps(target)


def test_so_does_show(out: Path) -> None:
    assert (out / "locked_show.code").read_text() == "0"
    said = (out / "locked_show.log").read_text()
    assert "locked down" in said and "DMA32" in said


def test_doctor_names_it(out: Path) -> None:
    said = " ".join((out / "locked_doctor.log").read_text().split())
    assert (out / "locked_doctor.code").read_text() == "0"
    assert "locked down" in said
