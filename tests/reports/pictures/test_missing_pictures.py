# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A picture that is missing says why: what is wrong with its table, or that mmscope failed. It costs
nothing else.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from page_tree import NOTHING, by_id, parse, texts

from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.declared import TABLES
from mmscope.reports.commands.command import main
from mmscope.reports.compare import difference_pictures, differential_graphs
from mmscope.reports.compare.comparison import compare
from mmscope.reports.drawing.refusals import Damaged, Fault, NotDrawn
from mmscope.reports.page import drawn, views
from mmscope.reports.page.drawn import PictureView, draw
from mmscope.reports.page.environment import context_of
from mmscope.reports.page.missing import not_as_declared
from mmscope.reports.page.report import render
from mmscope.reports.pictures import profile_pictures
from mmscope.reports.pictures.registry import PICTURES

FAULT = "mmscope could not draw it (a fault of mmscope): IndexError: list index out of range"
Break = Callable[..., None]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """With a table for every picture."""
    path = tmp_path_factory.mktemp("machine") / "b"
    return made.write_bundle(path, made.tables() | made.profile_rows())


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Lets some pictures fail, all if none is named."""

    def fail(*names: str, error: Exception | None = None) -> None:
        def broken(*_: Any) -> None:
            raise error or IndexError("list index out of range")

        pictures = tuple(
            dataclasses.replace(picture, draw=broken)
            if not names or picture.name in names
            else picture
            for picture in PICTURES
        )
        monkeypatch.setattr(drawn, "PICTURES", pictures)

    return fail


def pictures_of(bundle: Bundle) -> dict[str, PictureView]:
    context = context_of(bundle.page_size) | {"offer": lambda download: download.name}
    return {view.name: view for views in draw(bundle, context).values() for view in views}


def test_a_failure_over_sound_rows_is_a_fault_of_mmscope(bundle: Bundle, failing: Break) -> None:
    whole = pictures_of(bundle)
    assert all(view.html and view.fault is None for view in whole.values())
    failing()
    views = pictures_of(bundle)
    assert views.keys() == whole.keys()
    for view in views.values():
        assert view.error.startswith(FAULT) and not view.html
        assert view.fault is not None and "Traceback" in view.fault.trace
    faults: list[Fault] = []
    page = render(bundle, NOTHING, faults=faults)
    assert {fault.picture for fault in faults} == views.keys()
    assert page.count(f"No picture: {FAULT}") == len(views)
    assert "is damaged" not in page


def test_one_that_fails_costs_no_other(bundle: Bundle, failing: Break) -> None:
    """Each stands among others that do not fail, and sees each fourth one fail beside it."""

    def html(views: dict[str, PictureView]) -> dict[str, str]:
        return {name: str(view.html) for name, view in views.items()}

    whole = pictures_of(bundle)
    for first in range(4):
        failed = {picture.name for picture in PICTURES[first::4]}
        failing(*failed)
        views = pictures_of(bundle)
        missing = failed & whole.keys()
        assert {name for name, view in views.items() if view.error} == missing
        assert html(views) == html(whole) | dict.fromkeys(missing, "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Damaged("runs overlap"), "table zones is damaged: runs overlap"),
        (Damaged("no", "free_blocks"), "table free_blocks is damaged: no"),
        (NotDrawn("its stacks are too many"), "table zones is not drawn: its stacks are too many"),
        (RecursionError("x\ny"), "(a fault of mmscope): RecursionError: x y;"),
        (ValueError("z" * 900), "(a fault of mmscope): ValueError: zzz"),
    ],
)
def test_what_a_picture_refuses_is_no_fault(
    error: Exception, said: str, bundle: Bundle, failing: Break
) -> None:
    failing("watermarks", error=error)
    view = pictures_of(bundle)["watermarks"]
    assert said in view.error and len(view.error) < 400
    assert (view.fault is None) == isinstance(error, NotDrawn)


class TestATableIsDamaged:
    """Only where its rows are not what is declared; whatever failed."""

    def written(self, folder: Path, change: Callable[[Any], Any]) -> Bundle:
        contents = made.tables_of("zones", "free_lists")
        title, row_type, rows, section = contents["zones"]
        contents["zones"] = (title, row_type, list(map(change, rows)), section)
        return made.write_bundle(folder / "b", contents)

    def said(self, bundle: Bundle) -> str:
        return pictures_of(bundle)["watermarks"].error

    def test_where_a_value_cannot_be(self, tmp_path: Path, failing: Break) -> None:
        bundle = self.written(tmp_path, lambda row: dataclasses.replace(row, wmark_min=-5))
        failing()
        assert self.said(bundle) == "table zones is damaged: wmark_min cannot be: -5 is below 0"

    def test_where_nothing_is_where_something_must_be(self, tmp_path: Path, failing: Break) -> None:
        bundle = self.written(tmp_path, lambda row: row)
        table = bundle.tables["zones"]
        odd = [dataclasses.replace(c, nullable=True) for c in table.columns]
        bundle.tables["zones"] = dataclasses.replace(table, columns=odd)
        header, first, *rest = table.path.read_text().splitlines()
        at = header.split(",").index("wmark_min")
        cells = first.split(",")
        table.path.write_text(
            "\n".join([header, ",".join([*cells[:at], "", *cells[at + 1 :]]), *rest])
        )
        failing()
        assert (
            self.said(bundle) == "table zones is damaged: wmark_min is unknown, which it never is"
        )

    def test_where_a_column_is_of_another_kind(self, tmp_path: Path, failing: Break) -> None:
        bundle = self.written(tmp_path, lambda row: row)
        table = bundle.tables["zones"]
        odd = [
            dataclasses.replace(c, type="string", low=(), high=()) if c.name == "node" else c
            for c in table.columns
        ]
        bundle.tables["zones"] = dataclasses.replace(table, columns=odd)
        failing()
        assert self.said(bundle).startswith("table zones is damaged: column node is string, not")

    def test_and_a_sound_one_is_not(self, bundle: Bundle) -> None:
        for name in bundle.tables.keys() & TABLES.keys():
            assert not not_as_declared(bundle, name, list(bundle.rows(name))), name

    def test_nor_one_without_a_column_that_came_later(self, bundle: Bundle) -> None:
        """Which a picture must do without."""
        late = [
            (name, c.name)
            for name in bundle.tables.keys() & TABLES.keys()
            for c in columns(TABLES[name].row)
            if c.since
        ]
        for name, column in late:
            table = bundle.tables[name]
            older = Bundle(bundle.path)
            older.version = "0.1.0"
            kept = [c for c in table.columns if c.name != column]
            older.tables[name] = dataclasses.replace(table, columns=kept)
            rows = [{c.name: row[c.name] for c in kept} for row in bundle.rows(name)]
            assert not not_as_declared(older, name, rows)
            older.version = "99.0.0"
            assert not_as_declared(older, name, rows) == f"table {name} has no column {column}"


def test_a_recording_that_fails_costs_no_other(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = profile_pictures._recording

    def fails(name: str, *rest: Any) -> Any:
        if name == "exit_path_always":
            raise IndexError("list index out of range")
        return recording(name, *rest)

    monkeypatch.setattr(profile_pictures, "_recording", fails)
    faults: list[Fault] = []
    page = render(bundle, NOTHING, faults=faults)
    assert f"Not in the picture: profile exit_path_always: {FAULT}" in page
    shown = texts(by_id(parse(page), "picture-profiles"))
    assert "exit_path_never" in shown and "exit_path_always" not in shown
    assert "Flame graph: cpu-clock of exit_path_never" in page
    assert [fault.picture for fault in faults] == ["profiles"]


def test_a_recording_with_one_part_has_its_graph(tmp_path: Path) -> None:
    contents = made.profile_rows()
    title, row_type, rows, section = contents["profile_parts"]
    contents["profile_parts"] = (title, row_type, rows[:1], section)
    page = render(made.write_bundle(tmp_path / "b", contents), NOTHING)
    shown = texts(by_id(parse(page), "picture-profiles"))
    assert "; zap 27.8 %" in shown and "No first item" not in page
    assert "Flame graph: cpu-clock of exit_path_never" in page


class TestDifferences:
    @pytest.fixture
    def pair(self, tmp_path: Path) -> tuple[Bundle, Bundle]:
        contents = made.tables_of("free_lists", "pageblocks", "page_owner")
        before = made.write_bundle(tmp_path / "before", contents)
        title, row_type, rows, section = contents["page_owner_stacks"]
        contents["page_owner_stacks"] = (title, row_type, rows[1:], section)
        return before, made.write_bundle(tmp_path / "after", contents)

    def test_one_that_fails_costs_no_other(
        self, pair: tuple[Bundle, Bundle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any) -> None:
            raise IndexError("list index out of range")

        (name, table, columns, _, same_size), *others = difference_pictures.DIFFERENCES
        broken_one = name, table, columns, broken, same_size
        monkeypatch.setattr(views, "DIFFERENCES", [broken_one, *others])
        faults: list[Fault] = []
        comparison = compare(*pair, (NOTHING, NOTHING), draw=True)
        page = render(pair[1], NOTHING, comparison, faults=faults)
        assert f"No picture of what differs: {FAULT}" in page
        assert 'id="difference-pageblocks"' in page
        assert [fault.picture for fault in faults] == ["difference_free_lists"]

    def test_nor_does_a_graph(
        self, pair: tuple[Bundle, Bundle], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise IndexError("list index out of range")

        monkeypatch.setattr(differential_graphs, "differential", broken)
        faults: list[Fault] = []
        comparison = compare(*pair, (NOTHING, NOTHING), draw=True)
        page = render(pair[1], NOTHING, comparison, faults=faults)
        assert FAULT in page and 'id="difference-pageblocks"' in page
        assert [fault.picture for fault in faults] == ["stacks of page_owner_stacks, compared"]


class TestTheCommand:
    def test_says_what_it_failed_to_draw(
        self,
        bundle: Bundle,
        failing: Break,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        failing("watermarks")
        words = ["report", str(bundle.path), "-o", str(tmp_path / "report.html")]
        line = (
            "mmscope: picture watermarks is missing, by a fault of mmscope: "
            "IndexError: list index out of range"
        )
        assert main(words) == 1
        assert capsys.readouterr().err == f"{line}; -v shows where\n"
        assert "No picture: mmscope could not draw it" in (tmp_path / "report.html").read_text()
        assert main([*words, "-v"]) == 1
        err = capsys.readouterr().err
        assert err.startswith("Traceback") and err.endswith(f"{line}\n")

    def test_so_does_compare(
        self,
        bundle: Bundle,
        failing: Break,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        failing("watermarks")
        output = tmp_path / "report.html"
        words = ["compare", str(bundle.path), "--", str(bundle.path), "-o", str(output)]
        assert main(words) == 1
        assert "picture watermarks is missing, by a fault of mmscope" in capsys.readouterr().err

    def test_a_damaged_table_is_in_the_page_alone(
        self, tmp_path: Path, failing: Break, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bundle = made.write_bundle(tmp_path / "b", made.tables_of("zones"))
        failing("watermarks", error=Damaged("it is"))
        assert main(["report", str(bundle.path), "-o", str(tmp_path / "r.html")]) == 0
        assert capsys.readouterr().err == ""
        assert "table zones is damaged: it is" in (tmp_path / "r.html").read_text()
