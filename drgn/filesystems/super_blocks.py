# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``super_blocks``: every file system that is mounted or that the kernel keeps for itself.

The list is walked, a read for each; the ``struct super_block`` are read together. Where a file
system is mounted is looked up for those that are shown.

Cannot know: paths of processes in another mount namespace. A file system that is mounted there only
has the path that it has there.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from drgn import FaultError, Object, Program, offsetof
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.xarray import xa_is_value, xa_load, xa_to_value

from mmscope.drgn.reading.dentry_paths import mounted_path
from mmscope.drgn.reading.kernel_arrays import (
    TORN,
    Array,
    Bools,
    Gaps,
    U64s,
    distinct,
    struct_dtype,
)
from mmscope.drgn.reading.kernel_names import MINOR_BITS, device_numbers, name_at, name_in, nearly
from mmscope.drgn.reading.scattered_reads import read_members, read_scattered
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found
from mmscope.drgn.tables.display import if_any

MOST_MAJORS = 512  # BLKDEV_MAJOR_MAX; of no disk the major number is 0
MAX_SUPER_BLOCKS = 1 << 18
MAX_MOUNTS = 256  # of one file system that are looked at
IDA_BITS = 1024  # of a leaf: IDA_BITMAP_BITS (include/linux/idr.h)
ID_BYTES = 32  # s_id
BDI_CAP_WRITEBACK = 1  # include/linux/backing-dev.h: a macro; 1 << 0 from 5.10 to 7.3
COLUMNS = {
    "type": "s_type",
    "dev": "s_dev",
    "bdev": "s_bdev",
    "bdi": "s_bdi",
    "root": "s_root",
    "op": "s_op",
    "own": "s_fs_info",
}

# The path of a mount, and whether it is in init's mount namespace; None: it is mounted nowhere.
Mounted = tuple[str | None, bool | None]


