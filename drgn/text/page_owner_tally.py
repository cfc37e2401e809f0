# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Records of ``/sys/kernel/debug/page_owner``, counted by stack, task, order, gfp mask, migratetypes
and memcg.

Costs 0.4 to 1.5 µs a record, the less the more records in a row are alike. What is kept grows with
the distinct stacks and tasks, both up to a limit, beyond which the rest is one row of its own that
says so.

It cannot know: allocations freed while the file was read, and who uses a page now.
"""

import re
from collections.abc import Iterable
from typing import Any

from mmscope.drgn.text.page_owner_parts import (
    NEAR_BEGIN,
    NEAR_END,
    ORDERS,
    UNREADABLE,
    Rest,
    Seen,
)
from mmscope.drgn.text.page_owner_records import BARE, BETWEEN, HEAD, Tally
from mmscope.drgn.text.page_owner_selection import Selection
from mmscope.drgn.text.stack_text import allocator

# Limits on what is kept, for text that is made to fill memory.
MAX_STACKS = 16_000
MAX_TASKS = 20_000
MAX_SEEN_BYTES = 12 << 20  # of parts of records as printed, until they are folded


def new_tally() -> Tally:
    """Nothing counted yet."""
    return {
        "stacks": {},  # (handle or None, text as printed) -> row; None -> row of all the others
        "tasks": {},  # (pid, tgid, comm), None if not printed -> row; None -> row of all the others
        "orders": {},  # order -> row
        "gfp": {},  # (mask, names) -> row
        "migratetypes": {},  # (of the page, of the pageblock) -> row
        "memcgs": {},  # (name or None, offline, objcg, slab) -> row
        "migrated": {},  # reason -> row
        "culled": {},  # values of the keys -> row
        "records": 0,
        "skipped": 0,
        "unknown_lines": 0,
        "truncated": 0,
    }


def _fold(seen: Seen, tally: Tally) -> None:
    """Move what was counted into a tally, and forget the parts."""
    for head, rest in seen.pairs:
        if rest.wanted:
            head.task.allocations += rest.count
            rest.stack.by_order[head.order] += rest.count
            rest.tail.by_order[head.order] += rest.count
        elif head.task is UNREADABLE:
            tally["skipped"] += rest.count
    for task in filter(None, seen.tasks.values()):
        order, mask, names, pid, tgid, comm = task.fields
        row = (task.allocations << order, task.allocations)
        _add(tally["tasks"], (pid, tgid, comm), row, MAX_TASKS)
        _add(tally["orders"], order, row)
        _add(tally["gfp"], (mask, names), row, MAX_TASKS)
        tally["records"] += task.allocations
    for stack in filter(None, seen.stacks.values()):
        _add(tally["stacks"], stack.fields, stack.row(), MAX_STACKS)
    for tail in seen.tails.values():
        memcg, reason, unknown = tail.fields
        pages, allocations = tail.row()
        _add(tally["memcgs"], memcg, (pages, allocations), MAX_TASKS)
        if reason:
            _add(tally["migrated"], reason, (pages, allocations), MAX_TASKS)
        tally["unknown_lines"] += unknown * allocations
    for place in seen.places.values():
        _add(tally["migratetypes"], place.fields, place.row(), MAX_TASKS)
    seen.clear()


def tally_page_owner(
    texts: Iterable[bytes], tally: Tally, selection: Selection, *, bare: bool = False
) -> None:
    """
    Count the records of ``page_owner`` by stack, task, order, gfp mask, migratetypes and memcg.

    A record whose parts were all seen before is not parsed: they are found by what is printed. The
    first line up to its time, the second from its migratetypes to its end, and what follows it are
    each looked up, or compared with those of the record before. The time and the PFN are not looked
    at, where they are as wide as others that were.

    :param bare: they are :data:`BARE`.
    """
    seen = Seen(selection, bare=bare)
    for text in texts:
        _tally_text(text, seen, tally)
        if seen.size() > MAX_SEEN_BYTES:
            _fold(seen, tally)
    _fold(seen, tally)


def _tally_text(text: bytes, seen: Seen, tally: Tally) -> None:
    """Count the records of a text, as :func:`tally_page_owner` says."""
    find, starts_with = text.find, text.startswith
    heads, lines, edge, bare = seen.heads, seen.lines, seen.edge, seen.bare
    edge_size = len(edge)
    nothing, nowhere = Rest(b"", None, None, wanted=False), [*ORDERS]
    # Of the record before: its first line up to the edge; from " type " to where it ends.
    printed = alike = b"?"
    head: Any = None
    rest, by_order = nothing, nowhere
    gap: int | None = None
    position, size, run, order = 0, len(text), 0, 0
    printed_size, typed, width = 0, 0, seen.width
    while position < size:
        if starts_with(printed, position):
            begin = position + printed_size
            # Behind the last of the second line. If there is one before, a task's name goes on:
            # "x), ts " is one, too.
            end = find(b")", begin) + 1
            if end - begin == gap and starts_with(alike, end - typed):
                run += 1
                position = end + rest.size
                continue
        else:
            begin = find(edge, position) + edge_size
            printed = text[position:begin]
            printed_size = begin - position
            end = find(b")", begin) + 1
            head = heads.get(printed) or seen.head(printed)
        rest.count += run
        by_order[order] += run
        # From the end of the first line on, PFNs are mostly of the width of the one before.
        line = begin if bare else find(b"\n", begin)
        place = lines.get(text[line + width : end])
        if place is None:
            width, place = seen.line(text, begin, line, end)
        found = None
        if head is not None and place is not None:
            found = head.near.get(text[end + NEAR_BEGIN : end + NEAR_END])
            while found is not None and not starts_with(found.text, end):
                found = found.other
            if found is None:
                found = seen.rest(text, end, head)
        if found is None or place is None:
            *entries, position = seen.record(text, position)
            _count(entries, 1, tally)
            head, rest, run, gap, printed, printed_size = None, nothing, 0, None, b"?", 0
            continue
        rest, order, run = found, head.order, 1
        by_order = place.by_order if rest.wanted else nowhere
        gap, typed = end - begin, end - line - width
        position = end + rest.size
        alike = text[end - typed : position]
    seen.width = width
    rest.count += run
    by_order[order] += run


def _count(entries: Iterable[Any], records: int, tally: Tally) -> None:
    """Count records that have the same entries."""
    task, stack, tail, place = entries
    if task and stack:
        order = task.order
        task.allocations += records
        stack.by_order[order] += records
        tail.by_order[order] += records
        place.by_order[order] += records
    elif task is UNREADABLE or stack is UNREADABLE:
        tally["skipped"] += records


def tally_selected(
    texts: Iterable[bytes], tally: Tally, selection: Selection, *, bare: bool = False
) -> None:
    """
    Count the records of ``page_owner`` that a selection by time wants, or by several keys together.

    Slower than :func:`tally_page_owner`, since every record's time is looked at.

    :param bare: they are :data:`BARE`: the selection cannot be by what they do not have.
    """
    match = re.compile(BARE if bare else HEAD % b"([0-9]{1,20})").match
    seen = Seen(selection, bare=bare)
    for text in texts:
        for record in text.split(BETWEEN)[:-1]:
            found = match(record)
            if found is None:
                tally["skipped"] += 1
                continue
            first, printed, page_type, block_type, rest = found.groups()
            ts = int(printed) if printed else None
            task, stack, tail, place = seen.entries(first, page_type, block_type, rest)
            wanted = not task or ts is None or selection.moment(ts)
            if wanted:
                _count((task, stack, tail, place), 1, tally)
            if wanted and task and stack and selection.cull:
                memcg, _, _ = tail.fields
                _cull(tally, selection.cull, task.fields, stack.fields, memcg, ts)
        if seen.size() > MAX_SEEN_BYTES:
            _fold(seen, tally)
    _fold(seen, tally)


def _cull(
    tally: Tally, keys: tuple[str, ...], task: Any, stack: Any, memcg: Any, ts: int | None
) -> None:
    """Count an allocation under its values of the keys."""
    order, mask, names, pid, tgid, comm = task
    handle, printed = stack
    cgroup, _, _, slab = memcg
    values = {
        "pid": pid,
        "tgid": tgid,
        "comm": comm,
        "order": order,
        "gfp": names or mask,
        "stack": printed or handle,
        "memcg": cgroup,
        "allocator": allocator(printed, slab=slab),
    }
    key: Any = tuple(values[name] for name in keys)
    culled = tally["culled"]
    if key not in culled and len(culled) >= MAX_TASKS:
        key = None
    _add_culled(culled, key, (1 << order, 1, ts, ts))


def _add_culled(
    culled: dict[Any, Any], key: Any, row: tuple[int, int, int | None, int | None]
) -> None:
    """Add pages, allocations, first and last ts (None where the kernel prints none) to a key's."""
    pages, allocations, first, last = row
    if key in culled:
        before, number, earliest, latest = culled[key]
        pages, allocations = before + pages, number + allocations
        if first is not None and last is not None:
            first, last = min(earliest, first), max(latest, last)
    culled[key] = [pages, allocations, first, last]


def _add(rows: dict[Any, Any], key: Any, row: tuple[int, int], limit: int = 1 << 62) -> None:
    """Add pages and allocations to a key's; to None's when there are too many keys."""
    pages, allocations = row
    if not allocations:
        return
    if key not in rows and len(rows) >= limit:
        key = None
    before, number = rows.get(key, (0, 0))
    rows[key] = [before + pages, number + allocations]


def merge(tally: Tally, other: Tally) -> None:
    """Add what another process counted."""
    for name, rows in other.items():
        if isinstance(rows, int):
            tally[name] += rows
        elif name == "culled":
            for key, row in rows.items():
                _add_culled(tally[name], key, row)
        else:
            for key, row in rows.items():
                _add(tally[name], key, row, MAX_STACKS if name == "stacks" else MAX_TASKS)
