# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The log of ``mmscope watch`` as tables: counters as rates, levels as they were, events.

The log is a line of JSON a sample, behind a line about the host. It is read once for each table, so
that memory does not grow with it. A rate is a difference of one counter over the time between its
two readings, by the monotonic clock; the first sample has none. A counter that went back gives no
rate, and is named.
"""

import dataclasses
import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mmscope.drgn.tables.amounts import percent
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.table import Table
from mmscope.drgn.text.kernel_text import MAX_COUNT
from mmscope.drgn.text.plain_file import LineTooLong, open_lines
from mmscope.drgn.text.text_source import TextError
from mmscope.reports.bundle.description import Cell, SectionResult, checked_target, plain_texts
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.rows import watch_rows
from mmscope.reports.rows.watch_rows import (
    CounterRate,
    Level,
    PsiStall,
    ThpFreeBlocks,
    WatchEvent,
    WatchOverhead,
    WatchSample,
    ZoneLevel,
)
from mmscope.reports.watch.sample_log import FORMAT
from mmscope.reports.watch.samples import KSM_EVENTS, KSM_LEVELS, Pressure

SECTION = "watch"
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
ALLOCSTALL = "allocation had to reclaim itself"

Sample = dict[str, Any]


@dataclass
class Log:
    """
    What a watch left on disk.

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
    unread: dict[str, tuple[str, int]] = field(default_factory=dict)  # by source: (why, how often)
    went_back: dict[str, int] = field(default_factory=dict)
    clock_steps: int = 0
    asleep: float = 0.0
    put_off: int = 0
    walks_pages: bool = False
    pagetypeinfo: tuple[int, float] = (0, 0.0)  # readings, CPU seconds
    moved: set[str] = field(default_factory=set)  # levels that were not 0 throughout

    def __iter__(self) -> Iterator[Sample]:
        return (line for line in _lines(self.path) if _is_sample(line))

    def time(self, sample: Sample) -> float:
        """Seconds since the first sample."""
        return round(float(sample["mono"] - self.first["mono"]), 3)

    @property
    def seconds(self) -> float:
        """From the first sample to the last."""
        return float(self.last["mono"] - self.first["mono"])


class Samples(Protocol):
    """Samples, in the order of time: a log, or a list."""

    def __iter__(self) -> Iterator[Sample]: ...

    def time(self, sample: Sample) -> float:
        """Of a sample, as rows have it."""
        ...


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
    behind a line that is longer than any is not read.
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
    before: Sample | None = None
    last: dict[str, dict[str, int]] = {}
    for sample in lines:
        if sample is False:
            log.cut = True
        elif isinstance(sample, dict) and sample.keys() <= {"thinned", "ended"}:
            log.thinned = sample.get("thinned", log.thinned)
            log.ended = sample.get("ended", log.ended)
        elif not _is_sample(sample):
            log.damaged += 1
        else:
            log.samples += 1
            log.first = log.first or sample
            log.last = sample
            _look(log, before, sample, last)
            before = sample
    if not log.samples:
        raise TextError(f"{path}: nothing was sampled")
    return log


def _look(log: Log, before: Sample | None, sample: Sample, last: dict[str, dict[str, int]]) -> None:
    for name, why in sample["unread"].items():
        _, times = log.unread.get(name, ("", 0))
        log.unread[name] = why, times + 1
    for source in ("vmstat", "ksm"):
        if source in sample:
            for name, value in sample[source].items():
                if value < last.get(source, {}).get(name, 0) and _counts(source, name):
                    log.went_back[name] = log.went_back.get(name, 0) + 1
            last[source] = sample[source]
    step, asleep = clocks(before, sample)
    log.clock_steps += step is not None
    log.asleep += asleep or 0.0
    log.put_off += bool(sample.get("put_off"))
    log.walks_pages |= bool(sample.get("walks_pages"))
    if (spent := sample.get("pagetypeinfo_cpu")) is not None:
        readings, seconds = log.pagetypeinfo
        log.pagetypeinfo = readings + 1, seconds + spent
    for source in ("meminfo", "ksm"):
        log.moved |= {name for name, value in sample.get(source, {}).items() if value}


