# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of /proc of a machine of 8 GB with 3.10, most of whose memory is in no counter."""

MEMINFO = {
    **{"MemTotal": 8_000_000, "MemFree": 840_000, "Buffers": 0, "Cached": 1_240_000, "Shmem": 0},
    **{"AnonPages": 328_000, "SReclaimable": 96_000, "SUnreclaim": 104_000, "PageTables": 7_600},
    **{"VmallocUsed": 0, "Hugepagesize": 2048, "Hugetlb": 0},
}
PAGES = 2_000_000
# As 3.10 prints them: every counter is a zone's, and the NUMA counters stand among them.
OLD = """\
nr_free_pages 210000
nr_alloc_batch 4158
nr_inactive_anon 1000
nr_anon_pages 82000
nr_mapped 1000
nr_file_pages 310000
nr_dirtied 7
nr_slab_reclaimable 24000
nr_slab_unreclaimable 26000
nr_page_table_pages 1900
nr_kernel_stack 228
numa_hit 1
numa_other 0
workingset_refault 0
nr_anon_transparent_hugepages 0
nr_free_cma 0
nr_dirty_threshold 1000
nr_dirty_background_threshold 500
pgpgin 1
pgalloc_normal 1
"""
ZONE = f"""\
Node 0, zone   Normal
  pages free     210000
        min      1000
        low      1250
        high     1500
        scanned  0
        spanned  {PAGES}
        present  {PAGES}
        managed  {PAGES}
    nr_free_pages 210000
        protection: (0, 0, 0, 0)
  pagesets
    cpu: 0
              count: 10
              high:  378
              batch: 63
  vm stats threshold: 10
  all_unreclaimable: 0
  start_pfn:         256
  inactive_ratio:    1
"""


def meminfo(**changed: int) -> str:
    lines = [f"{name}: {kib:>14} kB\n" for name, kib in (MEMINFO | changed).items()]
    counts = [f"HugePages_{what}:       0\n" for what in ("Total", "Free", "Rsvd", "Surp")]
    return "".join(lines + counts)
