# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The page tables of every process, from ``mm.pgd`` down: the tables that are made of a scan of them
(see ``page_table_scan``).

A page table is a page, whatever is in it: one entry of 512 costs as much as all of them. None of
it is in VmRSS, and nothing short of unmapping gives most of it back. VmPTE in /proc/PID/status says
how much there is (it counts PTE, PMD and PUD tables, and the tables that are deposited for huge
PMDs to be split into); what the tables hold is only in the tables.

What is counted is held against ``mm.pgtables_bytes``; of a dump also against what the kernel counts
of the same: VMAs, the pages that are mapped, and those in swap. Costs nothing beyond the scan.

An exit walks every slot of every PTE table (``zap_pte_range()`` knows of no empty ones), frees what
is mapped, and then frees the tables (``free_pgtables()``). Where the OOM reaper comes first, it
walks the slots of all private mappings before the exit walks them again: it frees pages, but no PTE
tables. Huge PMDs are done with at once, together with their deposited table, and are gone when the
second walk comes.

Cannot know: tables of kernel threads' borrowed address spaces, of address spaces that no task has
any more, and the kernel's own.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from drgn import FaultError, Program
from drgn.helpers.linux.mm import follow_phys
from drgn.helpers.linux.sched import cpu_curr

from mmscope.drgn.page_tables.page_table_scan import (
    REGION_KINDS,
    PageTableScan,
    by_size,
    scan_of,
    users_apart,
    words_of_lost,
)
from mmscope.drgn.page_tables.swap_types import (
    DEVICE,
    HUGETLB,
    MARKER,
    MIGRATION,
    OTHER,
    PAGE,
    POISONED,
    SPECIAL,
    SWAP,
    ZERO,
)
from mmscope.drgn.processes.address_spaces import BROKEN_OFF, AddressSpaces, Process
from mmscope.drgn.processes.process_memory import (
    KINDS,
    ProcessMemory,
    counted_by_cpus,
    process_memory_once,
)
from mmscope.drgn.processes.process_status import parse_status, rows_of_processes
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import Array, Columns, Gaps, S64s, U64s
from mmscope.drgn.reading.rwsem_counts import lock_counts, lock_word
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Against, Command, Found, Section
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, MOST_PIDS, column
from mmscope.drgn.tables.table import Inside, table, tables_of


@table(
    "page_tables",
    "Page tables by process",
    lasting=("comm",),
    inside=(Inside("page tables", "pgtables_bytes"),),
)
class PageTables:
    """The page tables of one address space."""

    pid: int = column(
        key=True, high=MOST_PIDS, help="thread group; the first of those sharing them"
    )
    comm: str = column(holds="comm", help="name of the process")
    pgtables_bytes: int = column(
        unit="bytes",
        help="VmPTE: PTE, PMD, PUD and deposited tables, not P4D and PGD",
    )
    resident_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="mapped and resident (Rss of smaps), without hugetlb",
    )
    hugetlb_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="mapped hugetlb pages")
    pte_tables: int | None = column(help="without deposited ones")
    pmd_tables: int | None = column(help="shared ones included")
    pud_tables: int | None = column(help="tables of PUDs")
    deposited_pte_tables: int | None = column(
        help="empty PTE tables kept for splitting huge PMDs, one each"
    )
    empty_pte_tables: int | None = column(help="without any entry, deposited ones not counted")
    used_ptes: int | None = column(help="PTEs that are not none")
    present_ptes: int | None = column(
        help="mapping a page, zero and special ones included, hugetlb not"
    )
    zero_ptes: int | None = column(help="of these, the shared zero page")
    swap_ptes: int | None = column(help="swapped out")
    huge_pmds: int | None = column(help="mapping a THP, or DAX that counts as resident (6.15)")
    huge_zero_pmds: int | None = column(help="mapping the huge zero page")
    exit_pte_slots: int | None = column(
        help="PTE slots that an exit walks, used or not (zap_pte_range)"
    )
    unaccounted_tables: int | None = column(
        low=None,
        help="in pgtables_bytes but not found; negative: found, not counted",
    )


