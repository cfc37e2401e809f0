# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about what ``mmscope watch`` saw: found, not so, and not to be told."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from rows_of_tables import TABLE_OF, rows_by_type, tables_of_sections

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import open_database
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.finding import CANNOT_TELL, NO_TROUBLE, TROUBLE, Finding, Verdict
from mmscope.reports.findings.findings import ask, evaluate, named
from mmscope.reports.findings.question import OURS
from mmscope.reports.findings.verdict import first_incident
from mmscope.reports.page.card import culprit
from mmscope.reports.rows.watch_rows import (
    CounterRate,
    Level,
    PsiStall,
    ThpFreeBlocks,
    WatchHolder,
    WatchKill,
    WatchSample,
    WatchSleeper,
    ZoneLevel,
)
from mmscope.reports.watch.watch_tables import gauges

QUESTIONS = [question for question in OURS() if question.id.startswith("watch-")]
PERIOD = 10.0


def asked(
    path: Path, rows: list[Any], samples: int = 7, total_pages: int | None = None,
    every: float = PERIOD,
) -> Verdict:  # fmt: skip
    """What is said of these rows, in a watch of a sample every ten seconds."""
    path.mkdir(exist_ok=True)
    watched: list[Any] = []
    for number in range(samples):
        at = f"2026-11-20T03:{number // 6:02}:{number % 6}0.000+00:00"
        period = every if number else None
        watched.append(WatchSample(number * every, at, period, 0, 0, 0, None, None, None, None))
    read = [table.row for table in tables_of_sections("watch")]
    tables = rows_by_type([*watched, *rows], empty=read)
    with Writer(path / "b") as writer:
        for row_type, of_type in tables.items():
            writer.table(TABLE_OF[row_type].name, "x", row_type, of_type, section="watch")
        section = SectionResult("watch", "ok", 0.1, 1, 0, None)
        target = {"kind": "live", "page_size": 4096, "total_pages": total_pages}
        writer.finish(target, [section])
    return evaluate(Bundle(path / "b"), QUESTIONS)


def found(verdict: Verdict, id: str) -> Finding | None:
    """One finding; it was at least asked."""
    assert id in {f.id for f in verdict.found} | {id for id, _ in verdict.silent}
    return next((f for f in verdict.found if f.id == id), None)


def moved(number: int, **deltas: int) -> list[CounterRate]:
    """Counters that moved in the n-th period; the page fault of the watch is always there."""
    return [
        CounterRate(number * PERIOD, "vmstat", name, delta, delta / PERIOD, PERIOD)
        for name, delta in (("pgfault", 1), *deltas.items())
    ]


def level(number: int, name: str, mebibytes: float) -> Level:
    return Level(number * PERIOD, "meminfo", name, int(mebibytes * 2**20), "bytes")


def stalled(number: int, full: float, some: float) -> list[PsiStall]:
    return [
        PsiStall(number * PERIOD, kind, 0.0, share * PERIOD, share, PERIOD)
        for kind, share in (("some", some), ("full", full))
    ]


def each_second(shares: list[float]) -> list[PsiStall]:
    """Tasks that waited so much of each second."""
    return [PsiStall(float(n), kind, 0.0, share, share, 1.0)
            for n, share in enumerate(shares, 1) for kind in ("some", "full")]  # fmt: skip


def free(number: int, pages: int, **blocks: int) -> list[Any]:
    """Free pages of a zone of a million, and blocks of THP size by migratetype."""
    time = number * PERIOD
    zone = ZoneLevel(time, 0, "Normal", 1_000_000, pages, 1, 2, 3, 0, None, None)
    return [zone, *(ThpFreeBlocks(time, 0, "Normal", t, n, False) for t, n in blocks.items())]


def test_an_oom_kill(tmp_path: Path) -> None:
    rows = [*moved(2, oom_kill=1), *moved(4, oom_kill=2), level(1, "MemAvailable", 12),
            level(1, "MemTotal", 1000), level(2, "MemAvailable", 900)]  # fmt: skip
    finding = found(asked(tmp_path, rows), "watch-oom-kill")
    assert finding is not None and finding.severity == "critical"
    assert finding.title == "The OOM killer took 3 processes in 60 s"
    assert finding.saw == (
        "oom_kill: +3 in 2 periods, the first in the 10 s before 2026-11-20 03:00:20 UTC; "
        "MemAvailable shortly before: 12 MiB."
    )
    assert finding.since == "within 10 s before 2026-11-20 03:00:20 UTC"


@pytest.mark.parametrize(
    ("kills", "available", "severity"),
    [(1, 400, "notice"), (5, 400, "warning"), (1, 40, "critical")],
)
def test_an_oom_kill_where_memory_was_to_be_had_is_one_of_a_limit(
    tmp_path: Path, kills: int, available: int, severity: str
) -> None:
    rows = [*moved(2, oom_kill=kills), level(1, "MemAvailable", available),
            level(1, "MemTotal", 1000)]  # fmt: skip
    finding = found(asked(tmp_path, rows), "watch-oom-kill")
    assert finding is not None and finding.severity == severity


@pytest.mark.parametrize(("stalls", "severity"), [(15, "notice"), (40, "warning")])
def test_an_oom_kill_after_the_machines_own_reclaim_is_of_some_nodes_or_zones(
    tmp_path: Path, stalls: int, severity: str
) -> None:
    rows = [*moved(2, oom_kill=1, allocstall_movable=stalls), level(1, "MemAvailable", 400),
            level(1, "MemTotal", 1000)]  # fmt: skip
    finding = found(asked(tmp_path, rows), "watch-oom-kill")
    assert finding is not None and finding.severity == severity
    assert (f"began {stalls} times (allocstall) in the 10 s" in finding.saw) == (stalls >= 16)


def test_what_a_victim_gave_back_before_its_kill_was_counted_was_not_there(tmp_path: Path) -> None:
    rows = [*moved(3, oom_kill=1), level(1, "MemAvailable", 5), level(2, "MemAvailable", 300),
            level(1, "MemTotal", 1000)]  # fmt: skip
    finding = found(asked(tmp_path, rows), "watch-oom-kill")
    assert finding is not None and finding.severity == "critical"


@pytest.mark.parametrize(("whose", "severity"), [("machine", "warning"), ("cgroup", "notice")])
def test_a_kill_that_the_log_says_was_for_no_cgroups_limit_is_trouble(
    tmp_path: Path, whose: str, severity: str
) -> None:
    rows = [*moved(2, oom_kill=1), level(1, "MemAvailable", 400), level(1, "MemTotal", 1000)]
    finding = found(
        asked(tmp_path, [*rows, WatchKill(20.0, 8, "db", whose, 900 << 20)]), "watch-oom-kill"
    )
    assert finding and finding.severity == severity


def test_no_oom_kill(tmp_path: Path) -> None:
    assert found(asked(tmp_path, moved(1)), "watch-oom-kill") is None


def test_counters_that_were_never_read(tmp_path: Path) -> None:
    verdict = asked(tmp_path, [])
    reasons = {item.id: item.reason for item in verdict.not_checked}
    for id in ("watch-oom-kill", "watch-thp-falls-back", "watch-compaction-fails"):
        assert reasons[id] == "counter_rates has no row where source = 'vmstat'"
    assert reasons["watch-memory-pressure"] == "psi_series has no row where kind = 'full'"
    assert "watch-kernel-memory-grows" in reasons


