# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shares of a work that child processes do, and how they are added up."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from children import no_child_is_left

from mmscope.drgn.reading.struct_pages import _edges
from mmscope.drgn.workers.shares import (
    InexactError,
    Shared,
    SharedColumns,
    added,
    merges,
    none_of,
    summed_up_to,
)
from mmscope.drgn.workers.workers import Died, Left, Own, Tell, Work, beside, in_workers
from mmscope.reports.commands.target_options import idle_cpus

Done = tuple[list[int], list[tuple[range, Any]]]


def done(jobs: int, shares: int, work: Work, here: Own | None = None, **options: Any) -> Done:
    """What was done here, before all that children did."""
    own: list[int] = []

    def do(number: int, tell: Tell) -> None:
        own.append(number)
        if here is not None:
            here(number, tell)

    results = list(in_workers(jobs, shares, do, work, **options))
    assert own + [number for some, _ in results for number in some] == list(range(shares))
    assert no_child_is_left()
    return own, results


class Turns:
    """A process waits until another one has done something."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def take(self) -> None:
        os.read(self._reader, 1)

    def give(self) -> None:
        os.write(self._writer, b"!")


def test_results_come_in_the_order_of_the_shares() -> None:
    steps: list[int] = []
    begun = Turns()

    def work(shares: Iterator[int], tell: Tell) -> tuple[list[int], bytes]:
        begun.give()
        some = list(shares)
        tell(sum(some))
        return some, bytes(100_000 * some[0])

    def here(number: int, tell: Tell) -> None:
        if not number:  # until children have begun twice
            begun.take()
            begun.take()
        tell(number)

    own, results = done(3, 16, work, here, progress=steps.append)
    assert len(own) < 15 and len(results) >= 2
    assert results == [(some, ([*some], bytes(100_000 * some[0]))) for some, _ in results]
    assert sum(steps) == sum(range(16))


def test_a_child_takes_over_half_of_what_is_left_to_do(forks: list[int]) -> None:
    """One child, so one fork, does all that the first process does not: many first, then few."""
    last = Turns()

    def work(shares: Iterator[int], tell: Tell) -> int:
        if 1 in list(shares):
            last.give()
        return os.getpid()

    own, results = done(2, 11, work, lambda number, tell: last.take())
    assert own == [0]
    assert len({pid for _, pid in results}) == len(forks) == 1
    assert [len(shares) for shares, _ in results] == [1, 1, 3, 5]


def test_who_has_done_its_own_has_half_of_another_ones_taken_over(forks: list[int]) -> None:
    """By a further child, as what the first one found is not to be touched."""
    begun, further = Turns(), Turns()

    def work(shares: Iterator[int], tell: Tell) -> int:
        for number in shares:
            if number == 6:
                begun.give()
                further.take()
            if number == 7:
                further.give()
        return os.getpid()

    own, results = done(2, 11, work, lambda number, tell: number or begun.take())
    assert own == [0, 1, 2, 3, 4, 5]
    assert [len(shares) for shares, _ in results] == [1, 1, 1, 2]
    (_, first), *others = results
    assert first not in {pid for _, pid in others} and len(forks) == 2


def test_nobody_does_what_another_one_does() -> None:
    left = Left(9, 3)
    first, second, third = left.of(0), left.taken_over(1), left.taken_over(2)
    assert (next(first), left.most()) == (0, 8)
    of_second = next(second)
    assert [next(of_second), next(first), next(of_second), left.most()] == [5, 1, 6, 3]
    of_third = next(third)  # half of the most that one has: those of the first process
    assert [next(of_third), left.most()] == [3, 2]
    assert list(of_second) == [7, 8]
    assert [list(some) for some in second] == [[2], [4]]
    assert (list(of_third), list(third), list(first), left.most()) == ([], [], [], 0)
    left.close()


def test_one_process_forks_none(forks: list[int]) -> None:
    for jobs, shares in ((1, 3), (3, 1), (3, 0)):
        assert done(jobs, shares, lambda some, tell: None)[0] == list(range(shares))
    assert not forks


def test_where_no_process_is_to_be_had_one_does_all(no_forks: list[int]) -> None:
    """Nothing is left open, and it is not asked for again and again."""
    files = os.listdir("/proc/self/fd")
    own, _ = done(3, 4, lambda shares, tell: None, lambda number, tell: tell(1))
    assert own == [0, 1, 2, 3] and len(no_forks) == 1
    with beside(lambda tell: os.getpid()) as wait:
        assert not wait.busy()
        assert wait() == os.getpid()
    with beside(lambda tell: 1 // 0) as wait, pytest.raises(ZeroDivisionError):
        wait()
    assert os.listdir("/proc/self/fd") == files


def test_a_child_that_is_killed_is_told() -> None:
    """It costs the shares that it had begun; another one does what else it had to do."""
    ended = Turns()

    def work(shares: Iterator[int], tell: Tell) -> list[int]:
        some = []
        for number in shares:
            tell(1)
            if number == 3:
                ended.give()
                os.kill(os.getpid(), signal.SIGKILL)
            some.append(number)
        return some

    own, results = done(2, 10, work, lambda number, tell: number or ended.take())
    assert own == [0, 1, 2]
    killed, *others = results
    assert killed == (range(3, 4), Died("was killed by signal 9"))
    assert others == [(some, [*some]) for some in (range(4, 5), range(5, 10))]


def test_whoever_died_is_told() -> None:
    begun = Turns()

    def work(shares: Iterator[int], tell: Tell) -> None:
        begun.give()
        if next(shares) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)

    def here(number: int, tell: Tell) -> None:
        begun.take()
        begun.take()

    own, ((shares, died),) = done(3, 3, work, here)
    assert (own, shares) == ([0], range(1, 3))
    assert set(died.how.split(" or ")) == {"was killed by signal 9", "ended with status 3"}


def in_a_child(work: Work) -> list[tuple[range, Any]]:
    """The result of the second of two shares, which a child did."""
    begun = Turns()

    def begin(shares: Iterator[int], tell: Tell) -> Any:
        begun.give()
        return work(shares, tell)

    return done(2, 2, begin, lambda number, tell: begun.take())[1]


def test_arrays_come_as_they_are() -> None:
    square = np.arange(12, dtype=np.uint32).reshape(3, 4)
    arrays = {
        "odd": np.arange(7, dtype=np.uint8),
        "none": np.empty(0, np.int64),
        "columns": np.asfortranarray(square),
        "gaps": square[:, ::2],
        "records": np.array([(1, 2.5)], [("a", "i2"), ("b", "f8")]),
        "large": np.arange(1 << 19, dtype=np.uint64),
    }
    ((_, got),) = in_a_child(lambda shares, tell: arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].dtype == array.dtype and got[name].flags.aligned
        got[name][...] = 0  # nobody else's


def test_a_child_that_says_nothing_is_told() -> None:
    died = Died("ended with status 0")
    assert in_a_child(lambda shares, tell: os._exit(0)) == [(range(1, 2), died)]


def test_what_the_work_raises_is_raised() -> None:
    class OfHere(Exception):
        """Which no other process can make."""

    def fails(shares: Iterator[int], tell: Tell) -> None:
        raise LookupError("no such member")

    def fails_here_alone(shares: Iterator[int], tell: Tell) -> None:
        raise OfHere("in words")

    for work, kind, words in (
        (fails, LookupError, "no such member"),
        (fails_here_alone, RuntimeError, "OfHere: in words"),
        (lambda shares, tell: OfHere, (AttributeError, pickle.PicklingError), "OfHere"),
    ):
        with pytest.raises(kind, match=words):
            in_a_child(work)
        assert no_child_is_left()
    with pytest.raises(LookupError, match="no such member"):
        done(2, 2, lambda shares, tell: None, lambda number, tell: fails(iter(()), tell))
    assert no_child_is_left()


def test_children_end_with_the_work() -> None:
    begun = Turns()

    def work(shares: Iterator[int], tell: Tell) -> None:
        begun.give()
        time.sleep(600)

    def here(number: int, tell: Tell) -> None:
        begun.take()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        done(3, 3, work, here)
    assert no_child_is_left()


def test_one_work_is_done_beside_another() -> None:
    def work(tell: Tell) -> tuple[int, bytes]:
        tell(1)
        return os.getpid(), bytes(3 << 20)

    with beside(work) as wait:
        pid, data = wait()
    assert pid != os.getpid()
    assert data == bytes(3 << 20)
    assert no_child_is_left()


def test_what_is_done_beside_may_die_or_raise() -> None:
    def fails(tell: Tell) -> None:
        raise LookupError("no such member")

    with beside(lambda tell: os.kill(os.getpid(), signal.SIGKILL)) as wait:
        assert wait() == Died("was killed by signal 9")
    with beside(fails) as wait, pytest.raises(LookupError, match="no such member"):
        wait()
    assert no_child_is_left()


def test_what_nobody_waits_for_ends() -> None:
    with pytest.raises(ValueError), beside(lambda tell: time.sleep(600)):
        raise ValueError
    with beside(lambda tell: bytes(3 << 20)):  # more than a pipe holds
        pass
    assert no_child_is_left()


def test_what_is_done_beside_says_when_it_has_nothing_more_to_do() -> None:
    reader, writer = os.pipe()
    with beside(lambda tell: os.read(reader, 1)) as child:
        assert child.busy()
        os.write(writer, b"!")
        while child.busy():
            time.sleep(0.01)
        assert child() == b"!"
        assert not child.busy()
    os.close(reader)
    os.close(writer)


def test_shares_leave_room_for_what_else_is_done(forks: list[int]) -> None:
    """Of three processes two do something else: one is left."""
    assert done(3, 6, lambda shares, tell: None, busy=lambda: 2)[0] == [0, 1, 2, 3, 4, 5]
    assert not forks


def test_places_that_become_free_are_taken(forks: list[int]) -> None:
    """Once nobody does something else, the first share need not wait in vain for the last."""
    others, last = 2, Turns()

    def work(shares: Iterator[int], tell: Tell) -> list[int]:
        some = list(shares)
        last.give()
        return some

    def here(number: int, tell: Tell) -> None:
        nonlocal others
        if not number:
            tell(1)
            assert not forks
            others = 1
            tell(1)
            last.take()
            assert len(forks) == 1

    _own, results = done(3, 6, work, here, busy=lambda: others)
    assert results[-1] == (range(3, 6), [3, 4, 5])


ORPHANED = """
import os, signal, time
from mmscope.drgn.workers.workers import beside, in_workers

