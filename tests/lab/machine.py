# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The lab's machine: boots one kernel under QEMU with our own ``/init``, waits until the guest has
frozen itself, and takes its truth and an ELF vmcore.

Costs: software emulation, so about 4 s from power-on to ``/init``, then the workload, then 3 s a
GiB for the dump; guest memory (1.5 GiB) and the same on disk. Needs QEMU and a C compiler with a
static library for the kernel's architecture, cpio, and the Python package qemu.qmp.

Cannot: use KVM (a lab that only works where KVM does would be no test), or take a dump of a guest
that hangs: that is an error here, with the last lines of its console.

How the guest stops: it writes to the pvpanic device, and QEMU (``-action panic=pause``) stops every
CPU there and then. So nothing of the guest runs between its last reading and the dump, and the
readings are fetched from its stopped memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from architectures import AMD64, Architecture
from archive import LabError
from children import DIES_WITH_US
from kernels import PAGE_BYTES, Kernel
from qemu.qmp import EventListener, ExecuteError, QMPClient, QMPError

GUEST = Path(__file__).resolve().parent / "guest"

BOOT_SECONDS = 120.0
WORKLOAD_SECONDS = 900.0
DUMP_SECONDS = 180.0

MACHINE = AMD64.machine

# KASLR stays on, as in the field. NUMA balancing would invert page-table entries at moments of its
# own choosing.
_OPTIONS = "panic=-1 numa_balancing=disable"
COMMAND_LINE = f"console={AMD64.console} {_OPTIONS} {AMD64.options}"

# What a workload needs from the kernel's command line.
WORKLOAD_OPTIONS = {
    # The name since "mm/slub: unify all sl[au]b parameters with slab_$param" (v6.9), and before.
    "slab": "slab_debug=U slub_debug=U",
    # Some caches only: the others allocate as they do in the field.
    "owner": "slab_debug=U,mmscope_lab,kmalloc-96,kmalloc-1k",
    # Not kmalloc-16: to read its alloc_traces is to allocate pages with its list_lock held,
    # page_owner remembers a new stack in an object of kmalloc-16, and the CPU waits for itself
    # (mm/slub.c, add_location; mm/page_owner.c, add_stack_record_to_list; seen on 7.2).
    "owner_slab": "slab_debug=U;-,kmalloc-16",
    # The others have five levels of page tables, as the machine's CPU can do.
    "tables": "no5lvl",
    # Whole sections (128 MiB) that count as persistent memory; a DIMM that hosts its struct pages.
    # The log says how long their struct pages took.
    "vmemmap": "memmap=128M!0x10000000 memmap=128M!0x128000000 memmap=128M!0x138000000 "
    'memory_hotplug.memmap_on_memory=1 dyndbg="func memmap_init_zone_device +p"',
    "dax": 'dyndbg="func memmap_init_zone_device +p"',
    # The emulated CPU has five levels of page tables; most machines have four. With KASLR the
    # kernel may lie where the only page of 1 GiB could be.
    "vmemmap_boot": "hugetlb_free_vmemmap=on hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64 "
    "no5lvl nokaslr",
    # Free objects are poisoned, and objects begin behind a red zone.
    "ledger_poison": "slab_debug=PZ slub_debug=PZ",
    # All that the workload writes to the log, and not five lines a second.
    "oom": "printk.devkmsg=on",
    # Of 512 MiB at 0 and 1 GiB at 4 GiB: the last 256 MiB cut off, 64 MiB reserved, 128 MiB
    # persistent, 64 MiB soft-reserved (from RAM, type 1), 48 MiB for a crash kernel.
    "kept": "mem=4864M memmap=64M$0x108000000 memmap=128M!0x110000000 "
    "memmap=64M%0x118000000-1+0xefffffff crashkernel=48M movablecore=256M secretmem.enable=1",
}

