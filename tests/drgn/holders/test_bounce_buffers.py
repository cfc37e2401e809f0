# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slots of swiotlb, each held against the next."""

import numpy as np
import pytest

from mmscope.drgn.holders.bounce_buffers import SEGMENT, torn
from mmscope.drgn.reading.kernel_arrays import Array


def slots(used: set[int]) -> Array:
    """Two segments as the kernel keeps them: of each slot, how many are free from it on."""
    made = np.zeros(2 * SEGMENT, [("list", np.uint32)])
    for at in reversed(range(len(made))):
        last = at % SEGMENT == SEGMENT - 1
        made["list"][at] = 0 if at in used else 1 if last else made["list"][at + 1] + 1
    return made


@pytest.mark.parametrize("used", [set(), {0}, {7, 8, 9, 127}, {128}, {255}, set(range(256))])
def test_a_free_slot_has_one_more_than_the_next(used: set[int]) -> None:
    assert torn(0, slots(used)) == 0
    assert torn(SEGMENT, slots(used)) == torn(3, slots(used)[3:]) == 0


@pytest.mark.parametrize("value", [0, 1, 77, 1 << 20])
def test_one_that_is_damaged_does_not_fit(value: int) -> None:
    damaged = slots({9})
    damaged["list"][20] = value
    assert torn(0, damaged) in (1, 2)
