# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The ``mmscope`` command.

Exit codes: 0 done; 1 done, but sections are missing, or pictures that mmscope failed to draw
(which, and why, on stderr); 2 bad usage; 3 the target could not be opened. An error is one line
that says what to do; ``-v`` adds the traceback.
"""

import argparse
import io
import itertools
import os
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from mmscope import __version__
from mmscope.drgn.opening import TargetError
from mmscope.drgn.opening.oldest_drgn import too_old
from mmscope.drgn.sections.files import Absent
from mmscope.drgn.tables.hostile_text import echo, visible
from mmscope.drgn.text.text_source import TextError
from mmscope.reports.bundle.options import declaring
from mmscope.reports.bundle.outcome import (
    BAD_USAGE,
    DONE,
    UsageError,
    did_you_mean,
    discard_output,
    in_plain_words,
    run_and_explain,
    say,
)
from mmscope.reports.commands.host_settings import apply, parsers

HERE = "mmscope.reports.commands"
# What stands for -- between the two sides of a comparison.
VERSUS = "\0"
# The function that declares each command, in the order of --help. Only the one that is asked for is
# imported: on the box `collect` and `show` must work with drgn, numpy and rich alone, `page-owner`,
# `watch` and `guard` with the standard library.
DECLARED = {
    "why": f"{HERE}.why_command:add_command",
    "collect": f"{HERE}.collect_command:add_command",
    "show": f"{HERE}.show_command:add_command",
    "findings": f"{HERE}.bundle_commands:add_findings",
    "report": f"{HERE}.bundle_commands:add_report",
    "redact": f"{HERE}.redact_command:add_command",
    "compare": f"{HERE}.bundle_commands:add_compare",
    "record": f"{HERE}.record_command:add_command",
    "doctor": f"{HERE}.doctor:add_command",
    "kernel": f"{HERE}.kernel_command:add_command",
    "page-owner": f"{HERE}.page_owner_command:add_command",
    "watch": f"{HERE}.page_owner_command:add_watch",
    "guard": "mmscope.reports.guard.options:add_command",
    "lake": "mmscope.reports.fleet.options:add_command",
    "mcp": f"{HERE}.mcp_command:add_command",
}
# What --help lists: the commands by what one wants, and how each is typed.
GROUPS = {
    "Start here": ("why", "doctor", "kernel"),
    "Read a machine": ("collect", "record", "watch", "guard", "page-owner"),
    "Look at what was read": ("findings", "report", "show", "compare", "redact"),
    "Many hosts, other programs": ("lake", "mcp"),
}
EXAMPLES = {
    "why": ("why", "why /var/crash/vmcore", "why sosreport.tar.xz", "why dmesg.txt --json"),
    "doctor": ("doctor", "doctor --all"),
    "kernel": ("kernel /sys/kernel/btf/vmlinux", "kernel vmlinux --json"),
    "collect": (
        "collect -o CASE",
        "collect /var/crash/vmcore --symbols vmlinux -o CASE",
        "collect sosreport.tar.xz dmesg.txt -o CASE",
        "collect --only zones,pageblocks -o CASE",
    ),
    "record": ("record --list", "record rmap -a -o CASE", "record rmap -p 1234 -o CASE"),
    "watch": ("watch -o CASE", "watch --count 60 -o CASE"),
    "guard": ("guard run", "guard trigger", "guard crash /var/crash"),
    "page-owner": (
        "page-owner /sys/kernel/debug/page_owner -o CASE",
        "page-owner show_handles.* --stacks show_stacks_handles -o CASE",
    ),
    "findings": ("findings CASE", "findings CASE --all", "findings CASE --json"),
    "report": ("report CASE -o report.html", "report AFTER --baseline BEFORE -o report.html"),
    "show": (
        "show tables CASE",
        "show zones CASE",
        "show slab_caches CASE --top 20",
        "show zones --core vmcore --json",
    ),
    "compare": ("compare BEFORE -- AFTER", "compare A1 A2 -- B1 B2 -o compare.html"),
    "redact": ("redact CASE -o CASE-to-pass-on",),
    "lake": (
        "lake add CASE LAKE",
        "lake findings LAKE",
        "lake report LAKE",
        "lake show LAKE zones",
    ),
    "mcp": ("mcp CASE",),
}
EXIT_CODES = (
    "0 done; 1 done with sections or pictures missing; 2 bad usage; "
    "3 the target could not be opened."
)
# Commands that read a kernel, for which the installed drgn must be recent enough.
READ_KERNELS = ("why", "collect", "show", "doctor", "kernel")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    _open_standard_files()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal or pipe that is not UTF-8 gets what it can show, and the rest as escapes.
        sys.stdout.reconfigure(errors="backslashreplace")
    # numpy's linear algebra is not used; its threads, one for each CPU, would only be started.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        if words in ([], ["help"], ["-h"], ["--help"]):
            echo(*overview(), sep="\n")
            return DONE
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        if words[:1] and words[0] in READ_KERNELS and (why := too_old()):
            say(why)
            return BAD_USAGE
        return _run(words)
    except KeyboardInterrupt:  # outside of the command's own work
        say("interrupted")
        return 130
    except OSError as error:  # of help: of a command, ``run_and_explain`` knows
        discard_output()
        if isinstance(error, BrokenPipeError):
            return DONE
        say(f"output: {error.strerror}")
        return BAD_USAGE


def _open_standard_files() -> None:
    """Open what is closed of stdin, stdout and stderr: or a file of ours gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _run(words: list[str]) -> int:
    command: list[str] = []
    if words[:1] == ["record"] and "--" in words:  # what follows is another program's command line
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    if words[:1] == ["compare"]:
        # argparse would swallow it. No argument can hold a NUL.
        words = [VERSUS if word == "--" else word for word in words]
    parser = build_parser(words[:1])
    try:
        apply(parser, *words[:1])
    except UsageError as error:
        say(str(error))
        return BAD_USAGE
    progs = {each.prog: each for each in parsers(parser)}
    typed = (f"{parser.prog} {' '.join(words[:number])}" for number in (2, 1))
    asked = next((progs[prog] for prog in typed if prog in progs), parser)
    # A slip in an option before what is missing, which argparse says first.
    options = {name for each in parsers(parser) for a in each._actions for name in a.option_strings}
    for word in itertools.takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        if re.match(r"--[^ ]+$", name) and not any(each.startswith(name) for each in options):
            asked.error(f"unrecognized arguments: {word}")
    args, left = parser.parse_known_args(words)
    if left[:1] == [VERSUS] and not any(word.startswith("-") for word in left):
        args.bundles += left  # what is behind an option, argparse leaves
    elif left:
        asked.error(f"unrecognized arguments: {' '.join(left)}")
    args.command = command
    return run_and_explain(args)


