# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Growth between two readings of one boot: the classes of each host's memory ledger, and holders of
pages of the kernel.

Both are asked as findings are: a query over all hosts.
Of each host that has two ledgers of one boot, the newest such boot counts, and of it the oldest and
the newest ledger: both of struct pages, or both of the kernel's counters, whose classes differ.

Cannot know: what was between the two.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mmscope.drgn.tables.hostile_text import cut
from mmscope.reports.findings.question import Question
from mmscope.reports.lake.asking import Answer
from mmscope.reports.lake.catalog import Taken, boots_of, by_host

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
# A process may have been started again between the two.
HOLDERS = Question(
    id="page-holders",
    about="Bytes of each holder of pages of the kernel",
    section="page_holders",
    needs=("page_holders.bytes",),
    sql="""
select kind || case when coalesce(holder, '') = '' then '' else ' ' || holder end
    || case when coalesce(comm, '') = '' then '' else ' of ' || comm end as owner,
    sum(bytes)::bigint as bytes
from page_holders
where owner not in ('anonymous', 'page cache', 'given away')
group by 1
order by 1
""",
    severity="", title="", saw="", why="", worse="", next=(), sources=(), links=(),
)  # fmt: skip
# What is asked, and what its rows are.
ASKED = {"ledger class": CLASSES, "holder": HOLDERS}
# As finding watch-kernel-memory-grows has it: more than a burst of processes leaves, a thousandth
# of memory, and a twentieth more than before.
LEAST, OF_MEMORY, OF_BEFORE = 32 << 20, 1000, 20

# What it is, its name, the newest bundle of a host, bytes gained since the oldest, and seconds
# between the two.
Change = tuple[str, str, Taken, int, float]
# Bytes by name, by number of the bundle, of each that is asked.
Amounts = dict[str, dict[int, Counter[str]]]


def ledger_pairs(bundles: Sequence[Taken]) -> list[tuple[int, int]]:
    """
    Choose the oldest and the newest ledger of the newest boot that has two, of each host.

    :param bundles: in the order in which they were taken. :returns: numbers of them.
    """
    # One that was filed under the day on which it was added has no time of its own.
    timed = [bundle for bundle in bundles if LEDGER in bundle.counts and not bundle.note]
    number_of = {bundle.id: number for number, bundle in enumerate(bundles)}
    pairs = []
    for readings in by_host(timed).values():
        for _, of_boot in reversed(boots_of(readings)):
            last = max(of_boot, key=lambda bundle: bundle.at)
            alike = [b for b in of_boot if (OF_PAGES in b.counts) == (OF_PAGES in last.counts)]
            first = min(alike, key=lambda bundle: bundle.at)
            if first.at < last.at:
                pairs.append((number_of[first.id], number_of[last.id]))
                break
    return pairs


def amounts_in(answer: Answer, first: int) -> dict[int, Counter[str]]:
    """
    Bytes of each class or holder, by number of the bundle.

    :param first: number of the first bundle that was asked.
    """
    return {
        first + number: Counter(
            {cut(str(row["owner"]), MAX_NAME): row["bytes"] or 0 for row in rows}
        )
        for number, rows in answer.rows.items()
    }


def changes(
    bundles: Sequence[Taken], pairs: Iterable[tuple[int, int]], amounts: Amounts
) -> Iterator[Change]:
    """Differences between the two of each pair that are more than those of an idle machine."""
    for first, last in pairs:
        bundle = bundles[last]
        seconds = bundle.at - bundles[first].at
        least = max(LEAST, amounts["ledger class"][last].total() // OF_MEMORY)
        for what, of in amounts.items():
            before, after = of.get(first), of.get(last)
            if before is None or after is None:
                continue
            for name in sorted((before.keys() | after.keys()) - {FREE}):
                less, more = sorted((before[name], after[name]))
                if more - less >= max(least, less // OF_BEFORE):
                    yield what, name, bundle, after[name] - before[name], seconds
