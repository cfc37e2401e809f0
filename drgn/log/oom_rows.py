# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rows of the OOM killer's messages: who asked, who was killed, who else was there, and
which memory there was.

All are numbered by ``oom``: a call of the OOM killer, in the order of the log. Two logs number
theirs apart.
"""

from mmscope.drgn.log.kernel_log import NOT_COMPARED
from mmscope.drgn.tables.rows import MOST, MOST_BYTES, MOST_ORDER, MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Table

KILLED, EXITING, NO_ONE, NO_KILL, PANIC, OPEN = (
    "killed",
    "was exiting already",
    "nobody could be killed",
    "no process was killed",
    "the kernel panicked",
    "the log does not say",
)
MOST_UID = (1 << 32) - 1
OOM_ID = "call of the OOM killer, numbered in the order of the log from 1"
# high=MOST: a log may be another machine's, and a process may map a page more than once.


@table_row
class OomKill:
    """A process that the OOM killer took, or a call of it that took none."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    victim: int = column(key=True, help="1 is the first that this call killed; 0: it killed none")
    seconds: float | None = column(unit="s", help="since boot, by the record's time")
    outcome: str = column(
        holds="words",
        help=f"{KILLED}; {EXITING}; {NO_ONE}; {NO_KILL}: the log goes on, without a "
        f"kill; {PANIC}; {OPEN}: its end is not in the log",
    )
    invoker: str | None = column(holds="comm", help="task whose allocation had failed")
    invoker_pid: int | None = column(high=MOST_PIDS, help="pid of that task")
    invoker_oom_score_adj: int | None = column(low=-1000, high=1000, help="of that task")
    gfp_mask: str | None = column(holds="kernel", help="of the allocation, hexadecimal")
    gfp_flags: str | None = column(holds="kernel", help="its names, as printed")
    order: int | None = column(
        low=-1, high=MOST_ORDER, help="of the allocation; -1: asked for by SysRq-f"
    )
    constraint: str | None = column(
        holds="kernel",
        help="CONSTRAINT_NONE: the whole machine, _MEMCG: a memory cgroup's limit, _CPUSET and "
        "_MEMORY_POLICY: some nodes only",
    )
    cgroup_limit: bool | None = column(
        help="whether a memory cgroup was at its limit; else memory of the machine ran out, or of "
        "the nodes that were allowed"
    )
    nodemask: str | None = column(holds="kernel", help="nodes of the memory policy, as printed")
    cpuset: str | None = column(holds="cgroup", help="the invoker's cpuset, its last name")
    mems_allowed: str | None = column(holds="kernel", help="nodes that the invoker's cpuset has")
    oom_cgroup: str | None = column(holds="cgroup", help="memory cgroup that is at its limit")
    victim_cgroup: str | None = column(holds="cgroup", help="memory cgroup of the chosen task")
    group_kill: bool = column(help="memory.oom.group: all tasks of a cgroup were killed")
    allocating_task: bool = column(
        help="vm.oom_kill_allocating_task: the invoker was killed, whatever it held"
    )
    pid: int | None = column(high=MOST_PIDS, help="of the victim")
    comm: str | None = column(holds="comm", help="of the victim")
    uid: int | None = column(high=MOST_UID, help="of the victim")
    total_vm_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="total-vm")
    anon_bytes: int | None = column(unit="bytes", high=MOST, help="anon-rss when it was killed")
    file_bytes: int | None = column(unit="bytes", high=MOST, help="file-rss")
    shmem_bytes: int | None = column(unit="bytes", high=MOST, help="shmem-rss")
    pgtables_bytes: int | None = column(unit="bytes", high=MOST, help="page tables")
    oom_score_adj: int | None = column(low=-1000, high=1000, help="of the victim")
    reaped: bool | None = column(
        help="whether the OOM reaper took its memory; empty: the log does not say, as where the "
        "victim ended by itself within 2 s"
    )
    usage_bytes: int | None = column(
        unit="bytes", high=MOST, help="of the memory cgroup that is at its limit"
    )
    limit_bytes: int | None = column(
        unit="bytes", high=MOST, help="memory.max of that cgroup; empty: none, or not printed"
    )
    lacks: str | None = column(
        holds="words", help="what of its records the log does not have, or has damaged"
    )
    date: str | None = column(
        since="0.3.0",
        default=None,
        holds="words",
        help="of the wall clock, as the text of a log has it: without a year where that has none",
    )
    usable_free_bytes: int | None = column(
        since="0.3.0",
        default=None,
        unit="bytes",
        high=MOST,
        help="free in the zones and nodes that the request could use, without what is kept for "
        "others: free CMA pages unless it is of movable memory, and lowmem_reserve",
    )


