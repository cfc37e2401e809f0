# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The nodes of interval trees that a reverse map walk of each folio visits, anonymous or of a mapped
file, by ``folio.mapping`` and ``folio.index`` (see ``rmap_cost``).

Costs a pass over the struct pages, and a bisection for each folio.

Cannot know: how many of the VMAs it visits map the folio.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import Program, offsetof
from numpy.typing import NDArray

from mmscope.drgn.opening.constants import flag
from mmscope.drgn.reading.kernel_arrays import Gaps, distinct, member_path
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.struct_pages import (
    COLUMNS,
    PageChunk,
    scan_struct_pages,
    second_page_dtype,
)
from mmscope.drgn.rmap.anon_vma_trees import ReverseMaps
from mmscope.drgn.rmap.file_trees import FileMaps
from mmscope.drgn.rmap.interval_trees import IntervalTrees
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table
from mmscope.drgn.workers.shares import Shared, added, merges, updated

MAYBE = np.uint64(1 << 63)
MAYBE_MASK = np.uint64(1 << 63 | 2)


def _summed_pairs(mine: dict[int, list[int]], theirs: dict[int, list[int]]) -> dict[int, list[int]]:
    for key, (folios, pages) in theirs.items():
        entry = mine.setdefault(key, [0, 0])
        entry[0] += folios
        entry[1] += pages
    return mine


@table_row
class AnonFolioWalks:
    """Anonymous folios by what a walk of them visits."""

    visits_from: int = column(key=True, help="at least")
    visits_to: int = column(help="at most")
    folios: int = column(help="folios whose walk visits so many tree nodes")
    pages: int = column(unit="pages", help="their pages")


ANON_FOLIO_WALKS = Table(
    "anon_folio_walks", "Anonymous folios by what a walk of them visits", AnonFolioWalks
)


@dataclass
class Folios(Shared):
    """
    A consumer of the pass over the struct pages: folios that hang on interval trees, and the nodes
    that a walk of each visits.
    """

    MERGES = merges(
        buckets=_summed_pairs,
        **dict.fromkeys(("folios", "pages", "visits", "unknown", "of_tree", "visits_of"), added),
    )

    trees: IntervalTrees
    addresses: NDArray[np.uint64]  # what ``mapping`` points at, tree by tree
    order_of: Callable[[NDArray[Any]], NDArray[np.int64]]
    head: np.uint64  # flag of a large folio's first page
    slab: np.uint64  # flag of slab pages, where they do not have a page type yet
    columns: Sequence[str]
    buckets: dict[int, list[int]] = field(default_factory=dict)  # bits of visits: folios, pages
    folios: int = 0
    pages: int = 0
    visits: int = 0
    unknown: int = 0  # of no tree that was found

    def __post_init__(self) -> None:
        """By tree: its folios, their visits, and of the worst one visits, page and size."""
        self.of_tree, self.visits_of, self.worst, self.worst_pfn, self.worst_pages = (
            np.zeros(len(self.addresses), np.int64) for _ in range(5)
        )

    def share(self) -> dict[str, Any]:
        return {**super().share(), "worst": (self.worst, self.worst_pfn, self.worst_pages)}

    def add_share(self, share: Mapping[str, Any]) -> None:
        super().add_share(share)
        worse = share["worst"][0] > self.worst
        for mine, theirs in zip(
            (self.worst, self.worst_pfn, self.worst_pages), share["worst"], strict=True
        ):
            mine[worse] = theirs[worse]

    def restore(self, share: Mapping[str, Any]) -> None:
        super().restore(share)
        self.worst, self.worst_pfn, self.worst_pages = share["worst"]

    def find(self, chunk: PageChunk) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where in a chunk folios begin, and the tree of each."""
        raise NotImplementedError

    def first(
        self, index: NDArray[np.uint64], of: NDArray[np.int64], pages: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """The page offset of each folio's first page, from ``folio.index``."""
        return index

    def take(self, chunk: PageChunk) -> None:
        at, of = self.find(chunk)
        pages = np.ones(len(at), np.int64)
        heads = np.flatnonzero(chunk["flags"][at] & self.head)
        inside = heads[at[heads] + 1 < len(chunk)]
        pages[inside] = np.int64(1) << self.order_of(chunk.columns[at[inside] + 1])
        length = pages.astype(np.uint64)
        first = self.first(chunk["index"][at].astype(np.uint64), of, length)
        visits = self.trees.overlaps(of, first, first + length - np.uint64(1))
        self._add(chunk.start_pfn + at, of, pages, visits)

    def _add(
        self,
        pfns: NDArray[np.int64],
        of: NDArray[np.int64],
        pages: NDArray[np.int64],
        visits: NDArray[np.int64],
    ) -> None:
        self.folios += len(of)
        self.pages += int(pages.sum())
        self.visits += int(visits.sum())
        bits = np.frexp(visits.astype(np.float64))[1]
        for bit in distinct(bits).tolist():
            entry = self.buckets.setdefault(bit, [0, 0])
            entry[0] += int(np.count_nonzero(bits == bit))
            entry[1] += int(pages[bits == bit].sum())
        np.add.at(self.of_tree, of, 1)
        np.add.at(self.visits_of, of, visits)
        # The last of each tree is the worst.
        order = np.lexsort((visits, of))
        last = order[np.flatnonzero(np.diff(of[order], append=-1))]
        worse = last[visits[last] > self.worst[of[last]]]
        self.worst[of[worse]] = visits[worse]
        self.worst_pfn[of[worse]] = pfns[worse]
        self.worst_pages[of[worse]] = pages[worse]


