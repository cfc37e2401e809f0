# SPDX-License-Identifier: LGPL-2.1-or-later
"""A bundle is whole or absent, gives back what was written, and is trusted in nothing."""

import csv
import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import children
import duckdb
import frictionless
import pytest
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_rows import OK, TARGET, Plain, write

from mmscope.drgn.free.free_lists import FreeBlocks, FreeListCheck, MisplacedBlocks
from mmscope.drgn.free.pageblocks import PageblockRun, Pageblocks
from mmscope.drgn.free.pcp_lists import PcpCheck, PcpPages
from mmscope.drgn.free.zones import FreeAccounting, Zone
from mmscope.drgn.machine.settings import Setting
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle import bundle as bundle_module
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.cells import value_of
from mmscope.reports.bundle.database import failed, open_database
from mmscope.reports.bundle.description import BundleError, SectionResult
from mmscope.reports.bundle.writer import Writer

ROW_TYPES = [
    FreeBlocks, FreeListCheck, MisplacedBlocks, PageblockRun, Pageblocks, PcpCheck, PcpPages,
    Setting, VmCounter, FreeAccounting, Zone, SectionResult,
]  # fmt: skip


def values(kind: str) -> st.SearchStrategy[Any]:
    hostile = st.sampled_from(
        ["", " ", '"', '""', "a,b", "a\nb", "a\r\nb", "\r", "\n", "\0", "\ud800", "\x1b[31m",
         "NULL", "\\N", "-", "0", "nan", "=1+1", "+1", "-1", "@a",
         "'; drop table zones; --", "é\u202e", "\ufeff",
         "#", "\\"]
    )  # fmt: skip
    return {
        "string": st.one_of(hostile, st.text(st.characters(codec=None, exclude_categories=()))),
        "integer": st.integers(-(2**63) + 1, 2**63 - 1),
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "boolean": st.booleans(),
    }[kind]


def rows_of(row_type: type, most: int = 5) -> st.SearchStrategy[list[Any]]:
    cells = {
        c.name: st.none() | values(c.type) if c.nullable else values(c.type)
        for c in columns(row_type)
    }
    return st.lists(st.builds(row_type, **cells), max_size=most)


def as_read(row: Any, row_type: type) -> dict[str, Any]:
    """What a bundle can hold of a row: no NUL, no lone surrogate, and an empty note is none."""
    read = {}
    for c in columns(row_type):
        value = getattr(row, c.name)
        if isinstance(value, str):
            value = value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
            value = None if not value and c.nullable else value
        read[c.name] = value
    return read


@settings(max_examples=50)
@given(rows=rows_of(Plain))
def test_every_row_comes_back(rows: list[Any]) -> None:
    """Of a table with a column of each type, some of which may be unknown."""
    comes_back(rows, Plain)


@pytest.mark.parametrize("row_type", ROW_TYPES, ids=lambda t: t.__name__)
@settings(max_examples=3)
@given(data=st.data())
def test_the_rows_of_every_type_come_back(row_type: type, data: st.DataObject) -> None:
    comes_back(data.draw(rows_of(row_type)), row_type)


def comes_back(rows: list[Any], row_type: type) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "b", rows, row_type)
        bundle = Bundle(Path(folder) / "b")
        assert list(bundle.rows("plain")) == [as_read(row, row_type) for row in rows]
        assert bundle.table("plain").columns == columns(row_type)


ODD = ["", "1", "-0", "007", "1_0", " 1", "+1", "1\n", "1\n2", "\n", "\uff11", "9" * 20, "1.5",
       "1e5", "nan", ".5", "true", "True", "true\n", "\ufeff1", "1\r"]  # fmt: skip


