# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every task of a kernel: processes, and their threads."""

from dataclasses import dataclass

import numpy as np
from drgn import Program, offsetof
from numpy.typing import NDArray

from mmscope.drgn.processes.address_spaces import PF_KTHREAD
from mmscope.drgn.reading.kernel_arrays import Columns, Gaps
from mmscope.drgn.reading.linked_lists import read_list
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.rows import MOST_PIDS

MAX_TASKS = MOST_PIDS
KTHREADD = 2  # PID of the parent of all kernel threads
PF_EXITING = 0x4  # include/linux/sched.h

TASK: Columns = {
    # "sched: Change task_struct::state" (2f064a59a11f, in v5.14)
    "state": ("__state", "state"),
    "pid": "pid",
    "tgid": "tgid",
    "comm": "comm",
    "cgroups": "cgroups",
    "switches": "nvcsw",
    "mm": "mm",
    "signal": "signal",
    "flags": "flags",
    "exit_state": "exit_state",
    "on_rq": "on_rq",
    "parent": "real_parent",
    # "Use a struct pid pointer for each task" (2c4704756cab, in v4.19)
    "thread_pid": "thread_pid",
}


@dataclass(frozen=True, slots=True)
class Tasks:
    """
    All tasks.

    :ivar victims: of processes that the OOM killer chose: their mm, by the task's address.
    :ivar unread: those that could not be read; :ivar broken_off: a list has no end, or leads
        nowhere.
    :ivar miscounted: processes whose list of threads is not as long as ``signal_struct.nr_threads``
        says; it and the list change one after the other.
    :ivar misnumbered: tasks whose ``pid`` is not what their ``struct pid`` has, or whose ``tgid``
        is not the ``pid`` of the first of their process.
    """

    addresses: NDArray[np.uint64]
    columns: NDArray[np.void]
    unread: int
    broken_off: bool
    victims: dict[int, int]
    miscounted: int
    misnumbered: int


def all_tasks(prog: Program, gaps: Gaps) -> Tasks:
    """Every task of ``init_task.tasks`` and of its process's list of threads."""
    type_, signals = prog.type("struct task_struct"), prog.type("struct signal_struct")
    head = prog["init_task"].tasks.address_of_().value_()
    leaders = read_list(prog, head, type_, "tasks", TASK, MAX_TASKS, gaps)
    lists = [leaders]
    numbers, known = read_members(
        *(prog, leaders.members["signal"], signals),
        *({"threads": "nr_threads", "oom_mm": "oom_mm"}, Gaps()),
    )
    mms = np.where(known, numbers["oom_mm"], np.uint64(0))
    victims = {int(leaders.addresses[at]): int(mms[at]) for at in np.flatnonzero(mms)}
    miscounted = 0
    apart = leaders.members["tgid"] != leaders.members["pid"]
    others = int(np.count_nonzero(leaders.read & apart))
    head_at = offsetof(signals, "thread_head")
    for at in np.flatnonzero(known & (numbers["threads"] != 1)).tolist():
        head = int(leaders.members["signal"][at]) + head_at
        threads = read_list(prog, head, type_, "thread_node", TASK, MAX_TASKS, gaps)
        lists.append(threads)
        victims |= dict.fromkeys(threads.addresses.tolist(), int(mms[at])) if mms[at] else {}
        miscounted += abs(len(threads.addresses) - int(numbers["threads"][at])) > 1
        of_others = threads.members["tgid"] != leaders.members["pid"][at]
        # The first is on both lists.
        of_others &= threads.read & ~np.isin(threads.addresses, leaders.addresses)
        others += int(np.count_nonzero(of_others))
    # The first thread of a process is on both of its lists.
    addresses, where = np.unique(
        np.concatenate([each.addresses for each in lists]), return_index=True
    )
    read = np.concatenate([each.read for each in lists])[where]
    columns = np.concatenate([each.members for each in lists])[where][read]
    return Tasks(
        *(addresses[read], columns, int(np.count_nonzero(~read))),
        *(not all(each.whole for each in lists), victims, miscounted),
        _misnumbered(prog, columns) + others,
    )


def states_apart(tasks: Tasks) -> list[str]:
    """
    In words, which tasks run and are on no queue of a CPU (``ttwu_do_activate()``,
    kernel/sched/core.c, makes one that wakes run when it is there), and which are neither a process
    with memory nor a kernel thread.

    One that the kernel has made for a program has neither until the program begins.
    """
    columns = tasks.columns
    alive = columns["exit_state"] == 0
    off = alive & (columns["state"] == 0) & (columns["on_rq"] == 0)
    words = []
    words += if_any(int(np.count_nonzero(off)), "{} on no queue of a CPU", "task runs", "tasks run")
    kthreadd = tasks.addresses[columns["pid"] == KTHREADD]
    of_kernel = np.isin(columns["parent"], kthreadd)
    exiting = (columns["flags"] & np.uint32(PF_EXITING)) != 0
    bare = alive & (columns["mm"] == 0) & ((columns["flags"] & np.uint32(PF_KTHREAD)) == 0)
    bare &= ~exiting | of_kernel
    if odd := int(np.count_nonzero(bare)):
        what = plural(odd, "task is", "tasks are")
        words.append(f"{what} no kernel thread, and without memory: about to begin, or damage")
    return words


def _misnumbered(prog: Program, tasks: NDArray[np.void]) -> int:
    """
    Number of tasks whose ``pid`` is not the first number of their ``struct pid`` (``pid_nr()``); a
    task that was released has none.
    """
    tasks = tasks[tasks["thread_pid"] != 0]
    # Its size has no number in it since "pid: Replace struct pid 1-element array with flex-array"
    # (b69f0aeb0689, in v6.5).
    first = tasks["thread_pid"] + np.uint64(offsetof(prog.type("struct pid"), "numbers"))
    pids, read = read_members(prog, first, prog.type("struct upid"), {"number": "nr"}, Gaps())
    return int(np.count_nonzero(~read | (pids["number"] != tasks["pid"])))
