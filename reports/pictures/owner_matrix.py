# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner's series as a matrix: the stacks that gained most, a column a reading.

The number of a cell is exact. Its shade is by its row: from the fewest pages that the stack had to
the most, or to 1 % above, so that what grew steadily, and since when, is seen whatever its size.

Cannot know: what was between two readings, of which only some have a column where there are many.
"""

from dataclasses import dataclass
from typing import Any

from mmscope.reports.drawing.cells import leaf_first
from mmscope.reports.drawing.row_names import owner_pair
from mmscope.reports.pictures import owner_pictures
from mmscope.reports.pictures.picture import Picture, Tables
from mmscope.reports.rows import owner_matrix

MAX_READINGS = 12
LEVELS = 8


@dataclass(frozen=True, slots=True)
class Cell:
    """``pages`` is None where the stack is not listed; ``level`` is 0 in a row without change."""

    pages: int | None
    level: int


@dataclass(frozen=True, slots=True)
class Line:
    """One stack."""

    name: str
    module: str
    callers: str
    stack: str
    note: str
    cells: list[Cell]
    gained: int


def levels(pages: list[int | None], shown: list[int]) -> list[Cell]:
    """The cells of some positions, shaded by all."""
    numbers = [number or 0 for number in pages]
    least, most = min(numbers), max(numbers)
    # What changed less than a hundredth does not look like much.
    span = max(most - least, -(-least // 100)) if most > least else 0
    return [
        Cell(pages[at], 1 + (LEVELS - 1) * (numbers[at] - least) // span if span else 0)
        for at in shown
    ]


def view(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The matrix of the stacks that :func:`owner_pictures.series_wanted` chose."""
    rows = tables["page_owner_series"]
    points = owner_matrix.points_of(rows)
    readings = owner_matrix.readings_of(tables.get("page_owner_snapshots", []), rows)
    grown = "page_owner_growth" in tables
    shown = owner_matrix.spread(len(readings), MAX_READINGS)
    stacks = tables.get("page_owner_stacks", [])
    lines = []
    for row, pages in owner_matrix.matrix(stacks, points, readings, grown=grown):
        stack, handle = row.get("stack"), row["handle"]
        name, module = owner_pair(stack)
        lines.append(
            Line(
                name=name if stack else f"handle {handle}",
                module=module,
                callers=owner_pictures.callers_of(stack or "", name),
                stack=leaf_first(stack) if stack else "",
                note=str(row.get("note") or ""),
                cells=levels(pages, shown),
                gained=owner_matrix.gained(points[handle]),
            )
        )
    return {
        "lines": lines[: owner_pictures.MAX_STACKS],
        "readings": [readings[at] for at in shown],
        "count": len(readings),
        "ends": (readings[0].name, readings[-1].name),
        "stacks": len(stacks),
        "grown": grown,
        "levels": LEVELS,
    }


PAGE_OWNER_MATRIX = Picture(
    "page_owner_matrix",
    "page_owner_series",
    frozenset({"time", "handle", "pages"}),
    view,
    others=frozenset({"page_owner_growth", "page_owner_stacks", "page_owner_snapshots"}),
    parts=owner_pictures.SERIES,
    style="""
.owners-over-time th[scope="row"] { min-width: 15rem; max-width: 26rem; white-space: normal; }
.owners-over-time details > p { font-family: var(--mono); font-size: 12px; margin: .2rem 0 .4rem; }
.owners-over-time th small { white-space: normal; }
.owners-over-time th .module { display: inline; }
""",
)
