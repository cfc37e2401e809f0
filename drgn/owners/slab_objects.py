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
from numpy.typing import NDArray

from mmscope.drgn.owners.slab_caches import Cache, SlabChunk, SlabFinder, SlabScan, scan_slabs
from mmscope.drgn.reading.kernel_arrays import Columns, Gaps, distinct, struct_dtype
from mmscope.drgn.reading.linked_lists import find

# Some slots: their addresses, and their columns.
Piece = tuple[NDArray[np.uint64], dict[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kind of object: the variable that has its cache, its type, and the members to read."""

    cache: str  # struct kmem_cache *
    type: str
    columns: Columns


@dataclass(frozen=True, slots=True)
class Objects:
    """The slots of one kind, ascending by address."""

    address: NDArray[np.uint64]
    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.address)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def only(self, chosen: NDArray[Any]) -> "Objects":
        """Some of the slots, by index or mask; an index must leave them in order."""
        return Objects(
            self.address[chosen], {name: values[chosen] for name, values in self.columns.items()}
        )


@dataclass
class SlabObjects:
    """What was read."""

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
    """
    dtypes = {
        kind: struct_dtype(prog.type(want.type), want.columns) for kind, want in wanted.items()
    }
    caches = {kind: prog[want.cache].value_() for kind, want in wanted.items()}
    parts: dict[str, list[Piece]] = {kind: [] for kind in wanted}
    result = SlabObjects({})

    def take(scan: SlabScan, chunk: SlabChunk) -> None:
        for index in distinct(chunk.caches).tolist():
            kinds = [
                kind for kind, address in caches.items() if address == scan.caches[index].address
            ]
            if not kinds:
                continue
            for slots in slots_of(prog, scan.caches[index], chunk, chunk.caches == index, result):
                for kind in kinds:
                    parts[kind].append((slots.address, slots.columns(dtypes[kind])))

    scan = scan_slabs(prog, take, found=found, progress=progress)
    result.gaps.bytes += scan.gaps.bytes
    for kind, pieces in parts.items():
        result.objects[kind] = _ascending(pieces, dtypes[kind].names or ())
    return result


@dataclass(frozen=True, slots=True)
class Slots:
    """All slots of some slabs of one size."""

    address: NDArray[np.uint64]
    data: bytes  # of the slabs, one behind the other
    slabs: int
    objects: int  # of each slab
    cache: Cache

    def columns(self, dtype: np.dtype[Any], at: int = 0) -> dict[str, NDArray[Any]]:
        """
        The columns of a structure in every slot, copied: what is not asked for is let go.

        :param at: where in an object it begins.
        :raises LookupError: a slot has no room for it.
        """
        size, begin = self.cache.size, self.cache.red_left_pad + at
        slots = np.frombuffer(self.data, np.uint8).reshape(self.slabs, self.objects * size)
        columns = {}
        for name, (format_, offset, *_) in (dtype.fields or {}).items():
            if begin + offset + format_.itemsize > size:
                raise LookupError(f"an object of {size} bytes has no {name}")
            view = np.ndarray(
                (self.slabs, self.objects),
                format_,
                slots,
                offset=begin + offset,
                strides=(self.objects * size, size),
            )
            columns[name] = view.ravel()
        return columns


def slots_of(
    prog: Program, cache: Cache, chunk: SlabChunk, here: NDArray[np.bool_], result: SlabObjects
) -> Iterator[Slots]:
    """
    Read slabs of one cache.

    :param here: which of the chunk's slabs.
    :param result: where it is counted what could not be read.
    """
    page_shift = prog["PAGE_SHIFT"].value_()
    direct_map = pfn_to_virt(prog, 0).value_()
    sound = here & np.isin(chunk.objects, list(cache.orders))
    result.odd_slabs += int(np.count_nonzero(here & ~sound))
    # Slabs of a cache have one size, or the least that will do: allocate_slab(), mm/slub.c.
    for objects in distinct(chunk.objects[sound]).tolist():
        pfns = chunk.pfns[sound & (chunk.objects == objects)]
        data, read = _read_slabs(prog, pfns << page_shift, objects * cache.size, result)
        if not len(read):
            continue
        base = np.uint64(direct_map) + read.astype(np.uint64)
        slots = np.arange(objects, dtype=np.uint64) * np.uint64(cache.size)
        slots += np.uint64(cache.red_left_pad)
        address = (base[:, None] + slots).ravel()
        yield Slots(address, data, len(read), objects, cache)


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


def _read_slabs(
    prog: Program, addresses: NDArray[np.int64], length: int, result: SlabObjects
) -> tuple[bytes, NDArray[np.int64]]:
    """The memory of slabs, one behind the other, and the physical addresses of those read."""
    found: list[bytes] = []
    read: list[int] = []
    for address in addresses.tolist():
        try:
            found.append(prog.read(address, length, True))
        except FaultError:
            result.gaps.bytes += length
        else:
            read.append(address)
    return b"".join(found), np.array(read, np.int64)


def tree_links(
    node: NDArray[np.uint64],
    parent: NDArray[np.uint64],
    left: NDArray[np.uint64],
    right: NDArray[np.uint64],
    root_node: NDArray[np.uint64],
    root: NDArray[np.uint64],
) -> NDArray[np.uint64]:
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
