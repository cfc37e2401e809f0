# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The struct pages of mapped pages: how many mappings share each, added up by process, as
``smaps_account()`` (fs/proc/task_mmu.c) does.

A page that is mapped n times counts in each process with the n-th part of its size (PSS); one that
is mapped once is the process's own (USS). A process that maps it twice shares it, for the kernel
as here.

Costs reading the struct page of each mapped page, in bulk: 2 million a second. Memory is
bounded by the chunk of page tables.

Pages that are swapped out are taken by how many share their slot, as SwapPss has them
(``swap_counts``).

Cannot know: mappings of pages in large folios, where the kernel does not count them
(CONFIG_NO_PAGE_MAPCOUNT, since v6.15): they are taken for the process's own, and counted in
``numbers``.
"""

from collections import Counter

import numpy as np
from drgn import FaultError, Program, offsetof, sizeof

from mmscope.drgn.opening.constants import flag, kernel_byte
from mmscope.drgn.page_tables.swap_counts import SwapCounts
from mmscope.drgn.reading.kernel_arrays import Array, Bools, Gaps, S64s, U8s, U64s
from mmscope.drgn.reading.mem_sections import page_addresses, valid_page_ranges
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.struct_pages import compound_info_is_mask, page_dtype

PSS_SHIFT = 12  # fs/proc/task_mmu.c
LAST_ERROR = np.uint64((1 << 64) - 4096)  # from which on a pointer is an error
TOGETHER = 1 << 15  # pages that are looked at at once: 300 bytes for each

KINDS = ("anon", "file", "shmem")
# What is added up for each process: pages, and parts of bytes by PSS_SHIFT.
# Unique pages are those that are mapped once.
SUMS = (
    *(f"{what}_{kind}" for what in ("pages", "unique", "pss") for kind in KINDS),
    *("unread", "pss_locked", "pss_swap", "unread_swap", "unique_swap", "unique_huge"),
    "unique_cached",  # in the swap cache, of the unique slots
)

# Some struct pages; the heads of their folios (themselves, where they are no tails), the addresses
# of the heads, and which could be read, with their heads.
Read = tuple[Array, Array, U64s, Bools]


class MappedPages:
    """
    Takes mapped pages, of any walk.

    :ivar sums: by SUMS, a number for each process.
    :ivar numbers: "uncounted": mappings of pages whose mappings the kernel does not count;
        "absurd": pages with more mappings than there are entries; "headless": tails of what is no
        large folio, and pages on an LRU list that are of no file and not anonymous.
    :ivar entries: that all page tables together have at most.
    :ivar swap: who shares what is swapped out, or why that is unknown.
    :raises LookupError: the kernel's layout is unknown.
    """

    def __init__(
        self, prog: Program, processes: int, sums: dict[str, S64s], numbers: Counter[str]
    ) -> None:
        self.prog, self.sums, self.numbers, self.gaps = prog, sums, numbers, Gaps()
        self.swap: SwapCounts | str
        self.entries: int | None = None
        self.most_anon = 0
        page = prog.type("struct page")
        sums.update({name: np.zeros(processes, np.int64) for name in SUMS})
        self.page, self.size = int(prog["PAGE_SIZE"].value_()), sizeof(page)
        self.dtype = page_dtype(prog, ("flags", "mapcount", "refcount", "mapping", "tail"))
        self.masked = compound_info_is_mask(prog)
        self.top = kernel_byte(prog) >> 4
        try:
            self.swap = SwapCounts(prog, self.gaps)
        except (FaultError, LookupError) as error:
            self.swap = str(error)
        self.ranges = np.array(valid_page_ranges(prog), np.uint64).reshape(-1, 3)
        self.head, self.swap_backed, self.lru = (
            np.uint64(flag(prog, name)) for name in ("PG_head", "PG_swapbacked", "PG_lru")
        )
        # "mm,thp,rmap: simplify compound page mapcounts" (cb67f4282bf9, in v6.2) dropped the flag.
        # Before, a file's page counted the mappings of its huge page too, and an anonymous one with
        # the flag one more.
        self.double = np.uint64(flag(prog, "PG_double_map"))
        self.second = np.dtype(
            {
                "names": ["entire", "flags"],
                "formats": ["<i4", "<u8"],
                "offsets": [_entire_mapcount(prog), offsetof(page, "flags")],
                "itemsize": self.size,
            }
        )

    def take(self, owners: S64s, pfns: U64s, locked: Bools) -> None:
        """
        Base pages that are mapped.

        :param owners: the process that maps each.
        :param locked: it does so by a VMA with VM_LOCKED.
        """
        for first in range(0, len(pfns), TOGETHER):
            here = slice(first, first + TOGETHER)
            self._take(owners[here], pfns[here], locked[here])

    def _take(self, owners: S64s, pfns: U64s, locked: Bools) -> None:
        unique, back = np.unique(pfns, return_inverse=True)
        pages, heads, addresses, known = self._read(unique)
        times, uncounted = self._mapcounts(pages, heads, addresses, known)
        times, kinds, known = times[back], self._kinds(heads)[back], known[back]
        self.numbers["uncounted"] += int(uncounted[back].sum())
        if self.entries is not None:
            # Page types, in the same place, are the last 1 << 28 numbers (include/linux/
            # page-flags.h).
            absurd = (times > self.entries) | (pages["mapcount"][back] < -(1 << 28))
            # An address space maps an anonymous page once, unless KSM merged it (page-flags.h).
            absurd |= ((heads["mapping"][back] & np.uint64(3)) == 1) & (times > self.most_anon)
            self.numbers["absurd"] += int((absurd & known).sum())
        self._add("unread", owners[~known])
        self._count(owners[known], times[known], kinds[known], locked[known], 1)

    def take_huge(self, owners: S64s, pfns: U64s, locked: Bools, pages: int) -> None:
        """
        Huge pages that are mapped as a whole.

        :param pages: how many base pages each has.
        """
        _, heads, _, known = self._read(pfns)
        # A folio with one reference is mapped just once.
        alone = known & (heads["refcount"] == 1)
        self._add("unique_huge", owners[alone], pages)
        kinds = self._kinds(heads)
        times = np.ones(len(pfns), np.int64)
        self._count(owners[alone], times[alone], kinds[alone], locked[alone], pages)
        rest = np.flatnonzero(~alone)
        step = max(TOGETHER // pages, 1)
        each = np.arange(pages, dtype=np.uint64)
        for first in range(0, len(rest), step):
            here = rest[first : first + step]
            self.take(
                np.repeat(owners[here], pages),
                (pfns[here, None] + each).ravel(),
                np.repeat(locked[here], pages),
            )

    def take_swap(self, owners: S64s, types: U8s, offsets: U64s) -> None:
        """Pages that are swapped out, by their ``swp_entry_t``."""
        if not len(owners) or isinstance(self.swap, str):
            return
        times, known, cached = self.swap.of(types, offsets)
        part = (self.page << PSS_SHIFT) // np.maximum(times, 1)
        self._add("pss_swap", owners[known], part[known])
        self._add("unique_swap", owners[known & (times == 1)])
        self._add("unique_cached", owners[known & cached & (times == 1)])
        self._add("unread_swap", owners[~known])

    def _read(self, pfns: U64s) -> Read:
        """The struct pages of page frames."""
        addresses, known = page_addresses(self.ranges, pfns, self.size)
        pages = np.zeros(len(pfns), self.dtype)
        pages[known], read = read_scattered(self.prog, addresses[known], self.dtype, self.gaps)
        known[known] = read
        heads, words = pages.copy(), pages["tail"]
        tails = np.flatnonzero(known & ((words & np.uint64(1)) != 0))
        words = words[tails]
        addresses[tails] = addresses[tails] & words if self.masked else words - np.uint64(1)
        heads[tails], known[tails] = read_scattered(
            self.prog, addresses[tails], self.dtype, self.gaps
        )
        # mapping is an address of the kernel's, whose last three bits say what of, until a page is
        # mapped no more. The first four bits of such an address are those of all, whatever tags it
        # has.
        mapping = heads["mapping"]
        owned = (mapping >> np.uint64(60) == self.top) & (mapping & np.uint64(7) != 2)
        owned &= (mapping & np.uint64(4) == 0) & (mapping < LAST_ERROR)
        lost = (heads["flags"] & self.lru != 0) & ~owned
        lost[tails] |= heads["flags"][tails] & self.head == 0
        self.numbers["headless"] += int(np.count_nonzero(lost & known))
        # What is mapped and on an LRU list has a reference; of a single page the mapping counts.
        unheld = heads["refcount"].astype(np.int64) <= 0
        single = (heads["flags"] & self.head) == 0
        unheld |= single & (pages["mapcount"].astype(np.int64) < 0)
        unheld &= known & (heads["flags"] & self.lru != 0)
        self.numbers["absurd"] += int(np.count_nonzero(unheld))
        return pages, heads, addresses, known

    def _mapcounts(
        self, pages: Array, heads: Array, addresses: U64s, known: Bools
    ) -> tuple[S64s, Bools]:
        """
        Mappings of each page, 1 where a folio has one reference, and which of them the kernel does
        not count: ``folio_precise_page_mapcount()`` (fs/proc/internal.h), ``page_mapcount()``
        before.

        :param known: those whose count cannot be read are not known any more.
        """
        # Below zero: a page with a type, which has no such count.
        times: S64s = np.maximum(pages["mapcount"].astype(np.int64) + 1, 0)
        large = np.flatnonzero(known & ((heads["flags"] & self.head) != 0))
        second, known[large] = read_scattered(
            self.prog, addresses[large] + np.uint64(self.size), self.second, self.gaps
        )
        whole = second["entire"].astype(np.int64) + 1
        if self.double:
            whole -= (second["flags"] & self.double) != 0
            whole[(heads["mapping"][large] & np.uint64(1)) == 0] = 0
        times[large] += whole
        uncounted = np.zeros(len(times), np.bool_)
        uncounted[large] = (times[large] < 1) & known[large] & (heads["refcount"][large] != 1)
        times[heads["refcount"] == 1] = 1
        return times, uncounted

    def _kinds(self, heads: Array) -> S64s:
        """The kinds of folios, as indexes of KINDS."""
        backed = (heads["flags"] & self.swap_backed) != 0
        anon = (heads["mapping"] & np.uint64(1)) != 0
        return np.where(anon, 0, np.where(backed, KINDS.index("shmem"), KINDS.index("file")))

    def _count(self, owners: S64s, times: S64s, kinds: S64s, locked: Bools, pages: int) -> None:
        """Add up mappings of *pages* pages each."""
        part = pages * ((self.page << PSS_SHIFT) // np.maximum(times, 1))
        for at, kind in enumerate(KINDS):
            here = kinds == at
            self._add(f"pages_{kind}", owners[here], pages)
            self._add(f"unique_{kind}", owners[here & (times < 2)], pages)
            self._add(f"pss_{kind}", owners[here], part[here])
        self._add("pss_locked", owners[locked], part[locked])

    def total(self, what: str) -> S64s:
        """The pages, the unique ones, or the PSS of all kinds together."""
        return sum((self.sums[f"{what}_{kind}"] for kind in KINDS), np.zeros(1, np.int64))

    def _add(self, name: str, owners: S64s, amounts: S64s | int = 1) -> None:
        np.add.at(self.sums[name], owners, amounts)


def _entire_mapcount(prog: Program) -> int:
    """Offset in the second page of a large folio of its count of mappings as a whole."""
    page = prog.type("struct page")
    if page.has_member("compound_mapcount"):
        return int(offsetof(page, "compound_mapcount"))
    # The word of struct page, in 6.1 and before, is struct folio's own in 6.12 and later.
    return int(offsetof(prog.type("struct folio"), "_entire_mapcount") - sizeof(page))
