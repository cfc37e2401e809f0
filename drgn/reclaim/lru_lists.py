# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reclaim: LRU lists by node and zone, generations of the multi-gen LRU by cgroup; by node how kswapd
fares (``pg_data_t``), which LRU is in use, and refaults since boot.

Each memory cgroup has a ``struct lruvec`` for each node (``mem_cgroup_per_node``). What is on its
lists is in ``lru_zone_size``, and with the multi-gen LRU in ``lrugen.nr_pages``, whose two youngest
generations count as active (``lru_gen_is_active()``, include/linux/mm_inline.h); what cannot be
evicted is on a list in both. All are read together, and their sum is what the zone counts.

Costs about 1.5 KiB of reading for each cgroup and node. Cannot know: pages that were taken off a
list for a moment, and those that CPUs have not put on one yet; what requests reclaimed by
themselves, of which table ``vm_counters`` has the sum.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, Type, offsetof, sizeof
from drgn.helpers.linux.timekeeping import uptime

from mmscope.drgn.cgroups.cgroup_paths import cgroup_paths
from mmscope.drgn.cgroups.cgroup_rows import ID, PATH
from mmscope.drgn.cgroups.memcgs import Memcgs, memcgs_once
from mmscope.drgn.free.zones import for_each_zone, node_page_state, zone_name, zone_page_state
from mmscope.drgn.machine.vm_counters import counter, vm_counters_once
from mmscope.drgn.opening.constants import yes_or_no
from mmscope.drgn.reading.kernel_arrays import Array, Gaps, S64s, laid_out
from mmscope.drgn.reading.nodes import check_node_ids, online_nodes
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section, not_in_text
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import MOST_ORDER, column, event_column
from mmscope.drgn.tables.table import MOMENT, table, tables_of

# enum lru_list (include/linux/mmzone.h): two of anonymous memory, two of files.
LISTS = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
ANON, FILE, ACTIVE = 0, 1, 1
MIN_NR_GENS = 2  # include/linux/mmzone.h, 6.1 to 7.3
MAX_CGROUPS = 100  # that have rows of their own
HERTZ = (100, 250, 300, 1000)  # kernel/Kconfig.hz
# Counted by node (enum node_stat_item).
REFAULTS = {
    "refaults_anon": "WORKINGSET_REFAULT_ANON",
    "refaults_file": "WORKINGSET_REFAULT_FILE",
    "restored_anon": "WORKINGSET_RESTORE_ANON",
    "restored_file": "WORKINGSET_RESTORE_FILE",
}


