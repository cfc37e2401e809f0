# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The cost of reverse map walks: the nodes of interval trees that a walk of each folio visits, and how
long that holds the lock of the anon_vma, or of the file's mappings.

Walks of KSM pages are in ``ksm``. For other anonymous memory ``rmap_walk_anon()``, and for files
``rmap_walk_file()``, visit the VMAs that overlap the folio, in one pass and one hold of the lock.
Folios are found by ``folio.mapping`` and ``folio.index``.

Visits are counted exactly, by bisection in sorted page offsets; times are estimates (see
:class:`~mmscope.drgn.rmap.ksm.NodeCost`). Costs a pass over the struct pages, and a bisection for
each folio.

Cannot know: how many of the VMAs that a walk visits map the folio; walks that end early (a VMA that
is locked in memory, a lock that reclaim does not wait for); and that a walker is scheduled away
while it holds the lock (there is a ``cond_resched()`` at every node).
"""

from collections.abc import Callable, Mapping
from operator import add, or_
from typing import Any

import numpy as np
from drgn import Program, offsetof

from mmscope.drgn.opening.constants import flag
from mmscope.drgn.reading.kernel_arrays import Array, Gaps, S64s, member_path
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.shares import Shared, merges
from mmscope.drgn.reading.struct_pages import (
    COLUMNS,
    PageChunk,
    scan_struct_pages,
    second_page_dtype,
)
from mmscope.drgn.rmap.file_maps import FileMaps, mapped_file_trees
from mmscope.drgn.rmap.ksm import PASSES, Ksm, KsmVisits, NodeCost, ksm_and_visits, node_cost
from mmscope.drgn.rmap.reverse_maps import ReverseMaps, note_reverse_maps, reverse_maps
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import (
    PASS_SECONDS,
    TOP,
    Command,
    Found,
    Section,
    not_in_text,
)
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import MOST_PIDS, column
from mmscope.drgn.tables.table import table, tables_of

MAX_WALKS = 500
MAYBE = np.uint64(1 << 63)
MAYBE_MASK = np.uint64(1 << 63 | 2)


@table("rmap_walks", "Where reverse map walks take longest", measure="walk_ms")
class RmapWalk:
    """Walks through one tree: its worst page's, and all."""

    kind: str = column(
        holds="words", key=True, help="ksm; anon: other anonymous memory; file: page cache"
    )
    anon_vma: str | None = column(
        holds="kernel",
        key=True,
        help="the locked one (KSM: the one with most VMAs)",
    )
    address_space: str | None = column(
        since="0.2.0",
        holds="kernel",
        key=True,
        help="of a file: its i_mmap_rwsem is locked",
    )
    pid: int | None = column(high=MOST_PIDS, help="process with most of its VMAs")
    comm: str | None = column(holds="comm", help="name of the process")
    folios: int = column(help="found through it")
    worst_pfn: int = column(help="the one with most visits")
    worst_pages: int = column(unit="pages", help="its size")
    visits: int = column(help="tree nodes of its complete walk on this kernel; KSM: two passes")
    visits_a_pass: int = column(
        since="0.2.0",
        help="of one pass, as reclaim and unmapping take",
    )
    visits_a_hold: int = column(help="most at a stretch under the lock")
    hold_ms: float = column(unit="ms", help="estimate: that stretch")
    hold_ms_low: float = column(unit="ms", help="its low end")
    hold_ms_high: float = column(unit="ms", help="its high end")
    pass_ms: float = column(since="0.2.0", unit="ms", help="estimate: one pass")
    walk_ms: float = column(unit="ms", help="estimate: the whole walk")
    walk_ms_low: float = column(since="0.2.0", unit="ms", help="its low end")
    walk_ms_high: float = column(since="0.2.0", unit="ms", help="its high end")
    visits_of_all: int = column(help="tree nodes for walking each folio once")


