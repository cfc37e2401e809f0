# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The text of ``/sys/kernel/debug/page_owner``.

A record an allocation: two lines about it, its stack, lines about migration and memcg, a blank line
(``print_page_owner()``; ``mm/page_owner.c``, read at 6.1, 6.12, 7.2 and 7.3). 6.1 to 6.6 have
free_ts on line 1, 6.1 prints the PFN in decimal, 7.3 can print ``handle: N`` after the stack or
instead of it. The files beside it, ``page_owner_stacks/show_*``, are read by
``page_owner_counts.py``; :func:`recognise` distinguishes all four by what is in them.

**Hostile text.** A task's name is 15 bytes of its own choice, a cgroup's 79, and both are printed
raw. So the end of a record is not a blank line: it is a blank line and the beginning of the next
one (``Page allocated via order ``), which is longer than a task's name can be; and the first two
lines have to match as a whole, which no name is long enough to forge. Stack lines are taken
straight after the second line, where no name can be. What does not fit is counted as skipped.

Costs 1 to 3 µs a record, the less the more records in a row are alike; a large file is read by
several processes at once. Memory is bounded:
what is kept grows with the distinct stacks and tasks, both up to a limit, beyond which the rest is
one row of its own that says so.

It cannot know: allocations freed while the file was read, and who uses a page now.
"""

import marshal
import mmap
import os
import re
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mmscope.drgn.text.stack_text import allocator, is_stack
from mmscope.drgn.text.text_source import CHUNK_BYTES, Source, TextError

# bytes read, of how many (0: unknown)
Progress = Callable[[int, int], None]
# What was counted, in plain dictionaries, so that a process can hand its own to another. A row
# is [pages, allocations]; of "culled" it goes on with the first and last ts.
Tally = dict[str, Any]

# A record is printed into a buffer of at most a page (print_page_owner()); 64 KiB on some.
MAX_RECORD_BYTES = 1 << 20
# Limits on what is kept, for text that is made to fill memory.
MAX_STACKS = 16_000
MAX_TASKS = 20_000
MAX_SEEN_BYTES = 6 << 20  # of parts of records as printed, until they are folded
MAX_ORDER = 30  # twice what any kernel has; 1 << 30 pages fit a table
ORDERS = (0,) * (MAX_ORDER + 1)
# Reading with several processes pays from here on.
PARALLEL_BYTES = 8 << 20
MAX_PROCESSES = 4

BEGIN = b"Page allocated via order "
BETWEEN = b"\n\n" + BEGIN
TIME = b", ts "
NUMERALS = b"0123456789abcdef"
# Of a stack, which bytes to know it by: behind the allocator's own frames, mostly.
PRINT_BEGIN, PRINT_END = 160, 230
# The first two lines, from the order on, and all that follows. %pGg and %pGp print no parentheses
# of their own, and no newline: a record that was cut in them would take in the next one. A name has
# at most 15 bytes (TASK_COMM_LEN, 16, with its NUL); if it could have more, a cgroup's name and the
# next record's beginning might be read as one line.
HEAD = (
    rb"([0-9]{1,2}, mask (?:0x)?[0-9a-f]+\([^)\n]*\), pid -?[0-9]{1,10}, tgid -?[0-9]{1,10} "
    rb"\((?s:.){0,15}\)), ts %b ns(?:, free_ts [0-9]+ ns)?\n"
    rb"PFN (?:0x)?[0-9a-f]+ type ([A-Za-z]+) Block [0-9]+ type ([A-Za-z]+) Flags [^\n]*(?s:(.*))"
)
TYPES = re.compile(rb" type ([A-Za-z]+) Block [0-9]+ type ([A-Za-z]+) Flags [^\n]*")
TASK = re.compile(
    rb"([0-9]{1,2}), mask ((?:0x)?[0-9a-f]+)\(([^)\n]*)\), pid (-?[0-9]{1,10}), "
    rb"tgid (-?[0-9]{1,10}) \(((?s:.){0,15})\)\Z"
)
MIGRATED = b"Page has been migrated, last migrate reason: "
CHARGED = re.compile(rb"\nCharged (\(via objcg\) )?to (offline )?memcg (.*)", re.DOTALL)

CULL_KEYS = ("pid", "tgid", "comm", "order", "gfp", "stack", "memcg", "allocator")


# page_owner: counting


def new_tally() -> Tally:
    """Nothing counted yet."""
    return {
        "stacks": {},  # (handle or None, text as printed) -> row; None -> row of all the others
        "tasks": {},  # (pid, tgid, comm) -> row; None -> row of all the others
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


class Selection:
    """
    What to count of a ``page_owner`` file; by default all of it.

    :ivar pid, tgid, comm, order: values to keep.
    :ivar gfp: flag names, all of which must be among those printed, or one mask.
    :ivar module: a record is kept if a frame of its stack is of one of these modules.
    :ivar since, until: ts in ns, inclusive.
    :ivar cull: count by these of :data:`CULL_KEYS` together, instead of by each one alone.
    """

    def __init__(
        self,
        *,
        pid: Iterable[int] = (),
        tgid: Iterable[int] = (),
        comm: Iterable[bytes] = (),
        order: Iterable[int] = (),
        gfp: Iterable[bytes] = (),
        module: Iterable[bytes] = (),
        since: int | None = None,
        until: int | None = None,
        cull: Iterable[str] = (),
    ) -> None:
        self.pid, self.tgid, self.comm = frozenset(pid), frozenset(tgid), frozenset(comm)
        self.order, self.gfp, self.module = frozenset(order), frozenset(gfp), frozenset(module)
        self.since, self.until, self.cull = since, until, tuple(cull)

    @property
    def timed(self) -> bool:
        """Whether the time of each single record matters."""
        return self.since is not None or self.until is not None or bool(self.cull)

    def task(self, fields: tuple[int, bytes, bytes, int, int, bytes]) -> bool:
        """Whether allocations with this first line are wanted."""
        order, mask, names, pid, tgid, comm = fields
        return (
            (not self.order or order in self.order)
            and (not self.pid or pid in self.pid)
            and (not self.tgid or tgid in self.tgid)
            and (not self.comm or comm in self.comm)
            and (not self.gfp or mask in self.gfp or self.gfp <= set(names.split(b"|")))
        )

    def stack(self, stack: bytes) -> bool:
        """Whether allocations with this stack are wanted."""
        return not self.module or any(b" [%b]\n" % name in stack for name in self.module)

    def moment(self, ts: int) -> bool:
        """Whether allocations of this time are wanted."""
        return (self.since is None or ts >= self.since) and (self.until is None or ts <= self.until)


EVERYTHING = Selection()


def record_texts(
    chunks: Iterable[bytes], tally: Tally, begin: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """
    Texts of whole records, without the words each begins with; after each is :data:`BETWEEN`.

    :param chunks: the file from offset *begin* on. A record that began before is another reader's.
    :param tally: counts what is no record: text before the first, a last one that is cut short.
    :param end: stop at the first beginning of a record at or behind this offset.
    """
    rest, offset, first = b"", begin, True
    for chunk in chunks:
        data = rest + chunk
        cut = -1
        if end is not None and offset + len(data) > end:
            cut = data.find(BETWEEN, max(end - offset, 0))
        last = cut >= 0
        if not last:
            cut = data.rfind(BETWEEN)
        text = data[: cut + len(BETWEEN)] if cut >= 0 else b""
        rest = data[len(text) :]
        offset += len(text)
        if not last and len(rest) > MAX_RECORD_BYTES:
            # No record is that long. The mark keeps what follows from being taken for one.
            offset += len(rest) - len(BETWEEN)
            rest = b"?" + rest[1 - len(BETWEEN) :]
        if text and first:
            first = False
            text = _first_text(text, tally, begin)
        if text:
            yield text
        if last:
            return
    if first:
        rest = _first_text(rest, tally, begin) if rest and begin == 0 else b""
    # The blank line is the last record's only mark of being whole; the next may have begun.
    begun = bool(rest) or not first
    cut = rest.rfind(b"\n\n")
    if cut >= 0 and BEGIN.startswith(rest[cut + 2 :]):
        yield rest[:cut] + BETWEEN
        begun = bool(rest[cut + 2 :])
    tally["truncated"] += begun


def _first_text(text: bytes, tally: Tally, begin: int) -> bytes:
    """The text from the first record on, without the words that it begins with."""
    if begin:
        return text.partition(BETWEEN)[2]
    if BEGIN.startswith(text):
        return text  # cut short in these words
    if text.startswith(BEGIN):
        return text[len(BEGIN) :]
    before, _, after = text.partition(b"\n" + BEGIN)
    tally["skipped"] += bool(before.strip())
    return after


def parse_task(head: bytes) -> tuple[int, bytes, bytes, int, int, bytes] | None:
    """(order, mask, names of the mask, pid, tgid, comm) of a first line up to its time."""
    match = TASK.match(head)
    if match is None:
        return None
    return int(match[1]), match[2], match[3], int(match[4]), int(match[5]), match[6]


def split_rest(text: bytes) -> tuple[bytes, bytes]:
    """
    What follows the first two lines, in two: the stack with its handle, and the lines after it.

    From the end, since there are few lines after a stack. If a cgroup's name has a line in it that
    begins as one of a stack, the stack is not one (:func:`parse_stack`), and :func:`split_lines` is
    needed.
    """
    end = len(text)
    while (line := text.rfind(b"\n", 0, end)) >= 0:
        if text.startswith((b"\n ", b"\nhandle: "), line):
            return text[:end], text[end:]
        end = line
    return b"", text


def split_lines(text: bytes) -> tuple[bytes, bytes]:
    """The same, line by line: the stack ends with the first line that does not belong to it."""
    end = 0
    while text.startswith(b"\n ", end) or text.startswith(b"\nhandle: ", end):
        handle = text.startswith(b"\nh", end)
        end = text.find(b"\n", end + 1)
        if end < 0:
            return text, b""
        if handle:
            break
    return text[:end], text[end:]


def parse_stack(text: bytes) -> tuple[int | None, bytes] | None:
    """(handle, stack as printed); None if it is neither: two records run into each other, say."""
    stack, found, handle = text.partition(b"\nhandle: ")
    if found and not (handle.isdigit() and len(handle) <= 10):
        return None
    stack = stack[1:] + b"\n" if stack else b""
    return (int(handle) if found else None, stack) if not stack or is_stack(stack) else None


def parse_tail(tail: bytes) -> tuple[tuple[Any, ...], bytes, int]:
    """((memcg, offline, objcg, slab), migrate reason, unknown lines)."""
    name, offline, objcg, slab = None, False, False, False
    reason, unknown = b"", 0
    while tail:
        if charged := CHARGED.match(tail):
            # A cgroup's name may have newlines in it, so that it ends where the record ends.
            name, offline, objcg = charged[3], bool(charged[2]), bool(charged[1])
            break
        line, newline, tail = tail[1:].partition(b"\n")
        tail = newline + tail
        if line.startswith(MIGRATED):
            reason = line[len(MIGRATED) :]
        elif line == b"Slab cache page":
            slab = True
        else:
            unknown += 1
    return (name, offline, objcg, slab), reason, unknown


def _pages(counts: list[Any]) -> tuple[int, int]:
    """(pages, allocations) of allocations by order."""
    by_order = counts[:-1]
    return sum(number << order for order, number in enumerate(by_order)), sum(by_order)


class _Seen:
    """
    Parts of records as printed, each with what it means and how often it was counted.

    An entry is empty where the selection does not want it, and False where it is not what the
    kernel prints: looked at once, then as quick as a wanted one.
    """

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.tasks: dict[bytes, Any] = {}  # first line -> [order, allocations, fields]
        # Allocations by order, and last the fields.
        self.stacks: dict[bytes, Any] = {}  # (handle, stack)
        self.tails: dict[bytes, Any] = {}  # (memcg, migrate reason, unknown lines)
        self.places: dict[tuple[bytes, bytes], Any] = {}  # (of the page, of the pageblock)
        self.bytes = 0

    def place(self, page_type: bytes, block_type: bytes) -> Any:
        """The entry of two migratetypes; made if it is new."""
        types = page_type, block_type
        return self.places.setdefault(types, [*ORDERS, types])

    def task(self, head: bytes) -> Any:
        """The entry of a first line up to its time; None if it is not such a line."""
        if head not in self.tasks:
            fields = parse_task(head.removesuffix(TIME))
            if fields is None:
                return None
            wanted = fields[0] <= MAX_ORDER and self.selection.task(fields)
            self.tasks[head] = (
                [fields[0], 0, fields] if wanted else () if fields[0] <= MAX_ORDER else False
            )
            self.bytes += len(head) + 300
        return self.tasks[head]

    def stack(self, text: bytes) -> Any:
        """The entry of a stack with its handle; None if it is not a stack."""
        if text not in self.stacks:
            fields = parse_stack(text)
            if fields is None:
                return None
            self.stacks[text] = [*ORDERS, fields] if self.selection.stack(fields[1]) else ()
            self.bytes += 2 * len(text) + 300
        return self.stacks[text]

    def tail(self, text: bytes) -> Any:
        """The entry of the lines after a stack."""
        if text not in self.tails:
            self.tails[text] = [*ORDERS, parse_tail(text)]
            self.bytes += len(text) + 300
        return self.tails[text]

    def entries(
        self, first: bytes, page_type: bytes, block_type: bytes, text: bytes
    ) -> tuple[Any, Any, Any, Any]:
        """The entries of a record's parts. Task and stack are False if they are not valid."""
        printed, others = split_rest(text)
        stack = self.stack(printed)
        if stack is None:
            printed, others = split_lines(text)
            stack = self.stack(printed)
        task = self.task(first + TIME)
        return (
            False if task is None else task,
            False if stack is None else stack,
            self.tail(others),
            self.place(page_type, block_type),
        )

    def fold(self, tally: Tally) -> None:
        """Move what was counted into a tally, and forget the parts."""
        for order, allocations, (_, mask, names, pid, tgid, comm) in filter(
            None, self.tasks.values()
        ):
            row: tuple[int, int] = (allocations << order, allocations)
            _add(tally["tasks"], (pid, tgid, comm), row, MAX_TASKS)
            _add(tally["orders"], order, row)
            _add(tally["gfp"], (mask, names), row, MAX_TASKS)
            tally["records"] += allocations
        for counts in filter(None, self.stacks.values()):
            _add(tally["stacks"], counts[-1], _pages(counts), MAX_STACKS)
        for counts in self.tails.values():
            memcg, reason, unknown = counts[-1]
            row = _pages(counts)
            _add(tally["memcgs"], memcg, row, MAX_TASKS)
            if reason:
                _add(tally["migrated"], reason, row, MAX_TASKS)
            tally["unknown_lines"] += unknown * row[1]
        for counts in self.places.values():
            _add(tally["migratetypes"], counts[-1], _pages(counts), MAX_TASKS)
        for parts in (self.tasks, self.stacks, self.tails, self.places):
            parts.clear()
        self.bytes = 0


