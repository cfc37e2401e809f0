# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Findings speak of the sizes of the kernel that was read: a page of 16 KiB makes a huge page one of
32 MiB, and struct pages a quarter of what they are with 4 KiB.

Each case is rows that are the same whatever the size of a page, with what is said of each size. A
bundle that does not say how large a page is has its findings all the same, and these say what is
assumed.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import report_bundle as made

from mmscope.drgn.free.pcp_lists import PcpPages
from mmscope.drgn.free.zones import Zone
from mmscope.drgn.machine.physical_memory import PhysicalPart
from mmscope.drgn.owners.page_owner_rows import PageOwnerGrowth, PageOwnerSnapshot, PageOwnerStack
from mmscope.drgn.struct_pages.device_pagemaps import DevicePagemap
from mmscope.drgn.struct_pages.hugetlb import HugetlbPool, HugetlbSize
from mmscope.drgn.struct_pages.memory_metadata import MetadataPart, what_if
from mmscope.drgn.tables.rows import column
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.finding import Finding, Verdict
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.findings.question import OURS
from mmscope.reports.rows.profile_rows import ProfileFaults, ProfilePart

QUESTIONS = {question.id: question for question in OURS()}
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (4 * KIB, 16 * KIB, 64 * KIB)
PAGES = 1 << 20  # of the machine


@dataclasses.dataclass(frozen=True)
class PageTables:
    """As far as findings about profiles look."""

    pid: int = column(key=True)
    comm: str = column()
    exit_pte_slots: int = column()
    pgtables_bytes: int = column(unit="bytes")


def on_lists(size: int) -> dict[str, list[Any]]:
    """Half of a zone's free memory on the lists of a CPU."""
    zone = Zone(
        0, "Normal", PAGES, PAGES, PAGES, free_pages=100_000, wmark_min=10_000, wmark_low=12_500,
        wmark_high=15_000, wmark_boost=0, highatomic_reserved_pages=0, highatomic_free_pages=0,
        highatomic_cap_pages=10_240, start_pfn=PAGES, lock_held=False, node_unreclaimable=False,
    )  # fmt: skip
    return {"zones": [zone], "pcp_pages": [PcpPages(0, "Normal", 0, 0, "Movable", 200_000)]}


def device(size: int) -> dict[str, list[Any]]:
    """A device of 128 GiB with its struct pages in RAM."""
    memmap = 64 * (128 << 30) // size
    row = DevicePagemap("0x100000000", "0x500000000", "namespace0.0", "FS_DAX", 128 << 30, 0, False,
                        memmap, memmap, 0, 0, memmap // 4 * 3, 4 << 20, 33.6, 49.9, None,
                        "a pmem disk (fsdax) is used in base pages")  # fmt: skip
    return {"device_pagemaps": [row]}


def kept(size: int) -> dict[str, list[Any]]:
    """An eighth of the machine offline."""
    return {
        "physical_memory_parts": [
            PhysicalPart("machine", 16 * GIB, 100.0, False, "", ""),
            PhysicalPart("offline", 2 * GIB, 12.5, True, "", ""),
        ]
    }


def huge(size: int, hvo: str) -> dict[str, list[Any]]:
    """A pool of huge pages of a PMD, whose struct pages are all there, some of them hosted."""
    large, each = size // 8 * size, 8 * size
    return {
        "hugetlb_pools": [
            HugetlbPool(large, 0, 9000, 0, 0, 0, 4000, 9000 * each, 0, 5000 * 7 * size)
        ],
        "hugetlb_sizes": [HugetlbSize(large, 9000, 0, 0, 0, 0, hvo, 7 * size)],
    }


