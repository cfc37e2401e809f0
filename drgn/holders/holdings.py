# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pages by their holders, before the pass over all struct pages; and counted in it, each once.

A holder names a page by the address of its struct page or by its own in the direct map, and vmalloc
memory by an address in it. Of a compound page all of it is held: its head is looked up, and its
order. A page that two hold is the first one's. In the pass each held page is counted in the class
that the ledger puts it in, so that the rows of all holders of a class are never more than the
class.

Costs two reads for each run of neighbours among the struct pages of what is held.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from drgn import Program, sizeof
from drgn.helpers.linux.mm import pfn_to_virt

from mmscope.drgn.opening.constants import flag
from mmscope.drgn.page_tables.vmalloc_areas import VmallocAreas
from mmscope.drgn.processes.open_files import NO_PROCESS, Opener
from mmscope.drgn.reading.kernel_arrays import Bools, Gaps, S64s, U8s, U64s, distinct, read_array
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.shares import Shared, merges, summed
from mmscope.drgn.reading.struct_pages import (
    compound_info_is_mask,
    page_dtype,
    second_page_dtype,
)

MAX_HELD = 16 << 20  # blocks of pages
MOST_ORDER = 30
FEW = 1 << 12  # pages that need not be joined
TOGETHER = 1 << 18  # pages that are looked at at a time
KIND_BITS = 8
POINTER = np.dtype("<u8")


def pointers(prog: Program, address: int, count: int, gaps: Gaps) -> U64s:
    """An array of them."""
    parts = [part for _, part in read_array(prog, address, count, POINTER, gaps)]
    return np.concatenate([np.empty(0, np.uint64), *parts])


class Holder(NamedTuple):
    """A holder of pages: a kind of thing, which of them, and the process that has it open."""

    kind: str
    name: str = ""
    who: Opener = NO_PROCESS


class Machine(NamedTuple):
    """A virtual machine: its name, process, vCPUs, and the pages that it was given, if known."""

    name: str
    who: Opener
    cpus: int
    given: int | None


class _Part(NamedTuple):
    """Blocks of one holder and kind: their first page frames, and how many pages each has."""

    starts: S64s
    counts: S64s
    kind: int
    of: int


def by_holder(holders: Sequence[Holder]) -> Iterator[tuple[Holder, S64s]]:
    """Every holder once, and the positions where it is."""
    numbers: dict[Holder, int] = {}
    of = np.array([numbers.setdefault(each, len(numbers)) for each in holders], np.int64)
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of[order], np.arange(len(numbers) + 1))
    for holder, (low, high) in zip(numbers, itertools.pairwise(starts.tolist()), strict=True):
        yield holder, order[low:high]


