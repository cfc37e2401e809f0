# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The tables of memory cgroups: what they use, their limits and events, what the kernel counts in
them, the pages that are charged to them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmscope.drgn.cgroups.cgroup_paths import CgroupPath
from mmscope.drgn.cgroups.memcgs import EVENTS, Memcgs
from mmscope.drgn.reading.kernel_arrays import Array, S64s, distinct
from mmscope.drgn.tables.rows import MOST, column, event_column
from mmscope.drgn.tables.table import Inside, table

V1 = "the memory controller is in a hierarchy of cgroup v1"
ONLINE, DYING = "online", "dying"
MAX_COUNTED = 1000  # cgroups that have all counters
PATH = "path from the root of the hierarchy"
ID = "inode of its directory; a removed one may share its path with others"
NO_LIMIT = "empty: none"
BELOW = "descendants included"
STAT = f"of memory.stat, as last flushed; {BELOW}"


@table(
    "memory_cgroups",
    "Memory cgroups, the largest first",
    measure="usage_bytes",
    lasting=("cgroup", "state"),
    memory="again",
    empty="There is no memory cgroup but the root.",
)
class MemoryCgroup:
    """A memory cgroup: usage, limits, events since its creation."""

    cgroup: str | None = column(holds="cgroup", key=True, help=PATH)
    cgroup_id: int | None = column(key=True, help=ID)
    state: str = column(
        holds="words",
        help=f"{ONLINE}, or {DYING}: removed, held by references only",
    )
    depth: int | None = column(help="steps to the root")
    usage_bytes: int | None = column(unit="bytes", help=f"memory.current; {BELOW}")
    max_bytes: int | None = column(unit="bytes", high=MOST, help=f"memory.max; {NO_LIMIT}")
    own_bytes: int | None = column(
        unit="bytes",
        help="pages charged to itself, without slab objects",
    )
    anon_bytes: int | None = column(unit="bytes", high=MOST, help=f"anon {STAT}")
    file_bytes: int | None = column(unit="bytes", high=MOST, help=f"file (with shmem) {STAT}")
    shmem_bytes: int | None = column(unit="bytes", high=MOST, help=f"shmem {STAT}")
    kernel_bytes: int | None = column(
        unit="bytes", high=MOST, help="kernel of memory.stat, as last flushed; descendants included"
    )
    slab_bytes: int | None = column(unit="bytes", high=MOST, help=f"slab {STAT}")
    high_bytes: int | None = column(unit="bytes", high=MOST, help=f"memory.high; {NO_LIMIT}")
    low_bytes: int | None = column(unit="bytes", high=MOST, help="memory.low")
    min_bytes: int | None = column(unit="bytes", high=MOST, help="memory.min")
    peak_bytes: int | None = column(unit="bytes", high=MOST, help="largest usage ever")
    swap_bytes: int | None = column(unit="bytes", high=MOST, help=f"memory.swap.current; {BELOW}")
    swap_max_bytes: int | None = column(
        unit="bytes", high=MOST, help=f"memory.swap.max; {NO_LIMIT}"
    )
    low_events: int | None = event_column(
        help=f"low of memory.events: reclaimed below memory.low; {BELOW}"
    )
    high_events: int | None = event_column(help="high: throttled above memory.high")
    max_events: int | None = event_column(help="max: about to exceed memory.max")
    oom_events: int | None = event_column(help="oom: at the limit, an allocation about to fail")
    oom_kill_events: int | None = event_column(help="oom_kill: processes killed by any OOM killer")
    max_own_events: int | None = event_column(help="max of memory.events.local: at its own limit")
    oom_own_events: int | None = event_column(help="oom of memory.events.local")
    oom_kill_own_events: int | None = event_column(help="oom_kill of memory.events.local")
    dying_below: int | None = column(help="dying descendants")
    memsw_bytes: int | None = column(unit="bytes", high=MOST, help="v1: memory and swap")
    kmem_bytes: int | None = column(unit="bytes", high=MOST, help="v1: kernel memory")
    tcpmem_bytes: int | None = column(unit="bytes", high=MOST, help="v1: TCP buffers")
    failures: int | None = column(help="v1: memory.failcnt, failed charges")