def test_huge_pages_that_only_the_reserve_has(tmp_path: Path) -> None:
    rows = [*free(0, 300_000, Movable=4, HighAtomic=5), *free(1, 250_000, Movable=0, HighAtomic=5),
            *free(2, 200_000, Movable=0, HighAtomic=7, Isolate=1),
            *moved(1, thp_fault_fallback=40)]  # fmt: skip
    finding = found(asked(tmp_path, rows), "watch-thp-blocks-ran-out")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == (
        "All free blocks of THP size were in the HighAtomic reserve in 2 of 3 readings, with "
        "20.0 % of memory free or more"
    )
    assert "at least 200,000 pages (781.2 MiB) were free at these moments" in finding.saw
    assert "The reserve had up to 7 such blocks then" in finding.saw
    assert "thp_fault_fallback +40" in finding.saw


def test_a_reserve_that_has_all_while_most_faults_fall_back_is_critical(tmp_path: Path) -> None:
    rows = [row for n in range(4) for row in free(n, 300_000, Movable=0, HighAtomic=5)]
    for alloc, fallback, severity in ((51, 50, "warning"), (50, 51, "critical")):
        counters = moved(1, thp_fault_alloc=alloc, thp_fault_fallback=fallback)
        verdict = asked(tmp_path / severity, [*rows, *counters])
        finding = found(verdict, "watch-thp-blocks-ran-out")
        assert finding is not None and finding.severity == severity


def test_huge_pages_that_nothing_has(tmp_path: Path) -> None:
    rows = [row for n in range(2) for row in free(n, 300_000, Movable=0, HighAtomic=0)]
    finding = found(asked(tmp_path, rows), "watch-thp-blocks-ran-out")
    assert finding is not None
    assert finding.title.startswith("No free block that a huge page may take in 2 of 2 readings")


@pytest.mark.parametrize(
    "second",
    [free(1, 200_000, Movable=1, HighAtomic=5), free(1, 32_767, Movable=0, HighAtomic=5)],
    ids=["one reading only", "nor was memory free"],
)
def test_huge_pages_that_are_not_short(tmp_path: Path, second: list[Any]) -> None:
    rows = [*free(0, 300_000, Movable=0, HighAtomic=5), *second]
    assert found(asked(tmp_path, rows), "watch-thp-blocks-ran-out") is None


def test_blocks_of_unknown_migratetype(tmp_path: Path) -> None:
    time, *_ = rows = free(0, 300_000)
    rows.append(ThpFreeBlocks(time.time, 0, "Normal", None, 0, False))
    verdict = asked(tmp_path, rows)
    reasons = {item.id: item.reason for item in verdict.not_checked}
    assert "migratetype is unknown" in reasons["watch-thp-blocks-ran-out"]


def test_faults_that_fall_back(tmp_path: Path) -> None:
    rows = [*moved(1, thp_fault_alloc=10, thp_fault_fallback=50), *moved(3, thp_fault_fallback=40)]
    finding = found(asked(tmp_path, rows), "watch-thp-falls-back")
    assert finding is not None
    assert finding.title == ("90 of 100 THP page faults (90.0 %) got no huge page while watched")
    assert "thp_fault_fallback +90 in 60 s: 1.5 fallbacks a second." in finding.saw


def test_faults_that_fall_back_at_last(tmp_path: Path) -> None:
    """Ten minutes, in the first of which huge pages were to be had; the last one ends the watch."""
    rows = [*moved(1, thp_fault_alloc=900), *moved(54, thp_fault_fallback=300)]
    late = moved(55, thp_fault_alloc=2), moved(60, thp_fault_fallback=58)
    verdict = asked(tmp_path, [*rows, *late[0], *late[1]], samples=61)
    finding = found(verdict, "watch-thp-falls-back")
    assert finding is not None
    assert finding.title == (
        "58 of 60 THP page faults (96.7 %) got no huge page in the last 60 s that were watched"
    )
    assert "thp_fault_fallback +58 in 60 s: 0.967 fallbacks a second." in finding.saw
    few = asked(tmp_path / "few", [*rows, *moved(60, thp_fault_fallback=49)], samples=61)
    assert found(few, "watch-thp-falls-back") is None


@pytest.mark.parametrize("alloc, fallback", [(50, 50), (0, 49), (0, 0)])
def test_faults_that_do_not(tmp_path: Path, alloc: int, fallback: int) -> None:
    rows = moved(1, thp_fault_alloc=alloc, thp_fault_fallback=fallback)
    assert found(asked(tmp_path, rows), "watch-thp-falls-back") is None


def test_compaction_in_vain(tmp_path: Path) -> None:
    rows = [*moved(1, compact_fail=15, compact_migrate_scanned=9000), *moved(2, compact_fail=5)]
    finding = found(asked(tmp_path, rows), "watch-compaction-fails")
    assert finding is not None
    assert finding.title == "Direct compaction succeeded in 0 of 20 attempts (0 %) while watched"
    assert "9,000 pages were scanned" in finding.saw


@pytest.mark.parametrize("success, fail", [(1, 19), (0, 19)])
def test_compaction_that_helps_or_was_hardly_tried(tmp_path: Path, success: int, fail: int) -> None:
    rows = moved(1, compact_success=success, compact_fail=fail)
    assert found(asked(tmp_path, rows), "watch-compaction-fails") is None


def test_pressure_of_all_tasks(tmp_path: Path) -> None:
    rows = [row for n in range(1, 7) for row in stalled(n, 0.25 if n == 4 else 0.0, 0.3)]
    finding = found(asked(tmp_path, rows), "watch-memory-pressure")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == (
        "Memory pressure: PSI full 4.2 % of the time, 25.0 % in the worst 10 s"
    )
    assert "2.5 s of 60 s (4.2 %); worst in the 10 s before 2026-11-20 03:00:40 UTC" in finding.saw
    assert "PSI some: 30.0 % of the time." in finding.saw


def test_pressure_of_seconds(tmp_path: Path) -> None:
    """With a sample a second: half of four seconds, and nearly all of one."""
    shares = [0.5 if 10 <= n < 14 else 0.0 for n in range(1, 120)]
    verdict = asked(tmp_path / "a", each_second(shares), 120, every=1.0)
    assert found(verdict, "watch-memory-pressure") is not None
    blink = [0.9 if n == 10 else 0.0 for n in range(1, 120)]
    verdict = asked(tmp_path / "b", each_second(blink), 120, every=1.0)
    assert found(verdict, "watch-memory-pressure") is None


def test_pressure_most_of_the_time_is_critical(tmp_path: Path) -> None:
    rows = [row for n in range(1, 7) for row in stalled(n, 0.2, 0.3)]
    finding = found(asked(tmp_path, rows), "watch-memory-pressure")
    assert finding is not None and finding.severity == "critical"


