# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Samples of ``mmscope watch`` over time: rates, levels, pressure, with what went wrong marked.

A chart has at most ``time_panel.MAX_POINTS`` moments; where there were more samples, a point stands
for several: rates are over all of them, levels the lowest of what is free and the highest of what
is taken, so that no extreme is lost.

Cannot know: when in a period something happened; marks are at its end.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.display import bar_percent
from mmscope.drgn.tables.hostile_text import cut
from mmscope.reports.drawing import time_panel
from mmscope.reports.drawing.class_looks import look
from mmscope.reports.drawing.time_panel import Clock, Points, step_of, thin
from mmscope.reports.pictures import owner_pictures
from mmscope.reports.pictures.picture import Row, Rows, Tables, picture

Lines = list[tuple[str, Points]]
# Title, unit (none: the values are bytes), lines; how a rate is drawn, or which of several samples
# a point of each line of levels is.
Chart = tuple[str, str, Lines, dict[str, Any]]

# Kinds of events; a watch has a dozen.
MAX_EVENTS = 40
# What a THP fault cannot take (fallbacks[], mm/page_alloc.c).
NOT_FOR_THP = ("HighAtomic", "Isolate")
ALLOCSTALL = "allocstall"
# Title, what a point is per second of, counters. Those of all zones together go by their beginning.
RATES = (
    ("Page faults for transparent huge pages", "faults", "thp_fault_alloc thp_fault_fallback"),
    ("Direct compaction", "attempts", "compact_stall compact_success compact_fail"),
    ("Direct reclaim", "allocations", ALLOCSTALL),
    (
        *("Pages scanned and reclaimed", "pages"),
        "pgscan_kswapd pgscan_direct pgsteal_kswapd pgsteal_direct",
    ),
    (
        *("Swap, and pages read again after they were reclaimed", "pages"),
        "pswpin pswpout workingset_refault_anon workingset_refault_file",
    ),
)
# Title, unit, which of several samples a point is; names in /proc/meminfo, and of KSM.
LEVELS: tuple[tuple[str, str, Callable[[Iterable[float]], float], str], ...] = (
    ("Free memory", "", min, "MemFree MemAvailable"),
    ("What processes and files hold", "", max, "AnonPages Cached Shmem Hugetlb"),
    (
        *("What the kernel holds itself", "", max),
        "SUnreclaim SReclaimable PageTables SecPageTables KernelStack Percpu",
    ),
    (
        *("KSM", "pages", max),
        "pages_sharing pages_shared pages_unshared pages_volatile ksm_zero_pages",
    ),
)
# FOR_ALL_ZONES(ALLOCSTALL), include/linux/vm_event_item.h: of all zones together.
ZONES = ("dma", "dma32", "normal", "high", "movable", "device")
COUNTERS = {name: name for *_, names in RATES for name in names.split()} | {
    f"{ALLOCSTALL}_{zone}": ALLOCSTALL for zone in ZONES
}
GAUGES = {name for *_, names in LEVELS for name in names.split()}
# What is marked in every chart: counter, label, whether it is worth a line from top to bottom.
MARKED = {"oom_kill": ("OOM kill", True), "compact_fail": ("failed compaction", False)}
# Without a row of events: what did not happen, by the counter that says so.
UNHAPPENED = {
    "oom_kill": "OOM kill",
    "compact_fail": "failed compaction",
    ALLOCSTALL: "direct reclaim",
}
# Levels of memory that are classes of the ledger, as these are drawn everywhere.
OF_CLASS = {
    "AnonPages": "anonymous",
    "Cached": "page cache",
    "Shmem": "shmem",
    "Hugetlb": "hugetlb",
    "SUnreclaim": "slab",
    "SReclaimable": "slab",
    "PageTables": "page tables",
    "KernelStack": "kernel stacks",
    "Percpu": "percpu",
}
# Kinds of holders as classes of memory; a cgroup holds of several.
HELD_AS = {
    "process": "anonymous",
    "slab cache": "slab",
    "vmalloc caller": "vmalloc",
    "shared file": "shmem",
}
MAX_HOLDERS = 12
# Title, kinds of holders in it; of each kind as many lines as there are dashes for one colour.
HOLDERS = (
    ("Processes that changed most", ("process",)),
    ("Memory cgroups that changed most, with those below them", ("cgroup",)),
    ("Files of shared memory that changed most", ("shared file",)),
    ("Slab caches and callers of vmalloc that changed most", ("slab cache", "vmalloc caller")),
    ("Lines of source that changed most", ("line of source",)),
)
MOST_LINES = 3
PARTS = 4  # of a watch, whose rates say how sure the rate of the whole is
LEAST_FALL = 0.02  # of what was available at first
MAX_AHEAD = 30 * 86400


