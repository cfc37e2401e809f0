# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps of anonymous memory: ``struct anon_vma``, its interval tree, and the
``struct anon_vma_chain`` that link VMAs to it.

All three kinds of objects are read out of their slab caches in bulk (see ``slab_objects``), not by
descending the trees one by one. Slots that are free, stale or something else (SLUB merges the cache
of anon_vma_chains with others of its size) are recognised by what points back: a chain counts if it
is on the list of its VMA, link by link round to the VMA itself. Whether it also hangs in the tree
of its anon_vma, link by link up to the root, is held against that: one that is only in one of the
two is an orphan, and is shown. Against these counts are held ``num_children`` and
``num_active_vmas``, which the kernel keeps, and for a sample the trees themselves, descended, and
the VMAs of the process, walked (:func:`check_sample`).

Costs a pass over the struct pages and about a microsecond an anon_vma_chain.

On a live kernel processes fork, split and merge while this reads: chains that move are then orphans
of that moment. :func:`read_reverse_maps` reads again, three times at most, and keeps the best.

Cannot know: anonymous memory of processes that have none yet: an anon_vma is made by the first
write fault.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from drgn import FaultError, Object, Program, ProgramFlags, offsetof
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
from mmscope.drgn.processes.processes import Processes, ProcessVmas, max_map_count, processes
from mmscope.drgn.reading.kernel_arrays import Gaps, member_path
from mmscope.drgn.reading.linked_lists import find, follow_lists
from mmscope.drgn.rmap.interval_trees import IntervalTrees, Users, count_users, powers_of_two
from mmscope.drgn.tables.rows import MOST, MOST_PIDS, column
from mmscope.drgn.tables.table import Table

# Beyond these, a large machine's table would be all single VMAs; the fan-out has them all.
MAX_ROWS = 2000
U57 = np.uint64(57)
# What check_sample() walks at most, VMAs and tree nodes together: half a second.
SAMPLE = 60_000
LIVE_ATTEMPTS = 3
# Behind them none begins: what takes long is torn the next time, too.
LIVE_SECONDS = 20.0
# What a walk fails with where the kernel goes on meanwhile, or in damaged memory.
TORN = (FaultError, LookupError, NotImplementedError, RecursionError, ValueError)
# Columns of the picture of one tree.
MAP_BINS = 256


@dataclass(frozen=True)
class AnonVma:
    """An anon_vma and the VMAs that a walk of its tree may visit."""

    anon_vma: str = column(holds="kernel", key=True, help="address of the struct anon_vma")
    root: str = column(
        holds="kernel", help="the anon_vma whose lock it uses; itself, if it was not forked"
    )
    parent: str | None = column(holds="kernel", help="the anon_vma it was forked from")
    depth: int = column(help="forks between it and its root")
    children: int = column(help="anon_vmas forked from it that are there")
    vmas: int = column(unit="VMAs", help="nodes of its interval tree")
    active_vmas: int = column(unit="VMAs", help="VMAs whose new pages go to it")
    processes: int = column(help="processes that have these VMAs")
    pid: int | None = column(
        high=MOST_PIDS, help="the process that has most of them; unknown, if it is gone"
    )
    comm: str | None = column(holds="comm", help="its name")
    vmas_of_pid: int = column(unit="VMAs", help="VMAs of that process")
    first_index: str | None = column(
        holds="kernel", help="page offset at which the first of its VMAs begins"
    )
    pages: int | None = column(unit="pages", high=MOST, help="from there to the end of the last")
    ksm_items: int | None = column(help="mappings merged by KSM that are found through it")
    lock: str | None = column(
        holds="words", help="state of the lock of its root: free, read, write, changing hands"
    )


ANON_VMAS = Table("anon_vmas", "anon_vmas, those with most VMAs first", AnonVma, measure="vmas")


@dataclass(frozen=True)
class AnonVmaFanout:
    """How many anon_vmas have so many VMAs."""

    vmas_from: int = column(key=True, unit="VMAs", help="at least")
    vmas_to: int = column(unit="VMAs", help="at most")
    anon_vmas: int = column(help="anon_vmas with so many VMAs in their tree")
    vmas: int = column(unit="VMAs", help="their VMAs")
    ksm_items: int | None = column(help="mappings merged by KSM that are found through them")


