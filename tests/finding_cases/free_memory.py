# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about free memory: watermarks, lists, fragmentation, the HighAtomic reserve, THP."""

import dataclasses

from finding_cases.case import LARGE, TARGET, Case
from finding_cases.rows import GIB, RATE, all_orders, event, free, on_lists, zone

from mmscope.drgn.free.free_lists import FreeListCheck, MisplacedBlocks
from mmscope.drgn.free.pageblocks import Pageblocks
from mmscope.drgn.free.zones import FreeAccounting
from mmscope.drgn.machine.physical_memory import PhysicalRange
from mmscope.drgn.machine.settings import Setting
from mmscope.drgn.machine.thp_sizes import ThpSize
from mmscope.drgn.processes.process_memory import ProcessMemory

ACCOUNTING = FreeAccounting(0, "Normal", 200_000, 0, 200_000, 0, 0, 0, 0, None)


def of(pages: int) -> dict[str, int]:
    """The size of a zone."""
    return {"present_pages": pages, "spanned_pages": pages, "managed_pages": pages}


def of_size(kib: int, **counters: int) -> list[ThpSize]:
    return [ThpSize(kib << 10, name, value) for name, value in counters.items()]


STARVED = [
    *[free(order, 0) for order in range(11)],
    free(0, 50_000), free(9, 12, "HighAtomic"), free(10, 2, "HighAtomic"),
    free(9, 1, "Isolate"),
]  # fmt: skip
RESERVED = zone(
    highatomic_reserved_pages=10_240, highatomic_free_pages=8_192, highatomic_cap_pages=10_240
)
HIGHATOMIC = Pageblocks(0, "Normal", "HighAtomic", 20)

# Faults that found no huge page, most of them.
FALLEN = [event("thp_fault_alloc", 21), event("thp_fault_fallback", 340)]

BOUND = ProcessMemory(7, "db", GIB, GIB, 0, 0, 0, 0, 0, 0, GIB, processes=1, threads=1, only_node=0)

