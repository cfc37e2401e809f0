# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Prefixes of a log's lines, that which stands before the kernel's words: learnt from the text.

A line that has a phrase with which the kernel begins one shows what was put before it: a date of
any form and language, a host, a level, a quote. The shape of these beginnings is then what all of
the kernel's lines have: numbers may differ, words are the same, but for those of a date, of a level
and those that differ among the phrases' lines.

Costs a search of the text for each phrase, and a match for each line.

Cannot know: of a text that has no such phrase, more than the forms of ``dmesg`` and syslog; whether
a program copied the kernel's words, where its name does not stand before them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

COMM_BYTES = 15  # TASK_COMM_LEN (include/linux/sched.h), without the NUL
MOST_HITS = 5_000  # of a phrase that are looked at
LONGEST_PREFIX = 200  # characters
LONGEST_BEGINNING = LONGEST_PREFIX + 4 * COMM_BYTES  # with a name behind it, which is written out
MOST_SHAPES = 24

# With these the kernel begins a line: a literal, and what the line must be like from there on.
PHRASES = {
    "Mem-Info:": "",
    "Node ": r"Node \d+ (?:(?:DMA|DMA32|Normal|HighMem|Movable)(?: free)?:|active_anon:|hugep)",
    "active_anon:": r"active_anon:\d+ inactive_anon:\d+ ",
    "lowmem_reserve[]:": "",
    "Free swap ": r"Free swap += ",
    "Total swap ": r"Total swap += ",
    "Tasks state (memory": "",
    "[ ": r"\[ +pid +\] +uid +tgid ",
    "oom-kill:constraint=": "",
    "Out of memory: Kill": "",
    "Out of Memory: Kill": "",  # of older 2.6
    "Memory cgroup out of memory: Kill": "",
    "Killed process ": r"(?<![Mm]emory: )Killed process \d+ \(",
    "Memory cgroup stats for ": "",
    "memory: usage ": r"memory: usage \d+kB, limit",
    "Task in ": r"Task in .* killed as a result of limit",
    "oom_reaper: ": "",
    "Out of memory in UB": "",
    "lowmemorykiller: ": "",
    "Call Trace:": "",
    "CPU: ": r"CPU: \d+ (?:UID: \d+ )?PID: \d+ Comm: ",
    "Hardware name: ": "",
    "Workqueue: ": "",
    "RIP: 00": "",
    "Modules linked in:": "",
    "Linux version ": r"Linux version \d+\.\d+",
    "Command line: ": "",
    "BIOS-e820: ": "",
    "Kernel panic - not syncing": "",
    "BUG: ": r"BUG: (?:Bad |KASAN|KFENCE|soft lockup|kernel NULL|unable to handle|workqueue)",
    "BUG ": r"BUG \S{1,64} \([^()\n]{1,80}\): ",
    "INFO: task ": r"INFO: task .{1,60} blocked (?:in I/O wait )?for more than",
    "SLUB: Unable to allocate": "",
    "Memory failure: 0x": "",
    "audit: type=": "",
    "usb ": r"usb \d+-\d",
    "EXT4-fs (": "",
    "XFS (": "",
    "ACPI: ": "",
    "pci 0000:": "",
    "NET: Registered": "",
    "kmemleak: ": "",
    "unreferenced object 0x": "",
    "vmap allocation for size ": "",
    "percpu: allocation failed": "",
    "Unable to handle kernel ": "",
    "kernel BUG at ": r"kernel BUG at \S+:\d",
    "WARNING: ": r"WARNING: (?:CPU: \d+ PID: \d+ )?at \S+:\d",
    "hv_balloon: ": "",
    "software IO TLB: ": "",
}
_PHRASES = {words: re.compile(pattern) for words, pattern in PHRASES.items()}
# Before these stands the name of a task; what is before that, only its end tells.
AFTER_A_NAME = (
    *(" invoked oom-killer: gfp_mask=", ": page allocation failure: order:"),
    ": page allocation failure. order:",  # until 3.2
)

FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron"),
    *("authpriv", "ftp"),
)
LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
WORDS = {*LEVELS, "error", "warning", *FACILITIES, *(f"local{number}" for number in range(8))}
_TOKEN = re.compile(r"\s+|[^\W_]+|.", re.DOTALL)
# "14:52:38", "09T14:52:38", "[   139.201253", "[  +0.000003", an epoch's "1715259158.123456".
_TIME = re.compile(r"\d\d:\d\d(?::\d\d)?|\[ *\+?\d+[.,]\d{3,9}|\b\d{9,10}\.\d{3,9}")
# What may stand before the time of day in a date, in any language, and after it.
_DATE = re.compile(r"(?:[^\W_]|[\s.,/+-])*\Z")
_ZONE = re.compile(r"[.,]?\d*(?:Z\b|[+-]\d\d:?\d\d)?(?: +(?:[A-Z]{2,5}\b|\d{4}\b))*")
# A program's name before what it says; and what names the kernel so.
_PROGRAM = re.compile(r"(?:^|[\s/])([^\s\[\]:]{1,64})\[\d+\]: |\s([A-Za-z][\w./@-]*): (?=[\[<]|$)")
_KERNEL = re.compile(r"\b(?:kernel|vmunix)\b")
# Where no phrase is in the text: levels, a syslog's line of the kernel, a time, a caller.
_COMMON = re.compile(
    r"(?:<[0-9]{1,5}>|[a-z]{3,8} *:[a-z]{3,6} *: |\d{1,5},\d+,\d+,[^;\n]{1,60};"
    r"|\S[^\[\n]{3,80}?\bkernel(?:\[\d+\])?: )?"
    r"(?:\[ *\+?[0-9]{1,12}[.,][0-9]{3,9}(?: *<[^>\n]{1,20}>)?\]"
    r"|\[[^\[\]\n]{4,60}\d\d:\d\d[^\[\]\n]{0,30}\])?"
    r"(?:\[ *[TC][0-9]{1,10}\])?(?:(?<=\]) )?"
)
# A line of a log, of any program.
_STAMPED = re.compile(
    r"\W{0,3}(?:\d{4}-\d\d-\d\d[T ]\d\d:|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\d{9,10}\.\d{3,9} )"
)
# One of a program, with a host and its name.
_OF_PROGRAM = re.compile(
    rf"(?:{_STAMPED.pattern})[^ ]{{0,30}} ?[\w.:-]{{1,64}} [\w./@-]{{1,64}}\[\d+\]: "
)


class Shape(NamedTuple):
    """A form of what stands before a message."""

    sample: str
    pattern: str
    until_time: str | None  # as far as a line of any program has the same


class Prefixes:
    """
    The prefixes of a text.

    :param phrases: as of :func:`phrases_in`.
    :ivar bare: lines have none.
    :ivar programs: who wrote what looks like the kernel's.
    """

    def __init__(self, text: str, phrases: Mapping[int, int]) -> None:
        shapes, self.programs = _kernels_own(_learn(text, phrases))
        self.bare = not shapes and not self.programs and not _stamped(text)
        whole = [shape.pattern for shape in shapes if shape.pattern]
        self.mixed = any(not shape.pattern for shape in shapes) and bool(whole)
        self.bare = self.bare or (bool(shapes) and not whole)
        self._match = re.compile("|".join(f"(?:{each})" for each in whole)) if whole else _COMMON
        times = {shape.until_time for shape in shapes if shape.pattern}
        self.timed = None not in times
        heads = [*filter(None, times)]
        self._head = re.compile("|".join(f"(?:{each})" for each in heads)) if heads else None

    def end(self, line: str) -> int | None:
        """The place where the message begins; None: the line has no prefix of the kernel's."""
        if self.bare:
            return 0
        match = self._match.match(line)
        return match.end() if match and match.end() else None

    def foreign(self, line: str) -> bool:
        """True if a line without the kernel's prefix is another program's, not a continuation."""
        if self._head and self._head.match(line):
            return True
        return (not self.timed and not line[:1].isspace()) or _STAMPED.match(line) is not None


