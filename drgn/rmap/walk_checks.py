# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Interval trees of VMAs descended, and the VMAs of ``struct mm_struct`` walked, one by one, as the
kernel would: a sample, that counts in bulk are held against.

Costs some microseconds a node.

Cannot know: whether what differs on a live kernel is wrong, or has moved meanwhile.
"""

from collections.abc import Callable, Iterator

import numpy as np
from drgn import Object, Program
from drgn.helpers.linux.mm import for_each_vma
from numpy.typing import NDArray

from mmscope.drgn.processes.processes import Processes
from mmscope.drgn.reading.kernel_arrays import TORN
from mmscope.drgn.rmap.interval_trees import IntervalTrees

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
    """How many entries have what is wanted; None if they do not end, or move."""
    number = 0
    try:
        for at, entry in enumerate(entries):
            if at == most:
                return None
            number += bool(wanted(entry).value_())
    except TORN:
        return None
    return number
