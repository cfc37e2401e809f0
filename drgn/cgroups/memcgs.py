# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every ``struct mem_cgroup``, as columns.

``memory_cgrp_subsys.css_idr`` has each of them from when it comes online until its last reference
is gone (``online_css()`` and ``css_release_work_fn()``, kernel/cgroup/cgroup.c): dying ones, which
no directory shows any more, are among them.

They are read together, with their ``page_counter``s, events and, of ``memcg_vmstats``, what was
flushed last; nothing is walked. Costs about 2 KiB of reading for each.

Cannot know: what CPUs have counted since the last flush (``memcg_rstat_updated()``,
mm/memcontrol.c: fewer than 64 changes for each CPU), which memory.stat may lack as well. Before
v5.13 there was no flush: of each counter up to 32 pages (MEMCG_CHARGE_BATCH) of each CPU and cgroup
are in neither.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from drgn import ObjectNotFoundError, Program, TypeKind, offsetof, sizeof

from mmscope.drgn.cgroups.id_trees import xarray_pointers
from mmscope.drgn.free.zones import thp_in_pages
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.reading.kernel_arrays import Array, Bools, Gaps, S64s, U64s, laid_out, member_path
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.scattered_reads import read_members, read_scattered
from mmscope.drgn.sections.files import Absent
from mmscope.drgn.sections.memory import Memory

BUILT_WITHOUT = "the kernel is built without CONFIG_MEMCG"
MAX_MEMCGS = 1 << 18  # MEM_CGROUP_ID_MAX is 65,535 (include/linux/memcontrol.h)
MOST_LEVELS = 1024
CSS = {
    "cgroup": "css.cgroup",
    "subsystem": "css.ss",
    "parent": "css.parent",
    "css_id": "css.id",
    "css_flags": "css.flags",
}
# Of each page_counter what is wanted.
COUNTERS = {
    "memory": ("usage.counter", "watermark", "min", "low", "high", "max", "failcnt"),
    "swap": ("usage.counter", "max"),
    "memsw": ("usage.counter", "max"),
    # Of version 1 only; since 6.11 not in every kernel (CONFIG_MEMCG_V1).
    "kmem": ("usage.counter",),
    "tcpmem": ("usage.counter",),
}
# Of memory.events and memory.events.local: the column of a row, and enum memcg_memory_event.
EVENTS = {
    "low_events": ("memory_events", "MEMCG_LOW"),
    "high_events": ("memory_events", "MEMCG_HIGH"),
    "max_events": ("memory_events", "MEMCG_MAX"),
    "oom_events": ("memory_events", "MEMCG_OOM"),
    "oom_kill_events": ("memory_events", "MEMCG_OOM_KILL"),
    "max_own_events": ("memory_events_local", "MEMCG_MAX"),
    "oom_own_events": ("memory_events_local", "MEMCG_OOM"),
    "oom_kill_own_events": ("memory_events_local", "MEMCG_OOM_KILL"),
}
# memory_stats[], mm/memcontrol.c: names of memory.stat and the items that they are. Kernels have
# some of them: of node_stat_item, and memcg_stat_item. NR_VMALLOC was MEMCG_VMALLOC until "mm:
# memcontrol: switch to native NR_VMALLOC vmstat counter" (c466412c73c3, in v7.1).
PAGES, KIB, BYTES, TIMES, THP = "pages", "KiB", "bytes", "times", "THP"
STATS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("anon", ("NR_ANON_MAPPED",), PAGES),
    ("file", ("NR_FILE_PAGES",), PAGES),
    ("kernel", ("MEMCG_KMEM",), PAGES),
    ("kernel_stack", ("NR_KERNEL_STACK_KB",), KIB),
    ("pagetables", ("NR_PAGETABLE",), PAGES),
    ("sec_pagetables", ("NR_SECONDARY_PAGETABLE",), PAGES),
    ("percpu", ("MEMCG_PERCPU_B",), BYTES),
    ("sock", ("MEMCG_SOCK",), PAGES),
    ("vmalloc", ("NR_VMALLOC", "MEMCG_VMALLOC"), PAGES),
    ("shmem", ("NR_SHMEM",), PAGES),
    ("zswap", ("MEMCG_ZSWAP_B",), BYTES),
    ("zswapped", ("MEMCG_ZSWAPPED",), PAGES),
    ("file_mapped", ("NR_FILE_MAPPED",), PAGES),
    ("file_dirty", ("NR_FILE_DIRTY",), PAGES),
    ("file_writeback", ("NR_WRITEBACK",), PAGES),
    ("swapcached", ("NR_SWAPCACHE",), PAGES),
    ("anon_thp", ("NR_ANON_THPS",), THP),
    ("file_thp", ("NR_FILE_THPS",), THP),
    ("shmem_thp", ("NR_SHMEM_THPS",), THP),
    ("inactive_anon", ("NR_INACTIVE_ANON",), PAGES),
    ("active_anon", ("NR_ACTIVE_ANON",), PAGES),
    ("inactive_file", ("NR_INACTIVE_FILE",), PAGES),
    ("active_file", ("NR_ACTIVE_FILE",), PAGES),
    ("unevictable", ("NR_UNEVICTABLE",), PAGES),
    ("slab_reclaimable", ("NR_SLAB_RECLAIMABLE_B",), BYTES),
    ("slab_unreclaimable", ("NR_SLAB_UNRECLAIMABLE_B",), BYTES),
    ("hugetlb", ("NR_HUGETLB",), PAGES),
    ("workingset_refault_anon", ("WORKINGSET_REFAULT_ANON",), TIMES),
    ("workingset_refault_file", ("WORKINGSET_REFAULT_FILE",), TIMES),
    ("workingset_activate_anon", ("WORKINGSET_ACTIVATE_ANON",), TIMES),
    ("workingset_activate_file", ("WORKINGSET_ACTIVATE_FILE",), TIMES),
    ("workingset_restore_anon", ("WORKINGSET_RESTORE_ANON",), TIMES),
    ("workingset_restore_file", ("WORKINGSET_RESTORE_FILE",), TIMES),
    ("workingset_nodereclaim", ("WORKINGSET_NODERECLAIM",), TIMES),
)


