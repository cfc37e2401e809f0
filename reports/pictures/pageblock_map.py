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

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from mmscope.drgn.tables.display import pages, plural
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.drawing.map_regions import Region, regions, zone_labels
from mmscope.reports.drawing.refusals import Damaged
from mmscope.reports.pictures.free_heatmap import MAX_TYPES, rank
from mmscope.reports.pictures.picture import Picture, Tables

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
OTHER = "other"
# A mark beside the colour: (width, height) in shares of the cell; none for the two most common.
MARKS = {
    "HighAtomic": (0.5, 0.5),
    "Isolate": (0.8, 0.16),
    "CMA": (0.18, 0.8),
    "Reclaimable": (0.26, 0.3),
}


@dataclass(frozen=True, slots=True)
class Stroke:
    """A path of horizontal strokes; lengths in cells."""

    look: str  # CSS classes
    path: str
    x: float  # how far it is moved, in cells
    y: float
    height: float
    dash: str  # the pattern along the stroke; empty: none


@dataclass(frozen=True, slots=True)
class Legend:
    """All pageblocks of one migratetype."""

    migratetype: str
    strokes: list[Stroke]  # two cells as they look: one in use, one free
    blocks: int
    all_free: int | None
    partly_free: int | None
    none_free: int | None


@dataclass(frozen=True, slots=True)
class Map:
    """Everything the template draws. Positions are in cells from the upper left corner."""

    blocks: int
    block_pages: int
    assumed: bool  # the size of a pageblock could not be derived from the table
    per_cell: int
    cells: int
    rows: int
    unknown_share: bool  # the free share was not counted
    strokes: list[Stroke]
    labels: list[tuple[int, int, str]]  # row, how many rows since the last gap, physical address
    zones: list[Region]
    zone_labels: list[tuple[int, str]]  # row, the zones that begin in it
    zones_cut: bool  # there are more than MAX_BORDERS
    gaps: list[tuple[int, str]]  # empty row where rows without memory are left out, how much
    gap_rows: int  # how many empty rows that is
    titles: list[tuple[str, str]]  # path of strokes, words
    title_of_runs: bool  # the titles are of runs, not of whole rows
    legend: list[Legend]


@dataclass
class _Cell:
    """What lies in one cell: blocks by migratetype, and the eighths that are free in them."""

    types: dict[str, int] = field(default_factory=dict)
    eighths: int = 0
    unknown: int = 0


def look(migratetype: str) -> str:
    """The CSS class of a migratetype; one for all that are not known here."""
    return f"mt-{migratetype.lower()}" if migratetype in TYPES else "mt-other"


