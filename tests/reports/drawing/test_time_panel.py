# SPDX-License-Identifier: LGPL-2.1-or-later
"""The charts of a watch in a browser: read at a moment, and over a period."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import watch_made
from browser_page import NARROW, SCHEMES, WIDE, Opened, barriers
from playwright.sync_api import Page
from report_bundle import tables, verdict, write_bundle
from rows_of_tables import tables_of_rows

from mmscope.reports.page.report import render, write
from mmscope.reports.rows.watch_rows import PsiStall

PLOT = "#watch-time .time-plot svg"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch")
    write(render(write_bundle(folder / "b", watch_made.tables()), verdict()), folder / "r.html")
    return folder / "r.html"


def values(page: Page, title: str) -> list[str]:
    """Beside the lines of a chart."""
    lane = page.locator(".time-lane", has=page.get_by_role("heading", name=title, exact=True))
    return lane.locator(".now").all_inner_texts()


def move(page: Page, seconds: float) -> None:
    """The mouse to a moment of the first chart."""
    box = page.locator(PLOT).first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * seconds / 1200, box["y"] + box["height"] / 2)


def told(page: Page) -> str:
    return page.locator(".time-told").inner_text()


def test_every_chart_has_the_same_ends(opening: functools.partial[Opened], report: Path) -> None:
    page = opening(report).page
    boxes = [plot.bounding_box() for plot in [*page.locator(PLOT).all(), page.locator(".clock")]]
    assert len(boxes) > 6
    assert len({(box["x"], box["width"]) for box in boxes if box}) == 1


def test_what_was_at_a_moment(opening: functools.partial[Opened], report: Path) -> None:
    page = opening(report).page
    page.locator(PLOT).first.scroll_into_view_if_needed()
    move(page, 604)
    assert told(page) == "03:10:00"
    assert values(page, "Free blocks of THP size") == ["70", "5"]
    assert values(page, "What the kernel holds itself") == ["28"]
    # Of the period that ends there.
    assert values(page, "Page faults for transparent huge pages") == ["1", "2"]
    assert page.locator(".cross[d^='M500 ']").count() == page.locator(PLOT).count()
    page.locator("h1").hover()
    assert values(page, "Free blocks of THP size") == ["", ""]


def test_what_was_read_a_little_later_has_a_value_at_the_same_moment(
    opening: functools.partial[Opened], tmp_path: Path
) -> None:
    """PSI has a clock of its own: its periods end a little later, and begin where none ended."""
    rows = [row for number in range(watch_made.SAMPLES) for row in watch_made.sample(number)]
    rows = [
        replace(row, time=row.time + 0.02, period_seconds=row.period_seconds - 0.03)
        if isinstance(row, PsiStall) and row.period_seconds
        else row
        for row in rows
    ]
    made = write_bundle(tmp_path / "b", tables_of_rows(rows))
    write(render(made, verdict()), tmp_path / "r.html")
    page = opening(tmp_path / "r.html").page
    page.locator("#watch-time").focus()
    page.keyboard.press("Home")
    seen = []
    for _ in range(9):  # the ends of three periods, and of PSI's
        page.keyboard.press("ArrowRight")
        seen += values(page, "Memory pressure")
    assert len(seen) == 18 and "n/a" not in seen


def test_a_period_has_its_own_rates_and_who_grew(
    opening: functools.partial[Opened], report: Path
) -> None:
    page = opening(report).page
    page.locator(PLOT).first.scroll_into_view_if_needed()
    move(page, 300)
    page.mouse.down()
    move(page, 500)
    move(page, 900)
    page.mouse.up()
    # 14, 21 and 28 failures in ten minutes; a mebibyte of page tables a sample.
    assert values(page, "Direct compaction") == ["0.105"]
    assert values(page, "What the kernel holds itself") == ["+20"]
    assert values(page, "Free memory") == ["-312.5"]
    assert told(page).startswith("03:05:00 to 03:15:00 (10 min)")
    moved = [page.get_by_label(words).get_by_role("listitem").all_inner_texts()
             for words in ("Who grew", "Who shrank")]  # fmt: skip
    assert moved == [["PageTables +20 MiB"], ["MemFree -312.5 MiB"]]
    assert "Left out: 2 levels that differ by no more than between two readings" in told(page)
    assert page.evaluate("location.hash").endswith("~time=300-900")
    other = opening(report).page
    other.goto("about:blank")
    other.goto(report.as_uri() + "#watch-time~time=300-900")
    assert told(other) == told(page)
    assert values(other, "Direct compaction") == ["0.105"]
    other.get_by_role("button", name="Whole time").click()
    assert values(other, "Direct compaction") == [""]
    assert "time=" not in other.evaluate("location.hash")


def test_by_keyboard(opening: functools.partial[Opened], report: Path) -> None:
    page = opening(report).page
    page.locator(".time").focus()
    page.keyboard.press("ArrowRight")
    assert told(page) == "03:00:00"
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    assert told(page) == "03:05:00"
    for _ in range(20):
        page.keyboard.press("Shift+ArrowRight")
    assert told(page).startswith("03:05:00 to 03:15:00")
    assert values(page, "Direct compaction") == ["0.105"]
    page.keyboard.press("Escape")
    assert "to" not in told(page)


def test_what_is_no_period_is_the_whole_watch(
    opening: functools.partial[Opened], report: Path
) -> None:
    opened = opening(report)
    for said in ("900-300", "1-2", "300", "x-y", "300-900-901", "-"):
        opened.page.goto("about:blank")
        opened.page.goto(f"{report.as_uri()}#watch-time~time={said}")
        assert told(opened.page).startswith("Hover for values"), said
        assert opened.complaints == [], said


def test_a_period_that_was_not_read_has_no_rate(
    opening: functools.partial[Opened], tmp_path: Path
) -> None:
    contents = watch_made.tables()
    title, row_type, rows, section = contents["watch_samples"]
    unread = [replace(row, unread="vmstat") if 600 <= row.time <= 900 else row for row in rows]
    contents["watch_samples"] = title, row_type, unread, section
    write(render(write_bundle(tmp_path / "b", contents), verdict()), tmp_path / "r.html")
    page = opening(tmp_path / "r.html").page
    page.goto("about:blank")
    page.goto(f"{(tmp_path / 'r.html').as_uri()}#watch-time~time=600-900")
    assert values(page, "Direct compaction") == ["n/a"]
    assert values(page, "What the kernel holds itself") == ["+10"]


def test_without_script_it_is_whole(opening: functools.partial[Opened], report: Path) -> None:
    page = opening(report, script=False).page
    assert page.locator(f"{PLOT} .line").count() >= 10
    assert page.locator(".clock text").all_text_contents()[:2] == ["03:00", "03:05"]
    assert page.locator(".events text").all_text_contents() == ["OOM kill", "3 OOM kills"]


def test_nobody_is_kept_out(opening: functools.partial[Opened], report: Path) -> None:
    opened = opening(report, NARROW)
    for scheme in SCHEMES:
        opened.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
    opened.page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    assert barriers(opened.page) == []
    assert opened.complaints == []


def test_a_series_without_a_watch_is_read_the_same_way(
    opening: functools.partial[Opened], tmp_path: Path
) -> None:
    owned = {name: each for name, each in tables().items() if each[3] == "page_owner"}
    write(render(write_bundle(tmp_path / "b", owned), verdict()), tmp_path / "r.html")
    opened = opening(tmp_path / "r.html")
    page = opened.page
    page.goto("about:blank")
    page.goto(f"{(tmp_path / 'r.html').as_uri()}#owner-time~time=0-20")
    assert told(page).startswith("0 s to 20 s (20 s)")
    assert "leak_more +62.44 MiB" in page.locator(".time-told li").all_inner_texts()
    assert opened.complaints == []
    assert barriers(page) == []
