# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct pcpu_chunk`` (mm/percpu-internal.h): the memory of percpu allocations, chunk by chunk, and
the allocations by their size.

A chunk has a unit for each possible CPU. Every allocation takes its size in each unit, so that 8
bytes are 8 KiB on a machine of 1,024 CPUs. Two bitmaps, a bit for four bytes, say what is
allocated and where allocations begin (mm/percpu.c, ``pcpu_alloc_area()``); added up they are what
``free_bytes`` leaves. The kernel's own percpu variables lie before the first chunk. All of it is
Percpu of /proc/meminfo (``pcpu_nr_pages()``).

Costs some reads a chunk. Cannot know: who allocated; where memory cgroups are charged,
``cgroups/percpu_owners.py`` has whose it is.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
from drgn import Object, Program, ProgramFlags, cast
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.cgroups.percpu_owners import PercpuCgroup, PercpuOwners
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.reading.cpus import possible_cpus
from mmscope.drgn.reading.kernel_arrays import TORN, S64s, U8s
from mmscope.drgn.sections.files import Absent
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section, not_in_text
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import Inside, table, tables_of

BIT_BYTES = 4  # PCPU_MIN_ALLOC_SIZE, include/linux/percpu.h
MAX_CHUNKS = 1 << 16  # beyond, a list leads in a circle
# What a chunk's contig_hint may lack, and never has too much: a stretch grows at either end by less
# than a page without being looked at again (pcpu_block_update_hint_free(), mm/percpu.c). A stretch
# of less than a page is in no hint at times: the first chunk's of 7.2 is 0 with 96 bytes free.
HINT_PAGES = 2
MAX_UNIT = 1 << 27  # bytes: of more, the number of pages is damaged
STATIC, FIRST, RESERVED, OTHER = "variables", "first", "modules", "further"


@table(
    "percpu_chunks", "Chunks of percpu memory", memory="again", measure="bytes", lasting=("kind",)
)
class PercpuChunk:
    """A chunk of percpu memory."""

    address: str = column(holds="kernel", key=True, help="base_addr: the first CPU's unit")
    # The room for modules may begin in the page in which the first chunk does.
    kind: str = column(
        holds="words",
        key=True,
        help="variables: the kernel's; modules: room for theirs; first: of boot; further: later",
    )
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="populated pages of all units")
    used_bytes: int = column(unit="bytes", high=MOST_BYTES, help="allocated in all units")
    allocations: int | None = column(help="empty: none, or unreadable")
    empty_pages: int = column(unit="pages", help="populated pages of a unit without any allocation")
    unit_bytes: int = column(unit="bytes", high=MAX_UNIT, help="of one CPU")
    unit_free_bytes: int = column(
        unit="bytes", high=MAX_UNIT, help="free in a unit, unpopulated pages included"
    )
    largest_free_bytes: int = column(
        unit="bytes", high=MAX_UNIT, help="largest allocation that fits"
    )


@table(
    "percpu_sizes",
    "Percpu allocations by size",
    memory="again",
    measure="bytes",
    inside=(Inside("percpu", "bytes"),),
)
class PercpuSize:
    """Percpu allocations of one size."""

    size_bytes: int = column(unit="bytes", key=True, high=MAX_UNIT, help="for each CPU")
    allocations: int = column(help="allocations of this size")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="on all possible CPUs")


def chunks(prog: Program) -> Iterator[tuple[str, Object]]:
    """
    All chunks, with their kind.

    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: a list cannot be read.
    """
    first, reserved = prog["pcpu_first_chunk"].read_(), prog["pcpu_reserved_chunk"].read_()
    if reserved:
        yield RESERVED, reserved
    seen = 0
    # Also the lists of chunks that are full, and of those that are taken apart.
    # Before "percpu: rework memcg accounting" (faf65dde844a, in v5.14) those of memory cgroups were
    # chunks of another type, with as many lists of their own.
    types = constant(prog, "PCPU_NR_CHUNK_TYPES", 1)
    for slot in range(int(prog["pcpu_nr_slots"].value_()) * types):
        head = prog["pcpu_chunk_lists"][slot].address_of_()
        for chunk in list_for_each_entry("struct pcpu_chunk", head, "list"):
            if (seen := seen + 1) > MAX_CHUNKS:
                raise LookupError(f"more than {MAX_CHUNKS:,} percpu chunks: their list is damaged")
            yield FIRST if chunk == first else OTHER, chunk


