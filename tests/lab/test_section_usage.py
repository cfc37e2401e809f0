# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mem_section.usage`` that is damaged costs the pageblocks of its own sections, against the same
vmcore undamaged.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capture import Capture
from conftest import Lab, OwnerLab, StructPagesLab
from drgn import FaultError, Program, offsetof
from drgn.helpers.linux.mm import for_each_valid_page_range
from drgn.helpers.linux.mmzone import nr_to_section

from mmscope.drgn.free.pageblocks import pageblock_bits
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.reading.mem_sections import Sections, valid_page_ranges, valid_sections
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.sections.section import Found
from mmscope.reports.collect.run_section import run_section

BLOCKS = 64  # of 2 MiB in a section of 128 MiB
PAGE = 4096


def opened(capture: Capture) -> Program:
    """A program of its own, to be damaged."""
    return open_target(capture.vmcore, [capture.vmlinux])


def cover(prog: Program, address: int, content: bytes | None, size: int = 8) -> None:
    """Put other content over kernel memory, or none that can be read."""

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        if content is None:
            raise FaultError("not in the dump", address)
        return content[offset : offset + count]

    prog.add_memory_segment(address, size, read, False)


def usage_bytes(prog: Program) -> int:
    """What is read of a section's usage."""
    start = offsetof(prog.type("struct mem_section_usage"), "pageblock_flags")
    return start + BLOCKS * pageblock_bits(prog)[0] // 8


def point(prog: Program, number: int, pointer: int) -> None:
    """Let a section's usage be elsewhere."""
    usage = nr_to_section(prog, number).usage
    assert usage.address_ is not None
    cover(prog, usage.address_, pointer.to_bytes(8, "little"))


def tables(found: Found) -> dict[str, list[Any]]:
    return found.by_name


