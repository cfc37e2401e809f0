# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Circular ``list_head`` lists: short ones walked, long ones followed all at once.

Walking a list entry by entry costs one read of kernel memory an entry (about 150,000 a second).
Where the entries were read in bulk anyway, their links are already here, and pointer doubling
finds in log2(length) rounds of numpy which head every entry leads to. Long lists are cut into
pieces first, which are walked side by side, so that doubling looks at pieces instead of entries. A
damaged list harms itself alone: entries that lead nowhere or in a circle are kept apart
from those that lead home.
"""

import contextlib
from dataclasses import dataclass

import numpy as np
from drgn import FaultError, Program

from mmscope.drgn.reading.kernel_arrays import Array, S64s, U64s

PIECE = 1 << 17
LONG = 1 << 16  # entries; to cut fewer takes longer than it saves
CUT = 64  # entries of a piece, on average
MOST_STEPS = 40 * CUT  # of a piece: no longer one comes about by chance
ADDRESSES = (1 << 64) - 1
LOST = -1  # the links lead to something that is neither an entry nor a head
LOOPS = -2  # the links come back without passing a head


def walk_list(prog: Program, head: int, link: int, most: int) -> tuple[list[int], bool]:
    """
    Addresses of the entries of a list, walked one by one, and whether it came back to its head.

    :param link: offset of the ``list_head`` in an entry. :param most: entries.
    """
    found: dict[int, None] = {}
    head, node = head & ADDRESSES, 0
    with contextlib.suppress(FaultError):
        node = prog.read_u64(head)
        while node != head and node not in found and len(found) < most:
            found[node] = None
            node = prog.read_u64(node)
    return [node - link & ADDRESSES for node in found], node == head


@dataclass(frozen=True, slots=True)
class Followed:
    """Targets of the ``next`` links of each entry; in 32 bits, if there are not too many."""

    head: Array  # index of the head, LOST or LOOPS
    steps: Array  # links to the head (1 for the last entry), 0 unless a head is reached


def follow_lists(addresses: U64s, links: U64s, heads: U64s) -> Followed:
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
    successor: Array = np.full(lost + 1, lost, number)
    for start in range(0, entries, PIECE):
        wanted = links[start : start + PIECE]
        to_entry, to_head = find(addresses, wanted), find(heads, wanted)
        successor[start : start + len(wanted)] = np.where(
            to_entry >= 0, to_entry, np.where(to_head >= 0, entries + to_head, lost)
        )
    # Heads, and nowhere, lead to themselves.
    successor[entries:] = np.arange(entries, lost + 1)
    steps: Array = np.zeros(lost + 1, number)
    steps[:entries] = 1
    if entries >= LONG:
        _follow_pieces(successor, steps, entries)
    walking = np.flatnonzero(successor[:entries] < entries).astype(number)
    walking = _double(successor, steps, entries, walking)
    astray = successor[:entries] == lost
    head = successor[:entries]
    head -= entries
    head[astray] = LOST
    head[walking] = LOOPS
    steps = steps[:entries]
    steps[head < 0] = 0
    return Followed(head, steps)


def _double(successor: Array, steps: Array, entries: int, walking: Array) -> Array:
    """
    Follow the links of some entries to their ends; returns those that go round in a circle.

    After round i an entry has taken at least 2^i links, and a chain has at most *entries*.
    """
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
    circling: Array = walking[successor[walking] < entries]
    return circling


def _follow_pieces(successor: Array, steps: Array, entries: int) -> None:
    """
    Follow the links of most entries of long lists to their ends.

    Pieces begin at random entries, one of :data:`CUT`, and are walked side by side, up to where
    another piece has been. What is left: what comes before the first piece of its list, and what
    goes round in a circle.
    """
    number = successor.dtype
    chance = np.random.default_rng(entries)
    begins = np.arange(0, entries - CUT + 1, CUT, dtype=number)
    begins += chance.integers(0, CUT, len(begins), dtype=number)
    pieces = len(begins)
    piece_of = np.full(len(successor), -1, number)
    piece_of[entries:] = pieces  # no piece: an end
    piece_of[begins] = np.arange(pieces, dtype=number)
    place = np.zeros(len(successor), number)  # in its piece
    end = np.empty(pieces, number)  # the first entry that is not its own
    length = np.zeros(pieces, number)
    walkers, here = np.arange(pieces, dtype=number), successor[begins]
    for step in range(1, MOST_STEPS):
        free = piece_of[here] < 0
        piece_of[here[free]] = walkers[free]
        place[here[free]] = step
        on = free & (piece_of[here] == walkers)  # of two that came at once, one goes on
        end[walkers[~on]], length[walkers[~on]] = here[~on], step
        walkers, here = walkers[on], successor[here[on]]
        if not len(walkers):
            break
    else:
        return
    # From each piece's end to the end of the piece that it has met, or where no other begins.
    met = piece_of[end]
    last = np.arange(pieces, pieces + len(successor) - entries, dtype=number)
    onward = np.append(np.where(met < pieces, met, end - entries + pieces), last)
    far = np.where(met < pieces, length[np.minimum(met, pieces - 1)] - place[end], 0)
    far = np.append(far, np.zeros_like(last))
    _double(onward, far, pieces, np.flatnonzero(met < pieces).astype(number))
    for start in range(0, entries, PIECE):
        piece = piece_of[start : min(start + PIECE, entries)]
        known = np.flatnonzero((piece >= 0) & (onward[piece] >= pieces)) + start
        piece = piece_of[known]
        successor[known] = onward[piece] - pieces + entries
        steps[known] = length[piece] - place[known] + far[piece]


def find(sorted_values: Array, wanted: Array) -> S64s:
    """The position of each wanted value in an ascending array, -1 where it is not there."""
    if not len(sorted_values):
        return np.full(len(wanted), -1, np.int64)
    position = np.searchsorted(sorted_values, wanted).astype(np.int64)
    position[position == len(sorted_values)] = 0
    return np.where(sorted_values[position] == wanted, position, -1)
