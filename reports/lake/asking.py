# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Asks all bundles of a batch every question, each in one query.

What cannot be asked of a bundle is not asked of it, for the reason that the bundle alone would
give: a bundle of its shape, without rows, is asked. Where a number of one bundle is too large to
compute with, so that a query fails, it is asked again of halves, down to that bundle.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.database import Database, failed, in_a_line
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.findings.findings import (
    Question,
    doubtful,
    named,
    parts_of,
    query_of,
    unanswerable,
)
from mmscope.reports.findings.kernel_said import Kernel
from mmscope.reports.lake.batch import Batch
from mmscope.reports.lake.keyed import HOSTS, NUMBER, keyed

Row = dict[str, Any]
# Gives the rows of a question for bundles of these numbers, by number.
Engine = Callable[[Question, Sequence[int]], list[tuple[int, Row]]]
BAD_VALUES = (duckdb.OutOfRangeException, duckdb.ConversionException)


class QueryFailed(Exception):
    """
    Another engine than DuckDB did not answer.

    :ivar too_large: for a value that is too large to compute with.
    """

    def __init__(self, why: str, too_large: bool = False) -> None:
        super().__init__(why)
        self.too_large = too_large


@dataclass
class Answer:
    """
    What one question gave.

    :ivar asked: numbers of the bundles that it was asked of.
    :ivar rows: by number of the bundle, in the order in which its query gives them.
    :ivar refused: number of a bundle that it could not be asked of, and the reason.
    """

    question: Question
    asked: list[int]
    rows: dict[int, list[Row]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


def duckdb_engine(batch: Batch) -> Engine:
    """DuckDB over the tables of a batch."""

    def rows(question: Question, numbers: Sequence[int]) -> list[tuple[int, Row]]:
        connection = batch.connection
        connection.execute(
            f"create or replace table {HOSTS} as select unnest($numbers::bigint[]) as {NUMBER}",
            {"numbers": list(numbers)},
        )
        result = connection.execute(keyed(question))
        names = [column[0] for column in result.description or ()][2:]
        found = sorted(result.fetchall(), key=lambda row: row[:2])
        return [(row[0], dict(zip(names, row[2:], strict=True))) for row in found]

    return rows


def answers(
    batch: Batch, questions: Sequence[Question], engine: Engine | None = None
) -> Iterator[Answer]:
    """Ask a batch each question."""
    engine = engine or duckdb_engine(batch)
    fit = Fitness(batch, questions)
    for question in questions:
        answer = Answer(question, [])
        wanted = []
        for number in range(len(batch.bundles)):
            if why := fit.unfit(question, number):
                answer.refused[number] = why
            else:
                answer.asked.append(number)
                if fit.has_rows(question.needs[0], number):
                    wanted.append(number)
        _ask(engine, answer, wanted)
        yield answer


def _ask(engine: Engine, answer: Answer, numbers: Sequence[int]) -> None:
    if not numbers:
        return
    try:
        for number, row in engine(answer.question, numbers):
            answer.rows.setdefault(number, []).append(row)
    except (duckdb.Error, QueryFailed) as error:
        too_large = isinstance(error, BAD_VALUES) or getattr(error, "too_large", False)
        if too_large and len(numbers) > 1:
            middle = len(numbers) // 2
            _ask(engine, answer, numbers[:middle])
            _ask(engine, answer, numbers[middle:])
            return
        why = f"the query failed: {in_a_line(error)}"
        if too_large:
            why = f"out of range: a value is too large to compute with: {in_a_line(error)}"
        answer.refused |= dict.fromkeys(numbers, why)
        gone = set(numbers)
        answer.asked = [number for number in answer.asked if number not in gone]


class Fitness:
    """Which questions can be asked of which bundles."""

    def __init__(self, batch: Batch, questions: Sequence[Question]) -> None:
        self._batch = batch
        # By need: of the bundles that have rows of it, whether one has a value.
        self._filled: dict[str, dict[int, bool]] = {}
        needs: dict[str, list[str]] = {}
        for need in dict.fromkeys(need for question in questions for need in question.needs):
            needs.setdefault(parts_of(need)[0], []).append(need)
        for table, here in needs.items():
            self._count(table, here)
        self._by_kind: dict[tuple[str, str, tuple[Any, ...]], str | None] = {}

    def _count(self, table: str, needs: list[str]) -> None:
        self._filled |= {need: {} for need in needs}
        if table not in self._batch.tables:
            return
        numbers = []
        for need in needs:
            _, column, condition = parts_of(need)
            where = f" filter (where {condition})" if condition else ""
            numbers += [f"count(*){where} > 0", f'count("{column}"){where} > 0']
        counted = self._batch.connection.execute(
            f'select {NUMBER}, {", ".join(numbers)} from lake."{table}" group by {NUMBER}'
        ).fetchall()
        for number, *flags in counted:
            for at, need in enumerate(needs):
                if flags[2 * at]:
                    self._filled[need][number] = flags[2 * at + 1]

    def has_rows(self, need: str, number: int) -> bool:
        """Whether a bundle has rows of what is needed."""
        return number in self._filled[need]

    def unfit(self, question: Question, number: int) -> str | None:
        """Why a question cannot be asked of a bundle."""
        batch = self._batch
        bundle = batch.bundles[number]
        lost = batch.missing.get(number, {})
        flags = tuple(self._filled[need].get(number) for need in question.needs)
        if not lost:
            kind = (bundle.shape, question.id, flags)
            if kind not in self._by_kind:
                self._by_kind[kind] = self._unfit(question, number, flags)
            if self._by_kind[kind] is None and number not in batch.marks:
                return None
        return self._unfit(question, number, flags)

    def _unfit(self, question: Question, number: int, flags: tuple[Any, ...]) -> str | None:
        bundle = self._batch.bundles[number]
        shape = self._batch.shapes[bundle.shape]
        lost = self._batch.missing.get(number, {})
        there = {name: c for name, c in shape._columns.items() if name not in lost}
        database = replace(
            shape,
            missing=shape.missing | bundle.missing | lost,
            impossible=self._batch.marks.get(number, []),
            _columns=there if lost else shape._columns,
        )
        counts = {}
        for need, flag in zip(question.needs, flags, strict=True):
            table, column, _ = parts_of(need)
            if table not in lost and column in database.columns(table):
                counts[need] = [int(flag is not None), int(bool(flag))]
        return (
            unanswerable(database, question, counts)
            or doubtful(database, question)
            or self._lost(question, lost)
            or _fails(shape, question)
        )

    @staticmethod
    def _lost(question: Question, lost: dict[str, str]) -> str | None:
        """A table that only adds to the words is not left out without a word."""
        for table in question.optional:
            if table in lost:
                return f"table {table} cannot be used: {lost[table]}"
        return None


def _fails(shape: Database, question: Question) -> str | None:
    """Why a query cannot be asked of bundles of a shape, of which nothing that it needs lacks."""
    if all(table in question.optional or _whole(shape, table) for table in tables_of(question)):
        return None
    try:
        shape.connection.execute(query_of(shape, question))
    except duckdb.Error as error:
        return failed(shape, error, [])
    return None


def tables_of(question: Question) -> tuple[str, ...]:
    """The tables that a question may read."""
    return tuple(sorted(TABLES.keys() & named([question])))


def _whole(shape: Database, table: str) -> bool:
    """Whether a table has all columns that are declared."""
    return {c.name for c in columns(TABLES[table].row)} <= shape.columns(table)


def kernels(batch: Batch) -> Callable[[int], Kernel]:
    """The kernel of a bundle, as findings speak of it."""
    features: dict[int, dict[str, Any]] = {}
    for number, feature, present in batch.connection.execute(
        f"select {NUMBER}, feature, present from lake.kernel_features"
    ).fetchall():
        features.setdefault(number, {})[feature] = present
    return lambda number: Kernel.of(features.get(number, {}), batch.bundles[number].page_size)
