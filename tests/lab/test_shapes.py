# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A machine of an odd shape, against its own words: a node without memory, memory at 7 GiB with
nothing between 5 and 7, a hole within a zone, CMA, a DIMM in zone Movable; five levels of page
tables. On arm64, where boot tells of DIMMs and there is no memmap=: without DIMM and hole.

What is said of zones, lists, pageblocks and counters of the lab's usual machine is said of this
one, too: the tests are the same.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import kernels
import machine
import pytest
from capture import Capture, capture
from conftest import KERNELS, Lab
from kept_captures import kept
from kernels import Kernel
from printed_memory import (  # noqa: F401
    assert_as_printed,
    pageblocks_as_printed,
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

from mmscope.drgn.free.free_lists import read_pagetypeinfo
from mmscope.drgn.free.free_memory import FreeMemory
from mmscope.drgn.free.zones import read_zoneinfo, zones
from mmscope.drgn.opening.no_debug_info import vmcoreinfo
from mmscope.drgn.opening.target import describe, open_target
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.mem_sections import present_sections
from mmscope.drgn.sections.memory import Memory
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import collect

pytestmark = [pytest.mark.odd_machine, pytest.mark.any_config]

DIMM, DIMM_BYTES = 7 << 30, 256 << 20
HOLE, HOLE_BYTES = 0x1490_0000, 3 << 20
OPTIONS = f"cma=64M memhp_default_state=online_movable memmap={HOLE_BYTES}${HOLE:#x}"
THREE_NODES = ("-smp", "3,sockets=3", "-numa", "node,nodeid=2,cpus=2")
QEMU = (
    *THREE_NODES,
    *("-m", "1536M,slots=1,maxmem=16G"),
    *("-object", f"memory-backend-ram,id=dimm,size={DIMM_BYTES}"),
    *("-device", f"pc-dimm,memdev=dimm,node=1,addr={DIMM:#x}"),
)


@pytest.fixture(scope="module", params=KERNELS)
def lab(
    request: pytest.FixtureRequest,
    say: Callable[[str], None],
) -> Lab:
    """A kernel that does nothing, on that machine."""
    x86 = kernels.architecture(request.param).name == "amd64"
    options, qemu = (OPTIONS, QEMU) if x86 else ("cma=64M", THREE_NODES)

    def take(kernel: Kernel, folder: Path) -> None:
        odd = dataclasses.replace(kernel, options=f"{kernel.options} {options}")
        init = machine.build_init(folder, kernel.architecture, kernel.page_bytes)
        machine.run(odd, "idle", folder, say, init=init, qemu_args=qemu)

    folder, kernel = kept(request.param, "odd_shape", [options, *qemu], take, say)
    taken = Capture(
        kernel.name, kernel.release, "idle", folder / "vmcore", kernel.vmlinux,
        folder / "truth/A", folder / "truth/B", folder / "console.log",
    )  # fmt: skip
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return Lab(taken, prog, FreeMemory(prog))


def test_every_section_is_there_or_says_why_not(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "b"
    with Writer(path) as writer:
        sections = collect(Memory(lab.prog), describe(lab.prog, "vmcore"), writer)
    for section in sections:
        print(section)
        assert section.status in ("ok", "absent")
        assert section.status == "ok" or (section.message or "").count(" ") > 3
    absent = {section.section for section in sections if section.status == "absent"}
    # 6.1 is built without CONFIG_MEMORY_FAILURE, PREEMPT_RT without transparent huge pages.
    assert absent <= kernels.NOT_IN_STOCK | {"poisoned_pages", "thp_sizes"}
    assert Bundle(path).target["online_cpus"] == 3


def test_a_node_without_memory_has_cpus_and_no_pages(lab: Lab) -> None:
    rows = {(row.node, row.zone): row for row in zones(lab.prog)}
    said = {(row.node, row.zone) for row in read_zoneinfo(lab.said("proc/zoneinfo")[1])}
    assert {node for node, _ in rows} == {node for node, _ in said}
    assert all(row.present_pages == 0 for (node, _), row in rows.items() if node == 2)
    assert "Node 2" in lab.said("proc/zoneinfo")[1]


@pytest.mark.x86
def test_the_dimm_is_zone_movable_far_behind_the_rest(lab: Lab) -> None:
    (movable,) = [row for row in zones(lab.prog) if row.zone == "Movable" and row.present_pages]
    assert (movable.node, movable.start_pfn) == (1, DIMM >> 12)
    assert movable.present_pages == DIMM_BYTES >> 12


@pytest.mark.x86
def test_sections_between_are_absent(lab: Lab) -> None:
    sections = present_sections(lab.prog, gaps := Gaps())
    assert not gaps.bytes
    here = {int(number) * sections.pages << 12 for number in sections.numbers}
    assert DIMM in here and 0 in here
    assert not any(5 << 30 <= address < DIMM for address in here)


def test_pageblocks_are_those_of_pagetypeinfo(lab: Lab) -> None:
    """Also in a section with a hole, whose blocks have struct pages and are not counted."""
    ours = pageblocks_as_printed(lab)
    # CMA has blocks of its own, as many as it has pages; 6.1 and 6.12 are built without.
    pages = sum(map(int, re.findall(r"^ +cma +(\d+)$", lab.said("proc/zoneinfo")[1], re.MULTILINE)))
    has_cma = "CMA" in {name for *_, name in ours}
    assert pages << 12 >= (64 << 20 if has_cma else 0)
    assert sum(n for (*_, name), n in ours.items() if name == "CMA") * 512 == pages


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
    expected = {"Normal", "Movable"} if lab.capture.architecture.name == "amd64" else {"DMA"}
    assert {zone for (_, zone, _, _), blocks in ours.items() if blocks} >= expected


@pytest.mark.x86
def test_a_hole_is_spanned_and_not_present(lab: Lab) -> None:
    (zone,) = [row for row in zones(lab.prog) if (row.node, row.zone) == (0, "DMA32")]
    assert zone.spanned_pages - zone.present_pages >= HOLE_BYTES >> 12


@pytest.mark.x86
@pytest.mark.parametrize(("workload", "levels"), [(None, 5), ("tables", 4)])
def test_page_tables_of_both_depths(
    lab: Lab, workload: str | None, levels: int, say: Callable[[str], None]
) -> None:
    """What the tests of ``tables`` say of four levels was read with four, and this with five."""
    prog = lab.prog
    if lab.capture.series == "5.10":  # which Debian built without CONFIG_X86_5LEVEL
        assert "pgdir_shift" not in prog
        levels = 4
    if workload is not None:
        taken = capture(lab.capture.kernel, workload, say=say)
        prog = open_target(taken.vmcore, [taken.vmlinux])
    assert vmcoreinfo(prog)["NUMBER(pgtable_l5_enabled)"] == str(int(levels == 5))