@table("page_table_details", "What else is in page tables", measure="vmas")
class PageTableDetails:
    """Further parts of the page tables of one address space."""

    pid: int = column(
        key=True, high=MOST_PIDS, help="thread group; the first of those sharing them"
    )
    comm: str = column(holds="comm", help="name of the process")
    processes: int = column(help="processes sharing this address space (vfork)")
    threads: int = column(low=1, help="threads sharing it")
    vmas: int = column(help="mappings")
    mapped_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped addresses")
    p4d_tables: int = column(help="none with four levels")
    shared_pmd_tables: int = column(help="PMD tables shared by several processes, for hugetlb")
    special_ptes: int = column(
        help="mapped, but not resident (device memory, vvar); without zero pages"
    )
    migration_ptes: int = column(help="pages being migrated")
    device_ptes: int = column(help="pages in a device's own memory")
    marker_ptes: int = column(help="markers: guard pages, uffd-wp")
    poisoned_ptes: int = column(help="pages lost to a hardware error")
    other_huge: int = column(
        help="PMDs and PUDs mapping what is not resident (device memory; DAX before 6.15)"
    )
    migration_pmds: int = column(help="huge pages being migrated")
    poisoned_pmds: int = column(help="PMDs and PUDs of lost hugetlb pages")
    reaped_pte_slots: int = column(help="of exit_pte_slots: those the OOM reaper walks first")
    bad_entries: int = column(help="lead to nothing, an unreadable table, or one already visited")
    huge_puds: int = column(since="0.3.0", help="PUDs mapping DAX that counts as resident (6.15)")


@table("page_table_occupancy", "How full page tables are", measure="tables")
class PageTableOccupancy:
    """How full the tables of one level are."""

    pid: int | None = column(key=True, high=MOST_PIDS, help="thread group; empty: all processes")
    level: str = column(holds="words", key=True, help="pgd, p4d, pud, pmd, pte, or deposited")
    least: int = column(key=True, help="least entries in use a table, of 512 (4 KiB pages)")
    most: int = column(help="most entries in use")
    tables: int = column(help="tables with that many")
    entries: int = column(help="in use in all of them")


@table("page_table_regions", "What is mapped how, in the address spaces with the most tables")
class PageTableRegion:
    """A part of an address space: neighbouring mappings without a large gap."""

    pid: int = column(key=True, high=MOST_PIDS, help="thread group")
    start: str = column(holds="kernel", key=True, help="first address")
    end: str = column(holds="kernel", help="behind the last address")
    vmas: int = column(help="mappings in it")
    mapped_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped addresses")
    pte_tables: int = column(help="PTE tables for it")
    small_bytes: int = column(unit="bytes", high=MOST_BYTES, help="resident in base pages")
    huge_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="resident in transparent huge pages"
    )
    hugetlb_bytes: int = column(unit="bytes", high=MOST_BYTES, help="in hugetlb pages")
    zero_bytes: int = column(unit="bytes", high=MOST_BYTES, help="shared zero page")
    huge_zero_bytes: int = column(unit="bytes", high=MOST_BYTES, help="huge zero page")
    swap_bytes: int = column(unit="bytes", high=MOST_BYTES, help="swapped out")
    other_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="device memory, markers, pages being migrated"
    )


