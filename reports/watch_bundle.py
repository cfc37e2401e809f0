# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundle of what ``mmscope watch`` sampled, and what the terminal says of it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from page_owner_series import read_series
from text_source import TextError

from reports import page_owner, watch_tables
from reports.bundle import Section, Writer
from reports.page_owner_command import DONE, INCOMPLETE, print_findings, say
from reports.sample_log import NAME


def finish(args: argparse.Namespace, folder: Path) -> int:
    """
    Make the bundle, print what stands out, and say what is missing; returns the exit code.

    :raises TextError: the samples cannot be read.
    """
    begin = time.monotonic()
    with Writer(args.output, replace=args.force) as writer:
        try:
            log = watch_tables.open_log(folder / NAME)
            size = log.header["target"]["page_size"]
            rows, cost = watch_tables.write_tables(writer, log)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, TextError):
                raise
            raise TextError(f"{folder / NAME}: damaged: {error!r}") from error
        sections = [watch_tables.section(log, rows, cost, time.monotonic() - begin)]
        copies = sorted(folder.glob("show_[hs]*.[0-9]*"))
        if copies:
            resolvers = [str(path) for path in folder.glob("show_stacks_handles")]
            series = read_series([str(path) for path in copies], resolvers)
            fared, stacks, growth = page_owner.write_tables(
                writer, series, size, seconds=time.monotonic() - begin
            )
            sections.append(fared)
        else:
            why = log.header["page_owner"]
            sections.append(Section(page_owner.SECTION, "absent", 0.0, 0, 0, why))
        writer.finish(watch_tables.target(log), sections)
    for line in watch_tables.summary(log, cost):
        print(line)
    if copies:
        print()
        page_owner.print_top(stacks, growth, size)
    print_findings(args.output, [s.section for s in sections if s.status != "absent"])
    missing = [s for s in sections if s.status not in ("ok", "absent")]
    for section in missing:
        say(f"{section.section}: {section.status}: {section.message}")
    return INCOMPLETE if missing else DONE
