# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory cgroups from /sys/fs/cgroup: the files ``memory.*`` of each directory. Of cgroup v2 they are
``memory_files[]`` and ``swap_files[]`` (mm/memcontrol.c), of v1 ``mem_cgroup_legacy_files[]``
(mm/memcontrol-v1.c; 6.1: mm/memcontrol.c).

Costs a few small files for each cgroup; at most :data:`MAX_CGROUPS` of them, those nearest to the
root first. Cannot know: which cgroups are dying, as they have no directory (cgroup.stat of v2 has
their number below each); of which class the pages are.
"""

import itertools
import os
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from mmscope.drgn.cgroups.cgroup_rows import (
    AMOUNTS,
    ONLINE,
    STATS,
    V1,
    MemoryCgroup,
    MemoryCgroupCounter,
)
from mmscope.drgn.cgroups.memcgs import EVENTS
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.section import Found
from mmscope.drgn.tables.display import if_any

MAX_CGROUPS = 1000
THE_FIRST = f"of cgroups the first {MAX_CGROUPS:,}"
V2_ROOTS = "sys/fs/cgroup", "sys/fs/cgroup/unified"
ROOTS = {2: V2_ROOTS, 1: ("sys/fs/cgroup/memory",)}
GIVEN = "given"  # a cgroup of which single files were given: what it uses is not known
CURRENT = {2: "memory.current", 1: "memory.usage_in_bytes"}
# PAGE_COUNTER_MAX in bytes, as v1 prints that there is no limit: less than a page below 1 << 63.
V1_NO_LIMIT = (1 << 63) - (1 << 16)
# Of memory.stat of v1 what the hierarchy has begins so.
V1_STATS = {
    "anon_bytes": ("total_rss",),
    "file_bytes": ("total_cache",),
    "shmem_bytes": ("total_shmem",),
}
# Lines of v1's memory.stat that count nothing: the least limit of a cgroup and those above it.
V1_LIMITS = ("hierarchical_memory_limit", "hierarchical_memsw_limit")
LINE = re.compile(r"([a-z_0-9.]{1,64}) ([0-9]{1,20})")


def memory_cgroups_from_files(files: Files) -> Found:
    """
    The memory cgroups of a tree, the largest first.

    :raises Absent: it has none.
    """
    for version, roots in ROOTS.items():
        for root in roots:
            folders = _folders(files, root, CURRENT[version])
            some = list(itertools.islice(folders, MAX_CGROUPS))
            read = [_read(files, root, folder, depth, version) for folder, depth in some]
            found = [each for each in read if each is not None]
            if found:
                return _found(found, version, len(some) - len(found), next(folders, None) is None)
    raise Absent(
        f"{files.root / 'sys/fs/cgroup'}: no directory has memory.current (cgroup v2) or "
        "memory.usage_in_bytes (v1): there are no memory cgroups, or the tree lacks their files"
    )


def _found(
    read: list[tuple[MemoryCgroup, list[MemoryCgroupCounter]]],
    version: int,
    unreadable: int,
    whole: bool,
) -> Found:
    rows = sorted((row for row, _ in read), key=lambda row: -(row.usage_bytes or 0))
    found = Found().add(MemoryCgroup, rows)
    found.add(MemoryCgroupCounter, [counter for _, counters in read for counter in counters])
    if not whole:
        found.notes.append(f"there are more than {MAX_CGROUPS:,} cgroups: the others were not read")
    found.remarks += if_any(unreadable, "{} cgroups went, or cannot be read")
    if version == 1:
        found.remarks.append(V1)
    found.remarks.append("no directory shows which cgroups are dying: kernel memory has them")
    return found


def cgroup_folders(files: Files, found: Found, version: int = 2) -> Iterator[tuple[str, str]]:
    """
    Path of each memory cgroup of a version, as rows have it, and its folder in the tree.

    :param found: gets a word where there are more.
    """
    for root in ROOTS[version]:
        folders = _folders(files, root, CURRENT[version])
        for folder, _ in itertools.islice(folders, MAX_CGROUPS):
            yield _path(folder), f"{root}/{folder}"
        if next(folders, None) is not None:
            found.unlisted.append(THE_FIRST)


def _path(folder: str) -> str:
    return "/" + os.fsencode(folder).decode("utf-8", "backslashreplace")


def _folders(files: Files, root: str, current: str) -> Iterator[tuple[str, int]]:
    """(folder below the root, its depth) of those that have the file, level by level."""
    waiting = deque([("", 0)])
    while waiting:
        folder, depth = waiting.popleft()
        here = f"{root}/{folder}" if folder else root
        names = files.names(here)
        if current in names or (folder == GIVEN and names):
            yield folder, depth
        waiting += [
            (f"{folder}/{name}" if folder else name, depth + 1) for name in files.folders(here)
        ]


def _read(
    files: Files, root: str, folder: str, depth: int, version: int
) -> tuple[MemoryCgroup, list[MemoryCgroupCounter]] | None:
    """A cgroup and its counters; None if it went, or its usage cannot be read."""
    cells: dict[str, Any] = {name: None for name in MemoryCgroup.__dataclass_fields__}
    here = f"{root}/{folder}" if folder else root

    def text(name: str) -> str:
        try:
            return files.open(f"{here}/{name}")
        except OSError:
            return ""

    path = _path(folder)
    cells |= {"cgroup": path, "state": ONLINE, "depth": depth}
    for name, (_, *of_versions) in AMOUNTS.items():
        if file := of_versions[2 - version]:
            cells[name] = number(text(file))
    if cells["usage_bytes"] is None and folder != GIVEN:
        return None
    if version == 2:
        events = {array: numbers(text(array.replace("_", "."))) for array, _ in EVENTS.values()}
        for name, (array, event) in EVENTS.items():
            cells[name] = events[array].get(event.removeprefix("MEMCG_").lower())
        # Older kernels count them for all controllers together (cgroup_stat_show()).
        below = numbers(text("cgroup.stat"))
        dying = below.get("nr_dying_subsys_memory", below.get("nr_dying_descendants"))
        cells["dying_below"] = dying
    else:
        cells["failures"] = number(text("memory.failcnt"))
        cells["oom_kill_own_events"] = numbers(text("memory.oom_control")).get("oom_kill")
    stat = numbers(text("memory.stat"))
    for name, parts in (STATS if version == 2 else V1_STATS).items():
        if all(part in stat for part in parts):
            cells[name] = sum(stat[part] for part in parts)
    counters = [
        MemoryCgroupCounter(path, None, name, value)
        for name, value in stat.items()
        if value and not (name in V1_LIMITS and value >= V1_NO_LIMIT)
    ]
    return MemoryCgroup(**cells), counters


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
