# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about physical memory, struct pages and hugetlb pools."""

import dataclasses
from typing import Any

from finding_cases.case import TARGET, Case
from finding_cases.rows import GIB, MIB, huge_size, zone

from mmscope.drgn.machine.physical_memory import PhysicalPart
from mmscope.drgn.machine.poisoned_pages import PoisonCounter, PoisonedPages
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.struct_pages.device_pagemaps import DevicePagemap
from mmscope.drgn.struct_pages.hugetlb import HugetlbPool, HugetlbSize
from mmscope.drgn.struct_pages.memory_metadata import MetadataPart, what_if


def huge(pages: int, optimized: int | None, hosted: int = 0, node: int = 0) -> HugetlbPool:
    """A pool of pages of 2 MiB; 28 KiB can be saved on each."""
    left = pages - (optimized or 0) - hosted
    return HugetlbPool(2 * MIB, node, pages, 0, 0, optimized, hosted, pages * 32 << 10,
                       None if optimized is None else optimized * 28 << 10,
                       None if optimized is None else left * 28 << 10)  # fmt: skip


def parts(page_ext: int, extra: int = 0) -> list[Any]:
    """Memory about the 4 GiB of the target, and what its struct pages would be."""
    total = 4 * GIB

    def part(name: str, size: int, on_device: bool = False) -> MetadataPart:
        return MetadataPart(name, size, 100 * size / total, None, on_device)

    return [
        part("struct page, allocated at boot", 64 * MIB + extra), part("page_ext", page_ext),
        part("struct page, on the device (altmap)", 512 * MIB, True), part("mem_section", 1 * MIB),
        part("remainder of nr_memmap_pages", 900 * MIB), *what_if(total, 12, 64, None),
    ]  # fmt: skip


def pmem(ram: int, reclaimable: int) -> DevicePagemap:
    return DevicePagemap("0x100000000", "0x500000000", "namespace0.0", "FS_DAX", 16 * GIB, 0, False,
                         256 * MIB, ram, 0, 0, reclaimable, 4 << 20, 33.6, 49.9, None,
                         "a pmem disk (fsdax) is used in base pages")  # fmt: skip


def physical(machine: int, **sizes: int) -> list[PhysicalPart]:
    """The machine's memory; what is of the command line has its option."""
    options = {"cut_off": "mem=4G", "marked_as_reserved": "memmap=1G$4G"}
    return [PhysicalPart("machine", machine, 100.0, False, "", ""), *(
        PhysicalPart(name.replace("_", " "), size, 100 * size / machine, True,
                     options.get(name, ""), "")
        for name, size in sizes.items()
    )]  # fmt: skip


def bad(pages: int) -> PoisonCounter:
    return PoisonCounter("HardwareCorrupted", -1, None, pages * 4096)


def pool(pages: int, free_pages: int, reserved: int = 0) -> HugetlbSize:
    return HugetlbSize(2 * MIB, pages, free_pages, reserved, 0, 0, "off", 28 << 10)


