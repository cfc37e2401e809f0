# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The report in a browser: opened from a file, offline, as an engineer would.

Debian's Chromium shows it (``apt-get install chromium-headless-shell``), driven by Playwright.
"""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import report_bundle as made
from browser_page import (
    HUGE,
    NARROW,
    WIDE,
    Opened,
    a4_pages,
    all_drawn,
    out_of_reach,
    unfold,
    violations,
)
from page_tree import NOTHING, elements, parse, texts
from playwright.sync_api import Page
from rows_of_tables import Contents

from mmscope.drgn.tables.rows import columns
from mmscope.reports.compare.comparison import compare
from mmscope.reports.page.report import render, write

LATER = {"captured_at": "2026-11-20T03:05:05+00:00", "uptime_seconds": 273_905.5}
# What is folded away: the beginning of each.
FOLDED = """
() => [...document.querySelectorAll('details')].flatMap(
    (folded) => [...folded.children]
        .filter((child) => child.tagName !== 'SUMMARY')
        .filter((child) => !child.checkVisibility())
        .map((child) => folded.textContent.slice(0, 80)))
"""


def changed(contents: dict[str, Contents]) -> dict[str, Contents]:
    """A minute later: every table has a row less, and half as much again in the others."""
    result = {}
    for name, (title, row_type, rows, section) in contents.items():
        numbers = [
            c.name for c in columns(row_type) if c.type == "integer" and not c.key and c.unit
        ]
        more = [
            replace(row, **{n: v + v // 2 for n in numbers if (v := getattr(row, n)) is not None})
            for row in rows[1:]
        ]
        result[name] = title, row_type, more, section
    return result


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    odd = [made.Oddity(f"thing {n}", n * 1000, None, None) for n in (3, 1, 20, 10)]
    unknown = made.Oddity("unknown", 7, 0.5, None)
    contents = made.tables() | {"oddities": ("Odd", made.Oddity, [*odd, unknown], "oddity")}
    machine = made.write_bundle(folder / "machine", contents)
    hostile = made.write_bundle(
        folder / "hostile",
        made.hostile_tables(),
        target=made.hostile_target(),
        sections=made.hostile_sections(),
    )
    empty = made.write_bundle(folder / "empty", {}, target={}, sections=[])
    later = made.write_bundle(folder / "later", changed(contents), target=made.TARGET | LATER)
    grown = compare(machine, later, (made.verdict(), NOTHING), draw=True)
    # Of one boot, as a stranger may claim; and of another machine.
    claimed = made.write_bundle(folder / "claimed", made.hostile_tables(), target=made.TARGET)
    verdicts = made.verdict(), made.hostile_verdict()
    joined = compare(machine, claimed, verdicts, draw=True)
    strange = compare(machine, hostile, verdicts, draw=True)
    written = {}
    for name, html in (
        ("machine", render(machine, made.verdict())),
        ("hostile", render(hostile, made.hostile_verdict())),
        ("empty", render(empty, NOTHING)),
        ("compared", render(later, NOTHING, grown)),
        ("compared, one boot", render(claimed, made.hostile_verdict(), joined)),
        ("compared, hostile", render(hostile, made.hostile_verdict(), strange)),
    ):
        written[name] = folder / f"{name}.html"
        write(html, written[name])
    return written


PAGES = ("machine", "hostile", "empty", "compared", "compared, one boot", "compared, hostile")


@pytest.mark.parametrize("name", PAGES)
def test_asks_for_nothing_complains_of_nothing_and_fits_every_screen(
    opening: functools.partial[Opened], files: dict[str, Path], name: str
) -> None:
    opened = opening(files[name])
    # What is hidden may be too wide as well.
    opened.page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    for size in (HUGE, WIDE, NARROW):
        opened.page.set_viewport_size({"width": size[0], "height": size[1]})
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= size[0], size
    opened.page.emulate_media(color_scheme="dark")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    assert opened.requests == [files[name].as_uri()]
    assert opened.complaints == []


def test_saved_after_use_it_complains_of_nothing(
    opening: functools.partial[Opened], files: dict[str, Path], tmp_path: Path
) -> None:
    page = opening(files["machine"]).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    page.mouse.wheel(0, 3000)
    page.keyboard.press("/")
    page.keyboard.type("zone")
    saved = tmp_path / "saved.html"
    saved.write_text(page.content())
    assert opening(saved).complaints == []
    # The policy is in force there: a style attribute is complained of.
    saved.write_text(page.content().replace("<main", '<main style="color: red"', 1))
    assert any("style" in complaint for complaint in opening(saved).complaints)


# The others are made of the same parts: a comparison with another machine has no more of them.
@pytest.mark.parametrize("name", ["machine", "empty", "compared, one boot"])
def test_there_is_no_barrier(
    opening: functools.partial[Opened], files: dict[str, Path], name: str
) -> None:
    """And on a dark telephone none of the two rules whose answer depends on colours and room."""
    page = opening(files[name], WIDE, "light").page
    assert violations(page) == []
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    page.emulate_media(color_scheme="dark")
    assert violations(page, "color-contrast", "scrollable-region-focusable") == []


def test_a_barrier_is_found(opening: functools.partial[Opened], files: dict[str, Path]) -> None:
    """Even in the last row of a table that is folded."""
    page = opening(files["empty"]).page
    page.evaluate(
        """() => {
            const row = (look) => `<tr><td${look}>text</td></tr>`;
            document.querySelector('main').insertAdjacentHTML('beforeend', '<details>' +
                `<table><tbody>${row('').repeat(9)}${row(' class=faint')}</tbody></table>`);
            document.querySelector('.faint').style.color = '#ccc';
        }"""
    )
    assert [rule for rule, *_ in violations(page)] == ["color-contrast"]


class TestFirstScreen:
    def test_shows_the_card_with_its_command_and_all_memory(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        command = '.card dt:text-is("Do first") + dd'
        for selector in ("h1", ".verdict", command, ".card", ".card .mem-bar", "nav"):
            box = page.locator(selector).first.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= WIDE[1]

    def test_on_a_telephone_the_verdict_comes_first(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"], NARROW).page
        box = page.locator(".verdict").bounding_box()
        assert box is not None
        assert box["y"] < 120

    @pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
    def test_the_contents_stay(
        self, opening: functools.partial[Opened], files: dict[str, Path], size: tuple[int, int]
    ) -> None:
        page = opening(files["machine"], size).page
        page.emulate_media(reduced_motion="reduce")
        page.locator("nav a", has_text="Pageblocks").click()
        assert page.evaluate("scrollY") > 500
        box = page.locator("nav").bounding_box()
        assert box is not None
        assert box["y"] == 0
        heading = page.locator("#section-pageblocks-title").bounding_box()
        assert heading is not None
        assert 0 <= heading["y"] < size[1] / 2
        # Nothing covers where the link led to.
        if size == NARROW:
            assert heading["y"] >= box["height"]

    def test_the_contents_say_where_one_is(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
        page.emulate_media(reduced_motion="reduce")
        for name in ("Pageblocks", "Zones and watermarks"):
            page.locator("nav a", has_text=name).first.click()
            page.wait_for_function(
                "(name) => document.querySelector('nav a[aria-current]').textContent === name",
                arg=name,
            )
        assert page.locator("nav a[aria-current]").count() == 1


class TestComparison:
    @pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
    def test_what_changed_most_is_on_the_first_screen(
        self, opening: functools.partial[Opened], files: dict[str, Path], size: tuple[int, int]
    ) -> None:
        page = opening(files["compared"], size).page
        box = page.locator(".versus").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= size[1]

    def test_links_from_what_changed_to_its_table(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["compared"]).page
        # The bars of the ledger are no table.
        links = "#comparison a[href^='#compared-']:not([href='#compared-ledger'])"
        link = page.locator(links).first
        name = link.get_attribute("href")
        assert not page.locator(f"{name} table").is_visible()
        link.click()
        page.locator(f"{name} table").wait_for(state="visible")  # at the next hashchange event


class TestFreeLists:
    def test_fit_a_laptop_with_all_their_columns(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        for grid in page.locator("table.heat").all():
            assert grid.evaluate(
                "(e) => e.parentElement.scrollWidth <= e.parentElement.clientWidth"
            )


class TestWithoutScript:
    def test_every_word_is_there_and_no_button_that_does_nothing(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        opened = opening(files["machine"], script=False)
        tree = parse(files["machine"].read_text())
        shown = opened.page.locator("main").text_content() or ""
        shown = shown.replace("\N{NO-BREAK SPACE}", " ")
        for table in elements(tree, "table"):
            for cell in elements(table, "td"):
                assert texts(cell) in shown
        assert opened.page.locator("button:visible").count() == 0
        assert opened.page.locator("input").count() == 0
        assert opened.complaints == []

    def test_what_is_folded_opens(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"], script=False).page
        table = page.locator("#table-free_blocks table")
        assert not table.is_visible()
        page.locator("summary", has_text="rows of free_blocks").click()
        table.wait_for(state="visible")


class TestSorting:
    def column(self, page: Page, index: int) -> list[str]:
        return page.locator(f"#table-oddities tbody td:nth-child({index})").all_text_contents()

    def test_sizes_sort_by_their_bytes_both_ways(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        unfold(page, "#table-oddities")
        assert self.column(page, 1)[0] == "thing 3"
        button = page.locator("#table-oddities th button", has_text="taken")
        button.click()
        assert self.column(page, 2) == [
            "7 B",
            *("1000 B", "2.93 KiB", "9.766 KiB", "19.53 KiB"),
        ]
        heading = page.locator("#table-oddities th", has_text="taken")
        assert heading.get_attribute("aria-sort") == "ascending"
        button.click()
        assert self.column(page, 1) == ["thing 20", "thing 10", "thing 3", "thing 1", "unknown"]
        assert heading.get_attribute("aria-sort") == "descending"

    def test_by_keyboard(self, opening: functools.partial[Opened], files: dict[str, Path]) -> None:
        page = opening(files["machine"]).page
        unfold(page, "#table-oddities")
        page.locator("#table-oddities th button", has_text="name").focus()
        page.keyboard.press("Enter")
        assert self.column(page, 1) == ["thing 1", "thing 10", "thing 20", "thing 3", "unknown"]

    def test_what_is_not_known_comes_last_both_ways(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        unfold(page, "#table-oddities")
        for _ in range(2):
            page.locator("#table-oddities th button", has_text="ratio").click()
            assert self.column(page, 3) == ["0.5", "", "", "", ""]

    def test_one_column_at_a_time_is_marked(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        unfold(page, "#table-oddities")
        for name in ("name", "taken"):
            page.locator("#table-oddities th button", has_text=name).click()
        assert page.locator("#table-oddities th[aria-sort]").count() == 1


class TestFiltering:
    def test_keeps_the_rows_with_every_word_and_counts_them(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        page.locator("summary", has_text="rows of free_blocks").click()
        box = page.locator("#table-free_blocks")
        box.get_by_role("searchbox").fill("dma32 highatomic")
        expected = [
            row
            for row in made.tables()["free_blocks"][2]
            if (row.zone, row.migratetype) == ("DMA32", "HighAtomic")
        ]
        assert box.locator("tbody tr:visible").count() == len(expected) == 11
        assert box.get_by_role("status").inner_text() == "11 of 198 rows"
        box.get_by_role("searchbox").fill("")
        assert box.locator("tbody tr:visible").count() == 198

    def test_short_tables_have_none(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        assert page.locator("#table-zones input, #table-oddities input").count() == 0


class TestCopying:
    def test_copies_the_finding_as_text(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("#finding-highatomic-starves-thp-1 > button").click()
        page.wait_for_function(
            "() => document.querySelector('article > .copy').textContent === 'Copied'"
        )
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("CRITICAL: Node 1 zone Normal: 3 of 5 free blocks of THP size")
        assert "\n2. Compare with a healthy host.\n" in copied

    def test_copies_a_command_by_itself(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator(".card .copy").first.click()
        page.wait_for_function(
            "() => document.querySelector('.card .copy').textContent === 'Copied'"
        )
        assert page.evaluate("navigator.clipboard.readText()") == "mmscope record atomic-alloc -a"


class TestPrinting:
    @pytest.mark.parametrize("script", [True, False])
    def test_prints_what_is_open(
        self, opening: functools.partial[Opened], files: dict[str, Path], script: bool
    ) -> None:
        page = opening(files["machine"], script=script).page
        folded = page.evaluate(FOLDED)
        page.emulate_media(media="print")
        assert page.evaluate(FOLDED) == folded != []
        page.locator("main details:not([open]) > summary").last.click()
        assert len(page.evaluate(FOLDED)) < len(folded)

    def test_has_no_contents_and_no_buttons(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        page.emulate_media(media="print")
        assert not page.locator("nav").is_visible()
        assert page.locator("button.copy:visible, input:visible").count() == 0

    @pytest.mark.parametrize("name", ["machine", "empty", "compared"])
    def test_makes_a_pdf_of_a_few_pages(
        self, opening: functools.partial[Opened], files: dict[str, Path], name: str
    ) -> None:
        opened = opening(files[name])
        before = opened.page.locator("details[open]").count()
        assert 1 <= a4_pages(opened.page) <= 8
        assert opened.page.locator("details[open]").count() == before
        assert opened.complaints == []

    def test_nothing_is_wider_than_the_paper(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        # A4 without its margins, at 96 pixels an inch.
        page = opening(files["machine"], (700, 1000)).page
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth") <= 700

    def test_is_light_in_the_dark(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"], scheme="dark").page
        page.emulate_media(media="print", color_scheme="light")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)"


class TestKeyboard:
    def test_the_first_stop_skips_to_the_findings(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        box = page.locator(".skip").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"

    @pytest.mark.parametrize("name", ["machine", "empty"])
    def test_comes_to_everything_in_order_and_sees_where_it_is(
        self, opening: functools.partial[Opened], files: dict[str, Path], name: str
    ) -> None:
        assert out_of_reach(opening(files[name]).page) == []

    def test_what_it_does_not_come_to_or_see_is_told(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["empty"]).page
        page.evaluate(
            """() => {
                document.querySelector('.skip').style.outline = 'none';
                document.querySelector('.brand a').tabIndex = 9;
            }"""
        )
        told = [words.partition(":")[0] for words in out_of_reach(page)]
        assert {"has no ring", "comes before its turn"} == set(told)

    @pytest.mark.parametrize("key", ["Enter", "Space"])
    def test_a_fold_opens_and_a_command_is_copied(
        self, opening: functools.partial[Opened], files: dict[str, Path], key: str
    ) -> None:
        page = opening(files["machine"]).page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("#not-checked > summary").press(key)
        page.wait_for_function("() => document.getElementById('not-checked').open")
        page.locator(".card .copy").first.press(key)
        page.wait_for_function(
            "() => document.querySelector('.card .copy').textContent === 'Copied'"
        )

    def test_focus_is_seen(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        for selector in ("nav li a", "button.copy", "summary", ".scroll"):
            page.locator(selector).first.focus()
            page.keyboard.press("Shift+Tab")
            page.keyboard.press("Tab")
            style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert style == "solid"

    def test_a_link_into_something_folded_opens_it(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        page.locator("nav a", has_text="Not checked").click()
        page.wait_for_function("() => document.getElementById('not-checked').open")

    def test_a_link_to_a_folded_section_opens_it(
        self, opening: functools.partial[Opened], files: dict[str, Path]
    ) -> None:
        page = opening(files["machine"]).page
        assert not page.locator("#table-oddities").is_visible()
        unfolded = page.locator("section:has(#table-oddities) > details")
        anchor = page.locator("section:has(#table-oddities)").get_attribute("id")
        page.locator(f"nav a[href='#{anchor}']").click()
        page.locator("#table-oddities").wait_for(state="visible")
        assert unfolded.get_attribute("open") is not None


class TestTips:
    @pytest.mark.parametrize("size", [NARROW, WIDE], ids=["360", "1280"])
    def test_the_words_of_a_shape_are_at_the_pointer_and_on_the_screen(
        self, opening: functools.partial[Opened], files: dict[str, Path], size: tuple[int, int]
    ) -> None:
        page = opening(files["machine"], size).page
        unfold(page, "#picture-page_owner")
        all_drawn(page, "#picture-page_owner")
        frames = page.locator("#picture-page_owner .flame-view > svg")
        for frame in (frames.first, frames.last):
            words = frame.locator("title").text_content()
            frame.evaluate("(e) => e.scrollIntoView({block: 'center'})")
            box = frame.bounding_box()
            assert box is not None
            x, y = min(box["x"] + box["width"] / 2, size[0] - 2), box["y"] + box["height"] / 2
            page.mouse.move(x - 1, y)
            page.mouse.move(x, y)
            tip = page.locator(".tip")
            at = tip.bounding_box()
            assert tip.text_content() == words and at is not None
            assert at["x"] >= 0 and at["x"] + at["width"] <= size[0]
            assert at["x"] <= x + 12 and y < at["y"] < y + 24
            page.mouse.move(x, 1)
            assert not tip.is_visible() and frame.locator("title").text_content() == words


class TestSavedPage:
    def test_a_page_that_a_browser_saved_works_as_before(
        self, opening: functools.partial[Opened], files: dict[str, Path], tmp_path: Path
    ) -> None:
        saved = tmp_path / "saved.html"
        first = opening(files["machine"])
        unfold(first.page, "#picture-page_owner")
        all_drawn(first.page, "#picture-page_owner")
        # Zoomed in, and with a search.
        frames = "#picture-page_owner .flame-view > svg"
        places = "(all) => all.map((e) => e.getAttribute('x') + ' ' + e.getAttribute('width'))"
        whole = first.page.locator(frames).evaluate_all(places)
        first.page.locator(frames).nth(2).click()
        first.page.locator("#picture-page_owner").get_by_label("Search functions").fill("all")
        assert first.page.locator(frames).evaluate_all(places) != whole
        saved.write_text(first.page.content(), encoding="utf-8")
        again = opening(saved)
        assert again.complaints == []
        all_drawn(again.page, "#picture-page_owner")
        assert again.page.locator(frames).evaluate_all(places) == whole
        assert again.page.locator(".flame .found").count() == 0
        for selector in ("th button", ".filter", "button.copy", ".flame-told"):
            assert again.page.locator(selector).count() == first.page.locator(selector).count()
        unfold(again.page, "#table-oddities")
        again.page.locator("#table-oddities th button", has_text="taken").click()
        assert again.page.locator("#table-oddities tbody td").first.inner_text() == "unknown"
