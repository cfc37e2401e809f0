# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Impossible values: the rows of a table, checked against what its columns declare.

A damaged structure, or a stranger's bundle, may say anything: more pages than the machine has, a
number below zero, a process twice. Such a value stays where it is, and is marked with a row of
``impossible_values``.

Two columns of a row (``managed_pages`` is at most ``present_pages``) are held against each other
strictly in a dump only: a running kernel changes one number while the other is read, and its
counters lag by what CPUs have not folded in yet. Nor may a key be there twice in a dump; text may
name two slab caches alike.

Costs about 0.1 µs a cell: the least and the most of a column are looked at first, single cells only
where these are out of bounds.
"""

import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, Bound, Column, column
from mmscope.drgn.tables.table import table

TABLE = "impossible_values"
# Of a column; where there are more, the first are enough.
MOST_MARKS = 500
# How far two numbers of a running kernel may be from what they must be to each other: a count of
# pages lags by up to 125 pages a CPU (calculate_normal_threshold(), mm/vmstat.c), and a pool or a
# zone may have been grown between the two.
SLACK_SHARE, SLACK = 8, 1 << 16
# Of an event, by a CPU: counters of pages go up by a block of 1,024 at most (MAX_ORDER), for which
# a CPU needs 100 ns and more.
MOST_A_SECOND = 10**10
PRINTABLE = re.compile(r"[ -~]*+")

Wrong = Callable[[Any, Any], bool]


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine whose limits bound the values of a reading."""

    total_pages: int | None = None
    page_size: int | None = None
    frozen: bool = False  # a dump: all its numbers are of one instant
    most_events: int | None = None  # that all its CPUs can have counted since boot

    @classmethod
    def of(cls, target: Mapping[str, Any]) -> "Machine":
        """The machine that a bundle's ``target`` describes."""
        pages, size = target.get("total_pages") or None, target.get("page_size") or None
        up, cpus = target.get("uptime_seconds"), target.get("online_cpus")
        # A state may be among them.
        events = (
            max(int((up + 1) * cpus * MOST_A_SECOND), (pages or 0) * (size or 1))
            if up and cpus
            else None
        )
        return cls(pages, size, target.get("kind") == "vmcore", events)

    def most(self, bound: str) -> int | None:
        """The value of a bound on this machine; None if it does not depend on the machine."""
        pages = min(self.total_pages or MOST_PAGES, MOST_PAGES)
        size = self.page_size if self.total_pages else None
        every = min(pages * size, MOST_BYTES) if size else MOST_BYTES
        return {"total_pages": pages, "total_bytes": every}.get(bound)


@table(TABLE, "Values that cannot be")
class Impossible:
    """A value that cannot be, and why."""

    table_name: str = column(holds="words", key=True, help="its table")
    row_number: int = column(key=True, help="its row, from 1")
    column_name: str = column(holds="words", key=True, help="its column")
    row_name: str | None = column(
        holds="kernel", help="name of the row, if it has one (vm_counters)"
    )
    value: str | None = column(holds="kernel", help="if it is a number")
    bound: str = column(holds="words", help="why it is impossible")

    def __str__(self) -> str:
        where = f", {self.row_name}" if self.row_name else ""
        return f"{self.table_name}.{self.column_name}{where}: {self.bound}"


def impossible(
    table: str,
    described: Sequence[Column],
    values: Sequence[Sequence[Any]],
    machine: Machine,
    *,
    first: int = 1,
    whole: bool = True,
) -> list[Impossible]:
    """
    The values of a table that cannot be.

    :param values: of each column, by row.
    :param first: number of the first of these rows.
    :param whole: these are all the rows, so that keys can be looked at.
    """
    columns = {c.name: cells for c, cells in zip(described, values, strict=True)}
    names = next((columns[c.name] for c in described if c.key), [])
    found = []
    for c in described:
        cells = columns[c.name]
        if c.type == "string" and (c.low or c.high):
            cells = [None if text is None else len(text) for text in cells]
        marks: dict[int, str] = {}
        known = _known(cells) if c.low or c.high else set()
        for bounds, wrong, most in ((c.low, operator.lt, min), (c.high, operator.gt, max)):
            extreme = most(known) if known and bounds else None
            for bound in bounds:
                marks = _outside(c, cells, extreme, bound, wrong, columns, machine) | marks
        for at, name in enumerate(names if c.ranges else ()):
            if (range_ := _range(c, name)) is not None:
                low, high = range_
                cell = _number(columns[c.name][at])
                outside = _outside(c, [cell], cell, low, operator.lt, {}, machine)
                outside |= _outside(c, [cell], cell, high, operator.gt, {}, machine)
                marks.update((at, words) for words in outside.values())
        cells = columns[c.name]
        marks |= _beyond_a_column(c, cells, known, machine)
        found += [
            Impossible(
                table,
                first + at,
                c.name,
                names[at] if c.ranges else None,
                _shown(cells[at]),
                marks[at],
            )
            for at in sorted(marks)[:MOST_MARKS]
        ]
    return found + (_twice(table, described, columns) if machine.frozen and whole else [])


