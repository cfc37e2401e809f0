# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sections as commands of drgn. Made by ``make docs``: not to be edited."""

from typing import NamedTuple


class SectionCommand(NamedTuple):
    """A command of drgn, and the section that it prints."""

    name: str
    section: str
    description: str
    top: int | None  # rows of a table, by default; None: all
    picks: str  # the column that an argument picks rows by


COMMANDS = (
    SectionCommand("zones", "zones", "zones, watermarks and the HighAtomic reserve", None, ""),
    SectionCommand(
        "free_lists", "free_lists", "free blocks by zone, order and free list", None, ""
    ),
    SectionCommand("free_accounting", "accounting", "what NR_FREE_PAGES is made of", None, ""),
    SectionCommand("pcp_lists", "pcp_lists", "free pages on per-CPU lists", None, ""),
    SectionCommand(
        "pageblocks", "pageblocks", "pageblocks by migratetype, and their map", None, ""
    ),
    SectionCommand("page_owner", "page_owner", "pages by who allocated them", 20, ""),
    SectionCommand("slab_caches", "slab_caches", "slab caches by size", 20, "cache"),
    SectionCommand("slab_owner", "slab_owner", "slab objects by who allocated them", 20, "cache"),
    SectionCommand("page_tables", "page_tables", "what is in page tables, by process", 20, "pid"),
    SectionCommand(
        "physical_memory", "physical_memory", "memory that the kernel does not get", None, ""
    ),
    SectionCommand(
        "poisoned_pages", "poisoned_pages", "pages marked as bad (PG_hwpoison)", None, ""
    ),
    SectionCommand("vmemmap", "vmemmap", "how struct pages are mapped", None, ""),
    SectionCommand("hugetlb", "hugetlb", "hugetlb pools and what HVO saves", None, ""),
    SectionCommand(
        "device_pagemaps", "device_pagemaps", "device memory with struct pages", None, ""
    ),
    SectionCommand("memory_metadata", "memory_metadata", "memory about memory", None, ""),
    SectionCommand("anon_vmas", "anon_vmas", "anon_vmas by their VMAs", 20, "anon_vma"),
    SectionCommand("file_maps", "file_maps", "mapped files by their VMAs", 20, "address_space"),
    SectionCommand("ksm", "ksm", "KSM's counters, chains, pages and processes", 20, ""),
    SectionCommand("rmap_cost", "rmap_cost", "what reverse map walks visit", 20, "anon_vma"),
    SectionCommand(
        "oom_kills", "oom_kills", "what the OOM killer did, out of the kernel's log", 20, ""
    ),
    SectionCommand("vm_counters", "vm_counters", "/proc/vmstat, exact", None, "name"),
    SectionCommand(
        "mm_settings", "settings", "watermark, compaction and THP settings", None, "name"
    ),
    SectionCommand("kernel_log", "kernel_log", "the kernel's log", 20, ""),
)
