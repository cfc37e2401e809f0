# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Threads that free memory for others: kswapd and kcompactd of each node, the OOM reaper; and
processes that the OOM killer chose and that are still there.

Of a node ``struct pglist_data`` has the threads, and what they were asked for. A process that was
chosen is known by ``signal_struct.oom_mm`` (mark_oom_victim(), mm/oom_kill.c), and ``MMF_OOM_SKIP``
of that mm says that its memory was freed, or that it is not worth another try. Costs some reads for
each, and a stack.

Cannot know: how far kcompactd is, which is on its stack alone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from drgn import Object, Program

from mmscope.drgn.reading.kernel_arrays import TORN
from mmscope.drgn.reading.nodes import online_nodes
from mmscope.drgn.tables.rows import MOST, MOST_PIDS, column
from mmscope.drgn.tables.table import MOMENT, table
from mmscope.drgn.waits.reclaiming import DEF_PRIORITY, zones_up_to

# 10 years: more is no time that a task has slept, or a file been dirty.
MOST_SECONDS = 10 * 365 * 86400
MOST_ORDER = 16  # CONFIG_ARCH_FORCE_MAX_ORDER is 15 at most, of arm64 and powerpc
STOPPED = 4 | 8  # __TASK_STOPPED, __TASK_TRACED (include/linux/sched.h)
# TASK_UNINTERRUPTIBLE; TASK_RTLOCK_WAIT, for a spinlock of PREEMPT_RT, is D in /proc, too.
IN_D = 2 | 0x1000
REPORTED = 0x7F  # TASK_REPORT and TASK_TRACED (include/linux/sched.h)
STATES_END = 1 << 20  # beyond TASK_STATE_MAX (include/linux/sched.h), 0x1000 in 5.10 and more since
MMF_OOM_SKIP = 21  # include/linux/sched/coredump.h, later mm_types.h: the same from 5.10 to 7.3


@table(
    "reclaim_threads",
    "Threads that free memory for others",
    not_compared=MOMENT,
)
class ReclaimThread:
    """A thread that frees or compacts memory for others."""

    pid: int = column(key=True, high=MOST_PIDS, help="of the thread")
    comm: str = column(holds="kernel", help="kswapd0, kcompactd0, oom_reaper")
    node: int | None = column(help="empty: all")
    state: str = column(holds="words", help="D: sleeps, takes no signal; R: runs; S: sleeps")
    order: int | None = column(
        high=MOST_ORDER,
        help="that it reclaims for, or was last asked for; 0: none, or base pages",
    )
    failures: int | None = column(
        high=1 << 10, help="kswapd runs in a row that reclaimed nothing; 16: it gives up"
    )
    doing: str | None = column(holds="words", help="part of memory management it is in")
    stack: str | None = column(holds="kernel", help="where it is: root;…;leaf")
    zones: str | None = column(
        holds="words",
        default=None,
        help="that it works on, or was asked for; empty: none",
    )
    priority: int | None = column(
        default=None,
        high=DEF_PRIORITY,
        help="of its reclaim: scans 1/2^priority of LRU lists; empty: it does not reclaim",
    )
    reclaimed_pages: int | None = column(
        default=None, unit="pages", high=MOST, help="freed so far by this call"
    )


@table(
    "oom_victims",
    "OOM victims that are still there",
    measure="seconds",
    empty="None: no process that the OOM killer chose was still there.",
    not_compared=MOMENT,
)
class OomVictim:
    """A task of an OOM victim that still exists."""

    pid: int = column(key=True, high=MOST_PIDS, help="thread")
    comm: str = column(holds="comm", help="name of the process")
    cgroup: str | None = column(holds="cgroup", help="its memory cgroup")
    state: str = column(
        holds="words", help="D: sleeps, takes no signal or only fatal ones; R; S; X: dead"
    )
    seconds: float | None = column(unit="seconds", high=MOST_SECONDS, help="since it last ran")
    reaped: bool | None = column(
        help="MMF_OOM_SKIP: its memory was freed, or is not tried again; empty: unknown"
    )
    doing: str | None = column(holds="words", help="part of memory management it is in")
    kind: str | None = column(holds="words", help="what it is queued on; empty: unknown")
    target: str | None = column(holds="file", help="lock, page or queue")
    holder_pid: int | None = column(high=MOST_PIDS, help="task holding it; empty: none is recorded")
    holder_comm: str | None = column(holds="comm", help="name of the process")
    stack: str | None = column(holds="kernel", help="where it is: root;…;leaf")


def threads(
    prog: Program,
) -> Iterator[tuple[Object, int | None, int | None, int | None, str | None]]:
    """``struct task_struct *`` of each such thread of the nodes; node, order, failures, zones."""
    for node in online_nodes(prog):
        number = int(node.node_id)
        if node.kswapd:
            # An int in 6.12, an atomic_t in 7.2.
            failures = node.kswapd_failures
            counter = getattr(failures, "counter", failures).value_()
            zones = zones_up_to(node, node.kswapd_highest_zoneidx.value_())
            yield node.kswapd.read_(), number, node.kswapd_order.value_(), counter, zones
        if getattr(node, "kcompactd", None):  # CONFIG_COMPACTION
            zones = zones_up_to(node, node.kcompactd_highest_zoneidx.value_())
            order = node.kcompactd_max_order.value_()
            yield node.kcompactd.read_(), number, order, None, zones if order else None


def reaped(victim: Object) -> bool | None:
    """True if the memory of a ``struct mm_struct *`` that was chosen is not tried again."""
    try:
        flags = victim.flags
        # A word in 6.12, a bitmap in 7.2.
        word = getattr(flags, "__mm_flags", None)
        bits = (flags if word is None else word[0]).value_()
        return bool(int(bits) >> MMF_OOM_SKIP & 1)
    except (*TORN, AttributeError, TypeError):
        return None


def stacks_unlike(rows: Sequence[ReclaimThread]) -> list[str]:
    """In words, threads of the kernel of a dump whose stack does not begin where others' do."""
    roots = [(row.stack or "").partition(";")[0] for row in rows]
    usual, _ = Counter(roots).most_common(1)[0] if rows else ("", 0)
    odd = [row.comm for row, root in zip(rows, roots, strict=True) if root != usual]
    return [f"the stack of {', '.join(odd)} could not be followed to its end"] if odd else []


def thread_state(task: Object) -> str:
    """
    State of a ``struct task_struct *`` in a letter: R, S, D, T, or X.

    :raises ValueError: it is none.
    """
    if task.exit_state:
        return "X"
    state = getattr(task, "__state", None)
    value = (task.state if state is None else state).value_()
    # A thread has one of those that are shown.
    if value >= STATES_END or (value & REPORTED).bit_count() > 1:
        raise ValueError(f"{value:#x} is no state of a thread")
    return "R" if value == 0 else "D" if value & IN_D else "T" if value & STOPPED else "S"


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("task_waits")
