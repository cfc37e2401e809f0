# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Why a picture is missing: what is wrong with its tables, or that mmscope failed.

A table is called damaged only where its rows are not what mmscope declares: other columns, nothing
where something must be, a value that cannot be; or where the picture itself says so. All else is a
fault of mmscope.

Costs a look at each cell of these tables, and that only where a picture failed.

Cannot know: whether what is wrong with a table is why the picture failed.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from mmscope.drgn.tables.bounds import Machine, impossible
from mmscope.drgn.tables.hostile_text import echo
from mmscope.drgn.tables.rows import OF_MACHINE, Bound, Column, columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import came_after
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, say
from mmscope.reports.drawing.refusals import Damaged, Fault, NotDrawn

Rows = Sequence[dict[str, Any]]


def why_missing(
    picture: str,
    error: Exception,
    table: str,
    looked_at: Iterable[tuple[Bundle, str, Rows]],
) -> tuple[str, Fault | None]:
    """
    Words of the page for a picture that failed, and the fault if that is mmscope's.

    :param table: that it belongs to.
    :param looked_at: all tables that it was drawn from, with their rows.
    """
    if isinstance(error, NotDrawn):
        how = "damaged" if isinstance(error, Damaged) else "not drawn"
        return f"table {error.table or table} is {how}: {error}", None
    for bundle, name, rows in looked_at:
        if why := not_as_declared(bundle, name, rows):
            return why, None
    fault = Fault.of(picture, error)
    return fault.words, fault


def fault_in(bundle: Bundle, picture: str, error: Exception, *tables: str) -> list[Fault]:
    """The fault, if that is why words or a picture of these tables are missing; else nothing."""
    held, _ = bundle.held(tables)
    looked_at = [(bundle, name, rows) for name, rows in held.items()]
    _, fault = why_missing(picture, error, tables[0], looked_at)
    return [fault] if fault and held else []


def not_as_declared(bundle: Bundle, name: str, rows: Rows) -> str:
    """The first thing about a table that is not as mmscope declares it; empty if all is."""
    table, declared = bundle.tables.get(name), TABLES.get(name)
    if table is None or declared is None:
        return ""
    here, later = {c.name: c for c in table.columns}, came_after(bundle.version)
    for column in columns(declared.row):
        if column.name in here and here[column.name].type != column.type:
            found = here[column.name].type
            return f"table {name} is damaged: column {column.name} is {found}, not {column.type}"
    held = {c.name: c for c in columns(declared.row) if c.name in next(iter(rows[:1]), {})}
    cells = columns_of(rows, *held)
    for column, values in zip(held.values(), cells, strict=True):
        if not column.nullable and None in values:
            return f"table {name} is damaged: {column.name} is unknown, which it never is"
    described = [_bounded_by(column, held) for column in held.values()]
    # Not whether keys are there twice: there may be more to a key than is at hand.
    for mark in impossible(name, described, cells, Machine.of(bundle.target), whole=False):
        return f"table {name} is damaged: {mark.column_name} cannot be: {mark.bound}"
    lacking = (c for c in columns(declared.row) if c.name not in here and not later(c.since))
    return next((f"table {name} has no column {column.name}" for column in lacking), "")


def _bounded_by(column: Column, held: Iterable[str]) -> Column:
    """A column without the bounds that are columns which are not at hand."""

    def at_hand(bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
        return tuple(b for b in bounds if not isinstance(b, str) or b in OF_MACHINE or b in held)

    return replace(column, low=at_hand(column.low), high=at_hand(column.high))


def say_faults(faults: Sequence[Fault], verbose: bool) -> int:
    """Say on stderr what mmscope failed to draw, with tracebacks if wanted; the exit code."""
    for fault in faults:
        if verbose:
            echo(*fault.trace.splitlines(), sep="\n", file=sys.stderr)
        where = "" if verbose else "; -v shows where"
        say(f"picture {fault.picture} is missing, by a fault of mmscope: {fault.error}{where}")
    return INCOMPLETE if faults else DONE
