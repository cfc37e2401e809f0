# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Charts over time, one below the other on one clock: a lane each, with what happened marked in all.

Every lane has the same left and right end. Positions across are thousandths of that, so that the
panel fits any width; its axis begins at 0 and is linear. Beside each path stand its points, from
which ``time_panel.js`` reads values at a moment, and rates and growth of a period.

Cannot know: when between two points something happened.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mmscope.drgn.tables import display

Points = list[tuple[float, float]]
Row = dict[str, Any]

MAX_LINES = 12  # of a lane; more cannot be distinguished
MAX_POINTS = 120  # of a line
WIDTH, HEIGHT = 1000, 100
SAME_MOMENT = 0.1  # seconds between two readings that were made together
# Steps between labels of a clock, in seconds: at most so many labels.
STEPS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400),
)
MAX_TICKS = 8
ROUND = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
# Of a thousand: less than this between two labels, and they would run into each other.
LABEL_WIDTH = 130


@dataclass(frozen=True, slots=True)
class Clock:
    """The axis of all lanes."""

    first: float  # seconds of the watch
    last: float
    start: datetime | None  # of second 0, as the machine's clock had it

    def at(self, seconds: float) -> float:
        """Thousandths of the panel; what cannot be in it is at its edge."""
        at = WIDTH * (seconds - self.first) / max(self.last - self.first, 1e-9)
        return round(min(max(at, 0.0), float(WIDTH)), 1)

    @property
    def words(self) -> str:
        """Name of the clock."""
        if self.start is None:
            return "seconds since the first sample"
        return f"{self.start:%Y-%m-%d}, {self.start.tzname() or 'time of the machine'}"

    @property
    def base(self) -> float:
        """Second 0 as seconds of its day; 0 without a clock."""
        midnight = self.start and self.start.replace(hour=0, minute=0, second=0, microsecond=0)
        return (self.start - midnight).total_seconds() if self.start and midnight else 0.0

    def label(self, seconds: float, step: float) -> str:
        """The time that the clock showed."""
        if self.start is None:
            return f"{seconds:,.6g}"
        moment = self.start + timedelta(seconds=seconds)
        if step >= 86400:
            return f"{moment:%m-%d}"
        if step < 1:
            return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}"
        return f"{moment:%H:%M}" if step >= 60 else f"{moment:%H:%M:%S}"

    def ticks(self) -> list[tuple[float, str]]:
        """(where, label) of round moments, from the first to the last."""
        span = self.last - self.first
        step = next((step for step in STEPS if span / step <= MAX_TICKS), 0.0)
        step = step or math.ceil(span / MAX_TICKS / 86400) * 86400
        base = self.base
        begin = math.ceil(round((self.first + base) / step, 6))
        end = math.floor(round((self.last + base) / step, 6))
        moments = [number * step - base for number in range(begin, end + 1)]
        return [(self.at(moment), self.label(moment, step)) for moment in moments]


def clock(times: Sequence[float], at: object) -> Clock:
    """
    The axis of samples.

    :param times: of samples, in order. :param at: what the clock showed at the first of them.
    """
    try:
        start = datetime.fromisoformat(str(at)) - timedelta(seconds=times[0])
    except (ValueError, OverflowError):
        start = None
    return Clock(times[0], times[-1], start)


def shift(rows: Sequence[Row], into: Sequence[Row]) -> float | None:
    """
    Time to add to those of *rows* to have them on the clock of *into*.

    None where they do not go together: a clock is not known, or one is not within the other.
    """
    ours, theirs = (sorted(each, key=lambda row: float(row["time"])) for each in (rows, into))
    if not ours or not theirs:
        return None
    try:
        # When second 0 was, as the first rows say.
        mine, other = (
            datetime.fromisoformat(str(first["at"])) - timedelta(seconds=first["time"])
            for first, *_ in (ours, theirs)
        )
        seconds = (mine - other).total_seconds()
    except (OverflowError, TypeError, ValueError):
        return None
    begin, end = (ours[at]["time"] + seconds for at in (0, -1))
    inside = begin >= theirs[0]["time"] - SAME_MOMENT and end <= theirs[-1]["time"] + SAME_MOMENT
    return seconds if inside else None


def nearest(moment: float, times: Sequence[float]) -> float:
    """The one of *times* that is meant, so that what was read together has one place."""
    at = bisect.bisect_left(times, moment)
    near = min(times[max(at - 1, 0) : at + 1], key=lambda time: abs(time - moment))
    return near if abs(near - moment) <= SAME_MOMENT else moment


def top_of(most: float) -> float:
    """The round number at which an axis ends."""
    if most <= 0 or not math.isfinite(most):
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next((power * n for n in ROUND if power * n >= most * (1 - 1e-12)), 10 * power)


def step_of(count: int) -> int:
    """Samples that a point stands for."""
    return max(-(-count // MAX_POINTS), 1)


def thin(points: Points, how: Callable[[Iterable[float]], float]) -> Points:
    """At most :data:`MAX_POINTS`, each at the end of what it stands for."""
    step = step_of(len(points))
    parts = (points[at : at + step] for at in range(0, len(points), step))
    return [(part[-1][0], how(value for _, value in part)) for part in parts]


def in_bytes(lines: Sequence[tuple[str, Points]]) -> tuple[str, list[tuple[str, Points]]]:
    """A unit that gives an axis short numbers, and lines of bytes in it."""
    most = max(value for _, points in lines for _, value in points)
    power = min(max(0, (int(most).bit_length() - 1) // 10), len(display.UNITS) - 1)
    size = 1 << 10 * power
    scaled = [(name, [(at, value / size) for at, value in points]) for name, points in lines]
    return display.UNITS[power], scaled


def lane(
    title: str,
    lines: Sequence[tuple[str, Points]],
    axis: Clock,
    unit: str,
    *,
    rate: bool = False,
    top: float | None = None,
) -> Row:
    """
    A chart of lines that have points, each as (name, path, points): the points are ``seconds
    value`` each; of a rate two of them, which hold the step between.

    :param rate: the lines are amounts per second, else levels.
    """
    end = top or top_of(max(value for _, points in lines for _, value in points))
    drawn = []
    for name, points in lines[:MAX_LINES]:
        places = [
            f"{axis.at(at):g} {HEIGHT - HEIGHT * min(value, end) / end:.4g}" for at, value in points
        ]
        said = " ".join(f"{at:.10g} {value:.7g}" for at, value in points)
        # A point alone is as wide as its dot.
        path = f"M{'L'.join(places)}" + ("h.1" if len(places) == 1 else "")
        drawn.append((name, path, said))
    return {"title": title, "unit": unit, "top": f"{end:,.6g}", "rate": rate, "lines": drawn}


def marks(happened: Iterable[tuple[float, str, str, bool]], axis: Clock) -> list[Row]:
    """
    Events with their places, and labels where there is room; ``last``: to the left of it.

    :param happened: (second, label, words, loud).
    """
    found: list[Row] = []
    free_from = -1.0
    for seconds, label, words, loud in happened:
        at = axis.at(seconds)
        last = at > WIDTH - LABEL_WIDTH
        begins = at - LABEL_WIDTH if last else at
        shown = label if loud and begins >= free_from else ""
        if shown:
            free_from = begins + LABEL_WIDTH
        found.append({"at": at, "label": shown, "words": words, "loud": loud, "last": last})
    return found