class AnonFolios(Folios):
    """
    Anonymous folios.

    ``mapping`` of such a folio is its anon_vma with bit 0 set (PAGE_MAPPING_ANON), which is looked
    up among those that were found. In pages that have a type (slab, page table, …) the word is
    something else.
    """

    def find(self, chunk: PageChunk) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        mapping = chunk["mapping"]
        at = np.flatnonzero((mapping & np.uint64(3)) == 1)
        # A type is below the mapcount of an unmapped page. A kernel address has bit 63.
        at = at[(chunk["mapcount"][at] >= -1) & (mapping[at] >> np.uint64(63) == 1)]
        at = at[(chunk["flags"][at] & self.slab) == 0]
        of = find(self.addresses, mapping[at] - np.uint64(1))
        # One that is mapped no more, and not freed yet, may have outlived its anon_vma.
        self.unknown += int(np.count_nonzero((of < 0) & (chunk["mapcount"][at] >= 0)))
        return at[of >= 0], of[of >= 0]


class FolioPlaces(Shared):
    """
    A consumer of the first pass that notes where in each chunk folios may be that
    have an anon_vma or a file, before anybody knows which there are. The rest of the chunk need not
    be read again for :func:`scan_folios`.

    Costs a look at a column for each page, and a few words for each chunk.

    :ivar wanted: as of :func:`scan_struct_pages`.
    """

    columns = ("mapping",)
    MERGES = merges(wanted=updated)

    def __init__(self) -> None:
        self.wanted: dict[tuple[int, int], tuple[int, int]] = {}

    def take(self, chunk: PageChunk) -> None:
        # Both find() look for addresses of the kernel, which have bit 63, anonymous ones with bit 0
        # set. Bit 1 is of KSM and movable pages. Other words that look so are read for nothing.
        at = np.flatnonzero((chunk["mapping"] & MAYBE_MASK) == MAYBE)
        part = (int(at[0]), min(int(at[-1]) + 2, len(chunk))) if len(at) else (0, 0)
        self.wanted[chunk.start_pfn, len(chunk)] = part


def folio_places(memory: Memory) -> FolioPlaces | None:
    """The consumer; of a kernel that runs none, since folios come and go between the passes."""
    return None if memory.live else FolioPlaces()


