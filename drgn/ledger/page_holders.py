# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Holders of pages that nothing in their struct pages names, each page once.

What holds pages is found first, by the structures that lead to them (``drgn/holders``); the pass
over all struct pages then counts each page in the class that the ledger has it in. So the rows of a
class are no more than the class. Of pipes, rings, what ftrace keeps and requests of block devices
they are all of it; of kernel stacks all but what CPUs keep for the next thread. Page tables of
virtual machines are nr_sec_page_table_pages, and the first one of each machine. Pages of hugetlb
are HugePages_Total less HugePages_Free. What zram and zswap take is counted by their pools.

Costs a few reads for each process that has files open, each thread, pipe, ring, BPF map and
program, and each queue of a socket.

Cannot know: what is behind files that no process has open; buffers on the queues of devices; pages
of GPUs without TTM and of other drivers that are on no list in the module's data; IOMMUs of AMD and
Arm; the huge page that ``collapse_huge_page()`` has in hand while it waits for a lock. These stay
unexplained. Other vmalloc memory has its callers in ``vmalloc_callers``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from mmscope.drgn.holders.balloons import balloon_names
from mmscope.drgn.holders.holdings import Holder, Holdings
from mmscope.drgn.holders.huge_pages import MOST_FILES, huge_page_holders
from mmscope.drgn.holders.page_pools import pool_names
from mmscope.drgn.holders.virtual_machines import CPUS, MACHINE
from mmscope.drgn.ledger.file_pages import COLUMNS
from mmscope.drgn.ledger.held_places import holdings
from mmscope.drgn.ledger.ledger_pages import LedgerPages
from mmscope.drgn.ledger.memory_ledger import ledger_pages
from mmscope.drgn.ledger.page_kinds import KINDS, Kind
from mmscope.drgn.ledger.swap_areas import zsmalloc_pools
from mmscope.drgn.processes.address_spaces import kept_address_spaces
from mmscope.drgn.processes.open_files import Opener, open_files
from mmscope.drgn.reading.kernel_arrays import TORN, Gaps
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import (
    PASS_SECONDS,
    TOP,
    Command,
    Found,
    Section,
    not_in_text,
)
from mmscope.drgn.tables.display import if_any, plural
from mmscope.drgn.tables.rows import MOST_BYTES, MOST_PAGES, MOST_PIDS, column
from mmscope.drgn.tables.table import Inside, table, tables_of


@table(
    "page_holders",
    "Who holds pages of the kernel",
    empty="No pipe, ring or socket has pages of its own.",
    memory="again",
    measure="bytes",
    lasting=("kind", "holder", "comm", "owner"),
    inside=tuple(
        Inside(owner, "bytes", ("owner", (owner,)))
        for owner in (
            *("pipes", "network", "rings", "tracing", "kernel reserves", "driver", "compressed"),
            *("vmalloc", "kernel stacks", "page tables", "hugetlb", "given away", "unexplained"),
        )
    ),
)
class PageHolder:
    """Pages of one class that one holder has."""

    kind: str = column(
        holds="words",
        key=True,
        help="pipe, socket, perf ring, AIO ring, BPF map, kernel stacks, virtual machine, vCPUs, "
        "guest_memfd, …",
    )
    holder: str = column(
        holds="kernel",
        key=True,
        help="name by kind: protocol, map, disk, driver, file, …; empty: all of that kind",
    )
    pid: int | None = column(
        key=True,
        high=MOST_PIDS,
        help="thread group that has it open or mapped, first of several; empty: unknown",
    )
    comm: str | None = column(holds="comm", help="name of its first thread")
    cgroup: str | None = column(holds="cgroup", help="memory cgroup of the process")
    owner: str = column(
        holds="words",
        key=True,
        help="class as in memory_ledger; page cache: a file's pages in a pipe",
    )
    part: str = column(holds="words", key=True, help="part of the class")
    objects: int = column(
        help="pipes, sockets, rings, stacks, … of this holder; pages that zram or zswap stores"
    )
    pages: int = column(unit="pages", high=MOST_PAGES, help="base pages, each counted once")
    bytes: int = column(unit="bytes", high=MOST_BYTES, help="of these pages")


