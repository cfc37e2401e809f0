# SPDX-License-Identifier: LGPL-2.1-or-later
"""
NUMA nodes that are online: ``node_states[N_ONLINE]``, and no further.

drgn's ``for_each_online_pgdat()`` goes as far as ``nr_node_ids`` says, which in a damaged vmcore
may be billions; a mask has room for MAX_NUMNODES bits and no more.
"""

from drgn import Object, Program
from drgn.helpers.linux.mmzone import NODE_DATA
from drgn.helpers.linux.nodemask import for_each_online_node


def online_nodes(prog: Program) -> list[Object]:
    """
    ``struct pglist_data *`` of each online node.

    :raises drgn.FaultError: the mask cannot be read.
    :raises ValueError: ``nr_node_ids`` cannot be a number of nodes.
    """
    check_node_ids(prog, "nr_node_ids")
    return [NODE_DATA(prog, node) for node in for_each_online_node(prog)]


def misnumbered(prog: Program) -> list[str]:
    """In words, which online nodes have a ``node_id`` that is not theirs."""
    nodes = zip(for_each_online_node(prog), online_nodes(prog), strict=True)
    said = [(node, int(pgdat.node_id)) for node, pgdat in nodes]
    return [f"node {node} says that it is node {other}" for node, other in said if node != other]


def check_node_ids(prog: Program, name: str) -> int:
    """
    A number of nodes that the kernel keeps, 1 where it is built for one (!CONFIG_NUMA).

    :raises ValueError: it is more than a mask of nodes has bits.
    """
    try:
        limit = int(prog[name].value_())
    except KeyError:
        return 1
    bits = 64 * (prog["node_states"][0].bits.type_.length or 1)
    if not 0 < limit <= bits:
        raise ValueError(f"{name} is {limit}, but masks of nodes have {bits} bits: damaged")
    return limit
