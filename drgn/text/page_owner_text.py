# SPDX-License-Identifier: LGPL-2.1-or-later
"""
page_owner's files: ``/sys/kernel/debug/page_owner``, and ``page_owner_stacks/show_*`` beside it
(``mm/page_owner.c``, read at 5.10, 5.15, 6.1, 6.12, 7.2 and 7.3; :func:`text_source.recognise`).

``page_owner``
    A record an allocation: two lines about it, its stack, lines about migration and memcg, a blank
    line (``print_page_owner()``). 5.13 to 6.6 have free_ts on line 1, up to 6.1 the PFN is decimal,
    7.3 can print ``handle: N`` after the stack or instead of it. Before 5.18 line 1 has no process
    and no name of a task, before 5.11 neither a thread nor a time, before 4.6 no names of flags and
    of migratetypes; before 5.2 a line of a stack begins with its address (``snprint_stack_trace()``
    of kernel/stacktrace.c). Counted by stack, task, order, gfp mask, migratetypes and memcg.
    Records without their second line are what tools/mm/page_owner_sort.c makes of these; and so is
    a text of ``N times, M pages`` before each (since 3.19, with pages since 4.13, culled by fields
    since 5.18).
``show_stacks`` (6.9)
    A stack and ``nr_base_pages: N``, a blank line (``stack_print()``).
``show_handles`` (6.19)
    ``handle: N`` and ``nr_base_pages: N``. The handle is printed as ``%d``.
``show_stacks_handles`` (6.19)
    A stack and ``handle: N``: what the handles mean.

**Hostile text.** A task's name is 15 bytes of its own choice, a cgroup's 79, and both are printed
raw. So the end of a record is not a blank line: it is a blank line and the beginning of the next
record (``Page allocated via order ``), which is longer than a task's name can be; and the first two
lines have to match as a whole, which no name is long enough to forge. Stack lines are taken
straight after the second line, where no name can be. What does not fit is counted as skipped.

Costs about 2 µs a record of ``page_owner``: one regular expression, and a count of what it has but
for its time and its PFN; what such a text means is looked at once. What is kept grows with the
distinct stacks and tasks, both up to a limit, beyond which the rest is one row of its own that says
so. Of the others, 0.5 µs a record; they are kept whole.

It cannot know: allocations freed while the file was read, and who uses a page now; stacks below
``count_threshold``, and on 7.2 those whose first allocation could not reclaim, which ``show_*``
never list.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mmscope.drgn.text.stack_text import allocator, is_stack, stack_id
from mmscope.drgn.text.text_source import Source, TextError

# In place of the time of a record that is not wanted for it.
OTHER_TIME = b"other"
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
# A record is printed into a buffer of at most a page (print_page_owner()), 64 KiB on some; a stack
# of the others has at most some 64 frames.
MAX_RECORD_BYTES = 1 << 20
# Of text in a row that is no record: it is not the kernel's.
MAX_UNREAD_BYTES = 64 << 20
CHUNK_BYTES = 64 << 10
# Of show_*: the stack depot keeps at most 128 MiB of stacks by default, some 300 bytes each; as
# text they take several times that.
MAX_RECORDS, MAX_BYTES = 1_000_000, 512 << 20
NONE = "no kernel keeps so many"

BEGIN = b"Page allocated via order "
BETWEEN = b"\n\n" + BEGIN
# The first two lines, from the order on, and all that follows. %pGg and %pGp print no parentheses
# of their own, and no newline: a record that was cut in them would take in the next one. A name has
# at most 15 bytes (TASK_COMM_LEN, 16, with its NUL); if it could have more, a cgroup's name and the
# next record's beginning might be read as one line.
ASKED = rb"([0-9]{1,2}), mask ((?:0x)?[0-9a-f]+)\(([^)\n]*)\)"
THREAD = rb", pid (-?[0-9]{1,10})"
PLACE = (
    rb"\nPFN (?:0x)?[0-9a-f]+ type ([A-Za-z]+) Block [0-9]+ type ([A-Za-z]+) Flags [^\n]*(?s:(.*))"
)
# Linux kernel commits 865ed6a32786 ("mm/page_owner: record task command name") and bf215eab785a
# ("mm/page_owner.c: record tgid") (in v5.18) added the process.
# Linux kernel commit 60f30350fd69 ("mm, page_owner: print migratetype of page and pageblock,
# symbolic flags") (in v4.6) gave these and the flags names; before, there is a number of one.
OLD_ASKED = rb"([0-9]{1,2}), mask (0x[0-9a-f]+)()"
OLD_PLACE = rb"()()\nPFN [0-9]+ Block [0-9]+ type [0-9]+ [^\n]*(?s:(.*))"
# page_owner_sort has left it out.
NO_PLACE = rb"()()((?:\n(?s:.*))?)"
PROCESS = rb"(?:, tgid (-?[0-9]{1,10}) \(((?s:.){0,15})\))?"
HEAD = ASKED + THREAD + PROCESS + rb", ts %b ns(?:, free_ts [0-9]* ns)?"
# Linux kernel commit 9cc7e96aa846 ("mm/page_owner: record timestamp and pid") (in v5.11) did so.
# A cgroup's name is long enough to forge a record without them: such records count only in a file
# that begins with one. Kernels that print them print no names.
NOTHING = rb"(?:(?!)()()()())?"  # groups of what is not printed
# The stack, or its handle, or both, and the lines after it.
REST = re.compile(rb"((?:\n [^\n]*)*)(?:\nhandle: ([^\n]*))?((?s:.*))")
ADDRESS = re.compile(rb"^ \[<[0-9a-f]+>\] ", re.MULTILINE)
NO_MORE = b" 0xffffffffffffffff\n"  # what ended a stack, when it had no length
# Of page_owner_sort; a task's name is too short to forge one.
SORTED = rb"[0-9]{1,18} times, [0-9]{1,18} pages|[0-9]{1,18} times:\n"
TIMES = re.compile(
    rb"([0-9]{1,18}) times(?:, ([0-9]{1,18}) pages)?(?:, PID (-?[0-9]{1,10}))?"
    rb"(?:, TGID (-?[0-9]{1,10}))?(?:, task_comm_name: ((?s:.{0,15})))?"
    rb"(?:, (?:allocated by )?[A-Za-z_ ]{0,40})? ?(?:\n*\Z|:\n((?s:.*))\Z)"
)
MIGRATED = b"Page has been migrated, last migrate reason: "
CHARGED = re.compile(rb"\nCharged (\(via objcg\) )?to (offline )?memcg (.*)", re.DOTALL)
# Records of show_*. Handles and counts are 32 bits.
COUNTED = {
    "show_stacks": re.compile(rb"((?: [^\n]*\n)+)nr_base_pages: ([0-9]{1,10})"),
    "show_handles": re.compile(rb"handle: (-?[0-9]{1,10})\nnr_base_pages: ([0-9]{1,10})"),
    "show_stacks_handles": re.compile(rb"((?: [^\n]*\n)+)handle: (-?[0-9]{1,10})"),
}

# (order, mask, names of its flags, thread, process, its name); None is not printed.
Task = tuple[int | None, bytes, bytes, int | None, int | None, bytes | None]


@dataclass(frozen=True)
class Selection:
    """
    Allocations of a ``page_owner`` file that are to be counted; by default all of them.

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
        """Members out of :data:`MEMBERS` that a record must have for it."""
        timed = self.since is not None or self.until is not None
        needed = {"pid": self.pid, "tgid": self.tgid, "comm": self.comm, "ts_nsec": timed}
        return MEMBERS & {*self.cull, *(name for name, wanted in needed.items() if wanted)}

    def wants(self, task: Task, stack: bytes) -> bool:
        """True if allocations of this task with this stack are to be counted."""
        order, mask, flags, pid, tgid, comm = task
        return (
            (not self.order or order in self.order)
            and (not self.pid or pid in self.pid)
            and (not self.tgid or tgid in self.tgid)
            and (not self.comm or comm in self.comm)
            and (not self.gfp or mask in self.gfp or {*self.gfp} <= {*flags.split(b"|")})
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
    head = source.peek()
    culled = re.match(SORTED, head.lstrip()) is not None
    members = members_of(head) - ({"ts_nsec"} if culled else set())
    if lacking := selection.members - members:
        what = " and no ".join(sorted(lacking)).replace("ts_nsec", "ts")
        says = "it has" if culled else "its kernel prints"
        raise TextError(f"{source.name}: {says} no {what} of an allocation to select by")
    tally = new_tally()
    tally["members"], tally["sorted"] = members, culled
    if culled:
        tally_sorted(_shown(source, progress), tally, selection)
        return tally
    records = page_owner_records(_shown(source, progress), tally, source.name)
    tally_page_owner(records, tally, selection, form=form_of(head))
    return tally


def _shown(source: Source, progress: Progress | None) -> Iterator[bytes]:
    """A source's chunks, and the progress they mean."""
    for number, chunk in enumerate(source.chunks()):
        if progress is not None and number % 64 == 0:
            progress(source.position(), source.size)
        yield chunk


def split_records(
    chunks: Iterable[bytes], between: bytes, name: str
) -> Iterator[tuple[list[bytes], bool]]:
    """
    Records of a text as its chunks have them; at last, with True, what follows the last one.

    :param between: what is between records.
    :param name: of the text, for messages.
    :raises TextError: most of it is something else.
    """
    rest, unread = b"", 0
    for chunk in chunks:
        *records, rest = (rest + chunk).split(between)
        unread = 0 if records else unread + len(chunk)
        if unread > MAX_UNREAD_BYTES:
            raise TextError(f"{name}: has {unread >> 20} MiB without a record in them")
        if len(rest) > MAX_RECORD_BYTES:
            # No record is that long. The mark keeps what follows from being taken for one.
            rest = b"?" + rest[1 - len(between) :]
        yield records, False
    yield [rest], True


def page_owner_records(
    chunks: Iterable[bytes], tally: Tally, name: str = "text"
) -> Iterator[list[bytes]]:
    """
    Whole records of ``page_owner``, without :data:`BEGIN`.

    :param tally: counts what is not a record: text before the first, a last one that is cut short.
    :param name: of the text, for messages.
    :raises TextError: most of it is something else.
    """
    first = True
    for records, at_end in split_records(chunks, BETWEEN, name):
        if first and records:
            first = False
            if at_end and BEGIN.startswith(records[0]):
                tally["truncated"] += bool(records[0])
                return
            before, found, record = (b"\n" + records[0]).partition(b"\n" + BEGIN)
            tally["skipped"] += bool(before.strip())
            records[:1] = [record] if found else []
        if at_end and records:
            # The blank line is the last record's only mark of being whole; the next may have begun.
            record, blank, following = records[0].rpartition(b"\n\n")
            if blank and not BEGIN.startswith(following):  # words of who pasted it
                record, _, words = records[0].partition(b"\n\n")
                following = b""
                tally["skipped"] += bool(words.strip(b"`\n"))
            if not blank and _is_last(records[0]):
                blank, record, following = b"\n", records[0].rstrip(b"\n"), b""
            records = [record] if blank and BEGIN.startswith(following) else []
            tally["truncated"] += not records or bool(following)
        yield records


def _is_last(record: bytes) -> bool:
    """True if nothing can follow in a record of before 5.11, which has no line about a cgroup."""
    last = record[record.rfind(b"\n", 0, -1) + 1 :]
    bare = b", ts " not in record.partition(b"\n")[0]
    return bare and (last.endswith(NO_MORE) or (last.startswith(MIGRATED) and last.endswith(b"\n")))


def form_of(data: bytes) -> str:
    """
    The first lines of the first record of a file, which *data* begins with, as an expression;
    ``%b`` is for a time.
    """
    record = data.partition(BEGIN)[2]
    if re.match(ASKED + THREAD, record):
        asked = HEAD
    else:
        asked = (ASKED if re.match(ASKED, record) else OLD_ASKED) + NOTHING
    if b"\nPFN " not in data:
        return (asked + NO_PLACE).decode()
    return (asked + (OLD_PLACE if asked.startswith(OLD_ASKED) else PLACE)).decode()


def members_of(data: bytes) -> frozenset[str]:
    """Return which of :data:`MEMBERS` the first record of a file has, which *data* begins with."""
    before, begin, record = data.partition(BEGIN)
    first = re.split(rb"\n(?=%b)" % SORTED, before.lstrip(), maxsplit=1)[0]
    if not begin and (culled := TIMES.match(first)):
        values = zip(("pid", "tgid", "comm"), culled.groups()[2:5], strict=True)
        return frozenset(name for name, value in values if value is not None)
    if not re.match(ASKED + THREAD, record):
        return frozenset()
    match = re.match(HEAD % b"([0-9]*)", record)
    thread = re.match(ASKED + THREAD + b", ts ", record)
    has = frozenset({"ts_nsec", "pid"}) if thread else MEMBERS
    return has if match is None or match[7] else has - {"ts_nsec"}


def not_kept(members: frozenset[str]) -> list[str]:
    """Words about what page_owner of a kernel that has only these members does not keep."""
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
        "sorted": False,  # it is of page_owner_sort
    }


