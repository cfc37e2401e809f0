# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The cells of a bundle's CSV files: text that is an integer, a number, a string or a boolean.

Costs one match for a thousand rows that are as their table's should be; else a match for each
column of them, and for each cell where something is odd. What has no quote is taken apart at its
commas, in a third of the time that the csv module takes.

Cannot know: whether a value can be, which ``bounds`` says.
"""

import csv
import functools
import io
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from mmscope.drgn.tables.bounds import Machine
from mmscope.drgn.tables.record import record
from mmscope.drgn.tables.rows import Bound, Column

# Of one cell, more than any stack or message has; the csv module's own limit is 128 KiB, DuckDB's
# for a line 2 MiB.
MAX_CELL_CHARACTERS = 1 << 20
csv.field_size_limit(MAX_CELL_CHARACTERS)
PIECE = 1 << 16
ROWS_AT_ONCE, BYTES_AT_ONCE = 4096, 4 << 20


Row = dict[str, Any]


class ByColumn(Sequence[Row]):
    """Rows that are held as columns, each made when it is asked for."""

    def __init__(self, columns: dict[str, Sequence[Any]]) -> None:
        self.columns = columns
        self._rows: list[Row] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[Row]:
        if self._rows is None:
            names = list(self.columns)
            cells = zip(*self.columns.values(), strict=True)
            self._rows = [dict(zip(names, row)) for row in cells]  # noqa: B905  # as many
        return iter(self._rows)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        return {name: cells[at] for name, cells in self.columns.items()}


def columns_of(rows: Sequence[Row], *names: str) -> list[Sequence[Any]]:
    """
    The cells of some columns, by row, without making rows that are held as columns.

    :raises KeyError: a row has no such column.
    """
    if isinstance(rows, ByColumn):
        return [rows.columns[name] for name in names]
    return [[row[name] for row in rows] for name in names]


@record
class Piece:
    """
    Some rows of a CSV file.

    :ivar plain: every cell is known to be what it must be.
    :ivar columns: takes them apart: the text of each column.
    """

    rows: int
    plain: bool
    columns: Callable[[], list[Sequence[str]]]


def read_pieces(
    raw: io.BufferedReader, described: Sequence[Column], machine: Machine | None = None
) -> Iterator[Piece]:
    """
    The rows of a CSV file, thousands at a time.

    :param machine: whose rows they should be, to see at once where nothing is odd with them.
    :raises ValueError, csv.Error, OSError: something is odd with these rows.
    """
    text = io.TextIOWrapper(raw, "utf-8", newline="")
    if next(csv.reader([text.readline()], strict=True), []) != [c.name for c in described]:
        raise ValueError("its columns are others")
    width, plain = len(described), None
    for number in itertools.count():
        if not (piece := text.read(PIECE)):
            return
        piece += "" if piece.endswith("\n") else text.readline()
        if machine and number == 1:  # to compile it takes longer than what it saves of one piece
            plain = plain_rows(described, machine)
        if plain and len(piece) <= MAX_CELL_CHARACTERS and plain.fullmatch(piece):
            taken_apart = functools.partial(_at_commas, piece, width)
            yield Piece(piece.count("\n"), True, taken_apart)
            continue
        columns = _without_quotes(piece, width)
        if columns is None:  # a quoted cell may end in another piece
            yield from _by_csv(piece, text, raw, width)
            return
        yield _taken_apart(columns)


def _taken_apart(columns: list[Sequence[str]]) -> Piece:
    return Piece(len(columns[0]), False, lambda: columns)


def _at_commas(text: str, width: int) -> list[Sequence[str]]:
    """The columns of whole lines that have so many cells each, and no quote."""
    cells = text.replace("\n", ",").split(",")
    cells.pop()
    return [cells[number::width] for number in range(width)]


def _without_quotes(text: str, width: int) -> list[Sequence[str]] | None:
    """The columns of whole lines of so many cells each; None where only csv can tell."""
    if '"' in text or "\r" in text or width < 2 or len(text) > MAX_CELL_CHARACTERS:
        return None
    # The ends of lines become cells of their own, each of which must stand behind so many others.
    cells = text.replace("\n", ",\n,").split(",")
    rows, step = text.count("\n"), width + 1
    if cells.pop() or len(cells) != rows * step or cells[width::step].count("\n") != rows:
        return None
    return [cells[number::step] for number in range(width)]


def _by_csv(
    piece: str, text: io.TextIOWrapper, raw: io.BufferedReader, width: int
) -> Iterator[Piece]:
    """The same of what was read last and all that follows, as the csv module reads it."""
    end = 0

    def pieces() -> Iterator[list[str]]:
        yield list(io.StringIO(piece, newline=""))
        # A row may have any number of lines, so that these have a bound, too.
        while lines := text.readlines(PIECE):
            if raw.tell() > end + 2 * BYTES_AT_ONCE:
                raise ValueError("its rows are long")
            yield lines

    reader = csv.reader(itertools.chain.from_iterable(pieces()), strict=True)
    more = True
    while more:
        lines: list[list[str]] = []
        # A stranger's row may be as long as a thousand of ours.
        end = raw.tell() + BYTES_AT_ONCE
        while more and len(lines) < ROWS_AT_ONCE and raw.tell() <= end:
            step = list(itertools.islice(reader, 32))
            lines += step
            more = bool(step)
        if set(map(len, lines)) - {width}:
            raise ValueError("a line has another number of cells")
        if lines:
            yield _taken_apart(list(zip(*lines, strict=True)))


def plain_rows(described: Sequence[Column], machine: Machine) -> re.Pattern[str] | None:
    """
    Matches lines of which every cell is what its column declares, and within its bounds, which
    digits tell: it may not match what is within them. None where a column is held against another.
    """
    cells = [_plain_cell(column, machine) for column in described]
    if None in cells or len(cells) < 2:
        return None
    return re.compile(f"(?:{','.join(filter(None, cells))}\n)*+")


def _plain_cell(column: Column, machine: Machine) -> str | None:
    """A pattern of cells that are surely within a column's bounds; None: none can say."""
    low = _limit(column.low, machine, max)
    high = _limit(column.high, machine, min)
    if low is None or high is None or column.ranges:
        return None
    if column.type == "boolean":
        if column.low or column.high:
            return None
        cell = "(?:true|false)"
    elif column.type == "string":
        most = high if column.high else MAX_CELL_CHARACTERS
        if not 0 <= low <= most <= MAX_CELL_CHARACTERS:
            return None
        cell = f'[^,"\r\n]{{{low},{most}}}+'
    else:
        # With a fraction a number is less than the next integer.
        fraction = 1 if column.type == "number" else 0
        above = _digits(high - fraction) if low <= 0 else None
        below = _digits(-low - fraction) if low < 0 else None
        if above is None:
            return None
        cell = f"(?:-{below}|{above})" if below else above
        if fraction:
            cell += r"(?:\.[0-9]++)?+(?:e-[0-9]{1,2}+)?+"
    return f"(?:{cell})?+" if column.nullable else cell


