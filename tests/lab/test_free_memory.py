# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Zones, free lists, pageblocks and counters of a real vmcore against what that kernel printed.

The guest printed every file twice and was frozen right after, without a kernel entry in between. A
cell that it printed alike twice must be equal to the core's, exactly. One that moved between the
prints (the kernel works while it is asked) may differ by no more than it moved, and few may.

With pages of more than 4 KiB a hundredth of a zone of the lab's machine is less than a pageblock:
there the kernel reserves none, and the workload plants all but that (guest/workload_fragment.c).
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import Lab
from drgn import FaultError
from drgn.helpers.linux.list import list_for_each_entry
from kernels import NOT_IN_STOCK
from printed_memory import (  # noqa: F401
    MOVING_COUNTERS,
    Cells,
    assert_as_printed,
    bundle_of,
    pageblocks_as_printed,
    pages_per_block,
    test_counters_are_those_of_vmstat_plus_what_cpus_hold_back,
    test_fragmentation_indexes_are_those_of_debugfs,
    test_free_lists_and_struct_pages_agree,
    test_free_pages_of_a_zone_are_what_zoneinfo_says_plus_what_cpus_hold_back,
    test_nr_free_pages_is_the_sum_of_its_parts,
    test_per_cpu_lists_hold_what_zoneinfo_counts,
    test_settings_are_those_of_proc_and_sys,
    test_states_of_meminfo_are_those_of_vmstat,
    test_the_pageblock_map_is_the_census_in_physical_order,
    test_walking_every_list_finds_as_many_blocks,
    test_zones_are_those_of_zoneinfo,
)
from probe_scripts import FOLDER, as_drgn_does, by_drgn

from mmscope.drgn.free import free_lists as free_lists_module
from mmscope.drgn.free.block_heads import buddy_mapcount
from mmscope.drgn.free.free_lists import FIRST_HEAD, FreeBlockFinder, free_lists, read_pagetypeinfo
from mmscope.drgn.free.free_memory import FreeMemory
from mmscope.drgn.free.pageblocks import pageblocks
from mmscope.drgn.free.zones import for_each_zone, read_zoneinfo, zone_name, zones
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.struct_pages import PageChunk, flag_fields, page_dtype
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.bundle.database import open_database
from mmscope.reports.collect.run_section import run_section
from mmscope.reports.commands.drgn_plugin import MAIN
from mmscope.reports.findings.findings import ask
from mmscope.reports.findings.question import OURS

pytestmark = pytest.mark.any_page


def has_reserve(lab: Lab) -> bool:
    """Whether the workload could make a HighAtomic reserve."""
    return lab.capture.workload == "fragment" and lab.prog["PAGE_SIZE"].value_() == 4096


def test_what_kswapd_gave_up_is_what_zoneinfo_says(lab: Lab) -> None:
    printed = {
        (row.node, row.zone): row.node_unreclaimable
        for row in read_zoneinfo(lab.said("proc/zoneinfo")[1])
    }
    ours = {(row.node, row.zone): row.node_unreclaimable for row in zones(lab.prog)}
    assert {key: ours[key] for key, said in printed.items() if said is not None} == {
        key: said for key, said in printed.items() if said is not None
    }
    assert set(ours.values()) <= {True, False}


def test_a_zone_whose_lock_was_held_says_so(lab: Lab) -> None:
    """Nobody was inside a lock when the guest stood still; with its word written over, one is."""
    from mmscope.drgn.opening.target import open_target

    prog = open_target(lab.capture.vmcore, [lab.capture.vmlinux])
    assert {row.lock_held for row in zones(prog)} == {False}
    name = lab.capture.architecture.zones[0]
    node, _, zone = next(found for found in for_each_zone(prog) if zone_name(found[2]) == name)
    word = zone.lock.rlock.raw_lock.val.counter
    taken = (1).to_bytes(word.type_.size, "little")
    prog.add_memory_segment(
        word.address_, len(taken), lambda address, count, offset, physical: taken[:count], False
    )
    assert {(row.node, row.zone) for row in zones(prog) if row.lock_held} == {(node, name)}


@pytest.mark.brief
def test_free_blocks_are_those_of_pagetypeinfo(lab: Lab) -> None:
    ours = {
        (row.node, row.zone, row.order, row.migratetype): row.blocks
        for row in lab.free.lists.blocks
    }
    printed = [
        {
            (row.node, row.zone, row.order, row.migratetype): row.blocks
            for row in read_pagetypeinfo(text)
        }
        for text in lab.said("proc/pagetypeinfo")
    ]
    assert_as_printed(ours, (printed[0], printed[1]), "free blocks", moving=12)
    # The workload fills the tables: a comparison of zeros would say nothing.
    most = 40 if lab.capture.workload == "fragment" else 10
    assert sum(1 for blocks in ours.values() if blocks) > most


