# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Two groups of hosts held against each other, as they are shown: numbers as text, and one HTML page.

Each measure has a strip: a row a side, both on one scale, with a dot for each host, a line over the
range and a mark at the median.
"""

from collections.abc import Sequence
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.rows import Column, columns
from mmscope.reports.compare.host_groups import ONE_READING
from mmscope.reports.compare.host_measures import (
    MEASURES,
    OF_A_TRIAL,
    RECORDINGS,
    WORDS,
    Group,
    Host,
    Measured,
)
from mmscope.reports.compare.rank_test import LEVEL, least_chance, least_hosts
from mmscope.reports.drawing.cells import heading

Row = dict[str, Any]
SIDES = ("A", "B")
# One side of a measure: which, in words, (place, host and value) of dots, the places of the lowest,
# the median, the highest. Places are per cent of the scale.
Strip = tuple[str, str, list[tuple[float, str]], float, float, float]
PER_MINUTE = "/min"
# A browser lays out so many hosts at once; of more the medians and ranges say enough.
MAX_DOTS = 400
MAX_HOSTS = 500
# What is said where nothing of a recording is known.
OF_RECORDINGS = "atomic allocations, their failures, and what becomes HighAtomic reserve"
# What is said of columns in which no host differs.
SAME_WORDS = {
    "release": "kernel",
    "counted": "counters",
    "seconds": "over",
    "recorded_seconds": "recorded for",
}


def view(
    hosts: Sequence[Measured],
    groups: Sequence[Group],
    words: Sequence[str],
    parts: Sequence[Group] = (),
) -> Row:
    """Everything that the page shows; of measures, those that are equal on every host are last."""
    known = with_numbers(groups)
    heads, same = heads_of(hosts)
    return {
        "sentence": sentence(hosts, known),
        "words": list(words),
        "measures": sorted(
            (_measure(group, hosts) for group in known), key=lambda row: bool(row["equal"])
        ),
        "parts": [_part(group, hosts) for group in parts],
        "lacks": lacks(groups, hosts),
        "heads": heads,
        "head_words": WORDS,  # of measures; their cells have the unit
        "hosts": [[_cell(getattr(host, c.name), c) for c in heads] for host in hosts[:MAX_HOSTS]],
        "same": same,
        "more": max(0, len(hosts) - MAX_HOSTS),
    }


def with_numbers(groups: Sequence[Group]) -> list[Group]:
    """The measures that any host has."""
    return [group for group in groups if group.a_hosts or group.b_hosts]


def heads_of(hosts: Sequence[Host]) -> tuple[list[Column], list[tuple[str, str]]]:
    """Columns in which hosts differ; and what else is the same on all of them, in words."""
    heads, same = [], []
    for column in columns(Host):
        values = {getattr(host, column.name) for host in hosts}
        if len(values) > 1 or column.key:
            heads.append(column)
        elif column.name not in WORDS and values != {None}:
            text, _ = _cell(values.pop(), column)
            same.append((head(column), text))
    return heads, same


def head(column: Column) -> str:
    """Name a column of hosts in words."""
    return SAME_WORDS.get(column.name) or WORDS.get(column.name) or heading(column)


def p_value(chance: float) -> str:
    """A p-value, in two digits."""
    return f"{chance:.2g}"


def lacks(groups: Sequence[Group], hosts: Sequence[Host]) -> list[str]:
    """Measures without a number, where, and why: a sentence for each reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        missing = []
        for name, known, why in (
            ("A", group.a_hosts, group.a_missing),
            ("B", group.b_hosts, group.b_missing),
        ):
            every = sum(host.side == name for host in hosts)
            where = f"{every - known} of {every} hosts of side {name}" if known else f"side {name}"
            if why and why != ONE_READING:
                missing.append((where, why))
        if [where for where, _ in missing] == ["side A", "side B"] and missing[0][1] == missing[1][
            1
        ]:
            missing = [("either side", missing[0][1])]
        for each in missing:
            found.setdefault(each, []).append(group.measure)
    return [
        f"No number on {place} of {_all_named(measures)}: {why}."
        for (place, why), measures in sorted(found.items())
    ]


def _all_named(measures: Sequence[str]) -> str:
    """Measures in words; all that a recording has are one thing."""
    together = {*measures} >= RECORDINGS
    words = [
        WORDS[name] for name in WORDS if name in measures and not (together and name in RECORDINGS)
    ]
    return ", ".join([*words, OF_RECORDINGS] if together else words)


def sentence(hosts: Sequence[Host], known: Sequence[Group]) -> str:
    """Number of hosts, and the measures that differ, in a sentence."""
    numbers = [
        f"{side}: {display.plural(sum(host.side == side for host in hosts), 'host')}"
        for side in SIDES
    ]
    apart = [group for group in known if group.apart]
    differ = [group for group in known if group.differs]
    least = max((least_chance(g.a_hosts, g.b_hosts) for g in known), default=1.0)
    if differ:
        found = f"they differ in {len(differ)} of {len(known)} measures: {_named(differ)}"
    elif apart and least > LEVEL:
        found = (
            f"too few to tell, which takes {least_hosts()} hosts a side. Ranges do not touch in "
            f"{len(apart)} of {len(known)} measures: {_named(apart)}"
        )
    elif apart:
        found = (
            "no measure differs by more than chance; ranges do not touch in "
            f"{len(apart)} of {len(known)}: {_named(apart)}"
        )
    elif any(group.apart is not None for group in known):
        found = f"none of {display.plural(len(known), 'measure')} separates A from B"
    else:
        found = "a side with one host has no range"
    return f"{', '.join(numbers)}; {found}."


