# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps of anonymous memory: ``struct anon_vma``, its interval tree, and the
``struct anon_vma_chain`` that link VMAs to it.

All three kinds of objects are read out of their slab caches in bulk (see ``slab_objects``); the
trees are not descended one by one. A slot may be free, stale or something else (SLUB merges the
cache of anon_vma_chains with others of its size), so what points back decides. A chain counts if it
is on the list of its VMA, link by link round to the VMA itself. It must also hang in the tree of
its anon_vma, link by link up to the root. A chain in only one of the two is an orphan, and shown.

The counts are compared with ``num_children`` and ``num_active_vmas``, which the kernel keeps. For a
sample, the trees are descended and the VMAs of the process walked (:func:`check_sample`).

Costs a pass over the struct pages and about a microsecond an anon_vma_chain.

On a live kernel processes fork, split and merge meanwhile. A chain that moves is then an orphan of
that moment. :func:`read_reverse_maps` reads again, three times at most, and keeps the best reading.

Cannot know: anonymous memory of processes that have none yet: an anon_vma is made by the first
write fault.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from drgn import Object, Program, ProgramFlags, offsetof
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
from mmscope.drgn.reading.kernel_arrays import Gaps, member_path
from mmscope.drgn.reading.linked_lists import find, follow_lists
from mmscope.drgn.rmap.interval_trees import IntervalTrees, Users, count_users
from mmscope.drgn.rmap.walk_checks import check_walks, count
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table

U57 = np.uint64(57)
# What check_sample() walks at most, VMAs and tree nodes together: a fifth of a second.
SAMPLE = 20_000
LIVE_ATTEMPTS = 3
MOST_VMAS = np.uint64(1 << 40)  # of all processes together
# Behind them none begins: what takes long is torn the next time, too.
LIVE_SECONDS = 20.0


@table_row
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

    @cached_property
    def users(self) -> Users:
        """
        How many VMAs every process has on every anon_vma.

        Of several with as many, the one whose own anon_vma it is (``vma->anon_vma``) is its owner,
        not those that were forked from it.
        """
        own = self.vmas["anon_vma"][self.chain_vma] == self.anon_vmas.address[self.chain_anon_vma]
        return count_users(self, self.vma_mm[self.chain_vma], len(self.tasks.mm), own)


def lock_word(prog: Program) -> str | None:
    """
    The member of a ``struct rw_semaphore`` that says who has it: ``count``, with PREEMPT_RT the
    readers ("locking/rwsem: Add rtmutex based R/W semaphore implementation", 42254105dfe8, in
    v5.15); None where it is another.
    """
    paths = ("count.counter", "rwbase.readers.counter")
    with contextlib.suppress(LookupError):
        return member_path(prog.type("struct rw_semaphore"), paths)
    return None


# include/linux/rwbase_rt.h: a lock that a writer wants has no bias, nor has one that it holds.
RT_READER_BIAS, RT_WRITER_BIAS = 1 << 31, 1 << 30
WRITER_LOCKED, FLAG_WAITERS, READER_SHIFT = 1, 2, 8  # kernel/locking/rwsem.c


def lock_counts(words: NDArray[Any]) -> NDArray[np.int64]:
    """``rw_semaphore.count``; made of the word that PREEMPT_RT has in its place, of 32 bits."""
    counts = words.astype(np.int64)
    if words.dtype.itemsize == 4:
        held, wanted = (counts & RT_WRITER_BIAS) != 0, (counts & RT_READER_BIAS) == 0
        counts = (counts & (RT_WRITER_BIAS - 1)) << READER_SHIFT
        counts[wanted] |= FLAG_WAITERS
        counts[held] = WRITER_LOCKED
    return counts


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
    # Where it hangs in its file's tree (see file_trees).
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
    if word := lock_word(prog):
        anon_vma["lock"] = f"rwsem.{word}"
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
    if prog.flags & ProgramFlags.IS_LIVE:
        anon_vmas = anon_vmas.only(_possible(anon_vmas))
    slots, vmas = read.objects["anon_vma_chain"], read.objects["vma"]
    owner, on_list, sound, checks = _linked(prog, slots, anon_vmas, vmas)
    orphans = sum(check.found for check in checks)

    # Only the VMAs that a chain leads to count.
    used = np.zeros(len(vmas), np.bool_)
    used[on_list[sound]] = True
    chain_vma = np.cumsum(used)[on_list[sound]] - 1
    vmas = vmas.only(used)
    pages = ((vmas["end"] - vmas["start"]) >> page_shift).astype(np.uint64)
    offset = _page_offsets(vmas)
    chain_anon_vma = owner[sound]
    # What no process can have is damage. An address has fewer than 57 bits, so has a page offset.
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
        anon_vmas=anon_vmas,
        root=root,
        parent=parent,
        depth=_depths(anon_vmas, parent),
        vmas=vmas,
        vma_mm=find(tasks.mm, vmas["mm"]),
        chain_anon_vma=chain_anon_vma[order],
        chain_vma=chain_vma[order],
        first=first[order],
        last=last[order],
        start=start,
        tasks=tasks,
        checks=checks,
        orphans=orphans,
        unreadable_bytes=read.gaps.bytes,
        odd_slabs=read.odd_slabs,
    )
    maps.checks += _count_checks(maps)
    return maps


def _possible(anon_vmas: Objects) -> NDArray[np.bool_]:
    """
    Which of these slots hold what an anon_vma can: a slab that went to another cache while it was
    read has something else in it.
    """
    counts = np.maximum(anon_vmas["children"], anon_vmas["active_vmas"])
    return np.asarray(counts < MOST_VMAS)


def _linked(
    prog: Program, slots: Objects, anon_vmas: Objects, vmas: Objects
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], list[AnonVmaCheck]]:
    """
    Of each slot of the anon_vma_chains: its anon_vma and its VMA, and whether it is a sound one;
    and how many are only in a tree, or only on a list.
    """
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
    return owner, on_list, sound, checks


def _page_offsets(vmas: Objects) -> NDArray[np.uint64]:
    """The page offset that each VMA has in the tree of its anon_vma."""
    if "anon_pgoff_lo" not in vmas.columns:
        return vmas["pgoff"].astype(np.uint64)
    low, high = (vmas[f"anon_pgoff_{half}"].astype(np.uint64) for half in ("lo", "hi"))
    return np.asarray((high << np.uint64(32)) | low)


def _are(
    addresses: NDArray[np.uint64], index: NDArray[np.int64], expected: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """True if each index leads to the address expected; of one below 0 it means nothing."""
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


def owner_of(maps: ReverseMaps) -> Callable[[int], tuple[int | None, str | None]]:
    """A function from an anon_vma's index to pid and comm of the process with most of its VMAs."""
    by_anon_vma = maps.users

    def owner(index: int) -> tuple[int | None, str | None]:
        mms, _ = by_anon_vma.of(index)
        if not len(mms) or mms[-1] < 0:
            return None, None
        return int(maps.tasks.pid[mms[-1]]), maps.tasks.comm[mms[-1]]

    return owner


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("anon_vmas", "anon_vma_checks")
