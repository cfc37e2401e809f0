# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Zones, free lists, pageblocks and counters of a vmcore against what that kernel printed, whatever
machine it ran on: tests that ``test_free_memory.py`` and ``test_shapes.py`` import.
"""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import kernels
import pytest
from conftest import Lab
from kernels import has_thp
from plain_walks import walk_free_lists

from mmscope.drgn.free.pageblocks import pageblock_runs, pageblocks, read_pagetypeinfo_blocks
from mmscope.drgn.free.pcp_lists import read_zoneinfo_pcp
from mmscope.drgn.free.zones import for_each_zone, read_zoneinfo, zone_name, zone_page_state, zones
from mmscope.drgn.machine.settings import read_settings, settings
from mmscope.drgn.machine.vm_counters import read_vmstat, vm_counters
from mmscope.drgn.opening.target import describe
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.text.meminfo import counters_of_meminfo
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.database import open_database
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect

Cells = Mapping[Hashable, int]


def assert_as_printed(
    ours: Cells, printed: tuple[Cells, Cells], what: str, moving: int = 0
) -> None:
    """
    Hold cells against two prints of the same; report how far the kernel moved by itself.

    :param moving: how many cells may have moved between the prints.
    """
    earlier, later = printed
    assert set(ours) == set(later), f"{what}: other cells than the kernel printed"
    moved = {
        cell: (earlier.get(cell, 0), later[cell])
        for cell in later
        if earlier.get(cell) != later[cell]
    }
    wrong = []
    for cell, value in ours.items():
        slack = abs(later[cell] - earlier.get(cell, 0))
        if abs(value - later[cell]) > slack:
            wrong.append(
                f"{cell}: {value}, the kernel printed {earlier.get(cell)} and {later[cell]}"
            )
    print(f"{what}: {len(ours)} cells, {len(moved)} moved between two prints: {moved}")
    assert not wrong, f"{what}: " + "; ".join(wrong)
    assert len(moved) <= moving, f"{what}: {len(moved)} cells moved between the two prints: {moved}"


def pageblocks_as_printed(lab: Lab) -> dict[tuple[int, str, str], int]:
    """Pageblocks by node, zone and migratetype, which are those of /proc/pagetypeinfo."""
    ours = {
        (row.node, row.zone, row.migratetype): row.blocks
        for row in pageblocks(lab.free.pageblocks, lab.free.zone_names)
    }
    printed = [
        {
            (row.node, row.zone, row.migratetype): row.blocks
            for row in read_pagetypeinfo_blocks(text)
        }
        for text in lab.said("proc/pagetypeinfo")
    ]
    assert_as_printed(ours, (printed[0], printed[1]), "pageblocks", moving=2)
    return ours


# Reading the files is itself work for the kernel: what is printed later counts it. These counters
# moved in a dozen captures; anything else that moves is worth a look.
MOVING_COUNTERS = 24


@pytest.mark.brief
def test_zones_are_those_of_zoneinfo(lab: Lab) -> None:
    def cells(rows: Any) -> dict[Hashable, int]:
        return {
            (row.node, row.zone, name): getattr(row, name)
            for row in rows
            for name in (
                "present_pages",
                "managed_pages",
                "spanned_pages",
                "wmark_min",
                "wmark_low",
                "wmark_high",
                "start_pfn",
            )
        }

    printed = [cells(read_zoneinfo(text)) for text in lab.said("proc/zoneinfo")]
    assert_as_printed(cells(zones(lab.prog)), (printed[0], printed[1]), "zones")


def test_free_pages_of_a_zone_are_what_zoneinfo_says_plus_what_cpus_hold_back(lab: Lab) -> None:
    ours: dict[Hashable, int] = {}
    for node, _, zone in for_each_zone(lab.prog):
        value, unfolded = zone_page_state(zone, "NR_FREE_PAGES")
        ours[node, zone_name(zone)] = value - unfolded
    printed = [
        {(row.node, row.zone): row.free_pages for row in read_zoneinfo(text)}
        for text in lab.said("proc/zoneinfo")
    ]
    assert_as_printed(ours, (printed[0], printed[1]), "free pages", moving=1)


@pytest.mark.brief
def test_counters_are_those_of_vmstat_plus_what_cpus_hold_back(lab: Lab) -> None:
    rows = vm_counters(lab.prog)
    ours = {row.name: row.value - (row.unfolded or 0) for row in rows}
    said = [read_vmstat(text) for text in lab.said("proc/vmstat")]
    printed = [{row.name: row.value for row in reading} for reading in said]
    if "KASAN" in kernels.about(lab.capture.kernel):
        # It keeps what was freed: slabs grow as long as anything runs, after the last print too.
        for cells in (ours, *printed):
            del cells["nr_slab_unreclaimable"]
    if kernels.page_bytes(lab.capture.kernel) == 64 << 10:
        # A fault maps its own page alone (fault_around_bytes): what freezes the guest may fault.
        for cells in (ours, *printed):
            del cells["pgfault"]
    assert_as_printed(ours, (printed[0], printed[1]), "counters", moving=MOVING_COUNTERS)
    kinds = {row.name: row.kind for row in rows}
    assert kinds == {row.name: row.kind for row in said[1]}


@pytest.mark.brief
def test_states_of_meminfo_are_those_of_vmstat(lab: Lab) -> None:
    """But for what moved between the two files: fewer pages than a CPU's lists have."""
    page = kernels.page_bytes(lab.capture.kernel)
    for meminfo, vmstat in zip(lab.said("proc/meminfo"), lab.said("proc/vmstat"), strict=True):
        printed = {row.name: row.value for row in read_vmstat(vmstat)}
        states = counters_of_meminfo(meminfo, page)
        assert len(states) > 15
        for name, _, value in states:
            assert abs(value - printed[name]) <= 64, name


