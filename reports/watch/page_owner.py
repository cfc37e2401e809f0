# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner's text as the tables of a bundle, and as lines on a terminal.

``mmscope page-owner`` reads files, ``mmscope watch`` takes them; both end here.
"""

from collections.abc import Callable
from typing import IO, Any, NamedTuple

from mmscope.drgn.owners.owner_frames import owner_frame
from mmscope.drgn.tables.amounts import aligned, percent, share, size
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.text.page_owner_series import Growth, Series, growth_rows
from mmscope.drgn.text.page_owner_text import Selection, Tally, not_kept
from mmscope.drgn.text.stack_text import folded

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
        """As :class:`page_owner.PageOwnerStack`."""
        stack = self.stack
        owner, module = owner_frame(stack) if stack else (None, None)
        return self.handle, self.pages, self.allocations, owner, module, stack, self.note


def stacks_of(series: Series) -> list[Stack]:
    """Every stack of any snapshot with its pages in the last one, most first."""
    found = [Stack(handle, max(runs[-1], 0), series) for handle, runs in series.history.items()]
    return sorted(found, key=lambda stack: (-stack.pages, stack.handle))


def growth_of(series: Series) -> list[Growth]:
    """How the stacks developed, those that gained most first; empty where that is unknown."""
    if not series.growth_known:
        return []
    return sorted(growth_rows(series), key=lambda row: (-row.gained, row.handle))


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
    remarks = []
    if len(series.snapshots) > 1 and not series.growth_known:
        last = series.snapshots[-1].source
        notes.append(f"{series.time_source}; the amounts are those of {last}")
    else:
        remarks.append(f"times: {series.time_source}")
    if series.tally is not None:
        remarks += [f"this kernel prints {what}" for what in not_kept(series.tally["members"])]
        if unknown := series.tally["unknown_lines"]:
            remarks.append(f"{unknown:,} unknown lines in records were skipped")
    if any(handle >> 48 for handle in series.stacks):
        remarks.append("no handles in the text: ids are made from the stacks' text")
    return notes, remarks


def print_top(
    stacks: list[Stack],
    growth: list[Growth],
    page_size: int,
    *,
    top: int = TOP,
    file: IO[str] | None = None,
) -> None:
    """The stacks with most pages, and those that grew most: a line each."""
    pages = sum(stack.pages for stack in stacks)
    print(f"{pages:,} pages {size(pages * page_size)} by {len(stacks):,} stacks", file=file)
    held = [
        (
            f"{stack.pages:,}",
            size(stack.pages * page_size),
            share(stack.pages, pages),
            _name(stack),
        )
        for stack in stacks[:top]
        if stack.pages
    ]
    print(*aligned(("pages", "size", "share", "owner"), held), sep="\n", file=file)
    by_handle = {stack.handle: stack for stack in stacks}
    grown = [
        (
            f"{row.gained:,}",
            size(row.gained * page_size),
            "-" if row.slope is None else f"{row.slope:,.3f}",
            percent(row.steadiness),
            _name(by_handle[row.handle]),
        )
        for row in [row for row in growth if row.gained > 0][:top]
    ]
    if grown:
        heads = ("gained", "size", "pages/s", "steady", "owner")
        print("", *aligned(heads, grown), sep="\n", file=file)


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


class Counted(NamedTuple):
    """What the selection's keys have in common."""

    pages: int
    allocations: int
    first_ts: int | None
    last_ts: int | None


class Culled(NamedTuple):
    """Values of the selection's keys, and what has them."""

    cells: list[Any]
    counted: Counted


SORTS: dict[str, Callable[[Counted], int]] = {
    "pages": lambda counted: -counted.pages,
    "times": lambda counted: -counted.allocations,
    "ts": lambda counted: counted.first_ts or 0,
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
    described += [(name, "integer") for name in Counted._fields]
    found: list[Culled] = []
    for key, row in tally["culled"].items():
        cells: list[Any] = []
        for name, value in zip(selection.cull, key or [None] * len(selection.cull), strict=True):
            if isinstance(value, bytes):
                value = folded(value) if name == "stack" else text(value)
            elif name == "stack" and value is not None:
                value = f"handle {value}"
            cells.append(value)
        found.append(Culled(cells, Counted(*row)))
    if sort in SORTS:
        found.sort(key=lambda culled: SORTS[sort](culled.counted))
    else:
        at = selection.cull.index(sort)
        found.sort(key=lambda culled: (culled.cells[at] is None, culled.cells[at]))
    rows = [(*cells, *counted) for cells, counted in found[:top]]
    return described, rows, max(len(found) - top, 0)
