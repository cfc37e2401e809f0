# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shares of a work that child processes do, and how they are added up."""

import os
import signal
import subprocess
import sys
import time

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
from mmscope.drgn.workers.workers import Died, Tell, beside, in_workers
from mmscope.reports.commands.target_options import idle_cpus


def test_results_come_in_the_order_of_the_shares() -> None:
    steps: list[int] = []

    def work(number: int, tell: Tell) -> tuple[int, bytes]:
        tell(number)
        time.sleep(0.02 if number == 0 else 0)  # the others are done before
        return number, bytes(100_000 * number)

    results = list(in_workers(3, 7, work, steps.append))
    assert results == [(number, bytes(100_000 * number)) for number in range(7)]
    assert sum(steps) == 21
    assert no_child_is_left()


def test_a_child_that_is_killed_is_told() -> None:
    def work(number: int, tell: Tell) -> int:
        tell(1)
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 2:
            os._exit(3)
        return number

    assert list(in_workers(2, 4, work)) == [
        *(0, Died("was killed by signal 9"), Died("ended with status 3"), 3)
    ]


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
    (got,) = in_workers(1, 1, lambda number, tell: arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].dtype == array.dtype and got[name].flags.aligned
        got[name][...] = 0  # nobody else's


def test_a_child_that_says_nothing_is_told() -> None:
    assert list(in_workers(1, 1, lambda number, tell: os._exit(0))) == [Died("ended with status 0")]


def test_what_the_work_raises_is_raised() -> None:
    class OfHere(Exception):
        """Which no other process can make."""

    def work(number: int, tell: Tell) -> int:
        if number:
            raise OfHere("in words")
        raise LookupError("no such member")

    with pytest.raises(LookupError, match="no such member"):
        list(in_workers(2, 1, work))
    with pytest.raises(RuntimeError, match="OfHere: in words"):
        list(in_workers(2, 2, lambda number, tell: work(1, tell)))
    assert no_child_is_left()


def test_children_end_with_the_work() -> None:
    def work(number: int, tell: Tell) -> int:
        if number:
            time.sleep(600)
        return number

    results = in_workers(3, 3, work)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
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


def test_shares_leave_room_for_what_else_is_done() -> None:
    """Of three processes two do something else: one share is worked at after the other."""
    reader, writer = os.pipe()

    def work(number: int, tell: Tell) -> int:
        os.write(writer, b"(")
        time.sleep(0.01)
        os.write(writer, b")")
        return number

    assert list(in_workers(3, 6, work, busy=lambda: 2)) == [0, 1, 2, 3, 4, 5]
    assert os.read(reader, 100) == b"()" * 6
    os.close(reader)
    os.close(writer)
    assert no_child_is_left()


def test_places_that_become_free_are_taken() -> None:
    """Once nobody does something else, the second share need not wait in vain for the third."""
    reader, writer = os.pipe()
    others = 2

    def work(number: int, tell: Tell) -> int:
        if number == 1:
            os.read(reader, 1)
        if number == 2:
            os.write(writer, b"!")
        return number

    results = in_workers(3, 6, work, busy=lambda: others)
    assert next(results) == 0
    others = 0
    assert list(results) == [1, 2, 3, 4, 5]
    os.close(reader)
    os.close(writer)
    assert no_child_is_left()


def test_shares_are_worked_at_together() -> None:
    """The first waits for the last."""
    reader, writer = os.pipe()

    def work(number: int, tell: Tell) -> bytes:
        return os.read(reader, 1) if number == 0 else bytes(os.write(writer, b"!") + number)

    assert next(in_workers(2, 3, work)) == b"!"
    os.close(reader)
    os.close(writer)
    assert no_child_is_left()


ORPHANED = """
import os, signal, time
from mmscope.drgn.workers.workers import beside, in_workers

def share(number, tell):
    print("here", flush=True)
    time.sleep(120)
    print("and outlived it", flush=True)

def work(tell):
    list(in_workers(1, 1, share))

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
    assert _edges(pieces, [1] * 4, False) == [0, 4, 8, 12, 16]
    assert _edges(pieces, [0.75, 0.75, 0.25, 0.25], False) == [0, 6, 12, 14, 16]
    assert _edges(pieces, [1] * 16, False) == list(range(17))
    assert _edges(pieces, [1] * 16, True) == [*range(0, 16, 2), 16]
    assert _edges([(1, 0, 100), (101, 0, 100)], [1, 1], True) == [0, 2]


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
