# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Processes that the OOM killer took while a host is watched: as the kernel's log names them
(__oom_kill_process(), mm/oom_kill.c), which is read from where it was when the watch began.

Costs a read for each record since, and none before the kernel counts a kill (oom_kill of
/proc/vmstat).

Cannot know: kills whose records were overwritten before they were read.

Imports neither drgn nor numpy: a sample must cost less than what it measures.
"""

import contextlib
import os
import re
from typing import Any

from mmscope.drgn.sections.prices import is_live
from mmscope.drgn.text.kernel_log import MOST_RECORDS, Kmsg

# After a kill was counted: the record is written a little later.
SAMPLES_AFTER = 2
LIMIT, MACHINE = "cgroup", "machine"
_KILL = re.compile(
    r"(Memory cgroup out|Out) of memory(?: \(oom_kill_allocating_task\))?: "
    r"Killed process ([0-9]{1,10}) \((.*)\) total-vm:[0-9]+kB, anon-rss:([0-9]{1,15})kB, "
    r"file-rss:[0-9]+kB, shmem-rss:([0-9]{1,15})kB",
    re.DOTALL,
)


class Kills:
    """
    Reads who was killed.

    :param root: the folder that has ``dev/kmsg`` in it.
    :ivar unread: why it is not read.
    """

    def __init__(self, root: str) -> None:
        self.unread = "" if is_live(root) else "the kernel's log of a copy does not go on"
        self._counted: int | None = None
        self._log: Kmsg | None = None
        self._due = 0
        if self.unread:
            return
        path = os.path.join(root, "dev/kmsg")
        try:
            self._log = Kmsg(path, from_now_on=True)
        except OSError as error:
            self.unread = f"{path}: {error.strerror}"

    def read(self, counted: int) -> list[list[Any]]:
        """
        [pid, name, at whose limit, bytes that it had mapped] of those killed since the last
        reading.

        :param counted: the kernel's count of kills.
        """
        if self._counted is not None and counted > self._counted:
            self._due = SAMPLES_AFTER
        self._counted = counted
        if self._log is None or not self._due:
            return []
        self._due -= 1
        found = []
        with contextlib.suppress(OSError):
            for record in self._log.of_kernel(MOST_RECORDS):
                if match := _KILL.match(record.text):
                    whose, pid, name, anon, shmem = match.groups()
                    limit = LIMIT if whose.startswith("Memory cgroup") else MACHINE
                    found.append([int(pid), name, limit, (int(anon) + int(shmem)) << 10])
        return found
