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
  whose they are is behind that bit;
- ``pp_magic``: the page pool of the network stack, since "mm: add a signature in struct page"
  (c07aea3ef4d4, in v5.14); before, its pages have no mark;
- a reference, or none;
- of what is left, ``private``: the pages of ZFS's ARC have a number of its own there.

Cannot know: who allocated what has none of these marks, which a page_owner stack or an alloc_tag
tells. Large allocations of kmalloc() of a kernel without ``PGTY_large_kmalloc`` (6.12) look like
any compound page: see ``LedgerPages.settle_large()``.
"""

import contextlib
import enum
from collections.abc import Callable

import numpy as np
from drgn import FaultError, Object, Program

from mmscope.drgn.opening.constants import constant, flag, is_powerpc, vmcoreinfo_number
from mmscope.drgn.reading.kernel_arrays import Bools, U8s, U32s, U64s, distinct
from mmscope.drgn.reading.struct_pages import PageChunk
from mmscope.drgn.reading.symbols import variable_of


class Kind(enum.IntEnum):
    """A use of pages: a class (*owner*) and the part of it; in the order of the ledger."""

    owner: str
    part: str

    def __new__(cls, owner: str, part: str) -> "Kind":
        kind = int.__new__(cls, len(cls.__members__))
        kind._value_ = len(cls.__members__)
        kind.owner, kind.part = owner, part
        return kind

    IN_USE = "unexplained", "single pages"
    COMPOUND = "unexplained", "compound pages"
    TAIL_OF_BLOCK = "unexplained", "tail of a block that is no compound page"
    NO_REFERENCE = "unexplained", "no reference, on no list"
    NO_HEAD = "unexplained", "tail without a head"
    UNINITIALISED = "unexplained", "struct page not initialised"
    FREE = "free", "free lists"
    PER_CPU = "free", "per-CPU lists"
    UNACCEPTED = "free", "not accepted"
    ANON = "anonymous", "base pages"
    LARGE = "anonymous", "large folios"
    KSM = "anonymous", "KSM"
    ANON_SWAP = "anonymous", "in the swap cache"
    FILE = "page cache", "files"
    SHMEM = "page cache", "shmem"
    SWAP_CACHE = "page cache", "swapped in, of nobody yet"
    ARC = "page cache", "ZFS's ARC, which reclaim shrinks"
    HUGETLB = "hugetlb", "in use"
    HUGETLB_FREE = "hugetlb", "free in the pool"
    RECLAIMABLE = "slab", "reclaimable"
    SLAB = "slab", "unreclaimable"
    LARGE_KMALLOC = "slab", "large kmalloc"
    VMALLOC = "vmalloc", "areas"
    STACK = "kernel stacks", "stacks"
    STACK_BLOCK = "kernel stacks", "stacks that are no vmalloc memory"
    PERCPU = "percpu", "chunks"
    TABLE = "page tables", "with the page type"
    ROOT_TABLE = "page tables", "without the page type: upper levels of processes"
    KERNEL_TABLE = "page tables", "without the page type: the kernel's"
    MACHINE_TABLE = "page tables", "of virtual machines"
    IOMMU_TABLE = "page tables", "of IOMMUs, and their queues"
    MEMMAP = "memory about memory", "struct pages"
    PAGE_EXT = "memory about memory", "page_ext"
    SHADOW = "memory about memory", "KASAN shadow"
    DMA_POOL = "kernel reserves", "DMA pools"
    MEMPOOL = "kernel reserves", "mempools"
    BLOCK_REQUEST = "kernel reserves", "requests of block devices"
    HUGE_ZERO = "kernel reserves", "huge zero page"
    ZSMALLOC = "compressed", "zsmalloc"
    PAGE_POOL = "network", "page pools"
    SOCKET = "network", "socket buffers"
    PIPE = "pipes", "data that waits"
    IO_URING = "rings", "io_uring"
    PERF_RING = "rings", "perf"
    BPF_RING = "rings", "BPF"
    TRACE_RING = "rings", "ftrace"
    FTRACE = "tracing", "functions and names"
    STACK_DEPOT = "tracing", "stacks that are kept"
    OFFLINE = "given away", "balloon or offline"
    MOVABLE_OPS = "driver", "pages that can be migrated"
    DMA_BUF = "driver", "dma-bufs"
    GRAPHICS = "driver", "buffers of graphics cards"
    MACHINE_CPU = "driver", "vCPUs and spare tables of virtual machines"
    MODULE_CACHE = "driver", "on a list of a module that has a shrinker"
    GUARD = "guard", "guard pages of debug_pagealloc"
    POISONED = "bad", "hwpoison"
    IMAGE = "boot", "kernel image"
    BOOT_PERCPU = "boot", "percpu"
    CRASH = "boot", "crash kernel"
    BOOT = "boot", "other"


KINDS = tuple(Kind)


def kinds_where(holds: Callable[[Kind], bool]) -> Bools:
    """Mask of the kinds that something holds for, by their numbers."""
    return np.array([number < len(KINDS) and holds(KINDS[number]) for number in range(256)])


# What the kernel allocated for itself with alloc_pages(): its lines of source are of interest.
OF_KERNEL = (
    *("unexplained", "vmalloc", "kernel stacks", "percpu", "page tables", "kernel reserves"),
    *("compressed", "network", "given away", "driver", "pipes", "rings", "tracing"),
)
TAGGED = kinds_where(
    lambda kind: kind.owner in OF_KERNEL or kind in (Kind.LARGE_KMALLOC, Kind.NO_REFERENCE)
)

# PGTY_*, since "mm: support only one page_type per page" (4ffca5a96678, in v6.12); before, the bit
# that is clear.
TYPES = {
    "buddy": Kind.FREE,
    "offline": Kind.OFFLINE,
    "table": Kind.TABLE,
    "guard": Kind.GUARD,
    "hugetlb": Kind.HUGETLB,
    "slab": Kind.SLAB,
    "zsmalloc": Kind.ZSMALLOC,
    "unaccepted": Kind.UNACCEPTED,
    "large_kmalloc": Kind.LARGE_KMALLOC,
}
# Macros (in 6.1). 5.10 has PG_kmemcg between them, which page.memcg_data replaced.
BITS = {"buddy": 0x80, "offline": 0x100, "table": 0x200, "guard": 0x400}
BITS_WITH_KMEMCG = {"buddy": 0x80, "offline": 0x100, "table": 0x400, "guard": 0x800}
TYPE_BASE = 0xF0000000
# PAGE_MAPCOUNT_RESERVE (-128): below, the word is a type. No mapcount is, in any of the encodings.
NO_TYPE_FROM = -128
# PP_SIGNATURE (include/linux/poison.h) with POISON_POINTER_DELTA of x86-64 and arm64. Bits 0 and 1
# are others', and those from 7 to 47 may be an index (PP_DMA_INDEX_MASK, in 7.2).
PP_SIGNATURE = np.uint64(0xFFFF_0000_0000_007C), np.uint64(0xDEAD_0000_0000_0040)
# powerpc's (CONFIG_ILLEGAL_POINTER_VALUE), below which is less room for an index.
PP_SIGNATURE_POWER = np.uint64(0xFFFF_FFFF_F000_007C), np.uint64(0x5DEA_DBEE_F000_0040)
# ABD_FILE_CACHE_PAGE (module/os/linux/zfs/abd_os.c): scattered buffers, which is most of the ARC.
ZFS_PAGE = np.uint64(0x2F5ABDF11ECAC4E)
OF_MAPPING = (Kind.FILE, Kind.ANON, Kind.MOVABLE_OPS, Kind.KSM)
MOST_POOLS = 1 << 10  # of zsmalloc, a zram device or zswap has one
# PG_swapcache is PG_owner_priv_1, and counts with PG_swapbacked only.
SWAP_FLAGS = ("PG_swapbacked", "PG_swapcache")

# The byte of PageKinds._marks(): a reference; a mapping, and its two low bits; four page flags.
REFERENCED, MAPPED, HEAD, RESERVED, BACKED, CACHED = (1 << bit for bit in (0, 1, 4, 5, 6, 7))


def _by_marks(marks: int) -> int:
    """The kind of a page that has no type, and is no page pool's."""
    if marks & RESERVED:
        return Kind.BOOT
    in_swap = marks & BACKED and marks & CACHED
    if not marks & MAPPED:
        if not marks & REFERENCED:
            return Kind.NO_REFERENCE
        if in_swap:
            return Kind.SWAP_CACHE
        return Kind.COMPOUND if marks & HEAD else Kind.IN_USE
    kind = OF_MAPPING[marks >> 2 & 3]
    if kind == Kind.ANON and in_swap:
        return Kind.ANON_SWAP
    if kind == Kind.ANON and marks & HEAD:
        return Kind.LARGE
    return Kind.SHMEM if kind == Kind.FILE and marks & BACKED else kind


