# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Queues that sleeping tasks are in, found on their own stacks, without debug info.

A task that waits keeps its place in the queue on its stack: ``struct rwsem_waiter``,
``mutex_waiter``, ``wait_page_queue``, ``swait_queue`` and ``wait_queue_entry`` all have a pointer
to the task, and a link in a ring that leads to what is waited for. So a word of the stack that is
the task's own address is tried as that member of each; it is taken where the ring comes back, and
what the ring hangs on is the answer. Costs the words from the stack pointer up, a few KiB, and a
read for each task of the same queue.

A task that waits for the readers of a VMA is noted in its mm (``vma_writer_wait``); one that is
held back by dirty pages polls, with the ``struct bdi_writeback`` on its stack; one that is held
back at memory.high sleeps for a time, and of its cgroups one is over.

With PREEMPT_RT locks are built on an rt_mutex, and each task notes what it is blocked on. A writer
that has the rt_mutex of a ``struct rw_semaphore`` and waits for the readers to leave is queued
nowhere: it has the lock on its stack (``rwbase_write_lock()``, kernel/locking/rwbase_rt.c).

Cannot know: who holds a folio's lock (the kernel notes no task), nor of a read lock more than the
reader that took it last; what a task waits for that polls, or that sleeps in a driver's own way.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from drgn import FaultError, Object, Program, container_of, offsetof
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.cgroups.cgroup_paths import MOST_LEVELS
from mmscope.drgn.opening.constants import kernel_byte
from mmscope.drgn.reading.rwsem_counts import READER_SHIFT, lock_state
from mmscope.drgn.rmap.rwsem_waiters import OWNER_FLAGS, count_and_owner, holder
from mmscope.drgn.waits.fuse import conn_of
from mmscope.drgn.waits.stacks import Stack

# VM_REFCNT_EXCLUDE_READERS_FLAG (include/linux/mm_types.h), VMA_LOCK_OFFSET in v6.15
EXCLUDES_READERS = 1 << 30
PICKUP = 4  # MUTEX_FLAG_PICKUP (kernel/locking/mutex.h): handed to one that has not woken up yet
# What wakes a task that waits in a queue by itself (kernel/sched/wait.c, wait_bit.c, core.c).
WAKES = (
    *("autoremove_wake_function", "default_wake_function", "woken_wake_function"),
    *("wake_bit_function", "var_wake_function"),
)
LINK = "wait_queue_entry"
MAX_WRITEBACKS = MAX_RING = 1 << 16
# enum pageflags: PG_locked, PG_writeback. Their numbers are asked for.
PAGE_BITS = {"PG_locked": "folio lock", "PG_writeback": "writeback"}


@dataclass(frozen=True, slots=True)
class Awaited:
    """
    Object that a task is queued on.

    :ivar kind: in words; :ivar address: of the lock, folio, completion or head of the queue.
    :ivar holder: ``struct task_struct *``, None where the kernel notes no task.
    :ivar readers: that have it, 0 where it is not read or that is not counted.
    :ivar is_free: no task has it, by the lock itself.
    :ivar queue: addresses of the tasks in its queue, where they were looked at.
    :ivar bdi: of the device or server that has to finish it; 0: of none, or not known.
    """

    kind: str
    address: int
    holder: Object | None = None
    holder_is: str | None = None
    readers: int = 0
    is_free: bool = False
    queue: frozenset[int] = frozenset()
    bdi: int = 0

    @property
    def end(self) -> int:
        """Address of what a chain ends at that no task holds."""
        return self.bdi or self.address


def awaited(stack: Stack, frames: Sequence[str]) -> Awaited | None:
    """
    Find what a task that sleeps is queued on; None where it is on no queue that is known.

    :param frames: its functions, by which the form is known.
    """
    text = "\n".join(frames)
    for inside, find in FORMS.items():
        if inside in text:
            try:
                if (found := find(stack)) is not None:
                    return found
            except (FaultError, LookupError):
                continue  # of another form, or it changes while it is read
    return None


