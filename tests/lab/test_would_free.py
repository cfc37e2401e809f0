# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Forecast and deed: a guest stops, what something would free is read, the guest does it and stops
again: as much more is free then, within 2 % or 64 pages.

The deeds are those of ``programs/deeds.c``. Costs a boot, and a second for each deed.
"""

import asyncio
import itertools
import os
import subprocess
import time
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
from conftest import KERNELS
from kernels import Kernel
from qemu.qmp import QMPClient

from mmscope.drgn.freeing.contiguity import Contiguity
from mmscope.drgn.freeing.contiguity import from_memory as contiguity_from_memory
from mmscope.drgn.freeing.would_free import WouldFree
from mmscope.drgn.freeing.would_free import from_memory as would_free_from_memory
from mmscope.drgn.ledger.memory_ledger import memory_ledger_from_memory
from mmscope.drgn.ledger.swap_areas import swap_area, swap_infos
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory

pytestmark = [pytest.mark.x86, pytest.mark.odd_machine]

PROGRAM = Path(__file__).parent / "programs/deeds.c"
DISK, SWAP, READ, MAPPED, BATCH = 128 << 20, 32 << 20, 30 << 20, 4 << 20, 12 << 20
HUGE = 2 << 20
PAGE = 4096
# Of what a deed frees, and of what kernel threads and slabs take or give back meanwhile.
SHARE, PAGES = 0.02, 64
# Deeds whose forecast is one number; of the others it is from least to most.
EXACT = {
    "the end of victim": ("the process ends", "comm", "victim"),
    "the end of parent": ("the process ends", "comm", "parent"),
    "the end of heir": ("the process ends", "comm", "heir"),
    "the end of swapped": ("the process ends", "comm", "swapped"),
    "the end of sharer": ("the process ends", "comm", "sharer"),
    "the end of swapped-too": ("the process ends", "comm", "swapped-too"),
    "memory.reclaim of /batch": ("cgroup reclaimed", "cgroup", "/batch"),
    "close of the pipe": ("closed", "name", "pipe"),
    "buffers unregistered": ("closed", "name", "io_uring buffers"),
    "close of the ring": ("closed", "name", "io_uring"),
    "close of the map": ("closed", "name", "BPF map 1"),
    "io_destroy": ("closed", "name", "AIO ring"),
    "close of the memfd": ("file let go of", "path", "memfd:kept"),
    "umount of /more": ("tmpfs emptied", "path", "/more"),
    "drop_caches 1": ("drop_caches 1", "name", None),
    "the removal of /tmp/closed": ("file removed", "path", "/tmp/closed"),
    "the removal of /tmp/open": ("file removed", "path", "/tmp/open"),
    "nr_hugepages 0": ("hugetlb pool emptied", "name", "2 MiB"),
}
BETWEEN = {
    "close of the sockets": ("closed", "name", "socket unix stream"),
    "drop_caches 2": ("drop_caches 2", "name", None),
    "drop_caches 3": ("drop_caches 3", "name", None),
    "swapoff": ("swapoff", "path", "/dev/vdb"),
}


@dataclass(frozen=True)
class Stop:
    """What was read while the guest stood still, before it did a deed."""

    deed: str
    rows: list[WouldFree]
    free_pages: int
    swap_pages: int
    ranges: list[Contiguity]

    def row(self, deed: str, column: str, value: str | None) -> WouldFree:
        """The row of a deed, the largest of several: each process has pipes."""
        rows = [r for r in self.rows if r.deed == deed and getattr(r, column) == value]
        return max(rows, key=lambda row: row.least_bytes)


@dataclass(frozen=True)
class Deed:
    """A deed: what was said before it, and what came of it."""

    before: Stop
    behind: Stop

    @property
    def freed_bytes(self) -> int:
        return (self.behind.free_pages - self.before.free_pages) * PAGE


def _read(prog: Any, deed: str) -> Stop:
    memory = Memory(prog)
    ledger = memory_ledger_from_memory(memory).by_name["memory_ledger"]
    free = sum(row.pages for row in ledger if row.owner == "free")
    rows = would_free_from_memory(memory).by_name["would_free"]
    swapped = sum(swap_area(info).used_bytes for info in swap_infos(prog)) // PAGE
    ranges = contiguity_from_memory(memory).by_name["contiguity"]
    return Stop(deed, rows, free, swapped, ranges)


async def _stops(
    kernel: Kernel, folder: Path, arguments: list[str], say: Callable[[str], None]
) -> list[Stop]:
    console, ours, theirs = (folder / name for name in ("console.log", "ours", "theirs"))
    process = subprocess.Popen(
        [
            *DIES_WITH_US,
            *arguments,
            *("-serial", f"file:{console}"),
            *("-qmp", f"unix:{ours},server,nowait", "-qmp", f"unix:{theirs},server,nowait"),
        ],
        stdin=subprocess.DEVNULL,
    )
    found: list[Stop] = []
    qmp = QMPClient("deeds")
    prog = None
    try:
        while not ours.exists() or not console.exists():
            await asyncio.sleep(0.05)
        await qmp.connect(str(ours))
        end = time.monotonic() + 10 * machine.BOOT_SECONDS
        while not found or found[-1].deed != "nothing":
            if process.poll() is not None or time.monotonic() > end:
                raise LabError(f"the guest does nothing more: {console.read_text()[-2000:]}")
            state = await qmp.execute("query-status")
            assert isinstance(state, dict)
            if state["running"]:
                await asyncio.sleep(0.05)
                continue
            said = console.read_text(errors="replace").splitlines()
            deed = [line.partition("before ")[2] for line in said if "deeds: before" in line][-1]
            if prog is None:
                prog = open_target(None, [kernel.vmlinux], qemu=str(theirs))
            say(f"before {deed}")
            found.append(_read(prog, deed))
            await qmp.execute("cont")
    finally:
        process.kill()
        process.wait()
    return found


@pytest.fixture(scope="module", params=KERNELS)
def deeds(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    say: Callable[[str], None],
) -> Iterator[dict[str, Deed]]:
    kernel = kernels.get(request.param, say)
    folder = tmp_path_factory.mktemp("deeds")
    init, disks = folder / "init", []
    words = ("gcc", "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", init, PROGRAM)
    children.run([*map(str, words)], check=True)
    files = folder / "files"
    files.mkdir()
    for name, size in (("read", READ), ("mapped", MAPPED), ("batch", BATCH)):
        (files / name).write_bytes(b"x" * size)
    for name, size in (("disk", DISK), ("swap", SWAP)):
        (folder / name).touch()
        os.truncate(folder / name, size)
        disks += ["-drive", f"file={folder / name},format=raw,if=virtio,cache=unsafe"]
    children.run(["mkfs.ext4", "-q", "-d", str(files), str(folder / "disk")], check=True)
    initramfs = machine.build_initramfs(folder, init, kernel.modules)
    arch = kernel.architecture
    with one_at_a_time():
        say(f"booting {kernel.release}, for forecasts and deeds")
        arguments = [
            *(arch.qemu, *arch.machine, "-kernel", str(kernel.vmlinuz)),
            *("-initrd", str(initramfs), "-append", f"{machine.COMMAND_LINE} {kernel.options}"),
            *disks,
        ]
        stops = asyncio.run(_stops(kernel, folder, arguments, say))
    found = {one.deed: Deed(one, other) for one, other in itertools.pairwise(stops)}
    for name, (deed, column, value) in (EXACT | BETWEEN).items():
        freed = found[name].freed_bytes
        row = found[name].before.row(deed, column, value)
        say(f"| {name} | {row.least_bytes:,} | {row.most_bytes:,} | {freed:,} |")
    for name in found:
        if name not in EXACT and name not in BETWEEN:
            say(f"| {name} | | | {found[name].freed_bytes:,} |")
    yield found


def _slack(size: int) -> float:
    return max(SHARE * abs(size), PAGES * PAGE)


@pytest.mark.parametrize("name", EXACT)
def test_what_came_is_what_was_forecast(deeds: dict[str, Deed], name: str) -> None:
    row = deeds[name].before.row(*EXACT[name])
    assert deeds[name].freed_bytes == pytest.approx(row.least_bytes, abs=_slack(row.least_bytes))
    assert deeds[name].freed_bytes <= row.most_bytes + _slack(row.most_bytes)


@pytest.mark.parametrize("name", BETWEEN)
def test_what_came_lies_between_the_bounds(deeds: dict[str, Deed], name: str) -> None:
    row = deeds[name].before.row(*BETWEEN[name])
    freed, slack = deeds[name].freed_bytes, _slack(row.most_bytes)
    assert row.least_bytes - slack <= freed <= row.most_bytes + slack


def test_a_file_that_is_open_keeps_its_memory_until_the_last_close(deeds: dict[str, Deed]) -> None:
    row = deeds["the removal of /tmp/open"].before.row("file removed", "path", "/tmp/open")
    closed = deeds["its last close"].freed_bytes
    assert row.least_bytes == 0
    assert closed == pytest.approx(row.most_bytes, abs=_slack(row.most_bytes))


def test_a_cgroup_that_is_removed_leaves_its_pages(deeds: dict[str, Deed]) -> None:
    assert abs(deeds["rmdir of /batch"].freed_bytes) <= PAGES * PAGE


def test_a_pool_gives_back_a_part_as_it_gives_all(deeds: dict[str, Deed]) -> None:
    deed = deeds["nr_hugepages 10"]
    row = deed.before.row("hugetlb pool emptied", "name", "2 MiB")
    assert deed.freed_bytes == pytest.approx(6 * HUGE, abs=PAGES * PAGE)
    assert row.least_bytes == 12 * HUGE  # but two that are in use and two that are reserved


@pytest.mark.parametrize("name", ["compact_memory", "compact_memory again"])
def test_compaction_makes_as_many_huge_blocks_as_were_forecast(
    deeds: dict[str, Deed], say: Callable[[str], None], name: str
) -> None:
    """Large folios of ext4 that are dirty, which it has since v6.16, may end it in their zone."""
    free = least = most = came = 0
    for before, behind in zip(deeds[name].before.ranges, deeds[name].behind.ranges, strict=True):
        assert before.compacted_ranges is not None and before.compacted_least is not None
        forecast = f"{before.compacted_least} to {before.compacted_ranges} forecast"
        possible = before.possible_ranges
        say(
            f"{name}, {before.zone}: {before.free_ranges} free, {forecast}, "
            f"{behind.free_ranges} came of {possible}"
        )
        assert before.compacted_least <= before.compacted_ranges <= possible
        assert behind.free_ranges <= possible + 1
        free += before.free_ranges
        least += before.compacted_least
        most += before.compacted_ranges
        came += behind.free_ranges
    # Two or three ranges keep a page of the disk's cache with buffers that ext4 holds: superblocks.
    # What is freed pushes others off a CPU's list, which are room then. And meanwhile the kernel
    # itself takes pages of ranges that were free: of two in a hundred at most, whatever came.
    slack = max(4, 0.1 * (most - free), 0.02 * free)
    assert least - slack <= came <= most + slack


def test_swap_that_is_nobody_elses_is_free_then(deeds: dict[str, Deed]) -> None:
    deed = deeds["the end of swapped"]
    row = deed.before.row("the process ends", "comm", "swapped")
    assert row.swap_bytes and row.swap_bytes > 8 << 20
    freed = (deed.before.swap_pages - deed.behind.swap_pages) * PAGE
    assert freed == pytest.approx(row.swap_bytes, abs=_slack(row.swap_bytes))


def test_huge_pages_are_told(deeds: dict[str, Deed]) -> None:
    row = deeds["the end of victim"].before.row("the process ends", "comm", "victim")
    assert row.huge_bytes == 4 * (2 << 20)
