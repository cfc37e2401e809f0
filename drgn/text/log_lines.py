# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel's records in the lines of a text: without what was put before them, whole where they were
wrapped, and without the lines of others.

Takes lines of text, objects in JSON (a journal's, a container's, those of a query in each other),
comma-separated values with a column of messages, mails as they are sent, and a journal's fields
(``journalctl -o export``, ``verbose``). Of these, programs' records are foreign.

Costs a match for each line, of JSON its decoding: a log of 100 MB that has nothing but OOM records
takes 22 s of CPU time and 440 MiB (``tests/bench/bench_logs.py``).

Cannot know: of a line without a prefix, whether it goes on with the record before it; whether a
wrapped line was broken at a blank or within a word, unless other lines show it.
"""

import csv
import html
import itertools
import json
import quopri
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmscope.drgn.text.log_prefix import (
    AFTER_A_NAME,
    Prefixes,
    is_comm,
    name_begins,
    name_ends,
    phrases_in,
)
from mmscope.drgn.text.program_kills import LOWMEMORYKILLER, ProgramKill, program_kill, same

LONGEST_LINE = 16 << 10  # characters
RECENT = 64  # kills of programs, of which one may be said twice
MOST_CONTINUING = 100  # lines; memory.stat of a cgroup has about 60
MOST_RANGES = 5  # that are named
MOST_TRIED = 4  # times the text: objects without an end in each other
OWN_PREFIX = 60  # characters: another prefix that follows that soon is of the same line
UNSEEN = "…"  # in the place of what a pager did not show of a line
BLANKS = 14  # before a column: they are gone where the line was broken
# Mails are wrapped at blanks, terminals at their width: a line that is longer was not wrapped.
NARROWEST, WIDEST, WIDEST_TERMINAL = 40, 132, 400
LINES_TO_LEARN_FROM = 20_000

# Also as a pager writes them, and where the escape itself is gone.
_ESCAPES = re.compile(r"(?:\x1b|\^\[)\[[0-9;?]*[A-Za-z]|\x1b[()][A-B0-2]|\[[0-9;]{1,8}m")
# Lines of which it is known where they end.
_ENDS = re.compile(
    r"(?:Mem-Info|Call Trace|Tasks state \(memory values in pages\)):([^\w\n]{0,6})$", re.MULTILINE
)
_QUOTE = re.compile(r"(?:> ?)+")
# A bracket that is closed at the line's end, and an arrow.
_OPENED = re.compile(r"(?:<[^<>]{0,80}|[-=])>\Z")
# rsyslog writes control characters out.
_CONTROL = re.compile(r"#(0[0-3][0-7])")
# What a line begins with that has lost its own, or that another one was written into.
_INNER = re.compile(
    r"(?:(?:[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d\S*|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*) "
    r"(?:(?:\S+ )?kernel: (?:\[ *\d{1,9}\.\d{3,9}\] )?|\[ *\d{1,9}\.\d{3,9}\] )"
    r"|(?:<\d{1,3}>)?\[ *\d{1,9}\.\d{3,9}\](?:\[ *[TC]\d+\])? (?:\S+ kernel: )?"
    r"|\[[^\W\d]{2,3} [^\W\d]{2,3} [ \d]?\d \d\d:\d\d:\d\d \d{4}\] )"
)
_SECONDS = re.compile(r"\[ *\d{1,9}\.\d{6}\](?:\[ *[TC]\d+\])? ")
_RULE = re.compile(r"\W*\Z")
_AT_BEGIN = re.compile(rf"^[> ]{{0,9}}(?={_SECONDS.pattern})", re.MULTILINE)
# Lines of the kernel that are long, and with what a broken one goes on.
_REST = re.compile(
    r" *(?:mode:0x|gfp_mask=0x|nodemask=|order=\d|oom_score_adj[=:]-?\d|total-vm:\d|anon-rss:\d"
    r"|file-rss:\d|shmem-rss:\d|pgtables:\d|UID:\d+ )"
)
_STAMP = re.compile(r"\d{10,19}\Z|\d{4}-\d\d-\d\d[T ]")
# What several CPUs printed at once: watermarks or free blocks, and a call trace behind them in the
# same line; or a part of one of these lines, or of a failed allocation's, alone.
_TRACE = r"(?:\[<[0-9a-f]+>\] )?(?:\? )?[A-Za-z_][\w.]*\+0x[0-9a-f]+/0x"
_BEFORE_TRACE = re.compile(
    r"(?:\dkB|\([UMERHCI]{1,7}\)|lowmem_reserve\[\]:|(?:DMA|DMA32|Normal|HighMem|Movable):"
    rf"|\bactive_anon:\d.{{0,200}})[ 0-9]*{_TRACE}"
)
_PART = re.compile(r" ?(?:\d+\*\d+kB|\([UMERHCI]{1,7}\)|= \d+kB) ?\Z|, mode:0x| *page allocation f")
# Where an object in JSON begins, or a list of lines.
_BEGINS = re.compile(r'\{|\[\s*"')
_STRINGS = re.compile(r'\s*\[\s*"')
_FIELD = re.compile(r"\s*([A-Z_][A-Z0-9_]{0,63})=(.*)")
_MESSAGES = (
    "MESSAGE",
    "message",
    "short_message",
    "log",
    "msg",
    "text",
    "line",
    "textPayload",
    "_raw",
    "@message",
    "body",
)
_CSV_MESSAGES = frozenset(name.lower() for name in _MESSAGES)
_BREAK = re.compile(r"<br */?>\n?", re.IGNORECASE)
# A mail as it was sent: "=" is a sign of its own there, and lines of 76 end in one.
_OF_MAIL = re.compile(
    r"^Content-Transfer-Encoding: quoted-printable|gfp_mask=3D|\+0x[0-9a-f]*=$", re.M
)
_AROUND = ("_source", "jsonPayload", "fields", "result", "event")
_TIMES = ("timeUnixNano", "@timestamp", "_time", "timestamp", "time", "lastTimestamp")
# An object as a list of what each of its members is called and has.
_NAMED = ({"field", "value"}, {"key", "value"})
_OF_KERNEL = ("kernel", "vmunix")
TURNED = 4  # times as many steps back in time as forward


class Printed(NamedTuple):
    """A record: what stood before it, and its text."""

    prefix: str
    text: str


@dataclass
class _Open:
    """A record whose lines are being read."""

    prefix: str
    text: str
    lines: int = 1


class LogLines:
    """
    Iterates over the records of a text.

    :ivar records: how many there were so far.
    :ivar foreign: lines of others.
    :ivar killed: processes that they say they ended to have memory, and the lines.
    """

    def __init__(self, text: str) -> None:
        text = _plain(text)
        self.killed: list[tuple[ProgramKill, str]] = []
        lines, numbers, others, damaged = _unpacked(text) or (text.split("\n"), [], [], [])
        self.foreign = len(others)
        for line in others:
            self._look_for_a_kill(line)
        lines = _without_ends(lines)
        numbers = numbers or [*range(1, len(lines) + 1)]
        cut = _cut_by_pager(lines)
        for at in cut:
            lines[at] = lines[at][:-1] + UNSEEN
        apart = list(_apart(lines, numbers))
        self.numbers = [number for number, _ in apart]
        self.text, self.phrases = _unquoted("\n".join(line for _, line in apart))
        self.prefixes = Prefixes(self.text, self.phrases)
        self.wrap = _Wrap(self.text, self.prefixes)
        self.records = 0
        self._cut: tuple[str, int] | None = None
        # A program's own output, without stamps.
        unstamped = self.prefixes.bare and not self.phrases
        self.of_program = unstamped and any(map(program_kill, lines))
        self._unread = {"no whole record": damaged} if damaged else {}
        if cut:
            self._unread["a pager did not show their ends"] = [numbers[at] for at in cut]

    def __iter__(self) -> Iterator[Printed]:
        current: _Open | None = None
        ours = False
        before = 0  # the length of the line before
        for number, begin, line in _lines(self.text):
            length, before = before, _filled(line)
            if len(line) > LONGEST_LINE:
                self._note("longer than a line of the kernel's can be", number)
                continue
            if not line.strip() and not self.prefixes.bare:
                continue
            if self.of_program:
                self._look_for_a_kill(line)
                self.foreign += 1
                continue
            wrapped = self.wrap.known and self.wrap.goes_on(line, length)
            if line.endswith("  ") and self.wrap.joint:
                line = line.rstrip(" ")
            end = self._end(line, begin, wrapped)
            if end is not None and _mixed(line, end):
                self._note("messages of several CPUs are mixed", number)
            if end is None:
                ours = self._add(current if ours else None, line, length, number, wrapped)
                continue
            ours = True
            if first := self._first(line[end:]):
                self.records += 1
                yield Printed(line[:end], first)
            self._look_for_a_prefix(line[end:], number)
            if current is not None:
                yield self._made(current)
            current = _Open(line[:end], line[end:])
        self._first("")
        if current is not None:
            yield self._made(current)

    def _first(self, after: str) -> str:
        """
        The kernel's words in a line before its first record, whose prefix was cut with the text's
        head: what follows is of the same task. Empty: they are another's, which is noted.
        """
        if self._cut is None:
            return ""
        line, number = self._cut
        self._cut = None
        begin, end = name_begins(line), name_ends(line)
        name = "" if begin is None or begin < 0 else line[begin:end]
        if name and re.match(
            rf"(?:CPU: .*Comm: {(name := re.escape(name))} |{name} cpuset=)", after
        ):
            self.foreign -= 1
            return line[begin:]
        self._note_foreign(number)
        return ""

    def _made(self, current: _Open) -> Printed:
        self.records += 1
        text = current.text
        if LOWMEMORYKILLER in text:  # a program's or a driver's
            self._look_for_a_kill(text)
        if "#0" in text:
            text = _CONTROL.sub(lambda found: chr(int(found[1], 8)), text)
        return Printed(current.prefix, text)

    def _end(self, line: str, begin: int, wrapped: bool) -> int | None:
        """The place where a record begins in a line; None: the line is not one's beginning."""
        if self.prefixes.bare:
            if _REST.match(line):
                return None
            return None if wrapped and self.phrases.get(begin) != begin else 0
        end = self.prefixes.end(line)
        if end is None and self.prefixes.mixed and self.phrases.get(begin) == begin:
            return None if wrapped else 0
        return end

    def _add(
        self, current: _Open | None, line: str, before: int, number: int, wrapped: bool
    ) -> bool:
        """Add a line without a prefix to the record before it; False: it is another program's."""
        foreign = self.prefixes.foreign(line) and not wrapped and not self.prefixes.bare
        foreign = foreign and not _REST.match(line)
        if current is None or foreign or current.lines > MOST_CONTINUING:
            self.foreign += 1
            self._look_for_a_kill(line)
            if any(map(line.__contains__, AFTER_A_NAME)) or "Killed process " in line:
                self._first("")
                if current is None and not self.records:
                    self._cut = line, number
                else:
                    self._note_foreign(number)
            return False
        current.lines += 1
        if _REST.match(line) and not current.text.startswith("oom-kill:"):
            current.text = f"{current.text.rstrip()} {line.strip()}"
            return True
        if wrapped:
            current.text += (self.wrap.joint if current.text else "") + line
            return True
        width = len(current.prefix)
        current.text += "\n" + (line[width:] if not line[:width].strip() else line)
        return True

    def _look_for_a_kill(self, line: str) -> None:
        """Keep what a program says that it ended, once."""
        kill = program_kill(line)
        if kill and not any(same(kill, other) for other, _ in self.killed[-RECENT:]):
            self.killed.append((kill, line))

    def _note_foreign(self, number: int) -> None:
        programs = ", ".join(sorted({*self.prefixes.programs})[:3])
        by = f" ({programs})" if programs else ""
        self._note(f"the OOM killer's words, but not as the kernel's own lines are{by}", number)

    def _look_for_a_prefix(self, message: str, number: int) -> None:
        """A task's name that is longer than one can be has a part of an unread prefix."""
        if (end := name_ends(message)) is not None and not is_comm(message[:end]):
            self._note("what is before the kernel's words was not understood", number)

    def _note(self, why: str, number: int) -> None:
        self._unread.setdefault(why, []).append(self.numbers[number])

    def unread(self) -> tuple[str, ...]:
        """The lines that were not read, and why."""
        return tuple(f"{_ranges(sorted(numbers))}: {why}" for why, numbers in self._unread.items())


