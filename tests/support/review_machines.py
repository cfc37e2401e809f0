# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Made machines that a reader of findings held against what is so: innocent ones that were accused,
sick ones of which nothing was said. Each with the word of its verdict, and what is said first.

Of a sick one it is the likely cause, or what stands alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import made_hosts as made
import rmap_rows as rmap
from finding_cases import cgroups, oom
from finding_cases.filesystems import cached
from made_hosts import GIB, PAGE, Host, counted, healthy, watched

from mmscope.drgn.cgroups.cgroup_rows import MemoryCgroup, MemoryCgroupCounter
from mmscope.drgn.cgroups.pressure import Pressure
from mmscope.drgn.free.zones import Zone
from mmscope.drgn.ledger.memory_ledger import LedgerCheck, LedgerRow, UnexplainedRow
from mmscope.drgn.ledger.swap_areas import SwapArea
from mmscope.drgn.machine.settings import Setting
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.owners.slab_caches import SlabCache
from mmscope.drgn.owners.slab_owner import SlabOwnerStack
from mmscope.drgn.processes.process_memory import ProcessMemory
from mmscope.drgn.struct_pages.hugetlb import HugetlbSize
from mmscope.reports.findings.finding import CANNOT_TELL, NO_TROUBLE, TROUBLE

B = 1 << 30  # a GiB, in bytes
MIN = 60.0
UP = made.DAYS * 86400.0


@dataclasses.dataclass(frozen=True)
class Machine:
    """
    A machine, made when it is asked for.

    :ivar word: of its verdict. :ivar first: the finding that is its cause; empty: none above a
        notice.
    """

    make: Callable[[], Host]
    word: str
    first: str = ""


def sick(make: Callable[[], Host], first: str) -> Machine:
    return Machine(make, TROUBLE, first)


def innocent(make: Callable[[], Host]) -> Machine:
    return Machine(make, NO_TROUBLE)


def unclear(make: Callable[[], Host]) -> Machine:
    """An innocent one of which too little was read, as more than 1 GiB that nothing counts."""
    return Machine(make, CANNOT_TELL)


def with_rows(gib: int, *rows: Any, base: Callable[[int], Host] = healthy) -> Host:
    """A healthy machine, and these rows beside or, of a counter, instead of its own."""
    host = base(gib)
    for row in rows:
        if isinstance(row, VmCounter):
            host.counter(row.name, row.value)
        else:
            host.rows.setdefault(type(row), []).append(row)
    return host


def counter(name: str, value: int) -> VmCounter:
    return VmCounter(name, "node", value, 0)


def full_cache(gib: int, gone: int) -> Host:
    """So many pages of the page cache are something else now, that the caller makes."""
    host = healthy(gib)
    made._lose(host, gone)
    return host


def process(pid: int, comm: str, **sizes: int) -> ProcessMemory:
    nothing = dict.fromkeys((field.name for field in dataclasses.fields(ProcessMemory)), 0)
    return ProcessMemory(**(nothing | {"pid": pid, "comm": comm, "threads": 1} | sizes))  # type: ignore[arg-type]


def pod(path: str = "/kube/java", **changes: Any) -> MemoryCgroup:
    """A pod of 8 GiB, nearly all of it anonymous memory."""
    usual = {"cgroup": path, "usage_bytes": int(7.9 * B), "max_bytes": 8 * B, "anon_bytes": 7 * B,
             "file_bytes": B // 4, "shmem_bytes": 0, "kernel_bytes": B // 16,
             "max_own_events": 0, "oom_kill_own_events": 0}  # fmt: skip
    return cgroups.cgroup(**(usual | changes))


def waits(full: float, path: str | None = None) -> list[Pressure]:
    return cgroups.pressure(full, path)


def kill_of_pod(number: int = 1, ago: float = 20 * MIN, **changes: Any) -> Any:
    return oom.oom_at_limit(number, seconds=UP - ago, **changes)