FOUND: dict[str, Case] = {
    "more promises taken back than given": Case(
        "hugetlb-reserve-below-zero",
        [dataclasses.replace(huge_size("off"), free_pages=10, reserved_pages=-1)],
        ["The kernel counts -1 reserved hugetlb pages of 2 MiB",
         "Of 1,000 pages in the pool 10 are free.", "as 18446744073709551615."], "notice",
    ),
    "memory that an option cut off": Case(
        "memory-kept", physical(64 * GIB, cut_off=32 * GIB, crash_kernel=GIB),
        ["The page allocator does not get 32 GiB (50.0 %) of the machine's memory",
         "32 GiB of the firmware's RAM are cut off; by the command line: mem=4G."],
        "notice", unlike=["soft", "offline"],
    ),
    "memory in offline blocks, and soft-reserved": Case(
        "memory-kept", physical(64 * GIB, offline=2 * GIB, soft_reserved=2 * GIB),
        ["4 GiB (6.2 %)", "2 GiB are soft-reserved; 2 GiB are in memory blocks that are offline;",
         "by no option"],
        "notice",
    ),
    "a page that went bad": Case(
        "poisoned-pages", [bad(1)], ["1 page is marked as bad", "HardwareCorrupted is 4 KiB."],
        "notice", unlike=["hugetlb page"],
    ),
    "a bad page in an optimised huge page": Case(
        "poisoned-pages",
        [bad(3), PoisonedPages(0, "Normal", "base page", 4096, 1, 1, 0, 4096, 7),
         PoisonedPages(0, "Normal", "hugetlb page, optimised by HVO", 2 * MIB, 1, 2, 0, 2 * MIB,
                       512),
         PoisonedPages(1, "Normal", "hugetlb page", GIB, 1, 0, 1, GIB, 1 << 20)],
        ["3 pages are marked as bad", "node 0 Normal", "node 1 Normal",
         "2 hugetlb pages have bad pages: 1.002 GiB are out of use; 1 of them optimised by HVO.",
         "For 1 of them it is lost which pages are bad:"],
        "warning",
    ),
    "pages that go bad one after the other": Case(
        "poisoned-pages", [bad(64)], ["64 pages"], "warning"
    ),
    "HVO off with a large pool": Case(
        "hvo-off", [huge(1000, 0), huge(1000, 0, node=1), huge_size("off", 2000)],
        ["HVO is off: the struct pages of 2,000 hugetlb pages could give back 54.69 MiB",
         "2,000 huge pages (of 2 MiB) have 62.5 MiB of struct pages; 0 of them are optimised.",
         "54.69 MiB (1.3 % of memory)"],
        "notice",
    ),
    "HVO off with a pool of a terabyte": Case(
        "hvo-off", [huge(500_000, 0), huge_size("off", 500_000)], ["13.35 GiB"], "notice",
        target=TARGET | {"total_pages": 1 << 29},
    ),
    "HVO on, pages left from before, and self-hosted ones": Case(
        "hvo-pages-left", [huge(1000, 100, 300), huge_size("on")],
        ["900 of 1,000 hugetlb pages of 2 MiB are not optimised, though HVO is on: 24.61 MiB",
         "100 pages are optimised.", "600 could be (16.41 MiB):",
         "300 lie in hot-added memory that hosts its own struct pages (8.203 MiB)"],
        "notice",
    ),
    "HVO on, self-hosted pages only": Case(
        "hvo-pages-left", [huge(1000, 0, 1000), huge_size("on")],
        ["1,000 of 1,000", "1,000 lie in hot-added memory"], unlike=["could be ("],
    ),
    "page_owner on every page": Case(
        "metadata-above-share", parts(80 * MIB),
        ["Page metadata takes 3.5 % of memory, 145 MiB; struct pages alone would be 1.6 %",
         "Struct pages take 64 MiB of RAM, page_ext 80 MiB (2.0 % of memory)."],
        "notice",
    ),
    "struct pages of a device in RAM": Case(
        "metadata-above-share", parts(0, 16 * MIB),
        ["takes 2.0 % of memory, 81 MiB", "page_ext 0 B"], "notice",
    ),
    "a pmem disk whose struct pages are in RAM": Case(
        "device-memmap-in-ram", [pmem(256 * MIB, 192 * MIB)],
        ["The struct pages of namespace0.0 take 256 MiB of RAM; shared, they would take 64 MiB",
         "16 GiB of device memory (FS_DAX, from 0x100000000) have 256 MiB of struct pages, 256 MiB "
         "of them in RAM (6.2 % of it). They share no frame: a pmem disk (fsdax) is used in base "
         "pages."],
    ),
    "a pool that nobody uses, and nothing else is free": Case(
        "hugetlb-idle", [pool(1_000, 900, 100), zone(free_pages=30_000)],
        ["hugetlb pools keep 1.562 GiB, 39.1 % of memory, unused",
         "The pools have 1.953 GiB; 1.562 GiB of it (pages of 2 MiB) are free and not reserved. "
         "117.2 MiB are free for everyone else."],
        "warning",
    ),
    "a pool that nobody uses, and page cache": Case(
        "hugetlb-idle",
        [pool(1_000, 900, 100), zone(free_pages=30_000),
         VmCounter("nr_inactive_file", "node", 200_000, 0)],
        ["and 781.2 MiB are page cache and slab that can be reclaimed."], "notice",
    ),
    "a pool of a third that nobody uses, and less than a tenth and 256 MiB is left": Case(
        "hugetlb-idle",
        [pool(1_000, 900, 100), zone(free_pages=30_000),
         VmCounter("nr_inactive_file", "node", 32_000, 0)],
        ["117.2 MiB are free for everyone else, and 125 MiB are page cache and slab"], "warning",
    ),
    "a pool of a third that nobody uses, and as much as 256 MiB is left": Case(
        "hugetlb-idle",
        [pool(1_000, 900, 100), zone(free_pages=30_000),
         VmCounter("nr_inactive_file", "node", 60_000, 0)],
        ["117.2 MiB are free for everyone else, and 234.4 MiB are page cache and slab"], "notice",
    ),
    "pages beyond the pool": Case(
        "hugetlb-surplus", [dataclasses.replace(pool(1_000, 0), surplus_pages=200)],
        ["200 hugetlb pages of 2 MiB are surplus: 400 MiB, 9.8 % of memory", "Of 1,000 pages"],
        "notice",
    ),
    "a page beyond the pool": Case(
        "hugetlb-surplus",
        [dataclasses.replace(pool(1, 0), page_bytes=1 << 30, surplus_pages=1)],
        ["1 hugetlb page of 1 GiB is surplus: 1 GiB", "Of 1 page of this size 1 is beyond"],
    ),
    "a pool that nobody uses": Case(
        "hugetlb-idle", [pool(1_000, 900)], ["keep 1.758 GiB"], "notice", ["everyone else"]
    ),
}  # fmt: skip