def page_tables(scan: PageTableScan) -> list[PageTables]:
    """The page tables of every process, the most first."""
    page_shift = scan.form.page_shift
    sums, kinds = scan.sums, scan.sums["kinds"]
    charged = scan.spaces.columns["pgtables_bytes"]
    pte, pmd, pud = (_tables(scan, name) for name in ("pte", "pmd", "pud"))
    found = sums["deposited"] * scan.form.table_bytes(scan.form.last)
    for at, level in enumerate(scan.form.levels):
        if level.name in ("pud", "pmd", "pte"):
            found = found + sums["tables"][:, at] * scan.form.table_bytes(at)
    columns = (
        charged,
        (kinds[:, PAGE] << page_shift) + sums["huge_bytes"],
        sums["hugetlb_bytes"] + (kinds[:, HUGETLB] << page_shift),
        pte,
        pmd,
        pud,
        sums["deposited"],
        sums["empty"],
        kinds.sum(axis=1),
        kinds[:, [PAGE, ZERO, SPECIAL]].sum(axis=1),
        kinds[:, ZERO],
        kinds[:, SWAP],
        sums["huge"],
        sums["huge_zero"],
        sums["exit_slots"],
        (charged.astype(np.int64) - found) // scan.form.table_bytes(scan.form.last),
    )
    return [
        PageTables(process.pid, process.comm, *numbers)
        for process, numbers in _by_process(scan, columns)
    ]


def _tables(scan: PageTableScan, name: str) -> S64s:
    """Tables of a level by process; with few levels the upper ones are none of their own."""
    for at, level in enumerate(scan.form.levels):
        if level.name == name:
            return scan.sums["tables"][:, at]
    return np.zeros(len(scan.spaces), np.int64)


def _by_process(
    scan: PageTableScan, columns: Iterable[Array]
) -> Iterator[tuple[Process, tuple[int, ...]]]:
    """Each process with its number of each column, the one with the most tables first."""
    order = [at for at in by_size(scan.spaces) if not scan.lost[at]]
    numbers = (column[order].tolist() for column in columns)
    processes = (scan.spaces.processes[at] for at in order)
    return zip(processes, zip(*numbers, strict=True), strict=True)


def page_table_details(scan: PageTableScan) -> list[PageTableDetails]:
    """The rest of what is in the page tables of every process, in the same order."""
    sums, kinds = scan.sums, scan.sums["kinds"]
    columns = (
        sums["vmas"],
        sums["mapped"],
        _tables(scan, "p4d"),
        sums["shared_pmds"],
        kinds[:, SPECIAL],
        kinds[:, MIGRATION],
        kinds[:, DEVICE],
        kinds[:, MARKER],
        kinds[:, POISONED],
        sums["other_huge"],
        sums["migration_pmds"],
        sums["poisoned_pmds"],
        sums["reaped_slots"],
        sums["bad"] + kinds[:, OTHER],
        sums["huge_puds"],
    )
    return [
        PageTableDetails(process.pid, process.comm, process.processes, process.threads, *numbers)
        for process, numbers in _by_process(scan, columns)
    ]


def page_table_occupancy(scan: PageTableScan) -> list[PageTableOccupancy]:
    """Occupancy of all tables, and of those of the processes with the most."""
    filled = np.stack([scan.totals["filled"], scan.totals["filled_entries"]], axis=-1)
    names = [*(level.name for level in scan.form.levels), "deposited"]
    slots = [scan.form.slots(level) for level in (*range(len(scan.form.levels)), scan.form.last)]
    pids = [scan.spaces.processes[at].pid for at in scan.largest]
    rows = []
    for pid, counts in zip([None, *pids], [filled.sum(axis=0), *filled], strict=False):
        for level, step in np.argwhere(counts[..., 0]).tolist():
            least = 1 << step - 1 if step else 0
            most = min(max(2 * least - 1, 0), slots[level])
            tables, entries = counts[level, step].tolist()
            rows.append(PageTableOccupancy(pid, names[level], least, most, tables, entries))
    return rows


def page_table_regions(scan: PageTableScan) -> list[PageTableRegion]:
    """The address spaces of the processes with the most tables, and what is mapped how."""
    rows = []
    for owner in scan.largest:
        if scan.lost[owner]:
            continue
        for at in np.flatnonzero(scan.regions["owner"] == owner).tolist():
            _, start, end, vmas, mapped = scan.regions[at].tolist()
            sizes = scan.totals["region_bytes"][at].tolist()
            rows.append(
                PageTableRegion(
                    pid=scan.spaces.processes[owner].pid,
                    start=f"{start:#x}",
                    end=f"{end:#x}",
                    vmas=vmas,
                    mapped_bytes=mapped,
                    pte_tables=int(scan.totals["region_tables"][at]),
                    **{f"{k}_bytes": size for k, size in zip(REGION_KINDS, sizes, strict=True)},
                )
            )
    return rows


