# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The tables of profiles: what ``mmscope record`` adds to a bundle.

A recording is named by ``profile``; each of its events is a row of ``profiles``, and the stacks of
those that are drawn lie in ``<file>.folded``. Every sample is in one place: ``recorded`` is
``samples`` plus ``removed``.
"""

from collections.abc import Callable
from typing import Any, dataclass_transform

from mmscope.drgn.tables.rows import MOST_BYTES, Row, column, table_row
from mmscope.drgn.tables.table import LENGTH, Heading, table, tables_of

# How page tables over faults are known (``profile_table_growth.made_by``).
ADDRESSES, VMPTE = "addresses", "VmPTE"


@dataclass_transform(frozen_default=True, field_specifiers=(column,))
def recorded(name: str, title: str, **more: Any) -> Callable[[type[Row]], type[Row]]:
    """Declare a row and its table, which is not compared, unless *more* says what is."""
    if "measure" not in more:
        more.setdefault("not_compared", LENGTH)
    return table(name, title, **more)


@table_row
class OfRecording:
    """First column of every table."""

    profile: str = column(holds="profile", key=True, help="name of the recording")


@table_row
class OfEvent(OfRecording):
    """First columns of tables about single events."""

    event: str = column(holds="words", key=True, help="what was sampled")


@recorded("profiles", "Profiles")
class Profile(OfRecording):
    """One event of a recording."""

    event: str = column(holds="words", key=True, help="what was sampled, as perf calls it")
    recipe: str | None = column(holds="words", help="its recipe")
    unit: str = column(holds="words", help="samples, or what the event's period counts")
    samples: int = column(help="in the stacks, or counted")
    period: int = column(help="sum of periods: ns, cycles or events")
    recorded: int = column(help="samples perf says it recorded")
    removed: int = column(help="left out: idle, the profiler, other tasks, not asked for")
    removed_why: str | None = column(holds="words", help="the same by reason")
    lost: int | None = column(help="samples perf could not write")
    missed: int | None = column(
        since="0.2.0",
        help="probe hits the kernel could not run (kprobe_profile): no sample",
    )
    kernel_samples: int = column(help="with a leaf in the kernel")
    stacks: int = column(help="distinct stacks")
    nmi: str | None = column(
        holds="words", help="sampler reaches code with interrupts off: yes, no, unknown"
    )
    file: str | None = column(holds="stacks", help="folded stacks in the bundle")


@recorded("profile_recordings", "How they were recorded")
class ProfileRecording(OfRecording):
    """How a recording was made; of imported text, what it says."""

    label: str | None = column(holds="label", help="the user's name for the machine's state")
    against: str | None = column(holds="profile", help="recording it is compared with")
    seconds: float | None = column(unit="s", help="duration of the recording")
    scope: str | None = column(holds="words", help="task, or system (every CPU)")
    ended: str | None = column(holds="words", help="what ended the recording")
    command: str | None = column(holds="command", help="run or watched")
    captured_at: str | None = column(holds="words", help="UTC")
    release: str | None = column(holds="kernel", help="kernel that was recorded")
    booted_at: str | None = column(since="0.2.0", holds="words", help="boot of that machine, UTC")
    recipe: str | None = column(since="0.3.0", holds="words", help="its recipe")


@recorded("profile_parts", "Parts of the kernel's work", measure="share_of_all")
class ProfilePart(OfEvent):
    """Samples of one part of the kernel's work."""

    split: str = column(holds="words", key=True, help="table of functions, perf/parts/<split>.toml")
    who: str = column(holds="words", key=True, help="doing the work")
    part: str = column(holds="words", key=True, help="unclassified: functions in no table")
    samples: int = column(help="samples of it")
    share: float = column(help="of this split's samples")
    share_of_all: float = column(help="of the event's samples")


@recorded("profile_frames", "Top functions")
class ProfileFrame(OfEvent):
    """A function in a profile; the first fifty by each measure."""

    frame: str = column(holds="frame", key=True, help="function; _[k] marks the kernel's")
    self_samples: int = column(help="ending in it")
    total_samples: int = column(help="ending in it or passing through")


@recorded(
    "profile_sites",
    "Where interrupts come back on",
    empty="No sample ends where interrupts come back on.",
)
class ProfileSite(OfEvent):
    """A leaf where interrupts come back on, for samplers that cannot see before."""

    leaf: str = column(holds="kernel", key=True, help="function where interrupts come back on")
    caller: str = column(holds="kernel", key=True, help="its caller")
    samples: int = column(help="samples on it")
    stands_for: str = column(holds="words", help="what these samples represent")


