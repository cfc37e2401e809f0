# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open files of this process."""

import contextlib
import os
from pathlib import Path


def times_open(file: Path) -> int:
    """How often this process has a file open; others come and go with the garbage collector."""
    places = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    # One of them was the listing's own.
    return sum(os.readlink(place) == str(file) for place in places if place.is_symlink())


def drain_kernel_log() -> Path:
    """The kernel's log as syslogd reads it, at its end: plain by its mode, it waits for more."""
    log = os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.read(log, 1 << 16):
            pass
    os.close(log)
    return Path("/proc/kmsg")
