# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The parts of ``/sys/kernel/debug/page_owner``'s records: each as printed, what it means, and how
often it was counted.

Costs a regular expression for each part that was not seen before, and 1 µs for each stack that a
task was not seen with.

It cannot know: whether two parts of different text mean the same.
"""

import re
from typing import Any

from mmscope.drgn.text.page_owner_records import (
    BARE,
    BETWEEN,
    HEAD,
    TYPES,
    parse_stack,
    parse_tail,
    parse_task,
    split_lines,
    split_rest,
)
from mmscope.drgn.text.page_owner_selection import Selection

MAX_ORDER = 30  # twice what any kernel has; 1 << 30 pages fit a table
ORDERS = (0,) * (MAX_ORDER + 1)
# In place of a part that the selection does not want, or that is not what the kernel prints.
UNWANTED: tuple[()] = ()
UNREADABLE = False
# What ends the part of the first line that many records share: the time, or where there is none
# the line itself.
TIME, PLACE = b", ts ", b"\nPFN "
# What is printed between that and " type ".
TIMED = re.compile(rb"[0-9]+ ns(?:, free_ts [0-9]+ ns)?\nPFN (?:0x)?[0-9a-f]+")
UNTIMED = re.compile(rb"(?:0x)?[0-9a-f]+")
RECORD = re.compile(HEAD % b"()[0-9]+")
BARE_RECORD = re.compile(BARE)
# Of what follows the second line, which bytes to know it by, of one task: behind the allocator's
# own frames, mostly.
NEAR_BEGIN, NEAR_END = 130, 230
# How many that have these bytes in common are told apart without looking at all of their text.
MAX_ALIKE = 8
# Where the end of a record is looked for at first: to search further takes a preparation.
NEAR_BYTES = 8 << 10


class Task:
    """The first line of records up to its time, what it says, and how many have it."""

    __slots__ = ("allocations", "fields", "order")

    def __init__(self, order: int, fields: tuple[Any, ...]) -> None:
        self.order, self.fields, self.allocations = order, fields, 0


class Part:
    """Another part of records, what it says, and how many have it, by their order."""

    __slots__ = ("by_order", "fields")

    def __init__(self, fields: tuple[Any, ...]) -> None:
        self.fields, self.by_order = fields, [*ORDERS]

    def row(self) -> tuple[int, int]:
        """(pages, allocations)."""
        pages = sum([number << order for order, number in enumerate(self.by_order) if number])
        return pages, sum(self.by_order)


class Rest:
    """
    What follows the second line in records of one task, and how many have it.

    :ivar text: as printed, with :data:`BETWEEN` behind it.
    :ivar wanted: it is to be counted at all.
    :ivar other: one that has the bytes in common by which this is known, behind which there may be
        more; depth: how many.
    """

    __slots__ = ("count", "depth", "other", "size", "stack", "tail", "text", "wanted")

    def __init__(self, text: bytes, stack: Any, tail: Any, *, wanted: bool) -> None:
        self.text, self.size, self.stack, self.tail = text, len(text), stack, tail
        self.wanted, self.count, self.depth = wanted, 0, 0
        self.other: Rest | None = None


class Head:
    """
    A first line up to its time, and what its records have behind their second lines.

    :ivar near: by some bytes of it.
    :ivar whole: by its text.
    """

    __slots__ = ("near", "order", "task", "whole")

    def __init__(self, task: Any) -> None:
        self.task = task
        self.order: int = task.order if task else 0
        self.near: dict[bytes, Rest] = {}
        self.whole: dict[bytes, Rest] = {}


class Seen:
    """
    Parts of records as printed, each with what it means and how often it was counted.

    An entry is UNWANTED where the selection does not want it, and UNREADABLE where it is not what
    the kernel prints: looked at once, then as quick as a wanted one.

    :ivar edge: what ends the part of a first line that many records share.
    """

    def __init__(self, selection: Selection, *, bare: bool = False) -> None:
        self.selection, self.bare = selection, bare
        self.edge = PLACE if bare else TIME
        self.tasks: dict[bytes, Any] = {}  # order, mask, its names, pid, tgid, comm
        self.stacks: dict[bytes, Any] = {}  # handle, stack
        self.tails: dict[bytes, Part] = {}  # memcg, migrate reason, unknown lines
        self.places: dict[tuple[bytes, bytes], Part] = {}  # of the page, of the pageblock
        # Ways to them: a first line up to its edge; the second line from " type " to its last
        # parenthesis; what follows it, so that each text is kept once.
        self.heads: dict[bytes, Head] = {}
        self.lines: dict[bytes, Part] = {}
        self.rests: dict[bytes, tuple[bytes, Any, Any]] = {}
        self.pairs: list[tuple[Head, Rest]] = []
        self.bytes = 0
        self.width = 0  # of what is between the first line's end and " type ", of the last record

    def size(self) -> int:
        """Bytes that it takes, about."""
        return self.bytes + 300 * len(self.lines) + 600 * len(self.pairs)

    def clear(self) -> None:
        """Forget the parts."""
        for parts in (self.tasks, self.stacks, self.tails, self.places):
            parts.clear()
        for ways in (self.heads, self.lines, self.rests, self.pairs):
            ways.clear()
        self.bytes = 0

    def place(self, page_type: bytes, block_type: bytes) -> Part:
        """The entry of two migratetypes, which is made if it is new."""
        types = page_type, block_type
        if types not in self.places:
            self.places[types] = Part(types)
        return self.places[types]

    def line(self, text: bytes, begin: int, line: int, end: int) -> tuple[int, Part | None]:
        """
        How far behind *line*, the end of the first line, the second has " type ", and the entry of
        its migratetypes; None if these are not such lines.

        :param begin: where the first line has what is behind its edge.
        :param end: where the second has its last parenthesis.
        """
        where = text.find(b" type", line, end)
        numbers = UNTIMED if self.bare else TIMED
        if where < 0 or not numbers.fullmatch(text, begin, where):
            return 0, None
        printed = text[where:end]
        place = self.lines.get(printed)
        if place is None and (types := TYPES.fullmatch(printed)):
            place = self.lines[printed] = self.place(*types.groups())
        return where - line, place

    def task(self, head: bytes) -> Any:
        """The entry of a first line up to its time, or whole; None if it is not one."""
        if head not in self.tasks:
            fields = parse_task(head)
            if fields is None:
                return None
            order, *_ = fields
            if order > MAX_ORDER:
                self.tasks[head] = UNREADABLE
            else:
                wanted = self.selection.task(fields)
                self.tasks[head] = Task(order, fields) if wanted else UNWANTED
            self.bytes += len(head) + 300
        return self.tasks[head]

    def head(self, text: bytes) -> Head | None:
        """A first line with its edge; None if it is not one."""
        if self.bare and TIME in text:
            return None  # of a kernel that prints times
        task = self.task(text.removesuffix(PLACE))
        if task is None:
            return None
        self.bytes += len(text) + 600
        self.heads[text] = head = Head(task)
        return head

    def stack(self, text: bytes) -> Any:
        """The entry of a stack with its handle; None if it is not one."""
        if text not in self.stacks:
            fields = parse_stack(text)
            if fields is None:
                return None
            _, stack = fields
            self.stacks[text] = Part(fields) if self.selection.stack(stack) else UNWANTED
            self.bytes += 2 * len(text) + 300
        return self.stacks[text]

    def tail(self, text: bytes) -> Part:
        """The entry of the lines after a stack."""
        if text not in self.tails:
            self.tails[text] = Part(parse_tail(text))
            self.bytes += len(text) + 300
        return self.tails[text]

    def rest(self, text: bytes, end: int, head: Head) -> Rest | None:
        """What follows a second line that ends at *end*; None if it does not parse."""
        stop = text.find(BETWEEN, end, end + NEAR_BYTES)
        if stop < 0:
            stop = text.find(BETWEEN, end)
        printed = text[end : stop + len(BETWEEN)]
        rest = head.whole.get(printed)
        if rest is None:
            known = self.rests.get(printed)
            if known is None:
                before, others = split_rest(text[end:stop])
                stack = self.stack(before)
                if stack is None:
                    return None
                known = self.rests[printed] = printed, stack, self.tail(others)
                self.bytes += len(printed) + 300
            wanted = bool(head.task and known[1])
            rest = head.whole[known[0]] = Rest(*known, wanted=wanted)
            self.pairs.append((head, rest))
            # Bytes behind its end are another record's.
            if rest.size >= NEAR_END:
                near = rest.text[NEAR_BEGIN:NEAR_END]
                alike = head.near.get(near)
                if alike is None or alike.depth < MAX_ALIKE:
                    rest.other, rest.depth = alike, alike.depth + 1 if alike else 0
                    head.near[near] = rest
        return rest

    def record(self, text: bytes, position: int) -> tuple[Any, Any, Any, Any, int]:
        """The entries of a whole record by a regular expression, and where the next begins."""
        stop = text.find(BETWEEN, position)
        found = (BARE_RECORD if self.bare else RECORD).match(text, position, stop)
        entries: tuple[Any, Any, Any, Any] = UNREADABLE, UNREADABLE, None, None
        if found:
            first, _, page_type, block_type, rest = found.groups()
            entries = self.entries(first, page_type, block_type, rest)
        return *entries, stop + len(BETWEEN)

    def entries(
        self, first: bytes, page_type: bytes, block_type: bytes, text: bytes
    ) -> tuple[Any, Any, Any, Any]:
        """The entries of a record's parts, UNREADABLE for a task or stack that does not parse."""
        printed, others = split_rest(text)
        stack = self.stack(printed)
        if stack is None:
            printed, others = split_lines(text)
            stack = self.stack(printed)
        task = self.task(first if self.bare else first + TIME)
        return (
            UNREADABLE if task is None else task,
            UNREADABLE if stack is None else stack,
            self.tail(others),
            self.place(page_type, block_type),
        )
