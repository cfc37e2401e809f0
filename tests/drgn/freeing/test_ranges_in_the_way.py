# SPDX-License-Identifier: LGPL-2.1-or-later
"""What stands in the way of huge pages, on made struct pages: ranges of 512 pages."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mmscope.drgn.free.block_heads import BlockHeads
from mmscope.drgn.freeing.contiguity import Holders, Ranges, by_class, by_set, by_zone
from mmscope.drgn.ledger.page_kinds import Kind
from mmscope.drgn.ledger.thp_ranges import WAY_OF, ThpRanges, Way
from mmscope.drgn.reading.shares import SharedColumns
from mmscope.drgn.reading.struct_pages import PageChunk

HEAD, LRU, PRIVATE, WRITEBACK, UNEVICTABLE, DIRTY = (np.uint32(1 << bit) for bit in range(6))
SIZE, PAGE = 512, 4096
PAGES = np.dtype([("refcount", "<i4"), ("mapcount", "<i4"), ("pincount", "<i4")])


class SomeRanges(ThpRanges):
    """Of a kernel whose flags are the first six bits."""

    def __init__(self, *, mlocked_move: bool = True, large_move: bool = True) -> None:
        self.order, self._pins, self._moves_large = 9, True, large_move
        self._head, self._lru, self._private, self._dirty = HEAD, LRU, PRIVATE, DIRTY
        self._marked = [(WRITEBACK, Way.WRITEBACK)]
        if not mlocked_move:
            self._marked.append((UNEVICTABLE, Way.MLOCKED))
        self._marks = np.bitwise_or.reduce([mark for mark, _ in self._marked])
        SharedColumns.__init__(self)
        self.rows, self.cut, self._told, self.pages = 0, None, [], np.zeros(len(Way), np.int64)
        self._shape, self._begins, self._keys = (0, 0), np.empty(0, np.int64), np.empty(0, np.int64)


class Machine:
    """
    Struct pages from page frame 0 on: free, in blocks of a page each, unless something is put
    there.
    """

    def __init__(self, ranges: int = 1) -> None:
        count = ranges * SIZE
        self.kinds = np.full(count, Kind.FREE, np.uint8)
        self.columns = np.zeros(count, PAGES)
        self.columns["mapcount"] = -1
        self.flags, self.heads = np.zeros(count, np.uint32), np.arange(count)
        self.present = np.ones(count, np.bool_)
        self.orders = np.zeros(count, np.int64)  # of free blocks; -1 in the midst of one

    def block(self, pfn: int, order: int) -> "Machine":
        self.orders[pfn : pfn + (1 << order)] = -1
        self.orders[pfn] = order
        return self

    def put(
        self, pfn: int, kind: Kind, *, pages: int = 1, references: int = 1, mapped: int = 1,
        flags: int = int(LRU),
    ) -> "Machine":  # fmt: skip
        here = slice(pfn, pfn + pages)
        self.kinds[here], self.flags[here] = kind, flags
        self.columns["refcount"][here], self.columns["mapcount"][here] = references, mapped - 1
        return self

    def folio(self, pfn: int, kind: Kind, pages: int, pins: int = 0, flags: int = 0) -> "Machine":
        self.put(pfn, kind, pages=pages, references=0, mapped=0, flags=0)
        self.heads[pfn : pfn + pages] = pfn
        self.flags[pfn] = HEAD | LRU | np.uint32(flags)
        self.columns["refcount"][pfn] = pages + pins
        self.columns["pincount"][pfn + 1] = pins
        return self

    def looked_at(self, step: int = 1 << 15, **options: bool) -> Ranges:
        return Ranges(cast(Any, SimpleNamespace(ranges=self.counted(step, **options))))

    def counted(self, step: int = 1 << 15, **options: bool) -> SomeRanges:
        """All of it, in chunks of *step* pages."""
        found = SomeRanges(**options)
        for begin in range(0, len(self.kinds), step):
            here = slice(begin, begin + step)
            heads = self.heads[here] - begin
            at = np.flatnonzero((self.kinds[here] == Kind.FREE) & (self.orders[here] >= 0))
            orders = self.orders[here][at]
            found.take(
                PageChunk(begin, 0, self.columns[here]),
                BlockHeads(at, orders, at + (1 << orders), np.empty(0, np.int64)),
                self.flags[here],
                self.kinds[here],
                np.where(heads < 0, -1, heads),
                self.present[here],
                np.zeros(len(heads), np.int64),
            )
        return found


def sets(ranges: Ranges) -> dict[str, tuple[int, int]]:
    return {row.in_the_way: (row.ranges, row.fixed_pages) for row in by_set(ranges)}


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_every_class_of_the_ledger_is_one_here(kind: Kind) -> None:
    assert (WAY_OF[kind] == Way.UNEXPLAINED) == (kind.owner == "unexplained") or (
        kind is Kind.NO_REFERENCE
    )
    assert len(Way) <= 32  # bits of a word


def test_one_page_of_a_slab_spoils_a_range() -> None:
    machine = Machine(3).put(5, Kind.SLAB).put(SIZE + 7, Kind.ANON)
    (row,) = by_zone(machine.looked_at(), {0: (1, "Normal")}, PAGE)
    assert (row.node, row.zone, row.range_bytes, row.ranges) == (1, "Normal", 2 << 20, 3)
    assert (row.free_ranges, row.movable_ranges, row.spoiled_ranges) == (1, 1, 1)
    assert (row.possible_ranges, row.pages_to_move) == (2, 1)
    assert sets(machine.looked_at()) == {"slab": (1, 1)}


def test_what_is_alone_in_the_way_is_told_from_what_is_not() -> None:
    machine = Machine(3).put(5, Kind.SLAB, pages=4).put(9, Kind.TABLE)
    ranges = machine.put(SIZE, Kind.TABLE, pages=2).looked_at()
    rows = {row.what: row for row in by_class(ranges, PAGE)}
    assert (rows["page tables"].ranges, rows["page tables"].alone_ranges) == (2, 1)
    assert (rows["page tables"].alone_pages, rows["page tables"].alone_bytes) == (2, 2 << 20)
    assert (rows["slab"].ranges, rows["slab"].alone_ranges) == (1, 0)
    assert sets(ranges) == {"slab, page tables": (1, 5), "page tables": (1, 2)}


@pytest.mark.parametrize(
    ("kind", "page", "fixed"),
    [
        (Kind.ANON, {"references": 1}, False),
        (Kind.ANON, {"references": 3, "mapped": 3}, False),
        (Kind.ANON, {"references": 2}, True),  # a pipe's, or pinned
        (Kind.ANON, {"references": 2, "flags": 0}, False),  # on its way to a list
        (Kind.ANON_SWAP, {"references": 2}, False),  # the swap cache's
        (Kind.ANON_SWAP, {"references": 3}, True),
        (Kind.FILE, {"references": 1, "mapped": 0}, False),
        (Kind.FILE, {"references": 2, "mapped": 0}, True),
        (Kind.FILE, {"references": 2, "mapped": 0, "flags": int(LRU | PRIVATE)}, False),
        (Kind.SHMEM, {"references": 2, "mapped": 1}, False),
        (Kind.ANON, {"references": 1025}, True),  # FOLL_PIN
    ],
)
def test_pages_with_more_references_than_are_explained_stay(
    kind: Kind, page: dict[str, int], fixed: bool
) -> None:
    ranges = Machine().put(17, kind, **page).looked_at()
    assert bool(ranges.spoiled[0]) is fixed
    assert int(ranges.fixed_pages[0]) == int(fixed)


def test_a_pinned_large_folio_stays_as_a_whole() -> None:
    free, pinned = (Machine().folio(64, Kind.LARGE, 16, pins) for pins in (0, 1))
    assert not free.looked_at().spoiled[0]
    assert sets(pinned.looked_at()) == {"pinned or held anonymous": (1, 16)}


def test_mlocked_pages_move_unless_that_is_forbidden() -> None:
    machine = Machine().put(3, Kind.ANON, flags=int(LRU | UNEVICTABLE))
    assert not machine.looked_at().spoiled[0]
    assert sets(machine.looked_at(mlocked_move=False)) == {"mlocked": (1, 1)}


def test_a_huge_page_is_no_spoiled_range() -> None:
    machine = Machine(2).folio(0, Kind.LARGE, SIZE).folio(SIZE, Kind.HUGETLB, SIZE)
    (row,) = by_zone(machine.looked_at(), {}, PAGE)
    assert (row.huge_ranges, row.spoiled_ranges, row.possible_ranges) == (2, 0, 0)


def test_compaction_makes_no_more_ranges_than_free_pages_fill() -> None:
    machine = Machine(4)
    for number in range(4):
        machine.put(number * SIZE, Kind.ANON, pages=300 + number)
    (row,) = by_zone(machine.looked_at(), {}, PAGE)
    assert (row.free_pages, row.movable_ranges) == (4 * SIZE - 1206, 4)
    assert (row.possible_ranges, row.pages_to_move) == (1, 300)


def test_compaction_ends_where_its_scanners_meet() -> None:
    """It takes what can be moved from the begin, and free pages of movable blocks from the end."""
    machine = Machine(6).put(3, Kind.ANON, pages=100)
    machine.put(SIZE, Kind.ANON, pages=200).put(SIZE + 300, Kind.SLAB)
    machine.put(2 * SIZE, Kind.ANON, pages=60)
    machine.put(3 * SIZE, Kind.ANON, pages=412)
    machine.put(4 * SIZE, Kind.ANON, pages=12)  # of a block that is no target
    ranges = machine.looked_at()
    targets = np.array([True, True, True, True, False, True])
    (row,) = by_zone(ranges, {}, PAGE, targets)
    # The last is free and stays so. There is room for 100, of the fourth: for the first alone.
    assert (row.free_ranges, row.compacted_ranges, row.possible_ranges) == (1, 2, 4)
    (row,) = by_zone(ranges, {}, PAGE, targets & False)
    assert row.compacted_ranges == 1
    (row,) = by_zone(ranges, {}, PAGE, targets | True)
    # 360 pages of the first three, one of which keeps a slab, into 500 of the fifth.
    assert row.compacted_ranges == 3


@pytest.mark.parametrize(
    ("kind", "flags", "pins", "least"),
    [
        (Kind.FILE, 0, 0, 4),
        (Kind.FILE, DIRTY, 0, 4),  # of tmpfs: nothing but the folio is dirty
        (Kind.FILE, PRIVATE, 0, 4),
        (Kind.FILE, DIRTY | PRIVATE, 0, 2),
        (Kind.FILE, WRITEBACK, 0, 2),
        (Kind.FILE, DIRTY | PRIVATE | UNEVICTABLE, 0, 2),
        (Kind.FILE, 0, 1, 2),
        (Kind.LARGE, DIRTY | PRIVATE, 0, 4),
    ],
)
@pytest.mark.parametrize("step", [1 << 15, 600])
def test_compaction_may_end_at_a_large_folio_that_cannot_be_split(
    kind: Kind, flags: int, pins: int, least: int, step: int
) -> None:
    machine = Machine(5).put(3, Kind.ANON, pages=10).put(2 * SIZE, Kind.ANON, pages=10)
    machine.folio(SIZE + 128, kind, 16, pins, flags).put(4 * SIZE, Kind.SLAB)
    (row,) = by_zone(machine.looked_at(step), {}, PAGE, np.ones(5, np.bool_))
    assert (row.free_ranges, row.compacted_least) == (1, least)
    # One that is held stays, and its range with it.
    assert row.compacted_ranges == 4 - (pins > 0)


def test_more_is_free_if_it_ends_before_it_fills_a_free_range() -> None:
    """A page on a CPU's list keeps that from one free block: there is room for what moves."""
    machine = Machine(2).folio(128, Kind.FILE, 16, flags=DIRTY | PRIVATE)
    machine.put(256, Kind.ANON, pages=100).put(384, Kind.SLAB)
    found = machine.put(SIZE, Kind.NO_REFERENCE, references=0).counted()
    found.settle(np.array([SIZE]), Kind.PER_CPU)
    ranges = Ranges(cast(Any, SimpleNamespace(ranges=found)))
    (row,) = by_zone(ranges, {}, PAGE, np.ones(2, np.bool_))
    assert (row.free_ranges, row.compacted_least, row.compacted_ranges) == (1, 0, 1)


