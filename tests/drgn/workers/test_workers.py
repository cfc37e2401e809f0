# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shares of a work that worker processes do, and how they are added up."""

import errno
import os
import signal
import subprocess
import sys
import time
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import no_child_is_left

from mmscope.drgn.reading import shares as shares_module
from mmscope.drgn.reading.memory_left import UNKNOWN
from mmscope.drgn.reading.shares import (
    Shared,
    SharedColumns,
    merges,
    none_of,
    summed_up_to,
)
from mmscope.drgn.reading.struct_pages import _edges
from mmscope.drgn.workers import workers
from mmscope.drgn.workers.workers import KILLED, NotSharedError, Work, in_workers
from mmscope.reports.commands.target_options import idle_cpus


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


class Kept(SharedColumns):
    ROWS, KINDS, MERGES = "rows", (np.uint64, np.uint16), merges(rows=add)

    def __init__(self, most: int) -> None:
        self.rows, self.MOST = 0, most
        super().__init__()

    def take(self, numbers: range) -> None:
        self.keep(np.array(numbers), np.array(numbers))


def kept(most: int, *pieces: range) -> Kept:
    made = Kept(most)
    for piece in pieces:
        made.take(piece)
    return made


@pytest.mark.parametrize(
    ("left", "most", "whole"),
    [(UNKNOWN, 20_000, True), (UNKNOWN, 19_999, False), (90_000, 20_000, False), (0, 0, False)],
)
def test_rows_are_kept_as_far_as_memory_has_room(
    left: int, most: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares_module, "memory_left", lambda: shares_module.BESIDE + left)
    one = kept(most, range(10_000), range(10_000, 20_000))
    assert (one.rows, one.overflowed) == (20_000, not whole)
    both = kept(most, range(10_000))
    both.add_share(kept(most, range(10_000, 20_000)).share())
    both.add_share(kept(most).share())
    assert (both.rows, both.overflowed) == (20_000, not whole)
    for each in (one, both):
        columns = each.share()["kept"]
        assert [column.tolist() for column in columns] == [[*range(20_000)]] * 2 * whole
    both.restore(kept(most).share())
    assert (both.rows, both.overflowed) == (0, False)


class Few(Shared):
    MERGES = merges(counts=summed_up_to(3), others=none_of)

    def __init__(self, counts: dict[str, int], others: int = 0) -> None:
        self.counts, self.others = counts, others


def test_what_depends_on_what_came_before_is_not_added_up() -> None:
    few = Few({"a": 1})
    few.add_share(Few({"b": 2, "a": 3}).share())
    assert list(few.counts.items()) == [("a", 4), ("b", 2)]
    with pytest.raises(NotSharedError):
        few.add_share(Few({"c": 1}).share())
    with pytest.raises(NotSharedError):
        Few({}).add_share(Few({}, 1).share())


def test_shares_begin_where_no_free_block_lies_in_two() -> None:
    pieces = [(at << 14, 0, 1 << 14) for at in range(16)]
    assert _edges(pieces, 4, False) == [0, 4, 8, 12, 16]
    assert _edges(pieces, 5, False) == [0, 4, 7, 10, 13, 16]
    assert _edges(pieces, 16, False) == list(range(17))
    assert _edges(pieces, 16, True) == [*range(0, 16, 2), 16]
    assert _edges([(1, 0, 100), (101, 0, 100)], 2, True) == [0, 2]


@pytest.mark.parametrize(
    ("cpus", "load", "dead", "live"),
    [(2, 0.2, 2, 1), (64, 3.0, 4, 4), (8, 0.0, 4, 2), (8, 6.4, 2, 2), (2, 9.0, 1, 1)],
)
def test_as_many_as_are_idle(
    cpus: int, load: float, dead: int, live: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert (idle_cpus(live=False), idle_cpus(live=True)) == (dead, live)
