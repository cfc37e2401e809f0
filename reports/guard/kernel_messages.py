# SPDX-License-Identifier: LGPL-2.1-or-later
"""
/dev/kmsg from now on: the records that a trigger may be about.

A read of the device is a record, copied by the kernel without a lock. Cannot know: what was
overwritten before it was read; that is counted.
"""

import contextlib
import re

from mmscope.drgn.text.kernel_log import Kmsg

# What the kernel prints; of what programs write to the device nothing is taken.
KINDS = (
    # warn_alloc(), mm/page_alloc.c: "%s: page allocation failure: order:%u, mode:%#x(%pGg), …"
    ("allocation_failure", re.compile(r"page allocation failure: order:(?P<order>\d+)")),
    # dump_oom_victim(), dump_oom_summary(), mm/oom_kill.c
    ("oom_kill", re.compile(r"(?:Out of memory|Memory cgroup out of memory)[^:]*: Killed process")),
    ("oom_cause", re.compile(r"oom-kill:constraint=")),
)
LONGEST_TEXT = 400
MOST_READS, MOST_KEPT = 20_000, 200  # in one go


def new_messages(kmsg: Kmsg) -> list[tuple[str, str]]:
    """(kind, text) of what the kernel logged since it was last read, if it is of a known kind."""
    found: list[tuple[str, str]] = []
    with contextlib.suppress(OSError):
        for record in kmsg.of_kernel(MOST_READS):
            kind = next((kind for kind, words in KINDS if words.search(record.text)), None)
            if kind and len(found) < MOST_KEPT:
                found.append((kind, record.text[:LONGEST_TEXT]))
    return found
