# SPDX-License-Identifier: LGPL-2.1-or-later
"""/proc/vmallocinfo as text: what kernels print is read as it is; what is damaged is refused."""

from pathlib import Path

import pytest
from checkout import TESTS

from mmscope.drgn.ledger.vmalloc_callers import VmallocCaller, read_vmallocinfo
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.reports.collect.run_section import run_section

# As vmalloc_info_show() has them (mm/vmalloc.c).
LINES = """\
0x00000000bf597a60-0x0000000010ef02ff   20480 irq_init_percpu_irqstack+0x111/0x1b0 vmap
0x0000000010ef02ff-0x00000000a3d2f9ba    8192 acpi_os_map_iomem+0x1a9/0x1e0 phys=0x1ffe2000 ioremap
0x000000000f143fe7-0x0000000015f7e0a6   12288 dup_task_struct+0x1a1/0x1b0 pages=4 vmalloc N0=4
0x000000007247accd-0x00000000bff275e2   20480 dup_task_struct+0x1a1/0x1b0 pages=4 vmalloc N0=2 N1=2
0x0000000011111111-0x0000000022222222   69632 load_it+0x4e/0x1b0 [a_driver] pages=16 vmalloc vpages
0x00000000dc818f69-0x00000000602c10e9 2097152 pcpu_get_vm_areas+0x0/0x1070 vmalloc
0x0000000033333333-0x0000000044444444    8192 vm_map_ram
0x0000000055555555-0x0000000066666666    8192 unpurged vm_area
0x0000000077777777-0x0000000088888888    8192 dma_common+0x1/0x2 pages=1 user dma-coherent
"""


def test_areas_are_added_up_by_caller_and_use() -> None:
    assert read_vmallocinfo(LINES) == [
        VmallocCaller("load_it [a_driver]", "vmalloc", 1, 16, 69632),
        VmallocCaller("dup_task_struct", "vmalloc", 2, 8, 32768),
        VmallocCaller("dma_common", "other", 1, 1, 8192),
        # How many pages a percpu chunk has, the text does not say.
        VmallocCaller("pcpu_get_vm_areas", "percpu", 1, None, 2097152),
        VmallocCaller("irq_init_percpu_irqstack", "vmap", 1, 0, 20480),
        VmallocCaller("acpi_os_map_iomem", "ioremap", 1, 0, 8192),
        VmallocCaller("vm_map_ram", "other", 1, 0, 8192),
    ]


@pytest.mark.parametrize("kernel", ["6.1", "7.2"])
def test_what_a_kernel_printed_is_read_whole(kernel: str) -> None:
    text = (TESTS / "corpus/vmallocinfo" / kernel).read_text()
    rows = read_vmallocinfo(text)
    assert sum(row.areas for row in rows) == text.count("\n")
    assert sum(row.address_bytes for row in rows) == sum(
        int(line.split()[1]) for line in text.splitlines()
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        LINES[:-1],
        LINES.replace("0x00000000bf597a60", "bf597a60"),
        LINES.replace("   20480 irq", "   much irq"),
        LINES.replace("pages=16", "pages=1e9"),
        LINES.replace("pages=16", f"pages={1 << 64}"),
        "Inter-|   Receive\n",
    ],
    ids=["empty", "cut", "no address", "no size", "no number", "too many", "another file"],
)
def test_what_is_damaged_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="/proc/vmallocinfo"):
        read_vmallocinfo(text)


def test_the_section_has_it_of_a_copied_tree(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmallocinfo").write_text(LINES)
    section, found = run_section(SECTIONS["vmalloc"], Files(tmp_path))
    assert section.status == "ok"
    assert found.by_name["vmalloc_callers"] == read_vmallocinfo(LINES)
