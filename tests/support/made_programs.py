# SPDX-License-Identifier: LGPL-2.1-or-later
"""Made programs: types, objects and symbols of kernels that cannot be had."""

from collections.abc import Mapping

from drgn import (
    Architecture,
    Object,
    Platform,
    PlatformFlags,
    Program,
    Symbol,
    SymbolBinding,
    SymbolKind,
    Type,
)

ADDRESS = 0xFFFF_FFFF_8200_0000


def empty() -> Program:
    """One of x86-64 that knows nothing yet; its types are made with it."""
    flags = PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN
    return Program(Platform(Architecture.X86_64, flags))


def fill(
    prog: Program,
    types: Mapping[str, Type],
    objects: Mapping[str, Object],
    symbols: Mapping[str, SymbolKind],
) -> Program:
    """Let it find these by their names."""

    def find_type(prog: Program, kinds: object, name: str, file: str | None) -> Type | None:
        return types.get(name)

    def find_object(prog: Program, name: str, flags: object, file: str | None) -> Object | None:
        return objects.get(name)

    def find_symbol(
        prog: Program, name: str | None, address: int | None, one: bool
    ) -> list[Symbol]:
        if name not in symbols:
            return []
        return [Symbol(name, ADDRESS, 16, SymbolBinding.GLOBAL, symbols[name])]

    prog.register_type_finder("made", find_type, enable_index=0)
    prog.register_object_finder("made", find_object, enable_index=0)
    prog.register_symbol_finder("made", find_symbol, enable_index=0)
    return prog
