# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Made hosts, named as made: no machine of 512 GiB boots in the lab.

The shape of every table, the names of all counters and slab caches, and what is left over when all
counters are added up (1.2 % of memory) are a lab kernel's (7.2, ``tests/data``); the watermarks are
computed as the kernel computes them; the sizes are those of a busy server: memory is full of page
cache and anonymous pages, and kswapd keeps a few hundredths free.

A host is the rows of its tables, by row type. What is sick is a change to a healthy one, and the
page cache makes room for it: every host adds up.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rmap_rows as rmap
from checkout import TESTS
from rows_of_tables import SECTION_OF, TABLE_OF, tables_of_sections

from mmscope.drgn.filesystems.cached_files import CachedFile, CachedFilesystem
from mmscope.drgn.filesystems.dentry_cache import DentryCount
from mmscope.drgn.free.free_lists import FreeBlocks, FreeListCheck, MisplacedBlocks
from mmscope.drgn.free.pageblocks import Pageblocks
from mmscope.drgn.free.pcp_lists import PcpPages
from mmscope.drgn.free.zones import FreeAccounting, Zone
from mmscope.drgn.ledger.memory_ledger import (
    REMAINDER,
    LedgerCheck,
    LedgerRow,
    UnexplainedRow,
)
from mmscope.drgn.ledger.percpu_chunks import PercpuChunk
from mmscope.drgn.ledger.swap_areas import SwapArea
from mmscope.drgn.ledger.vmalloc_callers import VmallocCaller
from mmscope.drgn.machine.kernel_features import KernelFeature
from mmscope.drgn.machine.settings import Setting
from mmscope.drgn.machine.vm_counters import VmCounter, read_vmstat
from mmscope.drgn.owners.page_owner_rows import PageOwnerGrowth, PageOwnerSnapshot, PageOwnerStack
from mmscope.drgn.owners.slab_caches import SlabCache, read_slabinfo
from mmscope.drgn.page_tables.page_tables import ExitCost, PageTables
from mmscope.drgn.struct_pages.device_pagemaps import DevicePagemap
from mmscope.drgn.struct_pages.hugetlb import HugetlbPool, HugetlbSize
from mmscope.drgn.struct_pages.memory_metadata import MetadataPart, WhatIf, what_if
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.rows.watch_rows import (
    CounterRate,
    Level,
    PsiStall,
    ThpFreeBlocks,
    WatchHolder,
    WatchSample,
    WatchSleeper,
    ZoneLevel,
)
from mmscope.reports.watch.watch_tables import gauges

DATA = TESTS / "data" / "7.2" / "proc"
PAGE, THP = 4096, 512
DAYS = 40
GIB = 2**30 // PAGE  # pages
MIB = 2**20 // PAGE
# What was read of a healthy host, and is not there, unless its rows say otherwise.
NOTHING_OF = (
    *(FreeListCheck, MisplacedBlocks, KernelFeature, HugetlbPool, DevicePagemap),
    *(row_type for _, row_type, _, _ in rmap.tables().values()),
)


