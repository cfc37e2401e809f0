# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pages of files by ``struct address_space``, as the ledger counts them: what goes along with it in
the pass over all struct pages.

``folio.mapping`` names the file; where its low bits are 0 it is a file's (include/linux/
page-flags.h, PAGE_MAPPING_FLAGS or FOLIO_MAPPING_FLAGS). Pages of a large folio are of its head's
mapping and have its head's flags.

Memory: 40 bytes a file, four times that for a moment, up to :data:`MAX_FILES`; what files with few
pages have beyond that is added up.
"""

import contextlib
from collections.abc import Mapping
from operator import add
from typing import Any

import numpy as np
from drgn import Program

from mmscope.drgn.ledger.page_kinds import Kind, kinds_where
from mmscope.drgn.opening.constants import flag
from mmscope.drgn.reading.kernel_arrays import Bools, S64s, U8s, U32s, U64s
from mmscope.drgn.reading.shares import Shared, merges, none_of
from mmscope.drgn.reading.struct_pages import PageChunk
from mmscope.drgn.workers.workers import NotSharedError

MAX_FILES = 8 << 20
MERGE_FROM = 1 << 17  # rows that wait at least before they are merged
# What is counted of each file: pages of a kind, and pages with a flag.
KIND_COLUMNS = {"file": Kind.FILE, "shmem": Kind.SHMEM, "hugetlb": Kind.HUGETLB}
OF_FILES = kinds_where(lambda kind: kind in KIND_COLUMNS.values())
FLAG_COLUMNS = {
    "dirty": "PG_dirty",
    "writeback": "PG_writeback",
    "mlocked": "PG_mlocked",
    "unevictable": "PG_unevictable",
    "active": "PG_active",
}
# After the flags: pages that drop_caches would take.
COLUMNS = (*KIND_COLUMNS, *FLAG_COLUMNS, "droppable")
MAPPING_FLAGS = np.uint64(3)


class Droppable:
    """
    The pages that ``invalidate_mapping_pages()`` takes out of the page cache, which drop_caches
    calls for each inode: clean, not under writeback, and held by the page cache and its file system
    alone (``mapping_evict_folio()``, mm/truncate.c 6.12, 7.2: ``folio_ref_count() >
    folio_nr_pages() + folio_has_private() + 1``, of which one is the caller's). So none that is
    mapped or pinned.
    """

    def __init__(self, prog: Program) -> None:
        self._busy = np.uint32(flag(prog, "PG_dirty") | flag(prog, "PG_writeback"))
        self._head, self._lru = (np.uint32(flag(prog, name)) for name in ("PG_head", "PG_lru"))
        private = flag(prog, "PG_private")
        with contextlib.suppress(LookupError):
            private |= flag(prog, "PG_private_2")
        self._private = np.uint32(private)

    def of(self, chunk: PageChunk, heads: S64s, flags: U32s) -> Bools:
        """
        Tell it of heads, and of pages of their own.

        :param heads: their places in the chunk.
        :param flags: the lower half of the words of the whole chunk.
        """
        flags = flags[heads]
        pages = np.ones(len(heads), np.int32)
        large = np.flatnonzero((flags & self._head) != 0)
        orders = chunk.order_of(heads[large])
        pages[large] = np.int32(1) << np.where((orders >= 0) & (orders < 31), orders, 0).astype(
            "<i4"
        )
        # What waits for its list in a CPU's batch has one reference more: lru_add_drain_all().
        expected = pages + ((flags & self._private) != 0) + ((flags & self._lru) == 0)
        free = ((flags & self._busy) == 0) & (chunk["refcount"][heads] <= expected)
        return np.asarray(free)


class FilePages(Shared):
    """
    Collects; :attr:`mappings` and :attr:`counts` are right after :meth:`settle`.

    :ivar mappings: addresses of address_spaces, ascending.
    :ivar counts: a row of :data:`COLUMNS` for each of them. 32 bits are enough for 16 TiB of one
        file.
    :ivar others: the same columns of files that were too many to keep, and how many rows they were:
        a file may be among them more than once.
    """

    MERGES = merges(parts=add, others=add, other_rows=none_of)

    def __init__(self, prog: Program) -> None:
        self._flags = [np.uint32(flag(prog, name)) for name in FLAG_COLUMNS.values()]
        self.others = np.zeros(len(COLUMNS), np.int64)
        self.other_rows = 0
        # Of mappings and counts: what was merged, and what waits.
        self.parts: list[tuple[U64s, U32s]] = []
        self.settle()

    def count(self, mapping: U64s, kinds: U8s, flags: U32s, droppable: Bools) -> None:
        """
        Count pages of files.

        :param mapping: of each page's head.
        :param kinds: of each page, as the ledger has found out.
        :param flags: the lower half of its head's words.
        :param droppable: of each page, as :class:`Droppable` has found out of its head.
        """
        ours = (mapping != 0) & ((mapping & MAPPING_FLAGS) == 0)
        mapping, kinds, flags, droppable = (
            each[ours] for each in (mapping, kinds, flags, droppable)
        )
        if not len(mapping):
            return
        # Neighbours are often of one file.
        starts = np.flatnonzero(np.diff(mapping, prepend=~mapping[:1]) != 0)
        columns = [kinds == kind for kind in KIND_COLUMNS.values()]
        columns += [(flags & bit) != 0 for bit in self._flags]
        columns.append(droppable)
        runs = [np.add.reduceat(column, starts, dtype=np.uint32) for column in columns]
        self.parts.append(_sums(mapping[starts], np.stack(runs, axis=1)))
        merged, *waiting = (len(mappings) for mappings, _ in self.parts)
        if sum(waiting) > max(MERGE_FROM, merged):
            self.settle()

    def share(self) -> dict[str, Any]:
        self.settle()
        return super().share()

    def add_share(self, share: Mapping[str, Any]) -> None:
        super().add_share(share)
        if sum(len(mappings) for mappings, _ in self.parts) > MAX_FILES:
            self.settle()
        if self.other_rows:  # which are kept depends on when they were too many
            raise NotSharedError

    def settle(self) -> None:
        """Add what waits to what was merged."""
        mappings, counts = _sums(
            np.concatenate([np.empty(0, np.uint64), *(part for part, _ in self.parts)]),
            np.concatenate(
                [np.empty((0, len(COLUMNS)), np.uint32), *(part for _, part in self.parts)]
            ),
        )
        if (beyond := len(mappings) - MAX_FILES) > 0:
            pages = counts[:, : len(KIND_COLUMNS)].sum(axis=1, dtype=np.int64)
            # Half of them, so that it is not done again at once.
            drop = np.argsort(pages, kind="stable")[: beyond + MAX_FILES // 2]
            self.others += counts[drop].sum(axis=0, dtype=np.int64)
            self.other_rows += len(drop)
            mappings, counts = np.delete(mappings, drop), np.delete(counts, drop, axis=0)
        self.mappings, self.counts = mappings, counts
        self.parts = [(mappings, counts)]


def _sums(keys: U64s, counts: U32s) -> tuple[U64s, U32s]:
    """The rows of each key added up, ascending by key."""
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1]) != 0)
    return keys[starts], np.add.reduceat(counts[order], starts, axis=0, dtype=np.uint32)
