# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Slab caches (``slab_caches``, SLUB) and every slab they have.

The slabs are found in the memory map, not on lists: a page is a slab if it has the slab page type
(PG_slab before v6.10) and its ``slab_cache`` is a cache. So slabs are found that are on no list (a
CPU's own, before v7.0), and a damaged list costs nothing. It takes a pass of its own over the
struct pages, which ``struct slab`` overlays; for each cache the slabs found are held against
``nr_slabs``.

Cannot know: which objects of a slab in use a CPU or a node keeps for the next allocation (sheaves,
per-CPU freelists): they count as in use, as they do in /proc/slabinfo. Kmalloc beyond the largest
cache (8 KiB on x86) has no slab and is in no cache; NR_SLAB_UNRECLAIMABLE_B counts it all the same.

The text that says the same is /proc/slabinfo (root only).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, offsetof, sizeof
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.nodemask import nr_node_ids
from drgn.helpers.linux.slab import slab_total_usage
from kernel_arrays import CHUNK_BYTES, Gaps, read_array, struct_dtype
from kernel_text import printed_number, row_number, whole_lines
from linked_lists import find
from numpy.typing import NDArray
from rows import column
from struct_pages import COLUMNS, valid_page_ranges

# Flags where they are no enumerators yet, before "mm, slab: use an enum to define SLAB_ cache
# creation flags" (v6.9).
FLAGS = {"_SLAB_STORE_USER": 0x00010000, "_SLAB_KMALLOC": 0x00001000}
# More than any machine has: the list is damaged then, or runs in a circle.
MAX_CACHES = 20_000


@dataclass(frozen=True)
class SlabCache:
    """A slab cache and what it holds."""

    cache: str = column(key=True, help="name; with its address where another cache has the same")
    objects: int = column(help="objects in use, those that a CPU keeps for itself included")
    object_bytes: int | None = column(unit="bytes", help="size of an object as its user sees it")
    slot_bytes: int = column(unit="bytes", help="what an object takes, debug metadata included")
    slots: int = column(help="objects that its slabs have room for")
    slabs: int = column(unit="slabs", help="slabs found")
    pages: int = column(unit="pages", help="pages of the slabs")
    store_user: bool | None = column(help="each object remembers who allocated it (slab_debug=U)")


@dataclass(frozen=True)
class SlabCheck:
    """Something about a cache's slabs that does not fit together."""

    cache: str = column(key=True, help="name")
    problem: str = column(key=True, help="what does not fit")
    slabs: int = column(unit="slabs", help="slabs that it is about")
    objects: int | None = column(help="objects that are counted nowhere for it")


@dataclass(frozen=True)
class Cache:
    """``struct kmem_cache``: what is needed to find objects in a slab."""

    address: int
    name: str
    store_user: bool
    kmalloc: bool
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


@dataclass(frozen=True)
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
    masks = {name: _flag(prog, name, old) for name, old in FLAGS.items()}
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
        name = cache.name.string_().decode("utf-8", "backslashreplace")
    except FaultError:
        name = ""
    if not name or name in names:
        name = f"{name} ({address:#x})".strip()
    names.add(name)
    flags = cache.flags.value_()
    oo, least = cache.oo.x.value_(), cache.min.x.value_()
    return Cache(
        address,
        name,
        bool(flags & masks["_SLAB_STORE_USER"]),
        bool(flags & masks["_SLAB_KMALLOC"]),
        cache.size.value_(),
        cache.object_size.value_(),
        cache.inuse.value_(),
        cache.offset.value_(),
        cache.red_left_pad.value_() if hasattr(cache, "red_left_pad") else 0,
        cache.random.value_() if hasattr(cache, "random") else None,
        {value & 0xFFFF: value >> 16 for value in (least, oo)},
        _nr_slabs(prog, cache),
    )


def _flag(prog: Program, name: str, old: int) -> int:
    try:
        return 1 << int(prog.constant(name).value_())
    except LookupError:
        return old


def _nr_slabs(prog: Program, cache: Object) -> int | None:
    """The slabs of all nodes, as the cache counts them; None if they cannot be read."""
    try:
        return _sum_nr_slabs(prog, cache)
    except FaultError:
        return None


def _sum_nr_slabs(prog: Program, cache: Object) -> int | None:
    total = 0
    for node in range(nr_node_ids(prog)):
        # "slab: decouple pointer to barn from kmem_cache_node" (v7.1)
        moved = hasattr(cache, "per_node")
        per_node = cache.per_node[node].node if moved else cache.node[node]
        # A NULL pointer does not fault in every core (QEMU's give p_vaddr = p_paddr).
        if not per_node:
            continue
        if not hasattr(per_node, "nr_slabs"):
            return None
        total += per_node.nr_slabs.counter.value_()
    return total


def scan_slabs(
    prog: Program,
    take: Callable[[SlabScan, SlabChunk], None] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> SlabScan:
    """
    Find every slab of every cache.

    :param take: shown the slabs, chunk by chunk.
    :param progress: called with (pages done, pages in all).
    :raises LookupError: the kernel's layout is unknown, or its allocator is not SLUB.
    """
    caches, broken_off = read_caches(prog)
    scan = SlabScan(caches, [SlabTotals() for _ in caches], broken_off)
    addresses = np.array([cache.address for cache in caches], np.uint64)
    order = np.argsort(addresses)
    for chunk in _slab_chunks(prog, addresses[order], order, scan.gaps, progress):
        for index in np.unique(chunk.caches).tolist():
            _count(scan.totals[index], caches[index], chunk, chunk.caches == index)
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
    addresses: NDArray[np.uint64],
    order: NDArray[np.int64],
    gaps: Gaps,
    progress: Callable[[int, int], None] | None,
) -> Iterator[SlabChunk]:
    """
    :param addresses: of the caches, ascending.
    :param order: which cache each of the addresses is.
    """
    dtype, objects_shift, objects_mask, inuse_shift, inuse_mask = _slab_dtype(prog)
    is_slab = _slab_test(prog)
    ranges = valid_page_ranges(prog)
    total = sum(end - start for start, end, _ in ranges)
    done = 0
    for start_pfn, end_pfn, address in ranges:
        pages = end_pfn - start_pfn
        for first, array in read_array(prog, address, pages, dtype, gaps, chunk_bytes=CHUNK_BYTES):
            done += len(array)
            if progress is not None:
                progress(done, total)
            at = np.flatnonzero(is_slab(array))
            cache = find(addresses, array["slab_cache"][at])
            at, cache = at[cache >= 0], cache[cache >= 0]
            if not len(at):
                continue
            counters = array["counters"][at]
            yield SlabChunk(
                start_pfn + first + at,
                order[cache],
                (counters >> objects_shift & objects_mask).astype(np.int64),
                (counters >> inuse_shift & inuse_mask).astype(np.int64),
                array["freelist"][at],
            )


def _slab_dtype(prog: Program) -> tuple[np.dtype[Any], np.uint64, np.uint64, np.uint64, np.uint64]:
    """
    ``struct slab`` over ``struct page``; shift and mask of ``objects`` and ``inuse`` in
    ``counters``.

    ``struct slab`` since "mm: Split slab into its own type" (v5.17); its counters are bit fields,
    whose neighbours change.
    """
    page, slab = prog.type("struct page"), prog.type("struct slab")
    flags = struct_dtype(page, {name: COLUMNS[name] for name in ("flags", "mapcount")})
    own = struct_dtype(slab, {name: name for name in ("slab_cache", "freelist", "counters")})
    merged = {name: field for dtype in (flags, own) for name, field in (dtype.fields or {}).items()}
    dtype = np.dtype(
        {
            "names": list(merged),
            "formats": [field[0] for field in merged.values()],
            "offsets": [field[1] for field in merged.values()],
            "itemsize": sizeof(page),
        }
    )
    word = offsetof(slab, "counters") * 8
    bits = []
    for name in ("objects", "inuse"):
        shift, size = _bit_field(slab, name)
        bits += [np.uint64(shift - word), np.uint64((1 << size) - 1)]
    return dtype, bits[0], bits[1], bits[2], bits[3]


def _bit_field(type_: Any, name: str) -> tuple[int, int]:
    """Bit offset and width of a member, also of unnamed structs inside."""
    for member in type_.members:
        if member.name == name:
            return member.bit_offset, member.bit_field_size or 8 * sizeof(member.type)
        if member.name is None:
            try:
                offset, size = _bit_field(member.type, name)
            except LookupError:
                continue
            return member.bit_offset + offset, size
    raise LookupError(f"{type_.type_name()} has no member {name}")


def _slab_test(prog: Program) -> Callable[[NDArray[Any]], NDArray[np.bool_]]:
    """Which of an array of struct pages head a slab."""
    match = re.search(
        rb"^NUMBER\(PAGE_SLAB_MAPCOUNT_VALUE\)=(-?\d+)$", prog["VMCOREINFO"].string_(), re.M
    )
    if match:  # "mm: free up PG_slab" (v6.10)
        value = np.array(int(match[1]) & 0xFFFFFFFF, np.uint32).view(np.int32)
        return lambda pages: np.asarray(pages["mapcount"] == value)
    flag = np.uint64(1 << int(prog.constant("PG_slab").value_()))
    return lambda pages: np.asarray((pages["flags"] & flag) != 0)


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


if __name__ == "__main__":
    from terminal import run_script

    def tables(prog: Program) -> list[tuple[str, type, list[Any]]]:
        rows, checks = slab_caches(scan_slabs(prog))
        found: list[tuple[str, type, list[Any]]] = [("Slab caches", SlabCache, rows)]
        if checks:
            found.append(("What does not add up", SlabCheck, checks))
        return found

    run_script(tables)
