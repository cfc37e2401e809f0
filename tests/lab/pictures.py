# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make pictures``: the README's pictures, taken of real reports by a browser, into a folder.

Of the demo's report, which has to be there, and of the comparison of one boot before and after a
leak (``pairs.py``). Each picture stays below what a README may weigh, and the demo's report is no
longer than somebody reads, or this fails. Nothing in the folder changes unless all of it is as it
must be.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pairs
from archive import LabError
from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import Error as PlaywrightError

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
from browser_page import SCREEN, a4_pages, screens  # noqa: E402

DEMO = ROOT / "demo" / "report.html"
MMSCOPE = Path(sys.executable).with_name("mmscope")
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
MAX_BYTES, MAX_ALL_BYTES = 300_000, 1_200_000
MAX_SCREENS, MAX_A4_PAGES = 12, 8  # of the demo's report
WIDTH = 1280


@dataclass(frozen=True)
class Picture:
    """
    One file in docs/.

    :ivar shows: CSS of what is to be seen at the top; empty: the first screen.
    :ivar height: of the picture.
    """

    name: str
    scheme: str
    shows: str
    height: int


OF_DEMO = (
    Picture("report", "light", "", 860),
    Picture("report-dark", "dark", "", 860),
    Picture("pageblock-map", "light", "#section-pageblocks", 760),
    Picture(
        "flame-graph", "light", '.recording:has(h3 code:text-is("exit_path_sparse")) .flames', 620
    ),
)
OF_COMPARISON = (Picture("comparison", "light", "#comparison", 860),)


def main() -> int:
    if not DEMO.is_file():
        print(f"pictures: no {DEMO}: run 'make demo' first", file=sys.stderr)
        return 1
    made, target = [], Path(sys.argv[1])
    try:
        with tempfile.TemporaryDirectory() as folder:
            comparison = Path(folder) / "comparison.html"
            compare_leak(Path(folder), comparison)
            with opened() as browser:
                if long := too_long(browser):
                    raise LabError(long)
                for report, pictures in ((DEMO, OF_DEMO), (comparison, OF_COMPARISON)):
                    made += [take(browser, report, picture, Path(folder)) for picture in pictures]
            check_sizes(made)
            target.mkdir(parents=True, exist_ok=True)
            for path in made:
                shutil.copy(path, target)
    except (LabError, PlaywrightError) as error:
        print(f"pictures: {error}; {target}/ is as it was", file=sys.stderr)
        return 1
    return 0


def check_sizes(made: list[Path]) -> None:
    """Refuse what is heavier than a README may be."""
    sizes = {path.name: path.stat().st_size for path in made}
    for name, size in sizes.items():
        print(f"{name}: {size:,} bytes")
    if max(sizes.values()) > MAX_BYTES or sum(sizes.values()) > MAX_ALL_BYTES:
        raise LabError(f"more than {MAX_BYTES:,} each or {MAX_ALL_BYTES:,} in all")


def compare_leak(folder: Path, report: Path) -> None:
    """Write the report of the leak."""
    for name, core in zip(("before", "after"), pairs.leak(print), strict=True):
        options = ("--core", core.vmcore, "--symbols", core.vmlinux, "-o", folder / name)
        run(MMSCOPE, "collect", *options)
    run(MMSCOPE, "compare", folder / "before", "--", folder / "after", "-o", report)


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: sections that this kernel does not have
        raise LabError(f"{' '.join(map(str, command[:2]))} failed: {done.stderr.strip()}")


@contextmanager
def opened() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise LabError("no Chromium here: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def too_long(browser: Browser) -> str:
    """What is wrong with the demo's report, with its profiles: its length, or a name of tests."""
    page = browser.new_page(viewport={"width": SCREEN[0], "height": SCREEN[1]})
    page.goto(DEMO.as_uri())
    found, words = (screens(page), a4_pages(page)), page.locator("main").text_content() or ""
    page.close()
    if "database" not in words or "<img" in words:
        return f"{DEMO}: its process is not called database"
    print(f"{DEMO.relative_to(ROOT)}: {found[0]:.1f} screens, {found[1]} pages of A4")
    if found[0] > MAX_SCREENS or found[1] > MAX_A4_PAGES:
        return f"{DEMO}: more than {MAX_SCREENS} screens or {MAX_A4_PAGES} pages of A4"
    return ""


def take(browser: Browser, report: Path, picture: Picture, folder: Path) -> Path:
    """One picture, in as few colours as it looks the same with, as a file in *folder*."""
    page = browser.new_page(
        viewport={"width": WIDTH, "height": picture.height}, color_scheme=picture.scheme
    )
    page.goto(report.as_uri())
    path = folder / f"{picture.name}.png"
    if picture.shows:
        scroll_to(page, picture.shows)
        if picture.shows.endswith(".flames"):
            page.locator(f"{picture.shows}[data-drawn]").first.wait_for()
            scroll_to(page, picture.shows)  # what stands above it may have grown
    page.screenshot(path=path)
    page.close()
    run("pngquant", "--force", "--skip-if-larger", "--output", path, "128", path)
    return path


def scroll_to(page: Page, shows: str) -> None:
    """Something that may be folded away, at the top of the window."""
    where = page.locator(shows).first
    where.evaluate("""(shown) => {
        const own = shown.querySelector(':scope > details');
        if (own) own.open = true;
        for (let at = shown; at; at = at.parentElement)
            if (at.tagName === 'DETAILS') at.open = true;
        scrollTo(0, shown.getBoundingClientRect().top + scrollY - 4);
    }""")


if __name__ == "__main__":
    sys.exit(main())
