# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct vm_area_struct``: what is mapped where, of many processes at once.

The VMAs of a process hang in a maple tree (``mm.mm_mt``, v6.1 and later) or in a red-black tree
(``mm.mm_rb``, before). All trees are read together, level by level: their nodes and then the VMAs
in numpy, out of the slabs in which they lie. Costs about 3 µs a VMA; walking the trees one by one
takes ten times that.

A node that points nowhere or back, or whose ranges do not ascend, is counted and left out. So is
one of a live kernel that cannot be read: it was another's by then, and led anywhere.

Reverse maps read VMAs out of their slab cache (``anon_vma_trees``): they need those that an
anon_vma or a file leads to, whatever the tree of a process says.

Cannot know: the names of files (that takes a walk for each).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import Program, ProgramFlags, offsetof, sizeof

from mmscope.drgn.reading.kernel_arrays import (
    Array,
    Bools,
    Columns,
    Gaps,
    S64s,
    U64s,
    struct_dtype,
)
from mmscope.drgn.reading.scattered_reads import read_members, read_scattered

# include/linux/mm.h; the same from 5.10 to 7.3.
VM_WRITE = 0x2
VM_EXEC = 0x4
VM_SHARED = 0x8
VM_GROWSDOWN = 0x100
VM_PFNMAP = 0x400
VM_LOCKED = 0x2000
VM_HUGETLB = 0x40_0000
VM_MIXEDMAP = 0x1000_0000
# Up to v6.18, without an enum of them (VMA_READ_BIT), bits 43 to 62 are no flag's. VM_SEALED is bit
# 63 there: "mseal: add mseal syscall" (8be7258aad44, in v6.10).
KNOWN_FLAGS = (1 << 43) - 1 | 1 << 63

# Fan-out is at least 5: deeper trees hold more than memory can.
MAX_DEPTH = 16
# Of a red-black tree: 2 * log2(n + 1), for more VMAs than vm.max_map_count lets a process have.
MAX_RB_DEPTH = 64
MAX = (1 << 64) - 1
ROOT_IS_NODE = 4096  # xa_is_node(): below are values of the xarray's own

COLUMNS = {
    "start": "vm_start",
    "end": "vm_end",
    "flags": "vm_flags",
    "ops": "vm_ops",
    "file": "vm_file",
}


@dataclass(frozen=True, slots=True)
class VmAreas:
    """VMAs of some processes, by process and ascending."""

    owners: S64s  # index of the process
    starts: U64s
    ends: U64s
    flags: U64s
    anonymous: Bools  # vma_is_anonymous()
    damaged: int  # nodes and VMAs that cannot be, left out

    def __len__(self) -> int:
        return len(self.owners)


# Of a kind of maple node: the words where its pivots and its slots begin, the number of slots, and
# the byte of its metadata.
Shape = tuple[int, int, int, int]


def read_vm_areas(prog: Program, trees: U64s, gaps: Gaps) -> VmAreas:
    """
    Read the VMAs of every process.

    :param trees: ``mm.mm_mt.ma_root`` of each process, or ``mm.mm_rb.rb_node``.
    :param gaps: gets what could not be read of a dump.
    :raises LookupError: this kernel's VMAs are in other trees.
    """
    running = bool(prog.flags & ProgramFlags.IS_LIVE)
    if running:
        gaps = Gaps()
    if not prog.type("struct mm_struct").has_member("mm_mt"):
        return _red_black(prog, trees, gaps, running)
    owners, starts, last, areas, damaged = _leaves(prog, trees, gaps, running)
    vmas, read = read_members(prog, areas, prog.type("struct vm_area_struct"), COLUMNS, gaps)
    # The tree says where it is, and so does the VMA.
    sound = read & (vmas["start"] == starts) & (vmas["end"] == last + np.uint64(1))
    sound &= ~_impossible(prog, vmas)
    damaged += int(((read | running) & ~sound).sum())
    order = np.lexsort((starts, owners))
    order = order[sound[order]]
    vmas = vmas[order]
    return VmAreas(
        owners[order], vmas["start"], vmas["end"], vmas["flags"], vmas["ops"] == 0, damaged
    )


