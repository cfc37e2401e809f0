# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is said to a reader: findings, triggers, recipes, sections, the glossary, pages and docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.findings.question import OURS, Step

ROOT = Path(__file__).resolve().parent.parent.parent
STEPS: dict[str, Step] = {
    f"{question.id} {number}": step
    for question in OURS()
    for number, step in enumerate(question.next, 1)
}


def texts() -> Iterator[tuple[str, str]]:
    """(place, words) of what is no finding: a paragraph of docs, a page's picture, a recipe."""
    docs = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").iterdir()]
    for path in sorted(docs):
        if path.is_file():
            parts = re.split(r"\n\s*\n|\n(?=[-|] )", path.read_text(encoding="utf-8"))
            yield from ((f"{path.name} {number}", part) for number, part in enumerate(parts, 1))
    for path in sorted((ROOT / "templates").glob("*.html")):
        yield path.name, re.sub(r"{[#%].*?[#%]}|<[^>]+>", " ", path.read_text(encoding="utf-8"))
    for folder in ("perf/recipes", "reports/guard/triggers", "reports/page"):
        for path in sorted((ROOT / folder).glob("*.toml")):
            yield path.name, path.read_text(encoding="utf-8")
    for section in SECTIONS.values():
        yield f"section {section.name}", section.intro


def found_words() -> Iterator[tuple[str, str]]:
    """(finding, what it says of the kernel): its title, what it saw and why, without the steps."""
    for question in OURS():
        yield question.id, " ".join((question.title, question.saw, question.why, question.plain))
