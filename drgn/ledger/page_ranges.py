# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Ranges of page frames whose owner is known by where they are, not by what their struct pages say.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.reading.kernel_arrays import distinct


class PageRanges:
    """
    Ranges of page frames, each with a kind: a number from 1 to 255.

    Filled with :meth:`add`; where ranges overlap, what was added later holds.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], int]] = []

    def add(self, kind: int, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int) -> None:
        """*lengths* pages from each of *starts* on are of a kind."""
        starts = np.asarray(starts, np.int64)
        self._parts.append((starts, starts + lengths, kind))
        self.__dict__.pop("_stretches", None)

    @functools.cached_property
    def _stretches(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """Starts, ends and kinds of stretches that do not overlap, ascending."""
        edges = [edge for starts, ends, _ in self._parts for edge in (starts, ends)]
        bounds = distinct(np.concatenate([np.empty(0, np.int64), *edges]))
        held = np.zeros(len(bounds), np.uint8)
        for starts, ends, kind in self._parts:
            low, high = np.searchsorted(bounds, starts), np.searchsorted(bounds, ends)
            held[spread(low, high - low)] = kind
        inside = np.flatnonzero(held)
        return bounds[inside], bounds[inside + 1], held[inside]

    def within(self, first: int, count: int) -> NDArray[np.uint8]:
        """The kind of each of *count* pages from *first* on; 0: of none of the ranges."""
        starts, ends, kinds = self._stretches
        low = int(np.searchsorted(ends, first, "right"))
        high = int(np.searchsorted(starts, first + count, "left"))
        high = max(low, high)
        edges = np.clip(np.stack([starts[low:high], ends[low:high]], axis=1) - first, 0, count)
        held = np.zeros(2 * (high - low) + 1, np.uint8)
        held[1::2] = kinds[low:high]
        return np.repeat(held, np.diff(edges.ravel(), prepend=0, append=count))


def spread(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """All numbers of some ranges: ``starts[0], starts[0] + 1, …``, then those of the next."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()), dtype=np.int64)
