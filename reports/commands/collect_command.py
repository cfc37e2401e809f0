# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope collect``: read a kernel and write a bundle."""

import argparse
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.opening import TargetError
from mmscope.drgn.opening.target import describe
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.given_files import GivenFiles
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.prices import TO_READ_IT
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.hostile_text import echo, visible
from mmscope.drgn.text.page_owner_series import read_series
from mmscope.drgn.text.text_source import TextError
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.options import Command, add_output, add_redact, option, positive
from mmscope.reports.bundle.outcome import DONE, UsageError, say
from mmscope.reports.bundle.redact import (
    Names,
    RedactingWriter,
    wanted_names,
    write_map,
)
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import Beside, Progress, collect
from mmscope.reports.collect.run_section import missing_sections
from mmscope.reports.commands.target_options import (
    SECTION_HELP,
    add_target_options,
    open_source,
    section_names,
)
from mmscope.reports.findings.findings_said import print_findings
from mmscope.reports.inputs.given import Given, gather
from mmscope.reports.watch import page_owner


def add_command(command: Command) -> None:
    """Declare ``collect``."""
    sub = command(
        "collect",
        run_collect,
        "read a kernel and write a bundle",
        "Read a kernel and write a bundle: a folder of CSV tables and datapackage.json. PATHs are "
        "what there is: a vmcore, a sosreport or another folder or archive, logs, profiles, files "
        "of /proc; - is standard input. Several are one bundle. Without any, and without --core, "
        "--qemu or --proc-root, it reads the live kernel.",
    )
    sub.add_argument("paths", nargs="*", metavar="PATH", help="what to read, whatever it is")
    add_target_options(sub)
    option(sub, "--only SECTION,…", SECTION_HELP, section_names, ())
    add_output(sub, required=True)
    sub.add_argument(
        "--no-findings", action="store_true", help="do not say what the tables mean; ask later"
    )
    option(
        sub,
        "--deadline S",
        "time that all sections may take, each at most half of what is left; what is not read "
        "by then is said. Opening the target comes before",
        positive,
    )
    add_redact(sub)


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Progress on a terminal; silence in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as ProgressBar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with ProgressBar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening", total=None)

        def show(section: str, title: str, done: int, total: int) -> None:
            what = f"{title}: struct pages" if total else title
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


def run_collect(args: argparse.Namespace) -> int:
    given = gather(args.paths, everything=args.all)
    with given.open_files:
        for words in (*given.said, *given.refused):
            say(words)
        made = write_case(args, given)
    if not args.no_findings:
        print_findings(args.output)
    # A pipe's reader wants the findings alone.
    if sys.stdout.isatty():
        case = shlex.quote(str(args.output))
        echo("", f"Written to {visible(case)}. Next: mmscope why {visible(case)}", sep="\n")
    # What was left out of a dump on purpose does not make the reading incomplete.
    missing = (
        bool(made.notes.keys() - {"left_out", "assumed"}) or bool(given.refused) or made.incomplete
    )
    sections = expected(made.sections, args.only)
    if args.paths and not made.of_memory:
        # All that a machine has is not in what was given.
        without = [section for section in sections if section.status != "absent"]
        if absent := len(sections) - len(without):
            say(f"{plural(absent, 'section has', 'sections have')} nothing in what was given")
        sections = without
    return missing_sections(sections, missing)


@dataclass
class Made:
    """
    A bundle that was written.

    :ivar of_memory: it is of a kernel's memory. :ivar incomplete: a profile in it is not whole.
    """

    sections: list[SectionResult]
    notes: dict[str, str]
    of_memory: bool
    incomplete: bool = False


def write_case(args: argparse.Namespace, given: Given) -> Made:
    """
    Write a bundle of what the options name, and what was given.

    :raises TargetError: there is nothing to read. :raises UsageError: the options do not fit.
    """
    _check(args, given)
    names = wanted_names(args)
    with Writer(args.output, replace=args.force, mode=args.mode) as writer:
        made = read(args, writer, names, given)
    if given.profiles:
        made.incomplete = _add_profiles(args, given)
    write_map(names, args.redact_map)
    return made


