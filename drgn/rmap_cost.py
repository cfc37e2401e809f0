# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a reverse map walk costs: the nodes of interval trees that it visits, and how long that holds
the anon_vma's lock.

For a KSM page, ``rmap_walk_ksm()`` takes the lock of each mapping's anon_vma in turn. Up to v7.2
it visits every node of that tree (its range is 0 to ULONG_MAX), for each mapping, and goes through
all mappings a second time for processes that were forked since; v7.3 ("KSM: Optimizations for
rmap_walk_ksm") keeps the page offset in the ``ksm_rmap_item`` and visits those that overlap it.
Both numbers are given, whichever this kernel does. For other anonymous memory,
``rmap_walk_anon()`` visits those that overlap the folio.

Visits are counted exactly, by bisection in sorted page offsets, not one by one: ten million take
milliseconds. Times are estimates: visits times what a visit costs, which depends on caches and the
CPU. See :class:`NodeCost`; measure it with a kretprobe on ``rmap_walk_ksm``.

Cannot know: a walk that ends early, because a caller found what it was looking for; and that a
walker is scheduled away while it holds the lock (there is a ``cond_resched()`` at every node).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from anon_vmas import ReverseMaps
from drgn import Program, offsetof, sizeof
from kernel_arrays import Gaps, member_path
from ksm import PLACES, Ksm, mapcounts
from linked_lists import find
from numpy.typing import NDArray
from rows import MOST_PIDS, column
from struct_pages import COLUMNS, PageChunk, scan_struct_pages

MAX_KSM_PAGES = 5000
MAX_WALKS = 500
# Passes over a KSM page's mappings: the second looks for processes that were forked since.
PASSES = 2


@dataclass(frozen=True)
class NodeCost:
    """
    What a visit of one node costs, in ns.

    The default is what the project's own measurement gave for 20,000 VMAs (10.24 million visits in
    0.616 s: 60 ns; under emulation, so that caches played no part), and as its range a third of
    that, for a tree that is in a CPU's cache, up to five times, for two misses to memory a node.
    """

    low: float = 20.0
    ns: float = 60.0
    high: float = 300.0
    measured: bool = False


def node_cost(prog: Program) -> NodeCost:
    """The cost of a visit: as given (``prog.cache["rmap_node_ns"]``), or the default."""
    given = prog.cache.get("rmap_node_ns")
    return NodeCost() if given is None else NodeCost(given / 2, given, given * 2, True)


@dataclass(frozen=True)
class KsmPage:
    """A KSM page and what it costs to find its mappings."""

    pfn: int = column(key=True, help="page frame")
    place: str = column(
        holds="words", help="where its stable node hangs: tree, chain or migrate_nodes"
    )
    chain: str | None = column(holds="kernel", help="the chain of pages with this content")
    nid: int = column(help="NUMA node of its stable tree")
    mappings: int = column(help="mappings that KSM has merged into it")
    mapcount: int | None = column(help="mappings of the page, those of forked processes included")
    anon_vmas: int = column(help="anon_vmas through which they are found")
    processes: int = column(help="processes that were merged into it")
    visits_per_pass: int = column(help="tree nodes of one pass over the whole range (up to v7.2)")
    visits_indexed: int = column(help="tree nodes of one pass with the page offset (v7.3)")
    unplaced: int = column(help="mappings whose VMA is gone: not in visits_indexed")
    hold_ms: float = column(
        unit="ms", help="estimate: longest time that the lock is held at a stretch, on this kernel"
    )
    walk_ms: float = column(unit="ms", help="estimate: a whole walk, two passes, on this kernel")
    walk_ms_low: float = column(unit="ms", help="the same, with the low end of the cost of a visit")
    walk_ms_high: float = column(unit="ms", help="the same, with the high end")
    walk_ms_indexed: float = column(unit="ms", help="estimate: the same with the page offset")


@dataclass(frozen=True)
class RmapWalk:
    """What walks through one anon_vma visit: that of its worst page, and all of them."""

    kind: str = column(holds="words", key=True, help="ksm, or anon for other anonymous memory")
    anon_vma: str = column(
        holds="kernel",
        key=True,
        help="the anon_vma that is locked (of a KSM page: the one with most VMAs)",
    )
    pid: int | None = column(high=MOST_PIDS, help="the process that has most of its VMAs")
    comm: str | None = column(holds="comm", help="its name")
    folios: int = column(help="folios that are found through it")
    worst_pfn: int = column(help="of these, the one whose walk visits most")
    worst_pages: int = column(unit="pages", help="its size")
    visits: int = column(help="tree nodes that a whole walk of it visits on this kernel")
    visits_a_hold: int = column(help="of these, the most at a stretch under the lock")
    hold_ms: float = column(unit="ms", help="estimate of that stretch")
    hold_ms_low: float = column(unit="ms", help="its low end")
    hold_ms_high: float = column(unit="ms", help="its high end")
    walk_ms: float = column(unit="ms", help="estimate of the whole walk")
    visits_of_all: int = column(help="tree nodes that a walk of every one of the folios visits")


@dataclass(frozen=True)
class AnonFolioWalks:
    """Anonymous folios by what a walk of them visits."""

    visits_from: int = column(key=True, help="at least")
    visits_to: int = column(help="at most")
    folios: int = column(help="folios whose walk visits so many tree nodes")
    pages: int = column(unit="pages", help="their pages")


@dataclass(frozen=True)
class RmapCost:
    """The sum of it: what this kernel does, and what the range would save."""

    what: str = column(holds="words", key=True, help="which walks")
    pages: int = column(help="pages, or folios, walked once")
    visits: int = column(help="tree nodes, one pass over the whole range")
    visits_indexed: int = column(help="tree nodes, one pass with the page offset")
    used_here: str = column(
        holds="words", help="which of the two this kernel does: whole range or page offset"
    )
    node_ns: float = column(unit="ns", help="taken for one visit")
    node_ns_low: float = column(unit="ns", help="least likely less")
    node_ns_high: float = column(unit="ns", help="hardly more")
    measured: bool = column(help="node_ns was given, as measured on this machine")


@dataclass
class KsmVisits:
    """Visits of each KSM page; arrays by its index in ``Ksm.node``."""

    anon_vma: NDArray[np.int64]  # of each item, -1 where there is none
    index: NDArray[np.uint64]  # page offset of each item
    placed: NDArray[np.bool_]  # items whose page offset is known
    whole: NDArray[np.int64]
    indexed: NDArray[np.int64]
    descents: NDArray[np.int64]  # nodes passed on the way down, for the indexed walk
    hold_whole: NDArray[np.int64]
    hold_indexed: NDArray[np.int64]
    anon_vmas: NDArray[np.int64]
    processes: NDArray[np.int64]
    largest: NDArray[np.int64]  # anon_vma with most nodes
    uses_index: bool


def ksm_visits(maps: ReverseMaps, ksm: Ksm, page_shift: int) -> KsmVisits:
    """Count the nodes that a walk of each KSM page visits."""
    anon_vma = find(maps.anon_vmas.address, ksm.item_anon_vma)
    if ksm.item_index is not None:
        index, placed = ksm.item_index, anon_vma >= 0
    else:
        index, placed = _page_offsets(maps, ksm, page_shift)
        placed = placed & (anon_vma >= 0)
    sizes = np.append(maps.tree_size, 0)[anon_vma]  # -1, the last, for none
    overlaps = np.where(placed, maps.overlaps(np.where(placed, anon_vma, -1), index, index), 0)
    descents = np.ceil(np.log2(sizes + 1)).astype(np.int64) * placed
    number = len(ksm.node)

    def total(values: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.zeros(number, np.int64)
        np.add.at(sums, ksm.item_node, values)
        return sums

    def largest(values: NDArray[np.int64]) -> NDArray[np.int64]:
        most = np.zeros(number, np.int64)
        np.maximum.at(most, ksm.item_node, values)
        return most

    def different(values: NDArray[Any]) -> NDArray[np.int64]:
        _, dense = np.unique(values, return_inverse=True)
        pairs = np.unique(ksm.item_node * (len(values) + 1) + dense)
        return np.bincount(pairs // (len(values) + 1), minlength=number)

    # The anon_vma with the largest tree, page by page.
    order = np.lexsort((sizes, ksm.item_node))
    most = np.full(number, -1, np.int64)
    most[ksm.item_node[order]] = anon_vma[order]
    return KsmVisits(
        anon_vma,
        index,
        placed,
        total(sizes),
        total(overlaps),
        total(descents),
        largest(sizes),
        largest(overlaps + descents),
        different(ksm.item_anon_vma),
        different(ksm.item_mm),
        most,
        ksm.item_index is not None,
    )


def _page_offsets(
    maps: ReverseMaps, ksm: Ksm, page_shift: int
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """
    The page offset of each item's address in the VMA that has it now (``linear_page_index()``), as
    v7.3 would have kept it; and which items have such a VMA.
    """
    vmas = maps.vmas
    mms = np.unique(vmas["mm"])
    # VMAs of one process do not overlap, so that (process, address) sorts them all. An address has
    # less than 57 bits.
    bits = np.uint64(57 - page_shift)
    shift = np.uint64(page_shift)
    key = (find(mms, vmas["mm"]).astype(np.uint64) << bits) | (vmas["start"] >> shift)
    order = np.argsort(key, kind="stable")
    mm = find(mms, ksm.item_mm)
    wanted = (mm.astype(np.uint64) << bits) | (ksm.item_address >> shift)
    if not len(order):
        return np.zeros(len(mm), np.uint64), np.zeros(len(mm), np.bool_)
    at = order[np.maximum(np.searchsorted(key[order], wanted, "right") - 1, 0)]
    inside = (
        (mm >= 0)
        & (vmas["mm"][at] == ksm.item_mm)
        & (vmas["start"][at] <= ksm.item_address)
        & (ksm.item_address < vmas["end"][at])
    )
    offset = (ksm.item_address - vmas["start"][at]) >> shift
    return vmas["pgoff"][at].astype(np.uint64) + offset, inside


def ksm_items_by_anon_vma(maps: ReverseMaps, visits: KsmVisits) -> NDArray[np.int64]:
    """How many of KSM's mappings are found through each anon_vma."""
    return np.bincount(visits.anon_vma[visits.anon_vma >= 0], minlength=len(maps.anon_vmas))


def ksm_pages(
    prog: Program,
    ksm: Ksm,
    visits: KsmVisits,
    cost: NodeCost,
    most: int = MAX_KSM_PAGES,
) -> list[KsmPage]:
    """The KSM pages whose walk is most expensive here."""
    whole = visits.whole if not visits.uses_index else visits.indexed
    order = np.lexsort((-visits.whole, -whole))[:most]
    unplaced = np.bincount(ksm.item_node[~visits.placed], minlength=len(ksm.node))
    mapped = mapcounts(prog, ksm.node_kpfn[order].tolist(), ksm.node[order].tolist())
    rows = []
    for at, mapcount in zip(order.tolist(), mapped, strict=True):
        here, hold = _here(visits, at)
        chain = int(ksm.node_chain[at])
        rows.append(
            KsmPage(
                int(ksm.node_kpfn[at]),
                PLACES[ksm.node_place[at]],
                hex(ksm.chain[chain]) if chain >= 0 else None,
                int(ksm.node_nid[at]),
                int(ksm.mappings[at]),
                mapcount,
                int(visits.anon_vmas[at]),
                int(visits.processes[at]),
                int(visits.whole[at]),
                int(visits.indexed[at]),
                int(unplaced[at]),
                hold * cost.ns / 1e6,
                PASSES * here * cost.ns / 1e6,
                PASSES * here * cost.low / 1e6,
                PASSES * here * cost.high / 1e6,
                PASSES * int(visits.indexed[at] + visits.descents[at]) * cost.ns / 1e6,
            )
        )
    return rows


def _here(visits: KsmVisits, at: int) -> tuple[int, int]:
    """What this kernel visits for a KSM page: in a pass, and at most at a stretch."""
    if visits.uses_index:
        return int(visits.indexed[at] + visits.descents[at]), int(visits.hold_indexed[at])
    return int(visits.whole[at]), int(visits.hold_whole[at])


@dataclass
class AnonFolios:
    """
    A consumer of the pass over the struct pages: anonymous folios, and the nodes that a walk of
    each visits.

    ``mapping`` of such a folio is its anon_vma with bit 0 set (PAGE_MAPPING_ANON), which is looked
    up among those that were found. In pages that have a type (slab, page table, …) the word is
    something else.
    """

    maps: ReverseMaps
    order_of: Callable[[NDArray[Any]], NDArray[np.int64]]
    head: np.uint64  # flag of a large folio's first page
    slab: np.uint64  # flag of slab pages, where that is no page type yet
    columns: Sequence[str]
    buckets: dict[int, list[int]] = field(default_factory=dict)  # bits of visits: folios, pages
    folios: int = 0
    pages: int = 0
    visits: int = 0
    unknown: int = 0  # of no anon_vma that was found

    def __post_init__(self) -> None:
        """By anon_vma: its folios, their visits, and of the worst one visits, page and size."""
        number = len(self.maps.anon_vmas)
        self.of_anon_vma, self.visits_of, self.worst, self.worst_pfn, self.worst_pages = (
            np.zeros(number, np.int64) for _ in range(5)
        )

    def take(self, chunk: PageChunk) -> None:
        mapping = chunk["mapping"]
        at = np.flatnonzero((mapping & np.uint64(3)) == 1)
        # A type is below the mapcount of an unmapped page. A kernel address has bit 63.
        at = at[(chunk["mapcount"][at] >= -1) & (mapping[at] >> np.uint64(63) == 1)]
        at = at[(chunk["flags"][at] & self.slab) == 0]
        if not len(at):
            return
        of = find(self.maps.anon_vmas.address, mapping[at] - np.uint64(1))
        # One that is mapped no more, and not freed yet, may have outlived its anon_vma.
        self.unknown += int(np.count_nonzero((of < 0) & (chunk["mapcount"][at] >= 0)))
        at, of = at[of >= 0], of[of >= 0]
        pages = np.ones(len(at), np.int64)
        heads = np.flatnonzero(chunk["flags"][at] & self.head)
        inside = heads[at[heads] + 1 < len(mapping)]
        pages[inside] = np.int64(1) << self.order_of(chunk.columns[at[inside] + 1])
        first = chunk["index"][at].astype(np.uint64)
        visits = self.maps.overlaps(of, first, first + pages.astype(np.uint64) - np.uint64(1))
        self.folios += len(at)
        self.pages += int(pages.sum())
        self.visits += int(visits.sum())
        bits = np.frexp(visits.astype(np.float64))[1]
        for bit in np.unique(bits).tolist():
            entry = self.buckets.setdefault(bit, [0, 0])
            entry[0] += int(np.count_nonzero(bits == bit))
            entry[1] += int(pages[bits == bit].sum())
        np.add.at(self.of_anon_vma, of, 1)
        np.add.at(self.visits_of, of, visits)
        # The last of each anon_vma is the worst.
        order = np.lexsort((visits, of))
        last = order[np.flatnonzero(np.diff(of[order], append=-1))]
        worse = last[visits[last] > self.worst[of[last]]]
        self.worst[of[worse]] = visits[worse]
        self.worst_pfn[of[worse]] = chunk.start_pfn + at[worse]
        self.worst_pages[of[worse]] = pages[worse]


def scan_anon_folios(
    prog: Program,
    maps: ReverseMaps,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[AnonFolios, Gaps]:
    """
    One pass over the struct pages: all anonymous folios.

    :raises LookupError: the kernel's layout is unknown.
    """
    names = ["flags", "mapping", "index", "mapcount"]
    order_of: Callable[[NDArray[Any]], NDArray[np.int64]]
    folio, page_size = prog.type("struct folio"), sizeof(prog.type("struct page"))
    if folio.has_member("_folio_order"):  # up to v6.5: a byte of the word that list_head.prev is
        names.append("prev")
        byte = offsetof(folio, "_folio_order") - page_size - prev_offset(prog)
        if not 0 <= byte < 8:
            raise LookupError("struct folio has no _folio_order where it was up to v6.5")

        def order_of(tails: NDArray[Any]) -> NDArray[np.int64]:
            return (tails["prev"] >> np.uint64(8 * byte) & np.uint64(0x3F)).astype(np.int64)
    else:
        # "mm: use folio->_flags_1 for order" (v6.6): the low byte of the first tail page's flags.
        def order_of(tails: NDArray[Any]) -> NDArray[np.int64]:
            return (tails["flags"] & np.uint64(0x3F)).astype(np.int64)

    folios = AnonFolios(maps, order_of, _flag(prog, "PG_head"), _flag(prog, "PG_slab"), names)
    scan = scan_struct_pages(prog, [folios], progress=progress)
    for failure in scan.failures.values():
        raise failure
    return folios, scan.gaps


def prev_offset(prog: Program) -> int:
    """Where the column ``prev`` is in a struct page."""
    page = prog.type("struct page")
    return int(offsetof(page, member_path(page, COLUMNS["prev"])))


def _flag(prog: Program, name: str) -> np.uint64:
    """A bit of ``page.flags``; 0 if the kernel has none of that name."""
    try:
        return np.uint64(1 << int(prog.constant(name).value_()))
    except LookupError:
        return np.uint64(0)


def anon_folio_walks(folios: AnonFolios) -> list[AnonFolioWalks]:
    """All anonymous folios by their visits, in powers of two."""
    return [
        AnonFolioWalks(1 << bit >> 1, max((1 << bit) - 1, 0), number, pages)
        for bit, (number, pages) in sorted(folios.buckets.items())
    ]


def rmap_walks(
    maps: ReverseMaps,
    ksm: Ksm | None,
    visits: KsmVisits | None,
    folios: AnonFolios,
    owners: Callable[[int], tuple[int | None, str | None]],
    cost: NodeCost,
    most: int = MAX_WALKS,
) -> list[RmapWalk]:
    """
    The anon_vmas whose walks take longest, of KSM pages and of other anonymous memory.

    :param owners: pid and comm of the process with most VMAs on an anon_vma, by its index.
    """
    # kind, anon_vma, folios, worst page, its size, visits, visits a hold, visits of all
    walks: list[tuple[str, int, int, int, int, int, int, int]] = []
    for of in np.argsort(-folios.worst, kind="stable")[:most].tolist():
        if number := int(folios.of_anon_vma[of]):
            worst = int(folios.worst[of])
            pfn, pages = int(folios.worst_pfn[of]), int(folios.worst_pages[of])
            walks.append(("anon", of, number, pfn, pages, worst, worst, int(folios.visits_of[of])))
    if ksm is not None and visits is not None:
        here = visits.indexed + visits.descents if visits.uses_index else visits.whole
        order = np.lexsort((here, visits.largest))
        ends = np.flatnonzero(np.diff(visits.largest[order], append=-2))
        begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            at = int(order[end])
            a_pass, hold = _here(visits, at)
            all_of_it = PASSES * int(here[order[begin : end + 1]].sum())
            pfn, of = int(ksm.node_kpfn[at]), int(visits.largest[at])
            walks.append(("ksm", of, end + 1 - begin, pfn, 1, PASSES * a_pass, hold, all_of_it))
    rows = []
    for kind, of, number, pfn, pages, worst, hold, total in sorted(
        walks, key=lambda walk: (-walk[5], walk[0], walk[3])
    )[:most]:
        pid, comm = owners(of) if of >= 0 else (None, None)
        rows.append(
            RmapWalk(
                kind,
                hex(maps.anon_vmas.address[of]) if of >= 0 else "",
                pid,
                comm,
                number,
                pfn,
                pages,
                worst,
                hold,
                hold * cost.ns / 1e6,
                hold * cost.low / 1e6,
                hold * cost.high / 1e6,
                worst * cost.ns / 1e6,
                total,
            )
        )
    return rows


def rmap_costs(visits: KsmVisits | None, folios: AnonFolios, cost: NodeCost) -> list[RmapCost]:
    """What walks of all pages would visit, by kind."""
    rows = []
    taken = (cost.ns, cost.low, cost.high, cost.measured)
    if visits is not None:
        rows.append(
            RmapCost(
                "KSM pages",
                len(visits.whole),
                int(visits.whole.sum()),
                int(visits.indexed.sum()),
                "page offset" if visits.uses_index else "whole range",
                *taken,
            )
        )
    rows.append(
        RmapCost(
            "anonymous folios", folios.folios, folios.visits, folios.visits, "page offset", *taken
        )
    )
    return rows


if __name__ == "__main__":
    import ksm as ksm_module
    from anon_vmas import owner_of, read_reverse_maps
    from terminal import run_script

    def tables(prog: Program) -> list[tuple[str, type, list[Any]]]:
        maps, read = read_reverse_maps(prog, ksm_module.wanted(prog))
        ksm = ksm_module.read_ksm(prog, read)
        visits = ksm_visits(maps, ksm, prog["PAGE_SHIFT"].value_())
        folios, _ = scan_anon_folios(prog, maps)
        cost = node_cost(prog)
        return [
            ("KSM pages", KsmPage, ksm_pages(prog, ksm, visits, cost, 20)),
            ("Anonymous folios", AnonFolioWalks, anon_folio_walks(folios)),
            (
                "Longest walks",
                RmapWalk,
                rmap_walks(maps, ksm, visits, folios, owner_of(maps), cost, 20),
            ),
            ("Sums", RmapCost, rmap_costs(visits, folios, cost)),
        ]

    run_script(tables)
