# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A machine of any size whose memory is a sparse file, and that very file as its vmcore.

QEMU's RAM is a file, shared. When the guest has filled itself (``programs/crowd.c``: in proportion
to its size, or with so many processes) it is stopped,
and the file becomes an ELF core where it lies: notes and segments go behind its end, the ELF header
over the first 64 bytes of the memory, which move behind the end as well. Nothing is dumped or
copied, so that what a machine of 64 GiB takes on the disk is what it touched: its struct pages
(1.6 %), its own kernel, and what the guest did.

The segments are those of QEMU's own dumps: ``p_vaddr`` is ``p_paddr``. The notes are QEMU's: a dump
of one page gives them.

Costs: emulation, on one CPU; about a minute for 64 GiB, and 2 % of the machine's memory on disk.
A process more takes 120 KiB.

Cannot: have more than 1,020 GiB, as emulated x86 CPUs have 40 bits of physical address.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import kernels
import machine
from archive import LabError, cache_folder, run
from capture import one_at_a_time
from children import DIES_WITH_US
from qemu.qmp import QMPClient, QMPError
from roles import resolve

CROWD = Path(__file__).resolve().parent / "programs" / "crowd.c"
GIB = 1 << 30
PAGE = 4096
MAX_GIB = 1020
LOW_BYTES = 2 * GIB  # below 4 GiB; what is beyond lies above
HIGH_START = 4 * GIB
BOOT_SECONDS = 3600.0
# Memory is zeros as it comes: what is not needed is not to be touched.
PROCESS_BYTES = 128 << 10  # what one takes, and some more
# no_timer_check: on a busy machine an emulated timer is late.
OPTIONS = "console=ttyS0 panic=-1 no_timer_check init_on_alloc=0 numa_balancing=disable"
OPTIONS += " transparent_hugepage=never"

ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
PT_LOAD, PT_NOTE, ET_CORE, EM_X86_64 = 1, 4, 4, 62


@dataclass(frozen=True)
class SparseMachine:
    """A vmcore and the kernel it is of."""

    gib: int
    vmcore: Path
    vmlinux: Path
    disk_bytes: int  # what the vmcore takes on disk


