# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Percpu allocations by the memory cgroup that they are charged to.

Beside a chunk is a vector, with an entry for every smallest allocation there may be; that where an
allocation begins has its ``struct obj_cgroup``, NULL if it is charged to none (mm/percpu.c,
``pcpu_memcg_post_alloc_hook()``). It is ``pcpu_chunk.obj_cgroups``, or ``obj_exts`` since "mm:
percpu: enable per-cpu allocation tagging" (24e44cc22aa3, in v6.10). What a removed cgroup allocated
is its parent's (``memcg_reparent_objcgs()``, mm/memcontrol.c), until it is freed.

Costs one scattered read for the allocations of a chunk.
"""

import numpy as np
from drgn import Object, Program

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.cgroups.cgroup_rows import DYING, ID, ONLINE, PATH
from mmscope.drgn.cgroups.charged_pages import memcgs_named
from mmscope.drgn.cgroups.memcgs import Memcgs
from mmscope.drgn.reading.kernel_arrays import Gaps, S64s, struct_dtype
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.tables.rows import MOST_BYTES, column
from mmscope.drgn.tables.table import Inside, table


@table(
    "percpu_cgroups",
    "Percpu memory by memory cgroup",
    empty="No percpu allocation is charged to a memory cgroup.",
    memory="again",
    measure="bytes",
    lasting=("cgroup",),
    inside=(Inside("percpu", "bytes", by="cgroup"),),
)
class PercpuCgroup:
    """Percpu allocations that are charged to a memory cgroup itself."""

    cgroup: str | None = column(holds="cgroup", key=True, help=PATH)
    cgroup_id: int | None = column(key=True, help=ID)
    state: str = column(holds="words", help=f"{ONLINE}, or {DYING}")
    allocations: int = column(help="charged to itself, not to descendants")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="on all possible CPUs")


class PercpuOwners:
    """
    Charges of each ``struct obj_cgroup``, chunk after chunk.

    :ivar gaps: what of the vectors could not be read.
    :raises LookupError: the kernel does not charge percpu memory: before v5.9, and without
        CONFIG_MEMCG.
    """

    def __init__(self, prog: Program) -> None:
        self._prog = prog
        chunk = prog.type("struct pcpu_chunk")
        if chunk.has_member("obj_exts"):
            self._vector = "obj_exts"
            self._entry = struct_dtype(prog.type("struct pcpuobj_ext"), {"owner": "cgroup"})
        else:
            self._vector = chunk.member("obj_cgroups").name or ""
            self._entry = np.dtype([("owner", "<u8")])
        self.gaps = Gaps()
        self._held: dict[int, tuple[int, int]] = {}

    def take(self, chunk: Object, starts: S64s, sizes: S64s) -> None:
        """
        Count the allocations of a chunk.

        :param starts: where they begin, in smallest allocations; :param sizes: bytes, of one CPU.
        """
        vector = chunk.member_(self._vector).value_()
        if not vector:
            return
        addresses = np.uint64(vector) + starts.astype(np.uint64) * np.uint64(self._entry.itemsize)
        entries, read = read_scattered(self._prog, addresses, self._entry, self.gaps)
        charged = np.flatnonzero(read & (entries["owner"] != 0))
        owners, which = np.unique(entries["owner"][charged], return_inverse=True)
        numbers = np.bincount(which, minlength=len(owners))
        totals = np.bincount(which, sizes[charged], len(owners)).astype(np.int64)
        for owner, number, total in zip(
            owners.tolist(), numbers.tolist(), totals.tolist(), strict=True
        ):
            objects, size = self._held.get(owner, (0, 0))
            self._held[owner] = objects + number, size + total

    def rows(self, memcgs: Memcgs, units: int) -> tuple[list[PercpuCgroup], int]:
        """
        The cgroups, the largest first; and allocations of what is no cgroup (any more).

        :param units: possible CPUs.
        """
        owners = np.fromiter(self._held, np.uint64, len(self._held))
        held = np.array(list(self._held.values()), np.int64).reshape(-1, 2)
        memcg = memcgs_named(self._prog, owners, memcgs, self.gaps)
        known = memcg >= 0
        at, which = np.unique(memcg[known], return_inverse=True)
        sums = np.zeros((len(at), 2), np.int64)
        np.add.at(sums, which, held[known])
        paths = cgroup_paths(self._prog, memcgs.columns["cgroup"][at], self.gaps)
        rows = [
            PercpuCgroup(*path, DYING if dying else ONLINE, number, total * units)
            for path, dying, (number, total) in zip(
                paths, memcgs.dying[at].tolist(), sums.tolist(), strict=True
            )
        ]
        rows.sort(key=lambda row: (-row.bytes, row.cgroup or "", row.cgroup_id or 0))
        return rows, int(held[~known, 0].sum())


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("percpu", "percpu_cgroups")
