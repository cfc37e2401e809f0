# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Two groups of hosts held against each other, as they are shown: numbers as text, and one HTML page.

Each measure has a strip: a row a side, both on one scale, with a dot for each host, a line over the
range and a mark at the median.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mmscope.drgn.tables import display
from mmscope.drgn.tables.rows import Column, columns
from mmscope.reports.compare.host_groups import MEASURES, WORDS, Group, Host
from mmscope.reports.compare.rank_test import LEVEL, least_chance, least_hosts
from mmscope.reports.drawing.cells import heading

SIDES = ("A", "B")
# A browser lays out so many hosts at once; of more the medians and ranges say enough.
MAX_DOTS = 400
MAX_HOSTS = 500
# What is said of columns in which no host differs.
SAME_WORDS = {"release": "kernel", "counted": "counters", "seconds": "over"}


@dataclass(frozen=True, slots=True)
class Strip:
    """One side of one measure: places on the scale, in per cent of it."""

    side: str
    text: str
    dots: list[tuple[float, str]]  # place, and which host it is with its value
    low: float
    high: float
    median: float


@dataclass(frozen=True, slots=True)
class MeasureView:
    """One measure of both groups."""

    name: str
    words: str
    help: str
    cells: list[str]  # of A, of B
    difference: str
    apart: bool | None
    chance: str
    differs: bool
    strips: list[Strip]
    scale: tuple[str, str]
    equal: str  # what every host of both sides has, if it is the same


@dataclass(frozen=True, slots=True)
class View:
    """Both groups."""

    sentence: str
    words: list[str]
    measures: list[MeasureView]  # those that are equal on every host are last
    heads: list[Column]
    head_words: dict[str, str]  # of measures; their cells have the unit
    hosts: list[list[tuple[str, int | float | None]]]  # text, and what it sorts by
    same: list[tuple[str, str]]  # what is the same on every host, besides measures, in words
    more: int  # hosts that are not listed


def view(hosts: Sequence[Host], groups: Sequence[Group], words: Sequence[str]) -> View:
    """Everything that the page shows."""
    told = [group for group in groups if group.a_hosts or group.b_hosts]
    heads, same = [], []
    for column in columns(Host):
        values = {getattr(host, column.name) for host in hosts}
        if len(values) > 1 or column.key:
            heads.append(column)
        elif column.name not in WORDS and values != {None}:
            text, _ = _cell(values.pop(), column)
            same.append((SAME_WORDS.get(column.name) or heading(column), text))
    return View(
        sentence(hosts, told),
        list(words),
        sorted((_measure(group, hosts) for group in told), key=lambda row: bool(row.equal)),
        heads,
        WORDS,
        [[_cell(getattr(host, c.name), c) for c in heads] for host in hosts[:MAX_HOSTS]],
        same,
        max(0, len(hosts) - MAX_HOSTS),
    )


def sentence(hosts: Sequence[Host], told: Sequence[Group]) -> str:
    """How many, and in what they differ."""
    numbers = [
        f"{side}: {display.plural(sum(host.side == side for host in hosts), 'host')}"
        for side in SIDES
    ]
    apart = [group for group in told if group.apart]
    differ = [group for group in told if group.differs]
    least = max((least_chance(g.a_hosts, g.b_hosts) for g in told), default=1.0)
    if differ:
        found = f"they differ in {len(differ)} of {len(told)} measures: {_named(differ)}"
    elif apart and least > LEVEL:
        found = (
            f"too few to tell: by chance alone one trial in {round(1 / least)} lies as far apart, "
            f"and {least_hosts()} hosts a side are the least that can. "
            f"Ranges do not touch in {len(apart)} of {len(told)} measures: {_named(apart)}"
        )
    elif apart:
        found = (
            "no measure differs by more than chance; ranges do not touch in "
            f"{len(apart)} of {len(told)}: {_named(apart)}"
        )
    elif any(group.apart is not None for group in told):
        found = f"ranges touch in all of {display.plural(len(told), 'measure')}"
    else:
        found = "a side with one host has no range"
    return f"{', '.join(numbers)}; {found}."


def _named(groups: Sequence[Group]) -> str:
    return ", ".join(f"{WORDS[group.measure]} ({signed(group)})" for group in groups)