@dataclass
class SuperBlocks:
    """All of them, ascending by address."""

    prog: Program
    address: U64s
    columns: Array  # see COLUMNS
    ids: list[str]  # s_id: of a block device's the name of that
    types: list[str]
    writes_back: Bools  # dirty pages of its files are written somewhere
    broken_off: str = ""  # why there may be more
    gaps: Gaps = field(default_factory=Gaps)
    mounts_lost: int = 0  # super blocks of which a mount could not be followed to its root
    _mounts: dict[int, tuple[Mounted, dict[int, str]]] = field(default_factory=dict)

    def device(self, at: int) -> str:
        """major:minor, as in /proc/PID/maps."""
        return device_numbers(int(self.columns["dev"][at]))

    @cached_property
    def init_namespace(self) -> int:
        """The mount namespace of init; 0 if it cannot be read, or is none."""
        with contextlib.suppress(*TORN):
            namespace = self.prog["init_task"].nsproxy.mnt_ns
            if namespace.root.mnt_ns.value_() == namespace.value_():
                return int(namespace.value_())
        return 0

    @cached_property
    def shm(self) -> int:
        """
        The super block of ``shm_mnt`` (mm/shmem.c): memfd, SysV shared memory, shared anonymous
        memory, and what drivers have there. 0 if the kernel has none.
        """
        with contextlib.suppress(*TORN):
            return int(self.prog["shm_mnt"].mnt_sb.value_())
        return 0

    def mounted(self, at: int) -> Mounted:
        """The mount of one of them: in init's namespace if there, the shortest path."""
        mount, _ = self._mounts_of(at)
        return mount

    def roots(self, at: int) -> dict[int, str]:
        """The dentries of it that are mounted, and where."""
        _, roots = self._mounts_of(at)
        return roots

    def mounted_from(self, at: int) -> str | None:
        """Device, or server and its path, that it was mounted from; None: not known."""
        with contextlib.suppress(*TORN):
            for mnt in self._mounts_in(at):
                return name_at(mnt.mnt_devname) or None
        return None

    def _mounts_of(self, at: int) -> tuple[Mounted, dict[int, str]]:
        if at not in self._mounts:
            self._mounts[at] = self._find_mounts(at)
        return self._mounts[at]

    def _find_mounts(self, at: int) -> tuple[Mounted, dict[int, str]]:
        found: list[tuple[bool, bool, int, str, int]] = []
        try:
            for _, mnt in zip(range(MAX_MOUNTS), self._mounts_in(at), strict=False):
                namespace = mnt.mnt_ns.value_()
                # MNT_NS_INTERNAL is an error pointer: the kernel's own.
                if not namespace or namespace >= (1 << 64) - 4096:
                    continue
                root = Object(self.prog, "struct mnt_namespace", address=namespace).root
                if root.mnt_ns.value_() != namespace:
                    raise ValueError("a mount is in no namespace")
                root = mnt.mnt.mnt_root
                path = mounted_path(root, mnt)
                if path is None or not path.startswith("/"):
                    raise ValueError("a mount in a namespace leads to no root")
                if root.d_sb.value_() != int(self.address[at]):
                    raise ValueError("the root of a mount is in another file system")
                whole = root.value_() == int(self.columns["root"][at])
                elsewhere = namespace != self.init_namespace
                found.append((elsewhere, not whole, len(path), path, root.value_()))
        except TORN:
            self.mounts_lost += 1
        found.sort()
        roots: dict[int, str] = {}
        for _, _, _, path, root_address in found:
            roots.setdefault(root_address, path)
        if not found:
            return (None, None), {}
        elsewhere, _, _, path, _ = found[0]
        return (path, not elsewhere if self.init_namespace else None), roots

    def _mounts_in(self, at: int) -> Iterator[Object]:
        """
        Pointers to every ``struct mount`` of one of them: on a list_head up to 6.12, each
        pointing to the next in 7.2.
        """
        sb = Object(self.prog, "struct super_block", address=int(self.address[at]))
        if self.prog.type("struct mount").has_member("mnt_instance"):
            yield from list_for_each_entry(
                "struct mount", sb.s_mounts.address_of_(), "mnt_instance"
            )
            return
        mnt = sb.s_mounts.read_()
        while mnt:
            yield mnt
            mnt = mnt.mnt_next_for_sb.read_()


def read_super_blocks(prog: Program) -> SuperBlocks:
    """
    Read all of them.

    :raises LookupError: the kernel's layout is unknown.
    """
    type_, gaps = prog.type("struct super_block"), Gaps()
    addresses: set[int] = set()
    broken_off = ""
    try:
        head = prog["super_blocks"].address_of_()
        for sb in list_for_each_entry("struct super_block", head, "s_list"):
            if sb.value_() in addresses or len(addresses) >= MAX_SUPER_BLOCKS:
                broken_off = "the list of super blocks has no end"
                break
            addresses.add(sb.value_())
    except FaultError as error:
        broken_off = f"the list of super blocks breaks off: {error}"
    address = np.array(sorted(addresses), np.uint64)
    columns, read = read_scattered(prog, address, struct_dtype(type_, COLUMNS), gaps)
    address, columns = address[read], columns[read]
    at = np.uint64(offsetof(type_, "s_id"))
    raw, _ = read_scattered(prog, address + at, np.dtype([("id", f"S{ID_BYTES}")]), gaps)
    ids = list(map(name_in, raw["id"].tolist()))
    return SuperBlocks(
        prog,
        address,
        columns,
        ids,
        _type_names(prog, columns["type"]),
        _writes_back(prog, columns["bdi"]),
        broken_off,
        gaps,
    )


def _type_names(prog: Program, types: U64s) -> list[str]:
    """``file_system_type.name`` of each; empty if it cannot be read."""
    names = {}
    for address in distinct(types).tolist():
        names[address] = ""
        with contextlib.suppress(*TORN):
            names[address] = name_at(Object(prog, "struct file_system_type", address=address).name)
    return [names[address] for address in types.tolist()]


