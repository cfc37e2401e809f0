# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps of files: ``address_space.i_mmap``, the interval tree of all VMAs that map a file.

Every VMA with a ``vm_file`` hangs in the tree of ``vm_file->f_mapping`` by its ``vm_pgoff``
(``__vma_link_file()``, mm/mmap.c or mm/vma.c): regular files, shared memory, memfd, hugetlbfs,
device files. ``rmap_walk_file()`` (mm/rmap.c) takes ``i_mmap_rwsem`` to read and visits the VMAs
that overlap a folio, on every kernel; mmap, munmap, mprotect that splits, fork and exit take it to
write for each of their VMAs that maps the file.

The VMAs were read in bulk out of their slab cache (see ``anon_vma_trees``). The tree shows which
slots are free or stale: a VMA counts if it is linked, link by link in both directions, to the node
that its file's ``i_mmap`` begins with. The counts are compared with ``i_mmap_writable``, which the
kernel keeps. For a sample, the trees are descended and the VMAs of processes walked
(:func:`check_sample`).

Costs a read of the ``struct file``, ``address_space``, ``inode`` and ``super_block`` of each mapped
file.

On a live kernel trees are rebalanced meanwhile. A VMA that then hangs nowhere is left out, and
shows in the checks.

Cannot know: which of the pages are mapped in page tables, and who maps a file that is on DAX by
another name (its pages have no folio in a cache; memory failure walks its tree as well).
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, ProgramFlags, offsetof
from drgn.helpers.linux.mm import vma_find
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry
from numpy.typing import NDArray

from mmscope.drgn.owners.slab_objects import Objects, tree_links
from mmscope.drgn.processes.processes import Processes
from mmscope.drgn.reading.kernel_arrays import TORN, Gaps, distinct, struct_dtype
from mmscope.drgn.reading.kernel_names import device_numbers
from mmscope.drgn.reading.linked_lists import find, follow_lists
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.rmap.anon_vma_trees import lock_word
from mmscope.drgn.rmap.interval_trees import IntervalTrees, Users, count_users
from mmscope.drgn.rmap.walk_checks import check_walks, count
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table

# What check_sample() walks at most, VMAs and tree nodes together: a fifth of a second.
SAMPLE = 20_000
# Of VMAs whose file cannot be read, so many are looked up in their process.
MAX_LOOKED_UP = 1000
U57, U63 = np.uint64(57), np.uint64(63)

# include/linux/mm.h, fs.h
VM_SHARED = 0x8
VM_MAYWRITE = 0x20
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


