# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The ledger of memory: every page of RAM in one class, and the kernel's counters beside it.

Counted page by page in the pass over all struct pages, not subtracted: the classes of a zone add up
to its present pages. What the page allocator never had (cut off, offline, a device's) stands beside
them, so that all rows add up to the machine's memory.

The kernel's own counters are mostly lines of /proc/vmstat, read with what CPUs have not folded in
yet. Costs what a pass costs, the page tables of vmalloc memory, and memory for the pages that have
no reference. Cannot know: who has what is unexplained; table ``page_owner_stacks`` does where the
kernel keeps it.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence

from drgn import FaultError, Program, sizeof
from drgn.helpers.linux.hugetlb import for_each_hstate

from mmscope.drgn.cgroups.charged_pages import ChargedPages
from mmscope.drgn.cgroups.memcgs import memcgs_once
from mmscope.drgn.free.free_memory import free_memory, of_pass
from mmscope.drgn.free.pageblocks import pageblock_types
from mmscope.drgn.free.zones import for_each_zone, zone_name, zone_names
from mmscope.drgn.holders.holdings import HeldPages
from mmscope.drgn.holders.kernel_stacks import block_pages
from mmscope.drgn.ledger.held_places import holdings
from mmscope.drgn.ledger.ledger_pages import (
    KMEM,
    MAX_KEPT,
    MOST_REFERENCES,
    OF_OBJECTS,
    LedgerPages,
)
from mmscope.drgn.ledger.page_kinds import KINDS, Kind
from mmscope.drgn.ledger.page_places import find_places
from mmscope.drgn.ledger.pinned_pages import PinnedPages
from mmscope.drgn.machine.physical_memory import CRASHED, PhysicalPart, physical_memory_once
from mmscope.drgn.machine.vm_counters import VmCounter, drift, vm_counters_once
from mmscope.drgn.opening.constants import is_powerpc
from mmscope.drgn.owners.alloc_tags import Tag, tags_once
from mmscope.drgn.owners.page_tags import UNREADABLE, PageTags, page_tags
from mmscope.drgn.owners.slab_caches import caches_once
from mmscope.drgn.reading.kernel_arrays import TORN, Gaps
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import NO_PAGE_SIZE, Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import PASS_SECONDS, Against, Command, Found, Section
from mmscope.drgn.tables.display import plural, size
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_ORDER, MOST_PAGES, column
from mmscope.drgn.tables.table import Inside, table, tables_of
from mmscope.drgn.text.meminfo import (
    KSTATS,
    arc_bytes,
    beside_meminfo,
    by_class,
    in_no_counter,
    meminfo_of_vmstat,
    not_whole,
    read_sizes,
)
from mmscope.drgn.text.proc_text import ZoneText, parse_vmstat, parse_zoneinfo

COUNTED = "the pages of that kind"
NO_TAG, STRANGE, UNREAD = "(no tag)", "(of no module)", "(unreadable)"


@table(
    "memory_ledger", "Where the memory is", measure="bytes", lasting=("owner", "part"), memory="all"
)
class LedgerRow:
    """Pages of one class, part and zone."""

    owner: str = column(holds="words", key=True, help="class of memory")
    part: str = column(holds="words", key=True, help="part of the class")
    node: int = column(key=True, low=-1, help="NUMA node; -1: of no zone")
    zone: str = column(holds="kernel", key=True, help="zone name; empty: none")
    # A device may have more memory than the machine.
    pages: int = column(unit="pages", high=MOST_PAGES, help="base pages")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="of these pages")
    percent: float = column(unit="%", help="of the machine's memory, which all rows together are")
    counter: str = column(
        holds="kernel", help="kernel counters that include these pages: see ledger_checks"
    )