def _rwsem(stack: Stack) -> Awaited | None:
    for waiter, address, queue in _locks("struct rwsem_waiter", "struct rw_semaphore", stack):
        lock = Object(stack.prog, "struct rw_semaphore", address=address)
        count, word = count_and_owner(lock)
        kind = f"rwsem, to {'read' if waiter.type.value_() else 'write'}"
        readers, state = max(count >> READER_SHIFT, 0), lock_state(count)
        free = state in ("free", "changing hands")
        has_it = holder(stack.prog, word, count)
        return Awaited(kind, address, *has_it, 0 if state == "write" else readers, free, queue)
    return None


def _mutex(stack: Stack) -> Awaited | None:
    for _, address, queue in _locks("struct mutex_waiter", "struct mutex", stack):
        word = Object(stack.prog, "struct mutex", address=address).owner.counter.value_()
        if word & PICKUP:
            return Awaited("mutex", address)
        found = _owned("mutex", address, word, stack)
        return replace(found, is_free=found.holder is None, queue=queue)
    return None


def _rt_mutex(stack: Stack) -> Awaited | None:
    if not (waiter := stack.task.pi_blocked_on):
        return None
    return _owned("rt_mutex", waiter.lock.value_(), waiter.lock.owner.value_(), stack)


def _rwbase(wants: str, stack: Stack) -> Awaited | None:
    """A ``struct rw_semaphore`` of PREEMPT_RT: its rt_mutex, or its readers."""
    prog = stack.prog
    type_ = prog.type("struct rw_semaphore")
    mutex = offsetof(type_, "rwbase.rtmutex")
    if waiter := stack.task.pi_blocked_on:
        lock = Object(prog, type_, address=waiter.lock.value_() - mutex)
        count, _ = count_and_owner(lock)
        word = waiter.lock.owner.value_()
        found = _owned(f"rwsem, to {wants}", lock.address_ or 0, word, stack)
        # Who has the rt_mutex may still wait for readers.
        return replace(found, holder_is="writer" if lock_state(count) == "write" else "owner")
    for word in _pointers(stack):
        for address in (word, word - mutex):
            lock = Object(prog, type_, address=address)
            with contextlib.suppress(FaultError):
                owner = lock.rwbase.rtmutex.owner.value_() & ~OWNER_FLAGS
                count, _ = count_and_owner(lock)
                if owner == stack.task.value_() and lock_state(count) == "read":
                    return Awaited("rwsem, to write", address, readers=count >> READER_SHIFT)
    return None


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


def _percpu_rwsem(stack: Stack) -> Awaited | None:
    """
    ``percpu_rwsem_wait()`` (kernel/locking/percpu-rwsem.c): a file system is frozen, or memory
    hotplug is under way. The kernel notes no writer that has it.
    """
    lock, link = (stack.prog.type(f"struct {name}") for name in ("percpu_rw_semaphore", LINK))
    member, entry = offsetof(link, "private"), offsetof(link, "entry")
    for at in _entries(stack, ("percpu_rwsem_wake_function",)):
        if (head := _head(stack, at + entry, member - entry)) is not None:
            return Awaited("percpu rwsem", head - offsetof(lock, "waiters.head"))
    return None


def _vma(stack: Stack) -> Awaited | None:
    """
    The VMA whose readers a task waits for, ``__vma_start_exclude_readers()`` (mm/mmap_lock.c),
    ``__vma_enter_locked()`` in v6.15.
    """
    prog = stack.prog
    type_ = prog.type("struct vm_area_struct")
    for word in _pointers(stack):
        vma = Object(prog, type_, address=word)
        with contextlib.suppress(FaultError):
            count = vma.vm_refcnt.refs.counter.value_()
            waits = vma.vm_mm.vma_writer_wait.task.value_() if count & EXCLUDES_READERS else 0
            if waits == stack.task.value_():
                # One is that of its being in the tree, until it is detached.
                readers = max((count & EXCLUDES_READERS - 1) - 1, 0)
                return Awaited("VMA lock, to write", word, readers=readers)
    return None


