# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Allocation stacks of slab objects: SLUB's user tracks (``struct track``, mm/slub.c).

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

import numpy as np
from drgn import FaultError, Program, offsetof, sizeof
from drgn.helpers.linux.percpu import per_cpu

from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.owners.page_owner import depot_notes, depot_of
from mmscope.drgn.owners.slab_caches import (
    SLAB_CHECKS,
    SLAB_OWNER_CHECKS,
    Cache,
    SlabCache,
    SlabCheck,
    SlabScan,
    has_sheaves,
    misnamed,
    pages_in_no_cache,
    read_slabinfo,
    slab_caches,
    slab_consumer,
    slab_part,
    slab_scan,
)
from mmscope.drgn.owners.slab_cgroups import MAX_ROWS, SlabCgroup, SlabCgroups
from mmscope.drgn.owners.slab_objects import slots_of
from mmscope.drgn.reading.cpus import online_cpus
from mmscope.drgn.reading.kernel_arrays import TORN, Array, Bools, Gaps, S64s, U8s, U64s, distinct
from mmscope.drgn.reading.stack_depot import StackDepot, folded_stacks
from mmscope.drgn.reading.symbols import frame_names
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import Inside, table, table_of, tables_of
from mmscope.drgn.text.kernel_text import printed_number, row_number, whole_lines

NO_TRACK = "(no track)"
NO_STACK = "(not in the stack depot)"


@table(
    "slab_owner_stacks",
    "Slab objects by allocation stack",
    lasting=("cache", "stack"),
    inside=(Inside("slab", "bytes", by="cache stack"),),
)
class SlabOwnerStack:
    """The objects of one cache that one allocation stack holds."""

    cache: str = column(holds="kernel", key=True, help="slab cache")
    handle: int | None = column(
        key=True,
        help="stack depot handle; 0: no stack; empty: text, or before 5.19",
    )
    stack: str = column(
        holds="kernel",
        key=True,
        help="root;…;leaf; without a stack, the caller if known",
    )
    objects: int = column(help="allocated, not freed")
    bytes: int | None = column(unit="bytes", help="objects times object size")
    requested_bytes: int | None = column(unit="bytes", help="size asked for; kmalloc caches only")


