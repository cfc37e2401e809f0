# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tags of pages, the line of source that allocated each: the reference to its alloc_tag that each
allocation's first page has (``get_page_tag_ref()``, include/linux/pgalloc_tag.h).

It is a pointer in the page_ext, at the offset of ``page_alloc_tagging_ops``; or, since "alloc_tag:
support for page allocation tag compression" (4835f747d3ed, in v6.14) and booted with it, an index
in the bits of the page flags that nothing else needs.

Costs a read for each stretch of neighbours among the pages that are asked for. Cannot know: who
allocated before page_ext was there (``alloc_tag_add_early_pfn()``), such pages have no tag; and
whether profiling was off for a while, in which neither an allocation nor its end touches the
reference: such pages have none, or the one of who had the page before.
"""

from collections import Counter

import numpy as np
from drgn import Program, sizeof

from mmscope.drgn.owners.alloc_tags import alloc_tags_off, profiling_on
from mmscope.drgn.reading.kernel_arrays import Array, Gaps, S64s, U64s, struct_dtype, summed_gaps
from mmscope.drgn.reading.page_ext import page_ext_ranges, page_ext_size
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.shares import Shared, merges, summed_up_to
from mmscope.drgn.reading.struct_pages import COLUMNS

# CODETAG_ID_NULL, CODETAG_ID_EMPTY: indexes that no tag has.
FIRST_INDEX = 2
EMPTY = 1  # CODETAG_EMPTY: as a pointer, with CONFIG_MEM_ALLOC_PROFILING_DEBUG
UNREADABLE = (1 << 64) - 1
MAX_REFERENCES = 1 << 20  # different ones: more are damage


class PageTags(Shared):
    """
    Pages by the tag that they were allocated by.

    :ivar pages: by (kind, address of the tag): 0 none, :data:`UNREADABLE`.
    """

    MERGES = merges(pages=summed_up_to(MAX_REFERENCES), gaps=summed_gaps)

    def __init__(self, prog: Program) -> None:
        self.prog = prog
        self.gaps = Gaps()
        self.pages: Counter[tuple[int, int]] = Counter()
        key = "mem_profiling_compressed"
        self._compressed = key in prog and prog[key].key.enabled.counter.value_() > 0
        if self._compressed:
            return
        self._size = np.uint64(page_ext_size(prog))
        ranges = sorted(page_ext_ranges(prog), key=lambda span: span.start_pfn)
        self._starts = np.array([span.start_pfn for span in ranges], np.int64)
        self._ends = np.array([span.end_pfn for span in ranges], np.int64)
        offset = prog["page_alloc_tagging_ops"].offset.value_()
        self._bases = np.array([span.address + offset for span in ranges], np.uint64)

    def take(self, first: S64s, kinds: Array) -> None:
        """
        Count pages.

        :param first: the page frame at which each page's allocation begins.
        :param kinds: of the pages.
        """
        if not len(first):
            return
        blocks, back = np.unique(first, return_inverse=True)
        refs = self._refs(blocks)[back]
        # Neighbours are mostly of one allocation, or of one line.
        tags, which = np.unique(refs, return_inverse=True)
        keys, counts = np.unique(
            kinds.astype(np.int64) * len(tags) + which.ravel(), return_counts=True
        )
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            pair = key // len(tags), int(tags[key % len(tags)])
            if pair not in self.pages and len(self.pages) >= MAX_REFERENCES:
                pair = pair[0], UNREADABLE
            self.pages[pair] += count

    def _refs(self, pfns: S64s) -> U64s:
        """The address of the tag of each page."""
        if self._compressed:
            return self._refs_in_flags(pfns)
        refs = np.full(len(pfns), UNREADABLE, np.uint64)
        if not len(self._starts):
            return refs
        at = np.searchsorted(self._starts, pfns, "right") - 1
        there = np.flatnonzero((at >= 0) & (pfns < self._ends[at]))
        offsets = (pfns[there] - self._starts[at[there]]).astype(np.uint64)
        addresses = self._bases[at[there]] + offsets * self._size
        found, read = read_scattered(self.prog, addresses, np.dtype("<u8"), self.gaps)
        refs[there[read]] = np.where(found[read] <= EMPTY, 0, found[read])
        return refs

    def _refs_in_flags(self, pfns: S64s) -> U64s:
        """``idx_to_ref()``: an index into the tags of the kernel, and then of modules."""
        prog, page = self.prog, self.prog.type("struct page")
        dtype = struct_dtype(page, {"flags": COLUMNS["flags"]})
        addresses = pfns.astype(np.uint64) * np.uint64(sizeof(page))
        addresses += np.uint64(prog["vmemmap"].value_())
        rows, read = read_scattered(prog, addresses, dtype, self.gaps)
        shift, mask = (
            np.uint64(prog[f"alloc_tag_ref_{name}"].value_()) for name in ("offs", "mask")
        )
        index = (rows["flags"] >> shift & mask).astype(np.int64) - FIRST_INDEX
        of_kernel = int(prog["kernel_tags"].count)
        kernel = np.uint64(prog["kernel_tags"].first_tag.value_())
        modules = np.uint64(prog["module_tags"].start_addr.value_())
        of_module = index >= of_kernel
        number = np.where(of_module, index - of_kernel, np.maximum(index, 0)).astype(np.uint64)
        size = np.uint64(sizeof(prog.type("struct alloc_tag")))
        refs: U64s = np.where(of_module, modules, kernel) + number * size
        refs[index < 0] = 0
        refs[~read] = UNREADABLE
        return refs


def page_tags(prog: Program) -> PageTags | None:
    """Reader of the tags of pages; None where the kernel keeps none, or not now."""
    if alloc_tags_off(prog) or not profiling_on(prog):
        return None
    return PageTags(prog)