def tally_page_owner(texts: Iterable[bytes], tally: Tally, selection: Selection) -> None:
    """
    Count the records of ``page_owner`` by stack, task, order, gfp mask, migratetypes and memcg.

    No record is parsed whose parts were seen before: they are found by what is printed. The first
    line up to its time, and what follows the second, are mostly those of the record before, since
    memory is allocated in bursts; else a few bytes of a stack tell which it may be, and comparing
    says whether it is. The second line repeats from its migratetypes on, but for the time and PFN
    before them, which are not looked at. All else costs a regular expression.
    """
    match = re.compile(HEAD % b"[0-9]+").match
    seen = _Seen(selection)
    tasks, stacks, tails = seen.tasks, seen.stacks, seen.tails
    lines: dict[bytes, Any] = {}  # the second line from " type " on -> entry of its migratetypes
    prints: dict[bytes, tuple[bytes, int, Any]] = {}  # bytes of a stack -> it, its size, its entry
    task: Any = None
    stack: Any = None
    tail: Any = None
    head = rest = b"?"  # of the record before, with the marks that end them
    head_size = rest_size = width = 0
    pending: tuple[Any, Any, Any, Any] | None = None  # entries of the last record, and how many
    last: Any = None  # have them in a row; their migratetypes
    run = 0
    for text in texts:
        find, starts_with = text.find, text.startswith
        position, size = 0, len(text)
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
                where = find(b" type ", line)
                width = where - line
                place = lines.get(text[where:end])
                if place is None and (types := TYPES.fullmatch(text, where, end)):
                    place = lines[text[where:end]] = seen.place(types[1], types[2])
            if rest_size and starts_with(rest, end):
                following = end + rest_size
                if place is last and same and find(b")", begin, line) < 0:
                    run += 1
                    position = following
                    if starts_with(head, position):
                        # Where memory is allocated in bursts, nothing differs but the time and
                        # the PFN: what is between those, up to the next record's time, is
                        # compared as a whole.
                        numbers = line + width - begin
                        shape = text[begin : begin + numbers].translate(None, NUMERALS)
                        alike = text[line + width : position] + head
                        step = numbers + len(alike)
                        begin = position + head_size
                        while (
                            starts_with(alike, begin + numbers)
                            and text[begin : begin + numbers].translate(None, NUMERALS) == shape
                        ):
                            run += 1
                            begin += step
                        position = begin - head_size
                    continue
            else:
                mark = text[end + PRINT_BEGIN : end + PRINT_END]
                known = prints.get(mark)
                if known is not None and starts_with(known[0], end):
                    stack = known[2]
                    after = end + known[1]
                    stop = after if starts_with(BETWEEN, after) else find(BETWEEN, after)
                    tail = tails.get(text[after:stop])
                else:
                    stop = find(BETWEEN, max(end, position))
                    printed, others = split_rest(text[end:stop])
                    stack = stacks.get(printed)
                    if stack is None:
                        stack = seen.stack(printed)
                    if stack is not None:
                        prints[mark] = printed, len(printed), stack
                        tail = seen.tail(others)
                following = stop + len(BETWEEN)
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
                stop = find(BETWEEN, position)
                following = stop + len(BETWEEN)
                found = match(text, position, stop)
                head_size = rest_size = 0
                if found is None:
                    tally["skipped"] += 1
                    position = following
                    continue
                task, stack, tail, place = seen.entries(*found.groups())
            position = following
            _count(pending, run, tally)
            pending, last, run = (task, stack, tail, place), place, 1
        if seen.bytes + 300 * (len(lines) + len(prints)) > MAX_SEEN_BYTES:
            _count(pending, run, tally)
            pending, last = None, None
            seen.fold(tally)
            lines.clear()
            prints.clear()
            head_size = rest_size = 0
    _count(pending, run, tally)
    seen.fold(tally)


