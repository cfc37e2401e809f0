# SPDX-License-Identifier: LGPL-2.1-or-later
"""Swap areas out of memory, against /proc/meminfo of the same moment."""

import re
from collections.abc import Callable

import pytest
from capture import capture
from conftest import KERNELS

from mmscope.drgn.ledger.swap_areas import SwapArea, from_memory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory


@pytest.mark.parametrize("kernel", KERNELS)
def test_areas_are_as_full_as_meminfo_says(kernel: str, say: Callable[[str], None]) -> None:
    taken = capture(kernel, "tables", say=say)
    found = from_memory(Memory(open_target(taken.vmcore, [taken.vmlinux])))
    rows: list[SwapArea] = found.by_name["swap_areas"]
    assert not found.notes
    text = (taken.truth_b / "proc/meminfo").read_text()
    said = {name: int(kib) << 10 for name, kib in re.findall(r"^(Swap\w+): +(\d+) kB$", text, re.M)}
    assert sum(row.bytes for row in rows) == said["SwapTotal"]
    assert sum(row.bytes - row.used_bytes for row in rows) == said["SwapFree"]
    if kernel != "6.1":  # which finds no disk to swap to
        (row,) = rows
        assert (row.path, row.kind, row.leaving) == ("/dev/vda", "partition", False)
        assert row.used_bytes >= 2900 << 12  # the workload has 3072 pages swapped out
