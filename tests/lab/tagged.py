# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A vmcore of a kernel with MEM_ALLOC_PROFILING whose module leaks a known amount from known lines,
and what /proc/allocinfo said right before.

Costs: a boot (half a minute) for each way of keeping the references, the first time; 1.5 GiB of
disk each.
"""

import re
from pathlib import Path

import machine
from capture import Capture
from kept_captures import Say, kept
from kernels import Kernel
from pairs import build_init

GUEST = machine.GUEST / "pair" / "tags.c"
MODULE = machine.GUEST / "module" / "mmscope_lab.c"
# guest/pair/tags.c; a round is a block of each order from 0 to 8.
ROUNDS, PAGES_A_ROUND = 50, 511
PERCPU, PERCPU_BYTES = 2000, 1024
# What allocates in mmscope_lab.c.
ALLOCATES = re.compile(r"\b(alloc_pages|vmalloc|kmalloc|kmem_cache_alloc|__alloc_percpu)\(")


def tagged(say: Say, options: str = "") -> Capture:
    """
    The capture.

    :param options: for the kernel's command line.
    :raises LabError: the guest failed.
    """

    def take(kernel: Kernel, folder: Path) -> None:
        line = " ".join([machine.COMMAND_LINE, kernel.options, options])
        init = build_init(folder, GUEST)
        machine.run(kernel, "tags", folder, say, init=init, qemu_args=("-append", line))
        init.unlink()

    what = "tags_options" if options else "tags"
    folder, kernel = kept("owner", what, [Path(__file__), GUEST, options], take, say)
    return Capture(
        kernel="owner",
        release=kernel.release,
        workload="tags",
        vmcore=folder / "vmcore",
        vmlinux=kernel.vmlinux,
        truth_a=folder / "truth" / "A",
        truth_b=folder / "truth" / "B",
        console=folder / "console.log",
    )


def lines_of_module() -> dict[str, int]:
    """Function to the line in which it allocates, of the module's functions that have one."""
    found, function = dict[str, int](), ""
    for number, line in enumerate(MODULE.read_text().splitlines(), 1):
        if begin := re.match(r"static noinline \w+ (mmscope_lab_\w+)\(.*[^;]$", line):
            function = begin[1]
        if ALLOCATES.search(line) and line.startswith("\t") and function not in found:
            found[function] = number
    return found
