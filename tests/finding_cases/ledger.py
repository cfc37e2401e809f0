# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about where memory went, by the ledger and by the counters."""

import dataclasses

from finding_cases.case import TARGET, Case
from finding_cases.rows import (
    RATE,
    event,
    huge_size,
    ledger,
    of_line,
    owned,
    pages_of,
    text_ledger,
    zone,
)

from mmscope.drgn.cgroups.percpu_owners import PercpuCgroup
from mmscope.drgn.cgroups.pressure import Pressure
from mmscope.drgn.free.pcp_lists import PcpPages
from mmscope.drgn.ledger.memory_ledger import LedgerCheck, LedgerRow, UnexplainedRow
from mmscope.drgn.ledger.percpu_chunks import PercpuChunk, PercpuSize
from mmscope.drgn.ledger.swap_areas import SwapArea
from mmscope.drgn.ledger.vmalloc_callers import VmallocCaller
from mmscope.drgn.machine.hypervisor import HypervisorSign
from mmscope.drgn.machine.vm_counters import VmCounter
from mmscope.drgn.processes.held_open import SharedFile, SocketBuffers
from mmscope.drgn.processes.process_memory import ProcessMemory
from mmscope.drgn.processes.shm_segments import ShmSegment
from mmscope.reports.bundle.description import SectionResult

UNREAD_PAGES = "struct page not readable"


def looks(part: str, pages: int, order: int | None, charged: str = "no") -> UnexplainedRow:
    return UnexplainedRow(part, 0, "Normal", "", "1", order, charged, pages, "0x1200 0x1400")


def check(counter: str, pages: int, says: int) -> LedgerCheck:
    return LedgerCheck(counter, -1, "", pages, says, pages - says, "")


def arc(pages: int) -> LedgerRow:
    return LedgerRow("page cache", "ZFS's ARC, which reclaim shrinks", 0, "Normal", pages, 0, 1, "")


def swap(used: int, size: int = 1_000) -> SwapArea:
    """A device of so many MiB."""
    return SwapArea("/dev/vda5", "partition", size << 20, used << 20, -2, False, None, None)


def swapped(pid: int, comm: str, mib: int) -> ProcessMemory:
    return ProcessMemory(pid, comm, 0, 0, 0, 0, mib << 20, 0, 0, 0, mib << 20, 1, 1)


def percpu(kind: str, mib: int, used: int) -> PercpuChunk:
    return PercpuChunk(f"0x{mib:x}", kind, mib << 20, used << 20, 9, 0, 1 << 20, 0, 0)


def vmalloc(caller: str, percent: float, use: str = "vmalloc") -> VmallocCaller:
    """So much of a million pages."""
    pages = int(10_000 * percent)
    return VmallocCaller(caller, use, 70, pages, pages << 12)


# Where zones are read, what is free is theirs.
FREE = pages_of("nr_free_pages", 1)


def segment(shmid: int, size: int, attached: int) -> ShmSegment:
    return ShmSegment(shmid, "0x0000a1b2", size, size, 0, attached, 700, 1000)


def small(pid: int, anon: int) -> ProcessMemory:
    """A process with so much anonymous memory, by /proc/PID/status."""
    return ProcessMemory(pid, "agetty", anon, anon, 0, 0, 0, 65_536, 0, 0, 3 << 20, 1, 1)


def mapped(size: int) -> ProcessMemory:
    """A process with so much anonymous memory, by the kernel's own counters."""
    return dataclasses.replace(swapped(7, "java", 0), anon_bytes=size)


# 5.5 % of memory is available.
TWENTIETH = [FREE, zone(free_pages=70_000), pages_of("nr_inactive_file", 5_000)]
# A machine of 128 CPUs by the text of its /proc/zoneinfo.
MANY_CPUS = [PcpPages(0, "Normal", cpu, None, None, 63) for cpu in range(128)]
COPIED = TARGET | {"kind": "files", "release": "6.8.0-90-generic", "online_cpus": None}


def excluded(section: str) -> SectionResult:
    said = "could not read memory from kdump: Excluded page: 0xff483df740049000"
    return SectionResult(section, "partial", 0.1, 9, 0, f"the list breaks off: {said}")


