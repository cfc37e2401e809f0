# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Unique and shared memory of each process of a real kernel, against the smaps_rollup that it printed
of it, cell by cell (guest/workload_shares.c, guest/workload_tables.c).
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from capture import Capture, capture
from conftest import KERNELS
from drgn import FaultError, Program
from numpy.typing import NDArray

from mmscope.drgn.opening.target import open_target
from mmscope.drgn.page_tables.mapped_pages import MappedPages
from mmscope.drgn.page_tables.page_table_scan import scan_page_tables
from mmscope.drgn.page_tables.page_tables import page_tables
from mmscope.drgn.page_tables.process_shares import (
    ProcessShare,
    from_memory,
    process_shares,
    read_smaps_rollup,
)
from mmscope.drgn.processes import address_spaces as spaces_module
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.run_section import run_section

pytestmark = pytest.mark.any_page

Shares = tuple[Capture, Program, dict[str, ProcessShare]]


@pytest.fixture(scope="module", params=KERNELS)
def shares(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Shares:
    taken = capture(request.param, "tables", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    found = from_memory(Memory(prog))
    assert not found.notes and not found.remarks and not found.unreadable_bytes
    return taken, prog, {row.comm: row for row in found.by_name["process_shares"]}


def printed(taken: Capture, row: ProcessShare) -> ProcessShare:
    """What the kernel said of a process; one without a leader is known by its thread."""
    folder = taken.truth_b / f"proc/{row.pid}"
    text = next(path for path in sorted(folder.rglob("smaps_rollup")))
    return read_smaps_rollup(text.read_text(), row.pid, row.comm)


def in_whole_kib(row: ProcessShare) -> dict[str, object]:
    """As the kernel prints it."""
    values = dataclasses.asdict(row)
    return {name: v >> 10 << 10 if name.endswith("_bytes") else v for name, v in values.items()}


def test_every_cell_is_that_of_smaps_rollup(shares: Shares) -> None:
    taken, prog, rows = shares
    assert len(rows) >= 19
    scan = scan_page_tables(prog)
    poisoned = {row.comm for row in page_tables(scan) if row.comm == "poisoned"}
    for comm, row in rows.items():
        if comm in poisoned and row.resident_bytes != printed(taken, row).resident_bytes:
            continue  # below: the kernel counts pages that are lost
        if comm == "huge" and taken.series == "6.1":
            continue  # below: the kernel leaves out huge pages of PROT_NONE
        assert in_whole_kib(row) == dataclasses.asdict(printed(taken, row)), comm


def test_what_the_kernel_counts_otherwise_differs_by_whole_pages(shares: Shares) -> None:
    taken, prog, rows = shares
    page = int(prog["PAGE_SIZE"].value_())
    lost = printed(taken, rows["poisoned"]).resident_bytes - rows["poisoned"].resident_bytes
    assert lost in (0, 4 * page)
    huge = rows["huge"].resident_bytes - printed(taken, rows["huge"]).resident_bytes
    assert huge == (4 * page * page // 8 if taken.series == "6.1" else 0)
    assert rows["huge"].pss_bytes - printed(taken, rows["huge"]).pss_bytes == pytest.approx(
        huge, abs=1024
    )


def test_pages_that_are_shared_in_every_way_are_there(shares: Shares) -> None:
    _, prog, rows = shares
    page = int(prog["PAGE_SIZE"].value_())
    parent, writes = rows["share-parent"], rows["share-writes"]
    gives_up, every = rows["share-gives-up"], rows["share-all"]
    # Ten, three and one of its own; what it wrote of the shared memory is not.
    assert writes.unique_bytes >= 14 * page
    assert writes.pss_locked_bytes and parent.pss_locked_bytes > writes.pss_locked_bytes
    assert parent.pss_shmem_bytes > 10 * every.pss_shmem_bytes
    assert gives_up.resident_bytes < every.resident_bytes - page * page // 8
    for row in rows.values():
        assert row.unique_bytes + row.shared_bytes == row.resident_bytes
        parts = row.pss_anon_bytes + row.pss_file_bytes + row.pss_shmem_bytes
        assert parts <= row.pss_bytes <= parts + 2
        assert row.unique_bytes <= row.pss_bytes <= row.resident_bytes


def test_resident_is_what_page_tables_say(shares: Shares) -> None:
    _, prog, rows = shares
    for row in page_tables(scan_page_tables(prog)):
        assert rows[row.comm].resident_bytes == row.resident_bytes


def test_page_tables_are_walked_once_for_both_sections(shares: Shares) -> None:
    _, prog, _ = shares
    memory = Memory(prog)
    both = [run_section(SECTIONS[name], memory)[0] for name in ("process_shares", "page_tables")]
    assert {section.status for section in both} == {"ok"}
    scan = memory.once("page_table_scan", lambda: scan_page_tables(prog))
    assert scan.mapped is not None


def test_address_spaces_are_read_once_for_all_sections(
    shares: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, prog, _ = shares
    read, find = [], spaces_module.address_spaces

    def noting(prog: Program, gaps: Gaps) -> spaces_module.AddressSpaces:
        read.append(prog)
        gaps.bytes += 7  # that could not be read: each section says so
        return find(prog, gaps)

    monkeypatch.setattr(spaces_module, "address_spaces", noting)
    memory = Memory(prog)
    for name in ("process_memory", "process_shares", "page_tables"):
        section, _ = run_section(SECTIONS[name], memory)
        assert section.unreadable_bytes == 7
    assert len(read) == 1


def mapped_frames(prog: Program) -> NDArray[np.uint64]:
    """The page frames whose struct pages are asked for, each once."""
    frames = []
    read = MappedPages._read

    def noting(self: MappedPages, pfns: NDArray[np.uint64]) -> object:
        frames.append(pfns)
        return read(self, pfns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MappedPages, "_read", noting)
        scan_page_tables(prog, shares=True)
    return np.unique(np.concatenate(frames))


def test_struct_pages_that_cannot_be_read_are_counted(shares: Shares) -> None:
    taken, whole, rows = shares
    prog = open_target(taken.vmcore, [taken.vmlinux])
    # Those behind the middle one of the pages that processes map, wherever the kernel put these.
    size = whole.type("struct page").size
    assert size is not None
    middle = int(np.median(mapped_frames(whole)))
    start, end, address = next(each for each in valid_page_ranges(whole) if middle < each[1])
    first = address + (middle - start) * size & -4096

    def missing(address: int, count: int, offset: int, physical: bool) -> bytes:
        raise FaultError("no memory here", address)

    prog.add_memory_segment(first, (address + (end - start) * size - first) & -4096, missing)
    section, found = run_section(SECTIONS["process_shares"], Memory(prog))
    assert section.status == "partial" and section.unreadable_bytes
    assert "could not be read: not counted" in str(section.message)
    read = {row.comm: row for row in found.by_name["process_shares"]}
    assert read.keys() == rows.keys()
    assert all(read[comm].resident_bytes <= rows[comm].resident_bytes for comm in rows)
    lost = sum(rows[comm].resident_bytes - read[comm].resident_bytes for comm in rows)
    scan = scan_page_tables(prog, shares=True)
    assert scan.mapped is not None and process_shares(scan) == found.by_name["process_shares"]
    assert lost == int(scan.mapped.sums["unread"].sum()) * int(prog["PAGE_SIZE"].value_()) > 0


def test_a_kernel_that_does_not_count_mappings_of_pages_is_told_of(shares: Shares) -> None:
    _, prog, _ = shares
    scan = scan_page_tables(prog, shares=True)
    mapped = scan.mapped
    assert mapped is not None and not mapped.numbers["uncounted"]
    # As with CONFIG_NO_PAGE_MAPCOUNT: a page of a large folio is mapped, and its count is zero.
    pages = np.zeros(1, mapped.dtype)
    pages["mapcount"], pages["refcount"], pages["flags"] = -1, 5, mapped.head

    def read_scattered(*_: object) -> tuple[object, object]:
        return np.array([(-1, 0)], mapped.second), np.ones(1, bool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmscope.drgn.page_tables.mapped_pages.read_scattered", read_scattered)
        times, uncounted = mapped._mapcounts(
            pages, pages, np.zeros(1, np.uint64), np.ones(1, np.bool_)
        )
    assert (times.tolist(), uncounted.tolist()) == ([0], [True])