@table(
    "virtual_machines",
    "Virtual machines",
    empty="No virtual machine runs, or none of KVM on x86.",
    memory="again",
    measure="kernel_bytes",
    lasting=("machine", "comm"),
)
class VirtualMachine:
    """A virtual machine, and what the kernel has for it beside the memory that it was given."""

    machine: str = column(
        holds="words", key=True, help="kvm-PID by the process that made it, as holder"
    )
    pid: int | None = column(
        key=True, high=MOST_PIDS, help="thread group that has it open; empty: unknown"
    )
    comm: str | None = column(holds="comm", help="name of its first thread")
    cgroup: str | None = column(holds="cgroup", help="memory cgroup of the process")
    vcpus: int = column(help="vCPUs")
    given_bytes: int | None = column(
        unit="bytes",
        high=MOST_BYTES,
        help="guest's RAM, ROM and video memory, touched or not; empty: unknown",
    )
    kernel_bytes: int = column(
        unit="bytes", help="its page tables, and the pages of its vCPUs, as in page_holders"
    )


NOT_HELD = (Kind.FREE, Kind.PER_CPU, Kind.UNACCEPTED, Kind.NO_REFERENCE)


def page_holders_from_memory(memory: Memory) -> Found:
    pages, gaps = ledger_pages(memory)
    found = Found(memory.live, unreadable_bytes=gaps.bytes)
    held = holdings(memory)
    found.differ(*(f"not looked for: {words}" for words in held.missing))
    found.differ(*if_any(held.gaps.bytes, "{} bytes of what holds pages could not be read"))
    found.differ(*if_any(held.strange, "{} addresses of pages that are none"))
    page = int(memory.prog["PAGE_SIZE"].value_())
    rows, free = [], 0
    for number, kind, count in pages.held.rows() if pages.held else ():
        if kind in NOT_HELD:
            free += count
            continue
        holder, of = held.holders[number], KINDS[kind]
        rows.append(
            PageHolder(
                holder.kind,
                holder.name,
                *holder.who,
                of.owner,
                of.part,
                held.objects[number],
                count,
                count * page,
            )
        )
    prog = memory.prog
    pools = dict.fromkeys(pages.pools, Holder("page pool", "that cannot be read"))
    pools |= pool_names(prog, [*pages.pools])
    rows += _named(pages.pools, pools, Kind.PAGE_POOL, page)
    rows += _named(pages.balloons, balloon_names(prog, [*pages.balloons]), Kind.OFFLINE, page)
    try:
        huge = huge_page_holders(prog, [*pages.huge], _by_space(memory))
        rows += _named(pages.huge, huge, Kind.HUGETLB, page)
        if lost := len(list(pages.huge)[:MOST_FILES]) - len(huge):
            words = plural(lost, "mapping")
            found.differ(f"who has pages of hugetlb: {words} cannot be followed")
    except TORN as error:
        found.differ(f"who has pages of hugetlb: {error}")
    rows += _compressed(memory, pages, page, found)
    rows += _named(_of_files(pages, held.guest_files), held.guest_files, Kind.FILE, page)
    found.differ(*if_any(free, "free, and held by something: {}", "page"))
    rows.sort(key=lambda row: (-row.pages, row.kind, row.holder, row.pid or 0, row.owner, row.part))
    return found.add(PageHolder, rows).add(VirtualMachine, list(_machines(held, rows, page)))


def _of_files(pages: LedgerPages, mappings: Iterable[int]) -> dict[int, int]:
    """Pages of some files, by their address spaces."""
    pages.files.settle()
    every, counts = pages.files.mappings, pages.files.counts[:, COLUMNS.index("file")]
    wanted = np.array(sorted(mappings), np.uint64)
    at = find(every, wanted)
    return dict(zip(wanted[at >= 0].tolist(), counts[at[at >= 0]].tolist(), strict=True))