def _count(entries: tuple[Any, Any, Any, Any] | None, records: int, tally: Tally) -> None:
    """Count records that have the same entries."""
    if entries is None:
        return
    task, stack, tail, place = entries
    if task and stack:
        order = task[0]
        task[1] += records
        stack[order] += records
        tail[order] += records
        place[order] += records
    elif task is False or stack is False:
        tally["skipped"] += records


def tally_selected(texts: Iterable[bytes], tally: Tally, selection: Selection) -> None:
    """
    Count the records of ``page_owner`` that a selection by time wants, or by several keys together.

    Slower than :func:`tally_page_owner`, since every record's time is looked at.
    """
    match = re.compile(HEAD % b"([0-9]{1,20})").match
    seen = _Seen(selection)
    for text in texts:
        for record in text.split(BETWEEN)[:-1]:
            found = match(record)
            if found is None:
                tally["skipped"] += 1
                continue
            first, ts, *others = found.groups()
            task, stack, tail, place = seen.entries(first, *others)
            wanted = not task or selection.moment(int(ts))
            if wanted:
                _count((task, stack, tail, place), 1, tally)
            if wanted and task and stack and selection.cull:
                _cull(tally, selection.cull, task[-1], stack[-1], tail[-1][0], int(ts))
        if seen.bytes > MAX_SEEN_BYTES:
            seen.fold(tally)
    seen.fold(tally)


