# SPDX-License-Identifier: LGPL-2.1-or-later
"""Numbers that are read twice: one that is not what the other reading has is marked."""

from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.processes.processes import ProcessVmas
from mmscope.drgn.sections.section import Against, Found

ROWS = [
    ProcessVmas(pid, "sh", vmas, 65530, None, None, None) for pid, vmas in ((1, 9), (2, 1 << 40))
]


def marked(other: dict[int, Against]) -> list[str]:
    found = Found()
    found.hold_against(ROWS, "vmas", lambda row: other.get(row.pid), "its VMAs")
    return [f"row {mark.row_number}: {mark}" for mark in found.impossible]


def test_a_number_that_is_another_elsewhere_is_marked_with_both() -> None:
    assert marked({1: (9, 0), 2: (7, 0)}) == [
        "row 2: process_vmas.vmas: 1,099,511,627,776 is not 7, its VMAs"
    ]


def test_what_may_differ_is_allowed_and_what_is_not_known_is_not_held_against() -> None:
    assert marked({1: (7, 2)}) == []
    assert marked({1: (6, 2)}) == ["row 1: process_vmas.vmas: 9 is not 6, its VMAs"]


def test_of_a_table_of_counters_the_row_is_named() -> None:
    found = Found()
    rows = [VmCounter("nr_zspages", "zone", 1 << 17, 0), VmCounter("pgfree", "event", 1, 0)]
    found.hold_against(rows, "value", lambda row: (1, 0), "counted")
    assert [str(mark) for mark in found.impossible] == [
        "vm_counters.value, nr_zspages: 131,072 is not 1, counted"
    ]
