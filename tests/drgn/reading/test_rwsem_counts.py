# SPDX-License-Identifier: LGPL-2.1-or-later
"""State of a rw_semaphore, by its count."""

import numpy as np

from mmscope.drgn.reading.rwsem_counts import lock_counts, lock_state


def test_the_state_of_a_lock() -> None:
    states = {0: "free", 1: "write", 1 | 2: "write", 256: "read", 3 * 256 | 2: "read"}
    states |= {2: "changing hands", 6: "changing hands"}
    assert {count: lock_state(count) for count in states} == states


def test_the_word_of_a_lock_of_preempt_rt_is_read_as_that_of_any() -> None:
    """``rwbase_rt.readers``: biased for readers, for a writer, and for none while one waits."""
    words = {
        1 << 31: "free",
        (1 << 31) + 3: "read",
        1 << 30: "write",
        2: "read",
        0: "changing hands",
    }
    counts = lock_counts(np.array([*words], np.uint32).view(np.int32))
    assert [lock_state(count) for count in counts.tolist()] == [*words.values()]
    assert (counts >> 8).tolist() == [0, 3, 0, 2, 0]
    # One that is handed on has the word of a free one, and a queue.
    queued = lock_counts(np.array([*words], np.uint32).view(np.int32), np.arange(5) + 0x1000)
    states = [lock_state(count) for count in queued.tolist()]
    assert states == ["changing hands", "read", "write", "read", "changing hands"]
    # Of other kernels it is what it is.
    assert lock_counts(np.array([-255, 0, 256], np.int64)).tolist() == [-255, 0, 256]
