# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Seconds since a thread of a running host last ran: ``se.exec_start`` in /proc/PID/task/TID/sched
(``proc_sched_show_task()``, kernel/sched/debug.c), in the clock of the CPU where it ran
(``rq_clock_task()``, which may stand still in interrupts). What that clock says now is known by
running there for a moment: the line of the reader itself. CPUs that it may not run on, as those
kept for others, are left alone.

Imports neither drgn nor numpy: the watch reads it, too.
"""

import contextlib
import os
import re

from mmscope.drgn.text.plain_file import read_plain

# Of the words behind a thread's name in its stat (do_task_stat(), fs/proc/array.c).
STATE, VSIZE, CPU = 0, 20, 36
_RAN = re.compile(rb"^se\.exec_start +: +([0-9]{1,15}\.[0-9]{6})$", re.M)
_OWN = "/proc/thread-self/sched"


class Clocks:
    """The clocks of CPUs, each read once."""

    def __init__(self) -> None:
        self._now: dict[int, float | None] = {}

    def asleep(self, thread: str) -> float | None:
        """
        Seconds since a thread last ran; None where that is not known.

        :param thread: its folder, ``/proc/PID/task/TID``.
        """
        with contextlib.suppress(OSError, IndexError, ValueError):
            cpu = int(words(read_plain(f"{thread}/stat").decode("utf-8", "replace"))[CPU])
            ran = _RAN.search(read_plain(f"{thread}/sched"))
            if cpu not in self._now:
                self._now[cpu] = _now(cpu)
            now = self._now[cpu]
            if ran and now is not None and float(ran[1]) > 0:
                # One that ran since then has not slept long.
                return round(max(now - float(ran[1]), 0) / 1000, 3)
        return None


def words(stat: str) -> list[str]:
    """The words behind a thread's name in its stat."""
    return stat.rpartition(")")[2].split()


def _now(cpu: int) -> float | None:
    """The clock of a CPU, in ms; None where this thread may not run there."""
    ours = os.sched_getaffinity(0)
    if cpu not in ours:
        return None
    try:
        os.sched_setaffinity(0, {cpu})
        ran = _RAN.search(read_plain(_OWN))
    except OSError:
        return None
    finally:
        os.sched_setaffinity(0, ours)
    return float(ran[1]) if ran else None
