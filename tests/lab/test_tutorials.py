# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tutorials of ``docs/`` that begin with a vmcore print what they say."""

from collections.abc import Callable
from pathlib import Path

import pytest
from capture import capture
from roles import resolve
from tutorial_pages import follow


@pytest.mark.parametrize(
    ("page", "workload", "commands"),
    [("tutorial-lost-memory.md", "leak", 4), ("tutorial-thp.md", "fragment", 4)],
)
def test_prints_what_it_says(
    page: str, workload: str, commands: int, tmp_path: Path, say: Callable[[str], None]
) -> None:
    taken = capture(resolve("stable"), workload, say=say)
    files = {"vmcore": taken.vmcore, "case": tmp_path / "case"}
    assert follow(page, tmp_path, files) == commands
