# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The sections of a reading, in the order of the report.

A new section is a function or two beside its kin (``*_sections.py``) and a line here.
"""

from mmscope.drgn.sections import prices
from mmscope.reports.collect.free_sections import (
    accounting_from_files,
    accounting_from_memory,
    free_lists_from_files,
    free_lists_from_memory,
    pageblocks_from_files,
    pageblocks_from_memory,
    pcp_lists_from_files,
    pcp_lists_from_memory,
    settings_from_files,
    settings_from_memory,
    vm_counters_from_files,
    vm_counters_from_memory,
    zones_from_files,
    zones_from_memory,
)
from mmscope.reports.collect.owner_sections import (
    page_owner_from_files,
    page_owner_from_memory,
    slab_caches_from_files,
    slab_caches_from_memory,
    slab_owner_from_files,
    slab_owner_from_memory,
)
from mmscope.reports.collect.page_table_sections import (
    page_tables_from_files,
    page_tables_from_memory,
)
from mmscope.reports.collect.physical_sections import (
    physical_memory_from_files,
    physical_memory_from_memory,
    poisoned_pages_from_files,
    poisoned_pages_from_memory,
)
from mmscope.reports.collect.rmap_sections import (
    anon_vmas_from_files,
    anon_vmas_from_memory,
    file_maps_from_files,
    file_maps_from_memory,
    ksm_from_files,
    ksm_from_memory,
    rmap_cost_from_files,
    rmap_cost_from_memory,
)
from mmscope.reports.collect.struct_page_sections import (
    device_pagemaps_from_files,
    device_pagemaps_from_memory,
    hugetlb_from_files,
    hugetlb_from_memory,
    memory_metadata_from_files,
    memory_metadata_from_memory,
    vmemmap_from_files,
    vmemmap_from_memory,
)

PASS_SECONDS = 600.0

SECTIONS = {
    spec.name: spec
    for spec in (
        Section(
            "zones",
            "Zones and watermarks",
            zones_from_memory,
            zones_from_files,
            reads=(prices.ZONEINFO, prices.PAGETYPEINFO),
        ),
        Section(
            "free_lists",
            "Free lists",
            free_lists_from_memory,
            free_lists_from_files,
            PASS_SECONDS,
            reads=(prices.PAGETYPEINFO, prices.BUDDYINFO),
        ),
        Section(
            "accounting",
            "Free pages, accounted for",
            accounting_from_memory,
            accounting_from_files,
            PASS_SECONDS,
        ),
        Section(
            "pcp_lists",
            "Per-CPU lists",
            pcp_lists_from_memory,
            pcp_lists_from_files,
            PASS_SECONDS,
            reads=(prices.ZONEINFO,),
        ),
        Section(
            "pageblocks",
            "Pageblocks",
            pageblocks_from_memory,
            pageblocks_from_files,
            PASS_SECONDS,
            reads=(prices.PAGETYPEINFO,),
        ),
        Section(
            "page_owner",
            "Owners of pages",
            page_owner_from_memory,
            page_owner_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        Section(
            "slab_caches",
            "Slab caches",
            slab_caches_from_memory,
            slab_caches_from_files,
            PASS_SECONDS,
            reads=(prices.SLABINFO,),
        ),
        Section(
            "slab_owner",
            "Owners of slab objects",
            slab_owner_from_memory,
            slab_owner_from_files,
            PASS_SECONDS,
            reads=(prices.ALLOC_TRACES, prices.SLAB_SETTINGS),
            optional=True,
        ),
        Section(
            "page_tables",
            "Page tables",
            page_tables_from_memory,
            page_tables_from_files,
            PASS_SECONDS,
            reads=(prices.STATUS,),
        ),
        Section(
            "physical_memory",
            "Physical memory and what the kernel does not get",
            physical_memory_from_memory,
            physical_memory_from_files,
            reads=(prices.NAMES, prices.IOMEM, prices.ZONEINFO, prices.MEMINFO, prices.SETTINGS),
        ),
        Section(
            "poisoned_pages",
            "Pages marked as bad",
            poisoned_pages_from_memory,
            poisoned_pages_from_files,
            PASS_SECONDS,
            reads=(prices.MEMINFO, prices.SETTINGS),
            optional=True,
        ),
        Section(
            "vmemmap",
            "Struct pages",
            vmemmap_from_memory,
            vmemmap_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        Section(
            "hugetlb",
            "hugetlb pools and HVO",
            hugetlb_from_memory,
            hugetlb_from_files,
            PASS_SECONDS,
            reads=(prices.SETTINGS,),
            optional=True,
        ),
        Section(
            "device_pagemaps",
            "Device memory",
            device_pagemaps_from_memory,
            device_pagemaps_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        Section(
            "memory_metadata",
            "Memory about memory",
            memory_metadata_from_memory,
            memory_metadata_from_files,
            PASS_SECONDS,
            optional=True,
        ),
        Section(
            "anon_vmas",
            "Reverse maps",
            anon_vmas_from_memory,
            anon_vmas_from_files,
            PASS_SECONDS,
            reads=(prices.MAPS, prices.STATUS, prices.SETTINGS),
        ),
        Section(
            "file_maps",
            "File reverse maps",
            file_maps_from_memory,
            file_maps_from_files,
            PASS_SECONDS,
            reads=(
                prices.MAPS,
                prices.STATUS,
                prices.SETTINGS,
                prices.ZONEINFO,
                prices.MEMINFO,
                prices.NAMES,
            ),
        ),
        Section(
            "ksm",
            "KSM",
            ksm_from_memory,
            ksm_from_files,
            PASS_SECONDS,
            reads=(prices.SETTINGS,),
        ),
        Section(
            "rmap_cost",
            "The cost of reverse map walks",
            rmap_cost_from_memory,
            rmap_cost_from_files,
            PASS_SECONDS,
        ),
        Section(
            "vm_counters",
            "Counters",
            vm_counters_from_memory,
            vm_counters_from_files,
            reads=(prices.VMSTAT,),
        ),
        Section(
            "settings",
            "Settings",
            settings_from_memory,
            settings_from_files,
            reads=(prices.SETTINGS, prices.ZONEINFO),
        ),
    )
}
