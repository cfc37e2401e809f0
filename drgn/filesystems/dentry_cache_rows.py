# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The tables of dentries and inodes: by file system, and the kernel's counts beside their sums.

The text that has the counts is /proc/sys/fs/dentry-state and /proc/sys/fs/inode-nr; none has file
systems.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmscope.drgn.filesystems.dentry_cache import STATISTICS, DentryCache
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table
from mmscope.drgn.text.kernel_text import printed_number, whole_lines

MAX_FILE_SYSTEMS = 1000
OTHERS = "others"


@table_row
class FilesystemDentries:
    """The dentries and inodes of one file system."""

    filesystem: str | None = column(holds="kernel", help="type of the file system")
    mount: str | None = column(
        holds="file", help="where it is mounted; empty: nowhere, it is the kernel's own"
    )
    dentries: int = column(help="dentries: names of files, and of what is not there")
    negative: int = column(high="dentries", help="names that were looked up and are not there")
    unused: int = column(high="dentries", help="on the LRU list: reclaim may take them")
    unused_negative: int = column(high="unused", help="negative ones of these")
    inodes: int = column(help="inodes in memory")
    unused_inodes: int = column(high="inodes", help="on the LRU list: reclaim may take them")
    bytes: int = column(
        unit="bytes", help="slots of these dentries and inodes in their slab caches"
    )
    dentry_bytes: int = column(
        unit="bytes",
        high="bytes",
        help="of the dentries; long names are kmalloc memory beside them",
    )
    inode_bytes: int = column(unit="bytes", high="bytes", help="of the inodes")
    mounted_by_init: bool | None = column(
        help="whether that is in init's mount namespace, or in another"
    )
    id: str | None = column(holds="kernel", help="s_id: the block device it is on, if on one")
    device: str | None = column(holds="kernel", help="major:minor, as in /proc/PID/maps")
    superblock: str = column(
        holds="kernel",
        key=True,
        help="address of the struct super_block; others: of those with the fewest bytes",
    )


FILESYSTEM_DENTRIES = Table(
    "filesystem_dentries",
    "Dentries and inodes by file system",
    FilesystemDentries,
    memory="again",
    measure="bytes",
    lasting=("filesystem", "mount"),
)


@table_row
class DentryCount:
    """What the kernel counts of all dentries or inodes."""

    counter: str = column(
        holds="kernel",
        key=True,
        help="member of dentry_stat (/proc/sys/fs/dentry-state) or inodes_stat (inode-nr)",
    )
    kernel_says: int = column(help="the kernel's count")
    found: int | None = column(help="found in the slab caches; empty: not looked for")
    difference: int | None = column(low=None, help="found, less kernel_says")


DENTRY_COUNTS = Table(
    "dentry_counts",
    "Dentries and inodes by the kernel's counts",
    DentryCount,
    measure="kernel_says",
)
# By the name of the counter, the sum that should be the same.
SAME = dict(
    zip(
        STATISTICS,
        ("dentries", "unused", "unused_negative", "inodes", "unused_inodes"),
        strict=True,
    )
)


def filesystem_dentry_rows(
    cache: DentryCache, most: int = MAX_FILE_SYSTEMS
) -> list[FilesystemDentries]:
    """All file systems that have any, those with the most bytes first."""
    supers = cache.supers
    sums = cache.sums | {"bytes": cache.sums["dentry_bytes"] + cache.sums["inode_bytes"]}
    order = np.argsort(-sums["bytes"], kind="stable")
    order = order[sums["bytes"][order] > 0]
    rows = []
    for at in order[:most].tolist():
        mounted = supers.mounted(at)
        rows.append(
            FilesystemDentries(
                filesystem=supers.types[at],
                mount=mounted.path,
                mounted_by_init=mounted.by_init,
                id=supers.ids[at],
                device=supers.device(at),
                superblock=hex(int(supers.address[at])),
                **{name: int(values[at]) for name, values in sums.items()},
            )
        )
    if len(rest := order[most:]):
        row: dict[str, Any] = dict.fromkeys(
            ("filesystem", "mount", "mounted_by_init", "id", "device")
        )
        row |= {name: int(values[rest].sum()) for name, values in sums.items()}
        rows.append(FilesystemDentries(superblock=OTHERS, **row))
    return rows


def dentry_count_rows(
    says: Mapping[str, int], cache: DentryCache | None = None
) -> list[DentryCount]:
    """
    The kernel's counts, and what was found.

    :param says: by names of :data:`STATISTICS`.
    """
    rows = []
    for name, count in says.items():
        found = None if cache is None else int(cache.sums[SAME[name]].sum())
        rows.append(DentryCount(name, count, found, None if found is None else found - count))
    return rows


def read_dentry_state(text: str) -> dict[str, int]:
    """
    /proc/sys/fs/dentry-state, ``struct dentry_stat_t`` (fs/dcache.c): dentries, unused ones, two
    that are constants or 0, negative unused ones, and one that is 0.

    :raises ValueError: the text is something else.
    """
    dentries, unused, _, _, negative, _ = _numbers(text, 6, "/proc/sys/fs/dentry-state")
    return {
        "dentry_stat.nr_dentry": dentries,
        "dentry_stat.nr_unused": unused,
        "dentry_stat.nr_negative": negative,
    }


def read_inode_nr(text: str) -> dict[str, int]:
    """
    /proc/sys/fs/inode-nr: inodes, and unused ones (``struct inodes_stat_t``, fs/inode.c).

    :raises ValueError: the text is something else.
    """
    inodes, unused = _numbers(text, 2, "/proc/sys/fs/inode-nr")
    return {"inodes_stat.nr_inodes": inodes, "inodes_stat.nr_unused": unused}


def _numbers(text: str, count: int, name: str) -> list[int]:
    words = text.split()
    if (
        len(whole_lines(text, name)) != 1
        or len(words) != count
        or not all(re.fullmatch("[0-9]{1,20}", word) for word in words)
    ):
        raise ValueError(f"{name} is damaged: {text[:60]!r}")
    return [printed_number(word, name) for word in words]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("dentries")
