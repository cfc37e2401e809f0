# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tasks that wait: what they do by their stacks, and the text's row. Kernels: tests/lab."""

import pytest
from drgn import Object
from made_programs import empty

from mmscope.drgn.rmap.rwsem_waiters import LAST_READER
from mmscope.drgn.waits.task_waits import doing, end_of_chain, sleeping
from mmscope.drgn.waits.waiters import Awaited

STATUS = "Name:\tcat\nUmask:\t0022\nState:\tD (disk sleep)\nTgid:\t7\nPid:\t7\nPPid:\t1\n"


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ("filemap_fault handle_mm_fault exc_page_fault", "faults"),
        ("handle_userfault handle_mm_fault exc_page_fault", "waits for a page of userfaultfd"),
        ("request_wait_answer fuse_simple_request fuse_flush", "waits for a FUSE server"),
        ("shrink_lruvec try_to_free_pages __alloc_pages_slowpath handle_mm_fault", "reclaims"),
        ("try_to_free_mem_cgroup_pages try_charge handle_mm_fault", "reclaims from a cgroup"),
        ("io_schedule balance_dirty_pages generic_perform_write", "is held back by dirty pages"),
        ("__mem_cgroup_handle_over_high exit_to_user", "is held back at memory.high"),
        ("down_write __do_sys_madvise", "changes mappings"),
        ("migrate_pages_batch.constprop.0 migrate_pages", "migrates pages"),
        ("rwsem_down_write_slowpath vfs_write", None),
        ("", None),
    ],
)
def test_what_a_task_does_is_told_by_its_stack(stack: str, words: str | None) -> None:
    assert doing(stack.split()) == words


def test_the_text_has_tasks_in_d_state_alone() -> None:
    row = sleeping(STATUS)
    assert row and (row.pid, row.comm, row.state, row.stack) == (7, "cat", "D", None)
    assert sleeping(STATUS.replace("D (disk sleep)", "S (sleeping)")) is None
    with pytest.raises(ValueError, match="no Name"):
        sleeping("State:\tD (disk sleep)\n")


def test_a_chain_is_followed_from_holder_to_holder() -> None:
    prog = empty()
    number = prog.int_type("unsigned long", 8, False)

    def waits(lock: int, holder: int | None, holder_is: str = "owner") -> Awaited:
        task = None if holder is None else Object(prog, number, holder)
        return Awaited("mutex", lock, task, holder_is)

    tasks = {1, 2, 3}
    end = end_of_chain(1, {1: waits(10, 2), 2: waits(20, 3)}, tasks)
    assert end == (3, False, False)
    assert end_of_chain(1, {1: waits(10, 2), 2: waits(20, None)}, tasks) == (20, False, False)
    # Its reader has ended.
    assert end_of_chain(1, {1: waits(10, 9, LAST_READER)}, tasks) == (10, False, False)
    assert end_of_chain(1, {1: waits(10, 2, LAST_READER)}, tasks) == (2, False, True)
    circle = {1: waits(10, 2), 2: waits(20, 1)}
    assert end_of_chain(2, circle, tasks) == (1, True, False)
    # Who holds a lock of the circle is not known; how one comes into a circle says nothing of it.
    assert end_of_chain(2, circle | {2: waits(20, 1, LAST_READER)}, tasks) == (1, True, True)
    assert end_of_chain(3, circle | {3: waits(30, 1, LAST_READER)}, tasks) == (1, True, False)
