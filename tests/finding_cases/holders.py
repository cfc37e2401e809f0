# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about who holds and who pins pages. The target has 4 GiB."""

from finding_cases.case import Case

from mmscope.drgn.ledger.page_holders import PageHolder, VirtualMachine
from mmscope.drgn.ledger.pins import Pin
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.processes.process_memory import ProcessMemory


def holder(
    kind: str, mib: int, owner: str, name: str = "", pid: int | None = 7, comm: str | None = "srv"
) -> PageHolder:
    return PageHolder(kind, name, pid, comm, None, owner, "x", 3, mib << 8, mib << 20)


def pin(zone: str, migratetype: str, mib: int, owner: str = "anonymous") -> Pin:
    return Pin(0, zone, owner, "base pages", migratetype, 0, mib << 8, mib << 8)


def guest(pid: int, given: int | None, kernel: int = 2) -> VirtualMachine:
    given = None if given is None else given << 20
    return VirtualMachine(f"kvm-{pid}", pid, "qemu", None, 2, given, kernel << 20)


def resident(pid: int, mib: int, swap: int = 0) -> ProcessMemory:
    return ProcessMemory(pid, "qemu", mib << 20, 0, 0, 0, swap << 20, 1 << 20, 0, 0, 0, 1, 1)


def process(pid: int, comm: str, pinned: int) -> ProcessMemory:
    return ProcessMemory(pid, comm, 0, 0, 0, 0, 0, 0, 0, pinned << 20, 0, 1, 1)


