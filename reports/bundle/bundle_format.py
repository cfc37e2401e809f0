# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a bundle of an older mmscope lacks.

``docs/bundle-format.md`` has the rules. Within one format a column is never renamed or retyped, and
keeps its meaning; sections, tables, columns and rows may be added. Each says with ``since``, where
it is declared, with which version it came. A bundle of an older format or version is read as it is,
and what its mmscope did not write is said. A bundle of a newer format is refused, because a column
may mean something else there.

Cannot know: what a version that is not a release wrote.
"""

import contextlib
import re
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from mmscope import __version__
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.tables.table import Heading, Table
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError, version_number


def headings() -> list[Heading]:
    """All sections that a bundle may have."""
    # Who looks at a table alone need not know them.
    from mmscope.reports.bundle.declared import HEADINGS

    return list(HEADINGS.values())


def came_after(version: str) -> Callable[[str], bool]:
    """True if something came after a version, by its ``since``; False if that is not a version."""
    written = version_number(version)
    return lambda since: written is not None and (version_number(since) or ()) > written


@dataclass(frozen=True, slots=True)
class Lacking:
    """What a bundle lacks because its mmscope did not write it. Each thing is named once."""

    sections: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)  # of sections that it has
    columns: list[str] = field(default_factory=list)  # table.column, of tables that it has
    # Table, column of its key and value, of tables that it has.
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def listed(self) -> list[tuple[str, list[str]]]:
        """Each kind of thing, in the singular, and all names of it."""
        rows = [f"{table}: {value}" for table, _, value in self.rows]
        kinds = ("section", self.sections), ("table", self.tables), ("column", self.columns)
        return [(kind, names) for kind, names in (*kinds, ("row", rows)) if names]

    @property
    def words(self) -> str:
        """All of it in a line, columns and rows by their table; empty if it lacks nothing."""
        said = []
        for kind, names in self.listed:
            if kind in ("column", "row"):
                kind += "s of"
                names = list(dict.fromkeys(re.split("[.:]", name)[0] for name in names))
            elif len(names) > 1:
                kind += "s"
            said.append(f"{kind} {', '.join(names)}")
        return "; ".join(said)


def lacking(bundle: Bundle) -> Lacking:
    """
    What the bundle lacks of what this version writes.

    A section that was absent, or not asked for, does not count: its status says that.
    """
    found, later = Lacking(), came_after(bundle.version)
    if not later(__version__):
        return found  # without a look at what is declared, which imports every probe
    sections = {section.section for section in bundle.sections}
    sections |= {table.section for table in bundle.tables.values()}
    for heading in headings():
        if heading.name not in sections:
            found.sections.extend([heading.name] if later(heading.since) else [])
            continue
        for table in heading.tables:
            if table.name in bundle.tables:
                _compare(bundle, table, later, found)
            elif later(table.since or heading.since):
                found.tables.append(table.name)
    return found


def _compare(bundle: Bundle, table: Table, later: Callable[[str], bool], found: Lacking) -> None:
    """Add the columns and rows that a table of the bundle lacks."""
    there = {c.name for c in bundle.tables[table.name].columns}
    declared = columns(table.row)
    found.columns.extend(
        f"{table.name}.{c.name}" for c in declared if later(c.since) and c.name not in there
    )
    for since, values in table.rows_since.items():
        if later(since):
            key = next(c.name for c in declared if c.key)
            has = _values(bundle, table.name, key, values)
            found.rows.extend((table.name, key, value) for value in values if value not in has)


def _values(bundle: Bundle, table: str, key: str, values: tuple[str, ...]) -> Container[str]:
    """Which of these values a column has; all of them where there is nothing to be said."""
    if key in {c.name for c in bundle.tables[table].columns}:
        with contextlib.suppress(BundleError):  # which is said where the table is shown
            return {row[key] for row in bundle.rows(table, (key, values))}
    return values


def not_written(bundle: Bundle) -> str:
    """What the bundle lacks since an older mmscope wrote it, in a line; empty if nothing."""
    words = lacking(bundle).words
    return f"mmscope {bundle.version} did not write {words}" if words else ""


def reasons(bundle: Bundle) -> dict[str, str]:
    """Why it lacks what it lacks: by ``section NAME``, ``table NAME`` and ``table.column``."""
    found = lacking(bundle)
    names = [f"section {name}" for name in found.sections]
    names += [f"table {name}" for name in found.tables] + found.columns
    return dict.fromkeys(names, f"mmscope {bundle.version} did not write it")


def new_tables(bundle: Bundle) -> set[str]:
    """Tables that came after the version that wrote the bundle."""
    later = came_after(bundle.version)
    return {
        table.name
        for heading in headings()
        for table in heading.tables
        if later(table.since or heading.since)
    }
