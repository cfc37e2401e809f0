# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Findings: what a bundle's tables mean, asked in SQL.

A finding whose query returns nothing says nothing. One whose tables or columns the bundle does not
have, or has only empty, is *not checked*, and the reason is kept: silence must never mean "not
looked".
"""

import contextlib
import dataclasses
from collections.abc import Iterable

import duckdb
import jinja2

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import Database, failed, open_database
from mmscope.reports.findings.blind import BLIND, damaged, holes, unread, unseen
from mmscope.reports.findings.finding import (
    KERNEL,
    MEMORY,
    MORE,
    NOT_READ,
    OTHERWISE,
    RECORDING,
    RIGHTS,
    WATCH,
    WHOLE,
    Finding,
    NotChecked,
    Verdict,
)
from mmscope.reports.findings.finding_words import finding_of
from mmscope.reports.findings.kernel_said import read_kernel
from mmscope.reports.findings.query import asked, doubtful, query_of, unanswerable
from mmscope.reports.findings.question import (
    HARMS,
    OURS,
    RECORDINGS,
    SEVERITIES,
    Question,
    parts_of,
)

# What a query, and words about its rows, may raise.
UNANSWERED = (duckdb.Error, jinja2.TemplateError, ArithmeticError, TypeError, ValueError)


def evaluate(bundle: Bundle, questions: list[Question] | None = None) -> Verdict:
    """Ask a bundle every question."""
    questions = OURS() if questions is None else questions
    # Most rows of a large bundle are in tables that no question names.
    verdict = ask(open_database(bundle, only=named(questions)), questions)
    if words := bundle.target.get("truncated"):  # whatever its sections say
        verdict.blind.insert(0, f"the dump is not whole: {words}")
    return verdict


def ask(database: Database, questions: list[Question]) -> Verdict:
    """Ask an open bundle the given questions."""
    kernel = read_kernel(database)
    counts = _counts(database, questions)
    found: list[Finding] = []
    under: list[Finding] = []
    silent, not_checked, faults = [], [], dict[str, None]()
    for question in questions:
        reason = unanswerable(database.missing, database.columns, question, counts)
        if not reason and (mark := doubtful(database.impossible, question)):
            reason = str(mark)
            faults[reason] = None
        said = []
        # Without rows of the first table nothing is found.
        if not reason and counts[question.needs[0]][0]:
            try:
                rows = database.rows(query_of(database.columns, question))
                # A row of a thing under the threshold says so, and only what was measured.
                said = [(row.get("over", True), finding_of(question, row, kernel)) for row in rows]
            except UNANSWERED as error:
                reason = _fault(error, database, question)
                faults[f"check {question.id} could not be made: {reason}"] = None
        if reason:
            left = NotChecked(question.id, question.about, reason, question.section)
            not_checked.append(dataclasses.replace(left, wants=wanting(question, database)))
            continue
        findings = [finding for over, finding in said if over]
        under += [finding for over, finding in said if not over]
        if not findings:
            silent.append((question.id, question.about))
        found += findings
    found.sort(key=_place)
    blind = [
        *holes(database),
        *unread(database),
        *unseen(questions, database, some=bool(silent or found)),
    ]
    blind += [*damaged(database), *faults]
    return Verdict(found, silent, not_checked, under, blind)


def named(questions: Iterable[Question]) -> set[str]:
    """
    The words of their queries, and of the views that these name: all tables are among them, and
    those of :data:`BLIND`.
    """
    words = (asked(question)[0] for question in questions)
    blind = (set(each.optional) for each in BLIND)
    return {"kernel_features", "containers"}.union(*words, *blind)


def _place(finding: Finding) -> tuple[int, bool, int]:
    """Place of a finding: by severity, what was measured first, what does most harm first."""
    return SEVERITIES.index(finding.severity), finding.estimate, HARMS.index(finding.harm)


def _counts(database: Database, questions: list[Question]) -> dict[str, list[int]]:
    """
    Count rows, and rows with a value, of what questions need: one query for all tables. What is
    not there cannot be counted.
    """
    needs = []
    for need in dict.fromkeys(need for question in questions for need in question.needs):
        table, column, _ = parts_of(need)
        if column in database.columns.get(table, ()):
            needs.append(need)
    with contextlib.suppress(duckdb.Error):
        return _count(database, needs)
    counts: dict[str, list[int]] = {}
    for need in needs:  # one of which is at fault
        with contextlib.suppress(duckdb.Error):
            counts |= _count(database, [need])
    return counts


def _count(database: Database, needs: Iterable[str]) -> dict[str, list[int]]:
    """The same of some needs, each table read once; :raises duckdb.Error: one is at fault."""
    by_table: dict[str, list[str]] = {}
    for need in needs:
        by_table.setdefault(parts_of(need)[0], []).append(need)
    queries = []
    for table, here in by_table.items():
        numbers = []
        for _, column, condition in map(parts_of, here):
            where = f" filter (where {condition})" if condition else ""
            numbers.append(f'[count(*){where}, count("{column}"){where}]')
        queries.append(f"select '{table}', [{', '.join(numbers)}] from \"{table}\"")
    counted = database.connection.execute(" union all ".join(queries)).fetchall() if queries else []
    return {
        need: numbers
        for table, each in counted
        for need, numbers in zip(by_table[table], each, strict=True)
    }


def _fault(error: Exception, database: Database, question: Question) -> str:
    """Why a question's query, or its words, failed."""
    if isinstance(error, duckdb.Error):
        tables = [need.partition(".")[0] for need in question.needs]
        return failed(database, error, tables)
    return f"its words do not fit what was found: {error}"


def wanting(question: Question, database: Database) -> str:
    """Name what a check that could not be made would take."""
    if question.section == RECORDINGS:
        return RECORDING
    fared = database.fared.get(question.section)
    if question.section == "watch" and fared is None:
        return WATCH
    if fared is None:
        return NOT_READ if database.kind in ("vmcore", "qemu") else MEMORY
    if database.kind == "files":
        return MEMORY if fared.status == "absent" else MORE
    if fared.status == "absent":
        return RIGHTS if database.kind == "live" else KERNEL
    return WHOLE if fared.status in ("failed", "partial") else OTHERWISE
