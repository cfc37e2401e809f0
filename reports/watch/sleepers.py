# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tasks that sleep in D state while a host is watched, and were put on no CPU between two readings, as
the kernel's own check for hung tasks knows them (check_hung_task(), kernel/hung_task.c); or that
last ran a while ago (:mod:`~mmscope.drgn.text.asleep`).

A reading opens stat of each thread, so that it is taken less often than the rest, as who holds
memory is (:mod:`~mmscope.reports.watch.holders`); more often while some task sleeps so, or the load
says that some may: it counts those in D state as well (calc_load_fold_active(),
kernel/sched/loadavg.c). Tasks of the kernel itself are left out. With more than :data:`MAX_TASKS`
threads none is read.

Cannot know: what a task waits for, but for the function that put it to sleep (wchan), which root
may read; what is over between two readings.

Imports neither drgn nor numpy: a sample must cost less than what it measures.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import Any

from mmscope.drgn.text.asleep import STATE, VSIZE, Clocks, words
from mmscope.drgn.text.plain_file import read_text
from mmscope.reports.watch.holders import Budget

SHARE, WHILE_ASLEEP = 0.005, 0.02  # of a CPU
MAX_TASKS = 10_000
LOAD = 0.5  # more than what runs
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\t([0-9]{1,18})$", re.M)


class Sleepers:
    """
    Reads which tasks sleep in D state.

    :param root: the folder that has ``proc/`` in it.
    :ivar unread: why they were not read.
    """

    def __init__(self, root: str) -> None:
        self._proc, self.unread = os.path.join(root, "proc"), ""
        self._budget = Budget()
        # By task: its switches, since when, and where it sleeps.
        self._asleep: dict[tuple[int, int], tuple[int, float, str]] = {}

    @property
    def due(self) -> bool:
        """True if it is time for a reading."""
        return self._budget.due(WHILE_ASLEEP if self._asleep or self._loaded() else SHARE)

    def _loaded(self) -> bool:
        """Tell if the load of the last minute is more than the tasks that run or could."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            load, _, _, tasks, *_ = read_text(os.path.join(self._proc, "loadavg")).split()
            return float(load) >= int(tasks.partition("/")[0]) + LOAD
        return False

    def read(self) -> list[list[Any]]:
        """
        [process, its name, task, since when (monotonic), where] of those that slept before, by an
        earlier reading or, where it is there, by /proc/PID/task/TID/sched.
        """
        with self._budget.spend():
            try:
                found = dict(self._sleeping())
            except (OSError, ValueError) as error:
                self.unread, self._asleep = str(error), {}
                return []
        now, clocks = time.monotonic(), Clocks()
        before, self._asleep = self._asleep, {}
        rows = []
        for (pid, task), (name, switches, where) in found.items():
            known = before.get((pid, task))
            if known and known[0] == switches:
                since = known[1]
            else:
                since = now - (clocks.asleep(f"{self._proc}/{pid}/task/{task}") or 0)
            self._asleep[pid, task] = switches, since, where
            if since < now:
                rows.append([pid, name, task, since, where])
        return rows

    def _sleeping(self) -> Iterator[tuple[tuple[int, int], tuple[str, int, str]]]:
        tasks = 0
        for pid in filter(str.isdecimal, os.listdir(self._proc)):
            with contextlib.suppress(OSError):
                threads = os.listdir(os.path.join(self._proc, pid, "task"))
                tasks += len(threads)
                if tasks > MAX_TASKS:
                    raise ValueError(f"more than {MAX_TASKS:,} tasks")
                for task in threads:
                    if row := self._task(os.path.join(self._proc, pid), task):
                        yield (int(pid), int(task)), row

    def _task(self, process: str, task: str) -> tuple[str, int, str] | None:
        here = os.path.join(process, "task", task)
        said = words(read_text(f"{here}/stat"))
        if len(said) <= VSIZE or said[STATE] != "D" or said[VSIZE] == "0":
            return None
        switches = sum(map(int, _SWITCHES.findall(read_text(f"{here}/status"))))
        where = ""
        with contextlib.suppress(OSError):
            where = read_text(f"{here}/wchan")
        comm = read_text(f"{process}/comm").rstrip("\n")
        return comm, switches, "" if where == "0" else where[:64]
