# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One pass over the struct pages for everything that is free.

Free lists, per-CPU lists and the pageblock map need the same pages; this runs the pass once and
keeps what each of them collected. What one of them could not do is kept as its exception, so that
the others have their rows.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

from drgn import FaultError, Program

from mmscope.drgn.free.free_lists import (
    FreeBlockFinder,
    FreeBlocks,
    FreeListCheck,
    FreeLists,
    MisplacedBlocks,
    free_lists,
    read_buddyinfo,
    read_pagetypeinfo,
)
from mmscope.drgn.free.pageblocks import (
    PageblockPages,
    PageblockRun,
    Pageblocks,
    counts_apart,
    pageblock_order,
    pageblock_runs,
    pageblock_types,
    pageblocks,
    read_pagetypeinfo_blocks,
    short_zones,
)
from mmscope.drgn.free.pcp_lists import (
    PcpCheck,
    PcpFinder,
    PcpLists,
    PcpPages,
    pcp_pages,
    read_zoneinfo_pcp,
)
from mmscope.drgn.free.zones import (
    FreeAccounting,
    FreeCounters,
    Zone,
    boost_beyond,
    for_each_zone,
    free_accounting,
    free_counters,
    locks_damaged,
    read_zoneinfo,
    reserve_beyond,
    totals_apart,
    zone_name,
    zones,
    zones_beyond_nodes,
)
from mmscope.drgn.opening.constants import flag
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.nodes import misnumbered
from mmscope.drgn.reading.struct_pages import Consumer, flag_fields, scan_struct_pages
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import (
    PASS_SECONDS,
    Command,
    Found,
    Section,
    not_in_text,
)
from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.table import table_of, tables_of
from mmscope.drgn.text.proc_text import parse_pagetypeinfo

_Finder = TypeVar("_Finder", bound=Consumer)


class FreeMemory:
    """
    A pass over the struct pages for what is free; ask it for the part you need, which raises if
    that part failed.

    :param progress: called with (pages done, pages in all).
    :param more: others who want to see every page; ``scan.failure_of`` says of each whether it
        could go on.
    :param jobs: how many processes may share the pass.
    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: zones or sections cannot be read.
    """

    def __init__(
        self,
        prog: Program,
        progress: Callable[[int, int], None] | None = None,
        more: Sequence[Consumer] = (),
        *,
        jobs: int = 1,
    ) -> None:
        fields = flag_fields(prog)
        self.prog, self.types = prog, pageblock_types(prog)
        # Before v5.12 holes have the flags of the first (init_unavailable_mem(), mm/page_alloc.c).
        zones, all_zones = [], [0]
        self.zone_names: dict[int, tuple[int, str]] = {}
        for node, number, zone in for_each_zone(prog):
            all_zones.append(number)
            if zone.present_pages.value_():
                start = zone.zone_start_pfn.value_()
                zones.append((number, start, start + zone.spanned_pages.value_()))
                self.zone_names[number] = node, zone_name(zone)
        self._blocks = FreeBlockFinder(prog, self.types, fields)
        self._pcp = PcpFinder(prog)
        self._pageblocks = PageblockPages(
            self.types, fields, zones, all_zones, flag(prog, "PG_reserved")
        )
        consumers: list[Consumer] = [self._blocks, self._pcp, self._pageblocks, *more]
        self.scan = scan_struct_pages(prog, consumers, progress=progress, jobs=jobs)
        self.counters: dict[tuple[int, str], FreeCounters] | Exception
        try:
            self.counters = free_counters(prog)  # right after the pass
        except (FaultError, ValueError) as error:
            self.counters = error

    def _whole(self, consumer: _Finder) -> _Finder:
        if (failure := self.scan.failure_of(consumer)) is not None:
            raise failure
        return consumer

    @property
    def blocks(self) -> FreeBlockFinder:
        return self._whole(self._blocks)

    @property
    def pcp(self) -> PcpFinder:
        return self._whole(self._pcp)

    @property
    def pageblocks(self) -> PageblockPages:
        return self._whole(self._pageblocks)

    def accounting(self, on_pcp_lists: dict[tuple[int, str], int] | None) -> list[FreeAccounting]:
        """NR_FREE_PAGES of every zone against its parts."""
        if isinstance(self.counters, Exception):
            raise self.counters
        isolate, others = (
            pages_by_zone(
                row for row in self.lists.blocks if (row.migratetype == "Isolate") is isolated
            )
            for isolated in (True, False)
        )
        whole = not self.scan.gaps.bytes
        return free_accounting(self.counters, others, isolate, on_pcp_lists, whole=whole)

    @cached_property
    def pcp_lists(self) -> PcpLists:
        pages = pcp_pages(self.prog, self.pcp, self.types.names)
        self.pcp.forget()
        return pages

    @property
    def lists(self) -> FreeLists:
        if isinstance(self._lists, Exception):
            raise self._lists
        return self._lists

    @cached_property
    def _lists(self) -> FreeLists | Exception:
        """The lists, or why they are not known: following the links uses them up."""
        # Before, as both kinds of links at once take more memory. If it fails, it will say so when
        # it is asked for.
        with contextlib.suppress(Exception):
            _ = self.pcp_lists
        try:
            return free_lists(self.prog, self.blocks)
        except Exception as error:
            return error
        finally:
            self._blocks.forget()


