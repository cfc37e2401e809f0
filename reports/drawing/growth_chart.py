# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page tables a fault over the run of a process, as a chart: how much each fault added, from doubling
to doubling of their number, so that what the first ones add shows, too.

Cannot know: of VmPTE, what came between two looks; there it is taken to grow evenly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from mmscope.drgn.tables.hostile_text import visible
from mmscope.reports.drawing import charts
from mmscope.reports.rows.profile_rows import ADDRESSES, VMPTE, new_tables

Row = dict[str, Any]
LEVELS = ("pte_tables", "pmd_tables", "pud_tables")
COUNTED = ("faults", *LEVELS)
PAGES = 5  # at the upper end of the axis, one a tick: there are at most four levels below the PGD

MORE_THAN = 2  # looks: one step is no course


@dataclass(frozen=True, slots=True)
class GrowthChart:
    """
    A process.

    :ivar lines: what is drawn, by addresses or VmPTE, in the order of their colours.
    :ivar needed: (new tables, faults that needed as many); of VmPTE alone it is empty.
    :ivar shown: the rows to be shown as a table.
    """

    pid: int
    comm: str
    chart: Markup
    lines: list[str]
    needed: list[tuple[int, int]]
    page_bytes: int
    shown: list[Row]
    vmpte: Row | None  # the last look


def growth_charts(rows: Sequence[Row], page_bytes: int) -> list[GrowthChart]:
    """The processes of a recording, those with most faults first."""
    found: dict[tuple[int, str], dict[str, list[Row]]] = {}
    for row in rows:
        found.setdefault((row["pid"], row["comm"]), {}).setdefault(row["made_by"], []).append(row)
    return [
        _chart(pid, comm, _whole(by.get(ADDRESSES, [])), by.get(VMPTE, []), page_bytes)
        for (pid, comm), by in found.items()
    ]


def _whole(rows: list[Row]) -> list[Row]:
    """Those that tell levels apart, as all of mmscope's own do."""
    return [row for row in rows if None not in {row[name] for name in COUNTED}]


def _chart(pid: int, comm: str, exact: list[Row], looks: list[Row], page: int) -> GrowthChart:
    shown = exact or looks
    last = exact[-1] if exact else None
    if last is not None and (tables := sum(last[level] for level in LEVELS)):
        page = last["table_bytes"] // tables
    lines: list[tuple[str, list[float | None]]] = []
    if exact:
        lines.append((ADDRESSES, [_kib(row["bytes_per_fault"]) for row in exact]))
    if len(looks) > MORE_THAN:
        ends = [row["faults"] for row in shown]
        lines.append((VMPTE, _between(looks, ends) if exact else _own(looks)))
    lines = [(name, values) for name, values in lines if any(v is not None for v in values)]
    name = visible(comm)
    chart = lines and charts.line_chart(
        [_short(row["faults"]) for row in shown],
        lines,
        x_title="faults so far",
        describe=f"KiB of new page tables a fault of {name} ({pid}); the table has the numbers",
        ceiling=PAGES * page / 1024,
    )
    return GrowthChart(
        pid,
        comm,
        # Shapes and escaped text that ElementTree wrote; nothing of it is a string of the bundle's.
        Markup(chart or ""),
        [name for name, _ in lines],
        new_tables(*(last[name] for name in COUNTED)) if last is not None else [],
        page,
        shown,
        looks[-1] if looks else None,
    )


def _kib(value: float | None) -> float | None:
    return None if value is None else round(value / 1024, 2)


def _short(faults: int) -> str:
    return f"{faults:,}" if faults < 10_000 else f"{faults / 1000:,.0f}k"


def _own(looks: list[Row]) -> list[float | None]:
    return [_kib(row["bytes_per_fault"]) for row in looks]


def _between(looks: list[Row], ends: Sequence[int]) -> list[float | None]:
    """What each fault added by VmPTE, from end to end of the steps that the looks cover."""
    at = [_at(looks, end) for end in ends]
    found: list[float | None] = [None]
    for (before, size), (begin, end) in zip(pairwise(at), pairwise(ends), strict=True):
        if before is None or size is None or end <= begin:
            found.append(None)
        else:
            found.append(_kib((size - before) / (end - begin)))
    return found


def _at(looks: list[Row], faults: int) -> float | None:
    """VmPTE at that many faults, between the looks before and after; None outside of them."""
    for before, after in pairwise(looks):
        begin, end = before["faults"], after["faults"]
        if begin <= faults <= end and end > begin:
            share = (faults - begin) / (end - begin)
            return float(before["table_bytes"] * (1 - share) + after["table_bytes"] * share)
    return None
