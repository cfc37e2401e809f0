# SPDX-License-Identifier: LGPL-2.1-or-later
"""
BTF: the kernel's own description of its types, as types of a :class:`drgn.Program`.

A kernel with CONFIG_DEBUG_INFO_BTF carries it in its memory, between ``__start_BTF`` and
``__stop_BTF`` (scripts/link-vmlinux.sh, include/asm-generic/vmlinux.lds.h), and shows it as
/sys/kernel/btf/vmlinux. The format is include/uapi/linux/btf.h and Documentation/bpf/btf.rst.
A record of a kind that is not known here is passed over where the blob's layout section says how
long it is ("btf: Add kind layout encoding to UAPI", 222edc843c15); types that are made of it are
unknown, the others stay.

Costs, for the 4 MB and 118,000 types of a distribution's kernel: some 30 ms for the index; a type
is built when it is asked for, and the types of its members when those are.

The blob comes out of a dump, so that every number in it may be anything. What is built is bounded:
:data:`LIMITS`. Cannot know: macros, and globals other than per-CPU variables and functions; a
trailing ``[0]`` from ``[]``; ``a[5][6]`` from ``a[30]`` (Documentation/bpf/btf.rst).
"""

import contextlib
import string
import struct
from array import array
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from drgn import (
    FaultError,
    Object,
    Program,
    Qualifiers,
    Type,
    TypeEnumerator,
    TypeKind,
    TypeKindSet,
    TypeMember,
    TypeParameter,
)
from drgn.helpers.linux.list import list_for_each_entry
from numpy.typing import NDArray

from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.name_index import NameIndex

MAGIC = 0xEB9F
UNSURE = "BTF is damaged, or "
NO_MODULE_TYPES = "the kernel keeps no types of modules (CONFIG_DEBUG_INFO_BTF_MODULES, since 5.11)"
# enum of BTF_KIND_*, include/uapi/linux/btf.h
INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC = range(1, 13)
FUNC_PROTO, VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = range(13, 20)
# Of a series that is not released: see source_places.py. Its length is the layout section's.
LOCSEC, LOCSEC_TAIL = 22, (0, 12)
# Bytes after the 12 of struct btf_type: so many, and so many for each of its vlen.
TAIL = {
    **{INT: (4, 0), ARRAY: (12, 0), STRUCT: (0, 12), UNION: (0, 12), ENUM: (0, 8)},
    **{FUNC_PROTO: (0, 8), VAR: (4, 0), DATASEC: (0, 12), DECL_TAG: (4, 0), ENUM64: (0, 12)},
}
BY_KIND = {
    TypeKind.INT: (INT,),
    TypeKind.BOOL: (INT,),
    TypeKind.FLOAT: (FLOAT,),
    TypeKind.STRUCT: (STRUCT,),
    TypeKind.UNION: (UNION,),
    TypeKind.ENUM: (ENUM, ENUM64),
    TypeKind.TYPEDEF: (TYPEDEF,),
}
QUALIFIERS = {
    CONST: Qualifiers.CONST,
    VOLATILE: Qualifiers.VOLATILE,
    RESTRICT: Qualifiers.RESTRICT,
}
NAMED = (INT, FWD, TYPEDEF, FUNC, VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG)
NAMELESS = (PTR, ARRAY, *QUALIFIERS, FUNC_PROTO)
WITHOUT_LENGTH = (INT, PTR, ARRAY, FWD, TYPEDEF, *QUALIFIERS, VAR, FLOAT, DECL_TAG, TYPE_TAG)
# Of these, pahole leaves one of each (btf__dedup(), tools/lib/bpf/btf.c).
ONCE = (INT, PTR, FWD, TYPEDEF, *QUALIFIERS)
MADE_OF_A_TYPE = (PTR, TYPEDEF, *QUALIFIERS, FUNC_PROTO, VAR, TYPE_TAG)
# What something may be of: void, and what is not known here, too.
TYPES = [kind for kind in range(128) if kind not in (FUNC, VAR, DATASEC, DECL_TAG)]
# "bpf: Extend BTF UAPI vlen, kinds to use unused bits" (f7a6b9eaff3e); these bits were 0 before.
KIND, VLEN = np.uint32(0x7F), np.uint32(0xFF_FFFF)
# Of a member's word, in a struct with bit fields.
MEMBER_OFFSET = np.uint32(0xFF_FFFF)
PER_CPU = ".data..percpu"  # a section
UNKNOWN = np.uint32(1 << 31)  # words: beyond the end of any blob
INT_SIGNED, INT_BOOL = 1, 4
# Of names, types' of several words ("long int") and tags' ("address_space(1)") among them.
LETTERS = np.zeros(256, bool)
LETTERS[list(b"\0 .()_" + string.ascii_letters.encode() + string.digits.encode())] = True
# Names are compared by so many of their bytes. Where types are sorted by them, so small a share
# that is not is damage; where they are not sorted, a tenth of them and more is not.
COMPARED_BYTES, MOST_MISPLACED = 32, 0.001
# Larger than any alignment that a struct asks for: that of a page of the largest size.
MOST_ALIGNED = 1 << 16
# A value that is less far from where its enum counts may be meant; of so few others any.
FAR, FEW = 64, 5

# Of a whole kernel's, the largest known are about a tenth of these.
LIMITS = {
    "bytes": 64 << 20,
    "types": 2_000_000,
    "name": 512,  # KSYM_NAME_LEN
    "struct_bytes": 1 << 28,
    "array_bytes": 1 << 40,
    "chain": 64,  # typedefs, qualifiers, pointers and arrays that lead to a type
    "flattened": 50_000,  # members that anonymous members bring into a struct
    "modules": 1 << 14,  # a damaged list may go round
}


