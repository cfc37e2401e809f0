# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Frozen guests with memory behind open files of every kind (``programs/holders.c``), with dma-bufs
and BPF maps and programs (``programs/owners.c``), with tasks that wait (``programs/stuck.c``).
"""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import machine
from capture import Capture
from kept_captures import kept
from kernels import Kernel

PROGRAMS = Path(__file__).parent / "programs"


def holders_capture(
    name: str, say: Callable[[str], None], what: str = "holders", modules: Sequence[str] = ()
) -> Capture:
    """The capture of a kernel and one of the programs."""
    program = PROGRAMS / f"{what}.c"

    def take(kernel: Kernel, folder: Path) -> None:
        init = folder / "init"
        sources = [*map(str, sorted(machine.GUEST.glob("*.c"))), str(program)]
        options = ("-static", "-O2", "-D_GNU_SOURCE", f"-DPAGE={kernel.page_bytes}UL")
        wrapped = "-Wl,--wrap=workload_sizes"
        compiler = kernel.architecture.compiler
        subprocess.run([compiler, *options, wrapped, "-o", str(init), *sources], check=True)
        machine.run(kernel, "sizes", folder, say, init=init)

    folder, kernel = kept(name, what, [program], take, say, modules)
    return Capture(
        kernel.name, kernel.release, what, folder / "vmcore", kernel.vmlinux,
        folder / "truth/A", folder / "truth/B", folder / "console.log",
    )  # fmt: skip
