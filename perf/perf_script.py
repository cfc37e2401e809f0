# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The text of ``perf script``: samples, one by one, in bounded memory.

Why text: perf's embedded Python is on its way out and already missing from many builds, and ``perf
data convert --to-json`` (6.1 to 7.2) gives neither event nor period nor address. ``perf script -F``
has printed the same since long before 6.1.

A sample is a header line and a line for each frame, leaf first, then an empty line; a sample of an
event without call chain is its header line alone, and no empty line follows::

    COMM PID/TID [CPU] TIME: PERIOD EVENT: TRACE ADDRESS
    <tab>ADDRESS SYMBOL+OFFSET (DSO)

Which of these fields a header has was chosen when ``perf script`` ran (its defaults differ by
version and by event), and is the same through a text: it is learnt from the first lines
(:func:`learn`), and what all headers have a header must have. The order is perf's
(``perf_sample__fprintf_start()`` and ``process_event()`` of tools/perf/builtin-script.c, 3.10 to
7.2). A number alone before CPU or time is perf's TID, its default, or a PID: it is taken for both.

Text passes through many hands: tabs become spaces or go, lines end in CR, others' lines come in
between. What is no header, frame or record of perf's is counted, so that it shows.

Names are anybody's. Straight out of perf (``own``) a comm may hold spaces, newlines, even empty
lines: a header is found by what follows the comm, which is longer than any comm (15 bytes) and
cannot be forged inside of one. A symbol of a user's binary may hold anything and is not believed
beyond its own sample.

The text is a stranger's: each line, sample and name has a bound, and no expression looks at a byte
again for each of those before it.

