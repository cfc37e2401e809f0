# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The incident card: what the first screen says. What is wrong and what it likely comes from, how bad
it is, since when, what to do first, and all memory in one bar with what it is about marked.

Cannot know: more than the findings. Where they were clear it says what was checked.
"""

import contextlib
from dataclasses import dataclass

from mmscope.drgn.tables import display
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.findings.findings import (
    SEVERITIES,
    Finding,
    Step,
    Verdict,
    all_clear,
    only_notices,
)
from mmscope.reports.findings.incidents import Incident
from mmscope.reports.page.culprit import Culprit, culprit
from mmscope.reports.pictures.memory_bar import MEMORY_BAR, Segment, segments

NOUNS = {"critical": ("critical finding",), "warning": ("warning",), "notice": ("notice",)}
MAX_HARM = 3  # effects that it names


@dataclass(frozen=True, slots=True)
class Card:
    """The first screen. Texts are plain, with values from the bundle in them."""

    sentence: str
    counted: str  # findings by severity; empty where there are none
    severity: str  # of the worst; empty where there is none
    seen: Finding | None  # the likely cause
    harm: list[Finding]  # what may come of it
    since: str
    step: Step | None
    command: str
    memory: list[Segment]
    marked: set[str]  # classes of memory that it is about
    culprit: Culprit | None  # among its like


def card(
    bundle: Bundle,
    verdict: Verdict,
    told: list[Incident],
    host: str,
    faults: list[Fault] | None = None,
) -> Card:
    """
    What to say first.

    :param told: the incidents of *verdict*, the worst first.
    :param faults: gets what mmscope failed to draw.
    """
    memory: list[Segment] = []
    table = bundle.tables.get(MEMORY_BAR.table)
    if table and MEMORY_BAR.columns <= {c.name for c in table.columns}:
        # Its section has the same picture, or says why not.
        with contextlib.suppress(Exception):
            memory = segments(list(bundle.rows(table.name)))
    if not told:
        said = f"{host}: {all_clear(verdict)}."
        return Card(
            sentence=said,
            counted="",
            severity="",
            seen=None,
            harm=[],
            since="",
            step=None,
            command="",
            memory=memory,
            marked=set(),
            culprit=None,
        )
    first = told[0]
    notices = only_notices(verdict)
    step, command = first.first_step or (None, "")
    sinces = [finding.since for each in first.all for finding in each if finding.since]
    return Card(
        sentence=f"{host}: {notices}{first.sentence}" if notices else first.sentence,
        counted=counted(verdict, told),
        severity=first.severity,
        seen=first.causes[0][0],
        harm=[worst for worst, *_ in first.effects[:MAX_HARM]],
        since=sinces[0] if sinces else "",
        step=step,
        command=command,
        memory=memory,
        marked={name for each in first.causes for finding in each for name in finding.classes},
        culprit=culprit(
            bundle,
            first.causes[0][0],
            display.plain_int(bundle.target.get("page_size")),
            faults,
        ),
    )


def counted(verdict: Verdict, told: list[Incident]) -> str:
    """How many findings there are, by severity, and how many incidents they are."""
    parts = [
        display.plural(number, *NOUNS[severity])
        for severity in SEVERITIES
        if (number := sum(finding.severity == severity for finding in verdict.found))
    ]
    others = sum(finding.severity not in SEVERITIES for finding in verdict.found)
    if others:
        parts.append(display.plural(others, "other"))
    listed = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
    things = sum(len(each.all) for each in told)
    if len(told) == things:
        return listed
    return f"{listed}, in {display.plural(len(told), 'incident')}"
