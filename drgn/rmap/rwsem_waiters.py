# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct rw_semaphore``: who holds it, and who is queued on it.

Which locks are taken is known from what was read in bulk; of these, the owner and the list of
waiters (``struct rwsem_waiter``, on the waiting tasks' stacks) are read one by one.

Cannot know: which readers hold a lock. The kernel notes the last reader that took it, which may
have released it already; it notes a writer exactly. With PREEMPT_RT the lock is built on an
rt_mutex (kernel/locking/rwbase_rt.c), where tasks queue by priority. It notes no reader, nor what a
task wants that is queued.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, container_of
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry

from mmscope.drgn.processes.kernel_stacks import folded, function_names, kernel_frames
from mmscope.drgn.reading.kernel_arrays import Array, S64s, U64s, member_path
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.rwsem_counts import (
    FLAG_WAITERS,
    READER_SHIFT,
    WRITER_LOCKED,
    lock_counts,
    lock_state,
)

MAX_LOCKS = 100
MAX_WAITERS = 1000  # of one lock
MAX_STACKS = 100  # in all
LAST_READER = "last reader"
OWNER_FLAGS = 7
RT_OWNER_FLAGS = 1  # RT_MUTEX_HAS_WAITERS
READER_OWNED = 1  # RWSEM_READER_OWNED (kernel/locking/rwsem.c)
# Bits 3 to 7 are reserved, the last says that too many read (kernel/locking/rwsem.c).
RESERVED, READERS = 0xF8, (1 << 63) - (1 << READER_SHIFT)
PIDNS_ADDING = 1 << 31  # include/linux/pid_namespace.h
NO_LOCKS = "locks of this kernel are not read: struct rw_semaphore is unknown"

# Columns of the tables of locks and waiters.
STATES = "read, write, or changing hands (waited for, held by no task)"
OWNER = "the writer, or the last reader to take it"
OWNER_IS = "writer, or last reader (may have released it)"
WANTS = "read or write; PREEMPT_RT shows it only of a writer waiting for readers"

Cells = list[tuple[Any, ...]]


def taken_locks(
    prog: Program, type_: str, member: str, addresses: U64s, counts: S64s, *amounts: Array
) -> tuple[Cells, Cells, list[str]]:
    """
    Read the locks that are taken or waited for, those with most waiters first.

    :param type_: the structure that a lock is a member of; :param addresses: of all such.
    :param counts: :func:`lock_counts` of them; :param amounts: what else its row has.
    :return: rows of locks: address, state, readers, the owner's pid and comm, what it is, waiters,
        *amounts*, the owner's stack; rows of waiters: address, position, pid, comm, what it wants,
        stack; and what went wrong.
    """
    locks: list[tuple[int, str, tuple[Any, ...]]] = []
    queued, problems, stacks = [], [], MAX_STACKS
    tasks = _most_tasks(prog)
    for at in np.flatnonzero(counts)[:MAX_LOCKS].tolist():
        address = hex(addresses[at])
        rwsem = Object(prog, type_, address=int(addresses[at])).member_(member)
        queue: Cells = []
        try:
            count, word = count_and_owner(rwsem)
            for task, wants in queued_tasks(rwsem, count):
                stacks -= 1
                stack = _stack(prog, task) if stacks >= 0 else None
                waiter = (task.pid.value_(), name_in(task.comm.string_()), wants, stack)
                queue.append((address, len(queue), *waiter))
        except (FaultError, LookupError, ValueError) as error:
            problems.append(f"waiters on the lock of {address}: {error}")
            count, word = int(counts[at]), 0
        if not count:
            continue  # it is free by now
        if lock_state(count) == "write" and not word & ~OWNER_FLAGS:
            problems.append(f"the lock of {address} is held by a writer that it does not name")
        # Each reader says so as it comes, and nothing takes that back (rwsem_set_reader_owned());
        # one that is about to wait counts as a reader for a moment.
        readers = lock_state(count) == "read" and not count & FLAG_WAITERS
        if readers and hasattr(rwsem, "owner") and not word & READER_OWNED:
            problems.append(f"the lock of {address} has readers that never came")
        if (number := (count & READERS) >> READER_SHIFT) > tasks or count & RESERVED:
            problems.append(f"the lock of {address} has {number:,} readers: {count:#x}")
        *holder, stack = owner(prog, word, count)
        holder = [lock_state(count), max(count >> READER_SHIFT, 0), *holder]
        values = [int(each[at]) for each in amounts]
        locks.append((-len(queue), address, (address, *holder, len(queue), *values, stack)))
        queued += queue
    return [cells for *_, cells in sorted(locks)], queued, problems


def _most_tasks(prog: Program) -> int:
    """Tasks that there may be: ``pid_allocated`` of all of them (include/linux/pid_namespace.h)."""
    return int(prog["init_pid_ns"].pid_allocated.value_()) & ~PIDNS_ADDING


def count_and_owner(rwsem: Object) -> tuple[int, int]:
    """``rw_semaphore.count`` and ``owner``, or what PREEMPT_RT has, in their form."""
    if not hasattr(rwsem, "rwbase"):
        return rwsem.count.counter.value_(), rwsem.owner.counter.value_()
    readers = np.array([rwsem.rwbase.readers.counter.value_()], np.int32)
    queue = np.array([rwsem.rwbase.rtmutex.waiters.rb_root.rb_node.value_()], np.uint64)
    (count,) = lock_counts(readers, queue).tolist()
    # The rt_mutex has an owner also while that one waits for readers to leave.
    word = rwsem.rwbase.rtmutex.owner.value_() if count & WRITER_LOCKED else 0
    return count, word & ~RT_OWNER_FLAGS


def queued_tasks(rwsem: Object, count: int) -> Iterator[tuple[Object, str | None]]:
    """
    The tasks that are queued, and what they want.

    :raises ValueError: the queue has no end.
    """
    if not hasattr(rwsem, "rwbase"):
        for waiter in _bounded(rwsem_waiters(rwsem)):
            yield waiter.task, "read" if waiter.type.value_() else "write"
        return
    mutex = rwsem.rwbase.rtmutex
    writer = mutex.owner.value_() & ~RT_OWNER_FLAGS
    if writer and count & FLAG_WAITERS:
        yield Object(mutex.prog_, "struct task_struct", address=writer).address_of_(), "write"
    # The highest priority first. "locking/rtmutex: Fix task->pi_waiters integrity" (f7853c342418,
    # in v6.5)
    paths = ("tree.entry", "tree_entry")
    link = member_path(mutex.prog_.type("struct rt_mutex_waiter"), paths)
    root = mutex.waiters.rb_root.address_of_()
    for waiter in _bounded(rbtree_inorder_for_each_entry("struct rt_mutex_waiter", root, link)):
        yield waiter.task, None


def rwsem_waiters(rwsem: Object) -> Iterator[Object]:
    """
    The queue of a ``struct rw_semaphore``, first come first.

    :return: Iterator of ``struct rwsem_waiter *`` objects; of a damaged queue without an end.
    """
    if not hasattr(rwsem, "first_waiter"):
        head = rwsem.wait_list.address_of_()
        yield from list_for_each_entry("struct rwsem_waiter", head, "list")
        return
    # A ring since "locking/rwsem: Remove the list_head from struct rw_semaphore" (1ea4b473504b,
    # in v7.1).
    first = waiter = rwsem.first_waiter.read_()
    while waiter:
        yield waiter
        waiter = container_of(waiter.list.next.read_(), "struct rwsem_waiter", "list")
        if waiter == first:
            return


def _bounded(waiters: Iterator[Object]) -> Iterator[Object]:
    """:raises ValueError: they have no end."""
    with contextlib.suppress(RecursionError):
        for number, waiter in enumerate(waiters):
            if number == MAX_WAITERS:
                break
            yield waiter
        else:
            return
    raise ValueError(f"more than {MAX_WAITERS} waiters: damaged, or the queue moves")


def holder(prog: Program, word: int, count: int) -> tuple[Object | None, str | None]:
    """
    The task that holds a lock, which may not be readable, and what it is: writer, or last reader.

    :param word: ``rw_semaphore.owner``; :param count: ``rw_semaphore.count``.
    """
    address = word & 0xFFFFFFFFFFFFFFFF & ~OWNER_FLAGS
    state, by_reader = lock_state(count), word & READER_OWNED
    # A writer that has just taken it notes itself after that: rwsem_write_trylock().
    if not address or state not in ("read", "write") or (state == "write" and by_reader):
        return None, None
    task = Object(prog, "struct task_struct", address=address).address_of_()
    return task, LAST_READER if by_reader else "writer"


def owner(
    prog: Program, word: int, count: int
) -> tuple[int | None, str | None, str | None, str | None]:
    """
    pid, comm, what it is, and stack of the task that holds a lock.

    :param word: ``rw_semaphore.owner``; :param count: ``rw_semaphore.count``.
    """
    task, kind = holder(prog, word, count)
    if task is None:
        return None, None, None, None
    try:
        pid, comm = task.pid.value_(), name_in(task.comm.string_())
    except FaultError:
        return None, None, kind, None
    # A reader may be gone since, and its memory something else's: it is one if it is in its place.
    return pid, comm, kind, _stack(prog, task)


def _stack(prog: Program, task: Object) -> str | None:
    return folded(function_names(kernel_frames(prog, task)))
