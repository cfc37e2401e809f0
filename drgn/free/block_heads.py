# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The first pages of free blocks in a chunk of struct pages, looked for once for all who need them.

A buddy page has the page type that VMCOREINFO calls PAGE_BUDDY_MAPCOUNT_VALUE in ``_mapcount``, on
every kernel from 5.10, and its order in ``private`` (include/linux/page-flags.h).
"""

from dataclasses import dataclass

import numpy as np
from drgn import Program

from mmscope.drgn.opening.constants import vmcoreinfo_number
from mmscope.drgn.reading.kernel_arrays import Array, S64s
from mmscope.drgn.reading.struct_pages import PageChunk


@dataclass(frozen=True, slots=True)
class BlockHeads:
    """
    The free blocks that begin in a chunk.

    :ivar places: of their first pages in the chunk, ascending.
    :ivar ends: the place after each, which may be after the chunk.
    :ivar implausible: page frames of those whose order cannot be, or that are not aligned to it.
    """

    places: S64s
    orders: S64s
    ends: S64s
    implausible: S64s

    def fill(self, begin: int, end: int) -> bool:
        """True if the pages from one place to another are all theirs, and a block begins there."""
        return bool(
            len(self.places)
            and self.places[0] == begin
            and self.ends[-1] >= end
            and (self.places[1:] == self.ends[:-1]).all()
        )


class BlockFinder:
    """
    Finds them.

    :raises LookupError: as :func:`buddy_mapcount`.
    :raises ValueError: as :func:`buddy_mapcount`.
    """

    columns = ("mapcount", "private")

    def __init__(self, prog: Program) -> None:
        self._mapcount = buddy_mapcount(prog)
        self.max_order = max_order(prog)

    def of(self, chunk: PageChunk) -> BlockHeads:
        """The free blocks that begin in a chunk."""
        return chunk.once("block heads", lambda: self._find(chunk))

    def _find(self, chunk: PageChunk) -> BlockHeads:
        places = np.flatnonzero(chunk.packed("mapcount") == self._mapcount)
        orders = chunk["private"][places].astype(np.int64)
        pfns = chunk.start_pfn + places
        sound = (orders >= 0) & (orders <= self.max_order)
        sound &= (pfns & ((1 << np.clip(orders, 0, self.max_order)) - 1)) == 0
        if not sound.all():
            places, orders = places[sound], orders[sound]
        return BlockHeads(places, orders, places + (1 << orders), pfns[~sound])


def ascending(columns: tuple[Array, ...]) -> tuple[Array, ...]:
    """Parallel columns in the order of the first, which most often they have, as the pass goes."""
    first, *_ = columns
    if (first[1:] > first[:-1]).all():
        return columns
    order = np.argsort(first, kind="stable")
    return tuple(column[order] for column in columns)


def buddy_mapcount(prog: Program) -> int:
    """
    The ``_mapcount`` of a page that heads a free block, as a signed 32-bit number.

    :raises LookupError: the target has no VMCOREINFO with PAGE_BUDDY_MAPCOUNT_VALUE.
    :raises ValueError: that line is damaged.
    """
    number = vmcoreinfo_number(prog, "NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)")
    if number is None:
        raise LookupError(
            "VMCOREINFO has no PAGE_BUDDY_MAPCOUNT_VALUE: not a kernel of 2.6.39 or newer"
        )
    value = number & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def max_order(prog: Program) -> int:
    """The largest order of a free block (MAX_PAGE_ORDER; MAX_ORDER - 1 before v6.4)."""
    return (prog.type("struct zone").member("free_area").type.length or 1) - 1
