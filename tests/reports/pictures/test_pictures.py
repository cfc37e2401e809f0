# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The pictures, held against the tables that they are drawn from: no cell too many, no number wrong.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import report_bundle as made
from page_tree import NOTHING, by_id, cells, elements, parse, texts
from rows_of_tables import Contents

from mmscope import FOLDER
from mmscope.drgn.free.watermarks import thp_order, unusable_free_index
from mmscope.drgn.tables import display
from mmscope.reports.drawing.charts import MAX_LINES, Tick, line_chart
from mmscope.reports.page.report import render
from mmscope.reports.pictures import counters, free_heatmap, pageblock_map, watermarks
from mmscope.reports.pictures.pageblock_map import COLUMNS, MAX_CELLS

PAGE = 4096


def rows_of(name: str) -> list[dict[str, Any]]:
    return [asdict(row) for row in made.tables()[name][2]]


def run(
    start: int, blocks: int, migratetype: str = "Movable", free: int | None = 0
) -> dict[str, Any]:
    return {
        "start_pfn": start * 512,
        "blocks": blocks,
        "node": 0,
        "zone": "Normal",
        "migratetype": migratetype,
        "free_eighths": free,
    }


class Stroke(NamedTuple):
    look: str
    path: str
    x: float
    y: float
    height: float
    dash: str


