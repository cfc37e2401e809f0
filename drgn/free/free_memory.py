# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One pass over the struct pages for everything that is free.

Free lists, per-CPU lists and the pageblock map need the same pages; this runs the pass once and
keeps what each of them collected. What one of them could not do is kept as its exception, so that
the others have their rows.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

from drgn import FaultError, Program

from mmscope.drgn.free.free_lists import FreeBlockFinder, FreeBlocks, FreeLists, free_lists
from mmscope.drgn.free.pageblocks import PageblockPages, pageblock_types
from mmscope.drgn.free.pcp_lists import PcpFinder, PcpLists, PcpPages, pcp_pages
from mmscope.drgn.free.zones import (
    FreeAccounting,
    FreeCounters,
    for_each_zone,
    free_accounting,
    free_counters,
    zone_name,
)
from mmscope.drgn.reading.struct_pages import Consumer, flag_fields, scan_struct_pages
from mmscope.drgn.sections.memory import Memory

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
        zones = []
        self.zone_names: dict[int, tuple[int, str]] = {}
        for node, index, zone in for_each_zone(prog):
            if zone.present_pages.value_():
                number = node * fields.zones_per_node + index
                start = zone.zone_start_pfn.value_()
                zones.append((number, start, start + zone.spanned_pages.value_()))
                self.zone_names[number] = node, zone_name(zone)
        self._blocks = FreeBlockFinder(prog, self.types, fields)
        self._pcp = PcpFinder(prog)
        self._pageblocks = PageblockPages(self.types, fields, zones)
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

    @cached_property
    def lists(self) -> FreeLists:
        # Before, as both kinds of links at once take more memory. If it fails, it will say so when
        # it is asked for.
        with contextlib.suppress(Exception):
            _ = self.pcp_lists
        lists = free_lists(self.prog, self.blocks)
        self.blocks.forget()
        return lists


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


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("free_lists")