def read(rows: Iterator[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The rows up to the damage, and what it is."""
    found: list[dict[str, Any]] = []
    try:
        for row in rows:
            found.append(row)
    except BundleError as error:
        return found, str(error)
    return found, ""


def read_alone(bundle: Bundle) -> tuple[list[dict[str, Any]], str]:
    """The same, by a line and a cell at a time."""
    table, found = bundle.table("plain"), []
    with table.path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file, strict=True)
        next(reader)
        try:
            for cells in reader:
                if len(cells) != len(table.columns):
                    raise ValueError(
                        f"line {reader.line_num} has {len(cells)} cells, not {len(table.columns)}"
                    )
                found.append(
                    {c.name: value_of(c, t) for c, t in zip(table.columns, cells, strict=True)}
                )
        except ValueError as error:
            return found, f"{table.path}: damaged: {error}"
    return found, ""


# Each oddity in each column; and, behind more rows than are read at once, in one of them.
PLACES = [
    (odd, column, before)
    for number, odd in enumerate([*ODD, "two cells"])
    for column in range(5)
    for before in ((0, 4_100) if column == number % 5 else (0,))
]


@pytest.mark.parametrize(("odd", "column", "before"), PLACES)
def test_many_rows_at_once_are_read_as_each_alone(
    tmp_path: Path, odd: str, column: int, before: int
) -> None:
    write(tmp_path / "b", [Plain("a", 1, None, "x", True)] * 3)
    path = tmp_path / "b" / "plain.csv"
    header, row, *_ = path.read_text().splitlines(keepends=True)
    cells = row.rstrip("\n").split(",")
    cells[column] = "1,2" if odd == "two cells" else f'"{odd}"' if odd else ""
    whole = ["b,2,0.5,,false\n", "c,3,,,\n"]
    with path.open("w", newline="") as file:
        file.write(header + row * before + ",".join(cells) + "\n" + "".join(whole))
    bundle = Bundle(tmp_path / "b")
    alone = read_alone(bundle)
    assert read(bundle.rows("plain")) == alone
    assert len(alone[0]) == before + 3 or alone[1]
    if alone[1]:
        with pytest.raises(BundleError) as error:
            bundle.count("plain")
        assert str(error.value) == alone[1]
    else:
        assert bundle.count("plain") == before + 3
        assert read(bundle.rows("plain")) == alone
    wanted = bundle.rows("plain", where=("name", {"b"}))
    assert read(wanted) == ([row for row in alone[0] if row["name"] == "b"], alone[1])


@settings(max_examples=8)
@given(rows_of(Plain, 20))
def test_sql_sees_the_same_rows(rows: list[Plain]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "b", rows)
        database = open_database(Bundle(Path(folder) / "b"))
        assert database.missing.get("plain") is None
        assert database.rows("from plain") == [as_read(row, Plain) for row in rows]


@pytest.mark.parametrize("name", ["arrays", "connection", "sql"])
def test_no_table_of_a_bundle_stands_for_rows_of_another(tmp_path: Path, name: str) -> None:
    rows = [Plain("x", 1, None, None, None)]
    with Writer(tmp_path / "b") as writer:
        writer.table(name, "Named as a variable", Plain, rows, section="zones")
        writer.table("plain", "Plain rows", Plain, rows * 2, section="zones")
        writer.finish(TARGET, [OK])
    database = open_database(Bundle(tmp_path / "b"))
    counts = database.rows(f"select (select count(*) from {name}) as a, count(*) as b from plain")
    assert counts == [{"a": 1, "b": 2}]


def test_unknown_empty_and_zero_are_three_things(tmp_path: Path) -> None:
    write(tmp_path / "b", [Plain("", 0, None, None, None), Plain("x", 0, 0.0, "0", False)])
    empty, zero = Bundle(tmp_path / "b").rows("plain")
    assert empty == {"name": "", "value": 0, "share": None, "note": None, "sure": None}
    assert zero == {"name": "x", "value": 0, "share": 0.0, "note": "0", "sure": False}


def test_a_long_string_comes_back(tmp_path: Path) -> None:
    row = Plain("frame;" * 150_000, 1, None, None, None)
    write(tmp_path / "b", [row])
    assert list(Bundle(tmp_path / "b").rows("plain")) == [dataclasses.asdict(row)]
    database = open_database(Bundle(tmp_path / "b"))
    assert database.rows("select length(name) as n from plain") == [{"n": 900_000}]


def test_the_description_says_what_there_is(tmp_path: Path) -> None:
    write(tmp_path / "b", [Plain("x", 1, None, None, None)])
    bundle = Bundle(tmp_path / "b")
    assert bundle.target == TARGET
    assert bundle.sections == [OK]
    assert list(bundle.tables) == ["plain", "sections"]
    assert bundle.tables["plain"].title == "Plain rows"
    assert bundle.tables["plain"].section == "zones"


def test_a_bundle_is_a_data_package(tmp_path: Path) -> None:
    strings = ["", '"', "a,b", "a\nb\r", "\0", "\ud800", "é", " "]
    with Writer(tmp_path / "b") as writer:
        rows = [Plain(text, n, None, text, None) for n, text in enumerate(strings)]
        writer.table("plain", "Plain rows", Plain, rows, section="zones")
        for number, row_type in enumerate(ROW_TYPES):
            samples = {"integer": 1, "number": 0.5, "string": "Movable", "boolean": True}
            full = row_type(**{c.name: samples[c.type] for c in columns(row_type)})
            writer.table(f"table{number}", row_type.__name__, row_type, [full], section="zones")
        writer.finish(TARGET, [OK])
    report = frictionless.validate(str(tmp_path / "b" / "datapackage.json"))
    assert report.valid, report.flatten(["rowNumber", "fieldName", "type", "note"])
    table = frictionless.Package(str(tmp_path / "b" / "datapackage.json")).get_resource("plain")
    read = [row["name"] for row in table.read_rows()]
    assert read == ["", '"', "a,b", "a\nb\r", "\\x00", "\\ud800", "é", " "]


# Whole or absent.


def left(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Writer(tmp_path / "b") as writer:
        writer.table("plain", "Plain rows", Plain, [], section="zones")
        raise ZeroDivisionError
    assert left(tmp_path) == []


def test_a_row_that_raises_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Iterator[Plain]:
        yield Plain("x", 1, None, None, None)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Writer(tmp_path / "b") as writer:
        writer.table("plain", "Plain rows", Plain, rows(), section="zones")
    assert left(tmp_path) == []


def test_a_bundle_that_was_not_finished_is_none(tmp_path: Path) -> None:
    with Writer(tmp_path / "b") as writer:
        writer.table("plain", "Plain rows", Plain, [], section="zones")
    assert left(tmp_path) == []


def test_what_goes_wrong_elsewhere_is_not_called_a_failure_to_write(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), Writer(tmp_path / "b"):
        raise PermissionError("reading the target")


@pytest.mark.parametrize("taken", ["bundle", "folder", "file", "dangling link"])
def test_a_name_that_is_taken_is_refused_before_work_starts(tmp_path: Path, taken: str) -> None:
    path = tmp_path / "b"
    if taken == "bundle":
        write(path, [])
    elif taken == "folder":
        path.mkdir()
    elif taken == "file":
        path.write_text("mine")
    else:
        path.symlink_to(tmp_path / "nowhere")
    before = left(tmp_path)
    with pytest.raises(BundleError, match="already exists; choose another name or use --force"):
        Writer(path)
    assert left(tmp_path) == before


def test_force_replaces_a_bundle(tmp_path: Path) -> None:
    write(tmp_path / "b", [Plain("old", 1, None, None, None)])
    write(tmp_path / "b", [Plain("new", 2, None, None, None)], replace=True)
    assert [row["name"] for row in Bundle(tmp_path / "b").rows("plain")] == ["new"]
    assert left(tmp_path) == ["b"]


def test_force_that_fails_leaves_the_old_bundle(tmp_path: Path) -> None:
    write(tmp_path / "b", [Plain("old", 1, None, None, None)])
    with pytest.raises(ZeroDivisionError), Writer(tmp_path / "b", replace=True):
        raise ZeroDivisionError
    assert [row["name"] for row in Bundle(tmp_path / "b").rows("plain")] == ["old"]
    assert left(tmp_path) == ["b"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_force_replaces_nothing_but_a_bundle(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thesis"
    if kind == "folder":
        path.mkdir()
        (path / "chapter1").write_text("mine")
    else:
        path.write_text("mine")
    with pytest.raises(BundleError, match="exists and is not a bundle, so it is not replaced"):
        Writer(path, replace=True)
    assert left(tmp_path) == ["thesis"]


def test_force_without_anything_there_is_no_error(tmp_path: Path) -> None:
    write(tmp_path / "b", [], replace=True)
    assert Bundle(tmp_path / "b").sections == [OK]


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write(tmp_path / "incident" / "17" / "b", [])
    assert left(tmp_path / "incident" / "17") == ["b"]


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="file/b: cannot write there: "):
        Writer(tmp_path / "file" / "b")


def test_a_full_disk_leaves_nothing(small_disk: Path) -> None:
    with pytest.raises(BundleError, match=r"b: cannot write: (No space left|File too large)"):
        write(small_disk / "b", [Plain("x" * 1000, n, None, None, None) for n in range(200)])
    assert left(small_disk) == []


def test_a_disk_that_is_full_at_the_end_leaves_nothing(small_disk: Path) -> None:
    """Room for the table, none for the description."""
    with pytest.raises(BundleError, match="b: cannot write: "), Writer(small_disk / "b") as writer:
        writer.table("plain", "Plain rows", Plain, [], section="zones")
        writer.finish({**TARGET, "release": "x" * 100_000}, [OK])
    assert left(small_disk) == []


def test_killed_in_the_middle_there_is_no_bundle(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time, reports
        from pathlib import Path
        from mmscope.drgn.machine.settings import Setting
        from mmscope.reports.bundle.writer import Writer

        def rows():
            for n in range(100_000):
                yield Setting("x" * 100, str(n))
            print("halfway", flush=True)
            time.sleep(60)

        with Writer(Path(sys.argv[1])) as writer:
            writer.table("settings", "Settings", Setting, rows(), section="settings")
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path / "b")]
    with children.start(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"halfway\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "b").exists()
    with pytest.raises(BundleError, match="there is no such folder"):
        Bundle(tmp_path / "b")
    write(tmp_path / "b", [])
    assert Bundle(tmp_path / "b").sections == [OK], "what it left behind is in nobody's way"


# Trusted in nothing.

Damage = Callable[[Path], None]


def edited(change: Callable[[dict[str, Any]], None]) -> Damage:
    """Damage to the description."""

    def damage(bundle: Path) -> None:
        data = json.loads((bundle / "datapackage.json").read_text())
        change(data)
        (bundle / "datapackage.json").write_text(json.dumps(data))

    return damage


def text(content: str | bytes, name: str = "datapackage.json") -> Damage:
    """Damage to a whole file."""
    return lambda bundle: (
        (bundle / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        and None
    )


def first(key: str, value: Any) -> Damage:
    """Damage to what the description says of the first table."""
    return edited(lambda data: data["resources"][0].__setitem__(key, value))


def field(key: str, value: Any) -> Damage:
    """Damage to what it says of that table's first column."""
    return edited(lambda data: data["resources"][0]["schema"]["fields"][0].__setitem__(key, value))


def target(key: str, value: Any) -> Damage:
    return edited(lambda data: data["target"].__setitem__(key, value))


def replaced(name: str, make: Callable[[Path], None]) -> Damage:
    """A file replaced by something else."""

    def damage(bundle: Path) -> None:
        (bundle / name).unlink()
        make(bundle / name)

    return damage


UNOPENABLE: dict[str, Damage] = {
    "no description": lambda bundle: (bundle / "datapackage.json").unlink(),
    "description is empty": text(""),
    "description is no JSON": text("{"),
    "description is not UTF-8": text(b'{"a": "\xff"}'),
    "description is another thing": text("[]"),
    "description is a number": text("17"),
    "description is nested deeply": text("[" * 200_000),
    "description is huge": text(" " * (17 << 20)),
    "description has a huge number": text('{"target": {"page_size": ' + "9" * 10_000 + "}}"),
    "description is a folder": replaced("datapackage.json", Path.mkdir),
    "description is a pipe": replaced("datapackage.json", os.mkfifo),
    "description is an endless device": replaced(
        "datapackage.json", lambda path: path.symlink_to("/dev/zero")
    ),
    "no target": edited(lambda data: data.pop("target")),
    "target is a list": edited(lambda data: data.__setitem__("target", [1, 2])),
    "target has a nested value": target("hostname", {"a": 1}),
    "target's page size is text": target("page_size", "4096"),
    "target's page size is negative": target("page_size", -4096),
    "target's page size is beyond 63 bits": target("page_size", 1 << 63),
    "target's page size is true": target("page_size", True),
    "target's uptime is no number": target("uptime_seconds", float("nan")),
    "no tables": edited(lambda data: data.pop("resources")),
    "tables are null": edited(lambda data: data.__setitem__("resources", None)),
    "a table is a number": edited(lambda data: data["resources"].append(5)),
    "no sections table": edited(lambda data: data["resources"].pop()),
    "a table is there twice": edited(lambda data: data["resources"].append(data["resources"][0])),
    "a table's path leads out": first("path", "../../etc/passwd"),
    "a table's path is absolute": first("path", "/etc/passwd"),
    "a table's path is a list": first("path", ["plain.csv", "/etc/passwd"]),
    "a table's path is a URL": first("path", "https://example.org/plain.csv"),
    "a table's name has SQL in it": first("name", "plain; drop table zones"),
    "a table's name has a quote": first("name", 'plain"'),
    "a table's name ends in a newline": first("name", "plain\n"),
    "a table's name is null": first("name", None),
    "a table has no schema": edited(lambda data: data["resources"][0].pop("schema")),
    "a table has no columns": edited(lambda data: data["resources"][0]["schema"]["fields"].clear()),
    "a column's name has SQL in it": field("name", "a, (select 1)"),
    "a column has another type": field("type", "geojson"),
    "a column's type is a list": field("type", ["string"]),
    "a column is there twice": field("name", "value"),
    "constraints are a list": field("constraints", ["required"]),
    "a key is a number": edited(
        lambda data: data["resources"][0]["schema"].__setitem__("primaryKey", 3)
    ),
    "sections have other columns": edited(
        lambda data: data["resources"][-1]["schema"]["fields"].pop()
    ),
    "sections have other types": edited(
        lambda data: data["resources"][-1]["schema"]["fields"][2].__setitem__("type", "string")
    ),
    "sections' file is missing": lambda bundle: (bundle / "sections.csv").unlink(),
    "sections' file is empty": text("", "sections.csv"),
    "sections' seconds are text": text(
        "section,status,seconds,rows,unreadable_bytes,message\nzones,ok,soon,1,0,\n", "sections.csv"
    ),
    "sections' file is a pipe": replaced("sections.csv", os.mkfifo),
}


@pytest.mark.parametrize("damage", UNOPENABLE.values(), ids=UNOPENABLE.keys())
def test_a_damaged_bundle_is_refused_in_one_line(tmp_path: Path, damage: Damage) -> None:
    write(tmp_path / "b", [Plain("x", 1, None, None, None)])
    damage(tmp_path / "b")
    with pytest.raises(BundleError) as refusal:
        Bundle(tmp_path / "b")
    words = str(refusal.value)
    assert words.startswith(str(tmp_path / "b"))
    assert "\n" not in words
    assert len(words) < 400


# A line among plain ones.
LINES = ["a,1,,x,true\n", '"b,c",2,,,\n', '"b\nc",2,,,\n', 'b"c,2,,,\n', "b,2,,,\r\n", "\n",
         "b,2,,\n", "b,2,,,,\n", "b,2,,,,a,1,,,\n", "b,2,,,,,a,1,,,\n",
         "b,two,,,\n", "b,2,,,"]  # fmt: skip


@pytest.mark.parametrize("size", [1, 64, 300])
@pytest.mark.parametrize("line", LINES)
def test_a_line_among_plain_ones_is_read_as_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, size: int
) -> None:
    """Wherever a piece of the file begins."""
    monkeypatch.setattr(bundle_module, "PIECE", size)
    write(tmp_path / "b", FIVE)
    path = tmp_path / "b" / "plain.csv"
    with path.open("w", newline="") as file:
        file.write(HEADER + "a,1,0.5,x,true\n" * 30 + line + '"d",4,,"e",false\n' * 30)
    assert read(Bundle(tmp_path / "b").rows("plain")) == read_alone(Bundle(tmp_path / "b"))
    with path.open("w", newline="") as file:
        file.write(HEADER + line)
    assert read(Bundle(tmp_path / "b").rows("plain")) == read_alone(Bundle(tmp_path / "b"))


HEADER = "name,value,share,note,sure\n"
UNREADABLE: dict[str, tuple[Damage, str]] = {
    "missing": (lambda bundle: (bundle / "plain.csv").unlink(), "missing, though datapackage.json"),
    "empty": (text("", "plain.csv"), "its columns are not those"),
    "a column less": (text("name,value,share,note\nx,1,,\n", "plain.csv"), "its columns are not"),
    "columns swapped": (text("value,name,share,note,sure\n1,x,,,\n", "plain.csv"), "its columns"),
    "a cell less": (text(HEADER + "x,1,,\n", "plain.csv"), "line 2 has 4 cells, not 5"),
    "a cell more": (text(HEADER + "x,1,,,,\n", "plain.csv"), "line 2 has 6 cells, not 5"),
    "text for a number": (text(HEADER + "x,many,,,\n", "plain.csv"), "value holds 'many'"),
    "a float for an integer": (text(HEADER + "x,1.0,,,\n", "plain.csv"), "value holds '1.0'"),
    "digits with underscores": (text(HEADER + "x,1_000,,,\n", "plain.csv"), "value holds '1_000'"),
    "digits of another script": (text(HEADER + "x,٣,,,\n", "plain.csv"), "value holds '٣'"),
    "a blank around a number": (text(HEADER + "x, 1,,,\n", "plain.csv"), "value holds ' 1'"),
    "not a number": (text(HEADER + "x,1,nan,,\n", "plain.csv"), "share holds 'nan'"),
    "a number beyond all": (text(HEADER + "x,1,1e999,,\n", "plain.csv"), "share holds '1e999'"),
    "an endless number": (text(HEADER + f"x,{'9' * 5000},,,\n", "plain.csv"), "value holds '9"),
    "unknown where it cannot be": (text(HEADER + "x,,,,\n", "plain.csv"), "value holds ''"),
    "another boolean": (text(HEADER + "x,1,,,True\n", "plain.csv"), "sure holds 'True'"),
    "a long line": (
        text(HEADER.encode() + b"x" * (3 << 20), "plain.csv"),
        "line 2 has more than 2,097,152 bytes",
    ),
    "a long row of lines": (
        text(HEADER.encode() + b'"\n",' * (3 << 18), "plain.csv"), "has more than 2,097,152",
    ),
    "a quote in the middle": (text(HEADER + '"x"y,1,,,\n', "plain.csv"), "damaged: "),
    "a quote that never ends": (text(HEADER + '"x,1,,,\n', "plain.csv"), "damaged: "),
    "a link": (
        replaced("plain.csv", lambda path: path.symlink_to("/etc/hostname")), "is not a plain file",
    ),
    "a pipe": (replaced("plain.csv", os.mkfifo), "is not a plain file"),
    "a folder": (replaced("plain.csv", Path.mkdir), "is not a plain file"),
    "an endless cell": (
        text(HEADER.encode() + b'"' + b"x" * (2 << 20), "plain.csv"), "damaged: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "why"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_damaged_table_is_refused_and_the_others_are_read(
    tmp_path: Path, damage: Damage, why: str
) -> None:
    write(tmp_path / "b", [Plain("x", 1, None, None, None)])
    damage(tmp_path / "b")
    bundle = Bundle(tmp_path / "b")
    with pytest.raises(BundleError) as refusal:
        list(bundle.rows("plain"))
    words = str(refusal.value)
    assert words.startswith(f"{tmp_path / 'b' / 'plain.csv'}: ")
    assert why in words
    assert "\n" not in words
    database = open_database(bundle)
    assert "plain" in database.missing, "a finding must not be asked of what show refuses"
    assert "\n" not in database.missing["plain"]
    assert len(database.rows("from sections")) == 1


FIVE = [Plain(f"row {n}", n, None, None, None) for n in range(5)]


def test_what_is_not_utf8_is_written_out_and_keeps_its_row(tmp_path: Path) -> None:
    write(tmp_path / "b", [Plain("x", 1, None, None, None)])
    text(HEADER.encode() + b"\xff\xed\xa0\x80,1,,,\n" + "é,2,,,\n".encode(), "plain.csv")(
        tmp_path / "b"
    )
    bundle = Bundle(tmp_path / "b")
    rows = list(bundle.rows("plain"))
    assert [row["name"] for row in rows] == ["\\xff\\xed\\xa0\\x80", "é"]
    assert bundle.count("plain") == 2
    database = open_database(bundle)
    assert database.missing == {} or "plain" not in database.missing
    assert database.rows("from plain") == rows


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "select sum(value)::bigint from plain",
            "out of range: plain.value has 9,223,372,036,854,775,807, too large to compute with; "
            "the bundle is damaged",
        ),
        ("select value * value from plain", "out of range: plain.value has 9,223,372,036,854,775,"),
        ("select nothing from plain", "the query failed: Binder Error: "),
        ("select list(range) from range(100_000_000)", "its tables are too large: DuckDB may have"),
    ],
)
def test_what_cannot_be_computed_is_said_in_words(tmp_path: Path, query: str, words: str) -> None:
    write(tmp_path / "b", [Plain(name, 2**63 - 1, None, None, None) for name in "xy"])
    database = open_database(Bundle(tmp_path / "b"))
    with pytest.raises(duckdb.Error) as error:
        database.rows(query)
    said = failed(database, error.value, ["plain", "plain"])
    assert said.startswith(words) and "\n" not in said