FOUND: dict[str, Case] = {
    "makedumpfile is older than the kernel, 7.2": Case(
        "dump-lacks-kernel-pages", [check("nr_free_pages", 9, 9)],
        sections=(excluded("dentries"), excluded("vmalloc")),
        words=["pages of the kernel's own out of the dump: 2 sections could not be read whole",
               "dentries, vmalloc: pages of the kernel", "The kernel is 7.2.12.", "Up to 1.7.9"],
        severity="notice", unlike=["Before 1.7"],
    ),
    "makedumpfile is older than the kernel, 6.12": Case(
        "dump-lacks-kernel-pages", [check("nr_free_pages", 9, 9)], sections=(excluded("dentries"),),
        words=["1 section could not be read whole", "Before 1.7.6"], severity="notice",
        target=TARGET | {"release": "6.12.117+deb13-amd64"},
    ),
    "lists that count pages that have left them": Case(
        "file-lists-miscounted",
        [pages_of("nr_inactive_file", 5_824_000), pages_of("nr_active_file", 0),
         pages_of("nr_file_pages", 120_000), pages_of("nr_anon_pages", 80_000)],
        ["counts 22.22 GiB on its file LRU lists, and has 781.2 MiB of page cache and anonymous",
         "nr_active_file and nr_inactive_file are 5,824,000 pages together"], "notice",
    ),
    "memory is nearly gone behind lists that count too much": Case(
        "memory-nearly-gone",
        [FREE, zone(free_pages=20_000), pages_of("nr_inactive_file", 5_824_000),
         pages_of("nr_file_pages", 120_000), pages_of("nr_shmem", 100_000),
         pages_of("nr_anon_pages", 800_000)],
        ["58.59 MiB, 1.4 % of memory, available", "15,000 pages"], "warning",
    ),
    "processes whose counters each CPU has in part": Case(
        "process-counters-lag",
        [*MANY_CPUS, *(small(pid, 0) for pid in range(10, 14)), small(20, 9 << 20)],
        ["/proc/PID/status says that 4 of 5 processes have no anonymous memory",
         "may be off by 128 MiB", "Each of the 128 CPUs keeps up to 256 pages"],
        "notice", target=COPIED,
    ),
    "a counter that leaks": Case(
        "counters-disagree",
        [LedgerCheck("nr_isolated_file", -1, "", 100, 90_100, -90_000, None),
         LedgerCheck("nr_slab_unreclaimable", -1, "", 1, 90_001, -90_000, "large kmalloc")],
        ["nr_isolated_file says 352 MiB, but 400 KiB of pages carry its mark",
         "Counted on the whole machine: 100 pages, 90,000 fewer than the kernel's counter."],
        "notice",
    ),
    "ninety million pages each way": Case(
        "swapped-since-boot",
        [event("pswpin", 90_000_000), event("pswpout", 90_000_001), event("pgmajfault", 7)],
        ["343.3 GiB were swapped in and 343.3 GiB out since boot, 85.8 times all memory",
         "pswpin 90,000,000 pages, pswpout 90,000,001, pgmajfault 7 in 2.0 h since boot: 1.25e+04 "
         "pages a second both ways on average", "may not be current."],
        "notice",
    ),
    "swap, and no uptime": Case(
        "swapped-since-boot", [event("pswpin", 900_000), event("pswpout", 900_000)],
        ["pgmajfault unknown since boot, uptime unknown."], unlike=["a second"],
        target=TARGET | {"uptime_seconds": None},
    ),
    "vmalloc of a tenth": Case(
        "kernel-memory-large",
        [pages_of("nr_vmalloc", 110_000), VmCounter("nr_kernel_stack", "node", 4_000, 0)],
        ["vmalloc memory: 429.7 MiB, 10.5 % of memory", "110,000 pages of 1,048,576",
         "vmalloc has modules"], "warning", ["Every thread"],
    ),
    "page tables that no list of processes has": Case(
        "kernel-memory-large",
        [pages_of("nr_page_table_pages", 110_000), VmCounter("nr_kernel_stack", "node", 4_000, 0)],
        ["Page tables: 429.7 MiB, 10.5 % of memory", "only unmapping does"], "warning",
    ),
    "kernel stacks, which are counted in KiB": Case(
        "kernel-memory-large", [VmCounter("nr_kernel_stack", "node", 84_000, 0)],
        ["Kernel stacks: 82.03 MiB, 2.0 % of memory", "Every thread"], "notice",
    ),
    "memory that no counter has": Case(
        "memory-unaccounted", text_ledger(470_000),
        ["1.793 GiB, 47.0 % of memory, is in no counter of the kernel",
         "MemTotal is 3.815 GiB. Counted, in pages: anonymous 200000; free 200000; hugetlb"
         " 130000. 470,000 pages are left over;"],
        "warning",
    ),
    "memory that a balloon may have": Case(
        "memory-unaccounted",
        [*text_ledger(470_000), HypervisorSign("balloon", "hv_balloon", "modules"),
         HypervisorSign("hypervisor", "Hyper-V", "log")],
        ["This machine has a balloon: hv_balloon (modules), a guest of Hyper-V (log)"],
        "warning",
    ),
    "memory that a guest lacks": Case(
        "memory-unaccounted",
        [*text_ledger(470_000), HypervisorSign("hypervisor", "KVM", "dmi")],
        ["It is a guest: KVM (dmi)."], "warning", ["has a balloon"],
    ),
    "pages that a counter has, and others": Case(
        "unexplained-pages",
        [*ledger(300_000), check("nr_slab_unreclaimable", 9_000, 189_000),
         check("nr_gpu_active", 0, 20_000), check("nr_anon_pages", 5, 90_000)],
        ["390.6 MiB, 10.0 % of memory, has no known owner", "300,000 pages are in",
         "Counters of the kernel have 200,000 pages that no mark shows",
         "100,000 are in no counter"],
    ),
    "pages without an owner": Case(
        "unexplained-pages", [*ledger(200_000), looks("compound pages", 170_000, 9),
                              looks("compound pages", 10_000, 9),
                              looks("single pages", 20_000, None, "kernel memory")],
        ["781.2 MiB, 20.0 % of memory, has no known owner",
         "compound pages of order 9: 180000; single pages: 20000 pages",
         "20,000 of them are charged to memory cgroups as kernel memory",
         "Page frames of the largest kind: 0x1200 0x1400"],
        "warning",
    ),
    "a quarter of memory without an owner": Case(
        "unexplained-pages", ledger(250_000), ["25.0 % of memory"], "critical"
    ),
    "swap that is nearly full": Case(
        "swap-full", [swap(970), swapped(7, "sleeper", 400), swapped(8, "editor", 20)],
        ["Swap is 97.0 % full: 30 MiB of 1000 MiB are left", "970 MiB of 1000 MiB in 1 area",
         "sleeper (pid 7): 400 MiB, editor (pid 8): 20 MiB"],
        "notice",
    ),
    "swap that is full": Case(
        "swap-full", [swap(1_000)], ["100 % full"], "warning", ["Processes with the most"]
    ),
    "swap that is full, and page cache to be had": Case(
        "swap-full", [swap(1_000), pages_of("nr_inactive_file", 300_000)], ["100 % full"], "notice"
    ),
    "zram that is full, and no task waits": Case(
        "swap-full",
        [dataclasses.replace(swap(1_000), path="/dev/zram0"), Pressure(None, "full", 0, 0.3, 0, 9)],
        ["100 % full"], "notice",
    ),
    "zram that is full, and tasks wait": Case(
        "swap-full",
        [dataclasses.replace(swap(1_000), path="/dev/zram0"), Pressure(None, "full", 9, 9, 9, 9)],
        ["100 % full"], "warning",
    ),
    "a balloon of a third": Case(
        "kernel-memory-large",
        [pages_of("nr_balloon_pages", 340_000), VmCounter("nr_kernel_stack", "node", 4_000, 0)],
        ["The balloon: "], "notice",
    ),
    "kernel stacks, and whose they are": Case(
        "kernel-memory-large",
        [VmCounter("nr_kernel_stack", "node", 240_000, 0),
         dataclasses.replace(swapped(7, "java", 0), threads=9_000)],
        ["5.7 % of memory", "Processes with the most threads: java (pid 7): 9000."], "warning",
    ),
    "half of memory locked, and little else": Case(
        "memory-locked",
        [pages_of("nr_mlock", 500_000), pages_of("nr_free_pages", 30_000),
         pages_of("nr_inactive_file", 20_000),
         dataclasses.replace(swapped(7, "qemu", 0), locked_bytes=2 << 30)],
        ["1.907 GiB, 47.7 % of memory, is locked or pinned", "nr_mlock 500,000 pages; 0 pages",
         "reclaimable slab are 195.3 MiB together", "qemu (pid 7): 2048 MiB"],
        "warning",
    ),
    "little by /proc/meminfo and /proc/vmstat alone": Case(
        "memory-nearly-gone",
        [pages_of("nr_free_pages", 20_000), pages_of("nr_inactive_file", 8_000)],
        ["109.4 MiB, 2.7 % of memory, available at most", "free memory, and all of the"],
        "warning",
    ),
    "a process has nearly all": Case(
        "memory-nearly-gone",
        [FREE, zone(free_pages=30_000), pages_of("nr_inactive_file", 20_000),
         pages_of("nr_slab_reclaimable", 3_000), swap(95, 100),
         dataclasses.replace(swapped(7, "java", 0), anon_bytes=3 << 30)],
        ["103.5 MiB, 2.5 % of memory, available", "26,500 pages",
         "5 MiB of swap is free",
         "java (pid 7), has 3 GiB"],
        "warning",
    ),
    "a process has more than half, and there is more than a twentieth": Case(
        "memory-nearly-gone", [*TWENTIETH, mapped(3 << 30)],
        ["224.6 MiB, 5.5 % of memory, available", "java (pid 7), has 3 GiB"], "warning",
    ),
    "shared memory is more than half, and there is more than a twentieth": Case(
        "memory-nearly-gone", [*TWENTIETH, pages_of("nr_shmem", 600_000)],
        ["224.6 MiB, 5.5 % of memory, available"], "warning",
    ),
    "little, beside hugetlb pages in use and an ARC": Case(
        "memory-nearly-gone",
        [FREE, zone(free_pages=20_000), pages_of("nr_inactive_file", 20_000),
         huge_size("off", pages=700), arc(4_000)],
        ["66.41 MiB, 2.5 % of memory beside hugetlb pages in use, available",
         "of the page cache, of ZFS's ARC and of reclaimable slab; MemAvailable",
         "takes off lowmem_reserve, and leaves out the ARC", "1.367 GiB are hugetlb pages in use."],
        "warning",
    ),
    "shared memory that no process has mapped": Case(
        "shmem-unmapped",
        [pages_of("nr_shmem", 400_000),
         dataclasses.replace(swapped(7, "job", 0), shmem_bytes=100 << 20)],
        ["No process maps 1.428 GiB of shared memory, 35.7 % of memory",
         "Shmem is 1.526 GiB; all processes together have 100 MiB"], "notice",
    ),
    "segments that nobody has attached, and whose creator has ended": Case(
        "shmem-unmapped",
        [pages_of("nr_shmem", 400_000), swapped(9, "sshd", 0),
         segment(5, 1400 << 20, 0), segment(6, 64 << 20, 0), segment(7, 20 << 20, 3)],
        ["2 SysV segments that no process has attached hold 1.43 GiB of shared memory, 35.7 % of "
         "memory",
         "the largest is SYSV0000a1b2 (shmid 5) of uid 1000, made by pid 700, which has ended."],
        "warning", unlike=["The rest is in tmpfs"],
    ),
    "a segment beside more in tmpfs": Case(
        "shmem-unmapped",
        [pages_of("nr_shmem", 400_000), swapped(700, "job", 0), segment(5, 400 << 20, 0)],
        ["No process maps ", "made by pid 700, which is job now."], "notice",
    ),
    "files of a tmpfs that nobody has open": Case(
        "shmem-unmapped",
        [pages_of("nr_shmem", 400_000), swapped(9, "sshd", 0),
         SharedFile("/dev/shm/job_0", None, None, 900 << 20, False),
         SharedFile("/dev/shm/job_1", None, None, 500 << 20, False)],
        ["2 files that no process has open hold 1.367 GiB of shared memory, 34.2 % of memory",
         "The largest file: /dev/shm/job_0, 900 MiB"],
        "warning", unlike=["The rest is in tmpfs"],
    ),
    "memfds that are open, and little memory beside them": Case(
        "shmem-unmapped",
        [pages_of("nr_shmem", 400_000), pages_of("nr_free_pages", 40_000), swapped(9, "java", 0),
         SharedFile("memfd:buffer", 9, "java", 1500 << 20, True)],
        ["Deleted files and memfds that are open hold 1.465 GiB of shared memory, 36.6 % of memory",
         "Shmem is 1.526 GiB; no process has any of it mapped.",
         "The largest file: memfd:buffer, open by java (pid 9), 1.465 GiB.",
         "Deleted files and memfds that are open have 1.465 GiB."], "warning",
    ),
    "a file that is open, on a machine with room": Case(
        "shmem-unmapped",
        [pages_of("nr_shmem", 400_000), pages_of("nr_free_pages", 400_000), swapped(9, "db", 0),
         SharedFile("/dev/shm/gone (deleted)", 9, "db", 1500 << 20, True)],
        ["/dev/shm/gone (deleted), open by db (pid 9)"], "notice",
    ),
    "sockets that nobody reads": Case(
        "sockets-large",
        [SocketBuffers("ingestd", 160, 500 << 20, 400), SocketBuffers("sshd", 9, 1 << 20, 12)],
        ["Sockets hold 501 MiB in their buffers, 12.2 % of memory, most of it those of ingestd",
         "500 MiB in 400 sockets of ingestd (pid 160), of 412 in all"], "warning",
    ),
    "percpu memory by the kernel's own sum": Case(
        "kernel-memory-large",
        [pages_of("nr_kernel_stack", 9),
         LedgerRow("percpu", "chunks", -1, "", 70_000, 0, 0.0, "Percpu")],
        ["Percpu memory: 273.4 MiB, 6.7 % of memory"], "warning",
    ),
    "vmalloc memory by the kernel's own sum": Case(
        "kernel-memory-large",
        [pages_of("nr_kernel_stack", 9),
         LedgerRow("vmalloc", "areas", -1, "", 110_000, 0, 0.0, "VmallocUsed")],
        ["vmalloc memory: 429.7 MiB, 10.5 % of memory", "vmalloc has modules"], "warning",
    ),
    "vmalloc memory that is the bookkeeping of percpu memory": Case(
        "kernel-memory-large",
        [pages_of("nr_kernel_stack", 9),
         LedgerRow("vmalloc", "areas", -1, "", 110_000, 0, 0.0, "VmallocUsed"),
         LedgerRow("percpu", "chunks", -1, "", 100_000, 0, 0.0, "Percpu")],
        ["Percpu memory: 390.6 MiB"], "warning",
    ),
    "the same since 7.2, which counts vmalloc memory": Case(
        "kernel-memory-large",
        [pages_of("nr_kernel_stack", 9), pages_of("nr_vmalloc", 110_000),
         LedgerRow("percpu", "chunks", -1, "", 100_000, 0, 0.0, "Percpu")],
        ["Percpu memory: 390.6 MiB"], "warning", unlike=["nr_vmalloc: "],
    ),
    "stacks of threads, which are vmalloc memory": Case(
        "kernel-memory-large",
        [VmCounter("nr_kernel_stack", "node", 240_000, 0),
         LedgerRow("vmalloc", "areas", -1, "", 70_000, 0, 0.0, "VmallocUsed")],
        ["Kernel stacks: "], "warning", unlike=["vmalloc memory: "],
    ),
    "a third pinned, on a machine with room": Case(
        "memory-locked",
        [pages_of("nr_mlock", 0), event("nr_foll_pin_acquired", 900_000),
         event("nr_foll_pin_released", 550_000), pages_of("nr_free_pages", 400_000)],
        ["33.4 % of memory", "350,000 pages are pinned"], "notice",
    ),
    "writeback that does not end": Case(
        "writeback-stuck",
        [pages_of("nr_dirty", 30_000), pages_of("nr_writeback", 150_000),
         VmCounter("nr_dirty_threshold", "vm_stat", 180_000, 0)],
        ["703.1 MiB wait to be written, 100 % of the dirty limit; 585.9 MiB of it are with",
         "nr_dirty_threshold is 180,000."], "warning",
    ),
    "a server that writes": Case(
        "writeback-stuck",
        [pages_of("nr_dirty", 150_000), pages_of("nr_writeback", 9_000),
         pages_of("nr_inactive_file", 900_000)],
        ["88.3 % of the dirty limit", "180,000 is a fifth"], "notice",
    ),
    "percpu memory of a tenth": Case(
        "percpu-large",
        [percpu("variables", 9, 9), percpu("further", 400, 100),
         PercpuSize(8, 5_000_000, 80 << 20),
         PercpuCgroup("/shop", 7, "online", 9, 60 << 20),
         PercpuCgroup(None, None, "dying", 3, 30 << 20)],
        ["Percpu memory takes 409 MiB, 10.0 % of memory", "2 chunks have 409 MiB, of which 109 MiB",
         "5000000 of 8 bytes: 80 MiB",
         "Memory cgroups are charged for 90 MiB of it, most of all /shop 60 MiB, ? 30 MiB."],
        "warning",
    ),
    "a percpu leak on a small machine, with what the allocator notes": Case(
        "percpu-large", [percpu("further", 110, 110), vmalloc("pcpu_create_chunk", 2.6)],
        ["Percpu memory takes 211.6 MiB, 5.2 % of memory", "101.6 MiB more are"], "warning",
    ),
    "vmalloc memory of one module": Case(
        "vmalloc-large",
        [vmalloc("fill_table [gpu]", 12), vmalloc("bpf_map_area_alloc", 2),
         vmalloc("copy_process", 9), vmalloc("ioremap_prot", 30, "ioremap")],
        ["fill_table [gpu] holds 468.8 MiB of vmalloc memory, 11.4 % of memory",
         "70 areas of fill_table [gpu] have 120,000 of", "230,000 pages."],
        "warning",
    ),
    "vmalloc memory of a quarter": Case(
        "vmalloc-large", [vmalloc("bpf_map_area_alloc", 25)], ["23.8 % of memory"], "critical"
    ),
    "pages that alloc tags name": Case(
        "unexplained-pages", [*ledger(200_000), of_line(150_000), of_line(3, line=9)],
        ["has no known owner",
         "Lines of source that allocated the most: drivers/a.c:7 [gpu]: 150000 "
         "pages; drivers/a.c:9 [gpu]: 3 pages."], "notice",
    ),
    "pages that page_owner names": Case(
        "unexplained-pages", [*ledger(200_000), owned(7, 1)], ["has no known owner"], "notice"
    ),
    "memory that page_owner names": Case(
        "memory-unaccounted", [*text_ledger(470_000), owned(7, 1)], ["in no counter"], "notice",
        empty=(LedgerCheck,),
    ),
}  # fmt: skip

