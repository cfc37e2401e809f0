# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``/sys/kernel/debug/page_owner``, counted by stack, task, order, gfp mask, migratetypes and memcg.

A record an allocation: two lines about it, its stack, lines about migration and memcg, a blank line
(``print_page_owner()``; ``mm/page_owner.c``, read at 5.10, 5.15, 6.1, 6.12, 7.2 and 7.3). 5.13 to
6.6 have free_ts on line 1, up to 6.1 the PFN is decimal, 7.3 can print ``handle: N`` after the
stack or instead of it. Before 5.18 line 1 has no process and no name of a task, before 5.11 neither
a thread nor a time. The files beside it, ``page_owner_stacks/show_*``, are read by
``page_owner_counts.py``.

**Hostile text.** A task's name is 15 bytes of its own choice, a cgroup's 79, and both are printed
raw. So the end of a record is not a blank line: it is a blank line and the beginning of the next
record (``Page allocated via order ``), which is longer than a task's name can be; and the first two
lines have to match as a whole, which no name is long enough to forge. Stack lines are taken
straight after the second line, where no name can be. What does not fit is counted as skipped.

Costs about 2 µs a record: one regular expression, and a count of what it has but for its time and
its PFN; what such a text means is looked at once. What is kept grows with the distinct stacks and
tasks, both up to a limit, beyond which the rest is one row of its own that says so.

It cannot know: allocations freed while the file was read, and who uses a page now.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmscope.drgn.text.stack_text import allocator, is_stack
from mmscope.drgn.text.text_source import Source, TextError

# In place of the time of a record that is not wanted for it.
OTHER_TIME = b"other"
# The first and the last ts.
Span = tuple[int, int]
# bytes read, of how many (0: unknown)
Progress = Callable[[int, int], None]
# What was counted. A row is [pages, allocations]; of "culled" it goes on with the first and last
# ts.
Tally = dict[str, Any]
# Members of struct page_owner that not all kernels have.
MEMBERS = frozenset({"ts_nsec", "pid", "tgid", "comm"})
CULL_KEYS = ("pid", "tgid", "comm", "order", "gfp", "stack", "memcg", "allocator")

# Limits on what is kept, for text that is made to fill memory.
MAX_STACKS = 16_000
MAX_TASKS = 20_000
MAX_COUNTED_BYTES = 8 << 20  # of distinct records, until they are folded into the tally
MAX_ORDER = 30  # twice what any kernel has; 1 << 30 pages fit a table
# A record is printed into a buffer of at most a page (print_page_owner()); 64 KiB on some.
MAX_RECORD_BYTES = 1 << 20

BEGIN = b"Page allocated via order "
BETWEEN = b"\n\n" + BEGIN
# The first two lines, from the order on, and all that follows. %pGg and %pGp print no parentheses
# of their own, and no newline: a record that was cut in them would take in the next one. A name has
# at most 15 bytes (TASK_COMM_LEN, 16, with its NUL); if it could have more, a cgroup's name and the
# next record's beginning might be read as one line.
ASKED = rb"[0-9]{1,2}, mask (?:0x)?[0-9a-f]+\([^)\n]*\)"
THREAD = ASKED + rb", pid -?[0-9]{1,10}"
PLACE = (
    rb"\nPFN (?:0x)?[0-9a-f]+ type ([A-Za-z]+) Block [0-9]+ type ([A-Za-z]+) Flags [^\n]*(?s:(.*))"
)
# Linux kernel commits 865ed6a32786 ("mm/page_owner: record task command name") and bf215eab785a
# ("mm/page_owner.c: record tgid") (in v5.18) added the process.
HEAD = (
    rb"(" + THREAD + rb"(?:, tgid -?[0-9]{1,10} \((?s:.){0,15}\))?)"
    rb", ts %b ns(?:, free_ts [0-9]+ ns)?" + PLACE
)
# Linux kernel commit 9cc7e96aa846 ("mm/page_owner: record timestamp and pid") (in v5.11) did so.
# A cgroup's name is long enough to forge a record without them: such records count only in a file
# that begins with one. Kernels that print them print no names.
BARE = rb"(" + ASKED + rb")()" + PLACE
TASK = re.compile(
    rb"([0-9]{1,2}), mask ((?:0x)?[0-9a-f]+)\(([^)\n]*)\)(?:, pid (-?[0-9]{1,10})"
    rb"(?:, tgid (-?[0-9]{1,10}) \(((?s:.){0,15})\))?)?\Z"
)
MIGRATED = b"Page has been migrated, last migrate reason: "
CHARGED = re.compile(rb"\nCharged (\(via objcg\) )?to (offline )?memcg (.*)", re.DOTALL)


