# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Owners of memory as pictures: the tables of page_owner and of the slab caches' tracks grouped by
owner, their flame graphs, what grew over a series, the series as a matrix (the stacks that gained
most, a column a reading), and the largest memory cgroups as a tree.

Widths are bytes; pages where the page size is not known. What has no stack has a frame of its own,
so that a graph always adds up to its table.

Cannot know: more than the tables say. The owner frame is the first one outside the allocators
(``owner_frames``), which need not be the one to blame. Nor what was between two readings.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mmscope.drgn.tables.display import bar_percent
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.text.owner_frames import is_allocator, owner_frame
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.drawing import downloads, flame_graph, time_panel
from mmscope.reports.drawing.cells import leaf_first
from mmscope.reports.drawing.class_looks import look
from mmscope.reports.drawing.row_names import NO_STACK, owner_pair
from mmscope.reports.drawing.time_panel import Points
from mmscope.reports.pictures.picture import Row, Rows, Tables, picture
from mmscope.reports.rows import owner_matrix

# In a table beside a picture; what is folded away below it has more, the bundle all.
TOP = 15
MAX_GROUPS = 150
# Of each of the two graphs that compare.
MAX_FRAMES = 240
# Of the chart: more lines cross each other.
MAX_LINES = 6
# Of the matrix of a series; columns; steps of its shade.
MAX_STACKS, MAX_READINGS, LEVELS = 20, 12, 8


def frame_kind(name: str, depth: int) -> str:
    """The CSS class that colours a frame of a kernel stack."""
    if depth == 0:
        return "root"
    symbol, _, module = name.partition(" [")
    if name.startswith(NO_STACK):
        return "none"
    if is_allocator(symbol):
        return "plumbing"
    return "module" if module else "kernel"


def slab_frame_kind(name: str, depth: int) -> str:
    """The same where a stack begins with its slab cache."""
    return "cache" if depth == 1 else frame_kind(name, depth)


def _unit(page_size: int | None) -> str:
    return "bytes" if page_size else "pages"


def _groups(
    heads: tuple[str, ...], names: Iterable[tuple[str, ...]], held: list[tuple[int, int | None]]
) -> Row:
    """
    Stacks with the same names added up: (names, amount, allocations, stacks), most first.

    :param held: amount and allocations of each stack.
    """
    found: dict[tuple[str, ...], list[tuple[int, int | None]]] = {}
    for of, each in zip(names, held, strict=True):
        found.setdefault(of, []).append(each)
    groups = []
    for of, members in found.items():
        counts = [count for _, count in members if count is not None]
        allocations = sum(counts) if len(counts) == len(members) else None
        groups.append((of, sum(amount for amount, _ in members), allocations, len(members)))
    groups.sort(key=lambda group: (-group[1], group[0]))
    return {
        "heads": heads,
        "rows": groups[:TOP],
        "more": groups[TOP:MAX_GROUPS],
        "total": len(groups),
    }


def flames(
    stacks: list[tuple[str, int]],
    unit: str,
    describe: str,
    kind: Callable[[str, int], str],
    download: tuple[str, str],
    frames: int = flame_graph.MAX_FRAMES,
    drawn: Iterable[tuple[str, int]] | None = None,
) -> Row:
    """
    A flame graph with its top frames, and its stacks for download.

    :param download: the file's name, and the bundle's file that has it all.
    :param drawn: the stacks as the still picture has them, if it has less of each.
    """
    folded = flame_graph.fold(stacks)
    tops, names = flame_graph.top_frames(folded, TOP)
    shown = folded if drawn is None else drawn
    return {
        "graph": flame_graph.flame_graph(
            shown, unit=unit, describe=describe, kind=kind, frames=frames
        ),
        "tops": tops,
        "top_count": len(names),
        "download": downloads.folded(folded, *download),
        # The colour of the first frames, where they are no functions.
        "root_kind": kind("", 1) if kind("", 1) != kind("", 2) else "",
        "plumbing": sorted({n.partition(" [")[0] for n in names if kind(n, 2) == "plumbing"}),
    }


def _owner(row: Row) -> tuple[str, str]:
    """A row's owner and module; of older or foreign tables, by its stack."""
    owner, module = row.get("owner"), row.get("module")
    if owner is None and row.get("stack"):
        owner, module = owner_frame(row["stack"])
    return owner or NO_STACK, module or ""


