# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct mm_struct``: the address spaces of processes, each once.

Threads share one, and so do processes after vfork(); kernel threads have none. The list of
processes is walked (about 100,000 a second), the address spaces are read together.

Page tables are found this way, with no pass over the struct pages. Reverse maps take the tasks out
of their slab cache (:mod:`~mmscope.drgn.processes.processes`): they make that pass anyway, and
need the process of each VMA also where the list is damaged.

A list that runs in a circle without its head ends where a task comes again, and counts as broken
off.

Cannot know: address spaces that no task has any more, and that something else holds: an exit that
is under way, an open /proc/PID/mem, a device driver.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program
from drgn.helpers.linux.list import list_for_each_entry
from numpy.typing import NDArray

from mmscope.drgn.reading.kernel_arrays import Columns, Gaps, struct_dtype
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.tables.record import record

PF_KTHREAD = 0x0020_0000

COLUMNS: Columns = {
    "pgd": "pgd",
    "pgtables_bytes": "pgtables_bytes.counter",
    # "mm: remove rb tree." (524e00b36e8c, in v6.1)
    "tree": ("mm_mt.ma_root", "mm_rb.rb_node"),
    "vmas": "map_count",
}


@dataclass
class Process:
    """Whose an address space is: the first process that was seen to use it."""

    pid: int  # its thread group's
    comm: str
    processes: int  # thread groups that share it
    threads: int  # of all of them


@record
class AddressSpaces:
    """All address spaces of processes, in the order of the process list."""

    processes: list[Process]
    addresses: NDArray[np.uint64]  # of the struct mm_structs
    columns: NDArray[Any]  # of them, by COLUMNS
    broken_off: bool  # the list of processes could not be followed to its end
    damaged: int  # processes that could not be read, or whose list of threads leads nowhere

    def __len__(self) -> int:
        return len(self.processes)


def address_spaces(prog: Program, gaps: Gaps) -> AddressSpaces:
    """Find the address space of every process."""
    found: dict[int, Process] = {}
    broken_off = False
    tasks = list_for_each_entry(
        "struct task_struct", prog["init_task"].tasks.address_of_(), "tasks"
    )
    damaged = 0
    try:
        for task in _until_again(tasks):
            try:
                if not (mm := _mm(task)):
                    continue
                threads = task.signal.nr_threads.value_()
                comm = task.comm.string_().decode("utf-8", "backslashreplace")
                process = found.setdefault(mm, Process(task.tgid.value_(), comm, 0, 0))
            except (FaultError, _Circle):
                damaged += 1
                continue
            process.processes += 1
            process.threads += threads
    except (FaultError, _Circle):
        broken_off = True
    dtype = struct_dtype(prog.type("struct mm_struct"), COLUMNS)
    addresses = np.fromiter(found, np.uint64, len(found))
    columns, read = read_scattered(prog, addresses, dtype, gaps)
    processes = [process for process, here in zip(found.values(), read, strict=True) if here]
    return AddressSpaces(processes, addresses[read], columns[read], broken_off, damaged)


def _mm(task: Object) -> int:
    """The ``mm_struct`` of a process, 0 if it is a kernel thread or has exited."""
    if task.flags.value_() & PF_KTHREAD:
        return 0
    if address := task.mm.value_():
        return int(address)
    # Its first thread may have ended before the others.
    threads = list_for_each_entry(
        "struct task_struct", task.signal.thread_head.address_of_(), "thread_node"
    )
    return next((mm for thread in _until_again(threads) if (mm := thread.mm.value_())), 0)


class _Circle(Exception):
    """A list leads back into itself, and not to its head."""


def _until_again(tasks: Iterable[Object]) -> Iterator[Object]:
    """
    The tasks of a list.

    :raises _Circle: one comes again; with the same PID, as a live kernel may put another in its
        place.
    """
    seen = set()
    for task in tasks:
        key = task.value_(), task.pid.value_()
        if key in seen:
            raise _Circle
        seen.add(key)
        yield task