def test_memory_that_is_taken_by_the_kernel(tmp_path: Path) -> None:
    rows = [*(level(n, "MemTotal", 1000) for n in range(3)),
            *(level(n, "PageTables", 5 if n < 2 else 300) for n in range(3))]  # fmt: skip
    finding = found(asked(tmp_path, rows), "watch-memory-taken")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "Page tables: 300 MiB, 30.0 % of memory, at the end of the watch"
    assert "went from 5 MiB to 300 MiB in 20 s" in finding.saw


def test_shared_memory_that_a_watch_sees_is_no_trouble_and_not_cleared(tmp_path: Path) -> None:
    rows = [row for n in range(3) for row in (level(n, "MemTotal", 1000), level(n, "Shmem", 400))]
    verdict = asked(tmp_path, rows)
    assert [finding.severity for finding in verdict.found] == ["notice"]
    assert verdict.word == CANNOT_TELL
    (blind,) = verdict.blind
    assert blind.startswith(
        "whether a process has 400 MiB of shared memory, 40.0 % of memory, was not"
    )


def test_shared_memory_explains_what_runs_out(tmp_path: Path) -> None:
    rows = [*falls_to(40), *(level(n, "Shmem", 100 * n) for n in range(6))]
    first = first_incident(asked(tmp_path, rows))
    assert [cause.id for cause, *_ in first.causes] == ["watch-memory-taken"]
    assert [effect.id for effect, *_ in first.effects] == ["watch-memory-runs-out"]


@pytest.mark.parametrize(
    ("name", "mebibytes"), [("PageTables", 40), ("Shmem", 240), ("AnonPages", 900)]
)
def test_memory_that_is_taken_as_it_is_meant(tmp_path: Path, name: str, mebibytes: float) -> None:
    verdict = asked(tmp_path, [level(1, "MemTotal", 1000), level(1, name, mebibytes)])
    assert found(verdict, "watch-memory-taken") is None and verdict.word == NO_TROUBLE


def test_what_no_line_of_meminfo_has_is_not_cleared(tmp_path: Path) -> None:
    hole = Level(10.0, "computed", "Memory in no counter", 80 << 20, "bytes")
    verdict = asked(tmp_path, [level(1, "MemTotal", 1000), hole])
    assert (
        verdict.word == CANNOT_TELL
        and "80 MiB, 8.0 % of memory, is in no line of /proc/meminfo" in verdict.blind[0]
    )


def test_pressure_that_is_little(tmp_path: Path) -> None:
    rows = [row for n in range(1, 7) for row in stalled(n, 0.019, 0.9)]
    assert found(asked(tmp_path, rows), "watch-memory-pressure") is None


def test_kernel_memory_that_only_grows(tmp_path: Path) -> None:
    rows = [level(n, "SUnreclaim", 1000 + 10 * n) for n in range(12)]
    rows += [level(n, "MemAvailable", 7200) for n in range(12)]
    finding = found(asked(tmp_path, rows, samples=12), "watch-kernel-memory-grows")
    assert finding is not None and finding.severity == "notice"
    assert finding.title == "Unreclaimable slab grew steadily: +110 MiB in 1 min 50 s"
    assert "1000 MiB in the first of 12 samples, 1.084 GiB in the last: 1 MiB a second" in (
        finding.saw
    )
    assert "At this rate memory runs out in about 2 h 0 min (7.031 GiB available)." in finding.saw


@pytest.mark.parametrize(
    "of",
    [lambda n: 1000 + 10 * (n % 6), lambda n: 1000 + 4 * n, lambda n: 1000 + 100 * (n > 10),
     lambda n: 10 + 2 * n],
    ids=["comes back", "less than a twentieth", "one step", "less than 32 MiB"],
)  # fmt: skip
def test_kernel_memory_that_does_not(tmp_path: Path, of: Any) -> None:
    rows = [level(n, "PageTables", of(n)) for n in range(12)]
    assert found(asked(tmp_path, rows, samples=12), "watch-kernel-memory-grows") is None


def test_growth_in_too_few_samples(tmp_path: Path) -> None:
    rows = [level(n, "PageTables", 100 + 100 * n) for n in range(9)]
    assert found(asked(tmp_path, rows, samples=9), "watch-kernel-memory-grows") is None


def test_other_memory_may_grow(tmp_path: Path) -> None:
    rows = [level(n, "AnonPages", 100 + 100 * n) for n in range(12)]
    assert found(asked(tmp_path, rows, samples=12), "watch-kernel-memory-grows") is None


def test_growth_of_a_hundredth_of_memory_is_a_warning(tmp_path: Path) -> None:
    rows = [level(n, "SUnreclaim", 1000 + 10 * n) for n in range(12)]
    for total, severity in ((11_001, "notice"), (11_000, "warning")):
        levels = [*rows, *(level(n, "MemTotal", total) for n in range(12))]
        finding = found(asked(tmp_path / severity, levels, 12), "watch-kernel-memory-grows")
        assert finding is not None and finding.severity == severity


def test_growth_of_what_no_line_of_meminfo_has(tmp_path: Path) -> None:
    rows = []
    for n in range(12):
        said = {"MemTotal": 8000, "MemFree": 4000 - 100 * n, "AnonPages": 2000, "Cached": 1500,
                "SUnreclaim": 0}  # fmt: skip
        rows += gauges([(10 * n, {"meminfo": {name: mib << 20 for name, mib in said.items()}})])
    finding = found(asked(tmp_path, rows, 12), "watch-kernel-memory-grows")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "Memory in no counter grew steadily: +1.074 GiB in 1 min 50 s"
    assert "500 MiB in the first of 12 samples" in finding.saw


def test_growth_that_began_while_it_was_watched(tmp_path: Path) -> None:
    """A line over all of it fits badly; guard captures by that over the last three minutes."""
    rows = [level(n, "PageTables", 1000 + 20 * max(n - 40, 0)) for n in range(59)]
    total = [level(n, "MemTotal", 8000) for n in range(59)]
    finding = found(asked(tmp_path / "a", rows + total, 59), "watch-kernel-memory-grows")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "Page tables grew steadily: +360 MiB in 3 min 10 s"
    # Less than a hundredth of memory in so short a time is no leak yet.
    total = [level(n, "MemTotal", 40_000) for n in range(59)]
    assert found(asked(tmp_path / "b", rows + total, 59), "watch-kernel-memory-grows") is None


def test_what_no_line_has_is_unknown_where_lines_are_missing() -> None:
    rows = gauges([(0, {"meminfo": {"MemTotal": 8000, "MemFree": 100, "AnonPages": 7}})])
    assert {row.source for row in rows} == {"meminfo"}


def test_growth_that_is_little_for_the_machine(tmp_path: Path) -> None:
    rows = [level(n, "PageTables", 100 + 10 * n) for n in range(12)]
    rows += [level(n, "MemTotal", 512 << 10) for n in range(12)]
    assert found(asked(tmp_path, rows, 12), "watch-kernel-memory-grows") is None


def refaulted(rate: float, full: float | None) -> list[Any]:
    """A minute of so many refaults of files a second, a fifth of them soon."""
    rows = [row for n in range(1, 7)
            for row in moved(n, workingset_refault_file=int(rate * PERIOD),
                             workingset_activate_file=int(rate * PERIOD / 5))]  # fmt: skip
    return rows + [row for n in range(1, 7) if full is not None for row in stalled(n, full, full)]


