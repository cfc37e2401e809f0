# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Shares of one work, done by a pool of forked processes.

A worker has everything that its parent had read and opened. One that is killed costs the share that
it was at: the shares that the pool has not finished are done once more, each in a process of its
own, and one whose process is killed again has no result.

Results are handed over in memory that both have, not in the pool's pipe: of a worker that is killed
while it writes there, the pool would wait for the rest forever.

Costs: a fork a job, some milliseconds each, and the pickled result of each share, twice.

Cannot: fork where reading the target needs a conversation over a socket.
"""

import contextlib
import ctypes
import functools
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, BinaryIO

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Shares a job: more balance the jobs, fewer hand over fewer results.
SHARES_A_JOB = 4

Work = Callable[[Any], Any]

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
    with contextlib.ExitStack() as files:
        try:
            results = [files.enter_context(_shared_file()) for _ in shares]
        except OSError as error:
            raise NotSharedError(str(error)) from error
        pool = _pool(jobs, shares, work, results)
        try:
            yield from _results(pool, shares, work, results)
        except BaseException:  # a deadline or Ctrl-C waits for no share
            for child in multiprocessing.active_children():
                child.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _results(
    pool: ProcessPoolExecutor, shares: Sequence[Any], work: Work, results: Sequence[BinaryIO]
) -> Iterator[Any]:
    try:
        found: list[Future[None]] = [pool.submit(_do, number) for number in range(len(shares))]
    except OSError as error:
        raise NotSharedError(str(error)) from error
    for share, future, file in zip(shares, found, results, strict=True):
        try:
            future.result()
        except BrokenProcessPool:
            yield _once_more(share, work)
        else:
            yield _read(file)


def _once_more(share: Any, work: Work) -> Any:
    """The result of a share in a process of its own."""
    with contextlib.suppress(BrokenProcessPool, OSError), _shared_file() as file:
        with _pool(1, [share], work, [file]) as pool:
            pool.submit(_do, 0).result()
        return _read(file)
    return KILLED


def _shared_file() -> BinaryIO:
    """A file in memory, empty."""
    return open(os.memfd_create("mmscope share"), "r+b")


def _read(file: BinaryIO) -> Any:
    """The result that a worker wrote; its memory is free then."""
    file.seek(0)
    result = pickle.load(file)
    file.close()
    return result


def _pool(
    jobs: int, shares: Sequence[Any], work: Work, results: Sequence[BinaryIO]
) -> ProcessPoolExecutor:
    fork = multiprocessing.get_context("fork")
    begin = functools.partial(_begin, os.getpid(), shares, work, results)
    return ProcessPoolExecutor(min(jobs, len(shares)), fork, begin)


# In a worker: what it does, which a fork hands over and pickle could not.
_share: Callable[[int], None]


def _begin(parent: int, shares: Sequence[Any], work: Work, results: Sequence[BinaryIO]) -> None:
    """Begin a worker's life."""
    global _share

    def write(number: int) -> None:
        pickle.dump(work(shares[number]), results[number], pickle.HIGHEST_PROTOCOL)
        results[number].flush()

    _share = write
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which a pool that is broken ends the others
    # A progress bar replaces these; a thread of the parent's may have held its lock.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def _do(number: int) -> None:
    try:
        _share(number)
    except Exception as error:
        raise picklable(error) from None


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
