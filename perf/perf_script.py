# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The text of ``perf script``: samples, one by one, in bounded memory.

Why text: perf's embedded Python is on its way out and already missing from many builds, and ``perf
data convert --to-json`` (6.1 to 7.2) gives neither event nor period nor address. ``perf script -F``
has printed the same since long before 6.1.

A sample is a header line and a line for each frame, leaf first, then an empty line; a sample of an
event without call chain is its header line alone, and no empty line follows::

    COMM PID/TID [CPU] TIME: PERIOD EVENT: ADDRESS TRACE
    <tab>ADDRESS SYMBOL (DSO)

Names are anybody's. A comm may hold spaces, newlines, even empty lines: a header is found by what
follows the comm, which is longer than any comm (15 bytes) and cannot be forged inside of one. A
symbol of a user's binary may hold anything and is not believed beyond its own sample; text that
fits nowhere is counted, so that it shows.

The text is a stranger's: each line, sample and name has a bound, and no expression looks at a byte
again for each of those before it.

Cannot know: what perf did not print. How many samples the recording holds is asked of perf
(``perf_record.recorded``), and compared.
"""

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import IO, NamedTuple

# In what order perf prints is its own affair; a field that a recording lacks is left out.
FIELDS = (
    *("comm", "pid", "tid", "cpu", "time", "period"),
    *("event", "addr", "ip", "sym", "dso", "trace"),
)
KERNEL = 1 << 63  # addresses from here on

# As perf calls what it has forked for the command, until that is executed.
WAITING = b"perf-exec"

_CHUNK = 1 << 19
# Of a line: what a tracepoint says is a few KiB at most.
MAX_LINE_BYTES = 1 << 20
# Of text that fits no sample; where that is also most of what was read, it is no text of perf's.
MAX_UNREAD_BYTES = 64 << 20
# Text without an empty line in it is a recording without call chains: cut at a line.
_LONG = 4 << 20
_MAX_COMM = 80  # perf names kworkers after /proc/PID/status, with their work
# No number is longer: a text may hold any, tables hold 63 bits, also of nanoseconds and of sums.
_TIME, _PERIOD = rb"(?:[0-8]\d{9}|\d{1,9})\.\d{6,9}", rb"\d{1,13}"
_WHO = rb"(.{0,%d}?) +(-?\d{1,10})/(-?\d{1,10}) +" % _MAX_COMM
_HEADER = re.compile(
    _WHO
    + rb"(?:\[\d{3,9}\] +)?(%b): +(?:(%b) +)?(\S+?):(?=\s|\Z)[^\n\S]*([^\n]*)" % (_TIME, _PERIOD),
    re.DOTALL,
)
# The same where a comm is one plain word, up to the frames.
_PLAIN = re.compile(
    rb"(\S{1,15}) +(-?\d{1,10})/(-?\d{1,10}) +(?:\[\d{3,9}\] +)?"
    rb"(%b): +(?:(%b) +)?(\S+):(?=[ \n]) *+([^\n]*+)\n\t" % (_TIME, _PERIOD)
)
_RECORD = re.compile(
    _WHO + rb"(?:\[\d{3,9}\] +)?(?:(%b): +)?PERF_RECORD_([A-Z_]+)([^\n]*)" % _TIME, re.DOTALL
)
_FORK = re.compile(rb"\((\d{1,10}):\d+\):\((\d{1,10}):\d+\)")
_COMM = re.compile(rb"( exec)?: (.*):(\d{1,10})/\d{1,10}\Z", re.DOTALL)
_LOST = re.compile(rb" lost (\d{1,15})(?!\d)")
_ADDRESS = re.compile(rb" *([0-9a-f]+) ")
# What a sample without call chain has behind its address.
_SINGLE = re.compile(rb"(?:.*\s\s|\s*+)([0-9a-f]+ \S.*)\Z", re.DOTALL)


class NotPerfText(ValueError):
    """A text is not that of ``perf script``, or is damaged."""


class Sample(NamedTuple):
    """One sample as printed. ``stack`` is the frames' text, which is alike in many samples."""

    comm: bytes
    pid: int
    tid: int
    time: bytes  # seconds
    period: int | None
    event: bytes
    rest: bytes  # the address and what a tracepoint says
    stack: bytes  # lines with a tab between them


@dataclass
class Reading:
    """Counts of what is read beside the samples."""

    samples: int = 0
    lost: int = 0  # as the LOST records say, which do not name the event
    unread_bytes: int = 0  # text that is not a sample
    # Parents, as far as known: pid of a process to that of its parent.
    on_fork: Callable[[int, int], None] | None = None
    forked: set[int] = field(default_factory=set, repr=False)  # what waits to become a command
    begun: bytes = b""  # when that was executed, in seconds


def read_samples(
    stream: IO[bytes], reading: Reading, progress: Callable[[int, int], None] | None = None
) -> Iterator[Sample]:
    """
    The samples of ``perf script`` text, in its order.

    :param reading: is kept up to date; what it counts is final when the samples are through.
    :param progress: called with (bytes read, samples read) after every chunk.
    :raises NotPerfText: most of it is something else.
    """
    rest = b""
    for size, chunk in _chunks(stream, reading):
        text = rest + chunk
        end = text.rfind(b"\n\n")
        if end < 0 and len(text) > _LONG:
            end = text.rfind(b"\n")
        if end < 0:
            rest = text
            continue
        begin = yield from _samples(text[:end], reading)
        rest = begin + text[end:] if begin else text[end:].lstrip(b"\n")
        if progress is not None:
            progress(size, reading.samples)
    begin = yield from _samples(rest, reading)
    _thrown_away(begin.strip(b"\n"), reading)


