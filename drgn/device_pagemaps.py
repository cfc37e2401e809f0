# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct dev_pagemap``: memory of devices that has struct pages (persistent memory, DAX, GPUs).

The struct pages of a terabyte of persistent memory take 16 GiB. They lie in RAM, or on the device
itself (an *altmap*); and where the device is used in pages of 2 MiB or 1 GiB (``vmemmap_shift``)
and has no altmap, those of each page's tails share one frame, so that two of the 8 or 4,096 frames
of a page remain.

Reads ``pgmap_array``, and takes what lies where from the walk over the vmemmap. Costs next to
nothing: a pagemap has an entry for each of its ranges.

Cannot know: a pagemap whose device is just being removed may be gone from the array before its
struct pages are.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program
from drgn.helpers.linux.xarray import xa_for_each
from rows import MOST_BYTES, column
from vmemmap import Leaves, Memmap

PGMAP_ALTMAP_VALID = 1  # include/linux/memremap.h, a macro
# Kept of a page's struct pages: VMEMMAP_RESERVE_NR (mm/sparse-vmemmap.c), its head's frame and one
# for all others.
RESERVED_PAGES = 2
MAX_PAGEMAPS = 1 << 16
MAX_RANGES = 1 << 10  # of one pagemap
MAX_NAME = 64
MAX_ADDRESS = 1 << 56  # of physical memory


@dataclass(frozen=True)
class DevicePagemap:
    """A range of a device's memory that has struct pages."""

    start: str = column(holds="kernel", key=True, help="physical address")
    end: str = column(holds="kernel", help="physical address behind the last byte")
    name: str = column(
        holds="kernel", help="of the innermost resource at its end, as in /proc/iomem"
    )
    type: str = column(
        holds="kernel", help="GENERIC is device-dax, FS_DAX a pmem disk or its file system"
    )
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="of device memory")
    vmemmap_shift: int = column(help="its pages are 1 << vmemmap_shift base pages")
    altmap: bool = column(help="the struct pages lie on the device itself")
    memmap_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="of struct pages: addresses, not memory"
    )
    ram_bytes: int = column(unit="bytes", help="of frames that they take in RAM")
    altmap_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="of frames that they take on the device"
    )
    vmemmap_saved_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="saved by tails that share a frame"
    )
    vmemmap_reclaimable_bytes: int = column(
        unit="bytes",
        high=MOST_BYTES,
        help="of RAM that pages of 2 MiB (device-dax with align=2M, no altmap) would save",
    )


@dataclass(frozen=True)
class PagemapRange:
    """What the kernel says of a range, before the vmemmap is walked."""

    start_pfn: int
    end_pfn: int
    type: str
    vmemmap_shift: int
    altmap: bool


def pagemap_ranges(prog: Program) -> tuple[list[PagemapRange], str]:
    """
    The ranges of all pagemaps, and why there may be more, if so.

    :raises LookupError: the kernel is built without ZONE_DEVICE.
    """
    page_shift = prog["PAGE_SHIFT"].value_()
    seen: set[int] = set()
    ranges: list[PagemapRange] = []
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
                ranges.append(
                    PagemapRange(
                        start >> page_shift,
                        (last + 1) >> page_shift,
                        _type_name(pagemap.type),
                        pagemap.vmemmap_shift.value_(),
                        altmap,
                    )
                )
    except (FaultError, ValueError) as error:
        return ranges, f"the array of device pagemaps breaks off: {error}"
    return sorted(ranges, key=lambda each: each.start_pfn), ""


def _type_name(type_: Object) -> str:
    names = {value: name for name, value in type_.type_.enumerators or ()}
    return str(names.get(type_.value_(), type_.value_())).removeprefix("MEMORY_DEVICE_")


class PagemapsInPageTables:
    """
    Where the struct pages of each range lie; a taker of the vmemmap walk.

    Columns of ``bytes``: mapped, in RAM, on the device, on a frame of others.
    """

    def __init__(self, ranges: list[PagemapRange]) -> None:
        self.ranges = ranges
        self.bytes = np.zeros((len(ranges), 4), np.int64)

    def take(self, where: Memmap, leaves: Leaves) -> None:
        page = 1 << where.page_shift
        offsets = (leaves.addresses - np.uint64(where.base)).astype(np.int64)
        for number, each in enumerate(self.ranges):
            start, end = each.start_pfn * where.page_bytes, each.end_pfn * where.page_bytes
            first = int(np.searchsorted(offsets + leaves.sizes, start, "right"))
            behind = int(np.searchsorted(offsets, end, "left"))
            if first >= behind:
                continue
            part = leaves.part(slice(first, behind))
            low = np.maximum(offsets[first:behind], start)
            high = np.minimum(offsets[first:behind] + part.sizes, end)
            size = high - low
            frame = part.frames + (low - offsets[first:behind]) // page
            inside = (frame >= each.start_pfn) & (frame < each.end_pfn)
            for at, chosen in enumerate(
                (
                    np.ones(len(size), np.bool_),
                    ~part.reused & ~inside,
                    ~part.reused & inside,
                    part.reused,
                )
            ):
                self.bytes[number, at] += int(size[chosen].sum())


def device_pagemaps(
    prog: Program, where: Memmap, tables: PagemapsInPageTables
) -> list[DevicePagemap]:
    """All ranges, ascending."""
    page = 1 << where.page_shift
    names = resource_names(prog, [(each.end_pfn << where.page_shift) - 1 for each in tables.ranges])
    # Of a page of 2 MiB, the last level but one of the page tables.
    large = page // 8 * page
    kept = large // page * where.page_bytes - RESERVED_PAGES * page
    optimizable = not where.page_bytes & (where.page_bytes - 1)
    rows = []
    for each, name, amounts in zip(tables.ranges, names, tables.bytes.tolist(), strict=True):
        mapped, ram, on_device, reused = amounts
        size = (each.end_pfn - each.start_pfn) << where.page_shift
        could = max(kept * (size // large) - reused, 0) if optimizable and ram else 0
        rows.append(
            DevicePagemap(
                f"{each.start_pfn << where.page_shift:#x}",
                f"{each.end_pfn << where.page_shift:#x}",
                name,
                each.type,
                size,
                each.vmemmap_shift,
                each.altmap,
                mapped,
                ram,
                on_device,
                reused,
                could,
            )
        )
    return rows


def resource_names(prog: Program, addresses: list[int]) -> list[str]:
    """The innermost resource that each physical address lies in, as in /proc/iomem."""
    names = []
    for address in addresses:
        name = ""
        try:
            resource = prog["iomem_resource"].child
            # Siblings ascend; a damaged tree ends the search, not the reading.
            for _ in range(MAX_PAGEMAPS):
                if not resource:
                    break
                if resource.start.value_() <= address <= resource.end.value_():
                    text = b""
                    if resource.name:
                        text = prog.read_c_string(resource.name, max_size=MAX_NAME)
                    name = text.decode("utf-8", "backslashreplace")
                    resource = resource.child
                else:
                    resource = resource.sibling
        except FaultError:
            pass
        names.append(name)
    return names


if __name__ == "__main__":
    from terminal import run_script
    from vmemmap import scan_vmemmap

    def tables(prog: Program) -> list[tuple[str, type, list[Any]]]:
        seen = PagemapsInPageTables(pagemap_ranges(prog)[0])
        scan = scan_vmemmap(prog, (seen.take,))
        return [("Device pagemaps", DevicePagemap, device_pagemaps(prog, scan.memmap, seen))]

    run_script(tables)
