# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Paths of cgroups: the names of their directories (``struct kernfs_node``), also of removed ones,
whose node a cgroup keeps until it is freed (``cgroup_create()``, kernel/cgroup/cgroup.c).

The nodes are read level by level, with their names.
"""

import contextlib

import numpy as np
from drgn import FaultError, Object, Program, offsetof
from drgn.helpers.linux.idr import idr_find

from mmscope.drgn.reading.kernel_arrays import Gaps, U64s, distinct, struct_dtype
from mmscope.drgn.reading.kernel_names import names_at
from mmscope.drgn.reading.scattered_reads import read_scattered

MOST_LEVELS = 256
MOST_LOOKED_UP = 1 << 14
# kernfs_node.__parent since "kernfs: Use RCU to access kernfs_node::parent" (633488947ef6, in
# v6.15)
NODE: dict[str, str | tuple[str, ...]] = {
    "parent": ("__parent", "parent"),
    "name": "name",
    "id": "id",
}

# Path of a cgroup, and the id of its directory, which is the inode number.
CgroupPath = tuple[str | None, int | None]
# Of a kernfs_node: its parent, name and id.
Node = tuple[int, str | None, int]


def cgroup_paths(prog: Program, cgroups: U64s, gaps: Gaps) -> list[CgroupPath]:
    """
    Path of each cgroup from the root of its hierarchy, None where a part cannot be read; and id.

    :param cgroups: addresses of ``struct cgroup``.
    :raises LookupError: the kernel's layout is unknown.
    """
    kn = np.uint64(offsetof(prog.type("struct cgroup"), "kn"))
    first, read = read_scattered(prog, cgroups + kn, np.dtype("<u8"), gaps)
    first = np.where(read, first, 0)
    dtype = struct_dtype(prog.type("struct kernfs_node"), NODE)
    nodes: dict[int, Node] = {}
    wanted = distinct(first[first != 0])
    for _ in range(MOST_LEVELS):
        rows, known = read_scattered(prog, wanted, dtype, gaps)
        rows, names = rows[known], names_at(prog, rows["name"][known])
        found = zip(rows["parent"].tolist(), names, rows["id"].tolist(), strict=True)
        nodes |= zip(wanted[known].tolist(), found, strict=True)
        new = [each for each in distinct(rows["parent"]).tolist() if each and each not in nodes]
        if not new:
            break
        wanted = np.array(new, np.uint64)
    return [
        (_path(nodes, address), nodes[address][-1]) if address in nodes else (None, None)
        for address in first.tolist()
    ]


def cgroup_path(prog: Program, cgroup: int) -> str | None:
    """
    Path of one cgroup, by the address of its ``struct cgroup``; None where it cannot be read.

    :raises LookupError: the kernel's layout is unknown.
    """
    ((path, _),) = cgroup_paths(prog, np.array([cgroup], np.uint64), Gaps())
    return path


def misplaced(prog: Program, cgroups: U64s) -> int:
    """
    Number of cgroups whose directory is another's, or is not where ``kernfs_root.ino_idr`` has its
    id (``__kernfs_new_node()``, fs/kernfs/dir.c; ``cgroup_create()``, kernel/cgroup/cgroup.c).

    Looks at the first :data:`MOST_LOOKED_UP`.
    """
    odd = 0
    for address in distinct(cgroups[cgroups != 0])[:MOST_LOOKED_UP].tolist():
        cgroup = Object(prog, "struct cgroup", address=address)
        with contextlib.suppress(FaultError):  # is said of the path
            node = cgroup.kn.read_()
            number = node.id.value_()
            ids = cgroup.root.kf_root.ino_idr.address_of_()
            low, high = number & (1 << 32) - 1, number >> 32
            odd += (
                idr_find(ids, low).value_() != node.value_()
                or node.priv.value_() != address
                or high > cgroup.root.kf_root.id_highbits.value_()
            )
    return odd


def _path(nodes: dict[int, Node], address: int) -> str | None:
    parts: list[str] = []
    for _ in range(MOST_LEVELS):
        if address not in nodes:
            return None
        parent, name, _ = nodes[address]
        if not parent:  # the root's name is empty
            return "/" + "/".join(reversed(parts))
        if name is None:
            return None
        parts.append(name)
        address = parent
    return None
