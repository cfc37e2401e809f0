# SPDX-License-Identifier: LGPL-2.1-or-later
"""Out of others' way: the last that gets a CPU and the disk, and a budget of CPU time."""

import atexit
import contextlib
import ctypes
import os
import platform
import signal
import time

# linux/ioprio.h, and the number of the system call
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
IOPRIO_IDLE = 3 << 13

TICK = 0.01  # of CPU time, after which it is asked whether to rest
CREDIT = 1.0  # seconds: what was not used longer ago is lost


def last_in_line() -> None:
    """Make this process, and those that it starts, the last that get a CPU or the disk."""
    with contextlib.suppress(OSError):
        os.nice(19)
    if number := IOPRIO_SET.get(platform.machine()):
        ctypes.CDLL(None).syscall(number, 1, 0, IOPRIO_IDLE)


def keep_to(percent: float) -> None:
    """
    From now on this process takes at most so much of one CPU, on average, all its threads together.

    Its main thread rests when it has had too much, at the next step of Python's. So what is one
    step (the kernel's debug info is read in one, on all CPUs) is paid for afterwards. A deadline
    (ITIMER_REAL) stands still meanwhile. Not handed on to a child,
    and what children take is not counted (a process that reads files apart).

    :param percent: of one CPU, above 0.
    """
    share = percent / 100
    paid, used = time.monotonic(), time.process_time()  # up to when, and for what, it has rested

    def rest(*signalled: object) -> None:
        nonlocal paid, used
        now, taken = time.monotonic(), time.process_time()
        paid = max(paid + (taken - used) / share, now - CREDIT)
        used = taken
        if paid > now:
            left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(paid - now)
            if left:
                signal.setitimer(signal.ITIMER_REAL, left)

    signal.signal(signal.SIGPROF, rest)
    signal.siginterrupt(signal.SIGPROF, False)  # a read that it comes into goes on
    signal.setitimer(signal.ITIMER_PROF, TICK, TICK)
    # Python gives signals up before the process ends, and this one then kills it.
    atexit.register(signal.setitimer, signal.ITIMER_PROF, 0)
