# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A vmcore of a kernel with MEM_ALLOC_PROFILING whose module leaks a known amount from known lines,
and what /proc/allocinfo said right before.

Costs: a boot (half a minute) for each way of keeping the references, the first time; 1.5 GiB of
disk each.
"""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import archive
import machine
import pairs
from archive import LabError
from capture import Capture
from kernels import Kernel

GUEST = machine.GUEST / "pair" / "tags.c"
MODULE = machine.GUEST / "module" / "mmscope_lab.c"
# guest/pair/tags.c; a round is a block of each order from 0 to 8.
ROUNDS, PAGES_A_ROUND = 50, 511
PERCPU, PERCPU_BYTES = 2000, 1024
# What allocates in mmscope_lab.c.
ALLOCATES = re.compile(r"\b(alloc_pages|vmalloc|kmalloc|kmem_cache_alloc|__alloc_percpu)\(")


def tagged(say: Callable[[str], None], options: str = "") -> Capture:
    """
    The capture.

    :param options: for the kernel's command line.
    :raises LabError: the guest failed.
    """
    digest = hashlib.sha256(options.encode())
    for source in (GUEST, Path(__file__)):
        digest.update(source.read_bytes())
    kind = "tags_options" if options else "tags"
    what = f"{kind}-{digest.hexdigest()[:6]}"

    def take(kernel: Kernel, folder: Path) -> None:
        line = " ".join([machine.COMMAND_LINE, kernel.options, options])
        init = _build_init(folder)
        machine.run(kernel, "tags", folder, say, init=init, qemu_args=("-append", line))
        init.unlink()

    folder, kernel = pairs._kept("owner", what, take, say)
    for other in (archive.cache_folder() / "cores").glob(f"owner-{kind}-*"):
        if other != folder:
            shutil.rmtree(other)
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


def _build_init(folder: Path) -> Path:
    """The guest's init with the ending of tags.c."""
    init = folder / "init"
    sources = [*sorted(machine.GUEST.glob("*.c")), GUEST]
    sources.remove(machine.GUEST / "init.c")  # which is in tags.c
    command = ["gcc", "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", str(init)]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"gcc failed:\n{done.stderr}")
    return init


def lines_of_module() -> dict[str, int]:
    """Function to the line in which it allocates, of the module's functions that have one."""
    found, function = dict[str, int](), ""
    for number, line in enumerate(MODULE.read_text().splitlines(), 1):
        if begin := re.match(r"static noinline \w+ (mmscope_lab_\w+)\(.*[^;]$", line):
            function = begin[1]
        if ALLOCATES.search(line) and line.startswith("\t") and function not in found:
            found[function] = number
    return found
