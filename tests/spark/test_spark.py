# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The findings on Spark: each bundle is told what it is told alone, and what DuckDB tells of it in a
lake. Local, and on a cluster of a master and two workers.
"""

import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from command_line import run
from test_findings import FOUND
from test_lake import KILLS, QUESTIONS, fleet, lake_of, paths, small  # noqa: F401

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.outcome import Refused
from mmscope.reports.findings.findings import evaluate, finding_of, named
from mmscope.reports.lake.adding import identity
from mmscope.reports.lake.asking import answers, kernels
from mmscope.reports.lake.batch import load
from mmscope.reports.lake.catalog import read_catalog
from mmscope.reports.lake.spark import session, spark_engine

SPARK = Path(pyspark.__file__).parent
WORKER = re.compile(r"Registering worker")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session("local[2]") as one:
        yield one


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, paths: list[Path]) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("spark")
    assert not lake_of(folder, *paths)
    return folder / "lake"


def same(one: Any, other: Any) -> bool:
    """The same value of the same type; doubles may differ in what the order of a sum changes."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)


def as_text(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(
        repr({k: float(f"{v:.12g}") if isinstance(v, float) else v for k, v in row.items()})
        for row in rows
    )


def test_each_row_and_each_reason_is_that_of_duckdb(spark: Any, lake: Path) -> None:
    catalog = read_catalog(lake)
    batch = load(catalog, catalog.bundles, named(QUESTIONS))
    by_duckdb = {answer.question.id: answer for answer in answers(batch, QUESTIONS)}
    began = time.monotonic()
    differ, fired = [], set()
    for answer in answers(batch, QUESTIONS, spark_engine(spark, catalog)(batch)):
        id = answer.question.id
        other = by_duckdb[id]
        fired |= {id} if answer.rows else set()
        if answer.refused != other.refused or answer.asked != other.asked:
            differ.append((id, "refused", {n: w for n, w in answer.refused.items() if other.refused.get(n) != w}))  # fmt: skip
            continue
        for number in other.rows.keys() | answer.rows.keys():
            here, there = answer.rows.get(number, []), other.rows.get(number, [])
            if len(here) != len(there) or not all(
                a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
                for a, b in zip(here, there, strict=True)
            ):
                differ.append((id, number, here, there))
    print(f"{len(catalog.bundles)} bundles, {time.monotonic() - began:.1f} s")
    assert not differ, "\n".join(map(str, differ))
    profiles = {question.id for question in QUESTIONS if question.id.startswith("profile-")}
    assert fired | profiles >= {question.id for question in QUESTIONS}
