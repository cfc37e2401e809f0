# SPDX-License-Identifier: LGPL-2.1-or-later
"""
All memory of the machine in one bar, each class of the ledger a segment; table ``memory_ledger``.

Below it every class by its parts and its largest owners, and the kernel's counters that do not
agree.
"""

import heapq
from operator import itemgetter
from typing import Any

from mmscope.drgn.tables.display import bar_percent
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.tables.table import Inside, Table
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.drawing.row_names import DESCRIBES, name_of
from mmscope.reports.pictures.picture import Row, Rows, Tables, picture

# Classes from left to right: what processes use, what the kernel uses, what is free. Others come
# before the free ones.
ORDER = (
    *("anonymous", "page cache", "hugetlb", "compressed"),
    *("slab", "vmalloc", "kernel stacks", "percpu", "page tables", "network", "driver"),
    *("pipes", "rings", "tracing"),
    *("memory about memory", "kernel reserves", "boot", "given away", "guard", "bad"),
    *("unexplained", "not the kernel's", "free"),
)
# Those that make an id as they are, which a link from elsewhere may know.
ANCHORED = {name for name in ORDER if "'" not in name}
LOOKS = 6  # colours that can be distinguished; neighbours never have the same
OWN_LOOK = {"unexplained": "mem-odd", "free": "mem-free", "not the kernel's": "mem-gone"}
MAX_OWNERS = 4  # of each class
# Of each class the tables that have its owners; the first that is in a bundle is shown.
OWNERS: dict[str, list[tuple[Table, Inside]]] = {}
for _table in TABLES.values():
    for _inside in _table.inside:
        OWNERS.setdefault(_inside.owner, []).append((_table, _inside))


def segments(rows: Rows) -> list[Row]:
    """
    The classes, from left to right; ``at`` and ``width`` are per cent of the bar.

    :param rows: of table ``memory_ledger``.
    """
    sums: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        zone = f"node {row['node']} {row['zone']}" if row["zone"] else "whole machine"
        zones = sums.setdefault(row["owner"], {}).setdefault(row["part"], {})
        zones[zone] = zones.get(zone, 0) + row["bytes"]
    total = sum(row["bytes"] for row in rows)
    # Those that are not known here come before the free ones.
    order = {name: (name == "free", at) for at, name in enumerate(ORDER)}
    names = sorted(sums, key=lambda name: (*order.get(name, (False, len(ORDER))), name))
    result: list[Row] = []
    at = 0
    for number, name in enumerate(names):
        parts = [(part, sum(zones.values()), zones) for part, zones in sums[name].items()]
        size = sum(size for _, size, _ in parts)
        result.append(
            {
                "name": name,
                "anchor": f"memory-{name.replace(' ', '-') if name in ANCHORED else number}",
                "bytes": size,
                "at": bar_percent(at, total),
                "width": bar_percent(size, total),
                "look": OWN_LOOK.get(name, f"color-{number % LOOKS}"),
                "parts": sorted(parts, key=lambda part: -part[1]),
                "owners": [],  # inside of it, as a table says
                "table": "",
            }
        )
        at += size
    return result


def _owners(name: str, tables: Tables, page_size: int | None) -> tuple[str, list[tuple[str, int]]]:
    """The first table that names owners inside a class, and the largest of these."""
    for table, inside in OWNERS.get(name, []):
        same = inside.where[0] if inside.where and len(inside.where[1]) == 1 else ""
        named = [c for c in columns(table.row) if c.key or c.name in DESCRIBES]
        named = [c for c in named if c.name != same]
        unit = next(c.unit for c in columns(table.row) if c.name == inside.column)
        factor = page_size or 0 if unit == "pages" else 1
        rows = tables.get(table.name, [])
        owners = [
            (name_of(named, tuple(rows[at].get(c.name) for c in named)), size * factor)
            for size, at in heapq.nlargest(MAX_OWNERS, _sizes(rows, inside), key=itemgetter(0))
            if size * factor
        ]
        if owners:
            return table.name, owners
    return "", []


def _sizes(rows: Rows, inside: Inside) -> list[tuple[int, int]]:
    """Sizes inside a class by row of a table of owners, each with the number of its row."""
    if not rows:
        return []
    (sizes,) = columns_of(rows, inside.column)
    if not inside.where:
        return [(size, at) for at, size in enumerate(sizes)]
    name, wanted = inside.where
    (values,) = columns_of(rows, name)
    return [(sizes[at], at) for at, value in enumerate(values) if value in wanted]


@picture(
    "memory_ledger",
    "owner part node zone bytes",
    others=" ".join(["ledger_checks", *(t.name for each in OWNERS.values() for t, _ in each)]),
)
def memory_bar(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """The classes with their owners, and what the kernel's counters say of it."""
    rows, checks = tables["memory_ledger"], tables.get("ledger_checks", [])
    found = segments(rows)
    for each in found:
        each["table"], each["owners"] = _owners(each["name"], tables, page_size)
    return {
        "segments": found,
        "total": sum(row["bytes"] for row in rows),
        "counted": bool(checks),
        "agree": sum(not row["difference_pages"] for row in checks),
        "differ": [row for row in checks if row["difference_pages"]],
    }
