# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kdump-compressed files by hand, and a library in the place of the one that reads them."""

import ctypes
import struct
from typing import Any

from drgn import PlatformFlags

LITTLE = PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN


def kdump(descriptors: list[tuple[int, int]]) -> bytes:
    """A kdump-compressed file of pages by (offset, size) of their data: headers, two bitmaps."""
    head = b"KDUMP   ".ljust(428, b"\0") + struct.pack("<IIII", 4096, 1, 2, 4096)
    sub = struct.pack("<8xII64xQQQ", 0, 0, 0, 4096, 4096)
    bitmap = ((1 << len(descriptors)) - 1).to_bytes(4096, "little")
    pages = b"".join(struct.pack("<QIIQ", *one, 0, 0) for one in descriptors)
    return head.ljust(4096, b"\0") + sub.ljust(4096, b"\0") + 2 * bitmap + pages + bytes(4096)


class Library:
    """Stands in for libkdumpfile, whose memory is all *byte*."""

    def __init__(self, byte: int = 1, refuses: bytes = b"", new: int | None = 7) -> None:
        self.byte, self.refuses, self.new = byte, refuses, new
        self.keys: list[bytes] = []
        self.reads: list[tuple[int, int, int]] = []
        self.fails = self.short = False
        self.freed: list[int] = []

    def kdump_new(self) -> int | None:
        return self.new

    def kdump_set_attr(self, context: int, key: bytes, attribute: Any) -> int:
        self.keys.append(key)
        return int(key == self.refuses)

    def kdump_read(self, context: int, space: int, address: int, to: int, room: Any) -> int:
        self.reads.append((space, address, room._obj.value))
        if self.fails:
            return 1
        room._obj.value -= self.short
        ctypes.memset(to, self.byte, room._obj.value)
        return 0

    def kdump_free(self, context: int) -> None:
        self.freed.append(context)
