# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Records of ``/sys/kernel/debug/page_owner``, counted by stack, task, order, gfp mask, migratetypes
and memcg.

Costs 1 to 3 µs a record, the less the more records in a row are alike. What is kept grows with the
distinct stacks and tasks, both up to a limit, beyond which the rest is one row of its own that says
so.

It cannot know: allocations freed while the file was read, and who uses a page now.
"""

import re
from collections.abc import Iterable
from typing import Any

from mmscope.drgn.text.page_owner_records import (
    BARE,
    BETWEEN,
    HEAD,
    TYPES,
    Tally,
    parse_stack,
    parse_tail,
    parse_task,
    split_lines,
    split_rest,
)
from mmscope.drgn.text.page_owner_selection import Selection
from mmscope.drgn.text.stack_text import allocator

# Limits on what is kept, for text that is made to fill memory.
MAX_STACKS = 16_000
MAX_TASKS = 20_000
MAX_SEEN_BYTES = 6 << 20  # of parts of records as printed, until they are folded
MAX_ORDER = 30  # twice what any kernel has; 1 << 30 pages fit a table
ORDERS = (0,) * (MAX_ORDER + 1)
# In place of a part that the selection does not want, or that is not what the kernel prints.
UNWANTED: tuple[()] = ()
UNREADABLE = False
TIME = b", ts "
RECORD = re.compile(HEAD % b"[0-9]+")
NUMERALS = b"0123456789abcdef"
# Of a stack, which bytes to know it by: behind the allocator's own frames, mostly.
PRINT_BEGIN, PRINT_END = 160, 230
UNSEEN = b"", 0, None


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


class _Task:
    """The first line of records up to its time, what it says, and how many have it."""

    __slots__ = ("allocations", "fields", "order")

    def __init__(self, order: int, fields: tuple[Any, ...]) -> None:
        self.order, self.fields, self.allocations = order, fields, 0


class _Part:
    """Another part of records, what it says, and how many have it, by their order."""

    __slots__ = ("by_order", "fields")

    def __init__(self, fields: tuple[Any, ...]) -> None:
        self.fields, self.by_order = fields, [*ORDERS]

    def row(self) -> tuple[int, int]:
        """(pages, allocations)."""
        pages = sum(number << order for order, number in enumerate(self.by_order))
        return pages, sum(self.by_order)


class _Seen:
    """
    Parts of records as printed, each with what it means and how often it was counted.

    An entry is UNWANTED where the selection does not want it, and UNREADABLE where it is not what
    the kernel prints: looked at once, then as quick as a wanted one.
    """

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.tasks: dict[bytes, Any] = {}  # order, mask, its names, pid, tgid, comm
        self.stacks: dict[bytes, Any] = {}  # handle, stack
        self.tails: dict[bytes, _Part] = {}  # memcg, migrate reason, unknown lines
        self.places: dict[tuple[bytes, bytes], _Part] = {}  # of the page, of the pageblock
        # Ways to them: the second line from " type " on -> entry of its migratetypes; some bytes of
        # a stack -> it, its size, its entry.
        self.lines: dict[bytes, _Part] = {}
        self.prints: dict[bytes, tuple[bytes, int, Any]] = {}
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether it is time to fold."""
        return self.bytes + 300 * (len(self.lines) + len(self.prints)) > MAX_SEEN_BYTES

    def place(self, page_type: bytes, block_type: bytes) -> _Part:
        """The entry of two migratetypes, which is made if it is new."""
        types = page_type, block_type
        if types not in self.places:
            self.places[types] = _Part(types)
        return self.places[types]

    def line(self, text: bytes, line: int, end: int) -> tuple[int, _Part | None]:
        """
        How far behind *line*, the end of the first line, the second has " type ", and the entry of
        its migratetypes; None if it has none.
        """
        where = text.find(b" type ", line)
        printed = text[where:end]
        place = self.lines.get(printed)
        if place is None and (types := TYPES.fullmatch(printed)):
            place = self.lines[printed] = self.place(*types.groups())
        return where - line, place

    def task(self, head: bytes) -> Any:
        """The entry of a first line up to its time; None if it is not one."""
        if head not in self.tasks:
            fields = parse_task(head)
            if fields is None:
                return None
            order, *_ = fields
            if order > MAX_ORDER:
                self.tasks[head] = UNREADABLE
            else:
                wanted = self.selection.task(fields)
                self.tasks[head] = _Task(order, fields) if wanted else UNWANTED
            self.bytes += len(head) + 300
        return self.tasks[head]

    def stack(self, text: bytes) -> Any:
        """The entry of a stack with its handle; None if it is not one."""
        if text not in self.stacks:
            fields = parse_stack(text)
            if fields is None:
                return None
            _, stack = fields
            self.stacks[text] = _Part(fields) if self.selection.stack(stack) else UNWANTED
            self.bytes += 2 * len(text) + 300
        return self.stacks[text]

    def tail(self, text: bytes) -> _Part:
        """The entry of the lines after a stack."""
        if text not in self.tails:
            self.tails[text] = _Part(parse_tail(text))
            self.bytes += len(text) + 300
        return self.tails[text]

    def rest(self, text: bytes, end: int) -> tuple[Any, Any, int]:
        """
        The entries of a stack and of the lines after it, which begin at *end*, and where the next
        record begins. Both are None if the stack does not parse.
        """
        stop = text.find(BETWEEN, end)
        printed, others = split_rest(text[end:stop])
        stack = self.stack(printed)
        if stack is None:
            return None, None, stop + len(BETWEEN)
        self.prints[text[end + PRINT_BEGIN : end + PRINT_END]] = printed, len(printed), stack
        return stack, self.tail(others), stop + len(BETWEEN)

    def record(self, text: bytes, position: int) -> tuple[Any, Any, Any, Any, int]:
        """The entries of a whole record by a regular expression, and where the next begins."""
        stop = text.find(BETWEEN, position)
        found = RECORD.match(text, position, stop)
        entries = self.entries(*found.groups()) if found else (UNREADABLE, UNREADABLE, None, None)
        return *entries, stop + len(BETWEEN)

    def entries(
        self, first: bytes, page_type: bytes, block_type: bytes, text: bytes, time: bytes = TIME
    ) -> tuple[Any, Any, Any, Any]:
        """The entries of a record's parts, UNREADABLE for a task or stack that does not parse."""
        printed, others = split_rest(text)
        stack = self.stack(printed)
        if stack is None:
            printed, others = split_lines(text)
            stack = self.stack(printed)
        task = self.task(first + time)
        return (
            UNREADABLE if task is None else task,
            UNREADABLE if stack is None else stack,
            self.tail(others),
            self.place(page_type, block_type),
        )

    def fold(self, tally: Tally) -> None:
        """Move what was counted into a tally, and forget the parts."""
        for task in filter(None, self.tasks.values()):
            order, mask, names, pid, tgid, comm = task.fields
            row = (task.allocations << order, task.allocations)
            _add(tally["tasks"], (pid, tgid, comm), row, MAX_TASKS)
            _add(tally["orders"], order, row)
            _add(tally["gfp"], (mask, names), row, MAX_TASKS)
            tally["records"] += task.allocations
        for stack in filter(None, self.stacks.values()):
            _add(tally["stacks"], stack.fields, stack.row(), MAX_STACKS)
        for tail in self.tails.values():
            memcg, reason, unknown = tail.fields
            pages, allocations = tail.row()
            _add(tally["memcgs"], memcg, (pages, allocations), MAX_TASKS)
            if reason:
                _add(tally["migrated"], reason, (pages, allocations), MAX_TASKS)
            tally["unknown_lines"] += unknown * allocations
        for place in self.places.values():
            _add(tally["migratetypes"], place.fields, place.row(), MAX_TASKS)
        for parts in (self.tasks, self.stacks, self.tails, self.places, self.lines, self.prints):
            parts.clear()
        self.bytes = 0


