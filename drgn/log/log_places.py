# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel's log in a copied tree: wherever sos report, kdump, syslog and the journal leave parts of
it, rotated and packed; all are read and joined to one.

What two of them have is there once: they are laid side by side by lines that are in both once, and
between these by what follows. So it needs no clock, which one of them often lacks. Where they have
nothing in common, the one that was rotated, or that is of syslog, is taken for the older.

Costs reading the last 64 MiB of each, the newest first, as far as :data:`MOST_TOGETHER` lines go;
and a look at each line as often as halves of the logs are joined, eight times of 200 logs.

Cannot know: whether logs without a common line are of one boot.
"""

import bisect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.tables.display import plural, size
from mmscope.drgn.text.kernel_log import MOST_RECORDS, Log, LogRecord, last_records, parse_dmesg
from mmscope.drgn.text.packed import PackedError
from mmscope.drgn.text.program_kills import KILL

# Folders, and names in them. The ring as it was printed, kdump's copy of it, a journal's text.
RINGS = (
    ("", r"dmesg([._-].*)?|vmcore-dmesg\.txt|journalctl.*"),
    ("sos_commands/kernel", r"dmesg.*"),
    ("sos_commands/general", r"dmesg.*"),
    ("sos_commands/logs", r"journalctl.*"),
    ("sos_commands/systemd", r"journalctl.*"),
    ("var/log", r"dmesg([._-].*)?|vmcore-dmesg\.txt|journal.*\.(txt|log)"),
)
JOURNALS = ("var/log/journal", r"system.*\.journal~?")
# One that is archived has the time of its first record in its name, one that was damaged the time
# at which it was put aside (journal_file_archive(), journal_file_dispose() of systemd).
ARCHIVED = re.compile(
    r"system@(?:[0-9a-f]{32}-[0-9a-f]{16}-)?([0-9a-f]{16})(?:-[0-9a-f]{16})?\.journal~?"
)
CRASHES = ("var/crash", r"vmcore-dmesg\.txt(\..*)?|dmesg\..*")
# What syslog writes, and rotates.
SYSLOG = ("var/log", r"(messages|syslog|kern\.log|kernel(?:\.log)?|kern|boot\.msg)([.-].*)?")
MOST_LOGS = 200
MOST_TOGETHER = 3 * MOST_RECORDS  # of all of them, before older ones are left out
# What shows that a text is the kernel's log: its own stamps, syslog's and the journal's name for
# it, lines that it alone prints.
KERNEL_LINE = re.compile(
    r"\[ *[0-9]{1,8}\.[0-9]{6}\]|\bkernel: |\"_TRANSPORT\" ?: ?\"kernel\""
    r"|invoked oom-killer: |: page allocation failure|^Linux version [0-9]|Killed process [0-9]"
    r"|[Oo]ut of memory(?: in UB[ 0-9]*)?: (?:OOM k|K)ill|lowmemorykiller: Kill"
    r"|unreferenced object 0x|\bMem-Info:|oom-kill:constraint=|<[0-7]>\S|BUG: |Call [Tt]race:"
    r"|\boom_reaper: |\bswiotlb buffer is full \(sz: [0-9]|\bSLUB: Unable to allocate"
    r"|\bvmap allocation for size |\bUnable to handle kernel |\bkernel BUG at \S+:[0-9]"
    r"|\bWARNING: (?:CPU: [0-9]+ PID: [0-9]+ )?at \S+:[0-9]|\bgeneral protection fault[:,] "
    r"|\bINFO: task \S.{0,60} blocked for more than |^BUG \S{1,64} ?\([^()\n]{1,80}\): ",
    re.MULTILINE,
)
PLAIN_LINES = 8  # more than what a command that fails says


@dataclass
class Part:
    """One of the logs of a tree."""

    place: str
    log: Log
    ring: bool  # the kernel's own buffer, not what a daemon wrote of it


def log_of_tree(files: Files) -> tuple[Log, list[str]]:
    """
    The kernel's log in a copied tree; and in words what it is made of, which of its parts is the
    best, and what could not be read.

    :raises Absent: there is none.
    """
    parts: list[Part] = []
    unread: list[str] = []
    found = list(places(files))
    for number, (place, ring) in enumerate(reversed(found)):
        if number >= MOST_LOGS or sum(len(part.log.records) for part in parts) > MOST_TOGETHER:
            unread.append(f"not read: {plural(len(found) - number, 'older log')}")
            break
        try:
            parts.insert(0, Part(place, _read(files, place, unread, ring=ring), ring))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            unread.append(f"{place}: {why}")
    if not parts:
        more = f" ({'; '.join(unread[:3])})" if unread else ""
        raise Absent(
            f"there is no log of the kernel in {files.root}: no dmesg, vmcore-dmesg.txt, "
            f"sos_commands/*/dmesg or journalctl, var/log/messages, syslog or kern.log{more}"
        )
    return last_records(_joined(parts)), _said(parts) + unread


def _said(parts: Sequence[Part]) -> list[str]:
    """The best of the logs, and how many others are joined with it."""
    best = max(parts, key=_worth)
    if len(parts) == 1:
        return [f"read from {best.place}"]
    others = ", ".join(part.place for part in parts if part is not best)
    more = f"{others[:200]}…" if len(others) > 200 else others
    return [f"read from {best.place}, which has the most, joined with {more}"]


def places(files: Files) -> Iterator[tuple[str, bool]]:
    """Paths of what may be the kernel's log, and whether they are of its ring; the oldest first."""
    yield from ((place, False) for place in _rotated(files, *SYSLOG))
    for folder, names in RINGS:
        yield from ((place, True) for place in _rotated(files, folder, names))
    for folder, names in (JOURNALS, CRASHES):
        for inner in ("", *files.folders(folder)):
            here = f"{folder}/{inner}".rstrip("/")
            yield from ((place, True) for place in _rotated(files, here, names))
    yield from ((place, True) for place in files.logs)


