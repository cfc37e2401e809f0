# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Growth between two readings of one boot: the classes of each host's memory ledger.

The ledger is asked as findings are: one query over all hosts, the same text for DuckDB and Spark.
Of each host that has two ledgers of one boot, the newest such boot counts, and of it the oldest and
the newest ledger: both of struct pages, or both of the kernel's counters, whose classes differ.

Cannot know: what was between the two.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

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

# A class, the newest bundle of a host, bytes gained since the oldest, and seconds between the two.
Change = tuple[str, Taken, int, float]


def ledger_pairs(bundles: Sequence[Taken]) -> list[tuple[int, int]]:
    """
    Choose the oldest and the newest ledger of the newest boot that has two, of each host.

    :param bundles: in the order in which they were taken. :returns: numbers of them.
    """
    by_host: dict[str, list[Taken]] = {}
    for bundle in bundles:
        # One that was filed under the day on which it was added has no time of its own.
        if LEDGER in bundle.counts and not bundle.note:
            by_host.setdefault(bundle.host, []).append(bundle)
    number_of = {bundle.id: number for number, bundle in enumerate(bundles)}
    pairs = []
    for readings in by_host.values():
        for _, of_boot in reversed(boots_of(readings)):
            last = max(of_boot, key=lambda bundle: bundle.at)
            alike = [b for b in of_boot if (OF_PAGES in b.counts) == (OF_PAGES in last.counts)]
            first = min(alike, key=lambda bundle: bundle.at)
            if first.at < last.at:
                pairs.append((number_of[first.id], number_of[last.id]))
                break
    return pairs


def classes_in(answer: Answer, first: int) -> dict[int, Counter[str]]:
    """
    Bytes of each class, by number of the bundle.

    :param first: number of the first bundle that was asked.
    """
    return {
        first + number: Counter(
            {cut(str(row["owner"]), MAX_NAME): row["bytes"] or 0 for row in rows}
        )
        for number, rows in answer.rows.items()
    }


def changes(
    bundles: Sequence[Taken], pairs: Iterable[tuple[int, int]], classes: dict[int, Counter[str]]
) -> Iterator[Change]:
    """Differences of the ledgers of each pair that are more than those of an idle machine."""
    for first, last in pairs:
        before, after, bundle = classes[first], classes[last], bundles[last]
        least = max(LEAST, after.total() // OF_MEMORY)
        for name in sorted((before.keys() | after.keys()) - {FREE}):
            less, more = sorted((before[name], after[name]))
            if more - less >= max(least, less // OF_BEFORE):
                seconds = bundle.at - bundles[first].at
                yield name, bundle, after[name] - before[name], seconds
