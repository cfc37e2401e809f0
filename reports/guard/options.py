# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``mmscope guard``: its commands and their options.

Imports no drgn, numpy or rich. Exit codes as of ``mmscope``.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from shlex import split
from shutil import which

from mmscope.drgn.text.text_source import TextError
from mmscope.reports.bundle.options import PROC_ROOT, Command, declaring, option, positive, seconds
from mmscope.reports.bundle.outcome import unexpected

FOLDER = Path("/var/lib/mmscope/guard")
CRASHES = Path("/var/crash")
RUN = "mmscope.reports.guard.guard:run"


def add_command(command: Command) -> None:
    """Declare ``guard``."""
    sub = command(
        "guard",
        RUN,
        "capture incidents as they happen, and crashes afterwards, with a report of each",
        "Watch this host at little cost, and capture a bundle and a report when a trigger fires: "
        "an OOM kill, memory pressure, huge pages that run out, an allocation that fails, kernel "
        "memory that only grows. Captures are folders with an index page beside them.",
    )
    sub.set_defaults(unopened=(TextError, OSError), explain=unexpected)
    declare = declaring(sub.add_subparsers(required=True, metavar="ACTION"))

    def action(
        name: str, run: Callable[[argparse.Namespace], int] | str, help: str, text: str
    ) -> argparse.ArgumentParser:
        one = declare(name, run, help, text)
        option(one, "-o --output DIR", f"folder of captures, default {FOLDER}", Path, FOLDER)
        return one

    watch = action(
        "run",
        RUN,
        "watch until a signal ends it; SIGUSR1 captures",
        "Watch until SIGTERM or Ctrl-C. SIGUSR1, or 'mmscope guard trigger', captures by hand.",
    )
    add_run(watch)
    action("trigger", run_trigger, "have a running guard capture now", "Capture now, by hand.")
    crash = action(
        "crash",
        "mmscope.reports.guard.crash:run",
        "make captures of vmcores that have none yet",
        "Look for vmcores, and make a capture of each that has none yet: a bundle, findings and a "
        "report out of the dump alone.",
    )
    crash.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[CRASHES],
        metavar="PATH",
        help=f"vmcores, or folders as kdump leaves them; default {CRASHES}",
    )
    option(
        crash,
        "--settled S",
        "leave a dump alone that was written to within so many seconds, default 20",
        seconds,
        20.0,
    )
    add_limits(crash, timeout=1800.0)


def add_run(sub: argparse.ArgumentParser) -> None:
    """The options of ``guard run``."""
    option(sub, "--interval S", "time between samples, default 5", positive, 5.0)
    option(sub, "--minutes N", "minutes kept, default 15", positive, 15.0)
    option(
        sub,
        "--distance S",
        "least time from the end of a capture to the next, default 10; each trigger has one "
        "of its own as well",
        seconds,
        10.0,
    )
    option(
        sub,
        "--triggers DIR",
        "more triggers, NAME.toml: one of a known name takes its place",
        Path,
        [],
        action="append",
    )
    sub.add_argument("--text", action="store_true", help="do not read the kernel's memory")
    sub.add_argument(
        "--no-profile",
        dest="profile",
        action="store_false",
        help="record no profile, which triggers of stalls ask for: five seconds at 99 Hz",
    )
    option(
        sub,
        "--collect WORDS",
        "more words for 'mmscope collect': --collect='--only zones,oom_kills'",
        default="",
    )
    option(
        sub,
        "--openmetrics FILE",
        "write the last sample and what guard did there, as 'mmscope watch' does",
        Path,
    )
    sub.add_argument("--proc-root", **PROC_ROOT)
    add_limits(sub, timeout=300.0)


def add_limits(sub: argparse.ArgumentParser, timeout: float) -> None:
    """Options of what a capture may take, and who is notified."""
    option(
        sub,
        "--limit MIB",
        "most that all captures may take on disk, default 512; beyond it, the oldest capture "
        "of the trigger that has most of them is removed",
        positive,
        512.0,
    )
    option(
        sub,
        "--timeout S",
        f"longest that a capture may take, default {timeout:g}; what it has by then is kept",
        seconds,
        timeout,
    )
    option(
        sub,
        "--exec COMMAND",
        "run this when a capture begins, beside it, and when it is done, without a shell: "
        "MMSCOPE_STATE, _TRIGGER, _SEVERITY, _TITLE, _CAPTURE and _ALERT are in its environment, "
        "and an alert as Alertmanager takes it on its standard input",
        _command,
    )


def _command(text: str) -> str:
    """A command that can be run, for argparse."""
    try:
        words = split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("names no command")
    if which(words[0]) is None:
        raise argparse.ArgumentTypeError(f"{words[0]}: no such command")
    return text


def run_trigger(args: argparse.Namespace) -> int:
    from mmscope.reports.guard import guard

    return guard.ask_for_one(args.output)
