# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Allocations that failed and said so: ``warn_alloc()`` (mm/page_alloc.c), which prints who asked for
what, the stack, and the memory that there was; of pages, and of ``vmalloc()``.

Lines of 3.10 to 7.3. Costs a look at each record of the log, which section ``kernel_log`` reads,
too. Where the line that says what failed is cut off, ``warn_alloc()`` in the stack tells that
something did.

Cannot know: of lines that several CPUs printed at once, and that name no caller, whose stack and
memory is whose; failures whose caller asked for silence (``__GFP_NOWARN``), and those that came too
soon after another: one in 10 s is printed, older kernels print ten in 5 s (``nopage_rs``); nor what
became of the caller: most have another way.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mmscope.drgn.log.kernel_log import (
    NOT_COMPARED,
    beginning,
    log_of_files,
    log_of_memory,
    missing,
)
from mmscope.drgn.log.mem_info import MemInfo, Request
from mmscope.drgn.log.records import CPU_LINE, STACK, same_caller, seconds_of, whole_records
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import MOST, MOST_ORDER, MOST_PIDS, column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.kernel_log import Log, LogRecord
from mmscope.drgn.text.log_prefix import is_comm

MOST_FAILURES = 2_000
MOST_LINES = 400  # of one
PAGES, STALL, VMALLOC = "page allocation failure", "page allocation stall", "vmalloc failure"
# 4.10 to 4.14 also said when an allocation took long. Before 4.12 there are no nodes, before 4.6 no
# names of flags.
FAILED = re.compile(
    r"(.*?): (?:page allocation failure[:.] order:(?P<order>[0-9]{1,2})"
    r"|page allocation stalls for (?P<ms>[0-9]{1,9})ms, order:(?P<stalled>[0-9]{1,2})"
    r"|vmalloc(?: error: size |: allocation failure: )(?P<size>[0-9]{1,18})[^:]*?)"
    r", ?mode:(?P<mask>0x[0-9a-f]{1,8}|0)(?:\((?P<flags>[A-Za-z0-9_|]*)\))?"
    r"(?:, ?nodemask=(?P<nodemask>\(null\)|[0-9,-]*))?"
    r"(?:,cpuset=(?P<cpuset>.*?),mems_allowed=(?P<mems>[0-9,-]*))?(?=$|[, ])"
)
# In a line that another CPU's words are in: the name was printed before it, in 4.9 by a call of its
# own, and so was the mode behind it (pr_cont()).
PIECE = re.compile(r"page allocation failure[:.] ?order:([0-9]{1,2})")
MODE = re.compile(r", ?mode:(0x[0-9a-f]{1,8})(?:\(([A-Z0-9_a-z|]*)\))?")
NO_NAME = re.compile(r"\s*page allocation failure[:.] ?order:[0-9]")
WHOSE = "whose stack and memory it is: several CPUs printed at once"
HEAD = "the line that says what failed"
DUMPS = re.compile(r"_*(?:dump_stack|show_stack|show_trace|dump_backtrace|unwind_backtrace)")
# Lines between that of the task and its stack.
MOST_BETWEEN = 12
# Until 4.9 vmalloc() has a line of its own before that of pages, with order 0.
OF_VMALLOC = re.compile(
    r"vmalloc: allocation failure(?:: |, allocated [0-9]{1,18} of )([0-9]{1,18}) bytes\n?"
)
WORKQUEUE = re.compile(r"Workqueue: (\S{1,64}) (\S{1,128})")
# Functions that allocate for others, up to the one that wanted it.
ALLOCATORS = re.compile(
    r"_*(?:unwind_backtrace|dump_backtrace|dump_stack|show_stack|show_trace|warn_alloc|alloc_pages?"
    r"|alloc_kmem_pages|get_page_from_freelist"
    r"|get_free_pages?|get_zeroed_page|kmalloc|kzalloc|kcalloc|kvmalloc|krealloc|kmem_cache_alloc"
    r"|kmem_getpages|new_slab|allocate_slab|alloc_slab|slab_alloc|cache_grow|cache_alloc"
    r"|fallback_alloc"
    r"|vmalloc|vzalloc|vmap|page_frag|folio_alloc|alloc_folio|alloc_frozen|alloc_skb|netdev_alloc"
    r"|napi_alloc|dma_alloc|dma_direct_alloc|dma_generic_alloc|x86_swiotlb|swiotlb_alloc)"
)
# As 3.10 and later kernels begin what SysRq prints (__handle_sysrq(), drivers/tty/sysrq.c).
OTHERS = re.compile(r" invoked oom-killer: |^(?:sysrq|SysRq ?): ")
FAILURE_ID = "number of the failure in the log, from 1"


