# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The sections of a reading: for each, how to get its tables from memory and how from text.

A new section is a function or two here and a line in :data:`SECTIONS`. Sections that need the
struct pages share one pass: whoever asks first, pays.
"""

import dataclasses
import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from anon_vmas import (
    AnonVma,
    AnonVmaCheck,
    AnonVmaFanout,
    AnonVmaMap,
    ReverseMaps,
    anon_vma_rows,
    check_sample,
    fanout,
    owner_of,
    process_vmas,
    read_reverse_maps,
    tree_map,
)
from device_pagemaps import DevicePagemap
from drgn import FaultError, Program, ProgramFlags
from exit_cost import ExitCost, dontneed_frees_tables, exit_costs
from free_lists import (
    FreeBlocks,
    FreeListCheck,
    MisplacedBlocks,
    read_buddyinfo,
    read_pagetypeinfo,
)
from free_memory import FreeMemory, pages_by_zone, scan_free_memory
from hugetlb import (
    HugetlbCheck,
    HugetlbPool,
    HugetlbSize,
    hugetlb_sizes,
    read_pools,
    read_sizes,
)
from ksm import (
    Ksm,
    KsmChain,
    KsmProcess,
    KsmTotal,
    ksm_chains,
    ksm_processes,
    ksm_totals,
    read_ksm,
    read_ksm_totals,
)
from ksm import wanted as ksm_wanted
from memory_metadata import MetadataPart, WhatIf
from page_owner import (
    UNLISTED,
    PageOwnerAge,
    PageOwnerCheck,
    PageOwnerFreed,
    PageOwnerMixedBlocks,
    PageOwnerPolluter,
    page_owner_ages,
    page_owner_freed,
    page_owner_gfp,
    page_owner_migratetypes,
    page_owner_migrations,
    page_owner_mixed_blocks,
    page_owner_off,
    page_owner_orders,
    page_owner_polluters,
    page_owner_stacks,
    page_owner_tasks,
    scan_page_owner,
)
from page_owner_rows import (
    PageOwnerGfp,
    PageOwnerMigratetype,
    PageOwnerMigration,
    PageOwnerOrder,
    PageOwnerStack,
    PageOwnerTask,
)
from page_tables import (
    PageTableDetails,
    PageTableOccupancy,
    PageTableRegion,
    PageTables,
    page_table_details,
    page_table_occupancy,
    page_table_regions,
    page_tables,
    read_status,
    scan_page_tables,
)
from pageblocks import (
    PageblockRun,
    Pageblocks,
    pageblock_runs,
    pageblocks,
    parse_pagetypeinfo,
    read_pagetypeinfo_blocks,
)
from pcp_lists import PcpCheck, PcpPages, read_zoneinfo_pcp
from processes import ProcessVmas, read_process_vmas
from rmap_cost import (
    AnonFolioWalks,
    KsmPage,
    KsmVisits,
    RmapCost,
    RmapWalk,
    anon_folio_walks,
    ksm_items_by_anon_vma,
    ksm_pages,
    ksm_visits,
    node_cost,
    rmap_costs,
    rmap_walks,
    scan_anon_folios,
)
from rwsem_waiters import AnonVmaLock, AnonVmaWaiter, anon_vma_locks
from settings import Setting, read_settings, settings
from slab_caches import (
    SlabCache,
    SlabCheck,
    pages_in_no_cache,
    read_caches,
    read_slabinfo,
    scan_slabs,
    slab_caches,
)
from slab_objects import Objects
from slab_owner import (
    SlabOwners,
    SlabOwnerStack,
    read_alloc_traces,
    slab_owner_stacks,
    slab_owners,
)
from stack_depot import StackDepot, stack_depot
from struct_page_cost import StructPageCost, scan_struct_page_cost
from vm_counters import VmCounter, read_vmstat, vm_counters
from vma_splits import VmaNeighbours, VmaSplits, vma_splits
from vmemmap import VmemmapMapping, VmemmapSections, VmemmapZone
from vmemmap_examples import VmemmapExample
from zones import FreeAccounting, Zone, read_zoneinfo, zones


class DeadlineExceeded(BaseException):
    """
    A section took longer than it may.

    Not an Exception, so that nothing on the way up takes it for a failure of its own and goes on.
    """


Kept = TypeVar("Kept")


class Absent(Exception):
    """The target has no such thing. The words say why, and what would change that."""


@dataclass
class Found:
    """The tables of a section, and what keeps them from being whole."""

    tables: list[tuple[str, str, type, list[Any]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # each makes the section partial
    remarks: list[str] = field(default_factory=list)  # what to know of a section that is whole
    unreadable_bytes: int = 0
    # Name, title, unit and (stack, value) of what a flame graph is drawn from.
    folded: list[tuple[str, str, str, list[tuple[str, int]]]] = field(default_factory=list)

    def add(self, name: str, title: str, row_type: type, rows: list[Any]) -> "Found":
        self.tables.append((name, title, row_type, rows))
        return self


@dataclass(frozen=True)
class Rmap:
    """The reverse maps, and KSM where the kernel has it."""

    maps: ReverseMaps
    vma_slots: Objects
    ksm: Ksm | None
    visits: KsmVisits | None


@dataclass
class Memory:
    """A kernel's memory, and the pass over its struct pages once somebody needs it."""

    prog: Program
    progress: Callable[[int, int], None] | None = None
    _kept: dict[str, Any] = field(default_factory=dict)

    def disagreement(self, found: Found, what: str) -> None:
        """Two readings that differ: damage in a dump, to be expected of a kernel that runs."""
        if self.prog.flags & ProgramFlags.IS_LIVE:
            found.remarks.append(f"{what}: the kernel was running while it was read")
        else:
            found.notes.append(what)

    def _once(self, name: str, work: Callable[[], Kept]) -> Kept:
        """What several sections need, worked out once; if it failed, it failed for all of them."""
        if name not in self._kept:
            try:
                self._kept[name] = work()
            except (Exception, DeadlineExceeded) as error:
                self._kept[name] = error
        kept = self._kept[name]
        if isinstance(kept, BaseException):
            raise kept
        return cast(Kept, kept)

    @property
    def free(self) -> FreeMemory:
        """The pass over the struct pages for what is free."""
        return self._once("free", lambda: scan_free_memory(self.prog, self.progress))

    @property
    def depot(self) -> StackDepot:
        """The stack depot."""
        return self._once("depot", lambda: stack_depot(self.prog))

    @property
    def slabs(self) -> SlabOwners:
        """The slabs and, where they have tracks, the owners of their objects: one pass."""
        return self._once("slabs", self._slabs)

    @property
    def struct_pages(self) -> StructPageCost:
        """The walk over the struct pages' own page tables."""
        return self._once("struct_pages", self._struct_pages)

    def _struct_pages(self) -> StructPageCost:
        try:
            return scan_struct_page_cost(self.prog, self.progress)
        except NotImplementedError as reason:
            raise Absent(str(reason)) from None

    @property
    def rmap(self) -> Rmap:
        """The reverse maps and KSM: one pass."""
        return self._once("rmap", self._rmap)

    def _rmap(self) -> Rmap:
        try:
            more = ksm_wanted(self.prog)
        except LookupError:
            more = {}
        maps, read = read_reverse_maps(self.prog, more, progress=self.progress)
        ksm = read_ksm(self.prog, read) if more else None
        shift = self.prog["PAGE_SHIFT"].value_()
        visits = ksm_visits(maps, ksm, shift) if ksm else None
        return Rmap(maps, read.objects["vma"], ksm, visits)

    def _slabs(self) -> SlabOwners:
        if any(cache.store_user for cache in read_caches(self.prog)[0]):
            return slab_owners(self.prog, self.depot, progress=self.progress)
        return SlabOwners(scan_slabs(self.prog, progress=self.progress))


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
    # About what few kernels have switched on: that it is absent is worth a word only if asked for.
    optional: bool = False


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
        pcp = pages_by_zone(free.pcp_lists[0])
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
    rows, checks = free.pcp_lists
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