def parsed() -> int:
    """
    0 where a command takes the words of this process; nothing is run. Prints which of them are
    paths to read.
    """
    words = sys.argv[1:]
    args = build_parser(words[:1]).parse_args(words)
    for path in getattr(args, "paths", ()):
        echo(path)
    return DONE


class WholeWords(argparse.HelpFormatter):
    """Help whose lines end between words: half an option cannot be typed."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        words = " ".join(text.split())
        return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.indent("\n".join(self._split_lines(text, width)), indent)


class Parser(argparse.ArgumentParser):
    """
    A parser that quotes words of the command line, which may be names of files, legibly.

    :ivar examples: command lines for the end of its help.
    """

    examples: Sequence[str] = ()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **{"formatter_class": WholeWords} | named)

    def format_help(self) -> str:
        """The help, with examples."""
        lines = "".join(f"  mmscope {line}\n" for line in self.examples)
        return super().format_help() + (f"\nexamples:\n{lines}" if lines else "")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and the nearest word that there is."""
        # An own newline would begin a line that is not mmscope's; a type is no word for a user.
        message = visible(message.replace(VERSUS, "--"))
        message = in_plain_words(message)
        actions = [action for each in parsers(self) for action in each._actions]
        known: list[str] = []
        if found := re.search(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", message):
            known = re.findall(r"[^', ]+", found[2])
        elif found := re.search(r"unrecognized arguments: (--[^\s=]+)", message):
            known = [option for action in actions for option in action.option_strings]
        elif message == "give COMMAND":  # an option stands first
            message = "give a command, such as 'mmscope why'"
        elif message == "give ACTION":
            (sub,) = (each for each in actions if isinstance(each, argparse._SubParsersAction))
            message = f"give one of {', '.join(sub.choices)}"
        near = did_you_mean(found[1], known) if found and not found[1].isdigit() else ""
        if found and known and not near:
            message = re.sub(r"invalid choice: .*", f"no {found[1]!r}; there is ", message)
            message += ", ".join(known)
        what = f"{found[1]}: unknown{near} See" if found and near else f"{message}; see"
        what = what.replace("?; see", "? See")
        # Its usage takes ten lines, in which what is wrong is not seen.
        self.exit(BAD_USAGE, f"{self.prog}: {what} '{self.prog} --help'\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        lines = message.replace(VERSUS, "--").removesuffix("\n").split("\n")
        echo(*lines, sep="\n", file=file or sys.stderr, flush=True)


def overview() -> Iterator[str]:
    """Lines of help: commands to type first, and all of them by what one wants."""
    helps: dict[str, str] = {}
    declared = declaring(argparse.ArgumentParser().add_subparsers())

    def command(
        name: str, run: Callable[..., int], help: str, text: str = ""
    ) -> argparse.ArgumentParser:
        helps[name] = help
        return declared(name, run, help, text)

    for place in dict.fromkeys(DECLARED.values()):
        pkgutil.resolve_name(place)(command)
    yield f"mmscope {__version__}: what Linux memory management was doing, and why it hurts."
    yield ""
    yield "  mmscope why                this machine, in ten lines"
    yield "  mmscope why PATH           a vmcore, sosreport, log or bundle, in ten lines"
    yield "  mmscope report BUNDLE      what 'why' left, as one page of HTML"
    for title, names in GROUPS.items():
        yield from ("", f"{title}:")
        for name in names:
            lines = textwrap.wrap(helps[name], 80 - 14)
            yield f"  {name:12}{lines[0]}"
            yield from (" " * 14 + line for line in lines[1:])
    yield ""
    yield "'mmscope help COMMAND' shows its options and examples."
    yield from textwrap.wrap(f"Exit codes: {EXIT_CODES}", 80)


def explained(error: BaseException) -> str:
    """One line for an error that no command expects."""
    from mmscope.reports.collect.run_section import explain

    return explain(error)


def build_parser(asked_for: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The subcommand that is asked for with its options; all of them if that is none of them."""
    parser: argparse.ArgumentParser = Parser(
        prog="mmscope",
        description="What Linux memory management was doing, and why it hurts: "
        "from a live kernel, a vmcore or /proc, as tables, findings and one HTML report.",
        epilog=f"Exit codes: {EXIT_CODES}",
    )
    parser.add_argument("--version", action="version", version=f"mmscope {__version__}")
    parser.set_defaults(unopened=(TargetError, Absent, TextError), explain=explained)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    declared = declaring(commands)

    def command(name: str, *rest: Any, **more: Any) -> argparse.ArgumentParser:
        sub = declared(name, *rest, **more)
        if isinstance(sub, Parser):
            sub.examples = EXAMPLES[name]
        return sub

    names = [name for name in asked_for if name in DECLARED] or list(DECLARED)
    for place in dict.fromkeys(DECLARED[name] for name in names):
        pkgutil.resolve_name(place)(command)
    for each in parsers(parser):
        if (
            isinstance(each, Parser) and not each.examples
        ):  # an action of a command: those of its own
            typed = each.prog.removeprefix("mmscope ")
            lines = (line for listed in EXAMPLES.values() for line in listed)
            each.examples = [line for line in lines if f"{line} ".startswith(f"{typed} ")]
    return parser


if __name__ == "__main__":
    sys.exit(main())