@table("lru_lists", "LRU lists", measure="pages", memory="again")
class LruList:
    """Pages of one LRU list of a zone, all memory cgroups together."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    list: str = column(holds="words", key=True, help="LRU list")
    pages: int = column(unit="pages", help="of all memory cgroups")
    kernel_pages: int | None = column(
        unit="pages", low=None, help="the zone's counter (nr_zone_inactive_anon, …)"
    )
    cgroups: int = column(help="memory cgroups with some, dying ones included")


@table(
    "lru_generations",
    "Generations of the multi-gen LRU, of the largest memory cgroups",
    not_compared=MOMENT,
    empty="The multi-gen LRU has no pages: it is not in use, or not built in.",
)
class LruGeneration:
    """A generation of the multi-gen LRU, by memory cgroup and node."""

    cgroup: str | None = column(holds="cgroup", key=True, help=PATH)
    cgroup_id: int | None = column(key=True, help=ID)
    node: int = column(key=True, help="NUMA node")
    generation: int = column(key=True, help="sequence number; the largest is the youngest")
    age_seconds: float | None = column(unit="s", help="since its creation")
    anon_pages: int = column(unit="pages", help="anonymous and shmem")
    file_pages: int = column(unit="pages", help="pages of files")
    youngest: bool = column(help="one of the two youngest: active, not evicted")


@table("reclaim_nodes", "Reclaim by node", not_compared=MOMENT)
class ReclaimNode:
    """Reclaim of a node."""

    node: int = column(key=True, help="NUMA node")
    multi_gen: bool | None = column(help="multi-gen LRU in use (lru_gen/enabled)")
    kswapd_failures: int = column(
        high=1 << 10,  # it is not woken then (wakeup_kswapd(), mm/vmscan.c)
        help="kswapd runs in a row that reclaimed nothing; 16: it gives up",
    )
    kswapd_order: int = column(high=MOST_ORDER, help="last order asked of kswapd")
    kswapd_highest_zone: str = column(
        holds="kernel", help="highest zone asked for; empty: not asked"
    )
    refaults_anon: int | None = event_column(
        help="workingset_refault_anon since boot: evicted pages read again, however late"
    )
    refaults_file: int | None = event_column(help="workingset_refault_file, since boot")
    restored_anon: int | None = event_column(
        help="workingset_restore_anon since boot: of these, active before"
    )
    restored_file: int | None = event_column(help="workingset_restore_file, since boot")


def _dtype(prog: Program) -> np.dtype[Any]:
    """
    The members of ``struct mem_cgroup_per_node``, from the first that is wanted to the last.

    BTF has arrays of arrays as one: how long they are inside is known of others.
    """
    type_ = prog.type("struct mem_cgroup_per_node")
    zones = prog.type("struct pglist_data").member("node_zones").type.length or 1
    fields: dict[str, tuple[Any, int]] = {}

    def add(name: str, path: str, member: Type, sign: str, *inner: int) -> None:
        words = sizeof(member) // 8
        shape = (words // math.prod(inner), *inner) if words > 1 else ()
        fields[name] = np.dtype((f"<{sign}8", shape)), offsetof(type_, path)

    add("sizes", "lru_zone_size", type_.member("lru_zone_size").type, "i", len(LISTS))
    with contextlib.suppress(LookupError):  # CONFIG_LRU_GEN
        lrugen = type_.member("lruvec").type.member("lrugen").type
        for name in ("max_seq", "min_seq", "timestamps"):
            add(name, f"lruvec.lrugen.{name}", lrugen.member(name).type, "u")
        add("nr_pages", "lruvec.lrugen.nr_pages", lrugen.member("nr_pages").type, "i", 2, zones)
    return laid_out(fields)


def read_lruvecs(prog: Program, memcgs: Memcgs, gaps: Gaps) -> Array:
    """
    Read the lruvecs of all memory cgroups.

    :return: by cgroup and node, zeros where none was read: ``sizes`` by zone and list; with the
        multi-gen LRU ``max_seq``, ``min_seq`` by type, ``timestamps`` in jiffies by generation, and
        ``nr_pages`` by generation, type and zone.
    :raises LookupError: the kernel's layout is unknown.
    """
    nodes = check_node_ids(prog, "nr_node_ids")
    at = np.uint64(offsetof(prog.type("struct mem_cgroup"), "nodeinfo"))
    pointers, read = read_scattered(prog, memcgs.address + at, np.dtype(("<u8", (nodes,))), gaps)
    there = (pointers != 0) & read[:, None]
    rows, known = read_scattered(prog, pointers[there], _dtype(prog), gaps)
    there[there] = known
    names = rows.dtype.names or ()
    lruvecs = np.zeros(pointers.shape, [(name, rows.dtype[name]) for name in names])
    for name in names:
        lruvecs[name][there] = rows[name][known]
    if "nr_pages" in names:  # "eventually consistent": negative for a moment
        lruvecs["nr_pages"] = np.maximum(lruvecs["nr_pages"], 0)
    return lruvecs


def pages_of_lists(lruvecs: Array) -> S64s:
    """Pages by (cgroup, node, zone, list)."""
    pages: S64s = lruvecs["sizes"].copy()
    if "nr_pages" not in (lruvecs.dtype.names or ()):
        return pages
    held = lruvecs["nr_pages"]
    count = held.shape[2]
    newer = lruvecs["max_seq"][..., None] + np.uint64(count) - np.arange(count, dtype=np.uint64)
    age = newer % np.uint64(count)
    active = (age < MIN_NR_GENS)[..., None]
    for type_ in (ANON, FILE):
        of_type = held[:, :, :, type_, :]
        pages[..., 2 * type_ + ACTIVE] += (of_type * active).sum(axis=2)
        pages[..., 2 * type_] += (of_type * ~active).sum(axis=2)
    return pages


def list_rows(prog: Program, lruvecs: Array) -> list[LruList]:
    """A row for each list of each zone, beside what the zone counts."""
    pages = pages_of_lists(lruvecs)
    rows = []
    for node, number, zone in for_each_zone(prog):
        for at, name in enumerate(LISTS):
            here = pages[:, node, number % pages.shape[2], at]
            try:
                counted = zone_page_state(zone, f"NR_ZONE_{name.upper()}")[0]
            except LookupError:
                counted = None
            rows.append(
                LruList(
                    node,
                    zone_name(zone),
                    name,
                    int(here.sum()),
                    counted,
                    int(np.count_nonzero(here)),
                )
            )
    return rows


def generation_rows(
    prog: Program, memcgs: Memcgs, lruvecs: Array, gaps: Gaps
) -> list[LruGeneration]:
    """The generations of the cgroups with most pages in them, the oldest of each first."""
    if "nr_pages" not in (lruvecs.dtype.names or ()):
        return []
    held = lruvecs["nr_pages"].sum(axis=4)
    total = held.sum(axis=(1, 2, 3))
    largest = np.argsort(-total, kind="stable")[:MAX_CGROUPS]
    largest = largest[total[largest] > 0]
    paths = cgroup_paths(prog, memcgs.columns["cgroup"][largest], gaps)
    now, hertz = int(prog["jiffies_64"].value_()), jiffies_a_second(prog)
    since_boot = now - first_jiffy(hertz or 0)
    count = held.shape[2]
    rows = []
    for at, path in zip(largest.tolist(), paths, strict=True):
        for node in np.flatnonzero(held[at].sum(axis=(1, 2))).tolist():
            lruvec = lruvecs[at, node]
            last = int(lruvec["max_seq"])
            first = max(int(lruvec["min_seq"].min()), last - count + 1)
            for sequence in range(first, last + 1):
                anon, file = held[at, node, sequence % count].tolist()
                age = now - int(lruvec["timestamps"][sequence % count])
                seconds = age / hertz if hertz and 0 <= age <= since_boot else None
                youngest = sequence > last - MIN_NR_GENS
                rows.append(LruGeneration(*path, node, sequence, seconds, anon, file, youngest))
    return rows


def ages_that_cannot_be(rows: Sequence[LruGeneration]) -> Iterator[str]:
    """
    In words, what of the generations' times cannot be: each began after the one before
    (``inc_max_seq()``, mm/vmscan.c), none before boot or after now.
    """
    unknown = sum(row.age_seconds is None for row in rows)
    if unknown < len(rows) and unknown:
        yield f"{plural(unknown, 'generation')} began after now, or before boot"
    older = sum(
        after.generation == row.generation + 1 and (after.age_seconds or 0) > (row.age_seconds or 0)
        for row, after in itertools.pairwise(rows)
        if row.age_seconds is not None
    )
    if older:
        yield f"{plural(older, 'generation')} began before the one that is older"


def too_many_generations(lruvecs: Array) -> Iterator[str]:
    """In words, the lruvecs with more generations than there is room for (``get_nr_gens()``)."""
    if "nr_pages" in (lruvecs.dtype.names or ()):
        # Of one that could not be read, all is 0.
        apart = lruvecs["max_seq"][..., None] - lruvecs["min_seq"]
        wrong = (apart >= lruvecs["nr_pages"].shape[2]).any(axis=-1)
        if count := int(np.count_nonzero(wrong)):
            yield f"the generations of {plural(count, 'lruvec')} are more than there is room for"


def jiffies_a_second(prog: Program) -> int | None:
    """
    CONFIG_HZ, a macro: the one with which jiffies, which began at ``INITIAL_JIFFIES``, 300 s below
    1 << 32 (include/linux/jiffies.h), make the uptime; None if none does.
    """
    try:
        jiffies, seconds = int(prog["jiffies_64"].value_()), uptime(prog)
    except (FaultError, LookupError):
        return None
    for hertz in HERTZ:
        if abs((jiffies - first_jiffy(hertz)) / hertz - seconds) < 1 + seconds / 100:
            return hertz
    return None


def first_jiffy(hertz: int) -> int:
    """``INITIAL_JIFFIES``."""
    return (1 << 32) - 300 * hertz


def node_rows(prog: Program, enabled: dict[int, bool]) -> list[ReclaimNode]:
    rows = []
    for pgdat in online_nodes(prog):
        # An int in 6.12, an atomic_t in 7.2.
        failures = pgdat.kswapd_failures
        highest = pgdat.kswapd_highest_zoneidx.value_()
        zones = pgdat.node_zones
        node = pgdat.node_id.value_()
        rows.append(
            ReclaimNode(
                node,
                enabled.get(node),
                getattr(failures, "counter", failures).value_(),
                pgdat.kswapd_order.value_(),
                # MAX_NR_ZONES: kswapd sleeps, and was not asked.
                zone_name(zones[highest]) if 0 <= highest < (zones.type_.length or 0) else "",
                *(_refaults(pgdat, item) for item in REFAULTS.values()),
            )
        )
    return rows


def asked_of_no_zone(prog: Program) -> Iterator[str]:
    """Nodes whose kswapd was asked for a zone that no node has, or up to one, in words."""
    for pgdat in online_nodes(prog):
        asked, zones = pgdat.kswapd_highest_zoneidx.value_(), pgdat.node_zones.type_.length or 0
        if not 0 <= asked <= zones:
            yield f"kswapd of node {pgdat.node_id.value_()} was asked for zone {asked} of {zones}"
        # wakeup_kswapd() is called of a zone that the node has, up to that which is asked for. A
        # node without memory has no kswapd.
        elif pgdat.kswapd and not any(
            zone.managed_pages.counter for zone in pgdat.node_zones[: asked + 1]
        ):
            yield f"kswapd of node {pgdat.node_id.value_()} was asked for zones that it has not"


def unlike_nodes(rows: list[ReclaimNode]) -> Iterator[str]:
    """
    In words, that the multi-gen LRU is in use on some nodes alone: ``lru_gen_change_state()``
    (mm/vmscan.c) switches it for all.
    """
    if len({row.multi_gen for row in rows}) > 1:
        yield "the multi-gen LRU is in use on some nodes alone"


def more_failures_than_runs(memory: Memory, rows: list[ReclaimNode]) -> Iterator[str]:
    """
    In words, that kswapd failed more often than it ran: ``balance_pgdat()`` (mm/vmscan.c) counts
    PAGEOUTRUN first.
    """
    runs = None
    with contextlib.suppress(FaultError, LookupError, ValueError):  # its section says why
        runs = counter(vm_counters_once(memory), "pageoutrun")
    failures = sum(row.kswapd_failures for row in rows)
    if runs is not None and failures > runs:
        yield f"kswapd failed {failures:,} times, and ran {runs:,} times (pageoutrun)"


def _refaults(pgdat: Object, item: str) -> int | None:
    with contextlib.suppress(LookupError):
        return node_page_state(pgdat, item)
    return None


def multi_gen_enabled(prog: Program, memcgs: Memcgs) -> dict[int, bool]:
    """By node, whether the root's lruvec is of the multi-gen LRU (``lru_gen_change_state()``)."""
    roots = memcgs.address[memcgs.depth == 0].tolist()
    found: dict[int, bool] = {}
    for address in roots[:1]:
        root = Object(prog, "struct mem_cgroup", address=address)
        for pgdat in online_nodes(prog):
            node = pgdat.node_id.value_()
            with contextlib.suppress(FaultError, AttributeError):
                found[node] = yes_or_no(root.nodeinfo[node].lruvec.lrugen.enabled)
    return found


