# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A table's file is read as the csv module reads it, also where it is taken apart without that.
"""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.tables.rows import csv_line
from mmscope.drgn.text.plain_file import open_lines
from mmscope.reports.bundle import cells
from mmscope.reports.bundle.cells import read_columns


def rows_of(folder: Path, text: str, width: int) -> list[tuple[str, ...]] | None:
    """The rows behind a first line of so many names; None where something is odd."""
    names = [f"c{number}" for number in range(width)]
    path = folder / "t.csv"
    path.write_bytes((",".join(names) + "\n" + text).encode())
    with open_lines(path) as raw:
        try:
            return [row for part in read_columns(raw, names) for row in zip(*part, strict=True)]
        except (ValueError, csv.Error):
            return None


def by_csv(text: str, width: int) -> list[tuple[str, ...]] | None:
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return None
    return None if any(len(line) != width for line in lines) else [tuple(line) for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@given(st.text('ab,"\r\n\0é\x85\u2028', max_size=30), st.integers(1, 3))
def test_any_text_has_the_rows_that_csv_finds_or_is_odd(
    folder: Path, text: str, width: int
) -> None:
    assert rows_of(folder, text, width) == by_csv(text, width)


@given(st.lists(st.lists(st.text('ab,"\n\r', max_size=4), min_size=2, max_size=2)))
def test_any_cells_come_back_in_small_pieces(folder: Path, lines: list[list[str]]) -> None:
    text = "".join(map(csv_line, lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "PIECE", 3)
        assert rows_of(folder, text, 2) == [tuple(line) for line in lines]


@pytest.mark.parametrize("row", ["1\n", "1,2,3\n", "\n", "1,2,3\n4\n", "1\n2,3,4\n"])
def test_a_line_of_another_number_of_cells_is_odd(folder: Path, row: str) -> None:
    assert rows_of(folder, "1,2\n" + row, 2) is None
