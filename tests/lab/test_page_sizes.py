# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Huge pages of every size that a kernel has, some of them several contiguous entries of a page table,
and the kernel's own page tables: against what the kernel printed, drgn's walk, and how they were
made (guest/workload_sizes.c).
"""

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
import seen
from conftest import KERNELS, StructPagesLab, struct_pages_lab
from drgn.helpers.linux.mm import follow_phys
from drgn.helpers.linux.pid import for_each_task
from kernel_image import out_of_direct_map

from mmscope.drgn.page_tables.page_table_entries import new_walk, process_roots, walk_page_tables
from mmscope.drgn.page_tables.page_table_scan import PageTableScan, scan_page_tables
from mmscope.drgn.page_tables.page_tables import page_table_regions, page_tables, read_status
from mmscope.drgn.page_tables.swap_types import PAGE, SPECIAL, entry_kinds, swap_kinds
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.struct_pages.hugetlb import hugetlb_sizes
from mmscope.reports.collect.run_section import run_section

pytestmark = [pytest.mark.any_page, pytest.mark.any_config, pytest.mark.brief]

# By the size of a base page; 1 GiB finds no room in the lab's machine.
SIZES = {
    "amd64": {4096: [2 << 20]},
    "arm64": {4096: [64 << 10, 2 << 20, 32 << 20], 16384: [2 << 20, 32 << 20], 65536: [2 << 20]},
    "ppc64el": {4096: [2 << 20], 65536: [2 << 20]},
}
IN_POOL = 2
# Of stock kernels, that nobody asked to remember owners; for clouds some have no memory failures.
NOT_BUILT_IN = {"page_owner", "alloc_tags", "slab_owner", "poisoned_pages"}


@pytest.fixture(scope="module", params=KERNELS)
def sizes_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> StructPagesLab:
    """The ``sizes`` workload on a kernel."""
    return struct_pages_lab(request.param, "sizes", say)


@pytest.fixture(scope="module")
def scan(sizes_lab: StructPagesLab) -> PageTableScan:
    return scan_page_tables(sizes_lab.prog)


@pytest.fixture(scope="module")
def sizes(sizes_lab: StructPagesLab) -> list[int]:
    return SIZES[sizes_lab.capture.architecture.name][sizes_lab.prog["PAGE_SIZE"].value_()]


def test_every_section_can_be_read(sizes_lab: StructPagesLab) -> None:
    memory = Memory(sizes_lab.prog)
    status = {name: run_section(spec, memory)[0] for name, spec in SECTIONS.items()}
    # What docs/kernels.md says of this kernel, if it has been read for that: seen.py.
    if committed := json.loads(seen.SEEN.read_text()).get(sizes_lab.capture.kernel):
        known = committed["sections"]  # without a section that came since: `make seen` adds it
        assert {name: seen.status(s) for name, s in status.items() if name in known} == known
    wrong = {name: (s.status, s.message) for name, s in status.items() if s.status != "ok"}
    if sizes_lab.capture.kernel == "small":
        assert wrong.pop("swap")[0] == "absent"
    if not sizes_lab.prog.symbols("psi_system"):  # lean.config
        assert wrong.pop("memory_pressure")[0] == "absent"
    if not sizes_lab.prog.symbols("mthp_stats"):  # before v6.10
        assert wrong.pop("thp_sizes")[0] == "absent"
    assert wrong.keys() <= NOT_BUILT_IN, wrong
    assert {wrong[name][0] for name in wrong} == {"absent"}


def test_pages_of_every_size_are_in_page_tables(
    sizes_lab: StructPagesLab, scan: PageTableScan, sizes: list[int]
) -> None:
    rows = {row.pid: row for row in page_tables(scan)}
    console = sizes_lab.capture.console.read_text(errors="replace")
    made = sorted(map(int, re.findall(r"\] sizes: (\d+) 0x", console)))
    assert made == sizes
    mapped = []
    for path in sizes_lab.capture.truth_b.glob("proc/[0-9]*/status"):
        row = rows[int(path.parent.name)]
        printed = read_status(path.read_text())
        assert printed is not None and row.unaccounted_tables == 0
        # Printed in whole KiB; powerpc has tables of 256 bytes.
        assert (row.pgtables_bytes >> 10 << 10, row.hugetlb_bytes) == (
            printed.pgtables_bytes,
            printed.hugetlb_bytes,
        )
        smaps = path.with_name("smaps").read_text()
        assert row.resident_bytes == 1024 * sum(map(int, re.findall(r"\nRss: +(\d+) kB", smaps)))
        mapped.append(row.hugetlb_bytes)
        here = [region for region in page_table_regions(scan) if region.pid == row.pid]
        assert sum(region.hugetlb_bytes for region in here) == row.hugetlb_bytes
        assert sum(region.small_bytes + region.huge_bytes for region in here) == row.resident_bytes
    assert sorted(filter(None, mapped)) == sizes


def test_pages_are_where_drgn_finds_them(sizes_lab: StructPagesLab, scan: PageTableScan) -> None:
    """Each page of each process, small and huge."""
    prog, form, kinds = sizes_lab.prog, scan.form, swap_kinds(sizes_lab.prog)
    for task in for_each_task(prog):
        if not task.mm or task.pid != task.tgid:
            continue
        roots, seen = process_roots(prog, np.array([task.mm.pgd.value_()], np.uint64)), 0
        for chunk in walk_page_tables(prog, form, roots, new_walk(form, 1)):
            entries = chunk.entries.ravel()[chunk.places]
            if chunk.level == form.last:
                nowhere = np.zeros(0, np.uint64)
                leaves = np.isin(entry_kinds(form, kinds, nowhere, entries), (PAGE, SPECIAL))
            else:
                leaves = form.is_leaf(entries, chunk.level)
            rows, slots = np.divmod(chunk.places[leaves], chunk.slots)
            addresses = chunk.slot_addresses(form.levels[chunk.level].shift, rows, slots)
            for address, physical in zip(addresses, form.physical(entries[leaves]), strict=True):
                ours = int(physical) >> form.page_shift << form.page_shift
                assert follow_phys(task.mm, int(address)).value_() == ours
                seen += 1
        assert seen > 20


def test_pools_are_those_of_sysfs(sizes_lab: StructPagesLab, sizes: list[int]) -> None:
    rows, checks = sizes_lab.cost.pools()
    assert not checks
    for size in sizes:
        of_size = [row for row in rows if row.page_bytes == size]
        assert sum(row.pages for row in of_size) == IN_POOL
        assert sum(row.free_pages or 0 for row in of_size) == IN_POOL - 1
        assert all(row.vmemmap_saved_bytes == 0 or row.optimized_pages for row in of_size)
    folder = sizes_lab.capture.truth_b / "sys/kernel/mm/hugepages"
    for row in hugetlb_sizes(sizes_lab.prog):
        files = folder / f"hugepages-{row.page_bytes >> 10}kB"
        said = [int((files / name).read_text()) for name in ("nr_hugepages", "free_hugepages")]
        assert [row.pages, row.free_pages] == said


def test_what_could_be_saved_is_what_this_architecture_can(sizes_lab: StructPagesLab) -> None:
    """On arm64 and powerpc none that are known; see shares_struct_pages()."""
    schemes = [row for row in sizes_lab.cost.what_if() if row.kept_pages]
    assert bool(schemes) is (sizes_lab.capture.architecture.name == "amd64")


def test_struct_pages_lie_where_drgn_finds_them(sizes_lab: StructPagesLab) -> None:
    scan, prog = sizes_lab.cost.scan, sizes_lab.prog
    where, init_mm = scan.memmap, prog["init_mm"].address_of_()
    page = 1 << where.page_shift
    frames = {
        follow_phys(init_mm, where.base + offset).value_() >> where.page_shift
        for number in where.sections.numbers.tolist()
        for offset in range(number * where.section_bytes, (number + 1) * where.section_bytes, page)
    }
    # Where a section's struct pages are less than what a PMD maps, the rest of it is there, too.
    more = sum(row.distinct_frames for row in scan.mappings) - len(frames)
    assert more == 0 or 0 < more * page < 2 << 20 > where.section_bytes
    assert sum(row.bytes for row in scan.mappings) >= len(frames) * page
    assert (scan.unmapped_sections, scan.stray, scan.gaps.bytes) == (0, 0, 0)


def test_the_ledger_adds_up_to_the_present_pages(
    sizes_lab: StructPagesLab, sizes: list[int]
) -> None:
    prog = sizes_lab.prog
    section, tables = run_section(SECTIONS["memory_ledger"], Memory(prog))
    assert section.status == "ok", section.message
    rows = tables.by_name["memory_ledger"]
    zoneinfo = sizes_lab.said("proc/zoneinfo")
    present = sum(map(int, re.findall(r"^ +present +(\d+)$", zoneinfo, re.MULTILINE)))
    # Some are in no zone: the first page of x86.
    assert sum(row.pages for row in rows if row.zone) == present
    page = prog["PAGE_SIZE"].value_()
    hugetlb = [row for row in rows if row.owner == "hugetlb"]
    assert sum(row.pages for row in hugetlb) * page == IN_POOL * sum(sizes)


def test_the_direct_map_has_all_memory_that_the_kernel_may_reach(
    sizes_lab: StructPagesLab,
) -> None:
    section, tables = run_section(SECTIONS["physical_memory"], Memory(sizes_lab.prog))
    assert section.status == "ok", section.message
    rows = tables.by_name["direct_map"]
    mapped = sum(row.bytes or 0 for row in rows)
    image = out_of_direct_map(sizes_lab.capture, sizes_lab.prog)
    memory = (1536 << 20) - image
    # x86: without the hole below 1 MiB, and with what lies behind RAM up to a whole entry.
    x86 = sizes_lab.capture.architecture.name == "amd64"
    assert abs(mapped - memory) <= (4 << 20 if x86 else 0)
    assert sum(row.not_present_bytes or 0 for row in rows) == image