@pytest.mark.parametrize(
    ("rate", "full", "severity"),
    [(40_000, 0.15, "warning"), (40_000, 0.3, "critical"), (600, 0.02, "warning"),
     (40_000, 0.001, "notice"), (40_000, None, "notice")],
)  # fmt: skip
def test_files_that_are_read_again(
    tmp_path: Path, rate: float, full: float | None, severity: str
) -> None:
    finding = found(asked(tmp_path, refaulted(rate, full)), "watch-refaults")
    assert finding is not None and finding.severity == severity
    assert finding.title == (f"{rate:,} evicted file pages a second were read back, for 60 s")
    assert f"at least {rate * 12:,} came back soon" in finding.saw


def test_what_the_multi_gen_lru_counts_as_soon(tmp_path: Path) -> None:
    rows = [row for n in range(1, 7)
            for row in moved(n, workingset_refault_file=100_000, workingset_activate_file=10,
                             workingset_restore_file=50_000, pgsteal_file=125_000)]  # fmt: skip
    finding = found(asked(tmp_path, rows), "watch-refaults")
    assert finding is not None and "at least 300,000 came back soon" in finding.saw
    assert "750,000 file pages were reclaimed" in finding.saw and "80 came back" in finding.saw


@pytest.mark.parametrize(("rate", "full"), [(400, 0.3), (4_000, 0.001), (4_000, None)])
def test_files_that_are_read_again_now_and_then(
    tmp_path: Path, rate: float, full: float | None
) -> None:
    assert found(asked(tmp_path, refaulted(rate, full)), "watch-refaults") is None


def test_swap_both_ways(tmp_path: Path) -> None:
    rows = [*moved(1, pswpin=2000, pswpout=9000), *moved(4, pswpin=1000, workingset_refault_anon=7)]
    finding = found(asked(tmp_path, rows), "watch-swap-thrash")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "50 pages a second were swapped in and 150 out, for 60 s"
    assert finding.saw == ("pswpin +3,000 (11.72 MiB), pswpout +9,000, workingset_refault_anon +7.")


def test_swap_both_ways_without_end_is_critical(tmp_path: Path) -> None:
    finding = found(asked(tmp_path, moved(1, pswpin=30_000, pswpout=90_000)), "watch-swap-thrash")
    assert finding is not None and finding.severity == "critical"


def test_swap_both_ways_for_which_no_task_waits_is_a_notice(tmp_path: Path) -> None:
    rows = [*moved(1, pswpin=30_000, pswpout=90_000), *stalled(1, 0.003, 0.02)]
    finding = found(asked(tmp_path, rows), "watch-swap-thrash")
    assert finding is not None and finding.severity == "notice"
    assert "PSI full: 0.3 % of the time" in finding.saw


def test_time_that_was_lost_to_swap_is_a_part_of_all_time(tmp_path: Path) -> None:
    """Periods are not equally long: a bad second among minutes is not half of the time."""
    bad = PsiStall(1.0, "full", 0.0, 0.5, 0.5, 1.0)
    quiet = PsiStall(200.0, "full", 0.0, 0, 0, 199.0)
    rows = [*moved(1, pswpin=30_000, pswpout=90_000), bad, quiet]
    finding = found(asked(tmp_path, rows), "watch-swap-thrash")
    assert finding is not None and finding.severity == "notice"
    assert "PSI full: 0.2 % of the time" in finding.saw


@pytest.mark.parametrize(
    ("into", "out", "total"),
    [(2_999, 90_000, None), (90_000, 2_999, None), (5_000, 5_000, 64 << 18)],
    ids=["out", "in", "little for the machine"],
)
def test_swap_as_it_is_meant(tmp_path: Path, into: int, out: int, total: int | None) -> None:
    rows = moved(1, pswpin=into, pswpout=out)
    assert found(asked(tmp_path, rows, total_pages=total), "watch-swap-thrash") is None


def zone_at(number: int, pages: int, **changes: Any) -> ZoneLevel:
    """A zone with its marks at 1,000, 1,250 and 1,500 pages."""
    zone = ZoneLevel(number * PERIOD, 0, "Normal", 1_000_000, pages, 1000, 1250, 1500, 0, 0, 0)
    return dataclasses.replace(zone, **changes)


def falls_to(mebibytes: float, swap: float = 0.0, total: float = 1_000.0) -> list[Level]:
    return [
        row for n in range(6)
        for row in (level(n, "MemTotal", total), level(n, "SwapFree", swap),
                    level(n, "MemAvailable", total - (total - mebibytes) * n / 5))
    ]  # fmt: skip


def test_memory_that_runs_out(tmp_path: Path) -> None:
    finding = found(asked(tmp_path, falls_to(40, swap=5)), "watch-memory-runs-out")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == (
        "Memory has nearly run out: 40 MiB, 4.0 % of memory, available at the end"
    )
    assert finding.saw.startswith("MemAvailable went from 1000 MiB to 40 MiB in ")


def test_memory_that_runs_out_into_a_pool(tmp_path: Path) -> None:
    """A pool that was made in the watch is where memory went; what was there before is not."""
    rows = [*falls_to(40), *(level(n, "Hugetlb", 100 if n < 3 else 800) for n in range(6))]
    finding = found(asked(tmp_path, rows), "watch-memory-runs-out")
    assert finding is not None
    assert "40 MiB, 4.4 % of memory beside the hugetlb pool, available" in finding.title


@pytest.mark.parametrize(
    "rows",
    [falls_to(60), falls_to(40, swap=20), falls_to(4_000, total=100_000),
     [*falls_to(40), *(level(n, "Hugetlb", 800) for n in range(6))]],
    ids=["more than a twentieth", "with swap", "a large machine", "beside a pool of hugetlb pages"],
)  # fmt: skip
def test_memory_that_does_not(tmp_path: Path, rows: list[Any]) -> None:
    assert found(asked(tmp_path, rows), "watch-memory-runs-out") is None


def test_a_zone_that_stays_below_low(tmp_path: Path) -> None:
    rows = [zone_at(n, 1_100 if n % 2 else 1_300) for n in range(6)]
    finding = found(asked(tmp_path, rows), "watch-below-low")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "Node 0 zone Normal was below the low watermark in 3 of 6 readings"
    assert finding.saw == (
        "At least 1,100 pages were usable, the low watermark is 1,250, min 1,000, without boost."
    )


def test_a_zone_that_stays_below_min_is_critical(tmp_path: Path) -> None:
    rows = [zone_at(n, 900 if n == 2 else 1_100) for n in range(5)]
    finding = found(asked(tmp_path, rows), "watch-below-low")
    assert finding is not None and finding.severity == "critical"
    assert finding.title.endswith("in 5 of 5 readings, below min in 1")
    # What that did is pressure's to say, and whose it is.
    rows += [row for n in range(1, 5) for row in stalled(n, 0.3, 0.4)]
    verdict = asked(tmp_path / "pressure", rows)
    assert found(verdict, "watch-below-low").severity == "warning"
    assert first_incident(verdict).causes[0][0].id == "watch-memory-pressure"


