# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct mem_section``: the sections (128 MiB on x86-64) by which SPARSEMEM knows what memory there
is.

Read root by root (a page of 256 sections each), so that the 65,536 sections of 8 TiB take a few
hundred reads. What cannot be read is counted, and its sections are missing.

``mem_section.usage`` says which parts of a section have pages, and has the flags of its pageblocks.
The usages of neighbours lie close to each other and are read together; one that cannot be read
costs its own section's.

From them follows which page frames have a struct page.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from drgn import FaultError, Program, TypeKind, offsetof, sizeof
from drgn.helpers.linux.mm import for_each_valid_page_range

from mmscope.drgn.reading.kernel_arrays import (
    Bools,
    Gaps,
    S64s,
    U8s,
    U64s,
    read_array,
    struct_dtype,
)
from mmscope.drgn.reading.scattered_reads import read_scattered

SECTION_MARKED_PRESENT = 1
# Macros with the same values until "mm: memory_hotplug: enumerate all supported section flags"
# (ed7802dd48f7, in v6.0).
SECTION_BITS = {"HAS_MEM_MAP": 1, "IS_ONLINE": 2, "IS_EARLY": 3}
# include/linux/mmzone.h; a macro, which debug info does not keep.
SUBSECTION_SHIFT = 21
MAX_SECTIONS = 1 << 21  # 256 TiB in sections of 128 MiB; more is damage


@dataclass(frozen=True, slots=True)
class Sections:
    """Some sections, ascending."""

    numbers: S64s
    early: Bools  # which were there when the machine booted
    online: Bools
    usage: U64s  # where their mem_section.usage is
    usage_possible: Bools  # it may be there: the pointer is not obviously garbage
    pages: int  # in a section
    root_bytes: int  # what the array of sections and the array of its roots take


def present_sections(prog: Program, gaps: Gaps) -> Sections:
    """
    All present sections.

    :raises LookupError: the kernel is built without SPARSEMEM.
    :raises ValueError: there are more than any machine has.
    """
    roots = prog["NR_SECTION_ROOTS"].value_()
    return _sections(prog, np.uint64(SECTION_MARKED_PRESENT), roots, gaps)


def valid_sections(prog: Program) -> Sections:
    """
    All sections that have struct pages (``valid_section()``).

    :raises LookupError: the kernel is built without SPARSEMEM.
    :raises FaultError: a part of the array of sections cannot be read.
    :raises ValueError: there are more than any machine has.
    """
    # Behind these the array of roots is zeros, which a dump need not have.
    highest = prog["__highest_present_section_nr"].value_()
    roots, gaps = highest // prog["SECTIONS_PER_ROOT"].value_() + 1, Gaps()
    found = _sections(prog, _section_flag(prog, "HAS_MEM_MAP"), roots, gaps)
    if gaps.bytes:
        raise FaultError("mem_section cannot be read", prog["mem_section"].value_())
    return found


def _sections(prog: Program, flag: np.uint64, most_roots: int, gaps: Gaps) -> Sections:
    """The sections that have a flag, in so many roots."""
    type_ = prog.type("struct mem_section")
    dtype = struct_dtype(type_, {"map": "section_mem_map", "usage": "usage"})
    per_root = prog["SECTIONS_PER_ROOT"].value_()
    roots, root_bytes = _roots(prog, gaps, most_roots)
    numbers, parts, possible, total = [], [], [], 0
    for number, address in roots:
        for first, array in read_array(prog, address, per_root, dtype, gaps):
            at = np.flatnonzero(array["map"] & flag)
            numbers.append(number * per_root + first + at)
            parts.append(array[at])
            # A pointer to nowhere does not fault in every core (QEMU's give p_vaddr = p_paddr). A
            # usage lies in the same part of all addresses as the section.
            usage = array["usage"][at]
            sound = (usage % np.uint64(8) == 0) & (usage != 0)
            possible.append(sound & (usage >> np.uint64(56) == np.uint64(address >> 56)))
            total += len(at)
            if total > MAX_SECTIONS:
                raise ValueError("mem_section is damaged: more sections than any machine has")
    found = np.concatenate([np.empty(0, dtype), *parts])
    return Sections(
        np.concatenate([np.empty(0, np.int64), *numbers]),
        (found["map"] & _section_flag(prog, "IS_EARLY")) != 0,
        (found["map"] & _section_flag(prog, "IS_ONLINE")) != 0,
        found["usage"],
        np.concatenate([np.empty(0, np.bool_), *possible]),
        1 << (prog["SECTION_SIZE_BITS"].value_() - prog["PAGE_SHIFT"].value_()),
        root_bytes + len(roots) * per_root * sizeof(type_),
    )


def _section_flag(prog: Program, name: str) -> np.uint64:
    """A flag of ``mem_section.section_mem_map``."""
    try:
        bit = int(prog.constant(f"SECTION_{name}_BIT").value_())
    except LookupError:
        bit = SECTION_BITS[name]
    return np.uint64(1 << bit)


