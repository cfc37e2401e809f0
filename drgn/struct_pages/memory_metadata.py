# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page metadata: what struct pages, ``page_ext``, sections and the vmemmap's page tables take
together, held against ``nr_memmap_pages`` and ``nr_memmap_boot_pages`` of /proc/vmstat.

Each frame that struct pages lie on has a struct page of its own, whose flags say where it came
from: from the boot allocator (``PG_reserved``), later from the buddy allocator, or out of the very
memory that it describes (``PG_vmemmap_self_hosted``, altmaps). Those of the frames that HVO shares
are in ``zone.vmemmap_tails`` (7.1 and later). Costs a read for each run of such frames.

Cannot know: the kernel's own sums before 6.12, which has no such counters. There is no remainder
then.
"""

from collections import Counter

import numpy as np
from drgn import Program, sizeof

from mmscope.drgn.free.device_ranges import PagemapRange
from mmscope.drgn.free.pageblocks import pageblock_bits, pageblock_order
from mmscope.drgn.free.zones import for_each_zone
from mmscope.drgn.opening.constants import constant, flag
from mmscope.drgn.reading.kernel_arrays import Gaps, S64s
from mmscope.drgn.reading.page_ext import page_ext_ranges, page_ext_size
from mmscope.drgn.struct_pages.memmap import Frames, Leaves, Memmap, estimate_ms, page_flags
from mmscope.drgn.struct_pages.vmemmap import VmemmapScan
from mmscope.drgn.tables.display import size_name
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, column
from mmscope.drgn.tables.table import table

BOOT, LATER = "nr_memmap_boot_pages", "nr_memmap_pages"
ON_DEVICE = "struct page, on the device (altmap)"
NOT_READABLE = "struct page, origin not readable"


@table("memory_about_memory", "Page metadata")
class MetadataPart:
    """A kind of page metadata: memory that describes memory."""

    part: str = column(holds="words", key=True, help="what it is and where it lies")
    bytes: int = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="of page frames; remainder: the counter's surplus",
    )
    percent: float = column(
        unit="%", low=None, help="of the machine's memory (present pages of all zones)"
    )
    counted_in: str | None = column(
        holds="kernel",
        help="its counter in /proc/vmstat, if this kernel has it (6.12)",
    )
    on_device: bool = column(help="takes device memory, not RAM")


SHADOW_PARTS = ("KASAN shadow", "page tables of the KASAN shadow")


@table(
    "memmap_what_if",
    "Struct pages of a machine of this size",
    not_compared="it is computed from the size of the machine",
)
class WhatIf:
    """Struct pages of the whole machine, if all memory were used in one way."""

    scheme: str = column(holds="words", key=True, help="assumed use of all memory")
    page_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="page size of that use")
    vmemmap_pages: int | None = column(
        unit="pages",
        high=MOST_PAGES,
        help="base pages of struct pages a page",
    )
    kept_pages: int | None = column(unit="pages", high=MOST_PAGES, help="of these, kept")
    metadata_bytes: int = column(unit="bytes", high=MOST_BYTES, help="struct pages would take")
    saved_bytes: int = column(
        unit="bytes", low=None, high=MOST_BYTES, help="against one struct page for each base page"
    )
    saved_percent: float = column(unit="%", low=None, help="of the machine's memory")
    initialised_struct_pages: int | None = column(
        since="0.2.0",
        help="when memory comes or joins the pool",
    )
    init_ms_low: float | None = column(
        since="0.2.0",
        unit="ms",
        help="estimate, at least: 8.0 ns a struct page on one CPU",
    )
    init_ms_high: float | None = column(
        since="0.2.0",
        unit="ms",
        help="estimate, at most: 11.9 ns a struct page on one CPU",
    )
    formula: str = column(holds="words", help="of saved_bytes; M: the machine's memory")


def frame_origins(
    prog: Program,
    where: Memmap,
    leaves: Leaves,
    altmaps: list[PagemapRange],
    tails: S64s,
    gaps: Gaps,
) -> Counter[str]:
    """
    Bytes of the frames of some entries of the vmemmap, by where they come from.

    :param tails: of :func:`shared_tails`.
    """
    first = leaves[~leaves["reused"]]
    first = first[np.argsort(first["frame"], kind="stable")]
    frames, sizes = first["frame"], first["size"]
    flags, known = page_flags(prog, where, frames, gaps)
    device = np.zeros(len(frames), np.bool_)
    for each in altmaps:
        device |= (frames >= each.start_pfn) & (frames < each.end_pfn)
    left = np.ones(len(frames), np.bool_)
    found = Counter[str]()
    # In this order: a device's are marked as reserved, too, and in 6.1 self-hosted frames.
    for origin, which in (
        ("shared tails", np.isin(frames, tails)),
        ("altmap", device),
        ("self-hosted", known & ((flags & np.uint64(flag(prog, "PG_vmemmap_self_hosted"))) != 0)),
        ("boot", known & ((flags & np.uint64(flag(prog, "PG_reserved"))) != 0)),
        ("later", known),
        ("unknown", left),
    ):
        found[origin] = int(sizes[left & which].sum())
        left &= ~which
    return found


def shared_tails(prog: Program, where: Memmap) -> S64s:
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
    prog: Program, scan: VmemmapScan, origins: Counter[str]
) -> list[MetadataPart]:
    """
    All parts; with the counters of /proc/vmstat, where there are any, and what they have beyond.

    The bytes of a counter's parts and of its remainder add up to the counter.

    :param origins: sums of :func:`frame_origins`.
    """
    total = present_bytes(prog)
    page = 1 << scan.memmap.page_shift
    sections = scan.memmap.sections
    # "mm: don't account memmap per-node" (f4cb78af91e3, in v6.12)
    counters = {
        name: prog.variable(name).counter.value_() * page for name in (BOOT, LATER) if name in prog
    }
    usage = _usage_bytes(prog, scan.memmap) * len(sections.numbers)
    tables = sum(row.tables for row in scan.mappings) * page
    parts = [
        ("struct page, allocated at boot", origins["boot"], BOOT),
        ("struct page, allocated since", origins["later"], LATER),
        ("struct page, in the hot-added memory itself", origins["self-hosted"], LATER),
        (ON_DEVICE, origins["altmap"], LATER),
        ("struct page, shared by HVO's tails", origins["shared tails"], ""),
        *((NOT_READABLE, size, "") for size in (origins["unknown"],) if size),
        ("page_ext", _page_ext_bytes(prog), LATER),
        ("mem_section", sections.root_bytes, ""),
        ("mem_section_usage (pageblock types)", usage, ""),
        ("page tables of the vmemmap", tables, ""),
    ]
    for counter, counted in counters.items():
        found = sum(size for _, size, counted_in in parts if counted_in == counter)
        parts.append((f"remainder of {counter}", counted - found, counter))
    return [
        MetadataPart(
            part,
            size,
            _percent(size, total),
            counter if counter in counters else None,
            part == ON_DEVICE,
        )
        for part, size, counter in parts
    ]


def shadow_parts(prog: Program, shadow: Frames) -> list[MetadataPart]:
    """KASAN's shadow and its tables; nothing where there are none."""
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
    page = 1 << page_shift
    each = total // page

    def row(
        scheme: str,
        saved: int,
        initialised: int | None,
        formula: str,
        size: int | None = None,
        fills: int | None = None,
        kept: int | None = None,
    ) -> WhatIf:
        low, high = (None, None) if initialised is None else estimate_ms(initialised)
        metadata, percent = each * page_bytes - saved, _percent(saved, total)
        return WhatIf(
            scheme, size, fills, kept, metadata, saved, percent, initialised, low, high, formula
        )

    rows = [
        row("a struct page for every page", 0, each, "0", page),
        row("no struct page at all", each * page_bytes, 0, f"M / {page:,} x {page_bytes}"),
    ]
    for levels in (1, 2) if shares else ():
        size = page << (levels * (page_shift - 3))
        fills = size // page * page_bytes // page
        for kept, who in ((2, "device-dax"), (1, "hugetlb with HVO")):
            skips = fills > kept and (kept == 2 or (skips_tails and levels == 2))
            rows.append(
                row(
                    f"{size_name(size)} pages, {who}",
                    total * max(fills - kept, 0) * page // size,
                    total * (kept * page // page_bytes) // size if skips else each,
                    f"M / {size_name(size)} x ({fills:,} - {kept}) x {size_name(page)}",
                    size,
                    fills,
                    kept,
                )
            )
    if now is not None:
        how = "entries of the vmemmap whose frame another entry has too"
        rows.append(row("as it is now", now, None, how))
    return rows


def skips_tails(prog: Program) -> bool:
    """
    Struct pages of gigantic hugetlb pages are left uninitialised where HVO frees them ("hugetlb:
    skip initialization of gigantic tail struct pages if freed by HVO", fde1c4ecf916, in v6.7).
    """
    return constant(prog, "MEMBLOCK_RSRV_NOINIT", 0) != 0


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_metadata")