def _mixed(line: str, begin: int) -> bool:
    """True if a line has words of two messages, or a part of one."""
    if "+0x" in line:
        return _BEFORE_TRACE.search(line, begin) is not None
    return _PART.match(line, begin) is not None or line.count("page allocation failure") > 1


def _ranges(numbers: list[int]) -> str:
    ranges = list[list[int]]()
    for number in numbers:
        if ranges and number <= ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    words = [str(a) if a == b else f"{a} to {b}" for a, b in ranges[:MOST_RANGES]]
    more = len(ranges) - len(words)
    one = len(numbers) == 1
    return (
        ("line " if one else "lines ") + ", ".join(words) + (f" and {more:,} more" if more else "")
    )


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    """The number of each line from 0, where it begins, and its text."""
    begin = number = 0
    while begin < len(text):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        yield number, begin, text[begin:end]
        begin, number = end + 1, number + 1


def _apart(lines: list[str], numbers: list[int]) -> Iterator[tuple[int, str]]:
    """Lines and their numbers, with those apart that had become one."""
    stamps = [found for line in lines[:LINES_TO_LEARN_FROM] if (found := _SECONDS.search(line))]
    at_begin = sum(not found.string[: found.start()].strip() for found in stamps)
    for line, number in zip(lines, numbers, strict=True):
        at = begun = 0
        # A program's words on a console, and the kernel's in the same line.
        found = _SECONDS.search(line) if at_begin > 0.9 * len(stamps) else None
        if found and line[: found.start()].strip():
            yield number, line[: found.start()].rstrip(" ")
            at = begun = found.start()
        for inner in _INNER.finditer(line) if len(line) > 120 else ():
            if inner.start() - begun > (0 if begun else OWN_PREFIX):
                yield number, line[at : inner.start()].rstrip(" ")
                at = inner.start()
            begun = inner.end()
        yield number, line[at:]


