# SPDX-License-Identifier: LGPL-2.1-or-later
"""A fleet on the terminal: its findings, its hosts, and tables of all of them."""

import argparse
import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import duckdb

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.tables.rows import Column
from mmscope.drgn.tables.terminal import print_prose, print_rows
from mmscope.reports.bundle.database import connect, in_a_line
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError, did_you_mean, say
from mmscope.reports.findings.question import HIDES, load_questions
from mmscope.reports.fleet.fleet import (
    Fleet,
    FleetFinding,
    Run,
    Share,
    ask_fleet,
    regressions,
    words,
)
from mmscope.reports.fleet.owners import owners, sentence, several
from mmscope.reports.lake.batch import MEMORY
from mmscope.reports.lake.catalog import Catalog, Taken, by_host, read_catalog
from mmscope.reports.lake.layout import OURS, File, whole_of

MOST_SAID = 20
MOST_OWNERS = 5

# Columns that are numbers, with their unit; the others are text.
NUMBERS = {
    **dict.fromkeys(("hosts", "fell", "checked", "bundles", "tables", "files", "rows"), ""),
    **{"bytes": "bytes", "worst_bytes": "bytes", "seconds": "s"},
}
# Rows as tuples, and the names of their columns.
Listing = tuple[str, Callable[[Any], Iterable[tuple[Any, ...]]]]


def catalog_of(args: argparse.Namespace, empty: bool = False) -> Catalog:
    """
    The bundles that the user wants.

    :raises UsageError: there are none, and that is not all right.
    """
    given = (args.since, args.until, args.host, args.kernel, args.label)
    catalog = read_catalog(args.lake, *given)
    if not (catalog.bundles or empty):
        say_some(catalog.said)
        raise UsageError(f"{args.lake}: no bundle is wanted by these options")
    return catalog


def say_some(lines: Sequence[str]) -> None:
    """Say what is wrong, a line each; of many, the first."""
    for line in lines[:MOST_SAID]:
        say(line)
    if len(lines) > MOST_SAID:
        say(f"and {len(lines) - MOST_SAID:,} more lines like these")


