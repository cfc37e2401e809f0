# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every finding: a bundle in which it is found, one in which it is not, one that cannot tell.

Each case is written as the rows of a bundle and the words that a reader must find.
"""

import dataclasses
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pytest
import rmap_rows as rmap
from hypothesis import given, settings
from hypothesis import strategies as st

from mmscope.drgn.cgroups.cgroup_rows import MemoryCgroup
from mmscope.drgn.cgroups.dying_pins import DyingPin
from mmscope.drgn.cgroups.percpu_owners import PercpuCgroup
from mmscope.drgn.filesystems.cached_file_rows import CachedFile, CachedFilesystem
from mmscope.drgn.filesystems.dentry_cache_rows import DentryCount, FilesystemDentries
from mmscope.drgn.free.free_lists import (
    FreeBlocks,
    FreeListCheck,
    MisplacedBlocks,
    read_pagetypeinfo,
)
from mmscope.drgn.free.pageblocks import Pageblocks
from mmscope.drgn.free.pcp_lists import PcpPages
from mmscope.drgn.free.zones import FreeAccounting, Zone
from mmscope.drgn.ledger.ledger_counters import LedgerCheck
from mmscope.drgn.ledger.memory_ledger import LedgerRow, LedgerTag, UnexplainedRow
from mmscope.drgn.ledger.percpu_chunks import PercpuChunk, PercpuSize
from mmscope.drgn.ledger.swap_areas import SwapArea
from mmscope.drgn.ledger.vmalloc_callers import VmallocCaller
from mmscope.drgn.log.oom_rows import (
    KILLED,
    OPEN,
    PANIC,
    OomCgroupMemory,
    OomFreeBlocks,
    OomKill,
    OomMemory,
    OomTask,
)
from mmscope.drgn.machine.kernel_features import FEATURES, KernelFeature
from mmscope.drgn.machine.physical_memory import PhysicalPart
from mmscope.drgn.machine.poisoned_pages import PoisonCounter, PoisonedPages
from mmscope.drgn.machine.settings import Setting
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.owners.alloc_tags import AllocTag
from mmscope.drgn.owners.page_owner_rows import PageOwnerGrowth, PageOwnerSnapshot, PageOwnerStack
from mmscope.drgn.owners.slab_caches import SlabCache
from mmscope.drgn.page_tables.exit_cost import ExitCost
from mmscope.drgn.page_tables.page_tables import PageTables
from mmscope.drgn.processes.process_memory import ProcessMemory
from mmscope.drgn.struct_pages.device_pagemaps import DevicePagemap
from mmscope.drgn.struct_pages.hugetlb import HugetlbPool, HugetlbSize
from mmscope.drgn.struct_pages.memory_metadata import MetadataPart, WhatIf, what_if
from mmscope.drgn.tables import display
from mmscope.drgn.tables.rows import column
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import Database, open_database
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.answerable import query_of
from mmscope.reports.findings.findings import (
    FINDINGS,
    HARMS,
    HIDES,
    SEVERITIES,
    Finding,
    NotChecked,
    Question,
    Step,
    Verdict,
    evaluate,
    known,
    load_questions,
    period,
)
from mmscope.reports.findings.findings import ask as evaluate_open
from mmscope.reports.findings.findings_text import print_findings
from mmscope.reports.rows.watch_rows import CounterRate

DATA = Path(__file__).parent / "data" / "7.2"
ZONE = Zone(
    node=0, zone="Normal", present_pages=1 << 20, managed_pages=1_000_000, spanned_pages=1 << 20,
    free_pages=200_000, wmark_min=10_000, wmark_low=12_500, wmark_high=15_000, wmark_boost=0,
    highatomic_reserved_pages=0, highatomic_free_pages=0, highatomic_cap_pages=10_240,
    start_pfn=1 << 20, lock_held=False, node_unreclaimable=False,
)  # fmt: skip
ACCOUNTING = FreeAccounting(0, "Normal", 200_000, 0, 200_000, 0, 0, 0, 0, None)
TARGET = {
    "kind": "vmcore", "release": "7.2.12", "page_size": 4096, "total_pages": 1 << 20,
    "uptime_seconds": 7200.0,
}  # fmt: skip
NAMES = {
    FreeBlocks: "free_blocks", FreeListCheck: "free_list_checks", MisplacedBlocks:
    "misplaced_blocks", Pageblocks: "pageblocks", Setting: "settings", VmCounter: "vm_counters",
    KernelFeature: "kernel_features", PcpPages: "pcp_pages", SlabCache: "slab_caches",
    CounterRate: "counter_rates",
    FreeAccounting: "free_accounting", Zone: "zones", PageOwnerStack: "page_owner_stacks",
    PageOwnerGrowth: "page_owner_growth", PageOwnerSnapshot: "page_owner_snapshots",
    PageTables: "page_tables", ExitCost: "exit_costs",
    DevicePagemap: "device_pagemaps", HugetlbPool: "hugetlb_pools", HugetlbSize: "hugetlb_sizes",
    MetadataPart: "memory_about_memory", WhatIf: "memmap_what_if",
    LedgerRow: "memory_ledger", LedgerCheck: "ledger_checks",
    UnexplainedRow: "ledger_unexplained", LedgerTag: "ledger_tags", AllocTag: "alloc_tags",
    CachedFile: "cached_files",
    CachedFilesystem: "cached_filesystems",
    FilesystemDentries: "filesystem_dentries",
    DentryCount: "dentry_counts",
    PhysicalPart: "physical_memory_parts", PoisonCounter: "poison_counters",
    PoisonedPages: "poisoned_pages",
    OomKill: "oom_kills", OomTask: "oom_tasks", OomMemory: "oom_memory",
    OomFreeBlocks: "oom_free_blocks", OomCgroupMemory: "oom_cgroup_memory",
    SwapArea: "swap_areas", ProcessMemory: "process_memory",
    VmallocCaller: "vmalloc_callers",
    PercpuChunk: "percpu_chunks", PercpuSize: "percpu_sizes", PercpuCgroup: "percpu_cgroups",
    MemoryCgroup: "memory_cgroups", DyingPin: "dying_cgroup_pins",
    **rmap.NAMES,
}  # fmt: skip


# A machine of 256 GiB.
LARGE = TARGET | {"total_pages": 1 << 26}


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


def of(pages: int) -> dict[str, int]:
    """The size of a zone."""
    return {"present_pages": pages, "spanned_pages": pages, "managed_pages": pages}


def free(order: int, blocks: int, migratetype: str | None = "Movable", **where: Any) -> FreeBlocks:
    place = {"node": 0, "zone": "Normal"} | where
    return FreeBlocks(**place, order=order, migratetype=migratetype, blocks=blocks,
                      pages=blocks << order)  # fmt: skip


def all_orders(**blocks: int) -> list[FreeBlocks]:
    """A row for each order, as a probe gives them; o9=3 means three blocks of order 9."""
    return [free(order, blocks.get(f"o{order}", 0)) for order in range(11)]


def event(name: str, value: int) -> VmCounter:
    return VmCounter(name, "event", value, 0)


def bundle(
    path: Path, rows: Iterable[Any], empty: Iterable[type] = (), target: dict[str, Any] = TARGET,
    sections: Sequence[SectionResult] = (),
) -> Bundle:  # fmt: skip
    """A bundle of these rows, each in its table, and of empty tables."""
    tables: dict[type, list[Any]] = {row_type: [] for row_type in empty}
    for row in rows:
        tables.setdefault(type(row), []).append(row)
    with Writer(path) as writer:
        for row_type, of_type in tables.items():
            writer.table(NAMES[row_type], NAMES[row_type], row_type, of_type, section="x")
        pages = [row.present_pages for row in tables.get(Zone, [])]
        total = {"total_pages": max([*pages, target["total_pages"]])} if pages else {}
        writer.finish(target | total, sections)
    return Bundle(path)


QUESTIONS = {question.id: question for question in load_questions()}


@dataclass
class Case:
    """What a finding says of some rows."""

    id: str
    rows: list[Any]
    words: list[str] = field(default_factory=list)  # in order; none: it is not found
    severity: str | None = None
    unlike: list[str] = field(default_factory=list)
    empty: tuple[type, ...] = ()
    target: dict[str, Any] = field(default_factory=lambda: TARGET)
    why_not: str | None = None  # it cannot be checked


STARVED = [
    *[free(order, 0) for order in range(11)],
    free(0, 50_000), free(9, 12, "HighAtomic"), free(10, 2, "HighAtomic"),
    free(9, 1, "Isolate"),
]  # fmt: skip
RESERVED = zone(
    highatomic_reserved_pages=10_240, highatomic_free_pages=8_192, highatomic_cap_pages=10_240
)
# A rate of something, as a bundle of mmscope watch has it.
RATE = CounterRate(30.0, "vmstat", "pgfault", 5, 0.2, 30.0)
HIGHATOMIC = Pageblocks(0, "Normal", "HighAtomic", 20)


def owned(handle: int, pages: int, owner: str | None = "xfs_buf_alloc") -> PageOwnerStack:
    """A stack of page_owner's."""
    return PageOwnerStack(handle, pages, None, owner, owner and "xfs", owner and f"r;{owner}", None)


def grown(handle: int, first: int, last: int, steadiness: float, rises: int) -> PageOwnerGrowth:
    """How a stack grew over five snapshots, 10 s apart."""
    return PageOwnerGrowth(
        handle, 0.0, 5, 0, first, last, first, last, last - first, (last - first) / 40, steadiness,
        rises,
    )  # fmt: skip


