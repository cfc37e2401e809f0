# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tables and the headings of sections, declared beside their rows: names, titles, and what a reader
must know to compare two tables.

A table's name and columns are a public interface (``docs/bundle-format.md``). Everything else that
is said about it elsewhere, in titles, comparisons, ``docs/tables.md``, comes from here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypeVar, dataclass_transform

from mmscope.drgn.tables.rows import Row, column, event_column, table_row

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Inside:
    """
    A table's rows own memory of a class of the ledger.

    :ivar owner: the class.
    :ivar column: how much of it, in bytes or pages.
    :ivar where: a column and its values, of the rows that do; by default all.
    :ivar looks: a row is pages that look alike, not what made them.
    :ivar by: columns by which rows are added up, with spaces between; a comparison, which goes row
        by row, does without.
    """

    owner: str
    column: str
    where: tuple[str, tuple[str, ...]] | None = None
    looks: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """
    A table of a bundle.

    :ivar row: the dataclass of its rows, whose fields are the columns.
    :ivar empty: what it means that the table has no rows.
    :ivar left_out: of what a terminal shows: a column, and what its rows of 0 are called.
    :ivar measure: the column that a comparison of two machines is about; by default the first in
        bytes or pages.
    :ivar lasting: columns that name the same thing after another boot, where the key does not; the
        measure is added up by them.
    :ivar since_boot: SQL condition of the rows that are counted since boot.
    :ivar setting: the column that is a setting: what it changes is named before what came of it.
    :ivar memory: ``free``: it is not in use; ``mapped``: how it is mapped, or where it lies, which
        takes none; ``again``: the same memory as in another table, in coarser parts; ``all``: all
        memory, what is free among it.
    :ivar inside: the classes of the memory ledger whose owners its rows are.
    :ivar not_compared: why two of this table are not held against each other.
    :ivar since: the version of mmscope that it came with, if that is later than its section's.
    :ivar rows_since: by such a version, the rows that came with it: values of the first column of
        the key.
    """

    name: str
    title: str
    row: type
    empty: str = ""
    left_out: tuple[str, str] | None = None
    measure: str = ""
    lasting: tuple[str, ...] = ()
    since_boot: str = ""
    setting: str = ""
    memory: Literal["", "free", "mapped", "again", "all"] = ""
    inside: tuple[Inside, ...] = ()
    not_compared: str = ""
    since: str = ""
    rows_since: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass_transform(frozen_default=True, field_specifiers=(column, event_column))
def table(name: str, title: str, **more: Any) -> Callable[[type[Row]], type[Row]]:
    """
    Declare a row and the one table that has such rows.

    :param more: further fields of :class:`Table`.
    """

    def declare(plain: type[Row]) -> type[Row]:
        row = table_row(plain)
        row.__table__ = Table(name, title, row, **more)  # type: ignore[attr-defined]
        return row

    return declare


def table_of(row: type) -> Table:
    """The table that has such rows."""
    found: Table = vars(row)["__table__"]
    return found


def tables_of(*rows: type | Table) -> tuple[Table, ...]:
    """Tables, each named by its row, or itself where others have such rows, too."""
    return tuple(row if isinstance(row, Table) else table_of(row) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Heading:
    """
    A section as a report shows it.

    :ivar name: on the command line, and in table ``sections``.
    :ivar tables: all that it may have.
    :ivar kernel_stacks: its folded stacks are of the kernel alone, from their root on.
    :ivar since: the version of mmscope that it came with, if that is later than 0.1.0.
    :ivar intro: what the reader of a report should know first, in two sentences or more:
        paragraphs, in which ``*words*``, backticks and ``[links](https://…)`` mean what they do in
        Markdown.
    """

    name: str
    title: str
    intro: str
    tables: tuple[Table, ...] = ()
    kernel_stacks: bool = False
    since: str = ""


def declared(modules: Iterable[ModuleType], kind: type[Kind]) -> list[Kind]:
    """The objects of a kind that modules declare, each once."""
    return list({id(v): v for m in modules for v in vars(m).values() if type(v) is kind}.values())


def declared_tables(modules: Iterable[ModuleType]) -> list[Table]:
    """The tables that modules declare, each once."""
    values = (value for module in modules for value in vars(module).values())
    found = (
        table_of(value) if isinstance(value, type) and "__table__" in vars(value) else value
        for value in values
    )
    return list({id(table): table for table in found if type(table) is Table}.values())


RUNS = "it is run-length encoded: its rows are where runs begin"
MOMENT = "it is a state that changes from moment to moment"
SERIES = "it is a series or a growth of its own"
LENGTH = "it counts samples of recordings, which differ in length; profile_parts has shares"
