# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Queues that sleeping tasks are in, found on their own stacks, without debug info.

A task that waits keeps its place in the queue on its stack: ``struct rwsem_waiter``,
``mutex_waiter``, ``wait_page_queue``, ``swait_queue`` and ``wait_queue_entry`` all have a pointer
to the task, and a link in a ring that leads to what is waited for. So a word of the stack that is
the task's own address is tried as that member of each; it is taken where the ring comes back, and
what the ring hangs on is the answer. Costs the words from the stack pointer up, a few KiB, and a
read for each task of the same queue.

Cannot know: who holds a folio's lock (the kernel notes no task), nor of a read lock more than the
reader that took it last; what a task waits for that polls, or that sleeps in a driver's own way.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from drgn import FaultError, Object, Program, offsetof
from numpy.typing import NDArray

from mmscope.drgn.rmap.rwsem_waiters import (
    MAX_WAITERS,
    OWNER_FLAGS,
    count_and_owner,
    owner,
)

THREAD_SIZE = 16 << 10  # x86-64 and arm64 without KASAN
# What wakes a task that waits in a queue by itself (kernel/sched/wait.c, wait_bit.c, core.c).
WAKES = (
    *("autoremove_wake_function", "default_wake_function", "woken_wake_function"),
    *("wake_bit_function", "var_wake_function"),
)
# enum pageflags: PG_locked, PG_writeback. Their numbers are asked for.
PAGE_BITS = {"PG_locked": "folio lock", "PG_writeback": "writeback"}


@dataclass(frozen=True, slots=True)
class Awaited:
    """
    Object that a task is queued on.

    :ivar kind: in words; :ivar address: of the lock, folio, completion or head of the queue.
    :ivar holder: ``struct task_struct *``, None where the kernel notes no task.
    """

    kind: str
    address: int
    holder: Object | None = None
    holder_is: str | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """The words of a task's stack, from its stack pointer up."""

    task: int
    start: int
    words: NDArray[np.uint64]

    @property
    def end(self) -> int:
        return self.start + self.words.nbytes

    def places(self, word: int) -> list[int]:
        """The addresses at which it has a word."""
        return [self.start + 8 * at for at in np.flatnonzero(self.words == word).tolist()]


def awaited(prog: Program, task: Object, pointer: int, frames: Sequence[str]) -> Awaited | None:
    """
    Find what a task that sleeps is queued on; None where it is on no queue that is known.

    :param pointer: its stack pointer; :param frames: its functions, by which the form is known.
    :raises FaultError: its stack cannot be read.
    """
    base, end = bounds_of(task)
    if not base <= pointer < end:
        return None
    raw = prog.read(pointer & ~7, (end - pointer) & ~7)
    stack = Stack(task.value_(), pointer & ~7, np.frombuffer(raw, "<u8"))
    for inside, find in FORMS.items():
        if any(inside in frame for frame in frames):
            try:
                if (found := find(prog, task, stack)) is not None:
                    return found
            except (FaultError, LookupError):
                continue  # of another form, or it changes while it is read
    return None


def _rwsem(prog: Program, task: Object, stack: Stack) -> Awaited | None:
    for waiter, address in _locks(prog, "struct rwsem_waiter", "struct rw_semaphore", stack):
        count, word = count_and_owner(Object(prog, "struct rw_semaphore", address=address))
        *_, kind, _ = owner(prog, word, count)
        wants = "read" if waiter.type.value_() else "write"
        holder = _task(prog, word) if kind else None
        return Awaited(f"rwsem, to {wants}", address, holder, kind)
    return None


def _mutex(prog: Program, task: Object, stack: Stack) -> Awaited | None:
    for _, address in _locks(prog, "struct mutex_waiter", "struct mutex", stack):
        word = Object(prog, "struct mutex", address=address).owner.counter.value_()
        return Awaited("mutex", address, _task(prog, word), "owner")
    return None


def _rt_mutex(prog: Program, task: Object, stack: Stack) -> Awaited | None:
    if not (waiter := task.pi_blocked_on):
        return None
    holder = _task(prog, waiter.lock.owner.value_())
    return Awaited("rt_mutex", waiter.lock.value_(), holder, "owner")


def _page(prog: Program, task: Object, stack: Stack) -> Awaited | None:
    """``folio_wait_bit_common()`` (mm/filemap.c)."""
    type_ = prog.type("struct wait_page_queue")
    # "mm/filemap: Add folio_wait_bit()" (101c0bf67afd, in v5.16)
    page = "folio" if type_.has_member("folio") else "page"
    bits = {prog.constant(name).value_(): words for name, words in PAGE_BITS.items()}
    for entry in _entries(prog, stack, ("wake_page_function",)):
        queue = Object(prog, type_, address=entry - offsetof(type_, "wait"))
        kind = bits.get(queue.bit_nr.value_(), "a bit of a folio")
        return Awaited(kind, queue.member_(page).value_())
    return None


def _queue(prog: Program, task: Object, stack: Stack) -> Awaited | None:
    type_ = prog.type("struct wait_queue_entry")
    member, link = offsetof(type_, "private"), offsetof(type_, "entry")
    for entry in _entries(prog, stack, WAKES):
        head = _head(prog, entry + link, member - link)
        if head is not None:
            return Awaited("queue", head - offsetof(prog.type("struct wait_queue_head"), "head"))
    return None


