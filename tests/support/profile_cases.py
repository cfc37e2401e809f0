# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Profiles in which findings about profiles are found, and in which they are not: the two recordings
of ``report_bundle``, some of their tables with other rows, and tables of memory beside them.
"""

import dataclasses
import datetime
from typing import Any

import report_bundle as made
from rows_of_tables import Contents

from mmscope.drgn.tables.rows import column
from mmscope.reports.rows.profile_rows import (
    ProfileAllocation,
    ProfileDuration,
    ProfileFaults,
    ProfileFrame,
    ProfilePart,
    ProfileReaping,
    ProfileRecording,
    ProfileSite,
    ProfileVictim,
)

ATOMIC = "atomic_alloc"


@dataclasses.dataclass(frozen=True)
class PageTables:
    """As far as findings about profiles look."""

    pid: int = column(key=True)
    comm: str = column()
    exit_pte_slots: int = column()
    pgtables_bytes: int = column(unit="bytes")


@dataclasses.dataclass(frozen=True)
class KsmPages:
    """As far as findings about profiles look."""

    pfn: int = column(key=True)
    visits_per_pass: int = column()
    visits_indexed: int | None = column()


def with_rows(**rows: list[Any]) -> dict[str, Contents]:
    """The recordings, with these rows in these tables."""
    contents = made.profile_rows()
    for table, of_it in rows.items():
        title, row_type, _, section = contents[table]
        contents[table] = (title, row_type, of_it, section)
    return contents


def page_tables(*rows: PageTables) -> dict[str, Contents]:
    return {"page_tables": ("Page tables", PageTables, list(rows), "page_tables")}


def booted(
    contents: dict[str, Contents], seconds: float, release: str = made.TARGET["release"]
) -> dict[str, Contents]:
    """The same, all recorded on a machine that was booted so long after the bundle's own."""
    taken = datetime.datetime.fromisoformat(made.TARGET["captured_at"])
    at = taken - datetime.timedelta(seconds=made.TARGET["uptime_seconds"] - seconds)
    names = {row.profile for name, table in contents.items() if name.startswith("profile")
             for row in table[2]}  # fmt: skip
    rows = [
        ProfileRecording(name, *[None] * 7, release, at.isoformat(timespec="seconds"), None)
        for name in sorted(names)
    ]
    title, row_type, _, section = contents["profile_recordings"]
    return contents | {"profile_recordings": (title, row_type, rows, section)}


def end_of(frame: str, samples: int, **rows: list[Any]) -> dict[str, Contents]:
    """An end and an OOM victim, with as many samples that pass through a function."""
    contents = with_rows(**rows)
    title, row_type, frames, section = contents["profile_frames"]
    more = ProfileFrame("exit_path_never", "cpu-clock", frame, 0, samples)
    return contents | {"profile_frames": (title, row_type, [*frames, more], section)}


def faulted(faults: int, regions: int, huge: int = 0) -> dict[str, Contents]:
    """Faults half of whose time goes into tables; samples of them that tried huge pages."""
    frame = ProfileFrame("faults", "cpu-clock", "do_huge_pmd_anonymous_page_[k]", 1, huge)
    return with_rows(
        profile_parts=parts(60, 60),
        profile_faults=[
            ProfileFaults("faults", "minor-faults", 7, "x", faults, regions, "0x1", "0x2", 2 << 20)
        ],
        profile_frames=[frame] if huge else [],
    )


def lost(samples: int) -> dict[str, Contents]:
    row = made.profile_rows()["profiles"][2][0]
    return with_rows(profiles=[dataclasses.replace(row, lost=samples)])


def parts(tables: int, others: int) -> list[ProfilePart]:
    """Faults: samples that make page tables, and others."""
    every = tables + others
    return [
        ProfilePart("faults", "cpu-clock", "page-fault", "fault", part, n, n / every, n / every)
        for part, n in (("page tables", tables), ("zeroing", others))
    ]


def walks(*rows: tuple[str, int]) -> dict[str, Contents]:
    """Reverse map walks by name, and the longest of each in ns."""
    return with_rows(
        profile_durations=[
            ProfileDuration("rmap", name, 9, 10**9, 10_000, longest, longest)
            for name, longest in rows
        ]
    )


def atomic(*rows: ProfileAllocation) -> dict[str, Contents]:
    """Atomic allocations, and who asked for them."""
    event = "mmscope:reserve" if rows[0].reservations is not None else "kmem:mm_page_alloc"
    frames = [
        ProfileFrame(ATOMIC, event, frame, 0, total)
        for frame, total in (("handle_softirqs_[k]", 8), ("__alloc_pages_slowpath_[k]", 8),
                             ("move_freepages_block_[k]", 8), ("icmp_reply_[k]", 6))
    ]  # fmt: skip
    innocent = ProfileFrame(ATOMIC, "cpu-clock", "page_frag_alloc_[k]", 0, 9_000)
    return with_rows(profile_allocations=list(rows), profile_frames=[*frames, innocent])


