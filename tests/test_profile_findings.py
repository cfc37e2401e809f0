# SPDX-License-Identifier: LGPL-2.1-or-later
"""What profiles mean: each finding on a bundle where it holds, and on one where it does not."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made
from rows import column

from reports.findings import Finding, Question, evaluate, load_questions
from reports.profile_rows import (
    Profile,
    ProfileDuration,
    ProfileFaults,
    ProfileFrame,
    ProfilePart,
    ProfileReaping,
    ProfileSite,
)
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


ABOUT_PROFILES = [q for q in load_questions() if q.id.startswith("profile-")]


@pytest.mark.parametrize("question", ABOUT_PROFILES, ids=lambda q: q.id)
def test_without_profiles_none_is_checked(tmp_path: Path, question: Question) -> None:
    contents = {"zones": made.tables()["zones"]}
    verdict = evaluate(made.write_bundle(tmp_path / "b", contents), [question])
    (missing,) = verdict.not_checked
    assert "no table profile" in missing.reason


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


def parts(tables: int, others: int) -> list[ProfilePart]:
    every = tables + others
    return [
        ProfilePart("faults", "cpu-clock", "page-fault", "fault", part, n, n / every, n / every)
        for part, n in (("page tables", tables), ("zeroing", others))
    ]


def test_faults_that_make_tables_are_told(tmp_path: Path) -> None:
    contents = made.profile_rows()
    contents["profile_parts"] = (*contents["profile_parts"][:2], parts(60, 60), "profiles")
    counted = [ProfileFaults("faults", "minor-faults", 7, "faults", 900, 890, "0x1", "0x2")]
    contents["profile_faults"] = (*contents["profile_faults"][:2], counted, "profiles")
    tables = [PageTables(9, "sparse", 10_240_000, 81_920_000)]
    contents["page_tables"] = ("Page tables", PageTables, tables, "page_tables")
    verdict = evaluate(made.write_bundle(tmp_path / "b", contents))
    (finding,) = (f for f in verdict.found if f.id == "profile-fault-tables")
    assert "50.0 %" in finding.title
    assert "900 faults touched 890 regions" in finding.saw
    assert "80,000 KiB of them sparse's" in finding.saw


def test_faults_that_fill_pages_are_not(tmp_path: Path) -> None:
    assert not found(tmp_path, {"profile_parts": parts(20, 100)}, "profile-fault-tables")


@dataclasses.dataclass(frozen=True)
class KsmPages:
    """As far as findings about profiles look."""

    pfn: int = column(key=True)
    visits_per_pass: int = column()
    visits_indexed: int | None = column()


def test_a_long_walk_is_told_beside_what_memory_predicts(tmp_path: Path) -> None:
    contents = made.profile_rows()
    walks = [ProfileDuration("rmap", "rmap_walk_ksm", 9, 10**9, 10_000, 2 * 10**8, 705 * 10**6)]
    contents["profile_durations"] = (*contents["profile_durations"][:2], walks, "profiles")
    pages = [KsmPages(1, 5_120_000, 256)]
    contents["ksm_pages"] = ("KSM pages", KsmPages, pages, "ksm")
    verdict = evaluate(made.write_bundle(tmp_path / "b", contents))
    (finding,) = (f for f in verdict.found if f.id == "profile-rmap-long")
    assert "705.0 ms" in finding.title
    assert "5,120,000 visits in the worst case, 256 would do" in finding.saw


def test_short_walks_are_not(tmp_path: Path) -> None:
    walks = [ProfileDuration("rmap", "rmap_walk", 9, 10**6, 10_000, 20_000, 3_000_000)]
    assert not found(tmp_path, {"profile_durations": walks}, "profile-rmap-long")


def test_who_allocates_atomically_is_told_beside_the_reserve(tmp_path: Path) -> None:
    contents = made.profile_rows()
    name, event = "atomic_alloc", "kmem:mm_page_alloc"
    row = Profile(name, event, "atomic-alloc", "events", 500, 500, 900, 400, None, 0, 500, 3, None,
                  "atomic_alloc_kmem_mm_page_alloc")  # fmt: skip
    contents["profiles"] = (*contents["profiles"][:2], [row], "profiles")
    frames = [
        ProfileFrame(name, event, frame, 0, total)
        for frame, total in (("handle_softirqs_[k]", 500), ("alloc_pages_[k]", 500),
                             ("icmp_reply_[k]", 450), ("tcp_rcv_[k]", 50))
    ]  # fmt: skip
    contents["profile_frames"] = (*contents["profile_frames"][:2], frames, "profiles")
    contents["zones"] = made.tables()["zones"]
    verdict = evaluate(made.write_bundle(tmp_path / "b", contents))
    (finding,) = (f for f in verdict.found if f.id == "profile-atomic-callers")
    assert "500 atomic allocations" in finding.title and "icmp_reply_[k]" in finding.title
    assert "450 of them" in finding.saw and "HighAtomic reserve" in finding.saw


def test_a_few_atomic_allocations_are_not(tmp_path: Path) -> None:
    row = Profile("a", "kmem:mm_page_alloc", "atomic-alloc", "events", 5, 5, 5, 0, None, 0, 5, 1,
                  None, None)  # fmt: skip
    assert not found(tmp_path, {"profiles": [row]}, "profile-atomic-callers")
