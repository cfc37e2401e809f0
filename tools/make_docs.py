# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Writes what is derived from the declarations of tables and sections: ``docs/tables.md``, and the
list of sections that are commands of drgn, for who may not import every probe to find them; and in
``docs/kernels.md`` what the lab's kernels have shown.
"""

import dataclasses
from collections import Counter
from pathlib import Path

import kernel_matrix

from mmscope.drgn.sections.registry import SECTIONS, modules
from mmscope.drgn.sections.section import Section
from mmscope.drgn.tables.rows import Column, columns, csv_line
from mmscope.drgn.tables.table import Table
from mmscope.reports.bundle.declared import TABLES

ROOT = Path(__file__).resolve().parent.parent
# From how many tables on a column with the same meaning is explained once, for all of them.
COMMON = 3


def drgn_commands() -> str:
    """``reports/commands/drgn_commands.csv``."""
    text = csv_line(("name", "section", "description", "top", "picks", "place"))
    for section in SECTIONS.values():
        command = section.command
        name, picks = command.name or section.name, command.picks or None
        text += csv_line((name, section.name, command.about, command.top, picks, place(section)))
    return text


def place(section: Section) -> str:
    """Where a section is declared: ``module:NAME``."""
    (found,) = (
        f"{module.__name__}:{name}"
        for module in modules()
        for name, value in vars(module).items()
        if value is section
    )
    return found


def described(table: Table, common: set[tuple[str, str]], twin: Table | None) -> str:
    """A table's part of ``docs/tables.md``."""
    shared, as_twin, lines = [], [], []
    for at in columns(table.row):
        if not at.help or (at.name, at.help) in common:
            shared.append(name_of(at))
        elif twin and at.help == meanings(twin).get(at.name):
            as_twin.append(name_of(at))
        else:
            lines.append(f"{title(at)}|{at.help.replace('|', chr(92) + '|')}")
    parts = [f"## {table.name}\n\n{first_line(table.row)}\n"]
    if lines:
        parts.append("\n".join(["column|meaning", "---|---", *lines, ""]))
    if twin and as_twin:
        parts.append(f"As in [{twin.name}](#{twin.name}): {', '.join(as_twin)}.\n")
    if shared:
        parts.append(f"Shared: {', '.join(shared)}.\n")
    return "\n".join(parts)


def meanings(table: Table) -> dict[str, str]:
    """What each column means."""
    return {at.name: at.help for at in columns(table.row)}


def twin_of(table: Table, common: set[tuple[str, str]], before: list[Table]) -> Table | None:
    """The table before it that has most columns with the same meaning: two at least."""
    own = meanings(table).items() - common
    found = max(before, key=lambda other: len(own & meanings(other).items()), default=None)
    return found if found and len(own & meanings(found).items()) > 1 else None


def name_of(column: Column) -> str:
    """The name of a column, bold if it names a row, with a question mark if it may be empty."""
    name = f"**{column.name}**" if column.key else column.name
    return f"{name}{'?' if column.nullable else ''}"


def title(column: Column) -> str:
    """The name of a column, its type but of integers, and its unit where the name lacks it."""
    said = "" if column.type == "integer" else f":{column.type}"
    unit = "" if column.name.endswith(column.unit) else f" ({column.unit})"
    return f"{name_of(column)}{said}{unit}"


def first_line(row: type) -> str:
    """What a row is, from its docstring."""
    return " ".join((row.__doc__ or "").strip().split("\n\n")[0].split())


def tables() -> str:
    """``docs/tables.md``."""
    rows = Counter((at.name, at.help) for table in TABLES.values() for at in columns(table.row))
    # Of two meanings of a name the more common one, so that the other stands where it holds.
    most = {name: (name, said) for (name, said), _ in reversed(rows.most_common())}
    common = {column for column in most.values() if rows[column] >= COMMON}
    kinds = {(at.name, at.help): at for table in TABLES.values() for at in columns(table.row)}
    head = """\
# Tables

Every table of a bundle, and its columns. Names and meanings are a public interface:
[the bundle's format](bundle-format.md) says what may change when. `mmscope show TABLE BUNDLE`
prints one.

- **Bold** columns name a row: two bundles are joined on them.
- `?`: may be empty. `name:string`: its type; without one: an integer.
- Columns listed as *shared* have the same meaning in several tables:

column|meaning
---|---"""
    shared = [
        f"{title(dataclasses.replace(kinds[at], key=False, nullable=False))}|{at[1]}"
        for at in sorted(common)
    ]
    every = [table for _, table in sorted(TABLES.items())]
    parts = (
        described(table, common, twin_of(table, common, every[:at]))
        for at, table in enumerate(every)
    )
    end = "Made by `make docs` from the declarations.\n"
    return "\n".join([head, *shared, "", *parts, end])


MADE = {
    "docs/tables.md": tables,
    "docs/kernels.md": kernel_matrix.document,
    "reports/commands/drgn_commands.csv": drgn_commands,
}


def main() -> None:
    """Write the files; those that are right already stay as they are."""
    for name, make in MADE.items():
        path, text = ROOT / name, make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(name)


if __name__ == "__main__":
    main()