@dataclass
class FileFolios(Folios):
    """
    Folios in the page cache of mapped files that lie under at least one VMA, mapped or not: the
    others need no walk.

    ``mapping`` is the ``struct address_space`` itself.
    """

    # Files of which folio.index counts huge pages: hugetlbfs before "mm/filemap: remove hugetlb
    # special casing in filemap.c" (a08c7193e4f1, in v6.7).
    by_huge_page: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    def find(self, chunk: PageChunk) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        mapping = chunk["mapping"]
        # Few pages are of mapped files: what the other words can be need not be known.
        near = (mapping >= self.addresses[0]) & (mapping <= self.addresses[-1])
        at = np.flatnonzero(near & (chunk["flags"] & self.slab == 0))
        of = find(self.addresses, mapping[at])
        return at[of >= 0], of[of >= 0]

    def first(
        self, index: NDArray[np.uint64], of: NDArray[np.int64], pages: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        return np.where(self.by_huge_page[of], index * pages, index)

    def _add(
        self,
        pfns: NDArray[np.int64],
        of: NDArray[np.int64],
        pages: NDArray[np.int64],
        visits: NDArray[np.int64],
    ) -> None:
        under = visits > 0
        super()._add(pfns[under], of[under], pages[under], visits[under])


def scan_folios(
    prog: Program,
    maps: ReverseMaps,
    files: FileMaps | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
    places: FolioPlaces | None = None,
) -> tuple[AnonFolios, FileFolios | None, Gaps]:
    """
    One pass over the struct pages: all anonymous folios, and those of mapped files.

    :param jobs: how many processes may share the pass.
    :param places: where they may be, if a pass before this one noted it.
    :raises LookupError: the kernel's layout is unknown.
    """
    names = ["flags", "mapping", "index", "mapcount"]
    order_of: Callable[[NDArray[Any]], NDArray[np.int64]]
    fields: Mapping[str, Any] = second_page_dtype(prog, ["order"]).fields or {}
    kind, place = fields["order"][:2]
    if kind.itemsize == 1:  # up to v6.5: a byte of the word that list_head.prev is
        names.append("prev")
        byte = place - prev_offset(prog)
        if not 0 <= byte < 8:
            raise LookupError("the order of a compound page is not where it was up to v6.5")

        def order_of(tails: NDArray[Any]) -> NDArray[np.int64]:
            return (tails["prev"] >> np.uint64(8 * byte) & np.uint64(0x3F)).astype(np.int64)
    else:
        # "mm: free up a word in the first tail page" (ebc1baf5c9b4, in v6.6): the low byte of the
        # first tail page's flags.
        def order_of(tails: NDArray[Any]) -> NDArray[np.int64]:
            return (tails["flags"] & np.uint64(0x3F)).astype(np.int64)

    flags = np.uint64(flag(prog, "PG_head")), np.uint64(flag(prog, "PG_slab"))
    anon = AnonFolios(maps, maps.anon_vmas.address, order_of, *flags, names)
    consumers: list[Folios] = [anon]
    of_files = None
    if files is not None and len(files.mapping):
        of_files = FileFolios(
            files, files.mapping, order_of, *flags, names, by_huge_page=files.by_huge_page
        )
        consumers.append(of_files)
    # Addresses that no kernel has are of a damaged dump, in which nothing is left out.
    sound = all(bool(np.all(each.addresses & MAYBE_MASK == MAYBE)) for each in consumers)
    wanted = places.wanted if places and sound else None
    scan = scan_struct_pages(prog, consumers, progress=progress, jobs=jobs, wanted=wanted)
    for _, failure in scan.failures:
        raise failure
    return anon, of_files, scan.gaps


def prev_offset(prog: Program) -> int:
    """Where the column ``prev`` is in a struct page."""
    page = prog.type("struct page")
    return int(offsetof(page, member_path(page, COLUMNS["prev"])))


def anon_folio_walks(folios: AnonFolios) -> list[AnonFolioWalks]:
    """All anonymous folios by their visits, in powers of two."""
    return [
        AnonFolioWalks(1 << bit >> 1, max((1 << bit) - 1, 0), number, pages)
        for bit, (number, pages) in sorted(folios.buckets.items())
    ]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("rmap_cost", "anon_folio_walks")
