# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Profiles as pictures: each recording with its parts, its flame graphs and what its sampler could not
see, and differentials where one is held against another.

Widths are samples; of a differential, shares of all samples, since recordings differ in length.
Frames that stand for what ran with interrupts off carry a frame that says so.

Cannot know: more than perf sampled. A part without samples is not one without cost.
"""

import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mmscope.perf import recipe as recipes
from mmscope.perf.recipe import Recipe
from mmscope.perf.stack_parts import KnownFrames, Split, load_known_frames, load_split, plain
from mmscope.reports.bundle.bundle import MAX_DRAWN_BYTES, Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.drawing import flame_graph
from mmscope.reports.drawing.flame_graph import FlameGraph
from mmscope.reports.drawing.growth_chart import GrowthChart, growth_charts
from mmscope.reports.pictures.owner_pictures import Flames, flames
from mmscope.reports.pictures.picture import Picture, Tables
from mmscope.reports.profiles import profiles
from mmscope.reports.rows.profile_rows import PROFILES_HEADING

Rows = list[dict[str, Any]]
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
KERNEL, KERNEL_END = "_[k]", "_[k];"  # how a kernel's frame ends; and where another follows


@dataclass(frozen=True, slots=True)
class PartRow:
    """A part of the kernel's work."""

    who: str
    part: str
    samples: int
    share: float
    why: str


