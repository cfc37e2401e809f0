# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Everything else that the kernel's log says about memory: what failed, what is damaged, who hung in
it, and where memory went at boot; each kind with how often, the first and the last, and what it
means.

Costs a look at each record of the log, which section ``kernel_log`` reads, too: the words of a kind
are looked for first.

Cannot know: what the log does not have any more, nor what the kernel printed less of because it was
frequent (``printk_ratelimited()``). That there is no complaint does not mean that all is well.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from mmscope.drgn.log.kernel_log import (
    NOT_COMPARED,
    beginning,
    log_of_files,
    log_of_memory,
    missing,
)
from mmscope.drgn.log.records import STACK, same_caller, seconds_of, whole_records
from mmscope.drgn.log.shown_memory import ShownBlocks, ShownMemory, read_shown_memory
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import plural
from mmscope.drgn.tables.rows import column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_log import Log, LogRecord
from mmscope.drgn.text.owner_frames import is_allocator

MOST_ROWS = 1_000
LONGEST_WHAT, LONGEST_RECORD = 100, 400  # characters
STACK_LINES = 80  # behind a task that hung

DAMAGE, HARDWARE, FAILURE, STALL, LEAK = "damage", "hardware", "failure", "stall", "leak"
TAKEN, CHANGED, STOPPED = "taken at boot", "changed", "stopped"
# A task is in memory management or elsewhere; a fault was there, if it was of address 0; a function
# allocated an object; an object was to be of a cache.
WHERE_IT_IS, WHERE_IT_WAS, WHOSE, OF_WHICH = "where it is", "where it was", "whose", "of which"


# Files of memory management, with its headers.
OF_SOURCE = (
    r"(?:.*/)?(?:mm/"
    r"|include/linux/(?:mm|page|swap|huge|memcontrol|memory|rmap|gfp|slab|highmem)[\w-]*\.h:)"
)


class Kind(NamedTuple):
    """
    A kind of complaint.

    :ivar words: one of these is in the record.
    :ivar pattern: with a group ``what``: of whom or of which it is.
    :ivar behind: what the lines behind the record tell: :data:`WHERE_IT_IS`, :data:`WHERE_IT_WAS`,
        :data:`WHOSE` or :data:`OF_WHICH`; empty: nothing.
    """

    name: str
    group: str
    words: str
    pattern: re.Pattern[str]
    means: str
    behind: str = ""


def _kind(
    name: str, group: str, words: str, pattern: str, means: str, behind: str = ""
) -> Kind:  # fmt: skip
    return Kind(name, group, words, re.compile(pattern), means, behind)


