# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bundles for the report's tests, made of the probes' own rows: a small machine with two nodes that
has a HighAtomic reserve and fragmented zones, and what a hostile stranger would make of it.

Nothing here is random: the same call gives the same bundle.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import rmap_rows
import watch_made
from rows_of_tables import Contents, tables_of_rows

from mmscope.drgn.cgroups.cgroup_rows import MemoryCgroup
from mmscope.drgn.cgroups.dying_pins import DyingPin
from mmscope.drgn.free.free_lists import FreeBlocks, FreeListCheck, MisplacedBlocks
from mmscope.drgn.free.pageblocks import PageblockRun, Pageblocks
from mmscope.drgn.free.pcp_lists import PcpCheck, PcpPages
from mmscope.drgn.free.zones import FreeAccounting, Zone
from mmscope.drgn.ledger.memory_ledger import LedgerCheck, LedgerRow, UnexplainedRow
from mmscope.drgn.machine.boot_options import memory_options
from mmscope.drgn.machine.direct_map import DirectMapLevel
from mmscope.drgn.machine.physical_memory import MappedRange, lay_out
from mmscope.drgn.machine.poisoned_pages import PoisonCounter, PoisonedPages
from mmscope.drgn.machine.settings import Setting
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.owners.page_owner_rows import PageOwnerGrowth, PageOwnerPoint, PageOwnerStack
from mmscope.drgn.owners.slab_owner import SlabOwnerStack
from mmscope.drgn.page_tables.page_tables import (
    PageTableDetails,
    PageTableOccupancy,
    PageTableRegion,
    PageTables,
    exit_costs,
)
from mmscope.drgn.reading.io_resources import Resource
from mmscope.drgn.struct_pages.device_pagemaps import DevicePagemap
from mmscope.drgn.struct_pages.hugetlb import HugetlbCheck, HugetlbPool, HugetlbSize
from mmscope.drgn.struct_pages.memory_metadata import MetadataPart, what_if
from mmscope.drgn.struct_pages.vmemmap import VmemmapMapping, VmemmapSections, VmemmapZone
from mmscope.drgn.struct_pages.vmemmap_examples import VmemmapExample
from mmscope.drgn.tables.rows import column
from mmscope.drgn.text.owner_frames import owner_frame
from mmscope.drgn.waits.wait_tables import TaskWait, WaitRoot
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.finding import Finding, NotChecked, Verdict
from mmscope.reports.findings.question import Step
from mmscope.reports.rows.profile_rows import (
    Profile,
    ProfileAllocation,
    ProfileCommand,
    ProfileCount,
    ProfileCounter,
    ProfileDuration,
    ProfileFaults,
    ProfileFrame,
    ProfileGroup,
    ProfileMoment,
    ProfileNote,
    ProfilePageTables,
    ProfilePart,
    ProfileReaping,
    ProfileRecording,
    ProfileSite,
    ProfileTableGrowth,
    ProfileVictim,
)

TYPES = ("Unmovable", "Movable", "Reclaimable", "HighAtomic", "CMA", "Isolate")
BLOCK = 512  # pages in a pageblock
# node, zone, first PFN, pageblocks
ZONES = ((0, "DMA", 0, 8), (0, "DMA32", 8 * BLOCK, 248), (1, "Normal", 1 << 20, 512))
TARGET: dict[str, Any] = {
    "kind": "vmcore",
    "release": "7.2.12+deb13-cloud-amd64",
    "architecture": "x86_64",
    "page_size": 4096,
    "hostname": "lab-guest",
    "captured_at": "2026-11-20T03:04:05+00:00",
    "uptime_seconds": 273_845.5,
    "total_pages": 393_086,
    "online_cpus": 4,
    "source": "vmcore",
}
# What somebody may call a process, a zone or a file, to be shown as it is and to do nothing.
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "\"' onmouseover=alert(3) x='",
    "\x1b[31mred\x1b[0m",
    "right\u202eleft",
    "{{7*7}}{% raw %}",
    "</style></title></pre><!--",
    "javascript:alert(4)",
    "a\x00b\x7f\x85c\u2028d\ufeffe",
    "x" * 5000,
)


@dataclasses.dataclass(frozen=True)
class Oddity:
    """A row of a table that the report has never heard of."""

    name: str = column(key=True, help="name of the thing")
    taken: int = column(unit="bytes", help="memory that it takes")
    ratio: float | None = column(help="a fraction")
    fine: bool | None = column(help="whether it is fine")


