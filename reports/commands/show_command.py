# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope show``: print tables of a bundle, views over them and stacks, or sections that are read
now.
"""

import argparse
import contextlib
import dataclasses
import heapq
import itertools
import json
import pkgutil
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import getitem
from pathlib import Path
from typing import Any, TypeVar

from mmscope.drgn.owners.page_owner_rows import PageOwnerStack
from mmscope.drgn.sections.section import Filled
from mmscope.drgn.tables.bounds import Machine, rows_that_cannot_be, told
from mmscope.drgn.tables.hostile_text import cut, echo, visible
from mmscope.drgn.tables.rows import Column, columns
from mmscope.drgn.tables.terminal import MAX_ROWS, print_prose, print_rows
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.bundle_format import new_tables
from mmscope.reports.bundle.description import DESCRIPTION, BundleError
from mmscope.reports.bundle.options import Command, add_format
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError, did_you_mean, say
from mmscope.reports.collect.run_section import machine_of, missing_sections, run_section
from mmscope.reports.commands import page_owner_command
from mmscope.reports.commands.target_options import (
    PLACES,
    SECTION_HELP,
    add_target_options,
    open_source,
)
from mmscope.reports.drawing.cells import leaf_first
from mmscope.reports.rows import owner_matrix

Row = TypeVar("Row")
# Of folded stacks, which are no table.
STACK_FORMATS = ("folded", "speedscope", "pprof")
# Of a matrix that is looked at.
MAX_CELLS = 2_000_000
# Keys by which rows follow each other.
IN_ORDER = {"time", "start", "start_pfn", "pfn", "address"}
# On a terminal, in characters.
GAP, MOST_HANDLE, LEAST_STACK, MOST_STACK = 3, 15, 30, 80


def add_command(command: Command) -> None:
    """Declare ``show``."""
    sub = command(
        "show",
        run_show,
        "print tables in the terminal",
        "Print a table of a bundle, or a section or table read from a target now. "
        "'mmscope show tables BUNDLE' lists the tables.",
    )
    sub.add_argument(
        "what",
        metavar="TABLE|SECTION",
        help="table of the bundle; without one, section or table to read",
    )
    sub.add_argument("bundle", nargs="?", type=Path, metavar="BUNDLE", help="bundle to read from")
    add_format(
        sub,
        STACK_FORMATS,
        "default: table; folded, speedscope, pprof: the stacks of profiles (all: 'profiles'), "
        "or of a table that has them (page_owner_stacks)",
    )
    sub.add_argument(
        "--reattribute",
        action="store_true",
        help="count samples of functions that enable interrupts again for their caller (folded, "
        "speedscope, pprof)",
    )
    add_target_options(sub)
    page_owner_command.add_cull_options(sub)


def run_show(args: argparse.Namespace) -> int:
    if args.bundle is None:
        return show_section(args)
    if args.what == "page_owner" and (args.bundle.is_file() or str(args.bundle) == "-"):
        return page_owner_command.run_show(args)
    if args.core or args.qemu or args.proc_root or args.symbols or args.all or args.careful:
        raise UsageError("give a BUNDLE or a target, not both")
    refuse_cull_options(args)
    bundle = Bundle(args.bundle)
    if args.format in STACK_FORMATS:
        return show_stacks(bundle, args.what, args.format, reattribute=args.reattribute)
    if args.what == "tables":
        titles = {table.name: cut(table.title, 200) for table in bundle.tables.values()}
        titles |= {name: f"{title} (computed)" for name, title in views_of(bundle).items()}
        for name, title in titles.items():
            print_prose(f"{name:24} {title}", indent=25)
        return DONE
    if args.what == owner_matrix.NAME and args.what not in bundle.tables:
        return show_matrix(bundle, args.format, args.top)
    if args.what not in bundle.tables and show_view(bundle, args.what, args.format, args.top):
        return DONE
    if args.what not in bundle.tables and args.what in new_tables(bundle):
        raise BundleError(
            f"{args.bundle}: has no table {args.what}: mmscope {bundle.version}, which wrote the "
            "bundle, does not know it"
        )
    return show_table(bundle, args.what, args.format, args.top)


def show_table(bundle: Bundle, what: str, form: str, top: int | None) -> int:
    """Print a table of a bundle; values in it that cannot be are marked."""
    shown = bundle.table(what)
    rows: Iterable[dict[str, Any]] = bundle.rows(what)
    try:
        marks = bundle.impossible(what)
    except BundleError:
        marks = []  # reading the rows says why
    total = bundle.count(what) if top and form == "table" else 0
    title = first_of(shown.title, top, total)
    if form == "table" and not marks:  # they go by the place of a row
        if top and top < total and (size := size_of(shown.columns)):
            rows = heapq.nlargest(top, rows, key=lambda row: row[size] or 0)
            title = most_of(shown.title, top, total, size)
        else:
            rows = zeros_last(rows, shown.columns, getitem)
    cells = itertools.islice(([row[c.name] for c in shown.columns] for row in rows), top)
    most = max(top or 0, MAX_ROWS)
    print_rows(shown.columns, cells, form=form, title=title, marks=marks, most=most)
    for words in told(marks):
        say(words)
    return INCOMPLETE if marks else DONE


def refuse_cull_options(args: argparse.Namespace) -> None:
    """
    Refuse options that count a page_owner file: they do nothing to a table.

    :raises UsageError: it was asked for.
    """
    if args.cull or args.sort or page_owner_command.selection_of(args) is not None:
        raise UsageError("--cull, --sort and the selection are for page_owner files")


def measured(described: Sequence[Column]) -> list[str]:
    """Names of what is no name of a row, and a number."""
    return [c.name for c in described if not c.key and c.type in ("integer", "number")]


def zeros_last(
    rows: Iterable[Row], described: Sequence[Column], get: Callable[[Row, str], Any]
) -> Iterator[Row]:
    """
    Rows, and behind them those that are zero in all that was measured.

    :param get: gives a row's value in a column.
    """
    names, zeros = measured(described), []
    for row in rows:
        if names and all(get(row, name) == 0 for name in names):
            zeros.append(row)
        else:
            yield row
    yield from zeros


def size_of(described: Sequence[Column]) -> str:
    """
    The column of sizes by which the first rows are chosen; empty where a table has several or none,
    or its rows stand in the order of times or addresses.
    """
    if any(c.key and c.name in IN_ORDER for c in described):
        return ""
    sizes = [c.name for c in described if c.type == "integer" and c.unit in ("pages", "bytes")]
    return sizes[0] if len(sizes) == 1 else ""


def most_of(title: str, top: int, total: int, size: str) -> str:
    """A table's title, with which of its rows are shown."""
    return f"{title}: the {top:,} of {total:,} with most {size.replace('_', ' ')}"


