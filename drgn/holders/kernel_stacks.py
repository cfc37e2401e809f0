# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Kernel stacks by process: ``task_struct.stack`` of its threads.

Processes with fewer than :data:`MANY` threads are one row, and so are kernel threads: a bundle does
not grow with them. Costs a read for each thread.

Cannot know: stacks of tasks that have ended and are not yet gone, and those that CPUs keep for the
next thread. Stacks smaller than a page are slab objects, and are not looked at.
"""

import numpy as np
from drgn import Program, offsetof, sizeof
from drgn.helpers.linux.sched import idle_task

from mmscope.drgn.holders.holdings import Holder, Holdings
from mmscope.drgn.processes.open_files import OpenFiles
from mmscope.drgn.reading.cpus import online_cpus, possible_cpus
from mmscope.drgn.reading.kernel_arrays import U64s
from mmscope.drgn.reading.linked_lists import walk_list
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.tables.display import if_any, plural

MANY = 16
MOST_THREADS = 4 << 20


def block_pages(prog: Program) -> int | None:
    """
    Pages of a stack that is a block of the page allocator, as without CONFIG_VMAP_STACK; 0: it is
    smaller than a page, and a slab object. None: it is vmalloc memory.
    """
    if prog.type("struct task_struct").has_member("stack_vm_area"):
        return None
    return int(sizeof(prog.type("union thread_union")) // prog["PAGE_SIZE"].value_())


def add_kernel_stacks(prog: Program, files: OpenFiles, found: Holdings, kind: int) -> None:
    """
    Stacks of all tasks on the list of processes, and of their threads.

    :param kind: of the ledger, of pages that are no vmalloc memory.
    """
    pages = block_pages(prog)
    if pages == 0:
        return

    def add(holder: Holder, stacks: U64s) -> None:
        if pages is None:
            found.areas(holder, stacks, objects=len(stacks))
            outside.append(found.without_area(stacks))
        else:
            held = stacks[stacks != prog["init_task"].stack.value_()]
            found.memory(holder, kind, held, pages, objects=len(stacks))

    outside: list[U64s] = []
    task, signals = prog.type("struct task_struct"), prog.type("struct signal_struct")
    columns = {"stack": "stack", "signal": "signal", "exit_state": "exit_state"}
    leaders, read = read_members(prog, files.tasks, task, columns, found.gaps)
    numbers, known = read_members(
        prog, leaders["signal"], signals, {"threads": "nr_threads"}, found.gaps
    )
    head, link = offsetof(signals, "thread_head"), offsetof(task, "thread_node")
    others = dict[str, list[U64s]]()
    broken_off = 0
    for at in np.flatnonzero(read).tolist():
        stacks = leaders["stack"][at : at + 1]
        if known[at] and numbers["threads"][at] > 1:
            begin = int(leaders["signal"][at]) + head
            threads, whole = walk_list(prog, begin, link, MOST_THREADS)
            broken_off += not whole
            members, there = read_members(
                prog, np.array(threads, np.uint64), task, {"stack": "stack"}, found.gaps
            )
            stacks = members["stack"][there]
        if len(stacks) < MANY:
            name = "kernel threads" if files.kernel[at] else "processes with few threads"
            others.setdefault(name, []).append(stacks)
        else:
            holder = Holder("kernel stacks", "", files.processes[at])
            add(holder, stacks)
    if broken_off:
        words = plural(broken_off, "list of threads", "lists of threads")
        found.missing.append(f"kernel stacks: {words} could not be followed to the end")
    idle = {
        cpu: task.stack.value_() for cpu in possible_cpus(prog) if (task := idle_task(prog, cpu))
    }
    others.setdefault("kernel threads", []).append(np.array([*idle.values()], np.uint64))
    for name, parts in others.items():
        add(Holder("kernel stacks", name), np.concatenate(parts))
    # A task that has ended has none (release_task_stack(), kernel/fork.c), the first a static one.
    known = np.array([0, prog["init_task"].stack.value_()], np.uint64)
    lost = sum(int((~np.isin(stacks, known)).sum()) for stacks in outside)
    lost += int(np.count_nonzero(read & (leaders["stack"] == 0) & (leaders["exit_state"] == 0)))
    lost += sum(not idle.get(cpu) for cpu in online_cpus(prog))
    found.missing += if_any(lost, "kernel stacks: {} could not be found", "stack")
