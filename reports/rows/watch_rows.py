# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rows of what ``mmscope watch`` saw. Every ``time`` is seconds since the first sample, by the
monotonic clock; ``watch_samples`` has the time of day of each.
"""

from mmscope.drgn.tables.rows import MOST, MOST_BYTES, MOST_PAGES, MOST_PIDS, column, table_row
from mmscope.drgn.tables.table import SERIES, Heading, Table

TIME = "seconds since the first sample, as in watch_samples"
PERIOD = "since the reading before, which the numbers are over"


@table_row
class WatchSample:
    """One sample, and what taking it cost."""

    time: float = column(key=True, unit="s", help="since the first sample, by the monotonic clock")
    at: str = column(holds="words", help="time of day, UTC, by the host's clock")
    period_seconds: float | None = column(
        unit="s", help="since the sample before; the first has none, and so no rate"
    )
    late_seconds: float = column(unit="s", low=None, help="how long after it was due it was begun")
    read_seconds: float = column(unit="s", help="how long reading took, waits included")
    cpu_seconds: float = column(unit="s", help="CPU time of reading, the kernel's part included")
    pagetypeinfo_cpu_seconds: float | None = column(
        unit="s", help="part of it that /proc/pagetypeinfo took; empty where it was not read"
    )
    clock_step_seconds: float | None = column(
        unit="s",
        low=None,
        help="by how much the host's clock was set since the sample before, above 1 s",
    )
    asleep_seconds: float | None = column(
        unit="s", help="suspended since the sample before; no part of the period"
    )
    unread: str | None = column(holds="words", help="sources that could not be read")


WATCH_SAMPLES = Table("watch_samples", "Samples", WatchSample, not_compared=SERIES)


@table_row
class CounterRate:
    """By how much one counter grew in one period. A counter that did not move has no row."""

    time: float = column(key=True, unit="s", help=TIME + "; the end of the period")
    source: str = column(
        holds="words", key=True, help="vmstat: /proc/vmstat; ksm: /sys/kernel/mm/ksm"
    )
    name: str = column(holds="kernel", key=True, help="the kernel's name")
    delta: int = column(
        help="grown by, in the counter's own unit; CPUs fold theirs in with a second's delay"
    )
    per_second: float = column(unit="1/s", help="delta / period_seconds, rounded")
    period_seconds: float = column(unit="s", help=PERIOD)


COUNTER_RATES = Table(
    "counter_rates",
    "Counters that moved, as rates",
    CounterRate,
    empty="No counter was read twice, or none moved.",
    not_compared=SERIES,
)


@table_row
class ThpFreeBlocks:
    """Free memory in blocks of THP size and larger, on the lists of one migratetype."""

    time: float = column(key=True, unit="s", help=TIME)
    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    migratetype: str | None = column(
        holds="kernel",
        key=True,
        help="of the list; empty: read from /proc/buddyinfo, which does not have it",
    )
    blocks: int = column(
        unit="blocks",
        high=MOST_PAGES,
        help="of THP size; a larger block counts as the many that it holds",
    )
    capped: bool = column(
        help="the kernel stopped counting a list at 100,000: there are more than blocks"
    )


THP_FREE_BLOCKS_SERIES = Table(
    "thp_free_blocks_series", "Free blocks of THP size", ThpFreeBlocks, not_compared=SERIES
)


@table_row
class ZoneLevel:
    """Free pages of one zone, and its watermarks and HighAtomic reserve."""

    time: float = column(key=True, unit="s", help=TIME)
    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    managed_pages: int = column(unit="pages", high=MOST_PAGES, help="that the page allocator has")
    free_pages: int = column(
        unit="pages", high=MOST_PAGES, help="free, the HighAtomic reserve included"
    )
    wmark_min: int = column(unit="pages", high=MOST_PAGES, help="min watermark")
    wmark_low: int = column(unit="pages", high=MOST_PAGES, help="low watermark")
    wmark_high: int = column(unit="pages", high=MOST_PAGES, help="high watermark")
    wmark_boost: int | None = column(
        unit="pages", high=MOST_PAGES, help="for now on top of each watermark"
    )
    highatomic_reserved_pages: int | None = column(
        unit="pages", high=MOST_PAGES, help="in HighAtomic pageblocks"
    )
    highatomic_free_pages: int | None = column(
        unit="pages",
        high=MOST_PAGES,
        help="of them free; empty where the kernel keeps no such count",
    )


ZONE_SERIES = Table("zone_series", "Zones and watermarks over time", ZoneLevel, not_compared=SERIES)


@table_row
class PsiStall:
    """Pressure stall information of memory: time that tasks lost waiting for it."""

    time: float = column(key=True, unit="s", help=TIME + "; the end of the period")
    kind: str = column(
        holds="words",
        key=True,
        help="some: at least one task waited; full: all that a CPU had to do, the mean of CPUs",
    )
    avg10: float = column(unit="%", help="the kernel's own average of the last ten seconds")
    stall_seconds: float | None = column(unit="s", help="stalled in the period")
    share: float | None = column(help="stall_seconds / period_seconds, of 1")
    period_seconds: float | None = column(unit="s", help=PERIOD)


PSI_SERIES = Table("psi_series", "Time lost waiting for memory", PsiStall, not_compared=SERIES)


@table_row
class Level:
    """What was as it was at one moment. A name that was 0 throughout is left out."""

    time: float = column(key=True, unit="s", help=TIME)
    source: str = column(
        holds="words",
        key=True,
        help="meminfo: /proc/meminfo; ksm: /sys/kernel/mm/ksm; computed: what all counters leave "
        "of MemTotal",
    )
    name: str = column(holds="kernel", key=True, help="the kernel's name")
    value: int = column(
        low=None,
        help="in its unit; of what is computed, below 0 where the kernel counts a page twice",
    )
    unit: str = column(holds="words", help="bytes or pages; empty for a number of things")


GAUGE_SERIES = Table("gauge_series", "Levels over time", Level, not_compared=SERIES)


@table_row
class WatchHolder:
    """
    A holder of memory: of each kind the largest, and cgroups that met a limit. Read less often than
    the rest, so that times are those of readings.
    """

    kind: str = column(
        holds="words",
        key=True,
        help="process: anonymous and shared pages that it maps, swapped out included, and page "
        "tables; cgroup: memory.current (v2); slab cache; vmalloc caller",
    )
    name: str = column(holds="comm", key=True, help="of a process its name, of a cgroup its path")
    pid: int | None = column(key=True, high=MOST_PIDS, help="of a process")
    first_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="in the first reading; 0 if it was not there"
    )
    most_bytes: int = column(unit="bytes", high=MOST_BYTES, help="in the reading that has most")
    last_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="in the last reading; 0 if it was gone"
    )
    last_time: float = column(unit="s", help="of the last reading that has it; " + TIME)
    gone: bool = column(help="it was not there any more")
    shmem_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="of a process, of most_bytes: shared memory it maps"
    )
    swap_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="of a process, of most_bytes: in swap"
    )
    pgtables_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="of a process, of most_bytes: page tables"
    )
    locked_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="of a process: in mappings that are mlock()ed"
    )
    reclaimable: bool | None = column(
        help="of a slab cache: a shrinker gives its objects back (SLAB_RECLAIM_ACCOUNT)"
    )
    oom_kills: int | None = column(
        help="of a cgroup, since the first reading, without those below: processes killed"
    )
    high_events: int | None = column(help="the same: times that memory.high was met")
    max_events: int | None = column(help="the same: times that memory.max was met")
    some_seconds: float | None = column(
        unit="s", help="of a cgroup with those below: time in which a task waited for memory"
    )
    full_seconds: float | None = column(unit="s", help="the same: in which all of them waited")


WATCH_HOLDERS = Table(
    "watch_holders",
    "Who held memory",
    WatchHolder,
    empty="Nothing was read of processes, cgroups and slab caches.",
    not_compared=SERIES,
    since="0.3.0",
)


@table_row
class WatchSleeper:
    """
    A task that slept for long: in D state, where it takes no signal or only one that kills, and on
    no CPU from one reading to another. Read less often than the rest.
    """

    pid: int = column(key=True, high=MOST_PIDS, help="process")
    comm: str = column(holds="comm", help="its name")
    task: int = column(key=True, high=MOST_PIDS, help="thread of it")
    time: float = column(
        unit="s", low=None, help="of the first reading that has it asleep; " + TIME
    )
    seconds: float = column(unit="s", help="to the last such reading: it slept this long or longer")
    wchan: str | None = column(
        holds="kernel", help="function that put it to sleep (wchan); empty: only root may read it"
    )


WATCH_SLEEPERS = Table(
    "watch_sleepers",
    "Tasks that slept in D state",
    WatchSleeper,
    empty="No task slept so for five seconds, as far as was read.",
    not_compared=SERIES,
    since="0.3.0",
)


@table_row
class WatchEvent:
    """Something that went wrong in one period: a counter of failures that moved."""

    time: float = column(key=True, unit="s", help=TIME + "; the end of the period")
    name: str = column(holds="kernel", key=True, help="the counter in /proc/vmstat")
    event: str = column(holds="words", help="what it counts, in words")
    count: int = column(help="how often in the period; when in it is not known")
    period_seconds: float = column(unit="s", help=PERIOD)


WATCH_EVENTS = Table(
    "watch_events",
    "Events",
    WatchEvent,
    empty="No period with an OOM kill or a failure; one sample has no period.",
    not_compared=SERIES,
)


@table_row
class WatchOverhead:
    """What watching cost the host, and how much was kept."""

    samples_taken: int = column(help="samples taken")
    samples_kept: int = column(help="of them in the tables; the others made room (--limit)")
    seconds: float = column(unit="s", help="from the first sample to the last")
    interval_seconds: float = column(unit="s", help="between samples as asked for")
    cpu_seconds: float = column(unit="s", help="CPU time of this process, first sample to last")
    cpu_seconds_per_sample: float = column(unit="s", help="of it for each sample")
    cpu_share: float | None = column(help="of one CPU, of 1; empty after one sample")
    pagetypeinfo_readings: int = column(help="samples that /proc/pagetypeinfo was read for")
    pagetypeinfo_cpu_seconds: float = column(unit="s", help="CPU time that it took")
    log_bytes: int = column(
        unit="bytes", high=MOST, help="of samples on disk at the end, without page_owner"
    )


WATCH_OVERHEAD = Table("watch_overhead", "What watching cost", WatchOverhead, not_compared=SERIES)


WATCH_HEADING = Heading(
    name="watch",
    title="Over time",
    tables=tuple(table for table in vars().values() if isinstance(table, Table)),
    intro="""
What `mmscope watch` sampled on the running host. Rates are what a counter grew by between two
samples, over the time between them; levels are as they were at that moment; nothing here is
counted since boot. Pressure is the share of time that tasks lost waiting for memory: *some*, at
least one of them; *full*, all tasks of a CPU that had any, averaged over such CPUs ([kernel
documentation: PSI](https://docs.kernel.org/accounting/psi.html), [THP
counters](https://docs.kernel.org/admin-guide/mm/transhuge.html#monitoring-usage)).
""",
)
