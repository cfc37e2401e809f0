# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory that a kernel does not get, does not map, or has given up, against what that kernel said:
/proc/iomem, /proc/meminfo, /sys/firmware/memmap, its log, and what the workload did.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from capture import Capture, capture
from conftest import KERNELS, Lab, StructPagesLab
from drgn import FaultError, Program, offsetof
from drgn.helpers.linux.mm import pfn_to_virt
from kernel_image import out_of_direct_map
from probe_scripts import as_drgn_does

from mmscope.drgn.machine.boot_options import command_line
from mmscope.drgn.machine.direct_map import (
    DirectMapLevel,
    direct_map,
    missing_bytes,
    read_direct_map,
)
from mmscope.drgn.machine.physical_memory import (
    PhysicalMemory,
    e820_map,
    physical_memory,
    read_firmware_map,
)
from mmscope.drgn.machine.poisoned_pages import PoisonCounter, PoisonedPages
from mmscope.drgn.machine.settings import settings
from mmscope.drgn.opening.target import describe, open_target
from mmscope.drgn.page_tables.page_table_entries import kernel_root
from mmscope.drgn.page_tables.page_table_formats import page_table_format
from mmscope.drgn.reading.io_resources import io_resources, read_iomem
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.printk_ring import log_records
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.sections.section import Found
from mmscope.drgn.struct_pages.memmap import logged_times
from mmscope.drgn.tables.display import size_name
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.findings.findings import evaluate

ROOT = Path(__file__).resolve().parents[2]
PAGE, MIB = 4096, 1 << 20
# machine.py, the options of the workload; guest/workload_kept.c
CUT_OFF, RESERVED, PERSISTENT, SOFT, CRASH = (size * MIB for size in (256, 64, 128, 64, 48))
BLOCK, SECRET_PAGES = 128 * MIB, 37
SECTION_NAMES = ("physical_memory", "poisoned_pages")


@dataclass(frozen=True)
class KeptLab:
    """A frozen guest whose kernel was kept from much of its memory."""

    capture: Capture
    prog: Program
    memory: PhysicalMemory
    levels: list[DirectMapLevel]

    def said(self, path: str) -> str:
        later = self.capture.truth_b / path
        return (later if later.exists() else self.capture.truth_a / path).read_text()

    def done(self, what: str) -> list[int]:
        """Numbers that the workload noted."""
        return [int(n) for n in re.findall(rf"^{what} (\d+)$", self.said("stages/kept"), re.M)]

    @property
    def files(self) -> Files:
        return Files(self.capture.truth_b)

    @property
    def has_e820(self) -> bool:
        """The firmware hands over a map of memory, which memmap= and mem= change: x86."""
        return self.capture.architecture.name == "amd64"

    @property
    def marks_pages(self) -> bool:
        """The kernel is built with CONFIG_MEMORY_FAILURE, as Debian's 6.1 cloud kernel is not."""
        return "HardwareCorrupted" in self.said("proc/meminfo")


