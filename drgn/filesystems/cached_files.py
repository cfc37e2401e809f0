# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The files whose pages are in memory: ``folio.mapping``, its inode (``address_space.host``), and the
``struct super_block`` of that.

The pages of each ``struct address_space`` are counted in the pass over all struct pages
(``ledger/file_pages.py``); then the address_spaces and inodes are read together, and for shared
memory the dentries, which say what it is (memfd, SysV) and whether anybody has it open. Paths are
looked up for the files that are shown.

Costs the inodes of all files with cached pages, as strewn over memory as they are: seconds for a
million.

Cannot know: by which of several names a file was opened; who has it open (``file_mappings`` has who
maps it); whether anybody has a file open that is not in tmpfs.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import Object, Program, Type, container_of
from numpy.typing import NDArray

from mmscope.drgn.filesystems.super_blocks import SuperBlocks
from mmscope.drgn.ledger.file_pages import COLUMNS, KIND_COLUMNS, FilePages
from mmscope.drgn.reading.dentry_paths import (
    alias_offset,
    dentry_name,
    is_unhashed,
    path_below,
)
from mmscope.drgn.reading.kernel_arrays import TORN, Columns, Gaps
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.scattered_reads import read_members, read_scattered

MAPPING = {"host": "host", "nrpages": "nrpages"}
INODE = {
    "sb": "i_sb",
    "ino": "i_ino",
    "links": "i_nlink",
    "size": "i_size",
    "dentry": "i_dentry.first",
}
DENTRY: Columns = {
    "name": "d_name.name",
    "count": "d_lockref.count",
    # The union has no name in 7.2.
    "next": ("d_alias.next", "d_u.d_alias.next"),
}
AT = {name: number for number, name in enumerate(COLUMNS)}
NAME_BEGINS = 8  # bytes of a dentry's name that tell what shared memory it is

KINDS = (
    *("file", "block device", "tmpfs", "memfd", "SysV", "shared anonymous", "kernel's own shmem"),
    *("hugetlbfs", "unknown"),
)
FILE, BLOCK_DEVICE, TMPFS, MEMFD, SYSV, ANONYMOUS, KERNEL, HUGETLBFS, UNKNOWN = range(len(KINDS))
SHARED_MEMORY = (TMPFS, MEMFD, SYSV, ANONYMOUS, KERNEL)
# Names in shm_mnt: memfd_create() (mm/memfd.c), newseg() (ipc/shm.c), shmem_zero_setup()
# (mm/shmem.c).
NAMES = {b"memfd:": MEMFD, b"SYSV": SYSV, b"dev/zero": ANONYMOUS}
# Which are in a directory, unless they are deleted.
HAVE_NAMES = (FILE, TMPFS)
NOT_HELD, HELD, CANNOT_TELL = 0, 1, 2


@dataclass
class CachedFiles:
    """All files with pages in memory, ascending by the address of their address_space."""

    prog: Program
    supers: SuperBlocks
    mapping: NDArray[np.uint64]
    counts: NDArray[np.uint32]  # see file_pages.COLUMNS
    of_mapping: NDArray[Any]
    inode: NDArray[Any]
    known: NDArray[np.bool_]  # whose inode and super block are
    sb: NDArray[np.int64]  # position in supers
    kind: NDArray[np.int64]
    held: NDArray[np.int64]
    others: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(COLUMNS), np.int64))
    other_rows: int = 0
    dentries_lost: int = 0  # of shared memory, that cannot be read
    gaps: Gaps = field(default_factory=Gaps)

    @property
    def pages(self) -> NDArray[np.int64]:
        """Base pages of each file."""
        total: NDArray[np.int64] = self.counts[:, : len(KIND_COLUMNS)].sum(axis=1, dtype=np.int64)
        return total

    def column(self, name: str) -> NDArray[np.int64]:
        return self.counts[:, AT[name]].astype(np.int64)

    @property
    def writes_back(self) -> NDArray[np.bool_]:
        """Files whose dirty pages are written back: ``mapping_can_writeback()``."""
        able = np.append(self.supers.writes_back, False)[self.sb]
        return np.asarray(able | (self.kind == BLOCK_DEVICE))


def read_cached_files(prog: Program, pages: FilePages, supers: SuperBlocks) -> CachedFiles:
    """
    Find the inode and the file system of each address_space.

    :raises LookupError: the kernel's layout is unknown.
    """
    pages.settle()
    gaps = Gaps()
    mapping_type, inode_type = prog.type("struct address_space"), prog.type("struct inode")
    of_mapping, there = read_members(prog, pages.mappings, mapping_type, MAPPING, gaps)
    host = np.where(there, of_mapping["host"], np.uint64(0))
    inode, known = _read_there(prog, host, inode_type, INODE, gaps)
    sb = find(supers.address, inode["sb"])
    known &= sb >= 0
    sb[~known] = len(supers.address)
    files = CachedFiles(
        prog=prog,
        supers=supers,
        mapping=pages.mappings,
        counts=pages.counts,
        of_mapping=of_mapping,
        inode=inode,
        known=known,
        sb=sb,
        kind=np.full(len(host), UNKNOWN),
        held=np.full(len(host), CANNOT_TELL),
        others=pages.others,
        other_rows=pages.other_rows,
        gaps=gaps,
    )
    _tell_kinds(files)
    return files


