# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Free memory of each zone against its watermarks, and the HighAtomic reserve; table ``zones``. And
what a higher ``vm.min_free_kbytes`` would do to it at once.

Bars of a zone have one axis, its managed pages: free memory with the watermarks, and the reserve,
where there is one. Where free memory is near the watermarks, which are about a hundredth of a zone,
the same once more on an axis that ends at twice the high watermark.

Cannot know: what :mod:`~mmscope.drgn.free.watermarks` cannot.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mmscope.drgn.free.watermarks import MinFree, min_free, usable_pages, zone_state
from mmscope.drgn.tables.amounts import bar_percent
from mmscope.reports.pictures.picture import Picture, Tables


@dataclass(frozen=True, slots=True)
class Marks:
    """One zone. In pages; the ``_at`` fields are per cent of their bar."""

    node: int
    zone: str
    managed: int
    free: int
    minimum: int
    low: int
    high: int
    boost: int | None
    reserved: int | None  # HighAtomic: whole pageblocks, used or free
    reserved_free: int | None
    cap: int | None
    usable: int  # free without what the watermarks hold back for HighAtomic requests
    state: str
    state_class: str
    free_at: float
    usable_at: float
    axis: int  # where the second bar ends
    axis_free_at: float
    axis_usable_at: float
    near: bool  # the watermarks: the second axis shows all of free
    whole_marks_at: list[float]
    marks_at: list[tuple[str, float]]
    reserved_at: float
    reserved_used_at: float


def watermarks(rows: Iterable[dict[str, Any]], reserve: dict[tuple[int, str], int]) -> list[Marks]:
    """
    Every zone with managed pages.

    :param rows: of table ``zones``.
    :param reserve: (node, zone) to free pages on its HighAtomic lists, for kernels that keep no
        count of them (``nr_free_highatomic`` came in v6.13).
    """
    return [_marks(row, reserve) for row in rows if row["managed_pages"]]


def _marks(row: dict[str, Any], reserve: dict[tuple[int, str], int]) -> Marks:
    free, managed = int(row["free_pages"]), int(row["managed_pages"])
    minimum, low, high = (int(row[f"wmark_{mark}"]) for mark in ("min", "low", "high"))
    reserved_free = row.get("highatomic_free_pages")
    if reserved_free is None:
        reserved_free = reserve.get((row["node"], row["zone"]))
    axis = max(2 * high, 1)
    reserved = int(row.get("highatomic_reserved_pages") or 0)
    usable = usable_pages(row)
    # The boost is there to be reclaimed, not to be kept.
    boost = int(row.get("wmark_boost") or 0)
    state, state_class = zone_state(usable, minimum - boost, low - boost, high - boost)
    return Marks(
        node=row["node"],
        zone=row["zone"],
        managed=managed,
        free=free,
        minimum=minimum,
        low=low,
        high=high,
        boost=row.get("wmark_boost"),
        reserved=row.get("highatomic_reserved_pages"),
        reserved_free=reserved_free,
        cap=row.get("highatomic_cap_pages"),
        usable=usable,
        state=state,
        state_class=state_class,
        free_at=bar_percent(free, managed),
        usable_at=bar_percent(usable, managed),
        axis=axis,
        axis_free_at=bar_percent(free, axis),
        axis_usable_at=bar_percent(usable, axis),
        near=free <= axis,
        whole_marks_at=[bar_percent(mark, managed) for mark in (minimum, low, high)],
        marks_at=[
            (name, bar_percent(mark, axis))
            for name, mark in (("min", minimum), ("low", low), ("high", high))
        ],
        reserved_at=bar_percent(reserved, managed),
        reserved_used_at=bar_percent(max(0, reserved - (reserved_free or 0)), managed),
    )


def draw(tables: Tables, page_size: int | None) -> list[Marks]:
    reserve: dict[tuple[Any, Any], int] = {}
    for row in tables.get("free_blocks", []):
        if row.get("migratetype") == "HighAtomic" and isinstance(row.get("pages"), int):
            key = row.get("node"), row.get("zone")
            reserve[key] = reserve.get(key, 0) + row["pages"]
    return watermarks(tables["zones"], reserve)


WATERMARKS = Picture(
    "watermarks",
    "zones",
    frozenset({"node", "zone", "managed_pages", "free_pages"})
    | {"wmark_min", "wmark_low", "wmark_high"},
    draw,
    others=frozenset({"free_blocks"}),
)


def draw_min_free(tables: Tables, page_size: int | None) -> MinFree:
    settings = {row["name"]: row["value"] for row in tables.get("settings", [])}
    return min_free(tables["zones"], settings, page_size)


MIN_FREE = Picture(
    "min_free",
    "zones",
    frozenset({"node", "zone", "managed_pages", "free_pages"})
    | {"wmark_min", "wmark_low", "wmark_high"},
    draw_min_free,
    others=frozenset({"settings"}),
)
