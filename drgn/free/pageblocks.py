# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pageblocks: the migratetype of every block of ``pageblock_nr_pages`` pages.

Reads ``mem_section.usage->pageblock_flags`` of every section with struct pages (SPARSEMEM) or
``zone.pageblock_flags`` (FLATMEM): a few bits a pageblock, 64 bytes a section of 128 MiB. The text
that says the same is the last table of /proc/pagetypeinfo (root only).

A section whose usage cannot be read costs its own pageblocks: they are counted as unreadable, and
are in no row.

Cannot know: a smaller ``pageblock_order`` than usual, which is a constant of the build, without
SPARSEMEM, or where no node has two sections. Pass the order then.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

import numpy as np
from drgn import FaultError, FindObjectFlags, Object, Program, offsetof
from numpy.typing import NDArray

from mmscope.drgn.opening.constants import pmd_order
from mmscope.drgn.reading.kernel_arrays import Bools, Gaps, S64s
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.mem_sections import (
    read_usage,
    subsection_maps,
    subsection_order,
    valid_sections,
)
from mmscope.drgn.reading.shares import Shared, merges, summed
from mmscope.drgn.reading.struct_pages import FlagFields, PageChunk
from mmscope.drgn.tables.rows import MOST_PAGES, column
from mmscope.drgn.tables.table import RUNS, table
from mmscope.drgn.text.proc_text import parse_pagetypeinfo


@table("pageblocks", "Pageblocks by migratetype")
class Pageblocks:
    """Pageblocks of one migratetype in one zone; without those that have no online page."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    migratetype: str = column(holds="kernel", key=True, help="of the pageblock")
    blocks: int = column(unit="blocks", help="pageblocks")


@table(
    "pageblock_map",
    "Pageblock map, run-length encoded",
    not_compared=RUNS + " (pageblocks has the census)",
)
class PageblockRun:
    """Neighbouring pageblocks that are alike: the pageblock map, run-length encoded."""

    start_pfn: int = column(key=True, high=MOST_PAGES, help="first page frame of the run")
    blocks: int = column(unit="blocks", help="pageblocks in the run")
    node: int = column(help="NUMA node")
    zone: str = column(holds="kernel", help="zone name")
    migratetype: str = column(holds="kernel", help="of every pageblock in the run")
    free_eighths: int | None = column(
        high=8,
        help="free share in eighths: 0: none, 8: all, else 1 to 7",
    )


TOLD = "mmscope pageblock_order"
LONG = 8


def migratetype_names(prog: Program) -> list[str]:
    """The kernel's names of its migratetypes, by value (``migratetype_names``, mm/show_mem.c)."""
    return [name_at(name) for name in prog["migratetype_names"]]


