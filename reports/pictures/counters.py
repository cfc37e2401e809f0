# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The counters of /proc/vmstat in groups, and the success shares that can be had from them.

All events are counted since boot. No rate follows from that, and no share says when it went wrong:
a machine that was fine for a month and is not now still shows the month.
"""

import re
from typing import Any

from mmscope.reports.pictures.picture import Row, Tables, picture

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
# (name, counter of successes, counter of failures)
RATIOS = (
    ("THP at page fault", "thp_fault_alloc", "thp_fault_fallback"),
    ("Direct compaction", "compact_success", "compact_fail"),
)


@picture("vm_counters", "name kind value")
def vm_counters(tables: Tables, page_size: int | None) -> dict[str, Any]:
    """Counters by group, success shares with their parts, and which shares lack a counter."""
    groups: dict[str, list[Row]] = {name: [] for name, _ in GROUPS}
    for row in tables["vm_counters"]:
        groups[next(name for name, fits in GROUPS if re.match(fits, row["name"]))].append(row)
    values = {row["name"]: row["value"] for row in tables["vm_counters"]}
    known = [(name, *both) for name, *both in RATIOS if values.keys() >= set(both)]
    return {
        "ratios": [(name, good, bad, values[good], values[bad]) for name, good, bad in known],
        "missing": [each for each in RATIOS if each not in known],
        "groups": [(name, rows) for name, rows in groups.items() if rows],
    }
