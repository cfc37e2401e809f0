# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The pass over page_owner's records: each page's ``struct page_owner``, grouped.

Chunk by chunk over the page_exts and the struct pages, in numpy; memory grows with the distinct
stacks and tasks, up to a limit. What counts as allocated is what ``read_page_owner()`` prints
(mm/page_owner.c), see ``page_owner``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from drgn import Program, offsetof
from drgn.helpers.linux.timekeeping import ktime_get_coarse_ns

from mmscope.drgn.free.block_heads import buddy_mapcount, max_order
from mmscope.drgn.free.pageblocks import pageblock_types
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.reading.kernel_arrays import Array, Bools, Gaps, S64s, read_array, struct_dtype
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.page_ext import page_ext_ranges, page_ext_size
from mmscope.drgn.reading.struct_pages import flag_fields, page_dtype
from mmscope.drgn.text.page_owner_text import MEMBERS

MAX_TASKS_KEPT = 1 << 20  # in memory
# Older than so many seconds.
AGES = (0, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
MIX = np.uint64(0x9E3779B97F4A7C15)
MERGE_FROM = 1 << 17  # rows that wait at least before they are merged
COUNTS = {"pages": "<i8", "allocations": "<i8"}
# What allocations are grouped by: the migratetype of what was asked for and that of the pageblock
# are "asked" and "block", "age" is an index into AGES.
KEYS = {
    **{"handle": "<u4", "order": "<u2", "gfp_mask": "<u4", "reason": "<u2"},
    **{"asked": "u1", "block": "u1", "age": "u1"},
}
TASK = {"pid": "<i4", "tgid": "<i4", "comm_low": "<u8", "comm_high": "<u8"}


class PageOwner:
    """
    All pages that page_owner knows, grouped.

    :ivar has: of :data:`MEMBERS`, those that the kernel keeps; others are zero.
    :ivar names: of migratetypes.
    """

    def __init__(self, prog: Program) -> None:
        self.has = frozenset(filter(prog.type("struct page_owner").has_member, MEMBERS))
        self.types = pageblock_types(prog)
        self.names = self.types.names
        self.never_migrated = constant(prog, "MR_NEVER", -1) & 0xFFFF
        self.early_handle = prog.variable("early_handle", "page_owner.c").value_()
        # Rows of KEYS and of TASK: what was merged, and what waits.
        self.groups = [np.empty(0, [*KEYS.items(), *COUNTS.items()])]
        self.tasks = [np.empty(0, [*TASK.items(), *COUNTS.items()])]
        self.other_tasks = np.zeros(2, np.int64)  # pages and allocations of more than are kept
        self.freed: Counter[int] = Counter()  # by handle of the free
        self.mixed: Counter[tuple[int, int]] = Counter()  # pageblocks, by zone and migratetype
        self.pages = 0  # page frames looked at
        self.damaged = 0  # page_exts with an impossible order
        self.gaps = Gaps()
        self._prog, self._fields, self._buddy = prog, flag_fields(prog), buddy_mapcount(prog)
        self._max_order = max_order(prog)
        self._owner = np.uint64(1 << constant(prog, "PAGE_EXT_OWNER", 0))
        self._allocated = np.uint64(1 << constant(prog, "PAGE_EXT_OWNER_ALLOCATED", 1))
        self._reserved = np.uint64(1 << int(prog.constant("PG_reserved").value_()))
        self._now = ktime_get_coarse_ns(prog).value_()
        self._by_mobility = not prog["page_group_by_mobility_disabled"].value_()

    def by(self, *keys: str) -> list[tuple[int, ...]]:
        """The values of some of :data:`KEYS`, ascending, with their pages and allocations."""
        rows = summed(np.concatenate(self.groups), keys)
        return sorted(zip(*(rows[name].tolist() for name in (*keys, *COUNTS)), strict=True))

    def take(self, start: int, ext: Array, pages: Array, known: Bools) -> None:
        """
        Count some pages.

        :param start: the first page frame.
        :param ext: their page_exts; *pages* their struct pages.
        :param known: which pages could be read.
        """
        self.pages += len(ext)
        tracked = known & ((ext["flags"] & self._owner) != 0)
        held = (ext["flags"] & self._allocated) != 0
        freed, counts = np.unique(ext["free_handle"][tracked & ~held], return_counts=True)
        self.freed.update(dict(zip(freed.tolist(), counts.tolist(), strict=True)))
        held &= known & ~self._in_free_block(pages, known)
        asked = np.zeros(len(ext), np.uint8)
        if self._by_mobility:
            asked = (ext["gfp_mask"] >> 3 & 3).astype(np.uint8)
        block = self.types.of(np.arange(start, start + len(ext)))
        # As pagetypeinfo_showmixedcount_print(): a pageblock counts once, for its first zone.
        mixed = held & ((pages["flags"] & self._reserved) == 0) & (asked != block) & (block >= 0)
        at = np.flatnonzero(mixed)
        numbers, zones = (
            (start + at) >> self.types.order,
            self._fields.zone_index(pages["flags"][at]),
        )
        cells = np.unique(np.stack((numbers, zones, block[at].astype(np.int64)), 1), axis=0)
        self.mixed.update((zone, migratetype) for _, zone, migratetype in cells.tolist())
        at = np.flatnonzero(tracked & held & (ext["handle"] != 0))
        # Column by column: numpy copies whole structures ten times slower.
        own = {name: ext[name][at] for name in ext.dtype.names or ()}
        order = own["order"].astype(np.int64)
        sound = order <= self._max_order
        self.damaged += int(np.count_nonzero(~sound))
        own["pages"] = np.ones(len(at), np.int64)
        own["allocations"] = sound & (((start + at) & ((1 << np.where(sound, order, 0)) - 1)) == 0)
        own["asked"], own["block"] = asked[at], block[at].view(np.uint8)
        if "ts_nsec" in self.has:
            ages = (self._now - own["ts_nsec"].astype(np.int64)) // 1_000_000_000
            own["age"] = np.searchsorted(AGES, np.maximum(ages, 0), "right") - 1
        self.groups = _with(self.groups, own, KEYS)
        if "pid" not in self.has:
            return
        self.tasks = _with(self.tasks, own, TASK)
        if (beyond := len(self.tasks[0]) - MAX_TASKS_KEPT) > 0:
            # Half of them, so that it is not done again at once.
            order = np.argsort(self.tasks[0]["pages"])
            more = self.tasks[0][order[: beyond + MAX_TASKS_KEPT // 2]]
            self.other_tasks += [more["pages"].sum(), more["allocations"].sum()]
            self.tasks = [self.tasks[0][order[len(more) :]], *self.tasks[1:]]

    def _in_free_block(self, pages: Array, known: Bools) -> Bools:
        """Pages in a free block, by the order that its first page says it has."""
        heads = np.flatnonzero(known & (pages["mapcount"] == self._buddy))
        heads = heads[pages["private"][heads] <= self._max_order]
        until = np.zeros(len(pages), np.int64)
        until[heads] = heads + (1 << pages["private"][heads].astype(np.int64))
        return np.maximum.accumulate(until) > np.arange(len(pages))


def _with(parts: list[Array], own: dict[str, Array], keys: Iterable[str]) -> list[Array]:
    """Parts with more rows, of columns *own*; merged, where those that wait are many."""
    rows = np.zeros(len(own["order"]), parts[0].dtype)
    for name in own.keys() & set(rows.dtype.names or ()):
        rows[name] = own[name]
    parts = [*parts, summed(rows, keys)]
    if sum(map(len, parts[1:])) > max(MERGE_FROM, len(parts[0])):
        parts = [summed(np.concatenate(parts), keys)]
    return parts


def summed(rows: Array, keys: Iterable[str]) -> Array:
    """One row for those with the same keys, with their pages and allocations."""
    first, which = distinct_rows([rows[key] for key in keys])
    result = rows[first]
    for name in COUNTS:
        result[name] = np.bincount(which, rows[name], len(first))
    return result


def distinct_rows(columns: Sequence[Array]) -> tuple[S64s, S64s]:
    """
    The distinct rows of parallel columns: where each first occurs, and which of them each row is.

    By a 64-bit mix of the columns, which sorts many times faster than rows do; that no two
    different rows have the same mix is checked, not assumed.
    """
    words = [column.astype(np.uint64) for column in columns]
    mixed = np.zeros(len(words[0]), np.uint64)
    for word in words:
        mixed ^= word
        mixed *= MIX
        mixed ^= mixed >> np.uint64(29)
    _, first, which = np.unique(mixed, return_index=True, return_inverse=True)
    if not all(np.array_equal(word[first][which], word) for word in words):
        rows = np.stack(words, 1)
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def scan_page_owner(
    prog: Program, *, progress: Callable[[int, int], None] | None = None
) -> PageOwner:
    """
    Read every page's owner and count.

    :param progress: called with (pages done, pages in all).
    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: zones or sections cannot be read.
    """
    found = PageOwner(prog)
    ext_dtype = _page_owner_dtype(prog, found.has)
    dtype = page_dtype(prog, ("flags", "mapcount", "private"))
    ranges, valid = page_ext_ranges(prog), valid_page_ranges(prog)
    total = sum(span.end_pfn - span.start_pfn for span in ranges)
    # Blocks must not be cut: a free block, and a pageblock, lie in one piece of work.
    step = 1 << max(15, max_order(prog), found.types.order)
    for span in ranges:
        for start in range(span.start_pfn, span.end_pfn, step):
            end = min(start + step - start % step, span.end_pfn)
            pieces = [(span.start_pfn, span.end_pfn, span.address)]
            ext, known = _read(prog, start, end, pieces, ext_dtype, found.gaps)
            pages, there = _read(prog, start, end, valid, dtype, found.gaps)
            found.take(start, ext, pages, known & there)
            if progress is not None:
                progress(found.pages, total)
    return found


def _read(
    prog: Program,
    start: int,
    end: int,
    ranges: list[tuple[int, int, int]],
    dtype: np.dtype[Any],
    gaps: Gaps,
) -> tuple[Array, Bools]:
    """
    The elements of some pages, and which of them could be read; the others are zero.

    :param ranges: first page frame, the end, and the address of the first one's element.
    """
    elements, known = np.zeros(end - start, dtype), np.zeros(end - start, np.bool_)
    for first, stop, address in ranges:
        low, high = max(first, start), min(stop, end)
        if low >= high:
            continue
        at = address + (low - first) * dtype.itemsize
        size = (high - low) * dtype.itemsize
        for place, part in read_array(prog, at, high - low, dtype, gaps, chunk_bytes=size):
            if len(part) == end - start:
                return part, np.ones(end - start, np.bool_)
            here = slice(low - start + place, low - start + place + len(part))
            elements[here], known[here] = part, True
    return elements, known


def _page_owner_dtype(prog: Program, has: frozenset[str] = MEMBERS) -> np.dtype[Any]:
    """
    ``struct page_ext`` with its ``struct page_owner`` as an array element.

    :param has: the members of :data:`MEMBERS` that there are.
    :raises LookupError: a member is missing.
    """
    ext, owner = prog.type("struct page_ext"), prog.type("struct page_owner")
    flags = struct_dtype(ext, {"flags": "flags"})
    own = struct_dtype(
        owner,
        {
            "order": "order",
            "reason": "last_migrate_reason",
            "gfp_mask": "gfp_mask",
            "handle": "handle",
            "free_handle": "free_handle",
        }
        | {name: name for name in sorted(has - {"comm"})},
    )
    base = prog["page_owner_ops"].offset.value_()
    columns = {"flags": (flags["flags"], offsetof(ext, "flags"))}
    for name, (dtype, offset, *_) in (own.fields or {}).items():
        columns[name] = dtype, base + offset
    if "comm" in has:
        comm = base + offsetof(owner, "comm")
        # TASK_COMM_LEN is 16.
        columns["comm_low"] = np.dtype("<u8"), comm
        columns["comm_high"] = np.dtype("<u8"), comm + 8
    return np.dtype(
        {
            "names": list(columns),
            "formats": [dtype for dtype, _ in columns.values()],
            "offsets": [offset for _, offset in columns.values()],
            "itemsize": page_ext_size(prog),
        }
    )
