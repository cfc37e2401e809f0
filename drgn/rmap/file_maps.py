# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps of files: ``address_space.i_mmap``, the interval tree of all VMAs that map a file.

Every VMA with a ``vm_file`` hangs in the tree of ``vm_file->f_mapping`` by its ``vm_pgoff``
(``__vma_link_file()``, mm/mmap.c or mm/vma.c): regular files, shared memory, memfd, hugetlbfs,
device files. ``rmap_walk_file()`` (mm/rmap.c) takes ``i_mmap_rwsem`` to read and visits the VMAs
that overlap a folio, on every kernel; mmap, munmap, mprotect that splits, fork and exit take it to
write for each of their VMAs that maps the file.

The VMAs were read in bulk out of their slab cache (see ``reverse_maps``). The tree shows which
slots are free or stale: a VMA counts if it is linked, link by link in both directions, to the node
that its file's ``i_mmap`` begins with. The counts are compared with ``i_mmap_writable``, which the
kernel keeps. For a sample, the trees are descended and the VMAs of processes walked.

Costs a read of the ``struct file``, ``address_space``, ``inode`` and ``super_block`` of each mapped
file, and of a few ``struct dentry`` for the path of each that is shown.

On a live kernel trees are rebalanced meanwhile. A VMA that then hangs nowhere is left out, and
shows in the checks.

Cannot know: which of the pages are mapped in page tables, and who maps a file that is on DAX by
another name (its pages have no folio in a cache; memory failure walks its tree as well).

The text that says the same is /proc/PID/maps: device, inode, offset and path of every VMA.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from drgn import FaultError, Object, Program, ProgramFlags, offsetof
from drgn.helpers.linux.mm import vma_find

from mmscope.drgn.filesystems.super_blocks import links_apart
from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.owners.slab_objects import Objects, tree_links
from mmscope.drgn.processes.processes import FilesMapped, Processes, note_missing, process_maps
from mmscope.drgn.reading.dentry_paths import path_of
from mmscope.drgn.reading.kernel_arrays import (
    TORN,
    Array,
    Bools,
    Gaps,
    S64s,
    U64s,
    distinct,
    struct_dtype,
)
from mmscope.drgn.reading.kernel_names import device_numbers, name_at
from mmscope.drgn.reading.linked_lists import find, follow_lists
from mmscope.drgn.reading.rwsem_counts import lock_columns, lock_counts, lock_state
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.rmap.reverse_maps import (
    IntervalTrees,
    check_sample,
    impossible_ranges,
    note_reverse_maps,
    powers_of_two,
    reverse_maps,
    starts,
)
from mmscope.drgn.rmap.rwsem_waiters import NO_LOCKS, OWNER, OWNER_IS, STATES, WANTS, taken_locks
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import MOST, MOST_PAGES, MOST_PIDS, column
from mmscope.drgn.tables.table import table, tables_of

# Beyond these, a large machine's table would be all libraries; the fan-out has them all.
MAX_ROWS = 500
# Of VMAs whose file cannot be read, so many are looked up in their process.
MAX_LOOKED_UP = 1000
U63 = np.uint64(63)

# include/linux/mm.h, fs.h
VM_SHARED = 0x8
VM_MAYWRITE = 0x20
VM_MAYSHARE = 0x80
S_DAX = 1 << 13
MOST_LINKS = 1 << 24  # of a file; a name of each is somewhere
MOST_FLAGS = 1 << 20  # the last of include/linux/fs.h is 1 << 16 in 5.10, 1 << 19 in 7.3

MAPPING = {
    "host": "host",
    "tree": "i_mmap.rb_root.rb_node",
    "writable": "i_mmap_writable.counter",
    "nrpages": "nrpages",
    "pages": "i_pages.xa_head",
}
INODE = {
    "mapping": "i_mapping",
    "ino": "i_ino",
    "sb": "i_sb",
    "links": "i_nlink",
    "flags": "i_flags",
}


@table(
    "file_mapping_checks",
    "Mapped files that do not add up",
    empty="Trees, counters and a walked sample agree on every mapped file.",
)
class FileMappingCheck:
    """A disagreement between mapped files."""

    address_space: str | None = column(holds="kernel", key=True, help="address; empty: several")
    problem: str = column(holds="words", key=True, help="what disagrees")
    expected: int | None = column(help="the kernel's count, or the other way of counting")
    found: int = column(help="what was found")


