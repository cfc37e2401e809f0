# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The stack depot (lib/stackdepot.c): every saved stack trace of page_owner, SLUB tracks, KASAN.

Reads all pools (``stack_pools``; ``stack_slabs`` before v6.3), 16 KiB each and at most 8192 of them
(128 MiB), and finds the records in them by a property that only they have: a record carries its own
handle, and the handle says where the record lies. So no list has to be followed, no record size
guessed, and damage harms one record. Measured: 10,000 records in 3 ms; a walk of the hash table
with one read a record takes a hundred times as long.

A record is believed if its handle is its place, it has 1 to 64 frames, and it ends inside its pool
and before the next one begins. The others are counted.

Cannot know: stacks that the depot had no room for (handle 0), and functions that the compiler
inlined: frames are what the kernel's unwinder saved.
"""

import contextlib
from dataclasses import dataclass, field

import numpy as np
from drgn import Program, TypeKind, offsetof
from numpy.typing import NDArray

from mmscope.drgn.reading.kernel_arrays import (
    Array,
    Bools,
    Gaps,
    S64s,
    U32s,
    U64s,
    read_array,
    read_whole,
)
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.symbols import frame_names

# Macros, the same from 5.10 to 7.3: DEPOT_POOL_ORDER (STACK_ALLOC_ORDER), DEPOT_STACK_ALIGN, and
# the default of CONFIG_STACKDEPOT_MAX_FRAMES, which newer kernels have as the length of an array.
POOL_ORDER = 2
ALIGN_SHIFT = 4
MAX_FRAMES = 64
POOLS_AT_ONCE = 128  # 2 MiB


@dataclass(frozen=True, slots=True)
class StackDepot:
    """Records of the stack depot, ascending by handle."""

    handles: U32s  # without the extra bits
    sizes: S64s  # frames of each
    first: S64s  # where each one's frames begin in `frames`
    frames: U64s  # return addresses, the leaf first
    counts: NDArray[np.int32] | None  # stack_record.count; None before v6.9
    addresses: U64s  # of the struct stack_records
    pools: int
    extra_mask: int  # bits of a handle that belong to its user
    damaged: int = 0  # records that are not believed
    freed: int = 0  # records that were evicted
    gaps: Gaps = field(default_factory=Gaps)

    def find(self, handles: U32s) -> S64s:
        """The position of each handle's record; -1 where the depot has none."""
        return find(self.handles, handles & np.uint32(~self.extra_mask & 0xFFFFFFFF))


