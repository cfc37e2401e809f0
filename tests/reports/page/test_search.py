# SPDX-License-Identifier: LGPL-2.1-or-later
"""One search over a report, in its contents; of a real bundle, in a browser."""

import functools
from pathlib import Path

import pytest
from browser_page import NARROW, WIDE, Opened, violations
from checkout import TESTS
from playwright.sync_api import Page

from mmscope.reports.bundle.bundle import Bundle

REAL = TESTS / "bundles" / "v0.1.0"


def search(page: Page, words: str) -> list[str]:
    page.get_by_role("searchbox", name="Search findings, tables and glossary").fill(words)
    return page.locator(".found a").all_inner_texts()


@pytest.mark.parametrize(
    ("words", "first", "goal"),
    [
        ("highatomic thp size", "free blocks of THP size lie in the HighAtomic", ".finding"),
        ("slab caches", "Slab caches section", "#section-slab_caches"),
        ("pcp_pages", "pcp_pages table", "#table-pcp_pages"),
        ("buddy allocator", "buddy allocator glossary", "#term-buddy-allocator"),
        (
            "min_free_kbytes raised",
            "May vm.min_free_kbytes be raised? question",
            "#picture-min_free",
        ),
        ("leaks", "What grew? question", "#top"),
        ("memory leak", "What grew? question", "#top"),
        ("exit", "Why does exit take long? question", "main [id]"),
        ("why is exit slow", "Why does exit take long? question", "main [id]"),
        (
            "fragmentation index",
            "External fragmentation: the unusable free space index picture",
            "#picture-fragmentation",
        ),
        ("MemTotal to the last page", "", ""),
    ],
)
def test_finds_and_leads_there(
    opening: functools.partial[Opened], old_report: Path, words: str, first: str, goal: str
) -> None:
    page = opening(old_report).page
    page.emulate_media(reduced_motion="reduce")
    found = search(page, words)
    if not first:
        assert found == []
        assert page.locator(".search [role=status]").inner_text().startswith("0 places. Try")
        return
    assert first in found[0]
    page.keyboard.press("Enter")
    page.locator(f"{goal}:target").wait_for(state="visible")


def test_rows_are_counted_and_their_table_shows_them_alone(
    opening: functools.partial[Opened], old_report: Path
) -> None:
    page = opening(old_report).page
    names = [row["cache"] for row in Bundle(REAL).rows("slab_caches")]
    wanted = [name for name in names if "inode_cache" in str(name)]
    found = search(page, "inode_cache")
    assert f"slab_caches: {len(wanted)} rows of those shown table" in found
    page.locator(".found a", has_text="slab_caches: ").click()
    table = page.locator("#table-slab_caches")
    table.wait_for(state="visible")
    assert table.locator("tbody tr:visible").count() == len(wanted) > 1


def test_by_keyboard_alone(opening: functools.partial[Opened], old_report: Path) -> None:
    page = opening(old_report).page
    page.keyboard.press("/")
    page.keyboard.type("watermark")
    assert not page.locator("nav .toc-findings").first.is_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.found a')[1]")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.value") == ""
    assert page.locator("nav .toc-findings").first.is_visible()
    assert page.locator(".found a").count() == 0


def test_the_contents_have_whole_titles(
    opening: functools.partial[Opened], old_report: Path
) -> None:
    page = opening(old_report, WIDE).page
    cut = page.locator(".toc-title").evaluate_all(
        "(all) => all.filter((e) => e.scrollHeight > e.clientHeight + 1"
        " || e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)"
    )
    assert cut == []
    titles = page.locator(".finding").evaluate_all("(all) => all.map((e) => e.dataset.title)")
    assert set(page.locator(".toc-title").all_inner_texts()) <= set(titles)


def test_the_contents_show_where_one_is(
    opening: functools.partial[Opened], old_report: Path
) -> None:
    page = opening(old_report, (1280, 500)).page
    page.locator("#glossary").scroll_into_view_if_needed()
    page.evaluate("document.getElementById('reading').scrollIntoView()")
    page.wait_for_function("() => document.querySelector('nav a[aria-current]') !== null")
    here = page.locator("nav a[aria-current]")
    page.wait_for_function(
        """() => {
            const box = document.querySelector('nav a[aria-current]').getBoundingClientRect();
            return box.top >= 0 && box.bottom <= innerHeight;
        }"""
    )
    assert here.count() == 1


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_what_is_found_fits_and_keeps_nobody_out(
    opening: functools.partial[Opened], old_report: Path, size: tuple[int, int]
) -> None:
    opened = opening(old_report, size, "dark")
    assert len(search(opened.page, "free")) > 10
    assert opened.page.locator(".found").is_visible()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert opened.complaints == []
    assert violations(opened.page, within="nav") == []


def test_without_script_there_is_none(opening: functools.partial[Opened], old_report: Path) -> None:
    page = opening(old_report, script=False).page
    assert page.locator("nav input").count() == 0
    assert page.locator("nav > ul").is_visible()


def test_words_of_a_stranger_are_text(opening: functools.partial[Opened], old_report: Path) -> None:
    opened = opening(old_report)
    search(opened.page, "<img src=x onerror=alert(1)>")
    assert opened.page.locator("nav img").count() == 0
    assert opened.complaints == []