def _impossible(prog: Program, vmas: Array) -> Bools:
    """Mask of VMAs with flags that the kernel does not have, or of files without operations."""
    unknown: Bools = (vmas["flags"] & ~np.uint64(_known_flags(prog))) != 0
    return unknown | _without_operations(prog, vmas)


def _known_flags(prog: Program) -> int:
    """Every flag of a VMA that this kernel has a name for, on any architecture."""
    try:
        bits = prog.constant("VMA_READ_BIT").type_.enumerators or ()
    except LookupError:
        return KNOWN_FLAGS
    known = 0
    for each in bits:
        known |= 1 << each.value
    return known


def _without_operations(prog: Program, vmas: Array) -> Bools:
    """
    Mask of VMAs of files without operations, which only a private mapping of /dev/zero is
    (``vma_set_anonymous()``, drivers/char/mem.c).
    """
    odd: Bools = (vmas["ops"] == 0) & (vmas["file"] != 0)
    if odd.any():
        columns: Columns = {"ops": "f_op"}
        file = prog.type("struct file")
        files, read = read_members(prog, vmas["file"][odd], file, columns, Gaps())
        try:
            zero = prog.symbol("zero_fops").address
        except LookupError:
            return np.zeros(len(odd), np.bool_)
        odd[odd] = read & (files["ops"] != zero)
    return odd


def _red_black(prog: Program, trees: U64s, gaps: Gaps, running: bool) -> VmAreas:
    """The VMAs of processes whose ``mm_rb.rb_node`` these are."""
    type_ = prog.type("struct vm_area_struct")
    links = {"left": "vm_rb.rb_left", "right": "vm_rb.rb_right"}
    dtype = struct_dtype(type_, {**COLUMNS, **links})
    offset = np.uint64(offsetof(type_, "vm_rb"))
    owners = np.flatnonzero(trees)
    nodes = trees[owners]
    low, high = np.zeros(len(nodes), np.uint64), np.full(len(nodes), MAX, np.uint64)
    parts, of, damaged = [np.empty(0, dtype)], [owners[:0]], 0
    for _ in range(MAX_RB_DEPTH):
        if not len(nodes):
            break
        vmas, read = read_scattered(prog, nodes - offset, dtype, gaps)
        start, end = vmas["start"], vmas["end"]
        # Whatever leads back is not between its neighbours.
        sound = read & (low <= start) & (start < end) & (end <= high)
        damaged += int(((read | running) & ~sound).sum())
        vmas, owners, low, high = vmas[sound], owners[sound], low[sound], high[sound]
        parts.append(vmas)
        of.append(owners)
        nodes = np.concatenate([vmas["left"], vmas["right"]])
        low = np.concatenate([low, vmas["end"]])
        high = np.concatenate([vmas["start"], high])
        there = nodes != 0
        nodes, low, high, owners = nodes[there], low[there], high[there], np.tile(owners, 2)[there]
    damaged += len(nodes)  # deeper than any tree
    vmas, owners = np.concatenate(parts), np.concatenate(of)
    odd = _impossible(prog, vmas)
    damaged += int(odd.sum())
    vmas, owners = vmas[~odd], owners[~odd]
    order = np.lexsort((vmas["start"], owners))
    vmas, owners = vmas[order], owners[order]
    return VmAreas(owners, vmas["start"], vmas["end"], vmas["flags"], vmas["ops"] == 0, damaged)


