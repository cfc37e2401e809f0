# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory about memory: what struct pages, ``page_ext``, sections and the vmemmap's page tables take
together, held against ``nr_memmap_pages`` and ``nr_memmap_boot_pages`` of /proc/vmstat.

Each frame that struct pages lie on has a struct page of its own, whose flags say where it came
from: from the boot allocator (``PG_reserved``), later from the buddy allocator, or out of the very
memory that it describes (``PG_vmemmap_self_hosted``, altmaps). Those of the frames that HVO shares
are in ``zone.vmemmap_tails`` (7.1 and later). Costs a read for each run of such frames.

Cannot know: the kernel's own sums before 6.12, which has no such counters. There is no remainder
then.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from drgn import Program, sizeof
from numpy.typing import NDArray

from mmscope.drgn.free.device_ranges import PagemapRange
from mmscope.drgn.free.pageblocks import pageblock_bits, pageblock_order
from mmscope.drgn.free.zones import for_each_zone
from mmscope.drgn.opening.constants import constant, flag
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.page_ext import page_ext_ranges, page_ext_size
from mmscope.drgn.struct_pages.kasan_shadow import KasanShadow
from mmscope.drgn.struct_pages.memmap import Memmap, page_flags
from mmscope.drgn.struct_pages.memmap_init import estimate_ms
from mmscope.drgn.struct_pages.vmemmap import Leaves, VmemmapScan
from mmscope.drgn.tables.amounts import size_name
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, column, table_row
from mmscope.drgn.tables.table import Table

BOOT, LATER = "nr_memmap_boot_pages", "nr_memmap_pages"
# Where frames of the vmemmap come from.
ORIGINS = ("boot", "later", "self-hosted", "altmap", "shared tails", "unknown")


@table_row
class MetadataPart:
    """One kind of memory about memory."""

    part: str = column(holds="words", key=True, help="what it is, and where it lies")
    bytes: int = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="of page frames; of a remainder, what the counter has beyond the parts",
    )
    percent: float = column(
        unit="%", low=None, help="of the machine's memory (present pages of all zones)"
    )
    counted_in: str | None = column(
        holds="kernel",
        help="the counter of /proc/vmstat that it is part of, if this kernel has it (6.12)",
    )
    on_device: bool = column(help="takes a device's memory, not RAM")


SHADOW_PARTS = ("KASAN shadow", "page tables of the KASAN shadow")
MEMORY_ABOUT_MEMORY = Table("memory_about_memory", "Memory about memory", MetadataPart)


@table_row
class WhatIf:
    """What struct pages of the whole machine would take if all of it were used in one way."""

    scheme: str = column(holds="words", key=True, help="how all of memory would be used")
    page_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="of the pages that it would be used in"
    )
    vmemmap_pages: int | None = column(
        unit="pages",
        high=MOST_PAGES,
        help="pages that the struct pages of one such page fill",
    )
    kept_pages: int | None = column(
        unit="pages", high=MOST_PAGES, help="of them, those that remain"
    )
    metadata_bytes: int = column(unit="bytes", high=MOST_BYTES, help="that struct pages would take")
    saved_bytes: int = column(
        unit="bytes", low=None, high=MOST_BYTES, help="against a struct page for every page"
    )
    saved_percent: float = column(unit="%", low=None, help="of the machine's memory")
    initialised_struct_pages: int | None = column(
        since="0.2.0",
        help="when memory comes or is taken into the pool: of DAX those that share nothing; of "
        "hugetlb all, except for gigantic pages taken at boot (6.7 and later)",
    )
    init_ms_low: float | None = column(
        since="0.2.0",
        unit="ms",
        help="at least, an estimate: initialised struct pages x 8.0 ns, by one CPU, as 128 GiB of "
        "pages of 4 KiB took 268 ms in 2021",
    )
    init_ms_high: float | None = column(
        since="0.2.0",
        unit="ms",
        help="at most, an estimate: initialised struct pages x 11.9 ns, as 128 GiB of pages of "
        "2 MiB took 100 ms in 2021",
    )
    formula: str = column(holds="words", help="of saved_bytes; M is the machine's memory")


MEMMAP_WHAT_IF = Table(
    "memmap_what_if",
    "Struct pages of a machine of this size",
    WhatIf,
    not_compared="it is computed from the size of the machine",
)