# Where arm64 needs others: there is no memmap=, and memory begins at 1 GiB.
OTHER_OPTIONS = {
    ("arm64", "kept"): "mem=1280M crashkernel=64M movablecore=256M secretmem.enable=1",
    # The memory that CMA would reserve for devices lies where the page of 1 GiB has to.
    ("arm64", "vmemmap_boot"): "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64 cma=0 nokaslr",
}


def _nvdimms(*mebibytes: int) -> tuple[str, ...]:
    """NVDIMMs without labels: a region of each with one namespace, in any order."""
    parts = ["-machine", "nvdimm=on", "-m", f"1536M,slots={len(mebibytes)},maxmem=8G"]
    for number, size in enumerate(mebibytes):
        parts += ["-object", f"memory-backend-ram,id=nvdimm{number},size={size}M"]
        parts += ["-device", f"nvdimm,memdev=nvdimm{number},node=1"]
    return tuple(parts)


# What it needs of the machine.
WORKLOAD_MACHINE = {
    "vmemmap": (
        *("-m", "1536M,slots=1,maxmem=4G", "-object", "memory-backend-ram,id=dimm,size=128M"),
        *("-device", "pc-dimm,memdev=dimm,node=0"),
    ),
    "dax": _nvdimms(2048, 128, 128, 128, 128),
    "leak": ("-device", "virtio-balloon-pci"),
    # A million pages, inodes and dentries.
    "many_files": (
        *("-m", "8704M", "-object", "memory-backend-ram,id=more,size=7168M"),
        *("-numa", "node,nodeid=2,memdev=more"),
    ),
    # Room for a page of 1 GiB, on a node without CPUs.
    "vmemmap_boot": (
        *("-m", "2816M", "-object", "memory-backend-ram,id=huge,size=1280M"),
        *("-numa", "node,nodeid=2,memdev=huge"),
    ),
}
OTHER_MACHINES = {
    ("arm64", "vmemmap_boot"): (
        *("-m", "3584M", "-object", "memory-backend-ram,id=huge,size=2048M"),
        *("-numa", "node,nodeid=2,memdev=huge"),
    ),
}

# Those that stand on x86's memmap= and the drivers of memory that it makes, or on a module that
# is built here.
X86_WORKLOADS = {"vmemmap", "dax", "leak"}

# Modules it needs beside those that every guest loads, in the order in which they are loaded.
WORKLOAD_MODULES = {
    "vmemmap": ("libnvdimm", "nd_btt", "nd_pmem", "nd_e820", "dax_pmem", "device_dax"),
    "dax": ("libnvdimm", "nfit", "nd_btt", "nd_pmem", "dax_pmem", "device_dax"),
    "storage": ("zram",),
    "leak": ("virtio_balloon",),
}
# Folders of modules that are built for it, of a stock kernel; loaded behind the others.
WORKLOAD_BUILT = {"leak": GUEST / "stock"}
# Bytes that a balloon takes out of the guest.
WORKLOAD_BALLOONS = {"leak": 32 << 20}
# Bytes of an empty disk for a workload.
WORKLOAD_DISKS = {"tables": 64 << 20, "ledger": 16 << 20, "storage": 64 << 20}
# What is made on it.
WORKLOAD_FILE_SYSTEMS = {"storage": ("mkfs.ext4", "-q")}

_ELF_HEADER, _ELF_PART = "{}16s2HI3QI6H", "{}2I6Q"
_PT_NOTE, _ELF_BYTES = 4, 64
_HEADER = 256  # guest/truth.c: "FILE <set> <path> <length>", padded


def build_init(
    folder: Path, architecture: Architecture = AMD64, page_bytes: int = PAGE_BYTES
) -> Path:
    """Compile the guest's ``/init`` for kernels with pages of that size into *folder*."""
    init = folder / "init"
    sources = sorted(map(str, GUEST.glob("*.c")))
    options = ("-static", "-O2", "-D_GNU_SOURCE", f"-DPAGE={page_bytes}UL", "-Wall", "-Wextra")
    if shutil.which(architecture.compiler) is None:
        raise LabError(
            f"{architecture.compiler} is not installed: "
            f"apt-get install {architecture.compiler_packages}"
        )
    _tool(architecture.compiler, *options, "-o", str(init), *sources)
    return init