def tally_page_owner(texts: Iterable[bytes], tally: Tally, selection: Selection) -> None:
    """
    Count the records of ``page_owner`` by stack, task, order, gfp mask, migratetypes and memcg.

    A record whose parts were all seen before is not parsed: they are found by what is printed. The
    first line up to its time, and what follows the second, are mostly those of the record before,
    since memory is allocated in bursts. The second line repeats from its migratetypes on; the time
    and the PFN before them are not looked at.
    """
    seen = _Seen(selection)
    for text in texts:
        _tally_text(text, seen, tally)
        if seen.full:
            seen.fold(tally)
    seen.fold(tally)


def _tally_text(text: bytes, seen: _Seen, tally: Tally) -> None:
    """Count the records of a text, as :func:`tally_page_owner` says."""
    find, starts_with = text.find, text.startswith
    tasks, lines, prints, tails = seen.tasks, seen.lines, seen.prints, seen.tails
    task: Any = None
    head = rest = b"?"  # of the record before, with the marks that end them
    head_size = rest_size = width = 0
    pending: tuple[Any, Any, Any, Any] | None = None  # entries of the last record, and how many
    last: Any = None  # have them in a row; their migratetypes
    position, size, run = 0, len(text), 0
    while position < size:
        same = head_size and starts_with(head, position)
        if same:
            begin = position + head_size
        else:
            begin = find(TIME, position) + len(TIME)
            head = text[position:begin]
            head_size = len(head)
            task = tasks.get(head)
            if task is None:
                task = seen.task(head)
        line = find(b"\n", begin)
        end = find(b"\n", line + 1)
        # PFNs are mostly of the width of the one before.
        place = lines.get(text[line + width : end])
        if place is None:
            width, place = seen.line(text, line, end)
        if rest_size and starts_with(rest, end):
            following = end + rest_size
            if place is last and same and find(b")", begin, line) < 0:
                run += 1
                position = following
                if starts_with(head, position):
                    alike, position = _alike(text, head, begin, line + width, position)
                    run += alike
                continue
        else:
            # A few bytes of a stack tell which it may be, and comparing says whether it is.
            printed, length, stack = prints.get(text[end + PRINT_BEGIN : end + PRINT_END], UNSEEN)
            if stack is not None and starts_with(printed, end):
                after = end + length
                stop = after if starts_with(BETWEEN, after) else find(BETWEEN, after)
                tail, following = tails.get(text[after:stop]), stop + len(BETWEEN)
            else:
                stack, tail, following = seen.rest(text, max(end, position))
            rest = text[end:following]
            rest_size = len(rest)
        # A parenthesis would mean that the name goes on: "x), ts " is one, too.
        if (
            task is None
            or stack is None
            or tail is None
            or place is None
            or find(b")", begin, line) >= 0
        ):
            head_size = rest_size = 0
            task, stack, tail, place, following = seen.record(text, position)
        _count(pending, run, tally)
        position, pending, last, run = following, (task, stack, tail, place), place, 1
    _count(pending, run, tally)


