# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows of tasks that wait, and of what they wait for in the end."""

from mmscope.drgn.tables.rows import MOST, MOST_PIDS, column
from mmscope.drgn.tables.table import MOMENT, table
from mmscope.drgn.waits.reclaim_threads import MOST_SECONDS
from mmscope.drgn.waits.reclaiming import DEF_PRIORITY, MOST_ORDER


@table(
    "task_waits",
    "Tasks that wait in the kernel",
    measure="seconds",
    empty="No task waited at that moment.",
    not_compared=MOMENT,
)
class TaskWait:
    """A task that waits, or works in memory management for long."""

    pid: int = column(key=True, high=MOST_PIDS, help="thread")
    comm: str = column(holds="comm", help="name of the process")
    cgroup: str | None = column(holds="cgroup", help="its memory cgroup")
    state: str = column(
        holds="words",
        help="D: sleeps, takes no signal or only fatal ones; R: runnable; S: sleeps, and holds a "
        "lock or waits for a FUSE server",
    )
    seconds: float | None = column(
        unit="seconds",
        high=MOST_SECONDS,
        help="since it was last put on a CPU; by text since it last ran",
    )
    doing: str | None = column(
        holds="words", help="part of memory management, by its stack; empty: another"
    )
    kind: str | None = column(holds="words", help="what it is queued on; empty: unknown")
    target: str | None = column(holds="file", help="lock, page or queue")
    holder_pid: int | None = column(high=MOST_PIDS, help="task holding it; empty: none is recorded")
    holder_comm: str | None = column(holds="comm", help="name of the process")
    holder_is: str | None = column(
        holds="words",
        help="owner, writer, reader in a fault, last reader (may have released it), or FUSE server "
        "(owes an answer)",
    )
    finished_by: str | None = column(
        holds="file", help="device or server that must finish it, as in wait_roots"
    )
    for_memory: bool | None = column(
        help="the kernel counts it as waiting for memory (PSI); empty: not counted"
    )
    stack: str | None = column(
        holds="kernel", help="where it is: root;…;leaf; by text wchan, one function"
    )
    reclaims_from: str | None = column(
        holds="cgroup", default=None, help="cgroup whose memory it reclaims; /: any memory"
    )
    zones: str | None = column(
        holds="words", default=None, help="that it reclaims from, or compacts; empty: neither"
    )
    order: int | None = column(
        default=None, high=MOST_ORDER, help="of the block that it reclaims or compacts for"
    )
    priority: int | None = column(
        default=None,
        high=DEF_PRIORITY,
        help="of its reclaim: scans 1/2^priority of LRU lists; 0: all, its last try",
    )
    reclaimed_pages: int | None = column(
        default=None, unit="pages", high=MOST, help="freed so far by this call"
    )
    wanted_pages: int | None = column(
        default=None, unit="pages", high=MOST, help="freed, with which the call ends"
    )
    process: int | None = column(
        since="0.3.0", default=None, high=MOST_PIDS, help="its thread group; by text alone"
    )


@table(
    "wait_roots",
    "What waiting tasks wait for in the end",
    measure="waiters",
    empty="No task waited for a lock or page at that moment.",
    not_compared=MOMENT,
)
class WaitRoot:
    """The end of chains of waiting tasks."""

    root: str = column(
        holds="file", key=True, help="task that waits for no other, or lock that no task holds"
    )
    kind: str = column(holds="words", help="task, device or server, or what else it is")
    pid: int | None = column(
        high=MOST_PIDS,
        help="of the task, else of its only direct waiter; empty: several",
    )
    comm: str | None = column(holds="comm", help="name of the process")
    circle: bool = column(help="it waits for one of its own waiters")
    by_last_reader: bool = column(help="a link is a lock's last reader, which may have released it")
    waiters: int = column(unit="tasks", help="direct and indirect waiters")
    unsure_waiters: int = column(
        unit="tasks", help="of these, those whose chain has such a last reader"
    )
    longest_seconds: float | None = column(
        unit="seconds", high=MOST_SECONDS, help="longest wait among them"
    )
    lock: str = column(holds="file", help="what most direct waiters are queued on")
    lock_waiters: int = column(unit="tasks", help="queued on that")
    seconds: float | None = column(unit="seconds", high=MOST_SECONDS, help="since pid last ran")
    doing: str | None = column(holds="words", help="part of memory management that pid is in")
    no_holder: bool = column(help="no task holds it although waiters sleep on it")
    why: str | None = column(holds="words", help="why no holder is named; empty: it is a task")
    stack: str | None = column(holds="kernel", help="of pid: root;…;leaf")


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("task_waits")
