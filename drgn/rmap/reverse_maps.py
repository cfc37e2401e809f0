# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps: trees of VMAs, in which the kernel finds who may map a page. Here those of anonymous
memory, ``struct anon_vma`` and the ``struct anon_vma_chain`` that link VMAs to it, and what is
common to them and those of files (``file_maps``).

All kinds of objects are read out of their slab caches in bulk (see ``slab_objects``); the
trees are not descended one by one. A slot may be free, stale or something else (SLUB merges the
cache of anon_vma_chains with others of its size), so what points back decides. A chain counts if it
is on the list of its VMA, link by link round to the VMA itself. It must also hang in the tree of
its anon_vma, link by link up to the root. A chain in only one of the two is an orphan, and shown.

The counts are compared with ``num_children`` and ``num_active_vmas``, which the kernel keeps, or
with their sum. For a sample, the trees are descended and the VMAs of the process walked
(:func:`check_sample`).

Costs a pass over the struct pages and about a microsecond an anon_vma_chain. A walk of a range of
page offsets visits every VMA that overlaps it: counted by bisection or by one sweep over the ends
of the intervals, and not one by one, ten million take milliseconds.

On a live kernel processes fork, split and merge meanwhile. A chain that moves is then an orphan of
that moment. :func:`read_reverse_maps` reads again, three times at most, and keeps the best reading.

Cannot know: anonymous memory of processes that have none yet: an anon_vma is made by the first
write fault; and how many nodes a search in a tree passes on its way to those that overlap.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from drgn import Object, Program, ProgramFlags, offsetof
from drgn.helpers.linux.mm import for_each_vma
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry
from numpy.typing import NDArray

from mmscope.drgn.owners.slab_caches import SlabFinder
from mmscope.drgn.owners.slab_objects import (
    Objects,
    SlabObjects,
    Wanted,
    read_slab_objects,
    tree_links,
)
from mmscope.drgn.processes.processes import WANTED as TASKS
from mmscope.drgn.processes.processes import Processes, processes
from mmscope.drgn.reading.kernel_arrays import TORN, Array, Bools, Gaps, S64s, U64s, member_path
from mmscope.drgn.reading.linked_lists import find, follow_lists
from mmscope.drgn.reading.rwsem_counts import lock_columns
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import table

U57 = np.uint64(57)
# What check_sample() walks at most, VMAs and tree nodes together: a fifth of a second.
SAMPLE = 20_000
LIVE_ATTEMPTS = 3
MOST_VMAS = np.uint64(1 << 40)  # of all processes together
# After them no reading begins: what takes long is torn the next time, too.
LIVE_SECONDS = 20.0
# What the kernel keeps of an anon_vma, in words.
KEPT = {
    "num_children": "anon_vmas that have it as parent, itself included",
    "num_active_vmas": "VMAs whose anon_vma it is",
    "degree": "anon_vmas that have it as parent, itself included, and VMAs whose anon_vma it is",
}
# KSM's objects. The names since "ksm: add the ksm prefix to the names of the ksm private
# structures" (21fbd59136e0, in v6.1), and before.
KSM_NODE = ("struct ksm_stable_node", "struct stable_node")
KSM_ITEM = ("struct ksm_rmap_item", "struct rmap_item")
NO_KSM = "the kernel has no KSM (CONFIG_KSM)"


@table(
    "anon_vma_checks",
    "anon_vmas that do not add up",
    empty="Trees, lists, counters and a walked sample agree on every anon_vma.",
)
class AnonVmaCheck:
    """A disagreement between anon_vmas."""

    anon_vma: str | None = column(holds="kernel", key=True, help="address; empty: several")
    problem: str = column(holds="words", key=True, help="what disagrees")
    expected: int | None = column(low=None, help="the kernel's count, or the other way of counting")
    found: int = column(help="what was found")