@recorded("profile_moments", "When it happened")
class ProfileMoment(OfRecording):
    """When something rare happened."""

    seconds: float = column(unit="s", key=True, low=None, help="since the first sample")
    event: str = column(holds="words", key=True, help="tracepoint")
    pid: int = column(key=True, low=-1, help="process that met it")
    comm: str = column(holds="comm", help="name of the process")
    text: str = column(holds="words", help="the kernel's words")


@recorded("profile_groups", "By what the tracepoint says", since="0.2.0")
class ProfileGroup(OfRecording):
    """Samples of a tracepoint by what it reported, such as an order or a result."""

    event: str = column(holds="words", key=True, help="tracepoint")
    found: str = column(holds="words", key=True, help="what it said")
    samples: int = column(help="samples")


@recorded("profile_allocations", "Atomic allocations and the HighAtomic reserve", since="0.2.0")
class ProfileAllocation(OfRecording):
    """
    Atomic allocations of order > 0: they may not wait, may use the last reserves, and may turn a
    pageblock into HighAtomic reserve.
    """

    order: int | None = column(
        key=True, help="empty: reservations whose allocation was not recorded"
    )
    attempts: int = column(help="allocations that were asked for")
    failures: int = column(help="got no page, or refused by a memory cgroup")
    reservations: int | None = column(
        help="pageblocks turned into HighAtomic reserve; empty: not seen"
    )
    from_reserve: int | None = column(help="blocks given by the reserve; empty: not seen")


@recorded(
    "profile_victims",
    "What OOM victims held",
    not_compared="it is about single kills",
    since="0.2.0",
)
class ProfileVictim(OfRecording):
    """Memory of an OOM victim when it was chosen (oom:mark_victim)."""

    seconds: float = column(unit="s", key=True, help="since the first sample")
    pid: int = column(key=True, help="the victim")
    comm: str | None = column(holds="comm", help="empty: this kernel gives the pid only")
    total_vm_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="its address space")
    anon_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="resident anonymous memory")
    file_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="mapped file pages")
    shmem_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="mapped shared memory")
    pgtables_bytes: int | None = column(unit="bytes", help="its page tables")
    uid: int | None = column(help="its user")
    oom_score_adj: int | None = column(low=None, help="its bias, -1000 to 1000")


@recorded("profile_page_tables", "Page tables against faults", since="0.2.0")
class ProfilePageTables(OfRecording):
    """
    Page tables against page faults of the whole machine, from the recording's begin to the most
    page tables; read ten times a second.
    """

    seconds: float = column(unit="s", help="since the recording's begin")
    faults: int = column(help="pgfault since then")
    table_bytes: int = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="growth of nr_page_table_pages since then",
    )
    bytes_per_fault: float | None = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="mean over all processes' faults of any kind",
    )


@recorded("profile_table_growth", "Page tables a fault, over the run", since="0.3.0")
class ProfileTableGrowth(OfRecording):
    """
    Page tables of a process over its faults. ``addresses``: tables needed by the faulting
    addresses, exact but for tables without a fault (fork(), MAP_POPULATE, a new program's stack),
    hugetlb, and tables given back. ``VmPTE``: the kernel's number, read now and then.
    """

    pid: int = column(key=True, help="process")
    comm: str = column(holds="comm", key=True, help="name of the process")
    made_by: str = column(holds="words", key=True, help="addresses, or VmPTE")
    faults: int = column(key=True, help="so far; VmPTE: of all its life")
    seconds: float = column(
        unit="s", help="since its first fault; VmPTE: since the recording's begin"
    )
    pte_tables: int | None = column(help="VmPTE does not tell levels apart")
    pmd_tables: int | None = column(help="next level")
    pud_tables: int | None = column(help="next level")
    table_bytes: int = column(unit="bytes", high=MOST_BYTES, help="all but PGD and P4D")
    bytes_per_fault: float | None = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="growth a fault since the previous row; empty: no fault",
    )


def new_tables(faults: int, pte: int, pmd: int, pud: int) -> list[tuple[int, int]]:
    """
    Number of faults by the new tables that each needed, of all of a level: (3, n), (2, n).

    A table of an upper level is new only together with one of each level below it.
    """
    found = [(3, pud), (2, pmd - pud), (1, pte - pmd), (0, faults - pte)]
    return [(tables, number) for tables, number in found if number]


@recorded("profile_commands", "Real, user and system time", since="0.3.0")
class ProfileCommand(OfRecording):
    """
    Times of the recorded command, as ``time`` has them: its threads, and children it waited for.
    """

    command: str | None = column(holds="command", help="what was run")
    real_seconds: float | None = column(
        unit="s",
        help="first instruction until its memory was freed; empty: not seen",
    )
    user_seconds: float | None = column(
        unit="s", help="user time, in clock ticks of 10 ms; empty: not recorded"
    )
    system_seconds: float | None = column(
        unit="s", help="system time, in clock ticks of 10 ms; empty: not recorded"
    )