def _chunks(stream: IO[bytes], reading: Reading) -> Iterator[tuple[int, bytes]]:
    """
    The text in pieces, without what a line has beyond its bound, which is counted; and how many
    bytes were read so far.
    """
    size = length = 0  # in all, and of the line that the last piece ended in
    while chunk := stream.read(_CHUNK):
        size += len(chunk)
        first, last = chunk.find(b"\n"), chunk.rfind(b"\n")
        more = first if first >= 0 else len(chunk)
        excess = min(max(length + more - MAX_LINE_BYTES, 0), more)
        length = len(chunk) - last - 1 if first >= 0 else length + more
        if excess:
            _thrown_away(chunk[more - excess : more], reading)
            chunk = chunk[: more - excess] + chunk[more:]
        if reading.unread_bytes > max(MAX_UNREAD_BYTES, size // 2):
            raise NotPerfText(f"{reading.unread_bytes >> 20} MiB of it fit no sample of perf's")
        yield size, chunk


def _thrown_away(text: bytes, reading: Reading) -> bytes:
    reading.unread_bytes += len(text)
    return b""


def _samples(text: bytes, reading: Reading) -> Generator[Sample, None, bytes]:
    """The samples of a piece of text; returns its end if that is not a whole sample."""
    pending = b""  # the begin of a comm that has an empty line in it
    for block in text.split(b"\n\n"):
        if pending:
            joined = pending + b"\n\n" + block
            if _PLAIN.match(block) and not _HEADER.match(joined) and not _RECORD.match(joined):
                # No comm's begin, but text that fits nowhere; this sample is not part of it.
                pending = _thrown_away(pending, reading)
            else:
                block = joined
        elif not (block := block.lstrip(b"\n")):
            continue
        if (match := _PLAIN.match(block)) and match.end() < len(block):
            yield _sample(match, block[match.end() :], reading)
            pending = b""
            continue
        pending = yield from _unusual(block, reading)
        if len(pending) > 2 * _MAX_COMM:
            pending = _thrown_away(pending, reading)
    return pending


def _sample(header: re.Match[bytes], stack: bytes, reading: Reading) -> Sample:
    comm, pid, tid, time, period, event, rest = header.groups()
    reading.samples += 1
    number = int(period) if period else None
    return Sample(comm.lstrip(), int(pid), int(tid), time, number, event, rest, stack)


def _unusual(block: bytes, reading: Reading) -> Generator[Sample, None, bytes]:
    """Records, samples of one line, comms with newlines; returns what may be a comm's begin."""
    at = 0
    frames = block.find(b"\n\t")
    while at < len(block):
        if block.startswith(b"#", at):
            # What perf says of the recording, or another program; unless it is a comm.
            end = block.find(b"\n", at) % (len(block) + 1)
            if b"/" not in (line := block[at:end]) or not _HEADER.match(line):
                at = end + 1
                continue
        if block.find(b"/", at) < 0:  # nor a header
            return block[at:]
        record = _RECORD.match(block, at)
        header = _HEADER.match(block, at)
        if record and (not header or record.end() <= header.end()):
            _note(record, reading)
            at = record.end() + 1
            continue
        if not header:
            return block[at:]
        at = header.end()
        if 0 <= frames < at:
            frames = block.find(b"\n\t", at)
        stack = b""
        if frames == at or (frames > at and not _next_within(block, at + 1, frames)):
            # A tracepoint's text may have newlines of its own before the frames.
            stack, at = block[frames + 2 :], len(block)
        elif single := _SINGLE.match(header[7]):
            stack = single[1]
        yield _sample(header, stack, reading)
        at += 1
    return b""


def _next_within(block: bytes, at: int, end: int) -> bool:
    """True if another sample or record begins before *end*."""
    following = _HEADER.match(block, at) or _RECORD.match(block, at)
    return following is not None and following.start(2) < end


def _note(record: re.Match[bytes], reading: Reading) -> None:
    *_, time, kind, words = record.groups()
    if kind.startswith(b"LOST") and (lost := _LOST.search(words)):
        reading.lost += int(lost[1])
    elif kind == b"FORK" and reading.on_fork is not None and (fork := _FORK.search(words)):
        reading.on_fork(int(fork[1]), int(fork[2]))
    elif kind == b"COMM" and (comm := _COMM.match(words)):
        executed, name, pid = comm[1], comm[2], int(comm[3])
        if not executed and name == WAITING:
            reading.forked.add(pid)
        elif executed and time and not reading.begun and pid in reading.forked:
            reading.begun = time


def frame(line: bytes) -> tuple[int, str, str] | None:
    """
    (address, symbol, DSO) of a line of a stack, without its tab; None for what belongs to the name
    before it. The symbol is empty if perf has no name for it.
    """
    match = _ADDRESS.match(line)
    if not match:
        return None
    name, dso = line[match.end() :].rstrip(), b""
    # A DSO has no tab; a symbol may have anything.
    at = name.find(b" (", name.rfind(b"\t") + 1) if name.endswith(b")") else -1
    if at >= 0:
        name, dso = name[:at], name[at + 2 : -1]
    symbol = name.decode("utf-8", "backslashreplace")
    return (
        int(match[1], 16),
        "" if symbol == "[unknown]" else symbol,
        dso.decode("utf-8", "backslashreplace"),
    )
