# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rows of what ``mmscope watch`` saw. Every ``time`` is seconds since the first sample, by the
monotonic clock; ``watch_samples`` has the time of day of each.
"""

from mmscope.drgn.tables.rows import MOST, MOST_BYTES, MOST_PAGES, MOST_PIDS, column
from mmscope.drgn.tables.table import SERIES, Heading, table, tables_of

TIME = "seconds since the first sample (watch_samples)"
PERIOD = "since the previous reading"


@table("watch_samples", "Samples", not_compared=SERIES)
class WatchSample:
    """One sample, and what taking it cost."""

    time: float = column(key=True, unit="s", help="since the first sample, by the monotonic clock")
    at: str = column(holds="words", help="time of day by the host's clock, UTC")
    period_seconds: float | None = column(
        unit="s", help="since the previous sample; the first has none"
    )
    late_seconds: float = column(unit="s", low=None, help="begun this long after it was due")
    read_seconds: float = column(unit="s", help="time to read, waits included")
    cpu_seconds: float = column(unit="s", help="CPU time to read, system time included")
    pagetypeinfo_cpu_seconds: float | None = column(
        unit="s", help="part for /proc/pagetypeinfo; empty: not read"
    )
    clock_step_seconds: float | None = column(
        unit="s",
        low=None,
        help="host's clock set since the previous sample, above 1 s",
    )
    asleep_seconds: float | None = column(
        unit="s", help="suspended since the previous sample; not in the period"
    )
    unread: str | None = column(holds="words", help="sources that failed")


@table(
    "counter_rates",
    "Counters that moved, as rates",
    empty="No counter was read twice, or none moved.",
    not_compared=SERIES,
)
class CounterRate:
    """Growth of one counter in one period. A counter that did not move has no row."""

    time: float = column(key=True, unit="s", help=TIME + ", at the period's end")
    source: str = column(
        holds="words",
        key=True,
        help="vmstat: /proc/vmstat; ksm: /sys/kernel/mm/ksm; node N: its part of refaults, where "
        "there are several (/proc/zoneinfo)",
    )
    name: str = column(holds="kernel", key=True, help="the kernel's name")
    delta: int = column(help="growth in the counter's own unit")
    per_second: float = column(unit="1/s", help="delta / period_seconds, rounded")
    period_seconds: float = column(unit="s", help=PERIOD)


@table("thp_free_blocks_series", "Free blocks of THP size", not_compared=SERIES)
class ThpFreeBlocks:
    """Free memory in blocks of THP size and larger, by migratetype."""

    time: float = column(key=True, unit="s", help=TIME)
    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    migratetype: str | None = column(
        holds="kernel",
        key=True,
        help="empty: from /proc/buddyinfo, which has none",
    )
    blocks: int = column(
        unit="blocks",
        high=MOST_PAGES,
        help="of THP size; a larger block counts as several",
    )
    capped: bool = column(help="the kernel stopped counting at 100,000 a list: there are more")


@table("zone_series", "Zones and watermarks over time", not_compared=SERIES)
class ZoneLevel:
    """Free pages of one zone, and its watermarks and HighAtomic reserve."""

    time: float = column(key=True, unit="s", help=TIME)
    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    managed_pages: int = column(unit="pages", high=MOST_PAGES, help="of the page allocator")
    free_pages: int = column(unit="pages", high=MOST_PAGES, help="HighAtomic reserve included")
    wmark_min: int = column(unit="pages", high=MOST_PAGES, help="min watermark")
    wmark_low: int = column(unit="pages", high=MOST_PAGES, help="low watermark")
    wmark_high: int = column(unit="pages", high=MOST_PAGES, help="high watermark")
    wmark_boost: int | None = column(
        unit="pages", high=MOST_PAGES, help="temporary, on top of each watermark"
    )
    highatomic_reserved_pages: int | None = column(
        unit="pages", high=MOST_PAGES, help="in HighAtomic pageblocks"
    )
    highatomic_free_pages: int | None = column(
        unit="pages",
        high=MOST_PAGES,
        help="free ones; empty: no such counter in this kernel",
    )
    file_pages: int | None = column(
        unit="pages",
        since="0.3.0",
        default=None,
        help="page cache on its LRU lists (nr_zone_active_file, nr_zone_inactive_file)",
    )


@table("psi_series", "Time lost waiting for memory", not_compared=SERIES)
class PsiStall:
    """Memory pressure (PSI): time that tasks lost waiting for memory."""

    time: float = column(key=True, unit="s", help=TIME + ", at the period's end")
    kind: str = column(
        holds="words",
        key=True,
        help="some: at least one task waited; full: all non-idle tasks, the mean of CPUs",
    )
    avg10: float = column(unit="%", help="the kernel's average of the last 10 s")
    stall_seconds: float | None = column(unit="s", help="stalled in the period")
    share: float | None = column(help="stall_seconds / period_seconds, of 1")
    period_seconds: float | None = column(unit="s", help=PERIOD)


@table("gauge_series", "Levels over time", not_compared=SERIES)
class Level:
    """A level at one moment. A name that was 0 throughout is left out."""

    time: float = column(key=True, unit="s", help=TIME)
    source: str = column(
        holds="words",
        key=True,
        help="meminfo: /proc/meminfo; ksm: /sys/kernel/mm/ksm; computed: MemTotal less all "
        "counters",
    )
    name: str = column(holds="kernel", key=True, help="the kernel's name")
    value: int = column(
        low=None,
        help="in its unit; negative: the kernel counts a page twice",
    )
    unit: str = column(holds="words", help="bytes or pages; empty: things")


@table(
    "watch_holders",
    "Who held memory",
    empty="Nothing was read of processes, cgroups and slab caches.",
    measure="most_bytes",
    not_compared=SERIES,
    since="0.3.0",
)
class WatchHolder:
    """
    A holder of memory: the largest of each kind, and cgroups at a limit. Read less often than the
    rest; times are those of readings.
    """

    kind: str = column(
        holds="words",
        key=True,
        help="process: anonymous and shared pages, swap, page tables; cgroup: "
        "memory.current (v2); slab cache; vmalloc caller; shared file: tmpfs, memfd, "
        "SysV (from a tenth of memory on); sockets: a process's buffers (from a "
        "hundredth on); line of source: what it allocated, of these and others (from a "
        "thousandth on)",
    )
    name: str = column(
        holds="comm",
        key=True,
        help="process, cgroup, cache, caller, line, or file and who has it open",
    )
    pid: int | None = column(key=True, high=MOST_PIDS, help="process, or one with the file open")
    first_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="in the first reading; 0: not there yet"
    )
    most_bytes: int = column(unit="bytes", high=MOST_BYTES, help="in its largest reading")
    last_bytes: int = column(unit="bytes", high=MOST_BYTES, help="in the last reading; 0: gone")
    last_time: float = column(unit="s", help="last reading that has it; " + TIME)
    gone: bool = column(help="not in the last reading")
    shmem_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="process: mapped shared memory, in its largest reading"
    )
    swap_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="process: swapped out, in its largest reading"
    )
    pgtables_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="process: page tables, in its largest reading"
    )
    locked_bytes: int | None = column(
        unit="bytes", high=MOST_BYTES, help="process: in mlock()ed mappings"
    )
    threads: int | None = column(help="process: threads, in its largest reading")
    held: bool | None = column(
        help="file: open, or segment attached; empty: not open, and may be mapped"
    )
    reclaimable: bool | None = column(
        help="slab cache: a shrinker frees its objects (SLAB_RECLAIM_ACCOUNT)"
    )
    oom_kills: int | None = column(help="cgroup, own, since the first reading: processes killed")
    high_events: int | None = column(
        help="cgroup, own, since the first reading: times over memory.high"
    )
    max_events: int | None = column(
        help="cgroup, own, since the first reading: times at memory.max"
    )
    some_seconds: float | None = column(
        unit="s", help="cgroup with descendants: time in which a task waited for memory"
    )
    full_seconds: float | None = column(
        unit="s", help="cgroup with descendants: time in which all tasks waited for memory"
    )
    mappings: int | None = column(
        help="process: VMAs; empty: not counted, as none can be near the limit"
    )
    max_map_count: int | None = column(help="process: vm.max_map_count; empty: not known how near")
    only_node: int | None = column(
        help="process: only NUMA node it may use (Mems_allowed); empty: several"
    )
    sockets: int | None = column(help="sockets: of that process")
    dying_below: int | None = column(help="cgroup: dying ones below it (nr_dying_descendants)")
    protected_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="cgroup right below the root: protected by memory.min",
    )


@table(
    "watch_holder_series",
    "Holders of memory over time",
    empty="No holder changed between two readings.",
    not_compared=SERIES,
    since="0.3.0",
)
class HolderLevel:
    """Memory of one holder at one reading, of those of each kind that changed most."""

    time: float = column(key=True, unit="s", help=TIME)
    kind: str = column(holds="words", key=True, help="as in watch_holders")
    name: str = column(holds="comm", key=True, help="as in watch_holders")
    pid: int | None = column(key=True, high=MOST_PIDS, help="as in watch_holders")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="held; 0: not there")


@table(
    "watch_sleepers",
    "Tasks that slept in D state",
    empty="No task slept in D state for five seconds, as far as was read.",
    not_compared=SERIES,
    since="0.3.0",
)
class WatchSleeper:
    """
    A task that slept for long: in D state, on no CPU between readings. Read less often than the
    rest.
    """

    pid: int = column(key=True, high=MOST_PIDS, help="process")
    comm: str = column(holds="comm", help="name of the process")
    task: int = column(key=True, high=MOST_PIDS, help="thread of it")
    time: float = column(unit="s", low=None, help="first reading that has it asleep; " + TIME)
    seconds: float = column(unit="s", help="to the last such reading: it slept at least this long")
    wchan: str | None = column(
        holds="kernel", help="function it sleeps in (wchan); empty: root only"
    )


@table(
    "watch_kills",
    "Processes that were killed",
    empty="The kernel's log has no task that the OOM killer took, as far as was read.",
    not_compared=SERIES,
    since="0.3.0",
)
class WatchKill:
    """A process that the OOM killer took, by the kernel's log."""

    time: float = column(key=True, unit="s", help=TIME + ", by which it was read")
    pid: int = column(key=True, high=MOST_PIDS, help="process")
    comm: str = column(holds="comm", help="its name")
    limit: str = column(
        holds="words", help="machine: memory of the machine, or of nodes; cgroup: a cgroup's limit"
    )
    mapped_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="anonymous and shared memory that it had mapped"
    )