# Lines of /proc/PID/status (fs/proc/task_mmu.c, task_mem(); fs/proc/array.c) that say the same.
STATUS = {
    "VmPTE": "pgtables_bytes",
    "VmRSS": "resident_bytes",
    "HugetlbPages": "hugetlb_bytes",
}


def read_status(text: str) -> PageTables | None:
    """
    Read /proc/PID/status for a process's page tables: how large they are, not what is in them.

    Its VmRSS may lag a little behind (since v6.2 by what each CPU has not folded in). Processes
    that share an address space look like those that do not.

    :return: None for a kernel thread, and for a process that has exited.
    :raises ValueError: the text is not that of such a file, or it is cut short.
    """
    status = parse_status(text)
    if "VmPTE" not in status.lines:
        return None
    values: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(PageTables))
    values |= {"pid": status.pid, "comm": status.comm}
    values |= {name: status.bytes(line) for line, name in STATUS.items() if line in status.lines}
    return PageTables(**values)


# Nanoseconds that the steps of an exit take, for an estimate: measured by unmapping memory of known
# shape on a virtual machine (Xeon, Linux 6.18); ``make bench`` measures them on the machine that it
# runs on. Caches, NUMA distance and memory cgroups move them by a factor of two or three, and
# waiting for a lock takes longer.
PRICES = {
    "slot": 1.2,  # to look at a slot of a PTE table, its share of a cache miss included
    "table": 300.0,  # to free a PTE, PMD or PUD table
    "deposited": 200.0,  # to free a huge PMD's deposited table, by zap_huge_pmd()
    "page": 200.0,  # to unmap and free a resident base page
    "huge": 2000.0,  # to unmap and free a huge page
}


@table("exit_costs", "What the end of each process will cost", measure="exit_seconds")
class ExitCost:
    """What the end of one address space takes."""

    pid: int = column(key=True, high=MOST_PIDS, help="thread group; the first of those sharing it")
    comm: str = column(holds="comm", help="name of the process")
    pte_slots: int = column(help="PTE slots that the exit walks")
    reaped_pte_slots: int = column(help="PTE slots that the OOM reaper would walk first")
    tables: int = column(help="tables to free: PTE, PMD, PUD, P4D and PGD")
    deposited_tables: int = column(help="deposited tables to free; their slots are not walked")
    base_pages: int = column(unit="pages", high=MOST_PAGES, help="resident base pages")
    huge_pages: int = column(help="resident transparent huge pages")
    tables_seconds: float = column(unit="s", help="estimate: walking slots and freeing all tables")
    exit_seconds: float = column(unit="s", help="estimate: tables and pages")
    oom_seconds: float = column(
        unit="s", help="estimate: the same after the OOM reaper's walk, on one CPU"
    )
    dontneed_frees_tables: bool = column(
        help="this kernel frees a PTE table when MADV_DONTNEED covers all of it"
    )


