# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Work in a fork of this process, which has opened what is worked on: a program that is damaged there
is whole here, and need not be opened again, which takes a second.

Not for what reads debug info: drgn does that with OpenMP, whose threads a fork does not have.
"""

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import TypeVar

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