def page_owner_from_memory(memory: Memory) -> Found:
    prog = memory.prog
    if reason := page_owner_off(prog):
        raise Absent(reason)
    depot, owners = memory.depot, scan_page_owner(prog, progress=memory.progress)
    rows, checks = page_owner_stacks(prog, depot, owners)
    found = Found(unreadable_bytes=owners.gaps.bytes + depot.gaps.bytes)
    found.notes += _depot_notes(depot)
    if owners.gaps.bytes:
        found.notes.append(
            f"{owners.gaps.bytes:,} bytes of struct pages and page_exts could not be read: their "
            "pages are not counted"
        )
    if owners.damaged:
        found.notes.append(f"{owners.damaged:,} page_exts have an order that cannot be")
    if checks:
        memory.disagreement(
            found, f"the kernel counts {len(checks)} stacks otherwise (page_owner_checks)"
        )
    if unlisted := [row for row in rows if row.note == UNLISTED]:
        pages = sum(row.pages for row in unlisted)
        found.remarks.append(
            f"{len(unlisted):,} stacks with {pages:,} pages are not in show_stacks and "
            "show_handles: their first allocation could not wait for a lock"
        )
    title = "Pages by allocation stack"
    found.add("page_owner_stacks", title, PageOwnerStack, rows)
    shift = prog["PAGE_SHIFT"].value_()
    stacks = [(row.stack, row.pages << shift) for row in rows if row.stack]
    found.folded.append(("page_owner", f"{title}, width in bytes", "bytes", stacks))
    for name, title, row_type, table in (
        ("tasks", "Pages by task", PageOwnerTask, page_owner_tasks(owners)),
        ("orders", "Pages by order", PageOwnerOrder, page_owner_orders(owners)),
        ("gfp", "Pages by gfp mask", PageOwnerGfp, page_owner_gfp(prog, owners)),
        (
            "migratetypes",
            "Pages by migratetype, and their pageblock's",
            PageOwnerMigratetype,
            page_owner_migratetypes(owners),
        ),
        (
            "polluters",
            "Pages in pageblocks of another migratetype, by allocation stack",
            PageOwnerPolluter,
            page_owner_polluters(prog, depot, owners),
        ),
        (
            "mixed_blocks",
            "Pageblocks with a page of another migratetype",
            PageOwnerMixedBlocks,
            page_owner_mixed_blocks(prog, owners),
        ),
        (
            "migrations",
            "Pages migrated since",
            PageOwnerMigration,
            page_owner_migrations(prog, owners),
        ),
        ("ages", "Pages by age", PageOwnerAge, page_owner_ages(owners)),
        (
            "freed",
            "Free pages, by who freed them",
            PageOwnerFreed,
            page_owner_freed(prog, depot, owners),
        ),
        ("checks", "Stacks that the kernel counts otherwise", PageOwnerCheck, checks),
    ):
        found.add(f"page_owner_{name}", title, row_type, table)
    return found


