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
    place: str  # where the section is declared, for pkgutil.resolve_name()


COMMANDS = (
    SectionCommand(
        "ledger",
        "memory_ledger",
        "where the memory is, page by page",
        None,
        "",
        "mmscope.drgn.ledger.sections:MEMORY_LEDGER_SECTION",
    ),
    SectionCommand(
        "process_memory",
        "process_memory",
        "the memory of processes",
        20,
        "pid",
        "mmscope.drgn.processes.process_memory:PROCESS_MEMORY_SECTION",
    ),
    SectionCommand(
        "zones",
        "zones",
        "zones, watermarks and the HighAtomic reserve",
        None,
        "",
        "mmscope.drgn.free.sections:ZONES_SECTION",
    ),
    SectionCommand(
        "free_lists",
        "free_lists",
        "free blocks by zone, order and free list",
        None,
        "",
        "mmscope.drgn.free.sections:FREE_LISTS_SECTION",
    ),
    SectionCommand(
        "free_accounting",
        "accounting",
        "what NR_FREE_PAGES is made of",
        None,
        "",
        "mmscope.drgn.free.sections:ACCOUNTING_SECTION",
    ),
    SectionCommand(
        "pcp_lists",
        "pcp_lists",
        "free pages on per-CPU lists",
        None,
        "",
        "mmscope.drgn.free.sections:PCP_LISTS_SECTION",
    ),
    SectionCommand(
        "pageblocks",
        "pageblocks",
        "pageblocks by migratetype, and their map",
        None,
        "",
        "mmscope.drgn.free.sections:PAGEBLOCKS_SECTION",
    ),
    SectionCommand(
        "page_owner",
        "page_owner",
        "pages by who allocated them",
        20,
        "",
        "mmscope.drgn.owners.sections:PAGE_OWNER_SECTION",
    ),
    SectionCommand(
        "slab_caches",
        "slab_caches",
        "slab caches by size",
        20,
        "cache",
        "mmscope.drgn.owners.sections:SLAB_CACHES_SECTION",
    ),
    SectionCommand(
        "vmalloc",
        "vmalloc",
        "vmalloc memory by caller",
        20,
        "",
        "mmscope.drgn.ledger.vmalloc_callers:VMALLOC_SECTION",
    ),
    SectionCommand(
        "slab_owner",
        "slab_owner",
        "slab objects by who allocated them",
        20,
        "cache",
        "mmscope.drgn.owners.sections:SLAB_OWNER_SECTION",
    ),
    SectionCommand(
        "page_tables",
        "page_tables",
        "what is in page tables, by process",
        20,
        "pid",
        "mmscope.drgn.page_tables.sections:PAGE_TABLES_SECTION",
    ),
    SectionCommand(
        "physical_memory",
        "physical_memory",
        "memory that the kernel does not get",
        None,
        "",
        "mmscope.drgn.machine.sections:PHYSICAL_MEMORY_SECTION",
    ),
    SectionCommand(
        "poisoned_pages",
        "poisoned_pages",
        "pages marked as bad (PG_hwpoison)",
        None,
        "",
        "mmscope.drgn.machine.sections:POISONED_PAGES_SECTION",
    ),
    SectionCommand(
        "vmemmap",
        "vmemmap",
        "how struct pages are mapped",
        None,
        "",
        "mmscope.drgn.struct_pages.sections:VMEMMAP_SECTION",
    ),
    SectionCommand(
        "hugetlb",
        "hugetlb",
        "hugetlb pools and what HVO saves",
        None,
        "",
        "mmscope.drgn.struct_pages.sections:HUGETLB_SECTION",
    ),
    SectionCommand(
        "device_pagemaps",
        "device_pagemaps",
        "device memory with struct pages",
        None,
        "",
        "mmscope.drgn.struct_pages.sections:DEVICE_PAGEMAPS_SECTION",
    ),
    SectionCommand(
        "memory_metadata",
        "memory_metadata",
        "memory about memory",
        None,
        "",
        "mmscope.drgn.struct_pages.sections:MEMORY_METADATA_SECTION",
    ),
    SectionCommand(
        "anon_vmas",
        "anon_vmas",
        "anon_vmas by their VMAs",
        20,
        "anon_vma",
        "mmscope.drgn.rmap.sections:ANON_VMAS_SECTION",
    ),
    SectionCommand(
        "file_maps",
        "file_maps",
        "mapped files by their VMAs",
        20,
        "address_space",
        "mmscope.drgn.rmap.sections:FILE_MAPS_SECTION",
    ),
    SectionCommand(
        "ksm",
        "ksm",
        "KSM's counters, chains, pages and processes",
        20,
        "",
        "mmscope.drgn.rmap.sections:KSM_SECTION",
    ),
    SectionCommand(
        "rmap_cost",
        "rmap_cost",
        "what reverse map walks visit",
        20,
        "anon_vma",
        "mmscope.drgn.rmap.sections:RMAP_COST_SECTION",
    ),
    SectionCommand(
        "oom_kills",
        "oom_kills",
        "what the OOM killer did, out of the kernel's log",
        20,
        "",
        "mmscope.drgn.log.oom_kills:OOM_KILLS_SECTION",
    ),
    SectionCommand(
        "vm_counters",
        "vm_counters",
        "/proc/vmstat, exact",
        None,
        "name",
        "mmscope.drgn.machine.vm_counters:VM_COUNTERS_SECTION",
    ),
    SectionCommand(
        "mm_settings",
        "settings",
        "watermark, compaction and THP settings",
        None,
        "name",
        "mmscope.drgn.machine.settings:SETTINGS_SECTION",
    ),
    SectionCommand(
        "kernel_log",
        "kernel_log",
        "the kernel's log",
        20,
        "",
        "mmscope.drgn.log.kernel_log:KERNEL_LOG_SECTION",
    ),
)
