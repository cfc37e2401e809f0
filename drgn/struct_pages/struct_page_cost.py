# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What struct pages cost, and what is saved of it: one walk over the vmemmap for all sections.

Huge pages are found first. The walk then shows its entries to each consumer: the struct pages of
huge pages, those of devices, the origin of all frames, and the examples. A consumer that fails
costs itself only: its method raises.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from drgn import FaultError, Program
from numpy.typing import NDArray

from mmscope.drgn.free.device_ranges import pagemap_ranges
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.printk_ring import log_records
from mmscope.drgn.sections.files import Absent
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.struct_pages.device_pagemaps import (
    DevicePagemap,
    PagemapsInPageTables,
    device_pagemaps,
    shares_struct_pages,
)
from mmscope.drgn.struct_pages.hugetlb import (
    HugePages,
    HugetlbCheck,
    HugetlbPool,
    HvoInPageTables,
    find_huge_pages,
    hugetlb_pools,
)
from mmscope.drgn.struct_pages.memmap import Memmap, memmap
from mmscope.drgn.struct_pages.memmap_init import LoggedTimes, logged_times
from mmscope.drgn.struct_pages.memory_metadata import (
    FrameOrigins,
    MetadataPart,
    WhatIf,
    memory_about_memory,
    present_bytes,
    skips_tails,
    what_if,
)
from mmscope.drgn.struct_pages.vmemmap import Leaves, VmemmapScan, scan_vmemmap
from mmscope.drgn.struct_pages.vmemmap_examples import (
    ExamplesInPageTables,
    VmemmapExample,
    wanted_examples,
)


@dataclass
class Frames:
    """The page frames that struct pages lie on, each once, and those of their page tables."""

    _parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    tables: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def take(self, where: Memmap, leaves: Leaves) -> None:
        first = ~leaves.reused
        self._parts.append((leaves.frames[first], leaves.sizes[first] >> where.page_shift))

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, np.int64), *(part[0] for part in self._parts)])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Pages from each of the starts on."""
        return np.concatenate([np.empty(0, np.int64), *(part[1] for part in self._parts)])


@dataclass
class StructPageCost:
    """What a walk found."""

    prog: Program
    scan: VmemmapScan
    huge_pages: HugePages
    examples: list[VmemmapExample]
    more_pagemaps: str  # why there may be more of them
    hvo: HvoInPageTables
    frames: Frames
    _huge_failure: Exception | None
    _pagemaps: PagemapsInPageTables
    _origins: FrameOrigins

    @property
    def origin_gaps(self) -> int:
        """Bytes of unreadable struct pages, of frames whose origin is therefore unknown."""
        return self._origins.gaps.bytes

    def pools(self) -> tuple[list[HugetlbPool], list[HugetlbCheck]]:
        """The hugetlb pools, and what does not agree."""
        if self._huge_failure is not None:
            raise self._huge_failure
        return hugetlb_pools(self.prog, self.huge_pages, self.hvo)

    def pagemaps(self) -> list[DevicePagemap]:
        return device_pagemaps(self.prog, self.scan.memmap, self._pagemaps, self.logged)

    def metadata(self) -> list[MetadataPart]:
        return memory_about_memory(self.prog, self.scan, self._origins)

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
    def logged(self) -> LoggedTimes:
        """What the kernel's log says of the time that struct pages took; nothing if it is lost."""
        try:
            return logged_times(log_records(self.prog).records)
        except (FaultError, LookupError, ValueError):
            return LoggedTimes()


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
    page_shift = memmap(prog, Gaps()).page_shift  # says so if there is no array, or a damaged one
    pages, failure = HugePages(), None
    try:
        pages = find_huge_pages(prog, progress=progress)
    except (FaultError, LookupError, ValueError) as error:
        failure = error
    try:
        ranges, broken_off = pagemap_ranges(prog)
    except LookupError:
        ranges, broken_off = [], ""  # built without ZONE_DEVICE
    hvo = HvoInPageTables(prog, pages)
    pagemaps = PagemapsInPageTables(ranges)
    origins = FrameOrigins(prog, ranges)
    examples = ExamplesInPageTables(wanted_examples(pages, ranges, page_shift), page_shift)
    frames = Frames()
    takers = (hvo.take, pagemaps.take, origins.take, examples.take, frames.take)
    scan = scan_vmemmap(prog, takers, progress=progress)
    frames.tables = scan.table_frames
    return StructPageCost(
        prog=prog,
        scan=scan,
        huge_pages=pages,
        examples=examples.rows,
        more_pagemaps=broken_off,
        hvo=hvo,
        frames=frames,
        _huge_failure=failure,
        _pagemaps=pagemaps,
        _origins=origins,
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
