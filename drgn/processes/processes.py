# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Processes as address spaces: ``struct mm_struct``, whose it is, and how many VMAs it has.

Tasks are found in their slab cache (see ``slab_objects``), in the pass over the struct pages that
reverse maps need anyway; a damaged list of processes does not matter. A task lives if it has an
``mm`` and is no kernel thread. All ``mm``s are read together. On a live
kernel, an ``mm`` that cannot be read and that no task has any more is gone, not unreadable.
Where no such pass is made, :mod:`~mmscope.drgn.processes.address_spaces` walks the list.

Cannot know: which of the processes that share an ``mm`` (``CLONE_VM``, as vfork does) is meant. It
is named after the one with the lowest pid.

The text that says the same is /proc/PID/maps, line by line, and /proc/sys/vm/max_map_count.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import FaultError, Program, ProgramFlags, offsetof
from numpy.typing import NDArray

from mmscope.drgn.owners.slab_objects import Objects, Wanted
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.tables.rows import MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Table
from mmscope.drgn.text.kernel_text import printed_number

PF_KTHREAD = 0x00200000  # include/linux/sched.h

WANTED = {
    "task": Wanted(
        "task_struct_cachep",
        "struct task_struct",
        {"mm": "mm", "pid": "pid", "tgid": "tgid", "flags": "flags", "comm": "comm"},
    )
}


LARGEST = (1 << 63) - 1


@table_row
class ProcessVmas:
    """How many VMAs a process has, against how many it may have."""

    pid: int = column(key=True, high=MOST_PIDS, help="process (thread group)")
    comm: str | None = column(holds="comm", help="name of its first thread")
    vmas: int = column(unit="VMAs", help="mm.map_count")
    max_map_count: int | None = column(unit="VMAs", help="vm.max_map_count, for every process")
    anon_vmas: int | None = column(help="anon_vmas that its VMAs are linked to, inherited included")
    largest_anon_vma: str | None = column(
        holds="kernel", help="the one with most VMAs of this process"
    )
    vmas_on_it: int | None = column(unit="VMAs", help="VMAs of this process on that one")


PROCESS_VMAS = Table(
    "process_vmas", "Processes by their VMAs", ProcessVmas, measure="vmas", lasting=("comm",)
)


@dataclass(frozen=True, slots=True)
class Processes:
    """All address spaces, ascending by the address of their ``struct mm_struct``."""

    mm: NDArray[np.uint64]
    pid: NDArray[np.int64]
    comm: list[str]
    map_count: NDArray[np.int64]
    ksm_merging_pages: NDArray[np.int64] | None  # None: this kernel does not count them
    ksm_rmap_items: NDArray[np.int64] | None
    ksm_zero_pages: NDArray[np.int64] | None
    unreadable: int  # mm_structs
    gone: int = 0  # that their tasks had given up by then


def processes(prog: Program, tasks: Objects) -> Processes:
    """
    Every address space that a task has.

    :param tasks: all slots of the cache of ``struct task_struct``.
    """
    alive = (tasks["mm"] != 0) & ((tasks["flags"] & PF_KTHREAD) == 0) & (tasks["pid"] != 0)
    alive = np.flatnonzero(alive)
    # Of those that share an address space, the first by its number.
    sorting = tasks.address, tasks["pid"], tasks["tgid"], tasks["mm"]
    alive = alive[np.lexsort([values[alive] for values in sorting])]
    mms, first = np.unique(tasks["mm"][alive], return_index=True)
    named = alive[first]
    mm_type = prog.type("struct mm_struct")
    columns: dict[str, str | tuple[str, ...]] = {"map_count": "map_count"}
    for name in ("ksm_merging_pages", "ksm_rmap_items", "ksm_zero_pages"):
        if mm_type.has_member(name):
            # An atomic_long_t since "mm/ksm: fix ksm_zero_pages accounting" (c2dc78b86e08, in
            # v6.10).
            columns[name] = (f"{name}.counter", name)
    found, read = read_members(prog, mms, mm_type, columns, Gaps())  # counted as address spaces
    unreadable = gone = 0
    for mm in mms[~read].tolist():
        if _has_ended(prog, tasks.address[alive[tasks["mm"][alive] == mm]].tolist(), mm):
            gone += 1
        else:
            unreadable += 1

    def numbers(name: str) -> NDArray[np.int64] | None:
        if name not in columns:
            return None
        values: NDArray[Any] = found[name][read]
        if values.dtype.kind == "u":
            # An unsigned long of a damaged mm may not fit; what reads it knows that it is too much.
            values = np.minimum(values, np.uint64(LARGEST))
        return values.astype(np.int64)

    counts = numbers("map_count")
    assert counts is not None
    return Processes(
        mms[read],
        tasks["tgid"][named][read].astype(np.int64),
        list(map(name_in, tasks["comm"][named][read].tolist())),
        counts,
        numbers("ksm_merging_pages"),
        numbers("ksm_rmap_items"),
        numbers("ksm_zero_pages"),
        unreadable,
        gone,
    )


def _has_ended(prog: Program, tasks: Iterable[int], mm: int) -> bool:
    """
    True if none of the tasks that had an ``mm`` has it now (``exit_mm()``, or another task in its
    place). A task that cannot be read says nothing, nor does a dump, in which no task ends.
    """
    if not prog.flags & ProgramFlags.IS_LIVE:
        return False
    at = offsetof(prog.type("struct task_struct"), "mm")
    try:
        return all(prog.read_u64(task + at) != mm for task in tasks)
    except FaultError:
        return False


def max_map_count(prog: Program) -> int | None:
    """``vm.max_map_count``."""
    try:
        return int(prog["sysctl_max_map_count"].value_())
    except (LookupError, FaultError):
        return None


def read_process_vmas(
    read: Callable[[str], str],
    pids: Iterable[int],
    read_maps: Callable[[str], str] | None = None,
) -> tuple[list[ProcessVmas], dict[str, list[int]]]:
    """
    The same rows from /proc, which does not have anon_vmas; and pids of processes that are missing,
    by the reason.

    :param read: gives the text of a file, ``proc/1/comm``; raises OSError.
    :param read_maps: the same for ``proc/1/maps``, which waits for the process's mmap_lock.
    """
    rows: list[ProcessVmas] = []
    missing: dict[str, list[int]] = {}
    try:
        limit: int | None = printed_number(
            read("proc/sys/vm/max_map_count").strip(), "max_map_count"
        )
    except (OSError, ValueError):
        limit = None
    for pid in pids:
        try:
            text = (read_maps or read)(f"proc/{pid}/maps")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError as error:
            missing.setdefault(error.strerror or "cannot be read", []).append(pid)
            continue
        # vsyscall is in every process's maps, and is no VMA.
        vmas = sum("[vsyscall]" not in line for line in text.splitlines())
        try:
            comm: str | None = read(f"proc/{pid}/comm").rstrip("\n")
        except OSError:
            comm = None
        if vmas:  # a kernel thread has none
            rows.append(ProcessVmas(pid, comm, vmas, limit, None, None, None))
    return sorted(rows, key=lambda row: (-row.vmas, row.pid)), missing


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("anon_vmas", "process_vmas")
