# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose memory it is on several hosts: Spark says what DuckDB says, of findings and of ledgers."""

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="mmscope[spark] is not installed: make test-spark")

from command_line import run
from made_lake import lake_of
from made_owners import host, leak, ledger


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
    asked = ["lake", "findings", tmp_path / "lake", "--by", "owner", "--format", "csv"]
    by_duckdb = run(*asked)
    by_spark = run(*asked, "--engine", "spark", "--master", "local[2]", env=os.environ)
    assert by_spark.stdout == by_duckdb.stdout
    assert by_spark.returncode == by_duckdb.returncode == 0
    for words in ("ledger class,slab,true,4", "ledger class,page tables", "xfs_buf_alloc [xfs]"):
        assert words in by_duckdb.stdout
