# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Every page of RAM by what it is used for: the consumer of the struct page pass that counts them.

A page is of the kind that its struct page says (``page_kinds``); where that says nothing, of the
kind that its place says (``page_places``). Tails are of their head's kind, the pages of a free
block of its first page's. Each present page is counted once.

Pages without a reference and on no list are kept apart until the pass is over: the per-CPU lists
are then known, and what follows a page in use, up to the next power of two that it is aligned to,
is the rest of a block that was allocated without ``__GFP_COMP``.

Memory: the sums; 11 bytes for a page without a reference, up to :data:`MAX_KEPT`.
"""

import contextlib
import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import add
from typing import Any

import numpy as np
from drgn import Program, sizeof

from mmscope.drgn.cgroups.charged_pages import ChargedPages, MemcgWords
from mmscope.drgn.free.block_heads import BlockFinder
from mmscope.drgn.holders.holdings import HeldPages
from mmscope.drgn.ledger.file_pages import OF_FILES, Droppable, FilePages
from mmscope.drgn.ledger.page_kinds import KINDS, TAGGED, Kind, PageKinds, kinds_where
from mmscope.drgn.ledger.page_places import PageRanges
from mmscope.drgn.ledger.pinned_pages import BIAS, PinnedPages
from mmscope.drgn.ledger.thp_ranges import ThpRanges
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.owners.page_tags import PageTags
from mmscope.drgn.owners.slab_caches import Cache, read_caches
from mmscope.drgn.reading.kernel_arrays import Array, Bools, S64s, U8s, U32s, U64s, spread
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.shares import Shared, merges, nested, none_of, summed, summed_up_to
from mmscope.drgn.reading.struct_pages import PageChunk, compound_info_is_mask, flag_fields

MAX_KEPT = 8 << 20  # pages without a reference
# What no struct page's flags are: __init_single_page() was not called yet, and DEBUG_VM filled it.
NOT_INITIALISED = np.uint64((1 << 64) - 1)
# Kinds that the place of a page may explain.
OPEN = kinds_where(lambda kind: kind in (Kind.IN_USE, Kind.COMPOUND, Kind.NO_REFERENCE, Kind.BOOT))
# The class of each kind, as a number.
OWNER = np.array([[each.owner for each in KINDS].index(kind.owner) for kind in KINDS])
# Places of reserved pages only.
OF_BOOT = kinds_where(lambda kind: kind in (Kind.IMAGE, Kind.BOOT_PERCPU, Kind.CRASH))
# Places of pages that a holder has beside their owner: a file's, in a pipe.
OF_HOLDERS = (
    *(Kind.DMA_BUF, Kind.MODULE_CACHE, Kind.MACHINE_TABLE, Kind.MACHINE_CPU, Kind.IOMMU_TABLE),
    Kind.GRAPHICS,
)
HELD = kinds_where(lambda kind: Kind.SOCKET <= kind <= Kind.STACK_DEPOT or kind in OF_HOLDERS)
# Whose memcg_data is not of the page, but a vector of its objects'.
OF_OBJECTS = kinds_where(lambda kind: kind in (Kind.RECLAIMABLE, Kind.SLAB))
MOST_REFERENCES = 15  # that are told apart
# The kinds of a block's first page, and of the pages after it that have no reference.
TAIL_OF = np.full(256, Kind.NO_REFERENCE, np.uint8)
TAIL_OF[Kind.IN_USE] = Kind.TAIL_OF_BLOCK
for _kind in (Kind.TABLE, Kind.ROOT_TABLE, Kind.KERNEL_TABLE, Kind.PAGE_POOL, Kind.MODULE_CACHE):
    TAIL_OF[_kind] = _kind
# A page without a reference; the kind of the page before, if a block may begin there.
KEPT = np.dtype([("pfn", np.int64), ("zone", np.uint16), ("before", np.uint8)])

# What unexplained pages look like: kind, zone index, page flags, references (at most
# MOST_REFERENCES), order of the compound page or -1, and whom they are charged to.
Signature = tuple[int, ...]
# Page frame, kind, mapping and flags of a head, and whether drop_caches takes it.
Head = tuple[int, int, np.uint64, np.uint32, bool]
KMEM, PAGE_OF_CGROUP = 2, 4  # charged to a memory cgroup: as kernel memory, or as a page
MAX_SIGNATURES = 4096
EXAMPLES = 3


def _first_examples(
    mine: dict[Signature, list[int]], theirs: dict[Signature, list[int]]
) -> dict[Signature, list[int]]:
    return mine | {key: (mine.get(key, []) + pfns)[:EXAMPLES] for key, pfns in theirs.items()}


def _count(sums: Counter[int], values: U64s) -> None:
    """Add how often each value is there."""
    if len(values):
        found, counts = np.unique(values, return_counts=True)
        summed(sums, dict(zip(found.tolist(), counts.tolist(), strict=True)))


class LedgerPages(Shared):
    """
    The consumer.

    :param ram: the pages that are RAM, of any kind but 0.
    :param owned: the pages that are explained by where they are.
    :param charged: counts the pages of memory cgroups, if it is given.
    :param caches: the slab caches, if they are known.
    :param tags: counts what the kernel has by the line of source, if it is given.
    :param held: counts what is known by who holds it, if it is given.
    :param pinned: counts what is pinned, if it is given.
    """

    MERGES = merges(
        **dict.fromkeys(("pages", "absent", "reserved", "kept", "kept_pages"), add),
        unexplained=summed_up_to(MAX_SIGNATURES),
        examples=_first_examples,
        other_signatures=none_of,
        disputed=summed,
        **dict.fromkeys(("pools", "balloons", "huge"), summed),
        **dict.fromkeys(("charged", "tags", "files", "held", "pinned", "ranges"), nested),
    )

    def __init__(
        self,
        prog: Program,
        ram: PageRanges,
        owned: PageRanges,
        charged: ChargedPages | None = None,
        caches: Sequence[Cache] | None = None,
        tags: PageTags | None = None,
        held: HeldPages | None = None,
        pinned: PinnedPages | None = None,
    ) -> None:
        self.kinds = PageKinds(prog)
        self.fields = flag_fields(prog)
        self.ram, self.owned = ram, owned
        self.memcg = None
        with contextlib.suppress(LookupError):
            self.memcg = MemcgWords(prog)
        self.ranges = ThpRanges(prog)
        more = ("slab_cache", "prev", *self.ranges.columns, *(("memcg",) if self.memcg else ()))
        pins = {pinned.column} - {*more} if pinned is not None else ()
        self.columns = (*self.kinds.columns, *more, *pins)
        self.charged = charged if self.memcg else None
        self.tags = tags
        self.held, self.pinned = held, pinned
        self.masked = compound_info_is_mask(prog)
        self.size = np.uint64(sizeof(prog.type("struct page")))
        self._blocks = BlockFinder(prog)
        self.max_order = self._blocks.max_order
        self.flag_mask = np.uint32((1 << constant(prog, "__NR_PAGEFLAGS", 32)) - 1)
        # Room for whatever the bits of a damaged page say.
        nodes = self.fields.node_mask + 1
        self.zones = nodes * self.fields.zones_per_node + self.fields.zone_mask + 1
        caches = read_caches(prog)[0] if caches is None else caches
        reclaimable = [cache.address for cache in caches if cache.reclaimable]
        self.reclaimable = np.array(sorted(reclaimable), np.uint64)
        self.files, self.droppable = FilePages(prog), Droppable(prog)
        self.pages = np.zeros(len(KINDS) * self.zones, np.int64)  # present, by kind and zone
        self.absent = np.zeros(self.zones, np.int64)  # that have a struct page, but are no RAM
        self.reserved = np.zeros(self.zones, np.int64)  # present, with PG_reserved, of any kind
        self.unexplained: Counter[Signature] = Counter()
        self.examples: dict[Signature, list[int]] = {}  # page frames of heads
        self.other_signatures = 0  # pages of more signatures than are kept
        self.disputed: Counter[tuple[int, int]] = Counter()  # by (struct page's, place's) kind
        # Pages by struct page_pool; by what page.private has; and those of hugetlb by page.mapping.
        self.pools, self.balloons, self.huge = Counter[int](), Counter[int](), Counter[int]()
        self.kept: list[Array] = []  # of KEPT
        self.kept_pages = 0
        # Where the chunks so far left off: the ends of free blocks; the last page that is no tail;
        # and the page after them with the kind of the one before it, as in KEPT.
        self._free_until = {Kind.UNACCEPTED: 0, Kind.FREE: 0}
        self._head: Head = (-1, int(Kind.NO_HEAD), np.uint64(0), np.uint32(0), False)
        self._next = (-1, int(Kind.NO_REFERENCE))

    def add_share(self, share: Mapping[str, Any]) -> None:
        super().add_share(share)
        if self.kept_pages > MAX_KEPT:
            self.kept = []

    def resume(self, before: Iterable[list[PageChunk]]) -> None:
        """See what a block or a compound page, or damage, may begin in; without counting it."""
        chunks: list[PageChunk] = []
        found = False
        for piece in before:
            chunks[:0] = piece
            if found:
                break
            found = any(((chunk["tail"] & np.uint64(1)) == 0).any() for chunk in piece)
        blank = copy.deepcopy(self.share())
        for chunk in chunks:
            self.take(chunk)
        self.restore(blank)

    def take(self, chunk: PageChunk) -> None:
        if self._take_free(chunk):
            return
        start, size = chunk.start_pfn, len(chunk)
        flags, words = chunk.packed("flags"), chunk.packed("tail")
        low = flags.astype(np.uint32)
        kinds = self.kinds.of(chunk, low, words)
        unaccepted = np.flatnonzero(kinds == Kind.UNACCEPTED)
        slabs = np.flatnonzero(kinds == Kind.SLAB)
        found = find(self.reclaimable, chunk["slab_cache"][slabs]) >= 0
        kinds[slabs[found]] = Kind.RECLAIMABLE
        # Few: a struct page that is not initialised has all bits.
        poisoned = np.flatnonzero((low & self.kinds.poison) != 0)
        blank = poisoned[flags[poisoned] == NOT_INITIALISED]
        kinds[blank] = Kind.UNINITIALISED
        heads = self._tails(chunk, words, kinds, blank)
        before = self._last_head(chunk, low, kinds, heads)
        self._explain(kinds, self.owned.within(start, size))
        kinds[poisoned[kinds[poisoned] != Kind.UNINITIALISED]] = Kind.POISONED
        self._fill_blocks(chunk, kinds, unaccepted)
        present = self.ram.within(start, size) != 0
        zones = self.fields.zone_index(flags)
        reserved = (low & self.kinds.reserved) != 0
        self.absent += np.bincount(zones[~present], minlength=self.zones)
        self.reserved += np.bincount(zones[reserved & present], minlength=self.zones)
        keys = (kinds * np.int64(self.zones) + zones)[present]
        self.pages += np.bincount(keys, minlength=len(self.pages))
        memcg = None if self.memcg is None else self.memcg.of(chunk)
        if self.charged is not None and memcg is not None:
            self.charged.take(chunk, low, kinds, memcg)
        self._held(chunk, low, kinds, zones, present)
        self._count_files(chunk, low, kinds, heads, present, before)
        self._count_pools(chunk, kinds, heads, present)
        self.ranges.take(chunk, self._blocks.of(chunk), low, kinds, heads, present, zones)
        if self.tags is not None:  # those without a reference are told apart later
            here = np.flatnonzero(TAGGED[kinds] & (kinds != Kind.NO_REFERENCE) & present)
            at = np.where(kinds[here] == Kind.NO_HEAD, here, heads[here])
            self.tags.take(np.where(at < 0, before[0], start + at), kinds[here])
        self._keep(chunk, kinds, zones, np.flatnonzero((kinds == Kind.NO_REFERENCE) & present))
        here = np.flatnonzero(((kinds <= Kind.COMPOUND) | (kinds == Kind.NO_HEAD)) & present)
        if len(here):
            self._look_at(chunk, low, kinds[here], zones[here], heads[here], here, memcg)

    def _last_head(self, chunk: PageChunk, low: U32s, kinds: U8s, heads: S64s) -> Head:
        """Keep the last head for the next chunk's tails; that of the chunks before is returned."""
        before = self._head
        if (last := int(heads[-1])) >= 0:
            drops = bool(self.droppable.of(chunk, heads[-1:], low)[0])
            pfn = chunk.start_pfn + last
            self._head = (pfn, int(kinds[last]), chunk["mapping"][last], low[last], drops)
        return before

    def _count_files(
        self, chunk: PageChunk, low: U32s, kinds: U8s, heads: S64s, present: Bools, before: Head
    ) -> None:
        """Count the pages of files, by what the heads say."""
        here = np.flatnonzero(OF_FILES[kinds] & present)
        at = heads[here]
        _, _, mapping, flags, drops = before  # of tails whose head is not in the chunk
        mappings = np.where(at < 0, mapping, chunk["mapping"][at])
        droppable = np.where(at < 0, drops, self.droppable.of(chunk, at, low))
        droppable &= kinds[here] == Kind.FILE
        self.files.count(mappings, kinds[here], np.where(at < 0, flags, low[at]), droppable)
        _count(self.huge, mappings[kinds[here] == Kind.HUGETLB])

    def _count_pools(self, chunk: PageChunk, kinds: U8s, heads: S64s, present: Bools) -> None:
        """
        Count the pages of page pools, as ``page.pp`` lies where ``page.lru.prev`` does; and of
        balloons.
        """
        here = heads[(kinds == Kind.PAGE_POOL) & present]
        _count(self.pools, chunk["prev"][here[here >= 0]])
        private = chunk["private"][(kinds == Kind.OFFLINE) & present]
        _count(self.balloons, private[private != 0])

    def _held(self, chunk: PageChunk, flags: U32s, kinds: U8s, zones: S64s, present: Bools) -> None:
        """Count what something holds, or has pinned."""

        def pinned_alone(at: S64s) -> Bools:
            """Anonymous pages that no process maps, with the references of one pin."""
            references = chunk["refcount"][at]
            alone = (references >= BIAS) & (references < 2 * BIAS)
            return np.asarray(alone & (kinds[at] == Kind.ANON) & (chunk["mapcount"][at] == -1))

        if self.held is not None:
            self.held.take(chunk.start_pfn, kinds, present, pinned_alone)
        if self.pinned is not None:
            self.pinned.take(chunk, flags, kinds, zones, present)

    def _take_free(self, chunk: PageChunk) -> bool:
        """Count a chunk that is nothing but free blocks; or do not."""
        begin, size = chunk.start_pfn, len(chunk)
        if self._free_until[Kind.UNACCEPTED] > begin:
            return False
        at = min(max(self._free_until[Kind.FREE] - begin, 0), size)  # the end of an earlier block
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
        self.pages[Kind.FREE * self.zones :][: self.zones] += counts.astype(np.int64)
        self.ranges.take_free(chunk, self._blocks.of(chunk), zones)
        self._free_until[Kind.FREE] = max(self._free_until[Kind.FREE], begin + at)
        self._head = (begin + size - 1, int(Kind.FREE), np.uint64(0), np.uint32(0), False)
        self._next = begin + size, int(Kind.FREE)
        return True

    def _tails(self, chunk: PageChunk, words: U64s, kinds: U8s, blank: S64s) -> S64s:
        """
        Give tails the kind of their head.

        :param words: that have bit 0 in tails, and lead to the head.
        :param blank: pages whose words mean nothing.
        :return: the place of each page's head in the chunk, its own place where it is no tail; -1
            where the head is in an earlier chunk, or the tail is damaged.
        """
        is_tail = (words & np.uint64(1)) != 0
        is_tail[blank] = False
        heads = np.arange(len(chunk))
        tails = np.flatnonzero(is_tail)
        if not len(tails):
            return heads
        first = np.uint64(chunk.address)
        found = words[tails] - np.uint64(1)
        if self.masked:
            found = words[tails] & (first + tails.astype(np.uint64) * self.size)
        # Unsigned: what lies below the chunk is far above it.
        at = (found - first) // self.size
        inside = (at * self.size == found - first) & (at < tails.astype(np.uint64))
        heads[tails] = np.where(inside, at.astype(np.int64), -1)
        of = np.where(inside, kinds[heads[tails]], np.uint8(Kind.NO_HEAD))
        # Head and tails are neighbours: those of a head in an earlier chunk come first.
        back = ((first - found) // self.size).astype(np.int64)
        pfn, kind, *_ = self._head
        of[~inside & (chunk.start_pfn - back == pfn)] = kind
        kinds[tails] = of
        return heads

    def _explain(self, kinds: U8s, place: U8s) -> None:
        """Pages whose struct pages say nothing are of the kind that their place says."""
        owned = np.flatnonzero(place)
        open_ = OPEN[kinds[owned]]
        # What was given to the page allocator since boot is the image's no longer.
        open_ &= ~OF_BOOT[place[owned]] | (kinds[owned] == Kind.BOOT)
        kinds[owned[open_]] = place[owned[open_]]
        # Of what has two owners the struct page is believed.
        other = owned[~open_ & ~OF_BOOT[place[owned]]]
        other = other[OWNER[kinds[other]] != OWNER[place[other]]]
        other = other[~HELD[place[other]]]
        self.disputed.update(zip(kinds[other].tolist(), place[other].tolist(), strict=True))

    def _fill_blocks(self, chunk: PageChunk, kinds: U8s, unaccepted: S64s) -> None:
        """
        The pages of free blocks; a block may begin in one chunk and end in the next. Of a damaged
        one the first page is free, as far as is known.

        :param unaccepted: the first pages of blocks that are not accepted.
        """
        blocks = self._blocks.of(chunk)
        for kind, places, ends in (
            (Kind.UNACCEPTED, unaccepted, unaccepted + (1 << self.max_order)),
            (Kind.FREE, blocks.places, blocks.ends),
        ):
            until = np.zeros(len(chunk), np.int64)
            until[places] = ends
            until[0] = max(int(until[0]), self._free_until[kind] - chunk.start_pfn)
            np.maximum.accumulate(until, out=until)
            kinds[until > np.arange(len(chunk))] = kind
            self._free_until[kind] = chunk.start_pfn + int(until[-1])

    def _keep(self, chunk: PageChunk, kinds: U8s, zones: S64s, here: S64s) -> None:
        """Keep the pages without a reference, *here*, until the pass is over."""
        following = chunk.start_pfn + len(chunk)
        first = self._next[1] if self._next[0] == chunk.start_pfn else Kind.NO_REFERENCE
        # The page before each, and the chunk's last one.
        before = np.append(np.maximum(here - 1, 0), len(chunk) - 1)
        compound = (chunk["flags"][before] & np.uint64(self.kinds.head)) != 0
        compound |= (chunk["tail"][before] & np.uint64(1)) != 0
        begins = np.where(compound, np.uint8(Kind.NO_REFERENCE), kinds[before])
        self._next = following, int(begins[-1])
        self.kept_pages += len(here)
        if self.kept_pages > MAX_KEPT:
            self.kept = []
        elif len(here):
            kept = np.empty(len(here), KEPT)
            kept["pfn"], kept["zone"] = chunk.start_pfn + here, zones[here]
            kept["before"] = np.where(here > 0, begins[:-1], np.uint8(first))
            self.kept.append(kept)

    def settle(self, pfns: S64s, orders: S64s) -> None:
        """
        Tell the pages without a reference apart, after the pass.

        :param pfns: of the blocks on per-CPU lists; *orders*: theirs.
        """
        kept = np.concatenate([np.empty(0, KEPT), *self.kept])
        kept = kept[np.argsort(kept["pfn"])]
        self.kept = []
        on_list = find(np.sort(spread(pfns, np.int64(1) << orders)), kept["pfn"]) >= 0
        self._move(kept[on_list], Kind.PER_CPU)
        self.ranges.settle(kept["pfn"][on_list], Kind.PER_CPU)
        rest = kept[~on_list]
        numbers = rest["pfn"]
        # Pages that follow each other, and the page before the first of them.
        starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
        run = np.repeat(starts, np.diff(np.append(starts, len(rest))))
        head = numbers[run] - 1
        order = np.frexp((numbers - head).astype(np.float64))[1].astype(np.int64)
        aligned = (head & ((np.int64(1) << order) - 1)) == 0
        of_block = aligned & (order <= self.max_order)
        kinds = np.where(of_block, TAIL_OF[rest["before"][run]], np.uint8(Kind.NO_REFERENCE))
        self._move(rest, kinds)
        self.ranges.settle(numbers, kinds)
        if self.tags is not None:
            tagged = TAGGED[kinds]
            first = np.where(kinds == Kind.NO_REFERENCE, numbers, head)
            self.tags.take(first[tagged], kinds[tagged])
        for kind in (Kind.TAIL_OF_BLOCK, Kind.NO_REFERENCE):
            here = np.flatnonzero(kinds == kind)
            example = head if kind == Kind.TAIL_OF_BLOCK else numbers
            zones, first, counts = np.unique(
                rest["zone"][here], return_index=True, return_counts=True
            )
            for zone, at, count in zip(
                zones.tolist(), here[first].tolist(), counts.tolist(), strict=True
            ):
                self.unexplained[kind, zone, 0, 0, -1, 0] = count
                self.examples[kind, zone, 0, 0, -1, 0] = [int(example[at])]

    def settle_large(self, unreclaimable: int) -> None:
        """
        Compound pages that nothing explains are large allocations of kmalloc(), where these have no
        mark and the kernel's counter has just as many pages more than were counted: each of them is
        such a page, and none is left for anything else. Where there are more of them, those are
        that have one reference, as what kmalloc() gives has, and more pages than are left over: no
        such block can be anything else.

        :param unreclaimable: nr_slab_unreclaimable, when the pages were read.
        """
        counted = self.pages.reshape(len(KINDS), self.zones)
        lacks = unreclaimable - int(counted[[Kind.SLAB, Kind.LARGE_KMALLOC]].sum())
        if self.kinds.marks_large:
            return
        keys = [key for key in self.unexplained if key[0] == Kind.COMPOUND]
        if lacks == int(counted[Kind.COMPOUND].sum()):
            counted[Kind.LARGE_KMALLOC] += counted[Kind.COMPOUND]
            counted[Kind.COMPOUND] = 0
            if self.tags is not None:
                for kind, tag in [key for key in self.tags.pages if key[0] == Kind.COMPOUND]:
                    self.tags.pages[Kind.LARGE_KMALLOC, tag] += self.tags.pages.pop((kind, tag))
            if self.charged is not None:
                self.charged.move(Kind.COMPOUND, Kind.LARGE_KMALLOC)
        else:
            keys = self._surely_large(keys, lacks)
            for key in keys:
                counted[Kind.COMPOUND, key[1]] -= self.unexplained[key]
                counted[Kind.LARGE_KMALLOC, key[1]] += self.unexplained[key]
        for key in keys:
            del self.unexplained[key], self.examples[key]

    def _surely_large(self, keys: list[Signature], lacks: int) -> list[Signature]:
        """Signatures of one reference, of blocks larger than all that these have beyond *lacks*."""
        blocks = {}
        for key in keys:
            *_, references, order, charged = key
            if order < 0 or self.other_signatures:
                return []  # their references are not known
            if references == 1:
                blocks[key] = 1 << order, charged
        left = sum(self.unexplained[key] for key in blocks) - lacks
        surely = {key: charged for key, (size, charged) in blocks.items() if size > left}
        # What has a tag or is charged is counted elsewhere too, without its references.
        if left < 0 or self.tags is not None or any(surely.values()):
            return []
        return [*surely]

    def _move(self, kept: Array, to: U8s | Kind) -> None:
        """Pages that were counted as without a reference are of other kinds."""
        zones = kept["zone"].astype(np.int64)
        old, new = Kind.NO_REFERENCE * self.zones + zones, to * np.int64(self.zones) + zones
        self.pages -= np.bincount(old, minlength=len(self.pages))
        self.pages += np.bincount(new, minlength=len(self.pages))

    def _look_at(
        self,
        chunk: PageChunk,
        flags: U32s,
        kinds: U8s,
        zones: S64s,
        heads: S64s,
        here: S64s,
        memcg: U64s | None,
    ) -> None:
        """Tell unexplained pages, *here*, apart by what their heads look like."""
        head = np.where(heads >= 0, heads, here)
        compound = (heads >= 0) & ((flags[head] & self.kinds.head) != 0)
        order = np.where(compound, chunk.order_of(head), -1)
        references = np.clip(chunk["refcount"][head].astype(np.int64), 0, MOST_REFERENCES)
        charged = np.zeros(len(here), np.int64)
        if memcg is not None:
            word = memcg[head]
            charged = np.where(word != 0, np.where(word & np.uint64(2), KMEM, PAGE_OF_CGROUP), 0)
        looks = (kinds, zones, flags[head] & self.flag_mask, references, order, charged)
        signature = np.stack(looks, axis=1, dtype=np.int64, casting="unsafe")
        # Neighbours mostly look the same.
        runs = np.append(0, np.flatnonzero((np.diff(signature, axis=0) != 0).any(axis=1)) + 1)
        unique, first, back = np.unique(
            signature[runs], axis=0, return_index=True, return_inverse=True
        )
        counts = np.bincount(back.ravel(), np.diff(runs, append=len(here))).astype(np.int64)
        for row, at, count in zip(
            unique.tolist(), head[runs[first]].tolist(), counts.tolist(), strict=True
        ):
            key = tuple(row)
            if key not in self.unexplained and len(self.unexplained) >= MAX_SIGNATURES:
                self.other_signatures += count
                continue
            self.unexplained[key] += count
            examples = self.examples.setdefault(key, [])
            if len(examples) < EXAMPLES:
                examples.append(chunk.start_pfn + at)
