# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The sections as commands of drgn: ``%free_lists`` in any session, where mmscope is installed. And
what a script of drgn says that is a file of ours with nothing to print.

drgn loads this file whenever it opens a target, by the entry point in ``pyproject.toml``, so that
nothing is imported here but drgn's own: the probes are, when a command runs. A command runs its
section as ``mmscope show`` does, and prints the same tables and the same words about what is
missing from them. Of a core, what one command read serves the next; a live kernel is read again.

Where drgn has no commands, or not with this interface (that of 0.1 to 0.3), mmscope has none:
drgn itself must start.
"""

import argparse
import atexit
import contextlib
import dataclasses
import functools
import logging
import pkgutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drgn import Program, ProgramFlags

from mmscope import FOLDER
from mmscope.drgn.tables.hostile_text import echo
from mmscope.reports.bundle.outcome import FULL_INSTALL
from mmscope.reports.commands.drgn_commands import COMMANDS
from mmscope.reports.commands.drgn_completion import install

if TYPE_CHECKING:
    from mmscope.drgn.sections.memory import Memory
    from mmscope.drgn.sections.section import Filled, Found
    from mmscope.reports.bundle.description import SectionResult


def address(text: str) -> str:
    """An address as the tables have it."""
    return hex(int(text, 16))


def count(text: str) -> int:
    """The value of --top."""
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


# Files that drgn may be given as scripts, and what those have that print something.
PROBES = (FOLDER / "drgn").resolve()
MAIN = '\nif __name__ == "__main__":\n'
# What an argument picks rows by: a column, with its name in the usage and how it is read.
PICKS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "pid": ("PID", int),
    "anon_vma": ("ADDRESS", address),
    "address_space": ("ADDRESS", address),
    "cache": ("CACHE", str),
    "name": ("NAME", str),
}


def memory_of(prog: Program, *, afresh: bool = False) -> "Memory":
    """
    The reading that a session's commands share, as long as the target stands still.

    What the user said of a live one is kept.

    :param afresh: nothing that was read is believed any more.
    """
    from mmscope.drgn.sections.memory import Memory

    def consumers() -> Iterable[Any]:
        from mmscope.drgn.sections import registry

        return registry.consumers()

    memory: Memory | None = prog.cache.get("mmscope")
    if memory is None or memory.live or afresh:
        node_ns = memory.rmap_node_ns if memory else None
        prog.cache["mmscope"] = memory = Memory(prog, consumers=consumers, rmap_node_ns=node_ns)
    return memory


def run_section_command(entry: dict[str, str], prog: Program, args: argparse.Namespace) -> None:
    """Run a section and print its tables."""
    from drgn.commands import CommandError

    from mmscope.drgn.sections.section import to_look_at
    from mmscope.reports.bundle.options import positive
    from mmscope.reports.collect.run_section import machine_of, run_section
    from mmscope.reports.commands.collect_command import progress_bar
    from mmscope.reports.commands.show_command import print_tables

    memory, spec = memory_of(prog), pkgutil.resolve_name(entry["place"])
    if getattr(args, "rmap_node_ns", None) is not None:
        try:
            memory.rmap_node_ns = positive(args.rmap_node_ns)
        except (ValueError, argparse.ArgumentTypeError):
            raise CommandError(f"--rmap-node-ns: {args.rmap_node_ns} is not a time") from None
    try:
        prog.type("struct page")
    except LookupError:
        raise CommandError(
            "there are no types: %no_debug_info takes the kernel's own; or load its debug symbols"
        ) from None
    with progress_bar() as show:
        if show is not None:
            memory.progress = functools.partial(show, spec.name, spec.title)
        machine = machine_of(memory)
        section, found = run_section(spec, memory, machine)
        memory.progress = None
    if section.status == "failed":
        # It may have failed because of symbols that the user loads now.
        memory_of(prog, afresh=True)
    if section.status in ("failed", "absent"):
        raise CommandError(f"{section.section}: {section.message}")
    tables, top, picks = found.tables, int(entry["top"] or 0), entry["picks"]
    if picks and args.wanted is not None:
        tables, top = rows_with(found, picks, args.wanted), 0
    if args.format == "table":
        tables = to_look_at(tables, top if args.top is None else args.top)
    else:
        tables = [filled.first(args.top) for filled in tables]
    print_tables(tables, args.format, machine)
    if section.message:
        status = "partial: " if section.status == "partial" else ""
        warn(f"{section.section}: {status}{section.message}")


def warn(text: str) -> None:
    """A line beside the tables."""
    echo(text, file=sys.stderr)


def rows_with(found: "Found", column: str, wanted: Any) -> list["Filled"]:
    """
    Rows with a value in a column, of the tables that have it.

    :raises CommandError: there is none.
    """
    from drgn.commands import CommandError

    having = [each for each in found.tables if column in each.table.row.__annotations__]
    tables = [
        dataclasses.replace(each, rows=[row for row in each.rows if getattr(row, column) == wanted])
        for each in having
    ]
    if not any(filled.rows for filled in tables):
        sizes = (f"{each.table.name} ({len(each.rows):,} rows)" for each in having if each.rows)
        words = f"no {column} {wanted} in {', '.join(sizes)}"
        # Why it may be missing; how the tables were made is another matter.
        raise CommandError("; ".join([words, *found.notes, *found.unlisted]))
    return tables


def run_findings_command(prog: Program, args: argparse.Namespace) -> None:
    """Run every section and print what is wrong, as ``mmscope findings`` does."""
    from mmscope.drgn.sections.registry import SECTIONS
    from mmscope.reports.bundle.bundle import Bundle
    from mmscope.reports.findings.findings import evaluate
    from mmscope.reports.findings.findings_text import print_findings

    with tempfile.TemporaryDirectory() as folder:
        bundle = args.output or Path(folder) / "bundle"
        sections, notes = collect_program(prog, bundle, replace=args.force)
        print_findings(evaluate(Bundle(bundle)), everything=args.all)
    if words := notes.get("truncated"):
        warn(words)
    for section in sections:
        expected = section.status == "absent" and SECTIONS[section.section].optional
        if section.status != "ok" and not expected:
            warn(f"{section.section}: {section.status}: {section.message}")


def collect_program(
    prog: Program, bundle: Path, *, replace: bool = False
) -> "tuple[list[SectionResult], dict[str, str]]":
    """Run every section over a session's program; returns how they fared, and notes."""
    from mmscope.drgn.opening.target import describe
    from mmscope.reports.bundle.writer import Writer
    from mmscope.reports.collect.collect import collect
    from mmscope.reports.commands.collect_command import progress_bar
    from mmscope.reports.commands.target_options import core_notes

    source, notes = "", {}
    if not prog.flags & ProgramFlags.IS_LIVE and prog.core_dump_path is not None:
        core = Path(prog.core_dump_path)
        source, notes = core.name, core_notes(core)
    elif not prog.flags & ProgramFlags.IS_LOCAL:
        source = "QEMU"
    with Writer(bundle, replace=replace) as writer, progress_bar() as show:
        memory, target = memory_of(prog), describe(prog, source)
        sections = collect(memory, target, writer, notes=notes, progress=show)
        memory.progress = None
    if any(section.status == "failed" for section in sections):
        memory_of(prog, afresh=True)
    return sections, notes


