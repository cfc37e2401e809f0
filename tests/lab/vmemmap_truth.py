# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a guest said of its struct pages around each step of a workload, and what must add up."""

import re

from conftest import Lab, StructPagesLab

from mmscope.drgn.machine.vm_counters import read_vmstat

PAGE = 4096
MIB = 1 << 20
# A step that is measured by free pages allocates page tables (one for each section whose struct
# pages are mapped one by one), the page that tails share, and whatever else the kernel does in
# those seconds.
DRIFT_PAGES = 64


def has_hvo(lab: StructPagesLab | Lab) -> bool:
    """
    5.10 has not: neither a huge page nor device memory shares struct pages. Of arm64 none has.
    """
    return lab.capture.series != "5.10" and lab.capture.architecture.name == "amd64"


def counter(lab: StructPagesLab, stage: str, name: str) -> int | None:
    rows = read_vmstat(lab.said(f"stages/{stage}/vmstat"))
    return next((row.value for row in rows if row.name == name), None)


def free_pages(lab: StructPagesLab, stage: str) -> int:
    """Free pages with those on the CPUs' lists, which NR_FREE_PAGES does not have."""
    zoneinfo = lab.said(f"stages/{stage}/zoneinfo")
    on_lists = sum(map(int, re.findall(r"^ +count: +(\d+)$", zoneinfo, re.M)))
    return (counter(lab, stage, "nr_free_pages") or 0) + on_lists


def assert_it_adds_up(lab: StructPagesLab) -> dict[str, int]:
    """Every frame has its part, and the parts of a counter are the counter; returns the parts."""
    rows = lab.cost.metadata()
    printed = {row.name: row.value for row in read_vmstat(lab.said("proc/vmstat"))}
    bytes_of = {row.part: row.bytes for row in rows}
    frames = sum(row.distinct_frames for row in lab.cost.scan.mappings) * PAGE
    assert sum(size for part, size in bytes_of.items() if part.startswith("struct page")) == frames
    counters = {row.counted_in for row in rows if row.counted_in}
    assert counters == set(printed) & {"nr_memmap_pages", "nr_memmap_boot_pages"}
    for name in counters:
        assert sum(row.bytes for row in rows if row.counted_in == name) == printed[name] * PAGE
        # What a kernel counts as if devices shared nothing; a newer one counts what there is.
        rest = bytes_of[f"remainder of {name}"]
        shared = sum(row.vmemmap_saved_bytes for row in lab.cost.pagemaps())
        assert rest in ((0, shared) if name == "nr_memmap_pages" else (0,))
    return bytes_of
