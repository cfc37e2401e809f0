# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A lab vmcore in the formats in which vmcores come: by makedumpfile, which also leaves pages out.

QEMU puts section headers between the ELF header and the program headers; makedumpfile (1.7.2)
takes the latter to follow at once, as in the kernel's own /proc/vmcore. So the core is written
again in that layout first.

Costs: 2 s and 1.5 GiB for that, then 2 to 10 s a format.
"""

import os
import struct
import subprocess
from pathlib import Path
from typing import BinaryIO

from archive import LabError
from capture import Capture

EHDR, PHDR = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ")
NHDR = struct.Struct("<III")
PAGE = 4096


def segments(file: BinaryIO) -> tuple[int, list[list[int]]]:
    """e_machine of an ELF file, and its program headers."""
    file.seek(0)
    header = EHDR.unpack(file.read(EHDR.size))
    file.seek(header[5])
    return header[2], [list(PHDR.unpack(file.read(PHDR.size))) for _ in range(header[10])]


def vmcoreinfo_note(data: bytes) -> tuple[int, int]:
    """Where its text begins in a core's notes, and how long it is: no zero need be behind it."""
    name = data.index(b"VMCOREINFO\0")
    _, size, _ = NHDR.unpack_from(data, name - NHDR.size)
    return name + 12, size


def with_vmcoreinfo(taken: Capture) -> Capture:
    """
    The same, whose core has VMCOREINFO. QEMU puts it there for a guest that has qemu_fw_cfg; that
    of one without is added here, out of the guest's memory.
    """
    with taken.vmcore.open("r+b") as file:
        header = EHDR.unpack(file.read(EHDR.size))
        _, parts = segments(file)
        file.seek(parts[0][2])
        notes = file.read(parts[0][5])
        if b"VMCOREINFO\0" in notes:
            return taken
        said = (taken.truth_b / "sys/kernel/vmcoreinfo").read_text().split()
        address, size = (int(number, 16) for number in said)
        memory = next(p for p in parts[1:] if p[4] <= address < p[4] + p[5])
        file.seek(memory[2] + address - memory[4])
        note = file.read(size)
        begin, length = vmcoreinfo_note(note)
        notes += note[: begin + (length + 3 & ~3)]
        parts[0][2], parts[0][5], parts[0][6] = file.seek(0, os.SEEK_END), len(notes), len(notes)
        file.write(notes)
        file.seek(header[5])
        file.write(PHDR.pack(*parts[0]))
    return taken


def plain_elf(source: Path, target: Path) -> Path:
    """The same core with its program headers where makedumpfile looks for them."""
    with source.open("rb") as old, target.open("wb") as new:
        header = list(EHDR.unpack(old.read(EHDR.size)))
        _, parts = segments(old)
        # e_phoff, e_shoff, e_ehsize; no section headers.
        header[5], header[6], header[8], header[11:14] = EHDR.size, 0, EHDR.size, [0, 0, 0]
        place = EHDR.size + PHDR.size * len(parts)
        for segment in parts:
            place = -(-place // PAGE) * PAGE
            new.seek(place)
            left, offset = segment[5], segment[2]
            while left:
                left_now = os.copy_file_range(
                    old.fileno(), new.fileno(), min(left, 1 << 30), offset, place
                )
                if not left_now:
                    raise LabError(f"{source}: cut short")
                left, offset, place = left - left_now, offset + left_now, place + left_now
            segment[2] = place - segment[5]
        new.truncate(place)
        new.seek(0)
        new.write(EHDR.pack(*header) + b"".join(PHDR.pack(*segment) for segment in parts))
    return target


def makedumpfile(*arguments: str | Path) -> None:
    """
    Run it.

    :raises LabError: it is not installed, or failed.
    """
    try:
        done = subprocess.run(
            ["makedumpfile", *map(str, arguments)], capture_output=True, text=True, timeout=600
        )
    except FileNotFoundError:
        raise LabError("makedumpfile is not installed: apt-get install makedumpfile") from None
    if done.returncode:
        raise LabError(f"makedumpfile {arguments}: {done.stderr.strip()}")
