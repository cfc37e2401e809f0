# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Cost of struct pages, and what is saved of it: one walk over the vmemmap for all sections.

Huge pages are found first. The walk then shows its entries to all who look for something in them:
the struct pages of huge pages, those of devices, the origin of all frames, and the examples.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from drgn import FaultError, Program

from mmscope.drgn.free.device_ranges import PagemapRange, pagemap_ranges
from mmscope.drgn.reading.kernel_arrays import Gaps, S64s
from mmscope.drgn.reading.printk_ring import log_records
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import (
    PASS_SECONDS,
    Against,
    Command,
    Found,
    Section,
    not_in_text,
)
from mmscope.drgn.struct_pages.device_pagemaps import (
    DevicePagemap,
    device_pagemaps,
    memmap_amounts,
    shares_struct_pages,
)
from mmscope.drgn.struct_pages.hugetlb import (
    HUGE_PAGE,
    HugePages,
    HugetlbCheck,
    HugetlbPool,
    HugetlbSize,
    add_page_tables,
    find_huge_pages,
    hugetlb_pools,
    hugetlb_sizes,
    read_default_size,
    read_pools,
    read_sizes,
)
from mmscope.drgn.struct_pages.kasan_shadow import find_shadow
from mmscope.drgn.struct_pages.memmap import NO_FRAMES, Frames, Leaves, Memmap, logged_times, memmap
from mmscope.drgn.struct_pages.memory_metadata import (
    MetadataPart,
    WhatIf,
    frame_origins,
    memory_about_memory,
    present_bytes,
    shadow_parts,
    shared_tails,
    skips_tails,
    what_if,
)
from mmscope.drgn.struct_pages.vmemmap import (
    VmemmapMapping,
    VmemmapScan,
    VmemmapSections,
    VmemmapZone,
    scan_vmemmap,
)
from mmscope.drgn.struct_pages.vmemmap_examples import (
    VmemmapExample,
    vmemmap_examples,
    wanted_examples,
)
from mmscope.drgn.tables.display import if_any, size, size_name
from mmscope.drgn.tables.table import tables_of
from mmscope.drgn.text.meminfo import not_whole


@dataclass
class StructPageCost:
    """Results of the walk over the vmemmap."""

    prog: Program
    scan: VmemmapScan
    huge_pages: HugePages
    huge_gaps: Gaps
    huge_failure: Exception | None  # why huge pages were not found
    pagemap_ranges: list[PagemapRange]
    pagemap_amounts: S64s  # of memmap_amounts()
    more_pagemaps: str  # why there may be more of them
    origins: Counter[str]  # of frame_origins()
    origin_gaps: Gaps  # struct pages of frames whose origin is therefore unknown
    examples: list[VmemmapExample]
    frames: Frames  # each that struct pages lie on, once

    def pools(self) -> tuple[list[HugetlbPool], list[HugetlbCheck]]:
        """The hugetlb pools, and what does not agree."""
        if self.huge_failure is not None:
            raise self.huge_failure
        return hugetlb_pools(self.prog, self.huge_pages)

    def pagemaps(self) -> list[DevicePagemap]:
        devices, _ = self.logged
        return device_pagemaps(
            self.prog, self.scan.memmap, self.pagemap_ranges, self.pagemap_amounts, devices
        )

    def metadata(self) -> list[MetadataPart]:
        return memory_about_memory(self.prog, self.scan, self.origins)

    def what_if(self) -> list[WhatIf]:
        where = self.scan.memmap
        # The machine's own memory; devices are in their own table.
        saved = sum(row.reused_bytes for row in self.scan.zones if row.zone != "Device")
        return what_if(
            present_bytes(self.prog),
            where.page_shift,
            where.page_bytes,
            saved,
            shares=shares_struct_pages(self.prog),
            skips_tails=skips_tails(self.prog),
        )

    @cached_property
    def logged(self) -> tuple[dict[int, list[int]], dict[int, int]]:
        """Times that struct pages took, by the kernel's log; nothing if that is lost."""
        try:
            return logged_times(log_records(self.prog).records)
        except (FaultError, LookupError, ValueError):
            return {}, {}


