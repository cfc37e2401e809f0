# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Records of the kernel's log as text has them: /dev/kmsg, what ``dmesg`` wrote, a journal's lines.

Costs a look at each line. Of a running host every record is copied out of the kernel, one a read.

Cannot know: of ``dmesg``'s text, whether a line is the kernel's or was written to /dev/kmsg by a
program, unless the text has levels (``dmesg -r``, ``dmesg -x``), nor which lines lay between that
are gone; of a record in several lines, where it ends. Of text, the order of time where the lines
are in another one.
"""

import contextlib
import errno
import itertools
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmscope.drgn.text.log_lines import LogLines, Printed, newest_first
from mmscope.drgn.text.log_prefix import FACILITIES, LEVELS
from mmscope.drgn.text.program_kills import ProgramKill

MOST_RECORDS = 200_000  # that are looked at: the last ones
LONGEST_RECORD = 8 << 10  # bytes of a read of /dev/kmsg; PRINTK_MESSAGE_MAX is 2 KiB
CPU = 1 << 31  # of caller_id: a CPU, not a task


@dataclass(frozen=True)
class LogRecord:
    """
    A record, as ``struct printk_info`` (kernel/printk/printk_ringbuffer.h) describes one.

    :ivar nanoseconds: since boot, by the kernel's local clock.
    :ivar caller: ``T12``, a task, or ``C1``, a CPU that was in no task.
    :ivar continues: it goes on where another of the same caller ended (``LOG_CONT``).
    :ivar date: of the wall clock, as text has it.
    """

    sequence: int | None
    nanoseconds: int | None
    level: int | None
    facility: int | None
    caller: str | None
    continues: bool | None
    text: str
    date: str | None = None


@dataclass(frozen=True)
class Log:
    """
    Records, the oldest first.

    :ivar overwritten: records that were there before the first; None: this source does not say.
    :ivar lost: records between these whose text is gone.
    :ivar left_out: older records that were not looked at.
    :ivar foreign: lines of text that other programs wrote.
    :ivar killed: processes that these say they ended to have memory, and when.
    :ivar unread: lines of text that could not be read, and why.
    """

    records: list[LogRecord]
    overwritten: int | None = None
    lost: int = 0
    left_out: int = 0
    foreign: int = 0
    killed: tuple[tuple[ProgramKill, str | None], ...] = ()
    unread: tuple[str, ...] = ()


def caller_name(caller_id: int) -> str:
    """``print_caller()`` (kernel/printk/printk.c)."""
    return f"C{caller_id & ~CPU}" if caller_id & CPU else f"T{caller_id}"


def last_records(log: Log) -> Log:
    """The last of a long log."""
    more = max(len(log.records) - MOST_RECORDS, 0)
    return replace(log, records=log.records[more:], left_out=log.left_out + more)


# /dev/kmsg: info_print_ext_header(), msg_print_ext_body() (kernel/printk/printk.c).
_EXTENDED = re.compile(
    rb"([0-9]{1,10}),([0-9]{1,20}),([0-9]{1,17}),([^,;])(?:,caller=([TC][0-9]{1,10}))?(?:,[^;]*)?;"
    rb"([^\n]*)"
)


def parse_kmsg(read: bytes) -> LogRecord | None:
    """One record, as a read of /dev/kmsg gives it; None if it is something else."""
    match = _EXTENDED.match(read)
    if not match:
        return None
    priority, sequence, microseconds = (int(match[number]) for number in (1, 2, 3))
    # msg_add_ext_text(): what is not printable, and the backslash, are written out.
    text = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), match[6])
    return LogRecord(
        sequence,
        microseconds * 1000,
        priority & 7,
        priority >> 3,
        match[5].decode() if match[5] else None,
        match[4] == b"c",
        text.decode("utf-8", "backslashreplace"),
    )


class Kmsg:
    """
    /dev/kmsg, whose reads give a record each and do not wait for the next (``devkmsg_read()``,
    kernel/printk/printk.c).

    :param path: of the device.
    :param from_now_on: pass by the records that are there.
    :ivar overwritten: how often records were overwritten before they were read.
    :raises OSError: it cannot be opened, or is no device.
    """

    def __init__(self, path: str | os.PathLike[str], *, from_now_on: bool = False) -> None:
        self.overwritten = 0
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISCHR(os.fstat(self._file).st_mode):
                raise OSError(errno.EINVAL, "is not the kernel's log", os.fspath(path))
            if from_now_on:
                os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self.close()
            raise

    def reads(self, most: int) -> Iterator[bytes]:
        """
        Read up to the last record.

        :param most: reads, as a kernel that logs as fast as it is read would never end.
        """
        for _ in range(most):
            try:
                read = os.read(self._file, LONGEST_RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.overwritten += 1
                continue
            if not read:
                return
            yield read

    def of_kernel(self, most: int) -> Iterator[LogRecord]:
        """The kernel's own records of :meth:`reads`: a program's never have facility 0."""
        for record in map(parse_kmsg, self.reads(most)):
            if record is not None and record.facility == 0:
                yield record

    def close(self) -> None:
        """Stop reading."""
        os.close(self._file)


def read_kmsg(path: str | os.PathLike[str]) -> Log:
    """
    All records of a running kernel.

    :raises OSError: it cannot be read, or is no device.
    """
    with contextlib.closing(Kmsg(path)) as kmsg:
        return gather(kmsg.reads(8 * MOST_RECORDS))


def gather(reads: Iterable[bytes]) -> Log:
    """Records of /dev/kmsg; what is missing between their numbers is lost."""
    records: list[LogRecord] = []
    lost = 0
    for read in reads:
        record = parse_kmsg(read)
        if record is None:
            lost += 1
            continue
        if records and record.sequence is not None and records[-1].sequence is not None:
            lost += max(record.sequence - records[-1].sequence - 1, 0)
        records.append(record)
    return last_records(Log(records, records[0].sequence if records else None, lost))


_PRIORITY = re.compile(r"<([0-9]{1,5})>")
_LEVEL = re.compile(
    rf"\b(?:({'|'.join(FACILITIES)}) *[:.] *)?({'|'.join(LEVELS)})\b(?! *\[)",
)
# Behind the seconds ``dmesg -d`` has those since the record before.
_SECONDS = re.compile(r"\[ *([0-9]{1,12})\.([0-9]{3,9})(?: *<[^>]*>)?\]")
# Before the name is known it is localhost.
_HOST = re.compile(r"[0-9:]{8}\S* ([A-Za-z][\w.-]*) (?:kern\.\w+ )?kernel(?:\[[0-9]+\])?: ")
_CALLER = re.compile(r"\[ *([TC][0-9]{1,10})\]")
_KMSG = re.compile(r"([0-9]{1,5}),([0-9]{1,20}),([0-9]{1,17}),(.)(?:,caller=([TC][0-9]{1,10}))?")
_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,][0-9]+)? ?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = re.compile(
    rf"\b(?:({'|'.join(MONTHS)})|([0-9]{{1,2}})\u6708) +([0-9]{{1,2}}) "
    r"([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,][0-9]+)?(?: ([0-9]{4})\b)?"
)


def parse_dmesg(text: str) -> Log:
    """
    The kernel's log as text: what ``dmesg`` or syslog(2) wrote, in any of its forms, lines of a
    journal or of syslog, what a console, a container or a mail has of them (:mod:`log_lines`).

    A line without a prefix belongs to the record before it, unless no line has one.

    :raises ValueError: it is empty, or has no line of the kernel's.
    """
    if not text.strip():
        raise ValueError("the kernel's log is empty")
    lines = LogLines(text)
    records = _by_host(deque(lines, MOST_RECORDS))
    if not records and not lines.killed:
        why = "; ".join(lines.unread()) or "they are other programs'"
        raise ValueError(f"no line is the kernel's: {why}")
    return Log(
        _in_order([_printed(each) for each in records]),
        left_out=lines.records - len(records),
        foreign=lines.foreign,
        killed=tuple((kill, date_of(line)) for kill, line in lines.killed),
        unread=lines.unread() or (() if records else ("no line is the kernel's",)),
    )


def _in_order(records: list[LogRecord]) -> list[LogRecord]:
    """Records, the oldest first: where the newest is the first, as of ``journalctl -r``, turned."""
    times = [each.nanoseconds for each in records if each.nanoseconds is not None]
    dates = [each.date for each in records if each.date is not None]
    clock: Sequence[Any] = times or dates
    turned = newest_first(clock)
    if not turned and not any(other > one for one, other in itertools.pairwise(clock)):  # a second
        turned = newest_first([at for each in records if (at := _step(each.text)) is not None], 2)
    return records[::-1] if turned else records


# A call of the OOM killer, or an allocation that fails, prints these in this order.
_STEPS = (
    *(" invoked oom-killer: ", "CPU: ", "Mem-Info:", "Tasks state (memory", "[ pid", "[  pid"),
    *("oom-kill:constraint=", "Killed process ", "oom_reaper: reaped"),
)


def _step(text: str) -> int | None:
    return next((at for at, words in enumerate(_STEPS) if words in text), None)


def _by_host(records: Sequence[Printed]) -> list[Printed]:
    """Records of a syslog of several hosts, each host's by themselves; they have a call each."""
    hosts: dict[str, list[Printed]] = {}
    host = ""
    for record in records:
        if (found := _HOST.search(record.prefix)) and found[1] != "localhost":
            host = found[1]
        hosts.setdefault(host, []).append(record)
    return [record for of_host in hosts.values() for record in of_host]


