# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Findings: what a bundle's tables mean, asked in SQL.

A finding is one file, ``findings/<id>.toml``: the columns it needs, a query over the bundle's
tables that returns a row for each thing found, and the words, filled in from that row. A finding
whose query returns nothing says nothing. One whose tables or columns the bundle does not have, or
has only empty, is *not checked*, and the reason is kept: silence must never mean "not looked".
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import jinja2

from reports import display
from reports.bundle import Bundle
from reports.tables import Database, failed, open_database, views

FINDINGS = Path(__file__).resolve().parent / "findings"
SEVERITIES = ("critical", "warning", "notice")


@dataclass(frozen=True)
class Link:
    """Where something is written up."""

    title: str
    url: str


@dataclass(frozen=True)
class Finding:
    """One thing that was found. All words are plain text, with values from the bundle in them."""

    id: str  # the file's name; several findings may share it, one for each row found
    severity: str
    title: str  # what is wrong, with its number
    saw: str  # what was seen: the figures
    why: str  # why it hurts
    next: tuple[str, ...]  # what to do, in order
    links: tuple[Link, ...]
    section: str  # where the evidence is
    # What it is about and how bad it is, so that the same finding of two bundles can be compared.
    subject: tuple[tuple[str, Any], ...] = ()
    badness: float | None = None
    tables: tuple[str, ...] = ()  # and views, that it was found in


@dataclass(frozen=True)
class NotChecked:
    """A finding that could not be asked of this bundle."""

    id: str
    title: str
    reason: str
    section: str = ""  # where its evidence would be


@dataclass(frozen=True)
class Verdict:
    """Everything that the findings say of one bundle; found by severity, then by file name."""

    found: list[Finding]
    clear: list[tuple[str, str]]  # (id, title) of what was checked and not found
    not_checked: list[NotChecked]


@dataclass(frozen=True)
class Question:
    """A finding's file."""

    id: str
    about: str  # what it looks for, when there is no row to speak of
    section: str
    needs: tuple[str, ...]  # table.column, or table.column where …
    sql: str
    severity: str  # unless the row has a column of that name
    title: str
    saw: str
    why: str
    next: tuple[str, ...]
    links: tuple[Link, ...]
    worse: str  # an expression over the row: the higher, the worse
    subject: tuple[str, ...] = ()  # columns of the row that tell one thing found from another
    # Tables that only add to the words, with the columns used: empty where a bundle lacks them.
    optional: dict[str, list[str]] = field(default_factory=dict)


def load_questions(folder: Path = FINDINGS) -> list[Question]:
    """
    All findings that can be made.

    :raises ValueError: a file is not as it should be; these are the project's own, so a fault here
        is one of the project.
    """
    questions = []
    for path in sorted(folder.glob("*.toml")):
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
            links = tuple(Link(**link) for link in data.pop("links", []))
            data |= {"needs": tuple(data["needs"]), "next": tuple(data["next"])}
            data["subject"] = tuple(data.get("subject", ()))
            question = Question(id=path.stem, links=links, **data)
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path.name}: {error}") from error
        if question.severity not in SEVERITIES:
            raise ValueError(f"{path.name}: severity {question.severity!r} is none of {SEVERITIES}")
        questions.append(question)
    return questions