@table(
    "rmap_costs",
    "What a walk of every page visits",
    measure="visits",
    rows_since={"0.2.0": ("folios of mapped files",)},
)
class RmapCost:
    """Sum of the walks: on this kernel, and by page offset."""

    what: str = column(holds="words", key=True, help="which walks")
    pages: int = column(help="walked once; pages or folios")
    visits: int = column(help="tree nodes, whole range")
    visits_indexed: int = column(help="tree nodes, by page offset")
    used_here: str = column(holds="words", help="this kernel's way: whole range or page offset")
    node_ns: float = column(unit="ns", help="assumed for visiting a node that does not match")
    node_ns_low: float = column(unit="ns", help="least likely less")
    node_ns_high: float = column(unit="ns", help="hardly more")
    one_ns: float = column(
        since="0.2.0",
        unit="ns",
        help="assumed for a VMA that may map the page: its page table is walked",
    )
    one_ns_low: float = column(since="0.2.0", unit="ns", help="least likely less")
    one_ns_high: float = column(since="0.2.0", unit="ns", help="hardly more")
    measured: bool = column(help="node_ns was measured on this machine")


@table("anon_folio_walks", "Anonymous folios by what a walk of them visits")
class AnonFolioWalks:
    """Anonymous folios by what a walk of them visits."""

    visits_from: int = column(key=True, help="at least")
    visits_to: int = column(help="at most")
    folios: int = column(help="folios whose walk visits that many tree nodes")
    pages: int = column(unit="pages", help="their pages")


# The walk of a tree's folios that visits most.
WORST = np.dtype([("visits", "<i8"), ("pfn", "<i8"), ("pages", "<i8")])


def _worse(mine: Array, theirs: Array) -> Array:
    """By tree, the worst of two walks: of equal ones the first."""
    return np.where(theirs["visits"] > mine["visits"], theirs, mine)


class Folios(Shared):
    """
    A consumer of the pass over the struct pages: folios that hang on interval trees, and the nodes
    that a walk of each visits.

    Anonymous ones; or those in the page cache of mapped files that lie under at least one VMA,
    mapped or not: the others need no walk.

    :ivar folios: by tree; :ivar visits: by tree, of all their walks; :ivar worst: by tree.
    :ivar buckets: by bits of the visits, folios and pages.
    :ivar unknown: anonymous folios of no tree that was found; :ivar nowhere: that are mapped, and
        of whose tree no VMA overlaps their pages.
    """

    MERGES = merges(
        **dict.fromkeys(("folios", "visits", "buckets", "unknown", "nowhere"), add),
        worst=_worse,
    )

    def __init__(self, prog: Program, trees: ReverseMaps | FileMaps) -> None:
        self.trees = trees
        self._order, self._shift = _order_word(prog)
        self.columns = ("flags", "mapping", "index", "mapcount", self._order)
        # A large folio's first page has the one, slab pages the other, unless they have a type.
        self._head, self._slab = (np.uint64(flag(prog, name)) for name in ("PG_head", "PG_slab"))
        self._huge = trees.by_huge_page if isinstance(trees, FileMaps) else None
        number = len(trees.addresses)
        self.folios, self.visits = np.zeros(number, np.int64), np.zeros(number, np.int64)
        self.worst = np.zeros(number, WORST)
        self.buckets = np.zeros((64, 2), np.int64)
        self.unknown = self.nowhere = 0

    def _anonymous(self, chunk: PageChunk) -> tuple[S64s, S64s]:
        """
        The beginnings of anonymous folios in a chunk, and the tree of each.

        Their ``mapping`` is the anon_vma with bit 0 set (PAGE_MAPPING_ANON), which is looked up
        among those that were found. In pages that have a type (slab, page table, …) the word is
        something else.
        """
        mapping = chunk["mapping"]
        at = np.flatnonzero((mapping & np.uint64(3)) == 1)
        # A type is below the mapcount of an unmapped page. A kernel address has bit 63.
        at = at[(chunk["mapcount"][at] >= -1) & (mapping[at] >> np.uint64(63) == 1)]
        at = at[(chunk["flags"][at] & self._slab) == 0]
        of = find(self.trees.addresses, mapping[at] - np.uint64(1))
        # One that is mapped no more, and not freed yet, may have outlived its anon_vma.
        self.unknown += int(np.count_nonzero((of < 0) & (chunk["mapcount"][at] >= 0)))
        return at[of >= 0], of[of >= 0]

    def _of_files(self, chunk: PageChunk) -> tuple[S64s, S64s]:
        """The same of page cache, whose ``mapping`` is the ``struct address_space`` itself."""
        mapping, addresses = chunk["mapping"], self.trees.addresses
        # Few pages are of mapped files: what the other words can be need not be known.
        near = (mapping >= addresses[0]) & (mapping <= addresses[-1])
        at = np.flatnonzero(near & (chunk["flags"] & self._slab == 0))
        of = find(addresses, mapping[at])
        return at[of >= 0], of[of >= 0]

    def take(self, chunk: PageChunk) -> None:
        at, of = self._anonymous(chunk) if self._huge is None else self._of_files(chunk)
        pages = np.ones(len(at), np.int64)
        heads = np.flatnonzero(chunk["flags"][at] & self._head)
        inside = heads[at[heads] + 1 < len(chunk)]
        orders = chunk[self._order][at[inside] + 1] >> self._shift & np.uint64(0x3F)
        pages[inside] = np.int64(1) << orders.astype(np.int64)
        first, length = chunk["index"][at].astype(np.uint64), pages.astype(np.uint64)
        if self._huge is not None:
            first = np.where(self._huge[of], first * length, first)
        visits = self.trees.overlaps(of, first, first + length - np.uint64(1))
        if self._huge is not None:
            under = visits > 0
            at, of, pages, visits = at[under], of[under], pages[under], visits[under]
        else:
            mapped = chunk["mapcount"][at] >= 0
            self.nowhere += int(np.count_nonzero(mapped & (visits == 0)))
        bits = np.frexp(visits.astype(np.float64))[1]
        np.add.at(self.buckets, bits, np.stack([np.ones_like(pages), pages], axis=1))
        np.add.at(self.folios, of, 1)
        np.add.at(self.visits, of, visits)
        # The last of each tree is the worst.
        order = np.lexsort((visits, of))
        last = order[np.flatnonzero(np.diff(of[order], append=-1))]
        worst = np.empty(len(last), WORST)
        worst["visits"], worst["pages"] = visits[last], pages[last]
        worst["pfn"] = chunk.start_pfn + at[last]
        self.worst[of[last]] = _worse(self.worst[of[last]], worst)


