# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pages that are known by where they are: RAM, the kernel image, vmalloc areas, struct pages.
What a struct page cannot say, its place can: a page of a vmalloc area looks like any other. Places
are gathered before the pass over all struct pages, and looked up chunk by chunk.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from drgn import FaultError, Object, Program, ProgramFlags, TypeKind, cast
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import follow_phys, page_to_pfn, pfn_to_virt

from mmscope.drgn.holders.kernel_stacks import block_pages
from mmscope.drgn.ledger.held_places import holdings
from mmscope.drgn.ledger.page_kinds import Kind
from mmscope.drgn.machine.physical_memory import e820_map
from mmscope.drgn.opening.constants import pmd_order
from mmscope.drgn.page_tables.page_table_entries import (
    frames_of_tables,
    kernel_root,
    process_roots,
)
from mmscope.drgn.page_tables.page_table_formats import page_table_format
from mmscope.drgn.page_tables.vmalloc_areas import (
    AREA,
    ENTRY,
    own_pages,
    vmalloc_once,
)
from mmscope.drgn.processes.address_spaces import kept_address_spaces
from mmscope.drgn.reading.cpus import possible_cpus
from mmscope.drgn.reading.io_resources import Resource, io_resources
from mmscope.drgn.reading.kernel_arrays import Array, Gaps, S64s, U8s, distinct, spread
from mmscope.drgn.reading.mem_sections import valid_page_ranges, valid_sections
from mmscope.drgn.reading.page_ext import page_ext_ranges, page_ext_size
from mmscope.drgn.sections.files import Absent
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.struct_pages.kasan_shadow import find_shadow
from mmscope.drgn.struct_pages.struct_page_cost import struct_page_cost
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import MOST_PAGES

RAM, CRASH_KERNEL, KERNEL = "System RAM", "Crash kernel", "Kernel "
IO_TLB_SHIFT = 11  # include/linux/swiotlb.h
NOT_RAM, IS_RAM = 0, 1
MAX_ORDER = 30  # beyond any architecture's: damage
MAX_ADDRESS_BITS = 52