def test_surrogates_of_a_description_are_written_out(tmp_path: Path) -> None:
    write(tmp_path / "b", [])
    edited(lambda data: data["target"].update(hostname="h\ud800"))(tmp_path / "b")
    assert Bundle(tmp_path / "b").target["hostname"] == "h\\ud800"


def test_a_long_text_of_a_description_is_cut_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "b", [])
    edited(lambda data: data["target"].update(hostname="h" * 1_000_000))(tmp_path / "b")
    name = str(Bundle(tmp_path / "b").target["hostname"])
    assert len(name) < 5000 and name.endswith("… (996,000 more characters)")


@pytest.mark.parametrize(("mode", "user"), [(0o600, 0), (0o644, 65534)])
def test_what_root_writes_is_roots_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, user: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "umask", lambda mask: 0o022)
    write(tmp_path / "b", [])
    assert modes(tmp_path / "b") == {mode}
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == mode | (mode & 0o444) >> 2 | 0o100


@pytest.mark.parametrize(("asked", "folder"), [(0o640, 0o750), (0o644, 0o755), (0o600, 0o700)])
def test_a_mode_that_is_asked_for(tmp_path: Path, asked: int, folder: int) -> None:
    write(tmp_path / "b", [], mode=asked)
    assert modes(tmp_path / "b") == {asked}
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == folder


