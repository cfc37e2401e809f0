# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open files of this process."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path


def times_open(file: Path) -> int:
    """How often this process has a file open; others come and go with the garbage collector."""
    places = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    # One of them was the listing's own.
    return sum(os.readlink(place) == str(file) for place in places if place.is_symlink())


def said_of_kernel_log(tried: Callable[[Path], str | None]) -> str:
    """
    What is said of the kernel's log as syslogd reads it, at its end: plain by its mode, it waits
    for more. The kernel may say more in between: then it is tried again.

    :param tried: says why it is refused; None where it was opened.
    """
    path = Path("/proc/kmsg")
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for _ in range(1000):
            with contextlib.suppress(BlockingIOError):
                while os.read(log, 1 << 16):
                    pass
            if said := tried(path):
                return said
    finally:
        os.close(log)
    raise AssertionError("the kernel says something all the time")