def pageblock_map(rows: Sequence[dict[str, Any]], page_size: int | None) -> Map:
    """
    Lay the map out.

    :param rows: of table ``pageblock_map``.
    :param page_size: in bytes, None if unknown.
    :raises Damaged: these are not runs of pageblocks, or it is empty.
    """
    start, blocks, node, zone, migratetype, eighths = columns_of(
        rows, "start_pfn", "blocks", "node", "zone", "migratetype", "free_eighths"
    )
    runs: list[Run] = sorted(
        zip(
            start, blocks, zip(node, zone, strict=True), map(str, migratetype), eighths, strict=True
        ),
        key=itemgetter(0, 1),
    )
    block_pages, assumed = _block_pages(runs, page_size)
    total = _check(runs, block_pages)
    per_cell = _per_cell(runs, block_pages, total)
    while True:
        cells = _cells(runs, block_pages, per_cell)
        rows_of = _rows(cells, COLUMNS * per_cell * block_pages, page_size)
        strokes = _strokes({rows_of.place(number): cell for number, cell in cells.items()})
        # Only where hardly two neighbouring cells look alike.
        if sum(len(stroke.path) for stroke in strokes) <= MAX_PATH_BYTES:
            break
        per_cell *= 2
    zones = [
        (*rows_of.place(start // block_pages // per_cell), zone)
        for start, zone in _zone_starts(runs)
    ]
    zones_end = zones[MAX_BORDERS][:2] if len(zones) > MAX_BORDERS else (rows_of.count, 0)
    by_run = per_cell == 1 and len(runs) <= MAX_RUN_TITLES
    return Map(
        blocks=total,
        block_pages=block_pages,
        assumed=assumed,
        per_cell=per_cell,
        cells=len(cells),
        rows=rows_of.count,
        unknown_share=any(cell.unknown for cell in cells.values()),
        strokes=strokes,
        labels=rows_of.labels,
        zones=regions(zones[:MAX_BORDERS], zones_end, COLUMNS),
        zone_labels=zone_labels(zones[:MAX_BORDERS]),
        zones_cut=len(zones) > MAX_BORDERS,
        gaps=rows_of.gaps,
        gap_rows=rows_of.gap_rows,
        titles=(
            _run_titles(runs, block_pages, rows_of)
            if by_run
            else _row_titles(cells, rows_of, COLUMNS * per_cell * block_pages, page_size)
        ),
        title_of_runs=by_run,
        legend=_legend(runs),
    )


# (first PFN, pageblocks, (node, zone), migratetype, eighths)
Run = tuple[int, int, tuple[int, str], str, int | None]


def _zone_starts(runs: Sequence[Run]) -> Iterator[tuple[int, tuple[int, str]]]:
    """Where another zone begins: its first PFN, and the zone."""
    before = None
    for start, _, zone, *_ in runs:
        if zone != before:
            yield start, zone
        before = zone


def _block_pages(runs: list[Run], page_size: int | None) -> tuple[int, bool]:
    """
    Pages in a pageblock: how far apart runs are that follow each other, by pageblock.

    Where a hole lies between two, or one is damaged, the quotient is something else; the most
    common one counts, up to the order of a PMD, which is the largest pageblock_order there is
    where drgn reads memory.

    :return: (pages, whether it is only what the page size suggests).
    """
    # A PMD maps a page of page table entries of eight bytes.
    usual = (page_size or 4096) // 8
    starts = list(map(itemgetter(0), runs))
    gaps = map(operator.sub, starts[1:], starts)
    steps: Counter[int] = Counter()
    # Runs are many, of few lengths.
    for (gap, blocks), number in Counter(zip(gaps, map(itemgetter(1), runs))).items():  # noqa: B905
        if blocks > 0 and gap % blocks == 0:
            steps[gap // blocks] += number
    likely = [
        (number, step)
        for step, number in steps.items()
        if 0 < step <= usual and step & (step - 1) == 0
    ]
    return (max(likely)[1], False) if likely else (usual, True)


def _check(runs: list[Run], block_pages: int) -> int:
    """
    The number of pageblocks.

    :raises Damaged: the runs cannot be what they claim.
    """
    total, end = 0, 0
    for start, blocks, *_ in runs:
        if blocks <= 0 or start < 0 or start + blocks * block_pages > MAX_PFN:
            raise Damaged(f"a run of {blocks} pageblocks at pfn {start:#x} cannot be")
        if start < end:
            raise Damaged(f"runs overlap at pfn {start:#x}")
        end = start // block_pages * block_pages + blocks * block_pages
        total += blocks
    if total > MAX_BLOCKS:
        raise Damaged(f"{total:,} pageblocks are more than any machine has")
    if not total:
        raise Damaged("it has no pageblock")
    return total


def _per_cell(runs: list[Run], block_pages: int, total: int) -> int:
    """How many pageblocks a cell stands for: a power of two, as small as the limits allow."""
    per_cell = 1
    while total > per_cell * MAX_CELLS:
        per_cell *= 2
    spans: list[list[int]] = []  # of pageblocks without a hole: the first, and the one behind
    for start, blocks, *_ in runs:
        number = start // block_pages
        if spans and spans[-1][1] == number:
            spans[-1][1] += blocks
        else:
            spans.append([number, number + blocks])
    while True:
        cells, lines, last, last_line = 0, 0, -1, -1
        for low, behind in spans:
            first, end = low // per_cell, (behind - 1) // per_cell
            cells += end - max(first, last + 1) + 1
            lines += end // COLUMNS - max(first // COLUMNS, last_line + 1) + 1
            last, last_line = end, end // COLUMNS
        if cells <= MAX_CELLS and lines <= MAX_ROWS:
            return per_cell
        per_cell *= 2


def _cells(runs: list[Run], block_pages: int, per_cell: int) -> dict[int, _Cell]:
    """The cells that have memory, by their number from physical address 0."""
    cells: dict[int, _Cell] = {}
    cell, types, until = _Cell(), {}, 0  # the cell of the run before, and where it ends
    for start, blocks, _, migratetype, eighths in runs:
        number = start // block_pages
        end = number + blocks
        while number < end:
            if number >= until:  # runs are in order
                at = number // per_cell
                cell = cells[at] = _Cell()
                types = cell.types
                until = (at + 1) * per_cell
            step = (end if end < until else until) - number
            types[migratetype] = types.get(migratetype, 0) + step
            if eighths is None:
                cell.unknown += step
            elif eighths > 0:
                cell.eighths += step * (int(eighths) if eighths < 8 else 8)
            number += step
    return cells


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which rows of the picture there are: those with memory, and room to say what is left out."""

    row_of: dict[int, int]  # by the row's number from physical address 0
    labels: list[tuple[int, int, str]]
    gaps: list[tuple[int, str]]
    gap_rows: int
    count: int

    def place(self, cell: int) -> tuple[int, int]:
        """(row, column) of a cell."""
        return self.row_of[cell // COLUMNS], cell % COLUMNS


def _rows(cells: dict[int, _Cell], row_pages: int, page_size: int | None) -> _Rows:
    lines = sorted({cell // COLUMNS for cell in cells})
    row_of: dict[int, int] = {}
    labels, gaps = [], []
    # Where there are many rows, they are low.
    gap_rows = 1 if len(lines) <= LOW_ROWS else 2
    row = nth = 0
    for before, line in zip([lines[0], *lines], lines, strict=False):
        if line > before + 1:
            gaps.append((row, pages((line - before - 1) * row_pages, page_size)))
            row, nth = row + gap_rows, 0
        row_of[line] = row
        labels.append((row, nth, _address(line * row_pages, page_size)))
        row, nth = row + 1, nth + 1
    return _Rows(row_of, labels, gaps, gap_rows, row)


def _strokes(cells: dict[tuple[int, int], _Cell]) -> list[Stroke]:
    """
    The paths: the free (pale) ground of each type, the used part over it, the marks on top.

    In a cell of several types a stripe at the right stands for one of the others, as wide as its
    share, but a quarter at least, to be seen, and a half at most.
    """
    ground: dict[str, list[tuple[int, int]]] = {}
    used: dict[tuple[str, int], list[tuple[int, int]]] = {}
    stripes: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for position in sorted(cells):
        cell = cells[position]
        types = cell.types
        blocks, most = sum(types.values()), max(types.values())
        main = min([mt for mt, number in types.items() if number == most], key=_rank)
        ground.setdefault(main if main in TYPES else OTHER, []).append(position)
        # What was not counted is drawn as used; the page says so.
        share = 0 if cell.unknown else _eighths(cell.eighths, blocks)
        if share < 8:
            used.setdefault((main if main in TYPES else OTHER, share), []).append(position)
        if len(types) > 1:
            other = min([mt for mt in types if mt != main], key=_rank)
            parts = min(max(round(8 * types[other] / blocks), 2), 4)
            stripes.setdefault((other if other in TYPES else OTHER, parts), []).append(position)
    strokes = [Stroke(f"{look(mt)} pb-free", _path(at), 0, 0.5, 1, "") for mt, at in ground.items()]
    for (mt, share), at in used.items():
        height = (8 - share) / 8
        strokes.append(
            Stroke(f"{look(mt)} pb-used", _path(at), 0, round(1 - height / 2, 4), height, "")
        )
    for mt, (width, height) in MARKS.items():
        if mt in ground:
            strokes.append(_mark(f"{look(mt)} pb-mark", ground[mt], width, height))
    for (mt, parts), at in stripes.items():
        left = 1 - parts / 8
        dash = f"{1 - left:g} {left:g}"
        strokes.append(Stroke(f"{look(mt)} pb-stripe", _path(at), left, 0.5, 1, dash))
    return strokes


def _mark(name: str, at: list[tuple[int, int]], width: float, height: float) -> Stroke:
    """A mark in the middle of every cell: a dash of the stroke, and a gap up to the next."""
    dash = f"{width:g} {1 - width:g}"
    return Stroke(name, _path(at), round((1 - width) / 2, 4), 0.5, height, dash)


def _eighths(eighths: int, blocks: int) -> int:
    """The mean free share in eighths; 0 and 8 only if it is exactly none and all."""
    if eighths in (0, 8 * blocks):
        return 8 if eighths else 0
    return min(max(round(eighths / blocks), 1), 7)


@functools.cache
def _rank(migratetype: str) -> int:
    return TYPES.index(migratetype) if migratetype in TYPES else -1


def _path(positions: list[tuple[int, int]]) -> str:
    """Strokes over cells (row, column), which must be sorted; neighbours are one stroke."""
    segments: list[tuple[int, int, int]] = []  # row, first column, the one behind
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


def _run_titles(runs: list[Run], block_pages: int, rows: _Rows) -> list[tuple[str, str]]:
    titles = []
    for start, blocks, (node, zone), migratetype, eighths in runs:
        first = start // block_pages
        cells = range(first, first + blocks)
        path = _path([rows.place(cell) for cell in cells])
        free = "free share not counted" if eighths is None else _free(int(eighths))
        titles.append(
            (
                path,
                f"PFN {start:#x}-{start + blocks * block_pages - 1:#x}, "
                f"{plural(blocks, 'pageblock')}, node {node} {zone}, {migratetype}, {free}",
            )
        )
    return titles


def _free(eighths: int) -> str:
    return {NONE_FREE: "nothing free", ALL_FREE: "all free"}.get(eighths, f"about {eighths}/8 free")


def _row_titles(
    cells: dict[int, _Cell], rows: _Rows, row_pages: int, page_size: int | None
) -> list[tuple[str, str]]:
    sums: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for number, cell in cells.items():
        here = sums[number // COLUMNS]
        for migratetype, blocks in cell.types.items():
            here[migratetype] += blocks
    titles = []
    for line, row in rows.row_of.items():
        types = ", ".join(f"{mt} {blocks:,}" for mt, blocks in sums[line].most_common())
        start, end = line * row_pages, (line + 1) * row_pages
        titles.append(
            (
                f"M0 {row}h{COLUMNS}",
                f"{_address(start, page_size)}-{_address(end, page_size)}, pageblocks: {types}",
            )
        )
    return titles


def _legend(runs: list[Run]) -> list[Legend]:
    counts: defaultdict[str, Counter[int | None]] = defaultdict(Counter)
    for _, blocks, _, migratetype, eighths in runs:
        counts[migratetype][eighths] += blocks
    rows = []
    for migratetype in sorted(counts, key=rank):
        shares = counts[migratetype]
        total, known = shares.total(), None not in shares
        none, all_of_it = shares[NONE_FREE], shares[ALL_FREE]
        rows.append(
            Legend(
                migratetype,
                _strokes({(0, at): _Cell({migratetype: 1}, 8 * at) for at in (0, 1)}),
                total,
                all_of_it if known else None,
                total - none - all_of_it if known else None,
                none if known else None,
            )
        )
    return rows


def _address(pfn: int, page_size: int | None) -> str:
    return f"pfn {pfn:#x}" if page_size is None else f"{pfn * page_size:#x}"


def draw(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The map, and how many pageblocks the census has where all of it is known."""
    drawn = pageblock_map(tables["pageblock_map"], page_size)
    census = [row.get("blocks") for row in tables.get("pageblocks", [])]
    # Another table, which may be damaged on its own account.
    known = [blocks for blocks in census if isinstance(blocks, int)]
    return {"map": drawn, "census": sum(known) if census and known == census else None}


def census(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """Pageblocks of each zone by migratetype."""
    types: list[str] = []
    zones: dict[tuple[int, str], dict[str, int]] = {}
    for row in tables["pageblocks"]:
        if row["migratetype"] not in types:
            types.append(row["migratetype"])
        counts = zones.setdefault((row["node"], row["zone"]), {})
        counts[row["migratetype"]] = counts.get(row["migratetype"], 0) + row["blocks"]
    if len(types) > MAX_TYPES:
        raise Damaged(f"more than {MAX_TYPES} migratetypes")
    return {"types": types, "zones": zones}


PAGEBLOCK_MAP = Picture(
    "pageblock_map",
    "pageblock_map",
    frozenset({"start_pfn", "blocks", "node", "zone", "migratetype", "free_eighths"}),
    draw,
    others=frozenset({"pageblocks"}),
)
PAGEBLOCKS = Picture(
    "pageblocks",
    "pageblocks",
    frozenset({"node", "zone", "migratetype", "blocks"}),
    census,
)
