# SPDX-License-Identifier: LGPL-2.1-or-later
"""
How long the report of a busy machine takes and how much memory, and how it scrolls in a browser.

The bundle is that of ``busy_bundle.py``. The command is run as a user runs it, its peak memory is
what the kernel counted for it. Scrolling is measured in Chromium, headless and without a GPU, from
the top of the page to its end: the time to open it, the longest task of its main thread and the
longest gap between two frames. It measures and never fails on a number.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import busy_bundle
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Scrolls a screen at a time, one each frame, and opens everything that is folded on the second way.
SCROLL = """
async () => {
  const tasks = [], gaps = [];
  new PerformanceObserver((list) => list.getEntries().forEach((task) => tasks.push(task.duration)))
    .observe({type: 'longtask', buffered: true});
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  async function down() {
    scrollTo(0, 0);
    let last = await frame(), longest = 0, frames = 0, step = innerHeight;
    while (scrollY + innerHeight + 2 < document.documentElement.scrollHeight && frames < 3000) {
      scrollBy(0, step);
      const now = await frame();
      longest = Math.max(longest, now - last);
      last = now;
      frames += 1;
    }
    gaps.push([frames, longest, document.documentElement.scrollHeight]);
  }
  await down();
  const begin = performance.now();
  document.querySelectorAll('details').forEach((folded) => { folded.open = true; });
  await frame(); await frame();
  const opening = performance.now() - begin;
  await down();
  await new Promise((done) => setTimeout(done, 200));
  return {tasks: tasks.sort((a, b) => b - a), gaps, opening};
}
"""


def render(bundle: Path, report: Path) -> tuple[float, float, int]:
    """Run the command: (wall seconds, CPU seconds, peak bytes)."""
    mmscope = Path(sys.executable).parent / "mmscope"
    command = [str(mmscope), "report", str(bundle), "-o", str(report)]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if status:
        sys.exit(f"mmscope report failed: {os.waitstatus_to_exitcode(status)}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def scroll(report: Path) -> dict[str, Any]:
    """Open a report in a browser and scroll through it."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        sys.exit(f"no {' or '.join(BROWSERS)} here: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        begin = time.perf_counter()
        page.goto(report.as_uri(), wait_until="load")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
        opened = time.perf_counter() - begin
        measured: dict[str, Any] = page.evaluate(SCROLL)
        browser.close()
    return measured | {"opened": opened}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="write the bundle and the report here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        bundle, report = folder / "busy", folder / "busy.html"
        if not bundle.exists():
            busy_bundle.write(bundle)
        seconds, cpu, peak = render(bundle, report)
        size = report.stat().st_size
        browser = scroll(report)
    table = Table("what", "measured", "limit", title="report of a busy machine")
    for column in table.columns[1:]:
        column.justify = "right"
    load = os.getloadavg()[0]
    table.add_row("render", f"{seconds:.1f} s ({cpu:.1f} s of CPU, load {load:.1f})", "8 s")
    table.add_row("peak memory", f"{peak / 2**20:,.0f} MiB", "1,024 MiB")
    table.add_row("size", f"{size:,} bytes", "2,000,000 bytes")
    table.add_row("open in Chromium, to the first frame", f"{browser['opened']:.2f} s", "")
    for (frames, longest, height), how in zip(
        browser["gaps"], ("as it opens", "all open"), strict=True
    ):
        what = f"scroll {height:,} pixels in {frames:,} frames, {how}: longest gap"
        table.add_row(what, f"{longest:.0f} ms", "")
    table.add_row("open all that is folded", f"{browser['opening']:.0f} ms", "")
    longest = max(browser["tasks"], default=0)
    table.add_row("longest task of the page", f"{longest:.0f} ms", "")
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