Cannot know: what perf did not print. How many samples the recording holds is asked of perf
(``perf_record.recorded``), and compared.
"""

import io
import re
from collections.abc import Callable, Iterator
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
UNKNOWN = -1  # a task or process whose number is not printed

_CHUNK = 1 << 19
# Of a line: what a tracepoint says is a few KiB at most.
MAX_LINE_BYTES = 1 << 20
# Of text that fits no sample; where that is also most of what was read, it is no text of perf's.
MAX_UNREAD_BYTES = 64 << 20
# Text without an empty line in it is a recording without call chains: cut at a line.
_LONG = 4 << 20
# From how much of a text its form is learnt: bytes, and lines that are not frames.
_HEAD, _LOOK = 64 << 10, 600
# A field is each header's, or that of a kind of events.
_EACH, _SOME = 0.9, 0.02
_MAX_COMM = 80  # perf names kworkers after /proc/PID/status, with their work
_MAX_ODD = 16  # of a comm with newlines in it, with what perf pads it with
_MARK = b"\xef\xbb\xbf"  # of UTF-8, as editors write it
_NEAR = 512  # bytes from where a comm with newlines begins
_PERIOD_WIDTH = 10  # what perf pads periods to; numbers of tasks, to 5 or 7

_END = rb"(?: {1,200}+|(?=\n|\Z))"  # of a field
# No number is longer: a text may hold any, tables hold 63 bits, also of nanoseconds and of sums.
_TIME = rb"(?:[0-8]\d{9}|\d{1,9})\.\d{6,9}"
_TASKS = {
    "two": rb"(-?\d{1,10})/(-?\d{1,10})" + _END,
    "one": rb"(-?\d{1,10})()" + _END,
    "either": rb"(-?\d{1,10})(?:/(-?\d{1,10}))?" + _END,
    "": rb"()()",
}
_FIELDS = {
    "cpu": rb"(\[-?\d{1,9}\])" + _END,
    "time": rb"(%b):" % _TIME + _END,
    "period": rb"(\d{1,13})" + _END,
    "event": rb"(?!PERF_RECORD_)(\S{1,512}?):(?=\s|\Z)",
}
_GUEST = rb"(?:VM: *\d{1,10} +(?:VCPU:\d{1,6} +)?)?"  # -F machine_pid, vcpu
# -F misc, tod
_BEFORE_TIME = (
    rb"(?:[KUHGgMESDPp]{1,6} {1,200}+)?(?:(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6,9}|N/A) {1,9}+)?"
)
# A comm is as short as what follows it allows.
_NAME = rb"(?:|([^\n]{0,%d}?)%b)" % (_MAX_COMM, _END)
_OWN_NAME = rb"(?:|([^\n]{0,%d}?|(?s:.{0,%d}?))%b)" % (_MAX_COMM, _MAX_ODD, _END)
_PLAIN_NAME = rb" {0,200}+(?:|(\S{1,15})%b)" % _END
_REST = rb"([^\n]*)"
# After a header that has no mark: nothing, or a stack of one frame.
_ONLY_STACK = rb"[^\n\S]*(?=\n|\Z|(?<=\s)[0-9a-f]{4,16} \S)([^\n]*)"

_RECORD = re.compile(rb"([^\n]{0,200}?)PERF_RECORD_([A-Z_0-9]+)([^\n]*)")
_OWN_RECORD = re.compile(rb"((?s:.{0,16}?)[^\n]{0,200}?)PERF_RECORD_([A-Z_0-9]+)([^\n]*)")
_RECORDED = re.compile(rb"(%b): +\Z" % _TIME)
_FORK = re.compile(rb"\((\d{1,10}):\d+\):\((\d{1,10}):\d+\)")
_COMM = re.compile(rb"( exec)?: (.*):(\d{1,10})/\d{1,10}\Z", re.DOTALL)
_LOST = re.compile(rb" lost (\d{1,15})(?!\d)")
# perf pads addresses to 16 digits: without their tab, the kernel's begin a line.
_FRAME = re.compile(rb"(?:\s{1,64}+[0-9a-f]{1,17}|[0-9a-f]{16})(?=\s|\Z)")
_TRIMMED = re.compile(rb"[0-9a-f]{1,16} \S.*\)\s*\Z")
_BARE = re.compile(rb"\s*[0-9a-f]+\s*\Z")
# -F srcline, srccode
_SOURCE = re.compile(rb"\s+\S+(?::\d+|\+\d+|\[[0-9a-f]+\])(?: \(inlined\))?\s*\Z|\s*\|\d")
_ADDRESS = re.compile(rb"\s*+([0-9a-f]+)(?:\s++|\Z)")
_OFFSET = re.compile(rb"\+0x[0-9a-f]{1,16}\Z")
_PARENTHESES = re.compile(rb"[()]")
# The last address in a line, which is the instruction's: perf pads it to 16 digits; where that is
# lost it follows two spaces, or another, of data.
_SINGLE = re.compile(
    rb"(?:.*\s|\A)(?= {0,15}[0-9a-f]{1,16}(?:\s|\Z))([ 0-9a-f]{16}(?:\s.*)?)\Z", re.DOTALL
)
_SINGLE_UNPADDED = re.compile(
    rb"(?:.*\s\s|\s*+(?:[0-9a-f]{1,16}\s++(?=[0-9a-f]{1,16}\s))?)([0-9a-f]{1,16}\s\S.*)\Z",
    re.DOTALL,
)


class NotPerfText(ValueError):
    """A text is not that of ``perf script``, or is damaged."""


class Sample(NamedTuple):
    """
    One sample as printed. ``stack`` is the frames' text, which is alike in many samples.

    What is not printed is empty, or :data:`UNKNOWN`; for a comm, the task's number stands, as perf
    itself prints it where it does not know the name.
    """

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


# The form of headers


class Form(NamedTuple):
    """
    The fields that the headers of a text have.

    :ivar header: with groups comm, pid, tid, CPU, time, period, event, rest; None: there are none.
    :ivar plain: the same where a comm is one plain word, up to the frames.
    :ivar mark: what each header has in it: a look for it is quicker.
    :ivar sure: nothing else looks like them; else a header is what has a stack.
    :ivar named: they have comms.
    :ivar chains: frames have lines of their own.
    """

    header: re.Pattern[bytes] | None
    plain: re.Pattern[bytes] | None
    mark: bytes
    sure: bool
    named: bool
    chains: bool


def _expression(name: bytes, tasks: str, fields: dict[str, str], rest: bytes) -> re.Pattern[bytes]:
    """
    A header's expression.

    :param tasks: which of :data:`_TASKS`, with a ``?`` where some lack it.
    :param fields: of :data:`_FIELDS`, each with "", or ``?`` where some lack it.
    """
    text = (
        _GUEST
        + name
        + rb"(?:%b)" % _TASKS[tasks.rstrip("?")]
        + tasks[-1:].encode() * (tasks[-1:] == "?")
    )
    for field_name, part in _FIELDS.items():
        if field_name == "time":
            text += _BEFORE_TIME
        there = fields.get(field_name)
        text += rb"()" if there is None else rb"(?:%b)%b" % (part, there.encode())
    return re.compile(text + rest)


_MAYBE = dict.fromkeys(_FIELDS, "?")
# What a header is known by, the surest first; and where nothing is sure.
_SURE = [
    _expression(_NAME, "either?", _MAYBE | {"time": ""}, _REST),
    _expression(_NAME, "either?", _MAYBE | {"cpu": ""}, _REST),
    _expression(_NAME, "two", _MAYBE, _REST),
]
_UNSURE = [
    _expression(_NAME, "either?", {"period": "?", "event": ""}, _REST),
    _expression(_NAME, "one", {"period": "?"}, _ONLY_STACK),
    _expression(_NAME, "", {"period": ""}, _ONLY_STACK),
    _expression(_NAME, "", {}, _ONLY_STACK),
]


def learn(head: bytes, *, own: bool = False) -> Form | None:
    """
    The form of a text that begins like this; None if it has no header.

    :param own: it is straight out of perf: no lines of others are in it.
    """
    headers: list[re.Match[bytes]] = []
    before: list[bytes] = []  # the first frame of a stack
    lines: list[bytes] = []
    last, known = b"", False
    for line in head.split(b"\n"):
        if not line.strip() or line.startswith(b"#") or b"PERF_RECORD_" in line:
            continue
        tabbed = line.startswith(b"\t")
        if _SOURCE.match(line) or (tabbed and not last):
            continue
        sure = None if tabbed else _first(_SURE, line)
        headers += [sure] if sure else []
        if not sure and _FRAME.match(line):
            before += [last] if last else []
            last = b""
            known = known or tabbed or _is_known(line)
        else:
            last = line
        if not tabbed:
            lines.append(line)
        if len(lines) >= _LOOK:
            break
    if headers:
        return _form(headers, own=own)
    found = [match for line in lines if (match := _first(_UNSURE, line))]
    alone = [match for match in found if match[0][: match.start(8)].strip() and _stack_of(match)]
    if 2 * len(alone) > len(lines) and any(_is_known(_stack_of(match)) for match in alone):
        return _form(alone, own=own)._replace(chains=False)
    found = [match for line in before if (match := _first(_UNSURE, line))]
    if found and known:
        return _form(found, own=own)
    first = head.lstrip(b"\n").partition(b"\n")[0]
    if _FRAME.match(first) and (first.startswith(b"\t") or _is_known(first, headed=False)):
        return Form(None, None, b"", False, False, True)
    return None


def _is_known(line: bytes, *, headed: bool = True) -> bool:
    """True if a frame says what it is in, or is the kernel's; lists of symbols have no headers."""
    address, _, dso = frame(line) or (0, "", "")
    return dso.startswith("[") or "/" in dso or (headed and address >= KERNEL)


