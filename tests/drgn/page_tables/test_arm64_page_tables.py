# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_table_formats: arm64's levels, roots and entries as its headers have them
(arch/arm64/include/asm/pgtable-hwdef.h, pgtable-prot.h and pgtable.h of 6.1 and 7.2).
"""

from typing import Any

import numpy as np
import pytest
from drgn import (
    Architecture,
    FindObjectFlags,
    Object,
    Platform,
    Program,
    TypeMember,
)
from hypothesis import given
from hypothesis import strategies as st
from page_table_trees import LITTLE, Memory, check_a_walk_finds_every_leaf

from mmscope.drgn.page_tables import page_table_scan
from mmscope.drgn.page_tables.page_table_formats import (
    ARM64_ENTRIES,
    ARM64_ENTRIES_BEFORE,
    ARM64_ENTRIES_FIRST,
    PageTableFormat,
    arm64_format,
    page_table_format,
)
from mmscope.drgn.page_tables.page_tables import PageTables, page_tables
from mmscope.drgn.page_tables.swap_types import OTHER
from mmscope.drgn.processes.address_spaces import AddressSpaces, Process
from mmscope.drgn.processes.vm_areas import VM_HUGETLB, VmAreas
from mmscope.drgn.reading.kernel_arrays import Gaps

VALID, TABLE, BLOCK, PAGE = 1, 3, 1, 3
NG, CONT, SPECIAL, WRITE, READ_ONLY = 1 << 11, 1 << 52, 1 << 56, 1 << 51, 1 << 7
# PAGE_NONE of Debian's 6.1.176 and 7.2.12, out of protection_map[].
PAGE_NONE_BEFORE, PAGE_NONE = 0x460_0000_0000_0F82, 0x60_0000_0000_0C82
# (log2 of a page, bits of addresses): how its addresses are cut, from the root down.
SHIFTS = {
    (12, 39): [30, 21, 12],
    (12, 48): [39, 30, 21, 12],
    (12, 52): [48, 39, 30, 21, 12],
    (14, 36): [25, 14],
    (14, 47): [36, 25, 14],
    (14, 48): [47, 36, 25, 14],
    (14, 52): [47, 36, 25, 14],
    (16, 42): [29, 16],
    (16, 48): [42, 29, 16],
    (16, 52): [42, 29, 16],
}


def form_of(page_shift: int, bits: int) -> PageTableFormat:
    return arm64_format(page_shift, bits, bits, ARM64_ENTRIES)


FORMS = [form_of(*shape) for shape in SHIFTS]


def array(*entries: int) -> np.ndarray:
    return np.array(entries, np.uint64)


@pytest.mark.parametrize("shape", SHIFTS)
def test_levels_cut_addresses_as_the_kernel_does(shape: tuple[int, int]) -> None:
    form, (page_shift, bits) = form_of(*shape), shape
    assert [level.shift for level in form.levels] == SHIFTS[shape]
    # ARM64_HW_PGTABLE_LEVEL_SHIFT(n), of which the last level is 3; PTRS_PER_PGD.
    per = page_shift - 3
    levels = (bits - 4) // per
    assert SHIFTS[shape] == [per * (4 - n) + 3 for n in range(4 - levels, 4)]
    assert form.root_slots == 1 << bits - SHIFTS[shape][0] <= form.slots(form.last) == 1 << per
    assert form.span == 1 << bits
    names = [level.name for level in form.levels]
    assert names == ["pgd", *["p4d", "pud", "pmd", "pte"][5 - levels :]]


def test_only_upper_levels_that_are_a_pud_or_a_pmd_map_memory() -> None:
    for form in FORMS:
        leaves = [level.leaf for level in form.levels]
        assert leaves[-2:] == [True, True]
        assert leaves[0] is (len(form.levels) < 4)


@given(st.sampled_from(FORMS), st.integers(0, (1 << 52) - 1))
def test_addresses_are_put_together_as_the_kernel_takes_them_apart(
    form: PageTableFormat, at: int
) -> None:
    page = 1 << form.page_shift
    high, shift = form.address_high
    bits = 52 if high else 48
    physical = at & ((1 << bits) - 1) & ~(page - 1)
    # __phys_to_pte_val()
    low = (1 << (50 if shift == 42 else 48)) - page
    entry = physical & low | (physical >> shift & high if high else 0)
    flags = TABLE | 1 << 10 | WRITE | 0x3F << 53
    # Bits 8 and 9 say how memory is shared where they are no address.
    flags |= 0 if shift == 42 else 0x3 << 8
    assert form.physical(array(entry | flags), form.last).tolist() == [physical]
    assert form.physical(array(entry | flags)).tolist() == [physical]
    for level in range(len(form.levels)):
        size = 1 << form.levels[level].shift
        if form.levels[level].leaf and physical % size == 0:
            assert form.physical(array(entry | flags), level).tolist() == [physical]


def test_tables_are_told_from_blocks_and_from_what_is_not_there() -> None:
    form = form_of(12, 48)
    pmd = form.last - 1
    table, block = 0x4000_0000 | TABLE, 0x4000_0000 | BLOCK | CONT
    invalid = 0x4000_0000 | NG  # pmd_mkinvalid(), while a huge page is split
    entries = array(table, block, invalid, 0, 0x40)
    assert form.is_table(entries, pmd).tolist() == [True, False, False, False, False]
    assert form.is_leaf(entries, pmd).tolist() == [False, True, True, False, False]
    assert form.is_none(entries).tolist() == [False, False, False, True, False]
    assert not form.is_leaf(entries, 0).any()
    assert form.is_table(array(table), form.last).tolist() == [False]
    clean = block | WRITE | READ_ONLY  # the CPU takes the latter away with the first write
    protected = block | READ_ONLY
    kinds = array(block | WRITE, clean, block, protected)
    assert form.is_writable(kinds).tolist() == [True, True, True, False]
    assert form.is_special(array(block | SPECIAL, block)).tolist() == [True, False]


def test_what_nobody_may_touch_is_present_in_its_own_way() -> None:
    new = form_of(12, 48)
    old = arm64_format(12, 48, 48, ARM64_ENTRIES_BEFORE)
    none, none_before = 0x1234000 | PAGE_NONE, 0x1234000 | PAGE_NONE_BEFORE
    assert new.is_leaf(array(none, none & ~NG), new.last).tolist() == [True, False]
    # PTE_NG alone says nothing before: it is a bit of a swap entry's offset.
    assert old.is_leaf(array(none_before, NG), old.last).tolist() == [True, False]
    invalid = 1 << 59  # PMD_PRESENT_INVALID
    assert old.is_leaf(array(0x20_0000 | invalid), old.last - 1).tolist() == [True]
    assert old.is_leaf(array(0x20_0000 | invalid), old.last).tolist() == [False]
    for form, entry in ((new, none), (old, none_before)):
        assert form.physical(array(entry), form.last).tolist() == [0x1234000]


@given(st.integers(0, 31), st.integers(0, (1 << 50) - 1))
def test_swap_entries_are_taken_apart_as_the_kernel_puts_them_together(
    type_: int, offset: int
) -> None:
    # __swp_entry() of 7.2, 6.1 and 5.10, with PTE_SWP_EXCLUSIVE and PTE_SWP_UFFD_WP where they are.
    cases = (
        (ARM64_ENTRIES, type_ << 6 | offset << 12 | 0xC),
        (ARM64_ENTRIES_BEFORE, type_ << 3 | offset << 8 | 0x4),
        (ARM64_ENTRIES_FIRST, type_ << 2 | offset << 8),
    )
    for entries, entry in cases:
        form = arm64_format(12, 48, 48, entries)
        types, offsets = form.swap(array(entry))
        assert (types.tolist(), offsets.tolist()) == ([type_], [offset])
        assert not form.is_leaf(array(entry), form.last).any()
        assert not form.is_none(array(entry)).any() or not entry


def entry(form: PageTableFormat, physical: int) -> int:
    """The bits of an entry that have an address."""
    high, shift = form.address_high
    return physical & form.address | (physical >> shift & high if high else 0)


@given(st.integers(0, 1 << 32), st.sampled_from(FORMS), st.booleans())
def test_a_walk_finds_every_leaf(seed: int, form: PageTableFormat, kernel: bool) -> None:
    check_a_walk_finds_every_leaf(
        Memory(Architecture.AARCH64, form),
        seed,
        kernel=kernel,
        leaf=lambda level, at: entry(form, at) | (PAGE if level == form.last else BLOCK),
        table=lambda level, at: entry(form, at) | TABLE,
    )


def kernel_that_says(page_shift: int, none: int, *lines: str, exclusive: bool = True) -> Program:
    """A program without memory that has what a format is read off. A mock."""
    prog = Program(Platform(Architecture.AARCH64, LITTLE))
    long = prog.int_type("unsigned long", 8, False)
    char = prog.int_type("char", 1, True)
    member = prog.struct_type(None, 8, (TypeMember(long, "pgprot", 0),))
    text = "".join(f"{line}\n" for line in lines).encode() + b"\0"
    objects = {
        "PAGE_SHIFT": Object(prog, long, page_shift),
        "VMCOREINFO": Object(prog, prog.array_type(char, len(text)), list(text)),
        "protection_map": Object(prog, prog.array_type(member, 1), [{"pgprot": none}]),
    }

    if exclusive:
        objects["PG_anon_exclusive"] = Object(prog, long, 17)

    def find(prog: Program, name: str, flags: FindObjectFlags, file: str | None) -> Object | None:
        return objects.get(name)

    prog.register_object_finder("mock", find, enable_index=0)
    return prog


@pytest.mark.parametrize(
    ("page_shift", "built", "size", "bits", "levels"),
    [
        (12, 48, 16, 48, 4),
        (12, 52, 12, 52, 5),
        (12, 52, 16, 48, 4),  # the CPU has no LPA2
        (14, 52, 12, 52, 4),
        (14, 52, 17, 47, 3),
        (14, 48, 16, 48, 4),
        (16, 52, 16, 48, 3),  # the tables stay as they are
    ],
)
def test_the_format_is_that_of_kernel_and_cpu(
    page_shift: int, built: int, size: int, bits: int, levels: int
) -> None:
    lines = (f"NUMBER(VA_BITS)={built}", f"NUMBER(TCR_EL1_T1SZ)=0x{size:x}")
    form = page_table_format(kernel_that_says(page_shift, PAGE_NONE, *lines))
    assert (form.user_end, len(form.levels)) == (1 << bits, levels)
    assert form.span == 1 << (built if page_shift == 16 else bits)
    assert form.swap_type == ARM64_ENTRIES["swap_type"]
    before = page_table_format(kernel_that_says(page_shift, PAGE_NONE_BEFORE, *lines))
    assert before.swap_type == ARM64_ENTRIES_BEFORE["swap_type"]
    prog = kernel_that_says(page_shift, PAGE_NONE_BEFORE, *lines, exclusive=False)
    assert page_table_format(prog).swap_type == ARM64_ENTRIES_FIRST["swap_type"]


@pytest.mark.parametrize("lines", [("60", "0x10"), ("48", "0x0"), ("48", "0x7f"), ("48", "0x8")])
def test_a_damaged_vmcoreinfo_is_refused(lines: tuple[str, str]) -> None:
    said = (f"NUMBER(VA_BITS)={lines[0]}", f"NUMBER(TCR_EL1_T1SZ)={lines[1]}")
    with pytest.raises(ValueError, match="VMCOREINFO is damaged"):
        page_table_format(kernel_that_says(12, PAGE_NONE, *said))


@pytest.mark.parametrize("none", [0, 1, PAGE_NONE | 1, 1 << 12])
def test_entries_of_a_third_kind_are_refused(none: int) -> None:
    said = ("NUMBER(VA_BITS)=48", "NUMBER(TCR_EL1_T1SZ)=0x10")
    with pytest.raises(LookupError, match="neither of the ways of arm64"):
        page_table_format(kernel_that_says(12, none, *said))
    with pytest.raises(LookupError, match="VMCOREINFO has no VA_BITS"):
        page_table_format(kernel_that_says(12, PAGE_NONE, "OSRELEASE=7.2"))


# CONT_PTES and CONT_PMDS (arch/arm64/include/asm/pgtable-hwdef.h): how many entries of the last
# level, and of the one above, one huge page can be (arch/arm64/mm/hugetlbpage.c).
CONTIGUOUS = {12: (16, 16), 14: (128, 32), 16: (32, 32)}
SIZES = {
    12: [64 << 10, 2 << 20, 32 << 20],
    14: [2 << 20, 32 << 20, 1 << 30],
    16: [2 << 20, 512 << 20, 16 << 30],
}


def tree_of(memory: Memory, leaves: dict[int, tuple[int, int, int]]) -> int:
    """Tables with these leaves, address to (level, physical address, flags); says the root's."""
    form = memory.form
    at: dict[tuple[int, int], int] = {}

    def table(level: int, address: int) -> int:
        span = form.levels[level - 1].shift if level else 63
        key = level, address >> span
        if key not in at:
            at[key] = (len(at) + 1) << form.page_shift
            memory.table(at[key], level)
            if level:
                leads = entry(form, at[key]) | TABLE
                memory.tables[table(level - 1, address)][slot(level - 1, address)] = leads
        return at[key]

    def slot(level: int, address: int) -> int:
        count = form.slots(level)
        return address >> form.levels[level].shift & count - 1

    for address, (level, physical, flags) in leaves.items():
        memory.tables[table(level, address)][slot(level, address)] = entry(form, physical) | flags
    return at[0, 0]


