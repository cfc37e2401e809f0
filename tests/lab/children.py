# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Processes that tests start: each ends with its test, or with pytest, whatever happens to either.

Each has a process group of its own, killed when the test is over (``conftest.py``), and is told by
the kernel to die with whoever started it (``PR_SET_PDEATHSIG``, by setpriv of util-linux), even if
that is by SIGKILL.

Under ``nohup`` or in the background SIGHUP or SIGINT are ignored, which children inherit, and then
no test of Ctrl-C can pass. :func:`as_in_the_foreground` takes them with a handler instead: pytest
still ignores them, and a child begins with the default.
"""

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
RUNNING: list[subprocess.Popen[Any]] = []
ASKED_TO_END: list[int] = []  # signals that came


def start(words: Any, **options: Any) -> subprocess.Popen[Any]:
    """``subprocess.Popen``, of a process that ends with its test."""
    command = [*DIES_WITH_US, *map(str, words)]
    process = subprocess.Popen(command, start_new_session=True, **options)
    RUNNING.append(process)
    return process


def run(
    words: Any, *, input: Any = None, capture_output: bool = False, check: bool = False,
    timeout: float | None = None, **options: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """``subprocess.run``, of a process that ends with its test."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    process = start(words, **options)
    out, err = process.communicate(input, timeout)
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def end_all() -> None:
    """Kill what is left of all that was started, and whatever that started."""
    while RUNNING:
        process = RUNNING.pop()
        # Its group may live on without it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def exit_if_killed() -> None:
    """Have SIGTERM and SIGHUP end a program as an exception does: what it made goes with it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup's
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def no_child_is_left() -> bool:
    """Whether whatever the tested code started has ended, and was waited for."""
    try:
        return os.waitpid(-1, os.WNOHANG) is None
    except ChildProcessError:
        return True


def end_if_asked() -> None:
    """
    End pytest if it was told to (SIGTERM); fixtures and children are taken down on the way.

    To be called before each test, too: what the signal interrupts may catch every exception.
    """
    import pytest

    if ASKED_TO_END:
        pytest.exit("terminated", 128 + ASKED_TO_END[0])


def as_in_the_foreground() -> None:
    """Begin as if started by hand: what is ignored is still ignored, but by nobody's children."""

    def nothing(number: int, frame: FrameType | None) -> None:
        pass

    def end(number: int, frame: FrameType | None) -> None:
        ASKED_TO_END.append(number)
        end_if_asked()

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, nothing)
    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
