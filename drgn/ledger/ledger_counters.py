# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel's own counters of what the ledger counts page by page.

Most are lines of /proc/vmstat, read with what CPUs have not folded in yet. Costs a few reads.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from drgn import FaultError, Program
from drgn.helpers.linux.hugetlb import for_each_hstate

from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.ledger import page_kinds as kinds
from mmscope.drgn.ledger.ledger_pages import LedgerPages
from mmscope.drgn.ledger.page_kinds import KINDS
from mmscope.drgn.machine.vm_counters import vm_counters
from mmscope.drgn.tables.rows import column, table_row
from mmscope.drgn.tables.table import Table


@table_row
class LedgerCheck:
    """A counter of the kernel beside the pages that were counted."""

    counter: str = column(
        holds="kernel",
        key=True,
        help="a line of /proc/vmstat; a variable of the kernel; or a zone's member",
    )
    node: int = column(key=True, low=-1, help="NUMA node; -1: the whole machine")
    zone: str = column(holds="kernel", key=True, help="zone name; empty: all zones")
    pages: int = column(unit="pages", help="counted page by page")
    kernel_pages: int = column(unit="pages", low=None, high=None, help="by the kernel's counter")
    difference_pages: int = column(
        unit="pages", low=None, high=None, help="pages, less kernel_pages"
    )
    may_differ: str = column(holds="words", help="why they may differ on a healthy machine")


LEDGER_CHECKS = Table(
    "ledger_checks",
    "The ledger beside the kernel's counters",
    LedgerCheck,
    not_compared="its pages are those of memory_ledger, its counters those of vm_counters",
)


@dataclass(frozen=True, slots=True)
class Counter:
    """
    A counter of the whole machine, and the kinds of pages in it.

    :ivar read: its pages; LookupError where this kernel has none.
    :ivar may_differ: why it may differ from what is counted.
    """

    name: str
    kinds: tuple[int, ...]
    read: Callable[[Program, dict[str, int]], int]
    may_differ: str = ""


def _line(name: str) -> Callable[[Program, dict[str, int]], int]:
    return lambda prog, vmstat: vmstat[name]


def _kernel_stacks(prog: Program, vmstat: dict[str, int]) -> int:
    """NR_KERNEL_STACK_KB."""
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
    return sum(
        int(hstate.nr_huge_pages.value_()) << int(hstate.order.value_())
        for hstate in for_each_hstate(prog)
    )


COUNTERS = (
    Counter(
        "nr_free_pages",
        (kinds.FREE, kinds.UNACCEPTED),
        _line("nr_free_pages"),
        "free blocks of isolated pageblocks are not in the counter",
    ),
    Counter(
        "nr_anon_pages",
        (kinds.ANON, kinds.LARGE, kinds.KSM, kinds.ANON_SWAP),
        _line("nr_anon_pages"),
        "pages that no process maps are not in the counter",
    ),
    Counter(
        "nr_file_pages",
        (kinds.FILE, kinds.SHMEM, kinds.SWAP_CACHE, kinds.ANON_SWAP),
        _line("nr_file_pages"),
    ),
    Counter("nr_shmem", (kinds.SHMEM,), _line("nr_shmem")),
    Counter("nr_slab_reclaimable", (kinds.RECLAIMABLE,), _line("nr_slab_reclaimable")),
    Counter(
        "nr_slab_unreclaimable",
        (kinds.SLAB, kinds.LARGE_KMALLOC),
        _line("nr_slab_unreclaimable"),
        "large allocations of kmalloc() are in the counter; where their pages have no type of "
        "their own (6.12) they are among the unexplained compound pages",
    ),
    Counter("nr_page_table_pages", (kinds.TABLE,), _line("nr_page_table_pages")),
    Counter(
        "nr_sec_page_table_pages",
        (),
        _line("nr_sec_page_table_pages"),
        "page tables of KVM and of IOMMUs have no mark: they are among the unexplained",
    ),
    Counter(
        "nr_kernel_stack",
        (kinds.STACK,),
        _kernel_stacks,
        "stacks that a CPU keeps for the next thread (two at most) are not in the counter",
    ),
    Counter("nr_vmalloc", (kinds.VMALLOC, kinds.STACK), _vmalloc),
    Counter("pcpu_nr_pages", (kinds.PERCPU, kinds.BOOT_PERCPU), _percpu),
    Counter(
        "hugetlb_total_pages",
        (kinds.HUGETLB, kinds.HUGETLB_FREE),
        _hugetlb,
        "pages that are marked as bad are in the counter",
    ),
    Counter("nr_zspages", (kinds.ZSMALLOC,), _line("nr_zspages")),
    # "meminfo: add a per node counter for balloon drivers" (835de37603ef, in v6.16)
    Counter(
        "nr_balloon_pages",
        (kinds.OFFLINE,),
        _line("nr_balloon_pages"),
        "memory that a hypervisor unplugged (virtio-mem) looks the same, and is not in the counter",
    ),
)
BY_KIND: dict[int, list[str]] = {}
for _counter in COUNTERS:
    for _kind in _counter.kinds:
        BY_KIND.setdefault(_kind, []).append(_counter.name)


def ledger_checks(prog: Program, pages: LedgerPages) -> tuple[list[LedgerCheck], str]:
    """
    Every counter that this kernel has, and the present pages of each zone.

    :return: (the rows, why those of /proc/vmstat are missing, if they are).
    """
    counted = pages.pages.reshape(len(KINDS), pages.zones)
    rows = []
    for node, index, zone in for_each_zone(prog):
        ours = int(counted[:, node * pages.fields.zones_per_node + index].sum())
        present = int(zone.present_pages.value_())
        if ours or present:
            rows.append(
                LedgerCheck(
                    "present_pages", node, zone_name(zone), ours, present, ours - present, ""
                )
            )
    rows.append(_boot_check(prog, pages))
    vmstat, missing = {}, ""
    try:
        vmstat = {row.name: row.value for row in vm_counters(prog)}
    except (FaultError, LookupError, ValueError) as error:
        missing = str(error)
    for counter in COUNTERS:
        with contextlib.suppress(LookupError, FaultError):
            says = counter.read(prog, vmstat)
            ours = int(counted[list(counter.kinds)].sum())
            rows.append(
                LedgerCheck(counter.name, -1, "", ours, says, ours - says, counter.may_differ)
            )
    return rows, missing


def _boot_check(prog: Program, pages: LedgerPages) -> LedgerCheck:
    """
    Pages that the allocator never had: present less managed pages, of all zones. Those pages have
    PG_reserved, whatever they are used for (``memmap_init_reserved_pages()``, mm/memblock.c).
    """
    kept = sum(
        int(zone.present_pages.value_()) - int(zone.managed_pages.counter.value_())
        for _, _, zone in for_each_zone(prog)
    )
    ours = int(pages.reserved.sum())
    return LedgerCheck(
        "present_pages - managed_pages",
        -1,
        "",
        ours,
        kept,
        ours - kept,
        "reserved pages of any class. Gigantic pages taken at boot and struct pages in hot-added "
        "memory itself may lack the mark; drivers may set it",
    )


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_ledger", "ledger_checks")
