# SPDX-License-Identifier: LGPL-2.1-or-later
"""
/dev/kmsg from now on: the records that a trigger may be about.

A read of the device is a record, copied by the kernel without a lock. Cannot know: what was
overwritten before it was read; that is counted.
"""

import contextlib
import os
import re

from mmscope.drgn.text.kernel_log import LONGEST_RECORD, parse_kmsg

# What the kernel prints; of what programs write to the device nothing is taken.
KINDS = (
    # warn_alloc(), mm/page_alloc.c: "%s: page allocation failure: order:%u, mode:%#x(%pGg), …"
    ("allocation_failure", re.compile(r"page allocation failure: order:(?P<order>\d+)")),
    # dump_oom_victim(), dump_oom_summary(), mm/oom_kill.c
    ("oom_kill", re.compile(r"(?:Out of memory|Memory cgroup out of memory)[^:]*: Killed process")),
    ("oom_cause", re.compile(r"oom-kill:constraint=")),
)
LONGEST_TEXT = 400
# In one go: a kernel that logs as fast as it is read would never end.
MOST_READS, MOST_KEPT = 20_000, 200


class KernelMessages:
    """
    Follows the kernel's log.

    :ivar absent: why it cannot be followed.
    :ivar lost: times that records were overwritten before they were read.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self.absent: str | None = None
        self.lost = 0
        self._file: int | None = None
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self.absent = f"{path}: {error.strerror}"

    def new(self) -> list[tuple[str, str]]:
        """(kind, text) of what the kernel logged since, as far as it is of a known kind."""
        found: list[tuple[str, str]] = []
        if self._file is None:
            return found
        for _ in range(MOST_READS):
            try:
                read = os.read(self._file, LONGEST_RECORD)
            except BrokenPipeError:
                self.lost += 1
                continue
            except OSError:  # BlockingIOError: that was the last
                break
            record = parse_kmsg(read)
            if record is None or record.facility or not read:
                continue
            kind = next((kind for kind, words in KINDS if words.search(record.text)), None)
            if kind and len(found) < MOST_KEPT:
                found.append((kind, record.text[:LONGEST_TEXT]))
        return found

    def close(self) -> None:
        """Stop following."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
