# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The pageblock map: every pageblock in physical order, by migratetype and by how much of it is free.

Drawn from the run-length encoded table ``pageblock_map``, without ever unfolding it to blocks. A
row of the picture is :data:`COLUMNS` cells. A cell is a pageblock, or on a large machine *k*
neighbouring ones, so that neither the picture nor its size grows with the machine.

The drawing is a handful of paths, one for each look of a cell. All of them consist of horizontal
strokes (``m3 0h2``: three cells on, a stroke of two), whose width is the height of what is drawn:
a byte or seven a run, against a hundred for a rectangle of its own.

Cannot know: which pages inside a pageblock are free. The free share is in eighths.
"""

import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from mmscope.drgn.tables.display import pages, plural
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.drawing.refusals import Damaged
from mmscope.reports.pictures.free_heatmap import MAX_TYPES, rank
from mmscope.reports.pictures.picture import Row, Rows, Tables, picture

COLUMNS = 64
MAX_CELLS = 16384
MAX_ROWS = 512
LOW_ROWS = 96
MAX_PATH_BYTES = 240_000
# With more runs than this, a title for each would be larger than the picture: rows have titles.
MAX_RUN_TITLES = 1000
# 128 TiB of 2 MiB pageblocks; more is damage.
MAX_BLOCKS = 1 << 26
MAX_PFN = 1 << 52
# Eighths of a pageblock.
NONE_FREE, ALL_FREE = 0, 8
# Nodes may be interleaved; so often they are not.
MAX_BORDERS = 256

# Where a cell stands for several pageblocks, the first of these is shown as its other type, and
# wins a tie: what is rare, and what compaction cannot move.
TYPES = ("HighAtomic", "Isolate", "CMA", "Unmovable", "Reclaimable", "Movable")
# A mark beside the colour: (width, height) in shares of the cell; none for the two most common.
MARKS = {
    "HighAtomic": (0.5, 0.5),
    "Isolate": (0.8, 0.16),
    "CMA": (0.18, 0.8),
    "Reclaimable": (0.26, 0.3),
}

Ints = npt.NDArray[np.int64]
Zone = tuple[int, str]
# What lies in a cell: pageblocks by migratetype, and the eighths that are free in them, if known.
Cells = dict[int, tuple[Counter[str], int | None]]
Place = tuple[int, int]  # row and column, in cells from the upper left corner
# CSS classes, path, offset (x, y) and height in cells, dash pattern.
Stroke = tuple[str, str, float, float, float, str]


def look(migratetype: str) -> str:
    """The CSS class of a migratetype; one for all that are not known here."""
    return f"mt-{migratetype.lower()}" if migratetype in TYPES else "mt-other"


@dataclass(frozen=True, slots=True)
class _Runs:
    """
    Runs of pageblocks in physical order, by column.

    :ivar zones: number of the zone among *zone_names*; the same of *kinds* and *kind_names*.
    :ivar eighths: of a pageblock that are free, 0 to 8; 0 where that is unknown.
    """

    starts: Ints  # page frame numbers
    blocks: Ints
    zones: Ints
    zone_names: list[Zone]
    kinds: Ints
    kind_names: list[str]
    eighths: Ints
    unknown: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.starts)


def _runs(rows: Rows) -> _Runs:
    """
    The runs of table ``pageblock_map``.

    :raises Damaged: one of them cannot be.
    """
    start, blocks, node, zone, migratetype, eighths = columns_of(
        rows, "start_pfn", "blocks", "node", "zone", "migratetype", "free_eighths"
    )
    for first, count in zip(start, blocks, strict=True):
        if not (0 <= first <= MAX_PFN and 0 < count <= MAX_PFN):
            raise Damaged(f"a run of {count} pageblocks at pfn {first:#x} cannot be")
    zones, zone_names = _numbered(zip(node, zone, strict=True))
    kinds, kind_names = _numbered(map(str, migratetype))
    clipped = {each: 0 if each is None else min(max(int(each), 0), 8) for each in set(eighths)}
    starts = np.fromiter(map(operator.index, start), np.int64, len(start))
    lengths = np.fromiter(map(operator.index, blocks), np.int64, len(blocks))
    order = np.lexsort((lengths, starts))
    return _Runs(
        starts[order],
        lengths[order],
        zones[order],
        zone_names,
        kinds[order],
        kind_names,
        np.array([clipped[each] for each in eighths], np.int64)[order],
        np.array([each is None for each in eighths], np.bool_)[order],
    )


def _numbered(names: Iterable[Any]) -> tuple[Ints, list[Any]]:
    """Names as numbers, in the order in which they come first, and what they stand for."""
    numbers: dict[Any, int] = {}
    found = [numbers.setdefault(name, len(numbers)) for name in names]
    return np.array(found, np.int64), list(numbers)


def lay_out(rows: Rows, page_size: int | None) -> Row:
    """
    Lay the map out; positions are in cells from the upper left corner.

    :param rows: of table ``pageblock_map``.
    :param page_size: in bytes, None if unknown.
    :raises Damaged: these are not runs of pageblocks, or it is empty.
    """
    runs = _runs(rows)
    block_pages, assumed = _block_pages(runs, page_size)
    total = _check(runs, block_pages)
    per_cell = _per_cell(runs, block_pages)
    while True:
        cells = _cells(runs, block_pages, per_cell)
        places = _Rows({cell // COLUMNS for cell in cells}, COLUMNS * per_cell * block_pages)
        strokes = _strokes((places.of(number), *cell) for number, cell in cells.items())
        # Only where hardly two neighbouring cells look alike.
        if sum(len(path) for _, path, *_ in strokes) <= MAX_PATH_BYTES:
            break
        per_cell *= 2
    # Where another zone begins.
    changes = np.flatnonzero(np.diff(runs.zones, prepend=-1))
    begins = [
        (places.of(cell), runs.zone_names[zone])
        for cell, zone in zip(
            (runs.starts[changes] // block_pages // per_cell).tolist(),
            runs.zones[changes].tolist(),
            strict=True,
        )
    ]
    cut = len(begins) > MAX_BORDERS
    end = begins[MAX_BORDERS][0] if cut else (places.count, 0)
    by_run = per_cell == 1 and len(runs) <= MAX_RUN_TITLES
    return {
        "blocks": total,
        "block_pages": block_pages,
        "assumed": assumed,  # the size of a pageblock could not be derived from the table
        "per_cell": per_cell,
        "cells": len(cells),
        "rows": places.count,
        "unknown_share": any(free is None for _, free in cells.values()),
        "strokes": strokes,
        "labels": [(*each, _address(pfn, page_size)) for *each, pfn in places.labels],
        "gaps": [(row, pages(missing, page_size)) for row, missing in places.gaps],
        "gap_rows": places.gap_rows,
        "zones": _regions(begins[:MAX_BORDERS], end),
        "zone_labels": _zone_labels(begins[:MAX_BORDERS]),
        "zones_cut": cut,
        "titles": (
            _run_titles(runs, block_pages, places)
            if by_run
            else _row_titles(cells, places, page_size)
        ),
        "title_of_runs": by_run,
        "legend": _legend(runs),
    }


def _block_pages(runs: _Runs, page_size: int | None) -> tuple[int, bool]:
    """
    Pages in a pageblock: how far apart runs are that follow each other, by pageblock.

    Where a hole lies between two, or one is damaged, the quotient is something else; the most
    common one counts, up to the order of a PMD, which is the largest pageblock_order there is
    where drgn reads memory.

    :return: (pages, whether it is only what the page size suggests).
    """
    # A PMD maps a page of page table entries of eight bytes.
    usual = (page_size or 4096) // 8
    gaps, lengths = np.diff(runs.starts), runs.blocks[:-1]
    steps, numbers = np.unique((gaps // lengths)[gaps % lengths == 0], return_counts=True)
    likely = [
        (number, n)
        for n, number in zip(steps.tolist(), numbers.tolist(), strict=True)
        if 0 < n <= usual and n.bit_count() == 1
    ]
    return (max(likely)[1], False) if likely else (usual, True)


def _check(runs: _Runs, block_pages: int) -> int:
    """
    The number of pageblocks.

    :raises Damaged: the runs cannot be what they claim.
    """
    beyond = runs.blocks > (MAX_PFN - runs.starts) // block_pages
    if beyond.any():
        at = int(beyond.argmax())
        first, count = runs.starts[at], runs.blocks[at]
        raise Damaged(f"a run of {count} pageblocks at pfn {first:#x} cannot be")
    ends = (runs.starts // block_pages + runs.blocks) * block_pages
    over = runs.starts[1:] < ends[:-1]
    if over.any():
        raise Damaged(f"runs overlap at pfn {runs.starts[1:][over][0]:#x}")
    total = int(runs.blocks.sum())
    if total > MAX_BLOCKS:
        raise Damaged(f"{total:,} pageblocks are more than any machine has")
    if not total:
        raise Damaged("it has no pageblock")
    return total


def _per_cell(runs: _Runs, block_pages: int) -> int:
    """Pageblocks that a cell stands for: a power of two, as small as the limits allow."""
    first = runs.starts // block_pages
    last = first + runs.blocks - 1

    def touched(size: int) -> int:
        """Count the units of so many pageblocks that have memory."""
        low, high = first // size, last // size
        return int((high - np.maximum(low, np.append(-1, high[:-1]) + 1) + 1).sum())

    per_cell = 1
    while touched(per_cell) > MAX_CELLS or touched(per_cell * COLUMNS) > MAX_ROWS:
        per_cell *= 2
    return per_cell


def _cells(runs: _Runs, block_pages: int, per_cell: int) -> Cells:
    """The cells that have memory, by their number from physical address 0."""
    # Runs cut where cells end, in their order.
    first = runs.starts // block_pages
    end = first + runs.blocks
    low = first // per_cell
    parts = (end - 1) // per_cell - low + 1
    run = np.repeat(np.arange(len(runs)), parts)
    number = low[run] + np.arange(len(run)) - np.repeat(np.cumsum(parts) - parts, parts)
    blocks = np.minimum(end[run], (number + 1) * per_cell) - np.maximum(
        first[run], number * per_cell
    )
    cells, begins = np.unique(number, return_index=True)
    free = np.add.reduceat(blocks * runs.eighths[run], begins)
    unknown = np.logical_or.reduceat(runs.unknown[run], begins)
    found: Cells = {
        cell: (Counter(), None if hidden else eighths)
        for cell, eighths, hidden in zip(
            cells.tolist(), free.tolist(), unknown.tolist(), strict=True
        )
    }
    # Pageblocks of a type in a cell; of each cell, the type that comes first in it first.
    pairs, at, pair = np.unique(
        number * len(runs.kind_names) + runs.kinds[run], return_index=True, return_inverse=True
    )
    sums = np.bincount(pair, blocks).astype(np.int64)
    for one in np.argsort(at).tolist():
        cell, kind = divmod(int(pairs[one]), len(runs.kind_names))
        found[cell][0][runs.kind_names[kind]] = int(sums[one])
    return found


class _Rows:
    """
    The rows that the picture has: those with memory, and room to say what is left out.

    :ivar labels: row, how many rows since the last gap, PFN.
    :ivar gaps: empty row where rows without memory are left out, and how many pages.
    :ivar gap_rows: how many empty rows that is.
    """

    def __init__(self, lines: set[int], row_pages: int) -> None:
        self.row_pages = row_pages
        self.row_of: dict[int, int] = {}  # by the row's number from physical address 0
        self.labels: list[tuple[int, int, int]] = []
        self.gaps: list[tuple[int, int]] = []
        # Where there are many rows, they are low.
        self.gap_rows = 1 if len(lines) <= LOW_ROWS else 2
        row = nth = 0
        before = min(lines)
        for line in sorted(lines):
            if line > before + 1:
                self.gaps.append((row, (line - before - 1) * row_pages))
                row, nth = row + self.gap_rows, 0
            self.row_of[line] = row
            self.labels.append((row, nth, line * row_pages))
            row, nth, before = row + 1, nth + 1, line
        self.count = row

    def of(self, cell: int) -> Place:
        return self.row_of[cell // COLUMNS], cell % COLUMNS


def _regions(begins: Sequence[tuple[Place, Zone]], end: Place) -> list[Row]:
    """Zones with their outlines, each from the cell where it begins to that where the next does."""
    found = []
    for ((row, column), (node, zone)), (end_row, end_column) in zip(
        begins, [*(place for place, _ in begins[1:]), end], strict=True
    ):
        path = f"M{column} {row}H{end_column}v1H{column}z"
        if row != end_row:
            last = f"H{end_column}v1H0" if end_column else "H0"
            path = f"M{column} {row}H{COLUMNS}V{end_row}{last}V{row + 1}H{column}z"
        found.append({"node": node, "zone": zone, "row": row, "column": column, "path": path})
    return found


def _zone_labels(begins: Sequence[tuple[Place, Zone]]) -> list[tuple[int, str]]:
    """Names of the zones that begin in a row, for its right end: ``node 0 DMA, DMA32``."""
    labels = []
    for row, here in itertools.groupby(begins, key=lambda each: each[0][0]):
        names, before = [], None
        for _, (node, zone) in here:
            names.append(zone if node == before else f"node {node} {zone}")
            before = node
        labels.append((row, ", ".join(names)))
    return labels


def _strokes(cells: Iterable[tuple[Place, Counter[str], int | None]]) -> list[Stroke]:
    """
    The paths: the free (pale) ground of each type, the used part over it, the marks on top.

    In a cell of several types a stripe at the right stands for one of the others, as wide as its
    share, but a quarter at least, to be seen, and a half at most.
    """
    found: defaultdict[tuple[Any, ...], list[Place]] = defaultdict(list)
    for place, types, free in sorted(cells, key=itemgetter(0)):
        blocks, most = types.total(), max(types.values())
        main = min([mt for mt, number in types.items() if number == most], key=_rank)
        found[0, f"{look(main)} pb-free", 0, 0.5, 1, ""].append(place)
        # What was not counted is drawn as used; the page says so.
        used = 8 - (0 if free is None else _eighths(free, blocks))
        if used:
            y = round(1 - used / 16, 4)
            found[1, f"{look(main)} pb-used", 0, y, used / 8, ""].append(place)
        if main in MARKS:
            # In the middle of the cell: a dash of the stroke, and a gap up to the next.
            width, height = MARKS[main]
            layer = 2 + list(MARKS).index(main)
            dash = f"{width:g} {1 - width:g}"
            x = round((1 - width) / 2, 4)
            found[layer, f"{look(main)} pb-mark", x, 0.5, height, dash].append(place)
        if len(types) > 1:
            other = min([mt for mt in types if mt != main], key=_rank)
            part = min(max(round(8 * types[other] / blocks), 2), 4) / 8
            dash = f"{part:g} {1 - part:g}"
            found[2 + len(MARKS), f"{look(other)} pb-stripe", 1 - part, 0.5, 1, dash].append(place)
    return [
        (classes, _path(places), *place)
        for (_, classes, *place), places in sorted(found.items(), key=lambda each: each[0][0])
    ]


def _eighths(eighths: int, blocks: int) -> int:
    """The mean free share in eighths; 0 and 8 only if it is exactly none and all."""
    if eighths in (0, 8 * blocks):
        return 8 if eighths else 0
    return min(max(round(eighths / blocks), 1), 7)


def _rank(migratetype: str) -> int:
    return TYPES.index(migratetype) if migratetype in TYPES else -1


def _path(positions: list[Place]) -> str:
    """Strokes over cells (row, column), which must be sorted; neighbours are one stroke."""
    segments: list[tuple[int, int, int]] = []  # row, first column, the one after the last
    for row, column in positions:
        if segments:
            last, start, end = segments[-1]
            if (last, end) == (row, column):
                segments[-1] = row, start, column + 1
                continue
        segments.append((row, column, column + 1))
    parts, x, y = [], 0, 0
    for number, (row, start, end) in enumerate(segments):
        across = start - x
        parts.append(f"{'m' if number else 'M'}{across} {row - y}h{end - start}")
        x, y = end, row
    return "".join(parts)


def _run_titles(runs: _Runs, block_pages: int, places: _Rows) -> list[tuple[str, str]]:
    titles = []
    words = {NONE_FREE: "nothing free", ALL_FREE: "all free"}
    for at in range(len(runs)):
        start, blocks, eighths = (
            int(column[at]) for column in (runs.starts, runs.blocks, runs.eighths)
        )
        node, zone = runs.zone_names[runs.zones[at]]
        free = words.get(eighths, f"about {eighths}/8 free")
        title = (
            f"PFN {start:#x}-{start + blocks * block_pages - 1:#x}, "
            f"{plural(blocks, 'pageblock')}, node {node} {zone}, "
            f"{runs.kind_names[runs.kinds[at]]}, "
            f"{'free share not counted' if runs.unknown[at] else free}"
        )
        first = start // block_pages
        titles.append((_path([places.of(cell) for cell in range(first, first + blocks)]), title))
    return titles


def _row_titles(cells: Cells, places: _Rows, page_size: int | None) -> list[tuple[str, str]]:
    sums: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for number, (types, _) in cells.items():
        sums[number // COLUMNS].update(types)
    titles = []
    for line, row in places.row_of.items():
        words = ", ".join(f"{mt} {blocks:,}" for mt, blocks in sums[line].most_common())
        ends = (_address((line + n) * places.row_pages, page_size) for n in (0, 1))
        titles.append((f"M0 {row}h{COLUMNS}", f"{'-'.join(ends)}, pageblocks: {words}"))
    return titles


def _legend(runs: _Runs) -> list[Row]:
    """All pageblocks of each migratetype, and two cells as they look: one in use, one free."""

    def blocks(kind: str, free: int | None = None) -> int:
        mine = runs.kinds == runs.kind_names.index(kind)
        if free is not None:
            mine &= (runs.eighths == free) & ~runs.unknown
        return int(runs.blocks[mine].sum())

    return [
        {
            "migratetype": kind,
            "strokes": _strokes(((0, at), Counter({kind: 1}), 8 * at) for at in (0, 1)),
            "blocks": blocks(kind),
            "known": not runs.unknown[runs.kinds == runs.kind_names.index(kind)].any(),
            "none_free": blocks(kind, NONE_FREE),
            "all_free": blocks(kind, ALL_FREE),
        }
        for kind in sorted(runs.kind_names, key=rank)
    ]


def _address(pfn: int, page_size: int | None) -> str:
    return f"pfn {pfn:#x}" if page_size is None else f"{pfn * page_size:#x}"


@picture(
    "pageblock_map", "start_pfn blocks node zone migratetype free_eighths", others="pageblocks"
)
def pageblock_map(tables: Tables, page_size: int | None) -> Row:
    """The map, and how many pageblocks the census has where all of it is known."""
    drawn = lay_out(tables["pageblock_map"], page_size)
    census = [row.get("blocks") for row in tables.get("pageblocks", [])]
    # Another table, which may be damaged on its own account.
    known = [blocks for blocks in census if isinstance(blocks, int)]
    return {"map": drawn, "census": sum(known) if census and known == census else None}


@picture("pageblocks", "node zone migratetype blocks")
def pageblocks(tables: Tables, page_size: int | None) -> Row:
    """Pageblocks of each zone by migratetype."""
    zones: dict[Zone, Counter[str]] = {}
    for row in tables["pageblocks"]:
        counts = zones.setdefault((row["node"], row["zone"]), Counter())
        counts[row["migratetype"]] += row["blocks"]
    types = list(dict.fromkeys(row["migratetype"] for row in tables["pageblocks"]))
    if len(types) > MAX_TYPES:
        raise Damaged(f"more than {MAX_TYPES} migratetypes")
    return {"types": types, "zones": zones}