@pytest.mark.brief
def test_pageblocks_are_those_of_pagetypeinfo(lab: Lab) -> None:
    ours = pageblocks_as_printed(lab)
    planted = {"Reclaimable"} if lab.capture.workload == "fragment" else set()
    planted |= {"HighAtomic"} if has_reserve(lab) else set()
    there = {name for (_, _, name), blocks in ours.items() if blocks}
    assert there >= {"Unmovable", "Movable"} | planted


def test_pages_that_cannot_be_on_a_per_cpu_list_are_not_kept(lab: Lab) -> None:
    # What is kept grows with the lists and not with the machine, whose pages that were never
    # allocated link to themselves, and whose pages that were, to LIST_POISON1.
    listed = sum(row.pages for row in lab.free.pcp_lists.rows)
    assert listed
    assert lab.free.pcp.candidates <= listed + 1000


def test_the_highatomic_reserve_is_whole_pageblocks_up_to_the_cap(lab: Lab) -> None:
    blocks = {
        (row.node, row.zone): row.blocks
        for row in pageblocks(lab.free.pageblocks, lab.free.zone_names)
        if row.migratetype == "HighAtomic"
    }
    on_lists: dict[tuple[int, str], int] = {}
    for row in lab.free.lists.blocks:
        if row.migratetype == "HighAtomic":
            on_lists[row.node, row.zone] = on_lists.get((row.node, row.zone), 0) + row.pages
    for zone in zones(lab.prog):
        key = zone.node, zone.zone
        # 5.10 and 6.1 may lose a pageblock of the reserve to another migratetype and go on counting
        # it.
        lost = zone.highatomic_reserved_pages - blocks[key] * pages_per_block(lab)
        assert lost == 0 or (lab.capture.series in ("5.10", "6.1") and lost in (512, 1024))
        assert zone.highatomic_cap_pages is not None
        assert zone.highatomic_reserved_pages <= zone.highatomic_cap_pages
        if zone.highatomic_free_pages is not None:
            assert zone.highatomic_free_pages == on_lists[key]
        if not has_reserve(lab):
            assert zone.highatomic_cap_pages == 0
    assert (sum(blocks.values()) > 0) is has_reserve(lab), "the workload made no reserve"


