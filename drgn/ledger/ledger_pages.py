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

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from drgn import Program, sizeof
from numpy.typing import NDArray

from mmscope.drgn.cgroups.charged_pages import ChargedPages, MemcgWords
from mmscope.drgn.free.block_heads import BlockFinder
from mmscope.drgn.ledger.file_pages import FilePages
from mmscope.drgn.ledger.page_kinds import (
    BOOT,
    BOOT_PERCPU,
    COMPOUND,
    CRASH,
    EXAMPLES,
    FREE,
    IMAGE,
    IN_USE,
    KERNEL_TABLE,
    KINDS,
    KMEM,
    MAX_SIGNATURES,
    NO_HEAD,
    NO_REFERENCE,
    PAGE_OF_CGROUP,
    PAGE_POOL,
    PER_CPU,
    POISONED,
    RECLAIMABLE,
    ROOT_TABLE,
    SLAB,
    TABLE,
    TAGGED,
    TAIL_OF_BLOCK,
    UNACCEPTED,
    UNINITIALISED,
    PageKinds,
    Signature,
    Unexplained,
    merged_signatures,
)
from mmscope.drgn.ledger.page_ranges import PageRanges, ranges_fill, spread
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.owners.page_tags import PageTags
from mmscope.drgn.owners.slab_caches import Cache, read_caches
from mmscope.drgn.reading.kernel_arrays import distinct
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.struct_pages import (
    FlagFields,
    PageChunk,
    compound_info_is_mask,
    flag_fields,
)
from mmscope.drgn.workers.shares import Shared, added, merges, nested, none_of, summed

MAX_KEPT = 8 << 20  # pages without a reference
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
# Whose memcg_data is not of the page, but a vector of its objects'.
OF_OBJECTS = np.zeros(256, np.bool_)
OF_OBJECTS[[RECLAIMABLE, SLAB]] = True
MOST_REFERENCES = 15  # that are told apart
# The kinds of a block's first page, and of the pages behind it that have no reference.
TAIL_OF = np.full(256, NO_REFERENCE, np.int64)
TAIL_OF[IN_USE] = TAIL_OF_BLOCK
TAIL_OF[[TABLE, ROOT_TABLE, KERNEL_TABLE, PAGE_POOL]] = TABLE, ROOT_TABLE, KERNEL_TABLE, PAGE_POOL
# Of a page without a reference: the page frame, its zone, and the kind of the page before.
PFN_AT, ZONE_AT, ZONE_MASK = 21, 8, (1 << 13) - 1