KINDS = (
    # mm/page_alloc.c: warn_alloc()
    _kind("page allocation failure", FAILURE, "page allocation failure",
          r"(?P<what>(?:.*?: |\s*)page allocation failure[:.] ?order:\d+)",
          "an allocation got no memory; table allocation_failures has it"),
    _kind("page allocation stall", STALL, "page allocation stalls for ",
          r"(?P<what>.*?): page allocation stalls for \d+ms",
          "an allocation waits for reclaim or compaction for more than 10 s"),
    _kind("out of memory", FAILURE, "invoked oom-killer: ", r"(?P<what>.*) invoked oom-killer: ",
          "memory of the machine, of some nodes or of a cgroup ran out; table oom_kills has it"),
    _kind("OOM reaper failed", STALL, "oom_reaper: unable to reap",
          r"oom_reaper: unable to reap pid:\d+ \((?P<what>.*)\)",
          "memory of a killed process was not taken from it: its lock was held"),
    _kind("vmalloc failure", FAILURE, "vm", r"(?:.*?: )?(?P<what>vmalloc(?: error: size |"
          r": allocation failure: )\d+)",
          "an allocation of the kernel's virtual addresses failed: no pages, or no addresses"),
    # mm/vmalloc.c: alloc_vmap_area()
    _kind("kernel addresses used up", FAILURE, "vm", r"(?:.*?: )?(?P<what>(?:vmap allocation"
          r"|vmalloc_node_range) for size \d+ failed)",
          "no free range of that size was left in the part of the kernel's virtual addresses that "
          "was asked for: that of vmalloc() or of modules"),
    # mm/slub.c: slab_out_of_memory()
    _kind("slab allocation failure", FAILURE, "SLUB: Unable to allocate memory",
          r"SLUB: Unable to allocate memory on (?:CPU \d+ \(of )?node -?\d+\)?,? +(?P<what>.*)",
          "an object of a slab cache could not be had, and no page for a new slab", OF_WHICH),
    _kind("percpu allocation failure", FAILURE, "percpu: allocation failed",
          r"percpu: allocation failed, (?P<what>size=\d+)", "memory for each CPU could not be had"),
    # kernel/dma/swiotlb.c
    _kind("swiotlb full", FAILURE, "swiotlb buffer is full",
          r"(?P<what>.*?(?=: swiotlb buffer)|swiotlb buffer is full \(sz: \d+ bytes\))",
          "a device's transfer got no bounce buffer of that size: none is free in a row, or it is "
          "larger than one can be (256 KiB); the record has how many slots there are and are used; "
          "swiotlb= of the command line sets how many"),
    _kind("swiotlb failure", FAILURE, "software IO TLB: ", r"software IO TLB: (?P<what>[Cc]annot "
          r"allocate.*|[Nn]o low mem|.*failed.*)", "there are no bounce buffers for DMA"),
    # mm/hugetlb.c
    _kind("huge pages failed", FAILURE, "HugeTLB: allocating ",
          r"HugeTLB: allocating (?P<what>\d+ of page size .*?) failed",
          "fewer huge pages than asked for could be had"),
    _kind("swap failure", FAILURE, "rite-error on swap-device|Read-error on swap-device",
          r"(?P<what>(?:Read|Write)-error on swap-device)",
          "the disk of a swap area failed: what was there is lost"),
    # mm/memory.c, mm/page_alloc.c, kernel/fork.c: the kernel's own checks
    _kind("bad page state", DAMAGE, "BUG: Bad page state",
          r"BUG: Bad page state in process (?P<what>.*?) +pfn:",
          "the struct page of a page that was freed or allocated is not as it must be: memory is "
          "damaged, or a driver uses a page that it has freed; the page is not used any more"),
    _kind("bad page table", DAMAGE, "BUG: Bad p", r"BUG: Bad (?:page map|pagecache|page cache)"
          r" in process (?P<what>.*?) +(?:pte|pfn|pmd):",
          "an entry of a page table leads where it must not: memory is damaged"),
    _kind("bad page directory", DAMAGE, "bad p", r".*?: bad (?P<what>p[a-z4]?d) ",
          "an entry of an upper page table is damaged; it was cleared"),
    _kind("bad counter", DAMAGE, "BUG: Bad rss-counter|non-zero pgtables_bytes",
          r"BUG: (?P<what>Bad rss-counter state|non-zero pgtables_bytes on freeing)",
          "a process ended with counters of memory that are not 0: pages are lost or miscounted"),
    _kind("swap entry damaged", DAMAGE, "Bad swap", r"(?:.*?: )?(?P<what>Bad swap (?:file|offset) "
          r"entry)", "a swap entry leads where no swap is: page tables or shmem are damaged"),
    # mm/slub.c: list_slab_objects(); mm/slab_common.c: kmem_cache_destroy()
    _kind("slab cache destroyed in use", LEAK, "bjects remaining |Slab cache still has objects",
          r"(?:BUG (?=.*: Objects remaining )|kmem_cache_destroy )(?P<what>[^\s:]+)",
          "a slab cache was to be destroyed while objects of it were in use: they stay allocated"),
    # mm/slub.c: slab_bug(); lib/list_debug.c
    _kind("slab damaged", DAMAGE, "BUG ", r"BUG (?P<what>\S+ ?\(.*?\): .*)",
          "an object of a slab cache was written to after it was freed, beyond its end, or freed "
          "twice"),
    _kind("list damaged", DAMAGE, "list_", r"(?P<what>list_(?:add|del) corruption)",
          "a list of the kernel is damaged"),
    _kind("KASAN report", DAMAGE, "BUG: K", r"BUG: (?P<what>K(?:ASAN|FENCE): .*)",
          "the kernel used memory that was freed, or beyond its end"),
    _kind("kernel BUG in mm", DAMAGE, "kernel BUG at ",
          rf"kernel BUG at (?P<what>{OF_SOURCE}\S+?)!",
          "a condition of memory management that must hold did not; the task was ended"),
    # arch/*/mm/fault.c; arch/x86/kernel/traps.c: exc_general_protection()
    _kind("kernel Oops", DAMAGE,
          "nable to handle |NULL pointer dereference|general protection fault",
          r"(?:CPU \d+ |BUG: |Oops: )*(?P<what>[Uu]nable to handle (?:kernel )?(?:page fault"
          r"|paging request|access to user memory|pointer dereference|data access"
          r"|NULL pointer dereference|(?:read from|write to|execute from) \S+ memory)"
          r"|[Kk]ernel NULL pointer dereference|general protection fault)",
          "the kernel used an address that leads nowhere: data is damaged or was freed, or the "
          "code is wrong; the task ended with the locks that it had", WHERE_IT_WAS),
    _kind("warning in mm", DAMAGE, "WARNING: ", r"WARNING: (?:CPU: \d+ PID: \d+ )?at "
          rf"(?P<what>{OF_SOURCE}\S+)",
          "memory management found something that it does not expect"),
    # mm/memory-failure.c
    _kind("memory failure", HARDWARE, "Memory failure: ",
          r"Memory failure: 0x[0-9a-f]+: recovery action for (?P<what>.*)",
          "hardware found an uncorrected error in a page; the page is not used any more"),
    _kind("killed for memory failure", HARDWARE, "due to hardware memory corruption",
          r"(?:.*: )?(?:Killing|Sending SIGBUS to) (?P<what>.{1,64}?):\d+ due to hardware memory",
          "a process had a page that hardware found damaged, and was killed or got SIGBUS"),
    _kind("page taken offline", HARDWARE, "oft offline|soft_offline",
          r"(?:[Ss]oft[ _]offline|Soft offlining)[^:]*: (?P<what>.*)",
          "a page with corrected errors was, or was not, taken out of use"),
    _kind("memory error", HARDWARE, "EDAC ", r"EDAC \S+: (?P<what>\d+ [CU]E .*)",
          "the memory controller counted errors: CE were corrected, UE were not"),
    _kind("machine check", HARDWARE, "[Hardware Error]",
          r".*\[Hardware Error\]: +(?P<what>.*memory.*)",
          "firmware or a CPU reported an error of memory"),
    # kernel/hung_task.c, kernel/watchdog.c
    # "hung_task: explicitly report I/O wait state in log output" (in v7.1)
    _kind("hung task", STALL, "blocked for more than|blocked in I/O wait for more than",
          r"INFO: task (?P<what>.*?):\d+ .*blocked (?:in I/O wait )?for more than \d+ seconds",
          "a task waits in memory management, where its stack says, or is of it", WHERE_IT_IS),
    _kind("soft lockup", STALL, "soft lockup", r".*BUG: soft lockup - CPU#\d+ stuck for \d+s! "
          r"\[(?P<what>.{1,64}?):\d+\]", "a CPU was in memory management all the time",
          WHERE_IT_IS),
    # kernel/sched/core.c: sched_show_task(); before 5.10 without "task:"
    _kind("blocked task", STALL, "state:D | D ", r"(?:task:)?(?P<what>\S.{0,15}?) +"
          r"(?:state:D |D(?: [0-9a-f]{8,16})? +\d+ +\d+ +\d+ 0x[0-9a-f]{8})",
          "a task was in D state when the log shows it (SysRq-w, SysRq-t), and its stack is in "
          "memory management", WHERE_IT_IS),
    # kernel/panic.c: panic()
    _kind("kernel panic", STOPPED, "Kernel panic - not syncing: ",
          r"Kernel panic - not syncing: (?P<what>.*)",
          "the kernel stopped here; the records before it show whether memory was the cause"),
    # mm/kmemleak.c
    _kind("memory leaks", LEAK, "kmemleak: ",
          r"kmemleak: (?P<what>\d+ new suspected memory leaks)",
          "no pointer to objects of the kernel was found; /sys/kernel/debug/kmemleak has them"),
    _kind("kmemleak stopped", LEAK, "kmemleak: ",
          r"kmemleak: (?P<what>Cannot allocate.*|.*disabled.*|Memory pool empty.*)",
          "leaks are not looked for any more"),
    # print_unreferenced() of it, in /sys/kernel/debug/kmemleak; tests print it to the log
    _kind("leaked object", LEAK, "unreferenced object ",
          r"(?:BUG: memory leak )?unreferenced object 0x[0-9a-f]+ \((?P<what>size \d+)\)",
          "no pointer to an object of so many bytes was found", WHOSE),
    # drivers/staging/android/lowmemorykiller.c, until 4.11; lmkd says the same since
    _kind("low memory killer", CHANGED, "lowmemorykiller: Kill",
          r"lowmemorykiller: Kill(?:ing)? '(?P<what>[^']{1,64})' \(\d+\)",
          "Android ended a process to have memory; of cached ones (oom_score_adj of 900 and more) "
          "that is usual"),
    # drivers/hv/hv_balloon.c, drivers/virtio, drivers/xen
    _kind("balloon failed", FAILURE, "Out of puffs", r"(?P<what>.*?): Out of puffs",
          "the host asked for more memory than could be given"),
    _kind("balloon", CHANGED, "alloon", r"(?!Modules linked in:)(?P<what>.*?[Bb]alloon.*)",
          "the host can take memory from this machine, or has: what it took is in no process"),
    # mm/memory_hotplug.c
    _kind("memory offlined", CHANGED, "Offlined Pages ", r"(?P<what>Offlined Pages \d+)",
          "memory was taken out of use"),
    _kind("memory not offlined", FAILURE, "memory offlining [mem", r"(?P<what>memory offlining .*)",
          "memory was to be taken out of use, and has pages that cannot be moved"),
    _kind("memory not added", FAILURE, "add_memory failed", r"(?P<what>.*add_memory failed.*)",
          "memory was plugged in, and is not used"),
    # drivers/tty/sysrq.c: sysrq_handle_showmem()
    _kind("memory shown", CHANGED, "how Memory|how memory",
          r"[Ss]ys[Rr]q ?: (?P<what>Show [Mm]emory)",
          "SysRq-m: the kernel printed what memory it has; table shown_memory has it"),
    # At boot
    _kind("memory at boot", TAKEN, "Memory: ", r"Memory: (?P<what>\d+[Kk]B?/\d+[Kk]B? available.*)",
          "what was free at boot of what the machine has, and what the kernel itself takes"),
    _kind("crash kernel", TAKEN, "crash",
          r"(?P<what>(?:Reserving \d+MB of (?:low )?memory at .* for crashkernel"
          r"|crashkernel (?:low memory )?reserved: ).*)",
          "memory that is kept for a crash kernel, and that no allocation gets"),
    _kind("no crash kernel", FAILURE, "crashkernel", r"(?P<what>.*crashkernel reservation failed.*|"
          r"cannot allocate crashkernel.*)", "there is no memory for a crash kernel: no dump"),
    _kind("CMA area", TAKEN, "cma: Reserved ", r"cma: (?P<what>Reserved .*)",
          "memory that is kept for a device, and that only movable pages use meanwhile"),
    _kind("bounce buffers", TAKEN, "software IO TLB: ", r"software IO TLB: (?P<what>mapped .*)",
          "memory that is kept for devices that cannot reach all of it"),
    _kind("firmware hides memory", TAKEN, "losing ", r"(?P<what>WARNING: BIOS bug: CPU MTRRs don't "
          r"cover all of memory, losing \d+MB of RAM)", "the firmware's settings hide memory"),
    _kind("limited by command line", TAKEN, "user-defined physical RAM map|emory limited to",
          r"(?P<what>.*user-defined physical RAM map.*|[Mm]emory limited to .*)",
          "mem= or memmap= of the command line hides memory"),
)  # fmt: skip
# Kinds of those that are not in memory management, by the kind of those that are.
ELSEWHERE = {
    "hung task": _kind("hung task elsewhere", STALL, "", "", "a task waits, and its stack shows no "
                       "memory management: for a disk, a lock, a driver or another task"),
    "soft lockup": _kind("soft lockup elsewhere", STALL, "", "", "a CPU ran for long, and its "
                         "stack shows no memory management"),
    "blocked task": _kind("blocked task elsewhere", STALL, "", "", "a task was in D state when the "
                          "log shows it, and its stack shows no memory management"),
}  # fmt: skip
# And of those whose stack the log does not have.
UNKNOWN = {
    "hung task": _kind("hung task, stack unknown", STALL, "", "", "a task waits, and the log has "
                       "no stack of it"),
    "soft lockup": _kind("soft lockup, stack unknown", STALL, "", "", "a CPU ran for long, and the "
                         "log has no stack of it"),
    "blocked task": _kind("blocked task, stack unknown", STALL, "", "", "a task was in D state "
                          "when the log shows it, and the log has no stack of it"),
}  # fmt: skip
WORDS = re.compile(
    "|".join(sorted({re.escape(word) for kind in KINDS for word in kind.words.split("|")}))
)
OF_MM = re.compile(
    r"shrink_|do_try_to_free|try_to_free_|reclaim_throttle|throttle_direct_reclaim|congestion_wait"
    r"|balance_dirty_pages|__?alloc_pages|alloc_pages|get_page_from_freelist|compact_zone|isolate_mig"
    r"|migrate_pages|folio_wait|wait_on_page|folio_lock|lock_page|filemap_fault|do_swap_page"
    r"|swap_read|handle_mm_fault|mmap_read_lock|mmap_write_lock|khugepaged|ksm_|try_to_unmap|rmap_walk"
    r"|mem_cgroup|try_charge|lru_add_drain|drain_all_pages|offline_pages|hugetlb_|exit_mmap|unmap_"
    r"|zap_|oom_|vm_munmap|vm_mmap|do_mmap|do_madvise|vmalloc|alloc_vmap|pcpu_alloc|kswapd|balance_pgdat"
)

