# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Ranges of the size of a transparent huge page, and what stands in the way of their being free.

What lies in each was counted along with the ledger (``ledger/thp_ranges.py``). Here the ranges are
added up: by zone, by what it is that cannot be moved out of them, and by who alone spoils them. The
slabs of each cache and the areas of each caller of vmalloc are looked up by where they are. Costs
some milliseconds for a million ranges, and two tenths of a second for what compaction would make.

How many ranges compaction could free at most: those in which nothing is that cannot be moved, but
no more than the free pages of the zone would fill (``compact_zone()`` moves within a zone). What it
makes is less: it takes the zone from its begin on, and fills it from its end. Since v6.9 it may end
at the first large folio that cannot be split, so there are two numbers. A folio needs a free block
as large among those that were taken aside (``compaction_alloc()``), else it is split. One that is
dirty and has buffers is not (``filemap_release_folio()``): ``migrate_pages()`` returns -ENOMEM, and
``compact_zone()`` ends.

Cannot know: what is pinned for a moment only; pages of a device's cache with buffers that a file
system holds, as superblocks are, which compaction leaves; what compaction for an allocation does,
which ends with the first block.
"""

from collections.abc import Iterator

import numpy as np
from drgn import FaultError, Program
from numpy.typing import NDArray

from mmscope.drgn.free.pageblocks import pageblock_types
from mmscope.drgn.free.zones import zone_names
from mmscope.drgn.ledger.ledger_pages import LedgerPages
from mmscope.drgn.ledger.memory_ledger import ledger_pages, settled
from mmscope.drgn.ledger.page_kinds import Kind
from mmscope.drgn.ledger.page_places import find_places
from mmscope.drgn.ledger.thp_ranges import BATCH, FIXED_BITS, STEPS, Way
from mmscope.drgn.owners.slab_caches import SlabScan, slab_scan
from mmscope.drgn.reading.kernel_arrays import Array, Bools, S64s
from mmscope.drgn.reading.symbols import frame_names
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section, not_in_text
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, column
from mmscope.drgn.tables.table import table, tables_of

MAX_SETS, MAX_HOLDERS = 50, 100
OTHERS = "others"


@table("contiguity", "Ranges for huge pages by zone", memory="again", measure="spoiled_ranges")
class Contiguity:
    """The ranges of a zone, by what they could be."""

    node: int = column(key=True, low=-1, help="NUMA node; -1: unknown")
    zone: str = column(holds="kernel", key=True, help="zone name")
    range_bytes: int = column(unit="bytes", help="size of a range: one THP")
    ranges: int = column(help="aligned ranges of THP size, RAM throughout")
    free_ranges: int = column(high="ranges", help="entirely free")
    huge_ranges: int = column(
        high="ranges", help="one compound page or part of one: mostly THP or hugetlb"
    )
    movable_ranges: int = column(
        high="ranges", help="all that is used is movable: compaction can empty them"
    )
    spoiled_ranges: int = column(
        high="ranges", help="with something unmovable: see contiguity_sets"
    )
    cut_ranges: int = column(help="not counted above: part is no RAM, or was not read")
    free_pages: int = column(unit="pages", help="free in all of them")
    possible_ranges: int = column(
        high="ranges",
        help="free after perfect compaction",
    )
    pages_to_move: int = column(unit="pages", help="least that must move for that")
    compacted_ranges: int | None = column(
        high="ranges",
        help="forecast: most free after compact_memory, per-CPU lists as they are; empty: "
        "migratetypes cannot be read",
    )
    compacted_least: int | None = column(
        high="ranges",
        help="forecast: least, as it may end at a large folio that is dirty, held or written "
        "back; empty: as compacted_ranges",
    )


@table(
    "contiguity_sets",
    "What stands in the way of huge pages",
    empty="No range has anything in it that cannot be moved.",
    memory="again",
    measure="ranges",
    lasting=("in_the_way",),
)
class ContiguitySet:
    """Ranges in which the same cannot be moved."""

    in_the_way: str = column(holds="words", key=True, help="classes that cannot be moved")
    classes: int = column(help="how many classes")
    ranges: int = column(help="ranges with these and nothing else in the way")
    fixed_pages: int = column(unit="pages", help="unmovable pages in all of them")
    movable_pages: int = column(unit="pages", help="movable pages beside them")
    free_pages: int = column(unit="pages", help="free between them")
    fewest_pages: int = column(
        unit="pages", high="fixed_pages", help="unmovable pages of the range with fewest"
    )
    example_pfn: int = column(high=MOST_PAGES, help="first page frame of that range")


@table(
    "contiguity_holders",
    "Who alone stands in the way of huge pages",
    empty="No range has anything in it that cannot be moved.",
    memory="again",
    measure="alone_ranges",
    lasting=("what", "holder"),
)
class ContiguityHolder:
    """A holder of unmovable pages, and the ranges that it spoils."""

    what: str = column(holds="words", key=True, help="class of pages, as in contiguity_sets")
    holder: str = column(
        holds="kernel",
        key=True,
        help="slab cache, or vmalloc caller; empty: all of the class",
    )
    ranges: int = column(help="ranges with its pages")
    alone_ranges: int = column(high="ranges", help="ranges in which nothing else is fixed")
    alone_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="size of these: contiguous without it"
    )
    alone_pages: int = column(unit="pages", help="its pages in these")
    pages: int = column(unit="pages", help="its pages anywhere")


WORDS = [way.words for way in Way]


class Ranges:
    """
    All ranges, and what each of them is.

    :param pages: after the pass, and settled.
    """

    def __init__(self, pages: LedgerPages) -> None:
        self.rows, self.pages = pages.ranges.ranges(), pages.ranges.pages.tolist()
        self.order = pages.ranges.order
        self.size = 1 << self.order
        self.zones, self.zones_cut = self.rows["zone"], pages.ranges.cut
        self.fixed = self.rows["ways"] & np.uint32(FIXED_BITS)
        self.free, self.movable = self.rows["free"], self.rows["movable"]
        # Of a page that is counted twice, as may be in damaged memory, less than none.
        self.fixed_pages = self.size - self.free.astype(np.int32) - self.movable
        self.is_free = self.free == self.size
        self.is_huge = self.rows["huge"] & ~self.is_free
        self.spoiled = (self.fixed != 0) & ~self.is_free & ~self.is_huge
        self.can_move = ~(self.is_free | self.is_huge | self.spoiled)

    def after_compaction(self, here: Bools, targets: Bools) -> tuple[int, int]:
        """
        Foretell how many ranges of a zone are free after ``compact_zone()`` (mm/compaction.c) of
        all of it. One scanner takes what can be moved from the zone's begin on, also where
        something else stays; the other looks for free pages from its end down. Where they meet
        compaction ends, since v6.9 also at any large folio that cannot be split.

        :param here: the ranges of the zone; *targets*: of movable pageblocks
            (``suitable_migration_target()``), but those that are one free block stay so.
        :returns: at most and at least, of all places where it may end. A later one may leave less,
            where what moved filled a range that was free and emptied none.
        """
        stepped, passed_by = self.rows["stepped"], self.rows["passed_by"].astype(np.int32)
        room = found_free(stepped, targets & here & (stepped[:, 0] < self.size))[here]
        behind = int(room.sum()) - np.cumsum(room, dtype=np.int64)
        taken = np.where(self.is_huge | self.is_free, 0, self.movable - passed_by)[here]
        before = np.cumsum(taken, dtype=np.int64)
        emptied = self.can_move[here] & (passed_by[here] == 0) & (before <= behind)
        moved = np.maximum.accumulate(np.minimum(before, behind))
        ends = np.append(np.flatnonzero(self.rows["unsplit"][here]), len(room))
        # In front of each place where it may end: ranges emptied, and pages moved.
        emptied_by, moved_by = (np.insert(a, 0, 0)[ends] for a in (np.cumsum(emptied), moved))
        filled = np.sort(behind[self.is_free[here] & (room > 0)])
        left = self.is_free[here].sum() + emptied_by - np.searchsorted(filled, moved_by)
        return int(left.max()), int(left.min())


def found_free(stepped: Array, targets: Bools) -> Array:
    """
    Free pages that ``isolate_freepages()`` takes of each range, from the last down. After a target
    without any, as is one in the midst of a larger free block, or one whose free pages are on
    per-CPU lists, it looks at every second page of the next, then at every fourth, up to every
    32nd, until it comes to a free block. What it steps over is lost for this compaction.

    :param stepped: as in ``RANGE`` (``ledger/thp_ranges.py``).
    """
    at = np.flatnonzero(targets)[::-1]
    has = stepped[at, 0] > 0
    steps = np.arange(len(at), dtype=np.int32)
    steps[1:] -= np.maximum.accumulate(np.where(has, steps, -1))[:-1] + 1
    taken = stepped[at, np.minimum(steps, STEPS - 1, out=steps)]
    # Where it steps over all there is the next is no better off.
    until = 0
    for place in np.flatnonzero(has & (taken == 0)).tolist():
        step, until = int(steps[place]), max(until, place + 1)
        while until < len(at) and not taken[until - 1]:
            step = min(step + 1, STEPS - 1)
            taken[until] = stepped[at[until], step]
            until += 1
    found = np.zeros(len(targets), taken.dtype)
    found[at] = taken
    return found


def by_zone(
    ranges: Ranges, names: dict[int, tuple[int, str]], page: int, targets: Bools | None = None
) -> list[Contiguity]:
    """
    The ranges of each zone.

    :param names: node and name of each zone, by its index.
    :param page: bytes of one.
    :param targets: ranges whose free pages compaction moves pages to, if they are known.
    """
    rows = []
    for zone in np.unique(np.concatenate([ranges.zones, ranges.zones_cut])).tolist():
        here = ranges.zones == zone
        free, moves = ranges.is_free & here, ranges.can_move & here
        free_pages, already = int(ranges.free[here].sum()), int(free.sum())
        possible = min(already + int(moves.sum()), free_pages // ranges.size)
        most, least = (
            ranges.after_compaction(here, targets) if targets is not None else (None, None)
        )
        # The emptiest first; into free pages of the others.
        to_move = np.sort(ranges.movable[moves])[: possible - already]
        rows.append(
            Contiguity(
                *names.get(zone, (-1, "unknown")),
                ranges.size * page,
                int(here.sum()),
                already,
                int((ranges.is_huge & here).sum()),
                int(moves.sum()),
                int((ranges.spoiled & here).sum()),
                int((ranges.zones_cut == zone).sum()),
                free_pages,
                possible,
                int(to_move.sum()),
                most,
                least,
            )
        )
    return rows


def _targets(prog: Program, ranges: Ranges) -> Bools:
    """``suitable_migration_target()``: ranges that begin in a movable pageblock, or one of CMA."""
    types = pageblock_types(prog)
    into = [at for at, name in enumerate(types.names) if name in ("Movable", "CMA")]
    numbers, found = ranges.rows["number"], np.zeros(len(ranges.rows), np.bool_)
    for begin in range(0, len(found), BATCH):
        here = slice(begin, begin + BATCH)
        found[here] = np.isin(types.of(numbers[here].astype(np.int64) << ranges.order), into)
    return found


def by_set(ranges: Ranges) -> list[ContiguitySet]:
    """The spoiled ranges by all that cannot be moved out of them, the most first."""
    at = np.flatnonzero(ranges.spoiled)
    sets, back = np.unique(ranges.fixed[at], return_inverse=True)
    counts = np.bincount(back, minlength=len(sets))
    rows = []
    order = np.argsort(-counts, kind="stable")
    for number, which in enumerate(order.tolist()):
        last = number == MAX_SETS and len(order) > MAX_SETS + 1
        of = at[np.isin(back, order[number:])] if last else at[back == which]
        ways = [way for way in Way if int(sets[which]) >> way & 1]
        fewest = of[np.argmin(ranges.fixed_pages[of])]
        parts = (ranges.fixed_pages, ranges.movable, ranges.free)
        fixed, movable, free = (int(pages[of].sum()) for pages in parts)
        rows.append(
            ContiguitySet(
                in_the_way=OTHERS if last else ", ".join(way.words for way in ways),
                classes=0 if last else len(ways),
                ranges=len(of),
                fixed_pages=fixed,
                movable_pages=movable,
                free_pages=free,
                fewest_pages=int(ranges.fixed_pages[fewest]),
                example_pfn=int(ranges.rows["number"][fewest]) << ranges.order,
            )
        )
        if last:
            break
    return rows


# Of a holder in a range: the range's place, the number of the holder, and its pages.
HELD = np.dtype([("range", "<i8"), ("holder", "<i8"), ("pages", "<i8")])


class Holders:
    """
    Counts of what holders of unmovable pages spoil, taken as they are read.

    :ivar pages: of each holder, anywhere.
    :param ways: of each holder.
    """

    def __init__(self, ranges: Ranges, ways: S64s) -> None:
        self.ranges, self.ways = ranges, ways
        self.pages, self._alone_pages, self._spoiled, self._alone = np.zeros(
            (4, len(ways)), np.int64
        )
        self._last = np.empty(0, HELD)  # of the last range, in which more may be

    def take(self, pfns: S64s, holders: S64s, pages: S64s) -> None:
        """Count pages of holders, in no range before the last of those that were taken."""
        ranges, numbers = self.ranges, pfns >> self.ranges.order
        at = np.searchsorted(ranges.rows["number"], numbers)
        at = np.minimum(at, max(len(ranges.rows) - 1, 0))
        ours = np.flatnonzero((ranges.rows["number"][at] == numbers) & ranges.spoiled[at])
        found = np.empty(len(ours), HELD)
        found["range"], found["holder"], found["pages"] = at[ours], holders[ours], pages[ours]
        self.pages += np.bincount(holders, pages, len(self.ways)).astype(np.int64)
        found = np.concatenate([self._last, found])
        last = found["range"] == found["range"].max(initial=0)
        self._last = found[last]
        self._count(found[~last])

    def _count(self, held: NDArray[np.void]) -> None:
        if not len(held):
            return
        held = held[np.lexsort((held["holder"], held["range"]))]
        begins = np.flatnonzero(
            (np.diff(held["range"], prepend=-1) != 0) | (np.diff(held["holder"], prepend=-1) != 0)
        )
        at, holders = held["range"][begins], held["holder"][begins]
        pages = np.add.reduceat(held["pages"], begins)
        alone = self.ranges.fixed[at] == np.uint32(1) << self.ways[holders].astype(np.uint32)
        alone &= pages == self.ranges.fixed_pages[at]
        self._spoiled += np.bincount(holders, minlength=len(self.ways))
        self._alone += np.bincount(holders[alone], minlength=len(self.ways))
        np.add.at(self._alone_pages, holders[alone], pages[alone])

    def rows(self, names: list[str], page: int) -> Iterator[ContiguityHolder]:
        """Rows of those that have pages in a spoiled range, when all was taken."""
        self._count(self._last)
        for holder in np.flatnonzero(self._spoiled).tolist():
            alone = int(self._alone[holder])
            yield ContiguityHolder(
                WORDS[int(self.ways[holder])],
                names[holder],
                int(self._spoiled[holder]),
                alone,
                alone * self.ranges.size * page,
                int(self._alone_pages[holder]),
                int(self.pages[holder]),
            )


def by_class(ranges: Ranges, page: int) -> Iterator[ContiguityHolder]:
    """Rows of whole classes."""
    for way in Way:
        if way.movable:
            continue
        bit = np.uint32(1 << way)
        its = ((ranges.fixed & bit) != 0) & ranges.spoiled
        only = its & (ranges.fixed == bit)
        if number := int(its.sum()):
            alone = int(only.sum())
            yield ContiguityHolder(
                *(way.words, "", number, alone, alone * ranges.size * page),
                int(ranges.fixed_pages[only].sum()),
                ranges.pages[way],
            )


def of_slabs(ranges: Ranges, scan: SlabScan, page: int) -> Iterator[ContiguityHolder]:
    """Rows of slab caches."""
    reclaimable = np.array([cache.reclaimable for cache in scan.caches], np.bool_)
    found = Holders(ranges, np.where(reclaimable, Way.RECLAIMABLE, Way.SLAB).astype(np.int64))
    for slabs in scan:
        found.take(
            slabs["pfn"].astype(np.int64), slabs["cache"].astype(np.int64), scan.pages_of(slabs)
        )
    yield from found.rows([cache.name for cache in scan.caches], page)


def of_vmalloc(ranges: Ranges, memory: Memory, page: int) -> Iterator[ContiguityHolder]:
    """Rows of callers of vmalloc."""
    places = find_places(memory)
    if places.area_kinds is None:
        return
    entries = places.entries[places.area_kinds[places.entries["area"]] == Kind.VMALLOC]
    # Of a huge mapping each range, of others the one that it is in.
    small = entries[entries["pages"] <= ranges.size]
    callers, back = np.unique(places.areas["caller"][small["area"]], return_inverse=True)
    # A function may call it from several places.
    names, of_caller = np.unique(frame_names(memory.prog, callers), return_inverse=True)
    found = Holders(ranges, np.full(len(names), Way.VMALLOC, np.int64))
    its, sizes = of_caller.astype(np.int64)[back], small["pages"].astype(np.int64)
    found.take(small["pfn"].astype(np.int64), its, sizes)
    yield from found.rows(names.tolist(), page)


def from_memory(memory: Memory) -> Found:
    pages, gaps = ledger_pages(memory)
    found = Found(memory.live, unreadable_bytes=gaps.bytes)
    found.notes += [f"not told apart: {words}" for words in find_places(memory).missing]
    if not_settled := settled(memory):
        found.notes.append(not_settled)
    ranges, page = Ranges(pages), int(memory.prog["PAGE_SIZE"].value_())
    holders = list(by_class(ranges, page))
    try:
        holders += of_slabs(ranges, slab_scan(memory), page)
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"slab caches are not told apart: {error}")
    try:
        holders += of_vmalloc(ranges, memory, page)
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"callers of vmalloc are not told apart: {error}")
    holders.sort(key=lambda row: (-row.alone_ranges, -row.ranges, row.what, row.holder))
    if len(holders) > MAX_HOLDERS:
        found.unlisted.append(f"{len(holders) - MAX_HOLDERS:,} holders that spoil fewer ranges")
    targets = None
    try:
        targets = _targets(memory.prog, ranges)
    except (FaultError, LookupError) as error:
        found.notes.append(f"what compaction would make is unknown: {error}")
    found.add(Contiguity, by_zone(ranges, zone_names(memory.prog), page, targets))
    found.add(ContiguitySet, by_set(ranges))
    return found.add(ContiguityHolder, holders[:MAX_HOLDERS])


CONTIGUITY_SECTION = Section(
    name="contiguity",
    title="What stands in the way of huge pages",
    intro="""
A [transparent huge page](https://docs.kernel.org/admin-guide/mm/transhuge.html) needs an aligned
range of memory in which nothing is. Compaction moves what processes have and what is in the page
cache out of a range; slabs, page tables, stacks and what is pinned stay, and one page of them
spoils all of it. The ranges are counted by what in them cannot be moved, and by who alone spoils
them: those would be won without that holder.
""",
    command=Command("what stands in the way of huge pages", top=TOP),
    since="0.3.0",
    tables=tables_of(Contiguity, ContiguitySet, ContiguityHolder),
    from_memory=from_memory,
    from_files=not_in_text(
        "what lies in each range is read from the kernel's memory (as root); free_blocks has what "
        "is free in blocks of that size"
    ),
    deadline=PASS_SECONDS,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("contiguity", "contiguity", "contiguity_sets", "contiguity_holders")
