# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Writes what is derived from the declarations of tables and sections: ``docs/tables.md``, and the
list of sections that are commands of drgn, for who may not import every probe to find them; and in
``docs/kernels.md`` what the lab's kernels have shown.
"""

from pathlib import Path

import kernel_matrix

from mmscope.drgn.sections.registry import SECTIONS, modules
from mmscope.drgn.sections.section import Section
from mmscope.drgn.tables.rows import columns, csv_line
from mmscope.drgn.tables.table import Table
from mmscope.reports.bundle.declared import TABLES

ROOT = Path(__file__).resolve().parent.parent


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


def described(table: Table) -> str:
    """A table's part of ``docs/tables.md``."""
    lines = [f"### {table.name}\n", f"{table.title}. {first_line(table.row)}\n"]
    lines += ["| column | type | unit | meaning |", "|---|---|---|---|"]
    for column in columns(table.row):
        kind = column.type + (" or empty" if column.nullable else "")
        name = f"**{column.name}**" if column.key else column.name
        meaning = column.help.replace("|", "\\|")
        lines.append(f"| {name} | {kind} | {column.unit} | {meaning} |")
    return "\n".join([*lines, ""])


def first_line(row: type) -> str:
    """What a row is, from its docstring."""
    return " ".join((row.__doc__ or "").strip().split("\n\n")[0].split())


def tables() -> str:
    """``docs/tables.md``."""
    head = (
        "# Tables\n\nNames and meanings are a public interface: see [the bundle's format]"
        "(bundle-format.md). Columns in bold name a row, so that two bundles can be joined on "
        "them. Made by `make docs` from the declarations.\n"
    )
    return "\n".join([head, *(described(table) for _, table in sorted(TABLES.items()))])


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