@table(
    "memory_cgroup_pages",
    "Pages of memory cgroups by class",
    measure="bytes",
    lasting=("cgroup", "owner", "part", "charged_as"),
    memory="again",
    empty="No page is charged to a memory cgroup.",
    # Of slabs and percpu memory it is objects that are charged.
    inside=tuple(
        Inside(owner, "bytes", ("owner", (owner,)), by="cgroup")
        for owner in ("anonymous", "page cache", "kernel stacks", "page tables", "vmalloc")
    ),
)
class MemoryCgroupPages:
    """Pages of one class that are charged to a memory cgroup."""

    cgroup: str | None = column(holds="cgroup", key=True, help=PATH)
    cgroup_id: int | None = column(key=True, help=ID)
    owner: str = column(holds="words", key=True, help="class of memory, as in memory_ledger")
    part: str = column(holds="words", key=True, help="part of the class")
    charged_as: str = column(holds="words", key=True, help="page, or kernel memory")
    pages: int = column(unit="pages", help="charged to itself")
    pages_below: int = column(unit="pages", help="charged to it and its descendants")
    bytes: int = column(unit="bytes", help="charged to itself")


@table(
    "memory_cgroup_counters",
    "Counters of memory cgroups",
    measure="value",
    lasting=("cgroup", "counter"),
)
class MemoryCgroupCounter:
    """A counter that the kernel keeps of a memory cgroup."""

    cgroup: str | None = column(holds="cgroup", key=True, help=PATH)
    cgroup_id: int | None = column(key=True, help=ID)
    counter: str = column(holds="kernel", key=True, help="as in memory.stat")
    value: int = event_column(
        help=f"in the unit of memory.stat: bytes, or events since the cgroup is; {BELOW}"
    )


# Columns of MemoryCgroup that are a page_counter's: its member, the file of cgroup v2, that of v1.
AMOUNTS: dict[str, tuple[str, str, str]] = {
    "usage_bytes": ("memory.usage.counter", "memory.current", "memory.usage_in_bytes"),
    "max_bytes": ("memory.max", "memory.max", "memory.limit_in_bytes"),
    "high_bytes": ("memory.high", "memory.high", ""),
    "low_bytes": ("memory.low", "memory.low", ""),
    "min_bytes": ("memory.min", "memory.min", ""),
    "peak_bytes": ("memory.watermark", "memory.peak", "memory.max_usage_in_bytes"),
    "swap_bytes": ("swap.usage.counter", "memory.swap.current", ""),
    "swap_max_bytes": ("swap.max", "memory.swap.max", ""),
    "memsw_bytes": ("memsw.usage.counter", "", "memory.memsw.usage_in_bytes"),
    "kmem_bytes": ("kmem.usage.counter", "", "memory.kmem.usage_in_bytes"),
    "tcpmem_bytes": ("tcpmem.usage.counter", "", "memory.kmem.tcp.usage_in_bytes"),
}
LIMITS = ("max_bytes", "high_bytes", "low_bytes", "min_bytes", "swap_max_bytes")
# Those that a kernel keeps in one of both: swap and memsw are one.
OF_VERSION = {"swap": 2, "memsw": 1, "kmem": 1, "tcpmem": 1}
# … of memory.stat, added up.
STATS = {
    "anon_bytes": ("anon",),
    "file_bytes": ("file",),
    "shmem_bytes": ("shmem",),
    "kernel_bytes": ("kernel",),
    "slab_bytes": ("slab_reclaimable", "slab_unreclaimable"),
}


def largest_first(memcgs: Memcgs) -> S64s:
    """Positions, by usage; what is above comes before what is below."""
    usage = memcgs.columns["memory.usage.counter"]
    order: S64s = np.lexsort((memcgs.address, memcgs.depth, -usage))
    return order


