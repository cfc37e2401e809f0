# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Flame graphs and what stands beside them, held against the stacks that they are drawn from.

Where frames lie is held against FlameGraph itself, in Debian's copy (``apt-get install
libdevel-nytprof-perl``).
"""

import base64
import gzip
import random
import re
import subprocess
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import report_bundle as made
from hypothesis import given, settings
from hypothesis import strategies as st
from page_tree import NOTHING, by_id, cells, elements, parse, texts

from mmscope.reports.drawing import flame_graph
from mmscope.reports.drawing.flame_graph import FlameGraph, differential, top_frames
from mmscope.reports.page.report import render
from mmscope.reports.page.views import MAX_STACK_ROWS
from mmscope.reports.pictures import owner_pictures

SVG = "{http://www.w3.org/2000/svg}"
SIMPLE = [("a;b;c", 100), ("a;b", 50), ("a;d", 25), ("z", 25)]
HOSTILE_FRAMES = (
    *made.HOSTILE,
    '<img src=x onerror=alert(1)>"',
    "ends in numbers 12 34",
    "]]>&amp;&#60;",
    "großer Rahmen \U0001f525",
    "\ud800",
    "",
    "all",
    "f000001",
)


@dataclass(frozen=True)
class NumberedStack:
    """A row of a stranger's table of stacks."""

    cache: str = "kmalloc-8"
    stack: int = 5
    objects: int = 1
    bytes: int = 8


PLAIN_ATTRIBUTES = {"class", "x", "y", "width", "height", "role", "aria-label"}


def plain(name: str, depth: int) -> str:
    return "kernel"


def draw(stacks: list[tuple[str, int]], unit: str = "bytes") -> FlameGraph:
    graph = flame_graph.flame_graph(stacks, unit=unit, describe="a graph", kind=plain)
    assert graph.error == ""
    return graph


class Frame:
    """A frame of a drawing, as a browser sees it."""

    def __init__(self, element: ElementTree.Element) -> None:
        self.look = (element.get("class") or "").split()
        self.left, self.width = (float(element.attrib[k].rstrip("%")) for k in ("x", "width"))
        self.y = int(element.attrib["y"])
        self.title = element.findtext("title") or ""
        # Narrow ones are written once there is room, by script.
        self.label = element.findtext("text") or self.title.partition(": ")[0]
        self.callees: list[Frame] = []

    def callee(self, label: str) -> "Frame":
        return next(frame for frame in self.callees if frame.label == label)


def frames(graph: FlameGraph) -> list[Frame]:
    """The frames in their order, callers before callees, each below what it called."""
    found = [Frame(element) for element in ElementTree.fromstring(graph.svg)]
    path: list[Frame] = []
    for frame in found:
        while path and path[-1].y <= frame.y:
            path.pop()
        if path:
            assert path[-1].y - frame.y == flame_graph.ROW
            path[-1].callees.append(frame)
        path.append(frame)
    return found


def value(frame: Frame) -> int:
    """The exact number that a title tells."""
    exact = re.search(r": (?:.* \(([0-9,]+) bytes\)|([0-9,]+) (?:B|pages|samples))", frame.title)
    assert exact is not None, frame.title
    return int((exact[1] or exact[2]).replace(",", ""))


def check_places(graph: FlameGraph) -> None:
    """Every frame is as wide as its share, within its caller, beside what it has beside it."""
    for frame in frames(graph):
        assert frame.width == pytest.approx(100 * value(frame) / graph.total, abs=0.01)
        edge = frame.left
        for callee in frame.callees:
            assert callee.left >= edge - 0.005
            edge = callee.left + callee.width
        assert edge <= frame.left + frame.width + 0.005
        assert sum(map(value, frame.callees)) <= value(frame)


