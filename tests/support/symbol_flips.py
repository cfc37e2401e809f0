# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One bit of a kernel's symbol table is flipped, in what says the addresses and the names of those
symbols that sections ask for: what is noticed of it.

The table is read again from the damaged dump, as it is at first, and the addresses of all these
symbols are compared with what they were.
"""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from btf_flips import HARMLESS, MISSING, NOTICED, SILENT, Flip
from drgn import Program

from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.btf import Btf
from mmscope.drgn.opening.foretold import SYMBOL, known
from mmscope.drgn.opening.kernel_symbols import KernelSymbols, symbols_of_core, tables_of
from mmscope.drgn.opening.no_debug_info import _hold_names_against

TOKEN_BYTES = 512  # of the table of tokens: 256 of one letter at least, each with its end


class Overlay:
    """A vmcore of which one byte at a time is another."""

    def __init__(self, core: Path, places: list[range]) -> None:
        self._whole, self.prog = Program(), Program()
        self.address = self.flipped = 0
        for prog in (self._whole, self.prog):
            prog.set_core_dump(core)
        for place in places:
            self.prog.add_memory_segment(place.start, len(place), self._read, False)

    def _read(self, address: int, count: int, offset: int, physical: bool) -> bytes:
        found = bytearray(self._whole.read(address, count))
        if address <= self.address < address + count:
            found[self.address - address] ^= self.flipped
        return bytes(found)


def symbol_flips(
    core: Path, types: Btf, info: Mapping[str, str], count: int, seed: int
) -> Iterator[Flip]:
    """
    Flip a bit, *count* times.

    :param types: the kernel's. :param info: the lines of its VMCOREINFO.
    """
    chance = random.Random(seed)
    whole = Program()
    whole.set_core_dump(core)
    where, symbols = tables_of(whole, info), symbols_of_core(whole, info)
    asked = [each.partition(" ")[2] for each in known().answers if each.startswith(f"{SYMBOL} ")]
    before = addresses_of(symbols, asked)
    positions = sorted({at for name in asked for at in symbols.indexes(name)})
    places = {
        "address": [
            where["kallsyms_offsets"] + 4 * at + byte for at in positions for byte in range(4)
        ],
        "name": [
            where["kallsyms_names"] + byte
            for at in positions
            for byte in range(int(symbols.starts[at]) - 1, int(symbols.ends[at]))
        ],
        "token": [where["kallsyms_token_table"] + byte for byte in range(TOKEN_BYTES)],
    }
    damaged = Overlay(core, [range(min(bytes_), max(bytes_) + 1) for bytes_ in places.values()])
    for _ in range(count):
        place = chance.choice(sorted(places))
        damaged.address, damaged.flipped = chance.choice(places[place]), 1 << chance.randrange(8)
        yield Flip(place, damaged.address, *_outcome(damaged.prog, types, info, asked, before))


def addresses_of(symbols: KernelSymbols, asked: list[str]) -> dict[str, tuple[int, ...]]:
    """The addresses of each name: of several statics several."""
    return {name: tuple(symbols.in_order[at] for at in symbols.indexes(name)) for name in asked}


def _outcome(
    prog: Program,
    types: Btf,
    info: Mapping[str, str],
    asked: list[str],
    before: Mapping[str, tuple[int, ...]],
) -> tuple[str, str]:
    try:
        symbols = symbols_of_core(prog, info)
        _hold_names_against(types, symbols)
        after = addresses_of(symbols, asked)
    except NoDebugInfoError as error:
        return NOTICED, str(error)
    other = [name for name in asked if after[name] != before[name]]
    silent = [name for name in other if after[name]]
    if silent:
        return SILENT, f"{silent[0]}: {before[silent[0]]} is {after[silent[0]]}"
    return (MISSING, other[0]) if other else (HARMLESS, "")
