# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope collect``: read a kernel and write a bundle."""

import argparse
import contextlib
import sys
from collections.abc import Container, Iterator
from dataclasses import asdict
from pathlib import Path

from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.opening.target import describe
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.prices import TO_READ_IT
from mmscope.reports.bundle import modes
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.outcome import Command
from mmscope.reports.bundle.redact import (
    Names,
    RedactingWriter,
    add_redact_options,
    wanted_names,
    write_map,
)
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.collect import Progress, collect
from mmscope.reports.collect.run_section import missing_sections
from mmscope.reports.commands.target_options import (
    SECTION_HELP,
    add_target_options,
    open_source,
    section_names,
)
from mmscope.reports.findings.findings_said import print_findings


def add_command(command: Command) -> None:
    """Declare ``collect``."""
    sub = command(
        "collect",
        run_collect,
        "read a kernel and write a bundle",
        "Read a kernel and write a bundle: a folder of CSV tables and datapackage.json. "
        "Without --core, --qemu or --proc-root it reads the live kernel.",
    )
    add_target_options(sub)
    sub.add_argument(
        "--only", type=section_names, default=(), metavar="SECTION,…", help=SECTION_HELP
    )
    sub.add_argument(
        "-o", "--output", type=Path, required=True, metavar="BUNDLE", help="folder to make"
    )
    sub.add_argument("--force", action="store_true", help="replace a bundle that is already there")
    sub.add_argument(
        "--no-findings", action="store_true", help="do not say what the tables mean; ask later"
    )
    sub.add_argument("--mode", **modes.OPTION)
    add_redact_options(sub)


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
    names = wanted_names(args)
    with Writer(args.output, replace=args.force, mode=args.mode) as writer:
        sections, notes = read(args, writer, names)
    write_map(names, args.redact_map)
    if not args.no_findings:
        print_findings(args.output)
    # What was left out of a dump on purpose does not make the reading incomplete.
    return missing_sections(expected(sections, args.only), bool(notes.keys() - {"left_out"}))


def read(
    args: argparse.Namespace, writer: Writer, names: Names | None
) -> tuple[list[SectionResult], dict[str, str]]:
    """Read what the options name into a bundle; how its sections fared, and notes about it."""
    source, name, notes = open_source(args)
    target = describe(source.prog, name) if isinstance(source, Memory) else describe_files(source)
    with progress_bar() as progress:
        sections = collect(
            source,
            target,
            RedactingWriter(writer, names, asdict(target) | notes) if names else writer,
            args.only,
            notes=notes,
            progress=progress,
            verbose=args.verbose,
        )
    return sections, notes


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
