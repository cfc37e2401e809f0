# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A bundle's tables in DuckDB: the ground that findings and views stand on.

The CSV files are loaded with the types that ``datapackage.json`` declares, then the database is
locked: no file, no network, no extension, whatever a query says. ``target`` is a view of one row.

DuckDB takes a path for a pattern, and reads what else fits it. So it gets files that are open
already, whose names (``/dev/fd/7``) mean nothing. Where it would read a table otherwise than
:class:`~bundle.Bundle` does, it gets a copy without what is odd.
"""

import contextlib
import functools
import re
import tempfile
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.rows import Column, write_csv
from mmscope.drgn.text.plain_file import open_plain
from mmscope.reports.bundle.boots import boot_time
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import reasons
from mmscope.reports.bundle.description import BundleError, Cell, Table

SQL_TYPES = {"integer": "BIGINT", "number": "DOUBLE", "string": "VARCHAR", "boolean": "BOOLEAN"}
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
# How a table's file is read: $path, $columns with their types, and those that are $required.
READ_CSV = (
    "read_csv($path, header = {header}, delim = ',', quote = '\"', escape = '\"', nullstr = '', "
    "auto_detect = false, hive_partitioning = false, compression = 'none', "
    "columns = $columns, strict_mode = true, force_not_null = $required)"
)
TOO_LARGE = f"too large: DuckDB may have {MEMORY} for all tables"
# Of each table, up to which to optimize a query takes longer than it saves.
FEW_ROWS = 20_000
VIEWS = Path(__file__).resolve().parent / "views.sql"


@dataclass
class Database:
    """
    An open bundle.

    :ivar missing: table or view, ``section NAME`` or ``table.column``, to the reason why it is not
        here.
    :ivar impossible: values of its tables that cannot be.
    :ivar filled: ``table.column`` to how many rows it has, of columns that have a value in each.
    """

    connection: duckdb.DuckDBPyConnection
    missing: dict[str, str]
    impossible: list[Impossible] = field(default_factory=list)
    filled: dict[str, int] = field(default_factory=dict)
    _columns: dict[str, set[str]] = field(default_factory=dict)  # of all tables and views

    def rows(self, query: str) -> list[dict[str, Any]]:
        """
        The rows of a query as dictionaries.

        :raises duckdb.Error: the query cannot be answered.
        """
        result = self.connection.execute(query)
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def columns(self, name: str) -> set[str]:
        """The columns of a table or view; empty if it does not exist."""
        return self._columns.get(name, set())


def open_database(
    bundle: Bundle, only: Container[str] | None = None, *, ours: bool = False
) -> Database:
    """
    Load a bundle. A table that is damaged, or named as one of ours, is left out, and the reason
    kept.

    :param only: the tables and views that are wanted; None: all of them.
    :param ours: what is asked are findings, which join by what is equal, or to one row: where all
        tables are small, queries are run as they are written, in three quarters of the time.
    """
    connection = connect()
    missing = load_tables(connection, bundle, "main", only)
    loaded = [t for t in bundle.tables if (only is None or t in only) and t not in missing]
    if ours and all(bundle.count(name) <= FEW_ROWS for name in loaded):
        connection.execute("pragma disable_optimizer")
    _create_target(connection, bundle)
    lock(connection)
    for name, _, statement in views():
        if only is not None and name not in only:
            continue
        try:
            connection.execute(statement)
        except duckdb.Error as error:
            missing[name] = str(error).splitlines()[0]
    for name, why in reasons(bundle).items():
        missing.setdefault(name, why)
    here = [name for name in loaded if name not in missing]
    marks = [mark for name in here for mark in bundle.impossible(name)]
    return Database(connection, missing, marks, _filled(bundle, here), columns_of(connection))


def _filled(bundle: Bundle, tables: Iterable[str]) -> dict[str, int]:
    """Columns that have a value in each row, and of how many rows; every cell was looked at."""
    filled: dict[str, int] = {}
    for name in tables:
        rows = bundle.count(name)
        marked = {mark.column_name for mark in bundle.impossible(name)}  # may be unknown here
        filled |= {
            f"{name}.{c.name}": rows
            for c in bundle.tables[name].columns
            if not rows or not (c.nullable or c.name in marked)
        }
    return filled


def connect() -> duckdb.DuckDBPyConnection:
    """An empty database in memory, and in no more of it than it may have."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": MEMORY,
            "temp_directory": "",
            # Its time goes to many small tables and queries, which more threads only slow down.
            "threads": 1,
        },
    )
    # It would draw one between our own lines, where a query takes two seconds.
    connection.execute("set enable_progress_bar = false")
    return connection


