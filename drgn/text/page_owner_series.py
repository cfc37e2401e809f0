# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner over time: any number of snapshots, joined by handle, and how each stack developed.

A handle (``show_handles``) is the key as it is. Where the text has no handle (``show_stacks``,
``page_owner``), the key is an id made from the stack's text (:func:`stack_text.stack_id`).
Handles mean what ``show_stacks_handles`` says; given two of those, a handle whose stack differs
between them was reused (another boot, as a rule) and is shown as such.

In memory is what changes, not each snapshot: a stack whose pages stay takes two numbers, however
many snapshots there are.
"""

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mmscope.drgn.text.page_owner_counts import Counts, read_show_stacks_handles
from mmscope.drgn.text.page_owner_text import (
    EVERYTHING,
    Progress,
    Selection,
    Tally,
    read_page_owner,
)
from mmscope.drgn.text.reading_order import INTERVAL, NUMBERS, Order, distinct_names, order_of
from mmscope.drgn.text.stack_text import folded, stack_id
from mmscope.drgn.text.text_source import Source, TextError, recognise_source

MISSING = "the resolver does not have this handle"
NO_RESOLVER = "no resolver given (show_stacks_handles)"
REUSED = "reused: another resolver has another stack for this handle: "
OTHERS = 1 << 49  # the id of the row for stacks beyond the limit
NOT_LISTED = -1


class Snapshot:
    """
    One reading.

    :ivar stacks, pages: how many are listed, and their base pages together.
    """

    def __init__(self, source: str, kind: str, stacks: int, pages: int) -> None:
        self.source, self.kind = source, kind
        self.stacks, self.pages = stacks, pages
        self.skipped, self.truncated = 0, False


class Series:
    """
    Snapshots in the order of time, and what their keys mean.

    :ivar history: key to its pages as what changes: a snapshot's position and the pages from there
        on (:data:`NOT_LISTED` where it is not), the next position and its pages, and so on.
    :ivar stacks: key to stack as printed (leaf first).
    :ivar notes: key to what is wrong with it.
    :ivar allocations: key to allocations, of the last snapshot, where it says.
    :ivar tally: the breakdowns of the last ``page_owner`` file.
    :ivar times: seconds since the first, one a snapshot; their numbers if unknown.
    :ivar absolute: seconds since 1970, or empty if unknown.
    :ivar ordered_by: what their order goes by, as ``reading_order`` has it; None if it is unknown.
    :ivar time_source: where the times come from, or why the order is unknown, in words.
    """

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.history: dict[int, list[int]] = {}
        self.stacks: dict[int, bytes] = {}
        self.notes: dict[int, str] = {}
        self.allocations: dict[int, int] = {}
        self.tally: Tally | None = None
        self.times: list[float] = []
        self.absolute: list[float] = []
        self.ordered_by: str | None = None
        self.time_source = ""
        self.unresolved = 0

    @property
    def timed(self) -> bool:
        """True if the times are seconds."""
        return self.ordered_by not in (None, NUMBERS)

    @property
    def growth_known(self) -> bool:
        """True if there are several snapshots, in an order that is known."""
        return len(self.snapshots) > 1 and self.ordered_by is not None

    def add(
        self, snapshot: Snapshot, pages: dict[int, int], changed: Iterable[int] | None = None
    ) -> None:
        """
        Add a snapshot's counts.

        :param changed: keys that may differ from the snapshot before; None: any.
        """
        history, now = self.history, len(self.snapshots)
        self.snapshots.append(snapshot)
        for key in history.keys() | pages.keys() if changed is None else changed:
            number = pages.get(key, NOT_LISTED)
            runs = history.get(key)
            if runs is None:
                # A key may have come and gone again within one file.
                if number != NOT_LISTED:
                    history[key] = [0, NOT_LISTED, now, number] if now else [0, number]
            elif runs[-1] != number:
                runs += (now, number)

    def column(self, key: int) -> list[int]:
        """A key's pages in every snapshot; :data:`NOT_LISTED` where it is not."""
        runs, pages = self.history[key], list[int]()
        for position, number, end in _runs(runs, len(self.snapshots)):
            pages += [number] * (end - position)
        return pages


def _runs(runs: Sequence[int], count: int) -> Iterator[tuple[int, int, int]]:
    """(first snapshot, pages, first snapshot after it) of what stayed the same."""
    return zip(runs[::2], runs[1::2], (*runs[2::2], count), strict=True)


