# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pairs of vmcores that differ in one thing that is known: a kernel without HVO beside the capture
with it, and one boot before and after a leak.

Costs: a boot for each, the first time (half a minute); 1.5 to 3 GiB of disk.
"""

import asyncio
import contextlib
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import machine
from archive import LabError
from children import DIES_WITH_US
from kept_captures import Say, kept
from kernels import Kernel
from qemu.qmp import EventListener, QMPClient, QMPError
from roles import resolve

LEAK = machine.GUEST / "pair" / "leak.c"
# guest/pair/leak.c
LEAKED_BEFORE, LEAKED_BETWEEN = 300, 4321


@dataclass(frozen=True)
class Vmcore:
    """A vmcore and the symbols of its kernel."""

    vmcore: Path
    vmlinux: Path


def without_hvo(say: Say) -> Vmcore:
    """
    The twin of the ``vmemmap_boot`` capture: the same machine and pools, but for HVO.

    :raises LabError: the guest failed.
    """
    options = machine.WORKLOAD_OPTIONS["vmemmap_boot"]
    off = options.replace("hugetlb_free_vmemmap=on", "hugetlb_free_vmemmap=off")
    assert off != options

    def take(kernel: Kernel, folder: Path) -> None:
        line = " ".join([machine.COMMAND_LINE, kernel.options, off, "lab.workload=vmemmap_boot"])
        machine.run(
            kernel,
            "vmemmap_boot",
            folder,
            say,
            init=machine.build_init(folder),
            qemu_args=("-append", line),  # the last one counts
        )

    name = resolve("stable", say)
    folder, kernel = kept(name, "without_hvo", [Path(__file__)], take, say)
    return Vmcore(folder / "vmcore", kernel.vmlinux)


def leak(say: Say) -> tuple[Vmcore, Vmcore]:
    """
    One boot of the kernel with page_owner, before and after ``mmscope_lab_leak`` took
    ``LEAKED_BETWEEN`` pages more.

    :raises LabError: the guest failed.
    """

    def take(kernel: Kernel, folder: Path) -> None:
        asyncio.run(_freeze_twice(kernel, folder, say))

    folder, kernel = kept("owner", "leak_pair", [Path(__file__), LEAK], take, say)
    before, after = (Vmcore(folder / name, kernel.vmlinux) for name in ("before", "after"))
    return before, after


def build_init(folder: Path, ending: Path) -> Path:
    """The guest's init with another ending than that of ``init.c``, which the ending has in it."""
    init = folder / "init"
    sources = [*sorted(machine.GUEST.glob("*.c")), ending]
    sources.remove(machine.GUEST / "init.c")
    command = ["gcc", "-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", str(init)]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"gcc failed:\n{done.stderr}")
    return init


async def _freeze_twice(kernel: Kernel, folder: Path, say: Say) -> None:
    """Boot a guest that freezes twice; a dump at each, and on it goes in between."""
    initramfs = machine.build_initramfs(folder, build_init(folder, LEAK), kernel.modules)
    console = machine._Console(folder / "console.log", say)
    ours, theirs = socket.socketpair()
    with (folder / "qemu.log").open("wb") as log:
        qemu = subprocess.Popen(
            [
                *DIES_WITH_US,
                "qemu-system-x86_64",
                *machine.MACHINE,
                *("-serial", f"file:{console.path}"),
                *("-chardev", f"socket,id=qmp,fd={theirs.fileno()}"),
                *("-mon", "chardev=qmp,mode=control"),
                *("-kernel", str(kernel.vmlinuz), "-initrd", str(initramfs)),
                *("-append", f"{machine.COMMAND_LINE} {kernel.options}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
        )
    theirs.close()
    qmp, stop = QMPClient("lab"), EventListener(["STOP"])
    try:
        async with asyncio.timeout(30):
            await qmp.connect(ours)
        qmp.register_listener(stop)
        for name in ("before", "after"):
            await console.until(lambda: not stop.empty(), name, machine.BOOT_SECONDS, qemu)
            stop.clear()
            if not console.seen(f"freeze {name}"):
                raise LabError(f"the guest stopped too early\n{console.tail()}")
            vmcore = folder / name
            async with asyncio.timeout(machine.DUMP_SECONDS):
                await qmp.execute(
                    "dump-guest-memory", {"paging": False, "protocol": f"file:{vmcore}"}
                )
            subprocess.run(["fallocate", "--dig-holes", str(vmcore)], check=True)
            await qmp.execute("cont")
    except (QMPError, OSError, TimeoutError) as error:
        raise LabError(f"QEMU: {error!r}\n{console.tail()}") from error
    finally:
        with contextlib.suppress(QMPError, OSError, EOFError):
            await qmp.disconnect()
        qemu.kill()
        qemu.wait()
    for name in ("initramfs", "init", "qemu.log"):
        (folder / name).unlink()
