# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The command on a running kernel, inside the guest, as root, with what a box would have.

The kernel works while it is read, not least for the command itself, so counts may differ by what
moved; what does not move must be equal.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from live import run_live

from reports.bundle import Bundle

PROGRAM = """
import os
from reports.command import main

def run(name, *arguments):
    child = os.fork()
    if child == 0:
        log = os.open(f"/out/{name}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os._exit(main(arguments))
    status = os.waitpid(child, 0)[1]
    with open(f"/out/{name}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(status)))

run("doctor", "doctor")
run("memory", "collect", "--symbols", "/vmlinux", "-o", "/out/memory")
run("text", "collect", "--proc-root", "/", "-o", "/out/text")
run("fallback", "collect", "-o", "/out/fallback")
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]) -> Path:
    """What the guest wrote."""
    return run_live(PROGRAM, tmp_path_factory.mktemp("live"), "7.2", say)


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


def test_without_symbols_it_falls_back_to_text_and_says_what_to_install(out: Path) -> None:
    assert (out / "fallback.code").read_text() == "1"
    log = (out / "fallback.log").read_text()
    assert "apt install linux-image-7.2" in log and "reading /proc and /sys instead" in log
    bundle = Bundle(out / "fallback")
    assert bundle.target["kind"] == "files"
    assert list(bundle.rows("free_blocks"))


def test_without_duckdb_the_bundle_is_whole_and_the_findings_are_put_off(out: Path) -> None:
    assert "findings need duckdb" in (out / "memory.log").read_text()


def test_doctor_knows_what_is_missing(out: Path) -> None:
    assert (out / "doctor.code").read_text() == "0"
    log = (out / "doctor.log").read_text()
    assert "/proc/kcore" in log and "linux-image-7.2" in log
