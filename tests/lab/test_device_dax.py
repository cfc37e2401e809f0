# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Device memory on emulated NVDIMMs, as fsdax and as device-dax, in pages of 2 MiB and of 1 GiB, with
its struct pages in RAM and on the device: against sysfs, the kernel's counters around each step,
and drgn's own walk of the page tables, address by address.

How much of RAM they take, of a device of 128 MiB but for that in pages of 1 GiB, which has 2 GiB:

    ==========  =========  ===================  ==============
    mode        pages of   struct pages         RAM
    ==========  =========  ===================  ==============
    fsdax       4 KiB      in RAM               512 frames
    device-dax  2 MiB      in RAM               128 of 512
    device-dax  1 GiB      in RAM               4 of 8,192
    both        any        on the device        none
    ==========  =========  ===================  ==============
"""

import re
from pathlib import Path

import pytest
from conftest import StructPagesLab
from drgn import Program
from drgn.helpers.linux.mm import follow_phys
from kernels import NOT_IN_STOCK
from vmemmap_truth import DRIFT_PAGES, MIB, PAGE, assert_it_adds_up, counter, free_pages, has_hvo

from mmscope.drgn.opening.no_debug_info import attach
from mmscope.drgn.opening.target import describe
from mmscope.drgn.processes.process_memory import read_status_memory
from mmscope.drgn.reading.symbols import has_symbol
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.struct_pages.device_pagemaps import DevicePagemap
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render

# The rows of kernels.toml that are for this, and for few others, run what is marked brief.
pytestmark = [pytest.mark.x86, pytest.mark.brief]

GIB = 1 << 30
# "mm/huge_memory: add vmf_insert_folio_pmd()" and its like (v6.15)
BEFORE_DAX_COUNTS = {"5.10", "6.1", "6.12"}
# What the counters of a process lag by: 64 pages a CPU, of three counters.
LAG = 64 * 2 * 3 * PAGE
NO_LARGE = "this kernel has no large pages of device memory (before 5.17)"
ON_DEVICE = "they lie on the device (an altmap)"
Kind = tuple[str, str, int]  # as the namespace was made: kind of its device, mode, align
KINDS: set[Kind] = {
    ("dax", "ram", GIB),
    *((kind, mode, 2 * MIB) for kind in ("dax", "pfn") for mode in ("ram", "pmem")),
}


def region(row: DevicePagemap) -> int:
    match = re.fullmatch(r"(?:namespace|dax)(\d+)\.0", row.name)
    assert match
    return int(match[1])


def attribute(lab: StructPagesLab, device: str, name: str) -> str:
    return lab.said(f"sys/bus/{device}/{name}").strip()


def by_kind(lab: StructPagesLab) -> dict[Kind, DevicePagemap]:
    """The rows by what sysfs says of the region's device that has a namespace."""
    rows = {}
    for row in lab.cost.pagemaps():
        number = region(row)
        (kind,) = (
            kind
            for kind in ("dax", "pfn")
            if attribute(lab, f"nd/devices/{kind}{number}.0", "namespace") == f"namespace{number}.0"
        )
        device = f"nd/devices/{kind}{number}.0"
        align = int(attribute(lab, device, "align"))
        rows[kind, attribute(lab, device, "mode"), align] = row
    assert rows.keys() == KINDS
    return rows


def test_devices_are_what_sysfs_says_of_them(dax_lab: StructPagesLab) -> None:
    for (kind, mode, align), row in by_kind(dax_lab).items():
        number = region(row)
        namespace = f"nd/devices/namespace{number}.0"
        assert int(row.start, 16) == int(attribute(dax_lab, namespace, "resource"), 16)
        assert row.bytes == int(attribute(dax_lab, namespace, "size"))
        assert attribute(dax_lab, namespace, "mode") == {"dax": "dax", "pfn": "memory"}[kind]
        assert row.type == {"dax": "GENERIC", "pfn": "FS_DAX"}[kind]
        assert row.altmap is (mode == "pmem")
        large = kind == "dax" and has_hvo(dax_lab)
        assert PAGE << row.vmemmap_shift == (align if large else PAGE)
        # The data begin behind what the device keeps for itself.
        device = f"nd/devices/pfn{number}.0" if kind == "pfn" else f"dax/devices/dax{number}.0"
        start = int(attribute(dax_lab, device, "resource"), 16)
        assert int(row.start, 16) < start and start % align == 0
        assert start + int(attribute(dax_lab, device, "size")) == int(row.end, 16)
        resource = f"{int(row.start, 16):x}-{int(row.end, 16) - 1:x} : Persistent Memory"
        assert resource in dax_lab.said("proc/iomem")