# The second line of slab_out_of_memory(); a cache of a cgroup has its ID and name in parentheses.
CACHE = re.compile(r" *cache: (.+?), object size: \d+")
TASK = re.compile(r"task:(\S.{0,15}?) +state:")
# What is above the function that waits, in the stack of a task that hung.
HOW_ONE_WAITS = re.compile(
    r"schedul|io_schedule|context_switch|wait_on_bit|out_of_line_wait|bit_wait|wait_for_common"
    r"|wait_for_completion|(?:mutex|rwsem|rtmutex|down)_|down\b|native_|asm_|exc_|sysvec_|dump_stack"
)
# Tasks that do nothing else, wherever they wait.
MM_TASK = re.compile(r"(?:kswapd|kcompactd)\d+\Z|khugepaged\Z|oom_reaper\Z")
# Where a fault was: show_ip(), __show_regs() of the architectures.
WHERE = re.compile(
    r"(?:(?:RIP: [0-9a-f]{4}|EIP|IP): ?|pc : |epc : |PC is at |NIP )(?:\[<?[0-9a-fx]+>?\] *)*"
    r"([A-Za-z_][\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+(?: (\[[\w-]{1,64}))?"
)


@table(
    "kernel_complaints",
    "What the log says about memory",
    empty="the log has no complaint about memory that is known here",
    not_compared=NOT_COMPARED,
)
class KernelComplaint:
    """A complaint of the kernel about memory, by kind and subject."""

    kind: str = column(holds="words", key=True, help="what happened")
    what: str = column(holds="log", key=True, help="about whom or what, in the kernel's words")
    group: str = column(
        holds="words",
        help=f"{DAMAGE}: of memory or kernel data; {HARDWARE}; {FAILURE}; {STALL}; {LEAK}; "
        f"{TAKEN}: where memory is; {CHANGED}: memory came, went, or was printed; "
        f"{STOPPED}: the kernel panicked",
    )
    times: int = column(help="log records; the kernel omits what is too frequent")
    first_seconds: float | None = column(unit="s", help="since boot, of the first")
    last_seconds: float | None = column(unit="s", help="since boot, of the last")
    first_date: str | None = column(holds="words", help="wall clock, as the log has it")
    last_date: str | None = column(holds="words", help="of the last")
    means: str = column(holds="words", help="what that means")
    record: str = column(holds="log", help="beginning of the first record")


