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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.drawing.refusals import number_of
from mmscope.reports.pictures.picture import Picture, Tables

Row = dict[str, Any]

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


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar, in per cent of it."""

    look: str
    at: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Level:
    """The tables of one level of a process."""

    name: str
    tables: int
    entries: int
    slots: int
    width: float  # of the bar
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an address space: a column in a strip, in per cent of it."""

    at: float
    width: float
    parts: list[Segment]  # from the bottom up: `at` and `width` are heights
    tables: float  # the height of its bar of PTE tables
    title: str
    label: str  # its size, where there is room


@dataclass(frozen=True, slots=True)
class Tree:
    """One process, drawn."""

    row: Row
    used: int | None  # bytes that it uses, beside its tables
    levels: list[Level]
    regions: list[Region]
    legend: list[tuple[str, str, int]]  # (look, words, bytes) of what its regions hold
    mapped: int
    vmas: int
    cost: Row | None
    seconds: list[str]  # that its end takes: for its tables, with its pages, after the OOM reaper


@dataclass(frozen=True, slots=True)
class View:
    """What the template draws."""

    total: int  # bytes of tables of all processes
    processes: int
    trees: list[Tree]
    listed: list[tuple[Row, int | None]]
    known: bool  # what is in the tables
    shades: tuple[str, ...] = SHADES


def _largest_first(rows: Sequence[Row], most: int) -> list[Row]:
    """The first rows by the size of their tables."""
    size, pid = columns_of(rows, "pgtables_bytes", "pid")
    order = sorted(zip(map(operator.neg, size), pid, range(len(rows)), strict=True))
    return [rows[at] for _, _, at in order[:most]]


def costs_wanted(tables: Tables) -> set[Any]:
    """Whose rows of ``exit_costs`` are shown: PIDs of the processes that are drawn."""
    return {row["pid"] for row in _largest_first(tables["page_tables"], DRAWN)}


def view(tables: Tables, page_size: int | None) -> View:
    """The pictures of a bundle's page tables."""
    every = tables["page_tables"]
    rows = _largest_first(every, LISTED)
    known = "pte_tables" in next(iter(every[:1]), {}) and any(
        number is not None for number in columns_of(every, "pte_tables")[0]
    )
    slots = (page_size or 4096) // ENTRY_BYTES
    costs = {row["pid"]: row for row in tables.get("exit_costs", [])}
    occupancy = _by_pid(tables.get("page_table_occupancy", []))
    regions = _by_pid(tables.get("page_table_regions", []))
    trees = []
    for row in rows[:DRAWN] if known else []:
        pid = row["pid"]
        cost = costs.get(pid)
        strip, legend, mapped = _strip(regions.get(pid, []), page_size or 4096)
        trees.append(
            Tree(
                row=row,
                used=used_bytes(row, page_size),
                levels=_levels(occupancy.get(pid, []), slots),
                regions=strip,
                legend=legend,
                mapped=mapped,
                vmas=sum(region["vmas"] for region in regions.get(pid, [])),
                cost=cost,
                seconds=[_seconds(cost[f"{what}_seconds"]) for what in ("tables", "exit", "oom")]
                if cost
                else [],
            )
        )
    return View(
        total=sum(columns_of(every, "pgtables_bytes")[0]),
        processes=len(every),
        trees=[tree for tree in trees if tree.levels],
        listed=[(row, used_bytes(row, page_size)) for row in rows[:LISTED]],
        known=known,
    )


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


def _by_pid(rows: Iterable[Row]) -> dict[int | None, list[Row]]:
    found: dict[int | None, list[Row]] = {}
    for row in rows:
        found.setdefault(row["pid"], []).append(row)
    return found


def shade(least: int, slots: int) -> int:
    """The shade of tables with so many entries in use, or more: index of :data:`SHADES`."""
    return len(SHADES) - 1 if least >= slots else bisect.bisect_right((1, 2, 8, 64), least)


def _levels(rows: list[Row], slots: int) -> list[Level]:
    """The levels of a tree, from the root down, with their tables by occupancy."""
    by_level: dict[str, list[Row]] = {}
    for row in rows:
        by_level.setdefault(row["level"], []).append(row)
    names = [name for name in LEVELS if name in by_level]
    most = max((sum(row["tables"] for row in by_level[name]) for name in names), default=0)
    levels = []
    for name in names:
        tables = sum(row["tables"] for row in by_level[name])
        if tables <= 0:
            continue
        entries = sum(row["entries"] for row in by_level[name])
        sums = [0] * len(SHADES)
        for row in by_level[name]:
            sums[shade(row["least"], slots)] += row["tables"]
        segments, at = [], 0.0
        for step, number in enumerate(sums):
            if number:
                width = 100 * number / tables
                what = display.plural(number, f"{name} table")
                title = f"{what} with {SHADES[step]} of {slots} entries in use"
                look = "deposited" if name == "deposited" else f"occ-{step}"
                segments.append(Segment(look, round(at, 3), round(width, 3), title))
                at += width
        width = max(100 * tables / most, LEAST_WIDTH)
        levels.append(Level(name, tables, entries, tables * slots, round(width, 2), segments))
    return levels


def _strip(rows: list[Row], page_size: int) -> tuple[list[Region], list[tuple[str, str, int]], int]:
    """(regions, legend, bytes mapped) of an address space."""
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
            Region(
                at=round(at, 3),
                width=round(width, 3),
                parts=_stack(row),
                tables=round(tables, 2),
                title=_title(row, page_size),
                label=display.size(row["mapped_bytes"]) if width >= LABEL_WIDTH else "",
            )
        )
        at += width + gap
    mapped_by = {kind: sum(row[f"{kind}_bytes"] for row in rows) for kind, _ in KINDS}
    legend = [(f"pt-{kind}", words, mapped_by[kind]) for kind, words in KINDS if mapped_by[kind]]
    mapped = sum(row["mapped_bytes"] for row in rows)
    return regions, legend, mapped


def _stack(row: Row) -> list[Segment]:
    """What a region's addresses are mapped to, from the bottom up; what is left is untouched."""
    mapped = max(row["mapped_bytes"], 1)
    amounts = [(kind, max(0, row[f"{kind}_bytes"])) for kind, _ in KINDS]
    heights = [
        (kind, max(100 * amount / mapped, LEAST_HEIGHT)) for kind, amount in amounts if amount
    ]
    # Where the smallest were made to be seen, all must fit again.
    scale = min(1.0, 100 / total) if (total := sum(height for _, height in heights)) else 1.0
    parts, at = [], 0.0
    for kind, height in heights:
        parts.append(Segment(f"pt-{kind}", round(at, 2), round(height * scale, 2), ""))
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


PAGE_TABLES = Picture(
    "page_tables",
    "page_tables",
    frozenset({"pid", "comm", "pgtables_bytes"}),
    view,
    others=frozenset({"page_table_occupancy", "page_table_regions"}),
    parts={"exit_costs": ("pid", costs_wanted)},
)
