# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mmscope mcp``: answer a client of the Model Context Protocol from bundles and lakes."""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.options import REDACT, Command
from mmscope.reports.bundle.outcome import DONE, UsageError
from mmscope.reports.bundle.redact import Names, redacted


def add_command(command: Command) -> None:
    """Declare ``mcp``."""
    sub = command(
        "mcp",
        run_mcp,
        "answer a program's questions about bundles and lakes (Model Context Protocol)",
        "Answer a client of the Model Context Protocol, on standard input and output, until it "
        "ends: why, findings, evidence, tables, show, query (one SELECT, without files or "
        "network), compare. It only reads. Each CASE is asked for by the name of its folder.",
    )
    sub.add_argument("cases", nargs="+", metavar="CASE", help="a bundle or a lake")
    sub.add_argument("--redact", **REDACT)


def run_mcp(args: argparse.Namespace) -> int:
    try:
        from mmscope.reports.serving.mcp_server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("mcp", "mcp_types"):
            raise
        raise UsageError(
            f"mcp needs the package {error.name}: pip install 'mmscope[report,mcp]'"
        ) from error
    from mmscope.reports.lake.layout import DESCRIPTION
    from mmscope.reports.serving.answers import Case
    from mmscope.reports.serving.lake_answers import LakeCase

    lakes = [
        path for path in args.cases if "://" in path or os.path.lexists(Path(path, DESCRIPTION))
    ]
    if lakes and args.redact:
        raise UsageError(
            f"{lakes[0]}: a lake is not redacted; redact bundles before they are added"
        )
    names = named(args.cases)
    bundles = {names[path]: Bundle(Path(path)) for path in args.cases if path not in lakes}
    with ExitStack() as stack:
        shown = stack.enter_context(redacted(bundles.values(), Names() if args.redact else None))
        labels = [f"case-{n}" for n, _ in enumerate(shown, 1)] if args.redact else list(bundles)
        cases: dict[str, Case | LakeCase] = {
            label: Case(label, bundle) for label, bundle in zip(labels, shown, strict=True)
        }
        cases |= {names[path]: LakeCase(names[path], path) for path in lakes}
        serve(cases)
    return DONE


def named(paths: list[str]) -> dict[str, str]:
    """Short names of cases: of their folders, numbered where two have the same."""
    names: dict[str, str] = {}
    for path in paths:
        name = short = os.path.basename(os.path.normpath(path)) or path
        number = 1
        while name in names.values():
            name = f"{short}-{(number := number + 1)}"
        names[path] = name
    return names
