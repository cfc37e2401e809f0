# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What ``mmscope watch`` saw, over time: rates, levels, pressure, with what went wrong marked.

A chart has at most :data:`MAX_POINTS` moments; where there were more samples, a point stands for
several: rates are over all of them, levels the lowest of what is free and the highest of what is
taken, so that no extreme is lost.

Cannot know: when in a period something happened; marks are at its end.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.drawing import charts
from mmscope.reports.pictures.picture import Picture, Tables

Rows = list[dict[str, Any]]
Points = list[tuple[float, float]]

MAX_POINTS = 120
# Kinds of events; a watch has a dozen.
MAX_EVENTS = 40
# What a THP fault cannot take (fallbacks[], mm/page_alloc.c).
NOT_FOR_THP = ("HighAtomic", "Isolate")
ALLOCSTALL = "allocstall"
# Title, what a point is per second of, counters. Those of all zones together go by their beginning.
RATES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Page faults for transparent huge pages", "faults", ("thp_fault_alloc", "thp_fault_fallback")),
    (
        "Direct compaction",
        "attempts",
        ("compact_stall", "compact_success", "compact_fail"),
    ),
    ("Allocations that had to reclaim themselves", "allocations", (ALLOCSTALL,)),
    (
        "Pages scanned and reclaimed",
        "pages",
        ("pgscan_kswapd", "pgscan_direct", "pgsteal_kswapd", "pgsteal_direct"),
    ),
    (
        "Swap, and pages read again after they were reclaimed",
        "pages",
        ("pswpin", "pswpout", "workingset_refault_anon", "workingset_refault_file"),
    ),
)
# Title, which of several samples a point is, names in /proc/meminfo.
LEVELS: tuple[tuple[str, Callable[[Iterable[float]], float], tuple[str, ...]], ...] = (
    ("Free memory", min, ("MemFree", "MemAvailable")),
    ("What processes and files hold", max, ("AnonPages", "Cached", "Shmem", "Hugetlb")),
    (
        "What the kernel holds itself",
        max,
        ("SUnreclaim", "SReclaimable", "PageTables", "SecPageTables", "KernelStack", "Percpu"),
    ),
)
KSM = ("pages_sharing", "pages_shared", "pages_unshared", "pages_volatile", "ksm_zero_pages")
COUNTERS = {name for _, _, names in RATES for name in names}
GAUGES = {*KSM, *(name for _, _, names in LEVELS for name in names)}
# What is marked in every chart: counter, label, whether it is worth a line from top to bottom.
MARKED = {"oom_kill": ("OOM kill", True), "compact_fail": ("failed compaction", False)}
UNITS = ((7200.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


@dataclass(frozen=True)
class Chart:
    """One chart; the n-th name is that of its n-th line."""

    title: str
    svg: Markup
    names: list[str]


@dataclass(frozen=True)
class EventSum:
    """What happened of one kind."""

    name: str
    event: str
    count: int
    periods: int
    worst: int
    worst_at: str


def rates_wanted(tables: Tables) -> Callable[[dict[str, Any]], bool]:
    """Which rates are drawn: there are hundreds of counters."""
    return lambda row: _counter(row["name"]) in COUNTERS and row["source"] == "vmstat"


def levels_wanted(tables: Tables) -> Callable[[dict[str, Any]], bool]:
    """Which levels are drawn."""
    return lambda row: row["name"] in GAUGES


def _counter(name: str) -> str:
    return ALLOCSTALL if name.startswith(ALLOCSTALL + "_") else name


def view(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """Charts, and what happened, of the tables of a watch."""
    samples = sorted(tables["watch_samples"], key=lambda row: row["time"])
    seconds = samples[-1]["time"] - samples[0]["time"]
    _, unit, unit_name = next(u for u in UNITS if seconds >= u[0])
    axis = _Axis(
        unit,
        (samples[0]["time"] / unit, samples[-1]["time"] / unit),
        f"{unit_name} since {visible(display.cut(samples[0]['at'], 40))}",
        _marks(tables.get("watch_events", []), seconds, unit),
    )
    found: list[Chart | None] = [
        _thp(tables.get("thp_free_blocks_series", []), axis),
        _reserve(tables.get("zone_series", []), axis, page_size),
        _pressure(tables.get("psi_series", []), axis),
    ]
    still = []
    # What was not read twice has not stood still: it is not known.
    counted = sum("vmstat" not in _unread(sample) for sample in samples) > 1
    rates = _rates(tables.get("counter_rates", []), samples)
    for title, what, names in RATES:
        lines = [(name, rates[name]) for name in names if name in rates]
        found.append(_chart(title, lines, f"{what} per second", axis))
        if not lines and counted:
            still.append(title)
    gauges = _gauges(tables.get("gauge_series", []))
    for title, how, names in LEVELS:
        lines = [(name, _thin(gauges[name], how)) for name in names if name in gauges]
        found.append(_chart(title, lines, "", axis))
    found.append(
        _chart("KSM", [(n, _thin(gauges[n], max)) for n in KSM if n in gauges], "pages", axis)
    )
    shown = -(-len(samples) // _step(len(samples)))
    return {
        "charts": [chart for chart in found if chart is not None],
        "still": still,
        "counted": counted,
        "samples": len(samples),
        "shown": shown,
        "seconds": seconds,
        "events": _events(tables.get("watch_events", []), samples),
        "marked": [
            (label, loud)
            for name, (label, loud) in MARKED.items()
            if any(row["name"] == name for row in tables.get("watch_events", []))
        ],
        "overhead": next(iter(tables.get("watch_overhead", [])), None),
    }


@dataclass(frozen=True)
class _Axis:
    """What all charts have in common, so that they can be read one below the other."""

    unit: float  # seconds
    ends: tuple[float, float]  # in that unit
    title: str
    marks: list[charts.Mark]


def _ticks(first: float, last: float) -> list[float]:
    """At most seven round numbers from the first moment to the last."""
    span = max(last - first, 1e-3)
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * n for n in (1, 2, 5, 10) if span / (power * n) <= 6)
    begin, end = math.ceil(first / step), math.floor(last / step)
    return [round(number * step, 9) for number in range(begin, end + 1)]


def _chart(
    title: str, lines: list[tuple[str, Points]], unit: str, axis: _Axis, top: float | None = None
) -> Chart | None:
    """A chart, None if it has nothing to show. Without a unit the values are bytes."""
    lines = [(name, points) for name, points in lines if points]
    if not lines:
        return None
    most = max(value for _, points in lines for _, value in points)
    divisor = 1
    if not unit:
        power = min(max(0, (int(most).bit_length() - 1) // 10), len(display.UNITS) - 1)
        divisor, unit = 1 << 10 * power, display.UNITS[power]
    scaled = [
        (name, [(at / axis.unit, round(value / divisor, 4)) for at, value in points])
        for name, points in lines
    ]
    svg = charts.time_chart(
        scaled,
        axis.marks,
        x_range=axis.ends,
        x_labels=_ticks(*axis.ends),
        x_title=axis.title,
        describe=f"{title}, {unit}, over time; the tables below have the numbers",
        top=top or most / divisor or 1.0,
    )
    # Shapes and escaped text that ElementTree wrote; nothing of it is a string of the bundle's
    # that could be markup.
    return Chart(f"{title}, {unit}", Markup(svg), [name for name, _ in lines])


def _step(count: int) -> int:
    """Samples that a point stands for."""
    return max(-(-count // MAX_POINTS), 1)


def _thin(points: Points, how: Callable[[Iterable[float]], float]) -> Points:
    """At most :data:`MAX_POINTS`, each at the end of what it stands for."""
    step = _step(len(points))
    parts = (points[at : at + step] for at in range(0, len(points), step))
    return [(part[-1][0], how(value for _, value in part)) for part in parts]


def _thp(rows: Rows, axis: _Axis) -> Chart | None:
    lines: dict[str, dict[float, int]] = {}
    for row in rows:
        migratetype = row["migratetype"]
        name = "on lists that THP may take from"
        if migratetype is None:
            name = "on lists of unknown migratetype"
        elif migratetype in NOT_FOR_THP:
            name = f"on {migratetype} lists, which THP may not take from"
        line = lines.setdefault(name, {})
        line[row["time"]] = line.get(row["time"], 0) + row["blocks"]
    order = sorted(lines, key=lambda name: ("Isolate" in name, "HighAtomic" in name, name))
    drawn = [(name, _thin(sorted(lines[name].items()), min)) for name in order]
    # Isolate is empty but while memory is offlined or allocated contiguously.
    drawn = [(n, p) for n, p in drawn if "Isolate" not in n or any(value for _, value in p)]
    return _chart("Free blocks of THP size", drawn, "blocks", axis)


def _reserve(rows: Rows, axis: _Axis, page_size: int | None) -> Chart | None:
    """The HighAtomic reserve of all zones, at the moments at which it is known of each."""
    lines = []
    for name, column, how in (
        ("reserved", "highatomic_reserved_pages", max),
        ("of it free", "highatomic_free_pages", min),
    ):
        sums: dict[float, int | None] = {}
        for row in rows:
            before, pages = sums.get(row["time"], 0), row[column]
            known = before is not None and pages is not None
            sums[row["time"]] = before + pages * (page_size or 1) if known else None
        points = [(at, float(value)) for at, value in sorted(sums.items()) if value is not None]
        if any(value for _, value in points):
            lines.append((name, _thin(points, how)))
    return _chart("HighAtomic reserve", lines, "" if page_size else "pages", axis)


def _pressure(rows: Rows, axis: _Axis) -> Chart | None:
    lines: dict[str, list[tuple[float, float, float]]] = {"some": [], "full": []}
    for row in rows:
        if row["kind"] in lines and row["stall_seconds"] is not None:
            lines[row["kind"]].append((row["time"], row["stall_seconds"], row["period_seconds"]))
    drawn = [
        (f"{kind} tasks waiting", [(at, 100 * share) for at, share in _over(points)])
        for kind, points in lines.items()
    ]
    most = max((value for _, points in drawn for _, value in points), default=0.0)
    top = next(limit for limit in (1, 5, 20, 100) if most <= limit or limit == 100)
    return _chart("Memory pressure", drawn, "% of the time", axis, top=float(top))


def _over(points: list[tuple[float, float, float]]) -> Points:
    """
    (end, amount, length) of periods as steps: a rate holds for all of its period, and where a point
    stands for several, it is over all of them.
    """
    points.sort()
    step = _step(len(points))
    steps: Points = []
    for at in range(0, len(points), step):
        part = points[at : at + step]
        length = sum(period for _, _, period in part)
        rate = sum(amount for _, amount, _ in part) / length
        steps += [(part[-1][0] - length, rate), (part[-1][0], rate)]
    return steps


def _rates(rows: Rows, samples: Rows) -> dict[str, Points]:
    """Rates of the counters that moved; a period without a row is one in which it did not."""
    moved: dict[str, dict[float, float]] = {}
    for row in rows:
        line = moved.setdefault(_counter(row["name"]), {})
        line[row["time"]] = line.get(row["time"], 0.0) + row["delta"]
    periods = []
    waited = 0.0
    for sample in samples:
        waited += sample["period_seconds"] or 0.0
        # Where the counters were not read, the next difference is over that time as well.
        if waited and "vmstat" not in _unread(sample):
            periods.append((sample["time"], waited))
            waited = 0.0
    return {
        name: _over([(at, line.get(at, 0.0), period) for at, period in periods])
        for name, line in moved.items()
        if name in COUNTERS and periods
    }


def _unread(sample: dict[str, Any]) -> list[str]:
    return str(sample["unread"] or "").split(", ")


def _gauges(rows: Rows) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for row in rows:
        found.setdefault(row["name"], []).append((row["time"], row["value"]))
    return {name: sorted(points) for name, points in found.items()}


def _marks(rows: Rows, seconds: float, unit: float) -> list[charts.Mark]:
    """What is marked, no two of a kind at the same place."""
    found: dict[tuple[str, int], tuple[float, int]] = {}
    for row in rows:
        if row["name"] in MARKED:
            place = row["name"], int(row["time"] / seconds * MAX_POINTS) if seconds else 0
            count = found.get(place, (0.0, 0))[1]
            found[place] = row["time"], count + row["count"]
    marks = []
    for (name, _), (at, count) in sorted(found.items(), key=lambda item: item[1][0]):
        label, loud = MARKED[name]
        words = display.plural(count, label) if count > 1 else label
        marks.append(charts.Mark(at / unit, words, f"{words}, until {at:,.1f} s", loud))
    return marks


def _events(rows: Rows, samples: Rows) -> list[EventSum]:
    at = {row["time"]: row["at"] for row in samples}
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row["name"], []).append(row)
    sums = []
    for name, members in found.items():
        worst = max(members, key=lambda row: row["count"])
        sums.append(
            EventSum(
                display.cut(name, 60),
                display.cut(members[0]["event"], 120),
                sum(row["count"] for row in members),
                len(members),
                worst["count"],
                at.get(worst["time"], ""),
            )
        )
    sums.sort(key=lambda event: (event.name != "oom_kill", -event.count, event.name))
    return sums[:MAX_EVENTS]


WATCH = Picture(
    "watch",
    "watch_samples",
    frozenset({"time", "at", "period_seconds", "unread"}),
    view,
    others=frozenset({"psi_series", "thp_free_blocks_series", "zone_series"})
    | {"watch_events", "watch_overhead"},
    chosen={"counter_rates": rates_wanted, "gauge_series": levels_wanted},
)
