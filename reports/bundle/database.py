# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A bundle's tables in DuckDB: the ground that findings and views stand on.

The tables are loaded with the types that ``datapackage.json`` declares, then the database is
locked: no file, no network, no extension, whatever a query says. ``target`` is a view of one row.

DuckDB gets the typed values that :class:`~bundle.Bundle` has read, and no file.
"""

import contextlib
import functools
import mmap
import re
import resource
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.rows import Column
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import reasons
from mmscope.reports.bundle.description import BundleError, Cell, SectionResult, Table
from mmscope.reports.bundle.views import views, with_stand_ins

SQL_TYPES = {"integer": "BIGINT", "number": "DOUBLE", "string": "VARCHAR", "boolean": "BOOLEAN"}
DTYPES = {"BIGINT": np.int64, "DOUBLE": np.float64, "BOOLEAN": np.bool_}
# What SQL calls the rows that are inserted. No bundle has a table of that name (IDENTIFIER).
ARRAYS = "_arrays"
# The columns of ``target``.
TARGET = {
    "kind": "VARCHAR",
    "release": "VARCHAR",
    "page_size": "BIGINT",
    "thp_order": "BIGINT",
    "total_pages": "BIGINT",
    "uptime_seconds": "DOUBLE",
    "booted_at": "DOUBLE",  # seconds since 1970
}
# Of all tables of one database and what a query makes of them; nothing goes to the disk.
MEMORY = "256MiB"
# What DuckDB reserves of addresses as it begins; where it gets fewer it may end by a signal.
ADDRESSES = 640 << 20
TOO_LARGE = f"too large: DuckDB may have {MEMORY} for all tables"


@dataclass
class Database:
    """
    An open bundle.

    :ivar missing: table or view, ``section NAME`` or ``table.column``, to the reason why it is not
        here.
    :ivar impossible: values of its tables that cannot be.
    :ivar columns: those of each table and view.
    :ivar kind: of reading: live, vmcore, files.
    :ivar fared: by section, how it fared.
    :ivar section_of: the section of each table.
    """

    connection: duckdb.DuckDBPyConnection
    missing: dict[str, str]
    impossible: list[Impossible]
    columns: dict[str, set[str]]
    kind: str
    fared: dict[str, SectionResult]
    section_of: dict[str, str]

    def rows(self, query: str) -> list[dict[str, Any]]:
        """
        The rows of a query as dictionaries.

        :raises duckdb.Error: the query cannot be answered.
        """
        result = self.connection.execute(query)
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def open_database(bundle: Bundle, only: Container[str] | None = None) -> Database:
    """
    Load a bundle. A table that is damaged, or named as one of ours, is left out, and the reason
    kept.

    :param only: the tables and views that are wanted; None: all of them.
    """
    connection = connect()
    missing = load_tables(connection, bundle, "main", only)
    loaded = [t for t in bundle.tables if (only is None or t in only) and t not in missing]
    values = ", ".join(f"${name}::{kind} as {name}" for name, kind in TARGET.items())
    connection.execute(f"create table target as select {values}", target_row(bundle))
    lock(connection)
    columns = {name: bundle.tables[name].column_names for name in loaded}
    columns["target"] = set(TARGET)
    for name, _, statement in views():
        if only is not None and name not in only:
            continue
        try:
            there = {table: columns[table] for table in loaded}
            columns[name] = create_view(connection, name, statement, there)
        except duckdb.Error as error:
            missing[name] = str(error).splitlines()[0]
    for name, why in reasons(bundle).items():
        missing.setdefault(name, why)
    here = [name for name in loaded if name not in missing]
    marks = [mark for name in here for mark in bundle.impossible(name)]
    return Database(
        connection,
        missing,
        marks,
        columns,
        str(bundle.target.get("kind")),
        {section.section: section for section in bundle.sections},
        {table.name: table.section for table in bundle.tables.values()},
    )


def create_view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    statement: str,
    tables: Mapping[str, Container[str]],
) -> set[str]:
    """
    Create a view of ``views.sql``; tables that it calls optional are empty if not there, and
    columns that an older bundle's lack are unknown.

    DuckDB's own catalogue is not asked, which takes it longer than most findings.

    :param tables: columns of those that are there.
    :returns: the view's columns.
    :raises duckdb.Error: it lacks a table.
    """
    listed = re.findall(r"^-- Optional: (\w+) \((.+)\)$", statement, re.MULTILINE)
    optional = {table: described.split(", ") for table, described in listed}
    head, query = re.split(r"(?<= as\n)", statement, maxsplit=1)
    connection.execute(head + with_stand_ins(tables, optional, query))
    return set(connection.view(name).columns)


def connect(memory: str = MEMORY, threads: int | None = 1) -> duckdb.DuckDBPyConnection:
    """
    An empty database in memory, and in no more of it than it may have.

    :param threads: None: as many as there are CPUs. The time of a bundle goes to many small tables
        and queries, which more threads only slow down.
    :raises MemoryError: a limit of addresses leaves too few.
    """
    check_addresses()
    config: dict[str, str | bool | int | float | list[str]]
    config = {"memory_limit": memory, "temp_directory": ""}
    if threads is not None:
        config["threads"] = threads
    connection = duckdb.connect(":memory:", config=config)
    # It is drawn on standard output, also where that is a pipe, if a query takes two seconds. In
    # Jupyter without what draws it there, DuckDB refuses this setting, and there is no bar.
    with contextlib.suppress(duckdb.InvalidInputException):
        connection.execute("set enable_progress_bar = false")
    # Text is text, whatever it looks like.
    connection.execute("set pandas_analyze_sample = 0")
    return connection


@functools.cache
def check_addresses() -> None:
    """
    Refuse a limit that would end the process by a signal as DuckDB begins.

    :raises MemoryError: it leaves too few addresses.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    if limit != resource.RLIM_INFINITY and limit - used < ADDRESSES:
        most = (((used + ADDRESSES) >> 26) + 2) << 16  # KiB; no two runs use the same
        raise MemoryError(
            f"DuckDB may crash with no more than {limit >> 10} KiB of addresses: ulimit -v {most}"
        )


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """No file, no network and no extension from here on, whatever a query says."""
    connection.execute("set enable_external_access = false; set lock_configuration = true")