def page_owner_from_files(files: Files) -> Found:
    path = files.root / "sys/kernel/debug/page_owner"
    raise Absent(f"{path} is read by a command of its own: mmscope page-owner FILE")


def slab_caches_from_memory(memory: Memory) -> Found:
    scan = memory.slabs.scan
    rows, checks = slab_caches(scan)
    found = Found(unreadable_bytes=scan.gaps.bytes)
    if scan.broken_off:
        found.notes.append(f"{scan.broken_off}; slabs of others are not counted")
    if scan.gaps.bytes:
        found.notes.append(
            f"{scan.gaps.bytes:,} bytes of struct pages could not be read: slabs among them are "
            "not counted"
        )
    if checks:
        memory.disagreement(found, f"the slabs of {len(checks)} caches do not add up (slab_checks)")
    if (rest := pages_in_no_cache(memory.prog, scan)) > 0:
        found.remarks.append(
            f"{rest:,} more pages that the kernel counts as slab are in no cache: kmalloc beyond "
            "the largest cache"
        )
    found.add("slab_caches", "Slab caches", SlabCache, rows)
    return found.add("slab_checks", "Slab caches that do not add up", SlabCheck, checks)


def slab_caches_from_files(files: Files) -> Found:
    rows = read_slabinfo(files.read("proc/slabinfo"))
    return Found().add("slab_caches", "Slab caches", SlabCache, rows)


