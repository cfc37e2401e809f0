# SPDX-License-Identifier: LGPL-2.1-or-later
"""
KSM: the stable trees, with the pages that are shared, who maps them, and what a walk of their
mappings visits.

A ``struct ksm_stable_node`` is a KSM page, or a chain of pages with one content: where more than
``max_page_sharing`` mappings are alike, KSM makes duplicates of the page, which hang on a chain. A
``struct ksm_rmap_item`` on a node's list is one mapping. Pages that moved to another NUMA node wait
on ``migrate_nodes``, in no tree.

Both kinds of objects are read out of their slab caches in bulk, and count if they hang where the
kernel would find them: a node in a tree, on a chain that is in a tree, or on ``migrate_nodes``; an
item on the list of such a node. What the kernel counts itself (``pages_shared``, ``pages_sharing``,
…) stands beside what was counted here.

``rmap_walk_ksm()`` takes the lock of each mapping's anon_vma in turn, and lets it go again. Up to
v7.2 it visits every node of that tree (its range is 0 to ULONG_MAX), for each mapping; v7.3 ("KSM:
Optimizations for rmap_walk_ksm") keeps the page offset in ``ksm_rmap_item`` and visits those that
overlap it. Both numbers are given, whichever this kernel does. A second pass over all mappings
looks for processes that were forked since KSM merged them. How far a walk goes, its caller says
(5.10, 6.1, 6.12, 7.2 and 7.3 alike):

- ``try_to_migrate()`` and ``try_to_unmap()`` have a ``.done`` (``folio_not_mapped()``), and
  ``folio_referenced()`` ends when it has met as many mappings as the page has: one pass, less what
  lies after the last mapping in its tree; two if forked processes map the page as well.
- ``remove_migration_ptes()``, page_idle and DAMON's mkold have neither: always both passes.

So a migration is an unmapping of one pass and a mapping of two; the page is locked for all three.

Visits are counted exactly, by bisection in sorted page offsets, not one by one. Times are
estimates: visits times what a visit costs, which depends on caches and the CPU. See
:class:`NodeCost`; measure it with a kretprobe on ``rmap_walk_ksm``, by the passes of who calls it.

Cannot know: mappings that came by fork since ksmd last passed. They have no item of their own; the
page's mapcount has them. Up to v7.2, the page offset of an item whose VMA is gone. Walks that end
early for another reason (a VMA that is locked in memory, a lock that reclaim does not wait for);
and that a walker is scheduled away while it holds the lock (there is a ``cond_resched()`` at every
node).

The text that says the same of the totals is /sys/kernel/mm/ksm.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from drgn import FaultError, Object, Program, Type, TypeKind, offsetof, sizeof
from drgn.helpers.linux.mm import follow_phys

from mmscope.drgn.owners.slab_objects import Objects, tree_links
from mmscope.drgn.reading.kernel_arrays import (
    Array,
    Bools,
    Gaps,
    S64s,
    U64s,
    distinct,
    struct_dtype,
)
from mmscope.drgn.reading.linked_lists import find, follow_lists
from mmscope.drgn.reading.nodes import check_node_ids
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.rmap.reverse_maps import (
    KSM_ITEM,
    KSM_NODE,
    NO_KSM,
    ReverseMaps,
    ksm_type,
    note_reverse_maps,
    reverse_maps,
)
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, MOST_PIDS, Bound, column, event_column
from mmscope.drgn.tables.table import table, tables_of

STABLE_FLAG = 0x200  # of rmap_item.address: on the list of a stable node
CHAIN = -1024  # rmap_hlist_len of a chain (STABLE_NODE_CHAIN)
MAX_CHAINS = 500
MAX_KSM_PAGES = 5000
MAX_COUNT = 1 << 44  # of pages; physical addresses have at most 52 bits
# Where a node hangs.
TREE, DUP, MIGRATE = 0, 1, 2
PLACES = ("tree", "chain", "migrate_nodes")
# Passes over a KSM page's mappings of a walk that nothing ends before.
PASSES = 2

# What the files of settings take (max_page_sharing_store() and its neighbours, mm/ksm.c, 5.10 to
# 7.3); run has a bit more while memory goes offline.
RANGES: dict[str, tuple[Bound, Bound]] = {
    "run": (0, 7),
    "max_page_sharing": (2, (1 << 31) - 1),
    **dict.fromkeys(("pages_shared", "pages_unshared"), (0, "total_pages")),
    **dict.fromkeys(("merge_across_nodes", "use_zero_pages", "smart_scan"), (0, 1)),
    **dict.fromkeys(("pages_to_scan", "sleep_millisecs"), (0, (1 << 32) - 1)),
}


@table(
    "ksm_totals",
    "KSM's counters and settings",
    since_boot="name in ('full_scans', 'pages_scanned', 'pages_skipped')",
)
class KsmTotal:
    """A counter or setting in /sys/kernel/mm/ksm."""

    name: str = column(holds="kernel", key=True, help="file in /sys/kernel/mm/ksm")
    value: int = event_column(low=None, ranges=RANGES, help="the kernel's value")
    counted: int | None = column(help="counted in the stable trees, where possible")


@table("ksm_chains", "Contents that one page is too few for", measure="mappings")
class KsmChain:
    """A content that more pages share than one KSM page may."""

    chain: str = column(holds="kernel", key=True, help="address of the heading stable node")
    nid: int = column(help="NUMA node of the stable tree; 0: one for all")
    dups: int = column(unit="pages", help="KSM pages with this content")
    mappings: int = column(help="of all of them")


@table("ksm_processes", "What KSM does for processes", lasting=("comm",))
class KsmProcess:
    """What KSM does for one process."""

    pid: int | None = column(key=True, high=MOST_PIDS, help="thread group; empty: it is gone")
    comm: str | None = column(holds="comm", help="name of its first thread")
    merging_pages: int | None = column(
        unit="pages", high=MOST_PAGES, help="mm.ksm_merging_pages; older kernels copy it at fork"
    )
    counted: int = column(unit="pages", high=MOST_PAGES, help="mappings found on stable nodes")
    # Each takes memory of its own.
    rmap_items: int | None = column(high="total_bytes", help="pages KSM watches")
    zero_pages: int | None = column(
        unit="pages", low=None, high=MOST_PAGES, help="pages merged into the zero page"
    )
    profit_bytes: int | None = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="merged pages less the items' cost, as in /proc/PID/ksm_stat",
    )


@table("ksm_pages", "KSM pages by what a walk of their mappings visits", measure="mappings")
class KsmPage:
    """A KSM page and what it costs to find its mappings."""

    pfn: int = column(key=True, help="page frame")
    place: str = column(holds="words", help="tree, chain or migrate_nodes")
    chain: str | None = column(holds="kernel", help="chain of the pages with this content")
    nid: int = column(help="NUMA node of the stable tree")
    mappings: int = column(help="merged by KSM")
    mapcount: int | None = column(help="mappings, those of forked processes included")
    anon_vmas: int = column(help="through which they are found")
    processes: int = column(help="processes with merged mappings")
    visits_per_pass: int = column(help="tree nodes a pass, whole range (up to v7.2)")
    visits_indexed: int = column(help="tree nodes a pass, by page offset (v7.3)")
    unplaced: int = column(help="mappings without a VMA: not in visits_indexed")
    hold_ms: float = column(
        unit="ms", help="estimate: longest stretch under the lock on this kernel"
    )
    passes: int | None = column(
        since="0.2.0",
        help="of a walk until nothing maps the page: 2 if mapped more often than KSM knows, as "
        "after fork; empty: mapcount unknown",
    )
    pass_ms: float = column(since="0.2.0", unit="ms", help="estimate: one pass on this kernel")
    walk_ms: float = column(
        unit="ms",
        help="estimate: two passes on this kernel, as remapping takes",
    )
    walk_ms_low: float = column(unit="ms", help="the same at the low cost of a visit")
    walk_ms_high: float = column(unit="ms", help="the same at the high cost")
    walk_ms_indexed: float = column(unit="ms", help="the same by page offset")
    stable_node: str | None = column(
        since="0.3.0",
        default=None,
        holds="kernel",
        help="address of the stable node; survives migration",
    )
    anon_vma: str | None = column(
        since="0.3.0",
        default=None,
        holds="kernel",
        help="the one with most VMAs",
    )


@dataclass(frozen=True, slots=True)
class NodeCost:
    """
    Cost of a visit, in ns: of a node that the walk passes by, and of a VMA that may map the page
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