def _order_word(prog: Program) -> tuple[str, np.uint64]:
    """
    The column of a large folio's second page that has its order, and the bit where that begins.

    :raises LookupError: the kernel's layout is unknown.
    """
    fields: Mapping[str, Any] = second_page_dtype(prog, ["order"]).fields or {}
    kind, place = fields["order"][:2]
    # "mm: free up a word in the first tail page" (ebc1baf5c9b4, in v6.6): low byte of its flags.
    if kind.itemsize > 1:
        return "flags", np.uint64(0)
    # Before, a byte of the word that list_head.prev is.
    page = prog.type("struct page")
    byte = place - offsetof(page, member_path(page, COLUMNS["prev"]))
    if not 0 <= byte < 8:
        raise LookupError("the order of a compound page is not where it was up to v6.5")
    return "prev", np.uint64(8 * byte)


class FolioPlaces(Shared):
    """
    A consumer of the first pass that notes where in each chunk folios may be that have an anon_vma
    or a file, before these are known. The rest of the chunk need not be read again for
    :func:`scan_folios`.

    Costs a look at a column for each page, and a few words for each chunk.

    :ivar wanted: as of :func:`scan_struct_pages`.
    """

    columns = ("mapping",)
    MERGES = merges(wanted=or_)

    def __init__(self) -> None:
        self.wanted: dict[tuple[int, int], tuple[int, int]] = {}

    def take(self, chunk: PageChunk) -> None:
        # Folios looks for addresses of the kernel, which have bit 63, anonymous ones with bit 0
        # set. Bit 1 is of KSM and movable pages. Other words that look so are read for nothing.
        at = np.flatnonzero((chunk["mapping"] & MAYBE_MASK) == MAYBE)
        part = (int(at[0]), min(int(at[-1]) + 2, len(chunk))) if len(at) else (0, 0)
        self.wanted[chunk.start_pfn, len(chunk)] = part


def folio_places(memory: Memory) -> FolioPlaces | None:
    """The consumer; of a kernel that runs none, since folios come and go between the passes."""
    return None if memory.live else FolioPlaces()


