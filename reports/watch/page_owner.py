# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner's text as the tables of a bundle, and as lines on a terminal.

``mmscope page-owner`` reads files, ``mmscope watch`` takes them; both end here.
"""

from __future__ import annotations

import time

from mmscope.drgn.owners.owner_frames import owner_frame
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.text.page_owner_series import growth_rows, point_rows
from mmscope.drgn.text.stack_text import folded

TYPE_CHECKING = False
if TYPE_CHECKING:  # as in page_owner_command
    from collections.abc import Callable, Iterable, Iterator
    from typing import IO, Any

    from mmscope.drgn.text.page_owner_series import Series
    from mmscope.drgn.text.page_owner_text import Selection, Tally
    from mmscope.reports.bundle.bundle import Section, Writer

SECTION = "page_owner"
TOP = 20


def text(data: bytes | None) -> str | None:
    """Bytes of anybody's choice as text."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


class Stack:
    """What is known of one stack of the last snapshot. Its names are looked at when asked for."""

    __slots__ = ("allocations", "handle", "note", "pages", "printed")

    def __init__(self, handle: int, pages: int, series: Series) -> None:
        self.handle, self.pages = handle, pages
        self.allocations = series.allocations.get(handle)
        self.printed = series.stacks.get(handle)
        self.note = series.notes.get(handle)

    @property
    def stack(self) -> str | None:
        """``root;…;leaf``; None if it is not known."""
        return folded(self.printed) if self.printed else None

    def row(self) -> tuple[Any, ...]:
        """As :class:`mmscope.drgn.owners.page_owner_rows.PageOwnerStack`."""
        stack = self.stack
        owner, module = owner_frame(stack) if stack else (None, None)
        return self.handle, self.pages, self.allocations, owner, module, stack, self.note


def stacks_of(series: Series) -> list[Stack]:
    """Every stack of any snapshot with its pages in the last one, most first."""
    found = [Stack(handle, max(runs[-1], 0), series) for handle, runs in series.history.items()]
    return sorted(found, key=lambda stack: (-stack.pages, stack.handle))


def notes_of(series: Series) -> tuple[list[str], list[str]]:
    """(what keeps the section from being whole, what is to be known of it)."""
    notes = []
    skipped = sum(snapshot.skipped for snapshot in series.snapshots)
    if skipped:
        notes.append(f"{skipped:,} records were not understood and are not counted")
    if cut := [snapshot.source for snapshot in series.snapshots if snapshot.truncated]:
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        notes.append(f"{cut[0]}{more}: the last record was cut short and is not counted")
    if series.unresolved:
        notes.append(
            f"{series.unresolved:,} handles have no stack; give show_stacks_handles with --stacks, "
            "read after the last snapshot"
        )
    reused = sum(note.startswith("reused") for note in series.notes.values())
    if reused:
        notes.append(f"{reused:,} handles were reused: files of different boots?")
    remarks = [f"times: {series.time_source}"]
    if series.tally is not None and series.tally["unknown_lines"]:
        remarks.append(f"{series.tally['unknown_lines']:,} unknown lines in records were skipped")
    if any(handle >> 48 for handle in series.stacks):
        remarks.append("no handles in the text: ids are made from the stacks' text")
    return notes, remarks


def write_tables(
    writer: Writer, series: Series, page_size: int | None, *, seconds: float
) -> tuple[Section, list[Stack], list[tuple[Any, ...]]]:
    """Write everything about page_owner; returns the section, the stacks and their growth."""
    # The declarations of the rows take as long to import as many a file takes to read.
    from mmscope.drgn.owners import page_owner_rows as rows
    from mmscope.reports.bundle.bundle import Section

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
    growth = []
    if len(series.snapshots) > 1:
        growth = sorted(growth_rows(series), key=lambda row: (-row[GAINED], row[0]))
        table("page_owner_growth", "Growth by allocation stack", rows.PageOwnerGrowth, growth)
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
        Section(SECTION, "partial" if notes else "ok", spent, written, 0, message),
        stacks,
        growth,
    )


GAINED = 8  # of PageOwnerGrowth


def snapshot_rows(series: Series) -> Iterator[tuple[Any, ...]]:
    """Rows of :class:`mmscope.drgn.owners.page_owner_rows.PageOwnerSnapshot`."""
    import datetime

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
        )