def tally_page_owner(
    texts: Iterable[list[bytes]], tally: Tally, selection: Selection, *, form: str
) -> None:
    """
    Add the records of ``page_owner`` to a tally.

    :param texts: as of :func:`page_owner_records`.
    :param form: as of :func:`form_of`: the selection cannot be by what records do not have.
    """
    bare = "%b" not in form
    time = b"([0-9]{0,20})" if selection.timed else b"()[0-9]*"
    match = re.compile(form.encode() if bare else form.encode() % time).match
    counts, spans, longest = Counter[Any](), dict[Any, tuple[int, int]](), 0
    for printed in texts:
        records = [found.groups() for found in map(match, printed) if found]
        tally["skipped"] += len(printed) - len(records)
        if selection.timed and not bare:
            records = [_in_time(record, spans, selection) for record in records]
        counts.update(records)
        longest = max(longest, *map(len, printed), 0)
        if len(counts) * longest > MAX_COUNTED_BYTES:
            _fold(counts, spans, tally, selection)
            counts, spans = Counter(), {}
    _fold(counts, spans, tally, selection)


def _in_time(
    record: tuple[bytes, ...], spans: dict[Any, tuple[int, int]], selection: Selection
) -> Any:
    """A record without its time, or with OTHER_TIME; the time is added to the first and last."""
    *task, time, page_type, block_type, rest = record
    if not time:
        return (*task, None, page_type, block_type, rest)
    ts = int(time)
    kept = None if selection.moment(ts) else OTHER_TIME
    timeless = (*task, kept, page_type, block_type, rest)
    low, high = spans.get(timeless, (ts, ts))
    spans[timeless] = min(low, ts), max(high, ts)
    return timeless