def build_initramfs(folder: Path, init: Path | None, modules: Sequence[Path]) -> Path:
    """
    Pack *init* and *modules* into ``folder/initramfs``.

    The kernel's built-in archive already has ``/dev/console``. Without *init* the kernel finds no
    program to run and panics, which is what one of the tests is about.
    """
    root = folder / "root"
    (root / "modules").mkdir(parents=True)
    if init is not None:
        shutil.copy(init, root / "init")
    for number, module in enumerate(modules):
        # The guest loads them in the order of their names.
        shutil.copy(module, root / "modules" / f"{number:02}-{module.name}")
    names = "".join(f"{path.relative_to(root)}\n" for path in [root, *sorted(root.rglob("*"))])
    archive = folder / "initramfs"
    packed = _tool(
        "cpio",
        "--create",
        "--format=newc",
        "--quiet",
        "--directory",
        str(root),
        stdin=names.encode(),
    )
    archive.write_bytes(packed)
    shutil.rmtree(root)
    return archive


def run(
    kernel: Kernel,
    workload: str,
    folder: Path,
    say: Callable[[str], None],
    *,
    init: Path | None,
    qemu_args: Sequence[str] = (),
    boot_seconds: float = BOOT_SECONDS,
    workload_seconds: float = WORKLOAD_SECONDS,
    dump_seconds: float = DUMP_SECONDS,
    dump: bool = True,
) -> None:
    """
    Boot *kernel*, run *workload*, and leave ``vmcore``, ``truth/A``, ``truth/B`` and
    ``console.log`` in *folder*.

    :param qemu_args: more arguments for QEMU, such as a disk.
    :param dump: whether a vmcore is wanted.
    :raises LabError: the guest dies or a step takes too long; has the console's last lines.
    """
    initramfs = build_initramfs(folder, init, kernel.modules)
    disk = folder / "disk"
    if workload in WORKLOAD_DISKS:
        disk.touch()
        os.truncate(disk, WORKLOAD_DISKS[workload])
        if workload in WORKLOAD_FILE_SYSTEMS:
            _tool(*WORKLOAD_FILE_SYSTEMS[workload], str(disk))
        qemu_args = (*qemu_args, "-drive", f"file={disk},format=raw,if=virtio,cache=unsafe")
    asyncio.run(
        _run(
            kernel,
            workload,
            folder,
            say,
            initramfs,
            qemu_args,
            boot_seconds,
            workload_seconds,
            dump_seconds if dump else 0,
        ),
    )
    initramfs.unlink()
    disk.unlink(missing_ok=True)


