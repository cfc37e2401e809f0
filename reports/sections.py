# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The sections of a reading: for each, how to get its tables from memory and how from text.

A new section is a function or two here and a line in :data:`SECTIONS`. Sections that need the
struct pages share one pass: whoever asks first, pays.
"""

import dataclasses
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drgn import FaultError, Program, ProgramFlags
from free_lists import (
    FreeBlocks,
    FreeListCheck,
    MisplacedBlocks,
    read_buddyinfo,
    read_pagetypeinfo,
)
from free_memory import FreeMemory, pages_by_zone, scan_free_memory
from pageblocks import (
    PageblockRun,
    Pageblocks,
    pageblock_runs,
    pageblocks,
    parse_pagetypeinfo,
    read_pagetypeinfo_blocks,
)
from pcp_lists import PcpCheck, PcpPages, pcp_pages, read_zoneinfo_pcp
from settings import Setting, read_settings, settings
from vm_counters import VmCounter, read_vmstat, vm_counters
from zones import FreeAccounting, Zone, read_zoneinfo, zones


class DeadlineExceeded(BaseException):
    """
    A section took longer than it may.

    Not an Exception, so that nothing on the way up takes it for a failure of its own and goes on.
    """


class Absent(Exception):
    """The target has no such thing. The words say why, and what would change that."""


@dataclass
class Found:
    """The tables of a section, and what keeps them from being whole."""

    tables: list[tuple[str, str, type, list[Any]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # each makes the section partial
    remarks: list[str] = field(default_factory=list)  # what to know of a section that is whole
    unreadable_bytes: int = 0

    def add(self, name: str, title: str, row_type: type, rows: list[Any]) -> "Found":
        self.tables.append((name, title, row_type, rows))
        return self


@dataclass
class Memory:
    """A kernel's memory, and the pass over its struct pages once somebody needs it."""

    prog: Program
    progress: Callable[[int, int], None] | None = None
    _free: FreeMemory | BaseException | None = None

    def disagreement(self, found: Found, what: str) -> None:
        """Two readings that differ: damage in a dump, to be expected of a kernel that runs."""
        if self.prog.flags & ProgramFlags.IS_LIVE:
            found.remarks.append(f"{what}: the kernel was running while it was read")
        else:
            found.notes.append(what)

    @property
    def free(self) -> FreeMemory:
        """The pass, run once; if it failed, it failed for everyone who needs it."""
        if self._free is None:
            try:
                self._free = scan_free_memory(self.prog, self.progress)
            except (Exception, DeadlineExceeded) as error:
                self._free = error
        if isinstance(self._free, BaseException):
            raise self._free
        return self._free


@dataclass
class Files:
    """
    A tree with /proc and /sys: a live host's root, or an unpacked sosreport.

    :param root: the folder that has ``proc/`` in it.
    """

    root: Path

    def read(self, path: str) -> str:
        """
        The text of a file of the tree.

        :raises Absent: it is not there, or not for this user; the words say what to do.
        """
        try:
            return self.open(path)
        except FileNotFoundError:
            raise Absent(f"{self.root / path}: no such file") from None
        except PermissionError:
            raise Absent(f"{self.root / path}: only root may read it; run as root") from None
        except OSError as error:
            raise Absent(f"{self.root / path}: {error.strerror}") from None

    def open(self, path: str) -> str:
        """
        The text of a file of the tree.

        A link that leads out of it would tell of another machine, a pipe would never end.

        :raises OSError: it is not there, or no plain file of the tree.
        """
        file = Path(os.path.realpath(self.root / path, strict=True))
        if not file.is_relative_to(self.root.resolve()) or not file.is_file():
            raise OSError(errno.EINVAL, "is no plain file of this tree", str(self.root / path))
        return file.read_bytes().decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class SectionSpec:
    """A section: its name on the command line, its title, and where its tables come from."""

    name: str
    title: str
    from_memory: Callable[[Memory], Found]
    from_files: Callable[[Files], Found]
    deadline: float = 120.0  # seconds


def zones_from_memory(memory: Memory) -> Found:
    return Found().add("zones", "Zones", Zone, zones(memory.prog))


def zones_from_files(files: Files) -> Found:
    rows = read_zoneinfo(files.read("proc/zoneinfo"))
    found = Found()
    try:
        if any(row.highatomic_reserved_pages is None for row in rows):
            rows = with_reserve(rows, files.read("proc/pagetypeinfo"))
    except (Absent, ValueError) as reason:
        found.notes.append(f"HighAtomic reserve unknown: {reason}")
    return found.add("zones", "Zones", Zone, rows)


def with_reserve(rows: list[Zone], pagetypeinfo: str) -> list[Zone]:
    """
    Zones with their HighAtomic reserve, which is counted in whole pageblocks.

    How much of it the kernel takes for free stays unknown: the text does not tell whether this one
    keeps such a count.

    :raises ValueError: the text is not /proc/pagetypeinfo's.
    """
    block = 1 << parse_pagetypeinfo(pagetypeinfo).block_order
    reserved = {
        (row.node, row.zone): row.blocks * block
        for row in read_pagetypeinfo_blocks(pagetypeinfo)
        if row.migratetype == "HighAtomic"
    }
    return [
        dataclasses.replace(row, highatomic_reserved_pages=reserved.get((row.node, row.zone)))
        for row in rows
    ]