def many_processes(
    count: int, say: Callable[[str], None] = lambda line: None, kernel: str = "stable"
) -> SparseMachine:
    """
    The vmcore of a machine that runs *count* processes, of ten VMAs each.

    :raises LabError: as :func:`sparse_machine`.
    """
    return sparse_machine(1 - -count * PROCESS_BYTES // GIB, say, kernel, processes=count)


def sparse_machine(
    gib: int,
    say: Callable[[str], None] = lambda line: None,
    kernel: str = "stable",
    *,
    processes: int = 0,
    full: bool = False,
) -> SparseMachine:
    """
    The vmcore of a machine of *gib* GiB, from the cache if there.

    :param processes: so many, and nothing else; by default, what fits its size.
    :param full: two thirds of its memory are in use, not a sixteenth.
    :raises LabError: the kernel cannot be had, the disk is too small, or the guest failed.
    """
    if not 1 <= gib <= MAX_GIB:
        raise LabError(f"a machine of {gib} GiB cannot be emulated: 1 to {MAX_GIB} can")
    kernel = resolve(kernel, say)
    with one_at_a_time():
        booted = kernels.get(kernel, say)
        made_of = hashlib.sha256(booted.vmlinuz.parent.name.encode())
        for source in (CROWD, Path(__file__)):
            made_of.update(source.read_bytes())
        digest = made_of.hexdigest()[:12]
        cores = cache_folder() / "sparse"
        name = f"{kernel}-{processes}-processes" if processes else f"{kernel}-{gib}GiB"
        name += "-full" if full else ""
        folder = cores / f"{name}-{digest}"
        if not folder.exists():
            for older in cores.glob(f"{name}-{'?' * len(digest)}"):
                shutil.rmtree(older)
            _take(booted, gib, processes, full, folder, say)
    vmcore = folder / "vmcore"
    return SparseMachine(gib, vmcore, booted.vmlinux, vmcore.stat().st_blocks * 512)


def _take(
    booted: kernels.Kernel,
    gib: int,
    processes: int,
    full: bool,
    folder: Path,
    say: Callable[[str], None],
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Struct pages, and half as much again.
    wanted = gib * GIB // 45 + processes * PROCESS_BYTES
    if shutil.disk_usage(folder.parent).free < wanted + 2 * GIB:
        raise LabError(f"{folder.parent}: has no {wanted >> 30} GiB free for such a machine")
    # Beside its destination, so that the rename at the end is atomic: it is whole or absent.
    temporary = Path(tempfile.mkdtemp(prefix=".sparse-", dir=folder.parent))
    try:
        say(f"booting {booted.release} with {gib} GiB")
        filling = f"crowd.gib={gib} crowd.full={full:d}"
        if processes:
            # Page table isolation makes each fork dearer.
            filling += f" crowd.processes={processes} mitigations=off"
        init = temporary / "init"
        options = ("-static", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra")
        run("gcc", *options, "-o", str(init), str(CROWD))
        initramfs = machine.build_initramfs(temporary, init, booted.modules)
        asyncio.run(_boot(booted, gib, filling, initramfs, temporary, say))
        init.unlink()
        initramfs.unlink()
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


async def _boot(
    booted: kernels.Kernel,
    gib: int,
    filling: str,
    initramfs: Path,
    folder: Path,
    say: Callable[[str], None],
) -> None:
    ram, console, socket = folder / "vmcore", folder / "console.log", folder / "qmp"
    command = [
        *("qemu-system-x86_64", "-accel", "tcg,thread=single"),
        # An AMD machine's memory jumps over the addresses below 1 TiB.
        # To clear and copy pages byte by byte is slow when emulated.
        *("-cpu", "max,-cx16,-erms,-fsrm,vendor=GenuineIntel", "-smp", "2", "-m", f"{gib}G"),
        *("-machine", f"q35,memory-backend=ram,max-ram-below-4g={LOW_BYTES}"),
        *("-global", "q35-pcihost.pci-hole64-size=0"),
        *("-object", f"memory-backend-file,id=ram,size={gib}G,mem-path={ram},share=on"),
        *("-device", "vmcoreinfo", "-no-reboot", "-nodefaults", "-display", "none"),
        *("-serial", f"file:{console}", "-qmp", f"unix:{socket},server=on,wait=off"),
        *("-kernel", str(booted.vmlinuz), "-initrd", str(initramfs)),
        *("-append", f"{OPTIONS} {booted.options} {filling}"),
    ]
    errors = folder / "qemu.log"
    with errors.open("wb") as log:
        qemu = subprocess.Popen(
            [*DIES_WITH_US, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    qmp = QMPClient("sparse")
    try:
        begin, passed_on = time.monotonic(), 0
        while True:
            text = console.read_text("latin-1") if console.exists() else ""
            lines = [line for line in text.splitlines() if "crowd: " in line]
            for line in lines[passed_on:]:
                say(f"guest {line[line.index('crowd: ') :]}")
            passed_on = len(lines)
            if "crowd: ready" in text:
                break
            if "crowd: FAILED" in text or qemu.poll() is not None:
                raise LabError(f"the guest died: {errors.read_text()}\n{text[-2000:]}")
            if time.monotonic() - begin > BOOT_SECONDS:
                raise LabError(f"the guest is not ready after {BOOT_SECONDS:g} s\n{text[-2000:]}")
            await asyncio.sleep(0.5)
        await qmp.connect(str(socket))
        await qmp.execute("stop")
        small = folder / "small"
        await qmp.execute(
            "dump-guest-memory",
            {"paging": False, "protocol": f"file:{small}", "begin": PAGE, "length": PAGE},
        )
        notes = _notes(small.read_bytes())
        small.unlink()
    except QMPError as error:
        raise LabError(f"QEMU refuses: {error}") from error
    finally:
        with contextlib.suppress(QMPError, OSError, EOFError):
            await qmp.disconnect()
        qemu.kill()
        qemu.wait()
    errors.unlink()
    socket.unlink(missing_ok=True)
    wrap(ram, gib * GIB, notes)
    say(f"vmcore: {gib} GiB, {ram.stat().st_blocks >> 11} MiB on disk")


def _notes(core: bytes) -> bytes:
    """The contents of the PT_NOTE segments of an ELF core."""
    header = ELF_HEADER.unpack_from(core)
    found = b""
    for number in range(header[10]):
        kind, _, offset, _, _, size, _, _ = SEGMENT.unpack_from(
            core, header[5] + number * SEGMENT.size
        )
        if kind == PT_NOTE:
            found += core[offset : offset + size]
    return found


def wrap(ram: Path, size: int, notes: bytes) -> None:
    """
    Make a file with a machine's memory an ELF core, in place.

    Behind the memory: its first page, whose place the ELF header takes; the notes; the segments.
    """
    with ram.open("r+b") as file:
        first_page = file.read(PAGE)
        segments = [
            SEGMENT.pack(PT_NOTE, 0, size + PAGE, 0, 0, len(notes), len(notes), 4),
            _load(size, 0, PAGE),
            _load(PAGE, PAGE, min(size, LOW_BYTES) - PAGE),
        ]
        if size > LOW_BYTES:
            segments.append(_load(LOW_BYTES, HIGH_START, size - LOW_BYTES))
        file.seek(size)
        file.write(first_page + notes + b"".join(segments))
        file.seek(0)
        ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        file.write(
            ELF_HEADER.pack(
                *(ident, ET_CORE, EM_X86_64, 1, 0, size + PAGE + len(notes), 0, 0),
                *(ELF_HEADER.size, SEGMENT.size, len(segments), 0, 0, 0),
            )
        )


def _load(offset: int, address: int, size: int) -> bytes:
    return SEGMENT.pack(PT_LOAD, 0, offset, address, address, size, size, PAGE)
