# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page faults that are under way: ``struct vm_fault`` on the stack of the task, and the lock that it
holds for reading.

A fault keeps what it is about on the stack (``__handle_mm_fault()``, mm/memory.c): the VMA, the
address, and flags that say whether it came with the VMA's own lock or with the mmap_lock. So a
reader of these locks has a name, which the locks themselves do not note. A place on a stack is
taken where the address is in the VMA and its page offset is the VMA's. Costs a read for each word
of a stack that is followed by an address of user space.

Cannot know: faults on hugetlb, which keep it elsewhere; readers of a lock that are in no fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from drgn import FaultError, Object, Program, offsetof

from mmscope.drgn.opening.constants import kernel_byte
from mmscope.drgn.reading.rwsem_counts import lock_state
from mmscope.drgn.rmap.rwsem_waiters import count_and_owner
from mmscope.drgn.waits.stacks import Stack
from mmscope.drgn.waits.waiters import EXCLUDES_READERS

# enum fault_flag (include/linux/mm_types.h); before v5.14 macros of the same values
ALLOW_RETRY, TRIED, VMA_LOCK = 1 << 2, 1 << 5, 1 << 12
# FAULT_FLAG_WRITE | FAULT_FLAG_MKWRITE: all flags while do_page_mkwrite() (mm/memory.c) asks the
# file system.
ASKING = 1 << 0 | 1 << 1
# It let its lock go before it slept there: handle_userfault(), always.
LETS_GO = ("handle_userfault",)
# These let it go the first time that the fault is tried, if they may: maybe_unlock_mmap_for_io()
# (mm/internal.h), __folio_lock_or_retry() (mm/filemap.c).
MAY_LET_GO = ("filemap_fault", "shmem_fault", "lock_or_retry", "lock_page_or_retry")


@dataclass(frozen=True, slots=True)
class Fault:
    """
    A page fault under way.

    :ivar vma: ``struct vm_area_struct *``; :ivar address: that is faulted on.
    :ivar by_vma: it came with the VMA's lock, not with the mmap_lock.
    :ivar holds: it has that lock still; False: it let it go, or may have, or it is not known which
        of the two it has.
    """

    vma: Object
    address: int
    by_vma: bool
    holds: bool

    @property
    def lock(self) -> int:
        """Address of the lock that it came with, as :mod:`waiters` has it."""
        if not self.by_vma:
            return int(self.vma.vm_mm.mmap_lock.address_)
        return vma_lock(self.vma)


def vma_lock(vma: Object) -> int:
    """
    Address that stands for the lock of a VMA: its own since "mm: replace vm_lock and detached flag
    with a reference count" (f35ab95ca0af, in v6.15); before, its rwsem, in an object of its own or
    in the VMA.
    """
    if not hasattr(vma, "vm_lock"):
        return int(vma.value_())
    return int(vma.vm_lock.lock.address_)


def fault_of(stack: Stack, frames: Sequence[str]) -> Fault | None:
    """Find the page fault that a task is in; None where there is none, or not one of ours."""
    if not any("handle_mm_fault" in frame for frame in frames):
        return None
    for vma, address, flags in _faults(stack):
        retried = flags & TRIED or not flags & ALLOW_RETRY
        gone = LETS_GO if retried else LETS_GO + MAY_LET_GO
        holds = not any(name in frame for name in gone for frame in frames)
        by_vma = _by_vma(vma) if flags == ASKING else bool(flags & VMA_LOCK)
        return Fault(vma, address, bool(by_vma), holds and by_vma is not None)
    return None


def _by_vma(vma: Object) -> bool | None:
    """The lock that a fault without its flags has: the one that is read; None if both are."""
    if hasattr(vma, "vm_refcnt"):
        own = vma.vm_refcnt.refs.counter.value_() & EXCLUDES_READERS - 1 > 1
    else:
        own = hasattr(vma, "vm_lock") and _is_read(vma.vm_lock.lock)
    return None if own == _is_read(vma.vm_mm.mmap_lock) else own


def _is_read(rwsem: Object) -> bool:
    count, _ = count_and_owner(rwsem)
    return lock_state(count) == "read"


def _faults(stack: Stack) -> list[tuple[Object, int, int]]:
    """The ``struct vm_fault`` on a stack, the innermost first: VMA, address, flags."""
    prog, type_ = stack.prog, stack.prog.type("struct vm_fault")
    members = [offsetof(type_, name) for name in ("vma", "address", "pgoff", "flags")]
    at_vma, at_address, at_offset, at_flags = members
    ahead = (at_address - at_vma) // 8
    first, second = stack.words[: -ahead or None], stack.words[ahead:]
    fits = (first >> np.uint64(56) == kernel_byte(prog)) & (first & np.uint64(7) == 0)
    fits &= (second >> np.uint64(56) == 0) & (second != 0)
    found = []
    for at in np.flatnonzero(fits).tolist():
        begin = stack.start + 8 * at - at_vma
        try:
            vma = Object(prog, "struct vm_area_struct *", int(first[at]))
            address, offset = prog.read_u64(begin + at_address), prog.read_u64(begin + at_offset)
            if _is_in(prog, vma, address, offset):
                found.append((vma, address, prog.read_u32(begin + at_flags)))
        except FaultError:
            continue
    return found


def _is_in(prog: Program, vma: Object, address: int, offset: int) -> bool:
    """True if what may be a VMA is one and has an address, at a page offset in its file."""
    start, end = vma.vm_start.value_(), vma.vm_end.value_()
    page = int(prog["PAGE_SHIFT"].value_())
    if (start | end) & (1 << page) - 1 or vma.vm_mm.value_() >> 56 != kernel_byte(prog):
        return False
    pages = (address - start) >> page
    return start <= address < end and bool(vma.vm_pgoff.value_() + pages == offset)
