# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Findings that are one incident: what was found, what it likely comes from, and what to do first.

A finding's file declares which ``symptom`` it shows (``"memory is short"``, ``"process 7 ends
slowly"``), or which symptoms it ``explains``, in words that its row fills in. Where both were found
they are one incident: likely causes, and what may come of them. Rows of one file (a zone each, a
process each) are shown once, if they belong to the same incident.

Cannot know: whether the one brought about the other. Where several causes of a symptom were found
they stand beside each other, and no one is picked.
"""

import re
from dataclasses import dataclass

from mmscope.drgn.tables import display
from mmscope.reports.findings.finding import Finding
from mmscope.reports.findings.question import HARMS, HIDES, RECORDINGS, Step, severity_rank

# Words with a command in them have it in quotes; quotes within it are double.
COMMAND = re.compile(
    r"'((?:sudo )?"
    r"(?:mmscope|perf|crash|drgn|cat|grep|ls|ps|ipcs|sysctl|echo|systemctl|journalctl|vmstat)\b[^']*)'"
)

NUMBERS = {1: "one", 2: "two", 3: "three"}
MOST_NAMED = 2  # nodes and zones besides the worst

# What one finding's file found: the worst first, the others alike.
Alike = tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Incident:
    """
    Findings that belong together.

    :ivar causes: the worst first; what is there alone is one.
    :ivar effects: what may come of them.
    """

    causes: tuple[Alike, ...]
    effects: tuple[Alike, ...]

    @property
    def all(self) -> tuple[Alike, ...]:
        return (*self.causes, *self.effects)

    @property
    def severity(self) -> str:
        """Severity of the worst of it."""
        return min((worst.severity for worst, *_ in self.all), key=severity_rank)

    @property
    def of_recording(self) -> bool:
        """True if it says something of a recording, and nothing of the machine."""
        return all((worst.harm, worst.section) == (HIDES, RECORDINGS) for worst, *_ in self.all)

    @property
    def estimate(self) -> bool:
        """True if all that is as bad as it is was computed, and not measured."""
        worst = [alike[0] for alike in self.all]
        return all(each.estimate for each in worst if each.severity == self.severity)

    @property
    def owner(self) -> str:
        """
        Name of the owner; empty if that is not known. Where the cause took the memory, who is
        largest beside it did not.
        """
        took = self.causes[0][0].harm == "takes memory"
        told = self.causes if took else self.all
        return next((finding.owner for alike in told for finding in alike if finding.owner), "")

    @property
    def since(self) -> str:
        """Begin of it; empty if that is not known."""
        return next((finding.since for alike in self.all for finding in alike if finding.since), "")

    @property
    def sentence(self) -> str:
        """The harm and its likely cause, in plain words."""
        if not self.effects:
            return f"{_in_words(self.causes[0])}."
        return f"{_in_words(self.effects[0])}. Likely cause: {self.cause}."

    @property
    def seen(self) -> str:
        """The harm in plain words, or the cause where none was seen."""
        return f"{_in_words((self.effects or self.causes)[0])}."

    @property
    def cause(self) -> str:
        """The likely cause in plain words, and how many there are besides."""
        others = len(self.causes) - 1
        number = NUMBERS.get(others, f"{others:,}")
        besides = f"; {number} more contributing cause{'s' * (others > 1)}" if others else ""
        return f"{_in_words(self.causes[0])}{besides}"

    @property
    def first_step(self) -> tuple[Step, str] | None:
        """
        The step to take first, and the command in it: a step that changes nothing, with a command
        if one has it; None if there is nothing to do.
        """
        steps = [step for worst, *_ in self.all for step in worst.next]
        harmless = [step for step in steps if not step.undo]
        for step in harmless:
            if found := COMMAND.search(step.do):
                return step, found[1]
        return next(((step, "") for step in (*harmless, *steps)), None)


def _in_words(alike: Alike) -> str:
    """The worst of several as one says it aloud, and how many there are besides."""
    worst, *more = alike
    words = display.prose(worst.plain or worst.title).rstrip(".") + worst.aside
    if not more:
        return words
    names = [name for finding in more if (name := _place_in_memory(finding))]
    if len(names) == len(more) <= MOST_NAMED:
        return f"{words}; also {' and '.join(names)}"
    return f"{words}; {NUMBERS.get(len(more), f'{len(more):,}')} more like it"


def _place_in_memory(finding: Finding) -> str:
    """Place of a finding of a node or zone, "node 0 DMA32"; empty for others."""
    subject = dict(finding.subject)
    if subject.keys() - {"node", "zone"} or "node" not in subject:
        return ""
    return " ".join(
        str(each) for each in ("node", subject["node"], subject.get("zone", ""))
    ).strip()


def incidents(found: list[Finding]) -> list[Incident]:
    """
    Findings as incidents, the worst first.

    :param found: of a :class:`~findings.Verdict`, in its order.
    """
    explained = {words for finding in found for words in finding.explains}
    explained &= {finding.symptom for finding in found}
    rows: dict[tuple[str, frozenset[str]], list[Finding]] = {}
    for finding in found:
        ties = explained & {finding.symptom, *finding.explains}
        rows.setdefault((finding.id, frozenset(ties)), []).append(finding)
    groups: list[tuple[frozenset[str], list[Alike]]] = []
    for (_, shared), alike in rows.items():
        joined = [group for group in groups if group[0] & shared]
        groups = [group for group in groups if group not in joined]
        every = [*(each for _, members in joined for each in members), tuple(alike)]
        groups.append((shared.union(*(others for others, _ in joined)), every))
    result = []
    for _, members in groups:
        members.sort(key=lambda alike: found.index(alike[0]))
        causes = [alike for alike in members if alike[0].symptom not in explained]
        effects = [alike for alike in members if alike[0].symptom in explained]
        result.append(Incident(tuple(sorted(causes, key=_place_of_cause)), tuple(effects)))
    return sorted(result, key=_place)


def _place_of_cause(alike: Alike) -> tuple[int, bool, bool]:
    """As findings stand, but what takes memory before what only makes it hard to get."""
    worst = alike[0]
    return severity_rank(worst.severity), worst.estimate, worst.harm != "takes memory"


def _place(incident: Incident) -> tuple[int, bool, int]:
    """By severity, what was measured first, what does most harm first."""
    return (
        severity_rank(incident.severity),
        incident.estimate,
        min(HARMS.index(alike[0].harm) for alike in incident.all),
    )