@table(
    "file_mappings", "Mapped files, those with most VMAs first", measure="vmas", lasting=("file",)
)
class FileMapping:
    """A mapped file, and the VMAs of its tree."""

    address_space: str | None = column(
        holds="kernel", key=True, help="address of the struct address_space"
    )
    device: str | None = column(holds="kernel", key=True, help="major:minor, as in /proc/PID/maps")
    # Some file systems use all 64 bits, which not every table's integers hold.
    inode: str | None = column(holds="kernel", key=True, help="i_ino")
    filesystem: str | None = column(holds="kernel", help="type of its file system")
    file: str | None = column(
        holds="file", help="path in the mapper's mount namespace, as in /proc/PID/maps"
    )
    deleted: bool | None = column(help="no directory has it any more (i_nlink is 0)")
    dax: bool | None = column(help="mapped past the page cache")
    vmas: int = column(unit="VMAs", help="nodes of its interval tree")
    processes: int = column(help="processes with these VMAs")
    pid: int | None = column(high=MOST_PIDS, help="process with most of them; empty: it is gone")
    comm: str | None = column(holds="comm", help="name of the process")
    vmas_of_pid: int = column(unit="VMAs", help="VMAs of that process")
    shared_vmas: int = column(unit="VMAs", help="MAP_SHARED; the others are private")
    writable_vmas: int | None = column(unit="VMAs", help="of these, writable (i_mmap_writable)")
    first_index: str | None = column(holds="kernel", help="page offset of its first VMA's start")
    pages: int | None = column(unit="pages", high=MOST, help="from there to its last VMA's end")
    cached_pages: int | None = column(
        unit="pages",
        high=MOST_PAGES,
        help="pages in the page cache (nrpages), mapped or not",
    )
    visits_most: int = column(
        unit="VMAs", help="VMAs over the most mapped page: visits of its walk"
    )
    visits_mean: float = column(unit="VMAs", help="mean over the page offsets that any VMA maps")
    lock: str | None = column(
        holds="words", help="state of i_mmap_rwsem: free, read, write, changing hands"
    )


@table("file_mapping_fanout", "All mapped files by their VMAs", measure="vmas")
class FileMappingFanout:
    """Files by their number of VMAs."""

    vmas_from: int = column(key=True, unit="VMAs", help="at least")
    vmas_to: int = column(unit="VMAs", help="at most")
    files: int = column(help="files with that many VMAs in their tree")
    vmas: int = column(unit="VMAs", help="their VMAs")


@table(
    "file_mapping_locks",
    "Locks of mapped files that are taken",
    empty="No mapped file's i_mmap_rwsem was taken at that moment.",
)
class FileMappingLock:
    """An ``i_mmap_rwsem`` that is taken or waited for."""

    address_space: str = column(holds="kernel", key=True, help="address_space that has it")
    state: str = column(holds="words", help=STATES)
    readers: int = column(high=MOST_PIDS, help="readers holding it")
    owner_pid: int | None = column(high=MOST_PIDS, help=OWNER)
    owner_comm: str | None = column(holds="comm", help="name of the process")
    owner_is: str | None = column(holds="words", help=OWNER_IS)
    waiters: int = column(high=MOST_PIDS, help="tasks queued on it")
    vmas: int = column(unit="VMAs", help="nodes of its tree")
    stack: str | None = column(holds="kernel", help="of the owner: root;…;leaf")


@table(
    "file_mapping_waiters",
    "Tasks queued on locks of mapped files",
    empty="No task was queued on an i_mmap_rwsem at that moment.",
)
class FileMappingWaiter:
    """A task that is queued on an ``i_mmap_rwsem``."""

    address_space: str = column(holds="kernel", key=True, help="address_space that has it")
    position: int = column(key=True, help="place in the queue, from 0")
    pid: int = column(high=MOST_PIDS, help="task")
    comm: str = column(holds="comm", help="name of the process")
    wants: str | None = column(holds="words", help=WANTS)
    stack: str | None = column(holds="kernel", help="where it sleeps: root;…;leaf")


