# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Names that a ``char *`` of the kernel leads to, read no further than a name is long.

A damaged pointer may lead to gigabytes without a NUL.
"""

from drgn import Object

from mmscope.drgn.tables.rows import LONGEST_NAME


def device_numbers(dev: int) -> str:
    """Major and minor of a ``dev_t`` (include/linux/kdev_t.h), as /proc/PID/maps has them."""
    return f"{dev >> 20:02x}:{dev & 0xFFFFF:02x}"


def name_at(pointer: Object) -> str:
    """
    The name that a ``char *`` leads to; of a longer one its begin, which is longer than any name.

    :raises FaultError: it cannot be read.
    """
    name: bytes = pointer.prog_.read_c_string(pointer.value_(), max_size=LONGEST_NAME + 1)
    return name.decode("utf-8", "backslashreplace")
