# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps of anonymous memory: the tables of ``struct anon_vma``, of the VMAs in its interval
tree and of who waits for its lock, made of what ``reverse_maps`` has read.

The lock of an anon_vma is that of its root, so that a family of forked processes shares one.

Costs milliseconds beyond the reading.

Cannot know: anonymous memory of processes that have none yet: an anon_vma is made by the first
write fault.
"""

import numpy as np
from drgn import Program

from mmscope.drgn.processes.processes import ProcessVmas, max_map_count, note_missing, process_maps
from mmscope.drgn.reading.kernel_arrays import S64s, U64s, distinct
from mmscope.drgn.reading.rwsem_counts import lock_counts, lock_state
from mmscope.drgn.rmap.ksm import KsmVisits, ksm_and_visits
from mmscope.drgn.rmap.reverse_maps import (
    AnonVmaCheck,
    ReverseMaps,
    check_sample,
    note_reverse_maps,
    powers_of_two,
    reverse_maps,
)
from mmscope.drgn.rmap.rwsem_waiters import NO_LOCKS, OWNER, OWNER_IS, STATES, WANTS, taken_locks
from mmscope.drgn.rmap.vma_splits import VmaNeighbours, VmaSplits, vma_splits
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import MOST, MOST_PIDS, column
from mmscope.drgn.tables.table import table, tables_of

# Beyond these, a large machine's table would be all single VMAs; the fan-out has them all.
MAX_ROWS = 2000
MAX_PROCESSES = 500
# Columns of the picture of one tree.
MAP_BINS = 256


@table("anon_vmas", "anon_vmas, those with most VMAs first", measure="vmas")
class AnonVma:
    """An anon_vma and the VMAs of its tree."""

    anon_vma: str = column(holds="kernel", key=True, help="address of the struct anon_vma")
    root: str = column(holds="kernel", help="anon_vma that has its lock; itself, if not forked")
    parent: str | None = column(holds="kernel", help="the anon_vma it was forked from")
    depth: int = column(help="forks between it and its root")
    children: int = column(help="existing anon_vmas forked from it")
    vmas: int = column(unit="VMAs", help="nodes of its interval tree")
    active_vmas: int = column(unit="VMAs", help="VMAs whose new pages belong to it")
    processes: int = column(help="processes with these VMAs")
    pid: int | None = column(high=MOST_PIDS, help="process with most of them; empty: it is gone")
    comm: str | None = column(holds="comm", help="name of the process")
    vmas_of_pid: int = column(unit="VMAs", help="VMAs of that process")
    first_index: str | None = column(holds="kernel", help="page offset of its first VMA's start")
    pages: int | None = column(unit="pages", high=MOST, help="from there to its last VMA's end")
    ksm_items: int | None = column(help="KSM-merged mappings found through it")
    lock: str | None = column(holds="words", help="of its root: free, read, write, changing hands")


@table("anon_vma_fanout", "All anon_vmas by their VMAs", measure="vmas")
class AnonVmaFanout:
    """anon_vmas by their number of VMAs."""

    vmas_from: int = column(key=True, unit="VMAs", help="at least")
    vmas_to: int = column(unit="VMAs", help="at most")
    anon_vmas: int = column(help="anon_vmas with that many VMAs in their tree")
    vmas: int = column(unit="VMAs", help="their VMAs")
    ksm_items: int | None = column(help="KSM-merged mappings found through them")


@table(
    "anon_vma_map",
    "The page range of the anon_vma with most VMAs",
    not_compared="it shows parts of single trees",
)
class AnonVmaMap:
    """A stretch of one anon_vma's page range."""

    anon_vma: str = column(holds="kernel", key=True, help="its address")
    index: str = column(holds="kernel", key=True, help="page offset of the stretch's start")
    pages: int = column(unit="pages", high=MOST, help="its length")
    vmas: int = column(unit="VMAs", help="VMAs overlapping it")
    writable_vmas: int = column(unit="VMAs", help="of these, writable")
    starts: int = column(unit="VMAs", help="VMAs beginning in it")
    ksm_items: int | None = column(help="KSM-merged mappings in it")


@table(
    "anon_vma_locks",
    "Locks of anon_vmas that are taken",
    empty="No anon_vma's lock was taken at that moment.",
)
class AnonVmaLock:
    """A lock of anon_vmas that is taken or waited for."""

    root: str = column(holds="kernel", key=True, help="anon_vma that has the lock")
    state: str = column(holds="words", help=STATES)
    readers: int = column(high=MOST_PIDS, help="readers holding it")
    owner_pid: int | None = column(high=MOST_PIDS, help=OWNER)
    owner_comm: str | None = column(holds="comm", help="name of the process")
    owner_is: str | None = column(holds="words", help=OWNER_IS)
    waiters: int = column(high=MOST_PIDS, help="tasks queued on it")
    anon_vmas: int = column(help="anon_vmas sharing it")
    vmas: int = column(unit="VMAs", help="nodes of all their trees")
    stack: str | None = column(holds="kernel", help="of the owner: root;…;leaf")


