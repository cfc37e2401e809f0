# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The end of a command: its exit code, and the line that says why.

Imports no drgn, numpy or rich.
"""

import argparse
import contextlib
import difflib
import os
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterable

from mmscope.drgn.opening.oldest_drgn import too_old
from mmscope.drgn.tables.hostile_text import echo

# What installs the libraries of findings and reports; a distribution names its package here.
FULL_INSTALL = "pip install 'mmscope[report]'"

DONE, INCOMPLETE, BAD_USAGE, NO_TARGET = 0, 1, 2, 3


class UsageError(Exception):
    """Input or options that cannot be used. One line, for the user."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that nothing is called: the nearest that there is."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def in_plain_words(message: str) -> str:
    """Words of argparse's as one says them to a user: without its types, and without 'argument'."""
    message = re.sub(r"^argument (?:(?:COMMAND|ACTION): )?", "", message)
    message = re.sub(r"invalid \w+ value: ", "invalid value ", message)
    return re.sub(r"^the following arguments are required: ", "give ", message)


def say(text: str) -> None:
    """A line for the user, on stderr."""
    echo(f"mmscope: {text}", file=sys.stderr)


def progress_line(words: Callable[[int, int], str]) -> Callable[[int, int], None] | None:
    """
    Progress in a line of a terminal, five times a second; silence in a pipe.

    :param words: for two numbers that say how far it has come.
    """
    if not sys.stderr.isatty():
        return None
    last = 0.0

    def show(done: int, other: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            echo(words(done, other), begin="\r", end="\x1b[K\r", file=sys.stderr)

    return show


def discard_output() -> None:
    """Drop what could not be written: Python would fail over it again at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def unexpected(error: Exception) -> str:
    """An error that no code foresaw, in a line."""
    return f"{type(error).__name__}: {error}"


def run_and_explain(args: argparse.Namespace) -> int:
    """
    Run a command; an error is a line that says what to do. Returns the exit code.

    :param args: with ``run``, as of :func:`options.declaring`; ``verbose``, whether a traceback is
        wanted; ``unopened``, the errors that mean that there is nothing to read; ``explain``, the
        words for an error of no other kind.
    """
    try:
        run = pkgutil.resolve_name(args.run) if isinstance(args.run, str) else args.run
        code: int = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        discard_output()
        return DONE
    except KeyboardInterrupt:
        say("interrupted; nothing is left half-written")
        return 130
    except Exception as error:
        if args.verbose:
            import traceback

            echo(*traceback.format_exc().splitlines(), sep="\n", file=sys.stderr)
        if isinstance(error, OSError):
            say(f"{error.filename or 'output'}: {error.strerror or error}")
            discard_output()
        elif isinstance(error, (*args.unopened, UsageError)):
            say(str(error))
        elif isinstance(error, MemoryError):
            say(str(error) or "this takes more memory than is left here")
            return NO_TARGET
        elif isinstance(error, ImportError) and (why := too_old()):
            # Tables are declared in the files of the probes, which import drgn's helpers.
            say(why)
        elif isinstance(error, ModuleNotFoundError):
            say(
                f"this needs {error.name}, which is not installed: {FULL_INSTALL}; "
                "or carry the bundle to where that is installed"
            )
        else:
            say(f"{args.explain(error)}; -v shows where")
            return NO_TARGET
        return NO_TARGET if isinstance(error, args.unopened) else BAD_USAGE