NO_TRACKS = (
    "no slab cache remembers who allocated its objects; boot with slab_debug=U (slub_debug=U "
    "before Linux 6.9), or slab_debug=U,CACHE for one cache"
)


def slab_owner_from_memory(memory: Memory) -> Found:
    owners = memory.slabs
    tracked = [cache for cache in owners.scan.caches if cache.store_user]
    if not tracked and owners.scan.broken_off:
        raise ValueError(owners.scan.broken_off)
    if not tracked:
        raise Absent(NO_TRACKS)
    depot = memory.depot
    rows, checks = slab_owner_stacks(memory.prog, depot, owners)
    found = Found(unreadable_bytes=owners.gaps.bytes + depot.gaps.bytes)
    found.notes += _depot_notes(depot)
    if owners.scan.broken_off:
        found.notes.append(owners.scan.broken_off)
    if owners.gaps.bytes:
        found.notes.append(f"{owners.gaps.bytes:,} bytes of slabs could not be read")
    if len(tracked) < len(owners.scan.caches):
        found.remarks.append(
            f"{len(tracked)} of {len(owners.scan.caches)} caches have tracks: what the others hold "
            "is in slab_caches"
        )
    if checks:
        memory.disagreement(found, f"tracks of {len(checks)} caches do not add up")
    title = "Slab objects by allocation stack"
    found.add("slab_owner_stacks", title, SlabOwnerStack, rows)
    # The cache is what the allocation leads to: the leaf.
    stacks = [(f"{row.stack};{row.cache}", row.bytes) for row in rows if row.bytes]
    found.folded.append(("slab_owner", f"{title}, width in bytes", "bytes", stacks))
    return found.add("slab_owner_checks", "Tracks that do not add up", SlabCheck, checks)


def slab_owner_from_files(files: Files) -> Found:
    folder = files.root / "sys/kernel/debug/slab"
    rows: list[SlabOwnerStack] = []
    try:
        caches = sorted(path.name for path in folder.iterdir())
    except OSError:
        caches = []
    found = Found()
    for cache in caches:
        try:
            size = int(files.open(f"sys/kernel/slab/{cache}/object_size"))
        except (OSError, ValueError):
            size = None
        try:
            text = files.read(f"sys/kernel/debug/slab/{cache}/alloc_traces")
            rows += read_alloc_traces(text, cache, size)
        except (Absent, ValueError) as reason:
            found.notes.append(str(reason))
    if not rows:
        raise Absent(f"{folder} has no alloc_traces (root only): {NO_TRACKS}")
    return found.add("slab_owner_stacks", "Slab objects by allocation stack", SlabOwnerStack, rows)


def page_tables_from_memory(memory: Memory) -> Found:
    prog = memory.prog
    scan = scan_page_tables(prog, memory.progress)
    rows = page_tables(scan)
    found = Found(unreadable_bytes=scan.gaps.bytes)
    if scan.gaps.bytes:
        found.notes.append(
            f"{scan.gaps.bytes:,} bytes of page tables, VMAs and descriptors could not be read: "
            "what they hold is not counted"
        )
    if scan.spaces.broken_off:
        found.notes.append("the list of processes is damaged: those behind the damage are missing")
    for count, what in (
        (scan.damaged_vmas, "VMAs and nodes of their trees are damaged, and left out"),
        (scan.repeated_tables, "entries lead to a table that was met before, and not followed"),
        (scan.dropped_tables, "tables are more than their process was charged for; not followed"),
        (scan.broken_deposits, "lists of deposited tables do not close"),
    ):
        if count:
            memory.disagreement(found, f"{count:,} {what}")
    if wrong := sum(bool(row.unaccounted_tables) for row in rows):
        memory.disagreement(
            found, f"pgtables_bytes of {wrong:,} processes is not what was found (unaccounted)"
        )
    details = page_table_details(scan)
    given_back = dontneed_frees_tables(prog)
    found.add("page_tables", "Page tables by process", PageTables, rows)
    found.add("page_table_details", "What else is in page tables", PageTableDetails, details)
    costs = exit_costs(rows, details, dontneed_frees_tables=given_back)
    found.add("exit_costs", "What the end of each process will cost", ExitCost, costs)
    found.add(
        "page_table_occupancy",
        "How full the tables are",
        PageTableOccupancy,
        page_table_occupancy(scan),
    )
    return found.add(
        "page_table_regions",
        "What is mapped how, in the address spaces with the most tables",
        PageTableRegion,
        page_table_regions(scan),
    )


