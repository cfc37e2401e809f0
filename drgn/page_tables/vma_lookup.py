# SPDX-License-Identifier: LGPL-2.1-or-later
"""
In which ``struct vm_area_struct`` an address lies, and how much is mapped below it, of many
addresses of many processes at once.

Costs a bisection for each address, and 50 bytes of memory for each VMA.

Cannot know: addresses of more than 57 bits.
"""

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.processes.vm_areas import (
    VM_HUGETLB,
    VM_LOCKED,
    VM_MIXEDMAP,
    VM_PFNMAP,
    VM_SHARED,
    VmAreas,
)
from mmscope.drgn.reading.kernel_arrays import distinct


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
        self.before = self._sums(self.pages)
        self.reaped = np.where(reaped, self.pages, 0).astype(np.uint64)
        self.reaped_before = self._sums(self.reaped)

    @staticmethod
    def _sums(pages: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.concatenate([np.zeros(1, np.uint64), np.cumsum(pages, dtype=np.uint64)])

    def key(self, owners: NDArray[np.int64], addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
        key: NDArray[np.uint64] = owners.astype(np.uint64) << self.SHIFT
        key |= addresses >> self.page_shift
        return key

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The VMA that each address lies in, or -1."""
        at = np.searchsorted(self.starts, keys, side="right").astype(np.int64) - 1
        if not len(self.starts):
            return at
        inside = (at >= 0) & (keys - self.starts[at] < self.pages[at])
        return np.where(inside, at, -1)

    def is_locked(
        self, owners: NDArray[np.int64], addresses: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """The address lies in a VMA that is mlock()ed."""
        result = np.isin(owners, self.lockers)
        some = np.flatnonzero(result)
        result[some] = self.locked[self.find(self.key(owners[some], addresses[some]))]
        return result

    def pages_between(
        self, first: NDArray[np.uint64], behind: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Mapped pages from each address to another one, and those that are reaped."""
        low, high = self._pages_below(first), self._pages_below(behind)
        return high[0] - low[0], high[1] - low[1]

    def _pages_below(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """In all processes before its own and there."""
        if not len(self.starts):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        at = np.searchsorted(self.starts, keys, side="right").astype(np.int64) - 1
        beyond = keys - self.starts[at]
        all_pages, reaped = (
            np.where(at < 0, 0, before[at] + np.minimum(beyond, pages[at])).astype(np.int64)
            for pages, before in ((self.pages, self.before), (self.reaped, self.reaped_before))
        )
        return all_pages, reaped
