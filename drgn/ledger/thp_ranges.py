# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The use of each range of the size of a transparent huge page: what goes along with the ledger in
the pass over all struct pages.

Each page is free or in the way, and what is in the way can be moved or not, by the rules of
compaction (``isolate_migratepages_block()``, mm/compaction.c 6.12; ``folio_migrate_mapping()``,
mm/migrate.c): it moves pages on an LRU list and pages of drivers that can be migrated, if they have
no more references than their mappings and the page cache explain; mlocked ones too, unless
vm.compact_unevictable_allowed is 0; those under writeback when that is done; never hugetlb. Large
folios it moves since v6.9 (ee6f62fd34f0), before that it passes them by.

Costs 5 ns a page, and 10 a free block. Memory: 32 bytes for each range, of which there are none
where memory is too tight for all of them.

Cannot know: pages of large folios that something holds otherwise than by FOLL_PIN, and of file
systems that cannot migrate dirty pages: they are taken as movable.
"""

import enum
from operator import add

import numpy as np
from drgn import Program, TypeKind

from mmscope.drgn.free.block_heads import BlockHeads
from mmscope.drgn.ledger.page_kinds import KINDS, Kind, kinds_where
from mmscope.drgn.opening.constants import flag, pmd_order
from mmscope.drgn.reading.kernel_arrays import Array, Bools, S64s, U8s, U32s
from mmscope.drgn.reading.shares import SharedColumns, merges
from mmscope.drgn.reading.struct_pages import PageChunk, page_dtype


class Way(enum.IntEnum):
    """A thing that is in the way: a class, and whether it can be moved; 0 is free."""

    movable: bool
    words: str

    def __new__(cls, movable: bool, words: str) -> "Way":
        way = int.__new__(cls, len(cls.__members__))
        way._value_ = len(cls.__members__)
        way.movable, way.words = movable, words
        return way

    FREE = True, "free"
    UNTOLD = False, "without a reference"  # until the pass is over
    ANON = True, "anonymous"
    CACHE = True, "page cache"
    WRITEBACK = True, "under writeback"
    COMPRESSED = True, "compressed"
    DRIVER = True, "driver"
    HELD_ANON = False, "pinned or held anonymous"
    HELD_CACHE = False, "pinned or held page cache"
    MLOCKED = False, "mlocked"
    ARC = False, "page cache of ZFS"
    HUGETLB = False, "hugetlb"
    RECLAIMABLE = False, "reclaimable slab"
    SLAB = False, "slab"
    LARGE_KMALLOC = False, "large kmalloc"
    VMALLOC = False, "vmalloc"
    STACKS = False, "kernel stacks"
    PERCPU = False, "percpu"
    TABLES = False, "page tables"
    METADATA = False, "memory about memory"
    RESERVES = False, "kernel reserves"
    NETWORK = False, "network"
    DMA_BUFS = False, "dma-bufs"
    MODULES = False, "caches of modules"
    PIPES = False, "pipes"
    RINGS = False, "rings"
    TRACING = False, "tracing"
    GIVEN_AWAY = False, "given away"
    GUARD = False, "guard"
    BAD = False, "bad"
    BOOT = False, "boot"
    UNEXPLAINED = False, "unexplained"


BY_KIND = {
    Kind.NO_REFERENCE: Way.UNTOLD,
    Kind.ARC: Way.ARC,
    Kind.RECLAIMABLE: Way.RECLAIMABLE,
    Kind.SLAB: Way.SLAB,
    Kind.LARGE_KMALLOC: Way.LARGE_KMALLOC,
    Kind.DMA_BUF: Way.DMA_BUFS,
    Kind.MODULE_CACHE: Way.MODULES,
}
BY_OWNER = {
    "free": Way.FREE,
    "anonymous": Way.ANON,
    "page cache": Way.CACHE,
    "compressed": Way.COMPRESSED,
    "driver": Way.DRIVER,
} | {way.words: way for way in Way if not way.movable}


def _way(kind: Kind) -> Way:
    return BY_KIND.get(kind) or BY_OWNER.get(kind.owner, Way.UNEXPLAINED)


WAYS = len(Way)
WAY_OF = np.full(256, Way.UNEXPLAINED, np.int64)
WAY_OF[: len(KINDS)] = [_way(kind) for kind in KINDS]
# Those that can be moved if nothing holds them, and how many references they have then, less what
# is in _mapcount; of all others more than there can be.
ON_LISTS = kinds_where(lambda kind: _way(kind) in (Way.ANON, Way.CACHE))
IN_CACHE = kinds_where(lambda kind: _way(kind) is Way.CACHE or kind == Kind.ANON_SWAP)
IS_ANON = kinds_where(lambda kind: kind.owner == "anonymous")
EXPECTED = np.where(ON_LISTS, 1 + IN_CACHE, np.iinfo(np.int32).max).astype(np.int32)
MOVABLE = np.array([way.movable and way is not Way.FREE for way in Way])
FIXED_BITS = sum(1 << way for way in Way if not way.movable)
# Of a page frame by its last bits: how many of the steps of 1, 2, 4, 8, 16 and 32 pages
# (COMPACT_CLUSTER_MAX) from the begin of its pageblock come to it, less one.
STEPS = 6
LAST_STEP = np.array([5 if not pfn else (pfn & -pfn).bit_length() - 1 for pfn in range(32)])
MAX_RANGES = 64 << 20  # 128 TiB
BATCH = 1 << 14  # ranges that are looked at together
# A range, or the part of one that is in a chunk: present pages, free ones, those that can be moved,
# pages of free blocks to which each step comes, a bit for each way that is there, whether all of it
# is one compound page, pages that compaction passes by as they are of large folios, and whether a
# large folio begins there that cannot be split.
RANGE = np.dtype(
    [("number", "<u4"), ("zone", "<u2"), ("ways", "<u4")]
    + [(name, "<u2") for name in ("present", "free", "movable")]
    + [("stepped", "<u2", (STEPS,)), ("huge", "?"), ("passed_by", "<u2"), ("unsplit", "?")]
)


def _moves_large(prog: Program) -> bool:
    try:
        free = prog.type("struct compact_control").member("freepages")
    except LookupError:  # CONFIG_COMPACTION=n: it moves nothing
        return True
    return bool(free.type.kind == TypeKind.ARRAY)  # v6.9, 733aea0b3a7b


class ThpRanges(SharedColumns):
    """
    The accumulator; :meth:`ranges` has each range once.

    :ivar order: of a range: HPAGE_PMD_ORDER.
    :ivar pages: by :class:`Way`, wherever they are.
    :ivar cut: zones of ranges of which only a part is RAM, or was read, once they are put together.
    """

    ROWS, MOST, KINDS = "rows", MAX_RANGES, (RANGE,)
    MERGES = merges(rows=add, pages=add)

    def __init__(self, prog: Program) -> None:
        self.order = pmd_order(prog)
        names = ("PG_head", "PG_lru", "PG_private", "PG_dirty", "PG_writeback", "PG_unevictable")
        bits = [np.uint32(flag(prog, name)) for name in names]
        self._head, self._lru, self._private, self._dirty, writeback, unevictable = bits
        self._moves_large = _moves_large(prog)
        self._marked = [(writeback, Way.WRITEBACK)]
        # CONFIG_COMPACT_UNEVICTABLE_DEFAULT: 0 with PREEMPT_RT.
        name = "sysctl_compact_unevictable_allowed"
        if name in prog and not prog[name].value_():
            self._marked.append((unevictable, Way.MLOCKED))
        self._marks = np.bitwise_or.reduce([mark for mark, _ in self._marked])
        self.columns: tuple[str, ...] = ("refcount", "mapcount")
        self._pins = False
        try:
            page_dtype(prog, ("pincount",))
        except LookupError:  # up to v5.17
            pass
        else:
            self._pins, self.columns = True, (*self.columns, "pincount")
        super().__init__()
        self.rows, self.pages = 0, np.zeros(WAYS, np.int64)
        self.cut: Array | None = None
        self._shape = (0, 0)
        self._begins = self._keys = np.empty(0, np.int64)
        self._told: list[tuple[S64s, S64s]] = []  # numbers, ways

    def take(
        self,
        chunk: PageChunk,
        blocks: BlockHeads,
        low: U32s,
        kinds: U8s,
        heads: S64s,
        present: Bools,
        zones: S64s,
    ) -> None:
        """
        Count a chunk.

        :param blocks: the free ones that begin in it.
        :param low: the lower half of the flags.
        :param kinds: of each page, as the ledger has found out.
        :param heads: the place of each page's head; -1: not in the chunk.
        :param present: which are RAM.
        :param zones: their indexes.
        """
        ways = WAY_OF[kinds]
        self._look_at(chunk, low, kinds, heads, ways)
        first, begins, keys = self._places(chunk)
        count = len(begins)
        keys = keys + ways
        if not present.all():
            keys = keys[present]
        found = np.bincount(keys, minlength=count * WAYS).reshape(count, WAYS)
        self.pages += found.sum(axis=0)
        rows = np.zeros(count, RANGE)
        rows["number"], rows["zone"] = first + np.arange(count), zones[begins]
        rows["ways"] = (found != 0) @ (1 << np.arange(WAYS))
        rows["present"], rows["free"] = found.sum(axis=1), found[:, Way.FREE]
        rows["movable"] = found[:, MOVABLE].sum(axis=1)
        rows["stepped"] = self._stepped(chunk, blocks, first, count)
        if self._moves_large:
            rows["unsplit"][self._keys[self._unsplit(low, kinds, ways)] // WAYS] = True
        else:
            large = np.flatnonzero((heads != np.arange(len(chunk))) | ((low & self._head) != 0))
            large = large[MOVABLE[ways[large]]]
            rows["passed_by"] = np.bincount(self._keys[large] // WAYS, minlength=count)
        ends = np.append(begins[1:], len(chunk)) - 1
        whole = ends - begins + 1 == 1 << self.order
        # Both of one head, in the chunk or before it; a page of its own is its own head.
        rows["huge"] = whole & (heads[begins] == heads[ends])
        self.keep(rows)

    def take_free(self, chunk: PageChunk, blocks: BlockHeads, zones: S64s) -> None:
        """
        Count a chunk of free pages.

        :param blocks: that begin in it.
        :param zones: of the first pages of its blocks: the last of them is that of the chunk.
        """
        first, begins, _ = self._places(chunk)
        rows = np.zeros(len(begins), RANGE)
        rows["number"], rows["zone"] = first + np.arange(len(rows)), zones[-1]
        rows["present"] = rows["free"] = np.diff(begins, append=len(chunk))
        rows["ways"] = 1 << Way.FREE
        rows["stepped"] = self._stepped(chunk, blocks, first, len(rows))
        self.pages[Way.FREE] += len(chunk)
        self.keep(rows)

    def _places(self, chunk: PageChunk) -> tuple[int, S64s, S64s]:
        """The number of the first range, where each begins, and the first key of each page."""
        first = chunk.start_pfn >> self.order
        shape = chunk.start_pfn - (first << self.order), len(chunk)
        if shape != self._shape:  # nearly all chunks are alike
            index = (np.arange(shape[1]) + shape[0]) >> self.order
            begins = np.searchsorted(index, np.arange(int(index[-1]) + 1))
            self._shape, self._begins, self._keys = shape, begins, index * WAYS
        return first, self._begins, self._keys

    def _stepped(self, chunk: PageChunk, blocks: BlockHeads, first: int, count: int) -> Array:
        """Pages of free blocks by the range that they begin in, and the steps that come to them."""
        pfns = chunk.start_pfn + blocks.places
        keys = ((pfns >> self.order) - first) * STEPS + LAST_STEP[pfns % len(LAST_STEP)]
        pages = np.minimum(1 << blocks.orders, 1 << self.order)
        found = np.bincount(keys, pages, minlength=count * STEPS).reshape(count, STEPS)
        return found[:, ::-1].cumsum(axis=1)[:, ::-1]

    def _look_at(self, chunk: PageChunk, low: U32s, kinds: U8s, heads: S64s, ways: S64s) -> None:
        """Find those on LRU lists that cannot be moved, or not now."""
        marked = np.flatnonzero((low & self._marks) != 0)
        marked = marked[ON_LISTS[kinds[marked]]]
        for mark, way in self._marked:
            ways[marked[(low[marked] & mark) != 0]] = way
        # The page cache has a reference, and each mapping; _mapcount is one less.
        more = chunk["refcount"] - chunk["mapcount"]
        odd = np.flatnonzero(more > np.take(EXPECTED, kinds))
        flags = low[odd]
        single = (flags & self._head) == 0
        # One more is its buffers', one that of a CPU's batch, where it waits for its list.
        expected = EXPECTED[kinds[odd]] + ((flags & self._private) != 0)
        held = single & (more[odd] > expected + ((flags & self._lru) == 0))
        large = np.flatnonzero(~single)
        if self._pins and len(large):
            second = np.minimum(odd[large] + 1, len(chunk) - 1)
            held[large] = (chunk["pincount"][second] > 0) & (second > odd[large])
        odd = odd[held]
        if len(odd):
            if not single[held].all():  # their tails too
                odd = np.flatnonzero(np.isin(heads, odd))
            ways[odd] = np.where(IS_ANON[kinds[odd]], Way.HELD_ANON, Way.HELD_CACHE)

    def _unsplit(self, low: U32s, kinds: U8s, ways: S64s) -> S64s:
        """
        Find the heads of large folios of the page cache that cannot be split: under writeback, held
        by more than their mappings, or dirty with what a file system keeps of them
        (``filemap_release_folio()`` before it is split, mm/huge_memory.c 6.12).
        """
        heads = np.flatnonzero((low & self._head) != 0)
        heads = heads[ON_LISTS[kinds[heads]] & ~IS_ANON[kinds[heads]]]
        dirty, flags = self._dirty | self._private, low[heads]
        stays = ((flags & dirty) == dirty) | np.isin(ways[heads], (Way.WRITEBACK, Way.HELD_CACHE))
        found: S64s = heads[stays & (ways[heads] != Way.MLOCKED)]
        return found

    def settle(self, pfns: S64s, kinds: U8s | Kind) -> None:
        """Pages that were without a reference are of these kinds."""
        ways = np.broadcast_to(WAY_OF[kinds], len(pfns))
        self._told.append((pfns >> self.order, ways))
        self.pages[Way.UNTOLD] -= len(pfns)
        self.pages += np.bincount(ways, minlength=WAYS)

    def ranges(self) -> Array:
        """
        All ranges that are RAM throughout, ascending, once the pass is over.

        :raises ValueError: memory has no room for them.
        """
        if self.overflowed:
            raise ValueError("there are more ranges than memory has room for")
        rows = self._kept[0][: self.rows]
        if self.cut is not None:
            return rows
        numbers = rows["number"]
        if (numbers[1:] < numbers[:-1]).any():
            rows[:] = rows[np.argsort(numbers, kind="stable")]
        # One that lies in two chunks has two rows: the first gets all, the other is left empty.
        again = np.flatnonzero(numbers[1:] == numbers[:-1]) + 1
        into = np.searchsorted(numbers, numbers[again])
        for name in ("present", "free", "movable", "stepped", "passed_by"):
            np.add.at(rows[name], into, rows[name][again])
        for name in ("ways", "unsplit"):
            np.bitwise_or.at(rows[name], into, rows[name][again])
        rows["present"][again] = 0
        for told, ways in self._told:
            at = np.searchsorted(numbers, told)
            rows["ways"][at] &= ~np.uint32(1 << Way.UNTOLD)
            np.bitwise_or.at(rows["ways"], at, (1 << ways).astype(np.uint32))
            np.add.at(rows["free"], at[ways == Way.FREE], 1)
        self._told = []
        whole = rows["present"] == 1 << self.order
        self.cut = rows["zone"][~whole & (rows["present"] > 0)]
        self.rows = 0
        for begin in range(0, len(rows), BATCH):  # where they are, as they take room
            self.keep(rows[begin : begin + BATCH][whole[begin : begin + BATCH]])
        return self._kept[0][: self.rows]
