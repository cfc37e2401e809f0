# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of a running host that processes hold by files they have open, and that is in no counter of
theirs: files of shared memory (:mod:`~mmscope.drgn.processes.shared_files`), where Shmem is a tenth
of memory or more, or many cgroups were removed and something keeps them; and buffers of sockets
(:mod:`~mmscope.drgn.processes.socket_memory`).

Costs a link for each open file. Of a kernel's memory ``cached_files`` and ``page_holders`` have the
same. Cannot know: of a copied tree, anything: it has neither links nor sizes.
"""

import contextlib
from collections.abc import Iterator

from mmscope.drgn.cgroups.cgroup_files import V2_ROOTS, numbers
from mmscope.drgn.processes.shared_files import shared_files
from mmscope.drgn.processes.socket_memory import socket_memory
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.section import Found
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PIDS, column
from mmscope.drgn.tables.table import table
from mmscope.drgn.text.meminfo import read_sizes

# Of memory: that files of shared memory are worth looking for, and that one has a row of its own.
SHARED_PART, PART = 0.1, 0.01
# Removed cgroups, that a smaller file may keep them; of shared memory, that one has a row then.
MANY_DYING, PART_OF_SHARED = 1000, 0.1


@table(
    "shared_files",
    "Files of shared memory, by text",
    measure="bytes",
    since="0.3.0",
    empty="No file is large enough.",
)
class SharedFile:
    """
    A file of a tmpfs or a memfd with a hundredth of memory or more; where many cgroups were
    removed, with a tenth of all shared memory.
    """

    name: str = column(
        key=True, holds="file", help="path, or memfd:NAME; (deleted): in no directory any more"
    )
    pid: int | None = column(
        key=True, high=MOST_PIDS, help="that has it open, the first of several; empty: none"
    )
    comm: str | None = column(holds="comm", help="name of that process")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="in memory or swap")
    held: bool | None = column(
        help="open; empty: in no process that could be looked at, or it may be mapped"
    )


@table(
    "socket_buffers",
    "Buffers of sockets, by text",
    measure="bytes",
    since="0.3.0",
    empty="No socket is there.",
)
class SocketBuffers:
    """What is in the buffers of a process's sockets."""

    comm: str = column(
        key=True,
        holds="comm",
        help="process that has them open; all: of all, a hundredth of memory at most",
    )
    pid: int | None = column(key=True, high=MOST_PIDS, help="of that process")
    bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="received and not read, sent and not taken (truesize)"
    )
    sockets: int = column(help="that it has open")


def add_held_open(files: Files, found: Found, mapped: int) -> None:
    """
    Add both tables, of a running host; why one is not there is a remark.

    :param mapped: bytes of shared memory that all processes together have mapped.
    """
    if not files.live:
        return
    root = str(files.root)
    try:
        sizes = read_sizes(files.read("proc/meminfo"))
        total, shmem = sizes["MemTotal"], sizes["Shmem"]
        least = PART * total
        many_dying = _dying(files) >= MANY_DYING
        if many_dying:
            least = min(least, PART_OF_SHARED * shmem)
        if many_dying or shmem >= SHARED_PART * total:
            found.add(SharedFile, list(_shared(root, int(least), mapped)))
    except (OSError, ValueError, LookupError) as error:
        found.remarks.append(f"who has files of shared memory open was not read: {error}")
        total = 0
    try:
        held = sorted(socket_memory(root, int(PART * total)), key=lambda row: -row[1])
    except (OSError, ValueError) as error:
        found.remarks.append(f"memory of sockets was not read: {error}")
    else:
        found.add(SocketBuffers, [SocketBuffers(*who, size, many) for who, size, many in held])


def _dying(files: Files) -> int:
    """Cgroups that were removed and are not freed."""
    for root in V2_ROOTS:
        with contextlib.suppress(OSError):
            return numbers(files.open(f"{root}/cgroup.stat")).get("nr_dying_descendants", 0)
    return 0


def _shared(root: str, least: int, mapped: int) -> Iterator[SharedFile]:
    for row in sorted(shared_files(root, least), key=lambda row: -row.bytes):
        # One that no process has open may be mapped, unless hardly any shared memory is.
        held = None if row.open is False and mapped >= 0.1 * row.bytes else row.open
        yield SharedFile(row.name, row.pid, row.comm, row.bytes, held)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("process_memory")