class TestDrawing:
    def test_widths_and_numbers_are_those_of_the_stacks(self) -> None:
        graph = draw(SIMPLE)
        check_places(graph)
        root = frames(graph)[0]
        assert (root.left, root.width, value(root), graph.total) == (0, 100, 200, 200)
        a = root.callee("a")
        assert (value(a), a.width) == (175, 87.5)
        assert a.title == "a: 175 B, 87.5 %"
        assert value(a.callee("b")) == 150
        assert a.callee("b").callee("c").width == 50
        assert value(root.callee("z")) == 25
        assert (graph.frames, graph.pruned_stacks, graph.pruned) == (5, 0, 0)

    def test_callees_stand_on_callers_in_the_order_of_names(self) -> None:
        root = frames(draw([("b;y", 1), ("a;x", 5), ("c", 1), ("b;x", 1)]))[0]
        assert [frame.label for frame in root.callees] == ["a", "b", "c"]
        assert [frame.label for frame in root.callee("b").callees] == ["x", "y"]

    def test_stacks_that_come_twice_are_added_and_empty_ones_left_out(self) -> None:
        assert draw([("a;b", 1), ("a;b", 2), ("gone", 0)]).svg == draw([("a;b", 3)]).svg

    def test_large_amounts_are_told_in_two_ways(self) -> None:
        frame = frames(draw([("a", 5 << 40)]))[1]
        assert frame.title == "a: 5 TiB (5,497,558,138,880 bytes), 100 %"
        assert frames(draw([("a", 5000)], "pages"))[1].title == "a: 5,000 pages, 100 %"

    def test_twice_gives_the_same_bytes_in_any_order(self) -> None:
        stacks = [(f"a;b{n % 7};c{n % 31}", n) for n in range(400)]
        shuffled = random.Random(1).sample(stacks, len(stacks))
        assert draw(stacks).svg == draw(shuffled).svg

    def test_colours_are_by_name_and_depth(self) -> None:
        graph = flame_graph.flame_graph(
            [("dentry;vfs_read;xfs_do [xfs];alloc_pages_noprof", 8), ("k;(no stack)", 1)],
            unit="bytes",
            describe="",
            kind=owner_pictures.slab_frame_kind,
        )
        looks = [(frame.label, frame.look[0]) for frame in frames(graph)]
        assert looks == [
            ("all", "root"),
            ("dentry", "cache"),
            ("vfs_read", "kernel"),
            ("xfs_do [xfs]", "module"),
            ("alloc_pages_noprof", "plumbing"),
            ("k", "cache"),
            ("(no stack)", "none"),
        ]

    @settings(max_examples=25)
    @given(
        st.lists(
            st.tuples(
                st.lists(st.sampled_from("abc"), min_size=1, max_size=6).map(";".join),
                st.integers(1, 10**12),
            ),
            min_size=1,
            max_size=30,
        )
    )
    def test_of_any_stacks_the_places_fit(self, stacks: list[tuple[str, int]]) -> None:
        graph = draw(stacks)
        check_places(graph)
        assert graph.total == sum(number for _, number in stacks)


class TestHostileNames:
    def test_are_shown_do_nothing_and_do_not_change_the_folding(self) -> None:
        names = [name.replace(";", ",") for name in HOSTILE_FRAMES]
        graph = draw([(f"root;{name};leaf", 10) for name in names])
        root = frames(graph)[0].callee("root")
        check_places(graph)
        assert len(root.callees) == len(set(names))
        for callee in root.callees:
            assert value(callee) == 10
            assert [frame.label for frame in callee.callees] == ["leaf"]
        labels = {callee.label for callee in root.callees}
        assert {'<img src=x onerror=alert(1)>"', "ends in numbers 12 34", "(no name)"} <= labels
        assert {"]]>&amp,&#60,", "großer Rahmen \U0001f525", "\\ud800", "all"} <= labels
        assert "x" * 200 + "… (4,800 more characters)" in labels

    def test_leave_only_shapes_titles_and_text(self) -> None:
        graph = draw([(f"{name};{name}", 10) for name in HOSTILE_FRAMES])
        for element in ElementTree.fromstring(graph.svg).iter():
            assert element.tag.removeprefix(SVG) in ("svg", "title", "rect", "text")
            assert {*element.keys()} <= PLAIN_ATTRIBUTES
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ufeff]", graph.svg)

    def test_a_stack_of_thousands_of_frames_is_cut_and_said(self) -> None:
        graph = draw([(";".join(["deep"] * 5000), 10), ("b", 1)])
        assert graph.frames == flame_graph.MAX_DEPTH + 1
        assert (graph.pruned_stacks, graph.pruned) == (1, 10)


