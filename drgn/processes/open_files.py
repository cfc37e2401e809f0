# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct file``: all that processes have open, by the operations of its kind.

The tables of all processes (``files_struct.fdt``, ``fdtable.fd``) are read together, and each file
once, however many have it open. Costs a read for each table, and for each run of neighbours among
the files.

Cannot know: files that no table has: those that are on their way in a message of a unix socket,
registered with io_uring, or the kernel's own; and tables of a thread that does not share those of
its process (``CLONE_FILES``), or that outlives the first thread of it.
"""

import contextlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from drgn import Program, offsetof

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.processes.address_spaces import PF_KTHREAD, listed_tasks
from mmscope.drgn.reading.kernel_arrays import Array, Bools, Gaps, S64s, U64s, read_array
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.sections.memory import Memory

MAX_FDS = 1 << 20  # sysctl_nr_open
POINTER = np.dtype("<u8")


class Opener(NamedTuple):
    """A process; or none that is known."""

    pid: int | None = None  # its thread group's
    comm: str | None = None
    cgroup: str | None = None  # that its memory is charged to


NO_PROCESS = Opener()


# Names of their struct file_operations; FIFOs, and in 7.2 anonymous pipes by themselves.
PIPES = ("pipefifo_fops", "pipeanon_fops")
SOCKETS = "socket_file_ops"


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """
    Every open file, once.

    :ivar processes: of all tasks of the list of processes, kernel threads among them.
    :ivar tasks: addresses of their ``struct task_struct``.
    :ivar files: ``address``, ``f_op``, ``private_data`` and ``inode`` of each; ``process``: the
        position of the first that has it.
    :ivar gaps: what could not be read.
    :ivar broken_off: the list of processes could not be followed to its end.
    """

    processes: list[Opener]
    tasks: U64s
    kernel: Bools  # kernel threads
    files: Array
    gaps: Gaps
    broken_off: bool

    def of_kind(self, prog: Program, *operations: str | int | None) -> tuple[U64s, list[Opener]]:
        """
        ``private_data`` of the files of a kind, each once, and who has it.

        :param operations: names of their ``struct file_operations``, or addresses of a module's;
            one that the kernel lacks, or None, has no files.
        """
        ours = self._of(prog, *operations)
        data, first = np.unique(ours["private_data"], return_index=True)
        return data, [self.processes[at] for at in ours["process"][first].tolist()]

    def _of(self, prog: Program, *operations: str | int | None) -> Array:
        addresses = []
        for name in filter(None, operations):
            with contextlib.suppress(LookupError):
                addresses.append(prog.symbol(name).address if isinstance(name, str) else name)
        ours: Array = self.files[np.isin(self.files["f_op"], np.array(addresses, np.uint64))]
        return ours

    def misled(self, prog: Program) -> int:
        """
        Files of pipes and sockets that lead elsewhere than their inode: ``fifo_open()``
        (fs/pipe.c), ``sock_alloc_file()`` (net/socket.c).
        """
        pipes, sockets = self._of(prog, *PIPES), self._of(prog, SOCKETS)
        columns = {"pipe": "i_pipe"}
        of, read = read_members(prog, pipes["inode"], prog.type("struct inode"), columns, Gaps())
        apart = np.count_nonzero(read & (of["pipe"] != pipes["private_data"]))
        if len(sockets):  # else there may be no such type (CONFIG_NET)
            both = prog.type("struct socket_alloc")
            before = np.uint64(offsetof(both, "vfs_inode") - offsetof(both, "socket"))
            apart += np.count_nonzero(sockets["inode"] - before != sockets["private_data"])
        return int(apart)


def open_files(memory: Memory) -> OpenFiles:
    """
    Every open file, found once for all sections.

    :raises LookupError: the kernel's layout is unknown.
    """
    return memory.once("open_files", lambda: _open_files(memory.prog))


def _open_files(prog: Program) -> OpenFiles:
    gaps = Gaps()
    tasks, broken_off = listed_tasks(prog)
    task = prog.type("struct task_struct")
    columns = {"files": "files", "cgroups": "cgroups", "tgid": "tgid", "flags": "flags"}
    found, read = read_members(prog, tasks["address"], task, columns | {"comm": "comm"}, gaps)
    tasks, found = tasks[read], found[read]
    cgroups = _memory_cgroups(prog, found["cgroups"], gaps)
    processes = [
        Opener(pid, name_in(comm), cgroup)
        for pid, comm, cgroup in zip(
            found["tgid"].tolist(), found["comm"].tolist(), cgroups, strict=True
        )
    ]
    files, process = _tables(prog, found["files"], gaps)
    addresses, first = np.unique(files, return_index=True)
    members, read = read_members(
        prog,
        addresses,
        prog.type("struct file"),
        {"f_op": "f_op", "private_data": "private_data", "inode": "f_inode"},
        gaps,
    )
    rows = np.empty(
        int(read.sum()),
        [(name, "<u8") for name in ("address", "f_op", "private_data", "inode", "process")],
    )
    for name in ("f_op", "private_data", "inode"):
        rows[name] = members[name][read]
    rows["address"], rows["process"] = addresses[read], process[first[read]]
    kernel = (found["flags"] & PF_KTHREAD) != 0
    return OpenFiles(processes, tasks["address"], kernel, rows, gaps, broken_off)


def _tables(prog: Program, tables: U64s, gaps: Gaps) -> tuple[U64s, S64s]:
    """Addresses of the files in the tables of all processes, and the process of each."""
    has = np.flatnonzero(tables)
    _, first = np.unique(tables[has], return_index=True)  # threads of other groups may share it
    has = np.sort(has[first])
    fdt, read = read_members(
        prog, tables[has], prog.type("struct files_struct"), {"fdt": "fdt"}, gaps
    )
    has, fdt = has[read], fdt["fdt"][read]
    columns = {"fd": "fd", "most": "max_fds"}
    table, read = read_members(prog, fdt, prog.type("struct fdtable"), columns, gaps)
    files, process = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for at, (address, most) in zip(has[read].tolist(), table[read].tolist(), strict=True):
        if not most or most % 64:  # BITS_PER_LONG (alloc_fdtable(), fs/file.c)
            gaps.bytes += POINTER.itemsize
            continue
        for _, pointers in read_array(prog, address, min(most, MAX_FDS), POINTER, gaps):
            here = pointers[pointers != 0]
            files.append(here)
            process.append(np.full(len(here), at))
    return np.concatenate(files), np.concatenate(process)


def _memory_cgroups(prog: Program, sets: U64s, gaps: Gaps) -> list[str | None]:
    """The path of the memory cgroup of each task, None where there is none, or it is not known."""
    number = constant(prog, "memory_cgrp_id", -1)
    if number < 0:
        return [None] * len(sets)
    unique, back = np.unique(sets, return_inverse=True)
    columns = {"css": f"subsys[{number}]"}
    found, read = read_members(prog, unique, prog.type("struct css_set"), columns, gaps)
    css = prog.type("struct cgroup_subsys_state")
    of, known = read_members(prog, found["css"], css, {"cgroup": "cgroup"}, gaps)
    known &= read
    paths: list[str | None] = [None] * len(unique)
    for at, (path, _) in zip(
        np.flatnonzero(known).tolist(), cgroup_paths(prog, of["cgroup"][known], gaps), strict=True
    ):
        paths[at] = path
    return [paths[at] for at in back.tolist()]
