# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The page tables of every process, from ``mm.pgd`` down: how many, and what is in them.

A page table is a page, whatever is in it: one entry of 512 costs as much as all of them. None of
it is in VmRSS, and nothing short of unmapping gives most of it back. VmPTE in /proc/PID/status says
how much there is (it counts PTE, PMD and PUD tables, and the tables that are deposited for huge
PMDs to be split into); what the tables hold is only in the tables.

All entries of all tables are read and classified in numpy, 200,000 tables a second; see
``page_table_entries``. What is counted is held against ``mm.pgtables_bytes``.

Cannot know: tables of kernel threads' borrowed address spaces, of address spaces that no task has
any more, and the kernel's own.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import FaultError, Program, sizeof
from drgn.helpers.linux.mm import pfn_to_page
from numpy.typing import NDArray

from mmscope.drgn.page_tables.page_table_entries import (
    MAX_ROOTS,
    PageTableFormat,
    TableChunk,
    Walk,
    new_walk,
    page_table_format,
    process_roots,
    walk_page_tables,
)
from mmscope.drgn.page_tables.swap_types import (
    DEVICE,
    KINDS,
    MARKER,
    MIGRATION,
    NONE,
    OTHER,
    PAGE,
    POISONED,
    SPECIAL,
    SWAP,
    ZERO,
    absent_kinds,
    entry_kinds,
    swap_kinds,
)
from mmscope.drgn.processes.address_spaces import AddressSpaces, address_spaces
from mmscope.drgn.processes.vm_areas import (
    VM_HUGETLB,
    VM_MIXEDMAP,
    VM_PFNMAP,
    VM_SHARED,
    VmAreas,
    read_vm_areas,
)
from mmscope.drgn.reading.kernel_arrays import Gaps, member_path, struct_dtype
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.struct_pages import memory_pages
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PIDS, column
from mmscope.drgn.tables.table import Table
from mmscope.drgn.text.kernel_text import printed_number, row_number, whole_lines

# Of how many processes the occupancy and the regions are kept, those with the most tables.
DETAILED = 20
# Into how many regions an address space is cut at most, at its largest gaps.
REGIONS = 24
# Entries in use in a table: none, 1, 2-3, 4-7, … 256-511, all 512.
BINS = 11


@dataclass(frozen=True)
class PageTables:
    """The page tables of one address space."""

    pid: int = column(
        key=True, high=MOST_PIDS, help="thread group; of several that share them, the first"
    )
    comm: str = column(holds="comm", help="name of the process")
    pgtables_bytes: int = column(
        unit="bytes",
        help="what the kernel counts (VmPTE): PTE, PMD and PUD tables and deposited ones, "
        "not P4D and PGD",
    )
    resident_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="mapped pages that count as resident (Rss in smaps); hugetlb does not",
    )
    hugetlb_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="mapped hugetlb pages")
    pte_tables: int | None = column(help="tables of PTEs, without the deposited ones")
    pmd_tables: int | None = column(help="tables of PMDs, shared ones included")
    pud_tables: int | None = column(help="tables of PUDs")
    deposited_pte_tables: int | None = column(
        help="empty PTE tables that lie ready for splitting huge PMDs: one for each of these"
    )
    empty_pte_tables: int | None = column(help="PTE tables without any entry, not the deposited")
    used_ptes: int | None = column(help="PTEs that are anything but none, of all PTE tables")
    present_ptes: int | None = column(help="PTEs that map a page: zero pages and special ones too")
    zero_ptes: int | None = column(help="of these, that map the shared zero page")
    swap_ptes: int | None = column(help="PTEs whose page is swapped out")
    huge_pmds: int | None = column(help="PMDs that map a transparent huge page")
    huge_zero_pmds: int | None = column(help="PMDs that map the huge zero page")
    exit_pte_slots: int | None = column(
        help="slots of PTE tables that an exit looks at, used or not (zap_pte_range)"
    )
    unaccounted_tables: int | None = column(
        low=None,
        help="tables in pgtables_bytes that were not found, or the reverse if negative",
    )


PAGE_TABLES = Table("page_tables", "Page tables by process", PageTables, lasting=("comm",))


