# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A kernel with KASAN: its shadow, held against what the kernel wrote there of pages and objects that
were freed, and against drgn's walk over page tables.
"""

import random
from collections.abc import Callable

import kernels
import numpy as np
import pytest
from conftest import KERNELS, StructPagesLab, struct_pages_lab
from drgn import Program
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import follow_phys, page_to_virt
from drgn.helpers.linux.mmzone import for_each_online_pgdat

from mmscope.drgn.opening.kasan import SCALE_SHIFT, shadow_address
from mmscope.drgn.owners.slab_caches import SlabScan
from mmscope.drgn.owners.slab_objects import slots_of
from mmscope.drgn.owners.slab_owner import quarantined_bytes
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.struct_pages.kasan_shadow import kasan_shadow
from mmscope.drgn.struct_pages.memmap import Frames
from mmscope.reports.collect.run_section import run_section

pytestmark = [pytest.mark.any_config, pytest.mark.brief]

KASAN = [name for name in KERNELS if "KASAN" in kernels.about(name)]
# mm/kasan/kasan.h
PAGE_FREE, SLAB_FREE_META = 0xFF, 0xFA
SAMPLE = 300


def free_blocks(prog: Program) -> list[tuple[int, int]]:
    """The address of each free block and its order, from the kernel's lists."""
    found = []
    for pgdat in for_each_online_pgdat(prog):
        for zone in pgdat.node_zones:
            if not zone.present_pages:
                continue
            for order, area in enumerate(zone.free_area):
                for head in area.free_list:
                    pages = list_for_each_entry("struct page", head.address_of_(), "buddy_list")
                    found += [(page_to_virt(page).value_(), order) for page in pages]
    return found


# Where no kernel of the run has it there is nothing to test, and nothing to skip.
if KASAN:

    @pytest.fixture(scope="module", params=KASAN)
    def kasan_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> StructPagesLab:
        return struct_pages_lab(request.param, "sizes", say)

    @pytest.fixture(scope="module")
    def shadow(kasan_lab: StructPagesLab) -> Frames:
        return kasan_shadow(kasan_lab.prog)

    def test_the_shadow_of_memory_is_where_drgn_finds_it(
        kasan_lab: StructPagesLab, shadow: Frames
    ) -> None:
        prog = kasan_lab.prog
        init_mm = prog["init_mm"].address_of_()
        frames = np.concatenate(
            [np.arange(at, at + size) for at, size in zip(shadow.starts, shadow.sizes, strict=True)]
        )
        assert len(np.unique(frames)) == len(frames) == shadow.pages
        blocks = free_blocks(prog)
        for address, _ in random.Random(1).sample(blocks, min(len(blocks), SAMPLE)):
            assert follow_phys(init_mm, shadow_address(address)).value_() >> 12 in frames
        # An eighth of RAM, and what vmalloc areas and the kernel's image have.
        zones = [zone for pgdat in for_each_online_pgdat(prog) for zone in pgdat.node_zones]
        eighth = sum(zone.present_pages.value_() for zone in zones) >> SCALE_SHIFT
        assert eighth * 0.9 < shadow.pages < eighth * 1.3
        assert not shadow.unreadable_bytes and len(shadow.tables)

    def test_the_shadow_of_free_pages_says_so(kasan_lab: StructPagesLab) -> None:
        prog = kasan_lab.prog
        blocks = free_blocks(prog)
        for address, order in random.Random(2).sample(blocks, min(len(blocks), SAMPLE)):
            length = 4096 << order >> SCALE_SHIFT
            assert set(prog.read(shadow_address(address), length)) == {PAGE_FREE}

    def test_the_quarantine_has_the_objects_whose_shadow_says_so(
        kasan_lab: StructPagesLab,
    ) -> None:
        prog, kept = kasan_lab.prog, 0
        for slabs in (scan := SlabScan(prog)):
            for index in np.unique(slabs["cache"]).tolist():
                for _, addresses, _ in slots_of(prog, scan, slabs, index, Gaps()):
                    for address in addresses.tolist():
                        says = prog.read(shadow_address(address), 1)[0]
                        kept += scan.caches[index].size * (says == SLAB_FREE_META)
        # What leaves it loses the mark; some have it that are on none of its lists.
        assert 0 < quarantined_bytes(prog) <= kept < 1.1 * quarantined_bytes(prog)

    def test_the_ledger_and_memory_about_memory_have_it(
        kasan_lab: StructPagesLab, shadow: Frames
    ) -> None:
        memory = Memory(kasan_lab.prog)
        of_section = {
            name: run_section(SECTIONS[name], memory)[1].by_name
            for name in ("memory_ledger", "memory_metadata")
        }
        parts = {row.part: row for row in of_section["memory_metadata"]["memory_about_memory"]}
        assert parts["KASAN shadow"].bytes == shadow.pages << 12
        assert parts["page tables of the KASAN shadow"].bytes == len(shadow.tables) << 12
        assert parts["page_ext"].bytes > 0  # of PAGE_TABLE_CHECK
        ledger = of_section["memory_ledger"]["memory_ledger"]
        assert sum(row.pages for row in ledger if row.part == "KASAN shadow") == shadow.pages