def _cull(tally: Tally, keys: tuple[str, ...], task: Any, stack: Any, memcg: Any, ts: int) -> None:
    """Count an allocation under its values of the keys."""
    order, mask, names, pid, tgid, comm = task
    values = {
        "pid": pid,
        "tgid": tgid,
        "comm": comm,
        "order": order,
        "gfp": names or mask,
        "stack": stack[1] or stack[0],
        "memcg": memcg[0],
        "allocator": allocator(stack[1], slab=memcg[3]),
    }
    key: Any = tuple(values[name] for name in keys)
    culled = tally["culled"]
    if key not in culled and len(culled) >= MAX_TASKS:
        key = None
    row = culled.setdefault(key, [0, 0, ts, ts])
    row[0] += 1 << order
    row[1] += 1
    row[2], row[3] = min(row[2], ts), max(row[3], ts)


def _add(rows: dict[Any, Any], key: Any, row: Any, limit: int = 1 << 62) -> None:
    """Add pages and allocations to a key's; to None's when there are too many keys."""
    if not row[1]:
        return
    if key not in rows:
        if len(rows) >= limit:
            key = None
        rows.setdefault(key, [0, 0])
    rows[key][0] += row[0]
    rows[key][1] += row[1]


def merge(tally: Tally, other: Tally) -> None:
    """Add what another process counted."""
    for name, rows in other.items():
        if isinstance(rows, int):
            tally[name] += rows
        elif name == "culled":
            for key, (pages, allocations, first, last) in rows.items():
                row = tally[name].setdefault(key, [0, 0, first, last])
                row[0] += pages
                row[1] += allocations
                row[2], row[3] = min(row[2], first), max(row[3], last)
        else:
            for key, row in rows.items():
                _add(tally[name], key, row, MAX_STACKS if name == "stacks" else MAX_TASKS)


