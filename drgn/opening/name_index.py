# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Index of 190,000 symbols by name.

A name's hash is the sum of a number for each of its characters, so that the hash of one that is
packed by a table of tokens is the sum of its tokens': no name is unpacked for it. All are made at
once and sorted by their upper 16 bits, which numpy does in two passes: 15 ms and 3 MB, where a dict
of the names takes 200 ms and 25 MB. Names of the same characters have the same hash; what has it is
compared, so that no two names are taken for each other.
"""

import operator
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

UPPER = np.uint64(48)
AT_ONCE = 1 << 14  # names; what is made of so many fits into a CPU's cache
ITSELF = tuple(bytes([byte]) for byte in range(256))


class NameIndex:
    """
    The names of a text, found by their bytes.

    :param text: in which the names lie, each after a letter that is not part of it.
    :param starts: where each letter is, ascending.
    :param ends: where each name ends.
    :param tokens: what each byte of the text stands for; by default for itself.
    """

    def __init__(
        self,
        text: bytes,
        starts: NDArray[np.uint32],
        ends: NDArray[np.uint32],
        tokens: Sequence[bytes] = ITSELF,
    ) -> None:
        self._text, self.starts, self._ends, self._tokens = text, starts, ends, tokens
        self._each = self._sums(_hash)
        upper = (self._each >> UPPER).astype(np.uint16)
        self._order = np.argsort(upper, kind="stable").astype(np.uint32)
        self._sorted = upper[self._order]

    def whole(self, number: int) -> bytes:
        """A name, with the letter before it."""
        packed = self._text[self.starts[number] : self._ends[number]]
        return b"".join(map(self._tokens.__getitem__, packed))

    def numbers(self, name: bytes) -> list[int]:
        """The numbers of all names that are this one, ascending."""
        wanted = np.uint64(_hash(name))
        upper = (wanted >> UPPER).astype(np.uint16)
        first = int(np.searchsorted(self._sorted, upper, "left"))
        last = int(np.searchsorted(self._sorted, upper, "right"))
        maybe = self._order[first:last]  # ascending, as equal ones keep their order
        return [
            number
            for number in maybe[self._each[maybe] == wanted].tolist()
            if self.whole(number)[1:] == name
        ]

    def one_letter_from(self, name: bytes) -> list[int]:
        """The numbers of all names that are this one but for one letter."""
        letters = sorted({*b"".join(self._tokens)} - {0})
        here, there = (
            np.array([NUMBERS[letter] for letter in each], np.uint64)
            for each in (sorted({*name}), letters)
        )
        sums = (np.uint64(_hash(name)) - here[:, None] + there[None, :]).ravel()
        upper = (sums >> UPPER).astype(np.uint16)
        first = np.searchsorted(self._sorted, upper, "left")
        counts = np.searchsorted(self._sorted, upper, "right") - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        maybe = self._order[np.repeat(first, counts) + within]
        maybe = maybe[self._each[maybe] == np.repeat(sums, counts)]
        return [
            number
            for number in np.unique(maybe).tolist()
            if sum(map(operator.ne, self.whole(number)[1:], name)) == 1
        ]

    def having(self, letters: bytes) -> list[int]:
        """The numbers of all names that have these characters, at most four kinds of them."""
        kinds = sorted(set(letters))
        counts = [letters.count(kind) for kind in kinds]
        # So many that no sum of one kind reaches into the next.
        sums = self._sums(
            lambda of: sum(of.count(kind) << 16 * at for at, kind in enumerate(kinds))
        )
        enough = np.ones(len(sums), np.bool_)
        for at, count in enumerate(counts):
            enough &= (sums >> np.uint64(16 * at) & np.uint64(0xFFFF)) >= np.uint64(count)
        return np.flatnonzero(enough).tolist()

    def _sums(self, number: Callable[[bytes], int]) -> NDArray[np.uint64]:
        """The sum of what all characters of each name are numbered."""
        each = np.array([number(token) for token in self._tokens], np.uint64)
        text = np.frombuffer(self._text, np.uint8)
        sums = np.zeros(len(self.starts), np.uint64)
        for at in range(0, len(sums), AT_ONCE):
            starts, ends = self.starts[at : at + AT_ONCE], self._ends[at : at + AT_ONCE]
            # Behind the last one is a number of no byte, since a sum needs a place to end.
            values = np.append(each.take(text[starts[0] : ends[-1]]), np.uint64(0))
            places = np.stack([starts, ends], axis=1).ravel() - starts[0]
            sums[at : at + AT_ONCE] = np.add.reduceat(values, places)[::2]
        letters = np.array([number(token[:1]) for token in self._tokens], np.uint64)
        return sums - letters[text[self.starts]]


def _hash(name: bytes) -> int:
    return sum(map(NUMBERS.__getitem__, name)) & (1 << 64) - 1


def _mixed(number: int) -> int:
    """The finalizer of MurmurHash3: of numbers in a row, 64 bits that show no order."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = (number ^ number >> 33) * factor & (1 << 64) - 1
    return number ^ number >> 33


NUMBERS = tuple(_mixed(byte + 1) for byte in range(256))