class Task(NamedTuple):
    """The first line of a record, but for its time; None is not printed."""

    order: int
    mask: bytes
    flags: bytes
    pid: int | None
    tgid: int | None
    comm: bytes | None


class Tail(NamedTuple):
    """The lines after the stack of a record."""

    memcg: bytes | None
    offline: bool
    objcg: bool
    slab: bool
    migrated: bytes
    unknown_lines: int


@dataclass(frozen=True)
class Selection:
    """
    What to count of a ``page_owner`` file; by default all of it.

    :ivar pid, tgid, comm, order: values to keep.
    :ivar gfp: flag names, all of which must be among those printed, or one mask.
    :ivar module: a record is kept if a frame of its stack is of one of these modules.
    :ivar since, until: ts in ns, inclusive.
    :ivar cull: count by these of :data:`CULL_KEYS` together, instead of by each one alone.
    """

    pid: Collection[int] = ()
    tgid: Collection[int] = ()
    comm: Collection[bytes] = ()
    order: Collection[int] = ()
    gfp: Collection[bytes] = ()
    module: Collection[bytes] = ()
    since: int | None = None
    until: int | None = None
    cull: Sequence[str] = ()

    @property
    def timed(self) -> bool:
        """True if the time of each single record matters."""
        return self.since is not None or self.until is not None or bool(self.cull)

    @property
    def members(self) -> frozenset[str]:
        """Those of :data:`MEMBERS` that a record must have for it."""
        timed = self.since is not None or self.until is not None
        needed = {"pid": self.pid, "tgid": self.tgid, "comm": self.comm, "ts_nsec": timed}
        return MEMBERS & {*self.cull, *(name for name, wanted in needed.items() if wanted)}

    def wants(self, task: Task, stack: bytes) -> bool:
        """True if allocations of this task with this stack are to be counted."""
        return (
            (not self.order or task.order in self.order)
            and (not self.pid or task.pid in self.pid)
            and (not self.tgid or task.tgid in self.tgid)
            and (not self.comm or task.comm in self.comm)
            and (not self.gfp or task.mask in self.gfp or {*self.gfp} <= {*task.flags.split(b"|")})
            and (not self.module or any(b" [%b]\n" % name in stack for name in self.module))
        )

    def moment(self, ts: int) -> bool:
        """True if allocations of this time are to be counted."""
        return (self.since is None or ts >= self.since) and (self.until is None or ts <= self.until)


EVERYTHING = Selection()


def read_page_owner(
    source: Source, selection: Selection = EVERYTHING, progress: Progress | None = None
) -> Tally:
    """
    Count a ``page_owner`` file. "members" of its tally are those of struct page_owner that it has.

    :raises TextError: it cannot be decompressed, or does not have what is to be selected by.
    """
    # What a kernel prints at all is the same for all its records.
    members = members_of(source.peek())
    if lacking := selection.members - members:
        what = " and no ".join(sorted(lacking)).replace("ts_nsec", "ts")
        raise TextError(f"{source.name}: its kernel prints no {what} of an allocation to select by")
    tally = new_tally()
    texts = record_texts(_shown(source, progress), tally)
    tally_page_owner(texts, tally, selection, bare="ts_nsec" not in members)
    tally["members"] = members
    return tally


def _shown(source: Source, progress: Progress | None) -> Iterator[bytes]:
    """A source's chunks, and the progress they mean."""
    for number, chunk in enumerate(source.chunks()):
        if progress is not None and number % 64 == 0:
            progress(source.position(), source.size)
        yield chunk


