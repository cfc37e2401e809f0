# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory as that behind CXL comes to a kernel: a node without CPUs whose range the firmware's map has
as soft-reserved (here the command line makes it so), which a driver (dax_hmem, kmem) adds to zone
Movable after boot. What is said of zones, lists, pageblocks and counters of the lab's usual machine
is said of this one, too: the tests are the same.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import kernels
import machine
import pytest
from capture import Capture
from conftest import KERNELS, Lab
from kept_captures import kept
from kernels import Kernel
from printed_memory import (  # noqa: F401
    assert_as_printed,
    pageblocks_as_printed,
    test_counters_are_those_of_vmstat_plus_what_cpus_hold_back,
    test_free_lists_and_struct_pages_agree,
    test_free_pages_of_a_zone_are_what_zoneinfo_says_plus_what_cpus_hold_back,
    test_nr_free_pages_is_the_sum_of_its_parts,
    test_per_cpu_lists_hold_what_zoneinfo_counts,
    test_states_of_meminfo_are_those_of_vmstat,
    test_the_pageblock_map_is_the_census_in_physical_order,
    test_walking_every_list_finds_as_many_blocks,
    test_zones_are_those_of_zoneinfo,
)

from mmscope.drgn.free.free_memory import FreeMemory
from mmscope.drgn.free.zones import zones
from mmscope.drgn.machine.physical_memory import physical_memory
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.reading.io_resources import io_resources, read_iomem
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.run_section import run_section

pytestmark = [pytest.mark.x86, pytest.mark.odd_machine]

MIB = 1 << 20
# Behind the 1 GiB of node 1, which begins at 4 GiB.
FAR, FAR_BYTES = 5 << 30, 512 * MIB
OPTIONS = f"memmap={FAR_BYTES // MIB}M%{FAR:#x}-1+0xefffffff memhp_default_state=online_movable"
QEMU = (
    *("-m", "2048M", "-object", f"memory-backend-ram,id=far,size={FAR_BYTES}"),
    *("-numa", "node,nodeid=2,memdev=far"),
)
MODULES = ("kmem", "dax_hmem")
# "dax/hmem: Convey the dax range via memregion_info()" and what followed it (v6.3): before, such
# memory is a file of device_dax until somebody binds it to kmem.
BOUND_BY_HAND = {"5.10", "6.1"}
ABLE = [name for name in KERNELS if name not in BOUND_BY_HAND and name in kernels.stock()]


@pytest.fixture(scope="module", params=ABLE)
def lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Lab:
    """A kernel that does nothing, on that machine."""

    def take(kernel: Kernel, folder: Path) -> None:
        far = dataclasses.replace(kernel, options=f"{kernel.options} {OPTIONS}")
        init = machine.build_init(folder, kernel.architecture, kernel.page_bytes)
        machine.run(far, "idle", folder, say, init=init, qemu_args=QEMU)

    folder, kernel = kept(request.param, "far_memory", [OPTIONS, *QEMU], take, say, MODULES)
    taken = Capture(
        kernel.name, kernel.release, "idle", folder / "vmcore", kernel.vmlinux,
        folder / "truth/A", folder / "truth/B", folder / "console.log",
    )  # fmt: skip
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return Lab(taken, prog, FreeMemory(prog))


def test_it_is_zone_movable_of_a_node_of_its_own(lab: Lab) -> None:
    (far,) = [row for row in zones(lab.prog) if row.node == 2 and row.present_pages]
    assert (far.zone, far.start_pfn << 12, far.present_pages << 12) == ("Movable", FAR, FAR_BYTES)
    cpus = (lab.capture.truth_b / "sys/devices/system/node/online").read_text()
    assert cpus.strip() == "0-2"


def test_its_pageblocks_are_those_of_pagetypeinfo(lab: Lab) -> None:
    ours = pageblocks_as_printed(lab)
    assert ours[2, "Movable", "Movable"] == FAR_BYTES // (2 * MIB)


def test_resources_are_those_of_iomem(lab: Lab) -> None:
    ours, more = io_resources(lab.prog)
    assert more == "" and ours == read_iomem(lab.said("proc/iomem")[1])
    assert "System RAM (kmem)" in {each.name for each in ours}


def test_the_kernel_has_it_although_it_was_kept_for_a_driver(lab: Lab) -> None:
    memory = physical_memory(lab.prog)
    far = [row for row in memory.ranges if int(row.start, 16) >= FAR]
    used = [row for row in far if row.use == "kernel"]
    assert sum(row.bytes for row in used) == FAR_BYTES
    assert all(row.resource.endswith("System RAM (kmem)") for row in used)
    assert "soft reserved" not in {row.use for row in memory.ranges}
    parts = memory.parts
    assert sum(row.bytes for row in parts[1:]) == parts[0].bytes
    assert 0 < (2048 << 20) - parts[0].bytes < MIB


def test_every_section_is_there_and_the_ledger_adds_up(lab: Lab) -> None:
    memory = Memory(lab.prog)
    for name, spec in SECTIONS.items():
        section, found = run_section(spec, memory)
        absent = section.status == "absent" and name in kernels.NOT_IN_STOCK
        assert section.status == "ok" or absent, (name, section.message)
        if name == "memory_ledger":
            rows = found.by_name[name]
    zoneinfo = lab.said("proc/zoneinfo")[1]
    present = sum(map(int, re.findall(r"^ +present +(\d+)$", zoneinfo, re.MULTILINE)))
    assert sum(row.pages for row in rows if row.zone) == present
    assert sum(row.pages for row in rows if row.node == 2) << 12 == FAR_BYTES
