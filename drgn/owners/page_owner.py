# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner: who allocated each page (``struct page_owner``, mm/page_owner.c), out of memory.

Two readings of one thing. The ``page_ext`` of every page frame has its last allocation: order, gfp
mask, task, time, the stack depot handle, all of it in each base page. And since v6.9 the records of
the stack depot count the base pages of their stack, which is what ``show_stacks`` and
``show_handles`` print. The first says everything and is on every kernel; the second is the kernel's
own count. Both are read, and where they differ the row says so.

What counts as allocated is what the kernel prints to /sys/kernel/debug/page_owner
(``read_page_owner()``): not inside a free block, flags PAGE_EXT_OWNER and
PAGE_EXT_OWNER_ALLOCATED, a handle; an allocation is counted at its first page, if that is aligned.

Stacks are folded, ``root;…;leaf``, a frame is ``symbol`` or ``symbol [module]``: the offsets that
the kernel prints (``+0x43/0x100``) are dropped, so that the same path compares equal across builds
and in a flame graph. Two call sites in one function have therefore the same folded stack, but stay
rows of their own, by handle.

One pass over the page_exts and the struct pages, chunk by chunk, in numpy; memory grows with the
distinct stacks and tasks, up to a limit.

Cannot know: who allocated pages before page_owner started (they have one stack for all), and who
uses a page now. After a migration task and stack are still those of the first allocation.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from drgn import Program, offsetof
from drgn.helpers.linux.timekeeping import ktime_get_coarse_ns

from mmscope.drgn.free.block_heads import buddy_mapcount, max_order
from mmscope.drgn.free.free_memory import pageblock_note
from mmscope.drgn.free.pageblocks import pageblock_types
from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.reading.kernel_arrays import Array, Bools, Gaps, S64s, read_array, struct_dtype
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.page_ext import page_ext_ranges, page_ext_size
from mmscope.drgn.reading.stack_depot import StackDepot, folded_stacks, stack_depot
from mmscope.drgn.reading.struct_pages import flag_fields, page_dtype
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section, disagreement
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import MOST_PIDS, column
from mmscope.drgn.tables.table import SERIES, table, table_of, tables_of
from mmscope.drgn.text.owner_frames import owner_frame
from mmscope.drgn.text.page_owner_text import MEMBERS, not_kept

# Tasks in memory; and in the table, beyond which they are one row.
MAX_TASKS_KEPT = 1 << 20
MAX_TASKS = 20_000
OTHER_TASKS = "(other tasks, beyond the limit of what is kept)"
MAX_LIST = 1 << 20  # entries of stack_list; there are never more than records in the depot
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

EARLY = "allocated before page_owner started; the kernel does not count them"
UNLISTED = "not in show_stacks: its first allocation could not wait for the list's lock"
NO_RECORD = "the stack depot has no such handle"


@table("page_owner_stacks", "Pages by allocation stack", lasting=("stack",))
class PageOwnerStack:
    """The pages that one allocation stack holds."""

    handle: int = column(
        key=True,
        help="stack depot handle (below 2^32), or an id of the stack's text",
    )
    pages: int = column(unit="pages", help="allocated by this stack, not freed")
    allocations: int | None = column(help="of any order, behind the pages")
    owner: str | None = column(
        holds="kernel", help="first frame from the leaf outside the allocator"
    )
    module: str | None = column(holds="kernel", help="of the owner frame; empty: the kernel itself")
    stack: str | None = column(
        holds="kernel", help="root;…;leaf without offsets; empty: no resolver has it"
    )
    note: str | None = column(holds="words", help="missing in the resolver, or a reused handle")


@table("page_owner_tasks", "Pages by task", lasting=("comm",), memory="again")
class PageOwnerTask:
    """Pages allocated by one task, under its pid and comm of that moment."""

    pid: int | None = column(key=True, high=MOST_PIDS, help="thread; empty: all others")
    tgid: int | None = column(key=True, high=MOST_PIDS, help="process")
    comm: str | None = column(
        holds="comm",
        key=True,
        help="name at the time; empty with tgid before v5.18",
    )
    pages: int = column(unit="pages", help="allocated by it, not freed by anything since")
    allocations: int = column(help="allocations behind the pages")