class LedgerPages(Shared):
    """
    The consumer.

    :param ram: the pages that are RAM, of any kind but 0.
    :param owned: the pages that are explained by where they are.
    :param charged: counts the pages of memory cgroups, if it is given.
    :param caches: the slab caches, if they are known.
    :param tags: counts what the kernel has by the line of source, if it is given.
    """

    MERGES = merges(
        **dict.fromkeys(("pages", "absent", "reserved", "kept", "kept_pages"), added),
        unexplained=merged_signatures,
        other_signatures=none_of,
        disputed=summed,
        **dict.fromkeys(("charged", "tags", "files"), nested),
    )

    def __init__(
        self,
        prog: Program,
        ram: PageRanges,
        owned: PageRanges,
        charged: ChargedPages | None = None,
        caches: Sequence[Cache] | None = None,
        tags: PageTags | None = None,
    ) -> None:
        self.kinds = PageKinds(prog)
        self.fields: FlagFields = flag_fields(prog)
        self.ram, self.owned = ram, owned
        self.memcg = None
        with contextlib.suppress(LookupError):
            self.memcg = MemcgWords(prog)
        self.columns = (*self.kinds.columns, "slab_cache", *(("memcg",) if self.memcg else ()))
        self.charged = charged if self.memcg else None
        self.tags = tags
        self.masked = compound_info_is_mask(prog)
        self.size = sizeof(prog.type("struct page"))
        self._blocks = BlockFinder(prog)
        self.max_order = self._blocks.max_order
        self.flag_mask = np.uint32((1 << constant(prog, "__NR_PAGEFLAGS", 32)) - 1)
        # Room for whatever the bits of a damaged page say.
        nodes = self.fields.node_mask + 1
        self.zones = nodes * self.fields.zones_per_node + self.fields.zone_mask + 1
        caches = read_caches(prog)[0] if caches is None else caches
        self._another = functools.partial(LedgerPages, prog, ram, owned, None, caches)
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

    def add_share(self, share: Mapping[str, Any]) -> None:
        super().add_share(share)
        if self.kept_pages > MAX_KEPT:
            self.kept = []

    def resume(self, before: Iterable[list[PageChunk]]) -> None:
        """A block or a compound page, and what is damaged, may begin before the share."""
        chunks: list[PageChunk] = []
        found = False
        for piece in before:
            chunks[:0] = piece
            if found:
                break
            found = any(((chunk["tail"] & np.uint64(1)) == 0).any() for chunk in piece)
        other = self._another()
        for chunk in chunks:
            other.take(chunk)
        self._free_until, self._free_kind = other._free_until, other._free_kind
        self._open_head, self._before = other._open_head, other._before
        self.files.resume(other.files)

    def take(self, chunk: PageChunk) -> None:
        if self._take_free(chunk):
            return
        flags = np.ascontiguousarray(chunk["flags"])
        low = flags.astype(np.uint32)
        words = np.ascontiguousarray(chunk["tail"])
        kinds = self.kinds.of(chunk, low, words)
        buddies = np.flatnonzero(kinds == FREE)
        slabs = np.flatnonzero(kinds == SLAB)
        found = find(self.reclaimable, chunk["slab_cache"][slabs]) >= 0
        kinds[slabs[found]] = RECLAIMABLE
        # Few: a struct page that is not initialised has all bits.
        poisoned = np.flatnonzero((low & self.kinds.poison) != 0)
        blank = poisoned[flags[poisoned] == NOT_INITIALISED]
        kinds[blank] = UNINITIALISED
        before = self._open_head[0]
        heads = self._tails(chunk, words, kinds, blank)
        self._explain(kinds, self.owned.within(chunk.start_pfn, len(chunk)))
        kinds[poisoned[kinds[poisoned] != UNINITIALISED]] = POISONED
        self._free_blocks(chunk, kinds, buddies)
        present = self.ram.within(chunk.start_pfn, len(chunk)) != 0
        zones = self._zones(flags)
        self._count(low, kinds, zones, present)
        memcg = None if self.memcg is None else self.memcg.of(chunk)
        if self.charged is not None and memcg is not None:
            self.charged.take(chunk, low, kinds, memcg)
        self.files.take(chunk, low, kinds, heads, present)
        if self.tags is not None:  # those without a reference are told apart later
            here = np.flatnonzero(TAGGED[kinds] & (kinds != NO_REFERENCE) & present)
            at = np.where(kinds[here] == NO_HEAD, here, heads[here]) if len(heads) else here
            self.tags.take(np.where(at < 0, before, chunk.start_pfn + at), kinds[here])
        here = np.flatnonzero((kinds == NO_REFERENCE) & present)
        self._keep(chunk, kinds, zones[here], here)
        here = np.flatnonzero(((kinds <= COMPOUND) | (kinds == NO_HEAD)) & present)
        self._look_at(chunk, low, kinds[here], zones[here], heads, here, memcg)

    def _take_free(self, chunk: PageChunk) -> bool:
        """Count a chunk that is nothing but free blocks; or do not."""
        begin, size = chunk.start_pfn, len(chunk)
        at = min(max(self._free_until - begin, 0), size)  # behind a block that began before
        if at and self._free_kind != FREE:
            return False
        heads = np.zeros(1 if at else 0, np.int64)
        if at < size:
            blocks = self._blocks.of(chunk)
            if not blocks.fill(at, size):
                return False
            heads, at = np.append(heads, blocks.places), int(blocks.ends[-1])
        if self.owned.within(begin, size).any() or not self.ram.within(begin, size).all():
            return False
        zones = self.fields.zone_index(chunk["flags"][heads])
        counts = np.bincount(zones, np.diff(heads, append=size), minlength=self.zones)
        self.pages[FREE * self.zones :][: self.zones] += counts.astype(np.int64)
        self._free_until, self._free_kind = max(self._free_until, begin + at), FREE
        self._open_head = begin + size - 1, FREE
        self._before = begin + size, FREE
        return True

    def _zones(self, flags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The zone of each page; of one number, where a chunk is of one zone."""
        bits = self.fields
        zone_bits = np.uint64(bits.node_mask << bits.node_shift | bits.zone_mask << bits.zone_shift)
        if (np.bitwise_or.reduce(flags) ^ np.bitwise_and.reduce(flags)) & zone_bits:
            return bits.zone_index(flags)
        return np.broadcast_to(bits.zone_index(flags[:1]), flags.shape)

    def _count(
        self,
        flags: NDArray[np.uint32],
        kinds: NDArray[np.uint8],
        zones: NDArray[np.int64],
        present: NDArray[np.bool_],
    ) -> None:
        """Count the pages by kind and zone."""
        reserved = (flags & self.kinds.reserved) != 0
        if not zones.strides[0]:
            here = kinds if present.all() else kinds[present]
            zone = int(zones[0])
            self.pages[zone :: self.zones] += np.bincount(here, minlength=len(KINDS))
            self.absent[zone] += len(kinds) - len(here)
            self.reserved[zone] += np.count_nonzero(reserved & present)
            return
        self.absent += np.bincount(zones[~present], minlength=self.zones)
        self.reserved += np.bincount(zones[reserved & present], minlength=self.zones)
        keys = kinds.astype(np.int64) * self.zones + zones
        self.pages += np.bincount(keys[present], minlength=len(self.pages))

    def _tails(
        self,
        chunk: PageChunk,
        words: NDArray[np.uint64],
        kinds: NDArray[np.uint8],
        blank: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """
        Give tails the kind of their head.

        :param words: that have bit 0 in tails, and lead to the head.
        :param blank: pages whose words mean nothing.
        :return: the place of each page's head in the chunk, its own place where it is none's tail;
            -1 where the head is not in the chunk. Empty: no page is a tail.
        """
        is_tail = (words & np.uint64(1)) != 0
        is_tail[blank] = False
        heads = np.flatnonzero(~is_tail)
        if len(heads) == len(chunk):
            self._open_head = chunk.start_pfn + len(chunk) - 1, int(kinds[-1])
            return heads[:0]
        address, size = np.uint64(chunk.address), np.uint64(self.size)
        own = address + np.arange(len(chunk), dtype=np.uint64) * size
        found = own & words if self.masked else words - np.uint64(1)
        raw = kinds.copy()
        # The head of nearly every tail is the last page before it that is no tail.
        first = int(heads[0]) if len(heads) else len(chunk)
        lengths = np.diff(heads, prepend=0, append=len(chunk))
        heads = np.repeat(np.append(-1, heads), lengths)
        kinds[first:] = raw[heads[first:]]
        astray = np.flatnonzero(is_tail & ((heads < 0) | (found != own[heads])))
        if len(astray):
            heads[astray], kinds[astray] = self._strange(chunk, raw, astray, found[astray])
        last = int(heads[-1])
        if last >= 0:
            self._open_head = chunk.start_pfn + last, int(kinds[last])
        return heads

    def _strange(
        self,
        chunk: PageChunk,
        kinds: NDArray[np.uint8],
        tails: NDArray[np.int64],
        found: NDArray[np.uint64],
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Heads and kinds of tails whose head is in an earlier chunk, or that are damaged."""
        size = np.uint64(self.size)
        # Unsigned: what lies below the chunk is far above it.
        offset = found - np.uint64(chunk.address)
        inside = (offset < np.uint64(len(chunk) * self.size)) & (offset % size == 0)
        at = np.where(inside, offset // size, 0).astype(np.int64)
        at = np.where(inside & (at < tails), at, -1)
        of = np.where(at >= 0, kinds[at], np.uint8(NO_HEAD))
        # Head and tails are neighbours: those of a head in an earlier chunk come first.
        pfn, kind = self._open_head
        behind = (np.uint64(chunk.address) - found) // size
        of[(at < 0) & (chunk.start_pfn - behind.astype(np.int64) == pfn)] = kind
        return at, of

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
        if self._free_until > chunk.start_pfn:
            kinds[: self._free_until - chunk.start_pfn] = self._free_kind
        orders = chunk["private"][buddies]
        # Of what is damaged the first page is free, as far as is known. A block is aligned.
        sound = orders <= self.max_order
        orders = np.where(sound, orders, 0).astype(np.int64)
        orders[((chunk.start_pfn + buddies) & ((1 << orders) - 1)) != 0] = 0
        whole = np.flatnonzero(kinds == UNACCEPTED)
        for starts, sizes, kind in (
            (whole, np.full(len(whole), 1 << self.max_order), UNACCEPTED),
            (buddies, 1 << orders, FREE),
        ):
            if not len(starts):
                continue
            ends = np.maximum.accumulate(starts + sizes)
            if int(ends[-1]) > len(chunk):
                self._free_until, self._free_kind = chunk.start_pfn + int(ends[-1]), kind
            ends = np.minimum(ends, np.append(starts[1:], len(chunk)))
            inside = ranges_fill(starts, ends, np.ones(len(starts), np.bool_), len(chunk))
            kinds[inside] = kind

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
        self.kept.append((chunk.start_pfn + here) << PFN_AT | zones << ZONE_AT | before)

    def _begins(
        self, chunk: PageChunk, kinds: NDArray[np.uint8], at: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The kind of a block without ``__GFP_COMP`` that may begin at each of some pages."""
        compound = (chunk["flags"][at] & np.uint64(self.kinds.head)) != 0
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
        if self.tags is not None:
            here = TAGGED[kinds]
            first = np.where(kinds == NO_REFERENCE, numbers, head)
            self.tags.take(first[here], kinds[here])
        for kind in (TAIL_OF_BLOCK, NO_REFERENCE):
            here = kinds == kind
            zones = rest[here] >> ZONE_AT & ZONE_MASK
            for zone in distinct(zones).tolist():
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
        flags: NDArray[np.uint32],
        kinds: NDArray[np.uint8],
        zones: NDArray[np.int64],
        heads: NDArray[np.int64],
        here: NDArray[np.int64],
        memcg: NDArray[np.uint64] | None,
    ) -> None:
        """Tell unexplained pages, *here*, apart by what their heads look like."""
        if not len(here):
            return
        head = heads[here] if len(heads) else here
        known = head >= 0
        head = np.where(known, head, here)
        compound = known & ((flags[head] & self.kinds.head) != 0)
        order = np.where(compound, chunk.order_of(head), -1)
        references = np.clip(chunk["refcount"][head].astype(np.int64), 0, MOST_REFERENCES)
        charged = np.zeros(len(here), np.int64)
        if memcg is not None:
            word = memcg[head]
            charged = np.where(word != 0, np.where(word & np.uint64(2), KMEM, PAGE_OF_CGROUP), 0)
        signature = np.stack(
            [kinds, zones, flags[head] & self.flag_mask, references, order, charged],
            axis=1,
            dtype=np.int64,
            casting="unsafe",
        )
        # Neighbours mostly look the same.
        runs = np.flatnonzero((np.diff(signature, axis=0) != 0).any(axis=1)) + 1
        runs = np.append(0, runs)
        lengths = np.diff(runs, append=len(here))
        unique, first, back = np.unique(
            signature[runs], axis=0, return_index=True, return_inverse=True
        )
        counts = np.bincount(back.ravel(), weights=lengths).astype(np.int64)
        for row, at, count in zip(
            unique.tolist(), head[runs[first]].tolist(), counts.tolist(), strict=True
        ):
            key = tuple(row)
            if key not in self.unexplained and len(self.unexplained) >= MAX_SIGNATURES:
                self.other_signatures += count
                continue
            entry = self.unexplained.setdefault(key, Unexplained())
            entry.pages += count
            if len(entry.examples) < EXAMPLES:
                entry.examples.append(chunk.start_pfn + at)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_ledger", "memory_ledger")