@dataclass(kw_only=True)
class FileMaps(IntervalTrees):
    """
    All files that are mapped, ascending by the address of their ``struct address_space``; nodes are
    VMAs.
    """

    ROOT: ClassVar = ("struct address_space", "i_mmap")
    NODE: ClassVar = ("struct vm_area_struct", "shared.rb")
    LINKED: ClassVar = ("vm_file", "a file")
    CHECK: ClassVar[type] = FileMappingCheck

    addresses: U64s
    mappings: Array  # their members, see MAPPING
    inodes: Array  # see INODE
    inode_read: Bools
    vmas: Objects  # in the order of the trees' nodes, not of their addresses
    # By the address of their super block: device as /proc/PID/maps has it, name of the type, and
    # base pages that ``nrpages`` and ``folio.index`` count as one.
    file_systems: dict[int, tuple[str | None, str | None, int]]
    checks: list[FileMappingCheck] = field(default_factory=list)
    gaps: Gaps = field(default_factory=Gaps)

    @cached_property
    def by_huge_page(self) -> Bools:
        """Mask of files whose page offsets and counts in the page cache are of huge pages."""
        units = [unit for _, _, unit in map(self.file_system, range(len(self.addresses)))]
        return np.array(units, np.int64) > 1

    def file_system(self, at: int) -> tuple[str | None, str | None, int]:
        """Device, type and unit of a file's pages, as :attr:`file_systems` has them."""
        sb = int(self.inodes["sb"][at]) if self.inode_read[at] else 0
        return self.file_systems.get(sb, (None, None, 1))

    @property
    def locks(self) -> S64s | None:
        """Counts of each ``i_mmap_rwsem``; None where they are not read."""
        names = self.mappings.dtype.names or ()
        queues = self.mappings["queue"] if "queue" in names else None
        return lock_counts(self.mappings["lock"], queues) if "lock" in names else None

    @property
    def writable(self) -> S64s:
        """VMAs of each file that are shared and may be written to."""
        both = np.uint64(VM_SHARED | VM_MAYWRITE)
        may = self.vmas["flags"].astype(np.uint64) & both == both
        return np.bincount(self.tree[may], minlength=len(self.addresses))


def read_file_maps(prog: Program, slots: Objects, tasks: Processes) -> FileMaps:
    """
    Put together the trees of mapped files.

    :param slots: of the cache of ``struct vm_area_struct``, as :func:`reverse_maps.wanted` has
        them.
    :raises LookupError: the kernel's layout is unknown.
    """
    gaps = Gaps()
    vmas = slots.only((slots["file"] >> U63 == 1) & (slots["mm"] != 0))
    mapping_of, empty = _mappings(prog, vmas, tasks, gaps)
    mapping, members, tree, checks = _trees(prog, vmas, mapping_of)
    checks += empty
    # A VMA whose file could not be read is where its links say.
    elsewhere = (tree >= 0) & (mapping_of != 0) & (mapping_of != np.append(mapping, 0)[tree])
    first = vmas["pgoff"].astype(np.uint64)
    odd = impossible_ranges(vmas, first)
    for problem, which in (
        ("VMAs in the tree of another file", elsewhere),
        ("VMAs with a range that cannot be", odd & (tree >= 0)),
    ):
        if number := int(np.count_nonzero(which)):
            checks.append(FileMappingCheck(None, problem, 0, number))
    chosen = np.flatnonzero(~odd & (tree >= 0))
    chosen = chosen[np.lexsort((first[chosen], tree[chosen]))]
    used, first = vmas.only(chosen), first[chosen]
    pages = (used["end"] - used["start"]) >> np.uint64(prog["PAGE_SHIFT"].value_())
    inodes, inode_read = _inodes(prog, members["host"], gaps)
    maps = FileMaps(
        addresses=mapping,
        mappings=members,
        inodes=inodes,
        inode_read=inode_read,
        vmas=used,
        vma_mm=find(tasks.mm, used["mm"]),
        first=first,
        last=first + pages - np.uint64(1),
        start=starts(tree[chosen], len(mapping)),
        tasks=tasks,
        file_systems=_file_systems(prog, inodes[inode_read]),
        checks=checks,
        gaps=gaps,
    )
    # vma_is_shared_maywrite(). Below 0 stands for a file that may not be written to any more
    # (mapping_deny_writable()).
    expected, found = np.maximum(members["writable"].astype(np.int64), 0), maps.writable
    problem = "VMAs that are shared and may be written to (i_mmap_writable)"
    maps.checks += [
        FileMappingCheck(hex(mapping[at]), problem, int(expected[at]), int(found[at]))
        for at in np.flatnonzero(expected != found).tolist()
    ]
    return maps


