# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reclaim and compaction that tasks are in: ``struct scan_control``, ``struct compact_control``.

Both are on the stack of the task that works. ``task_struct.reclaim_state`` points into the one
(set_task_reclaim_state(), mm/vmscan.c), kswapd's too; ``task_struct.capture_control`` leads to the
other where pages are compacted for an allocation (compact_zone_order(), mm/compaction.c). So they
are known of tasks that run on a live kernel as well. Costs four reads for each such task.

Cannot know: at which of its nodes direct reclaim is; how far kcompactd is, and compaction that was
asked for by hand.
"""

import contextlib
from dataclasses import astuple, dataclass
from typing import Any

from drgn import Object, container_of
from drgn.helpers.linux.nodemask import for_each_node_mask

from mmscope.drgn.cgroups.cgroup_paths import cgroup_path
from mmscope.drgn.reading.kernel_arrays import TORN
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.nodes import online_nodes
from mmscope.drgn.waits.stacks import bounds_of

PF_MEMALLOC = 0x800  # include/linux/sched.h: of all that reclaim or compact
DEF_PRIORITY = 12  # include/linux/mmzone.h; it counts down from there
MOST_ORDER = 63
AS_ASKED = "reclaims as asked"


@dataclass(frozen=True, slots=True)
class Reclaiming:
    """
    Reclaim or compaction that a task is in.

    :ivar cgroup: path of the one that it reclaims from, "/" for all; None: it compacts.
    :ivar zones: in words, and the nodes where a policy or cpuset leaves some out.
    :ivar pages: freed so far by this call; :ivar wanted: with which it ends.
    :ivar asked: by who wrote to memory.reclaim, or to a node's file of that kind.
    """

    cgroup: str | None
    zones: str
    order: int
    priority: int | None = None
    pages: int | None = None
    wanted: int | None = None
    asked: bool = False

    @property
    def goal(self) -> tuple[Any, ...]:
        """Parts that stay as they are until it ends."""
        return self.cgroup, self.zones, self.order, self.wanted, self.asked

    @property
    def doing(self) -> str:
        """In words."""
        if self.asked:
            return AS_ASKED
        return {None: "compacts", "/": "reclaims"}.get(self.cgroup, "reclaims from a cgroup")

    @property
    def cells(self) -> tuple[Any, ...]:
        """Columns of its task."""
        return astuple(self)[:-1]


def reclaiming(task: Object, paths: dict[int, str]) -> Reclaiming | None:
    """
    Reclaim or compaction of a ``struct task_struct *``; None where it does neither, or went on
    while it was read.

    :param paths: of cgroups, by the address of their ``struct mem_cgroup``, found before.
    """
    with contextlib.suppress(*TORN):
        for member, read in (("reclaim_state", _reclaims), ("capture_control", _compacts)):
            # The latter is CONFIG_COMPACTION's.
            if (at := getattr(task, member, None)) and at.value_() in bounds_of(task):
                # Between two calls of a loop it is something else: it has to be the same twice.
                at, goals = at.read_(), set[tuple[Any, ...]]()
                for _ in range(2):
                    if (found := read(at, paths)) is None or task.member_(member) != at:
                        return None
                    goals.add(found.goal)
                return found if len(goals) == 1 else None
    return None


def _reclaims(state: Object, paths: dict[int, str]) -> Reclaiming | None:
    """By a ``struct reclaim_state *``."""
    control = container_of(state, "struct scan_control", "reclaim_state")[0].read_()
    order, priority = control.order.value_(), control.priority.value_()
    # Behind the last try it is -1.
    if not (0 <= order <= MOST_ORDER and -1 <= priority <= DEF_PRIORITY):
        return None
    group = control.target_mem_cgroup
    if group and group.value_() not in paths:
        path = cgroup_path(state.prog_, group.css.cgroup.value_())
        paths[group.value_()] = path or hex(group.value_())
    cgroup = paths[group.value_()] if group else "/"
    nodes = [*online_nodes(state.prog_)]
    zones = zones_up_to(nodes[0], control.reclaim_idx.value_())
    if zones is None:
        return None
    if control.nodemask:
        allowed = {*for_each_node_mask(control.nodemask[0])}
        if left := [number for node in nodes if (number := node.node_id.value_()) in allowed]:
            zones += "" if len(left) == len(nodes) else f" of node {', '.join(map(str, left))}"
    freed, wanted = control.nr_reclaimed.value_(), control.nr_to_reclaim.value_()
    # "mm: vmpressure: don't count proactive reclaim in vmpressure" added the bit (6.1 has it).
    asked = bool(getattr(control, "proactive", False))
    return Reclaiming(cgroup, zones, order, max(priority, 0), freed, wanted, asked)


def _compacts(capture: Object, _: dict[int, str]) -> Reclaiming | None:
    """By a ``struct capture_control *``."""
    control = capture.cc[0].read_()
    order, zone = control.order.value_(), control.zone
    if not 0 <= order <= MOST_ORDER:
        return None
    name, node = name_at(zone.name), zone.zone_pgdat.node_id.value_()
    return Reclaiming(None, f"{name} of node {node}", order)


def zones_up_to(node: Object, highest: int) -> str | None:
    """The zones of a ``struct pglist_data *`` up to one of them, in words; every node has all."""
    zones = node.node_zones
    if not 0 <= highest < len(zones):
        return None
    return "all" if highest == len(zones) - 1 else f"up to {name_at(zones[highest].name)}"