@table(
    "allocation_failures",
    "Allocations that failed",
    empty="the log has no allocation that failed",
    not_compared=NOT_COMPARED,
)
class AllocationFailure:
    """An allocation that failed, as ``warn_alloc()`` printed it."""

    failure: int = column(key=True, low=1, help=FAILURE_ID)
    seconds: float | None = column(unit="s", help="since boot, by the record's time")
    date: str | None = column(holds="words", help="wall clock, as the log has it")
    what: str = column(holds="words", help=f"{PAGES}; {STALL} (it took long); {VMALLOC}")
    comm: str | None = column(holds="comm", help="task that asked; empty: not a possible name")
    pid: int | None = column(high=MOST_PIDS, help="of that task")
    order: int | None = column(high=MOST_ORDER, help="2^order contiguous pages were asked for")
    size_bytes: int | None = column(unit="bytes", high=MOST, help="size asked of vmalloc()")
    stalled_ms: int | None = column(unit="ms", help="time the allocation had taken so far")
    gfp_mask: str | None = column(holds="kernel", help="hexadecimal; empty: cut or mixed line")
    gfp_flags: str | None = column(holds="kernel", help="names of the mask, as printed")
    nodemask: str | None = column(holds="kernel", help="nodes of the memory policy")
    cpuset: str | None = column(holds="cgroup", help="last component of the task's cpuset")
    mems_allowed: str | None = column(holds="kernel", help="nodes of that cpuset")
    work: str | None = column(holds="words", help="of a worker: workqueue and function")
    caller: str | None = column(
        holds="kernel", help="function that wanted the memory: the first outside the allocators"
    )
    stack: str | None = column(holds="kernel", help="root;…;leaf")
    usable_free_bytes: int | None = column(
        unit="bytes",
        high=MOST,
        help="free in zones and nodes open to it, less lowmem_reserve and, unless movable, CMA",
    )
    suitable_blocks: int | None = column(
        high=MOST, help="free blocks of that order or larger there; empty: not printed"
    )
    lacks: str | None = column(holds="words", help="what is missing or damaged in its log records")


@table("allocation_failure_memory", "Memory when an allocation failed", not_compared=NOT_COMPARED)
class AllocationFailureMemory:
    """A number that the kernel printed about memory when an allocation failed."""

    failure: int = column(key=True, low=1, help=FAILURE_ID)
    node: int = column(key=True, low=-1, help="NUMA node; -1: the whole machine")
    zone: str = column(holds="kernel", key=True, help="zone; empty: the whole node or machine")
    counter: str = column(holds="kernel", key=True, help="as printed")
    bytes: int | None = column(
        unit="bytes", high=MOST, help="as in oom_memory; empty: page size unknown"
    )


@table(
    "allocation_failure_blocks", "Free blocks when an allocation failed", not_compared=NOT_COMPARED
)
class AllocationFailureBlocks:
    """Free blocks of one order in one zone when an allocation failed."""

    failure: int = column(key=True, low=1, help=FAILURE_ID)
    node: int = column(key=True, help="NUMA node")
    zone: str = column(holds="kernel", key=True, help="zone name")
    order: int = column(key=True, high=MOST_ORDER, help="order of the blocks")
    blocks: int = column(high=MOST, help="free blocks")
    migratetypes: str = column(holds="kernel", help="lists that have some, as in oom_free_blocks")


class Failures(NamedTuple):
    """All of a log."""

    failures: list[AllocationFailure]
    memory: list[AllocationFailureMemory]
    blocks: list[AllocationFailureBlocks]
    left_out: int  # later ones


@dataclass
class _Failure:
    """One whose lines are being read."""

    base: dict[str, Any]
    record: LogRecord
    lines: int = 0
    frames: list[str] = field(default_factory=list)  # leaf first
    memory: MemInfo = field(default_factory=MemInfo)
    lacks: str = ""
    over: bool = False  # another task's lines follow


