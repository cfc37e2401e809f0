# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The order in which the files of a series were taken, by their names and their change times.

A time in a name goes first: it was written there when the file was taken. Numbers in names are
compared as numbers, as ``sort -V`` does; a shell's glob gives 1, 10, 100, 11. Change times that
follow each other as fast as those of a copy say nothing. Where numbers and change times disagree,
or neither decides, the order is unknown: the same files the other way round are a leak.

Costs a ``stat()`` a file. Cannot know: what the numbers count. Where they count backwards, as log
rotation does, and the change times are lost, so is the order. Nor whether slower change times are
those of a copy.
"""

import datetime
import os
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

# What an order goes by, in column ``ordered_by`` of page_owner_snapshots.
TIMES_IN_NAMES = "times in names"
CHANGE_TIMES = "change times"
NUMBERS = "numbers in names"
INTERVAL = "interval"

# Anywhere in a name: seconds since 1970; a date and time to the second; one to the minute, which
# has a T or a colon, since four digits may be a number.
EPOCH = r"(?<!\d)(?:1[0-9]{9}|2[0-9]{9})(?:\.[0-9]+)?(?!\d)"
DAY = r"(?<!\d)(20\d\d)-?(\d\d)-?(\d\d)"
SECOND = DAY + r"[T_ -]?(\d\d)[:.-]?(\d\d)[:.-]?(\d\d)(\.\d+)?(?!\d)"
MINUTE = DAY + r"(?:T(\d\d)[:.-]?|[_ -]?(\d\d):)(\d\d)(?!\d)"
LEAST_DIGITS = 10  # of a time; names with fewer need none of the above
# Between two files, on average. Reading show_handles takes 15 ms, and is then worth a pause.
COPY_MICROSECONDS = 50_000
COMPRESSED = (".bz2", ".gz", ".xz", ".zst")
UNKNOWN = "the order of the snapshots is unknown, and nothing is called growth: "
NUMBER_THEM = "number their names (show_handles.1, show_handles.2)"
TIME_THEM = "put the time of each into its name (show_handles.1763600000)"


class Order(NamedTuple):
    """
    An order of files.

    :ivar positions: which of the files is first, second, …; where that is unknown, by name.
    :ivar times: of each in that order: seconds since 1970, or since the first where ``by`` is
        :data:`INTERVAL`; empty where unknown.
    :ivar by: what the order goes by (:data:`NUMBERS`, …); None where it is unknown.
    :ivar words: where the times are from; or why the order is unknown, and what to do.
    """

    positions: list[int]
    times: list[float]
    by: str | None
    words: str


def order_of(paths: Sequence[str], interval: float | None = None) -> Order:
    """
    Find the order of files.

    :param paths: as given. What is no file (``-``, a pipe ``/dev/fd/63``) has neither a name nor a
        time.
    :param interval: seconds between the files in the order of their numbers, else as given.
    :raises OSError: a file has no change time.
    """
    count = len(paths)
    if times := _times_in_names(paths):
        unused = "" if interval is None else "; --interval is not used, since they have times"
        return _timed(times, TIMES_IN_NAMES, f"the files' names{unused}")
    numbered = _orders_by_number(paths)
    if interval is not None:
        return _spaced(paths, numbered, interval)
    changed = [os.stat(path).st_mtime_ns // 1000 for path in paths if os.path.isfile(path)]
    if count == 1 and not changed:
        return Order([0], [], None, "one snapshot")
    if changed and max(changed) - min(changed) < COPY_MICROSECONDS * (count - 1):
        changed = changed[:1] * len(changed)
    if len(changed) == count and (pair := _disagreement(paths, numbered, changed)):
        first, second = (distinct_names(paths)[position] for position in pair)
        how = f"give --interval SECONDS to go by the numbers, or {TIME_THEM}"
        return _unknown(
            paths,
            f"{second} has the higher number, but was changed before {first}; "
            + (how if len(numbered) == 1 else f"{NUMBER_THEM}, or {TIME_THEM}"),
        )
    if len(set(changed)) == count:
        times = [microseconds / 1e6 for microseconds in changed]
        return _timed(times, CHANGE_TIMES, "when the files were last changed")
    if len(numbered) == 1:
        words = "unknown, no slope; the order is that of the numbers in the files' names"
        return Order(numbered[0], [], NUMBERS, words)
    return _unknown(paths, f"neither names nor change times say it; {NUMBER_THEM}, or {TIME_THEM}")


def _timed(times: list[float], by: str, words: str) -> Order:
    positions = sorted(range(len(times)), key=times.__getitem__)
    return Order(positions, sorted(times), by, words)


def _unknown(paths: Sequence[str], why: str) -> Order:
    return Order(by_name(paths), [], None, UNKNOWN + why)


def _spaced(paths: Sequence[str], numbered: list[list[int]], interval: float) -> Order:
    """The order of files whose intervals are given."""
    given = list(range(len(paths)))
    if pair := _disagreement(paths, numbered, given) if len(numbered) != 1 else None:
        first, second = (distinct_names(paths)[position] for position in pair)
        why = f"{second} has the higher number, but was given before {first}"
        return _unknown(paths, f"{why}; give the files in their order, or {TIME_THEM}")
    positions = numbered[0] if len(numbered) == 1 else given
    how = "of the numbers in their names" if len(numbered) == 1 else "given"
    return Order(
        positions,
        [float(position * interval) for position in given],
        INTERVAL,
        f"every {interval:g} s, as given with --interval, in the order {how}",
    )


def time_in_name(name: str) -> float | None:
    """The time in a file's name, in seconds since 1970: an epoch or a date (taken as UTC)."""
    if sum(map(str.isdigit, name)) < LEAST_DIGITS:
        return None
    if match := re.search(EPOCH, name):
        return float(match.group())
    if match := re.search(SECOND, name):
        *parts, fraction = match.groups()
    elif match := re.search(MINUTE, name):
        *day, hour, other, minute = match.groups()
        parts, fraction = [*day, hour or other, minute, "00"], None
    else:
        return None
    try:
        when = datetime.datetime.fromisoformat("{}-{}-{}T{}:{}:{}Z".format(*parts))
    except ValueError:
        return None
    return when.timestamp() + float(fraction or 0)