def _dirty(stack: Stack) -> Awaited | None:
    """The device or server whose dirty pages hold a task back: ``balance_dirty_pages()``."""
    prog = stack.prog
    known = writeback_of(prog)
    for word in _pointers(stack):
        if word in known:
            return Awaited("dirty pages", known[word], bdi=known[word])
    return None


def _high(stack: Stack) -> Awaited | None:
    """
    The first cgroup from that of the task up that is over its memory.high, by the address of its
    ``struct cgroup``: ``mem_cgroup_handle_over_high()`` (mm/memcontrol.c).
    """
    prog = stack.prog
    owner = getattr(stack.task.mm, "owner", None) or stack.task
    css = owner.cgroups.subsys[prog.constant("memory_cgrp_id").value_()].read_()
    for _ in range(MOST_LEVELS):
        if not css:
            break
        group = container_of(css, "struct mem_cgroup", "css")
        for counter in (group.memory, group.swap):
            if counter.usage.counter.value_() > counter.high.value_():
                return Awaited("memory.high", css.cgroup.value_())
        css = css.parent.read_()
    return None


def _fuse(stack: Stack) -> Awaited | None:
    """The connection to the server whose answer a task waits for: ``request_wait_answer()``."""
    if (found := _queue(stack)) is None:
        return None
    request = found.address - offsetof(stack.prog.type("struct fuse_req"), "waitq")
    return Awaited("FUSE request", conn_of(request, stack.prog))


def _bit(stack: Stack) -> int | None:
    """Address of the word in which a bit is waited for: ``wait_on_bit()`` (kernel/sched)."""
    type_ = stack.prog.type("struct wait_bit_queue_entry")
    for entry in _entries(stack, ("wake_bit_function",)):
        at = entry - offsetof(type_, "wq_entry")
        return int(Object(stack.prog, type_, address=at).key.flags.value_())
    return None


def _rpc(stack: Stack) -> Awaited | None:
    """
    The ``struct rpc_clnt`` whose server has not answered: ``__rpc_execute()`` (net/sunrpc/sched.c).
    """
    type_ = stack.prog.type("struct rpc_task")
    if (word := _bit(stack)) is None:
        return None
    task = Object(stack.prog, type_, address=word - offsetof(type_, "tk_runstate"))
    return Awaited("RPC", task.tk_client.value_())


def _any_bit(stack: Stack) -> Awaited | None:
    return None if (word := _bit(stack)) is None else Awaited("bit", word)


def writeback_of(prog: Program) -> dict[int, int]:
    """Address of its bdi by each ``struct backing_dev_info`` and ``struct bdi_writeback``."""
    found: dict[int, int] = {}
    head = prog["bdi_list"].address_of_()
    for bdi in _bounded(list_for_each_entry("struct backing_dev_info", head, "bdi_list")):
        own = bdi.value_()
        found[own] = found[bdi.wb.address_of_().value_()] = own
        writebacks = list_for_each_entry(
            "struct bdi_writeback", bdi.wb_list.address_of_(), "bdi_node"
        )
        found |= {wb.value_(): own for wb in _bounded(writebacks)}
    return found


def _bounded(entries: Iterator[Object]) -> Iterator[Object]:
    return itertools.islice(entries, MAX_WRITEBACKS)


