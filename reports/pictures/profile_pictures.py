# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Profiles as pictures: each recording with its parts, its flame graphs and what its sampler could not
see, and differentials where one is held against another.

Widths are samples; of a differential, shares of all samples, since recordings differ in length.
Frames that stand for what ran with interrupts off carry a frame that says so.

Page tables a fault are a chart over the run of a process: how much each fault added, from doubling
to doubling of their number, so that what the first ones add shows, too.

Cannot know: more than perf sampled. A part without samples is not one without cost. Of VmPTE, what
came between two looks; there it is taken to grow evenly.
"""

import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from mmscope.drgn.tables.hostile_text import visible
from mmscope.perf import recipe as recipes
from mmscope.perf.recipe import Recipe
from mmscope.perf.stack_parts import KnownFrames, Split, load_known_frames, load_split, plain
from mmscope.reports.bundle.bundle import MAX_DRAWN_BYTES, Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.drawing import flame_graph
from mmscope.reports.drawing.charts import Point, Tick, line_chart
from mmscope.reports.pictures.owner_pictures import flames
from mmscope.reports.pictures.picture import Row, Rows, Tables, picture
from mmscope.reports.profiles.profiles import SECTION, is_site
from mmscope.reports.rows.profile_rows import ADDRESSES, PROFILES_HEADING, VMPTE, new_tables

Stacks = list[tuple[str, int]]

TABLE = "profiles"
# Of the page: what is beyond these is in the bundle.
MAX_RECORDINGS = 12
MAX_FRAMES, LEAST_FRAMES = 260, 60
# Of all graphs together: many recordings have smaller ones.
FRAMES = 600
MAX_ROWS = 14
MAX_GROWTHS = 2
HIDDEN = "(interrupts back on)"
KERNEL = "_[k]"  # how a kernel's frame ends
# Of page tables a fault over the run of a process: columns of profile_table_growth.
LEVELS = ("pte_tables", "pmd_tables", "pud_tables")
COUNTED = ("faults", *LEVELS)
PAGES = 5  # at the upper end of the axis, one a tick: there are at most four levels below the PGD

MORE_THAN = 2  # looks: one step is no course
# Tables with rows of a recording, shown beside its graphs.
BESIDE = (
    *("recordings", "parts", "reaping", "durations", "allocations", "victims", "page_tables"),
    *("commands", "counts", "faults", "counters", "notes", "sites", "table_growth"),
)


def stacks(bundle: Bundle) -> Tables:
    """The folded stacks of profiles, for the pictures; or why those of a file are missing."""
    found: Tables = {}
    size = MAX_DRAWN_BYTES
    for name, folded in bundle.folded.items():
        if folded.section != SECTION:
            continue
        try:
            stacks = bundle.drawn_stacks(name, size)
        except BundleError as error:
            why = str(error).replace(f"{bundle.path}{os.sep}", "")
            found[f"{name}.folded why"] = [{"why": why}]
            continue
        size -= sum(len(stack) for stack, _ in stacks)
        found[f"{name}.folded"] = stacks
    return found


def frame_kind(name: str, depth: int) -> str:
    """The CSS class that colours a frame of a profile."""
    if depth == 0:
        return "root"
    if name == HIDDEN:
        return "hidden"
    if name.endswith(KERNEL):
        return "module" if " [" in name else "kernel"
    return "none" if depth == 1 else "user"


@picture(
    "profiles",
    "profile event unit samples file",
    others=" ".join(table.name for table in PROFILES_HEADING.tables),
    apart="profile",
)
def profiles(tables: Tables, page_size: int | None) -> Row:
    """The recordings of table ``profiles``, and how many are not shown."""
    known = load_known_frames()
    named: dict[str, list[Row]] = {}
    for row in tables[TABLE]:
        named.setdefault(row["profile"], []).append(row)
    shown = list(named.items())[:MAX_RECORDINGS]
    graphs = 0
    for _, rows in shown:
        recipe = _recipe(rows[0].get("recipe"))
        each = 3 + len(recipe.views if recipe else ())
        graphs += each * sum(1 for row in rows if _stacks(tables, row))
    frames = min(max(FRAMES // max(graphs, 1), LEAST_FRAMES), MAX_FRAMES)
    page = page_size or 4096
    recordings = [
        _recording(name, rows, named, tables, known, frames, page) for name, rows in shown
    ]
    return {"recordings": recordings, "more": len(named) - len(shown), "hidden": HIDDEN}


def _recording(
    name: str,
    rows: Rows,
    named: dict[str, list[Row]],
    tables: Tables,
    known: KnownFrames,
    frames: int,
    page_size: int,
) -> Row:
    """A recording with all that stands beside its graphs."""
    recipe = _recipe(rows[0].get("recipe"))
    split = _split(recipe)
    of = {
        table: [row for row in tables.get(f"profile_{table}", []) if row["profile"] == name]
        for table in BESIDE
    }
    made: Row = next(iter(of["recordings"]), {})
    label, against = made.get("label"), str(made.get("against") or "")
    title = recipe.title if recipe else name
    partial = [why for row in rows for why in tables.get(f"{row.get('file')}.folded why", ())]
    split_events = {row["event"] for row in of["parts"]}
    return of | {
        "name": name,
        "title": f"{title}: {label}" if label else title,
        "answers": recipe.answers if recipe else "",
        "read": " ".join(recipe.read.split()) if recipe else "",
        "rows": rows,
        "made": made,
        "against": against,
        "parts": [row | {"why": split.why(row["part"]) if split else ""} for row in of["parts"]],
        "inside": sum(row["samples"] for row in of["parts"]),
        "all": sum(row["samples"] for row in rows if row["event"] in split_events),
        "split_title": split.title if split else "",
        "victims": of["victims"][:MAX_ROWS],
        "faults": of["faults"][:MAX_ROWS],
        "counters": [row for row in of["counters"] if row["gained"]],
        "notes": of["notes"] + [{"kind": "partial", "note": why["why"]} for why in partial],
        "reaping": next(iter(of["reaping"]), None),
        "page_tables": next(iter(of["page_tables"]), None),
        "used": next(iter(of["commands"]), None),
        "growths": growth_charts(of["table_growth"], page_size)[:MAX_GROWTHS],
        "drawn": list(_drawn(rows, named.get(against, []), of["sites"], tables, known, frames)),
    }


def _drawn(
    rows: Rows, others: Rows, sites: Rows, tables: Tables, known: KnownFrames, frames: int
) -> Iterator[Row]:
    """The graphs of each event of a recording that has stacks."""
    recipe = _recipe(rows[0].get("recipe"))
    for row in rows:
        found = _stacks(tables, row)
        if not found:
            continue
        event, unit, nmi = str(row["event"]), str(row["unit"]), str(row.get("nmi") or "")
        # Where the sampler misses nothing, a leaf is where it was.
        marked = list(_marked(found, known)) if nmi in ("no", "unknown") else found
        what = f"{event} of {row['profile']}, width in {unit}"
        file = f"{row['file']}.folded"
        views = []
        for title, roots in recipe.views if recipe else ():
            if cut := list(_from_roots(marked, roots)):
                graph = flame_graph.flame_graph(
                    cut,
                    unit=unit,
                    describe=f"Flame graph: {title}, {what}",
                    kind=frame_kind,
                    frames=frames,
                )
                views.append((title, graph))
        after = before = None
        other = next((o for o in others if o["event"] == event and o["unit"] == unit), None)
        if other is not None and (old := _stacks(tables, other)):
            after, before = flame_graph.differential(
                comparable(old),
                comparable(found),
                unit=unit,
                describe=f"Differential flame graph: {what}, against {other['profile']}",
                frames=frames,
            )
        # The sites of all callers, added up by their leaf.
        leaves: Counter[tuple[str, str]] = Counter()
        for site in sites:
            if site["event"] == event:
                leaves[site["leaf"], site["stands_for"]] += site["samples"]
        yield {
            "event": event,
            "unit": unit,
            "total": sum(value for _, value in found),
            "whole": flames(
                marked,
                unit,
                f"Flame graph: {what}",
                frame_kind,
                (file, file),
                frames=frames,
                drawn=_user_code_as_one(marked),
            ),
            "views": views,
            "after": after,
            "before": before,
            "sites": leaves.most_common(MAX_ROWS),
            "hidden": leaves.total(),
            "nmi": nmi,
        }


def _stacks(tables: Tables, row: Row) -> Stacks:
    return list(tables.get(f"{row.get('file')}.folded", []))


def _marked(found: Stacks, known: KnownFrames) -> Iterator[tuple[str, int]]:
    """Stacks with one more frame where the leaf stands for what ran before it."""
    # Frames are few, stacks are many.
    site = functools.cache(lambda leaf: is_site(leaf, known))
    for stack, value in found:
        # Where interrupts come back on.
        yield f"{stack};{HIDDEN}" if site(stack.rpartition(";")[2]) else stack, value


def _from_roots(found: Stacks, roots: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Stacks that run in these functions, from the outermost of them on."""
    wanted = set(roots)
    is_root = functools.cache(lambda frame: frame.endswith(KERNEL) and plain(frame[:-4]) in wanted)
    for stack, value in found:
        frames = stack.split(";")
        for at, frame in enumerate(frames):
            if is_root(frame):
                yield ";".join(frames[at:]), value
                break


