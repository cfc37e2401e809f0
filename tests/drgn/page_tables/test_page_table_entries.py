# SPDX-License-Identifier: LGPL-2.1-or-later
"""page_table_entries: bits as the architecture has them; a walk ends, whatever it reads."""

import random
from dataclasses import replace

import numpy as np
import pytest
from drgn import Architecture, FaultError, Platform, PlatformFlags, Program
from hypothesis import given
from hypothesis import strategies as st

from mmscope.drgn.page_tables.page_table_entries import (
    TableChunk,
    Walk,
    frames_of_tables,
    new_walk,
    walk_page_tables,
)
from mmscope.drgn.page_tables.page_table_formats import (
    X86_64,
    X86_64_5_LEVELS,
    PageTableFormat,
    page_table_format,
)
from mmscope.drgn.reading.kernel_arrays import CHUNK_BYTES, Gaps

CHUNK_TABLES = CHUNK_BYTES >> 12
LITTLE = PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN
FORMS = (X86_64, X86_64_5_LEVELS)
TABLE = 0x67  # _KERNPG_TABLE with _PAGE_USER
PAGE = 0x8000_0000_0000_0067
NONE = np.zeros(1, np.uint64)


class Memory:
    """Physical memory that has some frames, each a table, and faults in the others."""

    def __init__(self) -> None:
        self.tables: dict[int, np.ndarray] = {}
        self.prog = Program(Platform(Architecture.X86_64, LITTLE))
        self.prog.add_memory_segment(0, 1 << 52, self._read, physical=True)

    def _read(self, address: int, count: int, offset: int, physical: bool) -> bytes:
        assert address % 4096 == 0 == count % 4096
        pages = []
        for frame in range(address, address + count, 4096):
            if frame not in self.tables:
                raise FaultError("no memory here", frame)
            pages.append(self.tables[frame].tobytes())
        return b"".join(pages)

    def table(self, frame: int, entries: dict[int, int] | None = None) -> int:
        table = self.tables.setdefault(frame, np.zeros(512, np.uint64))
        for slot, entry in (entries or {}).items():
            table[slot] = entry
        return frame


def walked(
    memory: Memory, form: PageTableFormat, roots: list[int], **arguments: object
) -> tuple[list[TableChunk], Walk]:
    walk = new_walk(form, len(roots))
    chunks = walk_page_tables(memory.prog, form, np.array(roots, np.uint64), walk, **arguments)
    return [replace(chunk, entries=chunk.entries.copy()) for chunk in chunks], walk


def leaves(form: PageTableFormat, chunks: list[TableChunk]) -> set[tuple[int, int, int, int]]:
    """(root, level, address, physical address) of every leaf."""
    found = set()
    for chunk in chunks:
        rows, slots = np.nonzero(form.is_leaf(chunk.entries, chunk.level))
        addresses = chunk.slot_addresses(form.levels[chunk.level].shift, rows, slots)
        physical = form.physical(chunk.entries[rows, slots], chunk.level)
        for root, address, at in zip(chunk.roots[rows], addresses, physical, strict=True):
            found.add((int(root), chunk.level, int(address), int(at)))
    return found


def by_hand(
    memory: Memory, form: PageTableFormat, root: int, table: int, level: int, base: int
) -> set[tuple[int, int, int, int]]:
    """The same, entry by entry, for trees without surprises."""
    found = set()
    for slot, entry in enumerate(memory.tables[table].tolist()):
        address = base + (slot << form.levels[level].shift)
        at = entry & 0x000F_FFFF_FFFF_F000
        if entry and (level == form.last or entry & 0x80):
            found.add((root, level, address, at))
        elif entry:
            found |= by_hand(memory, form, root, at, level + 1, address)
    return found


def grow(memory: Memory, form: PageTableFormat, dice: random.Random) -> int:
    """A random tree; returns its root."""

    def frame() -> int:
        while (at := dice.randrange(1, 4096) << 12) in memory.tables:
            pass
        return at

    def table(level: int) -> int:
        at = memory.table(frame())
        limit = 256 if level == 0 else 512
        for slot in dice.sample(range(limit), dice.randrange(4)):
            if level == form.last:
                entry = dice.randrange(1 << 20) << 12 | PAGE
            elif form.levels[level].leaf and dice.random() < 0.2:
                entry = dice.randrange(64) << form.levels[level].shift | PAGE | 0x80
            else:
                entry = table(level + 1) | TABLE
            memory.table(at, {slot: entry})
        return at

    return table(0)


@given(st.integers(0, 1 << 32), st.sampled_from(FORMS))
def test_a_walk_finds_what_a_recursion_finds(seed: int, form: PageTableFormat) -> None:
    memory, dice = Memory(), random.Random(seed)
    roots = [grow(memory, form, dice) for _ in range(3)]
    chunks, walk = walked(memory, form, roots)
    expected = set()
    for number, root in enumerate(roots):
        expected |= by_hand(memory, form, number, root, 0, 0)
    assert leaves(form, chunks) == expected
    assert walk.tables.sum() == len(memory.tables) == sum(map(len, chunks))
    assert not walk.gaps.bytes and not walk.repeated.any() and not walk.unreadable.any()


