# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The counters of /proc/vmstat in groups, and the success shares that can be had from them.

All events are counted since boot. No rate follows from that, and no share says when it went wrong:
a machine that was fine for a month and is not now still shows the month.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mmscope.reports.pictures.picture import Picture, Tables

# The first pattern that fits names the group; names are the kernel's (vmstat_text[], mm/vmstat.c).
GROUPS = (
    (
        "Transparent huge pages",
        r"thp_|nr_(anon_transparent|file|shmem)_hugepages|nr_(file|shmem)_pmdmapped",
    ),
    ("Compaction and migration", r"compact_|pgmigrate_"),
    (
        "Reclaim and swap",
        r"pgscan|pgsteal|pgrefill|pgrotate|pgskip|pgactivate|pgdeactivate|pglazy|pginodesteal|"
        r"allocstall|kswapd|pageoutrun|slabs_scanned|workingset|zone_reclaim|drop_|oom_kill|"
        r"pswp|swap_ra|swpin|swpout|nr_vmscan|nr_throttled|pgreuse",
    ),
    ("NUMA", r"numa_|pgpromote|pgdemote"),
    ("Allocation and faults", r"pgalloc|pgfree|pgfault|pgmajfault|pgpg|nr_free|nr_unaccepted"),
    ("Everything else", r""),
)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A success share: its parts are always shown beside it."""

    name: str
    formula: str
    good: int
    bad: int


# (name, counter of successes, counter of failures)
RATIOS = (
    ("THP at page fault", "thp_fault_alloc", "thp_fault_fallback"),
    ("Direct compaction", "compact_success", "compact_fail"),
)


@dataclass(frozen=True, slots=True)
class View:
    """What the page shows."""

    ratios: list[Ratio]
    missing: list[tuple[str, str]]  # ratios that this kernel's counters do not allow
    groups: list[tuple[str, list[dict[str, Any]]]]


def view(rows: Iterable[dict[str, Any]]) -> View:
    """Sort the rows of table ``vm_counters`` into groups, and divide where that says something."""
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in GROUPS}
    values: dict[str, int] = {}
    for row in rows:
        name = next(group for group, pattern in GROUPS if re.match(pattern, row["name"]))
        groups[name].append(row)
        values[row["name"]] = int(row["value"])
    ratios, missing = [], []
    for name, good, bad in RATIOS:
        if good in values and bad in values:
            ratios.append(Ratio(name, f"{good} / ({good} + {bad})", values[good], values[bad]))
        else:
            missing.append((name, f"needs {good} and {bad}"))
    return View(
        ratios,
        missing,
        [(name, members) for name, members in groups.items() if members],
    )


def draw(tables: Tables, page_size: int | None) -> View:
    """The view of table ``vm_counters``."""
    return view(tables["vm_counters"])


VM_COUNTERS = Picture("vm_counters", "vm_counters", frozenset({"name", "kind", "value"}), draw)