@recorded("profile_counts", "Counted by the CPU", since="0.3.0")
class ProfileCount(OfRecording):
    """An event that perf stat counted during the recording, without sampling."""

    event: str = column(holds="words", key=True, help="as perf calls it")
    counted: int | None = column(
        help="whole recording, scaled where counters took turns; empty: not counted"
    )
    share_counted: float | None = column(help="share of the time that was counted; 1: all")
    sampled: int | None = column(help="sum of the samples' periods; empty: no sample")
    why: str | None = column(holds="words", help="why it was not counted")


@recorded("profile_durations", "How long it took", measure="max_ns")
class ProfileDuration(OfRecording):
    """Time from one event to another of the same task."""

    name: str = column(
        holds="words",
        key=True,
        help="what was timed",
    )
    count: int = column(help="seen from begin to end")
    total_ns: int = column(unit="ns", help="all together")
    p50_ns: int = column(unit="ns", help="median")
    p99_ns: int = column(unit="ns", help="99th percentile")
    max_ns: int = column(unit="ns", help="the longest")


@recorded("profile_ksm_walks", "Walks of KSM pages that went to their end", since="0.3.0")
class ProfileKsmWalk(OfRecording):
    """Complete walks of a KSM page's mappings: two passes each."""

    stable_node: str = column(
        holds="kernel", key=True, help="address of the stable node; survives migration"
    )
    walks: int = column(help="complete walks: remapping after migration, page_idle")
    total_ns: int = column(unit="ns", help="without waits for locks")
    min_ns: int = column(unit="ns", help="the shortest of them")
    max_ns: int = column(unit="ns", help="the longest")


@recorded("profile_faults", "Page faults by process")
class ProfileFaults(OfRecording):
    """Page faults of a process, counted without sampling."""

    event: str = column(holds="words", key=True, help="minor-faults or major-faults")
    pid: int = column(key=True, low=-1, help="-1: all others, beyond the limit")
    comm: str = column(holds="comm", key=True, help="name of the process")
    faults: int = column(help="faults")
    regions: int = column(help="distinct regions of region_bytes touched")
    first_address: str = column(holds="kernel", help="lowest address")
    last_address: str = column(holds="kernel", help="highest address")
    region_bytes: int = column(
        unit="bytes",
        since="0.2.0",
        help="range of a PTE table; unknown: 2 MiB",
    )


@recorded("profile_counters", "Counters during the recording")
class ProfileCounter(OfRecording):
    """Growth of a counter of /proc/vmstat during the recording, whole machine."""

    name: str = column(holds="words", key=True, help="as in /proc/vmstat")
    gained: int = column(low=None, help="growth during the recording")
    per_minute: float | None = column(since="0.2.0", unit="1/min", low=None, help="growth a minute")


@recorded(
    "profile_reaping", "Unmapped by the reaper, and again", empty="The OOM reaper did not run."
)
class ProfileReaping(OfEvent):
    """Clearing of OOM victims' entries: who did it, and what was done twice."""

    reaper_samples: int = column(help="by the reaper")
    beside_samples: int = column(help="by the victim, while the reaper worked")
    again_samples: int = column(help="by the victim after the reaper: a second walk")


@recorded("profile_notes", "To know of the recordings", empty="Nothing is missing.")
class ProfileNote(OfRecording):
    """What to know of a recording."""

    kind: str = column(holds="words", help="partial: numbers are missing; remark")
    note: str = column(holds="words", key=True, help="in words")


PROFILES_HEADING = Heading(
    name="profiles",
    title="Profiles",
    tables=tables_of(
        Profile,
        ProfileRecording,
        ProfilePart,
        ProfileFrame,
        ProfileSite,
        ProfileMoment,
        ProfileGroup,
        ProfileAllocation,
        ProfileVictim,
        ProfilePageTables,
        ProfileTableGrowth,
        ProfileCommand,
        ProfileCount,
        ProfileDuration,
        ProfileKsmWalk,
        ProfileFaults,
        ProfileCounter,
        ProfileReaping,
        ProfileNote,
    ),
    intro="""
What the CPUs were doing, recorded by perf after the recipes of `mmscope record --list`. A
sample is one moment of one CPU: shares of few samples are rough, and what takes no sample may
still cost ([kernel documentation: perf
events](https://docs.kernel.org/admin-guide/perf-security.html)). Kernel functions end in
`_[k]`.
""",
)
