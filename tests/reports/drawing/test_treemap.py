# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sizes as rectangles of a larger one."""

import itertools
import random

import pytest

from mmscope.reports.drawing.treemap import treemap

WHOLE = (0.0, 0.0, 1000.0, 400.0)


@pytest.mark.parametrize("seed", range(20))
def test_areas_are_as_the_sizes_within_the_whole_and_none_overlaps(seed: int) -> None:
    chance = random.Random(seed)
    sizes = sorted(chance.randrange(1, 1 << chance.randrange(4, 30)) for _ in range(12))[::-1]
    places = treemap(sizes, WHOLE)
    for size, (left, top, width, height) in zip(sizes, places, strict=True):
        assert width * height == pytest.approx(size / sum(sizes) * 400_000)
        assert left >= 0 and top >= 0 and left + width < 1000.001 and top + height < 400.001
    for a, b in itertools.combinations(places, 2):
        across = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
        down = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
        assert across < 0.001 or down < 0.001


def test_equal_sizes_are_near_squares() -> None:
    assert treemap([1] * 10, WHOLE)[0] == pytest.approx((0, 0, 200, 200))


def test_nothing_has_no_place() -> None:
    assert treemap([], WHOLE) == []
