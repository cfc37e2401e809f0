# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What keeps a process at work on a host that is out of memory, and what keeps it out of others' way.
"""

import contextlib
import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path

from mmscope.drgn.workers.priority import last_in_line

# sys/mman.h, malloc.h
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
M_TRIM_THRESHOLD, M_TOP_PAD = -1, -2
KEPT = 4 << 20


def stay_in_memory(rehearse: Callable[[], None]) -> str | None:
    """
    Keep what this process has in memory, and what it will have. A rehearsal has touched by then
    what it needs: code is not read from a disk, nor memory asked for, while there is none.

    :return: why it could not be done.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # of glibc: what is free is kept
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(M_TOP_PAD, KEPT)
    rehearse()
    # Pages that were never touched stay away: they would be most of what is locked.
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT):
        return f"mlockall: {os.strerror(ctypes.get_errno())}; LimitMEMLOCK, or CAP_IPC_LOCK"
    return None


def step_back(memory: int) -> None:
    """
    Make this process, and those that it starts, the last that get a CPU, the disk, or memory.

    :param memory: bytes that each may have of its own (RLIMIT_DATA).
    """
    last_in_line()
    # The first to go when memory runs out: what it has written by then is kept.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def resident_bytes() -> int | None:
    """What this process has in memory; None: /proc is not there."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None
