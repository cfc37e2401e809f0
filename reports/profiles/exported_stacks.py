# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks of a bundle for other tools: those of recordings, and of tables by allocation stack."""

from collections.abc import Iterable, Iterator
from functools import partial

from mmscope.perf.stack_parts import load_known_frames
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.profiles import profiles

# Name, unit, folded stacks.
StackSet = tuple[str, str, Iterable[tuple[str, int]]]
# Columns of a table whose rows are what stacks hold. Others have a stack beside a pid or an order.
BY_STACK = {"stack", "handle"}


def stack_sets(bundle: Bundle, what: str, *, reattribute: bool = False) -> list[StackSet]:
    """
    Sets of folded stacks: one of a name, those of a recording or of all (``profiles``), or of a
    table, a set for each of its amounts; pages as bytes, where their size is known.

    :param reattribute: samples where interrupts come back on go to the caller.
    :raises UsageError: the bundle has none of that name.
    """
    files = [what] if what in bundle.folded else profiles.files_of(bundle, what)
    sets: list[StackSet] = []
    known = load_known_frames() if reattribute else None
    for name in files:
        found = bundle.stacks(name)
        stacks = found if known is None else profiles.reattributed(found, known)
        sets.append((name, bundle.folded[name].unit, stacks))
    if sets:
        return sets
    with_stacks = {
        table.name: table for table in bundle.tables.values() if table.column_names >= BY_STACK
    }
    if (table := with_stacks.get(what)) is None:
        has = ", ".join([*bundle.folded, *with_stacks]) or "none"
        raise UsageError(f"{what}: the bundle has no such stacks; it has {has}")
    roots = [c.name for c in table.columns if c.key and c.type == "string" and c.name != "stack"]
    page_size = bundle.page_size
    for column in table.columns:
        if column.type != "integer" or column.key:
            continue
        times, unit = 1, column.unit or column.name
        if unit == "pages" and page_size:
            times, unit = page_size, "bytes"
        amounts = partial(_amounts, bundle, what, column.name, roots, times)
        sets.append((f"{what}_{column.name}", unit, amounts()))
    return sets


def _amounts(
    bundle: Bundle, table: str, column: str, roots: list[str], times: int
) -> Iterator[tuple[str, int]]:
    """Stacks of a table below what else names a row, and an amount of each."""
    for row in bundle.rows(table):
        if row["stack"] and row[column]:
            frames = [str(row[name]).replace(";", ":") for name in roots if row[name]]
            yield ";".join([*frames, row["stack"]]), row[column] * times