def _stack_of(header: re.Match[bytes]) -> bytes:
    return _single(header[8], own=False)


def _first(expressions: list[re.Pattern[bytes]], line: bytes) -> re.Match[bytes] | None:
    return next((match for each in expressions if (match := each.match(line))), None)


def _form(headers: list[re.Match[bytes]], *, own: bool) -> Form:
    """The form that headers have in common."""
    narrow = not any(b"  " in match[0] for match in headers)
    share: dict[str, float] = dict.fromkeys(("comm", "two", "one", *_FIELDS), 0)
    for match in headers:
        for name in _present(match, narrow=narrow):
            share[name] += 1 / len(headers)
    some = _SOME if max(share["time"], share["cpu"], share["two"]) >= _EACH else _EACH
    fields = {name: "" for name in _FIELDS if share[name] >= _EACH}
    fields |= {name: "?" for name in _FIELDS if some <= share[name] < _EACH}
    # Kinds of events differ in other fields; but a comm may end in a number.
    tasks = max(("one", "two"), key=lambda name: share[name])
    if share[tasks] < 0.5:
        tasks = ""
    sure = tasks == "two" or "" in (fields.get("time"), fields.get("cpu"))
    if not sure and max(share["time"], share["cpu"], share["two"]) > 0:
        # Of several kinds of events, each in its own form: the most.
        best = max(("time", "cpu", "two"), key=lambda name: share[name])
        tasks, sure = "two" if best == "two" else tasks, True
        fields |= {} if best == "two" else {best: ""}
    if sure and fields.get("event") == "":
        fields |= {"period": "?"}  # tracepoints have none by default, and may come later, or first
    mark = b"/" if tasks == "two" else b"[" if fields.get("cpu") == "" else b""
    if not mark and "" in (fields.get("time"), fields.get("event")):
        mark = b":"
    rest = _REST if sure or fields.get("event") == "" else _ONLY_STACK
    return Form(
        _expression(_OWN_NAME if own else _NAME, tasks, fields, rest),
        _expression(_PLAIN_NAME, tasks, fields, rest + rb"\n\t"),
        mark,
        sure,
        own or share["comm"] >= 0.5,
        True,
    )


