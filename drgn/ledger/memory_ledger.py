# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The ledger of memory: every page of RAM in one class, and the kernel's counters beside it.

Counted page by page in the pass over all struct pages, not subtracted: the classes of a zone add up
to its present pages. What the page allocator never had (cut off, offline, a device's) stands beside
them, so that all rows add up to the machine's memory.

Costs what a pass costs, the page tables of vmalloc memory, and memory for the pages that have no
reference. Cannot know: who has what is unexplained; table ``page_owner_stacks`` does where the
kernel keeps it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from drgn import Program

from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.ledger.ledger_counters import BY_KIND, LedgerCheck, ledger_checks
from mmscope.drgn.ledger.ledger_pages import MOST_REFERENCES, LedgerPages
from mmscope.drgn.ledger.page_kinds import KINDS, KMEM
from mmscope.drgn.machine.physical_memory import CRASHED, PhysicalPart
from mmscope.drgn.owners.alloc_tags import Tags
from mmscope.drgn.owners.page_tags import UNREADABLE, PageTags, named
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_ORDER, MOST_PAGES, column, table_row
from mmscope.drgn.tables.table import Inside, Table

NO_TAG, STRANGE, UNREAD = "(no tag)", "(of no module)", "(unreadable)"


@table_row
class LedgerRow:
    """Pages of one class, part and zone."""

    owner: str = column(holds="words", key=True, help="class of memory")
    part: str = column(holds="words", key=True, help="part of the class")
    node: int = column(key=True, low=-1, help="NUMA node; -1: of no zone")
    zone: str = column(holds="kernel", key=True, help="zone name; empty: of no zone")
    # A device may have more memory than the machine.
    pages: int = column(unit="pages", high=MOST_PAGES, help="base pages")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="of these pages")
    percent: float = column(unit="%", help="of the machine's memory, all rows together")
    counter: str = column(
        holds="kernel", help="the kernel's counters that these pages are in; ledger_checks has them"
    )


MEMORY_LEDGER = Table(
    "memory_ledger",
    "Where the memory is",
    LedgerRow,
    measure="bytes",
    lasting=("owner", "part"),
    memory="all",
)


