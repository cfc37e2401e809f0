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
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Literal

from rich import box
from rich.console import Console
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.display import WORD, folded, size, size_name, time_text
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


def _print_table(
    described: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    title: str,
    file: IO[str],
    piped_width: int,
    marks: Iterable[Impossible],
    most: int,
) -> int:
    """
    Print rows as a table that fits its columns; see :func:`print_rows`.

    On a terminal, text wraps, and what would take many lines stands below its row; numbers and
    addresses never wrap, names break between their words, and a wide table of a few rows is turned
    round. In a pipe a line is a row, however long. Of a table without rows there is one line, which
    says so.
    """
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
    laid_out = _laid_out(described, cells, width, piped=piped)
    # With a height, which counts for nothing here, rich takes the width on a dumb terminal, too.
    console = Console(
        file=file,
        width=max(width, laid_out.needed),
        height=24,
        highlight=False,
        markup=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )
    # Captured, since rich would take a closed pipe for a failure and end the program.
    with console.capture() as capture:
        # Not the table's own title, which a narrow table would fold.
        if title:
            lines = [visible(title)] if piped else textwrap.wrap(visible(title), width)
            console.print(Text("\n".join(lines), "bold"), end="\n" if cells else ": ")
        for position, table in enumerate(laid_out.tables):
            if position:
                console.print()
            if laid_out.below:
                _print_with_below(console, table, laid_out.below)
            else:
                console.print(table)
        if not laid_out.tables:
            console.print("none")
        if laid_out.dropped:
            console.print(Text("\n".join(_left_out(laid_out.dropped, width)), "dim"))
    file.write(re.sub(r" +$", "", capture.get(), flags=re.MULTILINE))
    if more:
        echo(
            f"mmscope: these are the first {most:,} rows; --format csv and json have all of them",
            file=sys.stderr,
        )
    return len(cells)


def _print_with_below(console: Console, table: Table, below: Sequence[Sequence[Text]]) -> None:
    """Print a table, and below each of its rows the lines that belong to it."""
    lines = console.render_lines(table, pad=False, new_lines=True)
    heights = [
        max(str(cell).count("\n") + 1 for cell in row)
        for row in zip(*(column.cells for column in table.columns), strict=True)
    ]
    at = len(lines) - sum(heights)
    console.print(Segments(itertools.chain(*lines[:at])), end="")
    for height, texts in zip(heights, below, strict=True):
        console.print(Segments(itertools.chain(*lines[at : at + height])), end="")
        at += height
        for text in texts:
            console.print(text, soft_wrap=True)


def _left_out(dropped: Sequence[Column], width: int) -> list[str]:
    """Lines that name the columns that there was no room for."""
    names = ", ".join(visible(column.name) for column in dropped)
    words = f"No room for {names}: --format csv and json have all."
    return textwrap.wrap(words, width, break_on_hyphens=False)


@dataclasses.dataclass(frozen=True)
class _LaidOut:
    """
    Rows as tables.

    :ivar needed: their width, which is more than there is room for only where they have a value
        or a name that is. :ivar dropped: columns that they lack. :ivar below: of each row of a
        single table, the lines that stand below it.
    """

    tables: Sequence[Table]
    needed: int
    dropped: Sequence[Column] = ()
    below: Sequence[Sequence[Text]] = ()


