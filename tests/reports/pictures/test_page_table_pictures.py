# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pictures of page tables, held against the tables that they are drawn from."""

import dataclasses
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from hypothesis import given
from hypothesis import strategies as st
from page_tree import NOTHING, by_id, elements, parse, texts
from rows_of_tables import Contents

from mmscope.drgn.page_tables.page_tables import PageTables
from mmscope.reports.page.report import render
from mmscope.reports.pictures.page_table_pictures import (
    KINDS,
    SHADES,
    page_tables,
    shade,
    used_bytes,
)

PAGE = 4096
NAMES = ("page_tables", "exit_costs", "page_table_occupancy", "page_table_regions")


def contents() -> dict[str, Contents]:
    return {name: made.tables()[name] for name in NAMES}


def tables() -> dict[str, list[dict[str, Any]]]:
    return {name: [asdict(row) for row in table[2]] for name, table in contents().items()}


def test_the_processes_with_the_most_tables_come_first() -> None:
    drawn = page_tables.draw(tables(), PAGE)
    assert [tree["row"]["comm"] for tree in drawn["trees"]] == ["reader", "huge", "init"]
    assert drawn["total"] == sum(row["pgtables_bytes"] for row in tables()["page_tables"])
    assert drawn["trees"][2]["used"] == 3_276_800 + 60 * PAGE


def test_a_levels_segments_are_its_tables() -> None:
    drawn = page_tables.draw(tables(), PAGE)
    for tree in drawn["trees"]:
        for level in tree["levels"]:
            rows = [
                row
                for row in tables()["page_table_occupancy"]
                if (row["pid"], row["level"]) == (tree["row"]["pid"], level["name"])
            ]
            assert level["tables"] == sum(row["tables"] for row in rows)
            assert level["entries"] == sum(row["entries"] for row in rows)
            assert sum(width for _, _, width, _ in level["parts"]) == pytest.approx(100, abs=0.01)
            ends = [at + width for _, at, width, _ in level["parts"]]
            starts = [at for _, at, *_ in level["parts"][1:]]
            assert starts == pytest.approx(ends[:-1], abs=0.01)
    reader = {level["name"]: level for level in drawn["trees"][0]["levels"]}
    assert list(reader) == ["pgd", "pud", "pmd", "pte"]
    # Bars are as long as there are tables, but none is too short to be seen.
    assert reader["pte"]["width"] == 100
    assert reader["pmd"]["width"] == reader["pgd"]["width"] == 0.3  # 41 and 1 of 20,000
    small = {level["name"]: level for level in drawn["trees"][1]["levels"]}
    most = max(level["tables"] for level in small.values())
    assert small["pmd"]["width"] == pytest.approx(100 * small["pmd"]["tables"] / most, abs=0.01)
    assert [title for *_, title in reader["pte"]["parts"]] == [
        "19,990 pte tables with 1 of 512 entries in use",
        "10 pte tables with 64 or more of 512 entries in use",
    ]


@given(st.integers(0, 512))
def test_every_number_of_entries_has_its_shade(entries: int) -> None:
    words = SHADES[shade(entries, 512)]
    low, high = {
        "none": (0, 0), "1": (1, 1), "2 to 7": (2, 7), "8 to 63": (8, 63),
        "64 or more": (64, 511), "all": (512, 512),
    }[words]  # fmt: skip
    assert low <= entries <= high


def test_regions_lie_side_by_side_and_hold_what_the_table_says() -> None:
    drawn = page_tables.draw(tables(), PAGE)
    for tree in drawn["trees"]:
        ends = [region["at"] + region["width"] for region in tree["regions"]]
        starts = [region["at"] for region in tree["regions"][1:]]
        assert all(end < start for end, start in zip(ends, starts, strict=False))
        assert ends[-1] == pytest.approx(100, abs=0.01)
        for region in tree["regions"]:
            assert sum(height for *_, height in region["parts"]) <= 100.01
            assert 0 <= region["tables"] <= 100
        rows = [r for r in tables()["page_table_regions"] if r["pid"] == tree["row"]["pid"]]
        said = {look: amount for look, _, amount in tree["legend"]}
        for kind, _ in KINDS:
            assert said.get(f"pt-{kind}", 0) == sum(row[f"{kind}_bytes"] for row in rows)


def test_the_axis_of_regions_has_their_sizes_where_there_is_room() -> None:
    trees = page_tables.draw(tables(), PAGE)["trees"]
    regions = [region for tree in trees for region in tree["regions"]]
    assert all(bool(region["label"]) == (region["width"] >= 17) for region in regions)
    assert any(region["label"] for region in regions)


def test_what_is_small_can_be_seen() -> None:
    reader = page_tables.draw(tables(), PAGE)["trees"][0]
    # 78 MiB of tables' worth of zero pages in 40 GiB: a five-hundredth.
    assert [(look, height) for look, _, height in reader["regions"][1]["parts"]] == [
        ("pt-zero", 5.0)
    ]


def test_from_proc_alone_there_are_sizes_alone() -> None:
    rows = [
        {f.name: None for f in dataclasses.fields(PageTables)}
        | {"pid": n, "comm": "x", "pgtables_bytes": n << 20, "resident_bytes": 5}
        for n in (1, 2)
    ]
    drawn = page_tables.draw({"page_tables": rows}, PAGE)
    assert not drawn["known"] and not drawn["trees"]
    assert [(row["pid"], used) for row, used in drawn["listed"]] == [(2, 5), (1, 5)]
    assert used_bytes(rows[0] | {"resident_bytes": None}, PAGE) is None


def test_without_a_page_size_what_is_swapped_out_has_no_size() -> None:
    row = {"resident_bytes": 8192, "hugetlb_bytes": None, "swap_ptes": 3}
    assert used_bytes(row, 16384) == 8192 + 3 * 16384
    assert used_bytes(row, None) is None
    assert used_bytes(row | {"swap_ptes": 0}, None) == 8192


def test_the_page_says_it_in_words_too(tmp_path: Path) -> None:
    tree = parse(render(made.write_bundle(tmp_path / "b", contents()), NOTHING))
    picture = by_id(tree, "picture-page_tables")
    said = " ".join(texts(picture).split())
    assert "Process 4711 reader: 78.29 MiB of tables for 400 KiB in use" in said
    assert "PTE: 20,000, 0.2 % full" in said
    assert "deposited PTE: 700" in said
    assert "Its end walks 10,240,000 slots and frees 20,044 tables: 18 ms by estimate" in said
    titles = [texts(element) for element in elements(picture, "title")]
    assert any(
        "0x7f0000000000-0x7f0a00000000: 1 mapping, 40 GiB; 19,998 PTE tables (78.12 MiB); "
        "78.12 MiB the shared zero page" in title
        for title in titles
    )


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_table_that_is_missing_costs_its_part_only(tmp_path: Path, name: str) -> None:
    left = {other: table for other, table in contents().items() if other != name}
    tree = parse(render(made.write_bundle(tmp_path / "b", left), NOTHING))
    said = texts(by_id(tree, "picture-page_tables"))
    assert "4711 reader" in " ".join(said.split())
    assert "No picture" not in said