def _fold(
    counts: Counter[Any], spans: dict[Any, tuple[int, int]], tally: Tally, selection: Selection
) -> None:
    """Add records that were counted by their text."""
    rest_of = functools.cache(parse_rest)
    for record, number in counts.items():
        first, mask, flags, *pids, comm, time, page_type, block_type, rest = record
        order, parsed = int(first), rest_of(rest)
        if parsed is None or order > MAX_ORDER:
            tally["skipped"] += number
            continue
        pid, tgid = (None if printed is None else int(printed) for printed in pids)
        if time is OTHER_TIME:
            continue
        task = order, mask, flags, pid, tgid, comm
        types = (page_type, block_type) if page_type else None
        _count(tally, selection, (number << order, number), task, parsed, types, spans.get(record))


def _count(
    tally: Tally,
    selection: Selection,
    row: tuple[int, int],
    task: Task,
    parsed: tuple[int | None, bytes, tuple[bytes | None, bool, bool, bool], bytes, int],
    types: tuple[bytes, bytes] | None = None,
    span: tuple[int, int] | None = None,
) -> None:
    """
    Add allocations that are alike.

    :param task: with an order of None, what was asked for is not known.
    :param parsed: as of :func:`parse_rest`. :param types: migratetypes, if they are printed.
    """
    order, mask, flags, pid, tgid, comm = task
    handle, stack, memcg, migrated, unknown_lines = parsed
    if not selection.wants(task, stack):
        return
    tally["records"] += row[1]
    tally["unknown_lines"] += unknown_lines * row[1]
    _add(tally["tasks"], (pid, tgid, comm), row)
    if order is not None:
        _add(tally["orders"], order, row)
        _add(tally["gfp"], (mask, flags), row)
    _add(tally["stacks"], (handle, stack), row, MAX_STACKS)
    _add(tally["memcgs"], memcg, row)
    if migrated:
        _add(tally["migrated"], migrated, row)
    if types is not None:
        _add(tally["migratetypes"], types, row)
    if selection.cull:
        name, *_, slab = memcg
        values = {
            **{"pid": pid, "tgid": tgid, "comm": comm, "order": order},
            **{"gfp": flags or mask, "stack": stack or handle, "memcg": name},
            "allocator": allocator(stack, slab=slab),
        }
        counted = _add(tally["culled"], tuple(values[name] for name in selection.cull), row)
        low, high = span if span is not None else (None, None)
        if low is not None and high is not None and counted[2:3] != [None]:
            low, high = min((low, *counted[2:3])), max((high, *counted[3:]))
        counted[2:] = low, high


