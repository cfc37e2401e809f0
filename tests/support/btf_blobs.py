# SPDX-License-Identifier: LGPL-2.1-or-later
"""A writer of BTF (include/uapi/linux/btf.h), for kinds, lengths and headers of any kernel."""

import struct
from collections.abc import Mapping, Sequence

VOID = 0


class BtfBlob:
    """
    Types as they are added: each of these gives its number.

    :param order: ``<`` or ``>``.
    """

    def __init__(self, order: str = "<") -> None:
        self.order, self.types, self.names, self.count = order, b"", b"\0", 0

    def name(self, text: str) -> int:
        if not text:
            return 0
        found = self.names.find(b"\0" + text.encode() + b"\0")
        if found < 0:
            found, self.names = len(self.names) - 1, self.names + text.encode() + b"\0"
        return found + 1

    def add(
        self,
        kind: int,
        name: str = "",
        vlen: int = 0,
        size_or_type: int = 0,
        tail: Sequence[int] = (),
        *,
        flag: bool = False,
    ) -> int:
        """A record of any kind, known or not."""
        info = flag << 31 | kind << 24 | vlen
        words = (self.name(name), info, size_or_type, *tail)
        self.types += struct.pack(f"{self.order}{len(words)}I", *words)
        self.count += 1
        return self.count

    def integer(self, name: str, size: int, *, signed: bool = True) -> int:
        return self.add(1, name, 0, size, [signed << 24 | 8 * size])

    def struct(self, name: str, size: int, members: Mapping[str, tuple[int, int]]) -> int:
        """:param members: the number of the type, and the offset in bytes, of each."""
        tail = [w for m, (of, at) in members.items() for w in (self.name(m), of, 8 * at)]
        return self.add(4, name, len(members), size, tail)

    def blob(
        self, layout: Mapping[int, tuple[int, int]] | None = None, header: int | None = None
    ) -> bytes:
        """
        The whole.

        :param layout: (info_sz, elem_sz) of kinds, for a layout section; those between have none.
        :param header: its length, of which what is not known is 0.
        """
        said = b""
        if layout is not None:
            kinds = range(max(layout) + 1)
            said = b"".join(
                struct.pack(f"{self.order}2BH", *layout.get(k, (0, 0)), 0) for k in kinds
            )
        length = header or (24 if layout is None else 32)
        offsets = (0, len(self.types), len(self.types) + len(said), len(self.names))
        words = (length, *offsets, len(self.types), len(said))
        head = struct.pack(f"{self.order}HBB7I", 0xEB9F, 1, 0, *words)[: min(length, 32)]
        return head.ljust(length, b"\0") + self.types + said + self.names
