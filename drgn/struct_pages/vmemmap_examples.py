# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One huge page's struct pages as the page tables have them: which page of them lies on which frame.

One example of each kind that there is: an optimised hugetlb page of each size and one that is not,
a page of each device. What a picture of them is drawn from; entries that follow one another are
written as one run, so that the 4,096 of a page of 1 GiB are two.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.free.device_ranges import PagemapRange
from mmscope.drgn.reading.kernel_arrays import distinct
from mmscope.drgn.struct_pages.hugetlb import HugePages
from mmscope.drgn.struct_pages.memmap import Memmap
from mmscope.drgn.struct_pages.vmemmap import Leaves
from mmscope.drgn.tables.rows import MOST_BYTES, column, table_row
from mmscope.drgn.tables.table import Table

MAX_EXAMPLES = 8


@table_row
class VmemmapExample:
    """Entries of a huge page's struct pages, one after the other, that lead to frames alike."""

    example: str = column(holds="words", key=True, help="what kind of page it is")
    pfn: int = column(key=True, help="page frame of the huge page's head")
    page_bytes: int = column(unit="bytes", high=MOST_BYTES, help="of the huge page")
    first: int = column(key=True, help="the first of these pages of struct pages, from 0")
    entries: int = column(unit="entries", help="how many pages they are")
    frame_pfn: int = column(help="page frame that the first of them lies on")
    same_frame: bool = column(help="all lie on this frame; otherwise each on the one behind")
    level: str = column(holds="words", help="of the entry that maps them")
    writable: bool = column(help="that entry allows writes; HVO maps shared frames read-only")


VMEMMAP_EXAMPLES = Table(
    "vmemmap_examples",
    "Struct pages of one huge page",
    VmemmapExample,
    not_compared="it has examples",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A huge page to look at."""

    example: str
    pfn: int
    pages: int


def wanted_examples(
    pages: HugePages, pagemaps: list[PagemapRange], page_shift: int
) -> list[Wanted]:
    """One page of each kind."""
    found = []
    for order in distinct(pages.orders).tolist():
        for flagged, words in ((True, "with HVO"), (False, "without HVO")):
            at = np.flatnonzero((pages.orders == order) & (pages.flagged == flagged))
            if len(at):
                found.append(Wanted(f"hugetlb, {words}", int(pages.pfns[at[0]]), 1 << order))
    levels = page_shift - 3
    for each in pagemaps:
        # As large as an entry of the upper levels of page tables maps.
        compound = 1 << min(max(each.vmemmap_shift, levels), 2 * levels)
        start = -(-each.start_pfn // compound) * compound
        if start + compound <= each.end_pfn:
            words = "with an altmap" if each.altmap else "without an altmap"
            if each.vmemmap_shift:
                words += f", in pages of {compound << page_shift >> 20:,} MiB"
            found.append(Wanted(f"device ({each.type}) {words}", start, compound))
    unique = {each.example + str(each.pages): each for each in reversed(found)}
    return sorted(unique.values(), key=found.index)[:MAX_EXAMPLES]


class ExamplesInPageTables:
    """Takes the entries of the wanted pages; a taker of the vmemmap walk."""

    def __init__(self, wanted: list[Wanted], page_shift: int) -> None:
        self.wanted = wanted
        self.page_shift = page_shift
        self.rows: list[VmemmapExample] = []

    def take(self, where: Memmap, leaves: Leaves) -> None:
        page = 1 << where.page_shift
        offsets = (leaves.addresses - np.uint64(where.base)).astype(np.int64)
        for each in self.wanted:
            start = each.pfn * where.page_bytes
            count = each.pages * where.page_bytes // page
            places = start + np.arange(count, dtype=np.int64) * page
            at = np.searchsorted(offsets, places, "right") - 1
            if not count or at[0] < 0 or (places >= (offsets + leaves.sizes)[at]).any():
                continue
            frames = leaves.frames[at] + (places - offsets[at]) // page
            self.rows += self._runs(each, frames, leaves.writable[at], leaves.sizes[at] > page)

    def _runs(
        self,
        each: Wanted,
        frames: NDArray[np.int64],
        writable: NDArray[np.bool_],
        large: NDArray[np.bool_],
    ) -> list[VmemmapExample]:
        step = np.diff(frames)
        breaks = (np.diff(writable) | np.diff(large)) | ((step != 0) & (step != 1))
        rows, first = [], 0
        while first < len(frames):
            # As far as the step from frame to frame stays what it is first; what lies on one frame
            # stays together.
            last = first
            while (
                last < len(step)
                and not breaks[last]
                and step[last] == step[first]
                and (step[first] == 0 or last + 1 == len(step) or step[last + 1] != 0)
            ):
                last += 1
            rows.append(
                VmemmapExample(
                    each.example,
                    each.pfn,
                    each.pages << self.page_shift,
                    first,
                    last - first + 1,
                    int(frames[first]),
                    last > first and int(step[first]) == 0,
                    "pmd" if large[first] else "pte",
                    bool(writable[first]),
                )
            )
            first = last + 1
        return rows


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("vmemmap", "vmemmap_examples")
