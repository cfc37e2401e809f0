# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about the OOM killer."""

import dataclasses
from typing import Any

from finding_cases.case import TARGET, Case
from finding_cases.rows import GIB, MIB, RATE, event, zone

from mmscope.drgn.cgroups.cgroup_rows import MemoryCgroup
from mmscope.drgn.log.allocation_failures import STALL, VMALLOC, AllocationFailure
from mmscope.drgn.log.kernel_complaints import KernelComplaint
from mmscope.drgn.log.oom_kills import (
    KILLED,
    NO_KILL,
    OPEN,
    PANIC,
    OomCgroupMemory,
    OomFreeBlocks,
    OomKill,
    OomMemory,
    OomTask,
    ProgramKillRow,
)
from mmscope.drgn.log.shown_memory import ShownMemory


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


def failure(number: int = 1, **changes: Any) -> AllocationFailure:
    """An allocation of 16 pages in a row that failed, at 1000 s."""
    nothing = dict.fromkeys(f.name for f in dataclasses.fields(AllocationFailure))
    known = {
        "failure": number, "seconds": 999.0 + number, "what": "page allocation failure",
        "comm": "kworker/0:1", "pid": 7, "order": 4, "gfp_mask": "0xcc0", "gfp_flags": "GFP_KERNEL",
        "work": "events scan", "caller": "sd_probe [sd_mod]", "usable_free_bytes": 50 * MIB,
        "suitable_blocks": 0,
    }  # fmt: skip
    return AllocationFailure(**(nothing | known | changes))


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


def machine(
    managed: int = 64 * GIB,
    free: int = 100 * MIB,
    swap: tuple[int, int] | None = None,
    **parts: int,
) -> list[Any]:
    """The machine's memory when it ran out, bytes; what is not named is anonymous memory."""
    rest = {"slab_unreclaimable": GIB, "active_file": MIB, "shmem": MIB} | parts
    hugetlb, lost = rest.pop("hugetlb", 0), rest.pop("lost", 0)
    anon = managed - free - hugetlb - lost - sum(rest.values()) + rest["shmem"]
    rest["active_anon"] = anon
    if swap:
        rest |= {"Total swap": swap[0], "Free swap": swap[1]}
    return [
        *(OomMemory(1, -1, "", name, size) for name, size in rest.items()),
        OomMemory(1, 0, "", "hugepages_total 2048kB", hugetlb),
        OomMemory(1, 0, "Normal", "managed", managed), OomMemory(1, 0, "Normal", "free", free),
        OomMemory(1, 0, "Normal", "min", 90 * MIB),
    ]  # fmt: skip


def shown_of_node(managed: int, free: int, anon: int, elsewhere: int) -> list[Any]:
    """Memory as shown where a request may use node 1 alone: sums of all nodes, lines of that."""
    sums = {"active_anon": anon + elsewhere, "unevictable": 0, "slab_unreclaimable": 3 * GIB,
            "free": free + 20 * GIB, "pages RAM": 64 * GIB, "pages reserved": GIB}  # fmt: skip
    return [
        *(OomMemory(1, -1, "", name, size) for name, size in sums.items()),
        OomMemory(1, 1, "", "active_anon", anon), OomMemory(1, 1, "", "pagetables", MIB),
        OomMemory(1, 0, "", "hugepages_total 2048kB", 8 * GIB),
        OomMemory(1, 1, "Normal", "managed", managed), OomMemory(1, 1, "Normal", "free", free),
        OomMemory(1, 1, "Normal", "min", 90 * MIB),
    ]  # fmt: skip


def complaint(kind: str, what: str, group: str, **changes: Any) -> KernelComplaint:
    """What the log says."""
    said = KernelComplaint(
        kind, what, group, 1, 100.0, 100.0, None, None, "that is what it means", f"{kind} {what}"
    )
    return dataclasses.replace(said, **changes)


