# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The tables of cached files: the largest of them, all of them by file system, and the kernel's
counters beside their sums.
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.filesystems.cached_files import (
    AT,
    FILE,
    HUGETLBFS,
    KINDS,
    NOT_HELD,
    SHARED_MEMORY,
    SYSV,
    TMPFS,
    UNKNOWN,
    CachedFiles,
    deleted_of,
    held_of,
    largest,
    path_of_file,
)
from mmscope.drgn.filesystems.super_blocks import Mounted
from mmscope.drgn.ledger.file_pages import KIND_COLUMNS
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Inside, Table

MAX_FILES_SHOWN = 100
MAX_FILE_SYSTEMS = 1000
OTHERS = "others"
# Of whom the kernel's own PG_dirty says nothing: their pages are written nowhere but to swap.
NEVER_DIRTY = (*SHARED_MEMORY, HUGETLBFS, UNKNOWN)
# Of whom it can be told whether anybody has them.
MAY_BE_LEFT = (TMPFS, SYSV)


@table_row
class CachedFile:
    """A file and its pages in memory."""

    path: str | None = column(
        holds="file",
        help="where its file system is mounted for init, else in another mount namespace, else "
        "from the root of its file system; empty: no dentry has its name any more",
    )
    kind: str = column(
        holds="words",
        help="file; block device: its own pages (Buffers of /proc/meminfo); tmpfs; memfd; SysV: "
        "shared memory of shmget(); shared anonymous: mmap() without a file; kernel's own shmem: a "
        "driver's; hugetlbfs; unknown: its inode or file system cannot be read",
    )
    filesystem: str | None = column(holds="kernel", help="type of its file system")
    pages: int = column(unit="pages", help="of it in memory")
    bytes: int = column(unit="bytes", help="of these pages")
    percent: float = column(unit="%", help="of all present pages")
    dirty_pages: int | None = column(
        unit="pages",
        high="pages",
        help="waiting to be written back; empty: they never are, at most swapped out",
    )
    writeback_pages: int = column(unit="pages", high="pages", help="that are being written")
    mlocked_pages: int = column(unit="pages", high="pages", help="locked with mlock()")
    unevictable_pages: int = column(
        unit="pages", high="pages", help="on the unevictable list: locked, or of ramfs"
    )
    active_pages: int = column(unit="pages", high="pages", help="with PG_active")
    deleted: bool | None = column(
        help="no directory has it any more (i_nlink is 0); empty: it never was in one"
    )
    held: bool | None = column(
        help="it is open or mapped, by the references to its dentry; empty: that cannot "
        "be told, as of all that is not in tmpfs"
    )
    size_bytes: int | None = column(high=1 << 63, help="i_size")
    device: str | None = column(holds="kernel", help="major:minor, as in /proc/PID/maps")
    # Some file systems use all 64 bits, which not every table's integers hold.
    inode: str | None = column(holds="kernel", help="i_ino; of SysV shared memory the shmid")
    address_space: str = column(
        holds="kernel", key=True, help="address of the struct address_space"
    )


CACHED_FILES = Table(
    "cached_files",
    "Files with the most pages in memory",
    CachedFile,
    empty="No file has pages in memory.",
    memory="again",
    measure="pages",
    lasting=("kind", "path"),
    inside=(
        Inside(
            "page cache",
            "pages",
            ("kind", tuple(kind for kind in KINDS if kind != KINDS[HUGETLBFS])),
        ),
        Inside("hugetlb", "pages", ("kind", (KINDS[HUGETLBFS],))),
    ),
)


