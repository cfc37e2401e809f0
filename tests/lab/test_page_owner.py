# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner out of the memory of a kernel that has it, against what that kernel printed right before
the freeze (show_handles, show_stacks_handles, pagetypeinfo), and against what the workload and its
module say they hold.
"""

import dataclasses
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import Lab, OwnerLab, slab_owners
from plain_walks import page_owner_loop

from mmscope.drgn.opening.target import describe
from mmscope.drgn.owners import page_owner_scan
from mmscope.drgn.owners.page_owner import (
    EARLY,
    NO_RECORD,
    UNLISTED,
    page_owner_ages,
    page_owner_freed,
    page_owner_gfp,
    page_owner_migratetypes,
    page_owner_migrations,
    page_owner_mixed_blocks,
    page_owner_off,
    page_owner_orders,
    page_owner_polluters,
    page_owner_stacks,
    page_owner_tasks,
)
from mmscope.drgn.owners.page_owner_rows import PageOwnerStack
from mmscope.drgn.owners.page_owner_scan import PageOwner, distinct_rows, scan_page_owner
from mmscope.drgn.owners.slab_owner import slab_owner_stacks
from mmscope.drgn.reading import stack_depot as stack_depot_module
from mmscope.drgn.reading.page_ext import PageExtRange, page_ext_ranges
from mmscope.drgn.reading.stack_depot import stack_depot
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.collect.run_section import run_section

pytestmark = pytest.mark.owner_kernel

STACKS = "sys/kernel/debug/page_owner_stacks"


def stacks_of(found: PageOwner) -> dict[int, tuple[int, int]]:
    """Pages and allocations by handle."""
    return {handle: (pages, allocations) for handle, pages, allocations in found.by("handle")}


def rows_of(lab: OwnerLab) -> list[PageOwnerStack]:
    return page_owner_stacks(lab.prog, lab.depot, lab.owners)[0]


def handles(text: str) -> dict[int, int]:
    found = re.findall(r"^handle: (-?\d+)\nnr_base_pages: (\d+)$", text, re.MULTILINE)
    return {int(handle): int(pages) for handle, pages in found}


def test_pages_by_stack_are_those_of_show_handles(owner_lab: OwnerLab) -> None:
    ours = {row.handle: row.pages for row in rows_of(owner_lab) if row.note is None}
    earlier, later = map(handles, owner_lab.said(f"{STACKS}/show_handles"))
    moved = {handle for handle in later if earlier.get(handle) != later[handle]}
    print(f"{len(ours)} stacks; moved between two prints: {moved}")
    assert len(later) > 500 and len(moved) <= 10
    assert ours.keys() - moved == later.keys() - moved
    assert {handle for handle in ours if ours[handle] != later.get(handle)} <= moved


def test_stacks_are_those_that_the_kernel_prints(owner_lab: OwnerLab) -> None:
    stacks = {row.handle: row.stack for row in rows_of(owner_lab)}
    compared = 0
    for record in owner_lab.said(f"{STACKS}/show_stacks_handles")[1].strip("\n").split("\n\n"):
        *frames, last = record.split("\n")
        handle = int(last.removeprefix("handle: "))
        names = [re.sub(r"\+0x[0-9a-f]+/0x[0-9a-f]+", "", frame.strip()) for frame in frames]
        if handle in stacks:
            assert stacks[handle] == ";".join(reversed(names))
            compared += 1
    assert compared > 500


def test_page_exts_tell_the_same_as_the_counts(owner_lab: OwnerLab) -> None:
    rows, checks = page_owner_stacks(owner_lab.prog, owner_lab.depot, owner_lab.owners)
    assert checks == []
    assert owner_lab.owners.gaps.bytes == 0 and owner_lab.owners.damaged == 0
    # What only the page_exts have is the pages from before page_owner; the counts have the rest.
    counts = dict(
        zip(owner_lab.depot.handles.tolist(), owner_lab.depot.counts.tolist(), strict=True)
    )
    for row in rows:
        seen = stacks_of(owner_lab.owners)[row.handle][0]
        assert row.pages == seen
        assert row.note == EARLY or counts[row.handle] - 1 == seen
    early = [row for row in rows if row.note == EARLY]
    assert [row.stack.endswith("register_early_stack") for row in early] == [True]
    log = owner_lab.said("dmesg")[1]
    found = sum(map(int, re.findall(r"page owner found early allocated (\d+) pages", log)))
    assert 0 < early[0].pages <= found


def test_stacks_that_the_kernel_does_not_list(owner_lab: OwnerLab) -> None:
    printed = {
        int(handle)
        for handle in re.findall(
            r"^handle: (-?\d+)$", owner_lab.said(f"{STACKS}/show_stacks_handles")[1], re.MULTILINE
        )
    }
    unlisted = [row for row in rows_of(owner_lab) if row.note == UNLISTED]
    assert unlisted and not printed & {row.handle for row in unlisted}
    # Slabs are first tried for without any right to wait (allocate_slab()).
    assert any("allocate_slab" in (row.stack or "") for row in unlisted)


MODULE = "sys/kernel/debug/mmscope_lab"
# Those that allocate pages and nothing else.
EXACT = ("order0", "order3", "movable", "leak", "level", "atomic", "tree")


def module_says(lab: OwnerLab) -> dict[str, tuple[int, int, int, int]]:
    """Function to allocations, pages, objects, bytes of an object."""
    line = r"^(\w+) allocations (\d+) pages (\d+) objects (\d+) bytes (\d+)$"
    return {
        match[1]: (int(match[2]), int(match[3]), int(match[4]), int(match[5]))
        for match in re.finditer(line, lab.said(MODULE)[1], re.MULTILINE)
    }


def test_the_modules_pages_are_exactly_right(owner_lab: OwnerLab) -> None:
    rows = rows_of(owner_lab)
    compared = 0
    for function, (allocations, pages, _, _) in module_says(owner_lab).items():
        if not function.endswith(EXACT):
            continue
        mine = [row for row in rows if f"{function} [mmscope_lab]" in (row.stack or "")]
        found = sum(row.allocations for row in mine), sum(row.pages for row in mine)
        assert found == (allocations, pages), function
        owners = {(row.owner, row.module) for row in mine}
        # Of the tree each branch has a name, and the leaf allocates.
        assert all(module == "mmscope_lab" for _, module in owners)
        compared += pages > 0
    assert compared >= 6


def test_the_modules_vmalloc_is_exactly_right(owner_lab: OwnerLab) -> None:
    allocations, pages, _, _ = module_says(owner_lab)["mmscope_lab_hold_vmalloc"]
    mine = [
        row
        for row in rows_of(owner_lab)
        if re.search(r"mmscope_lab_hold_vmalloc .*__vmalloc_node_range", row.stack or "")
        and not re.search("kmalloc|kmem_cache|pte_alloc|pmd_alloc", row.stack or "")
    ]
    assert pages > 0 and sum(row.pages for row in mine) == pages
    assert allocations == 100


def test_the_modules_slab_objects_are_exactly_right(owner_lab: OwnerLab) -> None:
    owners = slab_owners(owner_lab.prog, owner_lab.depot)
    rows, checks = slab_owner_stacks(owner_lab.prog, owner_lab.depot, owners)
    assert checks == []
    compared = 0
    for function, (_, _, objects, size) in module_says(owner_lab).items():
        # As the leaf: page_owner itself may allocate (a struct stack) below a slab's allocation.
        mine = [row for row in rows if row.stack.endswith(f"{function} [mmscope_lab]")]
        if size:
            assert sum(row.objects for row in mine) == objects
            compared += 1
            for row in mine:
                if row.requested_bytes is None:
                    assert (row.bytes or 0) / row.objects >= size
                else:
                    assert row.requested_bytes == row.objects * size
    assert compared == 3


def test_tasks_are_told_apart_whatever_they_are_called(owner_lab: OwnerLab) -> None:
    rows = {row.comm: row for row in page_owner_tasks(owner_lab.owners)}
    # guest/workload_owner.c, holders: name, and anonymous pages; a name is cut to 15 bytes.
    holders = {
        "plain_holder": 5000,
        "nl\nPFN 0x0 type": 301,
        "\n\nPage allocat": 302,
        "\nhandle: 4\nnr_": 303,
        "a), ts 1 ns\nx(": 304,
        "Page allocated ": 305,
        "\\xff\\xfe\\x80 bytes": 306,
        '<img src=x>;"': 307,
        "": 308,
    }
    for comm, pages in holders.items():
        # And its page tables, stack and files.
        assert pages <= rows[comm].pages < pages + 64
    assert all(row.pid is not None and row.tgid is not None for row in rows.values())


def test_every_breakdown_has_every_page(owner_lab: OwnerLab) -> None:
    found = owner_lab.owners
    pages = sum(count for count, _ in stacks_of(found).values())
    allocations = sum(count for _, count in stacks_of(found).values())
    assert pages > 200_000
    tables = (
        page_owner_tasks(found),
        page_owner_orders(found),
        page_owner_gfp(owner_lab.prog, found),
        page_owner_migratetypes(found),
        page_owner_ages(found),
    )
    for rows in tables:
        assert sum(row.pages for row in rows) == pages
        assert sum(row.allocations for row in rows) == allocations
    assert all(row.pages == row.allocations << row.order for row in page_owner_orders(found))
    held = sum(row.pages for row in page_owner_freed(owner_lab.prog, owner_lab.depot, found))
    assert pages + held <= found.pages


def test_mixed_blocks_are_those_of_pagetypeinfo(owner_lab: OwnerLab) -> None:
    text = owner_lab.said("proc/pagetypeinfo")[1]
    printed = {}
    for names, node, zone, counts in re.findall(
        r"^Number of mixed blocks +(.*)\nNode (\d+), zone +(\S+) +(.*)$", text, re.MULTILINE
    ):
        for name, count in zip(names.split(), counts.split(), strict=True):
            printed[int(node), zone, name] = int(count)
    ours = {
        (row.node, row.zone, row.migratetype): row.blocks
        for row in page_owner_mixed_blocks(owner_lab.prog, owner_lab.owners)
    }
    assert sum(printed.values()) > 5
    # pagetypeinfo prints the heading once a node; a node with two zones has two lines below it.
    assert {key: ours[key] for key in printed} == printed


def test_pages_in_blocks_of_another_type_by_stack(owner_lab: OwnerLab) -> None:
    rows = page_owner_polluters(owner_lab.prog, owner_lab.depot, owner_lab.owners)
    # The reserves that the module forced hold what it asked for. (Whether its last pages share
    # blocks with movable ones, or got a block for themselves, differs from boot to boot.)
    atomic = [row for row in rows if "mmscope_lab_hold_atomic" in (row.stack or "")]
    assert {row.page_migratetype for row in atomic} == {"Unmovable"}
    reserved = [row.pages for row in atomic if row.pageblock_migratetype == "HighAtomic"]
    assert sum(reserved) > 1000
    table = page_owner_migratetypes(owner_lab.owners)
    other = [row for row in table if row.page_migratetype != row.pageblock_migratetype]
    in_cma = [row for row in other if row.pageblock_migratetype == "CMA"]
    assert sum(row.pages for row in rows) == sum(row.pages for row in other) - sum(
        row.pages for row in in_cma if row.page_migratetype == "Movable"
    )


def test_migrated_pages_have_their_reason(owner_lab: OwnerLab) -> None:
    rows = page_owner_migrations(owner_lab.prog, owner_lab.owners)
    # guest/workload_owner.c, hold_migrated(): move_pages().
    assert {row.reason for row in rows} >= {"syscall_or_cpuset"}
    assert sum(row.pages for row in rows) >= 500


def test_freed_pages_keep_the_stack_that_freed_them(owner_lab: OwnerLab) -> None:
    rows = page_owner_freed(owner_lab.prog, owner_lab.depot, owner_lab.owners)
    churn = sum(row.pages for row in rows if "mmscope_lab_churn" in (row.stack or ""))
    # The module allocated and freed 5000; some of them were allocated again.
    assert 0 < churn <= 5000


def test_gfp_masks_have_the_kernels_names(owner_lab: OwnerLab) -> None:
    names = {
        row.gfp_mask: row.gfp_names for row in page_owner_gfp(owner_lab.prog, owner_lab.owners)
    }
    mask = owner_lab.prog.constant("___GFP_COMP_BIT").value_()
    kernel = next(int(mask, 16) for mask, name in names.items() if name == "GFP_KERNEL")
    # order3 of the module: GFP_KERNEL | __GFP_COMP
    assert names[f"{kernel | 1 << mask:#x}"] == "GFP_KERNEL|__GFP_COMP"


def test_the_vectors_count_as_a_loop_over_pages_does(owner_lab: OwnerLab) -> None:
    span = page_ext_ranges(owner_lab.prog)[-1]
    loop = page_owner_loop(owner_lab.prog, span.start_pfn, span.start_pfn + 4096)
    with pytest.MonkeyPatch.context() as patch:
        cut = PageExtRange(span.start_pfn, span.start_pfn + 4096, span.address)
        patch.setattr(page_owner_scan, "page_ext_ranges", lambda prog: [cut])
        found = scan_page_owner(owner_lab.prog)
    assert sum(count for _, count in stacks_of(found).values()) == sum(loop.values()) > 100
    assert (
        Counter({handle: count for handle, (_, count) in stacks_of(found).items() if count}) == loop
    )


def test_page_exts_that_the_dump_lacks_are_counted(
    owner_lab: OwnerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = page_owner_scan.read_array

    def holes(prog, address, count, dtype, gaps, **options):
        for first, part in read(prog, address, count, dtype, gaps, **options):
            if "handle" in (dtype.names or ()):
                gaps.bytes += 100 * dtype.itemsize
                yield first, part[:1000]
                yield first + 1100, part[1100:]
            else:
                yield first, part

    monkeypatch.setattr(page_owner_scan, "read_array", holes)
    found = scan_page_owner(owner_lab.prog)
    pieces = found.gaps.bytes // page_owner_scan._page_owner_dtype(owner_lab.prog).itemsize // 100
    assert pieces == len(page_ext_ranges(owner_lab.prog))
    whole = sum(pages for pages, _ in stacks_of(owner_lab.owners).values())
    less = whole - sum(pages for pages, _ in stacks_of(found).values())
    assert 0 < less <= 100 * pieces
    # What is missing is not what the kernel counts: that is shown.
    _, checks = page_owner_stacks(owner_lab.prog, owner_lab.depot, found)
    missing = sum((check.counted_pages or 0) - check.page_ext_pages for check in checks)
    early = owner_lab.owners.early_handle
    assert missing == less - (
        stacks_of(owner_lab.owners)[early][0] - stacks_of(found).get(early, (0, 0))[0]
    )


def test_damaged_records_of_the_depot_are_not_believed(
    owner_lab: OwnerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    leak = next(row for row in rows_of(owner_lab) if "mmscope_lab_leak" in (row.stack or ""))
    at = int(np.flatnonzero(owner_lab.depot.handles == leak.handle)[0])
    address = int(owner_lab.depot.addresses[at])
    read = stack_depot_module.read_array

    def damage(prog, pool, *rest, **options):
        for first, units in read(prog, pool, *rest, **options):
            if pool <= address < pool + units.nbytes:
                units = units.copy()
                units[(address - pool) // 16 + 1, 1] = 65  # size: more than there can be
            yield first, units

    monkeypatch.setattr(stack_depot_module, "read_array", damage)
    depot = stack_depot(owner_lab.prog)
    assert depot.damaged == 1 and len(depot.handles) == len(owner_lab.depot.handles) - 1
    rows, _ = page_owner_stacks(owner_lab.prog, depot, owner_lab.owners)
    row = next(row for row in rows if row.handle == leak.handle)
    assert (row.pages, row.stack, row.note) == (leak.pages, None, NO_RECORD)


def test_rows_with_the_same_mix_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([1, 2, 1, 3], np.uint64), np.array([5, 5, 5, 6], np.uint64)
    for _ in range(2):
        first, which = distinct_rows(words)
        assert [tuple(word[first][which].tolist()) for word in words] == [
            (1, 2, 1, 3),
            (5, 5, 5, 6),
        ]
        assert len(first) == 3
        # Now every row has the same mix.
        monkeypatch.setattr(page_owner_scan, "MIX", np.uint64(0))


def test_without_the_kernels_counts_the_page_exts_have_the_pages(owner_lab: OwnerLab) -> None:
    # As on kernels before v6.9.
    depot = dataclasses.replace(owner_lab.depot, counts=None)
    rows, checks = page_owner_stacks(owner_lab.prog, depot, owner_lab.owners)
    assert checks == []
    assert {row.handle: row.pages for row in rows} == {
        row.handle: row.pages for row in rows_of(owner_lab)
    }
    assert {row.note for row in rows} == {None, EARLY}


def test_a_stack_that_is_counted_otherwise_is_shown(owner_lab: OwnerLab) -> None:
    leak = next(row for row in rows_of(owner_lab) if "mmscope_lab_leak" in (row.stack or ""))
    at = int(np.flatnonzero(owner_lab.depot.handles == leak.handle)[0])
    counts = owner_lab.depot.counts.copy()
    counts[at] += 7
    depot = dataclasses.replace(owner_lab.depot, counts=counts)
    rows, checks = page_owner_stacks(owner_lab.prog, depot, owner_lab.owners)
    assert [(check.handle, check.counted_pages, check.page_ext_pages) for check in checks] == [
        (leak.handle, leak.pages + 7, leak.pages)
    ]
    assert next(row.pages for row in rows if row.handle == leak.handle) == leak.pages + 7


def test_section_and_its_bundle(owner_lab: OwnerLab, tmp_path: Path) -> None:
    memory = Memory(owner_lab.prog)
    writer = Writer(tmp_path / "bundle")
    sections = collect(memory, describe(owner_lab.prog, "vmcore"), writer, ["page_owner"])
    assert [(section.section, section.status) for section in sections] == [("page_owner", "ok")]
    bundle = Bundle(tmp_path / "bundle")
    assert {"page_owner_stacks", "page_owner_tasks", "page_owner_gfp"} <= set(bundle.tables)
    lines = (tmp_path / "bundle/page_owner.folded").read_text().splitlines()
    total = sum(int(line.rpartition(" ")[2]) for line in lines)
    assert total == 4096 * sum(row.pages for row in rows_of(owner_lab))


def test_a_kernel_without_page_owner_says_what_to_do(lab: Lab) -> None:
    assert "CONFIG_PAGE_OWNER" in (page_owner_off(lab.prog) or "")
    section, _ = run_section(SECTIONS["page_owner"], Memory(lab.prog))
    assert section.status == "absent" and "page_owner=on" in (section.message or "")
