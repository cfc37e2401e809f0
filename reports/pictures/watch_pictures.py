# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What ``mmscope watch`` saw, over time: rates, levels, pressure, with what went wrong marked.

A chart has at most ``time_panel.MAX_POINTS`` moments; where there were more samples, a point stands
for several: rates are over all of them, levels the lowest of what is free and the highest of what
is taken, so that no extreme is lost.

Cannot know: when in a period something happened; marks are at its end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmscope.drgn.tables import display
from mmscope.reports.drawing import time_panel
from mmscope.reports.drawing.time_panel import Clock, Lane, Mark, Points, step_of, thin
from mmscope.reports.pictures import owner_pictures
from mmscope.reports.pictures.picture import Picture, Tables

Rows = Sequence[dict[str, Any]]

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


@dataclass(frozen=True, slots=True)
class EventSum:
    """What happened of one kind."""

    name: str
    event: str
    count: int
    periods: int
    worst: int
    worst_at: str


@dataclass
class Quiet:
    """What is a line of words: lines that never leave 0, charts in which nothing moves."""

    zero: list[str] = field(default_factory=list)
    flat: list[str] = field(default_factory=list)


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
    axis = time_panel.clock([sample["time"] for sample in samples], samples[0]["at"])
    quiet = Quiet()
    found: list[Lane | None] = [
        _thp(tables.get("thp_free_blocks_series", []), axis, quiet),
        _reserve(tables.get("zone_series", []), axis, page_size, quiet),
        _pressure(tables.get("psi_series", []), axis, quiet),
    ]
    still = []
    # What was not read twice has not stood still: it is not known.
    counted = sum("vmstat" not in _unread(sample) for sample in samples) > 1
    rates = _rates(tables.get("counter_rates", []), samples)
    for title, what, names in RATES:
        lines = [(name, rates[name]) for name in names if name in rates]
        found.append(_chart(title, lines, f"{what} per second", axis, quiet, rate=True))
        if not lines and counted:
            still.append(title)
    gauges = _gauges(tables.get("gauge_series", []))
    for title, how, names in LEVELS:
        lines = [(name, gauges[name]) for name in names if name in gauges]
        found.append(_chart(title, lines, "", axis, quiet, how=(how,) * len(lines)))
    ksm = [(name, gauges[name]) for name in KSM if name in gauges]
    found.append(_chart("KSM", ksm, "pages", axis, quiet, how=(max,) * len(ksm)))
    if lines := owner_pictures.lines_in_watch(tables, page_size):
        unit = "" if page_size else "pages"
        found.append(_chart("Allocation stacks that grew most", lines, unit, axis, quiet))
    shown = -(-len(samples) // step_of(len(samples)))
    return {
        "charts": [chart for chart in found if chart is not None],
        "clock": axis,
        "marks": _marks(tables.get("watch_events", []), axis),
        "still": still,
        "zero": quiet.zero,
        "flat": quiet.flat,
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


def _chart(
    title: str,
    lines: list[tuple[str, Points]],
    unit: str,
    axis: Clock,
    quiet: Quiet,
    *,
    rate: bool = False,
    top: float | None = None,
    how: Sequence[Callable[[Iterable[float]], float]] = (),
) -> Lane | None:
    """
    A chart, None if it has nothing to show. Without a unit the values are bytes.

    :param quiet: what has nothing to show is named there.
    :param how: of levels, which of several samples a point of each line is.
    """
    still = bool(how) and all(len({v for _, v in points}) == 1 < len(points) for _, points in lines)
    if how:
        lines = [(name, thin(points, h)) for (name, points), h in zip(lines, how, strict=True)]
    quiet.zero += [
        f"{title}: {name}" for name, points in lines if points and not any(v for _, v in points)
    ]
    lines = [(name, points) for name, points in lines if any(value for _, value in points)]
    if not lines:
        return None
    if not unit:
        unit, lines = time_panel.in_bytes(lines)
    if still:
        said = ", ".join(f"{name} {points[0][1]:,.4g} {unit}" for name, points in lines)
        quiet.flat.append(f"{title}: {said}")
        return None
    return time_panel.lane(title, lines, axis, unit, rate=rate, top=top)


def _thp(rows: Rows, axis: Clock, quiet: Quiet) -> Lane | None:
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
    drawn: list[tuple[str, Points]] = [(name, sorted(lines[name].items())) for name in order]
    return _chart("Free blocks of THP size", drawn, "blocks", axis, quiet, how=(min,) * len(drawn))


def _reserve(rows: Rows, axis: Clock, page_size: int | None, quiet: Quiet) -> Lane | None:
    """The HighAtomic reserve of all zones, at the moments at which it is known of each."""
    lines = []
    for name, column in (
        ("reserved", "highatomic_reserved_pages"),
        ("of it free", "highatomic_free_pages"),
    ):
        sums: dict[float, int | None] = {}
        for row in rows:
            before, pages = sums.get(row["time"], 0), row[column]
            known = before is not None and pages is not None
            sums[row["time"]] = before + pages * (page_size or 1) if known else None
        points = [(at, float(value)) for at, value in sorted(sums.items()) if value is not None]
        lines.append((name, points))
    unit = "" if page_size else "pages"
    return _chart("HighAtomic reserve", lines, unit, axis, quiet, how=(max, min))


def _pressure(rows: Rows, axis: Clock, quiet: Quiet) -> Lane | None:
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
    return _chart("Memory pressure", drawn, "% of the time", axis, quiet, rate=True, top=float(top))


def _over(points: list[tuple[float, float, float]]) -> Points:
    """
    (end, amount, length) of periods as steps: a rate holds for all of its period, and where a point
    stands for several, it is over all of them.
    """
    points.sort()
    step = step_of(len(points))
    steps = []
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


def _marks(rows: Rows, axis: Clock) -> list[Mark]:
    """What is marked, no two of a kind at the same place."""
    found: dict[tuple[str, int], tuple[float, int]] = {}
    for row in rows:
        if row["name"] in MARKED:
            place = (
                row["name"],
                int(axis.at(row["time"]) * time_panel.MAX_POINTS / time_panel.WIDTH),
            )
            count = found.get(place, (0.0, 0))[1]
            found[place] = row["time"], count + row["count"]
    happened = []
    for (name, _), (at, count) in sorted(found.items(), key=lambda item: item[1][0]):
        label, loud = MARKED[name]
        words = display.plural(count, label) if count > 1 else label
        happened.append((at, words, f"{words}, until {axis.label(at, 1)}", loud))
    return time_panel.marks(happened, axis)


def _events(rows: Rows, samples: Rows) -> list[EventSum]:
    at = {row["time"]: row["at"] for row in samples}
    found: dict[str, list[dict[str, Any]]] = {}
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
    | {"watch_events", "watch_overhead"}
    | {"page_owner_growth", "page_owner_stacks", "page_owner_snapshots"},
    parts=owner_pictures.SERIES,
    chosen={"counter_rates": rates_wanted, "gauge_series": levels_wanted},
)
