# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bundles as Parquet: the tables of many, each in one file a day, with whose row it is.

Each bundle is read as for its findings (``database.load_tables``), so that what is damaged there is
damaged here, with the same words. A column that is declared has its declared type; one that another
type stands in is left out with its table. What is not declared is taken as the bundle says.

Costs a reading of every cell. Cannot know: who a host is beyond its name; see ``hosts``.
"""

import contextlib
import datetime
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.boots import boot_time, captured
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import reasons
from mmscope.reports.bundle.database import (
    SQL_TYPES,
    TARGET,
    load_tables,
    target_row,
    views,
    why_not,
)
from mmscope.reports.bundle.description import DESCRIPTION, BundleError, Table
from mmscope.reports.lake.layout import BUNDLES, STACKS
from mmscope.reports.lake.together import KEYS, Record, Waiting, insert, kinds_of

MARKS = "lake_marks"
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
    MARKS: KEYS | {c.name: SQL_TYPES[c.type] for c in columns(Impossible)},
    STACKS: KEYS | {"name": "VARCHAR", "stack": "VARCHAR", "value": "HUGEINT"},
}
# Of what is held before it is written.
MAX_STAGED_BYTES, MAX_STAGED = 64 << 20, 250
MEMORY = "768MiB"
# Larger tables are read by themselves.
MAX_TOGETHER = 4 << 20
NAMED_AS_VIEWS = {"target", *(name for name, _, _ in views())}
# Files are told from each other by their bytes up to here.
MAX_READ = 1 << 30
# Before Linux nothing was read, and after tomorrow nothing was yet.
EARLIEST = 662688000
AHEAD = 86400


@dataclass(frozen=True)
class Given:
    """What the user says of the bundles that are added."""

    labels: tuple[tuple[str, str], ...] = ()
    host: str | None = None


@dataclass
class Staged:
    """
    What became of some bundles.

    :ivar files: (table, day, path, rows) of each file that was written.
    :ivar ids: of the bundles in them.
    :ivar refused: lines of those that are not.
    :ivar left_out: lines of tables and stacks that are not, of those that are.
    :ivar said: lines of what is odd with those that are.
    """

    files: list[tuple[str, str, str, int]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def identity(path: Path) -> str:
    """
    What tells a bundle from all others: of what its files have, whatever it is called. Of a file
    that is longer than a table that is worth adding, the length is enough.

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

    def __init__(self, folder: Path, given: Given, begin: str) -> None:
        self.folder, self.given, self.begin = folder, given, begin
        self.staged = Staged()
        self._connection = duckdb.connect(
            ":memory:", config={"memory_limit": MEMORY, "temp_directory": "", "threads": 1}
        )
        self._columns: dict[tuple[str, str], dict[str, str]] = {}
        self._bytes = self._bundles = self._flushes = 0
        self._records: list[Record] = []
        self._waiting = Waiting()

    def add(self, path: Path, bundle: Bundle, id: str) -> None:
        """
        Take a bundle in.

        :param path: where the user has it, for words.
        :raises BundleError: it has damage that leaves nothing of it.
        """
        size = sum(t.path.stat().st_size for t in bundle.tables.values() if t.path.is_file())
        if self._bundles and (self._bytes + size > MAX_STAGED_BYTES or self._bundles == MAX_STAGED):
            self.flush()
        connection = self._connection
        connection.execute("create schema read")
        try:
            self._take(path, bundle, id)
        except BaseException:
            for table, day in self._columns:  # nothing of it
                connection.execute(
                    f'delete from "{table}@{day}" where lake_bundle = $id', {"id": id}
                )
            raise
        finally:
            connection.execute("drop schema read cascade")
        self._bytes, self._bundles = self._bytes + size, self._bundles + 1
        self.staged.ids.append(id)

    def _take(self, path: Path, bundle: Bundle, id: str) -> None:
        added = datetime.datetime.now(datetime.UTC).timestamp()
        day, note = _day(bundle, added)
        keys = {
            "lake_bundle": id,
            "lake_host": self.given.host or host_name(bundle),
            "lake_kernel": _text(bundle.target.get("release")),
            "lake_boot": _timestamp(boot_time(bundle)),
            "lake_labels": dict(self.given.labels),
        }
        held, _ = bundle.held(name for name in bundle.tables if _waits(bundle, name))
        quick = {name: rows for name, rows in held.items() if not bundle.impossible(name)}
        missing = load_tables(self._connection, bundle, "read", bundle.tables.keys() - quick.keys())
        about = _about(bundle) | {"added": _timestamp(added), "note": note}
        record = Record(path, bundle, day, keys, about, missing)
        for table in bundle.tables.values():
            if table.name in missing or f"table {table.name}" in missing:
                continue
            kinds = kinds_of(table)
            if isinstance(kinds, str):
                missing[table.name] = kinds
                quick.pop(table.name, None)
                continue
            if table.name not in quick and bundle.count(table.name):
                self._move(table, record, kinds)
            record.counts[table.name] = bundle.count(table.name)
            record.marks += bundle.impossible(table.name)
        for name, why in reasons(bundle).items():
            missing.setdefault(name, why)
        self._insert((STACKS, day), self._stacks(bundle, keys, missing))
        for name, rows in quick.items():
            if len(rows):
                self._waiting.add(bundle.tables[name], day, len(self._records), rows)
        self._records.append(record)

    def _move(self, table: Table, record: Record, kinds: dict[str, str]) -> None:
        """Move a table that was read by itself to those of its name."""
        into = self._table((table.name, record.day), KEYS | kinds)
        names = ", ".join(f'"{name}"' for name in (*KEYS, *kinds))
        given = ", ".join(f"${name}::{kind}" for name, kind in KEYS.items())
        values = ", ".join(f'"{name}"::{kind}' for name, kind in kinds.items())
        self._connection.execute(
            f'insert into {into} ({names}) select {given}, {values} from read."{table.name}"',
            record.keys,
        )

    def _take_waiting(self) -> None:
        """Take in what waits, a table of all bundles at once; one bundle where that fails."""
        for table, day, rows in self._waiting.groups():
            kinds = kinds_of(table)
            assert not isinstance(kinds, str)
            into = self._table((table.name, day), KEYS | kinds)
            try:
                insert(self._connection, into, table, kinds, rows, self._records)
            except duckdb.Error:
                for one in rows:
                    record = self._records[one[0]]
                    here = record.bundle.tables[table.name]
                    try:
                        insert(self._connection, into, here, kinds, [one], self._records)
                    except duckdb.Error as error:
                        record.lose(table.name, why_not(error, here))
        self._waiting = Waiting()

    def _tell(self) -> None:
        """The rows of what was taken in, and what is odd with it."""
        marks: dict[str, list[dict[str, Any]]] = {}
        bundles: dict[str, list[dict[str, Any]]] = {}
        for record in self._records:
            marks.setdefault(record.day, []).extend(
                record.keys | {c.name: getattr(m, c.name) for c in columns(Impossible)}
                for m in record.marks
            )
            about = record.about | _outcome(record)
            bundles.setdefault(record.day, []).append(record.keys | about)
            if note := record.about["note"]:
                self.staged.said.append(f"{record.path}: {note}")
            for name in sorted(name for name in record.bundle.tables if name in record.missing):
                why = record.missing[name]
                self.staged.left_out.append(f"{record.path}: table {name} is left out: {why}")
        for day, rows in marks.items():
            self._insert((MARKS, day), rows)
        for day, rows in bundles.items():
            self._insert((BUNDLES, day), rows)
        self._records = []

    def _stacks(
        self, bundle: Bundle, keys: dict[str, Any], missing: dict[str, str]
    ) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for name in bundle.folded:
            try:
                rows += [
                    keys | {"name": name, "stack": stack, "value": value}
                    for stack, value in bundle.drawn_stacks(name)
                ]
            except BundleError as error:
                missing[f"stacks {name}"] = str(error)
                self.staged.left_out.append(f"stacks {name} are left out: {error}")
        return rows

    def _insert(self, where: tuple[str, str], rows: list[dict[str, Any]]) -> None:
        kinds = OWN[where[0]]
        into = self._table(where, kinds)
        names = ", ".join(f'"{name}"' for name in kinds)
        # The labels are those of all.
        given = ", ".join(
            f"${name}::{kind}" if name == "lake_labels" else f"unnest(${name}::{kind}[])"
            for name, kind in kinds.items()
        )
        if rows:
            values = {name: [row[name] for row in rows] for name in kinds}
            self._connection.execute(
                f"insert into {into} ({names}) select {given}",
                values | {"lake_labels": rows[0]["lake_labels"]},
            )

    def _table(self, where: tuple[str, str], kinds: dict[str, str]) -> str:
        """The table for one of that name and day, with these columns at least."""
        name, day = where
        into = f'"{name}@{day}"'
        if (there := self._columns.get(where)) is None:
            described = ", ".join(f'"{column}" {kind}' for column, kind in kinds.items())
            self._connection.execute(f"create table {into} ({described})")
            self._columns[where] = dict(kinds)
            return into
        for column, kind in kinds.items():
            if column not in there:
                self._connection.execute(f'alter table {into} add column "{column}" {kind}')
                there[column] = kind
            elif there[column] != kind:  # of undeclared columns
                self._connection.execute(f'alter table {into} alter "{column}" type VARCHAR')
                there[column] = "VARCHAR"
        return into

    def flush(self) -> None:
        """Write what there is."""
        self._take_waiting()
        self._tell()
        self._flushes += 1
        for table, day in self._columns:
            path = self.folder / f"{self.begin}-{self._flushes}-{table}-{day}.parquet"
            (rows,) = self._connection.execute(
                f'copy "{table}@{day}" to $path (format parquet, compression zstd)',
                {"path": str(path)},
            ).fetchone() or (0,)
            self._connection.execute(f'drop table "{table}@{day}"')
            if rows:
                self.staged.files.append((table, day, str(path), rows))
        self._columns, self._bytes, self._bundles = {}, 0, 0


