# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Red-black trees (``struct rb_root``), all nodes of a level together.

Costs a few reads a level, of which a tree of a million nodes has 30. Whatever is in the tree, the
walk ends: each node is read once, and no more nodes than asked for.
"""

from typing import Any

import numpy as np
from drgn import Program, Type, offsetof
from numpy.typing import NDArray

from mmscope.drgn.reading.kernel_arrays import Columns, Gaps, distinct, struct_dtype
from mmscope.drgn.reading.scattered_reads import read_scattered

MAX_DEPTH = 128  # 2 * log2(n + 1) at most


def read_trees(
    prog: Program,
    roots: list[int],
    type_: Type,
    member: str,
    columns: Columns,
    gaps: Gaps,
    most: int,
) -> tuple[NDArray[Any], bool]:
    """
    Read the entries of some trees.

    :param roots: ``rb_root.rb_node`` of each.
    :param type_: of an entry; *member* is its ``struct rb_node``.
    :param columns: what is wanted of an entry, as :func:`kernel_arrays.struct_dtype` takes it.
    :return: (the entries, in no order; whether that is all of them: no more than *most*, and no
        deeper than a balanced tree is).
    """
    dtype = struct_dtype(
        type_, {**columns, "_left": f"{member}.rb_left", "_right": f"{member}.rb_right"}
    )
    offset = np.uint64(offsetof(type_, member))
    level = distinct(np.array([root for root in roots if root], np.uint64))
    seen = np.empty(0, np.uint64)
    found = [np.empty(0, dtype)]
    for _ in range(MAX_DEPTH):
        if not len(level):
            return np.concatenate(found), True
        if len(seen) + len(level) > most:
            break
        seen = np.concatenate([seen, level])
        entries, read = read_scattered(prog, level - offset, dtype, gaps)
        found.append(entries[read])
        below = np.concatenate([entries["_left"][read], entries["_right"][read]])
        level = np.setdiff1d(distinct(below[below != 0]), seen, assume_unique=True)
    return np.concatenate(found), False
