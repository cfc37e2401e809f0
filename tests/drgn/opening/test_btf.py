# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTF whose format has moved: lengths of 24 bits, kinds of 7, headers that grew, unknown kinds."""

import pytest
from btf_blobs import BtfBlob
from drgn import Architecture, Platform, Program

from mmscope.drgn.opening import NoDebugInfoError
from mmscope.drgn.opening.btf import (
    DATASEC,
    ENUM,
    FUNC,
    FUNC_PROTO,
    PTR,
    STRUCT,
    TYPEDEF,
    UNION,
    Btf,
)

PROG = Program(Platform(Architecture.X86_64))
NEW, NEWER = 20, 100  # kinds that no kernel has


def some_types(of: BtfBlob) -> None:
    integer = of.integer("int", 4)
    pointer = of.add(PTR, size_or_type=integer)
    of.struct("pair", 16, {"first": (integer, 0), "second": (pointer, 8)})


def held(blob: bytes) -> None:
    types = Btf(PROG, blob)
    pair = types.struct("pair")
    assert pair is not None
    assert [(m.name, str(m.type), m.offset) for m in pair.members or ()] == [
        ("first", "int", 0),
        ("second", "int *", 8),
    ]


@pytest.mark.parametrize("count", [0, 0xFFFF, 0x10000, 70_000])
def test_what_follows_a_long_section_has_its_number(count: int) -> None:
    made = BtfBlob()
    made.add(DATASEC, ".data..percpu", count, 0, [0, 0, 0] * count)
    some_types(made)
    held(made.blob())


def test_an_enum_may_have_more_than_65535_values() -> None:
    made = BtfBlob()
    values = [word for value in range(70_000) for word in (made.name("last"), value)]
    values[-2] = made.name("really_last")
    made.add(ENUM, "numbers", 70_000, 4, values)
    constant = Btf(PROG, made.blob()).enumerator("really_last")
    assert constant is not None and constant.value_() == 69_999


@pytest.mark.parametrize("length", [24, 28, 32, 40, 64, 4096])
@pytest.mark.parametrize("order", "<>")
def test_a_header_may_have_any_length(length: int, order: str) -> None:
    made = BtfBlob(order)
    some_types(made)
    held(made.blob(header=length))


@pytest.mark.parametrize("kind", [NEW, NEWER, 31, 32, 127])
@pytest.mark.parametrize("vlen", [0, 3, 70_000])
def test_a_kind_that_is_not_known_is_passed_over_by_its_layout(kind: int, vlen: int) -> None:
    made = BtfBlob()
    new = made.add(kind, "inline_site", vlen, 0, [7, 7] + [9] * vlen)
    made.add(TYPEDEF, "made_of_it", 0, new)
    made.struct("has_it", 16, {"new": (new, 0)})
    some_types(made)
    blob = made.blob({kind: (8, 4)})
    held(blob)
    types = Btf(PROG, blob)
    for wanted in (lambda: types.struct("made_of_it"), lambda: members(types, "has_it")):
        with pytest.raises(NoDebugInfoError, match=f"of kind {kind}, which is not known here"):
            wanted()


def members(types: Btf, name: str) -> list[str]:
    found = types.struct(name)
    assert found is not None
    return [str(member.type) for member in found.members or ()]


@pytest.mark.parametrize("layout", [None, {5: (0, 12)}, {NEW - 1: (0, 0)}, {NEW: (3, 0)}])
def test_without_a_layout_of_it_all_is_refused(layout: dict[int, tuple[int, int]] | None) -> None:
    made = BtfBlob()
    made.add(NEW, "inline_site", 1, 0, [7])
    some_types(made)
    with pytest.raises(NoDebugInfoError, match=f"kind {NEW}, which is not known here, and does"):
        Btf(PROG, made.blob(layout))


def test_what_the_layout_says_of_known_kinds_is_not_needed() -> None:
    made = BtfBlob()
    some_types(made)
    held(made.blob({4: (8, 8), 1: (0, 0)}))


