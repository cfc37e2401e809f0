# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The log of ``mmscope watch`` as tables: counters as rates, levels as they were, events.

The log is a line of JSON a sample, after a line about the host. It is read once for each table, so
that memory does not grow with it. A rate is a difference of one counter over the time between its
two readings, by the monotonic clock; the first sample has none. A counter that went back gives no
rate, and is named.
"""

import dataclasses
import datetime
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.display import percent, plural
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.tables.table import table_of
from mmscope.drgn.text.kernel_text import MAX_COUNT
from mmscope.drgn.text.meminfo import ENOUGH, NO_COUNTER, in_no_counter
from mmscope.drgn.text.plain_file import LineTooLong, open_lines
from mmscope.drgn.text.text_source import TextError
from mmscope.reports.bundle.description import Cell, SectionResult, checked_target, plain_texts
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.rows.watch_rows import (
    CounterRate,
    HolderLevel,
    Level,
    PsiStall,
    ThpFreeBlocks,
    WatchEvent,
    WatchHolder,
    WatchKill,
    WatchOverhead,
    WatchSample,
    WatchSleeper,
    ZoneLevel,
)
from mmscope.reports.watch.holders import CGROUP
from mmscope.reports.watch.sample_log import FORMAT
from mmscope.reports.watch.samples import KSM_EVENTS, KSM_LEVELS, Sample

SECTION = "watch"
MOST_HOLDERS = 50
# Columns of who holds memory that are of the last reading that has them.
LATEST = ("mappings", "max_map_count", "only_node", "dying_below",
          "sockets", "protected_bytes")  # fmt: skip
MOST_IN_SERIES = 5  # of each kind
LONG, MOST_SLEEPERS = 5.0, 1000
CLOCK_STEP = 1.0  # seconds; less is NTP's, or the time between two clocks
# Counters that are worth a mark, and what they count.
EVENTS = {
    "oom_kill": "a process was killed: the host or a cgroup was out of memory",
    "compact_fail": "direct compaction made no block",
    "thp_fault_fallback": "page fault got no huge page",
    "thp_file_fallback": "page cache got no huge page",
    "zone_reclaim_failed": "reclaim on the own node freed too little",
    "drop_pagecache": "page cache dropped by hand",
    "drop_slab": "slabs dropped by hand",
}
ALLOCSTALL = "direct reclaim"

Samples = Iterable[tuple[float, Sample]]  # each with its time, as rows have it


@dataclass
class Log:
    """
    The log that a watch left on disk.

    :ivar header: about the host and what was asked for.
    :ivar damaged: lines that are not valid.
    :ivar cut: the last line has no end: the watch was killed while it wrote.
    """

    path: Path
    header: dict[str, Any]
    first: Sample
    last: Sample
    samples: int = 0
    damaged: int = 0
    cut: bool = False
    thinned: float | None = None  # the interval from there on
    ended: int | None = None  # samples after which the limit was reached
    unread: dict[str, str] = field(default_factory=dict)  # by source: why, the last time
    times_unread: Counter[str] = field(default_factory=Counter)
    went_back: set[str] = field(default_factory=set)  # counters
    clock_steps: int = 0
    asleep: float = 0.0
    put_off: int = 0
    walks_pages: bool = False
    pagetypeinfo: int = 0  # readings, and their CPU seconds
    pagetypeinfo_seconds: float = 0.0
    end: Sample = field(default_factory=dict)  # what was read after the last sample
    moved: set[str] = field(default_factory=set)  # levels that were not 0 throughout

    def __iter__(self) -> Iterator[tuple[float, Sample]]:
        """Every sample, with the seconds since the first."""
        for line in _lines(self.path):
            if _is_sample(line):
                yield round(float(line["mono"] - self.first["mono"]), 3), line

    def all_read(self) -> Iterator[Sample]:
        """Every sample, and what was read after the last."""
        yield from (sample for _, sample in self)
        yield self.end

    @property
    def seconds(self) -> float:
        """From the first sample to the last."""
        return float(self.last["mono"] - self.first["mono"])


# Of lines that are not samples.
ENDINGS = {"thinned", "ended"}.union(
    *({name, f"{name}_at", f"{name}_unread"} for name in ("holders", "sleepers"))
)
NUMBERS = ("wall", "mono", "boot", "late", "read", "cpu", "number", "cpu_total")


def _is_sample(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and all(isinstance(line.get(name), int | float) for name in NUMBERS)
        and isinstance(line.get("unread"), dict)
    )


def _lines(path: Path) -> Iterator[Any]:
    """
    The lines of a log; None for one that is damaged, False for a last one without an end. What is
    after a line that is too long is not read.
    """
    with open_lines(path) as file:
        lines = iter(file)
        while True:
            try:
                line = next(lines, b"")
            except LineTooLong:
                yield None
                return
            if not line.endswith(b"\n"):
                if line:
                    yield False
                return
            try:
                yield plain_texts(json.loads(line, parse_int=_integer, parse_constant=_integer))
            except (ValueError, RecursionError):
                yield None


def _integer(text: str) -> int:
    """A number of a log, if a row can hold it."""
    if len(text) > 20 or abs(value := int(text)) > MAX_COUNT:
        raise ValueError(text)
    return value


def open_log(path: Path) -> Log:
    """
    Look a log through.

    :raises TextError: it is not such a log, or holds no sample.
    """
    lines = _lines(path)
    header = next(lines, None)
    if not isinstance(header, dict) or header.get("watch") != FORMAT:
        raise TextError(f"{path}: is not a log of mmscope watch, or one of another version")
    log = Log(path, header, {}, {})
    last: dict[str, dict[str, int]] = {}  # by source: its counters when they were last read
    for sample in lines:
        if sample is False:
            log.cut = True
        elif isinstance(sample, dict) and sample.keys() <= ENDINGS:
            log.thinned = sample.get("thinned", log.thinned)
            log.ended = sample.get("ended", log.ended)
            log.end = sample if sample.keys() & {"holders", "sleepers"} else log.end
        elif not _is_sample(sample):
            log.damaged += 1
        else:
            _scan_sample(log, sample, last)
            log.samples += 1
            log.first = log.first or sample
            log.last = sample
    if not log.samples:
        raise TextError(f"{path}: nothing was sampled")
    return log


def _scan_sample(log: Log, sample: Sample, last: dict[str, dict[str, int]]) -> None:
    """Add to a log what its next sample says beside the tables."""
    log.unread |= sample["unread"]
    log.times_unread.update(sample["unread"].keys())
    for source in ("vmstat", "ksm"):
        if source in sample:
            before = last.get(source, {})
            log.went_back |= {
                name
                for name, value in sample[source].items()
                if value < before.get(name, 0) and _counts(source, name)
            }
            last[source] = sample[source]
    step, asleep = clocks(log.last, sample)
    log.clock_steps += step is not None
    log.asleep += asleep or 0.0
    log.put_off += bool(sample.get("put_off"))
    log.walks_pages |= bool(sample.get("walks_pages"))
    if (spent := sample.get("pagetypeinfo_cpu")) is not None:
        log.pagetypeinfo += 1
        log.pagetypeinfo_seconds += spent
    for source in ("meminfo", "ksm"):
        log.moved |= {name for name, value in sample.get(source, {}).items() if value}
    log.moved.add(NO_COUNTER)


def _counts(source: str, name: str) -> bool:
    return source != "ksm" or name in KSM_EVENTS


def clocks(before: Sample, sample: Sample) -> tuple[float | None, float | None]:
    """(by how much the time of day was set, how long the host slept) between two samples."""
    if not before:  # that was the first
        return None, None
    passed, slept = (sample[clock] - before[clock] for clock in ("mono", "boot"))
    slept -= passed
    step = sample["wall"] - before["wall"] - passed - slept
    return (
        round(step, 3) if abs(step) >= CLOCK_STEP else None,
        round(slept, 3) if slept >= CLOCK_STEP else None,
    )


def sample_rows(log: Log) -> Iterator[WatchSample]:
    """Every sample with what it cost."""
    before: Sample = {}
    for time, sample in log:
        step, asleep = clocks(before, sample)
        wall = datetime.datetime.fromtimestamp(sample["wall"], datetime.UTC)
        yield WatchSample(
            time=time,
            at=wall.isoformat(timespec="milliseconds"),
            period_seconds=round(sample["mono"] - before["mono"], 3) if before else None,
            late_seconds=sample["late"],
            read_seconds=sample["read"],
            cpu_seconds=sample["cpu"],
            pagetypeinfo_cpu_seconds=sample.get("pagetypeinfo_cpu"),
            clock_step_seconds=step,
            asleep_seconds=asleep,
            unread=", ".join(sample["unread"]) or None,
        )
        before = sample


def rates(samples: Samples) -> Iterator[CounterRate]:
    """Rates of the counters that moved in each period."""
    last: dict[str, Sample] = {}
    for time, sample in samples:
        nodes = (name for name in sample if name.startswith("node ") and not name.endswith("_at"))
        for source in ("vmstat", "ksm", *nodes):
            if source not in sample:
                continue
            if before := last.get(source):
                period = sample[f"{source}_at"] - before[f"{source}_at"]
                for name, value in sample[source].items():
                    # Neither is there a difference to what was not there before.
                    delta = value - before[source].get(name, value)
                    if delta > 0 and period > 0 and _counts(source, name):
                        rate = float(f"{delta / period:.6g}")
                        yield CounterRate(time, source, name, delta, rate, round(period, 6))
            last[source] = sample


def events(log: Log) -> Iterator[WatchEvent]:
    """Rates of what is worth a mark."""
    for row in rates(log):
        words = ALLOCSTALL if row.name.startswith("allocstall") else EVENTS.get(row.name)
        if words and row.source == "vmstat":
            yield WatchEvent(row.time, row.name, words, row.delta, row.period_seconds)


def thp_free_blocks(samples: Samples) -> Iterator[ThpFreeBlocks]:
    """Free blocks of THP size at each moment."""
    for time, sample in samples:
        for row in sample.get("thp_free", ()):
            yield ThpFreeBlocks(time, *row)


def zone_levels(samples: Samples) -> Iterator[ZoneLevel]:
    """
    The zones at each moment. Where /proc/zoneinfo does not have the reserve, it is as
    /proc/pagetypeinfo said at that same moment, otherwise unknown.
    """
    for time, sample in samples:
        reserve = {(node, zone): pages for node, zone, pages in sample.get("reserve", ())}
        for row in sample.get("zones", ()):
            level = ZoneLevel(time, *row)
            if level.highatomic_reserved_pages is None:
                reserved = reserve.get((level.node, level.zone))
                level = dataclasses.replace(level, highatomic_reserved_pages=reserved)
            yield level


def stalls(samples: Samples) -> Iterator[PsiStall]:
    """PSI: time lost in each period."""
    before: Sample = {}
    for time, sample in samples:
        if "psi" not in sample:
            continue
        for kind, (avg10, _, _, total) in sample["psi"].items():
            stall = share = period = None
            if before and kind in before["psi"]:
                passed = sample["psi_at"] - before["psi_at"]
                *_, was = before["psi"][kind]
                lost = (total - was) / 1e6
                if passed > 0 and lost >= 0:
                    stall, share, period = round(lost, 6), round(lost / passed, 6), round(passed, 6)
            yield PsiStall(time, kind, avg10, stall, share, period)
        before = sample


def gauges(samples: Samples) -> Iterator[Level]:
    """All levels, and what they leave of memory."""
    for time, sample in samples:
        meminfo = sample.get("meminfo", {})
        for name, value in meminfo.items():
            yield Level(time, "meminfo", name, value, "bytes")
        if ENOUGH.issubset(meminfo):
            value = in_no_counter(sample.get("beside", {}) | meminfo)
            yield Level(time, "computed", NO_COUNTER, value, "bytes")
        for name, value in sample.get("ksm", {}).items():
            if name in KSM_LEVELS:
                yield Level(time, "ksm", name, value, KSM_LEVELS[name])


def levels(log: Log) -> Iterator[Level]:
    """Levels that were not 0 throughout."""
    return (row for row in gauges(log) if row.name in log.moved)


def holders(log: Log) -> list[WatchHolder]:
    """Holders of memory: of each kind :data:`MOST_HOLDERS`, and all that met a limit."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    begin = float(log.first["mono"])
    unknown = dict.fromkeys(c.name for c in columns(WatchHolder))
    for sample in log.all_read():
        for kind, name, pid, size, first, more in sample.get("holders", ()):
            if (cells := found.get((kind, name, pid))) is None:
                cells = unknown | {"kind": kind, "name": name, "pid": pid, "last_time": 0.0}
                cells |= {"first_bytes": first, "most_bytes": first}
                found[kind, name, pid] = cells
            cells |= {"last_bytes": size or 0, "gone": size is None}
            if size is None:
                continue
            cells["last_time"] = round(sample["holders_at"] - begin, 3)
            cells |= {name: more[name] for name in LATEST if name in more}
            if size >= cells["most_bytes"] or kind == CGROUP:
                cells |= {
                    name: round(value, 3) if name.endswith("_seconds") else value
                    for name, value in more.items()
                }
            cells["most_bytes"] = max(size, cells["most_bytes"])
    rows = [WatchHolder(**cells) for cells in found.values()]
    places: Counter[str] = Counter()
    kept = []
    for row in sorted(rows, key=lambda row: -row.most_bytes):
        places[row.kind] += 1
        special = row.oom_kills or row.high_events or row.dying_below or row.mappings
        if places[row.kind] <= MOST_HOLDERS or special:
            kept.append(row)
    return kept


