# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The page tables of every process, from ``mm.pgd`` down: the tables that are made of a scan of them
(see ``page_table_scan``).

A page table is a page, whatever is in it: one entry of 512 costs as much as all of them. None of
it is in VmRSS, and nothing short of unmapping gives most of it back. VmPTE in /proc/PID/status says
how much there is (it counts PTE, PMD and PUD tables, and the tables that are deposited for huge
PMDs to be split into); what the tables hold is only in the tables.

What is counted is held against ``mm.pgtables_bytes``. Costs nothing beyond the scan.

Cannot know: tables of kernel threads' borrowed address spaces, of address spaces that no task has
any more, and the kernel's own.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmscope.drgn.page_tables.page_table_scan import REGION_KINDS, PageTableScan, by_size
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
from mmscope.drgn.processes.address_spaces import Process
from mmscope.drgn.processes.process_status import parse_status
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Inside, Table


@table_row
class PageTables:
    """The page tables of one address space."""

    pid: int = column(
        key=True, high=MOST_PIDS, help="thread group; of several that share them, the first"
    )
    comm: str = column(holds="comm", help="name of the process")
    pgtables_bytes: int = column(
        unit="bytes",
        help="what the kernel counts (VmPTE): PTE, PMD and PUD tables and deposited ones, "
        "not P4D and PGD",
    )
    resident_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="mapped pages that count as resident (Rss in smaps, but for huge_puds of "
        "page_table_details); hugetlb does not",
    )
    hugetlb_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="mapped hugetlb pages")
    pte_tables: int | None = column(help="tables of PTEs, without the deposited ones")
    pmd_tables: int | None = column(help="tables of PMDs, shared ones included")
    pud_tables: int | None = column(help="tables of PUDs")
    deposited_pte_tables: int | None = column(
        help="empty PTE tables that lie ready for splitting huge PMDs: one for each of these"
    )
    empty_pte_tables: int | None = column(help="PTE tables without any entry, not the deposited")
    used_ptes: int | None = column(help="PTEs that are anything but none, of all PTE tables")
    present_ptes: int | None = column(
        help="PTEs that map a page: zero pages and special ones too, hugetlb not"
    )
    zero_ptes: int | None = column(help="of these, that map the shared zero page")
    swap_ptes: int | None = column(help="PTEs whose page is swapped out")
    huge_pmds: int | None = column(
        help="PMDs that map a transparent huge page, or DAX where that counts as resident (6.15)"
    )
    huge_zero_pmds: int | None = column(help="PMDs that map the huge zero page")
    exit_pte_slots: int | None = column(
        help="slots of PTE tables that an exit looks at, used or not (zap_pte_range)"
    )
    unaccounted_tables: int | None = column(
        low=None,
        help="tables in pgtables_bytes that were not found, or the reverse if negative",
    )


PAGE_TABLES = Table(
    "page_tables",
    "Page tables by process",
    PageTables,
    lasting=("comm",),
    inside=(Inside("page tables", "pgtables_bytes"),),
)


@table_row
class PageTableDetails:
    """What else there is in the page tables of one address space."""

    pid: int = column(
        key=True, high=MOST_PIDS, help="thread group; of several that share them, the first"
    )
    comm: str = column(holds="comm", help="name of the process")
    processes: int = column(help="processes that share this address space (vfork)")
    threads: int = column(low=1, help="threads that share this address space")
    vmas: int = column(help="mappings")
    mapped_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="addresses that are mapped to something"
    )
    p4d_tables: int = column(help="tables of P4Ds; none with four levels")
    shared_pmd_tables: int = column(
        help="tables of PMDs that several processes share, for hugetlb pages"
    )
    special_ptes: int = column(
        help="PTEs that map what is not counted as resident (device memory, vvar); no zero pages"
    )
    migration_ptes: int = column(help="PTEs whose page is being moved")
    device_ptes: int = column(help="PTEs whose page is in a device's own memory")
    marker_ptes: int = column(help="PTEs that only remember something: guard pages, uffd-wp")
    poisoned_ptes: int = column(help="PTEs whose page is lost to a hardware error")
    other_huge: int = column(
        help="PMDs and PUDs that map what is not counted as resident (device memory; DAX before "
        "6.15)"
    )
    migration_pmds: int = column(help="PMDs whose huge page is being moved")
    poisoned_pmds: int = column(help="PMDs and PUDs whose hugetlb page is lost")
    reaped_pte_slots: int = column(
        help="of exit_pte_slots, those that the OOM reaper looks at first: of private mappings, "
        "not hugetlb or PFN"
    )
    bad_entries: int = column(
        help="entries that lead nowhere, to a table that cannot be read, or to one met before"
    )
    huge_puds: int = column(
        since="0.3.0", help="PUDs that map DAX where that counts as resident (6.15)"
    )