@dataclass(frozen=True, slots=True)
class Site:
    """A leaf where interrupts come back on."""

    leaf: str
    samples: int
    stands_for: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """One event of a recording that has stacks."""

    event: str
    unit: str
    total: int
    whole: Flames
    views: list[tuple[str, FlameGraph]]
    after: FlameGraph | None
    before: FlameGraph | None
    sites: list[Site]
    hidden: int  # samples on those sites
    nmi: str


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording with all that stands beside its graphs."""

    name: str
    title: str
    answers: str
    read: str
    rows: Rows  # of profiles
    made: dict[str, Any]  # of profile_recordings
    against: str
    parts: list[PartRow]
    inside: int  # samples of the split
    all: int  # samples of the event that was split
    split_title: str
    reaping: dict[str, Any] | None
    durations: Rows
    allocations: Rows
    victims: Rows
    page_tables: dict[str, Any] | None
    growths: list[GrowthChart]
    used: dict[str, Any] | None  # of profile_commands
    counts: Rows
    faults: Rows
    counters: Rows
    notes: Rows
    drawn: list[Drawn]


def stacks(bundle: Bundle) -> Tables:
    """The folded stacks of profiles, for the pictures; or why those of a file are missing."""
    found: Tables = {}
    size = MAX_DRAWN_BYTES
    for name, folded in bundle.folded.items():
        if folded.section != profiles.SECTION:
            continue
        try:
            stacks = bundle.drawn_stacks(name, size)
        except BundleError as error:
            why = str(error).replace(f"{bundle.path}{os.sep}", "")
            found[f"{name}.folded why"] = [{"why": why}]
            continue
        size -= sum(len(stack) for stack, _ in stacks)
        found[f"{name}.folded"] = [{"stack": stack, "value": value} for stack, value in stacks]
    return found


def frame_kind(name: str, depth: int) -> str:
    """What a frame of a profile is, as the class that colours it."""
    if depth == 0:
        return "root"
    if name == HIDDEN:
        return "hidden"
    if name.endswith(KERNEL):
        return "module" if " [" in name else "kernel"
    return "none" if depth == 1 else "user"


def draw(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The recordings of table ``profiles``, and how many are not shown."""
    known = load_known_frames()
    named: dict[str, Rows] = {}
    for row in tables[TABLE]:
        named.setdefault(row["profile"], []).append(row)
    shown = list(named.items())[:MAX_RECORDINGS]
    graphs = sum(
        1 + len(recipe.views if (recipe := _recipe(row.get("recipe"))) else ()) + 2
        for _, rows in shown
        for row in rows
        if _stacks(tables, row)
    )
    frames = min(max(FRAMES // max(graphs, 1), LEAST_FRAMES), MAX_FRAMES)
    page = page_size or 4096
    recordings = [
        _recording(name, rows, named, tables, known, frames, page) for name, rows in shown
    ]
    return {"recordings": recordings, "more": len(named) - len(shown), "hidden": HIDDEN}


def _recording(
    name: str,
    rows: Rows,
    named: dict[str, Rows],
    tables: Tables,
    known: KnownFrames,
    frames: int,
    page_size: int,
) -> Recording:
    recipe = _recipe(rows[0].get("recipe"))
    split = _split(recipe)

    def mine(table: str) -> Rows:
        return [row for row in tables.get(table, []) if row["profile"] == name]

    made = next(iter(mine("profile_recordings")), {})
    label, against = made.get("label"), str(made.get("against") or "")
    title = recipe.title if recipe else name

    parts = [_part(row, split) for row in mine("profile_parts")]
    of = {row["event"] for row in mine("profile_parts")}
    return Recording(
        name=name,
        title=f"{title}: {label}" if label else title,
        answers=recipe.answers if recipe else "",
        read=" ".join(recipe.read.split()) if recipe else "",
        rows=rows,
        made=made,
        against=against,
        parts=parts,
        inside=sum(part.samples for part in parts),
        all=sum(row["samples"] for row in rows if row["event"] in of),
        split_title=split.title if split else "",
        reaping=next(iter(mine("profile_reaping")), None),
        durations=mine("profile_durations"),
        allocations=mine("profile_allocations"),
        victims=mine("profile_victims")[:MAX_ROWS],
        page_tables=next(iter(mine("profile_page_tables")), None),
        growths=growth_charts(mine("profile_table_growth"), page_size)[:MAX_GROWTHS],
        used=next(iter(mine("profile_commands")), None),
        counts=mine("profile_counts"),
        faults=mine("profile_faults")[:MAX_ROWS],
        counters=[row for row in mine("profile_counters") if row["gained"]],
        notes=[
            *mine("profile_notes"),
            *(
                {"kind": "partial", "note": why["why"]}
                for row in rows
                for why in tables.get(f"{row.get('file')}.folded why", ())
            ),
        ],
        drawn=list(
            _drawn(rows, named.get(against, []), mine("profile_sites"), tables, known, frames)
        ),
    )


def _part(row: dict[str, Any], split: Split | None) -> PartRow:
    why = split.why(row["part"]) if split else ""
    return PartRow(row["who"], row["part"], row["samples"], row["share_of_all"], why)


def _drawn(
    rows: Rows, others: Rows, sites: Rows, tables: Tables, known: KnownFrames, frames: int
) -> Iterator[Drawn]:
    recipe = _recipe(rows[0].get("recipe"))
    for row in rows:
        found = _stacks(tables, row)
        if not found:
            continue
        event, unit, nmi = str(row["event"]), str(row["unit"]), str(row.get("nmi") or "")
        # Where the sampler misses nothing, a leaf is where it was.
        marked = list(_marked(found, known)) if nmi in ("no", "unknown") else found
        what = f"{event} of {row['profile']}, width in {unit}"
        whole = flames(
            marked,
            unit,
            f"Flame graph: {what}",
            frame_kind,
            (f"{row['file']}.folded", f"{row['file']}.folded"),
            frames=frames,
            drawn=_user_code_as_one(marked),
        )
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
        leaves = _by_leaf(site for site in sites if site["event"] == event)
        yield Drawn(
            event=event,
            unit=unit,
            total=sum(value for _, value in found),
            whole=whole,
            views=views,
            after=after,
            before=before,
            sites=leaves[:MAX_ROWS],
            hidden=sum(leaf.samples for leaf in leaves),
            nmi=nmi,
        )


def _by_leaf(sites: Iterable[dict[str, Any]]) -> list[Site]:
    """The sites of all callers, added up by their leaf, most samples first."""
    samples: Counter[tuple[str, str]] = Counter()
    for site in sites:
        samples[site["leaf"], site["stands_for"]] += site["samples"]
    return [Site(leaf, count, words) for (leaf, words), count in samples.most_common()]


def _stacks(tables: Tables, row: dict[str, Any]) -> Stacks:
    rows = tables.get(f"{row.get('file')}.folded", [])
    return [(item["stack"], item["value"]) for item in rows]


def _marked(found: Stacks, known: KnownFrames) -> Iterator[tuple[str, int]]:
    """Stacks with one more frame where the leaf stands for what ran before it."""
    # Frames are few, stacks are many.
    is_site = functools.cache(lambda leaf: profiles.is_site(leaf, known))
    for stack, value in found:
        # Where interrupts come back on.
        yield f"{stack};{HIDDEN}" if is_site(stack.rpartition(";")[2]) else stack, value


def _from_roots(found: Stacks, roots: Iterable[str]) -> Iterator[tuple[str, int]]:
    """What runs in these functions: from the outermost of them on."""
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
        task, kernel = stack.find(";") + 1, _kernel_part(stack)
        if task < kernel:
            yield f"{stack[:task]}{flame_graph.USER_CODE};{stack[kernel:]}", value
        elif task == kernel:
            yield stack, value
        else:
            first, *frames = stack.split(";")
            parts = [first]
            for user, run in itertools.groupby(frames, is_user):
                parts += [flame_graph.USER_CODE] if user else run
            yield ";".join(parts), value


def _kernel_part(stack: str) -> int:
    """
    Where the kernel's frames begin, if all are behind the task's own, as nearly always; else -1.
    """
    ended = f"{stack};"
    first = ended.find(KERNEL_END, ended.find(";") + 1)
    begin = ended.rfind(";", 0, first) + 1
    if first < 0 or HIDDEN in stack or ended.count(KERNEL_END, begin) < ended.count(";", begin):
        return -1
    return begin


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


PROFILES = Picture(
    "profiles",
    TABLE,
    frozenset({"profile", "event", "unit", "samples", "file"}),
    draw,
    others=frozenset(table.name for table in PROFILES_HEADING.tables),
    apart="profile",
)