def page_tables_from_files(files: Files) -> Found:
    rows: list[PageTables] = []
    found = Found()
    try:
        pids = sorted(
            int(path.name) for path in (files.root / "proc").iterdir() if path.name.isdigit()
        )
    except OSError:
        pids = []
    for pid in pids:
        try:
            row = read_status(files.open(f"proc/{pid}/status"))
        except OSError:
            continue  # it has exited
        except ValueError as reason:
            found.notes.append(f"process {pid}: {reason}")
            continue
        if row is not None:
            rows.append(row)
    if not rows:
        raise Absent(f"{files.root / 'proc'} has no PID/status: this tree has no processes")
    rows.sort(key=lambda row: (-row.pgtables_bytes, row.pid))
    found.remarks.append(
        "what is in the tables is not in /proc; read the kernel's memory (as root). Processes that "
        "share their memory (vfork) count each"
    )
    return found.add("page_tables", "Page tables by process", PageTables, rows)


def vmemmap_from_memory(memory: Memory) -> Found:
    cost = memory.struct_pages
    found = Found(notes=_vmemmap_notes(cost), unreadable_bytes=cost.scan.gaps.bytes)
    scan = cost.scan
    if scan.unmapped_sections:
        memory.disagreement(
            found, f"{scan.unmapped_sections:,} sections have struct pages that nothing maps"
        )
    if scan.stray_entries:
        memory.disagreement(
            found, f"{scan.stray_entries:,} entries map struct pages of sections that are not there"
        )
    found.add("vmemmap_mappings", "Struct pages by mapping", VmemmapMapping, scan.mappings)
    found.add("vmemmap_zones", "Struct pages by zone", VmemmapZone, scan.zones)
    found.add(
        "vmemmap_sections",
        "Sections by mapping, run-length encoded",
        VmemmapSections,
        scan.runs,
    )
    return found.add(
        "vmemmap_examples", "Struct pages of one huge page", VmemmapExample, cost.examples
    )


def vmemmap_from_files(files: Files) -> Found:
    raise Absent("page tables are not in /proc; read the kernel's memory (as root)")


def hugetlb_from_memory(memory: Memory) -> Found:
    sizes = hugetlb_sizes(memory.prog)
    if not sizes:
        raise Absent("the kernel has no hugetlb pools (CONFIG_HUGETLB_PAGE)")
    cost = memory.struct_pages
    rows, checks = cost.pools()
    gaps = cost.huge_pages.gaps.bytes
    found = Found(notes=_vmemmap_notes(cost), unreadable_bytes=gaps + cost.scan.gaps.bytes)
    if gaps:
        found.notes.append(
            f"{gaps:,} bytes of struct pages could not be read: huge pages are missing"
        )
    if checks:
        memory.disagreement(
            found, f"{sum(check.pages for check in checks):,} huge pages differ (hugetlb_checks)"
        )
    found.add("hugetlb_pools", "hugetlb pools by size and node", HugetlbPool, rows)
    found.add("hugetlb_sizes", "hugetlb page sizes", HugetlbSize, sizes)
    return found.add(
        "hugetlb_checks", "Huge pages that the kernel counts otherwise", HugetlbCheck, checks
    )


def hugetlb_from_files(files: Files) -> Found:
    sizes = _numbers(files, "sys/kernel/mm/hugepages", r"hugepages-(\d+)kB")
    if not sizes:
        raise Absent(f"{files.root / 'sys/kernel/mm/hugepages'} has no page sizes")
    nodes = _numbers(files, "sys/devices/system/node", r"node(\d+)")
    in_bytes = [size << 10 for size in sizes]
    found = Found(remarks=["which pages HVO optimised is not in /sys; read the kernel's memory"])
    rows = read_pools(files.open, nodes, in_bytes)
    found.add("hugetlb_pools", "hugetlb pools by size and node", HugetlbPool, rows)
    sizes_read = read_sizes(files.open, in_bytes)
    return found.add("hugetlb_sizes", "hugetlb page sizes", HugetlbSize, sizes_read)


