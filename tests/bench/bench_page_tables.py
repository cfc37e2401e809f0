# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about page tables: 200,000 of them out of a lab vmcore, and the unique and
shared memory of processes, with drgn's own ways in a loop beside them; and what the steps of an
exit cost on this very machine.

As ``bench.py``: medians in one process, and the ratio is what to look at. The loops are measured on
a sample.
"""

import mmap
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

import numpy as np  # noqa: E402
from bench import cpu_seconds, median_seconds  # noqa: E402
from capture import capture  # noqa: E402
from drgn import Program, cast  # noqa: E402
from drgn.helpers.linux.mm import PageHead, compound_head, for_each_vma, pfn_to_page  # noqa: E402
from drgn.helpers.linux.pid import for_each_task  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.page_tables.exit_cost import PRICES  # noqa: E402
from mmscope.drgn.page_tables.page_table_entries import (  # noqa: E402
    new_walk,
    process_roots,
    walk_page_tables,
)
from mmscope.drgn.page_tables.page_table_formats import X86_64, page_table_format  # noqa: E402
from mmscope.drgn.page_tables.page_table_scan import scan_page_tables  # noqa: E402
from mmscope.drgn.page_tables.page_tables import page_tables  # noqa: E402
from mmscope.drgn.page_tables.process_shares import process_shares  # noqa: E402
from mmscope.drgn.page_tables.scan_result import PageTableScan  # noqa: E402
from mmscope.drgn.processes.address_spaces import address_spaces  # noqa: E402
from mmscope.drgn.processes.vm_areas import read_vm_areas  # noqa: E402
from mmscope.drgn.reading.kernel_arrays import Gaps  # noqa: E402

SAMPLE_TABLES = 400
SAMPLE_PAGES = 10_000
PAGE = 4096
HUGE_ENTRY = 0x80  # _PAGE_PSE
HUGE = 2 << 20
# Tables whose end is timed on this machine: 40 MiB of them.
TIMED = 10_000
RUNS = 5


def by_entry(prog: Program, table: int) -> Iterator[int]:
    """The entries of a table, each with a read of its own."""
    for at in range(table, table + PAGE, 8):
        yield prog.read_u64(at, physical=True)


def by_table(prog: Program, table: int) -> Iterator[int]:
    """The entries of a table that was read whole."""
    data = prog.read(table, PAGE, physical=True)
    for at in range(0, PAGE, 8):
        yield int.from_bytes(data[at : at + 8], "little")


def tables_a_second(
    prog: Program, root: int, entries: Callable[[Program, int], Iterator[int]]
) -> float:
    """Tables that a walk in a loop does: what is present, what is the zero page, what is swap."""
    levels = len(page_table_format(prog).levels)
    todo, done, present, special, swap = [(root, 0)], 0, 0, 0, 0
    begin = time.perf_counter()
    while todo and done < SAMPLE_TABLES:
        table, level = todo.pop()
        done += 1
        for entry in entries(prog, table):
            if not entry & ~X86_64.ignored:
                continue
            if level == levels - 1:
                present += bool(entry & X86_64.present)
                special += bool(entry & X86_64.special)
                swap += not entry & X86_64.present
            elif entry & 1 and not entry & HUGE_ENTRY:
                todo.append((entry & X86_64.address, level + 1))
    return done / (time.perf_counter() - begin)


def shares_a_second(prog: Program, roots: list[int]) -> float:
    """
    Mapped pages, a second of CPU, whose part a loop adds up: tables read whole, and the counts of
    each page by drgn's objects. As many as the sample has, of one process after the other.
    """
    done, unique, shared = 0, 0, 0.0
    levels = len(page_table_format(prog).levels)
    begin = time.process_time()
    for root in roots:
        todo = [(root, 0)]
        while todo and done < SAMPLE_PAGES:
            table, level = todo.pop()
            # The upper half of the first table is the kernel's.
            for entry in islice(by_table(prog, table), 512 if level else 256):
                if not entry & X86_64.present or entry & X86_64.special:
                    continue
                if level < levels - 1:
                    if not entry & HUGE_ENTRY:
                        todo.append((entry & X86_64.address, level + 1))
                    continue
                page = pfn_to_page(prog, (entry & X86_64.address) // PAGE)
                times = page._mapcount.counter.value_() + 1
                head = compound_head(page)
                if PageHead(head):
                    folio = cast("struct folio *", head)
                    times += folio._entire_mapcount.counter.value_() + 1
                done += 1
                unique += times == 1
                shared += PAGE / max(times, 1)
    return done / (time.process_time() - begin)


def add_shares(table: Table, prog: Program) -> None:
    """Unique and shared memory, as smaps_rollup has it."""

    def work() -> PageTableScan:
        scan = scan_page_tables(prog, shares=True)
        process_shares(scan)
        return scan

    scan = work()
    assert scan.mapped is not None
    pages = int(scan.mapped.sums["pages"].sum())
    mms = {task.mm.value_(): task.mm for task in for_each_task(prog) if task.mm}.values()
    pgds = np.array([mm.pgd.value_() for mm in mms], np.uint64)
    loop = shares_a_second(prog, process_roots(prog, pgds).tolist())
    seconds = cpu_seconds(work)
    table.add_row(
        f"PSS and USS of {len(mms)} processes, {pages:,} pages: {seconds:.2f} s of CPU",
        f"{pages / seconds:,.0f} pages/s",
        f"{loop:,.0f} pages/s, each page by itself",
        f"{pages / seconds / loop:,.0f}x",
    )


def touched(tables: int, advice: int, step: int) -> mmap.mmap:
    """Memory of so many PTE tables, read from once every step: zero pages, and nothing else."""
    memory = mmap.mmap(-1, (tables + 1) * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    for at in range(0, tables * HUGE, step):
        memory[at]
    return memory


def time_of_end(tables: int, advice: int, step: int) -> float:
    """Nanoseconds a table to unmap such memory."""
    times = []
    for _ in range(RUNS):
        memory = touched(tables, advice, step)
        begin = time.perf_counter_ns()
        memory.close()
        times.append((time.perf_counter_ns() - begin) / tables)
    return statistics.median(times)


def main() -> None:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    table = Table("what", "here", "beside it", "ratio", title="page tables")
    for column in table.columns[1:]:
        column.justify = "right"

    lab = capture("stable", "many_tables", say=say)
    prog = open_target(lab.vmcore, [lab.vmlinux])
    largest = page_tables(scan_page_tables(prog))[0]
    count = sum(
        level or 0 for level in (largest.pte_tables, largest.pmd_tables, largest.pud_tables)
    )
    mm = next(t.mm for t in for_each_task(prog) if t.tgid == largest.pid and t.mm)
    root = process_roots(prog, np.array([mm.pgd.value_()], np.uint64))
    seconds = median_seconds(lambda: scan_page_tables(prog))
    for name, entries in (("read_u64 an entry", by_entry), ("one read a table", by_table)):
        loop = tables_a_second(prog, int(root[0]), entries)
        table.add_row(
            f"all processes, {count:,} tables in one: {seconds:.2f} s",
            f"{count / seconds:,.0f} tables/s",
            f"{loop:,.0f} tables/s {name}",
            f"{count / seconds / loop:,.0f}x",
        )

    def walk() -> None:
        form = page_table_format(prog)
        for _ in walk_page_tables(prog, form, root, new_walk(form, 1)):
            pass

    seconds = median_seconds(walk)
    table.add_row(
        f"reading them alone: {seconds:.2f} s", f"{count / seconds:,.0f} tables/s", "", ""
    )
    tracemalloc.start()
    scan_page_tables(prog)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    spaces = address_spaces(prog, Gaps())
    trees = spaces.columns["tree"]
    vmas = len(read_vm_areas(prog, trees, Gaps()))
    seconds = median_seconds(lambda: read_vm_areas(prog, trees, Gaps()))
    mms = {t.mm.value_(): t.mm for t in for_each_task(prog) if t.mm}.values()
    loop = median_seconds(
        lambda: [(v.vm_start.value_(), v.vm_flags.value_()) for m in mms for v in for_each_vma(m)]
    )
    table.add_row(
        f"{vmas:,} VMAs of {len(spaces)} processes",
        f"{vmas / seconds:,.0f} VMAs/s",
        f"{vmas / loop:,.0f} VMAs/s for_each_vma",
        f"{loop / seconds:,.1f}x",
    )
    lab = capture("stable", "rmap", say=say)
    add_shares(table, open_target(lab.vmcore, [lab.vmlinux]))
    Console(width=150).print(table)
    print(f"peak memory: {peak / (1 << 20):.1f} MiB for {count:,} tables")

    sparse = time_of_end(TIMED, mmap.MADV_NOHUGEPAGE, HUGE)
    huge = time_of_end(TIMED, mmap.MADV_HUGEPAGE, HUGE)
    full = time_of_end(100, mmap.MADV_NOHUGEPAGE, PAGE)
    priced = 512 * PRICES.slot + PRICES.table
    print(
        f"on this machine, to unmap and free a PTE table with one zero page: {sparse:,.0f} ns "
        f"({priced:,.0f} by exit_cost.PRICES), with 512: {full:,.0f} ns; behind a huge zero page: "
        f"{huge:,.0f} ns ({PRICES.deposited:,.0f})"
    )


if __name__ == "__main__":
    main()
