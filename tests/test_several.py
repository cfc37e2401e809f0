# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sections that several processes read: the bundle of one process; one that is killed; errors."""

import csv
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from children import no_child_is_left
from drgn import ProgramFlags
from made_sections import made_section

from mmscope.drgn.opening.target import Target
from mmscope.drgn.sections import registry
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found, Section
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import BundleError, SectionResult
from mmscope.reports.bundle.redact import Names, RedactingWriter
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect

TARGET = Target(
    "vmcore", "7.2", "x86_64", 4096, "host", "2026-01-01T00:00:00+00:00", 1.0, 1, 1, "root"
)
# By the folder that each is of, as if these were modules there.
SECTIONS = (
    *("ledger.memory_ledger", "processes.memory", "page_tables.shares", "free.lists"),
    *("ledger.swap", "page_tables.tables", "rmap.anon", "rmap.files", "log.kernel"),
)
HERE = os.getpid()

Works = dict[str, Callable[[Memory], Found]]


@table_row
class Counted:
    """A mock's row."""

    number: int = column(key=True, high=100, help="a number")


@pytest.fixture
def collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[SectionResult], Path]]:
    """Mocks of sections, read by so many processes."""

    def of(
        jobs: int, works: Works | None = None, flags: int = 0, names: Names | None = None
    ) -> tuple[list[SectionResult], Path]:
        specs = [mock(name, (works or {}).get(name)) for name in SECTIONS]
        monkeypatch.setattr(registry, "SECTIONS", {spec.name: spec for spec in specs})
        prog: Any = SimpleNamespace(flags=ProgramFlags(flags))
        path = tmp_path / f"bundle-{jobs}"
        with Writer(path, replace=True) as writer:
            into = RedactingWriter(writer, names, {}) if names else writer
            return collect(Memory(prog, jobs=jobs), TARGET, into, verbose=True), path

    return of


def mock(full_name: str, work: Callable[[Memory], Found] | None) -> Section:
    folder, name = full_name.split(".")

    def read(memory: Memory) -> Found:
        if work is not None:
            return work(memory)
        found = Found().add(Table(name, name.title(), Counted), [Counted(len(name)), Counted(999)])
        found.folded.append((name, "Stacks", "bytes", [(f"{folder};{name}", 1)]))
        return found

    read.__module__ = f"mmscope.drgn.{folder}.sections"
    return made_section(name, read, lambda files: Found())


def content(path: Path) -> dict[str, Any]:
    """What is in a bundle, without seconds and the time at which it was made."""
    files: dict[str, Any] = {file.name: file.read_bytes() for file in path.iterdir()}
    del files["datapackage.json"], files["sections.csv"]
    bundle = Bundle(path)
    files["description"] = bundle.resources, bundle.target
    with (path / "sections.csv").open(newline="") as file:
        files["sections"] = [row | {"seconds": ""} for row in csv.DictReader(file)]
    return files


def dies(memory: Memory) -> Found:
    assert os.getpid() != HERE
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def waits_for_others(memory: Memory) -> Found:
    """Goes on when no other process is at work any more."""
    while memory.busy():
        time.sleep(0.01)
    return Found()


def test_a_bundle_is_the_same_whatever_the_processes(
    collected: Callable[..., tuple[list[SectionResult], Path]], forks: list[int]
) -> None:
    sections, path = collected(1)
    assert not forks
    alone = content(path)
    assert [one.section for one in sections] == [name.split(".")[1] for name in SECTIONS]
    assert len(alone["description"][0]) == 2 * len(SECTIONS) + 2  # impossible values, sections
    for jobs in (2, 3, 8):
        forks.clear()
        again, path = collected(jobs)
        assert 1 <= len(forks) < jobs
        assert [one.section for one in again] == [one.section for one in sections]
        assert content(path) == alone
    assert no_child_is_left()


def test_where_no_process_is_to_be_had_one_reads_all(
    collected: Callable[..., tuple[list[SectionResult], Path]], no_forks: list[int]
) -> None:
    alone = content(collected(1)[1])
    assert not no_forks
    assert content(collected(3)[1]) == alone and no_forks


