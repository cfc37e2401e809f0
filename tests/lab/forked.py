# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Work in a fork of this process, which has opened what is worked on: a program that is damaged there
is whole here, and need not be opened again, which takes a second.

Not for what reads debug info: drgn does that with OpenMP, whose threads a fork does not have.
"""

import functools
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from capture import Capture
from conftest import FUNCTIONS_ONLY, WITHOUT_BTF
from drgn import Program

from mmscope.drgn.opening.target import open_target
from mmscope.drgn.workers.workers import die_with

T = TypeVar("T")


def in_a_fork(work: Callable[[], T]) -> T:
    """
    What *work* returns, by pickle.

    :raises RuntimeError: it raised; has its traceback.
    """
    read_end, write_end = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            die_with(parent)
            os.close(read_end)
            try:
                said = pickle.dumps((True, work()))
            except BaseException:
                said = pickle.dumps((False, traceback.format_exc()))
            with os.fdopen(write_end, "wb") as file:
                file.write(said)
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        with os.fdopen(read_end, "rb") as file:
            said = file.read()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not said:
        raise RuntimeError("the fork ended without a word")
    done, result = pickle.loads(said)
    if not done:
        raise RuntimeError(result)
    return result


@functools.cache
def opened(taken: Capture) -> Program:
    """
    A vmcore that only forks read: what drgn remembers of it is of the whole one.

    By its own BTF, if it can be: each fork would look up the types in debug info again.
    """
    needs = taken.kernel in FUNCTIONS_ONLY | WITHOUT_BTF
    return open_target(taken.vmcore, [taken.vmlinux] if needs else [])


def in_its_own_fork(test: Callable[..., None]) -> Callable[..., None]:
    """Have a test damage what :func:`opened` returns: the other tests have it whole."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        in_a_fork(lambda: test(**arguments))

    return run