PAGE_TABLE_DETAILS = Table(
    "page_table_details", "What else is in page tables", PageTableDetails, measure="vmas"
)


@table_row
class PageTableOccupancy:
    """How full the tables of one level are."""

    pid: int | None = column(
        key=True, high=MOST_PIDS, help="thread group; empty: all processes together"
    )
    level: str = column(holds="words", key=True, help="pgd, p4d, pud, pmd, pte, or deposited")
    least: int = column(
        key=True, help="least entries in use in such a table, of 512 with pages of 4 KiB"
    )
    most: int = column(help="most entries in use")
    tables: int = column(help="tables with that many in use")
    entries: int = column(help="entries in use in all of them")


PAGE_TABLE_OCCUPANCY = Table(
    "page_table_occupancy", "How full the tables are", PageTableOccupancy, measure="tables"
)


@table_row
class PageTableRegion:
    """
    A part of an address space: neighbouring mappings, cut where the addresses between them are
    many.
    """

    pid: int = column(key=True, high=MOST_PIDS, help="thread group")
    start: str = column(holds="kernel", key=True, help="first address")
    end: str = column(holds="kernel", help="behind the last address")
    vmas: int = column(help="mappings in it")
    mapped_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="addresses that are mapped to something"
    )
    pte_tables: int = column(help="PTE tables for it")
    small_bytes: int = column(unit="bytes", high=MOST_BYTES, help="resident in base pages")
    huge_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="resident in transparent huge pages"
    )
    hugetlb_bytes: int = column(unit="bytes", high=MOST_BYTES, help="in hugetlb pages")
    zero_bytes: int = column(unit="bytes", high=MOST_BYTES, help="mapped to the shared zero page")
    huge_zero_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="mapped to the huge zero page"
    )
    swap_bytes: int = column(unit="bytes", high=MOST_BYTES, help="swapped out")
    other_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="device memory, markers, pages being moved"
    )


PAGE_TABLE_REGIONS = Table(
    "page_table_regions",
    "What is mapped how, in the address spaces with the most tables",
    PageTableRegion,
)


def page_tables(scan: PageTableScan) -> list[PageTables]:
    """The page tables of every process, the most first."""
    page_shift = scan.form.page_shift
    sums, kinds = scan.sums, scan.sums["kinds"]
    charged = scan.spaces.columns["pgtables_bytes"]
    pte, pmd, pud = (_tables(scan, name) for name in ("pte", "pmd", "pud"))
    counted = pte + pmd + pud + sums["deposited"]
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
        (charged >> page_shift).astype(np.int64) - counted,
    )
    return [
        PageTables(process.pid, process.comm, *numbers)
        for process, numbers in _by_process(scan, columns)
    ]


def _tables(scan: PageTableScan, name: str) -> NDArray[np.int64]:
    """Tables of a level by process; with few levels the upper ones are none of their own."""
    for at, level in enumerate(scan.form.levels):
        if level.name == name:
            return scan.sums["tables"][:, at]
    return np.zeros(len(scan.spaces), np.int64)


def _by_process(
    scan: PageTableScan, columns: Iterable[NDArray[Any]]
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
    pids = [scan.spaces.processes[at].pid for at in scan.largest]
    rows = []
    for pid, counts in zip([None, *pids], [filled.sum(axis=0), *filled], strict=False):
        for level, step in np.argwhere(counts[..., 0]).tolist():
            least = 1 << step - 1 if step else 0
            most = min(max(2 * least - 1, 0), scan.form.slots)
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


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_tables")