def shown(number: int, free: int) -> list[Any]:
    """A view of memory in the log: zone DMA is full."""
    machine = {"active_anon": GIB, "inactive_anon": 2 * GIB, "active_file": 8 * MIB,
               "inactive_file": 0, "unevictable": 500 * MIB, "slab_unreclaimable": 200 * MIB,
               "Total swap": GIB, "Free swap": 4 * MIB}  # fmt: skip
    zones = {"Normal": {"free": free, "min": 50 * MIB, "low": 80 * MIB, "managed": 4 * GIB},
             "DMA": {"free": 0, "min": MIB, "low": MIB, "managed": 15 * MIB}}  # fmt: skip
    return [
        *(ShownMemory(number, -1, "", name, size, 99.0, None) for name, size in machine.items()),
        *(ShownMemory(number, 0, zone, name, size, 99.0, None)
          for zone, counters in zones.items() for name, size in counters.items()),
    ]  # fmt: skip


def place(words: str, *rows: Any, unlike: list[str] | None = None) -> Case:
    """A kill that is told by where the memory was."""
    return Case("oom-kills-told", [oom(), *rows], [words], "warning", unlike or [])


WHOLE = [
    *(
        OomMemory(1, -1, "", name, size)
        for name, size in {
            **dict.fromkeys(("active_anon", "active_file", "inactive_file", "unevictable"), MIB),
            **dict.fromkeys(("slab_reclaimable", "slab_unreclaimable", "pagetables"), MIB),
            **{"inactive_anon": 4 * GIB - 8 * MIB, "free": MIB},
            **{"pages RAM": 17 * GIB, "pages reserved": GIB},
        }.items()
    ),
    OomMemory(1, 0, "", "hugepages_total 2048kB", 0),
]
BALLOON = [complaint("balloon", "hv_balloon: Balloon floor reached.", "changed")]
SPARED = [oom(), oom_task(7, "java", 1000, 500, True), oom_task(9, "mysqld", 9000, -500)]
NOW = TARGET | {"uptime_seconds": 1010.5}


def at_first_level(path: str, **changes: Any) -> MemoryCgroup:
    nothing = dict.fromkeys(MemoryCgroup.__dataclass_fields__)
    of_one = {"cgroup": path, "cgroup_id": 7, "state": "online", "depth": 1}
    return MemoryCgroup(**nothing | of_one | changes)


