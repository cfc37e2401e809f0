# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope lake``: its commands and their options.

Imports no drgn, numpy, rich or duckdb. Exit codes as of ``mmscope``.
"""

import argparse
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.hostile_text import echo
from mmscope.reports.bundle.options import (
    BUNDLE,
    MODE,
    Command,
    add_format,
    add_page,
    add_redact,
    at_least_one,
    declaring,
    option,
)
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, say

# What findings are counted by.
BY = ("finding", "kernel", "label", "host", "owner")
ENGINES = ("duckdb", "spark")


def place(text: str) -> str | Path:
    """A lake's folder, or its URL in object storage."""
    return text if "://" in text else Path(text)


LAKE: dict[str, Any] = {
    "type": place,
    "metavar": "LAKE",
    "help": "a folder, or s3://BUCKET/PREFIX",
}


def add_command(command: Command) -> None:
    """Declare ``lake``."""
    sub = command(
        "lake",
        run_add,
        "keep the bundles of many hosts as Parquet, and ask them as one",
        "A lake is Parquet files, in a folder or in object storage (s3://…), that hold the bundles "
        "of many hosts. All hosts are checked at once: how many have each finding, since "
        "when, which host is worst, on which kernels.",
    )
    action = declaring(sub.add_subparsers(required=True, metavar="ACTION"))
    _declare_add(action)
    _declare_findings(action)
    _declare_report(action)
    _declare_show(action)


def _declare_add(action: Command) -> None:
    sub = action(
        "add",
        run_add,
        "add bundles",
        "Add bundles to a lake, a folder or s3://BUCKET/PREFIX, which is made if it is not "
        "there. A bundle that is in it already is not added again. Several may add at once.",
    )
    sub.add_argument("bundles", nargs="+", **BUNDLE)
    sub.add_argument("lake", **LAKE)
    _add_label(sub, "what these hosts are, as role=db; may be given several times")
    option(
        sub,
        "--host NAME",
        "the name under which one host is kept, whatever its own is, and also if --redact "
        "replaces that",
    )
    option(sub, "--jobs N", "processes that read bundles; default: one a CPU", at_least_one)
    add_redact(sub)


def _declare_findings(action: Command) -> None:
    sub = action(
        "findings",
        "mmscope.reports.fleet.fleet_text:print_fleet",
        "say what is wrong on how many hosts",
        "Run all checks on all bundles. Each host is judged by its newest usable bundle.",
    )
    sub.add_argument("lake", **LAKE)
    _add_wanted(sub)
    sub.add_argument(
        "--by",
        choices=BY,
        default="finding",
        help="a row each; default: finding. owner: whose memory it is: a stack, a cache, a caller, "
        "a class of the memory ledger or a holder of pages that grew between two bundles of a boot",
    )
    option(sub, "--only FINDING", "of these alone", action="append")
    sub.add_argument(
        "--engine",
        choices=ENGINES,
        default="duckdb",
        help="what runs the queries; default: duckdb. spark needs mmscope[spark] and Java",
    )
    option(
        sub,
        "--master URL",
        "of Spark, as spark://host:7077; workers see the lake under the same path. Default: "
        "local[*]",
        default="local[*]",
    )
    add_format(sub)


def _declare_report(action: Command) -> None:
    sub = action(
        "report",
        "mmscope.reports.fleet.fleet_page:write_fleet",
        "write what is wrong on how many hosts as one HTML page",
        "Write a page that is complete in itself: findings by how many hosts have them, since "
        "when, worst hosts, kernels and labels, what could not be asked, all hosts.",
    )
    sub.add_argument("lake", **LAKE)
    add_page(sub, "fleet.html")
    option(
        sub,
        "--reports FOLDER",
        "of hosts' own reports, HOST.html or BUNDLE-ID.html each, which the page links to",
        Path,
    )
    sub.add_argument("--mode", **MODE)
    _add_wanted(sub)


def _declare_show(action: Command) -> None:
    sub = action(
        "show",
        "mmscope.reports.fleet.fleet_text:print_table",
        "list the hosts, or print a table of all of them",
        "Without TABLE, list the hosts of a lake; with it, print its rows of all hosts, or of "
        "those that are wanted. 'bundles' lists the bundles, 'tables' the tables.",
    )
    sub.add_argument("lake", **LAKE)
    sub.add_argument("table", nargs="?", default="hosts", metavar="TABLE", help="default: hosts")
    _add_wanted(sub)
    add_format(sub)


def _add_wanted(sub: argparse.ArgumentParser) -> None:
    """Declare the options that choose bundles."""
    option(sub, "--since DAY", "bundles of this day, 2026-11-23, and later")
    option(sub, "--until DAY", "bundles of this day and earlier")
    option(sub, "--host NAME", "of these hosts", default=[], action="append")
    option(sub, "--kernel RELEASE", "of these kernels", default=[], action="append")
    _add_label(sub, "of hosts that have all of these")


def _add_label(sub: argparse.ArgumentParser, help: str) -> None:
    option(sub, "--label NAME=VALUE", help, label, [], action="append")


def label(text: str) -> tuple[str, str]:
    """
    The value of ``--label``.

    :raises ValueError: it is none.
    """
    name, equals, value = text.partition("=")
    if not (name and equals and name.isprintable() and value.isprintable() and len(text) <= 200):
        raise ValueError(text)
    return name, value


def run_add(args: argparse.Namespace) -> int:
    from mmscope.reports.bundle.redact import wanted_names, write_map
    from mmscope.reports.lake.adding import add

    names = wanted_names(args)
    added, before, whole = add(
        args.lake, args.bundles, say, args.label, args.host, names, args.jobs
    )
    write_map(names, args.redact_map)
    known = f", {before:,} were there already" if before else ""
    echo(f"{args.lake}: {added:,} added{known}")
    return DONE if whole else INCOMPLETE
