# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct page_owner`` of 5.10 to 6.1, of which Debian builds none: made programs with the members
that the source of 5.10, 5.11, 5.15 and 6.1 gives, and page_exts of a few pages in their memory.

What is not page_owner's is given: where the arrays are, pageblocks, zones, the clock.
"""

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drgn import Object, Program, SymbolKind, TypeEnumerator, TypeMember
from made_programs import ADDRESS, empty, fill

from mmscope.drgn.free.pageblocks import PageblockTypes
from mmscope.drgn.owners import page_owner, page_owner_scan
from mmscope.drgn.owners.page_owner import page_owner_ages, page_owner_off, page_owner_tasks
from mmscope.drgn.owners.page_owner_rows import PageOwnerTask
from mmscope.drgn.owners.page_owner_scan import scan_page_owner
from mmscope.drgn.reading.page_ext import PageExtRange
from mmscope.drgn.reading.struct_pages import FlagFields
from mmscope.drgn.text.page_owner_text import MEMBERS, not_kept

NOW = 1_000_000_000_000  # ns
PAGES, PAGE_BYTES, OWNER_AT = 64, 64, 8
NAMES = ["Unmovable", "Movable", "Reclaimable"]
# Of struct page_owner: name, C type, offset. include/linux/types.h and mm/page_owner.c.
ALL = [("order", "H", 0), ("last_migrate_reason", "h", 2), ("gfp_mask", "I", 4),
       ("handle", "I", 8), ("free_handle", "I", 12)]  # fmt: skip
LAYOUTS = {
    "5.10": (16, ALL),
    "5.11": (32, [*ALL, ("ts_nsec", "Q", 16), ("pid", "i", 24)]),
    "5.15": (40, [*ALL, ("ts_nsec", "Q", 16), ("free_ts_nsec", "Q", 24), ("pid", "i", 32)]),
    "6.1": (56, [*ALL, ("ts_nsec", "Q", 16), ("free_ts_nsec", "Q", 24), ("comm", "16s", 32),
                 ("pid", "i", 48), ("tgid", "i", 52)]),
}  # fmt: skip
OWNER, ALLOCATED = 1, 2  # flags of a page_ext
# Page frame: flags, and what page_owner has of it. A base page each of one allocation of order 2,
# one of order 0 by another thread, and a page that is free.
FIRST = {"order": 2, "last_migrate_reason": -1, "gfp_mask": 8, "handle": 5,
         "ts_nsec": NOW - 5_000_000_000, "pid": 100, "tgid": 90, "comm": b"java"}  # fmt: skip
OTHER = FIRST | {"order": 0, "handle": 6, "pid": -1, "tgid": 91, "comm": b"sh",
                 "last_migrate_reason": 1, "ts_nsec": NOW - 100_000_000_000}  # fmt: skip
EXTS: dict[int, tuple[int, dict[str, Any]]] = {
    **dict.fromkeys(range(4), (OWNER | ALLOCATED, FIRST)),
    4: (OWNER | ALLOCATED, OTHER),
    8: (OWNER, FIRST | {"free_handle": 9}),
}


def kernel(version: str) -> Program:
    """A kernel with such a page_owner, and these page_exts behind its struct pages."""
    size, members = LAYOUTS[version]
    prog = empty()
    word = prog.int_type("unsigned long", 8, False)
    number = prog.int_type("int", 4, True)
    kinds = {
        "H": prog.int_type("unsigned short", 2, False), "h": prog.int_type("short", 2, True),
        "I": prog.int_type("unsigned int", 4, False), "i": number, "Q": word,
        "16s": prog.array_type(prog.int_type("char", 1, True), 16),
    }  # fmt: skip
    atomic = prog.struct_type("atomic", 4, (TypeMember(number, "counter", 0),))
    key = prog.struct_type("key", 4, (TypeMember(atomic, "enabled", 0),))
    inited = prog.struct_type("inited", 4, (TypeMember(key, "key", 0),))
    operations = prog.struct_type("page_ext_operations", 8, (TypeMember(word, "offset", 0),))
    owner_members = [TypeMember(kinds[kind], name, 8 * at) for name, kind, at in members]
    page_members = [TypeMember(word, "flags", 0), TypeMember(word, "private", 8 * 40),
                    TypeMember(atomic, "_mapcount", 8 * 48)]  # fmt: skip
    types = {
        "page_ext": prog.struct_type("page_ext", 8, (TypeMember(word, "flags", 0),)),
        "page_owner": prog.struct_type("page_owner", size, owner_members),
        "page_ext_operations": operations,
        "page": prog.struct_type("page", PAGE_BYTES, page_members),
    }
    enum = prog.enum_type("made", kinds["I"], [TypeEnumerator("PG_reserved", 10)])
    objects = {
        "page_ext_size": Object(prog, word, OWNER_AT + size),
        "page_owner_ops": Object(prog, operations, {"offset": OWNER_AT}),
        "page_owner_inited": Object(prog, inited, {"key": {"enabled": {"counter": 1}}}),
        "early_handle": Object(prog, kinds["I"], 1),
        "page_group_by_mobility_disabled": Object(prog, number, 0),
        "PG_reserved": Object(prog, enum, 10),
        "PAGE_SHIFT": Object(prog, number, 12),
    }
    memory = bytearray(PAGES * (PAGE_BYTES + OWNER_AT + size))
    for pfn in range(PAGES):
        struct.pack_into("<i", memory, pfn * PAGE_BYTES + 48, -1)
    for pfn, (flags, values) in EXTS.items():
        at = PAGES * PAGE_BYTES + pfn * (OWNER_AT + size)
        struct.pack_into("<Q", memory, at, flags)
        for name, form, offset in members:
            if name in values:
                struct.pack_into(f"<{form}", memory, at + OWNER_AT + offset, values[name])
    prog.add_memory_segment(
        ADDRESS,
        len(memory),
        lambda address, count, offset, physical: bytes(memory[offset : offset + count]),
    )
    return fill(prog, types, objects, dict.fromkeys(objects, SymbolKind.OBJECT))


@pytest.fixture(autouse=True)
def rest_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    given = {
        "page_ext_ranges": [PageExtRange(0, PAGES, ADDRESS + PAGES * PAGE_BYTES)],
        "valid_page_ranges": [(0, PAGES, ADDRESS)],
        "pageblock_types": PageblockTypes(9, NAMES, np.zeros(1, np.int8), np.ones(1, np.bool_), 9),
        "flag_fields": FlagFields(62, 3, 0, 0, 4),
        "buddy_mapcount": -129,
        "max_order": 10,
        "ktime_get_coarse_ns": SimpleNamespace(value_=lambda: NOW),
    }
    for name, value in given.items():
        monkeypatch.setattr(page_owner_scan, name, lambda prog, value=value: value)
    yield


@pytest.mark.parametrize("version", LAYOUTS)
def test_stacks_orders_and_flags_are_read_of_every_layout(version: str) -> None:
    prog = kernel(version)
    assert page_owner_off(prog) is None
    found = scan_page_owner(prog)
    assert found.by("handle", "order") == [(5, 2, 4, 1), (6, 0, 1, 1)]
    assert found.by("gfp_mask") == [(8, 5, 2)]
    assert found.by("asked", "block") == [(1, 0, 5, 2)]
    assert found.by("reason") == [(1, 1, 1), (0xFFFF, 4, 1)]
    assert found.freed == {9: 1}
    assert (found.damaged, found.gaps.bytes, found.pages) == (0, 0, PAGES)


@pytest.mark.parametrize(
    ("version", "tasks", "ages"),
    [
        ("5.10", [], []),
        ("5.11", [(100, None, None, 4, 1), (-1, None, None, 1, 1)], [(1, 4), (60, 1)]),
        ("5.15", [(100, None, None, 4, 1), (-1, None, None, 1, 1)], [(1, 4), (60, 1)]),
        ("6.1", [(100, 90, "java", 4, 1), (-1, 91, "sh", 1, 1)], [(1, 4), (60, 1)]),
    ],
)
def test_what_a_layout_lacks_is_unknown(
    version: str, tasks: list[tuple[Any, ...]], ages: list[tuple[int, int]]
) -> None:
    found = scan_page_owner(kernel(version))
    assert page_owner_tasks(found) == [PageOwnerTask(*row) for row in tasks]
    assert [(row.min_seconds, row.pages) for row in page_owner_ages(found)] == ages


@pytest.mark.parametrize(
    ("version", "words", "without"),
    [
        ("5.10", ["no time of an allocation", "no task"], {"page_owner_tasks", "page_owner_ages"}),
        ("5.11", ["the thread alone, not its process and name"], set()),
        ("5.15", ["the thread alone, not its process and name"], set()),
        ("6.1", [], set()),
    ],
)
def test_the_section_says_what_this_kernel_does_not_keep(
    monkeypatch: pytest.MonkeyPatch, version: str, words: list[str], without: set[str]
) -> None:
    """A table of which nothing is known is left out. Stacks are not read here."""
    prog = kernel(version)
    no_depot = SimpleNamespace(gaps=SimpleNamespace(bytes=0))
    nothing: list[Any] = []
    given: dict[str, Any] = {
        "depot_of": no_depot, "page_owner_stacks": (nothing, nothing),
        "depot_notes": nothing, "page_owner_gfp": nothing, "page_owner_polluters": nothing,
        "page_owner_mixed_blocks": nothing, "page_owner_migrations": nothing,
        "page_owner_freed": nothing,
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setattr(page_owner, name, lambda *_, value=value, **__: value)
    memory = SimpleNamespace(prog=prog, progress=None, live=False)
    found = page_owner.page_owner_from_memory(memory)  # type: ignore[arg-type]
    assert not found.notes and len(found.remarks) == len(words)
    for word, remark in zip(words, found.remarks, strict=True):
        assert word in remark and remark.startswith("page_owner of this kernel keeps ")
    assert without == {"page_owner_tasks", "page_owner_ages"} - found.by_name.keys()
    assert {"page_owner_stacks", "page_owner_orders"} <= found.by_name.keys()


def test_without_times_and_tasks_other_things_are_not_said_to_lack() -> None:
    assert not_kept(MEMBERS) == []
    assert len(not_kept(frozenset({"pid"}))) == 2
