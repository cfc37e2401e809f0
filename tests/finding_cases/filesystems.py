# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about files in memory, shared memory and dentries."""

import dataclasses
from typing import Any

from finding_cases.case import Case
from finding_cases.rows import pages_of

from mmscope.drgn.filesystems.cached_files import CachedFile, CachedFilesystem
from mmscope.drgn.filesystems.dentry_cache import DentryCount, FilesystemDentries


def cached(path: str | None, percent: float, **changes: Any) -> CachedFile:
    """A file with so much of a million pages in memory."""
    row = CachedFile(
        path, "file", "ext4", int(10_000 * percent), 0, percent, 5, 0, 0, 0, 9, False, None,
        40 << 30, "fd:00", "77", "0xff00"
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def on_filesystem(kind: str, percent: float, left: float, **changes: Any) -> CachedFilesystem:
    """Files of a file system: so much of a million pages, and so much of it left behind."""
    row = CachedFilesystem(
        kind, "tmpfs", "/tmp", 40, int(10_000 * percent), 0, percent, None, 0, 0, 0, 0, 0, 0, 7,
        int(10_000 * left), True, "tmpfs", "00:19", "0xff10"
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def dentries(negative: int, all_of_them: int) -> list[DentryCount]:
    return [
        DentryCount("dentry_stat.nr_dentry", all_of_them, None, None),
        DentryCount("dentry_stat.nr_negative", negative, None, None),
    ]


FEW_DENTRIES = FilesystemDentries(
    "overlay", "/var/lib", 1_000, 900, 0, 0, 3, 0, 200_000, 200_000, 0, True, "overlay", "00:30",
    "0xff20"
)  # fmt: skip

FOUND: dict[str, Case] = {
    "a deleted file of tmpfs": Case(
        "deleted-file-in-memory",
        [cached("/run/x (deleted)", 12.0, kind="tmpfs", deleted=True, dirty_pages=None),
         cached("/y (deleted)", 1.0, deleted=True), cached("/z", 30.0),
         pages_of("nr_free_pages", 90_000)],
        ["A deleted file holds 468.8 MiB, 12.0 % of memory: /run/x (deleted)",
         "inode 77 on device fd:00, kind tmpfs: 120,000 pages in memory; it is in no "
         "directory. 1 other such file of table cached_files: 39.06 MiB.",
         "A file of tmpfs, or a memfd, is"],
        "warning", ["df counts"],
    ),
    "shared memory that was unlinked when it was made": Case(
        "deleted-file-in-memory",
        [cached("/dev/shm/torch_7 (deleted)", 30.0, kind="tmpfs", deleted=True),
         pages_of("nr_inactive_file", 300_000)],
        ["30.0 % of memory: /dev/shm/torch_7"], "notice",
    ),
    "memfds that take what there is, each of them a little": Case(
        "deleted-file-in-memory",
        [*(cached(f"memfd:frame{n}", 4.0, kind="memfd", deleted=None) for n in range(3)),
         pages_of("nr_free_pages", 90_000)],
        ["3 deleted files hold 468.8 MiB, 12.0 % of memory; the largest: memfd:frame0"],
        "warning",
    ),
    "a deleted log": Case(
        "deleted-file-in-memory", [cached("/var/log/a (deleted)", 6.0, deleted=True)],
        ["5 of them dirty", "df counts its space"], "notice", ["A file of tmpfs"],
    ),
    "a core dump in the page cache": Case(
        "one-file-in-memory", [cached("/var/core", 61.0), cached("/x", 70.0, kind="tmpfs")],
        ["One file holds 2.327 GiB, 61.0 % of memory: /var/core",
         "40 GiB in size: 610,000 pages in memory, 9 of them active, 5 dirty"],
        "notice",
    ),
    "files of tmpfs that nobody has": Case(
        "shmem-left-behind",
        [on_filesystem("tmpfs", 12.0, 8.0), on_filesystem("SysV", 9.0, 4.0, superblock="0xff11"),
         cached("SYSV0052e2c1", 4.0, kind="SysV", held=False, inode="32769"),
         cached("/tmp/a", 6.0, kind="tmpfs", held=False)],
        ["14 files and segments that no process uses hold 468.8 MiB of shared memory, 12.0 % of",
         "156.2 MiB of it are SysV segments",
         "The largest: /tmp/a: 60000 pages, SYSV0052e2c1 (shmid 32769): 40000 pages"],
        "notice",
    ),
    "a quarter of memory that nobody has": Case(
        "shmem-left-behind", [on_filesystem("tmpfs", 30.0, 26.0)], ["26.0 % of memory"], "warning",
        ["SysV segments", "The largest"],
    ),
    "more negative dentries than others": Case(
        "negative-dentries", [*dentries(3_000_000, 3_500_000), FEW_DENTRIES],
        ["3,000,000 negative dentries take 572.2 MiB, 14.0 % of memory",
         "Of 3,500,000 dentries, 3,000,000 are of names", "200 bytes each",
         "The file system with the most: /var/lib: 900"],
        "warning",
    ),
    "negative dentries by the kernel's count alone": Case(
        "negative-dentries", dentries(600_000, 700_000), ["2.7 % of memory", "192 bytes each"],
        "notice", ["with the most"],
    ),
}  # fmt: skip

CLEAR: dict[str, Case] = {
    "a small deleted file": Case(
        "deleted-file-in-memory",
        [cached("/a (deleted)", 4.0, deleted=True),
         cached("memfd:b", 40.0, kind="memfd", deleted=None)],
    ),
    "a file that is cached, as others are": Case("one-file-in-memory", [cached("/db", 45.0)]),
    "a deleted file, which has a finding of its own": Case(
        "one-file-in-memory", [cached("/db (deleted)", 80.0, deleted=True)]
    ),
    "shared memory that somebody has": Case(
        "shmem-left-behind",
        [on_filesystem("tmpfs", 60.0, 3.0), on_filesystem("file", 40.0, 0, left_pages=None)],
    ),
    "a system that runs from its initramfs": Case(
        "shmem-left-behind",
        [on_filesystem("tmpfs", 60.0, 50.0, filesystem="rootfs", mount=None),
         on_filesystem("tmpfs", 60.0, 50.0, mount="/", superblock="0xff12")],
    ),
    "negative dentries among others": Case("negative-dentries", dentries(5_000_000, 11_000_000)),
    "few negative dentries": Case("negative-dentries", dentries(200_000, 210_000)),
}  # fmt: skip

NOT_CHECKED: dict[str, Case] = {
    "no file was read": Case(
        "deleted-file-in-memory", [], why_not="no table cached_files in this bundle"
    ),
    "no file was read, of any size": Case(
        "one-file-in-memory", [], why_not="no table cached_files in this bundle"
    ),
    "no file system was read": Case(
        "shmem-left-behind", [], why_not="no table cached_filesystems in this bundle"
    ),
    "dentries that nobody counted": Case(
        "negative-dentries", [], why_not="no table dentry_counts in this bundle"
    ),
}  # fmt: skip
