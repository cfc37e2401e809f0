# SPDX-License-Identifier: LGPL-2.1-or-later
"""A case of a finding, and the bundle of its rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rmap_rows as rmap

from mmscope.drgn.cgroups.cgroup_rows import MemoryCgroup
from mmscope.drgn.cgroups.dying_pins import DyingPin
from mmscope.drgn.cgroups.percpu_owners import PercpuCgroup
from mmscope.drgn.filesystems.cached_file_rows import CachedFile, CachedFilesystem
from mmscope.drgn.filesystems.dentry_cache_rows import DentryCount, FilesystemDentries
from mmscope.drgn.free.free_lists import FreeBlocks, FreeListCheck, MisplacedBlocks
from mmscope.drgn.free.pageblocks import Pageblocks
from mmscope.drgn.free.pcp_lists import PcpPages
from mmscope.drgn.free.zones import FreeAccounting, Zone
from mmscope.drgn.ledger.ledger_counters import LedgerCheck
from mmscope.drgn.ledger.memory_ledger import LedgerRow, LedgerTag, UnexplainedRow
from mmscope.drgn.ledger.percpu_chunks import PercpuChunk, PercpuSize
from mmscope.drgn.ledger.swap_areas import SwapArea
from mmscope.drgn.ledger.vmalloc_callers import VmallocCaller
from mmscope.drgn.log.oom_rows import OomCgroupMemory, OomFreeBlocks, OomKill, OomMemory, OomTask
from mmscope.drgn.machine.kernel_features import KernelFeature
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
from mmscope.drgn.struct_pages.memory_metadata import MetadataPart, WhatIf
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.rows.profile_rows import ProfileKsmWalk, ProfileNote
from mmscope.reports.rows.watch_rows import CounterRate

TARGET = {
    "kind": "vmcore", "release": "7.2.12", "page_size": 4096, "total_pages": 1 << 20,
    "uptime_seconds": 7200.0,
}  # fmt: skip
NAMES = {
    FreeBlocks: "free_blocks", FreeListCheck: "free_list_checks", MisplacedBlocks:
    "misplaced_blocks", Pageblocks: "pageblocks", Setting: "settings", VmCounter: "vm_counters",
    KernelFeature: "kernel_features", PcpPages: "pcp_pages", SlabCache: "slab_caches",
    CounterRate: "counter_rates", ProfileKsmWalk: "profile_ksm_walks", ProfileNote: "profile_notes",
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
