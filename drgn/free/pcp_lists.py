# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``zone.per_cpu_pageset``: free pages that each CPU keeps for itself.

They are not free to anyone else and not in NR_FREE_PAGES. ``lists[]`` is indexed by order up to
PAGE_ALLOC_COSTLY_ORDER times three migratetypes, and then one list, or two, for THP (up to v5.19
three, as of each order); before v5.14, by migratetype alone. Nothing in a struct page says that it
is on such a list, so the pass collects pages that could be (no reference, no type, a link to
another such page or to a head) and the links decide.

The text that says the same is /proc/zoneinfo, one ``count`` a CPU and zone, with no order.

Memory: 16 bytes a candidate, up to :data:`MAX_CANDIDATES`, or fewer where memory is tight.
"""

from operator import add
from typing import NamedTuple

import numpy as np
from drgn import Object, Program, ProgramFlags, offsetof, sizeof
from drgn.helpers.linux.mm import page_to_pfn

from mmscope.drgn.free.block_heads import BlockFinder, BlockHeads, ascending
from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.opening.constants import kernel_byte, pmd_order
from mmscope.drgn.reading.cpus import copy_of, online_cpus
from mmscope.drgn.reading.kernel_arrays import Bools, Gaps, S64s, U64s, struct_dtype
from mmscope.drgn.reading.linked_lists import Followed, follow_lists
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.shares import SharedColumns, merges
from mmscope.drgn.reading.struct_pages import PageChunk
from mmscope.drgn.tables.rows import MOST_PAGES, column
from mmscope.drgn.tables.table import table
from mmscope.drgn.text.proc_text import parse_zoneinfo

MAX_CANDIDATES = 8 << 20
MANY = 64  # candidates in a chunk: worth a closer look
PAGE_ALLOC_COSTLY_ORDER = 3  # include/linux/mmzone.h, a macro


@table("pcp_pages", "Free pages on per-CPU lists", memory="free")
class PcpPages:
    """Free pages on one per-CPU list."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    cpu: int = column(key=True, help="CPU that keeps them")
    order: int | None = column(key=True, help="of its blocks")
    migratetype: str | None = column(
        holds="kernel",
        key=True,
        help="'not Movable': THP has one list for the others",
    )
    pages: int = column(unit="pages", help="base pages on the list")


