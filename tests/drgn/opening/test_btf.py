# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTF whose format has moved: lengths of 24 bits, kinds of 7, headers that grew, unknown kinds."""

import struct

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
        (UNION, 16, [(4, 0), (8, 64)]),  # not where a union begins
    ],
)
def test_members_lie_where_c_may_lay_them(
    kind: int, size: int, members: list[tuple[int, int]]
) -> None:
    with pytest.raises(NoDebugInfoError, match="m of made lies where it does not fit"):
        laid_out(kind, size, *members).struct("made")


def test_members_may_come_in_any_order_with_gaps() -> None:
    """As where the layout of structs is random (CONFIG_RANDSTRUCT)."""
    assert laid_out(STRUCT, 64, (4, 256), (8, 0), (1, 64)).struct("made") is not None
    assert laid_out(UNION, 8, (8, 0), (4, 0)).struct("made") is not None


@pytest.mark.parametrize("size", [4, 8, 16, 64, 4096, 65536])
def test_a_struct_ends_where_an_alignment_puts_its_end(size: int) -> None:
    assert laid_out(STRUCT, size, (4, 0)).struct("made") is not None


def test_a_member_that_is_aligned_aligns_its_struct() -> None:
    assert laid_out(STRUCT, 128, (8, 0), (8, 512)).struct("made") is not None
    with pytest.raises(NoDebugInfoError, match="made has 80 bytes, which its members"):
        laid_out(STRUCT, 80, (8, 0), (8, 512)).struct("made")


@pytest.mark.parametrize("size", [5, 12, 20, 24, 4104])
def test_a_size_that_its_members_do_not_have_is_unknown(size: int) -> None:
    with pytest.raises(NoDebugInfoError, match=f"made has {size:,} bytes, which its members"):
        laid_out(STRUCT, size, (4, 0)).struct("made")


def test_beside_a_gap_that_no_alignment_makes_two_members_are_unknown() -> None:
    """As a bit field without a name leaves it, of which BTF has nothing: struct ioam6_hdr's."""
    made = BtfBlob()
    byte = made.integer("u8", 1)
    places = {"first": 0, "before": 1, "behind": 3, "last": 4}
    made.struct("made", 6, {name: (byte, at) for name, at in places.items()})
    found = Btf(PROG, made.blob()).struct("made")
    assert found is not None
    assert found.member("first").type.size == found.member("last").type.size == 1
    for name in ("before", "behind"):
        with pytest.raises(NoDebugInfoError, match=f"beside {name} of made is a gap .*, or bit f"):
            _ = found.member(name).type


def test_a_struct_that_is_larger_than_its_members_make_it_is_unknown() -> None:
    made = BtfBlob()
    integer = made.integer("int", 4)
    made.struct("__kernel_timex", 208, {"tai": (integer, 160)})
    with pytest.raises(NoDebugInfoError, match="or bit fields without names are at its end"):
        Btf(PROG, made.blob()).struct("__kernel_timex")


def test_one_member_that_does_not_ascend_is_damage() -> None:
    made = BtfBlob()
    integer = made.integer("int", 4)
    for number in range(2000):
        made.struct(f"s{number}", 32, {"a": (integer, 0), "b": (integer, 4), "c": (integer, 12)})
    whole = made.blob()
    assert Btf(PROG, whole).struct("s7") is not None
    moved = [struct.pack("<3I", made.name("b"), integer, bits) for bits in (32, 160)]
    assert Btf(PROG, whole.replace(*moved)).struct("s7") is not None  # in all of them: meant so
    with pytest.raises(NoDebugInfoError, match="members ascend, but not those of s0"):
        Btf(PROG, whole.replace(*moved, 1))


@pytest.mark.parametrize("kind", [FUNC_PROTO, DATASEC, 0])
def test_nothing_is_of_what_is_no_object(kind: int) -> None:
    made = BtfBlob()
    other = made.add(kind) if kind else 0
    alias = made.add(TYPEDEF, "alias", 0, other)
    made.struct("holder", 8, {"m": (alias, 0)})
    with pytest.raises(NoDebugInfoError, match="BTF is damaged"):
        members(Btf(PROG, made.blob()), "holder")


