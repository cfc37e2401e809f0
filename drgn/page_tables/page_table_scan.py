# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The scan of the page tables of every process, from ``mm.pgd`` down: what is in their entries, added
up by process.

All entries of all tables are read and classified in numpy, 200,000 tables a second; see
``page_table_entries``. Of the processes with the most tables, the occupancy is kept apart, and what
their regions hold: neighbouring VMAs, cut at the largest gaps between them. Several workers may
share the processes among them. Costs 300 bytes of memory for each process.

Cannot know: tables of kernel threads' borrowed address spaces, of address spaces that no task has
any more, and the kernel's own. Processes whose worker was killed are left out.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import FaultError, Program, sizeof
from drgn.helpers.linux.mm import pfn_to_page
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
from mmscope.drgn.page_tables.swap_types import (
    HUGETLB,
    KINDS,
    MIGRATION,
    NONE,
    OTHER,
    PAGE,
    POISONED,
    SWAP,
    ZERO,
    absent_kinds,
    entry_kinds,
    swap_kinds,
)
from mmscope.drgn.page_tables.vma_lookup import VmaLookup
from mmscope.drgn.processes.address_spaces import AddressSpaces, address_spaces, kept_address_spaces
from mmscope.drgn.processes.vm_areas import (
    VM_EXEC,
    VM_GROWSDOWN,
    VM_LOCKED,
    VM_SHARED,
    VM_WRITE,
    VmAreas,
    read_vm_areas,
)
from mmscope.drgn.reading.kernel_arrays import (
    Bools,
    Gaps,
    S64s,
    U8s,
    U64s,
    distinct,
    member_path,
    struct_dtype,
)
from mmscope.drgn.reading.mem_sections import memory_pages
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.symbols import has_symbol
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.tables.display import plural
from mmscope.drgn.workers.workers import KILLED, SHARES_A_JOB, NotSharedError, in_workers

# Tables of processes that are walked together: a sixteenth of a second's.
PART_TABLES = 1 << 14
# Of how many processes the occupancy and the regions are kept, those with the most tables.
DETAILED = 20
MOST_TASKS = 1 << 22  # PID_MAX_LIMIT
MOST_OTHERS = 16  # address spaces that a driver holds
# Entries in use in a table: none, 1, 2-3, 4-7, … 256-511, all 512; and up to the 8,192 of a page of
# 64 KiB.
BINS = 15
# Into how many regions an address space is cut at most, at its largest gaps.
REGIONS = 24
REGION = np.dtype(
    [("owner", "<i8"), ("start", "<u8"), ("end", "<u8"), ("vmas", "<i8"), ("mapped", "<i8")]
)
REGION_KINDS = ("small", "huge", "hugetlb", "zero", "huge_zero", "swap", "other")
# Of the kinds of PTEs, where they go.
REGION_OF_KIND = {PAGE: "small", ZERO: "zero", SWAP: "swap", HUGETLB: "hugetlb"}
# What is added up for each process, beside its tables by level and its PTEs by kind.
SUMS = (
    *("deposited", "shared_pmds", "empty", "vmas", "mapped", "locked", "code", "data"),
    *("exit_slots", "reaped_slots", "bad"),
    *("huge", "huge_bytes", "huge_puds", "huge_zero", "other_huge", "hugetlb_bytes"),
    *("migration_pmds", "poisoned_pmds", "swap_pmds"),
)
# What a worker counted: by process, of all together, numbers, tables of hugetlb, unreadable bytes.
Counted = tuple[dict[str, S64s], dict[str, S64s], Counter[str], Counter[tuple[int, int]], list[int]]


