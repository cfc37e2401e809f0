# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``zone.free_area[order].free_list[migratetype]``: the free blocks of the buddy allocator.

Found in the struct pages, not by walking the lists: a page that heads a free block carries the
buddy page type and its order. One pass, shared with every other consumer; then all lists are
followed at once, so that each block is counted where the allocator will look for it, and so that
what the lists say and what the pages say are held against each other. A corrupted list costs its
own blocks their list, nothing else: they are counted by their pageblock's migratetype and reported.

Up to v6.9 a block may lie on a list that is not its pageblock's ("mm: page_alloc: freelist
migratetype hygiene", v6.10, ended that); :class:`MisplacedBlocks` has these.

The text that says the same is /proc/pagetypeinfo (root only; it prints at most 100,000 a list).

Memory: 10 bytes a free block, up to :data:`MAX_BLOCKS`, or fewer where memory is tight, as in a
crash kernel. Beyond that the lists are not followed and every block counts by its pageblock.
``prev`` is not kept: a sum over all pairs of neighbours says whether each leads back, and where one
does not, all are read again.
"""

import itertools
from collections import Counter
from operator import add, or_
from typing import Any, NamedTuple

import numpy as np
from drgn import Program, ProgramFlags, offsetof, sizeof

from mmscope.drgn.free.block_heads import BlockFinder, ascending
from mmscope.drgn.free.pageblocks import PageblockTypes
from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.reading.kernel_arrays import Array, Gaps, S64s, U32s, U64s, read_whole
from mmscope.drgn.reading.linked_lists import find, lead_on, walk_to_ends
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.reading.shares import SharedColumns, merges
from mmscope.drgn.reading.struct_pages import COLUMNS, FlagFields, PageChunk
from mmscope.drgn.tables.rows import MOST_ORDER, column
from mmscope.drgn.tables.table import table
from mmscope.drgn.text.kernel_text import row_number
from mmscope.drgn.text.proc_text import parse_buddyinfo, parse_pagetypeinfo

# 8 million blocks: 80 MiB, and 32 GiB of memory in single free pages.
MAX_BLOCKS = 8 << 20
# Half the memory of addresses: a block goes by the number of its first page frame. List heads have
# the numbers from here on, and what is neither has the last one. Memory beyond 16 TiB is out of it.
FIRST_HEAD, NEITHER = 0xFFF0_0000, 0xFFFF_FFFF
# So many blocks are looked at together where each takes room for a while.
PIECE = 1 << 17

Cell = tuple[int, int, int]  # zone index or -1, order, migratetype or -1
# Of each block, ascending: its number, that of its next, and the number of its cell.
Links = tuple[Array, Array, Array]


@table("free_blocks", "Free blocks", left_out=("blocks", "empty lists"), memory="free")
class FreeBlocks:
    """Free blocks of one order on one free list of one zone."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    order: int = column(key=True, high=MOST_ORDER, help="a block has 1 << order pages")
    migratetype: str | None = column(holds="kernel", key=True, help="of the free list")
    blocks: int = column(unit="blocks", help="free blocks")
    pages: int = column(unit="pages", help="blocks << order")


@table(
    "free_list_checks",
    "Free lists and struct pages that disagree",
    empty="Every free list agrees with its struct pages, link by link.",
)
class FreeListCheck:
    """A free list whose links and whose struct pages disagree."""

    node: int = column(key=True, low=-1, help="NUMA node; -1: unknown")
    zone: str = column(holds="kernel", key=True, help="zone name")
    order: int = column(key=True, low=-1, help="-1: unknown")
    migratetype: str | None = column(holds="kernel", key=True, help="empty: the whole free_area")
    list_blocks: int | None = column(unit="blocks", help="blocks on the list")
    page_blocks: int = column(unit="blocks", help="blocks by their struct pages")
    problem: str = column(holds="words", key=True, help="what differs")


