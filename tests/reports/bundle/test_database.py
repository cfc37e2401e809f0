# SPDX-License-Identifier: LGPL-2.1-or-later
"""Databases of findings, bundles and lakes."""

import re

import pytest
from checkout import TESTS
from command_line import run

from mmscope.reports.bundle.database import connect


@pytest.mark.parametrize(("memory", "threads"), [("256MiB", 1), ("1GiB", None)])
def test_no_database_draws_progress_where_a_program_reads_or_writes_to_the_disk(
    memory: str, threads: int | None
) -> None:
    settings = ("enable_progress_bar", "temp_directory")
    asked = ", ".join(f"current_setting('{name}')" for name in settings)
    assert connect(memory, threads).execute(f"select {asked}").fetchone() == (False, "")


def test_where_addresses_are_too_few_a_command_ends_by_a_line_and_no_signal() -> None:
    bundle = sorted((TESTS / "bundles").glob("*/datapackage.json"))[-1].parent
    done = run("why", bundle, prefix=["sh", "-c", 'ulimit -v 400000; exec "$@"', "-"])
    assert done.returncode == 3
    assert re.fullmatch(r"mmscope: DuckDB may crash .*: ulimit -v \d+\n", done.stderr)