@picture("page_owner_stacks", "pages stack")
def page_owner(tables: Tables, page_size: int | None) -> Row:
    """The flame graph, and what owners and modules hold."""
    size, unit = page_size or 1, _unit(page_size)
    held = [row for row in tables["page_owner_stacks"] if row["pages"] > 0]
    stacks = [(row["stack"] or NO_STACK, row["pages"] * size) for row in held]
    counted = [(row["pages"] * size, row.get("allocations")) for row in held]
    owners = [_owner(row) for row in held]
    modules = (
        (module or (NO_STACK if owner == NO_STACK else "(the kernel itself)"),)
        for owner, module in owners
    )
    return {
        "flames": flames(
            stacks,
            unit,
            f"Flame graph: {unit} that page_owner knows, by allocation stack",
            frame_kind,
            ("page_owner.folded", "page_owner_stacks.csv"),
        ),
        "total": sum(amount for _, amount in stacks),
        "stacks": len(held),
        "unit": unit,
        "owners": _groups(("owner", "module"), owners, counted),
        "modules": _groups(("module",), modules, counted),
        "notes": _notes(held, size),
    }


def _notes(rows: Rows, size: int) -> list[tuple[str, int, int]]:
    """Notes about stacks, most memory first: (note, stacks, amount)."""
    found: dict[str, list[int]] = {}
    for row in rows:
        if note := row.get("note"):
            # A reused handle's note ends in the other stack.
            short = str(note).partition(": another resolver")[0]
            found.setdefault(short, []).append(row["pages"] * size)
    order = sorted(found, key=lambda note: (-sum(found[note]), note))
    return [(note, len(found[note]), sum(found[note])) for note in order]


def _stacks_of(tables: Tables, rows: Rows) -> dict[int, Row]:
    """The stacks that rows are of, by handle."""
    stacks = tables.get("page_owner_stacks") or []
    wanted = {row["handle"] for row in rows}
    (handles,) = columns_of(stacks, "handle") if stacks else ([],)
    return {handle: stacks[at] for at, handle in enumerate(handles) if handle in wanted}


def series_wanted(tables: Tables) -> set[Any]:
    """
    Stacks whose points of a series are drawn, of a table that has every stack: those that gained
    most, or where none did or their order is unknown, those that hold most in the last.
    """
    if grown := _grown(tables.get("page_owner_growth", []), MAX_STACKS):
        return {row["handle"] for row in grown}
    held = sorted(
        tables.get("page_owner_stacks", []), key=lambda row: (-row["pages"], row["handle"])
    )
    return {row["handle"] for row in held[:MAX_STACKS]}


SERIES = {"page_owner_series": ("handle", series_wanted)}


@picture(
    "page_owner_growth",
    "handle pages_first pages_last gained slope steadiness",
    others="page_owner_stacks page_owner_snapshots watch_samples",
    parts=SERIES,
)
def page_owner_growth(tables: Tables, page_size: int | None) -> Row:
    """The stacks that gained most, their chart, and the graphs that compare."""
    size, unit = page_size or 1, _unit(page_size)
    rows, known = tables["page_owner_growth"], tables.get("page_owner_stacks") or []
    grown = _grown(rows, TOP)
    stacks = _stacks_of(tables, grown)
    handles, gained, *both = columns_of(rows, "handle", "gained", "pages_first", "pages_last")
    stack_of = dict(zip(*columns_of(known, "handle", "stack"), strict=True)) if known else {}
    names = [stack_of.get(handle) or NO_STACK for handle in handles]
    before, after = (
        [(name, pages * size) for name, pages in zip(names, column, strict=True)] for column in both
    )
    wide_after, wide_before = flame_graph.differential(
        before,
        after,
        unit=unit,
        describe=f"Differential flame graph: {unit} in the first and the last snapshot",
        # Not samples, but what there was at two moments: what did not change must look like it.
        normalise=False,
        frames=MAX_FRAMES,
    )
    return {
        "growers": [_grower(row, stacks.get(row["handle"], {}), size) for row in grown],
        "grown": sum(pages > 0 for pages in gained),
        "unit": unit,
        "before": sum(amount for _, amount in before),
        "after": sum(amount for _, amount in after),
        "wide_after": wide_after,
        "wide_before": wide_before,
    } | _panel(tables, page_size)


def _name(row: Row, stack: Row) -> str:
    owner, _ = _owner(stack)
    return f"handle {row['handle']}" if owner == NO_STACK else owner


def _grower(row: Row, stack: Row, size: int) -> Row:
    owner, module = _owner(stack)
    return {
        "name": _name(row, stack),
        "module": module,
        "callers": callers_of(stack.get("stack") or "", owner),
        "first": row["pages_first"] * size,
        "last": row["pages_last"] * size,
        "gained": row["gained"] * size,
        "slope": None if row["slope"] is None else row["slope"] * size,
        "steadiness": row["steadiness"],
        "note": str(stack.get("note") or ""),
    }


