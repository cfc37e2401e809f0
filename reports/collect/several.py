# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Sections of a dump, read by several processes at a time.

Most need the pass over the struct pages, which the first section makes; processes that are forked
when it is done, while the first process goes on with that section, have what it kept. Each takes
one group of sections after the other, until none is left, and writes their tables where the bundle
is made. What is in a bundle, and in which order, is as if one process had read all. Sections of one
folder of ``drgn/`` share what they read, so that they are one group.

A process that is killed costs all sections that it took. Passes and walks that several can share
as well (page tables, folios) are begun by one, which gets the others' places as these have nothing
more to do.

Costs a fork for each process but the first, some 10 ms; modules that two of them import.

Cannot: share what is read of a running kernel, whose sections would be of other times than those of
one process are; nor what is redacted, as names are numbered in the order in which they are met.
"""

import contextlib
import functools
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Section
from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.record import record
from mmscope.drgn.workers.workers import Beside, Died, Tell, beside
from mmscope.reports.bundle.description import SectionResult
from mmscope.reports.bundle.redact import RedactingWriter
from mmscope.reports.bundle.writer import Writer

PASSES = "memory_ledger"  # the section that makes the pass for all
SHARED = "page_tables"  # the folder whose work several processes share
LONGEST = ("rmap", "free")  # the folders that are begun with

Fared = tuple[SectionResult, list[Impossible]]
Read = Callable[[Section, bool], Fared]


@record
class Part:
    """What one section left: how it fared, values that cannot be, its tables as described."""

    section: SectionResult
    impossible: list[Impossible]
    resources: list[dict[str, Any]]


def read_all(
    specs: Sequence[Section], source: Memory | Files, writer: Writer | RedactingWriter, read: Read
) -> Iterator[Fared]:
    """
    How each section fared, in their order; their tables are then the writer's, in that order.

    :param read: reads a section and writes its tables; whether it may show how far it is.
    """
    if (
        isinstance(source, Memory)
        and source.jobs > 1
        and not source.live
        and isinstance(writer, Writer)
        and len(specs) > 1
        and specs[0].name == PASSES
    ):
        return _by_several(specs, source, writer, read)
    return (read(spec, True) for spec in specs)


def _by_several(
    specs: Sequence[Section], source: Memory, writer: Writer, read: Read
) -> Iterator[Fared]:
    def parts_of(these: Sequence[Section], shown: bool = True) -> dict[str, Part]:
        return {spec.name: Part(*read(spec, shown), writer.hand_over()) for spec in these}

    first, *others = _groups(specs[1:])
    queue = _queue(len(others))
    further = min(source.jobs - 1, len(others))
    idle = mmap.mmap(-1, 1 + further)  # what all see: a byte for each process

    def read_next(shown: bool) -> dict[str, Part]:
        found: dict[str, Part] = {}
        while number := os.read(queue, 1):
            found |= parts_of(others[number[0]], shown)
        return found

    def help_out(number: int, tell: Tell) -> dict[str, Part]:
        source.progress = None  # the terminal is the first process's
        source.busy = lambda: further - sum(idle[:])
        found = read_next(shown=False)
        idle[number] = 1
        return found

    died: list[str] = []
    helpers: list[Beside] = []
    with contextlib.ExitStack() as ends:
        ends.callback(os.close, queue)
        ends.callback(idle.close)

        def begin() -> None:
            source.busy = lambda: sum(helper.busy() for helper in helpers)
            for number in range(1, further + 1):
                work = functools.partial(help_out, number)
                helpers.append(ends.enter_context(beside(work)))

        source.passed = begin
        parts = parts_of(specs[:1])
        if source.passed is not None:  # the pass has failed
            source.passed = None
            begin()
        parts |= parts_of(first)
        parts |= read_next(shown=True)
        idle[0] = 1
        for helper in helpers:
            if isinstance(result := helper(), Died):
                died.append(result.how)
            else:
                parts |= result
    source.busy = lambda: 0
    for spec in specs:
        part = parts.get(spec.name) or _lost(spec, died)
        writer.take_over(part.resources)
        yield part.section, part.impossible
    if died:
        writer.remove_undescribed()


def _groups(specs: Sequence[Section]) -> list[list[Section]]:
    """By folder: what the first process begins with, then those that take long, then the others."""
    groups: dict[str, list[Section]] = {name: [] for name in (SHARED, *LONGEST)}
    for spec in specs:
        # mmscope.drgn.rmap.sections
        groups.setdefault(spec.from_memory.__module__.split(".")[-2:][0], []).append(spec)
    first, *others = groups.values()
    return [first, *filter(None, others)]


def _queue(count: int) -> int:
    """Gives each of so many numbers, as a byte, to one of those who read it; then nothing."""
    reader, writer = os.pipe()
    os.write(writer, bytes(range(count)))
    os.close(writer)
    return reader


def _lost(spec: Section, died: list[str]) -> Part:
    words = f"the process that read it {' or '.join(died)}"
    return Part(SectionResult(spec.name, "failed", 0.0, 0, 0, words), [], [])
