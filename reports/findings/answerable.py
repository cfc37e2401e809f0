# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Whether a bundle can answer a question: which tables, views and columns its query names, and what of
these lacks, is all unknown, or cannot be.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from mmscope.drgn.tables.bounds import Impossible
from mmscope.reports.bundle.database import views

NAME = r"[a-z][a-z0-9_]*"  # of a table or column, in SQL


class Known(Protocol):
    """What is known of a bundle before its rows are looked at: ``database.Database`` knows it."""

    missing: dict[str, str]
    impossible: list[Impossible]

    def columns(self, name: str) -> set[str]:
        """The columns of a table or view; empty if it does not exist."""


class Asked(Protocol):
    """What of a question decides whether it can be asked: ``findings.Question`` has it."""

    @property
    def section(self) -> str: ...
    @property
    def needs(self) -> tuple[str, ...]: ...
    @property
    def sql(self) -> str: ...
    @property
    def optional(self) -> Mapping[str, Sequence[str]]: ...


def named(questions: Iterable[Asked]) -> set[str]:
    """The words of their queries, and of the views that these name: all tables are among them."""
    names = {"kernel_features"}
    for question in questions:
        names.update(re.findall(NAME, " ".join((question.sql, *question.needs))))
    for view, _, _ in reversed(views()):
        if view in names:
            names |= named_in(view)
    return names


@functools.cache
def named_in(view: str) -> set[str]:
    """The words of a view, and of those that it names: all its tables are among them."""
    texts = {name: text for name, _, text in views()}
    names = set(re.findall(NAME, texts[view]))
    for name in reversed(texts):  # a view is made of those before it
        if name in names and name != view:
            names.update(re.findall(NAME, texts[name]))
    return names


def parts_of(need: str) -> tuple[str, str, str]:
    """Table, column and condition, empty if there is none, of ``table.column where condition``."""
    table, _, rest = need.partition(".")
    column, _, condition = rest.partition(" where ")
    return table, column, condition


def unanswerable(database: Known, question: Asked, counts: dict[str, list[int]]) -> str | None:
    """Why a question cannot be asked: something it needs is missing, or all unknown."""
    for need in question.needs:
        table, column, condition = parts_of(need)
        if need not in counts:
            if why := database.missing.get(table):
                return f"table {table} cannot be used: {why}"
            if (there := database.columns(table)) and column not in there:
                why = database.missing.get(f"{table}.{column}")
                return f"no column {table}.{column} in this bundle" + (f" ({why})" if why else "")
            section = f"section {question.section}"
            why = database.missing.get(f"table {table}")
            if why is None and (fared := database.missing.get(section)):
                why = f"{section}: {fared}"
            return f"no table {table} in this bundle" + (f" ({why})" if why else "")
        rows, filled = counts[need]
        if condition and not rows:
            return f"{table} has no row where {condition}"
        if rows and not filled:
            return f"{need} is unknown in this bundle"
    return None


def doubtful(database: Known, question: Asked) -> str | None:
    """A value that cannot be, if the question would be answered from its column."""
    for mark in database.impossible:
        if doubts(mark, question):
            return str(mark)
    return None


def doubts(mark: Impossible, question: Asked) -> bool:
    """True if a question would be answered from the column of a value that cannot be."""
    words, quoted = _asked(question.sql, question.needs)
    if mark.table_name not in words or mark.column_name not in words:
        return False
    # Where each row is a number of its own, it is asked for by its name, or a part of that.
    return mark.row_name is None or any(part.strip("%") in mark.row_name for part in quoted)


@functools.cache
def _asked(sql: str, needs: tuple[str, ...]) -> tuple[set[str], list[str]]:
    """The words of a query and of the views that it names, and what is quoted there."""
    text = "\n".join((sql, *needs))
    for name, _, statement in reversed(views()):  # a view is made of those before it
        if re.search(rf"\b{name}\b", text):
            text += statement
    return set(re.findall(r"\w+", text)), re.findall(r"'([^']{3,})'", text)


def query_of(database: Known, question: Asked) -> str:
    """
    A question's SQL, with an empty table in place of each optional one that is not there, and
    unknown values in place of columns that an older bundle lacks.
    """
    stand_ins = []
    for table, columns in question.optional.items():
        there = database.columns(table)
        nothing = ", ".join(f"null::varchar as {c}" for c in columns if c not in there)
        if not there:
            stand_ins.append(f"{table} as (select {nothing} limit 0)")
        elif nothing:
            stand_ins.append(f"{table} as (select *, {nothing} from main.{table})")
    if not stand_ins:
        return question.sql
    # A query may begin with such a list of its own.
    rest = re.sub(r"^\s*with\s", ", ", question.sql)
    return f"with {', '.join(stand_ins)} {rest}"
