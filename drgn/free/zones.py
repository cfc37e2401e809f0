# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct zone``: size, watermarks, the HighAtomic reserve, and what NR_FREE_PAGES is made of.

Reads a handful of structures per node and their per-CPU parts; costs a millisecond. The text that
says the same is /proc/zoneinfo, with /proc/pagetypeinfo for the reserve (root only).

Cannot know: the cap of the HighAtomic reserve on a kernel of which debug info does not show the
rule, such as v6.7 (see :func:`caps_by_hundredth`).
"""

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from drgn import Object, Program, sizeof
from drgn.helpers.linux.llist import llist_for_each_entry
from drgn.helpers.linux.mmzone import (
    high_wmark_pages,
    low_wmark_pages,
    min_wmark_pages,
)

from mmscope.drgn.free.pageblocks import pageblock_order
from mmscope.drgn.reading.cpus import copy_of, online_cpus
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.nodes import online_nodes
from mmscope.drgn.tables.rows import LONGEST_NAME, MOST_PAGES, column
from mmscope.drgn.tables.table import table
from mmscope.drgn.text.proc_text import parse_zoneinfo, zone_file_pages

# A list of freed pages that trylock callers left behind; drained at the next locked operation.
MAX_TRYLOCK_ENTRIES = 100_000
MAX_RECLAIM_RETRIES = 16  # mm/internal.h, a macro


@table("zones", "Zones", measure="free_pages", memory="free")
class Zone:
    """One zone that spans memory."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, low=1, high=LONGEST_NAME, help="zone name")
    present_pages: int = column(
        unit="pages", high="spanned_pages", help="physical pages in the zone"
    )
    managed_pages: int = column(
        unit="pages", high="present_pages", help="given to the buddy allocator"
    )
    spanned_pages: int = column(
        unit="pages", high=MOST_PAGES, help="first to last page, holes included"
    )
    free_pages: int = column(
        unit="pages", high="managed_pages", help="NR_FREE_PAGES, per-CPU differences included"
    )
    wmark_min: int = column(unit="pages", help="boost included")
    wmark_low: int = column(
        unit="pages", low="wmark_min", help="boost included; kswapd wakes below"
    )
    wmark_high: int = column(
        unit="pages", low="wmark_low", help="boost included; kswapd sleeps above"
    )
    wmark_boost: int | None = column(
        unit="pages", help="temporary, after a fallback to another migratetype's pageblock"
    )
    highatomic_reserved_pages: int | None = column(
        unit="pages", help="nr_reserved_highatomic: whole pageblocks, used or free"
    )
    highatomic_free_pages: int | None = column(
        unit="pages",
        high="highatomic_reserved_pages",
        help="nr_free_highatomic; older kernels have none and withhold the whole reserve",
    )
    highatomic_cap_pages: int | None = column(
        unit="pages",
        help="most the reserve grows to on this kernel; empty: debug info does not show its rule",
    )
    start_pfn: int | None = column(high=MOST_PAGES, help="first page frame")
    lock_held: bool | None = column(
        since="0.2.0",
        help="zone.lock taken or waited for; dump: a CPU was changing free lists",
    )
    node_unreclaimable: bool | None = column(
        since="0.2.0", help="kswapd gave up the node: 16 runs in a row reclaimed nothing"
    )
    file_pages: int | None = column(
        unit="pages",
        since="0.3.0",
        default=None,
        help="page cache on its LRU lists (nr_zone_active_file, nr_zone_inactive_file)",
    )


FILE_LRUS = ("NR_ZONE_INACTIVE_FILE", "NR_ZONE_ACTIVE_FILE")