FOUND: dict[str, Case] = {
    "below min": Case(
        "below-watermarks", [zone(free_pages=9_999)],
        ["Node 0 zone Normal: 39.06 MiB of free memory are usable, below the min watermark "
         "(39.06 MiB)", "9,999 pages are usable (9,999 free);",
         "min 10,000, low 12,500, high 15,000, without boost", "direct reclaim"], "warning",
    ),
    "free memory that is in CMA": Case(
        "cma-holds-free",
        [zone(free_pages=60_000), event("nr_free_pages", 60_000), event("nr_free_cma", 52_000)],
        ["203.1 MiB of 234.4 MiB free lies in CMA blocks: 31.25 MiB is left for allocations that "
         "are not movable",
         "nr_free_cma 52,000 of nr_free_pages 60,000; the zones' watermarks are min 10,000, low "
         "12,500 pages"], "warning",
    ),
    "free memory that is in CMA for the next kernel": Case(
        "cma-holds-free",
        [zone(free_pages=60_000), event("nr_free_pages", 60_000), event("nr_free_cma", 52_000),
         *(PhysicalRange(f"{n:#x}", f"{n + 1:#x}", 128 << 20, "System RAM",
                         f"System RAM / KHO scratch ({kind})", "kernel", "")
           for n, kind in enumerate(("lowmem", "global")))],
        ["256 MiB of CMA is KHO scratch, for the next kernel."], "warning",
    ),
    "below half of min": Case(
        "below-watermarks", [zone(free_pages=4_999)], ["below half of the min watermark"],
        "critical",
    ),
    "below min, in a zone that the others stand in for": Case(
        "below-watermarks",
        [zone(zone="DMA32", free_pages=4_999, managed_pages=400_000), zone(free_pages=900_000)],
        ["zone DMA32"], "notice",
    ),
    "below min but for the reserve": Case(
        "below-watermarks",
        [zone(free_pages=20_000, highatomic_free_pages=11_000, highatomic_reserved_pages=11_264)],
        ["below the min watermark", "9,000 pages are usable (20,000 free", "11,000 of them"],
        "warning",
    ),
    "below min on a kernel that leaves out the whole reserve": Case(
        "below-watermarks",
        [zone(free_pages=19_000, highatomic_free_pages=None, highatomic_reserved_pages=9_216)],
        ["below the min watermark", "9,784 pages are usable (19,000 free"],
    ),
    "compaction fails": Case(
        "compaction-fails",
        [event("compact_success", 3), event("compact_fail", 1_397), event("compact_stall", 1_400),
         event("compact_migrate_scanned", 92_713), event("compact_isolated", 2_550)],
        ["Direct compaction succeeded in 3 of 1,400 attempts (0.2 %) since boot",
         "compact_success 3, compact_fail 1,397, compact_stall 1,400 in 2.0 h since boot;"
         " 92,713 pages scanned for migration, 2,550 isolated.", "may not be current."],
        "notice",
    ),
    "compaction fails, and the rest is unknown": Case(
        "compaction-fails",
        [event("compact_success", 0), event("compact_fail", 20)],
        ["succeeded in 0 of 20 attempts (0 %)",
         "compact_stall unknown since boot, uptime unknown; unknown pages scanned"],
        target=TARGET | {"uptime_seconds": None},
    ),
    "free memory in pieces": Case(
        "external-fragmentation",
        [*all_orders(o0=100_000, o1=20_000, o3=5_000, o9=10), zone(),
         Setting("vm.extfrag_threshold", "500")],
        ["Node 0 zone Normal: 723.1 MiB free, 97.2 % of it unusable for a huge page",
         "185,120 pages (18.5 % of the zone) are free and hold 10 blocks of order 9: unusable free "
         "space index 0.972 at order 9, below 0.5 up to order 0."],
        "notice", ["fragmentation index is", "outside the HighAtomic reserve"],
    ),
    "free memory in pieces, and what is not is in the reserve": Case(
        "external-fragmentation",
        [*all_orders(o0=100_000, o1=20_000, o3=5_000), free(9, 10, "HighAtomic"), zone(), *FALLEN],
        ["97.2 %", "hold 10 blocks of order 9, 0 of them outside the HighAtomic reserve",
         "94.2 % of THP page faults got no huge page since boot."],
        "warning",
    ),
    "free memory in pieces, that nothing asked for": Case(
        "external-fragmentation", [*all_orders(o0=100_000), zone()], ["100 % of it"], "notice",
        unlike=["THP is off", "got no huge page"],
    ),
    "free memory in pieces, and huge pages are to be had": Case(
        "external-fragmentation",
        [*all_orders(o0=100_000), zone(), event("thp_fault_alloc", 770),
         event("thp_fault_fallback", 230)],
        ["23.0 % of THP page faults got no huge page"], "notice",
    ),
    "free memory in pieces, with THP off": Case(
        "external-fragmentation",
        [*all_orders(o0=100_000), zone(), *FALLEN,
         Setting("transparent_hugepage.enabled", "never")],
        ["THP is off"], "notice",
    ),
    "1.4 % free, and no block of THP size": Case(
        "external-fragmentation", [*all_orders(o0=14_000 << 2), zone(**of(4_000_000)), *FALLEN],
        ["218.8 MiB free, 100 % of it unusable", "(1.4 % of the zone)", "hold 0 blocks"], "warning",
        target=LARGE,
    ),
    "free memory in pieces, with no block at all": Case(
        "external-fragmentation",
        [*all_orders(o0=100_000, o1=20_000), zone(), Setting("vm.extfrag_threshold", "500")],
        ["unusable free space index 1.000 at order 9",
         "The fragmentation index is 0.998: a request of that order would fail for "
         "fragmentation",
         "direct compaction is tried above 0.500"],
    ),
    "free memory in pieces, of unknown migratetypes and threshold": Case(
        "external-fragmentation",
        [*[dataclasses.replace(row, migratetype=None) for row in all_orders(o0=100_000)], zone()],
        ["hold 0 blocks of order 9", "below 0.5 up to order 0"], unlike=["tried above"],
    ),
    "free memory in pieces, with pages of 16 KiB": Case(
        "external-fragmentation", [*all_orders(o0=64 << 11), free(11, 0), zone(), *FALLEN],
        ["Node 0 zone Normal: 2 GiB free, 100 % of it unusable", "hold 0 blocks of order 11"],
        "warning", target=TARGET | {"page_size": 16384},
    ),
    "a free list contradicts where a CPU was inside the lock": Case(
        "free-lists-damaged",
        [FreeListCheck(0, "Normal", 3, "Movable", None, 1, "links lead to no list head"),
         FreeListCheck(0, "Normal", 3, None, 5, 4, "nr_free differs"), zone(lock_held=True)],
        ["2 free lists contradict the struct pages, as an operation that was stopped halfway",
         "zone.lock was held in node 0 Normal: a CPU was stopped inside it."],
        "notice", ["does not explain"],
    ),
    "more than one operation, in a zone whose lock was held": Case(
        "free-lists-damaged",
        [FreeListCheck(0, "Normal", 3, None, 50, 4, "nr_free differs"), zone(lock_held=True)],
        ["1 free list contradicts the struct pages", "which does not explain all of this."],
        "critical", ["stopped halfway"],
    ),
    "one operation, and nobody had the lock": Case(
        "free-lists-damaged",
        [FreeListCheck(0, "Normal", 3, None, 5, 4, "nr_free differs"), zone()],
        ["1 free list contradicts the struct pages"], "critical", ["zone.lock"],
    ),
    "a free list contradicts": Case(
        "free-lists-damaged",
        [FreeListCheck(1, "Normal", 2, "CMA", None, 2, "links lead to no list head"),
         FreeListCheck(0, "DMA", 3, None, 5, 4, "nr_free differs")],
        ["2 free lists contradict the struct pages",
         "First: zone DMA, order 3, all types: nr_free differs. 6 blocks are affected in "
         "all."],
        "critical",
    ),
    "pages that nobody accounts for": Case(
        "free-pages-unaccounted",
        [dataclasses.replace(ACCOUNTING, nr_free_pages=200_512, remainder_pages=512)],
        ["Node 0 zone Normal: NR_FREE_PAGES differs from the free lists by 512 pages",
         "NR_FREE_PAGES 200,512, on free lists 200,000, unaccepted 0: remainder 512 pages (2 MiB)"],
        "notice",
    ),
    "pages that are missing": Case(
        "free-pages-unaccounted",
        [dataclasses.replace(ACCOUNTING, nr_free_pages=199_999, remainder_pages=-1)],
        ["differs from the free lists by -1 page", "remainder -1 pages (-4 KiB)"],
    ),
    "a reserve at its cap": Case(
        "highatomic-reserve-full",
        [RESERVED, free(9, 10, "HighAtomic"), free(0, 1, "Movable")],
        ["the HighAtomic reserve is at its cap and 50.0 % free",
         "10,240 pages (40 MiB) are reserved, the cap is 10,240; 5,120 pages of it are free."],
        "notice",
    ),
    "a reserve whose free blocks took others in": Case(
        "highatomic-reserve-full",
        [RESERVED, free(10, 11, "HighAtomic")],
        ["the HighAtomic reserve is at its cap and its free lists have more pages than it",
         "11,264 pages are on its free lists: older kernels merge its free blocks with free"
         " blocks beside them that are not reserved."],
        "notice",
    ),
    "a reserve that starves THP": Case(
        "highatomic-starves-thp",
        [*STARVED, RESERVED, HIGHATOMIC, free(9, 1), event("thp_fault_alloc", 21),
         event("thp_fault_fallback", 340), event("compact_success", 0), event("compact_fail", 20)],
        ["Node 0 zone Normal: 16 of 17 free blocks of THP size lie in the HighAtomic reserve",
         "20 pageblocks are HighAtomic, 10,240 pages reserved (40 MiB, 1.0 % of the zone;"
         " cap 10,240 pages). 16 blocks of 2 MiB are free in it; THP may use 1 others, though"
         " 200,000 pages (20.0 % of the zone) are free. 340 of 361 THP page faults"
         " (94.2 %) got no huge page in 2.0 h since boot."
         " Direct compaction succeeded in 0 of 20 (0 %)."],
        "warning",
    ),
    "a reserve that leaves THP nothing, and little is known": Case(
        "highatomic-starves-thp",
        [*STARVED, dataclasses.replace(RESERVED, highatomic_cap_pages=None)],
        ["16 of 16 free blocks of THP size", "unknown pageblocks are HighAtomic", "cap unknown",
         "THP may use 0 others"],
        "critical", ["THP faults got", "Direct compaction succeeded"], empty=(Pageblocks,),
    ),
    "a reserve of unknown size": Case(
        "highatomic-starves-thp",
        [*STARVED, dataclasses.replace(RESERVED, highatomic_reserved_pages=None), HIGHATOMIC,
         zone(node=1)],
        ["unknown pages reserved (unknown, unknown of the zone; cap 10,240 pages)"],
    ),
    "a reserve on a machine with 64 KiB pages": Case(
        "highatomic-starves-thp",
        [free(9, 100), free(13, 2, "HighAtomic"), HIGHATOMIC,
         dataclasses.replace(RESERVED, highatomic_reserved_pages=2 << 13)],
        ["2 of 2 free blocks of THP size", "2 blocks of 512 MiB are free in it"], "critical",
        target=TARGET | {"page_size": 65536, "architecture": "aarch64"},
    ),
    "THP falls back": Case(
        "thp-falls-back",
        [event("thp_fault_alloc", 21), event("thp_fault_fallback", 340),
         Setting("transparent_hugepage.enabled", "madvise"),
         Setting("transparent_hugepage.defrag", "defer")],
        ["340 of 361 THP page faults (94.2 %) got no huge page since boot",
         "thp_fault_alloc 21, thp_fault_fallback 340 in 2.0 h since boot;"
         " transparent_hugepage/enabled is madvise, defrag defer.", "may not be current."],
        "notice",
    ),
    "THP falls back, settings unknown": Case(
        "thp-falls-back",
        [event("thp_fault_alloc", 0), event("thp_fault_fallback", 120)],
        ["120 of 120 THP page faults (100 %) got no huge page", "in 2.0 h since boot."],
        unlike=["transparent_hugepage/enabled"],
    ),
    "a size that falls back": Case(
        "thp-sizes-fall-back",
        [*of_size(64, anon_fault_alloc=100, anon_fault_fallback=900, anon_fault_fallback_charge=7,
                  swpout=3, swpout_fallback=40, split=50),
         *of_size(2048, anon_fault_alloc=1, anon_fault_fallback=9_000)],
        ["900 of 1,000 page faults for huge pages of 64 KiB (90.0 %) got none since boot",
         "anon_fault_fallback 900, of which a memory cgroup at its limit refused 7 in 2.0 h",
         "3 were swapped whole, 40 were split for it. 50 were split in all."],
        "notice", unlike=["2,048"],
    ),
    "a size that was never to be had": Case(
        "thp-sizes-fall-back", of_size(16, anon_fault_fallback=900),
        ["900 of 900 page faults for huge pages of 16 KiB (100 %) got none since boot"], "notice",
        unlike=["swap", "refused"],
    ),
    "blocks on another list": Case(
        "misplaced-blocks",
        [MisplacedBlocks(0, "Normal", 0, "HighAtomic", "Movable", 5, 5),
         MisplacedBlocks(0, "Normal", 3, "HighAtomic", "Movable", 2, 16)],
        ["7 free blocks of Movable pageblocks are on HighAtomic lists",
         "21 pages (84 KiB), up to order 3.", "With HighAtomic involved"],
        "notice",
    ),
    "blocks on another list, no reserve involved": Case(
        "misplaced-blocks", [MisplacedBlocks(0, "Normal", 0, "Unmovable", "Movable", 1, 1)],
        ["1 free blocks of Movable pageblocks are on Unmovable lists", "1 pages (4 KiB)"],
        unlike=["With HighAtomic involved"],
    ),
    "572 MiB on lists, and 368 MiB free": Case(
        "pcp-lists-hold-free",
        [*on_lists(146_432), zone(free_pages=94_208, wmark_high=200_000, **of(65_000_000))],
        ["Node 0 zone Normal: 572 MiB are cached on per-CPU lists, and 368 MiB are free in"
         " the zone",
         "146,432 pages (0.2 % of the zone) on the lists of 4 CPUs, most on CPU 0: 143 MiB. "
         "NR_FREE_PAGES is 94,208, the high watermark 200,000 without boost."],
        "warning", target=LARGE,
    ),
    "more on lists than free, and a lower zone has enough": Case(
        "pcp-lists-hold-free",
        [*on_lists(40_000), zone(free_pages=14_000),
         zone(zone="DMA32", free_pages=100_000, start_pfn=4096, **of(400_000))],
        ["156.2 MiB are cached"], "notice",
    ),
    "more on lists than free, and a lower zone keeps what it has": Case(
        "pcp-lists-hold-free",
        [*on_lists(40_000), zone(free_pages=14_000),
         zone(zone="DMA32", free_pages=50_000, start_pfn=4096, **of(400_000))],
        ["156.2 MiB are cached"], "warning",
    ),
    "more on lists than free, in a zone that is not short": Case(
        "pcp-lists-hold-free", [*on_lists(40_000), zone(free_pages=30_000)],
        ["156.2 MiB are cached"],
        "notice",
    ),
    "a node that kswapd gave up": Case(
        "kswapd-gave-up",
        [zone(free_pages=14_000, node_unreclaimable=True),
         zone(zone="DMA", free_pages=0, wmark_min=0, wmark_low=0, wmark_high=0)],
        ["kswapd gave up on node 0: 16 runs in a row reclaimed nothing"], "warning",
    ),
    "a node that kswapd gave up, and it needs nothing": Case(
        "kswapd-gave-up", [zone(node_unreclaimable=True)], ["781.2 MiB of free memory"], "notice",
    ),
    "a node beside one with plenty": Case(
        "nodes-out-of-balance", [zone(free_pages=12_000), zone(node=1, free_pages=400_000)],
        ["Node 0 has 46.88 MiB of free memory left, node 1 has 1.526 GiB",
         "Node 0: 12,000 pages are usable, the low watermarks of its zones are 12,500 in all, min "
         "10,000. Node 1: 400,000 pages are free, 40.0 % of it."],
        "notice",
    ),
    "a node below min beside one with plenty": Case(
        "nodes-out-of-balance", [zone(free_pages=9_000), zone(node=1, free_pages=400_000)],
        ["Node 0 has"], "warning",
    ),
    "a node that is nearly gone, and a process that may use no other": Case(
        "nodes-out-of-balance",
        [zone(free_pages=16_000, file_pages=20_000),
         zone(node=1, free_pages=400_000, file_pages=0), BOUND],
        ["Node 0 has 62.5 MiB of free memory left, node 1 has 1.526 GiB",
         "db (pid 7) may use node 0 alone, and has 1 GiB of memory mapped."],
        "warning",
    ),
}  # fmt: skip

