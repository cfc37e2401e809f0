# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Bytes that come back if a process ends, a cache is dropped, a file is removed, a pool or a swap area
is given up, by the rules of the kernel.

No walk of its own: it stands on the pass over all struct pages (the pages of files, the slabs), on
the walk over the page tables of processes that ``process_shares`` makes, and on the pools of
hugetlb and swap, and on what ``page_holders`` knows. Costs a few milliseconds beyond these.

A page comes back with the last that has it. So the least is what has no other holder, which is
counted page by page; the most is what may have none. The least of two processes may be added up,
the most may not. What one deed frees, another does not free again.

Memory is taken as free on a free list or a per-CPU list of pages.

Cannot know: kernel objects of a process (descriptors, VMAs, open files), of which slabs keep a part
anyway; who else has what is pinned; what is allocated meanwhile.
"""

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from drgn import FaultError, Program, sizeof

from mmscope.drgn.cgroups.cgroup_paths import CgroupPath, cgroup_paths
from mmscope.drgn.cgroups.memcgs import Memcgs, memcgs_once
from mmscope.drgn.filesystems.cached_files import (
    BLOCK_DEVICE,
    MEMFD,
    NOT_HELD,
    SYSV,
    TMPFS,
    CachedFiles,
    cached_files_once,
    path_of_file,
    say_unknown,
)
from mmscope.drgn.holders.holdings import HeldPages, Holdings
from mmscope.drgn.ledger.held_places import holdings
from mmscope.drgn.ledger.memory_ledger import ledger_pages
from mmscope.drgn.ledger.page_kinds import KINDS, Kind
from mmscope.drgn.ledger.swap_areas import swap_area, swap_infos, zram_memory, zram_of
from mmscope.drgn.owners.slab_caches import slab_scan
from mmscope.drgn.page_tables.page_table_scan import PageTableScan
from mmscope.drgn.page_tables.process_shares import say_unread, shares_once
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import TORN, Gaps, S64s
from mmscope.drgn.sections.files import Absent
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section, not_in_text
from mmscope.drgn.struct_pages.hugetlb import find_huge_pages, hugetlb_sizes
from mmscope.drgn.tables.display import if_any, size_name
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PIDS, column
from mmscope.drgn.tables.table import table, tables_of

END, CACHE, OF_CACHE, SLABS = (
    "the process ends",
    "drop_caches 1",
    "drop_caches 1, of it",
    "drop_caches 2",
)
EMPTY_SLABS, REMOVE, EMPTY_TMPFS = "slab cache shrunk", "file removed", "tmpfs emptied"
POOL, SWAPOFF = "hugetlb pool emptied", "swapoff"
LET_GO, CLOSED, BOTH, RECLAIM = (
    "file let go of",
    "closed",
    "drop_caches 3",
    "cgroup reclaimed",
)
MOST_FILES = 20  # and file systems and slab caches, of each deed
# The PGD of a process is two pages where the kernel is built to isolate page tables (PTI).
MOST_ROOT_PAGES = 2
SLOTS_OF_CPU = 64


@table(
    "would_free",
    "What would free memory",
    empty="Nothing that is known here would free memory.",
    memory="again",
    measure="least_bytes",
    lasting=("deed", "comm", "path", "name"),
)
class WouldFree:
    """A deed, and the memory that comes back by it."""

    deed: str = column(holds="words", key=True, help="what is done")
    pid: int | None = column(key=True, high=MOST_PIDS, help="process that ends")
    comm: str | None = column(holds="comm", help="name of the process")
    path: str | None = column(
        holds="file",
        key=True,
        help="file or swap area, where its file system is mounted",
    )
    name: str | None = column(
        holds="kernel",
        key=True,
        help="file system type, huge page size, slab cache, or what is closed",
    )
    least_bytes: int = column(
        unit="bytes",
        low=-MOST_BYTES,
        high=MOST_BYTES,
        help="free memory gained at least; negative: it takes memory",
    )
    most_bytes: int = column(
        unit="bytes", low=-MOST_BYTES, high=MOST_BYTES, help="gained at most, as far as known"
    )
    huge_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="of the least, in whole huge pages; empty: unknown"
    )
    swap_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="swap freed as well; empty: unknown"
    )
    how: str = column(holds="words", help="how it is computed, and what stays")
    address: str = column(
        holds="kernel", key=True, help="address_space of the file, or super_block"
    )
    cgroup: str | None = column(
        holds="cgroup", key=True, default=None, help="memory cgroup that is reclaimed from"
    )


AMOUNTS = ("least_bytes", "most_bytes")


def _row(deed: str, least: int, most: int, how: str, **more: Any) -> WouldFree:
    names = ("pid", "comm", "path", "name", "cgroup", "huge_bytes", "swap_bytes")
    values: dict[str, Any] = {**dict.fromkeys(names), "address": "", **more}
    return WouldFree(deed=deed, least_bytes=least, most_bytes=max(least, most), how=how, **values)


PAGES_OF_END = (
    "anonymous pages of its own, in the swap cache too, and page tables; at most all anonymous and "
    "shared memory that it maps, stacks, and what it has open. Files stay in the page cache, "
    "hugetlb in its pool"
)


def _stack_bytes(prog: Program) -> int:
    """THREAD_SIZE, which is a macro."""
    try:
        return int(sizeof(prog.type("union thread_union")))
    except LookupError:
        return 16 << 10


def of_processes(scan: PageTableScan, stack_bytes: int) -> list[WouldFree]:
    """
    The end of each process (``exit_mmap()``): what is mapped is freed with its last mapping
    (``zap_pte_range()``), swap with the last that has the slot (``free_swap_and_cache()``), the
    tables by ``free_pgtables()``.

    :param stack_bytes: a thread's in the kernel, of which each CPU keeps two for the next thread.
    """
    mapped = scan.mapped
    assert mapped is not None
    page, sums = mapped.page, mapped.sums
    # Shared PMD tables of hugetlb stay with the others.
    tables = sums["tables"].sum(axis=1) - sums["shared_pmds"] + sums["deposited"]
    rows = []
    for at, process in enumerate(scan.spaces.processes):
        if scan.lost[at]:
            continue
        kernel = int(tables[at] + sums["unique_cached"][at])
        least = (int(sums["unique_anon"][at]) + kernel) * page
        most = (int(sums["pages_anon"][at] + sums["pages_shmem"][at]) + kernel) * page
        most += stack_bytes * process.threads + (MOST_ROOT_PAGES - 1) * page
        how = PAGES_OF_END
        if process.processes > 1:
            how = f"with the {process.processes - 1} others that share its memory: {how}"
        rows.append(
            _row(
                *(END, least, most, how),
                pid=process.pid,
                comm=process.comm,
                huge_bytes=int(sums["unique_huge"][at]) * page,
                swap_bytes=(
                    None if isinstance(mapped.swap, str) else int(sums["unique_swap"][at]) * page
                ),
            )
        )
    return rows


DROPPED = (
    "clean pages of files, neither mapped nor pinned; of block devices, which file systems hold in "
    "part, at most. Dirty ones stay"
)


def of_page_cache(files: CachedFiles) -> list[WouldFree]:
    """
    ``drop_pagecache_sb()`` (fs/drop_caches.c) of all file systems, and the part of each.

    Pages of block devices are metadata: their buffers may be held by the file system.
    """
    page = int(files.prog["PAGE_SIZE"].value_())
    drops = files.column("droppable") * files.known
    sure = drops * (files.kind != BLOCK_DEVICE)
    most = int(drops.sum()) * page
    rows = [_row(CACHE, int(sure.sum()) * page, most, DROPPED, huge_bytes=None, swap_bytes=0)]
    of_sb = len(files.supers.address) + 1
    by_sb = np.bincount(files.sb, drops, of_sb).astype(np.int64)
    sure_by_sb = np.bincount(files.sb, sure, of_sb).astype(np.int64)
    order = np.argsort(-by_sb, kind="stable")[:MOST_FILES]
    for sb in order[by_sb[order] > 0].tolist():
        rows.append(
            _row(
                *(OF_CACHE, int(sure_by_sb[sb]) * page, int(by_sb[sb]) * page, DROPPED),
                path=files.supers.mounted(sb)[0],
                name=files.supers.types[sb],
                address=hex(int(files.supers.address[sb])),
                swap_bytes=0,
            )
        )
    return rows


REMOVED = {
    True: "all its pages: it is neither open nor mapped",
    False: "all its pages, but not before who has it open or mapped lets go of it",
}
WHEN_LET_GO = "all its pages, with the last that has it open or mapped; what is pinned stays"
EMPTIED = "all pages of its files; at least those of files that are neither open nor mapped"


def of_tmpfs(files: CachedFiles) -> Iterator[WouldFree]:
    """
    Files of tmpfs and SysV segments, the largest, those without a name, and all of each tmpfs:
    pages go with the last reference to the inode (``shmem_evict_inode()``, mm/shmem.c).
    """
    page = int(files.prog["PAGE_SIZE"].value_())
    pages, free = files.pages, files.held == NOT_HELD
    there = np.flatnonzero(np.isin(files.kind, (TMPFS, SYSV)) & (files.inode["links"] > 0))
    for at in there[np.argsort(-pages[there], kind="stable")][:MOST_FILES].tolist():
        most, let_go = int(pages[at]) * page, bool(free[at])
        yield _row(
            *(REMOVE, most if let_go else 0, most, REMOVED[let_go]),
            path=path_of_file(files, at),
            name="SysV" if files.kind[at] == SYSV else "tmpfs",
            address=hex(int(files.mapping[at])),
        )
    nameless = (files.kind == MEMFD) | ((files.kind == TMPFS) & (files.inode["links"] == 0))
    there = np.flatnonzero(nameless)
    for at in there[np.argsort(-pages[there], kind="stable")][:MOST_FILES].tolist():
        size = int(pages[at]) * page
        yield _row(
            *(LET_GO, size, size, WHEN_LET_GO),
            path=path_of_file(files, at),
            name="memfd" if files.kind[at] == MEMFD else "tmpfs",
            address=hex(int(files.mapping[at])),
        )
    there = np.flatnonzero(files.kind == TMPFS)
    for sb in np.unique(files.sb[there]).tolist()[:MOST_FILES]:
        here = there[files.sb[there] == sb]
        yield _row(
            *(EMPTY_TMPFS, int(pages[here[free[here]]].sum()) * page),
            *(int(pages[here].sum()) * page, EMPTIED),
            path=files.supers.mounted(sb)[0],
            name=files.supers.types[sb],
            address=hex(int(files.supers.address[sb])),
        )


IN_POOL = (
    "free huge pages that are not reserved, less the struct pages that HVO had freed. Those in use "
    "stay"
)


def of_hugetlb(memory: Memory, gaps: Gaps) -> Iterator[WouldFree]:
    """
    nr_hugepages set to 0: ``remove_pool_hugetlb_folio()`` of what is free and not promised
    (``set_max_huge_pages()``: ``min_count`` has the reserved ones and those in use), after
    ``hugetlb_vmemmap_restore_folio()``.

    :raises LookupError, ValueError: the pools cannot be read.
    """
    prog = memory.prog
    sizes = [row for row in hugetlb_sizes(prog) if row.pages]
    if not sizes:
        return
    shift = int(prog["PAGE_SHIFT"].value_())
    found = find_huge_pages(prog, gaps)
    for row in sizes:
        of_size = found[np.int64(1) << (found["order"] + shift) == row.page_bytes]
        flagged, number = int(of_size["flagged"].sum()), row.free_pages - max(row.reserved_pages, 0)
        # Which of them are free is not asked: all, none, or in between.
        saves = row.page_saves_bytes or 0
        restored = min(number, flagged), max(0, number - (row.pages - flagged))
        least, most = (number * row.page_bytes - each * saves for each in restored)
        yield _row(
            *(POOL, least, most, IN_POOL),
            name=size_name(row.page_bytes),
            huge_bytes=number * row.page_bytes,
            swap_bytes=0,
        )


TAKES = (
    "what is swapped out is read into memory, but for what is in the swap cache already, of all "
    "areas together; it fails where there is no room"
)


def of_swap(memory: Memory, cached: int) -> Iterator[WouldFree]:
    """
    swapoff of each area (``try_to_unuse()``, mm/swapfile.c).

    :param cached: pages in the swap cache.
    """
    page = int(memory.prog["PAGE_SIZE"].value_())
    areas = [(info, swap_area(info)) for info in swap_infos(memory.prog)]
    outside = max(sum(row.used_bytes for _, row in areas) - cached * page, 0)
    cached += _waiting_slots(memory.prog)
    for info, row in areas:
        given_back = 0
        if (zram := _zram(info)) is not None:
            given_back = zram
        yield _row(
            *(SWAPOFF, given_back - min(row.used_bytes, outside)),
            *(given_back - max(row.used_bytes - cached * page, 0), TAKES),
            path=row.path,
            huge_bytes=0,
            swap_bytes=0,
        )


def _waiting_slots(prog: Program) -> int:
    """
    Slots that CPUs at most keep for the next pages, or have not given back (mm/swap_slots.c 6.12:
    SWAP_SLOTS_CACHE_SIZE of each); they are in use, and hold nothing.
    """
    with contextlib.suppress(LookupError):
        prog.type("struct swap_slots_cache")
        return 2 * SLOTS_OF_CPU * len(online_cpus(prog))
    return 0


def _zram(info: Any) -> int | None:
    """Memory that the device takes, if it is a zram device."""
    try:
        zram = zram_of(info.bdev.bd_disk.read_())
        return None if zram is None else zram_memory(zram)[1]
    except TORN:
        return None


# Pages that are the holder's alone; others are counted for who else has them.
OWN = (
    *(Kind.PIPE, Kind.SOCKET, Kind.LARGE_KMALLOC, Kind.VMALLOC, Kind.IO_URING, Kind.PERF_RING),
    *(Kind.BPF_RING, Kind.DMA_BUF, Kind.MACHINE_TABLE, Kind.MACHINE_CPU),
)
CLOSE = "its pages, when all who have it open close it; at most objects of slabs too"
UNREGISTER = "unregistered: pinned pages that no process maps; at most all that it has pinned"
BUFFERS, AIO = "io_uring buffers", "AIO ring"
OPENED = (
    *("pipe", "socket", "packet ring", "perf ring", "io_uring", BUFFERS, AIO, "dma-buf"),
    *("BPF ring", "BPF map", "BPF program", "virtual machine", "vCPUs"),
)


def of_holders(held: Holdings, pages: HeldPages, page: int) -> Iterator[WouldFree]:
    """
    Holders that something open is: pipes (``free_pipe_info()``), sockets, rings, BPF, dma-bufs,
    virtual machines; the rings of AIO (``io_destroy()``); and what is registered with io_uring.
    """
    least, most = Counter[int](), Counter[int](held.in_slabs)
    for number, kind, count in pages.rows():
        holder = held.holders[number]
        if KINDS[kind] in OWN or (holder.kind == AIO and KINDS[kind] is Kind.FILE):
            least[number] += count * page
            most[number] += count * page
        elif holder.kind == BUFFERS:
            most[number] += count * page
    for number, count in pages.alone.items():
        if held.holders[number].kind == BUFFERS:
            least[number] += count * page
    order = sorted(most, key=lambda number: (-least[number], -most[number]))
    ours = (n for n in order if held.holders[n].kind in OPENED)
    for number in itertools.islice(ours, 2 * MOST_FILES):
        holder = held.holders[number]
        how = UNREGISTER if holder.kind == BUFFERS else CLOSE
        yield _row(
            *(CLOSED, least[number], most[number], how),
            pid=holder.who.pid,
            comm=holder.who.comm,
            name=f"{holder.kind} {holder.name}".strip(),
            swap_bytes=0,
        )


OF_CGROUP = (
    "by the cgroup's counters, with those below, which lag: pages of files that are neither "
    "mapped, dirty nor written back, none where a cgroup is protected; at most all on its lists, "
    "anonymous ones as far as there is swap, and slabs"
)


def of_cgroups(memcgs: Memcgs, paths: Sequence[CgroupPath], free_swap: int) -> Iterator[WouldFree]:
    """
    ``memory.reclaim`` of all that a cgroup has (``user_proactive_reclaim()``, mm/vmscan.c).

    :param free_swap: bytes.
    """
    stats, nothing = memcgs.stats, np.zeros(len(memcgs.address), np.int64)

    def of(*names: str) -> S64s:
        return sum((stats.get(name, nothing) for name in names), nothing)

    files = of("active_file", "inactive_file")
    protected = any((memcgs.columns[f"memory.{name}"] > 0).any() for name in ("min", "low"))
    sure = nothing if protected else files - of("file_mapped", "file_dirty", "file_writeback")
    anonymous = np.minimum(of("active_anon", "inactive_anon"), free_swap)
    most = files + anonymous + of("slab_reclaimable")
    below = np.flatnonzero(memcgs.stats_read & (memcgs.depth > 0))
    for at in below[np.argsort(-most[below], kind="stable")][:MOST_FILES].tolist():
        least = max(int(sure[at]), 0)
        yield _row(RECLAIM, least, int(most[at]), OF_CGROUP, cgroup=paths[at][0])


SHRUNK = "slabs without an object in use; which of the others empty out is not known"
DENTRIES = (
    "at most the slabs of caches that reclaim shrinks, dentries and inodes for the most part: an "
    "object in use keeps its slab"
)


def of_slabs(memory: Memory, reclaimable_pages: int) -> Iterator[WouldFree]:
    """
    ``drop_slab()`` (fs/drop_caches.c), and ``kmem_cache_shrink()`` of each cache, which gives empty
    slabs back.

    :param reclaimable_pages: of slabs, by the ledger.
    """
    page = int(memory.prog["PAGE_SIZE"].value_())
    yield _row(SLABS, 0, reclaimable_pages * page, DENTRIES, swap_bytes=0)
    scan = slab_scan(memory)
    pages = np.zeros(len(scan.caches), np.int64)
    for slabs in scan:
        empty = slabs[(slabs["inuse"] == 0) & scan.plausible(slabs)]
        np.add.at(pages, empty["cache"], scan.pages_of(empty))
    order = np.argsort(-pages, kind="stable")[:MOST_FILES]
    for at in order[pages[order] > 0].tolist():
        size, name = int(pages[at]) * page, scan.caches[at].name
        yield _row(EMPTY_SLABS, size, size, SHRUNK, name=name, swap_bytes=0)


def largest_first(rows: Iterable[WouldFree]) -> list[WouldFree]:
    """
    The rows, those that free the most for sure first; nothing that frees nothing, but swapoff,
    which may take nothing.
    """
    some = (
        row
        for row in rows
        if row.least_bytes or row.most_bytes or row.swap_bytes or row.deed == SWAPOFF
    )
    return sorted(some, key=lambda row: (-row.least_bytes, -row.most_bytes, row.deed))


def _cgroups(memory: Memory, gaps: Gaps) -> Iterator[WouldFree]:
    prog, memcgs = memory.prog, memcgs_once(memory)
    paths = cgroup_paths(prog, memcgs.columns["cgroup"], gaps)
    areas = [swap_area(info) for info in swap_infos(prog)] if "swap_info" in prog else []
    yield from of_cgroups(memcgs, paths, sum(row.bytes - row.used_bytes for row in areas))


def _together(rows: list[WouldFree]) -> list[WouldFree]:
    """The rows; a process that ends closes what it has open; and what two deeds do together."""
    closed = Counter[int]()
    for row in rows:
        if row.deed == CLOSED and row.pid is not None:
            closed[row.pid] += row.most_bytes
    rows = [
        dataclasses.replace(row, most_bytes=row.most_bytes + closed[row.pid])
        if row.deed == END and row.pid is not None and row.pid in closed
        else row
        for row in rows
    ]
    caches = [row for row in rows if row.deed in (CACHE, SLABS)]
    if len(caches) == 2:
        least, most = (sum(getattr(row, name) for row in caches) for name in AMOUNTS)
        rows.append(_row(BOTH, least, most, "drop_caches 1 and 2", swap_bytes=0))
    return rows


def from_memory(memory: Memory) -> Found:
    prog = memory.prog
    pages, gaps = ledger_pages(memory)
    found = Found(memory.live, unreadable_bytes=gaps.bytes)
    kinds = pages.pages.reshape(len(KINDS), -1).sum(axis=1)
    rows: list[WouldFree] = []
    more, page = Gaps(), int(prog["PAGE_SIZE"].value_())

    def add(what: str, parts: Any) -> None:
        try:
            rows.extend(parts())
        except (Absent, FaultError, LookupError, NotImplementedError, ValueError) as error:
            found.notes.append(f"{what} are missing: {error}")

    def processes() -> list[WouldFree]:
        scan = shares_once(memory)
        found.unreadable_bytes += scan.gaps.bytes
        say_unread(scan, found)
        return of_processes(scan, _stack_bytes(prog))

    def cached() -> Iterator[WouldFree]:
        files = cached_files_once(memory)
        say_unknown(files, found)
        if files.supers.broken_off:
            found.notes.append(files.supers.broken_off)
        yield from of_page_cache(files)
        yield from of_tmpfs(files)

    add("processes", processes)
    add("files", cached)
    add("hugetlb pools", lambda: of_hugetlb(memory, more))
    in_cache = int(kinds[Kind.ANON_SWAP] + kinds[Kind.SWAP_CACHE])
    if "swap_info" in prog:
        add("swap areas", lambda: of_swap(memory, in_cache))

    if (held := pages.held) is not None:
        add("what is open", lambda: of_holders(holdings(memory), held, page))
    add("memory cgroups", lambda: _cgroups(memory, more))
    add("slab caches", lambda: of_slabs(memory, int(kinds[Kind.RECLAIMABLE])))
    rows = _together(rows)
    found.unreadable_bytes += more.bytes
    nameless = sum(row.deed == REMOVE and row.path is None for row in rows)
    found.notes += if_any(nameless, "the names of {} cannot be read", "file")
    return found.add(WouldFree, largest_first(rows))


WOULD_FREE_SECTION = Section(
    name="would_free",
    title="What would free memory",
    intro="""
What comes back if a process ends, a cache is dropped, a cgroup is reclaimed, a file of tmpfs is
removed, what is open (pipes, sockets, rings, BPF maps, memfds, virtual machines) is closed, a pool
of huge pages is emptied, and what swapoff takes: by the rules of the kernel, page by page. A page
that another has too does not come back: *least* has none of those. What is dirty, mlocked, mapped
or pinned stays when [caches are dropped](https://docs.kernel.org/admin-guide/sysctl/vm.html#drop-caches).
Rows are alternatives, and their *most* is not to be added up. No row is advice: what is dropped is
read again, and a task in swapoff is the first that the OOM killer takes.
""",
    command=Command("what would free memory", top=TOP, picks="pid"),
    since="0.3.0",
    tables=tables_of(
        WouldFree,
    ),
    from_memory=from_memory,
    from_files=not_in_text(
        "who else has a page is read from the kernel's memory (as root); process_shares has what "
        "each process has for itself (unique_bytes)"
    ),
    deadline=PASS_SECONDS,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("would_free")
