# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope compare``: two bundles, or two groups of hosts, held against each other."""

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import echo
from mmscope.drgn.tables.rows import Column, columns
from mmscope.drgn.tables.terminal import AMOUNT, print_prose, print_rows
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError
from mmscope.reports.bundle.redact import Names, redacted, wanted_names, write_map
from mmscope.reports.commands.command import VERSUS
from mmscope.reports.compare import groups_view
from mmscope.reports.compare.comparison import compare
from mmscope.reports.compare.comparison_view import view
from mmscope.reports.compare.groups_view import amount, signed, unit_of
from mmscope.reports.compare.host_groups import as_rows, groups_of, hosts_of, parts_of, unlike
from mmscope.reports.compare.host_measures import WORDS, Group, Host, Measured
from mmscope.reports.compare.relation import same_names
from mmscope.reports.drawing.class_looks import label
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.missing import say_faults
from mmscope.reports.page.report import check_name, page, render, write

# Hosts have more columns than anybody sees side by side: so wide may a table be in a pipe, too.
PIPED_WIDTH = 120
RECORDED_TITLE = "Recorded, by order and by caller"
# Name, title, columns and rows of each.
Tables = list[tuple[str, str, list[Column], list[list[Any]]]]


def run(args: argparse.Namespace) -> int:
    """
    Compare the bundles of two sides; returns the exit code.

    :raises UsageError: these are not two sides.
    :raises BundleError: no bundle of a side can be read.
    """
    if args.bundles.count(VERSUS) != 1:
        raise UsageError("give two sides: mmscope compare A… -- B…")
    middle = args.bundles.index(VERSUS)
    sides = args.bundles[:middle], args.bundles[middle + 1 :]
    if not all(sides):
        raise UsageError("a side has no bundle: mmscope compare A… -- B…")
    names = wanted_names(args)
    if args.output is not None:
        check_name(args.output)
    errors: list[str] = []
    opened = [(name, _opened(paths, errors)) for name, paths in zip("AB", sides, strict=True)]
    for error in errors:
        echo(f"mmscope: {error}", file=sys.stderr)
    for name, bundles in opened:
        if not bundles:
            raise BundleError(f"side {name}: no bundle of it can be read")
    hosts = hosts_of(opened)
    if names is not None:
        hosts = [_redacted(host, names) for host in hosts]
    every = [bundle for _, bundles in opened for bundle in bundles]
    notes = unlike(hosts, same_names=same_names(every))
    words = [note[:1].upper() + note[1:] + "." for note in notes]
    groups, parts = groups_of(hosts), parts_of(hosts)
    faults: list[Fault] = []
    tables, same = _tables(groups, parts, hosts, args.format)
    if all(len(side) == 1 for side in sides):
        with redacted(every, names) as shown:
            before, after = shown
            changes, dates = _changes(args, before, after, words, faults)
        if args.format == "table":
            # One host a side is what the measures have; where the memory went comes first.
            tables = [
                *changes,
                ("groups", "Measures", *_pair(groups, dates)),
                ("recorded", RECORDED_TITLE, *_pair(parts, dates)),
            ]
            same = _same(groups)
        else:
            tables += changes
    else:
        drawn = groups_view.view(hosts, groups, notes, parts)
        words.insert(0, drawn["sentence"])
        if args.output is not None:
            words.append(_written(page("groups.html", view=drawn), args))
    _print(tables, words, args.format)
    _print_last(same, groups_view.lacks(groups, hosts), args.format)
    code = max(say_faults(faults, args.verbose), INCOMPLETE if errors else DONE)
    write_map(names, args.redact_map)
    return code


def _written(html: str, args: argparse.Namespace) -> str:
    """Write the page that is asked for; returns words about it."""
    write(html, args.output, args.mode)
    return f"{args.output}: {args.output.stat().st_size:,} bytes"


def _tables(
    groups: Sequence[Group], parts: Sequence[Group], hosts: Sequence[Host], form: str
) -> tuple[Tables, list[str]]:
    """Tables of groups of hosts, all of them for a program; and lines on what is the same."""
    if form == "table":
        return [
            ("groups", "A against B: medians and ranges", *_groups(groups, hosts)),
            ("recorded", RECORDED_TITLE, *_groups(parts, [])),
            ("hosts", "Hosts", *_hosts(hosts)),
        ], _same_on_all(groups, hosts)
    tables: Tables = [
        ("groups", "A against B", columns(Group), as_rows(Group, groups)),
        ("hosts", "Hosts", columns(Host), as_rows(Host, hosts)),
    ]
    if parts:
        tables.append(("recorded", RECORDED_TITLE, columns(Group), as_rows(Group, parts)))
    return tables, []


def _print_last(same: Sequence[str], lacks: Sequence[str], form: str) -> None:
    """Print what the tables do not have, to stderr where a program reads the tables."""
    for texts in filter(None, (same, lacks)):
        if form == "table":
            echo()
        for text in texts:
            print_prose(text, file=sys.stdout if form == "table" else sys.stderr)


def _redacted(host: Measured, names: Names) -> Measured:
    """A host with its names replaced: a group's bundles hold no others that are shown."""
    texts = {c.name: (c.holds, getattr(host, c.name)) for c in columns(Host) if c.holds}
    replaced: dict[str, Any] = {
        name: text and names.text(holds, text) for name, (holds, text) in texts.items()
    }
    return dataclasses.replace(host, **replaced)


def _opened(paths: Sequence[str], errors: list[str]) -> list[Bundle]:
    """The bundles that can be opened."""
    bundles = []
    for path in paths:
        try:
            bundles.append(Bundle(Path(path)))
        except BundleError as error:
            errors.append(str(error))
    return bundles


