# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Threads in D state, by text: /proc/PID/status of each process, /proc/PID/task/TID/stat of its other
threads, and of those that sleep wchan, the function that put them to sleep (``get_wchan()``,
kernel/sched/core.c), which root may read.

Of a running host also for how long (:mod:`~mmscope.drgn.text.asleep`).

Costs a file for each thread, :data:`MAX_THREADS` at most. Cannot know: locks and holders.
/proc/PID/stack is not read: it waits itself for the lock of an exec that is under way
(``lock_trace()``, fs/proc/base.c).
"""

import contextlib
import dataclasses

from mmscope.drgn.processes.process_status import parse_status, rows_of_processes
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import Found
from mmscope.drgn.text.asleep import STATE, Clocks, words
from mmscope.drgn.waits.reclaim_threads import MOST_SECONDS
from mmscope.drgn.waits.wait_tables import TaskWait

MAX_THREADS = 10_000


def sleeping_threads(files: Files, found: Found) -> list[TaskWait]:
    """
    Rows of all threads in D state.

    :param found: gets notes of what is wrong with some, or was not read.
    :raises Absent: the tree has no processes.
    """

    def of(text: str) -> tuple[int, str, bool, int]:
        status = parse_status(text)
        threads = status.lines.get("Threads", "")
        asleep = status.lines.get("State", "").startswith("D")
        return status.pid, status.comm, asleep, int(threads) if threads.isdecimal() else 1

    processes, notes = rows_of_processes(files, of)
    found.notes += notes
    others = sum(threads for *_, threads in processes) - len(processes)
    if others > MAX_THREADS:
        found.remarks.append(f"threads in D state: of {others:,} only the first of each process")
    clocks = Clocks()
    rows = []
    for pid, comm, asleep, threads in processes:
        first = [pid] if asleep else []
        if threads > 1 and others <= MAX_THREADS:
            more = files.numbers(f"proc/{pid}/task", r"(\d+)")
            first += [each for each in more if each != pid and _state(files, pid, each) == "D"]
        rows += [_row(files, clocks, pid, comm, thread) for thread in first]
    return rows


def _row(files: Files, clocks: Clocks, pid: int, comm: str, thread: int) -> TaskWait:
    here = f"proc/{pid}/task/{thread}"
    where = None
    with contextlib.suppress(OSError):
        where = files.open(f"{here}/wchan").strip()
    seconds = clocks.asleep(str(files.root / here)) if files.live else None
    if seconds is not None and seconds > MOST_SECONDS:
        seconds = None
    stack = None if where in (None, "", "0") else where
    unknown = (None,) * 8
    row = TaskWait(thread, comm, None, "D", seconds, *unknown, stack)
    return dataclasses.replace(row, process=pid)


def _state(files: Files, pid: int, thread: int) -> str:
    with contextlib.suppress(OSError, IndexError):  # it has exited
        return words(files.open(f"proc/{pid}/task/{thread}/stat"))[STATE]
    return ""