@dataclass
class _Waiting:
    """A record whose stack follows."""

    kind: Kind
    what: str
    record: LogRecord
    lines: int = 0
    has_stack: bool = False  # a frame that the unwinder is sure of
    where: str = ""  # the first function that is not how one waits


def read_kernel_complaints(records: Iterable[LogRecord]) -> list[KernelComplaint]:
    """Gather what a log says about memory, the first of its kind and subject first."""
    found: dict[tuple[str, str], KernelComplaint] = {}
    waiting: _Waiting | None = None
    for record in whole_records(records):
        if record.facility not in (None, 0):
            continue
        if waiting is not None and same_caller(waiting.record.caller, record.caller):
            waiting = _look(waiting, record, found)
        if not WORDS.search(record.text):
            continue
        for line in record.text.split("\n"):
            if (match := _match(line)) is None:
                continue
            kind, what = match
            if kind.name == "blocked task" and waiting is not None and _is_its(waiting, what):
                continue
            if kind.behind and not MM_TASK.match(what):
                _end(waiting, found)
                waiting = _Waiting(kind, what, record)
            else:
                _count(found, kind, what, record)
    _end(waiting, found)
    return list(found.values())


def _match(line: str) -> tuple[Kind, str] | None:
    for kind in KINDS:
        if any(word in line for word in kind.words.split("|")) and (
            match := kind.pattern.match(line)
        ):
            return kind, match["what"].strip()[:LONGEST_WHAT]
    return None