def _beyond_a_column(
    column: Column, cells: Sequence[Any], known: set[Any], machine: Machine
) -> dict[int, str]:
    """More events than a machine has time for; names of the kernel's that it does not write."""
    most = machine.most_events
    if column.events and most and known and max(known) > most:
        return {
            at: f"{value:,} is more than this machine can have counted since boot"
            for at, value in enumerate(cells)
            if value is not None and value > most
        }
    if column.holds != "kernel" or column.type != "string":
        return {}
    if _is_text("".join(filter(None, cells))):
        return {}
    return {
        at: "a name with what is no text"
        for at, text in enumerate(cells)
        if text and not _is_text(text)
    }


def _is_text(text: str) -> bool:
    return PRINTABLE.fullmatch(text) is not None and "\\x" not in text


def _range(column: Column, name: str | None) -> tuple[Bound, Bound] | None:
    """The bounds of the row of this name."""
    if name is None or name in column.ranges:
        return column.ranges.get(name or "")
    fitting = [each for each in column.ranges if each[-1:] == "*" and name.startswith(each[:-1])]
    return column.ranges[max(fitting, key=len)] if fitting else None


def _known(cells: Sequence[Any]) -> set[Any]:
    """Distinct values, as most columns repeat few; NaN is written as unknown."""
    return {value for value in set(cells) if value is not None and value == value}


def _outside(
    column: Column,
    cells: Sequence[Any],
    extreme: Any,
    bound: Bound,
    wrong: Wrong,
    columns: Mapping[str, Sequence[Any]],
    machine: Machine,
) -> dict[int, str]:
    """
    Cells on the wrong side of a bound, with the words for each.

    :param extreme: the one that is nearest to that side, or beyond it; None: all are unknown.
    """
    limit = machine.most(bound) if isinstance(bound, str) else bound
    if limit is None:
        return _unlike(cells, str(bound), wrong, columns.get(str(bound), ()), machine)
    if extreme is None or not wrong(extreme, limit):
        return {}
    outside = (
        (at, _words(column, value, bound, limit, machine))
        for at, value in enumerate(cells)
        if value is not None and wrong(value, limit)
    )
    return dict(itertools.islice(outside, MOST_MARKS))


def _words(column: Column, value: Any, bound: Bound, limit: int, machine: Machine) -> str:
    if column.type == "string" and not column.ranges:
        return f"{value:,} characters, more than a name has" if value else "a name that is empty"
    if isinstance(bound, str):
        whose = "this machine's" if machine.total_pages else "any machine's"
        return f"{value:,} is beyond {whose} {limit:,} {bound.removeprefix('total_')}"
    if value < limit:
        return f"{value:,} is below {limit:,}"
    return f"{value:,} is beyond {limit:,}"


def _unlike(
    cells: Sequence[Any], name: str, wrong: Wrong, others: Sequence[Any], machine: Machine
) -> dict[int, str]:
    """Cells on the wrong side of their row's cell in another column."""
    less = wrong is operator.lt
    sign = -1 if less else 1
    outside = (
        (at, f"{value:,} is {'less' if less else 'more'} than {name}, {other:,}")
        for at, (value, other) in enumerate(zip(cells, others, strict=True))
        if value is not None
        and other is not None
        and wrong(value, other)
        and (machine.frozen or wrong(value, other + sign * (abs(other) // SLACK_SHARE + SLACK)))
    )
    return dict(itertools.islice(outside, MOST_MARKS))


def _twice(
    table: str, described: Sequence[Column], columns: Mapping[str, Sequence[Any]]
) -> list[Impossible]:
    """Rows whose key an earlier row has."""
    keys = [c for c in described if c.key]
    rows = list(zip(*(columns[c.name] for c in keys), strict=True))
    if len(set(rows)) == len(rows):
        return []
    seen: dict[tuple[Any, ...], int] = {}
    marks = [
        (row, other)
        for row, key in enumerate(rows, 1)
        if (other := seen.setdefault(key, row)) != row
    ]
    # The number, if there is one: a text says less.
    what = next((c for c in keys if c.type == "integer"), keys[0])
    return [
        Impossible(
            table,
            row,
            what.name,
            None,
            _shown(columns[what.name][row - 1]),
            f"the key of row {row:,} is that of row {other:,}",
        )
        for row, other in marks[:MOST_MARKS]
    ]


def _number(value: Any) -> int | None:
    """A number, or what a text is of one."""
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"-?[0-9]{1,40}", value) else None
    return None if value is None else int(value)


def _shown(value: Any) -> str | None:
    return None if value is None or isinstance(value, str) else str(value)


def rows_that_cannot_be(
    table: str, described: Sequence[Column], rows: Sequence[Any], machine: Machine
) -> list[Impossible]:
    """The same of rows, which are dataclasses."""
    values = [list(map(operator.attrgetter(c.name), rows)) for c in described]
    return impossible(table, described, values, machine)


def told(marks: Sequence[Impossible], most: int = 5) -> list[str]:
    """A section's lines about impossible values: one for each column."""
    columns: dict[tuple[str, str], list[Impossible]] = {}
    for mark in marks:
        columns.setdefault((mark.table_name, mark.column_name), []).append(mark)
    words = []
    for each in list(columns.values())[:most]:
        more = f"{'at least ' if len(each) >= MOST_MARKS else ''}{len(each) - 1:,} more"
        words.append(f"{each[0]}" + (f", and {more} ({TABLE})" if each[1:] else ""))
    if len(columns) > most:
        words.append(f"values of {len(columns) - most} more columns cannot be ({TABLE})")
    return words
