# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Groups of machines held against each other: the measures of each host, and what they come to.

Made for A/B trials: the same questions asked of every host, the median and the range of each side.
Each bundle is opened by itself and only its small tables are loaded, so that a damaged one costs
that host alone, and a hundred hosts take seconds.

What the kernel counts since boot is taken in one of two ways, for all hosts alike. If each has two
readings or more of one boot, shares and rates are over the time from the first to the last.
Otherwise shares of attempts are since boot, whatever the host did in its first hours included, and
there are no rates.

Cannot know: whether the sides differ in anything else than what is tried.
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from mmscope.drgn.tables import display
from mmscope.drgn.tables.rows import Column, column, columns, table_row
from mmscope.reports.bundle.boots import captured
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import Database, open_database
from mmscope.reports.compare.rank_test import chance, differing
from mmscope.reports.compare.relation import elapsed, same_boot

TABLES = frozenset({"zones", "free_blocks", "pageblocks", "vm_counters"})
ASKED = TABLES | {"thp_blocks"}  # and a view over them
BETWEEN, SINCE_BOOT = "between readings", "since boot"


@table_row
class Host:
    """The measures of one host. Empty is unknown: its bundle does not have it."""

    side: str = column(holds="words", key=True, help="A or B")
    host: str = column(holds="host", key=True, help="host name")
    bundle: str = column(holds="file", key=True, help="folder of the (last) bundle")
    release: str | None = column(holds="kernel", help="kernel")
    readings: int = column(help="bundles of this host and boot")
    counted: str = column(
        holds="words", help="what counters are over: between readings, or since boot"
    )
    seconds: float | None = column(unit="s", help="how long that is")
    highatomic_pageblocks: int | None = column(help="pageblocks that are HighAtomic")
    highatomic_bytes: int | None = column(unit="bytes", help="reserved as HighAtomic")
    highatomic_share: float | None = column(help="of managed pages, that are so reserved")
    thp_blocks_highatomic: int | None = column(
        help="free blocks of THP size in the HighAtomic reserve, where THP may not take them"
    )
    thp_blocks_movable: int | None = column(help="free blocks of THP size on Movable lists")
    thp_blocks_usable: int | None = column(help="free blocks of THP size on all lists THP may use")
    free_share: float | None = column(help="of managed pages, that are free")
    thp_success: float | None = column(help="share of THP page faults that got a huge page")
    thp_attempts: int | None = column(help="THP page faults, successful or not")
    compaction_success: float | None = column(help="share of direct compactions that succeeded")
    compaction_attempts: int | None = column(help="direct compactions, successful or not")
    pgscan_kswapd: float | None = column(unit="pages/min", help="scanned by kswapd, a minute")
    pgscan_direct: float | None = column(unit="pages/min", help="scanned by allocations, a minute")
    allocstall: float | None = column(unit="1/min", help="allocations that reclaimed, a minute")
    compact_stall: float | None = column(unit="1/min", help="allocations that compacted, a minute")
    page_table_bytes: int | None = column(unit="bytes", help="in page tables")
    slab_bytes: int | None = column(unit="bytes", help="in slabs, reclaimable or not")
    missing: str | None = column(holds="words", help="tables that its bundle lacks, or has damaged")


@table_row
class Group:
    """One measure of both sides."""

    measure: str = column(holds="words", key=True, help="column of the hosts' table")
    unit: str = column(holds="words", help="of the numbers; shares are of 1")
    a_hosts: int = column(help="hosts of A whose bundle has it")
    a_median: float | None = column(help="median of the hosts of A")
    a_low: float | None = column(help="lowest")
    a_high: float | None = column(help="highest")
    a_all: float | None = column(help="all hosts of A together: the sum; of a share, the share")
    b_hosts: int = column(help="the same of B")
    b_median: float | None = column(help="median of the hosts of B")
    b_low: float | None = column(help="lowest")
    b_high: float | None = column(help="highest")
    b_all: float | None = column(help="all hosts of B together, as of A")
    difference: float | None = column(help="median of B less median of A")
    apart: bool | None = column(
        help="the ranges do not touch; empty where a side has fewer than two"
    )
    chance: float | None = column(
        since="0.2.0",
        help="that hosts dealt to the sides at random lie as far apart: Mann-Whitney rank-sum "
        "test, two-sided, exact up to 40 hosts; empty where a side has fewer than two",
    )
    differs: bool | None = column(
        since="0.2.0",
        help="the chance is small enough among all measures (Benjamini-Hochberg, 5 %)",
    )