@table("page_owner_orders", "Pages by order", memory="again")
class PageOwnerOrder:
    """The pages of allocations of one order."""

    order: int = column(key=True, help="an allocation has 1 << order pages")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_gfp", "Pages by gfp mask", memory="again")
class PageOwnerGfp:
    """The pages of allocations with one gfp mask."""

    gfp_mask: str = column(holds="kernel", key=True, help="the caller's; bits differ by kernel")
    gfp_names: str = column(holds="kernel", help="names of the bits on this kernel")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_migratetypes", "Pages by migratetype, and their pageblock's", memory="again")
class PageOwnerMigratetype:
    """
    The pages by what was asked for and where they lie.

    Where they differ, an Unmovable page in a Movable pageblock say, the owner pollutes the block.
    """

    page_migratetype: str = column(
        holds="kernel", key=True, help="of the allocation, from its gfp mask"
    )
    pageblock_migratetype: str = column(holds="kernel", key=True, help="the pageblock's now")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_memcgs", "Pages by memory cgroup", memory="again")
class PageOwnerMemcg:
    """The pages charged to one memory cgroup."""

    memcg: str | None = column(
        holds="cgroup", key=True, help="name, not path, 79 bytes at most; empty: none"
    )
    offline: bool = column(key=True, help="removed; only its charges remain")
    objcg: bool = column(key=True, help="kernel memory, charged by an object cgroup")
    slab: bool = column(key=True, help="slab page: its objects are charged one by one")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_migrations", "Pages migrated since", memory="again")
class PageOwnerMigration:
    """The pages that were migrated since they were allocated."""

    reason: str = column(holds="kernel", key=True, help="latest, from enum migrate_reason")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_snapshots", "Snapshots", not_compared=SERIES)
class PageOwnerSnapshot:
    """One reading of page_owner in a series."""

    time: float = column(
        key=True, unit="s", help="since the first snapshot; its number where times are unknown"
    )
    at: str | None = column(holds="words", help="UTC, where known")
    source: str = column(holds="file", help="file")
    kind: str = column(holds="words", help="page_owner, show_stacks or show_handles")
    stacks: int = column(help="stacks holding pages")
    pages: int = column(unit="pages", help="base pages of all of them")
    skipped: int = column(help="records not understood, not counted")
    truncated: bool = column(help="the last record was cut short, and is not counted")
    ordered_by: str | None = column(
        holds="words",
        help="times in names, change times, numbers in names, or interval; empty: unknown",
        since="0.3.0",
    )


@table("page_owner_series", "Pages by allocation stack over time", not_compared=SERIES)
class PageOwnerPoint:
    """
    The pages of one stack at one moment.

    A point is left out where it equals those before and after it: between two points of a stack
    that are equal, nothing changed in any snapshot.
    """

    time: float = column(key=True, unit="s", help="as in page_owner_snapshots")
    handle: int = column(key=True, help="as in page_owner_stacks")
    pages: int | None = column(
        unit="pages", help="empty: not listed: none, or below count_threshold"
    )


@table("page_owner_growth", "Growth by allocation stack", not_compared=SERIES)
class PageOwnerGrowth:
    """The pages of one stack over the snapshots; not listed counts as none."""

    handle: int = column(key=True, help="as in page_owner_stacks")
    first_seen: float = column(unit="s", help="time of the first snapshot listing it")
    listed: int = column(help="snapshots listing it")
    gaps: int = column(help="times it returned after not being listed")
    pages_first: int = column(unit="pages", help="in the first snapshot")
    pages_last: int = column(unit="pages", help="in the last snapshot")
    pages_min: int = column(unit="pages", help="least in any snapshot")
    pages_max: int = column(unit="pages", help="most in any snapshot")
    gained: int = column(unit="pages", low=None, help="last minus first")
    slope: float | None = column(
        unit="pages/s",
        low=None,
        help="least squares over all snapshots; empty: times unknown",
    )
    steadiness: float = column(help="share of steps between snapshots without a fall")
    rises: int = column(help="steps between snapshots with a rise")