def when(seconds: float) -> str:
    """A point in time, as a person reads it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def print_fleet(args: argparse.Namespace) -> int:
    """``mmscope lake findings``."""
    questions = load_questions()
    for id in args.only or ():
        known = {question.id for question in questions}
        if id not in known:
            raise UsageError(f"no finding is called {id[:80]!r}{did_you_mean(id, known)}")
    if args.only:
        questions = [question for question in questions if question.id in args.only]
    catalog = catalog_of(args)
    # What grew between bundles is said where all is asked.
    all_asked = args.by == "owner" or (args.by, args.format) == ("finding", "table")
    with _engine(args) as (run, parts):
        fleet = ask_fleet(catalog, questions, all_asked and not args.only, run, parts)
    as_table = args.format == "table"
    title = headline(fleet) if as_table else ""
    _print(BY[args.by], fleet, args.format, title)
    if as_table:
        print_prose(rests_on(fleet))
        shared = () if args.by == "owner" else _shared(fleet)
        for line in (*_regressed(fleet), *shared, *_unchecked(fleet)):
            print_prose(line)
    return _end(fleet.said)


def _print(listing: Listing, of: Any, form: str, title: str = "") -> None:
    names, rows = listing
    described = []
    for name in names.split():
        unit = NUMBERS.get(name)
        kind = "string" if unit is None else "number" if unit == "s" else "integer"
        described.append(Column(name, kind, unit=unit or ""))
    print_rows(described, rows(of), form=form, title=title)


def by_name(listing: Listing, of: Any) -> Iterator[dict[str, Any]]:
    """Rows as dictionaries."""
    names, rows = listing
    return (dict(zip(names.split(), row, strict=True)) for row in rows(of))


def _end(said: Sequence[str]) -> int:
    say_some(said)
    return INCOMPLETE if said else DONE


@contextlib.contextmanager
def _engine(args: argparse.Namespace) -> Iterator[tuple[Run, int]]:
    """Start what asks portions, and say how many it asks at once."""
    if args.engine == "duckdb":
        yield map, 1
        return
    try:
        from mmscope.reports.fleet.spark import workers
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--engine spark: {error.name} is missing: pip install 'mmscope[spark]'"
        ) from error
    with workers(args.master) as found:
        yield found


def headline(fleet: Fleet) -> str:
    """
    Sum up on how many hosts there is trouble, and the worst of it.

    It never says that no trouble was found: what was out of sight on a host, its own report says.
    """
    asked = display.plural(len(fleet.hosts), "host")
    worse = [case for one in fleet.found if one.question.harm != HIDES for case in one.cases]
    ill = len({case.bundle.host for case in worse if case.severity != "notice"})
    found = f"Trouble on {ill:,} of {asked}" if ill else f"Nothing above a notice found on {asked}"
    if fleet.found:
        one = fleet.found[0]
        hosts = f"{len(one.cases):,} of {display.plural(len(one.checked), 'host')}"
        found += f"; worst: {display.prose(one.question.about)} ({one.severity}, on {hosts})"
    return found


def rests_on(fleet: Fleet) -> str:
    """Basis of the headline: findings, bundles, and checks."""
    found, of = display.plural(len(fleet.found), "finding"), display.plural(fleet.bundles, "bundle")
    return f"{found} in {of}; {_silent(fleet)}"


def _silent(fleet: Fleet) -> str:
    """Count checks that found nothing on any host, and those that each host had data for."""
    partly = {id for id, _ in fleet.unchecked}
    on_all = sum(question.id not in partly for question in fleet.silent)
    some = len(fleet.silent) - on_all
    said = f"{display.plural(on_all, 'check')} found nothing on all hosts"
    if some:
        said += f", {some:,} on those that have the data"
    if fleet.unasked:
        said += f"; {len(fleet.unasked):,} have no data on any host"
    return said


def _findings(fleet: Fleet) -> Iterator[tuple[Any, ...]]:
    for one in fleet.found:
        worst = one.cases[0]
        said = words(one, worst)
        title = said[0].title if said else one.question.about
        counts = len(one.cases), len(one.checked)
        yield one.severity, one.question.id, *counts, when(one.since), worst.bundle.host, title


def _by_group(
    fleet: Fleet, shares_of: Callable[[FleetFinding], dict[str, Share]]
) -> Iterator[tuple[Any, ...]]:
    for one in fleet.found:
        groups = sorted(shares_of(one).items(), key=lambda item: (-item[1].hosts, item[0]))
        for name, share in groups:
            yield one.question.id, name, *share


def _by_host(fleet: Fleet) -> Iterator[tuple[Any, ...]]:
    cases = [(case.bundle.host, one, case) for one in fleet.found for case in one.cases]
    for host, one, case in sorted(cases, key=lambda each: each[0]):
        since, taken = when(case.since), when(case.bundle.at)
        for said in words(one, case):
            yield host, case.bundle.kernel, said.severity, said.id, since, taken, said.title


def _by_owner(fleet: Fleet) -> Iterator[tuple[Any, ...]]:
    for one in owners(fleet):
        hosts = len(one.hosts), one.fell, one.checked
        worst = one.worst, one.worst_bytes, one.seconds[one.worst]
        yield one.what, one.name, one.grew, *hosts, one.bytes, *worst, one.finding


# Of hosts, those that have the finding, and those that could tell.
OF_GROUP = "finding group hosts checked"
BY: dict[str, Listing] = {
    "finding": ("severity finding hosts checked since worst_host title", _findings),
    "kernel": (OF_GROUP, lambda fleet: _by_group(fleet, lambda one: one.by_kernel)),
    "label": (OF_GROUP, lambda fleet: _by_group(fleet, lambda one: one.by_label)),
    # When all readings since had it, and when the one was taken that says so.
    "host": ("host kernel severity finding since taken title", _by_host),
    # Bytes are what the owner gained where it grew, and what it has elsewhere.
    "owner": (
        "what owner grew hosts fell checked bytes worst_host worst_bytes seconds finding",
        _by_owner,
    ),
}


def _shared(fleet: Fleet) -> Iterator[str]:
    """Owners of memory on several hosts; of many, the first."""
    found = several(owners(fleet))
    yield from map(sentence, found[:MOST_OWNERS])
    if len(found) > MOST_OWNERS:
        yield f"and {len(found) - MOST_OWNERS:,} more owners on several hosts: --by owner"


def _regressed(fleet: Fleet) -> Iterator[str]:
    for one, kernel, here, elsewhere, chance in regressions(fleet):
        yield (
            f"{one.question.id}: {here.hosts:,} of {here.checked:,} hosts with "
            f"{visible(display.prose(kernel))} have it, {elsewhere.hosts:,} of "
            f"{elsewhere.checked:,} with other kernels (p-value {chance:.1g})"
        )


def _unchecked(fleet: Fleet) -> Iterator[str]:
    """Count findings of which some hosts cannot tell; a line for each would be a wall."""
    ids = {id for id, _ in fleet.unchecked}
    if ids:
        yield (
            f"{display.plural(len(ids), 'finding')} could not be checked on all hosts; column "
            "checked says on how many"
        )


def print_table(args: argparse.Namespace) -> int:
    """``mmscope lake show``."""
    catalog = catalog_of(args, empty=True)
    if args.table in LISTS:
        _print(LISTS[args.table], catalog, args.format)
        return _end(catalog.said)
    said, described, rows_of_table = _table(catalog, args.table)
    print_rows(described, rows_of_table, form=args.format)
    return _end([*catalog.said, *said])


def labels_of(bundle: Taken) -> str:
    """The labels that were given when it was added."""
    return " ".join(f"{name}={value}" for name, value in sorted(bundle.labels.items()))


def _hosts(catalog: Catalog) -> Iterator[tuple[Any, ...]]:
    for host, bundles in sorted(by_host(catalog.bundles).items()):
        first, last = bundles[0], bundles[-1]
        rows = sum(bundle.rows for bundle in bundles)
        times = when(first.at), when(last.at)
        yield host, last.kernel, labels_of(last), len(bundles), *times, rows


def _bundles(catalog: Catalog) -> Iterator[tuple[Any, ...]]:
    for one in catalog.bundles:
        whose = one.id, one.host, one.kernel, when(one.at), one.version, labels_of(one)
        yield *whose, len(one.counts), one.rows, one.note


def _tables(catalog: Catalog) -> Iterator[tuple[Any, ...]]:
    by_table: dict[str, list[File]] = {}
    for file in catalog.files:
        if not file.table.startswith(OURS):
            by_table.setdefault(file.table, []).append(file)
    for table, files in sorted(by_table.items()):
        yield table, len(files), sum(file.rows for file in files), sum(file.size for file in files)


LISTS: dict[str, Listing] = {
    # Kernel and labels of the newest bundle, when the oldest and the newest were taken.
    "hosts": ("host kernel labels bundles first last rows", _hosts),
    "bundles": ("bundle host kernel taken version labels tables rows note", _bundles),
    "tables": ("table files rows bytes", _tables),
}


def _table(catalog: Catalog, table: str) -> tuple[list[str], list[Column], Iterable[Sequence[Any]]]:
    """
    A table's rows of all bundles that are wanted, with the host's name before them; and what is
    wrong with its files.
    """
    said, query, given = rows_query(catalog, table)
    kinds = {"BIGINT": "integer", "BOOLEAN": "boolean", "DOUBLE": "number"}
    try:
        result = connect(MEMORY, threads=None).execute(query, given)
    except duckdb.Error as error:
        raise UsageError(f"{catalog.lake}: table {table}: {in_a_line(error)}") from error
    described = [
        Column(name, kinds.get(str(kind), "string"), key=name == "host")
        for name, kind, *_ in result.description or ()
    ]
    return said, described, iter(result.fetchone, None)


def rows_query(catalog: Catalog, table: str) -> tuple[list[str], str, dict[str, Any]]:
    """
    Damage of a table's files, the query for its rows of all bundles, with the host's name and the
    time before them, and the values that the query is given.

    :raises UsageError: there is no such table.
    """
    files = [file for file in catalog.files if file.table == table]
    if not files or table.startswith(OURS):
        near = did_you_mean(table, {file.table for file in catalog.files})
        lists = f"; 'mmscope lake show {catalog.lake} tables' lists them"
        raise UsageError(f"{catalog.lake}: has no table {table[:80]}{near or lists}")
    catalog.lake.fetch(files)
    whole, faults = whole_of(catalog.lake, files)
    query = (
        "select b.host, b.taken, l.* exclude (lake_bundle, lake_host, lake_kernel, lake_boot, "
        "lake_labels) from read_parquet($paths, union_by_name = true, hive_partitioning = "
        "false) as l join (select unnest($ids::varchar[]) as lake_bundle, "
        "unnest($hosts::varchar[]) as host, unnest($taken::varchar[]) as taken) as b "
        "using (lake_bundle)"
    )
    given = {
        "paths": whole,
        "ids": [bundle.id for bundle in catalog.bundles],
        "hosts": [bundle.host for bundle in catalog.bundles],
        "taken": [when(bundle.at) for bundle in catalog.bundles],
    }
    return list(faults.values()), query, given
