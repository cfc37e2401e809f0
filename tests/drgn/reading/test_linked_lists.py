# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists are walked to their end, or as far as they lead; all at once, the same is found."""

import itertools
import struct
from unittest.mock import patch

import numpy as np
import pytest
from drgn import FaultError, TypeMember
from hypothesis import given
from hypothesis import strategies as st
from made_programs import empty

from mmscope.drgn.reading import linked_lists
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.linked_lists import (
    LOOPS,
    LOST,
    find,
    follow_lists,
    read_list,
    walk_list,
)


def walk(
    entries: list[int], links: dict[int, int], heads: list[int], start: int
) -> tuple[int, int]:
    """(head's position or LOST or LOOPS, links to it): one entry, one link at a time."""
    seen: set[int] = set()
    here, steps = start, 0
    while here not in seen:
        seen.add(here)
        here, steps = links[here], steps + 1
        if here in heads:
            return heads.index(here), steps
        if here not in links:
            return LOST, 0
    return LOOPS, 0


def follow(links: dict[int, int], heads: list[int]) -> list[tuple[int, int]]:
    """What follow_lists() says of each entry, ascending."""
    entries = sorted(links)
    followed = follow_lists(
        np.array(entries, np.uint64),
        np.array([links[entry] for entry in entries], np.uint64),
        np.array(sorted(heads), np.uint64),
    )
    return list(zip(followed.head.tolist(), followed.steps.tolist(), strict=True))


@st.composite
def tangles(draw: st.DrawFn) -> tuple[dict[int, int], list[int]]:
    """Any links between entries, heads and addresses that are neither."""
    addresses = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60, unique=True))
    kinds = draw(st.lists(st.sampled_from("eeeh."), min_size=len(addresses), max_size=60))
    entries = [a for a, kind in zip(addresses, kinds, strict=False) if kind == "e"]
    heads = [a for a, kind in zip(addresses, kinds, strict=False) if kind == "h"]
    links = {entry: draw(st.sampled_from(addresses)) for entry in entries}
    return links, heads


@st.composite
def damaged_rings(draw: st.DrawFn) -> tuple[dict[int, int], list[int]]:
    """Several rings with a head each, entries in any order, and a few links overwritten."""
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    order = draw(st.permutations(range(sum(lengths) + len(lengths))))
    addresses = iter([0xFFFF_8000_0000_0000 + 64 * position for position in order])
    links, heads = {}, []
    for length in lengths:
        head, *ring = [next(addresses) for _ in range(length + 1)]
        heads.append(head)
        links |= dict(zip(ring, [*ring[1:], head], strict=True)) if ring else {}
    if links:
        targets = [*links, *heads, 0, 0xDEAD_0000_0000_0100]
        links |= draw(
            st.dictionaries(st.sampled_from(sorted(links)), st.sampled_from(targets), max_size=4)
        )
    return links, heads


@given(st.one_of(tangles(), damaged_rings()))
def test_follows_every_link_as_a_walk_does(lists: tuple[dict[int, int], list[int]]) -> None:
    links, heads = lists
    expected = [walk(sorted(links), links, sorted(heads), entry) for entry in sorted(links)]
    assert follow(links, heads) == expected
    with patch.object(linked_lists, "PIECE", 7):
        assert follow(links, heads) == expected


def test_a_whole_ring_leads_home() -> None:
    assert follow({10: 20, 20: 30, 30: 1}, [1]) == [(0, 3), (0, 2), (0, 1)]


def test_a_circle_without_a_head_loops_and_so_does_what_leads_into_it() -> None:
    assert follow({10: 20, 20: 10, 30: 20, 40: 40}, [1]) == [(LOOPS, 0)] * 4


def test_a_link_to_nowhere_costs_only_what_is_before_it() -> None:
    assert follow({10: 20, 20: 999, 30: 1}, [1]) == [(LOST, 0), (LOST, 0), (0, 1)]


def test_a_list_that_runs_into_another_ends_at_the_other_ones_head() -> None:
    assert follow({10: 40, 40: 2, 50: 40}, [1, 2]) == [(1, 2), (1, 1), (1, 2)]


def test_no_entries_or_no_heads() -> None:
    assert follow({}, [1, 2]) == []
    assert follow({10: 20, 20: 10}, []) == [(LOOPS, 0), (LOOPS, 0)]
    assert follow({10: 20}, []) == [(LOST, 0)]


def test_a_list_of_a_hundred_thousand() -> None:
    length = 100_000
    links = {entry: entry + 1 for entry in range(1, length + 1)}
    followed = follow(links, [length + 1])
    assert followed[0] == (0, length)
    assert followed[-1] == (0, 1)


