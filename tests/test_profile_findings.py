# SPDX-License-Identifier: LGPL-2.1-or-later
"""What profiles mean: each finding on a bundle where it holds, and on one where it does not."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made

from mmscope.drgn.tables.rows import column
from mmscope.reports.bundle.database import open_database
from mmscope.reports.findings.answerable import query_of
from mmscope.reports.findings.findings import (
    HIDES,
    Finding,
    Question,
    evaluate,
    load_questions,
)
from mmscope.reports.rows.profile_rows import (
    ProfileAllocation,
    ProfileDuration,
    ProfileFaults,
    ProfileFrame,
    ProfilePart,
    ProfileReaping,
    ProfileSite,
)


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


@pytest.mark.parametrize("question", ABOUT_PROFILES, ids=lambda q: q.id)
def test_without_rows_of_the_first_table_that_it_needs_nothing_is_found(
    tmp_path: Path, question: Question
) -> None:
    """Such a question is not asked. Here it is, of all the rest of some profiles."""
    database = open_database(made.write_bundle(tmp_path / "b", made.profile_rows()))
    table = question.needs[0].partition(".")[0]
    database.connection.execute(f'delete from "{table}"')
    assert not database.rows(query_of(database, question))


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
    assert finding.title.startswith("13.9 % of the cpu-clock samples of exit_path_never are skid")
    assert "exc_page_fault: the way in" in finding.saw and finding.harm == HIDES


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
    counted = [
        ProfileFaults("faults", "minor-faults", 7, "faults", 900, 890, "0x1", "0x2", 2 << 20)
    ]
    contents["profile_faults"] = (*contents["profile_faults"][:2], counted, "profiles")
    tables = [PageTables(9, "sparse", 10_240_000, 81_920_000)]
    contents["page_tables"] = ("Page tables", PageTables, tables, "page_tables")
    verdict = evaluate(made.write_bundle(tmp_path / "b", contents))
    (finding,) = (f for f in verdict.found if f.id == "profile-fault-tables")
    assert "50.0 %" in finding.title
    assert "900 faults touched 890 regions of 2 MiB" in finding.saw
    assert "80,000 KiB of them sparse's" in finding.saw


def test_faults_that_fill_pages_are_not(tmp_path: Path) -> None:
    assert not found(tmp_path, {"profile_parts": parts(20, 100)}, "profile-fault-tables")


@dataclasses.dataclass(frozen=True)
class KsmPages:
    """As far as findings about profiles look."""

    pfn: int = column(key=True)
    visits_per_pass: int = column()
    visits_indexed: int | None = column()


def walks(*rows: tuple[str, int]) -> list[ProfileDuration]:
    return [ProfileDuration("rmap", name, 9, 10**9, 10_000, longest, longest)
            for name, longest in rows]  # fmt: skip


def test_a_long_walk_is_told_beside_what_memory_predicts(tmp_path: Path) -> None:
    contents = made.profile_rows()
    took = walks(("rmap_walk_ksm", 705 * 10**6))
    contents["profile_durations"] = (*contents["profile_durations"][:2], took, "profiles")
    pages = [KsmPages(1, 5_120_000, 256)]
    contents["ksm_pages"] = ("KSM pages", KsmPages, pages, "ksm")
    verdict = evaluate(made.write_bundle(tmp_path / "b", contents))
    (finding,) = (f for f in verdict.found if f.id == "profile-rmap-long")
    # Without probes on the waits, the time is both; and a KSM page's is the sum of many holds.
    assert "705.0 ms, its waits for locks included" in finding.title
    assert "could not be seen" in finding.saw and "sum of these holds" in finding.why
    assert "5,120,000 visits in the worst case, 256 would do" in finding.saw


def test_a_walk_that_only_waited_is_a_victim_and_not_told(tmp_path: Path) -> None:
    took = walks(("rmap_walk_anon", 700 * 10**6), ("rmap_walk_anon, waiting", 699 * 10**6),
                 ("rmap_walk_anon, not waiting", 10**6))  # fmt: skip
    assert not found(tmp_path, {"profile_durations": took}, "profile-rmap-long")


def test_a_walk_that_holds_its_lock_is_told_without_its_waits(tmp_path: Path) -> None:
    took = walks(("rmap_walk_anon", 61 * 10**6), ("rmap_walk_anon, waiting", 21 * 10**6),
                 ("rmap_walk_anon, not waiting", 40 * 10**6))  # fmt: skip
    (finding,) = found(tmp_path, {"profile_durations": took}, "profile-rmap-long")
    assert "a rmap_walk_anon took 40.0 ms without its waits for locks" in finding.title
    assert "waited 21.0 ms for locks at most" in finding.saw
    assert "all that time" in finding.why and "KSM" not in finding.why


def test_walks_of_ksm_pages_among_the_others_are_named(tmp_path: Path) -> None:
    took = walks(("rmap_walk", 40 * 10**6), ("rmap_walk, waiting", 0),
                 ("rmap_walk, not waiting", 40 * 10**6), ("rmap_walk_ksm", 39 * 10**6),
                 ("rmap_walk_ksm, waiting", 0),
                 ("rmap_walk_ksm, not waiting", 39 * 10**6))  # fmt: skip
    whole, ksm = found(tmp_path, {"profile_durations": took}, "profile-rmap-long")
    assert "KSM pages are among these" in whole.why and "sum of these holds" in ksm.why


def test_short_walks_are_not(tmp_path: Path) -> None:
    took = walks(("rmap_walk_file", 3_000_000))
    assert not found(tmp_path, {"profile_durations": took}, "profile-rmap-long")


ATOMIC = "atomic_alloc"


def atomic(*rows: ProfileAllocation) -> dict[str, list[Any]]:
    event = "mmscope:reserve" if rows[0].reservations is not None else "kmem:mm_page_alloc"
    frames = [
        ProfileFrame(ATOMIC, event, frame, 0, total)
        for frame, total in (("handle_softirqs_[k]", 8), ("__alloc_pages_slowpath_[k]", 8),
                             ("move_freepages_block_[k]", 8), ("icmp_reply_[k]", 6))
    ]  # fmt: skip
    innocent = ProfileFrame(ATOMIC, "cpu-clock", "page_frag_alloc_[k]", 0, 9_000)
    return {"profile_allocations": list(rows), "profile_frames": [*frames, innocent]}


def test_who_reserves_is_told_beside_the_reserve(tmp_path: Path) -> None:
    contents = made.profile_rows()
    for table, rows in atomic(
        ProfileAllocation(ATOMIC, 1, 400, 2, 0, 0),
        ProfileAllocation(ATOMIC, 3, 500, 0, 8, 180),
        ProfileAllocation(ATOMIC, 0, 0, 0, 0, 70),  # of a page: not what the reserve is for
    ).items():
        contents[table] = (*contents[table][:2], rows, "profiles")
    contents["zones"] = made.tables()["zones"]
    verdict = evaluate(made.write_bundle(tmp_path / "b", contents))
    (finding,) = (f for f in verdict.found if f.id == "profile-atomic-callers")
    assert "8 pageblocks became HighAtomic reserve, most through icmp_reply_[k]" in finding.title
    assert "2 of 900 such allocations failed" in finding.title
    assert "(order 1), 180 were served from the reserve" in finding.saw
    assert "6 of them through icmp_reply_[k]" in finding.saw
    assert "pages are HighAtomic reserve" in finding.saw


def test_failures_are_told_where_nobody_reserves(tmp_path: Path) -> None:
    rows = atomic(ProfileAllocation(ATOMIC, 3, 500, 7, 0, 0))
    (finding,) = found(tmp_path, rows, "profile-atomic-callers")
    assert "7 of 500 such allocations failed" in finding.title


def test_where_it_cannot_be_seen_who_reserves_that_is_said(tmp_path: Path) -> None:
    rows = atomic(ProfileAllocation(ATOMIC, 3, 500, 0, None, None))
    (finding,) = found(tmp_path, rows, "profile-atomic-callers")
    assert "500 atomic allocations" in finding.title and "could not be seen" in finding.saw
    assert "served" not in finding.saw


def test_many_atomic_allocations_that_reserve_nothing_are_none_to_tell(tmp_path: Path) -> None:
    rows = atomic(ProfileAllocation(ATOMIC, 3, 500_000, 0, 0, 0))
    assert not found(tmp_path, rows, "profile-atomic-callers")
