# SPDX-License-Identifier: LGPL-2.1-or-later
"""
LRU lists by node and zone, and generations of the multi-gen LRU by cgroup.

Each memory cgroup has a ``struct lruvec`` for each node (``mem_cgroup_per_node``). What is on its
lists is in ``lru_zone_size``, and with the multi-gen LRU in ``lrugen.nr_pages``, whose two youngest
generations count as active (``lru_gen_is_active()``, include/linux/mm_inline.h); what cannot be
evicted is on a list in both. All are read together, and their sum is what the zone counts.

Costs about 1.5 KiB of reading for each cgroup and node. Cannot know: pages that were taken off a
list for a moment, and those that CPUs have not put on one yet.
"""

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import FaultError, Program, Type, offsetof, sizeof
from drgn.helpers.linux.timekeeping import uptime
from numpy.typing import NDArray

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.cgroups.cgroup_rows import ID, PATH
from mmscope.drgn.cgroups.memcgs import Memcgs, memcgs_once
from mmscope.drgn.free.zones import for_each_zone, zone_name, zone_page_state
from mmscope.drgn.reading.kernel_arrays import Gaps, laid_out
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reclaim.reclaim_nodes import (
    NOT_COMPARED,
    RECLAIM_NODES,
    multi_gen_enabled,
    node_rows,
)
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section, disagreement
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table

# enum lru_list (include/linux/mmzone.h): two of anonymous memory, two of files.
LISTS = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
ANON, FILE, ACTIVE = 0, 1, 1
MIN_NR_GENS = 2  # include/linux/mmzone.h, 6.1 to 7.3
MAX_CGROUPS = 100  # that have rows of their own
HERTZ = (100, 250, 300, 1000)  # kernel/Kconfig.hz
MOST_GENERATIONS = 1 << 60