def test_what_replaces_a_bundle_is_as_open_as_that_was(tmp_path: Path) -> None:
    write(tmp_path / "b", [], mode=0o644)
    write(tmp_path / "b", [], replace=True)
    assert modes(tmp_path / "b") == {0o644}


def test_until_it_is_whole_nobody_else_can_reach_it(tmp_path: Path) -> None:
    with Writer(tmp_path / "b", mode=0o644) as writer:
        writer.table("plain", "Plain rows", Plain, [], section="zones")
        (folder,) = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        writer.finish(TARGET, [OK])


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(entry.stat().st_mode) for entry in folder.iterdir()}


class TestHeld:
    @pytest.mark.parametrize(("cells", "size"), [(25, 1000), (24, 1000), (25, 50)])
    def test_a_table_is_read_from_the_disk_once_unless_it_is_too_large(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: int, size: int
    ) -> None:
        monkeypatch.setattr(bundle_module, "MAX_HELD_CELLS", cells)
        monkeypatch.setattr(bundle_module, "MAX_HELD_BYTES", size)
        write(tmp_path / "b", FIVE)
        bundle = Bundle(tmp_path / "b")
        found, others = bundle.held(["plain"])
        large = (cells, size) != (25, 1000)
        assert others == ({"plain": "table plain is too large to be drawn here"} if large else {})
        assert list(found) == ([] if large else ["plain"])
        assert bundle.count("plain") == 5
        rows = list(bundle.rows("plain"))
        assert [row["value"] for row in rows] == [0, 1, 2, 3, 4]
        assert list(bundle.rows("plain", ("value", {1, 3}))) == [rows[1], rows[3]]
        (tmp_path / "b" / "plain.csv").unlink()
        if large:
            with pytest.raises(BundleError, match="missing"):
                list(bundle.rows("plain"))
        else:
            assert list(bundle.rows("plain")) == rows == list(found["plain"])
            assert found["plain"][1] == rows[1] and found["plain"][-2:] == rows[-2:]

    def test_a_damaged_one_is_refused_as_before(self, tmp_path: Path) -> None:
        write(tmp_path / "b", FIVE)
        with (tmp_path / "b" / "plain.csv").open("a") as file:
            file.write("row 5,many,,,\n")
        bundle = Bundle(tmp_path / "b")
        assert "damaged" in bundle.held(["plain"])[1]["plain"]
        with pytest.raises(BundleError, match="damaged"):
            list(bundle.rows("plain"))
        with pytest.raises(BundleError, match="damaged"):
            bundle.count("plain")