def cgroup_rows(
    memcgs: Memcgs, paths: list[CgroupPath], charged: Array | None
) -> list[MemoryCgroup]:
    """A row for each memory cgroup, the largest first."""
    page = int(memcgs.prog["PAGE_SIZE"].value_())
    count = len(memcgs.address)
    version = 2 if memcgs.unified else 1
    cells: dict[str, Sequence[Any]] = {
        name: [None] * count for name in (*AMOUNTS, *STATS, "own_bytes", "failures")
    }
    # PAGE_COUNTER_MAX (include/linux/page_counter.h)
    no_limit = ((1 << 63) - 1) // page
    for name, (member, *_) in AMOUNTS.items():
        counter, _, _ = member.partition(".")
        values = memcgs.column(member)
        if values is not None and OF_VERSION.get(counter, version) == version:
            limit = name in LIMITS
            cells[name] = [None if limit and v == no_limit else v * page for v in values.tolist()]
    cells |= {name: memcgs.columns[name].tolist() for name in EVENTS}
    for name, parts in STATS.items():
        if all(part in memcgs.stats for part in parts):
            total = np.add.reduce([memcgs.stats[part] for part in parts])
            known = zip(memcgs.stats_read.tolist(), total.tolist(), strict=True)
            cells[name] = [value if read else None for read, value in known]
    if not memcgs.unified and (values := memcgs.column("memory.failcnt")) is not None:
        cells["failures"] = values.tolist()
    if charged is not None:
        own = np.bincount(charged["memcg"], charged["pages"], count).astype(np.int64)
        cells["own_bytes"] = (own * page).tolist()
    dying = memcgs.dying.astype(np.int64)
    cells["dying_below"] = (memcgs.up(dying) - dying).tolist()
    cells["depth"] = [None if depth < 0 else depth for depth in memcgs.depth.tolist()]
    cells["state"] = [DYING if each else ONLINE for each in dying.tolist()]
    cells["cgroup"], cells["cgroup_id"] = ([path[at] for path in paths] for at in (0, 1))
    return [
        MemoryCgroup(**{name: column[at] for name, column in cells.items()})
        for at in largest_first(memcgs).tolist()
    ]


def page_rows(
    memcgs: Memcgs, paths: list[CgroupPath], charged: Array, kinds: Sequence[tuple[str, str]]
) -> list[MemoryCgroupPages]:
    """
    The pages of each class, those of the largest cgroups first.

    :param charged: by :func:`charged_pages.charges`.
    :param kinds: class and part of the kinds of pages.
    """
    page = int(memcgs.prog["PAGE_SIZE"].value_())
    count = len(memcgs.address)
    found: list[tuple[int, int, int, int, int]] = []
    rank = np.empty(count, np.int64)
    rank[largest_first(memcgs)] = np.arange(count)
    classes = charged["kind"] * 2 + charged["kernel"]
    for each in distinct(classes).tolist():
        here = charged[classes == each]
        own = np.bincount(here["memcg"], here["pages"], count).astype(np.int64)
        below = memcgs.up(own)
        at = np.flatnonzero(below)
        found += zip(
            *(rank[at].tolist(), (-below[at]).tolist(), at.tolist(), own[at].tolist()),
            [each] * len(at),
            strict=True,
        )
    return [
        MemoryCgroupPages(
            *paths[at],
            *kinds[each // 2],
            "kernel memory" if each % 2 else "page",
            own,
            -below,
            own * page,
        )
        for _, below, at, own, each in sorted(found)
    ]


def counter_rows(memcgs: Memcgs, paths: list[CgroupPath]) -> list[MemoryCgroupCounter]:
    """The lines of memory.stat of the largest cgroups, but zeros."""
    rows = []
    for at in largest_first(memcgs)[:MAX_COUNTED].tolist():
        path, number = paths[at]
        for name, values in memcgs.stats.items():
            if memcgs.stats_read[at] and (value := int(values[at])):
                rows.append(MemoryCgroupCounter(path, number, name, value))
    return rows


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section(
        "memory_cgroups", "memory_cgroups", "memory_cgroup_pages", "memory_cgroup_counters"
    )
