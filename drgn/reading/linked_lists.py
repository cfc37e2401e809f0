# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Circular ``list_head`` lists: short ones walked, long ones followed all at once.

Walking a list entry by entry costs one read of kernel memory an entry (about 150,000 a second).
Where the entries were read in bulk anyway, their links are already here, and a walk over these
costs a fortieth. A damaged list harms itself alone: entries that lead nowhere or in a circle are
kept apart from those that lead home.
"""

import contextlib
import itertools
from dataclasses import dataclass

import numpy as np
from drgn import FaultError, Program, Type, offsetof

from mmscope.drgn.reading.kernel_arrays import Array, Bools, Columns, Gaps, S64s, U64s
from mmscope.drgn.reading.scattered_reads import AT_ONCE, packed, span_of

PIECE = 1 << 17  # of millions of entries so many are looked up at a time
ADDRESSES = (1 << 64) - 1
NEXT = "next entry"  # a column beside those asked for
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
class Entries:
    """
    Entries of a list.

    :ivar members: of each those asked for, packed; 0 of one that could not be read.
    :ivar whole: the list came back to its head.
    """

    addresses: U64s
    members: Array
    read: Bools
    whole: bool


def read_list(
    prog: Program, head: int, type_: Type, link: str, columns: Columns, most: int, gaps: Gaps
) -> Entries:
    """
    Walk a list as :func:`walk_list`, and read members of its entries: all of one at once.

    :param type_: of the entries. :param link: their ``list_head``. :param most: entries.
    :param columns: as :func:`kernel_arrays.struct_dtype` takes them.
    :raises LookupError: a member is not there.
    """
    begin, span = span_of(type_, {**columns, NEXT: f"{link}.next"})
    to_link = offsetof(type_, link)
    next_at = dict(span.fields or {})[NEXT][1]
    found: dict[int, bool] = {}
    data, parts = bytearray(), [np.empty(0, packed(span))]

    def part() -> Array:
        return np.frombuffer(data, span).astype(packed(span))

    node = head = head & ADDRESSES
    with contextlib.suppress(FaultError):
        node = prog.read_u64(head)
        while node != head and node not in found and len(found) < most:
            try:
                entry = prog.read(node - to_link + begin & ADDRESSES, span.itemsize)
            except FaultError:
                found[node] = False
                gaps.bytes += span.itemsize
                node = prog.read_u64(node)
            else:
                found[node] = True
                data += entry
                node = int.from_bytes(entry[next_at : next_at + 8], "little")
            if len(data) > AT_ONCE:
                parts.append(part())
                data = bytearray()
    parts.append(part())
    read = np.fromiter(found.values(), np.bool_, len(found))
    members = np.zeros(len(found), packed(span))
    members[read] = np.concatenate(parts)
    addresses = np.fromiter(found, np.uint64, len(found)) - np.uint64(to_link)
    return Entries(addresses, members[[*columns]], read, node == head)


@dataclass(frozen=True, slots=True)
class Followed:
    """Targets of the ``next`` links of each entry."""

    head: Array  # index of the head, LOST or LOOPS
    steps: Array  # links to the head (1 for the last entry), 0 unless a head is reached


def follow_lists(addresses: U64s, links: U64s, heads: U64s) -> Followed:
    """
    Find the list each entry is on.

    :param addresses: of the entries' list_heads, ascending, all different.
    :param links: their ``next`` members.
    :param heads: addresses of the list heads, ascending, all different.
    """
    following = np.empty(len(addresses), np.int64)
    steps = np.empty(len(addresses), np.int64)
    begins = lead_on(addresses, links, heads, following)
    walk_to_ends(following, steps, len(heads), begins)
    head = np.append(np.arange(len(heads)), [LOST, LOOPS])[following]
    steps[head < 0] = 0
    return Followed(head, steps)


def lead_on(addresses: Array, links: Array, heads: Array, following: Array) -> S64s:
    """
    Find what follows each entry of :func:`follow_lists`: the place of another, of the nth head
    *entries + n*, and of anything else what comes after these.

    :param following: what is filled in; may be *links*.
    :return: the places of entries that follow none.
    """
    entries = len(addresses)
    first = np.ones(entries, np.bool_)
    for start in range(0, entries, PIECE):
        wanted = links[start : start + PIECE]
        to_entry, to_head = find(addresses, wanted), find(heads, wanted)
        to_head[to_head < 0] = len(heads)
        there = to_entry >= 0
        first[to_entry[there]] = False
        following[start : start + PIECE] = np.where(there, to_entry, entries + to_head)
    return np.flatnonzero(first)


def walk_to_ends(following: Array, steps: Array, heads: int, begins: S64s) -> None:
    """
    Walk from each entry to the end: the number of a head takes the place of what follows, after
    the heads comes what was lost, and what loops.

    :param following: as :func:`lead_on` filled it in; *begins*: as that returned them.
    :param steps: what is filled in.
    """
    entries = len(following)
    first_walk = entries + heads + 1  # numbers of walks, which entries get, are above all others
    ahead, place = following.data, steps.data
    ends, lengths = list[int](), list[int]()
    # After those from where lists begin, what is left are circles.
    circles = (at for at in range(entries) if ahead[at] < entries)
    for begin in itertools.chain(begins.tolist(), circles):
        at, walked, walk = begin, 0, first_walk + len(ends)
        while (link := ahead[at]) < entries:
            ahead[at], place[at] = walk, walked
            at, walked = link, walked + 1
        if link < first_walk:
            ahead[at], place[at] = walk, walked
            end, rest = link - entries, 1
        elif link == walk:
            end, rest = heads + 1, 0
        else:
            end, rest = ends[link - first_walk], lengths[link - first_walk] - place[at]
        ends.append(end)
        lengths.append(walked + rest)
    end_of, length_of = (np.array(each, following.dtype) for each in (ends, lengths))
    for start in range(0, entries, PIECE):
        here = slice(start, start + PIECE)
        walks = following[here] - first_walk
        following[here] = end_of[walks]
        steps[here] = length_of[walks] - steps[here]


def find(sorted_values: Array, wanted: Array) -> S64s:
    """The position of each wanted value in an ascending array, -1 where it is not there."""
    if not len(sorted_values):
        return np.full(len(wanted), -1, np.int64)
    position = np.searchsorted(sorted_values, wanted).astype(np.int64)
    position[position == len(sorted_values)] = 0
    return np.where(sorted_values[position] == wanted, position, -1)
