# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Which line of source allocated a page: the reference to its alloc_tag that each allocation's first
page has (``get_page_tag_ref()``, include/linux/pgalloc_tag.h).

It is a pointer in the page_ext, at the offset of ``page_alloc_tagging_ops``; or, since "alloc_tag:
support for page allocation tag compression" (4835f747d3ed, in v6.14) and booted with it, an index
in the bits of the page flags that nothing else needs.

Costs a read for each stretch of neighbours among the pages that are asked for. Cannot know: who
allocated before page_ext was there (``alloc_tag_add_early_pfn()``), such pages have no tag; and
whether profiling was off for a while, in which neither an allocation nor its end touches the
reference: such pages have none, or the one of who had the page before.
"""

from collections import Counter
from typing import Any

import numpy as np
from drgn import Program, sizeof
from numpy.typing import NDArray

from mmscope.drgn.owners.alloc_tags import Tags, alloc_tags_off, profiling_on
from mmscope.drgn.reading.kernel_arrays import Gaps, laid_out, struct_dtype, summed_gaps
from mmscope.drgn.reading.page_ext import page_ext_ranges, page_ext_size
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.struct_pages import COLUMNS
from mmscope.drgn.workers.shares import Shared, merges, summed_up_to

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
        self._index = None
        key = "mem_profiling_compressed"
        if key in prog and prog[key].key.enabled.counter.value_() > 0:
            self._index = _Index(prog)
            return
        size = page_ext_size(prog)
        ranges = sorted(page_ext_ranges(prog), key=lambda span: span.start_pfn)
        self._starts = np.array([span.start_pfn for span in ranges], np.int64)
        self._ends = np.array([span.end_pfn for span in ranges], np.int64)
        self._bases = np.array([span.address for span in ranges], np.uint64)
        self._size = np.uint64(size)
        self._offset = np.uint64(prog["page_alloc_tagging_ops"].offset.value_())
        self._dtype = laid_out({"ref": ("<u8", 0)})

    def take(self, first: NDArray[np.int64], kinds: NDArray[Any]) -> None:
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

    def _refs(self, pfns: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The address of the tag of each page."""
        if self._index is not None:
            return self._index.refs(pfns, self.gaps)
        refs = np.full(len(pfns), UNREADABLE, np.uint64)
        if not len(self._starts):
            return refs
        at = np.searchsorted(self._starts, pfns, "right") - 1
        there = np.flatnonzero((at >= 0) & (pfns < self._ends[at]))
        offsets = (pfns[there] - self._starts[at[there]]).astype(np.uint64)
        addresses = self._bases[at[there]] + offsets * self._size + self._offset
        rows, read = read_scattered(self.prog, addresses, self._dtype, self.gaps)
        refs[there[read]] = np.where(rows["ref"][read] <= EMPTY, 0, rows["ref"][read])
        return refs


class _Index:
    """References in the page flags: ``idx_to_ref()``."""

    def __init__(self, prog: Program) -> None:
        self.prog = prog
        self.memmap = np.uint64(prog["vmemmap"].value_())
        page = prog.type("struct page")
        self.dtype = struct_dtype(page, {"flags": COLUMNS["flags"]})
        self.size = np.uint64(sizeof(page))
        self.shift = np.uint64(prog["alloc_tag_ref_offs"].value_())
        self.mask = np.uint64(prog["alloc_tag_ref_mask"].value_())
        kernel = prog["kernel_tags"]
        self.count = int(kernel.count)
        self.kernel = np.uint64(kernel.first_tag.value_())
        self.modules = np.uint64(prog["module_tags"].start_addr.value_())
        self.tag = np.uint64(sizeof(prog.type("struct alloc_tag")))

    def refs(self, pfns: NDArray[np.int64], gaps: Gaps) -> NDArray[np.uint64]:
        addresses = self.memmap + pfns.astype(np.uint64) * self.size
        rows, read = read_scattered(self.prog, addresses, self.dtype, gaps)
        index = (rows["flags"] >> self.shift & self.mask).astype(np.int64) - FIRST_INDEX
        of_module = index >= self.count
        base = np.where(of_module, self.modules, self.kernel)
        number = np.where(of_module, index - self.count, np.maximum(index, 0)).astype(np.uint64)
        refs = np.where(index < 0, np.uint64(0), base + number * self.tag)
        refs[~read] = UNREADABLE
        return refs


def page_tags(prog: Program) -> PageTags | None:
    """What tells the tags of pages; None where the kernel keeps none, or not now."""
    if alloc_tags_off(prog) or not profiling_on(prog):
        return None
    return PageTags(prog)


def named(tags: Tags, address: int) -> tuple[str, str, int, str] | None:
    """Module, file, line and function of the tag at an address; None where none is."""
    at = int(np.searchsorted(tags.addresses, np.uint64(address)))
    if at == len(tags.addresses) or int(tags.addresses[at]) != address:
        return None
    return tags.modules[at], tags.files[at], tags.lines[at], tags.functions[at]