@table("page_owner_ages", "Pages by age", memory="again")
class PageOwnerAge:
    """The pages by the time since they were allocated."""

    min_seconds: int = column(key=True, unit="s", help="at least this old")
    max_seconds: int | None = column(unit="s", help="younger than this; empty: the oldest")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="blocks allocated and not freed since")


@table("page_owner_freed", "Free pages, by who freed them", memory="free")
class PageOwnerFreed:
    """Free pages whose last owner's stack is still known, by who freed them."""

    handle: int = column(key=True, help="stack depot handle of the free")
    pages: int = column(unit="pages", help="base pages")
    stack: str | None = column(holds="kernel", help="of the free: root;…;leaf")


@table(
    "page_owner_polluters",
    "Pages in pageblocks of another migratetype, by allocation stack",
    memory="again",
)
class PageOwnerPolluter:
    """Pages of one stack in pageblocks of another migratetype than their own."""

    handle: int = column(key=True, help="stack depot handle")
    page_migratetype: str = column(
        holds="kernel", key=True, help="of the allocation, from its gfp mask"
    )
    pageblock_migratetype: str = column(holds="kernel", key=True, help="the pageblock's now")
    pages: int = column(unit="pages", help="base pages")
    stack: str | None = column(holds="kernel", help="root;…;leaf")


