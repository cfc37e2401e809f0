# SPDX-License-Identifier: LGPL-2.1-or-later
"""Part of memory management that a task is in, by the functions on its stack."""

import re
from collections.abc import Sequence
from functools import lru_cache

# What a task does, by a function on its stack: the first that fits, from 5.10 to 7.3.
DOING = (
    ("kills for lack of memory", ("out_of_memory", "oom_kill_process")),
    ("is held back at memory.high", ("mem_cgroup_handle_over_high",)),
    ("is held back by dirty pages", ("balance_dirty_pages",)),
    ("is held back in reclaim", ("reclaim_throttle", "throttle_direct_reclaim", "wait_iff_cong")),
    ("reclaims from a cgroup", ("try_to_free_mem_cgroup_pages",)),
    ("reclaims", ("try_to_free_pages", "node_reclaim", "shrink_node", "shrink_slab")),
    ("compacts", ("compact_zone", "try_to_compact_pages")),
    ("drains per-CPU lists", ("drain_all_pages", "lru_add_drain_all")),
    ("migrates pages", ("migrate_pages",)),
    ("reads from swap", ("swap_page", "swapin_readahead")),
    ("exits", ("exit_mmap", "mmput")),
    ("waits for a FUSE server", ("request_wait_answer",)),
    ("is stopped", ("signal_stop", "jobctl_trap", "ptrace_stop")),
    ("is frozen", ("freezer_trap", "refrigerator")),
    ("waits for an NFS server", ("rpc_wait_bit", "nfs_wait", "nfs_lock_and_join", "rpc_wait_for")),
    ("waits for a page of userfaultfd", ("handle_userfault",)),
    ("faults", ("handle_mm_fault", "user_addr_fault", "page_fault", "exc_page_fault")),
    ("changes mappings", ("mprotect", "mmap_region", "munmap", "vm_mmap", "vm_munmap")),
    ("changes mappings", ("madvise", "mremap", "brk", "dup_mmap", "vmi_munmap")),
    ("writes back", ("writeback_sb_inodes", "wb_workfn", "writepages")),
    ("waits for a page", ("folio_wait_bit", "wait_on_page_bit", "folio_lock", "lock_page")),
    ("allocates", ("alloc_pages", "alloc_frozen_pages")),
)
# What a function's name begins with that a system call, or an inner part of it, is given.
BEFORE = re.compile(r"^_*(?:(?:x64|arm64|se)_sys_|do_sys_|sys_)?(?:do_)?_*")
# Of one that could run: only what takes long.
LONG = {words for words, _ in DOING[:9]}


def doing(frames: Sequence[str]) -> str | None:
    """Part of memory management that a task is in, by the functions of its stack."""
    return _doing(tuple(frames))


@lru_cache(1024)  # in a convoy most stacks are alike
def _doing(frames: tuple[str, ...]) -> str | None:
    names = [BEFORE.sub("", frame) for frame in frames]
    for words, functions in DOING:
        if any(name.startswith(functions) for name in names):
            return words
    return None
