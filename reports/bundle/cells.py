# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The cells of a bundle's CSV files: text that is an integer, a number, a string or a boolean.

Cannot know: whether a value is possible, which ``bounds`` says.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from mmscope.drgn.tables.rows import Column

# Of one cell: more than any stack or message has. The csv module's own limit is 128 KiB.
MAX_CELL_CHARACTERS = 1 << 20
csv.field_size_limit(MAX_CELL_CHARACTERS)

Row = dict[str, Any]

# int() and float() take more than these (1_000, nan, digits of other scripts), which is refused.
# A number of more than 64 bits is read, to be marked.
PATTERNS = {
    "integer": re.compile(r"-?[0-9]{1,40}"),
    "number": re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?"),
    "string": re.compile(r".*", re.DOTALL),
    "boolean": re.compile(r"true|false"),
}
# Many texts at once, a line each.
LINES = {
    "integer": re.compile(r"(?:-?[0-9]{1,40}+\n)*+"),
    "number": re.compile(r"(?:-?[0-9]++(?:\.[0-9]++)?(?:e[-+]?[0-9]++)?\n)*+"),
}
READERS: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "number": float,
    "string": str,
    "boolean": {"true": True, "false": False}.__getitem__,
}


class Rows(Sequence[Row]):
    """
    Rows that are held as columns; dictionaries are made when rows are asked for.

    :ivar columns: the cells of each column, by row.
    """

    def __init__(self, columns: dict[str, Sequence[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[Row]:
        names = list(self.columns)
        for row in zip(*self.columns.values(), strict=True):
            yield dict(zip(names, row, strict=True))

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
    The cells of some columns, by row.

    :raises KeyError: a row has no such column.
    """
    if isinstance(rows, Rows):
        return [rows.columns[name] for name in names]
    return [[row[name] for row in rows] for name in names]


def values_of(column: Column, texts: Sequence[str]) -> Sequence[Any]:
    """
    The values of a column's cells.

    :raises ValueError: a cell is not what the column declares, as :func:`value_of` says of it.
    """
    if column.type == "string":
        return [text or None for text in texts] if column.nullable and "" in texts else texts
    # Distinct texts are looked at, all at once: most columns repeat few values.
    distinct = set(texts)
    values: dict[str, Any] = {}
    if column.nullable:
        distinct.discard("")
        values[""] = None
    lines = LINES.get(column.type)
    if lines and lines.fullmatch("\n".join([*distinct, ""])):
        if column.type == "integer" and len(distinct) == len(texts):
            return list(map(int, texts))
        values |= zip(distinct, map(READERS[column.type], distinct), strict=True)
        if column.type == "integer" or all(map(math.isfinite, filter(None, values.values()))):
            return list(map(values.__getitem__, texts))
    values |= ((text, value_of(column, text)) for text in distinct)
    return list(map(values.__getitem__, texts))


def value_of(column: Column, text: str) -> Any:
    """
    The value of a cell; an empty one is unknown, or an empty string where that cannot be.

    :raises ValueError: the cell is not what the column declares.
    """
    if not text and (column.nullable or column.type == "string"):
        return None if column.nullable else ""
    if not PATTERNS[column.type].fullmatch(text):
        raise ValueError(f"{column.name} holds {text[:40]!r}, which is no {column.type}")
    value = READERS[column.type](text)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{column.name} holds {text[:40]!r}, which is beyond any number")
    return value
