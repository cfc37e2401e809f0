# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Many page tables, read level by level.

A walk starts at any number of root tables (a process's ``mm.pgd``, the kernel's ``init_mm.pgd``)
and shows the tables of each level in chunks, an array of entries for each table. The tables that
they lead to are collected, sorted by physical address, and read with one ``Program.read()`` for
those that are near each other: about 400,000 tables a second on a vmcore, where reading entry by
entry does 700. Memory is bounded by the fan-out of one chunk, not by the number of tables: a chunk
is followed down to its last level before the next one is read.

Whatever is in the tables, the walk ends: levels bound its depth, a table that one root leads to
several times is shown once (as far as the walk remembers it: the last million, and PMD tables only
within a chunk, as hugetlb may share them), and a root gets no more tables than it was given. A
table that cannot be read is counted in :class:`Gaps` and not shown. On a live kernel each
run is one instant, the whole is not.

Cannot know: tables that no entry points to, such as those deposited for a huge PMD.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from drgn import Program, ProgramFlags
from drgn.helpers.linux.mm import follow_phys, pfn_to_virt
from numpy.typing import NDArray

from mmscope.drgn.page_tables.page_table_formats import Entries, PageTableFormat
from mmscope.drgn.reading.kernel_arrays import (
    CHUNK_BYTES,
    Array,
    Bools,
    Gaps,
    S64s,
    distinct,
    read_array,
)
from mmscope.drgn.reading.scattered_reads import read_stretches, stretches


def process_roots(prog: Program, pgds: Entries) -> Entries:
    """The physical addresses of root tables that members ``mm.pgd`` point to."""
    # They are in the direct map: all lie off by the same.
    result: Entries = pgds - np.uint64(pfn_to_virt(prog, 0).value_())
    return result


def kernel_root(prog: Program) -> Entries:
    """The physical address of the kernel's own root table, ``init_mm.pgd``, as the only one."""
    init_mm = prog["init_mm"]
    # It is a variable of the kernel's image, which the direct map does not map.
    return np.array([follow_phys(init_mm.address_of_(), init_mm.pgd).value_()], np.uint64)


@dataclass(frozen=True)
class TableChunk:
    """
    Tables of one level that were read together, in the order of their physical addresses.

    The entries are overwritten by those of the next chunk: copy what is to be kept.
    """

    level: int
    roots: NDArray[np.int32]  # index of the root that each table belongs to
    frames: Entries  # its physical address
    addresses: Entries  # the first address that it maps
    entries: Entries  # one row for each table; entries outside of the walked range are 0

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def slots(self) -> int:
        """Entries in each table."""
        return int(self.entries.shape[1])

    @cached_property
    def places(self) -> S64s:
        """Positions of the entries that are not 0, row by row: few in most tables."""
        return np.flatnonzero(self.entries.ravel() != 0)

    def slot_addresses(self, shift: int, rows: Array, slots: Array) -> Entries:
        """The addresses that entries map, as ``np.nonzero(mask)`` names them."""
        result: Entries = self.addresses[rows] + (slots.astype(np.uint64) << np.uint64(shift))
        return result


@dataclass
class Walk:
    """Course of a walk, by root and level."""

    tables: S64s  # [root, level]: that were pointed to, read or not
    unreadable: S64s  # [root, level]: that could not be read
    repeated: S64s  # [root, level]: pointed to once more, and not followed again
    dropped: S64s  # [root]: not followed, as the root has more tables than it may
    gaps: Gaps = field(default_factory=Gaps)
    near: bool = False  # read nothing but tables


# Memory that is read in larger pieces comes fresh from the system each time, and faults.
READ_BYTES = 64 << 10
# Of a dump, so many tables between two are read too: as cheap as another read.
BETWEEN = 1
# The number of a table's root and its address must fit into one sortable word.
MAX_ROOTS = 1 << 12
# How many tables are remembered: 8 MiB, which take no memory before they are written to.
# A prime, so that neither neighbours nor one table's roots take each other's place.
REMEMBERED = (1 << 20) - 3


