# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Slab caches (``slab_caches``, SLUB) and every slab they have.

The slabs are found in the memory map, not on lists: a page is a slab if it has the slab page type
(PG_slab before v6.10) and its ``slab_cache`` is a cache. So slabs are found that are on no list (a
CPU's own, before v7.0), and a damaged list costs nothing. It takes a pass over the struct pages,
which ``struct slab`` overlays, shared with others (:class:`SlabFinder`) or its own; for each cache
the slabs found are held against ``nr_slabs``.

Cannot know: which objects of a slab in use a CPU or a node keeps for the next allocation (sheaves,
per-CPU freelists): they count as in use, as they do in /proc/slabinfo. Kmalloc beyond the largest
cache (8 KiB on x86) has no slab and is in no cache; NR_SLAB_UNRECLAIMABLE_B counts it all the same.

The text that says the same is /proc/slabinfo (root only).
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, offsetof
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.nodemask import nr_node_ids
from drgn.helpers.linux.slab import slab_total_usage
from numpy.typing import NDArray

from mmscope.drgn.opening.constants import flag, vmcoreinfo_number
from mmscope.drgn.reading.kernel_arrays import CHUNK_BYTES, Gaps, bit_field, distinct, read_array
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.struct_pages import SLAB_COLUMNS, PageChunk, page_dtype, slab_type
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.tables.rows import LONGEST_NAME, column, table_row
from mmscope.drgn.tables.table import Inside, Table
from mmscope.drgn.text.kernel_text import printed_number, row_number, whole_lines
from mmscope.drgn.workers.shares import SharedColumns, added, merges

# Flags where they are not enumerators yet, before "mm, slab: use an enum to define SLAB_ cache
# creation flags" (cc61eb851c9a, in v6.9).
FLAGS = {
    "_SLAB_STORE_USER": 0x00010000,
    "_SLAB_KMALLOC": 0x00001000,
    "_SLAB_RECLAIM_ACCOUNT": 0x00020000,
}
# More than any machine has: the list is damaged then, or runs in a circle.
MAX_CACHES = 20_000
MAX_SLABS = 4 << 20
SLABS_TOGETHER = 2048


@table_row
class SlabCache:
    """A slab cache and what it holds."""

    cache: str = column(
        holds="kernel",
        key=True,
        low=1,
        high=LONGEST_NAME,
        help="name; with its address where another cache has the same",
    )
    objects: int = column(
        high="slots", help="objects in use, those that a CPU keeps for itself included"
    )
    object_bytes: int | None = column(
        unit="bytes", low=1, high="slot_bytes", help="size of an object as its user sees it"
    )
    slot_bytes: int = column(
        unit="bytes", low=4, high=1 << 30, help="what an object takes, debug metadata included"
    )
    slots: int = column(help="objects that its slabs have room for")
    slabs: int = column(unit="slabs", high="pages", help="slabs found")
    pages: int = column(unit="pages", help="pages of the slabs")
    store_user: bool | None = column(help="each object remembers who allocated it (slab_debug=U)")


SLAB_CACHES = Table(
    "slab_caches", "Slab caches", SlabCache, measure="pages", inside=(Inside("slab", "pages"),)
)


@table_row
class SlabCheck:
    """Something about a cache's slabs that does not fit together."""

    cache: str = column(holds="kernel", key=True, help="name")
    problem: str = column(holds="words", key=True, help="what does not fit")
    slabs: int = column(unit="slabs", help="slabs that it is about")
    objects: int | None = column(help="objects that are counted nowhere for it")


SLAB_CHECKS = Table(
    "slab_checks",
    "Slab caches that do not add up",
    SlabCheck,
    empty="Every cache's slabs agree with its counts.",
)
SLAB_OWNER_CHECKS = Table("slab_owner_checks", "Tracks that do not add up", SlabCheck)


@dataclass(frozen=True, slots=True)
class Cache:
    """``struct kmem_cache``: what is needed to find objects in a slab."""

    address: int
    name: str
    store_user: bool
    kmalloc: bool
    reclaimable: bool
    size: int  # of a slot
    object_size: int
    inuse: int
    offset: int  # of the free pointer in an object
    red_left_pad: int
    random: int | None  # CONFIG_SLAB_FREELIST_HARDENED
    orders: dict[int, int]  # objects of a slab to its order
    nr_slabs: int | None  # None without CONFIG_SLUB_DEBUG


@dataclass
class SlabTotals:
    """What the pass counts of one cache."""

    slabs: int = 0
    slots: int = 0
    objects: int = 0
    pages: int = 0
    odd_slabs: int = 0  # with another number of objects than the cache's


@dataclass(frozen=True, slots=True)
class SlabChunk:
    """Slabs whose struct pages were read at one instant."""

    pfns: NDArray[np.int64]
    caches: NDArray[np.int64]  # position in SlabScan.caches
    objects: NDArray[np.int64]
    inuse: NDArray[np.int64]
    freelists: NDArray[np.uint64]


@dataclass
class SlabScan:
    """All caches, and what the pass found of each."""

    caches: list[Cache]
    totals: list[SlabTotals]
    broken_off: str | None = None  # why there may be more caches
    gaps: Gaps = field(default_factory=Gaps)


def read_caches(prog: Program) -> tuple[list[Cache], str | None]:
    """
    Every ``struct kmem_cache``, and why their list could not be followed to its end, if so.

    :raises LookupError: the allocator is not SLUB.
    """
    if not prog.type("struct kmem_cache").has_member("offset"):
        raise LookupError("the slab allocator is not SLUB")
    masks = {name: flag(prog, name, old) for name, old in FLAGS.items()}
    caches: list[Cache] = []
    names: set[str] = set()
    lost = 0
    try:
        head = prog["slab_caches"].address_of_()
        for number, cache in enumerate(list_for_each_entry("struct kmem_cache", head, "list")):
            if number == MAX_CACHES:
                return caches, "the list of slab caches runs in a circle"
            try:
                caches.append(_read_cache(prog, cache, masks, names))
            except FaultError:
                lost += 1
    except FaultError as error:
        return caches, f"the list of slab caches breaks off after {len(caches) + lost}: {error}"
    return caches, f"{lost} slab caches could not be read" if lost else None


def _read_cache(prog: Program, cache: Object, masks: dict[str, int], names: set[str]) -> Cache:
    address = cache.value_()
    try:
        name = name_at(cache.name)
    except FaultError:
        name = ""
    if not name or name in names:
        name = f"{name} ({address:#x})".strip()
    names.add(name)
    flags = cache.flags.value_()
    oo, least = cache.oo.x.value_(), cache.min.x.value_()
    return Cache(
        address=address,
        name=name,
        store_user=bool(flags & masks["_SLAB_STORE_USER"]),
        kmalloc=bool(flags & masks["_SLAB_KMALLOC"]),
        reclaimable=bool(flags & masks["_SLAB_RECLAIM_ACCOUNT"]),
        size=cache.size.value_(),
        object_size=cache.object_size.value_(),
        inuse=cache.inuse.value_(),
        offset=cache.offset.value_(),
        red_left_pad=cache.red_left_pad.value_() if hasattr(cache, "red_left_pad") else 0,
        random=cache.random.value_() if hasattr(cache, "random") else None,
        orders={value & 0xFFFF: value >> 16 for value in (least, oo)},
        nr_slabs=_nr_slabs(prog, cache),
    )


def _nr_slabs(prog: Program, cache: Object) -> int | None:
    """The slabs of all nodes, as the cache counts them; None if they cannot be read."""
    try:
        return _sum_nr_slabs(prog, cache)
    except FaultError:
        return None


def _sum_nr_slabs(prog: Program, cache: Object) -> int | None:
    total = 0
    for node in range(nr_node_ids(prog)):
        # "slab: decouple pointer to barn from kmem_cache_node" (5ba6bc27b1f9, in v7.1)
        moved = hasattr(cache, "per_node")
        per_node = cache.per_node[node].node if moved else cache.node[node]
        # A NULL pointer does not fault in every core (QEMU's give p_vaddr = p_paddr).
        if not per_node:
            continue
        if not hasattr(per_node, "nr_slabs"):
            return None
        total += per_node.nr_slabs.counter.value_()
    return total


class SlabFinder(SharedColumns):
    """
    Consumer of the struct page pass: where every slab is, so that :func:`scan_slabs` needs no pass
    of its own.

    Memory: 18 bytes a slab, up to :data:`MAX_SLABS`; with more it has none of them.

    :param caches: what :func:`read_caches` gave.

    :raises LookupError: the kernel's layout is unknown, or its allocator is not SLUB.
    """

    columns = ("flags", "mapcount", *SLAB_COLUMNS)
    ROWS, MOST = "slabs", MAX_SLABS
    KINDS = (np.uint64, np.uint16, np.uint16, np.uint16, np.uint64)
    MERGES = merges(slabs=added)

    def __init__(self, prog: Program, caches: tuple[list[Cache], str | None] | None = None) -> None:
        self.caches, self.broken_off = read_caches(prog) if caches is None else caches
        page_dtype(prog, self.columns)  # what is missing is to be missed here, not in the pass
        self._find = _SlabTest(prog, self.caches)
        self.slabs = 0
        self._kept = self.room()

    def take(self, chunk: PageChunk) -> None:
        found = self._find(chunk.start_pfn, chunk.columns)
        begin = self.slabs
        self.slabs += len(found.pfns)
        if self.slabs > MAX_SLABS:
            self._kept = []
            return
        columns = (found.pfns, found.caches, found.objects, found.inuse, found.freelists)
        for kept, values in zip(self._kept, columns, strict=True):
            kept[begin : self.slabs] = values

    @property
    def whole(self) -> bool:
        """True if it has all slabs."""
        return self.slabs <= MAX_SLABS

    def chunks(self) -> Iterator[SlabChunk]:
        """The slabs, by their address."""
        for begin in range(0, self.slabs, SLABS_TOGETHER):
            here = slice(begin, min(begin + SLABS_TOGETHER, self.slabs))
            pfns, caches, objects, inuse, freelists = (kept[here] for kept in self._kept)
            yield SlabChunk(
                pfns.astype(np.int64),
                caches.astype(np.int64),
                objects.astype(np.int64),
                inuse.astype(np.int64),
                freelists,
            )


def scan_slabs(
    prog: Program,
    take: Callable[[SlabScan, SlabChunk], None] | None = None,
    *,
    found: tuple[SlabFinder, Gaps] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SlabScan:
    """
    Find every slab of every cache.

    :param take: shown the slabs, chunk by chunk.
    :param found: by a pass that went before, and what that could not read.
    :param progress: called with (pages done, pages in all).
    :raises LookupError: the kernel's layout is unknown, or its allocator is not SLUB.
    """
    if found is not None and found[0].whole:
        finder, gaps = found
        scan = SlabScan(finder.caches, [], finder.broken_off, Gaps(gaps.bytes, gaps.died))
        chunks = finder.chunks()
    else:
        caches, broken_off = read_caches(prog)
        scan = SlabScan(caches, [], broken_off)
        chunks = _slab_chunks(prog, caches, scan.gaps, progress)
    scan.totals += [SlabTotals() for _ in scan.caches]
    for chunk in chunks:
        for index in distinct(chunk.caches).tolist():
            _count(scan.totals[index], scan.caches[index], chunk, chunk.caches == index)
        if take is not None:
            take(scan, chunk)
    return scan


def _count(totals: SlabTotals, cache: Cache, chunk: SlabChunk, here: NDArray[np.bool_]) -> None:
    totals.slabs += int(np.count_nonzero(here))
    totals.slots += int(chunk.objects[here].sum())
    totals.objects += int(chunk.inuse[here].sum())
    for objects, slabs in zip(*np.unique(chunk.objects[here], return_counts=True), strict=True):
        if int(objects) in cache.orders:
            totals.pages += int(slabs) << cache.orders[int(objects)]
        else:
            totals.odd_slabs += int(slabs)
            totals.pages += int(slabs)  # at least


def _slab_chunks(
    prog: Program,
    caches: list[Cache],
    gaps: Gaps,
    progress: Callable[[int, int], None] | None,
) -> Iterator[SlabChunk]:
    """The slabs of every struct page: a pass."""
    dtype = page_dtype(prog, SlabFinder.columns)
    find_slabs = _SlabTest(prog, caches)
    ranges = valid_page_ranges(prog)
    total = sum(end - start for start, end, _ in ranges)
    done = 0
    for start_pfn, end_pfn, address in ranges:
        pages = end_pfn - start_pfn
        for first, array in read_array(prog, address, pages, dtype, gaps, chunk_bytes=CHUNK_BYTES):
            done += len(array)
            if progress is not None:
                progress(done, total)
            chunk = find_slabs(start_pfn + first, array)
            if len(chunk.pfns):
                yield chunk


class _SlabTest:
    """
    Which struct pages head a slab, and of which cache.

    The counters of ``struct slab`` are bit fields, whose neighbours change.
    """

    def __init__(self, prog: Program, caches: list[Cache]) -> None:
        addresses = np.array([cache.address for cache in caches], np.uint64)
        self.order = np.argsort(addresses)
        self.addresses = addresses[self.order]
        self.is_slab = _slab_test(prog)
        slab = slab_type(prog)
        word = offsetof(slab, "counters") * 8
        self.bits = []
        for name in ("objects", "inuse"):
            shift, size = bit_field(slab, name)
            self.bits.append((np.uint64(shift - word), np.uint64((1 << size) - 1)))

    def __call__(self, start_pfn: int, pages: NDArray[Any]) -> SlabChunk:
        at = np.flatnonzero(self.is_slab(pages))
        cache = find(self.addresses, pages["slab_cache"][at])
        at, cache = at[cache >= 0], cache[cache >= 0]
        counters = pages["counters"][at]
        objects, inuse = ((counters >> shift & mask).astype(np.int64) for shift, mask in self.bits)
        freelists = pages["freelist"][at]
        return SlabChunk(start_pfn + at, self.order[cache], objects, inuse, freelists)


def _slab_test(prog: Program) -> Callable[[NDArray[Any]], NDArray[np.bool_]]:
    """Which of an array of struct pages head a slab."""
    number = vmcoreinfo_number(prog, "NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)")
    if number is not None:  # "mm: free up PG_slab" (46df8e73a4a3, in v6.10)
        value = np.array(number & 0xFFFFFFFF, np.uint32).view(np.int32)
        return lambda pages: np.asarray(pages["mapcount"] == value)
    slab = np.uint64(1 << int(prog.constant("PG_slab").value_()))
    return lambda pages: np.asarray((pages["flags"] & slab) != 0)


def misnamed(prog: Program) -> list[str]:
    """
    In words, which of the first two caches does not go by its name: then others may not, either.

    ``kmem_cache_init()`` (mm/slub.c) names them after the variables that hold them.
    """
    words = []
    for name in ("kmem_cache", "kmem_cache_node"):
        with contextlib.suppress(LookupError, FaultError):
            if (given := name_at(prog[name].name)) != name:
                words.append(
                    f"the slab cache {name} goes by the name {given[:40]!r}: names of slab caches "
                    "are damaged"
                )
    return words[:1]


def pages_in_no_cache(prog: Program, scan: SlabScan) -> int:
    """
    Pages that the kernel counts as slab (NR_SLAB_RECLAIMABLE_B, NR_SLAB_UNRECLAIMABLE_B) beyond
    those of the slabs found: kmalloc beyond the largest cache.
    """
    return slab_total_usage(prog).total_pages - sum(totals.pages for totals in scan.totals)


def slab_caches(scan: SlabScan) -> tuple[list[SlabCache], list[SlabCheck]]:
    """All caches, those with most memory first, and those whose slabs do not add up."""
    rows, checks = [], []
    for cache, totals in zip(scan.caches, scan.totals, strict=True):
        rows.append(
            SlabCache(
                cache.name,
                totals.objects,
                cache.object_size,
                cache.size,
                totals.slots,
                totals.slabs,
                totals.pages,
                cache.store_user,
            )
        )
        if cache.nr_slabs is not None and cache.nr_slabs != totals.slabs:
            problem = f"nr_slabs is {cache.nr_slabs}, but {totals.slabs} slabs were found"
            checks.append(SlabCheck(cache.name, problem, abs(cache.nr_slabs - totals.slabs), None))
        if totals.odd_slabs:
            problem = "a number of objects that the cache does not make: KFENCE's, or damaged"
            checks.append(SlabCheck(cache.name, problem, totals.odd_slabs, None))
    return sorted(rows, key=lambda row: (-row.pages, row.cache)), checks


def read_slabinfo(text: str) -> list[SlabCache]:
    """
    The same rows from /proc/slabinfo, which has neither the object's own size nor the flags.

    :raises ValueError: the text is not /proc/slabinfo's, or it is cut short.
    """
    lines = whole_lines(text, "/proc/slabinfo")
    if not lines[0].startswith("slabinfo - version: 2"):
        raise ValueError("not /proc/slabinfo: it does not begin with its version")
    rows = []
    for line in lines[1:]:
        if line.startswith("#"):
            continue
        # A cache's name may be anything; the numbers are counted from the end.
        match = re.fullmatch(
            r"(.+?) +(\d+) +(\d+) +(\d+) +\d+ +(\d+) : tunables [\d ]+ : slabdata +\d+ +(\d+) +\d+",
            line,
        )
        if not match:
            raise ValueError(f"/proc/slabinfo is damaged: {line[:60]!r}")
        used, slots, size, pages, slabs = (
            printed_number(number, "/proc/slabinfo") for number in match.groups()[1:]
        )
        pages = row_number(slabs * pages, "/proc/slabinfo")
        rows.append(SlabCache(match[1], used, None, size, slots, slabs, pages, None))
    return sorted(rows, key=lambda row: (-row.pages, row.cache))


def caches_once(memory: Memory) -> tuple[list[Cache], str | None]:
    """As :func:`read_caches`, once for all sections."""
    return memory.once("slab caches", lambda: read_caches(memory.prog))


def slab_consumer(memory: Memory) -> SlabFinder | None:
    """
    Finds slabs while another section passes over the struct pages.

    Not on a live kernel: there slabs are looked at when they are found, later they are others'.
    """
    return None if memory.live else SlabFinder(memory.prog, caches_once(memory))


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("slab_caches")
