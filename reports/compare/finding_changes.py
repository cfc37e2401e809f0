# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Findings of two bundles, held against each other by what they are about (``subject``), and how bad
they are (``worse``).

Cannot know: whether a finding that is gone was asked for, beyond what its bundle says.
"""

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from mmscope.reports.compare.relation import BOOT_NAMES
from mmscope.reports.findings.finding import Finding, Verdict
from mmscope.reports.findings.question import severity_rank

# What a finding's number must change by, to be better or worse.
NOTABLE = 0.01
# Of a finding's subject, the names that people chose.
CHOSEN_NAMES = frozenset({"comm", "root_comm", "profile"})


@dataclass(frozen=True, slots=True)
class FindingChange:
    """
    A finding that is new, worse, better or the same, that is no longer over its threshold
    (``under``), or that is not found now (``gone``).

    A threshold that is crossed says little by itself; where its measure is known on the other side
    too, that side's words have it.
    """

    change: str
    before: Finding | None
    after: Finding | None

    @property
    def finding(self) -> Finding:
        """The finding; if it is gone, the one before."""
        found = self.before if self.change == "under" else self.after or self.before
        assert found is not None
        return found

    @property
    def words(self) -> str:
        return CHANGE_WORDS.get(self.change, self.change)

    @property
    def other(self) -> tuple[int, Finding] | None:
        """The other side's finding of the same: (0 for before, 1 for after; the finding)."""
        side, found = (0, self.before) if self.finding is self.after else (1, self.after)
        return None if found is None else (side, found)


CHANGES = ("new", "worse", "better", "under", "gone", "same")
CHANGE_WORDS = {"under": "no longer over the threshold", "gone": "not found now"}


def compare_findings(
    before: Verdict, after: Verdict, *, same_boot: bool, same_names: bool = True
) -> tuple[list[FindingChange], tuple[int, int]]:
    """
    Findings of two bundles, worst first within each change; and how many of each side the other
    side could not be asked for: these are neither new nor gone.
    """

    def by_subject(findings: list[Finding]) -> dict[tuple[Any, ...], list[Finding]]:
        found: dict[tuple[Any, ...], list[Finding]] = defaultdict(list)
        for finding in findings:
            lasting = [one for one in finding.subject if same_boot or one[0] not in BOOT_NAMES]
            found[finding.id, *lasting].append(finding)
        return found

    unasked = [{item.id for item in verdict.not_checked} for verdict in (before, after)]
    old, new = by_subject(before.found), by_subject(after.found)
    # What is of neither side's findings may still have been measured there.
    old_under, new_under = by_subject(before.under), by_subject(after.under)
    changes: list[FindingChange] = []
    lost, only = 0, 0
    for key in dict.fromkeys([*new, *old]):
        apart = not same_names and any(name in CHOSEN_NAMES for name, _ in key[1:])
        pairs = enumerate(itertools.zip_longest(old[key], new[key]))
        for number, (was, now) in pairs:
            if apart:
                only, lost = only + (now is not None), lost + (was is not None)
            elif was is None and key[0] in unasked[0]:
                only += 1
            elif now is None and key[0] in unasked[1]:
                lost += 1
            else:
                change = _finding_change(was, now)
                was = was or next(iter(old_under[key][number:]), None)
                now = now or next(iter(new_under[key][number:]), None)
                change = "under" if change == "gone" and now else change
                changes.append(FindingChange(change, was, now))
    changes.sort(
        key=lambda item: (CHANGES.index(item.change), severity_rank(item.finding.severity))
    )
    return changes, (lost, only)


def _finding_change(was: Finding | None, now: Finding | None) -> str:
    if was is None or now is None:
        return "gone" if now is None else "new"
    change = float(severity_rank(was.severity) - severity_rank(now.severity))
    if not change and was.badness is not None and now.badness is not None:
        change = now.badness - was.badness
        if abs(change) < NOTABLE * max(abs(was.badness), abs(now.badness)):
            return "same"
    return "worse" if change > 0 else "better" if change else "same"