def expected_frames(lab: StructPagesLab, kind: Kind, row: DevicePagemap) -> tuple[int, int]:
    """Frames of struct pages in RAM and on the device."""
    every = row.bytes // PAGE * 64 // PAGE
    name, mode, align = kind
    if mode == "pmem":
        return 0, every
    return (2 * row.bytes // align if name == "dax" and has_hvo(lab) else every), 0


def test_struct_pages_take_two_frames_of_a_page_whatever_its_size(dax_lab: StructPagesLab) -> None:
    for kind, row in by_kind(dax_lab).items():
        ram, device = expected_frames(dax_lab, kind, row)
        assert row.memmap_bytes == row.bytes // PAGE * 64
        assert (row.ram_bytes, row.altmap_bytes) == (ram * PAGE, device * PAGE)
        assert row.vmemmap_saved_bytes == row.memmap_bytes - (ram + device) * PAGE
        # Fsdax in RAM alone would save something as device-dax.
        could = kind == ("pfn", "ram", 2 * MIB) and has_hvo(dax_lab)
        assert row.vmemmap_reclaimable_bytes == (row.memmap_bytes * 6 // 8 if could else 0)
        print(f"{kind}: {row.memmap_bytes} bytes of struct pages, {row.ram_bytes} in RAM")


def test_every_address_of_their_struct_pages_lies_where_drgn_finds_it(
    dax_lab: StructPagesLab,
) -> None:
    where = dax_lab.cost.scan.memmap
    init_mm = dax_lab.prog["init_mm"].address_of_()
    for row in dax_lab.cost.pagemaps():
        start, end = int(row.start, 16), int(row.end, 16)
        pages = range(start // PAGE * 64, end // PAGE * 64, PAGE)
        frames = [follow_phys(init_mm, where.base + offset).value_() for offset in pages]
        inside = {frame for frame in frames if start <= frame < end}
        assert len(frames) * PAGE == row.memmap_bytes
        assert len(set(frames) - inside) * PAGE == row.ram_bytes
        assert len(inside) * PAGE == row.altmap_bytes


def test_what_they_take_is_missing_from_free_memory(dax_lab: StructPagesLab) -> None:
    for (kind, mode, align), row in by_kind(dax_lab).items():
        before, after = f"dax-{region(row)}-unbound", f"dax-{region(row)}-{mode}"
        taken = free_pages(dax_lab, before) - free_pages(dax_lab, after)
        print(f"{kind}, {mode}, {align}: {taken} pages taken for {row.ram_bytes // PAGE}")
        # Those mapped one by one have page tables, too: one for each section.
        tables = row.memmap_bytes // (2 * MIB) if row.vmemmap_saved_bytes else 0
        assert abs(taken - tables - row.ram_bytes // PAGE) <= DRIFT_PAGES
        if (counted := counter(dax_lab, after, "nr_memmap_pages")) is not None:
            counted -= counter(dax_lab, before, "nr_memmap_pages") or 0
            frames = (row.ram_bytes + row.altmap_bytes) // PAGE
            # Older kernels count as if nothing was shared.
            assert counted in (frames, row.memmap_bytes // PAGE)


def test_what_shares_nothing_says_why(dax_lab: StructPagesLab) -> None:
    large = has_hvo(dax_lab)
    for (kind, mode, _), row in by_kind(dax_lab).items():
        assert bool(row.not_shared) is (row.vmemmap_saved_bytes == 0)
        if not large:
            assert row.not_shared == NO_LARGE
        elif mode == "pmem":
            assert row.not_shared == ON_DEVICE
        elif kind == "pfn":
            assert row.not_shared == "a pmem disk (fsdax) is used in base pages"
        else:
            assert row.not_shared == ""


def test_zone_device_has_their_pages_and_none_is_present(dax_lab: StructPagesLab) -> None:
    printed = re.findall(
        r"^Node (\d+), zone +Device\n(?:.*\n)*? +spanned +(\d+)\n +present +(\d+)",
        dax_lab.said("proc/zoneinfo"),
        re.M,
    )
    pages = sum(row.bytes for row in dax_lab.cost.pagemaps()) // PAGE
    assert {(int(spanned), present) for _, spanned, present in printed} == {(0, "0"), (pages, "0")}
    (zone,) = (row for row in dax_lab.cost.scan.zones if row.zone == "Device")
    assert zone.memmap_bytes == pages * 64
    assert zone.reused_bytes == sum(row.vmemmap_saved_bytes for row in dax_lab.cost.pagemaps())
    assert zone.read_only_bytes == 0


def test_memory_about_memory_adds_up(dax_lab: StructPagesLab) -> None:
    bytes_of = assert_it_adds_up(dax_lab)
    rows = dax_lab.cost.pagemaps()
    on_device = sum(row.altmap_bytes for row in rows)
    assert bytes_of["struct page, on the device (altmap)"] == on_device == 4 * MIB
    in_ram = sum(row.ram_bytes for row in rows)
    assert bytes_of["struct page, allocated since"] == in_ram


def test_struct_pages_on_memory_of_their_own_are_initialised(dax_lab: StructPagesLab) -> None:
    printed = re.findall(
        r"memmap_init_zone_device initialised (\d+) pages in (\d+)ms", dax_lab.said("dmesg")
    )
    assert len(printed) == len(KINDS)
    for (kind, mode, align), row in by_kind(dax_lab).items():
        pages = row.bytes // PAGE
        if mode == "pmem":
            # Those of the pages that hold them, and of what the device keeps for itself, are not.
            size = int(attribute(dax_lab, f"nd/devices/{kind}{region(row)}.0", "size"))
            assert size // PAGE <= row.initialised_struct_pages < pages
        elif kind == "dax" and has_hvo(dax_lab):
            assert row.initialised_struct_pages == row.bytes // align * 128
        else:
            assert row.initialised_struct_pages == pages
        lines = [int(ms) for count, ms in printed if int(count) == pages]
        assert row.init_ms_logged == (lines[0] if len(lines) == 1 else row.init_ms_logged)


def test_a_page_of_1_gib_keeps_the_frame_of_its_head_and_one_more(dax_lab: StructPagesLab) -> None:
    by_page: dict[str, list[tuple[int, int, bool, bool]]] = {}
    for row in dax_lab.cost.examples:
        line = row.first, row.entries, row.same_frame, row.writable
        by_page.setdefault(row.example, []).append(line)
    if not has_hvo(dax_lab):
        assert {line for lines in by_page.values() for line in lines} == {(0, 8, False, True)}
        return
    for size, entries in (("2", 8), ("1,024", 4096)):
        lines = by_page[f"device (GENERIC) without an altmap, in pages of {size} MiB"]
        assert lines == [(0, 1, False, True), (1, entries - 1, True, True)]
    for example in (
        "device (GENERIC) with an altmap, in pages of 2 MiB",
        "device (FS_DAX) with an altmap",
        "device (FS_DAX) without an altmap",
    ):
        assert by_page[example] == [(0, 8, False, True)]


def test_what_a_process_maps_of_a_device_is_resident_where_the_kernel_counts_it(
    dax_lab: StructPagesLab,
) -> None:
    """Two pages of 1 GiB, the same one twice, and two of 2 MiB."""
    (file,) = (dax_lab.capture.truth_b / "proc").glob("*/status")
    said = read_status_memory(file.read_text())
    assert said is not None and said.comm == "device dax"
    _, found = run_section(SECTIONS["page_tables"], Memory(dax_lab.prog))
    (row,) = (row for row in found.by_name["page_tables"] if row.pid == said.pid)
    (more,) = (row for row in found.by_name["page_table_details"] if row.pid == said.pid)
    counts = dax_lab.capture.series not in BEFORE_DAX_COUNTS
    assert (more.other_huge, more.huge_puds) == ((0, 2) if counts else (4, 0))
    mapped = 2 * GIB + 4 * MIB
    assert (said.resident_bytes > mapped) is counts
    assert abs(row.resident_bytes - said.resident_bytes) <= LAG


def test_every_section_is_whole_and_nothing_is_impossible(
    dax_lab: StructPagesLab, tmp_path: Path
) -> None:
    """Though the devices have more memory than the machine, and a process maps more than that."""
    writer = Writer(tmp_path / "bundle")
    sections = collect(
        Memory(dax_lab.prog), describe(dax_lab.prog, "vmcore"), writer, list(SECTIONS)
    )
    assert [each for each in sections if each.status not in ("ok", "absent")] == []
    absent = {each.section for each in sections if each.status == "absent"} - NOT_IN_STOCK
    # Up to 6.1 it cannot be told which pages are bad; huge pages are counted by size since v6.10.
    by_size = has_symbol(dax_lab.prog, "mthp_stats")
    assert absent <= {"poisoned_pages"} | (set() if by_size else {"thp_sizes"})
    bundle = Bundle(tmp_path / "bundle")
    verdict = evaluate(bundle)
    found = {finding.id: finding for finding in verdict.found}
    if not has_hvo(dax_lab):
        assert "device-memmap-in-ram" not in found
        return
    fsdax = by_kind(dax_lab)["pfn", "ram", 2 * MIB]
    finding = found["device-memmap-in-ram"]
    assert finding.title == (
        f"The struct pages of {fsdax.name} take 2 MiB of RAM; shared, they would take 512 KiB"
    )
    assert "They share no frame: a pmem disk (fsdax) is used in base pages." in finding.saw
    assert 'id="picture-vmemmap_examples"' in render(bundle, verdict)


@pytest.mark.btf
def test_without_debug_info_it_is_the_same(dax_lab: StructPagesLab) -> None:
    alone = Program()
    alone.set_core_dump(dax_lab.capture.vmcore)
    attach(alone)
    for name in ("device_pagemaps", "vmemmap", "memory_metadata", "page_tables"):
        ours, expected = (
            run_section(SECTIONS[name], Memory(prog)) for prog in (alone, dax_lab.prog)
        )
        assert ours[0].status == "ok" == expected[0].status
        assert ours[1].by_name == expected[1].by_name
