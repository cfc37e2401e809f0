# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pages of user memory that a driver has pinned (``pin_user_pages()``, mm/gup.c): the part of the pass
over all struct pages that counts them.

A large folio counts its pins (``folio._pincount``). A small one has ``GUP_PIN_COUNTING_BIAS``
references for each (include/linux/mm.h): what it has beyond its mappings, so that a page that a
thousand processes map is not taken for one.

Costs a comparison a page. Cannot know: who pinned a page, and whether for good (FOLL_LONGTERM);
more than a thousand references of another kind, which nothing takes by design.
"""

from collections import Counter

import numpy as np
from drgn import Program

from mmscope.drgn.free.pageblocks import PageblockTypes
from mmscope.drgn.ledger.page_kinds import Kind, kinds_where
from mmscope.drgn.opening.constants import flag
from mmscope.drgn.reading.kernel_arrays import Bools, S64s, U8s, U32s
from mmscope.drgn.reading.shares import Shared, merges, summed
from mmscope.drgn.reading.struct_pages import PageChunk, page_dtype, second_page_dtype

BIAS = 1 << 10
# Of what user memory has, and what udmabuf pinned of a memfd (memfd_pin_folios(), since v6.11);
# others are not pinned, and have other things in these words.
OF_USERS = kinds_where(
    lambda kind: kind.owner in ("anonymous", "page cache") or kind in (Kind.HUGETLB, Kind.DMA_BUF)
)


class PinnedPages(Shared):
    """
    The part of the pass.

    :ivar pages, pins: by zone index, kind, migratetype (-1 unknown) and order.
    :raises LookupError: the kernel has no count of pins in large folios.
    """

    MERGES = merges(pages=summed, pins=summed)

    def __init__(self, prog: Program, types: PageblockTypes) -> None:
        try:
            second_page_dtype(prog, ["pincount"])
            self.column, self._at = "pincount", 1
        except LookupError:  # 5.10
            page_dtype(prog, ["third_pincount"])
            self.column, self._at = "third_pincount", 2
        self._head, self.types = np.uint32(flag(prog, "PG_head")), types
        self.pages: Counter[tuple[int, int, int, int]] = Counter()
        self.pins: Counter[tuple[int, int, int, int]] = Counter()

    def take(self, chunk: PageChunk, flags: U32s, kinds: U8s, zones: S64s, present: Bools) -> None:
        """Count the pinned pages of a chunk."""
        is_head = (flags & self._head) != 0
        many = np.flatnonzero(chunk.packed("refcount") >= BIAS)
        small = many[OF_USERS[kinds[many]] & present[many] & ~is_head[many]]
        if len(small):
            small = small[(chunk["tail"][small] & np.uint64(1)) == 0]
            mapped = chunk["mapcount"][small].astype(np.int64) + 1
            pins = (chunk["refcount"][small] - np.maximum(mapped, 0)) // BIAS
            here = pins > 0
            self._count(
                chunk, small[here], kinds, zones, np.zeros(int(here.sum()), np.int64), pins[here]
            )
        heads = np.flatnonzero(is_head)
        heads = heads[OF_USERS[kinds[heads]] & present[heads] & (heads + self._at < len(chunk))]
        heads = heads[chunk.order_of(heads) >= self._at]  # which has so many pages
        pins = chunk[self.column][heads + self._at].astype(np.int64)
        heads, pins = heads[pins > 0], pins[pins > 0]
        if len(heads):
            self._count(chunk, heads, kinds, zones, chunk.order_of(heads), pins)

    def _count(
        self, chunk: PageChunk, at: S64s, kinds: U8s, zones: S64s, orders: S64s, pins: S64s
    ) -> None:
        types = self.types.of(chunk.start_pfn + at)
        rows = np.stack([zones[at], kinds[at], types, orders], axis=1, dtype=np.int64)
        unique, back = np.unique(rows, axis=0, return_inverse=True)
        counts = np.bincount(back.ravel(), minlength=len(unique))
        sums = np.bincount(back.ravel(), pins, minlength=len(unique))
        for row, count, number in zip(unique.tolist(), counts.tolist(), sums.tolist(), strict=True):
            zone, kind, type_, order = row
            key = zone, kind, type_, order
            self.pages[key] += count << max(order, 0)
            self.pins[key] += int(number)