def scan_struct_page_cost(
    prog: Program, progress: Callable[[int, int], None] | None = None
) -> StructPageCost:
    """
    Run the walk.

    :param progress: called with (pages done, pages in all), then with (sections done, in all).
    :raises NotImplementedError: there is no vmemmap, or its page tables are of an architecture that
        is not known.
    :raises ValueError: the array is damaged beyond use.
    """
    where = memmap(prog, Gaps())  # says so if there is no array, or a damaged one
    pages, failure, huge_gaps = np.zeros(0, HUGE_PAGE), None, Gaps()
    try:
        pages = find_huge_pages(prog, huge_gaps, progress=progress)
    except (FaultError, LookupError, ValueError) as error:
        failure = error
    try:
        ranges, more = pagemap_ranges(prog)
    except LookupError:
        ranges, more = [], ""  # built without ZONE_DEVICE
    altmaps = [each for each in ranges if each.altmap]
    tails = shared_tails(prog, where)
    wanted = wanted_examples(pages, ranges, where.page_shift)
    amounts = np.zeros((len(ranges), 4), np.int64)
    origins, origin_gaps = Counter[str](), Gaps()
    examples: list[VmemmapExample] = []
    starts, sizes = [NO_FRAMES], [NO_FRAMES]

    def take(where: Memmap, leaves: Leaves) -> None:
        nonlocal amounts
        add_page_tables(prog, where, pages, leaves)
        amounts += memmap_amounts(where, ranges, leaves)
        origins.update(frame_origins(prog, where, leaves, altmaps, tails, origin_gaps))
        examples.extend(vmemmap_examples(where, wanted, leaves))
        own = leaves[~leaves["reused"]]
        starts.append(own["frame"])
        sizes.append(own["size"] >> where.page_shift)

    scan = scan_vmemmap(prog, take, progress=progress)
    frames = Frames(np.concatenate(starts), np.concatenate(sizes), scan.table_frames)
    return StructPageCost(
        prog,
        scan,
        pages,
        huge_gaps,
        failure,
        ranges,
        amounts,
        more,
        origins,
        origin_gaps,
        examples,
        frames,
    )


def struct_page_cost(memory: Memory) -> StructPageCost:
    """
    The walk over the struct pages' own page tables, once for all sections.

    :raises Absent: the vmemmap of this architecture is not known here.
    """

    def scan() -> StructPageCost:
        try:
            return scan_struct_page_cost(memory.prog, memory.progress)
        except NotImplementedError as reason:
            raise Absent(str(reason)) from None

    return memory.once("struct_pages", scan)


def vmemmap_from_memory(memory: Memory) -> Found:
    cost, found = _begin(memory)
    scan = cost.scan
    found.differ(
        *if_any(
            scan.unmapped_sections,
            "{} struct pages that nothing maps",
            *("section has", "sections have"),
        )
    )
    stray = "{} struct pages of sections that are not there"
    found.differ(*if_any(scan.stray, stray, "entry maps", "entries map"))
    found.add(VmemmapMapping, scan.mappings)
    found.add(VmemmapZone, scan.zones)
    found.add(VmemmapSections, scan.runs)
    return found.add(VmemmapExample, cost.examples)


def hugetlb_from_memory(memory: Memory) -> Found:
    sizes = hugetlb_sizes(memory.prog)
    if not sizes:
        raise Absent("the kernel has no hugetlb pools (CONFIG_HUGETLB_PAGE)")
    cost, found = _begin(memory)
    rows, checks = cost.pools()
    gaps = cost.huge_gaps.bytes
    found.unreadable_bytes += gaps
    found.notes += if_any(
        gaps, "{} bytes of struct pages could not be read: huge pages are missing"
    )
    if checks:
        found.differ(f"{sum(check.pages for check in checks):,} huge pages differ (hugetlb_checks)")
    for name in () if memory.live else ("pages", "free_pages", "surplus_pages"):
        of_nodes = Counter[int]()
        for row in rows:
            of_nodes[row.page_bytes] += getattr(row, name)

        def all_of(size: HugetlbSize, of_nodes: Counter[int] = of_nodes) -> Against:
            return of_nodes[size.page_bytes], 0

        found.hold_against(sizes, name, all_of, "of its nodes")
    found.add(HugetlbPool, rows)
    found.add(HugetlbSize, sizes)
    return found.add(HugetlbCheck, checks)


