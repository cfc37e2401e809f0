# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Answers about one bundle as plain data, for programs that ask.

Every answer has its rows and what they rest on (``coverage``): how the sections fared that wrote
them, and values that cannot be. Answers have bounds, and say what was left out. Nothing is written,
no file is opened for a question, and a query is one SELECT over a database that is locked.
"""

import contextlib
import dataclasses
import datetime
import decimal
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import duckdb

from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import Database, connect, in_a_line, open_database
from mmscope.reports.bundle.outcome import UsageError
from mmscope.reports.bundle.views import views
from mmscope.reports.compare.comparison import compare
from mmscope.reports.compare.comparison_view import view
from mmscope.reports.findings.finding import Finding, Verdict
from mmscope.reports.findings.findings import evaluate, named
from mmscope.reports.findings.query import query_of
from mmscope.reports.findings.question import OURS
from mmscope.reports.findings.verdict import judge

# Of an answer. Who wants more asks for the next rows, or asks a sharper question.
ROWS, MOST_ROWS, MOST_TEXT, MOST_CHARACTERS = 50, 500, 2_000, 200_000
SECONDS = 10.0
MOST_EXACT = 1 << 53  # of whole numbers, for readers of JSON to whom all are floating point
SELECT = duckdb.StatementType.SELECT
Row = dict[str, Any]


class Case:
    """
    A bundle that is asked questions.

    :ivar name: under which it is asked for.
    """

    def __init__(self, name: str, bundle: Bundle) -> None:
        self.name, self.bundle = name, bundle

    @cached_property
    def verdict(self) -> Verdict:
        """All that the findings say of it."""
        return evaluate(self.bundle)

    def about(self) -> Row:
        """Say what was read, and how each section fared."""
        return {
            "case": self.name,
            "target": plain(self.bundle.target),
            "sections": [plain(dataclasses.asdict(one)) for one in self.bundle.sections],
        }

    def why(self) -> Row:
        """Judge: what is wrong, whose it is, what harm it does, since when, what to do."""
        return {"case": self.name, **plain(dataclasses.asdict(judge(self.verdict)))}

    def findings(self) -> Row:
        """List what was found, what was checked and is not so, and what could not be checked."""
        verdict = self.verdict
        return {
            "case": self.name,
            "verdict": verdict.word,
            "not_seen": plain(verdict.blind),
            "findings": [_words(finding) for finding in verdict.found],
            "checked_and_not_so": [id for id, _ in verdict.silent],
            "not_checked": [plain(dataclasses.asdict(one)) for one in verdict.not_checked],
        }

    def evidence(self, finding: str) -> Row:
        """
        Show the query of a finding, its rows, and rows of the tables that they stand on.

        :raises UsageError: there is no such finding, or its query failed.
        """
        question = next((one for one in OURS() if one.id == finding), None)
        if question is None:
            raise UsageError(f"no finding is called {cut(finding, 80)!r}")
        reason = next((n.reason for n in self.verdict.not_checked if n.id == finding), "")
        found = [one for one in self.verdict.found if one.id == finding]
        rows: list[Row] = []
        with self._open(named([question])) as database:
            if not reason:
                sql = query_of(database.columns, question)
                rows = asked(database.connection, sql, [], MOST_ROWS)
            coverage = self._coverage(database, (need.split(".")[0] for need in question.needs))
        proofs = {proof.table: proof for one in found for proof in one.proofs}
        stands_on = [
            {"table": table, **bounded(row for row in self.bundle.rows(table) if proof.holds(row))}
            for table, proof in proofs.items()
            if table in self.bundle.tables
        ]
        return {
            "case": self.name,
            "finding": finding,
            "not_checked": plain(reason),
            "found": [_words(one) for one in found],
            "sql": question.sql,
            **bounded(rows),
            "stands_on": stands_on,
            "coverage": coverage,
        }

    def tables(self) -> Row:
        """List tables and views, with what is missing and why."""
        tables = [
            {"table": table.name, "title": plain(table.title), "section": table.section}
            | {"columns": [column.name for column in table.columns]}
            for table in self.bundle.tables.values()
        ]
        with self._open(None) as database:
            computed = [
                {"view": name, "title": title, "columns": sorted(database.columns[name])}
                for name, title, _ in views()
                if name in database.columns
            ]
            missing = plain(database.missing)
        return {"case": self.name, "tables": tables, "views": computed, "missing": missing}

    def show(
        self,
        table: str,
        where: Mapping[str, Any] | None = None,
        columns: Sequence[str] = (),
        order_by: str = "",
        limit: int = ROWS,
        offset: int = 0,
    ) -> Row:
        """
        Show rows of a table or view.

        :param where: columns, and the value that each is to have.
        :param order_by: a column; the largest first.
        :raises UsageError: it has no such table or column.
        """
        where = where or {}
        limit, offset = min(max(limit, 1), MOST_ROWS), max(offset, 0)
        with self._open({table}) as database:
            known = database.columns.get(table)
            if known is None:
                why = database.missing.get(table, "it is not in this bundle")
                raise UsageError(f"no table {cut(table, 80)!r}: {why}")
            for name in (*where, *columns, *filter(None, [order_by])):
                if name not in known:
                    has = ", ".join(sorted(known))
                    raise UsageError(f"{table} has no column {cut(str(name), 80)!r}: it has {has}")
            some = ", ".join(f'"{name}"' for name in columns) or "*"
            tests = " and ".join(f'"{name}" is not distinct from ?' for name in where)
            query = f'from "{table}"' + (f" where {tests}" if where else "")
            ordered = f' order by "{order_by}" desc nulls last' if order_by else ""
            sliced = f"select {some} {query}{ordered} limit {limit} offset {offset}"
            given = list(where.values())
            (counted,) = asked(database.connection, f"select count(*) as total {query}", given, 1)
            rows = asked(database.connection, sliced, given, limit)
            coverage = self._coverage(database, [table])
        answer = {"case": self.name, "table": table, **bounded(rows), **counted, "offset": offset}
        declared = self.bundle.tables[table].columns if table in self.bundle.tables else ()
        units = {column.name: column.unit for column in declared if column.unit}
        return answer | {"units": units, "coverage": coverage}

    def query(self, sql: str, limit: int = ROWS) -> Row:
        """
        Answer one SELECT over tables and views.

        :raises UsageError: it is something else, or cannot be answered.
        """
        limit = min(max(limit, 1), MOST_ROWS)
        tables = tables_of(sql)
        with self._open(tables) as database:
            rows = asked(database.connection, sql, [], limit + 1)
            coverage = self._coverage(database, tables)
        answer = bounded(rows[:limit])
        answer["cut_off"] |= len(rows) > limit
        return {"case": self.name, **answer, "coverage": coverage}

    def compare(self, after: "Case") -> Row:
        """Hold a later reading, or another machine, against this one."""
        verdicts = self.verdict, after.verdict
        comparison = compare(self.bundle, after.bundle, verdicts, draw=False)
        shown = view(comparison)
        steps = comparison.ledger.steps if comparison.ledger else []
        answer: Row = {
            "before": self.name,
            "after": after.name,
            "sentence": shown.sentence,
            "relation": comparison.relation.words,
            "where_the_memory_went": [dataclasses.asdict(step) for step in steps],
            "findings": [
                {"change": one.words, "severity": one.finding.severity, "title": one.finding.title}
                for one in shown.findings
            ],
            "most_changed": [
                {"table": top.table.name, "row": top.what, "before": top.before}
                | {"after": top.after, "difference": top.difference}
                for top in shown.tops
            ],
            "not_compared": [{"why": why, "tables": names} for why, names in shown.not_compared],
        }
        return {name: plain(value) for name, value in answer.items()}

    @contextlib.contextmanager
    def _open(self, tables: Iterable[str] | None) -> Iterator[Database]:
        """The tables that are named, and those that named views read; None: all."""
        with contextlib.closing(connect()) as parser:
            only = None if tables is None else with_read(parser, tables)
        database = open_database(self.bundle, only)
        try:
            yield database
        finally:
            database.connection.close()

    def _coverage(self, database: Database, tables: Iterable[str]) -> list[Row]:
        """Say how the sections fared that wrote these tables, or those that views read."""
        ours = {name for name, _, _ in views()} | {"target"}
        rows = []
        for table in sorted(with_read(database.connection, tables) - ours):
            fared = database.fared.get(database.section_of.get(table, ""))
            unsaid = "unknown" if table in self.bundle.tables else "absent"
            marks = [str(mark) for mark in database.impossible if mark.table_name == table]
            rows.append(
                {
                    "table": plain(table),
                    "section": fared.section if fared else "",
                    "status": fared.status if fared else unsaid,
                    "message": plain((fared and fared.message) or database.missing.get(table)),
                    "unreadable_bytes": fared.unreadable_bytes if fared else None,
                    "impossible": plain(marks[:10]),
                }
            )
        return rows


def with_read(connection: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> set[str]:
    """Names of tables and views, and of what these views read."""
    statements = {name: statement for name, _, statement in views()}
    found: set[str] = set()
    left = set(tables)
    while left:
        found.add(name := left.pop())
        if name in statements:
            _, _, body = statements[name].partition(" as\n")
            left |= connection.get_table_names(body) - found
    return found


def asked(
    connection: duckdb.DuckDBPyConnection, sql: str, given: list[Any], most: int
) -> list[Row]:
    """
    Rows of a query, in bounded time.

    :raises UsageError: it cannot be answered.
    """
    try:
        with interrupted(connection):
            result = connection.execute(sql, given)
            names = unique([column[0] for column in result.description or ()])
            return [dict(zip(names, row, strict=True)) for row in result.fetchmany(most)]
    except duckdb.InterruptException as error:
        raise UsageError(f"the query took more than {SECONDS:.0f} s") from error
    except duckdb.Error as error:
        raise UsageError(in_a_line(error)) from error


def unique(names: Iterable[str]) -> list[str]:
    """Names of columns, each of which is there once: a join may have the same name twice."""
    kept: list[str] = []
    for name in names:
        free, number = name, 0
        while free in kept:
            free = f"{name}_{(number := number + 1)}"
        kept.append(free)
    return kept


def _words(finding: Finding) -> Row:
    """A finding without its proofs, which :meth:`Case.evidence` follows."""
    said = dataclasses.asdict(finding)
    del said["proofs"]
    return {name: plain(value) for name, value in said.items()}


@contextlib.contextmanager
def interrupted(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Interrupt queries that take too long."""
    timer = threading.Timer(SECONDS, connection.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def tables_of(sql: str) -> set[str]:
    """
    Names that a query reads, if it is one SELECT and nothing else.

    :raises UsageError: it is something else.
    """
    with contextlib.closing(connect()) as connection:
        try:
            if [one.type for one in connection.extract_statements(sql)] != [SELECT]:
                raise UsageError("one SELECT, and nothing else, is answered here")
            return connection.get_table_names(sql)
        except duckdb.Error as error:
            raise UsageError(in_a_line(error)) from error


def plain(value: Any) -> Any:
    """A value as JSON has it, with hostile text made visible."""
    if isinstance(value, str):
        return visible(cut(value, MOST_TEXT))
    if isinstance(value, decimal.Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if abs(value) <= MOST_EXACT else str(value)
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {visible(str(name)): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return visible(cut(str(value), MOST_TEXT))


def bounded(rows: Iterable[Mapping[str, Any]], most: int = MOST_ROWS) -> Row:
    """Rows as JSON has them, as many as an answer may have, and how many these are."""
    kept: list[Row] = []
    left, cut_off = MOST_CHARACTERS, False
    for row in rows:
        made = plain(row)
        left -= sum(len(str(name)) + len(str(value)) for name, value in made.items())
        if len(kept) == most or (left < 0 and kept):
            cut_off = True
            break
        kept.append(made)
    return {"rows": kept, "shown": len(kept), "cut_off": cut_off}
