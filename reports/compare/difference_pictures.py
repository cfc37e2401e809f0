# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What differs between two bundles, as one picture each: the free lists, the unusable free space
index, and pageblocks that are of another migratetype.

Cannot know: what happened between the two readings. A pageblock that was another type for a while
and is the old one again has not changed.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mmscope.reports.drawing.refusals import Damaged, NotDrawn
from mmscope.reports.pictures.free_heatmap import MAX_ORDER, MAX_TYPES, rank, unusable_index
from mmscope.reports.pictures.pageblock_map import lay_out

Rows = list[dict[str, Any]]
# Steps of a shade, in bytes: below 2 MiB, below 128 MiB, above.
STEPS = (2 << 20, 128 << 20)
STEPS_OF_PAGES = (512, 32768)  # where their size is unknown
UNCHANGED, GONE = "unchanged", "not there any more"
MAX_MOVES = 20


@dataclass(frozen=True, slots=True)
class Cell:
    """A free list: by how much it differs; ``look`` is the CSS class of a shade."""

    order: int
    blocks: int
    pages: int
    look: str


@dataclass(frozen=True, slots=True)
class Line:
    """One migratetype of a zone, or all."""

    migratetype: str | None
    cells: list[Cell]
    pages: int


@dataclass(frozen=True, slots=True)
class Grid:
    """The free lists of a zone. In pages."""

    node: int
    zone: str
    lines: list[Line]
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class FreeLists:
    """Zones that differ, and how many do not."""

    grids: list[Grid]
    same: int


def free_lists(before: Rows, after: Rows, page_size: int | None) -> FreeLists:
    """By how much each free list differs; rows are of table ``free_blocks``."""
    old, new = _lists(before), _lists(after)
    zones: dict[tuple[int, str], dict[str, None]] = {}
    for node, zone, migratetype, _ in [*old, *new]:
        zones.setdefault((node, zone), {})[migratetype] = None
    orders = sorted({order for *_, order in [*old, *new]})
    if orders and not 0 <= orders[0] <= orders[-1] <= MAX_ORDER:
        raise Damaged("there is no such order")
    grids, same = [], 0
    for (node, zone), types in zones.items():
        if len(types) > MAX_TYPES:
            raise Damaged(f"more than {MAX_TYPES} migratetypes")

        def blocks(kind: str, order: int, node: int = node, zone: str = zone) -> int:
            return new[node, zone, kind, order] - old[node, zone, kind, order]

        lines = [
            _line(kind, {order: blocks(kind, order) for order in orders}, page_size)
            for kind in sorted(types, key=rank)
        ]
        if not any(cell.blocks for line in lines for cell in line.cells):
            same += 1
            continue
        sums = {order: sum(blocks(kind, order) for kind in types) for order in orders}
        free = [_free(lists, node, zone) for lists in (old, new)]
        grids.append(Grid(node, zone, [*lines, _line(None, sums, page_size)], *free))
    grids.sort(key=lambda grid: -sum(abs(line.pages) for line in grid.lines))
    return FreeLists(grids, same)


def _lists(rows: Rows) -> Counter[tuple[int, str, str, int]]:
    found: Counter[tuple[int, str, str, int]] = Counter()
    for row in rows:
        kind = str(row["migratetype"] or "type unknown")
        found[int(row["node"]), str(row["zone"]), kind, int(row["order"])] += int(row["blocks"])
    return found


def _free(lists: Counter[tuple[int, str, str, int]], node: int, zone: str) -> int:
    return sum(n << order for (*where, _, order), n in lists.items() if where == [node, zone])


def _line(kind: str | None, blocks: dict[int, int], page_size: int | None) -> Line:
    cells = [
        Cell(order, number, number << order, _look(number << order, page_size))
        for order, number in blocks.items()
    ]
    return Line(kind, cells, sum(cell.pages for cell in cells))


def _look(pages: int, page_size: int | None) -> str:
    if not pages:
        return "same"
    size = abs(pages) * (page_size or 1)
    step = 1 + sum(size >= least for least in (STEPS if page_size else STEPS_OF_PAGES))
    return f"{'more' if pages > 0 else 'less'}-{step}"


@dataclass(frozen=True, slots=True)
class Index:
    """The unusable free space index of a zone by order, before and after."""

    name: str
    values: list[tuple[float, float]]