def read_allocation_failures(
    records: Iterable[LogRecord], page_bytes: int | None = None
) -> Failures:
    """
    Find the allocations that failed in a log.

    :param page_bytes: of the machine; else it is taken from what each of them prints.
    """
    found: list[_Failure] = []
    left_out = 0
    current: _Failure | None = None
    vmalloc: int | None = None  # bytes, as the record before said
    stacks = _Stacks()
    for record in whole_records(records):
        size, vmalloc = vmalloc, None
        # Wrapped by a mail, with its words behind it, or cut by a terminal.
        first = " ".join(record.text.split()) if "mode:" in record.text else ""
        begun: list[_Failure] = []
        if "vmalloc: " in record.text and (of_vmalloc := OF_VMALLOC.fullmatch(record.text)):
            vmalloc = int(of_vmalloc[1])
        elif begun := _pieces(record):
            current = None
        elif match := FAILED.match(first):
            current = _begin(record, match)
            if size is not None and match["order"] == "0":
                current.base |= {"what": VMALLOC, "order": None, "size_bytes": size}
            begun = [current]
        elif OTHERS.search(record.text):
            current = None  # it prints its own memory
        else:
            for line in record.text.split("\n"):
                if (headless := stacks.take(record, line)) is not None:
                    current = headless
                    begun.append(current)
                elif current is not None and same_caller(current.record.caller, record.caller):
                    _take(current, line, several=stacks.heads > 1)
                    if current.lines > MOST_LINES or current.over:
                        current = None
        stacks.heads += sum(each.lacks != HEAD for each in begun)
        room = max(MOST_FAILURES - len(found), 0)
        found += begun[:room]
        left_out += len(begun[room:])
    result = Failures([], [], [], left_out)
    for number, failure in enumerate(found, 1):
        _add(number, failure, page_bytes, result)
    return result


@dataclass
class _Stacks:
    """Stacks that are passed by, for one of ``warn_alloc()`` without the line before it."""

    heads: int = 0  # of failures whose stack has not come yet
    dumps: bool = False  # all frames so far, and one at least, are what prints a stack
    frames: int = 0
    task: dict[str, Any] = field(default_factory=dict)  # comm and pid
    lines: int = 0  # since that

    def take(self, record: LogRecord, line: str) -> _Failure | None:
        self.lines += 1
        if match := CPU_LINE.fullmatch(line):
            comm, pid = match[2], int(match[1])
            self.lines = 0
            self.task = {"comm": comm, "pid": pid} if is_comm(comm) and pid <= MOST_PIDS else {}
        if (frame := STACK.fullmatch(line)) is None:
            self.dumps, self.frames = False, 0
            return None
        dumps, self.frames = self.dumps, self.frames + 1
        self.dumps = bool(DUMPS.match(frame[2])) and (dumps or self.frames == 1)
        if not dumps or not frame[2].startswith("warn_alloc"):
            return None
        if self.heads:
            self.heads -= 1
            return None
        task = self.task if self.lines <= MOST_BETWEEN else {}
        return _Failure(_empty(record) | task, record, frames=[frame[2]], lacks=HEAD)


def _pieces(record: LogRecord) -> list[_Failure]:
    """Failures in a record that is of several CPUs; their mode where all have the same."""
    text = record.text
    if text.count("page allocation failure") < 2 and not NO_NAME.match(text):
        return []
    orders = PIECE.findall(text)
    modes = MODE.findall(text)
    mask, flags = modes[0] if len({*modes}) == 1 and len(modes) >= len(orders) else ("", "")
    known = {"gfp_mask": mask or None, "gfp_flags": flags or None}
    return [
        _Failure(_empty(record) | known | {"order": int(order)}, record, lacks=WHOSE)
        for order in orders
    ]


def _empty(record: LogRecord) -> dict[str, Any]:
    return dict.fromkeys(AllocationFailure.__dataclass_fields__) | {
        **{"seconds": seconds_of(record), "date": record.date, "what": PAGES},
    }


def _begin(record: LogRecord, match: re.Match[str]) -> _Failure:
    order = match["order"] or match["stalled"]
    kind = STALL if match["ms"] else VMALLOC if match["size"] else PAGES
    numbers = {"order": order, "size_bytes": match["size"], "stalled_ms": match["ms"]}
    base = _empty(record) | {
        **{"what": kind, "comm": match[1] if is_comm(match[1]) else None},
        **{name: None if text is None else int(text) for name, text in numbers.items()},
        **{"gfp_mask": match["mask"], "gfp_flags": match["flags"], "nodemask": match["nodemask"]},
        **{"cpuset": match["cpuset"], "mems_allowed": match["mems"] or None},
    }
    return _Failure(base, record)


