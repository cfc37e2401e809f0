# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reclaim by node: how kswapd fares (``pg_data_t``), which LRU is in use, and refaults since boot.

Costs a few reads a node. Cannot know: what requests reclaimed by themselves; table ``vm_counters``
has the sum.
"""

import contextlib

from drgn import FaultError, Object, Program
from drgn.helpers.linux.mmzone import for_each_online_pgdat

from mmscope.drgn.cgroups.memcgs import Memcgs
from mmscope.drgn.free.zones import node_page_state, zone_name
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table

# Counted by node (enum node_stat_item).
REFAULTS = {
    "refaults_anon": "WORKINGSET_REFAULT_ANON",
    "refaults_file": "WORKINGSET_REFAULT_FILE",
    "restored_anon": "WORKINGSET_RESTORE_ANON",
    "restored_file": "WORKINGSET_RESTORE_FILE",
}
NOT_COMPARED = "it is a state that changes from moment to moment"


@table_row
class ReclaimNode:
    """Reclaim of a node."""

    node: int = column(key=True, help="NUMA node")
    multi_gen: bool | None = column(help="whether the multi-gen LRU is in use (lru_gen/enabled)")
    kswapd_failures: int = column(
        low=None, help="runs of kswapd in a row that reclaimed nothing; it gives up at 16"
    )
    kswapd_order: int = column(low=None, help="order that kswapd was last asked for")
    kswapd_highest_zone: str = column(
        holds="kernel", help="highest zone that it was asked for; empty: it was not asked"
    )
    refaults_anon: int | None = column(
        low=None, help="workingset_refault_anon: pages read again soon after reclaim, since boot"
    )
    refaults_file: int | None = column(low=None, help="workingset_refault_file, since boot")
    restored_anon: int | None = column(
        low=None, help="workingset_restore_anon: of these, that were active before, since boot"
    )
    restored_file: int | None = column(low=None, help="workingset_restore_file, since boot")


RECLAIM_NODES = Table("reclaim_nodes", "Reclaim by node", ReclaimNode, not_compared=NOT_COMPARED)


def node_rows(prog: Program, enabled: dict[int, bool]) -> list[ReclaimNode]:
    """A row for each node."""
    rows = []
    for pgdat in for_each_online_pgdat(prog):
        # An int in 6.12, an atomic_t in 7.2.
        failures = pgdat.kswapd_failures
        highest = pgdat.kswapd_highest_zoneidx.value_()
        zones = pgdat.node_zones
        node = pgdat.node_id.value_()
        rows.append(
            ReclaimNode(
                node,
                enabled.get(node),
                getattr(failures, "counter", failures).value_(),
                pgdat.kswapd_order.value_(),
                # MAX_NR_ZONES: kswapd sleeps, and was not asked.
                zone_name(zones[highest]) if 0 <= highest < (zones.type_.length or 0) else "",
                *(_refaults(pgdat, item) for item in REFAULTS.values()),
            )
        )
    return rows


def _refaults(pgdat: Object, item: str) -> int | None:
    with contextlib.suppress(LookupError):
        return node_page_state(pgdat, item)
    return None


def multi_gen_enabled(prog: Program, memcgs: Memcgs) -> dict[int, bool]:
    """By node, whether the root's lruvec is of the multi-gen LRU (``lru_gen_change_state()``)."""
    roots = memcgs.address[memcgs.depth == 0].tolist()
    found: dict[int, bool] = {}
    for address in roots[:1]:
        root = Object(prog, "struct mem_cgroup", address=address)
        for pgdat in for_each_online_pgdat(prog):
            node = pgdat.node_id.value_()
            with contextlib.suppress(FaultError, AttributeError):
                found[node] = bool(root.nodeinfo[node].lruvec.lrugen.enabled.value_())
    return found


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("lru_lists", "reclaim_nodes")
