# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every page of RAM by what it is used for: the consumer of the struct page pass that counts them.

A page is of the kind that its struct page says (``page_kinds``); where that says nothing, of the
kind that its place says (``page_ranges``). Tails are of their head's kind, the pages of a free
block of its first page's. Each present page is counted once.

Pages without a reference and on no list are kept apart until the pass is over: the per-CPU lists
are then known, and what follows a page in use, up to the next power of two that it is aligned to,
is the rest of a block that was allocated without ``__GFP_COMP``.

Memory: the sums; 8 bytes for a page without a reference, up to :data:`MAX_KEPT`.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from drgn import Program, sizeof
from numpy.typing import NDArray

from mmscope.drgn.free.free_lists import max_order
from mmscope.drgn.ledger.file_pages import FilePages
from mmscope.drgn.ledger.page_kinds import (
    BOOT,
    BOOT_PERCPU,
    COMPOUND,
    CRASH,
    FREE,
    IMAGE,
    IN_USE,
    KERNEL_TABLE,
    KINDS,
    NO_HEAD,
    NO_REFERENCE,
    PAGE_POOL,
    PER_CPU,
    POISONED,
    RECLAIMABLE,
    ROOT_TABLE,
    SLAB,
    TABLE,
    TAIL_OF_BLOCK,
    UNACCEPTED,
    UNINITIALISED,
    PageKinds,
)
from mmscope.drgn.ledger.page_ranges import PageRanges, spread
from mmscope.drgn.owners.slab_caches import read_caches
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.struct_pages import (
    FlagFields,
    PageChunk,
    compound_info_is_mask,
    flag_fields,
)

MAX_KEPT = 8 << 20  # pages without a reference
MAX_SIGNATURES = 4096  # kinds of unexplained pages
EXAMPLES = 3
# What no struct page's flags are: __init_single_page() was not called yet, and DEBUG_VM filled it.
NOT_INITIALISED = np.uint64((1 << 64) - 1)
# Kinds that the place of a page may explain.
OPEN = np.zeros(256, np.bool_)
OPEN[[IN_USE, COMPOUND, NO_REFERENCE, BOOT]] = True
# The class of each kind, as a number.
OWNER = np.full(256, -1, np.int64)
OWNER[: len(KINDS)] = [[each.owner for each in KINDS].index(kind.owner) for kind in KINDS]
# Places of reserved pages only.
OF_BOOT = np.zeros(256, np.bool_)
OF_BOOT[[IMAGE, BOOT_PERCPU, CRASH]] = True
MOST_REFERENCES = 15  # that are told apart
# The kinds of a block's first page, and of the pages behind it that have no reference.
TAIL_OF = np.full(256, NO_REFERENCE, np.int64)
TAIL_OF[IN_USE] = TAIL_OF_BLOCK
TAIL_OF[[TABLE, ROOT_TABLE, KERNEL_TABLE, PAGE_POOL]] = TABLE, ROOT_TABLE, KERNEL_TABLE, PAGE_POOL
# Of a page without a reference: the page frame, its zone, and the kind of the page before.
PFN_AT, ZONE_AT, ZONE_MASK = 21, 8, (1 << 13) - 1


# What unexplained pages look like: kind, zone index, page flags, references (at most
# MOST_REFERENCES), order of the compound page or -1, and bits of memcg_data (CHARGED).
Signature = tuple[int, ...]
KMEM, PAGE_OF_CGROUP = 2, 4  # charged to a memory cgroup: as kernel memory, or as a page


@dataclass
class Unexplained:
    """Pages of a signature."""

    pages: int = 0
    examples: list[int] = field(default_factory=list)  # page frames of heads


