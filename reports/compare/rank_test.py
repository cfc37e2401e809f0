# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Test whether two groups of hosts differ: the Mann-Whitney rank-sum test, two-sided, and what is left
of its answers where many measures are asked at once (Benjamini and Hochberg).

It asks only which hosts have more, not how much more. The chance is exact, ties included: of all
ways in which the same values could be dealt to two groups of these sizes, the share in which the
ranks lie at least as far apart. With few hosts that share cannot be small: two a side have six
ways, and the two farthest are a third of them.

Cannot know: whether the hosts were dealt to the groups by chance.
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

LEVEL = 0.05  # of what is said to differ, so much may be chance
# Of more hosts the ways are not counted, and the normal distribution stands for them.
MAX_EXACT = 40


def ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value: those that are equal share theirs."""
    ordered = sorted(values)
    return [bisect_left(ordered, value) + 1 + bisect_right(ordered, value) for value in values]


def chance(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Chance that the ranks of two groups lie so far apart; None where one is empty."""
    if not a or not b:
        return None
    a, b = sorted((a, b), key=len)  # the fewer, the fewer ways to count
    doubled = ranks([*a, *b])
    expected = len(a) * (len(doubled) + 1)
    distance = abs(sum(doubled[: len(a)]) - expected)
    if not distance:
        return 1.0
    if len(doubled) > MAX_EXACT:
        return _normal(doubled, len(a), distance)
    # ways[n][s]: to choose n of the hosts so far with ranks of sum s.
    ways: list[dict[int, int]] = [{0: 1}] + [{} for _ in a]
    for rank in doubled:
        for number in range(len(a), 0, -1):
            for total, count in ways[number - 1].items():
                ways[number][total + rank] = ways[number].get(total + rank, 0) + count
    far = sum(count for total, count in ways[-1].items() if abs(total - expected) >= distance)
    return far / math.comb(len(doubled), len(a))


def _normal(doubled: Sequence[int], size: int, distance: int) -> float:
    """The same for many hosts, with the variance that ties leave."""
    number = len(doubled)
    mean = sum(doubled) / number
    spread = sum((rank - mean) ** 2 for rank in doubled)
    variance = size * (number - size) / (number * (number - 1)) * spread
    # A rank sum of integers, doubled: half a step is 1.
    return math.erfc(max(distance - 1, 0) / math.sqrt(2 * variance)) if variance else 1.0


def least_chance(a: int, b: int) -> float:
    """The smallest chance that groups of so many hosts can have."""
    return min(1.0, 2 / math.comb(a + b, a)) if a and b else 1.0


def least_hosts() -> int:
    """The least number of hosts a side with which any difference can pass."""
    return next(number for number in itertools.count(1) if least_chance(number, number) <= LEVEL)


def differing(chances: Sequence[float | None], level: float = LEVEL) -> list[bool | None]:
    """True for each of many measures that differs; None where nothing is known."""
    known = sorted(value for value in chances if value is not None)
    most = max(
        (value for n, value in enumerate(known, 1) if value <= level * n / len(known)), default=-1.0
    )
    return [None if value is None else value <= most for value in chances]