def exit_costs(
    rows: Iterable[PageTables],
    details: Iterable[PageTableDetails],
    *,
    dontneed_frees_tables: bool,
) -> list[ExitCost]:
    """
    The cost of each process's end, the longest first.

    :param details: of the same processes; one without them, read from text alone, is left out.
    """
    more = {detail.pid: detail for detail in details}
    costs = []
    for row in rows:
        detail = more.get(row.pid)
        if detail is None or row.exit_pte_slots is None:
            continue
        # The PGD is one more.
        tables = 1 + (row.pte_tables or 0) + (row.pmd_tables or 0) + (row.pud_tables or 0)
        tables += detail.p4d_tables
        deposited, huge = row.deposited_pte_tables or 0, row.huge_pmds or 0
        base = (row.present_ptes or 0) - (row.zero_ptes or 0) - detail.special_ptes
        walk = PRICES["slot"] * row.exit_pte_slots
        in_tables = walk + PRICES["table"] * tables + PRICES["deposited"] * deposited
        everything = in_tables + PRICES["page"] * base + PRICES["huge"] * huge
        costs.append(
            ExitCost(
                pid=row.pid,
                comm=row.comm,
                pte_slots=row.exit_pte_slots,
                reaped_pte_slots=detail.reaped_pte_slots,
                tables=tables,
                deposited_tables=deposited,
                base_pages=base,
                huge_pages=huge,
                tables_seconds=round(in_tables / 1e9, 6),
                exit_seconds=round(everything / 1e9, 6),
                oom_seconds=round((everything + PRICES["slot"] * detail.reaped_pte_slots) / 1e9, 6),
                dontneed_frees_tables=dontneed_frees_tables,
            )
        )
    return sorted(costs, key=lambda cost: (-cost.exit_seconds, cost.pid))


def dontneed_frees_tables(prog: Program) -> bool:
    """
    True if MADV_DONTNEED frees the PTE tables that it empties.

    "mm: pgtable: reclaim empty PTE page in madvise(MADV_DONTNEED)" (6375e95f381e, in v6.14); on
    x86-64 always. Before, only the deposited tables of huge PMDs came back.
    """
    try:
        return bool(prog.type("struct zap_details").has_member("reclaim_pt"))
    except LookupError:
        return False


# Before v6.2 each thread holds back what it has counted in so many faults, and a fault maps up to
# 16 pages around it: check_sync_rss_stat(), do_fault_around() (mm/memory.c).
HELD_BACK = 65 * 16
USER_END = 1 << 63  # above lies the kernel


def _changing(prog: Program) -> Iterator[int]:
    """
    The ``mm_struct`` of the task that each CPU ran when the dump was taken, but for those in user
    mode: no fault or system call of theirs was under way.
    """
    for cpu in online_cpus(prog):
        try:
            task = cpu_curr(prog, cpu)
            mm = task.mm.value_()
        except (FaultError, LookupError):
            continue
        if not mm:  # a thread of the kernel
            continue
        try:
            in_kernel = prog.stack_trace(task)[0].pc >= USER_END
        except (FaultError, LookupError, ValueError, IndexError):  # the dump has no registers
            in_kernel = True
        if in_kernel:
            yield mm


def _held_back(prog: Program, spaces: AddressSpaces) -> tuple[S64s, S64s]:
    """
    Pages of each process that the counters of its address space do not have, as each thread holds
    some back (``add_mm_counter_fast()``, mm/memory.c, before v6.2); and by how many that is not
    known: of who has several threads, or where a counter is below 0 and told as 0.
    """
    several = np.array([each.threads * each.processes > 1 for each in spaces.processes], np.bool_)
    threads = np.array([each.threads for each in spaces.processes], np.int64)
    unknown = np.where(several, HELD_BACK * threads, 0)
    kinds = [int(prog.constant(KINDS[name]).value_()) for name in ("anon", "file", "shmem")]
    columns: Columns = {str(kind): f"rss_stat.count[{kind}].counter" for kind in kinds}
    counters, read = read_members(
        prog, spaces.addresses, prog.type("struct mm_struct"), columns, Gaps()
    )
    unknown[~read] = HELD_BACK
    for kind in kinds:
        unknown += np.clip(-counters[str(kind)].astype(np.int64), 0, HELD_BACK * threads)
    held = np.zeros(len(threads), np.int64)
    task = prog.type("struct task_struct")
    if task.has_member("rss_stat"):  # SPLIT_RSS_COUNTING
        columns = {str(kind): f"rss_stat.count[{kind}]" for kind in kinds}
        counts, read = read_members(prog, spaces.tasks, task, columns, Gaps())
        held = sum((counts[str(kind)].astype(np.int64) for kind in kinds), held)
        unknown[~read] = HELD_BACK
    return np.where(several, 0, held), unknown


