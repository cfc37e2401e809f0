# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Line charts, drawn by pygal and dressed by our stylesheet, and the numbers behind them.

pygal's SVG comes with a script, a style element, its own ids and the date of the drawing. All of
that is taken off: what stays are shapes and text with classes, so that the page's colours (light,
dark, print) apply, its security policy holds, and the same data gives the same bytes.
"""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

SVG = "http://www.w3.org/2000/svg"
# More lines than this cannot be told apart; the table beside the chart has them all.
MAX_LINES = 12
# Rounded to a tenth of a pixel: the rest is noise that doubles the file. Numbers in text are not.
POSITIONS = {"d", "x", "y", "cx", "cy", "width", "height", "transform"}


def line_chart(
    labels: Sequence[str],
    lines: Sequence[tuple[str, Sequence[float | None]]],
    *,
    x_title: str,
    describe: str,
    ceiling: float | None = None,
    mark: str | None = None,
    threshold: float | None = None,
) -> str:
    """
    An SVG element with one line for each of *lines* (name, values), at most :data:`MAX_LINES`.

    The legend is the page's work: the n-th line has the class ``color-n``.

    :param describe: the text for a reader who cannot see it.
    :param ceiling: upper end of the axis, from 0; by default the data decide.
    :param mark: one of *labels*, where a line goes from bottom to top.
    :param threshold: of an axis with a ceiling, where a line goes from side to side; it stands for
        the label that is nearest, which would be below or above it.
    """
    ticks = [] if ceiling is None else [ceiling * step / 5 for step in range(6)]
    if threshold is not None and ticks:
        limit = threshold
        ticks[min(range(1, 5), key=lambda n: abs(ticks[n] - limit))] = limit
    import pygal  # type: ignore[import-untyped]  # which few pages need

    chart = pygal.Line(
        js=[],
        no_prefix=True,
        width=720,
        height=260,
        margin=6,
        spacing=6,
        show_legend=False,
        show_x_guides=mark is not None,
        x_labels_major=[mark] if mark is not None else None,
        dots_size=3,
        x_title=x_title,
        range=None if ceiling is None else (0, ceiling),
        y_labels=ticks or None,
        # Without a word of it pygal makes some labels major; below the axis there is none.
        y_labels_major=[-1] if threshold is None else [threshold],
    )
    chart.x_labels = list(labels)
    for name, values in lines[:MAX_LINES]:
        chart.add(name, list(values))
    svg: ElementTree.Element = chart.render_tree()
    _strip(svg, [name for name, _ in lines], labels)
    svg.set("role", "img")
    svg.set("aria-label", describe)
    svg.set("class", "chart")
    return ElementTree.tostring(svg, encoding="unicode")


def _strip(svg: ElementTree.Element, names: Sequence[str], labels: Sequence[str]) -> None:
    """Take off what is pygal's own, and put a title on every dot."""
    for parent in list(svg.iter()):
        for child in list(parent):
            tag = child.tag if isinstance(child.tag, str) else "comment"
            kind = child.get("class") or ""
            if (
                tag.rpartition("}")[2] in ("comment", "defs", "title", "script", "style")
                or "tooltip-overlay" in kind
                or "text-overlay" in kind
                or kind == "legends"
            ):
                parent.remove(child)
    for element in svg.iter():
        for attribute in ("id", "style"):
            element.attrib.pop(attribute, None)
        for attribute in POSITIONS & element.attrib.keys():
            element.attrib[attribute] = re.sub(
                r"\d+\.\d+",
                lambda number: f"{float(number.group()):.1f}",
                element.attrib[attribute],
            )
        if not element.get("class"):
            element.attrib.pop("class", None)
        if element.get("class") == "dots":
            told = {child.get("class") or "": child for child in element}
            value = told["value"].text
            label = told["x_label"].text if "x_label" in told else ""
            for child in list(element):
                if child.tag.rpartition("}")[2] == "desc":
                    element.remove(child)
            title = ElementTree.SubElement(element, "title")
            title.text = f"{label}: {value}" if label else value
    for number, name in enumerate(names[:MAX_LINES]):
        for element in svg.iter():
            if f"serie-{number} " in (element.get("class") or "") + " ":
                for title in element.iter("title"):
                    title.text = f"{name}, {title.text}"
