# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about who allocated the memory: page_owner, slab caches, alloc tags."""

import dataclasses

from finding_cases.case import TARGET, Case
from finding_cases.rows import ledger, of_line, owned, slab

from mmscope.drgn.owners.alloc_tags import AllocTag
from mmscope.drgn.owners.page_owner_rows import PageOwnerGrowth, PageOwnerSnapshot
from mmscope.drgn.owners.slab_caches import SlabCache
from mmscope.drgn.owners.slab_owner import SlabOwnerStack


def grown(handle: int, first: int, last: int, steadiness: float, rises: int) -> PageOwnerGrowth:
    """How a stack grew over five snapshots, 10 s apart."""
    return PageOwnerGrowth(
        handle, 0.0, 5, 0, first, last, first, last, last - first, (last - first) / 40, steadiness,
        rises,
    )  # fmt: skip


SNAPSHOTS = [
    PageOwnerSnapshot(10.0 * n, None, f"s{n}", "show_handles", 2, 5000, 0, False, "interval")
    for n in range(5)
]
CACHE = SlabCache("dentry", 9_000_000, 192, 192, 9_100_000, 433_334, 433_334, False)

# A cache that no reclaim gives back, of a tenth of a million pages.
LEAK = SlabCache("kmalloc-1k", 400_000, 1024, 1024, 400_000, 12_500, 140_000, False)


def track(stack: str, objects: int) -> SlabOwnerStack:
    return SlabOwnerStack("kmalloc-1k", None, stack, objects, None, None)


FOUND: dict[str, Case] = {
    "one cache that takes an eighth": Case(
        "slab-cache-large", [LEAK, CACHE],
        ["Slab cache kmalloc-1k takes 546.9 MiB, 13.4 % of memory", "400,000 objects of 1,024"],
        "warning", unlike=["Functions"],
    ),
    "one cache, and who allocated its objects": Case(
        "slab-cache-large",
        [LEAK, *slab(0, 150_000), track("main;do_it;gpu_alloc;__kmalloc_noprof", 9_000),
         track("kthread;gpu_alloc;kmalloc_trace", 500), track("x;other", 4)],
        ["Functions that allocated the most: gpu_alloc: 9500 objects, other: 4 objects."],
    ),
    "31 GiB in one cache of 512 GiB": Case(
        "slab-cache-large",
        [dataclasses.replace(LEAK, pages=31 << 18)], ["31 GiB, 6.1 % of memory"], "warning",
        target=TARGET | {"total_pages": 512 << 18},
    ),
    "44 GiB in one cache of slabinfo alone": Case(
        "slab-cache-large",
        [dataclasses.replace(LEAK, slots=44 << 20)],
        ["Slab cache kmalloc-1k takes at least 44 GiB", "How much memory the machine has is not"],
        "warning", unlike=["% of memory"], target=TARGET | {"total_pages": None, "page_size": None},
    ),
    "a stack that only grows": Case(
        "page-owner-stack-grows",
        [owned(7, 1100), grown(7, 100, 1100, 1.0, 4), *SNAPSHOTS],
        ["xfs_buf_alloc [xfs]: pages grow steadily, +3.906 MiB in 5 snapshots",
         "100 pages in the first snapshot, 1,100 in the last, never fewer, more in 4 of 4 "
         "steps: 100 KiB a second over 40 s. Stack: xfs_buf_alloc <- r"],
        "warning",
    ),
    "a stack that only grows, to a tenth of memory": Case(
        "page-owner-stack-grows", [owned(7, 104_858), grown(7, 100, 104_858, 1.0, 4), *SNAPSHOTS],
        ["xfs_buf_alloc [xfs]: pages grow steadily, +409.2 MiB"], "critical",
    ),
    "page cache that fills": Case(
        "page-owner-stack-grows",
        [owned(7, 900_000, "filemap_add_folio"), grown(7, 100, 900_000, 1.0, 4), *SNAPSHOTS],
        ["filemap_add_folio [xfs]: pages grow steadily,"], "notice",
    ),
    "a handle that only grows, without a stack": Case(
        "page-owner-stack-grows",
        [owned(7, 1100, None), dataclasses.replace(grown(7, 100, 1100, 1.0, 2), slope=None),
         *SNAPSHOTS],
        ["Handle 7: pages grow steadily,", "more in 2 of 4 steps."], unlike=["a second", "Stack:"],
    ),
    "a stack that took the growth": Case(
        "page-owner-took-growth",
        [owned(7, 2100), owned(8, 1000), grown(7, 100, 2100, 0.8, 3), grown(8, 500, 1000, 1.0, 1),
         *SNAPSHOTS],
        ["xfs_buf_alloc [xfs] took 80.0 % of the growth",
         "2,000 pages (7.812 MiB) of the 2,500 that 2 stacks gained between the first and the last "
         "of 5 snapshots; 100 before, 2,100 after."],
        "notice",
    ),
    "an owner of much": Case(
        "page-owner-large-owner", [owned(7, 100_000), owned(8, 100_000), owned(9, 5, "iomap_x")],
        ["xfs_buf_alloc [xfs] holds 19.1 % of memory",
         "200,000 pages (781.2 MiB) of 1,048,576, by 2 stacks"],
        "notice",
    ),
    "slab that nobody can reclaim": Case(
        "slab-large", [*slab(20_000, 300_000), CACHE],
        ["Slab takes 1.221 GiB, 30.5 % of memory; 1.144 GiB of it cannot be reclaimed",
         "nr_slab_unreclaimable 300,000 pages (28.6 % of memory), nr_slab_reclaimable 20,000 pages",
         "The largest cache is dentry: 1.653 GiB, 9,000,000 of 9,100,000 objects in use, "
         "192 bytes"],
        "critical",
    ),
    "slab at half of memory": Case(
        "slab-large", slab(500_000, 30_000), ["50.5 % of memory"], "warning",
        ["The largest cache"],
    ),
    "slab of a file server": Case("slab-large", slab(300_000, 30_000), ["31.5 %"], "notice"),
    "an eighth of memory that nobody can reclaim": Case(
        "slab-large", slab(0, 131_072), ["12.5 % of memory"], "warning"
    ),
    "a leak at one line of a module": Case(
        "alloc-tag-large",
        [*ledger(100_000), of_line(70_000), of_line(20_000, part="single pages"),
         of_line(40_000, line=9), AllocTag("gpu", "drivers/a.c", 7, "fill", 1, 333, 0, True)],
        ["drivers/a.c:7 (fill [gpu]) holds 351.6 MiB, 9.0 % of memory",
         "90,000 pages allocated by this line are in use, in 333 allocations.",
         "Most are unexplained, compound pages, in the ledger."],
        "warning",
    ),
    "a leak of a quarter of memory": Case(
        "alloc-tag-large", [*ledger(250_000), of_line(250_000, module="")],
        ["drivers/a.c:7 (fill) holds 976.6 MiB, 25.0 % of memory"], "critical",
        ["allocations."],
    ),
    "a module's vmalloc memory": Case(
        "alloc-tag-large", [*ledger(0), of_line(90_000, "vmalloc")], ["9.0 % of memory"], "notice"
    ),
}  # fmt: skip

