# SPDX-License-Identifier: LGPL-2.1-or-later
"""The options of commands that replace names on the way."""

import argparse
import contextlib
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from mmscope.reports.bundle.bundle import Bundle
from mmscope.reports.bundle.outcome import UsageError

if TYPE_CHECKING:  # loaded where names are replaced
    from mmscope.reports.bundle.redact import Names

REDACT_MAP_HELP = "write which name has which number, for yourself; by default it is not kept"


def add_redact_options(parser: argparse.ArgumentParser) -> None:
    """To replace names on the way."""
    parser.add_argument(
        "--redact", action="store_true", help="replace names, as 'mmscope redact' does"
    )
    parser.add_argument("--redact-map", type=Path, metavar="FILE", help=REDACT_MAP_HELP)


def wanted_names(args: argparse.Namespace) -> "Names | None":
    """What names are replaced by, if they are to be."""
    if args.redact_map is not None and not args.redact:
        raise UsageError("--redact-map goes with --redact")
    refuse_old_map(args.redact_map)
    if not args.redact:
        return None
    from mmscope.reports.bundle.redact import Names

    return Names()


def replacing(bundles: list[Bundle], names: "Names | None") -> AbstractContextManager[list[Bundle]]:
    """Bundles in which names are replaced, if they are to be."""
    if names is None:
        return contextlib.nullcontext(bundles)
    from mmscope.reports.bundle.redact import redacted

    return redacted(bundles, names)


def refuse_old_map(path: Path | None) -> None:
    """Before the work: a map that is there is that of another redaction."""
    if path is not None and os.path.lexists(path):
        raise UsageError(f"{path}: already exists; choose another name for the map")


def keep_map(names: "Names | None", path: Path | None) -> None:
    """Write what stands for what, if that is asked for."""
    if names is not None and path is not None:
        from mmscope.reports.bundle.redact import write_map

        write_map(names, path)
