# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Names of the kernel: in a ``char`` array, and those that a ``char *`` leads to, read no further than
a name is long.

A damaged pointer may lead to gigabytes without a NUL.
"""

import numpy as np
from drgn import FaultError, Object, Program

from mmscope.drgn.reading.kernel_arrays import Gaps, U64s
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.tables.rows import LONGEST_NAME

MINOR_BITS = 20  # MINORBITS (include/linux/kdev_t.h)


def device_numbers(dev: int) -> str:
    """Major and minor of a ``dev_t`` (include/linux/kdev_t.h), as /proc/PID/maps has them."""
    return f"{dev >> MINOR_BITS:02x}:{dev & (1 << MINOR_BITS) - 1:02x}"


def disk_numbers(dev: int) -> str:
    """The same in decimal, as /proc/PID/mountinfo and lsblk have them."""
    return f"{dev >> MINOR_BITS}:{dev & (1 << MINOR_BITS) - 1}"


def name_in(array: bytes) -> str:
    """The name in a ``char`` array, up to its first NUL."""
    return array.split(b"\0")[0].decode("utf-8", "backslashreplace")


def name_at(pointer: Object) -> str:
    """
    The name that a ``char *`` leads to; of a longer one its begin, which is longer than any name.

    :raises FaultError: it cannot be read.
    """
    name: bytes = pointer.prog_.read_c_string(pointer.value_(), max_size=LONGEST_NAME + 1)
    return name.decode("utf-8", "backslashreplace")


def names_at(prog: Program, addresses: U64s) -> list[str | None]:
    """
    The names at many addresses, which mostly lie close to each other; None where there is none.

    :param addresses: of ``char`` arrays that end in NUL.
    """
    window = np.dtype(f"V{LONGEST_NAME + 1}")
    unique, back = np.unique(addresses, return_inverse=True)
    raw, read = read_scattered(prog, unique, window, Gaps())
    found: list[str | None] = []
    for address, data, whole in zip(unique.tolist(), raw.tolist(), read.tolist(), strict=True):
        if not whole:  # the last before what is not there
            try:
                data = prog.read_c_string(address, max_size=LONGEST_NAME + 1)
                data += b"\0" * (len(data) <= LONGEST_NAME)
            except (FaultError, OverflowError):
                data = b""
        name, end, _ = bytes(data).partition(b"\0")
        found.append(name.decode("utf-8", "backslashreplace") if end else None)
    return [found[at] for at in back.tolist()]


def nearly(name: str, other: str) -> bool:
    """True if a name is the beginning of another, or one letter off."""
    if len(name) != len(other):
        return other.startswith(name)
    return sum(a != b for a, b in zip(name, other, strict=True)) == 1