class FrameOrigins:
    """Where the frames of the vmemmap come from, in bytes; a taker of its walk."""

    def __init__(self, prog: Program, pagemaps: list[PagemapRange]) -> None:
        self.prog = prog
        self.pagemaps = pagemaps
        self.bytes = dict.fromkeys(ORIGINS, 0)
        self.gaps = Gaps()
        self.reserved = 1 << int(prog.constant("PG_reserved").value_())
        self.hosted = flag(prog, "PG_vmemmap_self_hosted")
        self.tails: NDArray[np.int64] | None = None

    def take(self, where: Memmap, leaves: Leaves) -> None:
        if self.tails is None:
            self.tails = shared_tails(self.prog, where)
        first = np.flatnonzero(~leaves.reused)
        order = np.argsort(leaves.frames[first], kind="stable")
        frames, sizes = leaves.frames[first][order], leaves.sizes[first][order]
        flags, known = page_flags(self.prog, where, frames, self.gaps)
        device = np.zeros(len(frames), np.bool_)
        for each in self.pagemaps:
            if each.altmap:
                device |= (frames >= each.start_pfn) & (frames < each.end_pfn)
        tail = np.isin(frames, self.tails)
        hosted = known & ((flags & np.uint64(self.hosted)) != 0)
        boot = known & ((flags & np.uint64(self.reserved)) != 0)
        left = np.ones(len(frames), np.bool_)
        # In this order: a device's are marked as reserved, too, and in 6.1 self-hosted frames.
        for origin, which in (
            ("shared tails", tail),
            ("altmap", device),
            ("self-hosted", hosted),
            ("boot", boot),
            ("later", known),
            ("unknown", left),
        ):
            self.bytes[origin] += int(sizes[left & which].sum())
            left &= ~which


