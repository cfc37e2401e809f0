# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct mm_struct``: the address spaces of processes, each once.

Threads share one, and so do processes after vfork(); kernel threads have none. The list of
processes is followed (``task_list``), what it leads to is read together.

Page tables are found this way, with no pass over the struct pages. Reverse maps take the tasks out
of their slab cache (:mod:`~mmscope.drgn.processes.processes`): they make that pass anyway, and
need the process of each VMA also where the list is damaged.

Cannot know: address spaces that no task has any more, and that something else holds: an exit that
is under way, an open /proc/PID/mem, a device driver.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program
from drgn.helpers.linux.list import list_for_each_entry
from numpy.typing import NDArray

from mmscope.drgn.processes.task_list import Circle, TaskList, Tasks, until_again
from mmscope.drgn.reading.kernel_arrays import Columns, Gaps
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.sections.memory import Memory

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
    """The first process that was seen to use an address space."""

    pid: int  # its thread group's
    comm: str
    processes: int  # thread groups that share it
    threads: int  # of all of them


@dataclass(frozen=True, slots=True)
class AddressSpaces:
    """All address spaces of processes, in the order of the process list."""

    processes: list[Process]
    addresses: NDArray[np.uint64]  # of the struct mm_structs
    columns: NDArray[Any]  # of them, by COLUMNS
    broken_off: bool  # the list of processes could not be followed to its end
    damaged: int  # processes that could not be read, or whose list of threads leads nowhere

    def __len__(self) -> int:
        return len(self.processes)


def kept_address_spaces(memory: Memory, gaps: Gaps) -> AddressSpaces:
    """
    The address space of every process, found once for all sections.

    A live kernel is asked each time: later, processes have ended, and trees of VMAs have other
    nodes.

    :param gaps: gets what could not be read of them.
    """
    if memory.live:
        return address_spaces(memory.prog, gaps)

    def find() -> tuple[AddressSpaces, int]:
        unread = Gaps()
        return address_spaces(memory.prog, unread), unread.bytes

    spaces, unread = memory.once("address_spaces", find)
    gaps.bytes += unread
    return spaces


def address_spaces(prog: Program, gaps: Gaps) -> AddressSpaces:
    """Find the address space of every process."""
    tasks = TaskList(prog)
    parts = [_users(prog, part) for part in tasks.parts()]
    users = np.concatenate([part for part, _ in parts] or [np.zeros(0, _user("S1"))])
    damaged = sum(lost for _, lost in parts)
    # In the order in which they came.
    mms, first, which = np.unique(users["mm"], return_index=True, return_inverse=True)
    order = np.argsort(first)
    owners = np.bincount(which, minlength=len(mms))
    threads = np.zeros(len(mms), np.int64)
    np.add.at(threads, which, users["threads"])
    processes = [
        Process(pid, name_in(comm), number, of_all)
        for pid, comm, number, of_all in zip(
            *(users[name][first[order]].tolist() for name in ("tgid", "comm")),
            *(values[order].tolist() for values in (owners, threads)),
            strict=True,
        )
    ]
    addresses = mms[order]
    columns, read = read_members(prog, addresses, prog.type("struct mm_struct"), COLUMNS, gaps)
    processes = [process for process, here in zip(processes, read.tolist(), strict=True) if here]
    return AddressSpaces(processes, addresses[read], columns[read], tasks.broken_off, damaged)


def _users(prog: Program, tasks: Tasks) -> tuple[NDArray[Any], int]:
    """
    Values of the tasks that have an address space, and the number that cannot be read.
    """
    columns = tasks.columns
    users = np.zeros(len(columns), _user(columns["comm"].dtype))
    for name in ("mm", "tgid", "comm"):
        users[name] = columns[name]
    process = tasks.whole & ((columns["flags"] & PF_KTHREAD) == 0)
    found = process & (columns["mm"] != 0)
    signals = columns["signal"][found]
    type_ = prog.type("struct signal_struct")
    more, read = read_members(prog, signals, type_, {"threads": "nr_threads"}, Gaps())
    users["threads"][found] = more["threads"]
    found[found] = read
    damaged = int(np.count_nonzero(~read))
    # Whose first thread may have ended before the others, and those that lie beside what can be
    # read.
    for at in np.flatnonzero(~tasks.whole | (process & (columns["mm"] == 0))).tolist():
        task = Object(prog, "struct task_struct", address=int(tasks.addresses[at])).address_of_()
        try:
            if mm := _mm(task):
                threads = task.signal.nr_threads.value_()
                users[at] = mm, task.tgid.value_(), task.comm.string_(), threads
                found[at] = True
        except (FaultError, Circle):
            damaged += 1
    return users[found], damaged


def _user(comm: Any) -> np.dtype[Any]:
    return np.dtype([("mm", "<u8"), ("tgid", "<i8"), ("comm", comm), ("threads", "<i8")])


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
    return next((mm for thread in until_again(threads) if (mm := thread.mm.value_())), 0)