def _numbers(files: Files, folder: str, pattern: str) -> list[int]:
    """The numbers in the names of a folder's entries."""
    try:
        names = [path.name for path in (files.root / folder).iterdir()]
    except OSError:
        return []
    matches = [re.fullmatch(pattern, name, re.ASCII) for name in names]
    return sorted(int(match[1][:12]) for match in matches if match)


def device_pagemaps_from_memory(memory: Memory) -> Found:
    cost = memory.struct_pages
    rows = cost.pagemaps()
    found = Found(notes=_vmemmap_notes(cost), unreadable_bytes=cost.scan.gaps.bytes)
    if cost.more_pagemaps:
        found.notes.append(cost.more_pagemaps)
    return found.add("device_pagemaps", "Device memory with struct pages", DevicePagemap, rows)


def device_pagemaps_from_files(files: Files) -> Found:
    raise Absent("device pagemaps are not in /proc; read the kernel's memory (as root)")


def memory_metadata_from_memory(memory: Memory) -> Found:
    cost = memory.struct_pages
    found = Found(
        notes=_vmemmap_notes(cost), unreadable_bytes=cost.scan.gaps.bytes + cost.origin_gaps
    )
    rows = cost.metadata()
    remainder = [row for row in rows if row.part.startswith("remainder") and row.bytes]
    shared = sum(row.vmemmap_saved_bytes for row in cost.pagemaps())
    for row in remainder:
        if row.bytes == shared and row.counted_in == "nr_memmap_pages":
            found.remarks.append(
                f"{row.counted_in} also has {row.bytes:,} bytes that sharing saved: this kernel "
                "counts a device's struct pages as if they shared nothing"
            )
        else:
            memory.disagreement(found, f"{row.counted_in} has {row.bytes:,} bytes beyond its parts")
    if not any(row.part.startswith("remainder") for row in rows):
        found.remarks.append("this kernel does not count what struct pages take (6.12 and later)")
    found.add("memory_about_memory", "Memory about memory", MetadataPart, rows)
    return found.add(
        "memmap_what_if", "Struct pages of a machine of this size", WhatIf, cost.what_if()
    )


def memory_metadata_from_files(files: Files) -> Found:
    raise Absent("the parts are not in /proc; nr_memmap_pages and its like are in vm_counters")


def _vmemmap_notes(cost: StructPageCost) -> list[str]:
    notes = []
    if cost.scan.gaps.bytes:
        notes.append(
            f"{cost.scan.gaps.bytes:,} bytes of page tables and sections could not be read: what "
            "they map is not counted"
        )
    if cost.scan.repeated_tables:
        notes.append(f"{cost.scan.repeated_tables:,} page tables are pointed to twice")
    return notes


def anon_vmas_from_memory(memory: Memory) -> Found:
    rmap = memory.rmap
    maps = rmap.maps
    found = Found(unreadable_bytes=maps.unreadable_bytes)
    _rmap_notes(memory, found)
    checks = maps.checks + check_sample(memory.prog, maps)
    if checks:
        memory.disagreement(
            found, f"{len(checks)} counts of anon_vmas do not fit together (anon_vma_checks)"
        )
    items = ksm_items_by_anon_vma(maps, rmap.visits) if rmap.visits else None
    rows = anon_vma_rows(maps, items)
    if len(rows) < len(maps.anon_vmas):
        found.remarks.append(
            f"{len(rows):,} of {len(maps.anon_vmas):,} anon_vmas are listed, those with most VMAs "
            "first; anon_vma_fanout has them all"
        )
    found.add("anon_vma_fanout", "All anon_vmas by their VMAs", AnonVmaFanout, fanout(maps, items))
    largest = int(maps.tree_size.argmax()) if len(maps.anon_vmas) else -1
    index = None
    if rmap.visits is not None and largest >= 0:
        index = rmap.visits.index[(rmap.visits.anon_vma == largest) & rmap.visits.placed]
    found.add(
        "anon_vma_map",
        "The page range of the anon_vma with most VMAs",
        AnonVmaMap,
        tree_map(maps, largest, index) if largest >= 0 else [],
    )
    sums, kinds, problems = vma_splits(memory.prog, maps, rmap.vma_slots)
    found.add("vma_splits", "Why anon_vmas have many VMAs", VmaSplits, sums)
    found.add("vma_neighbours", "Neighbours that are VMAs of their own", VmaNeighbours, kinds)
    found.add("anon_vmas", "anon_vmas, those with most VMAs first", AnonVma, rows)
    locks, queued, more_problems = anon_vma_locks(memory.prog, maps)
    for problem in problems + more_problems:
        memory.disagreement(found, problem)
    found.add("anon_vma_locks", "Locks of anon_vmas that are taken", AnonVmaLock, locks)
    found.add("anon_vma_waiters", "Tasks queued on them", AnonVmaWaiter, queued)
    rows_by_process = process_vmas(memory.prog, maps)
    found.add("process_vmas", "Processes by their VMAs", ProcessVmas, rows_by_process)
    return found.add("anon_vma_checks", "What does not fit together", AnonVmaCheck, checks)