class TestSize:
    def test_what_cannot_be_seen_is_left_out_and_said(self) -> None:
        stacks = [("wide", 100_000), *((f"wide;narrow{n}", 1) for n in range(50)), ("thin", 99)]
        graph = draw(stacks)
        assert [frame.label for frame in frames(graph)] == ["all", "wide"]
        assert (graph.total, graph.pruned_stacks, graph.pruned) == (100_149, 51, 149)
        check_places(graph)

    def test_of_fifty_thousand_stacks(self) -> None:
        chance = random.Random(3)
        stacks = [
            (";".join(f"function_{chance.randrange(4)}_{d}" for d in range(16)) + f";leaf{n}", 4096)
            for n in range(50_000)
        ]
        graph = draw(stacks)
        assert len(graph.svg.encode()) <= flame_graph.MAX_SVG_BYTES
        assert graph.frames > 300
        assert graph.total == 50_000 * 4096
        check_places(graph)

    def test_of_names_that_are_all_too_long(self) -> None:
        graph = draw([("&" * 150 + f"{n};{'<' * 500}{n}", 10) for n in range(400)])
        assert len(graph.svg.encode()) <= flame_graph.MAX_SVG_BYTES
        assert graph.pruned_stacks
        check_places(graph)


class TestTopFrames:
    def test_have_self_and_total_and_count_recursion_once(self) -> None:
        tops, totals = top_frames([("a;b;a", 5), ("a;c", 2), ("c", 1)], 2)
        assert tops == [("a", 5, 7), ("b", 0, 5)]
        assert totals == {"a": 7, "b": 5, "c": 3}


class TestDifferential:
    before = (("a;same", 100), ("a;gone", 60), ("a;less", 40))
    after = (("a;same", 100), ("a;new", 200), ("a;less", 39))

    def graphs(self, normalise: bool = False) -> tuple[list[Frame], list[Frame]]:
        found = differential(
            self.before, self.after, unit="samples", describe="", normalise=normalise
        )
        assert [graph.error for graph in found] == ["", ""]
        after, before = map(frames, found)
        return after, before

    def test_a_share_below_a_tenth_of_a_percent_is_text_too(self) -> None:
        graphs = differential(
            [("a", 1), ("b", 99_999)], [("a", 50), ("b", 50)], unit="samples", describe=""
        )
        assert "a: 1 samples before, 50 samples after: &lt;0.1 % and 50.0 % of all" in graphs[0].svg
        assert [graph.error for graph in graphs] == ["", ""]

    def test_each_shows_what_the_other_cannot(self) -> None:
        after, before = self.graphs()
        assert {frame.label for frame in after} == {
            *("▲ all", "▲ a", "same", "▲ new", "▼ less"),
        }
        assert {frame.label for frame in before} == {
            *("▲ all", "▲ a", "same", "▼ gone", "▼ less"),
        }

    def test_widths_are_of_one_and_colours_of_both(self) -> None:
        after, before = self.graphs()
        new = after[1].callee("▲ new")
        assert new.width == pytest.approx(100 * 200 / 339, abs=0.01)
        assert new.look == ["more-3"]
        assert new.title == "new: 0 samples before, 200 samples after: new"
        gone = before[1].callee("▼ gone")
        assert gone.width == pytest.approx(30, abs=0.01)
        assert gone.look == ["less-3"]
        assert gone.title == "gone: 60 samples before, 0 samples after: gone"
        for graph in (after, before):
            assert graph[1].callee("same").look == ["same"]
            assert graph[1].callee("▼ less").look == ["less-1"]
            assert graph[1].callee("▼ less").title == (
                "less: 40 samples before, 39 samples after: -1 samples"
            )
            assert graph[1].look == ["more-2"]
            assert graph[1].title == "a: 200 samples before, 339 samples after: +139 samples"

    def test_normalised_it_compares_shares(self) -> None:
        twice = tuple((stack, 2 * number) for stack, number in self.before)
        for graph in differential(self.before, twice, unit="samples", describe=""):
            assert {frame.look[0] for frame in frames(graph)} == {"same"}
            assert "60 samples before, 120 samples after: 30.0 % and 30.0 % of all" in graph.svg
        for graph in differential(self.before, twice, unit="samples", describe="", normalise=False):
            assert {frame.look[0] for frame in frames(graph)} == {"more-3"}

    def test_from_nothing_to_something_has_one_picture(self) -> None:
        after, before = differential((), self.after, unit="samples", describe="")
        assert {frame.look[0] for frame in frames(after)} == {"more-3"}
        assert (before.svg, before.error) == ("", "there is nothing to draw")