def columns_of(connection: duckdb.DuckDBPyConnection) -> dict[str, set[str]]:
    """
    The columns of every table and view.

    One question: most of what findings ask for is in no bundle, and DuckDB takes longer to say so
    of each than to answer them.
    """
    columns: dict[str, set[str]] = {}
    for table, column in connection.execute(
        "select table_name, column_name from duckdb_columns() "
        "where schema_name = 'main' and not internal"
    ).fetchall():
        columns.setdefault(table, set()).add(column)
    return columns


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
    """Why a table is left out, in words."""
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
    kinds = {c.name: sql_type(c) for c in table.columns}
    # DuckDB rounds 1.5 and takes 1_000 and a cell too many: first the reader that does not.
    rows = bundle.count(table.name)
    if not rows:  # of many findings' tables, which a CSV reader takes five times as long for
        declared = ", ".join(f'"{column}" {kind}' for column, kind in kinds.items())
        connection.execute(f"create table {name} ({declared})")
        return
    # A number of more than 64 bits is unknown here; nothing is asked of it (see findings).
    marked = {mark.column_name for mark in bundle.impossible(table.name)}
    numbers = {
        column: kind
        for column, kind in kinds.items()
        if kind in ("BIGINT", "HUGEINT") and column in marked
    }
    with _opened(bundle, table) as path:
        created = connection.execute(
            f"create table {name} as select * from {READ_CSV.format(header='true')}",
            {
                "path": path,
                "columns": kinds | dict.fromkeys(numbers, "VARCHAR"),
                "required": [c.name for c in table.columns if not c.nullable],
            },
        )
        (loaded,) = created.fetchone() or (0,)
    # Afterwards: the reader of the CSV would do it, and not try.
    for column, kind in numbers.items():
        connection.execute(
            f'alter table {name} alter "{column}" type {kind} using try_cast("{column}" as {kind})'
        )
    if loaded != rows:
        connection.execute(f"drop table {name}")
        raise BundleError(f"{table.path}: damaged: {rows} rows, or {loaded}")


@contextlib.contextmanager
def _opened(bundle: Bundle, table: Table) -> Iterator[str]:
    """The name of an open file that has a table."""
    if table.name not in bundle.odd:
        with open(open_plain(bundle.plain_path(table)), "rb") as file:
            yield f"/dev/fd/{file.fileno()}"
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as copy:
        names = [c.name for c in table.columns]
        write_csv(copy, names, (tuple(row.values()) for row in bundle.rows(table.name)))
        copy.flush()
        yield f"/dev/fd/{copy.fileno()}"


def failed(database: Database, error: duckdb.Error, tables: Iterable[str]) -> str:
    """
    Why a query could not be answered, in words.

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
    """What an engine says, without its hints."""
    return str(error).splitlines()[0][:200]


def sql_type(column: Column) -> str:
    """The type that a column has in DuckDB."""
    return "HUGEINT" if beyond_bigint(column) else SQL_TYPES[column.type]


def beyond_bigint(column: Column) -> bool:
    """Whether numbers of 64 bits without a sign may be in it (an inode's), which names are."""
    limits = [bound for bound in column.high if isinstance(bound, int)]
    return column.type == "integer" and bool(limits) and min(limits) >= 1 << 63


def _create_target(connection: duckdb.DuckDBPyConnection, bundle: Bundle) -> None:
    values = ", ".join(f"${name}::{kind} as {name}" for name, kind in TARGET.items())
    connection.execute(f"create table target as select {values}", target_row(bundle))


def target_row(bundle: Bundle) -> dict[str, Cell]:
    """The one row of ``target``: its columns are :data:`TARGET`. 0 is unknown, as None is."""
    target = bundle.target
    # Bundle has checked that these are numbers.
    page_size = target.get("page_size") or None
    return {
        "kind": target.get("kind"),
        "release": target.get("release"),
        "page_size": page_size,
        # A PMD maps one page of page table entries of 8 bytes.
        "thp_order": (int(page_size) // 8).bit_length() - 1 if page_size else None,
        "total_pages": target.get("total_pages") or None,
        "uptime_seconds": target.get("uptime_seconds") or None,
        "booted_at": boot_time(bundle),
    }


@functools.cache
def views() -> list[tuple[str, str, str]]:
    """(name, title, SQL) of each view in ``views.sql``."""
    result = []
    for part in re.split(r"\n\n(?=-- )", VIEWS.read_text(encoding="utf-8")):
        if match := re.search(r"^create view (\w+) as$", part, re.MULTILINE):
            result.append((match.group(1), part.splitlines()[0].removeprefix("-- "), part))
    return result


def view_columns(database: Database, name: str) -> list[Column]:
    """The columns of a view, as a table's."""
    kinds = {"BIGINT": "integer", "INTEGER": "integer", "BOOLEAN": "boolean", "VARCHAR": "string"}
    return [
        Column(row["column_name"], kinds.get(row["column_type"], "number"), True, "", "", False)
        for row in database.rows(f"describe {name}")
    ]