class LedgerPages:
    """
    The consumer.

    :param ram: the pages that are RAM, of any kind but 0.
    :param owned: the pages that are explained by where they are.
    """

    def __init__(self, prog: Program, ram: PageRanges, owned: PageRanges) -> None:
        self.kinds = PageKinds(prog)
        self.fields: FlagFields = flag_fields(prog)
        self.ram, self.owned = ram, owned
        self.memcg = prog.type("struct page").has_member("memcg_data")
        self.columns = (*self.kinds.columns, "slab_cache", *(("memcg",) if self.memcg else ()))
        self.masked = compound_info_is_mask(prog)
        self.size = sizeof(prog.type("struct page"))
        self.max_order = max_order(prog)
        self.flag_mask = np.uint64((1 << self.fields.zone_shift) - 1)
        # Room for whatever the bits of a damaged page say.
        nodes = self.fields.node_mask + 1
        self.zones = nodes * self.fields.zones_per_node + self.fields.zone_mask + 1
        caches, _ = read_caches(prog)
        reclaimable = [cache.address for cache in caches if cache.reclaimable]
        self.reclaimable = np.array(sorted(reclaimable), np.uint64)
        self.files = FilePages(prog)
        self.pages = np.zeros(len(KINDS) * self.zones, np.int64)  # present, by kind and zone
        self.absent = np.zeros(self.zones, np.int64)  # that have a struct page, but are no RAM
        self.reserved = np.zeros(self.zones, np.int64)  # present, with PG_reserved, of any kind
        self.unexplained: dict[Signature, Unexplained] = {}
        self.other_signatures = 0  # pages of more signatures than are kept
        self.disputed: Counter[tuple[int, int]] = Counter()  # by (struct page's, place's) kind
        self.kept: list[NDArray[np.int64]] = []  # page frames without a reference
        self.kept_pages = 0
        self._free_until, self._free_kind = 0, FREE
        self._open_head = (-1, NO_HEAD)  # page frame and kind of a head that may go on
        self._before = (-1, NO_REFERENCE)  # the page behind the last chunk, and TAIL_OF's key

    def take(self, chunk: PageChunk) -> None:
        flags = np.ascontiguousarray(chunk["flags"])
        kinds = self.kinds.of(chunk, flags)
        buddies = np.flatnonzero(kinds == FREE)
        slabs = np.flatnonzero(kinds == SLAB)
        found = find(self.reclaimable, chunk["slab_cache"][slabs]) >= 0
        kinds[slabs[found]] = RECLAIMABLE
        kinds[flags == NOT_INITIALISED] = UNINITIALISED
        heads = self._heads(chunk, kinds)
        place = self.owned.within(chunk.start_pfn, len(chunk))
        self._explain(kinds, place)
        if self.kinds.poison:
            kinds[((flags & self.kinds.poison) != 0) & (kinds != UNINITIALISED)] = POISONED
        self._free_blocks(chunk, kinds, buddies)
        zones = self.fields.zone_index(flags)
        present = self.ram.within(chunk.start_pfn, len(chunk)) != 0
        self.absent += np.bincount(zones[~present], minlength=self.zones)[: self.zones]
        reserved = present & ((flags & self.kinds.reserved) != 0)
        self.reserved += np.bincount(zones[reserved], minlength=self.zones)[: self.zones]
        keys = kinds.astype(np.int64) * self.zones + zones
        self.pages += np.bincount(keys[present], minlength=len(self.pages))
        self.files.take(chunk, flags, kinds, heads, present)
        here = np.flatnonzero(present & (kinds == NO_REFERENCE))
        self._keep(chunk, kinds, zones, here)
        here = np.flatnonzero(present & np.isin(kinds, (IN_USE, COMPOUND, NO_HEAD)))
        self._look_at(chunk, flags, kinds, zones, heads, here)

    def _heads(self, chunk: PageChunk, kinds: NDArray[np.uint8]) -> NDArray[np.int64]:
        """
        Give tails the kind of their head.

        :return: the place of each page's head in the chunk, its own place where it is none's tail;
            -1 where the head is not in the chunk.
        """
        heads = np.arange(len(chunk))
        words = chunk["tail"]
        tails = np.flatnonzero((words & np.uint64(1)) != 0)
        tails = tails[kinds[tails] != UNINITIALISED]
        if len(tails):
            address = np.uint64(chunk.address)
            if self.masked:
                own = address + tails.astype(np.uint64) * np.uint64(self.size)
                found = own & words[tails]
            else:
                found = words[tails] - np.uint64(1)
            # Unsigned: what lies below the chunk is far above it.
            offset = found - address
            inside = (offset < np.uint64(len(chunk) * self.size)) & (
                offset % np.uint64(self.size) == 0
            )
            at = np.where(inside, offset // np.uint64(self.size), 0).astype(np.int64)
            at = np.where(inside & (at < tails), at, -1)
            heads[tails] = at
            kinds[tails] = np.where(at >= 0, kinds[at], NO_HEAD)
            outside = tails[at < 0]
            if len(outside):
                # Head and tails are neighbours: those of a head in an earlier chunk come first.
                pfn, kind = self._open_head
                behind = (address - found[at < 0]) // np.uint64(self.size)
                ours = chunk.start_pfn - behind.astype(np.int64) == pfn
                kinds[outside[ours]] = kind
        self._remember(chunk, kinds, heads)
        return heads

    def _remember(
        self, chunk: PageChunk, kinds: NDArray[np.uint8], heads: NDArray[np.int64]
    ) -> None:
        """The head that the next chunk may go on with."""
        last = int(heads[-1])
        if last >= 0:
            self._open_head = chunk.start_pfn + last, int(kinds[last])

    def _explain(self, kinds: NDArray[np.uint8], place: NDArray[np.uint8]) -> None:
        """Pages whose struct pages say nothing are of the kind that their place says."""
        owned = np.flatnonzero(place)
        if not len(owned):
            return
        open_ = OPEN[kinds[owned]]
        # What was given to the page allocator since boot is the image's no longer.
        open_ &= ~OF_BOOT[place[owned]] | (kinds[owned] == BOOT)
        kinds[owned[open_]] = place[owned[open_]]
        # Of what has two owners the struct page is believed.
        other = owned[~open_ & ~OF_BOOT[place[owned]]]
        other = other[OWNER[kinds[other]] != OWNER[place[other]]]
        for pair, count in zip(
            *np.unique(kinds[other].astype(np.int64) << 8 | place[other], return_counts=True),
            strict=True,
        ):
            self.disputed[int(pair) >> 8, int(pair) & 255] += int(count)

    def _free_blocks(
        self, chunk: PageChunk, kinds: NDArray[np.uint8], buddies: NDArray[np.int64]
    ) -> None:
        """The pages of free blocks; a block may begin in one chunk and end in the next."""
        end = chunk.start_pfn + len(chunk)
        if self._free_until > chunk.start_pfn:
            kinds[: self._free_until - chunk.start_pfn] = self._free_kind
        whole = np.flatnonzero(kinds == UNACCEPTED)
        if not len(buddies) and not len(whole):
            return
        orders = chunk["private"][buddies]
        # Of what is damaged the first page is free, as far as is known. A block is aligned.
        sound = orders <= self.max_order
        orders = np.where(sound, orders, 0).astype(np.int64)
        orders[((chunk.start_pfn + buddies) & ((1 << orders) - 1)) != 0] = 0
        for starts, sizes, kind in (
            (whole, np.full(len(whole), 1 << self.max_order), UNACCEPTED),
            (buddies, 1 << orders, FREE),
        ):
            if not len(starts):
                continue
            until = int((starts + sizes).max()) + chunk.start_pfn
            kinds[spread(starts, np.minimum(sizes, len(chunk) - starts))] = kind
            if until > end:
                self._free_until, self._free_kind = until, kind

    def _keep(
        self,
        chunk: PageChunk,
        kinds: NDArray[np.uint8],
        zones: NDArray[np.int64],
        here: NDArray[np.int64],
    ) -> None:
        """
        Keep the pages without a reference: page frame, zone, and the kind of the page before, if a
        block may begin there.
        """
        pfn, kind = self._before
        first = kind if pfn == chunk.start_pfn else NO_REFERENCE
        last = np.array([len(chunk) - 1])
        self._before = chunk.start_pfn + len(chunk), int(self._begins(chunk, kinds, last)[0])
        self.kept_pages += len(here)
        if self.kept_pages > MAX_KEPT:
            self.kept = []
        if not len(here) or self.kept_pages > MAX_KEPT:
            return
        previous = self._begins(chunk, kinds, np.maximum(here - 1, 0))
        before = np.where(here > 0, previous, first)
        self.kept.append((chunk.start_pfn + here) << PFN_AT | zones[here] << ZONE_AT | before)

    def _begins(
        self, chunk: PageChunk, kinds: NDArray[np.uint8], at: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The kind of a block without ``__GFP_COMP`` that may begin at each of some pages."""
        compound = (chunk["flags"][at] & self.kinds.head) != 0
        compound |= (chunk["tail"][at] & np.uint64(1)) != 0
        return np.where(compound, NO_REFERENCE, kinds[at]).astype(np.int64)

    def settle(self, pfns: NDArray[np.int64], orders: NDArray[np.int64]) -> None:
        """
        Tell the pages without a reference apart, after the pass.

        :param pfns: of the blocks on per-CPU lists; *orders*: theirs.
        """
        kept = np.sort(np.concatenate([np.empty(0, np.int64), *self.kept]))
        self.kept = []
        listed = np.sort(spread(pfns, np.int64(1) << orders))
        on_list = find(listed, kept >> PFN_AT) >= 0
        self._move(kept[on_list], np.full(int(on_list.sum()), PER_CPU))
        rest = kept[~on_list]
        numbers = rest >> PFN_AT
        # Pages that follow each other, and the page before the first of them.
        starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
        run = np.repeat(starts, np.diff(np.append(starts, len(rest))))
        head = numbers[run] - 1
        kinds = TAIL_OF[rest[run] & 0xFF]
        order = np.frexp((numbers - head).astype(np.float64))[1].astype(np.int64)
        aligned = (head & ((np.int64(1) << order) - 1)) == 0
        kinds = np.where(aligned & (order <= self.max_order), kinds, NO_REFERENCE)
        self._move(rest, kinds)
        for kind in (TAIL_OF_BLOCK, NO_REFERENCE):
            here = kinds == kind
            zones = rest[here] >> ZONE_AT & ZONE_MASK
            for zone in np.unique(zones).tolist():
                found = numbers[here][zones == zone]
                first = (head[here][zones == zone] if kind == TAIL_OF_BLOCK else found)[:1]
                self.unexplained[kind, zone, 0, 0, -1, 0] = Unexplained(
                    len(found), [int(each) for each in first]
                )

    def _move(self, words: NDArray[np.int64], to: NDArray[np.int64]) -> None:
        """Pages that were counted as without a reference are of other kinds."""
        zones = words >> ZONE_AT & ZONE_MASK
        self.pages -= np.bincount(NO_REFERENCE * self.zones + zones, minlength=len(self.pages))
        self.pages += np.bincount(to * self.zones + zones, minlength=len(self.pages))

    def _look_at(
        self,
        chunk: PageChunk,
        flags: NDArray[np.uint64],
        kinds: NDArray[np.uint8],
        zones: NDArray[np.int64],
        heads: NDArray[np.int64],
        here: NDArray[np.int64],
    ) -> None:
        """Tell unexplained pages apart by what their heads look like."""
        if not len(here):
            return
        known = heads[here] >= 0
        head = np.where(known, heads[here], here)
        compound = (flags[head] & self.kinds.head) != 0
        second = np.minimum(head + 1, len(chunk) - 1)
        order = np.where(compound, (chunk["order"][second] & 0xFF).astype(np.int64), -1)
        references = np.clip(chunk["refcount"][head].astype(np.int64), 0, MOST_REFERENCES)
        charged = np.zeros(len(here), np.int64)
        if self.memcg:
            word = chunk["memcg"][head]
            charged = np.where(word != 0, np.where(word & np.uint64(2), KMEM, PAGE_OF_CGROUP), 0)
        signature = np.stack(
            [
                kinds[here].astype(np.int64),
                zones[here],
                (flags[head] & self.flag_mask).astype(np.int64),
                references,
                np.where(known, order, -1),
                charged,
            ],
            axis=1,
        )
        unique, first, back = np.unique(signature, axis=0, return_index=True, return_inverse=True)
        for row, at, count in zip(
            unique.tolist(), first.tolist(), np.bincount(back.ravel()).tolist(), strict=True
        ):
            key = tuple(row)
            if key not in self.unexplained and len(self.unexplained) >= MAX_SIGNATURES:
                self.other_signatures += count
                continue
            entry = self.unexplained.setdefault(key, Unexplained())
            entry.pages += count
            if len(entry.examples) < EXAMPLES:
                entry.examples.append(chunk.start_pfn + int(head[at]))