def holder_series(log: Log, held: list[WatchHolder]) -> list[HolderLevel]:
    """
    Every reading of the :data:`MOST_IN_SERIES` holders of each kind that changed most.

    The first reading says of all what they held; a later one only of the large, and of those that
    the reading before it named.
    """
    changed: dict[str, dict[tuple[Any, ...], int]] = {}
    for row in held:
        span = row.most_bytes - min(row.first_bytes, row.last_bytes)
        if span:
            changed.setdefault(row.kind, {})[row.kind, row.name, row.pid] = span
    most = {key for spans in changed.values()
            for key in heapq.nlargest(MOST_IN_SERIES, spans, key=spans.__getitem__)}  # fmt: skip
    begin = float(log.first["mono"])
    starts: dict[str, float] = {}  # a kind's first reading
    series: dict[tuple[Any, ...], dict[float, int]] = {}
    for sample in log.all_read():
        for kind, name, pid, size, first, _ in sample.get("holders", ()):
            at = round(sample["holders_at"] - begin, 3)
            start = starts.setdefault(kind, at)
            if (key := (kind, name, pid)) in most:
                series.setdefault(key, {start: first})[at] = size or 0
    return [
        HolderLevel(at, kind, name, pid, size)
        for (kind, name, pid), points in series.items()
        for at, size in points.items()
    ]


