# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Ends what a recording began, whatever ends the recording: SIGKILL and the OOM killer, too.

A process of its own, in a session of its own, that reads from its standard input until the other
end is closed, which is when the recording is over or dead. Then it ends perf, which would go on,
and removes the kprobes of that recording, which would stay until the next boot. After an orderly
end there is nothing left to do.

Run as ``python -I -S probe_guard.py TRACEFS PID``; a line of input is the pid of a perf.

Cannot: outlive a kill of all processes of a cgroup. What is left then has the dead process's pid in
its name, and the next recording removes it (``perf_probes.clear_up``).
"""

import contextlib
import errno
import os
import re
import select
import signal
import sys
import time
from pathlib import Path

GROUP = "mmscope"
# p:mmscope/rmap_walk_4711 rmap_walk; before there were pids in the names, without.
_OURS = re.compile(rf"^\w+:{GROUP}/((?:(\w+?)_(\d+))|\w+)\s", re.MULTILINE)
PATIENCE = 10.0  # seconds for perf to write its file and end


def there(tracefs: Path) -> list[tuple[str, int | None]]:
    """The kprobes of all recordings: (name, pid of the recording)."""
    with contextlib.suppress(OSError):
        text = (tracefs / "kprobe_events").read_text(encoding="utf-8", errors="replace")
        return [(match[1], int(match[3]) if match[3] else None) for match in _OURS.finditer(text)]
    return []


def command(tracefs: Path, line: str) -> None:
    """
    Write a line to ``kprobe_events``.

    :raises OSError: the kernel refuses; EBUSY: an event that is to be removed is in use.
    """
    # Python's own append mode seeks to the end, which this file refuses.
    descriptor = os.open(tracefs / "kprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def remove(tracefs: Path, names: list[str], patience: float) -> list[str]:
    """Remove kprobes; those that are in use are tried again for a while. Returns what is left."""
    end = time.monotonic() + patience
    while True:
        busy = []
        for name in names:
            try:
                command(tracefs, f"-:{GROUP}/{name}")
            except OSError as error:
                if error.errno != errno.ENOENT:
                    busy.append(name)
        if not busy or time.monotonic() >= end:
            return busy
        names = busy
        time.sleep(0.1)


def _end(perf: int) -> None:
    """:param perf: a pidfd."""
    for number, seconds in ((signal.SIGINT, PATIENCE), (signal.SIGKILL, 1.0)):
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(perf, number)
        if select.select([perf], [], [], seconds)[0]:
            return


def main() -> None:
    """Wait, and clear up."""
    tracefs, pid = Path(sys.argv[1]), int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    running = []
    for line in sys.stdin:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            running.append(os.pidfd_open(int(line)))
    for perf in running:
        _end(perf)
    remove(tracefs, [name for name, of in there(tracefs) if of == pid], PATIENCE)


if __name__ == "__main__":
    main()