def _limit(bounds: Sequence[Bound], machine: Machine, nearest: Callable[..., int]) -> int | None:
    """The bound that counts, 0 if there is none; None if another column says it."""
    limits = [machine.most(bound) if isinstance(bound, str) else bound for bound in bounds]
    return None if None in limits else nearest(limits, default=0)


def _digits(most: int) -> str | None:
    """A pattern of integers that are 0 at least and surely no more than this."""
    if most < 10:
        return None if most < 0 else f"[0-{most}]"
    first, others = int(str(most)[0]), len(str(most)) - 1
    fewer = f"[0-9]{{1,{others}}}+"
    return fewer if first == 1 else f"(?:{fewer}|[0-{first - 1}][0-9]{{{others}}})"


def check_cells(column: Column, texts: Sequence[str]) -> None:
    """
    Whether the cells of a column are what it declares, as :func:`value_of` looks at each.

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


def values_of(column: Column, texts: Sequence[str]) -> Sequence[Any]:
    """What the cells of a column say, if they are whole."""
    some_unknown = column.nullable and "" in texts
    if column.type == "string":
        return [text or None for text in texts] if some_unknown else texts
    read = READERS[column.type]
    if some_unknown:
        return [read(text) if text else None for text in texts]
    return list(map(read, texts))


def value_of(column: Column, text: str) -> Any:
    """What a cell says; an empty one is unknown, or an empty string where that cannot be."""
    if not text and (column.nullable or column.type == "string"):
        return None if column.nullable else ""
    if not PATTERNS[column.type].fullmatch(text):
        raise ValueError(f"{column.name} holds {text[:40]!r}, which is no {column.type}")
    value = READERS[column.type](text)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{column.name} holds {text[:40]!r}, which is beyond any number")
    return value


# What may be beyond any number, and is looked at by itself.
ENDLESS = re.compile(r"e[-+]?[0-9]{3}|[0-9]{300}")
# A number beyond 64 bits is read, to be marked.
# int() and float() take more than these (1_000, nan, digits of other scripts), which is refused.
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
READERS: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "number": float,
    "string": str,
    "boolean": {"true": True, "false": False}.__getitem__,
}
