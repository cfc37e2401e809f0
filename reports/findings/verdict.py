# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The verdict: one word first, and what it rests on.

*trouble* where a finding above a notice says something of the machine; *no trouble found* where
nothing that was looked at was out of sight; *cannot tell* everywhere else: memory that nothing
explains, a section that checks stand on and that was not read whole, or no check at all.

Cannot know: whether all is well. What no check looks for is not found.
"""

from collections import Counter
from dataclasses import dataclass, replace

from mmscope.drgn.tables import display
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.findings.finding import CANNOT_TELL, TROUBLE, Finding, Verdict
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.incidents import Incident, incidents
from mmscope.reports.findings.question import HARMS, SEVERITIES, Step

# What each of HARMS is, as one says it.
MOST_LISTED = 4  # sections
HARM_WORDS = dict(
    zip(
        HARMS,
        (
            "processes are killed, or allocations fail",
            "data is damaged: what happens later may come of it",
            "tasks are delayed",
            "less memory is left for everything else",
            "CPU time or memory is wasted",
            "figures that were read may mislead",
        ),
        strict=True,
    )
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """
    Sum of all findings of a bundle. Words are plain text, with values from the bundle in
    them; what is not known is empty.

    :ivar word: of ``Verdict``: ``TROUBLE``, ``NO_TROUBLE`` or ``CANNOT_TELL``.
    :ivar sentence: what is wrong; where nothing was found, what that rests on.
    :ivar rests_on: how many checks, and what the others would take.
    :ivar short: number of checks that found nothing, and of notices, without what is unknown.
    :ivar notice: where there is no trouble: the first of what was found.
    :ivar harm: what it does to the machine. :ivar owner: whose it is.
    :ivar unknowns: what could not be seen, and what checks that did not run would take.
    :ivar step: what to do first. :ivar command: in it. :ivar table: the first that it stands on.
    """

    word: str
    sentence: str
    rests_on: str
    severity: str = ""
    cause: str = ""
    owner: str = ""
    harm: str = ""
    since: str = ""
    unknowns: tuple[str, ...] = ()
    step: Step | None = None
    command: str = ""
    table: str = ""
    short: str = ""
    notice: str = ""


def verdict_of(bundle: Bundle) -> Judgement:
    """Ask a bundle every question, and judge the answers."""
    return judge(evaluate(bundle))


def judge(verdict: Verdict) -> Judgement:
    """The verdict on what was found."""
    unknowns = (*verdict.blind, *([lacking_words(verdict)] if verdict.not_checked else ()))
    judged = Judgement(verdict.word, sentence(verdict), rests_on(verdict), unknowns=unknowns)
    if verdict.word != TROUBLE:
        notice = incidents(verdict.found)[0].sentence if verdict.found else ""
        return replace(judged, short=f"{none_found(verdict)}.", notice=notice)
    first = first_incident(verdict)
    worst, *_ = first.causes[0]
    step, command = first.first_step or (None, "")
    return replace(
        judged,
        severity=first.severity,
        cause=said(worst),
        owner=first.owner,
        harm=said(first.effects[0][0]) if first.effects else HARM_WORDS[worst.harm],
        since=first.since,
        step=step,
        command=command,
        table=next((proof.table for proof in worst.proofs), ""),
    )


def none_found(verdict: Verdict) -> str:
    """Words where there is no trouble that was found: by how many checks, and how many notices."""
    if not verdict.made:
        return f"None of {display.plural(verdict.checks, 'check')} could run"
    by = f"found by {verdict.made:,} of {display.plural(verdict.checks, 'check')}"
    if not verdict.found:
        return f"No trouble {by}"
    if verdict.word == CANNOT_TELL:
        return f"{counted(verdict)}, nothing worse {by}"
    return f"No trouble {by}; {counted(verdict)}"


def first_incident(verdict: Verdict) -> Incident:
    """
    The worst of the machine; of a recording, and what was computed, only where there is no other
    that is trouble.
    """
    told = incidents(verdict.found)
    machine = [each for each in told if not each.of_recording] or told
    trouble = [each for each in machine if each.severity != "notice"]
    return next((each for each in trouble if not each.estimate), machine[0])


def said(finding: Finding) -> str:
    """A finding's title as one says it aloud."""
    return display.prose(finding.plain or finding.title).rstrip(".") + finding.aside


