# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``: how fast each probe is on a lab vmcore, with the naive way beside it.

Medians of several runs in one process, debug info loaded and the file in the page cache. The ratio
is what to look at; absolute times are this machine's. It measures and never fails on a number.
"""

import argparse
import gc
import shutil
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab"), str(ROOT)]

import numpy as np  # noqa: E402
from capture import Capture, capture  # noqa: E402
from drgn import Program, offsetof, sizeof  # noqa: E402
from drgn.helpers.linux.cpumask import for_each_online_cpu  # noqa: E402
from drgn.helpers.linux.list import list_for_each_entry  # noqa: E402
from drgn.helpers.linux.mm import for_each_page  # noqa: E402
from drgn.helpers.linux.mmzone import for_each_online_pgdat, pfn_to_section  # noqa: E402
from drgn.helpers.linux.percpu import per_cpu_ptr  # noqa: E402
from drgn.helpers.linux.vmstat import (  # noqa: E402
    global_node_page_state,
    global_vm_event_state,
    global_zone_page_state,
)
from plain_walks import walk_free_lists  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from mmscope.drgn.free.free_lists import free_lists  # noqa: E402
from mmscope.drgn.free.free_memory import FreeMemory  # noqa: E402
from mmscope.drgn.free.pageblocks import pageblock_bits, pageblock_types  # noqa: E402
from mmscope.drgn.free.pcp_lists import pcp_pages  # noqa: E402
from mmscope.drgn.free.zones import for_each_zone  # noqa: E402
from mmscope.drgn.machine.vm_counters import vm_counters  # noqa: E402
from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.reading.mem_sections import valid_page_ranges  # noqa: E402
from mmscope.drgn.reading.struct_pages import PageChunk, scan_struct_pages  # noqa: E402

# The naive page loop takes seconds for a guest; a sample of it says the same.
SAMPLE_PAGES = 20_000
LONG_SECONDS = 5


class Count:
    """The least a consumer can do: one column, one comparison, one number."""

    columns = ("flags", "mapcount")

    def __init__(self) -> None:
        self.pages = 0

    def take(self, chunk: PageChunk) -> None:
        self.pages += int(np.count_nonzero(chunk["mapcount"] != -1))


def median_seconds(work: Callable[[], Any], runs: int = 5) -> float:
    """Median time of a piece of work, after one run that is not counted."""
    work()
    times = []
    for _ in range(runs):
        gc.collect()
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def cpu_seconds(work: Callable[[], Any]) -> float:
    """
    Median CPU time of three runs after one that is not counted; what takes long runs once.

    Of what does not run at the same moment as that beside it, on a machine that others use.
    """
    times: list[float] = []
    for _ in range(4):
        gc.collect()
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
        if times[0] > LONG_SECONDS:
            return times[0]
    return statistics.median(times[1:])


def page_loop(prog: Program) -> float:
    """Pages a second of drgn's for_each_page, looking at flags and _mapcount."""
    begin = time.perf_counter()
    for done, page in enumerate(for_each_page(prog), 1):
        page.flags.f.value_() if hasattr(page.flags, "f") else page.flags.value_()
        page._mapcount.counter.value_()
        if done >= SAMPLE_PAGES:
            break
    return done / (time.perf_counter() - begin)


def read_and_throw_away(prog: Program) -> None:
    """The same bytes as the pass reads, in the same chunks."""
    size = sizeof(prog.type("struct page"))
    for start, end, address in valid_page_ranges(prog):
        for offset in range(0, (end - start) * size, 2 << 20):
            prog.read(address + offset, min(2 << 20, (end - start) * size - offset))


def walk_pcp_lists(prog: Program) -> int:
    """Every per-CPU list with drgn's list helper."""
    pages = 0
    for _, _, zone in for_each_zone(prog):
        if not zone.present_pages:
            continue
        for cpu in for_each_online_cpu(prog):
            for head in per_cpu_ptr(zone.per_cpu_pageset, cpu).lists:
                for _page in list_for_each_entry("struct page", head.address_of_(), "lru"):
                    pages += 1
    return pages


