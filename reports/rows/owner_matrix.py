# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner's series as a matrix: a row a stack, a column a reading, as many pages as it had there.

Made of ``page_owner_series``, ``page_owner_snapshots`` and ``page_owner_stacks``, where a bundle
keeps what changed and each stack once; the matrix is not kept. A stack that is not listed has no
number: it had none, or fewer than ``count_threshold``.

Cannot know: what was between two readings.
"""

import bisect
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mmscope.drgn.text.reading_order import INTERVAL

Row = Mapping[str, Any]
# Of one stack: (time, pages) where they change, in the order of time.
Points = list[tuple[float, int | None]]

NAME = "page_owner_matrix"
TITLE = "Pages by allocation stack, a column a reading"
NEEDS = "page_owner_series"
# What a row begins with.
STACK_COLUMNS = ("handle", "owner", "module", "stack", "note")
# Of a column, in characters.
MAX_HEADING = 18
# The shortest of these tells the readings apart.
FORMS = ("%H:%M:%S", "%m-%d %H:%M:%S", "%H:%M:%S.%f", "%m-%d %H:%M:%S.%f")


class Reading(NamedTuple):
    """
    A column.

    :ivar name: the time of day, the seconds since the first, or where there are none, its file.
    :ivar short: the same in fewer characters; what is left out is the same for all.
    """

    time: float
    name: str
    short: str


def readings_of(snapshots: Iterable[Row], points: Iterable[Row]) -> list[Reading]:
    """
    The columns, in the order of time.

    :param snapshots: of page_owner_snapshots; :param points: of page_owner_series.
    """
    found = {float(row["time"]): row for row in snapshots}
    times = sorted(found or {float(row["time"]) for row in points})
    rows = [found.get(time, {}) for time in times]
    moments = [_moment(row.get("at")) for row in rows]
    names = [f"{time:g} s" for time in times]
    short = names
    known = [moment for moment in moments if moment is not None]
    if rows and len(known) == len(rows):
        names = [str(row["at"]) for row in rows]
        short = _short(known)
    elif all(row.get("source") for row in rows) and any(
        row.get("ordered_by") != INTERVAL for row in rows
    ):
        names = [str(row["source"]) for row in rows]
        short = _ends(names)
    return [Reading(*each) for each in zip(times, _distinct(names), _distinct(short), strict=True)]


def _moment(at: object) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(str(at))
    except ValueError:
        return None


def _short(moments: Sequence[datetime.datetime]) -> list[str]:
    """Times of day, with what tells them apart."""
    one_day = len({moment.date() for moment in moments}) == 1
    for form in FORMS:
        texts = [moment.strftime(form) for moment in moments]
        if len(set(texts)) == len(texts) and (one_day or "%d" in form):
            break
    return [text[:-3] if "." in text else text for text in texts]


def _ends(names: Sequence[str]) -> list[str]:
    """Names without what they begin with alike, up to a mark, and no longer than a heading."""
    low, high = min(names), max(names)
    same = next((at for at, (a, b) in enumerate(zip(low, high)) if a != b), 0)  # noqa: B905
    while same and low[same - 1].isalnum():
        same -= 1
    texts = ["…" * (same > 0) + name[same:] for name in names]
    return [text if len(text) <= MAX_HEADING else f"…{text[1 - MAX_HEADING :]}" for text in texts]


def _distinct(names: Sequence[str]) -> list[str]:
    """Names with their number where two are the same, or one is that of another column."""
    if len({*names, *STACK_COLUMNS}) == len(names) + len(STACK_COLUMNS):
        return list(names)
    return [f"{name} #{number}" for number, name in enumerate(names, 1)]


def points_of(rows: Iterable[Row]) -> dict[int, Points]:
    """The points of each stack, by handle, of page_owner_series."""
    found: dict[int, Points] = {}
    for row in rows:
        found.setdefault(row["handle"], []).append((float(row["time"]), row["pages"]))
    for points in found.values():
        points.sort(key=lambda point: point[0])
    return found


def pages_at(points: Points, readings: Sequence[Reading]) -> list[int | None]:
    """A stack's pages at each reading: between two points they stay as they were at the first."""
    times = [time for time, _ in points]
    before = (bisect.bisect_right(times, reading.time) for reading in readings)
    return [points[number - 1][1] if number else None for number in before]


def gained(points: Points) -> int:
    """Pages in the last reading less those in the first."""
    return (points[-1][1] or 0) - (points[0][1] or 0)


def in_order(points: Mapping[int, Points], *, grown: bool) -> list[int]:
    """
    Handles, of the stacks that gained most first.

    :param grown: whether the order of the readings is known; without it, that have most in the
        last column first.
    """
    last = {handle: gained(of) if grown else of[-1][1] or 0 for handle, of in points.items()}
    return sorted(points, key=lambda handle: (-last[handle], handle))


def spread(count: int, room: int) -> list[int]:
    """At most so many of some positions: the first, the last, and what is evenly between."""
    if count <= room:
        return list(range(count))
    room = max(room, 2)
    return [round(number * (count - 1) / (room - 1)) for number in range(room)]


def matrix(
    stacks: Iterable[Row], points: Mapping[int, Points], readings: Sequence[Reading], *, grown: bool
) -> Iterator[tuple[Row, list[int | None]]]:
    """Rows: what is known of the stack, and its pages at each reading."""
    known = {row["handle"]: row for row in stacks if row["handle"] in points}
    for handle in in_order(points, grown=grown):
        yield known.get(handle, {"handle": handle}), pages_at(points[handle], readings)