def walk_page_tables(
    prog: Program,
    form: PageTableFormat,
    roots: Entries,
    walk: Walk,
    *,
    start: int = 0,
    end: int | None = None,
    max_tables: S64s | None = None,
    deepest: int | None = None,
) -> Iterator[TableChunk]:
    """
    Show every table of some roots that maps a part of the addresses from *start* to *end*.

    >>> walk = new_walk(form, 1)
    >>> for chunk in walk_page_tables(prog, form, np.array([root], np.uint64), walk):
    ...     leaves = form.is_leaf(chunk.entries, chunk.level)

    :param roots: physical addresses of root tables, at most :data:`MAX_ROOTS`.
    :param walk: is filled in.
    :param end: none: where the addresses of a process end.
    :param max_tables: for each root, how many tables it may have below its root table; none: as
        many as there are.
    :param deepest: the level of the last tables that are shown; none: those of PTEs.
    """
    if len(roots) > MAX_ROOTS:
        raise ValueError(f"{len(roots)} root tables are more than one walk can take")
    end = form.user_end if end is None else end
    # The upper half of the addresses: tables know only their lower bits.
    prefix = start & ~(form.span - 1)
    if not start < end <= prefix + form.span:
        raise ValueError(f"{start:#x}-{end:#x} is not a range of addresses under one root")
    bounds = (start, end - 1)
    order = np.argsort(roots)
    bases = np.full(len(roots), prefix, np.uint64)
    buffer = np.empty(CHUNK_BYTES // 8, np.uint64)
    # By its key modulo, the last table that was met there: its key, inverted.
    met = np.zeros(REMEMBERED, np.uint64)
    walk.near |= bool(prog.flags & ProgramFlags.IS_LIVE)
    todo = [_Tables(0, order.astype(np.int32), roots[order], bases)]
    walk.tables[:, 0] += 1
    while todo:
        wanted = todo.pop()
        tables_at_once = CHUNK_BYTES // form.table_bytes(wanted.level)
        if len(wanted.frames) > tables_at_once:
            # The rest waits, while the first chunk is followed down.
            todo.append(wanted.part(slice(tables_at_once, None)))
            wanted = wanted.part(slice(tables_at_once))
        chunk = _read_tables(prog, form, wanted, walk, buffer)
        if not len(chunk):
            continue
        _blank_outside(form, chunk, bounds)
        yield chunk
        if chunk.level < (form.last if deepest is None else deepest):
            below = _children(form, chunk, walk, max_tables, met)
            if len(below.frames):
                todo.append(below)


def frames_of_tables(
    prog: Program,
    form: PageTableFormat,
    roots: Entries,
    lowest: int,
    gaps: Gaps,
    start: int = 0,
    end: int | None = None,
) -> S64s:
    """
    Page frames of the tables below some roots, each once.

    :param lowest: the level of the last of them, which are not read.
    :param start: first address that they map; *end*: as for :func:`walk_page_tables`.
    """
    found = [np.empty(0, np.uint64)]
    for first in range(0, len(roots) if lowest > 0 else 0, MAX_ROOTS):
        some = roots[first : first + MAX_ROOTS]
        walk = new_walk(form, len(some))
        for chunk in walk_page_tables(
            prog, form, some, walk, start=start, end=end, deepest=lowest - 1
        ):
            entries = chunk.entries.ravel()[chunk.places]
            found.append(form.physical(entries[form.is_table(entries, chunk.level)]))
        gaps.bytes += walk.gaps.bytes
    return distinct(np.concatenate(found) >> np.uint64(form.page_shift)).astype(np.int64)


def new_walk(form: PageTableFormat, roots: int) -> Walk:
    """Nothing walked yet."""
    counts = (roots, len(form.levels))
    return Walk(
        np.zeros(counts, np.int64),
        np.zeros(counts, np.int64),
        np.zeros(counts, np.int64),
        np.zeros(roots, np.int64),
    )


@dataclass(frozen=True, slots=True)
class _Tables:
    """Tables of one level that are still to be read, ascending."""

    level: int
    roots: NDArray[np.int32]
    frames: Entries
    addresses: Entries

    def part(self, which: Any) -> "_Tables":
        return _Tables(self.level, self.roots[which], self.frames[which], self.addresses[which])


def _read_tables(
    prog: Program, form: PageTableFormat, wanted: _Tables, walk: Walk, buffer: Entries
) -> TableChunk:
    """Read tables, those that can be, into a buffer."""
    slots = form.slots(wanted.level)
    frames, back = np.unique(wanted.frames, return_inverse=True)
    table = np.dtype((">u8" if form.powerpc else "<u8", (slots,)))
    entries = buffer[: len(frames) * slots].reshape(-1, slots)
    read = np.zeros(len(frames), np.bool_)
    first, stop = _stretches(frames, table.itemsize, 0 if walk.near else BETWEEN)
    lengths = frames[stop - 1] - frames[first] + np.uint64(table.itemsize)
    raw, shifts, whole = read_stretches(prog, frames[first], lengths, physical=True)
    for at in np.flatnonzero(~whole).tolist():
        # Where pages are left out of a dump, those beside a table may be.
        part = slice(first[at], stop[at])
        walk.near |= (part.stop - part.start) * table.itemsize < lengths[at]
        _read_runs(prog, frames, part, table, entries, read, walk.gaps)
    counts = stop - first
    known = np.repeat(whole, counts)
    read |= known
    places = (frames + np.repeat(shifts, counts)) // np.uint64(table.itemsize)
    _place(np.frombuffer(raw, table), places.astype(np.int64), known, entries)
    if len(frames) < len(back):  # a table of several roots
        entries = entries[back]
    if not read.all():
        readable = read[back]
        walk.unreadable[:, wanted.level] += _by_root(walk, wanted.roots[~readable])
        wanted = wanted.part(readable)
        entries = entries[readable]
    return TableChunk(wanted.level, wanted.roots, wanted.frames, wanted.addresses, entries)


def _stretches(frames: Entries, size: int, between: int) -> tuple[S64s, S64s]:
    """Tables that are read together; so many more may lie between two of them."""
    return stretches(frames, size, between * size, READ_BYTES, size)


def _place(tables: Entries, numbers: S64s, whole: Bools, entries: Entries) -> None:
    """
    Put tables where they belong.

    :param numbers: which of *tables* each is; of those that are not *whole*, none.
    """
    if len(tables) and whole.all() and tables.dtype.isnative:
        # All are there: to clip, and not to check, needs no copy on the way.
        np.take(tables, numbers, 0, entries, "clip")
    else:
        entries[whole] = tables[numbers[whole]]


def _read_runs(
    prog: Program,
    frames: Entries,
    part: slice,
    table: np.dtype[Any],
    entries: Entries,
    read: Bools,
    gaps: Gaps,
) -> None:
    """Read what can be read of some tables, and nothing between them."""
    for first, stop in zip(*_stretches(frames[part], table.itemsize, 0), strict=True):
        begin, count = int(part.start + first), int(stop - first)
        for at, data in read_array(prog, int(frames[begin]), count, table, gaps, physical=True):
            entries[begin + at : begin + at + len(data)] = data
            read[begin + at : begin + at + len(data)] = True


def _blank_outside(form: PageTableFormat, chunk: TableChunk, bounds: tuple[int, int]) -> None:
    """Take out the entries that map nothing between the first and the last wanted address."""
    shift = form.levels[chunk.level].shift
    first, last = (np.uint64(bound >> shift << shift) for bound in bounds)
    table_bytes = np.uint64(chunk.slots - 1) << np.uint64(shift)
    outer = (chunk.addresses < first) | (chunk.addresses + table_bytes > last)
    # Most are root tables, all of the same addresses.
    for address in distinct(chunk.addresses[outer]):
        slots = address + (np.arange(chunk.slots, dtype=np.uint64) << np.uint64(shift))
        rows = np.flatnonzero(chunk.addresses == address)
        chunk.entries[np.ix_(rows, np.flatnonzero((slots < first) | (slots > last)))] = 0


def _children(
    form: PageTableFormat, chunk: TableChunk, walk: Walk, max_tables: S64s | None, met: Entries
) -> _Tables:
    """The tables that a chunk's entries lead to, each once for each root."""
    below = chunk.level + 1
    entries = chunk.entries.ravel()[chunk.places]
    leading = form.is_table(entries, chunk.level)
    rows, slots = np.divmod(chunk.places[leading], chunk.slots)
    frames = form.physical(entries[leading])
    roots = chunk.roots[rows]
    # No table is smaller than 256 bytes: below its address there is room for a root.
    keys = frames << np.uint64(4) | roots.astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    again = np.zeros(len(keys), np.bool_)
    again[1:] = keys[1:] == keys[:-1]
    if below != form.last - 1:
        # Above the address there is room for the level.
        keys |= np.uint64(below << 56)
        place = keys % np.uint64(REMEMBERED)
        again |= met[place] == ~keys
        met[place] = ~keys
    walk.repeated[:, below] += _by_root(walk, roots[order[again]])
    order = order[~again]
    if max_tables is not None:
        full = walk.tables[:, 1:].sum(axis=1) + _by_root(walk, roots[order]) > max_tables
        if full.any():
            out = full[roots[order]]
            walk.dropped += _by_root(walk, roots[order[out]])
            order = order[~out]
    walk.tables[:, below] += _by_root(walk, roots[order])
    shift = form.levels[chunk.level].shift
    addresses = chunk.slot_addresses(shift, rows[order], slots[order])
    return _Tables(below, roots[order], frames[order], addresses)


def _by_root(walk: Walk, roots: NDArray[np.int32]) -> S64s:
    """Number of some tables, by root."""
    return np.bincount(roots, minlength=len(walk.dropped))
