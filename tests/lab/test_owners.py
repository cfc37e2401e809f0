# SPDX-License-Identifier: LGPL-2.1-or-later
"""dma-bufs and memory of BPF by who has it, against what was planted and what the kernel says."""

import re
from collections.abc import Callable

import pytest
from capture import Capture
from conftest import KERNELS
from holders_lab import holders_capture

from mmscope.drgn.ledger.memory_ledger import LedgerRow, memory_ledger_from_memory
from mmscope.drgn.ledger.page_holders import PageHolder, page_holders_from_memory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found

PAGE, MIB = 4096, 1 << 20
# programs/owners.c
HEAP, SHARED = 8 * MIB // PAGE + 3, 2 * MIB // PAGE
SMALL = {"a_small_array"}

Lab = tuple[Capture, Found, list[PageHolder]]


@pytest.fixture(scope="module", params=KERNELS)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Lab:
    taken = holders_capture(request.param, say, "owners")
    memory = Memory(open_target(taken.vmcore, [taken.vmlinux]))
    ledger, found = memory_ledger_from_memory(memory), page_holders_from_memory(memory)
    assert not ledger.notes and not found.notes
    return taken, ledger, found.by_name["page_holders"]


def test_dma_bufs_have_the_process_that_has_them_open(lab: Lab) -> None:
    _, ledger, rows = lab
    found = {row.comm: row for row in rows if row.kind == "dma-buf"}
    assert (found["o-heap"].holder, found["o-heap"].pages) == ("system camera", HEAP)
    # The memfd is closed: its pages are in no file any more.
    assert (found["o-memfd"].holder, found["o-memfd"].pages) == ("udmabuf", SHARED)
    counted: list[LedgerRow] = ledger.by_name["memory_ledger"]
    assert sum(row.pages for row in counted if row.part == "dma-bufs") == HEAP + SHARED


def test_maps_and_programs_have_what_memlock_says(lab: Lab) -> None:
    taken, _, rows = lab
    said = {
        name: int(number)
        for name, number in re.findall(
            r"memlock of (\w+): ([0-9]+)", taken.console.read_text(errors="replace")
        )
    }
    assert said.keys() == {"an_array", "mapped_array", "a_hash", "opened", "attached"} | SMALL
    held = {row.holder.split()[-1]: row for row in rows if row.kind.startswith("BPF")}
    assert held.keys() == said.keys() - SMALL  # which are objects of slabs
    for name, row in held.items():
        assert row.owner == "vmalloc"
        # A structure beside the elements, and what percpu memory has: less than a page each.
        assert abs(row.bytes - said[name]) <= 2 * PAGE, name
    comms = {name: row.comm for name, row in held.items()}
    assert comms.pop("attached") is None  # no process has it open
    assert comms.pop("opened") == "o-opened"
    assert set(comms.values()) == {"o-maps"}


def test_hardly_anything_is_unexplained(lab: Lab) -> None:
    rows: list[LedgerRow] = lab[1].by_name["memory_ledger"]
    unexplained = sum(row.pages for row in rows if row.owner == "unexplained")
    assert unexplained < 0.0005 * sum(row.pages for row in rows)