@table(
    "misplaced_blocks",
    "Free blocks on another list than their pageblock's",
    empty="Every free block lies on the list of its pageblock's migratetype.",
)
class MisplacedBlocks:
    """Free blocks on the list of another migratetype than their pageblock's."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    order: int = column(key=True, help="a block has 1 << order pages")
    list_migratetype: str = column(holds="kernel", key=True, help="of the free list")
    pageblock_migratetype: str = column(holds="kernel", key=True, help="of the pageblock")
    blocks: int = column(unit="blocks", help="free blocks")
    pages: int = column(unit="pages", help="blocks << order")


class FreeBlockFinder(SharedColumns):
    """
    Consumer of the struct page pass: every page that heads a free block.

    ``pageblock_free`` adds the free pages up by pageblock.
    """

    columns = ("flags", *BlockFinder.columns, "next", "prev")
    ROWS = "blocks"
    MERGES = merges(
        **dict.fromkeys(("pageblock_free", "implausible", "blocks", "counts", "uneven"), add),
        first_link=np.maximum,
        too_high=or_,
    )

    def __init__(self, prog: Program, types: PageblockTypes, fields: FlagFields) -> None:
        self._find = BlockFinder(prog)
        self.types = types
        self.fields = fields
        self.names = types.names
        self.orders = range(self._find.max_order + 1)
        self.zones = {
            number: (node, zone_name(zone), zone)
            for node, number, zone in for_each_zone(prog)
            if zone.present_pages.value_()
        }
        self.heads, self.cells = _list_heads(prog, self)
        page_type = prog.type("struct page")
        self.page_size = np.uint64(sizeof(page_type))
        self.link_offset = np.uint64(offsetof(page_type, "lru"))
        self.first_link = np.uint64(0)  # address of the list_head of page frame 0
        self.pageblock_free = np.zeros(len(types.types), np.int64)
        # Zone, order and pageblock's migratetype have one number; of a zone that is none, and of an
        # unknown migratetype, these are -1.
        self.kinds = [
            *itertools.product((-1, *self.zones), self.orders, range(-1, len(self.names)))
        ]
        self._zone_number = np.zeros(max(self.zones, default=-1) + 2, np.int64)
        self._zone_number[[*self.zones]] = 1 + np.arange(len(self.zones))
        self.counts = np.zeros(len(self.kinds), np.int64)  # blocks
        self.implausible: list[int] = []
        self.blocks = 0
        self.uneven = 0  # see mixed(): of next less of prev
        self.too_high = False  # page frames beyond FIRST_HEAD
        self.KINDS = (np.uint32, np.uint32, np.min_scalar_type(len(self.kinds)))
        self.MOST = MAX_BLOCKS
        super().__init__()

    def take(self, chunk: PageChunk) -> None:
        found = self._find.of(chunk)
        self.implausible += found.implausible.tolist()
        heads, orders = found.places, found.orders
        if not len(heads):
            return
        pfns = chunk.start_pfn + heads
        kinds = self._kinds_of(self.fields.zone_index(chunk["flags"][heads]), orders, pfns)
        self.counts += np.bincount(kinds, minlength=len(self.kinds))
        self._count_pageblocks(pfns, orders)
        self.too_high |= bool((pfns >= FIRST_HEAD).any())
        if not self.followed:
            self.blocks += len(heads)
            self.forget()
            return
        first = chunk.address - chunk.start_pfn * int(self.page_size)
        self.first_link = np.uint64(first % (1 << 64)) + self.link_offset
        following, preceding = (self.numbers(chunk[name][heads]) for name in ("next", "prev"))
        numbers = pfns.astype(np.uint32)
        self.uneven += mixed(numbers, following) - mixed(preceding, numbers)
        self.keep(numbers, following, kinds)

    def _kinds_of(self, zones: S64s, orders: S64s, pfns: S64s) -> S64s:
        """The number of zone, order and pageblock's migratetype of each block."""
        known = self._zone_number[np.minimum(zones, len(self._zone_number) - 1)]
        per_zone = len(self.kinds) // (1 + len(self.zones))
        types = 1 + self.types.of(pfns)
        return np.asarray(known * per_zone + orders * (len(self.names) + 1) + types)

    @property
    def followed(self) -> bool:
        """True if there is what the lists are followed by."""
        return not (self.overflowed or self.too_high)

    def numbers(self, addresses: U64s) -> U32s:
        """
        The number of each list_head: of a page its PFN, of the nth list :data:`FIRST_HEAD` + n,
        of anything else :data:`NEITHER`.
        """
        pfns, odd = np.divmod(addresses - self.first_link, self.page_size)
        outside = np.flatnonzero((odd != 0) | (pfns >= FIRST_HEAD))
        numbers = pfns.astype(np.uint32)
        head = find(self.heads, addresses[outside])
        numbers[outside] = np.where(head >= 0, FIRST_HEAD + head, NEITHER)
        return numbers

    def _count_pageblocks(self, pfns: S64s, orders: S64s) -> None:
        order = self.types.order
        numbers = pfns >> order
        inside = numbers < len(self.pageblock_free)
        numbers, orders = numbers[inside], orders[inside]
        small = orders <= order
        np.add.at(self.pageblock_free, numbers[small], 1 << orders[small])
        # A block larger than a pageblock fills several of them.
        for number, large in zip(numbers[~small].tolist(), orders[~small].tolist(), strict=True):
            self.pageblock_free[number : number + (1 << (large - order))] = 1 << order

    def links(self) -> Links:
        """The columns that were kept of all blocks; no copies."""
        if not self._kept:
            raise RuntimeError("the links of free blocks were let go")
        numbers, following, kinds = ascending(tuple(kept[: self.blocks] for kept in self._kept))
        return numbers, following, kinds

    def place(self, zone: int) -> tuple[int, str]:
        """(node, name) of a zone index."""
        return self.zones[zone][:2] if zone in self.zones else (-1, "unknown")

    def kind(self, mt: int) -> str:
        """The name of a migratetype."""
        return self.names[mt] if 0 <= mt < len(self.names) else "unknown"