reader, writer = os.pipe()

def share(shares, tell):
    print("here", flush=True)
    time.sleep(120)
    print("and outlived it", flush=True)

def work(tell):
    list(in_workers(2, 2, lambda number, tell: os.read(reader, 1), share))

with beside(work):
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_child_outlives_its_parent() -> None:
    """Nor does a child's child. Each holds the pipe, which ends with the last of them."""
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        assert parent.stdout.readline() == b"here\n"
        parent.stdin.write(b"!")
        parent.stdin.close()
        assert parent.stdout.read() == b""
    assert parent.returncode == -signal.SIGKILL


class Rows(SharedColumns):
    ROWS, MOST, KINDS = "rows", 3, (np.int64,)
    MERGES = merges(rows=added)

    def __init__(self, *numbers: int) -> None:
        self.rows, self._kept = 0, self.room()
        self.rows = len(numbers)
        self._kept = [np.concatenate((numbers, self._kept[0]))[:3]] if self.rows <= 3 else []


def test_columns_are_kept_as_long_as_there_is_room() -> None:
    rows = Rows(1)
    rows.add_share(Rows(2, 3).share())
    assert (rows.rows, rows._kept[0].tolist()) == (3, [1, 2, 3])
    rows.add_share(Rows(4).share())
    assert (rows.rows, rows._kept) == (4, [])
    rows.restore({"rows": 0})
    assert (rows.rows, len(rows._kept)) == (0, 1)
    rows.add_share(Rows(1, 2, 3, 4).share())
    assert (rows.rows, rows._kept) == (4, [])


class Few(Shared):
    MERGES = merges(counts=summed_up_to(3), others=none_of)

    def __init__(self, counts: dict[str, int], others: int = 0) -> None:
        self.counts, self.others = counts, others


def test_what_depends_on_what_came_before_is_not_added_up() -> None:
    few = Few({"a": 1})
    few.add_share(Few({"b": 2, "a": 3}).share())
    assert list(few.counts.items()) == [("a", 4), ("b", 2)]
    with pytest.raises(InexactError):
        few.add_share(Few({"c": 1}).share())
    with pytest.raises(InexactError):
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