@pytest.mark.parametrize(
    "rows",
    [
        [zone_at(n, 1_100 if n < 2 else 1_300) for n in range(6)],
        [zone_at(n, 1_100) for n in range(4)],
        [zone_at(n, 1_300, wmark_low=1_750, wmark_boost=500) for n in range(6)],
        [row for n in range(6)
         for row in (zone_at(n, 1_100, zone="DMA32", managed_pages=9_000), zone_at(n, 9_000))],
        [row for n in range(6)
         for row in (zone_at(n, 9_000, zone="DMA32", managed_pages=600_000), zone_at(n, 1_100))],
    ],
    ids=["now and then", "too few readings", "the boost", "a lesser zone", "filled first"],
)  # fmt: skip
def test_a_zone_that_kswapd_keeps(tmp_path: Path, rows: list[Any]) -> None:
    assert found(asked(tmp_path, rows), "watch-below-low") is None


def test_reclaim_that_gets_nothing(tmp_path: Path) -> None:
    rows = moved(1, pgscan_kswapd=90_000, pgscan_direct=10_000, pgsteal_kswapd=5_000,
                 allocstall_normal=3, allocstall_movable=4)  # fmt: skip
    finding = found(asked(tmp_path, rows, total_pages=10_000_000), "watch-reclaim-in-vain")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "Reclaim freed 5.0 % of the 100,000 pages that it scanned"
    assert finding.saw == (
        "pgscan +100,000 in 60 s (10,000 by direct reclaim), pgsteal +5,000; direct reclaim 7 "
        "times (allocstall)."
    )


@pytest.mark.parametrize(("scanned", "stolen"), [(100_000, 10_000), (99_999, 0)])
def test_reclaim_that_gets_something_or_hardly_runs(
    tmp_path: Path, scanned: int, stolen: int
) -> None:
    rows = moved(1, pgscan_kswapd=scanned, pgsteal_kswapd=stolen)
    verdict = asked(tmp_path, rows, total_pages=10_000_000)
    assert found(verdict, "watch-reclaim-in-vain") is None


def test_few_fallbacks_for_the_machine(tmp_path: Path) -> None:
    rows = moved(1, thp_fault_alloc=10, thp_fault_fallback=90)
    for total, is_found in ((512 * 100_000, True), (512 * 100_001, False)):
        verdict = asked(tmp_path / str(total), rows, total_pages=total)
        assert (found(verdict, "watch-thp-falls-back") is not None) is is_found


# Whose it is


def held(kind: str, name: str, first: int, last: int, gone: bool = False, **more: Any) -> Any:
    """A holder, in MiB; a process has pid 7."""
    columns = dict.fromkeys(WatchHolder.__dataclass_fields__)
    columns |= {"kind": kind, "name": name, "pid": 7 if kind == "process" else None, "gone": gone}
    columns |= {"first_bytes": first << 20, "most_bytes": max(first, last) << 20}
    columns |= {"last_bytes": 0 if gone else last << 20, "last_time": 60.0, **more}
    return WatchHolder(**columns)  # type: ignore[arg-type]


def owner(verdict: Verdict, id: str) -> str:
    finding = found(verdict, id)
    assert finding is not None
    return finding.owner


def test_what_runs_out_is_of_who_gained_it(tmp_path: Path) -> None:
    others = [held("process", "small", 10, 20), held("slab cache", "dentry", 5, 400)]
    grew = asked(tmp_path / "a", [*falls_to(40), held("process", "java", 50, 800), *others])
    assert owner(grew, "watch-memory-runs-out") == "java (pid 7)"
    none = asked(tmp_path / "b", [*falls_to(40), *others])
    assert owner(none, "watch-memory-runs-out") == ""


def test_a_tenth_is_little_beside_a_process_that_has_half(tmp_path: Path) -> None:
    java = [held("process", "java", 50, 800)]
    finding = found(asked(tmp_path / "a", [*falls_to(60), *java]), "watch-memory-runs-out")
    assert finding is not None and finding.owner == "java (pid 7)"
    assert "60 MiB, 6.0 % of memory, available at the end" in finding.title
    shared = [*falls_to(60), *(level(n, "Shmem", 100 * n + 100) for n in range(6))]
    assert found(asked(tmp_path / "c", shared), "watch-memory-runs-out")
    for rows in ([*falls_to(60), held("process", "java", 50, 400)],
                 [*falls_to(60, swap=50), *java],
                 [*falls_to(300, total=4_000), held("process", "java", 50, 3_000)]):  # fmt: skip
        assert found(asked(tmp_path / "b", rows), "watch-memory-runs-out") is None
        shutil.rmtree(tmp_path / "b")


def test_files_that_nobody_has_open_are_said_and_open_ones_are_of_who_has_them(
    tmp_path: Path,
) -> None:
    memory = [level(n, name, size) for n in range(7) for name, size in
              (("MemTotal", 1000), ("Shmem", 450))]  # fmt: skip
    left = [held("shared file", "/dev/shm/job_1", 0, 250, held=False),
            held("shared file", "/dev/shm/job_2", 0, 150, held=False)]  # fmt: skip
    said = asked(tmp_path / "a", [*memory, *left])
    assert owner(said, "watch-files-left") == "/dev/shm/job_1"
    assert said.word == TROUBLE
    many = [held("shared file", f"/dev/shm/job_{n}", 0, 50, held=False) for n in range(8)]
    finding = found(asked(tmp_path / "d", [*memory, *many]), "watch-files-left")
    assert finding and "400 MiB of shared memory, 40.0 % of memory" in finding.title
    assert "/dev/shm/job_4: 50 MiB; 3 more" in finding.saw
    drawn = culprit(Bundle(tmp_path / "d/b"), finding, 4096)
    assert drawn and {(said, guilty) for _, said, *_, guilty in drawn["bars"]} == {("50 MiB", True)}
    opened = [held("shared file", "memfd:x, open by java", 0, 420, held=True)]
    said = asked(tmp_path / "b", [*memory, *opened])
    assert found(said, "watch-files-left") is None
    assert owner(said, "watch-memory-taken") == "shared file memfd:x, open by java"
    assert said.word == NO_TROUBLE
    # Not open, and it may be mapped: it is not known.
    said = asked(tmp_path / "c", [*memory, held("shared file", "/dev/shm/pool", 0, 420)])
    assert said.word == CANNOT_TELL


def test_kernel_stacks_are_of_whose_threads_they_are_and_told_once(tmp_path: Path) -> None:
    grows = [level(n, name, 10 + 10 * n) for n in range(12) for name in
             ("KernelStack", "VmallocUsed")]  # fmt: skip
    rows = [held("process", "java", 5, 6, threads=6000), held("vmalloc caller", "x", 0, 110)]
    verdict = asked(tmp_path / "a", [*grows, *rows], samples=12)
    assert owner(verdict, "watch-kernel-memory-grows") == "java (pid 7)"
    names = [dict(one.subject)["name"] for one in verdict.found
             if one.id == "watch-kernel-memory-grows"]  # fmt: skip
    assert names == ["KernelStack"]