def mixed(blocks: U32s, following: U32s) -> int:
    """
    A sum over pairs of a block and its next one, and no others: no other pairs have the same, but
    by a chance of 1 in 2^64 (the mixing of splitmix64).
    """
    both = (blocks < FIRST_HEAD) & (following < FIRST_HEAD)
    pairs = blocks[both].astype(np.uint64) << np.uint64(32) | following[both]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        pairs ^= pairs >> np.uint64(shift)
        pairs *= np.uint64(factor)
    return int((pairs ^ pairs >> np.uint64(31)).sum())


class FreeLists(NamedTuple):
    """The free lists of the machine, as the struct pages and the links give them."""

    blocks: list[FreeBlocks]
    misplaced: list[MisplacedBlocks]
    checks: list[FreeListCheck]
    followed: bool  # False: too many blocks, each counted by its pageblock's migratetype


def free_lists(prog: Program, finder: FreeBlockFinder) -> FreeLists:
    """
    Sort the blocks that a pass found onto their free lists.

    Every list of every zone with memory has its row, also the empty ones.

    :raises FaultError: a ``struct zone`` cannot be read.
    """
    misplaced: list[MisplacedBlocks] = []
    checks = [
        FreeListCheck(
            -1, "unknown", -1, None, None, 1, f"pfn {pfn:#x}: buddy type, but no possible order"
        )
        for pfn in finder.implausible[:MAX_PROBLEMS]
    ]
    if finder.followed:
        numbers, following, kinds = finder.links()
        lists = np.arange(len(finder.heads), dtype=np.uint32) + np.uint32(FIRST_HEAD)
        begins = lead_on(numbers, following, lists, following)
        crooked = _check_back_links(prog, finder, (numbers, following, kinds))
        first, to_first = _first_blocks(prog, finder, numbers)
        steps = numbers  # in their place: what follows is known by place now
        walk_to_ends(following, steps, len(lists), begins)
        counts, misplaced, astray = _sort_onto_lists(finder, following, kinds)
        checks += astray
        checks += _check_heads(finder, first, to_first, following, steps)
        checks += crooked
    else:
        known = np.flatnonzero(finder.counts).tolist()
        counts = {finder.kinds[kind]: int(finder.counts[kind]) for kind in known}
    checks += _check_nr_free(finder, counts)
    # Blocks in a zone or a pageblock that does not exist are damage, and still free memory.
    cells = dict.fromkeys(itertools.product(finder.zones, finder.orders, range(len(finder.names))))
    rows = [
        FreeBlocks(*finder.place(zone), order, finder.kind(mt), blocks, blocks << order)
        for zone, order, mt in cells | dict.fromkeys(counts)
        for blocks in (counts.get((zone, order, mt), 0),)
    ]
    return FreeLists(rows, misplaced, checks, finder.followed)


