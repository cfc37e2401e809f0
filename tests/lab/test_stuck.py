# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tasks that wait for a FUSE server, a page of userfaultfd, memory.high, and for those that do, in a
frozen guest, against what its program planted and /proc said of each.
"""

import re
from collections.abc import Callable

import pytest
from conftest import KERNELS
from holders_lab import holders_capture
from waits_lab import WaitsLab

from mmscope.drgn.waits.fuse import FuseConnection
from mmscope.drgn.waits.wait_tables import TaskWait

pytestmark = [pytest.mark.any_config, pytest.mark.btf]

# programs/stuck.c; those that wait for the server in the end, and those that do so for another.
OF_SERVER = ("f-sync", "f-fault", "f-unmap", "f-map", "f-read", "f-look", "f-make", "f-look-again")
PLANTED = (*OF_SERVER, "u-write", "u-queue", "u-queue-too", "c-high")
AS_MODULE = {"5.10", "6.1", "arm64-6.1"}


class StuckLab(WaitsLab):
    """With what the kernel that was read tells of the guest."""

    @property
    def rows(self) -> dict[str, TaskWait]:
        """By comm, of those that were planted."""
        return {comm: row for comm, row in super().rows.items() if comm in PLANTED}

    @property
    def types(self) -> bool:
        """Types of FUSE are known: in 5.10 it is a module, whose types it does not keep."""
        return self.capture.kernel != "5.10"

    @property
    def flushers(self) -> int:
        """Threads of the kernel's own that have come to wait for the server, where it took long."""
        waits = self.found.by_name["task_waits"]
        return sum(row.comm.startswith("kworker") and row.kind == "FUSE request" for row in waits)


@pytest.fixture(scope="module", params=KERNELS)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> StuckLab:
    modules = ("fuse",) if request.param in AS_MODULE else ()
    taken = holders_capture(request.param, say, "stuck", modules)
    return StuckLab.of(taken, "stuck")


def test_every_task_is_there_and_in_its_state(lab: StuckLab) -> None:
    assert not lab.found.notes
    assert set(lab.rows) == set(PLANTED) - {"u-write"}  # who holds and waits for no lock: a root
    for comm, row in lab.rows.items():
        assert row.pid == lab.numbers[comm]
        state = lab.said(comm, "stat").rpartition(")")[2].split()[0]
        # It ran now and then while that was read, and the guest was frozen while it slept.
        assert row.state == ("D" if comm == "c-high" else state)


def test_stacks_are_those_of_proc(lab: StuckLab) -> None:
    for comm, row in lab.rows.items():
        if comm == "c-high":
            continue  # it runs now and then
        lab.assert_stacks_as_printed([comm])
        names = (row.stack or "").split(";")
        assert lab.said(comm, "wchan") in (*names, "0")  # 0: 5.10 finds it by frame pointers alone


def test_the_server_is_who_owes_all_of_it(lab: StuckLab) -> None:
    server = lab.numbers["fuse-server"]
    if not lab.types:
        assert {lab.rows[comm].holder_pid for comm in ("f-sync", "f-fault", "f-read")} == {None}
        assert "types of their module are not known" in lab.found.unlisted[0]
        return
    for comm in ("f-sync", "f-fault", "f-read", "f-look"):
        row = lab.rows[comm]
        assert (row.holder_pid, row.holder_comm, row.holder_is) == (
            *(server, "fuse-server", "FUSE server"),
        ), comm
    assert "/tmp/fuse/data" in (lab.rows["f-read"].target or "")
    assert lab.rows["f-look"].target == "fuse.lab of labserver at /tmp/fuse"
    root = lab.roots[f"fuse-server ({server})"]
    # With PREEMPT_RT the reader of the directory is not known.
    waiters = len(OF_SERVER) - (2 if lab.rt else 0) + lab.flushers
    assert (root.waiters, root.circle) == (waiters, False)
    assert root.doing == "is stopped"


def test_requests_are_those_that_the_kernel_counts(lab: StuckLab) -> None:
    rows: list[FuseConnection] = lab.found.by_name["fuse_connections"]
    if not lab.types:
        assert rows == []
        return
    (row,) = rows
    assert row.device == f"0:{lab.numbers['connection']}"
    said = int((lab.capture.truth_a / "stages/waiting").read_text())
    assert row.waiting == said + lab.flushers == row.unread + row.in_hand
    assert (row.server_pid, row.server_state) == (lab.numbers["fuse-server"], "T")
    assert {"LOOKUP", "READ", "WRITE"} <= set(re.findall("[A-Z]+", row.requests))
    assert row.tasks == 4 + lab.flushers


def test_a_fault_that_waits_for_the_server_keeps_its_process_waiting(lab: StuckLab) -> None:
    dirty, rows = lab.numbers["fuse-dirty"], lab.rows
    faulter, unmapper, mapper = (rows[name] for name in ("f-fault", "f-unmap", "f-map"))
    mm = f"mmap_lock of fuse-dirty ({dirty})"
    assert (unmapper.holder_pid, unmapper.holder_is) == (faulter.pid, "reader, in a fault")
    own = unmapper.target != mm  # VMAs have locks of their own since 6.4
    assert not own or re.fullmatch(rf"VMA 0x\w+-0x\w+ of fuse-dirty \({dirty}\)", unmapper.target)
    assert (mapper.kind, mapper.target) == ("rwsem, to write", mm)
    assert mapper.holder_pid in (unmapper.pid, faulter.pid)


def test_a_directory_keeps_who_makes_one_in_it_waiting(lab: StuckLab) -> None:
    looks, makes, again = (lab.rows[name] for name in ("f-look", "f-make", "f-look-again"))
    for row, wants in ((makes, "write"), (again, "read")):
        assert (row.state, row.kind) == ("D", f"rwsem, to {wants}")
        assert row.target == "i_rwsem of /tmp/fuse"
    if not lab.rt:
        assert (makes.holder_pid, makes.holder_is) == (looks.pid, "last reader")
        return
    assert (makes.holder_pid, again.holder_pid, again.holder_is) == (None, makes.pid, "owner")
    root = lab.roots["i_rwsem of /tmp/fuse"]
    assert (root.pid, root.waiters) == (makes.pid, 2)
    assert root.why == "1 reader, of which the kernel notes none"


def test_a_pipe_has_its_writer(lab: StuckLab) -> None:
    for comm in ("u-queue", "u-queue-too"):
        row = lab.rows[comm]
        assert (row.holder_pid, row.holder_is) == (lab.numbers["u-write"], "owner")
    root = lab.roots[f"u-write ({lab.numbers['u-write']})"]
    assert root.waiters == 2 and root.doing == "waits for a page of userfaultfd"


def test_who_is_over_memory_high_has_its_cgroup(lab: StuckLab) -> None:
    row = lab.rows["c-high"]
    assert (row.kind, row.target) == ("memory.high", "memory.high of /high")
    assert row.doing == "is held back at memory.high"
