# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Records of the kernel's log as text has them: /dev/kmsg, what ``dmesg`` wrote, a journal's lines.

Costs a look at each line. Of a running host every record is copied out of the kernel, one a read.

Cannot know: of ``dmesg``'s text, whether a line is the kernel's or was written to /dev/kmsg by a
program, unless the text has levels (``dmesg -r``, ``dmesg -x``), nor which lines lay between that
are gone; of a record in several lines, where it ends.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

MOST_RECORDS = 200_000  # that are looked at: the last ones
LONGEST_RECORD = 8 << 10  # bytes of a read of /dev/kmsg; PRINTK_MESSAGE_MAX is 2 KiB
CPU = 1 << 31  # of caller_id: a CPU, not a task

FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron"),
    *("authpriv", "ftp"),
)
LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")


@dataclass(frozen=True)
class LogRecord:
    """
    A record, as ``struct printk_info`` (kernel/printk/printk_ringbuffer.h) describes one.

    :ivar nanoseconds: since boot, by the kernel's local clock.
    :ivar caller: ``T12``, a task, or ``C1``, a CPU that was in no task.
    :ivar continues: it goes on where another of the same caller ended (``LOG_CONT``).
    """

    sequence: int | None
    nanoseconds: int | None
    level: int | None
    facility: int | None
    caller: str | None
    continues: bool | None
    text: str


@dataclass(frozen=True)
class Log:
    """
    Records, the oldest first.

    :ivar overwritten: records that were there before the first; None: this source does not say.
    :ivar lost: records between these whose text is gone.
    :ivar left_out: older records that were not looked at.
    """

    records: list[LogRecord]
    overwritten: int | None = None
    lost: int = 0
    left_out: int = 0


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


def read_kmsg(path: str | os.PathLike[str]) -> Log:
    """
    All records of a running kernel, without waiting for the next.

    ``devkmsg_read()`` (kernel/printk/printk.c): EPIPE says that records were overwritten meanwhile.

    :raises OSError: it cannot be opened, or is no device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
            raise OSError(22, "is not the kernel's log", os.fspath(path))
        return gather(_kmsg_reads(descriptor))
    finally:
        os.close(descriptor)


def _kmsg_reads(descriptor: int) -> Iterator[bytes]:
    # A kernel that logs as fast as it is read would never end.
    for _ in range(8 * MOST_RECORDS):
        try:
            read = os.read(descriptor, LONGEST_RECORD)
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue
        if not read:
            return
        yield read


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


# "<6>", "kern  :info  : " or a journal's words; "[    1.234567]" or a date; "[    T1]".
_PREFIX = re.compile(
    r"(?:<(?P<priority>[0-9]{1,5})>"
    r"|(?P<facility>[a-z]{3,8}) *:(?P<level>[a-z]{3,6}) *: "
    r"|(?P<journal>[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}(?:\.[0-9]+)? \S+ kernel: ))?"
    r"(?:\[ *(?P<seconds>[0-9]{1,12})\.(?P<micro>[0-9]{6})\]"
    r"|\[(?P<date>[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4})\])?"
    r"(?:\[ *(?P<caller>[TC][0-9]{1,10})\])?"
    r"(?(seconds) |(?(date) |(?(caller) |)))"
)


def parse_dmesg(text: str) -> Log:
    """
    The kernel's log as ``dmesg`` or syslog(2) writes it, also with ``-r``, ``-x`` or ``-T``, as
    ``makedumpfile --dump-dmesg`` does, and lines of ``journalctl -k``.

    A line without a prefix belongs to the record before it, unless no line has one. With ``-T``
    the times are not known.

    :raises ValueError: it is empty.
    """
    if not text.strip():
        raise ValueError("the kernel's log is empty")
    lines = (text[:-1] if text.endswith("\n") else text).split("\n")
    found: list[tuple[re.Match[str], list[str]]] = []
    prefixed, width = False, 0
    for line in lines:
        match = _PREFIX.match(line)
        assert match is not None  # everything in it is optional
        if match.end() == 0 and prefixed:
            _, texts = found[-1]
            texts.append(line[width:] if not line[:width].strip() else line)
            continue
        prefixed, width = prefixed or match.end() > 0, match.end()
        found.append((match, [line[match.end() :]]))
    return last_records(Log([_printed(match, "\n".join(texts)) for match, texts in found]))


def _printed(match: re.Match[str], text: str) -> LogRecord:
    level = facility = nanoseconds = None
    if match["priority"]:
        facility, level = divmod(int(match["priority"]), 8)
    elif match["facility"] in FACILITIES and match["level"] in LEVELS:
        facility, level = FACILITIES.index(match["facility"]), LEVELS.index(match["level"])
    if match["seconds"]:
        nanoseconds = int(match["seconds"]) * 10**9 + int(match["micro"]) * 1000
    return LogRecord(None, nanoseconds, level, facility, match["caller"], None, text)
