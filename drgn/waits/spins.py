# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Spinlocks of memory management that CPUs spin for, in a vmcore: of a zone, of LRU lists, of a node
of a slab cache.

A CPU that spins is in ``queued_spin_lock_slowpath()`` (kernel/locking/qspinlock.c), with the lock's
address in a register; it is taken where it is the address of such a lock, which is held, and no
other register has one. Costs nothing where no CPU spins, else a walk over zones and slab caches.

Cannot know: who has a spinlock, which notes no task. On a live kernel, whose registers are not
read: any of it.
"""

import contextlib
from collections.abc import Iterator
from functools import cached_property

from drgn import Object, Program, StackFrame, offsetof
from drgn.helpers.linux.slab import for_each_slab_cache

from mmscope.drgn.cgroups.cgroup_paths import cgroup_path
from mmscope.drgn.opening.constants import kernel_byte
from mmscope.drgn.owners.slab_caches import cache_nodes
from mmscope.drgn.reading.kernel_arrays import TORN
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.nodes import check_node_ids, online_nodes
from mmscope.drgn.waits.waiters import Awaited

SPINLOCK = "spinlock"
SPINS = "queued_spin_lock_slowpath"  # native_ and __pv_ on x86


class SpinLocks:
    """Spinlocks by their address; those of nodes and of slab caches are looked up once."""

    def __init__(self, prog: Program) -> None:
        self._prog = prog

    def spun_for(self, leaf: StackFrame) -> Awaited | None:
        """Find the lock that a CPU spins for, by the innermost frame of its task."""
        if not (leaf.name or "").endswith(SPINS):
            return None
        upper = kernel_byte(self._prog)
        values = {value for value in leaf.registers().values() if value >> 56 == upper}
        locks = [value for value in values if self.name(value) is not None]
        if len(locks) != 1 or not self._prog.read_u32(locks[0]):
            return None
        return Awaited(SPINLOCK, locks[0])

    def name(self, address: int) -> str | None:
        """Name of a spinlock; None of one that is no lock of these."""
        if (name := self._names.get(address)) is None:
            with contextlib.suppress(*TORN):
                name = _of_cgroup(self._prog, address)
        return name

    @cached_property
    def _names(self) -> dict[int, str]:
        found = dict[int, str]()
        for locks in (_of_slabs(self._prog), _of_nodes(self._prog)):
            with contextlib.suppress(*TORN):
                found.update(locks)
        return found


def _of_nodes(prog: Program) -> Iterator[tuple[int, str]]:
    """The locks of zones, and of nodes' LRU lists where these are not of cgroups."""
    for pgdat in online_nodes(prog):
        node = pgdat.node_id.value_()
        for zone in pgdat.node_zones:
            yield zone.lock.address_, f"lock of zone {name_at(zone.name)} of node {node}"
        # "mm/lru: replace pgdat lru_lock with lruvec lock" (6168d0da2b47, in v5.11)
        own = pgdat if hasattr(pgdat, "lru_lock") else pgdat.member_("__lruvec")
        yield own.lru_lock.address_, f"lru_lock of node {node}"


def _of_slabs(prog: Program) -> Iterator[tuple[int, str]]:
    """The locks of nodes of slab caches."""
    lock = offsetof(prog.type("struct kmem_cache_node"), "list_lock")
    for cache in for_each_slab_cache(prog):
        for node, found in enumerate(cache_nodes(cache)):
            words = f"list_lock of node {node} of the slab cache {name_at(cache.name)}"
            yield found.value_() + lock, words


def _of_cgroup(prog: Program, address: int) -> str | None:
    """The lock of the LRU lists of a memory cgroup on a node."""
    type_ = prog.type("struct mem_cgroup_per_node")
    own = address - offsetof(type_, "lruvec.lru_lock")
    group = Object(prog, type_, address=own).memcg
    for node in range(check_node_ids(prog, "nr_node_ids")):
        if group.nodeinfo[node].value_() == own:
            path = cgroup_path(prog, group.css.cgroup.value_())
            return f"lru_lock of node {node} of {path or hex(group.value_())}"
    return None
