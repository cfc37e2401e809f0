# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A crash as machines in the field have it: a crash kernel is loaded, sysrq crashes the kernel, and
the crash kernel saves /proc/vmcore (``programs/kdump.c``).

Costs: two boots, the first time (half a minute), and 200 MiB of disk; kept beside the captures.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import children
import machine
from architectures import AMD64
from archive import LabError
from children import DIES_WITH_US
from kept_captures import Say, kept
from kernels import Kernel

HERE = Path(__file__).resolve().parent
SAVER = HERE / "programs/kdump.c"
SECONDS = 600
MACHINE = (
    *("-accel", "tcg,thread=single", "-cpu", "max,-cx16", "-machine", "q35", "-smp", "1"),
    *("-m", "768M", "-no-reboot", "-nodefaults", "-display", "none"),
)
LINE = f"console=ttyS0 panic=-1 crashkernel=256M no5lvl {AMD64.options}"


def crashed(name: str, say: Say) -> tuple[Path, Kernel]:
    """
    The folder of a dump, ``core``, with what the kernel said right before, ``truth``.

    :param name: a row of ``kernels.toml``, of x86.
    :raises LabError: the kernel cannot be had, or no dump was saved.
    """
    return kept(
        name,
        "kdump",
        [Path(__file__), SAVER],
        lambda kernel, folder: _take(kernel, folder, say),
        say,
    )


def _take(kernel: Kernel, folder: Path, say: Say) -> None:
    """Crash *kernel*; leaves its dump, ``core``, and what it said right before, ``truth``."""
    init = folder / "init"
    children.run(
        ["gcc", "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", init, SAVER],
        check=True,
    )
    inner = machine.build_initramfs(folder, init, kernel.modules)
    inner.rename(folder / "crash.initramfs")
    shutil.copy(kernel.vmlinuz, folder / "vmlinuz")
    # Archives one behind the other are one to the kernel.
    more = children.run(
        ["cpio", "--create", "--format=newc", "--quiet", "--directory", folder],
        input=b"vmlinuz\ncrash.initramfs\n",
        capture_output=True,
        check=True,
    ).stdout
    outer = machine.build_initramfs(folder, init, kernel.modules)
    outer.write_bytes(outer.read_bytes() + more)
    disks = []
    for name, size in (("said", 16 << 20), ("core", 2 << 30)):
        (folder / name).touch()
        os.truncate(folder / name, size)
        disks += ["-drive", f"file={folder / name},format=raw,if=virtio,cache=unsafe"]
    console = folder / "console.log"
    say(f"crashing {kernel.release}, and booting its crash kernel")
    qemu = subprocess.Popen(
        [
            *DIES_WITH_US,
            *("qemu-system-x86_64", *MACHINE, "-serial", f"file:{console}"),
            *("-kernel", kernel.vmlinuz, "-initrd", outer, "-append", LINE, *disks),
        ],
        stdin=subprocess.DEVNULL,
    )
    try:
        qemu.wait(SECONDS)
    finally:
        qemu.kill()
        qemu.wait()
    words = console.read_text(errors="replace")
    saved = re.search(r"kdump: saved (\d+) bytes", words)
    if not saved:
        raise LabError("no dump was saved:\n" + "\n".join(words.splitlines()[-20:]))
    os.truncate(folder / "core", int(saved[1]))
    machine.unpack_truth((folder / "said").read_bytes(), folder / "truth")
    for name in ("init", "vmlinuz", "crash.initramfs", "initramfs", "said"):
        (folder / name).unlink()
