# SPDX-License-Identifier: LGPL-2.1-or-later
"""A fleet on the terminal: its findings, its hosts, and tables of all of them."""

import argparse
import contextlib
import dataclasses
import datetime
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.tables.rows import Column, column, columns, table_row
from mmscope.drgn.tables.terminal import print_rows
from mmscope.reports.bundle.database import in_a_line
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError, say
from mmscope.reports.findings.findings import load_questions
from mmscope.reports.fleet.fleet import Fleet, Share, Told, ask_fleet, regressions, words
from mmscope.reports.fleet.owners import Owner, owners, sentence, several
from mmscope.reports.lake.asking import Engine
from mmscope.reports.lake.batch import Batch
from mmscope.reports.lake.catalog import Catalog, Taken, Wanted, literal, read_catalog
from mmscope.reports.lake.layout import OURS, torn

MOST_SAID = 20
MOST_OWNERS = 5


@table_row
class FleetFinding:
    """A finding over all hosts."""

    severity: str = column(holds="words", help="that of the worst host")
    finding: str = column(holds="words", key=True, help="the finding")
    hosts: int = column(help="hosts that have it")
    checked: int = column(help="hosts that could tell")
    since: str = column(holds="words", help="when the first of them had it, of their readings")
    worst_host: str = column(holds="host", help="the host that has it worst")
    title: str = column(holds="words", help="what is said of that host")


@table_row
class FindingByGroup:
    """How many hosts of a group have a finding."""

    finding: str = column(holds="words", key=True, help="the finding")
    group: str = column(holds="words", key=True, help="kernel release, or label")
    hosts: int = column(help="hosts of the group that have it")
    checked: int = column(help="hosts of the group that could tell")


@table_row
class FindingOfHost:
    """A finding of a host."""

    host: str = column(holds="host", key=True, help="the host")
    kernel: str = column(holds="kernel", help="its release")
    severity: str = column(holds="words", help="how severe it is")
    finding: str = column(holds="words", key=True, help="the finding")
    since: str = column(holds="words", help="the reading since which all that could tell had it")
    taken: str = column(holds="words", help="when the reading was taken that says so")
    title: str = column(holds="words", help="what is said of it")


@table_row
class FindingByOwner:
    """Whose memory it is on how many hosts."""

    what: str = column(holds="words", key=True, help="what the owner is")
    owner: str = column(holds="kernel", key=True, help="whose memory it is")
    grew: bool = column(key=True, help="bytes are what it gained, not what it has")
    hosts: int = column(help="hosts on which it grew, or is large")
    fell: int | None = column(help="hosts on which it fell; empty: not looked at")
    checked: int = column(help="hosts that could tell")
    bytes: int | None = column(unit="bytes", help="on all of them")
    worst_host: str = column(holds="host", help="where it is most")
    worst_bytes: int | None = column(unit="bytes", help="what it is there")
    seconds: float | None = column(unit="s", help="in which it grew there")
    finding: str = column(holds="words", key=True, help="which says so; empty: the memory ledger")


@table_row
class HostSummary:
    """A host of a lake."""

    host: str = column(holds="host", key=True, help="the host")
    kernel: str = column(holds="kernel", help="release, in its newest bundle")
    labels: str = column(holds="label", help="of its newest bundle")
    bundles: int = column(help="bundles of it")
    first: str = column(holds="words", help="when the oldest was taken")
    last: str = column(holds="words", help="when the newest was taken")
    rows: int = column(help="rows of all of them")


@table_row
class BundleSummary:
    """A bundle of a lake."""

    bundle: str = column(holds="words", key=True, help="its id")
    host: str = column(holds="host", help="whose it is")
    kernel: str = column(holds="kernel", help="release")
    taken: str = column(holds="words", help="when it was taken")
    version: str = column(holds="words", help="the mmscope that wrote it")
    labels: str = column(holds="label", help="given when it was added")
    tables: int = column(help="tables")
    rows: int = column(help="rows of all of them")
    note: str = column(holds="words", help="what was odd when it was added")


@table_row
class TableSummary:
    """A table of a lake."""

    table: str = column(holds="words", key=True, help="its name")
    files: int = column(help="Parquet files")
    rows: int = column(help="rows of all hosts")
    bytes: int = column(unit="bytes", help="size of the files")


def wanted_of(args: argparse.Namespace) -> Wanted:
    """Which bundles the user wants."""
    return Wanted(args.since, args.until, tuple(args.host), tuple(args.kernel), tuple(args.label))


