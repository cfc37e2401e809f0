# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The memory map: every valid ``struct page``, once.

One pass reads the array chunk by chunk and shows each chunk to all consumers, so that ten probes
cost one pass and memory stays bounded whatever the machine's size. A consumer names the columns
it needs (keys of :data:`COLUMNS`) and takes chunks; one that raises is dropped and the others go
on.

A page that cannot be read is counted and not shown. On a live kernel the pages change while
they are read: each chunk is one instant, the whole is not.
"""

import contextlib
import functools
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from drgn import Object, ObjectNotFoundError, Program, Type, cast, sizeof

from mmscope.drgn.reading.kernel_arrays import (
    CHUNK_BYTES,
    Array,
    Gaps,
    S64s,
    laid_out,
    member_path,
    read_array,
    struct_dtype,
)
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.shares import Shared
from mmscope.drgn.workers.workers import KILLED, SHARES_A_JOB, NotSharedError, in_workers, picklable

# struct page (include/linux/mm_types.h), the newest layout first.
COLUMNS: dict[str, tuple[str, ...]] = {
    # "mm: introduce memdesc_flags_t" (53fbef56e07d, in v6.18) wrapped the word.
    "flags": ("flags.f", "flags"),
    "mapcount": ("_mapcount.counter",),  # the page type, in pages that have one
    "refcount": ("_refcount.counter",),
    "private": ("private",),  # order of a buddy block
    "mapping": ("mapping",),  # with bits for what it is: 1 anonymous, 3 KSM
    # "mm: rename page->index to page->__folio_index" (acc53a0b4c15, in v6.16)
    "index": ("__folio_index", "index"),
    "next": ("buddy_list.next", "lru.next"),
    "prev": ("buddy_list.prev", "lru.prev"),
    # Bit 0 is set in tails. "mm: rework compound_head() for power-of-2 sizeof(struct page)"
    # (8c846c879e22, in v7.1)
    "tail": ("compound_info", "compound_head"),
    # In the third page of a compound one, before v6.1.
    "third_pincount": ("hpage_pinned_refcount.counter",),
    # "mm: memcontrol: Use helpers to read page's memcg data" (bcfe06bf2622, in v5.11)
    "memcg": ("memcg_data", "mem_cgroup"),
}
# Of the head of a compound page, in its second struct page, which struct folio overlays.
SECOND_PAGE_COLUMNS: dict[str, tuple[str, ...]] = {
    # "mm: free up a word in the first tail page" (ebc1baf5c9b4, in v6.6) moved the order from a
    # byte of its own to the low byte of the second page's flags.
    "order": ("_folio_order", "_flags_1.f", "_flags_1"),
    "pincount": ("_pincount.counter",),  # of FOLL_PIN
    "dtor": ("_folio_dtor",),  # until "mm: remove HUGETLB_PAGE_DTOR" (9c5ccf2db04b, in v6.6)
}
# The same in struct page, before "mm: Add the first tail page to struct folio" (379708ffde1b, in
# v6.1).
FIRST_TAIL_COLUMNS = {
    "order": "compound_order",
    "dtor": "compound_dtor",
    # "mm: Make compound_pincount always available" (94688e8eb453, in v5.18) moved it there.
    "pincount": "compound_pincount.counter",
}
# struct slab, which overlays struct page since "mm: Split slab into its own type" (d122019bf061, in
# v5.17); the members were its own before.
SLAB_COLUMNS = ("slab_cache", "freelist", "counters")


def page_dtype(prog: Program, names: Iterable[str]) -> np.dtype[Any]:
    """
    An array of struct pages as columns, those of ``struct slab`` among them.

    :param names: keys of :data:`COLUMNS`, of :data:`SECOND_PAGE_COLUMNS`, and :data:`SLAB_COLUMNS`.
    :raises LookupError: this kernel has no such member.
    """
    page = prog.type("struct page")
    parts = [struct_dtype(page, {name: COLUMNS[name] for name in names if name in COLUMNS})]
    if slab := {name: name for name in names if name in SLAB_COLUMNS}:
        parts.append(struct_dtype(slab_type(prog), slab))
    if second := [name for name in names if name in SECOND_PAGE_COLUMNS]:
        parts.append(second_page_dtype(prog, second))
    merged = {name: field for part in parts for name, field in (part.fields or {}).items()}
    return np.dtype(
        {
            "names": list(merged),
            "formats": [field[0] for field in merged.values()],
            "offsets": [field[1] for field in merged.values()],
            "itemsize": sizeof(page),
        }
    )


def slab_type(prog: Program) -> Type:
    """``struct slab``, or what has its members."""
    try:
        return prog.type("struct slab")
    except LookupError:
        return prog.type("struct page")


def second_page_dtype(prog: Program, names: Iterable[str]) -> np.dtype[Any]:
    """
    Columns of the head of a compound page, at their places in the second struct page.

    :param names: keys of :data:`SECOND_PAGE_COLUMNS`.
    :raises LookupError: this kernel has no such member.
    """
    page, names = prog.type("struct page"), list(names)
    if page.has_member("compound_order"):
        return struct_dtype(page, {name: FIRST_TAIL_COLUMNS[name] for name in names})
    wanted = {name: SECOND_PAGE_COLUMNS[name] for name in names}
    fields = dict(struct_dtype(prog.type("struct folio"), wanted).fields or {})
    return laid_out({name: (field[0], field[1] - sizeof(page)) for name, field in fields.items()})


T = TypeVar("T")


@dataclass(frozen=True)
class PageChunk:
    """Consecutive struct pages that were read at one instant."""

    start_pfn: int
    address: int  # of the first struct page
    columns: Array

    def __getitem__(self, name: str) -> Array:
        values: Array = self.columns[name]
        return values

    def __len__(self) -> int:
        return len(self.columns)

    @functools.cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    def once(self, name: str, work_out: Callable[[], T]) -> T:
        """Compute what several consumers ask of a chunk for the first, and keep it."""
        if name not in self._kept:
            self._kept[name] = work_out()
        kept: T = self._kept[name]
        return kept

    def packed(self, name: str) -> Array:
        """A column without what lies between its values, for who looks at all of them."""
        return self.once(name, lambda: np.ascontiguousarray(self[name]))

    def order_of(self, heads: S64s) -> S64s:
        """
        The orders of compound pages, by column ``order`` of their second pages; -1 where that is
        not in the chunk.

        :param heads: places of their heads.
        """
        second = np.minimum(heads + 1, len(self) - 1)
        orders = (self["order"][second] & 0xFF).astype(np.int64)
        return np.where(second > heads, orders, -1)


# (first PFN, address of its struct page, pages)
Piece = tuple[int, int, int]

LEAST_PAGES = 2 << 20  # 8 GiB: a smaller machine is read before a second process has started
MOST_PAGES = 1 << 36  # beyond, the memory map is damaged
LEAST_SHARE = 1 << 18  # pages: 1 GiB
ALIGNED = 1 << 15  # pages, no less than the largest pageblock and free block

# Something that wants to see every struct page. It has ``columns``, the keys of COLUMNS and
# SLAB_COLUMNS that it reads, and ``take(chunk)``, which looks at a chunk: its arrays are views, and
# what is to be kept is copied. Where a share of the pages needs to know of what comes before it,
# there is also ``resume(before)``, which looks back as far as need be: at the chunks of each piece,
# the last piece first.
Consumer = Any


@dataclass
class Scan:
    """Course of a pass."""

    pages: int = 0
    gaps: Gaps = field(default_factory=Gaps)
    failures: list[tuple[Consumer, Exception]] = field(default_factory=list)

    def failure_of(self, consumer: Consumer) -> Exception | None:
        """Why a consumer could not go on; None if it saw every page."""
        return next((error for failed, error in self.failures if failed is consumer), None)


def scan_struct_pages(
    prog: Program,
    consumers: Sequence[Consumer],
    *,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
    chunk_bytes: int = CHUNK_BYTES,
    wanted: Mapping[tuple[int, int], tuple[int, int]] | None = None,
) -> Scan:
    """
    Show every valid struct page to every consumer.

    :param jobs: how many processes may share the pass over a large machine.
    :param progress: called with (pages done, pages in all) after each chunk.
    :param wanted: by (first PFN, pages) of a chunk, which of its pages are to be read, from the
        first to one after the last; chunks that it does not have are read whole.
    """
    dtype = page_dtype(prog, sorted({name for each in consumers for name in each.columns}))
    ranges = valid_page_ranges(prog)
    total = pages = sum(end - start for start, end, _ in ranges)
    step = max(chunk_bytes // dtype.itemsize, 1)
    pieces: Iterable[Piece] = _pieces(ranges, step, dtype.itemsize, wanted or {})
    if wanted:
        pieces = list(pieces)
        pages = sum(count for _, _, count in pieces)
    scan = Scan(total - pages)

    def report(steps: int) -> None:
        nonlocal pages
        pages -= steps
        if progress is not None:
            progress(total - pages, total)

    if not LEAST_PAGES <= pages <= MOST_PAGES:
        jobs = 1
    if jobs > 1 and all(isinstance(each, Shared) for each in consumers):
        pieces = list(pieces)
        shares = min(-(-pages // LEAST_SHARE), SHARES_A_JOB * jobs)
        edges = itertools.pairwise(_edges(pieces, shares, not wanted))
        if _scan_shares(prog, consumers, pieces, list(edges), dtype, jobs, scan, report):
            return scan
        pages = total - scan.pages
    _look(prog, consumers, pieces, dtype, scan, report)
    return scan


def _look(
    prog: Program,
    consumers: Sequence[Consumer],
    pieces: Iterable[Piece],
    dtype: np.dtype[Any],
    scan: Scan,
    report: Callable[[int], None],
) -> None:
    """Show some pieces to the consumers that have not failed yet."""
    going = [each for each in consumers if scan.failure_of(each) is None]
    for piece in pieces:
        for chunk in _chunks(prog, piece, dtype, scan.gaps):
            for consumer in going:
                try:
                    consumer.take(chunk)
                except Exception as error:
                    scan.failures.append((consumer, error))
                    going = [each for each in going if each is not consumer]
            scan.pages += len(chunk)
            report(len(chunk))


def _chunks(prog: Program, piece: Piece, dtype: np.dtype[Any], gaps: Gaps) -> Iterator[PageChunk]:
    pfn, address, count = piece
    size = dtype.itemsize
    for first, array in read_array(prog, address, count, dtype, gaps, chunk_bytes=count * size):
        yield PageChunk(pfn + first, address + first * size, array)


def _scan_shares(
    prog: Program,
    consumers: Sequence[Any],
    pieces: list[Piece],
    shares: list[tuple[int, int]],
    dtype: np.dtype[Any],
    jobs: int,
    scan: Scan,
    report: Callable[[int], None],
) -> bool:
    """
    Look at shares of the pieces in several processes; False, and nothing is done, where one process
    would have counted otherwise, or there is no other.

    :param shares: the first piece of each, and one after its last.
    """
    blank = [pickle.dumps(each.share()) for each in consumers]
    before = scan.pages

    def work(share: tuple[int, int]) -> tuple[Scan, list[Any]]:
        own, (begin, end) = Scan(), share
        own.failures += _begin_at(
            consumers, blank, functools.partial(_backwards, prog, pieces[:begin], dtype)
        )
        _look(prog, consumers, pieces[begin:end], dtype, own, lambda pages: None)
        found = [own.failure_of(each) or each.share() for each in consumers]
        own.failures.clear()  # a consumer is none other than the parent's
        return own, [picklable(each) if isinstance(each, Exception) else each for each in found]

    try:
        for share, result in zip(shares, in_workers(jobs, shares, work), strict=True):
            count = sum(count for *_, count in pieces[slice(*share)])
            if result is KILLED:
                scan.gaps.bytes += count * dtype.itemsize
                scan.gaps.died.append(f"the process that read {count:,} of them was killed")
            else:
                _add(scan, consumers, *result)
            report(count)
    except NotSharedError:
        scan.pages, scan.gaps = before, Gaps()
        scan.failures = _begin_at(consumers, blank, tuple)
        return False
    return True


def _add(scan: Scan, consumers: Sequence[Any], more: Scan, found: list[Any]) -> None:
    """Add what another process read, and what it found or why it could not, by consumer."""
    scan.pages += more.pages
    scan.gaps.bytes += more.gaps.bytes
    for each, share in zip(consumers, found, strict=True):
        if scan.failure_of(each) is not None:
            continue
        if isinstance(share, Exception):
            scan.failures.append((each, share))
        else:
            each.add_share(share)


def _begin_at(
    consumers: Sequence[Any],
    blank: Sequence[bytes],
    before: Callable[[], Iterable[list[PageChunk]]],
) -> list[tuple[Consumer, Exception]]:
    """
    Let consumers forget what they saw, and look back at what is before; those that could not.

    :param blank: their shares of nothing, pickled.
    """
    failures = []
    for each, nothing in zip(consumers, blank, strict=True):
        each.restore(pickle.loads(nothing))
        if hasattr(each, "resume"):
            try:
                each.resume(before())
            except Exception as error:
                failures.append((each, error))
    return failures


def _backwards(
    prog: Program, pieces: list[Piece], dtype: np.dtype[Any]
) -> Iterator[list[PageChunk]]:
    """Pages of each piece that can be read, from the last on."""
    for piece in reversed(pieces):
        yield list(_chunks(prog, piece, dtype, Gaps()))


def _edges(pieces: list[Piece], shares: int, aligned: bool) -> list[int]:
    """
    Begins of the shares of the pieces, and the end.

    :param shares: of about as many pages each; fewer than these where there are fewer pieces.
    :param aligned: no pageblock and no free block may lie in two of them.
    """
    one = sum(count for *_, count in pieces) / shares
    edges, pages = [0], 0
    for at, (pfn, _, count) in enumerate(pieces):
        if pages >= one * len(edges) and not (aligned and pfn % ALIGNED):
            edges.append(at)
        pages += count
    return [*edges, len(pieces)]


def _pieces(
    ranges: list[tuple[int, int, int]],
    step: int,
    size: int,
    wanted: Mapping[tuple[int, int], tuple[int, int]],
) -> Iterator[Piece]:
    """Pieces to be read, at most *step* pages each."""
    for start_pfn, end_pfn, address in ranges:
        for first in range(0, end_pfn - start_pfn, step):
            pages = min(step, end_pfn - start_pfn - first)
            begin, end = wanted.get((start_pfn + first, pages), (0, pages))
            if begin < end:
                begin += first
                yield start_pfn + begin, address + begin * size, end + first - begin


@dataclass(frozen=True, slots=True)
class FlagFields:
    """
    Bits of ``page.flags`` that hold the node and the zone (include/linux/page-flags-layout.h).

    The fields are packed from the top of the word: section, node, zone. Their widths are macros,
    which DWARF does not keep, and follow from array lengths that it does.
    """

    zone_shift: int
    zone_mask: int
    node_shift: int
    node_mask: int
    zones_per_node: int

    def zone_index(self, flags: Array) -> S64s:
        """``node * zones_per_node + zone`` of each page."""
        node = (flags >> np.uint64(self.node_shift)) & np.uint64(self.node_mask)
        zone = (flags >> np.uint64(self.zone_shift)) & np.uint64(self.zone_mask)
        return (node * np.uint64(self.zones_per_node) + zone).astype(np.int64)


def flag_fields(prog: Program) -> FlagFields:
    """
    Find the node and zone fields of ``page.flags`` on this kernel.

    :raises NotImplementedError: the section number is in the flags (SPARSEMEM without VMEMMAP),
        which no 64-bit distribution kernel has.
    """
    with contextlib.suppress(ObjectNotFoundError):
        prog["mem_section"]
        try:
            prog["vmemmap"]
        except (ObjectNotFoundError, NotImplementedError):
            raise NotImplementedError(
                "SPARSEMEM without SPARSEMEM_VMEMMAP is not supported"
            ) from None
    zones_per_node = prog.type("struct pglist_data").member("node_zones").type.length
    assert zones_per_node is not None
    try:
        # struct pglist_data *node_data[MAX_NUMNODES]
        nodes = prog["node_data"].type_.unaliased().length or 1
    except ObjectNotFoundError:
        nodes = 1  # !CONFIG_NUMA: NODES_WIDTH is 0
    node_width = (nodes - 1).bit_length()
    # ZONES_SHIFT: 0, 1, 2 or 3 for up to 1, 2, 4, 8 zones.
    zone_width = (zones_per_node - 1).bit_length()
    node_shift = 64 - node_width
    return FlagFields(
        node_shift - zone_width,
        (1 << zone_width) - 1,
        node_shift if node_width else 0,
        (1 << node_width) - 1,
        zones_per_node,
    )


def compound_info_is_mask(prog: Program) -> bool:
    """
    A tail's word is the mask that leads from its own address to its head's (v7.1, compound_info
    with HVO compiled in and a struct page of a power of two), not the head's address.
    """
    page = prog.type("struct page")
    size = sizeof(page)
    return (
        page.has_member("compound_info")
        and not size & (size - 1)
        and prog.type("struct zone").has_member("vmemmap_tails")
    )


def head_page(prog: Program, page: Object) -> Object:
    """
    The head of the compound page that a ``struct page *`` is in, or itself, as ``compound_head()``
    (include/linux/page-flags.h) has it. drgn's helper knows ``compound_info`` since its 0.2.0.

    Of hugetlb pages up to 7.0, a tail that HVO made look like a head is taken for one.

    :raises FaultError: it cannot be read.
    """
    info = page.member_(member_path(prog.type("struct page"), COLUMNS["tail"])).value_()
    if not info & 1:
        return page
    head = page.value_() & info if compound_info_is_mask(prog) else info - 1
    return cast(page.type_, Object(prog, "unsigned long", head))