def _locked(prog: Program, mms: U64s) -> set[int]:
    """
    Addresses of these ``mm_struct`` whose mmap_lock is taken, or cannot be read.

    Who unmaps has it for reading when total_vm is lowered (vms_complete_munmap_vmas(), mm/vma.c).
    """
    if (word := lock_word(prog)) is None:
        return set(mms.tolist())
    wanted: Columns = {"count": f"mmap_lock.{word}"}
    found, read = read_members(prog, mms, prog.type("struct mm_struct"), wanted, Gaps())
    return set(mms[~read | (lock_counts(found["count"]) != 0)].tolist())


MOST_NAMED = 3  # processes in a sentence


@dataclasses.dataclass(frozen=True, slots=True)
class Leeway:
    """
    By how much a process's counters may differ from its page tables and VMAs.

    :ivar resident: bytes; :ivar swap: the same of what is swapped.
    :ivar lacking: bytes that the counters do not have yet; :ivar absent: those that they have and
        that are no resident entries; :ivar huge_swapped: those of swapped PMDs.
    :ivar moves: a task may be changing its VMAs.
    """

    resident: int
    swap: int
    lacking: int
    absent: int
    huge_swapped: int
    map_count: int
    moves: bool


def _leeway(prog: Program, scan: PageTableScan) -> dict[int, Leeway]:
    """
    The leeway of each process, by PID.

    A CPU may be about to change a table's entries (``zap_pte_range()``). A page that is being
    moved, and a device's, stay in the counter, and are no resident entry.
    """
    page, spaces = 1 << scan.form.page_shift, scan.spaces
    changed = scan.form.slots(scan.form.last) * len(online_cpus(prog))
    busy, locked = set(_changing(prog)), _locked(prog, spaces.addresses)
    threads = np.array([process.threads for process in spaces.processes], np.int64)
    held, unknown, swap = (np.zeros(len(threads), np.int64) for _ in range(3))
    if not counted_by_cpus(prog):
        held, unknown = _held_back(prog, spaces)
        swap = HELD_BACK * threads
    kinds, shift = scan.sums["kinds"], scan.form.above_ptes.shift
    found = {}
    for at, (process, mm) in enumerate(
        zip(spaces.processes, spaces.addresses.tolist(), strict=True)
    ):
        about = changed if mm in busy else 0
        moved = int(scan.sums["migration_pmds"][at]) << shift
        found[process.pid] = Leeway(
            resident=(about + int(unknown[at])) * page,
            swap=(about + int(swap[at])) * page,
            lacking=int(held[at]) * page,
            absent=int(kinds[at, [MIGRATION, DEVICE]].sum()) * page + moved,
            huge_swapped=int(scan.sums["swap_pmds"][at]) << shift,
            map_count=int(spaces.columns["vmas"][at]),
            moves=mm in locked,
        )
    return found


