# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Free memory of each zone against its watermarks, and the HighAtomic reserve; table ``zones``. And
what a higher ``vm.min_free_kbytes`` would do to it at once.

Bars of a zone have one axis, its managed pages: free memory with the watermarks, and the reserve,
where there is one. Where free memory is near the watermarks, which are about a hundredth of a zone,
the same once more on an axis that ends at twice the high watermark.

Cannot know: what :mod:`~mmscope.drgn.free.watermarks` cannot.
"""

from typing import Any

from mmscope.drgn.free.watermarks import MinFree, usable_pages, zone_state
from mmscope.drgn.free.watermarks import min_free as min_free_of
from mmscope.reports.pictures.picture import Row, Tables, picture

COLUMNS = "node zone managed_pages free_pages wmark_min wmark_low wmark_high"
# That not every kernel has.
OPTIONAL = ("wmark_boost", *(f"highatomic_{what}_pages" for what in ("reserved", "free", "cap")))


@picture("zones", COLUMNS, others="free_blocks")
def watermarks(tables: Tables, page_size: int | None) -> list[Row]:
    """Rows of the zones with managed pages, with what is usable, and how that is called."""
    listed: dict[tuple[Any, Any], int] = {}
    for row in tables.get("free_blocks", []):
        if row.get("migratetype") == "HighAtomic" and isinstance(row.get("pages"), int):
            zone = row.get("node"), row.get("zone")
            listed[zone] = listed.get(zone, 0) + row["pages"]
    return [_zone(row, listed) for row in tables["zones"] if row["managed_pages"]]


def _zone(row: Row, listed: dict[tuple[Any, Any], int]) -> Row:
    zone: Row = dict.fromkeys(OPTIONAL) | row
    # nr_free_highatomic came in v6.13; before, the free lists of the type say as much.
    if zone["highatomic_free_pages"] is None:
        zone["highatomic_free_pages"] = listed.get((row["node"], row["zone"]))
    # The boost is there to be reclaimed, not to be kept.
    boost = zone["wmark_boost"] or 0
    usable = usable_pages(row)
    marks = (row[f"wmark_{mark}"] - boost for mark in ("min", "low", "high"))
    state, state_class = zone_state(usable, *marks)
    return zone | {"usable": usable, "state": state, "state_class": state_class}


@picture("zones", COLUMNS, others="settings")
def min_free(tables: Tables, page_size: int | None) -> MinFree:
    """See :func:`mmscope.drgn.free.watermarks.min_free`."""
    settings = {row["name"]: row["value"] for row in tables.get("settings", [])}
    return min_free_of(tables["zones"], settings, page_size)