def load_tables(
    connection: duckdb.DuckDBPyConnection,
    bundle: Bundle,
    schema: str,
    only: Container[str] | None = None,
) -> dict[str, str]:
    """
    Load a bundle's tables into a schema that is there; returns which were left out, and why.

    :param schema: one of our own names.
    """
    missing = {}
    ours = {"target", *(name for name, _, _ in views())}
    for table in bundle.tables.values():
        if only is not None and table.name not in only:
            continue
        if table.name in ours:
            missing[f"table {table.name}"] = "its name is that of a view"
            continue
        try:
            _load(connection, bundle, table, f'{schema}."{table.name}"')
        except (BundleError, duckdb.Error, OSError) as error:
            missing[table.name] = why_not(error, table)
    for section in bundle.sections:
        if section.status in ("absent", "failed"):
            missing[f"section {section.section}"] = section.message or section.status
    return missing


def why_not(error: BundleError | duckdb.Error | OSError, table: Table) -> str:
    """The reason why a table is left out, in words."""
    if isinstance(error, BundleError):
        return str(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"{table.path}: {TOO_LARGE}"
    if isinstance(error, OSError):
        return f"{table.path}: cannot be read: {error.strerror}"
    return f"{table.path}: DuckDB cannot read it: {in_a_line(error)}"


def _load(connection: duckdb.DuckDBPyConnection, bundle: Bundle, table: Table, name: str) -> None:
    """
    Load one table.

    :param name: that it gets, for SQL. Names were checked to be identifiers when the bundle was
        opened.
    :raises BundleError: it is damaged.
    """
    bundle.count(table.name)  # damage is said before anything is loaded
    kinds = ", ".join(f'"{c.name}" {sql_type(c)}' for c in table.columns)
    connection.execute(f"create table {name} ({kinds})")
    try:
        for piece in filter(len, bundle.pieces(table.name)):
            cells = piece.columns.values()
            arrays = {c.name: array_of(c, of) for c, of in zip(table.columns, cells, strict=True)}
            execute_with(connection, f"insert into {name} select * from {ARRAYS}", arrays)
    except BundleError:  # the file was changed meanwhile
        connection.execute(f"drop table {name}")
        raise


def execute_with(
    connection: duckdb.DuckDBPyConnection, sql: str, _arrays: dict[str, np.ndarray[Any, Any]]
) -> None:
    """Run SQL that reads the table :data:`ARRAYS`: DuckDB finds the variable of that name."""
    connection.execute(sql)


def array_of(column: Column, cells: Sequence[Any]) -> np.ndarray[Any, Any]:
    """
    A column as DuckDB takes it. A number that SQL's type does not hold is unknown there; it is
    marked, and nothing is asked of it (see findings).
    """
    kind = sql_type(column)
    if kind == "HUGEINT":
        cells = [c if c is None or abs(c) < 1 << 126 else None for c in cells]
    if kind in ("HUGEINT", "VARCHAR"):
        return np.array(cells, object)
    dtype = DTYPES[kind]
    if None not in cells:
        with contextlib.suppress(OverflowError):
            return np.array(cells, dtype)
    unknown = [c is None or (kind == "BIGINT" and abs(c) >= 1 << 63) for c in cells]
    plain = [0 if here else c for c, here in zip(cells, unknown, strict=True)]
    return np.ma.masked_array(np.array(plain, dtype), unknown)


def failed(database: Database, error: duckdb.Error, tables: Iterable[str]) -> str:
    """
    The reason why a query could not be answered, in words.

    :param tables: that it reads, which may have numbers that nothing can be computed with.
    """
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"its tables are {TOO_LARGE}"
    if not isinstance(error, duckdb.OutOfRangeException | duckdb.ConversionException):
        return query_failed(error)
    largest: list[tuple[int, str]] = []
    for table in dict.fromkeys(tables):
        with contextlib.suppress(duckdb.Error):
            for c in view_columns(database, table):
                if c.type == "integer":
                    most = f'greatest(max("{c.name}"::hugeint), -min("{c.name}"::hugeint))'
                    (row,) = database.rows(f'select {most} as most from "{table}"')
                    largest.append((row["most"] or 0, f"{table}.{c.name}"))
    size, where = max(largest, default=(0, "a column"))
    return f"out of range: {where} has {size:,}, too large to compute with; the bundle is damaged"


def query_failed(error: Exception) -> str:
    """An engine's refusal of a query."""
    return f"the query failed: {in_a_line(error)}"


def in_a_line(error: Exception) -> str:
    """An engine's message without its hints."""
    return str(error).splitlines()[0][:200]


def sql_type(column: Column) -> str:
    """The type that a column has in DuckDB."""
    return "HUGEINT" if beyond_bigint(column) else SQL_TYPES[column.type]


def beyond_bigint(column: Column) -> bool:
    """True if numbers of 64 bits without a sign may be in it (an inode's), which names are."""
    limits = [bound for bound in column.high if isinstance(bound, int)]
    return column.type == "integer" and bool(limits) and min(limits) >= 1 << 63


def target_row(bundle: Bundle) -> dict[str, Cell]:
    """The one row of ``target``: its columns are :data:`TARGET`. 0 is unknown, as None is."""
    target = bundle.target
    page_size = bundle.page_size
    return {
        "kind": target.get("kind"),
        "release": target.get("release"),
        "page_size": page_size,
        "thp_order": bundle.thp_order,
        "total_pages": target.get("total_pages") or None,
        "uptime_seconds": bundle.uptime,
        "booted_at": bundle.booted,
    }


def view_columns(database: Database, name: str) -> list[Column]:
    """The columns of a view, as a table's."""
    kinds = {"BIGINT": "integer", "INTEGER": "integer", "BOOLEAN": "boolean", "VARCHAR": "string"}
    return [
        Column(row["column_name"], kinds.get(row["column_type"], "number"))
        for row in database.rows(f"describe {name}")
    ]
