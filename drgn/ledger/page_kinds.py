# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The use of a page, as far as its struct page has it.

Of a compound page the head says it for all, of a free block its first page. What decides, in this
order (include/linux/page-flags.h, mm_types.h):

- the page type, in place of ``_mapcount``: a value of ``enum pagetype`` in the highest byte since
  "mm: support only one page_type per page" (4ffca5a96678, in v6.12), a bit that is *clear* before;
- ``PG_slab`` and the destructor of hugetlb pages, where these are not types yet: before "mm: free
  up PG_slab" (46df8e73a4a3, in v6.10) and "mm: turn folio_test_hugetlb into a PageType"
  (d99e3140a4d3, in v6.9);
- ``PG_reserved``: never given to the page allocator, or taken off it;
- ``mapping``: bit 0 anonymous memory, both low bits KSM, no bit a file; bit 1 alone a driver's
  pages that can be migrated (``PAGE_MAPPING_MOVABLE``, in 6.12; in 7.2 they have a page type);
  whose they are is behind that bit (:class:`_Movable`);
- ``pp_magic``: the page pool of the network stack, since "mm: add a signature in struct page"
  (c07aea3ef4d4, in v5.14); before, its pages have no mark;
- a reference, or none.

Cannot know: who allocated what has none of these marks, which a page_owner stack or an alloc_tag
tells; and large allocations of kmalloc() of a kernel without ``PGTY_large_kmalloc`` (6.12), which
look like any compound page.
"""

from dataclasses import dataclass, field

import numpy as np
from drgn import FaultError, Object, Program
from numpy.typing import NDArray

from mmscope.drgn.opening.constants import constant, flag, vmcoreinfo_number
from mmscope.drgn.reading.kernel_arrays import distinct
from mmscope.drgn.reading.struct_pages import PageChunk
from mmscope.drgn.reading.symbols import variable_of
from mmscope.drgn.workers.shares import InexactError


@dataclass(frozen=True, slots=True)
class Kind:
    """A use of pages: a class, and the part of it."""

    owner: str
    part: str


# In the order of the ledger. The numbers are positions.
KINDS = (
    Kind("unexplained", "single pages"),
    Kind("unexplained", "compound pages"),
    Kind("unexplained", "tail of a block that is no compound page"),
    Kind("unexplained", "no reference, on no list"),
    Kind("unexplained", "tail without a head"),
    Kind("unexplained", "struct page not initialised"),
    Kind("free", "free lists"),
    Kind("free", "per-CPU lists"),
    Kind("free", "not accepted"),
    Kind("anonymous", "base pages"),
    Kind("anonymous", "large folios"),
    Kind("anonymous", "KSM"),
    Kind("anonymous", "in the swap cache"),
    Kind("page cache", "files"),
    Kind("page cache", "shmem"),
    Kind("page cache", "swapped in, of nobody yet"),
    Kind("hugetlb", "in use"),
    Kind("hugetlb", "free in the pool"),
    Kind("slab", "reclaimable"),
    Kind("slab", "unreclaimable"),
    Kind("slab", "large kmalloc"),
    Kind("vmalloc", "areas"),
    Kind("kernel stacks", "stacks"),
    Kind("percpu", "chunks"),
    Kind("page tables", "with the page type"),
    Kind("page tables", "without the page type: roots"),
    Kind("page tables", "without the page type: the kernel's"),
    Kind("memory about memory", "struct pages"),
    Kind("memory about memory", "page_ext"),
    Kind("memory about memory", "KASAN shadow"),
    Kind("kernel reserves", "DMA pools"),
    Kind("kernel reserves", "mempools"),
    Kind("kernel reserves", "huge zero page"),
    Kind("compressed", "zsmalloc"),
    Kind("network", "page pools"),
    Kind("given away", "balloon or offline"),
    Kind("driver", "pages that can be migrated"),
    Kind("guard", "guard pages of debug_pagealloc"),
    Kind("bad", "hwpoison"),
    Kind("boot", "kernel image"),
    Kind("boot", "percpu"),
    Kind("boot", "crash kernel"),
    Kind("boot", "other"),
)
NUMBER = {(kind.owner, kind.part): number for number, kind in enumerate(KINDS)}

IN_USE, COMPOUND, TAIL_OF_BLOCK, NO_REFERENCE, NO_HEAD, UNINITIALISED = range(6)
FREE = NUMBER["free", "free lists"]
PER_CPU = NUMBER["free", "per-CPU lists"]
UNACCEPTED = NUMBER["free", "not accepted"]
ANON, LARGE, KSM = (NUMBER["anonymous", part] for part in ("base pages", "large folios", "KSM"))
ANON_SWAP = NUMBER["anonymous", "in the swap cache"]
FILE, SHMEM = (NUMBER["page cache", part] for part in ("files", "shmem"))
SWAP_CACHE = NUMBER["page cache", "swapped in, of nobody yet"]
HUGETLB, HUGETLB_FREE = (NUMBER["hugetlb", part] for part in ("in use", "free in the pool"))
RECLAIMABLE, SLAB, LARGE_KMALLOC = (
    NUMBER["slab", part] for part in ("reclaimable", "unreclaimable", "large kmalloc")
)
VMALLOC = NUMBER["vmalloc", "areas"]
STACK = NUMBER["kernel stacks", "stacks"]
PERCPU = NUMBER["percpu", "chunks"]
TABLE, ROOT_TABLE, KERNEL_TABLE = (
    NUMBER["page tables", part]
    for part in (
        "with the page type",
        "without the page type: roots",
        "without the page type: the kernel's",
    )
)
MEMMAP, PAGE_EXT, SHADOW = (
    NUMBER["memory about memory", part] for part in ("struct pages", "page_ext", "KASAN shadow")
)
DMA_POOL, MEMPOOL, HUGE_ZERO = (
    NUMBER["kernel reserves", part] for part in ("DMA pools", "mempools", "huge zero page")
)
ZSMALLOC = NUMBER["compressed", "zsmalloc"]
PAGE_POOL = NUMBER["network", "page pools"]
OFFLINE = NUMBER["given away", "balloon or offline"]
MOVABLE_OPS = NUMBER["driver", "pages that can be migrated"]
GUARD = NUMBER["guard", "guard pages of debug_pagealloc"]
POISONED = NUMBER["bad", "hwpoison"]
IMAGE, BOOT_PERCPU, CRASH, BOOT = (
    NUMBER["boot", part] for part in ("kernel image", "percpu", "crash kernel", "other")
)

# What the kernel allocated for itself with alloc_pages(): its lines of source are of interest.
OF_KERNEL = (
    *("unexplained", "vmalloc", "kernel stacks", "percpu", "page tables", "kernel reserves"),
    *("compressed", "network", "given away", "driver"),
)
TAGGED = np.zeros(256, np.bool_)
TAGGED[: len(KINDS)] = [kind.owner in OF_KERNEL for kind in KINDS]
TAGGED[[LARGE_KMALLOC, NO_REFERENCE]] = True, True

# PGTY_*, since "mm: support only one page_type per page" (4ffca5a96678, in v6.12); before, the bit
# that is clear.
TYPES = {
    "buddy": FREE,
    "offline": OFFLINE,
    "table": TABLE,
    "guard": GUARD,
    "hugetlb": HUGETLB,
    "slab": SLAB,
    "zsmalloc": ZSMALLOC,
    "unaccepted": UNACCEPTED,
    "large_kmalloc": LARGE_KMALLOC,
}
# Macros (in 6.1). 5.10 has PG_kmemcg between them, which page.memcg_data replaced.
BITS = {"buddy": 0x80, "offline": 0x100, "table": 0x200, "guard": 0x400}
BITS_WITH_KMEMCG = {"buddy": 0x80, "offline": 0x100, "table": 0x400, "guard": 0x800}
TYPE_BASE = 0xF0000000
# PAGE_MAPCOUNT_RESERVE (-128): below, the word is a type. No mapcount is, in any of the encodings.
NO_TYPE_FROM = -128
# PP_SIGNATURE (include/linux/poison.h) with POISON_POINTER_DELTA of x86-64 and arm64. Bits 0 and 1
# are others', and those from 7 to 47 may be an index (PP_DMA_INDEX_MASK, in 7.2).
PP_MASK, PP_SIGNATURE = np.uint64(0xFFFF_0000_0000_007C), np.uint64(0xDEAD_0000_0000_0040)
OF_MAPPING = (FILE, ANON, MOVABLE_OPS, KSM)
MOST_POOLS = 1 << 10  # of zsmalloc, a zram device or zswap has one
# PG_swapcache is PG_owner_priv_1, and counts with PG_swapbacked only.
SWAP_FLAGS = ("PG_swapbacked", "PG_swapcache")

MAX_SIGNATURES = 4096  # kinds of unexplained pages
EXAMPLES = 3

# The byte of PageKinds._marks(): a reference; a mapping, and its two low bits; four page flags.
REFERENCED, MAPPED, HEAD, RESERVED, BACKED, CACHED = (1 << bit for bit in (0, 1, 4, 5, 6, 7))


def _by_marks(marks: int) -> int:
    """The kind of a page that has no type, and is no page pool's."""
    if marks & RESERVED:
        return BOOT
    in_swap = marks & BACKED and marks & CACHED
    if not marks & MAPPED:
        if not marks & REFERENCED:
            return NO_REFERENCE
        if in_swap:
            return SWAP_CACHE
        return COMPOUND if marks & HEAD else IN_USE
    kind = OF_MAPPING[marks >> 2 & 3]
    if kind == ANON and in_swap:
        return ANON_SWAP
    if kind == ANON and marks & HEAD:
        return LARGE
    return SHMEM if kind == FILE and marks & BACKED else kind


