# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make gallery``: reports of eight incidents that were planted in guests of the lab, as the exam
keeps them, with a page that says what each is; ``make site`` has it, too.
"""

import contextlib
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.verdict import judge
from mmscope.reports.page.report import render

ROOT = Path(__file__).resolve().parent.parent
# What was planted: case of the exam, how it was seen, in words.
INCIDENTS = (
    ("process-leak-7/vmcore", "A process leaks until nothing is left"),
    ("page-leak-of-module-7/vmcore", "A module leaks pages that no counter has"),
    ("slab-leak-of-module-7/watch", "A module leaks slab objects, watched"),
    ("deleted-tmpfs-file-7/vmcore", "A deleted file fills tmpfs"),
    ("page-table-bloat-7/vmcore", "Page tables larger than the memory they map"),
    ("unmovable-scatter-7/vmcore", "Half of memory is free, and no huge page is to be had"),
    ("pod-killed-again-and-again-7/vmcore", "A pod is killed at its limit, again and again"),
    ("mmap-lock-convoy-7/vmcore", "Threads wait for one lock"),
)
HEAD = """# Gallery

Reports of incidents that were planted in virtual machines with Linux 6.12, from dumps of them or
from a watch. Each is one file, complete as it is.

| what was planted | what mmscope says | read from |
|---|---|---|
"""


def gallery(folder: Path, incidents: Iterable[tuple[str, str]] = INCIDENTS) -> str:
    """Write the reports into a folder, and give the page about them, which lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    with tempfile.TemporaryDirectory(prefix="mmscope-gallery-") as cases, contextlib.chdir(cases):
        with tarfile.open(ROOT / "tests" / "exam" / "cases.tar.xz") as tar:
            tar.extractall(filter="data")
        for case, title in incidents:
            bundle = Bundle(Path(case))
            verdict = evaluate(bundle)
            name = f"{case.split('/')[0].rpartition('-')[0]}.html"
            (folder / name).write_text(render(bundle, verdict))
            kind = "a vmcore" if bundle.target.get("kind") == "vmcore" else "a watch"
            link = f"[{title}]({folder.name}/{name})"
            lines.append(f"| {link} | {judge(verdict).cause.replace('|', '')} | {kind} |\n")
    return HEAD + "".join(lines)


def main() -> None:
    """Write them where the first argument says."""
    folder = Path(sys.argv[1]).absolute()
    (folder.parent / f"{folder.name}.md").write_text(gallery(folder))


if __name__ == "__main__":
    main()
