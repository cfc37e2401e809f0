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

from mmscope.drgn.tables.bounds import Machine, impossible
from mmscope.drgn.tables.rows import Bound, Column, csv_line
from mmscope.drgn.text.plain_file import open_lines
from mmscope.reports.bundle import cells
from mmscope.reports.bundle.cells import check_cells, plain_rows, read_pieces, values_of


def a_column(
    name: str, kind: str, nullable: bool = True, low: Bound | None = None, high: Bound | None = None
) -> Column:
    bounds = (() if bound is None else (bound,) for bound in (low, high))
    return Column(name, kind, nullable, "", "", False, "", *bounds)


def rows_of(folder: Path, text: str, width: int) -> list[tuple[str, ...]] | None:
    """The rows behind a first line of so many names; None where something is odd."""
    described = [a_column(f"c{number}", "string") for number in range(width)]
    path = folder / "t.csv"
    path.write_bytes((",".join(c.name for c in described) + "\n" + text).encode())
    with open_lines(path) as raw:
        try:
            parts = [piece.columns() for piece in read_pieces(raw, described, Machine())]
            return [row for part in parts for row in zip(*part, strict=True)]
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


CELLS = st.from_regex(
    r"-?[0-9]{0,3}(\.[0-9]{1,2})?(e[-+]?[0-9]{1,3})?|true|[ab]{0,3}", fullmatch=True
)
LIMITS = st.sampled_from(
    (None, -100, -11, -1, 0, 1, 2, 9, 10, 11, 99, 100, 1 << 64, "total_pages", "c1")
)


@given(st.data())
def test_a_plain_row_is_within_all_that_its_columns_declare(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(("integer", "number", "string", "boolean")))
    column = a_column("c0", kind, data.draw(st.booleans()), data.draw(LIMITS), data.draw(LIMITS))
    described = [column, a_column("c1", "integer", True, -9, 9)]
    machine, row = Machine(total_pages=50), (data.draw(CELLS), data.draw(st.just("") | CELLS))
    plain = plain_rows(described, machine)
    if plain and plain.fullmatch(csv_line(cell or None for cell in row)):
        for c, cell in zip(described, row, strict=True):
            check_cells(c, [cell])
        values = [values_of(c, [cell]) for c, cell in zip(described, row, strict=True)]
        assert not impossible("t", described, values, machine)


def test_usual_rows_are_plain() -> None:
    described = [
        a_column("pages", "integer", False, 0, "total_pages"),
        a_column("gained", "integer", True, -1000, 1000),
        a_column("share", "number", True, 0, 1),
        a_column("comm", "string", False, 1, 15),
        a_column("dying", "boolean", False),
    ]
    plain = plain_rows(described, Machine(total_pages=1 << 20))
    assert plain and plain.fullmatch(
        "123456,-99,0.5,kswapd0,true\n0,,,ü,false\n1,0,0.3e-05,x,true\n"
    )
    assert not plain_rows([*described, a_column("free", "integer", high="pages")], Machine())


@given(st.lists(st.text("ab", max_size=4), min_size=1))
def test_pieces_that_are_plain_have_the_same_rows(folder: Path, names: list[str]) -> None:
    text = "".join(f"{name},{number}\n" for number, name in enumerate(names))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells, "PIECE", 3)
        assert rows_of(folder, text, 2) == [(name, str(n)) for n, name in enumerate(names)]
