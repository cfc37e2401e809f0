# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tables and sections declare, and what is derived from it."""

import ast
import re
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import make_docs
import pytest

from mmscope import FOLDER
from mmscope.drgn.sections import registry
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.prices import PRICES
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.sections.section import Filled, to_look_at
from mmscope.drgn.tables.rows import column, columns, table_row
from mmscope.drgn.tables.table import Table
from mmscope.reports.bundle.declared import HEADINGS, TABLES
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.commands.drgn_plugin import MAIN, PICKS, say_what_prints

DRGN = FOLDER / "drgn"
PROBES = sorted(DRGN.rglob("*.py"))


@pytest.mark.parametrize("name", make_docs.MADE)
def test_what_is_made_of_the_declarations_is_up_to_date(name: str) -> None:
    assert (make_docs.ROOT / name).read_text() == make_docs.MADE[name](), "make docs"


@table_row
class Named:
    name: str = column(key=True)
    pages: int | None = column(unit="pages")


@dataclass(frozen=True)
class Frozen:
    name: str = column(key=True)
    pages: int | None = column(unit="pages")


def test_a_terminal_leaves_out_the_rows_of_0_that_a_table_says() -> None:
    rows = [Named("a", 0), Named("b", 2), Named("c", 0), Named("d", 3)]
    whole = Filled(Table("named", "Named", Named), rows)
    short = Filled(Table("named", "Named", Named, left_out=("pages", "empty ones")), rows)
    (shown,) = to_look_at([whole], None)
    assert (shown.title, shown.rows) == ("", rows)
    (shown,) = to_look_at([short], None)
    assert (shown.title, shown.rows) == ("Named, 2 empty ones left out", [rows[1], rows[3]])
    (shown,) = to_look_at([short], 1)
    assert shown.title == "Named, 2 empty ones left out: the first 1 of 2"


@pytest.mark.parametrize("table", [table for table in TABLES.values() if table.left_out])
def test_what_is_left_out_goes_by_a_number_of_the_row(table: Table) -> None:
    kinds = {each.name: each.type for each in columns(table.row)}
    assert table.left_out and kinds[table.left_out[0]] == "integer"


def test_a_row_is_compared_and_shown_as_a_frozen_dataclass_is() -> None:
    for cells in (("a", 1), ("a", None), ("b", 1)):
        row, frozen = Named(*cells), Frozen(*cells)
        assert repr(row) == repr(frozen).replace("Frozen", "Named")
        assert (astuple(row), hash(row)) == (astuple(frozen), hash(frozen))
        assert (row == Named("a", 1)) is (frozen == Frozen("a", 1))
        assert row not in (frozen, cells, None)
    assert replace(Named("a", 1), pages=2) == Named("a", 2)
    assert columns(Named) == columns(Frozen)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'pages'"):
        Named("a")


def test_every_section_has_a_name_of_its_own_and_says_what_it_reads() -> None:
    names = [section.name for section in registry.in_order()]
    names += [heading.name for heading in HEADINGS.values() if heading.name not in SECTIONS]
    assert len(set(names)) == len(names) > 20
    for section in SECTIONS.values():
        assert set(section.reads) <= PRICES.keys()
        assert not section.command.picks or section.command.picks in PICKS


def test_the_order_has_sections_and_folders_each_once() -> None:
    known = {*SECTIONS, *(f"{folder}/" for folder in registry.folders())}
    assert set(registry.ORDER) <= known
    assert len(set(registry.ORDER)) == len(registry.ORDER)


def test_a_section_without_an_entry_stands_with_those_of_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_free = [section.name for section in registry.sections_of("free")]
    assert of_free[0] == "zones" and len(of_free) > 3 and not set(of_free) & set(registry.ORDER)
    monkeypatch.setattr(registry, "ORDER", ("pageblocks", *registry.ORDER))
    in_order = [section.name for section in registry.in_order()]
    assert in_order[0] == "pageblocks"
    rest = [name for name in of_free if name != "pageblocks"]
    at = in_order.index("zones")
    assert in_order[at : at + len(rest)] == rest


def test_a_folder_without_a_place_in_the_order_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without = tuple(entry for entry in registry.ORDER if entry != "free/")
    monkeypatch.setattr(registry, "ORDER", without)
    with pytest.raises(
        ValueError, match=r'of drgn/free has no place .*: give "free/" one in ORDER'
    ):
        registry.in_order()


def test_every_table_is_of_one_section() -> None:
    named = [table.name for heading in HEADINGS.values() for table in heading.tables]
    assert len(set(named)) == len(named)
    # Every bundle has these, and they are of the reading as a whole.
    assert TABLES.keys() - set(named) == {"sections", "impossible_values"}


def test_sections_have_the_tables_that_they_declare() -> None:
    read = 0
    for section in SECTIONS.values():
        _, found = run_section(section, Files(make_docs.ROOT / "tests" / "data" / "7.2"))
        assert found.by_name.keys() <= {table.name for table in section.tables}, section.name
        read += len(found.tables)
    assert read >= 10


def test_what_a_comparison_needs_is_a_column_of_the_table() -> None:
    for table in TABLES.values():
        here = {column.name for column in columns(table.row)}
        named = {table.measure, table.setting, *table.lasting} - {""}
        assert named <= here, table.name


def scripts() -> list[tuple[Path, list[str]]]:
    """The probes that run as scripts: a section, and which of its tables."""
    found = []
    for path in PROBES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print_section":
                found.append((path, [ast.literal_eval(argument) for argument in node.args]))
    return found


def test_scripts_print_sections_and_tables_that_there_are() -> None:
    assert len(scripts()) > 20
    for path, (section, *tables) in scripts():
        assert section in SECTIONS, path
        assert set(tables) <= TABLES.keys(), path


def test_each_file_with_a_section_or_a_table_of_one_is_a_script() -> None:
    rows = {table.row.__module__ for section in SECTIONS.values() for table in section.tables}
    for path in PROBES:
        module = f"mmscope.drgn.{'.'.join(path.relative_to(DRGN).with_suffix('').parts)}"
        if module in rows or re.search(r"^\w+ = Section\($", path.read_text(), re.MULTILINE):
            assert MAIN in path.read_text(), path


def test_a_file_that_declares_several_sections_prints_them_all() -> None:
    for path in PROBES:
        if "print_sections(" not in path.read_text():
            continue
        declared = re.findall(r'^\w+ = Section\(\n    name="(\w+)"', path.read_text(), re.MULTILINE)
        printed = path.read_text().partition(MAIN)[2]
        assert sorted(re.findall(r'"(\w+)"', printed)) == sorted(declared), path


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("free/block_heads.py", "prints nothing; in its folder these do: free_lists.py, "),
        ("free/__init__.py", "prints nothing; in its folder these do: free_lists.py, "),
        ("reading/cpus.py", "prints nothing; drgn/free/zones.py is a file that does"),
        ("free/zones.py", ""),
        ("free", ""),
        ("../tests/drgn/sections/test_declarations.py", ""),
        ("free/gone.py", ""),
    ],
)
def test_a_file_with_nothing_to_print_names_those_that_have(
    script: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [str(DRGN / script)])
    say_what_prints()
    printed = capsys.readouterr()
    assert not printed.out and printed.err.count("\n") == bool(said)
    assert said in printed.err


def test_a_comparison_of_two_boots_has_what_picks_the_rows_of_owners() -> None:
    for table in TABLES.values():
        picks = {inside.where[0] for inside in table.inside if inside.where}
        assert not table.lasting or picks <= set(table.lasting), table.name