@picture(
    "watch_samples",
    "time at period_seconds unread",
    others="psi_series thp_free_blocks_series zone_series watch_events watch_overhead "
    "watch_holders watch_holder_series page_owner_growth page_owner_stacks page_owner_snapshots",
    # There are hundreds of counters.
    parts=owner_pictures.SERIES
    | {
        "counter_rates": ("name", lambda tables: COUNTERS.keys() | UNHAPPENED.keys()),
        "gauge_series": ("name", lambda tables: GAUGES),
    },
)
def watch(tables: Tables, page_size: int | None) -> Row:
    """Charts, what is a line of words since it never moves, and what happened."""
    samples = sorted(tables["watch_samples"], key=lambda row: row["time"])
    axis = time_panel.clock([sample["time"] for sample in samples], samples[0]["at"])
    # What was not read twice has not stood still: it is not known.
    counted = sum("vmstat" not in _unread(sample) for sample in samples) > 1
    charts: list[Row] = []
    still, zero, flat = [], [], []
    for title, unit, lines, options in _charts(tables, samples, page_size):
        how = options.pop("how", ())
        if options and not lines and counted:
            still.append(title)
        level = how and all(len({v for _, v in points}) == 1 < len(points) for _, points in lines)
        if how:
            lines = [(name, thin(points, h)) for (name, points), h in zip(lines, how, strict=True)]
        moved = [(name, points) for name, points in lines if any(value for _, value in points)]
        zero += [f"{title}: {n}" for n, points in lines if points and (n, points) not in moved]
        if not moved:
            continue
        if not unit:
            unit, moved = time_panel.in_bytes(moved)
        if level:
            said = ", ".join(f"{name} {points[0][1]:,.4g} {unit}" for name, points in moved)
            flat.append(f"{title}: {said}")
        else:
            charts.append(time_panel.lane(title, moved, axis, unit, **options))
    events = tables.get("watch_events", [])
    happened = {row["name"] for row in events}
    moved_too = {COUNTERS.get(row["name"], row["name"]) for row in tables.get("counter_rates", [])}
    return {
        "charts": charts,
        "clock": axis,
        "marks": _marks(events, axis),
        "still": still,
        "zero": zero,
        "flat": flat,
        "counted": counted,
        "unhappened": [said for name, said in UNHAPPENED.items() if name not in moved_too],
        "holders": _holders(tables.get("watch_holders", [])),
        "runs_out": _runs_out(tables.get("gauge_series", [])),
        "looks": {
            name: look(kind).split()[0]
            for name, kind in (*OF_CLASS.items(), *_holder_classes(tables))
        },
        "samples": len(samples),
        "shown": -(-len(samples) // step_of(len(samples))),
        "seconds": samples[-1]["time"] - samples[0]["time"],
        "events": _events(events, samples),
        "marked": [MARKED[name] for name in MARKED if name in happened],
        "overhead": next(iter(tables.get("watch_overhead", [])), None),
    }


def _charts(tables: Tables, samples: Rows, page_size: int | None) -> Iterator[Chart]:
    unit_of_pages = "" if page_size else "pages"
    lines = _thp(tables.get("thp_free_blocks_series", []))
    yield "Free blocks of THP size", "blocks", lines, {"how": (min,) * len(lines)}
    lines = _reserve(tables.get("zone_series", []), page_size or 1)
    yield "HighAtomic reserve", unit_of_pages, lines, {"how": (max, min)}
    lines = _pressure(tables.get("psi_series", []))
    most = max((value for _, points in lines for _, value in points), default=0.0)
    top = next(limit for limit in (1.0, 5.0, 20.0, 100.0) if most <= limit or limit == 100)
    yield "Memory pressure", "% of the time", lines, {"rate": True, "top": top}
    machine = [r for r in tables.get("counter_rates", []) if not r["source"].startswith("node ")]
    rates = _rates(machine, samples)
    for title, what, names in RATES:
        lines = [(name, rates[name]) for name in names.split() if name in rates]
        yield title, f"{what} per second", lines, {"rate": True}
    gauges: dict[str, Points] = {}
    for row in tables.get("gauge_series", []):
        gauges.setdefault(row["name"], []).append((row["time"], row["value"]))
    for title, unit, how, names in LEVELS:
        lines = [(name, sorted(gauges[name])) for name in names.split() if name in gauges]
        yield title, unit, lines, {"how": (how,) * len(lines)}
    for title, kinds in HOLDERS:
        lines = [line for kind in kinds for line in _held_over_time(tables, kind)]
        yield title, "", lines, {"how": (max,) * len(lines)}
    lines = owner_pictures.lines_in_watch(tables, page_size)
    yield "Allocation stacks that grew most", unit_of_pages, lines, {}


def _held_over_time(tables: Tables, kind: str) -> Lines:
    """The holders of a kind whose memory changed most, at each reading."""
    lines: dict[str, Points] = {}
    for row in tables.get("watch_holder_series", []):
        if row["kind"] == kind:
            lines.setdefault(_called(row), []).append((row["time"], row["bytes"]))
    for points in lines.values():
        points.sort()
    return heapq.nlargest(MOST_LINES, lines.items(), key=lambda line: _span(line[1]))


def _span(points: Points) -> float:
    sizes = [size for _, size in points]
    return max(sizes) - min(sizes)


def _holder_classes(tables: Tables) -> Iterator[tuple[str, str]]:
    """Names of holders' lines, each with its class of memory, where it holds of one."""
    for row in tables.get("watch_holder_series", []):
        if row["kind"] in HELD_AS:
            yield _called(row), HELD_AS[row["kind"]]


def _called(row: Row) -> str:
    name = cut(row["name"], 60)
    return f"{name} (pid {row['pid']})" if row["pid"] else name


def _holders(rows: Rows) -> list[Row]:
    """Holders that grew or shrank most, with bars of first, most and last."""
    moved = heapq.nlargest(
        MAX_HOLDERS,
        rows,
        key=lambda row: (abs(row["last_bytes"] - row["first_bytes"]), row["most_bytes"]),
    )
    scale = max((row["most_bytes"] for row in moved), default=0)
    return [
        row
        | {
            "name": _called(row),
            "look": look(HELD_AS.get(row["kind"], "")).split()[0],
            **{
                what: bar_percent(row[f"{what}_bytes"], scale) for what in ("first", "most", "last")
            },
        }
        for row in moved
    ]


def _runs_out(rows: Rows) -> str:
    """Say when memory is out at the measured rate, and at those of parts of the watch."""
    points = sorted((r["time"], r["value"]) for r in rows if r["name"] == "MemAvailable")
    if len(points) <= 2 * PARTS or points[-1][0] <= points[0][0]:
        return ""
    ends = [points[len(points) * part // PARTS] for part in range(PARTS)] + [points[-1]]
    rates = [(a - b) / (end - start) for (start, a), (end, b) in pairwise(ends) if end > start]
    (start, first), (end, left) = points[0], points[-1]
    if min(rates) <= 0 or first - left < LEAST_FALL * first:
        return ""
    rate = (first - left) / (end - start)
    if left / rate > MAX_AHEAD:
        return ""
    soon, late, about = (_about(left / each) for each in (max(rates), min(rates), rate))
    return (
        f"{display.size(left)} available, {display.size(round(rate))} less each second: "
        f"out of memory in about {about} at this rate (swap not counted). "
        f"By the rates of the {PARTS} quarters of the watch: {soon} to {late}."
    )


def _about(seconds: float) -> str:
    """A time ahead in one unit, to the two digits that a rate gives."""
    units = ((86400, "d"), (3600, "h"), (60, "min"))
    size, unit = next((pair for pair in units if seconds >= pair[0]), (1, "s"))
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"


def _thp(rows: Rows) -> Lines:
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
    return [(name, sorted(lines[name].items())) for name in order]


def _reserve(rows: Rows, size: int) -> Lines:
    """The HighAtomic reserve of all zones, at the moments at which it is known of each."""
    lines = []
    for name, column in (
        ("reserved", "highatomic_reserved_pages"),
        ("of it free", "highatomic_free_pages"),
    ):
        pages: dict[float, list[Any]] = {}
        for row in rows:
            pages.setdefault(row["time"], []).append(row[column])
        known = [at for at in sorted(pages) if None not in pages[at]]
        lines.append((name, [(at, float(size * sum(pages[at]))) for at in known]))
    return lines


def _pressure(rows: Rows) -> Lines:
    lines: dict[str, list[tuple[float, float, float]]] = {"some": [], "full": []}
    for row in rows:
        if row["kind"] in lines and row["stall_seconds"] is not None:
            lines[row["kind"]].append((row["time"], row["stall_seconds"], row["period_seconds"]))
    return [
        (f"PSI {kind}", [(at, 100 * share) for at, share in _over(points)])
        for kind, points in lines.items()
    ]


def _over(points: list[tuple[float, float, float]]) -> Points:
    """
    (end, amount, length) of periods as steps: a rate holds for all of its period, and where a point
    stands for several, it is over all of them.
    """
    points.sort()
    step = step_of(len(points))
    steps: Points = []
    for at in range(0, len(points), step):
        part = points[at : at + step]
        length = sum(period for _, _, period in part)
        rate = sum(amount for _, amount, _ in part) / length
        # The kernel's clock and the watch's differ by some ms: no line goes back in time.
        begin = max(part[-1][0] - length, steps[-1][0] if steps else -math.inf)
        steps += [(begin, rate), (part[-1][0], rate)]
    return steps


def _rates(rows: Rows, samples: Rows) -> dict[str, Points]:
    """Rates of the counters that moved; a period without a row is one in which it did not."""
    moved: dict[str, dict[float, float]] = {}
    for row in rows:
        if row["source"] != "vmstat" or row["name"] not in COUNTERS:
            continue
        line = moved.setdefault(COUNTERS[row["name"]], {})
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
        if periods
    }


def _unread(sample: Row) -> list[str]:
    return str(sample["unread"] or "").split(", ")


def _marks(rows: Rows, axis: Clock) -> list[Row]:
    """Marks of events, no two of a kind at the same place."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row["name"] in MARKED:
            place = int(axis.at(row["time"]) * time_panel.MAX_POINTS / time_panel.WIDTH)
            found.setdefault((row["name"], place), []).append(row)
    happened = []
    for (name, _), members in found.items():
        label, loud = MARKED[name]
        at, count = members[-1]["time"], sum(row["count"] for row in members)
        words = display.plural(count, label) if count > 1 else label
        happened.append((at, words, f"{words}, until {axis.label(at, 1)}", loud))
    return time_panel.marks(sorted(happened, key=lambda each: each[0]), axis)


def _events(rows: Rows, samples: Rows) -> list[tuple[str, str, int, int, int, str]]:
    """Kinds of events: (name, words, times, periods, most in one, which ended), OOM kills first."""
    at = {row["time"]: row["at"] for row in samples}
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["name"], []).append(row)
    counts = {name: sum(row["count"] for row in members) for name, members in found.items()}
    sums = []
    for name in sorted(found, key=lambda name: (name != "oom_kill", -counts[name], name)):
        worst = max(found[name], key=lambda row: row["count"])
        words = cut(name, 60), cut(found[name][0]["event"], 120)
        ended = at.get(worst["time"], "")
        sums.append((*words, counts[name], len(found[name]), worst["count"], ended))
    return sums[:MAX_EVENTS]