@dataclass(kw_only=True)
class IntervalTrees:
    """
    Many interval trees of VMAs (``mm/interval_tree.c``) as sorted page offsets, one tree after the
    other: the nodes sorted by (tree, first page offset).
    """

    first: U64s  # page offsets
    last: U64s
    start: S64s  # where the nodes of each tree begin, and the end of the last
    vma_mm: S64s  # index of each VMA's process in tasks, -1 where no task has it
    tasks: Processes

    @property
    def node_mm(self) -> S64s:
        """The process of each node."""
        return self.vma_mm

    @cached_property
    def tree_size(self) -> S64s:
        """Nodes of each tree: what a walk of its full range visits."""
        return np.diff(self.start)

    @cached_property
    def tree(self) -> S64s:
        """The tree of each node."""
        return np.repeat(np.arange(len(self.start) - 1), self.tree_size)

    def nodes(self, tree: int) -> slice:
        """The nodes of a tree."""
        return slice(int(self.start[tree]), int(self.start[tree + 1]))

    @cached_property
    def _sorted_last(self) -> U64s:
        """The last page offsets of each tree, ascending within it."""
        return self.last[np.lexsort((self.last, self.tree))]

    def overlaps(self, tree: S64s, first: U64s, last: U64s) -> S64s:
        """
        Count the VMAs of a tree that overlap a range of page offsets, which
        ``vma_interval_tree_foreach(…, first, last)`` and its like for anon_vmas visit.

        Those that begin at or before *last*, less those that end before *first*.

        :param tree: indexes; -1 has no node.
        """
        begun = _rank(self.first, self.start, tree, last, "right")
        ended = _rank(self._sorted_last, self.start, tree, first, "left")
        return np.where(tree < 0, 0, begun - ended)

    @cached_property
    def depths(self) -> tuple[S64s, NDArray[np.float64]]:
        """
        VMAs over one page offset, by tree: the most, and the mean over the offsets that at least
        one VMA has. By a sweep over all ends.
        """
        trees = len(self.start) - 1
        offset = np.concatenate([self.first, self.last + np.uint64(1)])
        step = np.repeat(np.array([1, -1], np.int64), len(self.first))
        tree = np.tile(self.tree, 2)
        # One that ends where another begins has ended by then.
        order = np.lexsort((step, offset, tree))
        offset, tree = offset[order], tree[order]
        # A tree's begins and ends cancel out, so that the next one's sum begins at 0.
        depth = np.cumsum(step[order])
        most = np.zeros(trees, np.int64)
        np.maximum.at(most, tree, depth)
        # To the next end; after the last of a tree the depth is 0.
        length = np.diff(offset, append=offset[-1:]).astype(np.float64)
        covered = np.bincount(tree, np.where(depth > 0, length, 0.0), minlength=trees)
        pages = (self.last - self.first).astype(np.float64) + 1
        mapped = np.bincount(self.tree, pages, minlength=trees)
        return most, np.divide(mapped, covered, out=np.zeros(trees), where=covered > 0)

    @property
    def of_owner(self) -> Array:
        """Nodes that say whose tree it is, should several processes have as many of its VMAs."""
        return np.zeros(len(self.first), np.bool_)

    @cached_property
    def users(self) -> S64s:
        """
        Trees, processes and the VMAs that each process has on each tree, ascending by tree, its
        owner last of each. Processes that are gone are -1.
        """
        width = len(self.tasks.mm) + 1
        keys, which = np.unique(self.tree * width + self.node_mm + 1, return_inverse=True)
        counts = np.bincount(which, minlength=len(keys))
        owned = np.bincount(which[self.of_owner], minlength=len(keys))
        trees = keys // width
        order = np.lexsort((owned, counts, trees))
        return np.stack([trees, keys % width - 1, counts])[:, order]

    def users_of(self, tree: int) -> tuple[S64s, S64s]:
        """The processes of a tree and their VMAs, its owner last."""
        trees, mms, vmas = self.users
        here = slice(*np.searchsorted(trees, [tree, tree + 1]))
        return mms[here], vmas[here]

    def owner(self, tree: int) -> tuple[int | None, str | None]:
        """Pid and comm of the process with most VMAs on a tree; None if it is gone."""
        mms, _ = self.users_of(tree)
        if not len(mms) or mms[-1] < 0:
            return None, None
        return int(self.tasks.pid[mms[-1]]), self.tasks.comm[mms[-1]]

    def cells(self, tree: int) -> dict[str, Any]:
        """The columns that every tree's row has."""
        mms, counts = self.users_of(tree)
        pid, comm = self.owner(tree)
        return {
            "vmas": int(self.tree_size[tree]),
            "processes": int(np.count_nonzero(mms >= 0)),
            "pid": pid,
            "comm": comm,
            "vmas_of_pid": int(counts[-1]) if len(counts) else 0,
        }

    def range(self, tree: int) -> tuple[int, int]:
        """First page offset of a tree that is not empty, and the end of its last VMA."""
        nodes = self.nodes(tree)
        return int(self.first[nodes][0]), int(self.last[nodes].max()) + 1