@dataclass
class Memcgs:
    """
    All memory cgroups, ascending by address.

    :ivar columns: the members of :data:`CSS` and :data:`EVENTS` by their key, and of
        :data:`COUNTERS` as ``memory.usage.counter``; those that this kernel has.
    :ivar parent: position of the parent, -1 of the root and where it was not read.
    :ivar depth: steps up to the root; -1 where the way up does not end there.
    :ivar stats: by name of memory.stat, in its units; :ivar:`stats_read`: whose could be read.
    :ivar unified: whether the memory controller is in the hierarchy of version 2.
    :ivar flat: whether some have memory.use_hierarchy 0 above them (version 1, before v5.11): only
        the root counts what they use.
    """

    prog: Program
    address: U64s
    columns: Array
    parent: S64s
    depth: S64s
    stats: Mapping[str, S64s]
    stats_read: Bools
    unified: bool
    vanished: int  # what the IDR has, but was no memory cgroup (any more) when it was read
    damaged_nodes: int
    gaps: Gaps
    flat: bool = False

    @cached_property
    def dying(self) -> Bools:
        """
        Cgroups that are removed and kept by references only: ``CSS_DYING`` (``kill_css()``,
        kernel/cgroup/cgroup.c).
        """
        bit = constant(self.prog, "CSS_DYING", 1 << 4)
        found: Bools = (self.columns["css_flags"] & bit) != 0
        return found

    @property
    def odd_flags(self) -> int:
        """Cgroups with flags that there are not; and a root that is dying, which none is."""
        odd = (self.columns["css_flags"] >= 1 << 8) | (self.dying & (self.depth == 0))
        return int(np.count_nonzero(odd))

    def column(self, name: str) -> Array | None:
        """A column, if this kernel has it."""
        return self.columns[name] if name in (self.columns.dtype.names or ()) else None

    def up(self, values: S64s) -> S64s:
        """Values of cgroups with those of all that are below them added."""
        total = values.astype(np.int64)
        for level in range(int(self.depth.max(initial=0)), 0, -1):
            here = np.flatnonzero(self.depth == level)
            np.add.at(total, self.parent[here], total[here])
        return total


def _columns(prog: Program) -> dict[str, str | tuple[str, ...]]:
    """The members that this kernel has."""
    type_ = prog.type("struct mem_cgroup")
    columns: dict[str, str | tuple[str, ...]] = dict(CSS)
    for name, (array, event) in EVENTS.items():
        columns[name] = f"{array}[{constant(prog, event, 0)}].counter"
    for counter, members in COUNTERS.items():
        for path in (f"{counter}.{member}" for member in members):
            with contextlib.suppress(LookupError):
                columns[path] = member_path(type_, path)
    with contextlib.suppress(LookupError):
        columns["number"] = member_path(type_, "id.id")  # that swap slots have
    return columns


