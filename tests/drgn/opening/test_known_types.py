# SPDX-License-Identifier: LGPL-2.1-or-later
"""Members whose type no known kernel gives them are told."""

import pytest
from btf_blobs import BtfBlob
from made_programs import empty

from mmscope.drgn.opening.btf import (
    ARRAY,
    ENUM,
    FUNC_PROTO,
    FWD,
    PTR,
    STRUCT,
    TYPEDEF,
    UNION,
    VOLATILE,
    Btf,
)
from mmscope.drgn.opening.foretold import known
from mmscope.drgn.opening.known_types import known_types, of_section, unlike_known


def made() -> Btf:
    """``struct some``, with a member of each form."""
    of = BtfBlob()
    u32 = of.integer("u32", 4, signed=False)
    list_head = of.struct("list_head", 16, {})
    atomic = of.add(TYPEDEF, "atomic_t", size_or_type=of.struct("", 4, {"counter": (u32, 0)}))
    pointer = of.add(PTR, size_or_type=of.add(VOLATILE, size_or_type=list_head))
    array = of.add(ARRAY, tail=[pointer, u32, 4])
    inner = of.add(UNION, "", 1, 8, [of.name("first"), u32, 0])
    members = {
        "number": of.add(TYPEDEF, "gfp_t", size_or_type=u32),
        "list": list_head,
        "count": atomic,
        "next": pointer,
        "rows": array,
        "table": of.add(ARRAY, tail=[array, u32, 2]),
        "": inner,
        "call": of.add(PTR, size_or_type=of.add(FUNC_PROTO)),
        "any": of.add(PTR),
        "other": of.add(PTR, size_or_type=of.add(FWD, "gone", flag=True)),
        "kind": of.add(ENUM, "kinds", 0, 4),
    }
    places = {name: (number, 64 * at) for at, (name, number) in enumerate(members.items())}
    some = of.struct("some", 64 * len(members), places)
    of.add(TYPEDEF, "some_t", size_or_type=some)
    of.add(STRUCT, "fields", 1, 4, [of.name("three"), u32, 3 << 24], flag=True)
    return Btf(empty(), of.blob())


@pytest.mark.parametrize(
    ("name", "path", "form"),
    [
        ("some", "number", "int32"),
        ("some_t", "list", "struct list_head"),
        ("some", "count", "atomic_t"),
        ("some", "count.counter", "int32"),
        ("some", "next", "struct list_head *"),
        ("some", "rows", "struct list_head * []"),
        ("some", "table", "struct list_head * []"),
        ("some", "first", "int32"),
        ("some", "call", "function *"),
        ("some", "any", "void *"),
        ("some", "other", "union gone *"),
        ("some", "kind", "enum"),
        ("fields", "three", "bits"),
        ("some", "gone", None),
        ("some", "number.more", None),
        ("gone", "number", None),
    ],
)
def test_a_member_is_told_by_its_form(name: str, path: str, form: str | None) -> None:
    assert made().member_form(name, path) == form


def test_of_two_members_of_one_name_the_first_is_told() -> None:
    """As drgn has it: one of the two names is damaged."""
    of = BtfBlob()
    u32, u64 = of.integer("u32", 4), of.integer("u64", 8)
    name = of.name("name")
    of.add(STRUCT, "zone", 2, 16, [name, u32, 0, name, u64, 64])
    types = Btf(empty(), of.blob())
    found = types.struct("zone")
    assert found is not None and found.member("name").bit_offset == 0
    assert types.member_form("zone", "name") == "int32"


def zone(name: str, size: int) -> Btf:
    """BTF of ``struct zone``, whose ``name`` is of that size."""
    of = BtfBlob()
    of.struct("zone", size, {"name": (of.integer(name, size), 0)})
    return Btf(empty(), of.blob())


def test_a_member_of_no_known_type_is_a_sentence_of_the_sections_that_ask_for_it() -> None:
    unlike = unlike_known(zone("long", 8))
    assert unlike == {
        "struct zone.name": "struct zone.name is int64 by this kernel's BTF, and int8 * on all "
        "known kernels: it changed, or BTF is damaged"
    }
    assert of_section(unlike, "zones", known()) == [*unlike.values()]
    assert of_section(unlike, "swap", known()) == []


def test_every_member_that_sections_ask_of_a_kernel_with_btf_has_a_known_type() -> None:
    forms, asked = known_types(), known()
    members = {ask: letters for ask, letters in asked.answers.items() if "." in ask}
    assert forms.keys() <= members.keys()
    with_btf = [at for at, name in enumerate(asked.kernels) if name != "owner"]
    there = {ask for ask, letters in members.items() if "+" in [letters[at] for at in with_btf]}
    assert there <= forms.keys()