def _stamped(text: str) -> bool:
    """True if a line has one of the common prefixes, or a program's."""
    return any(
        ((found := _COMMON.match(line)) and found.end()) or _OF_PROGRAM.match(line)
        for line in text[: 8 << 20].splitlines()
    )


def phrases_in(text: str) -> dict[int, int]:
    """The places where lines with phrases of the kernel's begin, and where their first one does."""
    found: dict[int, int] = {}
    for words, pattern in _PHRASES.items():
        for at in _hits(text, words):
            begin = text.rfind("\n", max(at - LONGEST_PREFIX, 0), at) + 1
            near = begin > 0 or at <= LONGEST_PREFIX
            if near and pattern.match(text, at):
                found[begin] = min(at, found.get(begin, at))
    return found


def _hits(text: str, words: str) -> Iterator[int]:
    """The places where a text has some words, the first :data:`MOST_HITS`."""
    at = text.find(words)
    for _ in range(MOST_HITS):
        if at < 0:
            return
        yield at
        at = text.find(words, at + 1)


def name_ends(line: str) -> int | None:
    """The place where the task's name ends that stands before a phrase of the kernel's, if any."""
    ends = [line.find(words) for words in AFTER_A_NAME]
    return min((each for each in ends if each >= 0), default=None)


def name_begins(line: str) -> int | None:
    """
    The place where the task's name begins in a line that has one before the kernel's phrase; None:
    there is no such phrase, -1: the name is longer than one can be, and no prefix was seen.

    Names have colons, too (``tmux: server``): a common prefix is known by itself.
    """
    if (end := name_ends(line)) is None:
        return None
    common = _COMMON.match(line, 0, end)
    if common and common.end() and is_comm(line[common.end() : end]):
        return common.end()
    begins = [0, *(found.end() for found in re.finditer(r"[\]:] |\t|> (?=\S)|;", line[:end]))]
    return max((at for at in begins if at < end and is_comm(line[at:end])), default=-1)


def is_comm(name: str) -> bool:
    """False if a name is longer than a task's can be: part of it is something else."""
    return _bytes(name) <= COMM_BYTES


def _bytes(name: str) -> int:
    """Bytes of a name of which what is no text is written out."""
    return len(re.sub(r"\\x[0-9a-f]{2}|\\[0-7]{3}", "?", name).encode("utf-8", "replace"))


def _learn(text: str, phrases: Mapping[int, int]) -> list[tuple[Shape, int]]:
    """Shapes of what stands before the kernel's phrases, and how often; the most frequent first."""
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    for begin, at in phrases.items():
        _count(text[begin:at], groups, counts)
    shapes = _made(groups, counts)
    known = [re.compile(shape.pattern) for shape, _ in shapes if shape.pattern]
    bare = any(not shape.pattern for shape, _ in shapes)
    for words in AFTER_A_NAME:
        for at in _hits(text, words):
            begin = text.rfind("\n", max(at - LONGEST_BEGINNING, 0), at) + 1
            line = text[begin : at + len(words)]
            learnt = (bare and is_comm(text[begin:at])) or any(each.match(line) for each in known)
            name = name_begins(line)
            if (begin or at <= LONGEST_BEGINNING) and name is not None and name >= 0 and not learnt:
                _count(line[:name], groups, counts)
    return _made(groups, counts)


def _count(
    prefix: str, groups: dict[tuple[str, ...], list[list[str]]], counts: Counter[tuple[str, ...]]
) -> None:
    tokens = _TOKEN.findall(prefix)
    kinds = tuple(_kind(token, tokens[at - 1] if at else "") for at, token in enumerate(tokens))
    counts[kinds] += 1
    if counts[kinds] <= MOST_HITS:
        groups.setdefault(kinds, []).append(tokens)


