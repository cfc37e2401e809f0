# SPDX-License-Identifier: LGPL-2.1-or-later
"""Generations of the multi-gen LRU are one older than the next, and none is older than the boot."""

import pytest

from mmscope.drgn.reclaim.lru_lists import LruGeneration, ages_that_cannot_be, first_jiffy


def rows(*ages: float | None, first: int = 4) -> list[LruGeneration]:
    return [
        LruGeneration("/", 1, 0, first + at, age, 0, 0, youngest=False)
        for at, age in enumerate(ages)
    ]


@pytest.mark.parametrize(
    "whole",
    [rows(), rows(9.0, 9.0, 3.5, 0.0), rows(None, None), [*rows(3.0), *rows(7.0, 1.0)]],
)
def test_of_generations_in_their_order_nothing_is_said(whole: list[LruGeneration]) -> None:
    assert not [*ages_that_cannot_be(whole)]


def test_one_whose_time_cannot_be_is_said_beside_others() -> None:
    assert [*ages_that_cannot_be(rows(None, 3.0, None))] == [
        "2 generations began after now, or before boot"
    ]


def test_one_that_began_before_an_older_one_is_said() -> None:
    assert [*ages_that_cannot_be(rows(2.0, 5.0, 1.0))] == [
        "1 generation began before the one that is older"
    ]


def test_jiffies_begin_five_minutes_before_32_bits_end() -> None:
    assert first_jiffy(250) == 0xFFFEDB08 == 0x1_0000_0000 - 75_000
