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

Cannot know: who allocated pages before page_owner started (they have one stack for all), and who
uses a page now. After a migration task and stack are still those of the first allocation.
"""

from collections import Counter

import numpy as np
from drgn import Program, offsetof

from mmscope.drgn.free.free_memory import pageblock_note
from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.owners.page_owner_rows import (
    OTHER_TASKS,
    PageOwnerAge,
    PageOwnerCheck,
    PageOwnerFreed,
    PageOwnerGfp,
    PageOwnerGrowth,
    PageOwnerMemcg,
    PageOwnerMigratetype,
    PageOwnerMigration,
    PageOwnerMixedBlocks,
    PageOwnerOrder,
    PageOwnerPoint,
    PageOwnerPolluter,
    PageOwnerSnapshot,
    PageOwnerStack,
    PageOwnerTask,
)
from mmscope.drgn.owners.page_owner_scan import AGES, TASK, PageOwner, scan_page_owner, summed
from mmscope.drgn.reading.kernel_arrays import S64s
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.page_ext import page_ext_size
from mmscope.drgn.reading.stack_depot import StackDepot, folded_stacks, stack_depot
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.table import table_of, tables_of
from mmscope.drgn.text.owner_frames import owner_frame
from mmscope.drgn.text.page_owner_text import not_kept

MAX_TASKS = 20_000  # in the table; the others are one row
MAX_LIST = 1 << 20  # entries of stack_list; there are never more than records in the depot

EARLY = "allocated before page_owner started; the kernel does not count them"
UNLISTED = "not in show_stacks: its first allocation could not wait for the list's lock"
NO_RECORD = "the stack depot has no such handle"


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
    counted: Counter[tuple[int, str]] = Counter()
    for (zone, migratetype), blocks in found.mixed.items():
        name = found.names[migratetype]
        counted[zone, "Movable" if name == "CMA" else name] += blocks
    return [
        PageOwnerMixedBlocks(node, zone_name(zone), name, counted[number, name])
        for node, number, zone in for_each_zone(prog)
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
    notes += if_any(depot.gaps.bytes, "{} bytes of the stack depot could not be read")
    notes += if_any(depot.damaged, "{} records of the stack depot are damaged, and not used")
    return notes


def page_owner_from_memory(memory: Memory) -> Found:
    prog = memory.prog
    if reason := page_owner_off(prog):
        raise Absent(reason)
    depot, owners = depot_of(memory), scan_page_owner(prog, progress=memory.progress)
    rows, checks = page_owner_stacks(prog, depot, owners)
    lost = owners.gaps.bytes + owners.types.gaps.bytes
    found = Found(memory.live, unreadable_bytes=lost + depot.gaps.bytes)
    found.notes += depot_notes(depot)
    found.notes += pageblock_note(
        owners.types.unreadable, owners.types.gaps, "nothing is said to be out of place"
    )
    found.notes += if_any(
        owners.gaps.bytes,
        "{} bytes of struct pages and page_exts could not be read: their pages are not counted",
    )
    found.notes += if_any(owners.damaged, "{} page_exts have an order that cannot be")
    found.differ(
        *if_any(len(checks), "the kernel counts {} otherwise (page_owner_checks)", "stack")
    )
    if unlisted := [row for row in rows if row.note == UNLISTED]:
        pages = sum(row.pages for row in unlisted)
        found.remarks.append(
            f"{plural(len(unlisted), 'stack')} with {plural(pages, 'page')}: not in show_stacks "
            "and show_handles: their first allocation could not wait for a lock"
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