def sentence(verdict: Verdict, *, wants: bool = True) -> str:
    """
    The word, and in a line what it stands for.

    :param wants: also what the checks take that did not run.
    """
    if verdict.word == TROUBLE:
        return f"Trouble: {first_incident(verdict).sentence}"
    if not verdict.found:
        return nothing_found(verdict, wants=wants)
    if verdict.word == CANNOT_TELL:  # what was seen before what was not
        wanted = others_want(verdict) if wants else ""
        return f"Cannot tell all. {noticed(verdict)} Not seen: {unseen(verdict)}.{wanted}"
    return f"{nothing_found(verdict, wants=wants)} {noticed(verdict)}"


def headline(verdict: Verdict) -> str:
    """The word, and numbers of findings and checks."""
    if verdict.word == TROUBLE:
        return f"Trouble: {counted(verdict)}. {how_many(verdict)}."
    if verdict.found and verdict.word == CANNOT_TELL:
        more = f"Not seen: {unseen(verdict)}.{others_want(verdict)}"
        return f"Cannot tell all: {none_found(verdict)}. {more}"
    found = f" {counted(verdict)}." if verdict.found else ""
    return f"{nothing_found(verdict)}{found}"


def rests_on(verdict: Verdict) -> str:
    """Basis of the word: how many checks, and what the others would take."""
    if verdict.word == TROUBLE:
        return f"{how_many(verdict)}.{others_want(verdict)}"
    return nothing_found(verdict)


def nothing_found(verdict: Verdict, *, wants: bool = True) -> str:
    """Words where there is no trouble that was found, or none that could be."""
    wanted = others_want(verdict) if wants else ""
    if not verdict.checks:
        return "Cannot tell: no check was made."
    if not verdict.made:
        made = f"none of {display.plural(verdict.checks, 'check')} could run"
        return f"Cannot tell: {made}.{wanted}"
    made = f"No trouble found by {display.plural(verdict.made, 'check')}"
    if not verdict.blind:
        return f"{made}.{wanted}"
    do = "does" if verdict.made == 1 else "do"
    return f"Cannot tell: {unseen(verdict)}. {made}, which {do} not see that.{wanted}"


def unseen(verdict: Verdict) -> str:
    """The first of what was out of sight, and how much more."""
    first, *others = (display.prose(words).rstrip(".") for words in verdict.blind)
    return first + (f"; {display.plural(len(others), 'more reason')}" if others else "")


def counted(verdict: Verdict) -> str:
    """Number of findings by severity."""
    severities = Counter(finding.severity for finding in verdict.found)
    return ", ".join(
        display.plural(severities[s], s, f"{s}s" if s != "critical" else s)
        for s in SEVERITIES
        if severities[s]
    )


def noticed(verdict: Verdict) -> str:
    """Findings that are no trouble, the first of it by name."""
    first = ", the first" if len(verdict.found) > 1 else ""
    return f"{counted(verdict)}{first}: {incidents(verdict.found)[0].sentence}"


def how_many(verdict: Verdict) -> str:
    """Number of checks that ran: the one count that everything else is said beside."""
    if not verdict.not_checked:
        return f"All {display.plural(verdict.made, 'check')} ran"
    return f"{verdict.made:,} of {display.plural(verdict.checks, 'check')} ran"


def lacking_words(verdict: Verdict) -> str:
    """Needs of the checks that could not be made: "31 need root or a vmcore, 8 a watch"."""
    wants = Counter(item.wants for item in verdict.not_checked).most_common()
    (what, number), *others = wants
    first = f"{number:,} {'needs' if number == 1 else 'need'} {what}"
    return ", ".join((first, *(f"{number:,} {what}" for what, number in others)))


def others_want(verdict: Verdict) -> str:
    """The same as a sentence, with a space before; empty where all checks ran."""
    return f" {lacking_words(verdict)}." if verdict.not_checked else ""


def lacking(verdict: Verdict) -> str:
    """List what could not be checked, by where its data would be: most first, few of many."""
    sections = Counter(item.section for item in verdict.not_checked).most_common()
    listed = [
        f"{name.replace('_', ' ') or 'others'} {number:,}"
        for name, number in sections[:MOST_LISTED]
    ]
    if rest := sections[MOST_LISTED:]:
        listed.append(f"{sum(number for _, number in rest):,} in {len(rest):,} more sections")
    return ", ".join(listed)
