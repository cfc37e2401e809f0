# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The ``mmscope`` command.

Exit codes: 0 done; 1 done, but sections are missing (which, and why, on stderr); 2 bad usage;
3 the target could not be opened. An error is one line that says what to do; ``-v`` adds the
traceback.
"""

import argparse
import contextlib
import gc
import io
import itertools
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from mmscope import __version__
from mmscope.drgn.free.pageblocks import set_pageblock_order
from mmscope.drgn.machine.file_tree import describe_files
from mmscope.drgn.opening.core_file import left_out, missing_bytes
from mmscope.drgn.opening.target import TargetError, describe, open_target, other_release
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.prices import TO_READ_IT
from mmscope.drgn.sections.registry import SECTIONS
from mmscope.drgn.sections.section import Filled
from mmscope.drgn.tables import display
from mmscope.drgn.tables.bounds import Machine, rows_that_cannot_be, told
from mmscope.drgn.tables.hostile_text import visible
from mmscope.drgn.tables.rows import columns
from mmscope.drgn.tables.terminal import FORMATS, MAX_ROWS, print_rows
from mmscope.drgn.text.text_source import TextError
from mmscope.perf.speedscope import speedscope
from mmscope.perf.stack_parts import load_known_frames
from mmscope.reports.bundle import modes
from mmscope.reports.bundle.bundle import Bundle, BundleError, SectionResult, Writer
from mmscope.reports.bundle.bundle_format import new_tables, not_written
from mmscope.reports.bundle.outcome import (
    BAD_USAGE,
    DONE,
    INCOMPLETE,
    NO_TARGET,
    UsageError,
    discard_output,
    say,
)
from mmscope.reports.bundle.redact import (
    Names,
    RedactingWriter,
    redact,
    redacted,
    undeclared,
    write_map,
)
from mmscope.reports.collect.collect import (
    Progress,
    collect,
    explain,
    machine_of,
    run_section,
)
from mmscope.reports.commands import page_owner_command, record_command
from mmscope.reports.commands.doctor import Check, PriceHere, checks, prices_here
from mmscope.reports.findings.findings_said import print_findings
from mmscope.reports.profiles import profiles

# What needs duckdb, jinja2 or pygal is imported where it is used: on the box `collect` and `show`
# must work with drgn, numpy and rich alone.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    # drgn reports missing symbols through logging; the command says it in its own line.
    logging.getLogger("drgn").addHandler(logging.NullHandler())
    # A terminal or pipe that is not UTF-8 gets what it can show, and the rest written out.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["record"]:
        # Whatever follows -- is somebody else's command line.
        return record_command.main(words[1:])
    if words[:1] == ["compare"]:
        # argparse would swallow it. No argument can hold a NUL.
        words = [VERSUS if word == "--" else word for word in words]
    parser = build_parser()
    args = parser.parse_args(words)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        discard_output()
        return DONE
    except KeyboardInterrupt:
        say("interrupted; nothing is left half-written")
        return 130
    except (TargetError, Absent, TextError, BundleError, UsageError, OSError) as error:
        if args.verbose:
            traceback.print_exc()
        if isinstance(error, OSError):
            say(f"{error.filename or 'output'}: {error.strerror}")
            discard_output()
        else:
            say(str(error))
        unopened = isinstance(error, (TargetError, Absent, TextError))
        return NO_TARGET if unopened else BAD_USAGE
    except ModuleNotFoundError as error:
        if args.verbose:
            traceback.print_exc()
        say(
            f"this needs {error.name}, which this Python does not have: pip install "
            "'mmscope[report]', or carry the bundle to where that is installed"
        )
        return BAD_USAGE
    except Exception as error:
        # What a section cannot do is its own affair and never comes here.
        if args.verbose:
            traceback.print_exc()
        say(f"{explain(error)}; -v shows where")
        return NO_TARGET


def build_parser() -> argparse.ArgumentParser:
    """All subcommands and their options."""
    parser = argparse.ArgumentParser(
        prog="mmscope",
        description="What Linux memory management was doing, and why it hurts: "
        "from a live kernel, a vmcore or /proc, as tables, findings and one HTML report.",
        epilog="Exit codes: 0 done; 1 done with sections missing; 2 bad usage; "
        "3 the target could not be opened.",
    )
    parser.add_argument("--version", action="version", version=f"mmscope {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], help: str, text: str = ""
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=text or help)
        sub.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
        sub.set_defaults(run=run)
        return sub

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
    sub.add_argument("--mode", **modes.OPTION)
    add_redact_options(sub)

    sub = command(
        "show",
        run_show,
        "print tables in the terminal",
        "Print a table of a bundle, or a section read from a target now. "
        "'mmscope show tables BUNDLE' lists the tables.",
    )
    sub.add_argument(
        "what", metavar="TABLE|SECTION", help="table of the bundle, or section to read"
    )
    sub.add_argument("bundle", nargs="?", type=Path, metavar="BUNDLE", help="bundle to read from")
    sub.add_argument(
        "--format",
        choices=(*FORMATS, *STACK_FORMATS),
        default="table",
        help="default: table; folded and speedscope: the stacks of profiles (all: 'profiles')",
    )
    sub.add_argument(
        "--reattribute",
        action="store_true",
        help="give samples where interrupts come back on to the caller (folded, speedscope)",
    )
    add_target_options(sub)
    page_owner_command.add_cull_options(sub)

    sub = command(
        "findings",
        run_findings,
        "say what is wrong, why it hurts and what next",
        "Ask a bundle every question that mmscope knows, and print what was found.",
    )
    sub.add_argument("bundle", type=Path, metavar="BUNDLE")
    sub.add_argument("-a", "--all", action="store_true", help="also what was checked and is not so")

    sub = command(
        "report",
        run_report,
        "draw a bundle as one HTML file",
        "Draw a bundle as one HTML file that opens anywhere, offline.",
    )
    sub.add_argument("bundle", type=Path, metavar="BUNDLE")
    sub.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), help="default: report.html"
    )
    sub.add_argument(
        "--baseline",
        type=Path,
        metavar="BUNDLE",
        help="say what changed against this one: the machine before, or another machine",
    )
    sub.add_argument("--mode", **modes.OPTION)
    add_redact_options(sub)

    sub = command(
        "redact",
        run_redact,
        "replace the names in a bundle, to pass it on",
        "Write a bundle that has numbers (comm-17, host-1) for the names of processes, functions "
        "of programs, commands, cgroups, hosts, files and labels; the same number for the same "
        "name everywhere, in all bundles that are given together. What the kernel says of itself "
        "stays: its release, symbols and modules, threads such as kswapd0, settings, addresses, "
        "pids and times.",
    )
    sub.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="OUT",
        help="bundle to make; of several, the folder for bundle-1, bundle-2, …",
    )
    sub.add_argument("--force", action="store_true", help="replace a bundle that is already there")
    sub.add_argument("--mode", **modes.OPTION)
    sub.add_argument("--redact-map", type=Path, metavar="FILE", help=REDACT_MAP_HELP)

    sub = command(
        "compare",
        run_compare,
        "hold bundles against others: mmscope compare A… -- B…",
        "Hold bundles against others. With several on a side, each is a host of a group, and the "
        "medians and ranges of both groups are shown; several readings of one boot of a host are "
        "taken together, and its counters over the time between them. With one on each side, what "
        "changed most follows.",
    )
    sub.usage = (
        "mmscope compare [-h] [-v] [--format FORMAT] [-o FILE] [--redact] BUNDLE… -- BUNDLE…"
    )
    sub.add_argument("bundles", nargs="+", metavar="BUNDLE", help="A's bundles, --, B's bundles")
    sub.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    sub.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="also write it as HTML; of one bundle a side, B's report with A as its baseline",
    )
    sub.add_argument("--mode", **modes.OPTION)
    add_redact_options(sub)

    command(
        "record",
        run_record,
        "record CPU profiles by a recipe into a bundle; 'mmscope record --help'",
    )
    command(
        "doctor",
        run_doctor,
        "what can be read on this machine, what not, and how to change that",
    )
    page_owner_command.add_commands(command)
    return parser


REDACT_MAP_HELP = "write which name has which number, for yourself; by default nobody can know"
# What stands for -- between the two sides of a comparison.
VERSUS = "\0"
# Of folded stacks, which are no table.
STACK_FORMATS = ("folded", "speedscope")
SECTION_HELP = f"sections: {', '.join(SECTIONS)}"


def add_redact_options(parser: argparse.ArgumentParser) -> None:
    """To replace names on the way."""
    parser.add_argument(
        "--redact", action="store_true", help="replace names, as 'mmscope redact' does"
    )
    parser.add_argument("--redact-map", type=Path, metavar="FILE", help=REDACT_MAP_HELP)


def wanted_names(args: argparse.Namespace) -> Names | None:
    """What names are replaced by, if they are to be."""
    if args.redact_map is not None and not args.redact:
        raise UsageError("--redact-map goes with --redact")
    refuse_old_map(args.redact_map)
    if not args.redact:
        return None
    return Names()


def refuse_old_map(path: Path | None) -> None:
    """Before the work: a map that is there is that of another redaction."""
    if path is not None and os.path.lexists(path):
        raise UsageError(f"{path}: already exists; choose another name for the map")


def section_names(text: str) -> list[str]:
    """The value of --only."""
    names = text.split(",")
    for name in names:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"no section {name!r}; {SECTION_HELP}")
    return names


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what to read."""
    group = parser.add_argument_group("target (default: the live kernel)")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--core", type=Path, metavar="FILE", help="vmcore: ELF or kdump-compressed")
    where.add_argument("--qemu", metavar="ADDR", help="QMP socket of a QEMU guest")
    where.add_argument(
        "--proc-root", type=Path, metavar="DIR", help="text files only: / or an unpacked sosreport"
    )
    page_owner_command.add_price_options(group)
    group.add_argument(
        "--symbols",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="vmlinux (and modules) with debug info; may be given more than once",
    )
    group.add_argument(
        "--pageblock-order",
        type=int,
        choices=range(21),
        metavar="N",
        help="for a kernel built with a smaller CONFIG_PAGE_BLOCK_MAX_ORDER, which its debug info "
        "does not show",
    )
    group.add_argument(
        "--rmap-node-ns",
        type=nanoseconds,
        metavar="NS",
        help="what a reverse map walk takes for a node of an anon_vma's tree, as measured on this "
        "machine; by default an assumption, with its range",
    )