def tally_sorted(chunks: Iterable[bytes], tally: Tally, selection: Selection) -> None:
    """Add the counts of a text of page_owner_sort: of whole records, or of what it culled by."""
    split = re.compile(rb"(?:\A|\n)(?=%b)" % SORTED).split
    rest = b""
    for chunk in chunks:
        *records, rest = split(rest + chunk)
        for record in records:
            _sorted_record(record, tally, selection)
        if len(rest) > MAX_RECORD_BYTES:
            tally["skipped"] += 1
            rest = b"?"
    tally["truncated"] += not rest.endswith(b"\n")
    _sorted_record(rest.removesuffix(b"\n"), tally, selection)


def _sorted_record(record: bytes, tally: Tally, selection: Selection) -> None:
    match = TIMES.match(record)
    if match is None:
        tally["skipped"] += bool(record.strip())
        return
    times, pages, pid, tgid, comm, text = match.groups()
    number = int(times)
    task: Any = (None, b"", b"", *(int(n) if n else None for n in (pid, tgid)), comm)
    text = (text or b"").rstrip(b"\n")
    if text.startswith(BEGIN):
        form = form_of(text + b"\n\n").encode()
        found = re.fullmatch(form % b"()[0-9]*" if b"%b" in form else form, text[len(BEGIN) :])
        if found is None or int(found[1]) > MAX_ORDER:
            tally["skipped"] += 1
            return
        order, mask, flags, *pids, comm, _, _, _, text = found.groups()
        task = (int(order), mask, flags, *(None if n is None else int(n) for n in pids), comm)
    elif text:
        # Its second line is among what it calls a stack, where it did not leave that out.
        text = b"\n" + re.sub(rb"\APFN [^\n]*\n", b"", text)
    parsed = parse_rest(text)
    if parsed is None or (pages is None and task[0] is None):
        tally["skipped"] += 1
        return
    counted = int(pages) if pages is not None else number << task[0]
    _count(tally, selection, (counted, number), task, parsed)


