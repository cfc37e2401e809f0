# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page tables as pictures: of the processes with the most, the tree level by level and how full its
tables are, the address space and what is mapped how, and what the end of the process costs.

Bars are as long as their tables are many. Only regions of an address space are as wide as the
logarithm of their size, mappings being of 4 KiB and of 100 TiB; their axis says so.

Cannot know: what is in the tables where only /proc was read; then there are sizes alone.
"""

import bisect
import math
import operator
from collections.abc import Sequence
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.drawing.refusals import number_of
from mmscope.reports.pictures.picture import Row, Rows, Tables, picture

# Processes that are drawn, and that are listed.
DRAWN, LISTED = 6, 15
# A table entry is eight bytes on every architecture with 64 bits.
ENTRY_BYTES = 8
LEVELS = ("pgd", "p4d", "pud", "pmd", "pte", "deposited")
# Shades of occupancy, by entries in use.
SHADES = ("none", "1", "2 to 7", "8 to 63", "64 or more", "all")
# What is mapped how: column of page_table_regions, words; in the order in which it is stacked.
KINDS = (
    ("small", "resident in base pages"),
    ("huge", "in transparent huge pages"),
    ("hugetlb", "in hugetlb pages"),
    ("zero", "the shared zero page"),
    ("huge_zero", "the huge zero page"),
    ("swap", "swapped out"),
    ("other", "device memory, markers, pages being moved"),
)
# Per cent of a column's height or a strip's width that may always be seen.
LEAST_HEIGHT, LEAST_WIDTH = 5.0, 0.3
# Per cent of a strip that the size of a region needs below it, on a telephone as well.
LABEL_WIDTH = 17.0

# A part of a bar or a column: look, place and width in per cent, title.
Part = tuple[str, float, float, str]


def _largest_first(rows: Rows, most: int) -> list[Row]:
    """The first rows by the size of their tables."""
    size, pid = columns_of(rows, "pgtables_bytes", "pid")
    order = sorted(zip(map(operator.neg, size), pid, range(len(rows)), strict=True))
    return [rows[at] for _, _, at in order[:most]]


def costs_wanted(tables: Tables) -> set[Any]:
    """PIDs of the processes that are drawn, whose rows of ``exit_costs`` are shown."""
    return {row["pid"] for row in _largest_first(tables["page_tables"], DRAWN)}


@picture(
    "page_tables",
    "pid comm pgtables_bytes",
    others="page_table_occupancy page_table_regions",
    parts={"exit_costs": ("pid", costs_wanted)},
)
def page_tables(tables: Tables, page_size: int | None) -> Row:
    """The processes with the most page tables: the first drawn, more listed."""
    every = tables["page_tables"]
    rows = _largest_first(every, LISTED)
    # Of /proc there are sizes alone.
    known = "pte_tables" in next(iter(every[:1]), {}) and any(
        number is not None for number in columns_of(every, "pte_tables")[0]
    )
    page = page_size or 4096
    costs = {row["pid"]: row for row in tables.get("exit_costs", [])}
    occupancy = _by_pid(tables.get("page_table_occupancy", []))
    regions = _by_pid(tables.get("page_table_regions", []))
    trees = []
    for row in rows[:DRAWN] if known else []:
        pid, cost = row["pid"], costs.get(row["pid"])
        mine = regions.get(pid, [])
        sums = [(f"pt-{kind}", words, _sum(mine, f"{kind}_bytes")) for kind, words in KINDS]
        tree = {
            "row": row,
            "used": used_bytes(row, page_size),
            "levels": _levels(occupancy.get(pid, []), page // ENTRY_BYTES),
            "regions": _strip(mine, page),
            "legend": [each for each in sums if each[-1]],
            "mapped": _sum(mine, "mapped_bytes"),
            "vmas": _sum(mine, "vmas"),
            "cost": cost,
            # For its tables, with its pages, after the OOM reaper.
            "seconds": [
                _seconds(cost[f"{what}_seconds"])
                for what in ("tables", "exit", "oom")
                if cost is not None
            ],
        }
        trees += [tree] if tree["levels"] else []
    return {
        "total": sum(columns_of(every, "pgtables_bytes")[0]),
        "processes": len(every),
        "trees": trees,
        "listed": [(row, used_bytes(row, page_size)) for row in rows],
        "known": known,
        "shades": SHADES,
    }


def used_bytes(row: Row, page_size: int | None) -> int | None:
    """
    The memory of a process beside its tables: resident, in hugetlb pages, swapped out; None where
    a part of it is not known.
    """
    resident = row.get("resident_bytes")
    if resident is None:
        return None
    swapped = row.get("swap_ptes") or 0
    if swapped and page_size is None:
        return None
    swapped_bytes = swapped * (page_size or 0)
    return int(resident) + int(row.get("hugetlb_bytes") or 0) + int(swapped_bytes)


def _seconds(value: float) -> str:
    """An estimate of a time, no more exact than it is."""
    if value < 0.001:
        return "less than 1 ms"
    return f"{1000 * value:,.0f} ms" if value < 1 else f"{value:,.1f} s"


def _sum(rows: Sequence[Row], column: str) -> int:
    return sum(row[column] for row in rows)


def _by_pid(rows: Rows) -> dict[int | None, list[Row]]:
    found: dict[int | None, list[Row]] = {}
    for row in rows:
        found.setdefault(row["pid"], []).append(row)
    return found


def shade(least: int, slots: int) -> int:
    """The shade of tables with so many entries in use, or more: index of :data:`SHADES`."""
    return len(SHADES) - 1 if least >= slots else bisect.bisect_right((1, 2, 8, 64), least)


def _levels(rows: list[Row], slots: int) -> list[Row]:
    """The levels of a tree, from the root down, with their tables by occupancy."""
    by_level = {name: [row for row in rows if row["level"] == name] for name in LEVELS}
    most = max(_sum(here, "tables") for here in by_level.values())
    levels = []
    for name, here in by_level.items():
        tables = _sum(here, "tables")
        if tables <= 0:
            continue
        sums = [0] * len(SHADES)
        for row in here:
            sums[shade(row["least"], slots)] += row["tables"]
        parts: list[Part] = []
        at = 0.0
        for step, number in enumerate(sums):
            if number:
                width = 100 * number / tables
                what = display.plural(number, f"{name} table")
                title = f"{what} with {SHADES[step]} of {slots} entries in use"
                look = "deposited" if name == "deposited" else f"occ-{step}"
                parts.append((look, round(at, 3), round(width, 3), title))
                at += width
        levels.append(
            {
                "name": name,
                "tables": tables,
                "entries": _sum(here, "entries"),
                "slots": tables * slots,
                "width": round(max(100 * tables / most, LEAST_WIDTH), 2),
                "parts": parts,
            }
        )
    return levels


def _strip(rows: list[Row], page_size: int) -> list[Row]:
    """Regions of an address space, as columns side by side, each with a bar of its PTE tables."""
    rows = sorted(rows, key=lambda row: number_of(row["start"], 16, "page_table_regions"))
    weights = [1 + math.log2(1 + max(0, row["mapped_bytes"]) / page_size) for row in rows]
    whole = sum(weights)
    most = max((row["pte_tables"] for row in rows), default=0)
    gap = 0.4
    regions, at = [], 0.0
    for row, weight in zip(rows, weights, strict=True):
        width = weight / whole * (100 - gap * (len(rows) - 1))
        tables = max(100 * row["pte_tables"] / most, LEAST_HEIGHT) if row["pte_tables"] else 0
        regions.append(
            {
                "at": round(at, 3),
                "width": round(width, 3),
                "parts": _column(row),
                "tables": round(tables, 2),
                "title": _title(row, page_size),
                "label": display.size(row["mapped_bytes"]) if width >= LABEL_WIDTH else "",
            }
        )
        at += width + gap
    return regions


def _column(row: Row) -> list[tuple[str, float, float]]:
    """
    Mappings of a region's addresses, from the bottom up: (look, place, height); what is left
    is untouched.
    """
    mapped = max(row["mapped_bytes"], 1)
    amounts = [(kind, max(0, row[f"{kind}_bytes"])) for kind, _ in KINDS]
    heights = [
        (kind, max(100 * amount / mapped, LEAST_HEIGHT)) for kind, amount in amounts if amount
    ]
    # Where the smallest were made to be seen, all must fit again.
    scale = min(1.0, 100 / total) if (total := sum(height for _, height in heights)) else 1.0
    parts, at = [], 0.0
    for kind, height in heights:
        parts.append((f"pt-{kind}", round(at, 2), round(height * scale, 2)))
        at += height * scale
    return parts


def _title(row: Row, page_size: int) -> str:
    words = [
        f"{row['start']}-{row['end']}: {display.plural(row['vmas'], 'mapping')}, "
        f"{display.size(row['mapped_bytes'])}",
        f"{display.plural(row['pte_tables'], 'PTE table')} "
        f"({display.size(row['pte_tables'] * page_size)})",
    ]
    words += [
        f"{display.size(row[f'{kind}_bytes'])} {text}"
        for kind, text in KINDS
        if row[f"{kind}_bytes"]
    ]
    return visible("; ".join(words))