def idle(size: int) -> dict[str, list[Any]]:
    """Pools of huge pages of two sizes that nobody uses."""
    tenth = PAGES * size // (640 * KIB)
    return {
        "hugetlb_sizes": [
            HugetlbSize(64 * KIB, tenth, tenth, 0, 0, 0, None, None),
            HugetlbSize(size // 8 * size, 2, 2, 0, 0, 0, None, None),
        ]
    }


def owners(size: int) -> dict[str, list[Any]]:
    """A stack that holds a fifth of memory and only grows."""
    return {
        "page_owner_stacks": [PageOwnerStack(1, 200_000, None, "f", "m", "r;f", None)],
        "page_owner_growth": [
            PageOwnerGrowth(1, 0.0, 5, 0, 1, 200_000, 1, 200_000, 199_999, 5000.0, 1.0, 4)
        ],
        "page_owner_snapshots": [
            PageOwnerSnapshot(10.0 * n, None, f"s{n}", "show_handles", 2, 5000, 0, False, None)
            for n in range(5)
        ],
    }


def metadata(size: int) -> dict[str, list[Any]]:
    """Struct pages, and 80 bytes a page of page_ext."""
    total = PAGES * size

    def part(name: str, number: int) -> MetadataPart:
        return MetadataPart(name, number, 100 * number / total, None, False)

    return {
        "memory_about_memory": [
            part("struct page, allocated at boot", PAGES * 64),
            part("page_ext", PAGES * 80),
        ],
        "memmap_what_if": what_if(total, size.bit_length() - 1, 64, None),
    }


def profiles(size: int) -> dict[str, list[Any]]:
    """A recording of a process whose page tables take time at its end and at its faults."""
    counted = ProfileFaults("faults", "minor-faults", 7, "faults", 900, 890, "0x1", "0x2",
                            size // 8 * size)  # fmt: skip
    faults = [
        ProfilePart("faults", "cpu-clock", "page-fault", "fault", part, 60, 0.5, 0.5)
        for part in ("page tables", "zeroing")
    ]
    rows = {name: rows for name, (_, _, rows, _) in made.profile_rows().items()}
    return rows | {
        "profile_parts": rows["profile_parts"] + faults,
        "profile_faults": [counted],
        "page_tables": [PageTables(9, "sparse", 2500 * (size // 8), 2500 * size)],
    }


def bundle(path: Path, rows: dict[str, list[Any]], size: int | None) -> Bundle:
    target = {"kind": "vmcore", "release": "7.2.12", "total_pages": PAGES, "uptime_seconds": 7200.0}
    if size is not None:
        target["page_size"] = size
    with Writer(path) as writer:
        for name, of_table in rows.items():
            writer.table(name, name, type(of_table[0]), of_table, section="x")
        writer.finish(target, [])
    return Bundle(path)


def asked(tmp_path: Path, id: str, rows: dict[str, list[Any]], size: int | None) -> Verdict:
    return evaluate(bundle(tmp_path / "b", rows, size), [QUESTIONS[id]])


def found(tmp_path: Path, id: str, rows: dict[str, list[Any]], size: int | None) -> Finding:
    (finding,) = asked(tmp_path, id, rows, size).found
    return finding


def words_of(finding: Finding) -> str:
    return "\n".join((finding.title, finding.saw, finding.why, *(s.text for s in finding.next)))


# What is said with pages of 4, 16 and 64 KiB.
SAID = {
    "pcp-lists-hold-free": (
        on_lists, "{} are cached on per-CPU lists", "781.2 MiB", "3.052 GiB", "12.21 GiB"
    ),
    "pcp-lists-hold-free, by the block": (
        on_lists, "Lists of THP order hold {} a block.", "2 MiB", "32 MiB", "512 MiB"
    ),
    "device-memmap-in-ram": (
        device, "A struct page for every {} of", "4 KiB", "16 KiB", "64 KiB"
    ),
    "device-memmap-in-ram, by its share": (
        device, "{} of the device's size", "1.6 %", "0.39 %", "0.098 %"
    ),
    "device-memmap-in-ram, by the option": (
        device, "--align={}. Two of the eight", "2M", "32M", "512M"
    ),
    "memory-kept": (kept, "struct pages for it, {} of it", "1.6 %", "0.39 %", "0.098 %"),
    "hvo-off": (lambda size: huge(size, "off"), "8 for a huge page of {}, one is enough",
                "2 MiB", "32 MiB", "512 MiB"),
    "hvo-pages-left": (lambda size: huge(size, "on"), "existing memory: {} of its size",
                       "1.6 %", "0.39 %", "0.098 %"),
    "hugetlb-idle": (idle, "(pages of 64 KiB, {}) are free", "2 MiB", "32 MiB", "512 MiB"),
    "page-owner-large-owner": (
        owners, "200,000 pages ({}) of 1,048,576", "781.2 MiB", "3.052 GiB", "12.21 GiB"
    ),
    "page-owner-stack-grows": (
        owners, "grow steadily, +{} in", "781.2 MiB", "3.052 GiB", "12.21 GiB"
    ),
    "page-owner-took-growth": (
        owners, "199,999 pages ({}) of the 199,999", "781.2 MiB", "3.052 GiB", "12.21 GiB"
    ),
    "profile-exit-share": (
        profiles, "{} slots in 2,500 tables", "1,280,000", "5,120,000", "20,480,000"
    ),
    "profile-fault-tables": (
        profiles, "900 faults touched 890 regions of {}, each", "2 MiB", "32 MiB", "512 MiB"
    ),
}  # fmt: skip


@pytest.mark.parametrize("at", range(len(SIZES)), ids=["4K", "16K", "64K"])
@pytest.mark.parametrize("case", SAID)
def test_sizes_are_those_of_the_kernel_that_was_read(tmp_path: Path, case: str, at: int) -> None:
    rows, text, *sizes = SAID[case]
    words = words_of(found(tmp_path, case.partition(",")[0], rows(SIZES[at]), SIZES[at]))
    assert text.format(sizes[at]) in words
    assert "assumed" not in words
    if at:
        # 1 GiB may be an amount.
        assert not re.search(r"\b(?:4 KiB|2 MiB|512 slots|1\.6 %)", words), words


@pytest.mark.parametrize("case", SAID)
def test_without_the_size_of_a_page_nothing_is_given_as_known(tmp_path: Path, case: str) -> None:
    """A stranger's bundle: what depends on the size is left out, or said to be assumed."""
    verdict = asked(tmp_path, case.partition(",")[0], SAID[case][0](4096), None)
    if not verdict.found:
        assert "page_size is unknown" in verdict.not_checked[0].reason
        return
    told = verdict.found
    words = words_of(told[0])
    by_page = re.search(r"\b(?:4 KiB|2 MiB|2M|1 GiB|512|1\.6 %)\b", words)
    assert bool(by_page) is ("pages of 4 KiB are assumed" in words), words
    assert "unknown" not in told[0].title


def test_page_ext_is_a_share_of_memory_that_goes_by_the_page(tmp_path: Path) -> None:
    words = words_of(found(tmp_path, "metadata-above-share", metadata(16 * KIB), 16 * KIB))
    assert "page_owner=on adds 0.15 to 0.49 % of memory" in words
    assert "other users 0.049 to 0.098 %" in words


def test_regions_of_an_old_recording_are_of_2_mib_as_is_said(tmp_path: Path) -> None:
    """0.1.0 counted regions by 2 MiB, and had no column for it."""

    @dataclasses.dataclass(frozen=True)
    class OldFaults:
        profile: str = column(key=True)
        event: str = column(key=True)
        pid: int = column(key=True)
        comm: str = column()
        faults: int = column()
        regions: int = column()

    rows = profiles(16 * KIB)
    rows["profile_faults"] = [OldFaults("faults", "minor-faults", 7, "faults", 900, 890)]
    words = words_of(found(tmp_path, "profile-fault-tables", rows, 16 * KIB))
    assert (
        "890 regions of 2 MiB (assumed: this bundle does not say how large they are), each" in words
    )
    assert "A table of 16 KiB for each region of 32 MiB" in words
