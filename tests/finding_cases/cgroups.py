# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about memory cgroups."""

import dataclasses
from typing import Any

from finding_cases.case import Case
from finding_cases.oom import oom_at_limit
from finding_cases.rows import GIB, MIB, pages_of, zone

from mmscope.drgn.cgroups.cgroup_rows import MemoryCgroup, MemoryCgroupCounter
from mmscope.drgn.cgroups.container_paths import Container
from mmscope.drgn.cgroups.dying_pins import DyingPin
from mmscope.drgn.cgroups.pressure import Pressure
from mmscope.drgn.processes.held_open import SharedFile

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


JOURNAL = SharedFile("/dev/shm/journal", None, None, 11 * MIB, False)


def of_sessions(dying: int, **changes: Any) -> MemoryCgroup:
    """A cgroup below which so many were removed, as text has it."""
    return cgroup(cgroup="/user.slice", depth=1, dying_below=dying, **changes)


ID, UID = "0123456789ab" + "c" * 52, "3f2a8c1e-93d4-4b7a-8a11-0c5d9e7f1a2b"


def pressure(full: float, path: str | None) -> list[Pressure]:
    """Tasks that wait, some of them twice as long as all."""
    return [
        Pressure(path, kind, share, share, share, int(share * 5e6))
        for kind, share in (("full", float(full)), ("some", min(100.0, 2.0 * full)))
    ]


def came_back(pages: int, soon: int, path: str = "/pod") -> list[MemoryCgroupCounter]:
    counts = {"workingset_refault_file": pages, "workingset_activate_file": soon,
              "pgsteal": 2 * pages}  # fmt: skip
    return [MemoryCgroupCounter(path, 7, name, value) for name, value in counts.items()]


