# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page tables a fault over the run of a process, as a chart: how much each fault added, from doubling
to doubling of their number, so that what the first ones add shows, too.

Cannot know: of VmPTE, what came between two looks; there it is taken to grow evenly.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.drawing.charts import Point, Tick, line_chart
from mmscope.reports.rows.profile_rows import ADDRESSES, VMPTE, new_tables

Row = dict[str, Any]
LEVELS = ("pte_tables", "pmd_tables", "pud_tables")
COUNTED = ("faults", *LEVELS)
PAGES = 5  # at the upper end of the axis, one a tick: there are at most four levels below the PGD

MORE_THAN = 2  # looks: one step is no course


def growth_charts(rows: Sequence[Row], page_bytes: int) -> list[Row]:
    """The processes of a recording, those with most faults first."""
    found: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["pid"], row["comm"]), []).append(row)
    return [_chart(pid, comm, members, page_bytes) for (pid, comm), members in found.items()]


def _chart(pid: int, comm: str, rows: list[Row], page: int) -> Row:
    """
    A process: its chart, the lines in it by what they are made by, the rows for a table, the last
    look at VmPTE, and of its addresses (new tables, faults that needed as many).
    """
    # Those that tell levels apart, as all of mmscope's own do.
    exact = [r for r in rows if r["made_by"] == ADDRESSES and None not in [r[n] for n in COUNTED]]
    looks = [row for row in rows if row["made_by"] == VMPTE]
    shown = exact or looks
    last = exact[-1] if exact else None
    if last is not None and (tables := sum(last[level] for level in LEVELS)):
        page = last["table_bytes"] // tables
    lines: dict[str, list[float | None]] = {}
    if exact:
        lines[ADDRESSES] = [row["bytes_per_fault"] for row in exact]
    if len(looks) > MORE_THAN:
        ends = [row["faults"] for row in shown]
        own = [row["bytes_per_fault"] for row in looks]
        lines[VMPTE] = _between(looks, ends) if exact else own
    lines = {name: each for name, each in lines.items() if any(v is not None for v in each)}
    labels = [_short(row["faults"]) for row in shown]
    sizes = [tick * page / 1024 for tick in range(PAGES + 1)]
    chart = lines and line_chart(
        [Tick(at, label) for at, label in enumerate(labels)],
        [Tick(size, f"{size:g}") for size in sizes],
        [_points(name, labels, values) for name, values in lines.items()],
        x_title="faults so far",
        describe=f"KiB of new page tables a fault of {visible(comm)} ({pid}); "
        "the table has the numbers",
    )
    return {
        "pid": pid,
        "comm": comm,
        "chart": chart,
        "lines": list(lines),
        "needed": new_tables(*(last[name] for name in COUNTED)) if last is not None else [],
        "page_bytes": page,
        "shown": shown,
        "vmpte": looks[-1] if looks else None,
    }


def _points(name: str, labels: list[str], values: list[float | None]) -> list[Point]:
    kib = [None if value is None else round(value / 1024, 2) for value in values]
    return [
        (at, value, f"{name}, {label}: {value:g}")
        for at, (label, value) in enumerate(zip(labels, kib, strict=True))
        if value is not None
    ]


def _short(faults: int) -> str:
    return f"{faults:,}" if faults < 10_000 else f"{faults / 1000:,.0f}k"


def _between(looks: list[Row], ends: Sequence[int]) -> list[float | None]:
    """What each fault added by VmPTE, from end to end of the steps that the looks cover."""
    at = [_at(looks, end) for end in ends]
    return [None] + [
        None if before is None or size is None or end <= begin else (size - before) / (end - begin)
        for (before, size), (begin, end) in zip(pairwise(at), pairwise(ends), strict=True)
    ]


def _at(looks: list[Row], faults: int) -> float | None:
    """VmPTE at that many faults, between the looks before and after; None outside of them."""
    for before, after in pairwise(looks):
        begin, end = before["faults"], after["faults"]
        if begin <= faults <= end and end > begin:
            share = (faults - begin) / (end - begin)
            return float(before["table_bytes"] * (1 - share) + after["table_bytes"] * share)
    return None
