# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Meaning of page table entries that map no page: ``swp_entry_t``.

Their type is a number of five bits. The first are swap files; after these come, as far as the
kernel was built with them, poisoned pages, migration entries, device memory, and markers
(include/linux/swap.h). None of these numbers is in debug info: they are counted from where
the swap files end, which is the length of ``swap_info[]``. A kernel without CONFIG_SWAP has the
others all the same, at the same end: there they are counted from the last one down. Without debug
info the length is that up to the next symbol, which may be a few too many: then the functions that
the kernel has say which combination it is.

Costs a few lookups. Cannot know: a kernel whose types are another combination than there
have been; its special entries are then ``OTHER``. So are those that may be one thing or another
(before 6.3), on a kernel without swap, or without debug info where the length is too large.
"""

from collections.abc import Iterable

import numpy as np
from drgn import Program

from mmscope.drgn.opening.constants import constant
from mmscope.drgn.page_tables.page_table_formats import Entries, PageTableFormat
from mmscope.drgn.reading.kernel_arrays import Array, U8s
from mmscope.drgn.reading.symbols import has_symbol

# What an entry of the last level is.
NONE = 0
PAGE = 1
ZERO = 2  # the shared zero page
SPECIAL = 3  # a page that is not counted: pte_special()
SWAP = 4
MIGRATION = 5
DEVICE = 6
MARKER = 7
POISONED = 8
OTHER = 9
HUGETLB = 10  # a part of a hugetlb page that is smaller than a PMD maps (arm64)
KINDS = 11

SWP_TYPES = 32
ALIGNED = 8  # pointers in a cache line, at the begin of which the next symbol may be
# Read, exclusive read, write: since "mm: remember exclusively mapped anonymous pages with
# PG_anon_exclusive" (6c287605fd56, in v5.19). Before, read and write, and no markers after.
MIGRATION_TYPES, MIGRATION_TYPES_BEFORE = 3, 2
# What lies after poison and migration: how many types of device memory, and how many of markers.
# Two for markers were one for markers and one for pages that could not be swapped in, until
# "mm: use pte markers for swap errors" (15520a3f0469, in v6.2), and in v6.1 without PTE_MARKER only
# the latter; "mm: use single SWP_DEVICE_EXCLUSIVE entry type" (c25465eb7630, in v6.15) left three
# of device memory's.
BEHIND = ((0, 1), (0, 2), (3, 1), (4, 1), (4, 2))
# None or two of device memory, and four since "mm: device exclusive memory access" (b756a3b5e7ea,
# in v5.14).
BEHIND_BEFORE = ((0, 0), (2, 0), (4, 0))
# The functions that make device memory exclusive, each as old as its number of types.
DEVICE_FUNCTIONS = {"make_device_exclusive": 3, "make_device_exclusive_range": 4}
# include/linux/swapops.h, the offset of a marker: uffd-wp 1, poisoned 2, guard 4.
MARKER_POISONED = 2
MARKER_BITS = 7


def swap_kinds(prog: Program) -> U8s:
    """The kind of each type of ``swp_entry_t``."""
    exclusive = constant(prog, "PG_anon_exclusive", -1) >= 0
    # mm/memory-failure.c and mm/migrate.c, which a kernel may be built without.
    fixed = [POISONED] if has_symbol(prog, "memory_failure") else []
    if has_symbol(prog, "remove_migration_ptes"):
        fixed += [MIGRATION] * (MIGRATION_TYPES if exclusive else MIGRATION_TYPES_BEFORE)
    behind = BEHIND if exclusive else BEHIND_BEFORE
    try:
        files = prog["swap_info"].type_.unaliased().length or 0
    except LookupError:
        files = 0
    likely = _that_may_be(prog, behind)
    if files:
        rest = SWP_TYPES - files - len(fixed)
        more = {counts: sum(counts) - rest for counts in likely}
        chosen = [counts for counts in likely if more[counts] == 0]
        chosen = chosen or [counts for counts in likely if 0 < more[counts] < ALIGNED]
        chosen = chosen or [counts for counts in behind if sum(counts) == rest]
        layouts = [_layout(fixed, *counts) for counts in chosen]
        # What is known of a combination that there has not been.
        layouts = layouts or [([SWAP] * files + fixed + [OTHER] * SWP_TYPES)[:SWP_TYPES]]
    else:
        layouts = [_layout(fixed, *counts) for counts in likely]
    # Entries have room for larger numbers on some kernels; none of them means anything.
    kinds = np.full(2 * SWP_TYPES, OTHER, np.uint8)
    for type_, may_be in enumerate(zip(*layouts, strict=True)):
        if len(set(may_be)) == 1 and (files or may_be[0] != SWAP):
            kinds[type_] = may_be[0]
    return kinds


def _layout(fixed: list[int], devices: int, markers: int) -> list[int]:
    """All types, the special ones at the end."""
    special = [*fixed, *([DEVICE] * devices), *([MARKER] * markers)]
    return [SWAP] * (SWP_TYPES - len(special)) + special


def _that_may_be(prog: Program, behind: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Counts of types of device memory and markers that fit a kernel's functions and members."""
    behind = list(behind)
    known = [count for name, count in DEVICE_FUNCTIONS.items() if has_symbol(prog, name)]
    # Kernels before v5.14 have device memory without such a function.
    devices = set(known) or {0, 2}
    # Markers are one type where vm_flags is one of two names: `__vm_flags` since "mm: introduce
    # vma->vm_flags wrapper functions" (bc292ab00f6c, in v6.3), `flags` since "mm: introduce VMA
    # flags bitmap type" (9ea35a25d51b, in v6.19).
    one = any(map(prog.type("struct vm_area_struct").has_member, ("flags", "__vm_flags")))
    return [(d, m) for d, m in behind if d in devices and not (one and m > 1)]


def entry_kinds(form: PageTableFormat, kinds: U8s, zero: Entries, entries: Entries) -> U8s:
    """
    The kind of each entry of the last level.

    :param kinds: by :func:`swap_kinds`.
    :param zero: physical addresses of zero pages.
    """
    found = np.full(len(entries), NONE, np.uint8)
    present = form.is_leaf(entries, form.last)
    found[present] = PAGE
    special = np.flatnonzero(present & form.is_special(entries))
    found[special] = SPECIAL
    found[special[np.isin(form.physical(entries[special], form.last), zero)]] = ZERO
    if form.reserved:
        here = np.flatnonzero(present)
        beyond = form.physical(entries[here], form.last) & np.uint64(form.reserved)
        found[here[beyond != 0]] = OTHER
    rest = np.flatnonzero(~present & ~form.is_none(entries))
    if len(rest):
        found[rest] = absent_kinds(form, kinds, entries[rest])
    return found


def absent_kinds(form: PageTableFormat, kinds: U8s, entries: Entries) -> Array:
    """The kinds of entries that are neither none nor present, on any level."""
    types, offsets = form.swap(entries)
    found = kinds[types]
    marker = found == MARKER
    poisoned = (offsets & np.uint64(MARKER_POISONED)) != 0
    # The page that could not be swapped in, in v6.1: its offset is no set of bits.
    poisoned |= (offsets & np.uint64(~MARKER_BITS & (1 << 64) - 1)) != 0
    found[marker & poisoned] = POISONED
    return found
