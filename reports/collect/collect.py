# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Running the sections over a target and writing what they found as a bundle.

Each section is on its own: it has a deadline, and what goes wrong in it becomes its status and one
line of words, while the others go on.
"""

import contextlib
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import FrameType

from drgn import FaultError

from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.opening.target import Target, describe
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import DeadlineExceeded, Memory
from mmscope.drgn.sections.section import Found, Section
from mmscope.drgn.tables.bounds import (
    IMPOSSIBLE_VALUES,
    Impossible,
    Machine,
    rows_that_cannot_be,
    told,
)
from mmscope.drgn.tables.rows import columns
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.redact import RedactingWriter
from mmscope.reports.bundle.writer import Writer

# (section, its title, pages done, pages in all); pages are 0 where they are not known
Progress = Callable[[str, str, int, int], None]


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """
    Raise :class:`DeadlineExceeded` in the block after so many seconds.

    By SIGALRM, so only in the main thread; a single read of the target is not interrupted.
    """

    def expire(signum: int, frame: FrameType | None) -> None:
        raise DeadlineExceeded(f"took longer than {seconds:g} s and was stopped")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def machine_of(source: Memory | Files) -> Machine:
    """What the values of a source are held against."""
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
    Run one section; whatever happens in it, the answer is a status and the tables it has.

    :param machine: what its values are held against; by default what is known of any machine.
    """
    begin = time.monotonic()
    found = Found()
    status, message = "ok", None
    try:
        with deadline(spec.deadline):
            if isinstance(source, Memory):
                found = spec.from_memory(source)
            else:
                found = spec.from_files(source)
            for filled in found.tables:
                table = filled.table
                found.impossible += rows_that_cannot_be(
                    table.name, columns(table.row), filled.rows, machine or Machine()
                )
        found.notes += told(found.impossible)
        if found.notes:
            status = "partial"
        words = found.notes + found.unlisted + found.remarks
        message = " ".join("; ".join(words).split()) or None
    except Absent as reason:
        status, message = "absent", str(reason)
    except (Exception, DeadlineExceeded) as error:
        if verbose:
            traceback.print_exc()
        status, message = "failed", explain(error)
    rows = sum(len(filled.rows) for filled in found.tables)
    seconds = round(time.monotonic() - begin, 3)
    return SectionResult(spec.name, status, seconds, rows, found.unreadable_bytes, message), found


def explain(error: BaseException) -> str:
    """One line for an error inside a section."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FaultError):
        return f"memory that it needs cannot be read ({text}): damaged, or left out of the dump"
    if isinstance(error, (LookupError, AttributeError)):
        # A KeyError's words are quoted.
        said = re.sub("^'(.*)'$", r"\1", text)
        return f"this kernel's layout is not known here: {said}"
    if isinstance(error, (DeadlineExceeded, ValueError, NotImplementedError)):
        return text
    return f"{type(error).__name__}: {text}"


def collect(
    source: Memory | Files,
    target: Target,
    writer: Writer | RedactingWriter,
    only: Sequence[str] = (),
    *,
    notes: dict[str, str] | None = None,
    progress: Progress | None = None,
    verbose: bool = False,
) -> list[SectionResult]:
    """
    Run the sections and write the bundle; returns how they fared.

    :param only: names of sections; all of them if empty.
    :param notes: more to say about the target, for ``datapackage.json``.
    """
    # Imports every probe, which one that is run by itself need not.
    from mmscope.drgn.sections.registry import SECTIONS, riders

    sections = []
    machine = Machine.of(asdict(target))
    if isinstance(source, Memory):
        source.riders = riders
    marks: list[Impossible] = []
    for spec in SECTIONS.values():
        if only and spec.name not in only:
            continue
        if progress is not None:
            progress(spec.name, spec.title, 0, 0)
            if isinstance(source, Memory):
                source.progress = lambda done, total, spec=spec: progress(
                    spec.name, spec.title, done, total
                )
        section, found = run_section(spec, source, machine, verbose=verbose)
        for filled in found.tables:
            table = filled.table
            writer.table(table.name, table.title, table.row, filled.rows, section=spec.name)
        for name, title, unit, stacks in found.folded:
            writer.folded(name, title, stacks, unit=unit, section=spec.name)
        marks += found.impossible
        sections.append(section)
    if marks:
        values = IMPOSSIBLE_VALUES
        writer.table(values.name, values.title, values.row, marks, section="sections")
    writer.finish({**asdict(target), **(notes or {})}, sections)
    return sections