def _add(rows: Tally, key: Any, row: tuple[int, int], limit: int | None = None) -> list[Any]:
    """Add pages and allocations to a key's; to None's when there are too many keys."""
    if key not in rows and len(rows) >= (limit or MAX_TASKS):
        key = None
    counted: list[Any] = rows.setdefault(key, [0, 0])
    counted[:2] = counted[0] + row[0], counted[1] + row[1]
    return counted


def parse_rest(
    text: bytes,
) -> tuple[int | None, bytes, tuple[bytes | None, bool, bool, bool], bytes, int] | None:
    """
    Parse what follows the first two lines: (handle, stack as printed, (memcg, whether it is
    offline, by objcg, a slab's), reason of the last migration, lines that are not known).

    None if there is no stack: two records run into each other, say.
    """
    match = REST.fullmatch(text)
    assert match is not None  # everything in it is optional
    stack, handle, tail = match[1][1:] + b"\n" if match[1] else b"", match[2], match[3]
    if stack.startswith(b" [<"):
        stack = ADDRESS.sub(b" ", stack)
    stack = stack.removesuffix(NO_MORE)
    if stack and not is_stack(stack):
        return None
    if handle is not None and not re.fullmatch(rb"[0-9]{1,10}", handle):
        return None
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
    handle_number = None if handle is None else int(handle)
    return handle_number, stack, (name, offline, objcg, slab), reason, unknown


