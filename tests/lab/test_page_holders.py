# SPDX-License-Identifier: LGPL-2.1-or-later
"""Holders of pages, and pins, against what the guest has in sockets and rings, to the page."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from capture import Capture
from conftest import KERNELS
from holders_lab import holders_capture

from mmscope.drgn.ledger.memory_ledger import LedgerRow, memory_ledger_from_memory
from mmscope.drgn.ledger.page_holders import PageHolder, page_holders_from_memory
from mmscope.drgn.ledger.pins import Pin, pins_from_memory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found

PAGE, KIB, MIB = 4096, 1 << 10, 1 << 20
# programs/holders.c
PERF_PAGES, PACKET_BYTES, ENTRIES = 64, 16 * 64 * KIB, 4096
SOCKETS = ("h-unix", "h-udp", "h-tcp")  # in the order in which they are filled
BPF_RING, PINNED, HUGE = 1 * MIB // PAGE, 2 * MIB // PAGE, 512


@dataclass(frozen=True)
class HoldersLab:
    """A frozen guest, its ledger, and who holds what."""

    capture: Capture
    ledger: Found
    found: Found
    pins: Found

    @property
    def rows(self) -> list[PageHolder]:
        return self.found.by_name["page_holders"]

    def of(self, comm: str) -> list[PageHolder]:
        return [row for row in self.rows if row.comm == comm]


@pytest.fixture(scope="module", params=KERNELS)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> HoldersLab:
    taken = holders_capture(request.param, say)
    memory = Memory(open_target(taken.vmcore, [taken.vmlinux]))
    return HoldersLab(
        taken,
        memory_ledger_from_memory(memory),
        page_holders_from_memory(memory),
        pins_from_memory(memory),
    )


def test_nothing_is_missing(lab: HoldersLab) -> None:
    for found in (lab.ledger, lab.found, lab.pins):
        assert not found.notes


def test_of_these_classes_every_page_has_a_holder(lab: HoldersLab) -> None:
    held: Counter[tuple[str, str]] = Counter()
    for row in lab.rows:
        assert row.bytes == row.pages * PAGE
        held[row.owner, row.part] += row.pages
    ledger: list[LedgerRow] = lab.ledger.by_name["memory_ledger"]
    counted: Counter[tuple[str, str]] = Counter()
    for each in ledger:
        counted[each.owner, each.part] += each.pages
    for key, pages in counted.items():
        if key[0] in ("pipes", "rings", "tracing") or key == ("network", "socket buffers"):
            assert held[key] == pages, key
        assert held[key] <= pages, key


def test_rings_have_their_sizes(lab: HoldersLab) -> None:
    (perf,) = lab.of("h-perf")
    assert (perf.kind, perf.owner, perf.pages) == ("perf ring", "rings", 1 + PERF_PAGES)
    (packet,) = lab.of("h-packet")
    assert (packet.kind, packet.owner, packet.bytes) == ("packet ring", "network", PACKET_BYTES)
    (ring,) = lab.of("h-uring")
    # Entries of 64 bytes, twice as many completions of 16, an index of 4 bytes for each entry.
    assert (ring.kind, ring.owner) == ("io_uring", "rings")
    least = ENTRIES * (64 + 2 * 16 + 4)
    assert least <= ring.bytes <= 2 * least
    (bpf,) = lab.of("h-bpf")
    # Beside the data one page for the consumer, one for the producer and one for the ring itself.
    assert (bpf.kind, bpf.holder.split()[-1], bpf.pages) == ("BPF ring", "lab_ring", BPF_RING + 3)


def test_what_waits_in_sockets_has_its_process(lab: HoldersLab) -> None:
    said = re.findall(r"sent ([0-9]+) bytes", lab.capture.console.read_text(errors="replace"))
    for comm, sent in zip(SOCKETS, map(int, said), strict=True):
        pages = sum(row.pages for row in lab.of(comm) if row.part == "socket buffers")
        # The blocks that fragments are cut from have up to eight pages.
        assert sent <= pages * PAGE <= 1.25 * sent + 16 * PAGE, comm


def test_hardly_anything_is_unexplained(lab: HoldersLab) -> None:
    rows: list[LedgerRow] = lab.ledger.by_name["memory_ledger"]
    unexplained = sum(row.pages for row in rows if row.owner == "unexplained")
    assert unexplained < 0.0005 * sum(row.pages for row in rows)


def test_pinned_pages_have_the_process_that_pinned_them(lab: HoldersLab) -> None:
    rows = [row for row in lab.of("h-pins") if row.kind == "io_uring buffers"]
    assert {row.part: (row.owner, row.objects, row.pages) for row in rows} == {
        "base pages": ("anonymous", 2, PINNED),
        "large folios": ("anonymous", 2, HUGE),
    }


def test_pins_are_those_that_the_kernel_counts(lab: HoldersLab) -> None:
    pins: list[Pin] = lab.pins.by_name["pins"]
    by_order = {row.order: (row.owner, row.pages) for row in pins}
    assert by_order == {0: ("anonymous", PINNED), 9: ("anonymous", HUGE)}
    vmstat = (lab.capture.truth_b / "proc/vmstat").read_text()
    said = dict(re.findall(r"^nr_foll_pin_(\w+) ([0-9]+)$", vmstat, re.MULTILINE))
    assert sum(row.pins for row in pins) == int(said["acquired"]) - int(said["released"])
