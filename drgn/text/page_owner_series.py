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
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mmscope.drgn.text.page_owner_text import (
    EVERYTHING,
    Progress,
    Selection,
    Tally,
    read_counts,
    read_page_owner,
    read_show_stacks_handles,
)
from mmscope.drgn.text.reading_order import INTERVAL, NUMBERS, distinct_names, order_of
from mmscope.drgn.text.stack_text import folded, stack_id
from mmscope.drgn.text.text_source import Source, TextError, recognise, recognise_source

MISSING = "the resolver does not have this handle"
NO_RESOLVER = "no resolver given (show_stacks_handles)"
REUSED = "reused: another resolver has another stack for this handle: "
OTHERS = 1 << 49  # the id of the row for stacks beyond the limit
NOT_LISTED = -1


class Snapshot(NamedTuple):
    """
    One reading.

    :ivar stacks, pages: how many are listed, and their base pages together.
    :ivar skipped, truncated: records that were not understood, and whether the last was cut short.
    """

    source: str
    kind: str
    stacks: int
    pages: int
    skipped: int
    truncated: bool


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
        self._pages: dict[int, int] | None = None  # of the last snapshot, if it is of counts

    @property
    def timed(self) -> bool:
        """True if the times are seconds."""
        return self.ordered_by not in (None, NUMBERS)

    @property
    def growth_known(self) -> bool:
        """True if there are several snapshots, in an order that is known."""
        return len(self.snapshots) > 1 and self.ordered_by is not None

    def add(
        self, source: str, kind: str, pages: dict[int, int], lost: Counter[str] | Tally
    ) -> None:
        """Add a snapshot's counts."""
        history, now = self.history, len(self.snapshots)
        stays = self._pages if kind != "page_owner" else None
        changed = history.keys() | pages.keys()
        if stays is not None:
            changed = {key for key, _ in pages.items() ^ stays.items()}
        for key in changed:
            number = pages.get(key, NOT_LISTED)
            runs = history.get(key)
            if runs is None:
                history[key] = [0, NOT_LISTED, now, number] if now else [0, number]
            elif runs[-1] != number:
                runs += (now, number)
        self._pages = pages if kind != "page_owner" else None
        total, truncated = sum(pages.values()), bool(lost["truncated"])
        snapshot = Snapshot(source, kind, len(pages), total, lost["skipped"], truncated)
        self.snapshots.append(snapshot)


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
    resolved: list[dict[int, bytes]] = []
    # What is no file is read once, also to see what it is.
    pipes = {path: Source(path) for path in paths if not os.path.isfile(path)}
    more = [path for path in dict.fromkeys(paths) if _is_resolver(path, pipes.get(path))]
    given = [path for path in paths if path not in more]
    # Of files in their order, what stays the same is compared and not read.
    order = order_of(given, interval)
    ordered = [given[position] for position in order.positions]
    for path in (*resolvers, *more, *ordered):
        with pipes.pop(path, None) or Source(path) as source:
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
            series.tally, series.allocations = None, {}
            if kind == "page_owner":
                series.tally = read_page_owner(source, selection or EVERYTHING, progress)
                pages = _stack_pages(series, ids, series.tally)
                series.add(source.name, kind, pages, series.tally)
            else:
                series.add(source.name, kind, *read_counts(source, kind, ids))
    if not series.snapshots:
        raise TextError(
            f"{', '.join(resolvers or paths)}: handles, but no counts; give show_handles"
        )
    series.stacks.update((key, stack) for stack, key in ids.items() if stack)
    _resolve(series, resolved)
    names = distinct_names(ordered)
    series.snapshots = [
        snapshot._replace(source=name)
        for snapshot, name in zip(series.snapshots, names, strict=True)
    ]
    series.ordered_by, series.time_source = order.by, order.words
    series.times = [float(number) for number in range(len(ordered))]
    if order.by == INTERVAL:
        series.times = order.times
    elif order.times:
        series.absolute = order.times
        series.times = [round(time - order.times[0], 6) for time in order.times]
    return series


def _is_resolver(path: str, pipe: Source | None) -> bool:
    """True if a file has no counts, but what handles mean."""
    if pipe is not None:
        return recognise(pipe.peek()) == "show_stacks_handles"
    with Source(path) as source:
        return recognise(source.peek()) == "show_stacks_handles"


def _stack_pages(series: Series, ids: dict[bytes, int], tally: Tally) -> dict[int, int]:
    """Pages by handle, or id, of a ``page_owner`` file; its allocations are the series'."""
    counts: dict[int, int] = {}
    for key, (pages, allocations) in tally["stacks"].items():
        handle, stack = key if key is not None else (OTHERS, b"")
        if handle is None:
            handle = ids.setdefault(stack, stack_id(stack))
        elif stack:
            known = series.stacks.setdefault(handle, stack)
            if known != stack:
                series.notes[handle] = REUSED + folded(known)
                series.stacks[handle] = stack
        counts[handle] = counts.get(handle, 0) + pages
        series.allocations[handle] = series.allocations.get(handle, 0) + allocations
    return counts


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
    """Growth of each stack's pages, in an order that is known. Not listed counts as none."""
    times, count = series.times, len(series.times)
    middle = sum(times) / count
    centred = [time - middle for time in times]
    spread = sum(time * time for time in centred)
    known = spread > 0 and series.timed
    # The slope's sum over all snapshots is one over what stayed the same, with these sums.
    sums = [0.0, *itertools.accumulate(centred)]
    for key, runs in series.history.items():
        spans = [*_runs(runs, count)]
        numbers = [number for _, number, _ in spans]
        listed = [(begin, end) for begin, number, end in spans if number != NOT_LISTED]
        pages = [max(number, 0) for number in numbers]
        rises = sum(before < now for before, now in itertools.pairwise(pages))
        falls = sum(before > now for before, now in itertools.pairwise(pages))
        begins = sum(before < 0 <= now for before, now in itertools.pairwise(numbers))
        weighted = sum(
            number * (sums[end] - sums[begin])
            for number, (begin, _, end) in zip(pages, spans, strict=True)
        )
        flat = not rises and not falls
        yield Growth(
            handle=key,
            first_seen=times[listed[0][0]],
            listed=sum(end - begin for begin, end in listed),
            gaps=begins - (numbers[0] == NOT_LISTED),
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
