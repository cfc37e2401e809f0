# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about the ledger: every page's owner, and the owners inside its classes
that are read apart from the pass, against drgn's helpers in a loop.

As ``bench.py``: medians in one process, and the ratio is what to look at. The page loop asks each
page what the ledger's pass asks of all, by drgn's functions for page flags; it is measured on a
sample.
"""

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

from bench import SAMPLE_PAGES, Count, median_seconds  # noqa: E402
from capture import capture  # noqa: E402
from drgn import Program, cast  # noqa: E402
from drgn.helpers.linux.list import list_for_each_entry  # noqa: E402
from drgn.helpers.linux.mm import (  # noqa: E402
    PageCompound,
    PageReserved,
    PageSlab,
    PageSwapBacked,
    compound_head,
    for_each_page,
    for_each_vmap_area,
    task_rss,
)
from drgn.helpers.linux.pid import for_each_task  # noqa: E402
from drgn.helpers.linux.printk import get_printk_records  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from mmscope.drgn.ledger.ledger_pages import LedgerPages  # noqa: E402
from mmscope.drgn.ledger.page_places import PagePlaces, page_places  # noqa: E402
from mmscope.drgn.ledger.percpu_chunks import percpu  # noqa: E402
from mmscope.drgn.ledger.vmalloc_callers import vmalloc_callers  # noqa: E402
from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.processes.process_memory import from_memory as process_memory  # noqa: E402
from mmscope.drgn.reading.printk_ring import log_records  # noqa: E402
from mmscope.drgn.reading.struct_pages import scan_struct_pages  # noqa: E402
from mmscope.drgn.sections.memory import Memory  # noqa: E402


def page_loop(prog: Program) -> float:
    """Pages a second of drgn's for_each_page, with its functions for what decides most classes."""
    begin = time.perf_counter()
    for done, page in enumerate(for_each_page(prog), 1):
        if not PageReserved(page) and not PageSlab(page):
            head = compound_head(page) if PageCompound(page) else page
            mapping = cast("unsigned long", head.mapping).value_()
            if mapping and not mapping & 3:
                PageSwapBacked(head)
            head._refcount.counter.value_()
            head._mapcount.counter.value_()
        if done >= SAMPLE_PAGES:
            break
    return done / (time.perf_counter() - begin)


def vmap_loop(prog: Program) -> int:
    """Pages by caller, area by area; without what page tables really map."""
    pages: dict[int, int] = {}
    for area in for_each_vmap_area(prog):
        vm = area.vm.read_()
        if vm:
            caller = vm.caller.value_()
            pages[caller] = pages.get(caller, 0) + vm.nr_pages.value_()
    return len(pages)


def chunk_loop(prog: Program) -> int:
    """Allocations of all percpu chunks, bit by bit."""
    found = 0
    for slot in range(prog["pcpu_nr_slots"].value_()):
        head = prog["pcpu_chunk_lists"][slot].address_of_()
        for chunk in list_for_each_entry("struct pcpu_chunk", head, "list"):
            for word in range(chunk.nr_pages.value_() * 4096 // 4 // 64):
                found += (chunk.alloc_map[word] & chunk.bound_map[word]).value_().bit_count()
    return found


def rss_loop(prog: Program) -> int:
    """The same with drgn's helper, process by process."""
    tasks = (task for task in for_each_task(prog) if task.mm and task.pid == task.tgid)
    return sum(task_rss(prog, task).file for task in tasks)


def main() -> None:
    lab = capture("stable", "ledger", say=lambda text: print(text, file=sys.stderr))
    prog = open_target(lab.vmcore, [lab.vmlinux])
    memory = Memory(prog)
    places: PagePlaces = page_places(memory)
    pages = scan_struct_pages(prog, [Count()]).pages
    table = Table("what", "here", "beside it", "ratio", title=f"{lab.release}: {pages:,} pages")
    for column in table.columns[1:]:
        column.justify = "right"

    def row(what: str, here: float, beside: float, naive: str) -> None:
        beside_ms = f"{beside * 1000:,.2f} ms {naive}"
        table.add_row(what, f"{here * 1000:,.2f} ms", beside_ms, f"{beside / here:,.1f}x")

    def ledger_pass() -> None:
        scan_struct_pages(prog, [LedgerPages(prog, places.ram, places.owned)])

    ledger = median_seconds(ledger_pass)
    row("ledger: a class for every page", ledger, pages / page_loop(prog), "for_each_page loop")
    bare = median_seconds(lambda: scan_struct_pages(prog, [Count()]))
    row("ledger: a class for every page", ledger, bare, "the pass that only counts")
    row(
        "places: vmalloc, percpu, struct pages, reserves",
        median_seconds(lambda: page_places(Memory(prog))),
        median_seconds(lambda: vmap_loop(prog), 2),
        "for_each_vmap_area alone",
    )
    row(
        "vmalloc by caller",
        median_seconds(lambda: vmalloc_callers(prog, places)),
        median_seconds(lambda: vmap_loop(prog), 2),
        "for_each_vmap_area",
    )
    row(
        "percpu allocations by size",
        median_seconds(lambda: percpu(prog)),
        median_seconds(lambda: chunk_loop(prog), 1),
        "the bitmaps word by word",
    )
    row(
        "memory of processes",
        median_seconds(lambda: process_memory(Memory(prog))),
        median_seconds(lambda: rss_loop(prog), 2),
        "task_rss of each",
    )
    row(
        "the kernel's log",
        median_seconds(lambda: log_records(prog)),
        median_seconds(lambda: get_printk_records(prog), 2),
        "get_printk_records",
    )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