def _counts(source: str, name: str) -> bool:
    return source == "vmstat" or name in KSM_EVENTS


def clocks(before: Sample | None, sample: Sample) -> tuple[float | None, float | None]:
    """(by how much the time of day was set, how long the host slept) between two samples."""
    if before is None:
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
    before: Sample | None = None
    for sample in log:
        step, asleep = clocks(before, sample)
        yield WatchSample(
            time=log.time(sample),
            at=time_of_day(sample["wall"]),
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


def time_of_day(wall: float) -> str:
    """A time of the host's clock, in UTC."""
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat(timespec="milliseconds")


def rates(log: Samples) -> Iterator[CounterRate]:
    """What moved in each period."""
    last: dict[str, Sample] = {}
    for sample in log:
        for source in ("vmstat", "ksm"):
            if source not in sample:
                continue
            if source in last:
                before = last[source][source]
                period = sample[f"{source}_at"] - last[source][f"{source}_at"]
                for name, value in sample[source].items():
                    # Neither is there a difference to what was not there before.
                    delta = value - before.get(name, value)
                    if delta > 0 and period > 0 and _counts(source, name):
                        rate = float(f"{delta / period:.6g}")
                        yield CounterRate(
                            log.time(sample), source, name, delta, rate, round(period, 6)
                        )
            last[source] = sample


def events(log: Log) -> Iterator[WatchEvent]:
    """Rates of what is worth a mark."""
    for row in rates(log):
        words = ALLOCSTALL if row.name.startswith("allocstall") else EVENTS.get(row.name)
        if words and row.source == "vmstat":
            yield WatchEvent(row.time, row.name, words, row.delta, row.period_seconds)


def thp_free_blocks(log: Samples) -> Iterator[ThpFreeBlocks]:
    """Free blocks of THP size at each moment."""
    for sample in log:
        for row in sample.get("thp_free", ()):
            yield ThpFreeBlocks(log.time(sample), *row)


def zone_levels(log: Samples) -> Iterator[ZoneLevel]:
    """
    The zones at each moment. Where /proc/zoneinfo does not have the reserve, it is as
    /proc/pagetypeinfo said at that same moment, otherwise unknown.
    """
    for sample in log:
        reserve = {(node, zone): pages for node, zone, pages in sample.get("reserve", ())}
        for row in sample.get("zones", ()):
            level = ZoneLevel(log.time(sample), *row)
            if level.highatomic_reserved_pages is None:
                reserved = reserve.get((level.node, level.zone))
                level = dataclasses.replace(level, highatomic_reserved_pages=reserved)
            yield level


def stalls(log: Samples) -> Iterator[PsiStall]:
    """PSI: time lost in each period."""
    before: Sample | None = None
    for sample in log:
        if "psi" not in sample:
            continue
        for kind, row in sample["psi"].items():
            now = Pressure(*row)
            stall = share = period = None
            if before is not None and kind in before["psi"]:
                period = sample["psi_at"] - before["psi_at"]
                lost = (now.total - Pressure(*before["psi"][kind]).total) / 1e6
                if period > 0 and lost >= 0:
                    stall, share = round(lost, 6), round(lost / period, 6)
                    period = round(period, 6)
            yield PsiStall(
                log.time(sample),
                kind,
                now.avg10,
                stall,
                share,
                period if stall is not None else None,
            )
        before = sample


def levels(log: Log) -> Iterator[Level]:
    """Levels that were not 0 throughout."""
    return (row for row in gauges(log) if row.name in log.moved)


def gauges(log: Samples) -> Iterator[Level]:
    """All levels."""
    for sample in log:
        for name, value in sample.get("meminfo", {}).items():
            yield Level(log.time(sample), "meminfo", name, value, "bytes")
        for name, value in sample.get("ksm", {}).items():
            if name in KSM_LEVELS:
                yield Level(log.time(sample), "ksm", name, value, KSM_LEVELS[name])


def overhead(log: Log) -> WatchOverhead:
    """
    What watching cost: of the process as a whole, from the first sample to the last, so that
    writing and waiting are in it.
    """
    first, last = log.first, log.last
    taken = last["number"] - first["number"]
    spent = last["cpu_total"] - first["cpu_total"] if taken else last["cpu"]
    readings, pagetypeinfo_seconds = log.pagetypeinfo
    return WatchOverhead(
        last["number"],
        log.samples,
        round(log.seconds, 3),
        log.header["interval"],
        round(spent, 6),
        round(spent / (taken or 1), 6),
        round(spent / log.seconds, 6) if log.seconds else None,
        readings,
        round(pagetypeinfo_seconds, 6),
        log.path.stat().st_size,
    )


def overhead_words(cost: WatchOverhead) -> str:
    """What watching cost, in words."""
    words = f"sampling took {1000 * cost.cpu_seconds_per_sample:.1f} ms of CPU a sample"
    if cost.cpu_share is not None:
        words += f", {100 * cost.cpu_share:.2g} % of one CPU"
    return words


def write_tables(writer: Writer, log: Log) -> tuple[int, WatchOverhead]:
    """Write everything but page_owner's; returns how many rows, and what watching cost."""
    cost = overhead(log)
    tables: tuple[tuple[Table, Callable[[Log], Iterable[Any]]], ...] = (
        (watch_rows.WATCH_SAMPLES, sample_rows),
        (watch_rows.THP_FREE_BLOCKS_SERIES, thp_free_blocks),
        (watch_rows.PSI_SERIES, stalls),
        (watch_rows.COUNTER_RATES, rates),
        (watch_rows.WATCH_EVENTS, events),
        (watch_rows.ZONE_SERIES, zone_levels),
        (watch_rows.GAUGE_SERIES, levels),
        (watch_rows.WATCH_OVERHEAD, lambda _: [cost]),
    )
    return (
        sum(
            writer.table(table.name, table.title, table.row, rows(log), section=SECTION)
            for table, rows in tables
        ),
        cost,
    )


def section(log: Log, rows: int, cost: WatchOverhead, seconds: float) -> SectionResult:
    """How the watch fared."""
    notes: list[str] = []
    remarks: list[str] = []
    if log.damaged:
        notes.append(f"{log.damaged:,} lines of the log are damaged, and left out")
    if log.cut:
        notes.append("the last sample was cut short, and is left out")
    if log.thinned is not None:
        notes.append(
            f"samples thinned to stay in --limit: {log.samples:,} of {cost.samples_taken:,} are "
            f"here, and the interval became {log.thinned:g} s"
        )
    if log.ended is not None:
        notes.append(f"ended after {log.ended:,} samples, which is all that --limit holds")
    for name, (why, times) in log.unread.items():
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
            f"/proc/pagetypeinfo was read for {log.pagetypeinfo[0]:,} of {log.samples:,} samples, "
            "so that it takes no more than 1 % of a CPU"
        )
    if log.walks_pages:
        remarks.append(
            "page_owner is on: to read /proc/pagetypeinfo, the kernel drains the per-CPU lists"
        )
    if log.clock_steps:
        remarks.append(f"the host's clock was set {log.clock_steps:,} times; periods do not use it")
    if log.asleep:
        remarks.append(f"the host was suspended for {log.asleep:,.0f} s, which no period includes")
    return SectionResult(
        SECTION,
        "partial" if notes else "ok",
        round(seconds, 3),
        rows,
        0,
        "; ".join(notes + remarks) or None,
    )


def summary(log: Log, cost: WatchOverhead) -> Iterator[str]:
    """What stands out, a line each, for the terminal."""
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
        if row.share is not None and row.period_seconds is not None:
            yield (
                f"{percent(row.share):>12}  at most, of {row.period_seconds:.3g} s: "
                f"memory pressure, {kind}"
            )


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