def kills(samples: Samples) -> Iterator[WatchKill]:
    """Processes that were killed, as they were read."""
    for time, sample in samples:
        for pid, name, limit, size in sample.get("kills", ()):
            yield WatchKill(time, pid, name, limit, size)


def sleepers(log: Log) -> list[WatchSleeper]:
    """Tasks that slept :data:`LONG` or longer; of each the longest sleep."""
    rows: dict[tuple[int, int], WatchSleeper] = {}
    begin = float(log.first["mono"])
    for sample in log.all_read():
        for pid, name, task, since, where in sample.get("sleepers", ()):
            seconds = round(sample["sleepers_at"] - since, 3)
            known = rows.get((pid, task))
            if seconds >= LONG and (known is None or seconds > known.seconds):
                since = round(since - begin, 3)
                rows[pid, task] = WatchSleeper(pid, name, task, since, seconds, where or None)
    return sorted(rows.values(), key=lambda row: (-row.seconds, row.pid, row.task))[:MOST_SLEEPERS]


def overhead(log: Log) -> WatchOverhead:
    """
    Cost of watching: of the process as a whole, from the first sample to the last, so that
    writing and waiting are in it.
    """
    first, last = log.first, log.last
    taken = last["number"] - first["number"]
    spent = last["cpu_total"] - first["cpu_total"] if taken else last["cpu"]
    return WatchOverhead(
        last["number"],
        log.samples,
        round(log.seconds, 3),
        log.header["interval"],
        round(spent, 6),
        round(spent / (taken or 1), 6),
        round(spent / log.seconds, 6) if log.seconds else None,
        log.pagetypeinfo,
        round(log.pagetypeinfo_seconds, 6),
        log.path.stat().st_size,
    )