@dataclass(frozen=True)
class PageTableDetails:
    """What else there is in the page tables of one address space."""

    pid: int = column(
        key=True, high=MOST_PIDS, help="thread group; of several that share them, the first"
    )
    comm: str = column(holds="comm", help="name of the process")
    processes: int = column(help="processes that share this address space (vfork)")
    threads: int = column(help="threads that share this address space")
    vmas: int = column(help="mappings")
    mapped_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="addresses that are mapped to something"
    )
    p4d_tables: int = column(help="tables of P4Ds; none with four levels")
    shared_pmd_tables: int = column(
        help="tables of PMDs that several processes share, for hugetlb pages"
    )
    special_ptes: int = column(
        help="PTEs that map what is not counted as resident (device memory, vvar); no zero pages"
    )
    migration_ptes: int = column(help="PTEs whose page is being moved")
    device_ptes: int = column(help="PTEs whose page is in a device's own memory")
    marker_ptes: int = column(help="PTEs that only remember something: guard pages, uffd-wp")
    poisoned_ptes: int = column(help="PTEs whose page is lost to a hardware error")
    other_huge: int = column(
        help="PMDs and PUDs that map what is not counted as resident (device memory, DAX)"
    )
    migration_pmds: int = column(help="PMDs whose huge page is being moved")
    poisoned_pmds: int = column(help="PMDs and PUDs whose hugetlb page is lost")
    reaped_pte_slots: int = column(
        help="of exit_pte_slots, those that the OOM reaper looks at first: of private mappings, "
        "not hugetlb or PFN"
    )
    bad_entries: int = column(
        help="entries that lead nowhere, to a table that cannot be read, or to one met before"
    )


PAGE_TABLE_DETAILS = Table(
    "page_table_details", "What else is in page tables", PageTableDetails, measure="vmas"
)


@dataclass(frozen=True)
class PageTableOccupancy:
    """How full the tables of one level are."""

    pid: int | None = column(
        key=True, high=MOST_PIDS, help="thread group; empty: all processes together"
    )
    level: str = column(holds="words", key=True, help="pgd, p4d, pud, pmd, pte, or deposited")
    least: int = column(key=True, help="least entries in use in such a table, of 512")
    most: int = column(help="most entries in use")
    tables: int = column(help="tables that are so full")
    entries: int = column(help="entries in use in all of them")


PAGE_TABLE_OCCUPANCY = Table(
    "page_table_occupancy", "How full the tables are", PageTableOccupancy, measure="tables"
)


@dataclass(frozen=True)
class PageTableRegion:
    """
    A part of an address space: neighbouring mappings, cut where the addresses between them are
    many.
    """

    pid: int = column(key=True, high=MOST_PIDS, help="thread group")
    start: str = column(holds="kernel", key=True, help="first address")
    end: str = column(holds="kernel", help="behind the last address")
    vmas: int = column(help="mappings in it")
    mapped_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="addresses that are mapped to something"
    )
    pte_tables: int = column(help="PTE tables for it")
    small_bytes: int = column(unit="bytes", high=MOST_BYTES, help="resident in base pages")
    huge_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="resident in transparent huge pages"
    )
    hugetlb_bytes: int = column(unit="bytes", high=MOST_BYTES, help="in hugetlb pages")
    zero_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped to the shared zero page")
    huge_zero_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="mapped to the huge zero page"
    )
    swap_bytes: int = column(unit="bytes", high=MOST_BYTES, help="swapped out")
    other_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="device memory, markers, pages being moved"
    )


PAGE_TABLE_REGIONS = Table(
    "page_table_regions",
    "What is mapped how, in the address spaces with the most tables",
    PageTableRegion,
)


# What is added up for each process.
SUMS = (
    *("deposited", "shared_pmds", "empty", "vmas", "mapped"),
    *("huge", "huge_zero", "other_huge", "migration_pmds", "hugetlb_bytes", "poisoned_pmds"),
    *("exit_slots", "reaped_slots", "bad"),
)


@dataclass
class PageTableScan:
    """What the page tables of all processes hold."""

    form: PageTableFormat
    spaces: AddressSpaces
    kinds: NDArray[np.int64]  # [process, kind of PTE]
    tables: NDArray[np.int64]  # [process, level]
    sums: dict[str, NDArray[np.int64]]  # by SUMS: [process]
    # [process, level or, behind them, deposited; bin], and the entries in use in them
    filled: NDArray[np.int64]
    filled_entries: NDArray[np.int64]
    regions: "Regions"
    gaps: Gaps = field(default_factory=Gaps)
    unreadable_tables: int = 0
    repeated_tables: int = 0
    dropped_tables: int = 0
    broken_deposits: int = 0
    damaged_vmas: int = 0
    absurd_charges: int = 0  # processes with more page tables than there is memory, by their count

    def detailed(self) -> list[int]:
        """The processes that occupancy and regions are kept of."""
        return _by_size(self.spaces)[:DETAILED]


