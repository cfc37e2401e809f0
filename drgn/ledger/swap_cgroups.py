# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Swap of memory cgroups, by area; and the bytes that zswap and zram take for it, compressed.

Each slot has the number of the cgroup that it is charged to: in ``swap_cluster_info.memcg_table``
(7.2), before in ``swap_cgroup_ctrl[]``, by area. zswap's entry of a slot has its ``objcg``; a zram
device has the size of each page that it stores (``zram_table_entry``).

Exact: with those of the cgroups below it ``swapped_bytes`` is memory.swap.current, ``zswap_bytes``
memory.zswap.current; ``zram_bytes`` of all, and of the area's header, are the second number of
mm_stat. Costs a read of 2 bytes for each slot, of zram's 16 to 32, and of each entry of zswap.

Cannot know: which pages of zsmalloc are whose, as several have objects in one; what is in zswap of
kernels before v6.10, which keep it in trees of another kind (memory.stat counts it).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from drgn import Object, Program, TypeKind, sizeof
from drgn.helpers.linux.mm import page_to_virt

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.cgroups.cgroup_rows import ID, PATH
from mmscope.drgn.cgroups.id_trees import xarray_pointers
from mmscope.drgn.cgroups.memcgs import Memcgs
from mmscope.drgn.reading.kernel_arrays import Array, Gaps, S64s, read_array, struct_dtype
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.scattered_reads import read_members, read_scattered
from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import table

NUMBERS = 1 << 16  # of memory cgroups: up to MEM_CGROUP_ID_MAX; 0 is none
NUMBER = np.dtype("<u2")
TOGETHER = 1 << 10  # pieces of numbers
MOST_TREES = 1 << 20  # of zswap: each has 64 MiB of an area


@table(
    "swap_cgroups",
    "Swapped out by memory cgroup",
    empty="Nothing that is swapped out is charged to a memory cgroup.",
    memory="again",
    measure="swapped_bytes",
    lasting=("path", "cgroup"),
    since="0.3.0",
)
class SwapCgroup:
    """Slots of a swap area that are charged to a memory cgroup."""

    path: str | None = column(holds="file", key=True, help="the area, as in swap_areas")
    cgroup: str | None = column(holds="cgroup", key=True, help=f"{PATH}; empty: unknown")
    cgroup_id: int | None = column(key=True, help=ID)
    swapped_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="slots that are charged to the cgroup itself"
    )
    zswapped_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="pages that zswap has of it, uncompressed"
    )
    zswap_bytes: int | None = column(unit="bytes", help="these compressed")
    zram_bytes: int | None = column(
        unit="bytes", help="compressed on the area's zram device; empty: none, or unknown"
    )


class Area(NamedTuple):
    """A swap area, and its zram device (``struct zram``), if it is on one that is known."""

    info: Object
    path: str | None
    zram: Object | None


def swap_cgroups(memcgs: Memcgs, areas: Sequence[Area], gaps: Gaps) -> list[SwapCgroup]:
    """
    Add up what each memory cgroup has in each area, the most first.

    :raises FaultError: what leads to it cannot be read.
    :raises LookupError: the kernel does not charge swap, or its layout is unknown.
    """
    prog, unknown = memcgs.prog, len(memcgs.address)
    page = int(prog["PAGE_SIZE"].value_())
    paths = [*cgroup_paths(prog, memcgs.columns["cgroup"], gaps), (None, None)]
    numbers = memcgs.column("number")
    if numbers is None:
        raise LookupError("memory cgroups have no number that slots may have")
    known = (numbers > 0) & (numbers < NUMBERS)
    position = np.full(NUMBERS, unknown, np.int64)
    position[numbers[known]] = np.flatnonzero(known)
    rows = []
    for area in areas:
        slots, on_zram = _charged(area, gaps)
        slots, on_zram = (
            np.bincount(position, each, unknown + 1).astype(np.int64) for each in (slots, on_zram)
        )
        in_zswap = _in_zswap(memcgs, area.info, gaps)
        stored, taken = in_zswap if in_zswap is not None else (np.zeros_like(slots),) * 2
        rows += [
            SwapCgroup(
                area.path,
                *paths[at],
                int(slots[at]) * page,
                None if in_zswap is None else int(stored[at]) * page,
                None if in_zswap is None else int(taken[at]),
                None if area.zram is None else int(on_zram[at]),
            )
            for at in np.flatnonzero(slots | stored).tolist()
        ]
    rows.sort(key=lambda row: (-row.swapped_bytes, str(row.path), str(row.cgroup)))
    return rows


def _charged(area: Area, gaps: Gaps) -> tuple[S64s, S64s]:
    """Slots, and bytes on the zram device, by the number of the cgroup."""
    slots, taken = np.zeros(NUMBERS, np.int64), np.zeros(NUMBERS, np.int64)
    for first, numbers in _numbers(area.info, gaps):
        slots += np.bincount(numbers, minlength=NUMBERS)
        if area.zram is None or not numbers.any():
            continue
        for at, sizes in _sizes(area.zram, first, len(numbers), gaps):
            here = numbers[at : at + len(sizes)]
            taken += np.bincount(here, sizes, NUMBERS).astype(np.int64)
    slots[0] = taken[0] = 0  # free slots, and the area's header
    return slots, taken