@table_row
class CachedFilesystem:
    """All files of one kind in one file system."""

    kind: str = column(holds="words", key=True, help="as in cached_files")
    filesystem: str | None = column(holds="kernel", help="type of the file system")
    mount: str | None = column(
        holds="file", help="where it is mounted; empty: nowhere, it is the kernel's own"
    )
    files: int = column(help="files with pages in memory")
    pages: int = column(unit="pages", help="of them")
    bytes: int = column(unit="bytes", help="of these pages")
    percent: float = column(unit="%", help="of all present pages")
    dirty_pages: int | None = column(
        unit="pages",
        high="pages",
        help="waiting to be written back; empty: they never are, at most swapped out",
    )
    writeback_pages: int = column(unit="pages", high="pages", help="that are being written")
    mlocked_pages: int = column(unit="pages", high="pages", help="locked with mlock()")
    unevictable_pages: int = column(
        unit="pages", high="pages", help="on the unevictable list: locked, or of ramfs"
    )
    active_pages: int = column(unit="pages", high="pages", help="with PG_active")
    deleted_files: int | None = column(high="files", help="files that no directory has any more")
    deleted_pages: int | None = column(unit="pages", high="pages", help="of those")
    left_files: int | None = column(
        high="files", help="files that are neither open nor mapped; empty: that cannot be told"
    )
    left_pages: int | None = column(unit="pages", high="pages", help="of those")
    mounted_by_init: bool | None = column(
        help="whether that is in init's mount namespace, or in another"
    )
    id: str | None = column(holds="kernel", help="s_id: the block device it is on, if on one")
    device: str | None = column(holds="kernel", help="major:minor, as in /proc/PID/maps")
    superblock: str = column(
        holds="kernel",
        key=True,
        help="address of the struct super_block; others: of those with the fewest pages",
    )


CACHED_FILESYSTEMS = Table(
    "cached_filesystems",
    "Files in memory by file system",
    CachedFilesystem,
    empty="No file has pages in memory.",
    memory="again",
    measure="pages",
    lasting=("kind", "filesystem", "mount"),
)


@table_row
class CachedFileCheck:
    """A counter of the kernel beside the pages of files that were counted."""

    counter: str = column(
        holds="kernel", key=True, help="a line of /proc/vmstat, or a member of address_space"
    )
    pages: int = column(unit="pages", help="counted page by page")
    kernel_pages: int = column(unit="pages", low=None, high=None, help="by the kernel's counter")
    difference_pages: int = column(
        unit="pages", low=None, high=None, help="pages, less kernel_pages"
    )
    may_differ: str = column(holds="words", help="why they may differ on a healthy machine")


CACHED_FILE_CHECKS = Table(
    "cached_file_checks",
    "Pages of files beside the kernel's counters",
    CachedFileCheck,
    not_compared="its pages are those of cached_filesystems",
)


def file_rows(files: CachedFiles, present: int, most: int = MAX_FILES_SHOWN) -> list[CachedFile]:
    """
    The files with the most pages, the largest first.

    :param present: present pages of the machine.
    """
    size, pages = int(files.prog["PAGE_SIZE"].value_()), files.pages
    able, supers = files.writes_back, files.supers
    rows = []
    for at in largest(files, most):
        counts = dict(zip(AT, files.counts[at].tolist(), strict=True))
        known = bool(files.known[at])
        kind, sb, count = int(files.kind[at]), int(files.sb[at]), int(pages[at])
        inode = files.inode[at]
        rows.append(
            CachedFile(
                path=path_of_file(files, at),
                kind=KINDS[kind],
                filesystem=supers.types[sb] if known else None,
                pages=count,
                bytes=count * size,
                percent=100 * count / present if present else 0.0,
                dirty_pages=counts["dirty"] if able[at] and kind not in NEVER_DIRTY else None,
                writeback_pages=counts["writeback"],
                mlocked_pages=counts["mlocked"],
                unevictable_pages=counts["unevictable"],
                active_pages=counts["active"],
                deleted=deleted_of(files, at) if known else None,
                held=held_of(files, at),
                size_bytes=max(int(inode["size"]), 0) if known else None,
                device=supers.device(sb) if known else None,
                inode=str(int(inode["ino"])) if known else None,
                address_space=hex(int(files.mapping[at])),
            )
        )
    return rows


