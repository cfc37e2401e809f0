# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What samples are folded into: stacks, tasks, moments and allocations, with their counts.

Cannot know: what perf did not record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mmscope.perf.recipe import Event
from mmscope.perf.stack_parts import KnownFrames, Split

KERNEL = 1 << 63
NO_STACK = "(no stack)"
MAX_REGIONS = 1 << 20


@dataclass
class Folded:
    """
    One event of a recording.

    :ivar stacks: folded stack to [samples, period].
    :ivar removed: reason to samples.
    :ivar parts: (who, part) to samples.
    :ivar sites: (leaf where interrupts come on, its caller) to samples.
    :ivar found: what the recipe's ``group`` found in a tracepoint's text to samples.
    """

    event: str
    declared: Event | None
    samples: int = 0
    period: int = 0
    kernel_samples: int = 0  # whose leaf is in the kernel
    stacks: dict[str, list[int]] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    parts: dict[tuple[str, str], int] = field(default_factory=dict)
    sites: dict[tuple[str, str], int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)  # by what the tracepoint says
    overflow: int = 0
    # Where samples of a comm, a group and a stack are counted, found without the stack's text.
    known: dict[tuple[bytes, str, "Known"], list[int]] = field(default_factory=dict, repr=False)

    @property
    def recorded(self) -> int:
        """All samples that were read."""
        return self.samples + sum(self.removed.values())


@dataclass
class Task:
    """Faults of a process, by the addresses that it touched."""

    faults: int = 0
    first: int = KERNEL << 1
    last: int = 0
    regions: set[int] = field(default_factory=set)  # of what a PTE table maps


class TablePoint(NamedTuple):
    """How many tables of each level a process needed up to a fault."""

    ns: int  # since its first fault
    faults: int
    pte_tables: int
    pmd_tables: int
    pud_tables: int


class Growth:
    """
    The page tables that a process needs for the addresses of its faults: a table of entries for
    each region that one maps, a PMD table for each region of those, a PUD table for each of these.

    Kept at 16, 32, 64, … faults, and at the last one.

    Cannot know: tables that were there without a fault (of the parent, after fork(); of the stack
    before the program began; of MAP_POPULATE) or were given back meanwhile; and that a mapping of
    hugetlb needs no table of entries.
    """

    __slots__ = ("_bits", "_due", "_more", "faults", "first", "last", "points", "regions")

    def __init__(self, bits: int) -> None:
        """:param bits: of an address, those that choose an entry of a table."""
        self.faults, self.first, self.last = 0, b"", b""
        self.regions: tuple[set[int], set[int], set[int]] = set(), set(), set()
        self.points: list[TablePoint] = []
        self._bits, self._due, self._more = bits, 16, True

    def fault(self, region: int, printed: bytes) -> None:
        """
        Count one.

        :param region: number of the region that a PTE table maps. :param printed: when.
        """
        if not self._more:
            return
        pte, pmd, pud = self.regions
        if region not in pte:
            if len(pte) >= MAX_REGIONS:
                self._more = False
                return
            pte.add(region)
            pmd.add(region >> self._bits)
            pud.add(region >> 2 * self._bits)
        self.faults += 1
        self.first = self.first or printed
        self.last = printed
        if self.faults >= self._due:
            self._point()
            self._due *= 2

    def _point(self) -> None:
        pte, pmd, pud = map(len, self.regions)
        taken = nanoseconds(self.last) - nanoseconds(self.first)
        self.points.append(TablePoint(taken, self.faults, pte, pmd, pud))

    def finish(self) -> None:
        """All faults were counted."""
        if self.faults and (not self.points or self.points[-1].faults < self.faults):
            self._point()


def nanoseconds(printed: bytes) -> int:
    """A time as perf prints it, with six or nine decimals."""
    seconds, _, fraction = printed.partition(b".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, b"0"))


@dataclass(frozen=True)
class Moment:
    """When something rare happened."""

    time_ns: int
    event: str
    pid: int
    comm: str
    text: str


@dataclass
class Allocations:
    """
    Allocations of an order, as the recipe's ``tally`` sorts them.

    :ivar attempts: of which *failures* got no page.
    :ivar reservations: those that turned a pageblock into HighAtomic reserve.
    :ivar from_reserve: blocks that the reserve gave.
    """

    attempts: int = 0
    failures: int = 0
    reservations: int = 0
    from_reserve: int = 0


@dataclass
class Took:
    """How long something took each time, waits left out."""

    times: int = 0
    total: int = 0
    least: int = 1 << 63
    most: int = 0

    def add(self, taken: int) -> None:
        """Once more."""
        self.times += 1
        self.total += taken
        self.least = min(self.least, taken)
        self.most = max(self.most, taken)


@dataclass
class Again:
    """
    Samples of the part that the split's ``again`` is about.

    :ivar reaper: by who does it in a task's stead.
    :ivar beside: by the task meanwhile.
    :ivar after: by the task when that was done: once more.
    """

    reaper: int = 0
    beside: int = 0
    after: int = 0


class Known:
    """What a stack's text means."""

    __slots__ = (
        "caller", "folded", "idle", "interrupt", "kernel", "key", "leaf", "traced", "within",
    )  # fmt: skip

    def __init__(
        self, names: Sequence[str], symbols: Sequence[str], split: Split | None, known: KnownFrames
    ) -> None:
        """:param symbols: root first; empty strings for what is not the kernel's."""
        self.folded = ";".join(names) or NO_STACK
        self.kernel = bool(symbols and symbols[-1])
        begin = next((n for n, symbol in enumerate(symbols) if symbol in known.interrupt), None)
        self.interrupt = begin is not None
        # Of a tracepoint: without what calls its users, where arm64's stacks of it end.
        end = next((n for n, s in enumerate(symbols) if s.startswith("__traceiter_")), None)
        self.traced = ";".join(names[:end]) or NO_STACK
        # The same of one in an interrupt, without the task that this interrupts.
        self.within = ";".join(names[begin:end])
        self.idle = not self.interrupt and any(symbol in known.idle for symbol in symbols)
        self.key = split.classify(symbols) if split is not None else None
        self.leaf = self.caller = ""
        if symbols and not self.idle and known.stands_for(symbols[-1]):
            self.caller, self.leaf = ("", *symbols)[-2:]
