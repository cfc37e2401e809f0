# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The last minutes of a host, in memory, as tables that triggers are asked of.

The tables are those of ``mmscope watch`` by name and column, in SQLite, which is part of Python:
``counter_rates``, ``psi_series``, ``gauge_series``, ``zone_series`` and ``thp_free_blocks_series``.
Beside them are ``samples``, ``free_huge_blocks`` (of any migratetype, in every sample),
``cgroup_events`` (what memory.events counted in a period), ``cgroup_pressure`` (averages of ten
seconds, in per cent, of those that wait most) and ``kernel_messages``; and view ``lost_time``, with
one row: the share of the last half minute that was lost (PSI full), and in which cgroup most, as
words to end a title with. ``time`` is of
the monotonic clock, in seconds. Levels of /proc/meminfo and ``free_huge_blocks`` are kept for a day
as well, one reading every ten minutes: a leak is slower than some minutes, and so is fragmentation.

Bounded: by time, and by :data:`MOST_BYTES` where a sample is larger than any that is known.
"""

import json
import signal
import sqlite3
import time
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

from mmscope.drgn.tables.rows import columns
from mmscope.drgn.tables.table import Table, table_of
from mmscope.reports.rows import watch_rows
from mmscope.reports.watch import watch_tables
from mmscope.reports.watch.samples import Sample

MOST_BYTES = 24 << 20
PAGE = 4096
MARK_SECONDS, MARKS_SECONDS = 600.0, 86_400.0
MARKED = ("gauge_series", "free_huge_blocks")
# A trigger that takes more steps of SQLite than this is ended: a second of a CPU or so; and where a
# step is long, more CPU time. So is one with a longer text, or one that takes more memory.
MOST_STEPS = 20_000_000
MOST_SECONDS = 5.0
LONGEST_TEXT = 8 << 10
LONGEST_SQL = 64 << 10
MOST_MEMORY = MOST_BYTES + (40 << 20)
STEPS = 500
ENDS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}

SERIES: tuple[tuple[Table, Any], ...] = (
    (table_of(watch_rows.CounterRate), watch_tables.rates),
    (table_of(watch_rows.PsiStall), watch_tables.stalls),
    (table_of(watch_rows.Level), watch_tables.gauges),
    (table_of(watch_rows.ZoneLevel), watch_tables.zone_levels),
    (table_of(watch_rows.ThpFreeBlocks), watch_tables.thp_free_blocks),
)
OTHERS = {
    "samples": ("time", "wall", "line"),
    "marks": ("time",),
    "free_huge_blocks": ("time", "node", "zone", "blocks"),
    "cgroup_events": ("time", "cgroup", "name", "delta"),
    "cgroup_pressure": ("time", "cgroup", "some", "full"),
    "kernel_messages": ("time", "kind", "text"),
}
# Of cgroups that wait as long as each other it is the one below the others.
LOST_TIME = """
create view lost_time as
with last as (select max(time) as now from samples)
select
    (select sum(stall_seconds) / sum(period_seconds) from psi_series, last
        where kind = 'full' and time > now - 30) as full,
    coalesce((select ', most in memory cgroup ' || cgroup from cgroup_pressure, last
        where time = now and full > 0
        order by full desc, length(cgroup) desc limit 1), '') as cgroup