@given(st.integers(0, 1 << 32), st.sampled_from(FORMS))
def test_tables_are_found_down_to_a_level_that_is_not_read(
    seed: int, form: PageTableFormat
) -> None:
    memory, dice = Memory(), random.Random(seed)
    root = grow(memory, form, dice)
    chunks, _ = walked(memory, form, [root])
    levels = {frame >> 12: c.level for c in chunks for frame in c.frames.tolist()}
    lowest = dice.randrange(form.last + 1)
    for frame in [frame for frame, level in levels.items() if level == lowest > 0]:
        del memory.tables[frame << 12]
    gaps = Gaps()
    found = frames_of_tables(memory.prog, form, np.array([root], np.uint64), lowest, gaps)
    assert found.tolist() == sorted(at for at, level in levels.items() if 0 < level <= lowest)
    assert not gaps.bytes


def chain(memory: Memory, form: PageTableFormat, address: int, first: int = 0x10_0000) -> int:
    """Tables one behind the other down to one page at an address; returns the root."""
    frame = memory.table(first)
    for level, following in zip(form.levels, [*form.levels[1:], None], strict=True):
        slot = address >> level.shift & 511
        if following is None:
            memory.table(frame, {slot: 0x1234000 | PAGE})
            return first
        entry = int(memory.tables[frame][slot])
        below = entry & ~0xFFF or max(memory.tables) + 4096
        memory.table(frame, {slot: memory.table(below) | TABLE})
        frame = below
    raise AssertionError


@pytest.mark.parametrize("form", FORMS)
def test_a_range_of_kernel_addresses_is_walked_alone(form: PageTableFormat) -> None:
    memory = Memory()
    start = 0xFFFF_EA00_0000_0000
    inside = [start, start + 0x20_0000, start + (5 << 30) + 0x7000]
    outside = [0x7000_0000_0000, start - 4096, start + (6 << 30), 0xFFFF_FFFF_8000_0000]
    for address in inside + outside:
        root = chain(memory, form, address)
    chunks, _ = walked(memory, form, [root], start=start, end=start + (6 << 30))
    assert {address for _, _, address, _ in leaves(form, chunks)} == set(inside)


def test_only_the_lower_half_belongs_to_a_process() -> None:
    memory = Memory()
    chain(memory, X86_64, 0x7FFF_FFFF_F000)
    root = chain(memory, X86_64, 0xFFFF_8000_0000_0000)
    chunks, walk = walked(memory, X86_64, [root])
    assert {address for _, _, address, _ in leaves(X86_64, chunks)} == {0x7FFF_FFFF_F000}
    assert walk.tables.tolist() == [[1, 1, 1, 1]]


def test_a_range_across_both_halves_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a range of addresses under one root"):
        walked(Memory(), X86_64, [0x1000], start=0x1000, end=0xFFFF_8000_0000_0000)


def test_a_table_that_cannot_be_read_is_counted_and_its_neighbours_are_shown() -> None:
    memory = Memory()
    root = memory.table(0x1000, {0: 0x2000 | TABLE})
    memory.table(0x2000, {0: 0x3000 | TABLE})
    # Adjacent tables are read at once; the middle one is missing.
    memory.table(0x3000, {0: 0x4000 | TABLE, 1: 0x5000 | TABLE, 2: 0x6000 | TABLE})
    memory.table(0x4000, {7: PAGE})
    memory.table(0x6000, {9: PAGE})
    chunks, walk = walked(memory, X86_64, [root])
    assert {address for _, _, address, _ in leaves(X86_64, chunks)} == {
        7 << 12,
        (1 << 22) + (9 << 12),
    }
    assert walk.gaps.bytes == 4096
    assert walk.tables.tolist() == [[1, 1, 1, 3]]
    assert walk.unreadable.tolist() == [[0, 0, 0, 1]]


def test_tables_that_lead_back_to_themselves_end() -> None:
    memory = Memory()
    everything_me = dict.fromkeys(range(512), 0x1000 | TABLE)
    root = memory.table(0x1000, everything_me)
    chunks, walk = walked(memory, X86_64, [root])
    assert sum(map(len, chunks)) == 4
    assert walk.repeated.tolist() == [[0, 255, 511, 511]]


def test_a_table_that_is_met_again_in_a_later_chunk_is_not_followed_again() -> None:
    memory = Memory()
    root = memory.table(0x1000, {slot: (0x2000 + 4096 * slot) | TABLE for slot in range(3)})
    first, shared, own = 0x10_0000, 0x7000, 0x8000
    for slot in range(3):
        pmds = {n: (first + 4096 * (512 * slot + n)) | TABLE for n in range(512)}
        memory.table(0x2000 + 4096 * slot, pmds)
    count = 3 * CHUNK_TABLES
    for number in range(count):
        memory.table(first + 4096 * number, {0: shared | TABLE, 511: own | TABLE})
    memory.table(shared, {5: PAGE})
    memory.table(own, {6: PAGE})
    chunks, walk = walked(memory, X86_64, [root, root])
    assert walk.tables.tolist() == [[1, 3, count, 2]] * 2
    assert walk.repeated.tolist() == [[0, 0, 0, 2 * count - 2]] * 2
    assert sum(len(chunk) for chunk in chunks if chunk.level == X86_64.last) == 4


