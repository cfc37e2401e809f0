# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Watermarks of zones: what the kernel sets them to, and where free memory stands; of table ``zones``.
And the external fragmentation of a zone, of its free blocks by order.

``zone_watermark_ok()`` and ``__setup_per_zone_wmarks()`` (mm/page_alloc.c), and what a higher
``vm.min_free_kbytes`` would do at once.

Cannot know: whether a request succeeds. The allocator adds the zone's lowmem_reserve for requests
that could use a higher zone, and asks for a free block of the order besides. Nor what is free at
another moment; nor what a request may take of free blocks, as all migratetypes count.
"""

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Of what is set: as much again, and so on.
TIMES = (1, 2, 4, 8, 16)
# A hundredth of memory is advised at most: "Setting this too high will OOM your machine instantly"
# (vm.rst). The kernel sets 256 MiB at most (calculate_min_free_kbytes(), mm/page_alloc.c), for THP
# some pageblocks of each zone, never a twentieth (set_recommended_min_free_kbytes(),
# mm/khugepaged.c).
MOST_SHARE = 100
# What a zone needs, without the boost: min, low, high.
Wmarks = tuple[int, int, int]


def usable_pages(row: Mapping[str, Any]) -> int:
    """
    Free pages of a row of table ``zones`` without those held back for HighAtomic requests.

    As ``__zone_watermark_unusable_free()`` does: all of the reserve where its free pages are not
    counted ("mm: page_alloc: keep track of free highatomic", c928807f6f6b, in v6.13).
    """
    counted = row.get("highatomic_free_pages")
    reserved = row.get("highatomic_reserved_pages") or 0
    return max(0, int(row["free_pages"]) - int(reserved if counted is None else counted))


def zone_state(usable: int, minimum: int, low: int, high: int) -> tuple[str, str]:
    """
    The state of a zone's free memory, and how bad that is: between min and high is where kswapd
    keeps a busy machine. Below half of min ``__GFP_HIGH`` requests fail as well
    (``__zone_watermark_ok()``, mm/page_alloc.c).
    """
    if usable < minimum // 2:
        return "below half of min: requests with __GFP_HIGH fail as well", "critical"
    if usable < minimum:
        return "below min: only reserves are left, requests reclaim directly", "warning"
    if usable < low:
        return "below low: kswapd is woken", "notice"
    if usable < high:
        return "between low and high: kswapd goes on until high, if it runs", "ok"
    return "at or above high", "ok"


class ZoneRaised(NamedTuple):
    """One zone after a change. In pages."""

    name: str
    usable: int
    wmarks: Wmarks
    state: str
    state_class: str
    # At least half of its node, or else the largest there: what most requests depend on.
    main: bool


class Raised(NamedTuple):
    """
    All zones with another min_free_kbytes. ``held`` is the sum of min, in pages; MemAvailable, and
    what the dirty limits are a share of, fall by ``taken`` at once: by as much as the high marks
    rise (``calculate_totalreserve_pages()``, mm/page_alloc.c; ``si_mem_available()``,
    mm/show_mem.c; ``global_dirtyable_memory()``, mm/page-writeback.c).
    """

    kbytes: int
    held: int
    zones: list[ZoneRaised]
    taken: int = 0

    @property
    def worst(self) -> ZoneRaised:
        """The main zone that has least above its min."""
        return min(
            (zone for zone in self.zones if zone.main),
            key=lambda zone: zone.usable / max(zone.wmarks[0], 1),
        )


# Whether min_free_kbytes may be raised, from the worst to the best.
ANSWERS = ("unknown", "no", "not now", "hardly", "a little")


class MinFree(NamedTuple):
    """Bounds of min_free_kbytes. ``unknown`` says why they are not known, and nothing else is."""

    unknown: str = ""
    kbytes: int = 0
    bound: int = 0  # beyond which it is not advised
    quiet: int = 0  # up to which every main zone stays above low: kswapd is not even woken
    direct: int = 0  # up to which every main zone stays above min: no request reclaims directly
    raised: tuple[Raised, ...] = ()
    at_most: Raised | None = None  # with as much as bound and quiet allow, where that is more

    @property
    def answer(self) -> str:
        """One of :data:`ANSWERS`."""
        if self.unknown:
            return "unknown"
        if not self.direct:
            return "no"
        if not self.quiet:
            return "not now"
        a_little = self.at_most and self.at_most.kbytes >= 2 * self.kbytes
        return "a little" if a_little else "hardly"


def wmarks_of(
    rows: list[dict[str, Any]], pages_min: int, scale: int, movable: bool
) -> list[Wmarks]:
    """
    The watermarks that the kernel sets: ``__setup_per_zone_wmarks()`` (mm/page_alloc.c).

    :param pages_min: min_free_kbytes in pages. :param scale: vm.watermark_scale_factor.
    :param movable: ZONE_MOVABLE has its share, as before Linux kernel commit "mm: page_alloc: fix
        min_free_kbytes calculation regarding ZONE_MOVABLE"; since then a thousandth of its own.
    """
    apart = [row["zone"] == "HighMem" or (row["zone"] == "Movable" and not movable) for row in rows]
    low = sum(row["managed_pages"] for row, own in zip(rows, apart, strict=True) if not own)
    found = []
    for row, own in zip(rows, apart, strict=True):
        managed = row["managed_pages"]
        part = pages_min * managed // max(low, 1)
        least = min(max(managed // 1024, 32), 128) if own else part
        gap = max(part // 4, managed * scale // 10_000)
        found.append((least, least + gap, least + 2 * gap))
    return found


def min_free(
    zones: Sequence[dict[str, Any]], settings: dict[str, str], page_size: int | None
) -> MinFree:
    """
    The effect of a higher ``vm.min_free_kbytes`` on the zones as they were read.

    The rule is held against the watermarks that were read: where it does not give them, nothing is
    said (memory came or went since they were set, or another kernel has another rule).
    """
    rows = [row for row in zones if row["managed_pages"]]
    try:
        kbytes = int(settings["vm.min_free_kbytes"])
        scale = int(settings["vm.watermark_scale_factor"])
    except (KeyError, ValueError):
        return MinFree("vm.min_free_kbytes and vm.watermark_scale_factor were not both read")
    if page_size is None or page_size < 1024 or not rows or kbytes < 1:
        return MinFree("the page size, or what is set, is not known")
    kib = page_size >> 10
    boosts = [row.get("wmark_boost") or 0 for row in rows]
    read = [
        tuple(row[f"wmark_{mark}"] - boost for mark in ("min", "low", "high"))
        for row, boost in zip(rows, boosts, strict=True)
    ]
    for movable in (False, True):
        if wmarks_of(rows, kbytes // kib, scale, movable) == read:
            break
    else:
        return MinFree("the kernel's rule does not give the watermarks that were read")

    nodes: dict[int, list[int]] = {}
    for row in rows:
        nodes.setdefault(row["node"], []).append(row["managed_pages"])

    def at(wanted: int) -> Raised:
        wmarks = wmarks_of(rows, wanted // kib, scale, movable)
        raised = [
            ZoneRaised(
                f"node {row['node']} {row['zone']}",
                usable_pages(row),
                marks,
                *zone_state(usable_pages(row), *marks),
                row["managed_pages"] >= min(sum(here := nodes[row["node"]]) / 2, max(here)),
            )
            for row, marks in zip(rows, wmarks, strict=True)
        ]
        taken = sum(high for _, _, high in wmarks) - sum(high for _, _, high in read)
        return Raised(wanted, sum(least for least, *_ in wmarks), raised, taken)

    def short(wanted: int, mark: int) -> bool:
        # __zone_watermark_ok(): a request needs more than the mark.
        return any(zone.usable <= zone.wmarks[mark] for zone in at(wanted).zones if zone.main)

    managed = sum(row["managed_pages"] for row in rows) * kib
    choices = range(kbytes, max(managed, kbytes) + 1)

    def most(mark: int) -> int:
        """Up to which every main zone has its mark; 0 where one has it not even now."""
        enough = bisect.bisect(choices, False, key=lambda wanted: short(wanted, mark))
        return choices[enough - 1] if enough else 0

    raised = tuple(at(kbytes * times) for times in TIMES if kbytes * times < managed)
    bound, quiet = max(managed // MOST_SHARE, kbytes), most(1)
    at_most = at(min(quiet, bound)) if min(quiet, bound) > kbytes else None
    return MinFree("", kbytes, bound, quiet, most(0), raised, at_most)


def thp_order(page_size: int | None, machine: str | None = None) -> int | None:
    """
    HPAGE_PMD_ORDER: a PMD maps one page of page table entries of eight bytes; on powerpc 2 MiB.

    :param machine: as ``uname -m`` has it; of pages of 64 KiB it depends on that.
    """
    if page_size is None or page_size < 4096 or page_size & (page_size - 1):
        return None
    shift = page_size.bit_length() - 1
    if shift < 16 or machine:
        return 21 - shift if (machine or "").startswith("ppc64") else shift - 3
    return None


def unusable_free_index(blocks: dict[int, int], order: int) -> float:
    """
    ``unusable_free_index()`` (mm/vmstat.c), with the kernel's own rounding to thousandths.

    The share of free memory that lies in blocks too small for a request of this order. No free
    memory at all counts as all unusable, as it does there.

    :param blocks: free blocks of all migratetypes by order.
    """
    free = sum(number << size for size, number in blocks.items())
    if not free:
        return 1.0
    suitable = sum(number << size - order for size, number in blocks.items() if size >= order)
    return ((free - (suitable << order)) * 1000 // free) / 1000
