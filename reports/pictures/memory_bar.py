# SPDX-License-Identifier: LGPL-2.1-or-later
"""
All memory of the machine in one bar, each class of the ledger a segment; table ``memory_ledger``.

Below it a map of what is in use, by class and owner, then every class by its parts and its largest
owners as each table of them has it, and the kernel's counters that do not agree.
"""

from collections import Counter
from itertools import repeat
from typing import Any

from mmscope.drgn.tables.display import bar_percent
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.tables.rows import Column, columns
from mmscope.drgn.tables.table import Inside, Table
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.drawing.class_looks import label, look
from mmscope.reports.drawing.row_names import DESCRIBES, MAX_NAME, name_of
from mmscope.reports.drawing.treemap import Place, treemap
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
MAX_OWNERS = 8  # of each table
# The map, in pixels of a page of middling width; its height is the same on all.
MAP_WIDTH, MAP_HEIGHT, MAP_LINE, MAP_CHARACTER = 1000.0, 400.0, 17.0, 8.0
MAP_CELLS = 5_000  # a smaller part could not be seen
LEAST_SHOWN = 4  # characters of a name
NOT_IN_USE = {"free", "not the kernel's"}
AS_MUCH = 1.02  # counters of processes lag; shared pages would count with each
# Of each class the tables that have its owners, the first of which is a part of the bar's.
OWNERS: dict[str, list[tuple[Table, Inside]]] = {}
for _table in TABLES.values():
    for _inside in _table.inside:
        OWNERS.setdefault(_inside.owner, []).append((_table, _inside))
for _pairs in OWNERS.values():
    _pairs.sort(key=lambda pair: bool(pair[1].by))  # what adds rows up comes last


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
                "look": look(name),
                "parts": sorted(parts, key=lambda part: -part[1]),
                "owners": [],  # inside of it, as the first of the tables says
                "table": "",
            }
        )
        at += size
    return result


def _owners_in(table: Table, inside: Inside, rows: Rows, page_size: int | None) -> Row:
    """The owners that a table names inside a class: the largest, how many more, and their sum."""
    unit = next(c.unit for c in columns(table.row) if c.name == inside.column)
    factor = page_size or 0 if unit == "pages" else 1
    same, wanted = inside.where or ("", ())
    by = inside.by.split()
    named = [
        c for c in columns(table.row) if (c.name in by if by else c.key or c.name in DESCRIBES)
    ]
    named = [c for c in named if c.name != same or len(wanted) > 1]
    sums: Counter[Any] = Counter()
    if rows:
        (sizes,) = columns_of(rows, inside.column)
        (kinds,) = columns_of(rows, same) if same else (repeat(None),)
        keys = zip(*columns_of(rows, *by), strict=True) if by else range(len(rows))
        for key, size, kind in zip(keys, sizes, kinds, strict=False):
            if size and (not same or kind in wanted):
                sums[key] += size * factor
    owners = []
    for key, size in sums.most_common(MAX_OWNERS):
        values = key if by else tuple(rows[key].get(c.name) for c in named)
        owners.append((_owner_name(named, values), size))
    more = len(sums) - len(owners)
    return {
        "table": table.name,
        "title": table.title,
        "owners": owners,
        "more": more,
        "bytes": sums.total(),
    }


def _owner_name(described: list[Column], values: tuple[Any, ...]) -> str:
    """A row's name, a process first: "db (pid 7), socket, unix stream"."""
    row = {column.name: value for column, value in zip(described, values, strict=True)}
    if row.get("pid") is None or not row.get("comm"):
        return name_of(described, values)
    process = f"{cut(row['comm'], MAX_NAME)} (pid {row['pid']})"
    rest = [(c, row[c.name]) for c in described if c.name not in ("pid", "comm") and row[c.name]]
    if not rest:
        return process
    return f"{process}, {name_of([c for c, _ in rest], tuple(value for _, value in rest))}"


def _cells(found: Rows) -> list[Row]:
    """The map: a cell for each class in use, in it cells of its owners."""
    used = sorted((s for s in found if s["name"] not in NOT_IN_USE), key=lambda s: -s["bytes"])
    least = sum(s["bytes"] for s in used) / MAP_CELLS
    used = [s for s in used if s["bytes"] > least]
    places = treemap([s["bytes"] for s in used], (0.0, 0.0, MAP_WIDTH, MAP_HEIGHT))
    return [
        _cell(label(each["name"]), each["bytes"], place)
        | {"class": each, "inside": _owned(each, place, least)}
        for each, place in zip(used, places, strict=True)
    ]


def _owned(each: Row, place: Place, least: float) -> list[Row]:
    """Cells of a class's owners, by the first table whose owners are no more than the class has."""
    whole: int = each["bytes"]
    kind = next((k for k in each["kinds"] if k["bytes"] <= AS_MUCH * whole), None)
    left, top, width, height = place
    if kind is None or height < 2 * MAP_LINE:
        return []
    owners = [(name, size) for name, size in kind["owners"] if size > least]
    rest = whole - sum(size for _, size in owners)
    if rest > least:
        owners.append(("others", rest))
    owners.sort(key=lambda owner: -owner[1])
    inside = (left, top + MAP_LINE, width, height - MAP_LINE)
    places = treemap([size for _, size in owners], inside)
    return [_cell(*owner, place) for owner, place in zip(owners, places, strict=True)]


def _cell(name: str, size: int, place: Place) -> Row:
    """A cell; ``left`` and ``width`` are per cent of the map, ``shown`` is what has room in it."""
    left, top, width, height = place
    room = int(width / MAP_CHARACTER) if height >= MAP_LINE else 0
    # Its end is what differs in a path, its beginning in a name.
    shown = (
        name
        if len(name) <= room
        else f"…{name[1 - room :]}"
        if "/" in name
        else f"{name[: room - 1]}…"
    )
    return {
        "name": name,
        "bytes": size,
        "left": bar_percent(int(1000 * left), int(1000 * MAP_WIDTH)),
        "top": round(top, 1),
        "width": bar_percent(int(1000 * width), int(1000 * MAP_WIDTH)),
        "height": round(height, 1),
        "shown": shown if room >= LEAST_SHOWN else "",
    }


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
        kinds = (
            _owners_in(*pair, tables.get(pair[0].name, []), page_size)
            for pair in OWNERS.get(each["name"], [])
        )
        each["kinds"] = [kind for kind in kinds if kind["owners"]]
        for kind in each["kinds"][:1]:
            each["table"], each["owners"] = kind["table"], kind["owners"]
    return {
        "segments": found,
        "cells": _cells(found),
        "map_height": MAP_HEIGHT,
        "total": sum(row["bytes"] for row in rows),
        "counted": bool(checks),
        "agree": sum(not row["difference_pages"] for row in checks),
        "differ": [row for row in checks if row["difference_pages"]],
    }
