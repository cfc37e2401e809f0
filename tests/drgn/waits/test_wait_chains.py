# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chains of tasks that wait. Kernels: tests/lab."""

import pytest
from drgn import Object
from made_programs import empty

from mmscope.drgn.rmap.rwsem_waiters import LAST_READER
from mmscope.drgn.waits import awaited_names
from mmscope.drgn.waits.wait_chains import end_of_chain
from mmscope.drgn.waits.waiters import Awaited


def test_a_chain_is_followed_from_holder_to_holder() -> None:
    prog = empty()
    number = prog.int_type("unsigned long", 8, False)

    def waits(lock: int, holder: int | None, holder_is: str = "owner") -> Awaited:
        task = None if holder is None else Object(prog, number, holder)
        return Awaited("mutex", lock, task, holder_is)

    tasks = {1, 2, 3}
    end = end_of_chain(1, {1: waits(10, 2), 2: waits(20, 3)}, tasks)
    assert end == (3, False, False)
    assert end_of_chain(1, {1: waits(10, 2), 2: waits(20, None)}, tasks) == (20, False, False)
    # Its reader has ended.
    assert end_of_chain(1, {1: waits(10, 9, LAST_READER)}, tasks) == (10, False, False)
    assert end_of_chain(1, {1: waits(10, 2, LAST_READER)}, tasks) == (2, False, True)
    circle = {1: waits(10, 2), 2: waits(20, 1)}
    assert end_of_chain(2, circle, tasks) == (1, True, False)
    # Who holds a lock of the circle is not known; how one comes into a circle says nothing of it.
    assert end_of_chain(2, circle | {2: waits(20, 1, LAST_READER)}, tasks) == (1, True, True)
    assert end_of_chain(3, circle | {3: waits(30, 1, LAST_READER)}, tasks) == (1, True, False)


def test_a_lock_is_named_once_for_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(
        awaited_names, "slab_object_info", lambda _, address: looked.append(address)
    )
    names = awaited_names.Names(empty(), lambda _: (None, None))
    waits = [Awaited("mutex", 0x1000), Awaited("mutex", 0x2000), Awaited("mutex", 0x1000)]
    assert [names.of(each) for each in waits] == ["0x1000", "0x2000", "0x1000"]
    assert looked == [0x1000, 0x2000]
