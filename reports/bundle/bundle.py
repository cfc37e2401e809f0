# SPDX-License-Identifier: LGPL-2.1-or-later
r"""
A bundle: a folder of tables that one reading of one machine leaves.

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
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mmscope import __version__
from mmscope.drgn.free.watermarks import thp_order
from mmscope.drgn.tables.bounds import MOST_MARKS, Impossible, Machine, impossible
from mmscope.drgn.tables.bounds import TABLE as IMPOSSIBLE
from mmscope.drgn.tables.display import plain_int
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.tables.rows import Column, columns
from mmscope.drgn.text.plain_file import MAX_LINE_BYTES, PIECE, open_lines, read_plain
from mmscope.reports.bundle.cells import (
    MAX_CELL_CHARACTERS,
    PATTERNS,
    Rows,
    value_of,
    values_of,
)
from mmscope.reports.bundle.description import (
    DESCRIPTION,
    ESCAPE,
    FORMAT,
    LAKE,
    MAX_DESCRIPTION_BYTES,
    MAX_RESOURCES,
    MAX_SECTIONS,
    BundleError,
    SectionResult,
    Table,
    check_plain,
    checked_target,
    moment,
    plain_texts,
    short_text,
    table_of,
)
from mmscope.reports.bundle.outcome import did_you_mean

# More names than these are not listed in a sentence.
MANY_TABLES = 12
# Of a stack; perf records 127 frames by default.
MAX_FRAMES = 2048
# A dozen times the largest table of a machine with 100,000 processes and 50,000 stacks.
MAX_TABLE_BYTES = 256 << 20
# Of folded stacks that are held in memory at once, to be drawn: twice what that machine has.
MAX_DRAWN_BYTES, MAX_DRAWN_STACKS = 32 << 20, 200_000
# What is held in memory of all tables: that machine's have 10.2 million cells, a map of a million
# pageblocks, no two alike, 6.3 million. Tables beyond it are read from their files.
MAX_HELD_CELLS, MAX_HELD_BYTES = 12_000_000, 96 << 20
# What is read of quoted rows before their cells are looked at: few, as the garbage collector looks
# at all.
ROWS_AT_ONCE, CHARACTERS_AT_ONCE = 512, 4 << 20
MOST_WRITTEN_MARKS = 100_000
OTHER_COLUMNS = f"its columns are not those that {DESCRIPTION} declares"


class Bundle:
    """
    A bundle that was written earlier, possibly elsewhere and by someone else.

    :raises BundleError: the folder is not a bundle, or one that must not be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counts: dict[str, int] = {}
        self._marks: dict[str, list[Impossible]] = {}
        self._held: dict[str, Rows] = {}
        self._damaged: dict[str, str] = {}  # why a table could not be read to its end
        self._cells_left, self._bytes_left = MAX_HELD_CELLS, MAX_HELD_BYTES
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
        if (path / LAKE).is_file():
            raise BundleError(f"{path}: a lake, not a bundle: 'mmscope lake findings {path}'")
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
            data = plain_texts(json.loads(text))
            self.version = short_text(str(data.get("version", "")))
            self.format = self._known_format(data.get("format", 0))
            self.target = checked_target(data["target"])
            self.created = short_text(str(data.get("created", "")))
            self.tables: dict[str, Table] = {}
            self.resources: list[dict[str, Any]] = data["resources"]
            if len(self.resources) > MAX_RESOURCES:
                raise ValueError(f"{len(self.resources):,} tables, of {MAX_RESOURCES:,} at most")
            self.folded: dict[str, Table] = {}
            for resource in self.resources:
                table = table_of(resource, path)
                if not table.columns:
                    self.folded[table.name] = table
                elif self.tables.setdefault(table.name, table) is not table:
                    raise ValueError(f"table {table.name} is there twice")
        except OSError as error:
            raise BundleError(f"{path}: cannot read {DESCRIPTION}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # Of a stranger's file: it may say anything, at any length.
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise BundleError(f"{path}: {DESCRIPTION} is damaged: {why}") from error

    def _known_format(self, number: Any) -> int:
        """
        The format that the bundle says it has.

        :raises BundleError: it is newer than this reader, and a column may mean something else.
        :raises ValueError: it is not a format.
        """
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"format is {str(number)[:40]!r}")
        if number > FORMAT:
            raise BundleError(
                f"{self.path}: is of bundle format {str(number)[:40]}, by mmscope "
                f"{cut(self.version, 40) or '?'}; mmscope {__version__} reads formats 0 to "
                f"{FORMAT}: use a newer mmscope; any tool opens the bundle's CSV files"
            )
        return number

    def _read_sections(self) -> None:
        declared = {c.name: c for c in self.table("sections").columns}
        for c in columns(SectionResult):
            here = declared.get(c.name)
            if here is None or (here.type, here.nullable) != (c.type, c.nullable):
                raise BundleError(
                    f"{self.path}: {DESCRIPTION} is damaged: no {c.type} sections.{c.name}"
                )
        every = itertools.chain.from_iterable(self.pieces("sections"))
        rows = itertools.islice(every, MAX_SECTIONS + 1)
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

    @property
    def captured(self) -> float | None:
        """Time of the reading, in seconds since 1970."""
        return moment(str(self.target.get("captured_at")))

    @property
    def booted(self) -> float | None:
        """Time of the machine's boot, in seconds since 1970; None if the bundle does not say."""
        known = self.captured is not None and self.uptime is not None
        return (self.captured or 0.0) - (self.uptime or 0.0) if known else None

    @property
    def uptime(self) -> float | None:
        """Seconds since the machine's boot; None where they are unknown."""
        uptime = self.target.get("uptime_seconds")
        return float(uptime) if isinstance(uptime, int | float) and uptime else None

    @property
    def hostname(self) -> str:
        """The host's name; empty where it has none, for which the kernel's word is (none)."""
        name = self.target.get("hostname")
        return "" if name in (None, "(none)") else str(name)

    @property
    def page_size(self) -> int | None:
        """Bytes of a page; None where they are unknown."""
        return plain_int(self.target.get("page_size")) or None

    @property
    def thp_order(self) -> int | None:
        """HPAGE_PMD_ORDER; None where it is unknown."""
        machine = self.target.get("architecture")
        return thp_order(self.page_size, machine if isinstance(machine, str) else None)

    def table(self, name: str) -> Table:
        """
        A table's declaration.

        :raises BundleError: the bundle has no such table.
        """
        if name not in self.tables:
            near = did_you_mean(name, self.tables)
            if not near and len(self.tables) > MANY_TABLES:
                near = f"; 'mmscope show tables {self.path}' lists those that it has"
            near = near or f"; it has {', '.join(self.tables)}"
            raise BundleError(f"{self.path}: has no table {name}{near}")
        return self.tables[name]

    def plain_path(self, table: Table) -> Path:
        """
        Path of a table's CSV file.

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
        self, table: str, where: tuple[str, Container[Any]] | None = None
    ) -> Iterator[dict[str, Any]]:
        """
        The rows of a table, as dictionaries of typed values.

        :param where: only those whose column of that name has one of the values.
        :raises BundleError: the bundle has no such table, or its file is missing or damaged; the
            rows before the damage come first.
        """
        with contextlib.suppress(BundleError):
            self._load(table)
        for piece in filter(len, self.pieces(table)):
            if where is None:
                yield from piece
            else:
                column, wanted = where
                cells = piece.columns[column]
                yield from (piece[at] for at, cell in enumerate(cells) if cell in wanted)

    def rows_if_any(
        self, table: str, where: tuple[str, Container[Any]] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The same; none of a table that the bundle does not have."""
        return self.rows(table, where) if table in self.tables else iter(())

    def pieces(self, table: str) -> Iterator[Rows]:
        """
        The rows of a table, some thousand at a time, or all of them where they are held in memory.

        :raises BundleError: as of :meth:`rows`.
        """
        if table in self._held:
            yield self._held[table]
        else:
            yield from self._read(table)

    def held(self, tables: Iterable[str]) -> tuple[dict[str, Rows], dict[str, str]]:
        """
        All rows of tables, the smallest first, as far as memory goes; and why others are not here:
        what is wrong with one, or how large it is.
        """
        found: dict[str, Rows] = {}
        others: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for table in tables:
            try:
                sizes[table] = self.plain_path(self.table(table)).stat().st_size
            except BundleError as error:
                others[table] = str(error)
        for table in sorted(sizes, key=lambda table: (sizes[table], table)):
            try:
                self._load(table)
            except BundleError as error:
                others[table] = str(error)
                continue
            if table in self._held:
                found[table] = self._held[table]
            else:
                others[table] = f"table {table} is too large to be drawn here"
        return found, others

    def count(self, table: str) -> int:
        """
        The number of rows of a table, every cell of which was looked at.

        :raises BundleError: the bundle has no such table, or its file is missing or damaged.
        """
        self._load(table)
        return self._counts[table]

    def _load(self, table: str) -> None:
        """
        Read a table once: its number of rows, what cannot be among them, and the rows themselves if
        there is memory for them.

        :raises BundleError: as of :meth:`count`.
        """
        if table in self._counts:
            return
        if table in self._damaged:
            raise BundleError(self._damaged[table])
        described, machine = self.table(table).columns, Machine.of(self.target)
        size = self.plain_path(self.table(table)).stat().st_size
        room = self._cells_left // len(described) if size <= self._bytes_left else -1
        columns: list[list[Any]] = [[] for _ in described]
        marks: list[Impossible] = []
        count = 0
        try:
            for piece in self._read(table):
                values = list(piece.columns.values())
                found = impossible(table, described, values, machine, first=count + 1, whole=False)
                marked = Counter(mark.column_name for mark in marks)
                marks += [mark for mark in found if marked[mark.column_name] < MOST_MARKS]
                count += len(piece)
                if count <= room:
                    for column, some in zip(columns, values, strict=True):
                        column += some
                else:
                    columns = []
        except BundleError as error:
            self._damaged[table] = str(error)
            raise
        self._counts[table], self._marks[table] = count, marks
        if count <= room:
            # As tuples, which the garbage collector does not go through again and again.
            names = (c.name for c in described)
            self._held[table] = Rows(dict(zip(names, map(tuple, columns), strict=True)))
            self._cells_left -= count * len(described)
            self._bytes_left -= size

    def impossible(self, table: str) -> list[Impossible]:
        """
        The values of a table that cannot be: those that its bounds refuse, and those that whatever
        wrote the bundle has marked.

        :raises BundleError: the bundle has no such table, or its file is missing or damaged.
        """
        self._load(table)
        marks = self._marks[table]
        here = {(mark.row_number, mark.column_name) for mark in marks}
        names = self.table(table).column_names
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

    def _read(self, table: str) -> Iterator[Rows]:
        """A table's file, some rows at a time; the rows before any damage come before the error."""
        path, described = self.plain_path(self.table(table)), self.table(table).columns
        try:
            with open_lines(path) as file:
                for cells in _cells(_whole_lines(file), [c.name for c in described]):
                    yield from _typed(described, cells)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, csv.Error) as error:
            raise BundleError(f"{path}: damaged: {error}") from error