@table("free_accounting", "What NR_FREE_PAGES is made of", measure="nr_free_pages", memory="free")
class FreeAccounting:
    """A zone's NR_FREE_PAGES and its parts; the remainder is unaccounted for."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    nr_free_pages: int = column(unit="pages", help="NR_FREE_PAGES, per-CPU differences included")
    unfolded_pages: int = column(
        unit="pages", low=None, help="the per-CPU differences: how far /proc/zoneinfo lags"
    )
    free_list_pages: int = column(unit="pages", help="on free lists, without Isolate")
    unaccepted_pages: int = column(
        unit="pages", help="not yet handed over by the hypervisor (NR_UNACCEPTED)"
    )
    remainder_pages: int | None = column(
        unit="pages",
        low=None,
        help="NR_FREE_PAGES less free lists and unaccepted memory; 0 at rest; empty: unknown",
    )
    isolate_pages: int = column(unit="pages", help="on Isolate lists; not counted as free")
    pcp_pages: int | None = column(unit="pages", help="on per-CPU lists; not counted as free")
    trylock_pages: int | None = column(
        unit="pages", help="freed without the zone lock, not merged yet (7.x); not counted as free"
    )


def for_each_zone(prog: Program) -> Iterator[tuple[int, int, Object]]:
    """
    Every zone that spans memory, present or (ZONE_DEVICE) not.

    :return: Iterator of (node, number as :meth:`.FlagFields.zone_index` has it, ``struct zone``) in
        the kernel's order.
    """
    for pgdat in online_nodes(prog):
        node, zones = pgdat.node_id.value_(), pgdat.node_zones.type_.length or 0
        for index in range(zones):
            zone = pgdat.node_zones[index]
            if zone.spanned_pages.value_():
                yield node, node * zones + index, zone


def zone_name(zone: Object) -> str:
    """The name of a ``struct zone``, as in /proc/zoneinfo."""
    return name_at(zone.name)


def zone_names(prog: Program) -> dict[int, tuple[int, str]]:
    """Node and name of each zone, by its number (:func:`for_each_zone`)."""
    return {number: (node, zone_name(zone)) for node, number, zone in for_each_zone(prog)}


def per_cpu_zone_stats(zone: Object, cpu: int) -> Object:
    """
    Counts of a CPU that are not folded into its zone's yet: ``struct per_cpu_zonestat``, since
    "mm/page_alloc: split per cpu page lists and zone stats" (28f836b6777b, in v5.14); before, it is
    a part of ``struct per_cpu_pageset``.
    """
    split = zone.prog_.type("struct zone").has_member("per_cpu_zonestats")
    return copy_of(zone.per_cpu_zonestats if split else zone.pageset, cpu)


def zone_page_state(zone: Object, item: str) -> tuple[int, int]:
    """
    A zone counter and the part of it that per-CPU differences still hold.

    :param item: enumerator of ``enum zone_stat_item``.
    :return: (value with the differences, the differences), both in the counter's unit.
    :raises LookupError: this kernel has no such counter.
    """
    prog = zone.prog_
    index = prog.constant(item)
    unfolded = sum(
        per_cpu_zone_stats(zone, cpu).vm_stat_diff[index].value_() for cpu in online_cpus(prog)
    )
    return zone.vm_stat[index].counter.value_() + unfolded, unfolded


def node_page_state(pgdat: Object, item: str) -> int:
    """
    A counter of a node, with what per-CPU differences still hold.

    :param item: enumerator of ``enum node_stat_item``.
    :raises LookupError: this kernel has no such counter.
    """
    prog = pgdat.prog_
    index = prog.constant(item)
    unfolded = sum(
        copy_of(pgdat.per_cpu_nodestats, cpu).vm_node_stat_diff[index].value_()
        for cpu in online_cpus(prog)
    )
    return int(pgdat.vm_stat[index].counter.value_() + unfolded)


def thp_in_pages(prog: Program) -> bool:
    """
    True if the kernel counts huge pages in base pages: since "mm: memcontrol: convert NR_ANON_THPS
    account to pages" (69473e5de873) and its neighbours, all in v5.12; before, in huge pages.

    The change leaves no trace; its neighbours in time do: NR_SWAPCACHE (b6038942480e, in v5.12;
    CONFIG_SWAP) and ``struct per_cpu_zonestat`` (v5.14).
    """
    with contextlib.suppress(LookupError):
        prog.constant("NR_SWAPCACHE")
        return True
    return bool(prog.type("struct zone").has_member("per_cpu_zonestats"))


def caps_by_hundredth(prog: Program) -> bool | None:
    """
    True if ``reserve_highatomic_pageblock()`` caps the reserve at a hundredth of the zone.

    So it is since "mm: page_alloc: correct high atomic reserve calculations" (d68e39fc45f7) and "…
    enforce minimum zone size to do high atomic reserves" (9cd20f3fe045, both in v6.8); before, one
    pageblock was added to the hundredth. The change itself leaves no trace; its neighbours in time
    do. After it came the function's present parameters (v6.10) and ``zone.nr_free_highatomic``
    (v6.13, stable 6.12), before it ``per_cpu_pages.free_count`` (v6.7), with it the orders of mTHP
    (v6.8). Sources of 5.10, 6.1, 6.6, 6.8, 6.9, 6.12, 7.2 and 7.3 agree with that.

    :return: None where its neighbours do not show it, as on v6.7.
    """
    try:
        parameters = prog.function("reserve_highatomic_pageblock").type_.parameters
        if [parameter.name for parameter in parameters] == ["page", "order", "zone"]:
            return True
    except LookupError:
        pass  # debug info without functions that were inlined
    if prog.type("struct zone").has_member("nr_free_highatomic"):
        return True
    if not prog.type("struct per_cpu_pages").has_member("free_count"):
        return False
    try:
        prog.symbol("huge_anon_orders_always")
    except LookupError:
        return None
    return True


def highatomic_cap_pages(managed_pages: int, pageblock_pages: int, by_hundredth: bool) -> int:
    """
    The size at which the reserve stops growing, by ``reserve_highatomic_pageblock()``.

    It takes whole pageblocks while the reserve is below a hundredth of the zone. By the present
    rule (:func:`caps_by_hundredth`) a zone whose hundredth is below one pageblock has none; by the
    older one, a pageblock is added to the hundredth.

    :param managed_pages: the zone's.
    """
    limit = managed_pages // 100
    if not by_hundredth:
        limit += pageblock_pages
    elif limit < pageblock_pages:
        return 0
    return -(-limit // pageblock_pages) * pageblock_pages


def zones(prog: Program) -> list[Zone]:
    """
    Every zone that spans memory.

    :raises FaultError: a ``struct zone`` cannot be read.
    """
    rows = []
    by_hundredth = caps_by_hundredth(prog)
    pageblock_pages = 1 << pageblock_order(prog)
    for node, _, zone in for_each_zone(prog):
        managed = zone.managed_pages.counter.value_()
        # An int in 6.12, an atomic_t in 7.2.
        failures = zone.zone_pgdat.kswapd_failures
        failures = getattr(failures, "counter", failures).value_()
        try:
            # "mm: page_alloc: keep track of free highatomic" (c928807f6f6b, in v6.13)
            highatomic_free = zone.nr_free_highatomic.value_()
        except AttributeError:
            highatomic_free = None
        try:
            boost = zone.watermark_boost.value_()
        except AttributeError:
            boost = None
        rows.append(
            Zone(
                node=node,
                zone=zone_name(zone),
                present_pages=zone.present_pages.value_(),
                managed_pages=managed,
                spanned_pages=zone.spanned_pages.value_(),
                free_pages=zone_page_state(zone, "NR_FREE_PAGES")[0],
                wmark_min=_unwrapped(min_wmark_pages(zone), boost),
                wmark_low=_unwrapped(low_wmark_pages(zone), boost),
                wmark_high=_unwrapped(high_wmark_pages(zone), boost),
                wmark_boost=boost,
                highatomic_reserved_pages=zone.nr_reserved_highatomic.value_(),
                highatomic_free_pages=highatomic_free,
                highatomic_cap_pages=None
                if by_hundredth is None
                else highatomic_cap_pages(managed, pageblock_pages, by_hundredth),
                start_pfn=zone.zone_start_pfn.value_(),
                lock_held=lock_held(zone),
                node_unreclaimable=failures >= MAX_RECLAIM_RETRIES,
                file_pages=max(sum(zone_page_state(zone, item)[0] for item in FILE_LRUS), 0),
            )
        )
    return rows


class Span(NamedTuple):
    """A zone, its first page frame, and the one after its last."""

    zone: str
    start: int
    end: int


DEFAULT_BOOST = 15_000  # watermark_boost_factor
# Zones whose addresses the architecture gives, ascending.
BY_ADDRESS = ("DMA", "DMA32", "Normal")


def zones_beyond_nodes(prog: Program) -> list[str]:
    """
    In words, which zones are of another node by their own word (``zone_pgdat``) or reach beyond
    theirs, which of its ends no zone has, and which zones that lie one after the other by their
    addresses overlap.

    A node grows and shrinks with its zones: ``move_pfn_range_to_zone()`` and
    ``remove_pfn_range_from_zone()`` (mm/memory_hotplug.c), ``calculate_node_totalpages()``
    (mm/mm_init.c; mm/page_alloc.c before v6.4).
    """
    words = []
    for pgdat in online_nodes(prog):
        node = pgdat.node_id.value_()
        first = pgdat.node_start_pfn.value_()
        stop = first + pgdat.node_spanned_pages.value_()
        spans: list[Span] = []
        for zone in pgdat.node_zones:
            start = zone.zone_start_pfn.value_()
            end = start + zone.spanned_pages.value_()
            if start == end:
                continue
            spans.append(Span(zone_name(zone), start, end))
            if zone.zone_pgdat.value_() != pgdat.value_():
                words.append(f"zone {zone_name(zone)} of node {node} says that it is of another")
            if not first <= start < end <= stop:
                words.append(
                    f"zone {zone_name(zone)} of node {node} reaches from PFN {start:#x} to "
                    f"{end:#x}, beyond its node's {first:#x} to {stop:#x}"
                )
        if spans:
            least, most = min(span.start for span in spans), max(span.end for span in spans)
            if first < least or most < stop:
                words.append(
                    f"the zones of node {node} reach from PFN {least:#x} to {most:#x} only, not "
                    f"from {first:#x} to {stop:#x}"
                )
        # Movable may lie among Normal, where memory was added.
        spans = [span for span in spans if span.zone in BY_ADDRESS]
        for lower, upper in itertools.pairwise(spans):
            if upper.start < lower.end:
                words.append(f"zones {lower.zone} and {upper.zone} of node {node} overlap")
    return words


def reserve_beyond(row: Zone, pageblock_pages: int) -> bool:
    """
    True if the HighAtomic reserve is larger than any kernel lets it become: a hundredth of the zone
    (:func:`highatomic_cap_pages`), of which a balloon may have taken pages since.
    """
    most = row.present_pages // 100 + 2 * pageblock_pages
    return (row.highatomic_reserved_pages or 0) > most


def boost_beyond(row: Zone, factor: int, pageblock_pages: int) -> bool:
    """
    True if the boost of the watermarks is more than ``boost_watermark()`` (mm/page_alloc.c) gives.

    :param factor: vm.watermark_boost_factor, in ten-thousandths; the one at boot counts as well.
    """
    boost = row.wmark_boost or 0
    most = (row.wmark_high - boost) * max(factor, DEFAULT_BOOST) // 10_000
    return boost > max(most, pageblock_pages)


def totals_apart(prog: Program, rows: Iterable[Zone]) -> Iterator[str]:
    """
    Words where zones do not add up to what the kernel has of all of them:
    ``adjust_managed_page_count()`` (mm/page_alloc.c) changes both.
    """
    said = prog["_totalram_pages"].counter.value_()
    managed = sum(row.managed_pages for row in rows)
    if said != managed:
        yield f"the zones have {managed:,} managed pages, _totalram_pages is {said:,}"


def lock_held(zone: Object) -> bool | None:
    """
    ``queued_spin_is_locked()`` (include/asm-generic/qspinlock.h) of ``zone.lock``: it is held, or
    queued for. With PREEMPT_RT it is a ``struct rt_mutex_base`` (include/linux/rtmutex.h), whose
    owner has a bit for those that queue. None where it is of another kind: other architectures.
    """
    for member in ("rlock.raw_lock.val.counter", "lock.owner"):
        with contextlib.suppress(AttributeError):
            return bool(functools.reduce(getattr, member.split("."), zone.lock).value_())
    return None


def _unwrapped(watermark: int, boost: int | None) -> int:
    """A watermark with its boost, of which the sum may be more than an unsigned long has."""
    return (int(watermark) - (boost or 0)) % (1 << 64) + (boost or 0)


def _no_queue(prog: Program, word: int) -> bool:
    """True if a queued spinlock's queue ends with no CPU, or with two that are next."""
    most = 8 * sizeof(prog["__cpu_possible_mask"].type_)  # CONFIG_NR_CPUS, rounded up
    cpus = prog["nr_cpu_ids"].value_() if "nr_cpu_ids" in prog else 1
    if most >= 1 << 14:  # the next in line is a bit
        return (word >> 11) - 1 >= cpus
    return (word >> 18) - 1 >= cpus or word >> 8 & 0xFF > 1


