# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The command that ``perf record`` runs: what it used, as ``time`` would say, and its page tables
meanwhile.

perf reaps the command, so that the kernel adds its times to those of perf's children: fields cutime
and cstime of /proc/PID/stat, in clock ticks (10 ms), read when perf has ended and before it is
waited for. They have the times of whatever the command itself waited for, as those of ``time`` do.
Its end is when its pidfd says so: perf's own record of an end comes before the address space goes
(``do_exit()``, 6.12: ``perf_event_exit_task()``, then ``exit_mm()``).
VmPTE of /proc/PID/status is all page tables of a process but PGD and P4D (``mm_pgtables_bytes()``).

Costs: two small files of each process that is looked at.

Cannot know: what a process did that began and ended between two looks; and a command's processes on
a kernel without CONFIG_PROC_CHILDREN.
"""

import contextlib
import os
import re
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mmscope.perf.perf_script import WAITING

MOST_PROCESSES = 8
MOST_POINTS = 256
_VMPTE = re.compile(r"^VmPTE:\s+(\d{1,15}) kB$", re.MULTILINE)
# After the comm: state, then numbers.
_STAT = re.compile(r"\d+ \((.*)\) \w ([-\d ]+)", re.DOTALL)


def read_stat(text: str) -> tuple[str, int, int, int] | None:
    """
    /proc/PID/stat (proc(5)): (comm, faults, user, system); None if the text is something else.

    Faults are minor and major ones of all its threads; the times are clock ticks of children that
    it has waited for, of theirs, and so on.
    """
    match = _STAT.match(text)
    numbers = match[2].split() if match else []
    if match is None or len(numbers) < 14:
        return None
    # ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime cutime cstime
    minor, major, user, system = (int(numbers[at]) for at in (6, 8, 12, 13))
    return match[1], minor + major, user, system


def stat(pid: int) -> tuple[str, int, int, int] | None:
    """The same of a process, which may be gone."""
    with contextlib.suppress(OSError):
        return read_stat(Path(f"/proc/{pid}/stat").read_text(errors="backslashreplace"))
    return None


def seconds_of_children(pid: int) -> tuple[float, float] | None:
    """(user, system) of all children that a process has waited for; it may be a zombie."""
    if (found := stat(pid)) is None:
        return None
    _, _, user, system = found
    ticks = os.sysconf("SC_CLK_TCK")
    return user / ticks, system / ticks


def is_waiting(pid: int) -> bool:
    """True if a process is what perf forked for its command, which was not executed yet."""
    end = time.monotonic() + 1.0
    # It has perf's name at first.
    while (found := stat(pid)) and found[0] == "perf" and time.monotonic() < end:
        time.sleep(0.001)
    return found is not None and found[0] == WAITING.decode()


def children(pid: int) -> list[int]:
    """Children of a process, as far as the kernel lists them."""
    with contextlib.suppress(OSError, ValueError):
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def descendants(pid: int) -> Iterator[int]:
    """A process and its descendants, the nearest first; at most :data:`MOST_PROCESSES`."""
    found = [pid]
    for at in range(MOST_PROCESSES):
        if at >= len(found):
            return
        yield found[at]
        found += children(found[at])


@dataclass
class Growth:
    """Page tables of a process beside its faults: points of [ns, faults, bytes]."""

    comm: str
    points: list[list[int]] = field(default_factory=list)
    every: int = 1  # of the looks, the last that are kept
    looks: int = 0

    def add(self, at: int, faults: int, table_bytes: int) -> None:
        """Keep one, of so many that there are never too many."""
        self.looks += 1
        point = [at, faults, table_bytes]
        if self.looks % self.every:
            return
        self.points.append(point)
        if len(self.points) >= MOST_POINTS:
            self.points = self.points[1::2]
            self.every *= 2


class Watched:
    """
    The page tables of processes over time.

    :param also: called at each look.
    :param of_command: the first of them is a command, and when it ends is wanted.
    """

    def __init__(
        self, also: Callable[[], None] = lambda: None, *, of_command: bool = False
    ) -> None:
        self.also = also
        self._of_command = of_command
        self._end: threading.Thread | None = None
        self._gone: float | None = None
        self.begin = time.monotonic_ns()
        self.found: dict[int, Growth] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Read them once more."""
        self.also()
        for pid in pids:
            if self._of_command and self._end is None:
                self._end = threading.Thread(target=self._wait, args=(pid,), daemon=True)
                self._end.start()
            comm, faults, *_ = stat(pid) or ("perf", 0)
            if comm in ("perf", WAITING.decode()):
                continue  # it has the tables that perf had
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/status").read_text(errors="backslashreplace")
                if match := _VMPTE.search(text):
                    growth = self.found.get(pid)
                    if growth is None or growth.comm != comm:
                        # Another program: its tables are new.
                        growth = self.found[pid] = Growth(comm)
                    at = time.monotonic_ns() - self.begin
                    growth.add(at, faults, int(match[1]) << 10)

    def _wait(self, pid: int) -> None:
        """A process is gone when its address space is, too: its last record of perf's is before."""
        with contextlib.suppress(OSError):
            running = os.pidfd_open(pid)
            select.select([running], [], [])
            self._gone = time.monotonic()
            os.close(running)

    def gone(self) -> float | None:
        """Time when the command had ended, as ``time.monotonic()``; None if it was not seen."""
        if self._end is not None:
            self._end.join(1.0)
        return self._gone
