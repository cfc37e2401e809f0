# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Who allocated the slab objects: SLUB's user tracks (``struct track``, mm/slub.c).

With SLAB_STORE_USER (boot with ``slab_debug=U``; ``slub_debug=U`` before v6.9; one cache alone:
``slab_debug=U,dentry``) every object is followed by two tracks, of its last allocation and its last
free, each with a stack depot handle; in kmalloc caches these are followed by the size that was
asked for (v6.1). Before "mm/slub: use stackdepot to save stack trace in objects" (5cf909c553e9, in
v5.19) a track has the stack itself, of 16 frames at most. Every slab of such caches is read once,
whole, and taken apart by numpy: 3 µs an object where caches are small, less where they are large.

An object counts if it is not on its slab's freelist (whose pointers are obfuscated with
CONFIG_SLAB_FREELIST_HARDENED). What then counts as allocated must be ``slab.inuse``; slabs where it
is not are counted and shown.

Cannot know: allocations from caches without tracks, kmalloc beyond the largest cache, and KFENCE's
objects. The text that says the same is /sys/kernel/debug/slab/CACHE/alloc_traces (root; v5.14).
"""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from drgn import FaultError, Program, offsetof, sizeof
from drgn.helpers.linux.mm import pfn_to_virt
from numpy.typing import NDArray

from mmscope.drgn.owners.page_owner import depot_of
from mmscope.drgn.owners.slab_caches import (
    Cache,
    SlabCheck,
    SlabChunk,
    SlabFinder,
    SlabScan,
    caches_once,
    scan_slabs,
)
from mmscope.drgn.owners.slab_cgroups import SlabCgroups
from mmscope.drgn.reading.kernel_arrays import Gaps, distinct
from mmscope.drgn.reading.stack_depot import StackDepot, folded_stacks
from mmscope.drgn.reading.symbols import frame_names
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table
from mmscope.drgn.text.kernel_text import printed_number, row_number, whole_lines

# Slabs are read in groups: each costs some numpy calls for every cache that is in it.
GROUP_BYTES = 8 << 20

NO_TRACK = "(no track)"
NO_STACK = "(not in the stack depot)"


@table_row
class SlabOwnerStack:
    """The objects of one cache that one allocation stack holds."""

    cache: str = column(holds="kernel", key=True, help="slab cache")
    handle: int | None = column(
        key=True,
        help="stack depot handle; 0: no stack was saved; empty: neither the text nor a kernel "
        "that keeps the stack with the object (before v5.19) has any",
    )
    stack: str = column(
        holds="kernel",
        key=True,
        help="root;…;leaf; without a stack, the caller alone where that is known",
    )
    objects: int = column(help="objects allocated and not freed")
    bytes: int | None = column(unit="bytes", help="objects times the cache's object size")
    requested_bytes: int | None = column(
        unit="bytes", help="what was asked for; kmalloc caches only"
    )


SLAB_OWNER_STACKS = Table(
    "slab_owner_stacks",
    "Slab objects by allocation stack",
    SlabOwnerStack,
    lasting=("cache", "stack"),
)


@dataclass
class SlabOwners:
    """What the tracks of all slabs say."""

    scan: SlabScan
    # (position of the cache, handle or, where that is 0, the caller) to objects, requested bytes
    # Of a kernel without handles, the number of the stack in `stacks`, which begin at 1.
    counts: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    problems: dict[tuple[int, str], list[int]] = field(default_factory=dict)  # slabs, objects
    gaps: Gaps = field(default_factory=Gaps)
    stacks: dict[bytes, int] = field(default_factory=dict)  # of tracks without a handle

    def problem(self, cache: int, words: str, slabs: int, objects: int) -> None:
        entry = self.problems.setdefault((cache, words), [0, 0])
        entry[0] += slabs
        entry[1] += objects


@dataclass(frozen=True, slots=True)
class _Tracks:
    """Where a track has what."""

    size: int
    addr: int
    handle: int
    extra_mask: int
    frames: int  # of a stack that is there itself, at `handle`; 0: a handle


def tracks_have_stacks(prog: Program) -> bool:
    """True if ``struct track`` has the stacks themselves, and no handles."""
    return bool(prog.type("struct track").has_member("addrs"))


def _tracks(prog: Program, depot: StackDepot | None) -> _Tracks:
    track = prog.type("struct track")
    member = "handle" if depot is not None else "addrs"
    frames = 0 if depot is not None else track.member("addrs").type.length or 0
    return _Tracks(
        sizeof(track),
        offsetof(track, "addr"),
        offsetof(track, member),
        depot.extra_mask if depot is not None else 0,
        frames,
    )


def slab_owners(
    prog: Program,
    depot: StackDepot | None,
    *,
    found: tuple[SlabFinder, Gaps] | None = None,
    also: Callable[[SlabScan, SlabChunk], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SlabOwners:
    """
    Count the allocated objects of every cache by their allocation track.

    :param depot: none where tracks have the stacks themselves (:func:`tracks_have_stacks`).
    :param found: the slabs, by a pass that went before.
    :param also: is shown the slabs too.
    :param progress: called with (pages done, pages in all).
    :raises LookupError: the kernel's layout is unknown, or its tracks have no stacks.
    """
    tracks = _tracks(prog, depot)
    page_shift = np.uint64(prog["PAGE_SHIFT"].value_())
    direct_map = np.uint64(pfn_to_virt(prog, 0).value_())
    owners: SlabOwners | None = None

    def take(scan: SlabScan, chunk: SlabChunk) -> None:
        nonlocal owners
        if also:
            also(scan, chunk)
        if owners is None:
            owners = SlabOwners(scan)
        wanted = _tracked_slabs(scan, chunk)
        sizes = np.array([cache.size for cache in scan.caches], np.int64)
        lengths = chunk.objects[wanted] * sizes[chunk.caches[wanted]]
        group = np.cumsum(lengths) // GROUP_BYTES
        for number in distinct(group).tolist():
            part = group == number
            slabs = wanted[part]
            data, starts, read = _read_slabs(
                prog, chunk.pfns[slabs] << int(page_shift), lengths[part], owners.gaps
            )
            for index in distinct(chunk.caches[slabs]).tolist():
                mine = chunk.caches[slabs] == index
                if (unread := int(np.count_nonzero(mine & ~read))) > 0:
                    lost = int(chunk.inuse[slabs[mine & ~read]].sum())
                    owners.problem(index, "could not be read", unread, lost)
                mine &= read
                if mine.any():
                    pick = slabs[mine]
                    read_slabs = _Slabs(
                        data,
                        starts[mine],
                        direct_map + (chunk.pfns[pick].astype(np.uint64) << page_shift),
                        chunk.objects[pick],
                        chunk.inuse[pick],
                        chunk.freelists[pick],
                    )
                    _count_objects(owners, index, tracks, read_slabs)

    scan = scan_slabs(prog, take, found=found, progress=progress)
    return owners or SlabOwners(scan)


def _tracked_slabs(scan: SlabScan, chunk: SlabChunk) -> NDArray[np.intp]:
    """
    The slabs of caches with tracks, by index.

    Not those with a number of objects that their cache does not make: they are KFENCE's, or
    damaged, and ``slab_caches()`` shows them.
    """
    tracked = np.array([cache.store_user for cache in scan.caches], np.bool_)
    plausible = np.zeros(len(chunk.pfns), np.bool_)
    for index in distinct(chunk.caches).tolist():
        here = chunk.caches == index
        plausible |= here & np.isin(chunk.objects, list(scan.caches[index].orders))
    return np.flatnonzero(tracked[chunk.caches] & plausible)


def _read_slabs(
    prog: Program, addresses: NDArray[np.int64], lengths: NDArray[np.int64], gaps: Gaps
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.bool_]]:
    """
    Read slabs one behind the other into one array.

    :param addresses: physical, ascending.
    :return: the words, where each slab starts in them, which slabs could be read.
    """
    # A slab may not fill its last page; a word behind the last object is never looked at.
    starts = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], out=starts[1:])
    buffer = bytearray(int(lengths.sum()))
    read = np.ones(len(lengths), np.bool_)
    for at, (address, start, length) in enumerate(
        zip(addresses.tolist(), starts.tolist(), lengths.tolist(), strict=True)
    ):
        try:
            buffer[start : start + length] = prog.read(address, length, True)
        except FaultError:
            read[at] = False
            gaps.bytes += length
    return np.frombuffer(buffer, "<u8"), starts, read


@dataclass(frozen=True, slots=True)
class _Slabs:
    """
    Slabs of one cache whose memory was read: an item a slab, but for ``data``.

    :ivar data: memory, as words.
    :ivar starts: where the slab is in it.
    :ivar bases: its virtual address.
    """

    data: NDArray[np.uint64]
    starts: NDArray[np.int64]
    bases: NDArray[np.uint64]
    objects: NDArray[np.int64]
    inuse: NDArray[np.int64]
    freelists: NDArray[np.uint64]


def _count_objects(owners: SlabOwners, index: int, tracks: _Tracks, slabs: _Slabs) -> None:
    """Count the objects of some slabs of one cache."""
    data, starts = slabs.data, slabs.starts
    cache = owners.scan.caches[index]
    info_end = cache.inuse + (8 if cache.offset >= cache.inuse else 0)  # get_info_end()
    if (cache.size | cache.red_left_pad | info_end | cache.offset | tracks.size) % 8:
        owners.problem(index, "objects are not aligned", len(starts), int(slabs.inuse.sum()))
        return
    allocated, broken = _allocated(cache, slabs)
    if broken:
        owners.problem(index, "freelist leads out of the slab or in a circle", broken, 0)
    differ = allocated.sum(1) != slabs.inuse
    if differ.any():
        missing = int(np.abs(allocated.sum(1) - slabs.inuse)[differ].sum())
        words = "objects off the freelist are not inuse"
        owners.problem(index, words, int(np.count_nonzero(differ)), missing)
    # Faster than nonzero() of two dimensions.
    slab, number = np.divmod(np.flatnonzero(allocated), allocated.shape[1])
    track = starts[slab] + cache.red_left_pad + number * cache.size + info_end
    if tracks.frames:
        handle = _stack_numbers(owners, data, (track + tracks.handle) // 8, tracks.frames)
    else:
        handle = data[(track + tracks.handle) // 8]
        if tracks.handle % 8:
            handle = handle >> np.uint64(32)
        handle = handle & np.uint64(~tracks.extra_mask & 0xFFFFFFFF)
    # A kernel address is above any handle, so one number can be either.
    key = np.where(handle != 0, handle, data[(track + tracks.addr) // 8])
    keys, which = np.unique(key, return_inverse=True)
    counts = np.bincount(which, minlength=len(keys)).tolist()
    requested = [0] * len(keys)
    if cache.kmalloc:
        # get_orig_size(): once unsigned int, now unsigned long (also in stable kernels): the low
        # half is the size in both.
        size = data[(track + 2 * tracks.size) // 8] & np.uint64(0xFFFFFFFF)
        requested = np.bincount(which, size.astype(np.float64), len(keys)).astype(int).tolist()
    for at, (value, count) in enumerate(zip(keys.tolist(), counts, strict=True)):
        entry = owners.counts.setdefault((index, value), [0, 0])
        entry[0] += count
        entry[1] += requested[at]


def _stack_numbers(
    owners: SlabOwners, data: NDArray[np.uint64], words: NDArray[np.int64], frames: int
) -> NDArray[np.uint64]:
    """The number of the stack at each of some words, a new one's as well; 0: there is none."""
    stacks = data[words[:, None] + np.arange(frames)]
    # set_track() ends a shorter one with 0; behind that is what was there before.
    stacks[np.logical_or.accumulate(stacks == 0, axis=1)] = 0
    unique, which = np.unique(stacks, axis=0, return_inverse=True)
    numbers = [
        owners.stacks.setdefault(stack.tobytes(), len(owners.stacks) + 1) if stack[0] else 0
        for stack in unique
    ]
    return np.array(numbers, np.uint64)[which.ravel()]