def zram(share: float, full: float) -> Host:
    """A phone of 8 GiB, with zram of half of that."""
    host = counted(healthy(8))
    size = 4 * B
    used = int(share * size) // PAGE * PAGE
    host.rows[SwapArea] = [
        SwapArea("/dev/zram0", "partition", size, used, 100, False, used, used // 3)
    ]
    host.rows[Pressure] = waits(full)
    return host


def in_pieces(got: tuple[int, int] | None = None, thp: str = "always") -> Host:
    """Free memory in pieces, of which THP asks little or much."""
    host = made.fragmented()
    host.rows[Setting] = [row for row in host.rows[Setting] if row.name != THP_KNOB]
    host.rows[Setting].append(Setting(THP_KNOB, thp))
    if got:
        host.counter("thp_fault_alloc", got[0])
        host.counter("thp_fault_fallback", got[1])
    return host


THP_KNOB = "transparent_hugepage.enabled"


def hugetlb(cache: bool) -> Host:
    """A pool of 20 of 64 GiB that a virtual machine is about to use."""
    host = made.hugetlb_kept() if not cache else full_cache(64, 20 * GIB)
    pages = 20 * 512
    host.rows[HugetlbSize] = [HugetlbSize(2 << 20, pages, pages, 0, 0, 0, "off", 28 << 10)]
    return host


def cache_of(name: str, gib: int, of: int, *tracks: SlabOwnerStack) -> Host:
    """A machine one of whose slab caches has so many GiB."""
    host = healthy(of)
    pages = gib * GIB
    counters = {row.name: row.value for row in host.rows[VmCounter]}
    host.counter("nr_slab_unreclaimable", counters["nr_slab_unreclaimable"] + pages)
    host.rows[SlabCache].insert(
        0, SlabCache(name, pages * 4, None, 1024, pages * 4, pages // 8, pages, bool(tracks))
    )
    host.rows[SlabOwnerStack] = list(tracks)
    return host


def killed(*memory: Any, gib: int = 64, **changes: Any) -> Host:
    """A machine whose log has a kill, of memory that was so then."""
    host = healthy(gib)
    for row in (oom.oom(seconds=UP - 600, **changes), *memory):
        host.rows.setdefault(type(row), []).append(row)
    return host


def log_alone(*rows: Any) -> Host:
    """A kernel log, and nothing else."""
    host = Host(64, made.target(64) | {"kind": "files", "uptime_seconds": None}, {})
    for row in rows:
        host.rows.setdefault(type(row), []).append(row)
    return host


def hole(share: float, by_pages: bool, gib: int = 64) -> Host:
    """Memory that is in no counter, of a machine that was read by its pages, or as text."""
    host = full_cache(gib, int(gib * GIB * share))
    host = counted(host, unexplained=share)
    if not by_pages:
        del host.rows[LedgerCheck], host.rows[UnexplainedRow]
        host.rows[LedgerRow] = [
            dataclasses.replace(row, part=made.REMAINDER) if row.owner == "unexplained" else row
            for row in host.rows[LedgerRow]
        ]
        host.target["kind"] = "files"
    return host


def dying(number: int) -> Host:
    pin = cgroups.pin("file", number, number * 75, "/journal")
    return with_rows(64, *cgroups.removed(number, 300 << 10), pin)


def given_up() -> Host:
    """kswapd has given the node up; memory.min keeps two thirds of it."""
    host = with_rows(64, pod("/db", depth=1, min_bytes=44 * B, low_bytes=0, usage_bytes=50 * B,
                             max_bytes=None))  # fmt: skip
    big = made.main_zone(host)
    made.add_zone(host, 0, big.zone, big.managed_pages, big.wmark_min + 9)
    made._wmarks(host)
    made._counters(host)
    host.rows[Zone] = [dataclasses.replace(row, node_unreclaimable=True) for row in host.rows[Zone]]
    return host


def kernel_fills(name: str) -> Host:
    """Watched: what a kernel counts by itself takes a twentieth of memory, slowly."""
    return watched(64, level=made.grows(name, 0.05))


INNOCENT: dict[str, Machine] = {
    "64 GiB": innocent(lambda: healthy(64)),
    "2 GiB, page by page": innocent(lambda: counted(healthy(2))),
    # The kill was one for a limit, or the machine's: nothing that was read says which.
    "512 GiB, odd": unclear(made.odd_but_healthy),
    "in pieces, THP=never": innocent(lambda: in_pieces(got=(0, 0), thp="never")),
    "in pieces, THP faults succeed": innocent(lambda: in_pieces(got=(77_000_000, 23_000_000))),
    "in pieces, THP by madvise, and no demand": innocent(
        lambda: in_pieces(got=(3, 9), thp="madvise")
    ),
    "pods near their heap limit": innocent(
        lambda: with_rows(64, *(pod(f"/kube/{n}", max_own_events=n, file_bytes=0)
                                for n in range(1, 4)))
    ),
    "pods near their heap limit, on a kernel with PSI": innocent(
        lambda: with_rows(64, pod(max_own_events=900_000), *waits(0.4, "/kube/java"), *waits(0.1))
    ),
    "a pod killed 20 min ago": innocent(
        lambda: with_rows(64, kill_of_pod(), counter("oom_kill", 1), pod(oom_kill_own_events=1))
    ),
    "a pod killed as a group": innocent(
        lambda: with_rows(64, *(kill_of_pod(1, victim=n, pid=n, group_kill=True)
                                for n in range(1, 30)), counter("oom_kill", 29))
    ),
    "a build pod full of page cache": innocent(
        lambda: with_rows(64, pod("/build", anon_bytes=B, file_bytes=7 * B, max_own_events=9_000),
                          *waits(0.2, "/build"))
    ),
    "a cgroup that met memory.high at a peak": innocent(
        lambda: with_rows(64, pod(high_bytes=8 * B, high_events=400))
    ),
    "a backup that reads everything once": innocent(
        lambda: with_rows(64, pod("/backup", file_bytes=7 * B),
                          *came_back("/backup", 30_000_000, 9))
    ),
    "hugetlb pool beside full page cache": innocent(lambda: hugetlb(cache=True)),
    "a phone, zram 80 % full": innocent(lambda: zram(0.8, 0.3)),
    "a phone, zram full, no pressure": innocent(lambda: zram(1.0, 0.3)),
    "550 pages/s to zram, PSI 0.3 %": innocent(
        lambda: watched(8, rates={"pswpin": 550.0, "pswpout": 560.0}, full=0.003)
    ),
    "zram storm without a wait": innocent(
        lambda: watched(8, rates={"pswpin": 6000.0, "pswpout": 6000.0}, full=0.003)
    ),
    "PyTorch: shared memory, unlinked at once": innocent(
        lambda: with_rows(64, cached("/dev/shm/torch_1", 30.0, kind="tmpfs", deleted=True))
    ),
    "balloon of 30 %": innocent(lambda: with_balloon(64, 0.3)),
    "PostgreSQL with 300 forks": innocent(
        lambda: with_rows(64, rmap.anon_vma(vmas=300, processes=300, comm="postgres", pid=9))
    ),
    "a virtual machine host, a third locked, with room": innocent(
        lambda: with_rows(64, counter("nr_mlock", 20 * GIB),
                          process(9, "qemu", locked_bytes=20 * B))
    ),
    "a server that writes": innocent(
        lambda: with_rows(64, counter("nr_dirty", 2 * GIB), counter("nr_writeback", GIB // 16),
                          counter("nr_dirty_threshold", 5 * GIB // 2))
    ),
    "PSI of a busy machine": innocent(lambda: with_rows(64, *waits(1.5))),
    "swap full of what was not needed again": innocent(lambda: counted(healthy(64), swap=1.0)),
    "file server, a fifth in inodes and dentries": innocent(
        lambda: with_rows(64, counter("nr_slab_reclaimable", 13 * GIB))
    ),
    "protection of a third, with room": innocent(
        lambda: with_rows(64, pod("/db", depth=1, min_bytes=20 * B, low_bytes=0, usage_bytes=30 * B,
                                  max_bytes=None))
    ),
    "a few hundred dying cgroups": innocent(lambda: dying(400)),
    "watched, and a pod is killed": innocent(lambda: watched_kill(1 / made.PERIOD / 40)),
    "watched, page cache that is read once": innocent(
        lambda: watched(64, rates={"pgsteal_kswapd": 90_000.0, "workingset_refault_file": 2_000.0})
    ),
    "watched, 2 GiB": innocent(lambda: watched(2)),
    "watched, 512 GiB": unclear(lambda: watched(512)),
}  # fmt: skip


def came_back(path: str, pages: int, soon: int) -> list[MemoryCgroupCounter]:
    return cgroups.came_back(pages, soon, path)


def with_balloon(gib: int, share: float) -> Host:
    host = full_cache(gib, int(gib * GIB * share))
    host.rows[VmCounter].append(VmCounter("nr_balloon_pages", "node", int(gib * GIB * share), 0))
    return host


def watched_kill(rate: float) -> Host:
    return watched(64, rates={"oom_kill": rate})


def short(host: Host, left: float) -> Host:
    """The same, with no more page cache than a share of memory."""
    file = next(row for row in host.rows[VmCounter] if row.name == "nr_file_pages")
    wanted = int(host.gib * GIB * left)
    host.counter("nr_anon_pages", next(
        row.value for row in host.rows[VmCounter] if row.name == "nr_anon_pages"
    ) + max(0, file.value - wanted))  # fmt: skip
    return host


SICK: dict[str, Machine] = {
    "memory.high throttled 4 M times": sick(
        lambda: with_rows(64, pod(high_bytes=8 * B, high_events=4_000_000)), "cgroup-throttled"
    ),
    "memory.high, and PSI of its cgroup": sick(
        lambda: with_rows(64, pod(high_bytes=8 * B, high_events=40_000), *waits(30, "/kube/java"),
                          *waits(1)), "cgroup-throttled"
    ),
    "page cache thrash in a cgroup": sick(
        lambda: with_rows(64, pod("/web", anon_bytes=5 * B, file_bytes=int(2.7 * B),
                                  max_own_events=9_000_000),
                          *came_back("/web", 900_000_000, 700_000_000)),
        "cgroup-thrash",
    ),
    "40,000 file refaults a second, watched": sick(
        lambda: watched(64, rates={"workingset_refault_file": 40_000.0, "pgsteal_kswapd": 60_000.0,
                                   "workingset_activate_file": 30_000.0}, full=0.06),
        "watch-refaults",
    ),
    "swap storm on a machine up 200 days": sick(
        lambda: with_rows(64, *waits(35)), "memory-pressure"
    ),
    "PSI full 15 % and 60 allocstalls a second": sick(
        lambda: watched(64, rates={"allocstall_normal": 60.0}, full=0.15), "watch-memory-pressure"
    ),
    "31 GiB in one slab cache of 512 GiB": sick(
        lambda: cache_of("kmalloc-1k", 31, 512), "slab-cache-large"
    ),
    "a slab leak, and tracks that name it": sick(
        lambda: cache_of("kmalloc-1k", 31, 512,
                         SlabOwnerStack("kmalloc-1k", 7, "init;run;nvme_leak;__kmalloc_noprof",
                                        30_000_000, None, None)),
        "slab-cache-large",
    ),
    "50 GiB locked": sick(
        lambda: short(with_rows(64, counter("nr_mlock", 50 * GIB),
                                process(9, "db", locked_bytes=50 * B)), 0.01), "memory-locked"
    ),
    "76 GiB pinned": sick(
        lambda: short(with_rows(96, counter("nr_foll_pin_acquired", 90 * GIB),
                                counter("nr_foll_pin_released", 14 * GIB),
                                process(9, "spdk", pinned_bytes=76 * B)), 0.01), "memory-locked"
    ),
    "writeback stuck on NFS": sick(
        lambda: with_rows(64, counter("nr_dirty", GIB // 2), counter("nr_writeback", 2 * GIB),
                          counter("nr_dirty_threshold", 5 * GIB // 2)), "writeback-stuck"
    ),
    "10 GiB of kernel stacks": sick(
        lambda: with_rows(128, counter("nr_kernel_stack", 10 << 20),
                          process(9, "java", threads=640_000)), "kernel-memory-large"
    ),
    "slab leak of a third": sick(made.slab_leak, "slab-large"),
    "a driver's leak": sick(made.driver_leak, "unexplained-pages"),
    "fragmentation famine": sick(
        lambda: in_pieces(got=(1_000, 9_000_000)), "external-fragmentation"
    ),
    "/dev/shm left behind": sick(made.shmem_left, "shmem-left-behind"),
    "page tables of a fifth": sick(made.page_table_bloat, "page-table-bloat"),
    "40,000 dying cgroups": sick(lambda: dying(40_000), "dying-cgroups"),
    "percpu leak": sick(lambda: counted(healthy(64), percpu=0.06), "percpu-large"),
    "vmalloc leak": sick(made.vmalloc_leak, "vmalloc-large"),
    "a hole of 68 % as text": sick(lambda: hole(0.45, by_pages=False), "memory-unaccounted"),
    "a node exhausted by mempolicy": sick(
        lambda: killed(constraint="CONSTRAINT_MEMORY_POLICY", nodemask="1"), "oom-kills-told"
    ),
    "OOM: swap full": sick(
        lambda: killed(*oom.machine(swap=(8 * B, 0)), oom.oom_task(7, "java", 10_000_000, 0, True)),
        "oom-kills-told",
    ),
    "OOM: unreclaimable slab": sick(
        lambda: killed(*oom.machine(slab_unreclaimable=30 * B)), "oom-kills-told"
    ),
    "OOM: memory in no counter": sick(lambda: killed(*oom.machine(lost=45 * B)), "oom-kills-told"),
    "OOM: hugetlb": sick(lambda: killed(*oom.machine(hugetlb=50 * B)), "oom-kills-told"),
    "OOM: shmem": sick(lambda: killed(*oom.machine(shmem=50 * B)), "oom-kills-told"),
    "OOM in the log alone": sick(lambda: log_alone(oom.oom(seconds=5.0)), "oom-kills-told"),
    "a cgroup's OOMs in the log alone": sick(
        lambda: log_alone(*(oom.oom_at_limit(n, seconds=5.0 * n) for n in (1, 2, 3))),
        "oom-cgroup-limit",
    ),
    "a pod that does not get up": sick(
        lambda: with_rows(64, *(kill_of_pod(n, ago=60.0 * n) for n in range(1, 8))),
        "oom-cgroup-limit",
    ),
    "kswapd gave up, and memory.min is why": sick(given_up, "protection-forbids-reclaim"),
    "watched, slab leak": sick(lambda: kernel_fills("SUnreclaim"), "watch-kernel-memory-grows"),
    "watched, kills without memory": sick(lambda: watched_kill(0.02), "watch-oom-kill"),
}  # fmt: skip

BLIND: dict[str, Machine] = {
    "a cgroup's OOM in the log alone": Machine(
        lambda: log_alone(oom.oom_at_limit(seconds=5.0)), CANNOT_TELL
    ),
    "a hole of 7 % as text": Machine(lambda: hole(0.07, by_pages=False), CANNOT_TELL),
    "a hole of 2 % of 128 GiB": Machine(lambda: hole(0.02, by_pages=True, gib=128), CANNOT_TELL),
    "a log that could not be read": Machine(
        lambda: unread("oom_kills", "failed", "Operation not permitted"), CANNOT_TELL
    ),
    "a dump without a part of its pages": Machine(
        lambda: unread("free_lists", "partial", "12 MiB of struct pages are not in the dump"),
        CANNOT_TELL,
    ),
}


def unread(section: str, status: str, why: str) -> Host:
    host = healthy(64)
    host.fared[section] = status, why
    return host


EVERY = INNOCENT | SICK | BLIND
