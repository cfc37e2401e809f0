# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Running one section over a target.

It has a deadline, and what goes wrong in it becomes its status and one line of words.
"""

import contextlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from types import FrameType

from drgn import FaultError

from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.opening import UndeclaredError
from mmscope.drgn.opening.known_types import unlike_in
from mmscope.drgn.opening.target import describe
from mmscope.drgn.reading.memory_left import bounded_by_it
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import DeadlineExceeded, Memory
from mmscope.drgn.sections.section import Found, Section
from mmscope.drgn.tables.bounds import Machine, rows_that_cannot_be, told
from mmscope.drgn.tables.hostile_text import echo
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, say

RUN_AS_ROOT = re.compile("[;:] run as root$")


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """
    Raise :class:`DeadlineExceeded` in the block after so many seconds.

    By SIGALRM, so only in the main thread; a single read of the target is not interrupted.
    """

    def expire(signum: int, frame: FrameType | None) -> None:
        most = max(round(seconds, 1), 0.1)
        raise DeadlineExceeded(f"took longer than {most:g} s and was stopped")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def machine_of(source: Memory | Files) -> Machine:
    """The machine whose limits bound the values of a source."""
    if isinstance(source, Memory):
        return Machine.of(asdict(describe(source.prog, "")))
    with contextlib.suppress(Absent):
        return Machine.of(asdict(describe_files(source)))
    return Machine()


def run_section(
    spec: Section,
    source: Memory | Files,
    machine: Machine | None = None,
    *,
    verbose: bool = False,
) -> tuple[SectionResult, Found]:
    """
    Run one section; whatever happens in it, the answer is a status and the tables it has. Once more
    where the dump has to be reopened.

    :param machine: what its values are held against; by default what is known of any machine.
    """
    section, found = _run(spec, source, machine, verbose)
    if section.status in ("failed", "partial") and isinstance(source, Memory) and source.lost():
        source.open_anew()
        again, found_again = _run(spec, source, machine, verbose)
        if section.status == "failed" or again.status != "failed":
            return again, found_again
    return section, found


def _run(
    spec: Section, source: Memory | Files, machine: Machine | None, verbose: bool
) -> tuple[SectionResult, Found]:
    begin = time.monotonic()
    found = Found()
    status, message = "ok", None
    unlike = unlike_in(source.prog, spec.name) if isinstance(source, Memory) else []
    try:
        # A running kernel may have swap, and others to take memory from.
        dump = isinstance(source, Memory) and not source.live
        with deadline(spec.deadline), bounded_by_it() if dump else contextlib.nullcontext():
            if isinstance(source, Memory):
                found = spec.from_memory(source)
                found.notes += unlike
            else:
                found = spec.from_files(source)
            marks = [
                mark
                for table, rows in ((filled.table, filled.rows) for filled in found.tables)
                for mark in rows_that_cannot_be(
                    table.name, columns(table.row), rows, machine or Machine()
                )
            ]
            here = {(mark.table_name, mark.row_number, mark.column_name) for mark in marks}
            found.impossible = marks + [
                mark
                for mark in found.impossible
                if (mark.table_name, mark.row_number, mark.column_name) not in here
            ]
        found.notes += told(found.impossible)
        if found.notes:
            status = "partial"
        words = found.notes + found.unlisted + found.remarks
        message = " ".join("; ".join(words).split()) or None
    except Absent as reason:
        status, message = "absent", str(reason)
        if os.geteuid() == 0:
            message = message.replace(" (as root)", "")
            message = RUN_AS_ROOT.sub("; this root lacks a capability for it", message)
    except (Exception, DeadlineExceeded) as error:
        if verbose:
            echo(*traceback.format_exc().splitlines(), sep="\n", file=sys.stderr)
        status, message = "failed", "; ".join([explain(error), *unlike])
        # It may be kept (Memory.once()); what its frames hold is not to be.
        traceback.clear_frames(error.__traceback__)
    rows = sum(len(filled.rows) for filled in found.tables)
    seconds = round(time.monotonic() - begin, 3)
    return SectionResult(spec.name, status, seconds, rows, found.unreadable_bytes, message), found


def explain(error: BaseException) -> str:
    """One line for an error inside a section."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MemoryError):
        return "it takes more memory than is left here"
    if isinstance(error, FaultError):
        why = "" if "cut short" in text else ": damaged, or left out of the dump"
        return f"memory that it needs cannot be read ({text}){why}"
    if isinstance(error, (LookupError, AttributeError)):
        # A KeyError's words are quoted.
        said = re.sub("^'(.*)'$", r"\1", text)
        return f"this kernel's layout is not known here: {said}"
    if isinstance(error, (DeadlineExceeded, UndeclaredError, ValueError, NotImplementedError)):
        return text
    return f"{type(error).__name__}: {text}"


def missing_sections(sections: list[SectionResult], incomplete: bool) -> int:
    """Say on stderr what is missing; the exit code."""
    for section in sections:
        if section.status != "ok":
            say(f"{section.section}: {section.status}: {section.message}")
            incomplete = True
    return INCOMPLETE if incomplete else DONE