def _look(
    waiting: _Waiting, record: LogRecord, found: dict[tuple[str, str], KernelComplaint]
) -> _Waiting | None:
    """Look for what the stack behind a record tells, and count that; None: it is over."""
    for line in record.text.split("\n"):
        waiting.lines += 1
        if waiting.kind.behind == WHERE_IT_WAS:
            if match := WHERE.match(line):
                if not _of_nothing(waiting) or OF_MM.match(match[1]):
                    _count_in(found, waiting, match[1], match[2] and f"{match[2]}]")
                return None
        elif waiting.kind.behind == OF_WHICH:
            if match := CACHE.match(line):
                _count(found, waiting.kind, match[1][:LONGEST_WHAT], waiting.record)
            else:
                _end(waiting, found)
            return None
        elif (match := STACK.fullmatch(line)) and not match[1]:
            waiting.has_stack = True
            if waiting.kind.behind == WHOSE and not is_allocator(match[2]):
                _count_in(found, waiting, match[2], match[3] and f"[{match[3]}]")
                return None
            if waiting.kind.behind == WHERE_IT_IS and OF_MM.match(match[2].lstrip("_")):
                _count_in(found, waiting, match[2])
                return None
            if not waiting.where and not HOW_ONE_WAITS.match(match[2].lstrip("_")):
                waiting.where = match[2]
        other = TASK.match(line)
        others = line.startswith("INFO: task ") or (other and not _is_its(waiting, other[1]))
        if others or waiting.lines > STACK_LINES:
            _end(waiting, found)
            return None
    return waiting


