# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every kind of page that mmscope writes: how long it is, and whom it keeps out, light and dark.

Of the demo's guest as 0.1.0 read it (``bundles/v0.1.0``) and of made hosts. The pages of a busy
machine, a watch and a fleet are in the tests of those; the length of today's demo in the lab's.
"""

import functools
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import made_hosts
import pytest
from browser_page import NARROW, SCREEN, Opened, a4_pages, barriers, out_of_reach, screens
from checkout import TESTS
from page_tree import faults_of_policy

from mmscope.drgn.ledger.memory_ledger import LedgerRow
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import open_database
from mmscope.reports.commands.command import main
from mmscope.reports.compare.comparison import compare
from mmscope.reports.findings.findings import ask
from mmscope.reports.findings.question import OURS
from mmscope.reports.guard import captures, index_page
from mmscope.reports.page.report import render, write

PAGES = ("demo", "healthy", "comparison", "groups", "guard's index")
DEMO = Bundle(TESTS / "bundles" / "v0.1.0")


def host(make: Callable[[], made_hosts.Host], name: str, folder: Path) -> Bundle:
    made = make()
    made = made if LedgerRow in made.rows else made_hosts.counted(made)
    made.target |= {"hostname": name}
    return made.write(folder / name)


def guards_index(folder: Path) -> Path:
    """With captures in each state and of each severity, and one that cannot be read."""
    folder.mkdir()
    states = (captures.RUNNING, captures.DONE, captures.CUT, "dropped")
    for number, (state, severity) in enumerate(
        zip(states, ("critical", "warning", "notice", "other"), strict=True)
    ):
        name = f"2026-11-23T02-46-5{number}Z-oom-kill"
        (folder / name).mkdir()
        incident: captures.Incident = {
            "format": 1, "name": name, "trigger": "oom-kill", "title": "A process was killed",
            "severity": severity, "at": "2026-11-23T02:46:58+00:00", "host": "host",
            "state": state,
        }  # fmt: skip
        captures.write_incident(folder / name, incident)
        (folder / name / "report.html").touch()
    (folder / "2026-11-23T02-47-00Z-x").mkdir()
    (folder / "2026-11-23T02-47-00Z-x" / captures.INCIDENT).write_text("[")
    index_page.renew(folder, "host")
    return folder / "index.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    healthy = [host(lambda: made_hosts.healthy(64), f"h{n}", folder) for n in range(2)]
    leaking = [host(made_hosts.slab_leak, f"l{n}", folder) for n in range(2)]
    read = {b: ask(open_database(b), OURS()) for b in (DEMO, healthy[0], leaking[0])}
    pair = healthy[0], leaking[0]
    compared = compare(*pair, (read[pair[0]], read[pair[1]]), draw=True)
    for name, html in (
        ("demo", render(DEMO, read[DEMO])),
        ("healthy", render(healthy[0], read[healthy[0]])),
        ("comparison", render(leaking[0], read[leaking[0]], compared)),
    ):
        write(html, folder / f"{name}.html")
    sides = [str(b.path) for b in healthy], [str(b.path) for b in leaking]
    main(["compare", *sides[0], "--", *sides[1], "-o", str(folder / "groups.html")])
    names = ("demo", "healthy", "comparison", "groups")
    return {name: folder / f"{name}.html" for name in names} | {
        "guard's index": guards_index(folder / "guard")
    }


@pytest.mark.parametrize("name", PAGES)
def test_is_no_longer_than_somebody_reads_and_keeps_nobody_out(
    opening: functools.partial[Opened], pages: dict[str, Path], name: str
) -> None:
    opened = opening(pages[name], SCREEN)
    most, most_a4 = (5, 4) if name == "healthy" else (12, 8)
    assert screens(opened.page) <= most
    assert a4_pages(opened.page) <= most_a4
    opened.page.set_viewport_size({"width": 1920, "height": 1080})
    box = opened.page.locator("main").bounding_box()
    assert box is not None
    assert name == "guard's index" or box["x"] + box["width"] > 0.98 * 1920  # none of it is wasted
    assert barriers(opened.page) == []
    assert (len(opened.requests), opened.complaints) == (1, [])


@pytest.mark.parametrize("name", PAGES)
def test_a_keyboard_comes_to_everything_in_order_and_sees_where_it_is(
    opening: functools.partial[Opened], pages: dict[str, Path], name: str
) -> None:
    assert out_of_reach(opening(pages[name], SCREEN).page) == []


def test_a_keyboard_follows_the_card_to_the_rows_that_prove_it(
    opening: functools.partial[Opened], pages: dict[str, Path]
) -> None:
    page = opening(pages["demo"], SCREEN).page
    page.emulate_media(reduced_motion="reduce")
    page.locator(".card dd a", has_text="HighAtomic").first.press("Enter")
    page.locator(".finding:target a", has_text="free_blocks").press("Enter")
    page.locator("[id$='free_blocks']:target").wait_for(state="visible")
    page.locator("#table-free_blocks tr.proven").first.wait_for(state="visible")


@pytest.mark.parametrize("name", PAGES)
def test_its_policy_allows_its_own_style_and_script_alone(
    pages: dict[str, Path], name: str
) -> None:
    assert faults_of_policy(pages[name].read_text()) == []


def test_a_telephone_shows_guards_index_without_scrolling_sideways(
    opening: functools.partial[Opened], pages: dict[str, Path]
) -> None:
    """It is where an alert leads, at night."""
    opened = opening(pages["guard's index"], NARROW)
    wide = "document.documentElement.scrollWidth"
    assert opened.page.evaluate(wide) <= NARROW[0]
    title = opened.page.get_by_text("A process was killed").first.bounding_box()
    assert title is not None and title["width"] > 0.8 * NARROW[0]  # no word is broken
    # A colour of its own has it from the style alone, which the policy names by its hash.
    colour = "cell => getComputedStyle(cell).color"
    severities = opened.page.locator("td.critical, td.warning, td:first-child")
    assert len({severities.nth(n).evaluate(colour) for n in range(severities.count())}) == 3
    assert (barriers(opened.page), opened.complaints) == ([], [])


def test_headings_skip_no_level_and_tables_none(pages: dict[str, Path], whole_report: str) -> None:
    for html in (whole_report, *(path.read_text() for path in pages.values())):
        levels = [int(level) for level in re.findall("<h([1-6])[ >]", html)]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels)), levels
        assert not re.search("<th[^>]*></th>", html)
