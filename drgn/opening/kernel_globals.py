# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Global variables, constants and functions of a kernel without debug info, as objects.

BTF has the types of functions and of per-CPU variables, kallsyms the places of all. The types of
other globals are declared: for mmscope's probes and drgn's helpers in ``declared_globals``; by who
needs more in a session, or in a file that is given as --symbols::

    >>> from mmscope.drgn.opening.kernel_globals import declare
    >>> declare("panic_timeout", "int")
    >>> prog["panic_timeout"]
    (int)0

A global whose place is known and whose type is not raises :class:`UndeclaredError`, which is no
LookupError: helpers take that for a kernel that does not have it, and go on with half an answer.
"""

import dis
import math
import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from drgn import FaultError, FindObjectFlags, Object, Program, Type, TypeKind, TypeParameter, sizeof

from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening import UndeclaredError as UndeclaredError
from mmscope.drgn.opening.btf import Btf
from mmscope.drgn.opening.declared_globals import ANONYMOUS, DECLARED, DIFFER, FUNCTIONS
from mmscope.drgn.opening.kasan import (
    EARLY_PAGE,
    SCALE_SHIFT,
    has_known_place,
    shadow_address,
    without_redzone,
)
from mmscope.drgn.opening.kernel_symbols import KernelSymbols
from mmscope.drgn.tables.hostile_text import cut
from mmscope.drgn.text.plain_file import read_plain

ADDED: dict[str, str] = {}  # what was declared at run time, for all programs
ARRAY = re.compile(r"(.+?) ?((?:\[\w+\] ?)+)")
MOST_BYTES = 1 << 20  # of a file of declarations
MOST_ALIGNED = 8  # bytes, of what C's types are aligned to by themselves


def declare(name: str, type_: str) -> None:
    """
    Declare the type of a global, as C has it; for all programs, also those that are attached.

    :param type_: as ``struct list_head`` or ``unsigned long [3]``. A length may be an enumerator,
        or ``room``: as many as fit before the next symbol.
    :raises ValueError: that is no name, or no type.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"{cut(name, 40)!r} is no name of a global")
    if not isinstance(type_, str) or not type_.strip():
        raise ValueError(f"the type of {name} must be text, as 'struct list_head'")
    ADDED[name] = " ".join(type_.split())


def declare_from(file: Path) -> int:
    """
    Declare what a file has: TOML, with a table ``[globals]`` of lines ``name = "type"``.

    :return: how many.
    :raises NoDebugInfoError: it is something else.
    """
    try:
        said = tomllib.loads(read_plain(file, MOST_BYTES).decode())
        table = said["globals"]
        for name, type_ in table.items():
            declare(name, type_)
    except OSError as error:
        raise NoDebugInfoError(f"{file}: {error.strerror}") from error
    except (KeyError, AttributeError):
        raise NoDebugInfoError(f'{file}: has no table [globals] of lines name = "type"') from None
    except (ValueError, RecursionError) as error:
        raise NoDebugInfoError(f"{file}: {error}") from error
    return len(table)


def _alignment(type_: Type) -> int:
    """Bytes of which the address of such a variable is a multiple; 1 where that is not known."""
    if type_.kind in (TypeKind.TYPEDEF, TypeKind.ARRAY):
        return _alignment(type_.type)
    if type_.kind in (TypeKind.STRUCT, TypeKind.UNION):
        found = 1
        for member in type_.members or ():
            found = max(found, _alignment(member.type))
            if found == MOST_ALIGNED:
                break
        return found
    size = sizeof(type_) if type_.is_complete() else 1
    return size if size in (1, 2, 4, MOST_ALIGNED) else 1


