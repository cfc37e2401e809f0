# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The free lists as a grid: zone by order by migratetype, out of table ``free_blocks``. What is beside
them: the parts of NR_FREE_PAGES, and pages on per-CPU lists.

The shade is by bytes on a fixed scale (a step is a factor of eight), so that the same shade means
the same in every report; by pages where their size is unknown.

Cannot know: what a request may take. Requests fall back to blocks of other types, but not to
HighAtomic or Isolate, and to CMA only if they are Movable.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mmscope.drgn.free.watermarks import thp_order, unusable_free_index
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.drawing.charts import Tick, line_chart
from mmscope.reports.drawing.refusals import Damaged
from mmscope.reports.pictures.picture import Picture, Tables

# Enough for any kernel so far; more is not a table of free lists.
MAX_ORDER = 32
MAX_TYPES = 16
# Steps of the shade: below 32 KiB, 256 KiB, 2 MiB, 16 MiB, 128 MiB, 1 GiB, 8 GiB, and above.
LEVELS = 8
FIRST_STEP, STEP = 15, 3  # powers of two
# Of pages, where their size is unknown: below 8 pages, 64, and so on.
FIRST_STEP_OF_PAGES = 3
# A zone with less free than that is not where to look first: ZONE_DMA has 16 MiB on a PC.
SMALL_BYTES = 16 << 20
# From where on finding external-fragmentation names a zone; a test holds the two equal.
UNUSABLE = 0.85
# Labels of the index; 0.8 gives way to the threshold.
AXIS = (0, 0.2, 0.4, 0.6, UNUSABLE, 1)
# Of no request's fallbacks but their own: THP may not have what is free there.
HELD_BACK = ("HighAtomic", "Isolate")
# The kernel's order of migratetypes (enum migratetype); others follow as they come.
KERNEL_ORDER = ("Unmovable", "Movable", "Reclaimable", "HighAtomic", "CMA", "Isolate")


@dataclass(frozen=True, slots=True)
class Cell:
    """One free list; ``blocks`` is None where the table does not have it."""

    order: int
    blocks: int | None
    pages: int
    level: int  # 0 empty, 1 to LEVELS by bytes
    held: bool  # large enough for a huge page, which may not have it


@dataclass(frozen=True, slots=True)
class Line:
    """One migratetype of one zone, or the sum of all."""

    migratetype: str | None
    cells: list[Cell]
    pages: int
    thp_blocks: int | None  # blocks of THP size that fit into its blocks as they are


@dataclass(frozen=True, slots=True)
class ZoneGrid:
    """The free lists of one zone."""

    node: int
    zone: str
    lines: list[Line]
    total: Line


