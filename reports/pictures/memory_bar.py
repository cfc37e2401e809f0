# SPDX-License-Identifier: LGPL-2.1-or-later
"""
All memory of the machine in one bar, each class of the ledger a segment; table ``memory_ledger``.

Below it every class by its parts and its largest owners, and the kernel's counters that do not
agree.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from mmscope.drgn.tables.amounts import bar_percent
from mmscope.drgn.tables.rows import Column, columns
from mmscope.drgn.tables.table import Inside, Table
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.drawing.row_names import DESCRIBES, name_of
from mmscope.reports.pictures.picture import Picture, Tables

# Classes from left to right: what processes use, what the kernel uses, what is free. Others come
# before the free ones.
ORDER = (
    *("anonymous", "page cache", "hugetlb", "compressed"),
    *("slab", "vmalloc", "kernel stacks", "percpu", "page tables", "network", "driver"),
    *("memory about memory", "kernel reserves", "boot", "given away", "guard", "bad"),
    *("unexplained", "not the kernel's", "free"),
)
# Those that make an id as they are, which a link from elsewhere may know.
ANCHORED = {name for name in ORDER if "'" not in name}
LOOKS = 6  # colours that are told apart; neighbours never have the same
OWN_LOOK = {"unexplained": "mem-odd", "free": "mem-free", "not the kernel's": "mem-gone"}
MAX_OWNERS = 4  # of each class
WITH_NAME = 7.0  # per cent of the bar from which a segment has its name in it
# Of each class the tables that have its owners; the first that is in a bundle is shown.
OWNERS: dict[str, list[tuple[Table, Inside]]] = {}
for _table in TABLES.values():
    for _inside in _table.inside:
        OWNERS.setdefault(_inside.owner, []).append((_table, _inside))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the bar."""

    name: str
    zones: list[tuple[str, int]]  # (zone in words, bytes)
    bytes: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has memory inside a class, as a table of owners says."""

    name: str
    bytes: int


@dataclass
class Segment:
    """A class. ``at`` and ``width`` are per cent of the bar."""

    name: str
    anchor: str = ""  # of its parts and owners, below the bar
    bytes: int = 0
    at: float = 0.0
    width: float = 0.0
    look: str = ""
    named: bool = False
    parts: list[Part] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)
    table: str = ""  # of the owners


def segments(rows: Sequence[dict[str, Any]]) -> list[Segment]:
    """
    The classes, from left to right.

    :param rows: of table ``memory_ledger``.
    """
    sums: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        zone = f"node {row['node']} {row['zone']}" if row["zone"] else "whole machine"
        zones = sums.setdefault(row["owner"], {}).setdefault(row["part"], {})
        zones[zone] = zones.get(zone, 0) + row["bytes"]
    total = sum(row["bytes"] for row in rows)
    known = [name for name in ORDER if name in sums]
    others = sorted(set(sums) - set(ORDER))
    free = known[known.index("free") :] if "free" in known else []
    result: list[Segment] = []
    at = 0
    for number, name in enumerate([*known[: len(known) - len(free)], *others, *free]):
        parts = [
            Part(part, sorted(zones.items(), key=lambda each: -each[1]), sum(zones.values()))
            for part, zones in sums[name].items()
        ]
        size = sum(part.bytes for part in parts)
        width = bar_percent(size, total)
        result.append(
            Segment(
                name,
                f"memory-{name.replace(' ', '-')}" if name in ANCHORED else f"memory-{number}",
                size,
                bar_percent(at, total),
                width,
                OWN_LOOK.get(name, f"color-{number % LOOKS}"),
                width >= WITH_NAME,
                sorted(parts, key=lambda part: -part.bytes),
            )
        )
        at += size
    return result


def add_owners(found: list[Segment], tables: Tables, page_size: int | None) -> None:
    """Name the largest owners inside each class."""
    for segment in found:
        for table, inside in OWNERS.get(segment.name, []):
            same = inside.where[0] if inside.where and len(inside.where[1]) == 1 else ""
            named = [c for c in _names(table) if c.name != same]
            unit = next(c.unit for c in columns(table.row) if c.name == inside.column)
            factor = page_size or 0 if unit == "pages" else 1
            rows = tables.get(table.name, [])
            owners = heapq.nlargest(MAX_OWNERS, _sizes(rows, inside, factor), key=itemgetter(0))
            segment.owners = [
                Owner(name_of(named, tuple(rows[at].get(c.name) for c in named)), size)
                for size, at in owners
                if size
            ]
            if segment.owners:
                segment.table = table.name
                break


def _sizes(rows: Sequence[dict[str, Any]], inside: Inside, factor: int) -> list[tuple[int, int]]:
    """What each owner of a table has inside a class, and the number of its row."""
    if not rows:
        return []
    (sizes,) = columns_of(rows, inside.column)
    if not inside.where:
        return [(size * factor, at) for at, size in enumerate(sizes)]
    name, wanted = inside.where
    here = zip(sizes, *columns_of(rows, name), strict=True)
    return [(size * factor, at) for at, (size, value) in enumerate(here) if value in wanted]


def _names(table: Table) -> list[Column]:
    return [c for c in columns(table.row) if c.key or c.name in DESCRIBES]


def draw(tables: Tables, page_size: int | None) -> dict[str, Any]:
    rows = tables["memory_ledger"]
    checks = tables.get("ledger_checks", [])
    found = segments(rows)
    add_owners(found, tables, page_size)
    return {
        "segments": found,
        "total": sum(row["bytes"] for row in rows),
        "counted": bool(checks),
        "agree": sum(not row["difference_pages"] for row in checks),
        "differ": [row for row in checks if row["difference_pages"]],
    }


MEMORY_BAR = Picture(
    "memory_bar",
    "memory_ledger",
    frozenset({"owner", "part", "node", "zone", "bytes"}),
    draw,
    others=frozenset({"ledger_checks", *(t.name for each in OWNERS.values() for t, _ in each)}),
    style="""
.mem-bar rect { fill: var(--series, var(--bar)); stroke: var(--bg); stroke-width: 1; }
.mem-bar rect.mem-free { fill: var(--bar); } .mem-bar rect.mem-gone { fill: var(--other); }
.mem-bar rect.mem-odd { fill: var(--reserve); }
.mem-bar rect.mem-mark { fill: none; stroke: var(--fg); stroke-width: 5; }
.mem-bar text { fill: var(--fg); font-size: 12px; }
.mem-key { list-style: none; padding: 0; display: grid; gap: .15rem 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); }
.mem-key li { display: flex; gap: .5rem; align-items: baseline; }
.mem-key .num { margin-left: auto; white-space: nowrap; }
.mem-parts td:last-child { min-width: 14rem; }
.mem-parts .owners td { color: var(--dim); }
.mem-key .box { background: var(--series, var(--bar)); }
.mem-key .mem-free { background: var(--bar); } .mem-key .mem-gone { background: var(--other); }
.mem-key .mem-odd { background: var(--reserve); }
""",
)
