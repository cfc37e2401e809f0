# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The report of a busy machine: within its size and memory, cut where it says so, whole in downloads.

How long it takes and how it scrolls is measured by ``bench_report.py``.
"""

import base64
import csv
import functools
import gzip
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from xml.etree.ElementTree import Element

import busy_bundle
import pytest
import report_bundle as made
from browser_page import NARROW, SCREEN, WIDE, Opened, all_drawn, barriers, screens, unfold
from page_tree import NOTHING, by_id, cells, elements, parse, texts
from rows_of_tables import Contents

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.drawing.downloads import MAX_REPORT_BYTES, Download, Downloads, folded
from mmscope.reports.drawing.flame_graph import ROW
from mmscope.reports.page.environment import MAX_ROWS
from mmscope.reports.page.report import render
from mmscope.reports.page.views import MAX_CELLS, MAX_SERIES_ROWS, MAX_STACK_ROWS

MAX_PEAK_BYTES = 1 << 30
# Most of them are its eleven sections with findings.
MAX_SCREENS = 20
FRAMES = [f"function_{n}" for n in range(500)]
FORMULA = ("=cmd|' /C calc'!A0", "+1", "-bash", "@sum(1)", "\tx")


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


# How many addresses of tables are on a line, and those that are on two.
ADDRESSES = """
() => {
    document.querySelectorAll('details').forEach((d) => d.open = true);
    const lines = (cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return new Set([...range.getClientRects()].map((box) => box.top)).size;
    };
    const found = [...document.querySelectorAll('td')]
        .filter((cell) => /^0x[0-9a-f]{9,16}$/.test(cell.textContent))
        .map((cell) => [cell.textContent, lines(cell)]);
    document.querySelectorAll('details').forEach((d) => d.open = false);
    return [found.filter(([, n]) => n === 1).length, found.filter(([, n]) => n > 1)];
}
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return busy_bundle.write(tmp_path_factory.mktemp("busy") / "bundle")


@pytest.fixture(scope="module")
def made_by_the_command(busy: Bundle) -> tuple[Path, int]:
    """The report as the command writes it, and the memory that this took at most."""
    report = busy.path.parent / "busy.html"
    mmscope = Path(sys.executable).parent / "mmscope"
    command = [str(mmscope), "report", str(busy.path), "-o", str(report)]
    # By way of a small process: one is charged with the memory of whoever started it.
    peak = subprocess.check_output([sys.executable, "-c", PEAK, *command], text=True)
    return report, int(peak) << 10


@pytest.fixture(scope="module")
def tree(made_by_the_command: tuple[Path, int]) -> Element:
    return parse(made_by_the_command[0].read_text())


def unpacked(link: Element) -> str:
    packed = str(link.get("href")).removeprefix("data:application/gzip;base64,")
    return gzip.decompress(base64.b64decode(packed, validate=True)).decode()


def links(tree: Element) -> dict[str, Element]:
    return {str(a.get("download")): a for a in elements(tree, "a") if a.get("download")}