def level(pages: int, page_size: int | None) -> int:
    """The step of the shade for so many pages; 0 for none."""
    size = pages * (page_size or 1)
    if size <= 0:
        return 0
    return min(LEVELS, max(1, (size.bit_length() - 1 - _first_step(page_size)) // STEP + 2))


def level_starts(page_size: int | None) -> list[int]:
    """The smallest size of each step, in bytes; in pages where their size is unknown."""
    first = _first_step(page_size)
    return [1 << first + STEP * (step - 1) if step else 1 for step in range(LEVELS)]


def _first_step(page_size: int | None) -> int:
    return FIRST_STEP if page_size else FIRST_STEP_OF_PAGES


def grids(rows: Iterable[dict[str, Any]], page_size: int | None) -> list[ZoneGrid]:
    """
    One grid a zone, in the order of the table.

    :param rows: of table ``free_blocks``.
    :param page_size: in bytes, None if unknown.
    :raises Damaged: these are not free lists.
    """
    zones: dict[tuple[int, str], dict[str | None, dict[int, int]]] = {}
    orders: set[int] = set()
    for row in rows:
        order = int(row["order"])
        if not 0 <= order <= MAX_ORDER:
            raise Damaged(f"order {order} is impossible")
        orders.add(order)
        types = zones.setdefault((int(row["node"]), str(row["zone"])), {})
        lists = types.setdefault(row["migratetype"], {})
        if len(types) > MAX_TYPES:
            raise Damaged(f"more than {MAX_TYPES} migratetypes")
        lists[order] = lists.get(order, 0) + int(row["blocks"])
    columns = sorted(orders)
    thp = thp_order(page_size)
    return [
        ZoneGrid(
            node,
            zone,
            [_line(mt, types[mt], columns, thp, page_size) for mt in sorted(types, key=rank)],
            _line("all", _sum(types.values()), columns, thp, page_size),
        )
        for (node, zone), types in zones.items()
    ]


def rank(migratetype: str | None) -> tuple[int, str]:
    """A key that sorts migratetypes as the kernel has them, and what it has not behind these."""
    if migratetype in KERNEL_ORDER:
        return KERNEL_ORDER.index(migratetype), ""
    return len(KERNEL_ORDER), migratetype or ""


def _sum(lists: Iterable[dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for blocks in lists:
        for order, number in blocks.items():
            total[order] = total.get(order, 0) + number
    return total


def _line(
    migratetype: str | None,
    blocks: dict[int, int],
    columns: list[int],
    thp: int | None,
    page_size: int | None,
) -> Line:
    cells = []
    for order in columns:
        number = blocks.get(order)
        pages = (number or 0) << order
        held = migratetype in HELD_BACK and thp is not None and order >= thp and pages > 0
        cells.append(Cell(order, number, pages, level(pages, page_size), held))
    large = None
    if thp is not None:
        large = sum(number << order - thp for order, number in blocks.items() if order >= thp)
    return Line(migratetype, cells, sum(cell.pages for cell in cells), large)


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The unusable free space index of one zone: a value an order, 0 good, 1 bad."""

    node: int
    zone: str
    free_pages: int
    index: list[float]


def fragmentation(rows: Iterable[dict[str, Any]]) -> tuple[list[int], list[Fragmentation]]:
    """
    The index of every zone and order, out of table ``free_blocks``.

    :return: (orders, one row a zone).
    :raises Damaged: an order is impossible.
    """
    zones: dict[tuple[int, str], dict[int, int]] = {}
    for row in rows:
        if row["node"] < 0:  # blocks that belong to no zone
            continue
        order = int(row["order"])
        if not 0 <= order <= MAX_ORDER:
            raise Damaged(f"order {order} is impossible")
        blocks = zones.setdefault((row["node"], row["zone"]), {})
        blocks[order] = blocks.get(order, 0) + int(row["blocks"])
    orders = sorted({order for blocks in zones.values() for order in blocks})
    return orders, [
        Fragmentation(
            node,
            zone,
            sum(number << order for order, number in blocks.items()),
            [unusable_free_index(blocks, order) for order in orders],
        )
        for (node, zone), blocks in zones.items()
    ]


def draw(tables: Tables, page_size: int | None) -> list[ZoneGrid]:
    """The grids of table ``free_blocks``; those of nearly nothing (ZONE_DMA of a PC) come last."""
    found = grids(tables["free_blocks"], page_size)
    return sorted(found, key=lambda grid: grid.total.pages * (page_size or 4096) < SMALL_BYTES)


def draw_fragmentation(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The index as a chart, and its numbers."""
    orders, zones = fragmentation(tables["free_blocks"])
    thp = thp_order(page_size)
    labels = [f"{order} THP" if order == thp else str(order) for order in orders]
    chart = line_chart(
        [
            Tick(at, label, marked=order == thp)
            for at, (order, label) in enumerate(zip(orders, labels, strict=True))
        ],
        [Tick(share, f"{share:g}", marked=share == UNUSABLE) for share in AXIS],
        [
            [
                (at, index, f"node {row.node} {visible(row.zone)}, {label}: {index:g}")
                for at, (label, index) in enumerate(zip(labels, row.index, strict=True))
            ]
            for row in zones
        ],
        x_title="order of the request",
        describe="Unusable free space index by order, one line a zone; the table has the numbers",
    )
    return {"chart": chart, "orders": orders, "zones": zones, "unusable": UNUSABLE}


def free_accounting(tables: Tables, page_size: int | None) -> Sequence[dict[str, Any]]:
    """The table as it is."""
    return tables["free_accounting"]


def pcp_lists(tables: Tables, page_size: int | None) -> list[dict[str, Any]]:
    """The zones with pages on per-CPU lists: how many, and on how many CPUs."""
    cpus: dict[tuple[int, str], dict[int, int]] = {}
    for row in tables["pcp_pages"]:
        on = cpus.setdefault((row["node"], row["zone"]), {})
        on[row["cpu"]] = on.get(row["cpu"], 0) + row["pages"]
    return [
        {
            "zone": f"node {node} {zone}",
            "pages": sum(on.values()),
            "cpus": sum(pages > 0 for pages in on.values()),
            "most": max(on.values()),
        }
        for (node, zone), on in cpus.items()
    ]


FREE_LISTS = Picture(
    "free_lists",
    "free_blocks",
    frozenset({"node", "zone", "order", "migratetype", "blocks", "pages"}),
    draw,
)
FRAGMENTATION = Picture(
    "fragmentation",
    "free_blocks",
    frozenset({"node", "zone", "order", "blocks"}),
    draw_fragmentation,
)
FREE_ACCOUNTING = Picture(
    "free_accounting",
    "free_accounting",
    frozenset({"node", "zone", "nr_free_pages", "free_list_pages", "unaccepted_pages"})
    | {"remainder_pages", "isolate_pages", "pcp_pages"},
    free_accounting,
)
PCP_LISTS = Picture(
    "pcp_lists", "pcp_pages", frozenset({"node", "zone", "cpu", "pages"}), pcp_lists
)