@table_row
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
    def users(self) -> Users:
        """How many VMAs every process has on every file."""
        return count_users(self, self.vma_mm, len(self.tasks.mm))

    @cached_property
    def by_huge_page(self) -> NDArray[np.bool_]:
        """Whose page offsets and counts in the page cache are of huge pages."""
        blocks = [self.file_system(index).pages for index in range(len(self.mapping))]
        return np.array(blocks, np.int64) > 1

    def file_system(self, index: int) -> "FileSystem":
        if not self.inode_read[index]:
            return FileSystem(None, None, 1)
        return self.file_systems.get(int(self.inode["sb"][index]), FileSystem(None, None, 1))


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A super block: its device as /proc/PID/maps has it, and the name of its type."""

    device: str | None
    type: str | None
    pages: int  # base pages that ``nrpages`` and ``folio.index`` count as one


def read_file_maps(prog: Program, slots: Objects, tasks: Processes) -> FileMaps:
    """
    Put together the trees of mapped files.

    :param slots: of the cache of ``struct vm_area_struct``, as :func:`anon_vma_trees.wanted` has
        them.
    :raises LookupError: the kernel's layout is unknown.
    """
    gaps = Gaps()
    vmas = slots.only((slots["file"] >> U63 == 1) & (slots["mm"] != 0))
    node, begins_tree, top = _tops(prog, vmas)
    # Which file it is, a VMA knows; and the file, with which node its tree begins.
    mapping_of = _mappings(prog, vmas, tasks, gaps)
    mapping, of_mapping, own_top, checks = _begun(prog, mapping_of, node, begins_tree, top)
    tree_of_top = np.full(np.count_nonzero(begins_tree) + 1, -1, np.int64)  # the last, for none
    tree_of_top[own_top] = np.arange(len(mapping))
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
        mapping=mapping,
        of_mapping=of_mapping,
        inode=inode,
        inode_read=inode_read,
        vmas=used,
        vma_mm=find(tasks.mm, used["mm"]),
        first=first[chosen],
        last=first[chosen] + pages[chosen] - np.uint64(1),
        start=start,
        tasks=tasks,
        file_systems=_file_systems(prog, inode[inode_read]),
        checks=checks,
        gaps=gaps,
    )
    maps.checks += _writable_checks(maps)
    return maps


def _tops(
    prog: Program, vmas: Objects
) -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.int64]]:
    """
    The address of each VMA's node; which of them begin a tree; and which of these trees each node
    is linked into, -1 for none.
    """
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
    return node, begins_tree, top


def _begun(
    prog: Program,
    mapping_of: NDArray[np.uint64],
    node: NDArray[np.uint64],
    begins_tree: NDArray[np.bool_],
    top: NDArray[np.int64],
) -> tuple[NDArray[np.uint64], NDArray[Any], NDArray[np.int64], list[FileMappingCheck]]:
    """
    The files whose tree begins with a node that was found: their ``struct address_space``, its
    members (see MAPPING) and that tree; and the files whose tree does not.
    """
    mapping_of_top = mapping_of[begins_tree]
    mapping = distinct(mapping_of[mapping_of != 0])
    mapping_type = prog.type("struct address_space")
    columns = dict(MAPPING)
    if word := lock_word(prog):
        columns["lock"] = f"i_mmap_rwsem.{word}"
    # What an unused slot led to may be no mapping, nor be there.
    of_mapping, read = read_scattered(prog, mapping, struct_dtype(mapping_type, columns), Gaps())
    mapping, of_mapping = mapping[read], of_mapping[read]
    begins = find(node, of_mapping["tree"])
    own_top = np.where(begins >= 0, np.append(top, -1)[begins], -1)
    host, _ = read_scattered(
        prog, of_mapping["host"], struct_dtype(prog.type("struct inode"), INODE), Gaps()
    )
    # If memory is no longer a mapping, its host's mapping is another one.
    has_tree = (of_mapping["tree"] != 0) & (host["mapping"] == mapping)
    if prog.flags & ProgramFlags.IS_LIVE:
        _moved(own_top, mapping, has_tree, mapping_of_top, top)
    # A tree whose top is another file's is damage.
    sound = own_top >= 0
    sound[sound] = mapping_of_top[own_top[sound]] == mapping[sound]
    lost = ~sound & has_tree
    checks = [
        FileMappingCheck(hex(address), "its tree begins with a VMA that was not found", None, 0)
        for address in mapping[lost].tolist()
    ]
    return mapping[sound], of_mapping[sound], own_top[sound], checks


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
    has_tree: NDArray[np.bool_],
    mapping_of_top: NDArray[np.uint64],
    top: NDArray[np.int64],
) -> None:
    """
    Of files whose tree begins with another VMA by now: that of their tops which has most below it.
    """
    below = np.bincount(top[top >= 0], minlength=len(mapping_of_top))
    for at in np.flatnonzero((own_top < 0) & has_tree).tolist():
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


def owner_of(maps: FileMaps) -> Callable[[int], tuple[int | None, str | None]]:
    """A function from a file's index to pid and comm of the process with most of its VMAs."""
    by_file = maps.users

    def owner(index: int) -> tuple[int | None, str | None]:
        mms, _ = by_file.of(index)
        if not len(mms) or mms[-1] < 0:
            return None, None
        return int(maps.tasks.pid[mms[-1]]), maps.tasks.comm[mms[-1]]

    return owner


def _file_systems(prog: Program, inode: NDArray[Any]) -> dict[int, FileSystem]:
    """By the address of their super block; what cannot be read is left out."""
    found = {}
    # "mm/filemap: remove hugetlb special casing in filemap.c" (a08c7193e4f1, in v6.7): before, page
    # offsets and nrpages of a hugetlbfs file are of huge pages; with it went this function.
    huge = "hugetlb_basepage_index" in prog
    page = prog["PAGE_SIZE"].value_()
    for address in distinct(inode["sb"]).tolist():
        sb = Object(prog, "struct super_block", address=address)
        with contextlib.suppress(FaultError):
            dev = sb.s_dev.value_()
            name = prog.read_c_string(sb.s_type.name.value_(), max_size=NAME_BYTES)
            pages = 1
            if huge and name == b"hugetlbfs":
                pages = max(sb.s_blocksize.value_() // page, 1)
            found[address] = FileSystem(
                device_numbers(dev),
                name.decode("utf-8", "backslashreplace"),
                pages,
            )
    return found


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("file_maps", "file_mapping_checks")
