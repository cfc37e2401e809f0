# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Number of page table entries that share a swap slot: ``swp_swapcount()`` (mm/swapfile.c).

Since "mm, swap: use the swap table to track the swap count" (0d6af9bcf383, by v7.2) the count is in
the upper bits of the slot's word in ``swap_cluster_info.table``, and what is too large for them in
``extend_table``. Before, it is the slot's byte in ``swap_info_struct.swap_map``, and the rest of a
large one in the continuation pages after that ("swap_info: swap count continuations",
570a335b8e22, in v2.6.33).

Costs one bulk read for each chunk of slots, and the pages of ``swap_map`` that have large counts.

Cannot know: the entries themselves; what shmem has in swap counts as one.
"""

import numpy as np
from drgn import FaultError, Object, Program, container_of, sizeof
from drgn.helpers.linux.mm import page_to_phys, vmalloc_to_page

from mmscope.drgn.reading.kernel_arrays import (
    Array,
    Bools,
    Gaps,
    S64s,
    U8s,
    U64s,
    distinct,
    struct_dtype,
)
from mmscope.drgn.reading.scattered_reads import read_scattered

# include/linux/swap.h (mm/swapfile.c since v7.0): bits of a byte of swap_map. SWAP_HAS_CACHE says
# that the slot is in the swap cache, and is no count.
COUNT_CONTINUED, HAS_CACHE, COUNT_BITS = 0x80, 0x40, 0x3F
MAP_MAX, CONTINUED_MAX = 0x3E, 0x7F
MOST_CONTINUED = 4  # pages: a count of 2^32
# mm/swap_table.h: a word that ends in 1 or 10 is a slot in use. SWP_TB_COUNT_BITS is 4 where a word
# has room for that beside a PFN: on every architecture of 64 bits.
COUNT_SHIFT, COUNT_MAX = 60, 15
# Of slots: their counts, which could be read, and which are in the swap cache.
Counts = tuple[S64s, Bools, Bools]
KEPT = 256  # pages of swap_map whose counts are kept


class SwapCounts:
    """
    Looks up the counts of swap slots.

    :raises LookupError: the kernel's layout is unknown.
    """

    def __init__(self, prog: Program, gaps: Gaps) -> None:
        self.prog, self.gaps = prog, gaps
        self._infos: dict[int, Object] = {}
        if "swap_info" not in prog:
            return  # built without CONFIG_SWAP: there is no area
        infos = prog["swap_info"]
        number = min(int(prog["nr_swapfiles"].value_()), infos.type_.unaliased().length or 0)
        read = [infos[at].read_() for at in range(number)]
        self._infos = {at: info for at, info in enumerate(read) if info}
        self._page = int(prog["PAGE_SIZE"].value_())
        self._large: dict[int, S64s] = {}
        self._by_map = prog.type("struct swap_info_struct").has_member("swap_map")
        if not self._by_map:
            cluster = prog.type("struct swap_cluster_info")
            self._tables = struct_dtype(
                cluster, {"table": ("table",), "extended": ("extend_table",)}
            )
            entries = prog.type("struct swap_table").member("entries").type
            self._slots = sizeof(entries) // 8

    def of(self, types: U8s, offsets: U64s) -> Counts:
        """
        The count of each slot, 0 of one that no area has.

        :param types: of ``swp_entry_t``: the number of the area.
        """
        counts, known = np.zeros(len(types), np.int64), np.ones(len(types), np.bool_)
        cached = np.zeros(len(types), np.bool_)
        for at, info in self._infos.items():
            here = np.flatnonzero(types == at)
            if not len(here):
                continue
            try:
                here = here[offsets[here] < int(info.max.value_())]
                look = self._of_map if self._by_map else self._of_tables
                counts[here], known[here], cached[here] = look(info, offsets[here])
            except FaultError:  # the area's own struct
                known[here] = False
        return counts, known, cached

    def _of_map(self, info: Object, offsets: U64s) -> Counts:
        places = np.uint64(info.swap_map.value_()) + offsets
        found, known = read_scattered(self.prog, places, np.dtype(np.uint8), self.gaps)
        counts = (found & COUNT_BITS).astype(np.int64)
        large = np.flatnonzero(known & ((found & COUNT_CONTINUED) != 0))
        pages = places[large] & np.uint64(~(self._page - 1) & (1 << 64) - 1)
        for page in distinct(pages).tolist():
            these = large[pages == page]
            try:
                all_here = self._continued(page)
            except (FaultError, ValueError):
                known[these] = False
                self.gaps.bytes += self._page
            else:
                counts[these] = all_here[(places[these] - np.uint64(page)).astype(np.int64)]
        return counts, known, (found & HAS_CACHE) != 0

    def _continued(self, page: int) -> S64s:
        """The counts of the slots of a page of ``swap_map``, with its continuation pages."""
        if page in self._large:
            return self._large[page]
        read = np.frombuffer(self.prog.read(page, self._page), np.uint8)
        counts = (read & COUNT_BITS).astype(np.int64)
        more = (read & COUNT_CONTINUED) != 0
        each, struct = MAP_MAX + 1, vmalloc_to_page(self.prog, page)
        for _ in range(MOST_CONTINUED):
            struct = container_of(struct.lru.next.read_(), "struct page", "lru")
            read = np.frombuffer(self.prog.read(page_to_phys(struct), self._page, True), np.uint8)
            counts[more] += (read[more] & CONTINUED_MAX).astype(np.int64) * each
            more &= (read & COUNT_CONTINUED) != 0
            each *= CONTINUED_MAX + 1
            if not more.any():
                break
        else:
            raise ValueError("the continuation pages of swap_map do not end")
        if len(self._large) == KEPT:
            self._large.clear()
        self._large[page] = counts
        return counts

    def _of_tables(self, info: Object, offsets: U64s) -> Counts:
        clusters, slots = np.divmod(offsets, np.uint64(self._slots))
        places = np.uint64(info.cluster_info.value_()) + clusters * np.uint64(self._tables.itemsize)
        found, known = read_scattered(self.prog, places, self._tables, self.gaps)
        words, read = self._read(found["table"], slots, "<u8", known & (found["table"] != 0))
        known &= read | (found["table"] == 0)
        cached = (words & np.uint64(3)) == 2  # the PFN of the page
        in_use = ((words & np.uint64(1)) != 0) | cached
        counts = np.where(in_use, words >> np.uint64(COUNT_SHIFT), 0).astype(np.int64)
        large = known & (counts == COUNT_MAX)
        extended, read = self._read(found["extended"], slots, "<u4", large)
        known &= read | ~large
        counts[large] = extended[large]
        return counts, known, cached

    def _read(self, tables: U64s, slots: U64s, format_: str, wanted: Bools) -> tuple[Array, Bools]:
        """The slot's word in each table, of those that are wanted."""
        word = np.dtype(format_)
        found, read = np.zeros(len(tables), word), np.zeros(len(tables), np.bool_)
        places = tables[wanted] + slots[wanted] * np.uint64(word.itemsize)
        found[wanted], read[wanted] = read_scattered(self.prog, places, word, self.gaps)
        return found, read
