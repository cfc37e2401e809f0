# SPDX-License-Identifier: LGPL-2.1-or-later
"""The first opening of a dump: what ends the process, or takes all memory, ends a child."""

import faulthandler
import os
import resource
import signal
import time
from collections.abc import Callable

import pytest

from mmscope.drgn.dumps import first_opening
from mmscope.drgn.dumps.first_opening import MOST_BYTES, little_memory, why_not


def killed() -> None:
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


def greedy() -> None:
    bytearray(2 * MOST_BYTES)


def refused() -> None:
    raise ValueError("no core")


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (killed, "reading its headers ends in SIGSEGV"),
        (greedy, "opening it takes more than 2 GiB of memory"),
        (refused, None),
        (lambda: None, None),
    ],
)
def test_what_ends_a_child_is_said_in_words(
    opening: Callable[[], object], words: str | None
) -> None:
    assert why_not(opening) == words


def test_a_child_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_opening, "PATIENCE", 0.2)
    assert why_not(lambda: time.sleep(600)) == "it was not opened within 0 s"


def test_without_room_for_a_process_nothing_is_known(no_forks: list[int]) -> None:
    assert why_not(killed) is None and no_forks


def test_memory_is_bounded_for_a_while() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with little_memory(), pytest.raises(MemoryError):
        bytearray(2 * MOST_BYTES)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