def say_some(lines: Iterable[str]) -> None:
    """What is wrong, a line each; of many, the first."""
    lines = list(lines)
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
    if args.only:
        known = {question.id for question in questions}
        for id in args.only:
            if id not in known:
                raise UsageError(f"no finding is called {id[:80]!r}; reports/findings has them")
        questions = [question for question in questions if question.id in args.only]
    catalog = read_catalog(args.lake, wanted_of(args))
    if not catalog.bundles:
        raise UsageError(f"{args.lake}: no bundle is wanted by these options")
    with _engine(args, catalog) as engine:
        # What grew between bundles is said where all is asked.
        told = args.by == "owner" or (args.by, args.format) == ("finding", "table")
        ledgers = told and not args.only
        fleet = ask_fleet(catalog, questions, engine, ledgers=ledgers)
    row_type, rows = _rows(fleet, args.by)
    title = "" if args.format != "table" else headline(fleet)
    print_rows(columns(row_type), map(dataclasses.astuple, rows), form=args.format, title=title)
    if args.format == "table":
        shared = () if args.by == "owner" else _shared(fleet)
        for line in (*_regressed(fleet), *shared, *_unchecked(fleet)):
            print(line)
    say_some(fleet.said)
    return INCOMPLETE if fleet.said else DONE


@contextlib.contextmanager
def _engine(
    args: argparse.Namespace, catalog: Catalog
) -> Iterator[Callable[[Batch], Engine] | None]:
    """What runs the queries; None: DuckDB."""
    if args.engine == "duckdb":
        yield None
        return
    try:
        from mmscope.reports.fleet.spark import session, spark_engine
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--engine spark: {error.name} is missing: pip install 'mmscope[spark]'"
        ) from error
    with session(args.master) as spark:
        yield lambda batch: spark_engine(spark, catalog, batch)


def headline(fleet: Fleet) -> str:
    """What was asked, and what came of it."""
    asked = display.plural(len(fleet.hosts), "host")
    of = display.plural(fleet.bundles, "bundle")
    ill = len({case.bundle.host for one in fleet.told for case in one.cases})
    found = f"{ill:,} {'has' if ill == 1 else 'have'} {display.plural(len(fleet.told), 'finding')}"
    if fleet.told:
        one = fleet.told[0]
        hosts = f"{len(one.cases):,} of {display.plural(one.checked, 'host')}"
        found += f", worst: {display.prose(one.question.about)} ({one.severity}, on {hosts})"
    return f"{asked} by {of}: {found}; {_clear(fleet)}"


def _clear(fleet: Fleet) -> str:
    """What no host has, and of how many of these each host could be asked."""
    partly = {id for id, _ in fleet.unchecked}
    all_asked = sum(question.id not in partly for question in fleet.clear)
    some = len(fleet.clear) - all_asked
    said = f"{all_asked:,} {'is' if all_asked == 1 else 'are'} clear on all hosts"
    if some:
        said += f", {some:,} on those that could be asked"
    if fleet.unasked:
        said += f"; {len(fleet.unasked):,} could be asked of none"
    return said


def _rows(fleet: Fleet, by: str) -> tuple[type, Iterator[Any]]:
    if by == "kernel":
        return FindingByGroup, _groups(fleet.told, lambda one: one.by_kernel)
    if by == "label":
        return FindingByGroup, _groups(fleet.told, lambda one: one.by_label)
    if by == "host":
        return FindingOfHost, _of_hosts(fleet)
    if by == "owner":
        return FindingByOwner, map(_owner_row, owners(fleet))
    return FleetFinding, map(_finding_row, fleet.told)


def _finding_row(one: Told) -> FleetFinding:
    worst = one.cases[0]
    said = words(one, worst)
    return FleetFinding(
        one.severity,
        one.question.id,
        len(one.cases),
        one.checked,
        when(one.since),
        worst.bundle.host,
        said[0].title if said else one.question.about,
    )


def _groups(told: Iterable[Told], shares: Any) -> Iterator[FindingByGroup]:
    for one in told:
        groups: dict[str, Share] = shares(one)
        for name, share in sorted(groups.items(), key=lambda item: (-item[1].hosts, item[0])):
            yield FindingByGroup(one.question.id, name, share.hosts, share.checked)


def _of_hosts(fleet: Fleet) -> Iterator[FindingOfHost]:
    of_host = [(case.bundle.host, one, case) for one in fleet.told for case in one.cases]
    for host, one, case in sorted(of_host, key=lambda each: each[0]):
        for finding in words(one, case):
            yield FindingOfHost(
                host,
                case.bundle.kernel,
                finding.severity,
                finding.id,
                when(case.since),
                when(case.bundle.at),
                finding.title,
            )


def _owner_row(one: Owner) -> FindingByOwner:
    return FindingByOwner(
        one.what,
        one.name,
        one.grew,
        len(one.hosts),
        one.fell,
        one.checked,
        one.bytes,
        one.worst,
        one.worst_bytes,
        one.seconds[one.worst],
        one.finding,
    )


def _shared(fleet: Fleet) -> Iterator[str]:
    """Who takes memory on several hosts; of many, the first."""
    found = several(owners(fleet))
    yield from map(sentence, found[:MOST_OWNERS])
    if len(found) > MOST_OWNERS:
        yield f"and {len(found) - MOST_OWNERS:,} more owners on several hosts: --by owner"