def _is_its(waiting: _Waiting, comm: str) -> bool:
    """True if a task's line is the second of one that hung, before its stack."""
    return waiting.kind.name == "hung task" and waiting.what == comm and not waiting.where


def _count_in(
    found: dict[tuple[str, str], KernelComplaint],
    waiting: _Waiting,
    function: str,
    module: str | None = None,
) -> None:
    """Count a record with the function that its stack tells."""
    what = f"{waiting.what}, in {function}{f' {module}' if module else ''}"
    _count(found, waiting.kind, what[:LONGEST_WHAT], waiting.record)


def _of_nothing(waiting: _Waiting) -> bool:
    return "NULL" in waiting.what


def _end(waiting: _Waiting | None, found: dict[tuple[str, str], KernelComplaint]) -> None:
    """Count a record whose stack did not tell what it was looked through for."""
    if waiting is None:
        return
    kind, what = waiting.kind, waiting.what
    if kind.behind == WHERE_IT_IS:
        kind = (ELSEWHERE if waiting.has_stack else UNKNOWN)[kind.name]
        what += f", in {waiting.where}" if waiting.where else ""
    if not _of_nothing(waiting):
        _count(found, kind, what[:LONGEST_WHAT], waiting.record)


def _count(
    found: dict[tuple[str, str], KernelComplaint], kind: Kind, what: str, record: LogRecord
) -> None:
    seconds = seconds_of(record)
    if (before := found.get((kind.name, what))) is not None:
        found[kind.name, what] = replace(
            before,
            times=before.times + 1,
            last_seconds=before.last_seconds if seconds is None else seconds,
            last_date=record.date or before.last_date,
        )
        return
    found[kind.name, what] = KernelComplaint(
        kind.name, what, kind.group, 1, seconds, seconds, record.date, record.date, kind.means,
        record.text[:LONGEST_RECORD],
    )  # fmt: skip