def _writes_back(prog: Program, bdis: U64s) -> Bools:
    """``mapping_can_writeback()`` of their files (include/linux/backing-dev.h)."""
    dtype = struct_dtype(prog.type("struct backing_dev_info"), {"capabilities": "capabilities"})
    found, read = read_scattered(prog, bdis, dtype, Gaps())
    able = (found["capabilities"] & BDI_CAP_WRITEBACK) != 0
    return np.asarray(able & read)


def super_blocks_once(memory: Memory) -> SuperBlocks:
    """All super blocks, once for all sections."""
    return memory.once("super_blocks", lambda: read_super_blocks(memory.prog))


IN_MEMORY = ("tmpfs", "hugetlbfs", "rootfs", "devtmpfs", "ramfs")
UNNAMED = ("/memfd:", "/SYSV", "/anon_hugepage", "memfd:", "SYSV")


def links_apart(path: str | None, deleted: bool | None, filesystem: str | None) -> bool:
    """
    True if a file in memory has links and no name, or a name and no links: one without a name has
    none from the beginning (``__shmem_file_setup()``, mm/shmem.c; ``hugetlb_file_setup()``,
    fs/hugetlbfs/inode.c), and what is deleted leaves its directory.
    """
    if path is None or deleted is None or filesystem not in IN_MEMORY:
        return False
    if path.endswith(" (deleted)") or not path.startswith("/"):
        return path.startswith(UNNAMED) and not deleted
    return deleted


def devices_apart(supers: SuperBlocks) -> int:
    """
    File systems with the number of another device than theirs, or without a device, with one that
    was not given out (``get_anon_bdev()``, fs/super.c).
    """
    prog, columns = supers.prog, supers.columns
    type_ = prog.type("struct block_device")
    devices, read = read_members(prog, columns["bdev"], type_, {"dev": "bd_dev"}, Gaps())
    none = columns["dev"] >> MINOR_BITS == 0
    apart = np.count_nonzero(read & ~none & (devices["dev"] != columns["dev"]))
    tree = prog["unnamed_dev_ida"].xa.address_of_()
    leaves: dict[int, int] = {}
    # One that is being unmounted has no root, and may have given its number back.
    for number in columns["dev"][none & (columns["root"] != 0)].tolist():
        at, bit = divmod(number, IDA_BITS)
        if at not in leaves:
            leaves[at] = _given(prog, xa_load(tree, at))
        apart += not leaves[at] >> bit & 1
    return int(apart)


def _given(prog: Program, entry: Object) -> int:
    """The numbers that a leaf of an IDA has given out, a bit each (lib/idr.c)."""
    if xa_is_value(entry):
        return int(xa_to_value(entry))
    if not entry:
        return 0
    data = prog.read(entry.value_(), IDA_BITS // 8)
    return int.from_bytes(data, "little")


def note_mounts(memory: Memory, supers: SuperBlocks, found: Found) -> None:
    """Say of how many file systems the mounts are unknown."""
    device = supers.columns["dev"]
    odd = int(np.count_nonzero((device == 0) | (device >> MINOR_BITS >= MOST_MAJORS)))
    found.differ(*if_any(odd, "{} of a device that there is not", "file system"))
    with contextlib.suppress(LookupError):
        odd = 0 if memory.live else devices_apart(supers)
        found.notes += if_any(odd, "{} of another device than its own", "file system")
    odd = sum(map(nearly, supers.ids, supers.types))
    found.differ(
        *if_any(odd, "s_id of {} is a part of its type, or a letter off", "file system"),
        *if_any(supers.types.count(""), "the type of {} cannot be read", "file system"),
    )
    if not supers.init_namespace:
        found.differ("the mount namespace of init cannot be read")
    found.differ(
        *if_any(supers.mounts_lost, "mounts of {} cannot be followed to their root", "file system")
    )