def anon_vmas_from_files(files: Files) -> Found:
    try:
        names = [path.name for path in (files.root / "proc").iterdir()]
    except OSError:
        names = []
    pids = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    rows, problems = read_process_vmas(files.open, pids)
    if not rows:
        raise Absent(f"{files.root}: proc has no maps of processes; anon_vmas are in memory only")
    found = Found(remarks=["anon_vmas are in the kernel's memory only; VMAs are counted from maps"])
    if problems:
        found.notes.append(f"{len(problems)} processes not counted: {problems[0]}")
    return found.add("process_vmas", "Processes by their VMAs", ProcessVmas, rows[:500])


NO_KSM = "the kernel has no KSM (CONFIG_KSM)"


def ksm_from_memory(memory: Memory) -> Found:
    rmap = memory.rmap
    if rmap.ksm is None or rmap.visits is None:
        raise Absent(NO_KSM)
    found = Found(unreadable_bytes=rmap.maps.unreadable_bytes)
    _rmap_notes(memory, found)
    totals = ksm_totals(memory.prog, rmap.ksm)
    wrong = [row.name for row in totals if row.counted not in (None, row.value)]
    if wrong or rmap.ksm.problems:
        words = [*rmap.ksm.problems]
        if wrong:
            words.append(f"{', '.join(wrong)} differ from what the stable trees have (ksm_totals)")
        memory.disagreement(found, "; ".join(words))
    found.add("ksm_totals", "KSM's counters and settings", KsmTotal, totals)
    pages = ksm_pages(memory.prog, rmap.ksm, rmap.visits, node_cost(memory.prog))
    if len(pages) < len(rmap.ksm.node):
        found.remarks.append(
            f"{len(pages):,} of {len(rmap.ksm.node):,} KSM pages are listed, the most expensive"
        )
    found.add("ksm_chains", "Contents that one page is too few for", KsmChain, ksm_chains(rmap.ksm))
    rows = ksm_processes(memory.prog, rmap.ksm, rmap.maps)
    found.add("ksm_processes", "What KSM does for processes", KsmProcess, rows)
    title = "KSM pages by what a walk of their mappings visits"
    return found.add("ksm_pages", title, KsmPage, pages)


def ksm_from_files(files: Files) -> Found:
    folder = files.root / "sys/kernel/mm/ksm"
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        raise Absent(
            f"{folder} is not there: {NO_KSM}, or the tree was copied without it"
        ) from None
    rows = read_ksm_totals(names, lambda name: files.open(f"sys/kernel/mm/ksm/{name}"))
    return Found().add("ksm_totals", "KSM's counters and settings", KsmTotal, rows)


