# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The flame viewer in a browser: every box held against the stacks that the page has for download.

Debian's Chromium shows it (``apt-get install chromium-headless-shell``), driven by Playwright.
"""

import base64
import functools
import gzip
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import report_bundle as made
from browser_page import NARROW, Opened, all_drawn, unfold
from playwright.sync_api import Locator, Page

from mmscope.reports.drawing.flame_graph import ROW, top_frames
from mmscope.reports.page.report import render, write

OWNERS = "#picture-page_owner"
NEVER, ALWAYS = "#profile-1", "#profile-2"
# (name, row from the bottom, value) of each box.
BOXES = """
(svg) => [...svg.children].map((box) => [
    box.querySelector('title').textContent,
    (svg.getAttribute('height') - box.getAttribute('y')) / ROW - 1,
    parseFloat(box.getAttribute('width'))])
""".replace("ROW", str(ROW))

# (text, whole name, room, how far the text runs out) of each box with a text, by pixels.
NAMES = """
(inside) => [...document.querySelector(inside + ' .flame-view').children]
    .filter((box) => box.querySelector('text'))
    .map((box) => {
        const text = box.querySelector('text');
        const room = box.querySelector('rect').getBoundingClientRect();
        const title = box.querySelector('title').textContent;
        return [text.textContent, title.split(': ').slice(0, -1).join(': '), room.width,
            text.textContent ? text.getBoundingClientRect().right - room.right : 0];
    })
