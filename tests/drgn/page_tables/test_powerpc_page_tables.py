# SPDX-License-Identifier: LGPL-2.1-or-later
"""page_table_formats: radix tables of powerpc, whose entries are big-endian."""

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

from mmscope.drgn.page_tables.page_table_formats import (
    PPC64_RADIX,
    PPC64_RADIX_64K,
    PageTableFormat,
    page_table_format,
)

FORMS = (PPC64_RADIX, PPC64_RADIX_64K)
# _PAGE_PRESENT, _PAGE_PTE, _PAGE_INVALID, _PAGE_SPECIAL, _PAGE_WRITE.
PRESENT, PTE, INVALID, SPECIAL, WRITE = 1 << 63, 1 << 62, 1 << 61, 0x400, 0x2


@given(st.integers(0, 1 << 32), st.sampled_from(FORMS), st.booleans())
def test_a_walk_finds_every_leaf(seed: int, form: PageTableFormat, kernel: bool) -> None:
    check_a_walk_finds_every_leaf(
        Memory(Architecture.PPC64, form),
        seed,
        kernel=kernel,
        leaf=lambda level, at: PRESENT | PTE | at,
        # The lower bits say how many entries the table has.
        table=lambda level, at: PRESENT | at | form.slots(level + 1).bit_length() - 1,
    )


@pytest.mark.parametrize(
    ("form", "bytes_"),
    [(PPC64_RADIX, [65536, 4096, 4096, 4096]), (PPC64_RADIX_64K, [65536, 4096, 4096, 256])],
)
def test_tables_are_as_large_as_the_kernel_makes_them(
    form: PageTableFormat, bytes_: list[int]
) -> None:
    """R{PGD,PUD,PMD,PTE}_TABLE_SIZE: radix-4k.h and radix-64k.h."""
    assert [form.table_bytes(level) for level in range(4)] == bytes_
    assert form.kernel == (0xC000 << 48, 0xC010 << 48)


@pytest.mark.parametrize("form", FORMS)
def test_what_an_entry_says(form: PageTableFormat) -> None:
    page = 0x12345 << form.page_shift
    entries = np.array(
        [0, PRESENT | PTE | page, INVALID | PTE | page | SPECIAL | WRITE, PTE | page | 7], np.uint64
    )
    assert form.is_none(entries).tolist() == [True, False, False, False]
    assert form.is_leaf(entries, form.last).tolist() == [False, True, True, False]
    assert form.is_special(entries).tolist() == [False, False, True, False]
    assert form.is_writable(entries).tolist() == [False, False, True, True]
    types, offsets = form.swap(entries[3:])
    assert (types.tolist(), offsets.tolist()) == ([7], [0x12345])


def kernel(page_shift: int, features: int) -> Program:
    """A program without memory that has what a format is read off. A mock."""
    prog = Program(Platform(Architecture.PPC64, LITTLE))
    number = prog.int_type("unsigned int", 4, False)
    spec = prog.struct_type("cpu_spec", 4, (TypeMember(number, "mmu_features", 0),))
    objects = {
        "PAGE_SHIFT": Object(prog, number, page_shift),
        "cur_cpu_spec": Object(prog, spec, {"mmu_features": features}),
    }

    def find(prog: Program, name: str, flags: FindObjectFlags, file: str | None) -> Object | None:
        return objects.get(name)

    prog.register_object_finder("mock", find, enable_index=0)
    return prog


def test_the_format_is_that_of_the_kernel() -> None:
    assert page_table_format(kernel(12, 0x40)) is PPC64_RADIX
    assert page_table_format(kernel(16, 0x5C0)) is PPC64_RADIX_64K
    with pytest.raises(NotImplementedError, match="hashed"):
        page_table_format(kernel(16, 0x1))