def record_texts(chunks: Iterable[bytes], tally: Tally) -> Iterator[bytes]:
    """
    Texts of whole records, without the words each begins with; after each is :data:`BETWEEN`.

    :param tally: counts what is not a record: text before the first, a last one that is cut short.
    """
    rest, first, too_long = b"", True, False
    for chunk in chunks:
        data = rest + chunk
        cut = data.rfind(BETWEEN)
        text = data[: cut + len(BETWEEN)] if cut >= 0 else b""
        rest = data[len(text) :]
        too_long = len(rest) > MAX_RECORD_BYTES or (too_long and not text)
        if too_long:
            # No record is that long. The mark keeps what follows from being taken for one.
            rest = b"?" + rest[1 - len(BETWEEN) :]
        if text and first:
            first = False
            text = _first_text(text, tally)
        if text:
            yield text
    if first:
        rest = _first_text(rest, tally) if rest else b""
    # The blank line is the last record's only mark of being whole; the next may have begun.
    begun = bool(rest) or not first
    cut = rest.rfind(b"\n\n")
    if cut >= 0 and BEGIN.startswith(rest[cut + 2 :]):
        yield rest[:cut] + BETWEEN
        begun = bool(rest[cut + 2 :])
    tally["truncated"] += begun


def _first_text(text: bytes, tally: Tally) -> bytes:
    """The text from the first record on, without the words that it begins with."""
    if BEGIN.startswith(text):
        return text  # cut short in these words
    if text.startswith(BEGIN):
        return text[len(BEGIN) :]
    before, _, after = text.partition(b"\n" + BEGIN)
    tally["skipped"] += bool(before.strip())
    return after


def members_of(data: bytes) -> frozenset[str]:
    """Those of :data:`MEMBERS` that the first record of a file has, which *data* begins with."""
    _, _, record = data.partition(BEGIN)
    if re.match(BARE, record):
        return frozenset()
    return frozenset({"ts_nsec", "pid"}) if re.match(THREAD + b", ts ", record) else MEMBERS


def not_kept(members: frozenset[str]) -> list[str]:
    """What page_owner of a kernel that has only these members does not keep, in words."""
    lacks = []
    if "ts_nsec" not in members:
        lacks.append("no time of an allocation (before v5.11): the age of pages is unknown")
    if "pid" not in members:
        lacks.append("no task (before v5.11): who allocated is known by stack alone")
    elif not members >= MEMBERS:
        lacks.append("of a task the thread alone, not its process and name (before v5.18)")
    return lacks


def new_tally() -> Tally:
    """An empty tally."""
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


def tally_page_owner(
    texts: Iterable[bytes], tally: Tally, selection: Selection, *, bare: bool = False
) -> None:
    """
    Add the records of ``page_owner`` to a tally.

    :param texts: as of :func:`record_texts`.
    :param bare: the records are :data:`BARE`: the selection cannot be by what they do not have.
    """
    match = re.compile(BARE if bare else HEAD % b"([0-9]{1,20})").match
    if not selection.timed:
        match = re.compile(BARE if bare else HEAD % b"()[0-9]+").match
    counts, spans, longest = Counter[Any](), dict[Any, Span](), 0
    for text in texts:
        printed = text.split(BETWEEN)[:-1]
        records = [found.groups() for found in map(match, printed) if found]
        tally["skipped"] += len(printed) - len(records)
        if selection.timed and not bare:
            records = [_in_time(record, spans, selection) for record in records]
        counts.update(records)
        longest = max(longest, *map(len, printed))
        if len(counts) * longest > MAX_COUNTED_BYTES:
            _fold(counts, spans, tally, selection)
            counts, spans = Counter(), {}
    _fold(counts, spans, tally, selection)


def _in_time(record: tuple[bytes, ...], spans: dict[Any, Span], selection: Selection) -> Any:
    """A record without its time, or with OTHER_TIME; the time is added to the first and last."""
    first, time, *others = record
    ts = int(time)
    timeless = (first, None if selection.moment(ts) else OTHER_TIME, *others)
    low, high = spans.get(timeless, (ts, ts))
    spans[timeless] = min(low, ts), max(high, ts)
    return timeless


