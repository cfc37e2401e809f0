# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The section about the page tables of processes.

Of a dump, what was walked is held against what the kernel counts of the same: VMAs, the pages that
are mapped, and those in swap.
"""

import contextlib
from collections.abc import Iterator

from drgn import FaultError, Program
from drgn.helpers.linux.sched import cpu_curr

from mmscope.drgn.page_tables.exit_cost import EXIT_COSTS, dontneed_frees_tables, exit_costs
from mmscope.drgn.page_tables.page_table_scan import PageTableScan, scan_of, words_of_lost
from mmscope.drgn.page_tables.page_tables import (
    PAGE_TABLE_DETAILS,
    PAGE_TABLE_OCCUPANCY,
    PAGE_TABLE_REGIONS,
    PAGE_TABLES,
    PageTableDetails,
    PageTables,
    page_table_details,
    page_table_occupancy,
    page_table_regions,
    page_tables,
    read_status,
)
from mmscope.drgn.page_tables.swap_types import DEVICE, MIGRATION, OTHER
from mmscope.drgn.processes.process_memory import (
    PROCESS_MEMORY,
    ProcessMemory,
    counted_by_cpus,
    process_memory_once,
)
from mmscope.drgn.processes.process_status import rows_of_processes
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import (
    PASS_SECONDS,
    TOP,
    Against,
    Command,
    Found,
    Section,
    disagreement,
    hold_against,
)
from mmscope.drgn.tables.display import plural

# Before v6.2 each thread holds back what it has counted in so many faults, and a fault maps up to
# 16 pages around it: check_sync_rss_stat(), do_fault_around() (mm/memory.c).
HELD_BACK = 65 * 16


def _on_cpus(prog: Program) -> Iterator[int]:
    """The ``mm_struct`` of what each CPU was at when the dump was taken."""
    for cpu in online_cpus(prog):
        try:
            yield cpu_curr(prog, cpu).mm.value_()
        except (FaultError, LookupError):
            continue


def _hold_against_counts(memory: Memory, scan: PageTableScan, found: Found) -> None:
    """
    Mark what a dump's page tables and VMAs have and the process's counters do not.

    They differ by what a CPU was about to change, a table's entries at most (``zap_pte_range()``).
    A page that is being moved, and a device's, stay in the counter, and are no resident entry.
    """
    prog = memory.prog
    page, cpus = 1 << scan.form.page_shift, len(online_cpus(prog))
    rows, details = (found.by_name[table.name] for table in (PAGE_TABLES, PAGE_TABLE_DETAILS))
    processes, _, _ = process_memory_once(memory)
    counted = {row.pid: row for row in processes}
    busy, exact = set(_on_cpus(prog)), counted_by_cpus(prog)
    # Of each process: by how many bytes it may differ, the bytes that are no resident entries, and
    # its map_count.
    slack, absent, huge_swapped, map_count = {}, {}, {}, {}
    kinds, shift = scan.sums["kinds"], scan.form.above_ptes.shift
    for at, (process, mm) in enumerate(
        zip(scan.spaces.processes, scan.spaces.addresses.tolist(), strict=True)
    ):
        about = scan.form.slots * cpus if mm in busy else 0
        slack[process.pid] = (about + (0 if exact else HELD_BACK * process.threads)) * page
        moved = int(scan.sums["migration_pmds"][at]) << shift
        absent[process.pid] = int(kinds[at, [MIGRATION, DEVICE]].sum()) * page + moved
        huge_swapped[process.pid] = int(scan.sums["swap_pmds"][at]) << shift
        map_count[process.pid] = int(scan.spaces.columns["vmas"][at])

    def entries(row: ProcessMemory) -> Against | None:
        if (walked := tables.get(row.pid)) is None or walked.resident_bytes is None:
            return None
        there = walked.resident_bytes
        nearest = min(max(row.resident_bytes, there), there + absent[row.pid])
        return nearest, slack[row.pid]

    def swapped(row: ProcessMemory) -> Against | None:
        if (walked := tables.get(row.pid)) is None:
            return None
        return (walked.swap_ptes or 0) * page + huge_swapped[row.pid], slack[row.pid]

    def counter(row: PageTables) -> Against | None:
        if (mine := counted.get(row.pid)) is None:
            return None
        there = mine.resident_bytes
        return min(max(row.resident_bytes or 0, there - absent[row.pid]), there), slack[row.pid]

    def vmas(row: PageTableDetails) -> Against:
        return map_count[row.pid], cpus if slack[row.pid] else 0

    def mapped(row: PageTableDetails) -> Against | None:
        mine = counted.get(row.pid)
        return None if mine is None or slack[row.pid] else (mine.mapped_bytes, 0)

    tables = {row.pid: row for row in rows}
    hold_against(found, PROCESS_MEMORY, processes, "resident_bytes", entries, "what its tables map")
    hold_against(found, PROCESS_MEMORY, processes, "swap_bytes", swapped, "what its tables have")
    hold_against(found, PAGE_TABLES, rows, "resident_bytes", counter, "what the kernel counts")
    hold_against(found, PAGE_TABLE_DETAILS, details, "vmas", vmas, "its map_count")
    hold_against(found, PAGE_TABLE_DETAILS, details, "mapped_bytes", mapped, "its total_vm")


def page_tables_from_memory(memory: Memory) -> Found:
    # Section process_shares may have made it.
    scan = memory.once("page_table_scan", lambda: scan_of(memory))
    rows = page_tables(scan)
    found = Found(unreadable_bytes=scan.gaps.bytes)
    if scan.gaps.bytes:
        found.notes.append(
            f"{scan.gaps.bytes:,} bytes of page tables, VMAs and descriptors could not be read: "
            "what they hold is not counted"
        )
    found.notes += words_of_lost(scan)
    if scan.spaces.broken_off:
        found.notes.append(
            "the list of processes breaks off or runs in a circle (damaged, or left out of the "
            "dump): those behind that are missing"
        )
    if scan.spaces.damaged:
        damaged = plural(scan.spaces.damaged, "process", "processes")
        disagreement(memory, found, f"{damaged} could not be read: missing here")
    for count, what in (
        (scan.damaged_vmas, "VMAs and nodes of their trees are damaged, and left out"),
        (
            scan.numbers["repeated_tables"],
            "entries lead to a table that was met before, and not followed",
        ),
        (
            scan.absurd_charges,
            "processes are charged for more page tables than there is memory: pgtables_bytes is "
            "damaged",
        ),
        (
            scan.numbers["dropped_tables"],
            "tables are more than their process was charged for, or than there is memory; not "
            "followed",
        ),
        (scan.numbers["broken_deposits"], "lists of deposited tables do not close"),
    ):
        if count:
            disagreement(memory, found, f"{count:,} {what}")
    if wrong := sum(bool(row.unaccounted_tables) for row in rows):
        disagreement(
            memory,
            found,
            f"pgtables_bytes of {plural(wrong, 'process', 'processes')} is not what was found "
            "(unaccounted)",
        )
    if bad := int(scan.sums["bad"].sum() + scan.sums["kinds"][:, OTHER].sum()):
        disagreement(
            memory,
            found,
            f"{plural(bad, 'entry', 'entries')} of page tables that cannot be (bad_entries)",
        )
    details = page_table_details(scan)
    given_back = dontneed_frees_tables(memory.prog)
    found.add(PAGE_TABLES, rows)
    found.add(PAGE_TABLE_DETAILS, details)
    found.add(EXIT_COSTS, exit_costs(rows, details, dontneed_frees_tables=given_back))
    found.add(PAGE_TABLE_OCCUPANCY, page_table_occupancy(scan))
    found.add(PAGE_TABLE_REGIONS, page_table_regions(scan))
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
    return found.add(PAGE_TABLES, rows)


PAGE_TABLES_SECTION = Section(
    name="page_tables",
    title="Page tables",
    tables=(PAGE_TABLES, PAGE_TABLE_DETAILS, EXIT_COSTS, PAGE_TABLE_OCCUPANCY, PAGE_TABLE_REGIONS),
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
