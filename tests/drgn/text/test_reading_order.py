# SPDX-License-Identifier: LGPL-2.1-or-later
"""The order of a series of files: times in names, numbers in names, change times, an interval."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mmscope.drgn.text.reading_order import (
    CHANGE_TIMES,
    INTERVAL,
    NUMBERS,
    TIMES_IN_NAMES,
    Order,
    distinct_names,
    order_of,
    time_in_name,
)

GLOB = ("h.1", "h.10", "h.100", "h.11", "h.2")  # as a shell gives them
COUNTED = ["h.1", "h.2", "h.10", "h.11", "h.100"]


def natural(names: Sequence[str]) -> list[str]:
    """By name, numbers as numbers: where the order is unknown."""
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part
                                           for part in re.split("([0-9]+)", name)])  # fmt: skip


Made = Callable[..., tuple[list[str], Order]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Makes files with these names and change times, and puts them in order."""

    def make(
        names: Sequence[str], changed: Sequence[float] = (), interval: float | None = None
    ) -> tuple[list[str], Order]:
        paths = []
        for position, name in enumerate(names):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            seconds = changed[position] if changed else 1000.0
            os.utime(path, (seconds, seconds))
            paths.append(str(path))
        order = order_of(paths, interval)
        return [names[position] for position in order.positions], order

    return make


@pytest.mark.parametrize(
    "name, seconds",
    [
        ("show_handles.1763600000", 1763600000.0), ("h.1763600000.250", 1763600000.25),
        ("2025-11-20T01:02:03Z.txt", 1763600523.0), ("h-20251120-010203.gz", 1763600523.0),
        ("20251120010203", 1763600523.0), ("h.2025-13-40T99:99:99", None), ("h.17", None),
        ("h.17636000001", None), ("2025-11-20_01.02.03.5", 1763600523.5), ("handles", None),
        ("h.2025-11-20T01:02", 1763600520.0), ("h.20251120T0102.xz", 1763600520.0),
        ("h.2025-11-20 01:02", 1763600520.0),
        # Four digits after a day may be a number.
        ("h.2025-11-20-0102", None), ("h.2025-11-20", None), ("h.2025-11-20T25:00", None),
    ],
)  # fmt: skip
def test_times_in_names(name: str, seconds: float | None) -> None:
    assert time_in_name(name) == seconds


def test_numbers_in_names_are_compared_as_numbers(made: Made) -> None:
    names, order = made(GLOB)
    assert names == COUNTED
    assert (order.by, order.times) == (NUMBERS, [])
    assert order.words.startswith("unknown, no slope")


@pytest.mark.parametrize(
    "names",
    [
        ["h.8", "h.09", "h.0010"],
        ["h.1.gz", "h.2", "h.3.bz2", "h.10.xz", "h.11.zst"],
        ["run2.9", "run2.10", "run10.1"],
        ["t2/show_handles", "t9/show_handles", "t10/show_handles"],
        ["t2/h.9", "t2/h.10", "t10/h.11"],
        ["before/h.9", "after/h.10", "before/h.11"],
        ["h.2026-11-01.2", "h.2026-11-01.10", "h.2026-11-02.1"],
        [f"h.{n}" for n in range(1, 101)],
    ],
    ids=["leading zeros", "compressed", "several", "folders", "both", "folders that say nothing",
         "a day", "a hundred"],
)  # fmt: skip
def test_names_with_numbers(made: Made, names: list[str]) -> None:
    for given in (names, names[::-1], sorted(names)):
        assert made(given)[0] == names
        assert made(given, interval=5.0)[0] == names


@pytest.mark.parametrize(
    "names",
    [["a", "b", "c"], ["h", "h.1", "h.2"], ["h.1", "h.01"], ["page_owner.1", "show_stacks.2"],
     ["a/h", "b/h"], ["t1/h.5", "t1/h.6", "t2/h.1"]],
    ids=["no number", "with and without", "the same number", "other names", "folders",
         "folders against files"],
)  # fmt: skip
def test_what_names_do_not_say_change_times_do(made: Made, names: list[str]) -> None:
    found, order = made(names)
    assert order.by is None and order.times == []
    assert "neither names nor change times say it" in order.words
    assert found == natural(names)
    changed = [float(10 + number) for number in range(len(names))]
    found, order = made(names, changed)
    assert (found, order.by, order.times) == (names, CHANGE_TIMES, changed)