BY_MARKS = np.array([_by_marks(marks) for marks in range(256)], np.uint8)


class PageKinds:
    """The kinds of heads and of pages of their own, by this kernel's encoding."""

    def __init__(self, prog: Program) -> None:
        self._tests = _type_tests(prog)
        self.head, self.reserved, *swap = (
            np.uint32(flag(prog, name)) for name in ("PG_head", "PG_reserved", *SWAP_FLAGS)
        )
        self._flags = (self.head, self.reserved, *swap)
        self.poison = np.uint32(flag(prog, "PG_hwpoison"))
        # "mm: free up PG_slab" (46df8e73a4a3, in v6.10)
        as_type = vmcoreinfo_number(prog, "NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)") is not None
        self._slab = np.uint32(0 if as_type else flag(prog, "PG_slab"))
        self._dtor = None
        if vmcoreinfo_number(prog, "NUMBER(PAGE_HUGETLB_MAPCOUNT_VALUE)") is None:
            self._dtor = vmcoreinfo_number(prog, "NUMBER(HUGETLB_PAGE_DTOR)")
        self._movable = (
            _Movable(prog) if ZSMALLOC not in {kind for kind, _, _ in self._tests} else None
        )
        self.columns = (
            *("flags", "mapcount", "refcount", "mapping", "tail", "private", "order"),
            *(("dtor",) if self._dtor is not None else ()),
        )

    def of(
        self, chunk: PageChunk, flags: NDArray[np.uint32], words: NDArray[np.uint64]
    ) -> NDArray[np.uint8]:
        """
        The kind of each page, tails and what lies in free blocks not yet told apart.

        :param flags: the lower half of the word; no page flag is above it.
        :param words: column ``tail``.
        """
        marks = self._marks(chunk, flags)
        kinds = np.take(BY_MARKS, marks)
        pool = np.flatnonzero((words & PP_MASK) == PP_SIGNATURE)
        if len(pool):
            kinds[pool[(marks[pool] & (REFERENCED | RESERVED)) == REFERENCED]] = PAGE_POOL
        typed = np.flatnonzero(chunk["mapcount"] < NO_TYPE_FROM)
        if len(typed):
            kinds[typed] = self._of_types(chunk["mapcount"][typed].view(np.uint32), kinds[typed])
        if self._slab:
            kinds[(flags & self._slab) != 0] = SLAB
        if self._dtor is not None:
            heads = np.flatnonzero((flags[:-1] & self.head) != 0)
            kinds[heads[chunk["dtor"][heads + 1] == self._dtor]] = HUGETLB
        kinds[(kinds == HUGETLB) & ((marks & REFERENCED) == 0)] = HUGETLB_FREE
        if self._movable is not None:
            movable = np.flatnonzero(kinds == MOVABLE_OPS)
            if len(movable):
                kinds[movable[self._movable.of_zsmalloc(chunk["mapping"][movable])]] = ZSMALLOC
        return kinds

    def _marks(self, chunk: PageChunk, flags: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """The bits that decide in most pages, as a byte a page: see :data:`REFERENCED`."""
        mapping = np.ascontiguousarray(chunk["mapping"])
        marks: NDArray[np.uint8] = (chunk["refcount"] != 0).view(np.uint8)
        marks |= (mapping != 0).view(np.uint8) << np.uint8(1)
        marks |= (mapping.astype(np.uint8) & np.uint8(3)) << np.uint8(2)
        for bit, mask in enumerate(self._flags, 4):
            marks |= ((flags & mask) != 0).view(np.uint8) << np.uint8(bit)
        return marks

    def _of_types(
        self, types: NDArray[np.uint32], otherwise: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        kinds = otherwise
        for kind, mask, value in self._tests:
            kinds[(types & np.uint32(mask)) == np.uint32(value)] = kind
        return kinds


class _Movable:
    """
    Pages of a driver that are zsmalloc's, where these have no page type.

    That is so before "mm/zsmalloc: use a proper page type" (43d746dc49bb, in v6.11): ``mapping``
    leads to the driver's ``struct movable_operations``, or, before "mm: Convert all PageMovable
    users to movable_operations" (68f2736a8583, in v6.0), to an address_space with its operations.
    """

    def __init__(self, prog: Program) -> None:
        self._prog = prog
        self._operations = variable_of(prog, "zsmalloc", "zsmalloc_mops")
        self._spaces_operations = variable_of(prog, "zsmalloc", "zsmalloc_aops")
        self._spaces: dict[int, bool] = {}

    def of_zsmalloc(self, mapping: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Pages whose mapping is zsmalloc's."""
        pointers = mapping & ~np.uint64(3)
        if self._operations is not None:
            return np.asarray(pointers == np.uint64(self._operations))
        if self._spaces_operations is None:
            return np.zeros(len(mapping), np.bool_)
        # A pool has one; more than a few are of a damaged dump.
        for pointer in distinct(pointers)[:MOST_POOLS].tolist():
            if pointer not in self._spaces and len(self._spaces) < MOST_POOLS:
                self._spaces[pointer] = self._is_zsmallocs(pointer)
        ours = [pointer for pointer, is_so in self._spaces.items() if is_so]
        return np.isin(pointers, np.array(ours, np.uint64))

    def _is_zsmallocs(self, pointer: int) -> bool:
        space = Object(self._prog, "struct address_space", address=pointer)
        try:
            return bool(space.a_ops.value_() == self._spaces_operations)
        except FaultError:
            return False


def _type_tests(prog: Program) -> list[tuple[int, int, int]]:
    """The kind of each page type, with its mask and value."""
    tests = []
    if (buddy := constant(prog, "PGTY_buddy", -1)) >= 0 and buddy < 0x100:
        for name, kind in TYPES.items():
            if (number := constant(prog, f"PGTY_{name}", -1)) >= 0:
                tests.append((kind, 0xFF000000, number << 24))
        return tests
    bits: dict[str, int] = {}
    base = constant(prog, "PAGE_TYPE_BASE", TYPE_BASE) & 0xFFFFFFFF
    # "mm: convert page type macros to enum" (ff202303c398, in v6.11)
    for name in TYPES:
        if (bit := constant(prog, f"PG_{name}", -1)) > 0x1000:
            bits[name] = bit
    if not bits:
        with_kmemcg = not prog.type("struct page").has_member("memcg_data")
        bits = BITS_WITH_KMEMCG if with_kmemcg else BITS
    return [(TYPES[name], base | bit, base) for name, bit in bits.items()]


# What unexplained pages look like: kind, zone index, page flags, references (at most
# ledger_pages.MOST_REFERENCES), order of the compound page or -1, and bits of memcg_data (CHARGED).
Signature = tuple[int, ...]
KMEM, PAGE_OF_CGROUP = 2, 4  # charged to a memory cgroup: as kernel memory, or as a page


@dataclass
class Unexplained:
    """Pages of a signature."""

    pages: int = 0
    examples: list[int] = field(default_factory=list)  # page frames of heads


def merged_signatures(
    mine: dict[Signature, Unexplained], theirs: dict[Signature, Unexplained]
) -> dict[Signature, Unexplained]:
    for key, each in theirs.items():
        entry = mine.setdefault(key, Unexplained())
        entry.pages += each.pages
        entry.examples += each.examples[: EXAMPLES - len(entry.examples)]
    if len(mine) >= MAX_SIGNATURES:
        raise InexactError
    return mine
