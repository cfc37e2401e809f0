# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The command on a live kernel: ``mmscope`` runs inside the guest, as root, on its /proc/kcore.

A disk image brings along what the box would have: this Python, drgn, numpy and rich, the project,
and the kernel's vmlinux; for another architecture what Debian has of them there (``debian_tree``).
It brings no duckdb or jinja2: on the box the command must do without. What the program in
the guest writes under /out is taken off the image afterwards.

Costs: half a minute to make the image (about 700 MB), and a boot.
"""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import debian_tree
import machine
from architectures import AMD64
from archive import LabError
from kernels import Kernel, get

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tools")]

from make_runtime import add_python, add_site  # noqa: E402

# QEMU 7.2 emulates AVX2 wrongly: numpy's argsort of some hundred 64-bit numbers comes out unsorted.
# Both virtual CPUs are one thread of QEMU's: an OpenMP thread that spins until there is work again,
# as those do that drgn reads debug info with, takes half of it from whoever works.
ENVIRONMENT = {"NPY_DISABLE_CPU_FEATURES": "X86_V3", "OMP_NUM_THREADS": "1"}
# numpy wants cmpxchg16b, which the lab's machine leaves out for the sake of older kernels. Without
# ERMS and FSRM the kernel and the C library copy and clear in words: "rep movsb" is emulated byte
# by byte.
CPU = ("-cpu", "max,-erms,-fsrm")
# These use it all the time, which QEMU does not survive for long (see architectures.py): the bit is
# taken from the kernel alone (X86_FEATURE_CX16, 4 * 32 + 13).
WITHOUT_CX16 = dict.fromkeys(("5.10", "6.1", "6.12"), "clearcpuid=141")
# A busy machine needs a quarter of an hour for what otherwise takes three minutes.
LIVE_SECONDS = 3600.0
# The console, and with it whoever waits here, is told when what was done.
_TOLD = """
import time
def told(words):
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(1, f"lab: [{now:5.1f}] {words}\\n".encode())
"""


def run_live(
    program: str,
    folder: Path,
    kernel: str,
    say: Callable[[str], None] = lambda line: None,
    *,
    binaries: Sequence[Path] = (),
    symbols: bool = True,
    options: str = "",
    qemu_args: Sequence[str] = (),
    seconds: float = LIVE_SECONDS,
) -> Path:
    """
    Boot *kernel* and run a Python program in it; returns the folder with what it wrote to /out.

    The program can import mmscope, and finds the kernel's vmlinux at /vmlinux. What it says by
    ``told(words)`` is shown with the guest's time.

    :param folder: an empty folder to work in.
    :param binaries: more programs, to be found in /bin, with the libraries that they need.
    :param symbols: whether the program needs vmlinux.
    :param options: more for the kernel's command line.
    :param qemu_args: more for QEMU.
    :param seconds: that the program may take.
    :raises LabError: the guest failed.
    """
    booted = get(kernel, say, symbols=symbols)
    booted = dataclasses.replace(
        booted,
        options=f"{booted.options} {WITHOUT_CX16.get(kernel, '')} {options}",
    )
    tree, image = folder / "tree", folder / "disk.ext4"
    say("making the disk for the guest")
    tree.mkdir()
    own = booted.architecture is AMD64
    if not own:
        debian_tree.unpack(booted.architecture, tree)
    build_site(tree, booted.vmlinux if symbols else None, binaries)
    begin = build_python(tree, binaries) if own else debian_tree.start(booted.architecture)
    (tree / "main.py").write_text(f"{begin}{_TOLD}{program}")
    size = sum(path.lstat().st_size for path in tree.rglob("*")) + (256 << 20)
    tool("mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(image), str(size >> 10))
    shutil.rmtree(tree)
    qemu_args = (*CPU, *qemu_args) if own else qemu_args
    init = machine.build_init(folder, booted.architecture, booted.page_bytes)
    try:
        _boot(booted, image, folder, say, init, qemu_args, seconds)
    except LabError as error:
        # As of capture.py: emulation has flaws that a second boot does not meet.
        say(f"{str(error).splitlines()[0]}; once more")
        tool("debugfs", "-R", f"rdump /out {folder}", str(image))
        if any((folder / "out").iterdir()):
            raise  # its disk is not as it was
        (folder / "out").rmdir()  # debugfs makes it, or does nothing
        _boot(booted, image, folder, say, init, qemu_args, seconds)
    tool("debugfs", "-R", f"rdump /out {folder}", str(image))
    image.unlink()
    return folder / "out"


def _boot(
    kernel: Kernel,
    image: Path,
    folder: Path,
    say: Callable[[str], None],
    init: Path,
    qemu_args: Sequence[str],
    seconds: float,
) -> None:
    machine.run(
        kernel,
        "live",
        folder,
        say,
        init=init,
        qemu_args=("-drive", f"file={image},format=raw,if=virtio", *qemu_args),
        workload_seconds=seconds,
        dump=False,
    )


def build_site(tree: Path, vmlinux: Path | None, binaries: Sequence[Path]) -> None:
    """What the guest's disk holds whatever its architecture."""
    add_site(tree)
    (tree / "out").mkdir()
    for binary in binaries:
        shutil.copy(binary, tree / "bin" / binary.name)
    if vmlinux is not None:
        shutil.copy(vmlinux, tree / "vmlinux")


def build_python(tree: Path, binaries: Sequence[Path]) -> str:
    """Add this machine's Python and what it and *binaries* need; what a program begins with."""
    try:
        path = ["/site", str(add_python(tree, binaries))]
    except LookupError as error:
        raise LabError(str(error)) from None
    return f"import os, sys\nos.environ |= {ENVIRONMENT!r}\nsys.path[:0] = {path!r}\n"


def tool(*command: str) -> None:
    """Run a command of the host."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise LabError(f"{command[0]} is not installed: apt-get install e2fsprogs") from None
    if done.returncode:
        raise LabError(f"{command[0]} failed: {done.stderr.strip()}")
