# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner's text as the tables of a bundle, and as lines on a terminal.

``mmscope page-owner`` reads files, ``mmscope watch`` takes them; both end here.
"""

import argparse
import datetime
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mmscope.drgn.owners.page_owner_rows import (
    OTHER_TASKS,
    PageOwnerGfp,
    PageOwnerGrowth,
    PageOwnerMemcg,
    PageOwnerMigratetype,
    PageOwnerMigration,
    PageOwnerOrder,
    PageOwnerPoint,
    PageOwnerSnapshot,
    PageOwnerStack,
    PageOwnerTask,
)
from mmscope.drgn.tables.display import aligned, percent, plural, share, size
from mmscope.drgn.tables.hostile_text import echo, visible
from mmscope.drgn.tables.table import table_of
from mmscope.drgn.text.owner_frames import owner_frame
from mmscope.drgn.text.page_owner_series import Growth, Series, growth_rows, point_rows
from mmscope.drgn.text.page_owner_text import Selection, Tally, not_kept
from mmscope.drgn.text.stack_text import folded
from mmscope.reports.bundle.description import FACTS, Cell, SectionResult
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, say
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.findings_said import print_findings

if TYPE_CHECKING:
    from mmscope.reports.bundle.redact import RedactingWriter

SECTION = "page_owner"
TOP = 20
OTHERS = "(others, beyond the limit of what is kept)"


def text(data: bytes | None) -> str | None:
    """Bytes of anybody's choice as text."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def stacks_of(series: Series) -> list[tuple[int, int]]:
    """(handle, pages in the last snapshot) of every stack of any snapshot, most first."""
    found = [(handle, max(runs[-1], 0)) for handle, runs in series.history.items()]
    return sorted(found, key=lambda stack: (-stack[1], stack[0]))


def stack_row(series: Series, handle: int, pages: int) -> tuple[Any, ...]:
    """A stack as a row of :class:`PageOwnerStack`."""
    printed = series.stacks.get(handle)
    stack = folded(printed) if printed else None
    owner, module = owner_frame(stack) if stack else (None, None)
    allocations, note = series.allocations.get(handle), series.notes.get(handle)
    return handle, pages, allocations, owner, module, stack, note


def growth_of(series: Series) -> list[Growth]:
    """Growth of the stacks, those that gained most first; empty where that is unknown."""
    if not series.growth_known:
        return []
    return sorted(growth_rows(series), key=lambda row: (-row.gained, row.handle))


def not_understood(records: int) -> str:
    """Records of a text that are no page_owner's, in words."""
    one, many = "record was not understood and is", "records were not understood and are"
    return f"{plural(records, one, many)} not counted"


def notes_of(series: Series) -> tuple[list[str], list[str]]:
    """(what keeps the section from being whole, what is to be known of it)."""
    notes = []
    skipped = sum(snapshot.skipped for snapshot in series.snapshots)
    if skipped:
        notes.append(not_understood(skipped))
    if cut := [snapshot.source for snapshot in series.snapshots if snapshot.truncated]:
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        notes.append(f"{cut[0]}{more}: the last record was cut short and is not counted")
    if series.unresolved:
        notes.append(
            f"{plural(series.unresolved, 'handle has', 'handles have')} no stack; give "
            "show_stacks_handles with --stacks, read after the last snapshot"
        )
    reused = sum(note.startswith("reused") for note in series.notes.values())
    if reused:
        handles = plural(reused, "handle was", "handles were")
        notes.append(f"{handles} reused: files of different boots?")
    remarks = []
    if len(series.snapshots) > 1 and not series.growth_known:
        last = series.snapshots[-1].source
        notes.append(f"{series.time_source}; the amounts are those of {last}")
    else:
        remarks.append(f"times: {series.time_source}")
    if series.tally is not None:
        if series.tally["sorted"]:
            remarks += ["page_owner_sort keeps no times, and of tasks only what it culled by"]
        else:
            remarks += [f"this kernel prints {what}" for what in not_kept(series.tally["members"])]
        if unknown := series.tally["unknown_lines"]:
            words = plural(unknown, "unknown line in records was", "unknown lines in records were")
            remarks.append(f"{words} skipped")
    if any(handle >> 48 for handle in series.stacks):
        remarks.append("no handles in the text: ids are made from the stacks' text")
    return notes, remarks


def print_top(
    series: Series,
    stacks: list[tuple[int, int]],
    growth: list[Growth],
    page_size: int,
    *,
    top: int = TOP,
) -> None:
    """The stacks with most pages, and those that grew most: a line each."""
    whole = sum(pages for _, pages in stacks)
    echo(f"{whole:,} pages {size(whole * page_size)} by {len(stacks):,} stacks")
    held = [
        (f"{pages:,}", size(pages * page_size), share(pages, whole), _name(series, handle))
        for handle, pages in stacks[:top]
        if pages
    ]
    echo(*aligned(("pages", "size", "share", "owner"), held), sep="\n")
    grown = [
        (
            f"{row.gained:,}",
            size(row.gained * page_size),
            "-" if row.slope is None else f"{row.slope:,.3f}",
            percent(row.steadiness),
            _name(series, row.handle),
        )
        for row in [row for row in growth if row.gained > 0][:top]
    ]
    if grown:
        heads = ("gained", "size", "pages/s", "steady", "owner")
        echo("", *aligned(heads, grown), sep="\n")