def read_counts(
    source: Source, kind: str, ids: dict[bytes, int]
) -> tuple[dict[int, int], Counter[str]]:
    """
    Base pages by handle, or by id of a stack (:func:`stack_text.stack_id`), of a ``show_handles``
    or ``show_stacks``; and how many records are ``skipped``, since they were not understood, or
    ``truncated``.

    :param ids: of stacks that are known already; those that are new are added.
    :raises TextError: it cannot be decompressed, or is larger than any kernel's.
    """
    pages: dict[int, int] = {}
    lost: Counter[str] = Counter()
    for printed, number in _counted(source, kind, lost):
        if kind == "show_handles":
            key = int(printed) & 0xFFFFFFFF
        elif printed in ids:
            key = ids[printed]
        elif is_stack(printed):
            key = ids[printed] = stack_id(printed)
        else:
            lost["skipped"] += 1
            continue
        pages[key] = pages.get(key, 0) + number
    return pages, lost


def read_show_stacks_handles(source: Source) -> tuple[dict[int, bytes], Counter[str]]:
    """
    Stacks as printed by handle, of ``show_stacks_handles``; and the records that were lost, as of
    :func:`read_counts`.

    :raises TextError: it cannot be decompressed, or is larger than any kernel's.
    """
    stacks: dict[int, bytes] = {}
    lost: Counter[str] = Counter()
    for stack, handle in _counted(source, "show_stacks_handles", lost):
        if is_stack(stack):
            stacks[handle & 0xFFFFFFFF] = stack
        else:
            lost["skipped"] += 1
    return stacks, lost


def _counted(source: Source, kind: str, lost: Counter[str]) -> Iterator[tuple[bytes, int]]:
    """The two parts of each record of ``show_*``, in the order of :data:`COUNTED`."""
    too_large = TextError(f"{source.name}: has more than {MAX_BYTES >> 20} MiB: {NONE}")
    # A compressed one or a pipe has not the size of its text, those of debugfs have none.
    if source.plain and source.size > MAX_BYTES:
        raise too_large

    def bounded() -> Iterator[bytes]:
        size = 0
        for chunk in source.chunks(CHUNK_BYTES):
            if (size := size + len(chunk)) > MAX_BYTES:
                raise too_large
            yield chunk

    fullmatch, found = COUNTED[kind].fullmatch, 0
    for records, at_end in split_records(bounded(), b"\n\n", source.name):
        if at_end:
            lost["truncated"] += records != [b""]
            return
        for record in filter(None, (record.strip(b"\n") for record in records)):
            if match := fullmatch(record):
                found += 1
                yield match[1], int(match[2])
            else:
                lost["skipped"] += 1
        if found > MAX_RECORDS:
            raise TextError(f"{source.name}: has more than {MAX_RECORDS:,} stacks: {NONE}")
