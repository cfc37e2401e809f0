# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Arrays of kernel structures as numpy columns.

A drgn type and a few member paths become a numpy dtype with the offsets, sizes and signs that
this kernel's DWARF gives them; a range of memory becomes arrays of that dtype, chunk by chunk.
Costs one ``Program.read()`` a chunk and no copy; the columns are views.

Memory that cannot be read (not in the dump, damaged, unmapped) is found by bisection down to one
page, left out, and counted in :class:`Gaps`. It is never read as zero. Memory that drgn itself
fills with zeros (an ELF segment whose ``p_filesz`` is short) looks like zeros here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import FaultError, Program, Type, TypeKind, offsetof, sizeof
from numpy.typing import NDArray

from mmscope.drgn.dumps.bulk_reads import read_bytes

# 2 MiB of struct page (one section's worth on x86-64) is read at full speed and fits a CPU cache's
# neighbourhood; 16 MiB at once is three times slower (measured on a 7.2 vmcore).
CHUNK_BYTES = 2 << 20
PAGE = 4096  # the smallest page that any kernel here has

# What reading fails with where the kernel goes on meanwhile, or in damaged memory.
TORN = (FaultError, LookupError, NotImplementedError, RecursionError, ValueError)

# Arrays, by what the kernel calls what is in them.
U8s = NDArray[np.uint8]
U32s = NDArray[np.uint32]
U64s = NDArray[np.uint64]
S64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Array = NDArray[Any]

Columns = Mapping[str, str | tuple[str, ...]]


@dataclass
class Gaps:
    """
    Memory that could not be read.

    :ivar died: in words, what part of it is missing because the process that read it was killed.
    """

    bytes: int = 0
    died: list[str] = field(default_factory=list)

    @property
    def why(self) -> str:
        """Words that go on from how much it is; none where the memory is at fault."""
        return f" ({'; '.join(self.died)})" if self.died else ""


def distinct(values: Array) -> Array:
    """
    The different values, ascending.

    By sorting: ``np.unique()``, if asked for nothing else, looks for them by a hash table since
    numpy 2.3, which takes ten times as long for a million addresses.
    """
    different, _ = np.unique(values, return_counts=True)
    return different