def stage(work: Iterable[tuple[Path, str]], folder: Path, given: Given, begin: str) -> Staged:
    """
    Write bundles as Parquet files. One that cannot be read costs no other.

    :param work: where each is, and its id.
    :param folder: for the files, whose names begin so.
    """
    made = Stage(folder, given, begin)
    for path, id in work:
        try:
            made.add(path, Bundle(path), id)
        except BundleError as error:
            made.staged.refused.append(str(error))
        except (duckdb.Error, OSError, ValueError) as error:
            why = " ".join(str(error).split())[:200]
            made.staged.refused.append(f"{path}: cannot be added: {why}")
    made.flush()
    return made.staged


def host_name(bundle: Bundle) -> str:
    """Whose reading it is. Numbers of one redaction are not those of another."""
    name = _text(bundle.target.get("hostname")) or "unnamed"
    redaction = bundle.target.get("redaction")
    return f"{name}.{str(redaction)[:8]}" if redaction else name


def _day(bundle: Bundle, added: float) -> tuple[str, str]:
    """The day that it is filed under, and what is odd with its clock."""
    taken, note = captured(bundle), ""
    if taken is None:
        note = "does not say when it was taken; it is filed under today"
    elif not EARLIEST <= taken <= added + AHEAD:
        said = str(bundle.target.get("captured_at"))[:40]
        note = f"says that it was taken {said}, now is {_timestamp(added)} UTC: the clock of its "
        note += "host was wrong; it is filed under today"
    at = added if note or taken is None else taken
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date().isoformat(), note


def _waits(bundle: Bundle, name: str) -> bool:
    """True if a table is inserted with those of other bundles."""
    with contextlib.suppress(OSError):
        return (
            bundle.tables[name].path.stat().st_size <= MAX_TOGETHER and name not in NAMED_AS_VIEWS
        )
    return False


def _about(bundle: Bundle) -> dict[str, Any]:
    """Of its row of the lake's bundles, what it says itself."""
    text = (bundle.path / DESCRIPTION).read_text("utf-8", "surrogateescape")
    return {
        "captured": _timestamp(captured(bundle)),
        **{
            name: _text(value) if TARGET[name] == "VARCHAR" else value
            for name, value in target_row(bundle).items()
        },
        "version": bundle.version,
        "format": bundle.format,
        "description": re.sub("[\ud800-\udfff]", "\ufffd", text),
    }


def _outcome(record: Record) -> dict[str, Any]:
    """Of its row of the lake's bundles, what became of it."""
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