def _leaves(
    prog: Program, trees: U64s, gaps: Gaps, running: bool
) -> tuple[Any, Any, Any, Any, int]:
    """(index of the tree, first address, last address, address of the VMA) of all VMAs; damage."""
    kinds = {
        int(prog.constant(name)): _shape(prog, type_)
        for name, type_ in (
            ("maple_leaf_64", "struct maple_range_64"),
            ("maple_range_64", "struct maple_range_64"),
            ("maple_arange_64", "struct maple_arange_64"),
        )
    }
    leaf_kind = int(prog.constant("maple_leaf_64"))
    words = sizeof(prog.type("struct maple_node")) // 8
    node_type = np.dtype(("<u8", (words,)))
    todo = np.flatnonzero((trees & np.uint64(3) == 2) & (trees > ROOT_IS_NODE))
    entries = trees[todo]
    owners = todo.astype(np.int64)
    low = np.zeros(len(todo), np.uint64)
    high = np.full(len(todo), MAX, np.uint64)
    found: list[list[Array]] = []
    damaged = 0
    for _ in range(MAX_DEPTH):
        if not len(entries):
            break
        # The lower byte of a node's address says of what kind it is (mte_to_node()).
        nodes, read = read_scattered(prog, entries & np.uint64(~0xFF & MAX), node_type, gaps)
        kind = (entries >> np.uint64(3)) & np.uint64(0xF)
        below: list[list[Array]] = []
        sound = read & np.isin(kind, list(kinds))
        damaged += int(((read | running) & ~sound).sum())
        for number, shape in kinds.items():
            here = np.flatnonzero(read & (kind == number))
            if not len(here):
                continue
            first, last, slots, used, broken = _ranges(nodes[here], shape, low[here], high[here])
            damaged += broken
            # Free ranges are empty slots; XA_ZERO_ENTRY and the like are not pointers.
            used &= slots > ROOT_IS_NODE
            rows, columns = np.nonzero(used)
            part = [owners[here][rows], first[rows, columns], last[rows, columns]]
            (found if number == leaf_kind else below).append([*part, slots[rows, columns]])
        if not below:
            entries = entries[:0]
            continue
        owners, low, high, entries = (np.concatenate(parts) for parts in zip(*below, strict=True))
        # A node that is met again is part of a loop: a tree has each once.
        _, once = np.unique(entries, return_index=True)
        damaged += len(entries) - len(once)
        owners, low, high, entries = owners[once], low[once], high[once], entries[once]
    damaged += len(entries)  # deeper than any tree
    if not found:
        nothing = np.zeros(0, np.uint64)
        return nothing.astype(np.int64), nothing, nothing, nothing, damaged
    owners, low, high, entries = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return owners, low, high, entries, damaged


def _shape(prog: Program, name: str) -> Shape:
    kind = prog.type(name)
    slots = kind.member("slot")
    pivot, meta = offsetof(kind, "pivot"), offsetof(kind, "meta")
    return pivot // 8, slots.offset // 8, slots.type.length or 0, meta


def _ranges(nodes: U64s, shape: Shape, low: U64s, high: U64s) -> tuple[Any, Any, Any, Any, int]:
    """
    (first address, last address, content, in use) of each slot of some nodes of one kind, and how
    many nodes make no sense.
    """
    pivot_at, slot_at, count, meta_at = shape
    slots = nodes[:, slot_at : slot_at + count]
    pivots = nodes[:, pivot_at : pivot_at + count - 1]
    # ma_data_end(): the last slot in use ends where the node does, and need not say so.
    meta = nodes.view(np.uint8)[:, meta_at].astype(np.int64)
    full = pivots[:, -1]
    end = np.where(full == 0, meta, np.where(full == high, count - 2, count - 1))
    if meta_at >= 8 * (slot_at + count):  # beside the slots, not in the last one
        end = meta
    sane = end < count
    end = np.minimum(end, count - 1)
    number = np.arange(count)
    used = number <= end[:, None]
    last = np.concatenate([pivots, high[:, None]], axis=1)
    last[number == end[:, None]] = high
    first = np.concatenate([low[:, None], last[:, :-1] + np.uint64(1)], axis=1)
    sane &= ((first <= last) & (last <= high[:, None]) | ~used).all(axis=1)
    return first, last, slots, used & sane[:, None], int((~sane).sum())
