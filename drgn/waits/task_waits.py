# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Tasks that wait in memory management, what for, and who is at the end of the chain.

Every task (``struct task_struct``, threads too) in D state, and those that could run and are inside
of reclaim, compaction, or another part of memory management that takes long, or are counted as
waiting for memory; each with its stack, what it is queued on (:mod:`~mmscope.drgn.waits.waiters`)
and who holds that. Who reads an mmap_lock or a VMA is known by the page faults on stacks
(:mod:`~mmscope.drgn.waits.faults`). Followed from holder to holder, a chain ends at a task that
waits for no other, at what no task is known to hold, at the server or device that has to finish a
page or a request, or in a circle.

Costs a few reads for each task, and for those with a row a millisecond for the stack, of which
there are ``MAX_STACKS`` at most. On a live host nothing is stopped: a task may go on while its
stack is read, and a lock change hands; chains are made of tasks that slept all the while, and of
others it is not said what they wait for.

Cannot know: since when a task sleeps. ``seconds`` are since it was last put on a CPU
(``sched_info.last_arrival``, as crash's ``ps -l``), so the time that it ran then is among them. The
stack of a task that runs on a live host; readers of a lock but the last one and those in faults.

By text: threads in D state (:mod:`~mmscope.drgn.waits.sleeping_threads`), and devices that are
written to.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mmscope.drgn.reading.kernel_arrays import TORN, Gaps
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.table import table_of, tables_of
from mmscope.drgn.waits.all_tasks import states_apart
from mmscope.drgn.waits.fuse import FuseConnection
from mmscope.drgn.waits.reclaim_threads import (
    STATES_END,
    OomVictim,
    ReclaimThread,
    stacks_unlike,
)
from mmscope.drgn.waits.sleeping_threads import sleeping_threads
from mmscope.drgn.waits.wait_chains import Waits
from mmscope.drgn.waits.wait_tables import TaskWait, WaitRoot
from mmscope.drgn.waits.writeback import WritebackDevice, devices_by_text


def from_memory(memory: Memory) -> Found:
    found, gaps = Found(memory.live), Gaps()
    waits = Waits(memory, gaps)
    tasks, roots = waits.rows()
    found.add(WaitRoot, roots).add(TaskWait, tasks)
    more: tuple[tuple[type[Any], Callable[[], list[Any]]], ...] = (
        (OomVictim, lambda: waits.oom_victims(tasks)),
        (ReclaimThread, waits.reclaim_threads),
        (WritebackDevice, lambda: waits.writeback_devices(tasks)),
        (FuseConnection, waits.fuse_connections),
    )
    for row, read in more:
        try:
            found.add(row, read())
        except TORN as error:
            found.notes.append(f"{table_of(row).title}: {error}")
    _say_what_lacks(waits, found)
    _compare_threads(waits, found)
    found.unreadable_bytes = gaps.bytes
    return found


def _say_what_lacks(waits: Waits, found: Found) -> None:
    """Note what could not be read, or was not looked at."""
    tasks = waits.stacks.tasks
    if tasks.broken_off:
        found.notes.append(
            "the list of processes, or one of threads, could not be followed to its end"
        )
    found.notes += if_any(tasks.unread, "{} could not be read", "task")
    left_out = waits.stacks.left_out
    found.notes += if_any(left_out, "{} waited or could run: not looked at", "more task")
    if any(row.reaped is None for row in found.by_name.get(table_of(OomVictim).name, [])):
        found.notes.append("the memory of an OOM victim, signal_struct.oom_mm, could not be read")
    if lost := waits.lost_devices:
        words = plural(len(lost), "device that writes back", "devices that write back")
        found.differ(f"{words} could not be read: {lost[0]}")
    found.notes += if_any(waits.names.unread_connections, "{} could not be read", "FUSE connection")
    if waits.names.fuse_unknown:
        found.unlisted.append("what FUSE servers owe: the types of their module are not known")
    found.remarks += if_any(
        waits.moved, "{} went on while they were read: what they waited for is left out", "task"
    )


def _compare_threads(waits: Waits, found: Found) -> None:
    """The threads that reclaim by their nodes beside those by their names, and all by number."""
    threads = found.by_name.get(table_of(ReclaimThread).name, [])
    # As kswapd_run() and kcompactd_run() name them.
    for row in threads:
        if row.node is not None and row.comm not in (f"kswapd{row.node}", f"kcompactd{row.node}"):
            words = f"a thread that reclaims for node {row.node} is called {row.comm!r}"
            found.notes.append(words)
            break
    if waits.memory.live:
        return
    found.notes += waits.nameless_threads({row.pid for row in threads})
    found.notes += stacks_unlike(threads)
    found.notes += [f"{row.comm} has ended" for row in threads if row.state == "X"]
    tasks = waits.stacks.tasks
    odd = int(np.count_nonzero(tasks.columns["state"] >= STATES_END))
    has = "process has", "processes have"
    found.notes += [
        *if_any(odd, "{} in a state that there is not", "task is", "tasks are"),
        *if_any(tasks.miscounted, "{} more threads, or fewer, than nr_threads says", *has),
        *if_any(
            tasks.misnumbered,
            "{} another PID than struct pid, or than its process",
            *("task has", "tasks have"),
        ),
        *if_any(
            waits.stalls_apart,
            "{} for memory by in_memstall or by psi_flags alone",
            *("task waits", "tasks wait"),
        ),
    ]
    found.remarks += states_apart(tasks)
    # All but the idle tasks (copy_process(), kernel/fork.c).
    said, number = int(waits.prog["nr_threads"]), len(waits.stacks.tasks.addresses)
    if said != number:
        found.notes.append(f"{plural(number, 'task')} were found, nr_threads says {said:,}")


def from_files(files: Files) -> Found:
    found = Found()
    found.add(TaskWait, sleeping_threads(files, found))
    devices = devices_by_text(files, found)
    if devices is not None:
        found.add(WritebackDevice, devices)
    found.unlisted.append("stacks, locks and holders: memory alone has them")
    return found


TASK_WAITS_SECTION = Section(
    name="task_waits",
    title="Tasks that wait",
    since="0.3.0",
    tables=tables_of(
        *(WaitRoot, TaskWait, OomVictim, ReclaimThread, WritebackDevice, FuseConnection)
    ),
    intro="""
Tasks that sleep in the kernel and take no signal, or only one that kills (D state), and those that
reclaim, compact or are held back: what each is queued on, who holds that, and what stands at the
end of the chain. A task in D state for a moment is nothing unusual; many behind one, for seconds,
are a stall ([kernel documentation: lock types](https://docs.kernel.org/locking/locktypes.html)).
""",
    command=Command("who waits for whom", top=TOP),
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.STATUS, prices.TASKS, prices.SCHED, prices.BDI, prices.NAMES),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("task_waits")
