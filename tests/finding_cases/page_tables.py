# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about page tables, and about ends of processes."""

import dataclasses
from typing import Any

from finding_cases.case import TARGET, Case

from mmscope.drgn.page_tables.page_tables import ExitCost, PageTables


def tables(pte_tables: int | None = 0, **changes: Any) -> PageTables:
    """A process with so many PTE tables, an entry in each."""
    row = PageTables(
        **dict.fromkeys((f.name for f in dataclasses.fields(PageTables)), 0)
        | {"pid": 7, "comm": "java", "pte_tables": pte_tables, "used_ptes": pte_tables,
           "pgtables_bytes": 4096 * (pte_tables or 0), "resident_bytes": 1 << 20}
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def from_status(pgtables_bytes: int, **changes: Any) -> PageTables:
    """What /proc/PID/status says of such a process."""
    unknown = dict.fromkeys(f.name for f in dataclasses.fields(PageTables))
    known = {"pid": 7, "comm": "java", "pgtables_bytes": pgtables_bytes, "resident_bytes": 1 << 20}
    return PageTables(**(unknown | known | changes))


def exit_cost(seconds: float, **changes: Any) -> ExitCost:
    cost = ExitCost(
        pid=7, comm="java", pte_slots=1_610_612_736, reaped_pte_slots=1_610_000_000,
        tables=3_145_728, deposited_tables=5, base_pages=100, huge_pages=0,
        tables_seconds=seconds, exit_seconds=seconds + 0.25, oom_seconds=2 * seconds,
        dontneed_frees_tables=True,
    )  # fmt: skip
    return dataclasses.replace(cost, **changes)


FOUND: dict[str, Case] = {
    "page tables that take much of memory": Case(
        "page-tables-large",
        [tables(60_000, pid=1, comm="sh"), tables(40_000)],
        ["Page tables take 390.6 MiB, 9.5 % of memory",
         "390.6 MiB of page tables of 2 processes", "process 1 (sh), 234.4 MiB"],
        "warning",
    ),
    "page tables that take most of memory": Case(
        "page-tables-large", [from_status(3 << 30)], ["take 3 GiB, 75.0 % of memory"], "critical",
    ),
    "a process with more page tables than memory": Case(
        "page-table-bloat",
        [tables(20_000, zero_ptes=19_000, deposited_pte_tables=300, empty_pte_tables=12),
         exit_cost(0.1)],
        ["java (pid 7) has 78.12 MiB of page tables for 1 MiB of memory",
         "20,000 PTE tables are 0.2 % full: 12 of them have no entry, 19,000 entries map "
         "the shared zero page. 300 more are deposited behind huge PMDs."],
        "warning",
    ),
    "a process with more page tables than memory, by /proc": Case(
        "page-table-bloat", [from_status(1 << 30, resident_bytes=642_000)],
        ["has 1 GiB of page tables for 627 KiB of memory"], "critical", ["full:", "deposited"],
    ),
    "tables that are nearly empty": Case(
        "sparse-page-tables",
        [tables(10_000, used_ptes=10_500, resident_bytes=8 << 30, empty_pte_tables=3_000,
                swap_ptes=500)],
        ["java (pid 7): 10,000 PTE tables are 0.2 % full",
         "10,500 of 5,120,000 slots are in use (0 by the zero page, 500 by pages that are swapped"
         " out); 3,000 tables (11.72 MiB) have no entry at all."],
        "notice",
    ),
    "an exit that takes long": Case(
        "slow-exit", [exit_cost(2.876)],
        ["Exit of java (pid 7) will take about 2.9 s for its page tables alone",
         "1,610,612,736 slots of PTE tables to walk and 3,145,733 tables to free. An "
         "estimate from measured", "with its pages 3.1 s.",
         "1,610,000,000 of the slots are walked twice: 5.8 s."],
        "warning",
    ),
    "tables behind the huge zero page": Case(
        "huge-zero-deposits",
        [tables(5, huge_zero_pmds=20_000, deposited_pte_tables=20_003)],
        ["java (pid 7) maps the huge zero page 20,000 times, with 78.12 MiB of tables",
         "(39.06 GiB of addresses); 20,003 PTE tables are deposited (78.14 MiB), beside 1 MiB"],
        "notice",
    ),
}  # fmt: skip

CLEAR: dict[str, Case] = {
    "page tables as they should be": Case("page-tables-large", [tables(52_428)]),
    "page tables of a tenth": Case(
        "page-table-bloat", [tables(20_000, resident_bytes=10 * 20_000 * 4096)]
    ),
    "small page tables": Case("page-table-bloat", [from_status((32 << 20) - 1)]),
    "page tables that are small for a large machine": Case(
        "page-table-bloat", [from_status(500 << 20)], target=TARGET | {"total_pages": 1 << 27},
    ),
    "page tables for what is swapped out": Case(
        "page-table-bloat", [tables(20_000, swap_ptes=200_000)]
    ),
    "page tables for hugetlb pages": Case(
        "page-table-bloat", [tables(20_000, hugetlb_bytes=1 << 30)]
    ),
    "tables of which a twentieth is used": Case(
        "sparse-page-tables",
        [tables(10_000, resident_bytes=8 << 30, used_ptes=10_000 * 256 // 10)],
    ),
    "few tables that are nearly empty": Case(
        "sparse-page-tables", [tables(8_191, resident_bytes=8 << 30)]
    ),
    "sparse tables that are another finding's": Case("sparse-page-tables", [tables(20_000)]),
    "an exit that is quick": Case("slow-exit", [exit_cost(0.499, exit_seconds=30.0)]),
    "few tables behind the huge zero page": Case(
        "huge-zero-deposits", [tables(5, huge_zero_pmds=4_095, deposited_pte_tables=9_000)]
    ),
}  # fmt: skip

NOT_CHECKED: dict[str, Case] = {
    "no page tables": Case(
        "page-tables-large", [], why_not="no table page_tables in this bundle"
    ),
    "page tables on a machine of unknown memory": Case(
        "page-tables-large", [tables(1)], target=TARGET | {"total_pages": None},
        why_not="target.total_pages is unknown in this bundle",
    ),
    "page tables, and nothing of memory": Case(
        "page-table-bloat", [from_status(1 << 30, resident_bytes=None)],
        why_not="page_tables.resident_bytes is unknown in this bundle",
    ),
    "occupancy by /proc": Case(
        "sparse-page-tables", [from_status(1 << 30)],
        why_not="page_tables.pte_tables is unknown in this bundle",
    ),
    "an exit by /proc": Case(
        "slow-exit", [from_status(1 << 30)], why_not="no table exit_costs in this bundle",
    ),
    "deposits by /proc": Case(
        "huge-zero-deposits", [from_status(1 << 30)],
        why_not="page_tables.huge_zero_pmds is unknown in this bundle",
    ),
}  # fmt: skip
