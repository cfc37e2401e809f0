# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bundles of few rows of every table: none, one, two of each, in all combinations that matter to
pictures.

Rows are real or invented ones of other tests (``report_bundle``, ``bundles/v0.1.0``) where there
are any. Others are made of the declaration: each value within its bounds, keys that differ, and the
same words in the columns that tables are joined on. No table and no picture is named here.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import report_bundle as made
from checkout import TESTS

from mmscope.drgn.tables.rows import MOST, Column, columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.pictures import profile_pictures
from mmscope.reports.pictures.picture import Picture

Rows = Sequence[Any]
Stacks = Sequence[tuple[str, int]]

# The others say how a reading fared.
TABLES_OF_BUNDLES = sorted(TABLES.keys() - {"sections", "impossible_values"})
OLD = TESTS / "bundles" / "v0.1.0"
# Of one picture: with more combinations of its tables, each pair of tables is combined.
MOST_WHOLE = 27


def plain(column: Column, number: int) -> Any:
    """A value of a row, like that of the same row of another table."""
    if column.type == "boolean":
        return number % 2 == 0
    if column.type == "string":
        if column.holds == "kernel":  # which reads as a name and as an address
            return f"0x{number + 1:x}000"
        joined = column.name if column.holds == "words" else column.holds
        return f"{joined}_{number}"
    # The same in all columns of a row: within whatever one of them is to another.
    low = max(bound for bound in column.low if isinstance(bound, int))
    high = min((bound for bound in column.high if isinstance(bound, int)), default=MOST)
    return max(low, min(8 * (number + 1), high))


def bare(column: Column, number: int) -> Any:
    """The same, where it must be known."""
    return None if column.nullable else plain(column, number)


def least(column: Column, number: int) -> Any:
    """The least that it can be; of text nothing at all, where that may be."""
    if column.key or column.type == "boolean":
        return plain(column, number)
    if column.type == "string":
        return plain(column, number) if column.low else ""
    return max(-4096, *(bound for bound in column.low if isinstance(bound, int)))


def row_of(table: str, value: Callable[[Column, int], Any], number: int) -> Any:
    """A row made of its declaration."""
    described = columns(TABLES[table].row)
    return SimpleNamespace(**{c.name: value(c, number) for c in described})


def real_rows() -> dict[str, Rows]:
    """Two rows of each table, real ones where there are any."""
    known = {name: rows for name, (_, _, rows, _) in (made.tables() | made.profile_rows()).items()}
    old = Bundle(OLD)
    found: dict[str, Rows] = {}
    for table in TABLES_OF_BUNDLES:
        names = {c.name for c in columns(TABLES[table].row)}
        if len(known.get(table, ())) >= 2:
            found[table] = known[table][:2]
        elif table in old.tables and old.count(table) >= 2:
            unknown = dict.fromkeys(names)  # what came later
            rows = [unknown | row for row in itertools.islice(old.rows(table), 2)]
            found[table] = [SimpleNamespace(**row) for row in rows]
        else:
            found[table] = [row_of(table, plain, number) for number in range(2)]
            found[table][: len(known.get(table, ()))] = known.get(table, ())
    return found


def looked_at(picture: Picture, stacks: Iterable[str]) -> list[str]:
    """The tables of a picture, and the stacks of recordings."""
    of_profiles = stacks if profile_pictures.TABLE in picture.tables else ()
    return sorted(picture.tables) + list(of_profiles)


def combinations(groups: Iterable[Sequence[str]], levels: int) -> list[dict[str, int]]:
    """
    Which of so many levels each name has: in each group all names with all others, where these are
    few, and else all pairs of names. Each next one has as much as can be that none before it had.
    """
    todo: dict[frozenset[tuple[str, int]], None] = {}
    for names in groups:
        together = len(names) if levels ** len(names) <= MOST_WHOLE else 2
        for some in itertools.combinations(names, together):
            for chosen in itertools.product(range(levels), repeat=together):
                todo[frozenset(zip(some, chosen, strict=True))] = None
    needs: dict[tuple[str, int], list[frozenset[tuple[str, int]]]] = {}
    for need in todo:
        for each in need:
            needs.setdefault(each, []).append(need)
    found: list[dict[str, int]] = []
    while todo:
        so_far = dict(next(iter(todo)))
        for name in dict.fromkeys(name for name, _ in needs):
            if name not in so_far:
                left = [
                    [need for need in needs[name, level] if need in todo] for level in range(levels)
                ]
                gains = [
                    (sum(need <= {*so_far.items(), (name, level)} for need in some), len(some))
                    for level, some in enumerate(left)
                ]
                so_far[name] = gains.index(max(gains))
        found.append(so_far)
        todo = {need: None for need in todo if not need <= so_far.items()}
    return found


def write(path: Path, tables: Mapping[str, Rows], stacks: Mapping[str, Stacks]) -> Bundle:
    """A bundle of these."""
    section = profile_pictures.TABLE
    with Writer(path) as writer:
        for name, rows in tables.items():
            table = TABLES[name]
            writer.table(name, table.title, table.row, rows, section=section)
        for name, some in stacks.items():
            writer.folded(name, f"Stacks of {name}", some, unit="samples", section=section)
        writer.finish(made.TARGET, [SectionResult(section, "ok", 0.1, 1, 0, None)])
    return Bundle(path)