def set_pageblock_order(prog: Program, order: int) -> None:
    """
    Tell the ``pageblock_order`` of a kernel whose build had another than the usual.

    It is a fact of the target that its debug info lacks: the program has it as the variable that
    other builds have, before any of its own.
    """

    def find(
        prog: Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> Object | None:
        if name != "pageblock_order" or not flags & FindObjectFlags.VARIABLE:
            return None
        return Object(prog, "unsigned int", order)

    prog.register_object_finder(TOLD, find, enable_index=0)


def pageblock_order(prog: Program) -> int:
    """
    ``pageblock_order``: a variable where huge page sizes vary, else a constant of the build, which
    is found once.

    The order given to :func:`set_pageblock_order` overrides it.
    """
    with contextlib.suppress(KeyError):  # CONFIG_HUGETLB_PAGE_SIZE_VARIABLE, or told
        return int(prog.variable("pageblock_order").value_())
    # include/linux/pageblock-flags.h: min(HUGETLB_PAGE_ORDER, PAGE_BLOCK_MAX_ORDER).
    max_order = (prog.type("struct zone").member("free_area").type.length or 11) - 1
    usual = min(pmd_order(prog), max_order)
    order = usual
    with contextlib.suppress(FaultError, LookupError, ValueError):
        order = min(usual, _order_by_room(prog, usual))
    set_pageblock_order(prog, order)
    return order


def _order_by_room(prog: Program, usual: int) -> int:
    """
    The order by the room that sections have for flags of pageblocks. CONFIG_PAGE_BLOCK_MAX_ORDER
    may be smaller since "mm: add CONFIG_PAGE_BLOCK_ORDER to select page block order" (e13e7922d034,
    in v6.16).

    The usages of a node's sections of boot lie behind each other (``sparse_init_nid()``). Room is
    whole longs: where one is enough, which flags are in use tells one order from another.
    """
    sections, (bits, _) = valid_sections(prog), pageblock_bits(prog)
    offset = offsetof(prog.type("struct mem_section_usage"), "pageblock_flags")
    boot = sections.early & sections.usage_possible
    apart, times = np.unique(np.diff(sections.usage[boot].astype(np.int64)), return_counts=True)
    room = int(apart[np.argmax(times)]) - offset if len(apart) else 0
    if room < LONG or room & (room - 1):
        return usual
    blocks = room * 8 // bits
    if room == LONG:
        raw, _ = read_usage(prog, sections, offset + LONG, Gaps())
        words = raw[boot, offset:].reshape(-1, LONG).view("<u8")
        usual_blocks = sections.pages >> usual
        # Most blocks of most sections are of a type that is not 0.
        while blocks > usual_blocks:
            upper = words >> np.uint64(blocks // 2 * bits)
            if 2 * np.count_nonzero(upper) >= len(words):
                break
            blocks //= 2
    return (sections.pages // max(blocks, 1)).bit_length() - 1


def pageblock_bits(prog: Program) -> tuple[int, int | None]:
    """
    The layout of a pageblock's bits.

    Since "mm/page_isolation: make page isolation a standalone bit" (e904bce2d9d4, in v6.17) a
    pageblock has five flags, stored in eight bits, and Isolate is a bit beside the type it keeps;
    before, it has four and Isolate is a type (include/linux/pageblock-flags.h).

    :return: (bits a pageblock, mask of the Isolate bit or None).
    """
    for name in ("__NR_PAGEBLOCK_BITS", "NR_PAGEBLOCK_BITS"):
        with contextlib.suppress(LookupError):
            flags = prog.constant(name).value_()
            break
    else:
        raise LookupError(
            "enum pageblock_bits has neither __NR_PAGEBLOCK_BITS nor NR_PAGEBLOCK_BITS"
        )
    try:
        isolate = 1 << prog.constant("PB_migrate_isolate").value_()
    except LookupError:
        isolate = None
    return 1 << (flags - 1).bit_length(), isolate


@dataclass(frozen=True, slots=True)
class PageblockTypes:
    """
    The migratetype of every pageblock, by number (PFN >> order).

    ``types[number]`` is an index into ``names``, or -1 for no type: no section, a type that
    cannot be, or one that could not be read. ``online``, by PFN >> online_order, says where there
    is an online page (``pfn_to_online_page()``), as far as that could be read.
    """

    order: int
    names: list[str]
    types: NDArray[np.int8]
    online: Bools
    online_order: int
    unreadable: int = 0  # pageblocks of sections whose usage could not be read
    gaps: Gaps = field(default_factory=Gaps)  # bytes of that

    def of(self, pfns: S64s) -> NDArray[np.int8]:
        """The migratetype of the pageblock of each PFN; -1 where unknown."""
        numbers = pfns >> self.order
        inside = numbers < len(self.types)
        result = np.full(len(pfns), -1, np.int8)
        result[inside] = self.types[numbers[inside]]
        return result


def pageblock_types(prog: Program) -> PageblockTypes:
    """
    Read the migratetype of every pageblock of the machine.

    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: a ``struct mem_section``, or a FLATMEM zone's bits, cannot be read.
    """
    order = pageblock_order(prog)
    names = migratetype_names(prog)
    bits, isolate_mask = pageblock_bits(prog)
    if "mem_section" not in prog:
        return _flatmem_types(prog, order, names, bits, isolate_mask)
    sections, gaps = valid_sections(prog), Gaps()
    blocks = sections.pages >> order
    online_order = subsection_order(prog)
    offset = offsetof(prog.type("struct mem_section_usage"), "pageblock_flags")
    raw, read = read_usage(prog, sections, offset + max(blocks * bits // 8, 1), gaps)
    packed = raw[:, offset:]
    fields = packed.shape[1] * 8 // bits  # of a section: no less than it has pageblocks
    found = _decode(packed.tobytes(), len(raw) * fields, bits, isolate_mask, names)
    found = found.reshape(len(raw), fields)[:, :blocks]
    found[~read] = -1
    # A hole has struct pages where other pages of its section are; it has no page.
    there = subsection_maps(prog, sections, raw)
    if not _holes_are_offline(prog):
        there |= (sections.early & read)[:, None]
    there &= sections.online[:, None]
    count = int(sections.numbers.max(initial=-1)) + 1
    types = np.full((count, blocks), -1, np.int8)
    online = np.zeros((count, there.shape[1]), np.bool_)
    types[sections.numbers] = found
    online[sections.numbers] = there
    unreadable = int((~read).sum()) * blocks
    return PageblockTypes(
        order, names, types.ravel(), online.ravel(), online_order, unreadable, gaps
    )


def _holes_are_offline(prog: Program) -> bool:
    """
    True if ``pfn_to_online_page()`` looks at the map of a section that was there at boot: since
    "mm: teach pfn_to_online_page() to consider subsection validity" (9f9b02e5b346, in v5.12), which
    came with "mm: move pfn_to_online_page() out of line".
    """
    try:
        prog.symbol("pfn_to_online_page")
    except LookupError:
        return False
    return True


def _flatmem_types(
    prog: Program, order: int, names: list[str], bits: int, isolate_mask: int | None
) -> PageblockTypes:
    end = prog["max_pfn"].value_()
    count = (end >> order) + 1
    types = np.full(count, -1, np.int8)
    zones = prog["contig_page_data"].node_zones
    for zone in zones:
        spanned = zone.spanned_pages.value_()
        if not spanned:
            continue
        start = zone.zone_start_pfn.value_() >> order
        blocks = ((zone.zone_start_pfn.value_() + spanned - 1) >> order) - start + 1
        # usemap_size() (mm/mm_init.c) rounds up to whole longs.
        data = prog.read(zone.pageblock_flags.value_(), -(-blocks * bits // 64) * 8)
        types[start : start + blocks] = _decode(data, blocks, bits, isolate_mask, names)
    return PageblockTypes(order, names, types, types >= 0, order)


def _decode(
    data: bytes, blocks: int, bits: int, isolate_mask: int | None, names: list[str]
) -> NDArray[np.int8]:
    """Migratetypes out of packed pageblock flags; the low bits are the lower pageblock."""
    packed = np.frombuffer(data, np.uint8)
    if bits == 4:
        flags = np.stack((packed & 15, packed >> 4), axis=1).ravel()[:blocks]
    else:
        flags = packed[:blocks]
    types = (flags & 7).astype(np.int8)
    if isolate_mask is not None and "Isolate" in names:
        types[(flags & isolate_mask) != 0] = names.index("Isolate")
    # Three bits hold eight values, the kernel has fewer: anything else is damage, not a type.
    types[types >= len(names)] = -1
    return types


class PageblockPages(Shared):
    """
    Consumer of the struct page pass: which zone each pageblock counts for, and its free pages.

    The kernel's census (``pagetypeinfo_showblockcount_print()``, mm/vmstat.c) looks, from each
    zone's first page, at one page a pageblock, and counts the block if that page is online and in
    the zone. This looks at the same pages.

    :param reserved: PG_reserved.
    :param zones: (zone index, first PFN, PFN after the last) of every zone with pages.
    :param all_zones: index of every zone, without pages too.
    :ivar outside: by zone index, pageblocks whose first page says that it is of the zone, beyond
        whose ends it lies. Reserved ones do not count: holes have the flags of a zone nearby
        (``init_unavailable_range()``, mm/mm_init.c).
    :ivar nowhere: pageblocks whose first page says that it is of a zone that there is not.
    """

    columns = ("flags", "mapcount", "private")
    MERGES = merges(zone=np.maximum, census=summed, outside=summed, nowhere=add)

    def __init__(
        self,
        types: PageblockTypes,
        fields: FlagFields,
        zones: Sequence[tuple[int, int, int]],
        all_zones: Sequence[int],
        reserved: int,
    ) -> None:
        self.types = types
        self.reserved = np.uint64(reserved)
        self.fields = fields
        self.zones = zones
        self.all_zones = all_zones
        count = len(types.types)
        self.zone = np.full(count, -1, np.int32)
        self.census: dict[tuple[int, int], int] = {}
        self.outside = Counter[int]()
        self.nowhere = 0

    def take(self, chunk: PageChunk) -> None:
        step = 1 << self.types.order
        end = chunk.start_pfn + len(chunk)
        for zone, zone_start, zone_end in self.zones:
            first = max(chunk.start_pfn, zone_start)
            first += (zone_start - first) % step
            last = min(end, zone_end)
            if first >= last:
                continue
            flags = chunk["flags"][first - chunk.start_pfn : last - chunk.start_pfn : step]
            pfns = np.arange(first, last, step)
            inside = pfns < len(self.types.types) << self.types.order
            flags, pfns = flags[inside], pfns[inside]
            pfns = pfns[self.fields.zone_index(flags) == zone]
            online = self.types.online[pfns >> self.types.online_order]
            numbers = pfns[online] >> self.types.order
            self.zone[numbers] = zone
            for migratetype, blocks in zip(
                *np.unique(self.types.types[numbers], return_counts=True), strict=True
            ):
                key = zone, int(migratetype)
                self.census[key] = self.census.get(key, 0) + int(blocks)
        self._take_outside(chunk)

    def _take_outside(self, chunk: PageChunk) -> None:
        step = 1 << self.types.order
        first = chunk.start_pfn + -chunk.start_pfn % step
        last = min(chunk.start_pfn + len(chunk), len(self.types.types) << self.types.order)
        pfns = np.arange(first, last, step)
        if not len(pfns):
            return
        flags = chunk["flags"][pfns - chunk.start_pfn]
        index = self.fields.zone_index(flags)
        known = self.types.online[pfns >> self.types.online_order]
        self.nowhere += int((known & ~np.isin(index, self.all_zones)).sum())
        known &= flags & self.reserved == 0
        pfns, index = pfns[known], index[known]
        for zone, zone_start, zone_end in self.zones:
            here = pfns[index == zone]
            if out := int(np.count_nonzero((here < zone_start) | (here >= zone_end))):
                self.outside[zone] += out


def pageblocks(census: PageblockPages, zone_names: dict[int, tuple[int, str]]) -> list[Pageblocks]:
    """
    Pageblocks by zone and migratetype, after the pass; every type is listed, also with 0 blocks.

    :param zone_names: zone index to (node, zone name).
    """
    names = dict(enumerate(census.types.names))
    rows = []
    for index, key in zone_names.items():
        for migratetype, name in names.items():
            rows.append(Pageblocks(*key, name, census.census.get((index, migratetype), 0)))
        if damaged := census.census.get((index, -1), 0):
            rows.append(Pageblocks(*key, "unknown", damaged))
    return rows


# Pageblocks of a zone that may be missing: the census looks at one page of each, which may be in a
# hole of the memory map. On no machine of the lab is any.
MISSED = 32


def short_zones(
    rows: list[Pageblocks], present: Mapping[tuple[int, str], int], order: int
) -> list[str]:
    """
    In words, which zones have fewer pageblocks than their present pages would fill.

    ``zone_start_pfn`` or ``present_pages`` is damaged then, or pages say that they are elsewhere.

    :param present: (node, zone name) to ``present_pages``.
    """
    blocks: Counter[tuple[int, str]] = Counter()
    for row in rows:
        blocks[row.node, row.zone] += row.blocks
    return [
        f"the pageblocks found in zone {zone} of node {node} have {found:,} pages, but it has "
        f"{pages:,} present"
        for (node, zone), pages in present.items()
        if (found := blocks[node, zone] << order) < pages - (MISSED << order)
    ]


# Pageblocks of a type that a zone counts; where it lies, and what that has of a pageblock.
COUNTED = {"Isolate": "nr_isolate_pageblock", "HighAtomic": "nr_reserved_highatomic"}


def counts_apart(
    rows: list[Pageblocks], zones: Mapping[tuple[int, str], Object], order: int
) -> list[str]:
    """
    In words, which zones count other pageblocks of a type than there are. One that is isolated and
    given back may have another type then (``undo_isolate_page_range()``, mm/page_isolation.c).

    :param zones: each ``struct zone``, by node and name.
    """
    blocks = {(row.node, row.zone, row.migratetype): row.blocks for row in rows}
    found = []
    for (node, name), zone in zones.items():
        for migratetype, member in COUNTED.items():
            key = node, name, migratetype
            if key not in blocks or not zone.type_.has_member(member):
                continue
            said = int(zone.member_(member))
            there = blocks[key] << (order if migratetype == "HighAtomic" else 0)
            if said != there:
                found.append(
                    f"{member} of zone {name} of node {node} is {said:,}, but {there:,} by the "
                    "pageblocks: one was isolated meanwhile, or damage"
                )
    return found


def pageblock_runs(
    census: PageblockPages, free_pages: S64s | None, zone_names: dict[int, tuple[int, str]]
) -> list[PageblockRun]:
    """
    The pageblock map, run-length encoded.

    :param free_pages: free pages of each pageblock, None if they were not counted.
    """
    order = census.types.order
    known = np.flatnonzero(census.zone >= 0)
    if not len(known):
        return []
    zone, types = census.zone[known], census.types.types[known]
    if free_pages is None:
        eighths = np.full(len(known), -1, np.int64)
    else:
        full = 1 << order
        free = np.minimum(free_pages[known], full)
        eighths = np.where(free == full, 8, np.where(free == 0, 0, np.clip(free * 8 // full, 1, 7)))
    new = np.ones(len(known), np.bool_)
    new[1:] = np.diff(known) != 1
    for each in (zone, types, eighths):
        new[1:] |= np.diff(each) != 0
    starts = np.flatnonzero(new)
    lengths = np.diff(np.append(starts, len(known)))
    return [
        PageblockRun(
            int(known[start]) << order,
            int(length),
            *zone_names[int(zone[start])],
            census.types.names[types[start]] if types[start] >= 0 else "unknown",
            None if free_pages is None else int(eighths[start]),
        )
        for start, length in zip(starts, lengths, strict=True)
    ]


def read_pagetypeinfo_blocks(text: str) -> list[Pageblocks]:
    """
    The same rows from /proc/pagetypeinfo, which has a table of them for each node.

    :raises ValueError: the text is not /proc/pagetypeinfo's, or not all of it.
    """
    info = parse_pagetypeinfo(text)
    return [
        Pageblocks(*zone, name, blocks)
        for zone, counts in info.blocks.items()
        for name, blocks in zip(info.names, counts, strict=True)
    ]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("pageblocks")
