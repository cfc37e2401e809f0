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

One pass over the page_exts and the struct pages, chunk by chunk, in numpy; memory grows with the
distinct stacks and tasks, up to a limit.

Cannot know: who allocated pages before page_owner started (they have one stack for all), and who
uses a page now. After a migration task and stack are still those of the first allocation.
"""

import numpy as np
from drgn import Program, offsetof

from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.owners.owner_frames import owner_frame
from mmscope.drgn.owners.page_owner_rows import (
    PageOwnerGfp,
    PageOwnerMigratetype,
    PageOwnerMigration,
    PageOwnerOrder,
    PageOwnerStack,
    PageOwnerTask,
)
from mmscope.drgn.owners.page_owner_scan import AGES, PageOwner, add_to
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.stack_depot import StackDepot, folded_stacks
from mmscope.drgn.reading.struct_pages import flag_fields
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table

MAX_TASKS = 20_000
OTHER_TASKS = "(other tasks, beyond the limit of what is kept)"
MAX_LIST = 1 << 20  # entries of stack_list; there are never more than records in the depot

EARLY = "allocated before page_owner started; the kernel does not count them"
UNLISTED = "not in show_stacks: its first allocation could not wait for the list's lock"
NO_RECORD = "the stack depot has no such handle"


@table_row
class PageOwnerAge:
    """The pages by the time since they were allocated."""

    min_seconds: int = column(key=True, unit="s", help="at least so old")
    max_seconds: int | None = column(unit="s", help="younger than that; empty for the oldest")
    pages: int = column(unit="pages", help="base pages")
    allocations: int = column(help="allocations")


PAGE_OWNER_AGES = Table("page_owner_ages", "Pages by age", PageOwnerAge, memory="again")


@table_row
class PageOwnerFreed:
    """Pages that are free now and whose last owner's stack is still known, by who freed them."""

    handle: int = column(key=True, help="stack depot handle of the free")
    pages: int = column(unit="pages", help="base pages")
    stack: str | None = column(holds="kernel", help="root;…;leaf of the free")


PAGE_OWNER_FREED = Table(
    "page_owner_freed", "Free pages, by who freed them", PageOwnerFreed, memory="free"
)


@table_row
class PageOwnerPolluter:
    """Pages of one stack in pageblocks of another migratetype than they were allocated for."""

    handle: int = column(key=True, help="stack depot handle")
    page_migratetype: str = column(
        holds="kernel", key=True, help="of the allocation, by its gfp mask"
    )
    pageblock_migratetype: str = column(holds="kernel", key=True, help="of the pageblock now")
    pages: int = column(unit="pages", help="base pages")
    stack: str | None = column(holds="kernel", help="root;…;leaf")


PAGE_OWNER_POLLUTERS = Table(
    "page_owner_polluters",
    "Pages in pageblocks of another migratetype, by allocation stack",
    PageOwnerPolluter,
    memory="again",
)


@table_row
class PageOwnerMixedBlocks:
    """Pageblocks with a page of another migratetype than theirs (as /proc/pagetypeinfo)."""

    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    migratetype: str = column(
        holds="kernel", key=True, help="of the pageblock; CMA counts as Movable"
    )
    blocks: int = column(unit="blocks", help="pageblocks")


PAGE_OWNER_MIXED_BLOCKS = Table(
    "page_owner_mixed_blocks", "Pageblocks with a page of another migratetype", PageOwnerMixedBlocks
)


@table_row
class PageOwnerCheck:
    """A stack whose count in the kernel differs from its page_exts."""

    handle: int = column(key=True, help="stack depot handle")
    counted_pages: int | None = column(unit="pages", low=None, help="stack_record.count - 1")
    page_ext_pages: int = column(unit="pages", help="base pages whose page_ext has the handle")
    head_pages: int = column(unit="pages", help="1 << order of the allocations that are printed")
    stack: str | None = column(holds="kernel", help="root;…;leaf")