def _whole_lines(file: io.BufferedReader) -> Iterator[str]:
    """The text of a file, some lines at a time; those before damage come before its error."""
    rest = b""
    while piece := file.read1(PIECE):
        lines, newline, piece = (rest + piece).rpartition(b"\n")
        if newline:
            yield (lines + newline).decode("utf-8", ESCAPE)
        rest = piece
    if rest:
        yield rest.decode("utf-8", ESCAPE)


def _cells(texts: Iterator[str], names: Sequence[str]) -> Iterator[list[Sequence[str]]]:
    """
    The cells of a CSV file below its heading, as text, by column, some rows at a time.

    Lines without quotes are split all at once; from the first others on, the csv module does it.

    :raises ValueError, csv.Error, OSError: the file is damaged after these.
    """
    width, line = len(names) + 1, 0  # of a line and its end
    for text in texts:
        cells = text.replace("\n", ",\n,").split(",")
        rows = text.count("\n")
        if (
            cells[width - 1 :: width] != ["\n"] * rows
            or text[-1] != "\n"
            or len(text) > MAX_CELL_CHARACTERS
            or any(mark in text for mark in '"\r')
            or (line == 0 and cells[: width - 1] != names)
            or width == 2  # an empty line has no cell
        ):
            yield from _quoted_cells(itertools.chain([text], texts), names, line)
            return
        first = 0 if line else width
        yield [cells[at:-1:width] for at in range(first, first + len(names))]
        line += rows
    if line == 0:
        raise ValueError(OTHER_COLUMNS)


