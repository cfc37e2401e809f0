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
from mmscope.reports.findings.findings import HARMS, HIDES, Finding, Step, severity_rank

# Words with a command in them have it in quotes; quotes within it are double.
COMMAND = re.compile(
    r"'((?:sudo )?"
    r"(?:mmscope|perf|crash|drgn|cat|grep|ls|ps|ipcs|sysctl|echo|systemctl|journalctl|vmstat)\b[^']*)'"
)


@dataclass(frozen=True, slots=True)
class Told:
    """What one finding's file found: the worst first, the others alike."""

    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Finding:
        return self.findings[0]

    @property
    def title(self) -> str:
        """Its title, and how many there are besides."""
        return self._said(self.worst.title)

    @property
    def plain(self) -> str:
        """The same as one says it aloud."""
        return self._said(self.worst.plain or self.worst.title)

    def _said(self, title: str) -> str:
        more = len(self.findings) - 1
        words = display.prose(title).rstrip(".")
        words += self.worst.aside
        return f"{words} (and {more:,} more)" if more else words


@dataclass(frozen=True, slots=True)
class Incident:
    """
    What belongs together.

    :ivar causes: the worst first; what is there alone is one.
    :ivar effects: what may come of them.
    """

    causes: tuple[Told, ...]
    effects: tuple[Told, ...]

    @property
    def told(self) -> tuple[Told, ...]:
        return (*self.causes, *self.effects)

    @property
    def severity(self) -> str:
        """Of the worst of it."""
        return min((told.worst.severity for told in self.told), key=severity_rank)

    @property
    def of_recording(self) -> bool:
        """True if it says something of a recording, and nothing of the machine."""
        return all(told.worst.harm == HIDES for told in self.told)

    @property
    def sentence(self) -> str:
        """What is felt and what it likely comes from, in plain words."""
        if not self.effects:
            return f"{self.causes[0].plain}."
        others = len(self.causes) - 1
        besides = f"; {display.plural(others, 'other')} may add to it" if others else ""
        return f"{self.effects[0].plain}. Likely cause: {self.causes[0].plain}{besides}."

    @property
    def first_step(self) -> tuple[Step, str] | None:
        """
        What to do first, and the command in it: a step that changes nothing, with a command if one
        has it; None if there is nothing to do.
        """
        steps = [step for told in self.told for step in told.worst.next]
        harmless = [step for step in steps if not step.undo]
        for step in harmless:
            if found := COMMAND.search(step.do):
                return step, found[1]
        return next(((step, "") for step in (*harmless, *steps)), None)


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
    told = [Told(tuple(findings)) for findings in rows.values()]
    groups: list[tuple[frozenset[str], list[Told]]] = []
    for each, (_, here) in zip(told, rows, strict=True):
        joined = [group for group in groups if group[0] & here]
        groups = [group for group in groups if group not in joined]
        groups.append(
            (here.union(*(g[0] for g in joined)), [*(t for g in joined for t in g[1]), each])
        )
    result = [
        Incident(
            tuple(
                sorted(
                    (t for t in told if t in group and t.worst.symptom not in explained),
                    key=_place_of_cause,
                )
            ),
            tuple(t for t in told if t in group and t.worst.symptom in explained),
        )
        for _, group in groups
    ]
    return sorted(result, key=_place)


def _place_of_cause(told: Told) -> tuple[int, bool, bool]:
    """As findings stand, but what takes memory before what only makes it hard to get."""
    worst = told.worst
    return severity_rank(worst.severity), worst.estimate, worst.harm != "takes memory"


def _place(incident: Incident) -> tuple[int, bool, int]:
    """By severity, what was measured first, what does most harm first."""
    worst = [t.worst for t in incident.told if t.worst.severity == incident.severity]
    return (
        severity_rank(incident.severity),
        all(finding.estimate for finding in worst),
        min(HARMS.index(told.worst.harm) for told in incident.told),
    )
