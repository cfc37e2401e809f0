# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Many small structures that lie strewn over memory, read together.

Objects of one slab cache lie close to each other: sorted by address and read with what is between
them, a few reads fetch thousands. Costs one ``Program.read()`` for each stretch of neighbours, and
memory for the structures that were asked for.

What cannot be read is counted in :class:`Gaps` and marked, never zero.
"""

from typing import Any

import numpy as np
from drgn import FaultError, Program, Type
from numpy.typing import NDArray

from mmscope.drgn.dumps.bulk_reads import read_bytes
from mmscope.drgn.reading.kernel_arrays import Columns, Gaps, laid_out, struct_dtype

# A gap of at most this many bytes between two structures is read too: as cheap as another read.
BETWEEN = 4096
MAX_STRETCH = 1 << 20
TOGETHER = 1 << 15  # structures of which members are read at a time


def read_scattered(
    prog: Program, addresses: NDArray[np.uint64], dtype: np.dtype[Any], gaps: Gaps
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """
    Read a structure at each address.

    :param addresses: virtual, in any order, the same one as often as one likes.
    :return: (the structures, which of them could be read).
    """
    size = dtype.itemsize
    unique, back = np.unique(addresses, return_inverse=True)
    data = np.zeros(len(unique), f"V{size}")
    read = np.zeros(len(unique), np.bool_)
    for first, behind in _stretches(unique, size):
        begin = int(unique[first])
        offsets = (unique[first:behind] - np.uint64(begin)).astype(np.int64)
        try:
            raw = read_bytes(prog, begin, int(offsets[-1]) + size)
        except FaultError:
            for at in range(first, behind):
                try:
                    raw = prog.read(int(unique[at]), size)
                except FaultError:
                    gaps.bytes += size
                else:
                    data[at] = np.frombuffer(raw, data.dtype)[0]
                    read[at] = True
        else:
            read[first:behind] = True
            # A structure at each byte, of which those at the offsets are copied.
            here = np.ndarray(len(raw) - size + 1, data.dtype, raw, strides=(1,))
            data[first:behind] = here[offsets]
    found: NDArray[Any] = np.ndarray(len(unique), dtype, data.view(np.uint8))
    return found[back], read[back]


def read_members(
    prog: Program, addresses: NDArray[np.uint64], type_: Type, columns: Columns, gaps: Gaps
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """
    Read some members of a structure at each address, and keep nothing else of it: for millions.

    :param columns: as :func:`kernel_arrays.struct_dtype` takes them.
    :return: (the members, packed; which of them could be read).
    :raises LookupError: a member is not there.
    """
    dtype = struct_dtype(type_, columns)
    fields = {name: (field[0], field[1]) for name, field in (dtype.fields or {}).items()}
    begin = min(offset for _, offset in fields.values())
    span = laid_out({name: (field[0], field[1] - begin) for name, field in fields.items()})
    found = np.zeros(len(addresses), [(name, format_) for name, (format_, _) in fields.items()])
    read = np.zeros(len(addresses), np.bool_)
    for start in range(0, len(addresses), TOGETHER):
        here = slice(start, start + TOGETHER)
        part, read[here] = read_scattered(prog, addresses[here] + np.uint64(begin), span, gaps)
        for name in fields:
            found[name][here] = part[name]
    return found, read


def _stretches(addresses: NDArray[np.uint64], size: int) -> list[tuple[int, int]]:
    """(index of the first, index behind the last) of addresses that one read fetches."""
    if not len(addresses):
        return []
    near = np.diff(addresses) <= np.uint64(size + BETWEEN)
    # A stretch ends where the next structure is far, and before it becomes too long.
    stretch = np.cumsum(np.concatenate(([0], ~near)))
    starts = addresses[np.searchsorted(stretch, stretch)]
    piece = (addresses - starts) // np.uint64(MAX_STRETCH)
    breaks = np.flatnonzero((np.diff(stretch) != 0) | (np.diff(piece) != 0)) + 1
    firsts = [0, *breaks.tolist()]
    return list(zip(firsts, [*firsts[1:], len(addresses)], strict=True))