@pytest.fixture(scope="module", params=KERNELS)
def kept_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> KeptLab:
    taken = capture(request.param, "kept", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    gaps = Gaps()
    lab = KeptLab(taken, prog, physical_memory(prog), direct_map(prog, gaps))
    assert gaps.bytes == 0
    return lab


def by_use(lab: KeptLab) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in lab.memory.ranges:
        sums[row.use] = sums.get(row.use, 0) + row.bytes
    return sums


def part(lab: KeptLab, name: str) -> int:
    (row,) = (row for row in lab.memory.parts if row.part == name)
    return row.bytes


def has_hvo(lab: KeptLab) -> bool:
    return bool(lab.done("optimised"))


def tables(found: Found) -> dict[str, list[object]]:
    return found.by_name


def test_resources_are_those_of_iomem(kept_lab: KeptLab) -> None:
    """Line by line, but for the columns of what lies deeper than /proc/iomem shows."""
    ours, more = io_resources(kept_lab.prog)
    printed = read_iomem(kept_lab.said("proc/iomem"))
    assert more == ""
    assert ours == printed
    assert max(each.depth for each in ours) >= 1


def test_the_command_line_and_the_firmwares_map_are_those_of_proc_and_sys(
    kept_lab: KeptLab,
) -> None:
    assert command_line(kept_lab.prog) == kept_lab.said("proc/cmdline").rstrip("\n")
    if not kept_lab.has_e820:
        return
    files = kept_lab.files
    numbers = files.numbers("sys/firmware/memmap", r"(\d+)")
    assert len(numbers) == 10
    assert e820_map(kept_lab.prog, "e820_table_firmware") == read_firmware_map(files.open, numbers)


@pytest.mark.x86
def test_what_the_command_line_took_is_what_it_said(kept_lab: KeptLab) -> None:
    uses = by_use(kept_lab)
    assert uses["cut off"] == CUT_OFF
    assert uses["persistent memory"] == PERSISTENT
    assert uses["soft reserved"] == SOFT
    assert uses["crash kernel"] == CRASH
    # The kernel takes the first page, for what the firmware may have left there.
    assert uses["marked as reserved"] == RESERVED + PAGE
    options = {row.use: row.option for row in kept_lab.memory.ranges if row.option}
    assert options == {
        "cut off": "mem=4864M",
        "persistent memory": "memmap=128M!0x110000000",
        "soft reserved": "memmap=64M%0x118000000-1+0xefffffff",
        "marked as reserved": "memmap=64M$0x108000000",
    }
    log = kept_lab.said("dmesg")
    assert f"({CRASH // MIB} MB)" in log or f"Reserving {CRASH // MIB}MB of memory" in log


@pytest.mark.x86
def test_parts_are_the_machines_memory(kept_lab: KeptLab) -> None:
    rows = kept_lab.memory.parts
    assert sum(row.bytes for row in rows[1:]) == rows[0].bytes
    # What QEMU gave it, but for what the firmware calls reserved.
    missing = 1536 * MIB - rows[0].bytes
    assert 0 < missing < MIB
    zoneinfo = kept_lab.said("proc/zoneinfo")
    managed = sum(map(int, re.findall(r"^ +managed +(\d+)$", zoneinfo, re.M)))
    assert part(kept_lab, "page allocator") == managed * PAGE
    assert part(kept_lab, "offline") == BLOCK == len(kept_lab.done("offline")) * BLOCK
    states = kept_lab.capture.truth_b.glob("sys/devices/system/memory/memory*/state")
    assert [state.read_text() for state in states].count("offline\n") == 1


def test_the_kernels_memory_is_what_its_log_says(kept_lab: KeptLab) -> None:
    """``Memory: …K/…K available`` has all pages that zones then had; a block has gone since."""
    match = re.search(r"Memory: \d+K/(\d+)K available", kept_lab.said("dmesg"))
    assert match is not None
    names = ("page allocator", "early allocations", "offline", "crash kernel")
    ours = sum(row.bytes for row in kept_lab.memory.parts if row.part in names)
    assert ours == int(match[1]) << 10


def test_files_tell_the_same(kept_lab: KeptLab) -> None:
    """All but what the page tables of the direct map say."""
    memory, whole = run_section(SECTIONS["physical_memory"], Memory(kept_lab.prog))
    section, found = run_section(SECTIONS["physical_memory"], kept_lab.files)
    assert (memory.status, section.status) == ("ok", "ok"), (memory, section)
    ours, theirs = tables(whole), tables(found)
    for name in ("physical_memory", "physical_memory_parts", "memory_options"):
        assert ours[name] == theirs[name] != []
    printed = read_direct_map(kept_lab.said("proc/meminfo"))
    assert theirs.get("direct_map", []) == printed
    # arm64 has no such counters.
    counted = [(r.level, r.kernel_bytes) for r in kept_lab.levels if r.kernel_bytes is not None]
    assert counted == [(r.level, r.kernel_bytes) for r in printed]
    assert bool(printed) is kept_lab.has_e820


def test_without_root_it_says_what_is_missing(kept_lab: KeptLab, tmp_path: Path) -> None:
    for name in ("proc/meminfo", "proc/zoneinfo", "proc/cmdline"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(kept_lab.said(name))
    hidden = re.sub(
        r"\b[0-9a-f]{8,}-[0-9a-f]{8,}", "00000000-00000000", kept_lab.said("proc/iomem")
    )
    (tmp_path / "proc/iomem").write_text(hidden)
    section, found = run_section(SECTIONS["physical_memory"], Files(tmp_path))
    there = ["memory_options", *(["direct_map"] if kept_lab.has_e820 else [])]
    assert (section.status, list(tables(found))) == ("partial", there)
    assert "to root only: run as root" in (section.message or "")


@pytest.mark.x86
def test_the_direct_map_and_the_kernels_counters_agree(kept_lab: KeptLab) -> None:
    """With the splits of the image's own mapping, which the kernel counts as those of this one."""
    assert missing_bytes(kept_lab.levels) == 0
    assert not any(row.repeated_bytes for row in kept_lab.levels)
    rows = {row.level: row for row in kept_lab.levels}
    assert set(rows) == {"pud", "pmd", "pte"}
    assert all(row.bytes and row.tables for level, row in rows.items() if level != "pud")
    assert (rows["pte"].image_bytes or 0) > 0 == sum(row.image_bytes or 0 for row in rows.values())


@pytest.mark.x86
def test_large_entries_that_the_kernel_counts_again_are_told(
    lab: Lab, hvo_boot_lab: StructPagesLab
) -> None:
    """
    With entries of 1 GiB: ``phys_pud_init()`` counts one for each range that touches it, so that
    DirectMap1G is more than the machine has.
    """
    for each, memory in ((lab, 1536), (hvo_boot_lab, 2816)):
        rows = {row.level: row for row in direct_map(each.prog, Gaps())}
        assert missing_bytes([*rows.values()]) == 0
        assert rows["pmd"].repeated_bytes == rows["pte"].repeated_bytes == 0
        mapped = sum(row.bytes or 0 for row in rows.values())
        assert mapped <= memory * MIB
        counted = sum(row.kernel_bytes or 0 for row in rows.values())
        assert counted - mapped == rows["pud"].repeated_bytes > 0
        section, _ = run_section(SECTIONS["physical_memory"], Memory(each.prog))
        assert section.status == "ok"
        assert f"{size_name(counted - mapped)} too high" in (section.message or "")


def test_secret_memory_is_not_in_the_direct_map(kept_lab: KeptLab) -> None:
    pages = kept_lab.done("secret")
    if kept_lab.capture.series == "5.10":  # memfd_secret() came with v5.14
        assert not pages
        return
    assert len(pages) == SECRET_PAGES
    rows = {row.level: row for row in kept_lab.levels}
    missing = SECRET_PAGES * PAGE + out_of_direct_map(kept_lab.capture, kept_lab.prog)
    assert rows["pte"].not_present_bytes == missing
    assert sum(row.not_present_bytes or 0 for row in kept_lab.levels) == missing
    for pfn in pages:
        with pytest.raises(FaultError):
            kept_lab.prog.read(pfn_to_virt(kept_lab.prog, pfn), 8)


def marked(lab: KeptLab) -> tuple[list[PoisonedPages], list[PoisonCounter]]:
    section, found = run_section(SECTIONS["poisoned_pages"], Memory(lab.prog))
    if not lab.marks_pages:
        assert section.status == "absent" and "CONFIG_MEMORY_FAILURE" in (section.message or "")
        return [], []
    assert section.status == "ok", section
    rows = tables(found)
    return rows["poisoned_pages"], rows["poison_counters"]  # type: ignore[return-value]


def test_poisoned_pages_are_those_that_were_poisoned(kept_lab: KeptLab) -> None:
    rows, _ = marked(kept_lab)
    if not kept_lab.marks_pages:
        assert kept_lab.done("base") == []
        return
    sums: dict[str, list[int]] = {}
    for row in rows:
        total = sums.setdefault(row.kind, [0, 0, 0])
        for at, value in enumerate((row.marked, row.bad_pages or 0, row.out_of_use_bytes)):
            total[at] += value
    optimised = "hugetlb page, optimised by HVO"
    assert sums == {
        "base page": [3, len(kept_lab.done("base")), 3 * PAGE],
        "hugetlb page": [1, len(kept_lab.done("huge")), 2 * MIB],
    } | ({optimised: [1, len(kept_lab.done("optimised")), 2 * MIB]} if has_hvo(kept_lab) else {})
    assert not any(row.unlisted for row in rows)
    examples = {row.kind: row.example_pfn for row in rows}
    for kind, noted in (("hugetlb page", "huge"), (optimised, "optimised")):
        pfns = kept_lab.done(noted)
        assert examples.get(kind) == (pfns[0] // 512 * 512 if pfns else None)


def test_counters_of_poisoned_pages_are_those_of_meminfo_and_sys(kept_lab: KeptLab) -> None:
    _, counters = marked(kept_lab)
    section, found = run_section(SECTIONS["poisoned_pages"], kept_lab.files)
    if not kept_lab.marks_pages:
        assert section.status == "absent"
        return
    assert tables(found)["poison_counters"] == counters
    poisoned = sum(len(kept_lab.done(what)) for what in ("base", "huge", "optimised"))
    assert counters[0] == PoisonCounter("HardwareCorrupted", -1, None, poisoned * PAGE)
    handled = {row.counter: 0 for row in counters[1:]}
    for row in counters[1:]:
        handled[row.counter] += row.events or 0
    # Not on 6.1: "mm: memory-failure: add memory failure stats to sysfs" (44b8f8bf2438, v6.3).
    stats = kept_lab.capture.truth_b / "sys/devices/system/node/node0/memory_failure"
    assert ("memory_failure/total" in handled) == stats.exists()
    assert handled.get("memory_failure/total", poisoned) == poisoned
    assert sum(handled.values()) == (2 * poisoned if stats.exists() else 0)


def test_the_mode_against_fragmentation_is_a_setting(kept_lab: KeptLab) -> None:
    rows = {row.name: row.value for row in settings(kept_lab.prog)}
    file = kept_lab.capture.truth_b / "proc/sys/vm/defrag_mode"
    assert rows.get("vm.defrag_mode") == (file.read_text().strip() if file.exists() else None)


def test_the_log_is_read_from_memory(kept_lab: KeptLab) -> None:
    records = log_records(kept_lab.prog).records
    assert any("ommand line: " in record.text for record in records)
    printed = re.findall(
        r"node (\d+) deferred pages initialised in (\d+)ms", kept_lab.said("dmesg")
    )
    assert logged_times(records)[1] == {int(node): int(ms) for node, ms in printed} != {}
    section, _ = run_section(SECTIONS["memory_metadata"], Memory(kept_lab.prog))
    assert f"node 0 {dict(printed)['0']} ms" in (section.message or "")


def test_times_of_devices_are_those_of_the_log(vmemmap_lab: StructPagesLab) -> None:
    rows = {row.name: row for row in vmemmap_lab.cost.pagemaps()}
    raw, ram, device = rows["namespace0.0"], rows["dax1.0"], rows["dax2.0"]
    section = 128 * MIB // PAGE
    assert raw.initialised_struct_pages == section
    # 128 of 512, as the write-up has it; all before device memory had pages of 2 MiB (v5.17).
    large = vmemmap_lab.capture.series != "5.10"
    assert ram.initialised_struct_pages == (section // 4 if large else section)
    printed = re.findall(
        r"memmap_init_zone_device initialised (\d+) pages in (\d+)ms", vmemmap_lab.said("dmesg")
    )
    assert [pages for pages, _ in printed] == [str(section)] * 4 + [
        str(device.initialised_struct_pages)
    ]
    assert device.init_ms_logged == int(printed[-1][1])
    # Two ranges have as many pages: whose the lines are, is not known.
    assert (raw.init_ms_logged, ram.init_ms_logged) == (None, None)


@pytest.mark.x86
def test_the_findings(kept_lab: KeptLab, tmp_path: Path) -> None:
    writer = Writer(tmp_path / "bundle")
    memory = Memory(kept_lab.prog)
    collect(memory, describe(kept_lab.prog, "vmcore"), writer, SECTION_NAMES)
    found = {finding.id: finding for finding in evaluate(Bundle(tmp_path / "bundle")).found}
    kept = found["memory-kept"]
    assert "512 MiB (33.3 %)" in kept.title
    for words in ("mem=4864M", "memmap=64M$0x108000000", "offline"):
        assert words in kept.saw
    if kept_lab.marks_pages:
        assert found["poisoned-pages"].severity == "warning"
        assert "8 pages are marked as bad" in found["poisoned-pages"].title
    else:
        assert "poisoned-pages" not in found


def damaged(lab: KeptLab, address: int, content: bytes, *, physical: bool) -> Program:
    """The same machine with other bytes at an address."""
    prog = open_target(lab.capture.vmcore, [lab.capture.vmlinux])

    def read(at: int, count: int, offset: int, is_physical: bool) -> bytes:
        return content[offset : offset + count]

    prog.add_memory_segment(address, len(content), read, physical)
    return prog


@pytest.mark.parametrize("member", ["sibling", "child"])
@pytest.mark.parametrize("target", ["itself", "nowhere"])
def test_a_damaged_tree_of_resources_ends(kept_lab: KeptLab, member: str, target: str) -> None:
    first = kept_lab.prog["iomem_resource"].child.sibling
    leads = first.value_() if target == "itself" else 0xDEAD_0000_0000_1000
    at = first.value_() + offsetof(kept_lab.prog.type("struct resource"), member)
    prog = damaged(kept_lab, at, leads.to_bytes(8, "little"), physical=False)
    _, more = io_resources(prog)
    assert more
    section, found = run_section(SECTIONS["physical_memory"], Memory(prog))
    assert section.status == "partial" and "ranges are missing" in (section.message or "")
    rows = tables(found)
    assert rows["direct_map"] == kept_lab.levels
    # RAM lies behind the damage, where only the firmware's map has it.
    assert bool(rows["physical_memory"]) is kept_lab.has_e820


@pytest.mark.x86
def test_a_damaged_table_of_the_firmware_is_told(kept_lab: KeptLab) -> None:
    table = kept_lab.prog["e820_table_firmware"].value_()
    prog = damaged(kept_lab, table, b"\xff" * 4, physical=False)
    section, _ = run_section(SECTIONS["physical_memory"], Memory(prog))
    assert section.status == "failed"
    assert "e820_table_firmware is damaged" in (section.message or "")


@pytest.mark.x86
def test_a_direct_map_that_leads_to_itself_is_bounded(kept_lab: KeptLab) -> None:
    """Every entry of the root's second half leads to the root again."""
    form = page_table_format(kept_lab.prog)
    root = int(kernel_root(kept_lab.prog)[0])
    whole = bytearray(kept_lab.prog.read(root, PAGE, physical=True))
    start = kept_lab.prog["page_offset_base"].value_()
    slot = start >> form.levels[0].shift & 511
    for at in range(slot, 511):
        whole[at * 8 : at * 8 + 8] = (root | 0x63).to_bytes(8, "little")
    prog = damaged(kept_lab, root, bytes(whole), physical=True)
    section, _ = run_section(SECTIONS["physical_memory"], Memory(prog))
    assert section.status in ("partial", "failed"), section


@pytest.mark.x86
@pytest.mark.any_kernel
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("machine/physical_memory", "mem=4864M"),
        ("machine/direct_map", "not_present_bytes"),
        ("machine/poisoned_pages", "HardwareCorrupted"),
    ],
)
def test_scripts(
    kept_lab: KeptLab, script: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if script == "machine/poisoned_pages" and not kept_lab.marks_pages:
        return
    assert words in as_drgn_does(kept_lab.prog, script, capsys)[0]