# Of a share of attempts, what it is a share of: the share of all hosts is weighted by it.
ATTEMPTS = {"thp_success": "thp_attempts", "compaction_success": "compaction_attempts"}
RATES: dict[str, Callable[[str], bool]] = {
    "pgscan_kswapd": lambda name: name == "pgscan_kswapd",
    "pgscan_direct": lambda name: name == "pgscan_direct",
    "allocstall": lambda name: name.startswith("allocstall"),
    "compact_stall": lambda name: name == "compact_stall",
}
SUCCESS = {
    "thp": ("thp_fault_alloc", "thp_fault_fallback"),
    "compaction": ("compact_success", "compact_fail"),
}
# One number each, of the last bundle of a host.
STATES = {
    "highatomic_pageblocks": """
        select sum(blocks)::bigint from pageblocks where migratetype = 'HighAtomic'""",
    "highatomic_bytes": """
        select (sum(highatomic_reserved_pages) * any_value(page_size))::bigint from zones, target
        having count(*) = count(highatomic_reserved_pages)""",
    "highatomic_share": """
        select sum(highatomic_reserved_pages) / nullif(sum(managed_pages), 0) from zones
        having count(*) = count(highatomic_reserved_pages)""",
    "thp_blocks_highatomic": "select sum(highatomic_blocks)::bigint from thp_blocks",
    "thp_blocks_movable": "select sum(movable_blocks)::bigint from thp_blocks",
    "thp_blocks_usable": "select sum(usable_blocks)::bigint from thp_blocks",
    "free_share": "select sum(free_pages) / nullif(sum(managed_pages), 0) from zones",
    "page_table_bytes": """
        select (any_value(value) * any_value(page_size))::bigint from vm_counters, target
        where name = 'nr_page_table_pages'""",
    "slab_bytes": """
        select (sum(value) * any_value(page_size))::bigint from vm_counters, target
        where name in ('nr_slab_reclaimable', 'nr_slab_unreclaimable') having count(*) = 2""",
}
# What a measure is called where people read.
WORDS = {
    "highatomic_pageblocks": "HighAtomic pageblocks",
    "highatomic_bytes": "HighAtomic reserve",
    "highatomic_share": "HighAtomic reserve, share of memory",
    "thp_blocks_highatomic": "free blocks of THP size, HighAtomic",
    "thp_blocks_movable": "free blocks of THP size, Movable",
    "thp_blocks_usable": "free blocks of THP size that THP may use",
    "free_share": "free share of memory",
    "thp_success": "THP page faults with a huge page",
    "thp_attempts": "THP page faults",
    "compaction_success": "direct compactions that succeeded",
    "compaction_attempts": "direct compactions",
    "pgscan_kswapd": "pages scanned by kswapd",
    "pgscan_direct": "pages scanned by allocations",
    "allocstall": "allocations that reclaimed",
    "compact_stall": "allocations that compacted",
    "page_table_bytes": "page tables",
    "slab_bytes": "slabs",
}
MEASURES = [c for c in columns(Host) if c.name in STATES | ATTEMPTS | RATES]
MEASURES += [c for c in columns(Host) if c.name in ATTEMPTS.values()]


@dataclass(frozen=True, slots=True)
class Readings:
    """The bundles of one boot of one host, in the order of time."""

    side: str
    bundles: list[Bundle]

    @property
    def seconds(self) -> float | None:
        """From the first to the last; None if there is but one."""
        seconds = elapsed(self.bundles[0], self.bundles[-1])
        return seconds if seconds and seconds > 0 else None


def hosts_of(sides: Sequence[tuple[str, Sequence[Bundle]]]) -> list[Host]:
    """The measures of every host of every side; a host that was booted anew is another."""
    readings = [item for side, bundles in sides for item in _by_boot(side, bundles)]
    between = all(item.seconds for item in readings)
    return [_host(item, between=between) for item in readings]


def _by_boot(side: str, bundles: Sequence[Bundle]) -> list[Readings]:
    found: list[list[Bundle]] = []
    for bundle in sorted(bundles, key=lambda bundle: captured(bundle) or 0.0):
        mine = next((group for group in found if same_boot(group[0], bundle)), None)
        if mine is None:
            found.append([bundle])
        else:
            mine.append(bundle)
    return [Readings(side, group) for group in found]


def _host(readings: Readings, *, between: bool) -> Host:
    first, last = readings.bundles[0], readings.bundles[-1]
    database = open_database(last, ASKED)
    counters = _counters(database)
    uptime = last.target.get("uptime_seconds")
    seconds = float(uptime) if isinstance(uptime, (int, float)) and uptime > 0 else None
    if between:
        before, seconds = _counters(open_database(first, ASKED)), readings.seconds
        # One that fell was reset, or is damaged.
        counters = {
            name: value - before[name]
            for name, value in counters.items()
            if name in before and value >= before[name]
        }
    values: dict[str, Any] = {name: _number(database, sql) for name, sql in STATES.items()}
    for name, (good, bad) in SUCCESS.items():
        known = good in counters and bad in counters
        attempts = counters[good] + counters[bad] if known else None
        values[f"{name}_attempts"] = attempts
        values[f"{name}_success"] = counters[good] / attempts if attempts else None
    for name, wanted in RATES.items():
        here = [value for counter, value in counters.items() if wanted(counter)]
        # A counter since boot is not a rate: it does not say when.
        values[name] = sum(here) * 60 / seconds if between and here and seconds else None
    release = last.target.get("release")
    return Host(
        side=readings.side,
        host=str(last.target.get("hostname") or "unknown"),
        bundle=last.path.name,
        release=None if release is None else str(release),
        readings=len(readings.bundles),
        counted=BETWEEN if between else SINCE_BOOT,
        seconds=seconds,
        missing=_missing(last, database),
        **values,
    )


