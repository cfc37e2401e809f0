# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Running the sections over a target and writing what they found as a bundle.

Each section is on its own: it has a deadline, and what goes wrong in it becomes its status and one
line of words, while the others go on.
"""

import contextlib
import datetime
import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from bounds import TABLE as IMPOSSIBLE
from bounds import Impossible, Machine, rows_that_cannot_be, told
from drgn import FaultError
from rows import MOST_PAGES, columns
from target import Target, describe
from zones import Zone, read_zoneinfo

from reports.bundle import Section, Writer
from reports.reading import (
    Absent,
    DeadlineExceeded,
    Files,
    Found,
    Memory,
    SectionSpec,
    page_size,
)
from reports.redact import RedactingWriter
from reports.sections import SECTIONS

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
    spec: SectionSpec,
    source: Memory | Files,
    machine: Machine | None = None,
    *,
    verbose: bool = False,
) -> tuple[Section, Found]:
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
            for name, _, row_type, table in found.tables:
                found.impossible += rows_that_cannot_be(
                    name, columns(row_type), table, machine or Machine()
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
    rows = sum(len(each[3]) for each in found.tables)
    seconds = round(time.monotonic() - begin, 3)
    return Section(spec.name, status, seconds, rows, found.unreadable_bytes, message), found


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
) -> list[Section]:
    """
    Run the sections and write the bundle; returns how they fared.

    :param only: names of sections; all of them if empty.
    :param notes: more to say about the target, for ``datapackage.json``.
    """
    sections = []
    machine = Machine.of(asdict(target))
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
        for name, title, row_type, rows in found.tables:
            writer.table(name, title, row_type, rows, section=spec.name)
        for name, title, unit, stacks in found.folded:
            writer.folded(name, title, stacks, unit=unit, section=spec.name)
        marks += found.impossible
        sections.append(section)
    if marks:
        writer.table(IMPOSSIBLE, "Values that cannot be", Impossible, marks, section="sections")
    writer.finish({**asdict(target), **(notes or {})}, sections)
    return sections


def describe_files(files: Files) -> Target:
    """
    What a tree of text files says about the machine; what it does not say is None.

    :raises Absent: it has no /proc/zoneinfo, so it is no such tree.
    """
    try:
        zones = read_zoneinfo(files.read("proc/zoneinfo"))
    except ValueError:
        zones = []  # its section will say why
    total = sum(zone.present_pages for zone in zones)
    marked = rows_that_cannot_be("zones", columns(Zone), zones, Machine())
    if any(mark.column_name == "present_pages" for mark in marked) or total > MOST_PAGES:
        total = 0  # of a damaged text, unknown
    here = files.root.resolve() == Path("/")

    def first(*paths: str) -> str | None:
        for path in paths:
            with contextlib.suppress(OSError):
                return files.open(path).strip()
        return None

    version = (first("proc/version") or "").split()
    kernel = os.uname() if here else None
    seconds = re.match(r"[0-9]{1,12}(\.[0-9]+)? ", first("proc/uptime") or "")
    taken = time.time() if here else (files.root / "proc/zoneinfo").stat().st_mtime
    return Target(
        kind="files",
        release=first("proc/sys/kernel/osrelease") or (version[2] if len(version) > 2 else None),
        architecture=kernel.machine if kernel else None,
        page_size=os.sysconf("SC_PAGE_SIZE")
        if here
        else page_size(first("proc/meminfo") or "", sum(zone.managed_pages for zone in zones)),
        hostname=kernel.nodename if kernel else first("proc/sys/kernel/hostname", "hostname"),
        captured_at=datetime.datetime.fromtimestamp(int(taken), datetime.UTC).isoformat(),
        uptime_seconds=float(seconds.group()) if seconds else None,
        total_pages=total or None,
        online_cpus=os.cpu_count() if here else None,
        source=str(files.root) if here else files.root.name,
    )