ANON_VMA_FANOUT = Table(
    "anon_vma_fanout", "All anon_vmas by their VMAs", AnonVmaFanout, measure="vmas"
)


@dataclass(frozen=True)
class AnonVmaCheck:
    """Something about anon_vmas that does not fit together."""

    anon_vma: str | None = column(
        holds="kernel", key=True, help="which; empty, if it is about several"
    )
    problem: str = column(holds="words", key=True, help="what does not fit")
    expected: int | None = column(
        low=None, help="what the kernel keeps, or the other way of counting says"
    )
    found: int = column(help="what was found")


ANON_VMA_CHECKS = Table(
    "anon_vma_checks",
    "What does not fit together",
    AnonVmaCheck,
    empty="Trees, lists, counters and a walked sample agree on every anon_vma.",
)


@dataclass(frozen=True)
class AnonVmaMap:
    """A stretch of the page range of one anon_vma: what lies there."""

    anon_vma: str = column(holds="kernel", key=True, help="which")
    index: str = column(holds="kernel", key=True, help="page offset at which the stretch begins")
    pages: int = column(unit="pages", high=MOST, help="its length")
    vmas: int = column(unit="VMAs", help="VMAs that overlap it")
    writable_vmas: int = column(unit="VMAs", help="of these, writable")
    starts: int = column(unit="VMAs", help="VMAs that begin in it")
    ksm_items: int | None = column(help="mappings merged by KSM in it")


ANON_VMA_MAP = Table(
    "anon_vma_map",
    "The page range of the anon_vma with most VMAs",
    AnonVmaMap,
    not_compared="it shows parts of single trees",
)


@dataclass
class ReverseMaps(IntervalTrees):
    """All anon_vmas with their trees, whose nodes are chains."""

    anon_vmas: Objects
    root: NDArray[np.int64]  # indexes into anon_vmas, -1 where it has none
    parent: NDArray[np.int64]
    depth: NDArray[np.int64]
    vmas: Objects
    vma_mm: NDArray[np.int64]  # index into tasks.mm, -1 where no task has it
    chain_anon_vma: NDArray[np.int64]
    chain_vma: NDArray[np.int64]
    first: NDArray[np.uint64]  # page offsets
    last: NDArray[np.uint64]
    start: NDArray[np.int64]
    tasks: Processes
    checks: list[AnonVmaCheck] = field(default_factory=list)
    orphans: int = 0
    unreadable_bytes: int = 0
    odd_slabs: int = 0
    attempts: int = 1


