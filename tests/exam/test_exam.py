# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The score of the cases that are kept: no finding may lower it.

Each was planted in a guest (``tests/lab/exam_kinds.py``), and seen as a vmcore, as text, by a watch
and by its log alone. ``make exam-kept`` asks all of them; without ``MMSCOPE_ALL`` it is every watch
and log, and a third of the others.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from exam_kept import KEPT, PACKED, said_now, score, unpack
from exam_page import fresh_lines, page
from exam_score import CAUSES, WAYS, Marked, share, wilson

SHARE = 1 if os.environ.get("MMSCOPE_ALL") else 3


def asked(before: list[Marked]) -> list[Marked]:
    """Those that are held against what was said of them."""
    quick = [one for one in before if one.way in ("watch", "log")]
    return quick + [one for one in before if one.way in ("vmcore", "text")][::SHARE]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Marked, Marked]]:
    """What was said when a case was kept, and what is said now."""
    folder = tmp_path_factory.mktemp("exam")
    unpack(folder)
    before = asked(score())
    return list(zip(before, said_now(folder, before), strict=True))


RIGHT: dict[str, Callable[[Marked], bool]] = {
    "sick machines that are called so": lambda one: one.sick and one.called,
    "innocent ones that are not": lambda one: not one.sick and not one.called,
    "causes that are right": lambda one: one.cause_right,
    "owners that are right": lambda one: bool(one.owner_right),
    "sick machines without a word of 'no trouble'": lambda one: not one.false_clear,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", RIGHT)
def test_no_fewer_are_right(both: list[tuple[Marked, Marked]], way: str, what: str) -> None:
    right = RIGHT[what]
    here = [(before, now) for before, now in both if before.way == way]
    assert here
    worse = [f"{now.kind}: {before.word}, {before.headline}; now {now.word}, {now.headline}"
             for before, now in here if right(before) and not right(now)]  # fmt: skip
    better = [now.kind for before, now in here if right(now) and not right(before)]
    assert len(better) >= len(worse), f"worse: {worse}; better: {better}"


def test_what_is_kept_is_small_and_of_both_sorts() -> None:
    assert (KEPT / PACKED).stat().st_size < 8 << 20
    sick = {one.kind for one in score() if one.sick}
    innocent = {one.kind for one in score() if not one.sick}
    assert len(sick) + len(innocent) >= 20
    assert 0.5 < len(sick) / len(innocent) < 2


def test_the_page_is_of_these_cases() -> None:
    assert (KEPT.parents[1] / "docs" / "exam.md").read_text() == page(score())


def test_the_first_page_has_the_table_of_fresh_seeds() -> None:
    assert "\n".join(fresh_lines()) in (KEPT.parents[1] / "README.md").read_text()


def test_every_cause_is_a_finding() -> None:
    findings = Path(__file__).resolve().parents[2] / "reports" / "findings"
    for ids in CAUSES.values():
        files = {name.partition(":")[0] + ".toml" for name in ids}
        assert not [name for name in files if not (findings / name).exists()]


def test_intervals_are_those_of_the_book() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for right, of, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605),
                                 (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)):  # fmt: skip
        assert wilson(right, of) == pytest.approx((low, high), abs=1e-4)
    assert share(0, 0) == {"right": 0, "of": 0, "share": None, "low": 0.0, "high": 1.0}
