# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a reverse map walk costs: the nodes of interval trees that it visits, and how long that holds
the lock of the anon_vma, or of the file's mappings.

For a KSM page, ``rmap_walk_ksm()`` takes the lock of each mapping's anon_vma in turn, and lets it
go again. Up to v7.2 it visits every node of that tree (its range is 0 to ULONG_MAX), for each
mapping; v7.3 ("KSM: Optimizations for rmap_walk_ksm") keeps the page offset in ``ksm_rmap_item``
and visits those that overlap it. Both numbers are given, whichever this kernel does. A second pass
over all mappings looks for processes that were forked since KSM merged them. How far a walk goes,
its caller says (5.10, 6.1, 6.12, 7.2 and 7.3 alike):

- ``try_to_migrate()`` and ``try_to_unmap()`` have a ``.done`` (``folio_not_mapped()``), and
  ``folio_referenced()`` ends when it has met as many mappings as the page has: one pass, less what
  lies behind the last mapping in its tree; two if forked processes map the page as well.
- ``remove_migration_ptes()``, page_idle and DAMON's mkold have neither: always both passes.

So a migration is an unmapping of one pass and a mapping of two; the page is locked for all three.

For other anonymous memory ``rmap_walk_anon()``, and for files ``rmap_walk_file()``, visit those
that overlap the folio, in one pass and one hold of the lock.

Visits are counted exactly, by bisection in sorted page offsets, not one by one. Times are
estimates: visits times what a visit costs, which depends on caches and the CPU. See
:class:`NodeCost`; measure it with a kretprobe on ``rmap_walk_ksm``, by the passes of who calls it.

Cannot know: a walk that ends early for another reason (a VMA that is locked in memory, a lock that
reclaim does not wait for); and that a walker is scheduled away while it holds the lock (there is a
``cond_resched()`` at every node).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from drgn import Program

from mmscope.drgn.rmap.anon_vma_trees import ReverseMaps
from mmscope.drgn.rmap.folio_walks import AnonFolios, FileFolios, Folios
from mmscope.drgn.rmap.ksm import PLACES, Ksm, mapcounts
from mmscope.drgn.rmap.ksm_visits import KsmVisits, visits_here
from mmscope.drgn.tables.rows import MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Table

MAX_KSM_PAGES = 5000
MAX_WALKS = 500
# Passes over a KSM page's mappings of a walk that nothing ends before.
PASSES = 2


@dataclass(frozen=True, slots=True)
class NodeCost:
    """
    What a visit costs, in ns: of a node that the walk passes by, and of a VMA that may map the page
    (``rmap_one()``: down its page table, and an entry is changed).

    The first is what the project's own measurement gave for 20,000 VMAs (10.24 million visits in
    0.616 s: 60 ns; under emulation, so that caches played no part; on a machine 30 to 75), and as
    its range a third of that, for a tree that is in a CPU's cache, up to five times, for two misses
    to memory a node. The second is measured on a machine, by the writeback of a file's page that
    20,000 to 60,000 VMAs map (0.4 to 0.85 µs; both by bench_visits.c); as its range a third,
    for entries that are only looked at, up to ten times, where other CPUs must flush their TLBs.
    """

    low: float = 20.0
    ns: float = 60.0
    high: float = 300.0
    measured: bool = False
    one_low: float = 170.0
    one: float = 500.0
    one_high: float = 5000.0

    def ms(self, visits: int, mapped: int) -> float:
        """Estimate for so many visits, of which so many are of VMAs that may map the page."""
        return self.range_ms(visits, mapped)[1]

    def range_ms(self, visits: int, mapped: int) -> tuple[float, float, float]:
        """The low end of it, what to take, and the high end."""
        passed_by = max(visits - mapped, 0)
        low, taken, high = (
            (passed_by * node + mapped * one) / 1e6
            for node, one in (
                (self.low, self.one_low),
                (self.ns, self.one),
                (self.high, self.one_high),
            )
        )
        return low, taken, high


