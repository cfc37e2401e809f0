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

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from drgn import FaultError, Program, ProgramFlags, offsetof

from mmscope.drgn.owners.slab_objects import Objects, Wanted
from mmscope.drgn.reading.kernel_arrays import Array, Gaps, S64s, U64s
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.sections.apart import ReaderApart
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import Found
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import MOST_PIDS, column
from mmscope.drgn.tables.table import table
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


@table("process_vmas", "Processes by their VMAs", measure="vmas", lasting=("comm",))
class ProcessVmas:
    """VMAs of a process, against its limit."""

    pid: int = column(key=True, high=MOST_PIDS, help="process (thread group)")
    comm: str | None = column(holds="comm", help="name of its first thread")
    vmas: int = column(unit="VMAs", help="mm.map_count")
    max_map_count: int | None = column(unit="VMAs", help="vm.max_map_count, a process")
    anon_vmas: int | None = column(help="linked to its VMAs, inherited ones included")
    largest_anon_vma: str | None = column(holds="kernel", help="with most of its VMAs")
    vmas_on_it: int | None = column(unit="VMAs", help="of this process")


@dataclass(frozen=True, slots=True)
class Processes:
    """
    Address spaces, ascending by the address of their ``struct mm_struct``.

    :ivar counts: by name, ``map_count`` and, of KSM, what this kernel counts.
    :ivar unreadable: ``mm_struct``s; :ivar gone: those that their tasks had given up by then.
    """

    mm: U64s
    pid: S64s
    comm: list[str | None]
    counts: Mapping[str, S64s] = field(default_factory=dict)
    unreadable: int = 0
    gone: int = 0


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

    counts = {}
    for name in columns:
        values: Array = found[name][read]
        if values.dtype.kind == "u":
            # An unsigned long of a damaged mm may not fit; what reads it knows that it is too much.
            values = np.minimum(values, np.uint64(LARGEST))
        counts[name] = values.astype(np.int64)
    pids, comms = (tasks[name][named][read] for name in ("tgid", "comm"))
    names: list[str | None] = list(map(name_in, comms.tolist()))
    return Processes(mms[read], pids.astype(np.int64), names, counts, unreadable, gone)


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


# By device and inode: a path, and of each VMA its first and last byte in the file, the process, and
# whether it is shared.
FilesMapped = dict[tuple[str, str], tuple[str, list[tuple[int, int, int, bool]]]]
MAPS_LINE = re.compile(
    r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-][x-]([sp]) ([0-9a-f]{1,16}) "
    r"([0-9a-f]{2,3}:[0-9a-f]{2,5}) ([0-9]{1,20})(?: +(.*))?"
)


def take_maps(found: FilesMapped, pid: int, text: str) -> None:
    """
    Add the files of a process's /proc/PID/maps. The lines are of fs/proc/task_mmu.c,
    show_map_vma().

    Lines of another form are not about a file.
    """
    for line in text.splitlines():
        # 7f45cd1be000-7f45cd1c0000 rw-s 00000000 00:19 5      /tmp/gone (deleted)
        if (match := MAPS_LINE.fullmatch(line)) is None:
            continue
        begin, end, shared, offset, device, inode, path = match.groups()
        if (device, inode) == ("00:00", "0"):
            continue
        first, size = int(offset, 16), int(end, 16) - int(begin, 16)
        if size <= 0 or int(end, 16) > 1 << 57 or first >> 63:
            continue
        _, vmas = found.setdefault((device, inode), (path or "", []))
        vmas.append((first, first + size - 1, pid, shared == "s"))


def process_maps(files: Files) -> tuple[list[ProcessVmas], dict[str, list[int]], FilesMapped]:
    """
    Read /proc/PID/maps of all processes, each once. It waits for the process's mmap_lock, and is
    read by a process that may be left behind.

    :return: the processes, without anon_vmas, which /proc does not have; those that are missing, by
        reason; and the files that they map.
    """
    if "process_maps" not in files.kept:
        with ReaderApart() as reader:
            files.kept["process_maps"] = _process_maps(files, reader)
    kept: tuple[list[ProcessVmas], dict[str, list[int]], FilesMapped] = files.kept["process_maps"]
    return kept


def _process_maps(
    files: Files, reader: ReaderApart
) -> tuple[list[ProcessVmas], dict[str, list[int]], FilesMapped]:
    rows: list[ProcessVmas] = []
    missing: dict[str, list[int]] = {}
    mapped: FilesMapped = {}
    limit = None
    with contextlib.suppress(OSError, ValueError):
        limit = printed_number(files.open("proc/sys/vm/max_map_count").strip(), "max_map_count")
    for pid in files.numbers("proc", r"(\d+)"):
        try:
            text = files.open_apart(f"proc/{pid}/maps", reader)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError as error:
            missing.setdefault(error.strerror or "cannot be read", []).append(pid)
            continue
        take_maps(mapped, pid, text)
        # vsyscall is in every process's maps, and is no VMA.
        vmas = sum("[vsyscall]" not in line for line in text.splitlines())
        comm = None
        with contextlib.suppress(OSError):
            comm = files.open(f"proc/{pid}/comm").rstrip("\n")
        if vmas:  # a kernel thread has none
            rows.append(ProcessVmas(pid, comm, vmas, limit, None, None, None))
    return sorted(rows, key=lambda row: (-row.vmas, row.pid)), missing, mapped


NAMED = 5  # of the processes that something is wrong with


def note_missing(found: Found, missing: Mapping[str, list[int]]) -> None:
    """Count and name the processes whose maps could not be read."""
    for why, pids in missing.items():
        named = ", ".join(map(str, pids[:NAMED])) + (", …" if len(pids) > NAMED else "")
        number = plural(len(pids), "process", "processes")
        found.notes.append(f"{number} not counted: maps of {named}: {why}")


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("anon_vmas", "process_vmas")