def first_of(title: str, top: int | None, total: int) -> str:
    """A table's title, with what is left out of it."""
    return f"{title}: the first {top:,} of {total:,}" if top and top < total else title


def show_stacks(bundle: Bundle, what: str, form: str, *, reattribute: bool) -> int:
    """Print stacks of recordings, or of a table that has them, for other tools."""
    from mmscope.reports.profiles.exported_stacks import stack_sets

    sets = stack_sets(bundle, what, reattribute=reattribute)
    if form == "pprof":
        from mmscope.perf.pprof import pprof

        if sys.stdout.isatty():
            raise UsageError("pprof's files are binary: write it to one, > FILE")
        sys.stdout.buffer.write(pprof(sets, f"mmscope: {what}", bundle.captured))
        return DONE
    if form == "speedscope":
        from mmscope.perf.speedscope import speedscope

        json.dump(speedscope(sets, f"mmscope: {what}"), sys.stdout)
        echo()
        return DONE
    if what in bundle.tables and what != "profiles":
        sets = sets[:1]  # several amounts of the same stacks do not add up
    for name, _, stacks in sets:
        for stack, value in stacks:
            # A root frame distinguishes several.
            echo(visible(f"{name};{stack}" if len(sets) > 1 else stack), value)
    return DONE


def views_of(bundle: Bundle) -> dict[str, str]:
    """
    Name and title of what is computed from a bundle's tables, where that has rows; without DuckDB,
    of the matrix.
    """
    found = {owner_matrix.NAME: owner_matrix.TITLE} if owner_matrix.NEEDS in bundle.tables else {}
    try:
        import duckdb

        from mmscope.reports.bundle.database import open_database
        from mmscope.reports.bundle.views import views
    except ImportError:
        return found
    database = open_database(bundle)
    for name, title, _ in views():
        # What cannot be computed says why when it is asked for.
        with contextlib.suppress(duckdb.Error):
            if name in database.missing or not database.rows(f"select 1 from {name} limit 1"):
                continue
        found[name] = title
    return found


