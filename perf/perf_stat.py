# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``perf stat``: events counted from begin to end, beside those that are sampled.

Its text, ``perf stat -x ';'`` (tools/perf/util/stat-display.c), is a line an event::

    COUNT;UNIT;EVENT;NANOSECONDS COUNTED;PER CENT OF THE TIME;METRIC;UNIT OF THE METRIC

with ``<not counted>`` or ``<not supported>`` in place of a count. Where there are more events than
counters the kernel takes turns, and perf scales what was counted to the whole time: then the count
is an estimate, and the per cent say of how much.

Costs nothing that can be measured: the CPU counts by itself.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PATIENCE = 10.0  # seconds for perf to open its counters, and to end
SEPARATOR = ";"

# An event as perf calls it, its count, the share of the time that it was counted, and why not.
Counted = tuple[str, int | None, float | None, str]


def read_counts(text: str) -> list[Counted]:
    """Events that ``perf stat -x ';'`` printed; lines of anything else are left out."""
    found: list[Counted] = []
    for line in text.splitlines():
        words = line.split(SEPARATOR)
        if len(words) < 5 or line.startswith("#"):
            continue
        count, _, event, _, share = words[:5]
        if match := re.fullmatch(r"<(not counted|not supported)>", count.strip()):
            found.append((event, None, None, match[1]))
        elif re.fullmatch(r"\d{1,18}", count) and re.fullmatch(r"\d{1,3}\.\d+", share):
            found.append((event, int(count), float(share) / 100, ""))
    return found


def arguments(perf: str, events: Sequence[str], output: Path, pids: Sequence[int]) -> list[str]:
    """The command line; without pids every CPU is counted."""
    words = [perf, "stat", "-x", SEPARATOR, "-o", str(output)]
    for event in events:
        words += ["-e", event]
    return [*words, "-p", ",".join(map(str, pids))] if pids else [*words, "-a"]


@contextlib.contextmanager
def counting(words: Sequence[str]) -> Iterator[int]:
    """
    A ``perf stat`` beside a recording, from when its counters count, or cannot; yields its pid.

    :raises OSError: there is no such program.
    """
    control, to_perf = os.pipe()
    from_perf, acknowledge = os.pipe()
    fds = f"--control=fd:{control},{acknowledge}"
    try:
        process = subprocess.Popen(
            [words[0], words[1], fds, *words[2:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(control, acknowledge),
            env={**os.environ, "LC_ALL": "C"},
        )
        os.close(acknowledge)
        acknowledge = -1
        # It hears words once it has enabled its counters, and answers; or it ends.
        os.write(to_perf, b"enable\n")
        select.select([from_perf], [], [], PATIENCE)
    finally:
        for fd in (control, to_perf, from_perf, acknowledge):
            if fd >= 0:
                os.close(fd)
    try:
        yield process.pid
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
                break


def counted(output: Path) -> list[Counted]:
    """Events that were counted into a file; none if perf failed, or was not asked."""
    with contextlib.suppress(OSError):
        return read_counts(output.read_text(encoding="ascii", errors="replace"))
    return []


def held(perf: int, seconds: float) -> bool:
    """Stop a perf; True if it has stopped, so that what it is about to begin has not begun."""
    with contextlib.suppress(OSError):
        os.kill(perf, signal.SIGSTOP)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = Path(f"/proc/{perf}/stat").read_text().rpartition(")")[2].split()[0]
            if state in "TtZ":
                return state != "Z"
            time.sleep(0.001)
    return False
