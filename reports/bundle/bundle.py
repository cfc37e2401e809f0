# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A bundle: a folder of tables that one reading of one machine left behind.

It is a Frictionless Data Package v2: ``datapackage.json`` describes the target and every table,
each table is one CSV file. ``writer`` writes it; read by anything. ``sections.csv`` says how each
section fared.

Reading trusts nothing: a bundle may come from a stranger. Lines, rows, cells, texts and files have
bounds, so that no bundle takes more memory than a busy machine's. Bytes that are not UTF-8, and
surrogates, are written out (``\\xff``), the same for every command.
"""

import contextlib
import csv
import io
import itertools
import json
import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mmscope import __version__
from mmscope.drgn.tables.bounds import MOST_MARKS, Impossible, Machine, impossible
from mmscope.drgn.tables.bounds import TABLE as IMPOSSIBLE
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.text.plain_file import MAX_LINE_BYTES, open_lines, read_plain
from mmscope.reports.bundle.cells import (
    PATTERNS,
    ByColumn,
    Piece,
    check_cells,
    read_pieces,
    value_of,
    values_of,
)
from mmscope.reports.bundle.description import (
    DESCRIPTION,
    ESCAPE,
    FORMAT,
    MAX_DESCRIPTION_BYTES,
    MAX_RESOURCES,
    MAX_SECTIONS,
    BundleError,
    NewerFormat,
    SectionResult,
    Table,
    are_plain,
    check_plain,
    checked_target,
    folded_of,
    known_format,
    plain_texts,
    short_text,
    table_of,
)

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


class Bundle:
    """
    A bundle that was written earlier, possibly elsewhere and by someone else.

    :raises BundleError: the folder is not a bundle, or one that must not be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Tables that only the careful reader reads, for which DuckDB needs a copy.
        self.odd: set[str] = set()
        self._counts: dict[str, int] = {}
        self._held: dict[str, Sequence[dict[str, Any]]] = {}
        self._marks: dict[str, list[Impossible]] = {}
        self._check_folder()
        self._read_description()
        self._read_sections()

    def _check_folder(self) -> None:
        path, description = self.path, self.path / DESCRIPTION
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
        check_plain(description)

    def _read_description(self) -> None:
        path, description = self.path, self.path / DESCRIPTION
        try:
            if description.stat().st_size > MAX_DESCRIPTION_BYTES:
                raise BundleError(f"{path}: {DESCRIPTION} is too large to be a bundle's")
            text = read_plain(description, MAX_DESCRIPTION_BYTES).decode("utf-8", "surrogateescape")
            data = json.loads(text) if are_plain(text) else plain_texts(json.loads(text))
            self.version = short_text(str(data.get("version", "")))
            self.format = known_format(data.get("format", 0))
            self.target = checked_target(data["target"])
            self.created = short_text(str(data.get("created", "")))
            self.tables: dict[str, Table] = {}
            self.resources: list[dict[str, Any]] = data["resources"]
            if len(self.resources) > MAX_RESOURCES:
                raise ValueError(f"{len(self.resources):,} tables, of {MAX_RESOURCES:,} at most")
            stacks = [item for item in data["resources"] if item.get("format") == "folded"]
            self.folded = {item.name: item for item in (folded_of(r, path) for r in stacks)}
            for table in (table_of(r, path) for r in data["resources"] if r not in stacks):
                if table.name in self.tables:
                    raise ValueError(f"table {table.name} is there twice")
                self.tables[table.name] = table
        except OSError as error:
            raise BundleError(f"{path}: cannot read {DESCRIPTION}: {error.strerror}") from error
        except NewerFormat as error:
            raise BundleError(
                f"{path}: is of bundle format {error}, by mmscope {cut(self.version, 40) or '?'}; "
                f"mmscope {__version__} reads formats 0 to {FORMAT}: use a newer mmscope; any tool "
                "opens the bundle's CSV files"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # Of a stranger's file: it may say anything, at any length.
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise BundleError(f"{path}: {DESCRIPTION} is damaged: {why}") from error

    def _read_sections(self) -> None:
        declared = {c.name: c for c in self.table("sections").columns}
        for c in columns(SectionResult):
            here = declared.get(c.name)
            if here is None or (here.type, here.nullable) != (c.type, c.nullable):
                raise BundleError(
                    f"{self.path}: {DESCRIPTION} is damaged: no {c.type} sections.{c.name}"
                )
        rows = itertools.islice(self.rows("sections"), MAX_SECTIONS + 1)
        self.sections = [
            SectionResult(**{c.name: short_text(row[c.name]) for c in columns(SectionResult)})
            for row in rows
        ]
        if len(self.sections) > MAX_SECTIONS:
            raise BundleError(f"{self.path}: damaged: more than {MAX_SECTIONS:,} sections")

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
        check_plain(path)
        try:
            with io.TextIOWrapper(open_lines(path), "utf-8", ESCAPE, newline="\n") as file:
                for line in file:
                    stack, space, value = line.rstrip("\n").rpartition(" ")
                    if not space or not PATTERNS["integer"].fullmatch(value):
                        raise ValueError(f"{line[:40]!r} is not a stack and a value")
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
        check_plain(table.path)
        if (size := table.path.stat().st_size) > MAX_TABLE_BYTES:
            raise BundleError(
                f"{table.path}: has {size:,} bytes, more than the {MAX_TABLE_BYTES:,} that are "
                "read of a table"
            )
        return table.path

    def rows(
        self,
        table: str,
        where: tuple[str, Container[Any]] | None = None,
        only: Container[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """
        The rows of a table, as dictionaries of typed values.

        :param where: only those whose column of that name has one of the values.
        :param only: of each row these columns; it may have others, where all were at hand anyway.
        :raises BundleError: the bundle has no such table, or its file is missing or damaged.
        """
        if table in self._held:
            for row in self._held[table]:
                if not where or row[where[0]] in where[1]:
                    yield row
            return
        described = self.table(table).columns
        every = [c.name for c in described]
        wanted = _wanted(every, only)
        names = [every[at] for at in wanted]
        done = 0
        try:
            for piece, known in self._quickly(table):
                texts = piece.columns()
                if where:
                    at = every.index(where[0])
                    kept = [value in where[1] for value in values_of(described[at], texts[at])]
                    texts = [tuple(itertools.compress(cells, kept)) for cells in texts]
                    known = None
                columns = [
                    known[at] if known else values_of(described[at], texts[at]) for at in wanted
                ]
                for values in zip(*columns, strict=True):
                    yield dict(zip(names, values))  # noqa: B905  # as many: they were counted
                done += piece.rows
            self._counts[table] = done
        except (OSError, ValueError, csv.Error):
            # What is odd is looked at line by line: up to the damage the rows are whole.
            self.odd.add(table)
            for row in itertools.islice(self._carefully(table), done, None):
                if not where or row[where[0]] in where[1]:
                    yield row

    def _by_column(
        self, table: str, only: Container[str] | None, most: int
    ) -> Sequence[dict[str, Any]]:
        """The same of all rows, or of more than so many, where there are more."""
        described = self.table(table).columns
        every = [c.name for c in described]
        wanted = _wanted(every, only)
        found: dict[str, list[Any]] = {every[at]: [] for at in wanted}
        done = 0
        try:
            for piece, known in self._quickly(table):
                texts = [] if known else piece.columns()
                for at in wanted:
                    found[every[at]] += known[at] if known else values_of(described[at], texts[at])
                done += piece.rows
                if done > most:
                    return ByColumn({**found})
            self._counts[table] = done
        except (OSError, ValueError, csv.Error):
            return list(itertools.islice(self.rows(table, only=only), most + 1))
        return ByColumn({**found})

    def hold(
        self, tables: Iterable[str], cells: int = MAX_HELD_CELLS, size: int = MAX_HELD_BYTES
    ) -> dict[str, str]:
        """
        Keep the rows of tables that are read more than once, as far as there is room; returns why
        others are not kept.
        """
        found, others = self.whole((t for t in tables if t not in self._held), {}, cells, size)
        self._held |= {table: list(rows) for table, rows in found.items()}
        return others

    def whole(
        self,
        tables: Iterable[str],
        only: Mapping[str, Container[str]],
        cells: int = MAX_HELD_CELLS,
        size: int = MAX_HELD_BYTES,
    ) -> tuple[dict[str, Sequence[dict[str, Any]]], dict[str, str]]:
        """
        All rows of tables, the smallest first, as far as there is room; and why others are not
        there: what is wrong with one, or how large it is.

        :param only: of long tables the columns that are wanted.
        :param cells, size: room for all of them: cells, and bytes as they are on disk.
        """
        found: dict[str, Sequence[dict[str, Any]]] = {}
        others: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for table in tables:
            try:
                sizes[table] = self.plain_path(self.table(table)).stat().st_size
            except BundleError as error:
                others[table] = str(error)
        for table in sorted(sizes, key=lambda table: (sizes[table], table)):
            width = len(self.table(table).columns)
            try:
                most = cells // width if sizes[table] <= size else -1
                some = self._by_column(table, only.get(table), most)
            except BundleError as error:
                others[table] = str(error)
                continue
            if len(some) > most:
                others[table] = f"table {table} is too large to be drawn here"
                continue
            found[table] = some
            cells, size = cells - len(some) * width, size - sizes[table]
        return found, others

    def count(self, table: str) -> int:
        """
        The number of rows of a table, every cell of which was looked at.

        :raises BundleError: the bundle has no such table, or its file is missing or damaged.
        """
        if table not in self._counts:
            try:
                self._counts[table] = sum(piece.rows for piece, _ in self._quickly(table))
            except (OSError, ValueError, csv.Error):
                self.odd.add(table)
                rows, done, self._marks[table] = self._carefully(table), 0, []
                while some := list(itertools.islice(rows, ODD_AT_ONCE)):
                    by_column = zip(*(row.values() for row in some), strict=True)
                    self._hold_to_bounds(table, list(by_column), done)
                    done += len(some)
                self._counts[table] = done
        return self._counts[table]

    def texts(self, table: str) -> list[list[Sequence[str]]] | None:
        """
        A table's columns as text, some rows at a time, every cell of which was looked at; None
        where something is odd, so that only :meth:`count` and :meth:`rows` say what.
        """
        if table in self.odd:
            return None
        try:
            parts = [piece.columns() for piece, _ in self._quickly(table)]
        except (OSError, ValueError, csv.Error, BundleError):
            return None
        self._counts[table] = sum(len(texts[0]) for texts in parts)
        return parts

    def _quickly(self, table: str) -> Iterator[tuple[Piece, list[Sequence[Any]] | None]]:
        """
        The rows of a table, thousands at a time, and the values of their columns where these were
        needed to look at them: in a tenth of the time that rows take singly, every cell is looked
        at, and in a hundredth where there is nothing odd.

        :raises ValueError, csv.Error, OSError: something is odd with these rows.
        """
        described = self.table(table).columns
        seen = table in self._counts  # every cell of it
        done, self._marks[table] = 0, self._marks[table] if seen else []
        machine = None if seen else Machine.of(self.target)
        with open_lines(self.plain_path(self.table(table))) as raw:
            for piece in read_pieces(raw, described, machine):
                values = None
                if not seen and not piece.plain:
                    texts = piece.columns()
                    for column, cells in zip(described, texts, strict=True):
                        check_cells(column, cells)
                    values = list(map(values_of, described, texts))
                    self._hold_to_bounds(table, values, done)
                done += piece.rows
                yield piece, values

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
                    yield {
                        c.name: value_of(c, text) for c, text in zip(described, line, strict=True)
                    }
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, csv.Error) as error:
            raise BundleError(f"{path}: damaged: {error}") from error


def _wanted(every: Sequence[str], only: Container[str] | None) -> list[int]:
    """Which columns; of none there would be no rows, so all of them then."""
    wanted = [at for at, name in enumerate(every) if only is None or name in only]
    return wanted or list(range(len(every)))


# Each may have as many bytes as a line.
ODD_AT_ONCE = 32
