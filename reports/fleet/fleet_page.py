# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A fleet as one page: what is wrong on how many hosts, since when, on which kernels, who worst; each
host's own report a step away where a folder has it.

Of many hosts the worst are listed, and how many more there are is said. Cannot know: whether a
report in the folder is of the newest bundle; one that has a bundle's id as its name is of that.
"""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mmscope.drgn.tables import display
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError, say
from mmscope.reports.findings.findings import SEVERITIES, Finding, load_questions
from mmscope.reports.fleet.fleet import (
    Case,
    Fleet,
    Regression,
    Share,
    Told,
    ask_fleet,
    regressions,
    words,
)
from mmscope.reports.fleet.fleet_text import headline, labels_of, say_some, wanted_of, when
from mmscope.reports.fleet.owners import Owner, owners, several
from mmscope.reports.lake.catalog import Taken, read_catalog
from mmscope.reports.page.report import page, write

# Hosts that are listed for one finding, and of all.
MAX_CASES, MAX_HOSTS = 50, 500
# Groups that are listed for one finding, findings that are named for one reason, lines of damage.
MAX_GROUPS, MAX_NAMED, MAX_SAID = 30, 12, 50
MAX_OWNERS = 50


@dataclass(frozen=True)
class Link:
    """A host, and where its report is, if it is known."""

    host: str
    report: str


@dataclass(frozen=True)
class CaseView:
    """A host that has a finding."""

    of: Link
    kernel: str
    severity: str
    since: str
    title: str


@dataclass(frozen=True)
class ToldView:
    """A finding over all hosts."""

    id: str
    about: str
    severity: str
    hosts: int
    checked: int
    since: str
    worst: Finding | None
    cases: list[CaseView]
    kernels: list[tuple[str, Share]]
    labels: list[tuple[str, Share]]
    kernels_more: int
    labels_more: int

    @property
    def more(self) -> int:
        """Hosts that are not listed."""
        return self.hosts - len(self.cases)


@dataclass(frozen=True)
class HostView:
    """A host."""

    of: Link
    kernel: str
    labels: str
    taken: str
    bundle: str
    counts: list[tuple[str, int]]


@dataclass(frozen=True)
class Reason:
    """Why hosts could not tell, and of what."""

    why: str
    hosts: int
    findings: list[str]

    @property
    def named(self) -> str:
        """The findings, or the first of them."""
        more = len(self.findings) - MAX_NAMED
        said = ", ".join(self.findings[:MAX_NAMED])
        return f"{said} and {more:,} more" if more > 0 else said


@dataclass(frozen=True)
class OwnerView:
    """Who takes memory on several hosts."""

    of: Owner
    worst: Link
    period: str
    about: str  # the finding

    @property
    def did(self) -> str:
        """What its bytes are."""
        return "grew by" if self.of.grew else "has"


@dataclass(frozen=True)
class View:
    """All that the page shows."""

    sentence: str
    facts: list[tuple[str, str]]
    said: list[str]
    said_more: int
    told: list[ToldView]
    owners: list[OwnerView]
    owners_more: int
    pairs: int
    regressions: list[Regression]
    reasons: list[Reason]
    clear: list[tuple[str, str, int]]  # id, words, hosts that could be asked
    unasked: list[tuple[str, str]]
    hosts: list[HostView]
    hosts_more: int
    reports: bool


class Reports:
    """The reports of hosts in a folder, by name: what is there when the page is written."""

    def __init__(self, folder: Path | None, output: Path) -> None:
        try:
            self.names = set(os.listdir(folder)) if folder else set()
        except OSError as error:
            raise UsageError(f"{folder}: cannot be read: {error.strerror}") from error
        self.way = os.path.relpath(folder.resolve(), output.resolve().parent) if folder else ""

    def link(self, bundle: Taken) -> Link:
        """Of its bundle, or else of its host. A name that is in a folder is no path."""
        for name in (f"{bundle.id}.html", f"{bundle.host}.html"):
            if name in self.names:
                return Link(bundle.host, quote(os.fsencode(f"{self.way}/{name}")))
        return Link(bundle.host, "")


def write_fleet(args: argparse.Namespace) -> int:
    """``mmscope lake report``."""
    reports = Reports(args.reports, args.output)
    catalog = read_catalog(args.lake, wanted_of(args))
    if not catalog.bundles:
        raise UsageError(f"{args.lake}: no bundle is wanted by these options")
    fleet = ask_fleet(catalog, load_questions(), ledgers=True)
    html = page("fleet.html", view=view(fleet, catalog.bundles, reports))
    write(html, args.output, args.mode)
    print(headline(fleet))
    say_some(fleet.said)
    say(f"{args.output}: {len(html.encode()):,} bytes")
    return INCOMPLETE if fleet.said else DONE


def view(fleet: Fleet, bundles: Sequence[Taken], reports: Reports) -> View:
    """What a page of a fleet shows."""
    hosts = _hosts(fleet, reports)
    kernels = {bundle.kernel for bundle in fleet.hosts.values()}
    times = [bundle.at for bundle in bundles]
    shared = several(owners(fleet))
    lacking: Counter[str] = Counter()
    for (id, _), number in fleet.unchecked.items():
        lacking[id] += number
    return View(
        sentence=headline(fleet),
        facts=[
            ("hosts", f"{len(fleet.hosts):,}"),
            ("bundles", f"{len(bundles):,}"),
            ("kernels", f"{len(kernels):,}"),
            ("oldest", f"{when(min(times))} UTC"),
            ("newest", f"{when(max(times))} UTC"),
        ],
        said=fleet.said[:MAX_SAID],
        said_more=max(0, len(fleet.said) - MAX_SAID),
        told=[_told(one, reports) for one in fleet.told],
        owners=[_owner(one, fleet, reports) for one in shared[:MAX_OWNERS]],
        owners_more=max(0, len(shared) - MAX_OWNERS),
        pairs=fleet.growth.known() if fleet.growth else 0,
        regressions=regressions(fleet),
        reasons=_reasons(fleet),
        clear=[(q.id, q.about, len(fleet.hosts) - lacking[q.id]) for q in fleet.clear],
        unasked=[(q.id, q.about) for q in fleet.unasked],
        hosts=hosts[:MAX_HOSTS],
        hosts_more=max(0, len(hosts) - MAX_HOSTS),
        reports=bool(reports.names),
    )


def _told(one: Told, reports: Reports) -> ToldView:
    said = words(one, one.cases[0])
    kernels, labels = _most(one.by_kernel), _most(one.by_label)
    return ToldView(
        id=one.question.id,
        about=one.question.about,
        severity=one.severity,
        hosts=len(one.cases),
        checked=one.checked,
        since=when(one.since),
        worst=said[0] if said else None,
        cases=[_case(one, case, reports) for case in one.cases[:MAX_CASES]],
        kernels=kernels[:MAX_GROUPS],
        labels=labels[:MAX_GROUPS],
        kernels_more=max(0, len(kernels) - MAX_GROUPS),
        labels_more=max(0, len(labels) - MAX_GROUPS),
    )


def _case(one: Told, case: Case, reports: Reports) -> CaseView:
    said = words(one, case)
    return CaseView(
        reports.link(case.bundle),
        case.bundle.kernel,
        case.severity,
        # Nothing says when it began where each reading had it.
        when(case.since) + (" or before" if case.always else ""),
        display.prose(said[0].title) if said else "",
    )


def _owner(one: Owner, fleet: Fleet, reports: Reports) -> OwnerView:
    seconds = one.seconds[one.worst]
    about = {told.question.id: told.question.about for told in fleet.told}
    return OwnerView(
        one,
        reports.link(one.bundles[one.worst]),
        display.duration(seconds) if one.grew and seconds else "",
        about.get(one.finding, ""),
    )


def _most(groups: dict[str, Share]) -> list[tuple[str, Share]]:
    """Those that have it, those of most hosts first."""
    there = [(name, share) for name, share in groups.items() if share.hosts]
    return sorted(there, key=lambda each: (-each[1].hosts, each[0]))


def _reasons(fleet: Fleet) -> list[Reason]:
    """By reason: a section that is not there costs several findings the same hosts."""
    by_why: dict[tuple[str, int], list[str]] = {}
    for (id, why), hosts in fleet.unchecked.items():
        by_why.setdefault((why, hosts), []).append(id)
    found = [Reason(why, hosts, sorted(ids)) for (why, hosts), ids in by_why.items()]
    return sorted(found, key=lambda each: (-each.hosts, -len(each.findings), each.why))


def _hosts(fleet: Fleet, reports: Reports) -> list[HostView]:
    """All hosts, those with the most and the most severe findings first."""
    counts = {host: dict.fromkeys(SEVERITIES, 0) for host in fleet.hosts}
    for one in fleet.told:
        for case in one.cases:
            counts[case.bundle.host][case.severity] += 1
    found = [
        HostView(
            reports.link(bundle),
            bundle.kernel,
            labels_of(bundle),
            when(bundle.at),
            bundle.id,
            list(counts[host].items()),
        )
        for host, bundle in fleet.hosts.items()
    ]
    return sorted(found, key=lambda each: ([-n for _, n in each.counts], each.of.host))