def _roots(prog: Program, gaps: Gaps, count: int) -> tuple[list[tuple[int, int]], int]:
    """(Number, address) of each root there is, and the bytes of the array of their addresses."""
    mem_section = prog["mem_section"]
    count = min(count, prog["NR_SECTION_ROOTS"].value_())
    if mem_section.type_.unaliased().kind is not TypeKind.POINTER:
        # CONFIG_SPARSEMEM_EXTREME=n: all roots are one array of arrays, with one section each.
        first = mem_section[0].address_of_().value_()
        size = sizeof(mem_section[0])
        return [(number, first + number * size) for number in range(count)], 0
    pointer: np.dtype[Any] = np.dtype(np.uint64)
    roots = []
    for first, addresses in read_array(prog, mem_section.value_(), count, pointer, gaps):
        # The array is all zeros, except for the first few of up to 131,072.
        for at in np.flatnonzero(addresses).tolist():
            roots.append((first + at, int(addresses[at])))
    return roots, count * pointer.itemsize


def read_usage(prog: Program, sections: Sections, size: int, gaps: Gaps) -> tuple[U8s, Bools]:
    """
    The first *size* bytes of each section's ``struct mem_section_usage``.

    :return: (the bytes, one row for each section; which could be read: the others are zero).
    """
    raw = np.zeros((len(sections.numbers), size), np.uint8)
    read = sections.usage_possible.copy()
    gaps.bytes += size * int((~read).sum())
    raw[read], read[read] = read_scattered(
        prog, sections.usage[read], np.dtype((np.uint8, (size,))), gaps
    )
    return raw, read


def subsection_order(prog: Program) -> int:
    """The order of what ``mem_section_usage.subsection_map`` has a bit for."""
    shift: int = min(SUBSECTION_SHIFT, prog["SECTION_SIZE_BITS"].value_())
    return shift - int(prog["PAGE_SHIFT"].value_())


def subsection_maps(prog: Program, sections: Sections, raw: U8s) -> Bools:
    """
    Maps of each section's subsections that have pages, by what :func:`read_usage` read. Without
    CONFIG_SPARSEMEM_VMEMMAP there is no map, and a section has all or none.
    """
    count = sections.pages >> subsection_order(prog)
    usage = prog.type("struct mem_section_usage")
    if not usage.has_member("subsection_map"):
        return np.ones((len(raw), count), np.bool_)
    at = offsetof(usage, "subsection_map")
    words = raw[:, at : at + -(-count // 64) * 8]
    return np.unpackbits(words, axis=1, bitorder="little")[:, :count].astype(np.bool_)


def valid_page_ranges(prog: Program) -> list[tuple[int, int, int]]:
    """
    The ranges of page frames that have a struct page.

    Of a section whose ``subsection_map`` cannot be read all pages are among them: those that have
    no struct page fault, and are counted, where they are read.

    :return: (first PFN, PFN after the last, address of the first ``struct page``), ascending.
    :raises FaultError: a ``struct mem_section`` cannot be read.
    """
    size = sizeof(prog.type("struct page"))
    # Without CONFIG_SPARSEMEM_VMEMMAP they are not in one array, and there is no such map.
    if "mem_section" not in prog or not prog.type("struct mem_section_usage").has_member(
        "subsection_map"
    ):
        return [
            (start, end, mem_map.value_() + start * size)
            for start, end, mem_map in for_each_valid_page_range(prog)
        ]
    vmemmap = prog["vmemmap"].value_()
    sections = valid_sections(prog)
    order = subsection_order(prog)
    valid = np.ones((len(sections.numbers), sections.pages >> order), np.bool_)
    # pfn_valid() looks at the map only of sections that came later.
    if not sections.early.all():
        usage_bytes = sizeof(prog.type("struct mem_section_usage"))
        raw, read = read_usage(prog, sections, usage_bytes, Gaps())
        later = read & ~sections.early
        valid[later] = subsection_maps(prog, sections, raw)[later]
    rows, parts = np.nonzero(valid)
    numbers = sections.numbers[rows] * valid.shape[1] + parts
    ends = np.flatnonzero(np.diff(numbers, append=-1) != 1)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])[: len(ends)]
    return [
        (first << order, last + 1 << order, vmemmap + (first << order) * size)
        for first, last in zip(numbers[starts].tolist(), numbers[ends].tolist(), strict=True)
    ]


def page_addresses(ranges: U64s, pfns: U64s, size: int) -> tuple[U64s, Bools]:
    """
    The addresses of the struct pages of page frames, and which frames have one.

    :param ranges: of :func:`valid_page_ranges`; :param size: of a struct page.
    """
    at = np.searchsorted(ranges[:, 0], pfns, side="right") - 1
    valid: Bools = (at >= 0) & (pfns < ranges[at, 1])
    return ranges[at, 2] + (pfns - ranges[at, 0]) * np.uint64(size), valid


def memory_pages(prog: Program) -> int:
    """Number of page frames; more than any machine has, if that is unknown."""
    try:
        return sum(end - start for start, end, _ in valid_page_ranges(prog))
    except (FaultError, LookupError, NotImplementedError, ValueError):
        return 1 << 40
