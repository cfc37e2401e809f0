# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner over time: any number of snapshots, joined by handle, and how each stack developed.

A handle (``show_handles``) is the key as it is. Where there is none (``show_stacks``,
``page_owner``), the key is an id made from the stack's text (:func:`page_owner_text.stack_id`).
Handles mean what ``show_stacks_handles`` says; given two of those, a handle whose stack differs
between them was reused (another boot, as a rule) and is shown as such.

In memory a snapshot is two arrays of numbers; 100 snapshots of 10,000 stacks take 16 MB.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from array import array
from operator import le, lt, mul

from page_owner_text import (
    EVERYTHING,
    Selection,
    Source,
    TextError,
    folded,
    read_page_owner,
    read_show_handles,
    read_show_stacks,
    read_show_stacks_handles,
    recognise_source,
    stack_id,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # as in page_owner_text
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from page_owner_text import Listed, Progress, Tally

MISSING = "the resolver does not have this handle"
NO_RESOLVER = "no resolver given (show_stacks_handles)"
REUSED = "reused: another resolver has another stack for this handle: "
OTHERS = 1 << 49  # the id of the row for stacks beyond the limit


class Snapshot:
    """
    One reading.

    :ivar keys, pages: handle or id, and base pages, in parallel.
    """

    def __init__(self, source: str, kind: str, counts: dict[int, int]) -> None:
        self.source, self.kind = os.path.basename(source), kind
        self.keys, self.pages = array("Q", counts.keys()), array("q", counts.values())
        self.skipped, self.truncated = 0, False


class Series:
    """
    Snapshots in the order of time, and what their keys mean.

    :ivar stacks: key to stack as printed (leaf first).
    :ivar notes: key to what is wrong with it.
    :ivar allocations: key to allocations, of the last snapshot, where it says.
    :ivar tally: the breakdowns of the last ``page_owner`` file.
    :ivar times: seconds since the first, one a snapshot.
    :ivar absolute: seconds since 1970, or empty if unknown.
    :ivar time_source: where the times come from, in words.
    """

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.stacks: dict[int, bytes] = {}
        self.notes: dict[int, str] = {}
        self.allocations: dict[int, int] = {}
        self.tally: Tally | None = None
        self.times: list[float] = []
        self.absolute: list[float] = []
        self.time_source = ""
        self.unresolved = 0


def read_series(
    paths: Sequence[str],
    resolvers: Sequence[str] = (),
    *,
    selection: Selection = EVERYTHING,
    interval: float | None = None,
    progress: Progress | None = None,
) -> Series:
    """
    Read snapshots and put them in order.

    :param paths: ``page_owner``, ``show_stacks`` or ``show_handles`` files; ``-`` is stdin. A
        ``show_stacks_handles`` among them is taken for a resolver.
    :param interval: seconds between the files as given; None: by their names or change times.
    :raises TextError: a file is none of these, or the kinds do not go together.
    :raises OSError: a file cannot be read.
    """
    series = Series()
    ids: dict[bytes, int] = {}
    order: list[Listed] = []
    resolved: list[dict[int, bytes]] = []
    kept: list[str] = []
    for path in (*resolvers, *paths):
        with Source(path) as source:
            kind = recognise_source(source)
            if kind == "show_stacks_handles":
                counted = read_show_stacks_handles(source)
                resolved.append(counted.stacks)
                continue
            if path in resolvers:
                raise TextError(f"{path}: is {kind}, not show_stacks_handles, and resolves nothing")
            if selection is not EVERYTHING and kind != "page_owner":
                raise TextError(f"{path}: is {kind}, which has only stacks to select by")
            if kind == "page_owner":
                snapshot = _page_owner_snapshot(source, series, ids, selection, progress)
            else:
                if kind == "show_handles":
                    counted = read_show_handles(source)
                    counts: dict[Any, int] = counted.pages
                else:
                    known = len(ids)
                    counted = read_show_stacks(source, ids, order)
                    counts = counted.pages
                    for stack in itertools.islice(ids, known, None):
                        series.stacks[ids[stack]] = stack
                snapshot = Snapshot(source.name, kind, counts)
                snapshot.skipped, snapshot.truncated = counted.skipped, counted.truncated
                series.tally, series.allocations = None, {}
            series.snapshots.append(snapshot)
            kept.append(path)
    if not kept:
        raise TextError(
            f"{', '.join(resolvers or paths)}: handles, but no counts; give show_handles"
        )
    by_handle = {snapshot.kind == "show_handles" for snapshot in series.snapshots}
    if len(by_handle) > 1:
        raise TextError(
            "show_handles and files with stacks have no key in common; give them one by one"
        )
    _resolve(series, resolved, by_handle == {True})
    _set_times(series, kept, interval)
    return series


def _page_owner_snapshot(
    source: Source,
    series: Series,
    ids: dict[bytes, int],
    selection: Selection,
    progress: Progress | None,
) -> Snapshot:
    """Count a page_owner file; its breakdowns stand for the last snapshot."""
    tally = read_page_owner(source, selection, progress)
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
    snapshot = Snapshot(source.name, "page_owner", counts)
    snapshot.skipped, snapshot.truncated = tally["skipped"], bool(tally["truncated"])
    series.tally = tally
    return snapshot


def _resolve(series: Series, resolved: list[dict[int, bytes]], by_handle: bool) -> None:
    """Give handles their stacks; the last resolver counts, the others tell what was reused."""
    keys = set().union(*(snapshot.keys for snapshot in series.snapshots))
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


# Seconds since 1970, or a date and time, anywhere in a name.
EPOCH = re.compile(r"(?<!\d)(1[0-9]{9}|2[0-9]{9})(\.[0-9]+)?(?!\d)")
DATE = re.compile(
    r"(?<!\d)(20\d\d)-?(\d\d)-?(\d\d)[T_ -]?(\d\d)[:.-]?(\d\d)[:.-]?(\d\d)(\.\d+)?(?!\d)(Z)?"
)


def time_in_name(name: str) -> float | None:
    """
    The time that a file's name tells, in seconds since 1970: an epoch or a date (taken as UTC).
    """
    if match := EPOCH.search(name):
        return float(match.group())
    if match := DATE.search(name):
        import datetime

        try:
            when = datetime.datetime.fromisoformat("{}-{}-{}T{}:{}:{}Z".format(*match.groups()))
        except ValueError:
            return None
        return when.timestamp() + float(match[7] or 0)
    return None


def _set_times(series: Series, paths: list[str], interval: float | None) -> None:
    """Order the snapshots by time."""
    count = len(paths)
    if interval is not None:
        series.times = [position * interval for position in range(count)]
        series.time_source = f"every {interval:g} s, as given with --interval"
        return
    named = [time_in_name(os.path.basename(path)) for path in paths]
    times = [time for time in named if time is not None]
    source = "the files' names"
    if len(set(times)) < count:
        changed = [os.stat(path).st_mtime for path in paths if path != "-"]
        times, source = changed, "when the files were last changed"
    if len(set(times)) < count:
        if count > 1:
            source = "unknown: neither names nor change times tell; numbered as given, no slope"
        else:
            source = "one snapshot"
        series.times, series.time_source = [float(n) for n in range(count)], source
        return
    order = sorted(range(count), key=times.__getitem__)
    if order[-1] != count - 1 and series.tally is not None:
        # The breakdowns are those of the file that was read last.
        raise TextError(f"give the snapshots in the order of time; {paths[order[-1]]} is the last")
    series.snapshots = [series.snapshots[position] for position in order]
    series.absolute = sorted(times)
    series.times = [round(time - series.absolute[0], 6) for time in series.absolute]
    series.time_source = source


def columns_by_key(snapshots: Sequence[Snapshot]) -> dict[int, list[int]]:
    """Key to its pages in every snapshot; -1 where it is not listed."""
    count = len(snapshots)
    columns: dict[int, list[int]] = {}
    for position, snapshot in enumerate(snapshots):
        for key, pages in zip(snapshot.keys, snapshot.pages, strict=True):
            try:
                columns[key][position] = pages
            except KeyError:
                columns[key] = column = [-1] * count
                column[position] = pages
    return columns


def growth_rows(series: Series, columns: dict[int, list[int]]) -> Iterator[tuple[Any, ...]]:
    """
    Rows of :class:`page_owner_rows.PageOwnerGrowth`, as tuples. Not listed counts as no pages.
    """
    times, count = series.times, len(series.times)
    middle = sum(times) / count
    centred = [time - middle for time in times]
    spread = sum(map(mul, centred, centred))
    known = spread > 0 and not series.time_source.startswith("unknown")
    for key, column in columns.items():
        gaps, first = 0, 0
        listed = count
        if -1 in column:
            shown = [pages >= 0 for pages in column]
            listed, first = sum(shown), shown.index(True)
            gaps = sum(b and not a for a, b in zip(shown[first:], shown[first + 1 :], strict=False))
            column = [pages if pages > 0 else 0 for pages in column]
        least, most = min(column), max(column)
        if least == most:
            slope, steadiness, rises = 0.0, 1.0, 0
        else:
            slope = sum(map(mul, centred, column)) / spread if known else 0.0
            steadiness = sum(map(le, column, column[1:])) / (count - 1)
            rises = sum(map(lt, column, column[1:]))
        yield (
            key,
            times[first],
            listed,
            gaps,
            column[0],
            column[-1],
            least,
            most,
            column[-1] - column[0],
            round(slope, 6) if known else None,
            round(steadiness, 6),
            rises,
        )


def point_rows(series: Series, columns: dict[int, list[int]]) -> Iterator[tuple[Any, ...]]:
    """
    Rows of :class:`page_owner_rows.PageOwnerPoint`, as tuples: where a stack's pages change, the
    snapshots before and after.
    """
    times = series.times
    last = len(times) - 1
    for key, column in columns.items():
        if column.count(column[0]) == len(column):
            positions: Iterable[int] = (0, last) if last else (0,)
        else:
            positions = [
                position
                for position, pages in enumerate(column)
                if position in (0, last)
                or pages != column[position - 1]
                or pages != column[position + 1]
            ]
        for position in positions:
            pages = column[position]
            yield times[position], key, pages if pages >= 0 else None


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
    out = sys.stdout.buffer
    for key, column in columns_by_key(series.snapshots).items():
        stack = series.stacks.get(key) or f" {series.notes.get(key, key)}\n".encode()
        pages = " ".join(map(str, column)).replace("-1", "0").encode()
        out.write(b"%bhandle: %d\n%b\n\n" % (stack, key, pages))


if __name__ == "__main__":
    main()
