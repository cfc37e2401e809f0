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
from collections.abc import Iterable
from urllib.parse import quote

from mmscope.drgn.tables import display
from mmscope.drgn.tables.terminal import print_prose
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError, say
from mmscope.reports.findings.question import OURS, SEVERITIES
from mmscope.reports.fleet.fleet import (
    Case,
    Fleet,
    FleetFinding,
    Share,
    ask_fleet,
    regressions,
    words,
)
from mmscope.reports.fleet.fleet_text import (
    catalog_of,
    headline,
    labels_of,
    rests_on,
    say_some,
    when,
)
from mmscope.reports.fleet.owners import owners, several
from mmscope.reports.lake.catalog import Taken
from mmscope.reports.page.report import check_name, page, write

# Findings that are named for one reason. How many of all else are listed, the template has.
MAX_NAMED = 12


def write_fleet(args: argparse.Namespace) -> int:
    """``mmscope lake report``."""
    check_name(args.output)
    try:
        reports = set(os.listdir(args.reports)) if args.reports else set()
    except OSError as error:
        raise UsageError(f"{args.reports}: cannot be read: {error.strerror}") from error
    catalog = catalog_of(args)
    fleet = ask_fleet(catalog, OURS(), ledgers=True)

    def report_of(bundle: Taken) -> str:
        """The report of a bundle, or else of its host. A name that is in a folder is no path."""
        for name in (f"{bundle.id}.html", f"{bundle.host}.html"):
            if name in reports:
                way = os.path.relpath(args.reports.resolve(), args.output.resolve().parent)
                return quote(os.fsencode(f"{way}/{name}"))
        return ""

    html = page(
        "fleet.html",
        fleet=fleet,
        sentence=headline(fleet),
        rests_on=rests_on(fleet),
        facts=_facts(fleet, catalog.bundles),
        owners=several(owners(fleet)),
        about={one.question.id: one.question.about for one in fleet.found},
        regressions=regressions(fleet),
        reasons=_reasons(fleet),
        lacking=_lacking(fleet),
        hosts=_hosts(fleet),
        reports=bool(reports),
        report_of=report_of,
        when=when,
        words=words,
        title_of=_title,
        most=_most,
        labels_of=labels_of,
    )
    write(html, args.output, args.mode)
    print_prose(headline(fleet))
    print_prose(rests_on(fleet))
    say_some(fleet.said)
    say(f"{args.output}: {len(html.encode()):,} bytes")
    return INCOMPLETE if fleet.said else DONE


def _facts(fleet: Fleet, bundles: Iterable[Taken]) -> dict[str, str]:
    times = [bundle.at for bundle in bundles]
    return {
        "hosts": f"{len(fleet.hosts):,}",
        "bundles": f"{len(times):,}",
        "kernels": f"{len({bundle.kernel for bundle in fleet.hosts.values()}):,}",
        "oldest": f"{when(min(times))} UTC",
        "newest": f"{when(max(times))} UTC",
    }


def _title(one: FleetFinding, case: Case) -> str:
    said = words(one, case)
    return display.prose(said[0].title) if said else ""


def _most(groups: dict[str, Share]) -> list[tuple[str, Share]]:
    """Groups that have it, those of most hosts first."""
    there = [(name, share) for name, share in groups.items() if share.hosts]
    return sorted(there, key=lambda each: (-each[1].hosts, each[0]))


def _lacking(fleet: Fleet) -> Counter[str]:
    """Hosts that could not tell, by finding."""
    lacking: Counter[str] = Counter()
    for (id, _), hosts in fleet.unchecked.items():
        lacking[id] += hosts
    return lacking


def _reasons(fleet: Fleet) -> list[tuple[int, str, str]]:
    """
    Hosts that could not tell, the reason, and findings that it cost them: a section that is not
    there costs several findings the same hosts.
    """
    by_why: dict[tuple[int, str], list[str]] = {}
    for (id, why), hosts in fleet.unchecked.items():
        by_why.setdefault((hosts, why), []).append(id)
    found = []
    for (hosts, why), ids in by_why.items():
        more = len(ids) - MAX_NAMED
        named = ", ".join(sorted(ids)[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        found.append((-hosts, -len(ids), why, named))
    return [(-hosts, why, named) for hosts, _, why, named in sorted(found)]


def _hosts(fleet: Fleet) -> list[tuple[Taken, dict[str, int]]]:
    """Newest bundles of all hosts, those with the most and the most severe findings first."""
    counts = {host: dict.fromkeys(SEVERITIES, 0) for host in fleet.hosts}
    for one in fleet.found:
        for case in one.cases:
            counts[case.bundle.host][case.severity] += 1
    found = [(bundle, counts[host]) for host, bundle in fleet.hosts.items()]
    return sorted(found, key=lambda each: ([-n for n in each[1].values()], each[0].host))