def _depot_of_tracks(owners: SlabOwners) -> StackDepot:
    """Stacks of tracks as if a depot had them."""
    stacks = [np.frombuffer(stack, np.uint64) for stack in owners.stacks]
    sizes = np.array([np.count_nonzero(stack) for stack in stacks], np.int64)
    return StackDepot(
        handles=np.array(list(owners.stacks.values()), np.uint32),
        sizes=sizes,
        first=np.cumsum(sizes) - sizes,
        frames=np.concatenate([np.empty(0, np.uint64), *(stack[stack != 0] for stack in stacks)]),
        counts=None,
        addresses=np.zeros(len(stacks), np.uint64),
        pools=0,
        extra_mask=0,
    )


def _allocated(cache: Cache, slabs: _Slabs) -> tuple[NDArray[np.bool_], int]:
    """
    Objects of each slab that are not on its freelist, all freelists being followed at once; and
    the number of damaged freelists.
    """
    objects = slabs.objects
    slots = int(objects.max())
    allocated = np.arange(slots) < objects[:, None]
    size, offset = np.uint64(cache.size), np.uint64(cache.offset)
    first = slabs.bases + np.uint64(cache.red_left_pad)
    walking = np.flatnonzero(slabs.freelists != 0)
    here = slabs.freelists[walking]
    broken = 0
    while len(walking):
        # Wraps around for an address below the slab, which is then far too large.
        distance = here - first[walking]
        number = distance // size
        sound = (distance % size == 0) & (number < objects[walking].astype(np.uint64))
        sound[sound] = allocated[walking[sound], number[sound].astype(np.int64)]
        broken += int(np.count_nonzero(~sound))
        walking, here, number = walking[sound], here[sound], number[sound].astype(np.int64)
        allocated[walking, number] = False
        where = here + offset
        word = slabs.starts[walking] + cache.red_left_pad + number * cache.size + cache.offset
        value = slabs.data[word // 8]
        if cache.random is not None:
            # freelist_ptr_decode(), mm/slub.c
            value = value ^ np.uint64(cache.random) ^ where.byteswap()
        going = value != 0
        walking, here = walking[going], value[going]
    return allocated, broken


def slab_owner_stacks(
    prog: Program, depot: StackDepot | None, owners: SlabOwners
) -> tuple[list[SlabOwnerStack], list[SlabCheck]]:
    """
    The counts with their stacks, most bytes first, and what did not add up.

    :param depot: as of :func:`slab_owners`.
    """
    with_handles = depot is not None
    depot = depot or _depot_of_tracks(owners)
    keys = sorted({key for _, key in owners.counts})
    handles = np.array([key for key in keys if key <= 0xFFFFFFFF], np.uint32)
    callers = np.array([key for key in keys if key > 0xFFFFFFFF], np.uint64)
    stacks = dict(zip(handles.tolist(), folded_stacks(prog, depot, handles), strict=True))
    stacks.update(zip(callers.tolist(), frame_names(prog, callers), strict=True))
    totals: dict[tuple[int, int | None, str], list[int]] = {}
    for (index, key), (objects, requested) in owners.counts.items():
        stack = NO_TRACK if key == 0 else stacks[key] or NO_STACK
        # Callers that differ by their address may be one function.
        handle = (key if key <= 0xFFFFFFFF else 0) if with_handles else None
        entry = totals.setdefault((index, handle, stack), [0, 0])
        entry[0] += objects
        entry[1] += requested
    rows = []
    for (index, handle, stack), (objects, requested) in totals.items():
        cache = owners.scan.caches[index]
        rows.append(
            SlabOwnerStack(
                cache.name,
                handle,
                stack,
                objects,
                objects * cache.object_size,
                requested if cache.kmalloc else None,
            )
        )
    checks = [
        SlabCheck(owners.scan.caches[index].name, words, slabs, objects)
        for (index, words), (slabs, objects) in owners.problems.items()
    ]
    return sorted(rows, key=_most_first), checks


def _most_first(row: SlabOwnerStack) -> tuple[int, str, int, str]:
    return -(row.bytes or row.objects), row.cache, row.handle or 0, row.stack


# "%pS", of which the offset is dropped: two call sites in a function are one stack.
FRAME = re.compile(r"(\S+?)(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?( \[[^\s\]]+\])?")
TRACE = re.compile(
    r" *(\d+) (.+?)(?: waste=(\d+)/\d+)? age=[\d/]+ pid=[\d-]+(?: cpus=[\d,-]+)?(?: nodes=[\d,-]+)?"
)


def read_alloc_traces(text: str, cache: str, object_bytes: int | None) -> list[SlabOwnerStack]:
    """
    The same rows from /sys/kernel/debug/slab/CACHE/alloc_traces, which has no handles.

    :param object_bytes: /sys/kernel/slab/CACHE/object_size, where it is known.
    :raises ValueError: the text is not alloc_traces', or it is cut short.
    """
    totals: dict[str, list[int]] = {}
    name = f"alloc_traces of {cache}"
    if text != "No data\n":
        for record in "\n".join(whole_lines(text, "alloc_traces")).strip("\n").split("\n\n"):
            # Records without a stack follow each other without a blank line.
            for entry in re.split(r"\n(?! {8})", record):
                head, *frames = entry.split("\n")
                match = TRACE.fullmatch(head)
                if not match:
                    raise ValueError(f"{name} is damaged: {head[:60]!r}")
                names = [_frame(frame, cache) for frame in frames] or [_frame(match[2], cache)]
                total = totals.setdefault(";".join(reversed(names)), [0, 0])
                total[0] += printed_number(match[1], name)
                total[1] += printed_number(match[3] or "0", name)
    kmalloc = cache.startswith(("kmalloc-", "dma-kmalloc-"))
    rows = []
    for stack, (objects, waste) in totals.items():
        objects = row_number(objects, name)
        size = None if object_bytes is None else row_number(objects * object_bytes, name)
        requested = row_number(size - waste, name) if kmalloc and size is not None else None
        stack = NO_TRACK if stack == "<not-available>" else stack
        rows.append(SlabOwnerStack(cache, None, stack, objects, size, requested))
    return sorted(rows, key=_most_first)


def _frame(text: str, cache: str) -> str:
    match = FRAME.fullmatch(text.strip())
    if not match:
        raise ValueError(f"alloc_traces of {cache} is damaged: {text[:60]!r}")
    return match[1].replace(";", ":") + (match[2] or "")


def slabs(memory: Memory) -> SlabOwners:
    """
    The slabs and, where they have tracks, the owners of their objects, and the memory cgroups that
    are charged for them: one pass for all.
    """

    def scan() -> SlabOwners:
        found = memory.kept_consumer(SlabFinder)
        take = None
        with contextlib.suppress(FaultError, LookupError, ValueError):
            take = memory.once("slab_cgroups", lambda: SlabCgroups(memory.prog)).take
        if any(cache.store_user for cache in caches_once(memory)[0]):
            # Or so a damaged cache says. Without its stacks, what is in the slabs is still known.
            with contextlib.suppress(LookupError, FaultError):
                depot = tracks_depot(memory)
                return slab_owners(
                    memory.prog, depot, found=found, also=take, progress=memory.progress
                )
        return SlabOwners(scan_slabs(memory.prog, take, found=found, progress=memory.progress))

    return memory.once("slabs", scan)


def tracks_depot(memory: Memory) -> StackDepot | None:
    """
    The stack depot, where tracks have handles.

    :raises LookupError, FaultError: as :func:`stack_depot`.
    """
    return None if tracks_have_stacks(memory.prog) else depot_of(memory)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("slab_owner")