SPARSE = PageTables(9, "sparse", 10_240_000, 81_920_000)
PROFILES: dict[str, dict[str, Contents]] = {
    "as they are": with_rows(),
    "an end of a tenth": with_rows(
        profile_parts=[
            ProfilePart("exit_path_never", "cpu-clock", "exit-path", "exit", "zap", 108, 1, 0.1)
        ]
    ),
    "page tables beside": with_rows() | page_tables(PageTables(1, "init", 512, 4096), SPARSE),
    "a victim with little left": with_rows(
        profile_reaping=[ProfileReaping("exit_path_never", "cpu-clock", 80, 3, 4)]
    ),
    "few samples that hide others": with_rows(
        profile_sites=[
            ProfileSite("exit_path_never", "cpu-clock", "exc_page_fault", "x", 9, "the way in")
        ]
    ),
    "a hundred lost samples": lost(100),
    "faults that make tables": with_rows(
        profile_parts=parts(60, 60),
        profile_faults=[
            ProfileFaults("faults", "minor-faults", 7, "faults", 900, 890, "0x1", "0x2", 2 << 20)
        ],
    ) | page_tables(SPARSE),
    "faults that fill pages": with_rows(profile_parts=parts(20, 100)),
    "a long walk, and KSM pages": walks(("rmap_walk_ksm", 705 * 10**6))
    | {"ksm_pages": ("KSM pages", KsmPages, [KsmPages(1, 5_120_000, 256)], "ksm")},
    "a walk that only waited": walks(
        ("rmap_walk_anon", 700 * 10**6), ("rmap_walk_anon, waiting", 699 * 10**6),
        ("rmap_walk_anon, not waiting", 10**6),
    ),
    "a walk that holds its lock": walks(
        ("rmap_walk_anon", 61 * 10**6), ("rmap_walk_anon, waiting", 21 * 10**6),
        ("rmap_walk_anon, not waiting", 40 * 10**6),
    ),
    "walks of KSM pages among others": walks(
        ("rmap_walk", 40 * 10**6), ("rmap_walk, waiting", 0),
        ("rmap_walk, not waiting", 40 * 10**6), ("rmap_walk_ksm", 39 * 10**6),
        ("rmap_walk_ksm, waiting", 0), ("rmap_walk_ksm, not waiting", 39 * 10**6),
    ),
    "short walks": walks(("rmap_walk_file", 3_000_000)),
    "who reserves": atomic(
        ProfileAllocation(ATOMIC, 1, 400, 2, 0, 0),
        ProfileAllocation(ATOMIC, 3, 500, 0, 8, 180),
        ProfileAllocation(ATOMIC, 0, 0, 0, 0, 70),  # of a page: not what the reserve is for
    ) | {"zones": made.tables()["zones"]},
    "failures, and nobody reserves": atomic(ProfileAllocation(ATOMIC, 3, 500, 7, 0, 0)),
    "reservations that cannot be seen": atomic(ProfileAllocation(ATOMIC, 3, 500, 0, None, None)),
    "many, and nobody reserves": atomic(ProfileAllocation(ATOMIC, 3, 500_000, 0, 0, 0)),
    "a disk reserves": with_rows(
        profile_allocations=[ProfileAllocation(ATOMIC, 1, 400, 0, 9, 0)],
        profile_frames=[ProfileFrame(ATOMIC, "mmscope:reserve", "btrfs_read_[k]", 0, 9)],
    ),
    "an end of huge pages": end_of("zap_huge_pmd_[k]", 290),
    "a victim of full tables": end_of("zap_pte_range_[k]", 290, profile_page_tables=[],
        profile_victims=[
            ProfileVictim("exit_path_never", 0.5, 7, "x", 2 << 30, 1 << 30, 0, 0, 2 << 20, 0, 0)
        ],
    ),
    "faults with huge pages": faulted(20_028, 20_004, huge=50),
    "faults that fill regions": faulted(400 * 512, 512),
}  # fmt: skip
# Of recordings beside memory: what is found, and what is said of memory.
BESIDE_MEMORY = {
    "page tables beside": ("profile-exit-share", "10,240,000 slots"),
    "faults that make tables": ("profile-fault-tables", "80,000 KiB"),
    "a long walk, and KSM pages": ("profile-rmap-long", "5,120,000 visits"),
    "who reserves": ("profile-atomic-callers", "pages are HighAtomic reserve"),
}
PROFILES |= {f"{case}, this boot": booted(PROFILES[case], 2) for case in BESIDE_MEMORY}
PROFILES |= {f"{case}, another boot": booted(PROFILES[case], 60) for case in BESIDE_MEMORY}
