# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Names of what tasks wait for: by the variable or slab object that a lock is in, the file of a page,
the file system of a device that is written to.

Costs some reads for each name, and a walk over ``super_blocks`` for the first file system.
"""

import contextlib
from collections.abc import Callable
from functools import cached_property

import numpy as np
from drgn import Object, Program, offsetof
from drgn.helpers.linux.mm import compound_nr
from drgn.helpers.linux.slab import slab_object_info

from mmscope.drgn.cgroups.cgroup_paths import cgroup_path
from mmscope.drgn.filesystems.super_blocks import SuperBlocks, read_super_blocks
from mmscope.drgn.reading.dentry_paths import alias_offset, path_below
from mmscope.drgn.reading.kernel_arrays import TORN
from mmscope.drgn.reading.kernel_names import device_numbers, disk_numbers, name_at, name_in
from mmscope.drgn.waits.fuse import TYPES, Connection, connections, owes
from mmscope.drgn.waits.spins import SPINLOCK, SpinLocks
from mmscope.drgn.waits.waiters import Awaited

# Locks of a struct inode; of its mapping since "mm: Protect operations adding pages to page cache
# with invalidate_lock" (730633f0b7f9, in v5.15) also the last.
INODE_LOCKS = ("i_rwsem", "i_data.i_mmap_rwsem", "i_data.invalidate_lock")
# Kinds of what a page is waited for.
PAGES = ("folio lock", "writeback", "a bit of a folio")
NFS = ("nfs", "nfs4")
SUSPENDED = 1 << 1  # DMF_SUSPENDED (drivers/md/dm-core.h), the same from 5.10 to 7.3
ANON, MOVABLE = 1, 2  # PAGE_MAPPING_ANON and PAGE_MAPPING_MOVABLE, bits of page.mapping

Who = Callable[[int], tuple[int | None, str | None]]  # pid and comm of a task


class Names:
    """
    Names in one kernel.

    :ivar who: names a task by its address.
    :ivar vmas: ``struct vm_area_struct *`` of locks that were found in faults, by the lock.
    :ivar unread_connections: file systems of FUSE whose connection could not be read.
    """

    def __init__(self, prog: Program, who: Who) -> None:
        self.prog = prog
        self.who = who
        self.vmas: dict[int, Object] = {}
        self.known: dict[tuple[str, int], str] = {}
        self.spins = SpinLocks(prog)
        self.unread_connections = 0

    def of(self, found: Awaited) -> str:
        """Name of what a task waits for, one for all who do; an address where there is none."""
        key = found.kind, found.address
        if key not in self.known:
            self.known[key] = self._of(found)
        return self.known[key]

    def _of(self, found: Awaited) -> str:
        with contextlib.suppress(*TORN):
            if found.kind == "dirty pages":
                return self.device(found.address)
            if found.kind == "FUSE request":
                return self.file_system(self.connections[found.address].place)
            if found.kind == "RPC":
                return self._server(found.address)
            if found.kind == "memory.high":
                path = cgroup_path(self.prog, found.address)
                return f"memory.high of {path}" if path else hex(found.address)
            if found.kind == "percpu rwsem" and (name := self._frozen(found.address)):
                return name
            if found.kind == "VMA lock, to write" or found.address in self.vmas:
                return self._vma(found.address)
            if found.kind in PAGES:
                return self._page(found.address)
            # Spinlocks of PREEMPT_RT are rt_mutexes.
            if found.kind in (SPINLOCK, "rt_mutex") and (name := self.spins.name(found.address)):
                return name
        return self._of_lock(found.address)

    def _of_lock(self, address: int) -> str:
        """Name of a lock, by the object or variable that it is in."""
        with contextlib.suppress(*TORN):
            if (info := slab_object_info(self.prog, address)) is not None:
                return self._in_object(name_at(info.slab_cache.name), info.address, address)
        with contextlib.suppress(LookupError):
            symbol = self.prog.symbol(address)
            return f"{symbol.name}+{address - symbol.address:#x}".removesuffix("+0x0")
        return hex(address)

    def _in_object(self, cache: str, start: int, address: int) -> str:
        """The name of a lock in an object of a slab cache."""
        mm, inode = self.prog.type("struct mm_struct"), self.prog.type("struct inode")
        if cache == "mm_struct" and address - start == offsetof(mm, "mmap_lock"):
            of = self._mm(Object(self.prog, mm, address=start))
            return f"mmap_lock of {of}"
        if cache == "anon_vma":
            return f"anon_vma {start:#x}"
        if cache == "buffer_head" and address == start:
            buffer = Object(self.prog, "struct buffer_head", address=start)
            of = disk_numbers(int(buffer.b_bdev.bd_dev))
            return f"block {buffer.b_blocknr.value_()} of device {of}"
        if cache == "fuse_inode" and address - start == self._page_queue():
            return (
                f"pages that are written of {self._file(Object(self.prog, inode, address=start))}"
            )
        for lock in INODE_LOCKS:
            with contextlib.suppress(*TORN):
                host = Object(self.prog, inode, address=address - offsetof(inode, lock))
                if host.i_data.host.value_() == host.address_of_().value_():
                    return f"{lock.split('.')[-1]} of {self._file(host)}"
        return f"{cache} {start:#x}+{address - start:#x}".removesuffix("+0x0")

    def _mm(self, mm: Object) -> str:
        """The process of a ``struct mm_struct``; its address without CONFIG_MEMCG, which has it."""
        owner = getattr(mm, "owner", None)
        pid, comm = self.who(owner.value_()) if owner else (None, None)
        return f"{comm} ({pid})" if pid else f"mm {mm.address_of_().value_():#x}"

    def _vma(self, address: int) -> str:
        vma = self.vmas.get(address)
        if vma is None:
            vma = Object(self.prog, "struct vm_area_struct *", address)
        start, end = vma.vm_start.value_(), vma.vm_end.value_()
        return f"VMA {start:#x}-{end:#x} of {self._mm(vma.vm_mm[0])}"

    def _page(self, address: int) -> str:
        """The page of a file, or of anonymous memory."""
        if (found := self._in_file(address)) is not None:
            inode, index = found
            return f"page {index} of {self._file(inode)}"
        mapping = Object(self.prog, "struct page", address=address).mapping.value_()
        return f"{'anonymous page' if mapping & ANON else 'page'} {address:#x}"

    def _in_file(self, address: int) -> tuple[Object, int] | None:
        """``struct inode`` and index of a page of a file; None of another."""
        page = Object(self.prog, "struct page", address=address)
        mapping = page.mapping.value_()
        if not mapping or mapping & (ANON | MOVABLE):
            return None
        host = Object(self.prog, "struct address_space *", mapping).host
        index = page.member_("index" if hasattr(page, "index") else "__folio_index").value_()
        return host[0], index

    def finished_by(self, found: Awaited) -> int:
        """Address of the bdi of what has to finish what a task waits for; 0: not known, or none."""
        with contextlib.suppress(*TORN):
            if found.kind == "writeback" and (place := self._in_file(found.address)) is not None:
                of = np.flatnonzero(self.supers.address == place[0].i_sb.value_())
                written = of[self.supers.writes_back[of]].tolist()
                return int(self.supers.columns["bdi"][written[0]]) if written else 0
            if found.kind == "RPC" and (at := self._nfs_of(found.address)) is not None:
                return int(self.supers.columns["bdi"][at])
        return found.bdi

    def _nfs_of(self, client: int) -> int | None:
        """The first file system that is mounted by a ``struct rpc_clnt``."""
        for at in [at for at, type_ in enumerate(self.supers.types) if type_ in NFS]:
            sb = Object(self.prog, "struct super_block", address=int(self.supers.address[at]))
            server = Object(self.prog, "struct nfs_server *", sb.s_fs_info.value_())
            if server.client.value_() == client:
                return at
        return None

    def _server(self, client: int) -> str:
        """Name of the server, or its file system, that a ``struct rpc_clnt`` asks."""
        if (at := self._nfs_of(client)) is not None:
            return self.file_system(at)
        of = Object(self.prog, "struct rpc_clnt *", client)
        return f"{name_at(of.cl_program.name)} of {name_at(of.cl_xprt.servername)}"

    def is_suspended(self, bdi: int) -> bool:
        """True if the device of a bdi is one of the device mapper's and takes no requests."""
        for at in np.flatnonzero(self.supers.columns["bdi"] == bdi).tolist():
            with contextlib.suppress(*TORN):
                sb = Object(self.prog, "struct super_block", address=int(self.supers.address[at]))
                if sb.s_bdev and name_in(sb.s_bdev.bd_disk.disk_name.string_()).startswith("dm-"):
                    disk = sb.s_bdev.bd_disk.private_data.value_()
                    flags = Object(self.prog, "struct mapped_device *", disk).flags.value_()
                    return bool(flags & SUSPENDED)
        return False

    def _page_queue(self) -> int | None:
        """Offset in a ``struct fuse_inode`` of the queue for pages that the server is given."""
        with contextlib.suppress(LookupError):
            return int(offsetof(self.prog.type("struct fuse_inode"), "page_waitq"))
        return None

    @cached_property
    def connections(self) -> dict[int, Connection]:
        """Connections to FUSE servers that owe answers; none where FUSE's types are not known."""
        if self.fuse_unknown:
            return {}
        found, self.unread_connections = connections(self.prog, self.supers)
        return found

    @cached_property
    def fuse_unknown(self) -> bool:
        """True if there are file systems of FUSE, a module of which no types are known."""
        if not any(type_ in TYPES for type_ in self.supers.types):
            return False
        try:
            self.prog.type("struct fuse_req")
        except LookupError:
            return True
        return False

    def owed_by(self, found: Awaited) -> int | None:
        """Address of the ``struct fuse_conn`` whose server owes what a task waits for."""
        if found.kind == "FUSE request":
            return found.address
        if found.kind not in (*PAGES, "queue") or not self.connections:
            return None
        with contextlib.suppress(*TORN):
            inode, pages = self._awaited_file(found)
            conn = None if inode is None else self._connection_of(inode)
            if inode is not None and conn in self.connections:
                opcode = "READ" if found.kind == "folio lock" else "WRITE"
                return conn if owes(self.connections[conn], inode, opcode, pages) else None
        return None

    def _awaited_file(self, found: Awaited) -> tuple[Object | None, range | None]:
        """``struct inode`` of what a task waits for, and its bytes; None: any that are written."""
        if found.kind == "queue":
            info = slab_object_info(self.prog, found.address)
            if info is None or found.address - info.address != self._page_queue():
                return None, None
            return Object(self.prog, "struct inode", address=info.address), None
        if (place := self._in_file(found.address)) is None:
            return None, None
        inode, index = place
        return inode, self._bytes(found.address, index)

    def _connection_of(self, inode: Object) -> int | None:
        """Address of the ``struct fuse_conn`` of an inode; None of another file system's."""
        sb = inode.i_sb.value_()
        at = np.flatnonzero(self.supers.address == np.uint64(sb)).tolist()
        if not at or self.supers.types[at[0]] not in TYPES:
            return None
        mount = Object(self.prog, "struct fuse_mount *", inode.i_sb.s_fs_info.value_())
        return int(mount.fc.value_())

    def _bytes(self, page: int, index: int) -> range:
        """Bytes of a file that a folio has."""
        size = int(self.prog["PAGE_SIZE"].value_())
        count = 1
        with contextlib.suppress(*TORN):
            count = int(compound_nr(Object(self.prog, "struct page *", page)))
        return range(index * size, (index + count) * size)

    def _file(self, inode: Object) -> str:
        """The path of an inode; its number where it has none."""
        number, sb = inode.i_ino.value_(), inode.i_sb.value_()
        at = np.flatnonzero(self.supers.address == sb).tolist()
        if first := inode.i_dentry.first.value_():
            roots = self.supers.roots(at[0]) if at else {}
            path, mounted = path_below(self.prog, first - alias_offset(self.prog), roots)
            if path is not None and path != "/" and mounted:
                return path
        device = device_numbers(int(inode.i_sb.s_dev))
        return f"inode {number} of {device}"

    @cached_property
    def supers(self) -> SuperBlocks:
        """All file systems."""
        return read_super_blocks(self.prog)

    def file_system(self, at: int) -> str:
        """A file system: its type, of what it is, and where it is mounted."""
        supers = self.supers
        (path, _), device = supers.mounted(at), supers.mounted_from(at)
        words = [self._type(at) or "a file system"]
        words += [f"of {device}"] if device else []
        return " ".join([*words, *([f"at {path}"] if path else [])])

    def _type(self, at: int) -> str:
        """The type of a file system with what it is of that, as /proc/mounts has it: fuse.sshfs."""
        with contextlib.suppress(*TORN):
            sb = Object(self.prog, "struct super_block", address=int(self.supers.address[at]))
            if sb.s_subtype:
                return f"{self.supers.types[at]}.{name_at(sb.s_subtype)}"
        return self.supers.types[at]

    def device(self, bdi: int) -> str:
        """The file systems that are written to a device or server."""
        of = np.flatnonzero(self.supers.columns["bdi"] == bdi).tolist()
        number = self.prog.read_c_string(
            bdi + offsetof(self.prog.type("struct backing_dev_info"), "dev_name"), max_size=64
        ).decode("ascii", "backslashreplace")
        names = ", ".join(self.file_system(at) for at in of[:3])
        return f"{names} ({number})" if names else f"device {number}"

    def _frozen(self, address: int) -> str | None:
        """The file system whose writers a lock keeps out; None if it is another's."""
        type_ = self.prog.type("struct super_block")
        writers = type_.member("s_writers").type
        first = offsetof(type_, "s_writers.rw_sem")
        room = (writers.member("rw_sem").type.length or 0) * self.prog.type(
            "struct percpu_rw_semaphore"
        ).size
        complete = self.prog.constant("SB_FREEZE_COMPLETE").value_()
        begin = self.supers.address + np.uint64(first)
        for at in np.flatnonzero((begin <= address) & (begin + np.uint64(room) > address)).tolist():
            sb = Object(self.prog, type_, address=int(self.supers.address[at]))
            words = "frozen" if sb.s_writers.frozen == complete else "being frozen or thawed"
            return f"{self.file_system(at)}, {words}"
        return None
