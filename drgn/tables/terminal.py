# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rows on a terminal, and probes as scripts.

Numbers are right-aligned with thousands separators and their unit in the header. Text from the
kernel is anybody's: control bytes are shown, not sent.
"""

import dataclasses
import itertools
import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.display import size, size_name, time_text
from mmscope.drgn.tables.hostile_text import cut, echo, visible
from mmscope.drgn.tables.rows import Column, columns, write_csv

# So many rows are a table to look at, which is laid out as a whole.
MAX_ROWS = 10_000
# Of a cell, in characters: twice what the longest stack has.
MAX_CELL = 20_000
# The type of a column of texts that are numbers in the unit that suits each, for the eye alone.
AMOUNT = "amount"


# Wider than any table; rich takes no infinity.
ANY_WIDTH = 10_000


def format_cell(value: Any, column: Column) -> str:
    """A value as a terminal table shows it; unknown is ``-``."""
    if value is None:
        return "-"
    if column.type == "integer":
        if column.name.endswith("pfn"):
            return f"{value:#x}"  # an address
        if column.key and column.unit == "bytes":
            return size_name(value)
        # A name of a row (a pid, a handle) is not a quantity.
        return str(value) if column.key and not column.unit else f"{value:,}"
    if column.type == "number":
        # Something is not nothing.
        if 0 < abs(value) < 0.0005:
            return "<0.001" if value > 0 else ">-0.001"
        return f"{value:,.3f}"
    return visible(cut(str(value), MAX_CELL))


# Of what is taken for a second's part: three decimals of a second would hide its digits.
SHORT_TIME = 0.01


def _format_column(values: Sequence[Any], column: Column) -> tuple[Column, list[str]]:
    """
    A column's cells, and what it is then: bytes, and seconds of which some are short, get the unit
    that suits each.

    Not those that name a row: they are points in time.
    """
    amount: Callable[[Any], str] | None = None
    if (column.type, column.unit) == ("integer", "bytes"):
        amount = _size
    elif (column.type, column.unit) == ("number", "s") and any(
        value and abs(value) < SHORT_TIME for value in values
    ):
        amount = time_text
    if column.key or amount is None:
        return column, [format_cell(value, column) for value in values]
    shown = dataclasses.replace(column, type=AMOUNT, unit="")
    return shown, ["-" if value is None else amount(value) for value in values]


def _size(value: int) -> str:
    """Bytes as a person reads them; of what is small, all of them."""
    return f"{value:,} B" if abs(value) < 1 << 20 and value % 1024 else size(value)


def print_table(
    described: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    *,
    title: str = "",
    file: IO[str] | None = None,
    piped_width: int = ANY_WIDTH,
    marks: Iterable[Impossible] = (),
    most: int = MAX_ROWS,
) -> int:
    """
    Print rows as a table that fits its columns; returns how many there were.

    On a terminal, text wraps; numbers and addresses never do, names break at their underscores, and
    a wide table of a few rows is turned round. In a pipe a line is a row, however long. Of a table
    without rows there is one line, which says so.

    :param piped_width: in a pipe, above which width names break and a few rows are turned round.
    :param marks: values that cannot be: they have a ``!``.
    :param most: rows that are printed; that there are more is said on stderr.
    """
    file = sys.stdout if file is None else file
    piped = not file.isatty()
    width = piped_width if piped else shutil.get_terminal_size((100, 24)).columns
    left = iter(rows)
    values = [list(row) for row in itertools.islice(left, most)]
    more = next(left, None) is not None
    by_column = [
        _format_column([row[at] for row in values], column) for at, column in enumerate(described)
    ]
    at_name = {column.name: at for at, (column, _) in enumerate(by_column)}
    for mark in marks:
        if mark.row_number <= len(values):
            by_column[at_name[mark.column_name]][1][mark.row_number - 1] += " !"
    described = [column for column, _ in by_column]
    cells = [[texts[at] for _, texts in by_column] for at in range(len(values))]
    tables, needed = _laid_out(described, cells, width)
    # With a height, which counts for nothing here, rich takes the width on a dumb terminal, too.
    room = ANY_WIDTH if piped else max(width, needed)
    console = Console(file=file, width=room, height=24, highlight=False, markup=False)
    # Captured, since rich would take a closed pipe for a failure and end the program.
    with console.capture() as capture:
        # Not the table's own title, which a narrow table would fold.
        if title:
            console.print(Text(visible(title), "bold"), end="\n" if cells else ": ")
        for position, table in enumerate(tables):
            if position:
                console.print()
            console.print(table)
        if not tables:
            console.print("none")
    file.write(re.sub(r" +$", "", capture.get(), flags=re.MULTILINE))
    if more:
        echo(
            f"mmscope: these are the first {most:,} rows; --format csv and json have all of them",
            file=sys.stderr,
        )
    return len(cells)


def _laid_out(
    described: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> tuple[list[Table], int]:
    """The tables that rows become in so much room, and how much they need."""
    broken = width < _needed_width(described, cells, broken=False)
    needed = _needed_width(described, cells, broken=True) if broken else width
    if needed > width and len(cells) <= FEW_ROWS:
        parts = _parts(described, cells, width)
        needed = max((_turned_width(described, part) for part in parts), default=width)
        return [_turned(described, part) for part in parts], needed
    return [_table(described, cells, broken=broken)] if cells else [], needed


# A table that does not fit is turned round if it has no more rows than this.
FEW_ROWS = 6
# Text may be folded to this many characters, numbers never.
NARROW_TEXT = 12
# A number and its unit: -21,300,000/min, +1,023.9 MiB.
LONGEST_AMOUNT = 16
# Half an address cannot be copied.
ADDRESS = re.compile(r"0x[0-9a-f]+|-")


def _is_number(column: Column) -> bool:
    return column.type in ("integer", "number")


def _stays_whole(column: Column, texts: Sequence[str]) -> bool:
    """True if its cells must not be folded."""
    if column.type == AMOUNT:
        return all(len(text) <= LONGEST_AMOUNT for text in texts)
    return _is_number(column) or all(map(ADDRESS.fullmatch, texts))


def _widths(described: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    """The width, in characters, below which each column's cells would be broken."""
    widths = []
    for position, column in enumerate(described):
        texts = [row[position] for row in cells]
        longest = max(map(len, texts), default=0)
        widths.append(longest if _stays_whole(column, texts) else min(longest, NARROW_TEXT))
    return widths


