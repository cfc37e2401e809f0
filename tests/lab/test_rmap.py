# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Reverse maps, KSM and the cost of walks, against what the guest has built (guest/workload_rmap.c),
what /proc/PID/maps and /sys/kernel/mm/ksm said, the kernel's own trees descended one by one, and
walks that the guest has timed with kprobes.
"""

import dataclasses
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RmapLab
from drgn import FaultError, Object, Program
from drgn.helpers.linux.list import hlist_for_each_entry, list_for_each_entry
from drgn.helpers.linux.mm import for_each_vma, pfn_to_page
from drgn.helpers.linux.pid import find_task
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry
from drgn.helpers.linux.sched import cpu_curr
from forked import in_a_fork, opened
from named_damage import say
from rmap_truth import (
    COUNTED,
    FEW_MAPPINGS,
    FEW_VMAS,
    SHARING,
    TIMED,
    VMAS,
    ZERO_PAGES,
    Part,
    huge_pages,
    migrations,
    page_bytes,
    parts,
    timed_walks,
    walkers,
)

from mmscope.drgn.opening.target import describe
from mmscope.drgn.owners import slab_objects
from mmscope.drgn.processes.kernel_stacks import on_its_stack
from mmscope.drgn.processes.processes import process_maps
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.struct_pages import scan_struct_pages
from mmscope.drgn.rmap import anon_vmas
from mmscope.drgn.rmap import reverse_maps as reverse_maps_module
from mmscope.drgn.rmap.file_maps import mapped_file_trees
from mmscope.drgn.rmap.ksm import (
    CHAIN,
    NodeCost,
    ksm_chains,
    ksm_pages,
    ksm_processes,
    ksm_totals,
    ksm_visits,
    pages_apart,
    read_ksm_totals,
)
from mmscope.drgn.rmap.reverse_maps import (
    KSM_ITEM,
    KSM_NODE,
    check_sample,
    ksm_type,
    reverse_maps,
)
from mmscope.drgn.rmap.rmap_cost import FolioPlaces, scan_folios
from mmscope.drgn.rmap.rwsem_waiters import owner as rwsem_owner
from mmscope.drgn.rmap.vma_splits import vma_splits
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import open_database
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.findings.findings import evaluate
from mmscope.reports.page.report import render

pytestmark = pytest.mark.any_page

FORKED_PAGES, FORKED_COPIES, FORKS = 10, 4, 5
MAX_SHARING = 256  # max_page_sharing
KSM_PAGES = 79 + 4 + FORKED_PAGES + len(FEW_MAPPINGS)
SECTION_NAMES = ["anon_vmas", "file_maps", "ksm", "rmap_cost"]


def vma_at(prog: Program, part: Part) -> Object:
    """The VMA at the beginning of some memory, found as the kernel finds it."""
    for vma in for_each_vma(find_task(prog, part.pid).mm):
        if vma.vm_start.value_() <= part.address < vma.vm_end.value_():
            return vma
    raise AssertionError(f"{part} is not mapped")


def index_of(lab: RmapLab, part: Part) -> int:
    """The anon_vma of some memory, as index into what was read."""
    address = np.array([vma_at(lab.prog, part).anon_vma.value_()], np.uint64)
    return int(find(lab.maps.anon_vmas.address, address)[0])


def mapped(lab: RmapLab, part: Part) -> int:
    """VMAs of some memory, by /proc/PID/maps."""
    lines = (lab.capture.truth_b / f"proc/{part.pid}/maps").read_text().splitlines()
    starts = (int(line.partition("-")[0], 16) for line in lines)
    return sum(part.address <= start < part.address + part.bytes for start in starts)


def test_anon_vmas_are_those_that_were_built(rmap_lab: RmapLab) -> None:
    known, huge = parts(rmap_lab.capture), huge_pages(rmap_lab)
    items = rmap_lab.visits.by_anon_vma(rmap_lab.maps)
    rows = {row.anon_vma: row for row in anon_vmas.anon_vma_rows(rmap_lab.maps, items)}
    locks = []
    for name, vmas, merged in (
        ("ksm-few", FEW_VMAS, sum(FEW_MAPPINGS)),
        ("ksm-vmas", VMAS, VMAS),
        ("advice", 500, 0),
        ("remapped", 64, 0),
        ("huge", huge, 0),
        ("anon-vmas", VMAS, 0),
    ):
        (part,) = known[name]
        row = rows[hex(vma_at(rmap_lab.prog, part).anon_vma.value_())]
        assert (row.vmas, row.processes, row.pid, row.comm) == (vmas, 1, part.pid, name)
        assert row.vmas == mapped(rmap_lab, part) == row.active_vmas == row.vmas_of_pid
        assert (row.root, row.parent, row.depth) == (row.anon_vma, None, 0)
        assert row.pages == part.bytes // page_bytes(rmap_lab)
        assert row.ksm_items == merged
        locks.append(row.lock)
    held = [lock for lock in locks if lock != "free"]
    assert held == ["read"] * len(held) and len(held) <= walkers(rmap_lab.prog)
    assert [row.vmas for row in list(rows.values())[:5]] == [22_169, 20_000, 20_000, huge, 500]


def test_a_fork_hierarchy(rmap_lab: RmapLab) -> None:
    known = parts(rmap_lab.capture)
    rows = {row.anon_vma: row for row in anon_vmas.anon_vma_rows(rmap_lab.maps)}
    above = None
    for level in range(FORKS):
        (part,) = known[f"fork-{level}"]
        row = rows[hex(vma_at(rmap_lab.prog, part).anon_vma.value_())]
        # A page from before a fork is found in all descendants.
        assert row.vmas == row.processes == FORKS - level
        assert (row.depth, row.parent) == (level, above)
        assert row.children == (level + 1 < FORKS)
        assert (row.pid, row.comm, row.active_vmas) == (part.pid, part.name, 1)
        above = row.anon_vma
        if level == 0:
            root = row.anon_vma
        assert row.root == root


def test_every_tree_and_every_process_walked_says_the_same(rmap_lab: RmapLab) -> None:
    maps = rmap_lab.maps
    assert maps.orphans == 0 and maps.checks == [] and maps.unreadable_bytes == 0
    assert len(maps.anon_vmas) > 50
    assert check_sample(rmap_lab.prog, maps, most=10**7) == []


def test_chains_are_those_on_the_lists_of_their_vmas(rmap_lab: RmapLab) -> None:
    ours = Counter(
        zip(
            rmap_lab.maps.vmas.address[rmap_lab.maps.chain_vma].tolist(),
            rmap_lab.maps.anon_vmas.address[rmap_lab.maps.tree].tolist(),
            strict=True,
        )
    )
    for name in ("fork-4", "ksm-forked", "advice"):
        (part,) = parts(rmap_lab.capture)[name]
        theirs = 0
        for vma in for_each_vma(find_task(rmap_lab.prog, part.pid).mm):
            head = vma.anon_vma_chain.address_of_()
            for chain in list_for_each_entry("struct anon_vma_chain", head, "same_vma"):
                assert ours[vma.value_(), chain.anon_vma.value_()] == 1
                theirs += 1
        mm = find_task(rmap_lab.prog, part.pid).mm.value_()
        of_process = rmap_lab.maps.vmas["mm"][rmap_lab.maps.chain_vma] == mm
        assert np.count_nonzero(of_process) == theirs > 10


@pytest.mark.any_kernel
def test_a_check_that_walks_finds_what_is_missing(rmap_lab: RmapLab) -> None:
    size = rmap_lab.maps.tree_size.copy()
    lying = dataclasses.replace(rmap_lab.maps)
    size[index_of(rmap_lab, parts(rmap_lab.capture)["advice"][0])] -= 1
    lying.__dict__["tree_size"] = size
    (check,) = check_sample(rmap_lab.prog, lying, most=10**7)
    assert (check.expected, check.found) == (500, 499)


def test_vmas_of_processes_are_those_of_proc(rmap_lab: RmapLab) -> None:
    ours = {row.pid: row for row in anon_vmas.process_vmas(rmap_lab.prog, rmap_lab.maps)}
    files = Files(rmap_lab.capture.truth_b)
    pids = [part.pid for some in parts(rmap_lab.capture).values() for part in some]
    rows, missing, _ = process_maps(files)
    theirs = [row for row in rows if row.pid in pids]
    assert missing == {} and len(theirs) == len(pids) > 10
    for row in theirs:
        assert ours[row.pid].vmas == row.vmas
        assert ours[row.pid].max_map_count == row.max_map_count == 24_000
    (part,) = parts(rmap_lab.capture)["ksm-vmas"]
    assert ours[part.pid].comm == "ksm-vmas" and ours[part.pid].vmas_on_it == VMAS
    assert ours[1].comm == "init"


def test_ksm_totals_are_those_of_sysfs(rmap_lab: RmapLab) -> None:
    folder = rmap_lab.capture.truth_b / "sys/kernel/mm/ksm"
    names = [path.name for path in folder.iterdir()]
    theirs = {
        row.name: row.value
        for row in read_ksm_totals(names, lambda name: (folder / name).read_text())
    }
    ours = {row.name: row for row in ksm_totals(rmap_lab.prog, rmap_lab.ksm)}
    # How full_scans counts the scan under way was changed; it is shown, not compared.
    common = (set(ours) & set(theirs)) - {"full_scans"}
    assert {name: ours[name].value for name in common} == {name: theirs[name] for name in common}
    counted = {name: row.counted for name, row in ours.items() if row.counted is not None}
    assert counted == {name: theirs[name] for name in counted}
    assert set(counted) == {
        "pages_shared", "pages_sharing", "stable_node_chains", "stable_node_dups",
    }  # fmt: skip
    assert len(common) > 10
    assert ours["pages_shared"].value + ours["pages_sharing"].value == (
        VMAS + SHARING + FORKED_PAGES * FORKED_COPIES + sum(FEW_MAPPINGS)
    )
    if "ksm_zero_pages" in theirs:
        assert ours["ksm_zero_pages"].value == ZERO_PAGES


def test_a_ksm_page_whose_struct_page_is_damaged_is_told_of(rmap_lab: RmapLab) -> None:
    prog, ksm = opened(rmap_lab.capture), rmap_lab.ksm
    page = pfn_to_page(prog, int(ksm.node_kpfn[np.argmax(ksm.mappings)]))

    def apart(mapping: int) -> int:
        say(page.mapping, mapping)
        return pages_apart(prog, ksm)

    assert in_a_fork(lambda: apart(page.mapping.value_())) == 0
    assert in_a_fork(lambda: apart(0)) == 1
    ksm = dataclasses.replace(ksm, node_kpfn=np.where(ksm.mappings > 0, 1, ksm.node_kpfn))
    assert in_a_fork(lambda: pages_apart(prog, ksm)) > 1


def test_ksm_of_processes_is_that_of_ksm_stat(rmap_lab: RmapLab) -> None:
    rows = {row.pid: row for row in ksm_processes(rmap_lab.prog, rmap_lab.ksm, rmap_lab.maps)}
    merged = {part.pid: part for some in parts(rmap_lab.capture).values() for part in some}
    assert {merged[pid].name for pid in rows if pid in merged} >= {"ksm-vmas", "ksm-share"}
    for pid, row in rows.items():
        assert pid is not None
        if row.comm == "ksm-forked" and not row.counted:
            assert row.merging_pages == FORKED_PAGES * FORKED_COPIES  # a copy of its parent's
            continue
        if rmap_lab.capture.series == "5.10":  # ksm_merging_pages came with v5.19
            assert row.merging_pages is None
            continue
        assert row.counted == row.merging_pages
        text = rmap_lab.capture.truth_b / f"proc/{pid}/ksm_stat"
        if not text.exists():  # before v6.2
            continue
        stat = dict(re.findall(r"^(\w+):? (-?\d+)$", text.read_text(), re.MULTILINE))
        assert row.rmap_items == int(stat["ksm_rmap_items"])
        for name, value in (
            ("ksm_merging_pages", row.merging_pages),
            ("ksm_process_profit", row.profit_bytes),
            ("ksm_zero_pages", row.zero_pages),
        ):
            assert name not in stat or int(stat[name]) == value, name


def test_chains_of_ksm_are_those_of_its_trees(rmap_lab: RmapLab) -> None:
    ours = {(row.dups, row.mappings) for row in ksm_chains(rmap_lab.ksm)}
    assert ours == {
        (math.ceil(VMAS / MAX_SHARING), VMAS),
        (math.ceil(SHARING / MAX_SHARING), SHARING),
    }
    # The same, descending the tree.
    node_type = ksm_type(rmap_lab.prog, KSM_NODE)
    item_type = ksm_type(rmap_lab.prog, KSM_ITEM)
    chains, mappings = set(), Counter[int]()
    root = rmap_lab.prog["root_stable_tree"][0].address_of_()
    for node in rbtree_inorder_for_each_entry(node_type, root, "node"):
        nodes = [node]
        if node.rmap_hlist_len.value_() == CHAIN:
            nodes = list(hlist_for_each_entry(node_type, node.hlist.address_of_(), "hlist_dup"))
            chains.add(node.value_())
        for dup in nodes:
            items = hlist_for_each_entry(item_type, dup.hlist.address_of_(), "hlist")
            mappings[dup.kpfn.value_()] += sum(1 for _ in items)
    assert set(rmap_lab.ksm.chain.tolist()) == chains
    ours_by_page = dict(
        zip(rmap_lab.ksm.node_kpfn.tolist(), rmap_lab.ksm.mappings.tolist(), strict=True)
    )
    assert ours_by_page == mappings and len(mappings) == KSM_PAGES


def visits_as_the_kernel_walks(prog: Program, stable_node: int, indexed: bool) -> tuple[int, int]:
    """Nodes of one pass of rmap_walk_ksm(), visited one by one; and the mappings."""
    page = prog["PAGE_SIZE"].value_()
    node_type = ksm_type(prog, KSM_NODE)
    item_type = ksm_type(prog, KSM_ITEM)
    node = Object(prog, node_type, address=stable_node)
    visits = mappings = 0
    for item in hlist_for_each_entry(item_type, node.hlist.address_of_(), "hlist"):
        mappings += 1
        address = item.address.value_() & ~0xFFF
        nodes = [
            chain.vma
            for chain in rbtree_inorder_for_each_entry(
                "struct anon_vma_chain", item.anon_vma.rb_root.rb_root.address_of_(), "rb"
            )
        ]
        if not indexed:
            visits += len(nodes)
            continue
        (own,) = (
            vma
            for vma in nodes
            if vma.vm_mm == item.mm and vma.vm_start.value_() <= address < vma.vm_end.value_()
        )
        index = own.vm_pgoff.value_() + (address - own.vm_start.value_()) // page
        for vma in nodes:
            pages = (vma.vm_end.value_() - vma.vm_start.value_()) // page
            visits += vma.vm_pgoff.value_() <= index < vma.vm_pgoff.value_() + pages
    return visits, mappings


def test_visits_of_a_ksm_page_are_those_of_a_walk(rmap_lab: RmapLab) -> None:
    rows = ksm_pages(rmap_lab.prog, rmap_lab.ksm, rmap_lab.visits, NodeCost())
    assert len(rows) == KSM_PAGES and not any(row.unplaced for row in rows)
    node_of = dict(zip(rmap_lab.ksm.node_kpfn.tolist(), rmap_lab.ksm.node.tolist(), strict=True))
    few = index_of(rmap_lab, parts(rmap_lab.capture)["ksm-few"][0])
    of_few = [row for row in rows if row.anon_vma == hex(rmap_lab.maps.anon_vmas.address[few])]
    assert sorted((row.mappings for row in of_few), reverse=True) == [*FEW_MAPPINGS]
    looked_at = 0
    for row in rows:
        assert row.stable_node == hex(node_of[row.pfn])
        if row in of_few:
            assert row.visits_per_pass == row.mappings * FEW_VMAS
            assert (row.visits_indexed, row.mapcount) == (row.mappings, row.mappings)
            continue
        if row.visits_per_pass > 10_000:
            assert row.visits_per_pass == row.mappings * VMAS
            assert (row.visits_indexed, row.anon_vmas) == (row.mappings, 1)
            continue
        for indexed, ours in ((False, row.visits_per_pass), (True, row.visits_indexed)):
            theirs = visits_as_the_kernel_walks(rmap_lab.prog, node_of[row.pfn], indexed)
            assert (ours, row.mappings) == theirs
        looked_at += 1
    assert looked_at == 4 + FORKED_PAGES
    # Forked since: the child has no item, its VMAs are in the tree, and its mappings in the page.
    forked = [row for row in rows if row.place == "tree" and row not in of_few]
    assert [row.mapcount for row in forked] == [2 * FORKED_COPIES] * FORKED_PAGES
    assert [row.visits_per_pass for row in forked] == [2 * FORKED_COPIES] * FORKED_PAGES
    assert all(row.mapcount == row.mappings for row in rows if row.place == "chain")


def test_page_offsets_that_the_kernel_keeps_are_those_of_the_vmas(rmap_lab: RmapLab) -> None:
    if rmap_lab.ksm.item_index is None:
        assert not rmap_lab.visits.uses_index
        return
    shift = rmap_lab.prog["PAGE_SHIFT"].value_()
    without = ksm_visits(rmap_lab.maps, dataclasses.replace(rmap_lab.ksm, item_index=None), shift)
    assert rmap_lab.visits.uses_index and not without.uses_index
    assert np.array_equal(without.index, rmap_lab.ksm.item_index)
    assert np.array_equal(without.indexed, rmap_lab.visits.indexed)


def test_a_migration_unmaps_in_one_pass_and_maps_in_two(rmap_lab: RmapLab) -> None:
    """
    By how often the walks let go of a lock (up_read()), and how many VMAs they looked into.

    In a walk of a KSM page the lock of each mapping's anon_vma is taken in turn; in any other, one.
    """
    of = dict(zip(COUNTED, migrations(rmap_lab)[: len(COUNTED)], strict=True))
    timed = timed_walks(rmap_lab)
    pages = ksm_pages(rmap_lab.prog, rmap_lab.ksm, rmap_lab.visits, NodeCost())
    rows = {row.pfn: row for row in pages}
    for name, passes in (("ksm-vmas", 1), ("ksm-fork", 2)):
        row = rows[timed[name].pfn]
        assert row.mapcount is not None and row.passes == passes
        unmap, again = (inside for *_, inside in of[name])
        assert (unmap["let_go"], unmap["one"]) == (passes * row.mappings, row.mapcount)
        assert (again["let_go"], again["one_again"]) == (2 * row.mappings, row.mapcount)
    for name, visits in (("anon-vmas", 1), ("file-same", VMAS)):
        unmap, again = (inside for *_, inside in of[name])
        assert (unmap["let_go"], unmap["one"]) == (1, visits)
        assert (again["let_go"], again["one_again"]) == (1, visits)


def test_the_estimate_is_near_what_the_guest_has_measured(rmap_lab: RmapLab) -> None:
    timed = timed_walks(rmap_lab)
    rows = {
        row.pfn: row for row in ksm_pages(rmap_lab.prog, rmap_lab.ksm, rmap_lab.visits, NodeCost())
    }
    mappings = (256, 256, FORKED_COPIES, 32)
    # Only walks of pages as they are now, after their migration.
    assert tuple(rows[timed[name].pfn].mappings for name in TIMED[:4]) == mappings
    large, forked, small = (timed[TIMED[at]] for at in (0, 2, 3))
    row = rows[large.pfn]
    print(
        f"{rmap_lab.capture.release}: {row.visits_per_pass:,} visits a pass, "
        f"{row.visits_indexed:,} with the page offset; unmapped in {large.unmap_ms:.1f} ms, "
        f"mapped in {large.map_ms:.1f} ms"
    )
    if rmap_lab.visits.uses_index:
        # What 10.24 million visits would take, is not what it took.
        assert large.map_ms < 2 * row.visits_per_pass * NodeCost().low / 1e6
        return
    node_ns = large.map_ms * 1e6 / (2 * row.visits_per_pass)
    cost = NodeCost(node_ns / 2, node_ns, node_ns * 2, True)
    estimates = ksm_pages(rmap_lab.prog, rmap_lab.ksm, rmap_lab.visits, cost)
    (estimate,) = (row for row in estimates if row.pfn == small.pfn)
    print(
        f"{node_ns:.0f} ns a node. A page of 32 mappings: estimated {estimate.walk_ms:.1f} ms, a "
        f"hold {estimate.hold_ms:.2f} ms; measured {small.map_ms:.1f} ms"
    )
    assert estimate.walk_ms / 8 < small.map_ms < estimate.walk_ms * 8
    assert estimate.pass_ms / 8 < small.unmap_ms < estimate.pass_ms * 8
    assert rows[forked.pfn].visits_per_pass * 10_000 < row.visits_per_pass
    assert forked.map_ms * 50 < large.map_ms


def test_anonymous_folios_and_what_walks_of_them_visit(rmap_lab: RmapLab) -> None:
    folios, of_files, gaps = scan_folios(rmap_lab.prog, rmap_lab.maps)
    assert of_files is None
    assert gaps.bytes == folios.unknown == 0
    text = (rmap_lab.capture.truth_b / "proc/vmstat").read_text()
    anon = int(re.search(r"^nr_anon_pages (\d+)$", text, re.MULTILINE)[1])  # type: ignore[index]
    # KSM pages count as anonymous.
    folios_in_all, pages_in_all = folios.buckets.sum(axis=0)
    assert abs(pages_in_all + len(rmap_lab.ksm.node) - anon) <= 16
    (huge,) = parts(rmap_lab.capture)["huge"]
    of, pages = index_of(rmap_lab, huge), huge_pages(rmap_lab)
    worst = folios.worst[of]
    assert (folios.folios[of], worst["visits"], worst["pages"]) == (1, pages, pages), (
        "there was no huge page to have"
    )
    assert worst["pfn"] % pages == 0 and folios.worst["visits"].max() == pages
    # A page from before the forks is looked for in all processes of them: what the first process
    # had written to, less what the others wrote to themselves.
    bottom = index_of(rmap_lab, parts(rmap_lab.capture)["fork-0"][0])
    assert folios.worst["visits"][bottom] == FORKS
    assert folios.visits[bottom] == FORKS * folios.folios[bottom] == FORKS * 50
    assert folios_in_all == folios.folios.sum()


def test_folios_are_read_again_only_where_the_first_pass_saw_that_they_may_be(
    rmap_lab: RmapLab,
) -> None:
    memory, places = Memory(rmap_lab.prog), FolioPlaces()
    pages = scan_struct_pages(rmap_lab.prog, [places]).pages
    assert 0 < sum(end - begin for begin, end in places.wanted.values()) < pages
    maps, files = reverse_maps(memory), mapped_file_trees(memory)

    def found(places: FolioPlaces | None) -> list[Any]:
        anon, of_files, _ = scan_folios(rmap_lab.prog, maps, files, places=places)
        assert of_files is not None
        return [
            value.tolist() if isinstance(value, np.ndarray) else value
            for each in (anon, of_files)
            for value in each.share().values()
        ]

    assert found(places) == found(None)
    places.wanted.popitem()  # one that the first pass could not read is read whole
    assert found(places) == found(None)
    places.wanted = dict.fromkeys(places.wanted, (0, 0))
    assert found(places) != found(None)


def test_what_keeps_vmas_apart(rmap_lab: RmapLab) -> None:
    sums, kinds, problems = vma_splits(rmap_lab.prog, rmap_lab.maps)
    assert problems == []
    found, huge = {row.comm: row for row in sums}, huge_pages(rmap_lab)
    expected = {
        "ksm-vmas": (VMAS - 1, VMAS - 2, "mprotect"),
        "ksm-few": (FEW_VMAS - 1, FEW_VMAS - 2, "mprotect"),
        "huge": (huge - 1, huge - 2, "mprotect"),
        "anon-vmas": (VMAS - 1, VMAS - 2, "mprotect"),
        "advice": (499, 498, "madvise"),
        "remapped": (63, 0, "mremap"),
    }
    for comm, (neighbours, alternating, call) in expected.items():
        row = found[comm]
        assert (row.neighbours, row.alternating, row.may_merge) == (neighbours, alternating, 0)
        assert (row.made_by, row.made_by_pairs) == (call, neighbours)
    differences = {(found_row.pid, found_row.difference) for found_row in kinds}
    assert differences == {
        (found["ksm-vmas"].pid, "protection"),
        (found["ksm-few"].pid, "protection"),
        (found["huge"].pid, "protection"),
        (found["anon-vmas"].pid, "protection"),
        (found["advice"].pid, "VM_SEQ_READ"),
        (found["remapped"].pid, "page offset"),
    }


def test_sections_findings_and_files(rmap_lab: RmapLab, tmp_path: Path) -> None:
    with Writer(tmp_path / "bundle") as writer:
        target = describe(rmap_lab.prog, "vmcore")
        sections = collect(Memory(rmap_lab.prog), target, writer, SECTION_NAMES)
    assert {(section.section, section.status) for section in sections} == {
        (name, "ok") for name in SECTION_NAMES
    }
    bundle = Bundle(tmp_path / "bundle")
    found = {finding.id for finding in evaluate(bundle).found}
    slow = {"rmap-walk-stalls", "ksm-costs-more"}
    assert {"near-max-map-count", "deep-fork-hierarchy"} <= found
    # The walk that 7.3 does is no longer a matter for a finding.
    assert found & slow == (set() if rmap_lab.visits.uses_index else slow)
    stretches = list(bundle.rows("anon_vma_map"))
    (mapped,) = (
        row for row in bundle.rows("anon_vmas") if row["anon_vma"] == stretches[0]["anon_vma"]
    )
    assert stretches[0]["index"] == mapped["first_index"]
    assert sum(row["starts"] for row in stretches) == mapped["vmas"] == FEW_VMAS
    assert sum(row["ksm_items"] for row in stretches) == mapped["ksm_items"] == sum(FEW_MAPPINGS)
    files = Files(rmap_lab.capture.truth_b)
    section, from_files = run_section(SECTIONS["anon_vmas"], files)
    assert section.status == "ok" and "memory only" in (section.message or "")
    assert max(row.vmas for row in from_files.tables[0].rows) > VMAS
    assert run_section(SECTIONS["ksm"], files)[0].status == "ok"
    assert run_section(SECTIONS["rmap_cost"], files)[0].status == "absent"


class Holes:
    """Memory of which a dump lacks every fourth page."""

    def __init__(self, prog: Program, first: int) -> None:
        self.prog, self.first = prog, first
        self.shift = prog["PAGE_SHIFT"].value_()

    def read(self, address: int, size: int, physical: bool) -> bytes:
        if address >> self.shift & 3 == self.first:
            raise FaultError("not in the dump", address)
        return self.prog.read(address, size, physical)


@pytest.mark.any_kernel
def test_slabs_that_the_dump_lacks_are_counted(
    rmap_lab: RmapLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = slab_objects._read_slabs
    problems = set()
    for first in range(4):
        monkeypatch.setattr(
            slab_objects, "_read_slabs", lambda prog, *rest, at=first: read(Holes(prog, at), *rest)
        )
        memory = Memory(rmap_lab.prog)
        for name in SECTION_NAMES if first == 1 else ("anon_vmas",):
            section, found = run_section(SECTIONS[name], memory)
            assert section.status == "partial", (name, section.message)
            said = section.message or ""
            assert section.unreadable_bytes > 100_000 and "could not be read" in said
            assert found.tables
        checks = run_section(SECTIONS["anon_vmas"], memory)[1].by_name["anon_vma_checks"]
        problems |= {check.problem for check in checks}
    # A tree of which a part is missing is not taken for a small one: both counts are shown. Whether
    # a tree's own anon_vma is missing, too, is where the pages lie.
    for words in ("num_active_vmas", "descended"):
        assert any(words in problem for problem in problems)


def test_a_dump_without_any_slab_of_it(
    rmap_lab: RmapLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nothing(prog: Program, addresses: Any, length: int, gaps: Gaps) -> tuple[bytes, Any]:
        gaps.bytes += len(addresses) * length
        return b"", np.zeros(len(addresses), np.bool_)

    monkeypatch.setattr(slab_objects, "_read_slabs", nothing)
    with Writer(tmp_path / "bundle") as writer:
        target = describe(rmap_lab.prog, "vmcore")
        sections = collect(Memory(rmap_lab.prog), target, writer, SECTION_NAMES)
    assert [section.status for section in sections] == ["partial"] * len(SECTION_NAMES), sections
    bundle = Bundle(tmp_path / "bundle")
    render(bundle, evaluate(bundle))


@pytest.mark.parametrize("bits", [(3, 30), (0, 64)])
@pytest.mark.any_kernel
def test_damaged_pointers_harm_themselves_alone(
    rmap_lab: RmapLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bits: tuple[int, int]
) -> None:
    """Random bits in every object that was read: no traceback, no hang, and it is said."""
    read_objects = reverse_maps_module.read_slab_objects
    chance = np.random.default_rng(6)

    def damaged(*given: Any, **named: Any) -> slab_objects.SlabObjects:
        read = read_objects(*given, **named)
        for objects in read.objects.values():
            for column in objects.columns.values():
                values = column.view(np.uint8) if column.dtype.kind == "S" else column
                hit = chance.random(len(values)) < 0.02
                flipped = np.uint64(1) << np.uint64(chance.integers(*bits))
                values[hit] ^= flipped.astype(values.dtype)
        return read

    monkeypatch.setattr(reverse_maps_module, "read_slab_objects", damaged)
    with Writer(tmp_path / "bundle") as writer:
        target = describe(rmap_lab.prog, "vmcore")
        sections = collect(Memory(rmap_lab.prog), target, writer, SECTION_NAMES)
    assert [section.status for section in sections] == ["partial"] * len(SECTION_NAMES), sections
    bundle = Bundle(tmp_path / "bundle")
    assert not bundle.tables.keys() & open_database(bundle).missing.keys()
    assert "No picture" not in render(bundle, evaluate(bundle))


def test_who_is_queued_on_the_lock(stalled_lab: RmapLab) -> None:
    locks, queued, problems = anon_vmas.anon_vma_locks(stalled_lab.prog, stalled_lab.maps)
    assert problems == []
    known = parts(stalled_lab.capture)
    root = hex(vma_at(stalled_lab.prog, known["ksm-vmas"][0]).anon_vma.root.value_())
    (lock,) = (row for row in locks if row.root == root)
    waiting = [row for row in queued if row.root == root]
    print(f"{lock.state}, owner {lock.owner_comm}; queued: {[row.comm for row in waiting]}")
    # Splitters that are not waiting keep the walker from its CPU.
    assert lock.waiters == len(waiting) >= 1
    pids = {part.pid for name in ("splitter", "walker") for part in known[name]}
    assert {row.pid for row in waiting} <= pids
    running = {cpu_curr(stalled_lab.prog, cpu).pid.value_() for cpu in (0, 1)}
    for row in waiting:
        if row.stack is None:  # a CPU is changing over to it
            assert row.pid in running
        elif row.comm == "splitter":
            assert row.wants == "write"
            assert "mprotect" in (row.stack or "") and "rwsem_down_write" in (row.stack or "")
        else:
            assert row.wants == "read" and "rmap_walk_ksm" in (row.stack or "")
    if lock.state in ("read", "write"):
        assert lock.owner_comm == {"read": "walker", "write": "splitter"}[lock.state]
        assert lock.owner_is == {"read": "last reader", "write": "writer"}[lock.state]
    assert lock.vmas > 200_000 and lock.anon_vmas > 100_000


def test_a_stack_is_its_tasks_own(stalled_lab: RmapLab) -> None:
    """A CPU that is changing over to a task has the registers of the one before."""
    prog = stalled_lab.prog
    one, other = (
        find_task(prog, parts(stalled_lab.capture)[name][0].pid) for name in ("splitter", "walker")
    )
    for task, its_own in ((one, True), (other, False)):
        begin = task.stack.value_()
        assert on_its_stack(one, begin + 4096) is its_own
    assert on_its_stack(prog["init_task"].address_of_(), 1)


def test_a_machine_frozen_in_the_midst_of_splitting(stalled_lab: RmapLab) -> None:
    # A split takes its VMA's chains out of the trees, and puts them in again.
    assert stalled_lab.maps.orphans < 100
    rows = anon_vmas.anon_vma_rows(stalled_lab.maps)
    assert rows[0].processes == 6 and 120_000 < rows[0].vmas < 120_100
    assert len(rows) < len(stalled_lab.maps.anon_vmas)
    shown = anon_vmas.fanout(stalled_lab.maps)
    assert sum(row.anon_vmas for row in shown) == len(stalled_lab.maps.anon_vmas) > 100_000


def test_the_owner_of_a_lock(rmap_lab: RmapLab) -> None:
    """As ``rw_semaphore.owner`` and ``count`` would have it: a writer, a reader, nobody."""
    init = find_task(rmap_lab.prog, 1).value_()
    for owner, count, kind in ((init, 1, "writer"), (init | 1, 256, "last reader")):
        pid, comm, owner_is, stack = rwsem_owner(rmap_lab.prog, owner, count)
        assert (pid, comm, owner_is) == (1, "init", kind)
        assert stack is None or not stack.startswith("0x")
    assert rwsem_owner(rmap_lab.prog, init | 1, 2) == (None, None, None, None)  # it has let it go
    nowhere = 1 << 56  # neither the kernel's half nor a process's, on x86-64 and on arm64
    pid, comm, owner_is, _ = rwsem_owner(rmap_lab.prog, nowhere, 1)
    assert (pid, comm, owner_is) == (None, None, "writer")