def _hold_against_counts(memory: Memory, scan: PageTableScan, found: Found) -> None:
    """Mark what a dump's page tables and VMAs have and the process's counters do not."""
    prog, page = memory.prog, 1 << scan.form.page_shift
    cpus = len(online_cpus(prog))
    rows, details = (found.by_name[table.name] for table in tables_of(PageTables, PageTableDetails))
    processes, _, _ = process_memory_once(memory)
    counted = {row.pid: row for row in processes}
    by = _leeway(prog, scan)

    def entries(row: ProcessMemory) -> Against | None:
        if (walked := tables.get(row.pid)) is None or walked.resident_bytes is None:
            return None
        there = walked.resident_bytes - by[row.pid].lacking
        nearest = min(max(row.resident_bytes, there), there + by[row.pid].absent)
        return nearest, by[row.pid].resident

    def swapped(row: ProcessMemory) -> Against | None:
        if (walked := tables.get(row.pid)) is None:
            return None
        return (walked.swap_ptes or 0) * page + by[row.pid].huge_swapped, by[row.pid].swap

    def counter(row: PageTables) -> Against | None:
        if (mine := counted.get(row.pid)) is None:
            return None
        there = mine.resident_bytes + by[row.pid].lacking
        return min(max(row.resident_bytes or 0, there - by[row.pid].absent), there), by[
            row.pid
        ].resident

    def vmas(row: PageTableDetails) -> Against:
        return by[row.pid].map_count, cpus if by[row.pid].moves else 0

    def mapped(row: PageTableDetails) -> Against | None:
        mine = counted.get(row.pid)
        return None if mine is None or by[row.pid].moves else (mine.mapped_bytes, 0)

    def locked_pages(row: ProcessMemory) -> Against | None:
        # VFIO adds what it gave to a device (account_locked_vm(), mm/util.c).
        least = in_locked.get(row.pid)
        return None if least is None else (max(row.locked_bytes, least), 0)

    tables = {row.pid: row for row in rows}
    in_locked = {
        process.pid: locked_bytes
        for process, locked_bytes in zip(
            scan.spaces.processes, scan.sums["locked"].tolist(), strict=True
        )
        if not by[process.pid].moves
    }
    found.hold_against(processes, "locked_bytes", locked_pages, "its VM_LOCKED VMAs")
    more = [
        row.comm for row in processes if row.locked_bytes > in_locked.get(row.pid, row.locked_bytes)
    ]
    if more:
        found.remarks.append(
            f"{', '.join(more[:MOST_NAMED])}: more is locked than by mlock(): given to a device, "
            "or damage"
        )
    found.hold_against(processes, "resident_bytes", entries, "what its tables map")
    found.hold_against(processes, "swap_bytes", swapped, "what its tables have")
    found.hold_against(rows, "resident_bytes", counter, "what the kernel counts")
    found.hold_against(details, "vmas", vmas, "its map_count")
    found.hold_against(details, "mapped_bytes", mapped, "its total_vm")
    found.notes += flags_apart(scan, by)


def flags_apart(scan: PageTableScan, by: dict[int, Leeway]) -> list[str]:
    """In words, of how many processes the VMAs of code or of data are not those counted."""
    columns, page = scan.spaces.columns, 1 << scan.form.page_shift
    code, data = columns["exec_pages"], columns["data_pages"] + columns["stack_pages"]
    apart = scan.sums["code"] != code.astype(np.int64) * page
    apart |= scan.sums["data"] != data.astype(np.int64) * page
    moving = [by[process.pid].moves for process in scan.spaces.processes]
    if not (odd := int(np.count_nonzero(apart & ~np.array(moving, np.bool_)))):
        return []
    words = f"flags of VMAs of {plural(odd, 'process', 'processes')} are not those counted"
    return [f"{words} (exec_vm, data_vm, stack_vm)"]