def stack_depot(prog: Program) -> StackDepot:
    """
    Read every record of the depot.

    :raises LookupError: the kernel has no stack depot (CONFIG_STACKDEPOT), or did not use it.
    :raises FaultError: its variables cannot be read.
    """
    layout = _layout(prog)
    gaps = Gaps()
    pools = pool_addresses(prog)
    units = 1 << (prog["PAGE_SHIFT"].value_() + POOL_ORDER - ALIGN_SHIFT)
    parts = []
    damaged = freed = 0
    unit = np.dtype(("<u4", (4,)))
    for number in range(0, len(pools), POOLS_AT_ONCE):
        group = pools[number : number + POOLS_AT_ONCE]
        words = np.zeros((len(group), units, 4), "<u4")
        known = np.zeros((len(group), units), np.bool_)
        for row, (_, address) in enumerate(group):
            for start, read in read_array(prog, address, units, unit, gaps):
                words[row, start : start + len(read)] = read
                known[row, start : start + len(read)] = True
        part, bad, gone = _records(words, known, group, layout)
        damaged += bad
        freed += gone
        parts.append(part)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    handles, sizes, counts, addresses, frames = columns
    begin = _starts(sizes)
    order = np.argsort(handles, kind="stable")
    return StackDepot(
        handles=handles[order],
        sizes=sizes[order],
        first=begin[order],
        frames=frames,
        counts=counts[order] if layout.count is not None else None,
        addresses=addresses[order],
        pools=len(pools),
        extra_mask=layout.extra_mask,
        damaged=damaged,
        freed=freed,
        gaps=gaps,
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """Offsets in ``struct stack_record`` and the bits of ``union handle_parts``."""

    size: int
    handle: int
    count: int | None
    entries: int
    max_frames: int
    pool_shift: int
    offset_shift: int
    valid: int  # a bit that is always set, up to v6.7
    extra_mask: int
    biases: tuple[int, ...]  # what a handle's pool field adds to the pool's number


def _layout(prog: Program) -> _Layout:
    try:
        record = prog.type("struct stack_record")
        parts = prog.type("union handle_parts")
    except LookupError:
        raise LookupError("this kernel is built without a stack depot") from None
    fields = {}
    for member in parts.members or ():
        for bits in member.type.members or () if member.name is None else ():
            mask = (1 << (bits.bit_field_size or 0)) - 1
            fields[bits.name] = ((member.bit_offset + bits.bit_offset), mask)
    # "lib/stackdepot: rename slab to pool" (961c949b012f, in v6.3); "stackdepot: rename pool_index
    # to pool_index_plus_1" (a6c1d9cb9a68, in v6.9), whose meaning had changed before its name
    # (6.8.3): both are tried.
    all_biases = {"pool_index_plus_1": (1,), "pool_index": (0, 1), "slabindex": (0,)}
    name = next((name for name in all_biases if name in fields), None)
    if name is None:
        raise LookupError("union handle_parts has no pool index")
    # The most frames that a record may have: the length of its array, which is 1 in 5.10 and says
    # nothing there, nor where it has none.
    length = record.member("entries").type.length or 0
    extra_shift, extra_mask = fields.get("extra", (0, 0))
    valid_shift, valid_mask = fields.get("valid", (0, 0))
    return _Layout(
        offsetof(record, "size"),
        offsetof(record, "handle"),
        # "lib/stackdepot: add refcount for records" (410b764f89f5, in v6.8)
        offsetof(record, "count") if record.has_member("count") else None,
        offsetof(record, "entries"),
        length if length > 1 else MAX_FRAMES,
        fields[name][0],
        fields["offset"][0],
        valid_mask << valid_shift,
        extra_mask << extra_shift,
        all_biases[name],
    )


def pool_addresses(prog: Program) -> list[tuple[int, int]]:
    """
    (number, address) of every pool in use.

    :raises LookupError: this kernel has no stack depot.
    """
    try:
        table = prog.variable("stack_pools", "stackdepot.c")
    except LookupError:
        table = prog.variable("stack_slabs", "stackdepot.c")
    if table.type_.kind is TypeKind.POINTER:
        # An allocated array of stack_max_pools, seen in v7.2.
        address = table.value_()
        length = prog.variable("stack_max_pools", "stackdepot.c").value_()
    else:
        address = table.address_
        length = table.type_.length
    used = min(_pools_in_use(prog), length)
    # A NULL pointer does not fault in every core (QEMU's give p_vaddr = p_paddr).
    if not address or used <= 0:
        raise LookupError("the stack depot is empty: nothing that saves stacks is switched on")
    pointers = read_whole(prog, address, used, np.dtype("<u8"))
    found = [(number, pointer) for number, pointer in enumerate(pointers.tolist()) if pointer]
    if not found:
        raise LookupError("the stack depot is empty: nothing that saves stacks is switched on")
    return found


def _pools_in_use(prog: Program) -> int:
    # Since v6.8 they are counted; before, it is the number of the last one, which is 0 also when
    # there is none.
    for name, more in (("pools_num", 0), ("pool_index", 1), ("depot_index", 1)):
        with contextlib.suppress(LookupError):
            return int(prog.variable(name, "stackdepot.c").value_()) + more
    raise LookupError("the stack depot does not say how many pools it has")


def _records(
    pools: U32s, known: Bools, places: list[tuple[int, int]], layout: _Layout
) -> tuple[tuple[Array, ...], int, int]:
    """
    The records of some pools.

    :param pools: words, by pool, 16-byte unit, word in the unit.
    :param known: which units could be read.
    :param places: number and address of each pool.
    :return: (handle, size, count, address, frames), how many are damaged, how many were evicted.
    """
    units = known.shape[1]
    numbers = np.array([number for number, _ in places], np.int64)[:, None]
    unit = np.arange(units - layout.entries // 16, dtype=np.int64)
    own = pools[:, layout.handle // 16 :][:, : len(unit), layout.handle % 16 // 4]
    own = own & np.uint32(~layout.extra_mask & 0xFFFFFFFF)
    pool, at = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for bias in layout.biases:
        expected = unit << layout.offset_shift | (numbers + bias) << layout.pool_shift
        matches = (own == (expected | layout.valid)) & known[:, : len(unit)]
        if np.count_nonzero(matches) > len(at):
            pool, at = np.nonzero(matches)
    words = pools.reshape(-1)
    word = (pool * units + at) * 4
    sizes = words[word + layout.size // 4].astype(np.int64)
    if layout.count is None:
        counts = np.zeros(len(at), np.int32)
        evicted = np.zeros(len(at), np.bool_)
    else:
        counts = words[word + layout.count // 4].view(np.int32)
        evicted = counts == 0
    # It must end before the next one begins, and all of its units must have been read.
    ends = -(-(at * 16 + layout.entries + np.clip(sizes, 0, layout.max_frames) * 8) // 16)
    limit = np.full(len(at), units)
    limit[:-1][pool[1:] == pool[:-1]] = at[1:][pool[1:] == pool[:-1]]
    sound = (sizes >= 1) & (sizes <= layout.max_frames) & (ends <= limit)
    unread = np.append(0, np.cumsum(~known.reshape(-1)))
    begin = pool * units
    sound &= unread[begin + np.minimum(ends, units)] == unread[begin + at]
    good = np.flatnonzero(sound & ~evicted)
    sizes = sizes[good]
    first = (word[good] * 4 + layout.entries) // 8
    frames = words.view("<u8")[
        np.repeat(first - _starts(sizes), sizes) + np.arange(int(sizes.sum()))
    ]
    bases = np.array([address for _, address in places], np.uint64)
    addresses = bases[pool[good]] + at[good].astype(np.uint64) * np.uint64(16)
    return (
        (own[pool[good], at[good]], sizes, counts[good], addresses, frames),
        int(np.count_nonzero(~sound & ~evicted)),
        int(np.count_nonzero(evicted)),
    )


def _starts(sizes: S64s) -> S64s:
    """Starts of consecutive runs of these sizes."""
    starts = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1], out=starts[1:])
    return starts


def folded_stacks(prog: Program, depot: StackDepot, handles: U32s) -> list[str | None]:
    """
    The stack of each handle, folded: ``root;…;leaf``; None where the depot does not have it.

    Every distinct return address is looked up once.
    """
    if not len(depot.handles):
        return [None] * len(handles)
    position = depot.find(handles)
    held = position >= 0
    sizes = np.where(held, depot.sizes[position], 0)
    begin = np.repeat(depot.first[position] - _starts(sizes), sizes)
    frames = depot.frames[begin + np.arange(int(sizes.sum()))]
    distinct, which = np.unique(frames, return_inverse=True)
    names = frame_names(prog, distinct)
    ends = np.cumsum(sizes).tolist()
    leaf_first = which.tolist()
    stacks: list[str | None] = []
    start = 0
    for end, known in zip(ends, held.tolist(), strict=True):
        stack = ";".join([names[at] for at in reversed(leaf_first[start:end])])
        stacks.append(stack if known else None)
        start = end
    return stacks