def _completion(prog: Program, task: Object, stack: Stack) -> Awaited | None:
    """``struct swait_queue`` of a ``struct completion`` (kernel/sched/completion.c)."""
    type_ = prog.type("struct swait_queue")
    member, link = offsetof(type_, "task"), offsetof(type_, "task_list")
    for place in stack.places(stack.task):
        head = _head(prog, place - member + link, member - link)
        if head is not None:
            completion = prog.type("struct completion")
            return Awaited("completion", head - offsetof(completion, "wait.task_list"))
    return None


# By a function that tells the form: the most telling first.
FORMS = {
    "rwsem_down_": _rwsem,
    "__mutex_lock": _mutex,
    "rt_mutex": _rt_mutex,
    "rtlock": _rt_mutex,
    "rwbase": _rt_mutex,
    "folio_wait_bit": _page,
    "wait_on_page_bit": _page,
    "__lock_page": _page,
    "__folio_lock": _page,
    "wait_for_co": _completion,
    "schedule": _queue,
}


def _locks(prog: Program, waiter: str, lock: str, stack: Stack) -> Iterator[tuple[Object, int]]:
    """Waiters of a type on a stack, and the lock in whose queue each is."""
    waits, locks = prog.type(waiter), prog.type(lock)
    member, link = offsetof(waits, "task"), offsetof(waits, "list")
    for place in stack.places(stack.task):
        at = place - member
        if locks.has_member("wait_list"):
            head = _head(prog, at + link, member - link)
            address = None if head is None else head - offsetof(locks, "wait_list")
        else:
            address = _lock_of_ring(prog, at, offsetof(locks, "first_waiter"), link, stack)
        if address is not None:
            yield Object(prog, waits, address=at), address


def _head(prog: Program, link: int, to_task: int) -> int | None:
    """
    The head of the list that an entry on a task's stack is linked into: what no task's stack has.

    :param link: address of the entry's ``list_head``; :param to_task: from there to its member
        that is the task.
    """
    try:
        heads = [
            node
            for node in _ring(prog, link)
            if not _on_stack(prog, _word(prog, node + to_task), node)
        ]
    except (FaultError, LookupError):
        return None
    return heads[0] if len(heads) == 1 else None


def _lock_of_ring(prog: Program, at: int, first: int, link: int, stack: Stack) -> int | None:
    """
    The lock whose queue is a ring of waiters alone, and which points to the first of them.

    Its address is on the waiter's stack, which has been using it: "locking/rwsem: Remove the
    list_head from struct rw_semaphore" (1ea4b473504b, in v7.1).
    """
    try:
        waiters = {at, *(node - link for node in _ring(prog, at + link))}
    except (FaultError, LookupError):
        return None
    for word in dict.fromkeys(stack.words.tolist()):
        if not word & 7 and word >> 56 == 0xFF and not stack.start <= word < stack.end:
            with contextlib.suppress(FaultError):
                if _word(prog, word + first) in waiters:
                    return int(word)
    return None


def _entries(prog: Program, stack: Stack, functions: Sequence[str]) -> Iterator[int]:
    """Addresses of what on a stack is a ``struct wait_queue_entry`` with one of these functions."""
    type_ = prog.type("struct wait_queue_entry")
    member, func = offsetof(type_, "private"), offsetof(type_, "func")
    wakes = set()
    for name in functions:
        with contextlib.suppress(LookupError):
            wakes.add(prog.symbol(name).address)
    for place in stack.places(stack.task):
        with contextlib.suppress(FaultError):
            if _word(prog, place - member + func) in wakes:
                yield place - member


def _word(prog: Program, address: int) -> int:
    """Read the word at what may be no address at all."""
    word: int = prog.read_u64(address & (1 << 64) - 1)
    return word


def _ring(prog: Program, link: int) -> Iterator[int]:
    """
    The other nodes of a ring of ``struct list_head``, whose links agree both ways.

    :raises LookupError: it is none.
    """
    node, before = _word(prog, link), link
    for _ in range(MAX_WAITERS):
        if _word(prog, node + 8) != before:
            break
        if node == link:
            return
        yield node
        node, before = _word(prog, node), node
    raise LookupError("not a ring")


def _on_stack(prog: Program, task: int, address: int) -> bool:
    """True if an address is on the stack of what may be a ``struct task_struct *``."""
    try:
        base, end = bounds_of(Object(prog, "struct task_struct", address=task).address_of_())
    except FaultError:
        return False
    return base <= address < end


def bounds_of(task: Object) -> tuple[int, int]:
    """
    Begin and end of a task's stack.

    :raises FaultError: the task cannot be read.
    """
    base, size = task.stack.value_(), THREAD_SIZE
    # CONFIG_VMAP_STACK: "fork: Add generic vmalloced stack support" (ba14a194a434, in v4.9); not of
    # the first task.
    if area := getattr(task, "stack_vm_area", None):
        size = area.nr_pages.value_() * task.prog_["PAGE_SIZE"].value_()
    return base, base + size


def _task(prog: Program, word: int) -> Object | None:
    """The task of a lock's word of its owner, which may be negative (``atomic_long_t``)."""
    address = word & (1 << 64) - 1 & ~OWNER_FLAGS
    return Object(prog, "struct task_struct", address=address).address_of_() if address else None
