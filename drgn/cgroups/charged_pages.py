# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pages by the memory cgroup that they are charged to: what goes along in the pass over all struct
pages.

``folio.memcg_data`` of a head names the cgroup for all the pages of the folio; that of a slab leads
to a vector instead, an owner for each object, and says nothing of its pages. It is a ``struct
mem_cgroup`` or a ``struct obj_cgroup``, which names one: of kernel memory since v5.11; of all pages
in 7.2 and 7.3, where a removed cgroup's pages pass to its parent (``memcg_reparent_objcgs()``,
mm/memcontrol.c). Which of both it is shows when the pass is over: the address is a cgroup's, or the
structure there names one. Before v5.11 the word is ``page.mem_cgroup``, and a page type says that
it is kernel memory.

Costs 10 to 15 ns a page, and 1 µs for each dying cgroup. Memory: 100 bytes for each cgroup and kind
of page that it has, and for each file that a dying cgroup has pages of.

Cannot know: the pages after the first of a block that was allocated with ``__GFP_ACCOUNT`` and
without ``__GFP_COMP``: nothing in them says whose they are.
"""

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from drgn import Program

from mmscope.drgn.cgroups.memcgs import Memcgs
from mmscope.drgn.opening.constants import flag, kernel_byte
from mmscope.drgn.reading.kernel_arrays import (
    Array,
    Bools,
    Gaps,
    S64s,
    U8s,
    U32s,
    U64s,
    member_path,
    struct_dtype,
)
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.shares import Shared, merges, none_of, summed_up_to
from mmscope.drgn.reading.struct_pages import COLUMNS, PageChunk

Key = TypeVar("Key")
MAX_KEYS = 1 << 20
MOST_ORDER = 30
# enum page_memcg_data_flags (include/linux/memcontrol.h): MEMCG_DATA_OBJCGS or _OBJEXTS, _KMEM, and
# flags of a vector up to __NR_OBJEXTS_FLAGS. The structures are aligned to more than that.
VECTOR, KMEM, FLAGS = np.uint64(1), np.uint64(2), np.uint64(7)
# The upper byte of a kernel address is the same in all: room for the kind of a page.
KIND_AT, ADDRESS = np.uint64(56), np.uint64((1 << 56) - 1)

# PG_kmemcg, a macro as all page types were (include/linux/page-flags.h, 5.10): clear in pages that
# have the type; PAGE_TYPE_BASE is set. Until "mm: Convert page kmemcg type to a page memcg flag"
# (18b2db3b0385, in v5.11).
PG_KMEMCG, PAGE_TYPE_BASE = np.uint32(0x200), np.uint32(0xF0000000)


class MemcgWords:
    """
    ``memcg_data`` of pages; of a kernel that has none, what it would be.

    :raises LookupError: the kernel is built without CONFIG_MEMCG.
    """

    def __init__(self, prog: Program) -> None:
        page = prog.type("struct page")
        member_path(page, COLUMNS["memcg"])
        self._by_type = not page.has_member("memcg_data")

    def of(self, chunk: PageChunk) -> U64s:
        """The word of each page."""
        if not self._by_type:
            return np.ascontiguousarray(chunk["memcg"])
        words: U64s = chunk["memcg"].copy()
        types = chunk["mapcount"].view(np.uint32) & (PG_KMEMCG | PAGE_TYPE_BASE)
        kernel = (types == PAGE_TYPE_BASE) & (words != 0) & ((words & VECTOR) == 0)
        words[kernel] |= KMEM
        return words


class ChargedPages(Shared):
    """
    Accumulator of pages by the cgroup that they are charged to.

    :param dying: addresses of memory cgroups, ascending, whose files are counted one by one.
    :param slab: by kind, whether ``memcg_data`` is not of the page.
    """

    MERGES = merges(
        **dict.fromkeys(("pages", "mappings"), summed_up_to(MAX_KEYS)),
        **dict.fromkeys(("other_pages", "other_mapped_pages"), none_of),
    )

    def __init__(self, prog: Program, dying: U64s, slab: Bools) -> None:
        self._dying, self._slab = dying, slab
        self._head = np.uint32(flag(prog, "PG_head"))
        self.pages: dict[int, int] = {}  # by memcg_data and kind
        self.mappings: dict[tuple[int, int], int] = {}  # of dying ones, by memcg and mapping
        self.other_pages = 0  # of more keys than are kept
        self.other_mapped_pages = 0

    def take(self, chunk: PageChunk, flags: U32s, kinds: U8s, every: U64s) -> None:
        """
        Count a chunk.

        :param flags: the lower half of the words.
        :param kinds: of each page, as the ledger has found out.
        :param every: by :class:`MemcgWords`.
        """
        here = np.flatnonzero(every != 0)
        words = every[here]
        head = (chunk["tail"][here] & VECTOR) == 0
        # Only slabs have a vector.
        vector = ((words & VECTOR) != 0) & head & ~self._slab[kinds[here]]
        self.other_pages += int(np.count_nonzero(vector))
        ours = ((words & VECTOR) == 0) & head
        ours &= ~self._slab[kinds[here]]
        here, words = here[ours], words[ours]
        if not len(here):
            return
        keys = (words & ADDRESS) | kinds[here].astype(np.uint64) << KIND_AT
        pages = np.ones(len(here), np.int64)
        heads = np.flatnonzero((flags[here] & self._head) != 0)
        order = chunk.order_of(here[heads])
        pages[heads] = np.int64(1) << np.where((order >= 0) & (order <= MOST_ORDER), order, 0)
        starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1]) != 0)
        runs = np.add.reduceat(pages, starts)
        unique, back = np.unique(keys[starts], return_inverse=True)
        sums = np.bincount(back, runs).astype(np.int64)
        self.other_pages += _count(self.pages, zip(unique.tolist(), sums.tolist(), strict=True))
        if len(self._dying):
            self._pins(chunk, here, words, pages, starts)

    def move(self, old: int, new: int) -> None:
        """Pages of one kind turned out to be of another."""
        of_old, of_new = (kind << int(KIND_AT) for kind in (old, new))
        mask = ~int(ADDRESS)
        for key in [key for key in self.pages if key & mask == of_old]:
            to = key ^ of_old ^ of_new
            self.pages[to] = self.pages.get(to, 0) + self.pages.pop(key)

    def _pins(self, chunk: PageChunk, here: S64s, words: U64s, pages: S64s, starts: S64s) -> None:
        """Count pages of dying cgroups by their owner, too."""
        dying = find(self._dying, words[starts]) >= 0
        if not dying.any():
            return
        lengths = np.diff(np.append(starts, len(words)))
        at = np.flatnonzero(np.repeat(dying, lengths))
        owners, mappings = words[at], chunk["mapping"][here[at]]
        change = (np.diff(owners) != 0) | (np.diff(mappings) != 0)
        begins = np.concatenate(([0], np.flatnonzero(change) + 1))
        sums = np.add.reduceat(pages[at], begins)
        # Anonymous pages are of as many anon_vmas; what they are is enough.
        kinds = [mapping & 3 or mapping for mapping in mappings[begins].tolist()]
        keys = zip(owners[begins].tolist(), kinds, strict=True)
        self.other_mapped_pages += _count(self.mappings, zip(keys, sums.tolist(), strict=True))


def _count(counts: dict[Key, int], pages: Iterable[tuple[Key, int]]) -> int:
    """Add pages by their key, up to :data:`MAX_KEYS`; those of more are returned."""
    others = 0
    for key, number in pages:
        if key in counts or len(counts) < MAX_KEYS:
            counts[key] = counts.get(key, 0) + number
        else:
            others += number
    return others


# Pages by position of the cgroup in Memcgs, kind, and whether they are kernel memory.
CHARGES = np.dtype([("memcg", "<i8"), ("kind", "<i8"), ("kernel", "?"), ("pages", "<i8")])


def charges(prog: Program, counted: ChargedPages, memcgs: Memcgs, gaps: Gaps) -> tuple[Array, int]:
    """
    The owners of the pages, after the pass: CHARGES; and pages that are charged to what was no
    cgroup (any more) when it was read.

    :param gaps: gets what could not be read.
    """
    keys = np.fromiter(counted.pages, np.uint64, len(counted.pages))
    found = np.empty(len(keys), CHARGES)
    addresses = (keys & ADDRESS) | np.uint64(kernel_byte(prog) << 56)
    found["memcg"] = memcgs_named(prog, addresses & ~FLAGS, memcgs, gaps)
    found["kind"], found["kernel"] = keys >> KIND_AT, (keys & KMEM) != 0
    found["pages"] = list(counted.pages.values())
    known = found["memcg"] >= 0
    return found[known], int(found["pages"][~known].sum()) + counted.other_pages


def memcgs_named(prog: Program, owners: U64s, memcgs: Memcgs, gaps: Gaps) -> S64s:
    """
    The position of each owner's cgroup; -1 where it names none.

    :param owners: addresses of ``struct mem_cgroup`` or ``struct obj_cgroup``.
    :param gaps: gets what could not be read.
    """
    memcg: S64s = find(memcgs.address, owners)
    others = np.flatnonzero(memcg < 0)
    if len(others):
        dtype = struct_dtype(prog.type("struct obj_cgroup"), {"memcg": "memcg"})
        rows, read = read_scattered(prog, owners[others], dtype, gaps)
        memcg[others] = np.where(read, find(memcgs.address, rows["memcg"]), -1)
    return memcg


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_cgroups", "memory_cgroup_pages")
