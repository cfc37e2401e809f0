# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Locks of kernels with PREEMPT_RT: as a quiet guest has them, all free; taken, with a queue that is
put into its memory by the layouts of that kernel; and with one of tasks that split VMAs.
"""

from collections.abc import Callable

import pytest
from capture import capture
from conftest import KERNELS
from drgn import Object, Program, offsetof
from drgn.helpers.linux.pid import find_task
from holders_lab import holders_capture
from named_damage import largest_zone
from named_damage import say as put_into

from mmscope.drgn.free.zones import zones
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.reading.kernel_arrays import member_path
from mmscope.drgn.reading.rwsem_counts import RT_READER_BIAS, RT_WRITER_BIAS
from mmscope.drgn.rmap.anon_vmas import anon_vma_locks, anon_vma_rows
from mmscope.drgn.rmap.reverse_maps import read_reverse_maps
from mmscope.drgn.rmap.rwsem_waiters import MAX_WAITERS

pytestmark = pytest.mark.any_config

RT = [name for name in KERNELS if name.startswith("rt-")]
HAS_WAITERS = 1  # in rt_mutex_base.owner


def opened(kernel: str, say: Callable[[str], None]) -> Program:
    taken = capture(kernel, "sizes", say=say)
    return open_target(taken.vmcore, [taken.vmlinux])


def waiter(prog: Program, task: Object, left: int) -> int:
    """A ``struct rt_mutex_waiter`` on its task's stack: the address of its node of the tree."""
    made = Object(prog, "struct rt_mutex_waiter", address=task.stack.value_() + 4096)
    link = member_path(made.type_, ("tree.entry", "tree_entry"))
    node = Object(prog, "struct rb_node", address=made.address_ + offsetof(made.type_, link))
    for field, value in ((made.task, task.value_()), (node.rb_left, left), (node.rb_right, 0)):
        put_into(field, value)
    return int(node.address_)


if RT:

    @pytest.mark.brief
    @pytest.mark.parametrize("kernel", RT)
    def test_nobody_has_a_lock_where_everything_is_quiet(
        kernel: str, say: Callable[[str], None]
    ) -> None:
        prog = opened(kernel, say)
        maps = read_reverse_maps(prog)
        assert {row.lock for row in anon_vma_rows(maps)} == {"free"}
        assert anon_vma_locks(prog, maps) == ([], [], [])
        assert {row.lock_held for row in zones(prog)} == {False}
        put_into(largest_zone(prog).lock.lock.owner, find_task(prog, 1).value_() | HAS_WAITERS)
        assert sum(bool(row.lock_held) for row in zones(prog)) == 1

    @pytest.mark.brief
    @pytest.mark.parametrize("kernel", RT)
    def test_who_has_a_lock_and_who_is_queued(kernel: str, say: Callable[[str], None]) -> None:
        prog = opened(kernel, say)
        init, threads, queued = (find_task(prog, pid) for pid in (1, 2, 3))
        maps = read_reverse_maps(prog)
        root = hex(maps.anon_vmas["root"][maps.tree_size.argmax()])
        rwsem = Object(prog, "struct anon_vma", address=int(root, 16)).rwsem
        mutex = rwsem.rwbase.rtmutex
        first = waiter(prog, queued, 0)
        top = waiter(prog, threads, first)
        put_into(mutex.waiters.rb_root.rb_node, top)
        put_into(mutex.owner, init.value_() | HAS_WAITERS)

        put_into(rwsem.rwbase.readers.counter, RT_WRITER_BIAS)
        maps = read_reverse_maps(prog)
        ((lock,), rows, problems) = anon_vma_locks(prog, maps)
        assert (lock.root, lock.state, lock.readers, lock.waiters) == (root, "write", 0, 2)
        assert (lock.owner_pid, lock.owner_comm, lock.owner_is) == (1, "init", "writer")
        assert [(row.pid, row.wants) for row in rows] == [(3, None), (2, None)] and not problems

        # The owner of the mutex waits for two readers to leave.
        put_into(rwsem.rwbase.readers.counter, 2)
        maps = read_reverse_maps(prog)
        ((lock,), rows, problems) = anon_vma_locks(prog, maps)
        assert (lock.state, lock.readers, lock.owner_pid, lock.waiters) == ("read", 2, None, 3)
        assert [(row.pid, row.wants) for row in rows] == [(1, "write"), (3, None), (2, None)]

        put_into(rwsem.rwbase.readers.counter, RT_READER_BIAS + 2)
        maps = read_reverse_maps(prog)
        ((lock,), _, problems) = anon_vma_locks(prog, maps)
        assert (lock.state, lock.readers, lock.owner_pid) == ("read", 2, None) and not problems

        # Nobody has it, and the first of the queue is woken to take it.
        put_into(mutex.owner, HAS_WAITERS)
        put_into(rwsem.rwbase.readers.counter, RT_READER_BIAS)
        maps = read_reverse_maps(prog)
        ((lock,), rows, problems) = anon_vma_locks(prog, maps)
        assert (lock.state, lock.readers, lock.owner_pid) == ("changing hands", 0, None)
        assert {row.lock for row in anon_vma_rows(maps) if row.root == root} == {"changing hands"}
        assert [row.pid for row in rows] == [3, 2] and not problems

        # A queue without an end.
        put_into(Object(prog, "struct rb_node", address=first).rb_left, top)
        (_, _, (problem,)) = anon_vma_locks(prog, maps)
        assert f"more than {MAX_WAITERS} waiters" in problem

    @pytest.mark.parametrize("kernel", RT)
    def test_those_who_split_vmas_queue_while_ksm_walks(
        kernel: str, say: Callable[[str], None]
    ) -> None:
        taken = holders_capture(kernel, say, "stall")
        prog = open_target(taken.vmcore, [taken.vmlinux])
        locks, queued, problems = anon_vma_locks(prog, read_reverse_maps(prog))
        assert not problems
        lock = locks[0]
        waiting = [row for row in queued if row.root == lock.root]
        assert lock.anon_vmas > 100_000 and lock.waiters == len(waiting) >= 1
        assert {row.comm for row in waiting} <= {"splitter", "walker"}
        if lock.state == "write":
            assert lock.owner_comm == "splitter"
        if lock.state == "changing hands":
            assert lock.readers == 0 and lock.owner_pid is None
        if lock.state == "read":  # of whom nobody knows, but for one who waits for it to leave
            assert lock.readers == 1 and lock.owner_pid is None
            assert (waiting[0].comm, waiting[0].wants) == ("splitter", "write")
            assert "rwbase_write_lock" in (waiting[0].stack or "")
        assert {row.wants for row in waiting[1:]} <= {None}
        for row in waiting[1:]:
            assert "rt_mutex_slowlock" in (row.stack or "")
