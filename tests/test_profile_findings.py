# SPDX-License-Identifier: LGPL-2.1-or-later
"""What profiles mean: each finding on a bundle where it holds, and on one where it does not."""

import dataclasses
from pathlib import Path
from typing import Any

import report_bundle as made
from rows import column

from reports.findings import Finding, evaluate
from reports.profile_rows import ProfilePart, ProfileReaping, ProfileSite
from reports.tables import open_database


def found(tmp_path: Path, change: dict[str, list[Any]], id: str) -> list[Finding]:
    contents = made.profile_rows()
    for table, rows in change.items():
        title, row_type, _, section = contents[table]
        contents[table] = (title, row_type, rows, section)
    bundle = made.write_bundle(tmp_path / "b", contents)
    verdict = evaluate(bundle)
    asked = [f.id for f in verdict.found] + [name for name, _ in verdict.clear]
    assert id in asked, verdict.not_checked
    return [f for f in verdict.found if f.id == id]


def test_an_end_that_takes_a_third_of_the_time_is_told(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, {}, "profile-exit-share")
    assert "53.7 %" in finding.title
    assert "35.2 % clearing" in finding.saw and "18.5 % freeing" in finding.saw


def test_an_end_that_takes_a_tenth_is_not(tmp_path: Path) -> None:
    part = ProfilePart("exit_path_never", "cpu-clock", "exit-path", "exit", "zap", 108, 1, 0.1)
    assert not found(tmp_path, {"profile_parts": [part]}, "profile-exit-share")


@dataclasses.dataclass(frozen=True)
class PageTables:
    """As far as findings about profiles look."""

    pid: int = column(key=True)
    comm: str = column()
    exit_pte_slots: int = column()
    pgtables_bytes: int = column(unit="bytes")


def test_what_memory_says_of_page_tables_stands_beside_it(tmp_path: Path) -> None:
    contents = made.profile_rows()
    tables = [PageTables(1, "init", 512, 4096), PageTables(9, "sparse", 10_240_000, 81_920_000)]
    contents["page_tables"] = ("Page tables", PageTables, tables, "page_tables")
    bundle = made.write_bundle(tmp_path / "b", contents)
    (finding,) = (f for f in evaluate(bundle).found if f.id == "profile-exit-share")
    assert "sparse has the page tables that take longest to walk: 10,240,000 slots" in finding.saw
    rows = open_database(bundle).rows("select * from profile_exit_slots")
    assert rows[0]["comm"] == "sparse" and rows[0]["zap_samples"] == 300


def test_a_victim_that_walks_again_is_told(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, {}, "profile-unmapped-twice")
    assert "290 samples of the victim" in finding.saw and "80 samples of the reaper" in finding.saw


def test_a_victim_that_has_little_left_is_not(tmp_path: Path) -> None:
    reaping = ProfileReaping("exit_path_never", "cpu-clock", 80, 3, 4)
    assert not found(tmp_path, {"profile_reaping": [reaping]}, "profile-unmapped-twice")


def test_samples_that_hide_others_are_told(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, {}, "profile-interrupts-off")
    assert "13.9 %" in finding.title and "exc_page_fault: the way in" in finding.saw


def test_a_few_such_samples_are_not(tmp_path: Path) -> None:
    site = ProfileSite("exit_path_never", "cpu-clock", "exc_page_fault", "x", 9, "the way in")
    assert not found(tmp_path, {"profile_sites": [site]}, "profile-interrupts-off")


def test_lost_samples_are_told_from_one_per_cent_on(tmp_path: Path) -> None:
    row = made.profile_rows()["profiles"][2][0]
    assert not found(tmp_path / "few", {}, "profile-samples-lost")
    many = [dataclasses.replace(row, lost=100)]
    (finding,) = found(tmp_path / "many", {"profiles": many}, "profile-samples-lost")
    assert "8.0 %" in finding.title and "could not write 100" in finding.saw


def test_views_join_profiles_and_memory(tmp_path: Path) -> None:
    database = open_database(made.write_bundle(tmp_path / "b", made.profile_rows()))
    shares = database.rows("select distinct exit_share from profile_exits")
    assert [round(row["exit_share"], 3) for row in shares] == [0.537]
    assert "profile_exit_slots" in database.missing  # without page_tables
