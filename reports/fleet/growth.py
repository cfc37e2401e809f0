# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What grew between two readings of one boot: the classes of each host's memory ledger.

The ledger is asked as findings are: one query over all hosts, the same text for DuckDB and Spark.
Of each host that has two ledgers of one boot, the newest such boot counts, and of it the oldest and
the newest ledger: both of struct pages, or both of the kernel's counters, whose classes differ.

Cannot know: what was between the two.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mmscope.drgn.tables.hostile_text import cut
from mmscope.reports.findings.findings import Question
from mmscope.reports.lake.asking import Answer
from mmscope.reports.lake.catalog import Taken, boots_of

LEDGER, OF_PAGES = "memory_ledger", "ledger_checks"
FREE = "free"
MAX_NAME = 200
CLASSES = Question(
    id="ledger-classes",
    about="Bytes of each class of the memory ledger",
    section=LEDGER,
    needs=("memory_ledger.bytes",),
    sql="""
select owner, sum(bytes)::bigint as bytes
from memory_ledger
group by owner
order by owner
""",
    # What a finding says of a row: these are no findings.
    severity="", title="", saw="", why="", worse="", next=(), sources=(), links=(),
)  # fmt: skip
# As finding watch-kernel-memory-grows has it: more than a burst of processes leaves, a thousandth
# of memory, and a twentieth more than before.
LEAST, OF_MEMORY, OF_BEFORE = 32 << 20, 1000, 20


@dataclass(frozen=True)
class Change:
    """
    A class of a host's memory that differs.

    :ivar gained: bytes; below zero it fell.
    :ivar seconds: between the two readings.
    """

    name: str
    bundle: Taken
    gained: int
    seconds: float


@dataclass
class Growth:
    """
    The ledgers of a lake.

    :ivar pairs: by host, the oldest and the newest ledger of a boot: numbers of bundles.
    """

    bundles: Sequence[Taken]
    pairs: dict[str, tuple[int, int]]
    _classes: dict[int, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, bundles: Sequence[Taken]) -> "Growth":
        """Of bundles in the order in which they were taken."""
        by_host: dict[str, list[Taken]] = {}
        for bundle in bundles:
            # One that was filed under the day on which it was added has no time of its own.
            if LEDGER in bundle.counts and not bundle.note:
                by_host.setdefault(bundle.host, []).append(bundle)
        number_of = {bundle.id: number for number, bundle in enumerate(bundles)}
        pairs = {}
        for host, readings in by_host.items():
            if pair := _pair(readings):
                pairs[host] = (number_of[pair[0].id], number_of[pair[1].id])
        return cls(bundles, pairs)

    def wanted(self) -> set[int]:
        """The bundles that are asked."""
        return {number for pair in self.pairs.values() for number in pair}

    def take(self, answer: Answer, first: int) -> None:
        """
        Take an answer in.

        :param first: number of the first bundle that was asked.
        """
        for number, rows in answer.rows.items():
            self._classes[first + number] = {
                cut(str(row["owner"]), MAX_NAME): row["bytes"] or 0 for row in rows
            }

    def known(self) -> int:
        """Hosts of which both ledgers could be read."""
        return sum(1 for _ in self._read())

    def _read(self) -> Iterator[tuple[int, int]]:
        for first, last in self.pairs.values():
            if first in self._classes and last in self._classes:
                yield first, last

    def changes(self) -> Iterator[Change]:
        """What differs by more than a machine does that has nothing."""
        for first, last in self._read():
            before, after = Counter(self._classes[first]), Counter(self._classes[last])
            least = max(LEAST, after.total() // OF_MEMORY)
            bundle = self.bundles[last]
            for name in sorted((before.keys() | after.keys()) - {FREE}):
                less, more = sorted((before[name], after[name]))
                if more - less >= max(least, less // OF_BEFORE):
                    seconds = bundle.at - self.bundles[first].at
                    yield Change(name, bundle, after[name] - before[name], seconds)


def _pair(readings: Sequence[Taken]) -> tuple[Taken, Taken] | None:
    """The oldest and the newest ledger of one boot, of the newest boot that has two."""
    for _, of_boot in reversed(boots_of(readings)):
        last = max(of_boot, key=lambda bundle: bundle.at)
        alike = [b for b in of_boot if (OF_PAGES in b.counts) == (OF_PAGES in last.counts)]
        first = min(alike, key=lambda bundle: bundle.at)
        if first.at < last.at:
            return first, last
    return None