def _kind(token: str, before: str) -> str:
    """Tell what of a token all lines have in common."""
    if token.isspace():
        return "" if before in "[<(" and before else " "
    if token.isdecimal():
        return "0"
    if re.fullmatch(r"[A-Z]\d+", token):
        return "T0"
    if token[0].isalpha():
        return "a"
    return "0a" if token[0].isalnum() else token


def _made(
    groups: dict[tuple[str, ...], list[list[str]]], counts: Counter[tuple[str, ...]]
) -> list[tuple[Shape, int]]:
    """Patterns of the shapes; what only goes on where a more frequent one ended is a message's."""
    made: list[tuple[Shape, int]] = []
    merged: dict[tuple[str, ...], tuple[list[list[str]], int]] = {}
    for kinds, count in counts.items():
        plain = tuple(kind for kind in kinds if kind)
        rows = [[t for t, k in zip(r, kinds, strict=True) if k] for r in groups[kinds]]
        before = merged.get(plain, ([], 0))
        merged[plain] = (before[0] + rows, before[1] + count)
    ranked = sorted(merged.items(), key=lambda each: -each[1][1])[:MOST_SHAPES]
    for kinds, (rows, count) in ranked:
        shape = _shape(kinds, rows)
        if any(other.pattern and re.match(other.pattern, shape.sample) for other, _ in made):
            continue
        if made and shape.pattern and not any(map(str.isalnum, shape.sample)):
            continue  # of a line that was broken
        made.append((shape, count))
    return made


def _shape(kinds: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Shape:
    sample = "".join(rows[0])
    parts, until, length = list[str](), None, 0
    begin, end, time = _date_of(sample) or (0, 0, None)
    for at, kind in enumerate(kinds):
        values = {row[at] for row in rows}
        length += len(rows[0][at])
        in_date = begin < length <= end
        parts.append(_part(kind, values, in_date, last=at == len(kinds) - 1))
        if time is not None and until is None and length >= time:
            until = "".join(parts)
    return Shape(sample, "".join(parts), until)


def _part(kind: str, values: set[str], in_date: bool, last: bool) -> str:
    if kind == " ":
        # What is more may be of the message; where that was wrapped, the blank is gone.
        return rf"(?:{re.escape(min(values, key=len))}|$)" if last else r"\s+"
    if kind == "0":
        return "[0-9]+"
    if kind == "T0":
        return "[A-Z][0-9]+"
    if kind == "0a":
        return r"(?=[^\W_]*[0-9])[^\W_]++"
    if kind != "a":
        return re.escape(kind) + (r"\s*" if kind in "[<(" else "")
    (word, *more) = values
    of_level = word.lower() in WORDS or (len(word) == 1 and word.isupper())
    if word != "kernel" and (in_date or more or of_level):
        return r"[^\W_]+"
    return re.escape(word)


def _date_of(sample: str) -> tuple[int, int, int] | None:
    """The places where a date begins and ends in a prefix, and where its time of day ends."""
    time = _TIME.search(sample)
    if not time:
        return None
    begin = _DATE.search(sample, 0, time.start())
    zone = _ZONE.match(sample, time.end())
    assert begin is not None and zone is not None  # both may be empty
    return begin.start(), zone.end(), time.end()


def _kernels_own(learnt: list[tuple[Shape, int]]) -> tuple[list[Shape], list[str]]:
    """The shapes that are the kernel's, and the names of programs that copied its words."""
    shapes = [shape for shape, _ in learnt]
    named = any(_KERNEL.search(shape.sample) for shape in shapes)
    own, programs = list[Shape](), list[str]()
    for shape in shapes:
        program = None if _KERNEL.search(shape.sample) else _PROGRAM.search(shape.sample)
        relayed = program and _TIME.search(shape.sample, program.end())
        if program and (named or (program[1] and not relayed)):
            programs.append(program[1] or program[2])
        else:
            own.append(shape)
    return own, programs
