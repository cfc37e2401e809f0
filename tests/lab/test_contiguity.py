# SPDX-License-Identifier: LGPL-2.1-or-later
"""What stands in the way of huge pages, against what the guest put there and the ledger counts."""

import re

import pytest
from conftest import Lab

from mmscope.drgn.freeing.contiguity import from_memory
from mmscope.drgn.ledger.memory_ledger import memory_ledger_from_memory
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found


@pytest.fixture(scope="module")
def both(lab: Lab) -> tuple[Found, Found]:
    """The ranges, and the ledger of the same pass."""
    memory = Memory(lab.prog)
    ledger = memory_ledger_from_memory(memory)
    return from_memory(memory), ledger


def test_pages_that_the_guest_gave_to_pipes_are_those_that_are_held(
    lab: Lab, both: tuple[Found, Found]
) -> None:
    planted = re.search(r"(\d+) pages pinned", lab.capture.console.read_text())
    assert planted
    rows = {(r.what, r.holder): r for r in both[0].by_name["contiguity_holders"]}
    held = rows["pinned or held anonymous", ""]
    assert held.pages == int(planted[1])
    # In each half of a range, or in one.
    assert held.alone_ranges > 0.8 * held.ranges > 0.3 * held.pages


def test_every_range_is_one_of_five(both: tuple[Found, Found]) -> None:
    zones, sets = (both[0].by_name[name] for name in ("contiguity", "contiguity_sets"))
    for row in zones:
        kinds = (row.free_ranges, row.huge_ranges, row.movable_ranges, row.spoiled_ranges)
        assert sum(kinds) == row.ranges
        assert row.free_ranges <= row.possible_ranges <= row.ranges
    assert sum(row.spoiled_ranges for row in zones) == sum(row.ranges for row in sets)


def test_pages_are_those_of_the_ledger(both: tuple[Found, Found]) -> None:
    contiguity, ledger = both
    pages: dict[str, int] = {}
    for row in ledger.by_name["memory_ledger"]:
        pages[row.owner] = pages.get(row.owner, 0) + row.pages
    whole = {
        row.what: row.pages for row in contiguity.by_name["contiguity_holders"] if not row.holder
    }
    for name in ("page tables", "kernel stacks", "vmalloc", "percpu"):
        assert whole[name] == pages[name], name
    free = sum(row.free_pages for row in contiguity.by_name["contiguity"])
    # What is free in ranges that are cut is in none of them.
    cut = sum(row.cut_ranges for row in contiguity.by_name["contiguity"])
    assert pages["free"] - 512 * cut <= free <= pages["free"]