CLEAR: dict[str, Case] = {
    "CMA beside as much as is kept free": Case(
        "cma-holds-free",
        [zone(free_pages=70_000), event("nr_free_pages", 70_000), event("nr_free_cma", 52_000)],
    ),
    "free memory in pieces, of which struct pages are missing": Case(
        "external-fragmentation",
        [*all_orders(o0=100_000), zone(),
         dataclasses.replace(ACCOUNTING, free_list_pages=100_000, remainder_pages=None)],
    ),
    "a reserve with all blocks of THP size, where struct pages are missing": Case(
        "highatomic-starves-thp",
        [*STARVED, RESERVED, HIGHATOMIC,
         dataclasses.replace(ACCOUNTING, free_list_pages=199_000, remainder_pages=None)],
        empty=(Pageblocks,),
    ),
    "in kswapd's band": Case("below-watermarks", [zone(free_pages=10_000)]),
    "below a mark that is boosted": Case(
        "below-watermarks",
        [zone(free_pages=10_000, wmark_boost=512, wmark_min=10_512, wmark_low=13_012)],
    ),
    "a zone without managed pages": Case(
        "below-watermarks", [zone(free_pages=0, managed_pages=0)]
    ),
    "compaction that succeeds": Case(
        "compaction-fails", [event("compact_success", 4), event("compact_fail", 16)]
    ),
    "compaction that was hardly tried": Case(
        "compaction-fails", [event("compact_success", 0), event("compact_fail", 119)]
    ),
    "compaction that fails, and there are rates": Case(
        "compaction-fails", [event("compact_success", 3), event("compact_fail", 1_397), RATE]
    ),
    "compaction that was never tried": Case(
        "compaction-fails", [event("compact_success", 0), event("compact_fail", 0)]
    ),
    "memory in large blocks": Case("external-fragmentation", [*all_orders(o10=200), zone()]),
    "little memory in pieces": Case(
        "external-fragmentation", [*all_orders(o0=39_999), zone(**of(4_000_000))], target=LARGE,
    ),
    "room for few huge pages": Case(
        "external-fragmentation", [*all_orders(o0=(64 << 9) - 1), zone()]
    ),
    "room for few huge pages of 32 MiB": Case(
        "external-fragmentation", [*all_orders(o0=(64 << 11) - 1), free(11, 0), zone()],
        target=TARGET | {"page_size": 16384},
    ),
    "memory in pieces below the high watermark, without boost": Case(
        "external-fragmentation",
        [*all_orders(o0=59_999), zone(wmark_high=61_000, wmark_boost=1_000)],
    ),
    "a small zone in pieces": Case(
        "external-fragmentation",
        [*all_orders(o0=3_000), zone(managed_pages=3_840, free_pages=3_000)],
    ),
    "no free memory": Case("external-fragmentation", [*all_orders(), zone(free_pages=0)]),
    "free lists that agree": Case("free-lists-damaged", [], empty=(FreeListCheck,)),
    "free lists of a kernel that runs": Case(
        "free-lists-damaged", [FreeListCheck(0, "DMA", 3, None, 5, 4, "nr_free differs")],
        target=TARGET | {"kind": "live"},
    ),
    "every page accounted for": Case("free-pages-unaccounted", [ACCOUNTING]),
    "pages of a kernel that runs": Case(
        "free-pages-unaccounted", [dataclasses.replace(ACCOUNTING, remainder_pages=3)],
        target=TARGET | {"kind": "live"},
    ),
    "a reserve below its cap": Case(
        "highatomic-reserve-full",
        [dataclasses.replace(RESERVED, highatomic_reserved_pages=9_728), free(9, 18, "HighAtomic")],
    ),
    "a reserve that is used": Case(
        "highatomic-reserve-full", [RESERVED, free(9, 9, "HighAtomic")]
    ),
    "no cap, no reserve": Case(
        "highatomic-reserve-full",
        [zone(highatomic_cap_pages=0), free(0, 1, "HighAtomic")],
    ),
    "a thousand blocks for THP beside a reserve that has more": Case(
        "highatomic-starves-thp",
        [free(9, 1_000), free(9, 1_100, "HighAtomic"), HIGHATOMIC,
         dataclasses.replace(RESERVED, **of(60_000_000))],
        target=LARGE,
    ),
    "a reserve that has more, and the node's other zone has enough": Case(
        "highatomic-starves-thp", [*STARVED, RESERVED, HIGHATOMIC, zone(zone="DMA32"),
                                   free(9, 4, zone="DMA32")]
    ),
    "a reserve that has all, and nobody uses THP": Case(
        "highatomic-starves-thp",
        [*STARVED, RESERVED, HIGHATOMIC, Setting("transparent_hugepage.enabled", "never")],
    ),
    "as many blocks for THP as in the reserve": Case(
        "highatomic-starves-thp", [*STARVED, free(9, 16), RESERVED, HIGHATOMIC]
    ),
    "small blocks in the reserve": Case(
        "highatomic-starves-thp", [free(8, 100, "HighAtomic"), free(9, 0), RESERVED, HIGHATOMIC]
    ),
    "THP that succeeds": Case(
        "thp-falls-back", [event("thp_fault_alloc", 50), event("thp_fault_fallback", 50)],
    ),
    "THP that was hardly tried": Case(
        "thp-falls-back", [event("thp_fault_alloc", 0), event("thp_fault_fallback", 119)],
    ),
    "THP that falls back, and there are rates": Case(
        "thp-falls-back", [event("thp_fault_alloc", 0), event("thp_fault_fallback", 9_999), RATE]
    ),
    "sizes that succeed, or were hardly tried": Case(
        "thp-sizes-fall-back",
        [*of_size(64, anon_fault_alloc=900, anon_fault_fallback=100),
         *of_size(16, anon_fault_fallback=40)],
    ),
    "no block on another list": Case("misplaced-blocks", [], empty=(MisplacedBlocks,)),
    "lists beside more that is free": Case("pcp-lists-hold-free", [*on_lists(40_000), zone()]),
    "little on lists, and less free": Case(
        "pcp-lists-hold-free", [*on_lists(9_000), zone(free_pages=8_000)]
    ),
    "nodes that kswapd works for": Case("kswapd-gave-up", [zone()]),
    "one node": Case("nodes-out-of-balance", [zone(free_pages=12_000)]),
    "a node whose page cache may go, and a process that may use no other": Case(
        "nodes-out-of-balance",
        [zone(free_pages=16_000, file_pages=200_000),
         zone(node=1, free_pages=400_000, file_pages=0), BOUND],
    ),
    "a node that is nearly gone, and nobody bound to it": Case(
        "nodes-out-of-balance",
        [zone(free_pages=16_000, file_pages=20_000),
         zone(node=1, free_pages=400_000, file_pages=0)],
    ),
    "nodes that are alike": Case(
        "nodes-out-of-balance", [zone(free_pages=12_000), zone(node=1, free_pages=200_000)]
    ),
}  # fmt: skip

