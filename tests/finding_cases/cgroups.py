# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about memory cgroups."""

import dataclasses
from typing import Any

from finding_cases.case import Case
from finding_cases.oom import oom_at_limit
from finding_cases.rows import MIB

from mmscope.drgn.cgroups.cgroup_rows import MemoryCgroup
from mmscope.drgn.cgroups.dying_pins import DyingPin

CGROUP = MemoryCgroup(**{name: None for name in MemoryCgroup.__dataclass_fields__} | {
    "cgroup": "/pod", "cgroup_id": 7, "state": "online", "depth": 1, "usage_bytes": 63 * MIB,
    "max_bytes": 64 * MIB, "own_bytes": 60 * MIB, "anon_bytes": 60 * MIB, "file_bytes": 3 * MIB,
    "shmem_bytes": 2 * MIB, "kernel_bytes": MIB, "max_own_events": 12, "oom_kill_own_events": 0,
})  # fmt: skip


def cgroup(**changes: Any) -> MemoryCgroup:
    return dataclasses.replace(CGROUP, **changes)


def removed(count: int, held: int, **changes: Any) -> list[MemoryCgroup]:
    """Removed cgroups, which have so much each."""
    return [
        cgroup(cgroup="/gone", cgroup_id=100 + number, state="dying", own_bytes=held,
               usage_bytes=held, max_bytes=None, max_own_events=0, **changes)
        for number in range(count)
    ]  # fmt: skip


def pin(words: str, cgroups: int, pages: int, file: str | None = None) -> DyingPin:
    of_file = ("tmpfs", "00:18", "203", file, False) if file else (None,) * 5
    return DyingPin(words, *of_file, cgroups, cgroups, pages, pages * 4096)


FOUND: dict[str, Case] = {
    "a cgroup full of what cannot be given back": Case(
        "cgroup-at-limit",
        [cgroup(swap_max_bytes=0), oom_at_limit(), cgroup(cgroup="/", max_bytes=None)],
        ["Memory cgroup /pod is at its limit: 63 MiB of 64 MiB", "memory.max 12 times",
         "OOM killers took 0 of its own processes; the kernel's log tells of 1 at the limit of a "
         "cgroup of this name.",
         "60 MiB anonymous memory, 2 MiB shmem, 1 MiB of the kernel's, and 1 MiB page cache",
         "It may not swap."],
        "warning",
    ),
    "one with some page cache": Case(
        "cgroup-at-limit", [cgroup(file_bytes=12 * MIB, max_own_events=1, swap_bytes=MIB)],
        ["memory.max 1 time since", "10 MiB page cache", "It has 1 MiB in swap."], "notice",
        unlike=["kernel's log", "may not swap"],
    ),
    "one whose processes were killed": Case(
        "cgroup-at-limit", [cgroup(file_bytes=12 * MIB, oom_kill_own_events=3)],
        ["OOM killers took 3 of its own processes."], "warning",
    ),
    "thousands of removed cgroups": Case(
        "dying-cgroups",
        [cgroup(), *removed(1200, 4096), pin("file", 1100, 1100, "/journal"),
         pin("no page, no swap", 90, 0), pin("swapped out", 10, 10)],
        ["1,200 memory cgroups were removed and are still in the kernel, with 4.688 MiB",
         "1 are online", "1,100 of them are kept by one file each",
         "Most by /journal (tmpfs): its 1,100 pages keep 1,100.",
         "10 have memory that is swapped out.", "90 have neither pages nor swap"],
        "notice", unlike=["deleted"],
    ),
    "removed cgroups that have much": Case(
        "dying-cgroups", [*removed(20, 16 * MIB), pin("anonymous memory", 20, 80 * 1024)],
        ["20 memory cgroups were removed and are still in the kernel, with 320 MiB",
         "(7.8 % of memory)"],
        "warning", unlike=["one file", "swapped out.", "neither"],
    ),
}  # fmt: skip

CLEAR: dict[str, Case] = {
    "a cgroup with room": Case("cgroup-at-limit", [cgroup(usage_bytes=50 * MIB)]),
    "a cgroup full of page cache": Case("cgroup-at-limit", [cgroup(file_bytes=30 * MIB)]),
    "one that never met its limit": Case("cgroup-at-limit", [cgroup(max_own_events=0)]),
    "one without a limit": Case("cgroup-at-limit", [cgroup(max_bytes=None)]),
    "some hundreds of removed cgroups": Case(
        "dying-cgroups", [*removed(900, 4096), pin("file", 900, 900, "/journal")]
    ),
    "none was removed": Case("dying-cgroups", [cgroup()], empty=(DyingPin,)),
}  # fmt: skip

NOT_CHECKED: dict[str, Case] = {
    f"{name} without cgroups": Case(
        name, [], why_not="no table memory_cgroups in this bundle"
    )
    for name in ("cgroup-at-limit", "dying-cgroups")
}  # fmt: skip