def _laid_out(
    described: Sequence[Column], cells: Sequence[Sequence[str]], width: int, *, piped: bool
) -> _LaidOut:
    """The tables that rows become in so much room: without columns, or turned round."""
    if not cells:
        return _LaidOut((), width)
    if not piped and (long := _long_texts(described, cells, width)):
        rest = [at for at in range(len(described)) if at not in long]
        laid_out = _laid_out(
            [described[at] for at in rest],
            [[row[at] for at in rest] for row in cells],
            width,
            piped=False,
        )
        if all(table.show_header for table in laid_out.tables):  # none of them is turned
            below = [_below([(described[at], row[at]) for at in long], width) for row in cells]
            return dataclasses.replace(laid_out, below=below)
    widths = _widths(described, cells)
    # In a pipe no text is folded.
    room = ANY_WIDTH if piped else width
    if _needed(_name_widths(described, broken=False), widths) <= width:
        return _LaidOut([_table(described, cells, widths, room, broken=False)], room)
    names = _name_widths(described, broken=True)
    needed = _needed(names, widths)
    if needed <= width or (piped and len(cells) > FEW_ROWS):
        room = max(room, needed)
        return _LaidOut([_table(described, cells, widths, room, broken=True)], room)
    if len(cells) > FEW_ROWS:
        least = list(map(max, names, widths))
        kept = _kept(described, cells, least, width)
        shown = [described[at] for at in kept]
        lost = sum(map(_says, described, zip(*cells, strict=True))) > 3 * sum(
            map(_is_amount, shown)
        )
        if kept and not (lost and len(cells) <= MANY_ROWS):
            cells = [[row[at] for at in kept] for row in cells]
            table = _table(shown, cells, [widths[at] for at in kept], width, broken=True)
            dropped = [column for at, column in enumerate(described) if at not in kept]
            return _LaidOut([table], width, dropped)
    parts = _parts(described, cells, width)
    needed = max(_turned_width(described, part) for part in parts)
    return _LaidOut([_turned(described, part, room) for part in parts], max(room, needed))


