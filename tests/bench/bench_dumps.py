# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about compressed dumps: what reading all struct pages takes, beside the
libraries that decompress the same pages and do nothing else.

A machine of 16 GiB (MMSCOPE_BENCH_DUMP_GIB) whose core is packed by each library in turn
(``lab/packed_dump.py``). Its memory map lies in pages of the dump that are read in the order of the
file, in turn by drgn alone and by the second handle that reads stretches
(``drgn/dumps/bulk_reads.py``). CPU time, the least of several runs, each in a program that was
opened anew, as libkdumpfile keeps pages. Then the ledger by one process and by two, on the clock
and in CPU time: on a machine with other work the clock tells of that.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

import numpy as np  # noqa: E402
from bench import Count  # noqa: E402
from bench_scale import MMSCOPE, run  # noqa: E402
from drgn import Program  # noqa: E402
from drgn.helpers.linux.mm import follow_phys  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from packed_dump import KINDS, PAGE, packed_dump  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from sparse_machine import SparseMachine, sparse_machine  # noqa: E402

from mmscope.drgn.dumps.bulk_reads import OWN  # noqa: E402
from mmscope.drgn.dumps.core_file import PAGE_DESCRIPTOR, read_kdump  # noqa: E402
from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.reading.mem_sections import valid_page_ranges  # noqa: E402
from mmscope.drgn.reading.struct_pages import scan_struct_pages  # noqa: E402

RUNS = 3
HUGE = 2 << 20  # the memory map of x86-64 is mapped by huge pages
SOURCE = Path(__file__).with_name("bench_unpack.c")
# By their names in the system: no header files are needed.
LIBRARIES = ("libz.so.1", "liblzo2.so.2", "libsnappy.so.1", "libzstd.so.1")


def memory_map_frames(prog: Program) -> NDArray[np.int64]:
    """PFNs of the pages that the struct pages lie in, in the order in which the pass reads them."""
    size = prog.type("struct page").size
    assert size is not None
    frames = []
    for start, end, address in valid_page_ranges(prog):
        first = address // PAGE * PAGE
        last = address + (end - start) * size
        for part in range(first // HUGE * HUGE, last, HUGE):
            begin, stop = max(part, first), min(part + HUGE, last)
            place = follow_phys(prog["init_mm"].address_of_(), begin).value_() // PAGE
            frames.append(place + np.arange(-(-(stop - begin) // PAGE)))
    return np.concatenate(frames)


def descriptors(dump: Path, frames: NDArray[np.int64]) -> NDArray[np.void]:
    """Where these pages are in the dump."""
    kdump = read_kdump(dump)
    assert kdump is not None
    begin, size = kdump.bitmaps, kdump.bitmap_bytes
    data = np.memmap(dump, np.uint8, "r", begin + size, (size,))
    there = np.unpackbits(data, bitorder="little")
    number = np.cumsum(there, dtype=np.int64) - 1
    pages = np.memmap(dump, PAGE_DESCRIPTOR, "r", begin + 2 * size, (int(number[-1]) + 1,))
    return pages[number[frames[there[frames] != 0]]]


def bound_seconds(program: Path, dump: Path, pages: NDArray[np.void], folder: Path) -> float:
    """CPU time of decompressing pages, alone."""
    wanted = np.empty(len(pages), [("offset", "<u8"), ("size", "<u4"), ("flags", "<u4")])
    for name in wanted.dtype.names or ():
        wanted[name] = pages[name]
    (folder / "list").write_bytes(wanted.tobytes())
    command = [program, dump, folder / "list", str(RUNS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout) / 1e9


def pass_seconds(machine: SparseMachine, dump: Path) -> tuple[float, float]:
    """CPU time of one pass over the struct pages: by drgn alone, and as it is."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(RUNS):
        for ours, seconds in enumerate(taken):
            prog = open_target(dump, [machine.vmlinux])
            if not ours:
                prog.cache.pop(OWN, None)
            valid_page_ranges(prog)  # and what else it reads once
            begin = time.process_time()
            scan_struct_pages(prog, [Count()])
            seconds.append(time.process_time() - begin)
    return min(taken[0]), min(taken[1])


def build(folder: Path) -> Path:
    """The program that only decompresses."""
    program = folder / "unpack"
    libraries = [f"-l:{name}" for name in LIBRARIES]
    subprocess.run(["gcc", "-O2", "-o", program, SOURCE, *libraries], check=True)
    return program


def jobs_row(table: Table, machine: SparseMachine, name: str, core: Path) -> None:
    """The ledger by one process and by two, in turn."""
    command = (MMSCOPE, "show", "memory_ledger", "--format", "csv", "--core", core)
    runs = [
        [run(*command, "--symbols", machine.vmlinux, "--jobs", jobs) for jobs in "12"]
        for _ in range(RUNS)
    ]
    clock = [statistics.median(pair[jobs].seconds for pair in runs) for jobs in (0, 1)]
    cpu = [statistics.median(pair[jobs].cpu_seconds for pair in runs) for jobs in (0, 1)]
    table.add_row(
        name,
        *(f"{seconds:.2f} s" for seconds in clock),
        f"{clock[0] / clock[1]:.2f}x",
        *(f"{seconds:.2f} s" for seconds in cpu),
    )


def main() -> None:
    gib = int(os.environ.get("MMSCOPE_BENCH_DUMP_GIB", "16"))
    machine = sparse_machine(gib, lambda text: print(text, file=sys.stderr))
    elf = open_target(machine.vmcore, [machine.vmlinux])
    frames = memory_map_frames(elf)
    table = Table(title=f"all struct pages of a dump of {gib} GiB, {len(frames):,} pages: CPU time")
    columns = ("packed by", "dump", "drgn alone", "here", "decompressing alone")
    for column in (*columns, "of drgn's", "of ours"):
        table.add_column(column, justify="left" if column == "packed by" else "right")
    shared = Table(title="show memory_ledger by one process and by two")
    for column in ("core", "clock, 1", "2", "times as fast", "CPU, 1", "2"):
        shared.add_column(column, justify="left" if column == "core" else "right")
    _, plain = pass_seconds(machine, machine.vmcore)
    table.add_row("not packed", "", "", f"{plain * 1000:,.0f} ms", "", "", "")
    jobs_row(shared, machine, "not packed", machine.vmcore)
    with tempfile.TemporaryDirectory(dir=machine.vmcore.parent.parent) as name:
        folder = Path(name)
        program = build(folder)
        for kind in KINDS:
            dump = packed_dump(machine.vmcore, folder / kind, kind)
            bound = bound_seconds(program, dump, descriptors(dump, frames), folder)
            alone, here = pass_seconds(machine, dump)
            table.add_row(
                kind,
                f"{dump.stat().st_size >> 20:,} MiB",
                f"{alone * 1000:,.0f} ms",
                f"{here * 1000:,.0f} ms",
                f"{bound * 1000:,.0f} ms",
                f"{bound / alone:.2f}",
                f"{bound / here:.2f}",
            )
            jobs_row(shared, machine, kind, dump)
            dump.unlink()
    console = Console(width=120)
    console.print(table)
    console.print(shared)
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    console.print(f"load of this machine's {os.cpu_count()} CPUs now: {load}")


if __name__ == "__main__":
    main()