def _numbers(info: Object, gaps: Gaps) -> Iterator[tuple[int, Array]]:
    """(first slot, number of the cgroup of each from there on) of an area: chunk for chunk."""
    prog, count = info.prog_, int(info.max.value_())
    cluster = prog.type("struct swap_cluster_info")
    # "mm/memcg, swap: store cgroup id in cluster table directly" (by v7.2)
    if cluster.has_member("memcg_table"):
        each = sizeof(prog.type("struct swap_memcg_table")) // NUMBER.itemsize
        clusters = struct_dtype(cluster, {"table": "memcg_table"})
        found = read_array(prog, info.cluster_info.value_(), -(-count // each), clusters, gaps)
        for first, part in found:
            yield from _pieces(prog, part["table"], each, first * each, gaps)
        return
    of_area = prog["swap_cgroup_ctrl"][info.type]
    # "mm, swap_cgroup: remove global swap cgroup lock" (in v6.14): two numbers a word, one array
    if of_area.map.type_.type.unaliased().kind is not TypeKind.POINTER:
        if of_area.map:
            yield from read_array(prog, of_area.map.value_(), count, NUMBER, gaps)
        return
    each = int(prog["PAGE_SIZE"].value_()) // NUMBER.itemsize
    pages = -(-count // each)
    for first in range(0, pages if of_area.map else 0, TOGETHER):
        here = range(first, min(first + TOGETHER, pages))
        places = np.array([page_to_virt(of_area.map[at]).value_() for at in here], np.uint64)
        yield from _pieces(prog, places, each, first * each, gaps)


def _pieces(
    prog: Program, places: Array, each: int, first: int, gaps: Gaps
) -> Iterator[tuple[int, Array]]:
    """Numbers that lie in pieces; those of pieces that are not there are 0."""
    for start in range(0, len(places), TOGETHER):
        here = places[start : start + TOGETHER]
        numbers = np.zeros((len(here), each), NUMBER)
        there = np.flatnonzero(here)
        found, read = read_scattered(prog, here[there], np.dtype((NUMBER, (each,))), gaps)
        numbers[there[read]] = found[read]
        yield first + start * each, numbers.ravel()


def _sizes(zram: Object, first: int, count: int, gaps: Gaps) -> Iterator[tuple[int, S64s]]:
    """
    (index from *first* on, compressed bytes) of pages of a zram device: ``zram_get_obj_size()``.

    A page of one word throughout takes nothing, nor what was written back to a disk: its handle is
    a place there, and no address.
    """
    prog = zram.prog_
    entry = zram.table.type_.type
    dtype = struct_dtype(entry, {"handle": "handle", "flags": ("attr.flags", "flags")})
    # ZRAM_FLAG_SHIFT: the lower bits are the size.
    mask = np.uint64((2 << int(prog["PAGE_SHIFT"].value_())) - 1)
    count = min(count, (int(zram.disksize.value_()) >> int(prog["PAGE_SHIFT"].value_())) - first)
    start = zram.table.value_() + first * sizeof(entry)
    for at, part in read_array(prog, start, max(count, 0), dtype, gaps):
        stored = part["handle"] >> np.uint64(63) != 0
        yield at, np.where(stored, part["flags"] & mask, 0).astype(np.int64)


def _in_zswap(memcgs: Memcgs, info: Object, gaps: Gaps) -> tuple[S64s, S64s] | None:
    """Pages that zswap has of an area, and their bytes compressed, by cgroup; None: unknown."""
    prog, unknown = memcgs.prog, len(memcgs.address)
    if "zswap_trees" not in prog:
        nothing = np.zeros(unknown + 1, np.int64)
        return nothing, nothing
    if prog.type("struct zswap_entry").has_member("rbnode"):
        # Until "zswap: replace RB tree with xarray" (796c2c23e14e, in v6.10)
        return None
    trees = prog["zswap_trees"][info.type]
    count = int(prog["nr_zswap_trees"][info.type].value_()) if trees else 0
    charged, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for at in range(min(count, MOST_TREES)):
        entries, _ = xarray_pointers(prog, trees[at], gaps)
        columns = {"length": "length", "objcg": "objcg"}
        type_ = prog.type("struct zswap_entry")
        found, read = read_members(prog, entries, type_, columns, gaps)
        charged.append(_memcgs(memcgs, found["objcg"][read], gaps))
        sizes.append(found["length"][read].astype(np.int64))
    of = np.concatenate(charged)
    stored = np.bincount(of, minlength=unknown + 1)
    taken = np.bincount(of, np.concatenate(sizes), unknown + 1)
    return stored, taken.astype(np.int64)


def _memcgs(memcgs: Memcgs, objcgs: Array, gaps: Gaps) -> S64s:
    """The position of each ``struct obj_cgroup``'s cgroup; none is the root."""
    type_ = memcgs.prog.type("struct obj_cgroup")
    there = objcgs != 0
    found, read = read_members(memcgs.prog, objcgs[there], type_, {"memcg": "memcg"}, gaps)
    owner = np.full(len(objcgs), memcgs.prog["root_mem_cgroup"].value_(), np.uint64)
    owner[there] = np.where(read, found["memcg"], 0)
    at = find(memcgs.address, owner)
    return np.where(at < 0, len(memcgs.address), at)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("swap", "swap_cgroups")
