# SPDX-License-Identifier: LGPL-2.1-or-later
"""A section: tables that are read together, from a kernel's memory or from text files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import MakeConsumer, Memory
from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.rows import Row, columns
from mmscope.drgn.tables.table import Heading, Table, table_of, tables_of

PASS_SECONDS = 600.0  # the first section that needs the struct pages waits for the pass
TOP = 20  # rows of a table that is sorted by what matters

Against = tuple[int, int]  # another number, and by how much one may differ from it


@dataclass(frozen=True, slots=True)
class Filled:
    """A table with its rows."""

    table: Table
    rows: list[Any]
    title: str = ""  # where it is not all of the table

    def first(self, rows: int | None) -> "Filled":
        """Its first rows, which the title says if there are more; None: all of them."""
        if not rows or rows >= len(self.rows):
            return self
        title = f"{self.title or self.table.title}: the first {rows:,} of {len(self.rows):,}"
        return Filled(self.table, self.rows[:rows], title)


def to_look_at(tables: Sequence[Filled], top: int | None) -> list[Filled]:
    """
    Tables as a terminal shows them: without rows of 0, and of long ones the first rows.

    What was left out is said.
    """
    result = []
    for filled in tables:
        if filled.table.left_out:
            column, called = filled.table.left_out
            rows = [row for row in filled.rows if getattr(row, column)]
            if zeros := len(filled.rows) - len(rows):
                title = f"{filled.table.title}, {zeros:,} {called} left out"
                filled = replace(filled, rows=rows, title=title)
        result.append(filled.first(top))
    return [filled for filled in result if filled.rows] or result[:1]


@dataclass
class Found:
    """
    The tables of a section, and what keeps them from being whole.

    :ivar live: the kernel ran while its memory was read; None of text.
    """

    live: bool | None = None
    tables: list[Filled] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # each makes the section partial
    unlisted: list[str] = field(default_factory=list)  # what its tables are not meant to have
    remarks: list[str] = field(default_factory=list)  # what to know of a section that is whole
    impossible: list[Impossible] = field(default_factory=list)  # values that cannot be
    unreadable_bytes: int = 0
    # Name, title, unit and (stack, value) of what a flame graph is drawn from.
    folded: list[tuple[str, str, str, list[tuple[str, int]]]] = field(default_factory=list)

    def add(self, row: type[Row] | Table, rows: list[Row]) -> "Found":
        """Add the rows of a table, which is named by its row."""
        (table,) = tables_of(row)
        self.tables.append(Filled(table, rows))
        return self

    def differ(self, *words: str | None) -> None:
        """
        Say that readings differ: damage in a dump, to be expected of a kernel that runs.

        :param words: of each difference, if it is any.
        """
        assert self.live is not None
        for each in filter(None, words):
            if self.live:
                self.remarks.append(f"{each}: the kernel was running while it was read")
            else:
                self.notes.append(each)

    def hold_against(
        self,
        rows: Sequence[Any],
        column: str,
        other: Callable[[Any], Against | None],
        what: str,
    ) -> None:
        """
        Mark the numbers of a column that are not what was read elsewhere. Of a dump only: in a
        running kernel they move between two readings.

        :param other: of a row, what it is held against; None: nothing.
        :param what: that is, in words.
        """
        for number, row in enumerate(rows, 1):
            value, against = getattr(row, column), other(row)
            if value is None or against is None or abs(value - against[0]) <= against[1]:
                continue
            kind: type = type(row)
            ranges = next(c for c in columns(kind) if c.name == column).ranges
            named = getattr(row, next(c.name for c in columns(kind) if c.key)) if ranges else None
            table, words = table_of(kind).name, f"{value:,} is not {against[0]:,}, {what}"
            self.impossible.append(Impossible(table, number, column, named, str(value), words))

    @property
    def by_name(self) -> dict[str, list[Any]]:
        """The rows of each table."""
        return {filled.table.name: filled.rows for filled in self.tables}


def not_in_text(why: str) -> Callable[[Files], Found]:
    """Have a section be absent from text: its ``from_files``."""

    def from_files(files: Files) -> Found:
        raise Absent(why)

    return from_files


@dataclass(frozen=True, slots=True)
class Command:
    """
    A section as a command of drgn.

    :ivar about: what it prints, in words that go on from "Print".
    :ivar name: without the ``%``; by default the section's.
    :ivar top: rows of a table that it prints, by default; None: all.
    :ivar picks: the column whose value an argument of the command may be.
    """

    about: str
    name: str = ""
    top: int | None = None
    picks: str = ""


@dataclass(frozen=True, kw_only=True)
class Section(Heading):
    """
    A section of a reading.

    :ivar deadline: seconds.
    :ivar reads: what ``from_files`` reads, keys of ``prices.PRICES``. Of a live kernel
        ``from_memory`` reads ``prices.KCORE``.
    :ivar optional: about what many kernels do not have, or not switched on: that it is absent is
        worth a word only if asked for.
    :ivar consumer: what it would see of every struct page when another section passes over them.
    """

    command: Command
    from_memory: Callable[[Memory], Found]
    from_files: Callable[[Files], Found]
    deadline: float = 120.0
    reads: tuple[str, ...] = ()
    optional: bool = False
    consumer: MakeConsumer | None = None