def nanoseconds(text: str) -> float:
    """The value of --rmap-node-ns."""
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError(text)
    return value


def redacting(writer: Writer, names: Names, target: dict[str, Any]) -> RedactingWriter:
    """The same writer, which replaces names first."""
    return RedactingWriter(writer, names, target)


def keep_map(names: Names | None, path: Path | None) -> None:
    """Write what stands for what, if that is asked for."""
    if names is not None and path is not None:
        write_map(names, path)


def open_source(args: argparse.Namespace) -> tuple[Memory | Files, str, dict[str, str]]:
    """
    What the target options name: (source, its name, notes).

    A live kernel whose memory cannot be read is read as text, which needs no symbols and, for the
    most part, no root; the reason is said and noted.

    :raises TargetError: it cannot be opened.
    """
    of_memory = (args.symbols or None, args.pageblock_order, args.rmap_node_ns)
    if args.proc_root and any(option is not None for option in of_memory):
        raise UsageError(
            "--symbols, --pageblock-order and --rmap-node-ns go with a kernel's memory, not with "
            "--proc-root"
        )
    if args.proc_root is not None:
        if not (args.proc_root / "proc").is_dir():
            raise TargetError(
                f"{args.proc_root}: has no folder 'proc'; give / or a sosreport's folder"
            )
        return Files(args.proc_root, args.all), args.proc_root.name, {}
    notes = {}
    name = args.core.name if args.core is not None else args.qemu or ""
    try:
        prog = open_target(args.core, args.symbols, args.qemu)
    except TargetError as error:
        if args.core is not None or args.qemu is not None or args.symbols:
            raise
        say(f"{error}; reading /proc and /sys instead")
        return Files(Path("/"), args.all), "/", {"fallback": str(error)}
    if args.pageblock_order is not None:
        set_pageblock_order(prog, args.pageblock_order)
    if args.core is not None:
        notes = core_notes(args.core)
        if words := other_release(prog):
            notes["vmcoreinfo"] = words
            say(f"{args.core}: {words}")
        if "truncated" in notes:
            say(f"{args.core}: {notes['truncated']}; reading what is there")
    return Memory(prog, rmap_node_ns=args.rmap_node_ns), name, notes