def test_kernels_that_do_not_move_large_folios_pass_them_by() -> None:
    machine = Machine(4).put(3, Kind.ANON, pages=10).folio(SIZE + 128, Kind.FILE, 16)
    machine.put(2 * SIZE, Kind.ANON, pages=10).put(3 * SIZE, Kind.SLAB)
    for moved, free in ((True, 3), (False, 2)):
        ranges = machine.looked_at(600, large_move=moved)
        (row,) = by_zone(ranges, {}, PAGE, np.ones(4, np.bool_))
        assert (row.compacted_least, row.compacted_ranges) == (free, free)


@pytest.mark.parametrize(("listed", "free"), [(0, 1), (413, 1), (414, 0), (512, 1)])
def test_pages_on_per_cpu_lists_are_no_room_for_compaction(listed: int, free: int) -> None:
    """Beside them is room for 100, and then no block there; for 99, and the first is not empty."""
    machine = Machine(3).put(3, Kind.ANON, pages=100).put(2 * SIZE, Kind.ANON, pages=SIZE - 1)
    found = machine.put(SIZE, Kind.NO_REFERENCE, pages=listed, references=0).counted()
    found.settle(np.arange(SIZE, SIZE + listed), Kind.PER_CPU)
    ranges = Ranges(cast(Any, SimpleNamespace(ranges=found)))
    (row,) = by_zone(ranges, {}, PAGE, np.ones(3, np.bool_))
    assert (row.free_ranges, row.compacted_ranges) == (1, free)


