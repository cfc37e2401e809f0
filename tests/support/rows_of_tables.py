# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rows as tables of a bundle: the type of a row says which table it is of, and the declarations say
the rest.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from mmscope.drgn.tables.table import Table
from mmscope.reports.bundle.declared import HEADINGS, TABLES

# Title, row type, rows and section.
Contents = tuple[str, type, list[Any], str]

_TABLES_OF_A_ROW = Counter(table.row for table in TABLES.values())
TABLE_OF: dict[type, Table] = {
    table.row: table for table in TABLES.values() if _TABLES_OF_A_ROW[table.row] == 1
}
SECTION_OF: dict[str, str] = {
    table.name: heading.name for heading in HEADINGS.values() for table in heading.tables
}


def rows_by_type(rows: Iterable[Any], empty: Iterable[type] = ()) -> dict[type, list[Any]]:
    """Rows by their type, and types of which there is none."""
    found: dict[type, list[Any]] = {}
    for row in rows:
        found.setdefault(type(row), []).append(row)
    return found | {row_type: [] for row_type in empty if row_type not in found}


def tables_of_rows(rows: Iterable[Any], empty: Iterable[type] = ()) -> dict[str, Contents]:
    """The tables of rows, by name, and empty ones of these row types."""
    found: dict[str, Contents] = {}
    for row_type, of_type in rows_by_type(rows, empty).items():
        table = TABLE_OF[row_type]
        found[table.name] = (table.title, row_type, of_type, SECTION_OF[table.name])
    return found


def tables_of_sections(*sections: str) -> Sequence[Table]:
    """The tables that sections declare."""
    return [table for name in sections for table in HEADINGS[name].tables]