def mapped_file_trees(memory: Memory) -> FileMaps:
    """The trees of mapped files, read once for all sections: no pass of their own."""
    maps = reverse_maps(memory)
    return memory.once(
        "file_maps", lambda: read_file_maps(memory.prog, maps.slots["vma"], maps.tasks)
    )


def _trees(
    prog: Program, vmas: Objects, mapping_of: U64s
) -> tuple[U64s, Array, S64s, list[FileMappingCheck]]:
    """
    Find the trees. A VMA knows its file, and the file with which node its tree begins.

    :param mapping_of: the file of each VMA.
    :return: the files whose tree begins with a node that was found: ``struct address_space`` and
        its members (see MAPPING); the file whose tree each VMA is linked into, -1 for none; and the
        files whose tree was not found.
    """
    node = vmas.address + np.uint64(offsetof(prog.type("struct vm_area_struct"), "shared.rb"))
    # A node without a parent is where a tree begins, or was when its slot was last in use. An odd
    # address, which no node has, stands for that tree.
    begins_tree = vmas["file_parent"] & ~np.uint64(3) == 0
    top_node, mapping_of_top = node[begins_tree], mapping_of[begins_tree]
    parent, left, right = (vmas[f"file_{link}"] for link in ("parent", "left", "right"))
    links = tree_links(node, parent, left, right, top_node, top_node + np.uint64(1))
    top = follow_lists(node, links, top_node + np.uint64(1)).head.astype(np.int64)

    columns = MAPPING | lock_columns(prog, "i_mmap_rwsem")
    # What an unused slot led to may be no mapping, nor be there.
    mapping = distinct(mapping_of[mapping_of != 0])
    dtype = struct_dtype(prog.type("struct address_space"), columns)
    members, read = read_scattered(prog, mapping, dtype, Gaps())
    mapping, members = mapping[read], members[read]
    begins = find(node, members["tree"])
    own_top = np.where(begins >= 0, np.append(top, -1)[begins], -1)
    # If memory is no longer a mapping, its host's mapping is another one.
    host, _ = _inodes(prog, members["host"], Gaps())
    has_tree = (members["tree"] != 0) & (host["mapping"] == mapping)
    if prog.flags & ProgramFlags.IS_LIVE:
        _moved(own_top, mapping, has_tree, mapping_of_top, top)
    # A tree whose top is another file's is damage.
    sound = own_top >= 0
    sound[sound] = mapping_of_top[own_top[sound]] == mapping[sound]
    checks = [
        FileMappingCheck(hex(address), "its tree begins with a VMA that was not found", None, 0)
        for address in mapping[~sound & has_tree].tolist()
    ]
    tree_of_top = np.full(len(top_node) + 1, -1, np.int64)  # the last, for none
    tree_of_top[own_top[sound]] = np.arange(np.count_nonzero(sound))
    return mapping[sound], members[sound], tree_of_top[np.maximum(top, -1)], checks


def _inodes(prog: Program, addresses: U64s, gaps: Gaps) -> tuple[Array, Bools]:
    return read_scattered(prog, addresses, struct_dtype(prog.type("struct inode"), INODE), gaps)


