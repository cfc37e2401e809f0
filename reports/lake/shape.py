# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What the columns of a bundle's tables decide, whatever is in them: which views it has, which queries
fail.

DuckDB is asked, of empty tables; but once of the same columns of the tables that a view or a query
names. Hosts of a fleet have hundreds of sets of tables, and of each table few of columns.

Costs ten milliseconds for each of those.
"""

import contextlib
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

import duckdb

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.database import (
    TARGET,
    columns_of,
    connect,
    in_a_line,
    lock,
    query_failed,
    sql_type,
    views,
)
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import Table
from mmscope.reports.findings.findings import Question, named, query_of, words_of

# Tables by name, each with the names and types of its columns.
Tables = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


@dataclass
class Shape:
    """
    The tables that bundles have, without a row.

    :ivar tables: those that are wanted.
    :ivar there: all of them, and their views, with their columns.
    :ivar missing: views that are not there, and why.
    """

    tables: dict[str, tuple[tuple[str, str], ...]]
    there: dict[str, set[str]]
    missing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Iterable[Table], wanted: set[str]) -> "Shape":
        """That of bundles with these tables."""
        tables = list(tables)
        there = {table.name: {c.name for c in table.columns} for table in tables}
        there["target"] = set(TARGET)
        shape = cls(
            {
                table.name: tuple((c.name, sql_type(c)) for c in table.columns)
                for table in tables
                if table.name in wanted
            },
            there,
        )
        for name, _, _ in views():
            if name in wanted:
                found = _view(name, shape._only(words_of(name)[0]))
                if isinstance(found, str):
                    shape.missing[name] = found
                else:
                    there[name] = found
        return shape

    def _only(self, names: set[str]) -> Tables:
        return tuple((name, self.tables[name]) for name in sorted(self.tables.keys() & names))

    def fails(self, question: Question) -> str | None:
        """Why a query cannot be asked of such bundles, of which nothing that it needs lacks."""
        names = named([question])
        # What a query does not name, it does not miss.
        if all(
            table in question.optional or _whole(table) & names <= self.there.get(table, set())
            for table in TABLES.keys() & names
        ):
            return None
        text = query_of(self.there, question)
        return _failing(text, self._only(names), tuple(sorted(names)))


@functools.cache
def _whole(table: str) -> frozenset[str]:
    """All columns that are declared of a table."""
    return frozenset(c.name for c in columns(TABLES[table].row))


@functools.cache
def _view(name: str, tables: Tables) -> set[str] | str:
    """The columns of a view of these tables; or why it is none."""
    with contextlib.closing(_empty(tables)) as connection:
        why = _create(connection, words_of(name)[0])
        return why.get(name) or columns_of(connection)[name]


@functools.cache
def _failing(query: str, tables: Tables, names: tuple[str, ...]) -> str | None:
    with contextlib.closing(_empty(tables)) as connection:
        _create(connection, names)
        try:
            connection.execute(query)
        except duckdb.Error as error:
            return query_failed(error)
    return None


def _empty(tables: Tables) -> duckdb.DuckDBPyConnection:
    connection = connect()
    for name, kinds in (*tables, ("target", tuple(TARGET.items()))):
        described = ", ".join(f'"{column}" {kind}' for column, kind in kinds)
        connection.execute(f'create table main."{name}" ({described})')
    lock(connection)
    return connection


def _create(connection: duckdb.DuckDBPyConnection, names: Iterable[str]) -> dict[str, str]:
    """Create the views of these names; returns which cannot be, and why."""
    missing, wanted = {}, set(names)
    for name, _, statement in views():
        if name in wanted:
            try:
                connection.execute(statement)
            except duckdb.Error as error:
                missing[name] = in_a_line(error)
    return missing
