# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The text of ``/sys/kernel/debug/page_owner``.

A record an allocation: two lines about it, its stack, lines about migration and memcg, a blank line
(``print_page_owner()``; ``mm/page_owner.c``, read at 5.10, 5.15, 6.1, 6.12, 7.2 and 7.3). 5.13 to
6.6 have free_ts on line 1, up to 6.1 the PFN is decimal, 7.3 can print ``handle: N`` after the
stack or instead of it. Before 5.18 line 1 has no process and no name of a task, before 5.11 neither
a thread nor a time. The files beside it, ``page_owner_stacks/show_*``, are read by
``page_owner_counts.py``; :func:`recognise` knows each of the four by what is in it.

**Hostile text.** A task's name is 15 bytes of its own choice, a cgroup's 79, and both are printed
raw. So the end of a record is not a blank line: it is a blank line and the beginning of the next
one (``Page allocated via order ``), which is longer than a task's name can be; and the first two
lines have to match as a whole, which no name is long enough to forge. Stack lines are taken
straight after the second line, where no name can be. What does not fit is counted as skipped.

Costs a search for the end of each chunk's last record, and a regular expression for each part that
was not seen before.

It cannot know: allocations freed while the file was read, and who uses a page now.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from mmscope.drgn.text.stack_text import is_stack

# What was counted, in plain dictionaries, so that a process can hand its own to another. A row
# is [pages, allocations]; of "culled" it goes on with the first and last ts.
Tally = dict[str, Any]
# Members of struct page_owner that not all kernels have.
MEMBERS = frozenset({"ts_nsec", "pid", "tgid", "comm"})
# order, mask, names of the mask, pid, tgid, comm
Task = tuple[int, bytes, bytes, int | None, int | None, bytes | None]

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
TYPES = re.compile(rb" type ([A-Za-z]+) Block [0-9]+ type ([A-Za-z]+) Flags [^\n]*")
TASK = re.compile(
    rb"([0-9]{1,2}), mask ((?:0x)?[0-9a-f]+)\(([^)\n]*)\)(?:, pid (-?[0-9]{1,10})"
    rb"(?:, tgid (-?[0-9]{1,10}) \(((?s:.){0,15})\))?, ts )?\Z"
)
MIGRATED = b"Page has been migrated, last migrate reason: "
CHARGED = re.compile(rb"\nCharged (\(via objcg\) )?to (offline )?memcg (.*)", re.DOTALL)


def record_texts(
    chunks: Iterable[bytes], tally: Tally, begin: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """
    Texts of whole records, without the words each begins with; after each is :data:`BETWEEN`.

    :param chunks: the file from offset *begin* on. A record that began before is another reader's.
    :param tally: counts what is not a record: text before the first, a last one that is cut short.
    :param end: stop at the first beginning of a record at or behind this offset.
    """
    rest, offset, first, too_long = b"", begin, True, False
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
        too_long = not last and (len(rest) > MAX_RECORD_BYTES or (too_long and not text))
        if too_long:
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


def parse_task(head: bytes) -> Task | None:
    """Of a first line up to its time, or without: the kernel may print no thread, or no process."""
    match = TASK.match(head)
    if match is None:
        return None
    pid, tgid = (None if match[at] is None else int(match[at]) for at in (4, 5))
    return int(match[1]), match[2], match[3], pid, tgid, match[6]


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


def split_rest(text: bytes) -> tuple[bytes, bytes]:
    """
    What follows the first two lines, in two: the stack with its handle, and the lines after it.

    From the end, since there are few lines after a stack. If a cgroup's name has a line in it that
    begins as one of a stack does, the stack does not parse (:func:`parse_stack`), and
    :func:`split_lines` is needed.
    """
    end = len(text)
    while (line := text.rfind(b"\n", 0, end)) >= 0:
        if text.startswith((b"\n ", b"\nhandle: "), line):
            return text[:end], text[end:]
        end = line
    return b"", text


def split_lines(text: bytes) -> tuple[bytes, bytes]:
    """The same, line by line: the stack ends before the first line that cannot be part of it."""
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
