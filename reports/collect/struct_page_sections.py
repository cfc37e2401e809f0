# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Sections about what page metadata costs: the vmemmap, hugetlb pools, device pagemaps, all together.
"""

from mmscope.drgn.struct_pages.device_pagemaps import DevicePagemap
from mmscope.drgn.struct_pages.hugetlb import (
    HugetlbCheck,
    HugetlbPool,
    HugetlbSize,
    hugetlb_sizes,
    read_pools,
    read_sizes,
)
from mmscope.drgn.struct_pages.memory_metadata import MetadataPart, WhatIf
from mmscope.drgn.struct_pages.struct_page_cost import StructPageCost
from mmscope.drgn.struct_pages.vmemmap import VmemmapMapping, VmemmapSections, VmemmapZone
from mmscope.drgn.struct_pages.vmemmap_examples import VmemmapExample
from mmscope.reports.collect.reading import Absent, Files, Found, Memory


def vmemmap_from_memory(memory: Memory) -> Found:
    cost = memory.struct_pages
    found = Found(notes=_vmemmap_notes(cost), unreadable_bytes=cost.scan.gaps.bytes)
    scan = cost.scan
    if scan.unmapped_sections:
        memory.disagreement(
            found, f"{scan.unmapped_sections:,} sections have struct pages that nothing maps"
        )
    if scan.stray_entries:
        memory.disagreement(
            found, f"{scan.stray_entries:,} entries map struct pages of sections that are not there"
        )
    found.add("vmemmap_mappings", "Struct pages by mapping", VmemmapMapping, scan.mappings)
    found.add("vmemmap_zones", "Struct pages by zone", VmemmapZone, scan.zones)
    found.add(
        "vmemmap_sections",
        "Sections by mapping, run-length encoded",
        VmemmapSections,
        scan.runs,
    )
    return found.add(
        "vmemmap_examples", "Struct pages of one huge page", VmemmapExample, cost.examples
    )


def vmemmap_from_files(files: Files) -> Found:
    raise Absent("page tables are not in /proc; read the kernel's memory (as root)")


def hugetlb_from_memory(memory: Memory) -> Found:
    sizes = hugetlb_sizes(memory.prog)
    if not sizes:
        raise Absent("the kernel has no hugetlb pools (CONFIG_HUGETLB_PAGE)")
    cost = memory.struct_pages
    rows, checks = cost.pools()
    gaps = cost.huge_pages.gaps.bytes
    found = Found(notes=_vmemmap_notes(cost), unreadable_bytes=gaps + cost.scan.gaps.bytes)
    if gaps:
        found.notes.append(
            f"{gaps:,} bytes of struct pages could not be read: huge pages are missing"
        )
    if checks:
        memory.disagreement(
            found, f"{sum(check.pages for check in checks):,} huge pages differ (hugetlb_checks)"
        )
    found.add("hugetlb_pools", "hugetlb pools by size and node", HugetlbPool, rows)
    found.add("hugetlb_sizes", "hugetlb page sizes", HugetlbSize, sizes)
    return found.add(
        "hugetlb_checks", "Huge pages that the kernel counts otherwise", HugetlbCheck, checks
    )


def hugetlb_from_files(files: Files) -> Found:
    sizes = files.numbers("sys/kernel/mm/hugepages", r"hugepages-(\d+)kB")
    if not sizes:
        raise Absent(f"{files.root / 'sys/kernel/mm/hugepages'} has no page sizes")
    nodes = files.numbers("sys/devices/system/node", r"node(\d+)")
    in_bytes = [size << 10 for size in sizes]
    found = Found(remarks=["which pages HVO optimised is not in /sys; read the kernel's memory"])
    rows = read_pools(files.open, nodes, in_bytes)
    found.add("hugetlb_pools", "hugetlb pools by size and node", HugetlbPool, rows)
    sizes_read = read_sizes(files.open, in_bytes)
    return found.add("hugetlb_sizes", "hugetlb page sizes", HugetlbSize, sizes_read)


def device_pagemaps_from_memory(memory: Memory) -> Found:
    cost = memory.struct_pages
    rows = cost.pagemaps()
    found = Found(notes=_vmemmap_notes(cost), unreadable_bytes=cost.scan.gaps.bytes)
    if cost.more_pagemaps:
        found.notes.append(cost.more_pagemaps)
    return found.add("device_pagemaps", "Device memory with struct pages", DevicePagemap, rows)


def device_pagemaps_from_files(files: Files) -> Found:
    raise Absent("device pagemaps are not in /proc; read the kernel's memory (as root)")


def memory_metadata_from_memory(memory: Memory) -> Found:
    cost = memory.struct_pages
    found = Found(
        notes=_vmemmap_notes(cost), unreadable_bytes=cost.scan.gaps.bytes + cost.origin_gaps
    )
    rows = cost.metadata()
    remainder = [row for row in rows if row.part.startswith("remainder") and row.bytes]
    shared = sum(row.vmemmap_saved_bytes for row in cost.pagemaps())
    for row in remainder:
        if row.bytes == shared and row.counted_in == "nr_memmap_pages":
            found.remarks.append(
                f"{row.counted_in} also has {row.bytes:,} bytes that sharing saved: this kernel "
                "counts a device's struct pages as if they shared nothing"
            )
        else:
            memory.disagreement(found, f"{row.counted_in} has {row.bytes:,} bytes beyond its parts")
    if not any(row.part.startswith("remainder") for row in rows):
        found.remarks.append("this kernel does not count what struct pages take (6.12 and later)")
    if nodes := cost.logged.nodes:
        times = ", ".join(f"node {node} {ms:,} ms" for node, ms in sorted(nodes.items()))
        found.remarks.append(
            f"by the kernel's log, struct pages left for later while it booted took: {times}, by "
            "all CPUs of the node together"
        )
    found.add("memory_about_memory", "Memory about memory", MetadataPart, rows)
    return found.add(
        "memmap_what_if", "Struct pages of a machine of this size", WhatIf, cost.what_if()
    )


def memory_metadata_from_files(files: Files) -> Found:
    raise Absent("the parts are not in /proc; nr_memmap_pages and its like are in vm_counters")


def _vmemmap_notes(cost: StructPageCost) -> list[str]:
    notes = []
    if cost.scan.gaps.bytes:
        notes.append(
            f"{cost.scan.gaps.bytes:,} bytes of page tables and sections could not be read: what "
            "they map is not counted"
        )
    if cost.scan.repeated_tables:
        notes.append(f"{cost.scan.repeated_tables:,} page tables are pointed to twice")
    return notes