def _name(series: Series, handle: int) -> str:
    """Name a stack in a line: its owner frame, the one that called it, its module."""
    *_, owner, module, stack, note = stack_row(series, handle, 0)
    if stack is None:
        return visible(f"handle {handle}: {note}")
    names = [frame.partition(" [")[0] for frame in stack.split(";")]
    at = len(names) - 1 - names[::-1].index(owner)
    caller = f" < {names[at - 1]}" if at else ""
    module = f" [{module}]" if module else ""
    note = f" ({note})" if note else ""
    return visible(f"{owner}{module}{caller}{note}")


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
            **dict.fromkeys(FACTS),
            "kind": "files",
            "page_size": page_size,
            "captured_at": captured,
            "total_pages": args.total_pages,
            "source": ", ".join(dict.fromkeys(s.source for s in series.snapshots[:3])),
        }
        if not args.page_size:
            section = section.with_words(f"page size {page_size} assumed, as of this machine")
        writer.finish(described, [section])
    print_top(series, stacks, growth, page_size, top=args.top)
    print_findings(args.output, (SECTION,))
    if section.status != "ok":
        say(f"{section.section}: {section.status}: {section.message}")
    return DONE if section.status == "ok" else INCOMPLETE


def write_tables(
    writer: "Writer | RedactingWriter", series: Series, page_size: int | None, *, seconds: float
) -> tuple[SectionResult, list[tuple[int, int]], list[Growth]]:
    """Write everything about page_owner; returns the section, the stacks and their growth."""
    begin = time.monotonic()
    stacks, growth = stacks_of(series), growth_of(series)

    def held() -> Iterator[tuple[Any, ...]]:
        return (stack_row(series, *stack) for stack in stacks)

    tables: list[tuple[type, Iterable[tuple[Any, ...]]]] = [(PageOwnerStack, held())]
    if series.growth_known:
        tables.append((PageOwnerGrowth, growth))
    if len(series.snapshots) > 1:
        tables.append((PageOwnerPoint, point_rows(series)))
    tables.append((PageOwnerSnapshot, snapshot_rows(series)))
    if series.tally is not None:
        tables += breakdowns(series.tally)
    written = sum(
        writer.table(table_of(row).name, table_of(row).title, row, made, section=SECTION)
        for row, made in tables
    )
    unit = page_size or 1
    writer.folded(
        "page_owner",
        "Allocation stacks, width in " + ("bytes" if page_size else "pages"),
        ((stack, pages * unit) for _, pages, _, _, _, stack, _ in held() if stack and pages),
        unit="bytes" if page_size else "pages",
        section=SECTION,
    )
    spent = seconds + time.monotonic() - begin
    return SectionResult.of(SECTION, *notes_of(series), spent, written), stacks, growth


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


def breakdowns(tally: Tally) -> Iterator[tuple[type, list[tuple[Any, ...]]]]:
    """Tables of what only ``page_owner`` has, and their rows."""

    def cells(key: Any) -> Iterator[Any]:
        for part in key if isinstance(key, tuple) else (key,):
            yield text(part) if isinstance(part, bytes) else part

    # What is counted, and the cells of what is beyond the limit.
    tables: tuple[tuple[type, dict[Any, Any], tuple[Any, ...]], ...] = (
        (PageOwnerTask, tally["tasks"], (None, None, OTHER_TASKS)),
        (PageOwnerOrder, tally["orders"], ()),
        (PageOwnerGfp, tally["gfp"], (OTHERS, "")),
        (PageOwnerMigratetype, tally["migratetypes"], (OTHERS, OTHERS)),
        (PageOwnerMemcg, tally["memcgs"], (OTHERS, False, False, False)),
        (PageOwnerMigration, tally["migrated"], (OTHERS,)),
    )
    for row, counted, others in tables:
        if row is PageOwnerTask and "pid" not in tally["members"]:
            continue
        by_order = row is PageOwnerOrder
        ordered = sorted(counted.items()) if by_order else _most_first(counted)
        yield row, [(*(others if key is None else cells(key)), *held) for key, held in ordered]


# Selecting, as the kernel's tools/mm/page_owner_sort.c does


COUNTED = ("pages", "allocations", "first_ts", "last_ts")
SORTS: dict[str, Callable[[int, int, int | None, int | None], int]] = {
    "pages": lambda pages, times, first, last: -pages,
    "times": lambda pages, times, first, last: -times,
    "ts": lambda pages, times, first, last: first or 0,
}


def culled_rows(
    tally: Tally, selection: Selection, sort: str, top: int
) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]], int]:
    """
    Count by the selection's keys: (columns with their types, rows, how many more).

    :param sort: pages, times, ts, or one of the keys.
    """
    # Names, even if they are numbers: no thousands separators.
    described = [(name, "string") for name in selection.cull]
    described += [(name, "integer") for name in COUNTED]
    found: list[tuple[list[Any], list[Any]]] = []
    for key, counted in tally["culled"].items():
        cells: list[Any] = []
        for name, value in zip(selection.cull, key or [None] * len(selection.cull), strict=True):
            if isinstance(value, bytes):
                value = folded(value) if name == "stack" else text(value)
            elif name == "stack" and value is not None:
                value = f"handle {value}"
            cells.append(value)
        found.append((cells, [*counted]))
    if sort in SORTS:
        found.sort(key=lambda culled: SORTS[sort](*culled[1]))
    else:
        at = selection.cull.index(sort)
        found.sort(key=lambda culled: (culled[0][at] is None, culled[0][at]))
    rows = [(*cells, *counted) for cells, counted in found[:top]]
    return described, rows, max(len(found) - top, 0)