def severity_rank(severity: str) -> int:
    """The worst first; what is no severity of ours last."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def known(words: Callable[..., str]) -> Callable[..., str]:
    """A filter that says ``unknown`` for a value that there is not."""
    return lambda value, *rest: "unknown" if None in (value, *rest) else words(value, *rest)


def period(seconds: Any) -> str:
    """How long the machine had been up: the period of every counter since boot."""
    if not seconds:
        return "since boot, uptime unknown"
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"in {seconds / size:.1f} {unit} since boot"
    return f"in {seconds:.0f} s since boot"


def _environment() -> jinja2.Environment:
    # Words are plain text here and are escaped where they are shown: in HTML by its templates, on
    # a terminal by `visible`.
    environment = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "thousands": known(display.count),
        "percent": known(display.percent),
        "size": known(display.pages),
        "period": period,
    }
    return environment


def evaluate(bundle: Bundle, questions: list[Question] | None = None) -> Verdict:
    """Ask a bundle every question."""
    questions = load_questions() if questions is None else questions
    # Of a large bundle most rows are in tables that nobody asks for.
    asked = " ".join(sql for question in questions for sql in (question.sql, *question.needs))
    asked += " ".join(sql for _, _, sql in views())
    names = set(re.findall(r"[a-z][a-z0-9_]*", asked))
    return ask(open_database(bundle, only=names), questions)


def ask(database: Database, questions: list[Question]) -> Verdict:
    """Ask an open bundle the given questions."""
    environment = _environment()
    found: list[Finding] = []
    clear, not_checked = [], []
    for question in questions:
        if reason := _unanswerable(database, question):
            not_checked.append(NotChecked(question.id, question.about, reason, question.section))
            continue
        try:
            rows = database.rows(_query(database, question))
        except duckdb.Error as error:
            reason = failed(database, error, [need.partition(".")[0] for need in question.needs])
            not_checked.append(NotChecked(question.id, question.about, reason, question.section))
            continue
        try:
            findings = [_finding(environment, question, row) for row in rows]
        except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError) as error:
            reason = f"its words do not fit what was found: {error}"
            not_checked.append(NotChecked(question.id, question.about, reason, question.section))
            continue
        if not findings:
            clear.append((question.id, question.about))
        found += findings
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Verdict(found, clear, not_checked)


def _unanswerable(database: Database, question: Question) -> str | None:
    """Why a question cannot be asked: something it needs is missing, or all unknown."""
    for need in question.needs:
        table, _, rest = need.partition(".")
        column, _, condition = rest.partition(" where ")
        query = f'select count(*) as n, count("{column}") as known from "{table}"'
        try:
            (row,) = database.rows(f"{query} where {condition or 'true'}")
        except duckdb.Error:
            if why := database.missing.get(table):
                return f"table {table} cannot be used: {why}"
            section = f"section {question.section}"
            why = database.missing.get(section)
            return f"no table {table} in this bundle" + (f" ({section}: {why})" if why else "")
        if condition and not row["n"]:
            return f"{table} has no row where {condition}"
        if row["n"] and not row["known"]:
            return f"{need} is unknown in this bundle"
    return None


def _query(database: Database, question: Question) -> str:
    """A question's SQL, with an empty table in place of each optional one that is not there."""
    stand_ins = [
        f"{table} as (select {', '.join(f'null::varchar as {c}' for c in columns)} limit 0)"
        for table, columns in question.optional.items()
        if not database.has(table)
    ]
    return f"with {', '.join(stand_ins)} {question.sql}" if stand_ins else question.sql


def _finding(environment: jinja2.Environment, question: Question, row: dict[str, Any]) -> Finding:
    def words(text: str) -> str:
        # Most are as they stand, and to compile one takes a millisecond.
        said = environment.from_string(text).render(row) if "{" in text else text
        return " ".join(said.split())

    severity = row.get("severity", question.severity)
    return Finding(
        question.id,
        severity if severity in SEVERITIES else question.severity,
        words(question.title),
        words(question.saw),
        words(question.why),
        tuple(words(step) for step in question.next),
        question.links,
        question.section,
        tuple((name, row[name]) for name in question.subject),
        _badness(environment, question, row),
        tuple(dict.fromkeys(need.partition(".")[0] for need in question.needs)),
    )


def _badness(
    environment: jinja2.Environment, question: Question, row: dict[str, Any]
) -> float | None:
    """How bad it is, None where a part of that is unknown."""
    how_bad: Any = environment.compile_expression(question.worse, undefined_to_none=False)
    try:
        return float(how_bad(row))
    except (ArithmeticError, TypeError):
        return None