def test_no_bundle_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, why in (("nothing", "there is no such folder"), ("file", "it is a file")):
        with pytest.raises(BundleError, match=f"{name}: not a bundle: {why}; 'mmscope collect'"):
            Bundle(tmp_path / name)


def test_a_lake_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "lake.json").write_text("{}")
    words = f"a lake, not a bundle: 'mmscope lake findings {tmp_path}'"
    with pytest.raises(BundleError, match=words):
        Bundle(tmp_path)


def test_a_table_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    write(tmp_path / "b", [])
    with pytest.raises(BundleError, match="has no table pages; it has plain, sections"):
        list(Bundle(tmp_path / "b").rows("pages"))


@pytest.mark.parametrize("name", ["select", "target", "table", "fragmentation", "order"])
def test_a_table_may_have_any_name(tmp_path: Path, name: str) -> None:
    """SQL's words, and the names of the views, are names like others to a stranger."""
    with Writer(tmp_path / "b") as writer:
        row = Plain("x", 1, None, None, None)
        writer.table(name, "Plain rows", Plain, [row], section="zones")
        writer.finish(TARGET, [OK])
    bundle = Bundle(tmp_path / "b")
    assert list(bundle.rows(name)) == [dataclasses.asdict(row)]
    database = open_database(bundle)
    assert database.rows("select kind from target") == [{"kind": "vmcore"}]


def test_a_column_more_from_a_newer_version_is_no_damage(tmp_path: Path) -> None:
    write(tmp_path / "b", [])

    def add_column(data: dict[str, Any]) -> None:
        data["resources"][-1]["schema"]["fields"].append({"name": "mood", "type": "string"})

    edited(add_column)(tmp_path / "b")
    (tmp_path / "b" / "sections.csv").write_text(
        "section,status,seconds,rows,unreadable_bytes,message,mood\nzones,ok,0.25,1,0,,fine\n"
    )
    assert Bundle(tmp_path / "b").sections == [OK]


def test_a_bundle_can_be_moved(tmp_path: Path) -> None:
    write(tmp_path / "b", [Plain("x", 1, None, None, None)])
    shutil.move(tmp_path / "b", tmp_path / "elsewhere")
    assert len(list(Bundle(tmp_path / "elsewhere").rows("plain"))) == 1


def test_hostile_bundles_are_refused_at_once(tmp_path: Path) -> None:
    """A pipe or a device must not even be opened."""
    write(tmp_path / "b", [])
    UNOPENABLE["description is a pipe"](tmp_path / "b")
    with pytest.raises(BundleError):
        Bundle(tmp_path / "b")
