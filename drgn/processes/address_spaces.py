# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct mm_struct``: the address spaces of processes, each once.

Threads share one, and so do processes after vfork(); kernel threads have none. The list of
processes, ``init_task.tasks`` (of the first task of each thread group), is followed link by link,
one ``Program.read()`` a task; what it leads to is read together. A list that runs in a circle
without its head ends where a task comes again, and counts as broken off.

Page tables are found this way, with no pass over the struct pages. Reverse maps take the tasks out
of their slab cache (:mod:`~mmscope.drgn.processes.processes`): they make that pass anyway, and
need the process of each VMA also where the list is damaged.

Cannot know: address spaces that no task has any more, and that something else holds: an exit that
is under way, an open /proc/PID/mem, a device driver.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.reading.kernel_arrays import Array, Columns, Gaps, U64s, laid_out, struct_dtype
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.sections.memory import Memory

PF_KTHREAD = 0x0020_0000
ADDRESSES = (1 << 64) - 1

TASK = {
    "flags": "flags",
    "next": "tasks.next",
    "mm": "mm",
    "pid": "pid",
    "tgid": "tgid",
    "signal": "signal",
    "comm": "comm",
}
COLUMNS: Columns = {
    "pgd": "pgd",
    "pgtables_bytes": "pgtables_bytes.counter",
    # "mm: remove rb tree." (524e00b36e8c, in v6.1)
    "tree": ("mm_mt.ma_root", "mm_rb.rb_node"),
    "vmas": "map_count",
    "exec_pages": "exec_vm",
    "data_pages": "data_vm",
    "stack_pages": "stack_vm",
}


class Circle(Exception):
    """A list leads back into itself, and not to its head."""


@dataclass
class Process:
    """The first process that was seen to use an address space."""

    pid: int  # its thread group's
    comm: str
    processes: int  # thread groups that share it
    threads: int  # of all of them


BROKEN_OFF = (
    "the list of processes breaks off or runs in a circle (damaged, or left out of the dump): "
    "those after that are missing"
)


@dataclass(frozen=True, slots=True)
class AddressSpaces:
    """All address spaces of processes, in the order of the process list."""

    processes: list[Process]
    addresses: U64s  # of the struct mm_structs
    tasks: U64s  # of the first task that was seen to use each
    columns: Array  # of them, by COLUMNS
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
    tasks, broken_off = listed_tasks(prog)
    users, damaged = _users(prog, tasks)
    # In the order in which they came.
    mms, first, which = np.unique(users["mm"], return_index=True, return_inverse=True)
    order = np.argsort(first)
    owners = np.bincount(which, minlength=len(mms))
    threads = np.zeros(len(mms), np.int64)
    np.add.at(threads, which, users["threads"])
    addresses = mms[order]
    columns, read = read_members(prog, addresses, prog.type("struct mm_struct"), COLUMNS, gaps)
    order = order[read]
    of_first = users[first[order]]
    processes = [
        Process(pid, name_in(comm), number, of_all)
        for pid, comm, number, of_all in zip(
            of_first["tgid"].tolist(),
            of_first["comm"].tolist(),
            owners[order].tolist(),
            threads[order].tolist(),
            strict=True,
        )
    ]
    tasks_of = of_first["address"]
    return AddressSpaces(processes, addresses[read], tasks_of, columns[read], broken_off, damaged)


def listed_tasks(prog: Program) -> tuple[Array, bool]:
    """
    All tasks of the list: address, whether it could be read at once (``whole``), and by TASK; and
    whether the list breaks off before its end.
    """
    dtype = struct_dtype(prog.type("struct task_struct"), TASK)
    fields = {name: (field[0], field[1]) for name, field in (dtype.fields or {}).items()}
    begin = min(offset for _, offset in fields.values())
    # They lie within 3 KiB.
    span = laid_out({name: (kind, offset - begin) for name, (kind, offset) in fields.items()})
    _, next_at = fields["next"]
    nothing = np.zeros(1, span).item()

    def follow() -> Iterator[tuple[Any, ...]]:
        head = prog["init_task"].tasks.address_of_().value_()
        seen = set()
        try:
            at = prog.read_u64(head)
            while at != head:
                address = (at - next_at) & ADDRESSES
                try:
                    piece = prog.read(address + begin & ADDRESSES, span.itemsize)
                    values = np.frombuffer(piece, span).item()
                    _, at, _, pid, *_ = values
                    row = (address, True, *values)
                except FaultError:
                    pid = Object(prog, "struct task_struct", address=address).pid.value_()
                    at = prog.read_u64(at)
                    row = (address, False, *nothing)
                if (address, pid) in seen:
                    raise Circle
                seen.add((address, pid))
                yield row
        except (FaultError, Circle):
            yield (0, False, *nothing)  # what ends a list that breaks off is no task

    columns = [(name, kind) for name, (kind, _) in fields.items()]
    tasks = np.fromiter(follow(), [("address", "<u8"), ("whole", "?"), *columns])
    broken_off = bool(len(tasks)) and not tasks["address"][-1]
    return tasks[: len(tasks) - broken_off], broken_off


def _users(prog: Program, tasks: Array) -> tuple[Array, int]:
    """
    Values of the tasks that have an address space, and the number that cannot be read.
    """
    names = ("address", "mm", "tgid", "comm")
    users = np.zeros(
        len(tasks), [*((name, tasks.dtype[name]) for name in names), ("threads", "<i8")]
    )
    for name in names:
        users[name] = tasks[name]
    process = tasks["whole"] & ((tasks["flags"] & PF_KTHREAD) == 0)
    found = process & (tasks["mm"] != 0)
    type_ = prog.type("struct signal_struct")
    columns = {"threads": "nr_threads"}
    more, read = read_members(prog, tasks["signal"][found], type_, columns, Gaps())
    users["threads"][found] = more["threads"]
    found[found] = read
    damaged = int(np.count_nonzero(~read))
    # Whose first thread may have ended before the others, and those that lie beside what can be
    # read.
    for at in np.flatnonzero(~tasks["whole"] | (process & (tasks["mm"] == 0))).tolist():
        address = int(tasks["address"][at])
        task = Object(prog, "struct task_struct", address=address).address_of_()
        try:
            if mm := _mm(task):
                threads = task.signal.nr_threads.value_()
                users[at] = address, mm, task.tgid.value_(), task.comm.string_(), threads
                found[at] = True
        except (FaultError, Circle):
            damaged += 1
    return users[found], damaged


def _mm(task: Object) -> int:
    """
    The ``mm_struct`` of a process, 0 if it is a kernel thread or has exited.

    :raises Circle: its list of threads has no end.
    """
    if task.flags.value_() & PF_KTHREAD:
        return 0
    if address := task.mm.value_():
        return int(address)
    # Its first thread may have ended before the others.
    threads = list_for_each_entry(
        "struct task_struct", task.signal.thread_head.address_of_(), "thread_node"
    )
    seen = set()
    for thread in threads:
        if mm := thread.mm.value_():
            return int(mm)
        # With the same PID, as a live kernel may put another in its place.
        if (key := (thread.value_(), thread.pid.value_())) in seen:
            raise Circle
        seen.add(key)
    return 0