def _rank(values: U64s, start: S64s, group: S64s, wanted: U64s, side: str) -> S64s:
    """
    ``searchsorted`` in one of several arrays that lie one after the other, for each wanted value.

    A bisection of all at once: as many rounds as the longest array has bits.
    """
    if not len(values):
        return np.zeros(len(group), np.int64)
    low, high = start[group].copy(), start[group + 1].copy()
    begin = low.copy()
    for _ in range(int(np.diff(start).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        value = values[np.minimum(middle, len(values) - 1)]
        before = (value <= wanted) if side == "right" else (value < wanted)
        going = low < high
        low = np.where(going & before, middle + 1, low)
        high = np.where(going & ~before, middle, high)
    return low - begin


def powers_of_two(sizes: S64s) -> list[tuple[int, int, Bools]]:
    """(at least, at most, mask of the sizes there): 0, 1, 2 to 3, 4 to 7, … up to the largest."""
    bits = np.frexp(sizes.astype(np.float64))[1]
    return [
        (1 << bit >> 1, max((1 << bit) - 1, 0), bits == bit)
        for bit in range(int(bits.max(initial=0)) + 1)
    ]


@dataclass(kw_only=True)
class ReverseMaps(IntervalTrees):
    """
    All anon_vmas with their trees, whose nodes are chains.

    :ivar slots: slots that were read in the same pass and are not looked at yet: of VMAs, and of
        KSM's objects.
    """

    ROOT: ClassVar = ("struct anon_vma", "rb_root")
    NODE: ClassVar = ("struct anon_vma_chain", "rb")
    LINKED: ClassVar = ("anon_vma", "an anon_vma")
    CHECK: ClassVar[type] = AnonVmaCheck

    anon_vmas: Objects
    root: S64s  # indexes into anon_vmas, -1 where it has none
    parent: S64s
    depth: S64s
    vmas: Objects
    chain_vma: S64s  # the VMA of each node
    checks: list[AnonVmaCheck] = field(default_factory=list)
    orphans: int = 0
    unreadable_bytes: int = 0
    odd_slabs: int = 0
    attempts: int = 1
    slots: dict[str, Objects] = field(default_factory=dict)

    @property
    def addresses(self) -> U64s:
        """The anon_vma of each tree."""
        return self.anon_vmas.address

    @property
    def node_mm(self) -> S64s:
        return self.vma_mm[self.chain_vma]

    @property
    def active_vmas(self) -> S64s:
        """VMAs whose own anon_vma each is."""
        of = find(self.addresses, self.vmas["anon_vma"])
        return np.bincount(of[of >= 0], minlength=len(self.addresses))

    @property
    def of_owner(self) -> Bools:
        """Nodes of VMAs whose own anon_vma it is, not one that theirs was forked from."""
        return np.asarray(self.vmas["anon_vma"][self.chain_vma] == self.addresses[self.tree])


def wanted(prog: Program) -> dict[str, Wanted]:
    """
    The objects to read out of slab caches.

    :raises LookupError: the kernel's layout is unknown.
    """
    vma_type = prog.type("struct vm_area_struct")
    vma: dict[str, str | tuple[str, ...]] = {
        "start": "vm_start",
        "end": "vm_end",
        "mm": "vm_mm",
        "pgoff": "vm_pgoff",
        "flags": "vm_flags",
        "anon_vma": "anon_vma",
        # Where it hangs in its file's tree (see file_maps).
        "file_parent": "shared.rb.__rb_parent_color",
        "file_left": "shared.rb.rb_left",
        "file_right": "shared.rb.rb_right",
    }
    # What keeps neighbours from merging; some are configured away.
    for name, member in (
        ("file", "vm_file"),
        ("policy", "vm_policy"),
        ("userfault", "vm_userfaultfd_ctx.ctx"),
        ("name", "anon_name"),
    ):
        with contextlib.suppress(LookupError):
            vma[name] = member_path(vma_type, member)
    # Since v7.3 VMAs lie in the tree by their anonymous page offset, which for private mappings of
    # files is another than vm_pgoff.
    if vma_type.has_member("__vm_anon_pgoff_lo"):
        vma |= {"anon_pgoff_lo": "__vm_anon_pgoff_lo", "anon_pgoff_hi": "__vm_anon_pgoff_hi"}
    anon_vma: dict[str, str | tuple[str, ...]] = {
        "root": "root",
        "parent": "parent",
        "refcount": "refcount.counter",
        "tree": "rb_root.rb_root.rb_node",
    }
    # "mm/rmap: Fix anon_vma->degree ambiguity leading to double-reuse" (2555283eb40d, in v6.0, and
    # in later 5.10 and 5.15) made two of degree.
    old = prog.type("struct anon_vma").has_member("degree")
    anon_vma |= {name: name for name in KEPT if (name == "degree") is old}
    anon_vma |= lock_columns(prog, "rwsem")
    chain = {
        "vma": "vma",
        "anon_vma": "anon_vma",
        "next": "same_vma.next",
        "parent": "rb.__rb_parent_color",
        "left": "rb.rb_left",
        "right": "rb.rb_right",
    }
    kinds = TASKS | {
        "anon_vma": Wanted("anon_vma_cachep", "struct anon_vma", anon_vma),
        "anon_vma_chain": Wanted("anon_vma_chain_cachep", "struct anon_vma_chain", chain),
        "vma": Wanted("vm_area_cachep", "struct vm_area_struct", vma),
    }
    with contextlib.suppress(LookupError):
        kinds |= _ksm_objects(prog)
    return kinds


def ksm_type(prog: Program, names: tuple[str, ...]) -> str:
    """
    The name that one of KSM's types has.

    :raises LookupError: the kernel has no KSM.
    """
    for name in names:
        with contextlib.suppress(LookupError):
            prog.type(name)
            return name
    raise LookupError(NO_KSM)


def _ksm_objects(prog: Program) -> dict[str, Wanted]:
    """The objects of KSM (see ``ksm``)."""
    node, item = ksm_type(prog, KSM_NODE), ksm_type(prog, KSM_ITEM)
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


def read_reverse_maps(
    prog: Program,
    *,
    found: tuple[SlabFinder, Gaps] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ReverseMaps:
    """
    Read all anon_vmas; on a live kernel again, if they moved too much meanwhile.

    :param found: the slabs, by a pass that went before; of no use on a live kernel.
    :raises LookupError: the kernel's layout is unknown.
    """
    best: ReverseMaps | None = None
    attempts = LIVE_ATTEMPTS if prog.flags & ProgramFlags.IS_LIVE else 1
    begin = time.monotonic()
    for attempt in range(1, attempts + 1):
        read = read_slab_objects(prog, wanted(prog), found=found, progress=progress)
        maps = _reverse_maps(prog, read)
        if best is None or maps.orphans < best.orphans:
            best = maps
        best.attempts = attempt
        if not best.orphans or time.monotonic() - begin > LIVE_SECONDS:
            break
    assert best is not None
    return best


def reverse_maps(memory: Memory) -> ReverseMaps:
    """All reverse maps but those of files, read once for all sections."""
    found = memory.kept_consumer(SlabFinder)
    return memory.once(
        "rmap", lambda: read_reverse_maps(memory.prog, found=found, progress=memory.progress)
    )


def starts(trees: S64s, number: int) -> S64s:
    """Begins of *number* trees in nodes sorted by tree, and the end of the last."""
    return np.append(0, np.cumsum(np.bincount(trees, minlength=number)))


def impossible_ranges(vmas: Objects, offset: U64s) -> Bools:
    """Mask of ranges that no process can have. An address has fewer than 57 bits, as an offset."""
    backwards = vmas["start"] >= vmas["end"]
    return np.asarray(backwards | (vmas["end"] >> U57 != 0) | (offset >> U57 != 0))


def _reverse_maps(prog: Program, read: SlabObjects) -> ReverseMaps:
    """Put together what was read from the slab caches."""
    tasks = processes(prog, read.objects["task"])
    anon_vmas = read.objects["anon_vma"]
    anon_vmas = anon_vmas.only(anon_vmas["refcount"] > 0)  # a free one has none
    if prog.flags & ProgramFlags.IS_LIVE:
        anon_vmas = anon_vmas.only(_possible(anon_vmas))
    chains, vmas = read.objects["anon_vma_chain"], read.objects["vma"]
    owner, on_list, sound, checks = _linked(prog, chains, anon_vmas, vmas)
    orphans = sum(check.found for check in checks)

    # Only the VMAs that a chain leads to count.
    used = np.zeros(len(vmas), np.bool_)
    used[on_list[sound]] = True
    chain_vma = np.cumsum(used)[on_list[sound]] - 1
    vmas = vmas.only(used)
    pages = ((vmas["end"] - vmas["start"]) >> np.uint64(prog["PAGE_SHIFT"].value_())).astype(
        np.uint64
    )
    offset = _page_offsets(vmas)
    tree = owner[sound]
    odd = impossible_ranges(vmas, offset)
    if number := int(np.count_nonzero(odd)):
        checks.append(AnonVmaCheck(None, "VMAs with a range that cannot be", 0, number))
        orphans += number
        possible = ~odd[chain_vma]
        chain_vma, tree = chain_vma[possible], tree[possible]
    first = offset[chain_vma]
    last = first + pages[chain_vma] - np.uint64(1)
    order = np.lexsort((first, tree))

    root, parent = (find(anon_vmas.address, anon_vmas[name]) for name in ("root", "parent"))
    maps = ReverseMaps(
        anon_vmas=anon_vmas,
        root=root,
        parent=parent,
        depth=_depths(anon_vmas, parent),
        vmas=vmas,
        vma_mm=find(tasks.mm, vmas["mm"]),
        chain_vma=chain_vma[order],
        first=first[order],
        last=last[order],
        start=starts(tree, len(anon_vmas)),
        tasks=tasks,
        checks=checks,
        orphans=orphans,
        unreadable_bytes=read.gaps.bytes,
        odd_slabs=read.odd_slabs,
        slots={
            kind: objects
            for kind, objects in read.objects.items()
            if kind in ("vma", "stable_node", "rmap_item")
        },
    )
    maps.checks += _count_checks(maps)
    return maps


def _possible(anon_vmas: Objects) -> Bools:
    """
    Mask of slots that hold what an anon_vma can: a slab that went to another cache while it was
    read has something else in it.
    """
    counts = [anon_vmas[name] for name in KEPT if name in anon_vmas.columns]
    return np.asarray(np.maximum.reduce(counts) < MOST_VMAS)


def _linked(
    prog: Program, slots: Objects, anon_vmas: Objects, vmas: Objects
) -> tuple[S64s, S64s, Bools, list[AnonVmaCheck]]:
    """
    The anon_vma and the VMA of each slot of the anon_vma_chains, and if it is a sound one; and how
    many are only in a tree, or only on a list.
    """
    chain_type = prog.type("struct anon_vma_chain")
    node = slots.address + np.uint64(offsetof(chain_type, "rb"))
    entry = slots.address + np.uint64(offsetof(chain_type, "same_vma"))
    heads = vmas.address + np.uint64(offsetof(prog.type("struct vm_area_struct"), "anon_vma_chain"))

    # mm_take_all_locks() marks a tree in bit 0 of its root.
    top = anon_vmas["tree"] & ~np.uint64(1)
    some = top != 0
    links = tree_links(
        node, slots["parent"], slots["left"], slots["right"], top[some], anon_vmas.address[some]
    )
    in_tree = follow_lists(node, links, anon_vmas.address).head.astype(np.int64)
    on_list = follow_lists(entry, slots["next"], heads).head.astype(np.int64)
    named = find(anon_vmas.address, slots["anon_vma"])
    own_tree = (in_tree >= 0) & (named == in_tree)
    own_list = (on_list >= 0) & (find(vmas.address, slots["vma"]) == on_list)
    owner = np.where(own_tree | own_list, named, -1)
    sound = own_list & (owner >= 0)

    checks = []
    for problem, which in (
        ("anon_vma_chains in the tree of an anon_vma, and on no VMA's list", own_tree & ~own_list),
        ("anon_vma_chains on the list of a VMA, and not in their tree", sound & ~own_tree),
        ("anon_vma_chains on the list of a VMA, of no anon_vma", own_list & (owner < 0)),
    ):
        if number := int(np.count_nonzero(which)):
            checks.append(AnonVmaCheck(None, problem, 0, number))
    return owner, on_list, sound, checks


def _page_offsets(vmas: Objects) -> U64s:
    """The page offset that each VMA has in the tree of its anon_vma."""
    if "anon_pgoff_lo" not in vmas.columns:
        return vmas["pgoff"].astype(np.uint64)
    low, high = (vmas[f"anon_pgoff_{half}"].astype(np.uint64) for half in ("lo", "hi"))
    return np.asarray((high << np.uint64(32)) | low)


def _depths(anon_vmas: Objects, parent: S64s) -> S64s:
    """Forks between each anon_vma and the first one, which is its own parent."""
    forked = parent != np.arange(len(parent))
    depths = np.zeros(len(parent), np.int64)
    depths[forked] = follow_lists(
        anon_vmas.address[forked], anon_vmas["parent"][forked], anon_vmas.address[~forked]
    ).steps
    return depths


def _count_checks(maps: ReverseMaps) -> list[AnonVmaCheck]:
    """Compare what the kernel counts of each anon_vma with what was found."""
    children = np.bincount(maps.parent[maps.parent >= 0], minlength=len(maps.addresses))
    active = maps.active_vmas
    checks = []
    for name, counted in (
        ("num_children", children),
        ("num_active_vmas", active),
        ("degree", children + active),
    ):
        if name not in maps.anon_vmas.columns:
            continue
        expected = maps.anon_vmas[name].astype(np.int64)
        checks += [
            AnonVmaCheck(
                hex(maps.addresses[at]),
                f"{KEPT[name]} ({name})",
                int(expected[at]),
                int(counted[at]),
            )
            for at in np.flatnonzero(expected != counted).tolist()
        ]
    if lost := int(np.count_nonzero(maps.root < 0)):
        checks.append(AnonVmaCheck(None, "anon_vmas whose root is not an anon_vma", 0, lost))
    return checks


def check_sample(prog: Program, trees: Any, most: int = SAMPLE) -> list[Any]:
    """
    Descend some trees and walk the VMAs of some processes one by one, as the kernel would, and
    compare the counts: the largest first of those that fit into *most* nodes, half of them for
    processes.

    On a live kernel what differs may have moved.

    :param trees: :class:`ReverseMaps`, or those of files.
    :return: rows of checks.
    """
    checks = []
    (type_, root), (entry, link), (member, words) = trees.ROOT, trees.NODE, trees.LINKED
    room = most // 2
    for index in np.argsort(-trees.tree_size, kind="stable").tolist():
        size = int(trees.tree_size[index])
        if not size:
            break
        if size > room:
            continue
        address = int(trees.addresses[index])
        tree = Object(prog, type_, address=address).member_(root).rb_root.address_of_()
        walked = _count(rbtree_inorder_for_each_entry(entry, tree, link), size + room)
        room -= size
        if walked != size:
            problem = "VMAs in its interval tree, descended"
            checks.append(trees.CHECK(hex(address), problem, walked, size))
    room = most // 2
    tasks, by_mm = trees.tasks, np.bincount(trees.vma_mm[trees.vma_mm >= 0])
    for at in np.argsort(-by_mm, kind="stable").tolist():
        found, vmas = int(by_mm[at]), int(tasks.counts["map_count"][at])
        if not found:
            break
        if vmas > room:
            continue
        room -= vmas
        mm = Object(prog, "struct mm_struct", address=int(tasks.mm[at]))
        walked = _count(for_each_vma(mm), vmas + room, member)
        if walked != found:
            problem = f"VMAs with {words} of process {tasks.pid[at]}, walked"
            checks.append(trees.CHECK(None, problem, walked, found))
    return checks


def _count(entries: Iterator[Object], most: int, member: str = "") -> int | None:
    """Count the entries, or those whose member is set; None if they do not end, or move."""
    number = 0
    try:
        for at, entry in enumerate(entries):
            if at == most:
                return None
            number += bool((entry.member_(member) if member else entry).value_())
    except TORN:
        return None
    return number


def note_reverse_maps(memory: Memory, found: Found) -> None:
    """Say what keeps the reverse maps from being whole."""
    maps = reverse_maps(memory)
    if maps.orphans:
        words = (
            f"{maps.orphans:,} anon_vma_chains are only in a tree, or only on the list of a "
            "VMA, as while it is split"
        )
        if maps.attempts > 1:
            words += f" (the best of {maps.attempts} readings)"
        found.differ(words)
    found.notes += if_any(
        maps.unreadable_bytes,
        "{} bytes of slabs could not be read: what is in them, and in trees below them, is not "
        "counted",
    )
    found.notes += if_any(maps.odd_slabs, "{} not used", "damaged slab")
    found.notes += if_any(maps.tasks.unreadable, "{} could not be read", "process", "processes")
    found.remarks += if_any(maps.tasks.gone, "{} ended while being read", "process", "processes")


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("anon_vmas", "anon_vma_checks")