def node_cost(given: float | None = None) -> NodeCost:
    """The cost of a visit: so many ns, as measured on this machine, or the default."""
    return NodeCost() if given is None else NodeCost(given / 2, given, given * 2, True)


@table_row
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
    passes: int | None = column(
        since="0.2.0",
        help="passes of a walk that ends when nothing maps the page any more (reclaim, the "
        "unmapping of a migration): 2 if it has more mappings than KSM knows, as forked processes "
        "make; unknown if mapcount is",
    )
    pass_ms: float = column(since="0.2.0", unit="ms", help="estimate: one pass on this kernel")
    walk_ms: float = column(
        unit="ms",
        help="estimate: a walk that nothing ends before, two passes, on this kernel: the mapping "
        "again of a migration, page_idle",
    )
    walk_ms_low: float = column(unit="ms", help="the same, with the low end of the cost of a visit")
    walk_ms_high: float = column(unit="ms", help="the same, with the high end")
    walk_ms_indexed: float = column(unit="ms", help="estimate: the same with the page offset")
    stable_node: str | None = column(
        since="0.3.0",
        default=None,
        holds="kernel",
        help="address of its stable node, the same after a migration",
    )
    anon_vma: str | None = column(
        since="0.3.0",
        default=None,
        holds="kernel",
        help="of the anon_vmas, the one with most VMAs",
    )


KSM_PAGES = Table(
    "ksm_pages", "KSM pages by what a walk of their mappings visits", KsmPage, measure="mappings"
)


@table_row
class RmapWalk:
    """What walks through one tree visit: that of its worst page, and all of them."""

    kind: str = column(
        holds="words", key=True, help="ksm, anon for other anonymous memory, file for page cache"
    )
    anon_vma: str | None = column(
        holds="kernel",
        key=True,
        help="the anon_vma that is locked (of a KSM page: the one with most VMAs)",
    )
    address_space: str | None = column(
        since="0.2.0",
        holds="kernel",
        key=True,
        help="of a file: the one whose i_mmap_rwsem is locked",
    )
    pid: int | None = column(high=MOST_PIDS, help="the process that has most of its VMAs")
    comm: str | None = column(holds="comm", help="its name")
    folios: int = column(help="folios that are found through it")
    worst_pfn: int = column(help="of these, the one whose walk visits most")
    worst_pages: int = column(unit="pages", help="its size")
    visits: int = column(
        help="tree nodes that a walk of it visits on this kernel if nothing ends it before: of a "
        "KSM page two passes"
    )
    visits_a_pass: int = column(
        since="0.2.0",
        help="of one pass: what reclaim and the unmapping of a migration visit, except of KSM "
        "pages that forked processes map",
    )
    visits_a_hold: int = column(help="of these, the most at a stretch under the lock")
    hold_ms: float = column(unit="ms", help="estimate of that stretch")
    hold_ms_low: float = column(unit="ms", help="its low end")
    hold_ms_high: float = column(unit="ms", help="its high end")
    pass_ms: float = column(since="0.2.0", unit="ms", help="estimate of one pass")
    walk_ms: float = column(unit="ms", help="estimate of the whole walk")
    walk_ms_low: float = column(since="0.2.0", unit="ms", help="its low end")
    walk_ms_high: float = column(since="0.2.0", unit="ms", help="its high end")
    visits_of_all: int = column(help="tree nodes that a walk of every one of the folios visits")


RMAP_WALKS = Table(
    "rmap_walks", "Where reverse map walks take longest", RmapWalk, measure="walk_ms"
)


