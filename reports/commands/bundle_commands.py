# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope findings``, ``report`` and the options of ``compare``: what a bundle says, and two.

They are declared without the libraries that they need.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mmscope.drgn.tables.hostile_text import echo
from mmscope.reports.bundle.options import (
    BUNDLE,
    MODE,
    Command,
    add_format,
    add_page,
    add_redact,
    option,
)
from mmscope.reports.bundle.outcome import DONE, say

if TYPE_CHECKING:
    from mmscope.reports.drawing.refusals import Fault


def add_findings(command: Command) -> None:
    sub = command(
        "findings",
        run_findings,
        "say what is wrong, why it hurts and what next",
        "Run all checks on a bundle, and print what they found.",
    )
    sub.add_argument("bundle", **BUNDLE)
    sub.add_argument("-a", "--all", action="store_true", help="also checks that found nothing")
    sub.add_argument("--json", action="store_true", help="as JSON, for programs")


def run_findings(args: argparse.Namespace) -> int:
    from mmscope.reports.bundle.bundle import Bundle
    from mmscope.reports.bundle.bundle_format import not_written
    from mmscope.reports.findings import findings_text
    from mmscope.reports.findings.findings import evaluate

    bundle = Bundle(args.bundle)
    if args.json:
        from mmscope.reports.serving.answers import Case

        echo(*json.dumps(Case(str(args.bundle), bundle).findings(), indent=1).split("\n"), sep="\n")
        return DONE
    findings_text.print_findings(evaluate(bundle), everything=args.all)
    if words := not_written(bundle):
        say(f"{args.bundle}: {words}")
    return DONE


def add_report(command: Command) -> None:
    sub = command(
        "report",
        run_report,
        "write a bundle as one HTML file",
        "Write a bundle as one HTML file that opens anywhere, offline.",
    )
    sub.add_argument("bundle", **BUNDLE)
    add_page(sub, "report.html")
    option(
        sub,
        "--baseline BUNDLE",
        "also say what changed since this bundle: the machine before, or another one",
        Path,
    )
    sub.add_argument("--mode", **MODE)
    add_redact(sub)


def run_report(args: argparse.Namespace) -> int:
    from mmscope.reports.bundle.bundle import Bundle
    from mmscope.reports.bundle.redact import redacted, wanted_names, write_map
    from mmscope.reports.compare.comparison import compare
    from mmscope.reports.findings.findings import evaluate
    from mmscope.reports.page.missing import say_faults
    from mmscope.reports.page.report import check_name, render, write

    check_name(args.output)
    names = wanted_names(args)
    faults: list[Fault] = []
    bundles = [Bundle(path) for path in (args.bundle, args.baseline) if path is not None]
    with redacted(bundles, names) as (bundle, *baselines):
        verdict, comparison = evaluate(bundle), None
        for baseline in baselines:
            verdicts = evaluate(baseline), verdict
            comparison = compare(baseline, bundle, verdicts, draw=True)
        html = render(bundle, verdict, comparison, faults)
    write_map(names, args.redact_map)
    write(html, args.output, args.mode)
    if args.output.is_file():  # and no pipe, whose reader wants nothing but the page
        echo(f"{args.output}: {args.output.stat().st_size:,} bytes")
    return say_faults(faults, args.verbose)


def add_compare(command: Command) -> None:
    sub = command(
        "compare",
        "mmscope.reports.commands.compare_command:run",
        "compare bundles: mmscope compare A… -- B…",
        "Compare two bundles: what changed most; or two groups of hosts, a bundle each: medians "
        "and ranges of both. Several readings of one boot of a host count as one host, its "
        "counters over the time between them.",
    )
    sub.usage = "mmscope compare [options] BUNDLE… -- BUNDLE…"
    sub.add_argument("bundles", nargs="+", metavar="BUNDLE", help="A's bundles, --, B's bundles")
    add_format(sub)
    option(
        sub,
        "-o --output FILE",
        "also write it as HTML; of one bundle a side, B's report with A as its baseline",
        Path,
    )
    sub.add_argument("--mode", **MODE)
    add_redact(sub)