@pytest.mark.parametrize(
    "values",
    [
        *((0, 1, 2, 3, 4), (0, 1, 1, 2, 3), (0, 1, 2, 3, 3), (1, 2, 4, 8), (0, 1, 2, 3, 36)),
        *((0, 1, 3, 2, 3), (7, 9, 2), (0, 1, 2, 3, 4, 3 + 64), (0, 1, 2, 3, 4, 70, 4), ()),
        *((0, 1, 2, 3, 5, 1 + 64, 2), (0, 1, 2, 3, 4, 4 + 32, 2), (0, 1, 2, 66, 3)),
    ],
)
def test_what_an_enum_may_count(values: tuple[int, ...]) -> None:
    made = BtfBlob()
    tail = [word for at, value in enumerate(values) for word in (made.name(f"n{at}"), value)]
    made.add(ENUM, "numbers", len(values), 4, tail)
    assert Btf(PROG, made.blob()).type(1).tag == "numbers"


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        *(((64, 1, 2, 3), "n0"), ((0, 1, 2 + 8, 3, 4), "n2"), ((0, 1, 2 | 1 << 31, 3, 4), "n2")),
        *(((0, 1 + 32, 2, 2, 3), "n1"), ((0, 1, 2, 2, 3 + 64), "n4"), ((0, 0, 2, 3, 4), "n1")),
        *(((0, 1, 2, 2 + 128, 3, 4), "n3"), ((0, 1, 2, 3, 4, 2 + 2048, 1), "n5")),
    ],
)
def test_one_bit_beside_what_others_count_is_unknown(values: tuple[int, ...], wrong: str) -> None:
    made = BtfBlob()
    tail = [word for at, value in enumerate(values) for word in (made.name(f"n{at}"), value)]
    made.add(ENUM, "numbers", len(values), 4, tail)
    with pytest.raises(NoDebugInfoError, match=f"{wrong} is one bit from .*, or it is m"):
        Btf(PROG, made.blob()).type(1)


def test_records_that_the_kernel_would_not_take_are_damage() -> None:
    for kind, name, vlen in ((PTR, "named", 0), (PTR, "", 2), (TYPEDEF, "", 0), (TYPEDEF, "t", 1)):
        made = BtfBlob()
        integer = made.integer("int", 4)
        made.add(kind, name, vlen, integer)
        with pytest.raises(NoDebugInfoError, match="type 2 has a name or a length that its kind"):
            Btf(PROG, made.blob())


def test_a_record_is_there_once() -> None:
    for kind, tail in ((PTR, []), (3, [1, 1, 5])):
        made = BtfBlob()
        integer = made.integer("int", 4)
        for _ in range(2):
            made.add(kind, "", 0, integer if kind == PTR else 0, tail)
        with pytest.raises(NoDebugInfoError, match="type 3 is there twice"):
            Btf(PROG, made.blob())


def test_no_name_begins_within_another() -> None:
    made = BtfBlob()
    integer = made.integer("int", 4)
    made.struct("holder", 4, {"member": (integer, 0)})
    made.add(TYPEDEF, "alias", 0, integer)
    whole = made.blob()
    for name in ("member", "alias"):
        offset, within = ((made.name(name) + at).to_bytes(4, "little") for at in (0, 1))
        assert whole.count(offset) == 1
        with pytest.raises(NoDebugInfoError, match=r"BTF is damaged: .*name"):
            members(Btf(PROG, whole.replace(offset, within)), "holder")
    with pytest.raises(NoDebugInfoError, match="a name is no name of C's"):
        Btf(PROG, whole.replace(b"member", b"mem\xe2er"))


def test_names_that_the_kernel_has_sorted_stay_so() -> None:
    made = BtfBlob()
    integer = made.integer("int", 4)
    names = [f"t{number:05}" for number in range(5000)]
    for name in names:
        made.add(TYPEDEF, name, 0, integer)
    whole = made.blob()
    assert Btf(PROG, whole).struct("t00017") is not None
    with pytest.raises(NoDebugInfoError, match="sorted by their names, but for those around t"):
        Btf(PROG, whole.replace(b"t00017", b"t10017"))
    unsorted = BtfBlob()
    integer = unsorted.integer("int", 4)
    for name in sorted(names, key=lambda name: name[::-1]):
        unsorted.add(TYPEDEF, name, 0, integer)
    assert Btf(PROG, unsorted.blob()).struct("t00017") is not None


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
