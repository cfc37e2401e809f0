# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The tables of profiles: what ``mmscope record`` adds to a bundle.

A recording is named by ``profile``; each of its events is a row of ``profiles``, and the stacks of
those that are drawn lie in ``<file>.folded``. Every sample is in one place: ``recorded`` is
``samples`` plus ``removed``.
"""

from typing import Any

from mmscope.drgn.tables.rows import MOST_BYTES, column, table_row
from mmscope.drgn.tables.table import LENGTH, Heading, Table

# How page tables over faults are known (``profile_table_growth.made_by``).
ADDRESSES, VMPTE = "addresses", "VmPTE"


@table_row
class OfRecording:
    """First column of every table."""

    profile: str = column(holds="profile", key=True, help="name of the recording")


@table_row
class OfEvent(OfRecording):
    """First columns of tables about single events."""

    event: str = column(holds="words", key=True, help="what was sampled")


@table_row
class Profile(OfRecording):
    """One event of a recording."""

    event: str = column(holds="words", key=True, help="what was sampled, as perf calls it")
    recipe: str | None = column(holds="words", help="recipe that it was recorded by")
    unit: str = column(
        holds="words", help="of the folded stacks: samples, or what the event's period counts"
    )
    samples: int = column(help="samples that are in the stacks, or are counted")
    period: int = column(help="their periods added up: ns, cycles or events")
    recorded: int = column(help="samples that perf says it recorded")
    removed: int = column(help="samples left out: idle, the profiler, other tasks, not asked for")
    removed_why: str | None = column(holds="words", help="the same by reason")
    lost: int | None = column(help="samples that perf could not write")
    missed: int | None = column(
        since="0.2.0",
        help="times that the kernel met the probe and could not run it (kprobe_profile): no sample",
    )
    kernel_samples: int = column(help="samples whose leaf is in the kernel")
    stacks: int = column(help="distinct stacks")
    nmi: str | None = column(
        holds="words", help="whether the sampler reaches code with interrupts off: yes, no, unknown"
    )
    file: str | None = column(holds="stacks", help="name of the folded stacks in the bundle")


@table_row
class ProfileRecording(OfRecording):
    """How a recording was made; of a text that was brought in, what it says."""

    label: str | None = column(holds="label", help="what the user calls the state of the machine")
    against: str | None = column(holds="profile", help="recording that it is compared with")
    seconds: float | None = column(unit="s", help="duration of the recording")
    scope: str | None = column(holds="words", help="task, or system: every CPU")
    ended: str | None = column(holds="words", help="what ended the recording")
    command: str | None = column(holds="command", help="what was run or watched")
    captured_at: str | None = column(holds="words", help="when it was recorded, UTC")
    release: str | None = column(holds="kernel", help="kernel that it was recorded on")
    booted_at: str | None = column(
        since="0.2.0", holds="words", help="when that machine was booted, UTC"
    )
    recipe: str | None = column(since="0.3.0", holds="words", help="recipe that it was recorded by")


@table_row
class ProfilePart(OfEvent):
    """Samples of one part of the kernel's work."""

    split: str = column(
        holds="words", key=True, help="table of function names, perf/parts/<split>.toml"
    )
    who: str = column(holds="words", key=True, help="who does the work")
    part: str = column(
        holds="words", key=True, help="part of the work; unclassified: no table names the functions"
    )
    samples: int = column(help="samples of it")
    share: float = column(help="of the split's samples")
    share_of_all: float = column(help="of all samples of the event")


@table_row
class ProfileFrame(OfEvent):
    """A function in a profile; the first fifty by each measure."""

    frame: str = column(holds="frame", key=True, help="function; _[k] marks the kernel's")
    self_samples: int = column(help="samples that end in it")
    total_samples: int = column(help="samples that end in it or pass through it")


@table_row
class ProfileSite(OfEvent):
    """A leaf where interrupts come back on, under a sampler that cannot see what was before."""

    leaf: str = column(holds="kernel", key=True, help="function where interrupts come back on")
    caller: str = column(holds="kernel", key=True, help="its caller")
    samples: int = column(help="samples on it")
    stands_for: str = column(holds="words", help="what these samples stand for")


@table_row
class ProfileMoment(OfRecording):
    """When something rare happened."""

    seconds: float = column(unit="s", key=True, low=None, help="since the first sample")
    event: str = column(holds="words", key=True, help="tracepoint")
    pid: int = column(key=True, low=-1, help="process that met it")
    comm: str = column(holds="comm", help="its name")
    text: str = column(holds="words", help="what the kernel said")


@table_row
class ProfileGroup(OfRecording):
    """Samples of a tracepoint by what it said, such as an order or a result."""

    event: str = column(holds="words", key=True, help="tracepoint")
    found: str = column(holds="words", key=True, help="what it said")
    samples: int = column(help="samples")


