# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The first opening of a dump, in a child with little memory.

The libraries that read a dump trust what it says. What ends the process (a place that leads out of
a mapping: SIGSEGV, SIGBUS), or takes all memory of the machine, ends a child here, and is one line.

Costs: a fork, and the opening of the file once more: 10 to 20 ms.

Cannot know: what pages that were not read yet do to who reads them.
"""

import contextlib
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from mmscope.drgn.workers.workers import die_with

MOST_BYTES = 2 << 30  # beside what this process has mapped
PATIENCE = 60.0  # seconds
STATM = Path("/proc/self/statm")
NO_MEMORY = 3  # exit code of the child


def why_not(opening: Callable[[], object]) -> str | None:
    """
    Name what ends a process that opens a dump; None if nothing does.

    :param opening: what it raises is not looked at: it will be raised again, by this process.
    """
    child = multiprocessing.get_context("fork").Process(target=_open, args=(os.getpid(), opening))
    try:
        child.start()
    except OSError:  # no process is left: nothing is known of it
        return None
    try:
        child.join(PATIENCE)
        if child.exitcode is None:
            return f"it was not opened within {PATIENCE:.0f} s"
        if child.exitcode < 0:
            return f"reading its headers ends in {signal.Signals(-child.exitcode).name}"
        if child.exitcode == NO_MEMORY:
            return f"opening it takes more than {MOST_BYTES >> 30} GiB of memory"
        return None
    finally:
        child.kill()
        child.join()
        child.close()


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Bound what may be mapped beside what is: a library that is refused memory gives up."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    bounds = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([mapped + MOST_BYTES, *bounds]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _open(parent: int, opening: Callable[[], object]) -> None:
    die_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with little_memory():
            opening()
    except MemoryError:
        os._exit(NO_MEMORY)
    except Exception as error:
        os._exit(NO_MEMORY if os.strerror(12) in str(error) else 0)
    os._exit(0)
