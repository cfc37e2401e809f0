# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct dev_pagemap``: memory of devices that has struct pages (persistent memory, DAX, GPUs).

The struct pages of a terabyte of persistent memory take 16 GiB. They lie in RAM, or on the device
itself (an *altmap*); and where the device is used in pages of 2 MiB or 1 GiB (``vmemmap_shift``)
and has no altmap, those of each page's tails share one frame, so that two of the 8 or 4,096 frames
of a page remain.

Takes the ranges that ``device_ranges`` reads, and what lies where from the walk over the vmemmap.
Costs next to nothing. A struct page is initialised if it lies on memory of its own: of those that
share a frame only the first (``memmap_init_compound()``), and of an altmap none of the pages that
hold the struct pages.

Cannot know: whether a kernel of arm64 before v6.4 would share them, if none of them are: that it
would not is said of all of arm64.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from drgn import Architecture, Program

from mmscope.drgn.free.device_ranges import PagemapRange, has_compound_pages
from mmscope.drgn.opening.constants import is_powerpc
from mmscope.drgn.reading.io_resources import io_resources, names_at
from mmscope.drgn.reading.kernel_arrays import S64s
from mmscope.drgn.struct_pages.memmap import Leaves, Memmap, estimate_ms
from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import table

# Kept of a page's struct pages: VMEMMAP_RESERVE_NR (mm/sparse-vmemmap.c), its head's frame and one
# for all others.
RESERVED_PAGES = 2


@table(
    "device_pagemaps",
    "Device memory with struct pages",
    empty="No device has memory with struct pages (pmem, DAX, device-private).",
)
class DevicePagemap:
    """A range of a device's memory that has struct pages."""

    start: str = column(holds="kernel", key=True, help="physical address")
    end: str = column(holds="kernel", help="address behind the last byte")
    name: str = column(holds="kernel", help="innermost resource of /proc/iomem at its end")
    type: str = column(
        holds="kernel", help="GENERIC: device-dax; FS_DAX: pmem disk or its file system"
    )
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="of device memory")
    vmemmap_shift: int = column(help="a page is 1 << vmemmap_shift base pages")
    altmap: bool = column(help="struct pages lie on the device")
    memmap_bytes: int = column(unit="bytes", high=MOST_BYTES, help="of struct pages, as addresses")
    ram_bytes: int = column(unit="bytes", help="RAM they take")
    altmap_bytes: int = column(unit="bytes", high=MOST_BYTES, help="device memory they take")
    vmemmap_saved_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="saved by tails sharing a frame"
    )
    vmemmap_reclaimable_bytes: int = column(
        unit="bytes",
        high=MOST_BYTES,
        help="RAM that align=2M of device-dax would save, with 4 KiB pages; none on arm64",
    )
    initialised_struct_pages: int = column(
        since="0.2.0",
        help="initialised when the device comes: those on frames of their own",
    )
    init_ms_low: float = column(
        since="0.2.0",
        unit="ms",
        help="estimate, at least: 8.0 ns a struct page on one CPU",
    )
    init_ms_high: float = column(
        since="0.2.0",
        unit="ms",
        help="estimate, at most: 11.9 ns a struct page on one CPU",
    )
    init_ms_logged: int | None = column(
        since="0.2.0",
        unit="ms",
        help="by the log's last such range; empty: several",
    )
    not_shared: str = column(
        since="0.3.0", holds="words", help="why struct pages share no frame; empty: some do"
    )


def shares_struct_pages(prog: Program) -> bool:
    """
    True if this architecture lets struct pages share frames: those of device memory, and of
    hugetlb pages (HVO). powerpc does it for device memory alone, in a way of its own since v6.6
    (arch/powerpc/mm/book3s64/radix_pgtable.c), which is not known here.

    Since "mm/vmemmap/devdax: fix kernel crash when probing devdax devices" (in v6.4, and in stable
    kernels) ``vmemmap_can_optimize()`` (include/linux/mm.h) asks for it. arm64 does not select it
    since Linux kernel commit 060a2c92d1b6 ("arm64: mm: hugetlb: Disable
    HUGETLB_PAGE_OPTIMIZE_VMEMMAP") (in v6.3).
    """
    return prog.platform is None or prog.platform.arch not in (
        Architecture.AARCH64,
        Architecture.PPC64,
    )