def test_percpu_memory_is_told_with_its_bookkeeping(tmp_path: Path) -> None:
    grows = [level(n, name, 10 + 30 * n) for n in range(12) for name in ("Percpu", "VmallocUsed")]
    total = level(0, "MemTotal", 1000)
    for caller, names in (("pcpu_create_chunk", ["Percpu"]), ("x", ["Percpu", "VmallocUsed"])):
        rows = [*grows, total, held("vmalloc caller", caller, 0, 320)]
        verdict = asked(tmp_path / caller, rows, samples=12)
        for id in ("watch-kernel-memory-grows", "watch-memory-taken"):
            told = [dict(one.subject)["name"] for one in verdict.found if one.id == id]
            assert sorted(told) == names


def test_whose_it_is_goes_by_what_had_grown_when_owners_were_last_read(tmp_path: Path) -> None:
    grows = [level(n, "VmallocUsed", 10 + 30 * n) for n in range(12)]
    for at, words in ((50.0, "vmalloc caller x"), (10.0, "")):
        read = held("vmalloc caller", "x", 0, int(3 * at), last_time=at)
        verdict = asked(tmp_path / str(at), [*grows, read], samples=12)
        assert owner(verdict, "watch-kernel-memory-grows") == words
    finding = found(
        asked(tmp_path / "c", [*grows, held("vmalloc caller", "x", 0, 130, last_time=50.0)], 12),
        "watch-kernel-memory-grows",
    )
    assert "Owners were last read after 50 s: vmalloc caller x had gained 130 MiB" in finding.saw


def test_kernel_memory_that_grows_is_of_the_cache_that_grew(tmp_path: Path) -> None:
    grows = [level(n, "SUnreclaim", 1000 + 10 * n) for n in range(12)]
    caches = [held("slab cache", "large", 700, 700), held("slab cache", "leak", 20, 120)]
    given = held("slab cache", "inode", 20, 130, reclaimable=True)
    verdict = asked(tmp_path / "a", [*grows, *caches, given], samples=12)
    assert owner(verdict, "watch-kernel-memory-grows") == "slab cache leak"
    assert owner(asked(tmp_path / "b", [*grows, given], 12), "watch-kernel-memory-grows") == ""


def test_lines_of_source_alone_tell_nothing_of_other_holders(tmp_path: Path) -> None:
    """As guard reads them: what needs processes or cgroups is as unknown as without."""
    rows = [level(n, name, size) for n in range(12) for name, size in
            (("MemTotal", 4000), ("MemAvailable", 2000), ("Shmem", 1500))]  # fmt: skip
    verdicts = [asked(tmp_path / name, [*rows, *more], 12) for name, more in
                (("a", []), ("b", [held("line of source", "fs/y.c:8 (f)", 0, 70)]))]  # fmt: skip
    without, beside = ((v.word, {id for id, _ in v.silent}, {f.id for f in v.found},
                        [blind for blind in v.blind]) for v in verdicts)  # fmt: skip
    assert beside == without


def test_memory_in_no_counter_that_grows_is_of_the_line_that_allocated_as_much(
    tmp_path: Path,
) -> None:
    lines = [
        held("line of source", "drivers/x.c:7 (take [x])", 0, 100),
        held("line of source", "fs/y.c:8 (less)", 0, 70),
        held("line of source", "net/z.c:9 (more)", 0, 400),
        held("line of source", "mm/memory.c:1 (of programs)", 0, 110),
    ]
    grows = [Level(n * PERIOD, "computed", "Memory in no counter", (100 + 10 * n) << 20, "bytes")
             for n in range(12)]  # fmt: skip
    grows += [level(n, "MemTotal", 4000) for n in range(12)]
    finding = found(asked(tmp_path / "a", [*grows, *lines], 12), "watch-kernel-memory-grows")
    assert finding is not None and finding.owner == "drivers/x.c:7 (take [x])"
    assert "drivers/x.c:7 (take [x]) allocated 100 MiB more than was freed." in finding.saw
    # A cache is its own owner, whatever line allocated from it.
    cached = [level(n, "SUnreclaim", 1000 + 10 * n) for n in range(12)]
    cached += [held("slab cache", "leak", 20, 120)]
    finding = found(asked(tmp_path / "b", [*cached, *lines], 12), "watch-kernel-memory-grows")
    assert finding is not None and finding.owner == "slab cache leak"
    assert "drivers/x.c:7 (take [x]) allocated 100 MiB more" in finding.saw
    finding = found(asked(tmp_path / "c", [*grows, *lines[1:3]], 12), "watch-kernel-memory-grows")
    assert finding is not None and finding.owner == "fs/y.c:8 (less)"
    finding = found(asked(tmp_path / "d", [*grows, *lines[2:]], 12), "watch-kernel-memory-grows")
    assert finding is not None and finding.owner == "" and "more than was freed" not in finding.saw


@pytest.mark.parametrize(
    ("name", "holder", "words"),
    [
        ("Shmem", held("process", "db", 0, 500, shmem_bytes=390 << 20), "db (pid 7)"),
        ("Shmem", held("process", "db", 0, 500, shmem_bytes=90 << 20), ""),
        ("Unevictable", held("process", "vm", 0, 500, locked_bytes=400 << 20), "vm (pid 7)"),
        ("VmallocUsed", held("vmalloc caller", "f [m]", 0, 300), "vmalloc caller f [m]"),
        ("SUnreclaim", held("slab cache", "s", 0, 300, gone=True), ""),
    ],
)
def test_what_is_taken_is_of_who_has_half_of_it(
    tmp_path: Path, name: str, holder: Any, words: str
) -> None:
    rows = [level(1, "MemTotal", 1000), level(1, name, 400), holder]
    assert owner(asked(tmp_path, rows), "watch-memory-taken") == words


def test_a_kill_is_of_the_cgroup_that_counts_it_or_of_the_largest_that_is_gone(
    tmp_path: Path,
) -> None:
    kill = [*moved(2, oom_kill=2), level(1, "MemTotal", 1000), level(1, "MemAvailable", 10)]
    lost = [held("process", "java", 400, 0, gone=True), held("process", "stays", 500, 500)]
    assert owner(asked(tmp_path / "a", [*kill, *lost]), "watch-oom-kill") == "java (pid 7)"
    pod = held("cgroup", "/kube/pod", 10, 10, oom_kills=2)
    verdict = asked(tmp_path / "b", [*kill, *lost, pod])
    assert owner(verdict, "watch-oom-kill") == "memory cgroup /kube/pod"
    small = held("process", "sh", 20, 0, gone=True)
    assert owner(asked(tmp_path / "c", [*kill, small]), "watch-oom-kill") == ""


def test_a_kill_is_of_whom_the_log_names(tmp_path: Path) -> None:
    kill = [*moved(2, oom_kill=2), held("cgroup", "/pod", 5, 5, oom_kills=2)]
    db, small = (
        WatchKill(20.0, 8, "db", "machine", 900 << 20),
        WatchKill(20.0, 9, "small", "machine", 1 << 20),
    )
    said = asked(tmp_path / "a", [*kill, db, small])
    assert owner(said, "watch-oom-kill") == "db (pid 8)"
    finding = found(said, "watch-oom-kill")
    assert (
        finding
        and "Killed, by the kernel's log: db (pid 8), 900 MiB; small (pid 9), 1 MiB."
        in (finding.saw)
    )
    assert finding.title.endswith(" s: db (pid 8), small (pid 9)")
    of_pod = dataclasses.replace(db, limit="cgroup")
    assert owner(asked(tmp_path / "b", [*kill, of_pod]), "watch-oom-kill") == "memory cgroup /pod"


