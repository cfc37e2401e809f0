# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One table of many bundles, read at once.

To read a CSV file costs DuckDB three milliseconds, whatever is in it, and a bundle has fifty. So
what :class:`~bundle.Bundle` found whole waits as text, and one file of it is read for hundreds of
bundles. Cannot know: which of them DuckDB refuses; whoever asks tries each alone then.
"""

import csv
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import (
    READ_CSV,
    SQL_TYPES,
    beyond_bigint,
    sql_type,
)
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import BundleError, Table
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
# Columns, some rows at a time.
Texts = list[list[Sequence[str]]]
Rows = list[tuple[int, Texts]]


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
        self._groups: dict[tuple[Any, ...], tuple[Table, str, Rows]] = {}

    def add(self, table: Table, day: str, number: int, texts: Texts) -> None:
        """Tables with the same columns are read together."""
        shape = tuple((c.name, sql_type(c), c.nullable) for c in table.columns)
        _, _, rows = self._groups.setdefault((table.name, day, shape), (table, day, []))
        rows.append((number, texts))

    def groups(self) -> Iterator[tuple[Table, str, Rows]]:
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
    rows: Rows,
    records: Sequence[Record],
) -> None:
    """
    Insert the rows of some bundles: of all, or of none.

    :param into: a table, for SQL.
    :param table: that of one of them; the columns of the others are the same.
    :param records: by number.
    :raises duckdb.Error, BundleError: they cannot be read.
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
    given |= {
        "lake_labels": records[rows[0][0]].keys["lake_labels"],
        "columns": {OF: "BIGINT"} | {c.name: sql_type(c) for c in table.columns},
        "required": [OF, *(c.name for c in table.columns if not c.nullable)],
    }
    text = (
        f"insert into {into} ({names}) select {whose}, {values} "
        f"from {READ_CSV.format(header='false')}"
    )
    with tempfile.TemporaryFile("w", encoding="utf-8", newline="") as file:
        write = csv.writer(file, lineterminator="\n")
        for place, (_, texts) in enumerate(rows, 1):
            for some in texts:
                write.writerows(zip(itertools.repeat(place), *some))  # without end
        file.flush()
        connection.execute("begin")
        try:
            path = f"/dev/fd/{file.fileno()}"
            (loaded,) = connection.execute(text, given | {"path": path}).fetchone() or (0,)
            wanted = sum(len(some[0]) for _, texts in rows for some in texts)
            if loaded != wanted:
                raise BundleError(f"{table.path}: damaged: {wanted} rows, or {loaded}")
            connection.execute("commit")
        except BaseException:
            connection.execute("rollback")
            raise