def read_series(
    paths: Sequence[str],
    resolvers: Sequence[str] = (),
    *,
    selection: Selection | None = None,
    interval: float | None = None,
    progress: Progress | None = None,
) -> Series:
    """
    Read snapshots, in the order in which they were taken (``reading_order``).

    :param paths: ``page_owner``, ``show_stacks`` or ``show_handles`` files; ``-`` is stdin. A
        ``show_stacks_handles`` among them is taken for a resolver.
    :param selection: what to count of ``page_owner`` files; None: everything.
    :param interval: seconds between the files, by the numbers in their names, else as given.
    :raises TextError: a file is not one of these, or the kinds do not go together.
    :raises OSError: a file cannot be read.
    """
    series = Series()
    ids: dict[bytes, int] = {}
    counts: Counts | None = None  # of the file before, if that was of the same kind
    resolved: list[dict[int, bytes]] = []
    first = [*resolvers, *filter(_is_resolver, paths)]
    snapshots = [path for path in paths if not _is_resolver(path)]
    # Of files in their order, what stays the same is compared and not read.
    order = order_of(snapshots, interval)
    kept: list[str] = []
    for path in (*first, *(snapshots[position] for position in order.positions)):
        with Source(path) as source:
            kind = recognise_source(source)
            if kind == "show_stacks_handles":
                resolved.append(read_show_stacks_handles(source)[0])
                continue
            if path in resolvers:
                raise TextError(f"{path}: is {kind}, not show_stacks_handles, and resolves nothing")
            if selection is not None and kind != "page_owner":
                raise TextError(f"{path}: is {kind}, which has only stacks to select by")
            before = series.snapshots[-1].kind if series.snapshots else kind
            if "show_handles" in (kind, before) and kind != before:
                raise TextError(
                    "show_handles and files with stacks have no key in common; give them one by one"
                )
            if kind == "page_owner":
                _add_page_owner(source, series, ids, selection, progress)
                counts = None
            else:
                counts = _add_counts(source, series, ids, kind, counts)
            kept.append(path)
    if not kept:
        raise TextError(
            f"{', '.join(resolvers or paths)}: handles, but no counts; give show_handles"
        )
    _resolve(series, resolved)
    if (given := [path for path in paths if path in set(kept)]) != snapshots:
        order = order_of(given, interval)
    _put_in_order(series, kept, given, order)
    return series


def _is_resolver(path: str) -> bool:
    """True if a file has the name of one that has no counts."""
    return os.path.basename(path).startswith("show_stacks_handles")


def _add_counts(
    source: Source, series: Series, ids: dict[bytes, int], kind: str, before: Counts | None
) -> Counts:
    """Add a ``show_stacks`` or ``show_handles``."""
    counts = before or Counts(kind, ids)
    known = len(ids)
    counts.read(source)
    for stack in itertools.islice(ids, known, None):
        series.stacks[ids[stack]] = stack
    snapshot = Snapshot(source.name, kind, len(counts.pages), counts.total)
    snapshot.skipped, snapshot.truncated = counts.skipped, counts.truncated
    series.tally, series.allocations = None, {}
    series.add(snapshot, counts.pages, counts.changed if before else None)
    return counts


def _add_page_owner(
    source: Source,
    series: Series,
    ids: dict[bytes, int],
    selection: Selection | None,
    progress: Progress | None,
) -> None:
    """Add a ``page_owner`` file; its breakdowns stand for the last snapshot."""
    tally = read_page_owner(source, selection or EVERYTHING, progress)
    counts: dict[int, int] = {}
    series.allocations = {}
    for key, (pages, allocations) in tally["stacks"].items():
        handle, stack = key if key is not None else (OTHERS, b"")
        if handle is None:
            if stack not in ids:
                ids[stack] = stack_id(stack)
            handle = ids[stack]
        if stack:
            known = series.stacks.setdefault(handle, stack)
            if known != stack:
                series.notes[handle] = REUSED + folded(known)
                series.stacks[handle] = stack
        counts[handle] = counts.get(handle, 0) + pages
        series.allocations[handle] = series.allocations.get(handle, 0) + allocations
    snapshot = Snapshot(source.name, "page_owner", len(counts), sum(counts.values()))
    snapshot.skipped, snapshot.truncated = tally["skipped"], bool(tally["truncated"])
    series.tally = tally
    series.add(snapshot, counts)


def _resolve(series: Series, resolved: list[dict[int, bytes]]) -> None:
    """Give handles their stacks: the last resolver's. The others show what was reused."""
    keys = series.history.keys()
    for stacks in resolved:
        for handle in keys & stacks.keys():
            known = series.stacks.get(handle)
            if known is not None and known != stacks[handle]:
                series.notes[handle] = REUSED + folded(known)
            series.stacks[handle] = stacks[handle]
    for key in keys - series.stacks.keys():
        if key == OTHERS:
            series.notes[key] = "all stacks beyond the limit of what is kept"
        else:
            series.notes[key] = MISSING if resolved else NO_RESOLVER
            series.unresolved += 1