def _regressed(fleet: Fleet) -> Iterator[str]:
    for each in regressions(fleet):
        yield (
            f"{each.told.question.id}: {each.here.hosts:,} of {each.here.checked:,} hosts with "
            f"{visible(display.prose(each.kernel))} have it, {each.elsewhere.hosts:,} of "
            f"{each.elsewhere.checked:,} with other kernels (by chance: {each.chance:.1g})"
        )


def _unchecked(fleet: Fleet) -> Iterator[str]:
    """How many hosts could not tell, finding by finding, would be a wall: the reasons' sum."""
    ids = {id for id, _ in fleet.unchecked}
    if ids:
        yield (
            f"Of {display.plural(len(ids), 'finding')} some hosts cannot tell; column checked says "
            "how many can"
        )


def print_table(args: argparse.Namespace) -> int:
    """``mmscope lake show``."""
    catalog = read_catalog(args.lake, wanted_of(args))
    said = list(catalog.said)
    if args.table == "hosts":
        described, rows = _listed(HostSummary, _hosts(catalog))
    elif args.table == "bundles":
        described, rows = _listed(BundleSummary, map(_bundle, catalog.bundles))
    elif args.table == "tables":
        described, rows = _listed(TableSummary, _tables(catalog))
    else:
        described, rows = _table(catalog, args.table, said)
    print_rows(described, rows, form=args.format)
    say_some(said)
    return INCOMPLETE if said else DONE


def _listed(row_type: type, rows: Iterable[Any]) -> tuple[list[Column], Iterable[Sequence[Any]]]:
    return columns(row_type), map(dataclasses.astuple, rows)


def labels_of(bundle: Taken) -> str:
    """The labels that were given when it was added."""
    return " ".join(f"{name}={value}" for name, value in sorted(bundle.labels.items()))


def _hosts(catalog: Catalog) -> Iterator[HostSummary]:
    by_host: dict[str, list[Taken]] = {}
    for bundle in catalog.bundles:
        by_host.setdefault(bundle.host, []).append(bundle)
    for host, bundles in sorted(by_host.items()):
        last = bundles[-1]
        rows = sum(bundle.rows for bundle in bundles)
        yield HostSummary(host, last.kernel, labels_of(last), len(bundles), when(bundles[0].at),
                          when(last.at), rows)  # fmt: skip


def _bundle(bundle: Taken) -> BundleSummary:
    return BundleSummary(
        bundle.id,
        bundle.host,
        bundle.kernel,
        when(bundle.at),
        bundle.version,
        labels_of(bundle),
        len(bundle.counts),
        bundle.rows,
        bundle.note,
    )


def _tables(catalog: Catalog) -> Iterator[TableSummary]:
    files = [file for file in catalog.files if not file.table.startswith(OURS)]
    for table, group in itertools.groupby(sorted(files), key=lambda file: file.table):
        several = list(group)
        yield TableSummary(
            table,
            len(several),
            sum(file.rows for file in several),
            sum(file.size for file in several),
        )


def _table(
    catalog: Catalog, table: str, said: list[str]
) -> tuple[list[Column], Iterable[Sequence[Any]]]:
    """A table's rows of all bundles that are wanted, with the host's name before them."""
    import duckdb

    files = [file for file in catalog.files if file.table == table]
    if not files or table.startswith(OURS):
        raise UsageError(
            f"{catalog.lake}: has no table {table[:80]}; 'mmscope lake show {catalog.lake} tables' "
            "lists them"
        )
    catalog.lake.fetch(files)
    whole = [file for file in files if not torn(catalog.lake, file)]
    said += [why for file in files if (why := torn(catalog.lake, file))]
    kinds = {"BIGINT": "integer", "BOOLEAN": "boolean", "DOUBLE": "number"}
    try:
        result = duckdb.connect(":memory:").execute(
            "select b.host, b.taken, l.* exclude (lake_bundle, lake_host, lake_kernel, lake_boot, "
            "lake_labels) from read_parquet($paths, union_by_name = true, hive_partitioning = "
            "false) as l join (select unnest($ids::varchar[]) as lake_bundle, "
            "unnest($hosts::varchar[]) as host, unnest($taken::varchar[]) as taken) as b "
            "using (lake_bundle)",
            {
                "paths": [literal(catalog.lake.path(file)) for file in whole],
                "ids": [bundle.id for bundle in catalog.bundles],
                "hosts": [bundle.host for bundle in catalog.bundles],
                "taken": [when(bundle.at) for bundle in catalog.bundles],
            },
        )
    except duckdb.Error as error:
        raise UsageError(f"{catalog.lake}: table {table}: {in_a_line(error)}") from error
    described = [
        Column(name, kinds.get(str(kind), "string"), True, "", "", name == "host")
        for name, kind, *_ in result.description or ()
    ]
    return described, iter(result.fetchone, None)