class TestBusyMachine:
    def test_is_as_busy_as_it_says(self, busy: Bundle) -> None:
        assert busy.count("page_tables") == 100_000
        assert busy.count("page_owner_stacks") == 50_000
        assert sum(row["blocks"] for row in busy.rows("pageblock_map")) == 1_000_000
        lengths = sorted(row["stack"].count(";") + 1 for row in busy.rows("page_owner_stacks"))
        assert 10 <= lengths[len(lengths) // 20] <= lengths[-len(lengths) // 20] <= 25

    def test_all_its_tables_are_held_and_so_read_once(self, busy: Bundle) -> None:
        found, others = busy.held(busy.tables)
        assert found.keys() == busy.tables.keys() and not others

    def test_takes_no_more_memory_than_a_gibibyte(
        self, made_by_the_command: tuple[Path, int]
    ) -> None:
        assert made_by_the_command[1] < MAX_PEAK_BYTES

    def test_has_two_megabytes_at_most(self, made_by_the_command: tuple[Path, int]) -> None:
        assert made_by_the_command[0].stat().st_size <= MAX_REPORT_BYTES

    def test_every_table_is_cut_where_it_says(self, tree: Element, busy: Bundle) -> None:
        cut = 0
        for name, table in busy.tables.items():
            total = busy.count(name)
            if not total or name == "sections":
                continue
            most = MAX_STACK_ROWS if any(c.name == "stack" for c in table.columns) else MAX_ROWS
            if any(c.name == "time" and c.key for c in table.columns):
                most = MAX_SERIES_ROWS
            shown = min(most, MAX_CELLS // len(table.columns), total)
            box = by_id(tree, f"table-{name}")
            rows = [row for row in elements(box, "tr") if row.get("class") == "proven"]
            further = len(cells(elements(box, "table")[0])) - shown
            assert 0 <= further <= len(rows)
            more = f", and {further} more that findings stand on" if further else ""
            said = f"The first {shown:,} of {total:,} rows{more}. All of them: {name}.csv"
            assert (said in texts(box)) == (shown < total)
            cut += shown < total
        assert cut > 10

    def test_a_cut_table_is_whole_in_its_download_or_says_how_large_it_is(
        self, tree: Element, busy: Bundle
    ) -> None:
        found = links(tree)
        assert "pcp_pages.csv.gz" in found
        for name, table in busy.tables.items():
            if f"{name}.csv.gz" in found:
                lines = list(csv.reader(unpacked(found[f"{name}.csv.gz"]).splitlines()))
                assert lines[0] == [c.name for c in table.columns]
                assert len(lines) == 1 + busy.count(name)
        for name, size in (("page_owner_stacks", "1"), ("page_tables", "7.")):
            said = texts(by_id(tree, f"table-{name}"))
            assert f"All of them: {name}.csv in the bundle ({size}" in said
            assert "MiB, too much for this file, which is to stay below 2 MB" in said

    def test_the_flame_graph_says_how_narrow_a_frame_may_be(self, tree: Element) -> None:
        said = texts(by_id(tree, "picture-page_owner"))
        assert "by 50,000 allocation stacks" in said
        assert " widest frames are drawn, down to 0." in said

    def test_the_map_has_every_pageblock(self, tree: Element) -> None:
        assert "1,000,000 pageblocks" in texts(by_id(tree, "picture-pageblock_map"))


class TestDownloads:
    def offered(self, sizes: dict[str, int], most: int) -> str:
        downloads = Downloads()
        places = [
            downloads.offer(Download(name, size, name, lambda size=size: [os.urandom(size)]))
            for name, size in sizes.items()
        ]
        return downloads.fill("<p>" + "</p><p>".join(places) + "</p>", most)

    def test_the_smallest_come_first(self) -> None:
        html = self.offered({"large": 9000, "small": 3000, "larger": 9500}, 14_000)
        assert 'download="small.gz"' in html
        assert "large.gz" not in html
        assert "<code>large</code> in the bundle (8.789 KiB, too much for this file" in html

    @pytest.mark.parametrize("most", range(5000, 5200, 7))
    def test_the_limit_holds_to_the_byte(self, most: int) -> None:
        html = self.offered({f"n{size}": size for size in (3000, 400, 60, 7)}, most)
        assert len(html.encode()) <= most
        assert "n400.gz" in html

    @pytest.mark.parametrize("most", (1_500, 3_000, 12_000, 200_000))
    def test_of_stacks_the_largest_are_there_and_the_others_as_one(self, most: int) -> None:
        random = Random(1)
        stacks = {";".join(random.choices(FRAMES, k=9)): 2 * n + 1 for n in range(2000)}
        downloads = Downloads()
        place = downloads.offer(folded(stacks, "s.folded", "stacks.csv"))
        html = downloads.fill(f"<p>{place}</p>", most)
        assert len(html.encode()) <= most
        if most == 1_500:
            assert "<code>stacks.csv</code> in the bundle" in html and "too much" in html
            return
        packed = re.search(r"base64,([^\"]*)", html)
        lines = gzip.decompress(base64.b64decode(packed[1] if packed else "")).decode().splitlines()
        found = {stack: int(value) for stack, _, value in (line.rpartition(" ") for line in lines)}
        assert sum(found.values()) == sum(stacks.values())
        other = [stack for stack in found if stack.startswith("(")]
        kept = found.keys() - other
        assert kept == set(sorted(stacks, key=lambda s: -stacks[s])[: len(kept)])
        assert all(found[stack] == stacks[stack] for stack in kept)
        if most == 200_000:
            assert not other and "largest" not in html
            return
        assert other == [f"({2000 - len(kept):,} smaller stacks)"]
        assert f"the {len(kept):,} largest of 2,000 stacks" in html
        assert len(kept) > most / 150

    def test_of_the_same_bundle_are_the_same_bytes(self, tmp_path: Path) -> None:
        rows = [made.Oddity(str(n), n, None, None) for n in range(900)]
        contents: dict[str, Contents] = {"oddities": ("Odd", made.Oddity, rows, "oddity")}
        pages = {
            render(made.write_bundle(tmp_path / name, contents), NOTHING) for name in ("a", "b")
        }
        assert len(pages) == 1

    def test_a_spreadsheet_finds_no_formula(self, tmp_path: Path) -> None:
        rows = [made.Oddity(FORMULA[n % 5] + str(n), -n, None, None) for n in range(900)]
        contents: dict[str, Contents] = {"oddities": ("Odd", made.Oddity, rows, "oddity")}
        html = render(made.write_bundle(tmp_path / "b", contents), NOTHING)
        lines = list(csv.reader(unpacked(links(parse(html))["oddities.csv.gz"]).splitlines()))[1:]
        assert [line[0] for line in lines] == [f"'{row.name}" for row in rows]
        assert [line[1] for line in lines] == [str(-n) for n in range(900)]


@pytest.fixture(scope="module")
def page(browser, made_by_the_command: tuple[Path, int]) -> Iterator[Opened]:  # type: ignore[no-untyped-def]
    context = browser.new_context(offline=True, accept_downloads=True)
    yield Opened(context.new_page(), made_by_the_command[0])
    context.close()


class TestInABrowser:
    @pytest.mark.parametrize("size", [NARROW, WIDE, (3840, 2160)], ids=["360", "1280", "4K"])
    def test_asks_for_nothing_complains_of_nothing_and_fits(
        self, page: Opened, size: tuple[int, int]
    ) -> None:
        page.page.set_viewport_size({"width": size[0], "height": size[1]})
        page.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
        assert page.page.evaluate("document.documentElement.scrollWidth") <= size[0]
        page.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = false)")
        assert len(page.requests) == 1
        assert page.complaints == []

    def test_breaks_no_address(self, page: Opened) -> None:
        page.page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
        whole, broken = page.page.evaluate(ADDRESSES)
        assert whole > 20 and broken == []

    def test_has_no_barrier(
        self, opening: functools.partial[Opened], made_by_the_command: tuple[Path, int]
    ) -> None:
        page = opening(made_by_the_command[0], SCREEN).page
        assert screens(page) <= MAX_SCREENS
        assert barriers(page) == []

    def test_a_cut_table_is_sorted_and_filtered_as_far_as_it_is_shown(self, page: Opened) -> None:
        page.page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
        unfold(page.page, "#table-page_tables")
        page.page.locator("summary", has_text="rows of page_tables").click()
        box = page.page.locator("#table-page_tables")
        box.get_by_label("Filter the rows shown").fill("postgres")
        shown = box.locator("tbody tr:visible")
        assert 0 < shown.count() < 10
        rows = box.locator("tbody tr").count()
        assert box.get_by_role("status").inner_text() == f"{shown.count()} of {rows} rows"
        box.get_by_label("Filter the rows shown").fill("")
        box.locator("th button", has_text="page tables").click()
        column = box.locator("tbody td:nth-child(3)").all_text_contents()
        assert "MiB" in column[0]
        assert "GiB" in column[-1]

    def test_a_word_is_explained_by_keyboard_and_by_mouse(self, page: Opened) -> None:
        unfold(page.page, "#section-ksm-title")
        term = page.page.locator("#section-ksm .intro .term").first
        says = "(e) => getComputedStyle(e, '::after').content"
        assert term.evaluate(says) == "none"
        page.page.locator("#section-ksm .intro a").first.focus()
        page.page.keyboard.press("Shift+Tab")
        page.page.keyboard.press("Tab")
        assert "Kernel samepage merging" in term.evaluate(says)
        page.page.keyboard.press("Enter")
        assert page.page.evaluate("location.hash") == "#term-ksm"
        box = page.page.locator("#term-ksm").bounding_box()
        assert box is not None
        assert 0 <= box["y"] < WIDE[1]
        page.page.locator("#section-ksm .intro .term").first.hover()
        assert "Kernel samepage merging" in term.evaluate(says)

    def test_a_download_is_unpacked_and_whole(
        self, page: Opened, tree: Element, tmp_path: Path
    ) -> None:
        # Whatever tests before this one opened.
        fold = page.page.locator("details", has=page.page.locator("#table-pcp_pages"))
        fold.evaluate_all("folds => folds.forEach(fold => { fold.open = true; })")
        with page.page.expect_download() as download:
            page.page.locator("#table-pcp_pages a.download").click()
        assert download.value.suggested_filename == "pcp_pages.csv"
        download.value.save_as(tmp_path / "pcp_pages.csv")
        assert (tmp_path / "pcp_pages.csv").read_text() == unpacked(links(tree)["pcp_pages.csv.gz"])
        assert page.complaints == []

    def test_a_heading_says_what_its_word_means(self, page: Opened) -> None:
        heading = page.page.locator("#table-free_blocks th", has_text="migratetype")
        assert "There is a free list for each" in str(heading.get_attribute("title"))

    def test_frames_are_as_high_as_a_row_and_as_wide_as_they_say(self, page: Opened) -> None:
        page.page.locator("#picture-page_owner .flame-view").scroll_into_view_if_needed()
        boxes = page.page.evaluate(
            """() => {
              const whole = document.querySelector('#picture-page_owner .flame-view');
              return Array.from(whole.querySelectorAll(':scope > svg'), (frame) => {
                const box = frame.querySelector('rect').getBoundingClientRect();
                const share = parseFloat(frame.getAttribute('width')) / 100;
                return [share * whole.getBoundingClientRect().width, box.width, box.height];
              });
            }"""
        )
        assert len(boxes) > 300
        for wanted, width, height in boxes:
            assert height == pytest.approx(ROW - 1, abs=0.1)
            assert width == pytest.approx(wanted, abs=0.1)

    def test_a_frame_has_its_name_once_there_is_room(self, page: Opened) -> None:
        unfold(page.page, "#picture-page_owner")
        all_drawn(page.page, "#picture-page_owner")
        frames = page.page.locator("#picture-page_owner .flame-view > svg:not(.other)")
        narrow = frames.filter(has_not=page.page.locator("text")).last
        title = str(narrow.locator("title").text_content())
        narrow.evaluate("(e) => e.dispatchEvent(new MouseEvent('click', {bubbles: true}))")
        zoomed = frames.filter(has=page.page.locator("title", has_text=title)).last
        assert zoomed.locator("text").text_content() == title.partition(": ")[0]
        page.page.get_by_role("button", name="Reset zoom").first.click()

    def test_without_script_it_is_packed(
        self, opening, made_by_the_command: tuple[Path, int], tree: Element, tmp_path: Path  # type: ignore[no-untyped-def]
    ) -> None:  # fmt: skip
        plain = opening(made_by_the_command[0], NARROW, script=False).page
        plain.locator("summary", has_text="pcp_pages").click()
        with plain.expect_download() as download:
            plain.locator("#table-pcp_pages a.download").click()
        assert download.value.suggested_filename == "pcp_pages.csv.gz"
        download.value.save_as(tmp_path / "pcp.csv.gz")
        with gzip.open(tmp_path / "pcp.csv.gz", "rt") as file:
            assert file.read() == unpacked(links(tree)["pcp_pages.csv.gz"])
