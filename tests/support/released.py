# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What releases had: sections, tables, columns, and the rows that say with which version they came.

``python tests/support/released.py`` writes that of the newest release in CHANGELOG.md, when it is
made: ``data/declared/0.2.0.txt``. No line there is written by hand.
"""

import re
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent)]

from mmscope.drgn.tables.rows import columns  # noqa: E402
from mmscope.reports.bundle.declared import HEADINGS, TABLES  # noqa: E402

Version = tuple[int, ...]

CHANGELOG = TESTS.parent / "CHANGELOG.md"
FIRST = "0.1.0"  # what it had says no version


def releases() -> list[str]:
    """Every release, the newest first."""
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - ", CHANGELOG.read_text(), re.MULTILINE)


def number(version: str) -> Version:
    return tuple(map(int, version.split(".")))


def next_to(version: str) -> list[str]:
    """The versions that may follow one: as a rule the first of them."""
    major, minor, patch = number(version)
    return [f"{major}.{minor + 1}.0", f"{major}.{minor}.{patch + 1}", f"{major + 1}.0.0"]


def declared() -> dict[str, str]:
    """Everything that is declared, as a line of text, and the version that it says it came with."""
    of_section = {table.name: h.since for h in HEADINGS.values() for table in h.tables}
    found = {f"section {heading.name}": heading.since for heading in HEADINGS.values()}
    for table in TABLES.values():
        since = table.since or of_section.get(table.name, "")
        found[f"table {table.name}"] = since
        for column in columns(table.row):
            found[f"column {table.name}.{column.name}"] = column.since or since
        for came, rows in table.rows_since.items():
            found |= {f"row {table.name}: {row}": came for row in rows}
    return {name: since or FIRST for name, since in found.items()}


def listed(version: str) -> Path:
    """The file of a release."""
    return TESTS / "data" / "declared" / f"{version}.txt"


def main() -> None:
    path = listed(releases()[0])
    path.write_text("".join(f"{name}\n" for name in sorted(declared())))
    print(path)


if __name__ == "__main__":
    main()