def _plain(text: str) -> str:
    """Text without colours, carriage returns and what else terminals and mails put in."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "")
    if "=3D" in text and _OF_MAIL.search(text):
        text = quopri.decodestring(text.encode("utf-8", "replace")).decode("utf-8", "replace")
    if "<br" in text or "<BR" in text:
        text = _BREAK.sub("\n", text)
    if "&lt;" in text or "&gt;" in text:
        text = html.unescape(text)
    if "\x1b" in text or "[0m" in text or "^[[" in text:
        text = _ESCAPES.sub("", text)
    for odd, plain in (("\ufeff", ""), ("\xa0", " "), ("\0", ""), ("\x1e", ""), ("\x7f", "")):
        if odd in text:
            text = text.replace(odd, plain)
    return text


def _without_ends(lines: list[str]) -> list[str]:
    """Lines without what was put behind each: a quotation mark, a column's border, a blank."""
    full = [line for line in lines[:LINES_TO_LEARN_FROM] if line.strip()]
    if 10 * sum(line.endswith(" ") for line in full) > 9 * len(full):
        return [line.rstrip() for line in lines]
    ends = {found[1] for found in _ENDS.finditer("\n".join(lines[:LINES_TO_LEARN_FROM]))}
    if len(ends) != 1 or not (end := ends.pop().strip()):
        return lines
    return [line.rstrip().removesuffix(end).rstrip() for line in lines]


