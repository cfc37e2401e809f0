# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Questions of somebody in a hurry, answered by clicking: from the first screen in at most three
steps, each of them on a link that is in sight, with nothing scrolled by hand.

Of a real bundle (``bundles/v0.1.0``, the lab's guest whose free memory is fragmented), a kernel's
recorded files (``data/7.2``), and made hosts that are sick in a known way.
"""

import functools
from pathlib import Path

import made_hosts
import pytest
from browser_page import SCREEN, Opened
from checkout import TESTS
from playwright.sync_api import Locator

from mmscope.drgn.ledger.memory_ledger import LedgerRow
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import open_database
from mmscope.reports.commands.command import main
from mmscope.reports.compare.comparison import compare
from mmscope.reports.findings.findings import ask
from mmscope.reports.findings.question import OURS
from mmscope.reports.page.report import render, write

HERE = TESTS
MOST_STEPS = 3
IN_SIGHT = """
(e) => {
    const box = e.getBoundingClientRect();
    return box.height > 0 && box.top < innerHeight && box.bottom > 0;
}
"""
OF_THE_ADDRESS = "() => document.getElementById(location.hash.slice(1).split('~')[0])"


class Reader:
    """Clicks what is in sight, and is led somewhere."""

    def __init__(self, opened: Opened) -> None:
        self.page = opened.page
        self.page.emulate_media(reduced_motion="reduce")
        self.steps = 0

    def click(self, link: Locator) -> None:
        self.steps += 1
        assert self.steps <= MOST_STEPS
        assert link.evaluate(IN_SIGHT), "out of sight"
        goal = link.get_attribute("href")
        link.click()
        self.page.wait_for_function("(goal) => location.hash.split('~')[0] === goal", arg=goal)

    def sees(self, text: str, inside: str = "main") -> bool:
        """Whether a text is in sight in what the address names, or inside a part of that."""
        goal = self.page.evaluate_handle(OF_THE_ADDRESS).as_element()
        assert goal is not None
        assert goal.evaluate(IN_SIGHT), "led to something out of sight"
        where = self.page.locator(inside).filter(has_text=text)
        return any(place.evaluate(IN_SIGHT) for place in where.all())


def report_of(bundle: Bundle, path: Path) -> Path:
    write(render(bundle, ask(open_database(bundle), OURS())), path)
    return path


def with_ledger(host: made_hosts.Host) -> made_hosts.Host:
    return host if LedgerRow in host.rows else made_hosts.counted(host)


def made(name: str, folder: Path) -> Path:
    """The report of a made host."""
    host, _ = made_hosts.SICK[name]
    return report_of(with_ledger(host()).write(folder / "made"), folder / "r.html")


@pytest.mark.parametrize(
    ("sick", "marked", "holder"),
    [("slab leak", "slab", "kmalloc-512"), ("a driver's leak", "unexplained", "compound pages")],
)
def test_who_holds_the_memory_that_is_missing(
    opening: functools.partial[Opened], tmp_path: Path, sick: str, marked: str, holder: str
) -> None:
    reader = Reader(opening(made(sick, tmp_path), SCREEN))
    # What is about a class of memory is marked in the bar, and its segment leads to its owners.
    reader.click(reader.page.locator(f".card .mem-bar a:has(.mem-mark)[aria-label^={marked}]"))
    assert reader.sees(holder, f"#memory-{marked}")
    reader.click(reader.page.locator(f"#memory-{marked} .owners a").first)
    assert reader.sees(holder, "tr")


def test_why_thp_fails(opening: functools.partial[Opened], tmp_path: Path) -> None:
    real = report_of(Bundle(HERE / "bundles" / "v0.1.0"), tmp_path / "r.html")
    reader = Reader(opening(real, SCREEN))
    reader.click(reader.page.get_by_role("link", name="Why do huge pages fail?"))
    assert reader.sees("5 of 5 free blocks of THP size lie in the HighAtomic reserve", ".finding")
    reader.click(reader.page.locator(".finding:target a", has_text="free_blocks"))
    assert reader.sees("HighAtomic", "tr.proven")


def test_why_exit_takes_seconds(opening: functools.partial[Opened], tmp_path: Path) -> None:
    reader = Reader(opening(made("page table bloat", tmp_path), SCREEN))
    reader.click(reader.page.get_by_role("link", name="Why does exit take long?"))
    assert reader.sees("oomsday", ".finding")
    reader.click(reader.page.locator(".finding:target a", has_text="page_tables"))
    assert reader.sees("oomsday", "tr.proven")


def test_who_leaked_between_yesterday_and_today(
    opening: functools.partial[Opened], tmp_path: Path
) -> None:
    yesterday = with_ledger(made_hosts.healthy(64))
    today = with_ledger(made_hosts.slab_leak())
    for host, day in ((yesterday, 20), (today, 21)):
        host.target |= {
            "hostname": "made-64g", "captured_at": f"2026-11-{day}T03:00:00+00:00",
            "uptime_seconds": day * 86400.0,
        }  # fmt: skip
    bundles = yesterday.write(tmp_path / "yesterday"), today.write(tmp_path / "today")
    before, after = (ask(open_database(bundle), OURS()) for bundle in bundles)
    path = tmp_path / "r.html"
    write(render(bundles[1], after, compare(*bundles, (before, after), draw=True)), path)
    reader = Reader(opening(path, SCREEN))
    reader.click(reader.page.get_by_role("link", name="What grew?"))
    assert reader.sees("kmalloc-512", "#comparison tr")
    reader.click(reader.page.locator("#comparison .waterfall a", has_text="Slab caches"))
    assert reader.sees("kmalloc-512", "#compared-slab_caches tr")


@pytest.mark.parametrize("bundle", ["real", "recorded"])
def test_is_it_safe_to_raise_min_free_kbytes(
    opening: functools.partial[Opened], tmp_path: Path, bundle: str
) -> None:
    folder = HERE / "bundles" / "v0.1.0"
    if bundle == "recorded":
        folder = tmp_path / "recorded"
        main(["collect", "--proc-root", str(HERE / "data" / "7.2"), "-o", str(folder)])
    reader = Reader(opening(report_of(Bundle(folder), tmp_path / "r.html"), SCREEN))
    reader.click(reader.page.get_by_role("link", name="May vm.min_free_kbytes be raised?"))
    assert reader.sees("Hardly: it is 67,584 (66 MiB), and more than", ".answer")
    assert reader.sees("below min", "#picture-min_free tr")