def rmap_cost_from_memory(memory: Memory) -> Found:
    rmap = memory.rmap
    folios, gaps = scan_anon_folios(memory.prog, rmap.maps, progress=memory.progress)
    cost = node_cost(memory.prog)
    found = Found(unreadable_bytes=gaps.bytes + rmap.maps.unreadable_bytes)
    _rmap_notes(memory, found)
    if gaps.bytes:
        found.notes.append(f"{gaps.bytes:,} bytes of struct pages could not be read")
    if folios.unknown:
        words = f"{folios.unknown:,} anonymous folios are of no anon_vma that was found"
        memory.disagreement(found, words)
    measured = "as given" if cost.measured else "not measured here: give --rmap-node-ns"
    found.remarks.append(
        f"times are estimates: visits times {cost.ns:g} ns ({cost.low:g} to {cost.high:g}), "
        f"{measured}"
    )
    walks = rmap_walks(rmap.maps, rmap.ksm, rmap.visits, folios, owner_of(rmap.maps), cost)
    costs = rmap_costs(rmap.visits, folios, cost)
    found.add("rmap_costs", "What a walk of every page visits", RmapCost, costs)
    found.add("rmap_walks", "Where reverse map walks take longest", RmapWalk, walks)
    return found.add(
        "anon_folio_walks",
        "Anonymous folios by what a walk of them visits",
        AnonFolioWalks,
        anon_folio_walks(folios),
    )


def rmap_cost_from_files(files: Files) -> Found:
    raise Absent("reverse maps are in the kernel's memory only; read that (as root)")


def _rmap_notes(memory: Memory, found: Found) -> None:
    """What keeps the reverse maps themselves from being whole."""
    rmap, notes = memory.rmap, found.notes
    if rmap.maps.orphans:
        words = (
            f"{rmap.maps.orphans:,} anon_vma_chains are only in a tree, or only on the list of a "
            "VMA, as while it is split"
        )
        if rmap.maps.attempts > 1:
            words += f" (the best of {rmap.maps.attempts} readings)"
        memory.disagreement(found, words)
    if rmap.maps.unreadable_bytes:
        notes.append(
            f"{rmap.maps.unreadable_bytes:,} bytes of slabs could not be read: what is in them, "
            "and in trees below them, is not counted"
        )
    if rmap.maps.odd_slabs:
        notes.append(f"{rmap.maps.odd_slabs:,} slabs are damaged, and not used")
    if rmap.maps.tasks.unreadable:
        notes.append(f"{rmap.maps.tasks.unreadable:,} processes could not be read")


def _depot_notes(depot: StackDepot) -> list[str]:
    notes = []
    if depot.gaps.bytes:
        notes.append(f"{depot.gaps.bytes:,} bytes of the stack depot could not be read")
    if depot.damaged:
        notes.append(f"{depot.damaged:,} records of the stack depot are damaged, and not used")
    return notes


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
        SectionSpec(
            "page_owner",
            "Owners of pages",
            page_owner_from_memory,
            page_owner_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        SectionSpec(
            "slab_caches",
            "Slab caches",
            slab_caches_from_memory,
            slab_caches_from_files,
            PASS_SECONDS,
        ),
        SectionSpec(
            "slab_owner",
            "Owners of slab objects",
            slab_owner_from_memory,
            slab_owner_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        SectionSpec(
            "page_tables",
            "Page tables",
            page_tables_from_memory,
            page_tables_from_files,
            PASS_SECONDS,
        ),
        SectionSpec(
            "vmemmap",
            "Struct pages",
            vmemmap_from_memory,
            vmemmap_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        SectionSpec(
            "hugetlb",
            "hugetlb pools and HVO",
            hugetlb_from_memory,
            hugetlb_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        SectionSpec(
            "device_pagemaps",
            "Device memory",
            device_pagemaps_from_memory,
            device_pagemaps_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        SectionSpec(
            "memory_metadata",
            "Memory about memory",
            memory_metadata_from_memory,
            memory_metadata_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        SectionSpec(
            "anon_vmas",
            "Reverse maps",
            anon_vmas_from_memory,
            anon_vmas_from_files,
            PASS_SECONDS,
        ),
        SectionSpec("ksm", "KSM", ksm_from_memory, ksm_from_files, PASS_SECONDS),
        SectionSpec(
            "rmap_cost",
            "The cost of reverse map walks",
            rmap_cost_from_memory,
            rmap_cost_from_files,
            PASS_SECONDS,
        ),
        SectionSpec("vm_counters", "Counters", vm_counters_from_memory, vm_counters_from_files),
        SectionSpec("settings", "Settings", settings_from_memory, settings_from_files),
    )
}
