# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What struct pages cost, against what the kernel itself said: its counters around each step of the
workload, sysfs, and drgn's own page table walk, address by address.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab, OwnerLab, StructPagesLab
from drgn import FaultError, Program, offsetof
from drgn.helpers.linux.mm import follow_phys
from forked import in_its_own_fork, opened
from probe_scripts import as_drgn_does, by_drgn
from vmemmap_truth import (
    DRIFT_PAGES,
    MIB,
    PAGE,
    assert_it_adds_up,
    counter,
    free_pages,
    has_hvo,
)

from mmscope.drgn.machine.vm_counters import read_vmstat
from mmscope.drgn.opening.target import describe, open_target
from mmscope.drgn.reading import mem_sections
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.struct_pages.hugetlb import HugetlbPool, HugetlbSize, hugetlb_sizes, read_pools
from mmscope.drgn.struct_pages.memory_metadata import present_bytes
from mmscope.drgn.struct_pages.struct_page_cost import (
    StructPageCost,
    scan_struct_page_cost,
    struct_page_cost,
)
from mmscope.drgn.struct_pages.vmemmap import VmemmapMapping, scan_vmemmap
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render

ROOT = Path(__file__).resolve().parents[2]
# guest/workload_vmemmap.c
BEFORE_HVO, POOL, DIMM, TOUCHED, SURPLUS = 40, 240, 16, 10, 3
OPTIMIZED = POOL - BEFORE_HVO
NO_HVO = "this kernel has no HVO, which came with Linux 5.14"
SECTION_NAMES = ("vmemmap", "hugetlb", "device_pagemaps", "memory_metadata")


def pool(lab: StructPagesLab, page_bytes: int, node: int) -> HugetlbPool:
    (row,) = (
        row for row in lab.cost.pools()[0] if (row.page_bytes, row.node) == (page_bytes, node)
    )
    return row


def frames_one_by_one(lab: StructPagesLab) -> dict[int, int]:
    """Offset into the array to the frame that it lies on, by drgn's walk from the top each time."""
    where = lab.cost.scan.memmap
    init_mm = lab.prog["init_mm"].address_of_()
    found = {}
    for number in where.sections.numbers.tolist():
        start = number * where.section_bytes
        for offset in range(start, start + where.section_bytes, PAGE):
            found[offset] = follow_phys(init_mm, where.base + offset).value_() // PAGE
    return found


def test_every_address_lies_where_drgn_finds_it(vmemmap_lab: StructPagesLab) -> None:
    frames = frames_one_by_one(vmemmap_lab)
    rows = {row.level: row for row in vmemmap_lab.cost.scan.mappings}
    assert sum(row.bytes for row in rows.values()) == len(frames) * PAGE
    assert sum(row.distinct_frames for row in rows.values()) == len(set(frames.values()))
    users = Counter(frames.values())
    shared = sum(count for count in users.values() if count > 1)
    assert rows["pte"].shared_entries == shared
    assert shared > OPTIMIZED * 7 if has_hvo(vmemmap_lab) else shared == 0
    assert rows["pmd"].entries > 0 and rows["pmd"].shared_entries == 0
    reused = sum(row.reused_bytes for row in vmemmap_lab.cost.scan.zones)
    assert reused == (len(frames) - len(users)) * PAGE
    for run in vmemmap_lab.cost.scan.runs:
        where = vmemmap_lab.cost.scan.memmap
        start = run.start_pfn * where.page_bytes
        mine = range(start, start + run.sections * where.section_bytes, PAGE)
        earlier = {frames[offset] for offset in frames if offset < start}
        own = {frames[offset] for offset in mine} - earlier
        assert run.reused_bytes == (len(mine) - len(own)) * PAGE