def _user_code_as_one(found: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """The task's own frames as one frame below the kernel's: deep ones hide what this is about."""
    is_user = functools.cache(lambda frame: frame_kind(frame, 2) == "user")
    for stack, value in found:
        first, *frames = stack.split(";")
        parts = [first]
        for user, run in itertools.groupby(frames, is_user):
            parts += [flame_graph.USER_CODE] if user else run
        yield ";".join(parts), value


def comparable(found: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Without the task's name and its own functions: programs that are compared may differ."""
    for stack, value in _user_code_as_one(found):
        yield stack.partition(";")[2] or stack, value


@functools.cache
def _recipe(name: object) -> Recipe | None:
    """A recipe of this installation; a bundle may name one of another."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9-]+", name):
        return None
    try:
        return recipes.load(name)
    except ValueError:
        return None


_split_of = functools.cache(load_split)


def _split(recipe: Recipe | None) -> Split | None:
    return _split_of(recipe.split) if recipe and recipe.split else None


def growth_charts(rows: Sequence[Row], page_bytes: int) -> list[Row]:
    """The processes of a recording, those with most faults first."""
    found: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["pid"], row["comm"]), []).append(row)
    return [_chart(pid, comm, members, page_bytes) for (pid, comm), members in found.items()]


def _chart(pid: int, comm: str, rows: list[Row], page: int) -> Row:
    """
    A process: its chart, the lines in it by what they are made by, the rows for a table, the last
    look at VmPTE, and of its addresses (new tables, faults that needed as many).
    """
    # With the tables of each level, as all of mmscope's own rows are.
    exact = [r for r in rows if r["made_by"] == ADDRESSES and None not in [r[n] for n in COUNTED]]
    looks = [row for row in rows if row["made_by"] == VMPTE]
    shown = exact or looks
    last = exact[-1] if exact else None
    if last is not None and (tables := sum(last[level] for level in LEVELS)):
        page = last["table_bytes"] // tables
    lines: dict[str, list[float | None]] = {}
    if exact:
        lines[ADDRESSES] = [row["bytes_per_fault"] for row in exact]
    if len(looks) > MORE_THAN:
        ends = [row["faults"] for row in shown]
        own = [row["bytes_per_fault"] for row in looks]
        lines[VMPTE] = _between(looks, ends) if exact else own
    lines = {name: each for name, each in lines.items() if any(v is not None for v in each)}
    labels = [_short(row["faults"]) for row in shown]
    sizes = [tick * page / 1024 for tick in range(PAGES + 1)]
    chart = lines and line_chart(
        [Tick(at, label) for at, label in enumerate(labels)],
        [Tick(size, f"{size:g}") for size in sizes],
        [_points(name, labels, values) for name, values in lines.items()],
        x_title="faults so far",
        describe=f"KiB of new page tables a fault of {visible(comm)} ({pid}); "
        "the table has the numbers",
    )
    return {
        "pid": pid,
        "comm": comm,
        "chart": chart,
        "lines": list(lines),
        "needed": new_tables(*(last[name] for name in COUNTED)) if last is not None else [],
        "page_bytes": page,
        "shown": shown,
        "vmpte": looks[-1] if looks else None,
    }


def _points(name: str, labels: list[str], values: list[float | None]) -> list[Point]:
    kib = [None if value is None else round(value / 1024, 2) for value in values]
    return [
        (at, value, f"{name}, {label}: {value:g}")
        for at, (label, value) in enumerate(zip(labels, kib, strict=True))
        if value is not None
    ]


def _short(faults: int) -> str:
    return f"{faults:,}" if faults < 10_000 else f"{faults / 1000:,.0f}k"


def _between(looks: list[Row], ends: Sequence[int]) -> list[float | None]:
    """VmPTE per fault, from end to end of the steps that the looks cover."""
    at = [_at(looks, end) for end in ends]
    return [None] + [
        None if before is None or size is None or end <= begin else (size - before) / (end - begin)
        for (before, size), (begin, end) in zip(pairwise(at), pairwise(ends), strict=True)
    ]


def _at(looks: list[Row], faults: int) -> float | None:
    """VmPTE at that many faults, between the looks before and after; None outside of them."""
    for before, after in pairwise(looks):
        begin, end = before["faults"], after["faults"]
        if begin <= faults <= end and end > begin:
            share = (faults - begin) / (end - begin)
            return float(before["table_bytes"] * (1 - share) + after["table_bytes"] * share)
    return None
