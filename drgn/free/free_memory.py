# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One pass over the struct pages for everything that is free.

Free lists, per-CPU lists and the pageblock map need the same pages; this runs the pass once and
keeps what each of them collected. What one of them could not do is kept as its exception, so that
the others have their rows.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from drgn import FaultError, Program

from mmscope.drgn.free.free_lists import FreeBlockFinder, FreeBlocks, FreeLists, free_lists
from mmscope.drgn.free.pageblocks import PageblockPages, PageblockTypes, pageblock_types
from mmscope.drgn.free.pcp_lists import PcpFinder, PcpLists, PcpPages, pcp_pages
from mmscope.drgn.free.zones import (
    FreeAccounting,
    FreeCounters,
    for_each_zone,
    free_accounting,
    free_counters,
    zone_name,
)
from mmscope.drgn.reading.struct_pages import Consumer, Scan, flag_fields, scan_struct_pages
from mmscope.drgn.sections.memory import Memory

_Finder = TypeVar("_Finder", bound=Consumer)


@dataclass
class FreeMemory:
    """The results of a pass; ask it for the part you need, which raises if that part failed."""

    prog: Program
    types: PageblockTypes
    zone_names: dict[int, tuple[int, str]]
    scan: Scan
    counters: dict[tuple[int, str], FreeCounters] | Exception  # read right after the pass
    _blocks: FreeBlockFinder
    _pcp: PcpFinder
    _pageblocks: PageblockPages

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
        return free_accounting(
            self.counters,
            self._list_pages(isolate=False),
            self._list_pages(isolate=True),
            on_pcp_lists,
        )

    @cached_property
    def pcp_lists(self) -> PcpLists:
        pages = pcp_pages(self.prog, self.pcp, self.types.names)
        self.pcp.forget()
        return pages

    @cached_property
    def lists(self) -> FreeLists:
        # Before, as both kinds of links at once take more memory. If it fails, it will say so when
        # it is asked for.
        with contextlib.suppress(Exception):
            _ = self.pcp_lists
        lists = free_lists(self.prog, self.blocks)
        self.blocks.forget()
        return lists

    def _list_pages(self, *, isolate: bool) -> dict[tuple[int, str], int]:
        """(node, zone) to free pages on its lists: those of Isolate, or all others."""
        return pages_by_zone(
            row for row in self.lists.blocks if (row.migratetype == "Isolate") is isolate
        )


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
        free = scan_free_memory(memory.prog, memory.progress, more, jobs=memory.jobs)
        whole = (each for each in more if free.scan.failure_of(each) is None)
        memory.keep_consumers(whole, free.scan.gaps)
        return free

    return memory.once("free", scan)


def scan_free_memory(
    prog: Program,
    progress: Callable[[int, int], None] | None = None,
    more: Sequence[Consumer] = (),
    *,
    jobs: int = 1,
) -> FreeMemory:
    """
    Run the pass.

    :param progress: called with (pages done, pages in all).
    :param more: others who want to see every page; ``scan.failure_of`` says of each whether it
        could go on.
    :param jobs: how many processes may share the pass.
    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: zones or sections cannot be read.
    """
    fields = flag_fields(prog)
    types = pageblock_types(prog)
    zones, names = [], {}
    for node, index, zone in for_each_zone(prog):
        if zone.present_pages.value_():
            number = node * fields.zones_per_node + index
            start = zone.zone_start_pfn.value_()
            zones.append((number, start, start + zone.spanned_pages.value_()))
            names[number] = node, zone_name(zone)
    blocks = FreeBlockFinder(prog, types, fields)
    pcp = PcpFinder(prog)
    pageblocks = PageblockPages(types, fields, zones)
    consumers: list[Consumer] = [blocks, pcp, pageblocks, *more]
    scan = scan_struct_pages(prog, consumers, progress=progress, jobs=jobs)
    counters: dict[tuple[int, str], FreeCounters] | Exception
    try:
        counters = free_counters(prog)
    except (FaultError, ValueError) as error:
        counters = error
    return FreeMemory(prog, types, names, scan, counters, blocks, pcp, pageblocks)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("free_lists")
