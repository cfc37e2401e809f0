# SPDX-License-Identifier: LGPL-2.1-or-later
"""The section of the ledger: where the memory is, the kernel's counters, what is unexplained."""

import contextlib

from drgn import FaultError, sizeof

from mmscope.drgn.cgroups.charged_pages import ChargedPages
from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.free.free_memory import free_memory
from mmscope.drgn.free.zones import read_zoneinfo
from mmscope.drgn.ledger.ledger_counters import LEDGER_CHECKS
from mmscope.drgn.ledger.ledger_pages import MAX_KEPT, OF_OBJECTS, LedgerPages
from mmscope.drgn.ledger.meminfo_ledger import read_meminfo_ledger
from mmscope.drgn.ledger.memory_ledger import (
    LEDGER_TAGS,
    LEDGER_UNEXPLAINED,
    MEMORY_LEDGER,
    STRANGE,
    UNREAD,
    ledger,
    ledger_tags,
)
from mmscope.drgn.ledger.page_kinds import KINDS
from mmscope.drgn.ledger.page_places import find_places
from mmscope.drgn.machine.physical_memory import PhysicalPart, physical_memory_once
from mmscope.drgn.owners.alloc_tags import tags_once
from mmscope.drgn.owners.page_tags import page_tags
from mmscope.drgn.owners.slab_caches import caches_once
from mmscope.drgn.reading.kernel_arrays import TORN, Gaps
from mmscope.drgn.reading.struct_pages import scan_struct_pages
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, Command, Found, Section, disagreement


def ledger_consumer(memory: Memory) -> LedgerPages:
    """The consumer of the pass that counts every page."""
    places = find_places(memory)
    charged = None
    with contextlib.suppress(Exception):  # section memory_cgroups says what is wrong
        memcgs = memcgs_once(memory)
        charged = ChargedPages(memory.prog, memcgs.address[memcgs.dying], OF_OBJECTS)
    tags = None
    with contextlib.suppress(Exception):  # section alloc_tags says what is wrong
        tags = page_tags(memory.prog)
    caches, _ = caches_once(memory)
    return LedgerPages(memory.prog, places.ram, places.owned, charged, caches, tags)


def ledger_pages(memory: Memory) -> tuple[LedgerPages, Gaps]:
    """
    Every page by its class, of the pass that other sections need too, and what that could not read.

    :raises FaultError, LookupError: the struct pages cannot be read.
    """
    if memory.consumers is tuple:  # this section is read alone
        memory.consumers = lambda: (ledger_consumer,)
    with contextlib.suppress(FaultError, LookupError, ValueError):
        free_memory(memory)
    return memory.kept_consumer(LedgerPages) or memory.once("ledger_pages", lambda: _pass(memory))


def memory_ledger_from_memory(memory: Memory) -> Found:
    prog, places = memory.prog, find_places(memory)
    pages, gaps = ledger_pages(memory)
    found = Found(unreadable_bytes=gaps.bytes)
    found.notes += [f"not told apart: {words}" for words in places.missing]
    if pages.kept_pages > MAX_KEPT:
        found.notes.append(
            f"{pages.kept_pages:,} pages have no reference, too many to tell those on per-CPU lists"
        )
    else:
        try:
            listed = free_memory(memory).pcp_lists
            pages.settle(listed.pfns, listed.orders)
        except (FaultError, LookupError, ValueError) as error:
            found.notes.append(f"pages on per-CPU lists are among the unexplained: {error}")
    parts: list[PhysicalPart] = []
    try:
        parts = physical_memory_once(memory).parts
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"what the kernel does not have is missing: {error}")
    unread = gaps.bytes // sizeof(prog.type("struct page"))
    if unread:
        found.notes.append(f"{unread:,} struct pages could not be read{gaps.why}")
    tables = ledger(prog, pages, parts, unread)
    if tables.no_counters:
        found.notes.append(f"counters of /proc/vmstat are missing: {tables.no_counters}")
    zones = [row for row in tables.checks if row.counter == "present_pages"]
    wrong = [row for row in zones if row.difference_pages]
    if wrong:
        disagreement(
            memory,
            found,
            "; ".join(
                f"zone {row.zone} of node {row.node} has {row.kernel_pages:,} present pages, "
                f"{row.pages:,} were found"
                for row in wrong
            ),
        )
    for (said, place), count in sorted(pages.disputed.items()):
        found.remarks.append(
            f"{count:,} pages are {KINDS[said].owner} by their struct page and "
            f"{KINDS[place].owner} by their place: counted by their struct page"
        )
    found.add(MEMORY_LEDGER, tables.rows)
    found.add(LEDGER_CHECKS, tables.checks)
    found.add(LEDGER_UNEXPLAINED, tables.unexplained)
    _add_tags(memory, pages, found)
    return found


