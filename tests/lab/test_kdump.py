# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A crash as machines in the field have it: a crash kernel is loaded, sysrq crashes the kernel, and
the crash kernel saves /proc/vmcore (``programs/kdump.c``). What is read from that dump is held
against what the kernel printed right before.

Costs: two boots, and a minute, the first time; the dump is kept in the cache.
"""

import filecmp
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children
import kernels
import pytest
from conftest import STANDS_ON
from crashed import crashed

from mmscope.drgn.dumps.core_file import missing_bytes
from mmscope.drgn.dumps.wrapped import rebuild
from mmscope.drgn.free.free_lists import read_pagetypeinfo
from mmscope.drgn.free.pageblocks import read_pagetypeinfo_blocks
from mmscope.drgn.free.zones import read_zoneinfo
from mmscope.drgn.machine.vm_counters import read_vmstat
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.guard import captures

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Crash:
    core: Path
    bundle: Bundle
    truth: Path
    folder: Path  # to work in

    def said(self, path: str, read: Callable[[str], Any], *key: str) -> tuple[Any, Any]:
        """Two readings of a file, by a key of its rows."""
        return tuple(  # type: ignore[return-value]
            {
                tuple(getattr(row, name) for name in key): row
                for row in read((self.truth / s / path).read_text())
            }
            for s in "AB"
        )


def collect(core: Path, bundle: Path, *symbols: str | Path) -> "subprocess.CompletedProcess[str]":
    return children.run(
        [
            *(sys.executable, "-m", "mmscope", "collect", "--no-findings", "--core", core),
            *(*symbols, "-o", bundle),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]) -> Crash:
    """The dump, read."""
    dumped, kernel = crashed(STANDS_ON, say)
    core, folder = dumped / "core", tmp_path_factory.mktemp("kdump")
    done = collect(core, folder / "bundle", "--symbols", kernel.vmlinux)
    assert done.returncode == 0, done.stderr
    return Crash(core, Bundle(folder / "bundle"), dumped / "truth", folder)


def test_every_section_is_read(crash: Crash) -> None:
    absent = {s.section for s in crash.bundle.sections if s.status == "absent"}
    assert absent == kernels.NOT_IN_STOCK
    assert {s.status for s in crash.bundle.sections} == {"ok", "absent"}
    assert not any(s.unreadable_bytes for s in crash.bundle.sections)
    assert crash.bundle.target["kind"] == "vmcore" and missing_bytes(crash.core) == 0


def told(bundle: Bundle, table: str) -> list[dict[str, Any]]:
    """
    The rows of a table. What shows only in the code, by which functions were inlined, BTF does not
    say: kernel_features, and frames of stacks.
    """
    stacks = {"stack"} if table == "reclaim_threads" else set[str]()
    return [{k: v for k, v in row.items() if k not in stacks} for row in bundle.rows(table)]


def test_so_it_is_with_nothing_but_the_dump(crash: Crash) -> None:
    done = collect(crash.core, crash.folder / "own")
    assert done.returncode == 0, done.stderr
    own = Bundle(crash.folder / "own")
    assert own.target["types"] == "BTF and kallsyms"
    for table in crash.bundle.tables:
        if table not in ("sections", "kernel_features"):
            assert told(own, table) == told(crash.bundle, table), table


def test_the_hook_of_the_crash_kernel_reads_the_same(crash: Crash) -> None:
    """Over what the crash kernel saved: not in it."""
    folder = crash.folder / "hook"
    mmscope = folder.with_name("mmscope")
    mmscope.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m mmscope "$@"\n')
    mmscope.chmod(0o755)
    done = children.run(
        [ROOT / "deploy/crash-kernel/crash-kernel", folder, "1200"],
        env={**os.environ, "MMSCOPE": str(mmscope), "MMSCOPE_CORE": str(crash.core)},
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0 and "verdict" in done.stdout, done.stdout + done.stderr
    (case,) = folder.iterdir()
    everything, first = Bundle(case / "all"), Bundle(case / "first")
    for table in crash.bundle.tables:
        if table not in ("sections", "kernel_features"):
            assert told(everything, table) == told(crash.bundle, table), table
            if table in first.tables:
                assert told(first, table) == told(crash.bundle, table), table
    assert {"kernel_log", "zones", "memory_pressure"} & first.tables.keys()


def test_zones_and_lists_are_those_of_the_kernel_that_crashed(crash: Crash) -> None:
    earlier, later = crash.said("proc/zoneinfo", read_zoneinfo, "node", "zone")
    for row in crash.bundle.rows("zones"):
        said = later[row["node"], row["zone"]]
        for name in ("present_pages", "managed_pages", "spanned_pages", "start_pfn", "wmark_low"):
            assert row[name] == getattr(said, name), name
        # What was printed last was still to be written to the disk.
        before = earlier[row["node"], row["zone"]].free_pages
        assert abs(row["free_pages"] - said.free_pages) <= 64 + abs(before - said.free_pages)
    _, blocks = crash.said(
        "proc/pagetypeinfo", read_pagetypeinfo_blocks, "node", "zone", "migratetype"
    )
    read = {
        (r["node"], r["zone"], r["migratetype"]): r["blocks"]
        for r in crash.bundle.rows("pageblocks")
    }
    assert read == {key: row.blocks for key, row in blocks.items()}
    _, free = crash.said(
        "proc/pagetypeinfo", read_pagetypeinfo, "node", "zone", "order", "migratetype"
    )
    rows = {
        (r["node"], r["zone"], r["order"], r["migratetype"]): r["blocks"]
        for r in crash.bundle.rows("free_blocks")
    }
    assert rows.keys() == free.keys()
    differ = {
        key: (free[key].blocks, blocks)
        for key, blocks in rows.items()
        if blocks != free[key].blocks
    }
    assert len(differ) <= 12, differ
    assert sum(1 for blocks in rows.values() if blocks) > 10


def test_counters_are_those_of_the_kernel_that_crashed(crash: Crash) -> None:
    _, later = crash.said("proc/vmstat", read_vmstat, "name")
    read = {row["name"]: row["value"] for row in crash.bundle.rows("vm_counters")}
    assert {(name,) for name in read} == later.keys()
    differ = {name: (later[name,].value, v) for name, v in read.items() if later[name,].value != v}
    print(differ)
    assert len(differ) <= 40, differ
    assert all(abs(said - value) <= 512 for said, value in differ.values()), differ


def captured(crash: Crash, name: str, put: Callable[[Path], object]) -> Path:
    """What guard makes of a dump that lies as kdump-tools leaves it, with what it leaves beside."""
    place = crash.folder / name / "202611230300"
    before = os.umask(0o022)  # that of root
    place.mkdir(parents=True)
    put(place / "dump.202611230300")
    (place / "dump.202611230300").chmod(0o600)
    os.umask(before)
    (place / "dmesg.202611230300").write_text("of no use")
    (place / "dump-incomplete").write_text("of no use")
    output = crash.folder / f"{name}-captures"
    command = [sys.executable, "-m", "mmscope", "guard", "crash", place.parent, "--settled", "0",
               "-o", output]  # fmt: skip
    done = children.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # It is read once.
    again = children.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    ((capture, incident),) = captures.captures(output)
    print(incident)
    assert incident["state"] == "done" and incident["trigger"] == "crash"
    assert incident["title"] == (
        "The kernel crashed: Kernel panic - not syncing: sysrq triggered crash"
    )
    assert (capture / "report.html").read_text().endswith("</html>\n")
    assert (capture / "findings.txt").stat().st_size > 100
    assert not list(capture.glob(".*"))
    return capture


def test_the_dump_becomes_a_report_without_a_person(crash: Crash) -> None:
    # A link would be left alone: anybody could have made it.
    copied = ["cp", "--reflink=auto", "--sparse=always", crash.core]
    capture = captured(crash, "plain", lambda path: children.run([*copied, path], check=True))
    own = Bundle(capture / "bundle")
    assert list(own.rows("zones")) == list(crash.bundle.rows("zones"))


@pytest.fixture(scope="module")
def flattened(crash: Crash) -> Path:
    """As kdump-tools of Debian 13 writes it."""
    with (crash.folder / "flat").open("wb") as flat:
        command = ["makedumpfile", "-F", "-c", "-d", "31", crash.core]
        children.run(command, stdout=flat, stderr=subprocess.DEVNULL, check=True)
    return crash.folder / "flat"


def test_so_does_one_in_the_flattened_format(crash: Crash, flattened: Path) -> None:
    capture = captured(crash, "flattened", lambda path: path.hardlink_to(flattened))
    own = Bundle(capture / "bundle")
    assert list(own.rows("zones")) == list(crash.bundle.rows("zones"))
    assert "truncated" not in own.target and "makedumpfile" not in str(own.target["source"])
    rebuild(flattened, crash.folder / "rebuilt")
    with flattened.open("rb") as flat:
        command = ["makedumpfile", "-R", crash.folder / "theirs"]
        children.run(command, stdin=flat, capture_output=True, check=True)
    assert filecmp.cmp(crash.folder / "rebuilt", crash.folder / "theirs", shallow=False)


@pytest.mark.parametrize("share", [0.95, 0.5])
def test_one_that_was_cut_short_says_so(crash: Crash, flattened: Path, share: float) -> None:
    """As kdump-tools leaves it where makedumpfile failed: it asks how `cat` behind it fared."""
    cut = crash.folder / f"cut-{share}"
    with flattened.open("rb") as whole:
        cut.write_bytes(whole.read(int(flattened.stat().st_size * share)))
    rebuilt = crash.folder / f"rebuilt-{share}"
    said = rebuild(cut, rebuilt)
    assert said is not None and "is cut short" in said
    assert missing_bytes(rebuilt) > 0
    done = collect(rebuilt, crash.folder / f"bundle-{share}")
    assert "Traceback" not in done.stderr and done.returncode in (1, 3)
    assert "lie behind the end of the file" in done.stderr, done.stderr
