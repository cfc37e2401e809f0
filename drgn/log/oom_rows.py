# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rows of the OOM killer's messages: who asked, who was killed, who else was there, and
which memory there was.

All are numbered by ``oom``: a call of the OOM killer, in the order of the log. Two logs number
theirs apart.
"""

from mmscope.drgn.log.kernel_log import NOT_COMPARED
from mmscope.drgn.tables.rows import MOST, MOST_BYTES, MOST_ORDER, MOST_PIDS, column
from mmscope.drgn.tables.table import table

KILLED, EXITING, NO_ONE, NO_KILL, PANIC, OPEN = (
    "killed",
    "was exiting already",
    "nobody could be killed",
    "no process was killed",
    "the kernel panicked",
    "the log does not say",
)
MOST_UID = (1 << 32) - 1
OOM_ID = "number of the OOM killer's call in the log, from 1"
# high=MOST: a log may be another machine's, and a process may map a page more than once.


@table(
    "oom_kills",
    "Kills of the OOM killer",
    empty="the log has no call of the OOM killer",
    not_compared=NOT_COMPARED,
)
class OomKill:
    """A process that the OOM killer took, or a call that took none."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    victim: int = column(key=True, help="1: the first that this call killed; 0: none")
    seconds: float | None = column(unit="s", help="since boot, by the record's time")
    outcome: str = column(
        holds="words",
        help=f"{KILLED}; {EXITING}; {NO_ONE}; {NO_KILL}: the log continues without a "
        f"kill; {PANIC}; {OPEN}: it ends before",
    )
    invoker: str | None = column(holds="comm", help="task whose allocation failed")
    invoker_pid: int | None = column(high=MOST_PIDS, help="its pid")
    invoker_oom_score_adj: int | None = column(low=-1000, high=1000, help="of that task")
    gfp_mask: str | None = column(holds="kernel", help="hexadecimal")
    gfp_flags: str | None = column(holds="kernel", help="names of the mask, as printed")
    order: int | None = column(low=-1, high=MOST_ORDER, help="of the allocation; -1: SysRq-f")
    constraint: str | None = column(
        holds="kernel",
        help="CONSTRAINT_NONE: whole machine; _MEMCG: a cgroup's limit; _CPUSET, _MEMORY_POLICY: "
        "some nodes",
    )
    cgroup_limit: bool | None = column(
        help="a memory cgroup was at its limit; else the machine or the allowed nodes ran out"
    )
    nodemask: str | None = column(holds="kernel", help="nodes of the memory policy")
    cpuset: str | None = column(holds="cgroup", help="last component of the invoker's cpuset")
    mems_allowed: str | None = column(holds="kernel", help="nodes of that cpuset")
    oom_cgroup: str | None = column(holds="cgroup", help="memory cgroup at its limit")
    victim_cgroup: str | None = column(holds="cgroup", help="memory cgroup of the victim")
    group_kill: bool = column(help="memory.oom.group: the whole cgroup was killed")
    allocating_task: bool = column(
        help="vm.oom_kill_allocating_task: the invoker was killed, whatever it held"
    )
    pid: int | None = column(high=MOST_PIDS, help="of the victim, or else of the one chosen")
    comm: str | None = column(holds="comm", help="of the same")
    uid: int | None = column(high=MOST_UID, help="of the victim")
    total_vm_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="total-vm")
    anon_bytes: int | None = column(unit="bytes", high=MOST, help="anon-rss when it was killed")
    file_bytes: int | None = column(unit="bytes", high=MOST, help="file-rss")
    shmem_bytes: int | None = column(unit="bytes", high=MOST, help="shmem-rss")
    pgtables_bytes: int | None = column(unit="bytes", high=MOST, help="page tables")
    oom_score_adj: int | None = column(low=-1000, high=1000, help="of the victim")
    reaped: bool | None = column(
        help="the OOM reaper took its memory; empty: not in the log, as where the victim exited "
        "within 2 s"
    )
    usage_bytes: int | None = column(unit="bytes", high=MOST, help="of the cgroup at its limit")
    limit_bytes: int | None = column(
        unit="bytes", high=MOST, help="its memory.max; empty: none, or not printed"
    )
    lacks: str | None = column(holds="words", help="what is missing or damaged in its log records")
    date: str | None = column(
        since="0.3.0",
        default=None,
        holds="words",
        help="wall clock, as the log has it, at times without a year",
    )
    usable_free_bytes: int | None = column(
        since="0.3.0",
        default=None,
        unit="bytes",
        high=MOST,
        help="free in zones and nodes open to it, less lowmem_reserve and, unless movable, CMA",
    )


