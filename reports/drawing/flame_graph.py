# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Flame graphs of folded stacks, and their differentials.

Each frame lies where FlameGraph's ``flamegraph.pl`` draws it: above its caller, beside what has the
same caller, in the order of names. What is a frame's own is at its left; callees that are too many
or too narrow to be drawn share a box at its right that says how many stacks it stands for.

The SVG is made for the page: widths are per cent, names and numbers are in titles, classes give
colours, which follow the dark theme. It is the still picture; ``flame_viewer.js`` draws the same
from all stacks where the page has them for download, with zoom, search and other views.

A differential compares two graphs frame by frame. Widths are those of one of them: of the after,
where what vanished cannot be seen, so that there is always a second one with those of the before.

Cannot know: whether a frame is a function; it is whatever stands between two semicolons.
"""

import heapq
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from markupsafe import Markup, escape

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import cut, visible
from mmscope.reports.drawing.refusals import NotDrawn

Stacks = Iterable[tuple[str, int]] | dict[str, int]  # root;…;leaf, value; a dict is folded
Look = tuple[str, str, str]  # of a frame: class, mark before its name, words

# A frame narrower than this cannot be seen, nor hit with a mouse.
MIN_SHARE = 0.001
# What a picture may take of the report; frames are left out, the narrowest first, until it fits.
MAX_SVG_BYTES = 120_000
MAX_FRAMES = 360
# What is drawn is held in memory: half as much again as 50,000 stacks have.
MAX_FRAMES_HELD = 1_500_000
# The kernel saves 64 frames of a stack at most, perf 127 by default.
MAX_DEPTH = 128
MAX_NAME = 200
ROW = 17  # pixels
# Where a name fits at all.
NARROW = 0.025
# FlameGraph's mark of the kernel's frames: the colour says it.
KERNEL = "_[k]"
# Frames of a process's own code that follow each other, as one.
USER_CODE = "(user code)"
ROOT = "all"
# The character after the separator of frames.
AFTER_SEPARATOR = "<"
# Differences that as many samples as there are show by chance, once in twenty: nearly two standard
# deviations of the difference of two shares.
CHANCE = 1.96


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """
    A drawing, or why it is missing, and what was left out of it.

    :ivar svg: empty if nothing was drawn.
    """

    svg: Markup
    error: str
    total: int
    unit: str
    frames: int
    pruned_stacks: int
    pruned: int
    narrowest: float  # frame that is drawn, as a share of the whole


class _Node(NamedTuple):
    """
    A frame.

    :ivar path: frames from the first one to this; the root of all has none.
    :ivar called: the part of the value that goes on to other frames.
    """

    path: tuple[str, ...]
    value: int
    other: int  # in the other graph of a differential
    stacks: int  # through it
    called: int
    called_stacks: int


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

    :raises NotDrawn: they have more frames than memory is meant for.
    """
    if ";".join(folded).count(";") >= MAX_FRAMES_HELD:
        raise NotDrawn(f"its stacks have more than {MAX_FRAMES_HELD:,} frames, too many to draw")
    return folded