def run_no_debug_info_command(prog: Program, args: argparse.Namespace) -> None:
    """Attach the kernel's own types and symbols."""
    from mmscope.drgn.opening.known_types import unlike_known
    from mmscope.drgn.opening.no_debug_info import attach

    if args.btf is not None and args.btf.suffix == ".toml":
        from mmscope.drgn.opening.kernel_globals import declare_from

        echo(f"{declare_from(args.btf)} globals declared")
        return
    types, symbols, checked = attach(prog, args.btf)
    echo(
        f"{types.count:,} types (BTF), {symbols.count:,} symbols (kallsyms); "
        f"{checked} sizes, offsets and constants agree with VMCOREINFO",
        *unlike_known(types).values(),
        sep="\n",
    )


def run_help_command(prog: Program, args: argparse.Namespace) -> None:
    """List the commands of this session, or say how one is used."""
    from drgn.commands import DEFAULT_COMMAND_NAMESPACE

    if args.command is None:
        for name, command in sorted(DEFAULT_COMMAND_NAMESPACE.enabled(prog)):
            echo(f"%{name:17} {command.description()}")
        return
    command = DEFAULT_COMMAND_NAMESPACE.lookup(prog, args.command.removeprefix("%"))
    said = (command.format_usage(), command.description(), command.format_help())
    echo(*"\n\n".join(said).split("\n"), begin="%", sep="\n")


def run(
    work: Any,
    prog: Program,
    name: str,
    args: argparse.Namespace,
    *,
    parser: argparse.ArgumentParser,
    **kwargs: Any,
) -> None:
    """Run a command; what goes wrong is one line, which drgn prints."""
    from drgn.commands import CommandError

    if args.help:
        echo(*parser.format_help().split("\n"), sep="\n", end="")
        return
    try:
        from mmscope.drgn.opening.target import read_as_opened_here

        read_as_opened_here(prog)
        work(prog, args)
    except BrokenPipeError:
        raise  # the reader (head, less) has seen enough, as drgn knows
    except Exception as error:
        raise CommandError(one_line(error)) from error


