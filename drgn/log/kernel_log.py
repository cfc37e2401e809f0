# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel's log: the ring buffer (``prb``) out of memory, /dev/kmsg of a running host, or all that
a copied tree has of it (``log_places``).

Costs reading it once: 128 KiB on most machines, some MiB on large ones.

Cannot know: what it had when its end met its beginning.
"""

import contextlib
import itertools
from dataclasses import replace

from drgn import FaultError

from mmscope.drgn.log.log_places import join, log_of_tree
from mmscope.drgn.log.records import seconds_of
from mmscope.drgn.reading.printk_ring import log_records
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_log import Log, last_records, read_kmsg
from mmscope.drgn.text.log_prefix import LEVELS

MOST_ROWS = 10_000
# Of the tables of what is in the log.
NOT_COMPARED = "it is of the kernel's log, whose events are numbered as they come"


@table(
    "kernel_log",
    "The kernel's log",
    empty="the log is empty",
    not_compared="it is a log: its records are numbered as they come",
)
class KernelLogRecord:
    """A record of the kernel's log."""

    number: int = column(key=True, help="the kernel's own; in text without: counted from 0")
    seconds: float | None = column(unit="s", help="since boot; empty: not in the text")
    level: str | None = column(holds="words", help="emerg, alert, crit, err, warn, … debug")
    facility: int | None = column(high=1 << 28, help="0: kernel; others: written to /dev/kmsg")
    caller: str | None = column(
        holds="kernel", help="T12: task 12; C1: CPU 1, no task; empty: not in the text"
    )
    text: str = column(holds="log", help="lines are separated by line feeds")
    date: str | None = column(
        since="0.3.0",
        default=None,
        holds="words",
        help="wall clock, as the log has it, at times without a year",
    )


def kernel_log(log: Log) -> list[KernelLogRecord]:
    """The last records of a log as rows."""
    first = max(len(log.records) - MOST_ROWS, 0)
    before = first + log.left_out
    return [
        KernelLogRecord(
            counted if record.sequence is None else record.sequence,
            seconds_of(record),
            None if record.level is None else LEVELS[record.level & 7],
            record.facility,
            record.caller,
            record.text,
            record.date,
        )
        for counted, record in enumerate(log.records[first:], before)
    ]


def log_of_memory(memory: Memory) -> Log:
    """
    The log out of memory, read once for all sections.

    :raises Absent: the kernel is built without it, or keeps it otherwise.
    :raises FaultError: it cannot be read.
    :raises ValueError: it is damaged.
    """
    try:
        return memory.once("kernel_log", lambda: log_records(memory.prog))
    except LookupError as error:
        why = "the kernel's log is of another form (CONFIG_PRINTK=n, or before 5.10)"
        raise Absent(f"{why}: {error}") from None


def join_logs(memory: Memory, files: Files) -> None:
    """Have the log of a dump joined with one that was given beside it, for all sections."""
    with contextlib.suppress(Absent, ValueError):
        given = log_of_files(files)
        with contextlib.suppress(Absent, FaultError, LookupError, ValueError):
            own = log_records(memory.prog)
            joined = join(given.records, own.records)
            given = replace(given, records=joined, lost=own.lost + given.lost, overwritten=None)
        memory.once("kernel_log", lambda: last_records(given))


def log_of_files(files: Files) -> Log:
    """
    The log of a running host, or of a copied tree, read once for all sections.

    :raises Absent: it is not there, or not for this user.
    :raises ValueError: it is empty.
    """
    if "kernel_log" not in files.kept:
        log, words = (_kmsg(files), []) if files.live else log_of_tree(files)
        files.kept |= {"kernel_log": log, "kernel_log_words": words}
    kept: Log = files.kept["kernel_log"]
    return kept


def _kmsg(files: Files) -> Log:
    path = files.root / "dev/kmsg"
    try:
        return read_kmsg(path)
    except FileNotFoundError:
        why = "no such file; a container has none, run on the host"
    except PermissionError:
        # check_syslog_permissions() (kernel/printk/printk.c)
        why = "only root may read it; run as root"
    except OSError as error:
        why = str(error.strerror)
    raise Absent(f"{path}: {why}")


