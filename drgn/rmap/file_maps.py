# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps of files: ``address_space.i_mmap``, the interval tree of all VMAs that map a file.

Every VMA with a ``vm_file`` hangs in the tree of ``vm_file->f_mapping`` by its ``vm_pgoff``
(``__vma_link_file()``, mm/mmap.c or mm/vma.c): regular files, shared memory, memfd, hugetlbfs,
device files. ``rmap_walk_file()`` (mm/rmap.c) takes ``i_mmap_rwsem`` to read and visits the VMAs
that overlap a folio, on every kernel; mmap, munmap, mprotect that splits, fork and exit take it to
write for each of their VMAs that maps the file.

The VMAs are those that were read in bulk out of their slab cache (see ``anon_vmas``). Slots that
are free or stale are recognised by the tree: a VMA counts if it is linked, link by link in both
directions, to the node that its file's ``i_mmap`` begins with. Against that are held
``i_mmap_writable``, which the kernel keeps, and for a sample the trees themselves, descended, and
the VMAs of processes, walked (:func:`check_sample`).

Costs a read of the ``struct file``, ``address_space``, ``inode`` and ``super_block`` of each mapped
file. Paths are looked up for those that are shown.

On a live kernel trees are rebalanced while this reads; what then hangs nowhere is left out, and
shows in the checks.

Cannot know: which of the pages are mapped in page tables, and who maps a file that is on DAX by
another name (its pages have no folio in a cache; memory failure walks its tree as well).

