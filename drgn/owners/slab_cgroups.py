# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Objects of slab caches by the memory cgroup that they are charged to.

Beside a slab is a vector with an entry for each object, its ``struct obj_cgroup``; NULL if it is
charged to none, and when it is free (``__memcg_slab_post_alloc_hook()``, mm/memcontrol.c;
``memcg_slab_free_hook()``, mm/slub.c). An object is charged with its slot and a pointer
(``obj_full_size()``). What a removed cgroup allocated is its parent's
(``memcg_reparent_objcgs()``), until it is freed.

Costs two scattered reads for each 2,048 slabs, some 8 bytes an object.

Cannot know: kmalloc beyond the largest cache, which is charged by page.
"""

import contextlib

import numpy as np
from drgn import Program, Type, offsetof, sizeof

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.cgroups.cgroup_rows import DYING, ID, ONLINE, PATH
from mmscope.drgn.cgroups.charged_pages import FLAGS, memcgs_named
from mmscope.drgn.cgroups.memcgs import Memcgs
from mmscope.drgn.owners.slab_caches import Cache, SlabScan
from mmscope.drgn.reading.kernel_arrays import (
    TORN,
    Array,
    Gaps,
    S64s,
    U64s,
    bit_field,
    member_path,
    struct_dtype,
)
from mmscope.drgn.reading.mem_sections import page_addresses, valid_page_ranges
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.struct_pages import slab_type
from mmscope.drgn.tables.rows import LONGEST_NAME, MOST_BYTES, column
from mmscope.drgn.tables.table import Inside, table

MAX_ROWS = 10_000
POINTER = 8  # of what an object is charged with


@table(
    "slab_cgroups",
    "Slab objects by memory cgroup",
    empty="No slab object is charged to a memory cgroup.",
    memory="again",
    measure="bytes",
    lasting=("cgroup", "cache"),
    inside=(Inside("slab", "bytes", by="cgroup"),),
    since="0.2.0",
)
class SlabCgroup:
    """Objects of a slab cache charged to a memory cgroup itself."""

    cgroup: str | None = column(holds="cgroup", key=True, help=PATH)
    cgroup_id: int | None = column(key=True, help=ID)
    cache: str = column(holds="kernel", key=True, low=1, high=LONGEST_NAME, help="the slab cache")
    state: str = column(holds="words", help=f"{ONLINE}, or {DYING}")
    objects: int = column(help="charged to itself, not to descendants")
    bytes: int = column(
        unit="bytes",
        high=MOST_BYTES,
        help="charged for them: slots, and 8 bytes each",
    )


class SlabCgroups:
    """
    Counts, slabs after slabs.

    :ivar gaps: what of the vectors could not be read.
    :ivar failure: why it had to stop, if so.
    :raises LookupError: the kernel does not charge objects: without CONFIG_MEMCG, and before
        v5.9.
    """

    def __init__(self, prog: Program) -> None:
        self._prog = prog
        slab = slab_type(prog)
        # obj_exts since "mm: introduce slabobj_ext to support slab object extensions"
        # (21c690a349ba, in v6.10); a word of struct page before "mm: Split slab into its own type"
        # (d122019bf061, in v5.17).
        vector = member_path(slab, ("obj_exts", "memcg_data", "obj_cgroups"))
        self._slab = struct_dtype(slab, {"vector": vector})
        try:
            entry = prog.type("struct slabobj_ext")
            owner = member_path(entry, ("_objcg", "objcg"))  # 7.3
            self._entry, self._owner = sizeof(entry), offsetof(entry, owner)
        except LookupError:
            self._entry, self._owner = POINTER, 0
        with contextlib.suppress(LookupError):
            # 7.2: entries may lie after their objects, a slot apart.
            self._slab = struct_dtype(slab, {"vector": vector, "stride": "stride"})
        self._in_object, self._of_cgroup = np.uint64(0), np.uint64(0)
        if slab.has_member("obj_exts_in_object"):
            # 7.3: a bit says so of a slab, and another that its entries have an obj_cgroup. Behind
            # that is a reference to the line of source, where these are counted.
            self._entry *= 1 + _with_line(prog)
            self._slab = struct_dtype(slab, {"vector": vector, "bits": "counters"})
            self._in_object, self._of_cgroup = (
                _bit(slab, name) for name in ("obj_exts_in_object", "obj_exts_needs_objcg")
            )
        self._size = sizeof(prog.type("struct page"))
        self._ranges = np.array(valid_page_ranges(prog), np.uint64).reshape(-1, 3)
        self._held: dict[tuple[int, int], int] = {}  # objects by (position of cache, objcg)
        self.gaps = Gaps()
        self.failure: Exception | None = None

    def take(self, scan: SlabScan, chunk: Array) -> None:
        """Count the objects of some slabs."""
        if self.failure is None:
            try:
                self._take(scan, chunk)
            except TORN as error:
                self.failure = error

    def _take(self, scan: SlabScan, chunk: Array) -> None:
        most = np.array([max(cache.orders, default=0) for cache in scan.caches], np.int64)
        addresses, valid = page_addresses(self._ranges, chunk["pfn"], self._size)
        # More objects than a slab of the cache can have: KFENCE's, or damaged.
        here = np.flatnonzero(valid & (chunk["objects"] <= most[chunk["cache"]]))
        slabs, read = read_scattered(self._prog, addresses[here], self._slab, self.gaps)
        if self._of_cgroup:
            read &= (slabs["bits"] & self._of_cgroup) != 0
        vectors = np.where(read, slabs["vector"] & ~FLAGS, np.uint64(0))
        some = np.flatnonzero(vectors)
        here, counts = here[some], chunk["objects"][here[some]].astype(np.int64)
        slots = np.array([cache.size for cache in scan.caches], np.uint64)[chunk["cache"][here]]
        steps = self._strides(slabs[some], slots)
        before = np.cumsum(counts) - counts
        number = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(before, counts)
        where = np.repeat(vectors[some], counts)
        where += number.astype(np.uint64) * np.repeat(steps, counts) + np.uint64(self._owner)
        owners, known = read_scattered(self._prog, where, np.dtype("<u8"), self.gaps)
        charged = np.flatnonzero(known & (owners != 0))
        pairs = np.empty(len(charged), [("cache", "<i8"), ("owner", "<u8")])
        pairs["cache"] = np.repeat(chunk["cache"][here], counts)[charged]
        pairs["owner"] = owners[charged]
        found, numbers = np.unique(pairs, return_counts=True)
        for pair, objects in zip(found.tolist(), numbers.tolist(), strict=True):
            self._held[pair] = self._held.get(pair, 0) + objects

    def _strides(self, slabs: Array, slots: U64s) -> U64s:
        """Distance of the entries of each slab, whose slots have a size."""
        if self._in_object:
            within = (slabs["bits"] & self._in_object) != 0
            return np.where(within, slots, np.uint64(self._entry))
        if "stride" in (slabs.dtype.names or ()):
            result: U64s = slabs["stride"].astype(np.uint64)
            return result
        return np.full(len(slabs), self._entry, np.uint64)

    def own_bytes(self, caches: list[Cache], memcgs: Memcgs) -> tuple[S64s, int]:
        """Bytes that each memory cgroup itself is charged, and objects of what is no cgroup."""
        held, memcg = self._memcgs(memcgs)
        sizes = np.array([cache.size + POINTER for cache in caches], np.int64)
        total = np.zeros(len(memcgs.address), np.int64)
        known = memcg >= 0
        np.add.at(total, memcg[known], (held[:, 1] * sizes[held[:, 0]])[known])
        return total, int(held[~known, 1].sum())

    def _memcgs(self, memcgs: Memcgs) -> tuple[S64s, S64s]:
        """Position of cache and objects of each pair, and the position of its cgroup."""
        owners = np.array([owner for _, owner in self._held], np.uint64)
        held = np.array([(at, n) for (at, _), n in self._held.items()], np.int64).reshape(-1, 2)
        return held, memcgs_named(self._prog, owners, memcgs, self.gaps)

    def rows(self, caches: list[Cache], memcgs: Memcgs) -> list[SlabCgroup]:
        """Each memory cgroup's objects by cache, the most bytes first."""
        held, memcg = self._memcgs(memcgs)
        known = np.flatnonzero(memcg >= 0)
        at, which = np.unique(memcg[known], return_inverse=True)
        objects: dict[tuple[int, int], int] = {}
        # A cgroup has an obj_cgroup for each node (7.2), and those of removed children.
        for place, (cache, number) in zip(which.tolist(), held[known].tolist(), strict=True):
            objects[place, cache] = objects.get((place, cache), 0) + number
        paths = cgroup_paths(self._prog, memcgs.columns["cgroup"][at], self.gaps)
        dying = memcgs.dying[at].tolist()
        rows = [
            SlabCgroup(
                *paths[place],
                caches[cache].name,
                DYING if dying[place] else ONLINE,
                number,
                number * (caches[cache].size + POINTER),
            )
            for (place, cache), number in objects.items()
        ]
        return sorted(rows, key=lambda row: (-row.bytes, row.cache, row.cgroup_id or 0))


def _with_line(prog: Program) -> bool:
    """``slab_obj_ext_has_codetag()`` (mm/slab.h, 7.3)."""
    try:
        return bool(prog["slab_obj_ext_has_codetag_key"].key.enabled.counter.value_() > 0)
    except LookupError:  # without CONFIG_MEM_ALLOC_PROFILING
        return False


def _bit(slab: Type, name: str) -> np.uint64:
    """The mask of a bit field of ``slab.counters``."""
    (word, _), (bit, _) = (bit_field(slab, each) for each in ("counters", name))
    return np.uint64(1 << (bit - word))


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("slab_caches", "slab_cgroups")