"""

Stacks = dict[tuple[str, ...], int]
Boxes = Counter[tuple[str, int, int]]


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewer")
    path = folder / "report.html"
    write(render(made.write_bundle(folder / "bundle", made.tables()), made.verdict()), path)
    return path


@pytest.fixture
def page(opening: functools.partial[Opened], report: Path) -> Page:
    opened = opening(report, (1440, 900))
    unfold(opened.page, OWNERS)
    return opened.page


def offered(page: Page, inside: str) -> Stacks:
    """The stacks as the page has them for download."""
    link = page.locator(f"{inside} a.download[download$='folded.gz']").first
    text = gzip.decompress(base64.b64decode(str(link.get_attribute("href")).partition(",")[2]))
    lines = (line.rpartition(" ") for line in text.decode().splitlines())
    return {tuple(stack.split(";")): int(value) for stack, _, value in lines}


def tree(stacks: Stacks, step: int = 1, first: int = 1) -> Boxes:
    """What is drawn of stacks, a row up or down for each frame from row *first* on."""
    value: Counter[tuple[str, ...]] = Counter()
    for stack, number in stacks.items():
        for depth in range(1, len(stack) + 1):
            value[stack[:depth]] += number
    found: Boxes = Counter()
    least = sum(stacks.values()) / 500  # narrower ones have no box
    for path, number in value.items():
        if number >= least:
            found[path[-1].removesuffix("_[k]"), first + step * (len(path) - 1), number] += 1
    return found


def drawn(page: Page, inside: str) -> Boxes:
    """What is drawn, without the box of everything."""
    found: Boxes = Counter()
    for title, row, width in page.locator(f"{inside} .flame-view").first.evaluate(BOXES):
        name, _, said = title.rpartition(": ")
        exact = re.search(r"\(([0-9,]+) bytes\)|^([0-9,]+) (?:bytes|samples|B)\b", said)
        assert exact is not None, title
        assert 0 < width <= 100
        found[name, row, int((exact[1] or exact[2]).replace(",", ""))] += 1
    return found


def everything(stacks: Stacks, name: str = "all", row: int = 0) -> Boxes:
    return Counter({(name, row, sum(stacks.values())): 1})


def button(page: Page, inside: str, name: str) -> Locator:
    return page.locator(inside).get_by_role("button", name=name, exact=True).first


def sort(page: Page, order: str) -> None:
    page.locator(f"{OWNERS} .flame-tops th button", has_text=order).click()


class TestAllStacks:
    def test_are_drawn_from_their_callers(self, page: Page) -> None:
        all_drawn(page, OWNERS)
        stacks = offered(page, OWNERS)
        assert drawn(page, OWNERS) == tree(stacks) + everything(stacks)

    def test_and_from_their_leaves(self, page: Page) -> None:
        all_drawn(page, OWNERS)
        stacks = offered(page, OWNERS)
        button(page, OWNERS, "From leaves").click()
        turned: Stacks = {stack[::-1]: value for stack, value in stacks.items()}
        assert drawn(page, OWNERS) == tree(turned) + everything(turned, "all, from the leaves")
        button(page, OWNERS, "From callers").click()
        assert drawn(page, OWNERS) == tree(stacks) + everything(stacks)

    def test_a_function_has_what_it_calls_above_and_its_callers_below(self, page: Page) -> None:
        all_drawn(page, OWNERS)
        through = {s: v for s, v in offered(page, OWNERS).items() if "alloc_pages_mpol" in s}
        at = {stack: stack.index("alloc_pages_mpol") for stack in through}
        above: Counter[tuple[str, ...]] = Counter()
        below: Counter[tuple[str, ...]] = Counter()
        for stack, value in through.items():
            above[stack[at[stack] + 1 :]] += value
            below[stack[: at[stack]][::-1]] += value
        depth = max(map(len, below))
        sort(page, "total")
        page.locator(f"{OWNERS} .flame-tops").get_by_text("alloc_pages_mpol", exact=True).click()
        assert drawn(page, OWNERS) == (
            tree(dict(above), 1, depth + 1)
            + tree(dict(below), -1, depth - 1)
            + everything(through, "alloc_pages_mpol", depth)
        )
        button(page, OWNERS, "Reset zoom").click()
        assert drawn(page, OWNERS)["all", 0, sum(offered(page, OWNERS).values())] == 1

    @pytest.mark.parametrize("order", ["self", "total"])
    def test_the_functions_beside_them_are_those_that_hold_most(
        self, page: Page, order: str
    ) -> None:
        all_drawn(page, OWNERS)
        sort(page, order)
        stacks = offered(page, OWNERS)
        tops, _ = top_frames({";".join(s): v for s, v in stacks.items()}, 1000)
        # What ends in none of several says least: then what passes through them.
        tops.sort(key=lambda top: (-(top[1] if order == "self" else 0), -top[2], top[0]))
        whole = sum(stacks.values())
        shown = page.locator(f"{OWNERS} .flame-tops tbody tr").all()
        assert len(shown) == min(len(tops), 16)
        for row, (frame, self_value, through) in zip(shown, tops, strict=False):
            name, own, total = row.locator("td").all_inner_texts()
            assert name == frame
            for said, value in ((own, self_value), (total, through)):
                share = 100 * value / whole
                assert said == ("<0.1 %" if 0 < share < 0.05 else said)
                assert float(said.strip("<> %")) == pytest.approx(share, abs=0.1)

    def test_user_functions_are_one_frame_until_asked_for(self, page: Page) -> None:
        unfold(page, NEVER)
        page.locator(f"{NEVER} > summary").click()
        all_drawn(page, NEVER)
        stacks = offered(page, NEVER)
        names = {name for name, _, _ in drawn(page, NEVER)}
        assert "(user code)" in names
        assert "main" not in names
        button(page, NEVER, "User functions").click()
        assert drawn(page, NEVER) == tree(stacks) + everything(stacks)


def test_frames_that_are_too_narrow_share_a_box_that_counts_their_stacks(
    opening: functools.partial[Opened], tmp_path: Path
) -> None:
    """One stack has nearly everything, three thousand others share a 200th."""
    row = made.owner_stacks()[0]
    many = [replace(row, handle=n + 1, stack=f"entry;narrow_{n}", pages=1) for n in range(3000)]
    wide = replace(row, handle=9999, stack="entry;wide", pages=597_000)
    contents = made.tables()
    title, row_type, _, section = contents["page_owner_stacks"]
    contents["page_owner_stacks"] = title, row_type, [wide, *many], section
    path = tmp_path / "report.html"
    write(render(made.write_bundle(tmp_path / "bundle", contents), made.verdict()), path)
    page = opening(path).page
    unfold(page, OWNERS)
    all_drawn(page, OWNERS)
    assert drawn(page, OWNERS) == Counter(
        {
            ("all", 0, 600_000 << 12): 1,
            ("entry", 1, 600_000 << 12): 1,
            ("wide", 2, 597_000 << 12): 1,
            ("other (3,000 stacks)", 2, 3000 << 12): 1,
        }
    )
    # A search finds what has no box of its own.
    page.locator(OWNERS).get_by_label("Search functions").fill("narrow_2999")
    status = page.locator(OWNERS).get_by_role("status").first
    assert status.inner_text() == "1 function, <0.1 % of all"


class TestHands:
    def frame(self, page: Page, name: str, inside: str = OWNERS) -> Locator:
        return page.locator(f"{inside} .flame:not([hidden]) > svg").filter(
            has=page.locator("text", has_text=re.compile(f"^{re.escape(name)}$"))
        )

    def test_zoom_by_mouse_and_reset(self, page: Page) -> None:
        all_drawn(page, OWNERS)
        before = drawn(page, OWNERS)
        whole = page.locator(f"{OWNERS} .flame-view").bounding_box()
        assert whole is not None
        self.frame(page, "do_syscall_64").click()
        for name in ("all", "entry_SYSCALL_64", "do_syscall_64", "vfs_write"):
            box = self.frame(page, name).bounding_box()
            assert box is not None
            # Its caller and itself fill the graph; vfs_write is nearly all of it.
            assert box["width"] == pytest.approx(whole["width"], rel=0.01)
        assert self.frame(page, "asm_exc_page_fault").count() == 0
        button(page, OWNERS, "Reset zoom").click()
        assert drawn(page, OWNERS) == before

    def test_a_name_that_does_not_fit_ends_in_two_points_and_is_whole_on_hover(
        self, page: Page
    ) -> None:
        all_drawn(page, OWNERS)
        for width in (1440, 700):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(f"() => ({NAMES})('{OWNERS}').every(([, , , out]) => out <= 1)")
            named = page.evaluate(NAMES, OWNERS)
            cut = [(text, name) for text, name, room, _ in named if text != name and room]
            assert cut
            for text, name in cut:
                assert text == "" or (text.endswith("..") and name.startswith(text[:-2]))
            assert any(text == name for text, name, _, _ in named)

    def test_walk_by_keyboard(self, page: Page) -> None:
        all_drawn(page, OWNERS)

        def focused() -> str:
            title: str = page.evaluate("document.activeElement.querySelector('title').textContent")
            return title.partition(":")[0]

        # One stop for the whole graph, behind its buttons.
        button(page, OWNERS, "From leaves").focus()
        page.keyboard.press("Tab")
        seen = [focused()]
        for key in ("ArrowUp", "ArrowRight", "ArrowUp", "ArrowDown", "ArrowLeft"):
            page.keyboard.press(key)
            seen.append(focused())
        assert seen == [
            *("all", "asm_exc_page_fault", "entry_SYSCALL_64", "do_syscall_64"),
            *("entry_SYSCALL_64", "asm_exc_page_fault"),
        ]
        assert (
            page.locator(f"{OWNERS} .flame-told")
            .inner_text()
            .startswith("asm_exc_page_fault: 394.5 MiB (413,696,000 bytes), 77.9 %")
        )
        page.keyboard.press("Enter")
        assert self.frame(page, "entry_SYSCALL_64").count() == 0
        assert focused() == "asm_exc_page_fault"
        page.keyboard.press("Escape")
        assert self.frame(page, "entry_SYSCALL_64").is_visible()
        # The callers and callees of a function, and back.
        page.keyboard.press("ArrowUp")
        name = focused()
        page.keyboard.press("s")
        assert focused() == name
        page.keyboard.press("ArrowDown")
        assert focused() == "asm_exc_page_fault"
        page.keyboard.press("Escape")
        assert focused() == "all"

    def test_a_search_marks_matches_and_tells_their_share(self, page: Page) -> None:
        all_drawn(page, OWNERS)
        picture = page.locator(OWNERS)
        picture.get_by_label("Search functions").fill("LEAK")
        # leak_more is called by leak_write, and its memory is not counted twice.
        assert picture.get_by_role("status").first.inner_text() == "2 functions, 12.3 % of all"
        assert picture.locator(".found").count() == 2
        picture.get_by_label("Search functions").fill("")
        assert picture.locator(".found").count() == 0

    def test_zoom_a_picture_whose_stacks_are_not_in_the_page(self, page: Page) -> None:
        """A differential: its frames are all that there is."""
        unfold(page, ALWAYS)
        page.locator(f"{ALWAYS} > summary").click()
        picture = f"{ALWAYS} .flames:not([data-stacks]) >> nth=-2"
        shown = page.locator(picture)
        shown.scroll_into_view_if_needed()
        assert (
            shown.locator(".flame-view > svg").count()
            == shown.locator(".flame[hidden] > svg").count()
        )
        assert shown.get_by_role("button", name="From leaves").count() == 0
        first = shown.locator(".flame-view > svg", has_text="asm_exc_page_fault").first
        first.click()
        places = shown.locator(".flame-view > svg:not(.up)").evaluate_all(
            "(all) => all.map((e) => parseFloat(e.getAttribute('width')))"
        )
        assert max(places) == 100
        shown.get_by_label("Search functions").fill("zap_huge_pmd")
        assert shown.get_by_role("status").inner_text().startswith("1 function, 6.9 % of all")


def test_without_script_and_on_paper_the_still_picture_fills_the_page(
    opening: functools.partial[Opened], report: Path
) -> None:
    page = opening(report, script=False).page
    unfold(page, OWNERS)
    for media in ("screen", "print"):
        page.emulate_media(media=media)  # type: ignore[arg-type]
        picture = page.locator(OWNERS).bounding_box()
        frames = page.locator(f"{OWNERS} .flame > svg")
        root = frames.first.bounding_box()
        assert picture is not None
        assert root is not None
        assert root["width"] == pytest.approx(picture["width"], rel=0.01)
        assert frames.filter(has_text="do_anonymous_page").first.is_visible()


def test_on_a_telephone_the_functions_stand_below(
    opening: functools.partial[Opened], report: Path
) -> None:
    page = opening(report, NARROW).page
    unfold(page, OWNERS)
    all_drawn(page, OWNERS)
    graph = page.locator(f"{OWNERS} .flame-view").bounding_box()
    tops = page.locator(f"{OWNERS} .flame-tops").bounding_box()
    assert graph is not None
    assert tops is not None
    assert tops["y"] >= graph["y"] + graph["height"]
