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
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from drgn import FaultError, Object, Program
from numpy.typing import NDArray

from mmscope.drgn.page_tables.page_table_entries import kernel_root, new_walk, walk_page_tables
from mmscope.drgn.page_tables.page_table_formats import page_table_format
from mmscope.drgn.reading.kernel_arrays import Gaps, distinct, struct_dtype
from mmscope.drgn.reading.red_black_trees import read_trees
from mmscope.drgn.reading.scattered_reads import read_scattered

MAX_AREAS = 4 << 20
MAX_NODES = 1 << 10
# include/linux/vmalloc.h; macros, which debug info does not keep. The same from 5.10 to 7.3.
VM_IOREMAP, VM_ALLOC, VM_MAP = 0x1, 0x2, 0x4
VM_MAP_PUT_PAGES = 0x200
FAR = 1 << 36  # areas further from each other are walked to one by one


def _none() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass
class VmallocAreas:
    """All areas, ascending, and the pages that are mapped in them."""

    starts: NDArray[np.uint64]
    ends: NDArray[np.uint64]
    flags: NDArray[np.uint64]
    callers: NDArray[np.uint64]
    # Of mapped pages: the first page frame of each entry, how many pages it maps, and the position
    # of its area.
    pfns: NDArray[np.int64] = field(default_factory=_none)
    sizes: NDArray[np.int64] = field(default_factory=_none)
    areas: NDArray[np.int64] = field(default_factory=_none)
    tables: NDArray[np.int64] = field(default_factory=_none)  # page frames of their page tables
    whole: bool = True  # no area is missing
    gaps: Gaps = field(default_factory=Gaps)

    def owns(self) -> NDArray[np.bool_]:
        """Areas that own the pages that are mapped in them."""
        plain = (self.flags & np.uint64(VM_ALLOC)) != 0
        given = (self.flags & np.uint64(VM_MAP_PUT_PAGES)) != 0
        return np.asarray(plain & ((self.flags & np.uint64(VM_MAP)) == 0) | given)


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


def vmalloc_areas(prog: Program) -> VmallocAreas:
    """
    Read all areas and the page tables under them.

    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: the kernel's own page tables cannot be found.
    :raises NotImplementedError: page tables of this architecture are not known.
    """
    gaps = Gaps()
    form = page_table_format(prog)
    roots, all_roots = _roots(prog)
    areas, whole = read_trees(
        prog,
        roots,
        prog.type("struct vmap_area"),
        "rb_node",
        {"start": "va_start", "end": "va_end", "vm": "vm"},
        gaps,
        MAX_AREAS,
    )
    areas = areas[(areas["vm"] != 0) & (areas["start"] < areas["end"])]
    areas = areas[np.argsort(areas["start"], kind="stable")]
    dtype = struct_dtype(prog.type("struct vm_struct"), {"flags": "flags", "caller": "caller"})
    described, read = read_scattered(prog, areas["vm"], dtype, gaps)
    found = VmallocAreas(
        areas["start"][read],
        areas["end"][read],
        described["flags"][read],
        described["caller"][read],
        whole=whole and all_roots and bool(read.all()),
        gaps=gaps,
    )
    pfns, sizes, addresses, tables = [], [], [], []
    for start, end in _stretches(found):
        walk = new_walk(form, 1)
        for chunk in walk_page_tables(prog, form, kernel_root(prog), walk, start=start, end=end):
            if chunk.level:
                tables.append((chunk.frames >> np.uint64(form.page_shift)).astype(np.int64))
            rows, slots = np.nonzero(form.is_leaf(chunk.entries, chunk.level))
            shift = form.levels[chunk.level].shift
            physical = form.physical(chunk.entries[rows, slots], chunk.level)
            pfns.append((physical >> np.uint64(form.page_shift)).astype(np.int64))
            sizes.append(np.full(len(rows), 1 << shift - form.page_shift, np.int64))
            addresses.append(chunk.slot_addresses(shift, rows, slots))
        gaps.bytes += walk.gaps.bytes
    if pfns:
        _place(found, np.concatenate(pfns), np.concatenate(sizes), np.concatenate(addresses))
        found.tables = distinct(np.concatenate([np.empty(0, np.int64), *tables]))
    return found


def _stretches(found: VmallocAreas) -> list[tuple[int, int]]:
    """Ranges of addresses that have areas, none far from its neighbour."""
    if not len(found.starts):
        return []
    breaks = np.flatnonzero(found.starts[1:] - found.ends[:-1] > np.uint64(FAR))
    firsts = found.starts[np.concatenate([[0], breaks + 1])]
    ends = found.ends[np.concatenate([breaks, [len(found.ends) - 1]])]
    return list(zip(firsts.tolist(), ends.tolist(), strict=True))


def _place(
    found: VmallocAreas,
    pfns: NDArray[np.int64],
    sizes: NDArray[np.int64],
    addresses: NDArray[np.uint64],
) -> None:
    """Find the area that each entry of a page table is in."""
    at = np.searchsorted(found.starts, addresses, "right").astype(np.int64) - 1
    inside = (at >= 0) & (addresses < found.ends[np.maximum(at, 0)])
    found.pfns, found.sizes, found.areas = pfns[inside], sizes[inside], at[inside]


def stack_callers(tasks: Iterable[Object]) -> set[int]:
    """
    The return addresses that kernel stacks are allocated from: those of the stacks of some tasks.

    :raises FaultError: the list of tasks breaks off.
    """
    callers = set()
    for task in tasks:
        try:
            if area := task.stack_vm_area:
                callers.add(int(area.caller.value_()))
        except (FaultError, AttributeError):
            continue
    return callers