@table_row
class ProfileAllocation(OfRecording):
    """
    Atomic allocations of an order > 0: those that may not wait, that may use the last reserves, and
    that may therefore turn a pageblock into HighAtomic reserve.
    """

    order: int | None = column(
        key=True, help="order; empty: of reservations whose allocation is not in the recording"
    )
    attempts: int = column(help="allocations that were asked for")
    failures: int = column(
        help="of them, those that got no page, or were refused by a memory cgroup"
    )
    reservations: int | None = column(
        help="pageblocks that they turned into HighAtomic reserve; empty: could not be seen"
    )
    from_reserve: int | None = column(
        help="blocks of the order that the reserve gave; empty: could not be seen"
    )


@table_row
class ProfileVictim(OfRecording):
    """What an OOM victim held when it was chosen, as oom:mark_victim says it."""

    seconds: float = column(unit="s", key=True, help="since the first sample")
    pid: int = column(key=True, help="the victim")
    comm: str | None = column(
        holds="comm", help="its name; this and the next: empty where the kernel only says the pid"
    )
    total_vm_bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="its address space")
    anon_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="anonymous memory that it had resident"
    )
    file_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="files' pages that it had mapped"
    )
    shmem_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="shared memory that it had mapped"
    )
    pgtables_bytes: int | None = column(unit="bytes", help="its page tables")
    uid: int | None = column(help="its user")
    oom_score_adj: int | None = column(low=None, help="its bias, -1000 to 1000")


@table_row
class ProfilePageTables(OfRecording):
    """
    Page tables against page faults, of the whole machine, from the begin of the recording to when
    there were most page tables; looked at ten times a second.
    """

    seconds: float = column(unit="s", help="since the begin of the recording")
    faults: int = column(help="page faults until then (pgfault)")
    table_bytes: int = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="page tables that were more than at the begin (nr_page_table_pages)",
    )
    bytes_per_fault: float | None = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="an average over all processes' faults, of whatever kind",
    )


@table_row
class ProfileTableGrowth(OfRecording):
    """
    Page tables of a process over its faults. By ``addresses``: those that the addresses of its
    faults need, one of entries for each region that such a table maps, and so on up; exact but for
    tables that come without a fault (fork(), MAP_POPULATE, the stack of a new program), hugetlb,
    and what is given back. By ``VmPTE``: as the kernel says it, looked at now and then.
    """

    pid: int = column(key=True, help="process")
    comm: str = column(holds="comm", key=True, help="its name")
    made_by: str = column(holds="words", key=True, help="addresses, or VmPTE")
    faults: int = column(
        key=True, help="its faults so far; beside VmPTE all of its life, those before it began, too"
    )
    seconds: float = column(
        unit="s", help="since its first fault; of VmPTE since the begin of the recording"
    )
    pte_tables: int | None = column(help="tables of entries; VmPTE does not tell levels apart")
    pmd_tables: int | None = column(help="of the level above")
    pud_tables: int | None = column(help="of the level above that")
    table_bytes: int = column(unit="bytes", high=MOST_BYTES, help="all of them but PGD and P4D")
    bytes_per_fault: float | None = column(
        unit="bytes",
        low=None,
        high=MOST_BYTES,
        help="what came since the row before, for each fault since; empty: there was none",
    )


def new_tables(faults: int, pte: int, pmd: int, pud: int) -> list[tuple[int, int]]:
    """
    Number of faults by the new tables that each needed, of all of a level: (3, n), (2, n).

    A table of an upper level is new only together with one of each level below it.
    """
    found = [(3, pud), (2, pmd - pud), (1, pte - pmd), (0, faults - pte)]
    return [(tables, number) for tables, number in found if number]


@table_row
class ProfileCommand(OfRecording):
    """
    What the command that was recorded used, as ``time`` would say: its threads, and the children
    that it waited for.
    """

    command: str | None = column(holds="command", help="what was run")
    real_seconds: float | None = column(
        unit="s",
        help="from its first instruction until it was gone with its memory; empty: not seen",
    )
    user_seconds: float | None = column(
        unit="s", help="in user code, in clock ticks of 10 ms; empty: the recording does not say"
    )
    system_seconds: float | None = column(unit="s", help="in the kernel, likewise")


@table_row
class ProfileCount(OfRecording):
    """An event that perf stat counted beside the recording: by counting, and not by samples."""

    event: str = column(holds="words", key=True, help="as perf calls it")
    counted: int | None = column(
        help="from begin to end; scaled to that where counters took turns; empty: was not counted"
    )
    share_counted: float | None = column(help="of the time that it was counted: 1: all of it")
    sampled: int | None = column(
        help="the same by samples: their periods added up; empty: no sample"
    )
    why: str | None = column(holds="words", help="why it was not counted")


@table_row
class ProfileDuration(OfRecording):
    """How long something took, from one event to another of the same task."""

    name: str = column(
        holds="words",
        key=True,
        help="what was timed; where its waits for locks could be seen, these and the rest, too",
    )
    count: int = column(help="times that it was seen from begin to end")
    total_ns: int = column(unit="ns", help="all together")
    p50_ns: int = column(unit="ns", help="half of them took no longer")
    p99_ns: int = column(unit="ns", help="99 of 100 took no longer")
    max_ns: int = column(unit="ns", help="the longest")