def _printed(printed: Printed) -> LogRecord:
    prefix, text = printed
    level = facility = nanoseconds = sequence = caller = continues = None
    if kmsg := _KMSG.match(prefix):
        facility, level = divmod(int(kmsg[1]), 8)
        sequence, nanoseconds = int(kmsg[2]), int(kmsg[3]) * 1000
        caller, continues = kmsg[5], kmsg[4] == "c"
    elif priority := _PRIORITY.search(prefix):
        facility, level = divmod(int(priority[1]), 8)
    elif words := _LEVEL.search(prefix):
        level = LEVELS.index(words[2])
        facility = FACILITIES.index(words[1]) if words[1] else None
    for seconds in _SECONDS.finditer(prefix):  # a journal has its own before the kernel's
        nanoseconds = int(seconds[1]) * 10**9 + int(seconds[2].ljust(9, "0"))
    if (found := _CALLER.search(prefix)) and not caller:
        caller = found[1]
    return LogRecord(
        sequence, nanoseconds, level, facility, caller, continues, text, date_of(prefix)
    )


def date_of(prefix: str) -> str | None:
    """The date in a prefix as ISO 8601 has it, without the year where the text has none."""
    if iso := _ISO.search(prefix):
        return f"{iso[1]} {iso[2]}{iso[3] or ''}"
    if found := _DATE.search(prefix):
        month = MONTHS.index(found[1]) + 1 if found[1] else int(found[2])
        year = f"{found[5]}-" if found[5] else ""
        return f"{year}{month:02}-{int(found[3]):02} {found[4]}"
    return None