def _alike(text: bytes, head: bytes, begin: int, place: int, position: int) -> tuple[int, int]:
    """
    How many records from *position* on are as the one before, and where the next begins.

    In a burst nothing differs but the time and the PFN. What is between them, up to the next
    record's time, is compared as a whole.

    :param begin: where the record before has its time.
    :param place: where it has its migratetypes.
    """
    starts_with = text.startswith
    numbers = place - begin
    shape = text[begin:place].translate(None, NUMERALS)
    alike = text[place:position] + head
    step = numbers + len(alike)
    first = time = position + len(head)
    while (
        starts_with(alike, time + numbers)
        and text[time : time + numbers].translate(None, NUMERALS) == shape
    ):
        time += step
    return (time - first) // step, time - len(head)


def _count(entries: tuple[Any, Any, Any, Any] | None, records: int, tally: Tally) -> None:
    """Count records that have the same entries."""
    if entries is None:
        return
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
    seen, mark = _Seen(selection), b"" if bare else TIME
    for text in texts:
        for record in text.split(BETWEEN)[:-1]:
            found = match(record)
            if found is None:
                tally["skipped"] += 1
                continue
            first, printed, page_type, block_type, rest = found.groups()
            ts = int(printed) if printed else None
            task, stack, tail, place = seen.entries(first, page_type, block_type, rest, mark)
            wanted = not task or ts is None or selection.moment(ts)
            if wanted:
                _count((task, stack, tail, place), 1, tally)
            if wanted and task and stack and selection.cull:
                memcg, _, _ = tail.fields
                _cull(tally, selection.cull, task.fields, stack.fields, memcg, ts)
        if seen.full:
            seen.fold(tally)
    seen.fold(tally)


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
