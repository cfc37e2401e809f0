# SPDX-License-Identifier: LGPL-2.1-or-later
"""page_owner's text as the tables of a bundle."""

import argparse
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mmscope.drgn.owners import page_owner as rows
from mmscope.drgn.text.page_owner_series import Growth, Series, point_rows
from mmscope.drgn.text.page_owner_text import Tally
from mmscope.drgn.text.stack_text import folded
from mmscope.reports.bundle.description import Cell, SectionResult
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, say
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.findings_said import print_findings
from mmscope.reports.watch.page_owner import (
    SECTION,
    Stack,
    growth_of,
    notes_of,
    print_top,
    stacks_of,
    text,
)

OTHERS = "(others, beyond the limit of what is kept)"
OTHER_TASKS = "(other tasks, beyond the limit of what is kept)"


def write_bundle(args: argparse.Namespace, read: Callable[[], Series], page_size: int) -> int:
    """Write the bundle, print what stands out, and say what is missing; returns the exit code."""
    # Refuses what is in the way before the work.
    with Writer(args.output, replace=args.force, mode=args.mode) as writer:
        begin = time.monotonic()
        series = read()
        section, stacks, growth = write_tables(
            writer, series, page_size, seconds=time.monotonic() - begin
        )
        captured = None
        if series.absolute:
            moment = datetime.datetime.fromtimestamp(int(series.absolute[-1]), datetime.UTC)
            captured = moment.isoformat()
        described: dict[str, Cell] = {
            "kind": "files",
            "release": None,
            "architecture": None,
            "page_size": page_size,
            "hostname": None,
            "captured_at": captured,
            "uptime_seconds": None,
            "total_pages": args.total_pages,
            "online_cpus": None,
            "source": ", ".join(dict.fromkeys(s.source for s in series.snapshots[:3])),
        }
        if not args.page_size:
            assumed = f"page size {page_size} assumed, as of this machine"
            message = "; ".join(filter(None, (section.message, assumed)))
            section = dataclasses.replace(section, message=message)
        writer.finish(described, [section])
    print_top(stacks, growth, page_size, top=args.top)
    print_findings(args.output, (SECTION,))
    if section.status != "ok":
        say(f"{section.section}: {section.status}: {section.message}")
    return DONE if section.status == "ok" else INCOMPLETE


def write_tables(
    writer: Writer, series: Series, page_size: int | None, *, seconds: float
) -> tuple[SectionResult, list[Stack], list[Growth]]:
    """Write everything about page_owner; returns the section, the stacks and their growth."""
    begin = time.monotonic()
    stacks = stacks_of(series)
    written = 0

    def table(name: str, title: str, row_type: type, cells: Iterable[tuple[Any, ...]]) -> None:
        nonlocal written
        written += writer.table(name, title, row_type, cells, section=SECTION)

    table(
        "page_owner_stacks",
        "Pages by allocation stack",
        rows.PageOwnerStack,
        (stack.row() for stack in stacks),
    )
    growth = growth_of(series)
    if series.growth_known:
        table("page_owner_growth", "Growth by allocation stack", rows.PageOwnerGrowth, growth)
    if len(series.snapshots) > 1:
        table(
            "page_owner_series",
            "Pages by allocation stack over time",
            rows.PageOwnerPoint,
            point_rows(series),
        )
    table("page_owner_snapshots", "Snapshots", rows.PageOwnerSnapshot, snapshot_rows(series))
    if series.tally is not None:
        for name, title, row_type, cells in breakdowns(series.tally):
            table(name, title, row_type, cells)
    unit = page_size or 1
    writer.folded(
        "page_owner",
        "Allocation stacks, width in " + ("bytes" if page_size else "pages"),
        ((folded(s.printed), s.pages * unit) for s in stacks if s.printed and s.pages),
        unit="bytes" if page_size else "pages",
        section=SECTION,
    )
    notes, remarks = notes_of(series)
    spent = round(seconds + time.monotonic() - begin, 3)
    message = "; ".join(notes + remarks) or None
    return (
        SectionResult(SECTION, "partial" if notes else "ok", spent, written, 0, message),
        stacks,
        growth,
    )


def snapshot_rows(series: Series) -> Iterator[tuple[Any, ...]]:
    """Rows of :class:`page_owner.PageOwnerSnapshot`."""
    for position, snapshot in enumerate(series.snapshots):
        at = None
        if series.absolute:
            moment = datetime.datetime.fromtimestamp(series.absolute[position], datetime.UTC)
            at = moment.isoformat(timespec="milliseconds")
        yield (
            series.times[position],
            at,
            snapshot.source,
            snapshot.kind,
            snapshot.stacks,
            snapshot.pages,
            snapshot.skipped,
            snapshot.truncated,
            series.ordered_by,
        )


def _most_first(counted: dict[Any, Any]) -> list[tuple[Any, list[int]]]:
    def by_pages(item: tuple[Any, list[int]]) -> tuple[Any, ...]:
        key, (pages, _) = item
        # As many of several: by what they are, None first; of the rest, last.
        return -pages, key is None, [(value is not None, value) for value in key or ()]

    return sorted(counted.items(), key=by_pages)


def breakdowns(tally: Tally) -> Iterator[tuple[str, str, type, Iterable[tuple[Any, ...]]]]:
    """(name, title, row type, rows) of what only ``page_owner`` has."""

    def task(key: tuple[int, int, bytes] | None) -> tuple[Any, ...]:
        pid, tgid, comm = key or (None, None, None)
        return pid, tgid, text(comm) if key else OTHER_TASKS

    def memcg(key: tuple[bytes | None, bool, bool, bool] | None) -> tuple[Any, ...]:
        name, *flags = key or (None, False, False, False)
        return text(name) if key else OTHERS, *flags

    if "pid" in tally["members"]:
        yield (
            "page_owner_tasks",
            "Pages by task",
            rows.PageOwnerTask,
            [(*task(key), *row) for key, row in _most_first(tally["tasks"])],
        )
    yield (
        "page_owner_orders",
        "Pages by order",
        rows.PageOwnerOrder,
        [(order, *row) for order, row in sorted(tally["orders"].items())],
    )
    yield (
        "page_owner_gfp",
        "Pages by gfp mask",
        rows.PageOwnerGfp,
        [
            (*map(text, key), *row) if key else (OTHERS, "", *row)
            for key, row in _most_first(tally["gfp"])
        ],
    )
    yield (
        "page_owner_migratetypes",
        "Pages by migratetype, and their pageblock's",
        rows.PageOwnerMigratetype,
        [
            (*map(text, key), *row) if key else (OTHERS, OTHERS, *row)
            for key, row in _most_first(tally["migratetypes"])
        ],
    )
    yield (
        "page_owner_memcgs",
        "Pages by memory cgroup",
        rows.PageOwnerMemcg,
        [(*memcg(key), *row) for key, row in _most_first(tally["memcgs"])],
    )
    yield (
        "page_owner_migrations",
        "Pages migrated since",
        rows.PageOwnerMigration,
        [(text(key) if key else OTHERS, *row) for key, row in _most_first(tally["migrated"])],
    )