def test_too_many_blocks_are_counted_without_their_lists(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = lab.free.lists
    monkeypatch.setattr(free_lists_module, "MAX_BLOCKS", 1000)
    lists = FreeMemory(lab.prog).lists
    assert (followed.followed, lists.followed) == (True, False)
    counted: list[Counter[tuple[int, str, int]]] = [Counter(), Counter()]
    for blocks, found in zip(counted, (lists, followed), strict=True):
        for row in found.blocks:
            blocks[row.node, row.zone, row.order] += row.blocks
    assert counted[0] == counted[1]


def test_a_damaged_link_is_told_of_its_list_and_costs_no_block(lab: Lab) -> None:
    from mmscope.drgn.opening.target import open_target

    prog = open_target(lab.capture.vmcore, [lab.capture.vmlinux])
    lists = [
        (node, zone_name(zone), order, mt, blocks)
        for node, _, zone in for_each_zone(prog)
        for order in range(3)
        for mt, head in enumerate(zone.free_area[order].free_list)
        if len(blocks := [*list_for_each_entry("struct page", head.address_of_(), "lru")]) > 2
    ]
    back, forth = lists[0], lists[-1]
    assert back[:4] != forth[:4]
    for *_, blocks, member in ((*back, "prev"), (*forth, "next")):
        word = blocks[1].lru.member_(member).address_of_().value_()
        prog.add_memory_segment(word, 8, lambda address, count, *_: bytes(count), False)
    found = FreeMemory(prog).lists
    assert {
        (check.node, check.zone, check.order, check.problem, check.page_blocks)
        for check in found.checks
    } == {
        (*back[:3], "the next block's prev leads elsewhere", 1),
        (*forth[:3], "links lead to no list head", 2),
        (*forth[:3], "head leads into another list, or in a circle", len(forth[4]) - 2),
    }
    assert found.blocks == lab.free.lists.blocks


def test_blocks_beyond_16_tib_are_counted_without_their_lists(lab: Lab) -> None:
    finder = FreeBlockFinder(lab.prog, lab.free.types, flag_fields(lab.prog))
    pages = np.zeros(1, page_dtype(lab.prog, finder.columns))
    pages["mapcount"], pages["private"] = buddy_mapcount(lab.prog), 3
    finder.take(PageChunk(FIRST_HEAD, 0, pages))
    lists = free_lists(lab.prog, finder)
    assert not lists.followed
    assert [(row.order, row.blocks) for row in lists.blocks if row.blocks] == [(3, 1)]


def test_struct_pages_that_cannot_be_read_are_counted_and_not_taken_for_free(lab: Lab) -> None:
    from mmscope.drgn.opening.target import open_target

    prog = open_target(lab.capture.vmcore, [lab.capture.vmlinux])
    start, end, address = valid_page_ranges(prog)[-1]
    hole = (address + (end - start) // 2 * 64) & ~4095

    def fault(at: int, count: int, offset: int, physical: bool) -> bytes:
        raise FaultError("left out of the dump", at)

    prog.add_memory_segment(hole, 3 * 4096, fault, False)
    section, found = run_section(SECTIONS["free_lists"], Memory(prog))
    assert section.status == "partial"
    assert section.unreadable_bytes == 3 * 4096
    assert section.message is not None and "12,288 bytes" in section.message
    free = sum(row.pages for row in found.tables[0].rows)
    assert 0 < free <= sum(row.pages for row in lab.free.lists.blocks)


@pytest.mark.any_kernel
def test_two_readings_of_one_vmcore_are_the_same_bundle(lab: Lab, tmp_path: Path) -> None:
    first, second = bundle_of(lab, tmp_path / "first"), bundle_of(lab, tmp_path / "second")
    assert set(first.tables) == set(second.tables)
    for name, table in first.tables.items():
        if name != "sections":  # has the seconds that each took
            assert table.path.read_bytes() == second.tables[name].path.read_bytes()
    needed = [section for section in first.sections if not SECTIONS[section.section].optional]
    assert {section.status for section in needed} == {"ok"}


def test_the_demo_workload_is_found_out(lab: Lab, tmp_path: Path) -> None:
    verdict = ask(open_database(bundle_of(lab, tmp_path / "bundle")), OURS())
    found = {finding.id for finding in verdict.found}
    assert "thp-falls-back" in found
    # Fragmentation matters where free memory has room for 64 huge pages: of 32 MiB it never has.
    planted = {"highatomic-starves-thp", "external-fragmentation"}
    assert found & planted == (planted if has_reserve(lab) else set())
    assert not found & {"free-lists-damaged", "free-pages-unaccounted"}
    # Nobody recorded a profile or watched it; 6.1 is built without CONFIG_MEMORY_FAILURE, and does
    # not count huge pages by size. What programs killed is in their logs.
    without = {item.section for item in verdict.not_checked if item.id != "program-kills"}
    # Of text alone, and of cgroups that are used.
    without -= {"memory_cgroups", "memory_ledger", "process_memory"}
    not_there = {"profiles", "watch", "poisoned_pages", "thp_sizes"}
    assert without <= NOT_IN_STOCK | not_there, verdict.not_checked


@pytest.mark.any_kernel
def test_a_probe_runs_as_a_drgn_script(lab: Lab) -> None:
    result = by_drgn(lab.capture, "free/free_lists")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) > 5


@pytest.mark.any_kernel
@pytest.mark.parametrize(
    "script",
    ["free/zones", "free/pcp_lists", "free/pageblocks", "machine/vm_counters", "machine/settings"],
)
def test_so_do_the_others(lab: Lab, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed, said = as_drgn_does(lab.prog, script, capsys)
    assert said == "" and len(printed.splitlines()) > 5


SCRIPTS = sorted(
    str(path.relative_to(FOLDER).with_suffix(""))
    for path in FOLDER.rglob("*.py")
    if MAIN in path.read_text() and path.name != "page_owner_series.py"  # reads a text
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_prints_tables_or_says_what_the_kernel_lacks(
    lab: Lab, script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [f"{script}.py"])  # as drgn does
    try:
        printed, said = as_drgn_does(lab.prog, script, capsys)
    except SystemExit as ended:
        assert ended.code == 1
        printed, said = capsys.readouterr()
        several = "print_sections(" in (FOLDER / f"{script}.py").read_text()
        assert f"{script}.py: " in said and (several or not printed)
        return
    assert printed.strip(), said


@pytest.mark.any_kernel
def test_a_file_with_nothing_to_print_says_which_have(lab: Lab) -> None:
    result = by_drgn(lab.capture, "free/block_heads")
    assert result.returncode == 0 and not result.stdout
    assert result.stderr.endswith(
        "free/block_heads.py: prints nothing; in its folder these do: free_lists.py, "
        "free_memory.py, pageblocks.py, pcp_lists.py, zones.py\n"
    )
