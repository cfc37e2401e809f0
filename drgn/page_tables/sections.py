# SPDX-License-Identifier: LGPL-2.1-or-later
"""The section about the page tables of processes."""

from mmscope.drgn.page_tables.exit_cost import EXIT_COSTS, dontneed_frees_tables, exit_costs
from mmscope.drgn.page_tables.page_table_scan import scan_of, words_of_lost
from mmscope.drgn.page_tables.page_tables import (
    PAGE_TABLE_DETAILS,
    PAGE_TABLE_OCCUPANCY,
    PAGE_TABLE_REGIONS,
    PAGE_TABLES,
    page_table_details,
    page_table_occupancy,
    page_table_regions,
    page_tables,
    read_status,
)
from mmscope.drgn.processes.process_status import rows_of_processes
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section, disagreement
from mmscope.drgn.tables.display import plural


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
    details = page_table_details(scan)
    given_back = dontneed_frees_tables(memory.prog)
    found.add(PAGE_TABLES, rows)
    found.add(PAGE_TABLE_DETAILS, details)
    found.add(EXIT_COSTS, exit_costs(rows, details, dontneed_frees_tables=given_back))
    found.add(PAGE_TABLE_OCCUPANCY, page_table_occupancy(scan))
    return found.add(PAGE_TABLE_REGIONS, page_table_regions(scan))


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