def _sort_onto_lists(
    finder: FreeBlockFinder, ends: Array, kinds: Array
) -> tuple[dict[Cell, int], list[MisplacedBlocks], list[FreeListCheck]]:
    """
    Count the blocks of each list; a block that is on none counts by its pageblock.

    :param ends: where each block leads, as :func:`walk_to_ends` says.
    """
    lists = len(finder.heads)
    together: Counter[int] = Counter()
    for start in range(0, len(ends), PIECE):
        here = slice(start, start + PIECE)
        pairs, blocks = np.unique(
            kinds[here].astype(np.int64) * (lists + 2) + ends[here], return_counts=True
        )
        together.update(dict(zip(pairs.tolist(), blocks.tolist(), strict=True)))
    different: Counter[tuple[int, ...]] = Counter()
    for pair, count in together.items():
        kind, end = divmod(pair, lists + 2)
        zone, order, block = finder.kinds[kind]
        problem, mt = end - lists + 1, block
        if end < lists:
            of_zone, of_order, of_type = finder.cells[end].tolist()
            problem = 0 if (of_zone, of_order) == (zone, order) else 3
            mt = block if problem else of_type
        different[zone, order, mt, block, problem] += count
    counts: dict[Cell, int] = {}
    misplaced, checks = [], []
    for (zone, order, mt, block, what), count in sorted(different.items()):
        counts[zone, order, mt] = counts.get((zone, order, mt), 0) + count
        place, kind_name = finder.place(zone), finder.kind(mt)
        if what:
            checks.append(FreeListCheck(*place, order, kind_name, None, count, PROBLEMS[what]))
        elif mt != block and block >= 0:
            misplaced.append(
                MisplacedBlocks(*place, order, kind_name, finder.kind(block), count, count << order)
            )
    return counts, misplaced, checks


def _first_blocks(prog: Program, finder: FreeBlockFinder, numbers: U32s) -> tuple[S64s, U64s]:
    """The block that each list begins with, by its place, or -1; and ``next`` of its head."""
    pointer: np.dtype[Any] = np.dtype("<u8")
    following = np.array(
        [read_whole(prog, head, 1, pointer)[0] for head in finder.heads.tolist()], np.uint64
    )
    return find(numbers, finder.numbers(following)), following


def _check_heads(
    finder: FreeBlockFinder, first: S64s, to_first: U64s, ends: Array, steps: Array
) -> list[FreeListCheck]:
    """
    A walk from a head must see exactly the blocks whose links lead to it.

    :param first: of each list, and *to_first*: as :func:`_first_blocks` returns them.
    """
    lead_here = np.zeros(len(finder.heads) + 2, np.int64)
    for start in range(0, len(ends), PIECE):
        lead_here += np.bincount(ends[start : start + PIECE], minlength=len(lead_here))
    lead_here = lead_here[: len(finder.heads)]
    checks = []
    for head in np.flatnonzero((to_first != finder.heads) | (lead_here != 0)):
        seen: int | None = None
        if to_first[head] == finder.heads[head]:
            problem, seen = "head says empty, but blocks lead to it", 0
        elif first[head] < 0:
            problem = f"head leads to {int(to_first[head]):#x}, not to a free block"
        elif ends[first[head]] != head:
            problem = "head leads into another list, or in a circle"
        elif steps[first[head]] != lead_here[head]:
            problem = "a walk from the head does not see all blocks that lead to it"
            seen = int(steps[first[head]])
        else:
            continue
        zone, order, mt = finder.cells[head].tolist()
        where = *finder.place(zone), order, finder.kind(mt)
        checks.append(FreeListCheck(*where, seen, int(lead_here[head]), problem))
    return checks[:MAX_PROBLEMS]