def _changes(
    args: argparse.Namespace,
    before: Bundle,
    after: Bundle,
    words: list[str],
    faults: list[Fault],
) -> tuple[Tables, tuple[str, str]]:
    """Tables of what changed most, and what a reader calls the two; write the report, if wanted."""
    verdicts = evaluate(before), evaluate(after)
    comparison = compare(before, after, verdicts, draw=args.output is not None)
    shown = view(comparison)
    dates, as_table = comparison.relation.dates, args.format == "table"
    # What a program asks for has the same name whenever it was read.
    sides = dates if as_table else comparison.relation.sides
    words[:0] = [shown.sentence, *filter(None, [shown.ledger]), *comparison.relation.words]
    if args.output is not None:
        words.append(_written(render(after, verdicts[1], comparison, faults=faults), args))
    findings = [
        [
            item.words,
            item.finding.severity,
            display.prose(item.finding.title),
            display.prose(item.other[1].title) if item.other else None,
        ]
        for item in shown.findings
    ]
    # How much the classes of memory grew, and who most of it is.
    ledger = [
        [
            label(step.name) if as_table else step.name,
            display.size(step.before),
            display.size(step.after),
            display.signed_size(step.difference),
            step.owner and f"{step.owner}: {display.signed_size(step.owner_bytes)}",
            step.table,
        ]
        for step in (comparison.ledger.steps if comparison.ledger else [])
    ]
    tops = [[top.table.name, top.what, top.before, top.after, top.difference] for top in shown.tops]
    amounts = _amounts(*sides, "difference")
    other = "other side" if as_table else "other_side"
    described = _texts("change", "severity", "title", other)
    if as_table and not any(row[-1] for row in findings):
        described, findings = described[:-1], [row[:-1] for row in findings]
    changes: Tables = [
        (
            "ledger",
            "Where the memory went",
            [*_texts("class"), *amounts, *_texts("most of it", "table")],
            ledger,
        ),
        (
            "findings",
            "Findings that changed",
            described,
            findings,
        ),
        ("changes", "What changed most", [*_texts("table", "row"), *amounts], tops),
    ]
    return changes, dates


def _print(tables: Tables, words: list[str], form: str) -> None:
    """Tables on the terminal; JSON is one object of them, CSV has an empty line between them."""
    for text in words:
        # A program reads the tables alone.
        print_prose(display.prose(text), file=sys.stdout if form == "table" else sys.stderr)
    for position, (name, title, described, rows) in enumerate(tables):
        if form == "table" and not rows:
            continue
        if form == "json":
            echo("," if position else "{", f"{json.dumps(name)}:", end=" ")
        elif position or form == "table":
            echo()
        print_rows(described, rows, form=form, title=title, piped_width=PIPED_WIDTH)
    if form == "json":
        echo("}")


def _groups(rows: Sequence[Group], hosts: Sequence[Host]) -> tuple[list[Column], list[list[Any]]]:
    """Both sides as a reader wants them; what is the same on every host is left out."""
    described = [
        *_texts("measure", "A", "B"),
        *_amounts("difference", "p-value"),
    ]
    cells = [
        [
            WORDS.get(row.measure, row.measure),
            *groups_view.sides(row),
            None if row.difference is None else signed(row),
            None
            if row.chance is None
            else groups_view.p_value(row.chance) + (", differs" if row.differs else ""),
        ]
        for row in groups_view.with_numbers(rows)
        if not groups_view.equal(row, len(hosts))
    ]
    known = [any(row[at] is not None for row in cells) for at in range(len(described))]
    return list(itertools.compress(described, known)), [
        list(itertools.compress(row, known)) for row in cells
    ]


def _same_on_all(groups: Sequence[Group], hosts: Sequence[Host]) -> list[str]:
    """One line on what is the same on every host."""
    _, same = groups_view.heads_of(hosts)
    said = [f"{name} {text}" for name, text in same]
    said += _values(row for row in groups if groups_view.equal(row, len(hosts)))
    return [f"The same on every host: {'; '.join(said)}."] if said else []


def _values(rows: Iterable[Group]) -> list[str]:
    return [f"{WORDS[row.measure]} {amount(row.a_median, row.unit)}" for row in rows]


def _pair(rows: Sequence[Group], dates: tuple[str, str]) -> tuple[list[Column], list[list[Any]]]:
    """One bundle a side: what differs, or is known of one alone."""
    return [*_texts("measure"), *_amounts(*dates, "difference")], [
        [
            WORDS.get(row.measure, row.measure),
            amount(row.a_median, row.unit),
            amount(row.b_median, row.unit),
            None if row.difference is None else signed(row),
        ]
        for row in rows
        if row.a_median != row.b_median
    ]


def _same(rows: Sequence[Group]) -> list[str]:
    """The measures that two bundles agree in, in one line."""
    same = _values(row for row in rows if row.a_median == row.b_median and row.a_median is not None)
    return [f"The same in both: {'; '.join(same)}."] if same else []


def _hosts(rows: Sequence[Host]) -> tuple[list[Column], list[list[Any]]]:
    """A line for each host; what no host has, or all have alike, is left out."""
    described, _ = groups_view.heads_of(rows)
    units = [unit_of(c) for c in described]
    heads = [
        (_amounts if c.type in ("integer", "number") else _texts)(groups_view.head(c))
        for c in described
    ]
    return [column for head in heads for column in head], [
        [amount(getattr(host, c.name), unit) for c, unit in zip(described, units, strict=True)]
        for host in rows
    ]


def _texts(*names: str) -> list[Column]:
    return [Column(name, "string") for name in names]


def _amounts(*names: str) -> list[Column]:
    """Columns of numbers that have their unit with them."""
    return [Column(name, AMOUNT) for name in names]
