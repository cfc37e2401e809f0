# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pictures of what differs between two bundles: the free lists, the unusable free space
index, and pageblocks that are of another migratetype.

Cannot know: what happened between the two readings. A pageblock that was another type for a while
and is the old one again has not changed.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
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
# A free list: its order, by how many blocks and pages it differs, the CSS class of its shade.
Cell = tuple[int, int, int, str]
# Of one migratetype, or of all (None): its lists, and by how many pages it differs.
Line = tuple[str | None, list[Cell], int]
# A zone: node, name, lines, pages that were free, and that are.
Grid = tuple[int, str, list[Line], int, int]


def free_lists(before: Rows, after: Rows, page_size: int | None) -> tuple[list[Grid], int]:
    """
    Zones whose free lists differ, and how many are the same.

    :param before, after: rows of table ``free_blocks``.
    """
    old, new = _lists(before), _lists(after)
    zones: dict[tuple[int, str], set[str]] = {}
    for node, zone, migratetype, _ in [*old, *new]:
        zones.setdefault((node, zone), set()).add(migratetype)
    orders = sorted({order for *_, order in [*old, *new]})
    if orders and not 0 <= orders[0] <= orders[-1] <= MAX_ORDER:
        raise Damaged("there is no such order")
    grids: list[Grid] = []
    same = 0
    for place, types in zones.items():
        if len(types) > MAX_TYPES:
            raise Damaged(f"more than {MAX_TYPES} migratetypes")
        blocks = {
            kind: [new[*place, kind, order] - old[*place, kind, order] for order in orders]
            for kind in sorted(types, key=rank)
        }
        if not any(map(any, blocks.values())):
            same += 1
            continue
        lines = [_line(kind, orders, numbers, page_size) for kind, numbers in blocks.items()]
        sums = [sum(numbers) for numbers in zip(*blocks.values(), strict=True)]
        was, now = (
            sum(n << order for (*where, _, order), n in lists.items() if (*where,) == place)
            for lists in (old, new)
        )
        lines.append(_line(None, orders, sums, page_size))
        grids.append((*place, lines, was, now))
    grids.sort(key=_changed, reverse=True)
    return grids, same


def _changed(grid: Grid) -> int:
    """Pages by which the lists of a zone differ."""
    _, _, lines, _, _ = grid
    return sum(abs(pages) for *_, pages in lines)


def _lists(rows: Rows) -> Counter[tuple[int, str, str, int]]:
    """Blocks of each free list."""
    found: Counter[tuple[int, str, str, int]] = Counter()
    for row in rows:
        kind = str(row["migratetype"] or "type unknown")
        found[int(row["node"]), str(row["zone"]), kind, int(row["order"])] += int(row["blocks"])
    return found


def _line(kind: str | None, orders: list[int], blocks: list[int], page_size: int | None) -> Line:
    cells = [
        (order, number, number << order, _look(number << order, page_size))
        for order, number in zip(orders, blocks, strict=True)
    ]
    return kind, cells, sum(pages for _, _, pages, _ in cells)


def _look(pages: int, page_size: int | None) -> str:
    if not pages:
        return "same"
    size = abs(pages) * (page_size or 1)
    step = 1 + sum(size >= least for least in (STEPS if page_size else STEPS_OF_PAGES))
    return f"{'more' if pages > 0 else 'less'}-{step}"


def unusable(
    before: Rows, after: Rows, page_size: int | None
) -> tuple[list[int], list[tuple[str, list[tuple[float, float]]]]]:
    """
    Orders that both have, and the zones of both whose unusable free space index differs, the
    largest step first: by order, before and after.
    """
    old, new = unusable_index(before), unusable_index(after)
    orders: list[int] = []
    found = []
    for (node, zone), (_, index) in new.items():
        if (node, zone) in old:
            _, was = old[node, zone]
            orders = [order for order in was if order in index]
            pairs = [(was[order], index[order]) for order in orders]
            if any(a != b for a, b in pairs):
                found.append((f"node {node} {zone}", pairs))
    found.sort(key=lambda each: -max(abs(b - a) for a, b in each[1]))
    return orders, found


def pageblocks(
    before: Rows, after: Rows, page_size: int | None
) -> tuple[dict[str, Any] | None, int, int, list[tuple[str, str, int]]]:
    """
    Compare migratetypes: the map, pageblocks that changed, those that did not, and from what
    to what how many changed.

    :param before, after: rows of table ``pageblock_map``.
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
        if changed := then != now:
            moves[then, now] += blocks
        rows.append(
            {
                "start_pfn": start,
                "blocks": blocks,
                "node": row["node"],
                "zone": row["zone"],
                "migratetype": now if changed else UNCHANGED,
                "free_eighths": 0 if changed else 8,  # drawn as all free, which is pale
            }
        )
    number = sum(moves.values())
    return (
        lay_out(rows, page_size) if number else None,
        number,
        sum(row["blocks"] for row in rows) - number,
        [(*pair, n) for pair, n in moves.most_common(MAX_MOVES)],
    )


def _aligned(
    before: Rows, after: Rows, size: int
) -> Iterator[tuple[int, int, dict[str, Any] | None, dict[str, Any] | None]]:
    """(first PFN, pageblocks, row before, row after), by address, of what either has."""
    ends = sorted({pfn for row in (*before, *after) for pfn in _span(row, size)})
    sides = [sorted(rows, key=lambda row: row["start_pfn"]) for rows in (before, after)]
    for start, end in pairwise(ends):
        was, now = (_run_at(runs, start, size) for runs in sides)
        if was is not None or now is not None:
            yield start, (end - start) // size, was, now


def _span(row: dict[str, Any], size: int) -> tuple[int, int]:
    start = row["start_pfn"] // size * size
    return start, start + row["blocks"] * size


def _run_at(runs: Rows, pfn: int, size: int) -> dict[str, Any] | None:
    """The run that has a page frame, of runs in the order of their addresses."""
    at = bisect_right(runs, pfn, key=lambda row: _span(row, size)[0]) - 1
    return runs[at] if at >= 0 and pfn < _span(runs[at], size)[1] else None


# Name of its template (difference_<name>.html), table, columns, how it is drawn; and True if only
# of machines with equally many pages.
DIFFERENCES: tuple[tuple[str, str, str, Callable[[Rows, Rows, int | None], Any], bool], ...] = (
    ("free_lists", "free_blocks", "node zone order migratetype blocks", free_lists, False),
    ("unusable", "free_blocks", "node zone order blocks", unusable, False),
    (
        *("pageblocks", "pageblock_map", "start_pfn blocks node zone migratetype free_eighths"),
        *(pageblocks, True),
    ),
)