FOUND: dict[str, Case] = {
    "an allocation in a row that failed": Case(
        "allocation-failures", [failure(1), failure(2)],
        ["An allocation of 16 contiguous pages failed, in sd_probe [sd_mod]: 2 times",
         "kworker/0:1 (pid 7) asked with GFP_KERNEL, in the workqueue's events scan, last",
         "had 50 MiB free for it, but no free block of that size.",
         "For more than 8 contiguous pages the kernel does not"], "warning",
    ),
    "an allocation in an interrupt that failed": Case(
        "allocation-failures", [failure(order=0, gfp_flags="GFP_ATOMIC", caller=None, work=None)],
        ["An allocation of a page failed, in kworker/0:1", "may not wait for reclaim"], "notice",
        unlike=["in a row"],
    ),
    "allocations in interrupts that fail all the time": Case(
        "allocation-failures",
        [failure(n, order=3, gfp_flags="GFP_ATOMIC", seconds=10.0 * n) for n in range(1, 12)],
        ["An allocation of 8 contiguous pages failed, in sd_probe [sd_mod]: 11 times"], "warning",
    ),
    "allocations in interrupts that fail now and then": Case(
        "allocation-failures",
        [failure(n, order=3, gfp_flags="GFP_ATOMIC", seconds=100.0 * n) for n in range(1, 12)],
        ["11 times"], "notice",
    ),
    "a cgroup that systemd-oomd ended": Case(
        "program-kills",
        [ProgramKillRow(1, "06-12 10:12:33", "systemd-oomd", "/u/app.scope", None, None, None,
                        "memory pressure for /u being 71.30% > 50.00%")],
        ["systemd-oomd killed /u/app.scope for memory",
         "It says at 06-12 10:12:33: memory pressure for /u being 71.30% > 50.00%."],
        "warning", unlike=["kills in all"],
    ),
    "processes that earlyoom ended": Case(
        "program-kills",
        [ProgramKillRow(n, None, "earlyoom", None, "chrome", n, 2 * GIB, "badness 852")
         for n in (1, 2)],
        ["earlyoom killed chrome (pid 2) for memory, which held 2 GiB; 2 kills in all"],
        "warning",
    ),
    "bounce buffers that ran out": Case(
        "failures-in-log",
        [complaint("swiotlb full", name, "failure", times=times)
         for name, times in (("dwc3 38200000.dwc3", 1), ("ahci 0000:00:17.0", 3))],
        ["Swiotlb full in the log: ahci 0000:00:17.0, and 1 more",
         "4 records of the log, the last 1 min 40 s after boot: that is what it means."], "notice",
    ),
    "objects that kmemleak found": Case(
        "failures-in-log", [complaint("leaked object", "544", "leak", times=2)],
        ["Leaked object in the log: 544", "to which no pointer was found stay allocated"], "notice",
    ),
    "a disk of a swap area that failed": Case(
        "failures-in-log", [complaint("swap failure", "Read-error on swap-device", "failure")],
        ["Swap failure in the log: Read-error on swap-device"], "warning",
    ),
    "a kill by SysRq": Case(
        "oom-asked-for", [oom(order=-1, comm="gnome-shell")],
        ["The OOM killer was told to kill (SysRq-f): gnome-shell", "which held 2.001 GiB"],
        "notice",
    ),
    "struct pages that are damaged": Case(
        "damage-in-log",
        [complaint("bad page state", name, "damage", times=times)
         for name, times in (("java", 1), ("kworker/0:1", 3))],
        ["The kernel found damage: kworker/0:1 (bad page state), and 1 more",
         "4 records of the log, the last 1 min 40 s after boot: that is what it means.",
         "It begins: bad page state kworker/0:1"], "warning", unlike=["bad memory takes"],
    ),
    "a counter that is not 0": Case(
        "damage-in-log", [complaint("bad counter", "Bad rss-counter state", "damage")],
        ["The kernel found damage: Bad rss-counter state (bad counter)"], "notice",
    ),
    "memory below min where the log shows it": Case(
        "shown-memory-short", [*shown(1, 900 * MIB), *shown(2, 40 * MIB)],
        ["40 MiB free in the log's view of memory, below the min watermarks of 50 MiB",
         "have 4 GiB. On the lists: anonymous 3 GiB, of files 8 MiB, unevictable 500 MiB.",
         "Slab that cannot be reclaimed: 200 MiB.", "Of 1 GiB of swap 4 MiB were free."],
        "warning",
    ),
    "memory below low where the log shows it": Case(
        "shown-memory-short", shown(1, 60 * MIB), ["below the low watermarks of 80 MiB"], "notice"
    ),
    "tasks that hung in reclaim": Case(
        "hung-in-log",
        [complaint("hung task", f"{name}, in shrink_folio_list", "stall", times=times)
         for name, times in (("kswapd0", 3), ("java", 1))],
        ["A task hung in memory management: kswapd0, in shrink_folio_list, and 1 more",
         "4 records of the log, the last 1 min 40 s after boot. It begins: hung task kswapd0",
         "its whole stack says for which"], "warning", unlike=["Nothing else ran"],
    ),
    "a task that hung elsewhere": Case(
        "hung-in-log", [complaint("hung task elsewhere", "jbd2/sda1-8, in rq_qos_wait", "stall")],
        ["A task hung outside of memory management: jbd2/sda1-8, in rq_qos_wait",
         "what is dirty for that disk cannot be reclaimed meanwhile"], "notice",
    ),
    "a task that hung, in a log without its stack": Case(
        "hung-in-log", [complaint("hung task, stack unknown", "java", "stall")],
        ["A task hung, and the log has no stack of it: java", "it is cut, filtered"], "notice",
        unlike=["outside of"],
    ),
    "tasks that were blocked when SysRq-w showed them": Case(
        "hung-in-log", [complaint("blocked task", "java, in vm_mmap_pgoff", "stall")],
        ["A task was blocked in memory management: java, in vm_mmap_pgoff",
         "which may have been a short one"], "notice",
    ),
    "a CPU that was stuck in it": Case(
        "hung-in-log",
        [complaint("soft lockup", "kswapd0, in shrink_slab", "stall", first_seconds=None,
                   last_seconds=None, last_date="2026-11-28 00:00:01")],
        ["A CPU was stuck in memory management: kswapd0, in shrink_slab",
         "the last at 2026-11-28 00:00:01", "Nothing else ran on that CPU"], "warning",
    ),
    "an error that was corrected": Case(
        "damage-in-log", [complaint("memory error", "1 CE memory read error", "hardware")],
        ["Hardware has bad memory: 1 CE memory read error (memory error)",
         "errors cost nothing,"], "notice",
    ),
    "an error that was not corrected": Case(
        "damage-in-log", [complaint("memory error", "1 UE memory read error", "hardware",
                                    first_seconds=None, last_seconds=None,
                                    last_date="2026-11-28 00:00:01")],
        ["the last at 2026-11-28 00:00:01"], "warning",
    ),
    "a kill while other zones had memory": Case(
        "oom-kills-told",
        [oom(usable_free_bytes=9 * MIB), *machine(free=30 * GIB, slab_unreclaimable=12 * GIB)],
        ["Memory ran out: of 30 GiB free the request could use 9 MiB; "
         "the kernel killed java", "Largest: unreclaimable slab, 12 GiB"],
        "warning", unlike=["cannot free"],
    ),
    "a cgroup full of what is not written": Case(
        "oom-cgroup-limit",
        [oom_at_limit(), OomCgroupMemory(1, "dirty", 40 * MIB),
         OomCgroupMemory(1, "writeback", 10 * MIB)],
        ["at its limit of 64 MiB: 50 MiB of it wait to be written; java was killed",
         "cannot be reclaimed before the device has written them."], "warning",
    ),
    "an allocation that hardly ever fails": Case(
        "allocation-failures", [failure(order=1)],
        ["An allocation of 2 contiguous pages failed,", "It may wait, but reclaim freed nothing"],
        "warning",
    ),
    "an allocation of an old kernel that failed": Case(
        "allocation-failures", [failure(order=1, gfp_flags=None, gfp_mask="0x20", seconds=None,
                                        date="2017-12-07 00:05:15", lacks="the memory")],
        ["asked with 0x20", "last at 2017-12-07 00:05:15.", "The log lacks the memory.",
         "allocation's flags, which"], "notice",
    ),
    "an allocation whose first line the log lacks": Case(
        "allocation-failures", [failure(order=None, gfp_flags=None, gfp_mask=None,
                                        lacks="the line that says what failed")],
        ["An allocation of pages failed, in", "asked", "The log lacks the line that says"],
        "notice", unlike=["None"],
    ),
    "an allocation that was waited for": Case(
        "allocation-failures", [failure(what=STALL, stalled_ms=10_040)],
        ["An allocation waited for 10.0 s"], "warning",
    ),
    "an allocation of addresses that failed": Case(
        "allocation-failures", [failure(what=VMALLOC, order=None, size_bytes=8 * MIB)],
        ["An allocation of 8 MiB with vmalloc() failed",
         "either virtual addresses or single pages ran out."], "warning",
    ),
    "a kill of an old kernel": Case(
        "oom-kills-told",
        [oom(gfp_flags=None, uid=None, shmem_bytes=None, pgtables_bytes=None, oom_score_adj=None)],
        ["the kernel killed java, which held 2.001 GiB", "asked for a page (0xcc0) and got none.",
         "pid 7, anonymous 2 GiB, file 1 MiB."], "warning", unlike=["None"],
    ),
    "a call of which it is not known whose memory it was": Case(
        "oom-kills-told", [oom(victim=0, outcome=OPEN, cgroup_limit=None, pid=None, comm=None)],
        ["Memory of the machine or of a cgroup ran out; the log does not say how it ended"],
        "warning",
    ),
    "a call of which the log has who was chosen": Case(
        "oom-kills-told", [oom(victim=0, outcome=OPEN, pid=7, comm="java")],
        ["Memory ran out; java was to be killed, and the log does not say how it ended"], "warning",
    ),
    "memory of which the log has parts of the lines": Case(
        "oom-kills-told",
        [oom(lacks="memory of a node, damaged (1)"),
         *machine(slab_unreclaimable=12 * GIB, lost=30 * GIB)],
        ["12 GiB of 64 GiB were unreclaimable slab"], "warning", unlike=["in no counter"],
    ),
    "anonymous memory of a log without its tasks": Case(
        "oom-kills-told", [oom(), *machine()], ["were anonymous memory"], "warning",
        unlike=["belong to no task"],
    ),
    "a call without a kill": Case(
        "oom-kills-told", [oom(victim=0, outcome=NO_KILL, pid=None, comm=None)],
        ["Memory ran out, and no process was killed"], "warning",
    ),
    "a cgroup of which the log does not say how it ended": Case(
        "oom-cgroup-limit", [oom_at_limit(victim=0, outcome=OPEN, pid=None, comm=None)],
        ["at its limit of 64 MiB: the log does not say how it ended"], "notice",
        unlike=["no process was killed"],
    ),
    "a cgroup without a kill": Case(
        "oom-cgroup-limit", [oom_at_limit(victim=0, outcome=NO_KILL, pid=None, comm=None)],
        ["at its limit of 64 MiB: no process was killed"], "notice",
    ),
    "a cgroup of version 1": Case(
        "oom-cgroup-limit",
        [oom_at_limit(group_kill=True), oom_at_limit(victim=2, pid=8, comm="perl", uid=None,
                                                     oom_score_adj=None, shmem_bytes=None),
         *(OomCgroupMemory(1, name, size * MIB) for name, size in {"rss": 60, "cache": 3}.items())],
        ["2 processes killed", "Killed last", "perl, pid 8, which held 33 MiB.",
         "anonymous 60 MiB, file 3 MiB."], "notice", unlike=["None"],
    ),
    "25 OOM kills": Case(
        "oom-kills-since-boot", [event("oom_kill", 25)],
        ["The OOM killer took 25 processes since boot", "oom_kill 25 in 2.0 h since boot",
         "does not say when."],
        "notice",
    ),
    "OOM kills of which the log has some": Case(
        "oom-kills-since-boot", [event("oom_kill", 9), oom()],
        ["took 9 processes", "The log has 1 of them."],
    ),
    "an OOM kill": Case("oom-kills-since-boot", [event("oom_kill", 1)], ["took 1 process since"]),
    "OOM kills of which cgroups have some": Case(
        "oom-kills-since-boot",
        [event("oom_kill", 4), event("allocstall_normal", 30), event("allocstall_movable", 70),
         at_first_level("/kube", oom_events=2, oom_kill_events=3),
         at_first_level("/system.slice", oom_events=0, oom_kill_events=1)],
        ["took 4 processes since boot, 1 of them for memory of the machine",
         "100 times (allocstall). 3 were killed in cgroups at a limit."], "warning",
    ),
    "OOM kills that cgroups have": Case(
        "oom-kills-since-boot",
        [event("oom_kill", 3), event("allocstall_normal", 30),
         at_first_level("/kube", oom_events=2, oom_kill_events=3)],
        ["took 3 processes since boot", "As many were killed in cgroups"], "notice",
    ),
    "OOM kills where the machine had memory": Case(
        "oom-kills-since-boot", [event("oom_kill", 1), event("allocstall_normal", 0)],
        ["took 1 process since boot", "cgroups were at their own limits"], "notice",
    ),
    "a process that was killed for another's request": Case(
        "oom-kills-told", [oom(), *oom_zone(30 * MIB, 80 * MIB, {0: "Movable"})],
        ["Memory ran out, and the kernel killed java, which held 2.001 GiB",
         "nginx (pid 80) asked for a page (GFP_KERNEL) and got none.",
         "had 30 MiB free; their min watermarks are 40 MiB.",
         "Killed at 1000.5 s after boot: pid 7 of uid 1000, anonymous 2 GiB, file 1 MiB, "
         "shmem 0 B, page tables 5 MiB, oom_score_adj 0.",
         "need not be the one that asked,"],
        "warning", unlike=["allows nodes", "allocating_task", "lacks", "processes"],
    ),
    "a process that was killed just now, on some nodes": Case(
        "oom-kills-told",
        [oom(), oom(2, constraint="CONSTRAINT_CPUSET", mems_allowed="0,2-3", cpuset="pods", order=3,
                    lacks="its header")],
        ["Memory ran out on nodes 0,2-3, all that cpuset pods allows, and the kernel killed java",
         "2 processes in all", "asked for 8 contiguous pages",
         "Its cpuset allows nodes 0,2-3 alone.", "The log lacks its header."],
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
        ["Its memory policy allows node 1 alone.", "It was the one that asked"], "warning",
    ),
    # Slab, hugetlb pages and page tables of other nodes, and what java has there, did not fill it.
    "a node that is full, beside one with room": Case(
        "oom-kills-told",
        [oom(constraint="CONSTRAINT_MEMORY_POLICY", nodemask="1"),
         oom_task(7, "java", 5 << 18, 0, True),
         *shown_of_node(8 * GIB, 80 * MIB, anon=7 * GIB, elsewhere=GIB)],
        ["Memory ran out on node 1, all that the memory policy of nginx allows: the kernel "
         "killed java (pid 7), which held at least 4 GiB of 8 GiB",
         "The page allocator had 8 GiB there. Largest: java (pid 7), at least 4 GiB.",
         "Its memory policy allows node 1 alone; elsewhere 20 GiB were free."],
        "warning", unlike=["slab", "hugetlb"],
    ),
    "unreclaimable slab": place(
        "Memory ran out: 20 GiB of 64 GiB were unreclaimable slab; the kernel killed java, which "
        "held 2.001 GiB", *machine(slab_unreclaimable=20 * GIB),
        oom_task(7, "java", 524_288, 0, True),
    ),
    "page tables": place("9 GiB of 64 GiB were page tables;", *machine(pagetables=9 * GIB),
                         oom_task(7, "java", 524_288, 0, True)),
    "shmem": place("were shmem and tmpfs;", *machine(shmem=50 * GIB)),
    "a hugetlb pool": place("50 GiB of 64 GiB were hugetlb pages;", *machine(hugetlb=50 * GIB)),
    "memory that is in no counter": place(
        "45 GiB of 64 GiB were in no counter; the kernel killed java", *machine(lost=45 * GIB),
    ),
    "memory that is in no counter, by the machine's own lines": Case(
        "oom-kills-told", [oom(lacks="memory of a zone, damaged (3)"), *WHOLE, *BALLOON],
        ["12 GiB of 16 GiB were in no counter; the kernel killed java",
         "by which the host takes memory: hv_balloon: Balloon floor reached."], "warning",
    ),
    "lines of zones that are cut, beside a hugetlb pool that the log may have lost": Case(
        "oom-kills-told", [oom(lacks="memory of a zone, damaged (3)"), *WHOLE[:-1]],
        ["Memory ran out, and the kernel killed java"], "warning", unlike=["in no counter"],
    ),
    "locked memory": place("were locked or unevictable;", *machine(unevictable=50 * GIB)),
    "one process, and full swap": place(
        "Memory ran out: the kernel killed java (pid 7), which held 38.15 GiB of 64 GiB; swap was "
        "full",
        *machine(swap=(8 * GIB, MIB)), oom_task(7, "java", 10_000_000, 0, True),
    ),
    "many processes": place("were anonymous memory of many processes; the", *machine(),
                            *(oom_task(pid, "php", 100_000, 0) for pid in range(50, 60)),
                            unlike=["Killing it frees"]),
    "a victim that has not what is missing": Case(
        "oom-kills-told",
        [oom(anon_bytes=20 * MIB), *machine(slab_unreclaimable=40 * GIB, swap=(0, 0)),
         oom_task(7, "java", 5_120, 0, True), oom_task(9, "mysqld", 900_000, -999)],
        ["40 GiB of 64 GiB were unreclaimable slab", "There is no swap.",
         "mysqld (pid 9) held more: 3.433 GiB, swapped out included.",
         "Killing it frees little of what filled memory: it held 21 MiB, beside 40 GiB"],
        "warning",
    ),
    "a kernel that panicked instead": Case(
        "oom-kills-told",
        [oom(victim=0, outcome=PANIC, pid=None, comm=None, anon_bytes=None)],
        ["Memory ran out, and the kernel panicked", "nginx (pid 80) asked"], "critical",
        unlike=["Killed"],
    ),
    "a kill whose report the kernel left out, after one that has it": place(
        "Memory ran out: 50 GiB of 64 GiB were shmem and tmpfs; the kernel killed java, which held "
        "2.001 GiB; 2 processes in all", oom(2, seconds=1010.0), *machine(shmem=50 * GIB),
    ),
    "a report of yesterday's, and a kill without": place(
        "Memory ran out, and the kernel killed java, which", oom(2, seconds=90_000.0),
        *machine(shmem=50 * GIB),
    ),
    "a page fault that failed while memory was free": Case(
        "oom-kills-told",
        [oom(gfp_mask="0x0", gfp_flags=""), *machine(free=30 * GIB, swap=(0, 0))],
        ["A page fault failed with 30 GiB of 64 GiB free, perhaps at the limit of a memory cgroup; "
         "the kernel killed java", "did not ask for memory of its own"], "warning",
    ),
    "a report without zones": place(
        "Memory ran out: 50 GiB of 64 GiB were shmem and tmpfs; the kernel killed java",
        *(row for row in machine(shmem=50 * GIB) if not row.zone),
        OomMemory(1, -1, "", "free", 100 * MIB), OomMemory(1, -1, "", "pages RAM", 65 * GIB),
        OomMemory(1, -1, "", "pages reserved", GIB),
    ),
    "a report of the one node that was allowed": place(
        "Memory ran out: mysqld (pid 9) held 12 GiB of 16 GiB", *machine(managed=16 * GIB),
        oom_task(9, "mysqld", 3 << 20, 0), OomMemory(1, -1, "", "pages RAM", 64 * GIB),
        OomMemory(1, -1, "", "pages reserved", GIB),
    ),
    "zones whose lines were cut out": Case(
        "oom-kills-told",
        [oom(constraint=None, cgroup_limit=None), *machine(managed=16 * GIB, free=12 * GIB),
         OomMemory(1, -1, "", "pages RAM", 65 * GIB), OomMemory(1, -1, "", "pages reserved", GIB)],
        ["Memory of the machine or of a cgroup ran out, and the kernel killed java"], "warning",
        unlike=["of 16 GiB", "12 GiB", "in no counter"],
    ),
    "much that is free, for a reason that is not known": place(
        "Memory ran out with 40 GiB of 64 GiB free, and why the request could not use it is "
        "unknown; the kernel killed java", *machine(free=40 * GIB, active_file=20 * GIB),
    ),
    "much that is free, nearly all of it CMA": place(
        "Memory ran out with 40 GiB of 64 GiB free, of which 38 GiB are CMA, for movable "
        "allocations alone; the kernel killed java",
        *machine(free=40 * GIB, active_file=20 * GIB),
        OomMemory(1, 0, "Normal", "free_cma", 38 * GIB),
    ),
    "a victim that held most, without a table of tasks": Case(
        "oom-kills-told", [oom(anon_bytes=40 * GIB), *machine()],
        ["the kernel killed java (pid 7), which held 40 GiB of 64 GiB"], "warning",
        unlike=["the most of all tasks"],
    ),
    "a log that ends within": Case(
        "oom-kills-told", [oom(victim=0, outcome=OPEN, pid=None, comm=None)],
        ["Memory ran out; the log does not say how it ended"], "warning",
    ),
    "a cgroup at its limit": Case(
        "oom-cgroup-limit",
        [oom_at_limit(), oom_at_limit(2, pid=8, comm="perl"), zone(free_pages=1000),
         *(OomCgroupMemory(2, name, size * MIB)
           for name, size in {"anon": 60, "file": 3, "shmem": 2, "kernel": 1}.items())],
        ["Memory cgroup /pod was at its limit of 64 MiB: 2 processes killed",
         "Killed last, at 1000.5 s after boot: perl, pid 8 of uid 1000, which held 33 MiB",
         "The cgroup used 64 MiB: anonymous 60 MiB, file 3 MiB (shmem 2 MiB), kernel memory "
         "1 MiB.", "When this was read, the machine had 3.906 MiB free."],
        "notice", unlike=["memory.oom.group", "lacks"],
    ),
    "a cgroup that ran out again and again": Case(
        "oom-cgroup-limit",
        [*(oom_at_limit(number, pid=number) for number in range(1, 4)), zone()],
        ["3 processes killed"], "warning",
    ),
    "a cgroup that runs out all the time": Case(
        "oom-cgroup-limit", [*(oom_at_limit(number) for number in range(1, 11)), zone()],
        ["10 processes killed"], "critical", target=NOW,
    ),
    "a group kill of many, which is one": Case(
        "oom-cgroup-limit",
        [*(oom_at_limit(1, victim=number, pid=number) for number in range(1, 9)), zone()],
        ["8 processes killed"], "notice", target=NOW,
    ),
    "a cgroup of which the log has little": Case(
        "oom-cgroup-limit",
        [oom_at_limit(invoker=None, oom_cgroup=None, usage_bytes=None, limit_bytes=None,
                      group_kill=True, lacks="its header")],
        ["A memory cgroup was at its limit: java was killed", "memory.oom.group is set",
         "The log lacks its header."],
        "warning", unlike=["asked for memory", "The cgroup used"], target=NOW,
    ),
    "a larger task that was spared": Case(
        "oom-spared-larger", SPARED,
        ["The OOM killer took java (3.906 MiB) and spared mysqld (35.16 MiB), by oom_score_adj",
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
        ["OOM for 8 contiguous pages, with 500 MiB free in node 0 zone Normal",
         "nginx asked for order 3 (GFP_KERNEL). The zone had 500 MiB free, its high watermark is "
         "80 MiB", "java was killed for it."],
        "warning",
    ),
}  # fmt: skip

CLEAR: dict[str, Case] = {
    "a log without damage": Case(
        "damage-in-log", [complaint("crash kernel", "256MB", "taken at boot")]
    ),
    "memory that was there in the last view": Case(
        "shown-memory-short", [*shown(1, 40 * MIB), *shown(2, 900 * MIB)]
    ),
    "a log in which nothing failed that has no table of its own": Case(
        "failures-in-log", [complaint("vmalloc failure", "vmap allocation", "failure")]
    ),
    "a kill that nobody asked for": Case("oom-asked-for", [oom()]),
    "a log in which nothing hung": Case(
        "hung-in-log", [complaint("page allocation stall", "java", "stall")]
    ),
    "no allocation that failed": Case("allocation-failures", [], empty=(AllocationFailure,)),
    "no OOM kill": Case("oom-kills-since-boot", [event("oom_kill", 0)]),
    "OOM kills that the log has": Case(
        "oom-kills-since-boot", [event("oom_kill", 2), oom(), oom_at_limit(2)]
    ),
    "OOM kills, and there are rates": Case("oom-kills-since-boot", [event("oom_kill", 9), RATE]),
    "a log in which no program ended another": Case("program-kills", [], empty=(ProgramKillRow,)),
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

NOT_CHECKED: dict[str, Case] = {
    "a kernel that does not count OOM kills": Case(
        "oom-kills-since-boot", [event("pgpgin", 1)],
        why_not="vm_counters has no row where name = 'oom_kill'",
    ),
} | {
    f"{name} without a log": Case(name, [], why_not=f"no table {table} in this bundle")
    for name, table in {
        "oom-kills-told": "oom_kills", "oom-cgroup-limit": "oom_kills",
        "oom-asked-for": "oom_kills", "failures-in-log": "kernel_complaints",
        "program-kills": "program_kills",
        "allocation-failures": "allocation_failures", "damage-in-log": "kernel_complaints",
        "hung-in-log": "kernel_complaints", "shown-memory-short": "shown_memory",
        "oom-spared-larger": "oom_tasks", "oom-fragmented": "oom_free_blocks",
    }.items()
}  # fmt: skip
