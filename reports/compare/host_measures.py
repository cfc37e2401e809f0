# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Measures that hosts are compared by: their columns, their names, and how each is read.

A measure that a side lacks is empty, and the row says why: nothing is left out without a word.
"""

import re
from dataclasses import dataclass, field

from mmscope.drgn.tables.rows import column, columns, table_row
from mmscope.drgn.text.proc_text import SINCE_BOOT as COUNTED
from mmscope.reports.compare.recorded_allocations import RECIPE

BETWEEN, RECORDED, SINCE_BOOT = "between readings", "in recordings", "since boot"
COUNTERS = f"select name, value from vm_counters where {COUNTED}"


@table_row
class Host:
    """The measures of one host. Empty is unknown: its bundle does not have it."""

    side: str = column(holds="words", key=True, help="A or B")
    host: str = column(holds="host", key=True, help="host name")
    bundle: str = column(holds="file", key=True, help="folder of the (last) bundle")
    release: str | None = column(holds="kernel", help="kernel")
    readings: int = column(help="bundles of this host and boot")
    counted: str = column(
        holds="words",
        help="what counters are over: between readings, in recordings, or since boot",
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
    atomic_allocations: float | None = column(
        since="0.3.0",
        unit="1/min",
        help="allocations of order > 0 that may not wait and may use the HighAtomic reserve, a "
        f"minute of the last recording of {RECIPE}; so are the four after it",
    )
    atomic_4_up: float | None = column(
        since="0.3.0", unit="1/min", help="of them, those of orders 4 and up, a minute"
    )
    atomic_failures_1_to_3: float | None = column(
        since="0.3.0", unit="1/min", help="that got no page, of orders 1 to 3, a minute"
    )
    atomic_failures_4_up: float | None = column(
        since="0.3.0", unit="1/min", help="that got no page, of orders 4 and up, a minute"
    )
    reservations: float | None = column(
        since="0.3.0", unit="1/min", help="pageblocks that became HighAtomic reserve, a minute"
    )
    recorded_seconds: float | None = column(
        since="0.3.0", unit="s", help=f"how long the last recording of {RECIPE} took"
    )
    page_table_bytes: int | None = column(unit="bytes", help="in page tables")
    slab_bytes: int | None = column(unit="bytes", help="in slabs, reclaimable or not")
    missing: str | None = column(holds="words", help="tables that its bundle lacks, or has damaged")


@table_row
class Group:
    """One measure of both sides."""

    measure: str = column(
        holds="words",
        key=True,
        help="column of the hosts' table; of what was recorded, which order or caller",
    )
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
    a_missing: str | None = column(
        since="0.3.0",
        holds="words",
        help="why hosts of A have no number; empty where all have one",
    )
    b_missing: str | None = column(since="0.3.0", holds="words", help="the same of B")


@dataclass(frozen=True, slots=True)
class Measured(Host):
    """
    A host, and what there is to be said of it beside its row.

    :ivar why: of measures without a number, why.
    :ivar parts: what was recorded by order and by caller, a minute.
    :ivar seen: what the names of parts begin with that its recording can have: those that it lacks
        did not happen.
    :ivar lost: samples that are missing from its recording.
    """

    why: dict[str, str] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    seen: tuple[str, ...] = ()
    lost: int = 0

    def part(self, name: str) -> float | None:
        """Events of one order or caller, a minute; None where the recording cannot have them."""
        return self.parts.get(name, 0.0) if name.startswith(self.seen) else None


# Of a share of attempts, what it is a share of: the share of all hosts is weighted by it.
ATTEMPTS = {"thp_success": "thp_attempts", "compaction_success": "compaction_attempts"}
# The counters that each rate adds up.
RATES = {
    "pgscan_kswapd": re.compile("pgscan_kswapd"),
    "pgscan_direct": re.compile("pgscan_direct"),
    "allocstall": re.compile("allocstall.*"),
    "compact_stall": re.compile("compact_stall"),
}
# Of a recording.
RECORDINGS = {
    *("atomic_allocations", "atomic_4_up", "reservations"),
    *("atomic_failures_1_to_3", "atomic_failures_4_up"),
}
# What a trial of the HighAtomic reserve is about: shown also where no host differs.
OF_A_TRIAL = RECORDINGS | {
    *("highatomic_pageblocks", "thp_success", "compaction_success", "pgscan_kswapd"),
}
SUCCESS = {
    "thp": ("thp_fault_alloc", "thp_fault_fallback"),
    "compaction": ("compact_success", "compact_fail"),
}
# One number each, of the last bundle of a host: the table that has it, and how.
STATES = {
    "highatomic_pageblocks": (
        "pageblocks",
        "select sum(blocks)::bigint from pageblocks where migratetype = 'HighAtomic'",
    ),
    "highatomic_bytes": (
        "zones",
        """select (sum(highatomic_reserved_pages) * any_value(page_size))::bigint from zones, target
        having count(*) = count(highatomic_reserved_pages)""",
    ),
    "highatomic_share": (
        "zones",
        """select sum(highatomic_reserved_pages) / nullif(sum(managed_pages), 0) from zones
        having count(*) = count(highatomic_reserved_pages)""",
    ),
    "thp_blocks_highatomic": (
        "free_blocks",
        "select sum(highatomic_blocks)::bigint from thp_blocks",
    ),
    "thp_blocks_movable": ("free_blocks", "select sum(movable_blocks)::bigint from thp_blocks"),
    "thp_blocks_usable": ("free_blocks", "select sum(usable_blocks)::bigint from thp_blocks"),
    "free_share": ("zones", "select sum(free_pages) / nullif(sum(managed_pages), 0) from zones"),
    "page_table_bytes": (
        "vm_counters",
        """select (any_value(value) * any_value(page_size))::bigint from vm_counters, target
        where name = 'nr_page_table_pages'""",
    ),
    "slab_bytes": (
        "vm_counters",
        """select (sum(value) * any_value(page_size))::bigint from vm_counters, target
        where name in ('nr_slab_reclaimable', 'nr_slab_unreclaimable') having count(*) = 2""",
    ),
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
    "atomic_allocations": "atomic allocations, order 1 and up",
    "atomic_4_up": "atomic allocations, order 4 and up",
    "atomic_failures_1_to_3": "failed atomic allocations, orders 1 to 3",
    "atomic_failures_4_up": "failed atomic allocations, order 4 and up",
    "reservations": "pageblocks that became HighAtomic reserve",
    "page_table_bytes": "page tables",
    "slab_bytes": "slabs",
}
MEASURES = [c for c in columns(Host) if c.name in WORDS and c.name not in ATTEMPTS.values()]
MEASURES += [c for c in columns(Host) if c.name in ATTEMPTS.values()]