class PageRanges:
    """
    Ranges of page frames, each with a kind: a number from 1 to 255.

    Filled with :meth:`add`; where ranges overlap, what was added later holds.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[S64s, S64s, int]] = []

    def add(self, kind: int, starts: S64s, lengths: S64s | int) -> None:
        """*lengths* pages from each of *starts* on are of a kind."""
        starts = np.asarray(starts, np.int64)
        self._parts.append((starts, starts + lengths, kind))
        self.__dict__.pop("_stretches", None)

    @functools.cached_property
    def _stretches(self) -> tuple[S64s, S64s, U8s]:
        """Starts, ends and kinds of stretches that do not overlap, ascending."""
        edges = [edge for starts, ends, _ in self._parts for edge in (starts, ends)]
        bounds = distinct(np.concatenate([np.empty(0, np.int64), *edges]))
        held = np.zeros(len(bounds), np.uint8)
        for starts, ends, kind in self._parts:
            low, high = np.searchsorted(bounds, starts), np.searchsorted(bounds, ends)
            held[spread(low, high - low)] = kind
        inside = np.flatnonzero(held)
        return bounds[inside], bounds[inside + 1], held[inside]

    def within(self, first: int, count: int) -> U8s:
        """The kind of each of *count* pages from *first* on; 0: of none of the ranges."""
        starts, ends, kinds = self._stretches
        low = int(np.searchsorted(ends, first, "right"))
        high = int(np.searchsorted(starts, first + count, "left"))
        high = max(low, high)
        edges = np.clip(np.stack([starts[low:high], ends[low:high]], axis=1) - first, 0, count)
        held = np.zeros(2 * (high - low) + 1, np.uint8)
        held[1::2] = kinds[low:high]
        return np.repeat(held, np.diff(edges.ravel(), prepend=0, append=count))


@dataclass
class PagePlaces:
    """Pages that are known by their place, and the gaps."""

    ram: PageRanges = field(default_factory=PageRanges)
    owned: PageRanges = field(default_factory=PageRanges)
    areas: Array = field(default_factory=lambda: np.empty(0, AREA))
    entries: Array = field(default_factory=lambda: np.empty(0, ENTRY))
    area_kinds: S64s | None = None  # of the areas, if they are read; 0: no own pages
    area_gaps: Gaps = field(default_factory=Gaps)
    missing: list[str] = field(default_factory=list)
    end: int = MOST_PAGES  # behind the last page that has a struct page


def find_places(memory: Memory) -> PagePlaces:
    """All places, once for all sections."""
    return memory.once("page_places", lambda: page_places(memory))


def page_places(memory: Memory) -> PagePlaces:
    """
    Find all places.

    :raises LookupError: the kernel's layout is unknown, or what is RAM cannot be found out.
    """
    prog, places = memory.prog, PagePlaces()
    places.end = max(stop for _, stop, _ in valid_page_ranges(prog))
    resources, more = io_resources(prog)
    if more:
        resources += _by_firmware(prog, more)
        places.missing.append(
            f"what is RAM, by the firmware's map, without hot-added memory: {more}"
        )
    _add_resources(prog, places, resources)
    for what, find in FINDERS.items():
        try:
            find(memory, places)
        except (Absent, FaultError, LookupError, NotImplementedError, ValueError) as reason:
            places.missing.append(f"{what}: {reason}")
    return places


def _by_firmware(prog: Program, why: str) -> list[Resource]:
    """
    System RAM as the kernel took it over from the firmware (``e820__reserve_resources()``).

    :raises LookupError: there is no such map on this architecture, or it cannot be read.
    """
    try:
        ranges = e820_map(prog, "e820_table") or []
    except (FaultError, ValueError) as error:
        raise LookupError(f"{why}; {error}") from None
    found = [Resource(row.start, row.end, RAM, 0, -1) for row in ranges if row.kind == RAM]
    if not found:
        raise LookupError(why)
    return found


def _add_resources(prog: Program, places: PagePlaces, resources: list[Resource]) -> None:
    """
    RAM is what lies in System RAM as whole pages and is online (``memblock.memory`` while booting).
    """
    shift = int(prog["PAGE_SHIFT"].value_())
    for row in resources:
        first, stop = -(-row.start >> shift), row.end >> shift
        if row.name.startswith(RAM):
            _add(places.ram, IS_RAM, first, stop)
        elif row.name.startswith(KERNEL) and _in_ram(resources, row):
            _add(places.owned, Kind.IMAGE, row.start >> shift, -(-row.end >> shift))
        elif row.name == CRASH_KERNEL:
            _add(places.owned, Kind.CRASH, first, stop)
    if "mem_section" in prog:
        sections = valid_sections(prog)
        offline = sections.numbers[~sections.online] * sections.pages
        places.ram.add(NOT_RAM, offline, sections.pages)


def _add(ranges: PageRanges, kind: int, first: int, stop: int) -> None:
    ranges.add(kind, np.array([first], np.int64), max(stop - first, 0))


def _own(places: PagePlaces, kind: Kind, first: int, stop: int) -> None:
    """
    Add pages that have an owner.

    :raises ValueError: no machine has them.
    """
    if not 0 <= first <= stop <= places.end:
        raise ValueError(f"page frames {first:#x} to {stop:#x} are damaged")
    _add(places.owned, kind, first, stop)


def _in_ram(resources: list[Resource], row: Resource) -> bool:
    return row.parent >= 0 and resources[row.parent].name.startswith(RAM)


def _add_areas(memory: Memory, places: PagePlaces) -> None:
    """Add vmalloc areas, kernel stacks and percpu chunks among them, and their page tables."""
    prog = memory.prog
    found = vmalloc_once(memory)
    areas, entries = places.areas, places.entries = found.areas, found.entries
    places.area_gaps.bytes += found.gaps.bytes
    if not found.whole:
        places.missing.append("vmalloc areas: some could not be read")
    places.missing += if_any(places.area_gaps.bytes, "vmalloc areas: {} bytes could not be read")
    owned = own_pages(areas)
    kinds = np.where(owned, Kind.VMALLOC, 0)
    # Those of tasks, and what has their callers: stacks of tasks that have ended, or are to come.
    held = holdings(memory)
    if block_pages(prog) is None and (why := held.failed.get("kernel stacks")):
        places.missing.append(f"vmalloc areas: some stacks may be taken for others: {why}")
    stacks = np.concatenate([np.empty(0, np.int64), *held.stacks])
    kinds[owned & np.isin(areas["caller"], distinct(areas["caller"][stacks]))] = Kind.STACK
    kinds[stacks] = Kind.STACK
    # pcpu_get_vm_areas() gives itself as the caller.
    percpu = np.uint64(prog.symbol("pcpu_get_vm_areas").address)
    kinds[owned & (areas["caller"] == percpu)] = Kind.PERCPU
    places.area_kinds = kinds
    for kind in (Kind.VMALLOC, Kind.STACK, Kind.PERCPU):
        here = entries[kinds[entries["area"]] == kind]
        places.owned.add(kind, here["pfn"], here["pages"])
    places.owned.add(Kind.KERNEL_TABLE, found.tables, 1)


def _add_struct_pages(memory: Memory, places: PagePlaces) -> None:
    frames = struct_page_cost(memory).frames
    places.owned.add(Kind.MEMMAP, frames.starts, frames.sizes)
    places.owned.add(Kind.KERNEL_TABLE, frames.tables, 1)


def _add_shadow(memory: Memory, places: PagePlaces) -> None:
    """Before vmalloc areas: that of modules and of hot-added memory is such an area."""
    found = find_shadow(memory)
    places.owned.add(Kind.SHADOW, found.starts, found.sizes)
    places.owned.add(Kind.KERNEL_TABLE, found.tables, 1)
    places.missing += if_any(
        found.unreadable_bytes, "the KASAN shadow: {} bytes of tables could not be read"
    )


def _add_page_ext(memory: Memory, places: PagePlaces) -> None:
    """``page_ext`` that is not vmalloc memory, which an area has."""
    prog = memory.prog
    try:
        size = page_ext_size(prog)
    except LookupError:
        return  # built without
    if not size:
        return
    base, page = pfn_to_virt(prog, 0).value_(), int(prog["PAGE_SIZE"].value_())
    top = base + (int(prog["max_pfn"].value_()) << int(prog["PAGE_SHIFT"].value_()))
    for row in page_ext_ranges(prog):
        end = row.address + size * (row.end_pfn - row.start_pfn)
        if base <= row.address < end <= top:
            _own(places, Kind.PAGE_EXT, (row.address - base) // page, -(-(end - base) // page))


def _add_first_chunk(memory: Memory, places: PagePlaces) -> None:
    """
    The first chunk lies in the direct map, a unit for each CPU (``pcpu_embed_first_chunk()``). The
    page allocator got back what units have beyond it.
    """
    prog = memory.prog
    base, page = pfn_to_virt(prog, 0).value_(), int(prog["PAGE_SIZE"].value_())
    start = int(prog["pcpu_base_addr"].value_())
    if start < base:
        return  # in vmalloc memory (pcpu_page_first_chunk())
    chunk = prog["pcpu_first_chunk"]
    size = chunk.base_addr.value_() + chunk.nr_pages.value_() * page - start
    for cpu in possible_cpus(prog):
        first = start + int(prog["pcpu_unit_offsets"][cpu].value_()) - base
        _own(places, Kind.BOOT_PERCPU, first // page, -(-(first + size) // page))


# Address spaces that no process has: text_poke()'s, and the firmware's.
OTHER_SPACES = ("poking_mm", "text_poke_mm", "efi_mm")


def _add_roots(memory: Memory, places: PagePlaces) -> None:
    """
    Tables of processes that have no page type: the roots up to 6.12, with page table isolation two
    pages, in an allocation that is no compound page; and of the levels between them and the PMDs
    those of older kernels (PUDs in 6.1, P4Ds in 6.12).
    """
    prog, form = memory.prog, page_table_format(memory.prog)
    spaces = kept_address_spaces(memory, Gaps())
    pgds = []
    for name in OTHER_SPACES:
        if name in prog:
            space = prog[name]
            is_variable = space.type_.kind is TypeKind.STRUCT  # without tables, if it is not used
            if is_variable or space:
                pgds.append(space.pgd.value_())
                if not is_variable and not pgds[-1]:
                    places.missing.append(f"{name} has no page tables")
            else:  # poking_init() (arch/x86/mm/init.c), of start_kernel()
                places.missing.append(f"{name} is 0, as it is at boot alone")
    roots = process_roots(prog, np.append(spaces.columns["pgd"], np.array(pgds, np.uint64)))
    roots = roots[roots < np.uint64(1 << MAX_ADDRESS_BITS)]  # not yet, or damage
    if form.table_bytes(0) >> form.page_shift:  # arm64 has smaller ones, objects of a slab cache
        frames = (roots >> np.uint64(form.page_shift)).astype(np.int64)
        places.owned.add(Kind.ROOT_TABLE, frames, 1)
    upper = frames_of_tables(prog, form, roots, form.last - 2, Gaps())
    places.owned.add(Kind.ROOT_TABLE, upper, 1)


def _add_kernel_tables(memory: Memory, places: PagePlaces) -> None:
    """
    The tables of all that the kernel maps: of the direct map where it is split, say. Those of PTEs
    are not read, as others map memory page by page (arm64, or debug_pagealloc).
    """
    prog, form, gaps = memory.prog, page_table_format(memory.prog), Gaps()
    start, end = form.kernel
    tables = frames_of_tables(prog, form, kernel_root(prog), form.last, gaps, start=start, end=end)
    places.owned.add(Kind.KERNEL_TABLE, tables, 1)
    places.missing += if_any(gaps.bytes, "the kernel's page tables: {} bytes could not be read")


# kernel/dma/pool.c: for atomic allocations of DMA memory, from "dma-pool: add additional coherent
# pools to map to gfp mask" (c84dc6e68a1d, in v5.8) on one for each kind of zone.
ATOMIC_POOLS = ("atomic_pool_dma", "atomic_pool_dma32", "atomic_pool_kernel")
MAX_CHUNKS = 4096


def _add_dma_pools(memory: Memory, places: PagePlaces) -> None:
    prog = memory.prog
    shift, live = int(prog["PAGE_SHIFT"].value_()), bool(prog.flags & ProgramFlags.IS_LIVE)
    for name in ATOMIC_POOLS:
        if name not in prog:
            continue
        pool = prog[name]
        if hasattr(pool, "pool"):  # struct dma_gen_pool, in v7.3
            pool = pool.pool
        chunks = list(_chunks(pool)) if pool else []
        for start, size in chunks:
            _own(places, Kind.DMA_POOL, start >> shift, start + size >> shift)
        total, size_of = sum(size for _, size in chunks), name.replace("atomic_pool", "pool_size")
        if size_of in prog and not live and total != (said := prog[size_of].value_()):
            places.missing.append(f"{name} has {total:,} bytes, {size_of} says {said:,}")
    if "io_tlb_default_mem" in prog:
        bounce = prog["io_tlb_default_mem"]
        # "swiotlb: separate memory pool data from other allocator data" (158dbe9c9a3d, in v6.6)
        if hasattr(bounce, "defpool"):
            bounce = bounce.defpool
        start, end = bounce.start.value_(), bounce.end.value_()
        if end - start != bounce.nslabs.value_() << IO_TLB_SHIFT:
            raise ValueError(f"bounce buffers are damaged: {start:#x} to {end:#x}")
        if start < end:
            _own(places, Kind.DMA_POOL, start >> shift, end >> shift)


def _chunks(pool: Object) -> Iterator[tuple[int, int]]:
    """
    The physical address and the bytes of each chunk of a ``struct gen_pool``.

    :raises ValueError: a chunk is mapped elsewhere.
    """
    chunks = list_for_each_entry("struct gen_pool_chunk", pool.chunks.address_of_(), "next_chunk")
    for chunk in itertools.islice(chunks, MAX_CHUNKS):
        said, start = chunk.phys_addr.value_(), chunk.start_addr.value_()
        place = follow_phys(pool.prog_["init_mm"].address_of_(), start).value_()
        if said != place:
            raise ValueError(f"a pool of DMA memory is at {place:#x}, not at {said:#x}")
        yield said, chunk.end_addr.value_() + 1 - start


# mempool_t of pages that are globals of the kernel; those of drivers are not known.
MEMPOOLS = ("integrity_buf_pool",)


def _add_mempools(memory: Memory, places: PagePlaces) -> None:
    """Pages that wait in a pool: ``mempool_t.elements`` up to ``curr_nr``."""
    prog = memory.prog
    for name in MEMPOOLS:
        if name not in prog:
            continue
        pool = prog[name]
        order = pool.pool_data.value_()  # of mempool_alloc_pages()
        held, most = pool.curr_nr.value_(), pool.min_nr.value_()
        if order > MAX_ORDER or not 0 <= held <= most:
            places.missing.append(f"{name} is damaged: {held:,} of {most:,}, of order {order:,}")
            continue
        for at in range(min(held, MAX_CHUNKS)):
            page = cast("struct page *", pool.elements[at])
            first = page_to_pfn(page).value_()
            _own(places, Kind.MEMPOOL, first, first + (1 << order))


def _add_held(memory: Memory, places: PagePlaces) -> None:
    """Pages of pipes, sockets and rings; not those that have a mark or a place of their own."""
    found = holdings(memory)
    for kind in distinct(found.kinds[found.kinds != 0]).tolist():
        here = found.kinds == kind
        places.owned.add(kind, found.starts[here], found.stops[here] - found.starts[here])
    if memory.live:
        return  # what was let go meanwhile leads nowhere
    places.missing += found.missing
    places.missing += if_any(found.gaps.bytes, "who holds pages: {} bytes could not be read")


def _add_huge_zero_page(memory: Memory, places: PagePlaces) -> None:
    """``huge_zero_pfn`` is ~0 as long as there is no huge zero page."""
    prog = memory.prog
    if "huge_zero_pfn" in prog:
        first = int(prog["huge_zero_pfn"].value_())
        for name in ("huge_zero_folio", "huge_zero_page"):
            if name not in prog or memory.live:
                continue
            # get_huge_zero_page() sets the number last (mm/huge_memory.c).
            page, none = prog[name].read_(), (1 << 64) - 1
            frame = int(page_to_pfn(cast("struct page *", page))) if page else none
            # Only while it is there is it referred to.
            there = "huge_zero_refcount" in prog and int(prog["huge_zero_refcount"].counter) > 0
            if first not in (frame, none) or (first == none != frame and there):
                places.missing.append(f"huge_zero_pfn is {first:#x}, {name} is {frame:#x}")
        if first < 1 << 52:
            _own(places, Kind.HUGE_ZERO, first, first + (1 << pmd_order(prog)))


# What is found where, in this order: where places overlap, the later one holds.
FINDERS: dict[str, Callable[[Memory, PagePlaces], None]] = {
    "what pipes, sockets and rings hold": _add_held,
    "the kernel's page tables": _add_kernel_tables,
    "the first percpu chunk": _add_first_chunk,
    "the KASAN shadow": _add_shadow,
    "vmalloc areas": _add_areas,
    "struct pages": _add_struct_pages,
    "page_ext": _add_page_ext,
    "root tables": _add_roots,
    "DMA pools": _add_dma_pools,
    "mempools": _add_mempools,
    "the huge zero page": _add_huge_zero_page,
}
