# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Profiles of a real kernel: ``mmscope record`` inside a guest, where programs make page faults, leave
page tables behind and are killed.

On arm64, too: ``make live-arm64``. Its emulated CPU counts cycles; that of x86 has no counters.

Emulated time is slow and uneven, so that what is tested of shares is their order, where they differ
by several times, and what is tested exactly is what adds up.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LIVES_ON
from profiled import recordings
from shared_guest import InGuest

from mmscope.perf import recipe as recipes
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.commands.command import main
from mmscope.reports.compare.recorded_allocations import recorded
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render
from mmscope.reports.rows.profile_rows import new_tables

FAULTS = 8_000
DENSE = ("/bin/faults", "dense", "20000")
SPARSE = ("/bin/faults", "sparse", f"{FAULTS}")
KEPT_TABLES = ("/bin/faults", "kept", f"{FAULTS}")
# Entries of the PGD, 8 of each PUD table, then PMD tables that are there.
BREADTH = ("/bin/faults", "breadth", "4000", "8")
OOM = ("/bin/faults", "oom", "/sys/fs/cgroup/oom")
WALKED = 300
KEPT = "/out/profiles/kept"
SAMPLER = "cycles" if LIVES_ON.startswith("arm64-") else "cpu-clock"
SAMPLED = SAMPLER.replace("-", "_")
COMM = '<img src=x>\\x3b"'
RUNS = (
    ("faults", "case", ("page-fault", "--label", "sparse", "--", *KEPT_TABLES)),
    ("dense", "case", ("exit-path", "--label", "dense", "--", *DENSE)),
    (
        "sparse",
        "case",
        ("exit-path", "--label", "never", "--keep", KEPT, "--", *SPARSE),
    ),
    (
        "thp",
        "case",
        ("exit-path", "--label", "always", "--against", "exit_path_never", "--", *SPARSE, "thp"),
    ),
    ("oom", "case", ("oom", "--", *OOM)),
    (
        "oom-thp",
        "case",
        ("oom", "--label", "thp", "--against", "oom", "--", *OOM, "thp-victim", "thp"),
    ),
    ("breadth", "case", ("page-fault", "--label", "breadth", "--", *BREADTH)),
    ("rmap", "case", ("rmap", "--", "/bin/faults", "walk", f"{WALKED}")),
    ("atomic", "case", ("atomic-alloc", "--", "/bin/faults", "reserve", "12")),
    ("list", "none", ("--list",)),
)


IN_GUEST = recordings("profiles", LIVES_ON, 3, RUNS)


@pytest.fixture(scope="module")
def out(in_guest: Callable[[InGuest], Path]) -> Path:
    """What the guest wrote."""
    return in_guest(IN_GUEST)


@pytest.fixture(scope="module")
def bundle(out: Path) -> Bundle:
    return Bundle(out / "case")


def rows(bundle: Bundle, table: str, profile: str) -> list[dict[str, Any]]:
    return [row for row in bundle.rows(table) if row["profile"] == profile]


def sampler(bundle: Bundle, profile: str) -> dict[str, Any]:
    (row,) = (row for row in rows(bundle, "profiles", profile) if row["event"] == SAMPLER)
    return row


def samples(bundle: Bundle, profile: str, who: str, *parts: str) -> int:
    return sum(
        row["samples"]
        for row in rows(bundle, "profile_parts", profile)
        if row["who"] == who and (row["part"] in parts or not parts)
    )


@pytest.mark.parametrize("run", [name for name, *_ in RUNS])
def test_every_recording_ends_well(out: Path, run: str) -> None:
    # 1: samples were lost, which the log then says.
    log = (out / f"{run}.log").read_text()
    code = (out / f"{run}.code").read_text()
    assert code == "0" or (code == "1" and "lost" in log), log


def test_every_sample_is_in_its_place(bundle: Bundle) -> None:
    drawn = 0
    for row in bundle.rows("profiles"):
        # What perf says it recorded is what was read.
        assert row["recorded"] == row["samples"] + row["removed"], row
        if row["file"] is not None:
            assert sum(value for _, value in bundle.stacks(row["file"])) == row["samples"], row
            drawn += row["samples"]
    assert drawn > 1000
    assert not [row for row in bundle.rows("profile_notes") if "could be read" in row["note"]]


def test_faults_are_counted_exactly(bundle: Bundle) -> None:
    (row,) = (
        row
        for row in rows(bundle, "profile_faults", "page_fault_sparse")
        if row["event"] == "minor-faults" and row["comm"] == "faults"
    )
    # A fault for each region of 2 MiB, and some tens for the program itself.
    assert FAULTS <= row["faults"] <= FAULTS + 300
    assert FAULTS <= row["regions"] <= FAULTS + 100
    (counted,) = (
        row
        for row in rows(bundle, "profiles", "page_fault_sparse")
        if row["event"] == "minor-faults"
    )
    assert counted["lost"] == 0


