# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings on the terminal."""

import re
import sys
from collections import Counter
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.findings.findings import (
    SEVERITIES,
    Step,
    Verdict,
    all_clear,
    how_many,
    lacking,
)
from mmscope.reports.findings.incidents import Told, incidents

# Of a label, in characters.
LABEL = 8
NONE = Text(" " * LABEL)


class Labelled:
    """
    Labels, and paragraphs that keep clear of them: lines of a grid, in half the time that rich's
    takes, which measures every paragraph twice before it wraps it.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Text, Text]] = []

    def add_row(self, label: Text, text: Text) -> None:
        self._rows.append((label, text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(1, options.max_width - LABEL - 1)
        for label, text in self._rows:
            for line in text.wrap(console, room, overflow="ellipsis"):
                yield from Text.assemble(label, " ", line).render(console, end="\n")
                label = NONE


def print_findings(verdict: Verdict, *, everything: bool) -> None:
    """
    The findings on the terminal, worst first, below how many checks could be made; of several this
    is the last line, too.

    :param everything: what is clear, and each check that could not be made, with the reason.
    """
    # Captured, since rich would take a closed pipe for a failure and end the program.
    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        _print(console, verdict, everything=everything)
    # What is pasted into a ticket has no spaces behind it.
    sys.stdout.write(re.sub(r" +$", "", capture.get(), flags=re.MULTILINE))


def _print(console: Console, verdict: Verdict, *, everything: bool) -> None:
    """The same, on a console."""
    told = incidents(verdict.found)
    # Of one thing alone its title is the sentence.
    several = sum(len(incident.told) for incident in told) > 1
    if several:
        console.print(Text(visible(told[0].sentence), "bold"))
        console.print(Text(_headline(verdict), "dim"))
    else:
        console.print(_headline(verdict), style="bold")
    if told:
        console.print()
    for incident in told:
        if incident.effects:
            plural = "s" if len(incident.causes) > 1 else ""
            _print_part(console, f"Likely cause{plural}", incident.causes)
            _print_part(console, "What may come of it", incident.effects)
        else:
            _print_part(console, "", incident.causes)
    if everything:
        body = Labelled()
        for _, title_text in verdict.clear:
            body.add_row(Text(f"{'ok':{LABEL}}"), Text(visible(title_text)))
        if verdict.clear:
            console.print(body)
        by_reason: dict[str, list[str]] = {}
        for item in verdict.not_checked:
            by_reason.setdefault(item.reason, []).append(item.title)
        for reason, titles in by_reason.items():
            console.print(Text(visible(f"Not checked, since {reason}:")))
            body = Labelled()
            _add_labelled(body, "", titles)
            console.print(body)
    elif verdict.not_checked:
        # Each with its reason is a wall that is not read.
        where = lacking(verdict, lambda section: section.replace("_", " "))
        words = f"Not checked: {len(verdict.not_checked):,} ({where}); 'findings --all' says why."
        console.print(Text(visible(words), "dim"))
    if several:
        # What a terminal shows of a long output is its end.
        console.print(_headline(verdict), style="bold")


def _print_part(console: Console, heading: str, told: Iterable[Told]) -> None:
    """Findings, each with its rows; their words but what was seen are said once, after the last."""
    styles = {"critical": "bold red", "warning": "bold yellow", "notice": "bold cyan"}
    if heading:
        console.print(Text(f"{heading}:", "dim"))
    for each in told:
        findings, body = each.findings, Labelled()
        for finding in findings:
            severity = Text(f"{finding.severity.upper():{LABEL}}", styles[finding.severity])
            title = Text.assemble((visible(finding.title), "bold"))
            title.append(finding.aside, "not bold")
            body.add_row(severity, title)
            _add_labelled(body, "saw", [finding.saw])
        _add_labelled(body, "why", dict.fromkeys(f.why for f in findings))
        _add_steps(body, dict.fromkeys(step for f in findings for step in f.next))
        console.print(body)
        console.print()


def _headline(verdict: Verdict) -> str:
    """What was found, and of how many checks."""
    if not verdict.found:
        return f"{all_clear(verdict)}."
    severities = Counter(finding.severity for finding in verdict.found)
    found = [
        display.plural(severities[s], s, f"{s}s" if s != "critical" else s)
        for s in SEVERITIES
        if severities[s]
    ]
    return f"{', '.join(found)}. {how_many(verdict)}."


def _add_steps(body: Labelled, steps: Iterable[Step]) -> None:
    """Steps, and below each its price."""
    label = "next"
    for step in steps:
        _add_labelled(body, label, [step.do])
        for what, words in step.price:
            # The words are dim, and not the room behind them, which is taken off.
            body.add_row(NONE, Text.assemble((visible(f"{what}: {words}"), "dim")))
        label = ""


def _add_labelled(body: Labelled, label: str, texts: Iterable[str]) -> None:
    """Paragraphs with a hanging indent, the first with its label."""
    for text in texts:
        body.add_row(Text(f"{label:>{LABEL}}", "dim"), Text(visible(text)))
        label = ""
