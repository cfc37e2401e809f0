# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard`` in a stock guest that runs out of memory, then out of free blocks of THP size, and
then leaks: what it captured of each, how soon, and what that says. Five minutes of a quiet machine.

    make guard-incidents

Ends with 1 where a trouble has no capture, the report of its bundle does not name it, or guard
fired later than SOON after what its trigger asks for was so: its samples say when. How soon the
bundle was there is printed, not held: an emulated CPU that others use is no measure. The guest has
nothing that makes reports: they are made here, of the bundles as they lie in the captures.
"""

import dataclasses
import html
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from guard_program import BEGIN, END, FAMINE, LEAK, OOM
from live import run_live
from roles import resolve

from mmscope.drgn.tables import display
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.guard import captures
from mmscope.reports.guard.history import History
from mmscope.reports.guard.trigger import load
from mmscope.reports.watch import watch_tables

# What a capture of each is to say.
NAMED = {
    "oom-kill": "oom-kills-told",
    "huge-blocks-gone": "watch-thp-falls-back",
    "memory-unaccounted": "watch-kernel-memory-grows",
}
# Seconds, beside what two samples lay apart: an emulated CPU may have had other work.
SOON = 30.0


def lateness(name: str, log: watch_tables.Log) -> tuple[float, float]:
    """
    Seconds from the sample with which a trigger's query, asked each time, would have fired to the
    one with which it did, and the most that two samples lie apart.
    """
    (trigger,) = (one for one in load() if one.name == name)
    history, asked = History(900.0), dataclasses.replace(trigger, every=0)
    due, gap, before = log.last["mono"], 0.0, log.first["mono"]
    for _, sample in log:
        history.add(sample)
        gap, before = max(gap, sample["mono"] - before), sample["mono"]
        if asked.fires(history):
            due = min(due, sample["mono"])
    return log.last["mono"] - due, gap


def text_of_report(bundle: Path, path: Path) -> str:
    """The words of a bundle's report, as somebody reads them."""
    report = ["report", str(bundle), "-o", str(path)]
    subprocess.run([sys.executable, "-m", "mmscope", *report], check=True, capture_output=True)
    return " ".join(html.unescape(re.sub("<[^>]*>", "", path.read_text())).split())


def main() -> int:
    def say(text: str) -> None:
        print(f"  lab: {text}", file=sys.stderr, flush=True)

    program = "import os\nos.mkdir('/out/guard')\n" + BEGIN + OOM + FAMINE + LEAK + END
    with tempfile.TemporaryDirectory(prefix="mmscope-guard-") as folder:
        out = run_live(program, Path(folder), resolve("stable", say), say, symbols=False)
        said = json.loads((out / "guard" / "said.json").read_text())
        of = {
            one["trigger"]: (path, one) for path, one in captures.captures(out / "guard/captures")
        }
        missing = NAMED.keys() - of.keys()
        for trigger in sorted(missing):
            print(f"{trigger}: not captured")
        print(f"famine: {said['famine']}")
        if "huge-blocks-gone" in missing:
            words, buddyinfo, counters, levels = said["famine_seen"]
            print(f"{words}: {counters}, {display.size(levels['MemFree'])} free\n{buddyinfo}")
        for trigger in (name for name in NAMED if name in of):
            path, incident = of[trigger]
            found = {finding.id: finding for finding in evaluate(Bundle(path / "bundle")).found}
            print(f"{trigger}: {incident['title']}")
            print(
                f"    a bundle {said['seconds'].get(trigger, -1):.1f} s after the trouble, "
                f"{said['written'].get(trigger, -1):.1f} s after its trigger: {', '.join(found)}"
            )
            begin = time.monotonic()
            words = text_of_report(path / "bundle", Path(folder) / f"{trigger}.html")
            print(f"    its report in {time.monotonic() - begin:.1f} s, here")
            late, gap = lateness(trigger, watch_tables.open_log(path / "samples.jsonl"))
            print(f"    fired {late:.1f} s after it could; samples {gap:.1f} s apart at most")
            finding = found.get(NAMED[trigger])
            if finding is None or finding.title not in words or late > SOON + gap:
                missing |= {trigger}
        leaking = f"{said['leaking']:.0f} s of {display.size(said['leaked'])}"
        print(f"leak: {leaking}; out of memory: {said['dying']:.1f} s until the kill")
        before, after = said["before"], said["after"]
        share = (after["cpu"] - before["cpu"]) / (after["seconds"] - before["seconds"])
        print(
            f"resident: {display.size(after['rss'])}, {share:.0%} of an emulated CPU, captures too"
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