def one_line(error: Exception) -> str:
    """An error as a line: what went wrong, and what is missing."""
    if isinstance(error, ModuleNotFoundError):
        return f"needs {error.name}, which {sys.executable} does not have: {FULL_INSTALL}"
    if isinstance(error, ImportError):
        return f"{error.path or 'import'}: {error}"
    from drgn.commands import CommandError

    from mmscope.drgn.opening import TargetError, UndeclaredError
    from mmscope.drgn.opening.no_debug_info import NoDebugInfoError
    from mmscope.drgn.tables.hostile_text import visible
    from mmscope.reports.bundle.description import BundleError
    from mmscope.reports.collect.run_section import explain

    known = (CommandError, BundleError, NoDebugInfoError, TargetError, UndeclaredError)
    return visible(str(error) if isinstance(error, known) else explain(error))


def section_arguments(entry: dict[str, str]) -> list[Any]:
    """Arguments of a section's command, ``--help`` aside."""
    from drgn.commands import argument

    arguments = []
    if picks := entry["picks"]:
        metavar, read = PICKS[picks]
        about = f"only rows with this {picks}"
        arguments = [argument("wanted", nargs="?", metavar=metavar, type=read, help=about)]
    rows = entry["top"] or "all"
    arguments += [
        argument(
            "--top",
            type=count,
            metavar="N",
            help=f"rows of a table to print, 0 for all (default: {rows}; csv and json: all)",
        ),
        argument(
            "--format",
            choices=("table", "csv", "json"),
            default="table",
            help="table to look at, csv or json for a program",
        ),
    ]
    if entry["section"] in ("ksm", "rmap_cost"):
        arguments.append(
            argument(
                "--rmap-node-ns",
                metavar="NS",
                help="what a walk takes for a tree node, as measured; kept for the session",
            )
        )
    return arguments


def register() -> None:
    """Put the commands where drgn looks for them."""
    from drgn.commands import DEFAULT_COMMAND_NAMESPACE, CommandNotFoundError, argument, command
    from drgn.commands.linux import linux_kernel_command

    show_help = argument("-h", "--help", action="store_true", help="show this help")
    for entry in COMMANDS:
        description = entry["description"]
        linux_kernel_command(
            name=entry["name"],
            description=description,
            long_description=f"Print {description}: section {entry['section']} of mmscope.",
            arguments=(show_help, *section_arguments(entry)),
        )(functools.partial(run, functools.partial(run_section_command, entry)))
    linux_kernel_command(
        name="mm_findings",
        description="what is wrong with memory, why it hurts and what next",
        long_description="Read every section, and run all checks.",
        arguments=(
            show_help,
            argument("-a", "--all", action="store_true", help="also what is not so"),
            argument("-o", "--output", type=Path, metavar="BUNDLE", help="keep the bundle here"),
            argument("--force", action="store_true", help="replace one that is already there"),
        ),
    )(functools.partial(run, run_findings_command))
    linux_kernel_command(
        name="no_debug_info",
        description="use the kernel's own types and symbols, without debug info",
        long_description="Attach the kernel's BTF as types and its kallsyms as symbols.",
        arguments=(
            show_help,
            argument(
                "btf",
                nargs="?",
                type=Path,
                metavar="FILE",
                help="BTF of this kernel; or FILE.toml, whose [globals] are declared",
            ),
        ),
    )(functools.partial(run, run_no_debug_info_command))
    # drgn has no %help yet. Once it has one, its own takes the name, whichever comes first.
    try:
        DEFAULT_COMMAND_NAMESPACE.lookup(Program(), "help")
    except CommandNotFoundError:
        command(
            name="help",
            description="list the commands, or say how one is used",
            arguments=(show_help, argument("command", nargs="?", help="which")),
        )(functools.partial(run, run_help_command))


def say_what_prints() -> None:
    """Name the scripts beside a file of ours that drgn was given and that prints nothing."""
    script = Path(sys.argv[0]).resolve()
    if script.suffix != ".py" or not script.is_relative_to(PROBES):
        return
    with contextlib.suppress(OSError):
        if MAIN not in script.read_text():
            beside = [p.name for p in sorted(script.parent.glob("*.py")) if MAIN in p.read_text()]
            those = f"in its folder these do: {', '.join(beside)}"
            other = "drgn/free/zones.py is a file that does"
            warn(f"{sys.argv[0]}: prints nothing; {those if beside else other}")


atexit.register(say_what_prints)  # drgn has no hook after a script

try:
    register()
except (ImportError, AttributeError, TypeError) as error:
    logging.getLogger("drgn").debug("mmscope: no %%commands in this drgn: %s", error)

try:
    install()
except (ImportError, AttributeError, OSError) as error:
    logging.getLogger("drgn").debug("mmscope: no completion of %%commands: %s", error)