def _present(header: re.Match[bytes], *, narrow: bool) -> Iterator[str]:
    """
    Names of the fields of a header.

    :param narrow: what perf pads with is lost.
    """
    comm, pid, tid, cpu, time, period, event, _ = header.groups()
    if pid and not tid and not cpu and not time and not narrow:
        # Of two numbers one may be a comm's, and one alone a period: it has more room.
        begin = header.end(1) + 1 if comm else 0
        if period and header.end(6) - header.end(2) <= _PERIOD_WIDTH:
            period = b""
        elif not period and header.end(2) - begin >= _PERIOD_WIDTH:
            pid, period = b"", pid
    if comm and comm.strip():
        yield "comm"
    if pid:
        yield "two" if tid else "one"
    for name, value in zip(_FIELDS, (cpu, time, period, event), strict=True):
        if value:
            yield name


def is_perf_text(head: bytes) -> bool:
    """
    True if a text that begins like this is ``perf script``'s: with stacks of addresses and what
    they are in, or with headers that have a task, a time and an event each. An Oops has words of
    the kernel's stack below something with a colon, too; most of it is no sample.
    """
    head, reading = head[:_HEAD], Reading()
    samples = list(read_samples(io.BytesIO(head), reading))
    stacks = sum(map(_has_stack, samples)) * (2 * reading.unread_bytes <= len(head))
    whole = sum(bool(s.event and s.time) and s.tid != UNKNOWN for s in samples)
    return stacks > len(samples) // 4 or 2 * whole > head.count(b"\n") + 1


def _has_stack(sample: Sample) -> bool:
    headed = bool(sample.event or sample.time)
    return any(_is_known(line, headed=headed) for line in sample.stack.split(b"\n\t"))


# Samples


def read_samples(
    stream: IO[bytes],
    reading: Reading,
    progress: Callable[[int, int], None] | None = None,
    *,
    own: bool = False,
) -> Iterator[Sample]:
    """
    The samples of ``perf script`` text, in its order.

    :param reading: is kept up to date; what it counts is final when the samples are through.
    :param progress: called with (bytes read, samples read) after every chunk.
    :param own: it is straight out of perf: comms may have newlines, and no other lines are in it.
    :raises NotPerfText: most of it is something else.
    """
    rest, continued = b"", False
    blocks = _Blocks(reading, own=own)
    for size, chunk in _chunks(stream, reading):
        text = rest + chunk
        if blocks.form is None:
            text = text.removeprefix(_MARK)
        if blocks.form is None and len(text) < _HEAD:
            rest = text
            continue
        end = text.rfind(b"\n\n")
        cut = end < 0 and len(text) > _LONG
        if cut:
            end = text.rfind(b"\n")
        if end < 0:
            rest = text
            continue
        yield from blocks.read(text[:end], continued=continued)
        rest, continued = text[end:].lstrip(b"\n"), cut
        if progress is not None:
            progress(size, reading.samples)
    yield from blocks.read(rest, continued=continued)
    yield from blocks.close()


