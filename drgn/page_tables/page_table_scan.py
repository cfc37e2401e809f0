# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The scan of the page tables of every process, from ``mm.pgd`` down: what is in their entries, added
up by process.

All entries of all tables are read and classified in numpy, 200,000 tables a second; see
``page_table_entries``. Of the processes with the most tables, their regions are kept too (see
``regions``).

Cannot know: tables of kernel threads' borrowed address spaces, of address spaces that no task has
any more, and the kernel's own.
"""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from drgn import FaultError, Program
from numpy.typing import NDArray

from mmscope.drgn.free.device_ranges import DeviceMemory
from mmscope.drgn.page_tables.mapped_pages import MappedPages
from mmscope.drgn.page_tables.page_table_entries import (
    MAX_ROOTS,
    TableChunk,
    Walk,
    new_walk,
    process_roots,
    walk_page_tables,
)
from mmscope.drgn.page_tables.page_table_formats import PageTableFormat, page_table_format
from mmscope.drgn.page_tables.regions import REGION_KINDS, REGION_OF_KIND, cut_regions
from mmscope.drgn.page_tables.scan_result import (
    BINS,
    DETAILED,
    SUMS,
    Counted,
    PageTableScan,
    add_counted,
    blank,
    by_size,
    counted,
    without,
)
from mmscope.drgn.page_tables.swap_types import (
    HUGETLB,
    KINDS,
    MIGRATION,
    NONE,
    OTHER,
    PAGE,
    POISONED,
    SWAP,
    absent_kinds,
    entry_kinds,
    swap_kinds,
)
from mmscope.drgn.page_tables.table_descriptors import table_descriptors
from mmscope.drgn.page_tables.vma_lookup import VmaLookup
from mmscope.drgn.processes.address_spaces import (
    AddressSpaces,
    address_spaces,
    kept_address_spaces,
)
from mmscope.drgn.processes.vm_areas import read_vm_areas
from mmscope.drgn.reading.kernel_arrays import Gaps, distinct
from mmscope.drgn.reading.mem_sections import memory_pages
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.workers.workers import SHARES_A_JOB, Died, NoProcessError, in_workers

# Tables of processes that are walked together: a sixteenth of a second's.
PART_TABLES = 1 << 14


def scan_page_tables(
    prog: Program,
    progress: Callable[[int, int], None] | None = None,
    *,
    jobs: int = 1,
    shares: bool = False,
    found: tuple[AddressSpaces, Gaps] | None = None,
) -> PageTableScan:
    """
    Read the page tables of every process.

    :param jobs: how many processes may share the walk.
    :param shares: look at the struct page of each mapped page too.
    :param found: the address spaces, and what could not be read of them.
    :param progress: called with (pages of tables done, pages of tables in all).
    :raises NotImplementedError: of an architecture that is not known here.
    :raises LookupError: the kernel's layout is unknown.
    """
    form = page_table_format(prog)
    gaps = Gaps()
    spaces, gaps = found or (address_spaces(prog, gaps), gaps)
    count = len(spaces)
    areas = read_vm_areas(prog, spaces.columns["tree"], gaps)
    levels = len(form.levels)
    largest = by_size(spaces)[:DETAILED]
    filled = len(largest) + 1, levels + 1, BINS
    scan = PageTableScan(
        form=form,
        spaces=spaces,
        largest=largest,
        kinds=np.zeros((count, KINDS), np.int64),
        tables=np.zeros((count, levels), np.int64),
        sums={name: np.zeros(count, np.int64) for name in SUMS},
        filled=np.zeros(filled, np.int64),
        filled_entries=np.zeros(filled, np.int64),
        regions=cut_regions(areas, largest, form),
        gaps=gaps,
        damaged_vmas=areas.damaged,
        mapped=MappedPages(prog, count) if shares else None,
    )
    scan.sums["vmas"] += np.bincount(areas.owners, minlength=count)
    np.add.at(scan.sums["mapped"], areas.owners, (areas.ends - areas.starts).astype(np.int64))
    return _walk_all(prog, scan, VmaLookup(areas, form.page_shift), jobs, progress)


def scan_of(memory: Memory, *, shares: bool = False) -> PageTableScan:
    """The same of the address spaces that all sections of a dump share."""
    gaps = Gaps()
    spaces = kept_address_spaces(memory, gaps)
    return scan_page_tables(
        memory.prog,
        memory.progress,
        jobs=memory.jobs,
        shares=shares,
        found=(spaces, gaps),
    )


def _walk_all(
    prog: Program,
    scan: PageTableScan,
    lookup: VmaLookup,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> PageTableScan:
    """Add up what is in the tables, by several processes if there are many tables."""
    form, spaces = scan.form, scan.spaces
    roots = process_roots(prog, spaces.columns["pgd"])
    charged, limits = _charged(prog, scan)
    total, done = int(charged.sum()), 0

    def tell(tables: int) -> None:
        nonlocal done
        done += tables
        if progress is not None:
            progress(min(done, total), total)

    def walk_part(into: PageTableScan, part: slice, tell: Callable[[int], None]) -> None:
        reader = _Reader(prog, into, lookup)
        walk = new_walk(form, part.stop - part.start)
        walk.gaps = into.gaps
        for chunk in walk_page_tables(prog, form, roots[part], walk, max_tables=limits[part]):
            reader.take(chunk, chunk.roots.astype(np.int64) + part.start)
            tell(len(chunk))
        _take_walk(into, walk, part)

    def work(parts: list[slice]) -> Counted:
        own = blank(scan, scan.mapped and MappedPages(prog, len(spaces)))
        for part in parts:
            walk_part(own, part, lambda tables: None)
        return counted(own, _together(parts))

    parts = _parts(charged)
    if jobs > 1 and len(parts) > 1:
        shares = [
            list(each) for each in np.array_split(np.array(parts, object), SHARES_A_JOB * jobs)
        ]
        shares = list(filter(None, shares))
        lost = np.zeros(len(spaces), np.bool_)
        with contextlib.suppress(NoProcessError):
            for share, result in zip(shares, in_workers(jobs, shares, work), strict=True):
                part = _together(share)
                if isinstance(result, Died):
                    lost[part] = True
                    scan.gaps.died.append(result.how)
                else:
                    add_counted(scan, part, result)
                tell(int(charged[part].sum()))
            return without(scan, lost) if lost.any() else scan
    for part in parts:
        walk_part(scan, part, tell)
    return scan


def _together(parts: list[slice]) -> slice:
    """Neighbours as one."""
    return slice(parts[0].start, parts[-1].stop)


def _charged(prog: Program, scan: PageTableScan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tables that each process is charged for, and how many may come at most."""
    # A process has at most the tables that it is charged for, and P4Ds, and what a live kernel
    # adds while it is read. Where more come, something is not a page table.
    charged = scan.spaces.columns["pgtables_bytes"].astype(np.int64) >> scan.form.page_shift
    # Nor more than there is memory: a larger charge is damage.
    memory = memory_pages(prog)
    absurd = charged > memory
    scan.absurd_charges = int(absurd.sum())
    charged = np.where(absurd, memory, np.maximum(charged, 0))
    return charged, np.where(absurd, memory, 2 * charged) + 1024


