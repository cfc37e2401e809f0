# SPDX-License-Identifier: LGPL-2.1-or-later
"""
One bit of a kernel's BTF is flipped, in the types that sections ask for: what is noticed of it.

The bits are those of the records of types that ``drgn/opening/asked.toml`` has, of what they have
within them, and of the names in these records. All that sections ask for is then asked again, and
compared with what it was.
"""

import random
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from btf_blobs import BtfBlob
from drgn import Architecture, Platform, Program, Type, TypeKind, sizeof

from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.btf import (
    ARRAY,
    ENUM,
    ENUM64,
    QUALIFIERS,
    STRUCT,
    TAIL,
    TYPE_TAG,
    TYPEDEF,
    UNION,
    Btf,
)
from mmscope.drgn.opening.foretold import CONSTANT, SYMBOL, known
from mmscope.drgn.opening.known_types import unlike_known
from mmscope.drgn.opening.no_debug_info import _hold_against

NEW, NEWER = 20, 100  # kinds that no kernel has
KINDS_TOLD = ("pointer", "array", *map(str, TypeKind))
COMPOUND = (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS)
HARMLESS, NOTICED, SPELLED = "harmless", "noticed", "spelled"
MISSING, SILENT = "missing", "silent"


@dataclass(frozen=True, slots=True)
class Flip:
    """
    :ivar place: *record*, *name* or *format*.
    :ivar outcome: *noticed*: an error says so, of the whole or of each type that is another; or
        a member is of no known type;
        *missing*: a type, a member or a constant is not there, as on a kernel without it;
        *silent*: one is another; *spelled*: one is, in the name of a type within it alone;
        *harmless*: all is as it was.
    :ivar of: what is missing, or another.
    """

    place: str
    bit: int
    outcome: str
    of: str


def of_a_later_kernel(blob: bytes) -> tuple[bytes, list[int]]:
    """
    A kernel's BTF with what the format has since: a longer header, a layout section, and behind all
    types such of kinds that are not known here, one of them with more items than 16 bits count.

    :return: the blob; and its bytes of the header, of the layout, and of the new types but for
        those items.
    """
    length, type_off, type_len, str_off, str_len = struct.unpack_from("<5I", blob, 4)
    made = BtfBlob()
    made.types = blob[length + type_off : length + type_off + type_len]
    made.names = blob[length + str_off : length + str_off + str_len]
    for _ in range(20):
        made.add(NEW, "", 3, 7, [1, 2, 3])
        made.add(NEWER, "", 1, 0, [1, 2, 3, 4, 5])
    end = len(made.types) + 12
    made.add(NEW, "", 70_000, 0, bytes(70_000))
    kinds = {kind: TAIL.get(kind, (0, 0)) for kind in range(1, ENUM64 + 1)}
    whole = made.blob(kinds | {NEW: (0, 4), NEWER: (8, 12)})
    header, layout = 32, 32 + len(made.types)
    records = range(header + type_len, header + end)
    return whole, [*range(header), *records, *range(layout, len(whole) - len(made.names))]


