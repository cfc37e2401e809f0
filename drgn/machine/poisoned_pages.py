# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pages that hardware reported as bad (``PG_hwpoison``), and what they take along.

Of a base page the flag says it. Of a hugetlb page the head has the flag, and a list
(``folio._hugetlb_hwpoison``) the bad pages in it: an optimised one has no struct pages of its own
that could. The whole huge page is out of use until it is dissolved, for which an optimised one
needs memory for its struct pages first. Where there was no memory for that list
(``HPG_raw_hwp_unreliable``), which of its pages are bad is lost, and it is never dissolved
(mm/memory-failure.c, ``hugetlb_update_hwpoison()``).

Costs a look at the flags of every page, in the pass that others need too, and some reads for each
that is marked. Held against ``num_poisoned_pages`` (HardwareCorrupted of /proc/meminfo) and the
nodes' ``mf_stats`` (6.3 and later).

Cannot know: what became of a page that was marked and lies in memory since taken away.
"""

import re
from collections.abc import Callable, Mapping
from operator import add
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, sizeof

from mmscope.drgn.free.free_memory import of_pass
from mmscope.drgn.free.zones import zone_names
from mmscope.drgn.reading.kernel_arrays import Gaps
from mmscope.drgn.reading.nodes import online_nodes
from mmscope.drgn.reading.shares import Shared, merges, none_of
from mmscope.drgn.reading.struct_pages import PageChunk, flag_fields
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, Command, Found, Section
from mmscope.drgn.struct_pages.hugetlb import HugePages, optimized_pages
from mmscope.drgn.struct_pages.struct_page_cost import struct_page_cost
from mmscope.drgn.tables.display import if_any, size_name
from mmscope.drgn.tables.rows import MOST_BYTES, column, event_column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_text import printed_number, row_number
from mmscope.drgn.text.meminfo import not_whole

MAX_MARKED = 1 << 20  # pages; beyond, the memory map is damaged
MAX_LISTED = 1 << 12  # bad pages of one huge page that are followed
BASE, HUGE, OPTIMISED = "base page", "hugetlb page", "hugetlb page, optimised by HVO"
BUILT_WITHOUT = "the kernel is built without CONFIG_MEMORY_FAILURE: it marks no page as bad"
RESULTS = ("total", "recovered", "delayed", "failed", "ignored")


@table(
    "poisoned_pages",
    "Pages marked as bad",
    empty="No page is marked as bad (PG_hwpoison).",
    measure="out_of_use_bytes",
)
class PoisonedPages:
    """Pages of one kind and zone that are marked as bad."""

    node: int = column(key=True, low=-1, help="NUMA node; -1: unknown")
    zone: str = column(holds="kernel", key=True, help="zone name")
    kind: str = column(
        holds="words", key=True, help="base page, or hugetlb page with or without its struct pages"
    )
    page_bytes: int = column(unit="bytes", key=True, help="of one such page")
    marked: int = column(help="pages of that size with the flag")
    bad_pages: int | None = column(unit="pages", help="bad base pages; of huge pages those listed")
    unlisted: int = column(help="huge pages whose bad pages are unknown; never dissolved")
    out_of_use_bytes: int = column(
        unit="bytes", high=MOST_BYTES, help="of all marked ones, huge pages whole"
    )
    example_pfn: int = column(help="of the first one")


@table("poison_counters", "What the kernel counts of bad pages")
class PoisonCounter:
    """What the kernel counts of bad pages."""

    counter: str = column(
        holds="kernel",
        key=True,
        help="HardwareCorrupted of /proc/meminfo, or a file in memory_failure of a node",
    )
    node: int = column(key=True, low=-1, help="NUMA node; -1: the whole machine")
    events: int | None = event_column(help="pages handled since boot")
    bytes: int | None = column(unit="bytes", high=MOST_BYTES, help="marked bad now")


class PoisonFinder(Shared):
    """
    Consumer of the struct page pass: which pages have the flag, ascending.

    :raises LookupError: the kernel is built without CONFIG_MEMORY_FAILURE.
    """

    columns = ("flags",)
    MERGES = merges(pfns=add, flags=add, more=none_of)

    def __init__(self, prog: Program) -> None:
        self.flag = np.uint64(1 << int(prog.constant("PG_hwpoison").value_()))
        self.pfns: list[int] = []
        self.flags: list[int] = []
        self.more = 0  # beyond MAX_MARKED

    def add_share(self, share: Mapping[str, Any]) -> None:
        super().add_share(share)
        none_of(self.more, max(len(self.pfns) - MAX_MARKED, 0))

    def take(self, chunk: PageChunk) -> None:
        flags = chunk["flags"]
        marked = (flags & self.flag) != 0
        if not marked.any():
            return
        # Uninitialised struct pages are all ones where CONFIG_DEBUG_VM filled them.
        at = np.flatnonzero(marked & (flags != np.uint64((1 << 64) - 1)))
        room = max(MAX_MARKED - len(self.pfns), 0)
        self.more += max(len(at) - room, 0)
        self.pfns += (chunk.start_pfn + at[:room]).tolist()
        self.flags += flags[at[:room]].tolist()


def poisoned_pages(
    prog: Program, found: PoisonFinder, pages: HugePages
) -> tuple[list[PoisonedPages], int]:
    """
    The marked pages by node, zone and kind, and how many huge pages' lists could not be read.

    :param pages: all hugetlb pages.
    """
    names, pfns = zone_names(prog), np.array(found.pfns, np.int64)
    zones = flag_fields(prog).zone_index(np.array(found.flags, np.uint64))
    pages = pages[np.argsort(pages["pfn"], kind="stable")]
    huge, orders, hvo = pages["pfn"], pages["order"], optimized_pages(pages)
    at = np.searchsorted(huge, pfns, "right") - 1
    inside = at >= 0
    if len(huge):
        inside &= pfns < huge[at] + (1 << orders[at])
    page = 1 << int(prog["PAGE_SHIFT"].value_())
    # (node, zone, kind, bytes of a page), to (marked, bad, unlisted, first PFN).
    sums: dict[tuple[int, str, str, int], tuple[int, int, int, int]] = {}
    unread = 0
    for number, pfn in enumerate(found.pfns):
        node, zone = names.get(int(zones[number]), (-1, "unknown"))
        kind, size, bad, unlisted = BASE, page, 1, 0
        if inside[number]:
            which = at[number]
            # Up to 7.0 the tails of an optimised page show the head's flags, on the head's frame.
            if pfn != huge[which]:
                continue
            kind, size = OPTIMISED if hvo[which] else HUGE, page << int(orders[which])
            try:
                bad, unlisted = bad_pages(prog, pfn)
            except (FaultError, LookupError):
                bad, unlisted = 0, 0
                unread += 1
        key = node, zone, kind, size
        marked, all_bad, lists, first = sums.get(key, (0, 0, 0, pfn))
        sums[key] = marked + 1, all_bad + bad, lists + unlisted, first
    return [
        PoisonedPages(node, zone, kind, size, marked, bad, unlisted, marked * size, first)
        for (node, zone, kind, size), (marked, bad, unlisted, first) in sorted(sums.items())
    ], unread


def bad_pages(prog: Program, pfn: int) -> tuple[int, int]:
    """
    Count the pages of a hugetlb page that are on its list; and 1 if that list is lost.

    :raises FaultError: the list cannot be read.
    :raises LookupError: this kernel keeps no such list (before 6.1).
    """
    struct_page = prog.type("struct page")
    head = prog["vmemmap"].value_() + pfn * sizeof(struct_page)
    page = Object(prog, struct_page, address=head)
    unreliable = int(prog.constant("HPG_raw_hwp_unreliable").value_())
    if page.private.value_() >> unreliable & 1:
        return 0, 1
    folio = prog.type("struct folio")
    if folio.has_member("_hugetlb_hwpoison"):
        node = Object(prog, folio, address=head)._hugetlb_hwpoison.value_()
    else:  # v6.1: page_private() of one of the tails
        index = int(prog.constant("SUBPAGE_INDEX_HWPOISON").value_())
        tail = Object(prog, struct_page, address=head + index * sizeof(struct_page))
        node = tail.private.value_()
    seen: set[int] = set()
    # struct raw_hwp_page begins with its llist_node.
    while node and node not in seen and len(seen) < MAX_LISTED:
        seen.add(node)
        node = prog.read_u64(node)
    return len(seen), 0


def poison_counters(prog: Program) -> list[PoisonCounter]:
    """
    Read what the kernel counts.

    :raises LookupError: the kernel is built without CONFIG_MEMORY_FAILURE.
    :raises ValueError: a counter is damaged.
    """
    page = 1 << int(prog["PAGE_SHIFT"].value_())
    pages = prog["num_poisoned_pages"].counter.value_()
    size = row_number(pages * page, "num_poisoned_pages")
    rows = [PoisonCounter("HardwareCorrupted", -1, None, size)]
    if prog.type("struct pglist_data").has_member("mf_stats"):
        for pgdat in online_nodes(prog):
            rows += [
                PoisonCounter(
                    f"memory_failure/{name}",
                    pgdat.node_id.value_(),
                    row_number(pgdat.mf_stats.member_(name).value_(), "mf_stats"),
                    None,
                )
                for name in RESULTS
            ]
    return rows


def read_poison_counters(
    meminfo: str, read: Callable[[str], str], nodes: list[int]
) -> list[PoisonCounter]:
    """
    The same rows from /proc/meminfo and /sys; none without CONFIG_MEMORY_FAILURE.

    :param read: gives the text of a path; it raises OSError if it cannot.
    :raises ValueError: a file does not hold a number.
    """
    match = re.search(r"^HardwareCorrupted: +(\S+) kB$", meminfo, re.MULTILINE)
    if not match:
        return []
    size = row_number(printed_number(match[1], "/proc/meminfo") << 10, "/proc/meminfo")
    rows = [PoisonCounter("HardwareCorrupted", -1, None, size)]
    for node in nodes:
        for name in RESULTS:
            where = f"sys/devices/system/node/node{node}/memory_failure/{name}"
            try:
                events = printed_number(read(where).strip(), where)
            except OSError:
                continue
            rows.append(PoisonCounter(f"memory_failure/{name}", node, events, None))
    return rows


def sums_apart(rows: list[PoisonCounter]) -> str:
    """In words, that a node's results do not add up: ``update_per_node_mf_stats()`` counts both."""
    counts = {(row.node, row.counter.rpartition("/")[2]): row.events or 0 for row in rows}
    for node in {row.node for row in rows if row.events is not None}:
        parts = sum(counts.get((node, name), 0) for name in RESULTS if name != "total")
        if abs(counts[node, "total"] - parts) > 1:  # it may be counted at this moment
            return f"node {node} had {counts[node, 'total']:,} memory failures, by result {parts:,}"
    return ""