def _pointers(stack: Stack) -> list[int]:
    """The words of a stack that may point to what is no stack, each once."""
    upper = kernel_byte(stack.prog)
    return [
        int(word)
        for word in dict.fromkeys(stack.words.tolist())
        if not word & 7 and word >> 56 == upper and not stack.start <= word < stack.end
    ]


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
FORMS: dict[str, Callable[[Stack], Awaited | None]] = {
    "__vma_start_": _vma,
    "__vma_e": _vma,
    "vma_mark_detached": _vma,
    "percpu_": _percpu_rwsem,
    "balance_dirty_pages": _dirty,
    "rwsem_down_": _rwsem,
    "__mutex_lock": _mutex,
    "rwbase_read_lock": functools.partial(_rwbase, "read"),
    "rwbase_write_lock": functools.partial(_rwbase, "write"),
    "rt_mutex": _rt_mutex,
    "rtlock": _rt_mutex,
    "folio_wait_bit": _page,
    "wait_on_page_bit": _page,
    "__lock_page": _page,
    "__folio_lock": _page,
    "wait_for_co": _completion,
    "rpc_wait_bit": _rpc,
    "wait_on_bit": _any_bit,
    "request_wait_answer": _fuse,
    "mem_cgroup_handle_over_high": _high,
    "schedule": _queue,
}


def _locks(waiter: str, lock: str, stack: Stack) -> Iterator[tuple[Object, int, frozenset[int]]]:
    """Waiters of a type on a stack, the lock in whose queue each is, and the tasks in that."""
    waits, locks = stack.prog.type(waiter), stack.prog.type(lock)
    member, link = offsetof(waits, "task"), offsetof(waits, "list")
    for place in stack.places():
        at = place - member
        if locks.has_member("wait_list"):
            found = _queue_of(stack, at + link, member - link)
            address = None if found is None else found[0] - offsetof(locks, "wait_list")
        else:
            first = offsetof(locks, "first_waiter")
            address = _lock_of_ring(stack, at, first, link, member)
            found = stack.shared.queues.get(at + link)
        if address is not None:
            yield Object(stack.prog, waits, address=at), address, found[1] if found else frozenset()


def _head(stack: Stack, link: int, to_task: int) -> int | None:
    """
    The head of the list that an entry on a task's stack is linked into: what no task's stack has.

    :param link: address of the entry's ``list_head``; :param to_task: from there to its member
        that is the task.
    """
    found = _queue_of(stack, link, to_task)
    return None if found is None else found[0]


def _queue_of(stack: Stack, link: int, to_task: int) -> tuple[int, frozenset[int]] | None:
    """The head of such a list, and the tasks in it."""
    known, prog = stack.shared.queues, stack.prog
    if link in known:
        return known[link]
    try:
        nodes = [link, *_ring(prog, link)]
        tasks = {node: _word(prog, node + to_task) for node in nodes}
    except (FaultError, LookupError):
        return None
    heads = [node for node, task in tasks.items() if not _on_stack(stack, task, node)]
    if len(heads) != 1:
        return None
    (head,) = heads
    del tasks[head]
    known.update(dict.fromkeys(tasks, (head, frozenset(tasks.values()))))
    return known[link]


def _lock_of_ring(stack: Stack, at: int, first: int, link: int, member: int) -> int | None:
    """
    The lock whose queue is a ring of waiters alone, and which points to the first of them.

    Its address is on the waiter's stack, which has been using it: "locking/rwsem: Remove the
    list_head from struct rw_semaphore" (1ea4b473504b, in v7.1).
    """
    prog, known = stack.prog, stack.shared.queues
    if at + link in known:
        return known[at + link][0]
    try:
        waiters = {at, *(node - link for node in _ring(prog, at + link))}
        tasks = frozenset(_word(prog, waiter + member) for waiter in waiters)
    except (FaultError, LookupError):
        return None
    for word in _pointers(stack):
        with contextlib.suppress(FaultError):
            if _word(prog, word + first) in waiters:
                known.update(dict.fromkeys((each + link for each in waiters), (word, tasks)))
                return word
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
    for _ in range(MAX_RING):
        if _word(prog, node + 8) != before:
            break
        if node == link:
            return
        yield node
        node, before = _word(prog, node), node
    raise LookupError("not a ring")


def _on_stack(stack: Stack, task: int, address: int) -> bool:
    """True if an address is on the stack of what may be a ``struct task_struct *``."""
    of = Object(stack.prog, stack.task.type_, value=task)
    try:
        return address in stack.shared.bounds_of(of)
    except FaultError:
        return False
