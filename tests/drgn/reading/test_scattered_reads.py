# SPDX-License-Identifier: LGPL-2.1-or-later
"""scattered_reads: every structure is its own bytes, or counted; swap_types: what an entry is."""

from dataclasses import replace

import numpy as np
from drgn import Architecture, FaultError, Platform, PlatformFlags, Program, TypeMember
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.page_tables.page_table_formats import X86_64
from mmscope.drgn.page_tables.swap_types import (
    DEVICE,
    MARKER,
    MIGRATION,
    NONE,
    OTHER,
    PAGE,
    POISONED,
    SPECIAL,
    SWAP,
    ZERO,
    entry_kinds,
)
from mmscope.drgn.reading.kernel_arrays import Gaps, struct_dtype
from mmscope.drgn.reading.scattered_reads import MAX_STRETCH, read_members, read_scattered

LITTLE = PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN
BASE = 0xFFFF_8880_0000_0000
PAGES = 1024
ITEM = np.dtype({"names": ["first", "last"], "formats": ["<u8", "<u4"], "offsets": [0, 36]})


def program(missing: set[int]) -> tuple[Program, bytes, list[int]]:
    """Memory whose pages in *missing* cannot be read; and the sizes of what was read."""
    content = np.random.default_rng(1).bytes(PAGES * 4096)
    sizes = []

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        at = address - BASE
        sizes.append(count)
        if not missing.isdisjoint(range(at // 4096, (at + count - 1) // 4096 + 1)):
            raise FaultError("no memory here", address)
        return content[at : at + count]

    prog = Program(Platform(Architecture.X86_64, LITTLE))
    prog.add_memory_segment(BASE, PAGES * 4096, read)
    return prog, content, sizes


@given(
    st.lists(st.integers(0, PAGES * 4096 - ITEM.itemsize), max_size=200),
    st.sets(st.integers(0, PAGES - 1), max_size=20),
)
def test_each_is_its_own_bytes_or_is_counted(offsets: list[int], missing: set[int]) -> None:
    prog, content, _ = program(missing)
    gaps = Gaps()
    addresses = np.array(offsets, np.uint64) + np.uint64(BASE)
    items, read = read_scattered(prog, addresses, ITEM, gaps)
    size = ITEM.itemsize
    lost = {o for o in offsets if not missing.isdisjoint((o // 4096, (o + size - 1) // 4096))}
    assert read.tolist() == [offset not in lost for offset in offsets]
    assert gaps.bytes == size * len(lost)
    for offset, item, whole in zip(offsets, items, read.tolist(), strict=True):
        if whole:
            assert item["first"] == int.from_bytes(content[offset : offset + 8], "little")
            assert item["last"] == int.from_bytes(content[offset + 36 : offset + 40], "little")
        else:
            assert item["first"] == item["last"] == 0


def test_neighbours_are_read_together_and_not_without_end() -> None:
    prog, _, sizes = program(set())
    addresses = np.arange(0, PAGES * 4096 - 64, 192, dtype=np.uint64) + np.uint64(BASE)
    read_scattered(prog, addresses, ITEM, Gaps())
    assert len(sizes) < 10
    assert max(sizes) <= MAX_STRETCH + 192


def test_entries_are_what_their_bits_say() -> None:
    kinds = np.full(32, SWAP, np.uint8)
    kinds[24:] = [POISONED, MIGRATION, MIGRATION, MIGRATION, DEVICE, DEVICE, DEVICE, MARKER]
    zero = np.array([0x5000], np.uint64)

    def absent(type_: int, offset: int) -> int:
        return (~offset << 14 & (1 << 64) - 1) >> 5 | type_ << 59

    inverted = ~0x5000 & X86_64.address
    expected = {
        0: NONE, 0x60: NONE, 0x1234067: PAGE, 0x5000 | 0x225: ZERO, 0x6000 | 0x225: SPECIAL,
        inverted | 0x300: ZERO, ~0x6000 & X86_64.address | 0x100: PAGE,
        absent(0, 7): SWAP, absent(23, 9): SWAP, absent(24, 9): POISONED,
        absent(26, 9): MIGRATION, absent(29, 9): DEVICE, absent(31, 1): MARKER,
        absent(31, 4): MARKER, absent(31, 2): POISONED,
        # v6.1: the number of the page that could not be swapped in.
        absent(31, 0x12348): POISONED,
    }  # fmt: skip
    found = entry_kinds(X86_64, kinds, zero, np.array(list(expected), np.uint64))
    assert dict(zip(expected, found.tolist(), strict=True)) == expected


def test_an_address_of_more_bits_than_the_cpu_has_cannot_be() -> None:
    form = replace(X86_64, reserved=X86_64.address & ~((1 << 40) - 1))
    entries = np.array([0xFF_FFFF_F067, 1 << 40 | 0x67, (1 << 64) - 1, 0], np.uint64)
    kinds, zero = np.full(32, SWAP, np.uint8), np.zeros(0, np.uint64)
    assert entry_kinds(form, kinds, zero, entries).tolist() == [PAGE, OTHER, OTHER, NONE]


@given(st.lists(st.integers(0, PAGES * 4096 - 64), max_size=200))
def test_members_are_those_of_the_whole_structure(offsets: list[int]) -> None:
    prog, _, _ = program({3, 700})
    number = prog.int_type("unsigned int", 4, False)
    members = (
        TypeMember(prog.array_type(number, 9), "before", 0),
        TypeMember(number, "first", 36 * 8),
        TypeMember(number, "last", 48 * 8),
    )
    type_ = prog.struct_type("item", 64, members)
    addresses = np.array(offsets, np.uint64) + np.uint64(BASE)
    gaps = Gaps()
    found, read = read_members(prog, addresses, type_, {"b": "last", "a": "first"}, gaps)
    whole, whole_read = read_scattered(
        prog, addresses, struct_dtype(type_, {"b": "last", "a": "first"}), Gaps()
    )
    # What is not read of the structure may lie where there is no memory.
    assert not (whole_read & ~read).any()
    assert found["a"][whole_read].tolist() == whole["a"][whole_read].tolist()
    assert found["b"][whole_read].tolist() == whole["b"][whole_read].tolist()
    assert gaps.bytes == 16 * len({o for o, ok in zip(offsets, read, strict=True) if not ok})
