# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Locks that a module holds for good, and CPUs that spin, in a frozen guest: holder, waiters and root
against what its program planted and /proc said of each.
"""

import re
from collections.abc import Callable

import machine
import pytest
from architectures import AMD64
from conftest import KERNELS
from drgn import Program
from holders_lab import holders_capture
from kernels import architecture, stock
from waits_lab import WaitsLab

from mmscope.drgn.waits.reclaim_threads import OomVictim

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
SPUN_FOR = (
    "lock of zone Normal of node 1",
    "lru_lock of node 1 of /",
    "list_lock of node 0 of the slab cache mmscope_locks",
)
# A module is built for x86 alone; where a spinlock is an rt_mutex it may not be taken so.
TAKEN = [
    name
    for name in KERNELS
    if name in stock() and architecture(name) is AMD64 and name not in ("rt-6.12", "5.10")
]


@pytest.fixture(scope="module", params=TAKEN)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> WaitsLab:
    taken = holders_capture(request.param, say, "locks", (), machine.GUEST / "locks")
    return WaitsLab.of(taken, "locks")


def test_each_lock_has_its_name_and_its_holder(lab: WaitsLab) -> None:
    assert not lab.found.notes
    for comm, (kind, target, holder, holder_is) in HELD.items():
        row = lab.rows[comm]
        assert (row.pid, row.state, row.kind) == (lab.numbers[comm], "D", kind)
        assert re.fullmatch(target, row.target or ""), comm
        pid = lab.numbers[holder] if holder else None
        assert (row.holder_pid, row.holder_comm, row.holder_is) == (pid, holder, holder_is), comm


def test_stacks_are_those_of_proc(lab: WaitsLab) -> None:
    for comm, pid in lab.numbers.items():
        assert lab.rows[comm].pid == pid
    lab.assert_stacks_as_printed(lab.numbers)


def test_a_session_without_debug_info_has_what_called_a_module(lab: WaitsLab) -> None:
    from drgn.commands import run_command

    prog = Program()
    prog.set_core_dump(lab.capture.vmcore)
    run_command(prog, "no_debug_info")
    names = [frame.name for frame in prog.stack_trace(1)]
    assert names[0] == "freeze" and "ksys_write" in names


def test_chains_end_at_those_that_hold(lab: WaitsLab) -> None:
    ends = {holder: target for _, target, holder, _ in HELD.values() if holder}
    for comm, target in ends.items():
        root = lab.roots[f"{comm} ({lab.numbers[comm]})"]
        waiting = [each for each, (*_, holder, _) in HELD.items() if holder == comm]
        # Who had the victim killed waits for the same, where the victim's memory was not free yet;
        # khugepaged may wait for that one's VMA.
        waiting += lab.rows.keys() & {"v-eats", "khugepaged"} if comm == "o-holds" else set()
        assert (root.waiters, root.circle, root.no_holder) == (len(waiting), False, False)
        assert re.fullmatch(target, root.lock)
    page = lab.roots["page 0 of /tmp/locked"]
    assert (page.waiters, page.why) == (1, "the kernel notes no task for it")


def test_who_reclaims_has_what_from_for_what_and_how_far(lab: WaitsLab) -> None:
    """With a shrinker that never comes back, at the first try."""
    planted = {
        "a-reclaims": ("reclaims", "/", "up to DMA32", 3, 12),
        "g-reclaims": ("reclaims from a cgroup", "/shrunk", "all", 0, 12),
    }
    for comm, said in planted.items():
        row = lab.rows[comm]
        assert (row.doing, row.reclaims_from, row.zones, row.order, row.priority) == said
        assert row.state == "D" and row.reclaimed_pages is not None
    assert {row.comm for row in lab.rows.values() if row.order is not None} == set(planted)


def test_a_victim_that_waits_for_a_lock_has_who_holds_it(lab: WaitsLab) -> None:
    rows: list[OomVictim] = lab.found.by_name["oom_victims"]
    (row,) = rows
    assert (row.pid, row.comm, row.cgroup) == (lab.numbers["v-dies"], "v-dies", "/dies")
    assert (row.state, row.reaped) == ("D", True)
    assert (row.target, row.holder_pid) == ("mmscope_mutex", lab.numbers["m-holds"])


def test_cpus_that_spin_have_their_lock_and_who_may_have_it(lab: WaitsLab) -> None:
    spins = {row.target: row for row in lab.rows.values() if row.kind == "spinlock"}
    for number, lock in enumerate(SPUN_FOR):
        row, root = spins[lock], lab.roots[lock]
        assert (row.comm, row.state, row.holder_pid) == (f"spins{number}", "R", None)
        assert (root.kind, root.waiters, root.no_holder) == ("spinlock", 1, False)
        others = [f"spins{each} ({spins[SPUN_FOR[each]].pid})" for each in range(3)]
        named = ", ".join(["init (1)", *others[:number], *others[number + 1 :]])
        assert root.why == (
            "a CPU has it, the kernel does not note which; on CPUs, in the kernel and not "
            f"spinning for it: {named}"
        )
