# SPDX-License-Identifier: LGPL-2.1-or-later
"""
KSM: the stable trees, with the pages that are shared and who maps them.

A ``struct ksm_stable_node`` is a KSM page, or a chain of pages with one content: where more than
``max_page_sharing`` mappings are alike, KSM makes duplicates of the page, which hang on a chain. A
``struct ksm_rmap_item`` on a node's list is one mapping. Pages that moved to another NUMA node wait
on ``migrate_nodes``, in no tree.

Both kinds of objects are read out of their slab caches in bulk, and count if they hang where the
kernel would find them: a node in a tree, on a chain that is in a tree, or on ``migrate_nodes``; an
item on the list of such a node. What the kernel counts itself (``pages_shared``, ``pages_sharing``,
…) stands beside what was counted here.

Cannot know: mappings that came by fork since ksmd last passed. They have no item of their own; the
page's mapcount has them.

The text that says the same of the totals is /sys/kernel/mm/ksm.
"""

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, Type, offsetof, sizeof
from numpy.typing import NDArray

from mmscope.drgn.owners.slab_objects import Objects, SlabObjects, Wanted, tree_links
from mmscope.drgn.reading.kernel_arrays import struct_dtype
from mmscope.drgn.reading.linked_lists import find, follow_lists
from mmscope.drgn.rmap.anon_vma_trees import ReverseMaps
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Table

STABLE_FLAG = 0x200  # of rmap_item.address: on the list of a stable node
CHAIN = -1024  # rmap_hlist_len of a chain (STABLE_NODE_CHAIN)
MAX_CHAINS = 500
# Where a node hangs.
TREE, DUP, MIGRATE = 0, 1, 2
PLACES = ("tree", "chain", "migrate_nodes")

# The names since "ksm: add the ksm prefix to the names of the ksm private structures"
# (21fbd59136e0, in v6.1), and before.
NODE_TYPES = ("struct ksm_stable_node", "struct stable_node")
ITEM_TYPES = ("struct ksm_rmap_item", "struct rmap_item")


@table_row
class KsmTotal:
    """One of KSM's counters or settings, under the name it has in /sys/kernel/mm/ksm."""

    name: str = column(holds="kernel", key=True, help="file in /sys/kernel/mm/ksm")
    value: int = column(low=None, help="what the kernel says")
    counted: int | None = column(help="the same as counted in the stable trees, where they have it")


KSM_TOTALS = Table(
    "ksm_totals",
    "KSM's counters and settings",
    KsmTotal,
    since_boot="name in ('full_scans', 'pages_scanned', 'pages_skipped')",
)


@table_row
class KsmChain:
    """A content that more pages share than one KSM page may."""

    chain: str = column(
        holds="kernel", key=True, help="address of the stable node that heads the chain"
    )
    nid: int = column(help="stable tree: NUMA node, 0 where KSM merges across nodes")
    dups: int = column(unit="pages", help="KSM pages with this content")
    mappings: int = column(help="mappings of them all")


KSM_CHAINS = Table(
    "ksm_chains", "Contents that one page is too few for", KsmChain, measure="mappings"
)


@table_row
class KsmProcess:
    """What KSM does for one process."""

    pid: int | None = column(
        key=True, high=MOST_PIDS, help="process (thread group); unknown, if it is gone"
    )
    comm: str | None = column(holds="comm", help="name of its first thread")
    merging_pages: int | None = column(
        unit="pages", high=MOST_PAGES, help="mm.ksm_merging_pages; older kernels copy it on fork"
    )
    counted: int = column(unit="pages", high=MOST_PAGES, help="its mappings found on stable nodes")
    rmap_items: int | None = column(help="pages that KSM looks at")
    zero_pages: int | None = column(
        unit="pages", low=None, high=MOST_PAGES, help="pages merged into the zero page"
    )
    profit_bytes: int | None = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="merged pages less what the items cost, as /proc/PID/ksm_stat has it",
    )


KSM_PROCESSES = Table("ksm_processes", "What KSM does for processes", KsmProcess, lasting=("comm",))


@dataclass
class Ksm:
    """The KSM pages (``node_``) and their mappings (``item_``), the latter sorted by node."""

    node: NDArray[np.uint64]  # addresses
    node_kpfn: NDArray[np.int64]
    node_nid: NDArray[np.int64]
    node_place: NDArray[np.int64]
    node_chain: NDArray[np.int64]  # index into chain, -1
    chain: NDArray[np.uint64]
    chain_nid: NDArray[np.int64]
    item_node: NDArray[np.int64]
    item_anon_vma: NDArray[np.uint64]  # addresses
    item_mm: NDArray[np.uint64]
    item_address: NDArray[np.uint64]
    item_index: NDArray[np.uint64] | None  # linear_page_index, where the kernel keeps it
    item_bytes: int
    problems: list[str] = field(default_factory=list)

    @cached_property
    def mappings(self) -> NDArray[np.int64]:
        """Items of each node."""
        return np.bincount(self.item_node, minlength=len(self.node))


