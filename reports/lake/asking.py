# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Asks all bundles of a batch every question, each in one query.

What cannot be asked of a bundle is not asked of it, for the reason that the bundle alone would give
(see ``shape``). Where a number of one bundle is too large to
compute with, so that a query fails, it is asked again of halves, down to that bundle.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from mmscope.drgn.tables.bounds import Impossible
from mmscope.reports.bundle.database import in_a_line, query_failed
from mmscope.reports.findings.findings import Question, doubtful, parts_of, unanswerable
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
        _, _, *names = [name for name, *_ in result.description or ()]
        found = sorted(result.fetchall(), key=lambda row: row[:2])
        return [(number, dict(zip(names, row, strict=True))) for number, _, *row in found]

    return rows


def answers(
    batch: Batch,
    questions: Sequence[Question],
    engine: Engine | None = None,
    among: Container[int] | None = None,
) -> Iterator[Answer]:
    """
    Ask a batch each question.

    :param among: numbers of the bundles that are asked, if not all are.
    """
    engine = engine or duckdb_engine(batch)
    fit = Fitness(batch, questions)
    for question in questions:
        answer, wanted = fit.answer(question)
        if among is not None:
            wanted = [number for number in wanted if number in among]
            answer.asked = [number for number in answer.asked if number in among]
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
        why = query_failed(error)
        if too_large:
            why = f"out of range: a value is too large to compute with: {in_a_line(error)}"
        answer.refused |= dict.fromkeys(numbers, why)
        gone = set(numbers)
        answer.asked = [number for number in answer.asked if number not in gone]


class Fitness:
    """
    Which questions can be asked of which bundles.

    Bundles of one shape, that lack the same and have rows of the same, are judged as one: a fleet
    has some dozens of these. What each has that cannot be is looked at for each.
    """

    def __init__(self, batch: Batch, questions: Sequence[Question]) -> None:
        self._batch = batch
        needs = list(dict.fromkeys(need for question in questions for need in question.needs))
        # By need: of the bundles that have rows of it, whether one has a value.
        self._filled: dict[str, dict[int, bool]] = {need: {} for need in needs}
        by_table: dict[str, list[str]] = {}
        for need in needs:
            by_table.setdefault(parts_of(need)[0], []).append(need)
        for table, here in by_table.items():
            self._count(table, here)
        self._alike: dict[tuple[Any, ...], list[int]] = {}
        filled = [self._filled[need].get for need in needs]
        for number, bundle in enumerate(batch.bundles):
            lacks = (*bundle.missing.items(), *batch.missing.get(number, {}).items())
            marks = tuple((m.table_name, m.column_name, m.row_name) for m in self._marks(number))
            kind = (bundle.shape, lacks, marks, tuple(get(number) for get in filled))
            self._alike.setdefault(kind, []).append(number)

    def _marks(self, number: int) -> Sequence[Impossible]:
        return self._batch.marks.get(number, ())

    def _count(self, table: str, needs: list[str]) -> None:
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

    def answer(self, question: Question) -> tuple[Answer, list[int]]:
        """Whom it can be asked of; and those of them that have rows of what it needs first."""
        answer = Answer(question, [])
        for numbers in self._alike.values():
            before, behind = self._unfit(question, numbers[0])
            marks = self._marks(numbers[0])
            mark = doubtful(marks, question)
            doubt = None if mark is None else marks.index(mark)
            if not before and doubt is not None:
                answer.refused |= {number: str(self._marks(number)[doubt]) for number in numbers}
            elif why := before or behind:
                answer.refused |= dict.fromkeys(numbers, why)
            else:
                answer.asked += numbers
        answer.asked.sort()
        first = self._filled[question.needs[0]]
        return answer, [number for number in answer.asked if number in first]

    def _unfit(self, question: Question, number: int) -> tuple[str | None, str | None]:
        """
        Why a question cannot be asked of a bundle: what it needs is not there; or else, if nothing
        that cannot be is in its way, what comes behind that.
        """
        bundle = self._batch.bundles[number]
        shape = self._batch.shapes[bundle.shape]
        lost = self._batch.missing.get(number, {})
        there = {name: c for name, c in shape.there.items() if name not in lost}
        counts = {}
        for need in question.needs:
            table, column, _ = parts_of(need)
            if table not in lost and column in there.get(table, ()):
                flag = self._filled[need].get(number)
                counts[need] = [int(flag is not None), int(bool(flag))]
        if why := unanswerable(shape.missing | bundle.missing | lost, there, question, counts):
            return why, None
        # A table that only adds to the words is not left out without a word.
        for table in question.optional:
            if table in lost:
                return None, f"table {table} cannot be used: {lost[table]}"
        return None, shape.fails(question)


def kernels(batch: Batch) -> Callable[[int], Kernel]:
    """The kernel of a bundle, as findings speak of it."""
    features: dict[int, dict[str, Any]] = {}
    for number, feature, present in batch.connection.execute(
        f"select {NUMBER}, feature, present from lake.kernel_features"
    ).fetchall():
        features.setdefault(number, {})[feature] = present
    made: dict[tuple[Any, ...], Kernel] = {}

    def kernel(number: int) -> Kernel:
        here, size = features.get(number, {}), batch.bundles[number].page_size
        # Those of a fleet are few.
        key = (size, *here.items())
        if key not in made:
            made[key] = Kernel(here, size)
        return made[key]

    return kernel