@dataclass
class KernelGlobals:
    """Two object finders: what is known, and, after all others, what is not."""

    types: Btf
    symbols: KernelSymbols
    _found: dict[tuple[str, FindObjectFlags, str | None], Object | None] = field(
        default_factory=dict
    )

    def find(
        self, prog: Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> Object | None:
        """
        An object finder, for :meth:`drgn.Program.register_object_finder`.

        :raises UndeclaredError: what is declared does not fit this kernel.
        """
        key = name, flags, ADDED.get(name)
        if key not in self._found:
            self._found[key] = self._find(prog, name, flags)
        return self._found[key]

    def complain(
        self, prog: Program, name: str, flags: FindObjectFlags, filename: str | None
    ) -> Object | None:
        """
        A finder that is asked last: it finds nothing.

        :raises UndeclaredError: the kernel has it, and the type or the place is not known.
        """
        if not flags & (FindObjectFlags.VARIABLE | FindObjectFlags.FUNCTION):
            return None
        places = [self.symbols.in_order[at] for at in self.symbols.indexes(name)]
        code = all(map(self.symbols.is_text, places))
        if not places or (code and (len(places) == 1 or not flags & FindObjectFlags.FUNCTION)):
            return None
        # "name in prog" can be answered, and asks by the same call as prog["name"].
        frame = sys._getframe(1)
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] == "CONTAINS_OP":
            return Object(prog, prog.void_type(), address=places[0])
        where = ", ".join(f"{place:#x}" for place in places[:8])
        if self._place(name) is None:
            raise UndeclaredError(
                f"{name}: {len(places)} files of this kernel have one of that name, at {where}; "
                f"nothing says which is whose: take Object(prog, 'TYPE', address={places[0]:#x})"
            )
        raise UndeclaredError(
            f"{name}: this kernel has it, at {where}, but BTF has no types of globals: "
            f"mmscope.drgn.opening.kernel_globals.declare({name!r}, 'TYPE'), or "
            f"Object(prog, 'TYPE', address={places[0]:#x})"
        )

    def _place(self, name: str) -> int | None:
        """The position of a name among the symbols; of several, that which is no static."""
        found = self.symbols.indexes(name)
        if len(found) > 1:
            found = tuple(filter(self.symbols.is_global, found))
        return found[0] if len(found) == 1 else None

    def _find(self, prog: Program, name: str, flags: FindObjectFlags) -> Object | None:
        constant = self.types.enumerator(name) if flags & FindObjectFlags.CONSTANT else None
        if constant is not None:
            return constant
        at = self._place(name)
        if at is None:
            return None
        address = self.symbols.in_order[at]
        if flags & FindObjectFlags.FUNCTION and (type_ := self.types.function(name)):
            return Object(prog, type_, address=address)
        if flags & FindObjectFlags.FUNCTION and name in FUNCTIONS:
            result, *taken = map(prog.type, FUNCTIONS[name])
            function = prog.function_type(result, [TypeParameter(type_) for type_ in taken])
            return Object(prog, function, address=address)
        if flags & FindObjectFlags.VARIABLE and (type_ := self._type(prog, name, at)):
            room = self.symbols.room(at)
            if sizeof(type_) > room > 0:
                raise UndeclaredError(
                    f"{name} is declared {type_.type_name()}, and has room for {room:,} bytes "
                    f"only: that is not its type in this kernel; declare({name!r}, 'TYPE') another"
                )
            if address % _alignment(type_):
                raise UndeclaredError(
                    f"{name} is a {type_.type_name()}, which cannot begin at {address:#x}: the "
                    "kernel's symbol table is damaged, or that is not its type in this kernel"
                )
            return Object(prog, type_, address=address)
        return None

    def _type(self, prog: Program, name: str, at: int) -> Type | None:
        declared = ADDED.get(name)
        if declared is None and name in ANONYMOUS and not self._by_sign(name):
            return self.types.anonymous_struct(ANONYMOUS[name])
        if declared is None and (type_ := self.types.variable(name)):
            return type_
        declared = declared or self._by_sign(name) or DECLARED.get(name)
        if declared is None:
            return None
        try:
            return self._parsed(prog, declared, at)
        except (LookupError, SyntaxError, TypeError) as error:
            raise UndeclaredError(
                f"{name} is declared {declared!r}, which is no type of this kernel: {error}"
            ) from error

    def _by_sign(self, name: str) -> str | None:
        """The type of a global that kernels differ about."""
        for other, sign in DIFFER.get(name, ()):
            tag, _, member = sign.removeprefix("struct ").partition(".")
            struct = self.types.struct(tag) if sign.startswith("struct ") else None
            there = struct is not None and (not member or struct.has_member(member))
            if not sign or there or self.symbols.indexes(sign):
                return other
        return None

    def _parsed(self, prog: Program, declared: str, at: int) -> Type:
        match = ARRAY.fullmatch(declared)
        if match is None:
            return prog.type(declared)
        type_ = prog.type(match[1])
        lengths = re.findall(r"\w+", match[2])
        while lengths:  # C has the outermost first
            said = lengths.pop()
            times = math.prod(int(length) for length in lengths if length.isdigit())
            type_ = prog.array_type(type_, self._length(prog, said, type_, at, times))
        return type_

    def _length(self, prog: Program, said: str, element: Type, at: int, times: int) -> int:
        if said in ("room", "names"):
            length: int = self._room(prog, at) // (sizeof(element) * times)
            if said == "names":
                names = prog.read(self.symbols.in_order[at], length * sizeof(element))
                length = -(-len(names.rstrip(b"\0")) // sizeof(element))
            return length
        if said.isdigit():
            return int(said)
        constant = self.types.enumerator(said)
        if constant is None:
            raise LookupError(f"it has no enumerator {said}")
        return int(constant.value_())

    def _room(self, prog: Program, at: int) -> int:
        """
        The bytes from a global to the next symbol, without what KASAN leaves free between them.

        :raises LookupError: that cannot be told.
        """
        address, room = self.symbols.in_order[at], self.symbols.room(at)
        if not self.symbols.indexes(EARLY_PAGE):
            return room
        if not has_known_place(prog):
            raise LookupError(
                "how long it is cannot be told, as KASAN leaves room behind globals, and where its "
                "shadow is on this architecture is not known"
            )
        try:
            return without_redzone(prog.read(shadow_address(address), room >> SCALE_SHIFT), room)
        except FaultError as error:
            raise LookupError(
                f"how long it is cannot be told, as the shadow of KASAN is not there: {error}"
            ) from None