@dataclass
class PageTableScan:
    """
    Contents of the page tables of all processes.

    :ivar largest: the processes with the most tables.
    :ivar sums: by process: SUMS, "tables" [process, level] and "kinds" [process, kind of PTE].
    :ivar totals: "filled" [one of largest, or all others together; level or, after them,
        deposited; bin], the entries in use in them, and bytes and PTE tables of each region.
    :ivar numbers: unreadable_tables, repeated_tables, dropped_tables, broken_deposits.
    :ivar absurd_charges: processes with more page tables than there is memory, by their count.
    :ivar odd_charges: with a part of a table.
    :ivar mapped: who shares what is mapped, if that was asked for.
    :ivar hugetlb_tables: of PMD tables with hugetlb pages, (physical address, users beside the
        first by its own word) to the processes where it was found.
    :ivar lost: by process, whether its worker was killed: it is to be left out.
    """

    form: PageTableFormat
    spaces: AddressSpaces
    largest: list[int]
    regions: NDArray[np.void]
    sums: dict[str, S64s]
    totals: dict[str, S64s]
    lost: Bools
    gaps: Gaps
    damaged_vmas: int
    numbers: Counter[str] = field(default_factory=Counter)
    hugetlb_tables: Counter[tuple[int, int]] = field(default_factory=Counter)
    absurd_charges: int = 0
    odd_charges: int = 0
    mapped: MappedPages | None = None

    def all_gaps(self) -> list[Gaps]:
        return [self.gaps, *([self.mapped.gaps] if self.mapped is not None else [])]

    def clear(self) -> None:
        """Begin with nothing counted, in a worker."""
        for arrays in (self.sums, self.totals):
            arrays.update({name: np.zeros_like(values) for name, values in arrays.items()})
        self.numbers.clear()
        self.hugetlb_tables.clear()
        for gaps in self.all_gaps():
            gaps.bytes = 0

    def counted(self, part: slice) -> Counted:
        """Counts of a worker, of some processes."""
        sums = {name: values[part] for name, values in self.sums.items()}
        unread = [gaps.bytes for gaps in self.all_gaps()]
        return sums, self.totals, self.numbers, self.hugetlb_tables, unread

    def add(self, part: slice, counted: Counted) -> None:
        """Add what a worker counted."""
        sums, totals, numbers, hugetlb_tables, unread = counted
        for name, values in sums.items():
            self.sums[name][part] += values
        for name, values in totals.items():
            self.totals[name] += values
        self.numbers.update(numbers)
        self.hugetlb_tables.update(hugetlb_tables)
        for gaps, size in zip(self.all_gaps(), unread, strict=True):
            gaps.bytes += size


def users_apart(scan: PageTableScan) -> int:
    """
    Number of PMD tables with hugetlb pages whose users are others than those that were found.

    Two mappings of one process may share a table, which is found once there: such are in
    numbers, shared_again.
    """
    if scan.lost.any() or scan.numbers["unreadable_tables"]:
        return 0
    again = scan.numbers["shared_again"]
    return sum(
        not users - 1 <= others <= users - 1 + again
        for (_, others), users in scan.hugetlb_tables.items()
    )


def words_of_lost(scan: PageTableScan) -> list[str]:
    """Words about processes that are left out."""
    if not scan.lost.any():
        return []
    missing = plural(int(scan.lost.sum()), "process is", "processes are")
    return [f"{missing} missing: who read their page tables {'; '.join(scan.gaps.died)}"]


def by_size(spaces: AddressSpaces) -> list[int]:
    """All processes, those with the most tables first."""
    pids = np.array([process.pid for process in spaces.processes], np.int64)
    charged = spaces.columns["pgtables_bytes"].astype(np.int64)
    order: list[int] = np.lexsort((pids, -charged)).tolist()
    return order


