# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Declarations of commands, and the options that several of them have.

Imports no drgn, numpy or rich.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmscope.drgn.tables.display import FORMATS
from mmscope.reports.bundle.modes import file_mode

# Declares a command: its name, what runs it, its help and more text; gives its parser.
Command = Callable[..., argparse.ArgumentParser]
# Arguments and options, in argparse's words.
BUNDLE: dict[str, Any] = {"type": Path, "metavar": "BUNDLE", "help": "as collect or why left it"}
MODE: dict[str, Any] = {
    "type": file_mode,
    "metavar": "MODE",
    "help": "permissions of written files, as for chmod, such as 640. Default: for root 600, for "
    "others by the umask",
}
PROC_ROOT: dict[str, Any] = {
    "default": "/",
    "metavar": "DIR",
    "help": "folder with the host's proc/ and sys/. Default: /",
}
REDACT: dict[str, Any] = {
    "action": argparse.BooleanOptionalAction,
    "help": "replace names, as 'mmscope redact' does; --no-redact keeps them, whatever "
    "/etc/mmscope.toml says",
}
REDACT_MAP: dict[str, Any] = {
    "type": Path,
    "metavar": "FILE",
    "help": "write which name has which number, for yourself; by default it is not kept",
}


def declaring(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Command:
    """
    A function that declares commands: each has ``--verbose``, and the function that runs it or
    where that is (``module:function``), which is imported when the command is run.
    """

    def command(
        name: str, run: Callable[[argparse.Namespace], int] | str, help: str, text: str = ""
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=text or help)
        sub.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
        sub.set_defaults(run=run)
        return sub

    return command


def option(
    parser: "argparse._ActionsContainer",
    words: str,
    help: str,
    read: Callable[[str], Any] = str,
    default: Any = None,
    **more: Any,
) -> None:
    """
    Declare an option that has a value.

    :param words: as it is typed: ``-o --output DIR``. :param read: makes the value of its text.
    :param more: in argparse's words.
    """
    *names, metavar = words.split()
    parser.add_argument(*names, type=read, default=default, metavar=metavar, help=help, **more)


def add_output(parser: argparse.ArgumentParser, help: str = "folder to make", **more: Any) -> None:
    """
    Declare the options of a command that writes a bundle.

    :param more: of ``--output``, in argparse's words.
    """
    words: dict[str, Any] = {"type": Path, "metavar": "BUNDLE", "help": help}
    parser.add_argument("-o", "--output", **words | more)
    parser.add_argument(
        "--force", action="store_true", help="replace a bundle that is already there"
    )
    parser.add_argument("--mode", **MODE)


def add_page(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the option of a command that writes a page, by default of that name."""
    parser.add_argument("-o", "--output", type=Path, default=Path(name), help=f"default: {name}")


def add_format(
    parser: argparse.ArgumentParser, others: tuple[str, ...] = (), help: str = "default: table"
) -> None:
    """Declare ``--format`` and ``--json``; *others* are formats beside those of every table."""
    parser.add_argument("--format", choices=(*FORMATS, *others), default="table", help=help)
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="same as --format json"
    )


def add_redact(parser: argparse.ArgumentParser) -> None:
    """Declare the options of commands that replace names on the way."""
    parser.add_argument("--redact", **REDACT)
    parser.add_argument("--redact-map", **REDACT_MAP)


def add_prices(parser: Any) -> None:
    """Declare options for files that are dear for a running host to read (``prices``)."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--careful",
        action="store_true",
        help="on a running host, leave out files whose reading would keep interrupts off for long "
        "or disturb the allocator; 'mmscope doctor' lists them. This is the default",
    )
    which.add_argument("--all", action="store_true", help="read these files as well")


def positive(text: str) -> float:
    """A number above zero."""
    if not 0 < (value := float(text)) < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0 and below a billion")
    return value


def seconds(text: str) -> float:
    """A number of seconds, which may be none."""
    if not 0 <= (value := float(text)) < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def at_least_one(text: str) -> int:
    """A count."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value