STACK_COLUMNS = tuple(
    column for column in columns(PageOwnerStack) if column.name in owner_matrix.STACK_COLUMNS
)


def show_matrix(bundle: Bundle, form: str, top: int | None) -> int:
    """Print the pages of each stack at each reading; on a terminal, of the readings that fit."""
    if owner_matrix.NEEDS not in bundle.tables:
        raise BundleError(
            f"{bundle.path}: has no {owner_matrix.NAME}, which is made of a series: give several "
            "files to 'mmscope page-owner', or sample with 'mmscope watch'"
        )

    try:
        points = owner_matrix.points_of(bundle.rows(owner_matrix.NEEDS))
        snapshots = bundle.rows_if_any("page_owner_snapshots")
        readings = owner_matrix.readings_of(snapshots, bundle.rows(owner_matrix.NEEDS))
        grown = "page_owner_growth" in bundle.tables
        stacks = bundle.rows_if_any("page_owner_stacks")
        made = owner_matrix.matrix(stacks, points, readings, grown=grown)
        found = itertools.islice(made, top)
        if form == "table":
            most = min(MAX_ROWS, MAX_CELLS // (len(readings) + 1) + 1)
            print_matrix(list(itertools.islice(found, most)), readings, len(points), grown)
            return DONE
        described = [*STACK_COLUMNS, *(Column(reading.name, "integer") for reading in readings)]
        cells = ([*(stack.get(c.name) for c in STACK_COLUMNS), *pages] for stack, pages in found)
        print_rows(described, cells, form=form)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise BundleError(f"{bundle.path}: {owner_matrix.NEEDS} is damaged: {error!r}") from error
    return DONE


def print_matrix(
    found: Sequence[tuple[owner_matrix.Row, list[int | None]]],
    readings: Sequence[owner_matrix.Reading],
    stacks: int,
    grown: bool,
) -> None:
    """The matrix as a table to look at."""
    shown = list(range(len(readings)))
    if sys.stdout.isatty():
        width = shutil.get_terminal_size((100, 24)).columns
        most = max((n or 0 for _, pages in found for n in pages), default=0)
        each = max(map(len, [f"{most:,}", *(reading.short for reading in readings)])) + GAP
        room = width - MOST_HANDLE - GAP - min(max(LEAST_STACK, width // 3), MOST_STACK)
        shown = owner_matrix.spread(len(readings), room // each)
    handle, *_ = STACK_COLUMNS
    title = first_of(owner_matrix.TITLE, len(found), stacks)
    ends = f"; {readings[0].name} to {readings[-1].name}" if readings else ""
    stack = next(column for column in STACK_COLUMNS if column.name == "stack")
    print_rows(
        [handle, *(Column(readings[at].short, "integer") for at in shown), stack],
        [
            [
                row["handle"],
                *(pages[at] for at in shown),
                leaf_first(row["stack"]) if row.get("stack") else row.get("note"),
            ]
            for row, pages in found
        ],
        title=cut(f"{title}{ends}"),
    )
    if not grown:
        say("the order of the readings is unknown: nothing is called growth")
    if left := len(readings) - len(shown):
        say(
            f"{len(shown)} of {len(readings):,} readings fit, the first and the last among them; "
            f"{left:,} are left out, --format csv and json have all"
        )


def show_view(bundle: Bundle, name: str, form: str, top: int | None) -> bool:
    """Print a view over a bundle's tables; False if it does not exist."""
    try:
        import duckdb

        from mmscope.reports.bundle.database import failed, open_database, view_columns
        from mmscope.reports.bundle.views import views
    except ImportError:
        return False
    titles = {view: title for view, title, _ in views()}
    if name not in titles:
        return False
    database = open_database(bundle)
    if name in database.missing:
        return False
    try:
        cells = [list(row.values()) for row in database.rows(f"select * from {name}")]
    except duckdb.Error as error:
        why = failed(database, error, bundle.tables)
        raise BundleError(f"{bundle.path}: {name} cannot be computed: {why}") from error
    title = first_of(titles[name], top, len(cells))
    print_rows(
        view_columns(database, name),
        cells[:top],
        form=form,
        title=title,
        most=max(top or 0, MAX_ROWS),
    )
    return True


def show_section(args: argparse.Namespace) -> int:
    name, table = args.what, None
    if name not in PLACES:
        name, table = section_of(args.what), args.what
    refuse_cull_options(args)
    spec = pkgutil.resolve_name(PLACES[name])
    source, _, _ = open_source(args)
    machine = machine_of(source)
    section, found = run_section(spec, source, machine, verbose=args.verbose)
    tables = [
        first_rows(filled, args.top, args.format)
        for filled in found.tables
        if table is None or filled.table.name == table
    ]
    print_tables(tables, args.format, machine)
    return missing_sections([section], False)


def first_rows(filled: Filled, top: int | None, form: str) -> Filled:
    """So many rows of a table that was read; to look at, those with most of its only size."""
    if form != "table":
        return filled.first(top)
    total, size = len(filled.rows), size_of(columns(filled.table.row))
    if not top or top >= total or not size:
        rows = list(zeros_last(filled.rows, columns(filled.table.row), getattr))
        return dataclasses.replace(filled, rows=rows).first(top)
    rows = heapq.nlargest(top, filled.rows, key=lambda row: getattr(row, size) or 0)
    title = most_of(filled.title or filled.table.title, top, total, size)
    return dataclasses.replace(filled, rows=rows, title=title)


def section_of(table: str) -> str:
    """
    The section that reads a table.

    :raises UsageError: none does.
    """
    from mmscope.drgn.sections.registry import SECTIONS

    for name, section in SECTIONS.items():
        if any(each.name == table for each in section.tables):
            return name
    if (Path(table) / DESCRIPTION).is_file():
        raise UsageError(f"{table}: a bundle; 'mmscope show tables {table}' lists its tables")
    known = {*SECTIONS, *(each.name for section in SECTIONS.values() for each in section.tables)}
    near = did_you_mean(table, sorted(known)) or f"; {SECTION_HELP}"
    raise UsageError(f"{table}: no such section or table, and no bundle given to show one of{near}")


def print_tables(tables: Sequence[Filled], form: str, machine: Machine) -> None:
    """
    Print a section's tables: JSON is one object of them, CSV has an empty line between them.

    :param machine: that they are of: what cannot be of its numbers is marked.
    """
    as_json = form == "json"
    for position, filled in enumerate(tables):
        table, rows = filled.table, filled.rows
        if as_json:
            echo("," if position else "{", f"{json.dumps(table.name)}:", end=" ")
        elif position:
            echo()
        described = columns(table.row)
        names = [c.name for c in described]
        cells = ([getattr(row, name) for name in names] for row in rows)
        marks = rows_that_cannot_be(table.name, described, rows, machine) if form == "table" else []
        print_rows(described, cells, form=form, title=filled.title or table.title, marks=marks)
    if as_json:
        echo("}" if tables else "{}")