def top_frames(stacks: Stacks, limit: int) -> tuple[list[tuple[str, int, int]], dict[str, int]]:
    """
    Frames by what they hold, most first. Recursion counts once.

    :return: (at most *limit* of them, each with what ends in it and what passes through it or ends
        there; the latter of each frame there is).
    """
    own: defaultdict[str, int] = defaultdict(int)
    total: defaultdict[str, int] = defaultdict(int)
    for stack, value in fold(stacks).items():
        frames = stack.split(";")
        own[frames[-1]] += value
        for frame in set(frames):
            total[frame] += value
    order = sorted(total, key=lambda name: (-total[name], -own.get(name, 0), name))
    return [(name, own.get(name, 0), total[name]) for name in order[:limit]], total


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

    :param describe: the text for a reader who cannot see it.
    :param kind: a frame's name and depth (the first frame has 1) to the class that colours it.
    :param frames: how many to draw at most.
    """

    def look(node: _Node, whole: int) -> Look:
        name = node.path[-1] if node.path else ROOT
        return kind(name, len(node.path)), "", _amount(node.value, unit, whole)

    return _graph(*_in_order(_drawable(fold(stacks)), {}), unit, describe, look, frames)


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

    def of_after(node: _Node, whole: int) -> Look:
        return growth(node.other, node.value, totals if scaled else None, unit)

    def of_before(node: _Node, whole: int) -> Look:
        return growth(node.value, node.other, totals if scaled else None, unit)

    order, now, was = _in_order(new, old)
    return (
        _graph(order, now, was, unit, f"{describe}, widths after", of_after, frames),
        _graph(order, was, now, unit, f"{describe}, widths before", of_before, frames),
    )


def growth(was: int, now: int, totals: tuple[int, int] | None, unit: str) -> Look:
    """
    Change of a frame: (class from ``less-3`` over ``same`` to ``more-3``, mark, words); class
    ``unsure`` if it differs no more than so many samples do by chance.

    :param totals: of both graphs, to compare shares; None: to compare the values.
    """
    before, after = (was / totals[0], now / totals[1]) if totals else (float(was), float(now))
    change = (after - before) / max(before, after) if before or after else 0.0
    step = 1 + (abs(change) >= 0.1) + (abs(change) >= 0.5) if abs(change) >= 0.01 else 0
    look = f"{'more' if change > 0 else 'less'}-{step}" if step else "same"
    mark = ("▲ " if change > 0 else "▼ ") if step else ""
    said = f"{_plain(was, unit)} before, {_plain(now, unit)} after"
    if step and totals and unit == "samples" and _by_chance(was, now, totals):
        return "unsure", "", f"{said}: so few differ as much by chance"
    if not was:
        said += ": new"
    elif not now:
        said += ": gone"
    elif totals:
        said += f": {display.percent(before)} and {display.percent(after)} of all"
    else:
        said += f": {'+' if now >= was else '-'}{_plain(abs(now - was), unit)}"
    return look, mark, said


def _by_chance(was: int, now: int, totals: tuple[int, int]) -> bool:
    """
    True if two shares of samples are as near as those of one mixture often are: the test of two
    proportions, at 5 %. A sampler that misses some of the work errs on top of that.
    """
    pooled = (was + now) / sum(totals)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / totals[0] + 1 / totals[1]))
    return abs(now / totals[1] - was / totals[0]) < CHANCE * spread


def _plain(value: int, unit: str) -> str:
    return display.size(value) if unit == "bytes" else f"{value:,} {unit}"


def _amount(value: int, unit: str, whole: int) -> str:
    exact = f" ({value:,} bytes)" if unit == "bytes" and value >= 1024 else ""
    return f"{_plain(value, unit)}{exact}, {display.share(value, whole)}"


def _in_order(
    mine: dict[str, int], theirs: dict[str, int]
) -> tuple[list[str], list[int], list[int]]:
    """
    The stacks of two graphs, and the values that each has of them. They are in the order of their
    text, each with a semicolon at its end: those with the same first frames follow each other.
    """
    stack_of = {f"{stack};": stack for stack in mine | theirs}
    order = sorted(stack_of)
    values, elsewhere = ([side.get(stack_of[at], 0) for at in order] for side in (mine, theirs))
    return order, values, elsewhere


def _graph(
    order: list[str],
    values: list[int],
    elsewhere: list[int],
    unit: str,
    describe: str,
    look: Callable[[_Node, int], Look],
    frames: int,
) -> FlameGraph:
    nodes = _widest(order, values, elsewhere, frames)
    total = nodes[0].value
    svg, pruned, pruned_stacks = "", 0, 0
    while total:
        svg, pruned, pruned_stacks = _svg(nodes, describe, unit, look)
        if len(svg.encode()) <= MAX_SVG_BYTES:
            break
        nodes = nodes[: len(nodes) * 3 // 4 + 1]
    return FlameGraph(
        Markup(svg),  # every name is escaped
        "" if total else "there is nothing to draw",
        total,
        unit,
        len(nodes) - 1,
        pruned_stacks,
        pruned,
        nodes[-1].value / total if total else 0.0,
    )


def _widest(order: list[str], values: list[int], elsewhere: list[int], frames: int) -> list[_Node]:
    """
    The root and the widest frames that can be seen, the widest first. One is never wider than its
    caller, so that any number of the first ones is a tree; a narrow branch costs nothing.
    """
    # What stacks that follow each other hold is the difference of two sums.
    value, other, number = (
        list(accumulate(each, initial=0)) for each in (values, elsewhere, map(bool, values))
    )
    total = value[-1]
    nodes: list[_Node] = []
    todo: list[tuple[int, tuple[str, ...], int, int, int]] = [(-total, (), 0, len(order), 0)]
    while todo and len(nodes) <= frames:
        _, path, first, last, at = heapq.heappop(todo)
        ends = first + (first < last and len(order[first]) == at)
        sums = (value, first), (other, first), (number, first), (value, ends), (number, ends)
        nodes.append(_Node(path, *(each[last] - each[begin] for each, begin in sums)))
        for name, low, high, next_at in _called(order, first, last, at):
            width = value[high] - value[low]
            if width and width >= total * MIN_SHARE and len(path) < MAX_DEPTH:
                heapq.heappush(todo, (-width, (*path, name), low, high, next_at))
    return nodes


def _called(
    order: list[str], first: int, last: int, at: int
) -> Iterator[tuple[str, int, int, int]]:
    """Frames that sorted stacks go on to after *at*: (frame, first stack, last, next character)."""
    while first < last:
        stack = order[first]
        end = stack.find(";", at)
        if end < 0:  # it ends there
            first += 1
            continue
        following = bisect_left(order, f"{stack[:end]}{AFTER_SEPARATOR}", first + 1, last)
        yield stack[at:end], first, following, end + 1
        first = following


def _svg(
    nodes: Sequence[_Node], describe: str, unit: str, look: Callable[[_Node, int], Look]
) -> tuple[str, int, int]:
    """
    Frames as nested ``svg`` elements, which clip their names by themselves at any width.

    :return: (the drawing, what goes on in frames that are not drawn, how many stacks).
    """
    total = nodes[0].value
    hidden = {node.path: node.called for node in nodes}
    stacks = {node.path: node.called_stacks for node in nodes}
    for node in nodes[1:]:
        hidden[node.path[:-1]] -= node.value
        stacks[node.path[:-1]] -= node.stacks
    least = max(total * MIN_SHARE, 1)
    rows = max(len(path) + (value >= least) for path, value in hidden.items())
    parts = [
        f'<svg class="flame" width="100%" height="{(rows + 1) * ROW}" role="group" '
        f'aria-label="{escape(describe)}">\n'
    ]

    def box(
        kind: str, depth: int, left: int, value: int, name: str, words: str, mark: str = ""
    ) -> None:
        # Where it would not fit, flame_viewer.js writes it, of the title, once it does.
        text = "" if value < NARROW * total else f'<text x="3" y="12">{mark}{name}</text>'
        parts.append(
            f'<svg class="{kind}" x="{_percent(left / total)}" y="{(rows - depth) * ROW}" '
            f'width="{_percent(value / total)}" height="{ROW - 1}">'
            f"<title>{name}: {escape(words)}</title><rect/>{text}</svg>\n"
        )

    free: dict[tuple[str, ...], int] = {
        (): 0
    }  # where the next callee of a frame begins, as a value
    pending: list[tuple[str, ...]] = []  # boxes to the right of all that is drawn on a frame

    def hidden_above(depth: int) -> None:
        while pending and len(pending[-1]) >= depth:
            path = pending.pop()
            name = f"other ({display.plural(stacks[path], 'stack')})"
            words = _amount(hidden[path], unit, total)
            box("other", len(path) + 1, free[path], hidden[path], name, words)

    for node in sorted(nodes):  # callees after their caller, in the order of names
        path, depth = node.path, len(node.path)
        hidden_above(depth)
        symbol = path[-1].removesuffix(KERNEL) if path else ROOT
        name = escape(visible(cut(symbol, MAX_NAME)) or "(no name)")
        kind, mark, words = look(node, total)
        left = free[path[:-1]]
        free[path[:-1]] += node.value if path else 0
        free[path] = left + node.value - node.called
        box(kind, depth, left, node.value, str(name), words, mark)
        if hidden[path] >= least:
            pending.append(path)
    hidden_above(0)
    parts.append("</svg>")
    return "".join(parts), sum(hidden.values()), sum(stacks.values())


def _percent(share: float) -> str:
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"