def locks_damaged(prog: Program) -> Iterator[str]:
    """
    Words for each zone whose lock has a value that no queued spinlock has: the lowest byte is 0, 1
    or, of a paravirtual one, 3; the next, if it is a byte, 0 or 1 (include/asm-generic/
    qspinlock_types.h, kernel/locking/qspinlock_paravirt.h).
    """
    for node, _, zone in for_each_zone(prog):
        with contextlib.suppress(AttributeError):
            word = zone.lock.rlock.raw_lock.val.counter.value_()
            if word & 0xFF not in (0, 1, 3) or _no_queue(prog, word):
                yield f"the lock of zone {zone_name(zone)} of node {node} is {word:#x}, as none is"


def trylock_free_pages(zone: Object) -> int | None:
    """
    Pages on ``zone.trylock_free_pages`` (7.x), or None where the kernel has no such list.

    :raises FaultError: the list leads out of readable memory.
    :raises ValueError: it has more entries than any kernel leaves there: it loops.
    """
    try:
        head = zone.trylock_free_pages
    except AttributeError:
        return None
    pages = 0
    entries = llist_for_each_entry("struct page", head.first, "pcp_llist")
    for count, page in enumerate(entries):
        if count >= MAX_TRYLOCK_ENTRIES:
            raise ValueError(f"trylock_free_pages of zone {zone_name(zone)} does not end")
        pages += 1 << page.private.value_()
    return pages