def _needed_width(
    described: Sequence[Column], cells: Sequence[Sequence[str]], *, broken: bool
) -> int:
    """
    The width below which a table would break numbers or names.

    :param broken: names break at their underscores.
    """
    names = [
        max(map(len, _broken(c.name, 0).splitlines())) if broken else len(c.name) for c in described
    ]
    widths = _widths(described, cells)
    return sum(map(max, zip(names, widths, strict=True))) + 3 * (len(described) - 1)


def _broken(name: str, width: int) -> str:
    """A name of words that is no wider than this, or than its longest word."""
    words = re.findall(r"[^_]*_+|[^_]+", name)
    width = max(width, *map(len, words)) if words else width
    lines = [""]
    for word in words:
        if len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


def _turned(described: Sequence[Column], cells: Sequence[Sequence[str]]) -> Table:
    """A table with a line for each column."""
    table = Table(
        box=None,
        show_header=False,
        pad_edge=False,
    )
    table.add_column(style="bold", no_wrap=True)
    for _ in cells:
        table.add_column(justify="right", overflow="fold")
    for position, column in enumerate(described):
        table.add_row(_turned_name(column), *(Text(row[position]) for row in cells))
    return table


def _parts(
    described: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> list[Sequence[Sequence[str]]]:
    """The rows in parts, each of as many as a turned table has room for, or of one."""
    parts: list[Sequence[Sequence[str]]] = []
    left = cells
    while left:
        fits = (n for n in range(len(left), 1, -1) if _turned_width(described, left[:n]) <= width)
        number = next(fits, 1)
        parts.append(left[:number])
        left = left[number:]
    return parts


def _turned_name(column: Column) -> Text:
    """The first cell of a line of a turned table."""
    name = Text(visible(column.name))
    if column.unit and column.unit not in column.name:
        name.append(f" ({visible(column.unit)})", "dim")
    return name


def _turned_width(described: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    """The width below which a turned table would break numbers or names."""
    names = max(len(_turned_name(column)) for column in described)
    return names + sum(2 + max(_widths(described, [row])) for row in cells)


def _table(described: Sequence[Column], cells: Sequence[Sequence[str]], *, broken: bool) -> Table:
    """
    A table of text.

    :param broken: names that are wider than their column break at their underscores.
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    widths = _widths(described, cells)
    for position, column in enumerate(described):
        name = visible(column.name)
        header = Text(_broken(name, widths[position]) if broken else name)
        if column.unit and column.unit not in column.name:
            header.append(f"\n{visible(column.unit)}", "dim")
        if _is_number(column):
            table.add_column(header, justify="right", no_wrap=True)
        else:
            whole = _stays_whole(column, [row[position] for row in cells])
            side: Literal["left", "right"] = "right" if column.type == AMOUNT else "left"
            table.add_column(header, justify=side, overflow="fold", no_wrap=whole)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def print_rows(
    described: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    *,
    form: str = "table",
    title: str = "",
    file: IO[str] | None = None,
    piped_width: int = ANY_WIDTH,
    marks: Iterable[Impossible] = (),
    most: int = MAX_ROWS,
) -> int:
    """
    Print rows as a ``table`` to look at, or as ``csv`` or ``json`` (one array) for a program.

    :param piped_width, marks, most: of a table, as :func:`print_table` has them.
    """
    file = sys.stdout if file is None else file
    if form == "table":
        return print_table(
            described,
            rows,
            title=title,
            file=file,
            piped_width=piped_width,
            marks=marks,
            most=most,
        )
    names = [c.name for c in described]
    if form == "csv":
        if file.isatty():
            rows = ([visible(v) if isinstance(v, str) else v for v in row] for row in rows)
        return write_csv(file, names, rows)
    count = 0
    file.write("[")
    for count, row in enumerate(rows, 1):
        file.write(",\n " if count > 1 else "\n ")
        # JSON has no NaN; it is unknown.
        finite = (None if isinstance(v, float) and not math.isfinite(v) else v for v in row)
        file.write(json.dumps(dict(zip(names, finite, strict=True))))
    file.write("\n]\n")
    return count


def print_prose(text: str, file: IO[str] | None = None) -> None:
    """A sentence: on a terminal as wide as that is, between words; in a pipe it is one line."""
    file = file or sys.stdout
    text = visible(text)
    lines = [text]
    if file.isatty():
        width = shutil.get_terminal_size((100, 24)).columns
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    echo(*lines, sep="\n", file=file)


def print_dataclasses(row_type: type, rows: Iterable[Any], *, title: str = "") -> int:
    """Print a probe's rows as a table."""
    described = columns(row_type)
    names = [c.name for c in described]
    return print_table(described, ([getattr(row, n) for n in names] for row in rows), title=title)