NOT_CHECKED: dict[str, Case] = {
    "a kernel that has no CMA": Case(
        "cma-holds-free", [zone(), event("nr_free_pages", 70_000)],
        why_not="vm_counters has no row where name = 'nr_free_cma'",
    ),
    "no zones": Case("below-watermarks", [], why_not="no table zones in this bundle"),
    "no counters": Case("compaction-fails", [], why_not="no table vm_counters in this bundle"),
    "a kernel without compaction": Case(
        "compaction-fails", [event("pgpgin", 1)],
        why_not="vm_counters has no row where name = 'compact_success'",
    ),
    "a kernel that does not count by size": Case(
        "thp-sizes-fall-back", [zone()], why_not="no table thp_sizes in this bundle"
    ),
    "a kernel without THP": Case(
        "thp-falls-back", [event("compact_success", 1)],
        why_not="vm_counters has no row where name = 'thp_fault_alloc'",
    ),
    "counters cut short": Case(
        "thp-falls-back", [event("thp_fault_alloc", 1)],
        why_not="vm_counters has no row where name = 'thp_fault_fallback'",
    ),
    "no free lists": Case(
        "external-fragmentation", [zone()], why_not="no table free_blocks in this bundle",
    ),
    "a machine of unknown page size": Case(
        "external-fragmentation", [*all_orders(o0=100_000), zone()],
        target=TARGET | {"page_size": None}, why_not="target.thp_order is unknown in this bundle",
    ),
    "a machine of unknown page size, written as 0": Case(
        "highatomic-starves-thp", [*STARVED, RESERVED, HIGHATOMIC],
        target=TARGET | {"page_size": 0}, why_not="target.thp_order is unknown in this bundle",
    ),
    "no checks": Case("free-lists-damaged", [], why_not="no table free_list_checks in this bundle"),
    "no accounting": Case(
        "free-pages-unaccounted", [], why_not="no table free_accounting in this bundle"
    ),
    "an unknown cap": Case(
        "highatomic-reserve-full",
        [dataclasses.replace(RESERVED, highatomic_cap_pages=None), free(9, 10, "HighAtomic")],
        why_not="zones.highatomic_cap_pages is unknown in this bundle",
    ),
    "unknown migratetypes": Case(
        "highatomic-starves-thp", [free(9, 10, None), RESERVED, HIGHATOMIC],
        why_not="free_blocks.migratetype is unknown in this bundle",
    ),
    "no misplaced blocks": Case(
        "misplaced-blocks", [], why_not="no table misplaced_blocks in this bundle"
    ),
    "no per-CPU lists": Case(
        "pcp-lists-hold-free", [zone()], why_not="no table pcp_pages in this bundle"
    ),
    "kswapd of an older bundle": Case(
        "kswapd-gave-up", [zone(node_unreclaimable=None)],
        why_not="zones.node_unreclaimable is unknown in this bundle",
    ),
    "no nodes": Case("nodes-out-of-balance", [], why_not="no table zones in this bundle"),
}  # fmt: skip