CLEAR: dict[str, Case] = {
    "a dump whose list breaks off for another reason": Case(
        "dump-lacks-kernel-pages", [check("nr_free_pages", 9, 9)],
        sections=(SectionResult("dentries", "partial", 0.1, 9, 0, "the list breaks off"),),
    ),
    "anonymous pages that may be dropped are on file lists": Case(
        "file-lists-miscounted",
        [pages_of("nr_inactive_file", 300_000), pages_of("nr_active_file", 9_000),
         pages_of("nr_file_pages", 120_000), pages_of("nr_anon_pages", 200_000)],
    ),
    "small processes of few CPUs": Case(
        "process-counters-lag", [*MANY_CPUS[:8], *(small(pid, 0) for pid in range(10, 14))],
        target=COPIED,
    ),
    "small processes of a kernel without such counters": Case(
        "process-counters-lag", [*MANY_CPUS, *(small(pid, 0) for pid in range(10, 14))],
        target=COPIED | {"release": "5.14.0-427.el9.x86_64"},
    ),
    "processes of many CPUs, each counted whole": Case(
        "process-counters-lag", [*MANY_CPUS, *(small(pid, 4096) for pid in range(10, 14))],
        target=COPIED,
    ),
    "counters that agree": Case("counters-disagree", ledger(1_000)),
    "counters of a dump that lacks pages": Case(
        "counters-disagree",
        [LedgerCheck("nr_file_pages", -1, "", 100, 90_100, -90_000, None),
         LedgerRow("unexplained", "struct page not readable", 0, "Normal", 5_000, 0, 0.0, "")],
    ),
    "counters of a kernel that runs": Case(
        "counters-disagree", [LedgerCheck("nr_file_pages", -1, "", 100, 90_100, -90_000, None)],
        target=TARGET | {"kind": "live"},
    ),
    "memory that was swapped out and stayed there": Case(
        "swapped-since-boot", [event("pswpin", 200_000), event("pswpout", 90_000_000)]
    ),
    "swap, and there are rates": Case(
        "swapped-since-boot", [event("pswpin", 9_000_000), event("pswpout", 9_000_000), RATE]
    ),
    "swap that is free": Case(
        "memory-nearly-gone",
        [FREE, zone(free_pages=30_000), pages_of("nr_inactive_file", 20_000), swap(100, 1_000)],
    ),
    "little beside hugetlb pages in use, and enough for the rest": Case(
        "memory-nearly-gone",
        [FREE, zone(free_pages=30_000), pages_of("nr_inactive_file", 20_000),
         huge_size("off", pages=1_700)],
    ),
    "little beside ZFS's ARC, which shrinks": Case(
        "memory-nearly-gone",
        [FREE, zone(free_pages=30_000), pages_of("nr_inactive_file", 1_000),
         arc(400_000)],
    ),
    "more than a twentieth, and no process has half": Case(
        "memory-nearly-gone", [*TWENTIETH, mapped(1 << 30)],
    ),
    "more than a twentieth with swap, and a process has more than half": Case(
        "memory-nearly-gone", [*TWENTIETH, mapped(3 << 30), swap(0, 200)],
    ),
    "more than 256 MiB, and a process has more than half": Case(
        "memory-nearly-gone",
        [FREE, zone(free_pages=90_000), pages_of("nr_inactive_file", 0), mapped(3 << 30)],
    ),
    "little, of a large machine": Case(
        "memory-nearly-gone",
        [FREE, zone(free_pages=600_000, present_pages=64 << 18, managed_pages=64 << 18),
         pages_of("nr_inactive_file", 0)],
    ),
    "little that is locked": Case("memory-locked", [pages_of("nr_mlock", 90_000)]),
    "dirty memory as it is": Case(
        "writeback-stuck",
        [pages_of("nr_dirty", 90_000), pages_of("nr_writeback", 9_000),
         VmCounter("nr_dirty_threshold", "vm_stat", 180_000, 0)],
    ),
    "a small limit": Case(
        "writeback-stuck",
        [pages_of("nr_dirty", 900), pages_of("nr_writeback", 100),
         VmCounter("nr_dirty_threshold", "vm_stat", 1_000, 0)],
    ),
    "kernel memory as it is": Case(
        "kernel-memory-large",
        [pages_of("nr_vmalloc", 50_000), VmCounter("nr_kernel_stack", "node", 80_000, 0)],
    ),
    "memory that is counted": Case("memory-unaccounted", text_ledger(90_000)),
    "large allocations of kmalloc() of an older kernel": Case(
        "unexplained-pages", [*ledger(300_000), check("nr_slab_unreclaimable", 9_000, 305_000)]
    ),
    "struct pages that a dump lacks": Case(
        "unexplained-pages",
        [*ledger(0), LedgerRow("unexplained", UNREAD_PAGES, -1, "", 900_000, 0, 0, "")],
    ),
    "pages without a reference beside struct pages that a dump lacks": Case(
        "unexplained-pages",
        [*ledger(0), LedgerRow("unexplained", UNREAD_PAGES, -1, "", 400_000, 0, 0, ""),
         LedgerRow("unexplained", "no reference, on no list", 0, "Normal", 300_000, 0, 0, ""),
         LedgerRow("unexplained", "tail without a head", 0, "Normal", 200_000, 0, 0, "")],
    ),
    "few pages without an owner": Case("unexplained-pages", ledger(49_000)),
    "swap that has room": Case("swap-full", [swap(900)]),
    "little swap that is full": Case("swap-full", [swap(30, 30)]),
    "no swap": Case("swap-full", [dataclasses.replace(swap(0), bytes=0)]),
    "vmalloc memory as it is on most": Case(
        "vmalloc-large",
        [vmalloc("bpf_prog_alloc_no_stats", 1), vmalloc("alloc_large_system_hash", 4),
         vmalloc("dup_task_struct", 9), vmalloc("memremap", 50, "ioremap")],
    ),
    "shared memory of a database": Case(
        "shmem-unmapped",
        [pages_of("nr_shmem", 400_000),
         dataclasses.replace(swapped(7, "postgres", 0), shmem_bytes=1500 << 20)],
    ),
    "sockets of a server": Case("sockets-large", [SocketBuffers("nginx", 160, 90 << 20, 9000)]),
    "percpu memory as it is on most": Case("percpu-large", [percpu("further", 60, 50)]),
}  # fmt: skip

