# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The array of all ``struct page`` of a kernel with SPARSEMEM_VMEMMAP: where it is, and the flags of
some of its pages.

Costs a look at each ``struct mem_section``; of flags, a read for each stretch of pages.

Cannot know: which page frames the array lies on, which ``vmemmap`` reads.
"""

from dataclasses import dataclass

import numpy as np
from drgn import Program, sizeof
from numpy.typing import NDArray

from mmscope.drgn.page_tables.page_table_formats import Entries
from mmscope.drgn.reading.kernel_arrays import Gaps, distinct
from mmscope.drgn.reading.mem_sections import Sections, present_sections
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.reading.struct_pages import COLUMNS, flag_fields


@dataclass(frozen=True, slots=True)
class Memmap:
    """Where the array is, and what it is of."""

    base: int  # address of the struct page of page frame 0
    page_bytes: int  # sizeof(struct page)
    page_shift: int
    sections: Sections

    @property
    def section_bytes(self) -> int:
        """Of the struct pages of a section."""
        return self.sections.pages * self.page_bytes


def memmap(prog: Program, gaps: Gaps) -> Memmap:
    """
    Find the array.

    :raises NotImplementedError: the kernel is built without SPARSEMEM_VMEMMAP.
    :raises ValueError: the array would not end below the end of all addresses.
    """
    flag_fields(prog)  # says so if there is no vmemmap
    if "mem_section" not in prog:
        raise NotImplementedError(
            "FLATMEM has no vmemmap: its array of struct pages is plain memory"
        )
    found = Memmap(
        prog["vmemmap"].value_(),
        sizeof(prog.type("struct page")),
        prog["PAGE_SHIFT"].value_(),
        present_sections(prog, gaps),
    )
    last = int(found.sections.numbers.max(initial=0))
    if found.base + (last + 1) * found.section_bytes >= 1 << 64:
        raise ValueError("mem_section is damaged: struct pages beyond the last address")
    return found


def page_flags(
    prog: Program, where: Memmap, pfns: NDArray[np.int64], gaps: Gaps
) -> tuple[Entries, NDArray[np.bool_]]:
    """``page.flags`` of some pages, and which could be read."""
    addresses = np.uint64(where.base) + pfns.astype(np.uint64) * np.uint64(where.page_bytes)
    columns = {"flags": COLUMNS["flags"]}
    rows, known = read_members(prog, addresses, prog.type("struct page"), columns, gaps)
    return rows["flags"], known


def self_hosted(prog: Program, where: Memmap, frames: NDArray[np.int64]) -> NDArray[np.bool_]:
    """
    Which of some frames of the vmemmap lie in the hot-added memory that they describe
    (``PG_vmemmap_self_hosted``: memory_hotplug.memmap_on_memory).
    """
    result = np.zeros(len(frames), np.bool_)
    try:
        flag = np.uint64(1 << int(prog.constant("PG_vmemmap_self_hosted").value_()))
    except LookupError:
        return result
    wanted = distinct(frames[frames >= 0])
    flags, known = page_flags(prog, where, wanted, Gaps())
    hosts = wanted[known & ((flags & flag) != 0)]
    return np.isin(frames, hosts)