class Holdings:
    """Blocks of pages and their holders, as they are found; :meth:`settle` sorts them."""

    def __init__(self, prog: Program, vmalloc: VmallocAreas | None) -> None:
        self._prog, self.vmalloc = prog, vmalloc
        self.holders: list[Holder] = []
        self.objects: list[int] = []
        self._numbers: dict[Holder, int] = {}
        self._parts: list[_Part] = []
        self._size = np.uint64(sizeof(prog.type("struct page")))
        ranges = sorted(valid_page_ranges(prog))
        self._first, self._stop, self._at = (
            np.array(column, kind)
            for column, kind in zip(
                zip(*ranges, strict=True), (np.int64, np.int64, np.uint64), strict=True
            )
        )
        self._direct = np.uint64(pfn_to_virt(prog, 0).value_())
        self._shift = np.uint64(prog["PAGE_SHIFT"].value_())
        self.gaps = Gaps()
        self.in_slabs: Counter[int] = Counter()  # bytes of objects, by number of the holder
        self.machines: list[Machine] = []
        self.guest_files: dict[int, Holder] = {}  # by struct address_space
        self.stacks: list[S64s] = []  # vmalloc areas that are stacks of tasks
        self.missing: list[str] = []  # kinds of holders, and why
        self.failed: dict[str, str] = {}  # of those that were not looked for at all: why
        self.strange = 0  # addresses that are no page's
        # After settle(): blocks that do not overlap, ascending.
        self.starts = self.stops = self.of = self.kinds = np.empty(0, np.int64)

    def fail(self, *kinds: str, why: str) -> None:
        """Note that some kinds of holders were not looked for."""
        self.missing.append(why)
        self.failed |= dict.fromkeys(kinds, why)

    def count(self, holder: Holder, objects: int) -> None:
        """Add things of a holder's kind to their number."""
        self._number(holder, objects)

    def objects_of(self, holder: Holder, size: int) -> None:
        """Add bytes of a holder's that are objects of slabs, which others have a part of too."""
        self.in_slabs[self._number(holder, 0)] += size

    def _number(self, holder: Holder, objects: int) -> int:
        if holder not in self._numbers:
            self._numbers[holder] = len(self.holders)
            self.holders.append(holder)
            self.objects.append(0)
        number = self._numbers[holder]
        self.objects[number] += objects
        return number

    def frames(
        self, holder: Holder, kind: int, pfns: S64s, counts: S64s | int = 1, *, objects: int = 1
    ) -> None:
        """
        Add blocks of pages by their first page frames.

        :param kind: of the ledger, that pages are of which nothing else is known; 0: none, they
            have a mark or a place of their own.
        :param counts: pages of each block that is no compound page.
        :param objects: how many things of the holder's kind these are.
        """
        number = self._number(holder, objects)
        row = np.searchsorted(self._stop, pfns, "right")
        there = row < len(self._first)
        there &= self._first[np.minimum(row, len(self._first) - 1)] <= pfns
        self.strange += int((~there).sum())
        counts = np.broadcast_to(np.asarray(counts, np.int64), pfns.shape)[there]
        pfns = pfns[there]
        for first in range(0, len(pfns), TOGETHER):
            part = pfns[first : first + TOGETHER], counts[first : first + TOGETHER]
            if len(part[0]) > FEW:
                part = self._joined(*part)
            self._parts.append(_Part(*part, kind, number))

    def pages(
        self, holder: Holder, kind: int, pages: U64s, objects: int = 1, counts: S64s | int = 1
    ) -> None:
        """Add pages by the addresses of their struct pages; 0 is none."""
        sizes = np.broadcast_to(np.asarray(counts, np.int64), pages.shape)[pages != 0]
        pages = pages[pages != 0]
        order = np.argsort(self._at)
        ends = self._at + (self._stop - self._first).astype(np.uint64) * self._size
        row = np.searchsorted(self._at[order], pages, "right").astype(np.int64) - 1
        at = order[np.maximum(row, 0)]
        inside = (row >= 0) & (pages < ends[at])
        self.strange += int((~inside).sum())
        at, pages, sizes = at[inside], pages[inside], sizes[inside]
        places = ((pages - self._at[at]) // self._size).astype(np.int64)
        self.frames(holder, kind, self._first[at] + places, sizes, objects=objects)

    def runs(self, holder: Holder, pages: U64s, counts: S64s) -> None:
        """Add runs of pages by their first struct pages; any may be a part of a compound page."""
        pages, counts = pages[pages != 0], counts[pages != 0]
        stops = np.cumsum(counts)
        for first in range(0, int(stops[-1]) if len(stops) else 0, TOGETHER):
            at = np.arange(first, min(first + TOGETHER, int(stops[-1])))
            run = np.searchsorted(stops, at, "right")
            places = (at - (stops - counts)[run]).astype(np.uint64)
            self.pages(holder, 0, pages[run] + places * self._size, objects=0)
        self.count(holder, 1)

    def memory(
        self,
        holder: Holder,
        kind: int,
        addresses: U64s,
        counts: S64s | int = 1,
        *,
        objects: int = 1,
    ) -> None:
        """
        Add blocks by addresses in the direct map; 0 is none. One in vmalloc memory is all of its
        area.
        """
        direct = addresses != 0
        if self.vmalloc is not None:
            direct &= self.vmalloc.at(addresses) < 0
        sizes = np.broadcast_to(np.asarray(counts, np.int64), addresses.shape)[direct]
        pfns = ((addresses[direct] - self._direct) >> self._shift).astype(np.int64)
        self.frames(holder, kind, pfns, sizes, objects=objects)
        self.areas(holder, addresses[~direct], objects=0)

    def areas(self, holder: Holder, addresses: U64s, *, objects: int = 1) -> None:
        """Add the vmalloc areas that some addresses lie in; others are left out."""
        self.count(holder, objects)
        if self.vmalloc is None or not len(addresses):
            return
        at = distinct(self.vmalloc.at(addresses))
        mapped = self.vmalloc.pages_of(at[at >= 0])
        self.frames(holder, 0, mapped["pfn"], mapped["pages"], objects=0)

    def without_area(self, stacks: U64s) -> U64s:
        """Note which vmalloc areas are stacks of tasks; returns the stacks that none is."""
        if self.vmalloc is None:
            return stacks[:0]
        at = self.vmalloc.at(stacks)
        begin = (at >= 0) & np.isin(stacks, self.vmalloc.areas["start"])
        self.stacks.append(at[begin])
        return stacks[~begin]

    def settle(self) -> None:
        """Find the compound pages, and whose what several hold is: the first one's."""
        if not self._parts:
            return
        starts = np.concatenate([part.starts for part in self._parts])[:MAX_HELD]
        counts = np.concatenate([part.counts for part in self._parts])[:MAX_HELD]
        lengths = [len(part.starts) for part in self._parts]
        kinds = np.repeat([part.kind for part in self._parts], lengths)[:MAX_HELD]
        of = np.repeat([part.of for part in self._parts], lengths)[:MAX_HELD]
        if len(starts) == MAX_HELD:
            self.missing.append(f"what is held beyond {MAX_HELD:,} blocks of pages")
        starts, counts, known, reserved, _ = self._compounds(starts, counts)
        kinds[reserved] = 0  # the zero page, say, or memory of before the page allocator
        starts, counts, kinds, of = (each[known] for each in (starts, counts, kinds, of))
        # Pieces that no block ends within, each the first one's of those that have it.
        cuts = np.unique(np.concatenate([starts, starts + counts]))
        low, high = np.searchsorted(cuts, starts), np.searchsorted(cuts, starts + counts)
        number = high - low
        piece = np.repeat(low - np.cumsum(number) + number, number) + np.arange(number.sum())
        piece, first = np.unique(piece, return_index=True)
        block = np.repeat(np.arange(len(starts)), number)[first]
        self.starts, self.stops = cuts[piece], cuts[piece + 1]
        self.kinds, self.of = kinds[block], of[block]

    def _joined(self, starts: S64s, counts: S64s) -> tuple[S64s, S64s]:
        """The same pages in as few blocks as may be: compound pages once, neighbours in one."""
        starts, counts, known, reserved, single = self._compounds(starts, counts)
        order = np.lexsort((-counts, starts))
        order = order[known[order]]
        order = order[np.diff(starts[order], prepend=-1) != 0]
        starts, counts, single = starts[order], counts[order], (single & ~reserved)[order]
        stops = starts + counts
        joined = single[1:] & single[:-1] & (starts[1:] == stops[:-1])
        starts = starts[np.append(True, ~joined)[: len(starts)]]
        return starts, stops[np.append(~joined, True)[: len(stops)]] - starts

    def _compounds(self, starts: S64s, counts: S64s) -> tuple[S64s, S64s, Bools, Bools, Bools]:
        """
        First page and pages of each block, as its struct page says; which could be read, which the
        page allocator does not have, and which are no compound page.
        """
        prog, gaps = self._prog, self.gaps
        dtype = page_dtype(prog, ("flags", "tail"))
        pages, read = read_scattered(prog, self._struct_page(starts), dtype, gaps)
        tail = read & ((pages["tail"] & np.uint64(1)) != 0)
        here = self._struct_page(starts[tail])
        word = pages["tail"][tail]
        head = here & word if compound_info_is_mask(prog) else word - np.uint64(1)
        starts = starts.copy()
        back = ((here - head) // self._size).astype(np.int64)
        sane = (head <= here) & (back < 1 << MOST_ORDER)
        starts[tail] -= np.where(sane, back, 0)
        heads, known = read_scattered(prog, self._struct_page(starts), dtype, gaps)
        is_head = known & ((heads["flags"] & np.uint64(flag(prog, "PG_head"))) != 0)
        second, also = read_scattered(
            prog,
            self._struct_page(starts[is_head]) + self._size,
            second_page_dtype(prog, ["order"]),
            gaps,
        )
        orders = (second["order"] & 0xFF).astype(np.int64)
        whole = also & (orders > 0) & (orders <= MOST_ORDER)
        self.strange += int((~whole).sum())
        counts = counts.copy()
        counts[is_head] = np.where(whole, np.int64(1) << np.where(whole, orders, 0), 1)
        read = read & known
        read[tail] &= sane
        reserved = read & ((heads["flags"] & np.uint64(flag(prog, "PG_reserved"))) != 0)
        return starts, counts, read, reserved, ~is_head

    def _struct_page(self, pfns: S64s) -> U64s:
        row = np.minimum(np.searchsorted(self._stop, pfns, "right"), len(self._first) - 1)
        return self._at[row] + (pfns - self._first[row]).astype(np.uint64) * self._size


class HeldPages(Shared):
    """
    The part of the pass that counts what is held.

    :ivar pages: by holder and kind of the ledger; *alone*: by holder, that no other has.
    """

    MERGES = merges(pages=summed, alone=summed)

    def __init__(self, holdings: Holdings) -> None:
        self._starts, self._stops, self._of = holdings.starts, holdings.stops, holdings.of
        self.pages: Counter[int] = Counter()
        self.alone: Counter[int] = Counter()

    def take(
        self, first: int, kinds: U8s, present: Bools, is_alone: Callable[[S64s], Bools]
    ) -> None:
        """
        Count the pages of a chunk.

        :param kinds: of each page, as the ledger has found out; *first*: the page frame of the
            first.
        :param is_alone: whether the pages at some places are the holder's alone.
        """
        low = int(np.searchsorted(self._stops, first, "right"))
        high = int(np.searchsorted(self._starts, first + len(kinds), "left"))
        if low >= high:
            return
        begin = np.maximum(self._starts[low:high] - first, 0)
        sizes = np.minimum(self._stops[low:high] - first, len(kinds)) - begin
        at = np.repeat(begin - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
        of = np.repeat(self._of[low:high], sizes)
        of, at = of[present[at]], at[present[at]]
        for sums, keys in (
            (self.pages, of << KIND_BITS | kinds[at]),
            (self.alone, of[is_alone(at)]),
        ):
            found, counts = np.unique(keys, return_counts=True)
            summed(sums, dict(zip(found.tolist(), counts.tolist(), strict=True)))

    def rows(self) -> list[tuple[int, int, int]]:
        """(position of the holder, kind, pages)."""
        mask = (1 << KIND_BITS) - 1
        return [(key >> KIND_BITS, key & mask, pages) for key, pages in self.pages.items()]
