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

from mmscope.drgn.opening.constants import kernel_byte
from mmscope.drgn.processes.kernel_stacks import stack_bounds
from mmscope.drgn.rmap.rwsem_waiters import MAX_WAITERS, OWNER_FLAGS, count_and_owner, holder

# At least, of a stack that is no vmalloc memory (x86-64, arm64, ppc64); twice that with KASAN.
THREAD_SIZE = 16 << 10
# Bytes of a stack that are looked at: none has more, but what is damaged may say so.
MOST_STACK = 128 << 10
PICKUP = 4  # MUTEX_FLAG_PICKUP (kernel/locking/mutex.h): handed to one that has not woken up yet
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
    """
    The words of a task's stack, from its stack pointer up.

    :ivar bounds: of the stacks that were asked for, by the task's address.
    """

    task: Object
    start: int
    words: NDArray[np.uint64]
    bounds: dict[int, range]

    @property
    def prog(self) -> Program:
        return self.task.prog_

    @property
    def end(self) -> int:
        return self.start + self.words.nbytes

    def places(self) -> list[int]:
        """The addresses at which it has the task's own."""
        own = np.flatnonzero(self.words == self.task.value_())
        return [self.start + 8 * at for at in own.tolist()]


def awaited(
    task: Object, pointer: int, frames: Sequence[str], bounds: dict[int, range]
) -> Awaited | None:
    """
    Find what a task that sleeps is queued on; None where it is on no queue that is known.

    :param pointer: its stack pointer; :param frames: its functions, by which the form is known.
    :param bounds: of the stacks that were asked for, by the task's address: one for all tasks.
    :raises FaultError: its stack cannot be read.
    """
    own = _bounds(task)
    if pointer not in own:
        return None
    raw = task.prog_.read(pointer & ~7, min(own.stop - pointer, MOST_STACK) & ~7)
    stack = Stack(task, pointer & ~7, np.frombuffer(raw, "<u8"), bounds)
    for inside, find in FORMS.items():
        if any(inside in frame for frame in frames):
            try:
                if (found := find(stack)) is not None:
                    return found
            except (FaultError, LookupError):
                continue  # of another form, or it changes while it is read
    return None


def _rwsem(stack: Stack) -> Awaited | None:
    for waiter, address in _locks("struct rwsem_waiter", "struct rw_semaphore", stack):
        lock = Object(stack.prog, "struct rw_semaphore", address=address)
        count, word = count_and_owner(lock)
        wants = "read" if waiter.type.value_() else "write"
        return Awaited(f"rwsem, to {wants}", address, *holder(stack.prog, word, count))
    return None


def _mutex(stack: Stack) -> Awaited | None:
    for _, address in _locks("struct mutex_waiter", "struct mutex", stack):
        word = Object(stack.prog, "struct mutex", address=address).owner.counter.value_()
        return _owned("mutex", address, 0 if word & PICKUP else word, stack)
    return None


def _rt_mutex(stack: Stack) -> Awaited | None:
    if not (waiter := stack.task.pi_blocked_on):
        return None
    return _owned("rt_mutex", waiter.lock.value_(), waiter.lock.owner.value_(), stack)


def _owned(kind: str, address: int, word: int, stack: Stack) -> Awaited:
    """A lock with the word of its owner, which may be negative (``atomic_long_t``)."""
    owner = word & (1 << 64) - 1 & ~OWNER_FLAGS
    task = Object(stack.prog, "struct task_struct", address=owner).address_of_() if owner else None
    return Awaited(kind, address, task, "owner")


def _page(stack: Stack) -> Awaited | None:
    """``folio_wait_bit_common()`` (mm/filemap.c)."""
    prog = stack.prog
    type_ = prog.type("struct wait_page_queue")
    # "mm/filemap: Add folio_wait_bit()" (101c0bf67f50, in v5.16)
    page = "folio" if type_.has_member("folio") else "page"
    bits = {prog.constant(name).value_(): words for name, words in PAGE_BITS.items()}
    for entry in _entries(stack, ("wake_page_function",)):
        queue = Object(prog, type_, address=entry - offsetof(type_, "wait"))
        kind = bits.get(queue.bit_nr.value_(), "a bit of a folio")
        return Awaited(kind, queue.member_(page).value_())
    return None