def cut_regions(areas: VmAreas, owners: Iterable[int], form: PageTableFormat) -> NDArray[np.void]:
    """
    Cut the address spaces of some processes into regions.

    A region's PTE tables are its own: it is cut only where no table reaches across.
    """
    table = np.uint64(form.above_ptes.shift)
    firsts = [np.zeros(0, np.int64)]
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
    first = np.concatenate(firsts)
    at = np.searchsorted(first, np.arange(len(areas)), side="right") - 1
    # VMAs of other processes lie between: they belong to none.
    wanted = np.flatnonzero(np.isin(areas.owners, list(owners)))
    at = at[wanted]
    regions = np.zeros(len(first), REGION)
    regions["owner"], regions["start"] = areas.owners[first], areas.starts[first]
    regions["end"][at] = areas.ends[wanted]  # ascending: the last to be written is the last
    regions["vmas"] = np.bincount(at, minlength=len(first))
    np.add.at(regions["mapped"], at, (areas.ends - areas.starts).astype(np.int64)[wanted])
    return regions


def kinds_of(flags: U64s) -> dict[str, Bools]:
    """
    VMAs that are locked, those of ``mm.exec_vm`` (code), and those of ``data_vm`` or ``stack_vm``
    (data): ``vm_stat_account()``, the same from 5.10 to 7.3.
    """
    write, shared = (flags & np.uint64(VM_WRITE)) != 0, (flags & np.uint64(VM_SHARED)) != 0
    stack = (flags & np.uint64(VM_GROWSDOWN)) != 0
    return {
        "locked": (flags & np.uint64(VM_LOCKED)) != 0,
        "code": ((flags & np.uint64(VM_EXEC)) != 0) & ~write & ~stack,
        "data": stack | (write & ~shared),
    }


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
    regions = cut_regions(areas, largest, form)
    shapes: dict[str, tuple[int, ...]] = {
        "filled": (len(largest) + 1, levels + 1, BINS),
        "filled_entries": (len(largest) + 1, levels + 1, BINS),
        "region_bytes": (len(regions), len(REGION_KINDS)),
        "region_tables": (len(regions),),
    }
    scan = PageTableScan(
        form=form,
        spaces=spaces,
        largest=largest,
        regions=regions,
        sums={name: np.zeros(count, np.int64) for name in SUMS},
        totals={name: np.zeros(shape, np.int64) for name, shape in shapes.items()},
        lost=np.zeros(count, np.bool_),
        gaps=gaps,
        damaged_vmas=areas.damaged,
    )
    scan.sums["tables"] = np.zeros((count, levels), np.int64)
    scan.sums["kinds"] = np.zeros((count, KINDS), np.int64)
    if shares:
        scan.mapped = MappedPages(prog, count, scan.sums, scan.numbers)
    scan.sums["vmas"] += np.bincount(areas.owners, minlength=count)
    sizes = (areas.ends - areas.starts).astype(np.int64)
    np.add.at(scan.sums["mapped"], areas.owners, sizes)
    for name, here in kinds_of(areas.flags).items():
        np.add.at(scan.sums[name], areas.owners[here], sizes[here])
    _walk_all(prog, scan, VmaLookup(areas, form.page_shift), jobs, progress)
    return scan


def scan_of(memory: Memory, *, shares: bool = False) -> PageTableScan:
    """The same of the address spaces that all sections of a dump share."""
    gaps = Gaps()
    found = kept_address_spaces(memory, gaps), gaps
    return scan_page_tables(
        memory.prog, memory.progress, jobs=memory.jobs, shares=shares, found=found
    )