@table("oom_tasks", "Tasks when memory ran out", not_compared=NOT_COMPARED)
class OomTask:
    """A row of the OOM killer's table of candidates."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    pid: int = column(key=True, high=MOST_PIDS, help="of a thread with that memory")
    tgid: int = column(high=MOST_PIDS, help="process")
    uid: int = column(high=MOST_UID, help="user")
    comm: str = column(holds="comm", help="task's name")
    killed: bool = column(help="killed by this call")
    total_vm_pages: int = column(unit="pages", high=MOST, help="total_vm")
    rss_pages: int = column(unit="pages", high=MOST, help="rss")
    anon_pages: int | None = column(unit="pages", high=MOST, help="rss_anon; not printed by 6.1")
    file_pages: int | None = column(unit="pages", high=MOST, help="rss_file")
    shmem_pages: int | None = column(unit="pages", high=MOST, help="rss_shmem")
    pgtables_bytes: int | None = column(
        unit="bytes",
        high=MOST,
        help="page tables; empty: kernels before 4.15 print pages, of unknown size",
    )
    swap_pages: int = column(unit="pages", high=MOST, help="swapents")
    oom_score_adj: int = column(low=-1000, high=1000, help="-1000: never killed")


@table("oom_memory", "Memory when it ran out", not_compared=NOT_COMPARED)
class OomMemory:
    """A number about memory that ``show_mem()`` printed at an OOM."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    node: int = column(key=True, low=-1, help="NUMA node; -1: the whole machine")
    zone: str = column(holds="kernel", key=True, help="empty: the node, or the machine")
    counter: str = column(holds="kernel", key=True, help="as printed")
    bytes: int | None = column(
        unit="bytes",
        high=MOST,
        help="empty: page size unknown",
    )


@table("oom_free_blocks", "Free blocks when memory ran out", not_compared=NOT_COMPARED)
class OomFreeBlocks:
    """Free blocks of one order in one zone at an OOM, as ``show_mem()`` printed them."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    order: int = column(key=True, high=MOST_ORDER, help="order of the blocks")
    blocks: int = column(high=MOST, help="free blocks")
    migratetypes: str = column(
        holds="kernel",
        help="lists that have some: Unmovable, Movable, Reclaimable (E), HighAtomic, CMA, Isolate",
    )


@table("oom_cgroup_memory", "Memory of cgroups that ran out", not_compared=NOT_COMPARED)
class OomCgroupMemory:
    """A line of memory.stat, as printed, of a memory cgroup at its limit."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    counter: str = column(
        holds="kernel", key=True, help="as in memory.stat; cgroup v1: rss is anonymous memory"
    )
    value: int = column(help="in memory.stat's unit: bytes, or events since creation")


@table(
    "program_kills",
    "What programs ended to have memory",
    since="0.3.0",
    empty="no program says in the log that it ended a process to have memory",
    not_compared=NOT_COMPARED,
)
class ProgramKillRow:
    """A process or cgroup that a program killed for memory, by its log."""

    number: int = column(key=True, low=1, help="in the log, from 1")
    date: str | None = column(holds="words", help="wall clock, as the log has it")
    program: str = column(holds="words", help="systemd-oomd, earlyoom, kubelet or another")
    cgroup: str | None = column(holds="cgroup", help="cgroup, unit or pod it ended")
    comm: str | None = column(holds="comm", help="process it ended")
    pid: int | None = column(high=MOST_PIDS, help="of that process")
    held_bytes: int | None = column(unit="bytes", high=MOST, help="resident memory it reports")
    why: str | None = column(holds="log", help="its reason, in its own words")


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("oom_kills")