def test_a_layout_beyond_the_end_is_refused() -> None:
    made = BtfBlob()
    some_types(made)
    blob = bytearray(made.blob({NEW: (8, 4)}))
    blob[28:32] = (1 << 20).to_bytes(4, "little")
    with pytest.raises(NoDebugInfoError, match="layout lies beyond its end"):
        Btf(PROG, bytes(blob))


def test_a_bit_field_is_no_longer_than_its_type() -> None:
    made = BtfBlob()
    integer, name = made.integer("int", 4), made.name("bits")
    for bits in (32, 33):
        tail = [name, integer, bits << 24]
        made.add(STRUCT, f"of_{bits}", 1, 8, tail, flag=True)
    types = Btf(PROG, made.blob())
    assert members(types, "of_32") == ["int"]
    with pytest.raises(NoDebugInfoError, match="BTF is damaged: 33 bits of type 1: bit field"):
        members(types, "of_33")


def laid_out(kind: int, size: int, *members: tuple[int, int]) -> Btf:
    """A struct or union "made" of ints of so many bytes at such bits."""
    made = BtfBlob()
    numbers = {width: made.integer(f"int{width}", width) for width in (1, 4, 8)}
    tail = [word for width, at in members for word in (made.name("m"), numbers[width], at)]
    made.add(kind, "made", len(members), size, tail)
    return Btf(PROG, made.blob())


@pytest.mark.parametrize(
    ("kind", "size", "members"),
    [
        (STRUCT, 8, [(4, 0), (8, 32)]),  # ends behind the struct
        (STRUCT, 16, [(8, 0), (4, 32)]),  # in the first
        (STRUCT, 16, [(4, 32), (8, 0)]),  # the same, declared later
        (STRUCT, 16, [(4, 2)]),  # in a part of a byte
        (UNION, 4, [(4, 0), (8, 0)]),
    ],
)
def test_members_lie_where_c_may_lay_them(
    kind: int, size: int, members: list[tuple[int, int]]
) -> None:
    with pytest.raises(NoDebugInfoError, match="m of type 4 lies where it does not fit"):
        laid_out(kind, size, *members).struct("made")


def test_members_may_come_in_any_order_with_gaps() -> None:
    """As where the layout of structs is random (CONFIG_RANDSTRUCT)."""
    assert laid_out(STRUCT, 64, (4, 256), (8, 0), (1, 64)).struct("made") is not None
    assert laid_out(UNION, 8, (8, 0), (4, 0)).struct("made") is not None


@pytest.mark.parametrize("behind", [FUNC, PTR])
def test_a_record_that_swallows_another_is_told_by_those_behind_it(behind: int) -> None:
    made = BtfBlob()
    first = made.add(FUNC_PROTO)
    made.add(FUNC, "f", 1, first)
    made.struct("pair", 16, {"first": (0, 0)})
    made.add(PTR, size_or_type=1)  # so long is a member
    proto = made.add(FUNC_PROTO)
    made.add(FUNC, "g", 1, proto if behind == FUNC else first)
    made.add(PTR, size_or_type=proto)
    whole = made.blob()
    assert Btf(PROG, whole).function("g") is not None
    number = 5 if behind == FUNC else 6
    with pytest.raises(NoDebugInfoError, match=f"type {number} is made of one of kind {FUNC}$"):
        Btf(PROG, whole.replace(b"\1\0\0\4", b"\2\0\0\4", 1))


def test_a_split_blob_goes_on_behind_one_with_unknown_kinds() -> None:
    base = BtfBlob()
    base.add(NEW, "inline_site", 2, 0, [7, 7])
    some_types(base)
    module = BtfBlob()
    # Numbers and names go on where those of the kernel end.
    text = b"\0zram\0disk\0"
    start = len(base.names)
    module.types = b"".join(
        word.to_bytes(4, "little")
        for word in (start + 1, 4 << 24 | 1, 16, start + 6, base.count, 0)
    )
    module.names = text
    found = Btf(PROG, base.blob({NEW: (0, 4)}), module.blob()).struct("zram")
    assert found is not None and (found.members or [])[0].type.type_name() == "struct pair"
