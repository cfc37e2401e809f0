# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pointing at a finding lights what it is about, wherever the page shows it; and the address says
what is seen: of a real bundle, in a browser.
"""

import functools
from pathlib import Path

import pytest
import report_bundle as made
from browser_page import Opened, all_drawn, unfold
from checkout import TESTS
from playwright.sync_api import Page

from mmscope.reports.page.report import render, write

REAL = TESTS / "bundles" / "v0.1.0"
FINDING = "finding-highatomic-starves-thp-1"  # node 1, zone Normal
# Of each lit cell of the heat map its zone, migratetype and order.
CELLS = """
() => [...document.querySelectorAll('.heat td.lit')].map((cell) => {
    const table = cell.closest('table');
    const head = table.tHead.rows[0].cells[cell.cellIndex];
    const order = head.firstChild.textContent.trim();
    return [table.dataset.zone, cell.parentElement.dataset.type, order].join();
})
"""
PATHS = "() => [...document.querySelectorAll('.map path.lit')].map((e) => e.getAttribute('class'))"


def lit(page: Page) -> tuple[list[str], set[str], set[str]]:
    """Cells, kinds of pageblocks, and what is marked in the contents."""
    kinds = {kind for kind in " ".join(page.evaluate(PATHS)).split() if kind.startswith("mt-")}
    links = page.locator("nav a.lit").evaluate_all("(all) => all.map((e) => e.hash)")
    return page.evaluate(CELLS), kinds, set(links)


ALL = (["Normal,HighAtomic,9", "Normal,HighAtomic,10"], {"mt-highatomic"}, {f"#{FINDING}"})
NONE: tuple[list[str], set[str], set[str]] = ([], set(), set())


def sent(opened: Opened, report: Path, link: str) -> Opened:
    """The report as somebody has it who was sent a link."""
    opened.page.goto("about:blank")
    opened.page.goto(report.as_uri() + link)
    return opened


def at(page: Page) -> str:
    return str(page.evaluate("location.hash"))


class TestPointing:
    def test_with_the_mouse(self, opening: functools.partial[Opened], old_report: Path) -> None:
        page = opening(old_report).page
        assert lit(page) == NONE
        page.locator(f"#{FINDING} h3").hover()
        assert lit(page) == ALL
        page.locator("h1").hover()
        assert lit(page) == NONE
        assert at(page) == ""

    def test_at_a_link_to_it_with_the_keyboard(
        self, opening: functools.partial[Opened], old_report: Path
    ) -> None:
        page = opening(old_report).page
        page.locator(f".card a[href='#{FINDING}']").focus()
        assert lit(page) == ALL
        page.locator("nav .brand a").focus()
        assert lit(page) == NONE

    def test_veils_the_other_zones_of_the_pageblock_map(
        self, opening: functools.partial[Opened], old_report: Path
    ) -> None:
        page = opening(old_report).page
        veils = page.locator(".map .veil")
        places = [
            (int(veil.get_attribute("data-node") or 0), veil.get_attribute("data-zone"))
            for veil in veils.all()
        ]
        assert len(places) == len(set(places)) > 1 and (1, "Normal") in places
        assert page.locator(".map .veil.drawn").count() == 0
        page.locator(f"#{FINDING} h3").hover()
        for place, veil in zip(places, veils.all(), strict=True):
            assert (veil.get_attribute("class") == "veil drawn") == (place != (1, "Normal"))
        page.locator("h1").hover()
        assert page.locator(".map .veil.drawn").count() == 0

    def test_lights_its_rows_and_no_others(
        self, opening: functools.partial[Opened], old_report: Path
    ) -> None:
        page = opening(old_report).page
        page.locator(f"#{FINDING} h3").hover()
        rows = page.locator("#table-free_blocks tr.lit")
        assert rows.count() > 0
        for row in rows.all():
            words = [cell.text_content() for cell in row.locator("td").all()]
            assert words[:4] in (
                ["1", "Normal", "9", "HighAtomic"],
                ["1", "Normal", "10", "HighAtomic"],
            )
        assert page.locator("#table-free_blocks tr.proven").count() > rows.count()


class TestAddress:
    def test_a_finding_that_is_followed_stays_lit_for_whoever_gets_the_link(
        self, opening: functools.partial[Opened], old_report: Path
    ) -> None:
        page = opening(old_report).page
        page.locator(f".card a[href='#{FINDING}']").click()
        page.locator("nav a", has_text="Free lists").click()
        page.wait_for_function("() => location.hash.startsWith('#section-free_lists~')")
        page.locator("h1").hover()
        assert lit(page) == ALL
        assert at(page) == f"#section-free_lists~lit={FINDING}"
        other = sent(opening(old_report), old_report, at(page)).page
        assert lit(other) == ALL
        other.wait_for_function("(hash) => location.hash === hash", arg=at(page))
        box = other.locator("#section-free_lists").bounding_box()
        assert box is not None
        assert abs(box["y"]) < 100
        assert other.locator("section:target").get_attribute("id") == "section-free_lists"

    def test_a_link_that_is_typed_into_a_page_that_is_open(
        self, opening: functools.partial[Opened], old_report: Path
    ) -> None:
        page = opening(old_report).page
        page.goto(f"{old_report.as_uri()}#section-free_lists~lit={FINDING}")
        page.wait_for_function(
            "() => document.getElementById('section-free_lists').matches(':target')"
        )
        assert lit(page) == ALL
        assert at(page) == f"#section-free_lists~lit={FINDING}"

    def test_evidence_lights_its_finding(
        self, opening: functools.partial[Opened], old_report: Path
    ) -> None:
        page = opening(old_report).page
        page.locator(f"#{FINDING} a", has_text="free_blocks").click()
        page.wait_for_function("() => location.hash.includes('~lit=')")
        assert lit(page) == ALL

    def test_can_be_put_out(self, opening: functools.partial[Opened], old_report: Path) -> None:
        page = sent(opening(old_report), old_report, f"#findings~lit={FINDING}").page
        chip = page.locator(".lit-chip")
        assert "HighAtomic reserve" in chip.inner_text()
        chip.get_by_role("button", name="Clear").click()
        page.locator("h1").hover()  # what the mouse is on now may be a link to it
        assert (lit(page), at(page)) == (NONE, "#findings")
        assert not chip.is_visible()

    @pytest.mark.parametrize("said", ["lit=", "lit=top", "lit=%22%5D", "=&&=", "~~", "lit"])
    def test_what_is_no_finding_lights_nothing(
        self, opening: functools.partial[Opened], old_report: Path, said: str
    ) -> None:
        opened = sent(opening(old_report), old_report, f"#findings~{said}")
        assert lit(opened.page) == NONE
        assert opened.complaints == []

    def test_going_back_shows_what_was_lit(
        self, opening: functools.partial[Opened], old_report: Path
    ) -> None:
        page = opening(old_report).page
        page.locator(f".card a[href='#{FINDING}']").click()
        page.wait_for_function("() => location.hash.includes('~lit=')")
        page.locator("nav a", has_text="Pageblocks").click()
        page.wait_for_function("() => location.hash.startsWith('#section-pageblocks~')")
        page.go_back()
        page.wait_for_function("(id) => location.hash === `#${id}~lit=${id}`", arg=FINDING)
        assert lit(page) == ALL


class TestFlameGraphs:
    @pytest.fixture
    def profile(self, tmp_path: Path) -> Path:
        path = tmp_path / "r.html"
        bundle = made.write_bundle(tmp_path / "b", made.tables())
        write(render(bundle, made.verdict()), path)
        return path

    FRAMES = "#picture-page_owner .flame-view > svg"
    PLACES = (
        "(all) => all.map((e) => e.textContent + e.getAttribute('x') + e.getAttribute('width'))"
    )

    def test_the_frame_that_was_zoomed_and_the_search_are_in_the_address(
        self, opening: functools.partial[Opened], profile: Path
    ) -> None:
        page = opening(profile).page
        unfold(page, "#picture-page_owner")
        all_drawn(page, "#picture-page_owner")
        page.locator("#picture-page_owner").get_by_role("button", name="From leaves").click()
        page.locator(self.FRAMES).nth(3).click()
        page.locator("#picture-page_owner").get_by_label("Search functions").fill("al/loc ~&=%")
        page.locator("#picture-page_owner").get_by_label("Search functions").fill("all")
        seen = page.locator(self.FRAMES).evaluate_all(self.PLACES)
        found = page.locator("#picture-page_owner .found").count()
        link = "#picture-page_owner" + at(page).removeprefix("#")
        other = sent(opening(profile), profile, link).page
        all_drawn(other, "#picture-page_owner")
        assert other.locator(self.FRAMES).evaluate_all(self.PLACES) == seen
        assert other.locator("#picture-page_owner .found").count() == found > 0
        pressed = other.locator("#picture-page_owner button[aria-pressed=true]")
        assert pressed.all_inner_texts() == ["From leaves"]

    def test_callers_and_callees_of_one_function_are_too(
        self, opening: functools.partial[Opened], profile: Path
    ) -> None:
        page = opening(profile).page
        unfold(page, "#picture-page_owner")
        all_drawn(page, "#picture-page_owner")
        page.locator("#picture-page_owner .flame-tops td button").nth(1).click()
        seen = page.locator(self.FRAMES).evaluate_all(self.PLACES)
        link = "#picture-page_owner" + at(page).removeprefix("#")
        other = sent(opening(profile), profile, link).page
        all_drawn(other, "#picture-page_owner")
        assert other.locator(self.FRAMES).evaluate_all(self.PLACES) == seen
        other.locator("#picture-page_owner").get_by_role("button", name="Reset zoom").click()
        other.wait_for_function("() => !location.hash.includes('~')")

    def test_what_is_no_view_is_left(
        self, opening: functools.partial[Opened], profile: Path
    ) -> None:
        opened = opening(profile)
        for said in ("a/b/c/d", "callers/1//9.9.9", "sandwich/0//none", "%E0%A4%A/0//"):
            sent(opened, profile, f"#picture-page_owner~flame.picture-page_owner.0={said}")
            all_drawn(opened.page, "#picture-page_owner")
            assert opened.complaints == [], said
