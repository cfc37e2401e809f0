# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope redact``: the names in a bundle replaced, to pass it on."""

import argparse

from mmscope.drgn.tables import display
from mmscope.drgn.tables.hostile_text import echo
from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.options import BUNDLE, REDACT_MAP, Command, add_output
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, say
from mmscope.reports.bundle.redact import (
    Names,
    redact,
    refuse_old_map,
    undeclared,
    write_map,
)


def add_command(command: Command) -> None:
    """Declare ``redact``."""
    sub = command(
        "redact",
        run_redact,
        "replace the names in a bundle, to pass it on",
        "Write a copy of a bundle in which numbers (comm-17, host-1) replace names of processes, "
        "functions of programs, commands, cgroups, hosts, files, labels, and of modules and slab "
        "caches that are not Linux's own. A name has the same number in all bundles that are given "
        "together. What the kernel says of itself stays: its release and symbols, threads such as "
        "kswapd0, settings, addresses, pids and times.",
    )
    sub.add_argument("bundles", nargs="+", **BUNDLE)
    several = "bundle to make; of several, the folder for bundle-1, bundle-2, …"
    add_output(sub, several, required=True, metavar="OUT")
    sub.add_argument("--redact-map", **REDACT_MAP)


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
        echo(f"{bundle.path}: {path}" if several else f"{path}")
    write_map(names, args.redact_map)
    return code
