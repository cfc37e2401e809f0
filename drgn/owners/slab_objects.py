# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every slot of chosen slab caches, as numpy columns.

Structures that hang together by pointers (``anon_vma``, ``anon_vma_chain``, ``ksm_rmap_item``, …)
are reached by reading the slabs they lie in, and not by following the pointers: a pass over the
struct pages finds the slabs (see ``slab_caches``), and each slab is read once.

A slot may be free or used, and may hold an object of another kind, since SLUB merges caches of one
size. So what a slot holds may be stale or something else. The caller must check it by what points
back to it, with :func:`linked_lists.follow_lists` and :func:`tree_links`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import FaultError, Program
from drgn.helpers.linux.mm import pfn_to_virt

from mmscope.drgn.owners.slab_caches import Cache, SlabFinder, SlabScan
from mmscope.drgn.reading.kernel_arrays import (
    Array,
    Bools,
    Columns,
    Gaps,
    U8s,
    U64s,
    distinct,
    struct_dtype,
)
from mmscope.drgn.reading.linked_lists import find

BATCH_BYTES = 4 << 20  # of slabs that are held at once
# Some slots: their addresses, and their columns.
Piece = tuple[U64s, dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kind of object: the variable that has its cache, its type, and the members to read."""

    cache: str  # struct kmem_cache *
    type: str
    columns: Columns


@dataclass(frozen=True, slots=True)
class Objects:
    """The slots of one kind, ascending by address."""

    address: U64s
    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.address)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def only(self, chosen: Array) -> "Objects":
        """Some of the slots, by index or mask; an index must leave them in order."""
        return Objects(
            self.address[chosen], {name: values[chosen] for name, values in self.columns.items()}
        )


@dataclass
class SlabObjects:
    """Objects that were read."""

    objects: dict[str, Objects]
    gaps: Gaps = field(default_factory=Gaps)
    odd_slabs: int = 0  # with a number of objects that their cache does not make


def read_slab_objects(
    prog: Program,
    wanted: Mapping[str, Wanted],
    *,
    found: tuple[SlabFinder, Gaps] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SlabObjects:
    """
    Read all slots of the caches of *wanted*.

    :param found: the slabs, by a pass that went before.
    :param progress: called with (struct pages done, struct pages in all).
    :raises LookupError: a cache, a type or a member is not there, or the allocator is not SLUB.
    :raises ValueError: a cache is not among those that were found.
    """
    dtypes = {
        kind: struct_dtype(prog.type(want.type), want.columns) for kind, want in wanted.items()
    }
    scan, result = SlabScan(prog, found, progress), SlabObjects({})
    position = {cache.address: at for at, cache in enumerate(scan.caches)}
    caches = {kind: position.get(prog[want.cache].value_(), -1) for kind, want in wanted.items()}
    if lost := [wanted[kind].cache for kind, at in caches.items() if at < 0]:
        raise ValueError(f"{lost[0]} leads to none of the slab caches that were found")
    parts: dict[str, list[Piece]] = {kind: [] for kind in wanted}
    for slabs in scan:
        for at in set(distinct(slabs["cache"]).tolist()).intersection(caches.values()):
            for _, address, memory in slots_of(prog, scan, slabs, at, result.gaps):
                for kind in [kind for kind, cache in caches.items() if cache == at]:
                    columns = slot_columns(scan.caches[at], memory, dtypes[kind])
                    parts[kind].append((address, columns))
    result.odd_slabs = sum(int(scan.totals["odd"][at]) for at in {*caches.values()})
    result.gaps.bytes += scan.gaps.bytes
    for kind, pieces in parts.items():
        result.objects[kind] = _ascending(pieces, dtypes[kind].names or ())
    return result


def slots_of(
    prog: Program, scan: SlabScan, slabs: Array, cache: int, gaps: Gaps
) -> Iterator[tuple[Array, U64s, U8s]]:
    """
    Read slabs of one cache, some MiB at a time.

    :param cache: its position in ``scan.caches``.
    :return: Iterator of (slabs with the same number of objects, the addresses of the objects in all
        their slots, the memory of each slot).
    """
    size, pad = scan.caches[cache].size, scan.caches[cache].red_left_pad
    page_size, direct_map = prog["PAGE_SIZE"].value_(), pfn_to_virt(prog, 0).value_()
    sound = slabs[(slabs["cache"] == cache) & scan.plausible(slabs)]
    # Slabs of a cache have one size, or the least that will do: allocate_slab(), mm/slub.c.
    for objects in distinct(sound["objects"]).tolist():
        alike = sound[sound["objects"] == objects]
        slab_bytes = int(scan.pages_of(alike[:1])[0]) * page_size
        if objects * size > slab_bytes:  # the cache's size is damaged
            gaps.bytes += len(alike) * slab_bytes
            continue
        slots = np.arange(objects, dtype=np.uint64) * np.uint64(size) + np.uint64(pad)
        step = max(BATCH_BYTES // max(objects * size, 1), 1)
        for first in range(0, len(alike), step):
            here = alike[first : first + step]
            physical = here["pfn"] * np.uint64(page_size)
            data, read = _read_slabs(prog, physical, objects * size, gaps)
            if read.any():
                address = (physical[read] + np.uint64(direct_map))[:, None] + slots
                yield here[read], address.ravel(), np.frombuffer(data, np.uint8).reshape(-1, size)


def slot_columns(cache: Cache, memory: U8s, dtype: np.dtype[Any], at: int = 0) -> dict[str, Array]:
    """
    The columns of a structure in every slot, copied: what is not asked for is let go.

    :param memory: of the slots, as :func:`slots_of` gives it.
    :param at: where in an object it begins.
    :raises LookupError: a slot has no room for it.
    """
    columns, begin = {}, cache.red_left_pad + at
    for name, (format_, offset, *_) in (dtype.fields or {}).items():
        if begin + offset + format_.itemsize > cache.size:
            raise LookupError(f"an object of {cache.size} bytes has no {name}")
        there = begin + offset
        view = np.ndarray(len(memory), format_, memory, offset=there, strides=(cache.size,))
        columns[name] = view.copy()
    return columns


def _ascending(pieces: Sequence[Piece], names: Iterable[str]) -> Objects:
    """The slots of all pieces, ascending by address."""
    empty = np.zeros(0, np.uint64)
    address = np.concatenate([part for part, _ in pieces] or [empty])
    order = np.argsort(address, kind="stable")
    return Objects(
        address[order],
        {
            name: np.concatenate([part[name] for _, part in pieces] or [empty])[order]
            for name in names
        },
    )


def _read_slabs(prog: Program, addresses: U64s, length: int, gaps: Gaps) -> tuple[bytes, Bools]:
    """The memory of slabs at physical addresses, one after the other, and which could be read."""
    found: list[bytes] = []
    read = np.ones(len(addresses), np.bool_)
    for at, address in enumerate(addresses.tolist()):
        try:
            found.append(prog.read(address, length, True))
        except FaultError:
            read[at] = False
            gaps.bytes += length
    return b"".join(found), read


def tree_links(
    node: U64s, parent: U64s, left: U64s, right: U64s, root_node: U64s, root: U64s
) -> U64s:
    """
    The links, from a node of a red-black tree towards its root, that hold in both directions.

    With these, :func:`linked_lists.follow_lists` finds which tree each node is in: a node that was
    taken out of its tree may still point at its parent, but no parent points at it.

    :param node: addresses of the ``rb_node``, ascending; :param parent: ``__rb_parent_color``.
    :param left: ``rb_left``; :param right: ``rb_right``.
    :param root_node: the first node of each tree, as its root has it; :param root: what shall be
        taken for the address of that root.
    :return: address of the parent; of the root, for a first node; 0 where nothing points back.
    """
    above = parent & ~np.uint64(3)
    at = find(node, above)
    inside = at >= 0
    linked = inside & ((left[at] == node) | (right[at] == node))
    links = np.where(linked, above, np.uint64(0))
    order = np.argsort(root_node, kind="stable")
    top = find(root_node[order], node)
    first = (top >= 0) & (above == 0)
    links[first] = root[order][top[first]]
    return links