def test_pressure_is_of_the_process_that_has_most(tmp_path: Path) -> None:
    waits = [row for n in range(1, 7) for row in stalled(n, 0.2, 0.3)]
    rows = [*waits, level(1, "MemTotal", 1000), held("process", "java", 700, 700)]
    assert owner(asked(tmp_path / "a", rows), "watch-memory-pressure") == "java (pid 7)"
    several = [*rows, held("process", "db", 700, 700, swap_bytes=1), held("process", "x", 90, 90)]
    assert owner(asked(tmp_path / "b", several), "watch-memory-pressure") == ""


def limited(path: str, full: float, **more: Any) -> Any:
    return held("cgroup", path, 10, 10, **{"high_events": 0, "max_events": 0, "some_seconds": full,
                                          "full_seconds": full, **more})  # fmt: skip


def test_a_cgroup_that_waits_at_its_limit_is_why_the_machine_waits(tmp_path: Path) -> None:
    waits = [row for n in range(1, 7) for row in stalled(n, 0.2, 0.3)]
    above, pod = limited("/kube", 13.0), limited("/kube/pod", 12.5, high_events=900)
    first = first_incident(asked(tmp_path, [*waits, above, pod]))
    assert [cause.id for cause, *_ in first.causes] == ["watch-cgroup-pressure"]
    assert first.owner == "memory cgroup /kube/pod"


@pytest.mark.parametrize(
    "pod",
    [limited("/pod", 5.0, max_events=9), limited("/pod", 50.0)],
    ids=["it hardly waits", "at no limit of its own"],
)
def test_a_cgroup_that_is_not_why(tmp_path: Path, pod: Any) -> None:
    assert found(asked(tmp_path, [*moved(1), pod]), "watch-cgroup-pressure") is None


def test_files_that_are_read_again_are_of_the_cgroup_that_waits_at_its_limit(
    tmp_path: Path,
) -> None:
    pods = [limited("/kube/web", 1.7, max_events=900), limited("/kube/free", 1.8)]
    said = asked(tmp_path / "a", [*refaulted(600, 0.03), *pods])
    assert owner(said, "watch-refaults") == "memory cgroup /kube/web"
    few = limited("/kube/web", 0.5, max_events=900)
    assert owner(asked(tmp_path / "b", [*refaulted(600, 0.03), few]), "watch-refaults") == ""


def test_files_come_back_where_memory_is_kept_for_a_cgroup(tmp_path: Path) -> None:
    sizes = {"MemTotal": 1404, "MemAvailable": 77}
    levels = [level(n, name, size) for n in range(7) for name, size in sizes.items()]
    kept = held("cgroup", "/db", 960, 960, protected_bytes=960 << 20)
    first = first_incident(asked(tmp_path, [*refaulted(5000, 0.03), *levels, kept]))
    assert [cause.id for cause, *_ in first.causes] == ["watch-protected"]
    assert [effect.id for effect, *_ in first.effects] == ["watch-refaults"]


@pytest.mark.parametrize(
    ("kept", "available", "waits", "severity"),
    [(400, 40, 0.0, "warning"), (400, 150, 0.05, "warning"), (400, 150, 0.01, None),
     (400, 400, 0.05, None), (200, 40, 0.05, None)],
)  # fmt: skip
def test_memory_that_is_protected_while_others_need_it(
    tmp_path: Path, kept: int, available: int, waits: float, severity: str | None
) -> None:
    memory = [level(n, name, size) for n in range(4)
              for name, size in (("MemTotal", 1000), ("MemAvailable", available))]  # fmt: skip
    waited = [row for n in range(1, 4) for row in stalled(n, 0.0, waits)]
    db = held("cgroup", "/db", kept, kept, protected_bytes=kept << 20)
    said = asked(tmp_path, [*moved(1), *memory, *waited, db])
    finding = found(said, "watch-protected")
    assert (finding and finding.severity) == severity
    assert finding is None or finding.owner == "memory cgroup /db"


@pytest.mark.parametrize(
    ("mappings", "severity"), [(7_900, None), (8_000, "warning"), (9_950, "critical")]
)
def test_a_process_near_the_limit_of_mappings(
    tmp_path: Path, mappings: int, severity: str | None
) -> None:
    rows = [*moved(1), held("process", "es", 9, 9, mappings=mappings, max_map_count=10_000)]
    finding = found(asked(tmp_path, rows), "watch-near-max-map-count")
    assert (finding and finding.severity) == severity
    if severity == "warning":
        assert finding and finding.title == "es (pid 7) has 8,000 of 10,000 mappings (80.0 %)"
        assert finding.owner == "es (pid 7)"


def test_cgroups_that_were_removed_are_of_the_one_above_them(tmp_path: Path) -> None:
    total = [level(n, "MemTotal", 1000) for n in range(2)]
    places = [held("cgroup", "/", 0, 0, dying_below=2_500)]
    places += [held("cgroup", f"/{name}", 1, 1, dying_below=n)
               for name, n in (("user.slice", 2_400), ("system.slice", 40))]  # fmt: skip
    finding = found(asked(tmp_path / "a", [*moved(1), *total, *places]), "watch-dying-cgroups")
    assert finding is not None and finding.severity == "warning"
    assert finding.title.startswith("2,500 cgroups were removed")
    assert finding.owner == "memory cgroup /user.slice"
    few = [held("cgroup", "/user.slice", 1, 1, dying_below=900)]
    assert found(asked(tmp_path / "b", [*moved(1), *total, *few]), "watch-dying-cgroups") is None


@pytest.mark.parametrize(
    ("grown", "cause"), [(40, "watch-dying-cgroups"), (80, "watch-kernel-memory-grows")]
)
def test_slab_that_grew_by_what_removed_cgroups_take_is_theirs(
    tmp_path: Path, grown: int, cause: str
) -> None:
    slab = [level(n, "SUnreclaim", 11 + grown * n / 11) for n in range(12)]
    slab += [level(n, "MemTotal", 1400) for n in range(12)]
    dying = held("cgroup", "/", 0, 0, dying_below=2_400)
    said = asked(tmp_path, [*moved(1), *slab, dying], samples=12)
    worst = first_incident(said)
    assert worst.causes[0][0].id == cause
    assert [effect.id for effect, *_ in worst.effects] == (
        ["watch-kernel-memory-grows"] if cause == "watch-dying-cgroups" else []
    )


@pytest.mark.parametrize(("mebibytes", "severity"), [(40, None), (60, "notice"), (200, "warning")])
def test_sockets_that_nobody_reads(tmp_path: Path, mebibytes: int, severity: str | None) -> None:
    total = [level(n, "MemTotal", 1000) for n in range(2)]
    java = held("sockets", "java", 0, mebibytes - 5, sockets=300)
    held_by = [dataclasses.replace(java, pid=7), held("sockets", "no process", 0, 5, sockets=300)]
    finding = found(asked(tmp_path, [*moved(1), *total, *held_by]), "watch-sockets-large")
    assert (finding and finding.severity) == severity
    if severity == "warning":
        assert finding and finding.owner == "java (pid 7)"
        assert finding.saw.startswith("195 MiB in 300 sockets of java (pid 7), of 600 in all")