def zero_page_apart(prog: Program) -> str | None:
    """In words, that the frame of the zero page is not that of ``empty_zero_page``."""
    name = "zero_page_pfn" if "zero_page_pfn" in prog else "zero_pfn"
    with contextlib.suppress(FaultError, LookupError):
        frame = int(prog[name].value_())
        address = follow_phys(prog["init_mm"].address_of_(), prog.symbol("empty_zero_page").address)
        if (real := int(address) // int(prog["PAGE_SIZE"].value_())) != frame:
            return f"{name} is {frame:#x}, empty_zero_page is in page frame {real:#x}"
    return None


def page_tables_from_memory(memory: Memory) -> Found:
    # Section process_shares may have made it.
    scan = memory.once("page_table_scan", lambda: scan_of(memory))
    rows = page_tables(scan)
    found = Found(memory.live, unreadable_bytes=scan.gaps.bytes)
    found.notes += if_any(
        scan.gaps.bytes,
        "{} bytes of page tables, VMAs and descriptors could not be read: what they hold is not "
        "counted",
    )
    found.notes += words_of_lost(scan)
    if scan.spaces.broken_off:
        found.notes.append(BROKEN_OFF)
    numbers = scan.numbers
    odd_users = 0 if memory.live else users_apart(scan)
    unaccounted = sum(bool(row.unaccounted_tables) for row in rows)
    bad = int(scan.sums["bad"].sum() + scan.sums["kinds"][:, OTHER].sum())
    process = "process", "processes"
    found.differ(
        *if_any(scan.spaces.damaged, "{} could not be read: missing here", *process),
        *if_any(
            scan.damaged_vmas,
            "{} damaged, and left out",
            *("VMA or node of a tree is", "VMAs and nodes of their trees are"),
        ),
        *if_any(
            numbers["repeated_tables"],
            "{} to a table that was met before, and not followed",
            *("entry leads", "entries lead"),
        ),
        *if_any(
            scan.absurd_charges,
            "{} charged for more page tables than there is memory: pgtables_bytes is damaged",
            *("process is", "processes are"),
        ),
        *if_any(
            scan.odd_charges,
            "{} charged for a part of a table: pgtables_bytes is damaged",
            *("process is", "processes are"),
        ),
        *if_any(
            numbers["dropped_tables"],
            "{} more than the process was charged for, or than there is memory; not followed",
            *("table is", "tables are"),
        ),
        *if_any(numbers["broken_deposits"], "{} of deposited tables without end", "list"),
        *if_any(
            odd_users,
            "{} other users than the processes that were found",
            *("table of hugetlb pages has", "tables of hugetlb pages have"),
        ),
        zero_page_apart(memory.prog),
        *if_any(unaccounted, "pgtables_bytes of {} is not what was found (unaccounted)", *process),
        *if_any(bad, "{} of page tables that cannot be (bad_entries)", "entry", "entries"),
    )
    details = page_table_details(scan)
    given_back = dontneed_frees_tables(memory.prog)
    found.add(PageTables, rows)
    found.add(PageTableDetails, details)
    found.add(ExitCost, exit_costs(rows, details, dontneed_frees_tables=given_back))
    found.add(PageTableOccupancy, page_table_occupancy(scan))
    found.add(PageTableRegion, page_table_regions(scan))
    if not memory.live:
        # Section process_memory says why its counters cannot be read.
        with contextlib.suppress(FaultError, LookupError, ValueError):
            _hold_against_counts(memory, scan, found)
    return found


def page_tables_from_files(files: Files) -> Found:
    rows, notes = rows_of_processes(files, read_status)
    found = Found(notes=notes)
    rows.sort(key=lambda row: (-row.pgtables_bytes, row.pid))
    found.remarks.append(
        "what is in the tables is not in /proc; read the kernel's memory (as root). Processes that "
        "share their memory (vfork) count each"
    )
    return found.add(PageTables, rows)


PAGE_TABLES_SECTION = Section(
    name="page_tables",
    title="Page tables",
    tables=tables_of(PageTables, PageTableDetails, ExitCost, PageTableOccupancy, PageTableRegion),
    intro="""
A page table takes a page of memory, however little is in it, and is in no process's RSS. It is
not reclaimed: `munmap()` and the end of the process give it back. `MADV_DONTNEED` gives back the
tables that lie deposited behind huge pages and, on some kernels (`dontneed_frees_tables`), PTE
tables of which it empties all that they map. `MADV_FREE`, with huge pages or without, and memory
pressure give nothing back. An exit walks every slot, used or not; where the OOM reaper comes first,
those of private mappings twice ([kernel documentation: page tables](https://docs.kernel.org/mm/page_tables.html)).
""",
    command=Command("what is in page tables, by process", top=TOP, picks="pid"),
    from_memory=page_tables_from_memory,
    from_files=page_tables_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.STATUS,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_tables")
