# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundle of what ``mmscope watch`` sampled, and what the terminal says of it."""

import argparse
import dataclasses
import time
from pathlib import Path

from mmscope.drgn.tables import display
from mmscope.drgn.text.page_owner_series import read_series
from mmscope.drgn.text.text_source import TextError
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.outcome import DONE, INCOMPLETE, say
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.findings.findings_said import print_findings
from mmscope.reports.watch import page_owner, page_owner_tables, watch_tables
from mmscope.reports.watch.sample_log import NAME


def finish(args: argparse.Namespace, folder: Path) -> int:
    """
    Make the bundle, print what stands out, and say what is missing; returns the exit code.

    :raises TextError: the samples cannot be read.
    """
    begin = time.monotonic()
    with Writer(args.output, replace=args.force, mode=args.mode) as writer:
        try:
            log = watch_tables.open_log(folder / NAME)
            target, why = watch_tables.target(log), log.header["page_owner"]
            size = target["page_size"]
            if not isinstance(size, int) or size <= 0 or not isinstance(why, str | None):
                raise ValueError(f"page_size {size!r}, page_owner {why!r}")
            rows, cost = watch_tables.write_tables(writer, log)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, TextError):
                raise
            raise TextError(f"{folder / NAME}: damaged: {display.cut(repr(error), 200)}") from error
        sections = [watch_tables.section(log, rows, cost, time.monotonic() - begin)]
        found = sorted(folder.glob("show_[hs]*.[0-9]*"))
        copies = [str(path) for path in found if path.is_file()]
        resolvers = [str(path) for path in folder.glob("show_stacks_handles") if path.is_file()]
        # What is wrong with the copies takes nothing from the samples.
        try:
            series = read_series(copies, resolvers) if copies else None
        except (OSError, TextError) as error:
            series, why = None, str(error)
        if series is not None:
            fared, stacks, growth = page_owner_tables.write_tables(
                writer, series, size, seconds=time.monotonic() - begin
            )
            if len(copies) < len(found):
                others = f"{len(found) - len(copies)} of {len(found)} copies are not plain files"
                words = "; ".join(filter(None, (fared.message, others)))
                fared = dataclasses.replace(fared, status="partial", message=words)
            sections.append(fared)
        else:
            status = "failed" if found else "absent"
            why = why or "its copies are not plain files" if found else why
            sections.append(SectionResult(page_owner.SECTION, status, 0.0, 0, 0, why))
        writer.finish(target, sections)
    for line in watch_tables.summary(log, cost):
        print(line)
    if series is not None:
        print()
        page_owner.print_top(stacks, growth, size)
    print_findings(args.output, [s.section for s in sections if s.status != "absent"])
    missing = [s for s in sections if s.status not in ("ok", "absent")]
    for section in missing:
        say(f"{section.section}: {section.status}: {section.message}")
    return INCOMPLETE if missing else DONE