@table_row
class RmapCost:
    """The sum of it: what this kernel does, and what the range would save."""

    what: str = column(holds="words", key=True, help="which walks")
    pages: int = column(help="pages, or folios, walked once")
    visits: int = column(help="tree nodes, one pass over the whole range")
    visits_indexed: int = column(help="tree nodes, one pass with the page offset")
    used_here: str = column(
        holds="words", help="which of the two this kernel does: whole range or page offset"
    )
    node_ns: float = column(unit="ns", help="taken for a visit of a node that is passed by")
    node_ns_low: float = column(unit="ns", help="least likely less")
    node_ns_high: float = column(unit="ns", help="hardly more")
    one_ns: float = column(
        since="0.2.0",
        unit="ns",
        help="taken for a visit of a VMA that may map the page: its page table is walked",
    )
    one_ns_low: float = column(since="0.2.0", unit="ns", help="least likely less")
    one_ns_high: float = column(since="0.2.0", unit="ns", help="hardly more")
    measured: bool = column(help="node_ns was given, as measured on this machine")


RMAP_COSTS = Table(
    "rmap_costs",
    "What a walk of every page visits",
    RmapCost,
    measure="visits",
    rows_since={"0.2.0": ("folios of mapped files",)},
)


def ksm_pages(
    prog: Program,
    ksm: Ksm,
    visits: KsmVisits,
    cost: NodeCost,
    most: int = MAX_KSM_PAGES,
) -> list[KsmPage]:
    """The KSM pages whose walk is most expensive here."""
    widest = np.zeros(len(ksm.node), np.uint64)
    through = (visits.anon_vma >= 0) & (visits.anon_vma == visits.largest[ksm.item_node])
    widest[ksm.item_node[through]] = ksm.item_anon_vma[through]
    whole = visits.whole if not visits.uses_index else visits.indexed
    order = np.lexsort((-visits.whole, -whole))[:most]
    unplaced = np.bincount(ksm.item_node[~visits.placed], minlength=len(ksm.node))
    mapped = mapcounts(prog, ksm.node_kpfn[order].tolist(), ksm.node[order].tolist())
    rows = []
    for at, mapcount in zip(order.tolist(), mapped, strict=True):
        here, hold = visits_here(visits, at)
        mappings = int(ksm.mappings[at])
        # Each mapping is met in one of the passes.
        met = max(mappings, mapcount or 0)
        low, walk, high = cost.range_ms(PASSES * here, met)
        chain = int(ksm.node_chain[at])
        rows.append(
            KsmPage(
                pfn=int(ksm.node_kpfn[at]),
                place=PLACES[ksm.node_place[at]],
                chain=hex(ksm.chain[chain]) if chain >= 0 else None,
                nid=int(ksm.node_nid[at]),
                mappings=mappings,
                mapcount=mapcount,
                anon_vmas=int(visits.anon_vmas[at]),
                processes=int(visits.processes[at]),
                visits_per_pass=int(visits.whole[at]),
                visits_indexed=int(visits.indexed[at]),
                unplaced=int(unplaced[at]),
                hold_ms=cost.ms(hold, 1),
                passes=None if mapcount is None else 1 + (mapcount > mappings),
                pass_ms=cost.ms(here, mappings),
                walk_ms=walk,
                walk_ms_low=low,
                walk_ms_high=high,
                walk_ms_indexed=cost.ms(
                    PASSES * int(visits.indexed[at] + visits.descents[at]), met
                ),
                stable_node=hex(ksm.node[at]),
                anon_vma=hex(widest[at]) if widest[at] else None,
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class _Walk:
    """The worst of some walks."""

    kind: str
    of: int  # index of the tree
    folios: int
    pfn: int
    pages: int
    visits: int  # nodes, all passes
    a_pass: int
    hold: int
    met: int  # VMAs that may map the page, in a pass or in all
    met_a_hold: int
    total: int


def rmap_walks(
    maps: ReverseMaps,
    ksm: Ksm | None,
    visits: KsmVisits | None,
    anon: AnonFolios,
    owners: Callable[[int], tuple[int | None, str | None]],
    cost: NodeCost,
    files: tuple[FileFolios, Callable[[int], tuple[int | None, str | None]]] | None = None,
    most: int = MAX_WALKS,
) -> list[RmapWalk]:
    """
    The anon_vmas and files whose walks take longest.

    :param owners: pid and comm of the process with most VMAs on an anon_vma, by its index.
    :param files: folios of files, and the same by the index of a file.
    """
    walks = _worst("anon", anon, most)
    if files is not None:
        walks += _worst("file", files[0], most)
    if ksm is not None and visits is not None:
        walks += _worst_of_ksm(ksm, visits)
    rows = []
    for walk in walks:
        of_file = walk.kind == "file" and files is not None
        trees, whose = files if of_file and files else (anon, owners)
        address = hex(trees.addresses[walk.of]) if walk.of >= 0 else None
        owner = whose(walk.of) if walk.of >= 0 else (None, None)
        rows.append(_row(walk, address, of_file, owner, cost))
    return sorted(rows, key=lambda row: (-row.walk_ms, row.kind, row.worst_pfn))[:most]


def _row(
    walk: _Walk,
    address: str | None,
    of_file: bool,
    owner: tuple[int | None, str | None],
    cost: NodeCost,
) -> RmapWalk:
    """
    A walk with what it takes.

    :param address: of the anon_vma or the file.
    :param owner: pid and comm of the process with most VMAs on it.
    """
    hold_low, hold_ms, hold_high = cost.range_ms(walk.hold, walk.met_a_hold)
    low, taken, high = cost.range_ms(walk.visits, walk.met)
    return RmapWalk(
        walk.kind,
        None if of_file else address,
        address if of_file else None,
        *owner,
        walk.folios,
        walk.pfn,
        walk.pages,
        walk.visits,
        walk.a_pass,
        walk.hold,
        hold_ms,
        hold_low,
        hold_high,
        cost.ms(walk.a_pass, walk.met),
        taken,
        low,
        high,
        walk.total,
    )


def _worst_of_ksm(ksm: Ksm, visits: KsmVisits) -> list[_Walk]:
    """Of the anon_vmas that KSM pages are found through: the walk that visits most."""
    here = visits.indexed + visits.descents if visits.uses_index else visits.whole
    order = np.lexsort((here, visits.largest))
    ends = np.flatnonzero(np.diff(visits.largest[order], append=-2))
    begins = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    walks = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        at = int(order[end])
        a_pass, hold = visits_here(visits, at)
        walks.append(
            _Walk(
                "ksm",
                int(visits.largest[at]),
                end + 1 - begin,
                int(ksm.node_kpfn[at]),
                1,
                PASSES * a_pass,
                a_pass,
                hold,
                int(ksm.mappings[at]),
                1,
                PASSES * int(here[order[begin : end + 1]].sum()),
            )
        )
    return walks


def _worst(kind: str, folios: Folios, most: int) -> list[_Walk]:
    """Of the trees whose worst folio's walk visits most: that walk, which looks into every VMA."""
    return [
        _Walk(
            kind,
            of,
            int(folios.of_tree[of]),
            int(folios.worst_pfn[of]),
            int(folios.worst_pages[of]),
            worst,
            worst,
            worst,
            worst,
            worst,
            int(folios.visits_of[of]),
        )
        for of in np.argsort(-folios.worst, kind="stable")[:most].tolist()
        if folios.of_tree[of]
        for worst in [int(folios.worst[of])]
    ]


def rmap_costs(
    visits: KsmVisits | None, anon: AnonFolios, cost: NodeCost, files: FileFolios | None = None
) -> list[RmapCost]:
    """What walks of all pages would visit, by kind."""
    rows = []
    taken = (cost.ns, cost.low, cost.high, cost.one, cost.one_low, cost.one_high, cost.measured)
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
    for what, folios in (("anonymous folios", anon), ("folios of mapped files", files)):
        if folios is not None:
            rows.append(
                RmapCost(what, folios.folios, folios.visits, folios.visits, "page offset", *taken)
            )
    return rows


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("rmap_cost")
