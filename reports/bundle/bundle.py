# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A bundle: a folder of tables that one reading of one machine left behind.

It is a Frictionless Data Package v2: ``datapackage.json`` describes the target and every table,
each table is one CSV file. Written with the standard library alone, so that it can be made on the
box; read by anything. ``sections.csv`` says how each section fared.

Writing is atomic: tables go to a folder beside the target name, which is renamed when everything
is on disk. A bundle is whole or absent. What a killed process leaves beside it is cleared up by the
next one that writes the same name.

Reading trusts nothing: a bundle may come from a stranger. A table's path must be a plain file
name inside the folder, and names must be identifiers, since SQL is written with them. Lines, rows,
cells, texts and files have bounds, so that no bundle takes more memory than a busy machine's. Bytes
that are not UTF-8, and surrogates, are written out (``\\xff``), the same for every command.
"""

import contextlib
import csv
import datetime
import io
import itertools
import json
import math
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from mmscope import __version__
from mmscope.drgn.tables.bounds import MOST_MARKS, Impossible, Machine, impossible
from mmscope.drgn.tables.bounds import TABLE as IMPOSSIBLE
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.tables.rows import (
    MOST,
    MOST_PAGES,
    OF_MACHINE,
    Bound,
    Column,
    column,
    columns,
    csv_line,
)
from mmscope.drgn.tables.table import Table as Declared
from mmscope.drgn.text.plain_file import MAX_LINE_BYTES, open_lines, read_plain
from mmscope.reports.bundle.leftovers import PREFIX, SUFFIX, claim, clear_up, exchange
from mmscope.reports.bundle.modes import mode_of_file, mode_of_folder
from mmscope.reports.bundle.outcome import Refused

DESCRIPTION = "datapackage.json"
# What columns mean, as docs/bundle-format.md has it: one more when a column is renamed, retyped or
# dropped. 0 is that of mmscope 0.1.0, whose bundles do not say it.
FORMAT = 1
ESCAPE = "backslashreplace"
PROFILE = "https://datapackage.org/profiles/2.0/datapackage.json"
# What str.splitlines() takes for the end of a line.
LINE_BREAK = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*\Z")
# A description is small (a few hundred bytes a column); anything far larger is not ours.
MAX_DESCRIPTION_BYTES = 4 << 20
MAX_RESOURCES, MAX_COLUMNS, MAX_SECTIONS = 1000, 500, 1000
# Of one cell, more than any stack or message has; the csv module's own limit is 128 KiB, DuckDB's
# for a line 2 MiB.
MAX_CELL_CHARACTERS = 1 << 20
csv.field_size_limit(MAX_CELL_CHARACTERS)
# Of a stack; perf records 127 frames unless told otherwise.
MAX_FRAMES = 2048
# A dozen times the largest table of a machine with 100,000 processes and 50,000 stacks.
MAX_TABLE_BYTES = 256 << 20
# Of folded stacks that are held in memory at once, to be drawn: twice what that machine has.
MAX_DRAWN_BYTES, MAX_DRAWN_STACKS = 32 << 20, 200_000
# What may be held in memory at once, of all tables: that machine's report needs 4 million cells,
# a map of a million pageblocks, no two alike, 6.3 million.
MAX_HELD_CELLS, MAX_HELD_BYTES = 7_000_000, 64 << 20
MOST_WRITTEN_MARKS = 100_000

Cell = int | float | str | bool | None


class BundleError(Refused):
    """The folder is not a bundle that can be read, or cannot be written. One line, for the user."""


@dataclass(frozen=True)
class SectionResult:
    """How one section of the reading fared."""

    section: str = column(holds="words", key=True, help="name, as for collect --only")
    status: str = column(
        holds="words", help="ok, partial, absent (the target has no such thing) or failed"
    )
    seconds: float = column(unit="s", help="time spent on it")
    rows: int = column(help="rows in its tables")
    unreadable_bytes: int = column(
        unit="bytes", high=MOST, help="kernel memory that could not be read"
    )
    message: str | None = column(holds="words", help="why it is not ok, or what to know of it")


SECTIONS = Declared(
    "sections",
    "How each section fared",
    SectionResult,
    not_compared="it is about the readings",
)


@dataclass(frozen=True)
class Table:
    """One table of a bundle, as ``datapackage.json`` declares it."""

    name: str
    section: str
    title: str
    columns: list[Column]
    path: Path


@dataclass(frozen=True)
class Folded:
    """Folded stacks of a bundle: ``root;…;leaf value`` a line."""

    name: str
    section: str
    title: str
    unit: str  # of the values
    path: Path


class Writer:
    """
    Writes a bundle; use it as a context manager.

    Leaving the block normally makes the bundle appear at its name at once; leaving it by an
    exception removes what was written. Anything that is in the way is refused before work starts.

    :param path: the bundle's name, which must not exist unless *replace*.
    :param mode: of its files, as asked for (``modes``).
    :raises BundleError: the name is taken, or the folder cannot be made.
    """

    def __init__(self, path: Path, *, replace: bool = False, mode: int | None = None) -> None:
        self.path = path
        self._mode = mode_of_file(mode, path / DESCRIPTION if replace else None)
        self.replace = replace
        self._tables: list[dict[str, Any]] = []
        self._format, self._version = FORMAT, __version__
        if not replace and os.path.lexists(path):
            raise BundleError(f"{path}: already exists; choose another name or use --force")
        if path.exists() and not (path / DESCRIPTION).is_file():
            raise BundleError(f"{path}: exists and is not a bundle, so it is not replaced")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            clear_up(path)
            lock = None
            while lock is None:
                self._folder = Path(
                    tempfile.mkdtemp(
                        prefix=PREFIX.format(path.name), suffix=SUFFIX, dir=path.parent
                    )
                )
                lock = claim(self._folder)
            self._lock = lock
        except OSError as error:
            raise BundleError(f"{path}: cannot write there: {error.strerror}") from error

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Gone already if it was finished; or what it replaced, which may have been a link to one.
        if self._folder.is_symlink():
            self._folder.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BundleError(f"{self.path}: cannot write: {error.strerror}") from error

    def table(
        self,
        name: str,
        title: str,
        row_type: type | list[Column],
        rows: Iterable[Any],
        *,
        section: str,
    ) -> int:
        """
        Write the rows of one table; returns how many there were.

        :param row_type: of the rows; or, of another bundle's table, its columns.
        :param rows: of *row_type*, or tuples of its columns' values where there are very many.
        :raises BundleError: they cannot be written.
        """
        described = row_type if isinstance(row_type, list) else columns(row_type)
        names = [c.name for c in described]
        count = 0
        path = self._folder / f"{name}.csv"
        # A row must never break a bundle, so that what UTF-8 cannot hold is written out.
        with self._writing(), path.open("w", newline="", encoding="utf-8", errors=ESCAPE) as file:
            file.write(csv_line(names))
            for row in rows:
                cells = row if isinstance(row, tuple) else [getattr(row, name) for name in names]
                file.write(csv_line(cells))
                count += 1
        fields = []
        for c in described:
            field: dict[str, Any] = {"name": c.name, "type": c.type, "description": c.help}
            if c.unit:
                field["unit"] = c.unit
            if c.holds:
                field["holds"] = c.holds
            limits = {"low": c.low, "high": c.high, "ranges": c.ranges}
            if limits := {name: limit for name, limit in limits.items() if limit}:
                field["bounds"] = limits
            if not c.nullable:
                field["constraints"] = {"required": True}
                if c.type == "string":  # which may be empty, but not missing
                    field["missingValues"] = []
            fields.append(field)
        schema: dict[str, Any] = {"fields": fields, "missingValues": [""]}
        if keys := [c.name for c in described if c.key]:
            schema["primaryKey"] = keys
        self._tables.append(
            {
                "name": name,
                "title": title,
                "path": f"{name}.csv",
                "type": "table",
                "format": "csv",
                "mediatype": "text/csv",
                "encoding": "utf-8",
                "section": section,
                "schema": schema,
            }
        )
        return count

    def folded(
        self, name: str, title: str, stacks: Iterable[tuple[str, int]], *, unit: str, section: str
    ) -> int:
        """
        Write folded stacks, ``root;…;leaf value`` a line, for flame graphs; returns how many.

        :raises BundleError: they cannot be written.
        """
        count = 0
        path = self._folder / f"{name}.folded"
        with self._writing(), path.open("w", encoding="utf-8", errors=ESCAPE) as file:
            for stack, value in stacks:
                file.write(f"{LINE_BREAK.sub(' ', stack)} {value}\n")
                count += 1
        self._tables.append(
            {
                "name": f"{name}_folded",
                "title": title,
                "path": f"{name}.folded",
                "format": "folded",
                "mediatype": "text/plain",
                "encoding": "utf-8",
                "section": section,
                "unit": unit,
            }
        )
        return count

    def made_of(self, bundle: "Bundle") -> None:
        """Say of what is written that it is no newer than a bundle that it is made of."""
        self._format = min(bundle.format, self._format)
        self._version = older(bundle.version, self._version)

    def keep(self, bundle: "Bundle", *, without: Container[str]) -> None:
        """
        Take over another bundle's tables and stacks as they are.

        :param without: names of tables that are not wanted.
        :raises BundleError: they cannot be read or written.
        """
        self.made_of(bundle)
        here: list[Table | Folded] = [*bundle.tables.values(), *bundle.folded.values()]
        paths = {item.path.name: item.path for item in here}
        for resource in bundle.resources:
            if resource["name"] not in without:
                path = paths[resource["path"]]
                _check_plain(path)
                with self._writing():
                    shutil.copyfile(path, self._folder / path.name)
                self._tables.append(resource)

    def finish(self, target: dict[str, Cell], sections: Iterable[SectionResult]) -> None:
        """
        Write ``sections`` and the description, and make the bundle appear at its name.

        :raises BundleError: it cannot be written.
        """
        self.table(
            "sections", "How each section fared", SectionResult, sections, section="sections"
        )
        description = {
            "$schema": PROFILE,
            "name": "mmscope-bundle",
            "title": "mmscope bundle",
            "format": self._format,
            "version": self._version,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "target": target,
            "resources": self._tables,
        }
        with self._writing():
            with (self._folder / DESCRIPTION).open("w", encoding="utf-8") as file:
                json.dump(description, file, indent=1)
                file.write("\n")
            # On disk before the name appears: a machine that is about to die must not leave a
            # bundle whose files are empty.
            for entry in (*self._folder.iterdir(), self._folder):
                # The folder, which was its owner's alone, last.
                entry.chmod(self._mode if entry != self._folder else mode_of_folder(self._mode))
                _to_disk(entry)
            if not (self.replace and self.path.exists()):
                self._folder.rename(self.path)
            elif not exchange(self._folder, self.path):
                # Killed between these two, the old bundle is left under the other name.
                old = self._folder.with_suffix(".old")
                self.path.rename(old)
                self._folder.rename(self.path)
                shutil.rmtree(old, ignore_errors=True)
            _to_disk(self.path.parent)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Bundle:
    """
    A bundle that was written earlier, possibly elsewhere and by someone else.

    :raises BundleError: the folder is no bundle, or one that must not be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Tables that only the careful reader reads, for which DuckDB needs a copy.
        self.odd: set[str] = set()
        self._counts: dict[str, int] = {}
        self._held: dict[str, list[dict[str, Any]]] = {}
        self._marks: dict[str, list[Impossible]] = {}
        description = path / DESCRIPTION
        if not path.is_dir():
            hint = "it is a file" if path.exists() else "there is no such folder"
            raise BundleError(f"{path}: not a bundle: {hint}; 'mmscope collect' makes one")
        if not os.access(path, os.R_OK | os.X_OK):
            raise BundleError(
                f"{path}: no permission to read it: it is another user's, such as root's; have its "
                "owner run 'chmod -R a+rX' on it, or write it with --mode 644"
            )
        if not os.path.lexists(description):
            raise BundleError(
                f"{path}: not a bundle: it has no {DESCRIPTION}; 'mmscope collect' makes one"
            )
        _check_plain(description)
        try:
            if description.stat().st_size > MAX_DESCRIPTION_BYTES:
                raise BundleError(f"{path}: {DESCRIPTION} is too large to be a bundle's")
            text = read_plain(description, MAX_DESCRIPTION_BYTES).decode("utf-8", "surrogateescape")
            data = plain_texts(json.loads(text))
            self.version = _short(str(data.get("version", "")))
            self.format = _known_format(data.get("format", 0))
            self.target = checked_target(data["target"])
            self.created = _short(str(data.get("created", "")))
            self.tables: dict[str, Table] = {}
            self.resources: list[dict[str, Any]] = data["resources"]
            if len(self.resources) > MAX_RESOURCES:
                raise ValueError(f"{len(self.resources):,} tables, of {MAX_RESOURCES:,} at most")
            stacks = [item for item in data["resources"] if item.get("format") == "folded"]
            self.folded = {item.name: item for item in map(self._folded, stacks)}
            for table in map(self._table, (r for r in data["resources"] if r not in stacks)):
                if table.name in self.tables:
                    raise ValueError(f"table {table.name} is there twice")
                self.tables[table.name] = table
        except OSError as error:
            raise BundleError(f"{path}: cannot read {DESCRIPTION}: {error.strerror}") from error
        except _NewerFormat as error:
            raise BundleError(
                f"{path}: is of bundle format {error}, by mmscope {cut(self.version, 40) or '?'}; "
                f"mmscope {__version__} reads formats 0 to {FORMAT}: use a newer mmscope; any tool "
                "opens the bundle's CSV files"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # Of a stranger's file: it may say anything, at any length.
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise BundleError(f"{path}: {DESCRIPTION} is damaged: {why}") from error
        declared = {c.name: c for c in self.table("sections").columns}
        for c in columns(SectionResult):
            here = declared.get(c.name)
            if here is None or (here.type, here.nullable) != (c.type, c.nullable):
                raise BundleError(
                    f"{path}: {DESCRIPTION} is damaged: no {c.type} sections.{c.name}"
                )
        rows = itertools.islice(self.rows("sections"), MAX_SECTIONS + 1)
        self.sections = [
            SectionResult(**{c.name: _short(row[c.name]) for c in columns(SectionResult)})
            for row in rows
        ]
        if len(self.sections) > MAX_SECTIONS:
            raise BundleError(f"{path}: damaged: more than {MAX_SECTIONS:,} sections")

    def _table(self, resource: dict[str, Any]) -> Table:
        name, path, schema = resource["name"], resource["path"], resource["schema"]
        if not IDENTIFIER.match(name):
            raise ValueError(f"table name {name!r} is not an identifier")
        if path != f"{name}.csv":
            raise ValueError(f"table {name} lies at {path!r}, not at {name}.csv")
        key = schema.get("primaryKey", [])
        described = []
        numbers = [f["name"] for f in schema["fields"] if f["type"] in ("integer", "number")]
        for field in schema["fields"]:
            if not IDENTIFIER.match(field["name"]):
                raise ValueError(f"column name {field['name']!r} is not an identifier")
            if field["type"] not in READERS:
                raise ValueError(f"column {name}.{field['name']} has type {field['type']!r}")
            described.append(
                Column(
                    field["name"],
                    field["type"],
                    not field.get("constraints", {}).get("required", False),
                    _short(str(field.get("unit", ""))),
                    _short(str(field.get("description", ""))),
                    field["name"] in key,
                    _short(str(field.get("holds", ""))),
                    *_bounds(field, numbers),
                )
            )
        if len({c.name for c in described}) < len(described) or not described:
            raise ValueError(f"table {name} has a column twice, or none")
        if len(described) > MAX_COLUMNS:
            raise ValueError(f"table {name} has more than {MAX_COLUMNS} columns")
        section, title = (
            _short(str(resource.get(k, v))) for k, v in (("section", ""), ("title", name))
        )
        return Table(name, section, title, described, self.path / path)

    def _folded(self, resource: dict[str, Any]) -> Folded:
        name, path = resource["name"].removesuffix("_folded"), resource["path"]
        if not IDENTIFIER.match(name):
            raise ValueError(f"stacks' name {name!r} is not an identifier")
        if path != f"{name}.folded":
            raise ValueError(f"stacks {name} lie at {path!r}, not at {name}.folded")
        section, title = (
            _short(str(resource.get(k, v))) for k, v in (("section", ""), ("title", name))
        )
        return Folded(name, section, title, _short(str(resource.get("unit", ""))), self.path / path)

    def stacks(self, name: str) -> Iterator[tuple[str, int]]:
        """
        Folded stacks: (root;…;leaf, value).

        :raises BundleError: the bundle has no such stacks, or their file is missing or damaged.
        """
        if name not in self.folded:
            raise BundleError(f"{self.path}: has no folded stacks {name}")
        path = self.folded[name].path
        if not os.path.lexists(path):
            raise BundleError(f"{path}: missing, though {DESCRIPTION} lists it")
        _check_plain(path)
        try:
            with io.TextIOWrapper(open_lines(path), "utf-8", ESCAPE, newline="\n") as file:
                for line in file:
                    stack, space, value = line.rstrip("\n").rpartition(" ")
                    if not space or not PATTERNS["integer"].fullmatch(value):
                        raise ValueError(f"{line[:40]!r} is no stack and value")
                    if len(stack) > MAX_FRAMES and (frames := stack.count(";") + 1) > MAX_FRAMES:
                        raise ValueError(
                            f"{line[:40]!r}… is a stack of {frames:,} frames, more than "
                            f"{MAX_FRAMES:,}, which none has"
                        )
                    yield stack, int(value)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise BundleError(f"{path}: damaged: {error}") from error

    def drawn_stacks(self, name: str, size: int = MAX_DRAWN_BYTES) -> list[tuple[str, int]]:
        """
        All of some folded stacks, to draw them.

        :param size: room for them, in characters.
        :raises BundleError: there is no such file, it is damaged, or too large to be drawn.
        """
        found: list[tuple[str, int]] = []
        for stack, value in self.stacks(name):
            if (size := size - len(stack)) < 0 or len(found) == MAX_DRAWN_STACKS:
                raise BundleError(
                    f"{self.folded[name].path}: too large to be drawn in a report; 'mmscope show "
                    f"{name} --format folded' or speedscope has all of it"
                )
            found.append((stack, value))
        return found

    def table(self, name: str) -> Table:
        """
        A table's declaration.

        :raises BundleError: the bundle has no such table.
        """
        if name not in self.tables:
            raise BundleError(f"{self.path}: has no table {name}; it has {', '.join(self.tables)}")
        return self.tables[name]

    def plain_path(self, table: Table) -> Path:
        """
        Where a table's CSV file is.

        :raises BundleError: it is missing, or something else than a plain file.
        """
        if not os.path.lexists(table.path):
            raise BundleError(
                f"{table.path}: missing, though {DESCRIPTION} lists it; the bundle is incomplete"
            )
        _check_plain(table.path)
        if (size := table.path.stat().st_size) > MAX_TABLE_BYTES:
            raise BundleError(
                f"{table.path}: has {size:,} bytes, more than the {MAX_TABLE_BYTES:,} that are "
                "read of a table"
            )
        return table.path

    def rows(
        self, table: str, where: tuple[str, Container[Any]] | None = None
    ) -> Iterator[dict[str, Any]]:
        """
        The rows of a table, as dictionaries of typed values.

        :param where: only those whose column of that name has one of the values.
        :raises BundleError: the bundle has no such table, or its file is missing or damaged.
        """
        if table in self._held:
            for row in self._held[table]:
                if not where or row[where[0]] in where[1]:
                    yield row
            return
        described = self.table(table).columns
        names = [c.name for c in described]
        done = 0
        try:
            for texts in self._quickly(table):
                number = len(texts[0])
                if where:
                    at = names.index(where[0])
                    kept = [value in where[1] for value in _values(described[at], texts[at])]
                    texts = [tuple(itertools.compress(cells, kept)) for cells in texts]
                columns = map(_values, described, texts)
                for values in zip(*columns, strict=True):
                    yield dict(zip(names, values, strict=True))
                done += number
            self._counts[table] = done
        except (OSError, ValueError, csv.Error):
            # What is odd is looked at line by line: up to the damage the rows are whole.
            self.odd.add(table)
            for row in itertools.islice(self._carefully(table), done, None):
                if not where or row[where[0]] in where[1]:
                    yield row

    def hold(
        self, tables: Iterable[str], cells: int = MAX_HELD_CELLS, size: int = MAX_HELD_BYTES
    ) -> dict[str, str]:
        """
        Keep the rows of tables that are read more than once, the smallest first, as far as there
        is room; returns why others are not kept: what is wrong with one, or how large it is.

        :param cells, size: room for all of them: cells, and bytes as they are on disk.
        """
        others: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for table in tables:
            if table in self._held:
                continue
            try:
                sizes[table] = self.plain_path(self.table(table)).stat().st_size
            except BundleError as error:
                others[table] = str(error)
        for table in sorted(sizes, key=lambda table: (sizes[table], table)):
            width = len(self.table(table).columns)
            try:
                most = cells // width if sizes[table] <= size else -1
                rows = list(itertools.islice(self.rows(table), most + 1))
            except BundleError as error:
                others[table] = str(error)
                continue
            if len(rows) > most:
                others[table] = f"table {table} is too large to be drawn here"
                continue
            self._held[table] = rows
            cells, size = cells - len(rows) * width, size - sizes[table]
        return others

    def count(self, table: str) -> int:
        """
        The number of rows of a table, every cell of which was looked at.

        :raises BundleError: the bundle has no such table, or its file is missing or damaged.
        """
        if table not in self._counts:
            try:
                self._counts[table] = sum(len(texts[0]) for texts in self._quickly(table))
            except (OSError, ValueError, csv.Error):
                self.odd.add(table)
                rows, done, self._marks[table] = self._carefully(table), 0, []
                while some := list(itertools.islice(rows, ODD_AT_ONCE)):
                    by_column = zip(*(row.values() for row in some), strict=True)
                    self._hold_to_bounds(table, list(by_column), done)
                    done += len(some)
                self._counts[table] = done
        return self._counts[table]

    def _quickly(self, table: str) -> Iterator[list[tuple[str, ...]]]:
        """
        A table's columns as text, thousands of rows at a time: in a tenth of the time that rows
        take singly, every cell is looked at.

        :raises ValueError, csv.Error, OSError: something is odd with these rows.
        """
        described = self.table(table).columns
        done, self._marks[table] = 0, [] if table not in self._counts else self._marks[table]
        with open_lines(self.plain_path(self.table(table))) as raw:
            text = io.TextIOWrapper(raw, "utf-8", newline="")
            end = 0

            def pieces() -> Iterator[list[str]]:
                # A row may have any number of lines, so that these have a bound, too.
                while lines := text.readlines(BYTES_AT_ONCE // 64):
                    if raw.tell() > end + 2 * BYTES_AT_ONCE:
                        raise ValueError("its rows are long")
                    yield lines

            reader = csv.reader(itertools.chain.from_iterable(pieces()), strict=True)
            if next(reader, []) != [c.name for c in described]:
                raise ValueError("its columns are others")
            more = True
            while more:
                lines: list[list[str]] = []
                # A stranger's row may be as long as a thousand of ours.
                end = raw.tell() + BYTES_AT_ONCE
                while more and len(lines) < ROWS_AT_ONCE and raw.tell() <= end:
                    step = list(itertools.islice(reader, 32))
                    lines += step
                    more = bool(step)
                if set(map(len, lines)) - {len(described)}:
                    raise ValueError("a line has another number of cells")
                if lines:
                    texts = list(zip(*lines, strict=True))
                    if table not in self._counts:  # else every cell was looked at before
                        for column, cells in zip(described, texts, strict=True):
                            _check(column, cells)
                        self._hold_to_bounds(table, list(map(_values, described, texts)), done)
                    done += len(lines)
                    yield texts

    def _hold_to_bounds(self, table: str, values: list[Sequence[Any]], done: int) -> None:
        """Mark what cannot be among some rows of a table, before which so many were seen."""
        found = impossible(
            table,
            self.table(table).columns,
            values,
            Machine.of(self.target),
            first=done + 1,
            whole=False,
        )
        marks = self._marks[table]
        marked = Counter(mark.column_name for mark in marks)
        marks += [mark for mark in found if marked[mark.column_name] < MOST_MARKS]

    def impossible(self, table: str) -> list[Impossible]:
        """
        The values of a table that cannot be: those that its bounds refuse, and those that whoever
        wrote the bundle has marked.

        :raises BundleError: the bundle has no such table, or its file is missing or damaged.
        """
        self.count(table)
        marks = self._marks.get(table, [])
        here = {(mark.row_number, mark.column_name) for mark in marks}
        names = {c.name for c in self.table(table).columns}
        return marks + [
            mark
            for mark in self._written_marks
            if mark.table_name == table
            and mark.column_name in names
            and 0 < mark.row_number <= self.count(table)
            and (mark.row_number, mark.column_name) not in here
        ]

    @cached_property
    def _written_marks(self) -> list[Impossible]:
        with contextlib.suppress(BundleError):
            kinds = {(c.name, c.type, c.nullable) for c in self.table(IMPOSSIBLE).columns}
            if kinds == {(c.name, c.type, c.nullable) for c in columns(Impossible)}:
                rows = itertools.islice(self.rows(IMPOSSIBLE), MOST_WRITTEN_MARKS)
                return [Impossible(**row) for row in rows]
        return []

    def _carefully(self, table: str) -> Iterator[dict[str, Any]]:
        """The rows of a table, one by one, with words for what is wrong with one."""
        described = self.table(table).columns
        path = self.plain_path(self.table(table))
        try:
            with io.TextIOWrapper(open_lines(path), "utf-8", ESCAPE, newline="") as file:
                size = 0

                def lines() -> Iterator[str]:
                    nonlocal size
                    for line in file:
                        # Of a row, which may have any number of lines.
                        if (size := size + len(line)) > MAX_LINE_BYTES:
                            raise ValueError(
                                f"the row that ends with line {reader.line_num:,} or later has "
                                f"more than {MAX_LINE_BYTES:,} characters, which none has"
                            )
                        yield line

                reader = csv.reader(lines(), strict=True)
                header = next(reader, [])
                if header != [c.name for c in described]:
                    raise ValueError(f"its columns are not those that {DESCRIPTION} declares")
                for line in reader:
                    size = 0
                    if len(line) != len(described):
                        raise ValueError(
                            f"line {reader.line_num} has {len(line)} cells, not {len(described)}"
                        )
                    yield {c.name: _value(c, text) for c, text in zip(described, line, strict=True)}
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, csv.Error) as error:
            raise BundleError(f"{path}: damaged: {error}") from error


def _bounds(
    field: dict[str, Any], numbers: list[str]
) -> tuple[tuple[Bound, ...], tuple[Bound, ...], dict[str, tuple[Bound, Bound]]]:
    """
    The bounds of a column, as a bundle declares them; a number is never without.

    :param numbers: the columns of its table that hold some.
    :raises ValueError: they are no bounds.
    """

    def bound(value: Any, names: Container[str]) -> Bound:
        if isinstance(value, int):
            return max(-MOST, min(value, 1 << 64))  # which numbers that are names may reach
        if value not in names:
            raise ValueError(f"column {field['name']} has the bound {str(value)[:40]!r}")
        return str(value)

    declared = field.get("bounds", {})
    names = {*OF_MACHINE, *numbers}
    low, high = (tuple(bound(v, names) for v in declared.get(n, ())) for n in ("low", "high"))
    if field["name"] in numbers:
        low, high = (
            limits if set(limits) - set(numbers) else (*limits, most)
            for limits, most in ((low, -MOST), (high, MOST))
        )
    ranges = {
        str(name): (bound(least, OF_MACHINE), bound(most, OF_MACHINE))
        for name, (least, most) in declared.get("ranges", {}).items()
    }
    return low, high, ranges


class _NewerFormat(Exception):
    """A format that this version cannot know."""


def _known_format(number: Any) -> int:
    """
    The format that a bundle says it has.

    :raises _NewerFormat: it is newer than this reader.
    :raises ValueError: it is no format.
    """
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"format is {str(number)[:40]!r}")
    if number > FORMAT:
        raise _NewerFormat(str(number)[:40])
    return number