@table("page_owner_mixed_blocks", "Pageblocks with a page of another migratetype")
class PageOwnerMixedBlocks:
    """Pageblocks with a page of another migratetype than theirs (as /proc/pagetypeinfo)."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    migratetype: str = column(holds="kernel", key=True, help="of the pageblock; CMA as Movable")
    blocks: int = column(unit="blocks", help="pageblocks")


@table("page_owner_checks", "Stacks that the kernel counts otherwise")
class PageOwnerCheck:
    """A stack whose count in the kernel differs from its page_exts."""

    handle: int = column(key=True, help="stack depot handle")
    counted_pages: int | None = column(unit="pages", low=None, help="stack_record.count - 1")
    page_ext_pages: int = column(unit="pages", help="base pages whose page_ext has the handle")
    head_pages: int = column(unit="pages", help="1 << order of each allocation printed")
    stack: str | None = column(holds="kernel", help="root;…;leaf")


def page_owner_off(prog: Program) -> str | None:
    """Why page_owner has nothing to say, and what to do; None if it has."""
    try:
        prog.type("struct page_owner")
        prog["page_owner_ops"]
    except LookupError:
        return (
            "page_owner is not compiled in; boot a kernel with CONFIG_PAGE_OWNER=y, with "
            "page_owner=on on its command line"
        )
    if not page_ext_size(prog) or prog["page_owner_inited"].key.enabled.counter.value_() <= 0:
        return "page_owner is compiled in, but not switched on; boot with page_owner=on"
    return None


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


def listed_handles(prog: Program, depot: StackDepot) -> set[int] | None:
    """
    The handles in ``stack_list``, which ``show_stacks`` and ``show_handles`` print.

    None where the kernel counts nothing by stack (before "mm,page_owner: implement the tracking of
    the stacks count", 217b2119b9e2, in v6.9).

    :raises ValueError: the list runs in a circle.
    """
    try:
        entry = prog.variable("stack_list", "page_owner.c").value_()
    except LookupError:
        return None
    stack = prog.type("struct stack")
    record, following = offsetof(stack, "stack_record"), offsetof(stack, "next")
    records: list[int] = []
    while entry:
        if len(records) == MAX_LIST:
            raise ValueError("page_owner's list of stacks does not end: it is damaged")
        records.append(prog.read_word(entry + record))
        entry = prog.read_word(entry + following)
    order = np.argsort(depot.addresses)
    position = np.searchsorted(depot.addresses[order], np.array(records, np.uint64))
    return {
        int(depot.handles[order[at]])
        for at, address in zip(position.tolist(), records, strict=True)
        if at < len(order) and int(depot.addresses[order[at]]) == address
    }


def page_owner_stacks(
    prog: Program, depot: StackDepot, found: PageOwner
) -> tuple[list[PageOwnerStack], list[PageOwnerCheck]]:
    """
    Pages by allocation stack, most first: the kernel's own counts, or, where it has none, base
    pages by page_ext; and the stacks on which the two disagree.

    :raises ValueError: page_owner's list of stacks is damaged.
    :raises FaultError: it cannot be read.
    """
    stacks = {handle: counts for handle, *counts in found.by("handle")}
    head_pages: Counter[int] = Counter()
    for handle, order, _, allocations in found.by("handle", "order"):
        head_pages[handle] += allocations << order
    listed = listed_handles(prog, depot) if depot.counts is not None else None
    counted: dict[int, int] = {}
    if listed is not None and depot.counts is not None:
        # Others of the depot's users may count too; a stack that is neither in page_owner's list
        # nor in any page_ext is not page_owner's.
        for handle, count in zip(depot.handles.tolist(), depot.counts.tolist(), strict=True):
            # Negative where it is not counted (REFCOUNT_SATURATED, include/linux/refcount.h).
            if count > 0 and (handle in listed or handle in stacks):
                counted[handle] = count - 1
    handles = np.array(sorted(counted.keys() | stacks.keys()), np.uint32)
    rows, checks = [], []
    for handle, stack in zip(handles.tolist(), folded_stacks(prog, depot, handles), strict=True):
        seen, allocations = stacks.get(handle, (0, 0))
        note = None
        if stack is None:
            note = NO_RECORD
        elif handle == found.early_handle:
            note = EARLY
        elif listed is not None and handle not in listed:
            note = UNLISTED
        pages = counted.get(handle, seen) if note != EARLY else seen
        owner, module = owner_frame(stack) if stack else (None, None)
        if pages > 0 or seen:
            rows.append(PageOwnerStack(handle, pages, allocations, owner, module, stack, note))
        heads = head_pages[handle]
        uncounted = listed is not None and handle not in counted and note != EARLY
        if pages != seen or heads != seen or uncounted:
            checks.append(PageOwnerCheck(handle, counted.get(handle), seen, heads, stack))
    rows.sort(key=lambda row: (-row.pages, row.handle))
    return rows, checks


def page_owner_tasks(found: PageOwner) -> list[PageOwnerTask]:
    """By task, most pages first; beyond :data:`MAX_TASKS`, one row for the rest."""
    totals: dict[tuple[int, int, bytes], S64s] = {}
    for pid, tgid, low, high, *counts in summed(np.concatenate(found.tasks), TASK).tolist():
        # After the NUL there may be the rest of a longer name.
        comm = (low.to_bytes(8, "little") + high.to_bytes(8, "little")).partition(b"\0")[0]
        totals[pid, tgid, comm] = totals.get((pid, tgid, comm), 0) + np.array(counts)
    # What this kernel does not keep is zero in all of them.
    rows = [
        PageOwnerTask(
            pid,
            tgid if "tgid" in found.has else None,
            comm.decode("utf-8", "backslashreplace") if "comm" in found.has else None,
            *counts.tolist(),
        )
        for (pid, tgid, comm), counts in totals.items()
    ]
    rows.sort(key=lambda row: (-row.pages, row.pid, row.tgid, row.comm))
    pages, allocations = found.other_tasks.tolist()
    pages += sum(row.pages for row in rows[MAX_TASKS:])
    allocations += sum(row.allocations for row in rows[MAX_TASKS:])
    del rows[MAX_TASKS:]
    if pages:
        rows.append(PageOwnerTask(None, None, OTHER_TASKS, pages, allocations))
    return rows


def page_owner_orders(found: PageOwner) -> list[PageOwnerOrder]:
    """By order, ascending."""
    return [PageOwnerOrder(*row) for row in found.by("order")]


def page_owner_gfp(prog: Program, found: PageOwner) -> list[PageOwnerGfp]:
    """By gfp mask, most pages first."""
    flags = gfp_flags(prog)
    rows = [
        PageOwnerGfp(f"{mask:#x}", gfp_names(flags, mask), *counts)
        for mask, *counts in found.by("gfp_mask")
    ]
    return sorted(rows, key=lambda row: (-row.pages, row.gfp_mask))


def gfp_flags(prog: Program) -> list[tuple[int, str]]:
    """``gfpflag_names[]`` (mm/debug.c): masks and their names, in the order they are tried."""
    found = []
    for entry in prog["gfpflag_names"]:
        if not entry.name:
            break
        found.append((entry.mask.value_(), name_at(entry.name)))
    return found


def gfp_names(flags: list[tuple[int, str]], mask: int) -> str:
    """A mask as ``%pGg`` prints it (``format_flags()``, lib/vsprintf.c)."""
    names = []
    for bits, name in flags:
        if bits and mask & bits == bits:
            names.append(name)
            mask &= ~bits
    return "|".join([*names, f"{mask:#x}"] if mask else names)


def page_owner_migratetypes(found: PageOwner) -> list[PageOwnerMigratetype]:
    """By the page's and its pageblock's migratetype."""
    return [
        PageOwnerMigratetype(_type(found, asked), _type(found, block), *counts)
        for asked, block, *counts in found.by("asked", "block")
    ]


def page_owner_migrations(prog: Program, found: PageOwner) -> list[PageOwnerMigration]:
    """By the reason of the last migration; pages that never were are left out."""
    names = [name_at(name) for name in prog["migrate_reason_names"]]
    return [
        PageOwnerMigration(names[reason] if reason < len(names) else f"unknown ({reason})", *counts)
        for reason, *counts in found.by("reason")
        if reason != found.never_migrated
    ]


def page_owner_ages(found: PageOwner) -> list[PageOwnerAge]:
    """By age, the youngest first; none where the kernel keeps no times."""
    return [
        PageOwnerAge(AGES[age], AGES[age + 1] if age + 1 < len(AGES) else None, *counts)
        for age, *counts in found.by("age")
        if "ts_nsec" in found.has
    ]


def page_owner_freed(prog: Program, depot: StackDepot, found: PageOwner) -> list[PageOwnerFreed]:
    """Free pages by the stack that freed them, most first."""
    handles = np.array(sorted(handle for handle in found.freed if handle), np.uint32)
    rows = [
        PageOwnerFreed(handle, found.freed[handle], stack)
        for handle, stack in zip(handles.tolist(), folded_stacks(prog, depot, handles), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.pages, row.handle))


def page_owner_polluters(
    prog: Program, depot: StackDepot, found: PageOwner
) -> list[PageOwnerPolluter]:
    """
    Pages in pageblocks of another migratetype, by stack, most first: not Movable in CMA, and not
    those in pageblocks of unknown type.
    """
    names = dict(enumerate(found.names))
    counted = [
        (handle, _type(found, asked), names[block], pages)
        for handle, asked, block, pages, _ in found.by("handle", "asked", "block")
        if asked != block and block in names
    ]
    counted = [row for row in counted if row[1:3] != ("Movable", "CMA")]
    handles = np.array([handle for handle, *_ in counted], np.uint32)
    rows = [
        PageOwnerPolluter(*row, stack)
        for row, stack in zip(counted, folded_stacks(prog, depot, handles), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.pages, row.handle))


def page_owner_mixed_blocks(prog: Program, found: PageOwner) -> list[PageOwnerMixedBlocks]:
    """Mixed pageblocks of every zone with memory, by migratetype; CMA's count as Movable."""
    per_node = flag_fields(prog).zones_per_node
    counted: Counter[tuple[int, str]] = Counter()
    for (zone, migratetype), blocks in found.mixed.items():
        name = found.names[migratetype]
        counted[zone, "Movable" if name == "CMA" else name] += blocks
    return [
        PageOwnerMixedBlocks(node, zone_name(zone), name, counted[node * per_node + index, name])
        for node, index, zone in for_each_zone(prog)
        if zone.present_pages.value_()
        for name in found.names
    ]


def _type(found: PageOwner, migratetype: int) -> str:
    return found.names[migratetype] if migratetype < len(found.names) else "unknown"


def depot_of(memory: Memory) -> StackDepot:
    """The stack depot, read once."""
    return memory.once("depot", lambda: stack_depot(memory.prog))


def depot_notes(depot: StackDepot) -> list[str]:
    notes = []
    if depot.gaps.bytes:
        notes.append(f"{depot.gaps.bytes:,} bytes of the stack depot could not be read")
    if depot.damaged:
        notes.append(f"{depot.damaged:,} records of the stack depot are damaged, and not used")
    return notes


def page_owner_from_memory(memory: Memory) -> Found:
    prog = memory.prog
    if reason := page_owner_off(prog):
        raise Absent(reason)
    depot, owners = depot_of(memory), scan_page_owner(prog, progress=memory.progress)
    rows, checks = page_owner_stacks(prog, depot, owners)
    lost = owners.gaps.bytes + owners.types.gaps.bytes
    found = Found(unreadable_bytes=lost + depot.gaps.bytes)
    found.notes += depot_notes(depot)
    found.notes += pageblock_note(
        owners.types.unreadable, owners.types.gaps, "nothing is said to be out of place"
    )
    if owners.gaps.bytes:
        found.notes.append(
            f"{owners.gaps.bytes:,} bytes of struct pages and page_exts could not be read: their "
            "pages are not counted"
        )
    if owners.damaged:
        found.notes.append(f"{owners.damaged:,} page_exts have an order that cannot be")
    if checks:
        disagreement(
            memory,
            found,
            f"the kernel counts {plural(len(checks), 'stack')} otherwise (page_owner_checks)",
        )
    if unlisted := [row for row in rows if row.note == UNLISTED]:
        pages = sum(row.pages for row in unlisted)
        found.remarks.append(
            f"{len(unlisted):,} stacks with {pages:,} pages are not in show_stacks and "
            "show_handles: their first allocation could not wait for a lock"
        )
    found.remarks += [f"page_owner of this kernel keeps {what}" for what in not_kept(owners.has)]
    found.add(PageOwnerStack, rows)
    shift = prog["PAGE_SHIFT"].value_()
    stacks = [(row.stack, row.pages << shift) for row in rows if row.stack]
    found.folded.append(
        ("page_owner", f"{table_of(PageOwnerStack).title}, width in bytes", "bytes", stacks)
    )
    # A table without rows would say that there is nothing, not that nothing is known.
    if "pid" in owners.has:
        found.add(PageOwnerTask, page_owner_tasks(owners))
    (
        found.add(PageOwnerOrder, page_owner_orders(owners))
        .add(PageOwnerGfp, page_owner_gfp(prog, owners))
        .add(PageOwnerMigratetype, page_owner_migratetypes(owners))
        .add(PageOwnerPolluter, page_owner_polluters(prog, depot, owners))
        .add(PageOwnerMixedBlocks, page_owner_mixed_blocks(prog, owners))
        .add(PageOwnerMigration, page_owner_migrations(prog, owners))
    )
    if "ts_nsec" in owners.has:
        found.add(PageOwnerAge, page_owner_ages(owners))
    return found.add(PageOwnerFreed, page_owner_freed(prog, depot, owners)).add(
        PageOwnerCheck, checks
    )


def page_owner_from_files(files: Files) -> Found:
    path = files.root / "sys/kernel/debug/page_owner"
    raise Absent(f"{path} is read by a command of its own: mmscope page-owner FILE")


PAGE_OWNER_SECTION = Section(
    name="page_owner",
    title="Owners of pages",
    tables=tables_of(
        PageOwnerStack,
        PageOwnerTask,
        PageOwnerOrder,
        PageOwnerGfp,
        PageOwnerMigratetype,
        PageOwnerMemcg,
        PageOwnerPolluter,
        PageOwnerMixedBlocks,
        PageOwnerMigration,
        PageOwnerAge,
        PageOwnerFreed,
        PageOwnerCheck,
        PageOwnerSnapshot,
        PageOwnerPoint,
        PageOwnerGrowth,
    ),
    kernel_stacks=True,
    intro="""
page_owner remembers for every page the stack that allocated it: this is who holds memory now,
not who used the CPU ([kernel documentation:
page_owner](https://docs.kernel.org/mm/page_owner.html)). In these tables stacks are written
leaf first, `leaf ← caller`; in the bundle's files they are folded, `root;…;leaf`.
""",
    command=Command("pages by who allocated them", top=TOP),
    from_memory=page_owner_from_memory,
    from_files=page_owner_from_files,
    deadline=PASS_SECONDS,
    optional=True,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_owner")
