# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rows: what every probe returns.

A row is a frozen dataclass, its fields are the columns of a table. The unit and the meaning of a
column are written where the column is declared, with :func:`column`, and reach every reader from
there: the terminal's header, ``datapackage.json``, the report's tooltips.

A field of type ``X | None`` may be unknown: the kernel has no such thing, or this source (a text
file, a filtered dump) does not say. Unknown is written as an empty cell, never as zero.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


# What the text of a column may be. A reading that is passed on keeps what the kernel says of itself
# (zones, symbols, modules, addresses) and mmscope's own words; the others are names somebody chose.
HOLDS = {
    *("kernel", "words"),
    *("comm", "command", "frame", "cgroup", "host", "file", "label", "profile", "stacks"),
}


def column(*, holds: str = "", help: str = "", unit: str = "", key: bool = False) -> Any:
    """
    Declare a column of a row.

    :param holds: of text, one of :data:`HOLDS`: whose words they are.

    :param help: what the value means, in one sentence.
    :param unit: ``pages`` (base pages), ``bytes``, ``blocks``, …
    :param key: the column is part of what names a row, so that two bundles can be joined on it.
    """
    return dataclasses.field(metadata={"help": help, "unit": unit, "key": key, "holds": holds})


@dataclass(frozen=True)
class Column:
    """A column as declared: what a table needs to know to write, print or read it."""

    name: str
    type: str  # a Table Schema type: integer, number, string, boolean
    nullable: bool
    unit: str
    help: str
    key: bool
    holds: str = ""  # of text: one of HOLDS; empty is not known, and may be anything


def columns(row_type: type) -> list[Column]:
    """
    The columns of a row type, in the order of declaration.

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
        metadata = field.metadata
        result.append(
            Column(
                field.name,
                TYPES[hint],
                nullable,
                metadata.get("unit", ""),
                metadata.get("help", ""),
                metadata.get("key", False),
                metadata.get("holds", ""),
            )
        )
    return result


def csv_line(values: Iterable[int | float | str | bool | None]) -> str:
    """
    A row as a line of CSV, with its end (RFC 4180, but for the end).

    Unknown, and a float that is no number, is an empty cell; an empty string is one in quotes. Of
    the standard library's writers none tells these apart before Python 3.12, and none there quotes
    a carriage return unless every line ends with one. CSV holds no NUL; a lone surrogate is left
    to the encoding's error handler.
    """
    return ",".join(map(_csv_cell, values)) + "\n"


def _csv_cell(value: int | float | str | bool | None) -> str:
    if type(value) is int:  # most cells of large tables
        return str(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value).replace("\0", "\\x00")
    return '"' + text.replace('"', '""') + '"' if not text or re.search(r'[",\r\n]', text) else text