FLAMEGRAPH = Path("/usr/share/perl5/Devel/NYTProf/flamegraph.pl")
NAMES = st.sampled_from([f"frame_{letter}" for letter in "abcdefg"])
# None is too narrow to be drawn: ours would give its width to its caller.
STACKS = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=6).map(";".join),
    st.integers(100, 1000),
    min_size=1,
    max_size=10,
)


def as_flamegraph_draws(stacks: dict[str, int]) -> list[tuple[str, int, float, float]]:
    """(name, row from the root, left edge and width in per cent) of each frame it draws."""
    lines = "".join(f"{stack} {value}\n" for stack, value in stacks.items())
    svg = subprocess.run(
        ["perl", FLAMEGRAPH, "--width", "12000", "--minwidth", "0"],
        input=lines.encode(),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    drawn = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        title, rect = group.find("{*}title"), group.find("{*}rect")
        if title is not None and rect is not None and title.text:
            x, y, width = (float(rect.attrib[key]) for key in ("x", "y", "width"))
            drawn.append((title.text.split(" ")[0], x, y, width))
    _, left, bottom, whole = next(frame for frame in drawn if frame[0] == "all")
    return sorted(
        (name, round((bottom - y) / 16), 100 * (x - left) / whole, 100 * width / whole)
        for name, x, y, width in drawn
    )


class TestFlameGraphItself:
    @settings(max_examples=25, deadline=None)
    @given(STACKS)
    def test_every_frame_lies_where_it_draws_it(self, stacks: dict[str, int]) -> None:
        found = frames(draw(list(stacks.items()), "samples"))
        bottom = found[0].y
        here = sorted(
            (
                frame.title.partition(":")[0],
                (bottom - frame.y) // flame_graph.ROW,
                frame.left,
                frame.width,
            )
            for frame in found
        )
        there = as_flamegraph_draws(stacks)
        assert [frame[:2] for frame in here] == [frame[:2] for frame in there]
        for ours, theirs in zip(here, there, strict=True):
            assert ours[2:] == pytest.approx(theirs[2:], abs=0.003)  # a tenth of a pixel, and ours


@pytest.fixture(scope="session")
def html(whole_report: str) -> str:
    return whole_report


class TestReport:
    def table(self, html: str, picture: str, number: int) -> list[list[str]]:
        return cells(elements(by_id(parse(html), f"picture-{picture}"), "table")[number])

    def test_owners_are_grouped_and_the_rest_is_named(self, html: str) -> None:
        owners = self.table(html, "page_owner", 0)
        assert owners[0][:2] == ["do_anonymous_page", ""]
        assert owners[0][2:] == ["312.5 MiB", "61.7 %", "80,000", "1"]
        assert ["leak_more", "leaky", "62.5 MiB", "12.3 %", "16,000", "1"] in owners
        assert ["(no stack)", "", "2.734 MiB", "0.5 %", "", "1"] in owners
        modules = self.table(html, "page_owner", 1)
        assert modules[0][0] == "(the kernel itself)"
        assert {row[0] for row in modules[1:]} == {"leaky", "ext4", "(no stack)", "xfs"}
        said = texts(by_id(parse(html), "picture-page_owner"))
        assert "1 stack of 2.734 MiB: the resolver does not have this handle." in said

    def test_the_graph_adds_up_to_the_table(self, html: str) -> None:
        picture = by_id(parse(html), "picture-page_owner")
        pages = sum(row.pages for row in made.owner_stacks())
        assert f"all: 506.7 MiB ({pages * 4096:,} bytes), 100 %" in texts(picture)

    def test_growers_are_ranked_with_their_steadiness(self, html: str) -> None:
        growers = self.table(html, "page_owner_growth", 0)
        assert [row[0] for row in growers] == [
            "leak_more",
            "ext4_file_write_iter",
            "do_wp_page",
        ]
        assert growers[0][2:] == [
            "leak_write [leaky] ← vfs_write ← do_syscall_64",
            *("64 KiB", "62.5 MiB", "62.44 MiB", "3.122 MiB", "100 %"),
        ]
        assert growers[2][-1] == "50 %"

    def test_slab_caches_are_the_roots(self, html: str) -> None:
        picture = by_id(parse(html), "picture-slab_owner")
        assert self.table(html, "slab_owner", 0)[0][:4] == [
            *("leak_more", "leaky", "kmalloc-96", "93.75 KiB"),
        ]
        assert "1 stack of caches whose object size is not known is not in the picture" in texts(
            picture
        )
        titles = [texts(title) for title in elements(picture, "title")]
        assert any(title.startswith("dentry: 56.25 KiB (57,600 bytes)") for title in titles)

    def test_objects_of_unknown_size_are_counted(self, tmp_path: Path) -> None:
        contents = made.tables_of("page_owner", "slab_owner")
        title, row_type, rows, section = contents["slab_owner_stacks"]
        rows = [replace(row, bytes=None) for row in rows]
        contents["slab_owner_stacks"] = (title, row_type, rows, section)
        html = render(made.write_bundle(tmp_path / "bundle", contents), NOTHING)
        said = texts(by_id(parse(html), "picture-slab_owner"))
        assert "Who holds 1,315 slab objects, by 4 allocation stacks" in said
        assert "kmalloc-96: 1,010 objects, 76.8 %" in said

    def test_the_stacks_can_be_taken_along(self, html: str) -> None:
        links = [a for a in elements(parse(html), "a") if ".folded" in (a.get("download") or "")]
        assert [a.get("download") for a in links] == [
            *("page_owner.folded.gz", "slab_owner.folded.gz"),
            *("exit_path_never_cpu_clock.folded.gz", "exit_path_always_cpu_clock.folded.gz"),
        ]
        packed = (links[0].get("href") or "").partition("base64,")[2]
        lines = gzip.decompress(base64.b64decode(packed)).decode().splitlines()
        assert f"{made.PATHS[0]}{made.ALLOCATORS} {80_000 * 4096}" in lines
        assert lines == sorted(lines)
        assert len(lines) == 6

    def test_stacks_in_tables_are_leaf_first_and_break_between_frames(self, html: str) -> None:
        table = cells(elements(by_id(parse(html), "table-slab_owner_stacks"), "table")[0])
        assert "__d_alloc ← path_openat ← do_syscall_64" in [row[2] for row in table]

    def test_tables_of_stacks_are_cut_at_what_is_said(self, tmp_path: Path) -> None:
        contents = made.tables_of("page_owner", "slab_owner")
        title, row_type, rows, section = contents["slab_owner_stacks"]
        contents["slab_owner_stacks"] = (title, row_type, rows * 100, section)
        html = render(made.write_bundle(tmp_path / "bundle", contents), NOTHING)
        table = by_id(parse(html), "table-slab_owner_stacks")
        assert f"The first {MAX_STACK_ROWS} of 400 rows" in texts(table)
        assert len(cells(elements(table, "table")[0])) == MAX_STACK_ROWS

    def test_a_series_has_a_value_at_every_snapshot(self, html: str) -> None:
        picture = by_id(parse(html), "owner-time")
        assert [path.get("data-points") for path in elements(picture, "path")][-3:-2] == [
            "0 0.0625 10 31.25 20 62.5"
        ]
        uneven = [{"time": t, "handle": 4, "pages": p} for t, p in ((0, 0), (1, 10), (4, None))]
        tables = {
            "page_owner_growth": [asdict(made.owner_growth()[0]) | {"handle": 4}],
            "page_owner_series": uneven,
            # A point that equals its neighbours is not in the table.
            "page_owner_snapshots": [{"time": float(t), "at": None} for t in (0, 1, 2.5, 4)],
        }
        (line,) = owner_pictures.page_owner_growth.draw(tables, None)["chart"]["lines"]
        assert (line[0], line[2]) == ("handle 4", "0 0 1 10 2.5 5 4 0")

    def test_a_stack_that_is_a_number_costs_the_picture_only(self, tmp_path: Path) -> None:
        contents = made.tables_of("page_owner", "slab_owner")
        contents["slab_owner_stacks"] = ("Odd", NumberedStack, [NumberedStack()], "slab_owner")
        html = render(made.write_bundle(tmp_path / "bundle", contents), NOTHING)
        assert "No picture: table slab_owner_stacks is damaged" in html
        assert "Who holds 506.7 MiB" in html

    def test_without_a_page_size_it_speaks_of_pages(self, tmp_path: Path) -> None:
        bundle = made.write_bundle(
            tmp_path / "bundle",
            made.tables_of("page_owner"),
            target=made.TARGET | {"page_size": None},
        )
        said = texts(by_id(parse(render(bundle, NOTHING)), "picture-page_owner"))
        assert "Who holds 129,705 pages, by" in said
        assert "do_anonymous_page: 80,000 pages, 61.7 %" in said