def older(version: str, other: str) -> str:
    """The older one of two versions; empty if one of them is not a version."""
    numbers = version_number(version), version_number(other)
    return "" if None in numbers else ".".join(map(str, min(filter(None, numbers))))


def version_number(version: str) -> tuple[int, ...] | None:
    """A version as numbers that compare; None if it is not a version."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", version, re.ASCII)
    return tuple(map(int, found.groups())) if found else None


def _check_plain(path: Path) -> None:
    # A bundle is data: a link may lead anywhere, and a pipe or a device would never end.
    if path.is_symlink() or not path.is_file():
        raise BundleError(f"{path}: is not a plain file, which a bundle's files are")


def _check(column: Column, texts: Sequence[str]) -> None:
    """
    Whether the cells of a column are what it declares, as :func:`_value` looks at each.

    :raises ValueError: one of them is not.
    """
    if column.type == "string":
        return
    joined = "\n".join(texts)
    if (
        not WHOLE[column.type].fullmatch(joined + "\n")
        or joined.count("\n") != len(texts) - 1  # one inside a cell would make two of it
        or ("" in texts and not column.nullable)
        or (column.type == "number" and ENDLESS.search(joined))
    ):
        raise ValueError(f"{column.name} is damaged")


def _values(column: Column, texts: Sequence[str]) -> Sequence[Any]:
    """What the cells of a column say, if they are whole."""
    if column.type == "string":
        return [text or None for text in texts] if column.nullable else texts
    read = READERS[column.type]
    if column.nullable:
        return [read(text) if text else None for text in texts]
    return list(map(read, texts))


def _value(column: Column, text: str) -> Any:
    """What a cell says; an empty one is unknown, or an empty string where that cannot be."""
    if not text and (column.nullable or column.type == "string"):
        return None if column.nullable else ""
    if not PATTERNS[column.type].fullmatch(text):
        raise ValueError(f"{column.name} holds {text[:40]!r}, which is no {column.type}")
    value = READERS[column.type](text)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{column.name} holds {text[:40]!r}, which is beyond any number")
    return value


def plain_texts(value: Any) -> Any:
    """
    What JSON says, without what is too long or no text: surrogates are written out, and texts cut.

    :raises RecursionError: it is too deep.
    """
    if isinstance(value, str):
        return _short(value)
    if isinstance(value, list):
        return list(map(plain_texts, value))
    if isinstance(value, dict):
        return {_short(name): plain_texts(item) for name, item in value.items()}
    return value


def _short(value: Any) -> Any:
    return cut(value).encode("utf-8", ESCAPE).decode() if isinstance(value, str) else value


def checked_target(data: dict[str, Any]) -> dict[str, Cell]:
    """
    The target, if it is one: views and reports compute with it.

    :raises ValueError: a value is not what its name says.
    """
    target = dict(data)
    for name, value in target.items():
        kinds = TARGET_NUMBERS.get(name, Cell)
        if not isinstance(value, kinds) or (name in TARGET_NUMBERS and isinstance(value, bool)):
            raise ValueError(f"target.{name} is {str(value)[:40]!r}")
        if isinstance(value, (int, float)) and not 0 <= value <= TARGET_MOST.get(name, MOST):
            raise ValueError(f"target.{name} is {str(value)[:40]}")
    return target


TARGET_MOST = {"page_size": 1 << 20, "total_pages": MOST_PAGES}
TARGET_NUMBERS = {
    "page_size": int | None,
    "total_pages": int | None,
    "online_cpus": int | None,
    "uptime_seconds": int | float | None,
}
# What may be beyond any number, and is looked at by itself.
ENDLESS = re.compile(r"e[-+]?[0-9]{3}|[0-9]{300}")
# A number beyond 64 bits is read, to be marked.
# What int() and float() take beyond these (1_000, nan, digits of other scripts) is no number here.
PATTERNS = {
    "integer": re.compile(r"-?[0-9]{1,40}"),
    "number": re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?"),
    "string": re.compile(r".*", re.DOTALL),
    "boolean": re.compile(r"true|false"),
}
# The same, or nothing, of many cells at once; possessive, so that no length of it costs memory.
WHOLE = {
    "integer": re.compile(r"(?:(?:-?[0-9]{1,40}+)?+\n)*+"),
    "number": re.compile(r"(?:(?:-?[0-9]++(?:\.[0-9]++)?+(?:e[-+]?[0-9]++)?+)?+\n)*+"),
    "boolean": re.compile(r"(?:(?:true|false)?+\n)*+"),
}
ROWS_AT_ONCE, BYTES_AT_ONCE = 4096, 4 << 20
# Each may have as many bytes as a line.
ODD_AT_ONCE = 32
READERS: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "number": float,
    "string": str,
    "boolean": {"true": True, "false": False}.__getitem__,
}
