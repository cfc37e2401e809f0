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
from numpy.typing import NDArray

from mmscope.drgn.free.device_ranges import PagemapRange, pagemap_ranges
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.printk_ring import log_records
from mmscope.drgn.sections.files import Absent
from mmscope.drgn.sections.memory import Memory
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
    add_page_tables,
    find_huge_pages,
    hugetlb_pools,
)
from mmscope.drgn.struct_pages.memmap import (
    NO_FRAMES,
    Frames,
    Leaves,
    Memmap,
    logged_times,
    memmap,
)
from mmscope.drgn.struct_pages.memory_metadata import (
    MetadataPart,
    WhatIf,
    frame_origins,
    memory_about_memory,
    present_bytes,
    shared_tails,
    skips_tails,
    what_if,
)
from mmscope.drgn.struct_pages.vmemmap import VmemmapScan, scan_vmemmap
from mmscope.drgn.struct_pages.vmemmap_examples import (
    VmemmapExample,
    vmemmap_examples,
    wanted_examples,
)


@dataclass
class StructPageCost:
    """Results of the walk over the vmemmap."""

    prog: Program
    scan: VmemmapScan
    huge_pages: HugePages
    huge_gaps: Gaps
    huge_failure: Exception | None  # why huge pages were not found
    pagemap_ranges: list[PagemapRange]
    pagemap_amounts: NDArray[np.int64]  # of memmap_amounts()
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


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("vmemmap")