CLEAR: dict[str, Case] = {
    "a small cache, and one of dentries": Case(
        "slab-cache-large", [CACHE, dataclasses.replace(LEAK, pages=20_000)]
    ),
    "7 GiB in one cache of slabinfo alone": Case(
        "slab-cache-large", [dataclasses.replace(LEAK, slots=7 << 20)],
        target=TARGET | {"total_pages": None, "page_size": None},
    ),
    "a cache that all slab has": Case("slab-cache-large", [LEAK, *slab(0, 150_000)]),
    "a cache that has more than all unreclaimable slab": Case(
        "slab-cache-large", [LEAK, *slab(200_000, 10_000)]
    ),
    "a stack that fell once": Case(
        "page-owner-stack-grows", [owned(7, 1100), grown(7, 100, 1100, 0.75, 3), *SNAPSHOTS]
    ),
    "a stack that grew in one step": Case(
        "page-owner-stack-grows", [owned(7, 1100), grown(7, 100, 1100, 1.0, 1), *SNAPSHOTS]
    ),
    "a stack that grew a little": Case(
        "page-owner-stack-grows", [owned(7, 355), grown(7, 100, 355, 1.0, 4), *SNAPSHOTS]
    ),
    "growth in too few snapshots": Case(
        "page-owner-stack-grows", [owned(7, 1100), grown(7, 100, 1100, 1.0, 3), *SNAPSHOTS[:4]]
    ),
    "growth that two share": Case(
        "page-owner-took-growth",
        [owned(7, 2100), owned(8, 2100), grown(7, 100, 2100, 1.0, 1), grown(8, 100, 2100, 1.0, 1),
         *SNAPSHOTS],
    ),
    "growth of a little": Case(
        "page-owner-took-growth", [owned(7, 1123), grown(7, 100, 1123, 1.0, 1), *SNAPSHOTS]
    ),
    "an owner of less than a tenth": Case("page-owner-large-owner", [owned(7, 104_857)]),
    "page cache and anonymous memory": Case(
        "page-owner-large-owner",
        [owned(n, 150_000, name) for n, name in enumerate(
            ("page_cache_ra_unbounded", "do_anonymous_page", "shmem_alloc_folio",
             "__filemap_get_folio_mpol"))],
    ),
    "slab as it is": Case("slab-large", [*slab(200_000, 50_000), CACHE]),
    "lines of source as they are": Case(
        "alloc-tag-large",
        [*ledger(49_000), of_line(49_000), of_line(500_000, "compressed"),
         of_line(300_000, "vmalloc", function="alloc_large_system_hash"),
         of_line(90_000, file="(no tag)", line=0)],
    ),
}  # fmt: skip

NOT_CHECKED: dict[str, Case] = {
    "caches that were not read": Case(
        "slab-cache-large", [], why_not="no table slab_caches in this bundle"
    ),
    "one snapshot": Case(
        "page-owner-stack-grows", [owned(7, 1)],
        why_not="no table page_owner_growth in this bundle",
    ),
    "one snapshot, and whose growth": Case(
        "page-owner-took-growth", [owned(7, 1)],
        why_not="no table page_owner_growth in this bundle",
    ),
    "a machine of unknown memory": Case(
        "page-owner-large-owner", [owned(7, 900_000)], target=TARGET | {"total_pages": None},
        why_not="target.total_pages is unknown in this bundle",
    ),
    "handles that nothing resolves": Case(
        "page-owner-large-owner", [owned(7, 900_000, None)],
        why_not="page_owner_stacks.owner is unknown in this bundle",
    ),
    "slab without counters": Case(
        "slab-large", [], why_not="no table vm_counters in this bundle"
    ),
    "no line of source is known": Case(
        "alloc-tag-large", ledger(9), why_not="no table ledger_tags in this bundle"
    ),
}  # fmt: skip