def shared_tails(prog: Program, where: Memmap) -> NDArray[np.int64]:
    """
    The frames of the struct pages that all tails of optimised huge pages share, one for each zone
    and order ("mm/hugetlb: remove fake head pages", 622026e87c40, in v7.1); none on kernels before.
    """
    frames = []
    if prog.type("struct zone").has_member("vmemmap_tails"):
        for _, _, zone in for_each_zone(prog):
            for page in zone.vmemmap_tails:
                if address := page.value_():
                    frames.append((address - where.base) // where.page_bytes)
    return np.array(frames, np.int64)


def memory_about_memory(
    prog: Program, scan: VmemmapScan, origins: FrameOrigins
) -> list[MetadataPart]:
    """
    All parts; with the counters of /proc/vmstat, where there are any, and what they have beyond.

    The bytes of a counter's parts and of its remainder add up to the counter.
    """
    total = present_bytes(prog)
    page = 1 << scan.memmap.page_shift
    sections = scan.memmap.sections
    usage = _usage_bytes(prog, scan.memmap)
    # "mm: don't account memmap per-node" (f4cb78af91e3, in v6.12)
    counters = {
        name: prog.variable(name).counter.value_() * page for name in (BOOT, LATER) if name in prog
    }
    rows: list[MetadataPart] = []

    def add(part: str, size: int, counter: str | None, on_device: bool = False) -> None:
        counted_in = counter if counter in counters else None
        rows.append(MetadataPart(part, size, _percent(size, total), counted_in, on_device))

    found = origins.bytes
    add("struct page, allocated at boot", found["boot"], BOOT)
    add("struct page, allocated since", found["later"], LATER)
    add("struct page, in the hot-added memory itself", found["self-hosted"], LATER)
    add("struct page, on the device (altmap)", found["altmap"], LATER, True)
    add("struct page, shared by HVO's tails", found["shared tails"], None)
    if found["unknown"]:
        add("struct page, origin not readable", found["unknown"], None)
    add("page_ext", _page_ext_bytes(prog), LATER)
    add("mem_section", sections.root_bytes, None)
    add("mem_section_usage (pageblock types)", usage * len(sections.numbers), None)
    tables = sum(row.tables for row in scan.mappings) * page
    add("page tables of the vmemmap", tables, None)
    for counter, counted in counters.items():
        parts = sum(row.bytes for row in rows if row.counted_in == counter)
        add(f"remainder of {counter}", counted - parts, counter)
    return rows


def shadow_parts(prog: Program, shadow: KasanShadow) -> list[MetadataPart]:
    """What KASAN's shadow takes; nothing where there is none."""
    total, page = present_bytes(prog), int(prog["PAGE_SIZE"].value_())
    return [
        MetadataPart(part, pages * page, _percent(pages * page, total), None, False)
        for part, pages in zip(SHADOW_PARTS, (shadow.pages, len(shadow.tables)), strict=True)
        if pages
    ]


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def present_bytes(prog: Program) -> int:
    """The machine's memory: present pages of all zones, so without devices."""
    pages = sum(zone.present_pages.value_() for _, _, zone in for_each_zone(prog))
    return int(pages) << int(prog["PAGE_SHIFT"].value_())


def _usage_bytes(prog: Program, where: Memmap) -> int:
    """``mem_section_usage_size()``: of one section."""
    bits, _ = pageblock_bits(prog)
    flags = (where.sections.pages >> pageblock_order(prog)) * bits
    return int(sizeof(prog.type("struct mem_section_usage")) + -(-flags // 64) * 8)


def _page_ext_bytes(prog: Program) -> int:
    try:
        size = page_ext_size(prog)
        return int(sum((each.end_pfn - each.start_pfn) * size for each in page_ext_ranges(prog)))
    except LookupError:
        return 0  # built without


def what_if(
    total: int,
    page_shift: int,
    page_bytes: int,
    now: int | None,
    *,
    shares: bool = True,
    skips_tails: bool = False,
) -> list[WhatIf]:
    """
    The table for a machine of *total* bytes.

    :param page_bytes: sizeof(struct page).
    :param now: bytes of struct pages that are saved now, if known.
    :param shares: struct pages of large pages can share frames (:func:`shares_struct_pages`).
    :param skips_tails: this kernel does not initialise the struct pages that HVO would free of
        gigantic pages that it takes at boot.
    """
    schemes = [*_schemes(total, page_shift, page_bytes, shares=shares, skips_tails=skips_tails)]
    if now is not None:
        how = "entries of the vmemmap whose frame another entry has too"
        schemes.append(_Scheme("as it is now", now, None, how))
    rows = []
    for scheme in schemes:
        some = scheme.initialised
        low, high = (None, None) if some is None else estimate_ms(some)
        rows.append(
            WhatIf(
                scheme=scheme.name,
                page_bytes=scheme.page_bytes,
                vmemmap_pages=scheme.fills,
                kept_pages=scheme.kept,
                metadata_bytes=(total >> page_shift) * page_bytes - scheme.saved,
                saved_bytes=scheme.saved,
                saved_percent=_percent(scheme.saved, total),
                initialised_struct_pages=some,
                init_ms_low=low,
                init_ms_high=high,
                formula=scheme.formula,
            )
        )
    return rows


class _Scheme(NamedTuple):
    """A way to use all of memory, with the columns of :class:`WhatIf` that follow from it alone."""

    name: str
    saved: int  # bytes
    initialised: int | None  # struct pages
    formula: str
    page_bytes: int | None = None
    fills: int | None = None
    kept: int | None = None


def _schemes(
    total: int, page_shift: int, page_bytes: int, *, shares: bool, skips_tails: bool
) -> Iterator[_Scheme]:
    """The ways to use memory that kernels of this architecture have, built in or not."""
    page = 1 << page_shift
    each = total // page
    yield _Scheme("a struct page for every page", 0, each, "0", page)
    yield _Scheme("no struct page at all", each * page_bytes, 0, f"M / {page:,} x {page_bytes}")
    for levels in (1, 2) if shares else ():
        size = page << (levels * (page_shift - 3))
        fills = size // page * page_bytes // page
        for kept, who in ((2, "device-dax"), (1, "hugetlb with HVO")):
            skips = fills > kept and (kept == 2 or (skips_tails and levels == 2))
            yield _Scheme(
                f"{size_name(size)} pages, {who}",
                total * max(fills - kept, 0) * page // size,
                total * (kept * page // page_bytes) // size if skips else each,
                f"M / {size_name(size)} x ({fills:,} - {kept}) x {size_name(page)}",
                size,
                fills,
                kept,
            )


def skips_tails(prog: Program) -> bool:
    """
    Struct pages of gigantic hugetlb pages are left uninitialised where HVO frees them ("hugetlb:
    skip initialization of gigantic tail struct pages if freed by HVO", fde1c4ecf916, in v6.7).
    """
    return constant(prog, "MEMBLOCK_RSRV_NOINIT", 0) != 0


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_metadata")
