# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Records in a pool of the stack depot, on layouts that no kernel of the lab has, and damaged ones.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmscope.drgn.reading.stack_depot import _Layout, _records

UNITS = 64
ADDRESS = 0xFFFF888000010000
BASE = 0xFFFFFFFF81000000

# size, handle, count, entries, max_frames, pool_shift, offset_shift, valid, extra_mask, biases
LAYOUTS = {
    "6.1": _Layout(12, 16, None, 24, 64, 0, 16, 1 << 26, 0x1F << 27, (0,)),
    "6.6": _Layout(12, 16, None, 24, 64, 0, 16, 1 << 26, 0x1F << 27, (0, 1)),
    "6.8": _Layout(20, 24, 28, 32, 64, 0, 17, 0, 0x1F << 27, (0, 1)),
    "6.9": _Layout(20, 24, 28, 32, 64, 0, 17, 0, 0x1F << 27, (1,)),
}


def pool(
    layout: _Layout, number: int, bias: int, sizes: list[int], count: int = 5
) -> tuple[NDArray[np.uint32], list[int]]:
    """A pool with records of so many frames one behind the other, and their handles."""
    words = np.zeros(UNITS * 4, np.uint32)
    handles = []
    unit = 0
    for size in sizes:
        handle = unit << layout.offset_shift | (number + bias) << layout.pool_shift | layout.valid
        at = unit * 4
        words[at + layout.size // 4] = size
        words[at + layout.handle // 4] = handle
        if layout.count is not None:
            words[at + layout.count // 4] = count
        first = (unit * 16 + layout.entries) // 8
        words.view(np.uint64)[first : first + size] = range(BASE, BASE + 16 * size, 16)
        unit += -(-(layout.entries + 8 * size) // 16)
        handles.append(handle)
    return words, handles


def read(
    layout: _Layout, words: NDArray[np.uint32], number: int = 3, known: slice = slice(None)
) -> tuple[list[int], list[int], int, int]:
    """Handles and sizes of what is found, how many are damaged, how many evicted."""
    read_units = np.zeros((1, UNITS), np.bool_)
    read_units[0, known] = True
    part, damaged, evicted = _records(
        words.reshape(1, UNITS, 4), read_units, [(number, ADDRESS)], layout
    )
    handles, sizes, _, addresses, frames = part
    assert len(frames) == sizes.sum()
    assert all(ADDRESS <= address < ADDRESS + UNITS * 16 for address in addresses.tolist())
    return handles.tolist(), sizes.tolist(), damaged, evicted


@pytest.mark.parametrize("name", LAYOUTS)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 8000))
def test_records_are_found_on_every_layout(name: str, sizes: list[int], number: int) -> None:
    layout = LAYOUTS[name]
    for bias in layout.biases:
        words, handles = pool(layout, number, bias, sizes)
        # The first record of pool 0 has handle 0 there, as zeroed memory has: 6.8 only.
        if 0 not in handles:
            assert read(layout, words, number) == (handles, sizes, 0, 0)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("size", [0, 65, 1 << 20, 0xFFFFFFFF])
def test_a_size_that_cannot_be_is_damage(name: str, size: int) -> None:
    layout = LAYOUTS[name]
    words, handles = pool(layout, 3, layout.biases[-1], [4, 5, 6])
    second = next(at * 4 for at in range(UNITS) if words[at * 4 + layout.handle // 4] == handles[1])
    words[second + layout.size // 4] = size
    assert read(layout, words) == ([handles[0], handles[2]], [4, 6], 1, 0)


def test_a_record_that_reaches_into_the_next_is_damage() -> None:
    layout = LAYOUTS["6.9"]
    words, handles = pool(layout, 3, 1, [4, 5, 6])
    words[layout.size // 4] = 12
    assert read(layout, words) == (handles[1:], [5, 6], 1, 0)


def test_an_evicted_record_is_not_damage() -> None:
    layout = LAYOUTS["6.9"]
    words, _ = pool(layout, 3, 1, [4, 5], count=0)
    assert read(layout, words) == ([], [], 0, 2)


def test_a_record_of_which_a_part_could_not_be_read_is_damage() -> None:
    layout = LAYOUTS["6.9"]
    words, handles = pool(layout, 3, 1, [4, 20])
    assert read(layout, words, known=slice(0, 10)) == (handles[:1], [4], 1, 0)


@given(st.binary(min_size=UNITS * 16, max_size=UNITS * 16))
def test_noise_is_no_record(noise: bytes) -> None:
    words = np.frombuffer(noise, np.uint32).copy()
    for layout in LAYOUTS.values():
        handles, _, _, _ = read(layout, words)
        for handle in handles:
            assert handle & ~layout.extra_mask == handle


def test_frames_are_read_leaf_first() -> None:
    layout = LAYOUTS["6.1"]
    words, _ = pool(layout, 3, 0, [2, 3])
    part, _, _ = _records(
        words.reshape(1, UNITS, 4), np.ones((1, UNITS), np.bool_), [(3, ADDRESS)], layout
    )
    assert part[4].tolist() == [BASE, BASE + 16, BASE, BASE + 16, BASE + 32]
    assert part[3].tolist() == [ADDRESS, ADDRESS + 48]