class SlabOwners:
    """
    The tracks of all slabs, counted.

    :ivar counts: by position of the cache and handle or, where that is 0, the caller: objects and
        requested bytes. A kernel without handles has numbers of :attr:`stacks`, which begin at 1.
    :ivar problems: by position of the cache and what it is: slabs and objects.
    :param depot: none where tracks have the stacks themselves (:func:`tracks_have_stacks`).
    :raises LookupError: the tracks have no stacks.
    """

    def __init__(self, prog: Program, scan: SlabScan, depot: StackDepot | None) -> None:
        self._prog, self.scan, self.gaps = prog, scan, Gaps()
        self.counts: dict[tuple[int, int], S64s] = {}
        self.problems: dict[tuple[int, str], S64s] = {}
        self.stacks: dict[bytes, int] = {}  # of tracks without a handle
        track = prog.type("struct track")
        self._size, self._addr = sizeof(track), offsetof(track, "addr")
        self._stack = offsetof(track, "handle" if depot is not None else "addrs")
        self._mask = np.uint64(~depot.extra_mask & 0xFFFFFFFF if depot is not None else 0)
        self._frames = 0 if depot is not None else track.member("addrs").type.length or 0

    def take(self, slabs: Array) -> None:
        """Count the allocated objects of some slabs by their allocation track."""
        for index in distinct(slabs["cache"]).tolist():
            if self.scan.caches[index].store_user:
                here = slabs[(slabs["cache"] == index) & self.scan.plausible(slabs)]
                unread, lost = len(here), int(here["inuse"].sum())
                for part, address, memory in slots_of(
                    self._prog, self.scan, slabs, index, self.gaps
                ):
                    unread, lost = unread - len(part), lost - int(part["inuse"].sum())
                    self._count(index, part, address, memory)
                if unread:
                    self._problem(index, "could not be read", unread, lost)

    def _problem(self, cache: int, words: str, slabs: int, objects: int) -> None:
        self.problems[cache, words] = self.problems.get((cache, words), 0) + np.array(
            [slabs, objects]
        )

    def _count(self, index: int, slabs: Array, address: U64s, memory: U8s) -> None:
        """Count the objects of slabs of one cache, as :func:`slots_of` has read them."""
        cache, objects = self.scan.caches[index], int(slabs["objects"][0])
        inuse = slabs["inuse"].astype(np.int64)
        info_end = cache.inuse + (8 if cache.offset >= cache.inuse else 0)  # get_info_end()
        if (cache.size | cache.red_left_pad | info_end | cache.offset | self._size) % 8:
            self._problem(index, "objects are not aligned", len(slabs), int(inuse.sum()))
            return
        after = info_end + 2 * self._size + 8 * cache.kmalloc
        if cache.red_left_pad + max(after, cache.offset + 8) > cache.size:
            self._problem(index, "slots have no room for tracks", len(slabs), int(inuse.sum()))
            return
        words = memory.view("<u8")  # a row a slot
        first = address.reshape(len(slabs), objects)[:, 0]
        allocated, broken = _allocated(cache, objects, slabs["freelist"], first, words)
        if broken:
            self._problem(index, "freelist leads out of the slab or in a circle", broken, 0)
        missing = np.abs(allocated.reshape(len(slabs), objects).sum(1) - inuse)
        if missing.any():
            differ = int(np.count_nonzero(missing))
            self._problem(
                index, "objects off the freelist are not inuse", differ, int(missing.sum())
            )
        words = words[allocated, (cache.red_left_pad + info_end) // 8 :]  # from the track on
        if self._frames:
            handle = self._stack_numbers(words[:, self._stack // 8 :][:, : self._frames])
        else:
            handle = words[:, self._stack // 8] >> np.uint64(self._stack % 8 * 8) & self._mask
        # A kernel address is above any handle, so one number can be either.
        key = np.where(handle != 0, handle, words[:, self._addr // 8])
        keys, which = np.unique(key, return_inverse=True)
        counts = np.zeros((len(keys), 2), np.int64)
        counts[:, 0] = np.bincount(which, minlength=len(keys))
        if cache.kmalloc:
            # get_orig_size(): once unsigned int, now unsigned long (also in stable kernels): the
            # low half is the size in both.
            size = words[:, 2 * self._size // 8] & np.uint64(0xFFFFFFFF)
            counts[:, 1] = np.bincount(which, size.astype(np.float64), len(keys))
        for value, count in zip(keys.tolist(), counts, strict=True):
            self.counts[index, value] = self.counts.get((index, value), 0) + count

    def _stack_numbers(self, stacks: U64s) -> U64s:
        """The number of each stack, a new one's as well; 0: there is none."""
        # set_track() ends a shorter one with 0; after that is what was there before.
        stacks = np.where(np.logical_and.accumulate(stacks != 0, axis=1), stacks, np.uint64(0))
        unique, which = np.unique(stacks, axis=0, return_inverse=True)
        numbers = [
            self.stacks.setdefault(stack.tobytes(), len(self.stacks) + 1) if stack[0] else 0
            for stack in unique
        ]
        return np.array(numbers, np.uint64)[which.ravel()]


def tracks_have_stacks(prog: Program) -> bool:
    """True if ``struct track`` has the stacks themselves, and no handles."""
    return bool(prog.type("struct track").has_member("addrs"))


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


def _allocated(
    cache: Cache, objects: int, freelists: U64s, first: U64s, words: U64s
) -> tuple[Bools, int]:
    """
    Slots that are not on their slab's freelist, all freelists being followed at once; and the
    number of damaged freelists.

    :param objects: of each slab.
    :param first: the address of each slab's first object.
    :param words: the memory of each slot.
    """
    allocated = np.ones(len(words), np.bool_)
    walking = np.flatnonzero(freelists != 0)
    here = freelists[walking]
    broken = 0
    while len(walking):
        # Wraps around for an address below the slab, which is then far too large.
        number, rest = np.divmod(here - first[walking], np.uint64(cache.size))
        sound = (rest == 0) & (number < np.uint64(objects))
        slot = walking * objects + np.where(sound, number, np.uint64(0)).astype(np.int64)
        sound &= allocated[slot]
        broken += int(np.count_nonzero(~sound))
        walking, here, slot = walking[sound], here[sound], slot[sound]
        allocated[slot] = False
        value = words[slot, (cache.red_left_pad + cache.offset) // 8]
        if cache.random is not None:
            # freelist_ptr_decode(), mm/slub.c
            where = here + np.uint64(cache.offset)
            value = value ^ np.uint64(cache.random) ^ where.byteswap()
        going = value != 0
        walking, here = walking[going], value[going]
    return allocated, broken


def slab_owner_stacks(
    prog: Program, depot: StackDepot | None, owners: SlabOwners
) -> tuple[list[SlabOwnerStack], list[SlabCheck]]:
    """
    The counts with their stacks, most bytes first, and what did not add up.

    :param depot: none where tracks have the stacks themselves (:func:`tracks_have_stacks`).
    """
    with_handles = depot is not None
    depot = depot or _depot_of_tracks(owners)
    keys = sorted({key for _, key in owners.counts})
    handles = np.array([key for key in keys if key <= 0xFFFFFFFF], np.uint32)
    callers = np.array([key for key in keys if key > 0xFFFFFFFF], np.uint64)
    stacks = dict(zip(handles.tolist(), folded_stacks(prog, depot, handles), strict=True))
    stacks.update(zip(callers.tolist(), frame_names(prog, callers), strict=True))
    totals: dict[tuple[int, int | None, str], S64s] = {}
    for (index, key), counts in owners.counts.items():
        stack = NO_TRACK if key == 0 else stacks[key] or NO_STACK
        # Callers that differ by their address may be one function.
        handle = (key if key <= 0xFFFFFFFF else 0) if with_handles else None
        totals[index, handle, stack] = totals.get((index, handle, stack), 0) + counts
    caches, rows = owners.scan.caches, []
    for (index, handle, stack), counts in totals.items():
        cache, (objects, requested) = caches[index], counts.tolist()
        size, asked = objects * cache.object_size, requested if cache.kmalloc else None
        rows.append(SlabOwnerStack(cache.name, handle, stack, objects, size, asked))
    checks = [
        SlabCheck(caches[index].name, words, *counts.tolist())
        for (index, words), counts in owners.problems.items()
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


def slabs_once(memory: Memory) -> tuple[SlabScan, SlabOwners | None]:
    """
    The slabs and, where they have tracks, the owners of their objects, and the memory cgroups that
    are charged for them: one pass for all.
    """

    def scan() -> tuple[SlabScan, SlabOwners | None]:
        prog, owners, cgroups = memory.prog, None, None
        scan = slab_scan(memory)
        with contextlib.suppress(FaultError, LookupError, ValueError):
            cgroups = cgroups_once(memory)
        if any(cache.store_user for cache in scan.caches):
            # Or so a damaged cache says. Without its stacks, what is in the slabs is still known.
            with contextlib.suppress(LookupError, FaultError):
                owners = SlabOwners(prog, scan, tracks_depot(memory))
        for slabs in scan:
            if cgroups is not None:
                cgroups.take(scan, slabs)
            if owners is not None:
                owners.take(slabs)
        return scan, owners

    return memory.once("slabs", scan)


def cgroups_once(memory: Memory) -> SlabCgroups:
    """The objects by memory cgroup, counted once the slabs are read."""
    return memory.once("slab_cgroups", lambda: SlabCgroups(memory.prog))


def tracks_depot(memory: Memory) -> StackDepot | None:
    """
    The stack depot, where tracks have handles.

    :raises LookupError, FaultError: as :func:`stack_depot`.
    """
    return None if tracks_have_stacks(memory.prog) else depot_of(memory)


def slab_caches_from_memory(memory: Memory) -> Found:
    scan, _ = slabs_once(memory)
    rows, checks = slab_caches(scan)
    found = Found(memory.live, notes=misnamed(memory.prog), unreadable_bytes=scan.gaps.bytes)
    if scan.broken_off:
        found.notes.append(f"{scan.broken_off}; slabs of others are not counted")
    if scan.gaps.bytes:
        found.notes.append(
            f"{scan.gaps.bytes:,} bytes of struct pages could not be read{scan.gaps.why}: slabs "
            "among them are not counted"
        )
    blind = sum(row.sheaf_objects is None for row in rows) if has_sheaves(memory.prog) else 0
    words = "the sheaves of {} could not be read: free objects in them count as in use"
    found.notes += if_any(blind, words, "cache")
    nameless = sum(cache.name == f"({cache.address:#x})" for cache in scan.caches)
    found.notes += if_any(nameless, "the names of {} caches could not be read; they go by address")
    found.differ(*if_any(len(checks), "the slabs of {} do not add up (slab_checks)", "cache"))
    if (rest := pages_in_no_cache(memory.prog, scan)) > 0:
        found.remarks.append(
            f"{rest:,} more pages that the kernel counts as slab are in no cache: kmalloc beyond "
            "the largest cache"
        )
    _note_quarantine(memory, found)
    found.add(SlabCache, rows)
    found.add(SLAB_CHECKS, checks)
    _add_cgroups(memory, scan, found)
    return found


def quarantined_bytes(prog: Program) -> int:
    """
    Bytes of freed objects that KASAN keeps for a while; 0 where the kernel keeps none.

    The slab allocator has not got them back, so for it they are in use: in /proc/slabinfo, and
    here. KASAN counts them itself, whole slots of their caches: on a list for each CPU, and
    together (mm/kasan/quarantine.c, 5.10 to 7.3). Not known is which caches they are of, and those
    of a cache that is being shrunk, which are on a list of their own for that time.

    :raises FaultError: they cannot be read.
    """
    try:
        together, by_cpu = prog["quarantine_size"], prog["cpu_quarantine"]
    except LookupError:
        return 0  # no CONFIG_KASAN_GENERIC
    kept = sum(int(per_cpu(by_cpu, cpu).bytes.value_()) for cpu in online_cpus(prog))
    return int(together.value_()) + kept


def _note_quarantine(memory: Memory, found: Found) -> None:
    try:
        kept = quarantined_bytes(memory.prog)
    except TORN as error:
        found.notes.append(f"how many objects KASAN keeps in its quarantine is not known: {error}")
        return
    found.remarks += if_any(
        kept, "{} bytes of objects in use were freed: KASAN keeps them in its quarantine"
    )


def _add_cgroups(memory: Memory, scan: SlabScan, found: Found) -> None:
    """Add the memory cgroups of objects, where the kernel has them."""
    try:
        counted = cgroups_once(memory)
    except LookupError:
        return  # CONFIG_MEMCG is not set
    try:
        if counted.failure is not None:
            raise counted.failure
        rows = counted.rows(scan.caches, memcgs := memcgs_once(memory))
        _, strange = counted.own_bytes(scan.caches, memcgs)
    except TORN as error:
        found.notes.append(f"memory cgroups of slab objects are not told: {error}")
        return
    found.unreadable_bytes += counted.gaps.bytes
    found.notes += if_any(
        counted.gaps.bytes, "{} bytes of what says whose objects are could not be read"
    )
    found.differ(
        *if_any(strange, "{} are charged to no memory cgroup that is known", "slab object")
    )
    if len(rows) > MAX_ROWS:
        found.unlisted.append(
            f"slab_cgroups has the {MAX_ROWS:,} largest of {len(rows):,} pairs of cgroup and cache"
        )
    found.add(SlabCgroup, rows[:MAX_ROWS])


NO_TRACKS = (
    "no slab cache remembers who allocated its objects; boot with slab_debug=U (older "
    "kernels: slub_debug=U, which newer ones take, too), or slab_debug=U,CACHE for one cache"
)


def slab_owner_from_memory(memory: Memory) -> Found:
    scan, owners = slabs_once(memory)
    tracked = [cache for cache in scan.caches if cache.store_user]
    if not tracked and scan.broken_off:
        raise ValueError(scan.broken_off)
    if not tracked:
        raise Absent(NO_TRACKS)
    try:
        depot = tracks_depot(memory)
        if owners is None:
            raise LookupError("their tracks have no stacks")
    except LookupError as reason:
        raise ValueError(
            f"{len(tracked)} of {len(scan.caches)} caches say that they keep tracks, but "
            f"{reason}: their flags or the depot are damaged"
        ) from None
    rows, checks = slab_owner_stacks(memory.prog, depot, owners)
    found = Found(memory.live, notes=misnamed(memory.prog), unreadable_bytes=owners.gaps.bytes)
    if depot is not None:
        found.unreadable_bytes += depot.gaps.bytes
        found.notes += depot_notes(depot)
    if scan.broken_off:
        found.notes.append(scan.broken_off)
    found.notes += if_any(owners.gaps.bytes, "{} bytes of slabs could not be read")
    if len(tracked) < len(scan.caches):
        found.unlisted.append(
            f"{len(tracked)} of {len(scan.caches)} caches have tracks: what the others hold "
            "is in slab_caches"
        )
    found.differ(*if_any(len(checks), "tracks of {} do not add up", "cache"))
    found.add(SlabOwnerStack, rows)
    # The cache is what the allocation leads to: the leaf.
    stacks = [(f"{row.stack};{row.cache}", row.bytes) for row in rows if row.bytes]
    found.folded.append(
        ("slab_owner", f"{table_of(SlabOwnerStack).title}, width in bytes", "bytes", stacks)
    )
    return found.add(SLAB_OWNER_CHECKS, checks)


def slab_owner_from_files(files: Files) -> Found:
    folder = files.root / "sys/kernel/debug/slab"
    here = "sys/kernel/debug/slab"
    caches = [name for name in files.names(here) if "alloc_traces" in files.names(f"{here}/{name}")]
    if not caches:
        raise Absent(f"{folder} has no alloc_traces (root only): {NO_TRACKS}")
    if why := files.left_out(f"sys/kernel/debug/slab/{caches[0]}/alloc_traces"):
        raise Absent(f"{folder}/*/alloc_traces ({plural(len(caches), 'cache')}): {why}")
    rows: list[SlabOwnerStack] = []
    found = Found()
    for cache in caches:
        try:
            size = printed_number(
                files.open(f"sys/kernel/slab/{cache}/object_size").strip(), "object_size"
            )
        except (OSError, ValueError):
            size = None
        try:
            text = files.read(f"sys/kernel/debug/slab/{cache}/alloc_traces")
            rows += read_alloc_traces(text, cache, size)
        except (Absent, ValueError) as reason:
            found.notes.append(str(reason))
    if not rows:
        raise Absent(f"{folder} has no alloc_traces (root only): {NO_TRACKS}")
    return found.add(SlabOwnerStack, rows)


def caches_from_files(files: Files) -> Found:
    text = files.read("proc/slabinfo")
    part = slab_part(text)
    return Found(notes=[part] if part else []).add(
        SlabCache, read_slabinfo(text, files.page_size() or 4096)
    )


SLAB_CACHES_SECTION = Section(
    name="slab_caches",
    title="Slab caches",
    tables=tables_of(
        SlabCache,
        SLAB_CHECKS,
        SlabCgroup,
    ),
    intro="""
The kernel's own objects, by the slab cache that they are allocated from: how many are in use,
for how many its slabs have room, and the pages that this takes. Look for a cache that holds
more pages than its work explains, and for one whose `slots` are many times its `objects`: its
slabs are nearly empty, but each goes back only whole ([kernel documentation: slab
allocator](https://docs.kernel.org/admin-guide/mm/slab.html)).
""",
    command=Command("slab caches by size", top=TOP, picks="cache"),
    from_memory=slab_caches_from_memory,
    from_files=caches_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.SLABINFO,),
    consumer=slab_consumer,
)

SLAB_OWNER_SECTION = Section(
    name="slab_owner",
    title="Owners of slab objects",
    tables=tables_of(
        SlabOwnerStack,
        SLAB_OWNER_CHECKS,
    ),
    kernel_stacks=True,
    intro="""
With `slab_debug=U` every object of a slab cache remembers the stack that allocated it: this is
who holds kernel objects now ([kernel documentation: slab
debugging](https://docs.kernel.org/admin-guide/mm/slab.html)). In these tables stacks are
written leaf first, `leaf ← caller`; in the bundle's files they are folded, `root;…;leaf`.
""",
    command=Command("slab objects by who allocated them", top=TOP, picks="cache"),
    from_memory=slab_owner_from_memory,
    from_files=slab_owner_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.ALLOC_TRACES, prices.SLAB_SETTINGS),
    optional=True,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_sections

    print_sections("slab_caches", "slab_owner")