def sparse(holes: range, full: int) -> Machine:
    """A page to move, a range with holes, and so many full ones behind it."""
    machine = Machine(2 + full).put(0, Kind.ANON).put(SIZE, Kind.ANON, pages=SIZE * (1 + full))
    for hole in holes:
        machine.kinds[SIZE + hole] = Kind.FREE
    return machine


@pytest.mark.parametrize(
    ("holes", "full", "emptied"),
    [
        (range(1, SIZE, 2), 0, 1),
        (range(1, SIZE, 2), 1, 0),  # it looks at every second page, and finds none
        (range(0, SIZE, 2), 1, 1),
        (range(2, SIZE, 4), 1, 1),
        (range(2, SIZE, 4), 2, 0),
        (range(0, SIZE, 4), 2, 1),
        (range(16, SIZE, 32), 5, 0),
        (range(32, SIZE, 32), 99, 1),  # every 32nd, and no fewer
    ],
)
def test_behind_full_pageblocks_compaction_looks_at_some_pages_only(
    holes: range, full: int, emptied: int
) -> None:
    ranges = sparse(holes, full).looked_at()
    (row,) = by_zone(ranges, {}, PAGE, np.ones(2 + full, np.bool_))
    assert row.compacted_ranges == emptied


def test_the_second_half_of_a_larger_free_block_is_a_full_one_to_compaction() -> None:
    machine = sparse(range(1, SIZE, 2), 2)
    machine.kinds[2 * SIZE :] = Kind.FREE
    targets = np.ones(4, np.bool_)
    (row,) = by_zone(machine.block(2 * SIZE, 10).looked_at(), {}, PAGE, targets)
    assert (row.free_ranges, row.compacted_ranges) == (2, 2)
    machine.block(2 * SIZE, 9).block(3 * SIZE, 9)
    (row,) = by_zone(machine.looked_at(), {}, PAGE, targets)
    assert row.compacted_ranges == 3


