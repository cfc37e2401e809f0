# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rows: what every probe returns.

A row is a dataclass, its fields are the columns of a table. The unit and the meaning of a
column are written where the column is declared, with :func:`column`, and reach every reader from
there: the terminal's header, ``datapackage.json``, the report's tooltips.

A field of type ``X | None`` may be unknown: the kernel has no such thing, or this source (a text
file, a filtered dump) does not say. Unknown is written as an empty cell, never as zero.

Between which bounds a value can be is declared there, too (:mod:`bounds` holds rows against them).
"""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

Row = typing.TypeVar("Row")

TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}

# What the text of a column may be. A reading that is passed on keeps what the kernel says of itself
# (zones, symbols, modules, addresses) and mmscope's own words; others are names that people chose.
HOLDS = {
    *("kernel", "words"),
    *("comm", "command", "frame", "cgroup", "host", "file", "label", "profile", "stacks"),
    "source",  # a file of a kernel's or a module's source; of a path from / on, the folder
    "log",  # running text that anybody wrote: replaced whole
}

# What a value can be at least or at most: a number; a column of the same row, by name; or one of
# OF_MACHINE.
Bound = int | str
OF_MACHINE = ("total_pages", "total_bytes")
# What is on a machine, or is made of its page frames, is no more than it has.
OF_MEMORY = {
    "bytes": "total_bytes",
    **dict.fromkeys(("pages", "blocks", "slabs", "frames"), "total_pages"),
}
# Physical addresses have 56 bits at most (MAX_PHYSMEM_BITS of riscv; x86 and arm64 have 52), a page
# 4 KiB at least; a process has 2**56 bytes of addresses (5-level page tables).
MOST_BYTES, MOST_PAGES = 1 << 56, 1 << 44
# More than anything that is counted; a hundred of it are a number of 64 bits in none of its digits.
MOST = 1 << 60
LONGEST_NAME = 255  # characters; bytes that are not text take more than one each
# PID_MAX_LIMIT (include/linux/threads.h) of 64-bit kernels.
MOST_PIDS = 4 << 20
# Beyond any architecture's MAX_PAGE_ORDER.
MOST_ORDER = 30
Cell = int | float | str | bool | None
# What CSV has in quotes, or not at all.
_ODD_IN_CSV = re.compile(r'[",\r\n\0]').search


def column(
    *,
    holds: str = "",
    help: str = "",
    unit: str = "",
    key: bool = False,
    low: Bound | None = 0,
    high: Bound | tuple[Bound, ...] | None = "",
    ranges: Mapping[str, tuple[Bound, Bound]] | None = None,
    since: str = "",
    default: Any = dataclasses.MISSING,
) -> Any:
    """
    Declare a column of a row.

    :param holds: of text, one of :data:`HOLDS`: whose words they are.
    :param help: what the value means, in one sentence.
    :param unit: ``pages`` (base pages), ``bytes``, ``blocks``, …
    :param key: the column is part of what names a row, so that two bundles can be joined on it.
    :param low: what a number is at least; None where it may be negative. The name of a column: 0,
        and no less than that one. Of text: characters.
    :param high: what a number is at most; by default what its unit says (:data:`OF_MEMORY`), or
        :data:`MOST`. Addresses are not amounts, and say ``high=MOST_BYTES``. The name of a column:
        what the unit says, and no more than that one. Several: no more than each, whatever the
        unit says. Of text: characters.
    :param ranges: low and high of the rows that the row's first key names so, of numbers in text
        too; of ``nr_*`` all whose name begins so, unless a longer one fits.
    :param since: the version of mmscope that it came with, if that is later than its table's.
    :param default: None, of a new column at the end of a row that may be unknown: what makes rows
        without it stays as it is.
    """
    declared = {"help": help, "unit": unit, "key": key, "holds": holds, "since": since}
    declared |= {"low": low, "high": high, "ranges": dict(ranges or {})}
    return dataclasses.field(default=default, metadata=declared)


def event_column(**declared: Any) -> Any:
    """
    Declare a column of a row that counts what happened, states perhaps among that: no more than
    the machine had time for.
    """
    plain = column(**declared)
    return dataclasses.field(default=plain.default, metadata={**plain.metadata, "events": True})


@typing.dataclass_transform(frozen_default=True, field_specifiers=(column, event_column))
def table_row(declared: type[Row]) -> type[Row]:
    """Declare a row."""
    return dataclasses.dataclass(frozen=True, slots=True)(declared)


@dataclass(frozen=True)
class Column:
    """A column as declared: what a table needs to know to write, print or read it."""

    name: str
    type: str  # a Table Schema type: integer, number, string, boolean
    nullable: bool = True
    unit: str = ""
    help: str = ""
    key: bool = False
    holds: str = ""  # of text: one of HOLDS; empty is not known, and may be anything
    low: tuple[Bound, ...] = ()
    high: tuple[Bound, ...] = ()
    ranges: Mapping[str, tuple[Bound, Bound]] = dataclasses.field(default_factory=dict)
    # Of a declaration; a bundle does not have it.
    since: str = dataclasses.field(default="", compare=False)
    events: bool = dataclasses.field(default=False, compare=False)


@functools.cache
def columns(row_type: type) -> list[Column]:
    """
    The columns of a row type, in the order of declaration. The list is everybody's.

    :raises TypeError: a field has a type that a table cannot hold.
    """
    hints = typing.get_type_hints(row_type)
    result = []
    for field in dataclasses.fields(row_type):
        hint = hints[field.name]
        nullable = False
        if isinstance(hint, types.UnionType):
            plain = [arg for arg in hint.__args__ if arg is not type(None)]
            nullable = len(plain) < len(hint.__args__)
            hint = plain[0] if len(plain) == 1 else hint
        if hint not in TYPES:
            raise TypeError(f"{row_type.__name__}.{field.name}: a table cannot hold {hint}")
        low, high = _bounds(TYPES[hint], field.metadata)
        declared = {**field.metadata, "low": low, "high": high}
        result.append(Column(field.name, TYPES[hint], nullable, **declared))
    return result


def _bounds(kind: str, declared: Mapping[str, Any]) -> tuple[tuple[Bound, ...], tuple[Bound, ...]]:
    """The bounds of a column, those that go without saying included."""
    low, high = declared.get("low", 0), declared.get("high", "")
    if kind == "boolean":
        return (), ()
    if kind == "string":
        most = LONGEST_NAME if high == "" and declared.get("holds") == "comm" else high
        return (low,) if low else (), (most,) if most else ()
    usual = OF_MEMORY.get(declared.get("unit", ""), MOST)
    lows = (0, low) if isinstance(low, str) else (-MOST if low is None else low,)
    if isinstance(high, tuple):
        return lows, high
    if not isinstance(high, str):
        highs: tuple[Bound, ...] = (MOST if high is None else high,)
    else:  # the words of the first that does not hold are said
        highs = (high, usual) if usual == MOST else (usual, high)
    return lows, tuple(bound for bound in highs if bound != "")


def write_csv(file: IO[str], names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> int:
    """Write a table as CSV, a heading and each row as :func:`csv_line` has it; count the rows."""
    file.write(csv_line(names))
    count = 0
    for row in rows:
        file.write(csv_line(row))
        count += 1
    return count


def csv_line(values: Iterable[Cell]) -> str:
    """
    A row as a line of CSV (RFC 4180, except that it ends in a line feed).

    An unknown value, and a float that is not a number, is an empty cell. An empty string is an
    empty cell in quotes. Before Python 3.12, the standard library's writers cannot write both, and
    they quote a carriage return only if every line ends with one. CSV cannot hold NUL. A lone
    surrogate is left to the encoding's error handler.
    """
    return ",".join(map(_csv_cell, values)) + "\n"


def _csv_cell(value: Cell) -> str:
    if type(value) is int:  # most cells of large tables
        return str(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value).replace("\0", "\\x00")
    return '"' + text.replace('"', '""') + '"' if not text or _ODD_IN_CSV(text) else text