class Map:
    """The map as it is laid out."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        laid_out = pageblock_map.lay_out(rows, PAGE)
        self.strokes = [Stroke(*stroke) for stroke in laid_out.pop("strokes")]
        vars(self).update(laid_out)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def strokes_at(stroke: Stroke | str) -> list[tuple[int, int]]:
    """The cells (row, column) that a path goes over, as a renderer would follow it."""
    path = stroke.path if isinstance(stroke, Stroke) else stroke
    found, x, y = [], 0, 0
    for across, down, length in re.findall(r"[Mm](-?\d+) (-?\d+)h(\d+)", path):
        x, y = x + int(across), y + int(down)
        found += [(y, x + step) for step in range(int(length))]
        x += int(length)
    return found


def drawn(picture: Map, kind: str) -> list[tuple[int, int]]:
    return [cell for s in picture.strokes if kind in s.look.split() for cell in strokes_at(s)]


class TestPageblockMap:
    picture = Map(rows_of("pageblock_map"))

    def test_every_pageblock_is_a_cell_and_none_is_drawn_twice(self) -> None:
        ground = drawn(self.picture, "pb-free")
        assert len(ground) == len(set(ground)) == self.picture.blocks == 768

    def test_every_cell_has_its_pageblocks_type_at_its_place(self) -> None:
        expected = {}
        line = -1
        for row in rows_of("pageblock_map"):
            for block in range(row["start_pfn"] // 512, row["start_pfn"] // 512 + row["blocks"]):
                # 512 MiB, then a hole, then 1 GiB from 4 GiB on: rows 0 to 3, one for the hole.
                line = block // COLUMNS if block < 256 else 5 + block // COLUMNS - 2048 // COLUMNS
                expected[line, block % COLUMNS] = pageblock_map.look(row["migratetype"])
        seen = {
            cell: stroke.look.split()[0]
            for stroke in self.picture.strokes
            if "pb-free" in stroke.look
            for cell in strokes_at(stroke)
        }
        assert seen == expected
        assert self.picture.rows == line + 1

    def test_the_used_part_is_as_high_as_what_is_not_free(self) -> None:
        heights = {
            cell: stroke.height
            for stroke in self.picture.strokes
            if "pb-used" in stroke.look
            for cell in strokes_at(stroke)
        }
        area = sum(heights.values())
        used = sum(row["blocks"] * (8 - row["free_eighths"]) for row in rows_of("pageblock_map"))
        assert area * 8 == used
        for stroke in self.picture.strokes:  # from the bottom of the cell
            if "pb-used" in stroke.look:
                assert stroke.y + stroke.height / 2 == 1

    def test_rare_types_have_a_mark_beside_their_colour(self) -> None:
        marked = {s.look.split()[0] for s in self.picture.strokes if "pb-mark" in s.look}
        assert marked == {"mt-highatomic", "mt-isolate", "mt-cma", "mt-reclaimable"}

    def test_zones_are_named_where_they_begin(self) -> None:
        begins = [
            tuple(zone[name] for name in ("node", "zone", "row", "column"))
            for zone in self.picture.zones
        ]
        assert begins == [(0, "DMA", 0, 0), (0, "DMA32", 0, 8), (1, "Normal", 5, 0)]
        assert self.picture.zone_labels == [(0, "node 0 DMA, DMA32"), (5, "node 1 Normal")]

    def test_rows_have_their_physical_address_and_holes_their_size(self) -> None:
        assert [address for *_, address in self.picture.labels][:5] == [
            "0x0",
            "0x8000000",
            "0x10000000",
            "0x18000000",
            "0x100000000",
        ]
        assert self.picture.gaps == [(4, "3.5 GiB")]

    def test_every_run_tells_its_pages(self) -> None:
        words = [title for _, title in self.picture.titles]
        assert len(words) == len(rows_of("pageblock_map"))
        assert words[0] == "PFN 0x0-0x1ff, 1 pageblock, node 0 DMA, Unmovable, nothing free"
        assert sum(len(strokes_at(path)) for path, _ in self.picture.titles) == 768

    def test_the_legend_counts_every_pageblock_once(self) -> None:
        counted = {item["migratetype"]: item["blocks"] for item in self.picture.legend}
        census: Counter[str] = Counter()
        for row in rows_of("pageblocks"):
            census[row["migratetype"]] += row["blocks"]
        assert counted == dict(census)
        for item in self.picture.legend:
            assert item["known"] and item["all_free"] + item["none_free"] <= item["blocks"]

    def test_the_size_of_a_pageblock_comes_from_the_runs(self) -> None:
        small = [row | {"start_pfn": number * 64} for number, row in enumerate([run(0, 1)] * 3)]
        picture = Map(small)
        assert (picture.block_pages, picture.assumed) == (64, False)

    def test_distant_runs_do_not_make_pageblocks_large(self) -> None:
        picture = Map([run(0, 1), run(4, 1)])
        assert (picture.block_pages, picture.assumed) == (512, True)

    def test_an_unknown_free_share_is_drawn_as_used_and_said(self) -> None:
        picture = Map([run(0, 3, free=None)])
        assert picture.unknown_share
        assert len(drawn(picture, "pb-used")) == 3
        assert not picture.legend[0]["known"]

    def test_an_unknown_migratetype_has_a_look_of_its_own(self) -> None:
        picture = Map([run(0, 3, "<b>"), run(3, 3, "unknown")])
        assert {s.look.split()[0] for s in picture.strokes} == {"mt-other"}
        assert len(drawn(picture, "pb-free")) == 6

    @pytest.mark.parametrize(
        "rows",
        [
            [],
            [run(0, 0)],
            [run(0, -5)],
            [run(-1, 1)],
            [run(0, 1), run(1, 3), run(2, 1), run(3, 1)],
            [run(0, 1 << 40)],
            [run(1 << 50, 1)],
            [run(0, 1 << 27)],
        ],
    )
    def test_what_cannot_be_is_refused(self, rows: list[dict[str, Any]]) -> None:
        with pytest.raises(ValueError, match=r"run|pageblock"):
            Map(rows)


class TestPageblockMapOfALargeMachine:
    def test_cells_stand_for_several_pageblocks(self) -> None:
        picture = Map([run(0, MAX_CELLS * 4)])
        assert (picture.per_cell, picture.cells) == (4, MAX_CELLS)
        assert picture.blocks == MAX_CELLS * 4
        assert len(drawn(picture, "pb-free")) == MAX_CELLS

    def test_a_cell_has_the_type_of_most_and_the_mean_free_share(self) -> None:
        rows = [run(0, 3, "Movable", 8), run(3, 1, "Unmovable", 0), run(4, MAX_CELLS * 4 - 4)]
        picture = Map(rows)
        first = [s for s in picture.strokes if (0, 0) in strokes_at(s) and "pb-used" in s.look]
        assert [(s.look, s.height) for s in first] == [("mt-movable pb-used", 2 / 8)]

    def test_a_cell_is_all_free_only_if_all_of_it_is(self) -> None:
        rows = [run(0, 1, free=7), run(1, MAX_CELLS * 4 - 1, free=8)]
        picture = Map(rows)
        assert drawn(picture, "pb-used") == [(0, 0)]

    def test_a_single_highatomic_pageblock_among_others_is_a_stripe(self) -> None:
        rows = [run(0, 9), run(9, 1, "HighAtomic", 8), run(10, MAX_CELLS * 8)]
        picture = Map(rows)
        assert picture.per_cell == 16
        stripes = [s for s in picture.strokes if "pb-stripe" in s.look]
        assert [(s.look, s.x, s.dash, strokes_at(s)) for s in stripes] == [
            ("mt-highatomic pb-stripe", 0.75, "0.25 0.75", [(0, 0)])
        ]

    def test_of_several_other_types_the_one_that_matters_is_shown(self) -> None:
        types = ("Movable", "Movable", "Reclaimable", "Unmovable")
        rows = [run(number, 1, mt) for number, mt in enumerate(types)]
        picture = Map([*rows, run(4, MAX_CELLS * 4 - 4)])
        stripes = [s for s in picture.strokes if "pb-stripe" in s.look]
        assert [(s.look, strokes_at(s)) for s in stripes] == [("mt-unmovable pb-stripe", [(0, 0)])]

    def test_scattered_memory_does_not_make_it_endless(self) -> None:
        rows = [run(number * 5000, 1) for number in range(5000)]
        picture = Map(rows)
        assert picture.cells <= MAX_CELLS
        assert picture.rows <= 2 * pageblock_map.MAX_ROWS
        assert picture.blocks == 5000

    def test_up_to_the_limit_every_pageblock_is_a_cell_however_mixed(self) -> None:
        rows = [run(n, 1, made.TYPES[n % 3], n * 5 % 9) for n in range(MAX_CELLS)]
        picture = Map(rows)
        assert (picture.per_cell, picture.cells) == (1, MAX_CELLS)

    def test_a_million_pageblocks_in_the_worst_order_stay_small(self, tmp_path: Path) -> None:
        @dataclass(frozen=True)
        class Run:
            start_pfn: int
            blocks: int
            node: int
            zone: str
            migratetype: str
            free_eighths: int

        # No two neighbouring cells of 64 pageblocks look alike, each has another stripe.
        rows = [
            Run(
                run * 8 * 512,
                8,
                0,
                "Normal",
                made.TYPES[3 + run // 8 % 3] if run % 8 == 5 else made.TYPES[run // 8 % 3],
                run // 8 * 5 % 9 * 8,
            )
            for run in range(1 << 17)
        ]
        contents: dict[str, Contents] = {"pageblock_map": ("Map", Run, rows, "pageblocks")}
        html = render(made.write_bundle(tmp_path / "b", contents), NOTHING)
        svg = html[html.index('<svg class="map"') :]
        assert len(svg[: svg.index("</svg>")]) < 300_000
        told = texts(by_id(parse(html), "picture-pageblock_map"))
        assert "Each cell stands for 128 neighbouring pageblocks" in told
        assert "1,048,576 pageblocks of 2 MiB" in told


class TestFreeHeatmap:
    def test_every_cell_of_the_page_is_the_tables_number(self, whole_report: str) -> None:
        tree = parse(whole_report)
        picture = by_id(tree, "picture-free_lists")
        shown = {}
        for table in elements(picture, "table"):
            zone = re.match(r"Node (\d+), zone (\w+)", texts(elements(table, "caption")[0]))
            assert zone
            for row in elements(elements(table, "tbody")[0], "tr")[:-1]:
                head, *values = list(row)
                for order, cell in enumerate(values[:11]):
                    key = int(zone.group(1)), zone.group(2), order, texts(head)
                    amount = "".join(map(texts, elements(cell, "small")))
                    shown[key] = (cell.text, amount)
        expected = {
            (row["node"], row["zone"], row["order"], row["migratetype"]): (
                f"{row['blocks']:,}",
                display.compact(row["pages"], PAGE) if row["blocks"] else "",
            )
            for row in rows_of("free_blocks")
        }
        assert shown == expected

    def grids(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        grids: list[dict[str, Any]] = free_heatmap.free_lists.draw({"free_blocks": rows}, PAGE)[
            "grids"
        ]
        return grids

    def test_totals_are_the_sums(self) -> None:
        for grid in self.grids(rows_of("free_blocks")):
            mine = [
                r
                for r in rows_of("free_blocks")
                if (r["node"], r["zone"]) == (grid["node"], grid["zone"])
            ]
            assert grid["total"]["pages"] == sum(row["pages"] for row in mine)
            for line in grid["lines"]:
                kind = [row for row in mine if row["migratetype"] == line["migratetype"]]
                assert line["pages"] == sum(row["pages"] for row in kind)
                assert line["thp_blocks"] == sum(
                    row["blocks"] << row["order"] - 9 for row in kind if row["order"] >= 9
                )

    def test_migratetypes_come_in_the_kernels_order(self) -> None:
        grid = self.grids(rows_of("free_blocks"))[0]
        assert tuple(line["migratetype"] for line in grid["lines"]) == made.TYPES

    def test_an_empty_list_looks_empty_and_a_page_does_not(self) -> None:
        assert free_heatmap.level(0, PAGE) == 0
        assert free_heatmap.level(1, PAGE) == 1

    @pytest.mark.parametrize("page", [4096, 16384, None])
    def test_the_shade_is_what_the_legend_says(self, page: int | None) -> None:
        """In bytes, or in pages whose size is unknown."""
        for step, start in enumerate(free_heatmap.level_starts(page), 1):
            if step > 1:
                assert free_heatmap.level(start // (page or 1), page) == step
                assert free_heatmap.level(start // (page or 1) - 1, page) == step - 1
        assert free_heatmap.level(1 << 40, page) == free_heatmap.LEVELS

    @pytest.mark.parametrize(
        ("page", "order"), [(4096, 9), (16384, 11), (65536, None), (None, None)]
    )
    def test_the_thp_order_follows_the_page_size(self, page: int | None, order: int | None) -> None:
        assert thp_order(page) == order

    @pytest.mark.parametrize(("machine", "order"), [("aarch64", 13), ("ppc64le", 5)])
    def test_of_pages_of_64_kib_it_follows_the_machine(self, machine: str, order: int) -> None:
        assert thp_order(65536, machine) == order
        assert thp_order(4096, machine) == 9

    def test_a_list_that_was_not_read_is_not_a_zero(self, tmp_path: Path) -> None:
        contents = made.tables_of("free_lists")
        title, row_type, rows, section = contents["free_blocks"]
        rows = [row for row in rows if (row.zone, row.migratetype, row.order) != ("DMA", "CMA", 3)]
        contents["free_blocks"] = (title, row_type, rows, section)
        page = parse(render(made.write_bundle(tmp_path / "b", contents), NOTHING))
        tables = elements(by_id(page, "picture-free_lists"), "table")
        (dma,) = [table for table in tables if table.get("data-zone") == "DMA"]
        (line,) = [line for line in elements(dma, "tr") if line.get("data-type") == "CMA"]
        assert [texts(cell) for cell in elements(line, "td")].index("n/a") == 3

    def test_orders_that_cannot_be_are_refused(self) -> None:
        with pytest.raises(ValueError, match="order 10000000000"):
            self.grids([rows_of("free_blocks")[0] | {"order": 10**10}])

    def test_what_thp_may_not_have_is_marked(self, whole_report: str) -> None:
        """HighAtomic and Isolate from order 9 on; smaller blocks are no huge page anyway."""
        seen = 0
        for line in elements(by_id(parse(whole_report), "picture-free_lists"), "tr"):
            for order, cell in enumerate(elements(line, "td")[:11]):
                held = line.get("data-type") in ("HighAtomic", "Isolate") and order >= 9
                some = texts(cell) not in ("0", "n/a")
                assert ("held" in str(cell.get("class")).split()) == (held and some)
                seen += held and some
        assert seen

    def test_zones_with_nearly_nothing_free_come_last(self) -> None:
        small = rows_of("free_blocks")[0] | {"zone": "DMA", "order": 0, "blocks": 10}
        large = small | {"zone": "Normal", "order": 10, "blocks": 10}
        assert [grid["zone"] for grid in self.grids([small, large])] == ["Normal", "DMA"]


class TestFragmentation:
    def test_is_the_kernels_formula_to_the_thousandth(self) -> None:
        for zone, (pages, index) in free_heatmap.unusable_index(rows_of("free_blocks")).items():
            assert list(index) == list(range(11))
            blocks: Counter[int] = Counter()
            for row in rows_of("free_blocks"):
                if (row["node"], row["zone"]) == zone:
                    blocks[row["order"]] += row["blocks"]
            free = sum(number * 2**order for order, number in blocks.items())
            assert pages == free
            for order, share in index.items():
                large = sum(n * 2 ** (o - order) for o, n in blocks.items() if o >= order)
                exact = Fraction(free - large * 2**order, free)
                assert share == int(exact * 1000) / 1000
            assert index[0] == 0
            assert list(index.values()) == sorted(index.values())

    def test_no_free_memory_is_all_unusable(self) -> None:
        assert unusable_free_index({0: 0, 3: 0}, 2) == 1

    def test_the_threshold_is_a_line_and_that_of_the_finding(self) -> None:
        drawn = free_heatmap.fragmentation.draw({"free_blocks": rows_of("free_blocks")}, PAGE)
        assert drawn["chart"].count('<path class="guide marked" d="M36 ') == 1
        assert ">0.85</text>" in drawn["chart"]
        path = FOLDER / "reports/findings/external-fragmentation.toml"
        sql = tomllib.loads(path.read_text())["sql"]
        assert f"unusable_index >= {free_heatmap.UNUSABLE} as over" in sql

    def test_blocks_that_belong_to_no_zone_are_left_out(self) -> None:
        stray = rows_of("free_blocks")[0] | {"node": -1, "order": -1}
        assert free_heatmap.unusable_index([stray]) == {}

    def test_the_table_of_the_page_has_the_same_numbers(self, whole_report: str) -> None:
        tree = parse(whole_report)
        table = elements(by_id(tree, "picture-fragmentation"), "table")[0]
        zones = free_heatmap.unusable_index(rows_of("free_blocks"))
        assert [row[2:] for row in cells(table)] == [
            [f"{value:.3f}" for value in index.values()] for _, index in zones.values()
        ]


class TestLineChart:
    x = Tick(0, "0"), Tick(1, "<b>one</b>"), Tick(2, "2", marked=True)
    y = Tick(0, "0"), Tick(0.5, "0.5"), Tick(1, "1")
    lines = ((0, 0, "<b>one</b>, 0: 0"), (2, 1, "one, 2: 1")), ((1, 0.25, "two, 1: 0.25"),)
    svg = line_chart(x, y, lines, x_title="order & more", describe='what "it" is')
    tree = ElementTree.fromstring(svg)

    def of(self, tag: str) -> list[ElementTree.Element]:
        return [e for e in self.tree.iter() if e.tag.rpartition("}")[2] == tag]

    def test_has_nothing_but_shapes_and_text(self) -> None:
        tags = {element.tag.rpartition("}")[2] for element in self.tree.iter()}
        assert tags == {"svg", "g", "path", "circle", "text", "title"}
        for element in self.tree.iter():
            assert not {"style", "id", "onclick", "href"} & element.attrib.keys()

    def test_is_an_image_with_words_for_who_cannot_see_it(self) -> None:
        assert (self.tree.get("role"), self.tree.get("aria-label")) == ("img", 'what "it" is')

    def test_every_dot_has_its_words(self) -> None:
        titles = [title.text for title in self.of("title")]
        assert titles == ["<b>one</b>, 0: 0", "one, 2: 1", "two, 1: 0.25"]
        assert len(self.of("circle")) == 3

    def test_axes_have_the_labels_that_were_asked_for(self) -> None:
        labels = [text.text for text in self.of("text")]
        assert labels == ["0", "0.5", "1", "0", "<b>one</b>", "2", "order & more"]

    def test_points_lie_between_the_ends_of_the_axes(self) -> None:
        places = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in self.of("circle")]
        (left, bottom), (right, top), (middle, quarter) = places
        assert left < middle < right and middle == (left + right) / 2
        assert top < quarter < bottom and quarter == bottom - (bottom - top) / 4

    def test_a_label_alone_is_in_the_middle(self) -> None:
        alone = line_chart(self.x[:1], self.y, [[(0, 1, "")]], x_title="", describe="")
        assert f'cx="{(36 + 714) / 2}"' in alone

    def test_lines_that_cannot_be_told_apart_are_left_out(self) -> None:
        many = line_chart(self.x, self.y, self.lines * 10, x_title="", describe="")
        assert many.count('class="line"') == MAX_LINES

    def test_no_line_is_no_error(self) -> None:
        assert "<circle" not in line_chart([], [], [], x_title="", describe="")


class TestWatermarks:
    def drawn(
        self, zones: list[dict[str, Any]], free_blocks: Sequence[dict[str, Any]] = ()
    ) -> list[dict[str, Any]]:
        tables = {"zones": zones, "free_blocks": free_blocks}
        found: list[dict[str, Any]] = watermarks.watermarks.draw(tables, PAGE)
        return found

    def test_states_compare_what_others_than_highatomic_may_take(self) -> None:
        assert [zone["state"].partition(":")[0] for zone in self.drawn(rows_of("zones"))] == [
            "at or above high",
            "below low",
            "between low and high",
        ]

    @pytest.mark.parametrize(
        ("free", "state"), [(39, "critical"), (79, "warning"), (80, "notice"), (100, "ok")]
    )
    def test_between_min_and_high_is_where_kswapd_keeps_it(self, free: int, state: str) -> None:
        marks = {"wmark_min": 80, "wmark_low": 100, "wmark_high": 120}
        row = rows_of("zones")[0] | marks | {"free_pages": free}
        assert self.drawn([row])[0]["state_class"] == state
        boosted = row | {name: mark + 50 for name, mark in marks.items()} | {"wmark_boost": 50}
        assert self.drawn([boosted])[0]["state_class"] == state

    def test_free_in_the_reserve_does_not_count(self) -> None:
        row = rows_of("zones")[2]
        assert self.drawn([row])[0]["usable"] == row["free_pages"] - row["highatomic_free_pages"]

    def test_a_kernel_without_the_count_holds_back_all_of_the_reserve(self) -> None:
        row = rows_of("zones")[2] | {"highatomic_free_pages": None}
        listed = {"node": 1, "zone": "Normal", "migratetype": "HighAtomic", "pages": 77}
        (zone,) = self.drawn([row], [listed])
        assert zone["highatomic_free_pages"] == 77
        assert zone["usable"] == row["free_pages"] - row["highatomic_reserved_pages"]

    def test_what_nobody_tells_stays_unknown(self) -> None:
        row = rows_of("zones")[2] | {"highatomic_free_pages": None}
        assert self.drawn([row])[0]["highatomic_free_pages"] is None

    def test_marks_stand_where_they_belong(self, whole_report: str) -> None:
        picture = by_id(parse(whole_report), "picture-watermarks")
        zones = [e for e in elements(picture, "div") if e.get("class") == "zone"]
        for zone, row in zip(zones, rows_of("zones"), strict=True):
            first, *others = elements(zone, "svg")
            managed, axis = row["managed_pages"], 2 * row["wmark_high"]
            marks = [row[f"wmark_{name}"] for name in ("min", "low", "high")]

            def at(svg: Any, shape: str, name: str) -> list[float]:
                return [float(str(e.get(name)).rstrip("%")) for e in elements(svg, shape)]

            assert at(first, "line", "x1") == [round(100 * mark / managed, 2) for mark in marks]
            ends = [e for e in elements(first, "rect") if e.get("class") == "reserve"]
            (end,) = (float(str(e.get("x"))[:-1]) + float(str(e.get("width"))[:-1]) for e in ends)
            assert end == pytest.approx(100 * row["free_pages"] / managed, abs=0.01)
            if row["free_pages"] <= axis:
                lines = at(others[0], "line", "x1")
                assert lines == [round(100 * mark / axis, 2) for mark in marks]
                assert lines[-1] == 50

    def test_the_reserve_is_as_long_as_its_share_of_the_zone(self, whole_report: str) -> None:
        row = rows_of("zones")[2]
        share = 100 * row["highatomic_reserved_pages"] / row["managed_pages"]
        picture = by_id(parse(whole_report), "picture-watermarks")
        bar = [e for e in elements(picture, "svg")
               if str(e.get("aria-label")).startswith("HighAtomic reserve")][-1]  # fmt: skip
        widths = [float(str(e.get("width"))[:-1]) for e in elements(bar, "rect")[1:]]
        assert sum(widths) == pytest.approx(share, abs=0.01)

    def test_only_near_the_watermarks_they_have_an_axis_of_their_own(
        self, whole_report: str
    ) -> None:
        dma = rows_of("zones")[0]
        near = [row["free_pages"] <= 2 * row["wmark_high"] for row in rows_of("zones")]
        assert near == [False, True, True]
        told = texts(by_id(parse(whole_report), "picture-watermarks"))
        assert told.count("the same, as far as 2 × high") == 2  # noqa: RUF001
        assert f"{dma['free_pages'] / dma['wmark_high']:.1f} × high" in told  # noqa: RUF001

    def test_a_zone_without_pages_has_no_bar(self) -> None:
        assert self.drawn([rows_of("zones")[0] | {"managed_pages": 0}]) == []


class TestPcpLists:
    def test_zones_have_their_sum_as_a_size(self, whole_report: str) -> None:
        tree = parse(whole_report)
        (row,) = cells(elements(by_id(tree, "picture-pcp_lists"), "table")[0])
        assert row == ["node 1 Normal", display.pages(258, PAGE), "4", display.pages(66, PAGE)]


class TestCounters:
    view = counters.vm_counters.draw({"vm_counters": rows_of("vm_counters")}, PAGE)

    def test_shares_have_their_parts(self) -> None:
        assert [(name, good, bad) for name, _, _, good, bad in self.view["ratios"]] == [
            ("THP at page fault", 1_234, 98_766),
            ("Direct compaction", 0, 8_211),
        ]

    def test_the_page_says_numerator_denominator_and_period(self, whole_report: str) -> None:
        tree = parse(whole_report)
        told = texts(by_id(tree, "picture-vm_counters"))
        assert "Success since boot (3 d 4 h)" in told
        assert "1.2 % 1,234 of 100,000" in told
        assert "0 % 0 of 8,211" in told

    def test_what_was_never_tried_has_no_share(self, tmp_path: Path) -> None:
        contents = made.tables_of("vm_counters")
        title, row_type, rows, section = contents["vm_counters"]
        quiet = [r for r in rows if not r.name.startswith("compact_")] + [
            row_type("compact_success", "event", 0, 0),
            row_type("compact_fail", "event", 0, 0),
        ]
        contents["vm_counters"] = (title, row_type, quiet, section)
        tree = parse(render(made.write_bundle(tmp_path / "b", contents), NOTHING))
        assert "never tried since boot" in texts(by_id(tree, "picture-vm_counters"))

    def test_a_counter_that_the_kernel_does_not_have_is_named(self) -> None:
        rows = [r for r in rows_of("vm_counters") if r["name"] != "compact_fail"]
        view = counters.vm_counters.draw({"vm_counters": rows}, PAGE)
        assert view["missing"] == [("Direct compaction", "compact_success", "compact_fail")]

    def test_every_counter_is_in_one_group(self) -> None:
        names = [row["name"] for _, rows in self.view["groups"] for row in rows]
        assert sorted(names) == sorted(row["name"] for row in rows_of("vm_counters"))

    def test_new_counters_go_with_the_rest(self) -> None:
        assert "nr_something_new" in [
            row["name"] for row in dict(self.view["groups"])["Everything else"]
        ]

    def test_zeros_are_named_too(self, whole_report: str) -> None:
        tree = parse(whole_report)
        zeros = [
            texts(e) for e in by_id(tree, "picture-vm_counters").iter() if e.get("class") == "zeros"
        ]
        assert zeros == ["compact_success", "oom_kill"]


class TestAccounting:
    def test_a_remainder_is_pointed_at(self, tmp_path: Path) -> None:
        contents = made.tables_of("accounting")
        title, row_type, rows, section = contents["free_accounting"]
        off = [row_type(*(asdict(rows[0]) | {"remainder_pages": -7}).values()), *rows[1:]]
        contents["free_accounting"] = (title, row_type, off, section)
        picture = by_id(
            parse(render(made.write_bundle(tmp_path / "b", contents), NOTHING)),
            "picture-free_accounting",
        )
        assert [texts(e) for e in picture.iter() if "off" in (e.get("class") or "").split()] == [
            "-7"
        ]
        assert "A remainder is not zero." in texts(picture)

    def test_no_remainder_is_said(self, whole_report: str) -> None:
        tree = parse(whole_report)
        assert "Every remainder is zero." in texts(by_id(tree, "picture-free_accounting"))
