# SPDX-License-Identifier: LGPL-2.1-or-later
"""
swiotlb (kernel/dma/swiotlb.c): memory that data of devices goes through, as the device cannot reach
where it is, or may not, in an encrypted guest.

The pool is kept since boot. Each slot of 2 KiB has how many are free from it on
(``io_tlb_slot.list``): none, if it is in use. So as many as ``io_tlb_used`` in debugfs has. In a
dump each is held against the next. Costs a read of all slots, 24 bytes each.

Cannot know: who has the data; pools of devices of their own (restricted-dma-pool), and those that
were added later (CONFIG_SWIOTLB_DYNAMIC); 5.10, whose slots are no structures.
"""

import numpy as np
from drgn import Program, ProgramFlags

from mmscope.drgn.holders.holdings import Holder, Holdings
from mmscope.drgn.reading.kernel_arrays import Array, distinct, read_array, struct_dtype
from mmscope.drgn.tables.display import plural

MOST_SLOTS = 1 << 22
SLOT_SHIFT = 11  # IO_TLB_SHIFT
MOST_AREAS = 1 << 13
SEGMENT = 128  # IO_TLB_SEGSIZE


def add_bounce_buffers(prog: Program, found: Holdings) -> None:
    """Pages with slots in use; the number of objects is that of slots."""
    if "io_tlb_default_mem" not in prog:
        return
    pool = prog["io_tlb_default_mem"]
    # "swiotlb: separate memory pool data from other allocator data" (158dbe9c9a3d, in v6.6)
    if hasattr(pool, "defpool"):
        pool = pool.defpool
    count = min(int(pool.nslabs.value_()), MOST_SLOTS)
    if not count or not pool.slots:
        return
    dtype = struct_dtype(prog.type("struct io_tlb_slot"), {"list": "list"})
    parts = [*read_array(prog, pool.slots.value_(), count, dtype, found.gaps)]
    if not prog.flags & ProgramFlags.IS_LIVE and (number := sum(torn(*part) for part in parts)):
        words = plural(number, "slot is", "slots are")
        found.missing.append(f"swiotlb: {words} not as free as the next says")
    used = [at + np.flatnonzero(slots["list"] == 0) for at, slots in parts]
    slots = np.concatenate([np.empty(0, np.int64), *used])
    areas = getattr(pool, "areas", None)  # since v6.0
    if areas and not prog.flags & ProgramFlags.IS_LIVE:
        said = sum(int(areas[at].used) for at in range(min(int(pool.nareas), MOST_AREAS)))
        # An area has a lock and counts one mapping at a time: a segment at most.
        if abs(said - len(slots)) > SEGMENT * int(pool.nareas):
            found.missing.append(f"swiotlb: {len(slots):,} slots are in use, by its count {said:,}")
    shift = int(prog["PAGE_SHIFT"].value_())
    pages = distinct((int(pool.start.value_()) >> shift) + (slots >> (shift - SLOT_SHIFT)))
    if len(pages):
        found.frames(Holder("swiotlb", "in use"), 0, pages.astype(np.int64), objects=len(slots))


def torn(first: int, slots: Array) -> int:
    """
    Free slots whose number is not one more than that of the next. The last of a segment has one.
    """
    free = slots["list"].astype(np.int64)
    last = (first + np.arange(len(free))) % SEGMENT == SEGMENT - 1
    after = np.where(last, 0, np.append(free[1:], free[-1:] - 1))
    return int(((free != 0) & (free != after + 1)).sum())