def _check_back_links(prog: Program, finder: FreeBlockFinder, links: Links) -> list[FreeListCheck]:
    """
    The ``prev`` of a block's ``next`` must be the block.

    :param links: with the places of what follows, as :func:`lead_on` leaves them.
    """
    if not finder.uneven % (1 << 64):
        return []
    what = "the next block's prev leads elsewhere"
    if prog.flags & ProgramFlags.IS_LIVE:
        # Which one is not to be found out: what is read again is of another time.
        return [FreeListCheck(-1, "unknown", -1, None, None, finder.blocks, f"of some, {what}")]
    numbers, following, kinds = links
    page, columns = prog.type("struct page"), {"prev": COLUMNS["prev"]}
    crooked = following < len(numbers)
    for start in range(0, len(numbers), PIECE):
        here = numbers[start : start + PIECE]
        addresses = finder.first_link - finder.link_offset + here * finder.page_size
        members, _ = read_members(prog, addresses, page, columns, Gaps())
        before = find(numbers, finder.numbers(members["prev"]))
        straight = (before >= 0) & (following[before] == start + np.arange(len(here)))
        crooked[before[straight]] = False
    counted = np.bincount(kinds[crooked], minlength=len(finder.kinds))
    return [
        FreeListCheck(*finder.place(zone), order, finder.kind(mt), None, int(count), what)
        for (zone, order, mt), count in zip(finder.kinds, counted, strict=True)
        if count
    ]


def _check_nr_free(finder: FreeBlockFinder, counts: dict[Cell, int]) -> list[FreeListCheck]:
    """``free_area.nr_free`` counts the blocks of all migratetypes."""
    checks = []
    for index, (node, name, zone) in finder.zones.items():
        for order in finder.orders:
            said = zone.free_area[order].nr_free.value_()
            counted = sum(n for (z, o, _), n in counts.items() if (z, o) == (index, order))
            if said != counted:
                checks.append(
                    FreeListCheck(node, name, order, None, said, counted, "nr_free differs")
                )
    return checks


PROBLEMS = {
    1: "links lead to no list head",
    2: "links run in a circle without a head",
    3: "on the list of another zone or order",
}
# Damage repeats: a hundred lines of it say as much as a million.
MAX_PROBLEMS = 100


def _list_heads(prog: Program, finder: FreeBlockFinder) -> tuple[U64s, S64s]:
    """The addresses of all list heads, ascending, and (zone, order, type) of each."""
    area = prog.type("struct free_area")
    stride, list_size = sizeof(area), sizeof(prog.type("struct list_head"))
    first_list = offsetof(area, "free_list")
    base = {index: zone.free_area.address_ or 0 for index, (_, _, zone) in finder.zones.items()}
    cells = [*itertools.product(base, finder.orders, range(len(finder.names)))]
    heads = np.array(
        [base[zone] + order * stride + first_list + mt * list_size for zone, order, mt in cells],
        np.uint64,
    )
    order = np.argsort(heads)
    return heads[order], np.array(cells, np.int64).reshape(-1, 3)[order]


def read_pagetypeinfo(text: str) -> list[FreeBlocks]:
    """
    The same rows from /proc/pagetypeinfo.

    A text in which the kernel stopped counting (``>100000``) is refused: the number is unknown.

    :raises ValueError: the text is not /proc/pagetypeinfo's, not all of it, or a list is too long.
    """
    rows = []
    for (node, zone, migratetype), counts in parse_pagetypeinfo(text).free.items():
        for order, blocks in enumerate(counts):
            if blocks is None:
                raise ValueError(
                    f"/proc/pagetypeinfo stopped counting free blocks at 100,000 (zone {zone}, "
                    f"{migratetype}); read the kernel's memory instead"
                )
            pages = row_number(blocks << order, "/proc/pagetypeinfo")
            rows.append(FreeBlocks(node, zone, order, migratetype, blocks, pages))
    return rows


def read_buddyinfo(text: str) -> list[FreeBlocks]:
    """
    Blocks of /proc/buddyinfo, without root: blocks by order, of unknown migratetype.

    :raises ValueError: the text is not /proc/buddyinfo's, or not all of it.
    """
    return [
        FreeBlocks(*zone, order, None, blocks, row_number(blocks << order, "/proc/buddyinfo"))
        for zone, counts in parse_buddyinfo(text).items()
        for order, blocks in enumerate(counts)
    ]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("free_lists")
