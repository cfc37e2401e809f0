# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Where in a text of many names each name is: 190,000 symbols, or the strings of BTF.

A name's hash is made of its length and of its first and last eight bytes, for all names at once,
and sorted: 20 ms and 3 MB, where a dict of them takes 100 ms and 25 MB. What has the hash is
compared, so that no two names are taken for each other.
"""

import numpy as np
from numpy.typing import NDArray

PRIMES = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
WORD = 8


class NameIndex:
    """
    The names of a text, found by their bytes.

    :param text: in which the names lie, each followed by the same byte.
    :param starts: where each name begins, ascending.
    :param ends: where each name ends.
    """

    def __init__(self, text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self._text, self._starts = text, starts
        hashes = _hashes(text, starts, ends - starts)
        self._order = np.argsort(hashes).astype(np.uint32)
        self._sorted = hashes[self._order]

    def numbers(self, name: bytes, end: bytes) -> list[int]:
        """
        The numbers of all names that are this one, ascending.

        :param end: the byte behind every name.
        """
        wanted = _hashes(name + bytes(WORD), np.zeros(1, np.int64), np.array([len(name)], np.int64))
        first = int(np.searchsorted(self._sorted, wanted[0], "left"))
        last = int(np.searchsorted(self._sorted, wanted[0], "right"))
        whole = name + end
        return [
            number
            for number in sorted(self._order[first:last].tolist())
            if self._text.startswith(whole, int(self._starts[number]))
        ]


def _hashes(
    text: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    padded = np.frombuffer(text + bytes(WORD), dtype=np.uint8)
    words = np.lib.stride_tricks.sliding_window_view(padded, WORD)
    masks = np.array([(1 << 8 * size) - 1 for size in range(WORD + 1)], dtype=np.uint64)
    mask = masks[np.minimum(lengths, WORD)]
    hashes: NDArray[np.uint64] = lengths.astype(np.uint64) * np.uint64(PRIMES[0])
    for prime, places in (
        (PRIMES[1], starts),
        (PRIMES[2], starts + np.maximum(lengths - WORD, 0)),
    ):
        each = np.ascontiguousarray(words[places]).view("<u8").ravel() & mask
        hashes += (each ^ each >> np.uint64(29)) * np.uint64(prime)
    return hashes
