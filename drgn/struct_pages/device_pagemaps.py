# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct dev_pagemap``: memory of devices that has struct pages (persistent memory, DAX, GPUs).

The struct pages of a terabyte of persistent memory take 16 GiB. They lie in RAM, or on the device
itself (an *altmap*); and where the device is used in pages of 2 MiB or 1 GiB (``vmemmap_shift``)
and has no altmap, those of each page's tails share one frame, so that two of the 8 or 4,096 frames
of a page remain.

Reads ``pgmap_array``, and takes what lies where from the walk over the vmemmap. Costs next to
nothing: a pagemap has an entry for each of its ranges. A struct page is initialised if it lies on
memory of its own: of those that share a frame only the first (``memmap_init_compound()``), and of
an altmap none of the pages that hold the struct pages.

Cannot know: a pagemap whose device is just being removed may be gone from the array before its
struct pages are. And whether a kernel of arm64 before v6.4 would share them, if none of them are:
that it would not is said of all of arm64.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from drgn import Architecture, FaultError, Object, Program
from drgn.helpers.linux.xarray import xa_for_each

from mmscope.drgn.reading.io_resources import io_resources, names_at
from mmscope.drgn.struct_pages.memmap import Memmap
from mmscope.drgn.struct_pages.memmap_init import LoggedTimes, estimate_ms
from mmscope.drgn.struct_pages.vmemmap import Leaves
from mmscope.drgn.tables.rows import MOST_BYTES, column, table_row
from mmscope.drgn.tables.table import Table

PGMAP_ALTMAP_VALID = 1  # include/linux/memremap.h, a macro
# Kept of a page's struct pages: VMEMMAP_RESERVE_NR (mm/sparse-vmemmap.c), its head's frame and one
# for all others.
RESERVED_PAGES = 2
MAX_PAGEMAPS = 1 << 16
MAX_RANGES = 1 << 10  # of one pagemap
MAX_ADDRESS = 1 << 56  # of physical memory


@table_row
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
        help="of RAM that pages of what a PMD maps would save, with base pages of 4 KiB 2 MiB "
        "(device-dax with align=2M, no altmap); none on arm64, which does not share them",
    )
    initialised_struct_pages: int = column(
        since="0.2.0",
        help="that are initialised when the device comes: those on memory of their own",
    )
    init_ms_low: float = column(
        since="0.2.0",
        unit="ms",
        help="at least, an estimate: initialised struct pages x 8.0 ns, by one CPU, as 128 GiB of "
        "pages of 4 KiB took 268 ms in 2021",
    )
    init_ms_high: float = column(
        since="0.2.0",
        unit="ms",
        help="at most, an estimate: initialised struct pages x 11.9 ns, as 128 GiB of pages of "
        "2 MiB took 100 ms in 2021",
    )
    init_ms_logged: int | None = column(
        since="0.2.0",
        unit="ms",
        help="by the last line of the kernel's log about a range of as many pages, in its ticks; "
        "unknown if another range has as many",
    )


DEVICE_PAGEMAPS = Table(
    "device_pagemaps",
    "Device memory with struct pages",
    DevicePagemap,
    empty="No device has memory with struct pages (pmem, DAX, device-private).",
)


@dataclass(frozen=True, slots=True)
class PagemapRange:
    """What the kernel says of a range, before the vmemmap is walked."""

    start_pfn: int
    end_pfn: int
    type: str
    vmemmap_shift: int
    altmap: bool
    # Pages of an altmap, whose struct pages are not initialised with the others.
    altmap_pages: int = 0

    @property
    def pages(self) -> int:
        """Whose struct pages are initialised by memmap_init_zone_device(), shared or not."""
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


def shares_struct_pages(prog: Program) -> bool:
    """
    True if this architecture lets struct pages share frames: those of device memory, and of
    hugetlb pages (HVO).

    Since "mm/vmemmap/devdax: fix kernel crash when probing devdax devices" (in v6.4, and in stable
    kernels) ``vmemmap_can_optimize()`` (include/linux/mm.h) asks for it. arm64 does not select it
    since Linux kernel commit 060a2c92d1b6 ("arm64: mm: hugetlb: Disable
    HUGETLB_PAGE_OPTIMIZE_VMEMMAP") (in v6.3).
    """
    return prog.platform is None or prog.platform.arch is not Architecture.AARCH64


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
    prog: Program, where: Memmap, tables: PagemapsInPageTables, logged: LoggedTimes
) -> list[DevicePagemap]:
    """All ranges, ascending."""
    page = 1 << where.page_shift
    lasts = [(each.end_pfn << where.page_shift) - 1 for each in tables.ranges]
    names = names_at(io_resources(prog)[0], lasts) if lasts else []
    alike = Counter(each.pages for each in tables.ranges)
    # Of a page as large as an entry of the last level of page tables but one maps.
    large = page // 8 * page
    kept = large // page * where.page_bytes - RESERVED_PAGES * page
    optimizable = has_compound_pages(prog) and not where.page_bytes & (where.page_bytes - 1)
    optimizable &= shares_struct_pages(prog) or bool(tables.bytes[:, 3].any())
    rows = []
    for each, name, amounts in zip(tables.ranges, names, tables.bytes.tolist(), strict=True):
        mapped, ram, on_device, reused = amounts
        size = (each.end_pfn - each.start_pfn) << where.page_shift
        could = max(kept * (size // large) - reused, 0) if optimizable and ram else 0
        initialised = max((mapped - reused) // where.page_bytes - each.altmap_pages, 0)
        lines = logged.devices.get(each.pages) if alike[each.pages] == 1 else None
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
                initialised,
                *estimate_ms(initialised),
                lines[-1] if lines else None,
            )
        )
    return rows


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("device_pagemaps")
