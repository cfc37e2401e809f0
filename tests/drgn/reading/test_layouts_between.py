# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Layouts of 5.11 to 5.19, of which no kernel can be had: made programs with the members, lengths and
variables that the source of 5.15 and its neighbours gives.
"""

import struct
from types import SimpleNamespace

import pytest
from drgn import Object, Program, SymbolKind, Type, TypeEnumerator, TypeMember
from made_programs import ADDRESS, empty, fill

from mmscope.drgn.free.pcp_lists import list_kinds
from mmscope.drgn.free.zones import thp_in_pages
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.struct_pages import FlagFields, page_dtype
from mmscope.drgn.struct_pages import hugetlb
from mmscope.drgn.struct_pages.hugetlb import find_huge_pages, hvo_switch, reserved_pages

NAMES = ["Unmovable", "Movable", "Reclaimable", "HighAtomic"]


def kernel(lists: int = 0, variables: dict[str, bool] | None = None) -> Program:
    """A kernel with so many per-CPU lists, and with variables of HVO."""
    variables = variables or {}
    prog = empty()
    number = prog.int_type("unsigned int", 4, False)
    member = TypeMember(prog.array_type(number, lists), "lists", 0)
    types = {
        "per_cpu_pages": prog.struct_type("per_cpu_pages", 4 * lists, (member,)),
        "page": prog.struct_type("page", 64, (TypeMember(number, "flags", 0),)),
    }
    constants = {"MIGRATE_PCPTYPES": 3, "PAGE_SHIFT": 12, "HPG_vmemmap_optimized": 4}
    enum = prog.enum_type("made", number, [TypeEnumerator(*each) for each in constants.items()])
    values = {name: Object(prog, enum, value) for name, value in constants.items()}
    flag = prog.bool_type("_Bool", 1)
    values |= {name: Object(prog, flag, on) for name, on in variables.items()}
    keys = ["hugetlb_free_vmemmap_enabled_key"] if lists == 1 else []
    return fill(prog, types, values, dict.fromkeys([*variables, *keys], SymbolKind.OBJECT))


def test_per_cpu_lists_of_huge_pages_are_by_migratetype() -> None:
    """``order_to_pindex()``: three lists of each order, also of a pageblock's."""
    kinds = list_kinds(kernel(15), NAMES)
    assert kinds[9:] == [(order, name) for order in (3, 9) for name in NAMES[:3]]
    assert list_kinds(kernel(14), NAMES)[12:] == [(9, "not Movable"), (9, "Movable")]
    assert list_kinds(kernel(12), NAMES) == kinds[:12]  # without transparent huge pages
    assert list_kinds(kernel(3), NAMES) == kinds[:3]
    with pytest.raises(LookupError, match="per_cpu_pages has 16 lists, which is no layout known"):
        list_kinds(kernel(16), NAMES)


@pytest.mark.parametrize(
    ("variable", "kept"), [("vmemmap_optimize", 1), ("hugetlb_free_vmemmap", 2)]
)
@pytest.mark.parametrize("on", [False, True])
def test_the_switch_of_hvo_had_another_name_and_kept_a_page_more(
    variable: str, kept: int, on: bool
) -> None:
    prog = kernel(variables={f"{variable}_enabled": on})
    assert (hvo_switch(prog), reserved_pages(prog)) == ((on, ""), kept)


def test_a_switch_that_is_not_known_is_not_said_to_be_off() -> None:
    assert hvo_switch(kernel())[1].startswith("not compiled in")
    assert hvo_switch(kernel(1))[1] == "its switch on this kernel (5.18, 5.19) is not known here"


@pytest.mark.parametrize(
    ("swapcache", "member", "pages"),
    [
        (False, "pageset", False),  # 5.10, 5.11
        (True, "pageset", True),  # 5.12, 5.13
        (True, "per_cpu_zonestats", True),  # 5.15
        (False, "per_cpu_zonestats", True),  # 5.15 without CONFIG_SWAP
    ],
)
def test_huge_pages_are_counted_in_pages_since_their_neighbours_in_time(
    swapcache: bool, member: str, pages: bool
) -> None:
    prog = empty()
    number = prog.int_type("int", 4, True)
    enum = prog.enum_type("node_stat_item", number, [TypeEnumerator("NR_SWAPCACHE", 41)])
    zone = prog.struct_type("zone", 8, (TypeMember(number, member, 0),))
    objects = {"NR_SWAPCACHE": Object(prog, enum, 41)} if swapcache else {}
    assert thp_in_pages(fill(prog, {"zone": zone}, objects, {})) is pages


# struct page of 5.15 (include/linux/mm_types.h): member, bytes, offset.
PAGE_OF_5_15 = [
    ("flags", 8, 0), ("compound_head", 8, 8), ("compound_dtor", 1, 16), ("compound_order", 1, 17),
    ("slab_cache", 8, 24), ("freelist", 8, 32), ("counters", 8, 40), ("private", 8, 40),
    ("memcg_data", 8, 56),
]  # fmt: skip
# struct slab of 5.17 (mm/slab.h), and the head of struct folio of 5.16: nothing of its tails.
SLAB_OF_5_17 = [("slab_cache", 8, 24), ("freelist", 8, 32), ("counters", 8, 40)]
FOLIO_OF_5_16 = [("flags", 8, 0), ("private", 8, 40)]


