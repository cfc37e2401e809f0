# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The rows of a bundle's tables on which a finding stands.

A finding's file may name them, a table each: values that a column has, or ``least``, what it has at
least. ``$name`` is a column of the row that the finding's query found::

    [proof.free_blocks]
    node = "$node"
    migratetype = "HighAtomic"
    order = { least = "$thp_order" }

In tables that it does not name they are those that its needs name (``vm_counters.value where name =
'oom_kill'``), and those of its subject: of the zone, process or cache.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Of what a finding needs: a row of a table, by a name.
CONDITION = re.compile(r"where (\w+) = '([^']*)'")
# Column: a value, several of them, or {least: a value}.
Declared = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Proof:
    """
    Rows of a table.

    :ivar equal: columns, and the values of which each has one.
    :ivar least: columns, and what each has at least.
    """

    table: str
    equal: tuple[tuple[str, tuple[Any, ...]], ...]
    least: tuple[tuple[str, Any], ...] = ()

    @property
    def columns(self) -> set[str]:
        """Columns that a table must have."""
        return {name for name, _ in (*self.equal, *self.least)}

    def holds(self, row: Mapping[str, Any]) -> bool:
        """True if a row is one of them. What is unknown proves nothing."""
        return all(row[name] in values for name, values in self.equal) and all(
            row[name] is not None and row[name] >= value for name, value in self.least
        )


def proofs(
    declared: Declared, needs: Iterable[str], subject: Iterable[str], row: Mapping[str, Any]
) -> Iterator[Proof]:
    """Proofs of a finding, as its file declares them, for the row that its query found."""
    needed: dict[str, dict[str, list[str]]] = {}
    for need in needs:
        columns = needed.setdefault(need.partition(".")[0], {})
        for name, value in CONDITION.findall(need):
            columns.setdefault(name, []).append(value)
    named: dict[str, Mapping[str, Any]] = {t: columns for t, columns in needed.items() if columns}
    named |= declared
    for table, wanted_of in named.items():
        equal: list[tuple[str, tuple[Any, ...]]] = []
        least: list[tuple[str, Any]] = []
        for name, wanted in wanted_of.items():
            if isinstance(wanted, dict):
                least.append((name, _value(wanted["least"], row)))
            else:
                several = wanted if isinstance(wanted, list) else [wanted]
                equal.append((name, tuple(_value(value, row) for value in several)))
        if all(value is not None for _, value in least):
            yield Proof(table, tuple(equal), tuple(least))
    same = tuple((name, (row[name],)) for name in subject)
    if same and all(value is not None for _, (value,) in same):
        yield from (Proof(table, same) for table in needed if table not in named)


def _value(wanted: Any, row: Mapping[str, Any]) -> Any:
    named = isinstance(wanted, str) and wanted.startswith("$")
    return row[wanted[1:]] if named else wanted
