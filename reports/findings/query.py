# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Queries of findings, fitted to the tables and columns that a bundle has; the reason where one cannot
be asked.
"""

import functools
import re
from collections.abc import Iterable, Mapping

from mmscope.drgn.tables.bounds import Impossible
from mmscope.reports.bundle.views import views, with_stand_ins
from mmscope.reports.findings.question import Question, parts_of


def unanswerable(
    missing: Mapping[str, str],
    columns: Mapping[str, set[str]],
    question: Question,
    counts: Mapping[str, list[int]],
) -> str | None:
    """
    The reason why a question cannot be asked: something it needs is missing, or all unknown.

    :param missing, columns: as of ``database.Database``.
    :param counts: of each need that is there, how many rows and how many with a value.
    """
    for need in question.needs:
        table, column, condition = parts_of(need)
        if need not in counts:
            if why := missing.get(table):
                return f"table {table} cannot be used: {why}"
            if (there := columns.get(table)) and column not in there:
                why = missing.get(f"{table}.{column}")
                return f"no column {table}.{column} in this bundle" + (f" ({why})" if why else "")
            section = f"section {question.section}"
            why = missing.get(f"table {table}")
            if why is None and (fared := missing.get(section)):
                why = f"{section}: {fared}"
            return f"no table {table} in this bundle" + (f" ({why})" if why else "")
        rows, filled = counts[need]
        if condition and not rows:
            return f"{table} has no row where {condition}"
        if rows and not filled:
            return f"{need} is unknown in this bundle"
    return None


@functools.cache
def words_of(text: str) -> tuple[set[str], list[str]]:
    """The words of a query and of the views that it names, and what is quoted there."""
    for name, _, statement in reversed(views()):  # a view is made of those before it
        if re.search(rf"\b{name}\b", text):
            text += statement
    return set(re.findall(r"\w+", text)), re.findall(r"'([^']{3,})'", text)


def asked(question: Question) -> tuple[set[str], list[str]]:
    """The words of a question, among them all tables that it asks, and what is quoted there."""
    return words_of("\n".join((question.sql, *question.needs)))


def doubtful(marks: Iterable[Impossible], question: Question) -> Impossible | None:
    """The first value that cannot be of which a question would be answered."""
    words, quoted = asked(question)
    for mark in marks:
        if mark.table_name in words and mark.column_name in words:
            name = mark.row_name
            # Where each row is a number of its own, it is asked for by its name, or a part of that.
            if name is None or any(part.strip("%") in name for part in quoted):
                return mark
    return None


def query_of(columns: Mapping[str, set[str]], question: Question) -> str:
    """A question's SQL, with stand-ins for what a bundle lacks of its optional tables."""
    return with_stand_ins(columns, question.optional, question.sql)