# Clocks of CPUs differ (local_clock(), kernel/sched/clock.c); by so much none of them does.
BACKWARDS = 10 * 10**9


def times_apart(log: Log) -> list[str]:
    """Records of one boot that are far older than one before, or newer than one behind."""
    times = [record.nanoseconds for record in log.records if record.nanoseconds is not None]
    before = itertools.accumulate(times, max)
    behind = list(itertools.accumulate(reversed(times), min))[::-1]
    older = sum(time < most - BACKWARDS for time, most in zip(times, before, strict=True))
    newer = sum(time > least + BACKWARDS for time, least in zip(times, behind, strict=True))
    wrong = max(min(older, newer), _begun_anew(log))
    return [f"times of {plural(wrong, 'record')} run backwards, or are damaged"] if wrong else []


# Of the idle task, in which each CPU starts: its clock begins at 0.
IDLE_TASK = "T0"


def _begun_anew(log: Log) -> int:
    """Number of records at 0 behind later ones that no CPU that starts has written."""
    later = wrong = 0
    for record in log.records:
        caller = record.caller or IDLE_TASK
        wrong += bool(later and not record.nanoseconds and caller[0] == "T" and caller != IDLE_TASK)
        later = later or record.nanoseconds or 0
    return wrong


FACILITIES = 24  # LOG_NFACILITIES of syslog(3)


def facilities_apart(log: Log) -> list[str]:
    """Records of a facility that syslog has not, which /dev/kmsg takes (``devkmsg_write()``)."""
    odd = sum((record.facility or 0) >= FACILITIES for record in log.records)
    return [f"{plural(odd, 'record')} of a facility that there is not"] if odd else []


def missing(log: Log) -> list[str]:
    """The reasons why a log is not whole, but for its beginning."""
    lost = [f"lost or damaged: {plural(log.lost, 'record')}"] if log.lost else []
    return [*lost, *log.unread]


def beginning(log: Log) -> list[str]:
    """The beginning of a log, if it is not the boot, and what of a text is not the kernel's."""
    gone = (log.overwritten or 0) + log.left_out
    foreign = [f"left out: {plural(log.foreign, 'line')} of other programs"] if log.foreign else []
    if programs := sorted({kill.program for kill, _ in log.killed}):
        foreign.append(f"{' and '.join(programs)} ended a process to have memory, as it says")
    return [f"it begins {plural(gone, 'record')} after the boot"] * bool(gone) + foreign


def _found(log: Log) -> Found:
    rows = kernel_log(log)
    found = Found(notes=missing(log), remarks=beginning(log))
    older = len(log.records) + log.left_out - len(rows)
    found.unlisted += if_any(older, "{}", "older record")
    return found.add(KernelLogRecord, rows)


def kernel_log_from_memory(memory: Memory) -> Found:
    log = log_of_memory(memory)
    found = _found(log)
    found.notes += times_apart(log)
    found.remarks += facilities_apart(log)
    return found


def kernel_log_from_files(files: Files) -> Found:
    found = _found(log_of_files(files))
    found.remarks += files.kept.get("kernel_log_words", [])
    return found


KERNEL_LOG_SECTION = Section(
    name="kernel_log",
    title="The kernel's log",
    since="0.2.0",
    tables=tables_of(
        KernelLogRecord,
    ),
    intro="""
What the kernel printed, and what programs wrote to
[/dev/kmsg](https://docs.kernel.org/admin-guide/abi-testing.html), the oldest first: records of
another facility than 0 are theirs. The log is a ring: on a machine that runs for long, or prints
much, it does not reach back to the boot.
""",
    command=Command("the kernel's log", top=TOP),
    from_memory=kernel_log_from_memory,
    from_files=kernel_log_from_files,
    reads=(prices.KMSG,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("kernel_log")