@dataclass(frozen=True, slots=True)
class FreeCounters:
    """A zone's own counts of free memory, read together, in pages."""

    nr_free_pages: int  # with the per-CPU differences
    unfolded: int  # the differences alone
    unaccepted: int
    trylock: int | None  # None where the kernel has no such list


def free_counters(prog: Program) -> dict[tuple[int, str], FreeCounters]:
    """
    (node, zone) to what the zone says of its free memory.

    :raises FaultError: a zone or its trylock list cannot be read.
    :raises ValueError: a trylock list loops.
    """
    counters = {}
    for node, _, zone in for_each_zone(prog):
        total, unfolded = zone_page_state(zone, "NR_FREE_PAGES")
        try:
            # "mm: Add support for unaccepted memory" (dcdfdd40fa82, in v6.5)
            unaccepted = zone_page_state(zone, "NR_UNACCEPTED")[0]
        except LookupError:
            unaccepted = 0
        trylock = trylock_free_pages(zone)
        counters[node, zone_name(zone)] = FreeCounters(total, unfolded, unaccepted, trylock)
    return counters


def free_accounting(
    counters: dict[tuple[int, str], FreeCounters],
    free_list_pages: dict[tuple[int, str], int],
    isolate_pages: dict[tuple[int, str], int],
    pcp_pages: dict[tuple[int, str], int] | None,
    *,
    whole: bool = True,
) -> list[FreeAccounting]:
    """
    Hold NR_FREE_PAGES against its parts, zone by zone.

    :param free_list_pages: (node, zone) to pages on its free lists without Isolate.
    :param isolate_pages: (node, zone) to pages on its Isolate lists.
    :param pcp_pages: (node, zone) to pages on its per-CPU lists, None if these were not read.
    :param whole: whether all struct pages were read: else nothing tells what the remainder is.
    """

    def remainder(key: tuple[int, str], said: FreeCounters) -> int | None:
        parts = free_list_pages.get(key, 0) + said.unaccepted
        return said.nr_free_pages - parts if whole else None

    return [
        FreeAccounting(
            *key,
            nr_free_pages=said.nr_free_pages,
            unfolded_pages=said.unfolded,
            free_list_pages=free_list_pages.get(key, 0),
            unaccepted_pages=said.unaccepted,
            remainder_pages=remainder(key, said),
            isolate_pages=isolate_pages.get(key, 0),
            pcp_pages=None if pcp_pages is None else pcp_pages.get(key, 0),
            trylock_pages=said.trylock,
        )
        for key, said in counters.items()
    ]


