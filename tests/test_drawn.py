# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pictures of a long bundle are drawn by two processes beside; the page is the same."""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from children import no_child_is_left

from mmscope.drgn.workers.workers import Tell
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.cells import columns_of
from mmscope.reports.commands.command import main
from mmscope.reports.page import drawn, picture_rows
from mmscope.reports.pictures.picture import Picture
from mmscope.reports.pictures.registry import PICTURES, READS

Parts = Iterable[Sequence[Picture]]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a table for every picture."""
    return made.write_bundle(tmp_path_factory.mktemp("machine") / "b", made.tables()).path


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return made.write_bundle(
        tmp_path / "hostile",
        made.hostile_tables(),
        target=made.hostile_target(),
        sections=made.hostile_sections(),
    ).path


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[int]]:
    """The processes that drew, one after another."""
    told = tmp_path / "pids"
    told.touch()
    draw = drawn.draw

    def noted(bundle: Bundle, parts: Parts, *tell: Tell) -> drawn.Drawn:
        with told.open("a") as file:
            print(os.getpid(), file=file)
        return draw(bundle, parts, *tell)

    monkeypatch.setattr(drawn, "draw", noted)
    return lambda: list(map(int, told.read_text().split()))


def long_from(monkeypatch: pytest.MonkeyPatch, size: int, cpus: int) -> None:
    monkeypatch.setattr(picture_rows, "LONG_BYTES", size)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))


def page_of(bundle: Path, *options: str) -> bytes:
    report = bundle.parent / "report.html"
    assert main(["report", str(bundle), "-o", str(report), *options]) == 0
    assert no_child_is_left()
    return report.read_bytes()


@pytest.mark.parametrize("which", ["machine", "hostile"])
def test_the_page_is_the_same_whoever_draws(
    which: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    pids: Callable[[], list[int]],
) -> None:
    bundle: Path = request.getfixturevalue(which)
    here = os.getpid()
    long_from(monkeypatch, 1 << 40, cpus=2)
    page = page_of(bundle)
    assert b"picture-pageblock_map" in page
    long_from(monkeypatch, 0, cpus=1)
    assert page_of(bundle) == page
    assert pids() == [here, here]
    long_from(monkeypatch, 0, cpus=2)
    assert page_of(bundle) == page
    assert len({*pids()}) == 3 and len(pids()) == 4


def test_beside_a_baseline_it_is_the_same_too(
    machine: Path, monkeypatch: pytest.MonkeyPatch, pids: Callable[[], list[int]]
) -> None:
    long_from(monkeypatch, 1 << 40, cpus=2)
    page = page_of(machine, "--baseline", str(machine))
    long_from(monkeypatch, 0, cpus=2)
    assert page_of(machine, "--baseline", str(machine)) == page
    assert len(set(pids())) == 3


def test_what_a_dead_process_has_not_drawn_is_drawn_here(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_from(monkeypatch, 1 << 40, cpus=2)
    page = page_of(machine)
    here, draw = os.getpid(), drawn.draw
    seen = []

    def dies(bundle: Bundle, parts: Parts, *tell: Tell) -> drawn.Drawn:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(parts)
        return draw(bundle, parts, *tell)

    monkeypatch.setattr(drawn, "draw", dies)
    long_from(monkeypatch, 0, cpus=2)
    assert page_of(machine) == page
    assert len(seen) == 2


def test_two_groups_share_no_table_and_have_all_pictures_in_their_order(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle(machine)
    assert picture_rows.groups(bundle) == [PICTURES]
    monkeypatch.setattr(picture_rows, "LONG_BYTES", 0)
    first, second = picture_rows.groups(bundle)
    assert first and second and len(first) + len(second) == len(PICTURES)
    for group in (first, second):
        assert group == tuple(picture for picture in PICTURES if picture in group)
    tables = [frozenset().union(*(one.tables for one in group)) for group in (first, second)]
    assert not tables[0] & tables[1]


def test_no_process_draws_on_for_a_report_that_failed(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_from(monkeypatch, 0, cpus=2)
    with pytest.raises(LookupError), drawn.drawing(Bundle(machine)):
        raise LookupError
    assert no_child_is_left()


def test_a_picture_reads_no_column_that_it_does_not_name(machine: Path) -> None:
    read: dict[str, set[str]] = {}
    bundle = Bundle(machine)
    tables, errors = picture_rows.picture_rows(bundle, PICTURES)
    assert not errors

    class Watched(dict[str, Any]):
        def __init__(self, table: str, row: dict[str, Any]) -> None:
            super().__init__(row)
            self.table = table

        def __getitem__(self, name: str) -> Any:
            read.setdefault(self.table, set()).add(name)
            return super().__getitem__(name)

        def get(self, name: str, *default: Any) -> Any:
            read.setdefault(self.table, set()).add(name)
            return super().get(name, *default)

    watched: dict[str, list[dict[str, Any]]] = {
        name: [Watched(name, row) for row in rows] for name, rows in tables.items()
    }
    assert READS.keys() >= {"page_tables", "page_owner_growth", "slab_owner_stacks", "ksm_pages"}
    for picture in PICTURES:
        for name in picture.reads.keys() & READS.keys():
            assert picture.table != name or picture.columns <= READS[name]
        if tables.get(picture.table):
            picture.draw(watched, 4096)
            for name, columns in picture.reads.items():
                assert read.get(name, set()) <= columns, (picture.name, name)
        read.clear()


def test_rows_that_are_held_as_columns_are_the_same(machine: Path) -> None:
    bundle = Bundle(machine)
    tables, errors = bundle.whole(bundle.tables, {})
    assert not errors and set(tables) == set(bundle.tables)
    for name, held in tables.items():
        rows = list(Bundle(machine).rows(name))
        assert len(held) == len(rows)
        assert held[:2] == rows[:2] and held[1:-1] == rows[1:-1]
        for number, row in enumerate(rows):
            assert held[number] == row and list(held[number]) == list(row)
        names = [column.name for column in bundle.table(name).columns]
        assert list(map(list, columns_of(held, *names))) == columns_of(rows, *names)
        assert list(held) == rows
        with pytest.raises(KeyError):
            columns_of(held, "no such column")