@dataclass(frozen=True)
class Regions:
    """Regions of the detailed processes, and what each holds."""

    owners: NDArray[np.int64]
    starts: NDArray[np.uint64]
    ends: NDArray[np.uint64]
    vmas: NDArray[np.int64]
    mapped: NDArray[np.int64]
    # [region, …] bytes by what is mapped there, in the order of REGION_KINDS; and PTE tables.
    bytes: NDArray[np.int64]
    pte_tables: NDArray[np.int64]


REGION_KINDS = ("small", "huge", "hugetlb", "zero", "huge_zero", "swap", "other")
# Of the kinds of PTEs, where they go.
REGION_OF_KIND = {PAGE: "small", ZERO: "zero", SWAP: "swap"}


def _by_size(spaces: AddressSpaces) -> list[int]:
    """All processes, those with the most tables first."""
    pids = np.array([process.pid for process in spaces.processes], np.int64)
    charged = spaces.columns["pgtables_bytes"].astype(np.int64)
    return [int(at) for at in np.lexsort((pids, -charged))]


def scan_page_tables(
    prog: Program, progress: Callable[[int, int], None] | None = None
) -> PageTableScan:
    """
    Read the page tables of every process.

    :param progress: called with (pages of tables done, pages of tables in all).
    :raises NotImplementedError: of an architecture that is not known here.
    :raises LookupError: the kernel's layout is unknown.
    """
    form = page_table_format(prog)
    gaps = Gaps()
    spaces = address_spaces(prog, gaps)
    count = len(spaces)
    areas = read_vm_areas(prog, spaces.columns["tree"], gaps)
    levels = len(form.levels)
    scan = PageTableScan(
        form,
        spaces,
        np.zeros((count, KINDS), np.int64),
        np.zeros((count, levels), np.int64),
        {name: np.zeros(count, np.int64) for name in SUMS},
        np.zeros((count, levels + 1, BINS), np.int64),
        np.zeros((count, levels + 1, BINS), np.int64),
        _cut(areas, _by_size(spaces)[:DETAILED], form),
        gaps,
        damaged_vmas=areas.damaged,
    )
    scan.sums["vmas"] += np.bincount(areas.owners, minlength=count)
    np.add.at(scan.sums["mapped"], areas.owners, (areas.ends - areas.starts).astype(np.int64))
    reader = _Reader(prog, scan, _Lookup(areas, form.page_shift))
    roots = process_roots(prog, spaces.columns["pgd"])
    # A process has no more tables than it is charged for, but for P4Ds, and what a live kernel
    # adds while it is read. Where more come, something is not a page table.
    charged = spaces.columns["pgtables_bytes"].astype(np.int64) >> form.page_shift
    # Nor more than there is memory: a larger charge is damage.
    memory = memory_pages(prog)
    absurd = charged > memory
    scan.absurd_charges = int(absurd.sum())
    charged = np.where(absurd, memory, np.maximum(charged, 0))
    limits = np.where(absurd, memory, 2 * charged) + 1024
    total = int(charged.sum())
    for first in range(0, count, MAX_ROOTS):
        part = slice(first, min(first + MAX_ROOTS, count))
        walk = new_walk(form, part.stop - first)
        walk.gaps = scan.gaps
        done = 0
        for chunk in walk_page_tables(prog, form, roots[part], walk, max_tables=limits[part]):
            reader.take(chunk, chunk.roots.astype(np.int64) + first)
            done += len(chunk)
            if progress is not None:
                progress(min(done, total), total)
        _take_walk(scan, walk, part)
    return scan


def _take_walk(scan: PageTableScan, walk: Walk, part: slice) -> None:
    # A table that is pointed to twice is counted twice: by the kernel too.
    scan.tables[part] += walk.tables + walk.repeated
    scan.sums["bad"][part] += walk.unreadable.sum(axis=1) + walk.dropped
    # hugetlb may share a PMD table between two mappings of one process; nothing else may.
    pmd = scan.form.last - 1
    loops = walk.repeated.copy()
    loops[:, pmd] = 0
    scan.sums["bad"][part] += loops.sum(axis=1)
    scan.unreadable_tables += int(walk.unreadable.sum())
    scan.repeated_tables += int(loops.sum())
    scan.dropped_tables += int(walk.dropped.sum())


