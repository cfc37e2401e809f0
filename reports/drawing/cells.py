# SPDX-License-Identifier: LGPL-2.1-or-later
"""How one value of a table is shown: its text, what is exact about it, and what it sorts by."""

from mmscope.drgn.tables import display
from mmscope.drgn.tables.record import record
from mmscope.drgn.tables.rows import Column

# Units that a value is shown with, and its column need not say.
OWN_UNITS = {"bytes", "ns"}
# Names of things, though they are numbers: no thousands separators.
NAMES = {"node", "cpu", "order", "pid", "tgid", "handle"}


@record
class Cell:
    """One value of a table as it is shown."""

    text: str
    title: str = ""
    sort: int | float | None = None  # where the text does not have the number
    impossible: str = ""  # why the value cannot be


def cell(value: object, column: Column, page_size: int | None) -> Cell:
    """A value of a table as it is shown."""
    if value is None:
        return Cell("", "not known")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int) and is_name(column):
        return Cell(f"{value:#x}" if column.name.endswith("pfn") else str(value), sort=value)
    if isinstance(value, int) and column.unit == "bytes":
        return Cell(display.size(value), f"{value:,} bytes", value)
    if isinstance(value, int) and column.unit == "pages" and page_size is not None:
        return Cell(f"{value:,}", display.size(value * page_size))
    if isinstance(value, int) and column.unit == "ns":
        return Cell(display.time_text(value / 1e9), f"{value:,} ns", value)
    if isinstance(value, int | float):
        if column.type == "number" and "share" in column.name.split("_"):
            return Cell(display.percent(value), display.count(value), value)
        return Cell(display.count(value))
    if column.name == "stack":
        return Cell(display.cut(leaf_first(str(value))))
    return Cell(display.cut(str(value)))


def heading(column: Column) -> str:
    """A column's name as words, without the unit that its values are shown with."""
    name = column.name
    if column.unit in OWN_UNITS and column.type == "integer":
        name = name.removesuffix(f"_{column.unit}")
    return name.replace("_", " ")


def is_name(column: Column) -> bool:
    """Whether a number is something's name (a CPU, a page frame) and not an amount."""
    if column.unit or column.type != "integer":
        return False
    return column.key or column.name in NAMES or column.name.endswith("pfn")


def leaf_first(stack: str) -> str:
    """
    A folded stack as it is read from the leaf, ``leaf ← caller``: who took the memory stands first,
    a line that is cut loses the system call's end, and lines break between frames.
    """
    return " ← ".join(reversed(stack.split(";")))