BY_MARKS = np.array([_by_marks(marks) for marks in range(256)], np.uint8)


class PageKinds:
    """The kinds of heads and of pages of their own, by this kernel's encoding."""

    def __init__(self, prog: Program) -> None:
        self._tests = _type_tests(prog)
        self.head, self.reserved, *swap = (
            np.uint32(flag(prog, name)) for name in ("PG_head", "PG_reserved", *SWAP_FLAGS)
        )
        self.marks_large = Kind.LARGE_KMALLOC in {kind for kind, _, _ in self._tests}
        self._flags = (self.head, self.reserved, *swap)
        self.poison = np.uint32(flag(prog, "PG_hwpoison"))
        # "mm: free up PG_slab" (46df8e73a4a3, in v6.10)
        as_type = vmcoreinfo_number(prog, "NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)") is not None
        self._slab = np.uint32(0 if as_type else flag(prog, "PG_slab"))
        self._dtor = None
        if vmcoreinfo_number(prog, "NUMBER(PAGE_HUGETLB_MAPCOUNT_VALUE)") is None:
            self._dtor = vmcoreinfo_number(prog, "NUMBER(HUGETLB_PAGE_DTOR)")
        # Before "mm/zsmalloc: use a proper page type" (43d746dc49bb, in v6.11) mapping leads to the
        # driver's struct movable_operations; or, before "mm: Convert all PageMovable users to
        # movable_operations" (68f2736a8583, in v6.0), to an address_space with its operations.
        self._mops = self._aops = None
        if Kind.ZSMALLOC not in {kind for kind, _, _ in self._tests}:
            self._mops = variable_of(prog, "zsmalloc", "zsmalloc_mops")
            self._aops = variable_of(prog, "zsmalloc", "zsmalloc_aops")
        self._pool_mask, self._pool = PP_SIGNATURE_POWER if is_powerpc(prog) else PP_SIGNATURE
        self._prog, self._spaces = prog, dict[int, bool]()  # address_spaces: of zsmalloc, or not
        self.columns = (
            *("flags", "mapcount", "refcount", "mapping", "tail", "private", "order"),
            *(("dtor",) if self._dtor is not None else ()),
        )

    def of(self, chunk: PageChunk, flags: U32s, words: U64s) -> U8s:
        """
        The kind of each page, tails and what lies in free blocks not yet told apart.

        :param flags: the lower half of the word; no page flag is above it.
        :param words: column ``tail``.
        """
        marks = self._marks(chunk, flags)
        kinds = np.take(BY_MARKS, marks)
        pool = np.flatnonzero((words & self._pool_mask) == self._pool)
        if len(pool):
            kinds[pool[(marks[pool] & (REFERENCED | RESERVED)) == REFERENCED]] = Kind.PAGE_POOL
        arc = np.flatnonzero(chunk["private"] == ZFS_PAGE)
        kinds[arc[(kinds[arc] == Kind.IN_USE) | (kinds[arc] == Kind.COMPOUND)]] = Kind.ARC
        typed = np.flatnonzero(chunk["mapcount"] < NO_TYPE_FROM)
        if len(typed):
            types = chunk["mapcount"][typed].view(np.uint32)
            for kind, mask, value in self._tests:
                kinds[typed[(types & np.uint32(mask)) == np.uint32(value)]] = kind
        if self._slab:
            kinds[(flags & self._slab) != 0] = Kind.SLAB
        if self._dtor is not None:
            heads = np.flatnonzero((flags[:-1] & self.head) != 0)
            kinds[heads[chunk["dtor"][heads + 1] == self._dtor]] = Kind.HUGETLB
        kinds[(kinds == Kind.HUGETLB) & ((marks & REFERENCED) == 0)] = Kind.HUGETLB_FREE
        movable = np.flatnonzero(kinds == Kind.MOVABLE_OPS)
        if len(movable):
            kinds[movable[self._of_zsmalloc(chunk["mapping"][movable])]] = Kind.ZSMALLOC
        return kinds

    def _marks(self, chunk: PageChunk, flags: U32s) -> U8s:
        """The bits that decide in most pages, as a byte a page: see :data:`REFERENCED`."""
        mapping = np.ascontiguousarray(chunk["mapping"])
        marks: U8s = (chunk["refcount"] != 0).view(np.uint8)
        marks |= (mapping != 0).view(np.uint8) << np.uint8(1)
        marks |= (mapping.astype(np.uint8) & np.uint8(3)) << np.uint8(2)
        for bit, mask in enumerate(self._flags, 4):
            marks |= ((flags & mask) != 0).view(np.uint8) << np.uint8(bit)
        return marks

    def _of_zsmalloc(self, mapping: U64s) -> Bools:
        """Pages of a driver whose mapping is zsmalloc's."""
        pointers = mapping & ~np.uint64(3)
        if self._mops is not None:
            return np.asarray(pointers == np.uint64(self._mops))
        if self._aops is None:
            return np.zeros(len(mapping), np.bool_)
        # A pool has one; more than a few are of a damaged dump.
        for pointer in distinct(pointers)[:MOST_POOLS].tolist():
            if pointer not in self._spaces and len(self._spaces) < MOST_POOLS:
                space = Object(self._prog, "struct address_space", address=pointer)
                self._spaces[pointer] = False
                with contextlib.suppress(FaultError):
                    self._spaces[pointer] = bool(space.a_ops.value_() == self._aops)
        ours = [pointer for pointer, is_so in self._spaces.items() if is_so]
        return np.isin(pointers, np.array(ours, np.uint64))


def _type_tests(prog: Program) -> list[tuple[Kind, int, int]]:
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