def _rotated(files: Files, folder: str, names: str) -> list[str]:
    """Files of a folder, the oldest first: messages.2.gz, messages.1, messages."""
    found = [name for name in files.names(folder) if re.fullmatch(names, name)]

    def age(name: str) -> tuple[str, int, int, str]:
        name = re.sub(r"\.(gz|xz|bz2|zst)\Z", "", name)
        if match := ARCHIVED.fullmatch(name):
            return "system.journal", 1, 0, match[1]
        if match := re.fullmatch(r"(.*)[.-]([0-9]{1,3})", name):
            return match[1], 1, -int(match[2]), ""
        if match := re.fullmatch(r"(.*?)[.-]([0-9]{8}.*)", name):
            return match[1], 1, 0, match[2]
        return name, 2, 0, ""

    return [f"{folder}/{name}".lstrip("/") for name in sorted(found, key=age)]


def _read(files: Files, place: str, unread: list[str], *, ring: bool) -> Log:
    """
    A log. Of the ring, several lines without stamps are enough (printk.time=0).

    :raises OSError, ValueError: it cannot be read, is empty, or is not the kernel's.
    """
    try:
        data, before = files.log(place)
    except PackedError as error:
        raise ValueError(str(error)) from error
    # A disk that was full, or a machine that stopped, leaves zeros.
    text = data.replace(b"\0", b"").decode("utf-8", "backslashreplace")
    known = KERNEL_LINE.search(text) or KILL.search(text)
    if not known and not (ring and text.count("\n") > PLAIN_LINES):
        first = " ".join(text[:60].split())
        raise ValueError(f"has no line of the kernel: {first!r}" if first else "is empty")
    if before:
        unread.append(f"{place}: not read: its first {size(before)}")
    return parse_dmesg(text)


def _worth(part: Part) -> tuple[int, int]:
    """The log with the most lines, and of those alike the one that has times."""
    timed = sum(record.nanoseconds is not None for record in part.log.records)
    return len(part.log.records), timed


def _joined(parts: Sequence[Part]) -> Log:
    """All of them as one, the best of its lines where several have it."""
    log = _whole([part.log.records for part in parts])
    rings = [part.log for part in parts if part.ring]
    first = log and rings and log[:1] == rings[-1].records[:1]
    return Log(
        log,
        overwritten=rings[-1].overwritten if first else None,
        lost=sum(part.log.lost for part in parts),
        left_out=max(part.log.left_out for part in parts),
        foreign=sum(part.log.foreign for part in parts),
        killed=tuple(dict.fromkeys(kill for part in parts for kill in part.log.killed)),
        unread=tuple(f"{part.place}, {each}" for part in parts for each in part.log.unread),
    )


def _whole(parts: Sequence[list[LogRecord]]) -> list[LogRecord]:
    """Join halves of the parts, so that no line is looked at as often as there are parts."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_whole(parts[:middle]), _whole(parts[middle:]))


SHORTEST = 12  # characters of a line by which two logs are laid side by side


def _key(record: LogRecord) -> str:
    """A line as it is in both: syslog writes tabs and blanks otherwise."""
    return " ".join(record.text.replace("#011", " ").split())


def join(older: list[LogRecord], newer: list[LogRecord]) -> list[LogRecord]:
    """
    Two logs as one, each line that both have once.

    Lines that each of them has once are where they are laid together, as far as these have one
    order (the longest such run); between two of them, what follows in both is the same as well.
    """
    one, other = [_key(record) for record in older], [_key(record) for record in newer]
    once = [
        {key for key, count in Counter(keys).items() if count == 1 and len(key) >= SHORTEST}
        for keys in (one, other)
    ]
    places_of = {key: at for at, key in enumerate(one) if key in once[0]}
    pairs = [
        (places_of[key], at) for at, key in enumerate(other) if key in once[1] and key in places_of
    ]
    if one == other:
        return newer
    result: list[LogRecord] = []
    left = right = 0
    for here, there in [*_rising(pairs), (len(older), len(newer))]:
        # Forward from the last common line, and backward from this one.
        while result and left < here and right < there and one[left] == other[right]:
            result.append(_better(older[left], newer[right]))
            left, right = left + 1, right + 1
        back = 0
        room = min(here - left, there - right) if here < len(older) else 0
        while back < room and one[here - back - 1] == other[there - back - 1]:
            back += 1
        result += older[left : here - back]
        result += newer[right : there - back]
        result += map(_better, older[here - back : here], newer[there - back : there])
        left, right = here, there
    return result


def _better(one: LogRecord, other: LogRecord) -> LogRecord:
    """The line of two that says more of itself."""
    known = [
        (each.nanoseconds is not None, each.sequence is not None, each.level is not None)
        for each in (one, other)
    ]
    better, lesser = (one, other) if known[0] > known[1] else (other, one)
    if better.level is None:
        better = replace(better, level=lesser.level)
    return replace(better, date=lesser.date) if better.date is None else better


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of pairs, in the order of their second, whose first rises, too."""
    ends: list[int] = []  # the least first number that a run of each length ends with
    at: list[int] = []  # the pair that has it
    before: list[int] = []  # for each pair, the one before it in its run
    for number, (first, _) in enumerate(pairs):
        length = bisect.bisect_left(ends, first)
        before.append(at[length - 1] if length else -1)
        ends[length : length + 1] = [first]
        at[length : length + 1] = [number]
    run = []
    number = at[-1] if at else -1
    while number >= 0:
        run.append(pairs[number])
        number = before[number]
    return run[::-1]