def test_change_times_that_agree_with_the_numbers_are_the_times(made: Made) -> None:
    names, order = made(GLOB, [10.0, 30.0, 50.5, 40.0, 20.0])
    assert (names, order.by) == (COUNTED, CHANGE_TIMES)
    assert order.times == [10.0, 20.0, 30.0, 40.0, 50.5]


@pytest.mark.parametrize(
    "names, changed",
    [(GLOB, (10, 11, 12, 13, 14)), (GLOB, (10, 10, 10, 10, 9)), (("h.2", "h.1"), (1, 2)),
     (("h", "h.1", "h.2"), (3, 2, 1)), (("t1/h.5", "t1/h.6", "t2/h.1"), (2, 1, 3))],
    ids=["copied in the order of a glob", "one earlier", "two", "log rotation", "folders"],
)  # fmt: skip
def test_change_times_against_the_numbers_are_no_order(
    made: Made, names: Sequence[str], changed: Sequence[float]
) -> None:
    found, order = made(names, changed)
    assert order.by is None and order.times == []
    assert "has the higher number, but was changed before" in order.words
    assert "\n" not in order.words and "nothing is called growth" in order.words
    assert found == natural(names)


def test_change_times_of_a_copy_say_nothing(made: Made) -> None:
    copied = [10 + number / 100 for number in range(5)]
    names, order = made(GLOB, copied)
    assert (names, order.by, order.times) == (COUNTED, NUMBERS, [])
    assert made(COUNTED, copied)[1].by == NUMBERS
    assert made(["after", "before"], copied[:2])[1].by is None
    assert made(["after", "before"], [10.0, 10.1])[1].by == CHANGE_TIMES


def test_an_interval_goes_by_the_numbers(made: Made) -> None:
    names, order = made(GLOB, [10.0, 11.0, 12.0, 13.0, 14.0], interval=60.0)
    assert (names, order.by) == (COUNTED, INTERVAL)
    assert order.times == [0.0, 60.0, 120.0, 180.0, 240.0]


def test_an_interval_goes_by_the_order_given_where_names_have_no_numbers(made: Made) -> None:
    names, order = made(["first", "again"], interval=60.0)
    assert (names, order.times) == (["first", "again"], [0.0, 60.0])
    names, order = made(["h.2", "h.1", "h"], interval=60.0)
    assert order.by is None and "h.2 has the higher number, but was given before h.1" in order.words


def test_times_in_names_go_before_everything(made: Made) -> None:
    given = ["2.2026-11-01T10:01", "1.2026-11-01T10:03", "3.2026-11-01T10:00"]
    for interval in (None, 5.0):
        names, order = made(given, [1.0, 2.0, 3.0], interval)
        assert names == [given[at] for at in (2, 0, 1)]
        assert order.by == TIMES_IN_NAMES
        assert [time - order.times[0] for time in order.times] == [0.0, 60.0, 180.0]
    assert "--interval is not used" in order.words


def test_times_in_the_names_of_folders(made: Made) -> None:
    names, order = made(["1763600060/h", "1763600000/h"])
    assert (names, order.by) == (["1763600000/h", "1763600060/h"], TIMES_IN_NAMES)


def test_the_order_given_does_not_matter(made: Made) -> None:
    assert made(GLOB)[0] == made(GLOB[::-1])[0] == made(COUNTED)[0] == COUNTED


def test_standard_input_alone_is_one_snapshot() -> None:
    assert order_of(["-"]) == Order([0], [], None, "one snapshot")


def test_pipes_have_neither_names_nor_times(tmp_path: Path) -> None:
    """A shell numbers its process substitutions downwards: /dev/fd/63, /dev/fd/62."""
    paths = [str(tmp_path / name) for name in ("63", "62")]
    for path in paths:
        os.mkfifo(path)
    assert order_of(paths).by is None and order_of(paths).positions == [0, 1]
    assert order_of(paths, 60.0)[:3] == ([0, 1], [0.0, 60.0], INTERVAL)
    assert order_of(paths[:1]).words == order_of(["-"]).words == "one snapshot"


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a/h.1", "b/h.1")]
    assert distinct_names(paths) == ["a/h.1", "b/h.1"]
    assert distinct_names([paths[0], str(tmp_path / "h.2"), "-"]) == [
        *("h.1", "h.2", "standard input"),
    ]