def test_a_range_that_is_not_all_ram_is_cut() -> None:
    machine = Machine(2)
    machine.present[:3] = False
    (row,) = by_zone(machine.looked_at(), {}, PAGE)
    assert (row.ranges, row.cut_ranges, row.free_ranges) == (1, 1, 1)


@pytest.mark.parametrize("step", [100, 512, 700])
def test_where_chunks_end_changes_nothing(step: int) -> None:
    machine = Machine(4).put(5, Kind.SLAB, pages=200).put(600, Kind.ANON, pages=30)
    machine.put(1500, Kind.TABLE).put(1600, Kind.ANON, references=2, pages=100)
    whole, parts = machine.looked_at(), machine.looked_at(step)
    targets = np.ones(4, np.bool_)
    assert by_zone(parts, {}, PAGE, targets) == by_zone(whole, {}, PAGE, targets)
    assert by_set(parts) == by_set(whole)


def test_pages_without_a_reference_are_what_the_end_of_the_pass_says() -> None:
    machine = (
        Machine(2).put(4, Kind.NO_REFERENCE, references=0).put(600, Kind.NO_REFERENCE, references=0)
    )
    found = machine.counted()
    found.settle(np.array([4]), Kind.PER_CPU)
    found.settle(np.array([600]), np.array([Kind.TAIL_OF_BLOCK], np.uint8))
    ranges = Ranges(cast(Any, SimpleNamespace(ranges=found)))
    assert ranges.is_free.tolist() == [True, False]
    assert sets(ranges) == {"unexplained": (1, 1)}


def test_a_holder_is_alone_in_a_range_whose_pages_come_in_two_batches() -> None:
    machine = Machine(3).put(5, Kind.SLAB, pages=4).put(SIZE, Kind.SLAB, pages=2)
    ranges = machine.put(2 * SIZE, Kind.SLAB).looked_at()
    pfns = np.array([5, 6, 7, 8, SIZE, SIZE + 1, 2 * SIZE])
    caches, ones = np.array([0, 0, 0, 0, 0, 1, 1]), np.ones(len(pfns), np.int64)
    for middle in range(len(pfns)):
        holders = Holders(ranges, np.full(2, Way.SLAB, np.int64))
        for part in (slice(middle), slice(middle, None)):
            holders.take(pfns[part], caches[part], ones[part])
        rows = [
            (row.holder, row.ranges, row.alone_ranges, row.alone_pages, row.pages)
            for row in holders.rows(["dentry", "vm_area_struct"], PAGE)
        ]
        assert rows == [("dentry", 2, 1, 4, 5), ("vm_area_struct", 2, 1, 1, 2)]


def test_without_room_for_all_ranges_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmscope.drgn.reading.shares.memory_left", lambda: 0)
    with pytest.raises(ValueError, match="more ranges than memory has room for"):
        Machine(2).looked_at()