async def _run(
    kernel: Kernel,
    workload: str,
    folder: Path,
    say: Callable[[str], None],
    initramfs: Path,
    qemu_args: Sequence[str],
    boot_seconds: float,
    workload_seconds: float,
    dump_seconds: float,
) -> None:
    console = _Console(folder / "console.log", say)
    ours, theirs = (
        socket.socketpair()
    )  # a socket without a path: nothing to clean up, no limit on its length
    arch = kernel.architecture
    options = OTHER_OPTIONS.get((arch.name, workload), WORKLOAD_OPTIONS.get(workload, ""))
    line = f"console={arch.console} {_OPTIONS} {arch.options}"
    command = [
        arch.qemu,
        *arch.machine,
        *("-serial", f"file:{console.path}"),
        *("-chardev", f"socket,id=qmp,fd={theirs.fileno()}", "-mon", "chardev=qmp,mode=control"),
        *("-kernel", str(kernel.vmlinuz), "-initrd", str(initramfs)),
        *("-append", " ".join([line, kernel.options, options, f"lab.workload={workload}"])),
        *OTHER_MACHINES.get((arch.name, workload), WORKLOAD_MACHINE.get(workload, ())),
        *qemu_args,
    ]
    errors = folder / "qemu.log"
    with errors.open("wb") as log:
        if shutil.which(command[0]) is None:
            raise LabError(f"{command[0]} is not installed: apt-get install {arch.qemu_package}")
        qemu = subprocess.Popen(
            [*DIES_WITH_US, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
        )
    theirs.close()
    qmp = QMPClient("lab")
    stop = EventListener(["STOP"])
    try:
        try:
            async with asyncio.timeout(30):
                await qmp.connect(ours)
        except (QMPError, OSError, TimeoutError):
            raise LabError(
                f"QEMU does not start: {errors.read_text(errors='replace').strip()}"
            ) from None
        qmp.register_listener(stop)
        if workload in WORKLOAD_BALLOONS:
            await _inflate(qmp, WORKLOAD_BALLOONS[workload])
        await console.until(lambda: console.seen("up"), "boot", boot_seconds, qemu)
        await console.until(
            lambda: not stop.empty(), f"workload {workload}", workload_seconds, qemu
        )
        console.relay()
        where = re.search(r"recording truth at (0x[0-9a-f]+) size (\d+)", console.text())
        if not where:
            raise LabError(f"the guest stopped without having recorded anything\n{console.tail()}")
        started = time.monotonic()
        raw = folder / "truth.raw"
        # Through the page tables of CPU 0, on which the guest's init runs.
        await _save(qmp, stop, int(where[1], 16), int(where[2]), raw)
        unpack_truth(raw.read_bytes(), folder / "truth")
        raw.unlink()
        if dump_seconds:
            vmcore = folder / "vmcore"
            await _dump(qmp, vmcore, dump_seconds)
            if "vmcoreinfo" not in arch.machine:
                await _add_vmcoreinfo(qmp, folder, vmcore)
            stat = vmcore.stat()
            say(
                f"vmcore: {stat.st_size >> 20} MiB, {stat.st_blocks >> 11} of them on disk, "
                f"in {time.monotonic() - started:.1f} s"
            )
    except QMPError as error:
        raise LabError(f"QEMU refuses: {error}\n{console.tail()}") from error
    finally:
        with contextlib.suppress(QMPError, OSError, EOFError):
            await qmp.disconnect()
        qemu.kill()
        qemu.wait()
    errors.unlink()


async def _dump(qmp: QMPClient, vmcore: Path, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await qmp.execute("dump-guest-memory", {"paging": False, "protocol": f"file:{vmcore}"})
    except TimeoutError:
        raise LabError(f"the dump is not done after {seconds:.0f} s") from None
    # Most of a guest's memory is zeros, which need no room on the disk.
    _tool("fallocate", "--dig-holes", str(vmcore))


async def _add_vmcoreinfo(qmp: QMPClient, folder: Path, vmcore: Path) -> None:
    """
    Give a dump of powerpc the headers that a crash kernel writes, in the order of its bytes.

    QEMU asks what interrupts of a hypervisor would be, which it is itself, and writes headers and
    registers of a big-endian machine (target/ppc/arch_dump.c, 7.2). Registers are left out; the
    note is the guest's VMCOREINFO. There is no room for it but behind the memory.
    """
    where = (folder / "truth/B/sys/kernel/vmcoreinfo").read_text().split()
    address, size = (int(number, 16) for number in where)
    raw = folder / "vmcoreinfo"
    await qmp.execute("pmemsave", {"val": address, "size": size, "filename": str(raw)})
    note = raw.read_bytes()
    raw.unlink()
    name, length, _ = struct.unpack_from("<3I", note)
    note = note[: 12 + (name + 3 & ~3) + (length + 3 & ~3)]
    with vmcore.open("r+b") as file:
        header = [*struct.unpack(_ELF_HEADER.format(">"), file.read(64))]
        offset, each, count = header[5], header[9], header[10]
        file.seek(offset)
        parts = [*struct.iter_unpack(_ELF_PART.format(">"), file.read(each * count))]
        end = file.seek(0, os.SEEK_END)
        parts[0] = (_PT_NOTE, 0, end, 0, 0, len(note), len(note), 4)
        file.write(note + b"".join(struct.pack(_ELF_PART.format("<"), *part) for part in parts))
        header[0] = header[0][:5] + b"\1" + header[0][6:]
        header[5:9] = end + len(note), 0, 0, _ELF_BYTES
        header[11:] = 0, 0, 0  # no sections
        file.seek(0)
        file.write(struct.pack(_ELF_HEADER.format("<"), *header))


async def _inflate(qmp: QMPClient, size: int) -> None:
    """Ask for memory back; the guest's driver gives it when it is loaded."""
    memory = await qmp.execute("query-memory-size-summary")
    assert isinstance(memory, dict)
    await qmp.execute("balloon", {"value": memory["base-memory"] - size})


async def _save(qmp: QMPClient, stop: EventListener, address: int, size: int, file: Path) -> None:
    """
    Write memory of the guest's init to a file.

    An interrupt may have come just before CPU 0 stood still. On arm64 the kernel's part of it may
    not look at a process's memory (PAN), and QEMU reads as the CPU would: it goes on as far as
    init's next word to the device.
    """
    wanted = {"val": address, "size": size, "filename": str(file), "cpu-index": 0}
    for _ in range(5):
        try:
            await qmp.execute("memsave", wanted)
            return
        except ExecuteError as error:
            if "Invalid addr" not in str(error):
                raise
        stop.clear()
        await qmp.execute("cont")
        await stop.get()
    await qmp.execute("memsave", wanted)


def unpack_truth(raw: bytes, folder: Path) -> None:
    """
    Write what the guest recorded as files, ``folder/B/proc/zoneinfo``: a set looks like a root.

    :raises LabError: the recording has no end.
    """
    at = 0
    while (line := raw[at : at + _HEADER])[:4] != b"END\n":
        match = re.fullmatch(rb"FILE ([AB]) (/\S+) (\d+) *\n", line)
        if not match:
            raise LabError(f"the guest's recording breaks off after {at} bytes")
        path, length = PurePosixPath(os.fsdecode(match[2])), int(match[3])
        target = folder / match[1].decode() / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(raw[at + _HEADER : at + _HEADER + length])
        at += _HEADER + length


class _Console:
    """The serial console: a growing file. The lines of our /init are passed on as they come."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self._say = say
        self._passed_on = 0

    def text(self) -> str:
        return self.path.read_text(errors="replace") if self.path.exists() else ""

    def _lines(self) -> list[str]:
        whole_lines = self.text().rpartition("\n")[0]
        # The kernel may print in the middle of a line of ours, never before its start.
        return re.findall(r"lab: (\[ *[\d.]+\] .*)", whole_lines)

    def seen(self, words: str) -> bool:
        return any(line.endswith(f"] {words}") for line in self._lines())

    def relay(self) -> None:
        lines = self._lines()
        for line in lines[self._passed_on :]:
            self._say(f"guest {line.rstrip()}")
        self._passed_on = len(lines)

    def tail(self, count: int = 20) -> str:
        lines = self.text().splitlines()
        return "\n".join(["the console's last lines:", *(f"    {line}" for line in lines[-count:])])

    async def until(
        self, done: Callable[[], bool], what: str, seconds: float, qemu: subprocess.Popen[bytes]
    ) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            self.relay()
            if qemu.poll() is not None:
                raise LabError(f"the guest died during {what}; {self.tail()}")
            if time.monotonic() > deadline:
                raise LabError(f"{what} is not done after {seconds:g} s; {self.tail()}")
            await asyncio.sleep(0.05)


def _tool(*command: str, stdin: bytes = b"") -> bytes:
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, check=True)
    except FileNotFoundError:
        raise LabError(f"{command[0]} is not installed: apt-get install {command[0]}") from None
    except subprocess.CalledProcessError as error:
        raise LabError(
            f"{command[0]} failed:\n{error.stderr.decode(errors='replace').strip()}"
        ) from None
    return done.stdout