def lru_lists_from_memory(memory: Memory) -> Found:
    prog, memcgs, gaps = memory.prog, memcgs_once(memory), Gaps()
    lruvecs = read_lruvecs(prog, memcgs, gaps)
    found = Found(memory.live)
    rows = list_rows(prog, lruvecs)
    found.add(LruList, rows)
    nodes = node_rows(prog, multi_gen_enabled(prog, memcgs))
    found.add(ReclaimNode, nodes)
    generations = generation_rows(prog, memcgs, lruvecs, gaps)
    found.add(LruGeneration, generations)
    found.differ(
        *ages_that_cannot_be(generations),
        *too_many_generations(lruvecs),
        *asked_of_no_zone(prog),
        *unlike_nodes(nodes),
        *more_failures_than_runs(memory, nodes),
    )
    # As after the machine slept.
    if generations and all(row.age_seconds is None for row in generations):
        found.remarks.append("jiffies do not fit the uptime: ages of generations are unknown")
    found.unreadable_bytes = gaps.bytes + memcgs.gaps.bytes
    if wrong := [row for row in rows if row.kernel_pages not in (None, row.pages)]:
        words = (
            f"{row.list} of node {row.node} zone {row.zone}: {row.pages:,} pages are on lists, "
            f"the zone counts {row.kernel_pages:,}"
            for row in wrong[:5]
        )
        found.differ("; ".join(words))
    return found


LRU_LISTS_SECTION = Section(
    name="lru_lists",
    title="LRU lists and reclaim",
    since="0.2.0",
    tables=tables_of(LruList, ReclaimNode, LruGeneration),
    intro="""
What reclaim goes through: every memory cgroup has LRU lists on each node, here added up by zone
beside what the zone counts. With the
[multi-gen LRU](https://docs.kernel.org/admin-guide/mm/multigen_lru.html) they are generations, of
which the two youngest count as active. An old generation that holds much is memory that no process
touched since. Refaults are pages that were reclaimed and read again, however late.
""",
    command=Command("LRU lists, generations of the multi-gen LRU, and how kswapd fares", top=TOP),
    from_memory=lru_lists_from_memory,
    from_files=not_in_text(
        "LRU lists by memory cgroup are not in /proc; section memory_cgroups has active and "
        "inactive memory of each; read the kernel's memory (as root)"
    ),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("lru_lists")
