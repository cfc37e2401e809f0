# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Who holds the lock of an anon_vma or of a file's mappings, and who is queued on it: ``struct
rw_semaphore``.

The lock of an anon_vma is that of its root, so that a family of forked processes shares one. That
of a file's mappings is ``address_space.i_mmap_rwsem``. Which locks are taken is known from what was
read in bulk; of these, the owner and the list of waiters (``struct rwsem_waiter``, on the waiting
tasks' stacks) are read one by one.

Cannot know: which readers hold a lock. The kernel notes the last reader that took it, which may
have released it already; it notes a writer exactly. With PREEMPT_RT the lock is built on an
rt_mutex (kernel/locking/rwbase_rt.c), where tasks queue by priority. It notes no reader, nor what a
task wants that is queued; when no task has it, it looks free although tasks may be queued.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from drgn import FaultError, Object, Program, container_of
from drgn.helpers.linux.list import list_for_each_entry
from numpy.typing import NDArray

from mmscope.drgn.reading.kernel_arrays import member_path
from mmscope.drgn.rmap.anon_vma_trees import (
    FLAG_WAITERS,
    READER_SHIFT,
    WRITER_LOCKED,
    ReverseMaps,
    lock_counts,
)
from mmscope.drgn.rmap.anon_vmas import lock_state
from mmscope.drgn.rmap.file_trees import FileMaps
from mmscope.drgn.tables.rows import MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Table

MAX_LOCKS = 100
MAX_WAITERS = 1000  # of one lock
MAX_STACKS = 100  # in all
READER_OWNED = 1
OWNER_FLAGS = 7
RT_OWNER_FLAGS = 1  # RT_MUTEX_HAS_WAITERS
WANTS = "read or write; with PREEMPT_RT it is known of a writer that waits for readers alone"


@table_row
class AnonVmaLock:
    """A lock of anon_vmas that is taken or waited for."""

    root: str = column(holds="kernel", key=True, help="the anon_vma whose lock it is")
    state: str = column(
        holds="words", help="read, write, or changing hands (waited for, and no task has it)"
    )
    readers: int = column(help="readers that hold it")
    owner_pid: int | None = column(
        high=MOST_PIDS, help="the writer; or the last reader that took it"
    )
    owner_comm: str | None = column(holds="comm", help="its name")
    owner_is: str | None = column(
        holds="words", help="writer, or last reader, which may have let it go"
    )
    waiters: int = column(help="tasks that are queued on it")
    anon_vmas: int = column(help="anon_vmas that share it")
    vmas: int = column(unit="VMAs", help="nodes of all their trees")
    stack: str | None = column(holds="kernel", help="what the owner does: root;…;leaf")


ANON_VMA_LOCKS = Table(
    "anon_vma_locks",
    "Locks of anon_vmas that are taken",
    AnonVmaLock,
    empty="No anon_vma's lock was taken at that moment.",
)


@table_row
class AnonVmaWaiter:
    """A task that is queued on the lock of an anon_vma."""

    root: str = column(holds="kernel", key=True, help="the anon_vma whose lock it is")
    position: int = column(key=True, help="in the queue, from 0")
    pid: int = column(high=MOST_PIDS, help="task")
    comm: str = column(holds="comm", help="its name")
    wants: str | None = column(holds="words", help=WANTS)
    stack: str | None = column(holds="kernel", help="where it waits: root;…;leaf")


ANON_VMA_WAITERS = Table(
    "anon_vma_waiters",
    "Tasks queued on them",
    AnonVmaWaiter,
    empty="No task was queued on an anon_vma's lock at that moment.",
)


@table_row
class FileMappingLock:
    """An ``i_mmap_rwsem`` that is taken or waited for."""

    address_space: str = column(holds="kernel", key=True, help="the one it is in")
    state: str = column(
        holds="words", help="read, write, or changing hands (waited for, and no task has it)"
    )
    readers: int = column(help="readers that hold it")
    owner_pid: int | None = column(help="the writer; or the last reader that took it")
    owner_comm: str | None = column(holds="comm", help="its name")
    owner_is: str | None = column(
        holds="words", help="writer, or last reader, which may have let it go"
    )
    waiters: int = column(help="tasks that are queued on it")
    vmas: int = column(unit="VMAs", help="nodes of its tree")
    stack: str | None = column(holds="kernel", help="what the owner does: root;…;leaf")


FILE_MAPPING_LOCKS = Table(
    "file_mapping_locks",
    "Locks of mapped files that are taken",
    FileMappingLock,
    empty="No mapped file's i_mmap_rwsem was taken at that moment.",
)


@table_row
class FileMappingWaiter:
    """A task that is queued on an ``i_mmap_rwsem``."""

    address_space: str = column(holds="kernel", key=True, help="the one it is in")
    position: int = column(key=True, help="in the queue, from 0")
    pid: int = column(high=MOST_PIDS, help="task")
    comm: str = column(holds="comm", help="its name")
    wants: str | None = column(holds="words", help=WANTS)
    stack: str | None = column(holds="kernel", help="where it waits: root;…;leaf")


FILE_MAPPING_WAITERS = Table(
    "file_mapping_waiters",
    "Tasks queued on them",
    FileMappingWaiter,
    empty="No task was queued on an i_mmap_rwsem at that moment.",
)


NO_LOCKS = "locks of this kernel are not read: struct rw_semaphore is unknown"


def anon_vma_locks(
    prog: Program, maps: ReverseMaps
) -> tuple[list[AnonVmaLock], list[AnonVmaWaiter], list[str]]:
    """Locks that are taken or waited for, those with most waiters first; and what went wrong."""
    if "lock" not in maps.anon_vmas.columns:
        return [], [], [NO_LOCKS]
    number = len(maps.anon_vmas)
    own = maps.root == np.arange(number)
    counts = lock_counts(maps.anon_vmas["lock"])
    family = np.bincount(maps.root[maps.root >= 0], minlength=number)
    nodes = np.bincount(
        maps.root[maps.root >= 0],
        maps.tree_size[maps.root >= 0].astype(np.float64),
        minlength=number,
    )
    taken, problems = _taken(
        prog, np.flatnonzero(own & (counts != 0)), maps.anon_vmas.address, counts,
        "struct anon_vma", "rwsem",
    )  # fmt: skip
    locks, queued = [], []
    for index, root, lock in taken:
        locks.append(
            AnonVmaLock(
                root, *lock.holder, len(lock.queue), int(family[index]), int(nodes[index]),
                lock.stack,
            )
        )  # fmt: skip
        queued += [AnonVmaWaiter(root, at, *waiter) for at, waiter in enumerate(lock.queue)]
    return sorted(locks, key=lambda row: (-row.waiters, row.root)), queued, problems


def file_mapping_locks(
    prog: Program, maps: FileMaps
) -> tuple[list[FileMappingLock], list[FileMappingWaiter], list[str]]:
    """Locks that are taken or waited for, those with most waiters first; and what went wrong."""
    if "lock" not in (maps.of_mapping.dtype.names or ()):
        return [], [], [NO_LOCKS]
    counts = lock_counts(maps.of_mapping["lock"])
    taken, problems = _taken(
        prog, np.flatnonzero(counts != 0), maps.mapping, counts,
        "struct address_space", "i_mmap_rwsem",
    )  # fmt: skip
    locks, queued = [], []
    for index, mapping, lock in taken:
        locks.append(
            FileMappingLock(
                mapping, *lock.holder, len(lock.queue), int(maps.tree_size[index]), lock.stack
            )
        )
        queued += [FileMappingWaiter(mapping, at, *waiter) for at, waiter in enumerate(lock.queue)]
    return sorted(locks, key=lambda row: (-row.waiters, row.address_space)), queued, problems


Holder = tuple[str, int, int | None, str | None, str | None]
Waiter = tuple[int, str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class _Taken:
    """A lock that is not free."""

    holder: Holder  # state, readers; pid, comm of the owner, and what it is
    stack: str | None  # the owner's
    queue: list[Waiter]  # pid, comm, what it wants, stack


def _taken(
    prog: Program,
    chosen: NDArray[np.int64],
    addresses: NDArray[np.uint64],
    counts: NDArray[np.int64],
    type_: str,
    member: str,
) -> tuple[list[tuple[int, str, _Taken]], list[str]]:
    """(index, address, lock) of those that are taken still, of :data:`MAX_LOCKS`; and problems."""
    taken: list[tuple[int, str, _Taken]] = []
    problems: list[str] = []
    stacks = MAX_STACKS
    for index in chosen[:MAX_LOCKS].tolist():
        address = int(addresses[index])
        rwsem = Object(prog, type_, address=address).member_(member)
        queue: list[Waiter] = []
        try:
            count, word = count_and_owner(rwsem)
            for task, wants in queued_tasks(rwsem, count):
                stacks -= 1
                stack = _stack(prog, task) if stacks >= 0 else None
                queue.append((task.pid.value_(), _comm(task), wants, stack))
        except (FaultError, LookupError, ValueError) as error:
            problems.append(f"waiters on the lock of {address:#x}: {error}")
            count, word = int(counts[index]), 0
        if not count:
            continue  # it is free by now
        pid, comm, kind, stack = owner(prog, word, count)
        holder = (lock_state(count), max(count >> READER_SHIFT, 0), pid, comm, kind)
        taken.append((index, hex(address), _Taken(holder, stack, queue)))
    return taken, problems


def count_and_owner(rwsem: Object) -> tuple[int, int]:
    """``rw_semaphore.count`` and ``owner``, or what PREEMPT_RT has, in their form."""
    if not hasattr(rwsem, "rwbase"):
        return rwsem.count.counter.value_(), rwsem.owner.counter.value_()
    readers = np.array([rwsem.rwbase.readers.counter.value_()], np.int32)
    (count,) = lock_counts(readers).tolist()
    # The rt_mutex has an owner also while that one waits for readers to leave.
    word = rwsem.rwbase.rtmutex.owner.value_() if count & WRITER_LOCKED else 0
    return count, word & ~RT_OWNER_FLAGS


def queued_tasks(rwsem: Object, count: int) -> Iterator[tuple[Object, str | None]]:
    """
    The tasks that are queued, and what they want.

    :raises ValueError: the queue has no end.
    """
    if not hasattr(rwsem, "rwbase"):
        for waiter in rwsem_waiters(rwsem):
            yield waiter.task, "read" if waiter.type.value_() else "write"
        return
    mutex = rwsem.rwbase.rtmutex
    writer = mutex.owner.value_() & ~RT_OWNER_FLAGS
    if writer and count & FLAG_WAITERS:
        yield Object(mutex.prog_, "struct task_struct", address=writer).address_of_(), "write"
    for waiter in rt_mutex_waiters(mutex):
        yield waiter.task, None


def rt_mutex_waiters(mutex: Object) -> Iterator[Object]:
    """
    The queue of a ``struct rt_mutex_base``, the highest priority first.

    :return: Iterator of ``struct rt_mutex_waiter *`` objects.
    :raises ValueError: the tree has no end.
    """
    # "locking/rtmutex: Fix task->pi_waiters integrity" (f7853c342418, in v6.5)
    paths = ("tree.entry", "tree_entry")
    link = member_path(mutex.prog_.type("struct rt_mutex_waiter"), paths)
    above: list[Object] = []
    node, met = mutex.waiters.rb_root.rb_node.read_(), 0
    while node or above:
        while node:
            if (met := met + 1) > MAX_WAITERS:
                raise ValueError(f"more than {MAX_WAITERS} waiters: damaged, or the queue moves")
            above.append(node)
            node = node.rb_left.read_()
        last = above.pop()
        yield container_of(last, "struct rt_mutex_waiter", link)
        node = last.rb_right.read_()


def rwsem_waiters(rwsem: Object) -> Iterator[Object]:
    """
    The queue of a ``struct rw_semaphore``, first come first.

    :return: Iterator of ``struct rwsem_waiter *`` objects.
    :raises ValueError: the queue has no end.
    """
    if hasattr(rwsem, "first_waiter"):
        # A ring since "locking/rwsem: Remove the list_head from struct rw_semaphore" (1ea4b473504b,
        # in v7.1).
        first = rwsem.first_waiter.read_()
        waiter = first
        for _ in range(MAX_WAITERS):
            if not waiter:
                return
            yield waiter
            waiter = container_of(waiter.list.next.read_(), "struct rwsem_waiter", "list")
            if waiter == first:
                return
    else:
        waiters = list_for_each_entry("struct rwsem_waiter", rwsem.wait_list.address_of_(), "list")
        for number, waiter in enumerate(waiters):
            if number == MAX_WAITERS:
                break
            yield waiter
        else:
            return
    raise ValueError(f"more than {MAX_WAITERS} waiters: damaged, or the queue moves")


def owner(
    prog: Program, word: int, count: int
) -> tuple[int | None, str | None, str | None, str | None]:
    """
    pid, comm, what it is, and stack of the task that holds a lock.

    :param word: ``rw_semaphore.owner``; :param count: ``rw_semaphore.count``.
    """
    address = word & 0xFFFFFFFFFFFFFFFF & ~OWNER_FLAGS
    if not address or lock_state(count) not in ("read", "write"):
        return None, None, None, None
    kind = "last reader" if word & READER_OWNED else "writer"
    task = Object(prog, "struct task_struct", address=address).address_of_()
    try:
        pid, comm = task.pid.value_(), _comm(task)
    except FaultError:
        return None, None, kind, None
    # A reader may be gone since, and its memory something else's: it is one if it is in its place.
    return pid, comm, kind, _stack(prog, task)


def _comm(task: Object) -> str:
    name: bytes = task.comm.string_()
    return name.decode("utf-8", "backslashreplace")


def _stack(prog: Program, task: Object) -> str | None:
    """
    The kernel's part of a task's stack, folded; None where it cannot be unwound (it runs on a live
    kernel), was in user space, or is another task's.
    """
    try:
        trace = list(prog.stack_trace(task))
        if trace and trace[0].pc >> 56 != 0xFF:
            return None  # what the unwinder finds above a user's frame is no code
        frames = [frame for frame in trace if frame.pc >> 56 == 0xFF]
        if frames and not on_its_stack(prog, task, frames[-1].sp):
            return None
        names = [frame.name or hex(frame.pc) for frame in frames]
    except (FaultError, LookupError, ValueError, RuntimeError):
        return None
    return ";".join(name.replace(";", ":") for name in reversed(names)) or None


def on_its_stack(prog: Program, task: Object, pointer: int) -> bool:
    """
    True if a stack pointer is in the stack of a ``struct task_struct *``, as far as can be told.

    A CPU that changes over to a task says that it runs it while its registers are still those of
    the task before (kernel/sched/core.c, __schedule(): rq->curr, then context_switch()).

    :raises FaultError: the task cannot be read.
    """
    # CONFIG_VMAP_STACK: "fork: Add generic vmalloced stack support" (ba14a194a434, in v4.9); not of
    # the first task.
    area = getattr(task, "stack_vm_area", None)
    if not area:
        return True
    begin = task.stack.value_()
    size = area.nr_pages.value_() * prog["PAGE_SIZE"].value_()
    return bool(begin <= pointer <= begin + size)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("anon_vmas", "anon_vma_locks", "anon_vma_waiters")
