# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The array of all ``struct page`` of a kernel with SPARSEMEM_VMEMMAP: where it is, the flags of some
of its pages, and how long they take to be initialised.

The estimate is struct pages times what one costs. "Minimizing struct page overhead" (Joao Martins,
2021) measured 268 to 358 ms for 128 GiB of persistent memory in pages of 4 KiB, 33,554,432 struct
pages, and 78 to 100 ms in pages of 2 MiB, of whose 512 struct pages 128 are initialised: 8.0 to
11.9 ns each, by one CPU. The same gives 0.1 to 0.2 ms for pages of 1 GiB, as it does (less than
1 ms).

The log has what a kernel measured itself, in its ticks of 1 to 10 ms: a line for each range of a
device (``memmap_init_zone_device()``; 6.1 shows it, 6.12 and later only with ``dyndbg``), and one
for each node whose struct pages were left for later while it booted (``deferred_init_memmap()``).

Costs a look at each ``struct mem_section``; of flags, a read for each stretch of pages.

Cannot know: which page frames the array lies on, which ``vmemmap`` reads; what the log had when its
end met its beginning.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from drgn import Program, sizeof
from numpy.typing import NDArray

from mmscope.drgn.opening.constants import flag
from mmscope.drgn.page_tables.page_table_formats import Entries
from mmscope.drgn.reading.kernel_arrays import Bools, Gaps, S64s, distinct
from mmscope.drgn.reading.mem_sections import Sections, present_sections
from mmscope.drgn.reading.scattered_reads import read_members
from mmscope.drgn.reading.struct_pages import COLUMNS, flag_fields
from mmscope.drgn.text.kernel_log import LogRecord

NS_PER_STRUCT_PAGE = (8.0, 11.9)
DEVICE = re.compile(r"memmap_init_zone_device initialised ([0-9]{1,18}) pages in ([0-9]{1,9})ms")
NODE = re.compile(r"node ([0-9]{1,6}) deferred pages initialised in ([0-9]{1,9})ms")

# An entry of the page tables that maps struct pages. Arrays of them ascend by offset.
LEAF = np.dtype(
    [
        ("offset", "<i8"),  # bytes from the base of the array
        ("frame", "<i8"),  # the first page frame that it leads to
        ("size", "<i8"),  # bytes that it maps
        ("writable", "?"),
        ("reused", "?"),  # a PTE whose frame an entry at a lower address leads to as well
    ]
)
Leaves = NDArray[np.void]


class Frames(NamedTuple):
    """Page frames that an array of the kernel's lies on, and those of its page tables."""

    starts: S64s
    sizes: S64s  # pages from each of the starts on
    tables: S64s
    unreadable_bytes: int = 0  # of tables

    @property
    def pages(self) -> int:
        """Without the tables."""
        return int(self.sizes.sum())


NO_FRAMES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Memmap:
    """The array of struct pages: its place and its shape."""

    base: int  # address of the struct page of page frame 0
    page_bytes: int  # sizeof(struct page)
    page_shift: int
    sections: Sections

    @property
    def section_bytes(self) -> int:
        """Bytes of the struct pages of a section."""
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


def page_flags(prog: Program, where: Memmap, pfns: S64s, gaps: Gaps) -> tuple[Entries, Bools]:
    """``page.flags`` of some pages, and which could be read."""
    addresses = np.uint64(where.base) + pfns.astype(np.uint64) * np.uint64(where.page_bytes)
    columns = {"flags": COLUMNS["flags"]}
    rows, known = read_members(prog, addresses, prog.type("struct page"), columns, gaps)
    return rows["flags"], known


def self_hosted(prog: Program, where: Memmap, frames: S64s) -> Bools:
    """
    Mask of those frames of the vmemmap that lie in the hot-added memory that they describe
    (``PG_vmemmap_self_hosted``: memory_hotplug.memmap_on_memory).
    """
    hosted = np.uint64(flag(prog, "PG_vmemmap_self_hosted"))
    if not hosted:
        return np.zeros(len(frames), np.bool_)
    wanted = distinct(frames[frames >= 0])
    flags, known = page_flags(prog, where, wanted, Gaps())
    return np.isin(frames, wanted[known & ((flags & hosted) != 0)])


def estimate_ms(struct_pages: int) -> tuple[float, float]:
    """At least and at most, by :data:`NS_PER_STRUCT_PAGE`."""
    low, high = NS_PER_STRUCT_PAGE
    return struct_pages * low / 1e6, struct_pages * high / 1e6


def logged_times(records: Iterable[LogRecord]) -> tuple[dict[int, list[int]], dict[int, int]]:
    """
    Initialisation times in the kernel's log, in ms: of devices' ranges by the number of their
    pages, in the order of the log; of deferred struct pages by node.
    """
    devices: dict[int, list[int]] = {}
    nodes = {}
    for record in records:
        if line := DEVICE.search(record.text):
            devices.setdefault(int(line[1]), []).append(int(line[2]))
        elif line := NODE.search(record.text):
            nodes[int(line[1])] = int(line[2])
    return devices, nodes
