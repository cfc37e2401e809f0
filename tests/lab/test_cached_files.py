# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Files in memory, against the ledger, what mincore() said of planted files, and what the kernel
counts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from capture import Capture, capture
from conftest import KERNELS
from drgn import Object, Program, sizeof
from dump_formats import makedumpfile, plain_elf
from ledger_lab import meminfo
from plain_walks import inode_pages

from mmscope.drgn.filesystems import cached_files
from mmscope.drgn.filesystems.cached_files import (
    CACHED_FILES_SECTION,
    CachedFile,
    CachedFilesystem,
    cached_files_from_memory,
    read_cached_files,
)
from mmscope.drgn.filesystems.super_blocks import read_super_blocks
from mmscope.drgn.ledger import file_pages
from mmscope.drgn.ledger.ledger_pages import LedgerPages
from mmscope.drgn.ledger.memory_ledger import ledger_pages
from mmscope.drgn.ledger.page_kinds import KINDS, Kind
from mmscope.drgn.ledger.page_places import page_places
from mmscope.drgn.opening.no_debug_info import attach
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.reading.struct_pages import scan_struct_pages
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found
from mmscope.reports.collect.run_section import run_section

PAGE, MIB = 4096, 1 << 20
# guest/workload_ledger.c
LOCKED, HUGE, DIRTY = 2 * MIB // PAGE, 512, 5 * MIB // PAGE
SHM, LEFT, LEFT_KEY = 8 * MIB // PAGE, 3 * MIB // PAGE, 0x1ED6E4


@dataclass(frozen=True)
class FilesLab:
    """A frozen guest with files of every kind."""

    capture: Capture
    prog: Program
    memory: Memory
    found: Found

    @property
    def files(self) -> dict[str, CachedFile]:
        rows: list[CachedFile] = self.found.by_name["cached_files"]
        assert len({row.path for row in rows}) == len(rows)
        return {row.path or "": row for row in rows}

    @property
    def filesystems(self) -> list[CachedFilesystem]:
        return self.found.by_name["cached_filesystems"]

    @property
    def noted(self) -> dict[str, int]:
        """What the workload noted: pages of files by mincore(), numbers of segments."""
        text = (self.capture.truth_a / "stages/ledger").read_text()
        return {path: int(pages) for path, pages in map(str.split, text.splitlines())}

    def ledger(self, kind: int) -> int:
        """Pages of a class."""
        pages, _ = ledger_pages(self.memory)
        return int(pages.pages.reshape(len(KINDS), pages.zones)[kind].sum())


@pytest.fixture(scope="module", params=KERNELS)
def files_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> FilesLab:
    """The ``ledger`` workload on a kernel."""
    taken = capture(request.param, "ledger", say=say)
    prog = open_target(taken.vmcore, [taken.vmlinux])
    memory = Memory(prog)
    return FilesLab(taken, prog, memory, cached_files_from_memory(memory))


def test_planted_files_have_the_pages_that_mincore_said(files_lab: FilesLab) -> None:
    assert not files_lab.found.notes
    noted = files_lab.noted
    renamed = {"/tmp/ledger-deleted": "/tmp/ledger-deleted (deleted)", "/dev/vda": "vda"}
    planted = {
        renamed.get(path, path): pages for path, pages in noted.items() if "SYSV" not in path
    }
    assert len(planted) >= 6
    assert {path: files_lab.files[path].pages for path in planted} == planted


def test_every_kind_of_file_is_told(files_lab: FilesLab) -> None:
    files = files_lab.files
    kinds = {
        "/tmp/ledger-file": "tmpfs",
        "/tmp/ledger-deleted (deleted)": "tmpfs",
        "memfd:ledger-memfd": "memfd",
        "SYSV00000000": "SysV",
        f"SYSV{LEFT_KEY:08x}": "SysV",
        "/ledger-ram/file": "file",
        "memfd:ledger-hugetlb": "hugetlbfs",
        **({"vda": "block device"} if "/dev/vda" in files_lab.noted else {}),
    }
    assert {path: files[path].kind for path in kinds} == kinds
    assert {path for path, row in files.items() if row.deleted} == {"/tmp/ledger-deleted (deleted)"}


def test_segments_of_shared_memory_have_their_number(files_lab: FilesLab) -> None:
    attached, left = (files_lab.files[name] for name in ("SYSV00000000", f"SYSV{LEFT_KEY:08x}"))
    assert attached.inode == str(files_lab.noted["SYSV-attached"])
    assert left.inode == str(files_lab.noted["SYSV-left"])
    assert (attached.pages, left.pages) == (SHM, LEFT)


def test_it_is_told_whether_anybody_has_shared_memory(files_lab: FilesLab) -> None:
    """What is open, mapped or attached at the freeze, and what is not."""
    held = {
        "/tmp/ledger-file": True,  # mapped, and closed
        "/tmp/ledger-deleted (deleted)": True,  # open
        "memfd:ledger-memfd": True,
        "SYSV00000000": True,
        "/init": True,  # it runs
        "/tmp/ledger-unused": False,
        "/ledger-huge/file": False,
        f"SYSV{LEFT_KEY:08x}": False,
        "/ledger-ram/file": None,
    }
    assert {path: files_lab.files[path].held for path in held} == held


