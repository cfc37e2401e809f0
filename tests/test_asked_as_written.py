# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings over small tables: asked without DuckDB's optimizer, with the same answers."""

from pathlib import Path

import pytest
import report_bundle as made
from finding_cases.case import Case, bundle
from finding_cases.every import CLEAR, FOUND

from mmscope.reports.bundle import database
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate, load_questions

CASES = {f"found: {name}": case for name, case in FOUND.items()}
CASES |= {f"clear: {name}": case for name, case in CLEAR.items()}


QUESTIONS = {question.id: question for question in load_questions()}


def optimizes(opened: Bundle, *, ours: bool) -> bool:
    asked = database.open_database(opened, ours=ours)
    ((answer,),) = asked.connection.execute("select current_setting('enable_optimizer')").fetchall()
    return bool(answer)


def test_queries_are_optimized_but_for_findings_over_small_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = made.write_bundle(tmp_path / "b", made.tables())
    assert optimizes(opened, ours=False)
    assert not optimizes(opened, ours=True)
    largest = max(opened.count(table) for table in opened.tables)
    monkeypatch.setattr(database, "FEW_ROWS", largest - 1)
    assert optimizes(opened, ours=True)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_answers_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    opened = bundle(tmp_path / "b", case.rows, case.empty, case.target)
    as_written = evaluate(opened, [QUESTIONS[case.id]])
    monkeypatch.setattr(database, "FEW_ROWS", -1)
    assert evaluate(opened, [QUESTIONS[case.id]]) == as_written