def _found(log: Log, page_bytes: int | None) -> Found:
    rows = read_kernel_complaints(log.records)
    shown = read_shown_memory(log.records, page_bytes)
    found = Found(notes=missing(log), remarks=beginning(log))
    if len(rows) > MOST_ROWS:
        found.unlisted.append(plural(len(rows) - MOST_ROWS, "later one"))
    if shown.left_out:
        found.unlisted.append(
            plural(shown.left_out, "later view of memory", "later views of memory")
        )
    if shown.damaged:
        found.notes.append(f"{plural(shown.damaged, 'line')} of memory that is shown, damaged")
    found.add(KernelComplaint, rows[:MOST_ROWS])
    found.add(ShownMemory, shown.memory)
    return found.add(ShownBlocks, shown.blocks)


KERNEL_COMPLAINTS_SECTION = Section(
    name="kernel_complaints",
    title="What the log says about memory",
    since="0.3.0",
    tables=tables_of(KernelComplaint, ShownMemory, ShownBlocks),
    intro="""
What the kernel complained about, as far as it is of memory, each kind with its meaning: allocations
that failed, damage that its own checks or [hardware](https://docs.kernel.org/mm/hwpoison.html)
found, tasks that hung,
[leaks](https://docs.kernel.org/dev-tools/kmemleak.html), balloons and memory hotplug, and where
memory went at boot. The kernel prints less of what is frequent, and a ring loses its oldest
records: that there is nothing here does not mean that nothing happened.
""",
    command=Command("what the kernel's log says about memory", top=TOP),
    from_memory=lambda memory: _found(log_of_memory(memory), memory.prog["PAGE_SIZE"].value_()),
    from_files=lambda files: _found(log_of_files(files), None),
    reads=(prices.KMSG,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("kernel_complaints")