def _chunks(stream: IO[bytes], reading: Reading) -> Iterator[tuple[int, bytes]]:
    """
    The text in pieces, without what a line has beyond its bound, which is counted, and without CR;
    and how many bytes were read so far.
    """
    size = length = 0  # in all, and of the line that the last piece ended in
    held = b""
    while chunk := stream.read(_CHUNK):
        size += len(chunk)
        first, last = chunk.find(b"\n"), chunk.rfind(b"\n")
        more = first if first >= 0 else len(chunk)
        excess = min(max(length + more - MAX_LINE_BYTES, 0), more)
        length = len(chunk) - last - 1 if first >= 0 else length + more
        if excess:
            reading.unread_bytes += excess
            chunk = chunk[: more - excess] + chunk[more:]
        if reading.unread_bytes > max(MAX_UNREAD_BYTES, size // 2):
            raise NotPerfText(f"{reading.unread_bytes >> 20} MiB of it fit no sample of perf's")
        if b"\r" in chunk or held:
            chunk = held + chunk
            held = b"\r" if chunk.endswith(b"\r") else b""
            chunk = chunk[: len(chunk) - len(held)].replace(b"\r\n", b"\n")
        yield size, chunk
    if held:
        yield size, held


class _Blocks:
    """The samples of a text, block by block: what is between empty lines."""

    def __init__(self, reading: Reading, *, own: bool) -> None:
        self.form: Form | None = None
        self._reading, self._own = reading, own
        self._record = _OWN_RECORD if own else _RECORD
        self._pending = b""  # the begin of a comm that has an empty line in it
        # Of the sample that is open: its header (of a text without any, none), lines that are no
        # frames, and frames.
        self._open = False
        self._header: re.Match[bytes] | None = None
        self._loose: list[bytes] = []
        self._frames: list[bytes] = []

    def read(self, text: bytes, *, continued: bool) -> Iterator[Sample]:
        """
        The samples of a piece of text, but for the last, which may go on.

        :param continued: it begins in a block.
        """
        if self.form is None:
            self.form = learn(text, own=self._own)
        for block in text.split(b"\n\n"):
            if self._pending:
                joined, known = self._pending + b"\n\n" + block, self.form
                if known and _whole(known.plain, block) and not self._begins(joined):
                    # No comm's begin, but text that fits nowhere; this sample is not part of it.
                    self._unread(self._pending)
                else:
                    block = joined
                self._pending = b""
            elif not (block := block.strip(b"\n")):
                continue
            stack_follows = self._open and not self._frames and _FRAME.match(block)
            if not continued and not stack_follows:
                yield from self._closed()
            continued = False
            if not self._open and self.form and (match := _whole(self.form.plain, block)):
                self._reading.samples += 1
                yield _sample(match, match[8].strip(), block[match.end() :], self.form)
            else:
                yield from self._lines(block)

    def close(self) -> Iterator[Sample]:
        """The last sample."""
        self._unread(self._pending)
        yield from self._closed()

    def _unread(self, line: bytes) -> None:
        self._reading.unread_bytes += len(line)

    def _begins(self, text: bytes, at: int = 0) -> re.Match[bytes] | None:
        """A header there."""
        form = self.form
        if form is None or form.header is None or form.mark not in text[at : at + _NEAR]:
            return None
        match = form.header.match(text, at)
        return match if match and match.end() > at else None

    def _lines(self, block: bytes) -> Iterator[Sample]:
        """Records, samples of one line, foreign lines, comms with newlines."""
        at = 0
        sure = self.form is not None and self.form.sure
        while at < len(block):
            end = block.find(b"\n", at)
            end = end if end >= 0 else len(block)
            line, first = block[at:end], block[at : at + 1]
            is_frame = self._is_frame(line)
            if is_frame and self._open and (self._frames or first == b"\t" or not sure):
                self._frame(line)
            elif header := self._header_at(block, at, line):
                yield from self._closed()
                self._open, self._header = True, header
                end = header.end()
            elif record := self._record_at(block, at, line):
                yield from self._closed()
                _note(record, self._reading)
                end = record.end()
            elif line.startswith(b"#"):
                pass  # what perf says of the recording, or another program
            elif is_frame and (self._open or (self.form and self.form.header is None)):
                self._open = True
                self._frame(line)
            elif self._open and ((self._frames and first in b" \t|") or _SOURCE.match(line)):
                pass  # more fields of the same sample, or of its frame
            elif self._open and not self._frames:
                self._loose.append(line)
            elif self._own and not self._open and len(block) - at <= _MAX_ODD:
                self._pending = block[at:]
                return
            else:
                self._unread(block[at : end + 1])
            at = end + 1

    def _is_frame(self, line: bytes) -> bool:
        if self.form is not None and not self.form.chains:
            return False
        return bool(_FRAME.match(line) or (self._open and _TRIMMED.match(line)))

    def _header_at(self, block: bytes, at: int, line: bytes) -> re.Match[bytes] | None:
        form = self.form
        # A comm with newlines goes on in the next line.
        near = block[at : at + _NEAR] if self._own else line
        if form is None or form.mark not in near:
            return None
        if not form.sure and self._frames and line[:1] in b" \t":
            return None
        return self._begins(block, at)

    def _record_at(self, block: bytes, at: int, line: bytes) -> re.Match[bytes] | None:
        if b"PERF_RECORD_" not in (block[at : at + _NEAR] if self._own else line):
            return None
        return self._record.match(block, at)

    def _frame(self, line: bytes) -> None:
        # -F phys_addr prints a number after the frames.
        if not (self._frames and _BARE.match(line) and b" " in self._frames[0]):
            self._frames.append(line.strip())

    def _closed(self) -> Iterator[Sample]:
        """The sample that is open, if one is."""
        if not self._open or self.form is None:
            return
        header, frames, loose = self._header, self._frames, self._loose
        self._open, self._header, self._frames, self._loose = False, None, [], []
        rest = header[8] if header else b""
        if frames:
            # A tracepoint's text may have newlines of its own before the frames.
            rest, stack = b"\n".join((rest, *loose)), b"\n\t".join(frames)
        else:
            for line in loose:
                self._unread(line + b"\n")
            stack = _single(rest, own=self._own)
        if header is not None and not (stack or self.form.sure):
            self._unread(header[0] + b"\n")
            return
        self._reading.samples += 1
        if header is None:
            yield Sample(b"", UNKNOWN, UNKNOWN, b"", None, b"", b"", stack)
        else:
            yield _sample(header, rest.strip(), stack, self.form)


def _whole(plain: re.Pattern[bytes] | None, block: bytes) -> re.Match[bytes] | None:
    """The header of a block that is a sample, and is followed by frames alone."""
    match = plain.match(block) if plain is not None else None
    if match is None or not _FRAME.match(block, match.end() - 1):
        return None
    frames = block.count(b"\n", match.end())
    return match if frames == block.count(b"\n\t", match.end()) else None


def _single(rest: bytes, *, own: bool) -> bytes:
    """The stack of one frame that follows an event in its line."""
    match = _SINGLE.match(rest)
    # An instruction's address follows one more space than that of data.
    if match and match.start(1) == 1 and match[1].startswith(b" "):
        return b""
    match = match or _SINGLE_UNPADDED.match(rest)
    stack = match[1].strip() if match else b""
    # perf pads what it prints: this is no instruction's.
    return b"" if own and stack == rest.strip() and not rest.startswith(b"  ") else stack


def _sample(header: re.Match[bytes], rest: bytes, stack: bytes, form: Form) -> Sample:
    comm, pid, tid, _, time, period, event, _ = header.groups()
    number = int(pid) if pid else UNKNOWN
    task = int(tid) if tid else number
    name = (comm or b"").strip(b" ")
    if not form.named and number != UNKNOWN:
        name = b":%d" % task
    return Sample(
        name,
        number,
        task,
        time or b"",
        int(period) if period else None,
        event or b"",
        rest,
        stack,
    )


def _note(record: re.Match[bytes], reading: Reading) -> None:
    before, kind, words = record.groups()
    if kind.startswith(b"LOST") and (lost := _LOST.search(words)):
        reading.lost += int(lost[1])
    elif kind == b"FORK" and reading.on_fork is not None and (fork := _FORK.search(words)):
        reading.on_fork(int(fork[1]), int(fork[2]))
    elif kind == b"COMM" and (comm := _COMM.match(words)):
        executed, name, pid = comm[1], comm[2], int(comm[3])
        if not executed and name == WAITING:
            reading.forked.add(pid)
        elif executed and not reading.begun and pid in reading.forked:
            recorded = _RECORDED.search(before)
            reading.begun = recorded[1] if recorded else b""


def frame(line: bytes) -> tuple[int, str, str] | None:
    """
    (address, symbol, DSO) of a line of a stack, without its tab; None for what belongs to the name
    before it. The symbol is empty if perf has no name for it, the DSO if it is not printed, as of
    what is inlined: that is in the DSO of the frame around it, which has the same address.
    """
    match = _ADDRESS.match(line)
    if not match:
        return None
    name, dso = _parted(line[match.end() :].rstrip())
    symbol = _OFFSET.sub(b"", name).decode("utf-8", "backslashreplace")
    return (
        int(match[1], 16),
        "" if symbol == "[unknown]" else symbol,
        _OFFSET.sub(b"", dso).decode("utf-8", "backslashreplace"),
    )


def _parted(name: bytes) -> tuple[bytes, bytes]:
    """
    (symbol, DSO): the last parentheses are those of the DSO, in which there may be more. A DSO has
    no tab; a symbol may have anything.
    """
    depth = 0
    for match in reversed([*_PARENTHESES.finditer(name)] if name.endswith(b")") else []):
        depth += 1 if match[0] == b")" else -1
        if depth == 0:
            at = match.start()
            if (at and name[at - 1 : at] != b" ") or b"\t" in name[at:]:
                break
            dso = name[at + 1 : -1]
            return name[:at].rstrip(), b"" if dso == b"inlined" else dso
    return name, b""