@table(
    "watch_events",
    "Events",
    empty="No period with an OOM kill or a failure; one sample has no period.",
    not_compared=SERIES,
)
class WatchEvent:
    """A failure counter that moved in one period."""

    time: float = column(key=True, unit="s", help=TIME + ", at the period's end")
    name: str = column(holds="kernel", key=True, help="counter in /proc/vmstat")
    event: str = column(holds="words", help="its meaning in words")
    count: int = column(help="in the period; when exactly is unknown")
    period_seconds: float = column(unit="s", help=PERIOD)


@table("watch_overhead", "What watching cost", not_compared=SERIES)
class WatchOverhead:
    """What watching cost the host, and how much was kept."""

    samples_taken: int = column(help="samples taken")
    samples_kept: int = column(help="in the tables; others were dropped (--limit)")
    seconds: float = column(unit="s", help="first sample to last")
    interval_seconds: float = column(unit="s", help="as asked for")
    cpu_seconds: float = column(unit="s", help="of this process, first sample to last")
    cpu_seconds_per_sample: float = column(unit="s", help="mean")
    cpu_share: float | None = column(help="share of one CPU; empty after one sample")
    pagetypeinfo_readings: int = column(help="samples with /proc/pagetypeinfo")
    pagetypeinfo_cpu_seconds: float = column(unit="s", help="CPU time of these readings")
    log_bytes: int = column(
        unit="bytes", high=MOST, help="samples on disk at the end, without page_owner"
    )


WATCH_HEADING = Heading(
    name="watch",
    title="Over time",
    tables=tables_of(
        WatchSample,
        CounterRate,
        ThpFreeBlocks,
        ZoneLevel,
        PsiStall,
        Level,
        WatchHolder,
        HolderLevel,
        WatchSleeper,
        WatchKill,
        WatchEvent,
        WatchOverhead,
    ),
    intro="""
What `mmscope watch` sampled on the running host. Rates are what a counter grew by between two
samples, over the time between them; levels are as they were at that moment; nothing here is
counted since boot. Pressure is the share of time that tasks lost waiting for memory: *some*, at
least one of them; *full*, all tasks of a CPU that had any, averaged over such CPUs ([kernel
documentation: PSI](https://docs.kernel.org/accounting/psi.html), [THP
counters](https://docs.kernel.org/admin-guide/mm/transhuge.html#monitoring-usage)).
""",
)
