# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows that findings of several areas look at."""

import dataclasses
from typing import Any

from mmscope.drgn.free.free_lists import FreeBlocks
from mmscope.drgn.free.pcp_lists import PcpPages
from mmscope.drgn.free.zones import Zone
from mmscope.drgn.ledger.memory_ledger import REMAINDER, LedgerCheck, LedgerRow, LedgerTag
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.owners.page_owner_rows import PageOwnerStack
from mmscope.drgn.struct_pages.hugetlb import HugetlbSize
from mmscope.reports.rows.watch_rows import CounterRate

MIB, GIB = 1 << 20, 1 << 30
ZONE = Zone(
    node=0, zone="Normal", present_pages=1 << 20, managed_pages=1_000_000, spanned_pages=1 << 20,
    free_pages=200_000, wmark_min=10_000, wmark_low=12_500, wmark_high=15_000, wmark_boost=0,
    highatomic_reserved_pages=0, highatomic_free_pages=0, highatomic_cap_pages=10_240,
    start_pfn=1 << 20, lock_held=False, node_unreclaimable=False,
)  # fmt: skip


def zone(**changes: Any) -> Zone:
    """A zone that is so; the rest of it is as it must be then."""
    row = dataclasses.replace(ZONE, **changes)
    pages = max(row.present_pages, row.managed_pages)
    least = min(row.wmark_low, row.wmark_high)
    return dataclasses.replace(
        row,
        present_pages=pages,
        spanned_pages=max(row.spanned_pages, pages),
        wmark_min=min(row.wmark_min, least),
        wmark_low=least,
    )


def free(order: int, blocks: int, migratetype: str | None = "Movable", **where: Any) -> FreeBlocks:
    place = {"node": 0, "zone": "Normal"} | where
    return FreeBlocks(**place, order=order, migratetype=migratetype, blocks=blocks,
                      pages=blocks << order)  # fmt: skip


def all_orders(**blocks: int) -> list[FreeBlocks]:
    """A row for each order, as a probe gives them; o9=3 means three blocks of order 9."""
    return [free(order, blocks.get(f"o{order}", 0)) for order in range(11)]


def event(name: str, value: int) -> VmCounter:
    return VmCounter(name, "event", value, 0)


# A rate of something, as a bundle of mmscope watch has it.
RATE = CounterRate(30.0, "vmstat", "pgfault", 5, 0.2, 30.0)


def owned(handle: int, pages: int, owner: str | None = "xfs_buf_alloc") -> PageOwnerStack:
    """A stack of page_owner's."""
    return PageOwnerStack(handle, pages, None, owner, owner and "xfs", owner and f"r;{owner}", None)


def huge_size(hvo: str | None, pages: int = 1000) -> HugetlbSize:
    return HugetlbSize(2 * MIB, pages, 0, 0, 0, 0, hvo, 28 << 10)


def pages_of(name: str, pages: int) -> VmCounter:
    return VmCounter(name, "node", pages, 0)


def slab(reclaimable: int, unreclaimable: int) -> list[VmCounter]:
    return [pages_of("nr_slab_reclaimable", reclaimable),
            pages_of("nr_slab_unreclaimable", unreclaimable)]  # fmt: skip


def on_lists(pages: int, cpus: int = 4) -> list[PcpPages]:
    return [PcpPages(0, "Normal", cpu, 0, "Movable", pages // cpus) for cpu in range(cpus)]


def ledger(unexplained: int) -> list[LedgerRow | LedgerCheck]:
    """A million pages, so many of them unexplained."""
    rest = 1_000_000 - unexplained
    return [
        LedgerRow("unexplained", "single pages", 0, "Normal", unexplained, 0, 0.0, ""),
        LedgerRow("free", "free lists", 0, "Normal", rest, 0, 0.0, ""),
        LedgerCheck("present_pages", 0, "Normal", 1_000_000, 1_000_000, 0, ""),
    ]


def text_ledger(left: int) -> list[LedgerRow]:
    """The same by counters of /proc/meminfo, so many pages left over."""
    parts = {
        "free": ("free lists", 200_000),
        "anonymous": ("mapped pages", 200_000),
        "hugetlb": ("in use or free in the pool", 600_000 - left),
        "unexplained": (REMAINDER, left),
    }
    return [
        LedgerRow(owner, part, -1, "", pages, pages << 12, pages / 1e4, "")
        for owner, (part, pages) in parts.items()
    ]  # fmt: skip


def of_line(
    pages: int, owner: str = "unexplained", module: str = "gpu", **changes: Any
) -> LedgerTag:
    """So many of a million pages that one line of source allocated."""
    row = LedgerTag(owner, "compound pages", module, "drivers/a.c", 7, "fill", pages, pages << 12)
    return dataclasses.replace(row, **changes)