def _missing(bundle: Bundle, database: Database) -> str | None:
    words = [f"{name}: damaged" for name in sorted(TABLES & database.missing.keys())]
    words += [f"{name}: not there" for name in sorted(TABLES - bundle.tables.keys())]
    return "; ".join(words) or None


def _number(database: Database, sql: str) -> Any:
    """The number that a query gives; None where the bundle lacks what it needs."""
    try:
        (number,) = database.connection.execute(sql).fetchone() or (None,)
    except duckdb.Error:
        return None
    return number


def _counters(database: Database) -> dict[str, int]:
    """What the kernel counted since boot."""
    try:
        found = database.connection.execute(
            "select name, value from vm_counters where kind = 'event'"
        ).fetchall()
    except duckdb.Error:
        return {}
    return dict(found)


def groups_of(hosts: Sequence[Host]) -> list[Group]:
    """
    Each measure of both sides: first that in which it is least by chance that they differ; of two
    that are equal in that, the one whose medians are farther apart, for their size.
    """
    found = [_group(measure, hosts) for measure in MEASURES]
    differ = differing([group.chance for group in found])
    found = [replace(group, differs=said) for group, said in zip(found, differ, strict=True)]
    return sorted(found, key=_order)


def _order(group: Group) -> tuple[bool, float, float]:
    most = max(abs(group.a_median or 0.0), abs(group.b_median or 0.0))
    apart = abs(group.difference or 0.0) / most if most else 0.0
    return group.chance is None, group.chance or 0.0, -apart


def _group(measure: Column, hosts: Sequence[Host]) -> Group:
    sides = []
    for side in ("A", "B"):
        known = [
            host for host in hosts if host.side == side and getattr(host, measure.name) is not None
        ]
        values = [float(getattr(host, measure.name)) for host in known]
        sides.append((values, _all(measure, known)))
    (a, a_all), (b, b_all) = sides
    both = bool(a and b)
    return Group(
        measure.name,
        measure.unit or ("share" if measure.type == "number" else "count"),
        len(a),
        *_spread(a),
        a_all,
        len(b),
        *_spread(b),
        b_all,
        statistics.median(b) - statistics.median(a) if both else None,
        # Of single hosts it would only say that they differ.
        (max(a) < min(b) or max(b) < min(a)) if len(a) > 1 and len(b) > 1 else None,
        chance(a, b) if len(a) > 1 and len(b) > 1 else None,
        None,
    )


def _spread(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Median, lowest, highest."""
    if not values:
        return None, None, None
    return statistics.median(values), min(values), max(values)


def _all(measure: Column, hosts: Sequence[Host]) -> float | None:
    """The hosts together: a sum, or a share of all attempts; other shares do not add up."""
    if not hosts:
        return None
    if attempts := ATTEMPTS.get(measure.name):
        whole = sum(getattr(host, attempts) for host in hosts)
        parts = sum(getattr(host, measure.name) * getattr(host, attempts) for host in hosts)
        return parts / whole if whole else None
    if measure.type == "number" and not measure.unit:
        return None
    return float(sum(getattr(host, measure.name) for host in hosts))


def unlike(hosts: Sequence[Host], *, same_names: bool = True) -> list[str]:
    """
    What a reader must know of the groups before any number.

    :param same_names: a host has the same name in all bundles.
    """
    words = []
    if not same_names:
        words.append(
            "names were not replaced in all bundles together: host-1 may be several hosts, and a "
            "host may have several names"
        )
    releases = {
        side: sorted({str(host.release) for host in hosts if host.side == side})
        for side in ("A", "B")
    }
    for side, named in releases.items():
        if len(named) > 1:
            words.append(f"side {side} has {len(named)} kernels: {', '.join(named)}")
    if releases["A"] != releases["B"]:
        a, b = (", ".join(named) or "none" for named in releases.values())
        words.append(f"kernels differ: A {a}; B {b}")
    names = [{host.host for host in hosts if host.side == side} for side in ("A", "B")]
    if same_names and (both := sorted(names[0] & names[1])):
        words.append(f"on both sides: {', '.join(both)}")
    seconds = [[h.seconds for h in hosts if h.side == side and h.seconds] for side in ("A", "B")]
    spans = [f"{side} {_span(values)}" for side, values in zip("AB", seconds, strict=True)]
    over = hosts[0].counted if hosts else SINCE_BOOT
    if over == BETWEEN:
        words.append(f"shares and rates of counters are between readings: {', '.join(spans)}")
    else:
        words.append(
            f"shares of attempts are since boot ({', '.join(spans)}); rates need two readings of "
            "one boot of every host, some minutes apart"
        )
    return words


def _span(values: Sequence[float]) -> str:
    if not values:
        return "for an unknown time"
    low, high = display.duration(min(values)), display.duration(max(values))
    return low if low == high else f"{low} to {high}"


def as_rows(row_type: type, rows: Sequence[Any]) -> list[list[Any]]:
    """Dataclasses as rows of cells."""
    names = [field.name for field in dataclasses.fields(row_type)]
    return [[getattr(row, name) for name in names] for row in rows]