def unusable(before: Rows, after: Rows, page_size: int | None) -> tuple[list[int], list[Index]]:
    """Orders that both have, and the zones of both whose index differs, the largest step first."""
    old, new = unusable_index(before), unusable_index(after)
    orders: list[int] = []
    found = []
    for (node, zone), (_, index) in new.items():
        if (node, zone) in old:
            was = old[node, zone][1]
            orders = [order for order in was if order in index]
            pairs = [(was[order], index[order]) for order in orders]
            if any(a != b for a, b in pairs):
                found.append(Index(f"node {node} {zone}", pairs))
    found.sort(key=lambda each: -max(abs(b - a) for a, b in each.values))
    return orders, found


@dataclass(frozen=True, slots=True)
class Pageblocks:
    """Pageblocks that changed; ``moves`` are (from, to, how many)."""

    map: dict[str, Any] | None
    changed: int
    same: int
    moves: list[tuple[str, str, int]]


def pageblocks(before: Rows, after: Rows, page_size: int | None) -> Pageblocks:
    """
    Where migratetypes differ; rows are of table ``pageblock_map``.

    :raises NotDrawn: the two have pageblocks of other sizes.
    """
    maps = [lay_out(rows, page_size) for rows in (before, after)]
    size = maps[1]["block_pages"]
    if maps[0]["block_pages"] != size:
        raise NotDrawn("pageblocks are of another size")
    rows = []
    moves: Counter[tuple[str, str]] = Counter()
    for start, blocks, was, is_now in _aligned(before, after, size):
        row = is_now or was or {}
        now = str(is_now["migratetype"]) if is_now else GONE
        then = str(was["migratetype"]) if was else "not there"
        changed = then != now
        if changed:
            moves[then, now] += blocks
        # Drawn as all free, which is pale.
        rows.append(
            {
                "start_pfn": start,
                "blocks": blocks,
                "node": row["node"],
                "zone": row["zone"],
                "migratetype": now if changed else UNCHANGED,
                "free_eighths": 0 if changed else 8,
            }
        )
    number = sum(moves.values())
    return Pageblocks(
        lay_out(rows, page_size) if number else None,
        number,
        sum(row["blocks"] for row in rows) - number,
        [(a, b, n) for (a, b), n in moves.most_common(MAX_MOVES)],
    )


def _aligned(
    before: Rows, after: Rows, size: int
) -> Iterator[tuple[int, int, dict[str, Any] | None, dict[str, Any] | None]]:
    """(first PFN, pageblocks, row before, row after), by address, of what either has."""
    ends = sorted({pfn for row in (*before, *after) for pfn in _span(row, size)})
    old, new = _by_start(before, size), _by_start(after, size)
    for start, end in itertools.pairwise(ends):
        was, now = old(start), new(start)
        if was is not None or now is not None:
            yield start, (end - start) // size, was, now


def _span(row: dict[str, Any], size: int) -> tuple[int, int]:
    start = row["start_pfn"] // size * size
    return start, start + row["blocks"] * size


def _by_start(rows: Rows, size: int) -> Callable[[int], dict[str, Any] | None]:
    """The run that has a page frame, asked in ascending order."""
    todo = iter(sorted(rows, key=lambda row: row["start_pfn"]))
    current = next(todo, None)

    def run(pfn: int) -> dict[str, Any] | None:
        nonlocal current
        while current is not None and _span(current, size)[1] <= pfn:
            current = next(todo, None)
        return current if current is not None and _span(current, size)[0] <= pfn else None

    return run


@dataclass(frozen=True, slots=True)
class Difference:
    """
    A picture of a difference, and what it needs.

    :ivar same_size: only of machines with equally many pages.
    """

    name: str  # of its template, difference_<name>.html
    table: str
    columns: frozenset[str]
    draw: Callable[[Rows, Rows, int | None], Any]
    same_size: bool = False


DIFFERENCES: Iterable[Difference] = (
    Difference(
        "free_lists", "free_blocks", frozenset({"node", "zone", "order", "migratetype", "blocks"}),
        free_lists,
    ),
    Difference(
        "unusable", "free_blocks", frozenset({"node", "zone", "order", "blocks"}), unusable
    ),
    Difference(
        "pageblocks", "pageblock_map",
        frozenset({"start_pfn", "blocks", "node", "zone", "migratetype", "free_eighths"}),
        pageblocks, same_size=True,
    ),
)  # fmt: skip