def spread(starts: S64s, sizes: S64s) -> S64s:
    """All numbers of some ranges: ``starts[0], starts[0] + 1, …``, then those of the next."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()), dtype=np.int64)


def summed_gaps(mine: Gaps, theirs: Gaps) -> Gaps:
    return Gaps(mine.bytes + theirs.bytes, mine.died + theirs.died)


def member_path(type_: Type, paths: str | tuple[str, ...]) -> str:
    """
    The first of *paths* that this kernel's *type_* has; list the newest layout first.

    :raises LookupError: it has none of them.
    """
    candidates = (paths,) if isinstance(paths, str) else paths
    for path in candidates:
        try:
            offsetof(type_, path)
        except (
            LookupError,
            TypeError,
        ):  # no such member, or a plain one where a struct was looked for
            continue
        return path
    raise LookupError(f"{type_.type_name()} has no member {' or '.join(candidates)}")


def _member_type(type_: Type, path: str) -> Type:
    for step in path.split("."):
        name, *indexes = step.split("[")
        type_ = type_.unaliased().member(name).type
        for _ in indexes:
            type_ = type_.unaliased().type
    return type_.unaliased()


def _number_format(member: Type, path: str) -> str:
    """
    Format of a number, as numpy has it.

    :raises TypeError: it is none.
    """
    if member.kind is TypeKind.ENUM and member.type is not None:
        member = member.type.unaliased()
    if member.kind is TypeKind.POINTER:
        sign = "u"
    elif member.kind in (TypeKind.INT, TypeKind.BOOL):
        sign = "i" if member.kind is TypeKind.INT and member.is_signed else "u"
    else:
        raise TypeError(f"{path} is {member.type_name()}, not a number")
    order = "<" if getattr(member, "byteorder", "little") == "little" else ">"
    return f"{order}{sign}{sizeof(member)}"


def bit_field(type_: Type, name: str) -> tuple[int, int]:
    """Bit offset and width of a member, also of unnamed structs inside."""
    for member in type_.members or ():
        if member.name == name:
            return member.bit_offset, member.bit_field_size or 8 * sizeof(member.type)
        if member.name is None:
            try:
                offset, size = bit_field(member.type, name)
            except LookupError:
                continue
            return member.bit_offset + offset, size
    raise LookupError(f"{type_.type_name()} has no member {name}")


def _is_text(member: Type) -> bool:
    return member.kind is TypeKind.ARRAY and member.type.unaliased().type_name() == "char"


def struct_dtype(type_: Type, columns: Columns) -> np.dtype[Any]:
    """
    A numpy dtype that views an array of *type_* as the given columns.

    >>> struct_dtype(prog.type("struct page"), {"flags": ("flags.f", "flags")})

    :param columns: column name to member path (``rss_stat[0].count``), or to several paths, newest
        kernel first.
    :raises LookupError: a column's member is in none of its places.
    :raises TypeError: a member is not a plain integer, enum, bool or pointer, nor an array of char.
    """
    names, formats, offsets = [], [], []
    for name, paths in columns.items():
        path = member_path(type_, paths)
        member = _member_type(type_, path)
        names.append(name)
        if _is_text(member):
            formats.append(f"S{sizeof(member)}")
        else:
            formats.append(_number_format(member, f"{type_.type_name()}.{path}"))
        offsets.append(offsetof(type_, path))
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": sizeof(type_)}
    )


def laid_out(fields: Mapping[str, tuple[Any, int]]) -> np.dtype[Any]:
    """A dtype of fields, (format, offset), that ends with the last of them."""
    return np.dtype(
        {
            "names": list(fields),
            "formats": [format_ for format_, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
        }
    )


def read_array(
    prog: Program,
    address: int,
    count: int,
    dtype: np.dtype[Any],
    gaps: Gaps,
    *,
    physical: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[tuple[int, Array]]:
    """
    Read *count* elements that lie at *address*, in chunks.

    :return: Iterator of (index of the chunk's first element, the elements). What could not be
        read is missing from it and added to *gaps*.
    """
    step = max(chunk_bytes // dtype.itemsize, 1)
    # A damaged pointer may be so near the end of all addresses that the array lies across it.
    there = min(count, max((1 << 64) - address, 0) // dtype.itemsize)
    gaps.bytes += (count - there) * dtype.itemsize
    for first in range(0, there, step):
        yield from _read(prog, address, first, min(step, there - first), dtype, gaps, physical)


def _read(
    prog: Program,
    address: int,
    first: int,
    count: int,
    dtype: np.dtype[Any],
    gaps: Gaps,
    physical: bool,
) -> Iterator[tuple[int, Array]]:
    size = dtype.itemsize
    begin, end = address + first * size, address + (first + count) * size
    try:
        data = read_bytes(prog, begin, count * size, physical)
    except FaultError:
        # A page is the unit in which dumps and page tables have memory or not. Split at the page
        # boundary in the middle; an element that lies across it becomes a range of its own.
        middle = (begin + end) // 2 // PAGE * PAGE
        middle = middle if middle > begin else (begin // PAGE + 1) * PAGE
        if count == 1 or middle >= end:
            gaps.bytes += count * size
            return
        half = max((middle - begin) // size, 1)
        yield from _read(prog, address, first, half, dtype, gaps, physical)
        yield from _read(prog, address, first + half, count - half, dtype, gaps, physical)
    else:
        yield first, np.frombuffer(data, dtype)


def read_whole(prog: Program, address: int, count: int, dtype: np.dtype[Any]) -> Array:
    """
    Read a small array that is of no use in parts.

    :raises FaultError: a part of it cannot be read.
    """
    return np.frombuffer(read_bytes(prog, address, count * dtype.itemsize), dtype)