def _queue(stack: Stack) -> Awaited | None:
    type_ = stack.prog.type("struct wait_queue_entry")
    member, link = offsetof(type_, "private"), offsetof(type_, "entry")
    for entry in _entries(stack, WAKES):
        head = _head(stack, entry + link, member - link)
        if head is not None:
            of = stack.prog.type("struct wait_queue_head")
            return Awaited("queue", head - offsetof(of, "head"))
    return None


def _completion(stack: Stack) -> Awaited | None:
    """``struct swait_queue`` of a ``struct completion`` (kernel/sched/completion.c)."""
    type_ = stack.prog.type("struct swait_queue")
    member, link = offsetof(type_, "task"), offsetof(type_, "task_list")
    for place in stack.places():
        head = _head(stack, place - member + link, member - link)
        if head is not None:
            completion = stack.prog.type("struct completion")
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


def _locks(waiter: str, lock: str, stack: Stack) -> Iterator[tuple[Object, int]]:
    """Waiters of a type on a stack, and the lock in whose queue each is."""
    waits, locks = stack.prog.type(waiter), stack.prog.type(lock)
    member, link = offsetof(waits, "task"), offsetof(waits, "list")
    for place in stack.places():
        at = place - member
        if locks.has_member("wait_list"):
            head = _head(stack, at + link, member - link)
            address = None if head is None else head - offsetof(locks, "wait_list")
        else:
            address = _lock_of_ring(stack, at, offsetof(locks, "first_waiter"), link)
        if address is not None:
            yield Object(stack.prog, waits, address=at), address


def _head(stack: Stack, link: int, to_task: int) -> int | None:
    """
    The head of the list that an entry on a task's stack is linked into: what no task's stack has.

    :param link: address of the entry's ``list_head``; :param to_task: from there to its member
        that is the task.
    """
    prog = stack.prog
    try:
        heads = [
            node
            for node in _ring(prog, link)
            if not _on_stack(stack, _word(prog, node + to_task), node)
        ]
    except (FaultError, LookupError):
        return None
    return heads[0] if len(heads) == 1 else None


def _lock_of_ring(stack: Stack, at: int, first: int, link: int) -> int | None:
    """
    The lock whose queue is a ring of waiters alone, and which points to the first of them.

    Its address is on the waiter's stack, which has been using it: "locking/rwsem: Remove the
    list_head from struct rw_semaphore" (1ea4b473504b, in v7.1).
    """
    prog, upper = stack.prog, kernel_byte(stack.prog)
    try:
        waiters = {at, *(node - link for node in _ring(prog, at + link))}
    except (FaultError, LookupError):
        return None
    for word in dict.fromkeys(stack.words.tolist()):
        if not word & 7 and word >> 56 == upper and not stack.start <= word < stack.end:
            with contextlib.suppress(FaultError):
                if _word(prog, word + first) in waiters:
                    return int(word)
    return None


def _entries(stack: Stack, functions: Sequence[str]) -> Iterator[int]:
    """Addresses of what on a stack is a ``struct wait_queue_entry`` with one of these functions."""
    type_ = stack.prog.type("struct wait_queue_entry")
    member, func = offsetof(type_, "private"), offsetof(type_, "func")
    wakes = set()
    for name in functions:
        with contextlib.suppress(LookupError):
            wakes.add(stack.prog.symbol(name).address)
    for place in stack.places():
        with contextlib.suppress(FaultError):
            if _word(stack.prog, place - member + func) in wakes:
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


def _on_stack(stack: Stack, task: int, address: int) -> bool:
    """True if an address is on the stack of what may be a ``struct task_struct *``."""
    if task not in stack.bounds:
        of = Object(stack.prog, "struct task_struct", address=task).address_of_()
        try:
            stack.bounds[task] = _bounds(of)
        except FaultError:
            return False
    return address in stack.bounds[task]


def _bounds(task: Object) -> range:
    """
    The addresses of a task's stack: at least, where nothing says its end.

    :raises FaultError: the task cannot be read.
    """
    begin = task.stack.value_()
    return range(*(stack_bounds(task) or (begin, begin + THREAD_SIZE)))
