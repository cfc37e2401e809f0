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
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import (
    FaultError,
    Object,
    Program,
    ProgramFlags,
    Type,
    TypeKind,
    container_of,
    offsetof,
    sizeof,
)
from drgn.helpers.linux.percpu import percpu_counter_sum

from mmscope.drgn.filesystems.super_blocks import (
    SuperBlocks,
    links_apart,
    note_mounts,
    super_blocks_once,
)
from mmscope.drgn.ledger.file_pages import COLUMNS, KIND_COLUMNS, FilePages
from mmscope.drgn.ledger.memory_ledger import ledger_pages
from mmscope.drgn.machine.vm_counters import drift, vm_counters_once
from mmscope.drgn.processes.open_files import open_files
from mmscope.drgn.reading.dentry_paths import alias_offset, dentry_name, is_unhashed, path_below
from mmscope.drgn.reading.kernel_arrays import TORN, Array, Bools, Columns, Gaps, S64s, U32s, U64s
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.rwsem_counts import lock_counts, lock_word
from mmscope.drgn.reading.scattered_reads import read_members, read_scattered
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import (
    PASS_SECONDS,
    TOP,
    Against,
    Command,
    Found,
    Section,
    not_in_text,
)
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import Inside, table, tables_of

MAPPING = {"host": "host", "nrpages": "nrpages", "tree": "i_mmap.rb_root.rb_node"}
INODE = {
    "sb": "i_sb",
    "ino": "i_ino",
    "links": "i_nlink",
    "size": "i_size",
    "dentry": "i_dentry.first",
    "flags": "i_flags",
}
DENTRY: Columns = {
    "name": "d_name.name",
    "length": "d_name.len",
    "count": "d_lockref.count",
    "inode": "d_inode",
    "hashed": "d_hash.pprev",
    # The union has no name in 7.2.
    "next": ("d_alias.next", "d_u.d_alias.next"),
}
AT = {name: number for number, name in enumerate(COLUMNS)}
DEAD = -128  # lockref_mark_dead()
MOST_BAD = 64  # pages of one file: more fail on no machine
S_DAX = 1 << 13  # include/linux/fs.h: a macro, the same from 5.10 to 7.3
MOST_HOLD = 1 << 28  # a dentry: as many open files take 50 GiB
# References of a dentry that are no open file's: of who looks it up, watches it, or mounts on it.
MOST_OTHERS = 1 << 12
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
# Whose dirty pages are written nowhere but to swap.
NEVER_DIRTY = (*SHARED_MEMORY, HUGETLBFS, UNKNOWN)
# Of which it is known whether they are open or mapped.
MAY_BE_LEFT = (TMPFS, SYSV)
NOT_HELD, HELD, UNKNOWN_HOLDER = range(3)
MAX_FILES_SHOWN = 100
MAX_FILE_SYSTEMS = 1000
OTHERS = "others"