@table(
    "pcp_checks",
    "Per-CPU lists that differ from their count",
    empty="Every CPU's page count agrees with its lists.",
)
class PcpCheck:
    """A CPU's pageset whose ``count`` and lists disagree."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    cpu: int = column(key=True, help="CPU")
    count: int = column(unit="pages", low=None, high=MOST_PAGES, help="per_cpu_pages.count")
    listed_pages: int = column(unit="pages", high=MOST_PAGES, help="pages found on its lists")


class PcpFinder(SharedColumns):
    """Consumer of the struct page pass: pages that may lie on a per-CPU list."""

    columns = (*BlockFinder.columns, "refcount", "next")
    ROWS, KINDS = "candidates", (np.uint64, np.uint64)
    MERGES = merges(candidates=add)

    def __init__(self, prog: Program) -> None:
        page_type = prog.type("struct page")
        self.page_size = np.uint64(sizeof(page_type))
        self.link_offset = np.uint64(offsetof(page_type, "lru"))
        self.lowest = np.uint64(kernel_byte(prog) << 56)
        self._free_blocks = BlockFinder(prog)
        self.candidates, self.MOST = 0, MAX_CANDIDATES
        super().__init__()

    def take(self, chunk: PageChunk) -> None:
        blocks = self._free_blocks.of(chunk)
        if blocks.fill(0, len(chunk)):
            return
        # A free page has no reference and _mapcount -1, which also says that it has no page type;
        # the lowest bit of `next` marks a tail page, and a kernel address has all of the highest
        # ones. list_del() leaves one that has not (LIST_POISON1).
        found = np.flatnonzero((chunk["refcount"] == 0) & (chunk.packed("mapcount") == -1))
        following = chunk["next"][found]
        likely = ((following & np.uint64(7)) == 0) & (following >= self.lowest)
        found, following = found[likely], following[likely]
        addresses = np.uint64(chunk.address) + found.astype(np.uint64) * self.page_size
        addresses += self.link_offset
        # A page that was on no list since boot leads to itself: all of a new machine's, but for the
        # first of each free block.
        linked = following != addresses
        if np.count_nonzero(linked) > MANY:
            linked &= ~_behind(blocks, found)
        self.keep(addresses[linked], following[linked])

    def links(self) -> tuple[U64s, U64s]:
        """
        Addresses of the candidates' list_heads, ascending, and their ``next``.

        :raises ValueError: there were more than it had room for.
        """
        if self.overflowed:
            raise ValueError("more pages may be on per-CPU lists than there is room for")
        if not self._kept:
            raise RuntimeError("the links of per-CPU lists were let go")
        addresses, following = ascending(tuple(kept[: self.candidates] for kept in self._kept))
        return addresses, following


def _behind(blocks: BlockHeads, pages: S64s) -> Bools:
    """
    Pages after the first of a free block: in them is what was there before. Up to v5.17
    that is a link of a per-CPU list (see :func:`_linked_back`).
    """
    at = np.searchsorted(blocks.places, pages) - 1
    ends = np.append(blocks.ends, 0)
    return pages < ends[at]  # the last of them, where at is -1


def list_kinds(prog: Program, names: list[str]) -> list[tuple[int, str]]:
    """
    Order and migratetype of each of ``per_cpu_pages.lists[]`` (``order_to_pindex()``).

    "mm: page_alloc: use separate lists for movable and unmovable THP on PCP" (bf14ed81f571, in
    v6.10, and in stable kernels) made two THP lists out of one, and "mm/page_alloc: use only one
    PCP list for THP-sized allocations" (5d0a661d808f, in v6.0) one out of one for each migratetype;
    before "mm/page_alloc: allow high-order pages to be stored on the per-cpu lists" (44042b449872,
    in v5.14) all are of order 0. The array's length shows which.
    """
    length = prog.type("struct per_cpu_pages").member("lists").type.length or 0
    types = prog.constant("MIGRATE_PCPTYPES").value_()
    low = types * (PAGE_ALLOC_COSTLY_ORDER + 1)
    kinds = [
        (order, names[mt]) for order in range(PAGE_ALLOC_COSTLY_ORDER + 1) for mt in range(types)
    ]
    thp = pmd_order(prog)
    if length == low + 1:
        kinds.append((thp, "any"))
    elif length == low + 2:
        kinds += [(thp, "not Movable"), (thp, "Movable")]
    elif length == low + types:
        kinds += [(thp, names[mt]) for mt in range(types)]
    elif length == types:
        kinds = kinds[:types]
    elif length != low:
        raise LookupError(f"per_cpu_pages has {length} lists, which is no layout known here")
    return kinds


def per_cpu_pages(zone: Object, cpu: int) -> Object:
    """
    ``struct per_cpu_pages *`` of a CPU: a part of ``struct per_cpu_pageset`` before "mm/page_alloc:
    split per cpu page lists and zone stats" (28f836b6777b, in v5.14).
    """
    if zone.prog_.type("struct zone").has_member("per_cpu_pageset"):
        return copy_of(zone.per_cpu_pageset, cpu)
    return copy_of(zone.pageset, cpu).pcp.address_of_()


class PcpLists(NamedTuple):
    """
    Pages on each per-CPU list that has any, and the pagesets whose ``count`` says otherwise.

    ``pfns`` and ``orders`` are of each block on any of the lists.
    """

    rows: list[PcpPages]
    checks: list[PcpCheck]
    pfns: S64s
    orders: S64s


def pcp_pages(prog: Program, finder: PcpFinder, names: list[str]) -> PcpLists:
    """
    Read the per-CPU lists.

    :param names: the migratetypes' names.
    :raises FaultError: a pageset cannot be read.
    :raises LookupError: the lists are laid out in a way not known here.
    """
    kinds = list_kinds(prog, names)
    list_size = sizeof(prog.type("struct list_head"))
    lists_offset = offsetof(prog.type("struct per_cpu_pages"), "lists")
    pagesets = [
        ((node, zone_name(zone), cpu), per_cpu_pages(zone, cpu))
        for node, _, zone in for_each_zone(prog)
        # Empty zones share the boot pageset (mm/page_alloc.c), whose lists are of no zone.
        if zone.present_pages.value_()
        for cpu in online_cpus(prog)
    ]
    bases = np.array([pageset.value_() for _, pageset in pagesets], np.uint64)
    offsets = lists_offset + np.arange(len(kinds)) * list_size
    heads = (bases[:, None] + offsets.astype(np.uint64)).ravel()
    by_address = np.argsort(heads)
    orders_of = np.array([order for order, _ in kinds], np.int64)
    counts = np.array([pageset.count.value_() for _, pageset in pagesets], np.int64)

    def listed(followed: Followed) -> S64s:
        """Pages of each list, by pageset."""
        blocks = np.zeros(len(heads), np.int64)
        home = followed.head[followed.head >= 0]
        blocks[by_address] = np.bincount(home, minlength=len(heads))
        return np.asarray(blocks.reshape(-1, len(kinds)) << orders_of)

    addresses, following = finder.links()
    followed = follow_lists(addresses, following, heads[by_address])
    pages = listed(followed)
    if not prog.flags & ProgramFlags.IS_LIVE and (pages.sum(axis=1) != counts).any():
        addresses, following = _linked_back(prog, addresses, following, followed)
        followed = follow_lists(addresses, following, heads[by_address])
        pages = listed(followed)
    rows = [
        PcpPages(*place, order, migratetype, number)
        for (place, _), numbers in zip(pagesets, pages.tolist(), strict=True)
        for (order, migratetype), number in zip(kinds, numbers, strict=True)
        if number
    ]
    sums = zip(pagesets, counts.tolist(), pages.sum(axis=1).tolist(), strict=True)
    checks = [PcpCheck(*place, said, found) for (place, _), said, found in sums if said != found]
    listed_at = np.flatnonzero(followed.head >= 0)
    pfns = _page_frames(prog, addresses[listed_at] - finder.link_offset)
    orders = orders_of[by_address[followed.head[listed_at]] % len(kinds)]
    return PcpLists(rows, checks, pfns, orders)


def _linked_back(
    prog: Program, addresses: U64s, following: U64s, followed: Followed
) -> tuple[U64s, U64s]:
    """
    The entries whose next one has them as its ``prev``. Before "mm/page_alloc: free pages in a
    single pass during bulk free" (8b10b465d0e1, in v5.18) a page that ``free_pcppages_bulk()`` gave
    back kept its ``next``, which may be on a list by now.
    """
    here = np.flatnonzero(followed.head >= 0)
    dtype = struct_dtype(prog.type("struct list_head"), {"prev": "prev"})
    after, read = read_scattered(prog, following[here], dtype, Gaps())
    here = here[read & (after["prev"] == addresses[here])]
    return addresses[here], following[here]


def _page_frames(prog: Program, pages: U64s) -> S64s:
    """The page frames of struct pages."""
    if not len(pages):
        return np.empty(0, np.int64)
    first = page_to_pfn(Object(prog, "struct page *", int(pages[0]))).value_()
    size = sizeof(prog.type("struct page"))
    # Neighbours in the array are neighbours in memory; the first may be after the others.
    return np.asarray(first + (pages - pages[0]).astype(np.int64) // size)


def read_zoneinfo_pcp(text: str) -> list[PcpPages]:
    """
    The same from /proc/zoneinfo: pages by zone and CPU, order and migratetype unknown.

    :raises ValueError: the text is not /proc/zoneinfo's, or not all of it.
    """
    return [
        PcpPages(zone.node, zone.zone, cpu, None, None, pageset["count"])
        for zone in parse_zoneinfo(text)
        for cpu, pageset in zone.pagesets.items()
        if pageset["count"]
    ]


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("pcp_lists")
