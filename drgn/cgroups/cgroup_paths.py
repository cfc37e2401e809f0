# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Paths of cgroups: the names of their directories (``struct kernfs_node``), also of removed ones,
whose node a cgroup keeps until it is freed (``cgroup_create()``, kernel/cgroup/cgroup.c).

The nodes are read level by level, with their names.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from drgn import FaultError, Program, offsetof
from numpy.typing import NDArray

from mmscope.drgn.reading.kernel_arrays import Gaps, distinct, struct_dtype
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.tables.rows import LONGEST_NAME

MOST_LEVELS = 256
SHORT = 64
# kernfs_node.__parent since "kernfs: Use RCU to access kernfs_node::parent" (633488947ef6, in
# v6.15)
NODE: dict[str, str | tuple[str, ...]] = {
    "parent": ("__parent", "parent"),
    "name": "name",
    "id": "id",
}


class _Node(NamedTuple):
    """Members of a ``struct kernfs_node``."""

    parent: int
    name: str | None
    id: int


@dataclass
class CgroupPaths:
    """Path of each cgroup, and the id of its directory, which is the inode number."""

    paths: list[str | None]
    ids: list[int | None]


def cgroup_paths(prog: Program, cgroups: NDArray[np.uint64], gaps: Gaps) -> CgroupPaths:
    """
    The paths of cgroups from the root of their hierarchy; None where a part cannot be read.

    :param cgroups: addresses of ``struct cgroup``.
    :raises LookupError: the kernel's layout is unknown.
    """
    type_ = prog.type("struct cgroup")
    offset = offsetof(type_, "kn")
    pointer = np.dtype([("kn", "<u8")])
    kns, read = read_scattered(prog, cgroups + np.uint64(offset), pointer, gaps)
    first = np.where(read, kns["kn"], 0)
    dtype = struct_dtype(prog.type("struct kernfs_node"), NODE)
    nodes: dict[int, _Node] = {}
    wanted = distinct(first[first != 0])
    for _ in range(MOST_LEVELS):
        rows, known = read_scattered(prog, wanted, dtype, gaps)
        found = rows[known]
        names = _names(prog, found["name"])
        columns = (found[name].tolist() for name in ("parent", "id"))
        for address, name, parent, id_ in zip(wanted[known].tolist(), names, *columns, strict=True):
            nodes[address] = _Node(parent, name, id_)
        parents = distinct(rows["parent"][known])
        new = [each for each in parents.tolist() if each and each not in nodes]
        if not new:
            break
        wanted = np.array(new, np.uint64)
    return CgroupPaths(
        [_path(nodes, address) for address in first.tolist()],
        [nodes[address].id if address in nodes else None for address in first.tolist()],
    )


def _names(prog: Program, addresses: NDArray[np.uint64]) -> list[str | None]:
    """Names; those that end soon, as most do, are read together."""
    # What is behind a name need not be there.
    rows, read = read_scattered(prog, addresses, np.dtype((np.uint8, (SHORT,))), Gaps())
    names: list[str | None] = []
    for address, known, row in zip(addresses.tolist(), read.tolist(), rows, strict=True):
        name, ended, _ = row.tobytes().partition(b"\0")
        if not (known and ended):
            try:
                name = prog.read_c_string(address, max_size=LONGEST_NAME + 1)
            except FaultError:
                names.append(None)
                continue
        names.append(name.decode("utf-8", "backslashreplace"))
    return names


def _path(nodes: dict[int, _Node], address: int) -> str | None:
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
