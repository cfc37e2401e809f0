# SPDX-License-Identifier: LGPL-2.1-or-later
"""ELF files made by hand: a vmlinux, and a vmcore that no symbols will ever fit."""

import struct
from collections.abc import Callable

PT_LOAD, PT_NOTE, ET_EXEC, ET_CORE = 1, 4, 2, 4
BUILD_ID = bytes(range(20))


def note(name: bytes, kind: int, data: bytes, order: str = "<") -> bytes:
    padded = [part + bytes(-len(part) % 4) for part in (name, data)]
    return struct.pack(order + "III", len(name), len(data), kind) + b"".join(padded)


def elf(
    kind: int, segments: list[tuple[int, int, bytes]], order: str = "<", machine: int = 62
) -> bytes:
    """
    A 64-bit ELF file, by hand.

    :param segments: (p_type, p_vaddr, what is in it).
    """
    ident = b"\x7fELF" + bytes([2, 1 if order == "<" else 2, 1]) + bytes(9)
    header = ident + struct.pack(
        order + "HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 64, 0, 0
    )
    table, data = b"", b""
    begin = 64 + 56 * len(segments)
    for type_, address, content in segments:
        table += struct.pack(
            order + "IIQQQQQQ", type_, 4, begin + len(data), address, 0, len(content),
            len(content), 4,
        )  # fmt: skip
        data += content
    return header + table + data


def gnu(build: bytes = BUILD_ID, order: str = "<") -> bytes:
    return note(b"stapsdt\0", 3, b"x" * 7, order) + note(b"GNU\0", 3, build, order)


VMLINUX = elf(ET_EXEC, [(PT_LOAD, 0xFFFFFFFF81000000, b"text"), (PT_NOTE, 0, gnu())])


def vmcore(
    build: bytes = BUILD_ID,
    release: str = "7.2.12-test",
    damage: Callable[[str], str] = lambda info: info,
) -> bytes:
    """A core with a VMCOREINFO note and one page of memory, which no symbols will ever fit."""
    info = (
        f"OSRELEASE={release}\nBUILD-ID={build.hex()}\nPAGESIZE=4096\n"
        "SYMBOL(init_uts_ns)=ffffffff82000000\nSYMBOL(swapper_pg_dir)=ffffffff82001000\n"
        "SYMBOL(_stext)=ffffffff81000000\nKERNELOFFSET=0\nNUMBER(phys_base)=0\n"
        "CRASHTIME=1700000000\n"
    )
    return elf(
        ET_CORE,
        [(PT_NOTE, 0, note(b"VMCOREINFO\0", 0, damage(info).encode())), (PT_LOAD, 0, bytes(4096))],
    )