def marked_pages(memory: Memory) -> tuple[PoisonFinder, Gaps]:
    """
    Pages that are marked as bad, by the pass that is shared or one of its own, and what that could
    not read.
    """
    return of_pass(memory, PoisonFinder, lambda: PoisonFinder(memory.prog))


def poisoned_pages_from_memory(memory: Memory) -> Found:
    try:
        counters = poison_counters(memory.prog)
    except LookupError:
        raise Absent(BUILT_WITHOUT) from None
    marked, gaps = marked_pages(memory)
    found = Found(memory.live, unreadable_bytes=gaps.bytes)
    if gaps.bytes:
        found.notes.append(f"{gaps.bytes:,} bytes of struct pages could not be read{gaps.why}")
    found.notes += if_any(marked.more, "{} more pages are marked: the memory map is damaged")
    rows: list[PoisonedPages] = []
    if marked.pfns:
        cost = struct_page_cost(memory)
        rows, unread = poisoned_pages(memory.prog, marked, cost.huge_pages)
        found.notes += if_any(unread, "the lists of {} huge pages could not be read")
    size = memory.prog["PAGE_SIZE"].value_()
    ours = sum(row.bad_pages or 0 for row in rows) * size
    counted = sum(row.bytes or 0 for row in counters)
    if ours != counted and not found.notes and not any(row.unlisted for row in rows):
        found.differ(f"the kernel counts {size_name(counted)} as bad, {size_name(ours)} are marked")
    found.differ(sums_apart(counters))
    found.add(PoisonedPages, rows)
    return found.add(PoisonCounter, counters)


