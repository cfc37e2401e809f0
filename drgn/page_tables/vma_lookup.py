# SPDX-License-Identifier: LGPL-2.1-or-later
"""
In which ``struct vm_area_struct`` an address lies, and how much is mapped below it, of many
addresses of many processes at once.

Costs a bisection for each address, and 50 bytes of memory for each VMA.

Cannot know: addresses of more than 57 bits.
"""

import numpy as np

from mmscope.drgn.processes.vm_areas import (
    VM_HUGETLB,
    VM_LOCKED,
    VM_MIXEDMAP,
    VM_PFNMAP,
    VM_SHARED,
    VmAreas,
)
from mmscope.drgn.reading.kernel_arrays import Bools, S64s, U64s, distinct


class VmaLookup:
    """The VMAs of all processes, to be asked for many addresses at once."""

    # The process above the page number of an address, which has 45 bits at most.
    SHIFT = np.uint64(45)

    def __init__(self, areas: VmAreas, page_shift: int) -> None:
        self.page_shift = np.uint64(page_shift)
        self.starts = self.key(areas.owners, areas.starts)
        self.pages = (areas.ends - areas.starts) >> self.page_shift
        flags = areas.flags
        # Behind the last VMA's is what holds for an address in none (-1).
        self.hugetlb = np.append((flags & np.uint64(VM_HUGETLB)) != 0, False)
        # Of huge entries; those of DAX, whose VMAs have neither, are in DeviceMemory.
        self.uncounted = np.append((flags & np.uint64(VM_PFNMAP | VM_MIXEDMAP)) != 0, False)
        self.locked = np.append((flags & np.uint64(VM_LOCKED)) != 0, False)
        self.lockers = distinct(areas.owners[self.locked[:-1]])
        # __oom_reap_task_mm()
        reaped = (flags & np.uint64(VM_HUGETLB | VM_PFNMAP)) == 0
        reaped &= areas.anonymous | ((flags & np.uint64(VM_SHARED)) == 0)
        # All pages, and those that are reaped: of each VMA, and of all before it.
        self.both = np.stack([self.pages, self.pages * reaped])
        self.before = np.cumsum(self.both, axis=1, dtype=np.uint64) - self.both

    def key(self, owners: S64s, addresses: U64s) -> U64s:
        key: U64s = owners.astype(np.uint64) << self.SHIFT
        key |= addresses >> self.page_shift
        return key

    def find(self, keys: U64s) -> S64s:
        """The VMA that each address lies in, or -1."""
        at = np.searchsorted(self.starts, keys, side="right").astype(np.int64) - 1
        if not len(self.starts):
            return at
        inside = (at >= 0) & (keys - self.starts[at] < self.pages[at])
        return np.where(inside, at, -1)

    def is_locked(self, owners: S64s, addresses: U64s) -> Bools:
        """The address lies in a VMA that is mlock()ed."""
        result = np.isin(owners, self.lockers)
        some = np.flatnonzero(result)
        result[some] = self.locked[self.find(self.key(owners[some], addresses[some]))]
        return result

    def pages_between(self, first: U64s, stop: U64s) -> S64s:
        """Mapped pages from each address to another one, and those that are reaped."""
        return self._pages_below(stop) - self._pages_below(first)

    def _pages_below(self, keys: U64s) -> S64s:
        """Pages below each address, in its own process and in all before that."""
        if not len(self.starts):
            return np.zeros((2, len(keys)), np.int64)
        at = np.searchsorted(self.starts, keys, side="right").astype(np.int64) - 1
        within = np.minimum(keys - self.starts[at], self.both[:, at])
        return np.where(at < 0, 0, self.before[:, at] + within).astype(np.int64)
