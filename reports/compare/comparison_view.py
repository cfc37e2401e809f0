# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Two bundles held against each other, as they are shown: the sentence, and rows of text.

Everything here is plain text; the templates and the terminal make what is hostile in it visible.
"""

from dataclasses import dataclass
from typing import Any

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.tables.rows import Column
from mmscope.reports.compare.comparison import Comparison, most_changed, set_differently
from mmscope.reports.compare.finding_changes import CHANGE_WORDS, CHANGES, FindingChange
from mmscope.reports.compare.ledger_changes import LEDGER, LedgerChanges
from mmscope.reports.compare.table_changes import Change, TableChanges, known
from mmscope.reports.drawing.cells import Cell, cell
from mmscope.reports.drawing.class_looks import label
from mmscope.reports.drawing.row_names import MAX_NAME, name_of
from mmscope.reports.pictures.memory_bar import segments
from mmscope.reports.pictures.picture import Row

# Rows of what changed most, over all tables.
MOST = 8
# Other columns of a row that differ; a row of a large struct may differ in twenty.
MOST_CLASSES = 3  # in the headline
MAX_OTHERS = 4


@dataclass(frozen=True, slots=True)
class TableView:
    """A table with what differs in it."""

    changes: TableChanges
    # Of each: what became of it, its name, before, after, the difference, other columns.
    rows: list[tuple[str, list[Cell], Cell, Cell, Cell, str]]
    summary: str
    totals: str  # all rows together, empty if they do not add up
    amounts: bool  # True if there is one column that before and after are of


@dataclass(frozen=True, slots=True)
class Top:
    """The row of a table that changed most."""

    table: TableChanges
    what: str
    before: str
    after: str
    difference: str


@dataclass(frozen=True, slots=True)
class View:
    """A comparison as it is shown."""

    comparison: Comparison
    sentence: str
    ledger: str  # where the memory went
    bars: list[list[Row]]  # all memory, before and after
    tops: list[Top]
    tables: list[TableView]
    unchanged: list[TableChanges]
    findings: list[FindingChange]  # those that are not the same
    same: int  # findings
    not_compared: list[tuple[str, list[str]]]  # why, tables


def view(comparison: Comparison) -> View:
    """Everything that the page and the terminal show of a comparison."""
    page_size = comparison.bundles[1].page_size
    tops = [top(table, change, page_size) for table, change in most_changed(comparison, page_size)]
    switched = []
    for table, change, *values in set_differently(comparison):
        name = name_of(table.what, change.what)
        name += "" if table.name == "settings" else f", {known(table.name).setting}"
        before, after = (
            "unknown" if value is None else cut(str(value), MAX_NAME) for value in values
        )
        switched.append(Top(table, name, before, after, ""))
    # Of a table that is there with what was set, nothing else is worth a line here.
    tops = [row for row in tops if row.table.name not in {top.table.name for top in switched}]
    reasons: dict[str, list[str]] = {}
    for name, why in comparison.not_compared:
        reasons.setdefault(why, []).append(name)
    differing = [item for item in comparison.findings if item.change != "same"]
    return View(
        comparison,
        sentence(comparison, switched, tops),
        ledger_sentence(comparison.ledger),
        [segments(list(bundle.rows(LEDGER))) for bundle in comparison.bundles]
        if comparison.ledger
        else [],
        [*switched[:MAX_OTHERS], *tops[:MOST]],
        [table_view(table, page_size, comparison.relation.seconds) for table in comparison.changed],
        [table for table in comparison.tables if not table.differing],
        differing,
        len(comparison.findings) - len(differing),
        list(reasons.items()),
    )


def ledger_sentence(ledger: LedgerChanges | None) -> str:
    """The classes of memory that changed, in a sentence; empty where none did."""
    if ledger is None or not ledger.steps:
        return ""
    said = []
    for step in ledger.steps[:MAX_OTHERS]:
        inside = f" ({step.owner}: {display.signed_size(step.owner_bytes)})" if step.owner else ""
        said.append(f"{label(step.name)} {display.signed_size(step.difference)}{inside}")
    rest = ledger.steps[MAX_OTHERS:]
    if rest:
        others = display.plural(len(rest), "other class", "other classes")
        said.append(f"{others} {display.signed_size(-sum(step.freed for step in rest))}")
    return (
        f"Free memory: {display.size(ledger.before)} → {display.size(ledger.after)} "
        f"({display.signed_size(ledger.after - ledger.before)}): {', '.join(said)}."
    )


def sentence(comparison: Comparison, switched: list[Top], tops: list[Top]) -> str:
    """The settings that differ and what changed most, in a sentence."""
    counted = [
        f"{display.plural(number, 'finding')} {CHANGE_WORDS.get(change, change)}"
        for change in CHANGES[:-1]
        if (number := sum(item.change == change for item in comparison.findings))
    ]
    said = ", ".join(counted) or "no finding came, went, or got better or worse"
    if switched:
        first = [f"{s.table.title}, {s.what}: {s.before} → {s.after}" for s in switched[:2]]
        more = f" and {len(switched) - 2} more" if len(switched) > 2 else ""
        said += f"; settings changed: {'; '.join(first)}{more}"
    if comparison.ledger and comparison.ledger.steps:
        # Who has the memory, not where it lies.
        return f"Against the baseline: {said}; most changed: {_most(comparison.ledger)}."
    if tops:
        most = tops[0]
        change = f" ({most.difference})" if most.difference else ""
        said += f"; most changed: {most.table.title}, {most.what}: {most.before} → {most.after}"
        return f"Against the baseline: {said}{change}."
    no = "no other row" if switched else "no row"
    compared = display.plural(len(comparison.tables), "table")
    return f"Against the baseline: {said}; {no} of the {compared} compared differs."


def _most(ledger: LedgerChanges) -> str:
    """Classes of memory that changed most, what grew first, with the owner of most of it."""
    first, *more = sorted(ledger.steps[:MOST_CLASSES], key=lambda step: -step.difference)
    owner = f" ({first.owner})" if first.owner else ""
    said = [f"{label(first.name)} {display.signed_size(first.difference)}{owner}"]
    return ", ".join(
        (*said, *(f"{label(s.name)} {display.signed_size(s.difference)}" for s in more))
    )


def top(table: TableChanges, change: Change, page_size: int | None) -> Top:
    """The row that changed most, as text."""
    before, after = amounts(table, change, page_size)
    differs = difference(change.difference, table.measure, page_size)
    in_bytes = alone(differs, table.measure, change.difference)
    # The exact number as well: one leaked page shows among many.
    exact = f", {differs.text} pages" if in_bytes != differs.text else ""
    return Top(
        table,
        name_of(table.what, change.what),
        alone(before, table.measure, change.before),
        alone(after, table.measure, change.after),
        in_bytes + exact,
    )


def alone(shown: Cell, column: Column | None, value: object) -> str:
    """An amount in running text or beside those of other tables, where pages say their size."""
    in_pages = column is not None and column.unit == "pages" and value is not None
    return shown.title if in_pages and shown.title else shown.text


def table_view(table: TableChanges, page_size: int | None, seconds: float | None) -> TableView:
    """
    A table's rows as text.

    :param seconds: between the readings, if they are of one boot.
    """
    # Without a measure, the one column that differs takes its place.
    differing = {column.name for change in table.changes for column, _, _ in change.others}
    single = table.measure is None and len(differing) == 1
    rows = []
    for change in table.changes:
        also = [] if single else others(change, page_size)
        if change.counted and seconds and change.change in ("grew", "shrank"):
            # How fast it was counted, which takes two readings of one boot.
            also.insert(0, f"{display.count((change.difference or 0) / seconds)} a second")
        what = [cell(v, c, page_size) for v, c in zip(change.what, table.what, strict=True)]
        differs = difference(change.difference, table.measure, page_size)
        both = amounts(table, change, page_size)
        rows.append((change.change, what, *both, differs, "; ".join(also)))
    totals = ""
    if table.totals is not None and table.measure is not None:
        totals = " → ".join(
            alone(cell(total, table.measure, page_size), table.measure, total)
            for total in table.totals
        )
    summary = ", ".join(f"{number:,} {change}" for change, number in table.counts.items() if number)
    return TableView(table, rows, summary, totals, table.measure is not None or single)


def amounts(table: TableChanges, change: Change, page_size: int | None) -> tuple[Cell, Cell]:
    """A row's measure in both; words where the row is in one of them only."""
    both = []
    for value, nothing, place in ((change.before, "new", 1), (change.after, "gone", 2)):
        if change.change == nothing:
            both.append(Cell("none", f"{nothing}: there is no such row"))
        elif table.measure is not None:
            both.append(cell(value, table.measure, page_size))
        elif change.others:
            other = change.others[0]
            both.append(Cell(shown(other[place], other[0], page_size)))
        else:
            both.append(Cell("there"))
    return both[0], both[1]


def difference(value: int | float | None, column: Column | None, page_size: int | None) -> Cell:
    """A difference with its sign."""
    if value is None or column is None:
        return Cell("")
    sign = "+" if value > 0 else "-" if value < 0 else ""
    plain = cell(abs(value), column, page_size)
    title = f"{sign}{plain.title}" if plain.title else ""
    return Cell(f"{sign}{plain.text}", title, value)


def others(change: Change, page_size: int | None) -> list[str]:
    """Other columns that differ, in words."""
    words = [
        f"{column.name} {shown(before, column, page_size)} → {shown(after, column, page_size)}"
        for column, before, after in change.others[:MAX_OTHERS]
    ]
    more = len(change.others) - MAX_OTHERS
    return [*words, f"{more} more"] if more > 0 else words


def shown(value: Any, column: Column, page_size: int | None) -> str:
    """A value in running text."""
    if value is None:
        return "unknown"
    return cut(cell(value, column, page_size).text, MAX_NAME)
