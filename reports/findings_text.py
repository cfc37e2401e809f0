# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings on the terminal."""

import itertools
import re
import sys
from collections.abc import Iterable

from hostile_text import visible
from rich.console import Console
from rich.table import Table
from rich.text import Text
from terminal import PlainConsole

from reports.findings import Step, Verdict


def print_findings(verdict: Verdict, *, everything: bool) -> None:
    """The findings on the terminal, worst first; what could not be checked is always said."""
    console = PlainConsole(highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        _print(console, verdict, everything=everything)
    # What is pasted into a ticket has no spaces behind it.
    sys.stdout.write(re.sub(r" +$", "", capture.get(), flags=re.MULTILINE))


def _print(console: Console, verdict: Verdict, *, everything: bool) -> None:
    """The same, on a console."""
    styles = {"critical": "bold red", "warning": "bold yellow", "notice": "bold cyan"}
    if not verdict.found:
        nothing = "Nothing found." if verdict.clear else "Nothing could be checked."
        console.print(nothing, style="bold")
    # Several rows of one finding share most of their words: these are said once, after the last.
    for _, group in itertools.groupby(verdict.found, key=lambda f: (f.id, f.severity)):
        findings = list(group)
        for finding in findings:
            severity = Text(finding.severity.upper(), style=styles[finding.severity])
            _print_beside(console, severity, Text(visible(finding.title), "bold"))
            _print_labelled(console, "saw", [finding.saw])
        _print_labelled(console, "why", dict.fromkeys(f.why for f in findings))
        _print_steps(console, dict.fromkeys(step for f in findings for step in f.next))
        console.print()
    if everything:
        for _, title_text in verdict.clear:
            _print_beside(console, Text("ok"), Text(visible(title_text)))
    by_reason: dict[str, list[str]] = {}
    for item in verdict.not_checked:
        by_reason.setdefault(item.reason, []).append(item.title)
    for reason, titles in by_reason.items():
        console.print(Text(visible(f"Not checked, since {reason}:")))
        _print_labelled(console, "", titles)


def _print_beside(console: Console, label: Text, text: Text) -> None:
    """A label, and a paragraph that keeps clear of it."""
    body = Table.grid(padding=(0, 1))
    body.add_column(width=8)
    body.add_column()
    body.add_row(label, text)
    console.print(body)


def _print_steps(console: Console, steps: Iterable[Step]) -> None:
    """Steps, and below each its price."""
    label = "next"
    for step in steps:
        _print_labelled(console, label, [step.do])
        for what, words in step.price:
            _print_beside(console, Text(""), Text(visible(f"{what}: {words}"), "dim"))
        label = ""


def _print_labelled(console: Console, label: str, texts: Iterable[str]) -> None:
    """Paragraphs with a hanging indent, the first with its label."""
    body = Table.grid(padding=(0, 1))
    body.add_column(width=8, justify="right", style="dim")
    body.add_column()
    for text in texts:
        body.add_row(label, Text(visible(text)))
        label = ""
    console.print(body)
