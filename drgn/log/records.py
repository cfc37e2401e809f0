# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Lines that the kernel prints with many of its complaints: who was running, and the stack; and
records that were continued.

Cannot know: where several CPUs print at once and the log has no callers, whose line is whose.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from mmscope.drgn.text.kernel_log import LogRecord

LONGEST = 16 << 10  # characters; a record of the kernel has 1 KiB at most (PRINTKRB_RECORD_MAX)
# dump_stack_print_info() (lib/dump_stack.c); 6.1 does not print the UID.
CPU_LINE = re.compile(
    r"CPU: [0-9]+ (?:UID: [0-9]+ )?PID: ([0-9]{1,15}) Comm: (.*?) (?:Kdump: loaded )?"
    r"(?:Not tainted|Tainted: ).*",
    re.DOTALL,
)
# "? " before a function that may be left from another call. 3.10 and s390 have the address in
# front, powerpc that of the frame, too; arm says who called it; decode_stacktrace.sh adds the line.
# Before 4.9 the name of a stack is in the line of its first frame.
_AT = r"\+0x[0-9a-f]+/0x[0-9a-f]+"
_SOURCE = r"[\w./-]+\.(?:[chS]|rs):[0-9]+(?: \(discriminator [0-9]+\))?"
_SOURCES = rf"{_SOURCE}(?: {_SOURCE})*"  # of what is inlined there, too
_MODULE = r"(?: \[([\w-]+)[^\]]*\])?"
STACK = re.compile(
    r" *(?:<[A-Z]{3}> +)?(?:\(?\[<?[0-9a-fx]+>?\] ){0,2}(\? )?\(?([A-Za-z_][\w.]*)"
    rf"(?:{_AT}{_MODULE}|{_MODULE}\)? from .{{0,40}}?[\w.]+{_AT}(?: \[[^\]]*\])?"
    rf"|(?= \({_SOURCES}\)))\)?(?: {_SOURCES}| \({_SOURCES}\)(?: [\w-]+)?| \(unreliable\))? *"
)


def same_caller(one: str | None, other: str | None) -> bool:
    """True if two records may be of one task."""
    return one is None or other is None or one == other


def seconds_of(record: LogRecord) -> float | None:
    return None if record.nanoseconds is None else record.nanoseconds // 1000 / 1e6


def whole_records(records: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """The kernel's own records (facility 0), each with what continues it."""
    return (record for record in _joined(records) if record.facility in (None, 0))


def _joined(records: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """
    Records with what continues them: another CPU's record may lie between (``LOG_CONT``,
    ``vprintk_store()``).
    """
    waiting: list[LogRecord] = []
    for record in records:
        for number, earlier in reversed([*enumerate(waiting)]):  # the last of its caller
            joined = len(earlier.text) + len(record.text) <= LONGEST
            if record.continues and record.caller == earlier.caller and joined:
                waiting[number] = replace(earlier, text=earlier.text + record.text)
                break
        else:
            waiting.append(record)
            if len(waiting) > 8:  # what would continue it follows soon
                yield waiting.pop(0)
    yield from waiting
