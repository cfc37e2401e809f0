# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Ranges of page frames whose owner is known by where they are, not by what their struct pages say.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.reading.kernel_arrays import distinct


@dataclass
class PageRanges:
    """
    Ranges of page frames, each with a kind: a number from 1 to 255.

    Filled with :meth:`add`; where ranges overlap, what was added later holds.
    """

    _parts: list[tuple[NDArray[np.int64], NDArray[np.int64], int]] = field(default_factory=list)
    _sorted: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]] | None = None

    def add(self, kind: int, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int) -> None:
        """*lengths* pages from each of *starts* on are of a kind."""
        starts = np.asarray(starts, np.int64)
        sizes = np.broadcast_to(np.asarray(lengths, np.int64), starts.shape)
        self._parts.append((starts, sizes, kind))
        self._sorted = None

    def _ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """Starts, ends and kinds of stretches that do not overlap, ascending."""
        if self._sorted is None:
            none = np.empty(0, np.int64)
            firsts = [first for first, _, _ in self._parts]
            starts = np.concatenate([none, *firsts])
            sizes = np.concatenate([none, *(size for _, size, _ in self._parts)])
            rank = np.repeat(np.arange(len(firsts)), [len(first) for first in firsts])
            kinds = np.array([kind for _, _, kind in self._parts], np.uint8)
            self._sorted = _stretches(starts, starts + sizes, rank, kinds)
        return self._sorted

    def within(self, first: int, count: int) -> NDArray[np.uint8]:
        """The kind of each of *count* pages from *first* on; 0: of none of the ranges."""
        starts, ends, kinds = self._ranges()
        result = np.zeros(count, np.uint8)
        low = int(np.searchsorted(ends, first, "right"))
        high = int(np.searchsorted(starts, first + count, "left"))
        if low >= high:
            return result
        begins = np.maximum(starts[low:high] - first, 0)
        behind = np.minimum(ends[low:high] - first, count)
        if low + 1 == high:
            result[begins[0] : behind[0]] = kinds[low]
            return result
        return ranges_fill(begins, behind, kinds[low:high], count)


def ranges_fill(
    starts: NDArray[np.int64], ends: NDArray[np.int64], values: NDArray[Any], count: int
) -> NDArray[Any]:
    """
    *count* places, with the value of each range between its start and its end; 0 elsewhere.

    :param starts: ascending; no range overlaps another.
    """
    bounds = np.stack([starts, ends], axis=1).ravel()
    held = np.zeros(len(bounds) + 1, values.dtype)
    held[1::2] = values
    return np.repeat(held, np.diff(bounds, prepend=0, append=count))


def spread(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """All numbers of some ranges: ``starts[0], starts[0] + 1, …``, then those of the next."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()), dtype=np.int64)


def _stretches(
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    rank: NDArray[np.int64],
    kinds: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """
    Cut overlapping ranges into stretches that do not overlap; the highest rank holds.

    :param kinds: by rank.
    """
    bounds = distinct(np.concatenate([starts, ends]))
    holder = np.full(max(len(bounds) - 1, 0), -1, np.int64)
    low, high = np.searchsorted(bounds, starts), np.searchsorted(bounds, ends)
    for each in distinct(rank).tolist():
        here = rank == each
        holder[spread(low[here], (high - low)[here])] = each
    inside = np.flatnonzero(holder >= 0)
    return bounds[inside], bounds[inside + 1], kinds[holder[inside]]