def core_notes(core: Path) -> dict[str, str]:
    """What a bundle says of the file that it was read from."""
    notes = {}
    if missing := missing_bytes(core):
        notes["truncated"] = (
            f"{missing:,} bytes of the machine's memory lie behind the end of the file: "
            "the dump was cut short"
        )
    if words := left_out(core):
        notes["left_out"] = words
    return notes


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """Progress on a terminal; silence in a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with ProgressBar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("opening", total=None)

        def show(section: str, title: str, done: int, total: int) -> None:
            what = f"{title}: struct pages" if total else title
            bar.update(task, description=what, completed=done, total=total or None)

        yield show


def run_collect(args: argparse.Namespace) -> int:
    names = wanted_names(args)
    with Writer(args.output, replace=args.force, mode=args.mode) as writer:
        source, name, notes = open_source(args)
        if isinstance(source, Memory):
            target = describe(source.prog, name)
        else:
            target = describe_files(source)
        with progress_bar() as progress:
            sections = collect(
                source,
                target,
                redacting(writer, names, asdict(target) | notes) if names else writer,
                args.only,
                notes=notes,
                progress=progress,
                verbose=args.verbose,
            )
    keep_map(names, args.redact_map)
    print_findings(args.output)
    expected = [
        section
        for section in sections
        if section.status != "absent"
        or not SECTIONS[section.section].optional
        or section.section in args.only
        or TO_READ_IT in (section.message or "")
    ]
    # What was left out of a dump on purpose is no fault of the reading.
    return missing_sections(expected, bool(notes.keys() - {"left_out"}))


def missing_sections(sections: list[SectionResult], incomplete: bool) -> int:
    """Say on stderr what is missing; the exit code."""
    for section in sections:
        if section.status != "ok":
            say(f"{section.section}: {section.status}: {section.message}")
            incomplete = True
    return INCOMPLETE if incomplete else DONE


def run_show(args: argparse.Namespace) -> int:
    if args.bundle is None:
        return show_section(args)
    if args.what == "page_owner" and (args.bundle.is_file() or str(args.bundle) == "-"):
        return page_owner_command.run_show(args)
    if args.core or args.qemu or args.proc_root or args.symbols or args.all or args.careful:
        raise UsageError("give a BUNDLE or a target, not both")
    refuse_cull_options(args)
    bundle = Bundle(args.bundle)
    if args.format in STACK_FORMATS:
        return show_stacks(bundle, args.what, args.format, reattribute=args.reattribute)
    if args.what == "tables":
        for table in bundle.tables.values():
            print(f"{table.name:24} {visible(display.cut(table.title, 200))}")
        for name, title in views_of(bundle).items():
            print(f"{name:24} {title} (computed)")
        return DONE
    if args.what not in bundle.tables and show_view(bundle, args.what, args.format, args.top):
        return DONE
    if args.what not in bundle.tables and args.what in new_tables(bundle):
        raise BundleError(
            f"{args.bundle}: has no table {args.what}: mmscope {bundle.version}, which wrote the "
            "bundle, does not know it"
        )
    shown = bundle.table(args.what)
    title = shown.title
    if args.top and args.format == "table":
        title = first_of(title, args.top, bundle.count(args.what))
    cells = ([row[c.name] for c in shown.columns] for row in bundle.rows(args.what))
    top = itertools.islice(cells, args.top)
    try:
        marks = bundle.impossible(args.what)
    except BundleError:
        marks = []  # reading the rows says why
    most = max(args.top or 0, MAX_ROWS)
    print_rows(shown.columns, top, form=args.format, title=title, marks=marks, most=most)
    for words in told(marks):
        say(words)
    return INCOMPLETE if marks else DONE


def refuse_cull_options(args: argparse.Namespace) -> None:
    """
    What counts a page_owner file does nothing to a table.

    :raises UsageError: it was asked for.
    """
    if args.cull or args.sort or page_owner_command.selection_of(args) is not None:
        raise UsageError("--cull, --sort and the selection are for page_owner files")


def first_of(title: str, top: int | None, total: int) -> str:
    """A table's title, with what is left out of it."""
    return f"{title}: the first {top:,} of {total:,}" if top and top < total else title


