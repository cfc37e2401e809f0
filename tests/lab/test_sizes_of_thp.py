# SPDX-License-Identifier: LGPL-2.1-or-later
"""Huge pages by size, against those of THP size that /proc/vmstat has as well."""

import pytest
from conftest import Lab

from mmscope.drgn.machine.thp_sizes import thp_sizes
from mmscope.drgn.machine.vm_counters import vm_counters
from mmscope.drgn.sections.files import Absent

# do_huge_pmd_anonymous_page(), split_huge_page_to_list_to_order() and others (mm/huge_memory.c,
# 6.12, 7.2) count both at one place.
BOTH = {
    "anon_fault_alloc": "thp_fault_alloc",
    "anon_fault_fallback": "thp_fault_fallback",
    "anon_fault_fallback_charge": "thp_fault_fallback_charge",
    "swpout": "thp_swpout",
    "swpout_fallback": "thp_swpout_fallback",
    "split": "thp_split_page",
}


def test_those_of_thp_size_are_what_vmstat_has(lab: Lab) -> None:
    if "mthp_stats" not in lab.prog:
        with pytest.raises(Absent, match="does not count huge pages by size"):
            thp_sizes(lab.prog)
        return
    printed = {row.name: row.value for row in vm_counters(lab.prog)}
    found = {row.counter: row.value for row in thp_sizes(lab.prog) if row.page_bytes == 2 << 20}
    assert {name: found.get(name, 0) for name in BOTH} == {
        name: printed[BOTH[name]] for name in BOTH
    }
