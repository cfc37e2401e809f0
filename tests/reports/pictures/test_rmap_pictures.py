# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pictures of reverse maps, held against the tables that they are drawn from."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
import rmap_rows
from hypothesis import given
from hypothesis import strategies as st
from page_tree import NOTHING, by_id, elements, parse, texts

from mmscope.reports.page.report import render
from mmscope.reports.pictures.rmap_pictures import (
    HEIGHT,
    anon_vma_fanout,
    anon_vma_map,
    file_mapping_fanout,
    milliseconds,
    outline,
    rmap_visits,
)


def tables() -> dict[str, list[dict[str, Any]]]:
    return {
        name: [asdict(row) for row in rows] for name, (_, _, rows, _) in rmap_rows.tables().items()
    }


def heights(path: str) -> list[int]:
    """The bars of an outline, as a renderer would follow it."""
    found: list[int] = []
    height = 0
    for across, down in re.findall(r"H(\d+)(?:V(\d+))?", path):
        found += [height] * (int(across) - len(found))
        height = HEIGHT - int(down) if down else height
    return found


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=50))
def test_an_outline_has_a_bar_for_every_value(values: list[int]) -> None:
    peak = max(values)
    drawn = heights(outline(values, peak))
    assert len(drawn) == len(values)
    for value, height in zip(values, drawn, strict=True):
        assert (height > 0) == (value > 0)
        assert 0 <= height <= HEIGHT
        assert not value or abs(height - HEIGHT * value / peak) <= 1


def test_shares_of_the_fanout_have_their_wholes() -> None:
    data = anon_vma_fanout.draw(tables(), 4096)
    assert (data["trees"], data["vmas"]) == (733, 20_890)
    largest = data["rows"][-1]
    assert (largest["vmas"], largest["ksm_items"]) == (rmap_rows.VMAS, rmap_rows.VMAS)


def test_bars_of_the_fanout_are_as_long_as_their_shares(tmp_path: Path) -> None:
    page = parse(render(made.write_bundle(tmp_path / "b", rmap_rows.tables()), NOTHING))
    table = elements(by_id(page, "picture-anon_vma_fanout"), "table")[0]
    shares = [e.get("aria-label") for e in elements(table, "svg")]
    assert shares[-2:] == ["0.14 per cent", "95.74 per cent"]
    table = elements(by_id(page, "picture-file_mapping_fanout"), "table")[0]
    assert elements(table, "svg")[-1].get("aria-label") == "98.04 per cent"


def test_the_map_says_whose_it_is_and_why() -> None:
    picture = anon_vma_map.draw(tables(), 4096)
    assert picture is not None
    assert (picture["of"]["comm"], picture["of"]["pid"]) == ("java", 4711)
    assert picture["split"]["made_by"] == "mprotect"
    wanted = {"vmas": 20_000, "pages": 20_000, "stretch": 400, "width": 50}
    assert wanted.items() <= picture.items()
    assert heights(picture["all_path"]) == [HEIGHT] * 50
    assert heights(picture["writable_path"]) == [HEIGHT // 2] * 50
    assert heights(picture["ksm_path"])[:3] == [0, HEIGHT // 2, HEIGHT]


def test_page_offsets_of_older_bundles_are_plain_numbers() -> None:
    older = tables()
    for row in older["anon_vma_map"]:
        row["index"] = int(row["index"], 16)
    picture = anon_vma_map.draw(tables(), 4096)
    assert picture is not None and picture["first_index"] == 0x7FD1234CC
    assert anon_vma_map.draw(older, 4096) == picture


def test_a_machine_without_anon_vmas_or_ksm_has_pictures_too() -> None:
    empty = {name: [] for name in tables()}
    assert anon_vma_map.draw(empty, 4096) is None
    assert anon_vma_fanout.draw(empty, 4096)["rows"] == []
    assert rmap_visits.draw(empty, None)["bars"] == []
    unknown = tables()
    for row in unknown["anon_vma_map"]:
        row["ksm_items"] = None
    picture = anon_vma_map.draw(unknown, 4096)
    assert picture is not None and picture["ksm_items"] is None


def test_visits_of_a_page_are_those_of_one_pass() -> None:
    drawn = rmap_visits.draw(tables(), 4096)
    (_, (whole, whole_at, whole_time), (indexed, indexed_at, indexed_time)), everything = drawn[
        "bars"
    ]
    assert (whole, indexed, drawn["here"]) == (5_120_000, 256, "whole range")
    assert (whole_time, indexed_time) == ("307 ms", "0.015 ms")
    assert everything[1][:2] == (rmap_rows.COST.visits, 100)
    assert 0 < indexed_at < whole_at < 100
    ticks = dict(drawn["ticks"])
    assert list(ticks)[:3] == ["1", "1,000", "1,000,000"] and ticks["1"] == 0
    assert indexed_at < ticks["1,000"] < ticks["1,000,000"] < whole_at


def test_shares_of_files_have_their_wholes() -> None:
    data = file_mapping_fanout.draw(tables(), 4096)
    assert (data["tree"], data["trees"], data["vmas"]) == ("file", 41, 2_040)
    assert not data["with_ksm"]


@pytest.mark.parametrize("table", ["anon_vma_fanout", "anon_vma_map"])
def test_a_table_of_absurd_length_is_not_drawn(table: str) -> None:
    absurd = tables()
    absurd[table] *= 200
    with pytest.raises(ValueError, match="more than"):
        {p.name: p for p in (anon_vma_fanout, anon_vma_map)}[table].draw(absurd, 4096)


@pytest.mark.parametrize(
    ("value", "words"),
    [(48_000, "48 s"), (614.4, "614 ms"), (7.25, "7.2 ms"), (0.0307, "0.031 ms"), (0, "0 ms")],
)
def test_an_estimate_has_no_more_digits_than_it_deserves(value: float, words: str) -> None:
    assert milliseconds(value) == words


def test_the_page_says_that_times_are_assumed(tmp_path: Path) -> None:
    contents = rmap_rows.tables()
    page = parse(render(made.write_bundle(tmp_path / "b", contents), NOTHING))
    told = texts(by_id(page, "picture-rmap_visits"))
    assert "5,120,000 visits, about 307 ms" in told and "256 visits, about 0.015 ms" in told
    assert "this kernel: whole range" in told and "60 ns a visit, an assumption" in told
    assert "The bars are logarithmic" in told
    # And on the axis, beside its ticks.
    assert "visits, logarithmic 1 1,000 1,000,000" in " ".join(told.split())
    assert "5,783 visits in one walk of each of the 1,046 anonymous folios" in told
    assert "KSM pages: these are walked" not in told  # they are not, on this kernel
    told = texts(by_id(page, "picture-file_mapping_fanout"))
    assert "2,040 links of VMAs to 41 files" in told and "KSM" not in told
    assert "ancestors" in texts(by_id(page, "picture-anon_vma_fanout"))
    told = texts(by_id(page, "picture-anon_vma_map"))
    assert "20,000 VMAs on anon_vma 0xffff888100a81c30 of java (4711)" in told
    assert elements(by_id(page, "picture-anon_vma_map"), "path")