The text that says the same is /proc/PID/maps: device, inode, offset and path of every VMA.
"""

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, ProgramFlags, container_of, offsetof
from drgn.helpers.linux.mm import vma_find
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry
from numpy.typing import NDArray

from mmscope.drgn.owners.slab_objects import Objects, tree_links
from mmscope.drgn.processes.processes import Processes
from mmscope.drgn.reading.kernel_arrays import Gaps, struct_dtype
from mmscope.drgn.reading.linked_lists import find, follow_lists
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.rmap.anon_vmas import TORN, check_walks, count, lock_state
from mmscope.drgn.rmap.interval_trees import IntervalTrees, Users, count_users, powers_of_two
from mmscope.drgn.tables.rows import MOST, MOST_PAGES, MOST_PIDS, column
from mmscope.drgn.tables.table import Table

# Beyond these, a large machine's table would be all libraries; the fan-out has them all.
MAX_ROWS = 500
# What check_sample() walks at most, VMAs and tree nodes together: half a second.
SAMPLE = 60_000
# Of VMAs whose file cannot be read, so many are looked up in their process.
MAX_LOOKED_UP = 1000
U57, U63 = np.uint64(57), np.uint64(63)

# include/linux/mm.h, fs.h
VM_SHARED = 0x8
VM_MAYWRITE = 0x20
VM_MAYSHARE = 0x80
S_DAX = 1 << 13
# PATH_MAX is 4,096; a damaged chain of dentries would have no end.
MAX_COMPONENTS = 2048
NAME_BYTES = 256

MAPPING = {
    "host": "host",
    "tree": "i_mmap.rb_root.rb_node",
    "writable": "i_mmap_writable.counter",
    "nrpages": "nrpages",
}
INODE = {
    "mapping": "i_mapping",
    "ino": "i_ino",
    "sb": "i_sb",
    "links": "i_nlink",
    "flags": "i_flags",
}
# What _writable_checks() says.
WRITABLE = "VMAs that are shared and may be written to (i_mmap_writable)"


@dataclass(frozen=True)
class FileMapping:
    """A file that is mapped, and the VMAs that a walk of its tree may visit."""

    address_space: str | None = column(
        holds="kernel", key=True, help="address of the struct address_space"
    )
    device: str | None = column(holds="kernel", key=True, help="major:minor, as in /proc/PID/maps")
    # Some file systems use all 64 bits, which not every table's integers hold.
    inode: str | None = column(holds="kernel", key=True, help="i_ino")
    filesystem: str | None = column(holds="kernel", help="type of its file system")
    file: str | None = column(
        holds="file", help="path in the mount namespace of who mapped it, as in /proc/PID/maps"
    )
    deleted: bool | None = column(help="no directory has it any more (i_nlink is 0)")
    dax: bool | None = column(help="it is mapped past the page cache")
    vmas: int = column(unit="VMAs", help="nodes of its interval tree")
    processes: int = column(help="processes that have these VMAs")
    pid: int | None = column(
        high=MOST_PIDS, help="the process that has most of them; unknown, if it is gone"
    )
    comm: str | None = column(holds="comm", help="its name")
    vmas_of_pid: int = column(unit="VMAs", help="VMAs of that process")
    shared_vmas: int = column(unit="VMAs", help="mapped with MAP_SHARED; the others are private")
    writable_vmas: int | None = column(
        unit="VMAs", help="of these, those that may be written to (i_mmap_writable counts them)"
    )
    first_index: str | None = column(
        holds="kernel", help="page offset at which the first of its VMAs begins"
    )
    pages: int | None = column(unit="pages", high=MOST, help="from there to the end of the last")
    cached_pages: int | None = column(
        unit="pages",
        high=MOST_PAGES,
        help="pages of the file in the page cache (nrpages), mapped or not",
    )
    visits_most: int = column(
        unit="VMAs", help="VMAs over one page: what a walk of it visits, where that is most"
    )
    visits_mean: float = column(
        unit="VMAs", help="the same, mean over the page offsets that any VMA maps"
    )
    lock: str | None = column(
        holds="words", help="state of i_mmap_rwsem: free, read, write, changing hands"
    )


FILE_MAPPINGS = Table(
    "file_mappings",
    "Mapped files, those with most VMAs first",
    FileMapping,
    measure="vmas",
    lasting=("file",),
)


@dataclass(frozen=True)
class FileMappingFanout:
    """How many files have so many VMAs."""

    vmas_from: int = column(key=True, unit="VMAs", help="at least")
    vmas_to: int = column(unit="VMAs", help="at most")
    files: int = column(help="files with so many VMAs in their tree")
    vmas: int = column(unit="VMAs", help="their VMAs")


FILE_MAPPING_FANOUT = Table(
    "file_mapping_fanout", "All mapped files by their VMAs", FileMappingFanout, measure="vmas"
)


@dataclass(frozen=True)
class FileMappingCheck:
    """Something about mapped files that does not fit together."""

    address_space: str | None = column(
        holds="kernel", key=True, help="which; empty, if it is about several"
    )
    problem: str = column(holds="words", key=True, help="what does not fit")
    expected: int | None = column(help="what the kernel keeps, or the other way of counting says")
    found: int = column(help="what was found")


FILE_MAPPING_CHECKS = Table(
    "file_mapping_checks",
    "What does not fit together",
    FileMappingCheck,
    empty="Trees, counters and a walked sample agree on every mapped file.",
)


@dataclass
class FileMaps(IntervalTrees):
    """All files that are mapped, ascending by the address of their ``struct address_space``."""

    mapping: NDArray[np.uint64]
    of_mapping: NDArray[Any]  # its members, see MAPPING
    inode: NDArray[Any]  # those of its inode, see INODE
    inode_read: NDArray[np.bool_]
    vmas: Objects  # in the order of the trees' nodes, not of their addresses
    vma_mm: NDArray[np.int64]  # index into tasks.mm, -1 where no task has it
    first: NDArray[np.uint64]
    last: NDArray[np.uint64]
    start: NDArray[np.int64]
    tasks: Processes
    file_systems: dict[int, "FileSystem"]  # by the address of their super block
    checks: list[FileMappingCheck] = field(default_factory=list)
    gaps: Gaps = field(default_factory=Gaps)

    @cached_property
    def by_huge_page(self) -> NDArray[np.bool_]:
        """Whose page offsets and counts in the page cache are of huge pages."""
        blocks = [self.file_system(index).pages for index in range(len(self.mapping))]
        return np.array(blocks, np.int64) > 1

    def file_system(self, index: int) -> "FileSystem":
        if not self.inode_read[index]:
            return FileSystem(None, None, 1)
        return self.file_systems.get(int(self.inode["sb"][index]), FileSystem(None, None, 1))


@dataclass(frozen=True)
class FileSystem:
    """A super block: its device as /proc/PID/maps has it, and the name of its type."""

    device: str | None
    type: str | None
    pages: int  # base pages that ``nrpages`` and ``folio.index`` count as one


def read_file_maps(prog: Program, slots: Objects, tasks: Processes) -> FileMaps:
    """
    Put together the trees of mapped files.

    :param slots: of the cache of ``struct vm_area_struct``, as :func:`anon_vmas.wanted` has them.
    :raises LookupError: the kernel's layout is unknown.
    """
    gaps = Gaps()
    vmas = slots.only((slots["file"] >> U63 == 1) & (slots["mm"] != 0))
    node = vmas.address + np.uint64(offsetof(prog.type("struct vm_area_struct"), "shared.rb"))
    # A node without a parent is where a tree begins, or was when its slot was last in use. An odd
    # address, which no node has, stands for that tree.
    begins_tree = vmas["file_parent"] & ~np.uint64(3) == 0
    top_node = node[begins_tree]
    links = tree_links(
        node,
        vmas["file_parent"],
        vmas["file_left"],
        vmas["file_right"],
        top_node,
        top_node + np.uint64(1),
    )
    top = follow_lists(node, links, top_node + np.uint64(1)).head.astype(np.int64)

    # Which file it is, a VMA knows; and the file, with which node its tree begins.
    mapping_of = _mappings(prog, vmas, tasks, gaps)
    mapping_of_top = mapping_of[begins_tree]
    mapping = np.unique(mapping_of[mapping_of != 0])
    mapping_type = prog.type("struct address_space")
    columns = dict(MAPPING)
    if prog.type("struct rw_semaphore").has_member("count"):  # not with PREEMPT_RT
        columns["lock"] = "i_mmap_rwsem.count.counter"
    # What an unused slot led to may be no mapping, nor be there.
    of_mapping, read = read_scattered(prog, mapping, struct_dtype(mapping_type, columns), Gaps())
    mapping, of_mapping = mapping[read], of_mapping[read]
    begins = find(node, of_mapping["tree"])
    own_top = np.where(begins >= 0, np.append(top, -1)[begins], -1)
    if prog.flags & ProgramFlags.IS_LIVE:
        _moved(own_top, mapping, of_mapping["tree"], mapping_of_top, top)
    # A tree whose top is another file's is damage.
    sound = own_top >= 0
    sound[sound] = mapping_of_top[own_top[sound]] == mapping[sound]
    host, _ = read_scattered(
        prog, of_mapping["host"], struct_dtype(prog.type("struct inode"), INODE), Gaps()
    )
    # Of memory that is no mapping any more, the host's mapping is another.
    lost = ~sound & (of_mapping["tree"] != 0) & (host["mapping"] == mapping)
    checks = [
        FileMappingCheck(hex(address), "its tree begins with a VMA that was not found", None, 0)
        for address in mapping[lost].tolist()
    ]

    mapping, of_mapping = mapping[sound], of_mapping[sound]
    tree_of_top = np.full(len(top_node) + 1, -1, np.int64)  # the last, for none
    tree_of_top[own_top[sound]] = np.arange(len(mapping))
    tree = tree_of_top[np.where(top >= 0, top, -1)]
    # A VMA whose file could not be read is where its links say.
    elsewhere = (tree >= 0) & (mapping_of != 0) & (mapping_of != np.append(mapping, 0)[tree])
    if number := int(np.count_nonzero(elsewhere)):
        checks.append(FileMappingCheck(None, "VMAs in the tree of another file", 0, number))
    pages = (vmas["end"] - vmas["start"]) >> np.uint64(prog["PAGE_SHIFT"].value_())
    first = vmas["pgoff"].astype(np.uint64)
    odd = (vmas["start"] >= vmas["end"]) | (vmas["end"] >> U57 != 0) | (first >> U57 != 0)
    if number := int(np.count_nonzero(odd & (tree >= 0))):
        checks.append(FileMappingCheck(None, "VMAs with a range that cannot be", 0, number))
    chosen = np.flatnonzero(~odd & (tree >= 0))
    chosen = chosen[np.lexsort((first[chosen], tree[chosen]))]
    start = np.zeros(len(mapping) + 1, np.int64)
    np.cumsum(np.bincount(tree[chosen], minlength=len(mapping)), out=start[1:])
    used = Objects(
        vmas.address[chosen], {name: values[chosen] for name, values in vmas.columns.items()}
    )
    inode, inode_read = read_scattered(
        prog, of_mapping["host"], struct_dtype(prog.type("struct inode"), INODE), gaps
    )
    maps = FileMaps(
        mapping,
        of_mapping,
        inode,
        inode_read,
        used,
        find(tasks.mm, used["mm"]),
        first[chosen],
        first[chosen] + pages[chosen] - np.uint64(1),
        start,
        tasks,
        _file_systems(prog, inode[inode_read]),
        checks,
        gaps,
    )
    maps.checks += _writable_checks(maps)
    return maps


def _mappings(prog: Program, vmas: Objects, tasks: Processes, gaps: Gaps) -> NDArray[np.uint64]:
    """
    ``vm_file->f_mapping`` of each VMA; 0 where that cannot be read.

    It is missing (a gap) only where the process has this VMA: a slot that is not in use may lead to
    memory that a dump does not have.
    """
    at = np.uint64(offsetof(prog.type("struct file"), "f_mapping"))
    mapping, read = read_scattered(prog, vmas["file"] + at, np.dtype("<u8"), Gaps())
    alive = np.flatnonzero(~read & (find(tasks.mm, vmas["mm"]) >= 0))
    for index in alive[:MAX_LOOKED_UP].tolist():
        mm = Object(prog, "struct mm_struct", address=int(vmas["mm"][index]))
        with contextlib.suppress(*TORN):
            vma = vma_find(mm.address_of_(), int(vmas["start"][index]))
            gaps.bytes += 8 * (vma.value_() == int(vmas.address[index]))
    return np.where(read, mapping, np.uint64(0))


def _moved(
    own_top: NDArray[np.int64],
    mapping: NDArray[np.uint64],
    tree: NDArray[np.uint64],
    mapping_of_top: NDArray[np.uint64],
    top: NDArray[np.int64],
) -> None:
    """
    Of files whose tree begins with another VMA by now: that of their tops which has most below it.
    """
    below = np.bincount(top[top >= 0], minlength=len(mapping_of_top))
    for at in np.flatnonzero((own_top < 0) & (tree != 0)).tolist():
        tops = np.flatnonzero(mapping_of_top == mapping[at])
        if len(tops):
            own_top[at] = tops[np.argmax(below[tops])]


def _writable_checks(maps: FileMaps) -> list[FileMappingCheck]:
    """``i_mmap_writable``, against the VMAs that it counts (vma_is_shared_maywrite())."""
    # Below 0 stands for a file that may not be written to any more (mapping_deny_writable()).
    kept = np.maximum(maps.of_mapping["writable"].astype(np.int64), 0)
    counted = writable_vmas(maps)
    return [
        FileMappingCheck(hex(maps.mapping[at]), WRITABLE, int(kept[at]), int(counted[at]))
        for at in np.flatnonzero(kept != counted).tolist()
    ]


def writable_vmas(maps: FileMaps) -> NDArray[np.int64]:
    """VMAs of each file that are shared and may be written to."""
    both = np.uint64(VM_SHARED | VM_MAYWRITE)
    may = maps.vmas["flags"].astype(np.uint64) & both == both
    return np.bincount(maps.tree[may], minlength=len(maps.mapping))


def check_sample(prog: Program, maps: FileMaps, most: int = SAMPLE) -> list[FileMappingCheck]:
    """
    Walk some trees and some processes as the kernel would, and hold the counts against them.

    On a live kernel what differs may have moved.
    """

    def walk_tree(index: int, most: int) -> int | None:
        mapping = Object(prog, "struct address_space", address=int(maps.mapping[index]))
        root = mapping.i_mmap.rb_root.address_of_()
        return count(
            rbtree_inorder_for_each_entry("struct vm_area_struct", root, "shared.rb"), most
        )

    trees, processes = check_walks(
        prog, maps, maps.vma_mm, maps.tasks, walk_tree, lambda vma: vma.vm_file, most
    )
    return [
        FileMappingCheck(
            hex(maps.mapping[index]), "VMAs in its interval tree, descended", walked, size
        )
        for index, walked, size in trees
    ] + [
        FileMappingCheck(None, f"VMAs with a file of process {pid}, walked", walked, found)
        for pid, walked, found in processes
    ]


def users(maps: FileMaps) -> Users:
    """Count the VMAs of every process on every file."""
    return count_users(maps, maps.vma_mm, len(maps.tasks.mm))


def owner_of(maps: FileMaps) -> Callable[[int], tuple[int | None, str | None]]:
    """A function from a file's index to pid and comm of the process with most of its VMAs."""
    by_file = users(maps)

    def owner(index: int) -> tuple[int | None, str | None]:
        mms, _ = by_file.of(index)
        if not len(mms) or mms[-1] < 0:
            return None, None
        return int(maps.tasks.pid[mms[-1]]), maps.tasks.comm[mms[-1]]

    return owner