def pages_by_zone(rows: Iterable[FreeBlocks | PcpPages]) -> dict[tuple[int, str], int]:
    """(node, zone) to the pages of its rows."""
    total: dict[tuple[int, str], int] = {}
    for row in rows:
        total[row.node, row.zone] = total.get((row.node, row.zone), 0) + row.pages
    return total


def free_memory(memory: Memory) -> FreeMemory:
    """
    The pass over the struct pages for what is free, once for all sections, with the consumers of
    other sections.
    """

    def scan() -> FreeMemory:
        more = memory.make_consumers()
        free = FreeMemory(memory.prog, memory.progress, more, jobs=memory.jobs)
        whole = (each for each in more if free.scan.failure_of(each) is None)
        memory.keep_consumers(whole, free.scan.gaps)
        return free

    return memory.once("free", scan)


def of_pass(
    memory: Memory, kind: type[_Finder], make: Callable[[], _Finder]
) -> tuple[_Finder, Gaps]:
    """
    A consumer that saw every page in that pass, or else in one of its own; and what that pass could
    not read.

    :raises Exception: what the consumer failed with.
    """

    def own() -> tuple[_Finder, Gaps]:
        consumer = make()
        scan = scan_struct_pages(
            memory.prog, [consumer], progress=memory.progress, jobs=memory.jobs
        )
        if failure := scan.failure_of(consumer):
            raise failure
        return consumer, scan.gaps

    with contextlib.suppress(Exception):
        free_memory(memory)
    return memory.kept_consumer(kind) or memory.once(kind.__name__, own)


def zones_from_memory(memory: Memory) -> Found:
    rows = zones(memory.prog)
    found = Found(memory.live).add(Zone, rows)
    prog = memory.prog
    odd = *misnumbered(prog), *zones_beyond_nodes(prog)
    found.differ(*odd, *totals_apart(prog, rows), *locks_damaged(prog))
    factor = int(prog["watermark_boost_factor"]) if "watermark_boost_factor" in prog else 0
    for row in rows:
        if boost_beyond(row, factor, 1 << pageblock_order(prog)):
            words = f"watermark_boost of zone {row.zone} of node {row.node} is {row.wmark_boost:,}"
            found.differ(f"{words}, more than the kernel gives")
    # What is more than the machine has is marked as that.
    block, total = 1 << pageblock_order(memory.prog), sum(row.present_pages for row in rows)
    found.impossible += [
        Impossible(
            *(table_of(Zone).name, number, "highatomic_reserved_pages", None),
            str(row.highatomic_reserved_pages),
            f"{row.highatomic_reserved_pages:,} is more than a hundredth of the zone",
        )
        for number, row in enumerate(rows, 1)
        if reserve_beyond(row, block) and (row.highatomic_reserved_pages or 0) <= total
    ]
    return found


def zones_from_files(files: Files) -> Found:
    rows = read_zoneinfo(files.read("proc/zoneinfo"))
    found = Found()
    try:
        if any(row.highatomic_reserved_pages is None for row in rows):
            rows = with_reserve(rows, files.read("proc/pagetypeinfo"))
    except (Absent, ValueError) as reason:
        found.notes.append(f"HighAtomic reserve unknown: {reason}")
    return found.add(Zone, rows)


def with_reserve(rows: list[Zone], pagetypeinfo: str) -> list[Zone]:
    """
    Zones with their HighAtomic reserve, which is counted in whole pageblocks.

    How much of it the kernel takes for free stays unknown: the text does not say whether this one
    keeps such a count.

    :raises ValueError: the text is not /proc/pagetypeinfo's.
    """
    block = 1 << parse_pagetypeinfo(pagetypeinfo).block_order
    reserved = {
        (row.node, row.zone): row.blocks * block
        for row in read_pagetypeinfo_blocks(pagetypeinfo)
        if row.migratetype == "HighAtomic"
    }
    return [
        dataclasses.replace(row, highatomic_reserved_pages=reserved.get((row.node, row.zone)))
        for row in rows
    ]