def assert_only_these_are_lost(lab: Lab, prog: Program, lost: set[int]) -> None:
    """Some sections' pageblocks are unreadable; all else is as in the undamaged vmcore."""
    assert lost
    size = len(lost) * usage_bytes(prog)
    words = f"up to {len(lost) * BLOCKS} pageblocks ({size:,} bytes of mem_section.usage)"
    memory = Memory(prog)
    section, found = run_section(SECTIONS["pageblocks"], memory)
    assert (section.status, section.unreadable_bytes) == ("partial", size)
    assert section.message and words in section.message and "not counted" in section.message
    whole = lab.free
    expected: Counter[tuple[int, str, str]] = Counter()
    for number in np.flatnonzero(whole.pageblocks.zone >= 0).tolist():
        if number // BLOCKS not in lost:
            place = whole.zone_names[int(whole.pageblocks.zone[number])]
            expected[*place, whole.types.names[whole.types.types[number]]] += 1
    rows, runs = (tables(found)[name] for name in ("pageblocks", "pageblock_map"))
    assert {(r.node, r.zone, r.migratetype): r.blocks for r in rows if r.blocks} == expected
    assert "unknown" not in {row.migratetype for row in rows}
    mapped: Counter[tuple[int, str, str]] = Counter()
    for run in runs:
        mapped[run.node, run.zone, run.migratetype] += run.blocks
        here = range(run.start_pfn // 512 // BLOCKS, (run.start_pfn // 512 + run.blocks) // BLOCKS)
        assert not lost.intersection(here)
    assert mapped == expected
    undamaged = Memory(lab.prog)
    section, found = run_section(SECTIONS["free_lists"], memory)
    assert (section.status, section.unreadable_bytes) == ("partial", size)
    assert section.message and words in section.message
    _, as_was = run_section(SECTIONS["free_lists"], undamaged)
    if lab.capture.series in (
        "5.10",
        "6.1",
    ):  # which have blocks on another list than their pageblock's
        was = tables(as_was).pop("misplaced_blocks")
        assert sum(row.blocks for row in tables(found)["misplaced_blocks"]) <= sum(
            row.blocks for row in was
        )
        assert tables(found)["free_blocks"] == tables(as_was)["free_blocks"]
        assert not tables(found)["free_list_checks"]
    else:
        assert tables(found) == tables(as_was)
    for name in ("pcp_lists", "accounting", "zones"):
        section, found = run_section(SECTIONS[name], memory)
        assert section.status == "ok", section
        assert tables(found) == tables(run_section(SECTIONS[name], undamaged)[1])


def one_section(sections: Sections) -> int:
    """A section in the middle of a node, which has 64 pageblocks."""
    return int(sections.numbers[len(sections.numbers) // 2])


GARBAGE: dict[str, Callable[[int], int]] = {
    "NULL": lambda _: 0,
    "not canonical": lambda _: 0xDEAD_0000_0000_0000,
    "a physical address, which QEMU's vmcores have memory for": lambda _: 0x10_0000,
    "all ones": lambda _: (1 << 64) - 1,
    "the end of all addresses": lambda _: (1 << 64) - 8,
    "not aligned": lambda usage: usage + 3,
    "nothing there": lambda usage: usage | 0x00FF_FF00_0000_0000,
}


@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.any_kernel
def test_a_usage_pointer_of_garbage(lab: Lab, what: str) -> None:
    prog = opened(lab.capture)
    sections = valid_sections(prog)
    number = one_section(sections)
    point(prog, number, GARBAGE[what](int(sections.usage[sections.numbers == number][0])))
    assert_only_these_are_lost(lab, prog, {number})


def test_a_usage_that_cannot_be_read(lab: Lab) -> None:
    prog = opened(lab.capture)
    sections = valid_sections(prog)
    number = one_section(sections)
    usage = int(sections.usage[sections.numbers == number][0])
    cover(prog, usage, None, usage_bytes(prog))
    assert_only_these_are_lost(lab, prog, {number})


def test_a_subsection_map_that_cannot_be_read(lab: Lab) -> None:
    prog = opened(lab.capture)
    sections = valid_sections(prog)
    number = one_section(sections)
    usage = int(sections.usage[sections.numbers == number][0])
    at = offsetof(prog.type("struct mem_section_usage"), "subsection_map")
    cover(prog, usage + at, None)
    assert_only_these_are_lost(lab, prog, {number})


def test_usages_that_lie_together_cannot_be_read(lab: Lab) -> None:
    """Those of a node's sections do; the others keep theirs."""
    prog = opened(lab.capture)
    sections = valid_sections(prog)
    size = usage_bytes(prog)
    # A machine of this size has not a page full of them: other structures begin behind them.
    together = int(np.flatnonzero(np.diff(sections.usage) != size)[0]) + 1
    cover(prog, int(sections.usage[0]), None, together * size)
    lost = set(sections.numbers[:together].tolist())
    assert 1 < len(lost) < len(sections.numbers)
    assert_only_these_are_lost(lab, prog, lost)


def test_valid_pages_are_those_that_drgn_finds(lab: Lab, vmemmap_lab: StructPagesLab) -> None:
    size = lab.prog.type("struct page").size or 0
    for prog in (lab.prog, vmemmap_lab.prog):
        assert valid_page_ranges(prog) == [
            (start, end, mem_map.value_() + start * size)
            for start, end, mem_map in for_each_valid_page_range(prog)
        ]


def test_sections_that_came_later_keep_their_struct_pages(vmemmap_lab: StructPagesLab) -> None:
    """Of these the map says which pages are valid: a DIMM, and devices' memory."""
    prog = opened(vmemmap_lab.capture)
    sections = valid_sections(prog)
    later = np.flatnonzero(~sections.early)
    assert len(later) >= 3 and sections.online[later].any()
    for at, pointer in zip(later.tolist(), (0, 0xDEAD_0000_0000_0000, 0x1000, None), strict=True):
        if pointer is None:
            # It came from the slab allocator: the page has nothing else that is needed here.
            cover(prog, int(sections.usage[at]) & -PAGE, None, PAGE)
        else:
            point(prog, int(sections.numbers[at]), pointer)
    memory, undamaged = Memory(prog), Memory(vmemmap_lab.prog)
    for name in ("free_lists", "hugetlb", "vmemmap"):
        section, found = run_section(SECTIONS[name], memory)
        assert section.status == ("partial" if name == "free_lists" else "ok"), section
        assert tables(found) == tables(run_section(SECTIONS[name], undamaged)[1])
    section, found = run_section(SECTIONS["pageblocks"], memory)
    assert section.status == "partial"
    online = [
        sum(
            row.blocks for row in tables(run_section(SECTIONS["pageblocks"], each)[1])["pageblocks"]
        )
        for each in (memory, undamaged)
    ]
    assert online[1] - online[0] == BLOCKS * sections.online[later].sum()


@pytest.mark.owner_kernel
def test_owners_of_pages_stay(owner_lab: OwnerLab, tmp_path: Path) -> None:
    prog = opened(owner_lab.capture)
    number = one_section(valid_sections(prog))
    point(prog, number, 0xDEAD_0000_0000_0000)
    section, found = run_section(SECTIONS["page_owner"], Memory(prog))
    assert section.status == "partial" and section.unreadable_bytes == usage_bytes(prog)
    assert section.message and "up to 64 pageblocks" in section.message
    _, as_was = run_section(SECTIONS["page_owner"], Memory(owner_lab.prog))
    now, was = tables(found), tables(as_was)
    for name in ("page_owner_stacks", "page_owner_tasks", "page_owner_orders", "page_owner_gfp"):
        assert now[name] == was[name]
    pages = [sum(row.pages for row in each["page_owner_migratetypes"]) for each in (now, was)]
    assert pages[0] == pages[1]
    unknown = [
        row for row in now["page_owner_migratetypes"] if row.pageblock_migratetype == "unknown"
    ]
    assert sum(row.pages for row in unknown) > 0
    known = {row.migratetype for row in now["page_owner_mixed_blocks"]}
    assert "unknown" not in known
    assert all(row.pageblock_migratetype != "unknown" for row in now["page_owner_polluters"])
