# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Who owns the memory, as pictures: the tables of page_owner and of the slab caches' tracks grouped by
owner, their flame graphs, what grew over a series, and the largest memory cgroups as a tree.

Widths are bytes; pages where the page size is not known. What has no stack has a frame of its own,
so that a graph always adds up to its table.

Cannot know: more than the tables say. The owner frame is the first one outside the allocators
(``owner_frames``), which need not be the one to blame.
"""

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mmscope.drgn.owners.owner_frames import is_allocator, owner_frame
from mmscope.drgn.tables import display
from mmscope.drgn.tables.amounts import bar_percent
from mmscope.reports.drawing import downloads, flame_graph, time_panel
from mmscope.reports.drawing.cells import leaf_first
from mmscope.reports.drawing.downloads import Download
from mmscope.reports.drawing.flame_graph import FlameGraph, Top
from mmscope.reports.drawing.row_names import NO_STACK, owner_pair
from mmscope.reports.drawing.time_panel import Points
from mmscope.reports.pictures.picture import Picture, Tables

Rows = Sequence[dict[str, Any]]

# In a table beside a picture; what is folded away below it has more, the bundle all.
TOP = 15
MAX_GROUPS = 150
# Of each of the two graphs that compare.
MAX_FRAMES = 240
# Of the chart: more lines cross each other.
MAX_LINES = 6
# Of the matrix of a series.
MAX_STACKS = 20


@dataclass
class Group:
    """What one owner holds. Amounts are bytes, or pages where the page size is not known."""

    names: tuple[str, ...]
    amount: int = 0
    allocations: int | None = 0
    stacks: int = 0


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that hold most, the next ones, and how many there are."""

    heads: tuple[str, ...]
    rows: list[Group]
    more: list[Group]
    total: int


@dataclass(frozen=True, slots=True)
class Flames:
    """A flame graph with what stands beside it."""

    graph: FlameGraph
    tops: list[Top]
    top_count: int
    download: Download
    root_kind: str  # colour of the first frames, where they are no functions
    plumbing: list[str]  # functions of the allocators


@dataclass(frozen=True, slots=True)
class Grower:
    """A stack that gained pages between the first and the last snapshot."""

    name: str
    module: str
    callers: str
    first: int
    last: int
    gained: int
    slope: float | None
    steadiness: float
    note: str


@dataclass(frozen=True, slots=True)
class Growth:
    """What a series shows, in words and numbers."""

    growers: list[Grower]
    grown: int  # stacks that gained
    unit: str
    before: int
    after: int


def frame_kind(name: str, depth: int) -> str:
    """What a frame of a kernel stack is, as the class that colours it."""
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
    rows: Iterable[tuple[tuple[str, ...], int, int | None]], heads: tuple[str, ...]
) -> Groups:
    found: dict[tuple[str, ...], Group] = {}
    for names, amount, allocations in rows:
        group = found.setdefault(names, Group(names))
        group.amount += amount
        group.stacks += 1
        if group.allocations is None or allocations is None:
            group.allocations = None
        else:
            group.allocations += allocations
    order = sorted(found.values(), key=lambda group: (-group.amount, group.names))
    return Groups(heads, order[:TOP], order[TOP:MAX_GROUPS], len(order))


def flames(
    stacks: list[tuple[str, int]],
    unit: str,
    describe: str,
    kind: Callable[[str, int], str],
    download: tuple[str, str],
    frames: int = flame_graph.MAX_FRAMES,
    drawn: Iterable[tuple[str, int]] | None = None,
) -> Flames:
    """
    A flame graph with its top frames, and its stacks for download.

    :param download: the file's name, and the bundle's file that has it all.
    :param drawn: the stacks as the still picture has them, if it has less of each.
    """
    folded = flame_graph.fold(stacks)
    tops, names = flame_graph.top_frames(folded, TOP)
    return Flames(
        flame_graph.flame_graph(
            folded if drawn is None else drawn,
            unit=unit,
            describe=describe,
            kind=kind,
            frames=frames,
        ),
        tops,
        len(names),
        downloads.folded(folded, *download),
        kind("", 1) if kind("", 1) != kind("", 2) else "",
        sorted({name.partition(" [")[0] for name in names if kind(name, 2) == "plumbing"}),
    )