def test_sparse_faults_are_about_page_tables(bundle: Bundle) -> None:
    tables = samples(bundle, "page_fault_sparse", "fault", "page tables")
    every = samples(bundle, "page_fault_sparse", "fault")
    # A third of some hundred at rest; where others keep the CPUs busy, caches are cold everywhere.
    assert tables > every / 20
    assert samples(bundle, "page_fault_sparse", "fault", "entry and exit") > 0
    assert samples(bundle, "page_fault_sparse", "fault", "unclassified") < every / 10


def test_clearing_grows_with_sparseness_and_shrinks_with_huge_pages(bundle: Bundle) -> None:
    """By its samples: what else the programs did takes longer or shorter beside it."""
    zap = {
        label: samples(bundle, f"exit_path_{label}", "exit", "zap")
        for label in ("dense", "never", "always")
    }
    assert zap["dense"] < zap["never"], zap
    assert zap["always"] < zap["never"], zap


def test_clearing_entries_is_the_larger_part_and_freeing_tables_is_named(bundle: Bundle) -> None:
    zap = samples(bundle, "exit_path_never", "exit", "zap")
    every = samples(bundle, "exit_path_never", "exit")
    assert zap > every / 2
    assert any(
        "free_pgtables_[k]" in stack
        for name in ("exit_path_never", "exit_path_dense", "exit_path_always", "oom")
        for stack, _ in bundle.stacks(f"{name}_{SAMPLED}")
    )


def test_huge_pages_are_cleared_without_walking_slots(bundle: Bundle) -> None:
    def walked(profile: str) -> bool:
        stacks = bundle.stacks(f"{profile}_{SAMPLED}")
        return any("zap_huge_pmd_[k]" in stack for stack, _ in stacks)

    assert walked("exit_path_always") and not walked("exit_path_never")


def test_an_oom_victim_is_unmapped_twice(bundle: Bundle) -> None:
    assert samples(bundle, "oom", "reaper", "zap") > 0
    assert samples(bundle, "oom", "exit", "zap") > 0
    (row,) = rows(bundle, "profile_reaping", "oom")
    assert row["again_samples"] > 0


def test_the_oom_kill_has_its_times(bundle: Bundle) -> None:
    when: dict[str, float] = {}
    for row in rows(bundle, "profile_moments", "oom"):
        when[row["event"]] = row["seconds"]
    assert (
        when["oom:mark_victim"]
        < when["oom:start_task_reaping"]
        < when["oom:finish_task_reaping"]
        < when["mmap:exit_mmap"]
    )
    # OOM_REAPER_DELAY is two seconds of the kernel's clock. perf's is the TSC, whose speed a guest
    # on a busy machine takes for another.
    assert when["oom:start_task_reaping"] - when["oom:mark_victim"] > 0.5
    (reaping,) = (
        row for row in rows(bundle, "profile_durations", "oom") if row["name"] == "reaping"
    )
    between = when["oom:finish_task_reaping"] - when["oom:start_task_reaping"]
    assert reaping["total_ns"] == pytest.approx(between * 1e9, abs=2000)


def test_with_huge_pages_the_second_walk_finds_nothing(bundle: Bundle) -> None:
    """The reaper has cleared the PMDs, and with them has given back the tables behind them."""
    (without,), (with_thp,) = (rows(bundle, "profile_reaping", n) for n in ("oom", "oom_thp"))
    assert with_thp["again_samples"] * 4 < without["again_samples"]
    (victim,) = rows(bundle, "profile_victims", "oom_thp")
    assert victim["pgtables_bytes"] > 100 << 20 and victim["anon_bytes"] < 1 << 20


def test_what_the_command_used_is_as_time_would_say(bundle: Bundle) -> None:
    for profile in ("page_fault_sparse", "exit_path_never", "oom", "oom_thp"):
        (used,), (made,) = (
            rows(bundle, table, profile) for table in ("profile_commands", "profile_recordings")
        )
        assert used["command"] == made["command"]
        assert 0 < used["real_seconds"] <= made["seconds"], used
        # In clock ticks of each of two CPUs.
        busy = used["user_seconds"] + used["system_seconds"]
        assert 0 < busy <= 2 * used["real_seconds"] + 0.02, used
    (kept,) = rows(bundle, "profile_commands", "page_fault_sparse")
    assert kept["real_seconds"] > 3  # it sleeps for as long