class _Lookup:
    """The VMAs of all processes, to be asked for many addresses at once."""

    # The process above the page number of an address, which has 45 bits at most.
    SHIFT = np.uint64(45)

    def __init__(self, areas: VmAreas, page_shift: int) -> None:
        self.page_shift = np.uint64(page_shift)
        self.starts = self.key(areas.owners, areas.starts)
        self.pages = (areas.ends - areas.starts) >> self.page_shift
        flags = areas.flags
        # Behind the last VMA's is what holds for an address in none (-1).
        self.hugetlb = np.append((flags & np.uint64(VM_HUGETLB)) != 0, False)
        # Huge entries of device memory, and of DAX until that counted its pages like others (2025).
        self.uncounted = np.append((flags & np.uint64(VM_PFNMAP | VM_MIXEDMAP)) != 0, False)
        # __oom_reap_task_mm()
        reaped = (flags & np.uint64(VM_HUGETLB | VM_PFNMAP)) == 0
        reaped &= areas.anonymous | ((flags & np.uint64(VM_SHARED)) == 0)
        self.before = self._sums(self.pages)
        self.reaped = np.where(reaped, self.pages, 0).astype(np.uint64)
        self.reaped_before = self._sums(self.reaped)

    @staticmethod
    def _sums(pages: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.concatenate([np.zeros(1, np.uint64), np.cumsum(pages, dtype=np.uint64)])

    def key(self, owners: NDArray[np.int64], addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
        key: NDArray[np.uint64] = owners.astype(np.uint64) << self.SHIFT
        key |= addresses >> self.page_shift
        return key

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The VMA that each address lies in, or -1."""
        at = np.searchsorted(self.starts, keys, side="right").astype(np.int64) - 1
        if not len(self.starts):
            return at
        inside = (at >= 0) & (keys - self.starts[at] < self.pages[at])
        return np.where(inside, at, -1)

    def pages_below(self, keys: NDArray[np.uint64], *, reaped: bool) -> NDArray[np.int64]:
        """Mapped pages below each address, in all processes before it and its own."""
        if not len(self.starts):
            return np.zeros(len(keys), np.int64)
        pages, before = (self.reaped, self.reaped_before) if reaped else (self.pages, self.before)
        at = np.searchsorted(self.starts, keys, side="right").astype(np.int64) - 1
        inside = np.minimum(keys - self.starts[at], pages[at])
        return np.where(at < 0, 0, before[at] + inside).astype(np.int64)


@dataclass(frozen=True)
class _Descriptors:
    """Where the descriptors of page tables (``struct ptdesc``) are, and what is in them."""

    base: int  # of that of page frame 0
    size: int
    dtype: np.dtype[Any]  # deposited, shared
    shared_from: int  # a table whose count is this has more than one user
    links: np.dtype[Any]  # next
    list_offset: int


def _descriptors(prog: Program) -> _Descriptors:
    """
    The members of page tables' descriptors.

    The series "Split ptdesc from struct page" (v6.6) gave them a structure of their own.
    """
    page = prog.type("struct page")
    try:
        kind = prog.type("struct ptdesc")
    except LookupError:
        kind = page
    # "mm: hugetlb: independent PMD page table shared count" (v6.13, and in stable kernels) counts
    # the users beside the first; before, it was the page's reference count.
    own_count = "pt_share_count.counter"
    counts = (own_count, "__page_refcount.counter", "_refcount.counter")
    links = struct_dtype(kind, {"next": ("pt_list.next", "lru.next")})
    assert links.fields is not None
    return _Descriptors(
        pfn_to_page(prog, 0).value_(),
        sizeof(page),
        struct_dtype(kind, {"deposited": "pmd_huge_pte", "shared": counts}),
        1 if member_path(kind, counts) == own_count else 2,
        links,
        links.fields["next"][1],
    )


class _Reader:
    """Takes the chunks of a walk and adds up what is in them."""

    def __init__(self, prog: Program, scan: PageTableScan, lookup: _Lookup) -> None:
        self.prog, self.scan, self.form, self.lookup = prog, scan, scan.form, lookup
        self.kinds = swap_kinds(prog)
        self.zero, self.huge_zero = _zero_pages(prog, scan.form)
        self.descriptors = _descriptors(prog)

    def take(self, chunk: TableChunk, owners: NDArray[np.int64]) -> None:
        """
        Count a chunk.

        :param owners: the process of each table.
        """
        if chunk.level == self.form.last:
            used = self._take_ptes(chunk, owners)
        else:
            used = self._take_upper(chunk, owners)
        self._fill(chunk.level, owners, used)

    def _fill(self, level: int, owners: NDArray[np.int64], used: NDArray[np.int64]) -> None:
        """The occupancy of tables."""
        # 0, 1, 2-3, 4-7, …: the number of bits.
        bins = np.frexp(used.astype(np.float64))[1]
        np.add.at(self.scan.filled[:, level], (owners, bins), 1)
        np.add.at(self.scan.filled_entries[:, level], (owners, bins), used)

    def _take_ptes(self, chunk: TableChunk, owners: NDArray[np.int64]) -> NDArray[np.int64]:
        form, scan, count = self.form, self.scan, len(chunk)
        flat = chunk.entries.ravel()
        some = np.flatnonzero(flat != 0)
        kinds = entry_kinds(form, self.kinds, self.zero, flat[some])
        rows = some // form.slots
        # What each table has of each kind.
        found = np.bincount(rows * KINDS + kinds, minlength=count * KINDS).reshape(count, KINDS)
        found[:, NONE] = 0
        used: NDArray[np.int64] = found.sum(axis=1)
        self._add("empty", owners[used == 0])
        np.add.at(scan.kinds, owners, found)
        first = self.lookup.key(owners, chunk.addresses)
        behind = first + np.uint64(form.slots)
        for name, reaped in (("exit_slots", False), ("reaped_slots", True)):
            slots = self.lookup.pages_below(behind, reaped=reaped)
            slots -= self.lookup.pages_below(first, reaped=reaped)
            np.add.at(scan.sums[name], owners, slots)
        self._regions_of_ptes(chunk, owners, found)
        return used

    def _regions_of_ptes(
        self, chunk: TableChunk, owners: NDArray[np.int64], found: NDArray[np.int64]
    ) -> None:
        regions = self.scan.regions
        at = self._region(owners, chunk.addresses, self.form.slots << self.form.page_shift)
        inside = np.flatnonzero(at >= 0)
        if not len(inside):
            return
        np.add.at(regions.pte_tables, at[inside], 1)
        for kind in range(1, KINDS):
            place = REGION_KINDS.index(REGION_OF_KIND.get(kind, "other"))
            size = found[inside, kind] << self.form.page_shift
            np.add.at(regions.bytes[:, place], at[inside], size)

    def _region(
        self, owners: NDArray[np.int64], addresses: NDArray[np.uint64], span: int
    ) -> NDArray[np.int64]:
        """The region that each stretch of addresses reaches into, or -1."""
        regions = self.scan.regions
        if not len(regions.owners):
            return np.full(len(owners), -1, np.int64)
        keys = self.lookup.key(regions.owners, regions.starts)
        last = self.lookup.key(owners, addresses + np.uint64(span - 1))
        at = np.searchsorted(keys, last, side="right").astype(np.int64) - 1
        fits = (at >= 0) & (regions.owners[at] == owners) & (addresses < regions.ends[at])
        return np.where(fits, at, -1)

    def _take_upper(self, chunk: TableChunk, owners: NDArray[np.int64]) -> NDArray[np.int64]:
        form, scan, level = self.form, self.scan, chunk.level
        some = ~form.is_none(chunk.entries)
        used: NDArray[np.int64] = some.sum(axis=1)
        some &= ~form.is_table(chunk.entries, level)
        rows, slots = np.nonzero(some)
        if not len(rows):
            return used
        entries = chunk.entries[rows, slots]
        leaf = form.is_leaf(entries, level)
        absent = rows[~leaf]
        if len(absent):
            self._absent(level, owners[absent], entries[~leaf])
        rows, slots, entries = rows[leaf], slots[leaf], entries[leaf]
        if not len(rows):
            if level == form.last - 1 and len(absent):
                self._deposits(chunk, owners, np.unique(absent))
            return used
        shift = form.levels[level].shift
        addresses = chunk.slot_addresses(shift, rows, slots)
        owner = owners[rows]
        area = self.lookup.find(self.lookup.key(owner, addresses))
        hugetlb = (area >= 0) & self.lookup.hugetlb[area]
        physical = form.physical(entries, level)
        zero = ~hugetlb & np.isin(physical, self.huge_zero)
        uncounted = ~hugetlb & ~zero
        uncounted &= form.is_special(entries) | (area < 0) | self.lookup.uncounted[area]
        # No transparent huge page is larger than a PMD maps.
        uncounted |= ~hugetlb & ~zero & (level != form.last - 1)
        huge = ~hugetlb & ~zero & ~uncounted
        self._add("huge", owner[huge])
        self._add("huge_zero", owner[zero])
        self._add("other_huge", owner[uncounted])
        self._add("hugetlb_bytes", owner[hugetlb], 1 << shift)
        region = self._region(owner, addresses, 1 << shift)
        for mask, name in (
            (huge, "huge"),
            (zero, "huge_zero"),
            (hugetlb, "hugetlb"),
            (uncounted, "other"),
        ):
            here = region[mask & (region >= 0)]
            np.add.at(scan.regions.bytes[:, REGION_KINDS.index(name)], here, 1 << shift)
        if level == form.last - 1:
            self._deposits(chunk, owners, np.unique(np.concatenate([rows[~hugetlb], absent])))
            self._shared(chunk, owners, np.unique(rows[hugetlb]))
        return used

    def _absent(self, level: int, owners: NDArray[np.int64], entries: NDArray[np.uint64]) -> None:
        """Entries of upper levels that neither map nor lead anywhere."""
        if not self.form.levels[level].leaf:
            self._add("bad", owners)
            return
        kinds = absent_kinds(self.form, self.kinds, entries)
        self._add("migration_pmds", owners[kinds == MIGRATION])
        self._add("poisoned_pmds", owners[kinds == POISONED])
        self._add("bad", owners[(kinds == OTHER) | (kinds == SWAP)])

    def _add(self, name: str, owners: NDArray[np.int64], each: int = 1) -> None:
        self.scan.sums[name] += each * np.bincount(owners, minlength=len(self.scan.spaces))

    def _read_descriptors(self, chunk: TableChunk, rows: NDArray[np.int64]) -> tuple[Any, Any]:
        frames = chunk.frames[rows] >> np.uint64(self.form.page_shift)
        places = np.uint64(self.descriptors.base) + frames * np.uint64(self.descriptors.size)
        return read_scattered(self.prog, places, self.descriptors.dtype, self.scan.gaps)

    def _shared(
        self, chunk: TableChunk, owners: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> None:
        """Which PMD tables with hugetlb pages several processes use."""
        found, read = self._read_descriptors(chunk, rows)
        self._add(
            "shared_pmds", owners[rows[read & (found["shared"] >= self.descriptors.shared_from)]]
        )

    def _deposits(
        self, chunk: TableChunk, owners: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> None:
        """
        Count the PTE tables that lie deposited with PMD tables.

        ``pmd_huge_pte`` is one of a circle of descriptors; all circles are followed at once, a
        link a round.
        """
        found, read = self._read_descriptors(chunk, rows)
        first = found["deposited"]
        some = np.flatnonzero(read & (first != 0))
        owner, first = owners[rows[some]], first[some] + np.uint64(self.descriptors.list_offset)
        at = first.copy()
        deposited = np.zeros(len(self.scan.spaces), np.int64)
        # A table has no more huge PMDs than slots.
        for _ in range(self.form.slots + 1):
            if not len(at):
                break
            deposited += np.bincount(owner, minlength=len(deposited))
            offset = np.uint64(self.descriptors.list_offset)
            links, read = read_scattered(
                self.prog, at - offset, self.descriptors.links, self.scan.gaps
            )
            at = links["next"]
            self.scan.broken_deposits += int((~read).sum())
            onward = read & (at != first)
            owner, first, at = owner[onward], first[onward], at[onward]
        self.scan.broken_deposits += len(at)
        self.scan.sums["deposited"] += deposited
        self.scan.filled[:, len(self.form.levels), 0] += deposited


def _zero_pages(prog: Program, form: PageTableFormat) -> tuple[Any, Any]:
    """The physical addresses of the shared zero page and of the huge zero page, if there is one."""
    found = []
    # zero_page_pfn since v7.0; huge_zero_pfn is ~0 as long as there is no huge zero page.
    for names in (("zero_page_pfn", "zero_pfn"), ("huge_zero_pfn",)):
        pfns = []
        for name in names:
            try:
                pfns.append(prog.variable(name).value_())
                break
            except (LookupError, FaultError):
                continue
        valid = [pfn << form.page_shift for pfn in pfns if pfn < 1 << 52]
        found.append(np.array(valid, np.uint64))
    return found[0], found[1]


def _cut(areas: VmAreas, owners: Iterable[int], form: PageTableFormat) -> Regions:
    """
    Cut the address spaces of some processes into regions.

    A region's PTE tables are its own: it is cut only where no table reaches across.
    """
    table = np.uint64(form.levels[-2].shift)
    firsts: list[NDArray[np.int64]] = []
    for owner in sorted(owners):
        here = slice(*np.searchsorted(areas.owners, [owner, owner + 1]).tolist())
        starts, ends = areas.starts[here], areas.ends[here]
        if not len(starts):
            continue
        gaps = starts[1:] - ends[:-1]
        apart = np.flatnonzero(starts[1:] >> table > (ends[:-1] - np.uint64(1)) >> table)
        largest = apart[np.argsort(-gaps[apart].astype(np.float64), kind="stable")]
        cuts = np.sort(largest[: REGIONS - 1]) + 1
        firsts.append(np.concatenate([[0], cuts]) + here.start)
    first = np.concatenate(firsts) if firsts else np.zeros(0, np.int64)
    at = np.searchsorted(first, np.arange(len(areas)), side="right") - 1
    # VMAs of other processes lie between: they belong to none.
    wanted = np.isin(areas.owners, list(owners))
    at = at[wanted]
    size = (areas.ends - areas.starts).astype(np.int64)[wanted]
    count = len(first)
    last = np.zeros(count, np.int64)
    last[at] = np.flatnonzero(wanted)
    mapped = np.zeros(count, np.int64)
    np.add.at(mapped, at, size)
    return Regions(
        areas.owners[first],
        areas.starts[first],
        areas.ends[last],
        np.bincount(at, minlength=count),
        mapped,
        np.zeros((count, len(REGION_KINDS)), np.int64),
        np.zeros(count, np.int64),
    )


def page_tables(scan: PageTableScan) -> list[PageTables]:
    """The page tables of every process, the most first."""
    rows = []
    levels = {level.name: at for at, level in enumerate(scan.form.levels)}
    page_shift = scan.form.page_shift
    huge_shift = scan.form.levels[-2].shift
    for at in _by_size(scan.spaces):
        process = scan.spaces.processes[at]
        kinds = scan.kinds[at]
        sums = {name: int(values[at]) for name, values in scan.sums.items()}
        charged = int(scan.spaces.columns["pgtables_bytes"][at])
        pte, pmd, pud = (int(scan.tables[at, levels[name]]) for name in ("pte", "pmd", "pud"))
        counted = pte + pmd + pud + sums["deposited"]
        rows.append(
            PageTables(
                pid=process.pid,
                comm=process.comm,
                pgtables_bytes=charged,
                resident_bytes=(int(kinds[PAGE]) << page_shift) + (sums["huge"] << huge_shift),
                hugetlb_bytes=sums["hugetlb_bytes"],
                pte_tables=pte,
                pmd_tables=pmd,
                pud_tables=pud,
                deposited_pte_tables=sums["deposited"],
                empty_pte_tables=sums["empty"],
                used_ptes=int(kinds.sum()),
                present_ptes=int(kinds[[PAGE, ZERO, SPECIAL]].sum()),
                zero_ptes=int(kinds[ZERO]),
                swap_ptes=int(kinds[SWAP]),
                huge_pmds=sums["huge"],
                huge_zero_pmds=sums["huge_zero"],
                exit_pte_slots=sums["exit_slots"],
                unaccounted_tables=(charged >> page_shift) - counted,
            )
        )
    return rows


def page_table_details(scan: PageTableScan) -> list[PageTableDetails]:
    """What else is in the page tables of every process, in the same order."""
    rows = []
    p4d = next((at for at, level in enumerate(scan.form.levels) if level.name == "p4d"), None)
    for at in _by_size(scan.spaces):
        process = scan.spaces.processes[at]
        kinds = scan.kinds[at].tolist()
        sums = {name: int(values[at]) for name, values in scan.sums.items()}
        rows.append(
            PageTableDetails(
                pid=process.pid,
                comm=process.comm,
                processes=process.processes,
                threads=process.threads,
                vmas=sums["vmas"],
                mapped_bytes=sums["mapped"],
                p4d_tables=0 if p4d is None else int(scan.tables[at, p4d]),
                shared_pmd_tables=sums["shared_pmds"],
                special_ptes=kinds[SPECIAL],
                migration_ptes=kinds[MIGRATION],
                device_ptes=kinds[DEVICE],
                marker_ptes=kinds[MARKER],
                poisoned_ptes=kinds[POISONED],
                other_huge=sums["other_huge"],
                migration_pmds=sums["migration_pmds"],
                poisoned_pmds=sums["poisoned_pmds"],
                reaped_pte_slots=sums["reaped_slots"],
                bad_entries=sums["bad"] + kinds[OTHER],
            )
        )
    return rows


def page_table_occupancy(scan: PageTableScan) -> list[PageTableOccupancy]:
    """How full tables are: all of them, and those of the processes with the most."""
    rows = []
    names = [*(level.name for level in scan.form.levels), "deposited"]
    parts: list[tuple[int | None, Any, Any]] = [
        (None, scan.filled.sum(axis=0), scan.filled_entries.sum(axis=0))
    ]
    parts += [
        (scan.spaces.processes[at].pid, scan.filled[at], scan.filled_entries[at])
        for at in scan.detailed()
    ]
    for pid, tables, entries in parts:
        for level, step in zip(*(axis.tolist() for axis in np.nonzero(tables)), strict=True):
            least = 1 << step - 1 if step else 0
            rows.append(
                PageTableOccupancy(
                    pid=pid,
                    level=names[level],
                    least=least,
                    most=min(max(2 * least - 1, 0), scan.form.slots),
                    tables=int(tables[level, step]),
                    entries=int(entries[level, step]),
                )
            )
    return rows


def page_table_regions(scan: PageTableScan) -> list[PageTableRegion]:
    """The address spaces of the processes with the most tables, and what is mapped how."""
    regions = scan.regions
    rows = []
    by_process: dict[int, list[int]] = {}
    for at, owner in enumerate(regions.owners.tolist()):
        by_process.setdefault(owner, []).append(at)
    for owner in scan.detailed():
        for at in by_process.get(owner, []):
            held = dict(zip(REGION_KINDS, regions.bytes[at].tolist(), strict=True))
            rows.append(
                PageTableRegion(
                    pid=scan.spaces.processes[owner].pid,
                    start=f"{int(regions.starts[at]):#x}",
                    end=f"{int(regions.ends[at]):#x}",
                    vmas=int(regions.vmas[at]),
                    mapped_bytes=int(regions.mapped[at]),
                    pte_tables=int(regions.pte_tables[at]),
                    **{f"{kind}_bytes": value for kind, value in held.items()},
                )
            )
    return rows


# Lines of /proc/PID/status (fs/proc/task_mmu.c, task_mem(); fs/proc/array.c) that say the same.
STATUS = {
    "VmPTE": "pgtables_bytes",
    "VmRSS": "resident_bytes",
    "HugetlbPages": "hugetlb_bytes",
}


def read_status(text: str) -> PageTables | None:
    """
    What /proc/PID/status says of a process's page tables: how large they are, not what is in them.

    Its VmRSS may lag a little behind (since v6.2 by what each CPU has not folded in). Processes
    that share an address space look like those that do not.

    :return: None for a kernel thread, and for a process that has exited.
    :raises ValueError: the text is not that of such a file, or it is cut short.
    """
    lines = whole_lines(text, "status")
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    if "Pid" not in fields or "Name" not in fields:
        raise ValueError("status is damaged: it has no Name or no Pid")
    if "VmPTE" not in fields:
        return None
    values: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(PageTables))
    values["pid"] = printed_number(fields.get("Tgid", fields["Pid"]), "status")
    values["comm"] = fields["Name"].replace("\\n", "\n").replace("\\\\", "\\")
    for name, column_name in STATUS.items():
        if name in fields:
            kilobytes = fields[name].strip().removesuffix(" kB")
            values[column_name] = row_number(printed_number(kilobytes, "status") << 10, "status")
    return PageTables(**values)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_tables")