def _cut_by_pager(lines: list[str]) -> list[int]:
    """The places of lines that ``less -S``, as of journalctl, cut at the width of the terminal."""
    width = 0.9 * max(map(len, lines), default=0)
    marked = [
        at for at, line in enumerate(lines) if line.endswith(">") and not _OPENED.search(line)
    ]
    cut = [at for at in marked if len(lines[at]) >= width]
    return cut if len(cut) > 1 and 10 * len(cut) > 9 * len(marked) else []


def _unquoted(text: str) -> tuple[str, dict[int, int]]:
    """
    Text without the marks of a quote, where most lines of the kernel's have them; and the kernel's
    phrases in it.
    """
    phrases = phrases_in(text)
    begins = phrases or [found.start() for found in _AT_BEGIN.finditer(text)]
    quoted = sum(text.startswith(">", begin) for begin in begins)
    if not begins or quoted * 2 < len(begins):
        return text, phrases
    text = "\n".join(
        _QUOTE.sub("", line, count=1) if line.startswith(">") else line for line in text.split("\n")
    )
    return text, phrases_in(text)


def _filled(line: str) -> int:
    """The length of a line; 0 of a rule, with which nothing goes on."""
    return 0 if _RULE.match(line) else len(line)


def _blanks(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


class _Wrap:
    """
    The way that lines were wrapped, if they were: at a width, or at blanks, so that the next word
    would not have fitted.

    :ivar joint: what was between the two parts.
    """

    def __init__(self, text: str, prefixes: Prefixes) -> None:
        self.width, self.joint, self.known = 0, " ", False
        # Blanks before each line, as of a quoted block. Where a line was broken they are gone.
        self.indent = min((_blanks(line) for _, _, line in _lines(text) if line.strip()), default=0)
        before, pairs = 0, list[tuple[int, str]]()
        for number, _, line in _lines(text):
            if number > LINES_TO_LEARN_FROM:
                break
            if " " in line.strip():  # a longer word has a line of its own
                self.width = max(self.width, len(line))
            if before and line.strip() and (prefixes.bare or prefixes.end(line) is None):
                pairs.append((before, line))
            before = _filled(line)
        if not pairs or not NARROWEST <= self.width <= WIDEST_TERMINAL:
            return
        exact = sum(length == self.width for length, _ in pairs)
        full = sum(self.goes_on(line, length) for length, line in pairs)
        if exact > 1 and exact * 2 > full:
            self.joint, self.known = "", exact * 2 > len(pairs) or prefixes.bare
        elif self.width <= WIDEST:
            self.known = full > 1 and (full * 2 > len(pairs) or prefixes.bare)

    def goes_on(self, line: str, before: int) -> bool:
        """True if a line is the rest of the one before, which has so many characters."""
        if not self.joint:
            return before == self.width
        if _blanks(line) > self.indent:
            return False
        first = line.split(None, 1)[0] if line.strip() else ""
        blanks = BLANKS if self.known else 1
        return bool(before) and before + blanks + len(first) > self.width


def _unpacked(text: str) -> tuple[list[str], list[int], list[str], list[int]] | None:
    """
    The kernel's lines of objects in JSON or of a journal's fields, the number of the line of each,
    the records of others as far as these ended processes, and the lines whose objects could not be
    read; None: it is plain text.
    """
    damaged = list[int]()
    head = text[:4096].lstrip("\ufeff\x1e[ \n\r\t,")
    if head.startswith(("{", "data: {")) or _STRINGS.match(text):
        found = list(_objects(text, damaged))
        if newest_first([_time(each) for _, each in found]):
            found.reverse()
    elif (column := _columns(text)) is not None:
        found = list(_rows(text, column, damaged))
    elif re.search(r"^\s*(?:MESSAGE|__REALTIME_TIMESTAMP)=", text[:65536], re.MULTILINE):
        found = list(_entries(text))
    else:
        return None
    lines, numbers, foreign = list[str](), list[int](), list[str]()
    for number, entry in found:
        if (rendered := _rendered(entry)) is None:
            who = entry.get("SYSLOG_IDENTIFIER", "")
            line = f"{_time(entry)} {who}: {_message(entry)}"
            foreign.append(line if program_kill(line) else "")
            continue
        for line in rendered:
            lines.append(line)
            numbers.append(number)
    return (lines, numbers, foreign, damaged) if lines or foreign else None


def _objects(text: str, damaged: list[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """
    JSON objects, one after another or of an array, and the line where each begins.

    :param damaged: gets the numbers of lines whose objects could not be read.
    """
    decoder, at, number, counted = json.JSONDecoder(), 0, 1, 0
    tried = 0  # characters of what was none
    while begins := _BEGINS.search(text, at):
        at = begins.start()
        number += text.count("\n", counted, at)
        counted = at
        try:
            found, end = decoder.raw_decode(text, at)
            entries = list(_with_messages(found)) or [{"message": each} for each in _texts(found)]
        except (ValueError, RecursionError) as error:
            damaged.append(number)
            tried += getattr(error, "pos", len(text)) - at
            at = text.find("\n", at) + 1
            if not at or tried > MOST_TRIED * len(text):
                return
            continue
        at = end
        yield from ((number, each) for each in entries)


def _with_messages(found: Any) -> Iterator[Mapping[str, Any]]:
    """The objects in an object that have a message each, in their order."""
    if isinstance(found, list) and all(isinstance(one, dict) and {*one} in _NAMED for one in found):
        found = {str(one.get("field", one.get("key"))): _unwrapped(one["value"]) for one in found}
    if isinstance(found, dict):
        inner = _innermost(found)
        if _message(inner) is not None or {"_TRANSPORT", "SYSLOG_IDENTIFIER"} & {*inner}:
            yield {**{name: found[name] for name in _TIMES if name in found}, **inner}
            return
    elif len(found) == 2 and all(isinstance(one, str) for one in found) and _STAMP.match(found[0]):
        yield {"time": found[0], "message": found[1]}
        return
    for each in found.values() if isinstance(found, dict) else found:
        if isinstance(each, dict | list):
            yield from _with_messages(each)


def _innermost(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _AROUND:
        if isinstance(entry.get(name), dict):
            entry = entry[name]
    return entry


def _message(entry: Mapping[str, Any]) -> str | list[Any] | None:
    """The message of an entry: a text, or a journal's array of bytes."""
    for name in _MESSAGES:
        value = _unwrapped(entry.get(name))
        if isinstance(value, str | list):
            return value
    return None


def _unwrapped(value: Any) -> Any:
    """A value, also of one that is named by its type."""
    return next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value


def _time(entry: Mapping[str, Any]) -> str:
    return next((str(entry[name]) for name in _TIMES if name in entry), "")


def _texts(found: Any) -> Iterator[str]:
    """The texts in an object without messages that have the kernel's words, or lie beside one."""
    inner = [*found.values()] if isinstance(found, dict) else found
    texts = [each for each in inner if isinstance(each, str)]
    if any(map(_of_kernel, texts)):
        yield from texts if isinstance(found, list) else filter(_of_kernel, texts)
    for each in inner:
        if isinstance(each, list) and "\n".join(map(str, each)).strip() in map(str.strip, texts):
            continue  # Ansible has an output as a text, and its lines
        if isinstance(each, dict | list):
            yield from _texts(each)


def _of_kernel(text: str) -> bool:
    return bool(phrases_in(text)) or any(map(text.__contains__, AFTER_A_NAME))


def newest_first(times: Sequence[Any], most: int = TURNED) -> bool:
    """True if times go backward, as of ``journalctl -r`` and of most queries."""
    earlier = later = 0
    for one, other in itertools.pairwise(times):
        earlier += other < one
        later += other > one
    return earlier > most * (later + 1)


def _rows(text: str, column: int, damaged: list[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The messages of comma-separated values, and the line where each ends."""
    rows = csv.reader(text.split("\n")[1:])
    try:
        for row in rows:
            if len(row) > column:
                yield rows.line_num + 1, {"message": row[column]}
    except csv.Error:
        damaged.append(rows.line_num + 1)


def _columns(text: str) -> int | None:
    """The column of messages in comma-separated values whose first line has names; or None."""
    names = text[:4096].partition("\n")[0].replace('"', "").strip("\ufeff\r ").split(",")
    known = [at for at, name in enumerate(names) if name.lower() in _CSV_MESSAGES]
    return known[0] if len(names) > 1 and known else None


def _entries(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Entries of a journal as ``export`` and ``verbose`` have them."""
    entry, name, begin = dict[str, list[str]](), "", 1

    def whole() -> dict[str, Any]:
        return {name: "\n".join(lines) for name, lines in entry.items()}

    for number, line in enumerate(text.split("\n"), 1):
        field = _FIELD.match(line)
        if field and (field[1] not in entry):
            name = field[1]
            entry[name] = [field[2]]
            continue
        heads = not line.strip() or (line[:1].isalpha() and " [s=" in line)
        if heads or field:
            if entry:
                yield begin, whole()
            entry, name, begin = ({field[1]: [field[2]]} if field else {}), "", number
        elif name:
            entry[name].append(line.strip())
    if entry:
        yield begin, whole()


def _rendered(entry: Mapping[str, Any]) -> list[str] | None:
    """An entry as lines of a log; None: a program's."""
    who = entry.get("SYSLOG_IDENTIFIER", entry.get("_TRANSPORT"))
    if who is not None and who not in _OF_KERNEL:
        return None
    message = _message(entry)
    if isinstance(message, list):
        plain = bytes(each for each in message if isinstance(each, int) and 0 <= each < 256)
        message = plain.decode("utf-8", "backslashreplace")
    if not isinstance(message, str):
        return None
    prefix = ""
    if str(entry.get("PRIORITY", "")).isdecimal():
        prefix += f"<{int(entry['PRIORITY']) & 7}>"
    time = str(entry.get("_SOURCE_MONOTONIC_TIMESTAMP", ""))
    if time.isdecimal():
        seconds, micro = divmod(int(time), 10**6)
        prefix += f"[{seconds:5}.{micro:06}] "
    return [prefix + line for line in _plain(message).rstrip("\n").split("\n")]
