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

Memory: 32 bytes a free block, up to :data:`MAX_BLOCKS`. Beyond that the lists are not followed and
every block counts by its pageblock.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drgn import Object, Program, offsetof, sizeof
from linked_lists import LOOPS, LOST, find, follow_lists
from pageblocks import PageblockTypes
from rows import column
from struct_pages import FlagFields, PageChunk
from zones import for_each_zone, zone_name

# 8 million blocks: 256 MiB, and 32 GiB of memory in single free pages.
MAX_BLOCKS = 8 << 20


@dataclass(frozen=True)
class FreeBlocks:
    """Free blocks of one order on one free list of one zone."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(key=True, help="zone name")
    order: int = column(key=True, help="a block has 1 << order pages")
    migratetype: str | None = column(key=True, help="of the free list")
    blocks: int = column(unit="blocks", help="free blocks")
    pages: int = column(unit="pages", help="blocks << order")


@dataclass(frozen=True)
class FreeListCheck:
    """A free list whose links and whose struct pages do not tell the same."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(key=True, help="zone name")
    order: int = column(key=True, help="order of the list")
    migratetype: str | None = column(key=True, help="of the list; empty: of the whole free_area")
    list_blocks: int | None = column(unit="blocks", help="blocks that a walk of the list would see")
    page_blocks: int = column(unit="blocks", help="blocks whose struct pages belong there")
    problem: str = column(key=True, help="what differs")