PAGE_OWNER_CHECKS = Table(
    "page_owner_checks", "Stacks that the kernel counts otherwise", PageOwnerCheck
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
    listed = listed_handles(prog, depot) if depot.counts is not None else None
    counted: dict[int, int] = {}
    if listed is not None and depot.counts is not None:
        # Others of the depot's users may count too; a stack that is neither in page_owner's list
        # nor in any page_ext is not page_owner's.
        for handle, count in zip(depot.handles.tolist(), depot.counts.tolist(), strict=True):
            # Negative where it is not counted (REFCOUNT_SATURATED, include/linux/refcount.h).
            if count > 0 and (handle in listed or handle in found.stacks):
                counted[handle] = count - 1
    handles = np.array(sorted(counted.keys() | found.stacks.keys()), np.uint32)
    rows, checks = [], []
    for handle, stack in zip(handles.tolist(), folded_stacks(prog, depot, handles), strict=True):
        seen, allocations = found.stacks.get(handle, (0, 0))
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
        heads = found.head_pages.get(handle, 0)
        uncounted = listed is not None and handle not in counted and note != EARLY
        if pages != seen or heads != seen or uncounted:
            checks.append(PageOwnerCheck(handle, counted.get(handle), seen, heads, stack))
    rows.sort(key=lambda row: (-row.pages, row.handle))
    return rows, checks


def page_owner_tasks(found: PageOwner) -> list[PageOwnerTask]:
    """By task, most pages first; beyond :data:`MAX_TASKS`, one row for the rest."""
    totals: dict[tuple[int, int, bytes], list[int]] = {}
    for (pid, tgid, low, high), (pages, allocations) in found.tasks.items():
        # Behind the NUL there may be the rest of a longer name.
        comm = (low.to_bytes(8, "little") + high.to_bytes(8, "little")).partition(b"\0")[0]
        key = pid - (pid >> 31 << 32), tgid - (tgid >> 31 << 32), comm
        add_to(totals, key, pages, allocations)
    # What this kernel does not keep is zero in all of them.
    rows = [
        PageOwnerTask(
            pid,
            tgid if "tgid" in found.has else None,
            comm.decode("utf-8", "backslashreplace") if "comm" in found.has else None,
            pages,
            allocations,
        )
        for (pid, tgid, comm), (pages, allocations) in totals.items()
    ]
    rows.sort(key=lambda row: (-row.pages, row.pid, row.tgid, row.comm))
    pages, allocations = found.other_tasks
    for row in rows[MAX_TASKS:]:
        pages += row.pages
        allocations += row.allocations
    del rows[MAX_TASKS:]
    if pages:
        rows.append(PageOwnerTask(None, None, OTHER_TASKS, pages, allocations))
    return rows


def page_owner_orders(found: PageOwner) -> list[PageOwnerOrder]:
    """By order, ascending."""
    return [PageOwnerOrder(order, *counts) for order, counts in sorted(found.orders.items())]


def page_owner_gfp(prog: Program, found: PageOwner) -> list[PageOwnerGfp]:
    """By gfp mask, most pages first."""
    flags = gfp_flags(prog)
    rows = [
        PageOwnerGfp(f"{mask:#x}", gfp_names(flags, mask), *counts)
        for mask, counts in found.gfp.items()
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
        PageOwnerMigratetype(_type(found, page), _type(found, block), *counts)
        for (page, block), counts in sorted(found.migratetypes.items())
    ]


def page_owner_migrations(prog: Program, found: PageOwner) -> list[PageOwnerMigration]:
    """By the reason of the last migration; pages that never were are left out."""
    names = [name_at(name) for name in prog["migrate_reason_names"]]
    rows = []
    for reason, counts in sorted(found.migrations.items()):
        if reason != found.never_migrated & 0xFFFF:
            name = names[reason] if reason < len(names) else f"unknown ({reason})"
            rows.append(PageOwnerMigration(name, *counts))
    return rows


def page_owner_ages(found: PageOwner) -> list[PageOwnerAge]:
    """By age, the youngest first."""
    return [
        PageOwnerAge(AGES[age], AGES[age + 1] if age + 1 < len(AGES) else None, *counts)
        for age, counts in sorted(found.ages.items())
    ]


def page_owner_freed(prog: Program, depot: StackDepot, found: PageOwner) -> list[PageOwnerFreed]:
    """Free pages by the stack that freed them, most first."""
    handles = np.array(sorted(found.freed), np.uint32)
    rows = [
        PageOwnerFreed(handle, found.freed[handle], stack)
        for handle, stack in zip(handles.tolist(), folded_stacks(prog, depot, handles), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.pages, row.handle))


def page_owner_polluters(
    prog: Program, depot: StackDepot, found: PageOwner
) -> list[PageOwnerPolluter]:
    """Pages in pageblocks of another migratetype, by stack, most first; Movable in CMA is not."""
    movable = found.names.index("Movable")
    cma = found.names.index("CMA") if "CMA" in found.names else -1
    counted = [
        (handle, kind, block, pages)
        for (handle, kind, block), pages in sorted(found.polluters.items())
        if (kind, block) != (movable, cma)
    ]
    handles = np.array([handle for handle, *_ in counted], np.uint32)
    rows = [
        PageOwnerPolluter(handle, _type(found, kind), _type(found, block), pages, stack)
        for (handle, kind, block, pages), stack in zip(
            counted, folded_stacks(prog, depot, handles), strict=True
        )
    ]
    return sorted(rows, key=lambda row: (-row.pages, row.handle))


def page_owner_mixed_blocks(prog: Program, found: PageOwner) -> list[PageOwnerMixedBlocks]:
    """Mixed pageblocks of every zone with memory, by migratetype."""
    per_node = flag_fields(prog).zones_per_node
    return [
        PageOwnerMixedBlocks(
            node, zone_name(zone), name, found.mixed.get((node * per_node + index, kind), 0)
        )
        for node, index, zone in for_each_zone(prog)
        if zone.present_pages.value_()
        for kind, name in enumerate(found.names)
    ]


def _type(found: PageOwner, migratetype: int) -> str:
    return found.names[migratetype] if migratetype < len(found.names) else "unknown"


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_owner")
