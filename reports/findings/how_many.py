# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much of what mmscope knows could be checked, in words."""

from collections import Counter
from collections.abc import Callable

from mmscope.drgn.tables import display
from mmscope.reports.findings.findings import Verdict


def how_many(verdict: Verdict) -> str:
    """How many checks could be made: the one count that everything else is said beside."""
    if not verdict.not_checked:
        return f"All {display.plural(verdict.made, 'check')} could be made"
    return f"{verdict.made:,} of {display.plural(verdict.checks, 'check')} could be made"


def all_clear(verdict: Verdict) -> str:
    """What is said where nothing was found, which is not much if little could be checked."""
    if not verdict.checks:
        return "No check was made"
    if not verdict.made:
        return f"None of {display.plural(verdict.checks, 'check')} could be made"
    if verdict.not_checked:
        return f"{how_many(verdict)}; {'that is' if verdict.made == 1 else 'those are'} clear"
    return f"{how_many(verdict)}, and {'it is' if verdict.made == 1 else 'all are'} clear"


def only_notices(verdict: Verdict) -> str:
    """What is said before the first notice where nothing worse was found; empty elsewhere."""
    if not verdict.found or any(finding.severity != "notice" for finding in verdict.found):
        return ""
    notices = display.plural(len(verdict.found), "notice")
    first = ", the first" if len(verdict.found) > 1 else ""
    made = f"{verdict.made:,} of {display.plural(verdict.checks, 'check')}"
    return f"nothing critical and no warning in {made}; {notices}{first}: "


def lacking(verdict: Verdict, title: Callable[[str], str]) -> str:
    """
    What could not be checked, by where its data would be: most first.

    :param title: of a section, by its name.
    """
    sections = Counter(item.section for item in verdict.not_checked).most_common()
    return ", ".join(f"{title(name) or 'others'} {number:,}" for name, number in sections)
