# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Two bundles held against each other: a machine before and after, or two machines.

What the two have to do with each other is said first (``relation``); then what changed in tables
(``table_changes``), in findings (``finding_changes``) and in stacks (``differential_graphs``), and
of all that, what changed most.

Cannot know: whether a key that is in both bundles names the same thing. Of one boot it nearly
always does; a pid counts as the same only with the same comm.
"""

from dataclasses import dataclass
from typing import Any

from mmscope.drgn.tables.rows import Column
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.compare.differential_graphs import Graphs, differential_graphs
from mmscope.reports.compare.finding_changes import FindingChange, compare_findings
from mmscope.reports.compare.ledger_changes import LedgerChanges, ledger_changes
from mmscope.reports.compare.relation import Relation, relation
from mmscope.reports.compare.table_changes import Change, TableChanges, compare_tables, known
from mmscope.reports.drawing.refusals import Fault
from mmscope.reports.findings.finding import Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that two bundles say of each other."""

    bundles: tuple[Bundle, Bundle]
    relation: Relation
    tables: list[TableChanges]
    not_compared: list[tuple[str, str]]  # table, why
    ledger: LedgerChanges | None  # None: not both have one
    findings: list[FindingChange]
    not_checked: tuple[int, int]  # findings of one that the other could not be asked for
    graphs: list[Graphs]
    faults: list[Fault]  # graphs that mmscope failed to draw

    @property
    def changed(self) -> list[TableChanges]:
        return [table for table in self.tables if table.differing]


def compare(
    before: Bundle, after: Bundle, verdicts: tuple[Verdict, Verdict], *, draw: bool
) -> Comparison:
    """
    Hold two bundles against each other.

    :param draw: flame graphs, too.
    """
    related = relation(before, after)
    tables, not_compared = compare_tables(before, after, related)
    found, not_checked = compare_findings(
        *verdicts, same_boot=related.one_boot, same_names=related.same_names
    )
    faults: list[Fault] = []
    return Comparison(
        (before, after),
        related,
        tables,
        not_compared,
        ledger_changes(before, after, tables, after.page_size),
        found,
        not_checked,
        differential_graphs(before, after, related, not_compared, faults) if draw else [],
        faults,
    )


def bytes_of(value: int | float, column: Column | None, page_size: int | None) -> int | None:
    """A value in bytes, if it is an amount of memory."""
    if column is None or isinstance(value, float):
        return None
    if column.unit == "bytes":
        return value
    return value * page_size if column.unit == "pages" and page_size else None


def set_differently(comparison: Comparison) -> list[tuple[TableChanges, Change, Any, Any]]:
    """Settings that differ: (table, row, before, after); of a switch its first row."""
    found = []
    for table in comparison.changed:
        setting = known(table.name).setting
        rows = [
            (table, change, before, after)
            for change in table.changes
            for column, before, after in change.others
            if column.name == setting
        ]
        found += rows if table.name == "settings" else rows[:1]
    return found


def most_changed(
    comparison: Comparison, page_size: int | None
) -> list[tuple[TableChanges, Change]]:
    """
    The largest change of each table, memory first, by bytes; then the others in their order.

    Who has the memory goes before what is left of it, and a stack before its coarser parts, unless
    it accounts for less than half. Of free memory counts what has gone from it or come to it.
    """
    freed = _freed(comparison, page_size)

    def rank(item: tuple[TableChanges, Change]) -> float:
        table, change = item
        kind = known(table.name).memory
        amount = abs(bytes_of(change.difference or 0, table.measure, page_size) or 0)
        if kind == "mapped":
            amount = 0
        if kind in ("free", "all") and freed is not None:
            amount = min(amount, freed)
        return amount / 2 if kind in ("free", "all", "again") else amount

    tops = [(table, table.changes[0]) for table in comparison.changed]
    return sorted(tops, key=rank, reverse=True)


def _freed(comparison: Comparison, page_size: int | None) -> int | None:
    """By how many bytes free memory differs, that on the CPUs' lists included."""
    whole = 0
    for name in ("zones", "pcp_pages"):
        table = next((each for each in comparison.tables if each.name == name), None)
        if table is None or table.totals is None:
            return None
        differs = bytes_of(table.totals[1] - table.totals[0], table.measure, page_size)
        if differs is None:
            return None
        whole += differs
    return abs(whole)
