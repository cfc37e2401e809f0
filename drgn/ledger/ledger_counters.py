# SPDX-License-Identifier: LGPL-2.1-or-later
"""
The kernel's own counters of what the ledger counts page by page.

Most are lines of /proc/vmstat, read with what CPUs have not folded in yet. Costs a few reads.
"""

import contextlib

from drgn import FaultError, Program
from drgn.helpers.linux.hugetlb import for_each_hstate

from mmscope.drgn.free.zones import for_each_zone, zone_name
from mmscope.drgn.ledger.ledger_pages import LedgerPages
from mmscope.drgn.ledger.page_kinds import KINDS, Kind
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
        "their own (6.12) they are among the unexplained compound pages",
    ),
    "nr_page_table_pages": ((Kind.TABLE,), ""),
    "nr_sec_page_table_pages": (
        (),
        "page tables of KVM and of IOMMUs have no mark: they are among the unexplained",
    ),
    "nr_kernel_stack": (
        (Kind.STACK,),
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
}


def counters_of(kind: Kind) -> str:
    """The counters that pages of a kind are in."""
    return " ".join(name for name, (kinds, _) in COUNTERS.items() if kind in kinds)


def ledger_checks(prog: Program, pages: LedgerPages) -> tuple[list[LedgerCheck], str]:
    """
    Every counter that this kernel has, and the present pages of each zone.

    :return: (the rows, why those of /proc/vmstat are missing, if they are).
    """
    rows = []

    def check(name: str, ours: int, says: int, why: str, node: int = -1, zone: str = "") -> None:
        rows.append(LedgerCheck(name, node, zone, ours, says, ours - says, why))

    counted = pages.pages.reshape(len(KINDS), pages.zones)
    never_given = 0
    for node, index, zone in for_each_zone(prog):
        ours = int(counted[:, node * pages.fields.zones_per_node + index].sum())
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
        vmstat = {row.name: row.value for row in vm_counters(prog)}
    except (FaultError, LookupError, ValueError) as error:
        missing = str(error)
    for name, (kinds, why) in COUNTERS.items():
        with contextlib.suppress(LookupError, FaultError):
            says = READ[name](prog, vmstat) if name in READ else vmstat[name]
            check(name, int(counted[list(kinds)].sum()), says, why)
    return rows, missing


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_ledger", "ledger_checks")