@pytest.mark.brief
def test_per_cpu_lists_hold_what_zoneinfo_counts(lab: Lab) -> None:
    rows, checks = lab.free.pcp_lists.rows, lab.free.pcp_lists.checks
    assert checks == []
    ours: dict[Hashable, int] = {}
    for row in rows:
        key = row.node, row.zone, row.cpu
        ours[key] = ours.get(key, 0) + row.pages
    printed = []
    for text in lab.said("proc/zoneinfo"):
        reading = {(row.node, row.zone, row.cpu): row.pages for row in read_zoneinfo_pcp(text)}
        printed.append({key: reading.get(key, 0) for key in {*reading, *ours}})
    for reading in printed:
        for key in {*printed[0], *printed[1]}:
            reading.setdefault(key, 0)
            ours.setdefault(key, 0)
    assert_as_printed(ours, (printed[0], printed[1]), "per-CPU pages", moving=2)
    assert ours, "the workload left pages on no per-CPU list"


@pytest.mark.brief
def test_free_lists_and_struct_pages_agree(lab: Lab) -> None:
    assert lab.free.lists.followed
    assert lab.free.lists.checks == []


def test_walking_every_list_finds_as_many_blocks(lab: Lab) -> None:
    assert walk_free_lists(lab.prog) == sum(row.blocks for row in lab.free.lists.blocks)


def test_nr_free_pages_is_the_sum_of_its_parts(lab: Lab) -> None:
    rows = lab.free.accounting(None)
    assert [row.remainder_pages for row in rows] == [0] * len(rows)
    assert sum(row.free_list_pages for row in rows) > 0


def test_the_pageblock_map_is_the_census_in_physical_order(lab: Lab) -> None:
    free = lab.free.blocks.pageblock_free
    runs = pageblock_runs(lab.free.pageblocks, free, lab.free.zone_names)
    census: dict[tuple[int, str, str], int] = {}
    for run in runs:
        key = run.node, run.zone, run.migratetype
        census[key] = census.get(key, 0) + run.blocks
    assert census == {
        (row.node, row.zone, row.migratetype): row.blocks
        for row in pageblocks(lab.free.pageblocks, lab.free.zone_names)
        if row.blocks
    }
    pages = pages_per_block(lab)
    ends = [run.start_pfn + run.blocks * pages for run in runs]
    assert all(end <= run.start_pfn for end, run in zip(ends, runs[1:], strict=False))
    # Every page on a free list is in one pageblock's share.
    assert free.sum() == sum(row.pages for row in lab.free.lists.blocks)


def test_settings_are_those_of_proc_and_sys(lab: Lab) -> None:
    ours = {row.name: row.value for row in settings(lab.prog)}
    said = {
        row.name: row.value
        for row in read_settings(lambda path: (lab.capture.truth_b / path).read_text())
    }
    assert said.items() <= ours.items()
    assert "vm.min_free_kbytes" in said
    names = {"transparent_hugepage.enabled", "transparent_hugepage.defrag"}
    assert names & ours.keys() == names & said.keys()
    assert (names <= said.keys()) is has_thp(lab.capture.kernel)


def test_fragmentation_indexes_are_those_of_debugfs(lab: Lab, tmp_path: Path) -> None:
    database = open_database(bundle_of(lab, tmp_path / "bundle"))
    for column, file in (
        ("unusable_index", "unusable_index"),
        ("fragmentation_index", "extfrag_index"),
    ):
        ours = {
            (row["node"], row["zone"], row["order"]): round(row[column] * 1000)
            for row in database.rows("select * from fragmentation")
        }
        printed = []
        for text in lab.said(f"sys/kernel/debug/extfrag/{file}"):
            reading: dict[Hashable, int] = {}
            for line in text.splitlines():
                node, zone, values = line.removeprefix("Node ").replace(", zone", "").split(None, 2)
                for order, value in enumerate(values.split()):
                    reading[int(node), zone, order] = round(float(value) * 1000)
            printed.append(reading)
        assert_as_printed(ours, (printed[0], printed[1]), column, moving=4)


def pages_per_block(lab: Lab) -> int:
    """Pages of a pageblock, as the kernel printed it."""
    said = re.search(r"^Pages per block: +(\d+)$", lab.said("proc/pagetypeinfo")[1], re.MULTILINE)
    assert said is not None
    return int(said[1])


def bundle_of(lab: Lab, path: Path) -> Bundle:
    """Collect the lab's core into a bundle."""
    memory = Memory(lab.prog)
    with Writer(path) as writer:
        collect(memory, describe(memory.prog, "vmcore"), writer)
    return Bundle(path)