def _tell_kinds(files: CachedFiles) -> None:
    supers = files.supers
    of_type = {"bdev": BLOCK_DEVICE, "hugetlbfs": HUGETLBFS}
    by_sb = np.array([*(of_type.get(name, FILE) for name in supers.types), UNKNOWN], np.int64)
    files.kind = by_sb[files.sb]
    shmem = (files.kind == FILE) & (files.column("shmem") > 0)
    files.kind[shmem] = TMPFS
    at = np.flatnonzero(shmem)
    dentry, read = _dentries(files, at)
    files.dentries_lost = int(((files.inode["dentry"][at] != 0) & ~read).sum())
    inside = files.inode["sb"][at] == np.uint64(supers.shm)
    files.kind[at[inside]] = KERNEL
    ours = np.flatnonzero(inside & read)
    text = np.dtype([("text", f"S{NAME_BEGINS}")])
    starts, named = read_scattered(files.prog, dentry["name"][ours], text, Gaps())
    for begin, kind in NAMES.items():
        said = np.char.startswith(starts["text"], begin) & named
        files.kind[at[ours[said]]] = kind
    _tell_held(files, at, dentry, read)


def _dentries(files: CachedFiles, at: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A dentry of each of some files, and which of them have one that can be read."""
    type_, first = files.prog.type("struct dentry"), files.inode["dentry"][at]
    address = np.where(first != 0, first - np.uint64(alias_offset(files.prog)), np.uint64(0))
    return _read_there(files.prog, address, type_, DENTRY, Gaps())


def _read_there(
    prog: Program, address: NDArray[np.uint64], type_: Type, columns: Columns, gaps: Gaps
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """As :func:`read_members`; where an address is 0 there is nothing to read or to miss."""
    there = address != 0
    some, read = read_members(prog, address[there], type_, columns, gaps)
    found = np.zeros(len(address), some.dtype)
    found[there] = some
    there[there] = read
    return found, there


def _tell_held(
    files: CachedFiles, at: NDArray[np.int64], dentry: NDArray[Any], read: NDArray[np.bool_]
) -> None:
    """
    Find out whether shared memory is open or mapped.

    Each open ``struct file``, which a mapping has too, holds its dentry. Of tmpfs, as long as a
    file has a name, that holds it as well (``shmem_mknod()``, mm/shmem.c: dget(), or in 7.2
    d_make_persistent()); a SysV segment has a file of its own (``newseg()``, ipc/shm.c), and each
    shmat() another.
    """
    kind, linked = files.kind[at], files.inode["links"][at] > 0
    pinned = np.where((kind == SYSV) | ((kind == TMPFS) & linked), 1, 0)
    # With several names the other dentries may be held.
    single = read & (dentry["next"] == 0)
    held = np.where(single, NOT_HELD, CANNOT_TELL)
    held[read & (dentry["count"].astype(np.int64) > pinned)] = HELD
    # Without a name it would be gone if it were not in use; what kernel code has is none of these.
    held[(held == NOT_HELD) & ((pinned == 0) | (kind == KERNEL))] = CANNOT_TELL
    files.held[at] = held


def held_of(files: CachedFiles, at: int) -> bool | None:
    """True if a file is open or mapped; None if that is unknown."""
    held = int(files.held[at])
    return None if held == CANNOT_TELL else held == HELD


def deleted_of(files: CachedFiles, at: int) -> bool | None:
    """No directory has it any more; None: it never was in one."""
    if int(files.kind[at]) not in HAVE_NAMES:
        return None
    return not files.inode["links"][at]


def path_of_file(files: CachedFiles, at: int) -> str | None:
    """
    The name of a file: its path, ``memfd:NAME``, ``SYSV…`` with its key, a block device's name.

    None where it has no dentry (any more), or that cannot be read.
    """
    prog, kind = files.prog, int(files.kind[at])
    if kind == UNKNOWN:
        return None
    with contextlib.suppress(*TORN):
        if kind == BLOCK_DEVICE:
            return disk_name(prog, int(files.of_mapping["host"][at]))
        first = int(files.inode["dentry"][at])
        if not first:
            return None
        address = first - alias_offset(prog)
        dentry = Object(prog, "struct dentry", address=address).address_of_()
        if dentry.d_parent == dentry:  # in no directory
            return dentry_name(dentry)
        path, _ = path_below(prog, address, files.supers.roots(int(files.sb[at])))
        return f"{path} (deleted)" if path is not None and is_unhashed(dentry) else path
    return None


def disk_name(prog: Program, inode: int) -> str:
    """
    The name of a block device, ``bdevname()`` (block/genhd.c).

    :raises FaultError: it cannot be read.
    """
    found = Object(prog, "struct inode", address=inode).address_of_()
    device = container_of(found, "struct bdev_inode", "vfs_inode").bdev
    # char [32]: DISK_NAME_LEN
    disk = device.bd_disk.disk_name.address_of_()
    raw: bytes = prog.read_c_string(disk.value_(), max_size=32)
    name = raw.decode("utf-8", "backslashreplace")
    number = _partition(device)
    if not number:
        return name
    return f"{name}p{number}" if name[-1:].isdigit() else f"{name}{number}"


def _partition(device: Object) -> int:
    """
    Its number; with flags in one word since "bdev: infrastructure for flags" (1116b9fa15c0, in
    v6.10).
    """
    with contextlib.suppress(AttributeError):
        return int(device.bd_partno.value_())
    return int(device.__getattribute__("__bd_flags").counter.value_()) & 0xFF


def largest(files: CachedFiles, most: int) -> list[int]:
    """The positions of the files with the most pages."""
    order: Sequence[int] = np.argsort(-files.pages, kind="stable")[:most].tolist()
    return list(order)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("cached_files")