def tables(pte_tables: int | None = 0, **changes: Any) -> PageTables:
    """A process with so many PTE tables, an entry in each."""
    row = PageTables(
        **dict.fromkeys((f.name for f in dataclasses.fields(PageTables)), 0)
        | {"pid": 7, "comm": "java", "pte_tables": pte_tables, "used_ptes": pte_tables,
           "pgtables_bytes": 4096 * (pte_tables or 0), "resident_bytes": 1 << 20}
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def from_status(pgtables_bytes: int, **changes: Any) -> PageTables:
    """What /proc/PID/status says of such a process."""
    unknown = dict.fromkeys(f.name for f in dataclasses.fields(PageTables))
    known = {"pid": 7, "comm": "java", "pgtables_bytes": pgtables_bytes, "resident_bytes": 1 << 20}
    return PageTables(**(unknown | known | changes))


def exit_cost(seconds: float, **changes: Any) -> ExitCost:
    cost = ExitCost(
        pid=7, comm="java", pte_slots=1_610_612_736, reaped_pte_slots=1_610_000_000,
        tables=3_145_728, deposited_tables=5, base_pages=100, huge_pages=0,
        tables_seconds=seconds, exit_seconds=seconds + 0.25, oom_seconds=2 * seconds,
        dontneed_frees_tables=True,
    )  # fmt: skip
    return dataclasses.replace(cost, **changes)


SNAPSHOTS = [
    PageOwnerSnapshot(10.0 * n, None, f"s{n}", "show_handles", 2, 5000, 0, False) for n in range(5)
]

MIB, GIB = 1 << 20, 1 << 30


def huge(pages: int, optimized: int | None, hosted: int = 0, node: int = 0) -> HugetlbPool:
    """A pool of pages of 2 MiB; 28 KiB can be saved on each."""
    left = pages - (optimized or 0) - hosted
    return HugetlbPool(2 * MIB, node, pages, 0, 0, optimized, hosted, pages * 32 << 10,
                       None if optimized is None else optimized * 28 << 10,
                       None if optimized is None else left * 28 << 10)  # fmt: skip


def huge_size(hvo: str | None, pages: int = 1000) -> HugetlbSize:
    return HugetlbSize(2 * MIB, pages, 0, 0, 0, 0, hvo, 28 << 10)


def parts(page_ext: int, extra: int = 0) -> list[Any]:
    """Memory about the 4 GiB of the target, and what its struct pages would be."""
    total = 4 * GIB

    def part(name: str, size: int, on_device: bool = False) -> MetadataPart:
        return MetadataPart(name, size, 100 * size / total, None, on_device)

    return [
        part("struct page, allocated at boot", 64 * MIB + extra), part("page_ext", page_ext),
        part("struct page, on the device (altmap)", 512 * MIB, True), part("mem_section", 1 * MIB),
        part("remainder of nr_memmap_pages", 900 * MIB), *what_if(total, 12, 64, None),
    ]  # fmt: skip


def pmem(ram: int, reclaimable: int) -> DevicePagemap:
    return DevicePagemap("0x100000000", "0x500000000", "namespace0.0", "FS_DAX", 16 * GIB, 0, False,
                         256 * MIB, ram, 0, 0, reclaimable, 4 << 20, 33.6, 49.9, None)  # fmt: skip


def physical(machine: int, **sizes: int) -> list[PhysicalPart]:
    """The machine's memory; what is of the command line has its option."""
    options = {"cut_off": "mem=4G", "marked_as_reserved": "memmap=1G$4G"}
    return [PhysicalPart("machine", machine, 100.0, False, "", ""), *(
        PhysicalPart(name.replace("_", " "), size, 100 * size / machine, True,
                     options.get(name, ""), "")
        for name, size in sizes.items()
    )]  # fmt: skip


def bad(pages: int) -> PoisonCounter:
    return PoisonCounter("HardwareCorrupted", -1, None, pages * 4096)


FOUND = {
    "memory that an option cut off": Case(
        "memory-kept", physical(64 * GIB, cut_off=32 * GIB, crash_kernel=GIB),
        ["32 GiB (50.0 %) of the machine's memory are kept",
         "32 GiB of the firmware's RAM are cut off; by the command line: mem=4G."],
        "notice", unlike=["soft", "offline"],
    ),
    "memory in offline blocks, and soft-reserved": Case(
        "memory-kept", physical(64 * GIB, offline=2 * GIB, soft_reserved=2 * GIB),
        ["4 GiB (6.2 %)", "2 GiB are soft-reserved; 2 GiB are in memory blocks that are offline;",
         "by no option"],
        "notice",
    ),
    "a page that went bad": Case(
        "poisoned-pages", [bad(1)], ["1 page is marked as bad", "HardwareCorrupted is 4 KiB."],
        "notice", unlike=["hugetlb page"],
    ),
    "a bad page in an optimised huge page": Case(
        "poisoned-pages",
        [bad(3), PoisonedPages(0, "Normal", "base page", 4096, 1, 1, 0, 4096, 7),
         PoisonedPages(0, "Normal", "hugetlb page, optimised by HVO", 2 * MIB, 1, 2, 0, 2 * MIB,
                       512),
         PoisonedPages(1, "Normal", "hugetlb page", GIB, 1, 0, 1, GIB, 1 << 20)],
        ["3 pages are marked as bad", "node 0 Normal", "node 1 Normal",
         "2 hugetlb pages have bad pages: 1.002 GiB are out of use; 1 of them optimised by HVO.",
         "Which pages are bad is lost for 1 of them"],
        "warning",
    ),
    "pages that go bad one after the other": Case(
        "poisoned-pages", [bad(64)], ["64 pages"], "warning"
    ),
    "HVO off with a large pool": Case(
        "hvo-off", [huge(1000, 0), huge(1000, 0, node=1), huge_size("off", 2000)],
        ["HVO is off: the struct pages of 2,000 hugetlb pages could give back 54.69 MiB",
         "2,000 huge pages (of 2 MiB) have 62.5 MiB of struct pages; 0 of them are optimised.",
         "54.69 MiB (1.3 % of memory)"],
        "notice",
    ),
    "HVO off with a pool of a terabyte": Case(
        "hvo-off", [huge(500_000, 0), huge_size("off", 500_000)], ["13.35 GiB"], "notice",
        target=TARGET | {"total_pages": 1 << 29},
    ),
    "HVO on, pages left from before, and self-hosted ones": Case(
        "hvo-pages-left", [huge(1000, 100, 300), huge_size("on")],
        ["900 of 1,000 hugetlb pages of 2 MiB are not optimised, though HVO is on: 24.61 MiB",
         "100 pages are optimised.", "600 could be and are not (16.41 MiB)",
         "300 lie in hot-added memory that hosts its own struct pages (8.203 MiB)"],
        "notice",
    ),
    "HVO on, self-hosted pages only": Case(
        "hvo-pages-left", [huge(1000, 0, 1000), huge_size("on")],
        ["1,000 of 1,000", "1,000 lie in hot-added memory"], unlike=["could be and are not"],
    ),
    "page_owner on every page": Case(
        "metadata-above-share", parts(80 * MIB),
        ["Memory about memory takes 3.5 % of memory, 145 MiB; a struct page for every page would "
         "be 1.6 %", "Struct pages take 64 MiB of RAM, page_ext 80 MiB (2.0 % of memory)."],
        "notice",
    ),
    "struct pages of a device in RAM": Case(
        "metadata-above-share", parts(0, 16 * MIB),
        ["takes 2.0 % of memory, 81 MiB", "page_ext 0 B"], "notice",
    ),
    "a pmem disk whose struct pages are in RAM": Case(
        "device-memmap-in-ram", [pmem(256 * MIB, 192 * MIB)],
        ["The struct pages of namespace0.0 take 256 MiB of RAM; shared, they would take 64 MiB",
         "16 GiB of device memory (FS_DAX, from 0x100000000) have 256 MiB of struct pages, 256 MiB "
         "of them in RAM (6.2 % of it)."],
    ),
    "below min": Case(
        "below-watermarks", [zone(free_pages=9_999)],
        ["Node 0 zone Normal: 39.06 MiB of free memory are usable, below the min watermark "
         "(39.06 MiB)", "9,999 pages are usable (9,999 free);",
         "min 10,000, low 12,500, high 15,000, without boost", "direct reclaim"], "warning",
    ),
    "below half of min": Case(
        "below-watermarks", [zone(free_pages=4_999)], ["below half of the min watermark"],
        "critical",
    ),
    "below min, in a zone that the others stand in for": Case(
        "below-watermarks",
        [zone(zone="DMA32", free_pages=4_999, managed_pages=400_000), zone(free_pages=900_000)],
        ["zone DMA32"], "notice",
    ),
    "below min but for the reserve": Case(
        "below-watermarks",
        [zone(free_pages=20_000, highatomic_free_pages=11_000, highatomic_reserved_pages=11_264)],
        ["below the min watermark", "9,000 pages are usable (20,000 free", "11,000 of them"],
        "warning",
    ),
    "below min on a kernel that leaves out the whole reserve": Case(
        "below-watermarks",
        [zone(free_pages=19_000, highatomic_free_pages=None, highatomic_reserved_pages=9_216)],
        ["below the min watermark", "9,784 pages are usable (19,000 free"],
    ),
    "compaction fails": Case(
        "compaction-fails",
        [event("compact_success", 3), event("compact_fail", 1_397), event("compact_stall", 1_400),
         event("compact_migrate_scanned", 92_713), event("compact_isolated", 2_550)],
        ["Direct compaction succeeded in 3 of 1,400 attempts (0.2 %) since boot",
         "compact_success 3, compact_fail 1,397, compact_stall 1,400 in 2.0 h since boot;"
         " 92,713 pages scanned for migration, 2,550 isolated.", "says nothing of now"],
        "notice",
    ),
    "compaction fails, and the rest is unknown": Case(
        "compaction-fails",
        [event("compact_success", 0), event("compact_fail", 20)],
        ["succeeded in 0 of 20 attempts (0 %)",
         "compact_stall unknown since boot, uptime unknown; unknown pages scanned"],
        target=TARGET | {"uptime_seconds": None},
    ),
    "free memory in pieces": Case(
        "external-fragmentation",
        [*all_orders(o0=100_000, o1=20_000, o3=5_000, o9=10), zone(),
         Setting("vm.extfrag_threshold", "500")],
        ["Node 0 zone Normal: 723.1 MiB free, 97.2 % of it unusable for a huge page",
         "185,120 pages (18.5 % of the zone) are free and hold 10 blocks of order 9: unusable free "
         "space index 0.972 at order 9, below 0.5 up to order 0."],
        "notice", ["fragmentation index is", "outside the HighAtomic reserve"],
    ),
    "free memory in pieces, and what is not is in the reserve": Case(
        "external-fragmentation",
        [*all_orders(o0=100_000, o1=20_000, o3=5_000), free(9, 10, "HighAtomic"), zone()],
        ["97.2 %", "hold 10 blocks of order 9, 0 of them outside the HighAtomic reserve"],
        "warning",
    ),
    "1.4 % free, and no block of THP size": Case(
        "external-fragmentation", [*all_orders(o0=14_000 << 2), zone(**of(4_000_000))],
        ["218.8 MiB free, 100 % of it unusable", "(1.4 % of the zone)", "hold 0 blocks"], "warning",
        target=LARGE,
    ),
    "free memory in pieces, with no block at all": Case(
        "external-fragmentation",
        [*all_orders(o0=100_000, o1=20_000), zone(), Setting("vm.extfrag_threshold", "500")],
        ["unusable free space index 1.000 at order 9",
         "The fragmentation index is 0.998: a request of that order fails because of fragmentation",
         "direct compaction is tried above 0.500"],
    ),
    "free memory in pieces, of unknown migratetypes and threshold": Case(
        "external-fragmentation",
        [*[dataclasses.replace(row, migratetype=None) for row in all_orders(o0=100_000)], zone()],
        ["hold 0 blocks of order 9", "below 0.5 up to order 0"], unlike=["tried above"],
    ),
    "a free list contradicts where a CPU was inside the lock": Case(
        "free-lists-damaged",
        [FreeListCheck(0, "Normal", 3, "Movable", None, 1, "links lead to no list head"),
         FreeListCheck(0, "Normal", 3, None, 5, 4, "nr_free differs"), zone(lock_held=True)],
        ["2 free lists contradict the struct pages, as an operation that was stopped halfway",
         "zone.lock was held in node 0 Normal: a CPU was stopped inside it."],
        "notice", ["does not explain"],
    ),
    "more than one operation, in a zone whose lock was held": Case(
        "free-lists-damaged",
        [FreeListCheck(0, "Normal", 3, None, 50, 4, "nr_free differs"), zone(lock_held=True)],
        ["1 free list contradicts the struct pages", "which does not explain all of this."],
        "critical", ["stopped halfway"],
    ),
    "one operation, and nobody had the lock": Case(
        "free-lists-damaged",
        [FreeListCheck(0, "Normal", 3, None, 5, 4, "nr_free differs"), zone()],
        ["1 free list contradicts the struct pages"], "critical", ["zone.lock"],
    ),
    "a free list contradicts": Case(
        "free-lists-damaged",
        [FreeListCheck(1, "Normal", 2, "CMA", None, 2, "links lead to no list head"),
         FreeListCheck(0, "DMA", 3, None, 5, 4, "nr_free differs")],
        ["2 free lists contradict the struct pages",
         "First: zone DMA, order 3, all types: nr_free differs. In all 6 blocks are concerned."],
        "critical",
    ),
    "pages that nobody accounts for": Case(
        "free-pages-unaccounted",
        [dataclasses.replace(ACCOUNTING, nr_free_pages=200_512, remainder_pages=512)],
        ["Node 0 zone Normal: NR_FREE_PAGES differs from the free lists by 512 pages",
         "NR_FREE_PAGES 200,512, on free lists 200,000, unaccepted 0: remainder 512 pages (2 MiB)"],
        "notice",
    ),
    "pages that are missing": Case(
        "free-pages-unaccounted",
        [dataclasses.replace(ACCOUNTING, nr_free_pages=199_999, remainder_pages=-1)],
        ["differs from the free lists by -1 pages", "remainder -1 pages (-4 KiB)"],
    ),
    "a reserve at its cap": Case(
        "highatomic-reserve-full",
        [RESERVED, free(9, 10, "HighAtomic"), free(0, 1, "Movable")],
        ["the HighAtomic reserve is at its cap and 50.0 % free",
         "10,240 pages (40 MiB) are reserved, the cap is 10,240; 5,120 pages of it are free."],
        "notice",
    ),
    "a reserve that starves THP": Case(
        "highatomic-starves-thp",
        [*STARVED, RESERVED, HIGHATOMIC, free(9, 1), event("thp_fault_alloc", 21),
         event("thp_fault_fallback", 340), event("compact_success", 0), event("compact_fail", 20)],
        ["Node 0 zone Normal: 16 of 17 free blocks of THP size lie in the HighAtomic reserve",
         "20 pageblocks are HighAtomic, 10,240 pages reserved (40 MiB, 1.0 % of the zone;"
         " cap 10,240 pages). 16 blocks of 2 MiB are free in it; THP may use 1 others, though"
         " 200,000 pages (20.0 % of the zone) are free. THP faults got a huge page in 21 of 361"
         " attempts (5.8 %) in 2.0 h since boot. Direct compaction succeeded in 0 of 20 (0 %)."],
        "warning",
    ),
    "a reserve that leaves THP nothing, and little is known": Case(
        "highatomic-starves-thp",
        [*STARVED, dataclasses.replace(RESERVED, highatomic_cap_pages=None)],
        ["16 of 16 free blocks of THP size", "unknown pageblocks are HighAtomic", "cap unknown",
         "THP may use 0 others"],
        "critical", ["THP faults got", "Direct compaction succeeded"], empty=(Pageblocks,),
    ),
    "a reserve of unknown size": Case(
        "highatomic-starves-thp",
        [*STARVED, dataclasses.replace(RESERVED, highatomic_reserved_pages=None), HIGHATOMIC,
         zone(node=1)],
        ["unknown pages reserved (unknown, unknown of the zone; cap 10,240 pages)"],
    ),
    "a reserve on a machine with 64 KiB pages": Case(
        "highatomic-starves-thp",
        [free(9, 100), free(13, 2, "HighAtomic"), RESERVED, HIGHATOMIC],
        ["2 of 2 free blocks of THP size", "2 blocks of 512 MiB are free in it"], "critical",
        target=TARGET | {"page_size": 65536},
    ),
    "THP falls back": Case(
        "thp-falls-back",
        [event("thp_fault_alloc", 21), event("thp_fault_fallback", 340),
         Setting("transparent_hugepage.enabled", "madvise"),
         Setting("transparent_hugepage.defrag", "defer")],
        ["THP page faults got a huge page in 21 of 361 attempts (5.8 %) since boot",
         "thp_fault_alloc 21, thp_fault_fallback 340 in 2.0 h since boot;"
         " transparent_hugepage/enabled is madvise, defrag defer.", "says nothing of now"],
        "notice",
    ),
    "page tables that take much of memory": Case(
        "page-tables-large",
        [tables(60_000, pid=1, comm="sh"), tables(40_000)],
        ["Page tables take 390.6 MiB, 9.5 % of memory",
         "390.6 MiB of page tables of 2 processes", "process 1 (sh), 234.4 MiB"],
        "warning",
    ),
    "page tables that take most of memory": Case(
        "page-tables-large", [from_status(3 << 30)], ["take 3 GiB, 75.0 % of memory"], "critical",
    ),
    "a process with more page tables than memory": Case(
        "page-table-bloat",
        [tables(20_000, zero_ptes=19_000, deposited_pte_tables=300, empty_pte_tables=12),
         exit_cost(0.1)],
        ["Process 7 (java) has 78.12 MiB of page tables for 1 MiB of memory",
         "20,000 PTE tables are 0.2 % full: 12 of them have no entry, 19,000 entries map the shared"
         " zero page. 300 more lie deposited behind huge PMDs."],
        "warning",
    ),
    "a process with more page tables than memory, by /proc": Case(
        "page-table-bloat", [from_status(1 << 30, resident_bytes=642_000)],
        ["has 1 GiB of page tables for 627 KiB of memory"], "critical", ["full:", "deposited"],
    ),
    "tables that are nearly empty": Case(
        "sparse-page-tables",
        [tables(10_000, used_ptes=10_500, resident_bytes=8 << 30, empty_pte_tables=3_000,
                swap_ptes=500)],
        ["Process 7 (java): 10,000 PTE tables are 0.2 % full",
         "10,500 of 5,120,000 slots are in use (0 by the zero page, 500 by pages that are swapped"
         " out); 3,000 tables (11.72 MiB) have no entry at all."],
        "notice",
    ),
    "an exit that takes long": Case(
        "slow-exit", [exit_cost(2.876)],
        ["The end of process 7 (java) will take about 2.9 s for its page tables alone",
         "1,610,612,736 slots of PTE tables to walk and 3,145,733 tables to free. That is an"
         " estimate", "with its pages 3.1 s.",
         "1,610,000,000 of the slots are walked twice: 5.8 s."],
        "warning",
    ),
    "tables behind the huge zero page": Case(
        "huge-zero-deposits",
        [tables(5, huge_zero_pmds=20_000, deposited_pte_tables=20_003)],
        ["Process 7 (java) maps the huge zero page 20,000 times, with 78.12 MiB of tables",
         "(39.06 GiB of addresses); 20,003 PTE tables are deposited (78.14 MiB), beside 1 MiB"],
        "notice",
    ),
    "THP falls back, settings unknown": Case(
        "thp-falls-back",
        [event("thp_fault_alloc", 0), event("thp_fault_fallback", 120)],
        ["in 0 of 120 attempts (0 %)", "in 2.0 h since boot."],
        unlike=["transparent_hugepage/enabled"],
    ),
    "blocks on another list": Case(
        "misplaced-blocks",
        [MisplacedBlocks(0, "Normal", 0, "HighAtomic", "Movable", 5, 5),
         MisplacedBlocks(0, "Normal", 3, "HighAtomic", "Movable", 2, 16)],
        ["7 free blocks of Movable pageblocks are on HighAtomic lists",
         "21 pages (84 KiB), up to order 3.", "With HighAtomic involved"],
        "notice",
    ),
    "blocks on another list, no reserve involved": Case(
        "misplaced-blocks", [MisplacedBlocks(0, "Normal", 0, "Unmovable", "Movable", 1, 1)],
        ["1 free blocks of Movable pageblocks are on Unmovable lists", "1 pages (4 KiB)"],
        unlike=["With HighAtomic involved"],
    ),
    "a stack that only grows": Case(
        "page-owner-stack-grows",
        [owned(7, 1100), grown(7, 100, 1100, 1.0, 4), *SNAPSHOTS],
        ["xfs_buf_alloc [xfs]: pages only grow, by 3.906 MiB in 5 snapshots",
         "100 pages in the first snapshot, 1,100 in the last, never fewer than before, more in 4 of"
         " 4 steps: 25.000 pages/s over 40 s. Stack: xfs_buf_alloc <- r"],
        "warning",
    ),
    "a stack that only grows, to a tenth of memory": Case(
        "page-owner-stack-grows", [owned(7, 104_858), grown(7, 100, 104_858, 1.0, 4), *SNAPSHOTS],
        ["xfs_buf_alloc [xfs]: pages only grow, by 409.2 MiB"], "critical",
    ),
    "page cache that fills": Case(
        "page-owner-stack-grows",
        [owned(7, 900_000, "filemap_add_folio"), grown(7, 100, 900_000, 1.0, 4), *SNAPSHOTS],
        ["filemap_add_folio [xfs]: pages only grow"], "notice",
    ),
    "a handle that only grows, without a stack": Case(
        "page-owner-stack-grows",
        [owned(7, 1100, None), dataclasses.replace(grown(7, 100, 1100, 1.0, 2), slope=None),
         *SNAPSHOTS],
        ["Handle 7: pages only grow", "more in 2 of 4 steps."], unlike=["pages/s", "Stack:"],
    ),
    "a stack that took the growth": Case(
        "page-owner-took-growth",
        [owned(7, 2100), owned(8, 1000), grown(7, 100, 2100, 0.8, 3), grown(8, 500, 1000, 1.0, 1),
         *SNAPSHOTS],
        ["xfs_buf_alloc [xfs] took 80.0 % of the growth",
         "2,000 pages (7.812 MiB) of the 2,500 that 2 stacks gained between the first and the last "
         "of 5 snapshots; 100 before, 2,100 after."],
        "notice",
    ),
    "an owner of much": Case(
        "page-owner-large-owner", [owned(7, 100_000), owned(8, 100_000), owned(9, 5, "iomap_x")],
        ["xfs_buf_alloc [xfs] holds 19.1 % of memory",
         "200,000 pages (781.2 MiB) of 1,048,576, by 2 stacks"],
        "notice",
    ),
}  # fmt: skip

CLEAR = {
    "HVO on": Case("hvo-off", [huge(1000, 0), huge_size("on")]),
    "HVO off, and a small pool": Case("hvo-off", [huge(70, 0), huge_size("off")]),
    "HVO off, and no pool": Case("hvo-off", [huge_size("off")], empty=(HugetlbPool,)),
    "a kernel without HVO": Case(
        "hvo-off",
        [huge(1000, 0), huge_size("struct page has 72 bytes, no power of two: HVO cannot")],
    ),
    "all pages optimised": Case("hvo-pages-left", [huge(1000, 1000), huge_size("on")]),
    "a few pages left": Case("hvo-pages-left", [huge(1000, 930), huge_size("on")]),
    "the usual share": Case("metadata-above-share", parts(8 * MIB)),
    "struct pages on the device": Case("device-memmap-in-ram", [pmem(0, 0)]),
    "in kswapd's band": Case("below-watermarks", [zone(free_pages=10_000)]),
    "below a mark that is boosted": Case(
        "below-watermarks",
        [zone(free_pages=10_000, wmark_boost=512, wmark_min=10_512, wmark_low=13_012)],
    ),
    "a zone without managed pages": Case(
        "below-watermarks", [zone(free_pages=0, managed_pages=0)]
    ),
    "compaction that succeeds": Case(
        "compaction-fails", [event("compact_success", 4), event("compact_fail", 16)]
    ),
    "compaction that was hardly tried": Case(
        "compaction-fails", [event("compact_success", 0), event("compact_fail", 119)]
    ),
    "compaction that fails, and there are rates": Case(
        "compaction-fails", [event("compact_success", 3), event("compact_fail", 1_397), RATE]
    ),
    "compaction that was never tried": Case(
        "compaction-fails", [event("compact_success", 0), event("compact_fail", 0)]
    ),
    "memory in large blocks": Case("external-fragmentation", [*all_orders(o10=200), zone()]),
    "little memory in pieces": Case(
        "external-fragmentation", [*all_orders(o0=39_999), zone(**of(4_000_000))], target=LARGE,
    ),
    "room for few huge pages": Case(
        "external-fragmentation", [*all_orders(o0=(64 << 9) - 1), zone()]
    ),
    "memory in pieces below the high watermark, without boost": Case(
        "external-fragmentation",
        [*all_orders(o0=59_999), zone(wmark_high=61_000, wmark_boost=1_000)],
    ),
    "a small zone in pieces": Case(
        "external-fragmentation",
        [*all_orders(o0=3_000), zone(managed_pages=3_840, free_pages=3_000)],
    ),
    "no free memory": Case("external-fragmentation", [*all_orders(), zone(free_pages=0)]),
    "free lists that agree": Case("free-lists-damaged", [], empty=(FreeListCheck,)),
    "free lists of a kernel that runs": Case(
        "free-lists-damaged", [FreeListCheck(0, "DMA", 3, None, 5, 4, "nr_free differs")],
        target=TARGET | {"kind": "live"},
    ),
    "every page accounted for": Case("free-pages-unaccounted", [ACCOUNTING]),
    "pages of a kernel that runs": Case(
        "free-pages-unaccounted", [dataclasses.replace(ACCOUNTING, remainder_pages=3)],
        target=TARGET | {"kind": "live"},
    ),
    "a reserve below its cap": Case(
        "highatomic-reserve-full",
        [dataclasses.replace(RESERVED, highatomic_reserved_pages=9_728), free(9, 18, "HighAtomic")],
    ),
    "a reserve that is used": Case(
        "highatomic-reserve-full", [RESERVED, free(9, 9, "HighAtomic")]
    ),
    "no cap, no reserve": Case(
        "highatomic-reserve-full",
        [zone(highatomic_cap_pages=0), free(0, 1, "HighAtomic")],
    ),
    "a thousand blocks for THP beside a reserve that has more": Case(
        "highatomic-starves-thp",
        [free(9, 1_000), free(9, 1_100, "HighAtomic"), HIGHATOMIC,
         dataclasses.replace(RESERVED, **of(60_000_000))],
        target=LARGE,
    ),
    "a reserve that has more, and the node's other zone has enough": Case(
        "highatomic-starves-thp", [*STARVED, RESERVED, HIGHATOMIC, zone(zone="DMA32"),
                                   free(9, 4, zone="DMA32")]
    ),
    "a reserve that has all, and nobody uses THP": Case(
        "highatomic-starves-thp",
        [*STARVED, RESERVED, HIGHATOMIC, Setting("transparent_hugepage.enabled", "never")],
    ),
    "as many blocks for THP as in the reserve": Case(
        "highatomic-starves-thp", [*STARVED, free(9, 16), RESERVED, HIGHATOMIC]
    ),
    "small blocks in the reserve": Case(
        "highatomic-starves-thp", [free(8, 100, "HighAtomic"), free(9, 0), RESERVED, HIGHATOMIC]
    ),
    "THP that succeeds": Case(
        "thp-falls-back", [event("thp_fault_alloc", 50), event("thp_fault_fallback", 50)],
    ),
    "page tables as they should be": Case("page-tables-large", [tables(52_428)]),
    "page tables of a tenth": Case(
        "page-table-bloat", [tables(20_000, resident_bytes=10 * 20_000 * 4096)]
    ),
    "small page tables": Case("page-table-bloat", [from_status((32 << 20) - 1)]),
    "page tables that are small for a large machine": Case(
        "page-table-bloat", [from_status(500 << 20)], target=TARGET | {"total_pages": 1 << 27},
    ),
    "page tables for what is swapped out": Case(
        "page-table-bloat", [tables(20_000, swap_ptes=200_000)]
    ),
    "page tables for hugetlb pages": Case(
        "page-table-bloat", [tables(20_000, hugetlb_bytes=1 << 30)]
    ),
    "tables of which a twentieth is used": Case(
        "sparse-page-tables",
        [tables(10_000, resident_bytes=8 << 30, used_ptes=10_000 * 256 // 10)],
    ),
    "few tables that are nearly empty": Case(
        "sparse-page-tables", [tables(8_191, resident_bytes=8 << 30)]
    ),
    "sparse tables that are another finding's": Case("sparse-page-tables", [tables(20_000)]),
    "an exit that is quick": Case("slow-exit", [exit_cost(0.499, exit_seconds=30.0)]),
    "few tables behind the huge zero page": Case(
        "huge-zero-deposits", [tables(5, huge_zero_pmds=4_095, deposited_pte_tables=9_000)]
    ),
    "THP that was hardly tried": Case(
        "thp-falls-back", [event("thp_fault_alloc", 0), event("thp_fault_fallback", 119)],
    ),
    "THP that falls back, and there are rates": Case(
        "thp-falls-back", [event("thp_fault_alloc", 0), event("thp_fault_fallback", 9_999), RATE]
    ),
    "memory that is meant to be a device's, or a crash kernel's": Case(
        "memory-kept", physical(64 * GIB, persistent_memory=32 * GIB, crash_kernel=GIB,
                                early_allocations=4 * GIB),
    ),
    "a page that the kernel marked as reserved": Case(
        "memory-kept", physical(GIB, marked_as_reserved=4096)
    ),
    "no bad page": Case("poisoned-pages", [bad(0)]),
    "no block on another list": Case("misplaced-blocks", [], empty=(MisplacedBlocks,)),
    "a stack that fell once": Case(
        "page-owner-stack-grows", [owned(7, 1100), grown(7, 100, 1100, 0.75, 3), *SNAPSHOTS]
    ),
    "a stack that grew in one step": Case(
        "page-owner-stack-grows", [owned(7, 1100), grown(7, 100, 1100, 1.0, 1), *SNAPSHOTS]
    ),
    "a stack that grew a little": Case(
        "page-owner-stack-grows", [owned(7, 355), grown(7, 100, 355, 1.0, 4), *SNAPSHOTS]
    ),
    "growth in too few snapshots": Case(
        "page-owner-stack-grows", [owned(7, 1100), grown(7, 100, 1100, 1.0, 3), *SNAPSHOTS[:4]]
    ),
    "growth that two share": Case(
        "page-owner-took-growth",
        [owned(7, 2100), owned(8, 2100), grown(7, 100, 2100, 1.0, 1), grown(8, 100, 2100, 1.0, 1),
         *SNAPSHOTS],
    ),
    "growth of a little": Case(
        "page-owner-took-growth", [owned(7, 1123), grown(7, 100, 1123, 1.0, 1), *SNAPSHOTS]
    ),
    "an owner of less than a tenth": Case("page-owner-large-owner", [owned(7, 104_857)]),
    "page cache and anonymous memory": Case(
        "page-owner-large-owner",
        [owned(n, 150_000, name) for n, name in enumerate(
            ("page_cache_ra_unbounded", "do_anonymous_page", "shmem_alloc_folio",
             "__filemap_get_folio_mpol"))],
    ),
}  # fmt: skip

NOT_CHECKED = {
    "addresses that only root sees": Case(
        "memory-kept", [], why_not="no table physical_memory_parts in this bundle",
    ),
    "a kernel that marks no pages": Case(
        "poisoned-pages", [], why_not="no table poison_counters in this bundle",
    ),
    "pools of text files": Case(
        "hvo-off", [huge(1000, None), huge_size("off")],
        why_not="hugetlb_pools.vmemmap_reclaimable_bytes is unknown in this bundle",
    ),
    "pools of text files, with HVO on": Case(
        "hvo-pages-left", [huge(1000, None), huge_size("on")],
        why_not="hugetlb_pools.optimized_pages is unknown in this bundle",
    ),
    "no metadata": Case(
        "metadata-above-share", [], why_not="no table memory_about_memory in this bundle",
    ),
    "no devices": Case(
        "device-memmap-in-ram", [], why_not="no table device_pagemaps in this bundle",
    ),
    "no zones": Case("below-watermarks", [], why_not="no table zones in this bundle"),
    "no counters": Case("compaction-fails", [], why_not="no table vm_counters in this bundle"),
    "a kernel without compaction": Case(
        "compaction-fails", [event("pgpgin", 1)],
        why_not="vm_counters has no row where name = 'compact_success'",
    ),
    "a kernel without THP": Case(
        "thp-falls-back", [event("compact_success", 1)],
        why_not="vm_counters has no row where name = 'thp_fault_alloc'",
    ),
    "no page tables": Case(
        "page-tables-large", [], why_not="no table page_tables in this bundle"
    ),
    "page tables on a machine of unknown memory": Case(
        "page-tables-large", [tables(1)], target=TARGET | {"total_pages": None},
        why_not="target.total_pages is unknown in this bundle",
    ),
    "page tables, and nothing of memory": Case(
        "page-table-bloat", [from_status(1 << 30, resident_bytes=None)],
        why_not="page_tables.resident_bytes is unknown in this bundle",
    ),
    "occupancy by /proc": Case(
        "sparse-page-tables", [from_status(1 << 30)],
        why_not="page_tables.pte_tables is unknown in this bundle",
    ),
    "an exit by /proc": Case(
        "slow-exit", [from_status(1 << 30)], why_not="no table exit_costs in this bundle",
    ),
    "deposits by /proc": Case(
        "huge-zero-deposits", [from_status(1 << 30)],
        why_not="page_tables.huge_zero_pmds is unknown in this bundle",
    ),
    "counters cut short": Case(
        "thp-falls-back", [event("thp_fault_alloc", 1)],
        why_not="vm_counters has no row where name = 'thp_fault_fallback'",
    ),
    "no free lists": Case(
        "external-fragmentation", [zone()], why_not="no table free_blocks in this bundle",
    ),
    "a machine of unknown page size": Case(
        "external-fragmentation", [*all_orders(o0=100_000), zone()],
        target=TARGET | {"page_size": None}, why_not="target.thp_order is unknown in this bundle",
    ),
    "a machine of unknown page size, written as 0": Case(
        "highatomic-starves-thp", [*STARVED, RESERVED, HIGHATOMIC],
        target=TARGET | {"page_size": 0}, why_not="target.thp_order is unknown in this bundle",
    ),
    "no checks": Case("free-lists-damaged", [], why_not="no table free_list_checks in this bundle"),
    "no accounting": Case(
        "free-pages-unaccounted", [], why_not="no table free_accounting in this bundle"
    ),
    "an unknown cap": Case(
        "highatomic-reserve-full",
        [dataclasses.replace(RESERVED, highatomic_cap_pages=None), free(9, 10, "HighAtomic")],
        why_not="zones.highatomic_cap_pages is unknown in this bundle",
    ),
    "unknown migratetypes": Case(
        "highatomic-starves-thp", [free(9, 10, None), RESERVED, HIGHATOMIC],
        why_not="free_blocks.migratetype is unknown in this bundle",
    ),
    "no misplaced blocks": Case(
        "misplaced-blocks", [], why_not="no table misplaced_blocks in this bundle"
    ),
    "one snapshot": Case(
        "page-owner-stack-grows", [owned(7, 1)],
        why_not="no table page_owner_growth in this bundle",
    ),
    "one snapshot, and whose growth": Case(
        "page-owner-took-growth", [owned(7, 1)],
        why_not="no table page_owner_growth in this bundle",
    ),
    "a machine of unknown memory": Case(
        "page-owner-large-owner", [owned(7, 900_000)], target=TARGET | {"total_pages": None},
        why_not="target.total_pages is unknown in this bundle",
    ),
    "handles that nothing resolves": Case(
        "page-owner-large-owner", [owned(7, 900_000, None)],
        why_not="page_owner_stacks.owner is unknown in this bundle",
    ),
}  # fmt: skip


# Reverse maps.

FOUND |= {
    "a walk that stalls": Case(
        "rmap-walk-stalls",
        [rmap.walk(), rmap.anon_vma(), rmap.COST, rmap.SPLITS,
         rmap.ksm_page()],
        ["A reverse map walk of java (4711)'s KSM pages visits 10,240,000 tree nodes: about 614",
         "has 20,000 VMAs of 1 process.",
         "the 256 mappings of the page visits the tree for each: 5,120,000 visits",
         "it would be 256), about 307.2 ms", "takes two: 10,240,000 visits",
         "614.4 ms a whole walk (204.8 to 3,072.0)",
         "held for 1.20 ms (0.40 to 6.00) at a stretch", "60.0 ns, an assumption",
         "19,999 of 19,999 pairs of neighbours were split by mprotect"],
        "warning",
    ),
    "a walk that stalls, by a measured time": Case(
        "rmap-walk-stalls",
        [rmap.walk(), rmap.anon_vma(), dataclasses.replace(rmap.COST, measured=True)],
        ["60.0 ns, as given"], "critical",
    ),
    "a hold that any process may reach": Case(
        "rmap-walk-stalls",
        [rmap.walk("anon", visits=65_530, hold=65_530), rmap.anon_vma(vmas=65_530), rmap.COST],
        ["about 4 ms", "held for 3.93 ms"], "warning",
    ),
    "a hold that stalls, of anonymous memory": Case(
        "rmap-walk-stalls",
        [rmap.walk("anon", visits=100_000, hold=100_000, comm=None),
         rmap.anon_vma(vmas=100_000, processes=500),
         dataclasses.replace(rmap.COST, measured=True)],
        ["a process that is gone's anonymous pages visits 100,000 tree nodes: about 6 ms",
         "of 500 processes", "6.0 ms a whole walk (2.0 to 30.0)", "500.0 ns, an assumption"],
        "warning", ["mappings of the page", "split by"],
    ),
    "a page under too many VMAs": Case(
        "file-walk-stalls",
        [rmap.walk("file", visits=400_000, hold=400_000, of=rmap.LIBC), rmap.COST,
         rmap.file_mapping(vmas=800_000, processes=9_000)],
        ["A page of /usr/lib/libc.so.6 lies under 400,000 VMAs", "takes about 24 ms",
         "800,000 VMAs of 9,000 processes map the file, 400 over a page on average.",
         "held for 24.0 ms (8.0 to 120.0) at a stretch, visits times 500.0 ns, an assumption"],
        "notice",
    ),
    "the same of a file that is not listed": Case(
        "file-walk-stalls",
        [rmap.walk("file", visits=400_000, hold=400_000, of=rmap.LIBC), rmap.COST],
        [f"A page of mapping {rmap.LIBC} lies under 400,000 VMAs", "79 folios of it are"],
        "notice", ["map the file"],
    ),
    "a queue on a file's lock": Case(
        "file-lock-queue",
        [dataclasses.replace(rmap.FILE_LOCK, waiters=5), *rmap.FILE_WAITERS, rmap.file_mapping()],
        ["5 tasks are queued on the i_mmap_rwsem of /usr/lib/libc.so.6, held by java (4712)",
         "The lock is held to write.", "1 of the queue want to write, first java (4711)",
         "2,000 VMAs of 500 processes map the file. It is one moment"],
        "warning",
    ),
    "a queue on the lock of a file that is not listed": Case(
        "file-lock-queue",
        [dataclasses.replace(rmap.FILE_LOCK, waiters=9, state="changing hands", owner_pid=None,
                             owner_comm=None, owner_is=None)],
        [f"9 tasks are queued on the i_mmap_rwsem of the mapping {rmap.LIBC}", "changing hands.",
         "2,000 VMAs map the file."],
        "warning", ["held by", "want to write"],
    ),
    "sharing that costs more": Case(
        "ksm-costs-more",
        [*[rmap.ksm_page(0x100 + n) for n in range(78)],
         rmap.ksm_page(0x200, mappings=32, visits=32 * rmap.VMAS), rmap.COST,
         rmap.ksm_page(0x300, chain=None, mappings=40, visits=40)],
        ["KSM saves 77.82 MiB with one content, and to walk its 79 pages once takes about 48.0 s",
         "20,000 mappings share 79 pages (0x1): 19,921 pages saved",
         "48.0 s (16.0 to 240.0), 2.41 ms for each page saved"],
        "notice",
    ),
    "near the limit of VMAs": Case(
        "near-max-map-count", [rmap.process(60_000), rmap.SPLITS],
        ["java (4711) has 60,000 of 65,530 VMAs (91.6 %)", "20,000 of them are on one anon_vma",
         "19,999 of 19,999 pairs of neighbours on it were split by mprotect"],
        "warning",
    ),
    "at the limit of VMAs, from text": Case(
        "near-max-map-count",
        [dataclasses.replace(rmap.process(65_530), comm=None, anon_vmas=None, vmas_on_it=None,
                             largest_anon_vma=None)],
        ["Process (4711) has 65,530 of 65,530 VMAs (100 %)"], "critical",
        ["on one anon_vma", "split by"],
    ),
    "a deep hierarchy": Case(
        "deep-fork-hierarchy",
        [rmap.anon_vma(rmap.ROOT, vmas=6, processes=6, comm="init", pid=1),
         *[rmap.anon_vma(f"0x{n}", vmas=6 - n, processes=6 - n, depth=n, root=rmap.ROOT,
                         comm=f"level-{n}", pid=10 + n) for n in range(1, 6)]],
        ["init (1) and its children: up to 5 forks deep, 6 processes on one anon_vma",
         "6 anon_vmas in 1 family with one lock", "(level-5, 15)"],
        "notice",
    ),
    "a wide hierarchy of a process that is gone": Case(
        "deep-fork-hierarchy",
        [rmap.anon_vma(vmas=300, processes=100, comm=None, pid=None)],
        ["A process that is gone and its children: up to 0 forks deep, 100 processes"],
    ),
    "a queue on a lock": Case(
        "anon-vma-lock-queue", [dataclasses.replace(rmap.LOCK, waiters=4), *rmap.WAITERS],
        [f"4 tasks are queued on the lock of anon_vma {rmap.ROOT}, last taken by kcompactd0 (77)",
         "The lock is held to read, by 1 reader;",
         "2 of the queue want to write, first java (4711)",
         "9 anon_vmas share it, with 20,000 VMAs"],
        "warning",
    ),
    "a queue on a lock of a kernel that does not note what they want": Case(
        "anon-vma-lock-queue",
        [dataclasses.replace(rmap.LOCK, waiters=4, owner_pid=None, owner_comm=None, owner_is=None),
         *[dataclasses.replace(row, wants=row.wants if not row.position else None)
           for row in rmap.WAITERS]],
        ["The lock is held to read, by 1 reader;",
         "first in it is java (4711); what each of them wants, this kernel does not note."],
        "warning", ["held by", "want to write"],
    ),
    "the same of a file": Case(
        "file-lock-queue",
        [dataclasses.replace(rmap.FILE_LOCK, waiters=5),
         *[dataclasses.replace(row, wants=None) for row in rmap.FILE_WAITERS]],
        ["The lock is held to write. First in it is java (4711); what each of them wants"],
        "warning", ["want to write"],
    ),
    "a queue on a lock that changes hands": Case(
        "anon-vma-lock-queue",
        [dataclasses.replace(rmap.LOCK, state="changing hands", readers=0, owner_pid=None,
                             owner_comm=None, owner_is=None, waiters=16)],
        ["16 tasks are queued on the lock", "Nobody has it: it is changing hands;"],
        "critical", ["held by", "want to write"],
    ),
}  # fmt: skip

CLEAR |= {
    "a library that many map": Case(
        "file-walk-stalls",
        [rmap.walk("file", visits=20_000, hold=20_000, of=rmap.LIBC), rmap.COST],
    ),
    "a task that waits for a file's lock": Case("file-lock-queue", [rmap.FILE_LOCK]),
    "a walk that is short": Case(
        "rmap-walk-stalls", [rmap.walk(visits=33_000, hold=33_000), rmap.anon_vma(), rmap.COST]
    ),
    "sharing that is worth it": Case(
        "ksm-costs-more", [rmap.ksm_page(chain=None, mappings=256, visits=512), rmap.COST]
    ),
    "few VMAs": Case("near-max-map-count", [rmap.process()]),
    "forks as usual": Case(
        "deep-fork-hierarchy",
        [rmap.anon_vma(rmap.ROOT, vmas=5, processes=5),
         rmap.anon_vma(depth=4, root=rmap.ROOT, vmas=1)],
    ),
    "a lock that a few wait for at this moment": Case("anon-vma-lock-queue", [rmap.LOCK]),
}  # fmt: skip

NOT_CHECKED |= {
    "no walks": Case("rmap-walk-stalls", [], why_not="no table rmap_walks in this bundle"),
    "no file that is mapped": Case(
        "file-walk-stalls", [rmap.walk(), rmap.COST],
        why_not="rmap_walks has no row where kind = 'file'",
    ),
    "no locks of files": Case(
        "file-lock-queue", [], why_not="no table file_mapping_locks in this bundle"
    ),
    "no KSM": Case("ksm-costs-more", [rmap.COST], why_not="no table ksm_pages in this bundle"),
    "an unknown limit of VMAs": Case(
        "near-max-map-count", [rmap.process(60_000, None)],
        why_not="process_vmas.max_map_count is unknown in this bundle",
    ),
    "no anon_vmas": Case("deep-fork-hierarchy", [], why_not="no table anon_vmas in this bundle"),
    "no locks": Case("anon-vma-lock-queue", [], why_not="no table anon_vma_locks in this bundle"),
}  # fmt: skip


# Where memory went, by the counters.


def pages_of(name: str, pages: int) -> VmCounter:
    return VmCounter(name, "node", pages, 0)


def slab(reclaimable: int, unreclaimable: int) -> list[VmCounter]:
    return [pages_of("nr_slab_reclaimable", reclaimable),
            pages_of("nr_slab_unreclaimable", unreclaimable)]  # fmt: skip


def pool(pages: int, free_pages: int, reserved: int = 0) -> HugetlbSize:
    return HugetlbSize(2 * MIB, pages, free_pages, reserved, 0, 0, "off", 28 << 10)


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


def looks(part: str, pages: int, order: int | None, charged: str = "no") -> UnexplainedRow:
    return UnexplainedRow(part, 0, "Normal", "", "1", order, charged, pages, "0x1200 0x1400")


def of_line(
    pages: int, owner: str = "unexplained", module: str = "gpu", **changes: Any
) -> LedgerTag:
    """So many of a million pages that one line of source allocated."""
    row = LedgerTag(owner, "compound pages", module, "drivers/a.c", 7, "fill", pages, pages << 12)
    return dataclasses.replace(row, **changes)


def cached(path: str | None, percent: float, **changes: Any) -> CachedFile:
    """A file with so much of a million pages in memory."""
    row = CachedFile(
        path, "file", "ext4", int(10_000 * percent), 0, percent, 5, 0, 0, 0, 9, False, None,
        40 << 30, "fd:00", "77", "0xff00"
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def on_filesystem(kind: str, percent: float, left: float, **changes: Any) -> CachedFilesystem:
    """Files of a file system: so much of a million pages, and so much of it left behind."""
    row = CachedFilesystem(
        kind, "tmpfs", "/tmp", 40, int(10_000 * percent), 0, percent, None, 0, 0, 0, 0, 0, 0, 7,
        int(10_000 * left), True, "tmpfs", "00:19", "0xff10"
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def swap(used: int, size: int = 1_000) -> SwapArea:
    """A device of so many MiB."""
    return SwapArea("/dev/vda5", "partition", size << 20, used << 20, -2, False, None, None)


def swapped(pid: int, comm: str, mib: int) -> ProcessMemory:
    return ProcessMemory(pid, comm, 0, 0, 0, 0, mib << 20, 0, 0, 0, mib << 20, 1, 1)


def percpu(kind: str, mib: int, used: int) -> PercpuChunk:
    return PercpuChunk(f"0x{mib:x}", kind, mib << 20, used << 20, 9, 0, 1 << 20, 0, 0)


def vmalloc(caller: str, percent: float, use: str = "vmalloc") -> VmallocCaller:
    """So much of a million pages."""
    pages = int(10_000 * percent)
    return VmallocCaller(caller, use, 70, pages, pages << 12)


def dentries(negative: int, all_of_them: int) -> list[DentryCount]:
    return [
        DentryCount("dentry_stat.nr_dentry", all_of_them, None, None),
        DentryCount("dentry_stat.nr_negative", negative, None, None),
    ]


FEW_DENTRIES = FilesystemDentries(
    "overlay", "/var/lib", 1_000, 900, 0, 0, 3, 0, 200_000, 200_000, 0, True, "overlay", "00:30",
    "0xff20"
)  # fmt: skip


# A million pages, of which half are counted.
COUNTED = [pages_of("nr_anon_pages", 200_000), pages_of("nr_file_pages", 80_000), *slab(0, 10_000),
           VmCounter("nr_kernel_stack", "node", 40_000, 0)]  # fmt: skip
CACHE = SlabCache("dentry", 9_000_000, 192, 192, 9_100_000, 433_334, 433_334, False)

FOUND |= {
    "slab that nobody can reclaim": Case(
        "slab-large", [*slab(20_000, 300_000), CACHE],
        ["Slab takes 1.221 GiB, 30.5 % of memory; 1.144 GiB of it cannot be reclaimed",
         "nr_slab_unreclaimable 300,000 pages (28.6 % of memory), nr_slab_reclaimable 20,000 pages",
         "The largest cache is dentry: 1.653 GiB, 9,000,000 of 9,100,000 objects in use, "
         "192 bytes"],
        "critical",
    ),
    "slab at half of memory": Case(
        "slab-large", slab(500_000, 30_000), ["50.5 % of memory"], "warning",
        ["The largest cache"],
    ),
    "slab of a file server": Case("slab-large", slab(300_000, 30_000), ["31.5 %"], "notice"),
    "an eighth of memory that nobody can reclaim": Case(
        "slab-large", slab(0, 131_072), ["12.5 % of memory"], "warning"
    ),
    "25 OOM kills": Case(
        "oom-kills-since-boot", [event("oom_kill", 25)],
        ["The OOM killer took 25 processes since boot", "oom_kill 25 in 2.0 h since boot",
         "says nothing of now"],
        "notice",
    ),
    "an OOM kill": Case("oom-kills-since-boot", [event("oom_kill", 1)], ["took 1 process since"]),
    "ninety million pages each way": Case(
        "swapped-since-boot",
        [event("pswpin", 90_000_000), event("pswpout", 90_000_001), event("pgmajfault", 7)],
        ["343.3 GiB were swapped in and 343.3 GiB out since boot, 85.8 times all memory",
         "pswpin 90,000,000 pages, pswpout 90,000,001, pgmajfault 7 in 2.0 h since boot: 1.25e+04 "
         "pages a second both ways on average", "says nothing of now"],
        "notice",
    ),
    "swap, and no uptime": Case(
        "swapped-since-boot", [event("pswpin", 900_000), event("pswpout", 900_000)],
        ["pgmajfault unknown since boot, uptime unknown."], unlike=["a second"],
        target=TARGET | {"uptime_seconds": None},
    ),
    "572 MiB on lists, and 368 MiB free": Case(
        "pcp-lists-hold-free",
        [*on_lists(146_432), zone(free_pages=94_208, wmark_high=200_000, **of(65_000_000))],
        ["Node 0 zone Normal: 572 MiB lie on per-CPU lists, and 368 MiB are free for everyone",
         "146,432 pages (0.2 % of the zone) on the lists of 4 CPUs, most on CPU 0: 143 MiB. "
         "NR_FREE_PAGES is 94,208, the high watermark 200,000 without boost."],
        "warning", target=LARGE,
    ),
    "more on lists than free, in a zone that is not short": Case(
        "pcp-lists-hold-free", [*on_lists(40_000), zone(free_pages=30_000)], ["156.2 MiB lie"],
        "notice",
    ),
    "a node that kswapd gave up": Case(
        "kswapd-gave-up",
        [zone(free_pages=14_000, node_unreclaimable=True),
         zone(zone="DMA", free_pages=0, wmark_min=0, wmark_low=0, wmark_high=0)],
        ["kswapd has given node 0 up: 16 runs in a row reclaimed nothing"], "warning",
    ),
    "a node that kswapd gave up, and it needs nothing": Case(
        "kswapd-gave-up", [zone(node_unreclaimable=True)], ["781.2 MiB of free memory"], "notice",
    ),
    "a node beside one with plenty": Case(
        "nodes-out-of-balance", [zone(free_pages=12_000), zone(node=1, free_pages=400_000)],
        ["Node 0 has 46.88 MiB of free memory left, node 1 has 1.526 GiB",
         "Node 0: 12,000 pages are usable, the low watermarks of its zones are 12,500 in all, min "
         "10,000. Node 1: 400,000 pages are free, 40.0 % of it."],
        "notice",
    ),
    "a node below min beside one with plenty": Case(
        "nodes-out-of-balance", [zone(free_pages=9_000), zone(node=1, free_pages=400_000)],
        ["Node 0 has"], "warning",
    ),
    "vmalloc of a tenth": Case(
        "kernel-memory-large",
        [pages_of("nr_vmalloc", 110_000), VmCounter("nr_kernel_stack", "node", 4_000, 0)],
        ["nr_vmalloc: 429.7 MiB, 10.5 % of memory", "110,000 pages of 1,048,576",
         "vmalloc has modules"], "warning", ["Every thread"],
    ),
    "kernel stacks, which are counted in KiB": Case(
        "kernel-memory-large", [VmCounter("nr_kernel_stack", "node", 84_000, 0)],
        ["nr_kernel_stack: 82.03 MiB, 2.0 % of memory", "Every thread"], "notice",
    ),
    "memory that no counter has": Case(
        "memory-unaccounted", [*COUNTED, zone(), huge_size("off", 50), *on_lists(4_000)],
        ["1.794 GiB, 47.0 % of memory, are in no counter of the kernel",
         "Of 3.815 GiB that the page allocator has, 781.2 MiB are free",
         "100 MiB are hugetlb pages, 15.62 MiB lie on per-CPU lists",
         "This kernel counts vmalloc elsewhere"],
        "warning",
    ),
    "pages without an owner": Case(
        "unexplained-pages", [*ledger(200_000), looks("compound pages", 170_000, 9),
                              looks("compound pages", 10_000, 9),
                              looks("single pages", 20_000, None, "kernel memory")],
        ["781.2 MiB, 20.0 % of memory, have no owner that their pages show",
         "compound pages of order 9: 180000; single pages: 20000 pages",
         "20,000 of them are charged to memory cgroups as kernel memory",
         "Page frames of the largest kind: 0x1200 0x1400"],
        "warning",
    ),
    "a quarter of memory without an owner": Case(
        "unexplained-pages", ledger(250_000), ["25.0 % of memory"], "critical"
    ),
    "a deleted file of tmpfs": Case(
        "deleted-file-in-memory",
        [cached("/run/x (deleted)", 12.0, kind="tmpfs", deleted=True, dirty_pages=None),
         cached("/y (deleted)", 1.0, deleted=True), cached("/z", 30.0)],
        ["A deleted file has 468.8 MiB in memory, 12.0 % of it: /run/x (deleted)",
         "inode 77 on device fd:00, kind tmpfs: 120,000 pages in memory; no directory has it. "
         "1 other deleted file of table cached_files: 39.06 MiB.", "A file of tmpfs is memory"],
        "warning", ["df counts"],
    ),
    "a deleted log": Case(
        "deleted-file-in-memory", [cached("/var/log/a (deleted)", 6.0, deleted=True)],
        ["5 of them dirty", "df counts its space"], "notice", ["A file of tmpfs"],
    ),
    "a core dump in the page cache": Case(
        "one-file-in-memory", [cached("/var/core", 61.0), cached("/x", 70.0, kind="tmpfs")],
        ["One file has 2.327 GiB in memory, 61.0 % of it: /var/core",
         "40 GiB in size: 610,000 pages in memory, 9 of them active, 5 dirty"],
        "notice",
    ),
    "files of tmpfs that nobody has": Case(
        "shmem-left-behind",
        [on_filesystem("tmpfs", 12.0, 8.0), on_filesystem("SysV", 9.0, 4.0, superblock="0xff11"),
         cached("SYSV0052e2c1", 4.0, kind="SysV", held=False, inode="32769"),
         cached("/tmp/a", 6.0, kind="tmpfs", held=False)],
        ["468.8 MiB of shared memory, 12.0 % of memory, are in 14 files and segments that no",
         "156.2 MiB of it are SysV segments",
         "The largest: /tmp/a: 60000 pages, SYSV0052e2c1 (shmid 32769): 40000 pages"],
        "notice",
    ),
    "a quarter of memory that nobody has": Case(
        "shmem-left-behind", [on_filesystem("tmpfs", 30.0, 26.0)], ["26.0 % of memory"], "warning",
        ["SysV segments", "The largest"],
    ),
    "more negative dentries than others": Case(
        "negative-dentries", [*dentries(3_000_000, 3_500_000), FEW_DENTRIES],
        ["3,000,000 negative dentries take 572.2 MiB, 14.0 % of memory",
         "Of 3,500,000 dentries, 3,000,000 are of names", "200 bytes each",
         "The file system with the most: /var/lib: 900"],
        "warning",
    ),
    "negative dentries by the kernel's count alone": Case(
        "negative-dentries", dentries(600_000, 700_000), ["2.7 % of memory", "192 bytes each"],
        "notice", ["with the most"],
    ),
    "swap that is nearly full": Case(
        "swap-full", [swap(970), swapped(7, "sleeper", 400), swapped(8, "editor", 20)],
        ["Swap is 97.0 % full: 30 MiB of 1000 MiB are left", "970 MiB of 1000 MiB in 1 area",
         "sleeper (pid 7): 400 MiB, editor (pid 8): 20 MiB"],
        "notice",
    ),
    "swap that is full": Case(
        "swap-full", [swap(1_000)], ["100 % full"], "warning", ["Processes with the most"]
    ),
    "percpu memory of a tenth": Case(
        "percpu-large",
        [percpu("variables", 9, 9), percpu("further", 400, 100),
         PercpuSize(8, 5_000_000, 80 << 20),
         PercpuCgroup("/shop", 7, "online", 9, 60 << 20),
         PercpuCgroup(None, None, "dying", 3, 30 << 20)],
        ["Percpu memory takes 409 MiB, 10.0 % of memory", "2 chunks have 409 MiB, of which 109 MiB",
         "5000000 of 8 bytes: 80 MiB",
         "Memory cgroups are charged for 90 MiB of it, most of all /shop 60 MiB, ? 30 MiB."],
        "warning",
    ),
    "vmalloc memory of one module": Case(
        "vmalloc-large",
        [vmalloc("fill_table [gpu]", 12), vmalloc("bpf_map_area_alloc", 2),
         vmalloc("copy_process", 9), vmalloc("ioremap_prot", 30, "ioremap")],
        ["fill_table [gpu] holds 468.8 MiB of vmalloc memory, 11.4 % of memory",
         "70 areas that fill_table [gpu] asked for have 120,000 pages", "230,000 in all"],
        "warning",
    ),
    "vmalloc memory of a quarter": Case(
        "vmalloc-large", [vmalloc("bpf_map_area_alloc", 25)], ["23.8 % of memory"], "critical"
    ),
    "a leak at one line of a module": Case(
        "alloc-tag-large",
        [*ledger(100_000), of_line(70_000), of_line(20_000, part="single pages"),
         of_line(40_000, line=9), AllocTag("gpu", "drivers/a.c", 7, "fill", 1, 333, 0, True)],
        ["drivers/a.c:7 (fill [gpu]) holds 351.6 MiB, 9.0 % of memory",
         "90,000 pages are in use that this line allocated, by 333 allocations that were not freed",
         "Most of them are unexplained, compound pages, in the ledger"],
        "warning",
    ),
    "a leak of a quarter of memory": Case(
        "alloc-tag-large", [*ledger(250_000), of_line(250_000, module="")],
        ["drivers/a.c:7 (fill) holds 976.6 MiB, 25.0 % of memory"], "critical",
        ["that were not freed"],
    ),
    "a module's vmalloc memory": Case(
        "alloc-tag-large", [*ledger(0), of_line(90_000, "vmalloc")], ["9.0 % of memory"], "notice"
    ),
    "pages that alloc tags name": Case(
        "unexplained-pages", [*ledger(200_000), of_line(150_000), of_line(3, line=9)],
        ["have no owner", "Lines of source that allocated the most: drivers/a.c:7 [gpu]: 150000 "
         "pages; drivers/a.c:9 [gpu]: 3 pages."], "notice",
    ),
    "pages that page_owner names": Case(
        "unexplained-pages", [*ledger(200_000), owned(7, 1)], ["have no owner"], "notice"
    ),
    "memory that page_owner names": Case(
        "memory-unaccounted", [*COUNTED, zone(), huge_size("off", 0), owned(7, 1),
                               pages_of("nr_vmalloc", 1)],
        ["in no counter", "stacks, vmalloc)"], "notice", ["elsewhere"],
    ),
    "a pool that nobody uses, and nothing else is free": Case(
        "hugetlb-idle", [pool(1_000, 900, 100), zone(free_pages=30_000)],
        ["hugetlb pools keep 1.562 GiB, 39.1 % of memory, that nobody uses",
         "The pools have 1.953 GiB; 1.562 GiB of it (pages of 2 MiB) are free and not reserved. "
         "117.2 MiB are free for everyone else."],
        "warning",
    ),
    "a pool that nobody uses": Case(
        "hugetlb-idle", [pool(1_000, 900)], ["keep 1.758 GiB"], "notice", ["everyone else"]
    ),
}  # fmt: skip

CLEAR |= {
    "slab as it is": Case("slab-large", [*slab(200_000, 50_000), CACHE]),
    "no OOM kill": Case("oom-kills-since-boot", [event("oom_kill", 0)]),
    "OOM kills, and there are rates": Case("oom-kills-since-boot", [event("oom_kill", 9), RATE]),
    "memory that was swapped out and stayed there": Case(
        "swapped-since-boot", [event("pswpin", 200_000), event("pswpout", 90_000_000)]
    ),
    "swap, and there are rates": Case(
        "swapped-since-boot", [event("pswpin", 9_000_000), event("pswpout", 9_000_000), RATE]
    ),
    "lists beside more that is free": Case("pcp-lists-hold-free", [*on_lists(40_000), zone()]),
    "little on lists, and less free": Case(
        "pcp-lists-hold-free", [*on_lists(9_000), zone(free_pages=8_000)]
    ),
    "nodes that kswapd works for": Case("kswapd-gave-up", [zone()]),
    "one node": Case("nodes-out-of-balance", [zone(free_pages=12_000)]),
    "nodes that are alike": Case(
        "nodes-out-of-balance", [zone(free_pages=12_000), zone(node=1, free_pages=200_000)]
    ),
    "kernel memory as it is": Case(
        "kernel-memory-large",
        [pages_of("nr_vmalloc", 50_000), VmCounter("nr_kernel_stack", "node", 80_000, 0)],
    ),
    "memory that is counted": Case(
        "memory-unaccounted",
        [*COUNTED, zone(free_pages=520_000), huge_size("off", 200), *on_lists(4_000)],
    ),
    "a pool that is used": Case("hugetlb-idle", [pool(1_000, 300, 150), zone()]),
    "few pages without an owner": Case("unexplained-pages", ledger(49_000)),
    "lines of source as they are": Case(
        "alloc-tag-large",
        [*ledger(49_000), of_line(49_000), of_line(500_000, "compressed"),
         of_line(300_000, "vmalloc", function="alloc_large_system_hash"),
         of_line(90_000, file="(no tag)", line=0)],
    ),
    "a small deleted file": Case(
        "deleted-file-in-memory",
        [cached("/a (deleted)", 4.0, deleted=True), cached("memfd:b", 40.0, deleted=None)],
    ),
    "a file that is cached, as others are": Case("one-file-in-memory", [cached("/db", 45.0)]),
    "a deleted file, which has a finding of its own": Case(
        "one-file-in-memory", [cached("/db (deleted)", 80.0, deleted=True)]
    ),
    "shared memory that somebody has": Case(
        "shmem-left-behind",
        [on_filesystem("tmpfs", 60.0, 3.0), on_filesystem("file", 40.0, 0, left_pages=None)],
    ),
    "a system that runs from its initramfs": Case(
        "shmem-left-behind",
        [on_filesystem("tmpfs", 60.0, 50.0, filesystem="rootfs", mount=None),
         on_filesystem("tmpfs", 60.0, 50.0, mount="/", superblock="0xff12")],
    ),
    "swap that has room": Case("swap-full", [swap(900)]),
    "little swap that is full": Case("swap-full", [swap(30, 30)]),
    "no swap": Case("swap-full", [dataclasses.replace(swap(0), bytes=0)]),
    "vmalloc memory as it is on most": Case(
        "vmalloc-large",
        [vmalloc("bpf_prog_alloc_no_stats", 1), vmalloc("alloc_large_system_hash", 4),
         vmalloc("dup_task_struct", 9), vmalloc("memremap", 50, "ioremap")],
    ),
    "percpu memory as it is on most": Case("percpu-large", [percpu("further", 60, 50)]),
    "negative dentries among others": Case("negative-dentries", dentries(5_000_000, 11_000_000)),
    "few negative dentries": Case("negative-dentries", dentries(200_000, 210_000)),
    "memory that is counted page by page": Case(
        "memory-unaccounted", [*COUNTED, zone(), huge_size("off", 50), *on_lists(4_000),
                               *ledger(1_000)],
    ),
}  # fmt: skip

NOT_CHECKED |= {
    "slab without counters": Case(
        "slab-large", [], why_not="no table vm_counters in this bundle"
    ),
    "a kernel that does not count OOM kills": Case(
        "oom-kills-since-boot", [event("pgpgin", 1)],
        why_not="vm_counters has no row where name = 'oom_kill'",
    ),
    "a kernel without swap": Case(
        "swapped-since-boot", [event("pgpgin", 1)],
        why_not="vm_counters has no row where name = 'pswpin'",
    ),
    "no per-CPU lists": Case(
        "pcp-lists-hold-free", [zone()], why_not="no table pcp_pages in this bundle"
    ),
    "kswapd of an older bundle": Case(
        "kswapd-gave-up", [zone(node_unreclaimable=None)],
        why_not="zones.node_unreclaimable is unknown in this bundle",
    ),
    "vmalloc that was not read": Case(
        "vmalloc-large", [], why_not="no table vmalloc_callers in this bundle"
    ),
    "no file was read": Case(
        "deleted-file-in-memory", [], why_not="no table cached_files in this bundle"
    ),
    "no file was read, of any size": Case(
        "one-file-in-memory", [], why_not="no table cached_files in this bundle"
    ),
    "no file system was read": Case(
        "shmem-left-behind", [], why_not="no table cached_filesystems in this bundle"
    ),
    "swap of an older bundle": Case(
        "swap-full", [], why_not="no table swap_areas in this bundle"
    ),
    "percpu memory of an older bundle": Case(
        "percpu-large", [], why_not="no table percpu_chunks in this bundle"
    ),
    "no line of source is known": Case(
        "alloc-tag-large", ledger(9), why_not="no table ledger_tags in this bundle"
    ),
    "dentries that nobody counted": Case(
        "negative-dentries", [], why_not="no table dentry_counts in this bundle"
    ),
    "no page was counted": Case(
        "unexplained-pages", ledger(500_000)[:2], why_not="no table ledger_checks in this bundle"
    ),
    "no nodes": Case("nodes-out-of-balance", [], why_not="no table zones in this bundle"),
    "kernel memory of unknown memory": Case(
        "kernel-memory-large", [VmCounter("nr_kernel_stack", "node", 84_000, 0)],
        target=TARGET | {"total_pages": None},
        why_not="target.total_pages is unknown in this bundle",
    ),
    "memory that hugetlb may have": Case(
        "memory-unaccounted", [*COUNTED, zone()], why_not="no table hugetlb_sizes in this bundle"
    ),
    "no pools": Case("hugetlb-idle", [], why_not="no table hugetlb_sizes in this bundle"),
}  # fmt: skip


def oom(number: int = 1, **changes: Any) -> OomKill:
    """A kill for memory of the machine, at 5000 s of 7200 s."""
    nothing = dict.fromkeys(f.name for f in dataclasses.fields(OomKill))
    known = {
        "oom": number, "victim": 1, "seconds": 1000.5, "outcome": KILLED, "invoker": "nginx",
        "invoker_pid": 80, "invoker_oom_score_adj": 0, "gfp_mask": "0xcc0",
        "gfp_flags": "GFP_KERNEL", "order": 0, "constraint": "CONSTRAINT_NONE",
        "cgroup_limit": False, "group_kill": False, "allocating_task": False, "pid": 7,
        "comm": "java", "uid": 1000, "total_vm_bytes": 3 * GIB, "anon_bytes": 2 * GIB,
        "file_bytes": MIB, "shmem_bytes": 0, "pgtables_bytes": 5 * MIB, "oom_score_adj": 0,
    }  # fmt: skip
    return OomKill(**(nothing | known | changes))


def oom_at_limit(number: int = 1, **changes: Any) -> OomKill:
    """A kill of a memory cgroup."""
    limit = {"constraint": "CONSTRAINT_MEMCG", "cgroup_limit": True, "oom_cgroup": "/pod",
             "usage_bytes": 64 * MIB, "limit_bytes": 64 * MIB, "anon_bytes": 32 * MIB}  # fmt: skip
    return oom(number, **(limit | changes))


def oom_task(pid: int, comm: str, pages: int, adj: int, killed: bool = False) -> OomTask:
    return OomTask(1, pid, pid, 0, comm, killed, 2 * pages, pages, pages, 0, 0, 0, 0, adj)


def oom_zone(free: int, high: int, blocks: dict[int, str], zone: str = "Normal") -> list[Any]:
    """A zone when memory ran out: 100 blocks of each of these orders, on these lists."""
    return [
        OomMemory(1, 0, zone, "free", free), OomMemory(1, 0, zone, "min", high // 2),
        OomMemory(1, 0, zone, "high", high),
        *(OomFreeBlocks(1, 0, zone, order, 100 if order in blocks else 0, blocks.get(order, ""))
          for order in range(11)),
    ]  # fmt: skip


SPARED = [oom(), oom_task(7, "java", 1000, 500, True), oom_task(9, "mysqld", 9000, -500)]
NOW = TARGET | {"uptime_seconds": 1010.5}
FOUND |= {
    "a process that was killed for another's request": Case(
        "oom-kills-told", [oom(), *oom_zone(30 * MIB, 80 * MIB, {0: "Movable"})],
        ["Memory ran out, and the kernel killed java, which held 2.001 GiB",
         "nginx (pid 80) asked for a page (GFP_KERNEL) and got none.",
         "Killed at 1000.5 s after boot: pid 7 of uid 1000, anonymous 2 GiB, file 1 MiB, "
         "shmem 0 B, page tables 5 MiB, oom_score_adj 0.",
         "had 30 MiB free; their min watermarks are 40 MiB.",
         "need not be who asked"],
        "warning", unlike=["allows nodes", "allocating_task", "lacks", "processes"],
    ),
    "a process that was killed just now, on some nodes": Case(
        "oom-kills-told",
        [oom(), oom(2, constraint="CONSTRAINT_CPUSET", mems_allowed="0,2-3", order=3,
                    lacks="its header")],
        ["2 processes in all", "asked for 8 pages in a row",
         "Its cpuset allows nodes 0,2-3 only.", "The log lacks its header."],
        "critical", target=NOW,
    ),
    "one of which the log has nothing but the kill": Case(
        "oom-kills-told",
        [oom(invoker=None, invoker_pid=None, gfp_flags=None, order=None, constraint=None,
             seconds=None, lacks="its header")],
        ["killed java", "Killed: pid 7"], "warning", unlike=["asked for", "after boot"],
    ),
    "the one that asked": Case(
        "oom-kills-told", [oom(allocating_task=True, constraint="CONSTRAINT_MEMORY_POLICY",
                               nodemask="1")],
        ["Its memory policy allows nodes 1 only.", "It was the one that asked"], "warning",
    ),
    "a kernel that panicked instead": Case(
        "oom-kills-told",
        [oom(victim=0, outcome=PANIC, pid=None, comm=None, anon_bytes=None)],
        ["Memory ran out, and the kernel panicked", "nginx (pid 80) asked"], "critical",
        unlike=["Killed"],
    ),
    "a log that ends within": Case(
        "oom-kills-told", [oom(victim=0, outcome=OPEN, pid=None, comm=None)],
        ["Memory ran out 1 time; of the last the log does not have the end"], "warning",
    ),
    "a cgroup at its limit": Case(
        "oom-cgroup-limit",
        [oom_at_limit(), oom_at_limit(2, pid=8, comm="perl"), zone(free_pages=1000),
         *(OomCgroupMemory(2, name, size * MIB)
           for name, size in {"anon": 60, "file": 3, "shmem": 2, "kernel": 1}.items())],
        ["Memory cgroup /pod was at its limit of 64 MiB: 2 processes killed",
         "Killed last, at 1000.5 s after boot: perl, pid 8 of uid 1000, which held 33 MiB",
         "The cgroup used 64 MiB: anonymous 60 MiB, file 3 MiB (shmem 2 MiB), the kernel's for it "
         "1 MiB.", "When this was read, the machine had 3.906 MiB free."],
        "warning", unlike=["memory.oom.group", "lacks"],
    ),
    "a cgroup of which the log has little": Case(
        "oom-cgroup-limit",
        [oom_at_limit(invoker=None, oom_cgroup=None, usage_bytes=None, limit_bytes=None,
                      group_kill=True, lacks="its header")],
        ["A memory cgroup was at its limit: 1 process killed", "memory.oom.group is set",
         "The log lacks its header."],
        "critical", unlike=["asked for memory", "The cgroup used"], target=NOW,
    ),
    "a larger task that was spared": Case(
        "oom-spared-larger", SPARED,
        ["The OOM killer took java (3.906 MiB) and spared mysqld (35.16 MiB): oom_score_adj",
         "mysqld (pid 9) has oom_score_adj -500, java (pid 7) 500",
         "Each point of oom_score_adj counts as a thousandth"],
        "notice", unlike=["calls in the log"],
    ),
    "a larger task that is never killed": Case(
        "oom-spared-larger", [*SPARED[:2], oom_task(9, "sshd", 9000, -1000)],
        ["oom_score_adj -1000 is never killed, whatever it holds"], "notice",
    ),
    "pages in a row, of a zone in pieces": Case(
        "oom-fragmented",
        [oom(order=3),
         *oom_zone(500 * MIB, 80 * MIB,
                   {0: "Movable", 2: "Unmovable", 3: "HighAtomic", 5: "CMA, Isolate"}),
         *oom_zone(900 * MIB, MIB, {}, "DMA")],
        ["Memory ran out for 8 pages in a row, with 500 MiB free in node 0 zone Normal",
         "nginx asked for order 3 (GFP_KERNEL). The zone had 500 MiB free, its high watermark is "
         "80 MiB", "java was killed for it."],
        "warning",
    ),
}  # fmt: skip
CLEAR |= {
    "a log without a kill": Case("oom-kills-told", [], empty=(OomKill,)),
    "a kill that somebody asked for": Case("oom-kills-told", [oom(order=-1)]),
    "a kill of a cgroup alone": Case("oom-kills-told", [oom_at_limit()]),
    "no cgroup at its limit": Case("oom-cgroup-limit", [oom()]),
    "the largest was killed": Case(
        "oom-spared-larger", [oom(), oom_task(7, "java", 9000, 0, True), oom_task(9, "x", 1, 0)]
    ),
    "the one that asked was killed, and not the largest": Case(
        "oom-spared-larger", [oom(allocating_task=True), *SPARED[1:]]
    ),
    "a zone that has blocks": Case(
        "oom-fragmented", [oom(order=2), *oom_zone(500 * MIB, 80 * MIB, {2: "CMA, Movable"})]
    ),
    "a zone that is short": Case(
        "oom-fragmented", [oom(order=2), *oom_zone(70 * MIB, 80 * MIB, {0: "Movable"})]
    ),
    "single pages": Case(
        "oom-fragmented", [oom(), *oom_zone(500 * MIB, 80 * MIB, {0: "Movable"})]
    ),
}  # fmt: skip
NOT_CHECKED |= {
    f"{name} without a log": Case(name, [], why_not=f"no table {table} in this bundle")
    for name, table in {
        "oom-kills-told": "oom_kills", "oom-cgroup-limit": "oom_kills",
        "oom-spared-larger": "oom_tasks", "oom-fragmented": "oom_free_blocks",
    }.items()
}  # fmt: skip

CGROUP = MemoryCgroup(**{name: None for name in MemoryCgroup.__dataclass_fields__} | {
    "cgroup": "/pod", "cgroup_id": 7, "state": "online", "depth": 1, "usage_bytes": 63 * MIB,
    "max_bytes": 64 * MIB, "own_bytes": 60 * MIB, "anon_bytes": 60 * MIB, "file_bytes": 3 * MIB,
    "shmem_bytes": 2 * MIB, "kernel_bytes": MIB, "max_own_events": 12, "oom_kill_own_events": 0,
})  # fmt: skip


def cgroup(**changes: Any) -> MemoryCgroup:
    return dataclasses.replace(CGROUP, **changes)


def removed(count: int, held: int, **changes: Any) -> list[MemoryCgroup]:
    """Removed cgroups, which have so much each."""
    return [
        cgroup(cgroup="/gone", cgroup_id=100 + number, state="dying", own_bytes=held,
               usage_bytes=held, max_bytes=None, max_own_events=0, **changes)
        for number in range(count)
    ]  # fmt: skip


def pin(words: str, cgroups: int, pages: int, file: str | None = None) -> DyingPin:
    of_file = ("tmpfs", "00:18", "203", file, False) if file else (None,) * 5
    return DyingPin(words, *of_file, cgroups, cgroups, pages, pages * 4096)


FOUND |= {
    "a cgroup full of what cannot be given back": Case(
        "cgroup-at-limit",
        [cgroup(swap_max_bytes=0), oom_at_limit(), cgroup(cgroup="/", max_bytes=None)],
        ["Memory cgroup /pod is at its limit: 63 MiB of 64 MiB", "memory.max 12 times",
         "OOM kills are 0, 1 of a cgroup of this name in the kernel's log.",
         "60 MiB anonymous memory, 2 MiB shmem, 1 MiB of the kernel's, and 1 MiB page cache",
         "It may not swap."],
        "warning",
    ),
    "one with some page cache": Case(
        "cgroup-at-limit", [cgroup(file_bytes=12 * MIB, max_own_events=1, swap_bytes=MIB)],
        ["memory.max 1 time since", "10 MiB page cache", "1 MiB of it are swapped out."], "notice",
        unlike=["kernel's log", "may not swap"],
    ),
    "one whose processes were killed": Case(
        "cgroup-at-limit", [cgroup(file_bytes=12 * MIB, oom_kill_own_events=3)],
        ["its own OOM kills", "are 3."], "warning",
    ),
    "thousands of removed cgroups": Case(
        "dying-cgroups",
        [cgroup(), *removed(1200, 4096), pin("file", 1100, 1100, "/journal"),
         pin("no page, no swap", 90, 0), pin("swapped out", 10, 10)],
        ["1,200 memory cgroups were removed and are still in the kernel, with 4.688 MiB",
         "1 are online", "1,100 of them are kept by one file each",
         "Most by /journal (tmpfs): its 1,100 pages keep 1,100.",
         "10 have memory that is swapped out.", "90 have neither pages nor swap"],
        "notice", unlike=["deleted"],
    ),
    "removed cgroups that have much": Case(
        "dying-cgroups", [*removed(20, 16 * MIB), pin("anonymous memory", 20, 80 * 1024)],
        ["20 memory cgroups were removed and are still in the kernel, with 320 MiB",
         "(7.8 % of memory)"],
        "warning", unlike=["one file", "swapped out.", "neither"],
    ),
}  # fmt: skip
CLEAR |= {
    "a cgroup with room": Case("cgroup-at-limit", [cgroup(usage_bytes=50 * MIB)]),
    "a cgroup full of page cache": Case("cgroup-at-limit", [cgroup(file_bytes=30 * MIB)]),
    "one that never met its limit": Case("cgroup-at-limit", [cgroup(max_own_events=0)]),
    "one without a limit": Case("cgroup-at-limit", [cgroup(max_bytes=None)]),
    "some hundreds of removed cgroups": Case(
        "dying-cgroups", [*removed(900, 4096), pin("file", 900, 900, "/journal")]
    ),
    "none was removed": Case("dying-cgroups", [cgroup()], empty=(DyingPin,)),
}  # fmt: skip
NOT_CHECKED |= {
    f"{name} without cgroups": Case(
        name, [], why_not="no table memory_cgroups in this bundle"
    )
    for name in ("cgroup-at-limit", "dying-cgroups")
}  # fmt: skip


def ask(path: Path, case: Case) -> Verdict:
    opened = bundle(path / "b", case.rows, case.empty, case.target)
    return evaluate(opened, [QUESTIONS[case.id]])


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND.keys())
def test_it_is_found_and_said(tmp_path: Path, case: Case) -> None:
    asked = QUESTIONS[case.id]
    database = open_database(bundle(tmp_path / "b", case.rows, case.empty, case.target))
    verdict = evaluate_open(database, [asked])
    assert (verdict.clear, verdict.not_checked) == ([], [])
    (finding,) = verdict.found
    text = "\n".join((finding.title, finding.saw, finding.why))
    position = 0
    for words in case.words:
        assert words in text[position:], text
        position = text.index(words, position)
    for words in case.unlike:
        assert words not in text
    assert finding.severity == (case.severity or finding.severity)
    assert finding.next
    assert "None" not in text
    assert "nan" not in text.split()
    assert "inf " not in text
    if " where " not in asked.needs[0]:
        without_rows_of_the_first_table_nothing_is_found(database, asked)


def without_rows_of_the_first_table_nothing_is_found(database: Database, asked: Question) -> None:
    """
    Such a question is not asked. Here it is, of all the rest of what it was found in. (Others
    cannot be checked then, as what they need is a row of that table.)
    """
    assert database.rows(query_of(database, asked))
    database.connection.execute(f'delete from "{asked.needs[0].partition(".")[0]}"')
    assert not database.rows(query_of(database, asked))


@pytest.mark.parametrize("case", CLEAR.values(), ids=CLEAR.keys())
def test_it_is_not_so(tmp_path: Path, case: Case) -> None:
    verdict = ask(tmp_path, case)
    assert (verdict.found, verdict.not_checked) == ([], [])
    assert verdict.clear == [(case.id, QUESTIONS[case.id].about)]


@pytest.mark.parametrize("case", NOT_CHECKED.values(), ids=NOT_CHECKED.keys())
def test_it_cannot_be_told(tmp_path: Path, case: Case) -> None:
    verdict = ask(tmp_path, case)
    assert (verdict.found, verdict.clear) == ([], [])
    (left,) = verdict.not_checked
    assert left.reason == case.why_not


@pytest.mark.parametrize(
    "cases", [FOUND, CLEAR, NOT_CHECKED], ids=["found", "clear", "not checked"]
)
def test_every_finding_has_its_case(cases: dict[str, Case]) -> None:
    # Those about profiles and series: test_profile_findings.py, test_watch_findings.py.
    here = {name for name in QUESTIONS if not name.startswith(("profile-", "watch-"))}
    assert {case.id for case in cases.values()} == here


# The engine.


def test_an_empty_bundle_answers_nothing_and_says_so(tmp_path: Path) -> None:
    verdict = evaluate(bundle(tmp_path / "b", []))
    assert (verdict.found, verdict.clear) == ([], [])
    assert {left.id for left in verdict.not_checked} == set(QUESTIONS)


def test_the_reason_of_a_section_that_failed_is_given(tmp_path: Path) -> None:
    section = SectionResult("zones", "absent", 0.0, 0, 0, "/proc/zoneinfo: no such file")
    opened = bundle(tmp_path / "b", [], sections=[section])
    (left,) = evaluate(opened, [QUESTIONS["below-watermarks"]]).not_checked
    assert left.reason == (
        "no table zones in this bundle (section zones: /proc/zoneinfo: no such file)"
    )


def test_a_damaged_table_is_the_reason(tmp_path: Path) -> None:
    opened = bundle(tmp_path / "b", [zone()])
    (tmp_path / "b" / "zones.csv").write_text("node\nx\n")
    (left,) = evaluate(opened, [QUESTIONS["below-watermarks"]]).not_checked
    assert "table zones cannot be used" in left.reason
    assert "its columns are not those that datapackage.json declares" in left.reason


def test_the_worst_comes_first(tmp_path: Path) -> None:
    rows = [zone(free_pages=1), *FOUND["blocks on another list"].rows, event("oom_kill", 1),
            rmap.walk(), rmap.anon_vma(), rmap.COST, rmap.process(60_000),
            exit_cost(2.876)]  # fmt: skip
    found = evaluate(bundle(tmp_path / "b", rows)).found
    assert [(finding.severity, finding.estimate, finding.id) for finding in found] == [
        ("critical", False, "below-watermarks"),
        ("warning", False, "near-max-map-count"),
        ("warning", True, "rmap-walk-stalls"),
        ("warning", True, "slow-exit"),
        ("notice", False, "oom-kills-since-boot"),
        ("notice", False, "misplaced-blocks"),
    ]


def test_no_estimate_is_critical(tmp_path: Path) -> None:
    asked = question(sql="select *, 'critical' as severity, 'min' as mark, 1 as usable, "
                     "true as over, "
                     "0 as reserve_free, 4096 as page_size from zones")  # fmt: skip
    opened = bundle(tmp_path / "b", [zone()])
    (measured,) = evaluate(opened, [asked]).found
    (estimated,) = evaluate(opened, [dataclasses.replace(asked, estimate=True)]).found
    assert (measured.severity, measured.estimate) == ("critical", False)
    assert (estimated.severity, estimated.estimate) == ("warning", True)


def test_what_is_under_its_threshold_is_kept_for_comparisons(tmp_path: Path) -> None:
    verdict = evaluate(bundle(tmp_path / "b", [zone()]), [QUESTIONS["below-watermarks"]])
    assert (verdict.found, [id for id, _ in verdict.clear]) == ([], ["below-watermarks"])
    (under,) = verdict.under
    assert under.title == (
        "Node 0 zone Normal: 781.2 MiB of free memory are usable, above the min watermark "
        "(39.06 MiB)"
    )


def test_a_column_that_an_older_bundle_lacks_is_unknown(tmp_path: Path) -> None:
    case = FOUND["a free list contradicts where a CPU was inside the lock"]
    with Writer(tmp_path / "b") as writer:
        checks = [row for row in case.rows if isinstance(row, FreeListCheck)]
        writer.table("free_list_checks", "x", FreeListCheck, checks, section="x")
        writer.table("zones", "x", OldZone, [OldZone(0, "Normal")], section="x")
        writer.finish(TARGET, [])
    (finding,) = evaluate(Bundle(tmp_path / "b"), [QUESTIONS[case.id]]).found
    assert finding.severity == "critical" and "zone.lock" not in finding.saw


@dataclass(frozen=True)
class OldZone:
    """A zone of a bundle from before its lock was read."""

    node: int = column(key=True)
    zone: str = column(holds="kernel", key=True)


def test_words_from_the_kernel_are_not_a_template(tmp_path: Path) -> None:
    hostile = "{{ 7*7 }}{% raw %}<script>"
    opened = bundle(tmp_path / "b", [zone(zone=hostile, free_pages=1)])
    (finding,) = evaluate(opened, [QUESTIONS["below-watermarks"]]).found
    assert hostile in finding.title


def question(**changes: Any) -> Question:
    return dataclasses.replace(QUESTIONS["below-watermarks"], **changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sql": "select nonsense from zones"}, "the query failed: Binder Error"),
        (
            {"title": "{{ misspelt }}"},
            "its words do not fit what was found: 'misspelt' is undefined",
        ),
        ({"saw": "{{ node / 0 }}"}, "its words do not fit what was found: division by zero"),
        ({"why": "{{ node + zone }}"}, "its words do not fit what was found: unsupported operand"),
        (
            {"next": (Step("{% if %}"),)},
            "its words do not fit what was found: Expected an expression",
        ),
    ],
)
def test_a_finding_with_a_fault_costs_no_other(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    opened = bundle(tmp_path / "b", [zone(free_pages=1)])
    verdict = evaluate(opened, [question(id="faulty", **change), question()])
    assert [finding.id for finding in verdict.found] == ["below-watermarks"]
    (left,) = verdict.not_checked
    assert left.id == "faulty"
    assert left.reason.startswith(reason)


def test_every_file_is_a_finding() -> None:
    assert set(QUESTIONS) == {path.stem for path in FINDINGS.glob("*.toml")}
    for asked in QUESTIONS.values():
        assert asked.severity in SEVERITIES
        assert asked.harm in HARMS
        assert asked.harm != HIDES or asked.section == "profiles"
        assert asked.needs, "a finding that needs nothing would be clear of an empty bundle"
        assert all(re.fullmatch(r"\w+\.\w+( where .+)?", need) for need in asked.needs)
        assert all(link.url.startswith("https://") for link in asked.links)
        assert asked.about.strip() == asked.about
        assert "\n" not in asked.about


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_a_list_of_names_has_an_order(asked: Question) -> None:
    """Two reports of a bundle are the same: DuckDB's threads hand rows over as they come."""
    for call in re.findall(
        r"(?:string_agg|first)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", asked.sql
    ):
        assert "order by" in call, call


class TestSteps:
    """What there is to do, of which only that is said that is for the kernel that was read."""

    STEPS = (
        Step("everywhere", looks=True),
        Step("if it has it", cost="much", only=("defrag_mode",)),
        Step("if it has not", cost="more", only=("!defrag_mode",)),
        Step("{% if node == 7 %}on node seven{% endif %}", cost="c"),
    )

    def said(self, path: Path, *features: KernelFeature) -> list[str]:
        opened = bundle(path / "b", [zone(free_pages=1), *features])
        (finding,) = evaluate(opened, [question(next=self.STEPS)]).found
        return [step.do for step in finding.next]

    def feature(self, present: bool | None) -> KernelFeature:
        return KernelFeature("defrag_mode", present, "it", "a trace")

    def test_for_a_kernel_that_has_the_feature(self, tmp_path: Path) -> None:
        assert self.said(tmp_path, self.feature(True)) == ["everywhere", "if it has it"]

    def test_for_a_kernel_that_has_not(self, tmp_path: Path) -> None:
        assert self.said(tmp_path, self.feature(False)) == ["everywhere", "if it has not"]

    @pytest.mark.parametrize("known", [True, False])
    def test_where_nothing_shows_the_condition_is_said(self, tmp_path: Path, known: bool) -> None:
        what = FEATURES["defrag_mode"].what
        assert self.said(tmp_path, *([self.feature(None)] if known else [])) == [
            "everywhere",
            f"Where {what}: if it has it",
            f"Unless {what}: if it has not",
        ]

    def test_words_may_go_by_the_kernel(self, tmp_path: Path) -> None:
        opened = bundle(tmp_path / "b", [zone(free_pages=1), self.feature(True)])
        asked = question(why="{% if kernel.defrag_mode %}it has{% else %}it has not{% endif %}")
        (finding,) = evaluate(opened, [asked]).found
        assert finding.why == "it has"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("about = ", "Invalid value"),
        ('about = "x"', "'next'"),
        ('needs = []\nsources = []\nnext = []\nabout = "x"', "missing"),
        ('needs = []\nsources = []\nnext = [{ does = "x" }]\nabout = "x"', "unexpected"),
        (
            'needs = []\nsources = []\nnext = [{ do = "x", only = ["y"] }]\nabout = "x"',
            "no feature",
        ),
    ],
)
def test_a_file_that_is_no_finding_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.toml: .*{words}"):
        load_questions(tmp_path)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (known(display.count)(None), "unknown"),
        (display.count(0), "0"),
        (display.count(1234567), "1,234,567"),
        (display.count(1.5), "1.5"),
        (display.count(2.3e-05), "0.000023"),
        (display.count(4.1e-15), "4.1e-15"),
        (known(display.percent)(None), "unknown"),
        (display.percent(0), "0 %"),
        (display.percent(0.0001), "<0.1 %"),
        (display.percent(0.058), "5.8 %"),
        (display.percent(0.9999), ">99.9 %"),
        (display.percent(1), "100 %"),
        (known(display.pages)(None, 4096), "unknown"),
        (known(display.pages)(1, None), "unknown"),
        (display.pages(0, 4096), "0 B"),
        (display.pages(1, 4096), "4 KiB"),
        (display.pages(-512, 4096), "-2 MiB"),
        (display.pages(1, 65536), "64 KiB"),
        (display.pages(1 << 28, 4096), "1 TiB"),
        (period(None), "since boot, uptime unknown"),
        (period(0), "since boot, uptime unknown"),
        (period(17.26), "in 17 s since boot"),
        (period(7200), "in 2.0 h since boot"),
        (period(86400 * 30), "in 30.0 days since boot"),
    ],
)
def test_numbers_are_said_with_their_unit(shown: str, words: str) -> None:
    assert shown == words


@dataclass(frozen=True)
class Other:
    """A table that no finding knows."""

    x: int = column()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return open_database(bundle(tmp_path_factory.mktemp("locked") / "b", [zone()]))


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/etc/*')",
        "copy zones to '/tmp/stolen.csv'",
        "export database '/tmp/stolen'",
        "attach '/tmp/other.db'",
        "install httpfs",
        "load httpfs",
        "select * from 'https://example.org/x.csv'",
        "set enable_external_access = true",
        "reset enable_external_access",
        "set lock_configuration = false",
        "set allow_unsigned_extensions = true",
        "select * from FOUND_IN_PYTHON",
    ],
)
def test_a_query_reaches_nothing_but_the_bundle(locked: Database, query: str) -> None:
    FOUND_IN_PYTHON = locked.connection.sql("select 1")  # noqa: F841
    with pytest.raises(duckdb.Error):
        locked.rows(query)
    assert locked.rows("select zone from zones") == [{"zone": "Normal"}]


# The views, against the kernel's own formulas and words.


def unusable_free_index(order: int, free_area: Sequence[int]) -> int:
    """``unusable_free_index()`` of mm/vmstat.c, in thousandths."""
    free_pages = sum(blocks << at for at, blocks in enumerate(free_area))
    suitable = sum(blocks << (at - order) for at, blocks in enumerate(free_area) if at >= order)
    if free_pages == 0:
        return 1000
    return (free_pages - (suitable << order)) * 1000 // free_pages


def fragmentation_index(order: int, free_area: Sequence[int]) -> int:
    """``__fragmentation_index()`` of mm/vmstat.c, in thousandths."""
    free_pages = sum(blocks << at for at, blocks in enumerate(free_area))
    if not sum(free_area):
        return 0
    if sum(free_area[order:]):
        return -1000
    return 1000 - (1000 + free_pages * 1000 // (1 << order)) // sum(free_area)


free_areas = st.lists(
    st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 1 << 40)), min_size=1, max_size=14
)


@settings(max_examples=8)
@given(zones=st.lists(free_areas, min_size=1, max_size=30), parts=st.randoms(use_true_random=False))
def test_fragmentation_is_what_the_kernel_computes(zones: list[list[int]], parts: Any) -> None:
    rows = []
    for node, free_area in enumerate(zones):
        for order, blocks in enumerate(free_area):
            movable = parts.randint(0, blocks)  # a sum over migratetypes, Isolate among them
            for name, share in (("Movable", movable), ("Isolate", blocks - movable)):
                rows.append(free(order, share, name, node=node))
    with tempfile.TemporaryDirectory() as folder:
        small = [row for row in rows if row.pages < 1 << 62]
        database = open_database(bundle(Path(folder) / "b", small))
        got = {
            (row["node"], row["order"]): (
                round(row["unusable_index"] * 1000),
                round(row["fragmentation_index"] * 1000),
            )
            for row in database.rows("from fragmentation")
        }
    assert got == {
        (node, order): (unusable_free_index(order, area), fragmentation_index(order, area))
        for node, area in enumerate(zones)
        for order in range(len(area))
    }


@pytest.mark.parametrize("index", ["unusable_index", "extfrag_index"])
def test_fragmentation_is_what_the_kernel_printed(tmp_path: Path, index: str) -> None:
    rows = read_pagetypeinfo((DATA / "proc/pagetypeinfo").read_text())
    database = open_database(bundle(tmp_path / "b", rows))
    column = {"unusable_index": "unusable_index", "extfrag_index": "fragmentation_index"}[index]
    printed = {}
    for line in (DATA / "sys/kernel/debug/extfrag" / index).read_text().splitlines():
        node, name, values = re.fullmatch(r"Node (\d+), zone +(\S+) (.*)", line).groups()
        for order, value in enumerate(values.split()):
            printed[int(node), name, order] = value
    got = {
        (row["node"], row["zone"], row["order"]): f"{row[column]:.3f}"
        for row in database.rows("from fragmentation")
    }
    assert got == printed


def test_thp_blocks_are_counted_in_blocks_of_thp_size(tmp_path: Path) -> None:
    rows = [free(8, 100), free(9, 3), free(10, 2), free(9, 1, "Unmovable"), free(10, 1, "CMA"),
            free(9, 7, "HighAtomic"), free(9, 5, "Isolate")]  # fmt: skip
    (row,) = open_database(bundle(tmp_path / "b", rows)).rows("from thp_blocks")
    assert (row["usable_blocks"], row["movable_blocks"], row["highatomic_blocks"]) == (10, 7, 7)


def test_free_blocks_of_no_zone_are_no_zones(tmp_path: Path) -> None:
    """Damage has node -1: it is free memory, and no zone's."""
    rows = [*all_orders(o0=1), free(0, 5, node=-1, zone="unknown")]
    database = open_database(bundle(tmp_path / "b", rows))
    assert {row["node"] for row in database.rows("from fragmentation")} == {0}


def test_on_a_terminal_titles_keep_clear_of_the_severity(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    title = "Node 1 zone Normal: 5 of 5 free blocks of THP size lie in the HighAtomic reserve"
    finding = Finding(
        "x", "critical", title, "s", "w", (Step("n", "c", "when a", "u"), Step("m", looks=True)),
        (), "zones",
    )  # fmt: skip
    print_findings(Verdict([finding], [("y", title)], []), everything=True)
    assert capsys.readouterr().out.splitlines() == [
        "1 critical. All 2 checks could be made.",
        "",
        "CRITICAL Node 1 zone Normal: 5 of 5 free blocks of THP size",
        "         lie in the HighAtomic reserve",
        "     saw s",
        "     why w",
        "    next n",
        "         costs: c",
        "         not: when a",
        "         undo: u",
        "         m",
        "",
        "ok       Node 1 zone Normal: 5 of 5 free blocks of THP size",
        "         lie in the HighAtomic reserve",
    ]


MISSED = [
    NotChecked(f"n{n}", f"N {n}", "no table", s) for n, s in enumerate(("watch", "watch", "zones"))
]


@pytest.mark.parametrize(
    ("verdict", "headline"),
    [
        (Verdict([], [("y", "Y")], MISSED), "1 of 4 checks could be made; that is clear."),
        (
            Verdict([], [("y", "Y"), ("z", "Z")], []),
            "All 2 checks could be made, and all are clear.",
        ),
        (Verdict([], [], MISSED), "None of 3 checks could be made."),
    ],
)  # fmt: skip
def test_the_headline_tells_what_could_be_checked(
    capsys: pytest.CaptureFixture[str], verdict: Verdict, headline: str
) -> None:
    print_findings(verdict, everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == headline
    left = (
        ["Not checked: 3 (watch 2, zones 1); 'findings --all' says why."]
        if verdict.not_checked
        else []
    )
    assert lines[1:] == left


def test_of_several_the_summary_is_the_last_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        Finding(name, severity, name, "s", "w", (), (), "zones")
        for name, severity in (("a", "critical"), ("b", "warning"), ("c", "warning"))
    ]
    print_findings(Verdict(found, [], MISSED), everything=False)
    lines = capsys.readouterr().out.splitlines()
    said = "1 critical, 2 warnings. 3 of 6 checks could be made."
    assert lines[1] == lines[-1] == said
    assert lines[-2].startswith("Not checked: 3 ")


def test_an_estimate_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("x", "warning", "T", "s", "w", (), (), "zones", estimate=True)
    print_findings(Verdict([finding], [], MISSED), everything=False)
    out = capsys.readouterr().out
    assert out.startswith("1 warning. 1 of 4 checks could be made.")
    assert "WARNING  T (estimate)" in out


# Steps by the features of a kernel.

# A reader with each of the kernels that differ most is told what is so there.
HIGHATOMIC = {
    "6.1": (
        {"highatomic_buddy_only": False, "highatomic_fast_path": False},
        ["even when a per-CPU list had the block"],
        ["after pcp alloc"],
        ["existing highatomic reserves"],
    ),
    "7.2": (
        {"highatomic_buddy_only": True, "highatomic_fast_path": False},
        ["only a block from the buddy lists"],
        ["existing highatomic reserves"],
        ["after pcp alloc", "Where "],
    ),
    "7.3": (
        {"highatomic_buddy_only": True, "highatomic_fast_path": True},
        ["without making it grow"],
        [],
        ["after pcp alloc", "existing highatomic reserves", "Where "],
    ),
    "nothing shows": (
        {},
        [],
        ["Unless only an allocation from the buddy lists makes"],
        ["On this kernel"],
    ),
}


@pytest.mark.parametrize("kernel", HIGHATOMIC)
def test_advice_on_the_reserve_is_for_the_kernel_that_was_read(tmp_path: Path, kernel: str) -> None:
    features, why, steps, absent = HIGHATOMIC[kernel]
    case = FOUND["a reserve that starves THP"]
    rows = [KernelFeature(name, there, "", "") for name, there in features.items()]
    opened = bundle(tmp_path / "b", [*case.rows, *rows])
    finding = next(
        found for found in evaluate(opened).found if found.id == "highatomic-starves-thp"
    )
    text = "\n".join(step.do for step in finding.next)
    for words in why:
        assert words in finding.why
    for words in steps:
        assert words in text
    for words in absent:
        assert words not in finding.why + text
