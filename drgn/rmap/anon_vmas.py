# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps of anonymous memory: the tables of ``struct anon_vma`` and of the VMAs in its interval
tree, made of what ``anon_vma_trees`` has read.

Costs milliseconds beyond that.

Cannot know: anonymous memory of processes that have none yet: an anon_vma is made by the first
write fault.
"""

import numpy as np
from drgn import Program
from numpy.typing import NDArray

from mmscope.drgn.processes.processes import ProcessVmas, max_map_count
from mmscope.drgn.reading.kernel_arrays import distinct
from mmscope.drgn.rmap.anon_vma_trees import (
    READER_SHIFT,
    WRITER_LOCKED,
    ReverseMaps,
    lock_counts,
    owner_of,
)
from mmscope.drgn.rmap.interval_trees import powers_of_two
from mmscope.drgn.tables.rows import MOST, MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Table

# Beyond these, a large machine's table would be all single VMAs; the fan-out has them all.
MAX_ROWS = 2000
# Columns of the picture of one tree.
MAP_BINS = 256


@table_row
class AnonVma:
    """An anon_vma and the VMAs that a walk of its tree may visit."""

    anon_vma: str = column(holds="kernel", key=True, help="address of the struct anon_vma")
    root: str = column(
        holds="kernel", help="the anon_vma whose lock it uses; itself, if it was not forked"
    )
    parent: str | None = column(holds="kernel", help="the anon_vma it was forked from")
    depth: int = column(help="forks between it and its root")
    children: int = column(help="anon_vmas forked from it that are there")
    vmas: int = column(unit="VMAs", help="nodes of its interval tree")
    active_vmas: int = column(unit="VMAs", help="VMAs whose new pages go to it")
    processes: int = column(help="processes that have these VMAs")
    pid: int | None = column(
        high=MOST_PIDS, help="the process that has most of them; unknown, if it is gone"
    )
    comm: str | None = column(holds="comm", help="its name")
    vmas_of_pid: int = column(unit="VMAs", help="VMAs of that process")
    first_index: str | None = column(
        holds="kernel", help="page offset at which the first of its VMAs begins"
    )
    pages: int | None = column(unit="pages", high=MOST, help="from there to the end of the last")
    ksm_items: int | None = column(help="mappings merged by KSM that are found through it")
    lock: str | None = column(
        holds="words", help="state of the lock of its root: free, read, write, changing hands"
    )


ANON_VMAS = Table("anon_vmas", "anon_vmas, those with most VMAs first", AnonVma, measure="vmas")


@table_row
class AnonVmaFanout:
    """How many anon_vmas have so many VMAs."""

    vmas_from: int = column(key=True, unit="VMAs", help="at least")
    vmas_to: int = column(unit="VMAs", help="at most")
    anon_vmas: int = column(help="anon_vmas with so many VMAs in their tree")
    vmas: int = column(unit="VMAs", help="their VMAs")
    ksm_items: int | None = column(help="mappings merged by KSM that are found through them")


ANON_VMA_FANOUT = Table(
    "anon_vma_fanout", "All anon_vmas by their VMAs", AnonVmaFanout, measure="vmas"
)


@table_row
class AnonVmaMap:
    """A stretch of the page range of one anon_vma: what lies there."""

    anon_vma: str = column(holds="kernel", key=True, help="which")
    index: str = column(holds="kernel", key=True, help="page offset at which the stretch begins")
    pages: int = column(unit="pages", high=MOST, help="its length")
    vmas: int = column(unit="VMAs", help="VMAs that overlap it")
    writable_vmas: int = column(unit="VMAs", help="of these, writable")
    starts: int = column(unit="VMAs", help="VMAs that begin in it")
    ksm_items: int | None = column(help="mappings merged by KSM in it")


ANON_VMA_MAP = Table(
    "anon_vma_map",
    "The page range of the anon_vma with most VMAs",
    AnonVmaMap,
    not_compared="it shows parts of single trees",
)


def anon_vma_rows(
    maps: ReverseMaps, ksm_items: NDArray[np.int64] | None = None, most: int = MAX_ROWS
) -> list[AnonVma]:
    """
    The anon_vmas with most VMAs, and those with most KSM items and depth of fork among the rest.

    :param ksm_items: how many KSM has on each.
    """
    sizes = maps.tree_size
    order = np.lexsort((-maps.depth, -(sizes if ksm_items is None else ksm_items), -sizes))
    deepest = np.argsort(-maps.depth, kind="stable")[: most // 10]
    chosen = distinct(np.concatenate([order[: most - len(deepest)], deepest]))
    by_anon_vma, owner = maps.users, owner_of(maps)
    known = maps.parent >= 0
    children = np.bincount(maps.parent[known], minlength=len(sizes))
    address, words = maps.anon_vmas.address, maps.anon_vmas.columns.get("lock")
    locks = None if words is None else lock_counts(words)
    rows = []
    for index in chosen[np.argsort(-sizes[chosen], kind="stable")].tolist():
        mms, counts = by_anon_vma.of(index)
        pid, comm = owner(index)
        chain = slice(maps.start[index], maps.start[index + 1])
        first = int(maps.first[chain][0]) if sizes[index] else None
        parent, root = int(maps.parent[index]), int(maps.root[index])
        rows.append(
            AnonVma(
                anon_vma=hex(address[index]),
                root=hex(maps.anon_vmas["root"][index]),
                parent=hex(address[parent]) if parent not in (-1, index) else None,
                depth=int(maps.depth[index]),
                children=int(children[index]) - (parent == index),
                vmas=int(sizes[index]),
                active_vmas=int(maps.anon_vmas["active_vmas"][index]),
                processes=int(np.count_nonzero(mms >= 0)),
                pid=pid,
                comm=comm,
                vmas_of_pid=int(counts[-1]) if len(counts) else 0,
                first_index=hex(first) if first is not None else None,
                pages=int(maps.last[chain].max()) + 1 - first if first is not None else None,
                ksm_items=None if ksm_items is None else int(ksm_items[index]),
                lock=lock_state(int(locks[root])) if root >= 0 and locks is not None else None,
            )
        )
    return rows


def lock_state(count: int) -> str:
    """What ``rw_semaphore.count`` says (kernel/locking/rwsem.c)."""
    if count & WRITER_LOCKED:
        return "write"
    if count >> READER_SHIFT > 0:
        return "read"
    return "changing hands" if count & 6 else "free"


def fanout(maps: ReverseMaps, ksm_items: NDArray[np.int64] | None = None) -> list[AnonVmaFanout]:
    """All anon_vmas by the number of their VMAs, in powers of two."""
    sizes = maps.tree_size
    items = [
        None if ksm_items is None else int(ksm_items[(low <= sizes) & (sizes <= high)].sum())
        for low, high, *_ in powers_of_two(sizes)
    ]
    return [
        AnonVmaFanout(*row, of_ksm) for row, of_ksm in zip(powers_of_two(sizes), items, strict=True)
    ]


def tree_map(
    maps: ReverseMaps,
    index: int,
    ksm_index: NDArray[np.uint64] | None = None,
    bins: int = MAP_BINS,
) -> list[AnonVmaMap]:
    """
    The page range of one anon_vma in at most *bins* stretches of equal length.

    :param ksm_index: page offsets of the KSM items on it.
    """
    chain = slice(maps.start[index], maps.start[index + 1])
    first, last = maps.first[chain], maps.last[chain]
    if not len(first):
        return []
    begin, end = int(first.min()), int(last.max()) + 1
    width = -(-(end - begin) // bins)
    number = -(-(end - begin) // width)
    writable = (maps.vmas["flags"][maps.chain_vma[chain]] & 2) != 0
    edges = np.uint64(begin) + np.arange(number + 1, dtype=np.uint64) * np.uint64(width)

    def overlapping(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        begun = np.searchsorted(np.sort(first[chosen]), edges[1:], "left")
        ended = np.searchsorted(np.sort(last[chosen]), edges[:-1], "left")
        return begun - ended

    def inside(values: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.diff(np.searchsorted(np.sort(values), edges))

    everything = np.ones(len(first), np.bool_)
    return [
        AnonVmaMap(
            hex(maps.anon_vmas.address[index]),
            hex(edges[at]),
            min(width, end - int(edges[at])),
            int(vmas),
            int(can_write),
            int(starts),
            None if ksm_index is None else int(items),
        )
        for at, (vmas, can_write, starts, items) in enumerate(
            zip(
                overlapping(everything),
                overlapping(writable),
                inside(first),
                inside(ksm_index) if ksm_index is not None else np.zeros(number, np.int64),
                strict=True,
            )
        )
    ]


def process_vmas(prog: Program, maps: ReverseMaps, most: int = 500) -> list[ProcessVmas]:
    """The processes with most VMAs, and the anon_vma that most of these are on."""
    limit = max_map_count(prog)
    by_anon_vma = maps.users
    order = np.lexsort((by_anon_vma.vmas, by_anon_vma.mm))
    of, who, count = (
        values[order] for values in (by_anon_vma.tree, by_anon_vma.mm, by_anon_vma.vmas)
    )
    begin = np.searchsorted(who, np.arange(len(maps.tasks.mm) + 1))
    rows = []
    for mm in np.argsort(-maps.tasks.map_count, kind="stable")[:most].tolist():
        low, high = int(begin[mm]), int(begin[mm + 1])
        rows.append(
            ProcessVmas(
                int(maps.tasks.pid[mm]),
                maps.tasks.comm[mm],
                int(maps.tasks.map_count[mm]),
                limit,
                high - low,
                hex(maps.anon_vmas.address[of[high - 1]]) if low < high else None,
                int(count[high - 1]) if low < high else None,
            )
        )
    return rows


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("anon_vmas")
