# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of Intel's IOMMUs (drivers/iommu/intel), by what the hardware reads of each
(``dmar_drhd_units``).

The root table leads to context tables, by bus, and these to the page tables of a domain, by device;
in scalable mode to a directory and tables of PASIDs, and these to the page tables (VT-d
specification, chapter 9). Beside them the queue of invalidations, the table of interrupts and the
queue of page requests. A group keeps the tables of its default domain while another domain has its
devices (``iommu_group.default_domain``), as with VFIO.

Costs a read of each table that is not of the last level.

Cannot know: tables of domains that no device has but their groups' default ones; of PASIDs other
than 0, which are a process's page tables or those of a part of a device.
"""

import contextlib
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
from mmscope.drgn.reading.kernel_names import name_in

MOST_UNITS = 1 << 10
P = np.uint64(1)  # present, of each entry
SCALABLE = 1 << 43  # ecap_smts()
INTERRUPT_PAGES, REQUEST_PAGES = 1 << 8, 1 << 4  # INTR_REMAP_PAGE_ORDER, PRQ_ORDER
LEAST_LEVELS = np.uint64(2)  # by an address width (AW, agaw) of 0
# Of a context entry: its type, and CONTEXT_TT_PASS_THROUGH.
TYPE, PASS_THROUGH = np.uint64(3 << 2), np.uint64(2 << 2)
SECOND_LEVEL, FIRST_LEVEL = 2, 1  # PASID_ENTRY_PGTT_SL_ONLY, PASID_ENTRY_PGTT_FL_ONLY


def add_intel_iommus(prog: Program, found: Holdings, kind: int) -> None:
    """Pages by IOMMU; of page tables, which several IOMMUs may have, together."""
    try:
        head = Object(prog, "struct list_head", address=prog.symbol("dmar_drhd_units").address)
    except LookupError:
        return
    parts = []
    units = list_for_each_entry("struct dmar_drhd_unit", head.address_of_(), "list")
    for unit in islice(units, MOST_UNITS):
        if unit.iommu and unit.iommu.root_entry:
            parts.append(_of_unit(unit.iommu, found, kind))
    if parts:
        add_page_tables(prog, [*parts, in_arrays(_default_domains(prog))], found, kind)


def _of_unit(iommu: Object, found: Holdings, kind: int) -> tuple[U64s, U64s]:
    """The first tables of the domains of an IOMMU's devices, and their levels; adds the others."""
    prog = iommu.prog_
    scalable = bool(iommu.ecap.value_() & SCALABLE) and _uses_scalable_mode(prog)
    blocks = [(iommu.root_entry.value_(), 1)]
    if iommu.qi:
        blocks.append((iommu.qi.desc.value_(), 2 if scalable else 1))
    if iommu.ir_table:
        blocks.append((iommu.ir_table.base.value_(), INTERRUPT_PAGES))
    if hasattr(iommu, "prq"):
        blocks.append((iommu.prq.value_(), REQUEST_PAGES))
    roots = np.array([iommu.root_entry.value_()], np.uint64)
    entries = table_entries(prog, roots, 2, found)
    # In scalable mode there is one for each half of a bus.
    halves = entries if scalable else entries[:, :1]
    contexts = _leading_to(prog, halves.ravel())
    entries = table_entries(prog, contexts, 4 if scalable else 2, found)
    entries = entries[(entries[:, 0] & P) != 0]
    blocks += [(address, 1) for address in contexts.tolist()]
    if scalable:
        firsts, more = _of_directories(prog, entries[:, 0], found)
        blocks += more
        its_tables, its_levels = _of_pasids(prog, firsts)
    else:
        entries = entries[(entries[:, 0] & TYPE) != PASS_THROUGH]
        its_tables = virtual_of(prog, entries[:, 0])
        its_levels = (entries[:, 1] & np.uint64(7)) + LEAST_LEVELS
    addresses, counts = np.array(blocks, np.uint64).T
    holder = Holder("IOMMU", name_in(iommu.name.to_bytes_()))
    found.memory(holder, kind, addresses, counts.astype(np.int64))
    return its_tables, its_levels


def _uses_scalable_mode(prog: Program) -> bool:
    """``intel_iommu_sm``; of kernels that have not the variable, the default."""
    with contextlib.suppress(LookupError):
        return bool(prog.read_u32(prog.symbol("intel_iommu_sm").address))
    return True


def _of_directories(
    prog: Program, contexts: U64s, found: Holdings
) -> tuple[U64s, list[tuple[int, int]]]:
    """The entry of PASID 0 of each directory, eight words; and the blocks of all of them."""
    blocks, rows = [], [np.empty((0, 8), np.uint64)]
    for word in distinct(contexts).tolist():
        entries = 1 << (word >> 9 & 7) + 7  # PDTS
        pages = max(entries * 8 >> 12, 1)
        (directory,) = virtual_of(prog, np.array([word], np.uint64)).tolist()
        blocks.append((directory, pages))
        places = np.uint64(directory) + np.arange(pages, dtype=np.uint64) * np.uint64(4096)
        tables = _leading_to(prog, table_entries(prog, places, 1, found)[:entries, 0])
        blocks += [(address, 1) for address in tables.tolist()]
        rows.append(table_entries(prog, tables[:1], 8, found)[:1])
    return np.concatenate(rows), blocks


def _of_pasids(prog: Program, entries: U64s) -> tuple[U64s, U64s]:
    """The first tables of some entries of PASIDs, and their levels."""
    entries = entries[(entries[:, 0] & P) != 0]
    type_ = entries[:, 0] >> np.uint64(6) & np.uint64(7)
    second, first = entries[type_ == SECOND_LEVEL], entries[type_ == FIRST_LEVEL]
    words = np.concatenate([second[:, 0], first[:, 2]])
    widths = (
        second[:, 0] >> np.uint64(2) & np.uint64(7),
        first[:, 2] >> np.uint64(2) & np.uint64(3),
    )
    # A width of 0 is four levels in the first of them.
    levels = (widths[0] + LEAST_LEVELS, widths[1] + np.uint64(4))
    return virtual_of(prog, words), np.concatenate(levels)


def _leading_to(prog: Program, words: U64s) -> U64s:
    """Virtual addresses of the tables that entries lead to, each once, ascending by the entries."""
    present = words[(words & P) != 0]
    _, first = np.unique(present, return_index=True)
    return virtual_of(prog, present[np.sort(first)])


def _default_domains(prog: Program) -> Iterator[tuple[int, int]]:
    """The first table of each group's default domain that has any, and its level."""
    for domain in default_domains(prog):
        ours = container_of(domain, "struct dmar_domain", "domain")
        if hasattr(ours, "pgd"):
            yield ours.pgd.value_(), ours.agaw.value_() + int(LEAST_LEVELS)
        else:  # "iommu/vt-d: Use the generic iommu page table" (d373449d8e97, in v6.19)
            yield top_table(ours.sspt.vtdss_pt)
