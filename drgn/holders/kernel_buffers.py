# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory that the kernel takes to look at itself, in pages of which none says so: the rings of ftrace,
the records of the functions that it may trace, names of tasks, and the stacks that the stack depot
keeps.

- ``trace_array.array_buffer`` of each instance, and its snapshot, have a ring for each CPU: a
  circle of ``buffer_page``s, and one more that is being read (kernel/trace/ring_buffer.c).
- ``ftrace_pages_start`` is a list of blocks of ``2^order`` pages (kernel/trace/ftrace.c).
- ``savedcmd`` is one block (kernel/trace/trace_sched_switch.c).
- Pools of the stack depot are blocks of four pages; what it took before there was a page allocator
  is boot memory.

Costs a read for each page of a ring.

Cannot know: rings beyond the first :data:`MOST_PAGES` pages, and rings in memory that is kept over
a boot.
"""

import contextlib
import itertools

import numpy as np
from drgn import FaultError, Object, Program, ProgramFlags, TypeKind, offsetof, sizeof
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.holders.holdings import Holder, Holdings
from mmscope.drgn.reading.cpus import online_cpus, possible_cpus
from mmscope.drgn.reading.stack_depot import POOL_ORDER, pool_addresses
from mmscope.drgn.tables.display import plural

MOST_INSTANCES = 4096
MOST_BLOCKS = 1 << 16  # of records
MOST_PAGES = 1 << 16  # of all rings
TASK_COMM_LEN = 16  # include/linux/sched.h
FLAGS = ~3  # RB_PAGE_HEAD, RB_PAGE_UPDATE, in a link


def add_trace_rings(prog: Program, found: Holdings, kind: int) -> None:
    """The rings of every instance of ftrace."""
    if "ftrace_trace_arrays" not in prog:
        return
    instances = list_for_each_entry(
        "struct trace_array", prog["ftrace_trace_arrays"].address_of_(), "list"
    )
    cpus, online, left = possible_cpus(prog), set(online_cpus(prog)), MOST_PAGES
    live = bool(prog.flags & ProgramFlags.IS_LIVE)
    for instance in itertools.islice(instances, MOST_INSTANCES):
        name = instance.name.string_().decode(errors="backslashreplace") if instance.name else ""
        # The snapshot has another name in 7.3.
        for which in ("array_buffer", "max_buffer", "snapshot_buffer"):
            buffer = getattr(getattr(instance, which, None), "buffer", None)
            if not buffer:
                if which == "array_buffer" and not live:  # of the others there may be none
                    found.missing.append("rings of ftrace: an instance that has none")
                continue
            for cpu in cpus:
                ring = buffer.buffers[cpu]
                # trace_rb_cpu_prepare() (kernel/trace/ring_buffer.c): before a CPU is online.
                if not ring and cpu in online and not live:
                    found.missing.append(f"rings of ftrace: that of CPU {cpu}")
                if ring:
                    number = ring.nr_pages.value_() + 1
                    pages, orders = _ring(prog, ring, min(number, left) if live else left)
                    left -= len(pages)
                    if left and not live and len(pages) != number:
                        words = f"{plural(number, 'page')}, of which {len(pages):,} were found"
                        found.missing.append(f"rings of ftrace: a ring of {words}")
                    counts = np.int64(1) << np.array(orders, np.int64)
                    found.memory(
                        Holder("trace ring", name), kind, np.array(pages, np.uint64), counts
                    )
    if not left:
        found.missing.append(f"rings of ftrace: the first {MOST_PAGES:,} pages are looked at")


def _ring(prog: Program, ring: Object, most: int) -> tuple[list[int], list[int]]:
    """
    Addresses of the pages of one CPU's ring, and their orders.

    :param most: pages that are followed.
    """
    type_ = prog.type("struct buffer_page")
    page, has_order = offsetof(type_, "page"), type_.has_member("order")
    # "ring-buffer: Page size per ring buffer" (139f84002145, in v6.8)
    order = offsetof(type_, "order") if has_order else 0
    span = max(page, order) + 8
    head = ring.pages.value_() & FLAGS
    here, pages, orders = ring.reader_page.value_(), [], []
    for _ in range(most):
        raw = prog.read(here, span)
        if address := int.from_bytes(raw[page : page + 8], "little"):
            pages.append(address)
            orders.append(raw[order] & 0xF if has_order else 0)
        # The page that is read leads into the circle, and is not on it.
        here = int.from_bytes(raw[:8], "little") & FLAGS if len(pages) > 1 else head
        if not here or (here == head and len(pages) > 1):
            break
    return pages, orders


def add_ftrace_records(prog: Program, found: Holdings, kind: int) -> None:
    """Records of ftrace, of each function."""
    if "ftrace_pages_start" not in prog:
        return
    block = prog["ftrace_pages_start"]
    if not hasattr(block, "order"):  # in 5.10 it may be less than what was allocated
        return
    starts, orders = [], []
    for _ in range(MOST_BLOCKS):
        if not block:
            break
        starts.append(block.records.value_())
        orders.append(min(int(block.order.value_()), 20))
        block = block.next
    if 0 in starts:
        found.missing.append("records of ftrace: a block that has none")
    counts = np.int64(1) << np.array(orders, np.int64)
    if "ftrace_number_of_pages" in prog and not prog.flags & ProgramFlags.IS_LIVE:
        number = prog["ftrace_number_of_pages"].value_()
        if number != (pages := counts.sum()):
            words = f"{plural(number, 'page')}, of which {pages:,} were found"
            found.missing.append(f"records of ftrace: {words}")
    found.memory(Holder("ftrace records"), kind, np.array(starts, np.uint64), counts)


def saved_in_one_block(saved: Object) -> bool:
    """True if the names are in the ``struct saved_cmdlines_buffer`` itself."""
    kind = saved.type_.type.member("saved_cmdlines").type.kind
    return kind is TypeKind.ARRAY


def add_saved_commands(prog: Program, found: Holdings, kind: int) -> None:
    """The names of tasks that ftrace keeps: one block since v6.8, kmalloc()'s memory before."""
    if "savedcmd" not in prog:
        return
    if not (saved := prog["savedcmd"]):  # tracer_alloc_buffers() (kernel/trace/trace.c)
        found.missing.append("the names of tasks that ftrace keeps")
        return
    if not saved_in_one_block(saved):
        return
    # It has room for one at least, and their PIDs (trace_create_savedcmd(),
    # kernel/trace/trace_sched_switch.c).
    if not saved.cmdline_num or not saved.map_cmdline_to_pid:
        found.missing.append("the names of tasks that ftrace keeps: savedcmd leads elsewhere")
        return
    size = sizeof(saved.type_.type) + TASK_COMM_LEN * int(saved.cmdline_num.value_())
    pages = max(-(-size // int(prog["PAGE_SIZE"].value_())), 1)
    count = 1 << min((pages - 1).bit_length(), 20)
    found.memory(Holder("ftrace names"), kind, np.array([saved.value_()], np.uint64), count)


def add_stack_depot(prog: Program, found: Holdings, kind: int) -> None:
    """The stacks that page_owner, SLUB and KASAN keep."""
    with contextlib.suppress(LookupError, FaultError):
        pools = np.array([address for _, address in pool_addresses(prog)], np.uint64)
        found.memory(Holder("stack depot"), kind, pools, 1 << POOL_ORDER)
