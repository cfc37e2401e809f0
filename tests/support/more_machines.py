# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Made machines that no review had: of every kind of host, innocent and sick, with what is said first.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import made_hosts as made
from finding_cases import oom, struct_pages
from finding_cases.filesystems import cached
from made_hosts import GIB, Host, counted, healthy, watched
from review_machines import (
    CANNOT_TELL,
    B,
    Machine,
    cache_of,
    counter,
    dying,
    full_cache,
    hole,
    innocent,
    killed,
    log_alone,
    pod,
    short,
    sick,
    unclear,
    waits,
    with_rows,
)

from mmscope.drgn.ledger.memory_ledger import LedgerRow
from mmscope.drgn.ledger.swap_areas import SwapArea
from mmscope.drgn.struct_pages.hugetlb import HugetlbSize


def pooled(gib: int, share: float, used: float) -> Host:
    """A database with a share of memory in a hugetlb pool, so much of it in use."""
    host = healthy(gib)
    host.counter("nr_anon_pages", gib * GIB // 10)  # what it has is in the pool
    made._lose(host, int(gib * GIB * share))
    pages = int(gib * share) * 512
    free = int(pages * (1 - used))
    host.rows[HugetlbSize] = [HugetlbSize(2 << 20, pages, free, 0, 0, 0, "off", 28 << 10)]
    return host


def pods(number: int) -> list[Any]:
    """Pods, each with little room; every one has met its limit, and hardly waits."""
    rows: list[Any] = []
    for n in range(number):
        path = f"/kubepods.slice/pod{n}"
        rows += [pod(path, usage_bytes=int(1.95 * B) // 4, max_bytes=B // 2, anon_bytes=B // 3,
                     file_bytes=B // 8, max_own_events=40 * n), *waits(0.2, path)]  # fmt: skip
    return [*rows, *waits(0.4)]


def laptop() -> Host:
    """16 GiB, MGLRU, zram two thirds full; pages come and go, and nobody waits."""
    host = watched(16, rates={"pswpin": 900.0, "pswpout": 1_200.0, "workingset_refault_anon": 800.0,
                              "workingset_refault_file": 300.0}, full=0.004)  # fmt: skip
    host.rows[SwapArea] = [
        SwapArea("/dev/zram0", "partition", 8 * B, 5 * B, 100, False, 5 * B, 2 * B)
    ]
    return host


def by_class(gib: int, share: float, *what: tuple[str, str]) -> Host:
    """A machine with a share of memory in such classes, which the page cache had."""
    host = counted(full_cache(gib, int(gib * GIB * share)))
    pages = int(gib * GIB * share) // len(what)
    host.rows[LedgerRow] = [row for row in host.rows[LedgerRow] if row.part != "struct pages"]
    host.rows[LedgerRow] += [
        LedgerRow(owner, part, 0, "Normal", pages, pages * 4096, 100 * share / len(what), "")
        for owner, part in what
    ]
    rest = gib * GIB - sum(row.pages for row in host.rows[LedgerRow])
    host.rows[LedgerRow].append(
        LedgerRow("memory about memory", "struct pages", 0, "Normal", rest, rest * 4096, 1.0, "")
    )
    return host


def as_text(gib: int, left: float) -> Host:
    """A machine of which text alone was read; its counters leave a share of memory."""
    return hole(left, by_pages=False, gib=gib)


def exhausted() -> Host:
    """Node 0 of two is at its minimum, as all processes are bound to it; node 1 is idle."""
    host = healthy(512)
    zone = next(row for row in host.rows[made.Zone] if (row.node, row.zone) == (0, "Normal"))
    made.add_zone(host, 0, "Normal", zone.managed_pages, zone.wmark_min - 10)
    other = next(row for row in host.rows[made.Zone] if row.node == 1)
    made.add_zone(host, 1, other.zone, other.managed_pages, other.managed_pages * 7 // 10)
    made._wmarks(host)
    return host


INNOCENT: dict[str, Machine] = {
    "6 TiB, a database on hugetlb": innocent(lambda: pooled(6144, 0.7, 0.99)),
    "a GPU box, a third in the driver's pool": innocent(
        lambda: by_class(256, 0.05, ("driver", "of GPUs"), ("driver", "page pool"))
    ),
    "a node with 300 pods at their limits": innocent(lambda: with_rows(256, *pods(300))),
    "ZFS, half of memory in its ARC": innocent(
        lambda: by_class(128, 0.45, ("page cache", "ZFS's ARC, which reclaim shrinks"))
    ),
    "a laptop with zram and MGLRU": innocent(laptop),
    "an s390 guest, a third given back by CMM": innocent(
        lambda: by_class(16, 0.3, ("given away", "balloon"))
    ),
    "just booted, nearly all free": innocent(
        lambda: dataclasses.replace(healthy(64), target=made.target(64) | {"uptime_seconds": 30.0})
    ),
    "persistent memory as DAX": innocent(
        lambda: with_rows(128, struct_pages.pmem(256 << 20, 0))
    ),
    "64 GiB as text, 1.2 % of drivers": innocent(lambda: as_text(64, 0.012)),
    "a CI runner that builds, full of dentries": innocent(
        lambda: with_rows(64, counter("nr_slab_reclaimable", 9 * GIB),
                          counter("nr_dirty", GIB // 2),
                          counter("nr_dirty_threshold", 5 * GIB // 2))
    ),
    "a file server with a big tmpfs that is open": innocent(
        lambda: with_rows(64, cached("/dev/shm/build.db", 9.0, kind="tmpfs"))
    ),
    "1,000 pods that came and went": innocent(lambda: dying(900)),
    "a host that reads a lake through its cache": unclear(
        lambda: watched(256, rates={"workingset_refault_file": 4_000.0,
                                    "pgsteal_kswapd": 200_000.0}, full=0.002)
    ),
    "a JVM that starts, THP faults, short reclaim": innocent(
        lambda: watched(64, rates={"allocstall_normal": 30.0, "thp_fault_alloc": 90.0}, full=0.003)
    ),
    "a virtual machine whose balloon grows": innocent(
        lambda: watched(64, level=made.grows("Balloon", 0.2))
    ),
}  # fmt: skip

SICK: dict[str, Machine] = {
    "percpu memory of 30,000 dying cgroups": sick(
        lambda: _both(counted(healthy(64), percpu=0.08), dying(30_000)), "dying-cgroups"
    ),
    "a flood of negative dentries": sick(made.lookups_in_vain, "negative-dentries"),
    "one module's slab cache, 40 GiB of 256": sick(
        lambda: cache_of("nvidia_stack_cache", 40, 256), "slab-large"
    ),
    "vmalloc of one driver": sick(made.vmalloc_leak, "vmalloc-large"),
    "a memfd that nobody closes": sick(
        lambda: short(with_rows(64, cached("memfd:ring", 40.0, kind="tmpfs", deleted=True)), 0.02),
        "deleted-file-in-memory",
    ),
    "NFS that does not answer": sick(
        lambda: with_rows(64, counter("nr_dirty", GIB), counter("nr_writeback", 2 * GIB),
                          counter("nr_dirty_threshold", 3 * GIB), *waits(8)), "memory-pressure"
    ),
    "OOM of a node by membind": sick(
        lambda: killed(constraint="CONSTRAINT_MEMORY_POLICY", nodemask="0"), "oom-kills-told"
    ),
    "a node at its minimum, the other idle": sick(exhausted, "below-watermarks"),
    "order 3 with GFP_ATOMIC that fails": sick(
        lambda: log_alone(*(oom.failure(n, order=3, gfp_flags="GFP_ATOMIC", suitable_blocks=0,
                                        caller="alloc_rx [nic]") for n in range(1, 40))),
        "allocation-failures",
    ),
    "a database that thrashes swap, watched": sick(
        lambda: watched(64, rates={"pswpin": 4_000.0, "pswpout": 4_200.0,
                                   "allocstall_normal": 300.0}, full=0.4),
        "watch-memory-pressure",
    ),
    "page tables of 300 backends that map one segment": sick(
        lambda: with_rows(64, counter("nr_page_table_pages", 14 * GIB)), "kernel-memory-large"
    ),
    "half of memory in pages of a NIC's driver": sick(
        lambda: hole(0.45, by_pages=True), "unexplained-pages"
    ),
    "a kubelet at memory.high that waits": sick(
        lambda: with_rows(64, pod("/system.slice/kubelet.service", high_bytes=8 * B,
                                  high_events=90_000),
                          *waits(60, "/system.slice/kubelet.service"), *waits(1)),
        "cgroup-throttled",
    ),
    "watched, PageTables grow": sick(
        lambda: watched(64, level=made.grows("PageTables", 0.06)), "watch-kernel-memory-grows"
    ),
    "refaults where nobody has swap, MGLRU, watched": sick(
        lambda: watched(64, rates={"workingset_refault_file": 30_000.0, "pgmajfault": 4_000.0},
                        full=0.25), "watch-refaults"
    ),
}  # fmt: skip

BLIND: dict[str, Machine] = {
    "512 GiB as text, 1.2 % of it in no counter": Machine(lambda: as_text(512, 0.012), CANNOT_TELL),
}


EVERY = INNOCENT | SICK | BLIND


def _both(host: Host, other: Host) -> Host:
    """The first, and cgroups of the other."""
    for row_type, rows in other.rows.items():
        host.rows.setdefault(row_type, rows)
    return host