@dataclass(kw_only=True)
class Ksm:
    """The KSM pages (``node_``) and their mappings (``item_``), the latter sorted by node."""

    node: U64s  # addresses
    node_kpfn: S64s
    node_nid: S64s
    node_place: S64s
    node_chain: S64s  # index into chain, -1
    chain: U64s
    chain_nid: S64s
    item_node: S64s
    item_anon_vma: U64s  # addresses
    item_mm: U64s
    item_address: U64s
    item_index: U64s | None  # linear_page_index, where the kernel keeps it
    item_bytes: int
    item_slots: int  # of the slab, in use or free
    problems: list[str] = field(default_factory=list)

    def by_node(self, values: S64s, how: np.ufunc = np.add) -> S64s:
        """Sums of the items' values by node, or their maxima; 0 of those that have none."""
        result = np.zeros(len(self.node), np.int64)
        how.at(result, self.item_node, values)
        return result

    def different(self, values: Array) -> S64s:
        """Count the different values of each node's items."""
        _, dense = np.unique(values, return_inverse=True)
        pairs = distinct(self.item_node * (len(values) + 1) + dense)
        return np.bincount(pairs // (len(values) + 1), minlength=len(self.node))

    @cached_property
    def mappings(self) -> S64s:
        """Items of each node."""
        return np.bincount(self.item_node, minlength=len(self.node))


@dataclass(kw_only=True)
class KsmVisits:
    """Nodes of trees that a walk of each KSM page visits; arrays by its index in ``Ksm.node``."""

    anon_vma: S64s  # of each item, -1 where it has none
    index: U64s  # page offset of each item
    placed: Bools  # items whose page offset is known
    whole: S64s  # of a pass over the whole range
    indexed: S64s  # of a pass with the page offset
    descents: S64s  # nodes passed on the way down, for the indexed walk
    hold_whole: S64s
    hold_indexed: S64s
    largest: S64s  # anon_vma with most nodes
    uses_index: bool

    @property
    def here(self) -> S64s:
        """Visits of a pass on this kernel."""
        return self.indexed + self.descents if self.uses_index else self.whole

    @property
    def hold(self) -> S64s:
        """The most of these at a stretch under a lock."""
        return self.hold_indexed if self.uses_index else self.hold_whole

    def by_anon_vma(self, maps: ReverseMaps) -> S64s:
        """Mappings of KSM that are found through each anon_vma."""
        return np.bincount(self.anon_vma[self.anon_vma >= 0], minlength=len(maps.addresses))


def hlist_links(entry: U64s, pprev: U64s, after: U64s, head: U64s, first: U64s) -> U64s:
    """
    The backward links of ``hlist_node``s that hold in both directions: the address of the previous
    entry or of the head, 0 where that does not point back.

    :param entry: addresses, ascending; :param after: ``next``.
    :param head: addresses of the ``hlist_head``s, ascending; :param first: what they point at.
    """
    # Both hlist_node.next and hlist_head.first, which pprev points at, are at offset 0.
    at, top = find(entry, pprev), find(head, pprev)
    back = (at >= 0) & (after[at] == entry) if len(entry) else np.zeros(0, np.bool_)
    if len(head):
        back = back | ((top >= 0) & (first[top] == entry))
    return np.where(back, pprev, np.uint64(0))


def _in_trees(prog: Program, nodes: Objects, node_type: Type) -> Array:
    """The stable tree that each stable_node is linked into, -1 for none."""
    if "contig_page_data" in prog:  # built without CONFIG_NUMA
        # root_stable_tree never points elsewhere: the compiler has left it out.
        roots = list(prog["one_stable_tree"])
    else:
        number = check_node_ids(prog, "ksm_nr_node_ids")
        roots = [prog["root_stable_tree"][nid] for nid in range(number)]
    trees = [(root.address_of_().value_(), root.rb_node.value_()) for root in roots]
    trees = [(address, node) for address, node in trees if node]
    root = np.array([address for address, _ in trees], np.uint64)
    top = np.array([node for _, node in trees], np.uint64)
    rb = nodes.address + np.uint64(offsetof(node_type, "node"))
    links = tree_links(rb, nodes["parent"], nodes["left"], nodes["right"], top, root)
    return follow_lists(rb, links, np.sort(root)).head


def _on_hlists(entry: U64s, pprev: U64s, after: U64s, heads: Objects, node_type: Type) -> S64s:
    """The ``hlist`` of the stable_nodes *heads* that each entry is on, -1 for none."""
    head = heads.address + np.uint64(offsetof(node_type, "hlist"))
    links = hlist_links(entry, pprev, after, head, heads["first"])
    return follow_lists(entry, links, head).head.astype(np.int64)


def _migrating(nodes: Objects, migrate: int, node_type: Type) -> Bools:
    """
    Mask of the stable_nodes that wait for another tree.

    :param migrate: address of the list of such.
    """
    waits: Bools = nodes["head"] == np.uint64(migrate)
    waiting = nodes.only(waits)
    entry = waiting.address + np.uint64(offsetof(node_type, "list"))
    on_list = follow_lists(entry, waiting["list_next"], np.array([migrate], np.uint64)).head
    waits[waits] = on_list >= 0
    return waits


def read_ksm(prog: Program, nodes: Objects, items: Objects) -> Ksm:
    """Put together the slots of stable_nodes and rmap_items."""
    node_type, item_type = prog.type(ksm_type(prog, KSM_NODE)), prog.type(ksm_type(prog, KSM_ITEM))
    problems = []

    # In a tree: the pages and chains themselves.
    tree = _in_trees(prog, nodes, node_type)
    is_chain = (tree >= 0) & (nodes["length"] == CHAIN)
    in_tree = (tree >= 0) & ~is_chain
    chains = nodes.only(is_chain)

    # On a chain. A duplicate says so in `head`, which no tree's node can have.
    migrate = prog["migrate_nodes"].address_of_().value_()
    dup = nodes["head"] == np.uint64(migrate + 8)  # STABLE_NODE_DUP_HEAD
    dups = nodes.only(dup)
    entry = dups.address + np.uint64(offsetof(node_type, "hlist_dup"))
    node_chain = np.full(len(nodes), -1, np.int64)
    node_chain[dup] = _on_hlists(entry, dups["dup_pprev"], dups["dup_next"], chains, node_type)

    migrating = _migrating(nodes, migrate, node_type)
    found = in_tree | (node_chain >= 0) | migrating
    place = np.where(in_tree, TREE, np.where(migrating, MIGRATE, DUP))
    pages = nodes.only(found)

    # Mappings: on the list of one of these.
    stable = items.only((items["address"] & np.uint64(STABLE_FLAG)) != 0)
    entry = stable.address + np.uint64(offsetof(item_type, "hlist"))
    item_node = _on_hlists(entry, stable["pprev"], stable["next"], pages, node_type)
    here = item_node >= 0
    odd = here & (find(pages.address, stable["head"]) != item_node)
    if number := int(np.count_nonzero(odd)):
        problems.append(f"{plural(number, 'KSM item')} on the list of another page")
    stable, item_node = stable.only(here), item_node[here]
    order = np.argsort(item_node, kind="stable")
    mask = ~np.uint64((1 << prog["PAGE_SHIFT"].value_()) - 1)
    nid = np.zeros(len(nodes), np.int64)
    if "nid" in nodes.columns:
        nid = nodes["nid"].astype(np.int64)
    # The kernel sets a chain's own with CONFIG_DEBUG_VM alone (alloc_stable_node_chain()).
    chain_nid = np.zeros(len(chains), np.int64)
    chain_nid[node_chain[node_chain >= 0]] = nid[node_chain >= 0]
    return Ksm(
        node=pages.address,
        node_kpfn=pages["kpfn"].astype(np.int64),
        node_nid=nid[found],
        node_place=place[found],
        node_chain=node_chain[found],
        chain=chains.address,
        chain_nid=chain_nid,
        item_node=item_node[order],
        item_anon_vma=stable["anon_vma"][order],
        item_mm=stable["mm"][order],
        item_address=stable["address"][order] & mask,
        item_index=stable["index"][order] if "index" in stable.columns else None,
        item_bytes=sizeof(item_type),
        item_slots=len(items),
        problems=problems,
    )


def ksm_and_visits(memory: Memory) -> tuple[Ksm, KsmVisits] | None:
    """KSM's pages and what walks of them visit; None if the kernel has no KSM."""

    def read() -> tuple[Ksm, KsmVisits] | None:
        maps = reverse_maps(memory)
        if "rmap_item" not in maps.slots:
            return None
        # Once put together, the slots are of no more use.
        nodes, items = (maps.slots.pop(kind) for kind in ("stable_node", "rmap_item"))
        ksm = read_ksm(memory.prog, nodes, items)
        return ksm, ksm_visits(maps, ksm, memory.prog["PAGE_SHIFT"].value_())

    return memory.once("ksm", read)


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
    # The anon_vma with the largest tree, page by page.
    order = np.lexsort((sizes, ksm.item_node))
    largest = np.full(len(ksm.node), -1, np.int64)
    largest[ksm.item_node[order]] = anon_vma[order]
    return KsmVisits(
        anon_vma=anon_vma,
        index=index,
        placed=placed,
        whole=ksm.by_node(sizes),
        indexed=ksm.by_node(overlaps),
        descents=ksm.by_node(descents),
        hold_whole=ksm.by_node(sizes, np.maximum),
        hold_indexed=ksm.by_node(overlaps + descents, np.maximum),
        largest=largest,
        uses_index=ksm.item_index is not None,
    )


def _page_offsets(maps: ReverseMaps, ksm: Ksm, page_shift: int) -> tuple[U64s, Bools]:
    """
    The page offset of each item's address in the VMA that has it now (``linear_page_index()``), as
    v7.3 would have kept it; and a mask of the items that have such a VMA.
    """
    vmas = maps.vmas
    mms = distinct(vmas["mm"])
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


def _number(prog: Program, name: str) -> int | None:
    try:
        value = prog[name]
        return int(value.counter.value_() if hasattr(value, "counter") else value.value_())
    except (LookupError, FaultError):
        return None


# What is a plain variable: the file in /sys/kernel/mm/ksm, the variable.
COUNTERS = (
    ("run", "ksm_run"),
    ("max_page_sharing", "ksm_max_page_sharing"),
    ("merge_across_nodes", "ksm_merge_across_nodes"),
    ("use_zero_pages", "ksm_use_zero_pages"),
    ("pages_to_scan", "ksm_thread_pages_to_scan"),
    ("sleep_millisecs", "ksm_thread_sleep_millisecs"),
    ("smart_scan", "ksm_smart_scan"),
    ("pages_shared", "ksm_pages_shared"),
    ("pages_sharing", "ksm_pages_sharing"),
    ("pages_unshared", "ksm_pages_unshared"),
    ("pages_skipped", "ksm_pages_skipped"),
    ("ksm_zero_pages", "ksm_zero_pages"),
    ("stable_node_chains", "ksm_stable_node_chains"),
    ("stable_node_dups", "ksm_stable_node_dups"),
)


def ksm_totals(prog: Program, ksm: Ksm) -> list[KsmTotal]:
    """KSM's counters, and what was counted of them."""
    shared = int(np.count_nonzero(ksm.mappings))
    counted = {
        "pages_shared": shared,
        "pages_sharing": len(ksm.item_node) - shared,
        "stable_node_chains": len(ksm.chain),
        "stable_node_dups": int(np.count_nonzero(ksm.node_place == DUP)),
    }
    values = {name: _number(prog, variable) for name, variable in COUNTERS}
    with contextlib.suppress(LookupError, FaultError):
        values["full_scans"] = int(prog["ksm_scan"].seqnr.value_())
    items = _number(prog, "ksm_rmap_items")
    parts = [values[name] for name in ("pages_shared", "pages_sharing", "pages_unshared")]
    if items is not None and None not in parts:
        # These counters have no lock, and the difference may be below zero for a moment.
        values["pages_volatile"] = max(items - sum(part or 0 for part in parts), 0)
        saved = (values["pages_sharing"] or 0) + (values["ksm_zero_pages"] or 0)
        page = 1 << prog["PAGE_SHIFT"].value_()
        if min(saved, items) >= 0 and max(saved, items) < MAX_COUNT:
            values["general_profit"] = saved * page - items * ksm.item_bytes
        values["rmap_items"] = items
    return [
        KsmTotal(name, value, counted.get(name))
        for name, value in values.items()
        if value is not None
    ]


def read_ksm_totals(names: Iterable[str], read: Callable[[str], str]) -> list[KsmTotal]:
    """
    The same rows from /sys/kernel/mm/ksm; files that hold no number are left out.

    :param read: gives the text of a file there; raises OSError.
    """
    rows = []
    for name in sorted(names):
        try:
            text = read(name).strip()
        except OSError:
            continue
        # general_profit may be negative.
        if re.fullmatch(r"-?[0-9]{1,18}", text):
            rows.append(KsmTotal(name, int(text), None))
    return rows


def ksm_chains(ksm: Ksm) -> list[KsmChain]:
    """The chains with most mappings."""
    on = ksm.node_chain >= 0
    dups = np.bincount(ksm.node_chain[on], minlength=len(ksm.chain))
    mappings = np.bincount(
        ksm.node_chain[on], ksm.mappings[on].astype(np.float64), minlength=len(ksm.chain)
    ).astype(np.int64)
    return [
        KsmChain(hex(ksm.chain[at]), int(ksm.chain_nid[at]), int(dups[at]), int(mappings[at]))
        for at in np.argsort(-mappings, kind="stable")[:MAX_CHAINS].tolist()
    ]


def ksm_processes(prog: Program, ksm: Ksm, maps: ReverseMaps) -> list[KsmProcess]:
    """Every process that KSM looks at, those with most merged pages first."""
    tasks = maps.tasks
    of = find(tasks.mm, ksm.item_mm)
    counted = np.bincount(of[of >= 0], minlength=len(tasks.mm))
    page = 1 << prog["PAGE_SHIFT"].value_()
    rows = []
    counts = [
        tasks.counts.get(name) for name in ("ksm_merging_pages", "ksm_rmap_items", "ksm_zero_pages")
    ]
    for mm, number in enumerate(counted.tolist()):
        # Beyond any memory is damage; a profit made of it would not fit a table.
        merging, items, zero = (
            int(part[mm]) if part is not None and 0 <= part[mm] < MAX_COUNT else None
            for part in counts
        )
        if not (number or merging or items or zero):
            continue
        profit = None
        if merging is not None and items is not None:
            profit = (merging + (zero or 0)) * page - items * ksm.item_bytes
        rows.append(
            KsmProcess(int(tasks.pid[mm]), tasks.comm[mm], merging, number, items, zero, profit)
        )
    if gone := int(np.count_nonzero(of < 0)):
        rows.append(KsmProcess(None, None, None, gone, None, None, None))
    return sorted(rows, key=lambda row: (-row.counted, row.pid or 0))


def counts_that_cannot_be(counts: Mapping[str, S64s], most_items: int = MAX_COUNT) -> int:
    """
    Number of processes with more KSM pages than any memory has, or with more that are merged than
    KSM looks at (``stable_tree_append()``: a page is merged by its ``rmap_item``).

    :param most_items: slots that the slab has for ``rmap_item``s.
    """
    merging = counts.get("ksm_merging_pages", np.zeros(0, np.int64))
    items = counts.get("ksm_rmap_items")
    wrong = (merging < 0) | (merging >= MAX_COUNT)
    if items is not None:
        wrong |= (items < 0) | (items > most_items) | (merging > items)
    return int(np.count_nonzero(wrong))


def zero_pages_apart(prog: Program, counts: Mapping[str, S64s]) -> str:
    """
    In words, how the zero pages of all processes differ from the kernel's sum; empty: not.

    Each change is made in both since "mm/ksm: fix ksm_zero_pages accounting" (c2dc78b86e08, in
    v6.10), which made them atomic.
    """
    pages, said = counts.get("ksm_zero_pages"), _number(prog, "ksm_zero_pages")
    of_mm = prog.type("struct mm_struct")
    if pages is None or said is None or of_mm.member("ksm_zero_pages").type.kind is TypeKind.INT:
        return ""
    if said == (ours := sum(pages.tolist())):
        return ""
    return f"ksm_zero_pages is {said:,}, and {ours:,} by process: an exit was under way, or damage"


PIN = 1024  # GUP_PIN_COUNTING_BIAS (include/linux/mm.h)
# Of pages that look as if they were freed, and of the mappings of each, how many are looked at.
MOST_LOOKED_UP, MOST_MAPPINGS = 256, 4
MOST_OTHERS = 64  # references of who looks at a page, and of CPUs' batches (mm/swap.c)


def _struct_pages(prog: Program, pfns: S64s, nodes: U64s) -> tuple[Array, Bools]:
    """
    The struct page of each KSM page, and which are one: read, and their ``mapping`` leads back to
    the stable node.
    """
    columns = {
        "mapping": "mapping",
        "mapcount": "_mapcount.counter",
        "count": "_refcount.counter",
    }
    dtype = struct_dtype(prog.type("struct page"), columns)
    size, base = np.uint64(dtype.itemsize), np.uint64(prog["vmemmap"].value_())
    # Of a damaged node the frame is beyond any memory.
    sound = (pfns >= 0) & (pfns < MAX_COUNT)
    addresses = base + np.where(sound, pfns, 0).astype(np.uint64) * size
    pages, read = read_scattered(prog, addresses, dtype, Gaps())
    return pages, sound & read & (pages["mapping"] == nodes | np.uint64(3))


def _mapcounts(prog: Program, pfns: S64s, nodes: U64s) -> list[int | None]:
    """Mappings of each KSM page by its struct page; None where it is no KSM page any more."""
    pages, known = _struct_pages(prog, pfns, nodes)
    return [
        mapcount + 1 if is_known else None
        for mapcount, is_known in zip(pages["mapcount"].tolist(), known.tolist(), strict=True)
    ]


def references_apart(prog: Program, ksm: Ksm) -> int:
    """
    Number of KSM pages whose references do not fit their mappings: each of these has one, and
    beside pins few others have.
    """
    pages, known = _struct_pages(prog, ksm.node_kpfn, ksm.node)
    mapcounts = pages["mapcount"].astype(np.int64) + 1
    others = pages["count"].astype(np.int64) - mapcounts
    odd = (mapcounts < 0) | (others < 0) | (others % PIN > MOST_OTHERS)
    return int(np.count_nonzero(known & odd))


def pages_apart(prog: Program, ksm: Ksm) -> int:
    """
    Number of KSM pages whose stable node and struct page do not lead to each other, though a
    process of the node's has the page: a page that was freed is in no page table of theirs.
    """
    _, known = _struct_pages(prog, ksm.node_kpfn, ksm.node)
    odd = 0
    for node in np.flatnonzero(~known)[:MOST_LOOKED_UP].tolist():
        first = int(np.searchsorted(ksm.item_node, node))
        last = first + min(int(ksm.mappings[node]), MOST_MAPPINGS)
        odd += any(_maps_node(prog, ksm, item, node) for item in range(first, last))
    return odd


def _maps_node(prog: Program, ksm: Ksm, item: int, node: int) -> bool:
    """True if the process of an item has there the page of a node, by either's word."""
    mm = Object(prog, "struct mm_struct", address=int(ksm.item_mm[item]))
    try:
        physical = follow_phys(mm.address_of_(), int(ksm.item_address[item])).value_()
    except (FaultError, LookupError, NotImplementedError):
        return False
    pfn = np.array([physical >> prog["PAGE_SHIFT"].value_()], np.int64)
    _, known = _struct_pages(prog, pfn, ksm.node[node : node + 1])
    return bool(known[0]) or int(pfn[0]) == int(ksm.node_kpfn[node])


def ksm_pages(prog: Program, ksm: Ksm, visits: KsmVisits, cost: NodeCost) -> list[KsmPage]:
    """The KSM pages whose walk is most expensive here."""
    widest = np.zeros(len(ksm.node), np.uint64)
    through = (visits.anon_vma >= 0) & (visits.anon_vma == visits.largest[ksm.item_node])
    widest[ksm.item_node[through]] = ksm.item_anon_vma[through]
    anon_vmas, processes = ksm.different(ksm.item_anon_vma), ksm.different(ksm.item_mm)
    passes, holds = visits.here, visits.hold
    whole = visits.indexed if visits.uses_index else visits.whole
    order = np.lexsort((-visits.whole, -whole))[:MAX_KSM_PAGES]
    unplaced = np.bincount(ksm.item_node[~visits.placed], minlength=len(ksm.node))
    mapped = _mapcounts(prog, ksm.node_kpfn[order], ksm.node[order])
    rows = []
    for at, mapcount in zip(order.tolist(), mapped, strict=True):
        here, mappings = int(passes[at]), int(ksm.mappings[at])
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
                anon_vmas=int(anon_vmas[at]),
                processes=int(processes[at]),
                visits_per_pass=int(visits.whole[at]),
                visits_indexed=int(visits.indexed[at]),
                unplaced=int(unplaced[at]),
                hold_ms=cost.ms(int(holds[at]), 1),
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


def ksm_from_memory(memory: Memory) -> Found:
    prog, maps = memory.prog, reverse_maps(memory)
    if (read := ksm_and_visits(memory)) is None:
        raise Absent(NO_KSM)
    ksm, visits = read
    found = Found(memory.live, unreadable_bytes=maps.unreadable_bytes)
    note_reverse_maps(memory, found)
    totals, words = ksm_totals(prog, ksm), [*ksm.problems]
    if wrong := [row.name for row in totals if row.counted not in (None, row.value)]:
        words.append(f"{', '.join(wrong)} differ from what the stable trees have (ksm_totals)")
    processes = ksm_processes(prog, ksm, maps)
    if wrong_of := counts_that_cannot_be(maps.tasks.counts, ksm.item_slots):
        whose = plural(wrong_of, "process", "processes")
        words.append(f"KSM pages of {whose} are more than can be")
    if not memory.live and (odd := references_apart(prog, ksm)):
        words.append(f"references and mappings of {plural(odd, 'KSM page')} do not fit")
    if not memory.live and (odd := pages_apart(prog, ksm)):
        words.append(f"stable nodes and struct pages of {plural(odd, 'KSM page')} do not fit")
    if words:
        found.differ("; ".join(words))
    if not memory.live and (unlike := zero_pages_apart(prog, maps.tasks.counts)):
        found.remarks.append(unlike)
    found.add(KsmTotal, totals)
    pages = ksm_pages(prog, ksm, visits, node_cost(memory.rmap_node_ns))
    if len(pages) < len(ksm.node):
        found.unlisted.append(
            f"{len(pages):,} of {len(ksm.node):,} KSM pages are listed, the most expensive"
        )
    found.add(KsmChain, ksm_chains(ksm)).add(KsmProcess, processes)
    return found.add(KsmPage, pages)


def ksm_from_files(files: Files) -> Found:
    folder = "sys/kernel/mm/ksm"
    if not (names := files.names(folder)):
        raise Absent(
            f"{files.root / folder} is not there: {NO_KSM}, or the tree was copied without it"
        )
    rows = read_ksm_totals(names, lambda name: files.open(f"{folder}/{name}"))
    return Found().add(KsmTotal, rows)


KSM_SECTION = Section(
    name="ksm",
    title="KSM",
    tables=tables_of(KsmTotal, KsmChain, KsmProcess, KsmPage),
    intro="""
Pages with the same content that KSM has merged ([kernel documentation: kernel samepage
merging](https://docs.kernel.org/admin-guide/mm/ksm.html)). What was found in its stable trees
stands beside what the kernel counts. A content with more mappings than `max_page_sharing` has a
chain of pages.
""",
    command=Command("KSM's counters, chains, pages and processes", top=TOP),
    from_memory=ksm_from_memory,
    from_files=ksm_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.SETTINGS,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("ksm")