def percpu(
    prog: Program, owners: PercpuOwners | None = None
) -> tuple[list[PercpuChunk], list[PercpuSize], list[str]]:
    """
    Chunks, the largest first; allocations by size; and what could not be read or does not fit.

    :param owners: is given the allocations of each chunk.
    :raises LookupError, FaultError: as :func:`chunks`.
    """
    page, units = int(prog["PAGE_SIZE"].value_()), int(prog["pcpu_nr_units"].value_())
    rows, sizes, notes = [], Counter[int](), []
    for kind, chunk in chunks(prog):
        address = chunk.base_addr.value_()
        pages, free = int(chunk.nr_pages), int(chunk.free_bytes)
        unit = pages * page
        usable = unit - int(chunk.start_offset) - int(chunk.end_offset)
        if address % page or not 0 <= free <= usable <= MAX_UNIT:
            notes.append(f"chunk {address:#x} is damaged: {free:,} of {usable:,} bytes are free")
            continue
        found = None
        hint = int(chunk.chunk_md.contig_hint) * BIT_BYTES
        try:
            largest = _largest_free(prog, chunk, unit)
            if not 0 <= largest - hint <= HINT_PAGES * page or (largest >= page and not hint):
                notes.append(
                    f"chunk {address:#x}: contig_hint has {hint:,} bytes in one piece, its bitmap "
                    f"{largest:,}"
                )
            notes += _pages_apart(prog, chunk, page)
            starts, widths = _allocations(prog, chunk, unit)
            values, numbers = np.unique(widths, return_counts=True)
            found = Counter(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
            if owners is not None:
                owners.take(chunk, starts, widths)
            notes += _area_apart(prog, chunk) if kind == OTHER and units > 1 else ()
        except TORN as error:
            notes.append(f"chunk {address:#x}: {error}")
        if found is not None:
            sizes.update(found)
            if (total := sum(size * number for size, number in found.items())) != usable - free:
                notes.append(
                    f"chunk {address:#x}: bitmaps have {total:,} allocated bytes, "
                    f"free_bytes leaves {usable - free:,}"
                )
        populated = int(chunk.nr_populated) * page
        if kind == RESERVED:
            populated -= shared_with_first(prog, address + unit)
        rows.append(
            PercpuChunk(
                f"{address:#x}",
                kind,
                populated * units,
                (usable - free) * units,
                None if found is None else found.total(),
                max(int(chunk.nr_empty_pop_pages), 0),
                unit,
                free,
                hint,
            )
        )
    rows += _variables(prog, page, units)
    notes += _places_apart(prog)
    by_size = [PercpuSize(size, number, size * number * units) for size, number in sizes.items()]
    rows.sort(key=lambda row: (-row.bytes, row.address))
    return rows, sorted(by_size, key=lambda row: (-row.bytes, row.size_bytes)), notes


def _pages_apart(prog: Program, chunk: Object, page: int) -> Iterator[str]:
    """
    Words where a chunk's counts of pages are not those of its bitmaps, in a dump. While one
    allocates, pages are populated later than they are given out (``pcpu_alloc()``, under
    ``pcpu_alloc_mutex``).
    """
    if prog.flags & ProgramFlags.IS_LIVE:
        return
    mutex = prog["pcpu_alloc_mutex"]
    if mutex.owner.counter if hasattr(mutex, "owner") else mutex.rtmutex.owner:  # PREEMPT_RT
        return
    pages = int(chunk.nr_pages)
    populated = _bitmap(prog, chunk.populated, pages) != 0
    used = _bitmap(prog, chunk.alloc_map, pages * page // BIT_BYTES).reshape(pages, -1).any(axis=1)
    for name, found in (("nr_populated", populated), ("nr_empty_pop_pages", populated & ~used)):
        if (said := int(chunk.member_(name))) != (number := int(np.count_nonzero(found))):
            address = chunk.base_addr.value_()
            yield f"chunk {address:#x}: {name} is {said:,}, by its bitmaps {number:,}"


def _area_apart(prog: Program, chunk: Object) -> Iterator[str]:
    """
    Words where a chunk does not begin with its areas (``pcpu_create_chunk()``, mm/percpu-vm.c). The
    first area is that of some CPU's group.
    """
    begin = cast("struct vm_struct **", chunk.data)[0].addr.value_()
    address, offsets = chunk.base_addr.value_(), prog["pcpu_unit_offsets"]
    if begin - address not in {offsets[cpu].value_() for cpu in possible_cpus(prog)}:
        yield f"chunk {address:#x}: its first vmalloc area begins at {begin:#x}"


def empty_pages_apart(prog: Program) -> Iterator[str]:
    """
    Words where ``pcpu_nr_empty_pop_pages`` is not the sum of what chunks have. The kernel leaves
    out the reserved chunk and isolated ones (``pcpu_update_empty_pages()``,
    ``pcpu_isolate_chunk()``, mm/percpu.c). Nothing before v5.14.
    """
    if not prog.type("struct pcpu_chunk").has_member("isolated"):
        return
    number = prog["pcpu_nr_empty_pop_pages"]
    counted = int(getattr(number, "counter", number).value_())
    given = (chunk for kind, chunk in chunks(prog) if kind != RESERVED and not chunk.isolated)
    empty = sum(int(chunk.nr_empty_pop_pages.value_()) for chunk in given)
    if empty != counted:
        yield f"chunks have {empty:,} empty pages, pcpu_nr_empty_pop_pages says {counted:,}"


def shared_with_first(prog: Program, end: int) -> int:
    """
    Bytes of the reserved chunk's last page that are the first chunk's as well, and counted there.

    ``pcpu_setup_first_chunk()`` (mm/percpu.c): the kernel's variables need not fill pages, so the
    reserved chunk does not either (arm64).
    """
    return max(end - int(prog["pcpu_first_chunk"].base_addr.value_()), 0)


def _variables(prog: Program, page: int, units: int) -> list[PercpuChunk]:
    """
    The kernel's own variables, before the first chunk.

    The last page of theirs is the next chunk's as well (``start_offset``), and counted there.
    """
    chunk = prog["pcpu_reserved_chunk"].read_() or prog["pcpu_first_chunk"].read_()
    base = prog["pcpu_base_addr"].value_()
    size = chunk.base_addr.value_() - base
    if not 0 <= size <= MAX_UNIT:
        raise LookupError(f"percpu variables of {size:,} bytes: their addresses are damaged")
    used = (size + int(chunk.start_offset)) * units
    return [PercpuChunk(f"{base:#x}", STATIC, size * units, used, None, 0, size, 0, 0)]


def _places_apart(prog: Program) -> Iterator[str]:
    """
    Words where the kernel's own variables and the chunks at boot do not follow one another, without
    a hole (``pcpu_setup_first_chunk()``, mm/percpu.c).
    """
    at, what = prog["pcpu_base_addr"].value_(), "the kernel's own variables"
    with contextlib.suppress(LookupError):
        start, end = (prog.symbol(f"__per_cpu_{name}").address for name in ("start", "end"))
        at += -(-(end - start) // BIT_BYTES) * BIT_BYTES
        for name in ("pcpu_reserved_chunk", "pcpu_first_chunk"):
            if not (chunk := prog[name].read_()):
                continue
            begin = chunk.base_addr.value_() + int(chunk.start_offset)
            if begin != at:
                yield f"{name} begins at {begin:#x}, {what} end at {at:#x}"
            pages, what = int(chunk.nr_pages) * int(prog["PAGE_SIZE"].value_()), name
            at = chunk.base_addr.value_() + pages - int(chunk.end_offset)


def _allocations(prog: Program, chunk: Object, unit: int) -> tuple[S64s, S64s]:
    """
    The first bit of each allocation in the maps, and its bytes.

    What lies before the region that is given out, and after it, is marked as allocated
    (``pcpu_alloc_first_chunk()``).
    """
    bits = unit // BIT_BYTES
    used = _bitmap(prog, chunk.alloc_map, bits)
    bounds = np.flatnonzero(_bitmap(prog, chunk.bound_map, bits))
    ends = np.append(bounds[1:], bits)
    low, high = int(chunk.start_offset) // BIT_BYTES, bits - int(chunk.end_offset) // BIT_BYTES
    inside = (bounds >= low) & (bounds < high) & (used[bounds] != 0)
    return bounds[inside], (ends - bounds)[inside] * BIT_BYTES


def _largest_free(prog: Program, chunk: Object, unit: int) -> int:
    """Bytes of the longest stretch of the map that is not allocated."""
    bits = unit // BIT_BYTES
    used = np.flatnonzero(_bitmap(prog, chunk.alloc_map, bits))
    return int(np.diff(used, prepend=-1, append=bits).max() - 1) * BIT_BYTES


def _bitmap(prog: Program, array: Object, bits: int) -> U8s:
    """The bits of an array of unsigned long, or of one that is pointed to."""
    raw = prog.read(array[0].address_of_().value_(), -(-bits // 64) * 8)
    return np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[:bits]


def from_memory(memory: Memory) -> Found:
    prog, found = memory.prog, Found(memory.live)
    owners = None
    with contextlib.suppress(LookupError):
        owners = PercpuOwners(prog)
    rows, sizes, notes = percpu(prog, owners)
    found.differ(*notes)
    populated = int(prog["pcpu_nr_populated"].value_()) * int(prog["pcpu_nr_units"].value_())
    size = populated * int(prog["PAGE_SIZE"].value_())
    if not notes and size != (has := sum(row.bytes for row in rows)):
        found.differ(f"chunks have {has:,} bytes, pcpu_nr_populated says {size:,}")
    if not notes:
        found.differ(*empty_pages_apart(prog))
    found.add(PercpuChunk, rows).add(PercpuSize, sizes)
    with contextlib.suppress(Absent):
        if owners is not None:
            by_cgroup, unknown = owners.rows(memcgs_once(memory), int(prog["pcpu_nr_units"]))
            found.add(PercpuCgroup, by_cgroup)
            found.unreadable_bytes += owners.gaps.bytes
            charged = "allocation is", "allocations are"
            found.differ(*if_any(unknown, "{} charged to no memory cgroup", *charged))
    return found


PERCPU_SECTION = Section(
    name="percpu",
    title="Percpu memory",
    intro="""
Memory of which each CPU has a copy. An allocation takes its size once for every possible CPU: small
ones add up, with memory cgroups, network devices and BPF maps as their usual owners. Pages go back
only when nothing in them is allocated.
""",
    command=Command("percpu memory by chunk, by size of allocation and by memory cgroup", top=TOP),
    since="0.2.0",
    tables=tables_of(PercpuChunk, PercpuSize, PercpuCgroup),
    from_memory=from_memory,
    from_files=not_in_text(
        "chunks are read from the kernel's memory (as root); memory_ledger has their sum"
    ),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("percpu")