def _times_in_names(paths: Sequence[str]) -> list[float]:
    """The times in the files' names, else in those of their folders; empty unless all differ."""
    if not all(map(os.path.isfile, paths)):
        return []
    for names in (map(os.path.basename, paths), distinct_names(paths)):
        times = [time for name in names if (time := time_in_name(name)) is not None]
        if len(set(times)) == len(paths):
            return times
    return []


def _name(path: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """A path as the text around its numbers, and the numbers."""
    if path.endswith(COMPRESSED):
        path = path.rpartition(".")[0]
    parts = re.split("([0-9]+)", path)
    return tuple(parts[::2]), tuple(map(int, parts[1::2]))


def _names(paths: Sequence[str]) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    return [_name(os.path.abspath(path) if os.path.isfile(path) else "") for path in paths]


def by_name(paths: Sequence[str]) -> list[int]:
    """The positions of files in the order of their names, numbers in them as numbers."""
    keys = [tuple(zip(text, (*numbers, -1), strict=True)) for text, numbers in _names(paths)]
    return sorted(range(len(paths)), key=keys.__getitem__)


def _orders_by_number(paths: Sequence[str]) -> list[list[int]]:
    """
    The orders of the numbers in paths, and of those in the files' names alone. None where names
    differ in more than their numbers, two where folders and files do not agree.
    """
    orders: list[list[int]] = []
    if not all(map(os.path.isfile, paths)):
        return orders
    for names in (_names(paths), [_name(os.path.basename(path)) for path in paths]):
        numbers = [number for _, number in names]
        if len({text for text, _ in names}) == 1 and len(set(numbers)) == len(paths):
            order = sorted(range(len(paths)), key=numbers.__getitem__)
            orders += [order] if order not in orders else []
    return orders


def _disagreement(
    paths: Sequence[str], numbered: list[list[int]], values: Sequence[int]
) -> tuple[int, int] | None:
    """
    Two files of which the one with the higher number has the lower value.

    :param numbered: the orders of their numbers, one of which must agree. Without any, those are
        compared whose names differ in numbers alone.
    """

    def first(pairs: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
        return next((pair for pair in pairs if values[pair[0]] > values[pair[1]]), None)

    if numbered:
        found = [first(pairwise(order)) for order in numbered]
        return found[0] if all(found) else None
    names = _names(paths)
    groups: dict[tuple[str, ...], list[int]] = {}
    for position in sorted(range(len(paths)), key=lambda at: names[at][1]):
        groups.setdefault(names[position][0], []).append(position)
    return first(
        (low, high)
        for group in groups.values()
        for low, high in pairwise(group)
        if names[low] != names[high]
    )


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Names of files, with their folders' where two have the same."""
    names = ["standard input" if path == "-" else os.path.basename(path) for path in paths]
    if len(set(names)) == len(names) or "-" in paths:
        return names
    whole = [os.path.abspath(path) for path in paths]
    common = os.path.commonpath([os.path.dirname(path) for path in whole])
    return [os.path.relpath(path, common) for path in whole]