def full_node(cache: int) -> list[Any]:
    """Node 0 has hardly anything free, node 1 half."""
    return [
        zone_at(n, pages, node=node, file_pages=file)
        for n in range(4)
        for node, pages, file in ((0, 1600, cache), (1, 500_000, 0))
    ]


def test_a_process_that_is_bound_to_a_full_node(tmp_path: Path) -> None:
    bound = held("process", "db", 50, 2000, only_node=0)
    small = held("process", "db", 50, 60, only_node=0)
    full = asked(tmp_path / "a", [*full_node(9_000), bound])
    finding = found(full, "watch-node-full")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "Node 0 has 6.25 MiB of free memory left, node 1 has 1.907 GiB"
    assert "db (pid 7) may use node 0 alone (Mems_allowed), and holds 1.953 GiB" in finding.saw
    for name, rows in (("b", [*full_node(200_000), bound]), ("c", [*full_node(9_000), small])):
        assert found(asked(tmp_path / name, rows), "watch-node-full") is None


def test_a_full_node_beside_one_with_room_is_not_cleared(tmp_path: Path) -> None:
    anyone = held("process", "db", 50, 2000)
    verdict = asked(tmp_path / "a", [*full_node(9_000), anyone])
    assert verdict.word == CANNOT_TELL
    assert verdict.blind[0].startswith("whether a process is bound to node 0, which is short of")
    bound = held("process", "db", 50, 60, only_node=0)
    assert not asked(tmp_path / "c", [*full_node(9_000), bound]).blind
    assert asked(tmp_path / "b", [*full_node(200_000), anyone]).word == NO_TROUBLE


def test_a_watch_of_an_earlier_mmscope_is_not_cleared(tmp_path: Path) -> None:
    asked(tmp_path, [*moved(1), held("process", "db", 50, 60)])
    database = open_database(Bundle(tmp_path / "b"), only=named(QUESTIONS))
    assert ask(database, QUESTIONS).word == NO_TROUBLE
    database.columns["watch_holders"] -= {"max_map_count", "sockets"}
    verdict = ask(database, QUESTIONS)
    assert verdict.word == CANNOT_TELL
    assert verdict.blind == [
        "an earlier mmscope took this watch: watch_holders.max_map_count and 1 more, which checks "
        "need, are missing"
    ]


def test_more_to_be_had_than_there_is(tmp_path: Path) -> None:
    """NR_INACTIVE_FILE that leaks is in MemAvailable, as of UEK 6.12."""
    sizes = {"MemTotal": 1500, "MemFree": 100, "Cached": 300, "AnonPages": 800}
    rows = [level(n, name, size) for n in range(3) for name, size in sizes.items()]
    right, wrong = ([*rows, *(level(n, "MemAvailable", size) for n in range(3))]
                    for size in (1200, 1300))  # fmt: skip
    assert asked(tmp_path / "a", right).word == NO_TROUBLE
    verdict = asked(tmp_path / "b", wrong)
    assert verdict.word == CANNOT_TELL
    assert verdict.blind[0].startswith("MemAvailable says 1.27 GiB, and all that it is made of is")


def test_pressure_that_nothing_explains_is_a_mark_that_was_left(tmp_path: Path) -> None:
    """A kernel that forgets psi_memstall_leave(), as erofs did; a cgroup at its limit is none."""
    waits = [PsiStall(n * PERIOD, kind, 90.0, share * PERIOD, share, PERIOD)
             for n in range(1, 7) for kind, share in (("some", 1.0), ("full", 0.4))]  # fmt: skip
    idle = held("cgroup", "/kube/pod", 50, 60, high_events=0, max_events=0)
    stuck = asked(tmp_path / "a", [*moved(1), *waits, idle])
    finding = found(stuck, "watch-pressure-stuck")
    assert finding is not None and finding.severity == "notice"
    assert finding.title.startswith("PSI says that tasks waited for memory 100 % of the time")
    assert found(stuck, "watch-memory-pressure") is None
    assert stuck.word == CANNOT_TELL  # and not that all is well
    unread = asked(tmp_path / "d", [*moved(1), *waits])
    assert found(unread, "watch-memory-pressure") is not None
    limited = held("cgroup", "/kube/pod", 50, 60, high_events=9, max_events=0)
    scanned = CounterRate(PERIOD, "vmstat", "pgscan_anon", 1, 0.1, PERIOD)
    for name, rows in (("b", [limited]), ("c", [idle, scanned])):
        verdict = asked(tmp_path / name, [*moved(1), *waits, *rows])
        assert found(verdict, "watch-pressure-stuck") is None
        assert found(verdict, "watch-memory-pressure") is not None


def asleep(task: int, seconds: float, wchan: str | None = "vm_mmap_pgoff") -> WatchSleeper:
    return WatchSleeper(7, "java", task, 3.0, seconds, wchan)


def test_shared_memory_that_processes_have_mapped_was_read(tmp_path: Path) -> None:
    rows = [row for n in range(3) for row in (level(n, "MemTotal", 1000), level(n, "Shmem", 400))]
    mapped = [held("process", "postgres", 0, 400, shmem_bytes=n << 20) for n in (390, 20)]
    assert asked(tmp_path / "a", [*rows, *mapped]).word == NO_TROUBLE
    gone = held("process", "job", 400, 0, gone=True, shmem_bytes=400 << 20)
    assert asked(tmp_path / "b", [*rows, gone]).word == CANNOT_TELL


@pytest.mark.parametrize(
    ("began", "wchan", "word"),
    [(54.0, "vm_mmap_pgoff", CANNOT_TELL), (20.0, "vm_mmap_pgoff", NO_TROUBLE),
     (54.0, "wait_for_vfork_done", NO_TROUBLE)],
    ids=["goes on", "over", "a child has its memory"],
)  # fmt: skip
def test_a_task_that_sleeps_when_the_watch_ends_is_not_cleared(
    tmp_path: Path, began: float, wchan: str, word: str
) -> None:
    row = dataclasses.replace(asleep(8, 7.0, wchan), time=began)
    assert asked(tmp_path, [*moved(1), row]).word == word


def test_tasks_that_sleep_on_are_of_their_process(tmp_path: Path) -> None:
    verdict = asked(tmp_path, [*moved(1), asleep(8, 12.0), asleep(9, 30.0)])
    finding = found(verdict, "watch-tasks-stuck")
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "2 tasks of java (pid 7) slept 30 s without being woken"
    assert "asleep in vm_mmap_pgoff" in finding.saw
    assert finding.owner == "java (pid 7)"


@pytest.mark.parametrize(
    ("seconds", "wchan", "severity"),
    [(12.0, None, "notice"), (130.0, "nfs_wait_on_request", "critical"),
     (900.0, "__refrigerator", None), (900.0, "kernel_clone", None), (9.0, "x", None)],
)  # fmt: skip
def test_tasks_that_sleep_as_they_are_meant_to(
    tmp_path: Path, seconds: float, wchan: str | None, severity: str | None
) -> None:
    finding = found(asked(tmp_path, [*moved(1), asleep(8, seconds, wchan)]), "watch-tasks-stuck")
    assert (finding and finding.severity) == severity