def _mappings(
    prog: Program, vmas: Objects, tasks: Processes, gaps: Gaps
) -> tuple[U64s, list[FileMappingCheck]]:
    """
    ``vm_file->f_mapping`` of each VMA; 0 where that cannot be read. And those whose tree is empty.

    One is missing (a gap) only where the process has this VMA: a slot that is not in use may lead
    to memory that a dump does not have.
    """
    at = np.uint64(offsetof(prog.type("struct file"), "f_mapping"))
    mapping, read = read_scattered(prog, vmas["file"] + at, np.dtype("<u8"), Gaps())
    read &= mapping != 0  # every file that is open has one (do_dentry_open(), fs/open.c)
    files = distinct(mapping[read])
    at = np.uint64(offsetof(prog.type("struct address_space"), MAPPING["tree"]))
    trees, there = read_scattered(prog, files + at, np.dtype("<u8"), Gaps())
    read &= ~np.isin(mapping, files[~there])
    empty = np.isin(mapping, files[there & (trees == 0)])
    led = Counter[int]()
    alive = np.flatnonzero((~read | empty) & (find(tasks.mm, vmas["mm"]) >= 0))
    for index in alive[:MAX_LOOKED_UP].tolist():
        mm = Object(prog, "struct mm_struct", address=int(vmas["mm"][index]))
        with contextlib.suppress(*TORN):
            vma = vma_find(mm.address_of_(), int(vmas["start"][index]))
            if vma.value_() != int(vmas.address[index]):
                continue
            if empty[index]:
                led[int(mapping[index])] += 1
            else:
                gaps.bytes += 8
    problem = "its tree is empty, and VMAs lead to it"
    checks = [FileMappingCheck(hex(file), problem, number, 0) for file, number in led.items()]
    return np.where(read, mapping, np.uint64(0)), checks


def _moved(own_top: S64s, mapping: U64s, has_tree: Bools, mapping_of_top: U64s, top: S64s) -> None:
    """
    Tops of files whose tree begins with another VMA by now: that which has most below it.
    """
    below = np.bincount(top[top >= 0], minlength=len(mapping_of_top))
    for at in np.flatnonzero((own_top < 0) & has_tree).tolist():
        tops = np.flatnonzero(mapping_of_top == mapping[at])
        if len(tops):
            own_top[at] = tops[np.argmax(below[tops])]


