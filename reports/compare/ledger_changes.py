# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Where the memory went between two readings: the classes of the ledger as steps from what was free
to what is free now. The steps add up, as the ledgers do.

Each class has the owner inside it that changed most, where a table of owners was compared
(:attr:`Table.inside`).
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmscope.drgn.tables.amounts import bar_percent
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.compare.table_changes import Change, TableChanges, known
from mmscope.reports.drawing.row_names import name_of

LEDGER, CHECKS = "memory_ledger", "ledger_checks"
FREE = "free"
ALL = "all memory"


@dataclass(frozen=True, slots=True)
class Step:
    """
    A class whose memory differs.

    :ivar freed: bytes that are free now because of it; below zero, taken.
    :ivar at, width: of its bar, per cent of the picture.
    """

    name: str
    before: int
    after: int
    owner: str = ""  # inside it, that changed most
    owner_bytes: int = 0
    table: str = ""  # of that owner
    at: float = 0.0
    width: float = 0.0

    @property
    def difference(self) -> int:
        return self.after - self.before

    @property
    def freed(self) -> int:
        return self.difference if self.name == ALL else -self.difference


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """From what was free to what is, in bytes."""

    before: int
    after: int
    steps: list[Step]
    low: int  # where the picture begins and ends: free memory
    high: int


def ledger_changes(
    before: Bundle, after: Bundle, tables: Sequence[TableChanges], page_size: int | None
) -> LedgerChanges | None:
    """
    The steps, the largest first; None where the two have no ledger of the same kind.

    :param tables: what changed in each table.
    """
    # From text it is the kernel's counters, with a remainder.
    if (CHECKS in before.tables) != (CHECKS in after.tables):
        return None
    old, new = _classes(before), _classes(after)
    if old is None or new is None:
        return None
    totals = old.total(), new.total()
    steps = [Step(ALL, *totals)] if totals[0] != totals[1] else []
    steps += [
        _with_owner(Step(name, old[name], new[name]), tables, page_size)
        for name in old.keys() | new.keys()
        if name != FREE and old[name] != new[name]
    ]
    steps.sort(key=lambda step: (-abs(step.difference), step.name))
    return _placed(old[FREE], new[FREE], steps)


def _classes(bundle: Bundle) -> Counter[str] | None:
    """Bytes by class."""
    if LEDGER not in bundle.tables:
        return None
    sums: Counter[str] = Counter()
    try:
        for row in bundle.rows(LEDGER):
            sums[str(row["owner"])] += row["bytes"]
    except (BundleError, KeyError, TypeError):  # damaged: which is said where it is shown
        return None
    return sums if sums else None


def _placed(before: int, after: int, steps: list[Step]) -> LedgerChanges:
    """The steps' bars side by side: each begins where free memory is after the one before."""
    at = [before]
    for step in steps:
        at.append(at[-1] + step.freed)
    low, high = min(at), max(at)
    placed = [
        replace(
            step,
            at=bar_percent(min(at[number : number + 2]) - low, high - low),
            width=bar_percent(abs(step.freed), high - low),
        )
        for number, step in enumerate(steps)
    ]
    return LedgerChanges(before, after, placed, low, high)


def _with_owner(step: Step, tables: Sequence[TableChanges], page_size: int | None) -> Step:
    """
    The step with the owner inside the class that changed most, in the same direction. Where more
    than half of the step is one line of source, that says more than what its pages look like.
    """
    best, rank = step, (False, 0)
    for table in tables:
        inside = [each for each in known(table.name).inside if each.owner == step.name]
        for each, change in itertools.product(inside, table.changes):
            column, values = each.where or ("", ())
            if column and _value(table, change, column) not in values:
                continue
            grown = _bytes(table, change, each.column, page_size)
            causes = not each.looks and 2 * abs(grown) > abs(step.difference)
            if grown * step.difference > 0 and (causes, abs(grown)) > rank:
                rank, owner = (causes, abs(grown)), name_of(table.what, change.what)
                best = replace(step, owner_bytes=grown, owner=owner, table=table.name)
    return best


def _value(table: TableChanges, change: Change, column: str) -> Any:
    """What a row has in a column of its name."""
    at = [each.name for each in table.what].index(column)
    return change.what[at]


def _bytes(table: TableChanges, change: Change, column: str, page_size: int | None) -> int:
    """By how many bytes a row's column differs; 0 where that is not known."""
    values = [(table.measure, change.before, change.after)] if table.measure else []
    for known_column, before, after in (*values, *change.others):
        if known_column.name != column:
            continue
        differs = (after or 0) - (before or 0)
        factor = {"bytes": 1, "pages": page_size}.get(known_column.unit)
        return int(differs) * (factor or 0)
    return 0