def read_zoneinfo(text: str) -> list[Zone]:
    """
    The same rows from /proc/zoneinfo.

    Its HighAtomic lines are newer than 6.12; before, the reserve is unknown here. Zones that span
    nothing are left out, as :func:`zones` does.

    :raises ValueError: the text is not /proc/zoneinfo's, or not all of it.
    """
    return [
        Zone(
            node=zone.node,
            zone=zone.zone,
            present_pages=zone.fields["present"],
            managed_pages=zone.fields["managed"],
            spanned_pages=zone.fields["spanned"],
            free_pages=zone.fields["free"],
            wmark_min=zone.fields["min"],
            wmark_low=zone.fields["low"],
            wmark_high=zone.fields["high"],
            wmark_boost=zone.fields.get("boost"),
            highatomic_reserved_pages=zone.fields.get("reserved_highatomic"),
            highatomic_free_pages=zone.fields.get("free_highatomic"),
            highatomic_cap_pages=None,
            start_pfn=zone.fields.get("start_pfn"),
            lock_held=None,
            # Printed of zones with memory alone.
            node_unreclaimable={0: False, 1: True}.get(zone.fields.get("node_unreclaimable", -1)),
            file_pages=zone_file_pages(zone.fields),
        )
        for zone in parse_zoneinfo(text)
        if zone.fields["spanned"]
    ]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("zones")