@table(
    "anon_vma_waiters",
    "Tasks queued on locks of anon_vmas",
    empty="No task was queued on an anon_vma's lock at that moment.",
)
class AnonVmaWaiter:
    """A task that is queued on the lock of an anon_vma."""

    root: str = column(holds="kernel", key=True, help="anon_vma that has the lock")
    position: int = column(key=True, help="place in the queue, from 0")
    pid: int = column(high=MOST_PIDS, help="task")
    comm: str = column(holds="comm", help="name of the process")
    wants: str | None = column(holds="words", help=WANTS)
    stack: str | None = column(holds="kernel", help="where it sleeps: root;…;leaf")


def anon_vma_rows(
    maps: ReverseMaps, ksm_items: S64s | None = None, most: int = MAX_ROWS
) -> list[AnonVma]:
    """
    The anon_vmas with most VMAs, and those with most KSM items and depth of fork among the rest.

    :param ksm_items: how many KSM has on each.
    """
    sizes = maps.tree_size
    order = np.lexsort((-maps.depth, -(sizes if ksm_items is None else ksm_items), -sizes))
    deepest = np.argsort(-maps.depth, kind="stable")[: most // 10]
    chosen = distinct(np.concatenate([order[: most - len(deepest)], deepest]))
    known = maps.parent >= 0
    children = np.bincount(maps.parent[known], minlength=len(sizes))
    active = maps.active_vmas
    locks = _locks(maps)
    rows = []
    for index in chosen[np.argsort(-sizes[chosen], kind="stable")].tolist():
        first, end = maps.range(index) if sizes[index] else (None, None)
        parent, root = int(maps.parent[index]), int(maps.root[index])
        rows.append(
            AnonVma(
                anon_vma=hex(maps.addresses[index]),
                root=hex(maps.anon_vmas["root"][index]),
                parent=hex(maps.addresses[parent]) if parent not in (-1, index) else None,
                depth=int(maps.depth[index]),
                children=int(children[index]) - (parent == index),
                active_vmas=int(active[index]),
                **maps.cells(index),
                first_index=None if first is None else hex(first),
                pages=None if first is None or end is None else end - first,
                ksm_items=None if ksm_items is None else int(ksm_items[index]),
                lock=lock_state(int(locks[root])) if root >= 0 and locks is not None else None,
            )
        )
    return rows


def _locks(maps: ReverseMaps) -> S64s | None:
    """Counts of the locks; None where they are not read."""
    columns = maps.anon_vmas.columns
    return lock_counts(columns["lock"], columns.get("queue")) if "lock" in columns else None


def fanout(maps: ReverseMaps, ksm_items: S64s | None = None) -> list[AnonVmaFanout]:
    """All anon_vmas by the number of their VMAs, in powers of two."""
    return [
        AnonVmaFanout(
            low,
            high,
            int(np.count_nonzero(here)),
            int(maps.tree_size[here].sum()),
            None if ksm_items is None else int(ksm_items[here].sum()),
        )
        for low, high, here in powers_of_two(maps.tree_size)
    ]


def tree_map(
    maps: ReverseMaps, index: int, ksm_index: U64s | None = None, bins: int = MAP_BINS
) -> list[AnonVmaMap]:
    """
    The page range of one anon_vma in at most *bins* stretches of equal length.

    :param ksm_index: page offsets of the KSM items on it.
    """
    nodes = maps.nodes(index)
    first, last = maps.first[nodes], maps.last[nodes]
    if not len(first):
        return []
    begin, end = maps.range(index)
    width = -(-(end - begin) // bins)
    number = -(-(end - begin) // width)
    writable = (maps.vmas["flags"][maps.chain_vma[nodes]] & 2) != 0
    edges = np.uint64(begin) + np.arange(number + 1, dtype=np.uint64) * np.uint64(width)

    def overlapping(first: U64s, last: U64s) -> S64s:
        begun = np.searchsorted(np.sort(first), edges[1:], "left")
        ended = np.searchsorted(np.sort(last), edges[:-1], "left")
        return begun - ended

    def inside(values: U64s) -> list[int]:
        counts: list[int] = np.diff(np.searchsorted(np.sort(values), edges)).tolist()
        return counts

    vmas = overlapping(first, last).tolist()
    can_write = overlapping(first[writable], last[writable]).tolist()
    items = [None] * number if ksm_index is None else inside(ksm_index)
    anon_vma = hex(maps.addresses[index])
    return [
        AnonVmaMap(anon_vma, hex(edge), min(width, end - edge), *counts)
        for edge, *counts in zip(
            edges[:-1].tolist(), vmas, can_write, inside(first), items, strict=True
        )
    ]


def process_vmas(prog: Program, maps: ReverseMaps) -> list[ProcessVmas]:
    """The processes with most VMAs, and the anon_vma that most of these are on."""
    limit, tasks = max_map_count(prog), maps.tasks
    trees, mms, vmas = maps.users
    order = np.lexsort((vmas, mms))
    # The one with most of its VMAs is the last of each process.
    ends = np.cumsum(np.bincount(mms + 1, minlength=len(tasks.mm) + 1))
    rows = []
    for mm in np.argsort(-tasks.counts["map_count"], kind="stable")[:MAX_PROCESSES].tolist():
        mine = order[ends[mm] : ends[mm + 1]]
        largest = int(mine[-1]) if len(mine) else None
        rows.append(
            ProcessVmas(
                int(tasks.pid[mm]),
                tasks.comm[mm],
                int(tasks.counts["map_count"][mm]),
                limit,
                len(mine),
                None if largest is None else hex(maps.addresses[trees[largest]]),
                None if largest is None else int(vmas[largest]),
            )
        )
    return rows


def anon_vma_locks(
    prog: Program, maps: ReverseMaps
) -> tuple[list[AnonVmaLock], list[AnonVmaWaiter], list[str]]:
    """Locks that are taken or waited for, those with most waiters first; and what went wrong."""
    if (counts := _locks(maps)) is None:
        return [], [], [NO_LOCKS]
    number = len(maps.addresses)
    own = np.flatnonzero(maps.root == np.arange(number))
    rooted = maps.root >= 0
    family = np.bincount(maps.root[rooted], minlength=number)
    nodes = np.zeros(number, np.int64)
    np.add.at(nodes, maps.root[rooted], maps.tree_size[rooted])
    locks, queued, problems = taken_locks(
        prog,
        "struct anon_vma",
        "rwsem",
        maps.addresses[own],
        counts[own],
        family[own],
        nodes[own],
    )
    waiters = [AnonVmaWaiter(*cells) for cells in queued]
    return [AnonVmaLock(*cells) for cells in locks], waiters, problems


def _largest_map(maps: ReverseMaps, visits: KsmVisits | None) -> list[AnonVmaMap]:
    """The page range of the anon_vma with most VMAs; of several, the first in anon_vmas."""
    sizes = maps.tree_size
    if not len(sizes):
        return []
    items = sizes if visits is None else visits.by_anon_vma(maps)
    largest = int(np.lexsort((items, sizes))[-1])
    if visits is None:
        return tree_map(maps, largest)
    return tree_map(maps, largest, visits.index[(visits.anon_vma == largest) & visits.placed])


def anon_vmas_from_memory(memory: Memory) -> Found:
    maps = reverse_maps(memory)
    _, visits = ksm_and_visits(memory) or (None, None)
    found = Found(memory.live, unreadable_bytes=maps.unreadable_bytes)
    note_reverse_maps(memory, found)
    checks = maps.checks + check_sample(memory.prog, maps)
    found.differ(
        *if_any(len(checks), "{} of anon_vmas that do not fit together (anon_vma_checks)", "count")
    )
    items = visits.by_anon_vma(maps) if visits else None
    rows = anon_vma_rows(maps, items)
    if len(rows) < len(maps.anon_vmas):
        found.unlisted.append(
            f"{len(rows):,} of {len(maps.anon_vmas):,} anon_vmas are listed, those with most VMAs "
            "first; anon_vma_fanout has them all"
        )
    found.add(AnonVmaFanout, fanout(maps, items))
    found.add(AnonVmaMap, _largest_map(maps, visits))
    sums, kinds, not_compared = vma_splits(memory.prog, maps)
    found.add(VmaSplits, sums).add(VmaNeighbours, kinds).add(AnonVma, rows)
    locks, queued, not_read = anon_vma_locks(memory.prog, maps)
    found.differ(*(not_compared + not_read))
    found.add(AnonVmaLock, locks).add(AnonVmaWaiter, queued)
    found.add(ProcessVmas, process_vmas(memory.prog, maps))
    return found.add(AnonVmaCheck, checks)


def anon_vmas_from_files(files: Files) -> Found:
    rows, missing, _ = process_maps(files)
    if not rows and not missing:
        raise Absent(f"{files.root}: proc has no maps of processes; anon_vmas are in memory only")
    found = Found(remarks=["anon_vmas are in the kernel's memory only; VMAs are counted from maps"])
    note_missing(found, missing)
    return found.add(ProcessVmas, rows[:MAX_PROCESSES])


ANON_VMAS_SECTION = Section(
    name="anon_vmas",
    title="Reverse maps",
    tables=tables_of(
        AnonVmaFanout,
        AnonVmaMap,
        VmaSplits,
        VmaNeighbours,
        AnonVma,
        AnonVmaLock,
        AnonVmaWaiter,
        ProcessVmas,
        AnonVmaCheck,
    ),
    intro="""
Anonymous pages are found through their `anon_vma`: a tree of the VMAs that may map them, with a
lock for all that were forked from one ([kernel documentation: process
addresses](https://docs.kernel.org/mm/process_addrs.html)). Every VMA that `mprotect` or
`madvise` splits off stays on the same one. What a walk then costs is in the section on the cost
of reverse map walks.
""",
    command=Command("anon_vmas by their VMAs", top=TOP, picks="anon_vma"),
    from_memory=anon_vmas_from_memory,
    from_files=anon_vmas_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.MAPS, prices.STATUS, prices.SETTINGS),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("anon_vmas")