def test_lists_of_a_hundred_thousand_in_any_order() -> None:
    """Three rings, one link to nowhere, one circle."""
    order = np.random.default_rng(1).permutation(np.arange(1, 120_001)).tolist()
    rings = [order[:60_000], order[60_000:90_000], order[90_000:110_000], order[110_000:]]
    heads = [200_001, 200_002, 999_999, rings[3][0]]
    links = {
        here: following
        for ring, head in zip(rings, heads, strict=True)
        for here, following in zip(ring, [*ring[1:], head], strict=True)
    }
    followed = dict(zip(sorted(links), follow(links, heads[:2]), strict=True))
    assert [followed[entry] for entry in rings[0]] == [(0, left) for left in range(60_000, 0, -1)]
    assert [followed[entry] for entry in rings[1]] == [(1, left) for left in range(30_000, 0, -1)]
    assert {followed[entry] for entry in rings[2]} == {(LOST, 0)}
    assert {followed[entry] for entry in rings[3]} == {(LOOPS, 0)}


@given(st.sets(st.integers(0, 2**64 - 1)), st.lists(st.integers(0, 2**64 - 1)))
def test_find_is_index(values: set[int], wanted: list[int]) -> None:
    ascending = sorted(values)
    wanted += ascending[:3]
    expected = [ascending.index(value) if value in values else -1 for value in wanted]
    array = np.array(ascending, np.uint64)
    assert find(array, np.array(wanted, np.uint64)).tolist() == expected


@pytest.mark.parametrize(
    ("links", "found"),
    [
        ({0: 16, 16: 32, 32: 0}, ([8, 24], True)),
        ({0: 0}, ([], True)),
        ({0: 16, 16: 32, 32: 16}, ([8, 24], False)),  # a circle without the head
        ({0: 16, 16: 1 << 40}, ([8, (1 << 40) - 8], False)),  # leads to no memory
        ({0: 16, 16: 32, 32: 48, 48: 0}, ([8, 24], False)),  # more than are asked for
    ],
)
def test_a_list_is_walked_to_its_end_or_as_far_as_it_leads(
    links: dict[int, int], found: tuple[list[int], bool]
) -> None:
    base = 0xFFFF_8880_0000_0000
    memory = bytearray(64)
    for at, to in links.items():
        struct.pack_into("<Q", memory, at, base + to)
    prog = empty()
    prog.add_memory_segment(
        base, len(memory), lambda address, count, offset, _: bytes(memory[offset:][:count]), False
    )
    entries, whole = found
    assert walk_list(prog, base, 8, 2) == ([base + each for each in entries], whole)
    assert walk_list(prog, 1 << 64 | base, 8, 2)[0] == [base + each for each in entries]


@pytest.mark.parametrize("lost", [None, 1])
def test_members_of_a_list_are_those_of_its_entries_and_a_lost_one_is_counted(
    lost: int | None,
) -> None:
    """Of an entry in a page that ends before its members, the link is still followed."""
    base, size = 0xFFFF_8880_0000_0000, 4096
    places = [size - 16, 3 * size - 16, 5 * size - 16]
    memory = bytearray(6 * size)
    for number, (at, to) in enumerate(itertools.pairwise([*places, 0])):
        struct.pack_into("<QQI", memory, at, base + to, 0, number)
    struct.pack_into("<Q", memory, 0, base + places[0])

    def read(address: int, count: int, offset: int, _: bool) -> bytes:
        if lost is not None and offset + count > places[lost] + 16 > offset:
            raise FaultError("no memory here", address)
        return bytes(memory[offset:][:count])

    prog = empty()
    prog.add_memory_segment(base, len(memory), read, False)
    word = prog.pointer_type(prog.void_type())
    head = prog.struct_type(
        "list_head", 16, (TypeMember(word, "next"), TypeMember(word, "prev", 64))
    )
    number = prog.int_type("unsigned int", 4, False)
    entry = prog.struct_type(
        "entry", 24, (TypeMember(head, "link"), TypeMember(number, "number", 128))
    )
    gaps = Gaps()
    found = read_list(prog, base, entry, "link", {"number": "number"}, 8, gaps)
    assert found.addresses.tolist() == [base + at for at in places]
    assert found.read.tolist() == [at != lost for at in range(3)]
    assert found.members["number"].tolist() == [0 if at == lost else at for at in range(3)]
    assert found.whole
    assert gaps.bytes == (0 if lost is None else 20)