def scan_folios(
    prog: Program,
    maps: ReverseMaps,
    files: FileMaps | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
    places: FolioPlaces | None = None,
) -> tuple[Folios, Folios | None, Gaps]:
    """
    One pass over the struct pages: all anonymous folios, and those of mapped files.

    :param jobs: how many processes may share the pass.
    :param places: where they may be, if a pass before this one noted it.
    :raises LookupError: the kernel's layout is unknown.
    """
    anon = Folios(prog, maps)
    of_files = Folios(prog, files) if files is not None and len(files.addresses) else None
    consumers = [anon] if of_files is None else [anon, of_files]
    # Addresses that no kernel has are of a damaged dump, in which nothing is left out.
    sound = all(bool(np.all(each.trees.addresses & MAYBE_MASK == MAYBE)) for each in consumers)
    wanted = places.wanted if places and sound else None
    scan = scan_struct_pages(prog, consumers, progress=progress, jobs=jobs, wanted=wanted)
    for _, failure in scan.failures:
        raise failure
    return anon, of_files, scan.gaps


def anon_folio_walks(folios: Folios) -> list[AnonFolioWalks]:
    """All anonymous folios by their visits, in powers of two."""
    return [
        AnonFolioWalks(1 << bit >> 1, max((1 << bit) - 1, 0), number, pages)
        for bit, (number, pages) in enumerate(folios.buckets.tolist())
        if number
    ]


def rmap_walks(
    maps: ReverseMaps,
    ksm: tuple[Ksm, KsmVisits] | None,
    anon: Folios,
    of_files: Folios | None,
    cost: NodeCost,
) -> list[RmapWalk]:
    """The anon_vmas and files whose walks take longest, and the worst walk of each."""
    rows = _ksm_walks(maps, *ksm, cost) if ksm else []
    for kind, folios in (("anon", anon), ("file", of_files)):
        if folios is None:
            continue
        for of in np.argsort(-folios.worst["visits"], kind="stable")[:MAX_WALKS].tolist():
            if not folios.folios[of]:
                continue
            visits, pfn, pages = folios.worst[of].item()
            rows.append(
                RmapWalk(
                    kind=kind,
                    **_tree(folios.trees, of),
                    folios=int(folios.folios[of]),
                    worst_pfn=pfn,
                    worst_pages=pages,
                    # One pass in one hold, which looks into every VMA.
                    **_times(cost, (visits, visits), (visits, visits), (visits, visits)),
                    visits_of_all=int(folios.visits[of]),
                )
            )
    return sorted(rows, key=lambda row: (-row.walk_ms, row.kind, row.worst_pfn))[:MAX_WALKS]


def _tree(trees: ReverseMaps | FileMaps, of: int) -> dict[str, Any]:
    """The columns of a tree, by its index; -1 for none."""
    address = hex(trees.addresses[of]) if of >= 0 else None
    of_file = isinstance(trees, FileMaps)
    pid, comm = trees.owner(of) if of >= 0 else (None, None)
    return {
        "anon_vma": None if of_file else address,
        "address_space": address if of_file else None,
        "pid": pid,
        "comm": comm,
    }


def _times(
    cost: NodeCost, walk: tuple[int, int], a_pass: tuple[int, int], hold: tuple[int, int]
) -> dict[str, Any]:
    """
    The columns of visits and times.

    :param walk: nodes that the whole walk visits, and VMAs among them that may map the page;
        *a_pass*, *hold*: of one pass, and of the longest hold of a lock.
    """
    hold_low, hold_ms, hold_high = cost.range_ms(*hold)
    low, taken, high = cost.range_ms(*walk)
    return {
        "visits": walk[0],
        "visits_a_pass": a_pass[0],
        "visits_a_hold": hold[0],
        "hold_ms": hold_ms,
        "hold_ms_low": hold_low,
        "hold_ms_high": hold_high,
        "pass_ms": cost.ms(*a_pass),
        "walk_ms": taken,
        "walk_ms_low": low,
        "walk_ms_high": high,
    }


