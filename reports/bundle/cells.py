# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The cells of a bundle's CSV files: text that is an integer, a number, a string or a boolean.

Costs a match for each column of thousands of rows; a match for each cell where something is odd.

Cannot know: whether a value can be, which ``bounds`` says.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from mmscope.drgn.tables.rows import Column


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
