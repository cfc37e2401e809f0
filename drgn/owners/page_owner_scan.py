# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The pass over all ``struct page_ext`` with their ``struct page_owner``: who allocated each page,
grouped and counted as it is read (see ``page_owner`` for what is made of it).

Costs one read of the page_exts and of the flags, mapcounts and orders of the struct pages, in
pieces of some tens of thousands of pages.

Cannot know: owners of pages whose page_ext or struct page a dump does not have; they are left out,
and counted as gaps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from drgn import Program, offsetof, sizeof
from drgn.helpers.linux.timekeeping import ktime_get_coarse_ns
from numpy.typing import NDArray

from mmscope.drgn.free.block_heads import buddy_mapcount, max_order
from mmscope.drgn.free.pageblocks import PageblockTypes, pageblock_types
from mmscope.drgn.opening.constants import constant
from mmscope.drgn.reading.kernel_arrays import Gaps, read_array, struct_dtype
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.page_ext import PageExtRange, page_ext_ranges, page_ext_size
from mmscope.drgn.reading.struct_pages import COLUMNS, FlagFields, flag_fields
from mmscope.drgn.text.page_owner_text import MEMBERS

# Tasks in memory; and in the table, beyond which they are one row.
MAX_TASKS_KEPT = 1 << 20
# Older than so many seconds.
AGES = (0, 1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
MIX = np.uint64(0x9E3779B97F4A7C15)


Tally = dict[Any, list[int]]  # key to pages, allocations


@dataclass
class PageOwner:
    """What a pass over the page_exts found, grouped."""

    stacks: Tally = field(default_factory=dict)  # by handle
    head_pages: dict[int, int] = field(default_factory=dict)  # by handle
    tasks: Tally = field(default_factory=dict)  # by (pid, tgid, comm bytes), or (pid, 0, 0, 0)
    other_tasks: list[int] = field(default_factory=lambda: [0, 0])
    orders: Tally = field(default_factory=dict)
    gfp: Tally = field(default_factory=dict)
    migratetypes: Tally = field(default_factory=dict)  # by (page's, pageblock's)
    migrations: Tally = field(default_factory=dict)  # by reason
    ages: Tally = field(default_factory=dict)  # by index into AGES
    freed: dict[int, int] = field(default_factory=dict)  # by handle of the free
    polluters: dict[tuple[int, int, int], int] = field(default_factory=dict)
    mixed: dict[tuple[int, int], int] = field(default_factory=dict)  # by (zone, migratetype)
    pages: int = 0  # page frames looked at
    damaged: int = 0  # page_exts with an impossible order
    unreadable_pageblocks: int = 0  # whose migratetype could not be read, at most
    pageblock_gaps: Gaps = field(default_factory=Gaps)
    gaps: Gaps = field(default_factory=Gaps)
    early_handle: int = 0
    never_migrated: int = -1
    has: frozenset[str] = MEMBERS  # of these members
    names: list[str] = field(default_factory=list)  # of migratetypes


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


def scan_page_owner(
    prog: Program, *, progress: Callable[[int, int], None] | None = None
) -> PageOwner:
    """
    Read every page's owner and count.

    :param progress: called with (pages done, pages in all).
    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: zones or sections cannot be read.
    """
    found = PageOwner()
    types = pageblock_types(prog)
    found.names = types.names
    found.unreadable_pageblocks = types.unreadable
    found.pageblock_gaps = types.gaps
    found.never_migrated = constant(prog, "MR_NEVER", -1)
    found.early_handle = prog.variable("early_handle", "page_owner.c").value_()
    found.has = frozenset(filter(prog.type("struct page_owner").has_member, found.has))
    reader = _Reader(prog, types, found)
    ranges = page_ext_ranges(prog)
    valid = valid_page_ranges(prog)
    total = sum(span.end_pfn - span.start_pfn for span in ranges)
    done = 0
    for span in ranges:
        reader.take(span, valid)
        done += span.end_pfn - span.start_pfn
        if progress is not None:
            progress(done, total)
    found.pages = done
    return found


class _Reader:
    """Everything that does not change from one range to the next."""

    def __init__(self, prog: Program, types: PageblockTypes, found: PageOwner) -> None:
        self.prog = prog
        self.types = types
        self.found = found
        self.fields: FlagFields = flag_fields(prog)
        self.buddy = buddy_mapcount(prog)
        self.max_order = max_order(prog)
        self.page_size = sizeof(prog.type("struct page"))
        names = ("flags", "mapcount", "private")
        page_type = prog.type("struct page")
        self.page_dtype = struct_dtype(page_type, {name: COLUMNS[name] for name in names})
        self.ext_dtype = _page_owner_dtype(prog, found.has)
        self.owner = np.uint64(1 << constant(prog, "PAGE_EXT_OWNER", 0))
        self.allocated = np.uint64(1 << constant(prog, "PAGE_EXT_OWNER_ALLOCATED", 1))
        self.reserved = np.uint64(1 << int(prog.constant("PG_reserved").value_()))
        self.now = ktime_get_coarse_ns(prog).value_()
        self.group_by_mobility = not prog["page_group_by_mobility_disabled"].value_()
        # Blocks must not be cut: a free block, and a pageblock, lie in one piece of work.
        self.step = 1 << max(15, self.max_order, types.order)

    def take(self, span: PageExtRange, valid: list[tuple[int, int, int]]) -> None:
        for start in range(span.start_pfn, span.end_pfn, self.step):
            end = min(start + self.step - start % self.step, span.end_pfn)
            count = end - start
            address = span.address + (start - span.start_pfn) * self.ext_dtype.itemsize
            ext, known = self._read(address, self.ext_dtype, count)
            pages = np.zeros(count, self.page_dtype)
            valid_here = np.zeros(count, np.bool_)
            for valid_start, valid_end, mem_map in valid:
                low, high = max(valid_start, start), min(valid_end, end)
                if low >= high:
                    continue
                address = mem_map + (low - valid_start) * self.page_size
                part, read = self._read(address, self.page_dtype, high - low)
                if high - low == count:
                    pages, valid_here = part, read
                else:
                    pages[low - start : high - start] = part
                    valid_here[low - start : high - start] = read
            self._count(start, ext, pages, known & valid_here)

    def _read(
        self, address: int, dtype: np.dtype[Any], count: int
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """So many elements, and which of them could be read; the others are zero."""
        known = np.ones(count, np.bool_)
        parts = list(
            read_array(
                self.prog,
                address,
                count,
                dtype,
                self.found.gaps,
                chunk_bytes=count * dtype.itemsize,
            )
        )
        if len(parts) == 1 and len(parts[0][1]) == count:
            return parts[0][1], known
        known[:] = False
        elements = np.zeros(count, dtype)
        for first, part in parts:
            elements[first : first + len(part)] = part
            known[first : first + len(part)] = True
        return elements, known

    def _count(
        self, start: int, ext: NDArray[Any], pages: NDArray[Any], known: NDArray[np.bool_]
    ) -> None:
        found = self.found
        flags = ext["flags"]
        tracked = known & ((flags & self.owner) != 0)
        held = (flags & self.allocated) != 0
        in_free_block = self._in_free_block(pages, known)
        self._count_freed(ext, tracked & ~held)
        self._count_mixed(start, ext, pages, known & held & ~in_free_block)
        at = np.flatnonzero(tracked & held & ~in_free_block & (ext["handle"] != 0))
        if not len(at):
            return
        pfns = start + at
        # Column by column: numpy copies whole structures ten times slower.
        own = {name: ext[name][at] for name in ext.dtype.names or ()}
        order = own["order"].astype(np.int64)
        sound = order <= self.max_order
        found.damaged += int(np.count_nonzero(~sound))
        head = sound & ((pfns & ((1 << np.where(sound, order, 0)) - 1)) == 0)
        words = (
            own["handle"].astype(np.uint64) | order.astype(np.uint64) << np.uint64(32),
            own["gfp_mask"].astype(np.uint64)
            | own["reason"].astype(np.uint16).astype(np.uint64) << np.uint64(32),
            *self._task_words(own, len(at)),
            self.types.of(pfns).view(np.uint8).astype(np.uint64)
            | self._age(own, len(at)) << np.uint64(8),
        )
        first, which = distinct_rows(words)
        page_counts = np.bincount(which, minlength=len(first)).tolist()
        head_counts = np.bincount(which, head, len(first)).astype(np.int64).tolist()
        columns = [word[first].tolist() for word in words]
        for (a, b, task, low, high, e), pages_, heads in zip(
            zip(*columns, strict=True), page_counts, head_counts, strict=True
        ):
            handle, order_ = a & 0xFFFFFFFF, a >> 32
            gfp, reason = b & 0xFFFFFFFF, b >> 32
            block, age = e & 0xFF, e >> 8
            page_type = (gfp >> 3 & 3) if self.group_by_mobility else 0
            add_to(found.stacks, handle, pages_, heads)
            found.head_pages[handle] = found.head_pages.get(handle, 0) + (heads << order_)
            if "pid" in found.has:
                self._add_task((task & 0xFFFFFFFF, task >> 32, low, high), pages_, heads)
            add_to(found.orders, order_, pages_, heads)
            add_to(found.gfp, gfp, pages_, heads)
            add_to(found.migratetypes, (page_type, block), pages_, heads)
            if "ts_nsec" in found.has:
                add_to(found.ages, age, pages_, heads)
            add_to(found.migrations, reason, pages_, heads)
            # A pageblock of unknown type does not count as one of another type.
            if block != page_type and block < len(found.names):
                key = handle, page_type, block
                found.polluters[key] = found.polluters.get(key, 0) + pages_

    def _task_words(
        self, own: dict[str, NDArray[Any]], count: int
    ) -> tuple[NDArray[np.uint64], ...]:
        """pid and tgid, and the two halves of comm; what is not kept is zero."""
        none = np.zeros(count, np.uint64)
        pid, tgid = (
            own[name].view(np.uint32).astype(np.uint64) if name in own else none
            for name in ("pid", "tgid")
        )
        return pid | tgid << np.uint64(32), own.get("comm_low", none), own.get("comm_high", none)

    def _age(self, own: dict[str, NDArray[Any]], count: int) -> NDArray[np.uint64]:
        """Index into :data:`AGES`; zero where no time is kept."""
        if "ts_nsec" not in own:
            return np.zeros(count, np.uint64)
        ages = np.clip((self.now - own["ts_nsec"].astype(np.int64)) // 1_000_000_000, 0, None)
        found: NDArray[np.intp] = np.searchsorted(AGES, ages, "right") - 1
        return found.astype(np.uint64)

    def _add_task(self, key: tuple[int, int, int, int], pages: int, heads: int) -> None:
        tasks = self.found.tasks
        if key in tasks or len(tasks) < MAX_TASKS_KEPT:
            add_to(tasks, key, pages, heads)
        else:
            self.found.other_tasks[0] += pages
            self.found.other_tasks[1] += heads

    def _in_free_block(self, pages: NDArray[Any], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which pages lie in a free block, by the order that its first page says it has."""
        heads = np.flatnonzero(known & (pages["mapcount"] == self.buddy))
        orders = pages["private"][heads]
        sound = orders <= self.max_order
        heads, orders = heads[sound], orders[sound].astype(np.int64)
        ends = np.minimum(heads + (1 << orders), len(pages))
        change = np.bincount(heads, minlength=len(pages) + 1)
        change -= np.bincount(ends, minlength=len(pages) + 1)
        return np.cumsum(change[:-1]) > 0

    def _count_freed(self, ext: NDArray[Any], free: NDArray[np.bool_]) -> None:
        handles, counts = np.unique(ext["free_handle"][free], return_counts=True)
        for handle, count in zip(handles.tolist(), counts.tolist(), strict=True):
            if handle:
                self.found.freed[handle] = self.found.freed.get(handle, 0) + count

    def _count_mixed(
        self, start: int, ext: NDArray[Any], pages: NDArray[Any], held: NDArray[np.bool_]
    ) -> None:
        """As pagetypeinfo_showmixedcount_print(): a pageblock counts once, for its first zone."""
        at = np.flatnonzero(held & ((pages["flags"] & self.reserved) == 0))
        if not len(at):
            return
        block = self.types.of(start + at)
        kind = (ext["gfp_mask"][at] >> 3 & 3).astype(np.int8)
        if not self.group_by_mobility:
            kind[:] = 0
        mixed = (kind != block) & (block >= 0)
        at, block = at[mixed], block[mixed]
        numbers = (start + at) >> self.types.order
        zones = self.fields.zone_index(pages["flags"][at])
        cells = np.unique(np.stack((numbers, zones, block.astype(np.int64)), 1), axis=0)
        for _, zone, migratetype in cells.tolist():
            name = self.found.names[migratetype]
            key = zone, self.found.names.index("Movable") if name == "CMA" else migratetype
            self.found.mixed[key] = self.found.mixed.get(key, 0) + 1


def add_to(tally: Tally, key: Any, pages: int, heads: int) -> None:
    entry = tally.get(key)
    if entry is None:
        tally[key] = [pages, heads]
    else:
        entry[0] += pages
        entry[1] += heads


def distinct_rows(
    words: tuple[NDArray[np.uint64], ...],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """
    The distinct rows of parallel columns: where each first occurs, and which of them each row is.

    By a 64-bit mix of the columns, which sorts many times faster than rows do; that no two
    different rows have the same mix is checked, not assumed.
    """
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


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_owner")