FOUND: dict[str, Case] = {
    "a cgroup full of what cannot be given back": Case(
        "cgroup-at-limit",
        [cgroup(swap_max_bytes=0), oom_at_limit(), cgroup(cgroup="/", max_bytes=None)],
        ["Memory cgroup /pod is at its limit: 63 MiB of 64 MiB", "memory.max 12 times",
         "created; 0 of its own processes were OOM-killed (1 such kill in the kernel's "
         "log).",
         "60 MiB of anonymous memory, 2 MiB of shmem, 1 MiB of kernel memory and 1 MiB of "
         "page cache.",
         "It may not swap."],
        "notice",
    ),
    "one whose tasks wait": Case(
        "cgroup-at-limit", [cgroup(), *pressure(6.0, "/pod")],
        ["full: 6.0 % of the last minute."], "warning",
    ),
    "one that meets its limit all the time": Case(
        "cgroup-at-limit", [cgroup(max_own_events=7200)], ["7,200 times"], "warning",
    ),
    "one that met it often, and waits no more": Case(
        "cgroup-at-limit", [cgroup(max_own_events=7200), *pressure(0.2, "/pod")], ["0.2 %"],
        "notice",
    ),
    "a machine that waits": Case(
        "memory-pressure", pressure(6.0, None),
        ["Tasks wait for memory: PSI full 6.0 %, some 12.0 % of the last minute",
         "Last 10 s: full 6.0 %, some 12.0 %; last 5 minutes: full 6.0 %; since boot: full"
         " 30 s."],
        "warning",
    ),
    "a machine that only waits": Case(
        "memory-pressure", pressure(30.0, None), ["PSI full 30.0 %"], "critical"
    ),
    "a cgroup that waits, and those above it": Case(
        "cgroup-pressure",
        [*pressure(1.0, None), *pressure(24.0, "/"), *pressure(24.0, "/kube"),
         *pressure(25.0, "/kube/pod"), *pressure(3.0, "/kube/calm"),
         cgroup(cgroup="/kube/pod", high_bytes=60 * MIB, high_events=9, max_own_events=4)],
        ["Tasks of memory cgroup /kube/pod wait for memory: PSI full 25.0 % of the last minute",
         "It uses 63 MiB; memory.max is 64 MiB, reached 4 times; memory.high is 60 MiB, passed 9"],
        "warning",
    ),
    "a container that waits": Case(
        "cgroup-pressure",
        [*pressure(25.0, f"/kubepods/pod{UID}/{ID}/init"),
         Container(f"/kubepods/pod{UID}/{ID}", None, UID, ID, "shop", "web-7d9f", "nginx")],
        ["Tasks of memory cgroup …/0123456789ab/init (container nginx of pod shop/web-7d9f) wait",
         f"Its cgroup is /kubepods/pod{UID}/{ID}/init."],
        "warning",
    ),
    "a container whose names are not known waits": Case(
        "cgroup-pressure", pressure(25.0, f"/kubepods/pod{UID}/{ID}"),
        [f"Tasks of memory cgroup …/0123456789ab (a container of pod {UID}) wait"], "warning",
    ),
    "a cgroup that waits half of the time": Case(
        "cgroup-pressure", pressure(50.0, "/pod"), ["PSI full 50.0 %"], "critical",
        unlike=["It uses"],
    ),
    "a cgroup whose processes are killed again and again": Case(
        "cgroup-oom-kills",
        [cgroup(usage_bytes=MIB, oom_own_events=6, oom_kill_events=7, peak_bytes=64 * MIB,
                swap_max_bytes=0),
         cgroup(cgroup="/pod/a", oom_own_events=0, oom_kill_events=7)],
        ["Memory cgroup /pod hit its limit of 64 MiB: 7 of its processes were OOM-killed",
         "It uses 1 MiB now, 64 MiB at its peak. It may not swap."], "warning",
    ),
    "a cgroup that is throttled": Case(
        "cgroup-throttled", [cgroup(high_bytes=63 * MIB, high_events=4_000_000, swap_max_bytes=0)],
        ["Memory cgroup /pod is throttled at memory.high: 63 MiB of 63 MiB, 4,000,000 "
         "times", "It exceeded",
         "60 MiB of anonymous memory", "It may not swap."], "warning", unlike=["PSI"],
    ),
    "a cgroup that was throttled, and hardly waits": Case(
        "cgroup-throttled",
        [cgroup(high_bytes=63 * MIB, high_events=4_000_000), *pressure(0.1, "/pod")],
        ["full: 0.1 %"], "notice",
    ),
    "a cgroup that waits above memory.high": Case(
        "cgroup-throttled", [cgroup(high_bytes=63 * MIB, high_events=2000), *pressure(9, "/pod")],
        ["full: 9.0 %"], "warning",
    ),
    "page cache that comes back": Case(
        "cgroup-thrash",
        [cgroup(file_bytes=22 * MIB, max_own_events=9_000_000), *came_back(2_000_000, 1_500_000)],
        ["Memory cgroup /pod is too small for what it uses: 7.629 GiB reclaimed and read "
         "back, 122 times its limit", "its own memory.max 9,000,000 times.",
         "2,000,000 pages came back, 2,000,000 of them file pages; at least 1,500,000 came"
         " back soon; 4,000,000 were reclaimed."],
        "warning",
    ),
    "page cache that comes back, of a multi-gen LRU that counts few as soon": Case(
        "cgroup-thrash", [cgroup(), *came_back(2_000_000, 1_000), *pressure(9.0, "/pod")],
        ["2,000,000 pages came back", "at least 1,000 came back soon", "full: 9.0 %"], "warning",
    ),
    "page cache that comes back, and one task waits": Case(
        "cgroup-thrash",
        [cgroup(), *came_back(2_000_000, 30), pressure(3.0, "/pod")[0],
         dataclasses.replace(pressure(3.0, "/pod")[1], avg60=12.0)],
        ["at least 30 came back soon", "full: 3.0 % of the last minute, 3.0 % of its last 10 "
         "seconds; some: 6.0 % of these."],
        "warning",
    ),
    "page cache that came back, and no task waits": Case(
        "cgroup-thrash", [cgroup(), *came_back(2_000_000, 1_500_000), *pressure(0.0, "/pod")],
        ["full: 0.0 %"], "notice",
    ),
    "protection of half of memory": Case(
        "protection-forbids-reclaim",
        [cgroup(min_bytes=2 * GIB, low_bytes=0, usage_bytes=3 * GIB), cgroup(
            cgroup="/low", min_bytes=0, low_bytes=GIB, usage_bytes=GIB // 2),
         cgroup(cgroup="/pod/below", depth=2, min_bytes=2 * GIB, usage_bytes=2 * GIB)],
        ["memory.min and memory.low protect 2.5 GiB, 62.5 % of memory,", "2 cgroups below the root",
         "2 GiB of it is memory.min. The largest is /pod."], "notice", unlike=["watermarks"],
    ),
    "protection, and kswapd gave up": Case(
        "protection-forbids-reclaim",
        [cgroup(min_bytes=3 * GIB // 2, low_bytes=0, usage_bytes=3 * GIB),
         zone(node_unreclaimable=True)],
        ["kswapd gave up on a node."], "warning",
    ),
    "one with some page cache": Case(
        "cgroup-at-limit", [cgroup(file_bytes=12 * MIB, max_own_events=1, swap_bytes=MIB)],
        ["memory.max 1 time since", "10 MiB of page cache.", "It has 1 MiB in swap."], "notice",
        unlike=["kernel's log", "may not swap"],
    ),
    "one whose processes were killed": Case(
        "cgroup-at-limit", [cgroup(file_bytes=12 * MIB, oom_kill_own_events=3)],
        ["created; 3 of its own processes were OOM-killed."], "warning",
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
    "removed cgroups of one parent that nothing in memory keeps": Case(
        "dying-cgroups",
        [cgroup(), *(dataclasses.replace(one, cgroup=f"/user.slice{one.cgroup}")
                     for one in removed(6000, 0)), pin("no page, no swap", 6000, 0)],
        ["6,000 were below /user.slice.", "6,000 have neither pages nor swap"], "warning",
    ),
    "removed cgroups that cost more than those in use": Case(
        "dying-cgroups",
        [cgroup(), *removed(6000, 4096), pin("file", 6000, 6000, "/journal")],
        ["6,000 memory cgroups were removed"], "warning",
    ),
    "removed cgroups that text counts": Case(
        "dying-cgroups-counted",
        [of_sessions(6000, file_bytes=90 * MIB, shmem_bytes=26 * MIB),
         cgroup(cgroup="/user.slice/a", depth=2, dying_below=0),
         cgroup(cgroup="/b", depth=1, dying_below=0)],
        ["6,000 memory cgroups were removed and are still in the kernel, most of them from "
         "/user.slice", "3 are online", "6,000 were below /user.slice.",
         "24 MiB of shared memory, 63 MiB of other page cache and 0 B of anonymous memory are "
         "charged to these or to /user.slice itself"],
        "warning", unlike=["At least"],
    ),
    "removed cgroups with pages of a file that text has": Case(
        "dying-cgroups-counted",
        [of_sessions(2600, shmem_bytes=11 * MIB), pages_of("nr_shmem", 12 * 256), JOURNAL],
        ["At least 10 MiB of that shared memory is in /dev/shm/journal: all other files have "
         "less."],
        "notice",
    ),
    "removed cgroups whose pages may be of other files": Case(
        "dying-cgroups-counted",
        [of_sessions(2600, shmem_bytes=11 * MIB), pages_of("nr_shmem", 40 * 256), JOURNAL],
        ["11 MiB of shared memory"], "notice", unlike=["/dev/shm/journal"],
    ),
    "removed cgroups from everywhere": Case(
        "dying-cgroups-counted",
        [cgroup(cgroup=f"/{name}", depth=1, dying_below=600) for name in "abc"],
        ["1,800 memory cgroups were removed",
         "cgroup.stat counts those that were removed and are not freed."],
        "notice", unlike=["most", "below"],
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
    "pressure of a busy machine": Case(
        "memory-pressure", [*pressure(2.0, None), *pressure(50.0, "/pod")]
    ),
    "cgroups of a busy machine": Case(
        "cgroup-pressure", [*pressure(50.0, None), *pressure(4.0, "/pod")]
    ),
    "a cgroup with room below memory.high": Case(
        "cgroup-throttled", [cgroup(high_bytes=100 * MIB, high_events=4_000_000)]
    ),
    "a cgroup that met memory.high at a peak": Case(
        "cgroup-throttled", [cgroup(high_bytes=63 * MIB, high_events=30)]
    ),
    "page cache that was read once": Case(
        "cgroup-thrash", [cgroup(), *came_back(2_000_000, 1_000)]
    ),
    "page cache that came back, of a cgroup with room": Case(
        "cgroup-thrash", [cgroup(usage_bytes=MIB), *came_back(2_000_000, 1_500_000)]
    ),
    "a cgroup that lost two processes": Case(
        "cgroup-oom-kills", [cgroup(oom_own_events=2, oom_kill_events=2)]
    ),
    "kills that the log has": Case(
        "cgroup-oom-kills", [cgroup(oom_own_events=5, oom_kill_events=5), oom_at_limit()]
    ),
    "protection of a tenth": Case(
        "protection-forbids-reclaim", [cgroup(min_bytes=GIB // 2, low_bytes=0, usage_bytes=GIB)]
    ),
    "some hundreds of removed cgroups": Case(
        "dying-cgroups", [*removed(900, 4096), pin("file", 900, 900, "/journal")]
    ),
    "some hundreds that text counts": Case(
        "dying-cgroups-counted", [cgroup(depth=1, dying_below=900)]
    ),
    "removed cgroups that memory has by name": Case(
        "dying-cgroups-counted", [cgroup(depth=1, dying_below=1200), *removed(1200, 4096)]
    ),
    "none was removed": Case("dying-cgroups", [cgroup()], empty=(DyingPin,)),
}  # fmt: skip

NOT_CHECKED: dict[str, Case] = {
    f"{name} without cgroups": Case(
        name, [], why_not="no table memory_cgroups in this bundle"
    )
    for name in ("cgroup-at-limit", "cgroup-oom-kills", "dying-cgroups", "cgroup-throttled",
                 "dying-cgroups-counted", "protection-forbids-reclaim")
} | {
    f"{name} without it": Case(name, [cgroup()], why_not="no table memory_pressure in this bundle")
    for name in ("memory-pressure", "cgroup-pressure")
} | {
    "what came back of cgroups is not known": Case(
        "cgroup-thrash", [cgroup()], why_not="no table memory_cgroup_counters in this bundle"
    ),
}  # fmt: skip
