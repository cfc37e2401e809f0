# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Line charts as SVG: shapes and text with classes, which the stylesheet colours (light, dark, print).

The value of a dot is its title. The legend is the page's work: the n-th line has the class
``color-n``.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

# More lines than this cannot be distinguished; the table beside the chart has them all.
MAX_LINES = 12
WIDTH = 720
# Beside the guides: labels of the vertical axis at the left, labels and title of the other below.
LEFT, RIGHT, TOP, BELOW = 36, 714, 6, 44
# Between the guides' ends and the first and the last tick.
MARGIN_X, MARGIN_Y = 13, 4


class Tick(NamedTuple):
    """A label of an axis; a line goes across the chart where it is marked."""

    at: float
    label: str
    marked: bool = False


Point = tuple[float, float, str]  # x, y, title


def line_chart(
    x: Sequence[Tick],
    y: Sequence[Tick],
    lines: Sequence[Sequence[Point]],
    *,
    x_title: str,
    describe: str,
    height: int = 260,
) -> Markup:
    """
    An SVG element with one line for each of *lines*, at most :data:`MAX_LINES`.

    :param x: ticks in order; the first and the last are the ends of the axis.
    :param describe: the text for a reader who cannot see it.
    """
    bottom = height - BELOW
    across = _scale(x, LEFT + MARGIN_X, RIGHT - MARGIN_X)
    up = _scale(y, bottom - MARGIN_Y, TOP + MARGIN_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(describe)}">\n<g class="axis y">'
    ]
    for tick, kind in zip(y, _guides(y), strict=True):
        at = up(tick.at)
        parts.append(f'<path class="{kind}" d="M{LEFT} {at:.1f}H{RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 3.5:.1f}">{escape(tick.label)}</text>')
    parts.append('</g>\n<g class="axis x">')
    for tick, kind in zip(x, _guides(x), strict=True):
        at = across(tick.at)
        if kind != "guide":
            parts.append(f'<path class="{kind}" d="M{at:.1f} {TOP}V{bottom}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 15}">{escape(tick.label)}</text>')
    title = f'<text class="title" x="{(LEFT + RIGHT) // 2}" y="{height - 6}">{escape(x_title)}'
    parts.append(f"</g>\n{title}</text>")
    for number, line in enumerate(lines[:MAX_LINES]):
        places = [(f"{across(at):.1f}", f"{up(value):.1f}") for at, value, _ in line]
        path = "L".join(map(" ".join, places))
        parts.append(f'\n<g class="series color-{number}"><path class="line" d="M{path}"/>')
        for (left, top), (_, _, words) in zip(places, line, strict=True):
            dot = f'<circle class="dot" cx="{left}" cy="{top}" r="3">'
            parts.append(f"{dot}<title>{escape(words)}</title></circle>")
        parts.append("</g>")
    parts.append("\n</svg>")
    return Markup("".join(parts))


def _scale(ticks: Sequence[Tick], begin: float, end: float) -> Callable[[float], float]:
    """A value's place, from the first tick at *begin* to the last at *end*; of one, the middle."""
    if len(ticks) < 2:
        return lambda value: (begin + end) / 2
    first, last = ticks[0].at, ticks[-1].at
    return lambda value: begin + (end - begin) * (value - first) / (last - first)


def _guides(ticks: Sequence[Tick]) -> list[str]:
    """The classes of the ticks' lines."""
    zero = ["guide zero", *["guide"] * len(ticks)]
    return ["guide marked" if t.marked else kind for t, kind in zip(ticks, zero, strict=False)]
