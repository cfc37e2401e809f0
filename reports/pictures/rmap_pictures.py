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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmscope.drgn.tables.amounts import bar_percent
from mmscope.reports.drawing.refusals import Damaged, number_of
from mmscope.reports.pictures.picture import Picture, Tables

# More classes, stretches or pages are damage; a power of two has 64 at most.
MAX_CLASSES = 65
MAX_STRETCHES = 4096
HEIGHT = 60  # of the bars of the map, in its own units


@dataclass(frozen=True, slots=True)
class FanoutBar:
    """Trees with so many VMAs, as two shares in per cent."""

    vmas_from: int
    vmas_to: int
    trees: int
    vmas: int
    ksm_items: int | None
    trees_at: float
    vmas_at: float


@dataclass(frozen=True, slots=True)
class TreePicture:
    """The page range of an anon_vma."""

    anon_vma: str
    comm: str | None
    pid: int | None
    vmas: int
    first_index: int
    pages: int
    stretch: int  # pages
    width: int  # stretches
    peak: int  # VMAs that overlap one stretch
    ksm_items: int | None
    ksm_peak: int
    all_path: str  # VMAs
    writable_path: str
    ksm_path: str
    splits: str | None  # what has split most of them
    splits_pairs: int | None


@dataclass(frozen=True, slots=True)
class VisitBar:
    """Visits of some walks, whole range and page offset; bars are logarithmic, in per cent."""

    what: str
    whole: int
    indexed: int
    whole_at: float
    indexed_at: float
    here: str
    whole_time: str
    indexed_time: str