def overhead_words(cost: WatchOverhead) -> str:
    """Cost of watching, in words."""
    words = f"sampling took {1000 * cost.cpu_seconds_per_sample:.1f} ms of CPU a sample"
    if cost.cpu_share is not None:
        words += f", {100 * cost.cpu_share:.2g} % of one CPU"
    return words


def write_tables(writer: Writer, log: Log) -> tuple[int, WatchOverhead]:
    """Write everything but page_owner's; returns how many rows, and what watching cost."""
    cost, held = overhead(log), holders(log)
    tables: list[tuple[type, Iterable[Any]]] = [
        (WatchSample, sample_rows(log)),
        (ThpFreeBlocks, thp_free_blocks(log)),
        (PsiStall, stalls(log)),
        (CounterRate, rates(log)),
        (WatchEvent, events(log)),
        (ZoneLevel, zone_levels(log)),
        (Level, levels(log)),
        (WatchHolder, held),
        (HolderLevel, holder_series(log, held)),
        (WatchSleeper, sleepers(log)),
        (WatchKill, kills(log)),
        (WatchOverhead, [cost]),
    ]
    written = sum(
        writer.table(table_of(row).name, table_of(row).title, row, rows, section=SECTION)
        for row, rows in tables
    )
    return written, cost


def section(log: Log, rows: int, cost: WatchOverhead, seconds: float) -> SectionResult:
    """The section of a watch: its status, and what a reader has to know of it."""
    notes: list[str] = []
    remarks: list[str] = []
    if log.damaged:
        lines = plural(log.damaged, "line of the log is", "lines of the log are")
        notes.append(f"{lines} damaged, and left out")
    if log.cut:
        notes.append("the last sample was cut short, and is left out")
    if log.thinned is not None:
        notes.append(
            f"samples thinned to stay in --limit: {log.samples:,} of {cost.samples_taken:,} are "
            f"here, and the interval became {log.thinned:g} s"
        )
    if log.ended is not None:
        notes.append(f"ended after {log.ended:,} samples, which is all that --limit holds")
    for name, why in log.unread.items():
        times = log.times_unread[name]
        of = "" if times == log.samples else f" in {times:,} of {log.samples:,} samples"
        # What a kernel lacks does not make the reading partial; what it hides does.
        absent = name in ("pressure", "ksm") and not of
        if name == "pagetypeinfo" and "thp_free" in log.last:
            why += "; free blocks are of unknown migratetype, from /proc/buddyinfo"
        (remarks if absent else notes).append(f"{name} not read{of}: {why}")
    if log.went_back:
        listed = ", ".join(sorted(log.went_back)[:5]) + (", …" if len(log.went_back) > 5 else "")
        notes.append(f"{len(log.went_back):,} counters went back, and have no rate there: {listed}")
    remarks.append(overhead_words(cost))
    if log.put_off:
        remarks.append(
            f"/proc/pagetypeinfo was read for {log.pagetypeinfo:,} of {log.samples:,} samples, "
            "so that it takes no more than 1 % of a CPU"
        )
    last = log.end or log.last
    for kind, why in last.get("holders_unread", {}).items():
        remarks.append(f"who holds memory, {kind}: not read: {why}")
    if last.get("sleepers_unread"):
        remarks.append(f"tasks in D state: not read: {last['sleepers_unread']}")
    if log.walks_pages:
        remarks.append(
            "page_owner is on: to read /proc/pagetypeinfo, the kernel drains the per-CPU lists"
        )
    if log.clock_steps:
        remarks.append(f"the host's clock was set {log.clock_steps:,} times; periods do not use it")
    if log.asleep:
        remarks.append(f"the host was suspended for {log.asleep:,.0f} s, which no period includes")
    return SectionResult.of(SECTION, notes, remarks, seconds, rows)


