# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Cost of the end of a process, by its page tables.

An exit walks every slot of every PTE table (``zap_pte_range()`` knows of no empty ones), frees what
is mapped, and then frees the tables (``free_pgtables()``). Where the OOM reaper comes first, it
walks the slots of all private mappings before the exit walks them again: it frees pages, but no PTE
tables. Huge PMDs are done with at once, together with their deposited table, and are gone when the
second walk comes.

The counts are exact; the seconds are an estimate, counts times :data:`PRICES`. These were measured
by unmapping memory of known shape on a virtual machine (Xeon, Linux 6.18); ``make bench`` measures
them on the machine that it runs on. Caches, NUMA distance and memory cgroups move them by a factor
of two or three, and waiting for a lock takes longer.
"""

from collections.abc import Iterable

from drgn import Program

from mmscope.drgn.page_tables.page_tables import PageTableDetails, PageTables
from mmscope.drgn.tables.rows import MOST_PAGES, MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import Table

# What the steps of an exit take, in nanoseconds.
PRICES = {
    "slot": 1.2,  # to look at a slot of a PTE table, its share of a cache miss included
    "table": 300.0,  # to free a PTE, PMD or PUD table
    "deposited": 200.0,  # to free a huge PMD's deposited table, by zap_huge_pmd()
    "page": 200.0,  # to unmap and free a resident base page
    "huge": 2000.0,  # to unmap and free a huge page
}


@table_row
class ExitCost:
    """What the end of one address space takes."""

    pid: int = column(
        key=True, high=MOST_PIDS, help="thread group; of several that share it, the first"
    )
    comm: str = column(holds="comm", help="name of the process")
    pte_slots: int = column(help="slots of PTE tables that the exit walks")
    reaped_pte_slots: int = column(help="slots that the OOM reaper walks before, if it comes")
    tables: int = column(help="tables to free: PTE, PMD, PUD, P4D and PGD")
    deposited_tables: int = column(help="deposited tables to free, without any walk of slots")
    base_pages: int = column(unit="pages", high=MOST_PAGES, help="resident base pages to unmap")
    huge_pages: int = column(help="transparent huge pages to unmap")
    tables_seconds: float = column(
        unit="s", help="estimate: to walk the slots and free the tables, deposited ones included"
    )
    exit_seconds: float = column(unit="s", help="estimate: tables and pages")
    oom_seconds: float = column(
        unit="s", help="estimate: the same with the OOM reaper's walk before it, on one CPU"
    )
    dontneed_frees_tables: bool = column(
        help="MADV_DONTNEED of all that a PTE table maps gives PTE tables back on this kernel"
    )


EXIT_COSTS = Table(
    "exit_costs", "What the end of each process will cost", ExitCost, measure="exit_seconds"
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


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_tables", "exit_costs")
