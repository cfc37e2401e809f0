# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A watch for the report's tests: twenty minutes of a host whose THPs run out, which is then out of
memory twice.
"""

from typing import Any

from rows_of_tables import Contents, tables_of_rows

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

SAMPLES, PERIOD = 41, 30.0
KILLED = {20: 1, 38: 3}


def rate(number: int, name: str, delta: int) -> CounterRate:
    return CounterRate(number * PERIOD, "vmstat", name, delta, delta / PERIOD, PERIOD)


def sample(number: int) -> list[Any]:
    """What the n-th sample holds."""
    time = number * PERIOD
    wane = max(0, 30 - number)
    period = PERIOD if number else None
    at = f"2026-11-20T03:{number // 2:02}:{number % 2 * 30:02}.000+00:00"
    rows: list[Any] = [
        WatchSample(time, at, period, 0.0002, 0.004, 0.0031, 0.0012, None, None, None),
        ThpFreeBlocks(time, 1, "Normal", "Movable", 7 * wane, False),
        ThpFreeBlocks(time, 1, "Normal", "HighAtomic", min(number // 4, 5), False),
        ThpFreeBlocks(time, 1, "Normal", "Isolate", 0, False),
        ZoneLevel(
            time,
            1,
            "Normal",
            262_144,
            30_000 + 4000 * wane,
            1000,
            1250,
            1500,
            0,
            2560,
            9 if number else 8,
        ),
        Level(time, "meminfo", "MemFree", (30_000 + 4000 * wane) << 12, "bytes"),
        Level(time, "meminfo", "PageTables", (8 + number) << 20, "bytes"),
        # One goes up and down, one hardly moves.
        Level(time, "meminfo", "Shmem", (100 + number % 3) << 20, "bytes"),
        Level(time, "meminfo", "AnonPages", (2048 << 20) + (number << 12), "bytes"),
        Level(time, "ksm", "pages_sharing", 19_960 + number, "pages"),
    ]
    for kind, share in (("some", number / 100), ("full", number / 400)):
        stall = share * PERIOD if number else None
        rows.append(PsiStall(time, kind, 100 * share, stall, share if number else None, period))
    if number:
        rows += [rate(number, "pgfault", 5000), rate(number, "thp_fault_alloc", 3 * wane)]
        rows += [rate(number, "thp_fault_fallback", 90 - 3 * wane)] if wane < 30 else []
        rows += [rate(number, "allocstall_movable", 5)] if number > 30 else []
        if number % 7 == 0:
            rows.append(rate(number, "compact_fail", number))
            rows.append(
                WatchEvent(time, "compact_fail", "direct compaction made no block", number, PERIOD)
            )
        if kills := KILLED.get(number):
            rows.append(rate(number, "oom_kill", kills))
            rows.append(WatchEvent(time, "oom_kill", "process killed", kills, PERIOD))
    return rows


def tables() -> dict[str, Contents]:
    """The tables of the watch."""
    rows = [row for number in range(SAMPLES) for row in sample(number)]
    rows.append(WatchOverhead(41, 41, 1200.0, PERIOD, 0.1271, 0.0031, 0.000106, 41, 0.05, 210_000))
    return tables_of_rows(rows)
