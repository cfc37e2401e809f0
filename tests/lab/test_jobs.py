# SPDX-License-Identifier: LGPL-2.1-or-later
"""Passes that several processes share: the same bytes whatever their number; one that is killed."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from capture import Capture, capture
from conftest import KERNELS
from dump_formats import makedumpfile, plain_elf
from numpy.typing import NDArray

from mmscope.drgn.free.free_memory import FreeMemory
from mmscope.drgn.ledger import file_pages
from mmscope.drgn.opening.target import describe, open_target
from mmscope.drgn.page_tables import page_table_scan
from mmscope.drgn.page_tables.page_table_entries import TableChunk
from mmscope.drgn.reading import struct_pages
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.struct_pages import PageChunk
from mmscope.drgn.rmap.rmap_cost import FolioPlaces
from mmscope.drgn.sections.memory import Memory
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect

pytestmark = pytest.mark.any_kernel

# Those that see every page, or what a pass has kept for them, and those of page tables.
SECTIONS = (
    *("memory_ledger", "free_lists", "accounting", "pcp_lists", "pageblocks", "slab_caches"),
    *("poisoned_pages", "cached_files", "memory_cgroups", "rmap_cost"),
    *("page_tables", "process_shares"),
)
SHARE = 1 << 15  # pages
# In seconds, which differ.
TIMES = ("sections.csv", "datapackage.json")

Tables = dict[str, bytes]
Owners = NDArray[np.int64]


@pytest.fixture(params=KERNELS)
def taken(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Capture:
    """The ``ledger`` workload on a kernel."""
    return capture(request.param, "ledger", say=say)


@pytest.fixture
def collected(
    taken: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: list[int]
) -> Callable[..., tuple[Tables, dict[str, SectionResult]]]:
    """What so many processes find in the core of a small machine, as if it were large."""
    monkeypatch.setattr(struct_pages, "LEAST_PAGES", 1)
    monkeypatch.setattr(struct_pages, "LEAST_SHARE", SHARE)
    monkeypatch.setattr(page_table_scan, "PART_TABLES", 64)

    def of(jobs: int, only: Sequence[str] = SECTIONS) -> tuple[Tables, dict[str, SectionResult]]:
        prog = open_target(taken.vmcore, [taken.vmlinux])
        forks.clear()
        folder = tmp_path / f"{len(only)}-{jobs}"
        with Writer(folder) as writer:
            sections = collect(Memory(prog, jobs=jobs), describe(prog, "vmcore"), writer, only)
        files = (path for path in folder.rglob("*") if path.is_file() and path.name not in TIMES)
        return (
            {str(path.relative_to(folder)): path.read_bytes() for path in files},
            {section.section: section for section in sections},
        )

    return of


def test_tables_are_the_same_whatever_the_jobs(
    collected: Callable[..., tuple[Tables, dict[str, SectionResult]]], forks: list[int]
) -> None:
    for only in (SECTIONS, ()):  # all
        alone, statuses = collected(1, only)
        assert not forks
        assert len(alone) > len(only)
        for jobs in (2, 3):
            tables, others = collected(jobs, only)
            assert len(forks) >= jobs
            assert tables == alone
            assert [(name, each.message) for name, each in others.items()] == [
                (name, each.message) for name, each in statuses.items()
            ]


def test_where_shares_do_not_add_up_one_process_does_all(
    collected: Callable[..., tuple[Tables, dict[str, SectionResult]]],
    forks: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More files than are kept: which are kept depends on what came before."""
    monkeypatch.setattr(file_pages, "MAX_FILES", 3)
    monkeypatch.setattr(file_pages, "MERGE_FROM", 1)
    only = "memory_ledger", "cached_files"
    alone, _ = collected(1, only)
    assert collected(2, only)[0] == alone and forks


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.x86  # makedumpfile 1.7.2 knows no addresses of 52 bits
def test_a_compressed_dump_is_read_by_several(
    kernel: str, say: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libkdumpfile maps the file: no process moves the place at which another one reads."""
    taken = capture(kernel, "ledger", say=say)
    elf, core = plain_elf(taken.vmcore, tmp_path / "elf"), tmp_path / "kdump"
    makedumpfile("-l", "-d", "1", elf, core)
    elf.unlink()
    monkeypatch.setattr(struct_pages, "LEAST_PAGES", 1)
    monkeypatch.setattr(struct_pages, "LEAST_SHARE", SHARE)
    found = []
    for jobs in (1, 3):
        prog = open_target(core, [taken.vmlinux])
        free = FreeMemory(prog, jobs=jobs)
        assert not free.scan.failures
        found.append((free.lists, free.pcp_lists.rows, free.pageblocks.census, free.scan.pages))
    assert found[0] == found[1]
    core.unlink()


def test_a_process_that_is_killed_costs_its_share(
    taken: Capture,
    collected: Callable[..., tuple[Tables, dict[str, SectionResult]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, take = os.getpid(), FolioPlaces.take
    # arm64's memory does not begin at 0.
    first, _, _ = valid_page_ranges(open_target(taken.vmcore, [taken.vmlinux]))[0]

    def taking(self: FolioPlaces, chunk: PageChunk) -> None:
        if os.getpid() != here and chunk.start_pfn == first + 2 * SHARE:
            os.kill(os.getpid(), signal.SIGKILL)
        take(self, chunk)

    monkeypatch.setattr(FolioPlaces, "take", taking)
    tables, sections = collected(2)
    assert "free_blocks.csv" in "".join(tables)
    for name in ("memory_ledger", "free_lists", "slab_caches"):
        assert sections[name].status == "partial"
        words = "the process that read 32,768 of them was killed"
        assert words in (sections[name].message or "")
        assert sections[name].unreadable_bytes >= 32768 * 56
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_process_that_is_killed_costs_those_whose_tables_it_read(
    collected: Callable[..., tuple[Tables, dict[str, SectionResult]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only = "page_tables", "process_shares"
    whole, _ = collected(1, only)
    here, reader = os.getpid(), page_table_scan._Reader
    take = reader.take

    def taking(self: page_table_scan._Reader, chunk: TableChunk, owners: Owners) -> None:
        if os.getpid() != here and not owners.min():
            os.kill(os.getpid(), signal.SIGKILL)
        take(self, chunk, owners)

    monkeypatch.setattr(reader, "take", taking)
    tables, sections = collected(2, only)
    for name in only:
        assert sections[name].status == "partial"
        words = "missing: who read their page tables was killed"
        assert words in (sections[name].message or "")
        # What is left is as it was: none has zeros for what is not known.
        all_rows, rows = (
            next(text for path, text in found.items() if path.endswith(f"{name}.csv")).splitlines()
            for found in (whole, tables)
        )
        assert 1 < len(rows) < len(all_rows) and set(rows) < set(all_rows)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