@table(
    "cached_files",
    "Files with the most pages in memory",
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
class CachedFile:
    """A file and its pages in memory."""

    path: str | None = column(
        holds="file",
        help="from init's mount, another namespace's, or the file system's root; empty: no "
        "name any more",
    )
    kind: str = column(
        holds="words",
        help="file, tmpfs, memfd, hugetlbfs; block device: Buffers of /proc/meminfo; SysV; "
        "shared anonymous: mmap() without a file; kernel's own shmem; unknown: unreadable",
    )
    filesystem: str | None = column(holds="kernel", help="type of its file system")
    pages: int = column(unit="pages", help="in memory")
    bytes: int = column(unit="bytes", help="of these pages")
    percent: float = column(unit="%", help="of all present pages")
    dirty_pages: int | None = column(
        unit="pages",
        high="pages",
        help="waiting for writeback; empty: never written back, at most swapped",
    )
    writeback_pages: int = column(unit="pages", high="pages", help="being written")
    mlocked_pages: int = column(unit="pages", high="pages", help="locked with mlock()")
    unevictable_pages: int = column(unit="pages", high="pages", help="mlocked, or of ramfs")
    active_pages: int = column(unit="pages", high="pages", help="with PG_active")
    deleted: bool | None = column(help="in no directory any more; empty: never was")
    held: bool | None = column(help="open or mapped; empty: unknown (known for tmpfs only)")
    size_bytes: int | None = column(high=1 << 63, help="i_size")
    device: str | None = column(holds="kernel", help="major:minor, as in /proc/PID/maps")
    # Some file systems use all 64 bits, which not every table's integers hold.
    inode: str | None = column(holds="kernel", help="i_ino; SysV shared memory: shmid")
    address_space: str = column(
        holds="kernel", key=True, help="address of the struct address_space"
    )
    droppable_pages: int | None = column(
        unit="pages",
        high="pages",
        since="0.3.0",
        default=None,
        help="clean, not mapped, not pinned: what drop_caches frees",
    )


@table(
    "cached_filesystems",
    "Files in memory by file system",
    empty="No file has pages in memory.",
    memory="again",
    measure="pages",
    lasting=("kind", "filesystem", "mount"),
)
class CachedFilesystem:
    """All files of one kind in one file system."""

    kind: str = column(holds="words", key=True, help="as in cached_files")
    filesystem: str | None = column(holds="kernel", help="type of the file system")
    mount: str | None = column(
        holds="file", help="mount point; empty: not mounted, the kernel's own"
    )
    files: int = column(help="files with cached pages")
    pages: int = column(unit="pages", help="of them")
    bytes: int = column(unit="bytes", help="of these pages")
    percent: float = column(unit="%", help="of all present pages")
    dirty_pages: int | None = column(
        unit="pages",
        high="pages",
        help="waiting for writeback; empty: never written back, at most swapped",
    )
    writeback_pages: int = column(unit="pages", high="pages", help="being written")
    mlocked_pages: int = column(unit="pages", high="pages", help="locked with mlock()")
    unevictable_pages: int = column(unit="pages", high="pages", help="mlocked, or of ramfs")
    active_pages: int = column(unit="pages", high="pages", help="with PG_active")
    deleted_files: int | None = column(high="files", help="in no directory any more")
    deleted_pages: int | None = column(unit="pages", high="pages", help="of those")
    left_files: int | None = column(high="files", help="neither open nor mapped; empty: unknown")
    left_pages: int | None = column(unit="pages", high="pages", help="of those")
    mounted_by_init: bool | None = column(help="mounted in init's namespace, not in another")
    id: str | None = column(holds="kernel", help="s_id: its block device, if any")
    device: str | None = column(holds="kernel", help="major:minor, as in /proc/PID/maps")
    superblock: str = column(
        holds="kernel",
        key=True,
        help="address of the struct super_block; others: the smallest, summed",
    )
    droppable_pages: int | None = column(
        unit="pages",
        high="pages",
        since="0.3.0",
        default=None,
        help="clean, not mapped, not pinned: what drop_caches frees",
    )


@table(
    "cached_file_checks",
    "Pages of files beside the kernel's counters",
    not_compared="its pages are those of cached_filesystems",
)
class CachedFileCheck:
    """A counter of the kernel beside the file pages counted one by one."""

    counter: str = column(
        holds="kernel", key=True, help="line of /proc/vmstat, or member of address_space"
    )
    pages: int = column(unit="pages", help="counted page by page")
    kernel_pages: int = column(unit="pages", low=None, high=None, help="the kernel's count")
    difference_pages: int = column(
        unit="pages", low=None, high=None, help="pages, less kernel_pages"
    )
    may_differ: str = column(holds="words", help="why a healthy machine may differ")


@dataclass
class CachedFiles:
    """All files with pages in memory, ascending by the address of their address_space."""

    prog: Program
    supers: SuperBlocks
    mapping: U64s
    counts: U32s  # see file_pages.COLUMNS
    of_mapping: Array
    inode: Array
    known: Bools  # whose inode and super block are
    sb: S64s  # position in supers
    kind: S64s
    held: S64s
    others: S64s = field(default_factory=lambda: np.zeros(len(COLUMNS), np.int64))
    other_rows: int = 0
    dentries_lost: int = 0  # of shared memory, that cannot be read
    names_unlike: int = 0  # of shared memory, that no kernel code gives
    numbers_unlike: int = 0  # of inodes of shared memory, that were not given yet
    links_unlike: int = 0  # of tmpfs, with links and in no directory, or the other way round
    beyond_end: int = 0  # of shared memory, with more pages than fit before their end
    in_use: int = 0  # of shared memory, mapped or open, while their dentry says not
    gaps: Gaps = field(default_factory=Gaps)

    @property
    def pages(self) -> S64s:
        """Base pages of each file."""
        total: S64s = self.counts[:, : len(KIND_COLUMNS)].sum(axis=1, dtype=np.int64)
        return total

    def column(self, name: str) -> S64s:
        return self.counts[:, AT[name]].astype(np.int64)

    @property
    def writes_back(self) -> Bools:
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
    of_type = {"bdev": BLOCK_DEVICE, "hugetlbfs": HUGETLBFS}
    by_sb = np.array([*(of_type.get(name, FILE) for name in supers.types), UNKNOWN], np.int64)
    files = CachedFiles(
        prog=prog,
        supers=supers,
        mapping=pages.mappings,
        counts=pages.counts,
        of_mapping=of_mapping,
        inode=inode,
        known=known,
        sb=sb,
        kind=by_sb[sb],
        held=np.full(len(host), UNKNOWN_HOLDER),
        others=pages.others,
        other_rows=pages.other_rows,
        gaps=gaps,
    )
    _look_at_shared_memory(files)
    return files


def _look_at_shared_memory(files: CachedFiles) -> None:
    """
    Tell the kinds of shared memory apart, and find out whether it is open or mapped.

    Each open ``struct file``, which a mapping has too, holds its dentry. Of tmpfs, as long as a
    file has a name, that holds it as well (``shmem_mknod()``, mm/shmem.c: dget(), or in 7.2
    d_make_persistent()); a SysV segment has a file of its own (``newseg()``, ipc/shm.c), and each
    shmat() another.
    """
    prog = files.prog
    at = np.flatnonzero((files.kind == FILE) & (files.column("shmem") > 0))
    inode = files.inode[at]
    first = inode["dentry"]
    address = np.where(first != 0, first - np.uint64(alias_offset(prog)), np.uint64(0))
    dentry, read = _read_there(prog, address, prog.type("struct dentry"), DENTRY, Gaps())
    counts = dentry["count"].astype(np.int32)
    read &= (counts >= DEAD) & (counts < _most_holds(prog))
    # It loses its inode and leaves its list one after the other (dentry_unlink_inode()).
    host = files.of_mapping["host"][at]
    read &= (dentry["inode"] == host) | (dentry["inode"] == 0)
    others = dentry["next"][read & (dentry["next"] != 0)]
    _, found = read_scattered(prog, others, np.dtype("<u8"), Gaps())
    files.dentries_lost = int(((first != 0) & ~read).sum() + (~found).sum())
    inside = inode["sb"] == np.uint64(files.supers.shm)
    kind = np.where(inside, KERNEL, TMPFS)
    ours = np.flatnonzero(inside & read)
    text = np.dtype([("text", f"S{NAME_BEGINS}")])
    starts, named = read_scattered(prog, dentry["name"][ours], text, Gaps())
    for begin, of_name in NAMES.items():
        kind[ours[np.char.startswith(starts["text"], begin) & named]] = of_name
    files.kind[at] = kind
    texts = zip(starts["text"][named].tolist(), dentry["length"][ours][named].tolist(), strict=True)
    files.names_unlike = sum(starts_unlike(text, length) for text, length in texts)

    of_sb = files.supers.columns["own"][files.sb[at]]
    own = prog.type("struct shmem_sb_info")
    columns = {"next": "next_ino"} | ({"huge": "huge"} if own.has_member("huge") else {})
    given, there = read_members(prog, of_sb, own, columns, Gaps())
    # shmem_reserve_inode() and what it became: a mount's begin again after 32 bits, unless it is
    # mounted with inode64. Of SysV memory it is shmid.
    most = np.where(inside, given["next"], np.maximum(given["next"], np.uint64((1 << 32) - 1)))
    unlike = (inode["ino"] > most) | (inode["ino"] == 0)
    files.numbers_unlike = int(np.count_nonzero(there & (kind != SYSV) & unlike))
    small = there & (given["huge"] == 0) if "huge" in columns else there
    files.beyond_end = _beyond_end(files, at[small])
    # shmem_unlink() takes the link away, d_delete() the name; another name may be there.
    only = read & (kind == TMPFS) & (dentry["next"] == 0) & (inode["links"] < 2)
    unlike = (dentry["hashed"] == 0) != (inode["links"] == 0)
    files.links_unlike = int(np.count_nonzero(only & unlike))
    pinned = np.where((kind == SYSV) | ((kind == TMPFS) & (inode["links"] > 0)), 1, 0)
    # With several names the other dentries may be held.
    single = read & (dentry["next"] == 0)
    held = np.where(single, NOT_HELD, UNKNOWN_HOLDER)
    held[read & (counts > pinned)] = HELD
    # Without a name it would be gone if it were not in use; what kernel code has is none of these.
    held[(held == NOT_HELD) & ((pinned == 0) | (kind == KERNEL))] = UNKNOWN_HOLDER
    files.held[at] = held


def _beyond_end(files: CachedFiles, at: S64s) -> int:
    """
    Number of files of shared memory with more pages than fit before their end, and before what was
    given to them beyond it (``shmem_fallocate()``); not those that are locked, as they are while
    they are cut.

    :param at: files of mounts without huge pages, which may reach beyond the end.
    """
    prog = files.prog
    own = prog.type("struct shmem_inode_info")
    # "huge tmpfs: fix split_huge_page() after FALLOC_FL_KEEP_SIZE" (d144bf620534, in v5.15)
    if not own.has_member("fallocend") or not (word := lock_word(prog)):
        return 0
    before = np.uint64(offsetof(own, "vfs_inode"))
    columns = {"end": "fallocend", "lock": f"vfs_inode.i_rwsem.{word}"}
    more, read = read_members(prog, files.of_mapping["host"][at] - before, own, columns, Gaps())
    page = int(prog["PAGE_SIZE"].value_())
    fit = np.maximum(-(-files.inode["size"][at].astype(np.float64) // page), more["end"])
    still = read & (lock_counts(more["lock"]) == 0)
    return int(np.count_nonzero(still & (files.pages[at] > fit)))


def starts_unlike(text: bytes, length: int) -> bool:
    """
    True if no kernel code gives such a name in shm_mnt: one letter from a name that tells a kind,
    not text, or of another length.

    :param text: its first bytes, up to a zero; :param length: ``d_name.len``.
    """
    if len(text) != min(length, NAME_BEGINS):
        return True
    if text.startswith(tuple(NAMES)):
        return False
    apart = (
        sum(a != b for a, b in zip(text, begin, strict=False))
        for begin in NAMES
        if len(text) >= len(begin)
    )
    return 1 in apart or not (text.isascii() and text.decode("ascii").isprintable())


def _read_there(
    prog: Program, address: U64s, type_: Type, columns: Columns, gaps: Gaps
) -> tuple[Array, Bools]:
    """As :func:`read_members`; where an address is 0 there is nothing to read or to miss."""
    there = address != 0
    some, read = read_members(prog, address[there], type_, columns, gaps)
    found = np.zeros(len(address), some.dtype)
    found[there] = some
    there[there] = read
    return found, there


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
        if dentry.d_inode.value_() not in (0, int(files.of_mapping["host"][at])):
            raise ValueError("its name is of another file")
        if dentry.d_parent == dentry:  # in no directory
            return dentry_name(dentry)
        path, _ = path_below(prog, address, files.supers.roots(int(files.sb[at])))
        return f"{path} (deleted)" if path is not None and is_unhashed(dentry) else path
    return None


def nameless(files: CachedFiles, rows: list[CachedFile]) -> int:
    """Number of the files with the most pages whose name could not be read."""
    order = np.argsort(-files.pages, kind="stable")[: len(rows)]
    named = files.known & ((files.inode["dentry"] != 0) | (files.kind == BLOCK_DEVICE))
    lost = np.array([row.path is None for row in rows], np.bool_)
    return int((named[order] & lost).sum())


def _most_holds(prog: Program) -> int:
    """
    References that a dentry may have: of every open file (``nr_files``, fs/file_table.c), and of
    one below it where file systems are stacked, which is not counted.
    """
    if prog.flags & ProgramFlags.IS_LIVE or "nr_files" not in prog:
        return MOST_HOLD
    files = percpu_counter_sum(prog["nr_files"].address_of_())
    return min(2 * max(files, 0) + MOST_OTHERS, MOST_HOLD)


def disk_name(prog: Program, inode: int) -> str:
    """
    The name of a block device, ``bdevname()`` (block/genhd.c).

    :raises FaultError: it cannot be read.
    :raises ValueError: it is none.
    """
    found = Object(prog, "struct inode", address=inode).address_of_()
    device = container_of(found, "struct bdev_inode", "vfs_inode").bdev
    # char [32]: DISK_NAME_LEN
    disk = device.bd_disk.disk_name.address_of_()
    raw: bytes = prog.read_c_string(disk.value_(), max_size=32)
    name = raw.decode("utf-8", "backslashreplace")
    if not raw or not raw.isascii() or not name.isprintable():
        raise ValueError(f"the name of a block device is {name!r}")
    with contextlib.suppress(AttributeError):  # of 5.10 it is elsewhere
        if name_at(device.bd_disk.part0.bd_device.kobj.name) != name.replace("/", "!"):
            raise ValueError(f"the device of {name!r} has another name")
    number = _partition(device)
    whole = device.bd_disk.part0  # of 5.10 a struct hd_struct, no pointer
    is_pointer = whole.type_.kind is TypeKind.POINTER
    if is_pointer and (number == 0) != (whole == device.address_of_()):
        raise ValueError(f"the number of a partition of {name} is damaged: {number}")
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


def file_rows(files: CachedFiles, present: int) -> list[CachedFile]:
    """
    The files with the most pages, the largest first.

    :param present: present pages of the machine.
    """
    pages, able, supers = files.pages, files.writes_back, files.supers
    rows = []
    for at in np.argsort(-pages, kind="stable")[:MAX_FILES_SHOWN].tolist():
        known, kind, sb = bool(files.known[at]), int(files.kind[at]), int(files.sb[at])
        held, inode = int(files.held[at]), files.inode[at]
        named = known and kind in HAVE_NAMES
        rows.append(
            CachedFile(
                path=path_of_file(files, at),
                kind=KINDS[kind],
                filesystem=supers.types[sb] if known else None,
                **_page_columns(files, files.counts[at], kind, bool(able[at]), present),
                deleted=not inode["links"] if named else None,
                held=None if held == UNKNOWN_HOLDER else held == HELD,
                size_bytes=int(inode["size"]) if known else None,
                device=supers.device(sb) if known else None,
                inode=str(int(inode["ino"])) if known else None,
                address_space=hex(int(files.mapping[at])),
            )
        )
    return rows


def _page_columns(
    files: CachedFiles, counts: Array, kind: int, able: bool, present: int
) -> dict[str, Any]:
    """
    The columns about pages that both tables have.

    :param able: dirty pages are written back.
    """
    have = dict(zip(COLUMNS, counts.tolist(), strict=True))
    pages = sum(have[name] for name in KIND_COLUMNS)
    return {
        "pages": pages,
        "bytes": pages * int(files.prog["PAGE_SIZE"].value_()),
        "percent": 100 * pages / present if present else 0.0,
        **{f"{name}_pages": have[name] for name in COLUMNS if name not in KIND_COLUMNS},
        "dirty_pages": have["dirty"] if able and kind not in NEVER_DIRTY else None,
    }


def filesystem_rows(files: CachedFiles, present: int) -> list[CachedFilesystem]:
    """All files by file system and kind, those with the most pages first."""
    groups, back = np.unique(files.sb * len(KINDS) + files.kind, return_inverse=True)
    pages = files.pages
    deleted = (files.inode["links"] == 0) & np.isin(files.kind, HAVE_NAMES)
    left = files.held == NOT_HELD

    def total(values: Array) -> S64s:
        return np.bincount(back, values, len(groups)).astype(np.int64)

    # By group: files; files and pages of the deleted, and of those that are left.
    parts = [np.ones(len(back)), deleted, deleted * pages, left, left * pages]
    sums = np.stack([total(part) for part in parts], axis=1)
    counts = np.stack([total(part) for part in files.counts.T], axis=1)
    able = np.zeros(len(groups), np.bool_)
    able[back] = files.writes_back
    order = np.argsort(-counts[:, : len(KIND_COLUMNS)].sum(axis=1), kind="stable")
    rows = []
    for at in order[:MAX_FILE_SYSTEMS].tolist():
        sb, kind = divmod(int(groups[at]), len(KINDS))
        rows.append(_filesystem_row(files, sb, kind, sums[at], counts[at], bool(able[at]), present))
    # One row of the file systems beyond those shown, and of the files that were too many.
    rest = sums[order[MAX_FILE_SYSTEMS:]].sum(axis=0)
    rest[0] += files.other_rows
    if rest[0]:
        more = counts[order[MAX_FILE_SYSTEMS:]].sum(axis=0) + files.others
        nowhere = len(files.supers.address)
        row = _filesystem_row(files, nowhere, UNKNOWN, rest, more, False, present)
        rows.append(dataclasses.replace(row, superblock=OTHERS))
    return rows


def _filesystem_row(
    files: CachedFiles, sb: int, kind: int, sums: S64s, counts: S64s, able: bool, present: int
) -> CachedFilesystem:
    supers, known = files.supers, sb < len(files.supers.address)
    mount, by_init = supers.mounted(sb) if known else (None, None)
    count, deleted, deleted_pages, left, left_pages = sums.tolist()
    # What never was in a directory, or has an unknown holder, has nothing there.
    named, may_be_left = kind in HAVE_NAMES, kind in MAY_BE_LEFT
    return CachedFilesystem(
        kind=KINDS[kind],
        filesystem=supers.types[sb] if known else None,
        mount=mount,
        files=count,
        **_page_columns(files, counts, kind, able, present),
        deleted_files=deleted if named else None,
        deleted_pages=deleted_pages if named else None,
        left_files=left if may_be_left else None,
        left_pages=left_pages if may_be_left else None,
        mounted_by_init=by_init,
        id=supers.ids[sb] if known else None,
        device=supers.device(sb) if known else None,
        superblock=hex(int(supers.address[sb])) if known else "unknown",
    )


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


def odd_counts(files: CachedFiles, present: int) -> int:
    """
    Count address_spaces that say that they have fewer pages than were found, or more, and are not
    locked: pages come and go, and are counted, under the lock of ``i_pages``. Bad pages stay in it,
    and what is read with DAX.
    """
    kept = files.of_mapping["nrpages"]
    # Before v6.7 hugetlbfs counted huge pages.
    fewer = (kept < files.pages.astype(np.uint64)) & (files.kind != HUGETLBFS)
    more = kept > files.pages.astype(np.uint64) + np.uint64(MOST_BAD)
    more &= (files.inode["flags"] & S_DAX == 0) & (files.other_rows == 0)
    if "hugetlb_basepage_index" in files.prog:
        more &= files.kind != HUGETLBFS
    odd = files.mapping[files.known & ((kept > present) | fewer | more)]
    count = 0
    for address in odd.tolist():
        lock = Object(files.prog, "struct address_space", address=address).i_pages.xa_lock
        with contextlib.suppress(FaultError):
            # Free it is zeros; never, with CONFIG_DEBUG_SPINLOCK.
            count += not any(files.prog.read(lock.address_, sizeof(lock)))
    return count


def cached_files_once(memory: Memory) -> CachedFiles:
    """
    The files, once for all sections.

    :raises FaultError, LookupError: the struct pages or the super blocks cannot be read.
    """

    def read() -> CachedFiles:
        files = read_cached_files(
            memory.prog, ledger_pages(memory)[0].files, super_blocks_once(memory)
        )
        if not memory.live:
            _hold_what_is_in_use(memory, files)
        return files

    return memory.once("cached_files", read)


def _hold_what_is_in_use(memory: Memory, files: CachedFiles) -> None:
    """Take files that a process maps or has open for held, and count those: dentries say not."""
    if (left := files.held == NOT_HELD).any():
        used = files.of_mapping["tree"] != 0
        with contextlib.suppress(FaultError, LookupError):
            used |= np.isin(files.of_mapping["host"], open_files(memory).files["inode"])
        files.held[left & used] = HELD
        files.in_use = int(np.count_nonzero(left & used))


def cached_files_from_memory(memory: Memory) -> Found:
    pages, gaps = ledger_pages(memory)
    files = cached_files_once(memory)
    supers = files.supers
    found = Found(memory.live, unreadable_bytes=gaps.bytes + supers.gaps.bytes)
    found.differ(supers.broken_off)
    say_unknown(files, found)
    present = int(pages.pages.sum())
    rows = file_rows(files, present)
    if "shm_mnt" in memory.prog and supers.shm not in supers.address:
        found.differ("shm_mnt leads nowhere: kinds of shared memory are not told")
    apart = sum(links_apart(row.path, row.deleted, row.filesystem) for row in rows)
    shared = "{} of shared memory have"
    found.differ(
        *if_any(
            files.names_unlike,
            f"{shared} names that no kernel code gives: their kind may be another",
            "file",
        ),
        *if_any(files.numbers_unlike, f"{shared} inode numbers that were not given yet", "file"),
        *if_any(nameless(files, rows), "the names of {} cannot be read", "file"),
        *if_any(files.beyond_end, f"{shared} more pages than fit before their end", "file"),
        *if_any(max(apart, files.links_unlike), "links and names of {} do not fit", "file"),
    )
    if more := len(files.mapping) + files.other_rows - len(rows):
        found.unlisted.append(f"{more:,} files with fewer pages, which cached_filesystems counts")
    vmstat: dict[str, int] = {}
    try:
        vmstat = {row.name: row.value for row in vm_counters_once(memory)}
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"counters of /proc/vmstat are missing: {error}")
    found.add(CachedFilesystem, filesystem_rows(files, present))
    found.add(CachedFile, rows)
    note_mounts(memory, supers, found)
    counted = checks(files, vmstat)
    if not memory.live and not gaps.bytes:
        _hold_against_counters(memory, counted, present, found)
        found.notes += if_any(odd_counts(files, present), "nrpages of {} cannot be right", "file")
    return found.add(CachedFileCheck, counted)


def _hold_against_counters(
    memory: Memory, counted: list[CachedFileCheck], present: int, found: Found
) -> None:
    """Mark what a dump's counters cannot say: fewer pages than there are, or more than all."""

    def pages_of(row: CachedFileCheck) -> Against:
        return min(max(row.kernel_pages, row.pages), present), drift(memory.prog)

    found.hold_against(counted, "kernel_pages", pages_of, "the pages of that kind")


def say_unknown(files: CachedFiles, found: Found) -> None:
    """Say whose pages' file could not be found, and which files have an unknown holder."""
    if lost := int((~files.known).sum()):
        pages = int(files.pages[~files.known].sum())
        found.differ(
            f"{plural(pages, 'page is', 'pages are')} of {plural(lost, 'address_space')} whose "
            "inode or file system cannot be read"
        )
    if files.dentries_lost:
        found.differ(
            f"{files.dentries_lost:,} dentries of files of shared memory are damaged or not "
            "readable: whether these are open or mapped is unknown, and they are in no count of "
            "unused files"
        )
    found.differ(
        *if_any(
            files.in_use,
            "{}: damaged",
            "file of shared memory is in use, but its dentry has no reference for that",
            "files of shared memory are in use, but their dentries have no references for that",
        )
    )
    if files.other_rows:
        found.notes.append(
            f"files with few pages were too many to keep: they are in {files.other_rows:,} parts, "
            "and a file may be in several"
        )


CACHED_FILES_SECTION = Section(
    name="cached_files",
    title="Files in memory",
    intro="""
Whose pages the page cache has: files, block devices, and shared memory, which is in the page cache
too: tmpfs, memfd, SysV. All files are in the table by file system, which adds up to the ledger's
*page cache* and to the huge pages that files have; those with the most pages are named. A file that
no directory has any more keeps its memory until the last process closes it. What is in tmpfs keeps
it until it is removed, and a SysV segment until
[`shmctl(IPC_RMID)`](https://man7.org/linux/man-pages/man2/shmctl.2.html): no process need have it.
""",
    command=Command("the files with the most pages in memory", top=TOP),
    since="0.2.0",
    tables=tables_of(CachedFilesystem, CachedFile, CachedFileCheck),
    from_memory=cached_files_from_memory,
    from_files=not_in_text(
        "files are read from the kernel's memory (as root); /proc/meminfo has the sums Buffers, "
        "Cached, Shmem, Dirty"
    ),
    deadline=PASS_SECONDS,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("cached_files")