def poisoned_pages_from_files(files: Files) -> Found:
    nodes = files.numbers("sys/devices/system/node", r"node(\d+)")
    meminfo = files.read("proc/meminfo")
    rows = read_poison_counters(meminfo, files.open, nodes)
    if not rows:
        raise Absent(not_whole(meminfo) or BUILT_WITHOUT)
    found = Found(remarks=["which pages are bad is not in /proc; read the kernel's memory"])
    return found.add(PoisonCounter, rows)


POISONED_PAGES_SECTION = Section(
    name="poisoned_pages",
    title="Pages marked as bad",
    since="0.2.0",
    tables=tables_of(PoisonedPages, PoisonCounter),
    intro="""
Pages that the kernel gave up, since hardware, or an administrator in its place, reported them bad
(`PG_hwpoison`, [kernel documentation: hwpoison](https://docs.kernel.org/mm/hwpoison.html)). A
base page is lost alone. One bad page of a hugetlb page keeps all of it out of use until it is
dissolved. If HVO had optimised it, that first takes memory for the struct pages that were given
away.
""",
    command=Command("pages marked as bad (PG_hwpoison)"),
    from_memory=poisoned_pages_from_memory,
    from_files=poisoned_pages_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.MEMINFO, prices.SETTINGS),
    optional=True,
    consumer=lambda memory: PoisonFinder(memory.prog),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("poisoned_pages")
