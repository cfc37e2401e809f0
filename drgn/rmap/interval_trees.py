# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Interval trees of VMAs (``mm/interval_tree.c``) as sorted page offsets: ``anon_vma.rb_root`` and
``address_space.i_mmap``.

What a walk of a range of page offsets visits is every VMA that overlaps it. Counted by bisection or
by one sweep over the ends of the intervals, and not one by one: ten million take milliseconds.

Cannot know: how many nodes the search passes on its way to those that overlap.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


class IntervalTrees:
    """
    Many trees behind one another: the nodes sorted by (tree, first page offset).

    A base for what else is known of the trees.
    """

    first: NDArray[np.uint64]  # page offsets
    last: NDArray[np.uint64]
    start: NDArray[np.int64]  # where the nodes of each tree begin, and one entry more

    @cached_property
    def tree_size(self) -> NDArray[np.int64]:
        """Nodes of each tree: what a walk of its full range visits."""
        return np.diff(self.start)

    @cached_property
    def tree(self) -> NDArray[np.int64]:
        """The tree of each node."""
        return np.repeat(np.arange(len(self.start) - 1), self.tree_size)

    @cached_property
    def _sorted_last(self) -> NDArray[np.uint64]:
        """The last page offsets of each tree, ascending within it."""
        return self.last[np.lexsort((self.last, self.tree))]

    def overlaps(
        self, tree: NDArray[np.int64], first: NDArray[np.uint64], last: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        """
        How many VMAs of a tree overlap a range of page offsets: what the kernel's
        ``vma_interval_tree_foreach(…, first, last)`` and its like for anon_vmas visit.

        Counted, not visited: those that begin at or before *last*, less those that end before
        *first*.

        :param tree: indexes; -1 has no node.
        """
        begun = _rank(self.first, self.start, tree, last, "right")
        ended = _rank(self._sorted_last, self.start, tree, first, "left")
        return np.where(tree < 0, 0, begun - ended)

    @cached_property
    def depths(self) -> "Depths":
        """How many VMAs lie over one page offset of each tree, by a sweep over all ends."""
        trees = len(self.start) - 1
        nodes = len(self.first)
        offset = np.concatenate([self.first, self.last + np.uint64(1)])
        step = np.repeat(np.array([1, -1], np.int64), nodes)
        tree = np.tile(self.tree, 2)
        # One that ends where another begins has ended by then.
        order = np.lexsort((step, offset, tree))
        offset, tree = offset[order], tree[order]
        # A tree's begins and ends cancel out, so that the next one's sum begins at 0.
        depth = np.cumsum(step[order])
        most = np.zeros(trees, np.int64)
        np.maximum.at(most, tree, depth)
        # To the next end; behind the last of a tree the depth is 0.
        length = np.diff(offset, append=offset[-1:]).astype(np.float64)
        covered = np.bincount(tree, np.where(depth > 0, length, 0.0), minlength=trees)
        pages = (self.last - self.first).astype(np.float64) + 1
        mapped = np.bincount(self.tree, pages, minlength=trees)
        mean = np.divide(mapped, covered, out=np.zeros(trees), where=covered > 0)
        return Depths(most, mean)


@dataclass(frozen=True, slots=True)
class Depths:
    """VMAs over one page offset, tree by tree."""

    most: NDArray[np.int64]
    mean: NDArray[np.float64]  # over the page offsets that at least one VMA has


def _rank(
    values: NDArray[np.uint64],
    start: NDArray[np.int64],
    group: NDArray[np.int64],
    wanted: NDArray[np.uint64],
    side: str,
) -> NDArray[np.int64]:
    """
    ``searchsorted`` in one of several arrays that lie one behind the other, for each wanted value.

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


@dataclass(frozen=True, slots=True)
class Users:
    """Which process has how many VMAs on which tree: ascending, the best owner last of each."""

    tree: NDArray[np.int64]
    mm: NDArray[np.int64]  # -1 for processes that are gone
    vmas: NDArray[np.int64]
    start: NDArray[np.int64]  # of each tree, and one entry more

    def of(self, tree: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The processes of a tree and their VMAs."""
        here = slice(self.start[tree], self.start[tree + 1])
        return self.mm[here], self.vmas[here]


def count_users(
    trees: IntervalTrees, mm: NDArray[np.int64], mms: int, own: NDArray[Any] | None = None
) -> Users:
    """
    Count the VMAs of every process on every tree.

    :param mm: of each node, -1 for processes that are gone; :param mms: how many there are.
    :param own: which nodes say whose tree it is, should several processes have as many.
    """
    width = mms + 1
    keys, which = np.unique(trees.tree * width + mm + 1, return_inverse=True)
    counts = np.bincount(which, minlength=len(keys))
    owned = np.zeros(len(keys), np.int64)
    if own is not None:
        owned = np.bincount(which[own], minlength=len(keys))
    order = np.lexsort((owned, counts, keys // width))
    keys, counts = keys[order], counts[order]
    start = np.searchsorted(keys // width, np.arange(len(trees.start)))
    return Users(keys // width, keys % width - 1, counts, start)


def powers_of_two(sizes: NDArray[np.int64]) -> list[tuple[int, int, int, int]]:
    """(at least, at most, how many, their sum) of 0, 1, 2 to 3, 4 to 7, … up to the largest."""
    bits = np.frexp(sizes.astype(np.float64))[1]
    classes = range(int(bits.max(initial=0)) + 1)
    return [
        (
            1 << bit >> 1,
            max((1 << bit) - 1, 0),
            int(np.count_nonzero(bits == bit)),
            int(sizes[bits == bit].sum()),
        )
        for bit in classes
    ]