def test_sums_by_zone_section_and_level_are_the_same(
    vmemmap_lab: StructPagesLab, hvo_boot_lab: StructPagesLab
) -> None:
    for lab in (vmemmap_lab, hvo_boot_lab):
        scan = lab.cost.scan
        mapped = sum(row.bytes for row in scan.mappings)
        assert mapped == sum(row.memmap_bytes for row in scan.zones)
        assert mapped == sum(row.memmap_bytes for row in scan.runs)
        assert sum(row.reused_bytes for row in scan.zones) == sum(
            row.reused_bytes for row in scan.runs
        )
        assert all(row.memmap_bytes == row.pmd_bytes + row.pte_bytes for row in scan.zones)
        read_only = sum(row.read_only_entries for row in scan.mappings) * PAGE
        assert sum(row.read_only_bytes for row in scan.zones) == read_only
        assert (read_only > 0) is has_hvo(lab)
        assert (scan.unmapped_sections, scan.stray, scan.gaps.bytes) == (0, 0, 0)


def test_zones_have_the_struct_pages_of_the_pages_they_span(vmemmap_lab: StructPagesLab) -> None:
    """Struct pages of a zone: at least those of its present pages, at most those of its span."""
    size = vmemmap_lab.cost.scan.memmap.page_bytes
    rows = {(row.node, row.zone): row for row in vmemmap_lab.cost.scan.zones}
    zoneinfo = vmemmap_lab.said("proc/zoneinfo")
    zones = re.findall(
        r"^Node (\d+), zone +(\w+)\n(?:.*\n)*? +spanned +(\d+)\n +present +(\d+)", zoneinfo, re.M
    )
    checked = 0
    for node, zone, _, present in zones:
        if int(present):
            assert rows[int(node), zone].memmap_bytes >= int(present) * size
            checked += 1
    assert checked == 4  # DMA, DMA32 and the DIMM's Normal; Normal
    assert {key for key in rows if key[1] == "Device"} == {(0, "Device"), (1, "Device")}
    assert rows[0, "Device"].memmap_bytes == 128 * MIB // PAGE * size


def test_hvo_saves_seven_pages_of_eight(vmemmap_lab: StructPagesLab) -> None:
    row = pool(vmemmap_lab, 2 * MIB, 1)
    surplus = row.surplus_pages
    assert row.pages == POOL + surplus
    hvo = has_hvo(vmemmap_lab)
    assert row.optimized_pages == (OPTIMIZED + surplus) * hvo
    assert row.vmemmap_saved_bytes == (OPTIMIZED + surplus) * hvo * 7 * PAGE
    assert row.vmemmap_bytes == row.pages * 8 * PAGE
    assert row.vmemmap_reclaimable_bytes == BEFORE_HVO * hvo * 7 * PAGE
    assert vmemmap_lab.cost.pools()[1] == []


def test_what_hvo_saved_is_free_memory(vmemmap_lab: StructPagesLab) -> None:
    taken = free_pages(vmemmap_lab, "hvo-off") - free_pages(vmemmap_lab, "hvo-on")
    saved = OPTIMIZED * 512 - taken
    expected = OPTIMIZED * has_hvo(vmemmap_lab) * 7
    print(f"{saved} pages came back, {expected} were saved")
    assert abs(saved - expected) <= DRIFT_PAGES
    before = counter(vmemmap_lab, "hvo-off", "nr_memmap_boot_pages")
    if before is None:  # before 6.12
        return
    after = counter(vmemmap_lab, "hvo-on", "nr_memmap_boot_pages")
    later = [counter(vmemmap_lab, stage, "nr_memmap_pages") for stage in ("hvo-off", "hvo-on")]
    # A new page for each head, the eight that were there given back.
    assert after == before - OPTIMIZED * 8
    assert later[1] == later[0] + OPTIMIZED  # type: ignore[operator]