def _owner(row: dict[str, Any]) -> tuple[str, str]:
    """A row's owner and module; of older or foreign tables, by its stack."""
    owner, module = row.get("owner"), row.get("module")
    if owner is None and row["stack"]:
        owner, module = owner_frame(row["stack"])
    return owner or NO_STACK, module or ""


def page_owner(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The graph and the groups of table ``page_owner_stacks``."""
    rows, size = tables["page_owner_stacks"], page_size or 1
    held = [row for row in rows if row["pages"] > 0]
    stacks = [(row["stack"] or NO_STACK, row["pages"] * size) for row in held]
    owners = [(_owner(row), row["pages"] * size, row.get("allocations")) for row in held]
    unit = _unit(page_size)
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
        "owners": _groups(owners, ("owner", "module")),
        "modules": _groups(
            (((module or _without_module(owner),), *rest) for (owner, module), *rest in owners),
            ("module",),
        ),
        "notes": _notes(held, size),
    }


def _without_module(owner: str) -> str:
    return NO_STACK if owner == NO_STACK else "(the kernel itself)"


def _notes(rows: Rows, size: int) -> list[tuple[str, int, int]]:
    """What is wrong with stacks: (note, stacks, amount), most first."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        if note := row.get("note"):
            # A reused handle's note ends in the other stack.
            short = str(note).partition(": another resolver")[0]
            stacks, amount = found.get(short, (0, 0))
            found[short] = stacks + 1, amount + row["pages"] * size
    order = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))
    return [(note, *counted) for note, counted in order]


