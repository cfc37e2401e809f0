# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps as pictures: how VMAs are spread over anon_vmas, the page range of the worst one, and
what a walk visits with and without the page offset.

Shapes are paths and bars in per cent; no string of the bundle becomes markup. Visits span seven
orders of magnitude, so that their bars are logarithmic, which is said beside them.

Cannot know: more than the tables say. The page range is drawn in stretches, of which each may hold
many VMAs.
"""

import math
from typing import Any

from mmscope.reports.drawing.refusals import Damaged, number_of
from mmscope.reports.pictures.picture import Row, Rows, Tables, picture

# More classes, stretches or pages are damage; a power of two has 64 at most.
MAX_CLASSES = 65
MAX_STRETCHES = 4096
HEIGHT = 60  # of the bars of the map, in its own units


@picture("anon_vma_fanout", "vmas_from vmas_to anon_vmas vmas")
def anon_vma_fanout(tables: Tables, page_size: int | None) -> Row:
    """Anon_vmas with so many VMAs, a bar a power of two."""
    return _fanout(tables["anon_vma_fanout"], "anon_vma")


@picture("file_mapping_fanout", "vmas_from vmas_to files vmas")
def file_mapping_fanout(tables: Tables, page_size: int | None) -> Row:
    """The same of files."""
    return _fanout(tables["file_mapping_fanout"], "file")


def _fanout(rows: Rows, tree: str) -> Row:
    """
    The rows and their sums.

    :param tree: what one tree is of; its plural is the column that counts them.
    """
    if len(rows) > MAX_CLASSES:
        raise Damaged(f"more than {MAX_CLASSES} powers of two")
    return {
        "tree": tree,
        "with_ksm": any("ksm_items" in row for row in rows),
        "trees": sum(row[f"{tree}s"] for row in rows),
        "vmas": sum(row["vmas"] for row in rows),
        "rows": [{"ksm_items": None} | row | {"trees": row[f"{tree}s"]} for row in rows],
    }


@picture(
    "anon_vma_map",
    "anon_vma index pages vmas writable_vmas starts ksm_items",
    others="anon_vmas vma_splits",
)
def anon_vma_map(tables: Tables, page_size: int | None) -> Row | None:
    """The page range of an anon_vma in stretches; None if there is no anon_vma."""
    rows = tables["anon_vma_map"]
    if not rows:
        return None
    if len(rows) > MAX_STRETCHES:
        raise Damaged(f"more than {MAX_STRETCHES} stretches")
    anon_vma = rows[0]["anon_vma"]

    def known(table: str, *columns: str) -> Row:
        mine = (row for row in tables.get(table, []) if row.get("anon_vma") == anon_vma)
        return dict.fromkeys(columns) | next(mine, {})

    # Older bundles have page offsets as plain numbers.
    first, last = (number_of(row["index"]) for row in (rows[0], rows[-1]))
    vmas = [row["vmas"] for row in rows]
    items = [row["ksm_items"] or 0 for row in rows]
    return {
        "anon_vma": anon_vma,
        "of": known("anon_vmas", "comm", "pid"),
        "split": known("vma_splits", "made_by", "made_by_pairs"),
        "vmas": sum(row["starts"] for row in rows),
        "first_index": first,
        "pages": last + rows[-1]["pages"] - first,
        "stretch": rows[0]["pages"],
        "width": len(rows),
        "peak": max(vmas),
        "ksm_items": None if all(row["ksm_items"] is None for row in rows) else sum(items),
        "ksm_peak": max(items),
        "all_path": outline(vmas, max(vmas)),
        "writable_path": outline([row["writable_vmas"] for row in rows], max(vmas)),
        "ksm_path": outline(items, max(items)),
    }


def outline(values: list[int], peak: int) -> str:
    """The outline of bars one unit wide that stand side by side, as an SVG path."""
    parts = [f"M0 {HEIGHT}"]
    last = HEIGHT
    for at, value in enumerate(values):
        top = HEIGHT - round(HEIGHT * max(value, 0) / peak) if peak > 0 else HEIGHT
        if value > 0:
            top = min(top, HEIGHT - 1)  # something is not nothing
        if top != last:
            parts.append(f"H{at}V{top}")
            last = top
    parts.append(f"H{len(values)}V{HEIGHT}Z")
    return "".join(parts)


@picture(
    "rmap_costs",
    "what visits visits_indexed used_here node_ns measured",
    others="ksm_pages",
)
def rmap_visits(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """Visits of the walks of the worst KSM page and of all, whole range and page offset."""
    rows = tables["rmap_costs"]
    pages = [r for r in tables.get("ksm_pages", []) if isinstance(r.get("visits_per_pass"), int)]
    ksm = next((row for row in rows if row["what"] == "KSM pages"), None)
    compared: list[tuple[str, int, int]] = []
    if pages and ksm is not None:
        worst = max(pages, key=lambda row: int(row["visits_per_pass"]))
        visits = worst["visits_per_pass"], worst["visits_indexed"]
        compared = [
            (f"The worst KSM page, {worst['pfn']:#x}", *visits),
            (f"All {ksm['pages']:,} KSM pages, one pass of each", ksm["visits"],
             ksm["visits_indexed"]),
        ]  # fmt: skip
    scale = math.log10(max([10, *(n for _, *both in compared for n in both)]))

    def bar(visits: int) -> tuple[int, float, str]:
        time = milliseconds(visits * float(ksm["node_ns"]) / 1e6) if ksm else ""
        return visits, logarithmic(visits, scale), time

    return {
        "measured": all(bool(row["measured"]) for row in rows),
        "node_ns": float(rows[0]["node_ns"]) if rows else None,
        "ticks": [
            (f"{10**power:,}", round(100 * power / scale, 2))
            for power in range(0, math.floor(scale) + 1, 3)
        ],
        # All others are walked by their page offset on every kernel.
        "others": [row for row in rows if row["what"] != "KSM pages"],
        "here": ksm and ksm["used_here"],
        "bars": [(what, bar(whole), bar(indexed)) for what, whole, indexed in compared],
    }


def logarithmic(value: int, scale: float) -> float:
    """The length of a bar in per cent: 0 for none, and something for one."""
    return 0.0 if value <= 0 else round(max(100 * math.log10(value) / scale, 0.5), 2)


def milliseconds(value: float) -> str:
    """An estimate, with no more digits than it deserves: ``614 ms``, ``48 s``, ``0.031 ms``."""
    if value >= 10_000:
        return f"{value / 1000:,.0f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.2g} ms"
