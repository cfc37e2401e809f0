# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of AMD's IOMMUs (drivers/iommu/amd), by what the hardware reads of each (``amd_iommu_list``).

The device table of a PCI segment leads to the page tables of each device's domain (AMD I/O
Virtualization Technology specification, 2.2); beside it are queues of commands, events and page
requests, and tables of interrupts. A group keeps the tables of its default domain while another has
its devices, as with VFIO.

Costs a read of the device table (2 MiB at most), and of each table that is not of the last level.

Cannot know: tables of domains that no device has but their groups' default ones; tables in the
format of the CPU (GCR3: those of a process, or ``amd_iommu=pgtbl_v2``); those that a kdump kernel
copied; anything of kernels before v6.0, whose tables are not by PCI segment.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from drgn import Object, Program, container_of
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.holders.holdings import Holder, Holdings
from mmscope.drgn.holders.second_tables import (
    add_page_tables,
    default_domains,
    in_arrays,
    table_entries,
    top_table,
    virtual_of,
)
from mmscope.drgn.reading.kernel_arrays import U64s, distinct
from mmscope.drgn.reading.symbols import has_symbol

MOST_UNITS, MOST_TABLE = 1 << 10, 2 << 20
PAGE = 4096
# Pages of each (drivers/iommu/amd/amd_iommu_types.h): CMD_BUFFER_SIZE, EVT_BUFFER_SIZE,
# PPR_LOG_SIZE; GA_LOG_SIZE; the rest has a page to itself.
BUFFERS = {"cmd_buf": 2, "evt_buf": 2, "ppr_log": 2, "ga_log": 1, "ga_log_tail": 1, "cmd_sem": 1}
NUMBERS = 2
VALID = np.uint64(3)  # DTE_FLAG_V, DTE_FLAG_TV
LEVEL, LEVEL_MASK = np.uint64(9), np.uint64(7)  # DEV_ENTRY_MODE_SHIFT, PM_LEVEL_SHIFT
LARGEST = 6  # level; 7 is a page of a size of its own
INTERRUPTS, INTERRUPT_FRAME = np.uint64(1), np.uint64((1 << 52) - (1 << 6))
INTERRUPT_BYTES = 16  # of an entry (struct irte_ga), of which there are 1 << INTTABLEN
V1 = 1  # PD_MODE_V1


def add_amd_iommus(prog: Program, found: Holdings, kind: int) -> None:
    """Pages by IOMMU and PCI segment; of page tables, which several may have, together."""
    try:
        head = Object(prog, "struct list_head", address=prog.symbol("amd_iommu_list").address)
    except LookupError:
        return
    units = list_for_each_entry("struct amd_iommu", head.address_of_(), "list")
    segments: dict[int, Object] = {}
    for unit in islice(units, MOST_UNITS):
        buffers = [(getattr(unit, name).value_(), pages) for name, pages in BUFFERS.items()]
        addresses, counts = np.array(buffers, np.uint64).T
        found.memory(Holder("IOMMU", f"ivhd{unit.index.value_()}"), kind, addresses, counts)
        segments[unit.pci_seg.value_()] = unit.pci_seg
    if not segments:
        return
    found.memory(Holder("IOMMU", "numbers of domains"), kind, _numbers(prog), NUMBERS)
    parts = [in_arrays(_default_tables(prog))]
    for segment in segments.values():
        entries = _of_segment(segment, found, kind)
        its_levels = entries[:, 0] >> LEVEL & LEVEL_MASK
        translated = ((entries[:, 0] & VALID) == VALID) & (its_levels > 0) & (its_levels <= LARGEST)
        parts.append((virtual_of(prog, entries[translated, 0]), its_levels[translated]))
    add_page_tables(prog, parts, found, kind, _next_levels)


def _next_levels(entries: U64s, _: int) -> U64s:
    """The levels of the tables that entries lead to, which may leave out some; 0: to none."""
    below = entries >> LEVEL & LEVEL_MASK
    leads = ((entries & np.uint64(1)) != 0) & (below <= LARGEST)
    return np.where(leads, below, np.uint64(0))


def _of_segment(segment: Object, found: Holdings, kind: int) -> U64s:
    """The device table of a PCI segment, four words a device; adds what is by segment."""
    prog = segment.prog_
    begin, size = segment.dev_table.value_(), segment.dev_table_size.value_()
    if size > MOST_TABLE:
        found.missing.append(
            f"IOMMUs of AMD: a device table of {size:,} bytes beyond {MOST_TABLE:,}"
        )
        size = MOST_TABLE
    blocks = [(begin, _pages(size))]
    # Of slabs, or vmalloc memory, since their sizes are noted no more.
    for name, noted in (
        ("alias_table", "alias_table_size"),
        ("rlookup_table", "rlookup_table_size"),
        ("irq_lookup_table", "rlookup_table_size"),
    ):
        if hasattr(segment, noted):
            blocks.append((getattr(segment, name).value_(), _pages(getattr(segment, noted))))
    places = np.uint64(begin) + np.arange(0, size, PAGE).astype(np.uint64)
    entries = table_entries(prog, places, 4, found)
    blocks += _interrupt_tables(prog, entries[:, 2])
    addresses, counts = np.array(blocks, np.uint64).T
    holder = Holder("IOMMU", f"PCI segment {segment.id.value_():04x}")
    found.memory(holder, kind, addresses, counts.astype(np.int64))
    return entries


def _interrupt_tables(prog: Program, words: U64s) -> list[tuple[int, int]]:
    """Tables of interrupts and their pages; none where they are objects of a slab cache."""
    if has_symbol(prog, "amd_iommu_irq_cache"):
        return []
    words = distinct(words[(words & INTERRUPTS) != 0])
    pages = [_pages(INTERRUPT_BYTES << (word >> 1 & 15)) for word in words.tolist()]
    return list(zip(virtual_of(prog, words & INTERRUPT_FRAME).tolist(), pages, strict=True))


def _numbers(prog: Program) -> U64s:
    """The bitmap of domains' numbers, where it is not an IDA: pages of MAX_DOMAIN_ID bits."""
    try:
        where = prog.read_u64(prog.symbol("amd_iommu_pd_alloc_bitmap").address)
    except LookupError:
        return np.empty(0, np.uint64)
    return np.array([where], np.uint64)


def _pages(size: Object | int) -> int:
    """Pages of a block that has room for so many bytes: ``get_order()``."""
    return 1 << max((int(size) - 1).bit_length() - 12, 0)


def _default_tables(prog: Program) -> Iterator[tuple[int, int]]:
    """The first table of each group's default domain that has any of this format, and its level."""
    for domain in default_domains(prog):
        ours = container_of(domain, "struct protection_domain", "domain")
        if hasattr(ours, "pd_mode") and ours.pd_mode.value_() != V1:
            continue
        if hasattr(ours, "iop"):
            yield ours.iop.root.value_(), ours.iop.mode.value_()
        else:  # "iommu/amd: Use the generic iommu page table" (789a5913b29c, in v6.19)
            yield top_table(ours.amdv1.amdpt)
