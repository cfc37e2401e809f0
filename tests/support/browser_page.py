# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A report in a browser: what it asks for, what it complains of, and what keeps a reader out.

What a screen reader gets is checked by axe-core, which the package axe-playwright-python carries.
"""

import re
from importlib.resources import files as resources
from itertools import pairwise
from pathlib import Path

from playwright.sync_api import Page

AXE = resources("axe_playwright_python") / "axe.min.js"
WIDE = (1280, 800)
SCREEN = (1440, 900)
# Milliseconds for what takes one on a machine that does nothing else: Playwright's own 30 s were
# too short for a click beside ten busy neighbours. What never comes is waited for as long.
PATIENCE = 180_000
HUGE = (3840, 2160)
NARROW = (360, 740)
SCHEMES = ("light", "dark")
# What is folded, or out of sight, must be laid out to be looked at.
LAID_OUT = """
() => {
    for (const e of document.querySelectorAll('details')) e.open = true;
    const sheet = new CSSStyleSheet();
    sheet.replaceSync('* { content-visibility: visible !important }');
    document.adoptedStyleSheets = [sheet];
}
"""
# One of each kind is enough, of rows, entries and frames: axe takes milliseconds for each, and a
# report has ten thousand. Alike are those with the same tags, classes, styles and roles in them.
ONE_OF_A_KIND = """
() => {
    const known = new Map();
    const kind = (e) => {
        if (!known.has(e)) {
            known.set(e, [
                e.tagName,
                ...['class', 'style', 'fill', 'role', 'scope', 'tabindex', 'hidden', 'aria-hidden']
                    .map((name) => e.getAttribute(name)),
                ...[...e.childNodes]
                    .map((c) => c.nodeType === 1 ? `(${kind(c)})` : c.data.trim() && 't'),
            ].join());
        }
        return known.get(e);
    };
    for (const around of document.querySelectorAll('tbody, dl, ul, ol, svg, g, .flame')) {
        const seen = new Set();
        const alike = [...around.children].filter((e) => seen.size === seen.add(kind(e)).size);
        for (const e of alike) if (!['DT', 'DD'].includes(e.tagName)) e.remove();
    }
}
"""
# Likewise the contrast of the first text of each look: the tags, classes, colours, backgrounds and
# fonts of its element and of all around that.
ONE_OF_A_LOOK = """
(within) => {
    const known = new Map([[null, '']]);
    const look = (e) => {
        if (!known.has(e)) {
            const s = getComputedStyle(e);
            known.set(e, [
                e.tagName, e.getAttribute('class'), s.color, s.fill, s.opacity, s.backgroundColor,
                s.backgroundImage, s.fontSize, s.fontWeight, look(e.parentElement),
            ].join());
        }
        return known.get(e);
    };
    const seen = new Set();
    for (const e of document.querySelectorAll(`${within} *`)) {
        const text = [...e.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
        if (text && !seen.has(look(e))) {
            seen.add(look(e));
            e.setAttribute('data-look', '');
        }
    }
    axe.configure({rules: [{id: 'color-contrast', selector: '[data-look]'}]});
}
"""


# Whatever Tab has to stop at, in the order of the page; and what it stopped at: which of these it
# was, whether a ring shows it, and how it begins.
STOPS = """
() => {
    const kinds = 'a[href], button, input, select, summary, [tabindex]';
    const shown = (e) => e.checkVisibility({visibilityProperty: true});
    window.stops = [...document.querySelectorAll(kinds)]
        .filter((e) => e.tabIndex >= 0 && !e.disabled && shown(e));
    window.stopped = [];
    const ringed = (e) => {
        const style = getComputedStyle(e), rect = e.querySelector('rect');
        return style.outlineStyle === 'solid' && parseFloat(style.outlineWidth) >= 2
            || Boolean(rect) && parseFloat(getComputedStyle(rect).strokeWidth) >= 3;
    };
    document.addEventListener('focusin', ({target}) => window.stopped.push(
        [window.stops.indexOf(target), ringed(target), target.outerHTML.slice(0, 100)]));
    return window.stops.map((e) => e.outerHTML.slice(0, 100));
}
"""


class Opened:
    """An open page, what it asked for, and what it complained of."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("dialog", self.dialog)
        page.goto(path.as_uri())

    def dialog(self, dialog: object) -> None:
        self.complaints.append("a dialog")
        dialog.dismiss()  # type: ignore[attr-defined]


def unfold(page: Page, inside: str) -> None:
    """Open the section that has something, as a reader does."""
    fold = page.locator("details.whole", has=page.locator(inside))
    if fold.get_attribute("open") is None:
        fold.locator("> summary").click()


def all_drawn(page: Page, inside: str) -> None:
    """Scroll to a flame graph, and wait until all stacks are drawn."""
    page.locator(f"{inside} .flames").first.scroll_into_view_if_needed()
    page.locator(f"{inside} .flames[data-drawn=all]").first.wait_for()


def violations(page: Page, *rules: str, within: str = "body") -> list[tuple[str, ...]]:
    """
    What axe finds that keeps somebody out, or is in the way: (rule, where, how to mend it). The
    page is of no further use, but to be looked at once more.

    :param rules: those to look for; all of them if none is named.
    :param within: the part of the page to look at, where the rest is looked at elsewhere.
    """
    page.evaluate(LAID_OUT)
    page.evaluate(ONE_OF_A_KIND)
    page.evaluate(AXE.read_text())
    page.evaluate(ONE_OF_A_LOOK, within)
    result = page.evaluate(
        "([within, rules]) => axe.run(within === 'body' ? document : within,"
        " {resultTypes: ['violations'], ...(rules.length ? {runOnly: rules} : {})})",
        [within, list(rules)],
    )
    assert result["passes"] or result["violations"]
    return [
        (found["id"], found["nodes"][0]["html"][:300], found["nodes"][0]["failureSummary"])
        for found in result["violations"]
    ]


def barriers(page: Page) -> list[tuple[str, ...]]:
    """The same, in the light and, of the one rule that depends on colours, in the dark."""
    page.emulate_media(color_scheme="light")
    found = violations(page)
    page.emulate_media(color_scheme="dark")
    return found + violations(page, "color-contrast")


def out_of_reach(page: Page) -> list[str]:
    """What a keyboard does not come to in the page's order, or does not see that it is there."""
    stops = page.evaluate(STOPS)
    for _ in stops:
        page.keyboard.press("Tab")
    stopped = page.evaluate("window.stopped")
    missed = sorted(set(range(len(stops))) - {which for which, *_ in stopped})
    page.keyboard.press("Tab")
    return [
        *(f"is not come to: {stops[which]}" for which in missed),
        *(f"has no ring: {html}" for _, ring, html in stopped if not ring),
        *(
            f"comes before its turn: {html}"
            for (before, *_), (which, _, html) in pairwise(stopped)
            if which <= before
        ),
        *([] if page.evaluate("document.activeElement === document.body") else ["never ends"]),
    ]


def screens(page: Page) -> float:
    """How many screens a page is long, of the height that it has."""
    height, screen = page.evaluate("[document.documentElement.scrollHeight, innerHeight]")
    return float(height / screen)


def a4_pages(page: Page) -> int:
    """How many sheets it takes to print."""
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF-")
    return len(re.findall(rb"/Type\s*/Page\b", pdf))
