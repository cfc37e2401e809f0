# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A picture: what is drawn of a table, declared where it is drawn.

A picture shows wherever its table does, above it. ``templates/picture_<name>.html`` has its HTML,
``templates/report.css`` its look.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Row]
Tables = dict[str, Sequence[Any]]  # rows by table, and folded stacks by file
Draw = Callable[[Tables, int | None], Any]
# Of a table: a column, and which of its values are wanted, by what other tables say.
Part = tuple[str, Callable[[Tables], Container[Any]]]


@dataclass(frozen=True, slots=True)
class Picture:
    """
    A picture of a table.

    :ivar name: of its template, ``picture_<name>.html``.
    :ivar table: a bundle without it, or without rows in it, has no such picture.
    :ivar columns: what the drawing needs of that table.
    :ivar draw: from tables and the page size (None: unknown) to what the template calls ``data``.
        It may fail on any value of a stranger's table; that costs this picture only. Where it sees
        that rows cannot be, it raises ``Damaged`` and says why; any other failure is a fault of
        mmscope.
    :ivar others: tables that it looks at besides, where the bundle has them.
    :ivar parts: the same of long tables: which values of which column it needs.
    :ivar apart: a column of that table: where drawing fails, what fails of its values by itself is
        left out, and the others are drawn.
    """

    name: str
    table: str
    columns: frozenset[str]
    draw: Draw
    others: frozenset[str] = frozenset()
    parts: Mapping[str, Part] = field(default_factory=dict)
    apart: str = ""

    @property
    def tables(self) -> frozenset[str]:
        """All that it looks at."""
        return self.others.union((self.table,), self.parts)


def picture(
    table: str, columns: str, others: str = "", **options: Any
) -> Callable[[Draw], Picture]:
    """
    Declare the function below as the picture of its name.

    :param columns: names with spaces between them; *others* likewise.
    :param options: further fields of :class:`Picture`.
    """

    def declare(draw: Draw) -> Picture:
        needed, besides = frozenset(columns.split()), frozenset(others.split())
        return Picture(draw.__name__, table, needed, draw, besides, **options)

    return declare
