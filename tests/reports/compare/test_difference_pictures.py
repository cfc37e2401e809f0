# SPDX-License-Identifier: LGPL-2.1-or-later
"""What differs, drawn: each number worked out by hand, and of real bundles held against sums."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from checkout import TESTS
from page_tree import NOTHING, elements, parse, texts

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.compare.comparison import compare
from mmscope.reports.compare.difference_pictures import UNCHANGED, free_lists, pageblocks, unusable
from mmscope.reports.page.report import render

REAL = TESTS / "bundles" / "v0.1.0"
Rows = list[dict[str, Any]]


def lists(*rows: tuple[str, str, int, int]) -> Rows:
    return [
        {"node": 0, "zone": zone, "migratetype": kind, "order": order, "blocks": blocks}
        for zone, kind, order, blocks in rows
    ]


def runs(*rows: tuple[int, int, str]) -> Rows:
    return [
        {"start_pfn": start * 512, "blocks": blocks, "node": 0, "zone": "Normal",
         "migratetype": kind, "free_eighths": 3}
        for start, blocks, kind in rows
    ]  # fmt: skip


class TestFreeLists:
    def test_have_what_came_and_what_went(self) -> None:
        before = lists(
            ("Normal", "Movable", 0, 100), ("Normal", "Movable", 9, 40), ("DMA", "Movable", 0, 7)
        )
        after = lists(
            ("Normal", "Movable", 0, 90), ("Normal", "HighAtomic", 9, 40), ("DMA", "Movable", 0, 7)
        )
        ((_, zone, lines, *free),), same = free_lists(before, after, 4096)
        assert (same, zone) == (1, "Normal")
        assert free == [100 + 40 * 512, 90 + 40 * 512]
        cells = {
            (migratetype, order): (blocks, pages, look)
            for migratetype, cells, _ in lines
            for order, blocks, pages, look in cells
        }
        assert cells == {
            ("Movable", 0): (-10, -10, "less-1"),
            ("Movable", 9): (-40, -40 * 512, "less-2"),
            ("HighAtomic", 0): (0, 0, "same"),
            ("HighAtomic", 9): (40, 40 * 512, "more-2"),
            (None, 0): (-10, -10, "less-1"),
            (None, 9): (0, 0, "same"),
        }

    def test_the_zone_that_differs_most_is_first(self) -> None:
        before = lists(("DMA", "Movable", 0, 5), ("Normal", "Movable", 9, 9))
        after = lists(("DMA", "Movable", 0, 6), ("Normal", "Movable", 9, 7))
        assert [zone for _, zone, *_ in free_lists(before, after, None)[0]] == ["Normal", "DMA"]

    @pytest.mark.parametrize("order", [-1, 60])
    def test_an_order_that_cannot_be_is_an_error(self, order: int) -> None:
        with pytest.raises(ValueError, match="order"):
            free_lists(lists(("DMA", "Movable", order, 5)), [], 4096)

    def test_real_ones_add_up(self) -> None:
        rows = list(Bundle(REAL).rows("free_blocks"))
        less = [row | {"blocks": row["blocks"] // 2} for row in rows]
        for _, _, lines, was, now in free_lists(rows, less, 4096)[0]:
            *of_types, whole = [pages for *_, pages in lines]
            assert sum(of_types) == whole == now - was
        assert free_lists(rows, rows, 4096)[0] == []


def test_the_index_of_both() -> None:
    before = lists(
        ("Normal", "Movable", 0, 512), ("Normal", "Movable", 9, 1), ("DMA", "Movable", 9, 1)
    )
    after = lists(
        ("Normal", "Movable", 0, 1024), ("Normal", "Movable", 9, 0), ("DMA", "Movable", 9, 1)
    )
    orders, zones = unusable(before, after, 4096)
    assert (orders, zones) == ([0, 9], [("node 0 Normal", [(0, 0), (0.5, 1)])])


class TestPageblocks:
    def test_are_coloured_by_what_they_are_now(self) -> None:
        before = runs((0, 10, "Movable"), (10, 4, "Unmovable"))
        after = runs(
            (0, 3, "Movable"), (3, 2, "HighAtomic"), (5, 6, "Movable"), (11, 3, "Unmovable")
        )
        drawn, changed, same, moves = pageblocks(before, after, 4096)
        assert (changed, same) == (3, 11)
        assert moves == [("Movable", "HighAtomic", 2), ("Unmovable", "Movable", 1)]
        assert drawn is not None
        legend = {item.migratetype: item.blocks for item in drawn.legend}
        assert legend == {"HighAtomic": 2, "Movable": 1, UNCHANGED: 11}

    def test_memory_that_came_or_went_is_said(self) -> None:
        before = runs((0, 4, "Movable"), (4, 2, "Unmovable"))
        after = runs((0, 4, "Movable"), (8, 2, "Movable"), (10, 1, "Unmovable"))
        *_, moves = pageblocks(before, after, 4096)
        assert sorted(moves) == [
            ("Unmovable", "not there any more", 2),
            ("not there", "Movable", 2),
            ("not there", "Unmovable", 1),
        ]

    def test_the_same_has_no_map(self) -> None:
        rows = list(Bundle(REAL).rows("pageblock_map"))
        assert pageblocks(rows, rows, 4096) == (None, 0, 768, [])


def test_a_comparison_has_one_picture_of_each_and_none_twice(tmp_path: Path) -> None:
    contents = made.tables()
    title, row_type, rows, section = contents["free_blocks"]
    before = made.write_bundle(tmp_path / "a", contents)
    more = [replace(row, blocks=row.blocks + 3, pages=row.pages + (3 << row.order)) for row in rows]
    contents["free_blocks"] = title, row_type, more, section
    after = made.write_bundle(tmp_path / "b", contents)
    comparison = compare(before, after, (NOTHING, NOTHING), draw=False)
    tree = parse(render(after, NOTHING, comparison))
    names = [str(e.get("id")) for e in elements(tree, "h3")]
    assert [name for name in names if name.startswith("difference-")] == [
        "difference-free_lists", "difference-unusable", "difference-pageblocks",
    ]  # fmt: skip
    assert "Side by side" not in texts(tree)


def test_a_damaged_table_costs_its_picture(tmp_path: Path) -> None:
    contents = made.tables_of("free_lists", "pageblocks", "zones")
    bundles = [made.write_bundle(tmp_path / name, contents) for name in "ab"]
    bundles[0].tables["pageblock_map"].path.write_text("start_pfn\nnone\n")
    comparison = compare(bundles[0], bundles[1], (NOTHING, NOTHING), draw=False)
    html = render(bundles[1], NOTHING, comparison)
    assert "difference-free_lists" in html and "difference-pageblocks" not in html