def _named(groups: Sequence[Group]) -> str:
    """Measures with what they differ by."""
    return ", ".join(f"{WORDS[group.measure]} ({signed(group)})" for group in groups)


def signed(group: Group) -> str:
    """The difference with its sign; of shares in points, since it is not a share itself."""
    difference = group.difference or 0
    if group.unit == "share":
        return f"{100 * difference:+.1f} points"
    return ("+" if difference > 0 else "") + (amount(difference, group.unit) or "")


def _spread(row: Group, name: str) -> list[Any]:
    """Hosts of one side, their median, lowest, highest, and all together."""
    return [
        getattr(row, f"{name.lower()}_{what}") for what in ("hosts", "median", "low", "high", "all")
    ]


def side(row: Group, name: str) -> str | None:
    """One side of a measure: ``310 (309 to 312)``; of hosts that are equal, that they are."""
    unit = row.unit
    hosts, median, low, high, together = _spread(row, name)
    if median is None:
        return None
    if hosts == 1:
        return amount(median, unit)
    if low == high:
        words = f"{amount(median, unit)} on each of {hosts} hosts"
        # Equal shares are the share of all as well, and nothing adds up to nothing.
        together = None if unit == "share" or not together else together
    else:
        # The unit stands once, or twice where it is of the median.
        lowest = (amount(low, unit) or "").removesuffix(PER_MINUTE).removesuffix(" %")
        highest = (amount(high, unit) or "").removesuffix(PER_MINUTE)
        words = f"{amount(median, unit)} ({lowest} to {highest})"
    return words if together is None else f"{words}, together {amount(together, unit)}"


def equal(row: Group, hosts: int) -> bool:
    """True if a row needs no place: each of so many hosts has the same, of more than one a side."""
    if row.measure in OF_A_TRIAL:
        return False
    values = {row.a_low, row.a_high, row.b_low, row.b_high}
    return len(values) == 1 and None not in values and row.a_hosts + row.b_hosts == hosts > 2


def sides(row: Group) -> list[str | None]:
    """Both sides of a measure."""
    return [side(row, name) for name in SIDES]


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
    return f"{number}{PER_MINUTE}" if unit.endswith(PER_MINUTE) else number


def unit_of(column: Column) -> str:
    """Unit of the numbers in a host's column."""
    return column.unit or ("share" if column.type == "number" else "")


def _cell(value: int | float | str | None, column: Column) -> tuple[str, int | float | None]:
    number = value if isinstance(value, int | float) else None
    return amount(value, unit_of(column)) or "", number


def _measure(group: Group, hosts: Sequence[Host]) -> Row:
    described = next(c for c in MEASURES if c.name == group.measure)
    values = [(host, getattr(host, group.measure)) for host in hosts]
    return _drawn(group, WORDS[group.measure], described.help, values)


def _part(group: Group, hosts: Sequence[Measured]) -> Row:
    """Recorded events of one order or caller."""
    return _drawn(group, group.measure, "", [(host, host.part(group.measure)) for host in hosts])


def _drawn(
    group: Group, words: str, help: str, values: Sequence[tuple[Host, int | float | None]]
) -> Row:
    """A measure with the hosts' values on a strip."""
    # Zero belongs to the scale: the length of a difference must not depend on what is left out.
    ends = [0.0, group.a_low, group.b_low, group.a_high, group.b_high]
    known = [end for end in ends if end is not None]
    start, end = min(known), max(known)

    def place(value: float) -> float:
        return round(100 * (value - start) / (end - start), 2) if end > start else 0.0

    strips: list[Strip] = []
    for name, text in zip(SIDES, sides(group), strict=True):
        _, median, low, high, _ = _spread(group, name)
        if median is None or low is None or high is None:
            continue
        dots = [
            (place(value), f"{host.host}: {amount(value, group.unit)}")
            for host, value in values
            if host.side == name and value is not None
        ]
        strips.append((name, text or "", dots[:MAX_DOTS], place(low), place(median), place(high)))
    return {
        "name": group.measure,
        "words": words,
        "help": help,
        "cells": [text or "no number" for text in sides(group)],
        "difference": "" if group.difference is None else signed(group),
        "apart": group.apart,
        "chance": "" if group.chance is None else p_value(group.chance),
        "differs": bool(group.differs),
        "strips": strips,
        "scale": (amount(start, group.unit) or "", amount(end, group.unit) or ""),
        # What every host of both sides has, if it is the same.
        "equal": (amount(group.a_median, group.unit) or "") if equal(group, len(values)) else "",
    }
