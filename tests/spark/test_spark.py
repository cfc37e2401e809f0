# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A fleet asked by Spark's workers: what one machine says, over made bundles, in which every finding
is found, and over real ones of the tests.
"""

import csv
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="mmscope[spark] is not installed: make test-spark")

from command_line import ROOT, run
from made_fleet import of_each_finding, of_profiles
from made_lake import lake_of, small
from made_owners import host, leak, ledger

from mmscope.reports.findings.question import OURS, RECORDINGS

ON_SPARK = ["--engine", "spark", "--master", "local[2]"]


def same_on_spark(*asked: object) -> str:
    """What both print."""
    by_duckdb = run(*asked)
    by_spark = run(*asked, *ON_SPARK, env=os.environ)
    assert by_spark.stdout == by_duckdb.stdout
    assert by_spark.returncode == by_duckdb.returncode
    return str(by_duckdb.stdout)


def test_findings_are_those_of_duckdb(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    paths = of_each_finding(tmp_path / "fleet")
    real = sorted(path.parent for path in (ROOT / "tests" / "bundles").glob("*/datapackage.json"))
    lake_of(tmp_path, *paths, *of_profiles(tmp_path / "profiles"), *real)
    said = same_on_spark("lake", "findings", tmp_path / "lake", "--by", "host", "--format", "csv")
    of_machines = {q.id for q in OURS() if q.section != RECORDINGS}
    assert {row["finding"] for row in csv.DictReader(said.splitlines())} >= of_machines


def test_owners_are_those_of_duckdb(tmp_path: Path) -> None:
    (tmp_path / "of").mkdir()
    for number in range(4):
        name = f"h{number}"
        lake_of(
            tmp_path,
            host(tmp_path / "of", name, ledger(slab=400, page_tables=10)),
            host(tmp_path / "of", name, ledger(slab=600 + 100 * number, page_tables=90), at=3),
            host(tmp_path / "of", name, leak(1000 * (number + 1)), at=4),
        )
    said = same_on_spark("lake", "findings", tmp_path / "lake", "--by", "owner", "--format", "csv")
    for words in ("ledger class,slab,true,4", "ledger class,page tables", "xfs_buf_alloc [xfs]"):
        assert words in said


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    lake_of(tmp_path, small(tmp_path / "one", "a"))
    env = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = run("lake", "findings", tmp_path / "lake", "--engine", "spark", env=env)
    assert (done.returncode, done.stdout) == (2, "")
    said = done.stderr.splitlines()[-1]
    assert said.startswith("mmscope: --engine spark: Spark does not start")
    assert "apt install default-jre-headless" in said


def test_a_worker_without_mmscope_says_what_to_install(tmp_path: Path) -> None:
    lake_of(tmp_path, small(tmp_path / "one", "a"))
    without = tmp_path / "python"
    # What Spark brings itself, and nothing that is installed.
    without.write_text(
        f'#!/bin/sh\nPYTHONPATH=$(echo "$PYTHONPATH" | tr : "\\n" | grep [.]zip | paste -sd :)\n'
        f'exec {sys.executable} -S "$@"\n'
    )
    without.chmod(0o755)
    env = os.environ | {"PYSPARK_PYTHON": str(without)}
    done = run("lake", "findings", tmp_path / "lake", *ON_SPARK, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'mmscope[report]' there" in done.stderr.splitlines()[-1]