def hugetlb_from_files(files: Files) -> Found:
    sizes = files.numbers("sys/kernel/mm/hugepages", r"hugepages-(\d+)kB")
    if not sizes:
        return _default_size(files)
    nodes = files.numbers("sys/devices/system/node", r"node(\d+)")
    in_bytes = [size << 10 for size in sizes]
    found = Found(remarks=["which pages HVO optimised is not in /sys; read the kernel's memory"])
    found.add(HugetlbPool, read_pools(files.open, nodes, in_bytes))
    return found.add(HugetlbSize, read_sizes(files.open, in_bytes))


def _default_size(files: Files) -> Found:
    """Sizes as /proc/meminfo has them, where /sys was not copied."""
    meminfo = files.read("proc/meminfo")
    rows, every = read_default_size(meminfo)
    why = f"{files.root / 'sys/kernel/mm/hugepages'} has no page sizes"
    if not rows:
        raise Absent(f"{why}, and {not_whole(meminfo) or '/proc/meminfo has no huge pages'}")
    found = Found(remarks=[f"{why}: by /proc/meminfo, of the default size alone"])
    others = (every or 0) - sum(row.pages * row.page_bytes for row in rows)
    if others > 0 or every is None:
        amount = "may be there" if every is None else f"have {size(others)}"
        found.notes.append(f"pages of other sizes {amount}")
    return found.add(HugetlbSize, rows)


def device_pagemaps_from_memory(memory: Memory) -> Found:
    cost, found = _begin(memory)
    if cost.more_pagemaps:
        found.notes.append(cost.more_pagemaps)
    return found.add(DevicePagemap, cost.pagemaps())


def _rounded_up(cost: StructPageCost) -> int:
    """Bytes that whole pages for the struct pages of each section have beyond these."""
    where = cost.scan.memmap
    page, needed = 1 << where.page_shift, where.sections.pages * where.page_bytes
    return len(where.sections.numbers) * (-needed % page)


def memory_metadata_from_memory(memory: Memory) -> Found:
    cost, found = _begin(memory)
    found.unreadable_bytes += cost.origin_gaps.bytes
    rows = cost.metadata() + _shadow_parts(memory, found)
    remainders = [row for row in rows if row.part.startswith("remainder")]
    shared = sum(row.vmemmap_saved_bytes for row in cost.pagemaps())
    for row in remainders:
        if not row.bytes:
            continue
        if row.bytes == shared and row.counted_in == "nr_memmap_pages":
            found.remarks.append(
                f"{row.counted_in} also has {size_name(row.bytes)} that sharing saved: this kernel "
                "counts a device's struct pages as if they shared nothing"
            )
        elif row.counted_in == "nr_memmap_boot_pages" and row.bytes <= _rounded_up(cost):
            # sparse_init_nid() (mm/sparse.c) rounds those of each section up to a page.
            found.remarks.append(
                f"{row.counted_in} also has {size_name(row.bytes)} that are nowhere: it counts a "
                "page for the struct pages of each section, which are less"
            )
        else:
            found.differ(f"{row.counted_in} has {size_name(row.bytes)} beyond its parts")
    if not remainders:
        found.remarks.append("this kernel does not count what struct pages take (6.12 and later)")
    _, nodes = cost.logged
    if nodes:
        times = ", ".join(f"node {node} {ms:,} ms" for node, ms in sorted(nodes.items()))
        found.remarks.append(
            f"by the kernel's log, struct pages left for later while it booted took: {times}, by "
            "all CPUs of the node together"
        )
    found.add(MetadataPart, rows)
    return found.add(WhatIf, cost.what_if())


def _shadow_parts(memory: Memory, found: Found) -> list[MetadataPart]:
    try:
        shadow = find_shadow(memory)
    except (FaultError, LookupError, NotImplementedError) as error:
        found.notes.append(f"what the KASAN shadow takes is not among the parts: {error}")
        return []
    lost = shadow.unreadable_bytes
    found.notes += if_any(lost, "{} bytes of the KASAN shadow's tables could not be read")
    found.unreadable_bytes += lost
    return shadow_parts(memory.prog, shadow)