def free_lists() -> list[FreeBlocks]:
    """Much is free, little of it in large blocks, and most of those are HighAtomic."""
    rows = []
    for node, zone, _, pageblocks in ZONES:
        for order in range(11):
            for migratetype in TYPES:
                blocks = 0
                if migratetype in ("Unmovable", "Movable") and order < 9:
                    blocks = pageblocks * (16 if migratetype == "Movable" else 1) >> order
                if zone == "Normal" and migratetype == "HighAtomic" and order in (1, 9):
                    blocks = 7 - order // 2
                if zone == "Normal" and migratetype == "Movable" and order == 10:
                    blocks = 1
                rows.append(FreeBlocks(node, zone, order, migratetype, blocks, blocks << order))
    return rows


def pageblock_runs() -> list[PageblockRun]:
    """Runs of one to nine pageblocks, of every type, with every free share."""
    rows: list[PageblockRun] = []
    for node, zone, start, pageblocks in ZONES:
        done = 0
        while done < pageblocks:
            step = len(rows)
            blocks = min(1 + step * 7 % 9, pageblocks - done)
            migratetype = "Movable" if step % 3 else TYPES[step // 3 % len(TYPES)]
            rows.append(
                PageblockRun(start + done * BLOCK, blocks, node, zone, migratetype, step * 5 % 9)
            )
            done += blocks
    return rows


def pageblock_census(runs: Iterable[PageblockRun]) -> list[Pageblocks]:
    """The census that agrees with the map."""
    counts = {(node, zone, mt): 0 for node, zone, *_ in ZONES for mt in TYPES}
    for run in runs:
        counts[run.node, run.zone, run.migratetype] += run.blocks
    return [Pageblocks(*key, blocks) for key, blocks in counts.items()]


def zone_rows(blocks: list[FreeBlocks]) -> list[Zone]:
    """DMA above high, DMA32 below low, Normal above high only with its HighAtomic part."""
    free = {zone: sum(b.pages for b in blocks if b.zone == zone) for _, zone, *_ in ZONES}
    reserve = sum(b.pages for b in blocks if b.migratetype == "HighAtomic")
    high = {
        "DMA": 150,
        "DMA32": free["DMA32"] * 13 // 10,
        "Normal": (free["Normal"] - reserve) * 11 // 10,
    }
    rows = []
    for node, zone, start, pageblocks in ZONES:
        pages = pageblocks * BLOCK
        rows.append(
            Zone(
                node=node,
                zone=zone,
                present_pages=pages,
                managed_pages=pages - 64,
                spanned_pages=pages,
                free_pages=free[zone],
                wmark_min=high[zone] * 4 // 6,
                wmark_low=high[zone] * 5 // 6,
                wmark_high=high[zone],
                wmark_boost=0,
                highatomic_reserved_pages=5 * BLOCK if zone == "Normal" else 0,
                highatomic_free_pages=reserve if zone == "Normal" else 0,
                highatomic_cap_pages=0 if zone == "DMA" else 5 * BLOCK,
                start_pfn=start,
                lock_held=False,
                node_unreclaimable=False,
            )
        )
    return rows


# Who calls whom to allocate, from the root.
PATHS = (
    "asm_exc_page_fault;exc_page_fault;handle_mm_fault;do_anonymous_page;vma_alloc_folio_noprof",
    "asm_exc_page_fault;exc_page_fault;handle_mm_fault;do_wp_page;vma_alloc_folio_noprof",
    "entry_SYSCALL_64;do_syscall_64;vfs_write;ext4_file_write_iter [ext4];folio_alloc_noprof",
    "entry_SYSCALL_64;do_syscall_64;vfs_write;leak_write [leaky];leak_more [leaky]",
    "ret_from_fork;kthread;worker_thread;process_one_work;frees_itself",
    "entry_SYSCALL_64;do_syscall_64;vfs_read;xfs_file_read_iter [xfs];xfs_buf_alloc [xfs]",
)
ALLOCATORS = ";alloc_pages_mpol;__alloc_frozen_pages_noprof;get_page_from_freelist"
# Pages of each path at three moments.
PAGES_HELD = ((80_000,) * 3, (20_000, 25_000, 21_000), (0, 9_000, 12_000), (16, 8_000, 16_000),
              (9_000, 4_000, 0), (5, 5, 5))  # fmt: skip
MISSING = "the resolver does not have this handle"


def owner_stacks() -> list[PageOwnerStack]:
    """Stacks of the last moment, and one that nobody resolves."""
    rows = [
        PageOwnerStack(n, held[-1], held[-1], *owner_frame(path), path + ALLOCATORS, None)
        for n, (path, held) in enumerate(zip(PATHS, PAGES_HELD, strict=True), 1)
    ]
    return [*rows, PageOwnerStack(99, 700, None, None, None, None, MISSING)]


def owner_growth() -> list[PageOwnerGrowth]:
    """How they got there."""
    rows = []
    for handle, held in enumerate((*PAGES_HELD, (700,) * 3), 1):
        steps = list(pairwise(held))
        rows.append(
            PageOwnerGrowth(
                handle=99 if handle > len(PATHS) else handle,
                first_seen=0.0,
                listed=3,
                gaps=0,
                pages_first=held[0],
                pages_last=held[-1],
                pages_min=min(held),
                pages_max=max(held),
                gained=held[-1] - held[0],
                slope=(held[-1] - held[0]) / 20,
                steadiness=sum(b >= a for a, b in steps) / 2,
                rises=sum(b > a for a, b in steps),
            )
        )
    return sorted(rows, key=lambda row: -row.gained)


def slab_stacks() -> list[SlabOwnerStack]:
    """Objects of three caches; of one the object size is not known."""
    return [
        SlabOwnerStack("kmalloc-96", 7, PATHS[3], 1000, 96_000, 90_000),
        SlabOwnerStack("kmalloc-96", 8, PATHS[2], 10, 960, 900),
        SlabOwnerStack("dentry", 9, "do_syscall_64;path_openat;__d_alloc", 300, 57_600, None),
        SlabOwnerStack("nameless", 10, PATHS[4], 5, None, None),
    ]


def page_table_rows() -> list[PageTables]:
    """A process that read 40 GiB of nothing, one with huge pages, one as most are."""
    unlike = dict.fromkeys((f.name for f in dataclasses.fields(PageTables)), 0)
    each: list[dict[str, Any]] = [
        {"pid": 4711, "comm": "reader", "pte_tables": 20_000, "pmd_tables": 41, "pud_tables": 2,
         "present_ptes": 20_100, "zero_ptes": 20_000, "resident_bytes": 409_600,
         "used_ptes": 20_100, "exit_pte_slots": 10_240_000},
        {"pid": 815, "comm": "huge", "pte_tables": 40, "pmd_tables": 4, "pud_tables": 2,
         "deposited_pte_tables": 700, "huge_pmds": 400, "huge_zero_pmds": 300,
         "present_ptes": 9_000, "resident_bytes": 875_691_008, "exit_pte_slots": 20_000},
        {"pid": 1, "comm": "init", "pte_tables": 9, "pmd_tables": 3, "pud_tables": 2,
         "empty_pte_tables": 2, "present_ptes": 800, "swap_ptes": 60, "resident_bytes": 3_276_800,
         "used_ptes": 860, "exit_pte_slots": 3_000},
    ]  # fmt: skip
    rows = []
    for changes in each:
        row = unlike | changes
        counted = ("pte_tables", "pmd_tables", "pud_tables", "deposited_pte_tables")
        row["pgtables_bytes"] = 4096 * sum(row[name] for name in counted)
        rows.append(PageTables(**row))
    return rows


def page_table_details() -> list[PageTableDetails]:
    """What else is in them: nothing."""
    nothing = dict.fromkeys((f.name for f in dataclasses.fields(PageTableDetails)), 0)
    reaped = {4711: 10_230_000, 1: 1_000}
    return [
        PageTableDetails(
            **(nothing | {"pid": row.pid, "comm": row.comm, "vmas": 11, "threads": 1})
            | {"reaped_pte_slots": reaped.get(row.pid, 0)}
        )
        for row in page_table_rows()
    ]


def waits() -> list[TaskWait | WaitRoot]:
    """Two tasks behind a writer of a lock, who waits for a page."""
    lock, stack = "mmap_lock of java (4711)", "entry_SYSCALL_64;vm_munmap;io_schedule"
    waiting = [
        TaskWait(
            *(pid, comm, "/", "D", seconds, doing, "mmap_lock", lock, 4711, "java", "writer"),
            *(None, True, "entry_SYSCALL_64;down_read"),
        )
        for pid, comm, seconds, doing in ((99, "ps", 2.5, None), (815, "java", 3.0, "faults"))
    ]
    root = WaitRoot(
        *("java (4711)", "task", 4711, "java", False, False, 2, 0, 3.0, lock, 2, 3.5),
        *("changes mappings", False, None, stack),
    )
    return [*waiting, root]


def occupancy() -> list[PageTableOccupancy]:
    """How full they are: (pid, level, least, tables)."""
    return [
        PageTableOccupancy(pid, level, least, max(2 * least - 1, 0), tables, least * tables)
        for pid, level, least, tables in (
            (4711, "pgd", 2, 1), (4711, "pud", 32, 1), (4711, "pud", 1, 1), (4711, "pmd", 256, 40),
            (4711, "pmd", 2, 1), (4711, "pte", 1, 19_990), (4711, "pte", 64, 10),
            (815, "pgd", 2, 1), (815, "pud", 1, 2), (815, "pmd", 128, 4), (815, "pte", 512, 30),
            (815, "pte", 8, 10), (815, "deposited", 0, 700),
            (1, "pgd", 2, 1), (1, "pud", 1, 2), (1, "pmd", 2, 3), (1, "pte", 64, 7),
            (1, "pte", 0, 2), (None, "pte", 0, 2),
        )
    ]  # fmt: skip


def regions() -> list[PageTableRegion]:
    """Their address spaces."""
    return [
        PageTableRegion(4711, "0x400000", "0x4ed8000", 6, 78_479_360, 2, 409_600,
                        0, 0, 0, 0, 0, 0),
        PageTableRegion(4711, "0x7f0000000000", "0x7f0a00000000", 1, 40 << 30, 19_998,
                        0, 0, 0, 20_000 << 12, 0, 0, 0),
        PageTableRegion(815, "0x7f0000000000", "0x7f0080000000", 4, 2 << 30, 40,
                        36_831_232, 838_860_800, 4 << 20, 0, 629_145_600, 0, 8192),
        PageTableRegion(1, "0x400000", "0x4ed8000", 11, 78_479_360, 9, 3_276_800,
                        0, 0, 0, 0, 245_760, 0),
    ]  # fmt: skip


# Of two recordings of a process that ends: without huge pages, and with them.
EXIT = "do_group_exit_[k];do_exit_[k];__mmput_[k];exit_mmap_[k]"
FAULT = "main;asm_exc_page_fault_[k];exc_page_fault_[k]"
PROFILED = {
    "exit_path_never_cpu_clock": [
        (f"faults;{EXIT};unmap_vmas_[k];zap_pte_range_[k]", 300),
        (f"faults;{EXIT};free_pgtables_[k];free_pgd_range_[k]", 200),
        (f"faults;{FAULT}", 150),
        (f"faults;{FAULT};handle_mm_fault_[k];pte_alloc_one_[k]", 350),
        ("oom_reaper;oom_reaper_[k];__oom_reap_task_mm_[k];zap_pte_range_[k]", 80),
    ],
    "exit_path_always_cpu_clock": [
        (f"faults;{EXIT};unmap_vmas_[k];zap_huge_pmd_[k]", 30),
        (f"faults;{EXIT};free_pgtables_[k]", 5),
        (f"faults;{FAULT};ext4_filemap_fault [ext4]_[k]", 400),
    ],
}


def profile_rows() -> dict[str, Contents]:
    """Two recordings, the second held against the first."""
    rows: list[Any] = []
    for label, against in (("never", None), ("always", "exit_path_never")):
        name = f"exit_path_{label}"
        stacks = PROFILED[f"{name}_cpu_clock"]
        total = sum(value for _, value in stacks)
        what = "faults sparse"
        at = "2026-11-20T03:04:05+00:00"
        rows.append(
            Profile(name, "cpu-clock", "exit-path", "samples", total, total * 1000, total + 70, 70,
                    "70 idle", 3, None, total, len(stacks), "no", f"{name}_cpu_clock"),
        )  # fmt: skip
        rows.append(
            ProfileRecording(
                name,
                label,
                against,
                1.5,
                "system",
                "the command ended",
                what,
                at,
                "7.2",
                None,
                "exit-path",
            )
        )
        rows += [
            ProfileFrame(name, "cpu-clock", stack.rpartition(";")[2], value, value)
            for stack, value in stacks
        ]
    name, event = "exit_path_never", "cpu-clock"
    rows += [
        ProfilePart(name, event, "exit-path", "exit", "zap", 300, 300 / 580, 300 / 1080),
        ProfilePart(name, event, "exit-path", "exit", "free_pgtables", 200, 200 / 580, 200 / 1080),
        ProfilePart(name, event, "exit-path", "reaper", "zap", 80, 80 / 580, 80 / 1080),
    ]
    rows += [ProfileSite(name, event, "exc_page_fault", "asm_exc_page_fault", 150, "the way in")]
    rows += [ProfileMoment(name, 0.5, "oom:mark_victim", 7, "faults", "pid=7")]
    rows += [ProfileDuration(name, "reaping", 1, 4500, 4500, 4500, 4500)]
    rows += [ProfileFaults(name, "minor-faults", 7, "faults", 9, 9, "0x1", "0x2", 2 << 20)]
    rows += [ProfileGroup(name, "kmem:mm_page_alloc", "order 3", 900)]
    rows += [ProfileAllocation(name, 3, 900, 0, 0, 180)]
    rows += [ProfileVictim(name, 0.5, 7, "faults", 2 << 40, 0, 331_776, 0, 167_809_024, 0, 0)]
    rows += [ProfilePageTables(name, 1.2, 16_000, 65_536_000, 4096.0)]
    rows += [
        ProfileTableGrowth(
            name, 7, "faults", "addresses", 256, 0.5, 230, 230, 229, 2_822_144, None
        ),
        ProfileTableGrowth(
            name, 7, "faults", "addresses", 512, 0.7, 487, 486, 256, 5_033_984, 8639.5
        ),
        ProfileTableGrowth(name, 7, "faults", "VmPTE", 300, 0.6, None, None, None, 3_300_000, None),
    ]
    rows += [ProfileCommand(name, "faults sparse", 1.25, 0.02, 1.1)]
    rows += [ProfileCount(name, "page-walk-cycles", None, None, 9_000, "not supported")]
    rows += [ProfileCounter(name, "oom_kill", 1, 40.0)]
    rows += [ProfileReaping(name, event, 80, 10, 290)]
    rows += [ProfileNote(name, "partial", "3 samples were lost")]
    return tables_of_rows(rows)


# What does not fit together: tables that are empty of a machine where everything does.
USUALLY_EMPTY = (
    MisplacedBlocks(0, "DMA", 1, "Movable", "CMA", 3, 6),
    FreeListCheck(0, "DMA", 1, "Movable", None, 3, "what differs"),
    PcpCheck(1, "Normal", 0, 63, 62),
    HugetlbCheck(2 << 20, 0, "what differs", 3),
    rmap_rows.AnonVmaCheck("0x1", "what does not fit", 1, 2),
)


def tables() -> dict[str, Contents]:
    """Tables of the first sections of a reading, page_owner's series, profiles and a watch."""
    blocks, runs = free_lists(), pageblock_runs()
    zones = zone_rows(blocks)
    accounting = [
        FreeAccounting(z.node, z.zone, z.free_pages, 3, z.free_pages, 0, 0, 0, 1026, None)
        for z in zones
    ]
    counters = [
        VmCounter("nr_free_pages", "zone", sum(z.free_pages for z in zones), 12),
        VmCounter("numa_miss", "numa", 97_408, 0),
        VmCounter("thp_fault_alloc", "event", 1_234, 0),
        VmCounter("thp_fault_fallback", "event", 98_766, 0),
        VmCounter("compact_success", "event", 0, 0),
        VmCounter("compact_fail", "event", 8_211, 0),
        VmCounter("pgscan_kswapd", "event", 70_123_456, 0),
        VmCounter("oom_kill", "event", 0, 0),
        VmCounter("nr_something_new", "vm_stat", 4_711, None),
    ]
    pcp = [PcpPages(1, "Normal", cpu, 0, "Movable", 63 + cpu) for cpu in range(4)]
    settings = [
        Setting("vm.min_free_kbytes", "67584"),
        Setting("transparent_hugepage.enabled", "madvise"),
    ]
    # Those that gained most first, as a picture wants them.
    by_growth = sorted(enumerate(PAGES_HELD, 1), key=lambda each: each[1][0] - each[1][-1])
    points = [
        PageOwnerPoint(10.0 * moment, handle, held[moment] or None)
        for handle, held in by_growth
        for moment in range(3)
    ]
    page_tables, details = page_table_rows(), page_table_details()
    rows = [
        *(*zones, *blocks, *accounting, *pcp, *pageblock_census(runs), *runs, *counters, *settings),
        *(*owner_stacks(), *owner_growth(), *points, *slab_stacks(), *page_tables, *details),
        *exit_costs(page_tables, details, dontneed_frees_tables=True),
        *(*occupancy(), *regions(), *struct_page_rows(), *waits()),
    ]
    made = [tables_of_rows(rows), rmap_rows.tables(), profile_rows(), watch_made.tables()]
    more = tables_of_rows([*ledger_rows(), *cgroup_rows()], empty=map(type, USUALLY_EMPTY))
    return {name: table for tables in (*made, more) for name, table in tables.items()}


def ledger_rows() -> list[Any]:
    """Where the memory is: two zones, a class of no zone, a counter that does not agree."""
    parts = [
        *(
            ("anonymous", "base pages", 1, "Normal", 200_000),
            ("anonymous", "base pages", 0, "DMA32", 60_000),
        ),
        *(
            ("page cache", "files", 1, "Normal", 30_000),
            ("slab", "unreclaimable", 1, "Normal", 999),
        ),
        *(("unexplained", "single pages", 1, "Normal", 4_096), ("new", "class", 0, "DMA32", 7)),
        *(
            ("not the kernel's", "cut off", -1, "", 512),
            ("free", "free lists", 1, "Normal", 97_472),
        ),
    ]
    total = sum(pages for *_, pages in parts)
    rows = [
        LedgerRow(owner, part, node, zone, pages, pages * 4096, 100 * pages / total, "nr_a nr_b")
        for owner, part, node, zone, pages in parts
    ]
    checks = [
        LedgerCheck("nr_file_pages", -1, "", 30_000, 30_000, 0, ""),
        LedgerCheck("nr_anon_pages", -1, "", 260_000, 259_990, 10, "not all are mapped"),
    ]
    unexplained = [
        UnexplainedRow("single pages", 1, "Normal", "", "1", None, "no", 4_096, "0x10003a 0x13d200")
    ]
    return [*rows, *checks, *unexplained]


def cgroup_rows() -> list[Any]:
    """A cgroup in another, one at its limit, one that is dying; names that are hostile."""
    unknown = dict.fromkeys(MemoryCgroup.__dataclass_fields__)
    mib = 1 << 20

    def row(cgroup: str, number: int, usage: int, **known: Any) -> MemoryCgroup:
        return MemoryCgroup(**unknown | {
            "cgroup": cgroup, "cgroup_id": number, "state": "online", "usage_bytes": usage * mib,
        } | known)  # fmt: skip

    rows = [
        row("/", 1, 900, dying_below=1),
        row("/a.slice", 7, 800, anon_bytes=500 * mib, file_bytes=300 * mib, shmem_bytes=mib),
        row(f"/a.slice/{HOSTILE[0]}", 8, 700, kernel_bytes=mib, max_bytes=701 * mib,
            max_own_events=9, oom_kill_own_events=1, swap_bytes=0),
        row("/a.slice/gone", 9, 1, state="dying", own_bytes=4096),
    ]  # fmt: skip
    pins = [DyingPin("file", "tmpfs", "00:18", "203", f"/{HOSTILE[0]}", False, 1, 1, 1, 4096)]
    return [*rows, *pins]


def struct_page_rows() -> list[Any]:
    """128 sections, half of them optimised; a device with an altmap; parts with a remainder."""
    mib, pages = 1 << 20, 2 << 20
    runs = [
        VmemmapSections(0, 1, 0, "DMA32*", "boot", "pmd", 0, 0, pages, 0),
        VmemmapSections(1 << 15, 63, 0, "DMA32", "boot", "pmd", 0, 0, 63 * pages, 0),
        VmemmapSections(1 << 24, 62, 1, "Normal", "boot", "pte", 7, 7, 62 * pages, 54 * pages),
        VmemmapSections(1 << 26, 1, 1, "Normal", "self-hosted", "pmd", 0, 0, pages, 0),
        VmemmapSections(1 << 27, 1, 1, "Device", "device", "pte", 6, 0, pages, 3 * pages // 4),
    ]
    mappings = [
        VmemmapMapping("pmd", 65, 65 * pages, 65 << 9, 0, 0, 1),
        VmemmapMapping("pte", 63 << 9, 63 * pages, 4100, 31_744, 27_776, 63),
    ]
    zones = [
        VmemmapZone(0, "DMA32", 64 * pages, 64 * pages, 0, 0, 0),
        VmemmapZone(1, "Normal", 63 * pages, pages, 62 * pages, 54 * pages, 54 * pages),
    ]
    examples = [
        VmemmapExample("hugetlb, with HVO", 1 << 24, pages, 0, 1, 0x1234, False, "pte", True),
        VmemmapExample("hugetlb, with HVO", 1 << 24, pages, 1, 7, 0x8765, True, "pte", False),
        VmemmapExample("hugetlb, with HVO", 1 << 25, 1 << 30, 0, 1, 0x1235, False, "pte", True),
        VmemmapExample("hugetlb, with HVO", 1 << 25, 1 << 30, 1, 4095, 0x1235, True, "pte", False),
        VmemmapExample("device", 1 << 27, 1 << 30, 0, 4096, 0x4000, False, "pmd", True),
    ]
    pools = [HugetlbPool(pages, 1, 3968, 12, 0, 3968, 0, 124 * mib, 108 * mib, 0)]
    sizes = [HugetlbSize(pages, 3968, 12, 4, 0, 0, "on", 28 << 10)]
    device = DevicePagemap("0x8000000000", "0x8008000000", "dax0.0", "GENERIC", 128 * mib, 9, False,
                           pages, pages // 4, 0, 3 * pages // 4, 0,
                           8192, 0.066, 0.097, 0, "")  # fmt: skip
    parts = [
        MetadataPart("struct page, allocated at boot", 130 * mib, 0.8, "nr_memmap_boot_pages",
                     False),
        MetadataPart("struct page, on the device (altmap)", pages, 0.01, "nr_memmap_pages", True),
        MetadataPart("mem_section", mib, 0.006, None, False),
        MetadataPart("remainder of nr_memmap_boot_pages", -4096, 0.0, "nr_memmap_boot_pages",
                     False),
    ]  # fmt: skip
    options = memory_options("mem=16G memmap=1G!8G crashkernel=512M")
    ram = [
        Resource(0, 8 << 30, "System RAM", 0, -1),
        Resource(1 << 28, 3 << 28, "Crash kernel", 1, 0),
    ]
    laid = lay_out(ram, [MappedRange(0, 32 << 30, "System RAM")], [], options, [], 4096)
    levels = [
        DirectMapLevel("pud", 6, 6 << 30, 0, 1, 7 << 30, 0, 1 << 30),
        DirectMapLevel("pmd", 1000, 2000 * mib, 0, 2, 1990 * mib, -10 * mib, 0),
        DirectMapLevel("pte", 4096, 16 * mib, 37 << 12, 9, (26 * mib) + (37 << 12), 10 * mib, 0),
    ]
    kind = "hugetlb page, optimised by HVO"
    poisoned = [PoisonedPages(1, "Normal", kind, pages, 1, 2, 0, pages, 512)]
    counters = [PoisonCounter("HardwareCorrupted", -1, None, 8192)]
    return [
        *(*mappings, *zones, *runs, *examples, *pools, *sizes, device, *parts),
        *(*laid.parts, *laid.ranges, *laid.options, *levels, *poisoned, *counters),
        *what_if(16 << 30, 12, 64, mib),
    ]


def tables_of(*sections: str) -> dict[str, Contents]:
    """Those of some sections, for what is said of these: most of a page's cost is its tables."""
    return {name: table for name, table in tables().items() if table[-1] in sections}


def write_bundle(
    path: Path,
    contents: dict[str, Contents],
    *,
    target: dict[str, Any] | None = None,
    sections: list[SectionResult] | None = None,
    folded: Mapping[str, Sequence[tuple[str, int]]] | None = None,
) -> Bundle:
    """
    Write a bundle and open it.

    :param sections: how each fared; all of them well if None.
    :param folded: its stacks; those of :func:`profile_rows` if None.
    """
    if sections is None:
        rows: dict[str, int] = {}
        for _, _, table_rows, section in contents.values():
            rows[section] = rows.get(section, 0) + len(table_rows)
        sections = [
            SectionResult(name, "ok", 0.125, number, 0, None) for name, number in rows.items()
        ]
    with Writer(path) as writer:
        for name, (title, row_type, table_rows, section) in contents.items():
            writer.table(name, title, row_type, table_rows, section=section)
        stacks_of = PROFILED if folded is None else folded
        for name, stacks in stacks_of.items() if "profiles" in contents else ():
            writer.folded(name, f"Stacks of {name}", stacks, unit="samples", section="profiles")
        writer.finish(TARGET if target is None else target, sections)
    return Bundle(path)


def pinned(bundle: Bundle) -> Bundle:
    """The bundle with the writing's own time taken off, for comparing reports."""
    bundle.created = "2026-11-20T03:05:00+00:00"
    return bundle


def with_strings(rows: list[Any], make: Callable[[int], str]) -> list[Any]:
    """The rows with every string replaced by what *make* says for its number."""
    changed, number = [], 0
    for row in rows:
        words = {}
        for name, kind in typing.get_type_hints(type(row)).items():
            if kind in (str, str | None):
                words[name] = make(number)
                number += 1
        changed.append(dataclasses.replace(row, **words))
    return changed


def hostile_tables() -> dict[str, Contents]:
    """Every table, with rows in the ones that are usually empty, and hostile in every string."""
    contents = tables()
    extra = tables_of_rows(USUALLY_EMPTY)
    result = {}
    for name, (title, row_type, rows, section) in contents.items():
        rows = with_strings(rows or extra[name][2], lambda number: HOSTILE[number % len(HOSTILE)])
        result[name] = (title + HOSTILE[0], row_type, rows, section)
    # Two rows each, so that every string is somewhere in a table that is shown whole.
    odd = [Oddity(text, 4096, 0.5, True) for text in HOSTILE]
    result["oddities"] = (HOSTILE[1], Oddity, odd, HOSTILE[2])
    return result


def hostile_sections() -> list[SectionResult]:
    """Every section with a hostile message, and two whose names are hostile."""
    names = ["zones", "free_lists", "accounting", "pcp_lists", "pageblocks", "vm_counters"]
    names += ["../secret", HOSTILE[2], HOSTILE[0]]
    return [
        SectionResult(name, ("ok", "partial", "failed", HOSTILE[0])[number % 4], 0.5, 1, 0, message)
        for number, (name, message) in enumerate(zip(names, HOSTILE, strict=False))
    ]


def hostile_target() -> dict[str, Any]:
    """A target whose every word is hostile."""
    words = dict(zip(("kind", "release", "architecture", "hostname"), HOSTILE, strict=False))
    words |= {"captured_at": HOSTILE[4], "source": HOSTILE[5], HOSTILE[1]: HOSTILE[3]}
    return TARGET | words


def verdict() -> Verdict:
    """One critical finding, two warnings, and what was asked without result."""
    return Verdict(
        found=[
            Finding(
                "highatomic-starves-thp",
                "critical",
                "Node 1 zone Normal: 3 of 5 free blocks of THP size lie in the HighAtomic reserve",
                "5 pageblocks are HighAtomic (10 MiB), the cap is 5; 3 of them are free.",
                "THP may not take them: it falls back to base pages while the memory is free.",
                (
                    Step(
                        "Find who allocates atomically: 'mmscope record atomic-alloc -a'.",
                        cost="1 % of a CPU",
                    ),
                    Step("Compare with a healthy host.", looks=True),
                ),
                (("Kernel documentation", "https://docs.kernel.org/mm/page_allocation.html"),),
                "free_lists",
                explains=("THP faults fall back", "direct compaction fails"),
                classes=("free",),
            ),
            Finding(
                "compaction-fails",
                "warning",
                "Direct compaction succeeded in 0 of 8,211 attempts",
                "compact_success 0, compact_fail 8,211 in 3 d 4 h since boot.",
                "Each attempt stalls the task that asked.",
                (
                    Step(
                        "See the pageblock map for unmovable blocks among movable ones.", looks=True
                    ),
                ),
                (),
                "vm_counters",
                symptom="direct compaction fails",
            ),
            Finding(
                "thp-falls-back",
                "warning",
                "THP page faults got a huge page in 1,234 of 100,000 attempts",
                "thp_fault_alloc 1,234, thp_fault_fallback 98,766.",
                "Base pages cost page faults and TLB misses.",
                (),
                (),
                "vm_counters",
                symptom="THP faults fall back",
            ),
        ],
        silent=[("free-lists-damaged", "Free lists are damaged")],
        not_checked=[
            NotChecked("page-owner-growth", "A stack that grows", "page_owner is not compiled in")
        ],
    )


def hostile_verdict() -> Verdict:
    """Findings whose every word is hostile, links that a browser must not follow among them."""
    return Verdict(
        found=[
            Finding(
                text,
                ("critical", text)[number % 2],
                text,
                text,
                text,
                (Step(text, text, text, text),),
                ((text, text), (text, "https://example.com/\" onclick='alert(5)")),
                text,
                sources=(text,),
            )
            for number, text in enumerate(HOSTILE)
        ],
        silent=[(text, text) for text in HOSTILE],
        not_checked=[NotChecked(text, text, text) for text in HOSTILE],
    )
