# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The small picture of the incident card: what the likely cause is about, marked among its like.

Of free memory it is the orders of one zone, of memory with an owner the largest rows of the
table that the finding stands on. Others have none: the bar of all memory says as much.

Cannot know: more than the rows on which the finding stands (``proof``).
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.amounts import bar_percent
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.drawing.row_names import DESCRIBES, name_of
from mmscope.reports.findings.findings import Finding
from mmscope.reports.findings.proof import Proof
from mmscope.reports.page.missing import why_missing

FREE_BLOCKS = "free_blocks"
MAX_BARS = 5
MAX_ORDERS = 16  # what there is room for; no kernel has more
# Memory without an owner, that is there anyway, or all of it: a bar of these blames no one.
NOBODYS = {"free", "mapped", "all"}


@dataclass(frozen=True, slots=True)
class Bar:
    """``width`` and ``marked``, the part that is the culprit's, are per cent of the longest."""

    name: str
    amount: str
    width: float
    marked: float
    loud: bool  # it is what the finding is about, though nothing may be there


@dataclass(frozen=True, slots=True)
class Culprit:
    """
    The picture.

    :ivar upright: bars stand side by side, in an order that means something.
    """

    words: str
    table: str
    upright: bool
    bars: list[Bar] = field(default_factory=list)


def culprit(
    bundle: Bundle, finding: Finding, page_size: int | None, faults: list[Fault] | None = None
) -> Culprit | None:
    """
    The picture of a finding; None where it would say no more than its words.

    :param faults: gets what mmscope failed to draw.
    """
    for proof in finding.proofs:
        table = bundle.tables.get(proof.table)
        if table is None or not proof.columns <= {c.name for c in table.columns}:
            continue
        try:
            if proof.table == FREE_BLOCKS:
                found = _orders(bundle, proof, page_size)
            else:
                found = _owners(bundle, proof, page_size)
        except BundleError:  # damaged: which its section says
            continue
        except Exception as error:
            held, _ = bundle.held([proof.table])
            if faults is not None and held:
                looked_at = (bundle, proof.table, held[proof.table])
                _, fault = why_missing(f"of {finding.id}", error, proof.table, [looked_at])
                faults += [fault] if fault else []
            continue
        if found:
            return found
    return None


def _orders(bundle: Bundle, proof: Proof, page_size: int | None) -> Culprit | None:
    """Free memory of the proof's zones by order, with that of the proof marked."""
    zones = [each for each in proof.equal if each[0] in ("node", "zone")]
    pages: dict[int, int] = {}
    marked: dict[int, int] = {}
    for row in bundle.rows(FREE_BLOCKS):
        if all(row[name] in values for name, values in zones):
            order = row["order"]
            pages[order] = pages.get(order, 0) + row["pages"]
            if proof.holds(row):
                marked[order] = marked.get(order, 0) + row["pages"]
    least = dict(proof.least).get("order")
    most = max(pages.values(), default=0)
    if not most or len(pages) > MAX_ORDERS or (least is None and not marked):
        return None
    bars = [
        Bar(
            str(order),
            display.pages(pages[order], page_size),
            bar_percent(pages[order], most),
            bar_percent(marked.get(order, 0), most),
            order in marked or (least is not None and order >= least),
        )
        for order in sorted(pages)
    ]
    where = ", ".join(f"{name} {values[0]}" for name, values in zones)
    types = dict(proof.equal).get("migratetype")
    whose = f" of type {types[0]}" if types else ""
    held = display.pages(sum(marked.values()), page_size) if marked else "nothing"
    of = f" of order {least} and above" if least is not None else ""
    words = f"Free memory by order, {where or 'all zones'}; marked: {held}{whose}{of}"
    return Culprit(words, FREE_BLOCKS, True, bars)


def _owners(bundle: Bundle, proof: Proof, page_size: int | None) -> Culprit | None:
    """The rows of a table that have most, with those of the proof marked."""
    declared, table = TABLES.get(proof.table), bundle.tables[proof.table]
    if declared is None or declared.memory in NOBODYS:
        return None
    sizes = [c for c in table.columns if c.unit in ("pages", "bytes")]
    wanted = [c for c in sizes if c.name == declared.measure] if declared.measure else sizes
    if not wanted:
        return None
    measure = wanted[0]

    def sized(row: dict[str, Any]) -> int:
        return int(row[measure.name] or 0)

    named = [c for c in table.columns if c.key or c.name in DESCRIBES]
    rows = heapq.nlargest(MAX_BARS, bundle.rows(proof.table), key=sized)
    if not any(proof.holds(row) for row in rows):
        rows = [*rows[:-1], *_first(filter(proof.holds, bundle.rows(proof.table)))]
    if len(rows) < 2 or not sized(rows[0]):
        return None
    bars = []
    for row in rows:
        amount = sized(row)
        said = display.pages(amount, page_size) if measure.unit == "pages" else display.size(amount)
        width = bar_percent(amount, sized(rows[0]))
        name = name_of(named, tuple(row[c.name] for c in named))
        guilty = proof.holds(row)
        bars.append(Bar(name, said, width, width if guilty else 0.0, guilty))
    words = f"{declared.title}, the largest; marked: what it is about"
    return Culprit(words, proof.table, False, bars)


def _first(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row, _ in zip(rows, range(1), strict=False)]
