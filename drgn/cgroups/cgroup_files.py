# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory cgroups from /sys/fs/cgroup: the files ``memory.*`` of each directory. Of cgroup v2 they are
``memory_files[]`` and ``swap_files[]`` (mm/memcontrol.c), of v1 ``mem_cgroup_legacy_files[]``
(mm/memcontrol-v1.c; 6.1: mm/memcontrol.c).

Costs a few small files for each cgroup; at most :data:`MAX_CGROUPS` of them, those nearest to the
root first. Cannot know: dying cgroups, which have no directory; of which class the pages are.
"""

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mmscope.drgn.cgroups.cgroup_rows import (
    ONLINE,
    STATS,
    MemoryCgroup,
    MemoryCgroupCounter,
)
from mmscope.drgn.sections.files import Absent, Files

MAX_CGROUPS = 1000
ROOTS = {2: ("sys/fs/cgroup", "sys/fs/cgroup/unified"), 1: ("sys/fs/cgroup/memory",)}
CURRENT = {2: "memory.current", 1: "memory.usage_in_bytes"}
# PAGE_COUNTER_MAX in bytes, as v1 prints that there is no limit: less than a page below 1 << 63.
V1_NO_LIMIT = (1 << 63) - (1 << 16)
NUMBERS = {
    2: {
        "usage_bytes": "memory.current",
        "max_bytes": "memory.max",
        "high_bytes": "memory.high",
        "low_bytes": "memory.low",
        "min_bytes": "memory.min",
        "peak_bytes": "memory.peak",
        "swap_bytes": "memory.swap.current",
        "swap_max_bytes": "memory.swap.max",
    },
    1: {
        "usage_bytes": "memory.usage_in_bytes",
        "max_bytes": "memory.limit_in_bytes",
        "peak_bytes": "memory.max_usage_in_bytes",
        "memsw_bytes": "memory.memsw.usage_in_bytes",
        "kmem_bytes": "memory.kmem.usage_in_bytes",
        "tcpmem_bytes": "memory.kmem.tcp.usage_in_bytes",
        "failures": "memory.failcnt",
    },
}
EVENTS = {
    "memory.events": {
        "low_events": "low",
        "high_events": "high",
        "max_events": "max",
        "oom_events": "oom",
        "oom_kill_events": "oom_kill",
    },
    "memory.events.local": {
        "max_own_events": "max",
        "oom_own_events": "oom",
        "oom_kill_own_events": "oom_kill",
    },
}
# Of memory.stat of v1 what the hierarchy has begins so.
V1_STATS = {
    "anon_bytes": ("total_rss",),
    "file_bytes": ("total_cache",),
    "shmem_bytes": ("total_shmem",),
}
# Lines of v1's memory.stat that count nothing: the least limit of a cgroup and those above it.
V1_LIMITS = ("hierarchical_memory_limit", "hierarchical_memsw_limit")
LINE = re.compile(r"([a-z_0-9.]{1,64}) ([0-9]{1,20})")


@dataclass
class CgroupFiles:
    """The contents of the files."""

    version: int
    rows: list[MemoryCgroup] = field(default_factory=list)
    counters: list[MemoryCgroupCounter] = field(default_factory=list)
    more: bool = False  # there are more cgroups than are read
    unreadable: int = 0  # cgroups that went, or whose memory.current cannot be read


def read_cgroup_files(files: Files) -> CgroupFiles:
    """
    The memory cgroups of a tree, the largest first.

    :raises Absent: it has none.
    """
    for version, roots in ROOTS.items():
        for root in roots:
            found = CgroupFiles(version)
            for number, (folder, depth) in enumerate(_folders(files, root, CURRENT[version])):
                if number == MAX_CGROUPS:
                    found.more = True
                    break
                _take(files, root, folder, depth, found)
            if found.rows:
                found.rows.sort(key=lambda row: -(row.usage_bytes or 0))
                return found
    raise Absent(
        f"{files.root / 'sys/fs/cgroup'}: no directory has memory.current (cgroup v2) or "
        "memory.usage_in_bytes (v1): there are no memory cgroups, or the tree lacks their files"
    )


def _folders(files: Files, root: str, current: str) -> Iterator[tuple[str, int]]:
    """(folder below the root, its depth) of those that have the file, level by level."""
    waiting = deque([("", 0)])
    while waiting:
        folder, depth = waiting.popleft()
        try:
            entries = sorted(os.scandir(files.root / root / folder), key=lambda each: each.name)
        except OSError:
            continue
        if any(entry.name == current for entry in entries):
            yield folder, depth
        waiting += [
            (f"{folder}/{entry.name}" if folder else entry.name, depth + 1)
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
        ]


def _take(files: Files, root: str, folder: str, depth: int, found: CgroupFiles) -> None:
    cells: dict[str, Any] = {name: None for name in MemoryCgroup.__dataclass_fields__}
    here = f"{root}/{folder}" if folder else root

    def text(name: str) -> str:
        try:
            return files.open(f"{here}/{name}")
        except OSError:
            return ""

    path = "/" + os.fsencode(folder).decode("utf-8", "backslashreplace")
    cells |= {"cgroup": path, "state": ONLINE, "depth": depth}
    cells |= {name: number(text(file)) for name, file in NUMBERS[found.version].items()}
    if cells["usage_bytes"] is None:
        found.unreadable += 1
        return
    for file, names in EVENTS.items() if found.version == 2 else ():
        events = numbers(text(file))
        cells |= {name: events.get(event) for name, event in names.items()}
    if found.version == 1:
        cells["oom_kill_own_events"] = numbers(text("memory.oom_control")).get("oom_kill")
    stat = numbers(text("memory.stat"))
    for name, parts in (STATS if found.version == 2 else V1_STATS).items():
        if all(part in stat for part in parts):
            cells[name] = sum(stat[part] for part in parts)
    found.rows.append(MemoryCgroup(**cells))
    found.counters += [
        MemoryCgroupCounter(path, None, name, value)
        for name, value in stat.items()
        if value and not (name in V1_LIMITS and value >= V1_NO_LIMIT)
    ]


def number(text: str) -> int | None:
    """The number of a file; None where it has none, or says that there is no limit."""
    match = re.fullmatch(r"([0-9]{1,20})\n?", text)
    value = int(match[1]) if match else None
    return None if value is None or value >= V1_NO_LIMIT else value


def numbers(text: str) -> dict[str, int]:
    """Lines of a name and a number, as memory.stat and memory.events have them."""
    return {
        match[1]: int(match[2])
        for line in text.splitlines()
        if (match := LINE.fullmatch(line)) is not None
    }
