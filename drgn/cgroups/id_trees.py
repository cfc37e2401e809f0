# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Entries of an IDR or an XArray (``struct xarray``, lib/xarray.c), read level by level.

Costs a read of neighbouring nodes (576 bytes for 64 entries), not one of an entry. The shift of a
node says how far it is from the leaves: one that does not come down is damaged, so that no loop is
walked. Cannot know: on a running kernel, entries that come and go meanwhile.
"""

import numpy as np
from drgn import Object, Program, offsetof

from mmscope.drgn.reading.kernel_arrays import Gaps, U64s, distinct, laid_out
from mmscope.drgn.reading.scattered_reads import read_scattered

# include/linux/xarray.h: xa_is_internal(), xa_is_node(), xa_to_node(), xa_is_value()
INTERNAL, VALUE, LEAST_NODE = 2, 1, 4096
MOST_SHIFT = 64


def xarray_pointers(prog: Program, tree: Object, gaps: Gaps) -> tuple[U64s, int]:
    """
    All pointers in a tree, ascending, and the number of nodes that could not be followed.

    :param tree: ``struct xarray``; ``struct radix_tree_root`` is the same.
    :param gaps: gets what could not be read.
    :raises FaultError: its head cannot be read.
    """
    node = prog.type("struct xa_node")
    slots = node.member("slots")
    entries = ("<u8", (slots.type.length or 1,))
    dtype = laid_out({"shift": ("u1", offsetof(node, "shift")), "slots": (entries, slots.offset)})
    found: list[U64s] = []
    damaged, shift = 0, MOST_SHIFT
    here = np.array([tree.xa_head.value_()], np.uint64)
    while len(here):
        low = here & np.uint64(3)
        found.append(here[(low == 0) & (here != 0)])
        nodes = here[(low == INTERNAL) & (here > LEAST_NODE)] - np.uint64(INTERNAL)
        rows, read = read_scattered(prog, distinct(nodes), dtype, gaps)
        sound = read & (rows["shift"] < shift)
        damaged += len(nodes) - int(sound.sum())
        if not sound.any():
            break
        shift = int(rows["shift"][sound].max())
        here = rows["slots"][sound].ravel()
    return distinct(np.concatenate(found)), damaged
