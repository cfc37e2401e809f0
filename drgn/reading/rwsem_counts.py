# SPDX-License-Identifier: LGPL-2.1-or-later
"""State of a ``struct rw_semaphore``, by its ``count`` or what PREEMPT_RT has in its place."""

import contextlib

import numpy as np
from drgn import Program

from mmscope.drgn.reading.kernel_arrays import Array, S64s, member_path

# include/linux/rwbase_rt.h: a lock that a writer wants has no bias, nor has one that it holds.
RT_READER_BIAS, RT_WRITER_BIAS = 1 << 31, 1 << 30
WRITER_LOCKED, FLAG_WAITERS, READER_SHIFT = 1, 2, 8  # kernel/locking/rwsem.c


def lock_word(prog: Program) -> str | None:
    """
    The member of a ``struct rw_semaphore`` that says who has it: ``count``, with PREEMPT_RT the
    readers ("locking/rwsem: Add rtmutex based R/W semaphore implementation", 42254105dfe8, in
    v5.15); None where it is another.
    """
    paths = ("count.counter", "rwbase.readers.counter")
    with contextlib.suppress(LookupError):
        return member_path(prog.type("struct rw_semaphore"), paths)
    return None


def lock_columns(prog: Program, member: str) -> dict[str, str]:
    """
    Columns of a structure that say who has a ``struct rw_semaphore`` of it: ``lock``, and with
    PREEMPT_RT ``queue``, as a lock that changes hands has the word of a free one; none where it is
    another.
    """
    if (word := lock_word(prog)) is None:
        return {}
    columns = {"lock": f"{member}.{word}"}
    if word.startswith("rwbase."):
        columns["queue"] = f"{member}.rwbase.rtmutex.waiters.rb_root.rb_node"
    return columns


def lock_counts(words: Array, queues: Array | None = None) -> S64s:
    """
    ``rw_semaphore.count``; made of the word that PREEMPT_RT has in its place, of 32 bits.

    :param queues: root of the tree of waiters, with PREEMPT_RT.
    """
    counts = words.astype(np.int64)
    if words.dtype.itemsize == 4:
        held, wanted = (counts & RT_WRITER_BIAS) != 0, (counts & RT_READER_BIAS) == 0
        counts = (counts & (RT_WRITER_BIAS - 1)) << READER_SHIFT
        counts[wanted] |= FLAG_WAITERS
        counts[held] = WRITER_LOCKED
    if queues is not None:
        counts[(counts == 0) & (queues != 0)] = FLAG_WAITERS
    return counts


def lock_state(count: int) -> str:
    """``rw_semaphore.count`` in words (kernel/locking/rwsem.c)."""
    if count & WRITER_LOCKED:
        return "write"
    if count >> READER_SHIFT > 0:
        return "read"
    return "changing hands" if count & 6 else "free"