def _begin(memory: Memory) -> tuple[StructPageCost, Found]:
    """The walk over the vmemmap, and what is missing from it."""
    cost = struct_page_cost(memory)
    found = Found(memory.live, unreadable_bytes=cost.scan.gaps.bytes)
    words = "{} bytes of page tables and sections could not be read: what they map is not counted"
    found.notes += if_any(cost.scan.gaps.bytes, words)
    twice = "page table is", "page tables are"
    found.notes += if_any(cost.scan.repeated_tables, "{} pointed to twice", *twice)
    return cost, found


VMEMMAP_SECTION = Section(
    name="vmemmap",
    title="Struct pages",
    tables=tables_of(VmemmapMapping, VmemmapZone, VmemmapSections, VmemmapExample),
    intro="""
Every page frame has a `struct page`: of 64 bytes, as on most kernels, they take 1.6 % of all memory
with pages of 4 KiB, 0.4 % with 16 KiB, 0.1 % with 64 KiB. They are one array of addresses, the
vmemmap. Its page tables, which were walked, say on which frames it really lies.
The struct pages of a huge page's tails are all alike: HVO (hugetlb) and device-dax let them lie
on one frame ([kernel documentation: vmemmap
deduplication](https://docs.kernel.org/mm/vmemmap_dedup.html)).
""",
    command=Command("how struct pages are mapped"),
    from_memory=vmemmap_from_memory,
    from_files=not_in_text("page tables are not in /proc; read the kernel's memory (as root)"),
    deadline=PASS_SECONDS,
    optional=True,
)

HUGETLB_SECTION = Section(
    name="hugetlb",
    title="hugetlb pools and HVO",
    tables=tables_of(HugetlbPool, HugetlbSize, HugetlbCheck),
    intro="""
HVO frees the pages that a huge page's struct pages lie on, except for the first: with base pages
of 4 KiB 7 of 8 with 2 MiB, 4,095 of 4,096 with 1 GiB. It does so when a page is taken into the
pool, if `vm.hugetlb_optimize_vmemmap` is on then ([kernel documentation: HugeTLB
pages](https://docs.kernel.org/admin-guide/mm/hugetlbpage.html)). Whether it did was read from
the page's flag and from the page tables, which are held against each other.
""",
    command=Command("hugetlb pools and what HVO saves"),
    from_memory=hugetlb_from_memory,
    from_files=hugetlb_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.SETTINGS, prices.MEMINFO),
    optional=True,
)

DEVICE_PAGEMAPS_SECTION = Section(
    name="device_pagemaps",
    title="Device memory",
    tables=tables_of(
        DevicePagemap,
    ),
    intro="""
Memory of devices that has struct pages (`struct dev_pagemap`): where these lie, and what
sharing saves of them. An altmap puts them on the device itself ([kernel documentation:
ZONE_DEVICE](https://docs.kernel.org/mm/memory-model.html#zone-device)).
""",
    command=Command("device memory with struct pages"),
    from_memory=device_pagemaps_from_memory,
    from_files=not_in_text("device pagemaps are not in /proc; read the kernel's memory (as root)"),
    deadline=PASS_SECONDS,
    optional=True,
)

MEMORY_METADATA_SECTION = Section(
    name="memory_metadata",
    title="Page metadata",
    tables=tables_of(MetadataPart, WhatIf),
    intro="""
What the kernel keeps about memory, part by part, held against its own counters ([kernel
documentation: physical memory model](https://docs.kernel.org/mm/memory-model.html)): a
remainder is what the counters have and no part explains. Beside it stands what struct pages of
a machine of this size would take if all of it were used in one way.
""",
    command=Command("page metadata: what describes memory"),
    from_memory=memory_metadata_from_memory,
    from_files=not_in_text(
        "the parts are not in /proc; nr_memmap_pages and its like are in vm_counters"
    ),
    deadline=PASS_SECONDS,
    optional=True,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_sections

    print_sections("vmemmap", "hugetlb", "device_pagemaps", "memory_metadata")