def show_stacks(bundle: Bundle, what: str, form: str, *, reattribute: bool) -> int:
    """Print folded stacks: those of one name, of a recording, or of all profiles."""
    files = [what] if what in bundle.folded else profiles.files_of(bundle, what)
    if not files:
        raise UsageError(
            f"{what}: the bundle has no such stacks; it has {', '.join(bundle.folded) or 'none'}"
        )
    known = load_known_frames()

    def stacks(name: str) -> Iterable[tuple[str, int]]:
        found = bundle.stacks(name)
        return profiles.reattributed(found, known) if reattribute else found

    if form == "speedscope":
        every = ((name, bundle.folded[name].unit, stacks(name)) for name in files)
        json.dump(speedscope(every, f"mmscope: {what}"), sys.stdout)
        print()
        return DONE
    for name in files:
        for stack, value in stacks(name):
            # A root frame distinguishes several.
            print(visible(f"{name};{stack}" if len(files) > 1 else stack), value)
    return DONE


def run_record(args: argparse.Namespace) -> int:
    return record_command.main([])


def views_of(bundle: Bundle) -> dict[str, str]:
    """Name and title of what DuckDB computes from a bundle's tables; empty without DuckDB."""
    try:
        from mmscope.reports.bundle.database import open_database, views
    except ImportError:
        return {}
    missing = open_database(bundle).missing
    return {name: title for name, title, _ in views() if name not in missing}