@table_row
class LruList:
    """Pages of one LRU list of a zone, of all memory cgroups."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    list: str = column(holds="words", key=True, help="LRU list")
    pages: int = column(unit="pages", help="on the lists of all memory cgroups")
    kernel_pages: int | None = column(
        unit="pages", low=None, help="what the zone counts (nr_zone_inactive_anon, …)"
    )
    cgroups: int = column(help="memory cgroups that have some, dying ones among them")


@table_row
class LruGeneration:
    """A generation of the multi-gen LRU of a memory cgroup on a node."""

    cgroup: str | None = column(holds="cgroup", key=True, help=PATH)
    cgroup_id: int | None = column(key=True, help=ID)
    node: int = column(key=True, help="NUMA node")
    generation: int = column(key=True, help="sequence number: the largest is the youngest")
    age_seconds: float | None = column(unit="s", help="since it was made")
    anon_pages: int = column(unit="pages", help="anonymous and shmem pages")
    file_pages: int = column(unit="pages", help="pages of files")
    youngest: bool = column(help="of the two youngest, which count as active and are not evicted")


LRU_LISTS = Table("lru_lists", "LRU lists", LruList, measure="pages", memory="again")
LRU_GENERATIONS = Table(
    "lru_generations",
    "Generations of the multi-gen LRU, of the largest memory cgroups",
    LruGeneration,
    not_compared=NOT_COMPARED,
    empty="The multi-gen LRU has no pages: it is not in use, or not built in.",
)


@dataclass(frozen=True, slots=True)
class Lruvecs:
    """The lruvecs of all memory cgroups: (cgroup, node, …)."""

    read: NDArray[np.bool_]
    sizes: NDArray[np.int64]  # by zone and list
    generations: NDArray[np.int64] | None  # nr_pages by generation, type and zone
    max_seq: NDArray[np.uint64] | None
    min_seq: NDArray[np.uint64] | None  # by type
    births: NDArray[np.uint64] | None  # in jiffies

    @property
    def lists(self) -> NDArray[np.int64]:
        """Pages by (cgroup, node, zone, list)."""
        pages = self.sizes.copy()
        if self.generations is None or self.max_seq is None:
            return pages
        count = self.generations.shape[2]
        each = np.arange(count)
        youngest = self.max_seq[..., None] % np.uint64(count)
        before = (self.max_seq[..., None] + np.uint64(count - 1)) % np.uint64(count)
        active = (each == youngest) | (each == before)
        for type_ in (ANON, FILE):
            held = self.generations[:, :, :, type_, :]
            pages[..., 2 * type_ + ACTIVE] += (held * active[..., None]).sum(axis=2)
            pages[..., 2 * type_] += (held * ~active[..., None]).sum(axis=2)
        return pages


def _dtype(prog: Program) -> np.dtype[Any]:
    """
    The members of ``struct mem_cgroup_per_node``, from the first that is wanted to the last.

    BTF has arrays of arrays as one: how long they are inside is known of others.
    """
    type_ = prog.type("struct mem_cgroup_per_node")
    zones = prog.type("struct pglist_data").member("node_zones").type.length or 1
    fields: dict[str, tuple[Any, int]] = {}

    def add(name: str, path: str, member: Type, sign: str, *inner: int) -> None:
        shape = (sizeof(member) // 8 // math.prod(inner), *inner) if inner else ()
        fields[name] = np.dtype((f"<{sign}8", shape)), offsetof(type_, path)

    add("sizes", "lru_zone_size", type_.member("lru_zone_size").type, "i", len(LISTS))
    with contextlib.suppress(LookupError):  # CONFIG_LRU_GEN
        lrugen = type_.member("lruvec").type.member("lrugen").type
        for name, sign, inner in (
            ("max_seq", "u", ()),
            ("min_seq", "u", (1,)),
            ("timestamps", "u", (1,)),
            ("nr_pages", "i", (2, zones)),
        ):
            add(name, f"lruvec.lrugen.{name}", lrugen.member(name).type, sign, *inner)
    return laid_out(fields)


def read_lruvecs(prog: Program, memcgs: Memcgs, gaps: Gaps) -> Lruvecs:
    """
    Read the lruvecs of all memory cgroups.

    :raises LookupError: the kernel's layout is unknown.
    """
    try:
        nodes = int(prog["nr_node_ids"].value_())
    except LookupError:
        nodes = 1
    if not 0 < nodes <= 1024:
        raise ValueError(f"{nodes:,} nodes cannot be: nr_node_ids is damaged")
    at = np.uint64(offsetof(prog.type("struct mem_cgroup"), "nodeinfo"))
    pointers, read = read_scattered(prog, memcgs.address + at, np.dtype(("<u8", (nodes,))), gaps)
    pointers = np.where(read[:, None], pointers, 0).astype(np.uint64)
    rows, known = read_scattered(prog, pointers[pointers != 0], _dtype(prog), gaps)

    def whole(name: str, kind: Any) -> NDArray[Any]:
        values = np.zeros((*pointers.shape, *rows.dtype[name].shape), kind)
        values[pointers != 0] = np.where(
            known.reshape(-1, *[1] * len(rows.dtype[name].shape)), rows[name], 0
        )
        return values

    there = pointers != 0
    there[there] = known
    if "nr_pages" not in (rows.dtype.names or ()):
        return Lruvecs(there, whole("sizes", np.int64), None, None, None, None)
    return Lruvecs(
        there,
        whole("sizes", np.int64),
        # "eventually consistent": negative for a moment
        np.maximum(whole("nr_pages", np.int64), 0),
        whole("max_seq", np.uint64),
        whole("min_seq", np.uint64)[..., 0],
        whole("timestamps", np.uint64)[..., 0],
    )


def list_rows(prog: Program, lruvecs: Lruvecs) -> list[LruList]:
    """A row for each list of each zone, beside what the zone counts."""
    pages = lruvecs.lists
    rows = []
    for node, index, zone in for_each_zone(prog):
        for number, name in enumerate(LISTS):
            here = pages[:, node, index, number]
            try:
                counted = zone_page_state(zone, f"NR_ZONE_{name.upper()}")[0]
            except LookupError:
                counted = None
            rows.append(
                LruList(
                    node,
                    zone_name(zone),
                    name,
                    int(here.sum()),
                    counted,
                    int(np.count_nonzero(here)),
                )
            )
    return rows


def generation_rows(
    prog: Program, memcgs: Memcgs, lruvecs: Lruvecs, gaps: Gaps
) -> list[LruGeneration]:
    """The generations of the cgroups with most pages in them, the oldest of each first."""
    generations, max_seq, min_seq = lruvecs.generations, lruvecs.max_seq, lruvecs.min_seq
    if generations is None or max_seq is None or min_seq is None or lruvecs.births is None:
        return []
    total = generations.sum(axis=(1, 2, 3, 4))
    largest = np.argsort(-total, kind="stable")[:MAX_CGROUPS]
    largest = largest[total[largest] > 0]
    paths = cgroup_paths(prog, memcgs.columns["cgroup"][largest], gaps)
    now, hertz = int(prog["jiffies_64"].value_()), jiffies_a_second(prog)
    count = generations.shape[2]
    rows = []
    for at, path, number in zip(largest.tolist(), paths.paths, paths.ids, strict=True):
        for node in np.flatnonzero(generations[at].sum(axis=(1, 2, 3))).tolist():
            last = int(max_seq[at, node])
            first = max(int(min_seq[at, node].min()), last - count + 1)
            for sequence in range(first, last + 1):
                held = generations[at, node, sequence % count].sum(axis=1)
                age = now - int(lruvecs.births[at, node, sequence % count])
                rows.append(
                    LruGeneration(
                        *(path, number, node, sequence),
                        age / hertz if hertz and age >= 0 else None,
                        int(held[ANON]),
                        int(held[FILE]),
                        sequence > last - MIN_NR_GENS,
                    )
                )
    return rows


def jiffies_a_second(prog: Program) -> int | None:
    """
    CONFIG_HZ, a macro: the one with which jiffies, which began at ``INITIAL_JIFFIES``, 300 s below
    1 << 32 (include/linux/jiffies.h), make the uptime; None if none does.
    """
    try:
        jiffies, seconds = int(prog["jiffies_64"].value_()), uptime(prog)
    except (FaultError, LookupError):
        return None
    for hertz in HERTZ:
        if abs((jiffies - (1 << 32)) / hertz + 300 - seconds) < 1 + seconds / 100:
            return hertz
    return None


def lru_lists_from_memory(memory: Memory) -> Found:
    prog, memcgs, gaps = memory.prog, memcgs_once(memory), Gaps()
    lruvecs = read_lruvecs(prog, memcgs, gaps)
    found = Found()
    rows = list_rows(prog, lruvecs)
    found.add(LRU_LISTS, rows)
    found.add(RECLAIM_NODES, node_rows(prog, multi_gen_enabled(prog, memcgs)))
    found.add(LRU_GENERATIONS, generation_rows(prog, memcgs, lruvecs, gaps))
    found.unreadable_bytes = gaps.bytes + memcgs.gaps.bytes
    wrong = [row for row in rows if row.kernel_pages not in (None, row.pages)]
    if wrong:
        disagreement(
            memory,
            found,
            "; ".join(
                f"{row.list} of node {row.node} zone {row.zone}: {row.pages:,} pages are on lists, "
                f"the zone counts {row.kernel_pages:,}"
                for row in wrong[:5]
            ),
        )
    return found


def lru_lists_from_files(files: Files) -> Found:
    raise Absent(
        "LRU lists by memory cgroup are not in /proc; section memory_cgroups has active and "
        "inactive memory of each; read the kernel's memory (as root)"
    )


LRU_LISTS_SECTION = Section(
    name="lru_lists",
    title="LRU lists and reclaim",
    since="0.2.0",
    tables=(LRU_LISTS, RECLAIM_NODES, LRU_GENERATIONS),
    intro="""
What reclaim goes through: every memory cgroup has LRU lists on each node, here added up by zone
beside what the zone counts. With the
[multi-gen LRU](https://docs.kernel.org/admin-guide/mm/multigen_lru.html) they are generations, of
which the two youngest count as active. An old generation that holds much is memory that no process
touched since. Refaults are pages that were reclaimed and soon read again.
""",
    command=Command("LRU lists, generations of the multi-gen LRU, and how kswapd fares", top=TOP),
    from_memory=lru_lists_from_memory,
    from_files=lru_lists_from_files,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("lru_lists")
