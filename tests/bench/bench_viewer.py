# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How long the page stands still while the flame viewer works, with 50,000 stacks in the page.

Made stacks, in a report that is within its size. Measured in Chromium, headless and without a GPU:
the longest gap between two frames from each click on, over several rounds; and the CPU time that
the page's thread took for all of it, which says the same beside busy neighbours. It measures and
never fails on a number.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random
from statistics import median

import report_bundle as made
from bench_report import BROWSERS
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table

from mmscope.reports.page.report import render, write

STACKS, SECTION, ROUNDS = 50_000, "#profile-1", 7
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
    'scroll': () => box.querySelector('.flame-scroll').scrollBy({{top: -200, behavior: 'smooth'}}),
    'scroll the page': () => scrollBy({{top: -300, behavior: 'smooth'}}),
  }};
  const end = performance.now() + 600;
  return watched(acts[what], () => performance.now() > end);
}}
"""
ACTS = (
    *("zoom", "zoom out", "from leaves", "from callers", "callers and callees", "back"),
    *("search", "search no more", "scroll", "scroll the page"),
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


def measured(report: Path) -> dict[str, list[tuple[float, float]]]:
    """Of each act and round: the longest gap, and the CPU time of the page's thread; in ms."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        sys.exit(f"no {' or '.join(BROWSERS)} here: apt-get install chromium-headless-shell")
    found: dict[str, list[tuple[float, float]]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(0)
        page.goto(report.as_uri(), wait_until="load")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def taken() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

        def run(what: str, script: str, given: object) -> None:
            begun = taken()
            gap = page.evaluate(script, given)
            found.setdefault(what, []).append((gap, 1000 * (taken() - begun)))

        run("all stacks are read", LOAD, SECTION)
        for _ in range(ROUNDS):
            for what in ACTS:
                run(what, ACT, [SECTION, what])
        browser.close()
    return found


def main() -> None:
    made.PROFILED[PROFILE] = stacks()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        report = folder / "report.html"
        write(render(made.write_bundle(folder / "bundle", made.tables()), made.verdict()), report)
        found = measured(report)
    table = Table(title=f"flame viewer, {STACKS:,} stacks, {ROUNDS} rounds; limit of a gap: 100 ms")
    for column in ("while", "median gap", "longest gap", "median CPU"):
        table.add_column(column, justify="left" if column == "while" else "right")
    for what, rounds in found.items():
        gaps, cpu = zip(*rounds, strict=True)
        table.add_row(
            what, f"{median(gaps):.0f} ms", f"{max(gaps):.0f} ms", f"{median(cpu):.0f} ms"
        )
    table.caption = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