def free_lists_from_memory(memory: Memory) -> Found:
    free = free_memory(memory)
    lists = free.lists
    found = Found(memory.live, unreadable_bytes=free.scan.gaps.bytes + free.types.gaps.bytes)
    found.notes += _gap_note(free)
    if lists.followed:
        what = "free blocks in them are not held against their pageblock's type"
    else:
        what = "free blocks in them are of unknown migratetype"
    found.notes += pageblock_note(free.types.unreadable, free.types.gaps, what)
    # Lists lead through struct pages that are missing: what is known of the others says nothing.
    whole = not free.scan.gaps.bytes
    if not whole:
        found.notes.append("so free lists are not held against struct pages (free_list_checks)")
    elif lists.checks:
        found.differ(
            f"{len(lists.checks)} free lists and their struct pages disagree (free_list_checks)"
        )
    if not lists.followed:
        found.notes.append(
            "too many free blocks to follow the lists in the memory that is left, or some beyond "
            "16 TiB: counted by pageblock"
        )
    found.add(FreeBlocks, lists.blocks)
    found.add(MisplacedBlocks, lists.misplaced)
    return found.add(FreeListCheck, lists.checks) if whole else found


def accounting_from_memory(memory: Memory) -> Found:
    free = free_memory(memory)
    found = Found(memory.live, notes=_gap_note(free), unreadable_bytes=free.scan.gaps.bytes)
    pcp: dict[tuple[int, str], int] | None = None
    try:
        pcp = pages_by_zone(free.pcp_lists.rows)
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"pages on per-CPU lists unknown: {error}")
    rows = free.accounting(pcp)
    if any(row.remainder_pages for row in rows):
        found.differ("the free lists and NR_FREE_PAGES differ by the remainder shown")
    return found.add(FreeAccounting, rows)


def free_lists_from_files(files: Files) -> Found:
    found = Found()
    try:
        rows = read_pagetypeinfo(files.read("proc/pagetypeinfo"))
    except (Absent, ValueError) as reason:
        rows = read_buddyinfo(files.read("proc/buddyinfo"))
        found.notes.append(f"{reason}; /proc/buddyinfo has orders, but no migratetypes")
    return found.add(FreeBlocks, rows)


def pcp_lists_from_memory(memory: Memory) -> Found:
    free = free_memory(memory)
    rows, checks = free.pcp_lists.rows, free.pcp_lists.checks
    found = Found(memory.live, notes=_gap_note(free), unreadable_bytes=free.scan.gaps.bytes)
    if checks:
        found.differ(f"{len(checks)} per-CPU lists differ from their count (pcp_checks)")
    found.add(PcpPages, rows)
    return found.add(PcpCheck, checks)


def pageblocks_from_memory(memory: Memory) -> Found:
    free = free_memory(memory)
    gaps = free.types.gaps
    found = Found(
        memory.live, notes=_gap_note(free), unreadable_bytes=free.scan.gaps.bytes + gaps.bytes
    )
    found.notes += pageblock_note(free.types.unreadable, gaps, "they are not counted")
    try:
        free_pages = free.blocks.pageblock_free
    except Exception as error:
        free_pages = None
        found.notes.append(f"free share of pageblocks unknown: {error}")
    rows = pageblocks(free.pageblocks, free.zone_names)
    # What could not be read is missing, and was said to be.
    if not free.types.unreadable and not free.scan.gaps.bytes:
        by_name = {(node, zone_name(zone)): zone for node, _, zone in for_each_zone(memory.prog)}
        present = {key: int(zone.present_pages) for key, zone in by_name.items()}
        found.differ(*short_zones(rows, present, free.types.order))
        for zone, blocks in sorted(free.pageblocks.outside.items()):
            node, name = free.zone_names[zone]
            what = plural(blocks, "pageblock")
            found.differ(f"beyond the ends of zone {name} of node {node}: {what}")
        found.differ(
            *if_any(free.pageblocks.nowhere, "of no zone of this machine: {}", "pageblock")
        )
        if not memory.live:
            found.remarks += counts_apart(rows, by_name, free.types.order)
    found.add(Pageblocks, rows)
    runs = pageblock_runs(free.pageblocks, free_pages, free.zone_names)
    return found.add(PageblockRun, runs)


def pageblock_note(blocks: int, gaps: Gaps, what: str) -> list[str]:
    """
    A note if ``mem_section.usage`` could not be read.

    :param blocks: pageblocks in such sections.
    :param what: comes of it.
    """
    if not blocks:
        return []
    return [
        f"the migratetypes of up to {blocks:,} pageblocks ({gaps.bytes:,} bytes of "
        f"mem_section.usage) could not be read: {what}"
    ]


