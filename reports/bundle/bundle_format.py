# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tables and columns that a bundle of an older mmscope lacks.

``docs/bundle-format.md`` has the rules. Within one format a column is never renamed or retyped, and
keeps its meaning; sections, tables, columns and rows may be added. Each says with ``since``, where
it is declared, with which version it came. A bundle of an older format or version is read as it is,
and what its mmscope did not write is said. A bundle of a newer format is refused, because a column
may mean something else there.

Cannot know: what a version that is not a release wrote.
"""

import contextlib
import re
from collections.abc import Callable, Iterator

from mmscope import __version__
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.tables.table import Heading, Table
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError, version_number

KINDS = ("section", "table", "column", "row")


def headings() -> list[Heading]:
    """All sections that a bundle may have."""
    # Who looks at a table alone need not know them.
    from mmscope.reports.bundle.declared import HEADINGS

    return list(HEADINGS.values())


def came_after(version: str) -> Callable[[str], bool]:
    """True if something came after a version, by its ``since``; False if that is not a version."""
    written = version_number(version)
    return lambda since: written is not None and (version_number(since) or ()) > written


def lacking(bundle: Bundle) -> list[tuple[str, ...]]:
    """
    List what the bundle lacks of what this version writes, each thing once: ``section``, ``table``,
    ``column`` or ``row``, and where that would be: (name), (name), (table, column), (table, column
    of its key, value).

    A section that was absent, or not asked for, does not count: its status says that.
    """
    later = came_after(bundle.version)
    if not later(__version__):
        return []  # without a look at what is declared, which imports every probe
    sections = {section.section for section in bundle.sections}
    sections |= {table.section for table in bundle.tables.values()}
    found: list[tuple[str, ...]] = []
    for heading in headings():
        if heading.name in sections:
            for table in heading.tables:
                if table.name in bundle.tables:
                    found += _of_table(bundle, table, later)
                elif later(table.since or heading.since):
                    found.append(("table", table.name))
        elif later(heading.since):
            found.append(("section", heading.name))
    return sorted(found, key=lambda thing: KINDS.index(thing[0]))


def _of_table(
    bundle: Bundle, table: Table, later: Callable[[str], bool]
) -> Iterator[tuple[str, ...]]:
    """Columns and rows that a table of the bundle lacks."""
    there = bundle.tables[table.name].column_names
    declared = columns(table.row)
    for c in declared:
        if later(c.since) and c.name not in there:
            yield "column", table.name, c.name
    for since, values in table.rows_since.items():
        key = next(c.name for c in declared if c.key)
        if later(since) and key in there:
            with contextlib.suppress(BundleError):  # which is said where the table is shown
                here = {row[key] for row in bundle.rows(table.name, (key, values))}
                yield from (
                    ("row", table.name, key, value) for value in values if value not in here
                )


def listed(things: list[tuple[str, ...]]) -> list[tuple[str, list[str]]]:
    """Each kind of thing that a bundle lacks, in the singular, and all names of it."""
    names: dict[str, list[str]] = {}
    for kind, table, *place in things:
        name = f"{table}: {place[-1]}" if kind == "row" else ".".join((table, *place))
        names.setdefault(kind, []).append(name)
    return list(names.items())


def not_written(bundle: Bundle) -> str:
    """
    Say what the bundle lacks since an older mmscope wrote it, in a line, columns and rows by their
    table; empty if nothing.
    """
    said = []
    for kind, names in listed(lacking(bundle)):
        if kind in ("column", "row"):
            kind += "s of"
            names = list(dict.fromkeys(re.split("[.:]", name)[0] for name in names))
        elif len(names) > 1:
            kind += "s"
        said.append(f"{kind} {', '.join(names)}")
    return f"mmscope {bundle.version} did not write {'; '.join(said)}" if said else ""


def reasons(bundle: Bundle) -> dict[str, str]:
    """Reasons for what it lacks, by ``section NAME``, ``table NAME`` and ``table.column``."""
    names = [
        ".".join(place) if kind == "column" else f"{kind} {place[0]}"
        for kind, *place in lacking(bundle)
        if kind != "row"
    ]
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
