# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Flame graphs of folded stacks, and their differentials: FlameGraph draws, the page dresses.

Folding, pruning, subtracting and the numbers are done here; where each frame lies is FlameGraph's
work: ``inferno-flamegraph``, or else ``flamegraph.pl``. It gets a numbered token for every frame
and never sees a name: names are hostile, and what it makes of them (``<`` becomes ``(``, a name
that ends in a number is taken for a column) is no longer of interest.

Of its SVG only the places of the frames are kept. The rest would not work in the page: scripts and
handlers are against its Content-Security-Policy, the ids are the same in every graph, colours do
not follow the dark theme, and nothing can be reached by keyboard. What comes out has widths in per
cent, names and numbers in titles, classes for colours, and no script of its own; ``report.js``
adds zoom, search and keys.

A differential compares two graphs frame by frame. Widths are those of one of them: of the after,
where what vanished cannot be seen, so that there is always a second one with those of the before.

Cannot know: whether a frame is a function; it is whatever stands between two semicolons.
"""

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from xml.etree import ElementTree

from markupsafe import Markup, escape

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible

Stacks = Iterable[tuple[str, int]] | dict[str, int]  # root;…;leaf, value; a dict is folded

# A frame narrower than this cannot be seen, nor hit with a mouse.
MIN_SHARE = 0.001
# What a picture may take of the report; frames are left out, the narrowest first, until it fits.
MAX_SVG_BYTES = 120_000
MAX_FRAMES = 360
# What is drawn is held in memory: half as much again as 50,000 stacks have.
MAX_FRAMES_HELD = 1_500_000
# The kernel saves 64 frames of a stack at most, perf 127 unless told otherwise.
MAX_DEPTH = 128
MAX_NAME = 200
ROW = 17  # pixels
# Where a name fits at all.
NARROW = 0.025
SECONDS = 30
# Of the drawing; flamegraph.pl rounds to a tenth of its pixels and has margins of 10.
WIDTH = 12_000
DEBIAN_COPY = Path("/usr/share/perl5/Devel/NYTProf/flamegraph.pl")
NO_PROGRAM = (
    "nothing here draws flame graphs: apt-get install libdevel-nytprof-perl, or cargo install "
    "inferno, or set FLAMEGRAPH_DIR to a checkout of FlameGraph"
)


class DrawingError(Exception):
    """There is no picture, for this reason."""


@dataclass(frozen=True)
class FlameGraph:
    """
    A drawing, or why there is none, and what was left out of it.

    :ivar svg: empty if there is none.
    """

    svg: Markup
    error: str
    total: int
    unit: str
    frames: int
    pruned_stacks: int
    pruned: int
    narrowest: float  # frame that is drawn, as a share of the whole


@dataclass(frozen=True)
class Top:
    """A frame with what ends in it, and what passes through it or ends there."""

    name: str
    self_value: int
    total: int


@dataclass(slots=True)
class _Node:
    name: str
    depth: int
    value: int
    other: int  # in the other graph of a differential
    parent: int
    own: int = 0  # of the value, what no child that is drawn has


def fold(stacks: Stacks) -> dict[str, int]:
    """Stacks that are the same added up; what has no value is left out."""
    if isinstance(stacks, dict):  # they are
        return stacks
    folded: defaultdict[str, int] = defaultdict(int)
    for stack, value in stacks:
        if value > 0:
            folded[stack] += value
    return folded


def _drawable(folded: dict[str, int]) -> dict[str, int]:
    """
    Stacks that may be taken apart.

    :raises ValueError: they have more frames than memory is meant for.
    """
    if sum(stack.count(";") + 1 for stack in folded) > MAX_FRAMES_HELD:
        raise ValueError(f"its stacks have more than {MAX_FRAMES_HELD:,} frames, too many to draw")
    return folded


def top_frames(stacks: Stacks, limit: int) -> tuple[list[Top], int]:
    """
    Frames by what they hold, most first, and how many there are. Recursion counts once.

    :return: (at most *limit* of them, the number of all).
    """
    own: defaultdict[str, int] = defaultdict(int)
    total: defaultdict[str, int] = defaultdict(int)
    for stack, value in fold(stacks).items():
        frames = stack.split(";")
        own[frames[-1]] += value
        for frame in set(frames):
            total[frame] += value
    order = sorted(total, key=lambda name: (-total[name], -own.get(name, 0), name))
    return [Top(name, own.get(name, 0), total[name]) for name in order[:limit]], len(order)


def flame_graph(
    stacks: Stacks,
    *,
    unit: str,
    describe: str,
    kind: Callable[[str, int], str],
    frames: int = MAX_FRAMES,
) -> FlameGraph:
    """
    Draw stacks, widths by their values.

    :param describe: what a reader who cannot see it is told.
    :param kind: a frame's name and depth (the first frame has 1) to the class that colours it.
    :param frames: how many to draw at most.
    """
    folded = _drawable(fold(stacks))
    return _graph(
        [(stack.split(";"), value, 0) for stack, value in folded.items()],
        unit,
        describe,
        lambda node, whole: (kind(node.name, node.depth), "", _amount(node.value, unit, whole)),
        frames,
    )


def differential(
    before: Stacks,
    after: Stacks,
    *,
    unit: str,
    describe: str,
    normalise: bool = True,
    frames: int = MAX_FRAMES,
) -> tuple[FlameGraph, FlameGraph]:
    """
    Compare stacks: (widths of the after, widths of the before), both coloured by the growth of
    each frame with all that it called.

    :param normalise: compare shares of the totals, as samples of different durations need it. What
        was counted at two moments on one machine is compared as it is.
    """
    old, new = _drawable(fold(before)), _drawable(fold(after))
    totals = sum(old.values()), sum(new.values())
    scaled = normalise and all(totals)

    def words(is_after: bool) -> Callable[[_Node, int], tuple[str, str, str]]:
        def look(node: _Node, whole: int) -> tuple[str, str, str]:
            was, now = (node.other, node.value) if is_after else (node.value, node.other)
            return growth(was, now, totals if scaled else None, unit)

        return look

    graphs = []
    frames_of = {stack: stack.split(";") for stack in new.keys() | old.keys()}
    for wide, other, is_after in ((new, old, True), (old, new, False)):
        split = [
            (split, wide.get(stack, 0), other.get(stack, 0)) for stack, split in frames_of.items()
        ]
        side = "widths after" if is_after else "widths before"
        graphs.append(_graph(split, unit, f"{describe}, {side}", words(is_after), frames))
    return graphs[0], graphs[1]


def growth(was: int, now: int, totals: tuple[int, int] | None, unit: str) -> tuple[str, str, str]:
    """
    How a frame changed: (class from ``less-3`` over ``same`` to ``more-3``, mark, words).

    :param totals: of both graphs, to compare shares; None: to compare the values.
    """
    before, after = (was / totals[0], now / totals[1]) if totals else (float(was), float(now))
    change = (after - before) / max(before, after) if before or after else 0.0
    step = 1 + (abs(change) >= 0.1) + (abs(change) >= 0.5) if abs(change) >= 0.01 else 0
    look = f"{'more' if change > 0 else 'less'}-{step}" if step else "same"
    mark = ("▲ " if change > 0 else "▼ ") if step else ""
    said = f"{_plain(was, unit)} before, {_plain(now, unit)} after"
    if not was:
        said += ": new"
    elif not now:
        said += ": gone"
    elif totals:
        said += f": {display.percent(before)} and {display.percent(after)} of all"
    else:
        said += f": {'+' if now >= was else '-'}{_plain(abs(now - was), unit)}"
    return look, mark, said


def _plain(value: int, unit: str) -> str:
    return display.size(value) if unit == "bytes" else f"{value:,} {unit}"


def _amount(value: int, unit: str, whole: int) -> str:
    exact = f" ({value:,} bytes)" if unit == "bytes" and value >= 1024 else ""
    return f"{_plain(value, unit)}{exact}, {display.share(value, whole)}"


Split = tuple[list[str], int, int]


def _graph(
    stacks: list[Split],
    unit: str,
    describe: str,
    look: Callable[[_Node, int], tuple[str, str, str]],
    frames: int,
) -> FlameGraph:
    total = sum(value for _, value, _ in stacks)
    nodes = _tree(stacks, total)
    svg, error = "", ""
    try:
        if not total:
            raise DrawingError("there is nothing to draw")
        program = drawing_program()
        while True:
            nodes = _widest(nodes, frames)
            svg = _svg(nodes, _places(program, nodes), describe, look)
            if len(svg.encode()) <= MAX_SVG_BYTES:
                break
            frames = len(nodes) * 3 // 4
    except DrawingError as caught:
        svg, error = "", str(caught)
    pruned_stacks, pruned = _pruned(stacks, nodes)
    # Written below, every name escaped.
    narrowest = min((node.value for node in nodes), default=0) / total if total else 0.0
    return FlameGraph(
        Markup(svg), error, total, unit, len(nodes) - 1, pruned_stacks, pruned, narrowest
    )


def _tree(stacks: list[Split], total: int) -> list[_Node]:
    """
    The stacks as a tree in the order of drawing, the root of all first, without what cannot be
    seen. Grown from the root, so that a narrow branch costs nothing beyond its first frame.
    """
    everything = sum(other for _, _, other in stacks)
    nodes: list[_Node] = []
    todo = [(_Node("all", 0, total, everything, -1), stacks)]
    while todo:
        node, through = todo.pop()
        nodes.append(node)
        if node.depth == MAX_DEPTH:
            continue
        children: defaultdict[str, list[Split]] = defaultdict(list)
        for item in through:
            if len(item[0]) > node.depth:
                children[item[0][node.depth]].append(item)
        for name in sorted(children, reverse=True):
            value = sum(map(itemgetter(1), children[name]))
            if value and value >= total * MIN_SHARE:
                other = sum(map(itemgetter(2), children[name]))
                child = _Node(name, node.depth + 1, value, other, len(nodes) - 1)
                todo.append((child, children[name]))
    return _settled(nodes)


def _widest(nodes: list[_Node], limit: int) -> list[_Node]:
    """The widest frames; one is never narrower than what it called, so that they are a tree."""
    if len(nodes) <= limit + 1:
        return nodes
    order = sorted(range(len(nodes)), key=lambda number: (-nodes[number].value, number))
    kept = sorted(order[: limit + 1])
    places = {number: place for place, number in enumerate(kept)}
    chosen = [nodes[number] for number in kept]
    for node in chosen[1:]:
        node.parent = places[node.parent]
    return _settled(chosen)


def _settled(nodes: list[_Node]) -> list[_Node]:
    for node in nodes:
        node.own = node.value
    for node in nodes[1:]:
        nodes[node.parent].own -= node.value
    return nodes


def _pruned(stacks: list[Split], nodes: list[_Node]) -> tuple[int, int]:
    """(stacks of which a part is not drawn, their values added up)."""
    children: dict[tuple[int, str], int] = {
        (node.parent, node.name): number for number, node in enumerate(nodes)
    }
    number, added = 0, 0
    for frames, value, _ in stacks:
        if not value:
            continue
        at = 0
        for frame in frames:
            at = children.get((at, frame), -1)
            if at < 0:
                number, added = number + 1, added + value
                break
    return number, added


def drawing_program() -> list[str]:
    """
    The command that draws.

    :raises DrawingError: there is none.
    """
    if path := shutil.which("inferno-flamegraph"):
        return [path, "--width", str(WIDTH), "--minwidth", "0"]
    folder = os.environ.get("FLAMEGRAPH_DIR")
    given = Path(folder) / "flamegraph.pl" if folder else None
    found = shutil.which("flamegraph.pl")
    perl = shutil.which("perl")
    for script in (given, Path(found) if found else None, DEBIAN_COPY):
        if perl and script and script.is_file():
            return [perl, str(script), "--width", str(WIDTH), "--minwidth", "0"]
    raise DrawingError(NO_PROGRAM)


def _places(program: list[str], nodes: Sequence[_Node]) -> list[tuple[float, float]]:
    """
    Where FlameGraph puts each frame: (left edge, width), as shares of the whole.

    :raises DrawingError: it fails, or draws something else.
    """
    name = Path(program[1] if program[0].endswith("perl") else program[0]).name
    lines = []
    for number, node in enumerate(nodes):
        if node.own > 0:
            path, at = [], number
            while at > 0:
                path.append(f"f{at:06}")
                at = nodes[at].parent
            # What belongs to no frame that is drawn still takes its room, at the right.
            lines.append(f"{';'.join(reversed(path)) or 'g'} {node.own}\n")
    try:
        done = subprocess.run(
            program, input="".join(lines).encode(), capture_output=True, timeout=SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DrawingError(f"{name} cannot be run: {error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-200:]
        raise DrawingError(f"{name} failed: {said or done.returncode}")
    try:
        return _read_places(done.stdout, nodes)
    except (ElementTree.ParseError, KeyError, ValueError, ZeroDivisionError) as error:
        raise DrawingError(f"{name} drew no flame graph: {error}") from error


def _read_places(svg: bytes, nodes: Sequence[_Node]) -> list[tuple[float, float]]:
    found: dict[str, tuple[float, float, float]] = {}
    # Expat reads nothing from outside. Both programs write the same: a group with title and rect.
    for group in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        title = group.find("{*}title")
        rect = group.find("{*}rect")
        if title is not None and rect is not None and title.text:
            x, y, width = (float(rect.attrib[key].rstrip("%")) for key in ("x", "y", "width"))
            found[title.text.split(" ")[0]] = x, y, width
    left, bottom, whole = found["all"]
    places = [(0.0, 1.0)]
    rows = {0: bottom}
    for number, node in enumerate(nodes[1:], 1):
        x, y, width = found[f"f{number:06}"]
        if rows.setdefault(node.depth, y) != y:
            raise ValueError("a frame is on another row than asked for")
        places.append(((x - left) / whole, width / whole))
    return places


def _svg(
    nodes: Sequence[_Node],
    places: Sequence[tuple[float, float]],
    describe: str,
    look: Callable[[_Node, int], tuple[str, str, str]],
) -> str:
    """Frames as nested ``svg`` elements, which clip their names by themselves at any width."""
    rows = max(node.depth for node in nodes)
    parts = [
        f'<svg class="flame" width="100%" height="{(rows + 1) * ROW}" role="group" '
        f'aria-label="{escape(describe)}">\n'
    ]
    for node, (x, width) in zip(nodes, places, strict=True):
        name = escape(visible(display.cut(node.name, MAX_NAME)) or "(no name)")
        kind, mark, words = look(node, nodes[0].value)
        # Where it would not fit, report.js writes it, of the title, once it does.
        text = "" if width < NARROW else f'<text x="3" y="12">{mark}{name}</text>'
        parts.append(
            f'<svg class="{kind}" x="{_percent(x)}" y="{(rows - node.depth) * ROW}" '
            f'width="{_percent(width)}" height="{ROW - 1}">'
            f"<title>{name}: {escape(words)}</title><rect/>{text}</svg>\n"
        )
    parts.append("</svg>")
    return "".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"