@dataclass(frozen=True)
class MisplacedBlocks:
    """Free blocks on the list of another migratetype than their pageblock's."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(key=True, help="zone name")
    order: int = column(key=True, help="a block has 1 << order pages")
    list_migratetype: str = column(key=True, help="of the free list")
    pageblock_migratetype: str = column(key=True, help="of the pageblock")
    blocks: int = column(unit="blocks", help="free blocks")
    pages: int = column(unit="pages", help="blocks << order")


class FreeBlockFinder:
    """
    Consumer of the struct page pass: every page that heads a free block.

    A buddy page has the page type that VMCOREINFO calls PAGE_BUDDY_MAPCOUNT_VALUE in ``_mapcount``,
    on every kernel from 6.1, and its order in ``private`` (include/linux/page-flags.h).

    ``pageblock_free`` adds the free pages up by pageblock.
    """

    columns = ("flags", "mapcount", "private", "next", "prev")

    def __init__(self, prog: Program, types: PageblockTypes, fields: FlagFields) -> None:
        self.buddy = buddy_mapcount(prog)
        self.types = types
        self.fields = fields
        self.max_order = max_order(prog)
        page_type = prog.type("struct page")
        self.page_size = np.uint64(sizeof(page_type))
        self.link_offset = np.uint64(offsetof(page_type, "lru"))
        self.pageblock_free = np.zeros(len(types.types), np.int64)
        # (zone index, order, pageblock's migratetype) to blocks
        self.counts: dict[tuple[int, int, int], int] = {}
        self.implausible: list[int] = []
        self.blocks = 0
        self._kept: list[tuple[NDArray[Any], ...]] = []

    def take(self, chunk: PageChunk) -> None:
        heads = np.flatnonzero(chunk["mapcount"] == self.buddy)
        if not len(heads):
            return
        pfns = chunk.start_pfn + heads
        orders = chunk["private"][heads].astype(np.int64)
        # An order that cannot be, or a block that is not aligned to its size, is damage.
        sound = (orders >= 0) & (orders <= self.max_order)
        sound &= (pfns & ((1 << np.clip(orders, 0, self.max_order)) - 1)) == 0
        if not sound.all():
            self.implausible += pfns[~sound].tolist()
            heads, pfns, orders = heads[sound], pfns[sound], orders[sound]
        zones = self.fields.zone_index(chunk["flags"][heads])
        types = self.types.of(pfns)
        # One number a (zone, order, type), so that counting is a sort of plain integers.
        keys = (zones << 16) | (orders << 8) | (types.astype(np.int64) & 0xFF)
        for key, count in zip(*np.unique(keys, return_counts=True), strict=True):
            cell = (
                int(key) >> 16,
                (int(key) >> 8) & 0xFF,
                int(np.array(int(key) & 0xFF, np.uint8).view(np.int8)),
            )
            self.counts[cell] = self.counts.get(cell, 0) + int(count)
        self._count_pageblocks(pfns, orders)
        self.blocks += len(heads)
        if self.blocks > MAX_BLOCKS:
            self._kept.clear()
            return
        addresses = np.uint64(chunk.address) + heads.astype(np.uint64) * self.page_size
        self._kept.append(
            (
                addresses + self.link_offset,
                chunk["next"][heads],
                chunk["prev"][heads],
                orders.astype(np.int8),
                zones.astype(np.int16),
                types,
            )
        )

    def _count_pageblocks(self, pfns: NDArray[np.int64], orders: NDArray[np.int64]) -> None:
        order = self.types.order
        numbers = pfns >> order
        inside = numbers < len(self.pageblock_free)
        numbers, orders = numbers[inside], orders[inside]
        small = orders <= order
        np.add.at(self.pageblock_free, numbers[small], 1 << orders[small])
        # A block larger than a pageblock fills several of them.
        for number, large in zip(numbers[~small].tolist(), orders[~small].tolist(), strict=True):
            self.pageblock_free[number : number + (1 << (large - order))] = 1 << order

    def links(self) -> tuple[NDArray[Any], ...] | None:
        """
        All blocks, ascending: address of the list_head, next, prev, order, zone index, pageblock's
        migratetype. None when there were more than :data:`MAX_BLOCKS`.
        """
        if self.blocks > MAX_BLOCKS:
            return None
        if not self._kept:
            return tuple(np.zeros(0, kind) for kind in ("u8", "u8", "u8", "i1", "i2", "i1"))
        columns = [np.concatenate(column) for column in zip(*self._kept, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return tuple(column[order] for column in columns)


@dataclass(frozen=True)
class FreeLists:
    """The free lists of the machine, as the struct pages and the links tell them."""

    blocks: list[FreeBlocks]
    misplaced: list[MisplacedBlocks]
    checks: list[FreeListCheck]
    followed: bool  # False: too many blocks, each counted by its pageblock's migratetype


def buddy_mapcount(prog: Program) -> int:
    """
    The ``_mapcount`` of a page that heads a free block, as a signed 32-bit number.

    :raises LookupError: the target has no VMCOREINFO with PAGE_BUDDY_MAPCOUNT_VALUE.
    """
    match = re.search(
        rb"^NUMBER\(PAGE_BUDDY_MAPCOUNT_VALUE\)=(-?\d+)$",
        prog["VMCOREINFO"].string_(),
        re.MULTILINE,
    )
    if not match:
        raise LookupError(
            "VMCOREINFO has no PAGE_BUDDY_MAPCOUNT_VALUE: not a kernel of 2.6.39 or newer"
        )
    value = int(match.group(1)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def max_order(prog: Program) -> int:
    """
    The largest order of a free block (MAX_PAGE_ORDER; MAX_ORDER - 1 before v6.4).
    """
    return (prog.type("struct zone").member("free_area").type.length or 1) - 1


def free_lists(prog: Program, finder: FreeBlockFinder) -> FreeLists:
    """
    Sort the blocks that a pass found onto their free lists.

    Every list of every zone with memory has its row, also the empty ones.

    :raises FaultError: a ``struct zone`` cannot be read.
    """
    names = finder.types.names
    zones = {
        node * finder.fields.zones_per_node + index: (node, zone_name(zone), zone)
        for node, index, zone in for_each_zone(prog)
        if zone.present_pages.value_()
    }
    checks = [
        FreeListCheck(
            -1,
            "unknown",
            -1,
            None,
            None,
            1,
            f"pfn {pfn:#x} has the buddy type but no possible order",
        )
        for pfn in finder.implausible[:MAX_PROBLEMS]
    ]
    links = finder.links()
    if links is None:
        counts, misplaced = dict(finder.counts), []
    else:
        counts, misplaced, found = _by_list(prog, zones, names, finder.max_order, links)
        checks += found
    rows = [
        FreeBlocks(node, name, order, names[mt], blocks, blocks << order)
        for index, (node, name, _) in zones.items()
        for order in range(finder.max_order + 1)
        for mt in range(len(names))
        for blocks in (counts.pop((index, order, mt), 0),)
    ]
    for (index, order, mt), blocks in counts.items():
        node, name = zones[index][:2] if index in zones else (-1, "unknown")
        kind = names[mt] if 0 <= mt < len(names) else "unknown"
        rows.append(FreeBlocks(node, name, order, kind, blocks, blocks << order))
    return FreeLists(rows, misplaced, checks, links is not None)


def _by_list(
    prog: Program,
    zones: dict[int, tuple[int, str, Object]],
    names: list[str],
    largest: int,
    links: tuple[NDArray[Any], ...],
) -> tuple[dict[tuple[int, int, int], int], list[MisplacedBlocks], list[FreeListCheck]]:
    """Count blocks by the list their links lead to; say what does not fit."""
    addresses, following, preceding, orders, zone_of, type_of = links
    heads, cells = _list_heads(prog, zones, names, largest)
    followed = follow_lists(addresses, following, heads["address"])
    checks = []

    counts: dict[tuple[int, int, int], int] = {}
    moved: dict[tuple[int, int, int, int], int] = {}
    astray: dict[tuple[int, int, int, str], int] = {}
    home = followed.head >= 0
    cell = cells[np.where(home, followed.head, 0)]
    fits = home & (cell[:, 0] == zone_of) & (cell[:, 1] == orders)
    list_type = np.where(fits, cell[:, 2], type_of)
    problem = np.select(
        [followed.head == LOST, followed.head == LOOPS, ~fits],
        [1, 2, 3],
    )
    rows = np.stack((zone_of, orders, list_type, type_of, problem), axis=1).astype(np.int64)
    for key, count in zip(*_unique_rows(rows), strict=True):
        index, order, on, block, what = key
        counts[index, order, on] = counts.get((index, order, on), 0) + count
        if what:
            astray[index, order, on, PROBLEMS[what]] = count
        elif on != block:
            moved[index, order, on, block] = count

    def place(index: int) -> tuple[int, str]:
        return zones[index][:2] if index in zones else (-1, "unknown")

    def kind(mt: int) -> str:
        return names[mt] if 0 <= mt < len(names) else "unknown"

    misplaced = [
        MisplacedBlocks(*place(index), order, kind(on), kind(block), count, count << order)
        for (index, order, on, block), count in sorted(moved.items())
    ]
    checks += [
        FreeListCheck(*place(index), order, kind(mt), None, count, what)
        for (index, order, mt, what), count in sorted(astray.items())
    ]

    # The heads' own links: a walk from the head must see exactly the blocks that lead to it.
    leads_here = np.bincount(followed.head[home], minlength=len(heads))
    first = find(addresses, heads["next"])
    walked = np.where(first >= 0, followed.steps[first], 0)
    walked[(first >= 0) & (followed.head[first] != np.arange(len(heads)))] = -1
    empty = heads["next"] == heads["address"]
    broken = np.flatnonzero((walked != leads_here) | ((first < 0) & ~empty))
    for head in broken[:MAX_PROBLEMS]:
        index, order, mt = cells[head].tolist()
        if first[head] < 0 and not empty[head]:
            what, seen = (
                f"the head leads to {int(heads['next'][head]):#x}, not to a free block",
                None,
            )
        elif walked[head] < 0:
            what, seen = "the head leads into another list, or in a circle", None
        else:
            what, seen = (
                "a walk from the head does not see all blocks that lead to it",
                int(walked[head]),
            )
        checks.append(
            FreeListCheck(*place(index), order, kind(mt), seen, int(leads_here[head]), what)
        )
    # Back links: my successor's prev is me.
    to_entry = find(addresses, following)
    linked = to_entry >= 0
    crooked = np.flatnonzero(linked)[preceding[to_entry[linked]] != addresses[linked]]
    rows = np.stack((zone_of, orders, list_type), axis=1).astype(np.int64)[crooked]
    for key, count in zip(*_unique_rows(rows), strict=True):
        index, order, on = key
        checks.append(
            FreeListCheck(
                *place(index), order, kind(on), None, count, "next block's prev does not lead back"
            )
        )
    for index, (node, name, zone) in zones.items():
        for order in range(largest + 1):
            counted = sum(counts.get((index, order, mt), 0) for mt in range(len(names)))
            nr_free = zone.free_area[order].nr_free.value_()
            if counted != nr_free:
                checks.append(
                    FreeListCheck(node, name, order, None, nr_free, counted, "nr_free differs")
                )
    return counts, misplaced, checks


PROBLEMS = {
    1: "links lead to no list head",
    2: "links run in a circle without a head",
    3: "on the list of another zone or order",
}
# Damage repeats: a hundred lines of it say as much as a million.
MAX_PROBLEMS = 100


def _unique_rows(rows: NDArray[np.int64]) -> tuple[list[tuple[int, ...]], list[int]]:
    if not len(rows):
        return [], []
    keys, counts = np.unique(rows, axis=0, return_counts=True)
    return [tuple(key) for key in keys.tolist()], counts.tolist()


def _list_heads(
    prog: Program, zones: dict[int, tuple[int, str, Object]], names: list[str], largest: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """All list heads, ascending by address: (address, next, prev), and (zone, order, type) of each."""
    area = prog.type("struct free_area")
    per_area = area.member("free_list").type.length or 0
    stride, list_size = sizeof(area), sizeof(prog.type("struct list_head"))
    records, cells = [], []
    for index, (_, _, zone) in zones.items():
        base = zone.free_area.address_
        assert base is not None
        data = prog.read(base, stride * (largest + 1))
        for order in range(largest + 1):
            for mt in range(per_area):
                offset = order * stride + offsetof(area, "free_list") + mt * list_size
                links = np.frombuffer(data, "<u8", 2, offset)
                records.append((base + offset, links[0], links[1]))
                cells.append((index, order, mt))
    heads = np.array(records, [("address", "<u8"), ("next", "<u8"), ("prev", "<u8")])
    ascending = np.argsort(heads["address"])
    return heads[ascending], np.array(cells, np.int64).reshape(-1, 3)[ascending]


def read_pagetypeinfo(text: str) -> list[FreeBlocks]:
    """
    The same rows from /proc/pagetypeinfo.

    The kernel stops counting a list at 100,000 blocks and prints ``>100000``
    (``pagetypeinfo_showfree_print()``, mm/vmstat.c); such a text is refused, since its number is
    none.

    :raises ValueError: the text is not /proc/pagetypeinfo's, or a list is too long for it.
    """
    if "Free pages count per migrate type" not in text:
        raise ValueError(
            "not /proc/pagetypeinfo: it has no line 'Free pages count per migrate type'"
        )
    rows = []
    for node, zone, migratetype, counts in re.findall(
        r"^Node +(\d+), zone +(\S+), type +(\S+) +([\d> ]+)$", text, re.MULTILINE
    ):
        if ">" in counts:
            raise ValueError(
                f"/proc/pagetypeinfo stopped counting free blocks at 100,000 (zone {zone}, "
                f"{migratetype}); read the kernel's memory instead"
            )
        rows += [
            FreeBlocks(int(node), zone, order, migratetype, blocks, blocks << order)
            for order, blocks in enumerate(map(int, counts.split()))
        ]
    return rows


def read_buddyinfo(text: str) -> list[FreeBlocks]:
    """
    What /proc/buddyinfo tells without root: blocks by order, of unknown migratetype.

    :raises ValueError: the text is not /proc/buddyinfo's.
    """
    lines = re.findall(r"^Node (\d+), zone +(\S+) +([\d ]+)$", text, re.MULTILINE)
    if not lines:
        raise ValueError("not /proc/buddyinfo: it has no line 'Node N, zone NAME'")
    return [
        FreeBlocks(int(node), zone, order, None, blocks, blocks << order)
        for node, zone, counts in lines
        for order, blocks in enumerate(map(int, counts.split()))
    ]