def _ksm_walks(maps: ReverseMaps, ksm: Ksm, visits: KsmVisits, cost: NodeCost) -> list[RmapWalk]:
    """By the anon_vmas that KSM pages are found through: the walk that visits most."""
    here, holds = visits.here, visits.hold
    order = np.lexsort((here, visits.largest))
    ends = np.flatnonzero(np.diff(visits.largest[order], append=-2)) + 1
    rows = []
    for nodes in np.split(order, ends)[:-1]:
        at = int(nodes[-1])
        a_pass, met = int(here[at]), int(ksm.mappings[at])
        rows.append(
            RmapWalk(
                kind="ksm",
                **_tree(maps, int(visits.largest[at])),
                folios=len(nodes),
                worst_pfn=int(ksm.node_kpfn[at]),
                worst_pages=1,
                **_times(cost, (PASSES * a_pass, met), (a_pass, met), (int(holds[at]), 1)),
                visits_of_all=PASSES * int(here[nodes].sum()),
            )
        )
    return rows


def rmap_costs(
    visits: KsmVisits | None, anon: Folios, cost: NodeCost, files: Folios | None = None
) -> list[RmapCost]:
    """Sum up the visits that walks of all pages would make, by kind."""
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
            number, nodes = int(folios.folios.sum()), int(folios.visits.sum())
            rows.append(RmapCost(what, number, nodes, nodes, "page offset", *taken))
    return rows


def rmap_cost_from_memory(memory: Memory) -> Found:
    maps, ksm, files = reverse_maps(memory), ksm_and_visits(memory), mapped_file_trees(memory)
    kept = memory.kept_consumer(FolioPlaces)
    folios, of_files, gaps = scan_folios(
        memory.prog,
        maps,
        files,
        progress=memory.progress,
        jobs=memory.jobs,
        places=kept[0] if kept else None,
    )
    cost = node_cost(memory.rmap_node_ns)
    found = Found(
        memory.live, unreadable_bytes=gaps.bytes + files.gaps.bytes + maps.unreadable_bytes
    )
    note_reverse_maps(memory, found)
    if gaps.bytes:
        found.notes.append(f"{gaps.bytes:,} bytes of struct pages could not be read{gaps.why}")
    folios_are = "anonymous folio is", "anonymous folios are"
    found.differ(*if_any(files.gaps.bytes, "{} bytes of mapped files could not be read"))
    found.differ(*if_any(folios.unknown, "{} of no anon_vma that was found", *folios_are))
    found.differ(*if_any(folios.nowhere, "{} mapped, but not where a VMA is", *folios_are))
    measured = "as given" if cost.measured else "not measured here: give --rmap-node-ns"
    found.remarks.append(
        f"times are estimates: visits times {cost.ns:g} ns ({cost.low:g} to {cost.high:g}), "
        f"{measured}; {cost.one:g} ns ({cost.one_low:g} to {cost.one_high:g}) for those of VMAs "
        "that may map the page"
    )
    found.add(RmapCost, rmap_costs(ksm[1] if ksm else None, folios, cost, of_files))
    found.add(RmapWalk, rmap_walks(maps, ksm, folios, of_files, cost))
    return found.add(AnonFolioWalks, anon_folio_walks(folios))


RMAP_COST_SECTION = Section(
    name="rmap_cost",
    title="The cost of reverse map walks",
    tables=tables_of(RmapCost, RmapWalk, AnonFolioWalks),
    intro="""
Reclaim, compaction and migration find the mappings of a page by a walk through trees of VMAs
([kernel documentation: page migration](https://docs.kernel.org/mm/page_migration.html)). Visits
are counted exactly, by the rules of this kernel; *times are estimates*, visits times what one
visit costs, with a low and a high end. A walk holds the page's lock from its beginning to its
end. The lock of the anon_vma, or of the file's mappings, is held for all of it as well. A walk
of a KSM page locks and unlocks each mapping's anon_vma in turn instead, so that it holds a lock
as many times as the page has mappings. Reclaim and the unmapping of a migration take one pass
over the mappings of a KSM page, unless processes that were forked since map it too. To map it
again after the migration takes two.
""",
    command=Command("what reverse map walks visit", top=TOP, picks="anon_vma"),
    from_memory=rmap_cost_from_memory,
    from_files=not_in_text("reverse maps are in the kernel's memory only; read that (as root)"),
    deadline=PASS_SECONDS,
    consumer=folio_places,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("rmap_cost")