CLEAR: dict[str, Case] = {
    "pages that are promised": Case(
        "hugetlb-reserve-below-zero",
        [dataclasses.replace(huge_size("off"), free_pages=10, reserved_pages=10)],
    ),
    "HVO on": Case("hvo-off", [huge(1000, 0), huge_size("on")]),
    "HVO off, and a small pool": Case("hvo-off", [huge(70, 0), huge_size("off")]),
    "HVO off, and no pool": Case("hvo-off", [huge_size("off")], empty=(HugetlbPool,)),
    "a kernel without HVO": Case(
        "hvo-off",
        [huge(1000, 0), huge_size("struct page has 72 bytes, no power of two: HVO cannot")],
    ),
    "all pages optimised": Case("hvo-pages-left", [huge(1000, 1000), huge_size("on")]),
    "a few pages left": Case("hvo-pages-left", [huge(1000, 930), huge_size("on")]),
    "the usual share": Case("metadata-above-share", parts(8 * MIB)),
    "struct pages on the device": Case("device-memmap-in-ram", [pmem(0, 0)]),
    "memory that is meant to be a device's, or a crash kernel's": Case(
        "memory-kept", physical(64 * GIB, persistent_memory=32 * GIB, crash_kernel=GIB,
                                early_allocations=4 * GIB),
    ),
    "a page that the kernel marked as reserved": Case(
        "memory-kept", physical(GIB, marked_as_reserved=4096)
    ),
    "no bad page": Case("poisoned-pages", [bad(0)]),
    "no surplus": Case("hugetlb-surplus", [pool(1_000, 300, 150)]),
    "a pool that is used": Case("hugetlb-idle", [pool(1_000, 300, 150), zone()]),
}  # fmt: skip

NOT_CHECKED: dict[str, Case] = {
    "no promises": Case(
        "hugetlb-reserve-below-zero", [], why_not="no table hugetlb_sizes in this bundle"
    ),
    "addresses that only root sees": Case(
        "memory-kept", [], why_not="no table physical_memory_parts in this bundle",
    ),
    "a kernel that marks no pages": Case(
        "poisoned-pages", [], why_not="no table poison_counters in this bundle",
    ),
    "pools of text files": Case(
        "hvo-off", [huge(1000, None), huge_size("off")],
        why_not="hugetlb_pools.vmemmap_reclaimable_bytes is unknown in this bundle",
    ),
    "pools of text files, with HVO on": Case(
        "hvo-pages-left", [huge(1000, None), huge_size("on")],
        why_not="hugetlb_pools.optimized_pages is unknown in this bundle",
    ),
    "no metadata": Case(
        "metadata-above-share", [], why_not="no table memory_about_memory in this bundle",
    ),
    "no devices": Case(
        "device-memmap-in-ram", [], why_not="no table device_pagemaps in this bundle",
    ),
    "no pools, and no surplus": Case(
        "hugetlb-surplus", [], why_not="no table hugetlb_sizes in this bundle"
    ),
    "no pools": Case("hugetlb-idle", [], why_not="no table hugetlb_sizes in this bundle"),
}  # fmt: skip
