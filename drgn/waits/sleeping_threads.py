# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Threads in D state, by text: /proc/PID/status of each process, /proc/PID/task/TID/stat of its other
threads, and of those that sleep wchan, the function that put them to sleep (``get_wchan()``,
kernel/sched/core.c), which root may read.

Of a running host also for how long: ``se.exec_start`` in /proc/PID/task/TID/sched is when the
thread last ran, in the clock of that CPU (``rq_clock_task()``, which stands still in interrupts).
What that clock says now is known by running there for a moment: this thread's own line. CPUs that
it may not run on, as those kept for others, are left alone.

Costs a file for each thread, :data:`MAX_THREADS` at most. Cannot know: locks and holders.
/proc/PID/stack is not read: it waits itself for the lock of an exec that is under way
(``lock_trace()``, fs/proc/base.c).
"""

import contextlib
import os
import re

from mmscope.drgn.processes.process_status import parse_status, rows_of_processes
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import Found
from mmscope.drgn.text.plain_file import read_plain
from mmscope.drgn.waits.reclaim_threads import MOST_SECONDS
from mmscope.drgn.waits.wait_tables import TaskWait

MAX_THREADS = 10_000
# Of the words behind a thread's name in its stat (do_task_stat(), fs/proc/array.c).
STATE, CPU = 0, 36
_RAN = re.compile(r"^se\.exec_start +: +([0-9]{1,15}\.[0-9]{6})$", re.M)
_OWN = "/proc/thread-self/sched"


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
    clocks: dict[int, float | None] = {}
    rows = []
    for pid, comm, asleep, threads in processes:
        first = [pid] if asleep else []
        if threads > 1 and others <= MAX_THREADS:
            more = files.numbers(f"proc/{pid}/task", r"(\d+)")
            first += [each for each in more if each != pid and _state(files, pid, each) == "D"]
        rows += [_row(files, clocks, pid, comm, thread) for thread in first]
    return rows


def _row(
    files: Files, clocks: dict[int, float | None], pid: int, comm: str, thread: int
) -> TaskWait:
    here = f"proc/{pid}/task/{thread}"
    where = None
    with contextlib.suppress(OSError):
        where = files.open(f"{here}/wchan").strip()
    seconds = _seconds(files, here, clocks) if files.live else None
    return TaskWait(
        *(thread, comm, None, "D", seconds, *[None] * 8),
        stack=None if where in (None, "", "0") else where,
        process=pid,
    )


def _state(files: Files, pid: int, thread: int) -> str:
    with contextlib.suppress(OSError, IndexError):  # it has exited
        return _words(files, f"proc/{pid}/task/{thread}")[STATE]
    return ""


def _words(files: Files, here: str) -> list[str]:
    return files.open(f"{here}/stat").rpartition(")")[2].split()


def _seconds(files: Files, here: str, clocks: dict[int, float | None]) -> float | None:
    """Seconds since a thread last ran; None where that is not known."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        cpu = int(_words(files, here)[CPU])
        ran = _RAN.search(files.open(f"{here}/sched"))
        if cpu not in clocks:
            clocks[cpu] = _now(cpu)
        now = clocks[cpu]
        if ran and now is not None and float(ran[1]) > 0:
            # One that ran since then has not slept long.
            seconds = max(now - float(ran[1]), 0) / 1000
            return round(seconds, 3) if seconds <= MOST_SECONDS else None
    return None


def _now(cpu: int) -> float | None:
    """The clock of a CPU, in ms; None where this thread may not run there."""
    ours = os.sched_getaffinity(0)
    if cpu not in ours:
        return None
    try:
        os.sched_setaffinity(0, {cpu})
        ran = _RAN.search(read_plain(_OWN).decode("ascii", "replace"))
    except OSError:
        return None
    finally:
        os.sched_setaffinity(0, ours)
    return float(ran[1]) if ran else None
