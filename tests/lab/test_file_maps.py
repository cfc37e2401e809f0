# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Mapped files, against what the guest has mapped (guest/workload_file_maps.c), what its
/proc/PID/maps said, the kernel's own trees descended one by one, and page caches walked.
"""

import dataclasses

import numpy as np
import pytest
from conftest import RmapLab
from drgn import Object, Program, offsetof
from drgn.helpers.linux.fs import inode_for_each_page
from drgn.helpers.linux.mm import PageCompound, compound_head, page_to_pfn
from drgn.helpers.linux.pid import find_task
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry
from rmap_truth import huge_pages, parts, timed_walks, walkers

from mmscope.drgn.rmap.file_maps import (
    S_DAX,
    FileMapping,
    FileMaps,
    file_fanout,
    file_mapping_locks,
    file_mapping_rows,
    flags_apart,
    read_file_maps,
)
from mmscope.drgn.rmap.ksm import NodeCost
from mmscope.drgn.rmap.reverse_maps import check_sample
from mmscope.drgn.rmap.rmap_cost import rmap_costs, rmap_walks, scan_folios
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.run_section import run_section

pytestmark = pytest.mark.any_page

# guest/workload_file_maps.c
FILE_VMAS, SHARERS, WINDOWS, WINDOW_PAGES = 20_000, 3, 12, 3
SHARED_PAGES = 2 * WINDOWS + 1


@pytest.fixture(scope="module")
def maps(rmap_lab: RmapLab) -> FileMaps:
    return read_file_maps(rmap_lab.prog, rmap_lab.maps.slots["vma"], rmap_lab.maps.tasks)


@pytest.fixture(scope="module")
def rows(rmap_lab: RmapLab, maps: FileMaps) -> dict[str | None, FileMapping]:
    """By the end of their path."""
    found = file_mapping_rows(rmap_lab.prog, maps)
    assert len(found) == len(maps.addresses)
    by_name = {(row.file or "").rpartition("/")[2]: row for row in found}
    assert len(by_name) == len(found)
    return by_name


def test_mapped_files_are_those_that_were_built(
    rmap_lab: RmapLab, rows: dict[str, FileMapping]
) -> None:
    expected = {
        # VMAs, processes, shared, that may be written to, pages, over one page
        "file-vmas": (FILE_VMAS, 1, FILE_VMAS, FILE_VMAS, FILE_VMAS, 1, 1.0),
        "file-same": (FILE_VMAS, 1, FILE_VMAS, FILE_VMAS, 1, FILE_VMAS, FILE_VMAS),
        # Every second is shared, of these every second opened for reading only. Windows of three
        # pages lie two pages apart: every second page lies in two of each process.
        "file-share": (
            SHARERS * WINDOWS, SHARERS, SHARERS * WINDOWS // 2, SHARERS * WINDOWS // 4,
            SHARED_PAGES, 2 * SHARERS,
            round(SHARERS * WINDOWS * WINDOW_PAGES / SHARED_PAGES, 2),
        ),
        "memfd:lab memfd (deleted)": (1, 1, 1, 1, 2, 1, 1.0),
        "SYSV000001ab (deleted)": (1, 1, 1, 1, 3, 1, 1.0),
        "anon_hugepage (deleted)": (1, 1, 1, 1, 2 * huge_pages(rmap_lab), 1, 1.0),
    }  # fmt: skip
    for name, numbers in expected.items():
        row = rows[name]
        assert numbers == (
            row.vmas, row.processes, row.shared_vmas, row.writable_vmas, row.pages,
            row.visits_most, row.visits_mean,
        ), name  # fmt: skip
        assert row.deleted == name.endswith(" (deleted)")
        assert row.dax is False
    held = [rows[name].lock for name in expected if rows[name].lock != "free"]
    assert held == ["read"] * len(held) and len(held) <= walkers(rmap_lab.prog)
    assert rows["file-vmas"].comm == "file-vmas"
    # The memfd has four pages, of which the second and third are mapped.
    assert rows["memfd:lab memfd (deleted)"].first_index == "0x1"
    assert {rows[name].filesystem for name in expected} == {"tmpfs", "hugetlbfs"}


def test_pages_in_the_cache_are_base_pages_on_every_kernel(
    rmap_lab: RmapLab, rows: dict[str, FileMapping]
) -> None:
    assert rows["file-vmas"].cached_pages == FILE_VMAS
    assert rows["file-same"].cached_pages == 1
    assert rows["file-share"].cached_pages == SHARED_PAGES
    assert rows["anon_hugepage (deleted)"].cached_pages == 2 * huge_pages(rmap_lab)


def test_the_name_of_a_deleted_file_is_as_maps_writes_it(rows: dict[str, FileMapping]) -> None:
    (gone,) = (row for row in rows.values() if row.comm == "file-gone")
    # A newline would end the line; the rest is escaped where it is shown.
    assert gone.file == "/tmp/gone\\012\x1b[31m\u202e\\xff.txt (deleted)"
    assert (gone.deleted, gone.vmas, gone.pages, gone.cached_pages) == (True, 1, 2, 2)


def test_every_tree_and_every_process_walked_says_the_same(
    rmap_lab: RmapLab, maps: FileMaps
) -> None:
    assert maps.checks == [] and maps.gaps.bytes == 0
    assert check_sample(rmap_lab.prog, maps, most=10**7) == []
    assert sum(row.vmas for row in file_fanout(maps)) == len(maps.first) > 40_000
    assert sum(row.files for row in file_fanout(maps)) == len(maps.addresses)


def test_maps_of_processes_give_the_same_rows(
    rmap_lab: RmapLab, rows: dict[str, FileMapping]
) -> None:
    section, found = run_section(SECTIONS["file_maps"], Files(rmap_lab.capture.truth_b))
    assert section.status == "ok"
    texts = found.by_name
    theirs = {(row.device, row.inode): row for row in texts["file_mappings"]}
    # init, whose own maps were not recorded, has /init and what its children share with it.
    ours = {
        (row.device, row.inode): row for row in rows.values() if row.comm and row.processes < 20
    }
    assert len(ours) >= 7 and set(ours) <= set(theirs)
    same = (
        *("file", "vmas", "processes", "vmas_of_pid", "shared_vmas", "first_index", "pages"),
        *("visits_most", "visits_mean"),
    )
    for key, row in ours.items():
        for name in same:
            assert getattr(theirs[key], name) == getattr(row, name), (row.file, name)
    unknown = (
        "address_space",
        "filesystem",
        "deleted",
        "dax",
        "writable_vmas",
        "cached_pages",
        "lock",
    )
    assert {getattr(row, name) for row in theirs.values() for name in unknown} == {None}
    assert sum(row.vmas for row in texts["file_mapping_fanout"]) == sum(
        row.vmas for row in theirs.values()
    )


def visits_as_the_kernel_walks(prog: Program, mapping: Object, first: int, pages: int) -> int:
    """VMAs that overlap, of the tree descended one by one."""
    page = prog["PAGE_SIZE"].value_()
    return sum(
        vma.vm_pgoff.value_() < first + pages
        and first < vma.vm_pgoff.value_() + (vma.vm_end.value_() - vma.vm_start.value_()) // page
        for vma in rbtree_inorder_for_each_entry(
            "struct vm_area_struct", mapping.i_mmap.rb_root.address_of_(), "shared.rb"
        )
    )


def test_visits_of_a_file_s_folios_are_those_of_a_walk(
    rmap_lab: RmapLab, maps: FileMaps, rows: dict[str, FileMapping]
) -> None:
    """Folio by folio, out of the page cache (address_space.i_pages)."""
    prog, of_huge = rmap_lab.prog, huge_pages(rmap_lab)
    _, folios, gaps = scan_folios(prog, rmap_lab.maps, maps)
    assert folios is not None and gaps.bytes == 0
    by_address = {int(address): at for at, address in enumerate(maps.addresses.tolist())}
    for name in ("file-share", "file-same", "memfd:lab memfd (deleted)", "anon_hugepage (deleted)"):
        at = by_address[int(str(rows[name].address_space), 16)]
        mapping = Object(prog, "struct address_space", address=int(maps.addresses[at]))
        visits = []
        for index, page in inode_for_each_page(mapping.host):
            pages = 1
            if PageCompound(page):
                page, pages = compound_head(page), of_huge
                index = index * of_huge if maps.by_huge_page[at] else index // pages * pages
            visits.append((visits_as_the_kernel_walks(prog, mapping, index, pages), page))
        seen = {page_to_pfn(page).value_(): over for over, page in visits if over}
        assert folios.folios[at] == len(seen) > 0, name
        assert folios.visits[at] == sum(seen.values()), name
        worst = folios.worst[at]
        assert worst["visits"] == max(seen.values()), name
        assert seen[int(worst["pfn"])] == worst["visits"], name
    assert (worst["pages"], rows[name].pages) == (of_huge, 2 * of_huge)


def test_walks_of_files_stand_beside_those_of_anonymous_memory(
    rmap_lab: RmapLab, maps: FileMaps, rows: dict[str, FileMapping]
) -> None:
    anon, folios, _ = scan_folios(rmap_lab.prog, rmap_lab.maps, maps)
    assert folios is not None
    cost = NodeCost()
    walks = rmap_walks(rmap_lab.maps, (rmap_lab.ksm, rmap_lab.visits), anon, folios, cost)
    (same,) = (walk for walk in walks if walk.address_space == rows["file-same"].address_space)
    assert (same.kind, same.anon_vma, same.comm, same.folios) == ("file", None, "file-same", 1)
    assert same.visits == same.visits_a_pass == same.visits_a_hold == FILE_VMAS
    assert same.hold_ms == same.walk_ms == FILE_VMAS * cost.one / 1e6
    # Where it is now, after its migration.
    assert same.worst_pfn == timed_walks(rmap_lab)["file-same"].pfn
    (side_by_side,) = (
        walk for walk in walks if walk.address_space == rows["file-vmas"].address_space
    )
    assert (side_by_side.visits, side_by_side.folios) == (1, FILE_VMAS)
    (of_files,) = (
        row
        for row in rmap_costs(rmap_lab.visits, anon, cost, folios)
        if row.what == "folios of mapped files"
    )
    assert (of_files.pages, of_files.visits) == (folios.folios.sum(), folios.visits.sum())


def test_no_lock_is_taken_and_one_that_is_shows(rmap_lab: RmapLab, maps: FileMaps) -> None:
    assert file_mapping_locks(rmap_lab.prog, maps) == ([], [], [])
    # As a writer would have it in rw_semaphore.count; the lock itself is free, and so is left out.
    taken = maps.mappings.copy()
    taken["lock"][0] = 1
    lying = dataclasses.replace(maps, mappings=taken)
    assert file_mapping_locks(rmap_lab.prog, lying) == ([], [], [])
    assert "write" in {row.lock for row in file_mapping_rows(rmap_lab.prog, lying)}


@pytest.mark.any_kernel
def test_a_check_that_walks_finds_what_is_missing(rmap_lab: RmapLab, maps: FileMaps) -> None:
    size = maps.tree_size.copy()
    size[int(size.argmax())] -= 1
    lying = dataclasses.replace(maps)
    lying.__dict__["tree_size"] = size
    (check,) = check_sample(rmap_lab.prog, lying, most=10**7)
    assert (check.expected, check.found) == (FILE_VMAS, FILE_VMAS - 1)


@pytest.mark.any_kernel
@pytest.mark.parametrize(
    ("of", "column", "value"),
    [
        *[("inodes", "flags", 1 << 31), ("inodes", "flags", S_DAX), ("inodes", "links", 1 << 30)],
        ("mappings", "pages", 0),
    ],
)
def test_pages_and_flags_that_cannot_be_are_told_of(
    maps: FileMaps, of: str, column: str, value: int
) -> None:
    assert flags_apart(maps) == 0
    members = getattr(maps, of).copy()
    members[column][np.argmax(maps.mappings["nrpages"])] = value
    assert flags_apart(dataclasses.replace(maps, **{of: members})) == 1


def test_i_mmap_writable_that_differs_is_said(rmap_lab: RmapLab) -> None:
    """One VMA less in the tree of file-vmas: its slot is left out, and so is what hangs below."""
    slots = rmap_lab.maps.slots["vma"]
    task = find_task(rmap_lab.prog, parts(rmap_lab.capture)["file-vmas"][0].pid)
    files = slots["file"]
    # Its libraries hang in trees of their own.
    of_file = max(
        (np.flatnonzero((slots["mm"] == task.mm.value_()) & (files == file))
         for file in np.unique(files[(slots["mm"] == task.mm.value_()) & (files != 0)])),
        key=len,
    )  # fmt: skip
    # A leaf: nothing hangs below it.
    leaf = next(
        at
        for at in of_file.tolist()
        if not slots["file_left"][at] and not slots["file_right"][at] and slots["flags"][at] & 0x8
    )
    fewer = slots.only(np.arange(len(slots)) != leaf)
    maps = read_file_maps(rmap_lab.prog, fewer, rmap_lab.maps.tasks)
    (check,) = maps.checks
    assert "i_mmap_writable" in check.problem
    assert (check.expected, check.found) == (FILE_VMAS, FILE_VMAS - 1)


@pytest.mark.any_kernel
def test_a_tree_whose_first_node_is_missing_is_said(rmap_lab: RmapLab, maps: FileMaps) -> None:
    at = int(maps.tree_size.argmax())
    root = int(maps.mappings["tree"][at])
    slots = rmap_lab.maps.slots["vma"]
    shared = offsetof(rmap_lab.prog.type("struct vm_area_struct"), "shared.rb")
    fewer = slots.only(slots.address != np.uint64(root - shared))
    assert len(fewer) == len(slots) - 1
    found = read_file_maps(rmap_lab.prog, fewer, rmap_lab.maps.tasks)
    assert set(maps.addresses.tolist()) - set(found.addresses.tolist()) == {int(maps.addresses[at])}
    (check,) = found.checks
    assert check.address_space == hex(maps.addresses[at])
    assert "begins with a VMA that was not found" in check.problem
    assert check_sample(rmap_lab.prog, found, most=10**7)


def test_the_section_is_whole(rmap_lab: RmapLab) -> None:
    section, found = run_section(SECTIONS["file_maps"], Memory(rmap_lab.prog))
    assert (section.status, section.message) == ("ok", None)
    assert list(found.by_name) == [
        "file_mapping_fanout", "file_mappings", "file_mapping_locks", "file_mapping_waiters",
        "file_mapping_checks",
    ]  # fmt: skip
