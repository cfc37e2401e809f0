# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pinned pages of user memory, by zone, class and migratetype; beside the kernel's count of pins.

A pin keeps a page where it is, for a device: it is neither swapped nor moved. Pages that are pinned
for good are moved out of zone Movable and CMA first (``check_and_migrate_movable_folios()``,
mm/gup.c), so that these can be given back whole; those that are pinned there are in the way.

The pins of all rows are nr_foll_pin_acquired less nr_foll_pin_released, two lines of /proc/vmstat.

Cannot know: who pinned a page, and whether for good. Table ``page_holders`` has what is pinned
for io_uring, by VFIO and by RDMA; of table ``process_memory``, ``pinned_bytes`` has what RDMA and
io_uring account to a process, and ``locked_bytes`` what VFIO does.
"""

from mmscope.drgn.free.device_ranges import DeviceMemory
from mmscope.drgn.free.zones import zone_names
from mmscope.drgn.ledger.memory_ledger import ledger_pages
from mmscope.drgn.ledger.page_kinds import KINDS, Kind
from mmscope.drgn.machine.vm_counters import drift, vm_counters_once
from mmscope.drgn.processes.process_memory import process_memory_once
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import (
    PASS_SECONDS,
    TOP,
    Command,
    Found,
    Section,
    not_in_text,
)
from mmscope.drgn.tables.rows import MOST_ORDER, column
from mmscope.drgn.tables.table import table, tables_of

UNKNOWN = (-1, "unknown")


@table("pins", "Pinned pages", empty="No page is pinned.", memory="again", measure="pages")
class Pin:
    """Pinned pages of one zone, class, migratetype and size of folio."""

    node: int = column(key=True, low=-1, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    owner: str = column(holds="words", key=True, help="class of memory, as in memory_ledger")
    part: str = column(holds="words", key=True, help="part of the class")
    migratetype: str = column(
        holds="kernel", key=True, help="of the pageblock; CMA needs pages without pins"
    )
    order: int = column(key=True, high=MOST_ORDER, help="of the folio; 0: a base page")
    pages: int = column(unit="pages", help="of folios with at least one pinned page")
    pins: int = column(help="of these folios; a page may have several")


def pins_from_memory(memory: Memory) -> Found:
    prog = memory.prog
    pages, gaps = ledger_pages(memory)
    found = Found(memory.live, unreadable_bytes=gaps.bytes)
    if pages.pinned is None:
        raise LookupError("the pageblocks cannot be read, or the kernel does not count pins")
    zones, types = zone_names(prog), pages.pinned.types.names
    rows = [
        Pin(
            *zones.get(zone, UNKNOWN),
            KINDS[kind].owner,
            KINDS[kind].part,
            types[type_] if type_ >= 0 else "unknown",
            max(order, 0),
            count,
            pages.pinned.pins[zone, kind, type_, order],
        )
        for (zone, kind, type_, order), count in pages.pinned.pages.items()
    ]
    rows.sort(key=lambda row: (-row.pages, row.node, row.zone, row.owner, row.part, row.order))
    counters = {row.name: row.value for row in vm_counters_once(memory)}
    if "nr_foll_pin_acquired" in counters:
        said = counters["nr_foll_pin_acquired"] - counters["nr_foll_pin_released"]
        ours = sum(row.pins for row in rows)
        if abs(said - ours) > drift(prog):
            found.differ(f"{ours:,} pins were counted, nr_foll_pin_* say {said:,}")
    if not memory.live:
        counted = pages.pages.reshape(len(KINDS), pages.zones)
        at_most = sum(row.pins << row.order for row in rows) + int(counted[Kind.PERF_RING].sum())
        found.remarks += pinned_by_none(memory, at_most)
    return found.add(Pin, rows)


def pinned_by_none(memory: Memory, at_most: int) -> list[str]:
    """
    In words, how far processes say that they have pinned more than is pinned.

    ``pinned_vm`` counts a page for each pin that a process has of it (``ib_umem_get()``,
    ``io_account_mem()``), before or after the pin is taken, and what perf's rings have beyond what
    a user may have of them (``perf_mmap()``). Device memory may be pinned, and is in none of the
    pages that were counted.

    :param at_most: pins of all pages, where one may stand for a whole large folio
        (``io_coalesce_buffer()``, io_uring/rsrc.c), and the pages of perf's rings.
    """
    if len(DeviceMemory(memory.prog).edges):
        return []
    rows, _, _ = process_memory_once(memory)
    said = sum(row.pinned_bytes for row in rows) // int(memory.prog["PAGE_SIZE"])
    if said <= at_most:
        return []
    return [
        f"processes say that they have pinned {said:,} pages (pinned_vm), but {at_most:,} are: "
        "more were about to be pinned, or damage"
    ]


PINS_SECTION = Section(
    name="pins",
    title="Pinned pages",
    since="0.3.0",
    tables=tables_of(
        Pin,
    ),
    intro="""
Pages of user memory that are [pinned](https://docs.kernel.org/core-api/pin_user_pages.html) for a
device or a buffer that is registered: RDMA, VFIO, io_uring. They are neither swapped nor moved, so
that compaction, CMA and the removal of memory fail where they lie.

Table `page_holders` names who has pages pinned for io_uring, by VFIO or by RDMA. In table
`process_memory`, `pinned_bytes` are pins for RDMA and io_uring; those of VFIO are in
`locked_bytes`.
""",
    command=Command("pinned pages by zone and class", top=TOP),
    from_memory=pins_from_memory,
    from_files=not_in_text(
        "no text of the kernel says which pages are pinned; vm_counters has how many"
    ),
    deadline=PASS_SECONDS,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("pins")