"""
READ_ONLY = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, 33}  # RECURSIVE


class History:
    """Samples of the last *seconds*; fewer where memory has no room for them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._before: dict[str, Any] = {}
        self._marked = float("-inf")
        # Every change is its own transaction: nothing is to be undone, and nothing is on disk.
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.execute(f"pragma page_size = {PAGE}")
        self._db.execute(f"pragma max_page_count = {MOST_BYTES // PAGE}")
        self._db.execute("pragma temp_store = memory")
        self._db.execute(f"pragma hard_heap_limit = {MOST_MEMORY}")  # of this process
        self._db.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, LONGEST_SQL)
        self._inserts = {}
        names = {table.name: [c.name for c in columns(table.row)] for table, _ in SERIES}
        for name, fields in {**names, **OTHERS}.items():
            self._db.execute(f"create table {name} ({', '.join(fields)})")
            self._db.execute(f"create index {name}_time on {name} (time)")
            self._inserts[name] = f"insert into {name} values ({', '.join('?' * len(fields))})"
        self._db.execute(LOST_TIME)
        self._cells = {name: attrgetter(*fields) for name, fields in names.items()}

    def reserve(self, size: int) -> None:
        """Take memory now, so that it is there when the host has none."""
        self._db.execute("create table room (bytes)")
        self._db.execute("insert into room values (zeroblob(?))", (min(size, MOST_BYTES // 2),))
        self._db.execute("drop table room")  # the pages stay with the database

    def add(
        self,
        sample: Sample,
        events: Iterable[tuple[str, str, int]] = (),
        messages: Iterable[tuple[str, str]] = (),
        pressure: Iterable[tuple[str, float, float]] = (),
    ) -> None:
        """
        Add a sample.

        :param events: what cgroups counted since the one before it: cgroup, name, difference.
        :param messages: what the kernel logged since: kind, text.
        :param pressure: cgroups that wait for memory: cgroup, some, full.
        """
        now = round(float(sample["mono"]), 3)
        self._expire(now)
        rows = self._rows(sample, now)
        rows["samples"] = [(now, sample["wall"], json.dumps(sample, separators=(",", ":")))]
        rows["free_huge_blocks"] = [(now, *row) for row in sample.get("thp_any", ())]
        rows["cgroup_events"] = [(now, *event) for event in events]
        rows["cgroup_pressure"] = [(now, *who) for who in pressure]
        rows["kernel_messages"] = [(now, *message) for message in messages]
        if now - self._marked >= MARK_SECONDS:
            self._marked = now
            rows["marks"] = [(now,)]
        try:
            self._insert(rows)
        except sqlite3.OperationalError:  # full
            self._drop_half()
            self._insert(rows)

    def _rows(self, sample: Sample, now: float) -> dict[str, list[Any]]:
        """A sample as rows. A rate is taken from the last sample that had its counters."""
        before = self._before
        pair = [(now, sample)]
        if before:
            pair.insert(0, (round(float(before["mono"]), 3), before))
        found = {}
        for table, rows in SERIES:
            cells = self._cells[table.name]
            found[table.name] = [cells(row) for row in rows(pair) if row.time == now]
        kept = ("vmstat", "vmstat_at", "psi", "psi_at", "ksm", "ksm_at")
        both = before | sample
        self._before = {name: both[name] for name in ("mono", *kept) if name in both}
        return found

    def _insert(self, rows: dict[str, list[Any]]) -> None:
        with self._db:
            self._db.execute("begin")
            for name, those in rows.items():
                self._db.executemany(self._inserts[name], those)

    def _expire(self, now: float) -> None:
        for name in self._inserts:
            if name == "marks":
                self._db.execute("delete from marks where time < ?", (now - MARKS_SECONDS,))
            else:
                kept = " and time not in (select time from marks)" * (name in MARKED)
                self._db.execute(f"delete from {name} where time < ?{kept}", (now - self.seconds,))

    def _drop_half(self) -> None:
        times = [time for (time,) in self._db.execute("select time from samples order by time")]
        middle = times[(len(times) + 1) // 2] if len(times) > 1 else float("inf")
        for name in self._inserts:
            self._db.execute(f"delete from {name} where time < ?", (middle,))

    @property
    def now(self) -> float | None:
        """Time of the last sample."""
        (found,) = self._db.execute("select max(time) from samples").fetchone()
        return None if found is None else float(found)

    def ask(self, sql: str) -> dict[str, Any] | None:
        """
        The first row that a query returns. ``:now`` in it is the time of the last sample.

        None, too, where guard is to end.

        :raises ValueError: it is no query, or takes too long or too much.
        """
        left, until = MOST_STEPS // STEPS, time.thread_time() + MOST_SECONDS

        def step() -> bool:
            nonlocal left
            left -= 1
            # Signals wait (``Guard._wait``), and need not wait for this.
            return left < 0 or time.thread_time() > until or bool(signal.sigpending() & ENDS)

        self._db.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in READ_ONLY else sqlite3.SQLITE_DENY
        )
        self._db.set_progress_handler(step, STEPS)
        longest = self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_TEXT)
        try:
            cursor = self._db.execute(sql, {"now": self.now or 0.0})
            if cursor.description is None:
                raise ValueError("it is no query")
            row = cursor.fetchone()
            names = [described[0] for described in cursor.description]
            return None if row is None else dict(zip(names, row, strict=True))
        except (sqlite3.Error, sqlite3.Warning) as error:
            if signal.sigpending() & ENDS:
                return None
            if left < 0 or time.thread_time() > until:
                raise ValueError("SQL: takes longer than a trigger may") from None
            raise ValueError(f"SQL: {error}") from None
        except MemoryError:
            raise ValueError("SQL: takes more memory than a trigger may") from None
        finally:
            self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            self._db.set_authorizer(None)
            self._db.set_progress_handler(None, 0)

    def lines(self) -> Iterator[bytes]:
        """The samples, as lines of the log of ``mmscope watch``."""
        for (line,) in self._db.execute("select line from samples order by time"):
            yield line.encode() + b"\n"
