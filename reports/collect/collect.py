# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Running the sections over a target and writing what they found as a bundle.

Each section is on its own (``run_section``): what goes wrong in it costs itself, while the others
go on.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from mmscope.drgn.log.kernel_log import join_logs
from mmscope.drgn.opening.target import Target
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Section
from mmscope.drgn.tables.bounds import Impossible, Machine
from mmscope.drgn.tables.table import table_of
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.redact import RedactingWriter
from mmscope.reports.bundle.writer import Writer
from mmscope.reports.collect.run_section import run_section

# (section, its title, pages done, pages in all); pages are 0 where they are not known
Progress = Callable[[str, str, int, int], None]
# That a section is begun for.
LEAST_SECONDS = 0.1


@dataclass
class Beside:
    """
    Inputs beside a source.

    :ivar files: text beside a kernel's memory: a log, which is joined with its own, and sections
        that memory has nothing of.
    :ivar write: writes more tables; it says which sections these are.
    :ivar instead: sections that it writes, and the source does not.
    :ivar seconds: that all sections may take; each at most half of what is left.
    """

    files: Files | None = None
    write: Callable[[Writer | RedactingWriter], list[SectionResult]] | None = None
    instead: tuple[str, ...] = ()
    seconds: float | None = None


def collect(
    source: Memory | Files,
    target: Target,
    writer: Writer | RedactingWriter,
    only: Sequence[str] = (),
    *,
    notes: dict[str, str] | None = None,
    progress: Progress | None = None,
    verbose: bool = False,
    more: Beside | None = None,
) -> list[SectionResult]:
    """
    Run the sections and write the bundle; returns how they fared.

    :param only: names of sections; all of them if empty.
    :param notes: more to say about the target, for ``datapackage.json``.
    :param more: what was given beside the source.
    """
    # Imports every probe, which one that is run by itself need not.
    from mmscope.drgn.sections.registry import SECTIONS, consumers

    sections: list[SectionResult] = []
    marks: list[Impossible] = []
    machine = Machine.of(asdict(target))
    specs = [spec for spec in SECTIONS.values() if not only or spec.name in only]
    more = more or Beside()
    specs = [spec for spec in specs if spec.name not in more.instead]
    if isinstance(source, Memory):
        source.consumers = consumers
        if more.files:
            join_logs(source, more.files)

    ends = time.monotonic() + more.seconds if more.seconds is not None else None
    for spec in specs:
        if ends is not None:
            left = ends - time.monotonic()
            if left < LEAST_SECONDS:
                why = f"not read: {more.seconds:g} s (--deadline) were over"
                sections.append(SectionResult(spec.name, "failed", 0.0, 0, 0, why))
                continue
            spec = replace(spec, deadline=min(spec.deadline, left / 2))
        if progress is not None:
            _announce(spec, source, progress)
        section, found = run_section(spec, source, machine, verbose=verbose)
        if section.status in ("absent", "failed") and more.files:
            other = run_section(spec, more.files, machine, verbose=verbose)
            section, found = other if other[0].status in ("ok", "partial") else (section, found)
        for filled in found.tables:
            table = filled.table
            writer.table(table.name, table.title, table.row, filled.rows, section=spec.name)
        for name, title, unit, stacks in found.folded:
            writer.folded(name, title, stacks, unit=unit, section=spec.name)
        sections.append(section)
        marks += found.impossible
    if more.write:
        sections += more.write(writer)
    if marks:
        values = table_of(Impossible)
        writer.table(values.name, values.title, values.row, marks, section="sections")
    writer.finish({**asdict(target), **(notes or {})}, sections)
    return sections


def _announce(spec: Section, source: Memory | Files, progress: Progress) -> None:
    progress(spec.name, spec.title, 0, 0)
    if isinstance(source, Memory):
        source.progress = lambda done, total: progress(spec.name, spec.title, done, total)
