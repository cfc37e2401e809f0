# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bundles as Parquet: the tables of many, each in one file a day, with whose row it is.

Each bundle is read as for its findings (``database.load_tables``), so that what is damaged there is
damaged here, with the same words. A column that is declared has its declared type; one that another
type stands in is left out with its table. What is not declared is taken as the bundle says.

Small tables of many bundles are inserted at once: an insert costs DuckDB some milliseconds,
whatever is in it, and a bundle has fifty tables.

Costs a reading of every cell. Cannot know: who a host is beyond its name; see ``catalog``.
"""

import contextlib
import datetime
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import reasons
from mmscope.reports.bundle.cells import Rows
from mmscope.reports.bundle.database import (
    ARRAYS,
    SQL_TYPES,
    TARGET,
    array_of,
    beyond_bigint,
    connect,
    execute_with,
    load_tables,
    sql_type,
    target_row,
    why_not,
)
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import DESCRIPTION, BundleError, Table
from mmscope.reports.bundle.leftovers import scratch
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.bundle.redact import Names, redact
from mmscope.reports.bundle.views import views
from mmscope.reports.lake.layout import BUNDLES, OURS, STACKS, in_words

MARKS = "lake_marks"
# Whose row it is: the first columns of every table.
KEYS = {
    "lake_bundle": "VARCHAR",
    "lake_host": "VARCHAR",
    "lake_kernel": "VARCHAR",
    "lake_boot": "TIMESTAMP",
}
# Given by the user: a further column.
LABELS = "MAP(VARCHAR, VARCHAR)"
# Numbers of more than 64 bits: Parquet has no HUGEINT.
WIDE = "DECIMAL(38,0)"
# Types that a bundle may have for a declared one without another meaning.
ALSO = {("BIGINT", "DOUBLE"), ("BIGINT", "VARCHAR"), ("BIGINT", WIDE)}
# The number of a bundle that is taken in, until its keys take its place.
OF = "lake_of"
# The number of a bundle, and the rows of its table.
Theirs = list[tuple[int, Rows]]
Labels = Sequence[tuple[str, str]]
BUNDLE_COLUMNS = KEYS | {
    "captured": "TIMESTAMP",
    "added": "TIMESTAMP",
    "note": "VARCHAR",
    **TARGET,
    "shape": "VARCHAR",
    "version": "VARCHAR",
    "format": "BIGINT",
    "description": "VARCHAR",
    "missing": "VARCHAR",
    "counts": "VARCHAR",
    "rows": "BIGINT",
}
OWN = {
    BUNDLES: BUNDLE_COLUMNS,
    MARKS: {c.name: SQL_TYPES[c.type] for c in columns(Impossible)},
    STACKS: {"name": "VARCHAR", "stack": "VARCHAR", "value": "HUGEINT"},
}
# Of what is held before it is written.
MAX_STAGED_BYTES, MAX_STAGED = 64 << 20, 250
MEMORY = "768MiB"
# Larger tables are read by themselves.
MAX_TOGETHER = 4 << 20
NAMED_AS_VIEWS = {"target", *(name for name, _, _ in views())}
# Files are distinguished by their bytes up to here.
MAX_READ = 1 << 30
# Before Linux nothing was read, and after tomorrow nothing was yet.
EARLIEST = 662688000
AHEAD = 86400


@dataclass
class Staged:
    """
    Outcome of some bundles.

    :ivar files: (table, day, path, rows) of each file that was written.
    :ivar added: bundles in them.
    :ivar refused: lines of those that are not.
    :ivar left_out: lines of tables and stacks that are not, of those that are.
    :ivar said: lines of what is odd with those that are.
    """

    files: list[tuple[str, str, Path, int]] = field(default_factory=list)
    added: int = 0
    refused: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


@dataclass
class Record:
    """
    A bundle that is taken in.

    :ivar path: where the user has it, for words.
    :ivar row: of the lake's bundles.
    :ivar counts: rows of each table that is in the lake.
    :ivar missing: as of ``database.Database``.
    """

    path: Path
    bundle: Bundle
    day: str
    row: dict[str, Any]
    missing: dict[str, str]
    counts: dict[str, int] = field(default_factory=dict)
    marks: list[Impossible] = field(default_factory=list)


def identity(path: Path) -> str:
    """
    A hash of what a bundle's files have, whatever it is called. Of a file that is longer than a
    table that is worth adding, the length is enough.

    :raises OSError: it cannot be read.
    """
    whole = hashlib.sha256()
    for name in sorted(os.listdir(path)):
        if (file := path / name).is_file() and name.endswith((".json", ".csv", ".folded")):
            digest = str(size := file.stat().st_size)
            if size <= MAX_READ:
                with open(file, "rb") as opened:
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
            whole.update(f"{name}\0{digest}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()[:32]


class Stage:
    """Tables of many bundles, in memory until they are written."""

    def __init__(self, begin: str, folder: Path, labels: Labels, host: str | None) -> None:
        """
        Begin with none.

        :param labels, host: given by the user. :param begin: of the names of files in the folder.
        """
        self.folder, self.begin = folder, begin
        self.labels, self.host = dict(labels), host
        self.staged = Staged()
        self._connection = connect(MEMORY)
        # By table and day.
        self._columns: dict[tuple[str, str], dict[str, str]] = {}
        self._bytes = self._flushes = 0
        self._records: list[Record] = []
        # By table, day and columns.
        self._waiting: dict[tuple[Any, ...], tuple[Table, str, Theirs]] = {}

    def add(self, path: Path, bundle: Bundle, id: str) -> None:
        """
        Take a bundle in.

        :param path: where the user has it, for words.
        :raises BundleError: it has damage that leaves nothing of it.
        """
        size = sum(t.path.stat().st_size for t in bundle.tables.values() if t.path.is_file())
        full = self._bytes + size > MAX_STAGED_BYTES or len(self._records) == MAX_STAGED
        if self._records and full:
            self.flush()
        connection, number = self._connection, len(self._records)
        connection.execute("create schema read")
        try:
            self._records.append(self._take_in(path, bundle, id, number))
        except BaseException:
            for table, day in self._columns:  # nothing of it
                connection.execute(f'delete from "{table}@{day}" where {OF} = {number}')
            raise
        finally:
            connection.execute("drop schema read cascade")
        self._bytes += size
        self.staged.added += 1

    def _take_in(self, path: Path, bundle: Bundle, id: str, number: int) -> Record:
        """Take in a bundle's tables and stacks."""
        added = datetime.datetime.now(datetime.UTC).timestamp()
        day, note = _day(bundle, added)
        row = {
            "lake_bundle": id,
            "lake_host": self.host or host_name(bundle),
            "lake_kernel": _text(bundle.target.get("release")),
            "lake_boot": _timestamp(bundle.booted),
            **_about(bundle),
            "added": _timestamp(added),
            "note": note,
        }
        held, _ = bundle.held(name for name in bundle.tables if _goes_with_others(bundle, name))
        quick = {name: rows for name, rows in held.items() if not bundle.impossible(name)}
        missing = load_tables(self._connection, bundle, "read", bundle.tables.keys() - quick.keys())
        record = Record(path, bundle, day, row, missing)
        for name, table in bundle.tables.items():
            if name in missing or f"table {name}" in missing:
                continue
            kinds = kinds_of(table)
            if isinstance(kinds, str):
                missing[name] = kinds
                continue
            record.counts[name] = bundle.count(name)
            record.marks += bundle.impossible(name)
            if record.counts[name] and name not in quick:
                insert = self._insertion((name, day), kinds, str(number), f'read."{name}"')
                self._connection.execute(insert)
        for name, why in reasons(bundle).items():
            missing.setdefault(name, why)
        for name in bundle.folded:
            try:
                stacks = [(number, name, *pair) for pair in bundle.drawn_stacks(name)]
                self._fill((STACKS, day), stacks)
            except BundleError as error:
                missing[f"stacks {name}"] = str(error)
                self.staged.left_out.append(f"stacks {name} are left out: {error}")
        for name in quick.keys() & record.counts.keys():
            if record.counts[name]:
                table = bundle.tables[name]
                shape = tuple((c.name, sql_type(c), c.nullable) for c in table.columns)
                _, _, theirs = self._waiting.setdefault((name, day, shape), (table, day, []))
                theirs.append((number, quick[name]))
        return record

    def _take_waiting(self) -> None:
        """Take in what waits, a table of all bundles at once; one bundle where that fails."""
        for table, day, theirs in self._waiting.values():
            try:
                self._take_together(table, day, theirs)
            except duckdb.Error:
                for one in theirs:
                    record = self._records[one[0]]
                    here = record.bundle.tables[table.name]
                    try:
                        self._take_together(here, day, [one])
                    except duckdb.Error as error:
                        record.missing[table.name] = why_not(error, here)
                        record.counts.pop(table.name, None)
                        record.marks = [m for m in record.marks if m.table_name != table.name]
        self._waiting = {}

    def _take_together(self, table: Table, day: str, theirs: Theirs) -> None:
        """
        Take in a table of some bundles, whose columns are the same: of all, or of none.

        :raises duckdb.Error: they cannot be inserted.
        """
        kinds = kinds_of(table)
        assert not isinstance(kinds, str)
        counts = [len(rows) for _, rows in theirs]
        arrays = {OF: np.repeat([number for number, _ in theirs], counts)}
        for c in table.columns:
            cells = itertools.chain.from_iterable(rows.columns[c.name] for _, rows in theirs)
            arrays[c.name] = array_of(c, list(cells))
        insert = self._insertion((table.name, day), kinds, OF, ARRAYS)
        execute_with(self._connection, insert, arrays)

    def _describe(self) -> None:
        """Take in what is known of the bundles, and keep the lines of what is odd with them."""
        for number, record in enumerate(self._records):
            places = [(number, *(getattr(m, name) for name in OWN[MARKS])) for m in record.marks]
            self._fill((MARKS, record.day), places)
            row = record.row | _outcome(record)
            self._fill((BUNDLES, record.day), [(number, *(row[name] for name in OWN[BUNDLES]))])
            if note := row["note"]:
                self.staged.said.append(f"{record.path}: {note}")
            for name in sorted(record.bundle.tables.keys() & record.missing.keys()):
                why = record.missing[name]
                self.staged.left_out.append(f"{record.path}: table {name} is left out: {why}")
        self._records = []

    def _insertion(
        self, where: tuple[str, str], kinds: dict[str, str], of: str, source: str
    ) -> str:
        """SQL that inserts the rows of a table into the one of that name and day."""
        values = ", ".join(f'"{name}"::{kind}' for name, kind in kinds.items())
        into = f"{self._table(where, kinds)} ({_quoted([OF, *kinds])})"
        return f"insert into {into} select {of}, {values} from {source}"

    def _fill(self, where: tuple[str, str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, each with its bundle's number first, into a table of the lake's own."""
        if not rows:
            return
        kinds = {OF: "BIGINT", **OWN[where[0]]}
        values = ", ".join(f"unnest(${name}::{kind}[])" for name, kind in kinds.items())
        self._connection.execute(
            f"insert into {self._table(where, OWN[where[0]])} ({_quoted(kinds)}) select {values}",
            dict(zip(kinds, map(list, zip(*rows, strict=True)), strict=True)),
        )

    def _table(self, where: tuple[str, str], kinds: dict[str, str]) -> str:
        """The table for one of that name and day, with these columns at least."""
        name, day = where
        into = f'"{name}@{day}"'
        there = self._columns.setdefault(where, {})
        if not there:
            self._connection.execute(f"create table {into} ({OF} BIGINT)")
        for column, kind in kinds.items():
            if column not in there:
                self._connection.execute(f'alter table {into} add column "{column}" {kind}')
                there[column] = kind
            elif there[column] != kind:  # of undeclared columns
                self._connection.execute(f'alter table {into} alter "{column}" type VARCHAR')
                there[column] = "VARCHAR"
        return into

    def flush(self) -> None:
        self._take_waiting()
        self._describe()
        self._flushes += 1
        keys = ", ".join(f"k.{name}" for name in KEYS) + f", $labels::{LABELS} as lake_labels"
        for table, day in self._columns:
            if (BUNDLES, day) not in self._columns:  # nothing is left of it
                continue
            path = self.folder / f"{self.begin}-{self._flushes}-{table}-{day}.parquet"
            hidden = (OF, *KEYS) if table == BUNDLES else (OF,)
            rows = (
                f'select {keys}, t.* exclude ({", ".join(hidden)}) from "{table}@{day}" as t '
                f'join "{BUNDLES}@{day}" as k using ({OF}) order by t.rowid'
            )
            (count,) = self._connection.execute(
                f"copy ({rows}) to $path (format parquet, compression zstd)",
                {"path": str(path), "labels": self.labels},
            ).fetchone() or (0,)
            if count:
                self.staged.files.append((table, day, path, count))
        for table, day in self._columns:
            self._connection.execute(f'drop table "{table}@{day}"')
        self._columns, self._bytes = {}, 0


def stage(
    work: Iterable[tuple[Path, str]],
    begin: str,
    folder: Path,
    labels: Labels,
    host: str | None,
    names: Names | None = None,
) -> Staged:
    """
    Write bundles as Parquet files. One that cannot be read costs no other.

    :param work: where each is, and its id.
    :param begin, folder, labels, host: as of :class:`Stage`.
    :param names: replace names by these first; nothing else of a bundle gets into the lake.
    """
    made = Stage(begin, folder, labels, host)
    for path, id in work:
        with contextlib.ExitStack() as until_added:
            try:
                bundle = Bundle(path)
                if names:
                    copy = until_added.enter_context(scratch()) / "bundle"
                    bundle = redact(bundle, copy, names)
                made.add(path, bundle, id)
            except (UsageError, duckdb.Error, OSError, ValueError) as error:
                # That of a bundle as it is begins with its path.
                whole = isinstance(error, BundleError) and not names
                why = str(error) if whole else f"{path}: cannot be added: {in_words(error)}"
                made.staged.refused.append(why)
    made.flush()
    return made.staged


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


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def host_name(bundle: Bundle) -> str:
    """Name of a reading's host. Numbers of one redaction are not those of another."""
    name = _text(bundle.hostname) or "unnamed"
    redaction = bundle.target.get("redaction")
    return f"{name}.{str(redaction)[:8]}" if redaction else name


def _day(bundle: Bundle, added: float) -> tuple[str, str]:
    """The day that it is filed under, and what is odd with its clock."""
    taken, note = bundle.captured, ""
    if taken is None:
        note = "does not say when it was taken; it is filed under today"
    elif not EARLIEST <= taken <= added + AHEAD:
        said = str(bundle.target.get("captured_at"))[:40]
        note = f"says that it was taken {said}, now is {_timestamp(added)} UTC: the clock of its "
        note += "host was wrong; it is filed under today"
    at = added if note or taken is None else taken
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat(), note


def _goes_with_others(bundle: Bundle, name: str) -> bool:
    """True if a table is inserted with those of other bundles."""
    with contextlib.suppress(OSError):
        return (
            bundle.tables[name].path.stat().st_size <= MAX_TOGETHER and name not in NAMED_AS_VIEWS
        )
    return False


def _about(bundle: Bundle) -> dict[str, Any]:
    """Columns of its row of the lake's bundles that it says itself."""
    text = (bundle.path / DESCRIPTION).read_text("utf-8", "surrogateescape")
    return {
        "captured": _timestamp(bundle.captured),
        **{
            name: _text(value) if TARGET[name] == "VARCHAR" else value
            for name, value in target_row(bundle).items()
        },
        "version": bundle.version,
        "format": bundle.format,
        "description": re.sub("[\ud800-\udfff]", "\ufffd", text),
    }


def _outcome(record: Record) -> dict[str, Any]:
    """Columns of its row of the lake's bundles about its outcome."""
    shape = sorted(
        (table.name, [(c.name, c.type) for c in table.columns])
        for table in record.bundle.tables.values()
        if table.name in record.counts
    )
    return {
        "shape": hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16],
        "missing": json.dumps(record.missing),
        "counts": json.dumps(record.counts),
        "rows": sum(record.counts.values()),
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _timestamp(seconds: float | None) -> str | None:
    """For SQL; None where it is none that a calendar has."""
    if seconds is None:
        return None
    try:
        at = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return at.strftime("%Y-%m-%d %H:%M:%S")
