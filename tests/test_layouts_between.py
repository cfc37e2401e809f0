# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Layouts of 5.14 to 5.19, of which no kernel can be had: made programs with the members, lengths and
variables that the source of 5.15 gives.
"""

import pytest
from drgn import Object, Program, SymbolKind, TypeEnumerator, TypeMember
from made_programs import empty, fill

from mmscope.drgn.free.pcp_lists import list_kinds
from mmscope.drgn.struct_pages.hugetlb import hvo_switch, reserved_pages

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