def _chosen(trees: IntervalTrees, most: int) -> list[int]:
    """The trees with most VMAs, and those with most over one page among the rest."""
    largest = np.argsort(-trees.tree_size, kind="stable")
    deepest = np.argsort(-trees.depths.most, kind="stable")[: most // 2]
    chosen = np.unique(np.concatenate([largest[: most - len(deepest)], deepest]))
    order: list[int] = chosen[np.argsort(-trees.tree_size[chosen], kind="stable")].tolist()
    return order


def file_mapping_rows(prog: Program, maps: FileMaps, most: int = MAX_ROWS) -> list[FileMapping]:
    """The files with most VMAs, and those with most over one page among the rest."""
    sizes, depths = maps.tree_size, maps.depths
    by_file, owner = users(maps), owner_of(maps)
    shared = maps.vmas["flags"].astype(np.uint64) & np.uint64(VM_MAYSHARE) != 0
    shared_vmas = np.bincount(maps.tree[shared], minlength=len(sizes))
    writable = writable_vmas(maps)
    rows = []
    for index in _chosen(maps, most):
        nodes = slice(maps.start[index], maps.start[index + 1])
        mms, counts = by_file.of(index)
        pid, comm = owner(index)
        first = int(maps.first[nodes][0])
        inode = maps.inode[index] if maps.inode_read[index] else None
        file_system = maps.file_system(index)
        lock = (
            maps.of_mapping["lock"][index]
            if "lock" in (maps.of_mapping.dtype.names or ())
            else None
        )
        rows.append(
            FileMapping(
                hex(maps.mapping[index]),
                file_system.device,
                str(inode["ino"]) if inode is not None else None,
                file_system.type,
                path_of(prog, int(maps.vmas["file"][nodes][0])),
                None if inode is None else not inode["links"],
                None if inode is None else bool(inode["flags"] & S_DAX),
                int(sizes[index]),
                int(np.count_nonzero(mms >= 0)),
                pid,
                comm,
                int(counts[-1]),
                int(shared_vmas[index]),
                int(writable[index]),
                hex(first),
                int(maps.last[nodes].max()) + 1 - first,
                int(maps.of_mapping["nrpages"][index]) * file_system.pages,
                int(depths.most[index]),
                round(float(depths.mean[index]), 2),
                None if lock is None else lock_state(int(lock)),
            )
        )
    return rows


def _file_systems(prog: Program, inode: NDArray[Any]) -> dict[int, FileSystem]:
    """By the address of their super block; what cannot be read is left out."""
    found = {}
    # "mm/filemap: remove hugetlb special casing in filemap.c" (v6.7): before, page offsets and
    # nrpages of a hugetlbfs file are of huge pages; with it went this function.
    huge = "hugetlb_basepage_index" in prog
    page = prog["PAGE_SIZE"].value_()
    for address in np.unique(inode["sb"]).tolist():
        sb = Object(prog, "struct super_block", address=address)
        with contextlib.suppress(FaultError):
            dev = sb.s_dev.value_()
            name = prog.read_c_string(sb.s_type.name.value_(), max_size=NAME_BYTES)
            pages = 1
            if huge and name == b"hugetlbfs":
                pages = max(sb.s_blocksize.value_() // page, 1)
            found[address] = FileSystem(
                f"{dev >> 20:02x}:{dev & 0xFFFFF:02x}",
                name.decode("utf-8", "backslashreplace"),
                pages,
            )
    return found


def path_of(prog: Program, file: int) -> str | None:
    """
    The path of a ``struct file``, as ``d_path()`` and /proc/PID/maps have it (fs/d_path.c); None if
    it cannot be read, or has no end.

    From the root of the mount namespace, not that of a process that is in a chroot.
    """
    try:
        path = Object(prog, "struct file", address=file).f_path
        dentry = path.dentry.read_()
        mnt = container_of(path.mnt, "struct mount", "mnt").read_()
        if dentry.d_op and dentry.d_op.d_dname:
            # Files that are in no directory: memfd, SysV shared memory, MAP_HUGETLB.
            return f"/{_name(prog, dentry)} (deleted)"
        # d_unlinked(): hashed nowhere, and not a root.
        gone = not dentry.d_hash.pprev and dentry != dentry.d_parent
        parts: list[str] = []
        for _ in range(MAX_COMPONENTS):
            if dentry == mnt.mnt.mnt_root:
                above = mnt.mnt_parent.read_()
                if above == mnt:
                    return "/" + "/".join(reversed(parts)) + (" (deleted)" if gone else "")
                dentry, mnt = mnt.mnt_mountpoint.read_(), above
                continue
            if dentry == dentry.d_parent:  # unmounted lazily
                return "/".join(reversed(parts)) + (" (deleted)" if gone else "")
            parts.append(_name(prog, dentry))
            dentry = dentry.d_parent.read_()
    except TORN:
        return None
    return None


def _name(prog: Program, dentry: Object) -> str:
    """A component of a path; a newline as /proc/PID/maps writes it."""
    name = prog.read_c_string(dentry.d_name.name.value_(), max_size=NAME_BYTES)
    text: str = name.decode("utf-8", "backslashreplace")
    return text.replace("\n", "\\012")


def file_fanout(maps: IntervalTrees) -> list[FileMappingFanout]:
    """All files by the number of their VMAs, in powers of two."""
    return [
        FileMappingFanout(low, high, files, vmas)
        for low, high, files, vmas in powers_of_two(maps.tree_size)
        if low
    ]


@dataclass
class MappedFiles:
    """Counts VMAs by file from the text of /proc/PID/maps, process by process."""

    numbers: dict[tuple[str, str], int] = field(default_factory=dict)  # of (device, inode)
    paths: list[str] = field(default_factory=list)
    # Of each VMA: the file, its first and last byte there, the process, whether it is shared.
    vmas: list[tuple[int, int, int, int, bool]] = field(default_factory=list)

    def take(self, pid: int, text: str) -> None:
        """
        Count a process. The lines are of fs/proc/task_mmu.c, show_map_vma().

        Lines of another form are not about a file.
        """
        for line in text.splitlines():
            # 7f45cd1be000-7f45cd1c0000 rw-s 00000000 00:19 5      /tmp/gone (deleted)
            match = MAPS_LINE.fullmatch(line)
            if match is None or (match[5] == "00:00" and match[6] == "0"):
                continue
            begin, end, offset = (int(match[n], 16) for n in (1, 2, 4))
            if not begin < end <= 1 << 57 or offset >> 63:
                continue
            key = match[5], match[6]
            number = self.numbers.setdefault(key, len(self.numbers))
            if number == len(self.paths):
                self.paths.append(match[7] or "")
            self.vmas.append((number, offset, offset + end - begin - 1, pid, match[3] == "s"))


MAPS_LINE = re.compile(
    r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-][x-]([sp]) ([0-9a-f]{1,16}) "
    r"([0-9a-f]{2,3}:[0-9a-f]{2,5}) ([0-9]{1,20})(?: +(.*))?"
)


@dataclass
class _TextTrees(IntervalTrees):
    first: NDArray[np.uint64]
    last: NDArray[np.uint64]
    start: NDArray[np.int64]


def mapped_files(
    found: MappedFiles,
    comms: Mapping[int, str | None],
    page_size: int | None,
    most: int = MAX_ROWS,
) -> tuple[list[FileMapping], list[FileMappingFanout]]:
    """The same rows from text, which does not tell trees, inodes and locks; and the fan-out."""
    files = len(found.numbers)
    vmas = sorted(found.vmas)
    number, pid, shared = (np.array([vma[at] for vma in vmas], np.int64) for at in (0, 3, 4))
    start = np.searchsorted(number, np.arange(files + 1))
    first_byte, last_byte = (np.array([vma[at] for vma in vmas], np.uint64) for at in (1, 2))
    trees = _TextTrees(first_byte, last_byte, start)
    pids = np.unique(pid)
    by_file = count_users(trees, np.searchsorted(pids, pid), len(pids))
    shared_vmas = np.bincount(number, shared.astype(np.float64), files).astype(np.int64)
    sizes, depths = trees.tree_size, trees.depths
    names = list(found.numbers)
    rows = []
    for index in _chosen(trees, most):
        nodes = slice(start[index], start[index + 1])
        who, counts = by_file.of(index)
        owner = int(pids[who[-1]])
        first, end = int(trees.first[nodes][0]), int(trees.last[nodes].max()) + 1
        rows.append(
            FileMapping(
                None,
                *names[index],
                None,
                found.paths[index],
                None,
                None,
                int(sizes[index]),
                len(who),
                owner,
                comms.get(owner),
                int(counts[-1]),
                int(shared_vmas[index]),
                None,
                hex(first // page_size) if page_size else None,
                (end - first) // page_size if page_size else None,
                None,
                int(depths.most[index]),
                round(float(depths.mean[index]), 2),
                None,
            )
        )
    return rows, file_fanout(trees)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("file_maps")