def filesystem_rows(
    files: CachedFiles, present: int, most: int = MAX_FILE_SYSTEMS
) -> list[CachedFilesystem]:
    """All files by file system and kind, those with the most pages first."""
    groups, back = np.unique(files.sb * len(KINDS) + files.kind, return_inverse=True)

    def total(values: NDArray[Any]) -> NDArray[np.int64]:
        return np.bincount(back, values, minlength=len(groups)).astype(np.int64)

    deleted = (files.inode["links"] == 0) & np.isin(files.kind, (FILE, TMPFS))
    left, pages = files.held == NOT_HELD, files.pages
    sums = {name: total(files.column(name)) for name in AT} | {
        "files": total(np.ones(len(back))),
        "pages": total(pages),
        "deleted_files": total(deleted),
        "deleted_pages": total(np.where(deleted, pages, 0)),
        "left_files": total(left),
        "left_pages": total(np.where(left, pages, 0)),
    }
    able = np.zeros(len(groups), np.bool_)
    able[back] = files.writes_back
    order = np.argsort(-sums["pages"], kind="stable").tolist()
    rows = []
    for at in order[:most]:
        sb, kind = divmod(int(groups[at]), len(KINDS))
        have = {name: int(values[at]) for name, values in sums.items()}
        rows.append(_filesystem_row(files, sb, kind, have, bool(able[at]), present))
    return rows + _others(
        files, {name: values[order[most:]] for name, values in sums.items()}, present
    )


def _filesystem_row(
    files: CachedFiles, sb: int, kind: int, have: dict[str, int], able: bool, present: int
) -> CachedFilesystem:
    supers, known = files.supers, sb < len(files.supers.address)
    mounted = supers.mounted(sb) if known else Mounted(None, None)
    # Who never was in a directory, or of whom it cannot be told, has nothing to say there.
    deleted, left = kind in (FILE, TMPFS), kind in MAY_BE_LEFT
    return CachedFilesystem(
        kind=KINDS[kind],
        filesystem=supers.types[sb] if known else None,
        mount=mounted.path,
        files=have["files"],
        pages=have["pages"],
        bytes=have["pages"] * int(files.prog["PAGE_SIZE"].value_()),
        percent=100 * have["pages"] / present if present else 0.0,
        dirty_pages=have["dirty"] if able and kind not in NEVER_DIRTY else None,
        writeback_pages=have["writeback"],
        mlocked_pages=have["mlocked"],
        unevictable_pages=have["unevictable"],
        active_pages=have["active"],
        deleted_files=have["deleted_files"] if deleted else None,
        deleted_pages=have["deleted_pages"] if deleted else None,
        left_files=have["left_files"] if left else None,
        left_pages=have["left_pages"] if left else None,
        mounted_by_init=mounted.by_init,
        id=supers.ids[sb] if known else None,
        device=supers.device(sb) if known else None,
        superblock=hex(int(supers.address[sb])) if known else "unknown",
    )


def _others(
    files: CachedFiles, sums: dict[str, NDArray[np.int64]], present: int
) -> list[CachedFilesystem]:
    """One row of the file systems beyond those shown, and of the files that were too many."""
    have = {name: int(values.sum()) for name, values in sums.items()}
    for name, at in AT.items():
        have[name] += int(files.others[at])
    have["files"] += files.other_rows
    have["pages"] = sum(have[name] for name in KIND_COLUMNS)
    if not have["files"]:
        return []
    row = _filesystem_row(files, len(files.supers.address), UNKNOWN, have, False, present)
    return [dataclasses.replace(row, superblock=OTHERS)]


def checks(files: CachedFiles, vmstat: dict[str, int]) -> list[CachedFileCheck]:
    """
    The kernel's own counts of the same pages.

    :param vmstat: lines of /proc/vmstat; those that are missing are left out.
    """
    dirty = int(files.column("dirty")[files.writes_back].sum())
    writeback = int(files.column("writeback").sum() + files.others[AT["writeback"]])
    rows = [
        CachedFileCheck(name, ours, vmstat[name], ours - vmstat[name], why)
        for name, ours, why in (
            ("nr_dirty", dirty, "a page is marked before it is counted"),
            ("nr_writeback", writeback, "pages of the swap cache are in the counter"),
        )
        if name in vmstat
    ]
    # Of hugetlbfs nrpages were huge pages before v6.7.
    ours = files.known & (files.kind != HUGETLBFS)
    counted, kept = int(files.pages[ours].sum()), int(files.of_mapping["nrpages"][ours].sum())
    rows.append(
        CachedFileCheck(
            "nrpages",
            counted,
            kept,
            counted - kept,
            "pages that are bad are in it; what is read with DAX too",
        )
    )
    return rows


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("cached_files")