def _add_tags(memory: Memory, pages: LedgerPages, found: Found) -> None:
    """By line of source, where the kernel keeps that for each page."""
    if pages.tags is None:
        return
    try:
        tags = tags_once(memory)
    except TORN as error:
        found.notes.append(f"lines of source are not told: {error}")
        return
    rows = ledger_tags(pages.tags, tags, int(memory.prog["PAGE_SIZE"].value_()))
    if unread := sum(row.pages for row in rows if row.file == UNREAD):
        found.notes.append(f"whose line of source {unread:,} pages are could not be read")
    if strange := sum(row.pages for row in rows if row.file == STRANGE):
        found.remarks.append(
            f"{strange:,} pages refer to lines of source that no loaded module has: one was "
            "unloaded and left them, or the references are damaged"
        )
    found.add(LEDGER_TAGS, rows)


def _pass(memory: Memory) -> tuple[LedgerPages, Gaps]:
    """A pass of its own, where that of another section went by without the ledger."""
    pages = ledger_consumer(memory)
    scan = scan_struct_pages(memory.prog, [pages], progress=memory.progress, jobs=memory.jobs)
    if failure := scan.failure_of(pages):
        raise failure
    return pages, scan.gaps


def memory_ledger_from_files(files: Files) -> Found:
    meminfo = files.read("proc/meminfo")
    zones = read_zoneinfo(files.read("proc/zoneinfo"))
    page = files.page_size(meminfo, sum(zone.managed_pages for zone in zones))
    if page is None:
        raise Absent("the size of a page cannot be derived from /proc/meminfo and /proc/zoneinfo")
    found = Found().add(MEMORY_LEDGER, read_meminfo_ledger(meminfo, page))
    found.remarks.append(
        "by the kernel's counters, not page by page: the remainder is what they leave of MemTotal; "
        "read the kernel's memory (as root) to know what it is"
    )
    return found


MEMORY_LEDGER_SECTION = Section(
    name="memory_ledger",
    title="Where the memory is",
    intro="""
Every page of the machine has one owner. Each is counted once, in one pass over all struct pages;
nothing is subtracted. The classes of a zone add up to its present pages. Memory that the kernel
does not have stands beside them, so that all rows add up to the machine's memory.

The kernel's own counters are beside what was counted. What no mark in a struct page and no place
explains is *unexplained*, listed by what the pages look like: allocations of drivers and of the
kernel itself with `alloc_pages()`, which only
[page_owner](https://docs.kernel.org/mm/page_owner.html) or [allocation
profiling](https://docs.kernel.org/mm/allocation-profiling.html) can name.
""",
    command=Command("where the memory is, page by page", name="ledger"),
    since="0.2.0",
    tables=(MEMORY_LEDGER, LEDGER_CHECKS, LEDGER_UNEXPLAINED, LEDGER_TAGS),
    from_memory=memory_ledger_from_memory,
    from_files=memory_ledger_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.MEMINFO, prices.ZONEINFO),
    consumer=ledger_consumer,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_ledger")