def _type(prog: Program, names: Iterable[str]) -> str:
    for name in names:
        try:
            prog.type(name)
        except LookupError:
            continue
        return name
    raise LookupError("the kernel has no KSM (CONFIG_KSM)")


def wanted(prog: Program) -> dict[str, Wanted]:
    """
    What to read out of slab caches for :func:`ksm`.

    :raises LookupError: the kernel has no KSM.
    """
    node, item = _type(prog, NODE_TYPES), _type(prog, ITEM_TYPES)
    nodes: dict[str, str | tuple[str, ...]] = {
        "parent": "node.__rb_parent_color",
        "left": "node.rb_left",
        "right": "node.rb_right",
        "head": "head",
        "dup_next": "hlist_dup.next",
        "dup_pprev": "hlist_dup.pprev",
        "list_next": "list.next",
        "first": "hlist.first",
        "kpfn": "kpfn",
        "length": "rmap_hlist_len",
    }
    if prog.type(node).has_member("nid"):
        nodes["nid"] = "nid"
    items: dict[str, str | tuple[str, ...]] = {
        "anon_vma": "anon_vma",
        "mm": "mm",
        "address": "address",
        "head": "head",
        "next": "hlist.next",
        "pprev": "hlist.pprev",
    }
    # The optimised walk of v7.3 ("KSM: Optimizations for rmap_walk_ksm") needs it.
    if prog.type(item).has_member("linear_page_index"):
        items["index"] = "linear_page_index"
    return {
        "stable_node": Wanted("stable_node_cache", node, nodes),
        "rmap_item": Wanted("rmap_item_cache", item, items),
    }


def hlist_links(
    entry: NDArray[np.uint64],
    pprev: NDArray[np.uint64],
    after: NDArray[np.uint64],
    head: NDArray[np.uint64],
    first: NDArray[np.uint64],
) -> NDArray[np.uint64]:
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


def _stable_roots(prog: Program) -> list[Object]:
    if "contig_page_data" in prog:  # built without CONFIG_NUMA
        # root_stable_tree never points elsewhere: the compiler has left it out.
        return list(prog["one_stable_tree"])
    roots = prog["root_stable_tree"]
    return [roots[nid] for nid in range(prog["ksm_nr_node_ids"].value_())]


def _in_trees(prog: Program, nodes: Objects, node_type: Type) -> NDArray[Any]:
    """Which stable tree each stable_node is linked into, -1 for none."""
    trees = [(root.address_of_().value_(), root.rb_node.value_()) for root in _stable_roots(prog)]
    trees = [(address, node) for address, node in trees if node]
    root = np.array([address for address, _ in trees], np.uint64)
    rb = nodes.address + np.uint64(offsetof(node_type, "node"))
    links = tree_links(
        rb, nodes["parent"], nodes["left"], nodes["right"],
        np.array([node for _, node in trees], np.uint64), root,
    )  # fmt: skip
    return follow_lists(rb, links, np.sort(root)).head


def _chains_of(dups: Objects, chains: Objects, node_type: Type) -> NDArray[Any]:
    """Which chain each duplicate is on, -1 for none."""
    hlist = np.uint64(offsetof(node_type, "hlist"))
    dup_entry = dups.address + np.uint64(offsetof(node_type, "hlist_dup"))
    return follow_lists(
        dup_entry,
        hlist_links(
            dup_entry,
            dups["dup_pprev"],
            dups["dup_next"],
            chains.address + hlist,
            chains["first"],
        ),
        chains.address + hlist,
    ).head


def _migrating(nodes: Objects, migrate: int, node_type: Type) -> NDArray[np.bool_]:
    """
    Which stable_nodes wait for another tree.

    :param migrate: address of the list of such.
    """
    waits = nodes["head"] == np.uint64(migrate)
    waiting = nodes.only(waits)
    list_at = np.uint64(offsetof(node_type, "list"))
    on_list = follow_lists(
        waiting.address + list_at, waiting["list_next"], np.array([migrate], np.uint64)
    ).head
    migrating = np.zeros(len(nodes), np.bool_)
    migrating[waits] = on_list >= 0
    return migrating


