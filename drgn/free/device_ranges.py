# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Ranges of device memory with struct pages (``ZONE_DEVICE``): persistent memory, DAX, GPUs.

Reads ``pgmap_array``. Costs next to nothing: a pagemap has an entry for each of its ranges.

Cannot know: a pagemap whose device is just being removed may be gone from the array before its
struct pages are.
"""

from dataclasses import dataclass

import numpy as np
from drgn import FaultError, Object, Program
from drgn.helpers.linux.xarray import xa_for_each

from mmscope.drgn.reading.kernel_arrays import Bools, U64s

PGMAP_ALTMAP_VALID = 1  # include/linux/memremap.h, a macro
MAX_PAGEMAPS = 1 << 16
MAX_RANGES = 1 << 10  # of one pagemap
MAX_ADDRESS = 1 << 56  # of physical memory


@dataclass(frozen=True, slots=True)
class PagemapRange:
    """A range of a pagemap, before the vmemmap is walked."""

    start_pfn: int
    end_pfn: int
    type: str
    vmemmap_shift: int
    altmap: bool
    # Pages of an altmap, whose struct pages are not initialised with the others.
    altmap_pages: int = 0

    @property
    def pages(self) -> int:
        """Pages whose struct pages are initialised by memmap_init_zone_device(), shared or not."""
        return self.end_pfn - self.start_pfn - self.altmap_pages


def pagemap_ranges(prog: Program) -> tuple[list[PagemapRange], str]:
    """
    The ranges of all pagemaps, and why there may be more, if so.

    :raises LookupError: the kernel is built without ZONE_DEVICE.
    """
    page_shift = prog["PAGE_SHIFT"].value_()
    seen: set[int] = set()
    ranges: list[PagemapRange] = []
    compound = has_compound_pages(prog)
    try:
        for number, (_, entry) in enumerate(xa_for_each(prog["pgmap_array"].address_of_())):
            address = entry.value_()
            if number == MAX_PAGEMAPS:
                return ranges, f"the array of device pagemaps has more than {number:,} entries"
            if address in seen:
                continue
            seen.add(address)
            pagemap = Object(prog, "struct dev_pagemap *", value=address)
            altmap = bool(pagemap.flags.value_() & PGMAP_ALTMAP_VALID)
            first = pagemap.member_("range").address_of_()
            for at in range(min(pagemap.nr_range.value_(), MAX_RANGES)):
                start, last = first[at].start.value_(), first[at].end.value_()
                if not start < last < MAX_ADDRESS:
                    return ranges, f"a device pagemap has an impossible range, {start:#x}-{last:#x}"
                start_pfn, end_pfn = start >> page_shift, (last + 1) >> page_shift
                held = 0
                if altmap:
                    # vmem_altmap_offset(); a pagemap with an altmap has one range.
                    base = pagemap.altmap.base_pfn + pagemap.altmap.reserve + pagemap.altmap.free
                    held = min(max(base.value_() - start_pfn, 0), end_pfn - start_pfn)
                ranges.append(
                    PagemapRange(
                        start_pfn,
                        end_pfn,
                        _type_name(pagemap.type),
                        pagemap.vmemmap_shift.value_() if compound else 0,
                        altmap,
                        held,
                    )
                )
    except (FaultError, ValueError) as error:
        return ranges, f"the array of device pagemaps breaks off: {error}"
    return sorted(ranges, key=lambda each: each.start_pfn), ""


def has_compound_pages(prog: Program) -> bool:
    """
    True if device memory can have pages of more than a base page: since "mm/memremap: add
    ZONE_DEVICE support for compound pages" (c4386bd8ee3a, in v5.17).
    """
    return bool(prog.type("struct dev_pagemap").has_member("vmemmap_shift"))


def _type_name(type_: Object) -> str:
    names = {value: name for name, value in type_.type_.enumerators or ()}
    return str(names.get(type_.value_(), type_.value_())).removeprefix("MEMORY_DEVICE_")


class DeviceMemory:
    """
    Memory of devices that has struct pages, and whether what huge entries map of it (DAX) counts as
    resident.

    It does since "mm/huge_memory: add vmf_insert_folio_pmd()" and its like for PUDs, with which DAX
    counts references of its pages as others do (in v6.15). Before, such an entry has a bit of its
    own (``_PAGE_DEVMAP``, ``PTE_DEVMAP``), which is another one on different kernels.
    """

    def __init__(self, prog: Program) -> None:
        try:
            ranges, _ = pagemap_ranges(prog)
        except LookupError:
            ranges = []  # built without ZONE_DEVICE
        page_shift = prog["PAGE_SHIFT"].value_() if ranges else 0
        edges = sorted(
            (each.start_pfn << page_shift, each.end_pfn << page_shift) for each in ranges
        )
        self.edges = np.array(edges, np.uint64).ravel()
        try:
            prog.symbol("vmf_insert_folio_pmd")
            self.counted = True
        except LookupError:
            self.counted = False

    def has(self, physical: U64s) -> Bools:
        """True for each address of a device."""
        inside: Bools = np.searchsorted(self.edges, physical, side="right") % 2 == 1
        return inside
