# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ledger of a frozen guest, what makes one right, and what the guest printed of its memory."""

import re
from dataclasses import dataclass

import pytest
from capture import Capture
from drgn import Program

from mmscope.drgn.ledger.memory_ledger import LedgerCheck, LedgerRow, memory_ledger_from_memory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found

PAGE = 4096
MAY_DIFFER = {
    # Large allocations of kmalloc() have no mark of their own before 6.15.
    "nr_slab_unreclaimable": range(-500, 1),
    # Each of two CPUs keeps two stacks of four pages; some wait for a grace period of RCU.
    "nr_kernel_stack": range(0, 33),
    # Unmapped, and still on their way to the free lists.
    "nr_anon_pages": range(0, 65),
}


@dataclass(frozen=True)
class LedgerLab:
    """A frozen guest with memory of every class."""

    capture: Capture
    prog: Program
    found: Found

    @property
    def rows(self) -> list[LedgerRow]:
        return self.found.by_name["memory_ledger"]

    @property
    def checks(self) -> dict[str, LedgerCheck]:
        return {row.counter: row for row in self.found.by_name["ledger_checks"]}

    def pages(self, owner: str, part: str = "") -> int:
        return sum(r.pages for r in self.rows if r.owner == owner and part in ("", r.part))


def meminfo(taken: Capture) -> dict[str, int]:
    """Pages by name, as the kernel printed them last."""
    text = (taken.truth_b / "proc/meminfo").read_text()
    lines = re.findall(r"^(\S+): +([0-9]+) kB$", text, re.MULTILINE)
    return {name: (int(kib) << 10) // PAGE for name, kib in lines}


def read_ledger(taken: Capture) -> LedgerLab:
    """The ledger of a vmcore."""
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return LedgerLab(taken, prog, memory_ledger_from_memory(Memory(prog)))


def assert_adds_up(found: Found) -> None:
    """Every zone has its present pages, and the kernel counts each class as the ledger does."""
    checks = found.by_name["ledger_checks"]
    present = [row for row in checks if row.counter == "present_pages"]
    assert len(present) >= 2  # zones; on x86 DMA is one more
    assert {row.difference_pages for row in present} == {0}
    zones = {(row.node, row.zone): row.kernel_pages for row in present}
    rows: list[LedgerRow] = found.by_name["memory_ledger"]
    for zone, pages in zones.items():
        assert sum(row.pages for row in rows if (row.node, row.zone) == zone) == pages
    assert sum(row.percent for row in rows) == pytest.approx(100)
    for row in checks:
        if row.counter.startswith("present_pages"):
            continue
        allowed = MAY_DIFFER.get(row.counter, range(1))
        assert row.difference_pages in allowed, row