def _damaged(how: str) -> NoDebugInfoError:
    return NoDebugInfoError(f"BTF is damaged: {how}")


class Btf:
    """
    The types of one blob.

    :param blob: from the header on.
    :param module: split BTF, of a module: its numbers of types and strings go on where the blob's
        end (``btf_parse_module()``, kernel/bpf/btf.c).
    :raises NoDebugInfoError: it is not BTF, or its index is damaged.
    """

    def __init__(self, prog: Program, blob: bytes, module: bytes = b"") -> None:
        self.prog = prog
        order, types, self._names, layout = _parts(blob)
        if not self._names.startswith(b"\0"):
            raise _damaged("its strings begin with none")
        if module:
            _, more, names, more_layout = _parts(module)
            types, self._names = b"".join((types, more)), self._names + names
            layout = max(layout, more_layout, key=len)
        self._layout = layout
        self._words = np.frombuffer(types, dtype=f"{order}u4")
        # Type 0 is void, which has no record.
        self._starts = np.append(np.uint32(0), _starts(self._words, layout))
        self._name_offsets = self._words[self._starts]
        self._info = self._words[self._starts + 1]
        self._size_or_type = self._words[self._starts + 2]
        self._kinds = (self._info >> 24 & KIND).astype(np.uint8)
        for column in (self._name_offsets, self._info, self._size_or_type, self._kinds):
            column[0] = 0
        self._check_references()
        if not module:
            self._check_records()
            self._check_names()
            self._check_order()
        self._built: dict[int, Type] = {}
        self._bits: dict[int, int] = {}
        self._building: list[int] = []
        self._flattened: dict[int, int] = {}
        self._found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        self._named_members: dict[int, dict[str, tuple[int, int]]] = {}
        self._enumerators: tuple[NDArray[np.uint32], NDArray[np.int64]] | None = None

    def _check_references(self) -> None:
        """
        Find records that lead to others that they cannot be made of.

        Where the length of one is damaged it swallows others: the numbers of all behind it are
        wrong.

        :raises NoDebugInfoError: there is one.
        """
        for kinds, allowed in ((FUNC,), (FUNC_PROTO,)), (MADE_OF_A_TYPE, TYPES):
            leading = np.isin(self._kinds, kinds)
            led_to = self._kinds.take(self._size_or_type[leading], mode="clip")
            wrong = np.flatnonzero(~np.isin(led_to, allowed))
            if len(wrong):
                number = np.flatnonzero(leading)[wrong[0]]
                raise _damaged(f"type {number:,} is made of one of kind {led_to[wrong[0]]}")

    def _check_records(self) -> None:
        """
        Find records that the kernel would not take (``btf_*_check_meta()``, kernel/bpf/btf.c), and
        such as are there twice.

        :raises NoDebugInfoError: there is one.
        """
        named, length = self._name_offsets != 0, self._info & VLEN
        wrong = np.isin(self._kinds, NAMED) & ~named | np.isin(self._kinds, NAMELESS) & named
        wrong |= np.isin(self._kinds, WITHOUT_LENGTH) & (length != 0)
        if len(found := np.flatnonzero(wrong)):
            raise _damaged(f"type {found[0]:,} has a name or a length that its kind has not")
        refs = np.flatnonzero(np.isin(self._kinds, ONCE))
        arrays = np.flatnonzero(self._kinds == ARRAY)
        at = self._starts[arrays] + 3
        for numbers, keys in (
            (refs, (self._info[refs], self._name_offsets[refs], self._size_or_type[refs])),
            (arrays, (self._words[at], self._words[at + 2])),
        ):
            order = np.lexsort(keys)
            same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
            if same.any():
                raise _damaged(f"type {numbers[order[1:][same][0]]:,} is there twice")

    def _check_names(self) -> None:
        """
        Find names that begin within another, or that are not where the kernel's sorting has put
        them ("btf: Optimize type lookup with binary search", 7.0: types with names ascend).

        :raises NoDebugInfoError: there is one.
        """
        letters = np.frombuffer(self._names, np.uint8)
        if not LETTERS[letters].all():
            raise _damaged("a name is no name of C's")
        offsets = self._name_offsets[self._name_offsets != 0].astype(np.int64)
        if offsets.max(initial=0) >= len(letters) or letters[offsets - 1].any():
            raise _damaged("the name of a type begins within another")
        # The strings end with a zero, and so do these.
        at = np.minimum(offsets[:, None] + np.arange(COMPARED_BYTES), len(letters) - 1)
        names = letters[at]
        names *= np.logical_and.accumulate(names != 0, axis=1)
        ordered = names.view(f"S{COMPARED_BYTES}").ravel()
        misplaced = np.flatnonzero(ordered[:-1] > ordered[1:])
        if 0 < len(misplaced) <= MOST_MISPLACED * len(ordered):
            name = ordered[misplaced[0]].decode("ascii", "backslashreplace")
            raise _damaged(f"types are sorted by their names, but for those around {name}")

    def _check_order(self) -> None:
        """
        Find a member that is not behind the one before it. Where the layout of structs is random
        (CONFIG_RANDSTRUCT) many may be.

        :raises NoDebugInfoError: there is one, among thousands that are.
        """
        structs = np.flatnonzero(self._kinds == STRUCT)
        lengths = (self._info[structs] & VLEN).astype(np.int64)
        struct = np.repeat(structs, lengths)
        within = np.arange(len(struct)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        offsets = self._words[self._starts[struct].astype(np.int64) + 5 + 3 * within]
        offsets = np.where(self._info[struct] >> 31, offsets & MEMBER_OFFSET, offsets)
        back = np.flatnonzero((offsets[1:] < offsets[:-1]) & (struct[1:] == struct[:-1]))
        if 0 < len(back) <= MOST_MISPLACED * len(offsets):
            name = self._name(int(self._name_offsets[struct[back[0]]])) or "a struct"
            raise _damaged(f"members ascend, but not those of {name}")

    @property
    def count(self) -> int:
        """Number of its types."""
        return len(self._kinds) - 1

    # Finding

    @cached_property
    def _index(self) -> NameIndex:
        """The names in the strings, each after the end of another."""
        ends = np.flatnonzero(np.frombuffer(self._names, np.uint8) == 0).astype(np.uint32)
        return NameIndex(self._names, ends[:-1], ends[1:])

    def find_type(
        self, prog: Program, kinds: TypeKindSet, name: str, filename: str | None
    ) -> Type | None:
        """
        A type finder, for :meth:`drgn.Program.register_type_finder`.

        BTF does not say from which file a type is: if one is wanted, there must be no other.
        """
        for kind in kinds:
            numbers = self._numbers(name, BY_KIND.get(kind, ()))
            if filename and len(numbers) > 1:
                continue
            for number in numbers:
                built = self.type(number)
                if built.kind == kind:
                    return built
        return None

    def function(self, name: str) -> Type | None:
        """The type of a function, if BTF has it."""
        number = self._number(name, (FUNC,))
        return self.type(int(self._size_or_type[number])) if number is not None else None

    def variable(self, name: str) -> Type | None:
        """The type of a global variable: of per-CPU ones only, as pahole writes no others."""
        number = self._number(name, (VAR,))
        return self.type(int(self._size_or_type[number])) if number is not None else None

    def variables(self) -> list[str]:
        """The names of the global variables that it has, which are per CPU."""
        offsets = self._name_offsets[self._kinds == VAR]
        return [name for offset in offsets.tolist() if (name := self._name(offset))]

    def per_cpu_places(self) -> dict[str, int]:
        """Bytes from the begin of the per-CPU section to each of its variables."""
        places = {}
        for number in np.flatnonzero(self._kinds == DATASEC).tolist():
            if self._name(int(self._name_offsets[number])) == PER_CPU:
                at = int(self._starts[number]) + 3
                for variable, place, _ in (
                    self._words[at : at + 3 * self._vlen(number)].reshape(-1, 3).tolist()
                ):
                    if variable < len(self._kinds) and self._kinds[variable] == VAR:
                        places[self._name(int(self._name_offsets[variable])) or ""] = place
        return places

    def inline_sites(self) -> Iterator[tuple[str, str, int]]:
        """
        (section, function, bytes from the begin of that) of each place where one was inlined.

        :raises NoDebugInfoError: they are of another form than is known here, or damaged.
        """
        if self._layout[LOCSEC : LOCSEC + 1] not in ([], [LOCSEC_TAIL]):
            raise NoDebugInfoError("BTF has inline sites of a form that is not known here")
        for number in np.flatnonzero(self._kinds == LOCSEC).tolist():
            section = self._name(int(self._name_offsets[number])) or ""
            at = int(self._starts[number]) + 3
            sites = self._words[at : at + 3 * self._vlen(number)].reshape(-1, 3).tolist()
            for function, _, offset in sites:
                if function >= len(self._kinds) or self._kinds[function] != FUNC:
                    raise _damaged(f"type {function:,} is no function that can be inlined")
                name = self._name(int(self._name_offsets[function])) or ""
                yield section.removeprefix("inline"), name, offset

    def struct(self, name: str) -> Type | None:
        """The struct, union or typedef of a name."""
        number = self._number(name, (STRUCT, UNION, TYPEDEF))
        return self.type(number) if number is not None else None

    def member_form(self, name: str, path: str) -> str | None:
        """
        Form of a member's values, by the records alone: ``int32``, ``bits``, ``struct page *``,
        ``void * []``. Signs, qualifiers, dimensions of arrays, and typedefs of what has a name are
        left out.

        :param name: of a struct, a union or a typedef.
        :param path: of members, through pointers and arrays.
        :return: None if the type or the member is not there.
        """
        number = self._number(name, (STRUCT, UNION, TYPEDEF))
        bits = 0
        for part in path.split("."):
            found = None if number is None else self._by_name(self._pointed(number)).get(part)
            if found is None:
                return None
            number, bits = found
        return None if number is None else "bits" if bits else self._form(number)

    def _pointed(self, number: int) -> int:
        """Number of the type behind typedefs, qualifiers, pointers and arrays."""
        for _ in range(LIMITS["chain"]):
            kind = self._kind(number)
            if kind not in (PTR, ARRAY, TYPEDEF, TYPE_TAG, *QUALIFIERS):
                break
            number = self._of(number)
        return number

    def _kind(self, number: int) -> int:
        """0: void, or there is no such type."""
        return int(self._kinds[number]) if number < len(self._kinds) else 0

    def _of(self, number: int) -> int:
        """Number of the type that an array, a pointer, a typedef or a qualified type is of."""
        array = self._kinds[number] == ARRAY
        return int(self._words[self._starts[number] + 3] if array else self._size_or_type[number])

    def _by_name(self, number: int) -> dict[str, tuple[int, int]]:
        """(number of the type, bits of a bit field or 0) of each member, of anonymous ones too."""
        if number not in self._named_members:
            found: dict[str, tuple[int, int]] = {}
            compound = self._kind(number) in (STRUCT, UNION)
            if compound and self._flattened_members(number) <= LIMITS["flattened"]:
                for name, of, _, bits in self._members(number):
                    here = self._by_name(of) if name is None else {name: (of, bits)}
                    found = here | found  # of two of one name drgn has the first
            self._named_members[number] = found
        return self._named_members[number]

    def _form(self, number: int) -> str:
        """A type as :meth:`member_form` names it."""
        behind, name = "", None
        for _ in range(LIMITS["chain"]):
            kind = self._kind(number)
            if kind == PTR:
                behind, name = " *" + behind, None
            elif kind == ARRAY:  # of arrays, too: some writers have these as one
                behind, name = " []" + behind.removeprefix(" []"), None
            elif kind == TYPEDEF:
                name = self._name(int(self._name_offsets[number]))
            elif kind not in (TYPE_TAG, *QUALIFIERS):
                break
            number = self._of(number)
        if kind == INT:
            return f"int{self._bits_of(number)}{behind}"
        if kind in (STRUCT, UNION, FWD):
            of_union = kind == UNION or (kind == FWD and self._info[number] >> 31)
            tag = self._name(int(self._name_offsets[number]))
            word = "union" if of_union else "struct"
            return (f"{word} {tag}" if tag else name or f"{word} {{}}") + behind
        return {ENUM: "enum", ENUM64: "enum", FUNC_PROTO: "function"}.get(kind, "void") + behind

    def anonymous_struct(self, members: set[str]) -> Type | None:
        """The anonymous struct that has members of these names, if there is just one."""
        found = []
        anonymous = (self._kinds == STRUCT) & (self._name_offsets == 0)
        for number in np.flatnonzero(anonymous).tolist():
            if members <= {name for name, *_ in self._members(number)}:
                found.append(number)
        return self.type(found[0]) if len(found) == 1 else None

    def enumerator(self, name: str) -> Object | None:
        """The constant of that name."""
        offset = self._name_offset(name)
        if offset is None:
            return None
        if self._enumerators is None:
            self._enumerators = self._all_enumerators()
        offsets, owners = self._enumerators
        for owner in owners[offsets == offset].tolist():
            type_ = self.type(owner)
            for item in type_.enumerators or ():
                if item.name == name:
                    return Object(self.prog, type_, value=item.value)
        return None

    def _all_enumerators(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """(offset of the name, number of the enum) of every enumerator."""
        offsets, owners = [], []
        for kind, words in ((ENUM, 2), (ENUM64, 3)):
            numbers = np.flatnonzero(self._kinds == kind)
            lengths = (self._info[numbers] & VLEN).astype(np.int64)
            owner = np.repeat(numbers, lengths)
            within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            offsets.append(self._words[self._starts[owner] + 3 + within * words])
            owners.append(owner)
        return np.concatenate(offsets), np.concatenate(owners)

    def _number(self, name: str, kinds: tuple[int, ...]) -> int | None:
        return next(iter(self._numbers(name, kinds)), None)

    def _numbers(self, name: str, kinds: tuple[int, ...]) -> list[int]:
        """
        The types of a name, those of the first kind first.

        Kept, as drgn asks again each time that a helper names a type: thousands of times.
        """
        key = name, kinds
        if key not in self._found:
            self._found[key] = []
            if kinds and (offset := self._name_offset(name)) is not None:
                found = np.flatnonzero(self._name_offsets == offset)
                for kind in kinds:
                    self._found[key] += found[self._kinds[found] == kind].tolist()
        return self._found[key]

    def _name_offset(self, name: str) -> int | None:
        """Offset of a name in the strings; pahole writes each once, a module perhaps again."""
        numbers = self._index.numbers(name.encode("utf-8", "surrogateescape"))
        return int(self._index.starts[numbers[0]]) + 1 if numbers else None

    def _name(self, offset: int) -> str | None:
        """The string at an offset; None for the empty one: anonymous."""
        if not offset:
            return None
        end = self._names.find(b"\0", offset, offset + LIMITS["name"] + 1)
        if end < 0 or self._names[offset - 1]:
            raise _damaged(f"no name at offset {offset:,}")
        return self._names[offset:end].decode("ascii", "backslashreplace") or None

    # Building

    def type(self, number: int) -> Type:
        """
        The type of a number.

        :raises NoDebugInfoError: it, or a type that it is made of, is damaged.
        """
        if number in self._built:
            return self._built[number]
        if number in self._building or len(self._building) >= LIMITS["chain"]:
            raise _damaged(f"type {number} leads to itself, or too far")
        self._building.append(number)
        try:
            built = self._build(number)
        finally:
            self._building.pop()
        self._built[number] = built
        return built

    def _build(self, number: int) -> Type:
        if number == 0:
            return self.prog.void_type()
        if number >= len(self._kinds):
            raise _damaged(f"there is no type {number:,}")
        kind = int(self._kinds[number])
        if kind > ENUM64:
            raise NoDebugInfoError(f"BTF type {number} is of kind {kind}, which is not known here")
        if kind not in _BUILDERS:
            raise _damaged(f"type {number} of kind {kind} is no type of an object")
        return _BUILDERS[kind](self, number)

    def _vlen(self, number: int) -> int:
        return int(self._info[number] & VLEN)

    def _named(self, number: int) -> tuple[str | None, int]:
        """The name of a type, and its size or the type that it is made of."""
        name = self._name(int(self._name_offsets[number]))
        return name, int(self._size_or_type[number])

    def _integer(self, number: int) -> Type:
        name, size = self._named(number)
        word = int(self._words[self._starts[number] + 3])
        encoding = word >> 24 & 0xF
        sizes = (1,) if encoding & INT_BOOL else (1, 2, 4, 8, 16)
        # btf_int_check_meta(), kernel/bpf/btf.c; pahole writes no integer that is a part of a byte.
        if name is None or size not in sizes or word & 0xFFFFFF != 8 * size:
            raise _damaged(f"type {number} is an integer of {size} bytes")
        if encoding & INT_BOOL:
            return self.prog.bool_type(name, size)
        # In the BTF of 5.10 pahole left out its sign.
        signed = bool(encoding & INT_SIGNED) or name == "signed char"
        return self.prog.int_type(name, size, signed)

    def _float(self, number: int) -> Type:
        name, size = self._named(number)
        if name is None or size not in (2, 4, 8, 10, 12, 16):
            raise _damaged(f"type {number} is a float of {size} bytes")
        return self.prog.float_type(name, size)

    def _pointer(self, number: int) -> Type:
        return self.prog.pointer_type(self._referenced(number))

    def _typedef(self, number: int) -> Type:
        name, of = self._named(number)
        if name is None:
            raise _damaged(f"type {number} is a typedef without a name")
        return self.prog.typedef_type(name, self.type(of))

    def _qualified(self, number: int) -> Type:
        of = self._referenced(number)
        return of.qualified(of.qualifiers | QUALIFIERS[int(self._kinds[number])])

    def _referenced(self, number: int) -> Type:
        return self.type(int(self._size_or_type[number]))

    def _array(self, number: int) -> Type:
        at = self._starts[number] + 3
        element = self._object(int(self._words[at]))
        length = int(self._words[at + 2])
        size = _size(element)
        if element.kind == TypeKind.VOID:
            raise _damaged(f"type {number} is an array of nothing")
        if length * max(size, 1) > LIMITS["array_bytes"]:
            raise _damaged(f"type {number} is an array of {length:,} elements")
        # What is written [] or [0] has no length here.
        return self.prog.array_type(element, length or None)

    def _declared(self, number: int) -> Type:
        """A type that is only declared here; another record may define it."""
        name = self._name(int(self._name_offsets[number]))
        union = bool(self._info[number] >> 31)
        if name is None:
            raise _damaged(f"type {number} is declared without a name")
        defined = self._number(name, (UNION,) if union else (STRUCT,))
        if defined is not None:
            return self.type(defined)
        return self.prog.union_type(name) if union else self.prog.struct_type(name)

    def _function_type(self, number: int) -> Type:
        at = int(self._starts[number]) + 3
        count = self._vlen(number)
        pairs = self._words[at : at + 2 * count].reshape(-1, 2).tolist()
        variadic = bool(pairs) and pairs[-1] == [0, 0]
        parameters = [
            TypeParameter(self._later(type_number), self._name(name))
            for name, type_number in (pairs[:-1] if variadic else pairs)
        ]
        return self.prog.function_type(self._referenced(number), parameters, variadic)

    def _enum(self, number: int) -> Type:
        wide = self._kinds[number] == ENUM64
        count, at = self._vlen(number), int(self._starts[number]) + 3
        name = self._name(int(self._name_offsets[number]))
        size = int(self._size_or_type[number])
        if size not in (1, 2, 4, 8):
            raise _damaged(f"type {number} is an enum of {size} bytes")
        signed = bool(self._info[number] >> 31)
        values = self._words[at : at + count * (3 if wide else 2)].reshape(count, 3 if wide else 2)
        low = values[:, 1].astype(np.uint64)
        bits = low | values[:, 2].astype(np.uint64) << np.uint64(32) if wide else low
        if not wide and not signed:
            # Before pahole 1.24 the flag was never set: -1 shows it.
            signed = bool(np.any(low >= 0xFFFFF000))
        if signed:
            bits = bits.astype(np.uint32).astype(np.int32) if not wide else bits.astype(np.int64)
        enumerators = [
            TypeEnumerator(self._name(offset) or "", value)
            for offset, value in zip(values[:, 0].tolist(), bits.tolist(), strict=True)
        ]
        wrong = _miscounted(bits)
        if wrong is not None:
            raise NoDebugInfoError(
                f"{enumerators[wrong].name} is one bit from what those beside it count: {UNSURE}"
                "it is meant so"
            )
        names = {1: "char", 2: "short", 4: "int", 8: "long"}
        compatible = self.prog.int_type(
            f"{'' if signed else 'unsigned '}{names[size]}", size, signed
        )
        if not count:
            return self.prog.enum_type(name)
        return self.prog.enum_type(name, compatible, enumerators)

    def _compound(self, number: int) -> Type:
        size = int(self._size_or_type[number])
        if size > LIMITS["struct_bytes"]:
            raise _damaged(f"type {number} has {size:,} bytes")
        if self._flattened_members(number) > LIMITS["flattened"]:
            raise _damaged(f"type {number} has too many members")
        beside_a_gap = self._check_places(number, size)
        members = [
            TypeMember(
                self._unsure(number, name) if at in beside_a_gap else self._later(of, bits),
                name,
                offset,
            )
            for at, (name, of, offset, bits) in enumerate(self._members(number))
        ]
        name = self._name(int(self._name_offsets[number]))
        make = self.prog.struct_type if self._kinds[number] == STRUCT else self.prog.union_type
        return make(name, size, members)

    def _check_places(self, number: int, size: int) -> set[int]:
        """
        Find members that C does not lay out so: beyond the end of their struct, in another member,
        or in a part of a byte.

        :return: those beside a gap that no alignment makes, by their place in the record. One of
            the two is damaged, or bit fields without names are between them, which BTF leaves out.
        :raises NoDebugInfoError: there is one; or no alignment makes the struct so large.
        """
        beside_a_gap = set[int]()
        end = largest = 0
        alignment, of_union = 1, self._kinds[number] == UNION
        name = self._name(int(self._name_offsets[number])) or "a struct"
        before = None
        members = list(self._members(number))
        order = np.argsort([offset for *_, offset, _ in members], kind="stable")
        for at in order.tolist():
            member, type_number, offset, bits = members[at]
            last = offset + (bits or self._bits_of(type_number))
            if (
                last > 8 * size
                or offset < end
                or (not bits and offset % 8)
                or (of_union and offset)
            ):
                raise _damaged(f"{member or 'a member'} of {name} lies where it does not fit")
            asked = 1 if bits else _alignment(end, offset)
            if not asked:
                beside_a_gap |= {at} if before is None else {before, at}
            alignment, before = max(alignment, asked), at
            end, largest = (0, max(largest, last)) if of_union else (last, last)
        if largest and (size % alignment or not _alignment(largest, 8 * size)):
            raise NoDebugInfoError(
                f"{name} has {size:,} bytes, which its members do not have: {UNSURE}bit fields "
                "without names are at its end"
            )
        return beside_a_gap

    def _unsure(self, number: int, member: str | None) -> Callable[[], Any]:
        """The type of a member beside a gap: an error, when it is looked at."""
        name = self._name(int(self._name_offsets[number])) or "a struct"

        def look() -> Any:
            raise NoDebugInfoError(
                f"beside {member or 'a member'} of {name} is a gap that no alignment makes: "
                f"{UNSURE}bit fields without names are there"
            )

        return look

    def _bits_of(self, number: int, depth: int = 0) -> int:
        """
        Size in bits of a type, by its record alone; 0 where it is not known, more than any where
        nothing can be of it.
        """
        if number >= len(self._kinds) or depth > LIMITS["chain"]:
            return 0
        if number not in self._bits:
            at, kind = int(self._starts[number]) + 3, int(self._kinds[number])
            bits = 0
            if kind == INT:
                bits = int(self._words[at]) & 0xFF
            elif kind == PTR:
                bits = 64
            elif kind == ARRAY:
                bits = self._bits_of(int(self._words[at]), depth + 1) * int(self._words[at + 2])
            elif kind in (STRUCT, UNION, ENUM, ENUM64, FLOAT):
                bits = 8 * int(self._size_or_type[number])
            elif kind in (TYPEDEF, TYPE_TAG, *QUALIFIERS):
                bits = self._bits_of(int(self._size_or_type[number]), depth + 1)
            elif kind <= ENUM64:
                bits = 16 * LIMITS["struct_bytes"]
            self._bits[number] = bits
        return self._bits[number]

    def _members(self, number: int) -> Iterator[tuple[str | None, int, int, int]]:
        """(name, number of its type, offset in bits, bits of a bit field or 0) of each member."""
        at, count = int(self._starts[number]) + 3, self._vlen(number)
        fields = bool(self._info[number] >> 31)
        for name, type_number, offset in self._words[at : at + 3 * count].reshape(-1, 3).tolist():
            bits = offset >> 24 if fields else 0
            yield self._name(name), type_number, offset & 0xFFFFFF if fields else offset, bits

    def _flattened_members(self, number: int, depth: int = 0) -> int:
        """Number of a struct's members, with those of its anonymous members: a bomb's fan-out."""
        if depth > LIMITS["chain"]:
            return LIMITS["flattened"] + 1
        if number not in self._flattened:
            self._flattened[number] = LIMITS["flattened"] + 1  # what leads to itself is endless
            total = 0
            for name, type_number, _, _ in self._members(number):
                total += 1
                inner = type_number < len(self._kinds) and self._kinds[type_number] in (
                    STRUCT,
                    UNION,
                )
                if name is None and inner:
                    total += self._flattened_members(type_number, depth + 1)
                if total > LIMITS["flattened"]:
                    break
            self._flattened[number] = total
        return self._flattened[number]

    def _later(self, number: int, bits: int = 0) -> Callable[[], Any]:
        """A type that is built when the member is looked at."""
        if bits:
            return lambda: self._bit_field(number, bits)
        return lambda: self._object(number)

    def _bit_field(self, number: int, bits: int) -> Object:
        type_ = self._object(number)
        try:
            return Object(self.prog, type_, bit_field_size=bits)
        except (TypeError, ValueError) as error:
            raise _damaged(f"{bits} bits of type {number}: {error}") from None

    def _object(self, number: int) -> Type:
        """A type that something can be of: no function, which only pointers lead to."""
        built = self.type(number)
        if built.kind == TypeKind.FUNCTION:
            raise _damaged(f"something is of type {number}, a function")
        return built


_BUILDERS: dict[int, Callable[[Btf, int], Type]] = {
    INT: Btf._integer,
    FLOAT: Btf._float,
    PTR: Btf._pointer,
    ARRAY: Btf._array,
    STRUCT: Btf._compound,
    UNION: Btf._compound,
    ENUM: Btf._enum,
    ENUM64: Btf._enum,
    TYPEDEF: Btf._typedef,
    **dict.fromkeys(QUALIFIERS, Btf._qualified),
    TYPE_TAG: Btf._referenced,
    FWD: Btf._declared,
    FUNC_PROTO: Btf._function_type,
}


def _parts(blob: bytes) -> tuple[str, bytes | memoryview, bytes, list[tuple[int, int]]]:
    """(byte order, types, strings, bytes of each kind as in :data:`TAIL`) of a blob."""
    if len(blob) < 24 or len(blob) > LIMITS["bytes"]:
        raise NoDebugInfoError(f"{len(blob):,} bytes are no BTF")
    magic, version = struct.unpack_from("2sB", blob)
    order = {b"\x9f\xeb": "<", b"\xeb\x9f": ">"}.get(magic)
    if order is None or version != 1:
        raise NoDebugInfoError("no BTF: its first bytes are others")
    length, type_off, type_len, str_off, str_len = np.frombuffer(
        blob, dtype=f"{order}u4", count=5, offset=4
    ).tolist()
    types = memoryview(blob)[length + type_off : length + type_off + type_len]
    names = blob[length + str_off : length + str_off + str_len]
    if length < 24 or type_len % 4 or len(types) != type_len or len(names) != str_len:
        raise _damaged("its parts lie beyond its end")
    if names and not names.endswith(b"\0"):
        raise _damaged("its strings have no end")
    return order, types, names, _layout(blob, order, length)


def _layout(blob: bytes, order: str, length: int) -> list[tuple[int, int]]:
    """Bytes of each kind by the layout section, if the header is long enough to have one."""
    if length < 32:
        return []
    begin, size = np.frombuffer(blob, dtype=f"{order}u4", count=2, offset=24).tolist()
    layout = blob[length + begin : length + begin + size]
    if size % 4 or len(layout) != size:
        raise _damaged("its layout lies beyond its end")
    # struct btf_layout: info_sz, elem_sz, flags
    return [(layout[at], layout[at + 1]) for at in range(0, size, 4)][: KIND + 1]


def _starts(words: NDArray[np.uint32], layout: list[tuple[int, int]]) -> NDArray[np.uint32]:
    """
    Positions of the types, in words.

    A record's length is in its second word. For every word it is worked out where the next record
    would begin, if one began there; then there is only a chain to follow.

    :param layout: of the kinds, for those that are not known here.
    :raises NoDebugInfoError: the last one does not end with the blob, or nothing says where one
        ends.
    """
    if len(words) < 3:
        raise _damaged("it has no types")
    fixed = np.full(KIND + 1, UNKNOWN, dtype=np.uint32)
    each = np.zeros(KIND + 1, dtype=np.uint32)
    known = {kind: TAIL.get(kind, (0, 0)) for kind in range(1, ENUM64 + 1)}
    for kind, (more, per) in (dict(enumerate(layout)) | known).items():
        if kind and not more % 4 and not per % 4:
            fixed[kind] = 3 + more // 4
            each[kind] = per // 4
    info = words[1:]
    kinds = (info >> 24 & KIND).astype(np.uint8)
    # Whose items are Python's numbers, and take the room of numpy's.
    lengths = (fixed[kinds] + each[kinds] * (info & VLEN)).data
    starts, at, end = array("I"), 0, len(words)
    while at < end - 1:
        starts.append(at)
        at += lengths[at]
    if len(starts) > LIMITS["types"]:
        raise _damaged(f"more than {LIMITS['types']:,} types")
    if starts and lengths[starts[-1]] >= UNKNOWN:
        raise NoDebugInfoError(
            f"BTF has a type of kind {kinds[starts[-1]]}, which is not known here, and does not "
            "say how long such a record is: a newer mmscope may read it"
        )
    if at != end:
        raise _damaged("its last type has no end")
    return np.frombuffer(starts, np.uint32)


def _miscounted(values: NDArray[Any]) -> int | None:
    """
    The first value that is one bit from its place: those beside it count as if it were there. One
    that repeats another's is left out, as such names stand between, but where three on each side
    count; so is the last but where all before it count, and it is far off. One that is far beyond
    all others, which are every number between two, was one of them.
    """
    if at := _one_bit_off(values, 3):  # not 0: names of the first value repeat another's
        return at
    once = np.sort(np.unique(values, return_index=True)[1])
    at = _one_bit_off(values[once], 2)
    if at is not None:
        return int(once[at])
    last = len(once) - 1
    far = (int(values[once[last]]) ^ last) if last >= 3 else 0
    counted = far >= FAR and np.array_equal(values[once[:last]], np.arange(last))
    return int(once[last]) if counted and far & (far - 1) == 0 else _far_beyond(values.tolist())


def _far_beyond(values: list[int]) -> int | None:
    """
    The largest value, but for the last, that is one bit from one of the others, of which there is
    each between the least and the largest.
    """
    others = sorted(set(values))
    largest = others.pop() if others else 0
    at = values.index(largest) if others else 0
    if (
        len(others) < FEW
        or others[-1] - others[0] != len(others) - 1
        or largest - others[-1] < FAR
        or at == len(values) - 1
        or values.count(largest) > 1
    ):
        return None
    off = (largest ^ other for other in others)
    return at if any(bits & (bits - 1) == 0 for bits in off) else None


def _one_bit_off(values: NDArray[Any], beside: int) -> int | None:
    """
    The first value, but for the last, that is one bit from what lies between those beside it.

    :param beside: how many on each side count, where there are as many, or one more behind.
    """
    off = (values[:-1] ^ (values[1:] - 1)).astype(np.uint64)
    for at in np.flatnonzero((off != 0) & (off & (off - 1) == 0)).tolist():
        before = values[max(at - beside, 0) : at].tolist()
        behind = values[at + 1 : at + 1 + beside + (not at)].tolist()
        place = behind[0] - 1
        if len(before) + len(behind) <= beside or (not at and place):
            continue
        counted = [*range(place - len(before), place), *range(place + 1, place + 1 + len(behind))]
        if [*before, *behind] == counted:
            return int(at)
    return None


def _alignment(end: int, bits: int) -> int:
    """The smallest alignment that puts something at so many bits after what ends there, or 0."""
    end, at, alignment = (end + 7) // 8, bits // 8, 1
    while -(-end // alignment) * alignment != at:
        alignment *= 2
        if alignment > MOST_ALIGNED:
            return 0
    return alignment


def _size(type_: Type) -> int:
    """Bytes of a complete type, 0 of any other."""
    while type_.kind == TypeKind.TYPEDEF:
        type_ = type_.type
    if type_.kind == TypeKind.ARRAY:
        return (type_.length or 0) * _size(type_.type)
    return int(getattr(type_, "size", None) or 0)


def module_types(prog: Program, module: str) -> Btf:
    """
    The types of a loaded module and of the kernel, by the BTF that the kernel keeps of it.

    ``btf_modules`` (kernel/bpf/btf.c, since "bpf: Load and verify kernel module BTFs",
    36e68442d1af, in v5.11; with CONFIG_DEBUG_INFO_BTF_MODULES). No file of the module is needed,
    also where the kernel is read by its vmlinux. Costs 50 ms a module, for the index of the types,
    which is kept.

    :raises LookupError: the kernel keeps no BTF of modules, or none of this one.
    :raises FaultError: it cannot be read.
    :raises NoDebugInfoError: it is damaged.
    """
    kept: dict[str, Btf] = prog.cache.setdefault("module_types", {})
    if module in kept:
        return kept[module]
    for btf in _of_modules(prog):
        if btf.name.string_() == module.encode():
            return kept.setdefault(module, Btf(prog, _blob(btf.base_btf), _blob(btf)))
    raise LookupError(f"the kernel keeps no BTF of a module {module}")


def struct_of(prog: Program, name: str, module: str) -> Type:
    """
    A struct of what may be a module, or a part of the kernel.

    :raises LookupError: neither has it.
    :raises FaultError, NoDebugInfoError: as :func:`module_types`.
    """
    try:
        return prog.type(f"struct {name}")
    except LookupError:
        found = module_types(prog, module).struct(name)
    if found is None:
        raise LookupError(f"the BTF of module {module} has no struct {name}")
    return found


def _of_modules(prog: Program) -> Iterator[Object]:
    """
    The ``struct btf *`` of each module that is loaded.

    :raises LookupError: the kernel keeps no BTF of modules.
    """
    try:
        head = prog["btf_modules"].address_of_()
    except LookupError:
        raise LookupError(NO_MODULE_TYPES) from None
    for entry in islice(list_for_each_entry("struct btf_module", head, "list"), LIMITS["modules"]):
        yield entry.btf.read_()


class ModuleTypes:
    """
    A type finder for the types of modules: those that were loaded when the first was asked for.

    It is asked last, for what the kernel itself does not have. The names of all modules are read
    once, some 30 ms for a hundred of them; a module's types are those of :func:`module_types`.
    Where several have a type of one name, that which was loaded last is taken.
    """

    def __init__(self, base: bytes) -> None:
        self._base = base
        *_, self._names, _ = _parts(base)
        self._modules: list[tuple[NDArray[np.uint32], bytes, bytes]] | None = None
        self._types: dict[int, Btf] = {}

    def find_type(
        self, prog: Program, kinds: TypeKindSet, name: str, filename: str | None
    ) -> Type | None:
        """For :meth:`drgn.Program.register_type_finder`."""
        if self._modules is None:
            self._modules = []  # what is looked up meanwhile is no module's
            self._modules = list(self._read(prog))
        wanted = b"\0%b\0" % name.encode("utf-8", "surrogateescape")
        common = self._names.find(wanted) + 1
        for at, (names, strings, blob) in enumerate(self._modules):
            own = strings.find(wanted) + 1
            offsets = [common] * (common > 0) + [len(self._names) + own] * (own > 0)
            if not np.isin(names, np.array(offsets, np.uint32)).any():
                continue
            if at not in self._types:
                self._types[at] = Btf(prog, self._base, blob)
            if found := self._types[at].find_type(prog, kinds, name, filename):
                return found
        return None

    def _read(self, prog: Program) -> Iterator[tuple[NDArray[np.uint32], bytes, bytes]]:
        """(offsets of the names of its types, its strings, all) of each module, the last first."""
        with contextlib.suppress(LookupError, FaultError):
            for btf in _of_modules(prog):
                with contextlib.suppress(FaultError, NoDebugInfoError):
                    blob = _blob(btf)
                    order, types, strings, layout = _parts(blob)
                    words = np.frombuffer(types, dtype=f"{order}u4")
                    yield words[_starts(words, layout)], strings, blob


def _blob(btf: Object) -> bytes:
    """The data of a ``struct btf *``."""
    size = int(btf.data_size.value_())
    if size > LIMITS["bytes"]:
        raise _damaged(f"it has {size:,} bytes")
    return bytes(btf.prog_.read(btf.data.value_(), size))
