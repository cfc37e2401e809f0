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

import kernels
import pytest
from conftest import LIVES_ON
from kernels import NOT_IN_STOCK
from shared_guest import InGuest

from mmscope.reports.bundle.bundle import Bundle

PROGRAM = """
import os
import shutil
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
    told(f"live: {name}")

run("doctor", "doctor", "--all")
shutil.copyfile("/proc/vmstat", "/out/live/vmstat.before")
run("memory", "collect", "--symbols", "/vmlinux", "-o", "/out/live/memory")
shutil.copyfile("/proc/vmstat", "/out/live/vmstat.after")
run("text", "collect", "--proc-root", "/", "-o", "/out/live/text")
run("own", "collect", "-o", "/out/live/own")
"""
# At last it is locked down. Not at boot: the lab's init needs a port.
PROGRAM += """
import ctypes
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"securityfs", b"/sys/kernel/security", b"securityfs", 0, None):
    raise OSError(ctypes.get_errno(), "securityfs")
Path("/sys/kernel/security/lockdown").write_text("confidentiality")
run("locked_doctor", "doctor", "--all")
run("locked_collect", "collect", "-o", "/out/live/locked")
run("locked_show", "show", "zones")
"""


# Behind all others: it is the last one that a locked down kernel lets do anything.
IN_GUEST = InGuest("live", LIVES_ON, 9, PROGRAM)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


def test_every_section_is_read_from_the_running_kernel(out: Path) -> None:
    assert (out / "memory.code").read_text() == "0", (out / "memory.log").read_text()
    bundle = Bundle(out / "memory")
    assert bundle.target["kind"] == "live"
    for section in bundle.sections:
        assert section.status == ("absent" if section.section in NOT_IN_STOCK else "ok"), section


def test_what_does_not_move_is_what_proc_says(out: Path) -> None:
    memory, text = Bundle(out / "memory"), Bundle(out / "text")
    still = ("node", "zone", "present_pages", "managed_pages", "spanned_pages")
    zones, settings = (
        [{work(row) for row in bundle.rows(table)} for bundle in (memory, text)]
        for table, work in (
            # A fallback to another migratetype's pageblock boosts the watermarks for a while.
            (
                "zones",
                lambda row: (*(row[n] for n in still), row["wmark_low"] - row["wmark_boost"]),
            ),
            ("settings", lambda row: (row["name"], row["value"])),
        )
    )
    assert zones[0] == zones[1] and settings[0] == settings[1]
    names = [row["name"] for row in memory.rows("vm_counters")]
    assert names == [row["name"] for row in text.rows("vm_counters")]


def test_what_only_grows_lies_between_what_proc_said_before_and_behind(out: Path) -> None:
    before, behind = (
        {name: int(value) for name, value in map(str.split, (out / file).open())}
        for file in ("vmstat.before", "vmstat.after")
    )
    events = {
        row["name"]: row["value"]
        for row in Bundle(out / "memory").rows("vm_counters")
        if row["kind"] == "event" and row["name"] in before
    }
    assert len(events) > 50 and behind["pgfault"] > before["pgfault"]
    wrong = {
        name: (before[name], value, behind[name])
        for name, value in events.items()
        if not before[name] <= value <= behind[name]
    }
    assert not wrong


def test_what_moves_is_near_what_proc_says(out: Path) -> None:
    """Near: with a vmlinux a command's own memory is hundreds of MiB, which come and go."""
    for name in ("memory", "text"):
        bundle = Bundle(out / name)
        counters = {row["name"]: row["value"] for row in bundle.rows("vm_counters")}
        free = sum(row["pages"] for row in bundle.rows("free_blocks"))
        assert free > 100_000 and abs(free - counters["nr_free_pages"]) < 100_000


def test_the_log_is_that_of_dev_kmsg(out: Path) -> None:
    """Which escapes what is not printable, and has no caller without CONFIG_PRINTK_CALLER."""
    logs = []
    for name in ("memory", "text"):
        rows = Bundle(out / name).rows("kernel_log")
        logs.append({row["number"]: row | {"caller": None} for row in rows})
    both = logs[0].keys() & logs[1].keys()
    assert len(both) > 200
    assert [logs[0][number] for number in both] == [logs[1][number] for number in both]


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
    assert "locked down" in said and kernels.architecture(LIVES_ON).zones[0] in said


def test_doctor_names_it(out: Path) -> None:
    said = " ".join((out / "locked_doctor.log").read_text().split())
    assert (out / "locked_doctor.code").read_text() == "0"
    assert "locked down" in said
