# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The findings on Spark: row for row what DuckDB gives, over made bundles, in which every finding is
found, and over real ones: those of the tests, and of what the lab keeps.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="mmscope[spark] is not installed: make test-spark")

from command_line import ROOT, run
from kept_bundles import kept_bundles
from lake_truth import QUESTIONS, found_as_alone
from made_fleet import of_each_finding, of_profiles
from made_lake import lake_of, small

from mmscope.reports.findings.findings import named
from mmscope.reports.fleet.spark import session, spark_engine
from mmscope.reports.lake.asking import Answer, Engine, answers
from mmscope.reports.lake.batch import Batch, load
from mmscope.reports.lake.catalog import read_catalog
from mmscope.reports.lake.staging import identity

TOO_LARGE = "out of range: a value is too large to compute with"


@dataclass(frozen=True)
class Both:
    """A lake, and what answers of it."""

    lake: Path
    path_of: dict[str, Path]
    batch: Batch
    spark: Engine
    by_duckdb: dict[str, Answer]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("spark")
    paths = of_each_finding(tmp_path_factory.mktemp("fleet"))
    real = sorted(path.parent for path in (ROOT / "tests" / "bundles").glob("*/datapackage.json"))
    every = [*paths, *of_profiles(folder / "profiles"), *real, *kept_bundles(folder / "kept")]
    lake_of(folder, *every)  # what is odd with real ones is said
    path_of = {identity(path): path for path in every}
    catalog = read_catalog(folder / "lake")
    batch = load(catalog, catalog.bundles, named(QUESTIONS))
    by_duckdb = {answer.question.id: answer for answer in answers(batch, QUESTIONS)}
    with session("local[2]") as spark:
        yield Both(folder / "lake", path_of, batch, spark_engine(spark, catalog, batch), by_duckdb)


def same(one: Any, other: Any) -> bool:
    """The same value of the same type; doubles may differ by what the order of a sum changes."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)


def reasons(answer: Answer) -> dict[int, str]:
    """Why it could not be asked; what is too large, each engine says in its own words."""
    return {
        number: TOO_LARGE if why.startswith(TOO_LARGE) else why
        for number, why in answer.refused.items()
    }


def test_duckdb_gives_what_it_gives_of_each_bundle_alone(both: Both) -> None:
    assert both.batch.bundles
    assert found_as_alone(both.batch, both.path_of) == {question.id for question in QUESTIONS}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_rows_are_those_of_duckdb(both: Both, question: Any) -> None:
    expected = both.by_duckdb[question.id]
    (answer,) = answers(both.batch, [question], both.spark)
    assert reasons(answer) == reasons(expected)
    assert answer.asked == expected.asked
    assert answer.rows.keys() == expected.rows.keys()
    for number, rows in expected.rows.items():
        host = both.batch.bundles[number].host
        assert len(answer.rows[number]) == len(rows), host
        for here, there in zip(answer.rows[number], rows, strict=True):
            assert list(here) == list(there), host
            differ = {
                key: (here[key], there[key]) for key in here if not same(here[key], there[key])
            }
            assert not differ, host
    assert expected.rows, "it is found in no bundle of this test"


def test_the_command_prints_the_same(both: Both) -> None:
    asked = ["lake", "findings", str(both.lake), "--only", "slab-large", "--format", "csv"]
    by_duckdb = run(*asked)
    by_spark = run(*asked, "--engine", "spark", "--master", "local[1]", env=os.environ)
    assert by_spark.stdout == by_duckdb.stdout
    assert "slab-large" in by_spark.stdout
    assert by_spark.returncode == by_duckdb.returncode == 0


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    lake_of(tmp_path, small(tmp_path / "one", "a"))
    env = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = run("lake", "findings", tmp_path / "lake", "--engine", "spark", env=env)
    assert (done.returncode, done.stdout) == (2, "")
    said = done.stderr.splitlines()[-1]
    assert said.startswith("mmscope: --engine spark: Spark does not start")
    assert "apt install default-jre-headless" in said