def read_memcgs(prog: Program) -> Memcgs:
    """
    Read all memory cgroups.

    :raises Absent: the kernel has none.
    :raises FaultError: the root of all cannot be read.
    :raises LookupError: the kernel's layout is unknown.
    """
    try:
        subsystem = prog["memory_cgrp_subsys"]
        type_ = prog.type("struct mem_cgroup")
        css = offsetof(type_, "css")
    except (ObjectNotFoundError, LookupError):
        raise Absent(BUILT_WITHOUT) from None
    gaps = Gaps()
    entries, damaged_nodes = xarray_pointers(prog, subsystem.css_idr.idr_rt, gaps)
    pointers = entries[:MAX_MEMCGS] - np.uint64(css)
    columns, read = read_members(prog, pointers, type_, _columns(prog), gaps)
    ours = read & (columns["subsystem"] == subsystem.address_)
    address, columns = pointers[ours], columns[ours]
    parent = find(address, columns["parent"] - np.uint64(css))
    stats, stats_read = _stats(prog, address, gaps)
    return Memcgs(
        prog=prog,
        address=address,
        columns=columns,
        parent=parent,
        depth=_depths(parent, columns["parent"]),
        stats=stats,
        stats_read=stats_read,
        unified=subsystem.root.value_() == prog["cgrp_dfl_root"].address_,
        vanished=len(entries) - len(address),
        damaged_nodes=damaged_nodes,
        gaps=gaps,
        flat=hasattr(subsystem, "broken_hierarchy") and bool(subsystem.broken_hierarchy.value_()),
    )


def memcgs_once(memory: Memory) -> Memcgs:
    """All memory cgroups, read once for all sections."""
    return memory.once("memcgs", lambda: read_memcgs(memory.prog))


def _depths(parent: S64s, pointers: U64s) -> S64s:
    """The number of steps from each to the root, level by level; -1 where there is no way."""
    depth = np.full(len(parent), -1, np.int64)
    depth[pointers == 0] = 0
    for level in range(MOST_LEVELS):
        next_ = (parent >= 0) & (depth == -1) & (depth[parent] == level)
        if not next_.any():
            break
        depth[next_] = level + 1
    return depth


def _stats(prog: Program, memcgs: U64s, gaps: Gaps) -> tuple[dict[str, S64s], Bools]:
    """
    ``memcg_vmstats.state``, as memory.stat prints it: at least 0 (``memcg_page_state()``).

    A structure of its own since "memcg: extract memcg_vmstats from struct mem_cgroup"
    (410f8e826886, in v6.1), one inside before; and the array alone before "mm: memcontrol: switch
    to rstat" (2d146aa3aa84, in v5.13).
    """
    member = prog.type("struct mem_cgroup").member("vmstats")
    state, offset, pointers = member.type, 0, memcgs + np.uint64(member.offset)
    if state.kind is TypeKind.POINTER:
        pointers, known = read_scattered(prog, pointers, np.dtype("<u8"), gaps)
        pointers[~known] = 0
        state = state.type
    if state.kind is TypeKind.STRUCT:
        state, offset = state.member("state").type, state.member("state").offset
    length = state.length or 0
    dtype = laid_out({"state": (("<i8", (length,)), offset)})
    index = _stat_index(prog)
    page = int(prog["PAGE_SIZE"].value_())
    thp = page if thp_in_pages(prog) else page << (prog["PAGE_SHIFT"].value_() - 3)
    unit = {PAGES: page, KIB: 1024, BYTES: 1, TIMES: 1, THP: thp}
    numbers = _items(prog)
    rows, read = read_scattered(prog, pointers, dtype, gaps)
    found = {}
    for name, items, of in STATS:
        number = next((numbers[item] for item in items if item in numbers), -1)
        at = index(number) if number >= 0 else -1
        if 0 <= at < length:
            found[name] = np.maximum(rows["state"][:, at], 0) * unit[of]
    return found, read


def _items(prog: Program) -> dict[str, int]:
    """
    The items that memory cgroups may count. Others have the same numbers: NR_PAGETABLE was one of
    zones before "mm: memcontrol: account pagetables per node" (f0c0c115fb81, in v5.11).
    """
    return {
        each.name: each.value
        for enum in ("enum node_stat_item", "enum memcg_stat_item")
        for each in prog.type(enum).enumerators or ()
    }


def _stat_index(prog: Program) -> Any:
    """
    The index of an item in the array of states.

    Since "memcg: reduce memory for the lruvec and memcg stats" (ff48c71c26aa, in v6.10) only items
    that cgroups count have a place, which a table of signed bytes has, from 1; since "memcg:
    increase the valid index range for memcg stats" (9db298a439f2, in v6.12) of unsigned bytes, from
    0, and 255 for none. Before, it is the item's number.
    """
    try:
        table = prog["mem_cgroup_stats_index"].read_()
    except ObjectNotFoundError:
        return lambda item: item
    element = table.type_.unaliased().type.unaliased()
    from_one = element.is_signed
    length = table.type_.unaliased().length or sizeof(table.type_)
    places = [int(table[item].value_()) for item in range(length)]

    def place(item: int) -> int:
        at = places[item] if item < length else -1
        return at - 1 if from_one else (-1 if at == 255 else at)

    return place


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_cgroups", "memory_cgroups")