def test_pages_in_memory_that_hosts_its_struct_pages_are_not_optimised(
    vmemmap_lab: StructPagesLab,
) -> None:
    if not has_hvo(vmemmap_lab):  # nor memory that hosts its own struct pages, which is as old
        assert not [run for run in vmemmap_lab.cost.scan.runs if run.origin == "self-hosted"]
        return
    assert vmemmap_lab.said("sys/module/memory_hotplug/parameters/memmap_on_memory") == "Y\n"
    row = pool(vmemmap_lab, 2 * MIB, 0)
    assert row.pages == DIMM + row.surplus_pages
    assert (row.optimized_pages, row.self_hosted_pages) == (0, row.pages)
    assert (row.vmemmap_saved_bytes, row.vmemmap_reclaimable_bytes) == (0, 0)
    (run,) = (run for run in vmemmap_lab.cost.scan.runs if run.origin == "self-hosted")
    block = int(vmemmap_lab.said("sys/devices/system/memory/block_size_bytes"), 16)
    assert (run.sections, run.node, run.zone) == (block // (128 * MIB), 0, "Normal")
    memory = vmemmap_lab.said("proc/iomem")
    assert f"{run.start_pfn * PAGE:x}-{run.start_pfn * PAGE + block - 1:x} : System RAM" in memory


def test_pools_are_those_of_sysfs(vmemmap_lab: StructPagesLab) -> None:
    files = Files(vmemmap_lab.capture.truth_b)
    printed = read_pools(files.open, [0, 1], [2 * MIB, 1024 * MIB])
    assert len(printed) == 2
    for other in printed:
        row = pool(vmemmap_lab, 2 * MIB, other.node)
        names = ("pages", "free_pages", "surplus_pages")
        assert [getattr(row, name) for name in names] == [getattr(other, name) for name in names]
    sizes = {row.page_bytes: row for row in hugetlb_sizes(vmemmap_lab.prog)}
    # One more was promised than the pool had free: those are surplus, allocated at once.
    rest = POOL + DIMM - TOUCHED + SURPLUS
    row = sizes[2 * MIB]
    hvo = ("on", 7 * PAGE) if has_hvo(vmemmap_lab) else (NO_HVO, 0)
    assert row == HugetlbSize(2 * MIB, POOL + DIMM + SURPLUS, rest, rest, SURPLUS, SURPLUS, *hvo)
    where = "sys/kernel/mm/hugepages/hugepages-2048kB"
    assert int(vmemmap_lab.said(f"{where}/resv_hugepages")) == row.reserved_pages
    section, found = run_section(SECTIONS["hugetlb"], files)
    assert section.status == "ok"
    tables = found.by_name
    assert tables["hugetlb_pools"] == printed
    said = "on" if has_hvo(vmemmap_lab) else None
    assert [row.hvo for row in tables["hugetlb_sizes"]] == [said, said]


def test_what_a_page_saves_is_what_the_kernel_printed(vmemmap_lab: StructPagesLab) -> None:
    printed = {
        int(size.replace(".00", "")) * (1 << 30 if unit == "G" else MIB): int(kib) << 10
        for kib, size, unit in re.findall(
            r"HugeTLB: (\d+) KiB vmemmap can be freed for a ([\d.]+) ([GM])iB page",
            vmemmap_lab.said("dmesg"),
        )
    }
    assert bool(printed) is has_hvo(vmemmap_lab)
    for row in hugetlb_sizes(vmemmap_lab.prog):
        assert row.page_saves_bytes == printed.get(row.page_bytes, 0)


def test_pages_of_1_gib_and_2_mib_from_boot_on(hvo_boot_lab: StructPagesLab) -> None:
    rows, checks = hvo_boot_lab.cost.pools()
    assert checks == []
    (gigantic,) = (row for row in rows if row.page_bytes == 1 << 30)
    if not has_hvo(hvo_boot_lab):
        assert (gigantic.node, gigantic.pages) == (2, 1)
        assert sum(row.pages for row in rows) == 65
        assert {row.optimized_pages for row in rows} == {0}
        return
    assert (gigantic.node, gigantic.pages, gigantic.optimized_pages) == (2, 1, 1)
    assert gigantic.vmemmap_saved_bytes == 4095 * PAGE
    small = [row for row in rows if row.page_bytes == 2 * MIB]
    assert sum(row.pages for row in small) == 64 == sum(row.optimized_pages or 0 for row in small)
    assert sum(row.vmemmap_saved_bytes or 0 for row in small) == 64 * 7 * PAGE
    assert sum(row.vmemmap_reclaimable_bytes or 0 for row in rows) == 0
    # Its struct pages fill eight sections, all but the head's page on one frame.
    gib = [run for run in hvo_boot_lab.cost.scan.runs if run.reused_eighths == 8]
    assert sum(run.sections for run in gib) == 8
    ptes = next(row for row in hvo_boot_lab.cost.scan.mappings if row.level == "pte")
    assert ptes.read_only_entries == 4095 + 64 * 7


def test_tails_share_the_zones_page_or_the_heads(hvo_boot_lab: StructPagesLab) -> None:
    by_page: dict[int, list[Any]] = {}
    for row in hvo_boot_lab.cost.examples:
        by_page.setdefault(row.page_bytes, []).append(row)
    if not has_hvo(hvo_boot_lab):
        assert {row.writable for rows in by_page.values() for row in rows} <= {True}
        return
    assert set(by_page) == {2 * MIB, 1 << 30}
    own_tail = hvo_boot_lab.prog.type("struct zone").has_member("vmemmap_tails")
    for page_bytes, (head, tails) in by_page.items():
        assert (head.first, head.entries, head.writable) == (0, 1, True)
        assert (tails.first, tails.entries) == (1, page_bytes // PAGE * 64 // PAGE - 1)
        assert (tails.same_frame, tails.writable) == (True, False)
        # "mm/hugetlb: Remove fake head pages" (v7.1)
        assert (tails.frame_pfn != head.frame_pfn) is own_tail


def test_device_memory(vmemmap_lab: StructPagesLab) -> None:
    raw, ram, device = vmemmap_lab.cost.pagemaps()
    struct_pages = 128 * MIB // PAGE * 64
    assert (raw.name, raw.type, raw.vmemmap_shift, raw.altmap) == (
        "namespace0.0", "FS_DAX", 0, False,
    )  # fmt: skip
    assert (raw.memmap_bytes, raw.ram_bytes, raw.vmemmap_saved_bytes) == (
        struct_pages, struct_pages, 0,
    )  # fmt: skip
    # Before v5.17 device memory has no pages of 2 MiB, and nothing to share.
    saved, shift = (struct_pages * 6 // 8, 9) if has_hvo(vmemmap_lab) else (0, 0)
    assert raw.vmemmap_reclaimable_bytes == saved
    assert (ram.name, ram.type, ram.altmap) == ("dax1.0", "GENERIC", False)
    assert ram.vmemmap_shift == shift
    assert (ram.memmap_bytes, ram.ram_bytes) == (struct_pages, struct_pages - saved)
    assert (ram.vmemmap_saved_bytes, ram.vmemmap_reclaimable_bytes) == (saved, 0)
    assert (device.name, device.altmap, device.ram_bytes) == ("dax2.0", True, 0)
    assert (device.altmap_bytes, device.vmemmap_saved_bytes) == (struct_pages, 0)
    for row in (ram, device):
        where = f"sys/bus/dax/devices/{row.name}"
        if shift:
            assert int(vmemmap_lab.said(f"{where}/align")) == PAGE << row.vmemmap_shift
        # The data begin behind what the device keeps for itself.
        start = int(vmemmap_lab.said(f"{where}/resource"), 16)
        assert int(row.start, 16) < start < int(row.end, 16)
        assert start + int(vmemmap_lab.said(f"{where}/size")) == int(row.end, 16)


def test_what_dax_saved_is_free_memory(vmemmap_lab: StructPagesLab) -> None:
    taken = free_pages(vmemmap_lab, "dax-1-unbound") - free_pages(vmemmap_lab, "dax-1-ram")
    _, ram, _ = vmemmap_lab.cost.pagemaps()
    print(f"{taken} pages taken for {ram.ram_bytes // PAGE}")
    assert abs(taken - ram.ram_bytes // PAGE) <= DRIFT_PAGES
    on_device = free_pages(vmemmap_lab, "dax-2-unbound") - free_pages(vmemmap_lab, "dax-2-pmem")
    assert abs(on_device) <= DRIFT_PAGES


def assert_hvo_adds_up(lab: StructPagesLab) -> dict[str, int]:
    """Likewise, and what the tails of optimised huge pages share is there."""
    bytes_of = assert_it_adds_up(lab)
    has_tails = lab.prog.type("struct zone").has_member("vmemmap_tails")
    assert bool(bytes_of["struct page, shared by HVO's tails"]) is has_tails
    return bytes_of


def test_memory_about_memory_adds_up(vmemmap_lab: StructPagesLab) -> None:
    bytes_of = assert_hvo_adds_up(vmemmap_lab)
    # memory_hotplug.memmap_on_memory came with v5.14.
    hosted = 2 * MIB if has_hvo(vmemmap_lab) else 0
    assert bytes_of["struct page, in the hot-added memory itself"] == hosted
    assert bytes_of["struct page, on the device (altmap)"] == 2 * MIB


def test_memory_about_memory_adds_up_from_boot_on(hvo_boot_lab: StructPagesLab) -> None:
    bytes_of = assert_hvo_adds_up(hvo_boot_lab)
    # The heads of the pages of 2 MiB: moved to new frames, but for old kernels.
    since = bytes_of["struct page, allocated since"]
    assert since >= 64 * PAGE or since == 0


@pytest.mark.owner_kernel
def test_page_ext_is_part_of_it(owner_lab: OwnerLab, tmp_path: Path) -> None:
    memory = Memory(owner_lab.prog)
    bytes_of = {row.part: row.bytes for row in struct_page_cost(memory).metadata()}
    printed = {row.name: row.value for row in read_vmstat(owner_lab.said("proc/vmstat")[1])}
    # Nothing else was allocated since boot.
    assert bytes_of["page_ext"] == printed["nr_memmap_pages"] * PAGE > 64 * MIB // PAGE
    assert bytes_of["remainder of nr_memmap_pages"] == 0
    assert bytes_of["remainder of nr_memmap_boot_pages"] == 0
    writer = Writer(tmp_path / "bundle")
    collect(memory, describe(owner_lab.prog, "vmcore"), writer, ["memory_metadata"])
    found = {finding.id: finding for finding in evaluate(Bundle(tmp_path / "bundle")).found}
    assert f"page_ext {bytes_of['page_ext'] / MIB:g} MiB" in found["metadata-above-share"].saw


def test_the_sections_and_what_they_find(vmemmap_lab: StructPagesLab, tmp_path: Path) -> None:
    memory = Memory(vmemmap_lab.prog)
    writer = Writer(tmp_path / "bundle")
    target = describe(vmemmap_lab.prog, "vmcore")
    sections = collect(memory, target, writer, [*SECTION_NAMES, "settings"])
    assert [section.status for section in sections] == ["ok"] * 5
    bundle = Bundle(tmp_path / "bundle")
    verdict = evaluate(bundle)
    found = {finding.id: finding for finding in verdict.found}
    if not has_hvo(vmemmap_lab):  # the more memory about memory there is
        assert set(found) == {"metadata-above-share"}
        assert "HVO" not in found["metadata-above-share"].saw
        return
    assert set(found) == {"hvo-pages-left", "device-memmap-in-ram"}
    left = found["hvo-pages-left"]
    assert f"{POOL + DIMM + SURPLUS} hugetlb pages of 2 MiB are not optimised" in left.title
    assert f"{BEFORE_HVO} could be (1.094 MiB)" in left.saw
    assert "hosts its own struct pages" in left.saw
    assert "namespace0.0 take 2 MiB of RAM" in found["device-memmap-in-ram"].title
    html = render(bundle, verdict)
    for name in ("vmemmap_sections", "vmemmap_examples", "memory_about_memory", "memmap_what_if"):
        assert f'id="picture-{name}"' in html
    assert "No picture" not in html


@pytest.mark.any_kernel
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("struct_pages/vmemmap", "Struct pages by zone"),
        ("struct_pages/hugetlb", "hugetlb pools by size and node"),
        ("struct_pages/device_pagemaps", "dax1.0"),
        ("struct_pages/vmemmap_examples", "hugetlb, with HVO"),
        ("struct_pages/memory_metadata", "2 MiB pages, hugetlb with HVO"),
    ],
)
def test_each_probe_runs_by_itself(
    vmemmap_lab: StructPagesLab, script: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, _ = as_drgn_does(vmemmap_lab.prog, script, capsys)
    shown = has_hvo(vmemmap_lab) or script != "struct_pages/vmemmap_examples"
    assert (words if shown else "with an altmap") in printed


@pytest.mark.any_kernel
def test_drgn_runs_one(vmemmap_lab: StructPagesLab) -> None:
    done = by_drgn(vmemmap_lab.capture, "struct_pages/vmemmap")
    assert done.returncode == 0, done.stderr
    assert "Struct pages by zone" in done.stdout


def pte_table_of(prog: Program, cost: StructPageCost) -> int:
    """The physical address of the page table that has an optimised huge page's struct pages."""
    from mmscope.drgn.page_tables.page_table_entries import (
        kernel_root,
        new_walk,
        walk_page_tables,
    )
    from mmscope.drgn.page_tables.page_table_formats import page_table_format

    form = page_table_format(prog)
    where = cost.scan.memmap
    pfn = next(row.pfn for row in cost.examples if "with HVO" in row.example)
    start = where.base + pfn * where.page_bytes & -(2 * MIB)
    walk = new_walk(form, 1)
    for chunk in walk_page_tables(prog, form, kernel_root(prog), walk, start=start, end=start + 1):
        last = chunk
    assert last.level == form.last
    return int(last.frames[0])


def overlay(prog: Program, address: int, content: bytes | None) -> None:
    """Put a page of memory over the dump's: other content, or none that can be read."""

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        if content is None:
            raise FaultError("not in the dump", address)
        return content[offset : offset + count]

    prog.add_memory_segment(address, PAGE, read, True)


@in_its_own_fork
def test_a_page_table_that_the_dump_lacks(vmemmap_lab: StructPagesLab) -> None:
    prog = opened(vmemmap_lab.capture)
    if not has_hvo(vmemmap_lab):
        return  # without HVO, entries of 2 MiB map all struct pages
    overlay(prog, pte_table_of(prog, vmemmap_lab.cost), None)
    memory = Memory(prog)
    whole = {row.level: row for row in vmemmap_lab.cost.scan.mappings}
    for name in SECTION_NAMES:
        section, _ = run_section(SECTIONS[name], memory)
        assert section.status == "partial", name
        assert (section.unreadable_bytes or 0) >= PAGE
    scan = struct_page_cost(memory).scan
    rows = {row.level: row for row in scan.mappings}
    assert rows["pte"].entries == whole["pte"].entries - 512
    assert scan.unmapped_sections == 1
    # Struct pages that nothing maps are not there to be read, either: the pool has more pages than
    # were found, and that is said.
    pools, (check,) = struct_page_cost(memory).pools()
    (row,) = (row for row in pools if row.node == check.node)
    assert check.problem.startswith(f"the pool counts {row.pages:,} pages, its struct pages")
    assert 0 < check.pages <= 64
    assert (row.optimized_pages or 0) < (pool(vmemmap_lab, 2 * MIB, 1).optimized_pages or 0)


def test_hvo_that_is_off_is_found(vmemmap_lab: StructPagesLab, tmp_path: Path) -> None:
    """The same machine, had the switch been turned back."""
    prog = open_target(vmemmap_lab.capture.vmcore, [vmemmap_lab.capture.vmlinux])
    if not has_hvo(vmemmap_lab):
        assert "vmemmap_optimize_enabled" not in prog
        return
    switch = prog.variable("vmemmap_optimize_enabled").address_
    assert switch is not None
    prog.add_memory_segment(switch, 1, lambda *where: b"\0", False)
    writer = Writer(tmp_path / "bundle")
    collect(Memory(prog), describe(prog, "vmcore"), writer, ["hugetlb"])
    (finding,) = (f for f in evaluate(Bundle(tmp_path / "bundle")).found if "hvo" in f.id)
    assert finding.id == "hvo-off"
    assert f"{POOL + DIMM + SURPLUS} hugetlb pages could give back 1.094 MiB" in finding.title


def test_a_small_pool_is_not_worth_a_word(lab: Lab, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "bundle")
    collect(Memory(lab.prog), describe(lab.prog, "vmcore"), writer, ["hugetlb"])
    bundle = Bundle(tmp_path / "bundle")
    assert not [finding for finding in evaluate(bundle).found if "hvo" in finding.id]
    (printed, _) = lab.said("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    rows = list(bundle.rows("hugetlb_pools"))
    assert sum(row["pages"] for row in rows) == int(printed) > 0
    reclaimable = sum(row["vmemmap_reclaimable_bytes"] for row in rows)
    assert reclaimable == int(printed) * has_hvo(lab) * 7 * PAGE
    said = {row["hvo"] for row in bundle.rows("hugetlb_sizes")}
    if lab.capture.architecture.name != "amd64":
        assert said == {"not compiled in (CONFIG_HUGETLB_PAGE_OPTIMIZE_VMEMMAP)"}
    else:
        assert said == {"off" if has_hvo(lab) else NO_HVO}


@pytest.mark.parametrize("entry", [0, 0x63, 0xFFFF_FFFF_FFFF_FFFF, 0x000F_FFFF_FFFF_F063])
@pytest.mark.any_kernel
@in_its_own_fork
def test_page_tables_of_garbage(vmemmap_lab: StructPagesLab, entry: int) -> None:
    """Whatever a table holds, there are numbers of it, and what does not agree is said."""
    prog = opened(vmemmap_lab.capture)
    if not has_hvo(vmemmap_lab):
        return  # without HVO, entries of 2 MiB map all struct pages
    overlay(prog, pte_table_of(prog, vmemmap_lab.cost), entry.to_bytes(8, "little") * 512)
    memory = Memory(prog)
    for name in SECTION_NAMES:
        section, _ = run_section(SECTIONS[name], memory)
        assert section.status in ("ok", "partial"), section
    _, checks = struct_page_cost(memory).pools()
    assert sum(check.pages for check in checks) > 0


def cover(prog: Program, name: str, content: bytes) -> None:
    """Put other content over a variable of the kernel's."""
    address = prog.variable(name).address_
    assert address is not None

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        return content[offset : offset + count]

    prog.add_memory_segment(address, len(content), read, False)


@pytest.mark.parametrize("head", [2, 0xFFFF_8880_0000_1002, 0xDEAD_0000_0000_0002, (1 << 64) - 1])
@pytest.mark.any_kernel
@in_its_own_fork
def test_a_damaged_array_of_pagemaps(vmemmap_lab: StructPagesLab, head: int) -> None:
    prog = opened(vmemmap_lab.capture)
    array = prog.type("struct xarray")
    content = bytearray(array.size or 0)
    content[offsetof(array, "xa_head") :] = head.to_bytes(8, "little")
    cover(prog, "pgmap_array", bytes(content))
    memory = Memory(prog)
    for name in SECTION_NAMES:
        section, _ = run_section(SECTIONS[name], memory)
        assert section.status in ("ok", "partial"), section


@pytest.mark.parametrize("order", [0, 31, 0xFFFF_FFFF])
@pytest.mark.any_kernel
@in_its_own_fork
def test_damaged_pools_cost_themselves(vmemmap_lab: StructPagesLab, order: int) -> None:
    prog = opened(vmemmap_lab.capture)
    content = bytearray(prog.variable("hstates").to_bytes_())
    where = offsetof(prog.type("struct hstate"), "order")
    content[where : where + 4] = order.to_bytes(4, "little")
    cover(prog, "hstates", bytes(content))
    memory = Memory(prog)
    statuses = {name: run_section(SECTIONS[name], memory)[0].status for name in SECTION_NAMES}
    assert statuses == {name: "failed" if name == "hugetlb" else "ok" for name in SECTION_NAMES}


@pytest.mark.any_kernel
def test_damaged_sections_are_bounded(
    vmemmap_lab: StructPagesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    prog = open_target(vmemmap_lab.capture.vmcore, [vmemmap_lab.capture.vmlinux])
    root = prog["mem_section"][0].value_()
    size = prog.type("struct mem_section").size or 0
    whole = prog.read(root, PAGE)
    physical = follow_phys(prog["init_mm"].address_of_(), root).value_()
    # Many of a root's sections are there, it says, most of them where no struct page is mapped.
    overlay(prog, physical, (whole[:size] * 40).ljust(PAGE, b"\0"))
    memory = Memory(prog)
    section, _ = run_section(SECTIONS["vmemmap"], memory)
    assert section.status == "partial" and "nothing maps" in (section.message or "")
    scan = struct_page_cost(memory).scan
    assert len(scan.memmap.sections.numbers) >= 40 and scan.unmapped_sections > 20
    monkeypatch.setattr(mem_sections, "MAX_SECTIONS", 20)
    with pytest.raises(ValueError, match="more sections than any machine"):
        scan_vmemmap(prog)


@pytest.mark.any_kernel
@in_its_own_fork
def test_a_vmemmap_of_garbage_fails_with_words(vmemmap_lab: StructPagesLab) -> None:
    prog = opened(vmemmap_lab.capture)
    root = follow_phys(prog["init_mm"].address_of_(), prog["mem_section"][0]).value_()
    overlay(prog, root, b"\xff" * PAGE)
    for name in SECTION_NAMES:
        section, _ = run_section(SECTIONS[name], Memory(prog))
        assert section.status == "failed" and "mem_section is damaged" in (section.message or "")


def test_without_huge_pages_no_struct_page_is_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmscope.drgn.struct_pages import hugetlb

    monkeypatch.setattr(hugetlb, "for_each_hstate", lambda prog: iter(()))
    cost = scan_struct_page_cost(lab.prog)
    assert len(cost.huge_pages) == 0 and cost.pools() == ([], [])
    assert {row.level for row in cost.scan.mappings} == {"pud", "pmd", "pte"}


def test_progress_ends_at_the_end(vmemmap_lab: StructPagesLab) -> None:
    calls: list[tuple[int, int]] = []
    scan = scan_vmemmap(vmemmap_lab.prog, progress=lambda done, total: calls.append((done, total)))
    sections = len(scan.memmap.sections.numbers)
    assert calls[-1] == (sections, sections)
    assert isinstance(scan.mappings[0], VmemmapMapping)


def test_the_machines_memory_is_that_of_zoneinfo(vmemmap_lab: StructPagesLab) -> None:
    present = map(int, re.findall(r"^ +present +(\d+)$", vmemmap_lab.said("proc/zoneinfo"), re.M))
    assert present_bytes(vmemmap_lab.prog) == sum(present) * PAGE
    now = vmemmap_lab.cost.what_if()[-1]
    saved = sum(row.reused_bytes for row in vmemmap_lab.cost.scan.zones if row.zone != "Device")
    assert (now.scheme, now.saved_bytes) == ("as it is now", saved)
