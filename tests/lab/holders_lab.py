# SPDX-License-Identifier: LGPL-2.1-or-later
"""A frozen guest with memory behind open files of every kind (``programs/holders.c``)."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import machine
from capture import Capture
from kept_captures import kept
from kernels import Kernel

PROGRAM = Path(__file__).parent / "programs/holders.c"


def holders_capture(name: str, say: Callable[[str], None]) -> Capture:
    """The capture of a kernel."""

    def take(kernel: Kernel, folder: Path) -> None:
        init = folder / "init"
        sources = [*map(str, sorted(machine.GUEST.glob("*.c"))), str(PROGRAM)]
        options = ("-static", "-O2", "-D_GNU_SOURCE", f"-DPAGE={kernel.page_bytes}UL")
        wrapped = "-Wl,--wrap=workload_sizes"
        compiler = kernel.architecture.compiler
        subprocess.run([compiler, *options, wrapped, "-o", str(init), *sources], check=True)
        machine.run(kernel, "sizes", folder, say, init=init)

    folder, kernel = kept(name, "holders", [PROGRAM], take, say)
    return Capture(
        kernel.name, kernel.release, "holders", folder / "vmcore", kernel.vmlinux,
        folder / "truth/A", folder / "truth/B", folder / "console.log",
    )  # fmt: skip
