# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope redact``, and the options of other commands to replace names on the way."""

import argparse
import os
from pathlib import Path
from typing import Any

from mmscope.drgn.tables import display
from mmscope.reports.bundle import modes
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, UsageError, say
from mmscope.reports.bundle.redact import Names, RedactingWriter, redact, undeclared, write_map
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.commands.page_owner_command import Command

REDACT_MAP_HELP = "write which name has which number, for yourself; by default nobody can know"


def add_command(command: Command) -> None:
    """Declare ``redact``."""
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


def redacting(writer: Writer, names: Names, target: dict[str, Any]) -> RedactingWriter:
    """The same writer, which replaces names first."""
    return RedactingWriter(writer, names, target)


def keep_map(names: Names | None, path: Path | None) -> None:
    """Write what stands for what, if that is asked for."""
    if names is not None and path is not None:
        write_map(names, path)


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