def _file_systems(prog: Program, inodes: Array) -> dict[int, tuple[str | None, str | None, int]]:
    """Read :attr:`FileMaps.file_systems`; what cannot be read is left out."""
    found: dict[int, tuple[str | None, str | None, int]] = {}
    # "mm/filemap: remove hugetlb special casing in filemap.c" (a08c7193e4f1, in v6.7): before, page
    # offsets and nrpages of a hugetlbfs file are of huge pages; with it went this function.
    huge = "hugetlb_basepage_index" in prog
    page = prog["PAGE_SIZE"].value_()
    for address in distinct(inodes["sb"]).tolist():
        sb = Object(prog, "struct super_block", address=address)
        with contextlib.suppress(FaultError):
            device, name, pages = device_numbers(sb.s_dev.value_()), name_at(sb.s_type.name), 1
            if huge and name == "hugetlbfs":
                pages = max(sb.s_blocksize.value_() // page, 1)
            found[address] = device, name, pages
    return found


def _chosen(trees: IntervalTrees) -> list[int]:
    """The trees with most VMAs, and those with most over one page among the rest."""
    largest = np.argsort(-trees.tree_size, kind="stable")
    deepest = np.argsort(-trees.depths[0], kind="stable")[: MAX_ROWS // 2]
    chosen = distinct(np.concatenate([largest[: MAX_ROWS - len(deepest)], deepest]))
    # On a live kernel the last VMA of a tree may go while it is read.
    chosen = chosen[trees.tree_size[chosen] > 0]
    order: list[int] = chosen[np.argsort(-trees.tree_size[chosen], kind="stable")].tolist()
    return order


def _rows(trees: IntervalTrees, more: Callable[[int], dict[str, Any]]) -> list[FileMapping]:
    """
    The files with most VMAs, and those with most over one page among the rest.

    :param more: the columns of a file that are not made of its tree.
    """
    visits_most, visits_mean = trees.depths
    return [
        FileMapping(
            **trees.cells(at),
            visits_most=int(visits_most[at]),
            visits_mean=round(float(visits_mean[at]), 2),
            **more(at),
        )
        for at in _chosen(trees)
    ]


def file_mapping_rows(prog: Program, maps: FileMaps) -> list[FileMapping]:
    """The files with most VMAs, and those with most over one page among the rest."""
    shared = maps.vmas["flags"].astype(np.uint64) & np.uint64(VM_MAYSHARE) != 0
    shared_vmas = np.bincount(maps.tree[shared], minlength=len(maps.addresses))
    writable = maps.writable
    locks = maps.locks

    def more(at: int) -> dict[str, Any]:
        inode = maps.inodes[at] if maps.inode_read[at] else None
        device, type_, unit = maps.file_system(at)
        first, end = maps.range(at)
        return {
            "address_space": hex(maps.addresses[at]),
            "device": device,
            "inode": None if inode is None else str(inode["ino"]),
            "filesystem": type_,
            "file": path_of(prog, int(maps.vmas["file"][maps.start[at]])),
            "deleted": None if inode is None else not inode["links"],
            "dax": None if inode is None else bool(inode["flags"] & S_DAX),
            "shared_vmas": int(shared_vmas[at]),
            "writable_vmas": int(writable[at]),
            "first_index": hex(first),
            "pages": end - first,
            "cached_pages": int(maps.mappings["nrpages"][at]) * unit,
            "lock": None if locks is None else lock_state(int(locks[at])),
        }

    return _rows(maps, more)


def file_fanout(trees: IntervalTrees) -> list[FileMappingFanout]:
    """All files by the number of their VMAs, in powers of two."""
    return [
        FileMappingFanout(low, high, int(np.count_nonzero(here)), int(trees.tree_size[here].sum()))
        for low, high, here in powers_of_two(trees.tree_size)
        if low
    ]


def file_mapping_locks(
    prog: Program, maps: FileMaps
) -> tuple[list[FileMappingLock], list[FileMappingWaiter], list[str]]:
    """Locks that are taken or waited for, those with most waiters first; and what went wrong."""
    if (counts := maps.locks) is None:
        return [], [], [NO_LOCKS]
    locks, queued, problems = taken_locks(
        prog,
        "struct address_space",
        "i_mmap_rwsem",
        maps.addresses,
        counts,
        maps.tree_size,
    )
    waiters = [FileMappingWaiter(*cells) for cells in queued]
    return [FileMappingLock(*cells) for cells in locks], waiters, problems


# Columns that /proc/PID/maps does not say.
UNKNOWN_IN_TEXT = (
    *("address_space", "filesystem", "deleted", "dax"),
    *("writable_vmas", "cached_pages", "lock"),
)


def mapped_files(
    found: FilesMapped, comms: Mapping[int, str | None], page_size: int | None
) -> tuple[list[FileMapping], list[FileMappingFanout]]:
    """The same rows from text, without trees, inodes and locks; and the fan-out."""
    vmas = np.array([vma for _, of_file in found.values() for vma in sorted(of_file)], np.uint64)
    first, last, pid, shared = vmas.reshape(-1, 4).T.copy()
    pids = distinct(pid)
    names = [comms.get(pid) for pid in pids.tolist()]
    trees = IntervalTrees(
        first=first,
        last=last,
        start=np.cumsum([0, *(len(of_file) for _, of_file in found.values())]),
        vma_mm=np.searchsorted(pids, pid),
        tasks=Processes(pids, pids.astype(np.int64), names),
    )
    files = list(found.items())
    shared_vmas = np.bincount(trees.tree[shared != 0], minlength=len(files))

    def more(at: int) -> dict[str, Any]:
        (device, inode), (path, _) = files[at]
        first, end = trees.range(at)
        columns = dict.fromkeys(UNKNOWN_IN_TEXT)
        return columns | {
            "device": device,
            "inode": inode,
            "file": path,
            "shared_vmas": int(shared_vmas[at]),
            "first_index": hex(first // page_size) if page_size else None,
            "pages": (end - first) // page_size if page_size else None,
        }

    return _rows(trees, more), file_fanout(trees)


def flags_apart(maps: FileMaps) -> int:
    """
    Number of files with pages and nothing that leads to one; with pages although they are on DAX
    (``dax_insert_entry()``, fs/dax.c, counts none), or with flags or links that no inode has.
    """
    pages, flags = maps.mappings["nrpages"] != 0, maps.inodes["flags"]
    odd = pages & (maps.mappings["pages"] == 0)
    odd |= maps.inode_read & (flags >= MOST_FLAGS)
    odd |= maps.inode_read & pages & ((flags & S_DAX) != 0)
    odd |= maps.inode_read & (maps.inodes["links"] > MOST_LINKS)
    return int(np.count_nonzero(odd))


def file_maps_from_memory(memory: Memory) -> Found:
    maps = mapped_file_trees(memory)
    found = Found(
        memory.live, unreadable_bytes=maps.gaps.bytes + reverse_maps(memory).unreadable_bytes
    )
    note_reverse_maps(memory, found)
    found.differ(
        *if_any(maps.gaps.bytes, "{} bytes of files, mappings and inodes could not be read")
    )
    checks = maps.checks + check_sample(memory.prog, maps)
    words = "{} of mapped files that do not fit together (file_mapping_checks)"
    found.differ(*if_any(len(checks), words, "count"))
    rows = file_mapping_rows(memory.prog, maps)
    nameless = sum(None in (row.file, row.filesystem) for row in rows)
    apart = sum(links_apart(row.file, row.deleted, row.filesystem) for row in rows)
    words = "the names of {}, or of their file systems, cannot be read"
    found.differ(
        *if_any(nameless, words, "file"),
        *if_any(apart, "links and names of {} do not fit", "file"),
        *if_any(flags_apart(maps), "pages and flags of {} do not fit", "file"),
    )
    _note_unlisted(found, rows, len(maps.addresses))
    found.add(FileMappingFanout, file_fanout(maps)).add(FileMapping, rows)
    locks, queued, problems = file_mapping_locks(memory.prog, maps)
    found.differ(*problems)
    found.add(FileMappingLock, locks).add(FileMappingWaiter, queued)
    return found.add(FileMappingCheck, checks)


def file_maps_from_files(files: Files) -> Found:
    processes, missing, mapped = process_maps(files)
    if not processes and not missing:
        raise Absent(f"{files.root}: proc has no maps of processes")
    page_size = None
    with contextlib.suppress(Absent):
        page_size = describe_files(files).page_size
    comms = {row.pid: row.comm for row in processes}
    rows, classes = mapped_files(mapped, comms, page_size)
    found = Found(remarks=["counted from maps, by device and inode"])
    note_missing(found, missing)
    _note_unlisted(found, rows, len(mapped))
    found.add(FileMappingFanout, classes)
    return found.add(FileMapping, rows)


def _note_unlisted(found: Found, rows: list[FileMapping], files: int) -> None:
    if len(rows) < files:
        found.unlisted.append(
            f"{len(rows):,} of {files:,} mapped files are listed, those with most VMAs and those "
            "with most over one page; file_mapping_fanout has them all"
        )


FILE_MAPS_SECTION = Section(
    name="file_maps",
    title="File reverse maps",
    since="0.2.0",
    tables=tables_of(
        FileMappingFanout,
        FileMapping,
        FileMappingLock,
        FileMappingWaiter,
        FileMappingCheck,
    ),
    intro="""
Pages of files, of shared memory and of hugetlbfs are found through their file's
`address_space`: `i_mmap` is the tree of all VMAs that map the file, in all processes, under one
lock, `i_mmap_rwsem` ([kernel documentation: process
addresses](https://docs.kernel.org/mm/process_addrs.html)). A walk takes the lock to read and
visits the VMAs that lie over the page, on every kernel; `mmap`, `munmap`, `fork` and the end of
a process take it to write, once for each VMA that maps the file. So a page that very many VMAs
map is slow to reclaim, to write back and to migrate, and the lock of a file that very many
processes map is contended. What walks of cached pages cost is in the section on the cost of
reverse map walks.
""",
    command=Command("mapped files by their VMAs", top=TOP, picks="address_space"),
    from_memory=file_maps_from_memory,
    from_files=file_maps_from_files,
    deadline=PASS_SECONDS,
    reads=(
        prices.MAPS,
        prices.STATUS,
        prices.SETTINGS,
        prices.ZONEINFO,
        prices.NAMES,
    ),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("file_maps")