def _parts(charged: NDArray[np.int64]) -> list[slice]:
    """Batches of processes; independent of the number of workers."""
    tables = np.cumsum(np.minimum(charged, PART_TABLES) + 1)
    edges = [0]
    while edges[-1] < len(tables):
        begin = edges[-1]
        before = tables[begin - 1] if begin else 0
        end = int(np.searchsorted(tables, before + PART_TABLES, side="right"))
        edges.append(min(max(end, begin + 1), begin + MAX_ROOTS))
    return [slice(*edge) for edge in itertools.pairwise(edges)]


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


class _Reader:
    """Takes the chunks of a walk and adds up what is in them."""

    def __init__(self, prog: Program, scan: PageTableScan, lookup: VmaLookup) -> None:
        self.prog, self.scan, self.form, self.lookup = prog, scan, scan.form, lookup
        self.kinds = swap_kinds(prog)
        self.zero, self.huge_zero = _zero_pages(prog, scan.form)
        self.descriptors = table_descriptors(prog)
        self.devices = DeviceMemory(prog)
        # Where the occupancy of each process is kept.
        self.place = np.full(len(scan.spaces), len(scan.filled) - 1, np.int64)
        self.place[scan.largest] = np.arange(len(scan.filled) - 1)

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
        bins = self.place[owners] * BINS + np.frexp(used.astype(np.float64))[1]
        kept = self.scan.filled[:, level], self.scan.filled_entries[:, level]
        for sums, weights in zip(kept, (None, used), strict=True):
            found = np.bincount(bins, weights, sums.size)
            sums += found.astype(np.int64).reshape(sums.shape)

    def _take_ptes(self, chunk: TableChunk, owners: NDArray[np.int64]) -> NDArray[np.int64]:
        form, scan, count = self.form, self.scan, len(chunk)
        flat, some = chunk.entries.ravel(), chunk.places
        kinds = entry_kinds(form, self.kinds, self.zero, flat[some])
        rows = some // form.slots
        self._mark_hugetlb(chunk, owners, some, kinds)
        if scan.mapped is not None:
            at, slots = np.divmod(some[kinds == PAGE], form.slots)
            addresses = chunk.slot_addresses(form.page_shift, at, slots)
            physical = form.physical(chunk.entries[at, slots], form.last)
            self._share(owners[at], physical, addresses, 1)
            swapped = some[kinds == SWAP]
            scan.mapped.take_swap(owners[swapped // form.slots], *form.swap(flat[swapped]))
        # What each table has of each kind.
        found = np.bincount(rows * KINDS + kinds, minlength=count * KINDS).reshape(count, KINDS)
        found[:, NONE] = 0
        used: NDArray[np.int64] = found.sum(axis=1)
        self._add("empty", owners[used == 0])
        tables, kind = np.nonzero(found)
        np.add.at(scan.kinds.ravel(), owners[tables] * KINDS + kind, found[tables, kind])
        first = self.lookup.key(owners, chunk.addresses)
        slots = self.lookup.pages_between(first, first + np.uint64(form.slots))
        for name, each in zip(("exit_slots", "reaped_slots"), slots, strict=True):
            self._add(name, owners, each)
        self._regions_of_ptes(chunk, owners, found)
        return used

    def _mark_hugetlb(
        self,
        chunk: TableChunk,
        owners: NDArray[np.int64],
        some: NDArray[np.int64],
        kinds: NDArray[np.uint8],
    ) -> None:
        """
        Tell hugetlb's pages from others: on arm64 those of some sizes (64 KiB, with pages of
        16 KiB 2 MiB) are several contiguous entries of the last level.
        """
        form = self.form
        if not form.contiguous or not self.lookup.hugetlb.any():
            return
        flat = chunk.entries.ravel()[some]
        bound = np.flatnonzero((kinds == PAGE) & ((flat & np.uint64(form.contiguous)) != 0))
        rows, slots = np.divmod(some[bound], form.slots)
        addresses = chunk.slot_addresses(form.page_shift, rows, slots)
        area = self.lookup.find(self.lookup.key(owners[rows], addresses))
        kinds[bound[self.lookup.hugetlb[area]]] = HUGETLB

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
        entries = chunk.entries.ravel()[chunk.places]
        some = ~form.is_none(entries)
        rows = chunk.places // form.slots
        used: NDArray[np.int64] = np.bincount(rows[some], minlength=len(chunk))
        some &= ~form.is_table(entries, level)
        if not some.any():
            return used
        rows, slots, entries = rows[some], chunk.places[some] % form.slots, entries[some]
        leaf = form.is_leaf(entries, level)
        absent = rows[~leaf]
        if len(absent):
            self._absent(level, owners[absent], entries[~leaf])
        rows, slots, entries = rows[leaf], slots[leaf], entries[leaf]
        if not len(rows):
            if level == form.last - 1 and len(absent):
                self._deposits(chunk, owners, distinct(absent))
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
        device = self.devices.has(physical)
        # No transparent huge page is larger than a PMD maps.
        larger = level != form.last - 1
        uncounted |= ~hugetlb & ~zero & np.where(device, not self.devices.counted, larger)
        huge = ~hugetlb & ~zero & ~uncounted
        self._add("huge_bytes", owner[huge], 1 << shift)
        self._add("huge_puds" if larger else "huge", owner[huge])
        # smaps and what adds it up take a PUD away (split_huge_pud()) before they could count it.
        if not larger:
            pages = 1 << (shift - form.page_shift)
            self._share(owner[huge], physical[huge], addresses[huge], pages)
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
            self._deposits(chunk, owners, distinct(np.concatenate([rows[~hugetlb], absent])))
            self._shared(chunk, owners, distinct(rows[hugetlb]))
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

    def _add(self, name: str, owners: NDArray[np.int64], each: NDArray[np.int64] | int = 1) -> None:
        np.add.at(self.scan.sums[name], owners, each)

    def _share(
        self,
        owners: NDArray[np.int64],
        physical: NDArray[np.uint64],
        addresses: NDArray[np.uint64],
        pages: int,
    ) -> None:
        """Mapped pages, of *pages* base pages each."""
        if (mapped := self.scan.mapped) is None or not len(owners):
            return
        pfns = physical >> np.uint64(self.form.page_shift)
        locked = self.lookup.is_locked(owners, addresses)
        if pages > 1:
            mapped.take_huge(owners, pfns, locked, pages)
        else:
            mapped.take(owners, pfns, locked)

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
        # A table has no more huge PMDs than slots.
        for _ in range(self.form.slots + 1):
            if not len(at):
                break
            self._add("deposited", owner)
            np.add.at(self.scan.filled[:, len(self.form.levels), 0], self.place[owner], 1)
            offset = np.uint64(self.descriptors.list_offset)
            links, read = read_scattered(
                self.prog, at - offset, self.descriptors.links, self.scan.gaps
            )
            at = links["next"]
            self.scan.broken_deposits += int((~read).sum())
            onward = read & (at != first)
            owner, first, at = owner[onward], first[onward], at[onward]
        self.scan.broken_deposits += len(at)


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


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_tables")