def read_page_owner(
    source: Source,
    selection: Selection = EVERYTHING,
    progress: Progress | None = None,
    processes: int = 0,
) -> Tally:
    """
    Count a ``page_owner`` file.

    :param processes: how many may read it; 0: as many as there are CPUs, up to a limit.
    :raises TextError: it cannot be decompressed.
    """
    count = tally_selected if selection.timed else tally_page_owner
    tally = new_tally()
    available = min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
    wanted = processes or min(available, max(source.size // PARALLEL_BYTES, 1))
    if source.plain and wanted > 1:
        return _read_in_parts(source, selection, progress, wanted)
    count(record_texts(_shown(source, progress), tally), tally, selection)
    return tally


def _shown(source: Source, progress: Progress | None) -> Iterator[bytes]:
    """A source's chunks, and the progress they mean."""
    for number, chunk in enumerate(source.chunks()):
        if progress is not None and number % 64 == 0:
            progress(source.position(), source.size)
        yield chunk


def _read_in_parts(
    source: Source, selection: Selection, progress: Progress | None, parts: int
) -> Tally:
    """Count a plain file with several processes, each from the first beginning in its part."""
    edges = [source.size * part // parts for part in range(parts)] + [source.size]
    # Each process writes how far it is to a place that all share.
    done = mmap.mmap(-1, 8 * parts)
    pipes: dict[int, tuple[int, bytearray]] = {}
    try:
        for part in range(parts):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                _run_part(source.name, selection, edges[part], edges[part + 1], writer, done, part)
            os.close(writer)
            pipes[reader] = child, bytearray()
        tally = new_tally()
        waiting = set(pipes)
        while waiting:
            for reader in select.select(list(waiting), [], [], 0.2)[0]:
                if data := os.read(reader, 1 << 20):
                    pipes[reader][1].extend(data)
                    continue
                waiting.discard(reader)
                merge(tally, _part_result(source.name, pipes[reader][1]))
                pipes[reader][1].clear()
            if progress is not None:
                progress(sum(memoryview(done).cast("Q")), source.size)
        return tally
    finally:
        for reader, (child, _) in pipes.items():
            os.close(reader)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _part_result(name: str, data: bytearray) -> Tally:
    """What a process handed over."""
    if not data:
        raise TextError(f"{name}: a process that read it was killed (is memory short?)")
    result = marshal.loads(data)
    if isinstance(result, str):
        raise TextError(f"{name}: {result}")
    tally: Tally = result
    return tally


def _run_part(
    name: str, selection: Selection, begin: int, end: int, writer: int, done: mmap.mmap, part: int
) -> None:
    """A child's whole life: count a part of a file, hand the tally over, end."""
    result: Tally | str = new_tally()
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with open(name, "rb", buffering=0) as file, memoryview(done).cast("Q") as shared:
            file.seek(begin)

            def chunks() -> Iterator[bytes]:
                while chunk := file.read(CHUNK_BYTES):
                    shared[part] = min(file.tell(), end) - begin
                    yield chunk

            assert isinstance(result, dict)
            count = tally_selected if selection.timed else tally_page_owner
            count(record_texts(chunks(), result, begin, end), result, selection)
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    try:
        with os.fdopen(writer, "wb") as pipe:
            marshal.dump(result, pipe)
    finally:
        os._exit(0)