def _quoted_cells(
    texts: Iterable[str], names: Sequence[str], before: int
) -> Iterator[list[Sequence[str]]]:
    """
    The same for any lines.

    :param before: so many lines were read; 0: the heading comes first.
    """
    row_size = size = 0

    def bounded() -> Iterator[str]:
        nonlocal row_size, size
        for line in itertools.chain.from_iterable(io.StringIO(text, "") for text in texts):
            # A row may have any number of lines.
            if (row_size := row_size + len(line)) > MAX_LINE_BYTES:
                raise ValueError(
                    f"the row that ends with line {before + reader.line_num:,} or later has more "
                    f"than {MAX_LINE_BYTES:,} characters, which none has"
                )
            size += len(line)
            yield line

    reader = csv.reader(bounded(), strict=True)
    if before == 0 and next(reader, []) != names:
        raise ValueError(OTHER_COLUMNS)
    row_size, rows = 0, []
    try:
        for row in reader:
            row_size = 0
            if len(row) != len(names):
                line = before + reader.line_num
                raise ValueError(f"line {line} has {len(row)} cells, not {len(names)}")
            rows.append(row)
            if len(rows) == ROWS_AT_ONCE or size >= CHARACTERS_AT_ONCE:
                yield list(zip(*rows, strict=True))
                size, rows = 0, []
    except (ValueError, csv.Error, OSError):
        if rows:
            yield list(zip(*rows, strict=True))
        raise
    if rows:
        yield list(zip(*rows, strict=True))


def _typed(described: Sequence[Column], cells: Sequence[Sequence[str]]) -> Iterator[Rows]:
    """
    Rows with the values that their text stands for.

    :raises ValueError: a cell is not what its column declares; the rows before it come first.
    """
    names = [c.name for c in described]
    try:
        yield Rows(dict(zip(names, map(values_of, described, cells), strict=True)))
    except ValueError:
        for number, row in enumerate(zip(*cells, strict=True)):
            try:
                for column, text in zip(described, row, strict=True):
                    value_of(column, text)
            except ValueError:
                if number:
                    yield from _typed(described, [column[:number] for column in cells])
                raise