def _walk_all(
    prog: Program,
    scan: PageTableScan,
    lookup: VmaLookup,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Add up what is in the tables, by several workers if there are many tables."""
    form, spaces = scan.form, scan.spaces
    roots = process_roots(prog, spaces.columns["pgd"])
    charged, limits = _charged(prog, scan)
    total, done = int(charged.sum()), 0
    if scan.mapped is not None:
        scan.mapped.entries = total * form.slots(form.last)
        # Address spaces; of those that begin or end there is a task as well.
        tasks = int(prog["nr_threads"].value_()) if "nr_threads" in prog else MOST_TASKS
        scan.mapped.most_anon = max(2 * tasks, len(spaces)) + MOST_OTHERS
    reader = _Reader(prog, scan, lookup)

    def report(tables: int) -> None:
        nonlocal done
        done += tables
        if progress is not None:
            progress(min(done, total), total)

    def walk_part(part: slice) -> None:
        walk = new_walk(form, part.stop - part.start)
        walk.gaps = scan.gaps
        for chunk in walk_page_tables(prog, form, roots[part], walk, max_tables=limits[part]):
            reader.take(chunk, chunk.roots.astype(np.int64) + part.start)
            report(len(chunk))
        _add_walk(scan, walk, part)

    def work(parts: list[slice]) -> Counted:
        nonlocal progress
        progress = None  # the parent's to report
        scan.clear()
        for part in parts:
            walk_part(part)
        return scan.counted(_span(parts))

    parts = _parts(charged)
    if jobs > 1 and len(parts) > 1:
        split = np.array_split(np.array(parts, object), SHARES_A_JOB * jobs)
        shares = [list(share) for share in split if len(share)]
        with contextlib.suppress(NotSharedError):
            for share, result in zip(shares, in_workers(jobs, shares, work), strict=True):
                part = _span(share)
                if result is KILLED:
                    scan.lost[part] = True
                    scan.gaps.died.append("was killed")
                else:
                    scan.add(part, result)
                report(int(charged[part].sum()))
            return
    for part in parts:
        walk_part(part)


def _span(parts: list[slice]) -> slice:
    """One slice of neighbouring ones."""
    return slice(parts[0].start, parts[-1].stop)


def _charged(prog: Program, scan: PageTableScan) -> tuple[S64s, S64s]:
    """The tables that each process is charged for, and how many may come at most."""
    # A process has at most the tables that it is charged for, and P4Ds, and what a live kernel
    # adds while it is read. Where more come, something is not a page table.
    form = scan.form
    table = form.table_bytes(form.last)
    charged = scan.spaces.columns["pgtables_bytes"].astype(np.int64)
    least = min(form.table_bytes(level) for level in range(1, len(form.levels)))
    scan.odd_charges = int(np.count_nonzero(charged % least))
    charged //= table
    # Nor more than there is memory: a larger charge is damage.
    memory = (memory_pages(prog) << form.page_shift) // table
    absurd = charged > memory
    scan.absurd_charges = int(absurd.sum())
    charged = np.where(absurd, memory, np.maximum(charged, 0))
    return charged, np.where(absurd, memory, 2 * charged) + 1024


def _parts(charged: S64s) -> list[slice]:
    """Batches of processes; independent of the number of workers."""
    tables = np.cumsum(np.minimum(charged, PART_TABLES) + 1)
    edges = [0]
    while edges[-1] < len(tables):
        begin = edges[-1]
        before = tables[begin - 1] if begin else 0
        end = int(np.searchsorted(tables, before + PART_TABLES, side="right"))
        edges.append(min(max(end, begin + 1), begin + MAX_ROOTS))
    return [slice(*edge) for edge in itertools.pairwise(edges)]


def _add_walk(scan: PageTableScan, walk: Walk, part: slice) -> None:
    # A table that is pointed to twice is counted twice: by the kernel too.
    scan.sums["tables"][part] += walk.tables + walk.repeated
    scan.sums["bad"][part] += walk.unreadable.sum(axis=1) + walk.dropped
    # hugetlb may share a PMD table between two mappings of one process; nothing else may.
    pmd = scan.form.last - 1
    loops = walk.repeated.copy()
    loops[:, pmd] = 0
    scan.sums["bad"][part] += loops.sum(axis=1)
    scan.numbers["shared_again"] += int(walk.repeated[:, pmd].sum())
    scan.numbers["unreadable_tables"] += int(walk.unreadable.sum())
    scan.numbers["repeated_tables"] += int(loops.sum())
    scan.numbers["dropped_tables"] += int(walk.dropped.sum())


def table_descriptors(
    prog: Program,
) -> tuple[int, int, np.dtype[Any], int, np.dtype[Any]]:
    """
    The descriptors of page tables: the address of page frame 0's, the size of one, their members,
    the count that a table with more than one user has, and the links of deposited tables.

    The series "Split ptdesc from struct page" (v6.6) gave them a structure of their own.
    """
    page = prog.type("struct page")
    try:
        kind = prog.type("struct ptdesc")
    except LookupError:
        kind = page
    # "mm: hugetlb: independent PMD page table shared count" (59d9094df3d7, in v6.13, and in stable
    # kernels) counts the users beside the first; before, it was the page's reference count.
    own_count = "pt_share_count.counter"
    counts = (own_count, "__page_refcount.counter", "_refcount.counter")
    return (
        pfn_to_page(prog, 0).value_(),
        sizeof(page),
        struct_dtype(kind, {"deposited": "pmd_huge_pte", "shared": counts}),
        1 if member_path(kind, counts) == own_count else 2,
        struct_dtype(kind, {"next": ("pt_list.next", "lru.next")}),
    )


class _Reader:
    """Takes the chunks of a walk and adds up what is in them."""

    def __init__(self, prog: Program, scan: PageTableScan, lookup: VmaLookup) -> None:
        self.prog, self.scan, self.form, self.lookup = prog, scan, scan.form, lookup
        self.kinds = swap_kinds(prog)
        # No kernel up to 7.3 leaves a huge page whole when it swaps it out; the function is that of
        # the patches that do (mm/huge_memory.c).
        self.swaps_pmds = has_symbol(prog, "do_huge_pmd_swap_page")
        self.zero, self.huge_zero = _zero_pages(prog, scan.form)
        base, size, self.descriptors, self.shared_from, self.links = table_descriptors(prog)
        if self.form.powerpc:
            self.links = np.dtype([("next", "<u8")])
        self.base, self.size = np.uint64(base), np.uint64(size)
        assert self.links.fields is not None
        self.list_offset = np.uint64(self.links.fields["next"][1])
        self.devices = DeviceMemory(prog)
        # Where the occupancy of each process is kept.
        self.place = np.full(len(scan.spaces), len(scan.largest), np.int64)
        self.place[scan.largest] = np.arange(len(scan.largest))

    def take(self, chunk: TableChunk, owners: S64s) -> None:
        """
        Count a chunk.

        :param owners: the process of each table.
        """
        if chunk.level == self.form.last:
            used = self._take_ptes(chunk, owners)
        else:
            used = self._take_upper(chunk, owners)
        self._fill(chunk.level, owners, used)

    def _fill(self, level: int, owners: S64s, used: S64s) -> None:
        """The occupancy of tables."""
        # 0, 1, 2-3, 4-7, …: the number of bits.
        bins = self.place[owners] * BINS + np.frexp(used.astype(np.float64))[1]
        for name, weights in (("filled", None), ("filled_entries", used)):
            sums = self.scan.totals[name][:, level]
            found = np.bincount(bins, weights, sums.size)
            sums += found.astype(np.int64).reshape(sums.shape)

    def _take_ptes(self, chunk: TableChunk, owners: S64s) -> S64s:
        form, scan, count = self.form, self.scan, len(chunk)
        flat, some = chunk.entries.ravel(), chunk.places
        kinds = entry_kinds(form, self.kinds, self.zero, flat[some])
        rows = some // chunk.slots
        self._mark_hugetlb(chunk, owners, some, kinds)
        if scan.mapped is not None:
            at, slots = np.divmod(some[kinds == PAGE], chunk.slots)
            addresses = chunk.slot_addresses(form.page_shift, at, slots)
            physical = form.physical(chunk.entries[at, slots], form.last)
            self._take_mapped(owners[at], physical, addresses, 1)
            swapped = some[kinds == SWAP]
            scan.mapped.take_swap(owners[swapped // chunk.slots], *form.swap(flat[swapped]))
        # What each table has of each kind.
        found = np.bincount(rows * KINDS + kinds, minlength=count * KINDS).reshape(count, KINDS)
        found[:, NONE] = 0
        used: S64s = found.sum(axis=1)
        self._add("empty", owners[used == 0])
        tables, kind = np.nonzero(found)
        np.add.at(scan.sums["kinds"].ravel(), owners[tables] * KINDS + kind, found[tables, kind])
        first = self.lookup.key(owners, chunk.addresses)
        slots = self.lookup.pages_between(first, first + np.uint64(chunk.slots))
        for name, each in zip(("exit_slots", "reaped_slots"), slots, strict=True):
            self._add(name, owners, each)
        self._regions_of_ptes(chunk, owners, found)
        return used

    def _mark_hugetlb(self, chunk: TableChunk, owners: S64s, some: S64s, kinds: U8s) -> None:
        """
        Mark the pages of hugetlb: on arm64 those of some sizes (64 KiB, with pages of
        16 KiB 2 MiB) are several contiguous entries of the last level.
        """
        form = self.form
        if not form.contiguous or not self.lookup.hugetlb.any():
            return
        flat = chunk.entries.ravel()[some]
        bound = np.flatnonzero((kinds == PAGE) & ((flat & np.uint64(form.contiguous)) != 0))
        rows, slots = np.divmod(some[bound], chunk.slots)
        addresses = chunk.slot_addresses(form.page_shift, rows, slots)
        area = self.lookup.find(self.lookup.key(owners[rows], addresses))
        kinds[bound[self.lookup.hugetlb[area]]] = HUGETLB

    def _regions_of_ptes(self, chunk: TableChunk, owners: S64s, found: S64s) -> None:
        totals = self.scan.totals
        at = self._region(owners, chunk.addresses, chunk.slots << self.form.page_shift)
        inside = np.flatnonzero(at >= 0)
        if not len(inside):
            return
        np.add.at(totals["region_tables"], at[inside], 1)
        for kind in range(1, KINDS):
            place = REGION_KINDS.index(REGION_OF_KIND.get(kind, "other"))
            size = found[inside, kind] << self.form.page_shift
            np.add.at(totals["region_bytes"][:, place], at[inside], size)

    def _region(self, owners: S64s, addresses: U64s, span: int) -> S64s:
        """The region that each stretch of addresses reaches into, or -1."""
        regions = self.scan.regions
        if not len(regions):
            return np.full(len(owners), -1, np.int64)
        keys = self.lookup.key(regions["owner"], regions["start"])
        last = self.lookup.key(owners, addresses + np.uint64(span - 1))
        at = np.searchsorted(keys, last, side="right").astype(np.int64) - 1
        found = regions[at]
        fits = (at >= 0) & (found["owner"] == owners) & (addresses < found["end"])
        return np.where(fits, at, -1)

    def _take_upper(self, chunk: TableChunk, owners: S64s) -> S64s:
        form, scan, level = self.form, self.scan, chunk.level
        entries = chunk.entries.ravel()[chunk.places]
        some = ~form.is_none(entries)
        rows = chunk.places // chunk.slots
        used: S64s = np.bincount(rows[some], minlength=len(chunk))
        some &= ~form.is_table(entries, level)
        if not some.any():
            return used
        rows, slots, entries = rows[some], chunk.places[some] % chunk.slots, entries[some]
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
        self._add("bad", owner[area < 0])  # of no mapping
        physical = form.physical(entries, level)
        zero = ~hugetlb & np.isin(physical, self.huge_zero)
        # No transparent huge page is larger than a PMD maps.
        larger = level != form.last - 1
        uncounted = np.where(self.devices.has(physical), not self.devices.counted, larger)
        uncounted |= form.is_special(entries) | (area < 0) | self.lookup.uncounted[area]
        uncounted &= ~hugetlb & ~zero
        huge = ~hugetlb & ~zero & ~uncounted
        self._add("huge_bytes", owner[huge], 1 << shift)
        self._add("huge_puds" if larger else "huge", owner[huge])
        # smaps and what adds it up take a PUD away (split_huge_pud()) before they could count it.
        if not larger:
            pages = 1 << (shift - form.page_shift)
            self._take_mapped(owner[huge], physical[huge], addresses[huge], pages)
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
            np.add.at(scan.totals["region_bytes"][:, REGION_KINDS.index(name)], here, 1 << shift)
        if level == form.last - 1:
            self._deposits(chunk, owners, distinct(np.concatenate([rows[~hugetlb], absent])))
            self._count_shared(chunk, owners, distinct(rows[hugetlb]))
        return used

    def _absent(self, level: int, owners: S64s, entries: U64s) -> None:
        """Entries of upper levels that neither map nor lead anywhere."""
        if not self.form.levels[level].leaf:
            self._add("bad", owners)
            return
        kinds = absent_kinds(self.form, self.kinds, entries)
        self._add("migration_pmds", owners[kinds == MIGRATION])
        self._add("poisoned_pmds", owners[kinds == POISONED])
        swapped = (kinds == SWAP) & self.swaps_pmds
        self._add("swap_pmds", owners[swapped])
        self._add("bad", owners[((kinds == OTHER) | (kinds == SWAP)) & ~swapped])

    def _add(self, name: str, owners: S64s, each: S64s | int = 1) -> None:
        np.add.at(self.scan.sums[name], owners, each)

    def _take_mapped(self, owners: S64s, physical: U64s, addresses: U64s, pages: int) -> None:
        """Mapped pages, of *pages* base pages each."""
        if (mapped := self.scan.mapped) is None or not len(owners):
            return
        pfns = physical >> np.uint64(self.form.page_shift)
        locked = self.lookup.is_locked(owners, addresses)
        if pages > 1:
            mapped.take_huge(owners, pfns, locked, pages)
        else:
            mapped.take(owners, pfns, locked)

    def _read_descriptors(self, chunk: TableChunk, rows: S64s) -> tuple[Any, Any]:
        frames = chunk.frames[rows] >> np.uint64(self.form.page_shift)
        places = self.base + frames * self.size
        return read_scattered(self.prog, places, self.descriptors, self.scan.gaps)

    def _count_shared(self, chunk: TableChunk, owners: S64s, rows: S64s) -> None:
        """Count the PMD tables with hugetlb pages that several processes use."""
        found, read = self._read_descriptors(chunk, rows)
        self._add("shared_pmds", owners[rows[read & (found["shared"] >= self.shared_from)]])
        others = found["shared"][read].astype(np.int64) - (self.shared_from - 1)
        users = zip(chunk.frames[rows[read]].tolist(), others.tolist(), strict=True)
        self.scan.hugetlb_tables.update(users)

    def _deposits(self, chunk: TableChunk, owners: S64s, rows: S64s) -> None:
        """
        Count the PTE tables that lie deposited with PMD tables.

        ``pmd_huge_pte`` is one of a circle of descriptors; all circles are followed at once, a
        link a round.
        """
        if self.form.powerpc:
            _, firsts = np.unique(chunk.frames[rows] >> self.form.page_shift, return_index=True)
            rows = rows[firsts]
        found, read = self._read_descriptors(chunk, rows)
        first = found["deposited"]
        some = np.flatnonzero(read & (first != 0))
        owner, first = owners[rows[some]], first[some] + self.list_offset
        at = first.copy()
        # A page has no more huge PMDs than room for entries.
        for _ in range((1 << self.form.page_shift) // 8 + 1):
            if not len(at):
                break
            self._add("deposited", owner)
            filled = self.scan.totals["filled"][:, len(self.form.levels), 0]
            np.add.at(filled, self.place[owner], 1)
            places = at - self.list_offset
            links, read = read_scattered(self.prog, places, self.links, self.scan.gaps)
            at = links["next"]
            self.scan.numbers["broken_deposits"] += int((~read).sum())
            onward = read & (at != first)
            owner, first, at = owner[onward], first[onward], at[onward]
        self.scan.numbers["broken_deposits"] += len(at)


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
