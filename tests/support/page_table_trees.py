# SPDX-License-Identifier: LGPL-2.1-or-later
"""Random page tables, in memory that has nothing else, and what a walk finds of them. A mock."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from drgn import Architecture, FaultError, Platform, PlatformFlags, Program

from mmscope.drgn.page_tables.page_table_entries import new_walk, walk_page_tables
from mmscope.drgn.page_tables.page_table_formats import PageTableFormat

LITTLE = PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN
Leaf = tuple[int, int, int]  # level, address, physical address
# An entry, by its level and the physical address of the memory that it maps, or of the table.
Entry = Callable[[int, int], int]


@dataclass
class Memory:
    """Physical memory that has tables, the root at any multiple of its size."""

    architecture: Architecture
    form: PageTableFormat
    tables: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prog = Program(Platform(self.architecture, LITTLE))
        self.prog.add_memory_segment(0, 1 << 52, self._read, physical=True)
        self.bits = 52 if self.form.address_high[0] or self.form.powerpc else 48

    def _read(self, address: int, count: int, offset: int, physical: bool) -> bytes:
        data = b""
        while len(data) < count:
            here = self.tables.get(address + len(data))
            if here is None:
                raise FaultError("no memory here", address)
            data += here.tobytes()
        return data[:count]

    def table(self, at: int, level: int) -> np.ndarray:
        """An empty table of a level, at an address."""
        order = ">u8" if self.form.powerpc else "<u8"
        self.tables[at] = np.zeros(self.form.slots(level), order)
        return self.tables[at]


def check_a_walk_finds_every_leaf(
    memory: Memory, seed: int, *, kernel: bool, leaf: Entry, table: Entry
) -> None:
    """Hold what a walk finds of random tables, from a root down, against what was put into them."""
    form, dice = memory.form, random.Random(seed)
    expected: set[Leaf] = set()
    start, end = form.kernel if kernel else (0, form.user_end)

    def grow(level: int, base: int) -> int:
        """A random table and all below it; returns its address."""
        slots, shift = form.slots(level), form.levels[level].shift
        while (at := dice.randrange(1, 1 << memory.bits - 16) * slots * 8) in memory.tables:
            pass
        entries = memory.table(at, level)
        for slot in dice.sample(range(slots), min(slots, dice.randrange(4))):
            address = base + (slot << shift)
            if level == form.last or (form.levels[level].leaf and dice.random() < 0.3):
                physical = dice.randrange(1 << memory.bits - shift) << shift
                entries[slot] = leaf(level, physical)
                expected.add((level, address, physical))
            else:
                entries[slot] = table(level, grow(level + 1, address))
        return at

    roots = np.array([grow(0, start)], np.uint64)
    walk, found = new_walk(form, 1), set[Leaf]()
    for chunk in walk_page_tables(memory.prog, form, roots, walk, start=start, end=end):
        rows, slots = np.nonzero(form.is_leaf(chunk.entries, chunk.level))
        addresses = chunk.slot_addresses(form.levels[chunk.level].shift, rows, slots)
        physical = form.physical(chunk.entries[rows, slots], chunk.level)
        pairs = zip(addresses.tolist(), physical.tolist(), strict=True)
        found |= {(chunk.level, *pair) for pair in pairs}
    assert found == expected
    assert walk.tables.sum() == len(memory.tables) and not walk.gaps.bytes
