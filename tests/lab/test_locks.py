# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Locks that a module holds for good, and CPUs that spin, in a frozen guest: holder, waiters and root
against what its program planted and /proc said of each.
"""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import machine
import pytest
from architectures import AMD64, ARM64
from conftest import KERNELS
from drgn import Program, container_of
from drgn.helpers.linux.pid import find_task
from forked import in_a_fork
from holders_lab import holders_capture
from kernels import architecture, stock
from named_damage import say
from waits_lab import WaitsLab

from mmscope.drgn.opening.no_debug_info import attach
from mmscope.drgn.opening.target import describe, open_target
from mmscope.drgn.rmap.rwsem_waiters import LAST_READER
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.waits.reclaim_threads import OomVictim
from mmscope.drgn.waits.reclaiming import Reclaiming, reclaiming
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.findings.findings import evaluate

pytestmark = [pytest.mark.any_config, pytest.mark.btf]

# programs/locks.c: who waits, what for, who holds it and as what.
HELD = {
    "m-waits": ("mutex", "mmscope_mutex", "m-holds", "owner"),
    "v-dies": ("mutex", "mmscope_mutex", "m-holds", "owner"),
    "o-waits": ("mutex", "oom_lock", "o-holds", "owner"),
    "c-waits": ("mutex", "cgroup_mutex", "c-holds", "owner"),
    "l-waits": ("folio lock", "page 0 of /tmp/locked", None, None),
    "r-waits": ("rwsem, to write", "i_mmap_rwsem of /tmp/read", "r-holds", "last reader"),
    "w-waits": ("rwsem, to write", "i_mmap_rwsem of /tmp/written", "w-holds", "writer"),
    "ar-waits": ("rwsem, to write", r"anon_vma 0x\w+", "ar-holds", "last reader"),
    "aw-waits": ("rwsem, to write", r"anon_vma 0x\w+", "aw-holds", "writer"),
}
NOWHERE = "reclaim-gets-nowhere"
# A module is built with headers, which the archive still has to have.
TAKEN = [name for name in KERNELS if name in stock() and architecture(name) in (AMD64, ARM64)]


@pytest.fixture(scope="module", params=TAKEN)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> WaitsLab:
    taken = holders_capture(request.param, say, "locks", (), machine.GUEST / "locks")
    return WaitsLab.of(taken, "locks")


def held(lab: WaitsLab) -> dict[str, tuple[str, str, str | None, str | None]]:
    """As HELD; with PREEMPT_RT a mutex is an rt_mutex, and of a reader nothing is known."""
    if not lab.rt:
        return HELD
    return {
        comm: (
            kind.replace("mutex", "rt_mutex"),
            target,
            *((None, None) if holder_is == LAST_READER else (holder, holder_is)),
        )
        for comm, (kind, target, holder, holder_is) in HELD.items()
    }


def spun_for(lab: WaitsLab) -> tuple[str, ...]:
    """Locks that CPUs spin for, which the module has."""
    # Of cgroups, too, since v5.11.
    own = "" if lab.capture.kernel == "5.10" else " of /"
    return (
        f"lock of zone {architecture(lab.capture.kernel).zones[1]} of node 1",
        f"lru_lock of node 1{own}",
        "list_lock of node 0 of the slab cache mmscope_locks",
    )


def planted_reclaim(lab: WaitsLab) -> tuple[str, ...]:
    """Tasks that reclaim; memory.reclaim is there since v5.19."""
    return ("a-reclaims",) if lab.capture.kernel == "5.10" else ("a-reclaims", "g-reclaims")


def test_each_lock_has_its_name_and_its_holder(lab: WaitsLab) -> None:
    assert not lab.found.notes
    for comm, (kind, target, holder, holder_is) in held(lab).items():
        row = lab.rows[comm]
        assert (row.pid, row.state, row.kind) == (lab.numbers[comm], "D", kind)
        assert re.fullmatch(target, row.target or ""), comm
        pid = lab.numbers[holder] if holder else None
        assert (row.holder_pid, row.holder_comm, row.holder_is) == (pid, holder, holder_is), comm


def test_stacks_are_those_of_proc(lab: WaitsLab) -> None:
    # Who had the victim killed goes on where its memory is free in time.
    waiting = [comm for comm in lab.numbers if comm != "v-eats" or comm in lab.rows]
    for comm in waiting:
        assert lab.rows[comm].pid == lab.numbers[comm]
    lab.assert_stacks_as_printed(waiting)


def test_a_session_without_debug_info_has_what_called_a_module(lab: WaitsLab) -> None:
    prog = Program()
    prog.set_core_dump(lab.capture.vmcore)
    attach(prog)
    names = [frame.name for frame in prog.stack_trace(1)]
    assert names[0] == "freeze" and "ksys_write" in names


def test_chains_end_at_those_that_hold(lab: WaitsLab) -> None:
    ends = {holder: target for _, target, holder, _ in held(lab).values() if holder}
    for comm, target in ends.items():
        root = lab.roots[f"{comm} ({lab.numbers[comm]})"]
        waiting = [each for each, (*_, holder, _) in held(lab).items() if holder == comm]
        # Who had the victim killed waits for the same, where the victim's memory was not free yet;
        # khugepaged may wait for that one's VMA.
        waiting += lab.rows.keys() & {"v-eats", "khugepaged"} if comm == "o-holds" else set()
        assert (root.waiters, root.circle, root.no_holder) == (len(waiting), False, False)
        assert re.fullmatch(target, root.lock)
    page = lab.roots["page 0 of /tmp/locked"]
    assert (page.waiters, page.why) == (1, "the kernel notes no task for it")


def test_who_reclaims_has_what_from_for_what_and_how_far(lab: WaitsLab) -> None:
    """With a shrinker that never comes back, at the first try."""
    planted = planted_reclaim(lab)
    told = {
        "a-reclaims": ("reclaims", "/", "up to DMA32", 3, 12),
        "g-reclaims": ("reclaims as asked", "/shrunk", "all", 0, 12),
    }
    for comm in planted:
        row, said = lab.rows[comm], told[comm]
        assert (row.doing, row.reclaims_from, row.zones, row.order, row.priority) == said
        assert row.state == "D" and row.reclaimed_pages is not None
    assert lab.rows["a-reclaims"].wanted_pages == 32  # SWAP_CLUSTER_MAX
    for comm in planted[1:]:  # of 1 MiB, all or a quarter at a time: user_proactive_reclaim()
        assert lab.rows[comm].wanted_pages in (256, 64)
    assert {row.comm for row in lab.rows.values() if row.order is not None} == set(planted)


def test_who_reclaims_on_some_nodes_has_them(lab: WaitsLab) -> None:
    """As a memory policy has it; its mask is put where another number of the reclaim was."""

    def bound() -> Reclaiming | None:
        prog = open_target(lab.capture.vmcore, [])
        task = find_task(prog, lab.numbers["a-reclaims"])
        control = container_of(task.reclaim_state, "struct scan_control", "reclaim_state")
        say(control.nr_scanned, 1 << 1)
        assert control.nr_scanned.address_ is not None
        say(control.nodemask, control.nr_scanned.address_)
        return reclaiming(task, {})

    reclaims = in_a_fork(bound)
    assert reclaims is not None and reclaims.zones == "up to DMA32 of node 1"


def test_one_reclaim_behind_another_is_not_taken_for_one(lab: WaitsLab) -> None:
    """As between two calls of a loop on a live kernel: what is on the stack changes."""

    def torn() -> Reclaiming | None:
        prog = open_target(lab.capture.vmcore, [])
        task, wanted = find_task(prog, lab.numbers["a-reclaims"]), itertools.count(32)
        control = container_of(task.reclaim_state, "struct scan_control", "reclaim_state")
        prog.add_memory_segment(
            control.nr_to_reclaim.address_, 8, lambda *_: next(wanted).to_bytes(8, "little")
        )
        return reclaiming(task, {})

    assert in_a_fork(torn) is None


def test_reclaim_at_its_last_passes_that_freed_nothing_is_found(
    lab: WaitsLab, tmp_path: Path
) -> None:
    """As these two were at their first pass, another priority is planted."""

    def collected() -> None:
        prog = open_target(lab.capture.vmcore, [])
        for comm in planted_reclaim(lab):
            state = find_task(prog, lab.numbers[comm]).reclaim_state
            say(container_of(state, "struct scan_control", "reclaim_state").priority, 1)
        with Writer(tmp_path / "bundle") as writer:
            collect(Memory(prog), describe(prog, "vmcore"), writer, ["task_waits"])

    in_a_fork(collected)
    found = [each for each in evaluate(Bundle(tmp_path / "bundle")).found if each.id == NOWHERE]
    pid = lab.numbers["a-reclaims"]
    words = f"a-reclaims ({pid}) reclaims memory and gets nowhere: 0 pages freed of the 32 wanted"
    assert [each.title for each in found] == [words]


def test_a_victim_that_waits_for_a_lock_has_who_holds_it(lab: WaitsLab) -> None:
    rows: list[OomVictim] = lab.found.by_name["oom_victims"]
    (row,) = rows
    assert (row.pid, row.comm, row.cgroup) == (lab.numbers["v-dies"], "v-dies", "/dies")
    assert (row.state, row.reaped) == ("D", True)
    assert (row.target, row.holder_pid) == ("mmscope_mutex", lab.numbers["m-holds"])


def test_cpus_that_spin_have_their_lock_and_who_may_have_it(lab: WaitsLab) -> None:
    if lab.rt:
        for number, lock in enumerate(spun_for(lab)):
            row = lab.rows[f"spins{number}"]
            assert (row.kind, row.target) == ("rt_mutex", lock)
            assert (row.holder_pid, row.holder_is) == (1, "owner")
            assert "rtlock_slowlock" in (row.stack or "")
        return
    spins = {row.target: row for row in lab.rows.values() if row.kind == "spinlock"}
    locks = spun_for(lab)
    for number, lock in enumerate(locks):
        row, root = spins[lock], lab.roots[lock]
        assert (row.comm, row.state, row.holder_pid) == (f"spins{number}", "R", None)
        assert (root.kind, root.waiters, root.no_holder) == ("spinlock", 1, False)
        others = [f"spins{each} ({spins[locks[each]].pid})" for each in range(3)]
        named = ", ".join(["init (1)", *others[:number], *others[number + 1 :]])
        assert root.why == (
            "a CPU has it, the kernel does not note which; on CPUs, in the kernel and not "
            f"spinning for it: {named}"
        )