def test_a_root_gets_no_more_tables_than_it_may_have_and_takes_none_from_others() -> None:
    memory = Memory()
    # Every slot of every table leads to one of 600 tables that all look like that.
    frames = [0x10_0000 + 4096 * n for n in range(600)]
    wild = np.array([frames[n % 600] | TABLE for n in range(512)], np.uint64)
    for shift, frame in enumerate(frames):
        memory.tables[frame] = np.roll(wild, shift)
    tame = chain(memory, X86_64, 0x5555_0000_0000, 0x1000_0000)
    chunks, walk = walked(
        memory, X86_64, [frames[0], tame], max_tables=np.array([1000, 1000], np.int64)
    )
    assert walk.tables[0, 1:].sum() <= 1000 and walk.dropped[0] > 0
    assert walk.tables[1].tolist() == [1, 1, 1, 1] and not walk.dropped[1]
    assert (1, 3, 0x5555_0000_0000, 0x1234000) in leaves(X86_64, chunks)


def test_a_table_of_two_roots_is_shown_for_each() -> None:
    memory = Memory()
    first = chain(memory, X86_64, 0x5555_0000_0000)
    second = memory.table(0x1000)
    memory.tables[second] = memory.tables[first].copy()
    chunks, walk = walked(memory, X86_64, [first, second])
    assert walk.tables.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1]]
    assert {root for root, *_ in leaves(X86_64, chunks)} == {0, 1}
    assert not walk.repeated.any()


def test_more_tables_than_a_chunk_takes() -> None:
    memory = Memory()
    root = memory.table(0x1000, {0: 0x2000 | TABLE})
    memory.table(0x2000, {0: 0x3000 | TABLE, 1: 0x4000 | TABLE})
    count = CHUNK_TABLES + 100
    for number in range(count):
        at = memory.table((1 << 20) + 8192 * number, {number % 512: PAGE})
        memory.table(0x3000 + 4096 * (number // 512), {number % 512: at | TABLE})
    chunks, walk = walked(memory, X86_64, [root])
    assert max(map(len, chunks)) == CHUNK_TABLES
    assert walk.tables.tolist() == [[1, 1, 2, count]]
    expected = {(n << 21) + (n % 512 << 12) for n in range(count)}
    assert {address for _, _, address, _ in leaves(X86_64, chunks)} == expected


def array(*entries: int) -> np.ndarray:
    return np.array(entries, np.uint64)


def test_none_is_none_even_where_the_processor_left_bits() -> None:
    assert X86_64.is_none(array(0, 0x20, 0x60, 0x61, 0x80)).tolist() == [True] * 3 + [False] * 2


def test_what_a_page_table_check_calls_present() -> None:
    last = X86_64.last
    entries = array(0x1001, 0x1100, 0x1000, 0, 0x1080)
    assert X86_64.is_leaf(entries, last).tolist() == [True, True, False, False, False]
    # A huge page that is being split has lost its present bit but is there.
    assert X86_64.is_leaf(array(0x20_0080, 0x20_0081, 0x1001), 2).tolist() == [True, True, False]
    assert X86_64.is_table(array(0x20_0080, 0x20_0081, 0x1001), 2).tolist() == [False, False, True]
    assert not X86_64.is_leaf(array(0x81), 0).any()  # no processor maps 512 GiB at once


@given(st.integers(0, (1 << 40) - 1))
def test_an_entry_that_is_not_for_user_space_has_its_address_inverted(pfn: int) -> None:
    address = pfn << 12
    protnone = ~address & 0x000F_FFFF_FFFF_F000 | 0x100
    assert X86_64.physical(array(protnone), X86_64.last).tolist() == [address]
    assert X86_64.physical(array(address | 1), X86_64.last).tolist() == [address]


def test_flags_of_huge_entries_are_no_address() -> None:
    pat = 0x1000
    assert X86_64.physical(array(0x4000_0000 | pat | 0xE7), 2).tolist() == [0x4000_0000]


def test_the_encryption_bit_is_no_address() -> None:
    form = replace(X86_64, address=X86_64.address & ~(1 << 51))
    assert form.physical(array(1 << 51 | 0x1234000 | 0x67)).tolist() == [0x1234000]


@given(st.integers(0, 31), st.integers(0, (1 << 50) - 1))
def test_swap_entries_are_taken_apart_as_the_kernel_puts_them_together(
    type_: int, offset: int
) -> None:
    # __swp_entry() of arch/x86/include/asm/pgtable_64.h, with soft-dirty and exclusive on top.
    entry = (~offset << 14 & (1 << 64) - 1) >> 5 | type_ << 59
    types, offsets = X86_64.swap(array(entry | 0x0A))
    assert (types.tolist(), offsets.tolist()) == ([type_], [offset])


def test_an_architecture_that_is_not_known_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="RISCV64"):
        page_table_format(Program(Platform(Architecture.RISCV64, LITTLE)))
