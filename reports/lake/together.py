# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One table of many bundles, inserted at once: an insert costs DuckDB some milliseconds, whatever is
in it, and a bundle has fifty tables.

Cannot know: which bundle's rows DuckDB refuses; the caller tries each alone then.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.cells import Rows
from mmscope.reports.bundle.database import (
    SQL_TYPES,
    array_of,
    beyond_bigint,
    registered,
    sql_type,
)
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import Table
from mmscope.reports.lake.layout import OURS

# Whose row it is: the first columns of every table.
KEYS = {
    "lake_bundle": "VARCHAR",
    "lake_host": "VARCHAR",
    "lake_kernel": "VARCHAR",
    "lake_boot": "TIMESTAMP",
    "lake_labels": "MAP(VARCHAR, VARCHAR)",
}
# Numbers of more than 64 bits: Parquet has no HUGEINT.
WIDE = "DECIMAL(38,0)"
# Types that a bundle may have for a declared one without another meaning.
ALSO = {("BIGINT", "DOUBLE"), ("BIGINT", "VARCHAR"), ("BIGINT", WIDE)}
# Which of the bundles a row is of.
OF = "lake_of"
# The number of a bundle, and the rows of its table.
Theirs = list[tuple[int, Rows]]


@dataclass
class Record:
    """
    A bundle that is taken in.

    :ivar path: where the user has it, for words.
    :ivar counts: rows of each table that is in the lake.
    :ivar missing: as of ``database.Database``.
    """

    path: Path
    bundle: Bundle
    day: str
    keys: dict[str, Any]
    about: dict[str, Any]
    missing: dict[str, str]
    counts: dict[str, int] = field(default_factory=dict)
    marks: list[Impossible] = field(default_factory=list)

    def lose(self, table: str, why: str) -> None:
        """A table of it could not be read after all."""
        self.missing[table] = why
        self.counts.pop(table, None)
        self.marks = [mark for mark in self.marks if mark.table_name != table]


class Waiting:
    """Rows of tables, with the number of the bundle that they are of."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Any, ...], tuple[Table, str, Theirs]] = {}

    def add(self, table: Table, day: str, number: int, here: Rows) -> None:
        """Tables with the same columns are inserted together."""
        shape = tuple((c.name, sql_type(c), c.nullable) for c in table.columns)
        _, _, rows = self._groups.setdefault((table.name, day, shape), (table, day, []))
        rows.append((number, here))

    def groups(self) -> Iterator[tuple[Table, str, Theirs]]:
        """Table, day and rows."""
        yield from self._groups.values()


def kinds_of(table: Table) -> dict[str, str] | str:
    """The types that a table's columns have in a lake; or why it cannot be in one."""
    declared = {c.name: c for c in columns(TABLES[table.name].row)} if table.name in TABLES else {}
    if table.name.startswith(OURS):
        return f"its name begins with {OURS}, as the lake's own do"
    kinds = {}
    for c in table.columns:
        if c.name.startswith(OURS):
            return f"column {c.name} begins with {OURS}, as the lake's own do"
        kind = WIDE if beyond_bigint(c) else SQL_TYPES[c.type]
        if known := declared.get(c.name):
            wanted = WIDE if beyond_bigint(known) else SQL_TYPES[known.type]
            if kind != wanted and (kind, wanted) not in ALSO:
                return f"its column {c.name} is {c.type}, which mmscope has as {known.type}"
            kind = wanted
        kinds[c.name] = kind
    return kinds


def insert(
    connection: duckdb.DuckDBPyConnection,
    into: str,
    table: Table,
    kinds: dict[str, str],
    rows: Theirs,
    records: Sequence[Record],
) -> None:
    """
    Insert the rows of some bundles: of all, or of none.

    :param into: a table, for SQL.
    :param table: that of one of them; the columns of the others are the same.
    :param records: by number.
    :raises duckdb.Error: they cannot be inserted.
    """
    given: dict[str, Any] = {
        key: [records[number].keys[key] for number, _ in rows]
        for key in KEYS
        if key != "lake_labels"
    }
    whose = ", ".join(
        f"list_extract(${key}::{kind}[], {OF})" if key in given else f"${key}::{kind}"
        for key, kind in KEYS.items()
    )
    names = ", ".join(f'"{name}"' for name in (*KEYS, *kinds))
    values = ", ".join(f'"{name}"::{kind}' for name, kind in kinds.items())
    given["lake_labels"] = records[rows[0][0]].keys["lake_labels"]
    counts = [len(some) for _, some in rows]
    arrays = {OF: np.repeat(np.arange(1, len(rows) + 1), counts)}
    for c in table.columns:
        cells = itertools.chain.from_iterable(some.columns[c.name] for _, some in rows)
        arrays[c.name] = array_of(c, list(cells))
    with registered(connection, arrays) as piece:
        connection.execute(
            f"insert into {into} ({names}) select {whose}, {values} from {piece}", given
        )