def pages_of(version: str) -> tuple[Program, dict[str, Type], Type]:
    """Types of pages as a series has them, and an ``int``."""
    prog = empty()
    number = prog.int_type("int", 4, True)
    kinds = {
        1: prog.int_type("unsigned char", 1, False), 8: prog.int_type("unsigned long", 8, False)
    }  # fmt: skip

    def made(name: str, members: list[tuple[str, int, int]], *more: TypeMember) -> Type:
        own = [TypeMember(kinds[size], member, 8 * at) for member, size, at in members]
        return prog.struct_type(name, 64, (*own, *more))

    counter = prog.struct_type("atomic", 4, (TypeMember(number, "counter", 0),))
    mapcount = TypeMember(counter, "_mapcount", 8 * 48)
    slabs = ["slab_cache", "freelist", "counters"] if version == "5.17" else []
    members = [each for each in PAGE_OF_5_15 if each[0] not in slabs]
    types = {"page": made("page", members, mapcount)}
    if version != "5.15":
        types["folio"] = made("folio", FOLIO_OF_5_16)
    if version == "5.17":
        types["slab"] = made("slab", SLAB_OF_5_17)
    return prog, types, number


@pytest.mark.parametrize("version", ["5.15", "5.16", "5.17"])
def test_columns_of_pages_are_where_each_series_has_them(version: str) -> None:
    prog, types, _ = pages_of(version)
    names = ["flags", "tail", "memcg", "mapcount", "slab_cache", "freelist", "counters", "order"]
    dtype = page_dtype(fill(prog, types, {}, {}), names)  # the order is in the second page
    assert {name: field[1] for name, field in (dtype.fields or {}).items()} == {
        "flags": 0, "tail": 8, "memcg": 56, "mapcount": 48, "slab_cache": 24, "freelist": 32,
        "counters": 40, "order": 17,
    }  # fmt: skip
    assert dtype.itemsize == 64


HEAD, OPTIMIZED, HUGETLB_DTOR, THP_DTOR, ORDER = 16, 4, 2, 3, 3


@pytest.mark.parametrize("version", ["5.15", "5.16", "5.17"])
def test_hugetlb_pages_are_told_by_their_destructor_and_hvo_by_a_flag_of_the_head(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Pages of order 3: one with HVO, one without, one that is a THP, and one that is free."""
    prog, types, number = pages_of(version)
    memory = bytearray(4 * 64 << ORDER)
    for pfn, (private, destructor) in {
        0: (1 << OPTIMIZED, HUGETLB_DTOR),
        1 << ORDER: (0, HUGETLB_DTOR),
        2 << ORDER: (1 << OPTIMIZED, THP_DTOR),
    }.items():
        head = ADDRESS + 64 * pfn
        struct.pack_into("<Q", memory, 64 * pfn, 1 << HEAD)
        struct.pack_into("<Q", memory, 64 * pfn + 40, private)
        for tail in range(1, 1 << ORDER):
            struct.pack_into("<Q", memory, 64 * (pfn + tail) + 8, head | 1)
        struct.pack_into("<BB", memory, 64 * (pfn + 1) + 16, destructor, ORDER)
    prog.add_memory_segment(
        ADDRESS, len(memory), lambda address, count, offset, physical: bytes(
            memory[offset : offset + count]
        )
    )  # fmt: skip
    text = f"NUMBER(HUGETLB_PAGE_DTOR)={HUGETLB_DTOR}\n".encode() + b"\0"
    char = prog.int_type("char", 1, True)
    constants = {"PG_head": HEAD, "HPG_vmemmap_optimized": OPTIMIZED}
    enum = prog.enum_type("made", number, [TypeEnumerator(*each) for each in constants.items()])
    objects = {name: Object(prog, enum, value) for name, value in constants.items()}
    objects["VMCOREINFO"] = Object(prog, prog.array_type(char, len(text)), list(text))
    fill(prog, types, objects, {})
    pools = [(SimpleNamespace(nr_huge_pages=SimpleNamespace(value_=lambda: 2)), ORDER)]
    given = {
        "_hstates": pools, "valid_page_ranges": [(0, 4 << ORDER, ADDRESS)],
        "flag_fields": FlagFields(62, 3, 0, 0, 4),
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setattr(hugetlb, name, lambda prog, value=value: value)
    gaps = Gaps()
    found = find_huge_pages(prog, gaps)
    assert found["pfn"].tolist() == [0, 1 << ORDER] and found["order"].tolist() == [ORDER, ORDER]
    assert found["flagged"].tolist() == [True, False]
    assert not gaps.bytes
