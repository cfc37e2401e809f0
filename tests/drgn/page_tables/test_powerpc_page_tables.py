# SPDX-License-Identifier: LGPL-2.1-or-later
"""page_table_formats: radix tables of powerpc, whose entries are big-endian."""

import random

import numpy as np
import pytest
from drgn import (
    Architecture,
    FaultError,
    FindObjectFlags,
    Object,
    Platform,
    PlatformFlags,
    Program,
    TypeMember,
)
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.page_tables.page_table_entries import new_walk, walk_page_tables
from mmscope.drgn.page_tables.page_table_formats import (
    PPC64_RADIX,
    PPC64_RADIX_64K,
    PageTableFormat,
    page_table_format,
)

LITTLE = PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN
FORMS = (PPC64_RADIX, PPC64_RADIX_64K)
# _PAGE_PRESENT, _PAGE_PTE, _PAGE_INVALID, _PAGE_SPECIAL, _PAGE_WRITE.
PRESENT, PTE, INVALID, SPECIAL, WRITE = 1 << 63, 1 << 62, 1 << 61, 0x400, 0x2


class Memory:
    """Physical memory that has some tables and faults elsewhere. A mock."""

    def __init__(self) -> None:
        self.tables: dict[int, bytes] = {}
        self.prog = Program(Platform(Architecture.PPC64, LITTLE))
        self.prog.add_memory_segment(0, 1 << 52, self._read, physical=True)

    def _read(self, address: int, count: int, offset: int, physical: bool) -> bytes:
        data = b""
        while len(data) < count:
            here = self.tables.get(address + len(data))
            if here is None:
                raise FaultError("no memory here", address)
            data += here
        return data[:count]


def grow(
    memory: Memory,
    form: PageTableFormat,
    dice: random.Random,
    level: int,
    base: int,
    found: set[tuple[int, int, int]],
) -> int:
    """A random table and all below it; says which leaves there are, and returns its address."""
    slots, shift = form.slots(level), form.levels[level].shift
    while (at := dice.randrange(1, 1 << 28) * slots * 8) in memory.tables:
        pass
    memory.tables[at] = b""
    table = np.zeros(slots, ">u8")
    for slot in dice.sample(range(slots), dice.randrange(4)):
        address = base + (slot << shift)
        if level == form.last or (form.levels[level].leaf and dice.random() < 0.3):
            physical = dice.randrange(1 << 52 - shift) << shift
            table[slot] = PRESENT | PTE | physical
            found.add((level, address, physical))
        else:
            below = grow(memory, form, dice, level + 1, address, found)
            # The lower bits say how many entries the table has.
            table[slot] = PRESENT | below | form.slots(level + 1).bit_length() - 1
    memory.tables[at] = table.tobytes()
    return at


@given(st.integers(0, 1 << 32), st.sampled_from(FORMS), st.booleans())
def test_a_walk_finds_every_leaf(seed: int, form: PageTableFormat, kernel: bool) -> None:
    memory, dice = Memory(), random.Random(seed)
    expected: set[tuple[int, int, int]] = set()
    start, end = form.kernel if kernel else (0, form.user_end)
    root = grow(memory, form, dice, 0, start, expected)
    walk, found = new_walk(form, 1), set()
    for chunk in walk_page_tables(
        memory.prog, form, np.array([root], np.uint64), walk, start=start, end=end
    ):
        rows, slots = np.nonzero(form.is_leaf(chunk.entries, chunk.level))
        addresses = chunk.slot_addresses(form.levels[chunk.level].shift, rows, slots)
        physical = form.physical(chunk.entries[rows, slots], chunk.level)
        found |= {
            (chunk.level, *pair) for pair in zip(addresses.tolist(), physical.tolist(), strict=True)
        }
    assert found == expected
    assert walk.tables.sum() == len(memory.tables) and not walk.gaps.bytes


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
