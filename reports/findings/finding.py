# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Answers of the findings to one bundle: what was found, what was not, what could not be seen.
"""

from dataclasses import dataclass, field
from typing import Any

from mmscope.reports.findings.proof import Proof
from mmscope.reports.findings.question import HIDES, Step

# The one word that a verdict begins with.
TROUBLE, NO_TROUBLE, CANNOT_TELL = "trouble", "no trouble found", "cannot tell"
# What a check that could not be made would need.
RECORDING, WATCH, MEMORY = "a recording ('mmscope record')", "a watch over time", "root or a vmcore"
NOT_READ, WHOLE = "sections not read", "sections read whole"
MORE, OTHERWISE = "a fuller copy of /proc and /sys", "what this host lacks"
# Of a section that is absent: of a dump it is the kernel that has none.
KERNEL, RIGHTS = "another kernel or other boot options", "root or another kernel"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. All words are plain text, with values from the bundle in them."""

    id: str  # the file's name; several findings may share it, one for each row found
    severity: str
    title: str  # what is wrong, with its number
    saw: str  # what was seen: the figures
    why: str  # why it hurts
    next: tuple[Step, ...]  # what to do, in order
    links: tuple[tuple[str, str], ...]  # title and address of where it is written up
    section: str  # where the evidence is
    # What it is about and how bad it is, so that the same finding of two bundles can be compared.
    subject: tuple[tuple[str, Any], ...] = ()
    badness: float | None = None
    tables: tuple[str, ...] = ()  # and views, that it was found in
    sources: tuple[str, ...] = ()  # kernel files that its words were held against
    estimate: bool = False  # how bad it is was computed, not measured
    harm: str = "costs"
    symptom: str = ""  # that it is, in words that others explain (see incidents)
    explains: tuple[str, ...] = ()  # symptoms that may come of it
    since: str = ""  # when it began, if that is known
    classes: tuple[str, ...] = ()  # of the memory ledger, that it is about
    proofs: tuple[Proof, ...] = ()  # the rows that it stands on
    plain: str = ""  # the title as one says it aloud, if that is other words
    owner: str = ""  # whose it is: a process, a cgroup, a cache, a function
    other_boot: bool = False  # of a recording of another boot than the rest of the bundle

    @property
    def aside(self) -> str:
        """Words after its title: in brackets, with a space before; empty as a rule."""
        said = ["estimate"] * self.estimate + ["another boot"] * self.other_boot
        return f" ({', '.join(said)})" if said else ""


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A finding that could not be asked of this bundle."""

    id: str
    title: str
    reason: str
    section: str = ""  # where its evidence would be
    wants: str = OTHERWISE  # what it would take


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    Everything that the findings say of one bundle.

    :ivar found: by severity; of one severity, what was measured before what was estimated, then
        what does most harm first.
    :ivar silent: (id, title) of what was checked and not found.
    :ivar under: what was measured of things that are under their finding's threshold, in its
        words: what a comparison says of a finding that is gone.
    :ivar blind: what could not be seen of what was looked at. Where there is such, that nothing was
        found does not mean that nothing is wrong.
    """

    found: list[Finding]
    silent: list[tuple[str, str]]
    not_checked: list[NotChecked]
    under: list[Finding] = field(default_factory=list)
    blind: list[str] = field(default_factory=list)

    @property
    def word(self) -> str:
        """The verdict in one word: of the machine, not of a recording that hides something."""
        worst = {finding.severity for finding in self.found if finding.harm != HIDES}
        if worst - {"notice"}:
            return TROUBLE
        return CANNOT_TELL if self.blind or not self.made else NO_TROUBLE

    @property
    def made(self) -> int:
        """Checks that ran."""
        return len({finding.id for finding in self.found} | {id for id, _ in self.silent})

    @property
    def checks(self) -> int:
        """All checks."""
        return self.made + len(self.not_checked)
