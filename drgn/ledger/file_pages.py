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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import Program
from numpy.typing import NDArray

from mmscope.drgn.ledger.page_kinds import FILE, HUGETLB, SHMEM
from mmscope.drgn.opening.constants import flag
from mmscope.drgn.reading.struct_pages import PageChunk
from mmscope.drgn.workers.shares import InexactError, Shared, merges, none_of

MAX_FILES = 8 << 20
MERGE_FROM = 1 << 17  # rows that wait at least before they are merged
OF_FILES = np.zeros(256, np.bool_)
OF_FILES[[FILE, SHMEM, HUGETLB]] = True
# What is counted of each file: pages of a kind, and pages with a flag.
KIND_COLUMNS = {"file": FILE, "shmem": SHMEM, "hugetlb": HUGETLB}
FLAG_COLUMNS = {
    "dirty": "PG_dirty",
    "writeback": "PG_writeback",
    "mlocked": "PG_mlocked",
    "unevictable": "PG_unevictable",
    "active": "PG_active",
}
COLUMNS = (*KIND_COLUMNS, *FLAG_COLUMNS)
MAPPING_FLAGS = np.uint64(3)


@dataclass
class FilePages(Shared):
    """
    Collects; :attr:`mappings` and :attr:`counts` are right after :meth:`settle`.

    :ivar mappings: addresses of address_spaces, ascending.
    :ivar counts: a row of :data:`COLUMNS` for each of them. 32 bits are enough for 16 TiB of one
        file.
    :ivar others: the same columns of files that were too many to keep, and how many rows they were:
        a file may be among them more than once.
    """

    mappings: NDArray[np.uint64]
    counts: NDArray[np.uint32]
    others: NDArray[np.int64]
    other_rows: int

    MERGES = merges(other_rows=none_of)

    def __init__(self, prog: Program) -> None:
        self._flags = [np.uint32(flag(prog, name)) for name in FLAG_COLUMNS.values()]
        self.mappings = np.empty(0, np.uint64)
        self.counts = np.empty((0, len(COLUMNS)), np.uint32)
        self.others = np.zeros(len(COLUMNS), np.int64)
        self.other_rows = 0
        self._waiting: list[tuple[NDArray[np.uint64], NDArray[np.uint32]]] = []
        self._rows_waiting = 0
        self._open_head = np.uint64(0), np.uint32(0)  # mapping and flags of a head that may go on

    def resume(self, before: "FilePages") -> None:
        """Go on behind what another one took."""
        self._open_head = before._open_head

    def take(
        self,
        chunk: PageChunk,
        flags: NDArray[np.uint32],
        kinds: NDArray[np.uint8],
        heads: NDArray[np.int64],
        present: NDArray[np.bool_],
    ) -> None:
        """
        Count a chunk.

        :param kinds: of each page, as the ledger has found out.
        :param flags: the lower half of the words.
        :param heads: the place of each page's head; -1 where that is in an earlier chunk. Empty:
            each is its own.
        :param present: which pages are RAM.
        """
        here = np.flatnonzero(OF_FILES[kinds] & present)
        if len(here):
            at = heads[here] if len(heads) else here
            mapping, of_head = chunk["mapping"][at], flags[at]
            if (before := at < 0).any():
                mapping[before], of_head[before] = self._open_head
            ours = (mapping != 0) & ((mapping & MAPPING_FLAGS) == 0)
            if not ours.all():
                here, mapping, of_head = here[ours], mapping[ours], of_head[ours]
            self._count(mapping, kinds[here], of_head)
        last = int(heads[-1]) if len(heads) else len(chunk) - 1
        if last >= 0:
            self._open_head = chunk["mapping"][last], flags[last]

    def _count(
        self, mapping: NDArray[np.uint64], kinds: NDArray[np.uint8], flags: NDArray[np.uint32]
    ) -> None:
        """Count pages, of which neighbours are often of one file."""
        if not len(mapping):
            return
        starts = np.flatnonzero(np.diff(mapping, prepend=~mapping[:1]) != 0)
        columns = [kinds == kind for kind in KIND_COLUMNS.values()]
        columns += [(flags & bit) != 0 for bit in self._flags]
        runs = np.empty((len(starts), len(COLUMNS)), np.uint32)
        for number, column in enumerate(columns):
            runs[:, number] = np.add.reduceat(column, starts, dtype=np.uint32)
        self._waiting.append(_sums(mapping[starts], runs))
        self._rows_waiting += len(self._waiting[-1][0])
        if self._rows_waiting > max(MERGE_FROM, len(self.mappings)):
            self.settle()

    def share(self) -> dict[str, Any]:
        self.settle()
        return {**super().share(), "files": (self.mappings, self.counts)}

    def add_share(self, share: Mapping[str, Any]) -> None:
        super().add_share(share)
        self._waiting.append(share["files"])
        self._rows_waiting += len(share["files"][0])
        rows = len(self.mappings) + self._rows_waiting
        if self._rows_waiting > max(MERGE_FROM, len(self.mappings)) or rows > MAX_FILES:
            self.settle()
        if self.other_rows:  # which are kept depends on when they were too many
            raise InexactError

    def restore(self, share: Mapping[str, Any]) -> None:
        super().restore(share)
        self.mappings, self.counts = share["files"]
        self.others[:] = 0
        self._waiting, self._rows_waiting = [], 0

    def settle(self) -> None:
        """Add what waits to what was merged."""
        parts = [(self.mappings, self.counts), *self._waiting]
        self._waiting, self._rows_waiting = [], 0
        self.mappings, self.counts = _sums(
            np.concatenate([mappings for mappings, _ in parts]),
            np.concatenate([counts for _, counts in parts]),
        )
        if (beyond := len(self.mappings) - MAX_FILES) > 0:
            pages = self.counts[:, : len(KIND_COLUMNS)].sum(axis=1, dtype=np.int64)
            order = np.argsort(pages, kind="stable")
            # Half of them, so that it is not done again at once.
            drop = order[: beyond + MAX_FILES // 2]
            self.others += self.counts[drop].sum(axis=0, dtype=np.int64)
            self.other_rows += len(drop)
            self.mappings = np.delete(self.mappings, drop)
            self.counts = np.delete(self.counts, drop, axis=0)


def _sums(
    keys: NDArray[np.uint64], counts: NDArray[np.uint32]
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """The rows of each key added up, ascending by key."""
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1]) != 0)
    return keys[starts], np.add.reduceat(counts[order], starts, axis=0, dtype=np.uint32)
