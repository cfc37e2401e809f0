# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Page tables that no process has: of virtual machines (EPT, NPT) and of IOMMUs. Tables of 512
entries, in the direct map, that are followed from their roots down, as the hardware does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from drgn import Object, Program, container_of
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.mm import pfn_to_virt

from mmscope.drgn.holders.holdings import Holder, Holdings
from mmscope.drgn.reading.kernel_arrays import S64s, U64s, distinct
from mmscope.drgn.reading.scattered_reads import read_scattered

MOST_TABLES, MOST_GROUPS = 1 << 24, 1 << 16
LEVELS = 6
PAGING = 1  # __IOMMU_DOMAIN_PAGING
TOP_LEVEL = 7  # PT_TOP_LEVEL_MASK
TABLE = np.dtype([("entries", "<u8", (512,))])
# Of an entry that leads to a table: present (any of read, write, execute); not a large page.
PRESENT, LARGE = np.uint64(7), np.uint64(1 << 7)
FRAME, SHIFT = np.uint64((1 << 52) - 1), np.uint64(12)


def one_level_down(entries: U64s, level: int) -> U64s:
    """The levels of the tables that entries of Intel's formats lead to; 0: to none."""
    leads = ((entries & PRESENT) != 0) & ((entries & LARGE) == 0)
    return np.where(leads, np.uint64(level - 1), np.uint64(0))


def tables_below(
    prog: Program,
    tables: U64s,
    levels: U64s,
    found: Holdings,
    what: str,
    next_levels: Callable[[U64s, int], U64s] = one_level_down,
) -> Iterator[U64s]:
    """
    Tables, and those that they lead to: their addresses, level by level.

    :param tables: virtual addresses; *levels*: of each, 1 the last.
    :param what: they are of, if they are too many.
    :param next_levels: of the tables that entries of a level lead to, 0 for none.
    """
    left = MOST_TABLES
    for level in range(LEVELS, 0, -1):
        here = tables[levels == level]
        tables, levels = tables[levels != level], levels[levels != level]
        left -= len(here)
        if left < 0:
            found.missing.append(f"{what}: more than {MOST_TABLES:,} tables")
            return
        yield here
        if level > 1 and len(here):
            entries = table_entries(prog, here, 1, found).ravel()
            below = next_levels(entries, level)
            leads = (below > 0) & (below < level)
            places, first = np.unique(virtual_of(prog, entries[leads]), return_index=True)
            tables = np.append(tables, places)
            levels = np.append(levels, below[leads][first])


def add_page_tables(
    prog: Program,
    parts: Sequence[tuple[U64s, U64s]],
    found: Holdings,
    kind: int,
    next_levels: Callable[[U64s, int], U64s] = one_level_down,
) -> None:
    """
    Add the page tables of IOMMUs, which several may have, together, as of one holder.

    :param parts: first tables, and their levels; the same one may be in several.
    """
    if not parts:
        return
    roots, first = np.unique(np.concatenate([tables for tables, _ in parts]), return_index=True)
    levels = np.concatenate([levels for _, levels in parts])[first]
    below = tables_below(prog, roots, levels, found, "IOMMUs", next_levels)
    every = np.concatenate([np.empty(0, np.uint64), *below])
    found.memory(Holder("IOMMU", "page tables"), kind, distinct(every), objects=len(roots))


def table_entries(prog: Program, tables: U64s, words: int, found: Holdings) -> U64s:
    """Entries of so many words each, of some tables that can be read."""
    rows, read = read_scattered(prog, tables, TABLE, found.gaps)
    result: U64s = rows["entries"][read].reshape(-1, words)
    return result


def virtual_of(prog: Program, words: U64s) -> U64s:
    """Addresses in the direct map of the frames of :func:`frames_of`."""
    direct = np.uint64(pfn_to_virt(prog, 0).value_())
    return (frames_of(prog, words).astype(np.uint64) << SHIFT) + direct


def default_domains(prog: Program) -> Iterator[Object]:
    """``struct iommu_domain *``: the default one of each group of devices, if it has tables."""
    groups = Object(prog, "struct kset *", address=prog.symbol("iommu_group_kset").address)
    every = list_for_each_entry("struct kobject", groups.list.address_of_(), "entry")
    for kobject in islice(every, MOST_GROUPS):
        domain = container_of(kobject, "struct iommu_group", "kobj").default_domain
        if domain and domain.type.value_() & PAGING:
            yield domain


def in_arrays(tables: Iterable[tuple[int, int]]) -> tuple[U64s, U64s]:
    """First tables and their levels, each as an array."""
    every = np.array(list(tables), np.uint64).reshape(-1, 2)
    return every[:, 0], every[:, 1]


def top_table(table: Object) -> tuple[int, int]:
    """Address and level of the first table of a format of the generic ones (iommu_pt, v6.19)."""
    top = table.common.top_of_table.value_()
    return top & ~TOP_LEVEL, (top & TOP_LEVEL) + 1


def frames_of(prog: Program, words: U64s) -> S64s:
    """Page frames of physical addresses, which may have flags, and the bit of encrypted memory."""
    encrypted = np.uint64(prog["sme_me_mask"].value_() if "sme_me_mask" in prog else 0)
    return ((words & FRAME & ~encrypted) >> SHIFT).astype(np.int64)
