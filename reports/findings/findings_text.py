# SPDX-License-Identifier: LGPL-2.1-or-later
"""The findings on the terminal."""

import re
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.findings.finding import CANNOT_TELL, TROUBLE, Verdict
from mmscope.reports.findings.incidents import Alike, incidents
from mmscope.reports.findings.verdict import counted, headline, how_many, lacking, sentence

# Of a label, in characters.
LABEL = 8
NONE = Text(" " * LABEL)

STYLES = {"critical": "bold red", "warning": "bold yellow", "notice": "bold cyan"}


def print_findings(verdict: Verdict, *, everything: bool) -> None:
    """
    The findings on the terminal, worst first, below the verdict; of several how many there are is
    the last line, too.

    :param everything: what was not found, and each check that could not be made, with the reason.
    """
    # Captured, since rich would take a closed pipe for a failure and end the program.
    console = Console(highlight=False, markup=False, emoji=False, force_jupyter=False)
    with console.capture() as capture:
        _print(console, verdict, everything=everything)
    # What is pasted into a ticket has no spaces after it.
    sys.stdout.write(re.sub(r" +$", "", capture.get(), flags=re.MULTILINE))


def _print(console: Console, verdict: Verdict, *, everything: bool) -> None:
    """The same, on a console."""
    told = incidents(verdict.found)
    # Of one thing alone its title is the sentence.
    several = sum(len(incident.all) for incident in told) > 1
    if several:
        console.print(Text(visible(sentence(verdict)), "bold"))
        if verdict.word == TROUBLE:  # otherwise the sentence has the numbers
            console.print(Text(f"{counted(verdict)}. {how_many(verdict)}.", "dim"))
    else:
        console.print(Text(visible(headline(verdict)), "bold"))
    # The first is in the sentence above.
    said = verdict.word == CANNOT_TELL and verdict.made > 0
    for words in verdict.blind[said:]:
        console.print(Text(visible(f"Not seen: {words}."), "bold"))
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
        for _, title in verdict.silent:
            _print_labelled(console, Text(f"{'ok':{LABEL}}"), Text(visible(title)))
        by_reason: dict[str, list[str]] = {}
        for item in verdict.not_checked:
            by_reason.setdefault(item.reason, []).append(item.title)
        for reason, titles in by_reason.items():
            console.print(Text(visible(f"Not checked, since {reason}:")))
            _print_paragraphs(console, "", titles)
    elif verdict.not_checked:
        # Each with its reason is a wall that is not read.
        where = lacking(verdict)
        words = f"Not checked: {len(verdict.not_checked):,} ({where}); 'findings --all' says why."
        console.print(Text(visible(words), "dim"))
    if several:
        # What a terminal shows of a long output is its end.
        console.print(Text(visible(headline(verdict)), "bold"))


def _print_part(console: Console, heading: str, found: Iterable[Alike]) -> None:
    """Findings, each with its rows; their words but what was seen are said once, after the last."""
    if heading:
        console.print(Text(f"{heading}:", "dim"))
    for findings in found:
        for finding in findings:
            severity = Text(f"{finding.severity.upper():{LABEL}}", STYLES[finding.severity])
            title = Text.assemble((visible(finding.title), "bold"))
            title.append(finding.aside, "not bold")
            _print_labelled(console, severity, title)
            _print_paragraphs(console, "saw", [finding.saw])
        _print_paragraphs(console, "why", dict.fromkeys(f.why for f in findings))
        label, before = "next", None
        for step in dict.fromkeys(step for f in findings for step in f.next):
            _print_paragraphs(console, label, [step.do])
            as_above = [(", ".join(what for what, _ in step.price), "as above")]
            for what, words in as_above if step.price and step.price == before else step.price:
                # The words are dim, and not the room after them, which is taken off.
                price = Text.assemble((visible(f"{what}: {words}"), "dim"))
                _print_labelled(console, NONE, price)
            label, before = "", step.price
        console.print()


def _print_paragraphs(console: Console, label: str, texts: Iterable[str]) -> None:
    """Paragraphs with a hanging indent, the first with its label."""
    for text in texts:
        _print_labelled(console, Text(f"{label:>{LABEL}}", "dim"), Text(visible(text)))
        label = ""


def _print_labelled(console: Console, label: Text, text: Text) -> None:
    """A label, and a paragraph that keeps clear of it."""
    room = max(1, console.width - LABEL - 1)
    for line in text.wrap(console, room, overflow="ellipsis"):
        console.print(Text.assemble(label, " ", line), soft_wrap=True)
        label = NONE