def show_view(bundle: Bundle, name: str, form: str, top: int | None) -> bool:
    """Print a view over a bundle's tables; False if it does not exist."""
    try:
        import duckdb

        from mmscope.reports.bundle.database import failed, open_database, view_columns, views
    except ImportError:
        return False
    titles = {view: title for view, title, _ in views()}
    if name not in titles:
        return False
    database = open_database(bundle)
    if name in database.missing:
        return False
    try:
        cells = [list(row.values()) for row in database.rows(f"select * from {name}")]
    except duckdb.Error as error:
        why = failed(database, error, bundle.tables)
        raise BundleError(f"{bundle.path}: {name} cannot be computed: {why}") from error
    title = first_of(titles[name], top, len(cells))
    print_rows(
        view_columns(database, name),
        cells[:top],
        form=form,
        title=title,
        most=max(top or 0, MAX_ROWS),
    )
    return True


def show_section(args: argparse.Namespace) -> int:
    if args.what not in SECTIONS:
        raise UsageError(
            f"{args.what}: no such section, and no bundle given to show a table of; {SECTION_HELP}"
        )
    refuse_cull_options(args)
    source, _, _ = open_source(args)
    machine = machine_of(source)
    section, found = run_section(SECTIONS[args.what], source, machine, verbose=args.verbose)
    tables = [filled.first(args.top) for filled in found.tables]
    print_tables(tables, args.format, machine)
    return missing_sections([section], False)


