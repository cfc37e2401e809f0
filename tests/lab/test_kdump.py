# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A crash as machines in the field have it: a crash kernel is loaded, sysrq crashes the kernel, and
the crash kernel saves /proc/vmcore (``programs/kdump.c``). What is read from that dump is held
against what the kernel printed right before.

Costs: two boots, and a minute.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children
import kernels
import machine
import pytest
from archive import LabError
from capture import one_at_a_time
from children import DIES_WITH_US
from conftest import STANDS_ON

from mmscope.drgn.free.free_lists import read_pagetypeinfo
from mmscope.drgn.free.pageblocks import read_pagetypeinfo_blocks
from mmscope.drgn.free.zones import read_zoneinfo
from mmscope.drgn.machine.vm_counters import read_vmstat
from mmscope.drgn.opening.core_file import missing_bytes
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.guard import captures

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS = 600
LINE = "console=ttyS0 panic=-1 no_timer_check crashkernel=256M no5lvl"


@dataclass(frozen=True)
class Crash:
    core: Path
    bundle: Bundle
    folder: Path

    def said(self, path: str, read: Callable[[str], Any], *key: str) -> tuple[Any, Any]:
        """Two readings of a file, by a key of its rows."""
        return tuple(  # type: ignore[return-value]
            {
                tuple(getattr(row, name) for name in key): row
                for row in read((self.folder / "truth" / s / path).read_text())
            }
            for s in "AB"
        )


def collect(core: Path, bundle: Path, *symbols: str | Path) -> "subprocess.CompletedProcess[str]":
    return children.run(
        [
            *(sys.executable, "-m", "mmscope", "collect", "--core", core),
            *(*symbols, "-o", bundle),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]) -> Iterator[Crash]:
    """The dump, read."""
    folder = tmp_path_factory.mktemp("kdump")
    with one_at_a_time():
        kernel = kernels.get(STANDS_ON, say)
        init = folder / "init"
        source = HERE / "programs/kdump.c"
        children.run(
            ["gcc", "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", init, source],
            check=True,
        )
        inner = machine.build_initramfs(folder, init, kernel.modules)
        inner.rename(folder / "crash.initramfs")
        shutil.copy(kernel.vmlinuz, folder / "vmlinuz")
        # Archives one behind the other are one to the kernel.
        more = children.run(
            ["cpio", "--create", "--format=newc", "--quiet", "--directory", folder],
            input=b"vmlinuz\ncrash.initramfs\n",
            capture_output=True,
            check=True,
        ).stdout
        outer = machine.build_initramfs(folder, init, kernel.modules)
        outer.write_bytes(outer.read_bytes() + more)
        disks = []
        for name, size in (("said", 16 << 20), ("core", 2 << 30)):
            (folder / name).touch()
            os.truncate(folder / name, size)
            disks += ["-drive", f"file={folder / name},format=raw,if=virtio,cache=unsafe"]
        console = folder / "console.log"
        say(f"crashing {kernel.release}, and booting its crash kernel")
        qemu = subprocess.Popen(
            [
                *DIES_WITH_US,
                *("qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", "max,-cx16"),
                *("-machine", "q35", "-smp", "1", "-m", "768M", "-no-reboot", "-nodefaults"),
                *("-display", "none", "-serial", f"file:{console}"),
                *("-kernel", kernel.vmlinuz, "-initrd", outer, "-append", LINE, *disks),
            ],
            stdin=subprocess.DEVNULL,
        )
        try:
            qemu.wait(SECONDS)
        finally:
            qemu.kill()
            qemu.wait()
    words = console.read_text(errors="replace")
    saved = re.search(r"kdump: saved (\d+) bytes", words)
    if not saved:
        raise LabError("no dump was saved:\n" + "\n".join(words.splitlines()[-20:]))
    os.truncate(folder / "core", int(saved[1]))
    machine.unpack_truth((folder / "said").read_bytes(), folder / "truth")
    done = collect(folder / "core", folder / "bundle", "--symbols", kernel.vmlinux)
    assert done.returncode == 0, done.stderr
    yield Crash(folder / "core", Bundle(folder / "bundle"), folder)
    shutil.rmtree(folder)


def test_every_section_is_read(crash: Crash) -> None:
    absent = {s.section for s in crash.bundle.sections if s.status == "absent"}
    assert absent == kernels.NOT_IN_STOCK
    assert {s.status for s in crash.bundle.sections} == {"ok", "absent"}
    assert not any(s.unreadable_bytes for s in crash.bundle.sections)
    assert crash.bundle.target["kind"] == "vmcore" and missing_bytes(crash.core) == 0


def test_so_it_is_with_nothing_but_the_dump(crash: Crash) -> None:
    done = collect(crash.core, crash.folder / "own")
    assert done.returncode == 0, done.stderr
    own = Bundle(crash.folder / "own")
    assert own.target["types"] == "BTF and kallsyms"
    for table in crash.bundle.tables:
        # What shows only in the code, by which functions were inlined, BTF does not say.
        if table not in ("sections", "kernel_features"):
            assert list(own.rows(table)) == list(crash.bundle.rows(table)), table


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


def test_the_dump_becomes_a_report_without_a_person(crash: Crash) -> None:
    """As kdump-tools leaves it, with what it leaves beside it."""
    place = crash.folder / "var" / "202611230300"
    place.mkdir(parents=True)
    os.link(crash.core, place / "dump.202611230300")
    (place / "dmesg.202611230300").write_text("of no use")
    (place / "dump-incomplete").write_text("of no use")
    command = [sys.executable, "-m", "mmscope", "guard", "crash", place.parent, "--settled", "0",
               "--memory", "512", "-o", crash.folder / "captures"]  # fmt: skip
    done = children.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ((capture, incident),) = captures.captures(crash.folder / "captures")
    print(incident)
    assert incident["state"] == "done" and incident["trigger"] == "crash"
    assert incident["title"] == (
        "The kernel crashed: Kernel panic - not syncing: sysrq triggered crash"
    )
    own = Bundle(capture / "bundle")
    assert list(own.rows("zones")) == list(crash.bundle.rows("zones"))
    assert (capture / "report.html").read_text().endswith("</html>\n")
    assert (capture / "findings.txt").stat().st_size > 100
    # It is read once.
    done = children.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert len(list(captures.captures(crash.folder / "captures"))) == 1
