# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine that a dump is of, by its header alone: some cannot be read, whatever they hold."""

import struct
from pathlib import Path

# e_machine of an ELF header (include/uapi/linux/elf-em.h), and the machine of uname.
S390, RISCV, LOONGARCH = 22, 243, 258
NAMES = {S390: "s390x", RISCV: "riscv64", LOONGARCH: "loongarch64"}
# struct disk_dump_header of makedumpfile: signature, version, and a struct new_utsname.
MACHINE_AT, FIELD = 8 + 4 + 4 * 65, 65
EI_DATA, BIG_ENDIAN, ET_CORE = 5, 2, 4


def unreadable_machine(path: Path) -> str | None:
    """Why no memory of this dump can be read, by the machine that it is of; None if it may be."""
    with path.open("rb") as file:
        head = file.read(512).ljust(512, b"\0")
    name, big = "", False
    if head.startswith(b"\x7fELF"):
        big = head[EI_DATA] == BIG_ENDIAN
        kind, machine = struct.unpack_from(">2H" if big else "<2H", head, 16)
        if kind != ET_CORE:
            return None
        name = NAMES.get(machine, "")
    elif head.startswith(b"KDUMP"):
        said = head[MACHINE_AT : MACHINE_AT + FIELD].partition(b"\0")[0].decode("ascii", "replace")
        name = said if said in NAMES.values() else ""
        big = name == "s390x"
    if big:
        said = f"an {name} machine: big-endian" if name else "a big-endian machine"
        return f"of {said}, whose memory cannot be read here"
    if name:
        return f"of a {name} machine, whose addresses drgn cannot translate, nor unwind its stacks"
    return None
