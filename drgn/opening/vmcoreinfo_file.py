# SPDX-License-Identifier: LGPL-2.1-or-later
"""
VMCOREINFO out of a file, for a dump that lacks the note: QEMU's without ``-device vmcoreinfo``.

It is of one boot: it says where that one's kernel lies. Another's leads nowhere, which is noticed.
"""

import re
import struct
from pathlib import Path

from mmscope.drgn.opening import TargetError
from mmscope.drgn.text.plain_file import read_plain

MOST_BYTES = 1 << 20
NAME = b"VMCOREINFO\0"
HEADER = 12  # of an ELF note: the length of its name, of its content, and its type


def read_vmcoreinfo(path: Path) -> bytes:
    """
    The lines of VMCOREINFO, out of a file that has them as text or as an ELF note.

    :raises TargetError: it has neither.
    """
    try:
        data = read_plain(path, MOST_BYTES)
    except OSError as error:
        raise TargetError(f"{path}: cannot be read: {error.strerror}") from error
    at = data.find(NAME)
    if at >= HEADER:
        for order in "<>":
            name, length, _ = struct.unpack_from(f"{order}3I", data, at - HEADER)
            begin = at + (name + 3 & ~3)
            if name == len(NAME) and begin + length <= len(data):
                data = data[begin : begin + length]
                break
    data = data.rstrip(b"\0")
    if not re.search(rb"^OSRELEASE=", data, re.MULTILINE) or b"\0" in data:
        raise TargetError(
            f"{path}: has no VMCOREINFO: neither its lines, OSRELEASE= among them, nor its ELF note"
        )
    return data