def flips(
    blob: bytes, info: Mapping[str, str], count: int, seed: int, there: Sequence[int] = ()
) -> Iterator[Flip]:
    """
    Flip a bit, *count* times.

    :param info: the lines of the kernel's VMCOREINFO.
    :param there: bytes to flip a bit of, instead of those of the types that sections ask for.
    """
    chance = random.Random(seed)
    types = Btf(_program(), blob)
    asked = sorted(each for each in known().answers if not each.startswith(f"{SYMBOL} "))
    before = _said(types, asked)
    records = sorted(_records(types, asked))
    length, type_off, _, str_off = (
        int.from_bytes(blob[at : at + 4], "little") for at in (4, 8, 12, 16)
    )
    words = [word for number in records for word in _words(types, number)]
    record_bits = [8 * (length + type_off + 4 * word) for word in words]
    names = sorted({at for number in records for at in _names(types, number)})
    name_bits = [
        8 * (length + str_off + byte)
        for at in names
        for byte in range(at, types._names.index(b"\0", at))
    ]
    for _ in range(count if there else 0):
        bit = 8 * chance.choice(there) + chance.randrange(8)
        yield Flip("format", bit, *_outcome(flipped(blob, bit), info, asked, before))
    for _ in range(0 if there else count):
        drawn = chance.randrange(32 * len(record_bits) + 8 * len(name_bits))
        place = "record" if drawn < 32 * len(record_bits) else "name"
        if place == "record":
            bit = record_bits[drawn // 32] + drawn % 32
        else:
            drawn -= 32 * len(record_bits)
            bit = name_bits[drawn // 8] + drawn % 8
        yield Flip(place, bit, *_outcome(flipped(blob, bit), info, asked, before))


def flipped(blob: bytes, bit: int) -> bytes:
    """The blob with a bit that is another."""
    damaged = bytearray(blob)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def _outcome(
    blob: bytes, info: Mapping[str, str], asked: list[str], before: dict[str, Any]
) -> tuple[str, str]:
    try:
        types = Btf(_program(), blob)
        _hold_against(types, info)
    except NoDebugInfoError as error:
        return NOTICED, str(error)
    after = _said(types, asked)
    other = [each for each in asked if after[each] != before[each]]
    silent = [each for each in other if after[each] and not isinstance(after[each], Exception)]
    if silent and (unlike := unlike_known(types)):
        return NOTICED, next(iter(unlike.values()))
    if silent:
        layout = [each for each in silent if _unnamed(after[each]) != _unnamed(before[each])]
        first = (layout or silent)[0]
        return SILENT if layout else SPELLED, f"{first}: {before[first]} is {after[first]}"
    missing = [each for each in other if after[each] is None]
    if missing:
        return MISSING, missing[0]
    return (NOTICED, f"{other[0]}: {after[other[0]]}") if other else (HARMLESS, "")


def _unnamed(said: Any) -> Any:
    """A description without its names."""
    if isinstance(said, tuple) and said[0] == "typedef":
        return _unnamed(said[2])
    if isinstance(said, tuple):
        return tuple(map(_unnamed, said))
    return "" if isinstance(said, str) and said not in KINDS_TOLD else said


def _program() -> Program:
    return Program(Platform(Architecture.X86_64))


def _said(types: Btf, asked: list[str]) -> dict[str, Any]:
    """What is answered: a description, None, or the error."""
    return {each: _answer(types, each) for each in asked}


def _answer(types: Btf, each: str) -> Any:
    try:
        begin, _, rest = each.partition(" ")
        if begin == CONSTANT:
            constant = types.enumerator(rest)
            return None if constant is None else ("value", int(constant.value_()))
        name, _, path = (rest if rest else begin).partition(".")
        found = _type(types, name, begin)
        if found is None or not path:
            return None if found is None else _told(found)
        offset = 0
        for part in path.split("."):
            member = _member(found, part)
            if member is None:
                return None
            offset, found = offset + member.bit_offset, member.type
            bits = member.bit_field_size
        return ("at", offset, bits, _told(found))
    except NoDebugInfoError as error:
        return error


def _type(types: Btf, name: str, begin: str) -> Type | None:
    if begin == "enum":
        number = types._number(name, (ENUM, ENUM64))
        return None if number is None else types.type(number)
    return types.struct(name)


def _member(type_: Type, name: str) -> Any:
    while type_.kind == TypeKind.TYPEDEF:
        type_ = type_.type
    return type_.member(name) if type_.kind in COMPOUND and type_.has_member(name) else None


def _told(type_: Type) -> Any:
    """All that is behind a type without following pointers, but not the names of its members."""
    kind = type_.kind
    if kind == TypeKind.TYPEDEF:
        return ("typedef", type_.name, _told(type_.type))
    if kind == TypeKind.POINTER:
        return ("pointer", type_.type.type_name())
    if kind == TypeKind.ARRAY:
        return ("array", type_.length, _told(type_.type))
    size = sizeof(type_) if type_.is_complete() and kind != TypeKind.FUNCTION else None
    if kind == TypeKind.INT:
        return type_.name, size, type_.is_signed
    return str(kind), getattr(type_, "tag", ""), size


def _records(types: Btf, asked: list[str]) -> set[int]:
    """The numbers of all that is asked for, and of what lies within it."""
    found: set[int] = set()
    left = []
    for each in asked:
        begin, _, rest = each.partition(" ")
        name = (rest or begin).partition(".")[0]
        if begin == CONSTANT:
            offset = types._name_offset(name)
            if types._enumerators is None:
                types.enumerator(name)
            assert offset is None or types._enumerators is not None
            if offset is not None and types._enumerators is not None:
                offsets, owners = types._enumerators
                left += owners[offsets == offset].tolist()[:1]
        else:
            left += types._numbers(name, (STRUCT, UNION, ENUM, ENUM64, TYPEDEF))[:1]
    while left:
        number = left.pop()
        if number in found or not number:
            continue
        found.add(number)
        kind = int(types._kinds[number])
        if kind in (STRUCT, UNION):
            left += [of for _, of, *_ in types._members(number)]
        elif kind == ARRAY:
            left.append(int(types._words[types._starts[number] + 3]))
        elif kind in (TYPEDEF, TYPE_TAG, *QUALIFIERS):
            left.append(int(types._size_or_type[number]))
    return found


def _words(types: Btf, number: int) -> range:
    more, each = TAIL.get(int(types._kinds[number]), (0, 0))
    begin = int(types._starts[number])
    return range(begin, begin + 3 + (more + each * types._vlen(number)) // 4)


def _names(types: Btf, number: int) -> Iterator[int]:
    """Where the names in a record begin."""
    begin, kind = int(types._starts[number]), int(types._kinds[number])
    found = [int(types._name_offsets[number])]
    if kind in (STRUCT, UNION, ENUM, ENUM64):
        step = TAIL[kind][1] // 4
        found += types._words[begin + 3 : begin + 3 + step * types._vlen(number) : step].tolist()
    yield from (at for at in found if at)


def counted(found: list[Flip]) -> Counter[tuple[str, str]]:
    """How many, by place and outcome."""
    return Counter((each.place, each.outcome) for each in found)