def read_ksm(prog: Program, read: SlabObjects) -> Ksm:
    """Put together what was read from the slab caches."""
    nodes, items = read.objects["stable_node"], read.objects["rmap_item"]
    node_type, item_type = prog.type(_type(prog, NODE_TYPES)), prog.type(_type(prog, ITEM_TYPES))
    problems = []

    # In a tree: the pages and chains themselves.
    tree = _in_trees(prog, nodes, node_type)
    is_chain = (tree >= 0) & (nodes["length"] == CHAIN)
    in_tree = (tree >= 0) & ~is_chain

    # On a chain. A duplicate says so in `head`, which no tree's node can have.
    migrate = prog["migrate_nodes"].address_of_().value_()
    dup = nodes["head"] == np.uint64(migrate + 8)  # STABLE_NODE_DUP_HEAD
    dups = nodes.only(dup)
    hlist = np.uint64(offsetof(node_type, "hlist"))
    chains = nodes.only(is_chain)
    node_chain = np.full(len(nodes), -1, np.int64)
    node_chain[dup] = _chains_of(dups, chains, node_type)

    migrating = _migrating(nodes, migrate, node_type)
    found = in_tree | (node_chain >= 0) | migrating
    place = np.where(in_tree, TREE, np.where(migrating, MIGRATE, DUP))
    pages = nodes.only(found)

    # Mappings: on the list of one of these.
    stable = items.only((items["address"] & np.uint64(STABLE_FLAG)) != 0)
    entry = stable.address + np.uint64(offsetof(item_type, "hlist"))
    item_node = follow_lists(
        entry,
        hlist_links(entry, stable["pprev"], stable["next"], pages.address + hlist, pages["first"]),
        pages.address + hlist,
    ).head.astype(np.int64)
    right = (item_node >= 0) & (find(pages.address, stable["head"]) == item_node)
    if odd := int(np.count_nonzero((item_node >= 0) & ~right)):
        problems.append(f"{odd:,} KSM items are on the list of another page than theirs")
    stable, item_node = stable.only(item_node >= 0), item_node[item_node >= 0]
    order = np.argsort(item_node, kind="stable")
    mask = ~np.uint64((1 << prog["PAGE_SHIFT"].value_()) - 1)
    nid = (
        nodes["nid"].astype(np.int64) if "nid" in nodes.columns else np.zeros(len(nodes), np.int64)
    )
    return Ksm(
        node=pages.address,
        node_kpfn=pages["kpfn"].astype(np.int64),
        node_nid=nid[found],
        node_place=place[found],
        node_chain=node_chain[found],
        chain=chains.address,
        chain_nid=nid[is_chain],
        item_node=item_node[order],
        item_anon_vma=stable["anon_vma"][order],
        item_mm=stable["mm"][order],
        item_address=stable["address"][order] & mask,
        item_index=stable["index"][order] if "index" in stable.columns else None,
        item_bytes=sizeof(item_type),
        problems=problems,
    )


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


def ksm_chains(ksm: Ksm, most: int = MAX_CHAINS) -> list[KsmChain]:
    """The chains with most mappings."""
    on = ksm.node_chain >= 0
    dups = np.bincount(ksm.node_chain[on], minlength=len(ksm.chain))
    mappings = np.bincount(
        ksm.node_chain[on], ksm.mappings[on].astype(np.float64), minlength=len(ksm.chain)
    ).astype(np.int64)
    return [
        KsmChain(hex(ksm.chain[at]), int(ksm.chain_nid[at]), int(dups[at]), int(mappings[at]))
        for at in np.argsort(-mappings, kind="stable")[:most].tolist()
    ]


MAX_COUNT = 1 << 44  # of pages; physical addresses have at most 52 bits


def ksm_processes(prog: Program, ksm: Ksm, maps: ReverseMaps) -> list[KsmProcess]:
    """Every process that KSM looks at, those with most merged pages first."""
    tasks = maps.tasks
    of = find(tasks.mm, ksm.item_mm)
    counted = np.bincount(of[of >= 0], minlength=len(tasks.mm))
    page = 1 << prog["PAGE_SHIFT"].value_()
    rows = []
    kept = (tasks.ksm_merging_pages, tasks.ksm_rmap_items, tasks.ksm_zero_pages)
    for mm, number in enumerate(counted.tolist()):
        # Beyond any memory is damage; a profit made of it would not fit a table.
        merging, items, zero = (
            int(part[mm]) if part is not None and 0 <= part[mm] < MAX_COUNT else None
            for part in kept
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


def mapcounts(prog: Program, pfns: Iterable[int], node: Iterable[int]) -> list[int | None]:
    """
    How often each KSM page is mapped, by its struct page; None where it is no KSM page any more
    (``mapping`` does not lead back to the stable node), or cannot be read.
    """
    dtype = struct_dtype(
        prog.type("struct page"), {"mapping": "mapping", "mapcount": "_mapcount.counter"}
    )
    base = prog["vmemmap"].value_()
    result: list[int | None] = []
    for pfn, address in zip(pfns, node, strict=True):
        if not 0 <= pfn < MAX_COUNT:
            result.append(None)  # of a damaged node
            continue
        try:
            row = np.frombuffer(prog.read(base + pfn * dtype.itemsize, dtype.itemsize), dtype)[0]
        except FaultError:
            result.append(None)
            continue
        result.append(int(row["mapcount"]) + 1 if int(row["mapping"]) == address | 3 else None)
    return result


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("ksm")
