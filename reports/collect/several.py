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
to do. So while the first walks page tables, the others do what takes long and no more; what does
not is left for when the walk is done, beside the rows that one makes of it.

Costs a fork for each process but the first, some 10 ms; modules that two of them import.

Cannot: share what is read of a running kernel, whose sections would be of other times than those of
one process are; nor what is redacted, as names are numbered in the order in which they are met.
"""

import functools
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Section
from mmscope.drgn.tables.bounds import Impossible
from mmscope.drgn.tables.record import record
from mmscope.drgn.workers.workers import Beside, Died, Left, Tell
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
    def parts_of(these: Sequence[Section], shown: bool) -> dict[str, Part]:
        return {spec.name: Part(*read(spec, shown), writer.hand_over()) for spec in these}

    died: list[str] = []
    with _Helpers(specs[1:], source, parts_of) as helpers:
        source.passed = helpers.begin
        parts = parts_of(specs[:1], True)
        if source.passed is not None:  # the pass has failed
            source.passed = None
            helpers.begin()
        parts |= helpers.first()
        for result in helpers.results():
            if isinstance(result, Died):
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


class _Helpers:
    """The processes that read sections, of which the first one forks the others."""

    def __init__(
        self,
        specs: Sequence[Section],
        source: Memory,
        parts_of: Callable[[Sequence[Section], bool], dict[str, Part]],
    ) -> None:
        self._walks, long, short = _groups(specs)
        self._long, self._short = _Queue(long, parts_of), _Queue(short, parts_of)
        self._source, self._parts_of = source, parts_of
        self._further = min(source.jobs - 1, len(long) + len(short))
        self._idle = mmap.mmap(-1, 1 + self._further)  # what all see: a byte for each process
        self._walked, self._tell_walked = os.pipe()
        self._children: list[Beside] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children:
            child.end()
        for queue in (self._long, self._short):
            queue.left.close()
        for pipe in (self._walked, self._tell_walked):
            os.close(pipe)
        self._idle.close()

    def begin(self) -> None:
        """The pass is done."""
        self._source.busy = lambda: sum(
            child.busy() and not self._idle[number]
            for number, child in enumerate(self._children, 1)
        )
        for number in range(1, self._further + 1):
            self._children.append(Beside(functools.partial(self._help, number)))

    def first(self) -> dict[str, Part]:
        """What the first process reads: the walk, what else is made of it, and what is left."""
        found = self._parts_of(self._walks[:1], True)
        os.write(self._tell_walked, bytes(self._further))
        found |= self._parts_of(self._walks[1:], True)
        found |= self._long.read(True) | self._short.read(True)
        self._idle[0] = 1
        return found

    def _help(self, number: int, tell: Tell) -> dict[str, Part]:
        """What another one reads."""
        self._source.progress = None  # the terminal is the first process's
        self._source.busy = lambda: self._further - sum(self._idle[:])
        found = self._long.read(False)
        self._idle[number] = 1
        os.read(self._walked, 1)
        self._idle[number] = 0
        found |= self._short.read(False)
        self._idle[number] = 1
        return found

    def results(self) -> Iterator[dict[str, Part] | Died]:
        """What each of the others has read."""
        for child in self._children:
            yield child()


class _Queue:
    """Groups of sections, of which each process takes the next one."""

    def __init__(
        self,
        groups: Sequence[Sequence[Section]],
        parts_of: Callable[[Sequence[Section], bool], dict[str, Part]],
    ) -> None:
        self.left = Left(len(groups))
        self._groups, self._parts_of = groups, parts_of

    def read(self, shown: bool) -> dict[str, Part]:
        found: dict[str, Part] = {}
        for number in self.left.of(0):
            found |= self._parts_of(self._groups[number], shown)
        return found


def _groups(
    specs: Sequence[Section],
) -> tuple[list[Section], list[list[Section]], list[list[Section]]]:
    """By folder: what the first process begins with, then those that take long, then the others."""
    groups: dict[str, list[Section]] = {name: [] for name in (SHARED, *LONGEST)}
    for spec in specs:
        # mmscope.drgn.rmap.sections
        groups.setdefault(spec.from_memory.__module__.split(".")[-2:][0], []).append(spec)
    first, *others = groups.values()
    long, short = others[: len(LONGEST)], others[len(LONGEST) :]
    return first, list(filter(None, long)), short


def _lost(spec: Section, died: list[str]) -> Part:
    words = f"the process that read it {' or '.join(died)}"
    return Part(SectionResult(spec.name, "failed", 0.0, 0, 0, words), [], [])