def signed(group: Group) -> str:
    """The difference with its sign; of shares in points, since it is not a share itself."""
    difference = group.difference or 0
    if group.unit == "share":
        return f"{100 * difference:+.1f} points"
    return ("+" if difference > 0 else "") + (amount(difference, group.unit) or "")


def side(
    unit: str,
    hosts: int,
    median: float | None,
    low: float | None,
    high: float | None,
    together: float | None,
) -> str | None:
    """One side of a measure: ``310 (309 to 312)``; of hosts that are equal, that they are."""
    if median is None:
        return None
    if hosts == 1:
        return amount(median, unit)
    if low == high:
        words = f"{amount(median, unit)} on each of {hosts} hosts"
        # Equal shares are the share of all as well.
        together = None if unit == "share" else together
        return words if together is None else f"{words}, together {amount(together, unit)}"
    words = f"{amount(median, unit)} ({amount(low, unit)} to {amount(high, unit)})"
    if together is not None:
        words += f", {hosts} hosts together {amount(together, unit)}"
    return words


def equal(row: Group, hosts: int) -> bool:
    """Whether each of so many hosts has the same, of more than one a side."""
    values = {row.a_low, row.a_high, row.b_low, row.b_high}
    return len(values) == 1 and None not in values and row.a_hosts + row.b_hosts == hosts > 2


def sides(row: Group) -> list[str | None]:
    """Both sides of a measure."""
    return [
        side(row.unit, row.a_hosts, row.a_median, row.a_low, row.a_high, row.a_all),
        side(row.unit, row.b_hosts, row.b_median, row.b_low, row.b_high, row.b_all),
    ]


def amount(value: int | float | str | None, unit: str) -> str | None:
    """A number in the unit that suits it."""
    if value is None or isinstance(value, str):
        return value
    if unit == "bytes":
        return display.size(round(value))
    if unit == "share":
        return ("-" if value < 0 else "") + display.percent(abs(value))
    if unit == "s":
        return display.duration(value)
    number = display.count(round(value) if abs(value) >= 1000 or value == int(value) else value)
    return f"{number}/min" if unit.endswith("/min") else number


def unit_of(column: Column) -> str:
    """What the numbers of a host's column are of."""
    return column.unit or ("share" if column.type == "number" else "")


def _cell(value: int | float | str | None, column: Column) -> tuple[str, int | float | None]:
    number = value if isinstance(value, int | float) else None
    return amount(value, unit_of(column)) or "", number


def _measure(group: Group, hosts: Sequence[Host]) -> MeasureView:
    described = next(c for c in MEASURES if c.name == group.measure)
    lows = [low for low in (group.a_low, group.b_low) if low is not None]
    highs = [high for high in (group.a_high, group.b_high) if high is not None]
    # Zero belongs to the scale: the length of a difference must not depend on what is left out.
    start, end = min(0.0, *lows), max(0.0, *highs)

    def place(value: float) -> float:
        return round(100 * (value - start) / (end - start), 2) if end > start else 0.0

    strips = []
    for name, median, low, high, text in (
        ("A", group.a_median, group.a_low, group.a_high, sides(group)[0]),
        ("B", group.b_median, group.b_low, group.b_high, sides(group)[1]),
    ):
        if median is None or low is None or high is None:
            continue
        dots = [
            (place(value), f"{host.host}: {amount(value, group.unit)}")
            for host in hosts
            if host.side == name and (value := getattr(host, group.measure)) is not None
        ]
        strips.append(
            Strip(name, text or "", dots[:MAX_DOTS], place(low), place(high), place(median))
        )
    return MeasureView(
        name=group.measure,
        words=WORDS[group.measure],
        help=described.help,
        cells=[text or "unknown" for text in sides(group)],
        difference="" if group.difference is None else signed(group),
        apart=group.apart,
        chance="" if group.chance is None else display.percent(group.chance),
        differs=bool(group.differs),
        strips=strips,
        scale=(amount(start, group.unit) or "", amount(end, group.unit) or ""),
        equal=(amount(group.a_median, group.unit) or "") if equal(group, len(hosts)) else "",
    )