def page_owner_growth(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The growers of table ``page_owner_growth``, their chart, and the graphs that compare."""
    size, unit = page_size or 1, _unit(page_size)
    stacks = {row["handle"]: row for row in tables.get("page_owner_stacks", [])}
    rows = tables["page_owner_growth"]
    grown = _grown(rows)
    before = [(_stack(stacks, row), row["pages_first"] * size) for row in rows]
    after = [(_stack(stacks, row), row["pages_last"] * size) for row in rows]
    wide_after, wide_before = flame_graph.differential(
        before,
        after,
        unit=unit,
        describe=f"Differential flame graph: {unit} in the first and the last snapshot",
        # Not samples, but what there was at two moments: what did not change must look like it.
        normalise=False,
        frames=MAX_FRAMES,
    )
    growers = [_grower(row, stacks.get(row["handle"], {}), size) for row in grown[:TOP]]
    return {
        "growth": Growth(
            growers,
            len(grown),
            unit,
            sum(amount for _, amount in before),
            sum(amount for _, amount in after),
        ),
        "after": wide_after,
        "before": wide_before,
    } | _panel(tables, page_size)


def _stack(stacks: dict[int, dict[str, Any]], row: dict[str, Any]) -> str:
    return (stacks.get(row["handle"]) or {}).get("stack") or NO_STACK


def _grower(row: dict[str, Any], stack: dict[str, Any], size: int) -> Grower:
    owner, module = _owner(stack) if stack else (NO_STACK, "")
    return Grower(
        name=owner if owner != NO_STACK else f"handle {row['handle']}",
        module=module,
        callers=callers_of(stack.get("stack") or "", owner),
        first=row["pages_first"] * size,
        last=row["pages_last"] * size,
        gained=row["gained"] * size,
        slope=None if row["slope"] is None else row["slope"] * size,
        steadiness=row["steadiness"],
        note=str(stack.get("note") or ""),
    )


def callers_of(stack: str, owner: str) -> str:
    """Who called the owner frame of a stack, three functions at most."""
    frames = stack.split(";")
    symbols = [frame.partition(" [")[0] for frame in frames]
    at = len(symbols) - 1 - symbols[::-1].index(owner) if owner in symbols else 0
    return leaf_first(";".join(frames[max(at - 3, 0) : at])) if at else ""


def lines_in_watch(tables: Tables, page_size: int | None) -> list[tuple[str, Points]]:
    """The lines of the top growers on the clock of a watch, if the series is of that time."""
    shift = _shift(tables)
    if shift is None:
        return []
    try:
        times = sorted(row["time"] for row in tables["watch_samples"])
        return [
            (name, [(time_panel.nearest(at + shift, times), value) for at, value in points])
            for name, points in _grown_lines(tables, page_size)
        ]
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return []  # the picture of the growers says what is wrong with their tables


def _shift(tables: Tables) -> float | None:
    """From the clock of the snapshots to that of a watch; None if they do not go together."""
    samples, snapshots = tables.get("watch_samples", []), tables.get("page_owner_snapshots", [])
    try:
        return time_panel.shift(snapshots, samples)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None  # the picture of the watch says what is wrong with its samples


def _panel(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The chart of the top growers on a clock of its own, where no watch has it."""
    snapshots = sorted(tables.get("page_owner_snapshots", []), key=lambda row: float(row["time"]))
    lines = _grown_lines(tables, page_size)
    timed = any(row["slope"] is not None for row in tables["page_owner_growth"])
    if not lines or not timed or _shift(tables) is not None:
        return {"chart": None, "in_watch": bool(lines) and timed, "timed": timed}
    unit = "pages"
    if page_size:
        unit, lines = time_panel.in_bytes(lines)
    times = [at for at, _ in lines[0][1]]
    axis = time_panel.clock(
        [row["time"] for row in snapshots] or times, snapshots[0]["at"] if snapshots else None
    )
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
    grown = _grown(tables.get("page_owner_growth", []))[:MAX_LINES]
    stacks = {row["handle"]: row for row in tables.get("page_owner_stacks", [])}
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
        values = _values_at(times, sorted(lines[row["handle"]].items()))
        name = _grower(row, stacks.get(row["handle"], {}), size).name
        named.append(
            (display.cut(name, 60), time_panel.thin(list(zip(times, values, strict=True)), max))
        )
    return named


def _values_at(moments: list[float], line: list[tuple[float, int]]) -> list[float]:
    """A line through points, at these moments."""
    times = [time for time, _ in line]
    values = []
    for moment in moments:
        at = min(max(bisect.bisect_right(times, moment), 1), len(line) - 1)
        (left, low), (right, high) = line[at - 1], line[at]
        part = (moment - left) / (right - left) if len(line) > 1 else 0.0
        values.append(low + (high - low) * min(max(part, 0.0), 1.0))
    return values


def series_wanted(tables: Tables) -> set[Any]:
    """
    Whose points of a series are drawn, of a table that has every stack: those that gained most, or
    where none did or their order is unknown, those that hold most in the last.
    """
    grown = _grown(tables.get("page_owner_growth", []))[:MAX_STACKS]
    held = sorted(
        tables.get("page_owner_stacks", []), key=lambda row: (-row["pages"], row["handle"])
    )
    return {row["handle"] for row in grown or held[:MAX_STACKS]}


def _grown(rows: Rows) -> Rows:
    """The rows of stacks that gained, most first."""
    return sorted(
        (row for row in rows if row["gained"] > 0), key=lambda row: (-row["gained"], row["handle"])
    )


def slab_owner(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The graph and the groups of table ``slab_owner_stacks``, a slab cache being the root."""
    rows = tables["slab_owner_stacks"]
    sized = [row for row in rows if row["bytes"] is not None]
    # A text without the size of objects still has their number.
    unit = "bytes" if sized else "objects"
    held = [row for row in sized or rows if row[unit] > 0]
    stacks = [(f"{row['cache']};{row['stack'] or NO_STACK}", row[unit]) for row in held]
    owners = [
        ((*owner_pair(row["stack"]), row["cache"]), row[unit], row["objects"]) for row in held
    ]
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
        "owners": _groups(owners, ("owner", "module", "cache")),
        "caches": _groups((((cache,), *rest) for (_, _, cache), *rest in owners), ("cache",)),
    }


# What a memory cgroup uses, by columns of memory_cgroups; shmem is in file.
CGROUP_PARTS = ("anonymous", "files", "shmem", "kernel memory", "other")
MAX_CGROUPS = 30
DEPTHS = range(1, 9)  # that are indented apart


def memory_cgroups(tables: Tables, page_size: int | None) -> dict[str, Any]:
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
        "parts": CGROUP_PARTS,
        "scale": scale,
        "online": len(online),
        "more": len(below) - len(shown),
        "dying": sum(row["state"] == "dying" for row in rows),
    }


def _cgroup(row: dict[str, Any], scale: int) -> dict[str, Any]:
    usage, limit = row["usage_bytes"], row.get("max_bytes")
    anon, file, shmem, kernel = (
        max(row.get(f"{name}_bytes") or 0, 0) for name in ("anon", "file", "shmem", "kernel")
    )
    sizes = [anon, max(file - shmem, 0), shmem, kernel]
    bars, at = [], 0
    for number, size in enumerate([*sizes, max(usage - sum(sizes), 0)]):
        width = min(size, max(usage - at, 0))
        bars.append((number, bar_percent(at, scale), bar_percent(width, scale), size))
        at += width
    parts = row["cgroup"].split("/")
    return {
        "cgroup": row["cgroup"],
        "name": parts[-1],
        "depth": min(len(parts) - 2, DEPTHS[-1]),
        "usage": usage,
        "bars": bars,
        "limit": limit,
        "limit_at": bar_percent(limit, scale) if limit is not None and limit <= scale else None,
        "swap": row.get("swap_bytes"),
        "full": row.get("max_own_events"),
        "kills": row.get("oom_kill_own_events"),
        "dying": row.get("dying_below"),
    }


PAGE_OWNER = Picture("page_owner", "page_owner_stacks", frozenset({"pages", "stack"}), page_owner)
SERIES = {"page_owner_series": ("handle", series_wanted)}
GROWTH = frozenset({"handle", "pages_first", "pages_last", "gained", "slope", "steadiness"})
PAGE_OWNER_GROWTH = Picture(
    "page_owner_growth",
    "page_owner_growth",
    GROWTH,
    page_owner_growth,
    others=frozenset({"page_owner_stacks", "page_owner_snapshots", "watch_samples"}),
    parts=SERIES,
)
SLAB_OWNER = Picture(
    "slab_owner",
    "slab_owner_stacks",
    frozenset({"cache", "stack", "objects", "bytes"}),
    slab_owner,
)
MEMORY_CGROUPS = Picture(
    "memory_cgroups",
    "memory_cgroups",
    frozenset({"cgroup", "state", "usage_bytes"}),
    memory_cgroups,
    style="""
.cgroups td.bars-of { width: 40%; min-width: 12rem; }
.cgroups rect { fill: var(--series, var(--bar)); } .cgroups rect.ground { fill: var(--bar); }
.cgroups rect.other { fill: var(--other); }
.cgroups line { stroke: var(--critical); stroke-width: 2; }
.cgroups tbody th { overflow-wrap: anywhere; min-width: 8rem; }
.cgroup-key .box { background: var(--series, var(--other)); }
.cgroup-key .limit { display: inline-block; width: 2px; height: .8em; background: var(--critical); }
"""
    + "".join(f".cgroups th.deep-{n} {{ padding-left: {1.2 * n:.1f}rem; }}\n" for n in DEPTHS),
)