def summary(log: Log, cost: WatchOverhead) -> Iterator[str]:
    """Lines for the terminal: what stands out."""
    yield (
        f"{plural(log.samples, 'sample')} in {log.seconds:,.1f} s; {overhead_words(cost)}"
        + (f"; the log took {cost.log_bytes / 2**20:.3g} MiB")
    )
    sums: dict[str, int] = {}
    for event in events(log):
        sums[event.name] = sums.get(event.name, 0) + event.count
    for name, number in sums.items():
        yield f"{number:>12,}  {name}: {EVENTS.get(name, ALLOCSTALL)}"
    worst = {row.kind: row for row in sorted(stalls(log), key=lambda row: row.share or 0)}
    for kind, row in sorted(worst.items(), reverse=True):
        if row.share and row.period_seconds is not None:
            worst_of = f"in the worst period, {row.period_seconds:.3g} s"
            yield f"{percent(row.share):>12}  PSI {kind} {worst_of}"


def target(log: Log) -> dict[str, Cell]:
    """
    The host, as of the last sample.

    :raises ValueError, KeyError, TypeError, OverflowError: the log does not say what it should.
    """
    captured = datetime.datetime.fromtimestamp(int(log.last["wall"]), datetime.UTC).isoformat()
    uptime = round(log.last["boot"], 2)
    return checked_target(
        {**log.header["target"], "captured_at": captured, "uptime_seconds": uptime}
    )