def print_tables(tables: Sequence[Filled], form: str, machine: Machine) -> None:
    """
    Print a section's tables: JSON is one object of them, CSV has an empty line between them.

    :param machine: that they are of: what cannot be of its numbers is marked.
    """
    as_json = form == "json"
    for position, filled in enumerate(tables):
        table, rows = filled.table, filled.rows
        if as_json:
            print("," if position else "{", f"{json.dumps(table.name)}:", end=" ")
        elif position:
            print()
        described = columns(table.row)
        names = [c.name for c in described]
        cells = ([getattr(row, name) for name in names] for row in rows)
        marks = rows_that_cannot_be(table.name, described, rows, machine) if form == "table" else []
        print_rows(described, cells, form=form, title=filled.title or table.title, marks=marks)
    if as_json:
        print("}" if tables else "{}")


def run_findings(args: argparse.Namespace) -> int:
    from mmscope.reports.findings import findings_text
    from mmscope.reports.findings.findings import evaluate

    bundle = Bundle(args.bundle)
    findings_text.print_findings(evaluate(bundle), everything=args.all)
    if words := not_written(bundle):
        say(f"{args.bundle}: {words}")
    return DONE


def run_report(args: argparse.Namespace) -> int:
    from mmscope.reports.compare.comparison import compare
    from mmscope.reports.findings.findings import evaluate
    from mmscope.reports.page.report import render, write
    from mmscope.reports.pictures.registry import LOOKED_AT

    names = wanted_names(args)
    bundles = [Bundle(path) for path in (args.bundle, args.baseline) if path is not None]
    # Rows by the hundred thousand, which hold no cycles: to look through them over and over takes a
    # fifth of the time.
    gc.disable()
    try:
        with redacted(bundles, names) if names else contextlib.nullcontext(bundles) as shown:
            bundle, *baselines = shown
            bundle.hold(LOOKED_AT & bundle.tables.keys())
            verdict, comparison = evaluate(bundle), None
            for baseline in baselines:
                verdicts = evaluate(baseline), verdict
                comparison = compare(baseline, bundle, verdicts, draw=True)
            html = render(bundle, verdict, comparison)
    finally:
        gc.enable()
    keep_map(names, args.redact_map)
    write(html, args.output, args.mode)
    if args.output.is_file():  # and no pipe, whose reader wants nothing but the page
        print(f"{args.output}: {args.output.stat().st_size:,} bytes")
    return DONE


def run_redact(args: argparse.Namespace) -> int:
    refuse_old_map(args.redact_map)
    bundles, names = [Bundle(path) for path in args.bundles], Names()
    several, code = len(bundles) > 1, DONE
    for number, bundle in enumerate(bundles, 1):
        path = args.output / f"bundle-{number}" if several else args.output
        if whole := undeclared(bundle):
            say(
                f"{bundle.path}: an older mmscope or another program did not say what text of "
                f"{display.plural(len(whole), 'column')} is; it is replaced whole: "
                f"{', '.join(whole[:3])}{', …' if len(whole) > 3 else ''}"
            )
        made = redact(bundle, path, names, replace=args.force, mode=args.mode)
        lost = len(bundle.resources) - len(made.resources)
        if lost:
            code = INCOMPLETE
            say(
                f"{bundle.path}: {display.plural(lost, 'table is', 'tables are')} damaged and left "
                "out; 'mmscope show' says of each what is wrong"
            )
        print(f"{bundle.path}: {path}" if several else f"{path}")
    keep_map(names, args.redact_map)
    return code


def run_compare(args: argparse.Namespace) -> int:
    from mmscope.reports.commands.compare_command import run

    if args.bundles.count(VERSUS) != 1:
        raise UsageError("give two sides: mmscope compare A… -- B…")
    middle = args.bundles.index(VERSUS)
    sides = args.bundles[:middle], args.bundles[middle + 1 :]
    if not all(sides):
        raise UsageError("a side has no bundle: mmscope compare A… -- B…")
    names = wanted_names(args)
    code = run(sides, args.format, args.output, names, args.mode)
    keep_map(names, args.redact_map)
    return code


def run_doctor(args: argparse.Namespace) -> int:
    for title, row_type, rows in (
        ("", Check, checks()),
        ("What it costs this host to be read", PriceHere, prices_here()),
    ):
        described = columns(row_type)
        names = [c.name for c in described]
        if title:
            print()
        print_rows(described, ([getattr(row, name) for name in names] for row in rows), title=title)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
