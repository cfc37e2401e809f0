# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps of files: the tables of ``struct address_space`` and of the VMAs in its interval tree
``i_mmap``, made of what ``file_trees`` has read, or of text.

Paths are looked up for the files that are shown, a few ``struct dentry`` each.

Cannot know: which of the pages are mapped in page tables, and who maps a file that is on DAX by
another name (its pages have no folio in a cache; memory failure walks its tree as well).

The text that says the same is /proc/PID/maps: device, inode, offset and path of every VMA.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from drgn import Program
from numpy.typing import NDArray

from mmscope.drgn.reading.dentry_paths import path_of
from mmscope.drgn.reading.kernel_arrays import distinct
from mmscope.drgn.rmap.anon_vma_trees import lock_counts
from mmscope.drgn.rmap.anon_vmas import lock_state
from mmscope.drgn.rmap.file_trees import FileMaps, owner_of, writable_vmas
from mmscope.drgn.rmap.interval_trees import IntervalTrees, count_users, powers_of_two
from mmscope.drgn.tables.rows import MOST, MOST_PAGES, MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Table

# Beyond these, a large machine's table would be all libraries; the fan-out has them all.
MAX_ROWS = 500
VM_MAYSHARE = 0x80
S_DAX = 1 << 13


@table_row
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


@table_row
class FileMappingFanout:
    """How many files have so many VMAs."""

    vmas_from: int = column(key=True, unit="VMAs", help="at least")
    vmas_to: int = column(unit="VMAs", help="at most")
    files: int = column(help="files with so many VMAs in their tree")
    vmas: int = column(unit="VMAs", help="their VMAs")


FILE_MAPPING_FANOUT = Table(
    "file_mapping_fanout", "All mapped files by their VMAs", FileMappingFanout, measure="vmas"
)


def _chosen(trees: IntervalTrees, most: int) -> list[int]:
    """The trees with most VMAs, and those with most over one page among the rest."""
    largest = np.argsort(-trees.tree_size, kind="stable")
    deepest = np.argsort(-trees.depths.most, kind="stable")[: most // 2]
    chosen = distinct(np.concatenate([largest[: most - len(deepest)], deepest]))
    # On a live kernel the last VMA of a tree may go while it is read.
    chosen = chosen[trees.tree_size[chosen] > 0]
    order: list[int] = chosen[np.argsort(-trees.tree_size[chosen], kind="stable")].tolist()
    return order


def file_mapping_rows(prog: Program, maps: FileMaps, most: int = MAX_ROWS) -> list[FileMapping]:
    """The files with most VMAs, and those with most over one page among the rest."""
    sizes, depths = maps.tree_size, maps.depths
    by_file, owner = maps.users, owner_of(maps)
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
            lock_counts(maps.of_mapping["lock"][index : index + 1])[0]
            if "lock" in (maps.of_mapping.dtype.names or ())
            else None
        )
        rows.append(
            FileMapping(
                address_space=hex(maps.mapping[index]),
                device=file_system.device,
                inode=str(inode["ino"]) if inode is not None else None,
                filesystem=file_system.type,
                file=path_of(prog, int(maps.vmas["file"][nodes][0])),
                deleted=None if inode is None else not inode["links"],
                dax=None if inode is None else bool(inode["flags"] & S_DAX),
                vmas=int(sizes[index]),
                processes=int(np.count_nonzero(mms >= 0)),
                pid=pid,
                comm=comm,
                vmas_of_pid=int(counts[-1]),
                shared_vmas=int(shared_vmas[index]),
                writable_vmas=int(writable[index]),
                first_index=hex(first),
                pages=int(maps.last[nodes].max()) + 1 - first,
                cached_pages=int(maps.of_mapping["nrpages"][index]) * file_system.pages,
                visits_most=int(depths.most[index]),
                visits_mean=round(float(depths.mean[index]), 2),
                lock=None if lock is None else lock_state(int(lock)),
            )
        )
    return rows


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
    """The same rows from text, without trees, inodes and locks; and the fan-out."""
    files = len(found.numbers)
    vmas = sorted(found.vmas)
    number, pid, shared = (np.array([vma[at] for vma in vmas], np.int64) for at in (0, 3, 4))
    start = np.searchsorted(number, np.arange(files + 1))
    first_byte, last_byte = (np.array([vma[at] for vma in vmas], np.uint64) for at in (1, 2))
    trees = _TextTrees(first_byte, last_byte, start)
    pids = distinct(pid)
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
        device, inode = names[index]
        rows.append(
            FileMapping(
                address_space=None,
                device=device,
                inode=inode,
                filesystem=None,
                file=found.paths[index],
                deleted=None,
                dax=None,
                vmas=int(sizes[index]),
                processes=len(who),
                pid=owner,
                comm=comms.get(owner),
                vmas_of_pid=int(counts[-1]),
                shared_vmas=int(shared_vmas[index]),
                writable_vmas=None,
                first_index=hex(first // page_size) if page_size else None,
                pages=(end - first) // page_size if page_size else None,
                cached_pages=None,
                visits_most=int(depths.most[index]),
                visits_mean=round(float(depths.mean[index]), 2),
                lock=None,
            )
        )
    return rows, file_fanout(trees)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("file_maps")
