# SPDX-License-Identifier: LGPL-2.1-or-later
"""Databases of findings, bundles and lakes."""

import pytest

from mmscope.reports.bundle.database import connect


@pytest.mark.parametrize(("memory", "threads"), [("256MiB", 1), ("1GiB", None)])
def test_no_database_draws_progress_where_a_program_reads_or_writes_to_the_disk(
    memory: str, threads: int | None
) -> None:
    settings = ("enable_progress_bar", "temp_directory")
    asked = ", ".join(f"current_setting('{name}')" for name in settings)
    assert connect(memory, threads).execute(f"select {asked}").fetchone() == (False, "")
