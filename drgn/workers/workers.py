# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Shares of one work, each done by a forked process of its own.

A worker has everything that its parent had read and opened. One that is killed costs its share,
which is done once more, and has no result if that process is killed as well.

Results are handed over in memory that both have: a worker that is killed while it writes to a pipe
would leave half a result there.

Costs: a fork a share, some milliseconds each, and its pickled result.

Cannot: fork where reading the target needs a conversation over a socket.
"""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from io import BufferedRandom
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from typing import Any, cast

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Shares a job: more balance the jobs, fewer hand over fewer results.
SHARES_A_JOB = 4

Work = Callable[[Any], Any]

FORK = multiprocessing.get_context("fork")
WAIT = 1.0  # seconds until a fork that failed is tried again
KILLED = object()  # in place of the result of a share whose process was killed


class NotSharedError(Exception):
    """
    One process has to do the work: it would have counted otherwise, or no process, memory or file
    is left for a worker.
    """


def in_workers(jobs: int, shares: Sequence[Any], work: Work) -> Iterator[Any]:
    """
    Do each share in a worker; gives the results in order, :data:`KILLED` for one that is lost.

    :param jobs: processes at a time.
    :param work: makes the result of a share, which can be pickled. What it raises is raised here.
    :raises NotSharedError: there is no process to be had.
    """
    # The next one last; workers by the file descriptor that says that one has ended.
    waiting = list(reversed(range(len(shares))))
    running: dict[int, tuple[int, ForkProcess, BufferedRandom]] = {}
    ended: dict[int, tuple[ForkProcess, BufferedRandom]] = {}
    again = set[int]()
    with contextlib.ExitStack() as files:
        files.callback(_end_children)  # a deadline or Ctrl-C waits for no share
        for number in range(len(shares)):
            while number not in ended:
                while waiting and len(running) < jobs:
                    try:
                        file = files.enter_context(open(os.memfd_create("mmscope share"), "r+b"))
                        process = FORK.Process(
                            target=_do, args=(os.getpid(), work, shares[waiting[-1]], file)
                        )
                        process.start()
                    except OSError as error:
                        if not running and not number:  # no result is given yet
                            raise NotSharedError(str(error)) from error
                        break
                    running[process.sentinel] = waiting.pop(), process, file
                for sentinel in wait([*running], WAIT):
                    share, process, file = running.pop(cast(int, sentinel))
                    process.join()
                    if _was_killed(process) and share not in again:
                        again.add(share)
                        waiting.append(share)
                    else:
                        ended[share] = process, file
            yield _result(*ended.pop(number))


def _end_children() -> None:
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


def _was_killed(process: ForkProcess) -> bool:
    return process.exitcode is not None and process.exitcode < 0


def _result(process: ForkProcess, file: BufferedRandom) -> Any:
    """The result that a worker left; its memory is free then."""
    if _was_killed(process):
        return KILLED
    file.seek(0)
    result = pickle.load(file)
    file.close()
    if process.exitcode:
        raise result
    return result


def _do(parent: int, work: Work, share: Any, file: BufferedRandom) -> None:
    """A worker's life: it leaves its result, or what was raised, and then ends with 1."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A progress bar replaces these; a thread of the parent's may have held its lock.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    with file:
        try:
            pickle.dump(work(share), file, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            file.seek(0)
            pickle.dump(picklable(error), file)
            sys.exit(1)


def die_with(parent: int) -> None:
    """End this process, a child that was just forked, when its parent ends, or if it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def picklable(error: Exception) -> Exception:
    """The error, or one of the same words where it cannot be handed over."""
    with contextlib.suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}")
