# SPDX-License-Identifier: LGPL-2.1-or-later
"""The test of groups of hosts, held against counting every way, and against published tables."""

import itertools
from collections.abc import Sequence
from random import Random

import pytest

from mmscope.reports.compare import rank_test
from mmscope.reports.compare.rank_test import chance, differing, least_chance, ranks


def counted(a: Sequence[float], b: Sequence[float]) -> float:
    """By dealing the values in every way there is."""
    values = [*a, *b]
    own = [2 * sum(v < x for v in values) + sum(v == x for v in values) + 1 for x in values]
    middle = len(a) * (len(values) + 1)
    far = abs(sum(own[: len(a)]) - middle)
    dealt = [sum(some) for some in itertools.combinations(own, len(a))]
    return sum(abs(total - middle) >= far for total in dealt) / len(dealt)


@pytest.mark.parametrize("seed", range(40))
def test_is_what_counting_every_way_gives(seed: int) -> None:
    random = Random(seed)
    most = random.choice((2, 5, 1000))  # few values: many ties
    a = [random.randrange(most) for _ in range(random.randint(1, 6))]
    b = [random.randrange(most) for _ in range(random.randint(1, 6))]
    assert chance(a, b) == pytest.approx(counted(a, b))


@pytest.mark.parametrize(
    ("n", "m", "u", "two_sided"),
    # Mann and Whitney 1947, table I (one-sided, here twice): n = m = 3, 4 and 5.
    [(3, 3, 0, 0.100), (3, 3, 1, 0.200), (4, 4, 0, 0.028), (4, 4, 1, 0.058), (5, 5, 2, 0.032)],
)
def test_is_what_the_published_table_has(n: int, m: int, u: int, two_sided: float) -> None:
    # u pairs in which the host of B is the lower one.
    a, b = list(range(n)), [n + number + 0.5 for number in range(m)]
    b[0] = n - u - 0.5
    found = chance([float(value) for value in a], b)
    assert found == pytest.approx(two_sided, abs=0.0016)


def test_two_hosts_a_side_cannot_pass() -> None:
    assert chance([1, 2], [1000, 2000]) == pytest.approx(1 / 3) == least_chance(2, 2)
    assert least_chance(2, 2) > rank_test.LEVEL
    for a, b in ((1, 1), (1, 19), (2, 3), (3, 3)):
        assert least_chance(a, b) > rank_test.LEVEL
    assert least_chance(4, 4) < rank_test.LEVEL


@pytest.mark.parametrize("shift", [0, 5, 20])
def test_many_hosts_have_nearly_what_counting_gives(
    monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    random = Random(shift)
    a = [random.randrange(60) for _ in range(20)]
    b = [random.randrange(60) + shift for _ in range(20)]
    exact = chance(a, b)
    monkeypatch.setattr(rank_test, "MAX_EXACT", 0)
    assert chance(a, b) == pytest.approx(exact, rel=0.2, abs=1e-3)


def test_what_is_equal_differs_not() -> None:
    assert chance([3, 3], [3, 3, 3]) == 1
    assert chance([], [1]) is None
    assert ranks([5, 1, 5, 9]) == [5, 2, 5, 8]


def test_of_many_measures_few_may_be_chance() -> None:
    # Benjamini and Hochberg 1995, section 4: the four smallest of fifteen, at 5 %.
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
         0.5719, 0.6528, 0.7590, 1.0]  # fmt: skip
    assert differing(p) == [True] * 4 + [False] * 11
    assert differing([0.04, None]) == [True, None]
    assert differing([None]) == [None]
