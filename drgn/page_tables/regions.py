# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Regions of an address space: neighbouring VMAs (``struct vm_area_struct``), cut at the largest gaps
between them.

Costs a sort of the VMAs that were read.

Cannot know: what is mapped in them, which the scan of the page tables adds up.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.page_tables.page_table_formats import PageTableFormat
from mmscope.drgn.page_tables.swap_types import HUGETLB, PAGE, SWAP, ZERO
from mmscope.drgn.processes.vm_areas import VmAreas

# Into how many regions an address space is cut at most, at its largest gaps.
REGIONS = 24


@dataclass(frozen=True, slots=True)
class Regions:
    """Regions of the detailed processes, and what each holds."""

    owners: NDArray[np.int64]
    starts: NDArray[np.uint64]
    ends: NDArray[np.uint64]
    vmas: NDArray[np.int64]
    mapped: NDArray[np.int64]
    # [region, …] bytes by what is mapped there, in the order of REGION_KINDS; and PTE tables.
    bytes: NDArray[np.int64]
    pte_tables: NDArray[np.int64]


REGION_KINDS = ("small", "huge", "hugetlb", "zero", "huge_zero", "swap", "other")
# Of the kinds of PTEs, where they go.
REGION_OF_KIND = {PAGE: "small", ZERO: "zero", SWAP: "swap", HUGETLB: "hugetlb"}


def cut_regions(areas: VmAreas, owners: Iterable[int], form: PageTableFormat) -> Regions:
    """
    Cut the address spaces of some processes into regions.

    A region's PTE tables are its own: it is cut only where no table reaches across.
    """
    table = np.uint64(form.above_ptes.shift)
    firsts: list[NDArray[np.int64]] = []
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
    first = np.concatenate(firsts) if firsts else np.zeros(0, np.int64)
    at = np.searchsorted(first, np.arange(len(areas)), side="right") - 1
    # VMAs of other processes lie between: they belong to none.
    wanted = np.isin(areas.owners, list(owners))
    at = at[wanted]
    size = (areas.ends - areas.starts).astype(np.int64)[wanted]
    count = len(first)
    last = np.zeros(count, np.int64)
    last[at] = np.flatnonzero(wanted)
    mapped = np.zeros(count, np.int64)
    np.add.at(mapped, at, size)
    return Regions(
        areas.owners[first],
        areas.starts[first],
        areas.ends[last],
        np.bincount(at, minlength=count),
        mapped,
        np.zeros((count, len(REGION_KINDS)), np.int64),
        np.zeros(count, np.int64),
    )