def _fold(counts: Counter[Any], spans: dict[Any, Span], tally: Tally, selection: Selection) -> None:
    """Add records that were counted by their text."""
    task_of, rest_of = functools.cache(parse_task), functools.cache(parse_rest)
    for record, number in counts.items():
        first, time, page_type, block_type, rest = record
        task, parsed = task_of(first), rest_of(rest)
        if task is None or parsed is None or task.order > MAX_ORDER:
            tally["skipped"] += number
            continue
        handle, stack, tail = parsed
        if time is OTHER_TIME or not selection.wants(task, stack):
            continue
        row = number << task.order, number
        tally["records"] += number
        tally["unknown_lines"] += tail.unknown_lines * number
        _add(tally["tasks"], task[3:], row, MAX_TASKS)
        _add(tally["orders"], task.order, row)
        _add(tally["gfp"], (task.mask, task.flags), row, MAX_TASKS)
        _add(tally["stacks"], (handle, stack), row, MAX_STACKS)
        _add(tally["memcgs"], tail[:4], row, MAX_TASKS)
        if tail.migrated:
            _add(tally["migrated"], tail.migrated, row, MAX_TASKS)
        _add(tally["migratetypes"], (page_type, block_type), row, MAX_TASKS)
        if selection.cull:
            span = spans.get(record, (None, None))
            _cull(tally, selection.cull, task, (handle, stack), tail, (*row, *span))


def _add(rows: dict[Any, Any], key: Any, row: tuple[int, int], limit: int = 1 << 62) -> None:
    """Add pages and allocations to a key's; to None's when there are too many keys."""
    if key not in rows and len(rows) >= limit:
        key = None
    pages, allocations = rows.get(key, (0, 0))
    rows[key] = [pages + row[0], allocations + row[1]]


def _cull(
    tally: Tally,
    keys: Sequence[str],
    task: Task,
    stack: tuple[int | None, bytes],
    tail: Tail,
    row: tuple[int, int, int | None, int | None],
) -> None:
    """Add pages and allocations, first and last ts, to those with the same values of the keys."""
    handle, printed = stack
    values = {
        "pid": task.pid,
        "tgid": task.tgid,
        "comm": task.comm,
        "order": task.order,
        "gfp": task.flags or task.mask,
        "stack": printed or handle,
        "memcg": tail.memcg,
        "allocator": allocator(printed, slab=tail.slab),
    }
    key: Any = tuple(values[name] for name in keys)
    culled = tally["culled"]
    if key not in culled and len(culled) >= MAX_TASKS:
        key = None
    pages, allocations, low, high = row
    before, number, first, last = culled.get(key, (0, 0, low, high))
    if low is not None and high is not None:
        first, last = min(first, low), max(last, high)
    culled[key] = [before + pages, number + allocations, first, last]


def parse_task(text: bytes) -> Task | None:
    """A first line up to its time; the kernel may print no thread, or no process."""
    match = TASK.match(text)
    if match is None:
        return None
    pid, tgid = (None if match[at] is None else int(match[at]) for at in (4, 5))
    return Task(int(match[1]), match[2], match[3], pid, tgid, match[6])


def parse_rest(text: bytes) -> tuple[int | None, bytes, Tail] | None:
    """
    What follows the first two lines: (handle, stack as printed, the lines after it).

    None if there is no stack: two records run into each other, say.
    """
    # The end of the stack is looked for from the end of the record, since few lines follow a stack;
    # where a cgroup's name has a line in it that begins as one of a stack does, from the beginning.
    for split in (_split_rest, _split_lines):
        printed, others = split(text)
        if (stack := parse_stack(printed)) is not None:
            return *stack, parse_tail(others)
    return None


def _split_rest(text: bytes) -> tuple[bytes, bytes]:
    end = len(text)
    while (line := text.rfind(b"\n", 0, end)) >= 0:
        if text.startswith((b"\n ", b"\nhandle: "), line):
            return text[:end], text[end:]
        end = line
    return b"", text


def _split_lines(text: bytes) -> tuple[bytes, bytes]:
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
    """(handle, stack as printed); None if it is neither."""
    stack, found, handle = text.partition(b"\nhandle: ")
    if found and not (handle.isdigit() and len(handle) <= 10):
        return None
    stack = stack[1:] + b"\n" if stack else b""
    return (int(handle) if found else None, stack) if not stack or is_stack(stack) else None


def parse_tail(tail: bytes) -> Tail:
    """The lines after a stack."""
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
    return Tail(name, offline, objcg, slab, reason, unknown)
