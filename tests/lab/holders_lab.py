# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Frozen guests with memory behind open files of every kind (``programs/holders.c``), with dma-bufs,
BPF maps and programs, AIO and KVM (``programs/owners.c``), with tasks that wait
(``programs/stuck.c``, ``programs/locks.c``, and ``programs/servers.c``, which has a disk).
"""

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import kernels
import machine
from architectures import AMD64
from archive import run
from capture import Capture
from kept_captures import kept
from kernels import Kernel, with_built

PROGRAMS = Path(__file__).parent / "programs"
# QEMU's CPU has SVM, emulated.
KVM = ("irqbypass", "kvm", "kvm-amd")
DISKS = {"servers": 32 << 20}
# More CPUs than two, of the first node.
CPUS = {"locks": 4}
# What /proc/PID/stack leaves out: functions of the scheduler's section (__sched), locks' included.
SCHEDULER = re.compile(
    r"^(__|preempt_|io_)?schedule(_\w+)?$|^__switch_to$|^__mutex_lock|^rwsem_down|^down_"
    r"|^(__)?percpu_|^(__)?(rt_mutex|rwbase|folio_lock|inode_lock)|^mutex_lock"
    r"|^(out_of_line_|__)wait_on_bit$|^bit_wait"
)


def build(kernel: Kernel, program: Path, folder: Path) -> Path:
    """The guest's ``/init`` with a program in place of its workload "sizes"."""
    init = folder / "init"
    sources = [*map(str, sorted(machine.GUEST.glob("*.c"))), str(program)]
    options = ("-static", "-O2", "-D_GNU_SOURCE", f"-DPAGE={kernel.page_bytes}UL")
    compiler, wrapped = kernel.architecture.compiler, "-Wl,--wrap=workload_sizes"
    subprocess.run([compiler, *options, wrapped, "-o", str(init), *sources], check=True)
    return init


def make_disk(folder: Path, size: int) -> tuple[str, ...]:
    """A disk with an ext4, and QEMU's arguments for it."""
    disk = folder / "own-disk"
    disk.touch()
    os.truncate(disk, size)
    run("mkfs.ext4", "-q", str(disk))
    return "-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"


def has_kvm(name: str) -> bool:
    """Whether a kernel has KVM, and types of it: the modules of 5.10 have no BTF."""
    of_x86 = kernels.architecture(name) is AMD64
    return of_x86 and name in kernels.stock() and name != "5.10"


def holders_capture(
    name: str,
    say: Callable[[str], None],
    what: str = "holders",
    modules: Sequence[str] = (),
    built: Path | None = None,
) -> Capture:
    """
    The capture of a kernel and one of the programs.

    :param built: folder of a module that is built for it.
    """
    program = PROGRAMS / f"{what}.c"
    sources = [program, PROGRAMS / "parts.h"]
    sources += sorted(built.iterdir()) if built is not None else []

    def take(kernel: Kernel, folder: Path) -> None:
        if built is not None:
            kernel = with_built(kernel, built, say)
        drive = make_disk(folder, DISKS[what]) if what in DISKS else ()
        if what in CPUS:
            drive += ("-smp", f"{CPUS[what]},sockets={CPUS[what]}")
        init = build(kernel, program, folder)
        machine.run(kernel, "sizes", folder, say, init=init, qemu_args=drive)
        (folder / "own-disk").unlink(missing_ok=True)

    folder, kernel = kept(name, what, sources, take, say, modules)
    return Capture(
        kernel.name, kernel.release, what, folder / "vmcore", kernel.vmlinux,
        folder / "truth/A", folder / "truth/B", folder / "console.log",
    )  # fmt: skip