def pageblock_loop(prog: Program) -> int:
    """get_pfnblock_flags() of every pageblock, one read each."""
    bits, _ = pageblock_bits(prog)
    offset = offsetof(prog.type("struct mem_section_usage"), "pageblock_flags")
    page_shift = prog["PAGE_SHIFT"].value_()
    pages_per_section = 1 << (prog["SECTION_SIZE_BITS"].value_() - page_shift)
    count = 0
    for start, end, _ in valid_page_ranges(prog):
        for pfn in range(start, end, 512):
            usage = pfn_to_section(prog, pfn).usage.value_()
            bit = (pfn % pages_per_section // 512) * bits
            prog.read_u8(usage + offset + bit // 8)
            count += 1
    return count


def counter_loop(prog: Program) -> int:
    """Each item with drgn's helper for it, its name, and what each CPU holds back."""
    cpus = list(for_each_online_cpu(prog))
    zonestats = [
        per_cpu_ptr(zone.per_cpu_zonestats, cpu).vm_stat_diff
        for _, _, zone in for_each_zone(prog)
        for cpu in cpus
    ]
    nodestats = [
        per_cpu_ptr(pgdat.per_cpu_nodestats, cpu).vm_node_stat_diff
        for pgdat in for_each_online_pgdat(prog)
        for cpu in cpus
    ]
    read = 0
    for last, state, differences in (
        ("NR_VM_ZONE_STAT_ITEMS", global_zone_page_state, zonestats),
        ("NR_VM_NODE_STAT_ITEMS", global_node_page_state, nodestats),
        ("NR_VM_EVENT_ITEMS", global_vm_event_state, []),
    ):
        for item in range(prog.constant(last).value_()):
            prog["vmstat_text"][read].string_()
            state(prog, item)
            sum(difference[item].value_() for difference in differences)
            read += 1
    return read


def crash_kmem_free(lab: Capture) -> str:
    """How long ``crash``'s ``kmem -f`` takes on the same core, or why it does not run."""
    if not shutil.which("crash"):
        return "crash is not installed"
    begin = time.perf_counter()
    result = subprocess.run(
        ["crash", "-s", str(lab.vmlinux), str(lab.vmcore)],
        input="kmem -f\nquit\n",
        capture_output=True,
        text=True,
        timeout=300,
    )
    seconds = time.perf_counter() - begin
    if result.returncode or (
        "FREE_PAGES" not in result.stdout.upper() and "NODE" not in result.stdout
    ):
        said = (result.stdout + result.stderr).replace(f"{lab.vmcore.parent}/", "")
        lines = said.replace(f"{lab.vmlinux.parent}/", "").splitlines()
        why = next((line for line in lines if line.startswith("crash:")), "it does not say why")
        return f"crash cannot open this core: {why} (exit code {result.returncode})"
    return f"{seconds:.2f} s, start included"


def pass_memory(prog: Program, times: int) -> int:
    """Peak of Python's memory, in bytes, over a pass that sees every page so many times."""
    tracemalloc.start()
    for _ in range(times):
        scan_struct_pages(prog, [Count()])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="stable")
    args = parser.parse_args()
    lab = capture(args.kernel, "fragment", say=lambda text: print(text, file=sys.stderr))
    prog = open_target(lab.vmcore, [lab.vmlinux])
    pages = sum(end - start for start, end, _ in valid_page_ranges(prog))

    bare = median_seconds(lambda: read_and_throw_away(prog))
    counting = median_seconds(lambda: scan_struct_pages(prog, [Count()]))
    loop = page_loop(prog)
    table = Table(
        "what", "here", "beside it", "ratio", title=f"{lab.release}: {pages:,} struct pages"
    )
    for column in table.columns[1:]:
        column.justify = "right"

    def row(what: str, here: float, beside: float, naive: str) -> None:
        table.add_row(
            what,
            f"{here * 1000:,.2f} ms",
            f"{beside * 1000:,.2f} ms {naive}",
            f"{beside / here:,.1f}x",
        )

    table.add_row(
        "struct page pass",
        f"{pages / counting / 1e6:,.1f} M pages/s",
        f"{loop / 1e6:,.3f} M pages/s for_each_page loop",
        f"{pages / counting / loop:,.0f}x",
    )
    row("struct page pass", counting, bare, "the same bytes read and thrown away")
    free = FreeMemory(prog)
    row(
        "free lists, pcp, pageblocks: one pass",
        median_seconds(lambda: FreeMemory(prog)),
        pages / loop,
        "for_each_page loop",
    )
    kept = [column.copy() for column in free.blocks.links()]

    def sort_blocks() -> None:
        for column, values in zip(free.blocks.links(), kept, strict=True):
            column[:] = values  # which following them uses up
        free_lists(prog, free.blocks)

    row(
        f"free lists: {free.blocks.blocks:,} blocks onto their lists",
        median_seconds(sort_blocks),
        median_seconds(lambda: walk_free_lists(prog), 2),
        "list_for_each_entry",
    )
    row(
        "per-CPU lists",
        median_seconds(lambda: pcp_pages(prog, free.pcp, free.types.names)),
        median_seconds(lambda: walk_pcp_lists(prog), 2),
        "list_for_each_entry",
    )
    row(
        f"migratetypes of {len(free.types.types):,} pageblocks",
        median_seconds(lambda: pageblock_types(prog)),
        median_seconds(lambda: pageblock_loop(prog), 2),
        "one read a pageblock",
    )
    row(
        "vm counters",
        median_seconds(lambda: vm_counters(prog)),
        median_seconds(lambda: counter_loop(prog), 2),
        "helpers, one counter at a time",
    )
    console = Console(width=130)
    console.print(table)
    once, often = pass_memory(prog, 1), pass_memory(prog, 8)
    console.print(
        f"peak memory of the pass: {once / 2**20:.1f} MiB for {pages:,} pages, "
        f"{often / 2**20:.1f} MiB for {8 * pages:,}"
    )
    console.print(f"crash, kmem -f: {crash_kmem_free(lab)}")


if __name__ == "__main__":
    main()