NOT_CHECKED: dict[str, Case] = {
    "a reading of text has no dump": Case(
        "dump-lacks-kernel-pages", [], why_not="no table ledger_checks in this bundle",
    ),
    "lists without the page cache": Case(
        "file-lists-miscounted", [pages_of("nr_inactive_file", 1)],
        why_not="vm_counters has no row where name = 'nr_file_pages'",
    ),
    "processes, and no CPUs": Case(
        "process-counters-lag", [small(1, 0)], why_not="no table pcp_pages in this bundle",
    ),
    "counters that were held against nothing": Case(
        "counters-disagree", [], why_not="no table ledger_checks in this bundle"
    ),
    "a kernel without swap": Case(
        "swapped-since-boot", [event("pgpgin", 1)],
        why_not="vm_counters has no row where name = 'pswpin'",
    ),
    "vmalloc that was not read": Case(
        "vmalloc-large", [], why_not="no table vmalloc_callers in this bundle"
    ),
    "what can be had is not known": Case(
        "memory-nearly-gone", [pages_of("nr_inactive_file", 1)],
        why_not="vm_counters has no row where name = 'nr_free_pages'",
    ),
    "what processes have mapped is not known": Case(
        "shmem-unmapped", [pages_of("nr_shmem", 400_000)],
        why_not="no table process_memory in this bundle",
    ),
    "sockets that were not read": Case(
        "sockets-large", [], why_not="no table socket_buffers in this bundle"
    ),
    "what is locked is not known": Case(
        "memory-locked", [event("pgpgin", 1)],
        why_not="vm_counters has no row where name = 'nr_mlock'",
    ),
    "what is dirty is not known": Case(
        "writeback-stuck", [event("pgpgin", 1)],
        why_not="vm_counters has no row where name = 'nr_dirty'",
    ),
    "swap of an older bundle": Case(
        "swap-full", [], why_not="no table swap_areas in this bundle"
    ),
    "percpu memory of an older bundle": Case(
        "percpu-large", [], why_not="no table percpu_chunks in this bundle"
    ),
    "no page was counted": Case(
        "unexplained-pages", ledger(500_000)[:2], why_not="no table ledger_checks in this bundle"
    ),
    "kernel memory of unknown memory": Case(
        "kernel-memory-large", [VmCounter("nr_kernel_stack", "node", 84_000, 0)],
        target=TARGET | {"total_pages": None},
        why_not="target.total_pages is unknown in this bundle",
    ),
    "memory that was looked at page by page": Case(
        "memory-unaccounted", ledger(300_000),
        why_not="memory_ledger has no row where part = 'remainder of MemTotal, by subtraction'",
    ),
}  # fmt: skip