def callers_of(stack: str, owner: str) -> str:
    """Callers of the owner frame of a stack, three functions at most."""
    frames = stack.split(";")
    symbols = [frame.partition(" [")[0] for frame in frames]
    at = len(symbols) - 1 - symbols[::-1].index(owner) if owner in symbols else 0
    return leaf_first(";".join(frames[max(at - 3, 0) : at])) if at else ""


def lines_in_watch(tables: Tables, page_size: int | None) -> list[tuple[str, Points]]:
    """The lines of the top growers on the clock of a watch, if the series is of that time."""
    samples, snapshots = tables.get("watch_samples", []), tables.get("page_owner_snapshots", [])
    try:
        shift = time_panel.shift(snapshots, samples)
        if shift is None:
            return []
        times = sorted(row["time"] for row in samples)
        return [
            (name, [(time_panel.nearest(at + shift, times), value) for at, value in points])
            for name, points in _grown_lines(tables, page_size)
        ]
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return []  # the pictures of both say what is wrong with their tables


def _panel(tables: Tables, page_size: int | None) -> Row:
    """The chart of the top growers on a clock of its own, where no watch has it."""
    snapshots = sorted(tables.get("page_owner_snapshots", []), key=lambda row: float(row["time"]))
    lines = _grown_lines(tables, page_size)
    timed = any(row["slope"] is not None for row in tables["page_owner_growth"])
    if not lines or not timed or lines_in_watch(tables, page_size):
        return {"chart": None, "in_watch": bool(lines) and timed, "timed": timed}
    unit = "pages"
    if page_size:
        unit, lines = time_panel.in_bytes(lines)
    times = [at for at, _ in lines[0][1]]
    moments = [row["time"] for row in snapshots] or times
    axis = time_panel.clock(moments, snapshots[0]["at"] if snapshots else None)
    return {
        "chart": time_panel.lane("Allocation stacks that grew most", lines, axis, unit),
        "clock": axis,
        "shown": len(times),
        "times": len(snapshots),
        "timed": True,
    }


def _grown_lines(tables: Tables, page_size: int | None) -> list[tuple[str, Points]]:
    """
    Bytes, or pages, of the top growers at every snapshot; where there were more than a line has
    points, the most of what a point stands for. A point that the table leaves out lies on the line
    between its neighbours.
    """
    size = page_size or 1
    grown = _grown(tables.get("page_owner_growth", []), MAX_LINES)
    stacks = _stacks_of(tables, grown)
    points = tables.get("page_owner_series", [])
    times = sorted({row["time"] for row in tables.get("page_owner_snapshots", points)})
    lines: dict[int, dict[float, int]] = {row["handle"]: {} for row in grown}
    for row in points:
        if row["handle"] in lines:
            lines[row["handle"]][row["time"]] = (row["pages"] or 0) * size
    if len(times) < 2 or not all(lines.values()):
        return []
    named = []
    for row in grown:
        handle = row["handle"]
        line = sorted(lines[handle].items())
        values = np.interp(times, [at for at, _ in line], [value for _, value in line]).tolist()
        name = cut(_name(row, stacks.get(handle, {})), 60)
        named.append((name, time_panel.thin(list(zip(times, values, strict=True)), max)))
    return named


def _grown(rows: Rows, most: int) -> Rows:
    """The rows of so many stacks that gained, most first."""
    if not rows:
        return []
    gained, handles = columns_of(rows, "gained", "handle")
    found = ((-pages, handles[at], at) for at, pages in enumerate(gained) if pages > 0)
    return [rows[at] for *_, at in heapq.nsmallest(most, found)]