def _machines(held: Holdings, rows: list[PageHolder], page: int) -> Iterator[VirtualMachine]:
    """Virtual machines, with the pages of the kernel that are theirs alone."""
    taken = Counter[tuple[str, int | None]]()
    for row in rows:
        if row.kind in (MACHINE, CPUS):
            taken[row.holder, row.pid] += row.bytes
    for name, who, cpus, given in held.machines:
        bytes_ = None if given is None else given * page
        yield VirtualMachine(name, *who, cpus, bytes_, taken[name, who.pid])


def _compressed(
    memory: Memory, pages: LedgerPages, page: int, found: Found
) -> Iterator[PageHolder]:
    """Rows of zram devices and zswap, by the counters of their pools."""
    try:
        pools = list(zsmalloc_pools(memory.prog))
    except TORN as error:  # modules of 5.10 have no BTF
        found.remarks.append(f"not looked for: pages of zram and zswap: {error}")
        return
    marked = pages.pages.reshape(len(KINDS), -1)[Kind.ZSMALLOC].any()
    of = KINDS[Kind.ZSMALLOC if marked else Kind.MOVABLE_OPS]
    for holder, stored, taken in pools:
        if taken:
            yield PageHolder(
                *(holder.kind, holder.name, *holder.who, of.owner, of.part),
                *(stored, taken, taken * page),
            )


def _named(
    counts: Mapping[int, int], names: Mapping[int, Holder], of: Kind, page: int
) -> Iterator[PageHolder]:
    """Rows of what pages name, by its address; what has one name is one row."""
    objects, pages = Counter[Holder](), Counter[Holder]()
    for address, count in counts.items():
        if holder := names.get(address):
            objects[holder] += 1
            pages[holder] += count
    for holder, count in pages.items():
        yield PageHolder(
            *(holder.kind, holder.name, *holder.who, of.owner, of.part),
            *(objects[holder], count, count * page),
        )


def _by_space(memory: Memory) -> dict[int, Opener]:
    """Processes by the address of their ``struct mm_struct``."""
    spaces = kept_address_spaces(memory, Gaps())
    openers = {each.pid: each for each in open_files(memory).processes}
    return {
        address: openers.get(process.pid, Opener(process.pid, process.comm))
        for address, process in zip(spaces.addresses.tolist(), spaces.processes, strict=True)
    }


PAGE_HOLDERS_SECTION = Section(
    name="page_holders",
    title="Who holds pages",
    since="0.3.0",
    tables=tables_of(
        PageHolder,
        VirtualMachine,
    ),
    intro="""
Data that waits in [pipes](https://man7.org/linux/man-pages/man7/pipe.7.html) and sockets, rings of
perf, io_uring, AIO, packet sockets and ftrace, BPF maps and programs, kernel stacks, dma-bufs,
buffers of graphics cards (of drivers on TTM), page tables and vCPUs of virtual machines (KVM on
x86), page pools of network devices, requests of block devices: memory of the kernel by the process
that has it open. Page tables and queues of IOMMUs (Intel's); pages that a module keeps on a list;
user memory that is pinned for io_uring or, by VFIO or RDMA, for a device; pages of hugetlb by file
and process; files of guest_memfd by virtual machine; what a balloon gave back, by driver; slots of
swiotlb in use; what zram devices and zswap take. Each page is in one row; processes with few
threads share a row for stacks. A page pool that *waits* was destroyed, and has pages in use.

A page that a file has too, as sendfile() makes them, is in the class of the file.
""",
    command=Command("who holds pages of the kernel", top=TOP),
    from_memory=page_holders_from_memory,
    from_files=not_in_text("no text of the kernel says who holds which pages"),
    deadline=PASS_SECONDS,
    reads=(),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("page_holders")
