# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Changes of the memory ledger between two readings: its classes as steps from what was
free to what is free now. The steps add up, as the ledgers do.

Each class has the owner inside it that changed most, where a table of owners was compared
(:attr:`Table.inside`).
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from mmscope.drgn.tables.display import bar_percent
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError
from mmscope.reports.compare.table_changes import Change, TableChanges, known
from mmscope.reports.drawing.row_names import name_of

LEDGER, CHECKS = "memory_ledger", "ledger_checks"
FREE = "free"
ALL = "all memory"
MOST_INSIDE = 6  # owners of a class


@dataclass(frozen=True, slots=True)
class ClassStep:
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
    inside: tuple[tuple[str, str, int], ...] = ()  # (table, owner, difference) of the largest
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
    steps: list[ClassStep]
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
    steps = [ClassStep(ALL, *totals)] if totals[0] != totals[1] else []
    steps += [
        _with_owner(ClassStep(name, old[name], new[name]), tables, page_size)
        for name in old.keys() | new.keys()
        if name != FREE and old[name] != new[name]
    ]
    steps.sort(key=lambda step: (-abs(step.difference), step.name))
    # The bars side by side: each begins where free memory is after the one before.
    ends = [*itertools.accumulate((step.freed for step in steps), initial=old[FREE])]
    low, high = min(ends), max(ends)
    placed = [
        replace(
            step,
            at=bar_percent(min(pair) - low, high - low),
            width=bar_percent(abs(step.freed), high - low),
        )
        for step, pair in zip(steps, itertools.pairwise(ends), strict=True)
    ]
    return LedgerChanges(old[FREE], new[FREE], placed, low, high)


def _classes(bundle: Bundle) -> Counter[str] | None:
    """Bytes by class."""
    sums: Counter[str] = Counter()
    try:
        for row in bundle.rows_if_any(LEDGER):
            sums[str(row["owner"])] += row["bytes"]
    except (BundleError, KeyError, TypeError):  # damaged: which is said where it is shown
        return None
    return sums if sums else None


def _with_owner(
    step: ClassStep, tables: Sequence[TableChanges], page_size: int | None
) -> ClassStep:
    """
    The step with the owner inside the class that changed most, in the same direction. Where more
    than half of the step is one line of source, that says more than what its pages look like.
    """
    best, most = step, (False, 0)
    moved: list[tuple[str, str, int]] = []
    for table in tables:
        inside = [
            each for each in known(table.name).inside if each.owner == step.name and not each.by
        ]
        for each, change in itertools.product(inside, table.changes):
            named = dict(zip((column.name for column in table.what), change.what, strict=True))
            if each.where and named[each.where[0]] not in each.where[1]:
                continue
            grown = _bytes(table, change, each.column, page_size)
            if grown:
                # Without what the class is called: it stands before it.
                pairs = list(zip(table.what, change.what, strict=True))
                told = [pair for pair in pairs if pair[1] != step.name] or pairs
                owner = name_of([c for c, _ in told], tuple(value for _, value in told))
                moved.append((table.name, owner, grown))
            causes = not each.looks and 2 * abs(grown) > abs(step.difference)
            if grown * step.difference > 0 and (causes, abs(grown)) > most:
                most = (causes, abs(grown))
                best = replace(step, owner_bytes=grown, owner=owner, table=table.name)
    moved.sort(key=itemgetter(2), reverse=step.difference > 0)
    return replace(best, inside=tuple(moved[:MOST_INSIDE]))


def _bytes(table: TableChanges, change: Change, column: str, page_size: int | None) -> int:
    """By how many bytes a row's column differs; 0 where that is not known."""
    values = [(table.measure, change.before, change.after)] if table.measure else []
    for described, before, after in (*values, *change.others):
        if described.name == column:
            factor = {"bytes": 1, "pages": page_size}.get(described.unit)
            return int((after or 0) - (before or 0)) * (factor or 0)
    return 0