def free_lists_from_memory(memory: Memory) -> Found:
    free = memory.free
    lists = free.lists
    found = Found(unreadable_bytes=free.scan.gaps.bytes)
    found.notes += _gap_note(free)
    if lists.checks:
        memory.disagreement(
            found,
            f"{len(lists.checks)} free lists and their struct pages disagree (free_list_checks)",
        )
    if not lists.followed:
        found.notes.append("too many free blocks to follow the lists: counted by pageblock")
    found.add("free_blocks", "Free blocks", FreeBlocks, lists.blocks)
    found.add(
        "misplaced_blocks",
        "Free blocks on another list than their pageblock's",
        MisplacedBlocks,
        lists.misplaced,
    )
    return found.add(
        "free_list_checks",
        "Free lists and struct pages that disagree",
        FreeListCheck,
        lists.checks,
    )


def accounting_from_memory(memory: Memory) -> Found:
    free = memory.free
    found = Found(notes=_gap_note(free), unreadable_bytes=free.scan.gaps.bytes)
    pcp: dict[tuple[int, str], int] | None = None
    try:
        pcp = pages_by_zone(pcp_pages(memory.prog, free.pcp, free.types.names)[0])
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"pages on per-CPU lists unknown: {error}")
    rows = free.accounting(pcp)
    if any(row.remainder_pages for row in rows):
        memory.disagreement(found, "the free lists and NR_FREE_PAGES differ by the remainder shown")
    return found.add("free_accounting", "What NR_FREE_PAGES is made of", FreeAccounting, rows)


def accounting_from_files(files: Files) -> Found:
    raise Absent("the parts of NR_FREE_PAGES are not in /proc; read the kernel's memory (as root)")


def free_lists_from_files(files: Files) -> Found:
    found = Found()
    try:
        rows = read_pagetypeinfo(files.read("proc/pagetypeinfo"))
    except (Absent, ValueError) as reason:
        rows = read_buddyinfo(files.read("proc/buddyinfo"))
        found.notes.append(f"{reason}; /proc/buddyinfo tells orders, but not migratetypes")
    return found.add("free_blocks", "Free blocks", FreeBlocks, rows)


def pcp_lists_from_memory(memory: Memory) -> Found:
    free = memory.free
    rows, checks = pcp_pages(memory.prog, free.pcp, free.types.names)
    found = Found(notes=_gap_note(free), unreadable_bytes=free.scan.gaps.bytes)
    if checks:
        memory.disagreement(
            found, f"{len(checks)} per-CPU lists differ from their count (pcp_checks)"
        )
    found.add("pcp_pages", "Free pages on per-CPU lists", PcpPages, rows)
    return found.add("pcp_checks", "Per-CPU lists that differ from their count", PcpCheck, checks)


def pcp_lists_from_files(files: Files) -> Found:
    rows = read_zoneinfo_pcp(files.read("proc/zoneinfo"))
    return Found().add("pcp_pages", "Free pages on per-CPU lists", PcpPages, rows)


def pageblocks_from_memory(memory: Memory) -> Found:
    free = memory.free
    found = Found(notes=_gap_note(free), unreadable_bytes=free.scan.gaps.bytes)
    try:
        free_pages = free.blocks.pageblock_free
    except Exception as error:
        free_pages = None
        found.notes.append(f"free share of pageblocks unknown: {error}")
    rows = pageblocks(free.pageblocks, free.zone_names)
    found.add("pageblocks", "Pageblocks by migratetype", Pageblocks, rows)
    runs = pageblock_runs(free.pageblocks, free_pages, free.zone_names)
    return found.add("pageblock_map", "Pageblock map, run-length encoded", PageblockRun, runs)


def pageblocks_from_files(files: Files) -> Found:
    rows = read_pagetypeinfo_blocks(files.read("proc/pagetypeinfo"))
    return Found().add("pageblocks", "Pageblocks by migratetype", Pageblocks, rows)


def vm_counters_from_memory(memory: Memory) -> Found:
    rows = vm_counters(memory.prog)
    return Found().add("vm_counters", "Counters of /proc/vmstat", VmCounter, rows)


def vm_counters_from_files(files: Files) -> Found:
    rows = read_vmstat(files.read("proc/vmstat"))
    return Found().add("vm_counters", "Counters of /proc/vmstat", VmCounter, rows)


def settings_from_memory(memory: Memory) -> Found:
    return Found().add("settings", "Settings", Setting, settings(memory.prog))


def settings_from_files(files: Files) -> Found:
    rows = read_settings(files.open)
    if not rows:
        raise Absent(f"{files.root}: has no settings under proc/sys/vm and sys/kernel/mm")
    return Found().add("settings", "Settings", Setting, rows)


def _gap_note(free: FreeMemory) -> list[str]:
    gaps = free.scan.gaps
    if not gaps.bytes:
        return []
    return [f"{gaps.bytes:,} bytes of struct pages could not be read: their pages are not counted"]


# The first section that needs the struct pages waits for the pass.
PASS_SECONDS = 600.0

SECTIONS = {
    spec.name: spec
    for spec in (
        SectionSpec("zones", "Zones and watermarks", zones_from_memory, zones_from_files),
        SectionSpec(
            "free_lists", "Free lists", free_lists_from_memory, free_lists_from_files, PASS_SECONDS
        ),
        SectionSpec(
            "accounting",
            "Free pages, accounted for",
            accounting_from_memory,
            accounting_from_files,
            PASS_SECONDS,
        ),
        SectionSpec(
            "pcp_lists", "Per-CPU lists", pcp_lists_from_memory, pcp_lists_from_files, PASS_SECONDS
        ),
        SectionSpec(
            "pageblocks", "Pageblocks", pageblocks_from_memory, pageblocks_from_files, PASS_SECONDS
        ),
        SectionSpec("vm_counters", "Counters", vm_counters_from_memory, vm_counters_from_files),
        SectionSpec("settings", "Settings", settings_from_memory, settings_from_files),
    )
}