def growth(bundle: Bundle, profile: str, made_by: str) -> list[dict[str, Any]]:
    every = rows(bundle, "profile_table_growth", profile)
    found = [row for row in every if row["comm"] == "faults" and row["made_by"] == made_by]
    told = [rows(bundle, table, profile) for table in ("profiles", "profile_notes")]
    assert found, (every, told)
    return found


def test_tables_by_addresses_are_those_that_the_kernel_counts(bundle: Bundle) -> None:
    """A program that keeps its tables for three seconds, in which VmPTE is looked at."""
    needed = growth(bundle, "page_fault_sparse", "addresses")[-1]
    looked = growth(bundle, "page_fault_sparse", "VmPTE")[-1]
    assert FAULTS <= needed["pte_tables"] <= FAULTS + 50
    # The stack of a new program has tables before its first fault.
    assert 0 <= looked["table_bytes"] - needed["table_bytes"] <= 4 * 4096


def test_breadth_first_takes_three_tables_a_fault_then_two_then_one(bundle: Bundle) -> None:
    last = growth(bundle, "page_fault_breadth", "addresses")[-1]
    found = dict(
        new_tables(*(last[n] for n in ("faults", "pte_tables", "pmd_tables", "pud_tables")))
    )
    # 252 entries of the PGD; the program itself has a few tables more.
    assert 252 <= found[3] <= 252 + 3
    assert 252 * 7 <= found[2] <= 252 * 7 + 5
    assert 4000 - 252 * 8 <= found[1] <= 4000 - 252 * 8 + 30
    each = {
        r["faults"]: r["bytes_per_fault"] for r in growth(bundle, "page_fault_breadth", "addresses")
    }
    assert (each[128], each[1024]) == (12288, 8192)
    # Since the 2,048th; the last of two tables is a few faults before it.
    assert each[last["faults"]] == pytest.approx(4096, rel=0.02)


def test_the_huge_zero_page_is_among_the_counters(bundle: Bundle) -> None:
    for profile in ("exit_path_always", "oom_thp", "page_fault_sparse"):
        counted = {r["name"]: r["gained"] for r in rows(bundle, "profile_counters", profile)}
        assert counted["thp_zero_page_alloc"] >= 0
        assert counted["thp_zero_page_alloc_failed"] == 0
    made = {r["profile"]: r["gained"] for r in bundle.rows("profile_counters")
            if r["name"] == "thp_zero_page_alloc"}  # fmt: skip
    # Made for the first that maps it, who may have been there before, and kept until memory is
    # reclaimed.
    assert made["exit_path_always"] <= 1 and made["page_fault_sparse"] == 0


def test_a_hostile_name_stays_a_name(out: Path, bundle: Bundle) -> None:
    named = [stack for stack, _ in bundle.stacks(f"oom_{SAMPLED}") if stack.startswith(COMM)]
    assert named
    assert all(len(stack.split(";")) > 1 for stack in named)
    html = render(bundle, evaluate(bundle))
    assert "<img src=x>" not in html and "&lt;img src=x&gt;" in html
    assert "\x1b" not in (out / "oom.log").read_text()


def test_walks_of_the_reverse_map_are_timed_with_and_without_their_waits(bundle: Bundle) -> None:
    took = {row["name"]: row for row in rows(bundle, "profile_durations", "rmap")}
    whole, waiting, working = (
        took[f"rmap_walk_anon{kind}"] for kind in ("", ", waiting", ", not waiting")
    )
    # Each page was moved four times, with a walk before and one after; or three times, if they
    # were on the other node to begin with. What perf lost, on a machine that was too busy for
    # it, is counted.
    lost = sum(row["lost"] for row in rows(bundle, "profiles", "rmap"))
    assert whole["count"] == waiting["count"] == working["count"] >= 6 * WALKED - lost
    assert whole["count"] > 1_000
    assert whole["total_ns"] == waiting["total_ns"] + working["total_ns"]
    assert waiting["max_ns"] <= whole["max_ns"] and working["p50_ns"] > 0
    stacks = [stack for stack, _ in bundle.stacks("rmap_mmscope_rmap_walk_anon")]
    # kernel_move_pages() is inlined on arm64.
    assert any("move_pages_[k]" in stack for stack in stacks)
    for row in rows(bundle, "profiles", "rmap"):
        assert row["missed"] == (0 if row["event"].startswith("mmscope:") else None), row


