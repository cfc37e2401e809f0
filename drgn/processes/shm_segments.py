# SPDX-License-Identifier: LGPL-2.1-or-later
"""
SysV shared memory as /proc/sysvipc/shm has it (``sysvipc_shm_proc_show()``, ipc/shm.c): what is in
memory of each segment, who made it, and how many have it attached.

Costs a read of that file. Of a kernel's memory it is not read: ``cached_files`` has the segments of
all IPC namespaces there. Cannot know: segments of other IPC namespaces than the reader's; whether a
process has its creator's pid by now.
"""

from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PIDS, column
from mmscope.drgn.tables.table import table
from mmscope.drgn.text.proc_text import parse_segments


@table(
    "shm_segments",
    "SysV shared memory, by text",
    measure="rss_bytes",
    since="0.3.0",
    empty="There is no segment.",
)
class ShmSegment:
    """A segment of /proc/sysvipc/shm."""

    shmid: int = column(key=True, high=1 << 31, help="its number, as ipcs has it")
    key: str = column(holds="kernel", help="that it was made with; 0x00000000: IPC_PRIVATE")
    size_bytes: int = column(unit="bytes", high=MOST_BYTES, help="that was asked for")
    rss_bytes: int = column(unit="bytes", high=MOST_BYTES, help="in memory")
    swap_bytes: int = column(unit="bytes", high=MOST_BYTES, help="in swap")
    attached: int = column(high=1 << 40, help="nattch: attachments of all processes")
    creator_pid: int = column(high=MOST_PIDS, help="cpid; 0: of another pid namespace")
    creator_uid: int = column(high=1 << 32, help="cuid: effective uid of the creator")


def read_segments(files: Files) -> list[ShmSegment] | None:
    """
    All segments, those with most in memory first; None: the kernel has none, or it is not copied.

    :raises ValueError: the file is damaged.
    """
    try:
        text = files.read("proc/sysvipc/shm")
    except Absent:
        return None
    rows = [
        ShmSegment(
            row.shmid,
            f"{row.key & 0xFFFFFFFF:#010x}",
            *(row.size, row.rss, row.swap, row.nattch, row.cpid, row.cuid),
        )
        for row in parse_segments(text)
    ]
    return sorted(rows, key=lambda row: (-row.rss_bytes, row.shmid))


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("process_memory")