FOUND = {
    "a server that does not read": Case(
        "holder-large",
        [holder("socket", 600, "network", "tcp"), holder("socket", 20, "slab", "tcp"),
         holder("pipe", 30, "pipes")],
        ["srv (pid 7) holds 620 MiB, 15.1 % of memory: socket tcp", "3 of kind socket hold 620 MiB",
         "(class network", "srv (pid 7) has them open"], "warning", ["pipe of"],
    ),
    "a map that no process has open": Case(
        "holder-large", [holder("BPF map", 300, "vmalloc", "12 flows", None, None)],
        ["BPF map 12 flows: 300 MiB, 7.3 % of memory", "The process that has"], "notice",
    ),
    "a page pool that was destroyed": Case(
        "holder-large", [holder("page pool that waits", 300, "network", "eth0 5", None, None)],
        ["page pool that waits eth0 5: 300 MiB, 7.3 % of memory",
         "for what it receives; the pool was destroyed"], "notice", ["has them open"],
    ),
    "tables of a virtual machine": Case(
        "holder-large", [holder("virtual machine", 300, "page tables", "kvm-7", comm="qemu")],
        ["qemu (pid 7) holds 300 MiB, 7.3 % of memory: virtual machine kvm-7"], "notice",
    ),
    "two maps of a process": Case(
        "holder-large",
        [holder("BPF map", 300, "vmalloc", "12 flows"), holder("BPF map", 100, "vmalloc", "13 x")],
        ["srv (pid 7) holds 300 MiB, 7.3 % of memory: BPF map 12 flows"], "notice", ["13 x"],
    ),
    "sockets of many processes": Case(
        "holder-large",
        [*(holder("socket", 5, "network", "tcp", pid, f"worker-{pid}") for pid in range(1, 90)),
         holder("socket", 9, "network", "tcp", 99, "queue"), holder("pipe", 30, "pipes")],
        ["socket, 90 holders: 454 MiB, 11.1 % of memory", "270 of kind socket hold 454 MiB",
         "No holder has a twentieth of memory; queue has most, 9 MiB"], "warning",
        ["pipe of", "is unknown"],
    ),
    "guests whose processes take much beside them": Case(
        "vm-beyond-size",
        [guest(5, 1024), resident(5, 1100, 140), guest(6, 512), resident(6, 500),
         guest(7, None), resident(7, 900)],
        ["Virtual machines take 222 MiB beyond the memory they were given, 5.4 % of memory",
         "2 machines of KVM, 1.5 GiB of guest memory", "at least 222 MiB more: 6 MiB are",
         "qemu (pid 5) has most, 219 MiB beyond 1 GiB"], "notice",
    ),
    "a cache of a module that has a shrinker": Case(
        "module-cache-large",
        [holder("list of a module with a shrinker", 900, "driver", "pool [ttm]", None, None),
         holder("list of a module", 900, "unexplained", "leaked [drv]", None, None)],
        ["pool [ttm], a module's list, holds 900 MiB, 22.0 % of memory; the module has a shrinker"],
        "notice", ["leaked"],
    ),
    "pins in CMA, which refuses": Case(
        "pins-in-the-way",
        [pin("Normal", "CMA", 40), pin("Normal", "Movable", 900),
         VmCounter("cma_alloc_fail", "event", 4, 0), process(9, "capture", 40),
         holder("io_uring buffers", 40, "anonymous")],
        ["40 MiB in CMA are pinned", "10,240 pages (anonymous) of CMA have 10,240 pins",
         "CMA has refused 4 allocations since boot", "srv (pid 7): 10240 pages of io_uring buffers",
         "capture (pid 9)"], "warning",
    ),
    "pins in zone Movable, of pages of files too": Case(
        "pins-in-the-way",
        [pin("Movable", "Movable", 10), pin("Movable", "Movable", 8, "page cache")],
        ["18 MiB in zone Movable are pinned", "(anonymous, page cache)"], "notice",
        ["CMA has refused", "Processes that account"],
    ),
}  # fmt: skip
CLEAR = {
    "busy sockets": Case("holder-large", [holder("socket", 60, "network", "tcp")]),
    "a file that is sent": Case("holder-large", [holder("pipe", 900, "page cache")]),
    "registered buffers, which are the process's": Case(
        "holder-large", [holder("io_uring buffers", 900, "anonymous")]
    ),
    "lists of modules, which have findings of their own": Case(
        "holder-large", [holder("list of a module", 900, "unexplained", "leaked [drv]", None, None)]
    ),
    "a pool of huge pages in use": Case("holder-large", [holder("hugetlb file", 900, "hugetlb")]),
    "memory that is swapped out to zram": Case(
        "holder-large", [holder("zram", 900, "compressed", "zram0", None, None)]
    ),
    "slots of swiotlb": Case(
        "holder-large", [holder("swiotlb", 400, "kernel reserves", "in use", None, None)]
    ),
    "guests that are as large as they were given": Case(
        "vm-beyond-size", [guest(5, 1024), resident(5, 1100), guest(6, 512), resident(6, 90)]
    ),
    "no guest": Case("vm-beyond-size", [process(5, "srv", 0)], empty=(VirtualMachine,)),
    "a balloon": Case("holder-large", [holder("balloon", 900, "given away", "virtio_balloon")]),
    "a module's small cache": Case(
        "module-cache-large", [holder("list of a module with a shrinker", 60, "driver", "a [b]")]
    ),
    "no module has one": Case("module-cache-large", [], empty=(PageHolder,)),
    "kernel stacks, which have a finding of their own": Case(
        "holder-large", [holder("kernel stacks", 900, "kernel stacks")]
    ),
    "nothing is held": Case("holder-large", [], empty=(PageHolder,)),
    "much is pinned where it may be": Case("pins-in-the-way", [pin("Normal", "Unmovable", 900)]),
    "a transfer on its way": Case("pins-in-the-way", [pin("Normal", "CMA", 4)]),
    "nothing is pinned": Case("pins-in-the-way", [], empty=(Pin,)),
}
NOT_CHECKED = {
    "nobody looked for holders": Case(
        "holder-large", [], why_not="no table page_holders in this bundle"
    ),
    "nobody looked for lists of modules": Case(
        "module-cache-large", [], why_not="no table page_holders in this bundle"
    ),
    "nobody looked for virtual machines": Case(
        "vm-beyond-size", [], why_not="no table virtual_machines in this bundle"
    ),
    "nobody looked for pins": Case("pins-in-the-way", [], why_not="no table pins in this bundle"),
}
