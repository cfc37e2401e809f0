# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct vm_struct``: the kernel's virtually contiguous memory, by who asked for it.

All areas come out of the trees of ``struct vmap_area`` and are read together; which pages they have
is in the kernel's page tables. Pages that vmap() maps have another owner, who had them before
(``VM_MAP``), unless they were handed over with ``VM_MAP_PUT_PAGES``; ioremap() maps devices.

The text that says the same is /proc/vmallocinfo (root only).

Costs a few reads for a thousand areas, and a read for each run of page tables.
"""

import contextlib
from dataclasses import dataclass

import numpy as np
from drgn import FaultError, Program, ProgramFlags, offsetof

from mmscope.drgn.opening.constants import is_powerpc
from mmscope.drgn.page_tables.page_table_entries import kernel_root, new_walk, walk_page_tables
from mmscope.drgn.page_tables.page_table_formats import page_table_format
from mmscope.drgn.reading.kernel_arrays import (
    Array,
    Bools,
    Gaps,
    S64s,
    U64s,
    distinct,
    spread,
    struct_dtype,
)
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.sections.memory import Memory

MAX_AREAS = 4 << 20
MAX_NODES = 1 << 10
FLAGS_END = 1 << 16  # beyond all flags of an area (include/linux/vmalloc.h, 5.10 to 7.3)
MAX_DEPTH = 128  # of a red-black tree: 2 * log2(n + 1) at most
# include/linux/vmalloc.h; macros, which debug info does not keep. The same from 5.10 to 7.3.
VM_IOREMAP, VM_ALLOC, VM_MAP = 0x1, 0x2, 0x4
VM_MAP_PUT_PAGES = 0x200
# No module is further from the kernel's image: 2 GiB on x86-64, 4 on arm64 with KASLR.
NEAR = 1 << 33
FAR = 1 << 36  # areas further from each other are walked to one by one

AREA = np.dtype([(name, "<u8") for name in ("start", "end", "flags", "caller")])
# Mapped pages: the first page frame of an entry, how many pages it maps, the position of its area.
ENTRY = np.dtype([(name, np.int64) for name in ("pfn", "pages", "area")])


@dataclass(frozen=True, slots=True)
class VmallocAreas:
    """
    All areas, ascending, and what is mapped in them.

    :ivar areas: as :data:`AREA`; *entries*: as :data:`ENTRY`, by area.
    :ivar tables: page frames of their page tables.
    :ivar whole: no area is missing.
    """

    areas: Array
    entries: Array
    tables: S64s
    whole: bool
    gaps: Gaps

    def at(self, addresses: U64s) -> S64s:
        """Positions of the areas with pages of their own that addresses lie in; -1: none."""
        found = np.searchsorted(self.areas["start"], addresses, "right").astype(np.int64) - 1
        inside = found >= 0
        inside[inside] = addresses[inside] < self.areas["end"][found[inside]]
        inside[inside] = own_pages(self.areas[found[inside]])
        return np.where(inside, found, -1)

    def pages_of(self, at: S64s) -> Array:
        """Entries of some areas."""
        low = np.searchsorted(self.entries["area"], at)
        high = np.searchsorted(self.entries["area"], at, "right")
        found: Array = self.entries[spread(low, high - low)]
        return found


def vmalloc_once(memory: Memory) -> VmallocAreas:
    """All areas, read once for all sections: see :func:`vmalloc_areas`."""
    return memory.once("vmalloc_areas", lambda: vmalloc_areas(memory.prog))


def own_pages(areas: Array) -> Bools:
    """Areas that own the pages that are mapped in them."""
    flags = areas["flags"]
    plain = (flags & np.uint64(VM_ALLOC | VM_MAP)) == np.uint64(VM_ALLOC)
    return np.asarray(plain | ((flags & np.uint64(VM_MAP_PUT_PAGES)) != 0))


def _roots(prog: Program) -> tuple[list[int], bool]:
    """
    ``rb_root.rb_node`` of each tree of areas, and whether that is all of them.

    "mm: vmalloc: remove global vmap_area_root rb-tree" (d093602919ad, in v6.9) gave each node of
    vmalloc its own.
    """
    try:
        nodes = prog["vmap_nodes"]
    except LookupError:
        return [prog["vmap_area_root"].rb_node.value_()], True
    count = int(prog["nr_vmap_nodes"].value_())
    roots = []
    for at in range(min(count, MAX_NODES)):
        with contextlib.suppress(FaultError):
            roots.append(nodes[at].busy.root.rb_node.value_())
    return roots, len(roots) == count


def _read_trees(prog: Program, roots: list[int], gaps: Gaps) -> tuple[Array, bool]:
    """
    The ``struct vmap_area`` of some trees, all nodes of a level together, in no order; and whether
    that is all of them. Each is read once, whatever is in the trees.

    Every way down a red-black tree has as many black nodes (lib/rbtree.c): where one of a dump has
    not, a part of it is missing.
    """
    type_ = prog.type("struct vmap_area")
    columns = {"start": "va_start", "end": "va_end", "vm": "vm", "up": "rb_node.__rb_parent_color"}
    dtype = struct_dtype(type_, columns | {"left": "rb_node.rb_left", "right": "rb_node.rb_right"})
    offset = np.uint64(offsetof(type_, "rb_node"))
    level = distinct(np.array([root for root in roots if root], np.uint64))
    tree, blacks = np.arange(len(level)), np.zeros(len(level), np.int64)
    ways: dict[int, set[int]] = {}  # of each tree, the black nodes on ways to its ends
    seen = np.empty(0, np.uint64)
    found = [np.empty(0, dtype)]
    for _ in range(MAX_DEPTH):
        if not len(level):
            balanced = all(len(each) == 1 for each in ways.values())
            return np.concatenate(found), balanced or bool(prog.flags & ProgramFlags.IS_LIVE)
        if len(seen) + len(level) > MAX_AREAS:
            break
        seen = np.concatenate([seen, level])
        entries, read = read_scattered(prog, level - offset, dtype, gaps)
        found.append(entries[read])
        blacks = blacks + (entries["up"] & np.uint64(1) != 0)
        below = np.concatenate([entries["left"][read], entries["right"][read]])
        tree, blacks = np.tile(tree[read], 2), np.tile(blacks[read], 2)
        for of, number in {
            *zip(tree[below == 0].tolist(), blacks[below == 0].tolist(), strict=True)
        }:
            ways.setdefault(of, set()).add(number)
        level, first = np.unique(below, return_index=True)
        new = (level != 0) & ~np.isin(level, seen)
        level, tree, blacks = level[new], tree[first[new]], blacks[first[new]]
    return np.concatenate(found), False


def vmalloc_areas(prog: Program) -> VmallocAreas:
    """
    Read all areas and the page tables under them.

    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: the kernel's own page tables cannot be found.
    :raises NotImplementedError: page tables of this architecture are not known.
    """
    gaps = Gaps()
    form = page_table_format(prog)
    page_shift = np.uint64(form.page_shift)
    roots, all_roots = _roots(prog)
    found, whole = _read_trees(prog, roots, gaps)
    found = found[np.argsort(found["start"], kind="stable")]
    if not prog.flags & ProgramFlags.IS_LIVE:  # whose areas move while they are read
        ends = np.append(found["start"][1:], np.uint64((1 << 64) - 1))
        whole &= bool(((found["start"] < found["end"]) & (found["end"] <= ends)).all())
        edges = (found["start"] | found["end"]) & np.uint64((1 << form.page_shift) - 1)
        whole &= not edges.any()
    found = found[(found["vm"] != 0) & (found["start"] < found["end"])]
    dtype = struct_dtype(prog.type("struct vm_struct"), {"flags": "flags", "caller": "caller"})
    described, read = read_scattered(prog, found["vm"], dtype, gaps)
    areas = np.empty(int(read.sum()), AREA)
    areas["start"], areas["end"] = found["start"][read], found["end"][read]
    areas["flags"], areas["caller"] = described["flags"][read], described["caller"][read]
    entries, tables = [np.empty(0, ENTRY)], [np.empty(0, np.int64)]
    for start, end in _stretches(areas):
        walk = new_walk(form, 1)
        for chunk in walk_page_tables(prog, form, kernel_root(prog), walk, start=start, end=end):
            if chunk.level:
                tables.append((chunk.frames >> page_shift).astype(np.int64))
            rows, slots = np.nonzero(form.is_leaf(chunk.entries, chunk.level))
            shift = form.levels[chunk.level].shift
            addresses = chunk.slot_addresses(shift, rows, slots)
            at = np.searchsorted(areas["start"], addresses, "right").astype(np.int64) - 1
            inside = (at >= 0) & (addresses < areas["end"][np.maximum(at, 0)])
            leaves = chunk.entries[rows[inside], slots[inside]]
            mapped = np.empty(len(leaves), ENTRY)
            mapped["pfn"] = form.physical(leaves, chunk.level) >> page_shift
            mapped["pages"], mapped["area"] = 1 << shift - form.page_shift, at[inside]
            entries.append(mapped)
        gaps.bytes += walk.gaps.bytes
    known_flags = bool((areas["flags"] < FLAGS_END).all())
    # What allocated them is code: of the kernel's image, or of modules, which are near it.
    image = np.uint64(prog["init_mm"].address_)
    away = np.minimum(areas["caller"] - image, image - areas["caller"])  # unsigned: it wraps
    code = (away < NEAR) | (areas["caller"] == 0)
    known_flags &= bool(code.all()) or is_powerpc(prog)
    whole = whole and all_roots and known_flags and bool(read.all())
    mapped = np.concatenate(entries)
    mapped = mapped[np.argsort(mapped["area"], kind="stable")]
    return VmallocAreas(areas, mapped, distinct(np.concatenate(tables)), whole, gaps)


def _stretches(areas: Array) -> list[tuple[int, int]]:
    """Ranges of addresses that have areas, none far from its neighbour."""
    if not len(areas):
        return []
    breaks = np.flatnonzero(areas["start"][1:] - areas["end"][:-1] > np.uint64(FAR))
    firsts = areas["start"][np.append(0, breaks + 1)]
    ends = areas["end"][np.append(breaks, len(areas) - 1)]
    return list(zip(firsts.tolist(), ends.tolist(), strict=True))