@table_row
class UnexplainedRow:
    """Unexplained pages that look alike."""

    part: str = column(holds="words", key=True, help="what is known of them")
    node: int = column(key=True, low=-1, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    flags: str = column(holds="kernel", key=True, help="page flags, of the head of a compound page")
    references: str = column(holds="words", key=True, help="page_ref_count(), of the head")
    order: int | None = column(
        key=True, high=MOST_ORDER, help="of the compound page; empty: of none"
    )
    charged: str = column(
        holds="words", key=True, help="memcg_data: kernel memory, or a page, of a memory cgroup"
    )
    pages: int = column(unit="pages", help="base pages")
    example_pfns: str = column(holds="kernel", help="page frames of some heads")


LEDGER_UNEXPLAINED = Table(
    "ledger_unexplained",
    "Unexplained pages by what they look like",
    UnexplainedRow,
    empty="Every page has an owner.",
    memory="again",
    measure="pages",
    inside=(Inside("unexplained", "pages", looks=True),),
)


@table_row
class LedgerTag:
    """Pages of one class and part that one line of source allocated."""

    owner: str = column(holds="words", key=True, help="class of memory, as in memory_ledger")
    part: str = column(holds="words", key=True, help="part of the class")
    module: str = column(holds="kernel", key=True, help="module; empty: the kernel itself")
    file: str = column(
        holds="source",
        key=True,
        help=f"source file; {NO_TAG}: allocated at boot, or while profiling was off; {STRANGE}: "
        "a module was unloaded and left them, or the reference is damaged",
    )
    line: int = column(key=True, high=1 << 32, help="line in the file; 0: of none")
    function: str = column(holds="kernel", key=True, help="function that allocates")
    pages: int = column(unit="pages", help="base pages")
    bytes: int = column(unit="bytes", help="of these pages")


LEDGER_TAGS = Table(
    "ledger_tags",
    "The kernel's pages by the line of source that allocated them",
    LedgerTag,
    empty="No page of these classes is in use.",
    memory="again",
    measure="bytes",
    # Of classes that no other table has the owners of.
    inside=tuple(
        Inside(owner, "bytes", ("owner", (owner,)))
        for owner in ("unexplained", "network", "driver", "kernel reserves")
    ),
)


UNKNOWN_ZONE = (-1, "unknown")  # of damaged page flags
# Parts of physical_memory that are present pages of the kernel.
PRESENT_PARTS = ("page allocator", "early allocations", CRASHED)


@dataclass
class Ledger:
    """All tables of the ledger."""

    rows: list[LedgerRow]
    checks: list[LedgerCheck]
    unexplained: list[UnexplainedRow]
    no_counters: str  # why the counters of /proc/vmstat are missing, if they are


def outside(parts: Sequence[PhysicalPart], page: int) -> list[tuple[str, int]]:
    """
    (part, pages) of the machine's memory that the kernel has no present pages of.

    :param parts: of ``physical_memory``.
    """
    return [
        (row.part, row.bytes // page)
        for row in parts
        if row.part not in ("machine", *PRESENT_PARTS) and row.bytes >= page
    ]


def ledger(
    prog: Program, pages: LedgerPages, parts: Sequence[PhysicalPart], unread_pages: int
) -> Ledger:
    """
    The tables, after the pass and :meth:`LedgerPages.settle`.

    :param unread_pages: whose struct pages could not be read.
    """
    size = int(prog["PAGE_SIZE"].value_())
    counted = pages.pages.reshape(len(KINDS), pages.zones)
    names = {
        node * pages.fields.zones_per_node + index: (node, zone_name(zone))
        for node, index, zone in for_each_zone(prog)
    }
    beyond = outside(parts, size)
    total = int(counted.sum()) + unread_pages + sum(count for _, count in beyond)
    rows: list[LedgerRow] = []

    def add(owner: str, part: str, zone: tuple[int, str], count: int, counters: str = "") -> None:
        percent = 100 * count / total if total else 0.0
        rows.append(LedgerRow(owner, part, *zone, count, count * size, percent, counters))

    for number, kind in enumerate(KINDS):
        for zone in counted[number].nonzero()[0].tolist():
            where = names.get(zone, UNKNOWN_ZONE)
            count = int(counted[number, zone])
            add(kind.owner, kind.part, where, count, " ".join(BY_KIND.get(number, [])))
    if unread_pages:
        add("unexplained", "struct page not readable", (-1, ""), unread_pages)
    for part, count in beyond:
        add("not the kernel's", part, (-1, ""), count)
    checks, missing = ledger_checks(prog, pages)
    return Ledger(largest_first(rows), checks, _unexplained(prog, pages, names), missing)


def largest_first(rows: list[LedgerRow]) -> list[LedgerRow]:
    """The class that has the most, with its largest part, first."""
    owners: Counter[str] = Counter()
    for row in rows:
        owners[row.owner] += row.pages
    return sorted(rows, key=lambda row: (-owners[row.owner], row.owner, -row.pages))


def _unexplained(
    prog: Program, pages: LedgerPages, names: dict[int, tuple[int, str]]
) -> list[UnexplainedRow]:
    """Unexplained pages by what they look like, the most first."""
    flag_names = pageflag_names(prog)
    rows = []
    for (kind, zone, flags, references, order, charged), found in pages.unexplained.items():
        more = " or more" if references == MOST_REFERENCES else ""
        rows.append(
            UnexplainedRow(
                KINDS[kind].part,
                *names.get(zone, UNKNOWN_ZONE),
                " ".join(name for bit, name in flag_names.items() if flags >> bit & 1),
                f"{references}{more}",
                None if order < 0 else order,
                {0: "no", KMEM: "kernel memory"}.get(charged, "page"),
                found.pages,
                " ".join(f"{pfn:#x}" for pfn in found.examples),
            )
        )
    if pages.other_signatures:
        rows.append(UnexplainedRow("others", -1, "", "", "", None, "", pages.other_signatures, ""))
    return sorted(rows, key=lambda row: -row.pages)


def ledger_tags(pages: PageTags, tags: Tags, page: int) -> list[LedgerTag]:
    """
    The pages of a pass by class and line of source, the most first.

    :param page: bytes of one.
    """
    counted: Counter[tuple[int, tuple[str, str, int, str]]] = Counter()
    nameless = {0: NO_TAG, UNREADABLE: UNREAD}
    for (kind, address), count in pages.pages.items():
        words = nameless.get(address, STRANGE)
        counted[kind, named(tags, address) or ("", words, 0, "")] += count
    rows = [
        LedgerTag(KINDS[kind].owner, KINDS[kind].part, *what, count, count * page)
        for (kind, what), count in counted.items()
    ]
    return sorted(rows, key=lambda row: (-row.pages, row.owner, row.part, row.file, row.line))


def pageflag_names(prog: Program) -> dict[int, str]:
    """Names of page flags by bit, as the kernel prints them (``enum pageflags``)."""
    names: dict[int, str] = {}
    for name, value in prog.type("enum pageflags").enumerators or ():
        if value not in names and name != "__NR_PAGEFLAGS":
            names[value] = name.removeprefix("PG_")
    return names


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_ledger", "memory_ledger", "ledger_unexplained", "ledger_tags")