def test_a_running_kernel_and_what_is_redacted_are_read_by_one_process(
    collected: Callable[..., tuple[list[SectionResult], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process was forked"))
    for options in ({"flags": ProgramFlags.IS_LIVE.value}, {"names": Names()}):
        sections, _ = collected(2, **options)
        assert {one.status for one in sections} == {"partial"}  # 999 cannot be


@pytest.mark.parametrize("jobs", [2, 3])
def test_a_process_that_is_killed_costs_the_sections_that_it_took(
    collected: Callable[..., tuple[list[SectionResult], Path]], jobs: int
) -> None:
    works: Works = {
        "page_tables.shares": waits_for_others,
        "rmap.files": dies,
        "ledger.memory_ledger": lambda memory: Found(),
    }
    sections, path = collected(jobs, works)
    by_name = {one.section: one for one in sections}
    assert list(by_name) == [name.split(".")[1] for name in SECTIONS]
    lost = {name for name, one in by_name.items() if one.status == "failed"}
    assert lost >= {"anon", "files"}
    for name in lost:
        assert by_name[name].message == "the process that read it was killed by signal 9"
    # What it had written before is in no table, and not left behind.
    assert not (path / "anon.csv").exists()
    described = {resource["path"] for resource in Bundle(path).resources}
    assert {file.name for file in path.iterdir()} == described | {"datapackage.json"}
    assert by_name["tables"].rows == 2
    assert no_child_is_left()


def test_an_error_in_a_section_is_its_own_wherever_it_is_read(
    collected: Callable[..., tuple[list[SectionResult], Path]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fails(memory: Memory) -> Found:
        raise ZeroDivisionError(f"in {'another' if os.getpid() != HERE else 'this'} process")

    works: Works = {
        "page_tables.shares": waits_for_others,
        "page_tables.tables": fails,
        "rmap.anon": fails,
    }
    sections, _ = collected(2, works)
    by_name = {one.section: one for one in sections}
    assert by_name["tables"].message == "ZeroDivisionError: in this process"
    assert by_name["anon"].message == "ZeroDivisionError: in another process"
    assert by_name["files"].rows == 2
    errors = capfd.readouterr().err
    for where in ("this", "another"):  # verbose
        assert f"ZeroDivisionError: in {where} process\n" in errors
    assert errors.count("Traceback") == 2


def test_a_table_that_cannot_be_written_ends_all(
    collected: Callable[..., tuple[list[SectionResult], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Writer.table

    def full(self: Writer, name: str, *args: Any, **options: Any) -> int:
        if name == "anon":
            raise BundleError("cannot write: no space left on device")
        return table(self, name, *args, **options)

    monkeypatch.setattr(Writer, "table", full)
    with pytest.raises(BundleError, match="no space left"):
        collected(2, {"page_tables.shares": waits_for_others})
    assert no_child_is_left()


def test_ctrl_c_ends_all(collected: Callable[..., tuple[list[SectionResult], Path]]) -> None:
    def interrupted(memory: Memory) -> Found:
        assert os.getpid() == HERE
        raise KeyboardInterrupt

    def sleeps(memory: Memory) -> Found:
        time.sleep(600)
        return Found()

    with pytest.raises(KeyboardInterrupt):
        collected(2, {"page_tables.shares": interrupted, "rmap.anon": sleeps})
    assert no_child_is_left()


def test_what_several_share_leaves_room_for_those_at_work(
    collected: Callable[..., tuple[list[SectionResult], Path]], tmp_path: Path
) -> None:
    """The first process may have others' places as soon as these have nothing more to do."""
    go = tmp_path / "go"
    seen = []

    def looks(memory: Memory) -> Found:
        seen.append((memory.jobs, memory.busy()))
        go.touch()
        waits_for_others(memory)
        seen.append((memory.jobs, memory.busy()))
        return Found()

    def waits(memory: Memory) -> Found:
        assert (memory.jobs, memory.busy(), memory.progress) == (2, 1, None)
        while not go.exists():
            time.sleep(0.01)
        return Found()

    sections, _ = collected(2, {"page_tables.shares": looks, "rmap.anon": waits})
    assert seen == [(2, 1), (2, 0)]
    assert {one.section: one.status for one in sections}["anon"] == "ok"


def test_what_is_short_is_left_for_when_the_walk_is_done(
    collected: Callable[..., tuple[list[SectionResult], Path]], tmp_path: Path
) -> None:
    """The place of who waits for that is the walk's."""
    begun = tmp_path / "begun"

    def walks(memory: Memory) -> Found:
        waits_for_others(memory)
        assert not begun.exists()
        return Found()

    def short(memory: Memory) -> Found:
        begun.touch()
        return Found()

    sections, _ = collected(2, {"page_tables.shares": walks, "processes.memory": short})
    assert {one.section: one.status for one in sections}["shares"] == "ok"
    assert begun.exists()


def test_who_goes_on_alone_may_have_the_place_of_the_first(
    collected: Callable[..., tuple[list[SectionResult], Path]],
) -> None:
    sections, _ = collected(2, {"rmap.anon": waits_for_others, "rmap.files": waits_for_others})
    by_name = {one.section: one.status for one in sections}
    assert (by_name["anon"], by_name["files"]) == ("ok", "ok")


def test_values_that_cannot_be_are_told_in_the_order_of_the_sections(
    collected: Callable[..., tuple[list[SectionResult], Path]],
) -> None:
    _, path = collected(2)
    rows = list(Bundle(path).rows("impossible_values"))
    assert [row["table_name"] for row in rows] == [name.split(".")[1] for name in SECTIONS]