def scanned(
    monkeypatch: pytest.MonkeyPatch, memory: Memory, root: int, areas: VmAreas
) -> PageTables:
    """The row of the only process. What is not in page tables is given."""
    memory.prog.add_memory_segment(
        0xFFFF_0000_0000_0000, 1 << 40, lambda address, count, offset, physical: bytes(count)
    )
    columns = np.zeros(1, [(name, np.uint64) for name in ("pgd", "tree", "pgtables_bytes")])
    columns["pgtables_bytes"] = (len(memory.tables) - 1) << memory.form.page_shift
    spaces = AddressSpaces([Process(7, "a", 1, 1)], array(1), array(2), columns, False, 0)
    word = np.dtype("<u8")
    given: dict[str, Any] = {
        "page_table_format": memory.form, "read_vm_areas": areas, "process_roots": array(root),
        "memory_pages": 1 << 40, "_zero_pages": (array(), array()),
        "swap_kinds": np.full(64, OTHER, np.uint8),
        "table_descriptors": (
            0xFFFF_0000_0000_0000, 64, np.dtype([("deposited", word), ("shared", word)]), 1,
            np.dtype([("next", word)]),
        ),
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setattr(page_table_scan, name, lambda *_, value=value, **__: value)
    scan = page_table_scan.scan_page_tables(memory.prog, found=(spaces, Gaps()))
    assert not scan.gaps.bytes and not scan.sums["bad"].any()
    (row,) = page_tables(scan)
    return row


@pytest.mark.parametrize("page_shift", CONTIGUOUS)
def test_hugetlb_pages_of_several_contiguous_entries_are_counted(
    monkeypatch: pytest.MonkeyPatch, page_shift: int
) -> None:
    """One of each size, beside a folio of ordinary memory that is contiguous entries, too."""
    form = form_of(page_shift, 48)
    memory, (ptes, pmds) = Memory(Architecture.AARCH64, form), CONTIGUOUS[page_shift]
    page, pmd, last = 1 << page_shift, 1 << form.levels[-2].shift, form.last
    assert [ptes * page, pmd, pmds * pmd] == SIZES[page_shift]
    base = 1 << 40
    leaves = {base + n * page: (last, base + n * page, PAGE | CONT) for n in range(ptes)}
    starts, ends = [base], [base + ptes * page]
    for count in (1, pmds):
        start = (ends[-1] // (pmds * pmd) + 1) * pmds * pmd
        flags = BLOCK | (CONT if count > 1 else 0)
        leaves |= {start + n * pmd: (last - 1, start + n * pmd, flags) for n in range(count)}
        starts.append(start)
        ends.append(start + count * pmd)
    # contpte: folios of anonymous memory and of files.
    start = ends[-1] + pmd
    leaves |= {start + n * page: (last, start + n * page, PAGE | CONT) for n in range(ptes)}
    starts.append(start)
    ends.append(start + ptes * page)
    flags = array(VM_HUGETLB, VM_HUGETLB, VM_HUGETLB, 0)
    areas = VmAreas(np.zeros(4, np.int64), array(*starts), array(*ends), flags, flags == 0, 0)
    row = scanned(monkeypatch, memory, tree_of(memory, leaves), areas)
    assert row.hugetlb_bytes == sum(SIZES[page_shift])
    assert row.resident_bytes == ptes * page
    assert row.pte_tables == 2 and row.used_ptes == 2 * ptes
    assert (row.huge_pmds, row.unaccounted_tables, row.swap_ptes) == (0, 0, 0)
