# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reports as somebody reads them: what stood in the way once, and is not a matter of one picture.

Of the lab's guest as 0.1.0 read it (``bundles/v0.1.0``), and of made rows.
"""

import functools
import io
import sys
from pathlib import Path

import pytest
import report_bundle as made
from browser_page import SCREEN, WIDE, Opened, all_drawn
from checkout import TESTS
from page_tree import NOTHING

from mmscope.reports.commands.command import main
from mmscope.reports.drawing.flame_graph import ROW
from mmscope.reports.page.report import render, write

REAL = TESTS / "bundles" / "v0.1.0"
NEVER = "exit_path_never_cpu_clock"
DEEP = 90
# Folds of whole sections: which section, whether its findings are in it, whether it is open.
FOLDS = """
() => [...document.querySelectorAll('main > section[id^=section-] > details.whole')].map((fold) => [
    fold.parentElement.id, !!fold.querySelector('.refers a'), fold.open])
"""
# Boxes that hold more than they show, and whether an edge says so.
WIDER = """
() => {
    document.querySelectorAll('details').forEach((d) => d.open = true);
    return [...document.querySelectorAll('.scroll')]
        .filter((box) => box.scrollWidth > box.clientWidth)
        .map((box) => getComputedStyle(box).backgroundImage.includes('gradient'));
}
"""


def test_flame_graphs_need_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    html = render(made.write_bundle(tmp_path / "b", made.tables()), NOTHING)
    assert html.count('<svg class="flame"') > 5
    assert "No flame graph" not in html


def test_deep_stacks_of_user_code_leave_the_kernels_part_in_sight(
    opening: functools.partial[Opened], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = ["entry_SYSCALL_64_[k]", "do_syscall_64_[k]", "unmap_region_[k]"]
    stacks = [
        (";".join(["postgres", *(f"layer_{n}_{depth}" for depth in range(DEEP)), *kernel]), 1)
        for n in range(9)
    ]
    monkeypatch.setitem(made.PROFILED, NEVER, stacks)
    path = tmp_path / "r.html"
    write(render(made.write_bundle(tmp_path / "b", made.tables()), NOTHING), path)
    page = opening(path, SCREEN).page
    page.evaluate("document.querySelectorAll('details').forEach((d) => d.open = true)")
    all_drawn(page, "#profile-1")
    graph = page.locator("#profile-1 .flames").first
    assert float(str(graph.locator(".flame-view").get_attribute("height"))) <= 8 * ROW
    assert graph.locator(".flame-view > svg", has_text="unmap_region").first.is_visible()
    # All of them, when somebody asks: in a box that scrolls by itself.
    graph.get_by_role("button", name="User functions").click()
    assert float(str(graph.locator(".flame-view").get_attribute("height"))) >= DEEP * ROW
    box = graph.locator(".flame-scroll").bounding_box()
    assert box is not None
    assert box["height"] <= SCREEN[1] * 2 / 3


def test_a_section_without_findings_is_a_line_until_it_is_opened(
    opening: functools.partial[Opened], old_report: Path
) -> None:
    folds = opening(old_report).page.evaluate(FOLDS)
    assert {(found, is_open) for _, found, is_open in folds} == {(True, True), (False, False)}


def test_the_page_does_not_grow_while_it_is_scrolled(
    opening: functools.partial[Opened], old_report: Path
) -> None:
    page = opening(old_report, SCREEN).page
    height = "document.documentElement.scrollHeight"
    before = page.evaluate(height)
    for _ in range(0, before, SCREEN[1]):
        page.keyboard.press("PageDown")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
    assert page.evaluate(height) == before


def test_a_table_that_is_wider_than_its_place_says_so_at_its_edge(
    opening: functools.partial[Opened], old_report: Path
) -> None:
    wider = opening(old_report, WIDE).page.evaluate(WIDER)
    assert wider and all(wider)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "arguments",
    [("findings", REAL), ("compare", REAL, "--", REAL), ("show", "free_blocks", REAL)],
    ids=lambda words: words[0],
)
def test_eighty_columns_hold_everything(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str | Path, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    main([str(word) for word in arguments])
    lines = screen.getvalue().splitlines()
    assert len(lines) > 5
    assert [line for line in lines if len(line) > 80] == []


def test_the_demos_process_is_called_as_a_reader_expects() -> None:
    """Not as the one that tests hold the page against; ``make pictures`` reads the page."""
    lab = REAL.parents[1] / "lab"
    body = (lab / "guest" / "workload_fragment.c").read_text().partition("workload_demo(void)")[2]
    assert 'holder = "database";' in body
    assert 'capture(kernel, "demo"' in (lab / "demo.py").read_text()
