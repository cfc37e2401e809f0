# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One huge page's struct pages as the page tables have them: which page of them lies on which frame.

One example of each kind that there is: an optimised hugetlb page of each size and one that is not,
a page of each device. What a picture of them is drawn from; entries that follow one another are
written as one run, so that the 4,096 of a page of 1 GiB are two.
"""

from collections.abc import Iterator

import numpy as np

from mmscope.drgn.free.device_ranges import PagemapRange
from mmscope.drgn.reading.kernel_arrays import Bools, S64s, distinct
from mmscope.drgn.struct_pages.hugetlb import HugePages
from mmscope.drgn.struct_pages.memmap import Leaves, Memmap
from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import table

MAX_EXAMPLES = 8


@table("vmemmap_examples", "Struct pages of one huge page", not_compared="it has examples")
class VmemmapExample:
    """Consecutive entries of a huge page's struct pages that map alike."""

    example: str = column(holds="words", key=True, help="kind of page")
    pfn: int = column(key=True, help="of the huge page's head")
    page_bytes: int = column(unit="bytes", high=MOST_BYTES, help="of the huge page")
    first: int = column(key=True, help="first page of struct pages, from 0")
    entries: int = column(unit="entries", help="number of such pages")
    frame_pfn: int = column(help="frame of the first")
    same_frame: bool = column(help="all on this frame; else each on the next")
    level: str = column(holds="words", help="of the entry that maps them")
    writable: bool = column(help="HVO maps shared frames read-only")


# What to look at: the words of the example, the huge page's first frame, its pages.
Wanted = tuple[str, int, int]


def wanted_examples(
    pages: HugePages, pagemaps: list[PagemapRange], page_shift: int
) -> list[Wanted]:
    """One page of each kind."""
    found: list[Wanted] = []
    for order in distinct(pages["order"]).tolist():
        for flagged, words in ((True, "with HVO"), (False, "without HVO")):
            here = pages[(pages["order"] == order) & (pages["flagged"] == flagged)]
            found += [(f"hugetlb, {words}", pfn, 1 << order) for pfn in here["pfn"][:1].tolist()]
    levels = page_shift - 3
    for each in pagemaps:
        # As large as an entry of the upper levels of page tables maps.
        compound = 1 << min(max(each.vmemmap_shift, levels), 2 * levels)
        start = -(-each.start_pfn // compound) * compound
        if start + compound <= each.end_pfn:
            words = "with an altmap" if each.altmap else "without an altmap"
            if each.vmemmap_shift:
                words += f", in pages of {compound << page_shift >> 20:,} MiB"
            found.append((f"device ({each.type}) {words}", start, compound))
    unique = {(example, count): (example, pfn, count) for example, pfn, count in reversed(found)}
    return sorted(unique.values(), key=found.index)[:MAX_EXAMPLES]


def vmemmap_examples(where: Memmap, wanted: list[Wanted], leaves: Leaves) -> list[VmemmapExample]:
    """The entries of those of the wanted pages whose struct pages some entries map."""
    page = 1 << where.page_shift
    rows = []
    for example, pfn, pages in wanted:
        count = pages * where.page_bytes // page
        places = pfn * where.page_bytes + np.arange(count, dtype=np.int64) * page
        at = np.searchsorted(leaves["offset"], places, "right") - 1
        ends = leaves["offset"] + leaves["size"]
        if not count or at[0] < 0 or (places >= ends[at]).any():
            continue
        mapped = leaves[at]
        frames = mapped["frame"] + (places - mapped["offset"]) // page
        large, writable = mapped["size"] > page, mapped["writable"]
        step = np.diff(frames)
        breaks = np.diff(writable) | np.diff(large) | ((step != 0) & (step != 1))
        for first, last in _runs(step, breaks):
            rows.append(
                VmemmapExample(
                    example,
                    pfn,
                    pages << where.page_shift,
                    first,
                    last - first + 1,
                    int(frames[first]),
                    last > first and int(step[first]) == 0,
                    "pmd" if large[first] else "pte",
                    bool(writable[first]),
                )
            )
    return rows


def _runs(step: S64s, breaks: Bools) -> Iterator[tuple[int, int]]:
    """
    First and last of the frames with the same step from one to the next; what lies on one frame
    stays together.
    """
    first = 0
    while first <= len(step):
        last = first
        while (
            last < len(step)
            and not breaks[last]
            and step[last] == step[first]
            and (step[first] == 0 or last + 1 == len(step) or step[last + 1] != 0)
        ):
            last += 1
        yield first, last
        first = last + 1


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("vmemmap", "vmemmap_examples")
