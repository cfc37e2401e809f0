# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The free lists as a grid: zone by order by migratetype, out of table ``free_blocks``. What is beside
them: the parts of NR_FREE_PAGES, and pages on per-CPU lists.

The shade is by bytes on a fixed scale (a step is a factor of eight), so that the same shade means
the same in every report; by pages where their size is unknown.

Cannot know: what a request may take. Requests fall back to blocks of other types, but not to
HighAtomic or Isolate, and to CMA only if they are Movable.
"""

from collections.abc import Iterable
from typing import Any

from mmscope.drgn.free.watermarks import thp_order, unusable_free_index
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.drawing.charts import Tick, line_chart
from mmscope.reports.drawing.refusals import Damaged
from mmscope.reports.pictures.picture import Row, Rows, Tables, picture

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

Blocks = dict[int, int]  # free blocks by order
Zone = tuple[int, str]


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


def rank(migratetype: str | None) -> tuple[int, str]:
    """A key that sorts migratetypes as the kernel has them, then the others."""
    if migratetype in KERNEL_ORDER:
        return KERNEL_ORDER.index(migratetype), ""
    return len(KERNEL_ORDER), migratetype or ""


def _blocks(rows: Iterable[Row]) -> dict[Zone, dict[str | None, Blocks]]:
    """
    Free blocks by zone, migratetype and order.

    :param rows: of table ``free_blocks``.
    :raises Damaged: an order is impossible.
    """
    zones: dict[Zone, dict[str | None, Blocks]] = {}
    for row in rows:
        order = int(row["order"])
        if not 0 <= order <= MAX_ORDER:
            raise Damaged(f"order {order} is impossible")
        types = zones.setdefault((int(row["node"]), str(row["zone"])), {})
        blocks = types.setdefault(row.get("migratetype"), {})
        blocks[order] = blocks.get(order, 0) + int(row["blocks"])
    return zones


def _all_types(types: dict[str | None, Blocks]) -> Blocks:
    orders = sorted({order for blocks in types.values() for order in blocks})
    return {order: sum(blocks.get(order, 0) for blocks in types.values()) for order in orders}


def _pages(blocks: Blocks) -> int:
    return sum(number << order for order, number in blocks.items())


@picture("free_blocks", "node zone order migratetype blocks pages")
def free_lists(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The grids of the zones; those of nearly nothing (ZONE_DMA of a PC) come last."""
    zones = _blocks(tables["free_blocks"])
    if max((len(types) for types in zones.values()), default=0) > MAX_TYPES:
        raise Damaged(f"more than {MAX_TYPES} migratetypes")
    grids: list[Row] = [
        {
            "node": node,
            "zone": zone,
            "lines": [_line(kind, types[kind], page_size) for kind in sorted(types, key=rank)],
            "total": _line("all", _all_types(types), page_size),
        }
        for (node, zone), types in zones.items()
    ]
    grids.sort(key=lambda grid: grid["total"]["pages"] * (page_size or 4096) < SMALL_BYTES)
    orders = {order for types in zones.values() for order in _all_types(types)}
    return {"orders": sorted(orders), "grids": grids, "held_back": HELD_BACK}


def _line(migratetype: str | None, blocks: Blocks, page_size: int | None) -> Row:
    """A migratetype of a zone; its blocks hold so many of THP size as they are."""
    thp = thp_order(page_size)
    large = {} if thp is None else {o - thp: number for o, number in blocks.items() if o >= thp}
    return {
        "migratetype": migratetype,
        "blocks": blocks,
        "pages": _pages(blocks),
        "thp_blocks": _pages(large),
    }


def unusable_index(rows: Rows) -> dict[Zone, tuple[int, dict[int, float]]]:
    """
    Free pages of each zone, and its unusable free space index by order: 0 good, 1 bad.

    :param rows: of table ``free_blocks``; blocks that belong to no zone are left out.
    :raises Damaged: an order is impossible.
    """
    types = _blocks(row for row in rows if row["node"] >= 0)
    zones = {zone: _all_types(each) for zone, each in types.items()}
    orders = sorted({order for blocks in zones.values() for order in blocks})
    return {
        zone: (_pages(blocks), {order: unusable_free_index(blocks, order) for order in orders})
        for zone, blocks in zones.items()
    }


@picture("free_blocks", "node zone order blocks")
def fragmentation(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The index as a chart, and its numbers."""
    zones, thp = unusable_index(tables["free_blocks"]), thp_order(page_size)
    orders = next((list(index) for _, index in zones.values()), [])
    labels = {order: f"{order} THP" if order == thp else str(order) for order in orders}
    lines = [
        [(at, index[order], f"node {node} {visible(zone)}, {labels[order]}: {index[order]:g}")
         for at, order in enumerate(orders)]
        for (node, zone), (_, index) in zones.items()
    ]  # fmt: skip
    chart = line_chart(
        [Tick(at, labels[order], marked=order == thp) for at, order in enumerate(orders)],
        [Tick(share, f"{share:g}", marked=share == UNUSABLE) for share in AXIS],
        lines,
        x_title="order of the request",
        describe="Unusable free space index by order, one line a zone; the table has the numbers",
    )
    return {"chart": chart, "orders": orders, "zones": zones, "unusable": UNUSABLE}


@picture(
    "free_accounting",
    "node zone nr_free_pages free_list_pages unaccepted_pages remainder_pages isolate_pages "
    "pcp_pages",
)
def free_accounting(tables: Tables, page_size: int | None) -> Rows:
    """The table as it is."""
    return tables["free_accounting"]


@picture("pcp_pages", "node zone cpu pages")
def pcp_lists(tables: Tables, page_size: int | None) -> dict[Zone, list[int]]:
    """Pages on each CPU's lists of a zone."""
    cpus: dict[Zone, dict[int, int]] = {}
    for row in tables["pcp_pages"]:
        on = cpus.setdefault((row["node"], row["zone"]), {})
        on[row["cpu"]] = on.get(row["cpu"], 0) + row["pages"]
    return {zone: list(on.values()) for zone, on in cpus.items()}
