# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page tables that no process has: of virtual machines (EPT, NPT) and of Intel's IOMMUs. Tables of 512
entries, in the direct map, that are followed from their roots down, as the hardware does.
"""

from collections.abc import Iterator

import numpy as np
from drgn import Program
from drgn.helpers.linux.mm import pfn_to_virt

from mmscope.drgn.holders.holdings import Holdings
from mmscope.drgn.reading.kernel_arrays import S64s, U64s, distinct
from mmscope.drgn.reading.scattered_reads import read_scattered

MOST_TABLES = 1 << 24
LEVELS = 5
TABLE = np.dtype([("entries", "<u8", (512,))])
# Of an entry that leads to a table: present (any of read, write, execute); not a large page.
PRESENT, LARGE = np.uint64(7), np.uint64(1 << 7)
FRAME, SHIFT = np.uint64((1 << 52) - 1), np.uint64(12)


def tables_below(
    prog: Program, tables: U64s, levels: U64s, found: Holdings, what: str
) -> Iterator[U64s]:
    """
    Tables, and those that they lead to: their addresses, level by level.

    :param tables: virtual addresses; *levels*: of each, 1 the last.
    :param what: they are of, if they are too many.
    """
    direct = np.uint64(pfn_to_virt(prog, 0).value_())
    left = MOST_TABLES
    for level in range(LEVELS, 0, -1):
        here = tables[levels == level]
        tables, levels = tables[levels != level], levels[levels != level]
        left -= len(here)
        if left < 0:
            found.missing.append(f"{what}: more than {MOST_TABLES:,} tables")
            return
        yield here
        if level > 1 and len(here):
            rows, read = read_scattered(prog, here, TABLE, found.gaps)
            entries = rows["entries"][read].ravel()
            entries = entries[((entries & PRESENT) != 0) & ((entries & LARGE) == 0)]
            frames = distinct(frames_of(prog, entries)).astype(np.uint64)
            tables = np.append(tables, (frames << SHIFT) + direct)
            levels = np.append(levels, np.full(len(frames), level - 1, np.uint64))


def frames_of(prog: Program, words: U64s) -> S64s:
    """Page frames of physical addresses, which may have flags, and the bit of encrypted memory."""
    encrypted = np.uint64(prog["sme_me_mask"].value_() if "sme_me_mask" in prog else 0)
    return ((words & FRAME & ~encrypted) >> SHIFT).astype(np.int64)
