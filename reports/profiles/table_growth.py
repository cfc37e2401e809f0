# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page tables of processes over their faults, two ways: those that the addresses of the faults need,
and VmPTE, which the kernel keeps. The first is exact at each fault, the second is what was there.

Costs nothing: both were recorded.

Cannot know: how many faults came between two looks at VmPTE one by one.
"""

from collections.abc import Iterable

from mmscope.perf.folding import Fold
from mmscope.reports.profiles.making import Making
from mmscope.reports.rows.profile_rows import ADDRESSES, VMPTE, ProfileTableGrowth

MOST_PROCESSES = 5
LEAST_FAULTS = 100  # a program that only starts has some tens
MOST_LOOKS = 24

# ns, faults, tables of three levels if known, bytes of all
_Point = tuple[int, int, tuple[int | None, int | None, int | None], int]


def growth_rows(name: str, fold: Fold, making: Making) -> list[ProfileTableGrowth]:
    """The rows of a recording, of the processes with most faults."""
    rows = []
    needed = sorted(fold.growths.items(), key=lambda item: (-item[1].faults, item[0]))
    points: list[_Point]
    for (pid, comm), growth in needed[:MOST_PROCESSES]:
        points = [
            (at, faults, (pte, pmd, pud), (pte + pmd + pud) * making.page_bytes)
            for at, faults, pte, pmd, pud in growth.points
        ]
        rows += _of_process(name, pid, comm, ADDRESSES, points)
    seen = sorted((-_most(looks), pid, comm, looks) for pid, comm, looks in making.growths)
    for _, pid, comm, looks in seen[:MOST_PROCESSES]:
        points = [(at, faults, (None, None, None), size) for at, faults, size in thinned(looks)]
        rows += _of_process(name, pid, comm, VMPTE, points)
    return rows


def _most(looks: list[list[int]]) -> int:
    return max((faults for _, faults, _ in looks), default=0)


def thinned(looks: list[list[int]]) -> list[list[int]]:
    """Looks with half as many faults again each, or more tables without a fault; and the last."""
    kept: list[list[int]] = []
    for look in looks:
        if not kept or look[1] >= 1.5 * kept[-1][1]:
            kept.append(look)
    if looks and kept[-1] is not looks[-1]:
        kept.append(looks[-1])
    return kept[-MOST_LOOKS:]


def _of_process(
    name: str, pid: int, comm: str, made_by: str, points: Iterable[_Point]
) -> list[ProfileTableGrowth]:
    rows: list[ProfileTableGrowth] = []
    faults_before = bytes_before = 0
    for at, faults, (pte, pmd, pud), size in points:
        # Before the first look there may have been tables without a fault, as of a parent.
        known = faults > faults_before and (rows or made_by == ADDRESSES)
        each = round((size - bytes_before) / (faults - faults_before), 3) if known else None
        seconds = round(at / 1e9, 6)
        rows.append(
            ProfileTableGrowth(name, pid, comm, made_by, faults, seconds, pte, pmd, pud, size, each)
        )
        faults_before, bytes_before = faults, size
    return rows if faults_before >= LEAST_FAULTS else []
