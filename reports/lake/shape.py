# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Views that a bundle has, and queries that fail for it, by the columns of its tables alone.

DuckDB is asked, of empty tables; but once of the same columns of the tables that a view or a query
names. Hosts of a fleet have hundreds of sets of tables, and of each table few of columns.

Costs some milliseconds for each of those.
"""

import contextlib
import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.database import (
    TARGET,
    connect,
    create_view,
    in_a_line,
    lock,
    query_failed,
    sql_type,
)
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import Table, table_of
from mmscope.reports.bundle.views import views
from mmscope.reports.findings.query import asked, query_of, words_of
from mmscope.reports.findings.question import Question
from mmscope.reports.lake.catalog import DAMAGE, query

# Tables by name, each with the names and types of its columns.
Tables = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


@dataclass
class Shape:
    """
    The tables that bundles have, without a row.

    :ivar there: columns of all tables and views.
    :ivar tables: columns and types of tables that are wanted.
    :ivar missing: views that are not there, and why.
    """

    there: dict[str, set[str]]
    tables: dict[str, tuple[tuple[str, str], ...]]
    missing: dict[str, str] = field(default_factory=dict)

    def only(self, names: set[str]) -> Tables:
        """Choose its tables of these names."""
        return tuple((name, self.tables[name]) for name in sorted(self.tables.keys() & names))


def shapes_of(paths: Sequence[str], shapes: Iterable[str], wanted: set[str]) -> dict[str, Shape]:
    """
    The shapes of these names, as a bundle of each declares its tables.

    One whose description is damaged in all lists that have it is left out.
    """
    names = sorted(set(shapes))
    try:
        rows = _descriptions(paths, names)
    except duckdb.Error:  # what else is asked of a list can be read
        rows = []
        for path in paths:
            with contextlib.suppress(duckdb.Error):
                rows += _descriptions([path], names)
    found = {}
    for name, description, counts in rows:
        with contextlib.suppress(*DAMAGE, LookupError):
            has = json.loads(counts)
            tables = [
                table_of(resource, Path())
                for resource in json.loads(description)["resources"]
                if resource.get("name") in has and resource.get("format") != "folded"
            ]
            found[name] = _shape(tables, wanted)
    return found


def _descriptions(paths: Sequence[str], shapes: Sequence[str]) -> list[tuple[Any, ...]]:
    """For each of these shapes: its name, the description and the counts of its first bundle."""
    return query(
        "select shape, arg_min(description, lake_bundle), arg_min(counts, lake_bundle) from "
        "read_parquet($paths, hive_partitioning = false) where shape in $shapes group by shape",
        {"paths": list(paths), "shapes": list(shapes)},
    )


def _shape(tables: Sequence[Table], wanted: set[str]) -> Shape:
    shape = Shape(
        {table.name: table.column_names for table in tables} | {"target": set(TARGET)},
        {
            table.name: tuple((c.name, sql_type(c)) for c in table.columns)
            for table in tables
            if table.name in wanted
        },
    )
    for name, _, _ in views():
        if name in wanted:
            names, _ = words_of(name)
            failing, there = _tried(shape.only(names), tuple(sorted(names)))
            if name in failing:
                shape.missing[name] = failing[name]
            else:
                shape.there[name] = there[name]
    return shape


def fails(shape: Shape, question: Question) -> str | None:
    """Reason why a query fails for such bundles, which have all that it needs."""
    names, _ = asked(question)
    # What a query does not name, it does not miss.
    if all(
        table in question.optional or _whole(table) & names <= shape.there.get(table, set())
        for table in TABLES.keys() & names
    ):
        return None
    text = query_of(shape.there, question)
    failing, _ = _tried(shape.only(names), tuple(sorted(names)), text)
    return failing.get(text)


@functools.cache
def _whole(table: str) -> frozenset[str]:
    """All columns that are declared of a table."""
    return frozenset(c.name for c in columns(TABLES[table].row))


@functools.cache
def _tried(
    tables: Tables, names: tuple[str, ...], query: str = ""
) -> tuple[dict[str, str], dict[str, set[str]]]:
    """
    Create the views of these names, of tables without a row, and ask a query: why those that fail
    do, by name or text; and the columns of what is there.
    """
    failing = {}
    every = (*tables, ("target", tuple(TARGET.items())))
    there = {name: {column for column, _ in kinds} for name, kinds in every}
    here = {table: there[table] for table, _ in tables}
    wanted = [(name, statement) for name, _, statement in views() if name in names]
    connection = _database()
    try:
        for name, kinds in every:
            described = ", ".join(f'"{column}" {kind}' for column, kind in kinds)
            connection.execute(f'create table main."{name}" ({described})')
        for name, statement in wanted:
            try:
                there[name] = create_view(connection, name, statement, here)
            except duckdb.Error as error:
                failing[name] = in_a_line(error)
        try:
            connection.execute(query)
        except duckdb.Error as error:
            failing[query] = query_failed(error)
        return failing, there
    finally:
        for name, _ in wanted:
            if name not in here:
                connection.execute(f"drop view if exists {name}")
        for name, _ in every:
            connection.execute(f'drop table if exists main."{name}"')


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """An empty one for all that is tried: to open one takes longer than to try."""
    connection = connect()
    lock(connection)
    return connection