@table_row
class ProfileKsmWalk(OfRecording):
    """Walks of the mappings of a KSM page that went to their end: two passes over them."""

    stable_node: str = column(
        holds="kernel", key=True, help="address of its stable node, which a migration leaves it"
    )
    walks: int = column(
        help="walks that nothing ends before: the mapping again of a migration, page_idle"
    )
    total_ns: int = column(unit="ns", help="all together, without waits for locks")
    min_ns: int = column(unit="ns", help="the shortest of them")
    max_ns: int = column(unit="ns", help="the longest")


@table_row
class ProfileFaults(OfRecording):
    """Page faults of a process, counted without sampling."""

    event: str = column(holds="words", key=True, help="minor-faults or major-faults")
    pid: int = column(
        key=True, low=-1, help="process; -1: others, beyond the limit of what is kept"
    )
    comm: str = column(holds="comm", key=True, help="its name")
    faults: int = column(help="faults")
    regions: int = column(help="distinct regions of region_bytes that were touched")
    first_address: str = column(holds="kernel", help="lowest address")
    last_address: str = column(holds="kernel", help="highest address")
    region_bytes: int = column(
        unit="bytes",
        since="0.2.0",
        help="what a PTE table maps on the machine that was recorded: 2 MiB with pages of 4 KiB, "
        "and where the recording does not say",
    )


@table_row
class ProfileCounter(OfRecording):
    """A counter of /proc/vmstat: what it gained during the recording, of the whole machine."""

    name: str = column(holds="words", key=True, help="as in /proc/vmstat")
    gained: int = column(low=None, help="after the recording, less before it")
    per_minute: float | None = column(
        since="0.2.0", unit="1/min", low=None, help="the same for each minute of the recording"
    )


@table_row
class ProfileReaping(OfEvent):
    """Clearing entries of OOM victims: by whom, and what was done twice."""

    reaper_samples: int = column(help="by the reaper")
    beside_samples: int = column(help="by the victim itself, while the reaper was at work")
    again_samples: int = column(
        help="by the victim itself, when the reaper was done: a second walk"
    )


@table_row
class ProfileNote(OfRecording):
    """What to know of a recording."""

    kind: str = column(holds="words", help="partial: numbers are missing; remark: to be known")
    note: str = column(holds="words", key=True, help="in words")


def _table(name: str, title: str, row: type, **more: Any) -> Table:
    """A table that is not compared, unless *more* says what is."""
    if "measure" not in more:
        more.setdefault("not_compared", LENGTH)
    return Table(name, title, row, **more)


PROFILES_HEADING = Heading(
    name="profiles",
    title="Profiles",
    tables=(
        _table("profiles", "Profiles", Profile),
        _table("profile_recordings", "How they were recorded", ProfileRecording),
        _table("profile_parts", "Parts of the kernel's work", ProfilePart, measure="share_of_all"),
        _table("profile_frames", "Top functions", ProfileFrame),
        _table(
            "profile_sites",
            "Where interrupts come back on",
            ProfileSite,
            empty="No sample ends where interrupts come back on.",
        ),
        _table("profile_moments", "When it happened", ProfileMoment),
        _table("profile_groups", "By what the tracepoint says", ProfileGroup, since="0.2.0"),
        _table(
            "profile_allocations",
            "Atomic allocations and the HighAtomic reserve",
            ProfileAllocation,
            since="0.2.0",
        ),
        _table(
            "profile_victims",
            "What OOM victims held",
            ProfileVictim,
            not_compared="it is about single kills",
            since="0.2.0",
        ),
        _table(
            "profile_page_tables", "Page tables against faults", ProfilePageTables, since="0.2.0"
        ),
        _table(
            "profile_table_growth",
            "Page tables a fault, over the run",
            ProfileTableGrowth,
            since="0.3.0",
        ),
        _table("profile_commands", "Real, user and system time", ProfileCommand, since="0.3.0"),
        _table("profile_counts", "Counted by the CPU", ProfileCount, since="0.3.0"),
        _table("profile_durations", "How long it took", ProfileDuration, measure="max_ns"),
        _table(
            "profile_ksm_walks",
            "Walks of KSM pages that went to their end",
            ProfileKsmWalk,
            since="0.3.0",
        ),
        _table("profile_faults", "Page faults by process", ProfileFaults),
        _table("profile_counters", "Counters during the recording", ProfileCounter),
        _table(
            "profile_reaping",
            "Unmapped by the reaper, and again",
            ProfileReaping,
            empty="The OOM reaper did not run.",
        ),
        _table(
            "profile_notes",
            "To know of the recordings",
            ProfileNote,
            empty="Nothing is missing.",
        ),
    ),
    intro="""
What the CPUs were doing, recorded by perf after the recipes of `mmscope record --list`. A
sample is one moment of one CPU: shares of few samples are rough, and what takes no sample may
still cost ([kernel documentation: perf
events](https://docs.kernel.org/admin-guide/perf-security.html)). Kernel functions end in
`_[k]`.
""",
)