def wanted(prog: Program) -> dict[str, Wanted]:
    """What to read out of slab caches for :func:`reverse_maps`."""
    vma: dict[str, str | tuple[str, ...]] = {
        "start": "vm_start",
        "end": "vm_end",
        "mm": "vm_mm",
        "pgoff": "vm_pgoff",
        "flags": "vm_flags",
        "anon_vma": "anon_vma",
    }
    # Where it hangs in its file's tree (see file_maps).
    vma |= {
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
            vma[name] = member_path(prog.type("struct vm_area_struct"), member)
    # Since v7.3 VMAs lie in the tree by their anonymous page offset, which for private mappings of
    # files is another than vm_pgoff.
    if prog.type("struct vm_area_struct").has_member("__vm_anon_pgoff_lo"):
        vma |= {"anon_pgoff_lo": "__vm_anon_pgoff_lo", "anon_pgoff_hi": "__vm_anon_pgoff_hi"}
    anon_vma: dict[str, str | tuple[str, ...]] = {
        "root": "root",
        "parent": "parent",
        "refcount": "refcount.counter",
        "children": "num_children",
        "active_vmas": "num_active_vmas",
        "tree": "rb_root.rb_root.rb_node",
    }
    if prog.type("struct rw_semaphore").has_member("count"):  # not with PREEMPT_RT
        anon_vma["lock"] = "rwsem.count.counter"
    return TASKS | {
        "anon_vma": Wanted("anon_vma_cachep", "struct anon_vma", anon_vma),
        "anon_vma_chain": Wanted(
            "anon_vma_chain_cachep",
            "struct anon_vma_chain",
            {
                "vma": "vma",
                "anon_vma": "anon_vma",
                "next": "same_vma.next",
                "parent": "rb.__rb_parent_color",
                "left": "rb.rb_left",
                "right": "rb.rb_right",
            },
        ),
        "vma": Wanted("vm_area_cachep", "struct vm_area_struct", vma),
    }


def read_reverse_maps(
    prog: Program,
    more: dict[str, Wanted] | None = None,
    *,
    found: tuple[SlabFinder, Gaps] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[ReverseMaps, SlabObjects]:
    """
    Read all anon_vmas; on a live kernel again, if they moved too much meanwhile.

    :param more: other objects to read in the same pass.
    :param found: the slabs, by a pass that went before; of no use on a live kernel.
    :raises LookupError: the kernel's layout is unknown.
    """
    best: tuple[ReverseMaps, SlabObjects] | None = None
    attempts = LIVE_ATTEMPTS if prog.flags & ProgramFlags.IS_LIVE else 1
    begin = time.monotonic()
    for attempt in range(1, attempts + 1):
        read = read_slab_objects(prog, wanted(prog) | (more or {}), found=found, progress=progress)
        maps = reverse_maps(prog, read)
        if best is None or maps.orphans < best[0].orphans:
            best = maps, read
        best[0].attempts = attempt
        if not best[0].orphans or time.monotonic() - begin > LIVE_SECONDS:
            break
    assert best is not None
    return best


def reverse_maps(prog: Program, read: SlabObjects) -> ReverseMaps:
    """Put together what was read from the slab caches."""
    page_shift = np.uint64(prog["PAGE_SHIFT"].value_())
    tasks = processes(prog, read.objects["task"])
    anon_vmas = read.objects["anon_vma"]
    anon_vmas = anon_vmas.only(anon_vmas["refcount"] > 0)  # a free one has none
    slots, vmas = read.objects["anon_vma_chain"], read.objects["vma"]
    chain_type = prog.type("struct anon_vma_chain")
    node = slots.address + np.uint64(offsetof(chain_type, "rb"))
    entry = slots.address + np.uint64(offsetof(chain_type, "same_vma"))
    heads = vmas.address + np.uint64(offsetof(prog.type("struct vm_area_struct"), "anon_vma_chain"))

    # mm_take_all_locks() marks a tree in bit 0 of its root.
    tree = anon_vmas["tree"] & ~np.uint64(1)
    links = tree_links(
        node, slots["parent"], slots["left"], slots["right"], tree[tree != 0],
        anon_vmas.address[tree != 0],
    )  # fmt: skip
    in_tree = follow_lists(node, links, anon_vmas.address).head.astype(np.int64)
    on_list = follow_lists(entry, slots["next"], heads).head.astype(np.int64)
    own_tree = (in_tree >= 0) & _are(anon_vmas.address, in_tree, slots["anon_vma"])
    own_list = (on_list >= 0) & _are(vmas.address, on_list, slots["vma"])
    owner = np.where(own_tree, in_tree, -1)
    outside = np.flatnonzero(own_list & ~own_tree)
    owner[outside] = find(anon_vmas.address, slots["anon_vma"][outside])
    sound = own_list & (owner >= 0)

    checks = []
    for problem, which in (
        ("anon_vma_chains in the tree of an anon_vma, and on no VMA's list", own_tree & ~own_list),
        ("anon_vma_chains on the list of a VMA, and not in their tree", sound & ~own_tree),
        ("anon_vma_chains on the list of a VMA, of no anon_vma", own_list & (owner < 0)),
    ):
        if number := int(np.count_nonzero(which)):
            checks.append(AnonVmaCheck(None, problem, 0, number))
    orphans = sum(check.found for check in checks)

    # Of VMAs, those count that a chain leads to.
    used = np.zeros(len(vmas), np.bool_)
    used[on_list[sound]] = True
    chain_vma = np.cumsum(used)[on_list[sound]] - 1
    vmas = vmas.only(used)
    pages = ((vmas["end"] - vmas["start"]) >> page_shift).astype(np.uint64)
    offset = vmas["pgoff"].astype(np.uint64)
    if "anon_pgoff_lo" in vmas.columns:
        offset = (vmas["anon_pgoff_hi"].astype(np.uint64) << np.uint64(32)) | vmas[
            "anon_pgoff_lo"
        ].astype(np.uint64)
    chain_anon_vma = owner[sound]
    # What no process can have is damage. An address has less than 57 bits, and so a page offset.
    odd = (vmas["start"] >= vmas["end"]) | (vmas["end"] >> U57 != 0) | (offset >> U57 != 0)
    if number := int(np.count_nonzero(odd)):
        checks.append(AnonVmaCheck(None, "VMAs with a range that cannot be", 0, number))
        orphans += number
        possible = ~odd[chain_vma]
        chain_vma, chain_anon_vma = chain_vma[possible], chain_anon_vma[possible]
    first = offset[chain_vma]
    last = first + pages[chain_vma] - np.uint64(1)
    order = np.lexsort((first, chain_anon_vma))
    start = np.zeros(len(anon_vmas) + 1, np.int64)
    np.cumsum(np.bincount(chain_anon_vma, minlength=len(anon_vmas)), out=start[1:])

    root, parent = (find(anon_vmas.address, anon_vmas[name]) for name in ("root", "parent"))
    maps = ReverseMaps(
        anon_vmas,
        root,
        parent,
        _depths(anon_vmas, parent),
        vmas,
        find(tasks.mm, vmas["mm"]),
        chain_anon_vma[order],
        chain_vma[order],
        first[order],
        last[order],
        start,
        tasks,
        checks,
        orphans,
        read.gaps.bytes,
        read.odd_slabs,
    )
    maps.checks += _count_checks(maps)
    return maps


def _are(
    addresses: NDArray[np.uint64], index: NDArray[np.int64], expected: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Whether each index leads to the address expected; of one below 0 it means nothing."""
    if not len(addresses):
        return np.zeros(len(index), np.bool_)
    return np.asarray(addresses[index] == expected)


def _depths(anon_vmas: Objects, parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Forks between each anon_vma and the first one, which is its own parent."""
    forked = parent != np.arange(len(parent))
    depths = np.zeros(len(parent), np.int64)
    depths[forked] = follow_lists(
        anon_vmas.address[forked], anon_vmas["parent"][forked], anon_vmas.address[~forked]
    ).steps
    return depths


def _count_checks(maps: ReverseMaps) -> list[AnonVmaCheck]:
    """What the kernel counts of each anon_vma, against what was found."""
    number = len(maps.anon_vmas)
    known = maps.parent >= 0
    children = np.bincount(maps.parent[known], minlength=number)
    active = find(maps.anon_vmas.address, maps.vmas["anon_vma"])
    active_vmas = np.bincount(active[active >= 0], minlength=number)
    checks = []
    for name, counted, words in (
        ("children", children, "anon_vmas that have it as parent, itself included (num_children)"),
        ("active_vmas", active_vmas, "VMAs whose anon_vma it is (num_active_vmas)"),
    ):
        kept = maps.anon_vmas[name].astype(np.int64)
        checks += [
            AnonVmaCheck(hex(address), words, expected, found)
            for address, expected, found in zip(
                *(
                    values[kept != counted].tolist()
                    for values in (maps.anon_vmas.address, kept, counted)
                ),
                strict=True,
            )
        ]
    lost = int(np.count_nonzero(maps.root < 0))
    if lost:
        checks.append(AnonVmaCheck(None, "anon_vmas whose root is not an anon_vma", 0, lost))
    return checks


def check_sample(prog: Program, maps: ReverseMaps, most: int = SAMPLE) -> list[AnonVmaCheck]:
    """
    Walk some trees and some processes as the kernel would, and hold the counts against them.

    On a live kernel what differs may have moved.
    """

    def walk_tree(index: int, most: int) -> int | None:
        anon_vma = Object(prog, "struct anon_vma", address=int(maps.anon_vmas.address[index]))
        root = anon_vma.rb_root.rb_root.address_of_()
        return count(rbtree_inorder_for_each_entry("struct anon_vma_chain", root, "rb"), most)

    trees, processes = check_walks(
        prog, maps, maps.vma_mm, maps.tasks, walk_tree, lambda vma: vma.anon_vma, most
    )
    return [
        AnonVmaCheck(
            hex(maps.anon_vmas.address[index]), "VMAs in its interval tree, descended", walked, size
        )
        for index, walked, size in trees
    ] + [
        AnonVmaCheck(None, f"VMAs with an anon_vma of process {pid}, walked", walked, found)
        for pid, walked, found in processes
    ]


Differences = list[tuple[int, int | None, int]]


def check_walks(
    prog: Program,
    trees: IntervalTrees,
    vma_mm: NDArray[np.int64],
    tasks: Processes,
    walk_tree: Callable[[int, int], int | None],
    wanted: Callable[[Object], Object],
    most: int,
) -> tuple[Differences, Differences]:
    """
    Where the counts of VMAs differ from those of trees that are descended and processes that are
    walked: the largest first of those that fit into *most* nodes, half of them for processes.

    :param vma_mm: of each VMA that was found, the index of its process.
    :param walk_tree: counts the nodes of a tree, by its index, and up to how many.
    :param wanted: the member of a ``struct vm_area_struct *`` that such a VMA has.
    :return: (index of the tree, nodes walked, nodes found), and the same by pid.
    """
    wrong: tuple[Differences, Differences] = ([], [])
    room = most // 2
    for index in np.argsort(-trees.tree_size, kind="stable").tolist():
        size = int(trees.tree_size[index])
        if not size:
            break
        if size > room:
            continue
        walked = walk_tree(index, size + room)
        room -= size
        if walked != size:
            wrong[0].append((index, walked, size))
    room = most // 2
    by_mm = np.bincount(vma_mm[vma_mm >= 0], minlength=len(tasks.mm))
    for mm in np.argsort(-by_mm, kind="stable").tolist():
        found, vmas = int(by_mm[mm]), int(tasks.map_count[mm])
        if not found:
            break
        if vmas > room:
            continue
        room -= vmas
        address = Object(prog, "struct mm_struct", address=int(tasks.mm[mm]))
        walked = count(for_each_vma(address), vmas + room, wanted)
        if walked != found:
            wrong[1].append((int(tasks.pid[mm]), walked, found))
    return wrong


def count(
    entries: Iterator[Object], most: int, wanted: Callable[[Object], Object] = lambda entry: entry
) -> int | None:
    """How many entries have what is wanted; None if there is no end to them, or they move."""
    number = 0
    try:
        for at, entry in enumerate(entries):
            if at == most:
                return None
            number += bool(wanted(entry).value_())
    except TORN:
        return None
    return number


def users(maps: ReverseMaps) -> Users:
    """
    Count the VMAs of every process on every anon_vma.

    Of several with as many, the one whose own anon_vma it is (``vma->anon_vma``) is its owner, not
    those that were forked from it.
    """
    own = maps.vmas["anon_vma"][maps.chain_vma] == maps.anon_vmas.address[maps.chain_anon_vma]
    return count_users(maps, maps.vma_mm[maps.chain_vma], len(maps.tasks.mm), own)


def owner_of(maps: ReverseMaps) -> Callable[[int], tuple[int | None, str | None]]:
    """A function from an anon_vma's index to pid and comm of the process with most of its VMAs."""
    by_anon_vma = users(maps)

    def owner(index: int) -> tuple[int | None, str | None]:
        mms, _ = by_anon_vma.of(index)
        if not len(mms) or mms[-1] < 0:
            return None, None
        return int(maps.tasks.pid[mms[-1]]), maps.tasks.comm[mms[-1]]

    return owner


def anon_vma_rows(
    maps: ReverseMaps, ksm_items: NDArray[np.int64] | None = None, most: int = MAX_ROWS
) -> list[AnonVma]:
    """
    The anon_vmas with most VMAs, and those with most KSM items and depth of fork among the rest.

    :param ksm_items: how many KSM has on each.
    """
    sizes = maps.tree_size
    order = np.lexsort((-maps.depth, -(sizes if ksm_items is None else ksm_items), -sizes))
    deepest = np.argsort(-maps.depth, kind="stable")[: most // 10]
    chosen = np.unique(np.concatenate([order[: most - len(deepest)], deepest]))
    by_anon_vma, owner = users(maps), owner_of(maps)
    known = maps.parent >= 0
    children = np.bincount(maps.parent[known], minlength=len(sizes))
    address, locks = maps.anon_vmas.address, maps.anon_vmas.columns.get("lock")
    rows = []
    for index in chosen[np.argsort(-sizes[chosen], kind="stable")].tolist():
        mms, counts = by_anon_vma.of(index)
        pid, comm = owner(index)
        chain = slice(maps.start[index], maps.start[index + 1])
        first = int(maps.first[chain][0]) if sizes[index] else None
        parent, root = int(maps.parent[index]), int(maps.root[index])
        rows.append(
            AnonVma(
                anon_vma=hex(address[index]),
                root=hex(maps.anon_vmas["root"][index]),
                parent=hex(address[parent]) if parent not in (-1, index) else None,
                depth=int(maps.depth[index]),
                children=int(children[index]) - (parent == index),
                vmas=int(sizes[index]),
                active_vmas=int(maps.anon_vmas["active_vmas"][index]),
                processes=int(np.count_nonzero(mms >= 0)),
                pid=pid,
                comm=comm,
                vmas_of_pid=int(counts[-1]) if len(counts) else 0,
                first_index=hex(first) if first is not None else None,
                pages=int(maps.last[chain].max()) + 1 - first if first is not None else None,
                ksm_items=None if ksm_items is None else int(ksm_items[index]),
                lock=lock_state(int(locks[root])) if root >= 0 and locks is not None else None,
            )
        )
    return rows


def lock_state(count: int) -> str:
    """What ``rw_semaphore.count`` says (kernel/locking/rwsem.c)."""
    if count & 1:
        return "write"
    if count >> 8 > 0:
        return "read"
    return "changing hands" if count & 6 else "free"


def fanout(maps: ReverseMaps, ksm_items: NDArray[np.int64] | None = None) -> list[AnonVmaFanout]:
    """All anon_vmas by the number of their VMAs, in powers of two."""
    sizes = maps.tree_size
    items = [
        None if ksm_items is None else int(ksm_items[(low <= sizes) & (sizes <= high)].sum())
        for low, high, *_ in powers_of_two(sizes)
    ]
    return [
        AnonVmaFanout(*row, of_ksm) for row, of_ksm in zip(powers_of_two(sizes), items, strict=True)
    ]


def tree_map(
    maps: ReverseMaps,
    index: int,
    ksm_index: NDArray[np.uint64] | None = None,
    bins: int = MAP_BINS,
) -> list[AnonVmaMap]:
    """
    The page range of one anon_vma in at most *bins* stretches of equal length.

    :param ksm_index: page offsets of the KSM items on it.
    """
    chain = slice(maps.start[index], maps.start[index + 1])
    first, last = maps.first[chain], maps.last[chain]
    if not len(first):
        return []
    begin, end = int(first.min()), int(last.max()) + 1
    width = -(-(end - begin) // bins)
    number = -(-(end - begin) // width)
    writable = (maps.vmas["flags"][maps.chain_vma[chain]] & 2) != 0
    edges = np.uint64(begin) + np.arange(number + 1, dtype=np.uint64) * np.uint64(width)

    def overlapping(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        begun = np.searchsorted(np.sort(first[chosen]), edges[1:], "left")
        ended = np.searchsorted(np.sort(last[chosen]), edges[:-1], "left")
        return begun - ended

    def inside(values: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.diff(np.searchsorted(np.sort(values), edges))

    everything = np.ones(len(first), np.bool_)
    return [
        AnonVmaMap(
            hex(maps.anon_vmas.address[index]),
            hex(edges[at]),
            min(width, end - int(edges[at])),
            int(vmas),
            int(can_write),
            int(starts),
            None if ksm_index is None else int(items),
        )
        for at, (vmas, can_write, starts, items) in enumerate(
            zip(
                overlapping(everything),
                overlapping(writable),
                inside(first),
                inside(ksm_index) if ksm_index is not None else np.zeros(number, np.int64),
                strict=True,
            )
        )
    ]


def process_vmas(prog: Program, maps: ReverseMaps, most: int = 500) -> list[ProcessVmas]:
    """The processes with most VMAs, and the anon_vma that most of these are on."""
    limit = max_map_count(prog)
    by_anon_vma = users(maps)
    order = np.lexsort((by_anon_vma.vmas, by_anon_vma.mm))
    of, who, count = (
        values[order] for values in (by_anon_vma.tree, by_anon_vma.mm, by_anon_vma.vmas)
    )
    begin = np.searchsorted(who, np.arange(len(maps.tasks.mm) + 1))
    rows = []
    for mm in np.argsort(-maps.tasks.map_count, kind="stable")[:most].tolist():
        low, high = int(begin[mm]), int(begin[mm + 1])
        rows.append(
            ProcessVmas(
                int(maps.tasks.pid[mm]),
                maps.tasks.comm[mm],
                int(maps.tasks.map_count[mm]),
                limit,
                high - low,
                hex(maps.anon_vmas.address[of[high - 1]]) if low < high else None,
                int(count[high - 1]) if low < high else None,
            )
        )
    return rows


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("anon_vmas")