def _put_in_order(series: Series, read: list[str], paths: list[str], order: Order) -> None:
    """
    Give the snapshots their order and their times.

    :param read: their files as they were read; :param paths: the same, as given.
    """
    ordered = [paths[position] for position in order.positions]
    if ordered != read:  # a file has not the name of what is in it
        if ordered[-1] != read[-1] and series.tally is not None:
            # The breakdowns are those of the file that was read last.
            raise TextError("name show_stacks_handles so, or give it with --stacks")
        _reorder(series, [read.index(path) for path in ordered])
    names = distinct_names(ordered)
    for snapshot, name in zip(series.snapshots, names, strict=True):
        snapshot.source = name
    series.ordered_by, series.time_source = order.by, order.words
    series.times = [float(number) for number in range(len(ordered))]
    if order.by == INTERVAL:
        series.times = order.times
    elif order.times:
        series.absolute = order.times
        series.times = [round(time - order.times[0], 6) for time in order.times]


def _reorder(series: Series, order: Sequence[int]) -> None:
    """Put the snapshots in another order than that in which they were read."""
    columns = {key: series.column(key) for key in series.history}
    snapshots, series.snapshots, series.history = series.snapshots, [], {}
    for position in order:
        counts = {
            key: column[position]
            for key, column in columns.items()
            if column[position] != NOT_LISTED
        }
        series.add(snapshots[position], counts)


class Growth(NamedTuple):
    """A row of :class:`page_owner.PageOwnerGrowth`, which says what is in it."""

    handle: int
    first_seen: float
    listed: int
    gaps: int
    pages_first: int
    pages_last: int
    pages_min: int
    pages_max: int
    gained: int
    slope: float | None
    steadiness: float
    rises: int


def growth_rows(series: Series) -> Iterator[Growth]:
    """How each stack's pages developed, in an order that is known. Not listed counts as none."""
    times, count = series.times, len(series.times)
    middle = sum(times) / count
    centred = [time - middle for time in times]
    spread = sum(time * time for time in centred)
    known = spread > 0 and series.timed
    # The slope's sum over all snapshots is one over what stayed the same, with these sums.
    sums = [0.0, *itertools.accumulate(centred)]
    for key, runs in series.history.items():
        if len(runs) == 2:  # as most: never changed
            here = runs[1]
            flat_slope = 0.0 if known else None
            yield Growth(
                handle=key,
                first_seen=times[0],
                listed=count,
                gaps=0,
                pages_first=here,
                pages_last=here,
                pages_min=here,
                pages_max=here,
                gained=0,
                slope=flat_slope,
                steadiness=1.0,
                rises=0,
            )
            continue
        first = listed = gaps = rises = falls = 0
        last, weighted = None, 0.0
        pages = [max(number, 0) for number in runs[1::2]]
        seen = False
        for begin, number, end in _runs(runs, count):
            if number >= 0:
                listed += end - begin
                if not seen:
                    first, seen = begin, True
                elif last == NOT_LISTED:
                    gaps += 1
            now, before = max(number, 0), max(last or 0, 0)
            if last is not None:
                rises += now > before
                falls += now < before
            weighted += now * (sums[end] - sums[begin])
            last = number
        flat = not rises and not falls
        yield Growth(
            handle=key,
            first_seen=times[first],
            listed=listed,
            gaps=gaps,
            pages_first=pages[0],
            pages_last=pages[-1],
            pages_min=min(pages),
            pages_max=max(pages),
            gained=pages[-1] - pages[0],
            slope=(0.0 if flat else round(weighted / spread, 6)) if known else None,
            steadiness=round(1 - falls / (count - 1), 6),
            rises=rises,
        )


def point_rows(series: Series) -> Iterator[tuple[Any, ...]]:
    """
    Rows of :class:`page_owner.PageOwnerPoint`, as tuples: where a stack's pages change, the
    snapshots before and after.
    """
    times = series.times
    for key, runs in series.history.items():
        for begin, number, end in _runs(runs, len(times)):
            pages = number if number >= 0 else None
            yield times[begin], key, pages
            if end - 1 > begin:
                yield times[end - 1], key, pages


def main() -> None:
    """As a script: every stack, and a line of its pages in each snapshot (0: not listed)."""
    arguments, resolvers = sys.argv[1:], list[str]()
    while arguments[:1] == ["--stacks"]:
        resolvers.append(arguments[1])
        del arguments[:2]
    if not arguments:
        sys.exit("usage: page_owner_series.py [--stacks FILE]... FILE...")
    try:
        series = read_series(arguments, resolvers, interval=1.0)
    except (TextError, OSError) as error:
        sys.exit(f"page_owner_series.py: {error}")
    if len(series.snapshots) > 1 and not series.growth_known:
        print(f"page_owner_series.py: {series.time_source}", file=sys.stderr)
    out = sys.stdout.buffer
    for key in series.history:
        stack = series.stacks.get(key) or f" {series.notes.get(key, key)}\n".encode()
        pages = " ".join(map(str, series.column(key))).replace("-1", "0").encode()
        out.write(b"%bhandle: %d\n%b\n\n" % (stack, key, pages))


if __name__ == "__main__":
    main()
