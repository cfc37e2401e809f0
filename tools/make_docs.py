# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Writes what is derived from the declarations of tables and sections: ``docs/tables.md``, and the
list of sections that are commands of drgn, for who may not import every probe to find them; and in
``docs/kernels.md`` what the lab's kernels have shown.
"""

from collections import Counter
from pathlib import Path

import kernel_matrix

from mmscope.drgn.sections.registry import SECTIONS, modules
from mmscope.drgn.sections.section import Section
from mmscope.drgn.tables.rows import Column, columns, csv_line
from mmscope.drgn.tables.table import Table
from mmscope.reports.bundle.declared import TABLES

ROOT = Path(__file__).resolve().parent.parent
# Tables that have a column with the same meaning, for it to be explained once.
COMMON = 5


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


def described(table: Table, common: dict[tuple[str, str], int]) -> str:
    """A table's part of ``docs/tables.md``."""
    lines = [f"### {table.name}\n", f"{first_line(table.row)}\n", "column | meaning", "---|---"]
    for column in columns(table.row):
        meaning = "" if (column.name, column.help) in common else column.help
        lines.append(f"{title(column)} | {meaning.replace('|', chr(92) + '|')}".rstrip())
    return "\n".join([*lines, ""])


def title(column: Column) -> str:
    """The name of a column, its type, and its unit where the name does not end in it."""
    name = f"**{column.name}**" if column.key else column.name
    unit = "" if column.name.endswith(column.unit) else f", {column.unit}"
    return f"{name} {column.type}{'?' if column.nullable else ''}{unit}"


def first_line(row: type) -> str:
    """What a row is, from its docstring."""
    return " ".join((row.__doc__ or "").strip().split("\n\n")[0].split())


def tables() -> str:
    """``docs/tables.md``."""
    rows = Counter((at.name, at.help) for table in TABLES.values() for at in columns(table.row))
    # Of two meanings of a name the more common one, so that the other stands where it holds.
    most = {name: (name, said) for (name, said), _ in reversed(rows.most_common())}
    common = {column: rows[column] for column in most.values() if rows[column] >= COMMON}
    head = (
        "# Tables\n\nNames and meanings are a public interface: see [the bundle's format]"
        "(bundle-format.md). Columns in bold name a row, so that two bundles can be joined on "
        "them. A question mark: the cell may be empty. Made by `make docs` from the declarations."
        "\n\nA column that has no meaning beside it has this one:\n\ncolumn | meaning\n---|---"
    )
    shared = [f"{name} | {meaning}" for name, meaning in common]
    parts = (described(table, common) for _, table in sorted(TABLES.items()))
    return "\n".join([head, *shared, "", *parts])


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