@table_row
class OomTask:
    """A row of the OOM killer's table of tasks that it could have killed."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    pid: int = column(key=True, high=MOST_PIDS, help="of a thread that has the memory")
    tgid: int = column(high=MOST_PIDS, help="process")
    uid: int = column(high=MOST_UID, help="user")
    comm: str = column(holds="comm", help="task's name")
    killed: bool = column(help="whether this call killed it")
    total_vm_pages: int = column(unit="pages", high=MOST, help="total_vm")
    rss_pages: int = column(unit="pages", high=MOST, help="rss")
    anon_pages: int | None = column(unit="pages", high=MOST, help="rss_anon; 6.1 does not print it")
    file_pages: int | None = column(unit="pages", high=MOST, help="rss_file")
    shmem_pages: int | None = column(unit="pages", high=MOST, help="rss_shmem")
    pgtables_bytes: int | None = column(
        unit="bytes",
        high=MOST,
        help="page tables; empty: before 4.15 their number is printed, and a page's size is not "
        "known",
    )
    swap_pages: int = column(unit="pages", high=MOST, help="swapents")
    oom_score_adj: int = column(low=-1000, high=1000, help="-1000: never to be killed")


@table_row
class OomMemory:
    """A number that the kernel printed of the machine's memory when it ran out (``show_mem()``)."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    node: int = column(key=True, low=-1, help="NUMA node; -1: the whole machine")
    zone: str = column(holds="kernel", key=True, help="zone; empty: the node, or the machine")
    counter: str = column(holds="kernel", key=True, help="as printed")
    bytes: int | None = column(
        unit="bytes",
        high=MOST,
        help="printed in KiB, and of the whole machine in pages; empty: the size of a page is not "
        "known",
    )


@table_row
class OomFreeBlocks:
    """Free blocks of an order of a zone when memory ran out, as ``show_mem()`` printed them."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone")
    order: int = column(key=True, high=MOST_ORDER, help="of the blocks")
    blocks: int = column(high=MOST, help="free ones")
    migratetypes: str = column(
        holds="kernel",
        help="which lists have any: Unmovable, Movable, Reclaimable (E), HighAtomic, CMA, Isolate",
    )


@table_row
class OomCgroupMemory:
    """A line of memory.stat of a memory cgroup that ran out, as the kernel printed it."""

    oom: int = column(key=True, low=1, help=OOM_ID)
    counter: str = column(
        holds="kernel", key=True, help="as in memory.stat; of cgroup v1 rss is anonymous memory"
    )
    value: int = column(help="in the unit of memory.stat: bytes, or events since the cgroup is")


@table_row
class ProgramKillRow:
    """A process or cgroup that a program ended to have memory, as it says in a log."""

    number: int = column(key=True, low=1, help="in the order of the log, from 1")
    date: str | None = column(holds="words", help="of the wall clock, as the text of a log has it")
    program: str = column(holds="words", help="systemd-oomd, earlyoom, nohang, oomd, kubelet")
    cgroup: str | None = column(holds="cgroup", help="cgroup, unit or pod that it ended")
    comm: str | None = column(holds="comm", help="process that it ended")
    pid: int | None = column(high=MOST_PIDS, help="of that process")
    held_bytes: int | None = column(unit="bytes", high=MOST, help="resident, as it says")
    why: str | None = column(holds="log", help="its reason, in its own words")


OOM_KILLS = Table(
    "oom_kills",
    "Kills of the OOM killer",
    OomKill,
    empty="the log has no call of the OOM killer",
    not_compared=NOT_COMPARED,
)
OOM_TASKS = Table("oom_tasks", "Tasks when memory ran out", OomTask, not_compared=NOT_COMPARED)
OOM_MEMORY = Table("oom_memory", "Memory when it ran out", OomMemory, not_compared=NOT_COMPARED)
OOM_FREE_BLOCKS = Table(
    "oom_free_blocks", "Free blocks when memory ran out", OomFreeBlocks, not_compared=NOT_COMPARED
)
OOM_CGROUP_MEMORY = Table(
    "oom_cgroup_memory",
    "Memory of cgroups that ran out",
    OomCgroupMemory,
    not_compared=NOT_COMPARED,
)

PROGRAM_KILLS = Table(
    "program_kills",
    "What programs ended to have memory",
    ProgramKillRow,
    since="0.3.0",
    empty="no program says in the log that it ended a process to have memory",
    not_compared=NOT_COMPARED,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("oom_kills")
