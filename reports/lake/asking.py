# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Asks all bundles of a batch every question, each in one query.

What cannot be asked of a bundle is not asked of it, for the reason that the bundle alone would give
(see ``shape``). Where a number of one bundle is too large to compute with, so that a query fails,
it is asked again of halves, down to that bundle.
"""

import functools
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from mmscope.reports.bundle.database import in_a_line, query_failed
from mmscope.reports.findings.kernel_said import Kernel
from mmscope.reports.findings.query import doubtful, unanswerable
from mmscope.reports.findings.question import Question, parts_of
from mmscope.reports.lake.batch import Batch
from mmscope.reports.lake.keyed import HOSTS, NUMBER, keyed
from mmscope.reports.lake.shape import fails

Row = dict[str, Any]
BAD_VALUES = (duckdb.OutOfRangeException, duckdb.ConversionException)


@dataclass
class Answer:
    """
    Rows that one question gave.

    :ivar asked: numbers of the bundles that it was asked of.
    :ivar rows: by number of the bundle, in the order in which its query gives them.
    :ivar refused: number of a bundle that it could not be asked of, and the reason.
    """

    question: Question
    asked: list[int]
    rows: dict[int, list[Row]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


def answers(
    batch: Batch,
    questions: Sequence[Question],
    among: Container[int] | None = None,
) -> Iterator[Answer]:
    """
    Ask a batch each question.

    Bundles of one shape, that lack the same and have rows of the same, are judged as one: a fleet
    has some dozens of these. What each has that cannot be is looked at for each.

    :param among: numbers of the bundles that are asked, if not all are.
    """
    filled = _filled(batch, questions)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, bundle in enumerate(batch.bundles):
        lacks = (*bundle.missing.items(), *batch.missing.get(number, {}).items())
        marks = batch.marks.get(number, ())
        places = tuple((m.table_name, m.column_name, m.row_name) for m in marks)
        kind = (bundle.shape, lacks, places, tuple(has.get(number) for has in filled.values()))
        alike.setdefault(kind, []).append(number)
    for question in questions:
        answer = Answer(question, [])
        for numbers in alike.values():
            if refused := _refused(batch, question, numbers, filled):
                answer.refused |= refused
            else:
                answer.asked += (n for n in numbers if among is None or n in among)
        answer.asked.sort()
        # Those that have rows of what it needs first.
        first = filled[question.needs[0]]
        _ask(batch, answer, [number for number in answer.asked if number in first])
        yield answer


def _filled(batch: Batch, questions: Sequence[Question]) -> dict[str, dict[int, bool]]:
    """Bundles that have rows of each need, by number, and whether one has a value."""
    filled: dict[str, dict[int, bool]] = {need: {} for q in questions for need in q.needs}
    by_table: dict[str, list[str]] = {}
    for need in filled:
        by_table.setdefault(parts_of(need)[0], []).append(need)
    for table in by_table.keys() & batch.files.keys():
        counts = []
        for need in by_table[table]:
            _, column, condition = parts_of(need)
            where = f" filter (where {condition})" if condition else ""
            counts += [f"count(*){where} > 0", f'count("{column}"){where} > 0']
        counted = batch.connection.execute(
            f'select {NUMBER}, {", ".join(counts)} from lake."{table}" group by {NUMBER}'
        )
        for number, *flags in counted.fetchall():
            for need, has_rows, has_value in zip(
                by_table[table], flags[::2], flags[1::2], strict=True
            ):
                if has_rows:
                    filled[need][number] = has_value
    return filled


def _refused(
    batch: Batch, question: Question, numbers: Sequence[int], filled: dict[str, dict[int, bool]]
) -> dict[int, str]:
    """Reasons by which a question cannot be asked of bundles that are alike, by number."""
    number = numbers[0]
    bundle, lost = batch.bundles[number], batch.missing.get(number, {})
    shape = batch.shapes.get(bundle.shape)
    if shape is None:
        return dict.fromkeys(numbers, "its description in the lake is damaged")
    there = {name: c for name, c in shape.there.items() if name not in lost}
    counts = {}
    for need in question.needs:
        table, column, _ = parts_of(need)
        if table not in lost and column in there.get(table, ()):
            has = filled[need].get(number)
            counts[need] = [int(has is not None), int(bool(has))]
    if why := unanswerable(shape.missing | bundle.missing | lost, there, question, counts):
        return dict.fromkeys(numbers, why)
    marks = batch.marks.get(number, [])
    if mark := doubtful(marks, question):
        at = marks.index(mark)
        return {number: str(batch.marks[number][at]) for number in numbers}
    # A table that only adds to the words is not left out without a word.
    for table in question.optional:
        if table in lost:
            return dict.fromkeys(numbers, f"table {table} cannot be used: {lost[table]}")
    if why := fails(shape, question):
        return dict.fromkeys(numbers, why)
    return {}


def _ask(batch: Batch, answer: Answer, numbers: Sequence[int]) -> None:
    if not numbers:
        return
    try:
        for number, row in _rows(batch, answer.question, numbers):
            answer.rows.setdefault(number, []).append(row)
    except duckdb.Error as error:
        too_large = isinstance(error, BAD_VALUES)
        if too_large and len(numbers) > 1:
            middle = len(numbers) // 2
            _ask(batch, answer, numbers[:middle])
            _ask(batch, answer, numbers[middle:])
            return
        why = query_failed(error)
        if too_large:
            why = f"out of range: a value is too large to compute with: {in_a_line(error)}"
        answer.refused |= dict.fromkeys(numbers, why)
        gone = set(numbers)
        answer.asked = [number for number in answer.asked if number not in gone]


def _rows(batch: Batch, question: Question, numbers: Sequence[int]) -> list[tuple[int, Row]]:
    """The rows of a question for bundles of these numbers, by number."""
    batch.connection.execute(
        f"create or replace table {HOSTS} as select unnest($numbers::bigint[]) as {NUMBER}",
        {"numbers": list(numbers)},
    )
    result = batch.connection.execute(keyed(question))
    _, _, *names = [name for name, *_ in result.description or ()]
    found = sorted(result.fetchall(), key=lambda row: row[:2])
    return [(number, dict(zip(names, row, strict=True))) for number, _, *row in found]


def kernels(batch: Batch) -> Callable[[int], Kernel]:
    """The kernel of a bundle, as findings speak of it."""
    features: dict[int, dict[str, Any]] = {}
    for number, feature, present in batch.connection.execute(
        f"select {NUMBER}, feature, present from lake.kernel_features"
    ).fetchall():
        features.setdefault(number, {})[feature] = present

    # Those of a fleet are few.
    @functools.cache
    def of(size: int | None, here: tuple[tuple[str, Any], ...]) -> Kernel:
        return Kernel(dict(here), size)

    return lambda number: of(
        batch.bundles[number].page_size, tuple(features.get(number, {}).items())
    )
