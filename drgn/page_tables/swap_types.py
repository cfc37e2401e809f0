# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What the entries of a page table that map no page stand for: ``swp_entry_t``.

Their type is a number of five bits. The first are swap files; behind these come, as far as the
kernel was built with them, poisoned pages, migration entries, device memory, and markers
(include/linux/swap.h). None of these numbers is in debug info: they are counted from where
the swap files end, which is the length of ``swap_info[]``.

Costs a few lookups. Cannot know: a kernel whose types are another combination than there
have been; its special entries are then ``OTHER``.
"""

from typing import Any

import numpy as np
from drgn import Program
from numpy.typing import NDArray

from mmscope.drgn.opening.constants import constant
from mmscope.drgn.page_tables.page_table_formats import Entries, PageTableFormat

# What an entry of the last level is.
NONE = 0
PAGE = 1
ZERO = 2  # the shared zero page
SPECIAL = 3  # a page that nobody counts: pte_special()
SWAP = 4
MIGRATION = 5
DEVICE = 6
MARKER = 7
POISONED = 8
OTHER = 9
HUGETLB = 10  # a part of a hugetlb page that is smaller than a PMD maps (arm64)
KINDS = 11

SWP_TYPES = 32
# Read, exclusive read, write: since "mm: remember exclusively mapped anonymous pages with
# PG_anon_exclusive" (6c287605fd56, in v5.19). Before, read and write, and no markers behind: what
# is left is device memory's, none or two, and four since "mm: device exclusive memory access"
# (b756a3b5e7ea, in v5.14).
MIGRATION_TYPES, MIGRATION_TYPES_BEFORE = 3, 2
DEVICE_TYPES_BEFORE = {0: 0, 2: 2, 4: 4}
# Types behind poison and migration: how many of these are device memory's. Two for markers were one
# for markers and one for pages that could not be swapped in, until "mm/swap: convert swapin error
# into a pte marker" (v6.2) and in v6.1 without PTE_MARKER only the latter; "mm: allow compound zone
# device pages" (2025) left three of device memory's four.
DEVICE_TYPES = {1: 0, 2: 0, 4: 3, 5: 4, 6: 4}
# include/linux/swapops.h, the offset of a marker: uffd-wp 1, poisoned 2, guard 4.
MARKER_POISONED = 2
MARKER_BITS = 7


def swap_kinds(prog: Program) -> NDArray[np.uint8]:
    """
    What each type of ``swp_entry_t`` is.

    :raises LookupError: the kernel has no swap at all.
    """
    files = prog["swap_info"].type_.unaliased().length or 0
    # Entries have room for larger numbers on some kernels; none of them means anything.
    kinds = np.full(2 * SWP_TYPES, OTHER, np.uint8)
    kinds[:files] = SWAP
    try:
        prog.symbol("memory_failure")
        poisoned = 1
    except LookupError:
        poisoned = 0
    kinds[files : files + poisoned] = POISONED
    start = files + poisoned
    exclusive = constant(prog, "PG_anon_exclusive", -1) >= 0
    migration = MIGRATION_TYPES if exclusive else MIGRATION_TYPES_BEFORE
    kinds[start : start + migration] = MIGRATION
    start += migration
    device_types = DEVICE_TYPES if exclusive else DEVICE_TYPES_BEFORE
    if (rest := SWP_TYPES - start) in device_types:
        device = device_types[rest]
        kinds[start : start + device] = DEVICE
        kinds[start + device : SWP_TYPES] = MARKER
    return kinds


def entry_kinds(
    form: PageTableFormat, kinds: NDArray[np.uint8], zero: Entries, entries: Entries
) -> NDArray[np.uint8]:
    """
    What each entry of the last level is.

    :param kinds: by :func:`swap_kinds`.
    :param zero: physical addresses of zero pages.
    """
    found = np.full(len(entries), NONE, np.uint8)
    present = form.is_leaf(entries, form.last)
    found[present] = PAGE
    special = np.flatnonzero(present & form.is_special(entries))
    found[special] = SPECIAL
    found[special[np.isin(form.physical(entries[special], form.last), zero)]] = ZERO
    rest = np.flatnonzero(~present & ~form.is_none(entries))
    if len(rest):
        found[rest] = absent_kinds(form, kinds, entries[rest])
    return found


def absent_kinds(form: PageTableFormat, kinds: NDArray[np.uint8], entries: Entries) -> NDArray[Any]:
    """What entries that are neither none nor present are, on any level."""
    types, offsets = form.swap(entries)
    found = kinds[types]
    marker = found == MARKER
    poisoned = (offsets & np.uint64(MARKER_POISONED)) != 0
    # The page that could not be swapped in, in v6.1: its offset is no set of bits.
    poisoned |= (offsets & np.uint64(~MARKER_BITS & (1 << 64) - 1)) != 0
    found[marker & poisoned] = POISONED
    return found