def test_a_file_that_a_process_has_open_is_held_whatever_its_dentry_says(
    files_lab: FilesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mock of open files: in the guest none is open that has a name and is not mapped."""
    path = "/tmp/ledger-unused"
    mapping = int(files_lab.files[path].address_space, 16)
    inode = Object(files_lab.prog, "struct address_space", address=mapping).host.value_()
    opened = SimpleNamespace(files={"inode": [inode]})
    monkeypatch.setattr(cached_files, "open_files", lambda memory: opened)
    found = cached_files_from_memory(Memory(files_lab.prog))
    (row,) = (row for row in found.by_name["cached_files"] if row.path == path)
    assert row.held is True
    assert "1 file of shared memory is in use, but" in " ".join(found.notes)


def test_all_files_add_up_to_the_ledger_and_to_meminfo(files_lab: FilesLab) -> None:
    rows, said = files_lab.filesystems, meminfo(files_lab.capture)
    cache = sum(row.pages for row in rows if row.kind != "hugetlbfs")
    assert cache == files_lab.ledger(Kind.FILE) + files_lab.ledger(Kind.SHMEM)
    assert cache == said["Cached"] + said["Buffers"]
    shared = {"tmpfs", "memfd", "SysV", "shared anonymous", "kernel's own shmem"}
    assert sum(row.pages for row in rows if row.kind in shared) == said["Shmem"]
    assert sum(row.pages for row in rows if row.kind == "block device") == said["Buffers"]
    # Of the huge pages in use three are anonymous.
    huge = sum(row.pages for row in rows if row.kind == "hugetlbfs")
    assert huge == files_lab.ledger(Kind.HUGETLB) - 3 * HUGE == HUGE
    assert sum(row.pages for row in files_lab.files.values()) == cache + huge


def test_dirty_and_locked_pages_are_those_of_meminfo(files_lab: FilesLab) -> None:
    said = meminfo(files_lab.capture)
    assert sum(row.dirty_pages or 0 for row in files_lab.filesystems) == said["Dirty"]
    assert said["Dirty"] == (DIRTY if "/dev/vda" in files_lab.noted else 0)
    assert sum(row.mlocked_pages for row in files_lab.filesystems) == said["Mlocked"] == LOCKED
    assert files_lab.files["/tmp/ledger-file"].mlocked_pages == LOCKED
    assert sum(row.unevictable_pages for row in files_lab.filesystems) == said["Unevictable"]
    assert {row.difference_pages for row in files_lab.found.by_name["cached_file_checks"]} == {0}


def test_file_systems_have_their_place(files_lab: FilesLab) -> None:
    places = {(row.kind, row.filesystem): row.mount for row in files_lab.filesystems}
    assert places["file", "ramfs"] == "/ledger-ram"
    assert places["memfd", "tmpfs"] is None
    mounted = {row.mount: row for row in files_lab.filesystems}
    assert mounted["/tmp"].deleted_files == 1
    assert mounted["/tmp"].mounted_by_init
    assert mounted["/ledger-huge"].left_pages == files_lab.noted["/ledger-huge/file"]


def test_a_walk_over_every_super_blocks_inodes_finds_the_same(files_lab: FilesLab) -> None:
    """``super_block.s_inodes``, inode by inode."""
    walked = inode_pages(files_lab.prog)
    ours = {
        int(row.address_space, 16): row.pages
        for row in files_lab.files.values()
        if row.kind != "hugetlbfs"
    }
    assert {mapping: pages for mapping, pages in walked.items() if mapping in ours} == ours


@pytest.mark.btf
def test_it_is_the_same_without_debug_info(files_lab: FilesLab) -> None:
    prog = Program()
    prog.set_core_dump(files_lab.capture.vmcore)
    attach(prog)
    assert cached_files_from_memory(Memory(prog)).by_name == files_lab.found.by_name


@pytest.mark.x86  # makedumpfile 1.7.2 knows no addresses of 52 bits
@pytest.mark.any_kernel
def test_so_it_is_without_the_pages_themselves(files_lab: FilesLab, tmp_path: Path) -> None:
    """A dump without the page cache has its struct pages and inodes."""
    elf = plain_elf(files_lab.capture.vmcore, tmp_path / "elf")
    makedumpfile("-c", "-d", "31", elf, tmp_path / "kdump")
    elf.unlink()
    filtered = open_target(tmp_path / "kdump", [files_lab.capture.vmlinux])
    section, found = run_section(CACHED_FILES_SECTION, Memory(filtered))
    if files_lab.capture.series in ("5.10", "6.1"):
        assert section.status == "ok"
    # A makedumpfile that does not know the kernel leaves slabs out, and with them inodes.
    if section.status == "ok":
        assert found.by_name == files_lab.found.by_name
    else:
        assert re.search("Excluded page|cannot be read", section.message or "")


@pytest.mark.parametrize("pages", [192, 1536])
def test_large_folios_may_be_read_apart(files_lab: FilesLab, pages: int) -> None:
    prog = files_lab.prog
    places = page_places(files_lab.memory)
    chunk = pages * sizeof(prog.type("struct page"))
    counted = LedgerPages(prog, places.ram, places.owned)
    assert not scan_struct_pages(prog, [counted], chunk_bytes=chunk).failures
    found = read_cached_files(prog, counted.files, read_super_blocks(prog))
    rows = cached_files.filesystem_rows(found, int(counted.pages.sum()))
    assert rows == files_lab.filesystems


def test_with_too_many_files_the_sums_stay(
    files_lab: FilesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_pages, "MAX_FILES", 6)
    monkeypatch.setattr(file_pages, "MERGE_FROM", 0)
    found = cached_files_from_memory(Memory(files_lab.prog))
    rows: list[CachedFilesystem] = found.by_name["cached_filesystems"]
    assert sum(row.pages for row in rows) == sum(row.pages for row in files_lab.filesystems)
    assert rows[-1].superblock == "others"
    assert any("too many to keep" in note for note in found.notes)
