# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Return addresses as the kernel's ``%ps`` prints them: ``symbol``, or ``symbol [module]``.

One sorted table of all symbols (0.2 s for the 227,000 of a vmlinux), in which each address is then
found in microseconds; ``Program.symbol()`` takes milliseconds for each. Where several names share
an address, the one is taken that the kernel's own kallsyms would print. Modules have theirs from
the symbol table that the kernel keeps of them in memory (``struct mod_kallsyms``); only modules
that are asked for are read.

Cannot know: functions that the compiler inlined (frames are what the kernel's unwinder saved), and
code of modules that are gone, which stays an address.
"""

import bisect
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from drgn import (
    FaultError,
    MainModule,
    Program,
    RelocatableModule,
    Symbol,
    SymbolBinding,
    SymbolKind,
)
from drgn.helpers.linux.kallsyms import module_kallsyms

from mmscope.drgn.reading.kernel_arrays import S64s, U64s

KERNEL_TABLE = "symbol_table"  # in Program.cache
# Assembly functions often have no type.
CODE = (SymbolKind.FUNC, SymbolKind.UNKNOWN, SymbolKind.IFUNC)
# Symbols of data may lie between a function's start and an address in it.
MAX_BACK = 64
# amdgpu, the largest, has 60,000.
MAX_MODULE_SYMBOLS = 1_000_000
# Labels that tell code from data within a section (arm64: $x, $d), and local ones.
ASSEMBLERS = ("$", ".L")


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """
    Symbols, ascending. Their kinds and names are asked for when needed: that is slow.

    :ivar starts: addresses; *size* and *symbol* are of a position among them.
    :ivar first: of names that share an address the first is printed.
    """

    starts: Sequence[int]
    size: Callable[[int], int]
    symbol: Callable[[int], Symbol]
    first: bool = False

    def function(self, address: int) -> str | None:
        """The name of the function that an address lies in."""
        last = bisect.bisect_right(self.starts, address) - 1
        best: tuple[int, bool, int, str] | None = None
        found = -1
        for at in range(last, max(last - MAX_BACK, -1), -1):
            start = self.starts[at]
            if best is not None and start != found:
                break
            if start + self.size(at) <= address:
                continue
            symbol = self.symbol(at)
            # __pfx_…: the padding in front of a function, which never runs.
            if symbol.kind not in CODE or symbol.name.startswith("__pfx_") or not symbol.name:
                continue
            rank, found = (at if self.first else 0, *_alias_rank(symbol)), start
            best = rank if best is None else min(best, rank)
        return None if best is None else best[-1]


def _alias_rank(symbol: Symbol) -> tuple[bool, int, str]:
    """
    Between names of one address the kernel prints the least by this order (``compare_symbols()``,
    scripts/kallsyms.c; ties are in the order of ``nm -n``, by name).
    """
    name = symbol.name
    return symbol.binding is SymbolBinding.WEAK, len(name) - len(name.lstrip("_")), name


def symbol_table(symbols: Sequence[Symbol], *, first: bool = False) -> SymbolTable:
    """Sort symbols by address, without those of the assembler."""
    symbols = [symbol for symbol in symbols if not symbol.name.startswith(ASSEMBLERS)]
    starts = np.fromiter((symbol.address for symbol in symbols), np.uint64, len(symbols))
    order = np.argsort(starts, kind="stable")
    ordered = [symbols[at] for at in order.tolist()]
    starts = starts[order]
    # A label without a size, in assembly, reaches to the next one.
    after = np.append(starts, np.uint64(2**64 - 1))[np.searchsorted(starts, starts, "right")]
    rooms = (after - starts).tolist()
    sizes = [symbol.size or room for symbol, room in zip(ordered, rooms, strict=True)]
    return SymbolTable(starts.tolist(), sizes.__getitem__, ordered.__getitem__, first)


def module_symbols(module: RelocatableModule) -> list[Symbol]:
    """
    The symbols of a module that the kernel itself prints, from ``struct mod_kallsyms``.

    It passes by those without a name and those of the assembler (``find_kallsyms_symbol()``,
    kernel/module/kallsyms.c; ``is_arm_mapping_symbol()`` before v6.4, ``is_mapping_symbol()``).

    :raises ValueError: it has more of them than any module.
    :raises FaultError: they cannot be read.
    :raises LookupError: the kernel keeps none (CONFIG_KALLSYMS).
    """
    count = module.object.kallsyms.num_symtab.value_()
    if not 0 < count <= MAX_MODULE_SYMBOLS:
        raise ValueError(f"{count:,} symbols cannot be one module's")
    return [
        symbol
        for symbol in module_kallsyms(module.object)
        if symbol.name and not symbol.name.startswith(ASSEMBLERS)
    ]


def has_symbol(prog: Program, name: str) -> bool:
    """True if the kernel has a function or variable, whatever is known of its type."""
    try:
        prog.symbol(name)
    except LookupError:
        return False
    return True


def variable_of(prog: Program, module: str, name: str) -> int | None:
    """The address of a variable that is a module's, or the kernel's where that is built in."""
    with contextlib.suppress(LookupError):
        return int(prog.symbol(name).address)
    for loaded, _ in prog.loaded_modules():
        if isinstance(loaded, RelocatableModule) and loaded.name == module:
            with contextlib.suppress(FaultError, LookupError, ValueError):
                return next((s.address for s in module_symbols(loaded) if s.name == name), None)
    return None


def frame_names(prog: Program, addresses: U64s) -> list[str]:
    """
    The name of the function that each return address leads back into; the address itself, in
    hexadecimal, where no symbol has it.

    Separators of folded stacks are replaced in names that have them.
    """
    # They are there with the kernel's own symbols.
    kernel = prog.cache.get(KERNEL_TABLE)
    if kernel is None:
        kernel = prog.cache[KERNEL_TABLE] = symbol_table(prog.symbols())
    names = [f"{address:#x}" for address in addresses.tolist()]
    for module, _ in prog.loaded_modules():
        inside = np.zeros(len(addresses), np.bool_)
        for start, end in module.address_ranges or ():
            inside |= (addresses >= np.uint64(start)) & (addresses < np.uint64(end))
        wanted = np.flatnonzero(inside)
        if isinstance(module, MainModule):
            _fill(names, kernel, addresses, wanted, "")
        if not isinstance(module, RelocatableModule) or not len(wanted):
            continue
        suffix = f" [{module.name}]"
        for at in wanted.tolist():
            names[at] = f"{int(addresses[at]):#x}{suffix}"
        try:
            # Its init_module has the name of its source too: find_kallsyms_symbol()
            # (kernel/module/kallsyms.c) takes the one that is first in the module's table.
            table = symbol_table(module_symbols(module), first=True)
        except (FaultError, LookupError, ValueError):
            continue  # the address and the module's name are known all the same
        _fill(names, table, addresses, wanted, suffix)
    return names


def _fill(names: list[str], table: SymbolTable, addresses: U64s, wanted: S64s, suffix: str) -> None:
    """Write the names that a table has for the wanted addresses."""
    # The call is before its return address, which is after the function's end where the callee
    # does not return. The interrupted instruction, though, may be a function's first.
    for at, address in zip(wanted.tolist(), addresses[wanted].tolist(), strict=True):
        if name := table.function(address - 1) or table.function(address):
            names[at] = name.replace(";", ":") + suffix
