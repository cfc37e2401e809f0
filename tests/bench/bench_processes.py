# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about many processes: the tasks, VMAs, page tables and anon_vma_chains of
all of them, with drgn's own ways in a loop beside them; and the sections that are made of these.

As ``bench.py``, in CPU time; the loops are measured on a sample. MMSCOPE_BENCH_PROCESSES says how
many (2,000; 100,000 take a guest of 14 GiB, three minutes to boot, and 12 GB of disk).
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

import numpy as np  # noqa: E402
from bench import cpu_seconds  # noqa: E402
from bench_page_tables import HUGE_ENTRY, by_entry, by_table  # noqa: E402
from drgn import Object, Program  # noqa: E402
from drgn.helpers.linux.list import list_for_each_entry  # noqa: E402
from drgn.helpers.linux.mm import for_each_vma  # noqa: E402
from drgn.helpers.linux.pid import for_each_task  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from sparse_machine import many_processes  # noqa: E402

from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.page_tables.page_table_entries import process_roots  # noqa: E402
from mmscope.drgn.page_tables.page_table_formats import X86_64, page_table_format  # noqa: E402
from mmscope.drgn.page_tables.page_table_scan import scan_page_tables  # noqa: E402
from mmscope.drgn.page_tables.sections import page_tables_from_memory  # noqa: E402
from mmscope.drgn.processes.address_spaces import address_spaces  # noqa: E402
from mmscope.drgn.processes.process_memory import from_memory as process_memory_of  # noqa: E402
from mmscope.drgn.processes.vm_areas import read_vm_areas  # noqa: E402
from mmscope.drgn.reading.kernel_arrays import Gaps  # noqa: E402
from mmscope.drgn.rmap.anon_vma_trees import read_reverse_maps  # noqa: E402
from mmscope.drgn.rmap.sections import anon_vmas_from_memory  # noqa: E402
from mmscope.drgn.sections.memory import Memory  # noqa: E402

SAMPLE = 500  # processes that a loop looks at
SAMPLE_TABLES = 2_000


def rate(work: Callable[[], int]) -> float:
    """How many of what a loop counts it does in a second of CPU."""
    begin = time.process_time()
    done = work()
    return done / (time.process_time() - begin)


def sample_of(prog: Program) -> list[Object]:
    """Some processes that have an address space, from the middle of the list."""
    mms = (task.mm.read_() for task in for_each_task(prog) if task.mm)
    return list(islice(mms, SAMPLE, 2 * SAMPLE))


def tasks_loop(prog: Program) -> int:
    """Whose each address space is."""
    done = 0
    for task in islice(for_each_task(prog), 2 * SAMPLE):
        done += 1
        if task.mm:
            task.tgid.value_(), task.comm.string_(), task.signal.nr_threads.value_()
            task.mm.pgd.value_(), task.mm.map_count.value_()
    return done


def vmas_loop(mms: Iterable[Object]) -> int:
    """Where each VMA is, and its flags."""
    done = 0
    for mm in mms:
        for vma in for_each_vma(mm):
            vma.vm_start.value_(), vma.vm_end.value_(), vma.vm_flags.value_(), vma.vm_ops.value_()
            done += 1
    return done


def tables_loop(prog: Program, roots: list[int], entries: Callable[..., Iterable[int]]) -> int:
    """What is present in page tables, and what is swap."""
    levels = len(page_table_format(prog).levels)
    done = present = swap = 0
    for root in roots:
        todo = [(root, 0)]
        while todo and done < SAMPLE_TABLES:
            table, level = todo.pop()
            done += 1
            # The upper half of the first table is the kernel's.
            for entry in islice(entries(prog, table), 512 if level else 256):
                if not entry & ~X86_64.ignored:
                    continue
                if level == levels - 1:
                    present += bool(entry & X86_64.present)
                    swap += not entry & X86_64.present
                elif entry & 1 and not entry & HUGE_ENTRY:
                    todo.append((entry & X86_64.address, level + 1))
    return done


def chains_loop(mms: Iterable[Object]) -> int:
    """The anon_vmas that each VMA is linked to."""
    done = 0
    for mm in mms:
        for vma in for_each_vma(mm):
            head = vma.anon_vma_chain.address_of_()
            for chain in list_for_each_entry("struct anon_vma_chain", head, "same_vma"):
                chain.anon_vma.value_()
                done += 1
    return done


def add_sections(table: Table, prog: Program) -> None:
    """The sections in the order in which a collect has them, which read the processes once."""
    memory = Memory(prog)
    for name, section in (
        ("process_memory", process_memory_of),
        ("page_tables", page_tables_from_memory),
        ("anon_vmas", anon_vmas_from_memory),
    ):
        begin = time.process_time()
        section(memory)
        table.add_row(f"section {name}", f"{time.process_time() - begin:.2f} s", "", "")


def main() -> None:
    count = int(os.environ.get("MMSCOPE_BENCH_PROCESSES", "2000"))
    machine = many_processes(count, lambda line: print(line, file=sys.stderr))
    prog = open_target(machine.vmcore, [machine.vmlinux])
    spaces = address_spaces(prog, Gaps())
    areas = read_vm_areas(prog, spaces.columns["tree"], Gaps())
    scan = scan_page_tables(prog)
    maps, _ = read_reverse_maps(prog)
    mms = sample_of(prog)
    pgds = np.array([mm.pgd.value_() for mm in mms], np.uint64)
    roots = process_roots(prog, pgds).tolist()

    table = Table("what", "here", "beside it", "ratio", title=f"{len(spaces):,} processes")
    for column in table.columns[1:]:
        column.justify = "right"

    def row(what: str, number: int, here: Callable[[], Any], **loops: float) -> None:
        own = number / cpu_seconds(here)
        for name, loop in loops.items():
            beside = f"{loop:,.0f}/s {name}"
            table.add_row(f"{number:,} {what}", f"{own:,.0f}/s", beside, f"{own / loop:,.1f}x")

    row(
        "processes",
        len(spaces),
        lambda: address_spaces(prog, Gaps()),
        for_each_task=rate(lambda: tasks_loop(prog)),
    )
    row(
        "VMAs",
        len(areas),
        lambda: read_vm_areas(prog, spaces.columns["tree"], Gaps()),
        for_each_vma=rate(lambda: vmas_loop(mms)),
    )
    row(
        "page tables, processes and VMAs with them",
        int(scan.tables.sum()),
        lambda: scan_page_tables(prog),
        read_each_table=rate(lambda: tables_loop(prog, roots, by_table)),
        read_u64_each_entry=rate(lambda: tables_loop(prog, roots, by_entry)),
    )
    row(
        "anon_vma_chains, with a pass over the struct pages",
        len(maps.chain_vma),
        lambda: read_reverse_maps(prog),
        list_for_each_entry=rate(lambda: chains_loop(mms)),
    )
    add_sections(table, prog)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
