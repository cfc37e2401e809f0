# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about struct pages: the walk over the vmemmap of a machine of 64 GiB, half
of it huge pages with HVO, with drgn's walk from the top for each address beside it.

The machine is emulated, and most of its memory never touched: its struct pages alone take 1 GiB. It
is frozen at the end of its boot and read where it lies, through QEMU; nothing is dumped. As in
``bench.py``: medians in one process, and the ratio is what to look at. The loop is measured on a
sample.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

import kernels  # noqa: E402
import machine  # noqa: E402
from bench import median_seconds  # noqa: E402
from capture import one_at_a_time  # noqa: E402
from drgn import Program  # noqa: E402
from drgn.helpers.linux.mm import follow_phys  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from roles import resolve  # noqa: E402

from mmscope.drgn.machine.direct_map import direct_map  # noqa: E402
from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.reading.kernel_arrays import Gaps  # noqa: E402
from mmscope.drgn.struct_pages.hugetlb import find_huge_pages  # noqa: E402
from mmscope.drgn.struct_pages.memory_metadata import present_bytes  # noqa: E402
from mmscope.drgn.struct_pages.struct_page_cost import scan_struct_page_cost  # noqa: E402
from mmscope.drgn.struct_pages.vmemmap import scan_vmemmap  # noqa: E402

GIB = 1 << 30
MEMORY = 64 * GIB
HUGE_PAGES = 16 << 10  # of 2 MiB
SAMPLE = 4096
BOOT_SECONDS = 420
OPTIONS = (
    # Not to touch what is not needed: memory is zeros as it comes from the host.
    "console=ttyS0 panic=-1 init_on_alloc=0 hugetlb_free_vmemmap=on hugepagesz=2M "
    f"hugepages={HUGE_PAGES} lab.workload=idle"
)


@contextlib.contextmanager
def frozen_machine(folder: Path) -> Iterator[tuple[str, Path]]:
    """A machine that has stopped itself; gives its QMP socket and its kernel's vmlinux."""
    kernel = kernels.get(resolve("stable"), lambda line: print(line, file=sys.stderr))
    init = machine.build_init(folder)
    initramfs = machine.build_initramfs(folder, init, kernel.modules)
    console, socket = folder / "console.log", folder / "qmp"
    command = [
        *("qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", "max,-cx16"),
        *("-machine", "q35,memory-backend=ram", "-smp", "2", "-m", str(MEMORY >> 20)),
        # Neither reserved nor touched: the host needs no 64 GiB.
        *("-object", f"memory-backend-ram,id=ram,size={MEMORY},reserve=off"),
        *("-device", "vmcoreinfo", "-device", "pvpanic", "-action", "panic=pause", "-no-reboot"),
        *("-nodefaults", "-display", "none", "-serial", f"file:{console}"),
        *("-qmp", f"unix:{socket},server=on,wait=off"),
        *("-kernel", str(kernel.vmlinuz), "-initrd", str(initramfs), "-append", OPTIONS),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as qemu:
        try:
            deadline = time.monotonic() + BOOT_SECONDS
            while not (console.exists() and "recording truth" in console.read_text("latin-1")):
                if qemu.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the guest does not come up: {console.read_text('latin-1')}")
                time.sleep(0.5)
            time.sleep(10)  # it records, and freezes
            yield str(socket), kernel.vmlinux
        finally:
            qemu.kill()


def page_loop(prog: Program) -> float:
    """Addresses of the vmemmap a second that drgn's follow_phys() finds the frame of."""
    where = scan_vmemmap(prog).memmap
    init_mm = prog["init_mm"].address_of_()
    first = int(where.sections.numbers[len(where.sections.numbers) // 2]) * where.section_bytes
    begin = time.perf_counter()
    for number in range(SAMPLE):
        follow_phys(init_mm, where.base + first + number * 4096)
    return SAMPLE / (time.perf_counter() - begin)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, one_at_a_time():
        begin = time.monotonic()
        with frozen_machine(Path(folder)) as (socket, vmlinux):
            booted = time.monotonic() - begin
            prog = open_target(None, [vmlinux], socket)
            measure(prog, booted)


def measure(prog: Program, booted: float) -> None:
    cost = scan_struct_page_cost(prog)
    scan = cost.scan
    addresses = sum(row.bytes for row in scan.mappings) // 4096
    entries = sum(row.entries for row in scan.mappings)
    loop = page_loop(prog)
    table = Table(
        "what",
        "here",
        "beside it",
        "ratio",
        title=f"struct pages of {present_bytes(prog) / GIB:.1f} GiB, {entries:,} entries",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    walk = median_seconds(lambda: scan_vmemmap(prog), 3)
    table.add_row(
        f"vmemmap walk: {addresses:,} x 4 KiB",
        f"{walk * 1000:,.0f} ms",
        f"{addresses / loop:,.1f} s follow_phys, one address at a time",
        f"{addresses / loop / walk:,.0f}x",
    )
    found = cost.huge_pages
    table.add_row(
        f"{len(found.pfns):,} huge pages among the struct pages",
        f"{median_seconds(lambda: find_huge_pages(prog), 1) * 1000:,.0f} ms",
        "",
        "",
    )
    levels = direct_map(prog, Gaps())
    table.add_row(
        f"direct map: {sum(row.entries or 0 for row in levels):,} entries, and the kernel image",
        f"{median_seconds(lambda: direct_map(prog, Gaps()), 3) * 1000:,.0f} ms",
        "",
        "",
    )
    everything = median_seconds(lambda: scan_struct_page_cost(prog), 1)
    table.add_row("all of it: pools, devices, origins", f"{everything * 1000:,.0f} ms", "", "")
    console = Console(width=130)
    console.print(table)
    saved = sum(row.vmemmap_saved_bytes or 0 for row in cost.pools()[0])
    console.print(f"HVO saves {saved / GIB:.3f} GiB there; the machine was up after {booted:.0f} s")


if __name__ == "__main__":
    main()