def _gap_note(free: FreeMemory) -> list[str]:
    gaps = free.scan.gaps
    if not gaps.bytes:
        return []
    return [
        f"{gaps.bytes:,} bytes of struct pages could not be read{gaps.why}: their pages are "
        "not counted"
    ]


ZONES_SECTION = Section(
    name="zones",
    title="Zones and watermarks",
    tables=tables_of(
        Zone,
    ),
    intro="""
Each zone's free memory against its watermarks: kswapd wakes below *low* and works until *high*;
below *min* allocations reclaim for themselves, or fail if they may not wait and may not use
reserves. What is held back for HighAtomic requests is hatched, since to an ordinary request it
is not free ([kernel documentation:
zones](https://docs.kernel.org/mm/physical_memory.html#zones)).
""",
    command=Command("zones, watermarks and the HighAtomic reserve"),
    from_memory=zones_from_memory,
    from_files=zones_from_files,
    reads=(prices.ZONEINFO, prices.PAGETYPEINFO),
)

FREE_LISTS_SECTION = Section(
    name="free_lists",
    title="Free lists",
    tables=tables_of(FreeBlocks, MisplacedBlocks, FreeListCheck),
    intro="""
The buddy allocator's free blocks, by zone, order and migratetype: a shade is an amount of
memory, the figure in a cell the number of blocks. Look for memory that lies in orders too small
for the request that fails, or on the list of a migratetype that may not be used for it
([compaction](https://docs.kernel.org/admin-guide/mm/concepts.html#compaction), [/proc/buddyinfo
and /proc/pagetypeinfo](https://docs.kernel.org/filesystems/proc.html)).
""",
    command=Command("free blocks by zone, order and free list"),
    from_memory=free_lists_from_memory,
    from_files=free_lists_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.PAGETYPEINFO, prices.BUDDYINFO),
)

ACCOUNTING_SECTION = Section(
    name="accounting",
    title="Free pages, accounted for",
    tables=tables_of(
        FreeAccounting,
    ),
    intro="""
What each zone's NR_FREE_PAGES is made of. A remainder other than zero is memory that is counted
as free and lies on no free list, or the reverse: corruption on a dump, a few pages in motion on
a live kernel ([/proc/zoneinfo and
/proc/pagetypeinfo](https://docs.kernel.org/filesystems/proc.html)).
""",
    command=Command("what NR_FREE_PAGES is made of", name="free_accounting"),
    from_memory=accounting_from_memory,
    from_files=not_in_text(
        "the parts of NR_FREE_PAGES are not in /proc; read the kernel's memory (as root)"
    ),
    deadline=PASS_SECONDS,
)

PCP_LISTS_SECTION = Section(
    name="pcp_lists",
    title="Per-CPU lists",
    tables=tables_of(PcpPages, PcpCheck),
    intro="""
Pages that each CPU keeps for itself. They are free for that CPU and not counted in
NR_FREE_PAGES; no other CPU gets them until they go back to the zone. Large amounts here while other
CPUs reclaim are memory in the wrong place
([vm.percpu_pagelist_high_fraction](https://docs.kernel.org/admin-guide/sysctl/vm.html#percpu-pagelist-high-fraction)).
""",
    command=Command("free pages on per-CPU lists"),
    from_memory=pcp_lists_from_memory,
    from_files=lambda files: Found().add(PcpPages, read_zoneinfo_pcp(files.read("proc/zoneinfo"))),
    deadline=PASS_SECONDS,
    reads=(prices.ZONEINFO,),
)

PAGEBLOCKS_SECTION = Section(
    name="pageblocks",
    title="Pageblocks",
    tables=tables_of(Pageblocks, PageblockRun),
    intro="""
Every pageblock belongs to one migratetype, and the allocator tries to keep unlike allocations
out of it, so that whole blocks can become free again. The map shows where that failed:
unmovable blocks strewn over a zone, blocks that are nearly empty and still not free, a
HighAtomic reserve that holds what others need ([struct zone,
pageblock_flags](https://docs.kernel.org/mm/physical_memory.html#zones)).
""",
    command=Command("pageblocks by migratetype, and their map"),
    from_memory=pageblocks_from_memory,
    from_files=lambda files: Found().add(
        Pageblocks, read_pagetypeinfo_blocks(files.read("proc/pagetypeinfo"))
    ),
    deadline=PASS_SECONDS,
    reads=(prices.PAGETYPEINFO,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_sections

    print_sections("zones", "free_lists", "accounting", "pcp_lists", "pageblocks")