def breakdowns(tally: Tally) -> Iterator[tuple[str, str, type, Iterable[tuple[Any, ...]]]]:
    """(name, title, row type, rows) of what only ``page_owner`` tells."""
    from mmscope.drgn.owners import page_owner_rows as rows

    def most_first(counted: dict[Any, Any]) -> list[tuple[Any, list[int]]]:
        return sorted(counted.items(), key=lambda item: -item[1][0])

    yield (
        "page_owner_tasks",
        "Pages by task",
        rows.PageOwnerTask,
        [
            (key[0], key[1], text(key[2]), *row) if key else (None, None, OTHER_TASKS, *row)
            for key, row in most_first(tally["tasks"])
        ],
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
            (text(key[0]), text(key[1]), *row) if key else (OTHERS, "", *row)
            for key, row in most_first(tally["gfp"])
        ],
    )
    yield (
        "page_owner_migratetypes",
        "Pages by migratetype, and their pageblock's",
        rows.PageOwnerMigratetype,
        [
            (text(key[0]), text(key[1]), *row) if key else (OTHERS, OTHERS, *row)
            for key, row in most_first(tally["migratetypes"])
        ],
    )
    yield (
        "page_owner_memcgs",
        "Pages by memory cgroup",
        rows.PageOwnerMemcg,
        [
            (text(key[0]), *key[1:], *row) if key else (OTHERS, False, False, False, *row)
            for key, row in most_first(tally["memcgs"])
        ],
    )
    yield (
        "page_owner_migrations",
        "Pages migrated since",
        rows.PageOwnerMigration,
        [(text(key) if key else OTHERS, *row) for key, row in most_first(tally["migrated"])],
    )


OTHERS = "(others, beyond the limit of what is kept)"
OTHER_TASKS = "(other tasks, beyond the limit of what is kept)"


def size(pages: int, page_size: int | None) -> str:
    """Pages in the unit that suits them."""
    if page_size is None:
        return ""
    value = float(pages * page_size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def print_top(
    stacks: list[Stack],
    growth: list[tuple[Any, ...]],
    page_size: int | None,
    *,
    top: int = TOP,
    file: IO[str] | None = None,
) -> None:
    """The stacks with most pages, and those that grew most: a line each."""
    pages = sum(stack.pages for stack in stacks)
    print(f"{pages:,} pages {size(pages, page_size)} by {len(stacks):,} stacks", file=file)
    head = f"{'pages':>12}  {'size':>10}  {'share':>6}  owner"
    print(head, file=file)
    for stack in stacks[:top]:
        if stack.pages:
            share = f"{100 * stack.pages / pages:.1f} %"
            line = f"{stack.pages:>12,}  {size(stack.pages, page_size):>10}  {share:>6}  "
            print(line + _name(stack), file=file)
    grown = [row for row in growth if row[GAINED] > 0][:top]
    if not grown:
        return
    by_handle = {stack.handle: stack for stack in stacks}
    print(f"\n{'gained':>12}  {'size':>10}  {'pages/s':>10}  {'steady':>7}  owner", file=file)
    for row in grown:
        slope = "-" if row[9] is None else f"{row[9]:,.3f}"
        line = f"{row[GAINED]:>12,}  {size(row[GAINED], page_size):>10}  {slope:>10}  "
        steady = f"{100 * row[10]:.0f} %"
        print(f"{line}{steady:>7}  {_name(by_handle[row[0]])}", file=file)


def _name(stack: Stack) -> str:
    """Who a stack is, in a line: its owner frame, the one that called it, its module."""
    printed = stack.stack
    if printed is None:
        return visible(f"handle {stack.handle}: {stack.note}")
    owner, module = owner_frame(printed)
    names = [frame.partition(" [")[0] for frame in printed.split(";")]
    at = len(names) - 1 - names[::-1].index(owner)
    caller = f" < {names[at - 1]}" if at else ""
    module = f" [{module}]" if module else ""
    note = f" ({stack.note})" if stack.note else ""
    return visible(f"{owner}{module}{caller}{note}")


# Selecting, as the kernel's tools/mm/page_owner_sort.c does

SORTS: dict[str, Callable[[Any], Any]] = {
    "pages": lambda row: -row[-4],
    "times": lambda row: -row[-3],
    "ts": lambda row: row[-2],
}


def culled_rows(
    tally: Tally, selection: Selection, sort: str, top: int
) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]], int]:
    """
    What was counted by the selection's keys: (columns with their types, rows, how many more).

    :param sort: pages, times, ts, or one of the keys.
    """
    # Names, even if they are numbers: no thousands separators.
    described = [(name, "string") for name in selection.cull]
    described += [(name, "integer") for name in ("pages", "allocations", "first_ts", "last_ts")]
    rows = []
    for key, row in tally["culled"].items():
        cells: list[Any] = []
        for name, value in zip(selection.cull, key or [None] * len(selection.cull), strict=True):
            if isinstance(value, bytes):
                value = folded(value) if name == "stack" else text(value)
            elif name == "stack" and value is not None:
                value = f"handle {value}"
            cells.append(value)
        rows.append((*cells, *row))
    if sort in SORTS:
        rows.sort(key=SORTS[sort])
    else:
        at = selection.cull.index(sort)
        rows.sort(key=lambda row: (row[at] is None, row[at]))
    return described, rows[:top], max(len(rows) - top, 0)