def levels(pages: list[int | None]) -> list[int]:
    """
    The shade of each cell of a row: from the fewest pages that the stack had to the most, or to 1 %
    above, so that what grew steadily, and since when, is seen whatever its size; 0 without change.
    """
    numbers = [number or 0 for number in pages]
    least, most = min(numbers), max(numbers)
    # What changed less than a hundredth does not look like much.
    span = max(most - least, -(-least // 100)) if most > least else 0
    return [1 + (LEVELS - 1) * (number - least) // span if span else 0 for number in numbers]


@picture(
    "page_owner_series",
    "time handle pages",
    others="page_owner_growth page_owner_stacks page_owner_snapshots",
    parts=SERIES,
)
def page_owner_matrix(tables: Tables, page_size: int | None) -> Row:
    """Pages of the stacks that :func:`series_wanted` chose, at readings that have a column."""
    rows = tables["page_owner_series"]
    points = owner_matrix.points_of(rows)
    readings = owner_matrix.readings_of(tables.get("page_owner_snapshots", []), rows)
    grown = "page_owner_growth" in tables
    columns = owner_matrix.spread(len(readings), MAX_READINGS)
    stacks = tables.get("page_owner_stacks", [])
    lines = []
    for row, pages in owner_matrix.matrix(stacks, points, readings, grown=grown):
        stack, handle = row.get("stack"), row["handle"]
        name, module = owner_pair(stack)
        shades = levels(pages)
        lines.append(
            {
                "name": name if stack else f"handle {handle}",
                "module": module,
                "callers": callers_of(stack or "", name),
                "stack": leaf_first(stack) if stack else "",
                "note": str(row.get("note") or ""),
                "cells": [(readings[at].name, pages[at], shades[at]) for at in columns],
                "gained": owner_matrix.gained(points[handle]),
            }
        )
    return {
        "lines": lines[:MAX_STACKS],
        "readings": [readings[at] for at in columns],
        "count": len(readings),
        "ends": (readings[0].name, readings[-1].name),
        "stacks": len(stacks),
        "grown": grown,
        "levels": LEVELS,
    }


@picture("slab_owner_stacks", "cache stack objects bytes")
def slab_owner(tables: Tables, page_size: int | None) -> Row:
    """The flame graph, a slab cache being the root, and what owners and caches hold."""
    rows = tables["slab_owner_stacks"]
    sized = [row for row in rows if row["bytes"] is not None]
    # A text without the size of objects still has their number.
    unit = "bytes" if sized else "objects"
    held = [row for row in sized or rows if row[unit] > 0]
    stacks = [(f"{row['cache']};{row['stack'] or NO_STACK}", row[unit]) for row in held]
    counted = [(row[unit], row["objects"]) for row in held]
    owners = ((*owner_pair(row["stack"]), row["cache"]) for row in held)
    return {
        "flames": flames(
            stacks,
            unit,
            f"Flame graph: slab objects by cache and allocation stack, width in {unit}",
            slab_frame_kind,
            ("slab_owner.folded", "slab_owner_stacks.csv"),
        ),
        "total": sum(amount for _, amount in stacks),
        "unit": unit,
        "stacks": len(held),
        "unsized": len(rows) - len(sized) if sized else 0,
        "owners": _groups(("owner", "module", "cache"), owners, counted),
        "caches": _groups(("cache",), ((row["cache"],) for row in held), counted),
    }


# What a memory cgroup uses; shmem is in file. And the columns that say so, and more.
CGROUP_PARTS = ("anonymous", "files", "shmem", "kernel memory", "other")
CGROUP_LOOKS = {part: look({"files": "page cache"}.get(part, part)) for part in CGROUP_PARTS}
CGROUP_COLUMNS = (
    *("anon_bytes", "file_bytes", "shmem_bytes", "kernel_bytes", "max_bytes", "swap_bytes"),
    *("max_own_events", "oom_kill_own_events", "dying_below"),
)
MAX_CGROUPS = 30
MAX_DEPTH = 8  # that report.css indents apart


@picture(
    "memory_cgroups",
    "cgroup state usage_bytes",
)
def memory_cgroups(tables: Tables, page_size: int | None) -> Row:
    """The largest online memory cgroups in the order of the tree, and how many are dying."""
    rows = tables["memory_cgroups"]
    online = [row for row in rows if row["state"] == "online" and row["cgroup"] is not None]
    below = [row for row in online if row["cgroup"] != "/"]
    # A cgroup uses what those below it use: no row comes without those above it.
    largest = sorted(below, key=lambda row: (-row["usage_bytes"], row["cgroup"].count("/")))
    shown = sorted(largest[:MAX_CGROUPS], key=lambda row: row["cgroup"].split("/"))
    scale = max((row["usage_bytes"] for row in shown), default=0)
    return {
        "rows": [_cgroup(row, scale) for row in shown],
        "looks": CGROUP_LOOKS,
        "scale": scale,
        "online": len(online),
        "more": len(below) - len(shown),
        "dying": sum(row["state"] == "dying" for row in rows),
    }


def _cgroup(row: Row, scale: int) -> Row:
    """A row with its bar: (what, size, its place and width in per cent)."""
    known = dict.fromkeys(CGROUP_COLUMNS) | row
    anon, file, shmem, kernel = (max(known[name] or 0, 0) for name in CGROUP_COLUMNS[:4])
    sizes = [anon, max(file - shmem, 0), shmem, kernel]
    usage, bars, at = row["usage_bytes"], [], 0
    for part, size in zip(CGROUP_PARTS, [*sizes, max(usage - sum(sizes), 0)], strict=True):
        width = min(size, max(usage - at, 0))
        bars.append((part, size, bar_percent(at, scale), bar_percent(width, scale)))
        at += width
    parts = row["cgroup"].split("/")
    depth = min(len(parts) - 2, MAX_DEPTH)
    return known | {"name": parts[-1], "depth": depth, "bars": bars}