def _long_texts(
    described: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> list[int]:
    """Places of the columns of text that would fill many lines of a narrow column."""
    long: list[int] = []
    while True:
        kept = [at for at in range(len(described)) if at not in long]
        shown = [described[at] for at in kept]
        rows = [[row[at] for at in kept] for row in cells]
        least = list(map(max, _name_widths(shown, broken=True), _widths(shown, rows)))
        room = _shared(least, rows, width)
        fits = sum(least) + GAP * (len(least) - 1) <= width
        # The first column says what a row is.
        texts = [
            (max(len(row[at]) for row in rows), kept[at])
            for at, column in enumerate(shown)
            if at and not _is_amount(column)
            if (
                any(_many_lines(row[at], room[at]) for row in rows)
                if fits
                else any(len(row[at]) > LONG_TEXT for row in rows)
            )
        ]
        if not texts:
            return sorted(long)
        long.append(max(texts)[1])


def _many_lines(text: str, width: int) -> bool:
    """True if a text takes more lines of so many characters than one reads in a table."""
    if len(text) <= width:
        return False
    return len(text) > width * MOST_LINES or folded(text, width).count("\n") >= MOST_LINES


def _below(texts: Iterable[tuple[Column, str]], width: int) -> list[Text]:
    """Lines below a row, a column's text after its name, indented."""
    lines = []
    for column, text in texts:
        if text in ("", "-"):
            continue
        name = f"{visible(column.name)}:"
        first, *more = folded(f"{name} {text}", width - len(INDENT) - 2).split("\n")
        lines.append(Text.assemble(INDENT, (first[: len(name)], "dim"), first[len(name) :]))
        lines += [Text(f"{INDENT}  {line}") for line in more]
    return lines


def _says(column: Column, texts: Sequence[str]) -> bool:
    """True of a quantity that is not the same everywhere."""
    return _is_amount(column) and len(set(texts)) > 1


def _kept(
    described: Sequence[Column],
    cells: Sequence[Sequence[str]],
    least: Sequence[int],
    width: int,
) -> list[int]:
    """Places of the columns that there is room for, the most telling first; none if too few."""
    droppable = _droppable(described, cells)
    kept = [at for at in range(len(described)) if at not in droppable]
    room = width + GAP - sum(least[at] + GAP for at in kept)
    if room < 0:
        return []
    for at in reversed(droppable):
        if least[at] + GAP <= room:
            room -= least[at] + GAP
            kept.append(at)
    return sorted(kept)


def _droppable(described: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    """
    Places of the columns that a table can do without, in the order in which they go.

    First those that say the same, or nothing, in every row, then addresses; then numbers, the last
    one first, but not the first of them, which are what the table is about; then text. What
    distinguishes rows stays.
    """
    texts = [[row[at] for row in cells] for at in range(len(described))]
    others = [at for at, column in enumerate(described) if not column.key]
    empty = [at for at in others if set(texts[at]) <= {"-", "", "0", "0 B"}]
    same = [at for at in others if len(set(texts[at])) == 1]
    addresses = [at for at in range(len(described)) if all(map(ADDRESS.fullmatch, texts[at]))]
    numbers = [at for at in others if _is_amount(described[at])]
    text = [at for at in others if at not in (*numbers, *addresses)]
    named = [texts[at] for at in text] + [
        texts[at] for at, c in enumerate(described) if c.key and at not in addresses
    ]
    if len(set(zip(*named, strict=True))) < len(cells):
        addresses = [at for at in addresses if at in others]
    first, last = numbers[1:MEASURES], numbers[MEASURES:]
    order = [*empty, *same, *addresses, *last[::-1], *text[::-1], *first[::-1]]
    return list(dict.fromkeys(order))


# A table that does not fit is turned round if it has no more rows than this.
FEW_ROWS = 6
# So is one that would lose two thirds of its numbers, if it has no more rows than this.
MANY_ROWS = 24
# Text is folded to so many characters, or to its longest word; numbers never.
NARROW_TEXT = 12
# A word that is longer than this may break at its marks: a path, an option of the kernel's.
WHOLE_WORD = 28
# A word that is longer than this is folded: a digest, a stranger's name.
LONGEST_WORD = 40
# Text that takes more lines than this in its column stands below its row.
MOST_LINES = 3
# So does one of so many characters that the other columns leave no room for.
LONG_TEXT = 40
INDENT = "    "
# Numbers that a table is about: the first of it.
MEASURES = 3
# A number and its unit: -21,300,000/min, +1,023.9 MiB.
LONGEST_AMOUNT = 16
# Half an address cannot be copied.
ADDRESS = re.compile(r"0x[0-9a-f]+|-")


def _is_number(column: Column) -> bool:
    return column.type in ("integer", "number")


def _is_amount(column: Column) -> bool:
    return _is_number(column) or column.type == AMOUNT


def _stays_whole(column: Column, texts: Sequence[str]) -> bool:
    """True if its cells must not be folded."""
    if column.type == AMOUNT:
        return all(len(text) <= LONGEST_AMOUNT for text in texts)
    return _is_number(column) or all(map(ADDRESS.fullmatch, texts))


def _least_width(texts: Sequence[str]) -> int:
    """The width to which a column of text can be folded."""
    longest = max(map(len, texts), default=0)
    if longest <= NARROW_TEXT:
        return longest
    words = (
        len(word)
        for text in texts
        for whole in text.split()
        for word in ([whole] if len(whole) <= WHOLE_WORD else WORD.findall(whole))
    )
    return max(NARROW_TEXT, min(max(words, default=0), LONGEST_WORD))


def _widths(described: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    """The width, in characters, below which each column's cells would be broken."""
    widths = []
    for position, column in enumerate(described):
        texts = [row[position] for row in cells]
        whole = _stays_whole(column, texts)
        widths.append(max(map(len, texts), default=0) if whole else _least_width(texts))
    return widths


def _name_widths(described: Sequence[Column], *, broken: bool) -> list[int]:
    """
    The width of each column's header.

    :param broken: names break between their words.
    """
    return [
        max(
            len(_unit(column)),
            *map(len, _broken(name, 0).splitlines() if broken else [name]),
        )
        for column, name in ((each, visible(each.name)) for each in described)
    ]


def _unit(column: Column) -> str:
    """A column's unit where its name does not say it; both may be a stranger's."""
    said = {"%": "percent"}.get(column.unit, column.unit) in column.name
    return "" if said else visible(column.unit)


def _needed(names: Sequence[int], widths: Sequence[int]) -> int:
    """The width below which a table would break numbers, words or names."""
    return sum(map(max, names, widths)) + GAP * (len(names) - 1)


# Between two columns, and between two records that stand side by side.
GAP, RECORD_GAP = 3, 2


def _broken(name: str, width: int) -> str:
    """A name of words that is no wider than this, or than its longest word."""
    words = re.findall(r"[^_ ]*[_ ]+|[^_ ]+", name)
    width = max(width, *map(len, words)) if words else width
    lines = [""]
    for word in words:
        if len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip(" ") for line in lines)


def _turned(described: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> Table:
    """A table with a line for each column."""
    table = Table(
        box=None,
        show_header=False,
        pad_edge=False,
    )
    table.add_column(style="bold", no_wrap=True)
    for _ in cells:
        table.add_column(justify="right", no_wrap=True)
    names = max(len(_turned_name(column)) for column in described)
    each = (width - names) // len(cells) - RECORD_GAP
    for position, column in enumerate(described):
        room = max(each, *(max(_widths([column], [[row[position]]])) for row in cells))
        lines = (folded(row[position], room) for row in cells)
        table.add_row(_turned_name(column), *map(Text, lines))
    return table


def _parts(
    described: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> list[Sequence[Sequence[str]]]:
    """The rows in parts, each of as many as a turned table has room for, or of one."""
    parts: list[Sequence[Sequence[str]]] = []
    left = cells
    while left:
        fits = (
            n
            for n in range(min(len(left), FEW_ROWS), 1, -1)
            if _turned_width(described, left[:n]) <= width
        )
        number = next(fits, 1)
        parts.append(left[:number])
        left = left[number:]
    return parts


def _turned_name(column: Column) -> Text:
    """The first cell of a line of a turned table."""
    name = Text(visible(column.name))
    if unit := _unit(column):
        name.append(f" ({unit})", "dim")
    return name


def _turned_width(described: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    """The width below which a turned table would break numbers or names."""
    names = max(len(_turned_name(column)) for column in described)
    # Each is as wide as the widest, since the room is shared equally.
    return names + len(cells) * (RECORD_GAP + max(max(_widths(described, [row])) for row in cells))


def _table(
    described: Sequence[Column],
    cells: Sequence[Sequence[str]],
    least: Sequence[int],
    width: int,
    *,
    broken: bool,
) -> Table:
    """
    A table of text in so much room.

    :param least: width of each column, below which its cells would be broken.
    :param broken: names that are wider than their column break between their words.
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    names = _name_widths(described, broken=broken)
    widths = _shared(list(map(max, names, least)), cells, width)
    for position, column in enumerate(described):
        name = visible(column.name)
        header = Text(_broken(name, least[position]) if broken else name)
        if unit := _unit(column):
            header.append(f"\n{unit}", "dim")
        side: Literal["left", "right"] = "right" if _is_amount(column) else "left"
        table.add_column(header, justify=side, no_wrap=True)
    for row in cells:
        table.add_row(*(Text(folded(text, room)) for text, room in zip(row, widths, strict=True)))
    return table


def _shared(least: list[int], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """The width of each column: what it needs, and of the rest of the room what text can use."""
    widths, places = list(least), range(len(least))
    full = [max(len(row[at]) for row in cells) for at in places]
    room = width - sum(least) - GAP * (len(least) - 1)
    short = sorted((at for at in places if full[at] > least[at]), key=full.__getitem__)
    for number, at in enumerate(short):
        more = min(full[at] - least[at], room // (len(short) - number))
        widths[at] += more
        room -= more
    return widths


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
    Print rows as a ``table`` to look at, or as ``csv`` or ``json`` (one array) for a program;
    returns how many there were.

    :param piped_width: of a table in a pipe, above which width names break and a few rows are
        turned round.
    :param marks: values of a table that cannot be: they have a ``!``.
    :param most: rows of a table that are printed; that there are more is said on stderr.
    """
    file = sys.stdout if file is None else file
    if form == "table":
        return _print_table(described, rows, title, file, piped_width, marks, most)
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


def print_prose(text: str, file: IO[str] | None = None, indent: int = 0) -> None:
    """
    A sentence: on a terminal as wide as that is, between words; in a pipe it is one line.

    :param indent: of the lines after the first.
    """
    file = file or sys.stdout
    text = visible(text)
    lines = [text]
    if file.isatty():
        width = shutil.get_terminal_size((100, 24)).columns
        lines = textwrap.wrap(
            text,
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    echo(*lines, sep="\n", file=file)


def print_dataclasses(row_type: type, rows: Iterable[Any], *, title: str = "") -> int:
    """Print a probe's rows as a table."""
    described = columns(row_type)
    names = [c.name for c in described]
    return print_rows(described, ([getattr(row, n) for n in names] for row in rows), title=title)