def test_who_reserves_on_a_stock_kernel_is_the_network(bundle: Bundle) -> None:
    (row,) = (r for r in rows(bundle, "profile_allocations", "atomic_alloc") if r["order"] == 3)
    # Order 3 comes of CPUs' lists first, which take nothing from the reserve: on 6.12 it gave none.
    assert row["attempts"] > 500 and row["reservations"] > 0
    for event in ("kmem_mm_page_alloc", "mmscope_reserve"):
        for stack, _ in bundle.stacks(f"atomic_alloc_{event}"):
            assert "icmp" in stack or "skb" in stack or "ip_" in stack, stack
    # In softirq, which is no task's doing.
    assert any(
        stack.startswith("(interrupt);") and "icmp_reply_[k]" in stack
        for stack, _ in bundle.stacks("atomic_alloc_mmscope_reserve")
    )
    counted = {r["name"]: r for r in rows(bundle, "profile_counters", "atomic_alloc")}
    (made,) = rows(bundle, "profile_recordings", "atomic_alloc")
    scanned = counted["pgscan_kswapd"]
    assert scanned["per_minute"] == pytest.approx(
        scanned["gained"] * 60 / made["seconds"], rel=0.01
    )


def test_groups_of_hosts_are_held_against_each_other_by_it(bundle: Bundle) -> None:
    found = recorded([bundle])
    (row,) = (r for r in rows(bundle, "profile_allocations", "atomic_alloc") if r["attempts"] > 500)
    (made,) = rows(bundle, "profile_recordings", "atomic_alloc")
    assert (found.why, found.seconds, made["recipe"]) == ("", made["seconds"], "atomic-alloc")
    assert found.attempts[row["order"]] == row["attempts"]
    assert found.reservations == sum((found.callers or {}).values()) > 0
    # The frames of the allocator, and what only passes the request on, are nobody's.
    assert "skb_page_frag_refill" in (found.callers or {})


def test_page_tables_are_set_against_faults(bundle: Bundle) -> None:
    (row,) = rows(bundle, "profile_page_tables", "page_fault_sparse")
    # Read now and then: the program keeps its tables until that was done once more.
    # The CPUs of a guest hold some hundreds of them back from the counter.
    assert FAULTS - 500 < row["table_bytes"] / 4096 < FAULTS + 2_000
    # A table for each fault; a few thousand of perf's own, which need none, are counted too.
    assert row["table_bytes"] / 4096 - 500 < row["faults"] < row["table_bytes"] / 4096 + 5_000
    assert row["bytes_per_fault"] == pytest.approx(row["table_bytes"] / row["faults"], abs=0.001)


def test_what_a_victim_held_is_told(bundle: Bundle) -> None:
    (row,) = rows(bundle, "profile_victims", "oom")
    assert row["comm"] == COMM and row["oom_score_adj"] == row["uid"] == 0
    # It reads, and so has page tables alone, of which its memory cgroup let it have 160 MiB.
    assert row["pgtables_bytes"] > 100 << 20 and row["anon_bytes"] < 1 << 20
    assert row["total_vm_bytes"] > 2 << 40


def test_page_walks_that_are_not_seen_are_said(bundle: Bundle) -> None:
    notes = [row["note"] for row in rows(bundle, "profile_notes", "page_fault_sparse")]
    why = "no hardware counters" if SAMPLER == "cpu-clock" else "this CPU has no page-walk-cycles"
    assert any("page-walk-cycles" in note and why in note for note in notes)


def test_samples_where_interrupts_come_back_are_named(bundle: Bundle) -> None:
    row = sampler(bundle, "page_fault_sparse")
    assert row["nmi"] == ("no" if SAMPLER == "cpu-clock" else "unknown")
    sites = {site["leaf"] for site in rows(bundle, "profile_sites", "page_fault_sparse")}
    ways = {"exc_page_fault", "do_user_addr_fault", "_raw_spin_unlock_irqrestore", "el0_da"}
    assert sites & ways


def test_what_perf_wrote_is_kept_on_request(out: Path) -> None:
    data, text = (out / "kept" / name for name in ("perf.data", "perf-script.txt.gz"))
    assert data.read_bytes()[:8] == b"PERFILE2"
    # Read again, elsewhere: the same stacks.
    again = out / "again"
    assert main(["record", "exit-path", "--input", str(text), "-o", str(again)]) in (0, 1)
    (name,) = Bundle(again).folded
    there = list(Bundle(out / "case").stacks(f"exit_path_never_{SAMPLED}"))
    assert list(Bundle(again).stacks(name)) == there


def test_the_list_says_what_can_run(out: Path) -> None:
    log = (out / "list.log").read_text()
    assert log.count("  costs  ") == len(recipes.names())
    said = "samples by cpu-clock, which does not see what runs with interrupts off" in log
    assert said == (SAMPLER == "cpu-clock")