def _add_profiles(args: argparse.Namespace, given: Given) -> bool:
    """Add the recordings that were given; true if one of them is not whole."""
    # A tenth of a start, which most do not need.
    from mmscope.perf.perf_events import RecordError
    from mmscope.reports.commands.record_command import add_given

    incomplete = False
    for again, name in given.profiles:
        try:
            incomplete |= add_given(args.output, Path(again), name, args.mode) != DONE
        except (UsageError, RecordError) as error:
            given.refused.append(str(error).replace(again, name))
            say(given.refused[-1])
            incomplete = True
    return incomplete


def _check(args: argparse.Namespace, given: Given) -> None:
    if given.bundles:
        raise UsageError(f"{given.bundles[0]}: is a bundle already: mmscope findings, show, report")
    if given.core is not None:
        if args.core is not None or args.qemu is not None:
            raise UsageError(f"{given.core}: a vmcore, beside --core or --qemu: give one")
        args.core = given.core
    if args.paths and not (given.core or given.files or given.profiles or given.owners):
        empty = "" if given.refused else f"{args.paths[0]}: has no file that is known: "
        raise TargetError(
            f"{empty}nothing that was given can be read; 'mmscope help why' says what can"
        )
    if args.redact and given.profiles:
        raise UsageError("--redact: not with profiles; 'mmscope redact' does the whole bundle")


def read(args: argparse.Namespace, writer: Writer, names: Names | None, given: Given) -> Made:
    """Read what the options name, and what was given, into a bundle."""
    source, name, notes = _source(args, given)
    of_memory = isinstance(source, Memory)
    target = describe(source.prog, name) if isinstance(source, Memory) else describe_files(source)
    if given.owners and target.page_size is None:
        target = replace(target, page_size=os.sysconf("SC_PAGE_SIZE"))
        notes["assumed"] = f"page size {target.page_size}, as of this machine"
    if not target.source and given.names:
        target = replace(target, source=", ".join(given.names[:3]))
    more = Beside(files=given.files if of_memory else None, seconds=args.deadline)
    if given.owners:
        more.instead, more.write = (page_owner.SECTION,), _owners(given, target.page_size)
    with progress_bar() as progress:
        sections = collect(
            source,
            target,
            RedactingWriter(writer, names, asdict(target) | notes) if names else writer,
            args.only,
            notes=notes,
            progress=progress,
            verbose=args.verbose,
            more=more,
        )
    return Made(sections, notes, of_memory)


def _source(args: argparse.Namespace, given: Given) -> tuple[Memory | Files, str, dict[str, str]]:
    """A kernel's memory, or all text that there is as one tree."""
    files = given.files
    memory = args.core is not None or args.qemu is not None
    if memory or not args.paths:
        return open_source(args)
    if args.proc_root is not None:
        given.folders.append(Files(args.proc_root, args.all))
        files = given.files
    return files or GivenFiles(Path()), "", {}


def _owners(
    given: Given, page_size: int | None
) -> Callable[[Writer | RedactingWriter], list[SectionResult]]:
    """Write the tables of page_owner's files."""

    def write(writer: Writer | RedactingWriter) -> list[SectionResult]:
        begin = time.monotonic()
        try:
            series = read_series([again for again, _ in given.owners])
        except (TextError, OSError) as error:
            seconds = round(time.monotonic() - begin, 3)
            why = str(error)
            for again, name in given.owners:
                why = why.replace(again, name)
            return [SectionResult(page_owner.SECTION, "failed", seconds, 0, 0, why)]
        seconds = time.monotonic() - begin
        return [page_owner.write_tables(writer, series, page_size, seconds=seconds)[0]]

    return write


def expected(sections: list[SectionResult], asked_for: Container[str]) -> list[SectionResult]:
    """Sections without those that few kernels have, unless they are asked for."""
    from mmscope.drgn.sections.registry import SECTIONS

    return [
        section
        for section in sections
        if section.status != "absent"
        or not SECTIONS[section.section].optional
        or section.section in asked_for
        or TO_READ_IT in (section.message or "")
    ]