def _take(failure: _Failure, line: str, *, several: bool) -> None:
    """
    Read a line that may be of it.

    :param several: more than one failed whose stack has not come yet.
    """
    failure.lines += 1
    base = failure.base
    if match := STACK.fullmatch(line):
        if not match[1] and not failure.memory.memory:
            module = match[3] or match[4]
            failure.frames.append(match[2] + (f" [{module}]" if module else ""))
    elif match := CPU_LINE.fullmatch(line):
        if base["pid"] is None and match[2] == base["comm"] and int(match[1]) <= MOST_PIDS:
            base["pid"] = int(match[1])
        elif base["pid"] is not None and not failure.memory.memory:
            failure.over = True
        elif several and base["comm"] is not None:
            failure.over = True
            failure.lacks, failure.frames = WHOSE, []
    elif match := WORKQUEUE.fullmatch(line):
        base["work"] = f"{match[1]} {match[2]}"
    else:
        failure.memory.take(line)


def _caller(frames: Sequence[str]) -> str | None:
    """The first frame outside the allocators; what is before ``warn_alloc()`` is another task's."""
    begin = next((at for at, frame in enumerate(frames) if frame.startswith("warn_alloc")), 0)
    return next((frame for frame in frames[begin:] if not ALLOCATORS.match(frame)), None)


def _add(number: int, failure: _Failure, page_bytes: int | None, result: Failures) -> None:
    base, memory = failure.base, failure.memory
    page = page_bytes or memory.page_bytes()
    request = Request(base["gfp_mask"], base["gfp_flags"], base["nodemask"], base["mems_allowed"])
    lacks = [f"{what}, damaged ({times:,})" for what, times in memory.damaged.items()]
    if failure.lacks:
        lacks.insert(0, failure.lacks)
    if not memory.memory and failure.lacks != WHOSE:
        lacks.insert(0, "the memory that there was")
    if failure.lacks == HEAD and any("vmalloc" in frame for frame in failure.frames[1:2]):
        base["what"] = VMALLOC
    base |= {
        "failure": number,
        "caller": _caller(failure.frames),
        "stack": ";".join(reversed(failure.frames)) or None,
        "usable_free_bytes": memory.usable_bytes(request, page),
        "suitable_blocks": memory.suitable_blocks(request, base["order"]),
        "lacks": "; ".join(lacks) or None,
    }
    result.failures.append(AllocationFailure(**base))
    result.memory.extend(AllocationFailureMemory(number, *row) for row in memory.rows(page))
    result.blocks.extend(
        AllocationFailureBlocks(number, *place, *blocks) for place, blocks in memory.blocks.items()
    )


def _found(log: Log, page_bytes: int | None) -> Found:
    failures = read_allocation_failures(log.records, page_bytes)
    found = Found(notes=missing(log), remarks=beginning(log))
    found.unlisted += if_any(failures.left_out, "{}", "later failure")
    found.add(AllocationFailure, failures.failures)
    found.add(AllocationFailureMemory, failures.memory)
    return found.add(AllocationFailureBlocks, failures.blocks)


ALLOCATION_FAILURES_SECTION = Section(
    name="allocation_failures",
    title="Allocations that failed",
    since="0.3.0",
    tables=tables_of(AllocationFailure, AllocationFailureMemory, AllocationFailureBlocks),
    intro="""
Allocations that failed without a kill: of pages in a row, where none of that length was free and
[reclaim and compaction](https://docs.kernel.org/admin-guide/mm/concepts.html) were not allowed or
not enough; in interrupts (GFP_ATOMIC), which may not wait; and of vmalloc(). The kernel prints one
in 10 s, older ones ten in 5 s, and none where the caller asked for silence. What became of the
caller, the log does not say: many try again with less.
""",
    command=Command("allocations that failed, out of the kernel's log", top=TOP),
    from_memory=lambda memory: _found(log_of_memory(memory), memory.prog["PAGE_SIZE"].value_()),
    from_files=lambda files: _found(log_of_files(files), None),
    reads=(prices.KMSG,),
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("allocation_failures")