def _why_not_shared(prog: Program, each: PagemapRange, where: Memmap) -> str:
    """
    Why a range's struct pages share no frame, in the order of ``vmemmap_can_optimize()``
    (include/linux/mm.h).
    """
    page = 1 << where.page_shift
    size = where.page_bytes
    reasons = {
        "this kernel has no large pages of device memory (before 5.17)": (
            not has_compound_pages(prog)
        ),
        "how powerpc shares them is not known here": is_powerpc(prog),
        "this architecture does not share them": not shares_struct_pages(prog),
        f"struct page has {size} bytes, no power of two": bool(size & (size - 1)),
        "they lie on the device (an altmap)": each.altmap,
        f"{_WHAT.get(each.type, 'the device')} is used in base pages": not each.vmemmap_shift,
        f"those of a page fill {RESERVED_PAGES} frames or less": (
            (size << each.vmemmap_shift) // page <= RESERVED_PAGES
        ),
    }
    # section_activate() (mm/sparse.c) keeps those of a section that the kernel has had since boot;
    # Linux kernel commit 4917f55b4ef9 ("mm/sparse-vmemmap: improve memory savings for compound
    # devmaps") (in v5.19).
    rest = "they were there before the device came, or the kernel cannot (before 5.19)"
    return next((why for why, so in reasons.items() if so), rest)


_WHAT = {"FS_DAX": "a pmem disk (fsdax)", "GENERIC": "this device-dax"}


def memmap_amounts(where: Memmap, ranges: list[PagemapRange], leaves: Leaves) -> S64s:
    """
    Bytes of each range's struct pages that some entries map, by where they lie: all, in RAM, on the
    device, on a frame of others.
    """
    amounts = np.zeros((len(ranges), 4), np.int64)
    ends = leaves["offset"] + leaves["size"]
    for number, each in enumerate(ranges):
        start, end = each.start_pfn * where.page_bytes, each.end_pfn * where.page_bytes
        first = np.searchsorted(ends, start, "right")
        part = leaves[first : np.searchsorted(leaves["offset"], end)]
        low = np.maximum(part["offset"], start)
        size = np.minimum(part["offset"] + part["size"], end) - low
        frame = part["frame"] + ((low - part["offset"]) >> where.page_shift)
        inside = (frame >= each.start_pfn) & (frame < each.end_pfn)
        own = ~part["reused"]
        in_ram, on_device = size[own & ~inside].sum(), size[own & inside].sum()
        amounts[number] = size.sum(), in_ram, on_device, size[~own].sum()
    return amounts


def device_pagemaps(
    prog: Program,
    where: Memmap,
    ranges: list[PagemapRange],
    amounts: S64s,
    logged: Mapping[int, list[int]],
) -> list[DevicePagemap]:
    """
    All ranges, ascending.

    :param amounts: sums of :func:`memmap_amounts`.
    :param logged: times in the kernel's log, by pages (:func:`memmap.logged_times`).
    """
    page = 1 << where.page_shift
    lasts = [(each.end_pfn << where.page_shift) - 1 for each in ranges]
    names = names_at(io_resources(prog)[0], lasts) if lasts else []
    alike = Counter(each.pages for each in ranges)
    # Of a page as large as an entry of the last level of page tables but one maps.
    large = page // 8 * page
    kept = large // page * where.page_bytes - RESERVED_PAGES * page
    optimizable = has_compound_pages(prog) and not where.page_bytes & (where.page_bytes - 1)
    optimizable &= shares_struct_pages(prog) or bool(amounts[:, 3].any())
    rows = []
    for each, name, (mapped, ram, on_device, reused) in zip(
        ranges, names, amounts.tolist(), strict=True
    ):
        size = (each.end_pfn - each.start_pfn) << where.page_shift
        could = max(kept * (size // large) - reused, 0) if optimizable and ram else 0
        initialised = max((mapped - reused) // where.page_bytes - each.altmap_pages, 0)
        lines = logged.get(each.pages) if alike[each.pages] == 1 else None
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
                "" if reused else _why_not_shared(prog, each, where),
            )
        )
    return rows


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("device_pagemaps")