@dataclasses.dataclass
class Host:
    """A made host: the rows of its tables, and what it is."""

    gib: int
    target: dict[str, Any]
    rows: dict[type, list[Any]]
    # Sections that were not read whole: status and message.
    fared: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)

    def counter(self, name: str, value: int) -> None:
        """Set a counter; what is pages comes from the page cache, or goes there."""
        counters = {row.name: row for row in self.rows[VmCounter]}
        if name in PAGES:
            taken = value - counters[name].value
            file = counters["nr_file_pages"]
            assert file.value > taken, "the page cache has no room for that"
            counters["nr_file_pages"] = dataclasses.replace(file, value=file.value - taken)
        counters[name] = VmCounter(name, counters[name].kind, value, 0)
        self.rows[VmCounter] = list(counters.values())

    def _lru_lists(self) -> None:
        """The lists of the page cache, as large as it is; what is of shmem is not on them."""
        counters = {row.name: row for row in self.rows.get(VmCounter, ())}
        if "nr_file_pages" in counters:
            cache = counters["nr_file_pages"].value * 9 // 10
            lists = {"nr_inactive_file": cache * 2 // 3, "nr_active_file": cache // 3}
            self.rows[VmCounter] = [
                dataclasses.replace(row, value=lists.get(row.name, row.value))
                for row in counters.values()
            ]

    def write(self, path: Path) -> Bundle:
        """Its bundle, each table in the section that reads it."""
        rows: dict[str, int] = {}
        self._lru_lists()
        with Writer(path) as writer:
            for row_type, made in self.rows.items():
                table = TABLE_OF[row_type]
                section = SECTION_OF[table.name]
                writer.table(table.name, table.title, row_type, made, section=section)
                rows[section] = rows.get(section, 0) + len(made)
            done = [
                SectionResult(name, status, 0.1, rows.get(name, 0), 0, why)
                for name in dict.fromkeys((*rows, *self.fared))
                for status, why in (self.fared.get(name, ("ok", None)),)
            ]
            writer.finish(self.target, done)
        return Bundle(path)


# Counters of pages that a host's memory is made of.
PAGES = {
    *("nr_anon_pages", "nr_slab_reclaimable", "nr_slab_unreclaimable", "nr_page_table_pages"),
    *("nr_vmalloc", "nr_sec_page_table_pages"),
}


def healthy(gib: int) -> Host:
    """A busy host on which nothing is wrong."""
    pages = gib * GIB
    nodes = 2 if gib > 256 else 1
    rows: dict[type, list[Any]] = defaultdict(list)
    host = Host(gib, target(gib), rows)
    for node in range(nodes):
        for zone, size in _zones(pages // nodes, node):
            free = (
                3_400 if zone == "DMA" else size // 4 if zone == "DMA32" and gib > 4 else size // 30
            )
            add_zone(host, node, zone, size, free)
    _wmarks(host)
    _counters(host)
    _processes(host)
    rows[SlabCache] = _slab_caches(host)
    files(host)
    rows[Setting] = [
        *(Setting(name, value) for name, value in (
            ("vm.min_free_kbytes", "67584"), ("vm.extfrag_threshold", "500"),
            ("vm.swappiness", "60"), ("vm.max_map_count", "65530"),
            ("transparent_hugepage.enabled", "always"),
            ("transparent_hugepage.defrag", "madvise"))),
    ]  # fmt: skip
    rows[HugetlbSize] = [HugetlbSize(2 << 20, 0, 0, 0, 0, 0, "off", 28 << 10)]
    total = pages * PAGE
    rows[MetadataPart] = [
        MetadataPart("struct page, allocated at boot", total // 64, 100 / 64, None, False),
        MetadataPart("page_ext", total // 4096 * 8, 100 * 8 / 4096, None, False),
    ]
    rows[WhatIf] = what_if(total, 12, 64, None)
    rows[rmap.AnonVma] = [rmap.anon_vma(vmas=400, processes=40, comm="nginx", pid=900)]
    rows[rmap.RmapWalk] = [rmap.walk("anon", visits=40, hold=40, comm="nginx")]
    rows[rmap.RmapCost] = [rmap.COST]
    rows[rmap.ProcessVmas] = [rmap.process(4_000)]
    # A lock that one task waits for at this moment.
    rows[rmap.AnonVmaLock] = [dataclasses.replace(rmap.LOCK, waiters=1)]
    rows |= {row_type: [] for row_type in NOTHING_OF if row_type not in rows}
    return host


def target(gib: int) -> dict[str, Any]:
    """What a bundle of it says of itself."""
    return {
        "kind": "vmcore", "hostname": f"made-{gib}g", "release": "7.2.12", "page_size": PAGE,
        "total_pages": gib * GIB, "uptime_seconds": DAYS * 86400.0,
    }  # fmt: skip


def _zones(pages: int, node: int) -> list[tuple[str, int]]:
    if node:
        return [("Normal", pages)]
    low = min(pages - 3_840, 2 * GIB)
    return [("DMA", 3_840), ("DMA32", low), ("Normal", pages - low - 3_840)][
        : 2 + (pages > 3 * GIB)
    ]


def add_zone(host: Host, node: int, zone: str, size: int, free: int, thp: int | None = None,
             highatomic: int = 0) -> None:  # fmt: skip
    """
    A zone; or another state of one that is there.

    :param thp: free blocks of THP size that THP may use; by default a fifth of what is free.
    :param highatomic: such blocks in the HighAtomic reserve, all of it.
    """
    thp = free // 5 // THP if thp is None else thp
    rest = free - (thp + highatomic) * THP
    for row_type in (Zone, FreeBlocks, Pageblocks, FreeAccounting, PcpPages):
        host.rows[row_type] = [r for r in host.rows[row_type] if (r.node, r.zone) != (node, zone)]
    host.rows[Zone].append(
        Zone(
            node, zone, size, size, size, free, 0, 0, 0, 0, highatomic * THP, highatomic * THP,
            0 if size // 100 < THP else math.ceil(size / 100 / THP) * THP, 4096, False, False,
        )
    )  # fmt: skip
    # Small blocks as they lie on a machine that ran for weeks: half of the rest by single pages.
    shares = [0.5, 0.2, 0.12, 0.08, 0.05, 0.03, 0.015, 0.004, 0.001]
    blocks = {order: int(rest * share) >> order for order, share in enumerate(shares)}
    blocks[0] += rest - sum(n << order for order, n in blocks.items())
    blocks |= {9: thp % 2, 10: thp // 2}
    for order, number in blocks.items():
        host.rows[FreeBlocks].append(_free(node, zone, order, "Movable", number))
        host.rows[FreeBlocks].append(_free(node, zone, order, "Unmovable", 0))
    for order, number in ((9, highatomic % 2), (10, highatomic // 2)):
        host.rows[FreeBlocks].append(_free(node, zone, order, "HighAtomic", number))
    census = {
        "HighAtomic": highatomic,
        "Unmovable": size // THP // 20,
        "Reclaimable": size // THP // 30,
    }
    census["Movable"] = size // THP - sum(census.values())
    host.rows[Pageblocks] += [Pageblocks(node, zone, name, n) for name, n in census.items()]
    lists = 0 if zone == "DMA" else min(size // 400, free // 2)
    host.rows[FreeAccounting].append(
        FreeAccounting(node, zone, free, 0, free, 0, 0, 0, lists, None)
    )
    host.rows[PcpPages] += pcp(node, zone, lists, 4 if host.gib < 8 else 64)


def pcp(node: int, zone: str, pages: int, cpus: int) -> list[PcpPages]:
    """So many pages on the lists of so many CPUs."""
    return [PcpPages(node, zone, cpu, 0, "Movable", pages // cpus) for cpu in range(cpus)]


def _free(node: int, zone: str, order: int, migratetype: str, blocks: int) -> FreeBlocks:
    return FreeBlocks(node, zone, order, migratetype, blocks, blocks << order)


def _wmarks(host: Host) -> None:
    """
    As ``__setup_per_zone_wmarks()`` sets them (mm/page_alloc.c): a zone's part of min_free_kbytes,
    which khugepaged has raised to 66 MiB, and a thousandth of the zone between the marks.
    """
    pages = host.gib * GIB
    kbytes = max(67_584 if host.gib > 4 else 45_056, int(math.sqrt(pages * 4 * 16)))
    rows = []
    for row in host.rows[Zone]:
        least = kbytes // 4 * row.managed_pages // pages
        gap = max(least // 4, row.managed_pages // 1000)
        rows.append(
            dataclasses.replace(
                row, wmark_min=least, wmark_low=least + gap, wmark_high=least + 2 * gap
            )
        )
    host.rows[Zone] = rows


def _counters(host: Host) -> None:
    """All counters of the lab's kernel, those of memory in a server's proportions."""
    pages = host.gib * GIB
    free = sum(row.free_pages for row in host.rows[Zone])
    lists = sum(row.pages for row in host.rows[PcpPages])
    held = {
        "nr_anon_pages": 0.42, "nr_slab_reclaimable": 0.04, "nr_slab_unreclaimable": 0.015,
        "nr_page_table_pages": 0.004, "nr_vmalloc": 0.004, "nr_sec_page_table_pages": 0.0,
    }  # fmt: skip
    values = {name: int(pages * share) for name, share in held.items()}
    values["nr_kernel_stack"] = pages // 1000 * 4  # KiB
    left_over = int(pages * 0.012)
    used = sum(values.values()) - values["nr_kernel_stack"] * 3 // 4
    values["nr_file_pages"] = pages - free - lists - used - left_over
    values["nr_free_pages"] = free
    # Forty days: some swap, compaction and THP as they go.
    seconds = DAYS * 86400
    values |= {
        "thp_fault_alloc": 40 * seconds // 10, "thp_fault_fallback": 44 * seconds // 10,
        "compact_success": 1_100, "compact_fail": 8_900, "compact_stall": 10_000,
        "pswpout": pages // 50, "pswpin": pages // 100, "pgmajfault": pages // 40,
        "pgfault": 90_000 * seconds,
    }  # fmt: skip
    rows = read_vmstat((DATA / "vmstat").read_text())
    host.rows[VmCounter] = [
        VmCounter(row.name, row.kind, values.get(row.name, row.value), 0) for row in rows
    ]


def files(host: Host, left: float = 0.8, negative: int = 4) -> None:
    """
    A database's files and a rotated log in memory, what programs keep in tmpfs, and dentries.

    :param left: hundredths of memory in files of tmpfs that nobody has open.
    :param negative: of ten dentries, those that are negative.
    """
    pages = host.gib * GIB

    def cached(
        path: str, kind: str, percent: float, deleted: bool, held: bool | None
    ) -> CachedFile:
        size, address = int(pages * percent / 100), hex(zlib.crc32(path.encode()))
        return CachedFile(
            path, kind, "ext4" if held is None else "tmpfs", size, size * PAGE, percent, None, 0, 0,
            0, size // 2, deleted, held, size * PAGE, "fd:00", "9", address
        )  # fmt: skip

    def mounted(kind: str, mount: str, percent: float, left: float | None) -> CachedFilesystem:
        size = int(pages * percent / 100)
        nobody = (None, None) if left is None else (9, int(pages * left / 100))
        return CachedFilesystem(
            kind, "tmpfs" if nobody[0] else "ext4", mount, 4_000, size, size * PAGE, percent, None,
            0, 0, 0, size // 2, 1, size // 100, *nobody, True, "vda1", "fe:01", mount
        )  # fmt: skip

    host.rows[CachedFile] = [
        cached("/srv/db/table.1", "file", 18.0, False, None),
        cached("/dev/shm/left", "tmpfs", left / 2, False, False),
        cached("/var/log/app.1 (deleted)", "file", 0.4, True, None),
    ]
    host.rows[CachedFilesystem] = [
        mounted("file", "/srv", 38.0, None),
        mounted("tmpfs", "/dev/shm", left + 2, left),
        mounted("tmpfs", "/", 12.0, 11.0),
    ]
    (slab,) = [row for row in host.rows[SlabCache] if row.cache == "dentry"]
    host.rows[DentryCount] = [
        DentryCount("dentry_stat.nr_dentry", slab.objects, None, None),
        DentryCount("dentry_stat.nr_negative", slab.objects * negative // 10, None, None),
    ]


def _slab_caches(host: Host) -> list[SlabCache]:
    """The lab's caches, in the proportion of the counters."""
    caches = read_slabinfo((DATA / "slabinfo").read_text())
    counters = {row.name: row.value for row in host.rows[VmCounter]}
    slab = counters["nr_slab_reclaimable"] + counters["nr_slab_unreclaimable"]
    factor = slab // sum(row.pages for row in caches)
    names = ("objects", "slots", "slabs", "pages")
    return [
        dataclasses.replace(row, **{name: getattr(row, name) * factor for name in names})
        for row in caches
    ]


def page_table_row(
    pid: int, comm: str, resident: int, pte_tables: int, filled: float
) -> PageTables:
    """
    A process.

    :param resident: pages. :param filled: share of the slots of its PTE tables.
    """
    nothing = dict.fromkeys((field.name for field in dataclasses.fields(PageTables)), 0)
    used = int(pte_tables * 512 * filled)
    return PageTables(**(nothing | {
        "pid": pid, "comm": comm, "pte_tables": pte_tables, "used_ptes": used, "present_ptes": used,
        "resident_bytes": resident * PAGE,
        "pgtables_bytes": (pte_tables + pte_tables // 512 + 2) * PAGE,
        "exit_pte_slots": pte_tables * 512,
    }))  # fmt: skip


def exit_cost(row: PageTables) -> ExitCost:
    """What its end costs, as ``exit_cost`` estimates it: 2 ns a slot, 100 ns a table."""
    slots = row.pte_tables * 512
    seconds = slots * 2e-9 + row.pte_tables * 1e-7
    return ExitCost(row.pid, row.comm, slots, slots, row.pte_tables, 0, 0, 0, seconds, seconds,
                    2 * seconds, True)  # fmt: skip


def _processes(host: Host) -> None:
    anon = next(row.value for row in host.rows[VmCounter] if row.name == "nr_anon_pages")
    host.rows[PageTables] = [
        page_table_row(1, "systemd", 3_000, 30, 0.2),
        *(page_table_row(900 + n, "postgres", anon // 8, anon // 8 // 400, 0.78) for n in range(6)),
        page_table_row(4711, "java", anon // 5, anon // 5 // 450, 0.88),
    ]
    host.rows[ExitCost] = [exit_cost(row) for row in host.rows[PageTables]]


def odd_but_healthy() -> Host:
    """512 GiB with everything that looks alarming and is not."""
    host = healthy(512)
    size = {(row.node, row.zone): row.managed_pages for row in host.rows[Zone]}
    low = {(row.node, row.zone): row.wmark_low for row in host.rows[Zone]}
    # kswapd's band: a page under the low watermark. The boost is on top of the marks.
    add_zone(host, 0, "Normal", size[0, "Normal"], low[0, "Normal"] - 1)
    # A reserve at its cap, and as much again that THP may use.
    add_zone(host, 1, "Normal", size[1, "Normal"], 3 * size[1, "Normal"] // 100, 1_000, 1_100)
    _wmarks(host)
    host.rows[Zone] = [
        dataclasses.replace(row, wmark_boost=THP, **{
            name: getattr(row, name) + THP for name in ("wmark_min", "wmark_low", "wmark_high")})
        if row.zone == "Normal" else row for row in host.rows[Zone]
    ]  # fmt: skip
    _counters(host)
    host.counter("oom_kill", 1)
    # The crash caught a CPU inside zone.lock: a block is off the list and still counted.
    host.rows[Zone] = [
        dataclasses.replace(row, lock_held=(row.node, row.zone) == (1, "Normal"))
        for row in host.rows[Zone]
    ]
    host.rows[FreeListCheck] = [
        FreeListCheck(1, "Normal", 3, "Movable", None, 1, "links lead to no list head"),
        FreeListCheck(1, "Normal", 3, None, 501, 500, "nr_free differs"),
    ]
    return host


# What is sick.


def main_zone(host: Host) -> Zone:
    """The zone that has most of the memory."""
    found: Zone = max(host.rows[Zone], key=lambda row: row.managed_pages)
    return found


def refill(host: Host, share: float, thp: int, highatomic: int = 0) -> None:
    """Set what is free of the main zone, and of DMA32 so that THP gets nothing there either."""
    big = main_zone(host)
    add_zone(host, 0, "DMA32", 2 * GIB, GIB // 16, 0)
    add_zone(host, 0, big.zone, big.managed_pages, int(share * big.managed_pages), thp, highatomic)
    _wmarks(host)
    _counters(host)


def highatomic_starved() -> Host:
    """309 pageblocks, all in reserve, hold every free block of THP size."""
    host = healthy(64)
    refill(host, 0.03, 0, 309)
    return host


def slab_leak() -> Host:
    """A third of memory in one cache, every object in use."""
    host = healthy(64)
    leaked = host.gib * GIB * 35 // 100
    host.counter("nr_slab_unreclaimable", leaked)
    caches = [row for row in host.rows[SlabCache] if row.cache != "kmalloc-512"]
    host.rows[SlabCache] = [  # by size, as they are read
        SlabCache("kmalloc-512", leaked * 8, None, 512, leaked * 8, leaked // 8, leaked, False),
        *caches,
    ]
    return host


def shmem_left() -> Host:
    """A quarter of memory in /dev/shm, of a program that is gone."""
    host = healthy(64)
    files(host, left=27.0)
    return host


def lookups_in_vain() -> Host:
    """Reclaimable slab of a fifth of memory: dentries of what is not there."""
    host = healthy(64)
    host.counter("nr_slab_reclaimable", int(0.2 * host.gib * GIB))
    host.rows[SlabCache] = _slab_caches(host)
    grown = int(0.15 * host.gib * GIB)
    host.rows[SlabCache] = [
        dataclasses.replace(row, objects=21 * grown, slots=21 * grown, slabs=grown, pages=grown)
        if row.cache == "dentry"
        else row
        for row in host.rows[SlabCache]
    ]
    files(host, negative=9)
    return host


def oom_kills() -> Host:
    """25 of them, at some time."""
    host = healthy(64)
    host.counter("oom_kill", 25)
    return host


def swap_thrash() -> Host:
    """Ninety million pages each way."""
    host = healthy(64)
    host.counter("pswpin", 90_000_000)
    host.counter("pswpout", 90_000_000)
    return host


def page_table_bloat() -> Host:
    """A byte read of every 2 MiB of sixteen tebibytes: tables alone, 16 GiB of them."""
    host = healthy(64)
    tables = 4_000_000
    row = page_table_row(666, "oomsday", 157, tables, 1 / 512)
    row = dataclasses.replace(row, zero_ptes=tables, present_ptes=tables)
    host.rows[PageTables].append(row)
    host.rows[ExitCost].append(exit_cost(row))
    host.counter("nr_page_table_pages", tables)
    return host


def ksm_stall() -> Host:
    """A heap split into 20,000 VMAs on one anon_vma, merged by KSM."""
    host = healthy(64)
    for _, row_type, rows, _ in rmap.tables().values():
        if row_type is not rmap.AnonVmaLock and row_type is not rmap.AnonVmaWaiter:
            host.rows[row_type] = rows
    return host


def fragmented() -> Host:
    """1.4 % free, and no block of THP size."""
    host = healthy(64)
    refill(host, 0.014, 0)
    return host


def pcp_hoard() -> Host:
    """572 MiB on the lists of 64 CPUs, and free memory under the high watermark."""
    host = healthy(64)
    big = main_zone(host)
    add_zone(host, 0, big.zone, big.managed_pages, big.wmark_low + 1, 60)
    _wmarks(host)
    _counters(host)
    host.rows[PcpPages] = [row for row in host.rows[PcpPages] if row.zone != big.zone]
    host.rows[PcpPages] += pcp(0, big.zone, 572 * MIB, 64)
    return host


def hugetlb_kept() -> Host:
    """Forty of 64 GiB in a pool that nobody uses, and its struct pages."""
    host = healthy(64)
    refill(host, 0.006, 60)
    pages = 40 * 512
    host.rows[HugetlbSize] = [HugetlbSize(2 << 20, pages, pages - 100, 0, 0, 0, "off", 28 << 10)]
    host.rows[HugetlbPool] = [
        HugetlbPool(2 << 20, 0, pages, pages - 100, 0, 0, 0, pages * 32 << 10, 0, pages * 28 << 10)
    ]
    host.counter("nr_anon_pages", 10 * GIB)
    file = next(row for row in host.rows[VmCounter] if row.name == "nr_file_pages")
    assert file.value >= pages, "the page cache has no room for that"
    host.rows[VmCounter].remove(file)
    host.rows[VmCounter].append(dataclasses.replace(file, value=file.value - 40 * GIB))
    return host


def owner_leak() -> Host:
    """A driver's pages, more in each of nine snapshots, on a kernel with page_owner=on."""
    host = healthy(64)
    stack = "entry_SYSCALL_64;do_syscall_64;vfs_write;leaky_write [leaky];leaky_grow [leaky]"
    first, step = 4 * GIB, GIB // 4
    last = first + 8 * step
    host.rows[PageOwnerSnapshot] = [
        PageOwnerSnapshot(
            60.0 * n, None, f"s{n}", "show_handles", 3_000, 9 * GIB, 0, False, "interval"
        )
        for n in range(9)
    ]
    host.rows[PageOwnerStack] = [
        PageOwnerStack(7, last, None, "leaky_grow", "leaky", stack, None),
        PageOwnerStack(8, 12 * GIB, None, "page_cache_ra_unbounded", None,
                       "r;page_cache_ra_unbounded", None),
    ]  # fmt: skip
    host.rows[PageOwnerGrowth] = [
        PageOwnerGrowth(7, 0.0, 9, 0, first, last, first, last, last - first, step / 60, 1.0, 8),
        # The page cache fills as well: that is no leak.
        PageOwnerGrowth(8, 0.0, 9, 0, 8 * GIB, 12 * GIB, 8 * GIB, 12 * GIB, 4 * GIB, 1.0, 1.0, 8),
    ]
    host.rows[MetadataPart][1] = MetadataPart("page_ext", 64 << 30 >> 6, 100 / 64, None, False)
    _lose(host, last)
    return host


def unaccounted() -> Host:
    """A fifth of memory that no counter has, of a machine whose text alone was read."""
    host = healthy(64)
    _lose(host, host.gib * GIB // 5)
    host = counted(host, unexplained=0.2)
    del host.rows[LedgerCheck], host.rows[UnexplainedRow]
    host.rows[LedgerRow] = [
        dataclasses.replace(row, part=REMAINDER) if row.owner == "unexplained" else row
        for row in host.rows[LedgerRow]
    ]
    return host


def _lose(host: Host, pages: int) -> None:
    """Pages that leave the page cache for nobody."""
    file = next(row for row in host.rows[VmCounter] if row.name == "nr_file_pages")
    assert file.value >= pages, "the page cache has no room for that"
    host.rows[VmCounter].remove(file)
    host.rows[VmCounter].append(dataclasses.replace(file, value=file.value - pages))


def counted(
    host: Host,
    unexplained: float = 0.002,
    swap: float = 0.3,
    percpu: float = 0.004,
    vmalloc: float = 0.001,
) -> Host:
    """
    The same, whose memory was read: every page has its class.

    :param unexplained, percpu, vmalloc: shares of memory, the last of one caller; *swap*: of the
        swap area that is in use.
    """
    pages = host.gib * GIB
    value = {row.name: row.value for row in host.rows[VmCounter]}
    classes = {
        ("anonymous", "base pages"): value["nr_anon_pages"],
        ("page cache", "files"): value["nr_file_pages"],
        ("slab", "reclaimable"): value["nr_slab_reclaimable"],
        ("slab", "unreclaimable"): value["nr_slab_unreclaimable"],
        ("vmalloc", "areas"): value["nr_vmalloc"] + int(pages * vmalloc),
        ("page tables", "with the page type"): value["nr_page_table_pages"],
        ("percpu", "chunks"): int(pages * percpu),
        ("free", "free lists"): value["nr_free_pages"],
        ("unexplained", "compound pages"): int(pages * unexplained),
    }
    classes["memory about memory", "struct pages"] = pages - sum(classes.values())
    host.rows[LedgerRow] = [
        LedgerRow(owner, part, 0, "Normal", size, size * PAGE, 100 * size / pages, "")
        for (owner, part), size in classes.items()
    ]
    host.rows[LedgerCheck] = [LedgerCheck("present_pages", 0, "Normal", pages, pages, 0, "")]
    host.rows[UnexplainedRow] = [
        UnexplainedRow(
            "compound pages", 0, "Normal", "", "1", 3, "no", int(pages * unexplained), "0x10003a"
        )
    ]
    size = 8 << 30
    used = int(size * swap) // PAGE * PAGE
    host.rows[SwapArea] = [SwapArea("/dev/vda5", "partition", size, used, -2, False, None, None)]
    chunks = int(pages * percpu) * PAGE
    of_vmalloc = int(pages * vmalloc)
    host.rows[VmallocCaller] = [
        VmallocCaller(caller, "vmalloc", 900, size, size * PAGE)
        for caller, size in (("fill_table [gpu]", of_vmalloc), ("bpf_prog_alloc", pages // 2000))
    ]
    host.rows[PercpuChunk] = [
        PercpuChunk("0xff3d6d3f9f437000", "further", chunks, chunks // 2, 900_000, 3, 1 << 21, 9, 9)
    ]
    return host


def driver_leak() -> Host:
    """A quarter of memory in a driver's pages, which the page cache had."""
    host = healthy(64)
    _lose(host, host.gib * GIB // 4)
    return counted(host, unexplained=0.26)


def vmalloc_leak() -> Host:
    """A ninth of memory in a driver's tables, which the page cache had."""
    host = healthy(64)
    _lose(host, host.gib * GIB // 9)
    return counted(host, vmalloc=0.11)


SICK: dict[str, tuple[Callable[[], Host], str]] = {
    "a driver's leak": (driver_leak, "unexplained-pages"),
    "swap is full": (lambda: counted(healthy(64), swap=1.0), "swap-full"),
    "percpu leak": (lambda: counted(healthy(64), percpu=0.06), "percpu-large"),
    "HighAtomic reserve starves THP": (highatomic_starved, "highatomic-starves-thp"),
    "vmalloc leak": (vmalloc_leak, "vmalloc-large"),
    "slab leak": (slab_leak, "slab-large"),
    "shared memory that nobody has": (shmem_left, "shmem-left-behind"),
    "names that are not there": (lookups_in_vain, "negative-dentries"),
    "OOM kills": (oom_kills, "oom-kills-since-boot"),
    "swap thrash": (swap_thrash, "swapped-since-boot"),
    "page table bloat": (page_table_bloat, "page-table-bloat"),
    "KSM stall": (ksm_stall, "rmap-walk-stalls"),
    "fragmented at 1.4 % free": (fragmented, "external-fragmentation"),
    "per-CPU lists hoard": (pcp_hoard, "pcp-lists-hold-free"),
    "hugetlb pool that nobody uses": (hugetlb_kept, "hugetlb-idle"),
    "page_owner leak": (owner_leak, "page-owner-stack-grows"),
    "memory in no counter": (unaccounted, "memory-unaccounted"),
}


# Watched.

SAMPLES, PERIOD = 41, 30.0


def watched(
    gib: int,
    *,
    rates: dict[str, float] | None = None,
    level: Callable[[str, int, int], int] = lambda name, pages, number: pages,
    free: Callable[[Zone, int], int] | None = None,
    blocks: Callable[[int], dict[str, int]] | None = None,
    full: float = 0.001,
) -> Host:
    """
    Twenty minutes of a host, a sample every thirty seconds.

    :param rates: counters, by the second. :param level: changes a level, by name, pages and sample.
    :param free: free pages of a zone at a sample. :param blocks: of THP size, by migratetype.
    :param full: share of time in which all tasks waited.
    """
    host = healthy(gib)
    counters = {row.name: row.value for row in host.rows[VmCounter]}
    pages = gib * GIB
    kinds = {
        "MemTotal": pages, "MemFree": counters["nr_free_pages"], "MemAvailable": pages // 2,
        "Cached": counters["nr_file_pages"], "AnonPages": counters["nr_anon_pages"],
        "SReclaimable": counters["nr_slab_reclaimable"],
        "SUnreclaim": counters["nr_slab_unreclaimable"],
        "PageTables": counters["nr_page_table_pages"], "KernelStack": pages // 1000,
        "VmallocUsed": counters["nr_vmalloc"], "Percpu": pages // 1000, "Hugetlb": 0,
        "Unaccepted": 0, "Balloon": 0,
    }  # fmt: skip
    moved = {
        "pgfault": 90_000.0, "pgmajfault": 3.0, "thp_fault_alloc": 9.0, "thp_fault_fallback": 1.0,
        "pgscan_kswapd": 2_000.0, "pgsteal_kswapd": 1_900.0, "pswpin": 0.5, "pswpout": 1.0,
        "compact_success": 0.02, "compact_fail": 0.01,
    } | (rates or {})  # fmt: skip
    rows: dict[type, list[Any]] = {table.row: [] for table in tables_of_sections("watch")}
    for number in range(SAMPLES):
        time, period = number * PERIOD, PERIOD if number else None
        at = f"2026-11-20T03:{number // 2:02}:{number % 2 * 30:02}.000+00:00"
        rows[WatchSample].append(
            WatchSample(time, at, period, 0.0002, 0.004, 0.0031, None, None, None, None)
        )
        for zone in host.rows[Zone]:
            # kswapd's band: now and then under low, and back to high.
            band = zone.wmark_low + (number * 7 % 10 - 1) * (zone.wmark_high - zone.wmark_low) // 8
            rows[ZoneLevel].append(
                ZoneLevel(time, zone.node, zone.zone, zone.managed_pages,
                          free(zone, number) if free else band, zone.wmark_min, zone.wmark_low,
                          zone.wmark_high, 0, zone.highatomic_reserved_pages, 0)
            )  # fmt: skip
        lists = blocks(number) if blocks else {"Movable": gib * 2, "HighAtomic": gib // 16}
        rows[ThpFreeBlocks] += [
            ThpFreeBlocks(time, 0, "Normal", name, count, False) for name, count in lists.items()
        ]
        for kind, share in (("some", min(1.0, 4 * full)), ("full", full)):
            stall = share * PERIOD if number else None
            rows[PsiStall].append(
                PsiStall(time, kind, 100 * share, stall, share if number else None, period)
            )
        meminfo = {name: level(name, value, number) * PAGE for name, value in kinds.items()}
        rows[Level] += gauges([(time, {"meminfo": meminfo})])
        for name, rate in moved.items():
            delta = int((number + 1) * rate * PERIOD) - int(number * rate * PERIOD)
            if number and delta:
                rows[CounterRate].append(
                    CounterRate(time, "vmstat", name, delta, delta / PERIOD, PERIOD)
                )
    return Host(gib, target(gib) | {"kind": "live", "source": "watch"}, rows)


def grows(of: str, share: float) -> Callable[[str, int, int], int]:
    """A level that grows by a share of memory in all; the page cache shrinks by it."""

    def level(name: str, pages: int, number: int) -> int:
        grown = int(64 * GIB * share * number / (SAMPLES - 1))
        return pages + grown if name == of else pages - grown if name == "Cached" else pages

    return level


def runs_out(name: str, pages: int, number: int) -> int:
    """Nearly all of what can be had is taken in the end."""
    return pages - pages * 95 // 100 * number // (SAMPLES - 1) if name == "MemAvailable" else pages


def accepts(name: str, pages: int, number: int) -> int:
    """What is not accepted yet is free, and becomes less."""
    return (SAMPLES - number) * GIB // 4 if name == "Unaccepted" else pages


def holding(kind: str, name: str, size: int, **columns: Any) -> Host:
    """A watched host with one holder, whose size stays the same."""
    more: dict[str, Any] = dict.fromkeys(WatchHolder.__dataclass_fields__)
    more |= {"kind": kind, "name": name, "last_time": 1200.0, "gone": False}
    more |= dict.fromkeys(("first_bytes", "most_bytes", "last_bytes"), size)
    host = watched(64)
    host.rows[WatchHolder] = [WatchHolder(**more | columns)]
    return host


def at_a_limit() -> Host:
    """A cgroup that waits half of the time above its memory.high; the machine hardly does."""
    waits = {"high_events": 900, "max_events": 0, "some_seconds": 700.0, "full_seconds": 600.0}
    return holding("cgroup", "/kube/pod", 1 << 30, **waits)


def left_behind() -> Host:
    """A file of tmpfs with a third of memory, which no process has open."""
    return holding("shared file", "/dev/shm/job", 22 << 30, held=False)


def stuck() -> Host:
    """A task that no one wakes for three minutes."""
    host = watched(64)
    host.rows[WatchSleeper] = [WatchSleeper(7, "db", 7, 1000.0, 180.0, "rpc_wait_bit_killable")]
    return host


def marked_for_good() -> Host:
    """A task that counts as waiting for memory and is not; nothing is reclaimed."""
    nothing = dict.fromkeys(
        ("pgscan_kswapd", "pgsteal_kswapd", "pswpin", "pswpout", "compact_success", "compact_fail"),
        0.0,
    )
    host = holding("cgroup", "/kube/pod", 1 << 30, high_events=0, max_events=0)
    other = watched(64, rates=nothing, full=0.3)
    host.rows |= {row: other.rows[row] for row in (CounterRate, PsiStall)}
    return host


def kept_for_one() -> Host:
    """Half of memory is protected for a cgroup (memory.min), and hardly any is available."""
    host = holding("cgroup", "/db", 32 << 30, protected_bytes=32 << 30)
    short = watched(
        64, level=lambda name, pages, _: pages // 15 if name == "MemAvailable" else pages
    )
    host.rows[Level] = short.rows[Level]
    return host


def bound_to_a_node() -> Host:
    """A process that may use node 0 alone, which is full; node 1 is half free."""
    host = holding("process", "db", 40 << 30, pid=7, only_node=0)
    full = [dataclasses.replace(row, file_pages=0) for row in host.rows[ZoneLevel]]
    free = [dataclasses.replace(row, node=1, free_pages=row.managed_pages // 2) for row in full]
    host.rows[ZoneLevel] = [*full, *free]
    return host


SICK_WATCHED: dict[str, tuple[Callable[[], Host], str]] = {
    "HighAtomic reserve starves THP": (
        lambda: watched(
            64,
            rates={"thp_fault_alloc": 0.4, "thp_fault_fallback": 9.0, "compact_fail": 0.4,
                   "compact_success": 0.0},
            free=lambda zone, number: zone.managed_pages // 33,
            blocks=lambda number: {"Movable": 0, "Unmovable": 0, "HighAtomic": 309},
        ),
        "watch-thp-blocks-ran-out",
    ),
    "slab leak": (
        lambda: watched(64, level=grows("SUnreclaim", 0.05)), "watch-kernel-memory-grows"
    ),
    "page tables grow": (
        lambda: watched(64, level=grows("PageTables", 0.05)), "watch-kernel-memory-grows"
    ),
    "memory in no counter grows": (
        lambda: watched(64, level=grows("none", 0.05)), "watch-kernel-memory-grows"
    ),
    "a cgroup at its limit": (at_a_limit, "watch-cgroup-pressure"),
    "a task that is stuck": (stuck, "watch-tasks-stuck"),
    "files left behind": (left_behind, "watch-files-left"),
    "a task counts as waiting for good": (marked_for_good, "watch-pressure-stuck"),
    "a process near its limit of mappings": (
        lambda: holding("process", "es", 1 << 30, pid=7, mappings=8_500, max_map_count=10_000),
        "watch-near-max-map-count",
    ),
    "cgroups that were removed": (
        lambda: holding("cgroup", "/", 0, dying_below=100_000), "watch-dying-cgroups"
    ),
    "sockets that no process reads": (
        lambda: holding("sockets", "java", 8 << 30, pid=7, sockets=300), "watch-sockets-large"
    ),
    "memory is kept for a cgroup": (kept_for_one, "watch-protected"),
    "a process is bound to a full node": (bound_to_a_node, "watch-node-full"),
    "OOM kills": (lambda: watched(64, rates={"oom_kill": 0.02}), "watch-oom-kill"),
    "memory runs out": (lambda: watched(16, level=runs_out), "watch-memory-runs-out"),
    "swap thrash": (
        lambda: watched(64, rates={"pswpin": 9_000.0, "pswpout": 9_500.0}, full=0.15),
        "watch-swap-thrash",
    ),
    "page cache thrash": (
        lambda: watched(64, rates={"workingset_refault_file": 40_000.0, "pgmajfault": 900.0},
                        full=0.012),
        "watch-refaults",
    ),
    "kswapd does not keep up": (
        lambda: watched(64, free=lambda zone, number: zone.wmark_min + number),
        "watch-below-low",
    ),
    "reclaim in vain": (
        lambda: watched(64, rates={"pgscan_kswapd": 19_000.0, "pgsteal_kswapd": 400.0,
                                   "pgscan_direct": 4_000.0, "allocstall_normal": 3.0}),
        "watch-reclaim-in-vain",
    ),
}  # fmt: skip


# All of them, by name.

HEALTHY: dict[str, Callable[[], Host]] = {
    "2 GiB": lambda: healthy(2),
    "64 GiB": lambda: healthy(64),
    "512 GiB": lambda: healthy(512),
    "2 GiB, page by page": lambda: counted(healthy(2)),
    "64 GiB, page by page": lambda: counted(healthy(64)),
    "512 GiB, page by page": lambda: counted(healthy(512)),
    "512 GiB, odd": odd_but_healthy,
    "2 GiB, watched": lambda: watched(2),
    "64 GiB, watched": lambda: watched(64),
    "512 GiB, watched": lambda: watched(512),
    "zram takes 550 pages a second, watched": lambda: watched(
        8, rates={"pswpin": 550.0, "pswpout": 550.0}, full=0.003
    ),
    "a TDX guest accepts its memory, watched": lambda: watched(64, level=accepts),
    "the page cache fills, watched": lambda: watched(64, level=grows("Cached", 0.05)),
    "hugetlb pages are reserved, watched": lambda: watched(64, level=grows("Hugetlb", 0.05)),
}
SICK |= {f"{name}, watched": case for name, case in SICK_WATCHED.items()}
EVERY = HEALTHY | {name: make for name, (make, _) in SICK.items()}