def fanout(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """Bars of table ``anon_vma_fanout``."""
    return bars_of(tables["anon_vma_fanout"], "anon_vma")


def file_fanout(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """Bars of table ``file_mapping_fanout``."""
    return bars_of(tables["file_mapping_fanout"], "file")


def bars_of(rows: Sequence[dict[str, Any]], tree: str) -> dict[str, Any]:
    """
    Bars of a fan-out.

    :param tree: what one tree is of; its plural is the column that counts them.
    """
    what = f"{tree}s"
    if len(rows) > MAX_CLASSES:
        raise Damaged(f"more than {MAX_CLASSES} powers of two")
    trees = sum(int(row[what]) for row in rows)
    vmas = sum(int(row["vmas"]) for row in rows)
    return {
        "tree": tree,
        "with_ksm": any("ksm_items" in row for row in rows),
        "trees": trees,
        "vmas": vmas,
        "bars": [
            FanoutBar(
                row["vmas_from"],
                row["vmas_to"],
                row[what],
                row["vmas"],
                row.get("ksm_items"),
                bar_percent(row[what], trees),
                bar_percent(row["vmas"], vmas),
            )
            for row in rows
        ],
    }


def tree(tables: Tables, page_size: int | None) -> TreePicture | None:
    """The map of table ``anon_vma_map``; None if there is no anon_vma."""
    rows = tables["anon_vma_map"]
    if not rows:
        return None
    if len(rows) > MAX_STRETCHES:
        raise Damaged(f"more than {MAX_STRETCHES} stretches")
    anon_vma = rows[0]["anon_vma"]
    owner = next((r for r in tables.get("anon_vmas", []) if r.get("anon_vma") == anon_vma), {})
    split = next((r for r in tables.get("vma_splits", []) if r.get("anon_vma") == anon_vma), {})
    # Older bundles have page offsets as plain numbers.
    first, last = (number_of(row["index"]) for row in (rows[0], rows[-1]))
    vmas = [int(row["vmas"]) for row in rows]
    writable = [int(row["writable_vmas"]) for row in rows]
    known = [row["ksm_items"] for row in rows if row["ksm_items"] is not None]
    items = [int(row["ksm_items"] or 0) for row in rows]
    return TreePicture(
        anon_vma=anon_vma,
        comm=owner.get("comm"),
        pid=owner.get("pid"),
        vmas=sum(int(row["starts"]) for row in rows),
        first_index=first,
        pages=last + int(rows[-1]["pages"]) - first,
        stretch=int(rows[0]["pages"]),
        width=len(rows),
        peak=max(vmas),
        ksm_items=sum(items) if known else None,
        ksm_peak=max(items),
        all_path=outline(vmas, max(vmas)),
        writable_path=outline(writable, max(vmas)),
        ksm_path=outline(items, max(items)),
        splits=split.get("made_by"),
        splits_pairs=split.get("made_by_pairs"),
    )


def outline(values: list[int], peak: int, height: int = HEIGHT) -> str:
    """The outline of bars one unit wide that stand side by side, as an SVG path."""
    parts = [f"M0 {height}"]
    last = height
    for at, value in enumerate(values):
        top = height - round(height * max(value, 0) / peak) if peak > 0 else height
        if value > 0:
            top = min(top, height - 1)  # something is not nothing
        if top != last:
            parts.append(f"H{at}V{top}")
            last = top
    parts.append(f"H{len(values)}V{height}Z")
    return "".join(parts)


def visits(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """Bars of the worst KSM page and of all of them, out of ``ksm_pages`` and ``rmap_costs``."""
    rows = tables["rmap_costs"]
    compared: list[tuple[str, int, int, str, float]] = []
    pages = [r for r in tables.get("ksm_pages", []) if isinstance(r.get("visits_per_pass"), int)]
    ksm = next((row for row in rows if row["what"] == "KSM pages"), None)
    if pages and ksm is not None:
        worst = max(pages, key=lambda row: int(row["visits_per_pass"]))
        compared.append(
            (
                f"The worst KSM page, {worst['pfn']:#x}",
                int(worst["visits_per_pass"]),
                int(worst["visits_indexed"]),
                ksm["used_here"],
                float(ksm["node_ns"]),
            )
        )
        compared.append(
            (
                f"All {int(ksm['pages']):,} KSM pages, one pass of each",
                int(ksm["visits"]),
                int(ksm["visits_indexed"]),
                ksm["used_here"],
                float(ksm["node_ns"]),
            )
        )
    most = max((max(whole, indexed) for _, whole, indexed, *_ in compared), default=0)
    scale = math.log10(max(most, 10))
    return {
        "measured": all(bool(row["measured"]) for row in rows),
        "node_ns": float(rows[0]["node_ns"]) if rows else None,
        "ticks": [
            (f"{10**power:,}", round(100 * power / scale, 2))
            for power in range(0, math.floor(scale) + 1, 3)
        ],
        # All others are walked by their page offset on every kernel.
        "others": [row for row in rows if row is not ksm],
        "bars": [
            VisitBar(
                what,
                whole,
                indexed,
                logarithmic(whole, scale),
                logarithmic(indexed, scale),
                here,
                milliseconds(whole * ns / 1e6),
                milliseconds(indexed * ns / 1e6),
            )
            for what, whole, indexed, here, ns in compared
        ],
    }


def logarithmic(value: int, scale: float) -> float:
    """The length of a bar in per cent: 0 for none, and something for one."""
    return 0.0 if value <= 0 else round(max(100 * math.log10(value) / scale, 0.5), 2)


def milliseconds(value: float) -> str:
    """An estimate, with no more digits than it deserves: ``614 ms``, ``48 s``, ``0.031 ms``."""
    if value >= 10_000:
        return f"{value / 1000:,.0f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.2g} ms"


ANON_VMA_FANOUT = Picture(
    "anon_vma_fanout",
    "anon_vma_fanout",
    frozenset({"vmas_from", "vmas_to", "anon_vmas", "vmas"}),
    fanout,
)
FILE_MAPPING_FANOUT = Picture(
    "file_mapping_fanout",
    "file_mapping_fanout",
    frozenset({"vmas_from", "vmas_to", "files", "vmas"}),
    file_fanout,
)
ANON_VMA_MAP = Picture(
    "anon_vma_map",
    "anon_vma_map",
    frozenset({"anon_vma", "index", "pages", "vmas", "writable_vmas", "starts", "ksm_items"}),
    tree,
    others=frozenset({"anon_vmas", "vma_splits"}),
)
RMAP_VISITS = Picture(
    "rmap_visits",
    "rmap_costs",
    frozenset({"what", "visits", "visits_indexed", "used_here", "node_ns", "measured"}),
    visits,
    others=frozenset({"ksm_pages"}),
)