@table(
    "ledger_unexplained",
    "Unexplained pages by what they look like",
    empty="Every page has an owner.",
    memory="again",
    measure="pages",
    inside=(Inside("unexplained", "pages", looks=True),),
)
class UnexplainedRow:
    """Unexplained pages that look alike."""

    part: str = column(holds="words", key=True, help="what is known of them")
    node: int = column(key=True, low=-1, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    flags: str = column(holds="kernel", key=True, help="page flags, of a compound page's head")
    references: str = column(holds="words", key=True, help="page_ref_count() of the head")
    order: int | None = column(key=True, high=MOST_ORDER, help="of the compound page; empty: none")
    charged: str = column(
        holds="words", key=True, help="memcg_data: a memory cgroup's kernel memory or page"
    )
    pages: int = column(unit="pages", help="base pages")
    example_pfns: str = column(holds="kernel", help="some heads")


@table(
    "ledger_tags",
    "The kernel's pages by the line of source that allocated them",
    empty="No page of these classes is in use.",
    memory="again",
    measure="bytes",
    # Of classes that no other table has the owners of.
    inside=tuple(
        Inside(owner, "bytes", ("owner", (owner,)))
        for owner in ("unexplained", "network", "driver", "kernel reserves")
    ),
)
class LedgerTag:
    """Pages of one class and part that one line of source allocated."""

    owner: str = column(holds="words", key=True, help="class of memory, as in memory_ledger")
    part: str = column(holds="words", key=True, help="part of the class")
    module: str = column(holds="kernel", key=True, help="module; empty: the kernel itself")
    file: str = column(
        holds="source",
        key=True,
        help=f"source file; {NO_TAG}: allocated at boot or while profiling was off; {STRANGE}: "
        "left by an unloaded module, or a damaged reference",
    )
    line: int = column(key=True, high=1 << 32, help="0: none")
    function: str = column(holds="kernel", key=True, help="function that allocates")
    pages: int = column(unit="pages", help="base pages")
    bytes: int = column(unit="bytes", help="of these pages")


@table(
    "ledger_checks",
    "The ledger beside the kernel's counters",
    not_compared="its pages are those of memory_ledger, its counters those of vm_counters",
)
class LedgerCheck:
    """A counter of the kernel beside the pages that were counted."""

    counter: str = column(
        holds="kernel",
        key=True,
        help="line of /proc/vmstat, kernel variable, or member of a zone",
    )
    node: int = column(key=True, low=-1, help="NUMA node; -1: the whole machine")
    zone: str = column(holds="kernel", key=True, help="empty: all zones")
    pages: int = column(unit="pages", help="counted page by page")
    kernel_pages: int = column(unit="pages", low=None, high=None, help="the kernel's count")
    difference_pages: int = column(
        unit="pages", low=None, high=None, help="pages, less kernel_pages"
    )
    may_differ: str = column(holds="words", help="why a healthy machine may differ")


def _kernel_stacks(prog: Program, vmstat: dict[str, int]) -> int:
    """NR_KERNEL_STACK_KB; stacks that are smaller than a page are slab objects."""
    if block_pages(prog) == 0:
        raise LookupError("stacks have no pages of their own")
    return (vmstat["nr_kernel_stack"] << 10) // int(prog["PAGE_SIZE"].value_())


def _vmalloc(prog: Program, vmstat: dict[str, int]) -> int:
    """A counter of nodes in 7.2 (nr_vmalloc), a variable before."""
    if "nr_vmalloc" in vmstat:
        return vmstat["nr_vmalloc"]
    return int(prog["nr_vmalloc_pages"].counter.value_())


def _percpu(prog: Program, vmstat: dict[str, int]) -> int:
    """``pcpu_nr_pages()`` (mm/percpu.c): Percpu of /proc/meminfo."""
    return int(prog["pcpu_nr_populated"].value_() * prog["pcpu_nr_units"].value_())


def _hugetlb(prog: Program, vmstat: dict[str, int]) -> int:
    """``hugetlb_total_pages()`` (mm/hugetlb.c)."""
    sizes = [(int(h.nr_huge_pages.value_()), int(h.order.value_())) for h in for_each_hstate(prog)]
    if any(order > MOST_ORDER for _, order in sizes):
        raise LookupError("the hstates of hugetlb are damaged")
    return sum(pages << order for pages, order in sizes)


# Counters that are no line of /proc/vmstat, or not on all kernels.
READ = {
    "nr_kernel_stack": _kernel_stacks,
    "nr_vmalloc": _vmalloc,
    "pcpu_nr_pages": _percpu,
    "hugetlb_total_pages": _hugetlb,
}
# Of the whole machine: the kinds of pages in each, and why it may differ from what is counted.
COUNTERS = {
    "nr_free_pages": (
        (Kind.FREE, Kind.UNACCEPTED),
        "free blocks of isolated pageblocks are not in the counter",
    ),
    "nr_anon_pages": (
        (Kind.ANON, Kind.LARGE, Kind.KSM, Kind.ANON_SWAP),
        "pages that no process maps are not in the counter",
    ),
    "nr_file_pages": ((Kind.FILE, Kind.SHMEM, Kind.SWAP_CACHE, Kind.ANON_SWAP), ""),
    "nr_shmem": ((Kind.SHMEM,), ""),
    "nr_slab_reclaimable": ((Kind.RECLAIMABLE,), ""),
    "nr_slab_unreclaimable": (
        (Kind.SLAB, Kind.LARGE_KMALLOC),
        "large allocations of kmalloc() are in the counter; where their pages have no type of "
        "their own (6.12) and are not all of the compound pages that nothing else explains, they "
        "are among these",
    ),
    "nr_page_table_pages": ((Kind.TABLE,), ""),
    "nr_sec_page_table_pages": (
        (Kind.MACHINE_TABLE, Kind.IOMMU_TABLE),
        "the first table of a machine is not in the counter, before 6.11 none of an IOMMU; those "
        "of AMD's and Arm's IOMMUs have no mark, and are among the unexplained",
    ),
    "nr_kernel_stack": (
        (Kind.STACK, Kind.STACK_BLOCK),
        "stacks that a CPU keeps for the next thread (two at most) are not in the counter",
    ),
    "nr_vmalloc": ((Kind.VMALLOC, Kind.STACK), ""),
    "pcpu_nr_pages": ((Kind.PERCPU, Kind.BOOT_PERCPU), ""),
    "hugetlb_total_pages": (
        (Kind.HUGETLB, Kind.HUGETLB_FREE),
        "pages that are marked as bad are in the counter",
    ),
    "nr_zspages": ((Kind.ZSMALLOC,), ""),
    # "meminfo: add a per node counter for balloon drivers" (835de37603ef, in v6.16)
    "nr_balloon_pages": (
        (Kind.OFFLINE,),
        "memory that a hypervisor unplugged (virtio-mem) looks the same, and is not in the counter",
    ),
    # Marked by nothing: pages that drivers took with alloc_pages().
    "nr_gpu_active": (
        (Kind.GRAPHICS,),
        "buffers of graphics cards; those of drivers without TTM are among the unexplained",
    ),
    "nr_gpu_reclaim": (
        (),
        "free pages that drivers of GPUs keep: on lists of a module, or among the unexplained",
    ),
    "nr_kernel_misc_reclaimable": (
        (),
        "what drivers count as reclaimable has no mark: it is among the unexplained",
    ),
}

# How a dump's counters may differ from the pages that were counted, beyond what each CPU may have
# been about to change (vm_counters.drift()): fewer are counted at most by those that have no other
# mark, more by those that are in no counter. Others do not differ.
FEWER = (
    *("nr_slab_unreclaimable", "nr_sec_page_table_pages", "hugetlb_total_pages"),
    *("nr_gpu_active", "nr_gpu_reclaim", "nr_kernel_misc_reclaimable"),
)
# VM_MAP_PUT_PAGES (mm/vmalloc.c) has pages that are in no counter.
MORE = (
    *("nr_free_pages", "nr_anon_pages", "nr_kernel_stack", "nr_vmalloc", "nr_balloon_pages"),
    *("nr_sec_page_table_pages", "nr_gpu_active"),
)
NO_OTHER_MARK = tuple(
    kind for kind in KINDS if kind.owner in ("unexplained", "bad") or kind is Kind.MODULE_CACHE
)


def counters_of(kind: Kind) -> str:
    """The counters that pages of a kind are in."""
    return " ".join(name for name, (kinds, _) in COUNTERS.items() if kind in kinds)


def ledger_checks(memory: Memory, pages: LedgerPages) -> tuple[list[LedgerCheck], str]:
    """
    Every counter that this kernel has, and the present pages of each zone.

    :return: (the rows, why those of /proc/vmstat are missing, if they are).
    """
    prog, rows = memory.prog, []

    def check(name: str, ours: int, says: int, why: str, node: int = -1, zone: str = "") -> None:
        rows.append(LedgerCheck(name, node, zone, ours, says, ours - says, why))

    counted = pages.pages.reshape(len(KINDS), pages.zones)
    never_given = 0
    for node, number, zone in for_each_zone(prog):
        ours = int(counted[:, number].sum())
        present = int(zone.present_pages.value_())
        never_given += present - int(zone.managed_pages.counter.value_())
        if ours or present:
            check("present_pages", ours, present, "", node, zone_name(zone))
    # Pages that the allocator never had have PG_reserved, whatever they are used for
    # (memmap_init_reserved_pages(), mm/memblock.c).
    check(
        "present_pages - managed_pages",
        int(pages.reserved.sum()),
        never_given,
        "reserved pages of any class. Gigantic pages taken at boot and struct pages in hot-added "
        "memory itself may lack the mark; drivers may set it",
    )
    vmstat, missing = {}, ""
    try:
        vmstat = {row.name: row.value for row in vm_counters_once(memory)}
    except (FaultError, LookupError, ValueError) as error:
        missing = str(error)
    for name, (kinds, why) in COUNTERS.items():
        with contextlib.suppress(LookupError, FaultError):
            says = READ[name](prog, vmstat) if name in READ else vmstat[name]
            check(name, int(counted[list(kinds)].sum()), says, why)
    return rows, missing


def _hold_against_counters(
    memory: Memory, pages: LedgerPages, checks: list[LedgerCheck], found: Found
) -> None:
    """Mark the counters of a dump that differ from the pages in a way that nothing explains."""
    counted = pages.pages.reshape(len(KINDS), pages.zones)
    unmarked, most = int(counted[list(NO_OTHER_MARK)].sum()), drift(memory.prog)

    def pages_of(row: LedgerCheck | VmCounter) -> Against | None:
        check = by_name.get(row.name if isinstance(row, VmCounter) else row.counter)
        # Of what is in other units in /proc/vmstat, only the check is in pages.
        if check is None or check.counter not in COUNTERS:
            return None
        if isinstance(row, VmCounter) and row.name in READ:
            return None
        fewer = unmarked if check.counter in FEWER else 0
        more = check.pages if check.counter in MORE else 0
        # What is counted, or the nearest that may be.
        nearest = min(max(check.kernel_pages, check.pages - more), check.pages + fewer)
        return nearest, most

    by_name = {row.counter: row for row in checks}
    slight = [
        row.counter
        for row in checks
        if (against := pages_of(row)) and 0 < abs(row.kernel_pages - against[0]) <= most
    ]
    few = [
        row.counter
        for row in checks
        if row.counter in MORE and row.pages - 2 * row.kernel_pages > most
    ]
    if few:
        found.remarks.append(
            f"{', '.join(few)}: less than half of the pages that were counted: most of them are in "
            "no counter, or damage"
        )
    if slight:
        found.remarks.append(
            f"{', '.join(slight)}: a little more or less than the pages that were counted: a CPU "
            "was stopped between the two, or damage"
        )
    found.hold_against(checks, "kernel_pages", pages_of, COUNTED)
    with contextlib.suppress(FaultError, LookupError, ValueError):
        rows = vm_counters_once(memory)
        found.hold_against(rows, "value", pages_of, COUNTED)


NO_ZONE = (-1, "")
UNKNOWN_ZONE = (-1, "unknown")  # of damaged page flags
# Parts of physical_memory that are present pages of the kernel.
PRESENT_PARTS = ("page allocator", "early allocations", CRASHED)


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


def ledger_rows(
    prog: Program, pages: LedgerPages, parts: Sequence[PhysicalPart], unread_pages: int
) -> list[LedgerRow]:
    """
    The ledger, after the pass and :meth:`LedgerPages.settle`.

    :param unread_pages: whose struct pages could not be read.
    """
    zones = zone_names(prog)
    counted = pages.pages.reshape(len(KINDS), pages.zones)
    found: list[tuple[str, str, tuple[int, str], int, Kind | None]] = [
        (kind.owner, kind.part, zones.get(zone, UNKNOWN_ZONE), int(counted[kind, zone]), kind)
        for kind in KINDS
        for zone in counted[kind].nonzero()[0].tolist()
    ]
    page = int(prog["PAGE_SIZE"].value_())
    if unread_pages:
        found.append(("unexplained", "struct page not readable", NO_ZONE, unread_pages, None))
    found += [("not the kernel's", part, NO_ZONE, n, None) for part, n in outside(parts, page)]
    total = sum(count for *_, count, _ in found)
    return largest_first(
        [
            LedgerRow(
                *(owner, part, *zone, count, count * page, 100 * count / total),
                counters_of(kind) if kind is not None else "",
            )
            for owner, part, zone, count, kind in found
        ]
    )


def largest_first(rows: list[LedgerRow]) -> list[LedgerRow]:
    """The class that has the most, with its largest part, first."""
    owners: Counter[str] = Counter()
    for row in rows:
        owners[row.owner] += row.pages
    return sorted(rows, key=lambda row: (-owners[row.owner], row.owner, -row.pages))


def unexplained_rows(prog: Program, pages: LedgerPages) -> list[UnexplainedRow]:
    """Unexplained pages by what they look like, the most first."""
    names, flag_names = zone_names(prog), pageflag_names(prog)
    rows = []
    for key, count in pages.unexplained.items():
        kind, zone, flags, references, order, charged = key
        more = " or more" if references == MOST_REFERENCES else ""
        rows.append(
            UnexplainedRow(
                KINDS[kind].part,
                *names.get(zone, UNKNOWN_ZONE),
                " ".join(name for bit, name in flag_names.items() if flags >> bit & 1),
                f"{references}{more}",
                None if order < 0 else order,
                {0: "no", KMEM: "kernel memory"}.get(charged, "page"),
                count,
                " ".join(f"{pfn:#x}" for pfn in pages.examples[key]),
            )
        )
    if pages.other_signatures:
        rows.append(UnexplainedRow("others", -1, "", "", "", None, "", pages.other_signatures, ""))
    return sorted(rows, key=lambda row: -row.pages)


def ledger_tags(pages: PageTags, tags: Mapping[int, Tag], page: int) -> list[LedgerTag]:
    """
    The pages of a pass by class and line of source, the most first.

    :param page: bytes of one.
    """
    counted: Counter[tuple[int, tuple[str, str, int, str]]] = Counter()
    nameless = {0: NO_TAG, UNREADABLE: UNREAD}
    for (kind, address), count in pages.pages.items():
        words = nameless.get(address, STRANGE)
        counted[kind, tags[address][0] if address in tags else ("", words, 0, "")] += count
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


REMAINDER = "remainder of MemTotal, by subtraction"


def read_meminfo_ledger(
    meminfo: str, page: int, beside: Mapping[str, int], *, whole: bool = True
) -> list[LedgerRow]:
    """
    Rows of the whole machine from /proc/meminfo; node -1, no zone.

    Counters are no pages: what they leave of MemTotal is a remainder, found by subtraction (see
    ``meminfo``), and where the kernel counts a page twice or not at all the remainder is off by it.

    :param page: bytes of a page.
    :param beside: of ``beside_meminfo()``.
    :param whole: no line is missing: else what is left over says nothing.
    :raises ValueError: the text is not /proc/meminfo's.
    """
    said = dict(beside) | read_sizes(meminfo)
    found = by_class(said)
    if whole:
        found.append(("unexplained", REMAINDER, max(in_no_counter(said), 0), "MemTotal"))
    total = said["MemTotal"]
    return largest_first(
        [
            LedgerRow(owner, part, *NO_ZONE, has // page, has, 100 * has / total, lines)
            for owner, part, has, lines in found
        ]
    )


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
    held = None
    with contextlib.suppress(Exception):  # find_places() says what is wrong
        held = HeldPages(holdings(memory))
    pinned = None
    with contextlib.suppress(Exception):  # section pins says what is wrong
        pinned = PinnedPages(memory.prog, pageblock_types(memory.prog))
    return LedgerPages(memory.prog, places.ram, places.owned, charged, caches, tags, held, pinned)


def ledger_pages(memory: Memory) -> tuple[LedgerPages, Gaps]:
    """
    Every page by its class, of the pass that other sections need too, and what that could not read.

    :raises FaultError, LookupError: the struct pages cannot be read.
    """
    if memory.consumers is tuple:  # this section is read alone
        memory.consumers = lambda: (ledger_consumer,)
    return of_pass(memory, LedgerPages, lambda: ledger_consumer(memory))


def settled(memory: Memory) -> str:
    """
    Tell pages without a reference apart, once for all sections; why that cannot be done, if so.

    :raises FaultError, LookupError: the struct pages cannot be read.
    """
    pages, _ = ledger_pages(memory)

    def settle() -> str:
        if pages.kept_pages > MAX_KEPT:
            return (
                f"{pages.kept_pages:,} pages have no reference, too many to tell those on per-CPU "
                "lists"
            )
        try:
            listed = free_memory(memory).pcp_lists
            pages.settle(listed.pfns, listed.orders)
        except (FaultError, LookupError, ValueError) as error:
            return f"pages on per-CPU lists are among the unexplained: {error}"
        return ""

    return memory.once("ledger_settled", settle)


def memory_ledger_from_memory(memory: Memory) -> Found:
    prog, places = memory.prog, find_places(memory)
    pages, gaps = ledger_pages(memory)
    found = Found(memory.live, unreadable_bytes=gaps.bytes)
    found.notes += [f"not told apart: {words}" for words in places.missing]
    if not_settled := settled(memory):
        found.notes.append(not_settled)
    if not memory.live:
        with contextlib.suppress(FaultError, LookupError, ValueError):
            counters = {row.name: row.value for row in vm_counters_once(memory)}
            pages.settle_large(counters["nr_slab_unreclaimable"])
    parts: list[PhysicalPart] = []
    try:
        parts = physical_memory_once(memory).parts
    except (FaultError, LookupError, ValueError) as error:
        found.notes.append(f"what the kernel does not have is missing: {error}")
    unread = gaps.bytes // sizeof(prog.type("struct page"))
    if unread:
        found.notes.append(f"{plural(unread, 'struct page')} could not be read{gaps.why}")
    checks, no_counters = ledger_checks(memory, pages)
    if no_counters:
        found.notes.append(f"counters of /proc/vmstat are missing: {no_counters}")
    if wrong := [r for r in checks if r.counter == "present_pages" and r.difference_pages]:
        found.differ(
            "; ".join(
                f"zone {row.zone} of node {row.node} has {row.kernel_pages:,} present pages, "
                f"{row.pages:,} were found"
                for row in wrong
            )
        )
    if headless := int(pages.pages.reshape(len(KINDS), pages.zones)[Kind.NO_HEAD].sum()):
        found.differ(f"{plural(headless, 'tail')} without a head")
    # Not where pages are missing, or could not be told apart.
    if not memory.live and not unread and not places.missing:
        _hold_against_counters(memory, pages, checks, found)
    for (said, place), count in sorted(pages.disputed.items()):
        if is_powerpc(prog) and (KINDS[said].owner, KINDS[place].owner) == ("slab", "page tables"):
            continue  # its upper tables are objects of slab caches
        found.remarks.append(
            f"by their struct page {KINDS[said].owner}, by their place {KINDS[place].owner}: "
            f"{plural(count, 'page')}, counted by their struct page"
        )
    found.add(LedgerRow, ledger_rows(prog, pages, parts, unread))
    found.add(LedgerCheck, checks)
    found.add(UnexplainedRow, unexplained_rows(prog, pages))
    _add_tags(memory, pages, found)
    return found


def _add_tags(memory: Memory, pages: LedgerPages, found: Found) -> None:
    """By line of source, where the kernel keeps that for each page."""
    if pages.tags is None:
        return
    try:
        tags, _, _ = tags_once(memory)
    except TORN as error:
        found.notes.append(f"lines of source are not told: {error}")
        return
    rows = ledger_tags(pages.tags, tags, int(memory.prog["PAGE_SIZE"].value_()))
    if unread := sum(row.pages for row in rows if row.file == UNREAD):
        found.notes.append(f"the line of source of {plural(unread, 'page')} could not be read")
    if strange := sum(row.pages for row in rows if row.file == STRANGE):
        found.remarks.append(
            f"{plural(strange, 'page refers', 'pages refer')} to lines of source that no loaded "
            "module has: one was unloaded and left them, or the references are damaged"
        )
    found.add(LedgerTag, rows)


def memory_ledger_from_files(files: Files) -> Found:
    page = files.page_size()
    meminfo, zones, missing, no_lists = _meminfo_and_zones(files)
    if page is None:
        raise missing or Absent(NO_PAGE_SIZE)
    found = Found(notes=[no_lists] if no_lists else [])
    vmstat, kstats = {}, ["", ""]
    try:
        vmstat = {name: value for name, _, value in parse_vmstat(files.read("proc/vmstat"))}
    except (Absent, ValueError) as error:
        found.notes.append(f"zram and balloons may be in the remainder: {error}")
    managed = sum(zone.fields["managed"] for zone in zones) * page
    other = other_machine(meminfo, managed, lxcfs=files.lxcfs)
    lacks = "" if missing else not_whole(meminfo)
    if (other or missing or lacks) and vmstat and managed:
        meminfo = meminfo_of_vmstat(vmstat, managed, page)
        whose = "these rows are the host's, by /proc/vmstat: without hugetlb and percpu memory"
        found.notes.append("; ".join(filter(None, (other, str(missing or ""), lacks, whose))))
        lacks = ""
    elif missing:
        raise missing
    else:
        found.notes += [words for words in (other, lacks) if words]
    for number, path in enumerate(KSTATS):
        with contextlib.suppress(Absent):  # no ZFS
            kstats[number] = files.read(path)
    listed = sum(said["count"] for zone in zones for said in zone.pagesets.values())
    present = sum(zone.fields["present"] for zone in zones)
    beside = beside_meminfo(vmstat, listed, present, arc_bytes(*kstats), page)
    found.add(LedgerRow, read_meminfo_ledger(meminfo, page, beside, whole=not lacks))
    found.remarks.append(
        "by the kernel's counters, not page by page: the remainder is what they leave of MemTotal; "
        "read the kernel's memory (as root) to know what it is"
    )
    return found


def _meminfo_and_zones(
    files: Files,
) -> tuple[str, list[ZoneText], Absent | ValueError | None, str]:
    """The text of the first and the zones of the second; why the one is not there, the other."""
    meminfo, zones, missing, lists = "", list[ZoneText](), None, ""
    try:
        meminfo = files.read("proc/meminfo")
        read_sizes(meminfo)
    except (Absent, ValueError) as reason:
        meminfo, missing = "", reason
    try:
        zones = parse_zoneinfo(files.read("proc/zoneinfo"))
    except (Absent, ValueError) as reason:
        lists = f"per-CPU lists are in the remainder: {reason}"
    return meminfo, zones, missing, lists


def other_machine(meminfo: str, managed: int, *, lxcfs: bool) -> str:
    """
    In words, that /proc/meminfo is not of the machine whose zones stand beside it; empty if it is.

    :param managed: bytes of all zones; 0: unknown.
    :param lxcfs: it is mounted there: it gives a container a /proc/meminfo of its own, and leaves
        /proc/zoneinfo and /proc/vmstat the host's.
    """
    if not meminfo or not managed:
        return ""
    said = read_sizes(meminfo)
    if abs(said["MemTotal"] / managed - 1) < 0.02 and not lxcfs:
        return ""
    whose = "a container's (lxcfs)" if lxcfs else "not that of the zones beside it"
    return (
        f"/proc/meminfo is {whose}: {size(said['MemTotal'])}, of which {size(said['MemFree'])} are "
        f"free, beside {size(managed)} in /proc/zoneinfo"
    )


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
    tables=tables_of(LedgerRow, LedgerCheck, UnexplainedRow, LedgerTag),
    from_memory=memory_ledger_from_memory,
    from_files=memory_ledger_from_files,
    deadline=PASS_SECONDS,
    reads=(prices.MEMINFO, prices.ZONEINFO, prices.VMSTAT, prices.ZFS, prices.NAMES),
    consumer=ledger_consumer,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_ledger", "memory_ledger", "ledger_unexplained", "ledger_tags")
