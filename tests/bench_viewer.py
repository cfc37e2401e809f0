# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How long the page stands still while the flame viewer works, with 50,000 stacks in the page.

Made stacks, in a report that is within its size. Measured in Chromium, headless and without a GPU:
the longest gap between two frames from each click on, the worst of several rounds. It measures and
never fails on a number.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

import report_bundle as made
from bench_report import BROWSERS
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table

from mmscope.reports.page.report import render, write

STACKS, SECTION, ROUNDS = 50_000, "#profile-1", 3
PROFILE = "exit_path_never_cpu_clock"
WATCH = """
const watched = async (act, over) => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  await frame();
  let last = await frame(), longest = 0;
  act();
  while (!over()) {
    const now = await frame();
    longest = Math.max(longest, now - last);
    last = now;
  }
  return longest;
};
"""
LOAD = f"""
async (section) => {{
  {WATCH}
  const box = document.querySelector(section), flames = box.querySelector('.flames');
  for (let up = box; up; up = up.parentElement) if (up.tagName === 'DETAILS') up.open = true;
  await new Promise((done) => requestAnimationFrame(done));
  return watched(() => flames.scrollIntoView(), () => flames.dataset.drawn === 'all');
}}
"""
ACT = f"""
async ([section, what]) => {{
  {WATCH}
  const box = document.querySelector(section), input = box.querySelector('.flames input');
  const press = (name) => [...box.querySelectorAll('button')]
    .find((button) => button.textContent === name).click();
  const search = (text) => {{ input.value = text; input.dispatchEvent(new Event('input')); }};
  const acts = {{
    'from leaves': () => press('From leaves'),
    'from callers': () => press('From callers'),
    'zoom': () => box.querySelectorAll('.flame-view > svg')[2]
      .dispatchEvent(new MouseEvent('click', {{bubbles: true}})),
    'zoom out': () => press('Reset zoom'),
    'callers and callees': () => box.querySelector('.flame-tops tbody button').click(),
    'back': () => press('Reset zoom'),
    'search': () => search('function_1'),
    'search no more': () => search(''),
  }};
  const end = performance.now() + 600;
  return watched(acts[what], () => performance.now() > end);
}}
"""
ACTS = (
    *("zoom", "zoom out", "from leaves", "from callers", "callers and callees", "back"),
    *("search", "search no more"),
)


def stacks() -> list[tuple[str, int]]:
    """Stacks as they are sampled: few ways in, many functions far from the root."""
    random = Random(3)
    names = [f"function_{n}_[k]" for n in range(3000)]
    found: dict[str, int] = {}
    while len(found) < STACKS:
        way = random.choices(names[:40], k=3) + random.choices(names, k=random.randint(1, 4))
        found[";".join(["task", "entry_SYSCALL_64_[k]", *way])] = random.randint(1, 100)
    return list(found.items())


def measured(report: Path) -> dict[str, float]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        sys.exit(f"no {' or '.join(BROWSERS)} here: apt-get install chromium-headless-shell")
    found: dict[str, float] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(report.as_uri(), wait_until="load")
        found["all stacks are read"] = page.evaluate(LOAD, SECTION)
        for _ in range(ROUNDS):
            for what in ACTS:
                gap = page.evaluate(ACT, [SECTION, what])
                found[what] = max(found.get(what, 0), gap)
        browser.close()
    return found


def main() -> None:
    made.PROFILED[PROFILE] = stacks()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        report = folder / "report.html"
        write(render(made.write_bundle(folder / "bundle", made.tables()), made.verdict()), report)
        gaps = measured(report)
    table = Table("while", "longest gap", "limit", title=f"flame viewer, {STACKS:,} stacks")
    for column in table.columns[1:]:
        column.justify = "right"
    for what, gap in gaps.items():
        table.add_row(what, f"{gap:.0f} ms", "100 ms")
    table.caption = f"load {os.getloadavg()[0]:.1f}"
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
