# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pageblock flags as they lie in memory, and the map made of them."""

import numpy as np
import pytest
from drgn import Architecture, Object, Platform, Program, TypeMember
from hypothesis import given
from hypothesis import strategies as st
from made_programs import ADDRESS, empty, fill

from mmscope.drgn.free.pageblocks import (
    PageblockPages,
    PageblockRun,
    Pageblocks,
    PageblockTypes,
    _decode,
    pageblock_order,
    pageblock_runs,
    pageblocks,
    set_pageblock_order,
)
from mmscope.drgn.reading.struct_pages import FlagFields, PageChunk

NAMES = ["Unmovable", "Movable", "Reclaimable", "HighAtomic", "CMA", "Isolate"]
ISOLATE = NAMES.index("Isolate")


@given(st.lists(st.integers(0, 15), min_size=1, max_size=64))
def test_four_bits_a_pageblock_before_6_17(flags: list[int]) -> None:
    # Three bits of type and the skip bit, which says nothing of the type.
    packed = bytes(
        low | high << 4
        for low, high in zip(flags[::2], [*flags[1::2], 0][: len(flags[::2])], strict=True)
    )
    types = _decode(packed + bytes(7), len(flags), 4, None, NAMES)
    expected = [flag & 7 if flag & 7 < len(NAMES) else -1 for flag in flags]
    assert types.tolist() == expected


@given(st.lists(st.integers(0, 255), min_size=1, max_size=64), st.sampled_from([3, 4]))
def test_eight_bits_a_pageblock_from_6_17_with_isolate_as_a_bit(
    flags: list[int], isolate_bit: int
) -> None:
    types = _decode(bytes(flags) + bytes(7), len(flags), 8, 1 << isolate_bit, NAMES)
    expected = [
        ISOLATE if flag >> isolate_bit & 1 else flag & 7 if flag & 7 < len(NAMES) else -1
        for flag in flags
    ]
    assert types.tolist() == expected


def test_isolate_is_a_type_of_its_own_where_it_is_no_bit() -> None:
    assert _decode(bytes([0x5D]), 2, 4, None, NAMES).tolist() == [ISOLATE, ISOLATE]


def test_a_kernel_without_memory_isolation_has_no_isolate() -> None:
    names = NAMES[:4]
    assert _decode(bytes([0x11, 0x04]), 2, 8, None, names).tolist() == [1, -1]


def types_of(*types: int, order: int = 2) -> PageblockTypes:
    array = np.array(types, np.int8)
    return PageblockTypes(order, NAMES, array, array >= 0, order)


def test_a_pfn_beyond_the_last_section_has_no_type() -> None:
    assert types_of(1, 0).of(np.array([0, 3, 4, 7, 8, 1 << 40])).tolist() == [1, 1, 0, 0, -1, -1]


def census(types: PageblockTypes, zones: list[int]) -> PageblockPages:
    result = PageblockPages(types, FlagFields(0, 0, 0, 0, 4), [], [], 0)
    result.zone = np.array(zones, np.int32)
    return result


def test_pages_of_a_zone_that_is_not_there_are_counted() -> None:
    """Two bits of zone: 1 and 2 are there; reserved or not."""
    flags = np.array([1, 1 | 4, 3, 2 | 4, 3 | 4], np.uint64).repeat(4)
    pages = np.zeros(len(flags), [("flags", "<u8")])
    pages["flags"] = flags
    found = PageblockPages(types_of(0, 0, 0, 0, -1), FlagFields(0, 3, 60, 0, 4), [], [1, 2], 4)
    found.take(PageChunk(0, 0, pages))
    assert found.nowhere == 1


ZONES = {0: (0, "DMA"), 1: (0, "Normal")}


@given(
    st.lists(
        st.tuples(st.sampled_from([-1, 0, 1]), st.integers(0, 5), st.integers(0, 5)),
        max_size=40,
    )
)
def test_runs_say_what_every_pageblock_is(blocks: list[tuple[int, int, int]]) -> None:
    order = 2
    pages = census(types_of(*(mt for _, mt, _ in blocks), order=order), [z for z, _, _ in blocks])
    free = np.array([free for *_, free in blocks], np.int64)
    spelled = {}
    for run in pageblock_runs(pages, free, ZONES):
        for number in range(run.blocks):
            first = (run.start_pfn >> order) + number
            assert first not in spelled
            spelled[first] = run.node, run.zone, run.migratetype, run.free_eighths
    eighths = [0, 2, 4, 6, 8, 8]  # of a pageblock of four pages; never more than all of it
    assert spelled == {
        number: (*ZONES[zone], NAMES[mt], eighths[free])
        for number, (zone, mt, free) in enumerate(blocks)
        if zone >= 0
    }


