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

from mmscope.drgn.dumps.bulk_reads import read_bytes
from mmscope.drgn.reading.kernel_arrays import (
    Array,
    Bools,
    Columns,
    Gaps,
    S64s,
    U64s,
    laid_out,
    struct_dtype,
)

# A gap of at most this many bytes between two structures is read too: as cheap as another read.
BETWEEN = 4096
MAX_STRETCH = 1 << 20
AT_ONCE = 2 << 20  # bytes, and a stretch more, that are held before what was asked for is copied
TOGETHER = 1 << 15  # structures of which members are read at a time


def read_scattered(
    prog: Program, addresses: U64s, dtype: np.dtype[Any], gaps: Gaps
) -> tuple[Array, Bools]:
    """
    Read a structure at each address.

    :param addresses: virtual, in any order, the same one as often as one likes.
    :return: (the structures, which of them could be read).
    """
    size = dtype.itemsize
    unique, back = np.unique(addresses, return_inverse=True)
    data = np.zeros(len(unique), f"V{size}")
    read = np.zeros(len(unique), np.bool_)
    first, stop = stretches(unique, size, BETWEEN, MAX_STRETCH)
    lengths = unique[stop - 1] - unique[first] + np.uint64(size)
    edges = np.flatnonzero(np.diff(np.cumsum(lengths) // np.uint64(AT_ONCE))) + 1
    for part in map(slice, [0, *edges.tolist()], [*edges.tolist(), len(first)]):
        here = slice(first[part.start], stop[part.stop - 1]) if len(first) else slice(0)
        raw, shifts, whole = read_stretches(prog, unique[first[part]], lengths[part])
        if not whole.all():
            for at in np.flatnonzero(~whole).tolist():
                _read_singly(prog, unique, slice(first[part][at], stop[part][at]), data, read, gaps)
        counts = stop[part] - first[part]
        known = np.repeat(whole, counts)
        read[here] |= known
        # A structure at each byte, of which those at the offsets are copied.
        each = np.ndarray(max(len(raw) - size + 1, 0), data.dtype, raw, strides=(1,))
        data[here][known] = each[(unique[here] + np.repeat(shifts, counts))[known].astype(np.int64)]
    found: Array = np.ndarray(len(unique), dtype, data.view(np.uint8))
    return found[back], read[back]


def _read_singly(
    prog: Program, addresses: U64s, part: slice, data: Array, read: Bools, gaps: Gaps
) -> None:
    """Read what can be read of some structures, and nothing between them."""
    size = data.dtype.itemsize
    for at in range(part.start, part.stop):
        try:
            raw = prog.read(int(addresses[at]), size)
        except FaultError:
            gaps.bytes += size
        else:
            data[at] = np.frombuffer(raw, data.dtype)[0]
            read[at] = True


def read_stretches(
    prog: Program, begins: U64s, lengths: U64s, physical: bool = False
) -> tuple[bytes, U64s, Bools]:
    """
    Read pieces of memory.

    :return: (what could be read, one piece after the other; for each piece, what is to be added
        to an address for its place there; which pieces could be read).
    """
    pieces: list[bytes | memoryview] = []
    whole = np.ones(len(begins), np.bool_)
    # Python's numbers: no end wraps around.
    for at, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        try:
            pieces.append(read_bytes(prog, begin, length, physical))
        except FaultError:
            whole[at] = False
    there = np.where(whole, lengths, np.uint64(0))
    return b"".join(pieces), np.cumsum(there, dtype=np.uint64) - there - begins, whole


def read_members(
    prog: Program, addresses: U64s, type_: Type, columns: Columns, gaps: Gaps
) -> tuple[Array, Bools]:
    """
    Read some members of a structure at each address, and keep nothing else of it: for millions.

    :param columns: as :func:`kernel_arrays.struct_dtype` takes them.
    :return: (the members, packed; which of them could be read).
    :raises LookupError: a member is not there.
    """
    begin, span = span_of(type_, columns)
    found = np.zeros(len(addresses), packed(span))
    read = np.zeros(len(addresses), np.bool_)
    # Large ones take a read each, with how many others it may be.
    together = TOGETHER if span.itemsize < BETWEEN // 2 else max(AT_ONCE // span.itemsize, 1)
    for start in range(0, len(addresses), together):
        here = slice(start, start + together)
        part, read[here] = read_scattered(prog, addresses[here] + np.uint64(begin), span, gaps)
        for name in columns:
            found[name][here] = part[name]
    return found, read


def span_of(type_: Type, columns: Columns) -> tuple[int, np.dtype[Any]]:
    """
    Offset of the part of a structure that has these members, and its dtype.

    :raises LookupError: a member is not there.
    """
    fields = (struct_dtype(type_, columns).fields or {}).items()
    begin = min(field[1] for _, field in fields)
    return begin, laid_out({name: (field[0], field[1] - begin) for name, field in fields})


def packed(span: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype without what is between its fields."""
    return np.dtype([(name, field[0]) for name, field in (span.fields or {}).items()])


def stretches(
    addresses: U64s, size: int, between: int, most: int, step: int = 1
) -> tuple[S64s, S64s]:
    """
    (index of the first, index after the last) of structures that one read fetches.

    :param addresses: ascending.
    :param between: so many bytes may lie between two of them.
    :param most: so long it is at most, but for the last one.
    :param step: such a part of the way between two is whole.
    """
    if not len(addresses):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ways = np.diff(addresses)
    near = (ways <= np.uint64(size + between)) & (ways % np.uint64(step) == 0)
    # A stretch ends where the next structure is far, and before it becomes too long.
    stretch = np.cumsum(np.concatenate(([0], ~near)))
    piece = (addresses - addresses[np.searchsorted(stretch, stretch)]) // np.uint64(most)
    breaks = np.flatnonzero((np.diff(stretch) != 0) | (np.diff(piece) != 0)) + 1
    return np.concatenate(([0], breaks)), np.append(breaks, len(addresses))
