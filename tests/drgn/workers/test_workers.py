# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shares of a work that worker processes do."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from children import no_child_is_left

from mmscope.drgn.workers import workers
from mmscope.drgn.workers.workers import KILLED, NotSharedError, Work, in_workers


def done(jobs: int, shares: list[Any], work: Work) -> list[Any]:
    results = list(in_workers(jobs, shares, work))
    assert no_child_is_left()
    return results


def test_results_come_in_the_order_of_the_shares() -> None:
    results = done(3, list(range(16)), lambda share: (share, os.getpid(), bytes(100_000 * share)))
    assert [(share, len(much)) for share, _, much in results] == [
        (share, 100_000 * share) for share in range(16)
    ]
    assert os.getpid() not in {pid for _, pid, _ in results}


def test_each_share_has_a_process_and_no_more_run_than_jobs(forks: list[int]) -> None:
    def work(share: int) -> tuple[float, float]:
        began = time.monotonic()
        time.sleep(0.1)
        return began, time.monotonic()

    for jobs, shares in ((2, 5), (3, 2)):
        forks.clear()
        times = done(jobs, list(range(shares)), work)
        at_once = [sum(low <= began < high for low, high in times) for began, _ in times]
        assert (len(forks), max(at_once)) == (shares, min(jobs, shares))


def test_where_no_process_is_to_be_had_nothing_is_done(no_forks: list[int]) -> None:
    with pytest.raises(NotSharedError):
        done(3, [1, 2, 3], lambda share: share)
    assert no_child_is_left()


def test_a_worker_that_is_killed_costs_its_share_alone() -> None:
    def work(share: int) -> int:
        if share == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return share

    assert done(2, list(range(6)), work) == [0, 1, KILLED, 3, 4, 5]


def test_who_wants_no_more_waits_for_no_worker_that_writes() -> None:
    """A deadline ends workers in the middle of a large result, of which nothing more comes."""
    for _ in range(5):
        results = in_workers(2, range(8), lambda share: bytes(1 << 24))
        next(results)
        results.close()  # type: ignore[attr-defined]
        assert no_child_is_left()


def test_a_worker_that_is_killed_once_costs_nothing(tmp_path: Path) -> None:
    def work(share: int) -> int:
        if share == 2 and not (tmp_path / "before").exists():
            (tmp_path / "before").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return share

    assert done(2, list(range(6)), work) == list(range(6))


def test_a_process_that_is_not_to_be_had_later_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "WAIT", 0.01)
    fork, asked = os.fork, list[int]()

    def sometimes() -> int:
        asked.append(1)
        if len(asked) in (2, 3, 5, 6, 7):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(os, "fork", sometimes)
    assert done(2, list(range(4)), lambda share: share) == list(range(4))
    assert len(asked) > 7


class Odd(Exception):
    """No pickle can make one: it wants two arguments and hands on one."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [(LookupError("no member"), LookupError, "no member"), (Odd("a", "b"), RuntimeError, "a: b")],
)
def test_what_the_work_raises_is_raised(
    error: Exception, kind: type[Exception], words: str
) -> None:
    def work(share: int) -> int:
        if share == 1:
            raise error
        return share

    with pytest.raises(kind, match=words):
        done(2, [0, 1, 2], work)
    assert no_child_is_left()


def test_a_caller_that_is_stopped_waits_for_no_share() -> None:
    """The share of each worker would take for ever."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            done(2, [1, 2, 3], lambda share: signal.pause())
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert no_child_is_left()


ORPHANED = """
import os, signal
from mmscope.drgn.workers.workers import in_workers

def work(share):
    if share:
        os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()

list(in_workers(2, [0, 1], work))
"""


def test_no_worker_outlives_its_parent() -> None:
    """Each holds the pipe, which ends with the last of them."""
    with subprocess.Popen([sys.executable, "-c", ORPHANED], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.read() == b""
    assert parent.returncode == -signal.SIGKILL
