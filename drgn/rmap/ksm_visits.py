# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The nodes of interval trees that a reverse map walk of each KSM page visits, from its
``struct ksm_rmap_item`` and the anon_vmas these lead to (see ``rmap_cost``).

Costs a bisection for each item.

Cannot know: the page offset of an item whose VMA is gone, up to v7.2.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.reading.kernel_arrays import distinct
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.rmap.anon_vma_trees import ReverseMaps
from mmscope.drgn.rmap.ksm import Ksm


@dataclass
class KsmVisits:
    """Visits of each KSM page; arrays by its index in ``Ksm.node``."""

    anon_vma: NDArray[np.int64]  # of each item, -1 where it has none
    index: NDArray[np.uint64]  # page offset of each item
    placed: NDArray[np.bool_]  # items whose page offset is known
    whole: NDArray[np.int64]
    indexed: NDArray[np.int64]
    descents: NDArray[np.int64]  # nodes passed on the way down, for the indexed walk
    hold_whole: NDArray[np.int64]
    hold_indexed: NDArray[np.int64]
    anon_vmas: NDArray[np.int64]
    processes: NDArray[np.int64]
    largest: NDArray[np.int64]  # anon_vma with most nodes
    uses_index: bool


def ksm_visits(maps: ReverseMaps, ksm: Ksm, page_shift: int) -> KsmVisits:
    """Count the nodes that a walk of each KSM page visits."""
    anon_vma = find(maps.anon_vmas.address, ksm.item_anon_vma)
    if ksm.item_index is not None:
        index, placed = ksm.item_index, anon_vma >= 0
    else:
        index, placed = _page_offsets(maps, ksm, page_shift)
        placed = placed & (anon_vma >= 0)
    sizes = np.append(maps.tree_size, 0)[anon_vma]  # -1, the last, for none
    overlaps = np.where(placed, maps.overlaps(np.where(placed, anon_vma, -1), index, index), 0)
    descents = np.ceil(np.log2(sizes + 1)).astype(np.int64) * placed
    number = len(ksm.node)

    def total(values: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.zeros(number, np.int64)
        np.add.at(sums, ksm.item_node, values)
        return sums

    def largest(values: NDArray[np.int64]) -> NDArray[np.int64]:
        most = np.zeros(number, np.int64)
        np.maximum.at(most, ksm.item_node, values)
        return most

    def different(values: NDArray[Any]) -> NDArray[np.int64]:
        _, dense = np.unique(values, return_inverse=True)
        pairs = distinct(ksm.item_node * (len(values) + 1) + dense)
        return np.bincount(pairs // (len(values) + 1), minlength=number)

    # The anon_vma with the largest tree, page by page.
    order = np.lexsort((sizes, ksm.item_node))
    most = np.full(number, -1, np.int64)
    most[ksm.item_node[order]] = anon_vma[order]
    return KsmVisits(
        anon_vma=anon_vma,
        index=index,
        placed=placed,
        whole=total(sizes),
        indexed=total(overlaps),
        descents=total(descents),
        hold_whole=largest(sizes),
        hold_indexed=largest(overlaps + descents),
        anon_vmas=different(ksm.item_anon_vma),
        processes=different(ksm.item_mm),
        largest=most,
        uses_index=ksm.item_index is not None,
    )


def _page_offsets(
    maps: ReverseMaps, ksm: Ksm, page_shift: int
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """
    The page offset of each item's address in the VMA that has it now (``linear_page_index()``), as
    v7.3 would have kept it; and which items have such a VMA.
    """
    vmas = maps.vmas
    mms = distinct(vmas["mm"])
    # VMAs of one process do not overlap, so that (process, address) sorts them all. An address has
    # less than 57 bits.
    bits = np.uint64(57 - page_shift)
    shift = np.uint64(page_shift)
    key = (find(mms, vmas["mm"]).astype(np.uint64) << bits) | (vmas["start"] >> shift)
    order = np.argsort(key, kind="stable")
    mm = find(mms, ksm.item_mm)
    wanted = (mm.astype(np.uint64) << bits) | (ksm.item_address >> shift)
    if not len(order):
        return np.zeros(len(mm), np.uint64), np.zeros(len(mm), np.bool_)
    at = order[np.maximum(np.searchsorted(key[order], wanted, "right") - 1, 0)]
    inside = (
        (mm >= 0)
        & (vmas["mm"][at] == ksm.item_mm)
        & (vmas["start"][at] <= ksm.item_address)
        & (ksm.item_address < vmas["end"][at])
    )
    offset = (ksm.item_address - vmas["start"][at]) >> shift
    return vmas["pgoff"][at].astype(np.uint64) + offset, inside


def ksm_items_by_anon_vma(maps: ReverseMaps, visits: KsmVisits) -> NDArray[np.int64]:
    """How many of KSM's mappings are found through each anon_vma."""
    return np.bincount(visits.anon_vma[visits.anon_vma >= 0], minlength=len(maps.anon_vmas))


def visits_here(visits: KsmVisits, at: int) -> tuple[int, int]:
    """What this kernel visits for a KSM page: in a pass, and at most at a stretch."""
    if visits.uses_index:
        return int(visits.indexed[at] + visits.descents[at]), int(visits.hold_indexed[at])
    return int(visits.whole[at]), int(visits.hold_whole[at])


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("ksm")
