# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Circular ``list_head`` lists, followed all at once.

Walking a list entry by entry costs one read of kernel memory an entry (about 150,000 a second).
Where the entries were read in bulk anyway, their links are already here, and pointer doubling
finds in log2(length) rounds of numpy which head every entry leads to. It needs no walk, so that a
damaged list harms itself alone: entries that lead nowhere or in a circle are kept apart from those
that lead home.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.tables.record import record

PIECE = 1 << 17
LOST = -1  # the links lead to something that is neither an entry nor a head
LOOPS = -2  # the links come back without passing a head


@record
class Followed:
    """Where the ``next`` links of each entry lead; in 32 bits, if there are not too many."""

    head: NDArray[Any]  # index of the head, LOST or LOOPS
    steps: NDArray[
        np.integer
    ]  # links to the head (1 for the last entry), 0 unless a head is reached


def follow_lists(
    addresses: NDArray[np.uint64], links: NDArray[np.uint64], heads: NDArray[np.uint64]
) -> Followed:
    """
    Find the list each entry is on.

    :param addresses: of the entries' list_heads, ascending, all different.
    :param links: their ``next`` members.
    :param heads: addresses of the list heads, ascending, all different.
    """
    entries = len(addresses)
    lost = entries + len(heads)
    # Millions of entries: 32 bits do, and what takes room for a while is done in pieces.
    number = np.int32 if lost < 1 << 31 else np.int64
    successor: NDArray[Any] = np.full(lost + 1, lost, number)
    for start in range(0, entries, PIECE):
        wanted = links[start : start + PIECE]
        to_entry, to_head = find(addresses, wanted), find(heads, wanted)
        successor[start : start + len(wanted)] = np.where(
            to_entry >= 0, to_entry, np.where(to_head >= 0, entries + to_head, lost)
        )
    # Heads, and nowhere, lead to themselves.
    successor[entries:] = np.arange(entries, lost + 1)
    steps: NDArray[Any] = np.zeros(lost + 1, number)
    steps[:entries] = 1
    walking = np.arange(entries, dtype=number)
    # Doubling: after round i an entry has taken at least 2^i links. A chain has at most `entries`.
    for _ in range(entries.bit_length() + 1):
        left = 0
        for start in range(0, len(walking), PIECE):
            here = walking[start : start + PIECE]
            here = here[successor[here] < entries]
            via = successor[here]
            steps[here] += steps[via]
            successor[here] = successor[via]
            walking[left : left + len(here)] = here
            left += len(here)
        walking = walking[:left]
        if not left:
            break
    walking = walking[successor[walking] < entries]
    astray = successor[:entries] == lost
    head = successor[:entries]
    head -= entries
    head[astray] = LOST
    head[walking] = LOOPS
    steps = steps[:entries]
    steps[head < 0] = 0
    return Followed(head, steps)


def find(sorted_values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.int64]:
    """The position of each wanted value in an ascending array, -1 where it is not there."""
    if not len(sorted_values):
        return np.full(len(wanted), -1, np.int64)
    position = np.searchsorted(sorted_values, wanted).astype(np.int64)
    position[position == len(sorted_values)] = 0
    return np.where(sorted_values[position] == wanted, position, -1)
