# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What each type of swap entry is, on kernels as they have been configured from 5.10 on.

Made programs, with the lengths, functions and members that the source of each gives: the lab's
kernels are built with one combination each. By what a page table holds, ``tables`` of the lab makes
swap, poison and markers; migration and device memory no guest holds still.
"""

import pytest
from drgn import Object, Program, SymbolKind, TypeEnumerator, TypeMember
from made_programs import empty, fill

from mmscope.drgn.page_tables.swap_types import (
    DEVICE,
    MARKER,
    MIGRATION,
    OTHER,
    POISONED,
    SWAP,
    swap_kinds,
)

LETTERS = {SWAP: ".", POISONED: "P", MIGRATION: "M", DEVICE: "D", MARKER: "m", OTHER: "?"}
POISON, MIGRATE = "memory_failure", "remove_migration_ptes"
RANGE, ONE = "make_device_exclusive_range", "make_device_exclusive"


def kernel(files: int | None, functions: list[str], series: str) -> Program:
    """A kernel with room for so many swap areas; none: it is built without swap."""
    version = tuple(map(int, series.split(".")))
    exclusive = version >= (5, 19)
    prog = empty()
    number = prog.int_type("unsigned int", 4, False)
    members = [TypeMember(number, "vm_flags", 0)]
    if version >= (6, 3):
        beside = TypeMember(number, "flags" if version >= (6, 19) else "__vm_flags", 0)
        members = [TypeMember(prog.union_type(None, 4, (*members, beside)), None, 0)]
    area = prog.struct_type("vm_area_struct", 8, members)
    flags = {"PG_locked": 0} | ({"PG_anon_exclusive": 17} if exclusive else {})
    pageflags = prog.enum_type(
        "pageflags", number, [TypeEnumerator(*each) for each in flags.items()]
    )
    objects = {name: Object(prog, pageflags, value) for name, value in flags.items()}
    if files is not None:
        objects["swap_info"] = Object(prog, prog.array_type(number, files), address=0)
    found = dict.fromkeys(functions, SymbolKind.FUNC)
    return fill(prog, {"vm_area_struct": area}, objects, found)


# include/linux/swap.h of each: as many swap areas as are left, and what lies behind them.
@pytest.mark.parametrize(
    ("series", "files", "functions", "behind"),
    [
        ("5.10", 29, [POISON, MIGRATE], "PMM"),
        ("5.10", 30, [MIGRATE], "MM"),
        ("5.10", 27, [POISON, MIGRATE], "PMMDD"),
        ("5.10", 31, [POISON], "P"),
        ("5.10", 32, [], ""),
        ("5.15", 29, [POISON, MIGRATE], "PMM"),
        ("5.15", 25, [POISON, MIGRATE, RANGE], "PMMDDDD"),
        ("6.1", 26, [POISON, MIGRATE], "PMMMmm"),
        ("6.1", 27, [POISON, MIGRATE], "PMMMm"),
        ("6.1", 22, [POISON, MIGRATE, RANGE], "PMMMDDDDmm"),
        ("6.1", 23, [POISON, MIGRATE, RANGE], "PMMMDDDDm"),
        ("6.1", 28, [MIGRATE], "MMMm"),
        ("6.12", 27, [POISON, MIGRATE], "PMMMm"),
        ("6.12", 23, [POISON, MIGRATE, RANGE], "PMMMDDDDm"),
        ("7.2", 27, [POISON, MIGRATE], "PMMMm"),
        ("7.2", 24, [POISON, MIGRATE, ONE], "PMMMDDDm"),
        ("7.2", 30, [POISON], "Pm"),
        ("7.2", 31, [], "m"),
        ("7.3", 27, [POISON, MIGRATE], "PMMMm"),
        ("7.3", 24, [POISON, MIGRATE, ONE], "PMMMDDDm"),
        ("7.3", 28, [MIGRATE], "MMMm"),
        ("7.3", 31, [], "m"),
        # As no kernel has been: what lies behind migration is unknown, and said to be.
        ("7.2", 20, [POISON, MIGRATE, ONE], "PMMM????????"),
    ],
)
def test_no_entry_is_taken_for_another(
    series: str, files: int, functions: list[str], behind: str
) -> None:
    prog = kernel(files, functions, series)
    found = "".join(LETTERS[kind] for kind in swap_kinds(prog).tolist())
    assert found == ("." * files + behind).ljust(32, "?") + "?" * 32


@pytest.mark.parametrize(
    ("series", "room", "functions", "kinds"),
    [
        # Debian's kernel with PREEMPT_RT, of which symbols alone are known.
        ("6.12", 28, [POISON, MIGRATE], "." * 27 + "PMMMm"),
        ("6.12", 24, [POISON, MIGRATE, RANGE], "." * 23 + "PMMMDDDDm"),
        ("7.2", 32, [POISON, MIGRATE], "." * 27 + "PMMMm"),
        # Markers may be one type or two, device memory none or two.
        ("6.1", 28, [POISON, MIGRATE], "." * 26 + "??MM?m"),
        ("5.10", 32, [POISON, MIGRATE], "." * 27 + "?????"),
    ],
)
def test_room_behind_the_array_makes_no_other_kinds(
    series: str, room: int, functions: list[str], kinds: str
) -> None:
    found = "".join(LETTERS[kind] for kind in swap_kinds(kernel(room, functions, series)).tolist())
    assert found == kinds + "?" * 32


@pytest.mark.parametrize(
    ("series", "functions", "end"),
    [
        ("7.3", [POISON, MIGRATE], "PMMMm"),
        ("7.3", [POISON, MIGRATE, ONE], "PMMMDDDm"),
        ("7.3", [], "m"),
        ("7.2", [POISON, MIGRATE], "PMMMm"),
        ("7.2", [POISON, MIGRATE, ONE], "PMMMDDDm"),
        ("6.12", [POISON, MIGRATE, RANGE], "PMMMDDDDm"),
        ("6.12", [], "m"),
        # Markers are one type or two, device memory none or two: what is not the same is unknown.
        ("6.1", [POISON, MIGRATE], "MM?m"),
        ("5.15", [POISON, MIGRATE, RANGE], "PMMDDDD"),
        ("5.10", [POISON, MIGRATE], ""),
    ],
)
def test_without_swap_the_others_are_counted_from_the_end(
    series: str, functions: list[str], end: str
) -> None:
    prog = kernel(None, functions, series)
    found = "".join(LETTERS[kind] for kind in swap_kinds(prog).tolist())
    assert found == end.rjust(32, "?") + "?" * 32