def test_a_run_is_as_long_as_it_can_be() -> None:
    pages = census(types_of(1, 1, 1, 0, 1), [0, 0, 1, 1, 1])
    assert pageblock_runs(pages, None, ZONES) == [
        PageblockRun(0, 2, 0, "DMA", "Movable", None),
        PageblockRun(8, 1, 0, "Normal", "Movable", None),
        PageblockRun(12, 1, 0, "Normal", "Unmovable", None),
        PageblockRun(16, 1, 0, "Normal", "Movable", None),
    ]


@pytest.mark.parametrize(
    ("free", "eighths"), [(0, 0), (1, 1), (63, 1), (64, 1), (511, 7), (512, 8)]
)
def test_nothing_and_all_are_never_rounded_to(free: int, eighths: int) -> None:
    pages = census(types_of(1, order=9), [0])
    (run,) = pageblock_runs(pages, np.array([free]), ZONES)
    assert run.free_eighths == eighths


def test_every_type_has_a_row_and_damage_has_its_own() -> None:
    pages = census(types_of(1, 1), [0, 0])
    pages.census = {(0, 1): 7, (0, -1): 2}
    rows = pageblocks(pages, {0: (0, "DMA")})
    assert [(row.migratetype, row.blocks) for row in rows] == [
        ("Unmovable", 0), ("Movable", 7), ("Reclaimable", 0), ("HighAtomic", 0), ("CMA", 0),
        ("Isolate", 0), ("unknown", 2),
    ]  # fmt: skip
    assert rows[1] == Pageblocks(0, "DMA", "Movable", 7)


def test_an_order_that_is_told_is_there_before_the_kernels_own() -> None:
    prog = Program(Platform(Architecture.X86_64))
    own = Object(prog, "unsigned int", 9)
    prog.register_object_finder(
        "vmlinux", lambda prog, name, *_: own if name == "pageblock_order" else None, enable_index=0
    )
    assert pageblock_order(prog) == 9
    set_pageblock_order(prog, 7)
    assert pageblock_order(prog) == 7


def with_sections(page_shift: int, section_bits: int, types: bytes) -> Program:
    """
    A made program of 6.17 with three sections of boot, whose pageblocks have these types.

    Its debug info does not say which order its build had.
    """
    prog, count, offset = empty(), 3, 24
    word = prog.int_type("unsigned long", 8, False)
    usage = prog.struct_type(
        "mem_section_usage", offset, (TypeMember(prog.array_type(word, 0), "pageblock_flags", 192),)
    )
    section = prog.struct_type(
        "mem_section",
        16,
        (
            TypeMember(word, "section_mem_map"),
            TypeMember(prog.pointer_type(usage), "usage", 64),
        ),
    )
    zone = prog.struct_type(
        "zone", 112, (TypeMember(prog.array_type(word, page_shift - 2), "free_area"),)
    )
    size = offset + -(-len(types) // 8) * 8
    usages = ADDRESS + 4096
    flags = 0b1111  # present, with struct pages, online and of boot
    sections = [(flags, usages + number * size) for number in range(count)]
    array = b"".join(part.to_bytes(8, "little") for row in sections for part in row)
    memory = (ADDRESS + 256).to_bytes(8, "little").ljust(256, b"\0") + array
    memory = memory.ljust(4096, b"\0") + (bytes(offset) + types).ljust(size, b"\0") * count
    prog.add_memory_segment(
        ADDRESS, len(memory), lambda a, n, at, physical: memory[at : at + n], False
    )
    numbers = {
        "NR_SECTION_ROOTS": 1,
        "SECTIONS_PER_ROOT": count,
        "SECTION_SIZE_BITS": section_bits,
        "PAGE_SHIFT": page_shift,
        "__highest_present_section_nr": count - 1,
        "__NR_PAGEBLOCK_BITS": 5,
        "PB_migrate_isolate": 4,
    }
    objects = {name: Object(prog, word, number) for name, number in numbers.items()}
    roots = prog.pointer_type(prog.pointer_type(section))
    objects["mem_section"] = Object(prog, roots, ADDRESS)
    kinds = {"mem_section": section, "mem_section_usage": usage, "zone": zone}
    return fill(prog, {**kinds, "unsigned long": word}, objects, {})


@pytest.mark.parametrize("types", [b"\1", b"\0\1", b"\2\1\0\1"])
@pytest.mark.parametrize(
    ("page_shift", "section_bits", "order"),
    [
        *((12, 27, order) for order in (9, 8, 7, 4)),
        *((14, 27, order) for order in (11, 10, 9, 7)),
        *((16, 29, order) for order in (13, 12, 11, 10, 9)),
    ],
)
def test_a_smaller_order_is_told_by_the_room_of_flags_and_those_in_use(
    page_shift: int, section_bits: int, order: int, types: bytes
) -> None:
    blocks = 1 << section_bits - page_shift - order
    prog = with_sections(page_shift, section_bits, (types * blocks)[-blocks:])
    assert pageblock_order(prog) == order
    # What was found is there for who asks next.
    assert prog["pageblock_order"].value_() == order
