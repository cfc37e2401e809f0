# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a task does, by its stack."""

import pytest

from mmscope.drgn.waits.doing import doing


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
